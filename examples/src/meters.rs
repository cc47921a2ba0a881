//! What is measured while a network learns: how well, how fast, and how long it waits for data.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Error;

/// What a network makes of a batch.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Mean cross entropy over the samples.
    pub loss: f32,
    /// Row-major, `[n, classes]`.
    pub logits: Vec<f32>,
}

/// How well samples were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Number of samples.
    pub images: u64,
    /// Sum of their losses.
    pub loss: f64,
    /// How many have the highest logit at their class.
    pub top1: u64,
    /// How many have their class among the five highest.
    pub top5: u64,
}

impl Score {
    /// Counts a batch in.
    ///
    /// # Errors
    /// Where there is no logit for a label.
    pub fn add(&mut self, answer: &Answer, labels: &[i64]) -> Result<(), Error> {
        self.images += labels.len() as u64;
        self.loss += f64::from(answer.loss) * labels.len() as f64;
        let classes = answer.logits.len() / labels.len().max(1);
        for (logits, &label) in answer.logits.chunks_exact(classes.max(1)).zip(labels) {
            let rank = rank(logits, label)?;
            self.top1 += u64::from(rank < 1);
            self.top5 += u64::from(rank < 5);
        }
        Ok(())
    }

    /// Mean loss.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.images.max(1) as f64
    }

    /// Percentage of `top1`.
    pub fn top1_percent(&self) -> f64 {
        100.0 * self.top1 as f64 / self.images.max(1) as f64
    }

    /// Percentage of `top5`.
    pub fn top5_percent(&self) -> f64 {
        100.0 * self.top5 as f64 / self.images.max(1) as f64
    }
}

/// How many other classes are at least as likely as `label`. A NaN is no success.
fn rank(logits: &[f32], label: i64) -> Result<usize, Error> {
    let label = usize::try_from(label)?;
    let own = *logits.get(label).ok_or_else(|| format!("no logit of class {label}"))?;
    let ahead = |l: f32| l.partial_cmp(&own).is_none_or(Ordering::is_ge);
    Ok(logits.iter().enumerate().filter(|&(class, &l)| class != label && ahead(l)).count())
}

/// An iterator that times how long its `next` takes.
#[derive(Debug)]
pub struct Waiting<I> {
    inner: I,
    start: Instant,
    times: Times,
    first: Option<Duration>,
}

/// Where the time of one pass over a data set went, in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Items that came.
    pub batches: u64,
    /// From the start to the end.
    pub took: Duration,
    /// How much of that went by waiting for batches.
    pub waited: Duration,
    /// How much of that for the first one.
    pub first: Duration,
}

impl<I> Waiting<I> {
    /// Starts the clock.
    pub fn new(inner: I) -> Self {
        Self { inner, start: Instant::now(), times: Times::default(), first: None }
    }

    /// The times up to now.
    pub fn times(&self) -> Times {
        let first = self.first.unwrap_or_default();
        Times { took: self.start.elapsed(), first, ..self.times }
    }
}

impl<I: Iterator> Iterator for Waiting<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let called = Instant::now();
        let item = self.inner.next();
        let wait = called.elapsed();
        self.first.get_or_insert(wait);
        self.times.waited += wait;
        self.times.batches += u64::from(item.is_some());
        item
    }
}

/// As `12.3 ms`.
pub fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_counts_the_classes_ahead() {
        assert_eq!(rank(&[0.1, 0.9, 0.5], 1).ok(), Some(0));
        assert_eq!(rank(&[0.1, 0.9, 0.5], 0).ok(), Some(2));
        assert_eq!(rank(&[f32::NAN; 3], 0).ok(), Some(2));
        assert!(rank(&[0.1, 0.9, 0.5], 3).is_err());
    }
}
