//! Draws by weight, with and without replacement, as `torch.multinomial` distributes them.

use super::OrderError;
use super::indices::Indices;
use crate::rng::Draws;

/// The range onto which cumulated weights are scaled: 2^62, so that a sum rounded up still fits.
const SCALE: f64 = (1u64 << 62) as f64;

/// Refuses weights that are no weights, then counts those above zero.
pub(super) fn check(weights: &[f64]) -> Result<u64, OrderError> {
    if let Some(at) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
        return Err(OrderError::BadWeight { at: at as u64, weight: weights[at] });
    }
    Ok(weights.iter().filter(|w| **w > 0.0).count() as u64)
}

/// Weights in a form that can be shared.
pub(super) fn to_bits(weights: &[f64]) -> Indices {
    weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>().into()
}

pub(super) fn from_bits(weights: &Indices) -> Vec<f64> {
    weights.as_slice().iter().map(|&bits| f64::from_bits(bits)).collect()
}

/// The cumulated weights as whole numbers, for [`draw`]. An item of weight 0 adds nothing and is
/// never drawn. At least one weight is above 0.
pub(super) fn cumulate(weights: &[f64]) -> Indices {
    let heaviest = weights.iter().copied().fold(0.0, f64::max);
    let total: f64 = weights.iter().map(|w| w / heaviest).sum();
    let mut sum = 0.0;
    let cumulated = weights.iter().map(|w| {
        sum += w / heaviest;
        (sum / total * SCALE) as u64
    });
    cumulated.collect::<Vec<_>>().into()
}

/// One index, with a probability proportional to its weight.
pub(super) fn draw(cumulated: &Indices, draws: &mut Draws) -> u64 {
    let cumulated = cumulated.as_slice();
    let total = cumulated.last().copied().unwrap_or(0);
    let ball = draws.below(total);
    cumulated.partition_point(|&sum| sum <= ball) as u64
}

/// `count` distinct indices in the order in which they would be drawn one by one, each time with
/// probabilities proportional to the weights of those still left. At least `count` weights are
/// above 0.
///
/// Exponential races: item i arrives at time E_i / w_i and the first `count` to arrive win, which
/// is the same distribution (Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
/// 2006).
pub(super) fn race(weights: &[f64], count: u64, mut draws: Draws) -> Indices {
    let heaviest = weights.iter().copied().fold(0.0, f64::max);
    let mut arrivals: Vec<(f64, u64)> = Vec::with_capacity(weights.len());
    for (index, &weight) in weights.iter().enumerate() {
        // Drawn for a zero weight too: changing one weight leaves the others' draws alone.
        let time = exponential(&mut draws);
        if weight > 0.0 {
            arrivals.push((time / (weight / heaviest), index as u64));
        }
    }
    let first = |a: &(f64, u64), b: &(f64, u64)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let count = count as usize;
    if count < arrivals.len() {
        arrivals.select_nth_unstable_by(count, first);
        arrivals.truncate(count);
    }
    arrivals.sort_unstable_by(first);
    arrivals.into_iter().map(|(_, index)| index).collect::<Vec<_>>().into()
}

/// Exponentially distributed with mean 1.
fn exponential(draws: &mut Draws) -> f64 {
    // 1 - unit is in (0, 1], so the logarithm is finite.
    -ln(1.0 - draws.unit())
}

/// The natural logarithm of a positive normal number.
///
/// `f64::ln` may differ in the last digit between platforms, and with it the order of an epoch;
/// this uses only operations that IEEE 754 rounds exactly. ln(m 2^e) = e ln 2 + 2 artanh((m-1)/(m+1))
/// with m in [0.70, 1.42), by the series of artanh.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits((bits & MANTISSA) | 1.0f64.to_bits());
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let series = (0..12).rev().fold(0.0, |sum, k| sum * (s * s) + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests;
