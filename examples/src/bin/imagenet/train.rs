//! One epoch of training, one of validation, and the figures they give.

use std::cmp::Ordering;
use std::f64::consts::PI;
use std::time::Duration;

use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use indicatif::ProgressBar;

use crate::Error;
use crate::model::ResNet18;
use crate::waiting::Waiting;

/// The learning rate by step: up in a straight line, then down along half a cosine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) peak: f64,
    pub(crate) warm_up: u64,
    pub(crate) steps: u64,
}

impl Schedule {
    fn at(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return self.peak * (step + 1) as f64 / self.warm_up as f64;
        }
        let done = (step - self.warm_up) as f64 / (self.steps - self.warm_up).max(1) as f64;
        self.peak * 0.5 * (1.0 + (PI * done.min(1.0)).cos())
    }
}

/// A model and all that changes while it learns.
pub(crate) struct Trainer {
    model: ResNet18,
    optimizer: ModuleOptimizer,
    loss: CrossEntropyLoss,
    schedule: Schedule,
    step: u64,
}

impl Trainer {
    /// Stochastic gradient descent with Nesterov momentum, weight decay and label smoothing.
    pub(crate) fn new(model: ResNet18, schedule: Schedule, device: &Device) -> Self {
        let optimizer = SgdConfig::new()
            .with_momentum(Some(
                MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(true),
            ))
            .with_weight_decay(Some(WeightDecayConfig::new(5e-4)))
            .init();
        let loss = CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(device);
        Self { model, optimizer, loss, schedule, step: 0 }
    }

    /// Learns from every batch once.
    pub(crate) fn train(
        &mut self,
        batches: impl Iterator<Item = Result<(Tensor<4>, Tensor<1, Int>), Error>>,
        bar: &ProgressBar,
    ) -> Result<Figures, Error> {
        let mut batches = Waiting::new(batches);
        let mut score = Score::default();
        for batch in &mut batches {
            let (images, labels) = batch?;
            let logits = self.model.forward(images);
            let loss = self.loss.forward(logits.clone(), labels.clone());
            score.add(loss.clone(), logits, labels)?;

            let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
            let rate = self.schedule.at(self.step);
            self.model = self.optimizer.step(rate, self.model.clone(), gradients);
            self.step += 1;
            bar.inc(1);
        }
        Ok(Figures::new(&score, &batches))
    }

    /// Answers every batch without learning from it.
    pub(crate) fn validate(
        &self,
        batches: impl Iterator<Item = Result<(Tensor<4>, Tensor<1, Int>), Error>>,
        bar: &ProgressBar,
    ) -> Result<Figures, Error> {
        let model = self.model.valid();
        let loss = self.loss.valid();
        let mut batches = Waiting::new(batches);
        let mut score = Score::default();
        for batch in &mut batches {
            let (images, labels) = batch?;
            let logits = model.forward(images);
            score.add(loss.forward(logits.clone(), labels.clone()), logits, labels)?;
            bar.inc(1);
        }
        Ok(Figures::new(&score, &batches))
    }
}

/// What came of one pass over a data set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Mean over the images.
    pub(crate) loss: f64,
    /// Percentage whose class has the highest logit.
    pub(crate) top1: f64,
    /// Percentage whose class is among the five highest.
    pub(crate) top5: f64,
    /// Number of images.
    pub(crate) images: u64,
    /// How long it took.
    pub(crate) took: Duration,
    /// How much of that went by waiting for batches.
    pub(crate) waited: Duration,
    /// How much of that for the first one.
    pub(crate) first: Duration,
}

impl Figures {
    fn new<I>(score: &Score, batches: &Waiting<I>) -> Self {
        let share = |sum: f64| sum / score.images.max(1) as f64;
        Self {
            loss: share(score.loss),
            top1: 100.0 * share(score.top1 as f64),
            top5: 100.0 * share(score.top5 as f64),
            images: score.images,
            took: batches.since_start(),
            waited: batches.waited(),
            first: batches.first(),
        }
    }

    /// Images a second.
    pub(crate) fn rate(&self) -> f64 {
        self.images as f64 / self.took.as_secs_f64()
    }
}

#[derive(Default)]
struct Score {
    images: u64,
    loss: f64,
    top1: u64,
    top5: u64,
}

impl Score {
    fn add(
        &mut self,
        loss: Tensor<1>,
        logits: Tensor<2>,
        labels: Tensor<1, Int>,
    ) -> Result<(), Error> {
        let [images, classes] = logits.dims();
        let loss: f32 = loss.into_scalar();
        let logits: Vec<f32> = logits.try_into_data()?.try_into_vec_as()?;
        let labels: Vec<i64> = labels.try_into_data()?.try_into_vec_as()?;
        self.images += images as u64;
        self.loss += f64::from(loss) * images as f64;
        for (logits, label) in logits.chunks_exact(classes).zip(labels) {
            let rank = rank(logits, usize::try_from(label)?);
            self.top1 += u64::from(rank < 1);
            self.top5 += u64::from(rank < 5);
        }
        Ok(())
    }
}

/// How many other classes are at least as likely as `label`. A NaN is no success.
fn rank(logits: &[f32], label: usize) -> usize {
    let own = logits[label];
    let ahead = |l: f32| l.partial_cmp(&own).is_none_or(Ordering::is_ge);
    logits.iter().enumerate().filter(|&(class, &l)| class != label && ahead(l)).count()
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

    #[test]
    fn rank_counts_the_classes_ahead() {
        assert_eq!(rank(&[0.1, 0.9, 0.5], 1), 0);
        assert_eq!(rank(&[0.1, 0.9, 0.5], 0), 2);
        assert_eq!(rank(&[f32::NAN; 3], 0), 2);
    }
}
