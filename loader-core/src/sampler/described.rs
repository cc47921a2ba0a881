//! A sampler on its way to another process. What it computes from is text; the numbers of an
//! explicit order go as one file in memory, which all workers map.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::indices::Indices;
use super::{Plan, Sampler, Shard, weighted};
use crate::dataset::Fingerprint;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DescribedSampler {
    plan: DescribedPlan,
    samples: u64,
    shard: Option<Shard>,
    #[serde(default)]
    part: Option<(u64, u64)>,
    seed: u64,
    fingerprint: Fingerprint,
    order: Fingerprint,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum DescribedPlan {
    Sequential,
    Shuffled,
    Subset { shuffle: bool, repeats: bool },
    Replaced,
    Race,
}

impl Sampler {
    /// The description, and the numbers of an explicit order.
    pub(crate) fn describe(&self) -> io::Result<(DescribedSampler, Option<OwnedFd>)> {
        let (plan, numbers) = match &self.plan {
            Plan::Sequential => (DescribedPlan::Sequential, None),
            Plan::Shuffled => (DescribedPlan::Shuffled, None),
            Plan::Subset { indices, shuffle, repeats } => {
                let (shuffle, repeats) = (*shuffle, *repeats);
                (DescribedPlan::Subset { shuffle, repeats }, Some(indices.share()?))
            }
            Plan::Replaced { cumulated } => (DescribedPlan::Replaced, Some(cumulated.share()?)),
            Plan::Race { weights } => (DescribedPlan::Race, Some(weights.share()?)),
        };
        let (samples, shard, part, seed) = (self.samples, self.shard, self.part, self.seed);
        let (fingerprint, order) = (self.fingerprint, self.order);
        Ok((DescribedSampler { plan, samples, shard, part, seed, fingerprint, order }, numbers))
    }
}

impl DescribedSampler {
    /// Whether a file of numbers goes with it.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn has_numbers(&self) -> bool {
        !matches!(self.plan, DescribedPlan::Sequential | DescribedPlan::Shuffled)
    }

    /// The sampler again; `numbers` gives the file where there is one.
    pub(crate) fn attach(
        self,
        numbers: impl FnOnce() -> Result<OwnedFd, String>,
    ) -> Result<Sampler, String> {
        let shared = || {
            let indices = Indices::attach(numbers()?).map_err(|e| format!("an order: {e}"))?;
            if indices.len() == 0 { Err("an order of nothing".to_owned()) } else { Ok(indices) }
        };
        let plan = match self.plan {
            DescribedPlan::Sequential => Plan::Sequential,
            DescribedPlan::Shuffled => Plan::Shuffled,
            DescribedPlan::Subset { shuffle, repeats } => {
                let indices = shared()?;
                if indices.len() != self.samples {
                    return Err(format!("{} of {} indices", indices.len(), self.samples));
                }
                Plan::Subset { indices, shuffle, repeats }
            }
            DescribedPlan::Replaced => {
                let cumulated = shared()?;
                if !cumulated.as_slice().is_sorted() || cumulated.as_slice().last() == Some(&0) {
                    return Err("cumulated weights that do not rise".to_owned());
                }
                Plan::Replaced { cumulated }
            }
            DescribedPlan::Race => {
                let weights = shared()?;
                let positive = weighted::check(&weighted::from_bits(&weights));
                let positive = positive.map_err(|e| e.to_string())?;
                if positive < self.samples {
                    return Err(format!("{positive} weights above 0 for {}", self.samples));
                }
                Plan::Race { weights }
            }
        };
        if self.samples == 0 || self.samples > super::MAX_LEN {
            return Err(format!("an order of {} samples", self.samples));
        }
        let (samples, shard, part, seed) = (self.samples, self.shard, self.part, self.seed);
        let (fingerprint, order) = (self.fingerprint, self.order);
        let whole = Sampler { plan, samples, shard, part: None, seed, fingerprint, order };
        match part {
            Some((start, len)) if start.checked_add(len).is_none_or(|end| end > whole.len()) => {
                Err(format!("{len} positions from {start} of {}", whole.len()))
            }
            part => Ok(Sampler { part, ..whole }),
        }
    }
}
