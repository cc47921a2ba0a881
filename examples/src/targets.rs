//! What a network should answer: class probabilities of each sample of a batch.

use loader_core::{Batch, CutMix, MixUp};

use crate::Error;

/// How targets are made of labels.
#[derive(Clone, Debug)]
pub struct Targets {
    classes: usize,
    smoothing: f64,
    mixup: Option<MixUp>,
    cutmix: Option<CutMix>,
}

impl Targets {
    /// The labels as they are.
    pub fn new(classes: usize) -> Self {
        Self { classes, smoothing: 0.0, mixup: None, cutmix: None }
    }

    /// Spreads that share of each target over all classes.
    pub fn smoothing(mut self, share: f64) -> Self {
        self.smoothing = share;
        self
    }

    /// Mixes the images of each batch, in one of the two ways where both are given.
    pub fn mixing(mut self, mixup: Option<f64>, cutmix: Option<f64>) -> Self {
        self.mixup = mixup.map(|alpha| MixUp::new(self.classes).alpha(alpha));
        self.cutmix = cutmix.map(|alpha| CutMix::new(self.classes).alpha(alpha));
        self
    }

    /// The probabilities, row-major in the shape `[batch.len(), classes]`. Where images are mixed,
    /// it is done to those of the batch, as a function of the loader's seed and the batch.
    ///
    /// # Errors
    /// Where the batch has no label below `classes` or an alpha is out of range.
    pub fn of(&self, batch: &mut Batch) -> Result<Vec<f32>, Error> {
        let mut targets = match (&self.mixup, &self.cutmix) {
            (Some(mixup), Some(_)) if batch.draws(0).chance(0.5) => mixup.apply(batch)?,
            (_, Some(cutmix)) => cutmix.apply(batch)?,
            (Some(mixup), None) => mixup.apply(batch)?,
            (None, None) => one_hot(batch.get("label")?, self.classes)?,
        };
        let spread = (self.smoothing / self.classes as f64) as f32;
        let kept = (1.0 - self.smoothing) as f32;
        targets.iter_mut().for_each(|target| *target = *target * kept + spread);
        Ok(targets)
    }
}

fn one_hot(labels: &[i64], classes: usize) -> Result<Vec<f32>, Error> {
    let mut targets = vec![0.0; labels.len() * classes];
    for (row, &label) in targets.chunks_exact_mut(classes).zip(labels) {
        let target = usize::try_from(label).ok().and_then(|label| row.get_mut(label));
        *target.ok_or_else(|| format!("label {label} is none of {classes} classes"))? = 1.0;
    }
    Ok(targets)
}
