//! The learning rate by step.

use std::f64::consts::PI;

/// Up in a straight line, then down along half a cosine.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps until it is reached.
    pub warm_up: u64,
    /// All steps, the warm-up's included.
    pub steps: u64,
}

impl Schedule {
    /// The rate of a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return self.peak * (step + 1) as f64 / self.warm_up as f64;
        }
        let done = (step - self.warm_up) as f64 / (self.steps - self.warm_up).max(1) as f64;
        self.peak * 0.5 * (1.0 + (PI * done.min(1.0)).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_climbs_to_its_peak_and_falls_to_zero() {
        let schedule = Schedule { peak: 0.4, warm_up: 4, steps: 14 };
        let rates: Vec<f64> = (0..15).map(|step| schedule.at(step)).collect();
        assert_eq!(rates[..5], [0.1, 0.2, 0.30000000000000004, 0.4, 0.4]);
        assert!(rates[4..].is_sorted_by(|a, b| a > b), "{rates:?}");
        assert!((rates[9] - 0.2).abs() < 1e-12);
        assert!(rates[14].abs() < 1e-12);
    }
}
