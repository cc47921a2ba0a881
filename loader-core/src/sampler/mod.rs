//! Order as a function: (seed, epoch, position) gives the sample, so nothing about an epoch is
//! shipped to workers, resume is a number, and ranks don't need to talk. See `docs/order.md`.

mod described;
mod indices;
mod permutation;
mod shard;
mod weighted;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub(crate) use self::described::DescribedSampler;
use self::indices::Indices;
use self::permutation::Permutation;
pub use self::shard::{Shard, ShardError, ShardMode};
use crate::dataset::Fingerprint;
use crate::rng::Draws;
use crate::shm::MAX_INDEX;

/// The order in which the samples of an epoch come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Order {
    /// 0, 1, 2, ... in every epoch.
    Sequential,
    /// Every sample once, in an order of each epoch's own. Costs no memory.
    Shuffled,
    /// The samples of a list.
    Subset {
        /// Their indices in the dataset, in any order; one may be there several times.
        indices: Vec<u64>,
        /// False: in the order of the list. True: in an order of each epoch's own.
        shuffle: bool,
    },
    /// Samples drawn by weight, as `torch.utils.data.WeightedRandomSampler` draws them.
    Weighted {
        /// One weight a sample: finite, not negative, of any sum. Weight 0 is never drawn.
        weights: Vec<f64>,
        /// The length of an epoch.
        num_samples: u64,
        /// True: each position is drawn independently, so samples come several times. False: one
        /// sample comes at most once in an epoch; it takes one sort at the start of an epoch.
        replacement: bool,
    },
}

/// Lengths end here. It keeps all arithmetic of positions inside `u64`, and leaves room in the word
/// in which batches keep the index of a sample.
const MAX_LEN: u64 = MAX_INDEX;

/// Goes up when the same order, seed and epoch would mean other samples.
const VERSION: u64 = 1;

/// The operations that draw from the sampler's randomness. Part of what a seed means.
const DRAW_PERMUTATION: u64 = 1;
const DRAW_REPLACED: u64 = 2;
const DRAW_RACE: u64 = 3;

/// Draws that no sample's own draws meet: no sample has that occurrence.
fn draws(seed: u64, epoch: u64, position: u64, operation: u64) -> Draws {
    Draws::keyed(seed, epoch, position, u64::MAX, operation)
}

/// Gives every epoch its order. A function of its arguments: two samplers made alike agree, in one
/// process or in two, today or after an update.
#[derive(Clone, Debug)]
pub struct Sampler {
    plan: Plan,
    /// Positions in an epoch, all ranks together, without padding.
    samples: u64,
    shard: Option<Shard>,
    /// First position and length of what is given of the shard, where it is not all.
    part: Option<(u64, u64)>,
    seed: u64,
    fingerprint: Fingerprint,
    order: Fingerprint,
}

#[derive(Clone, Debug)]
enum Plan {
    Sequential,
    Shuffled,
    Subset {
        indices: Indices,
        shuffle: bool,
        repeats: bool,
    },
    Replaced {
        cumulated: Indices,
    },
    /// The weights as their bits.
    Race {
        weights: Indices,
    },
}

impl Sampler {
    /// A sampler for a dataset of `dataset_len` samples, of which this process takes its `shard`,
    /// or all.
    ///
    /// # Errors
    /// Where the order does not fit the dataset or contradicts itself.
    pub fn new(
        order: Order,
        shard: Option<Shard>,
        dataset_len: u64,
        seed: u64,
    ) -> Result<Self, OrderError> {
        let (fingerprint, own) = fingerprints(&order, dataset_len, seed);
        let (plan, samples) = match order {
            Order::Sequential => (Plan::Sequential, dataset_len),
            Order::Shuffled => (Plan::Shuffled, dataset_len),
            Order::Subset { indices, shuffle } => {
                if let Some(at) = indices.iter().position(|&index| index >= dataset_len) {
                    let index = indices[at];
                    return Err(OrderError::Index { at: at as u64, index, dataset_len });
                }
                let repeats = repeats(&indices);
                let samples = indices.len() as u64;
                (Plan::Subset { indices: indices.into(), shuffle, repeats }, samples)
            }
            Order::Weighted { weights, num_samples, replacement } => {
                let found = weights.len() as u64;
                if found != dataset_len {
                    return Err(OrderError::WeightCount { found, dataset_len });
                }
                let positive = weighted::check(&weights)?;
                if num_samples == 0 {
                    return Err(OrderError::NoSamples);
                }
                let plan = if replacement {
                    if positive == 0 {
                        return Err(OrderError::NoWeight { dataset_len });
                    }
                    Plan::Replaced { cumulated: weighted::cumulate(&weights) }
                } else {
                    if positive < num_samples {
                        return Err(OrderError::TooFewWeights { positive, num_samples });
                    }
                    Plan::Race { weights: weighted::to_bits(&weights) }
                };
                (plan, num_samples)
            }
        };
        if dataset_len.max(samples) > MAX_LEN {
            return Err(OrderError::TooLong { len: dataset_len.max(samples) });
        }
        Ok(Self { plan, samples, shard, part: None, seed, fingerprint, order: own })
    }

    /// Only those of the positions that it gives: another part of the samples in every epoch that
    /// has an order of its own.
    ///
    /// # Errors
    /// Where they are not all there.
    pub(crate) fn only(mut self, positions: Range<u64>) -> Result<Self, OrderError> {
        let Range { start, end } = positions;
        let len = self.len();
        if start > end || end > len {
            return Err(OrderError::Positions { start, end, len });
        }
        let mark: Vec<u8> = [start, end].iter().flat_map(|n| n.to_le_bytes()).collect();
        let mark = Fingerprint::of(&mark);
        self.part = Some((self.part.map_or(0, |(first, _)| first) + start, end - start));
        (self.fingerprint, self.order) = (self.fingerprint.and(mark), self.order.and(mark));
        Ok(self)
    }

    /// The positions of every epoch in this rank's shard. Exact.
    pub fn len(&self) -> u64 {
        let shard = || self.shard.map_or(self.samples, |shard| shard.len(self.samples));
        self.part.map_or_else(shard, |(_, len)| len)
    }

    /// True where this rank's shard holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The order of that epoch. Takes microseconds and no memory, except for a weighted
    /// order without replacement: a sort of as many numbers as there are weights.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let permutation = |len| Permutation::new(len, draws(self.seed, epoch, 0, DRAW_PERMUTATION));
        let rule = match &self.plan {
            Plan::Sequential => Rule::Sequential,
            Plan::Shuffled => Rule::Shuffled(permutation(self.samples)),
            Plan::Subset { indices, shuffle, repeats } => Rule::Listed {
                indices: indices.clone(),
                shuffle: shuffle.then(|| permutation(indices.len())),
                repeats: *repeats,
            },
            Plan::Replaced { cumulated } => {
                Rule::Replaced { cumulated: cumulated.clone(), seed: self.seed, epoch }
            }
            Plan::Race { weights } => {
                let draws = draws(self.seed, epoch, 0, DRAW_RACE);
                let indices = weighted::race(&weighted::from_bits(weights), self.samples, draws);
                Rule::Listed { indices, shuffle: None, repeats: false }
            }
        };
        let (first, step) =
            self.shard.map_or((0, 1), |shard| (shard.rank().into(), shard.world().into()));
        let first = first + self.part.map_or(0, |(start, _)| start) * step;
        EpochOrder { rule, samples: self.samples, len: self.len(), first, step }
    }

    /// Identifies the order, the dataset's length and the seed. The shard has no part in it: a run
    /// may resume with another number of ranks.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Identifies the order alone.
    pub(crate) fn order_fingerprint(&self) -> Fingerprint {
        self.order
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn shard(&self) -> Option<Shard> {
        self.shard
    }
}

/// The order of one epoch. A clone is cheap and shares what is explicit.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    rule: Rule,
    samples: u64,
    len: u64,
    first: u64,
    step: u64,
}

#[derive(Clone, Debug)]
enum Rule {
    Sequential,
    Shuffled(Permutation),
    Listed { indices: Indices, shuffle: Option<Permutation>, repeats: bool },
    Replaced { cumulated: Indices, seed: u64, epoch: u64 },
}

/// What stands at one position of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pick {
    /// The index in the dataset.
    pub index: u64,
    /// Differs wherever one index stands at several positions of an epoch, in all ranks together,
    /// so that each gets random draws of its own. 0 for the first pass of an order without repeats.
    pub occurrence: u64,
    /// True where [`ShardMode::Pad`] hands out again what another position already gave: leave it
    /// out of metrics.
    pub padding: bool,
}

impl EpochOrder {
    /// The positions of the epoch in this rank's shard.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True where this rank's shard holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What stands at a position of this rank's shard. Takes tens of nanoseconds; drawing with
    /// replacement takes a binary search of the weights.
    ///
    /// # Panics
    /// Where `position` is not below [`len`](Self::len), as slices do.
    pub fn get(&self, position: u64) -> Pick {
        assert!(position < self.len, "position {position} of an epoch of {} samples", self.len);
        self.pick(self.global(position))
    }

    /// The positions of all ranks together, without padding.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Where a position of this rank's shard, below [`len`](Self::len), lies in the whole epoch.
    pub(crate) fn global(&self, position: u64) -> u64 {
        self.first + position * self.step
    }

    /// What stands at a position of the whole epoch; those from [`samples`](Self::samples) on are
    /// padding.
    pub(crate) fn pick(&self, global: u64) -> Pick {
        let (pass, at) = (global / self.samples, global % self.samples);
        let (index, occurrence) = match &self.rule {
            Rule::Sequential => (at, pass),
            Rule::Shuffled(permutation) => (permutation.get(at), pass),
            Rule::Listed { indices, shuffle, repeats } => {
                let at = shuffle.as_ref().map_or(at, |permutation| permutation.get(at));
                let occurrence = if *repeats { 1 + at + pass * self.samples } else { pass };
                (indices.as_slice()[at as usize], occurrence)
            }
            Rule::Replaced { cumulated, seed, epoch } => {
                let index = weighted::draw(cumulated, &mut draws(*seed, *epoch, at, DRAW_REPLACED));
                (index, 1 + global)
            }
        };
        Pick { index, occurrence, padding: pass > 0 }
    }
}

/// True where an index stands in the list more than once.
fn repeats(indices: &[u64]) -> bool {
    let mut sorted = indices.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

/// Of the order with the dataset's length and the seed, and of the order alone.
fn fingerprints(order: &Order, dataset_len: u64, seed: u64) -> (Fingerprint, Fingerprint) {
    let (kind, numbers, list) = match order {
        Order::Sequential => (0, [0, 0], Vec::new()),
        Order::Shuffled => (1, [0, 0], Vec::new()),
        Order::Subset { indices, shuffle } => {
            let list = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
            (2, [u64::from(*shuffle), 0], list)
        }
        Order::Weighted { weights, num_samples, replacement } => {
            let list = weights.iter().flat_map(|w| w.to_bits().to_le_bytes()).collect();
            (3, [u64::from(*replacement), *num_samples], list)
        }
    };
    let list = Fingerprint::of(&list);
    let head = [VERSION, kind, numbers[0], numbers[1], dataset_len, seed];
    let head: Vec<u8> = head.iter().flat_map(|n| n.to_le_bytes()).collect();
    (Fingerprint::of(&head).and(list), Fingerprint::of(&head[..32]).and(list))
}

/// Why an [`Order`] does not fit a dataset.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// A subset names a sample that is not there.
    #[error("entry {at} of the subset is index {index}, but the dataset has {dataset_len} samples")]
    Index {
        /// The entry of the list.
        at: u64,
        /// The index that stands there.
        index: u64,
        /// The dataset's length.
        dataset_len: u64,
    },
    /// There is not one weight a sample.
    #[error("{found} weights for a dataset of {dataset_len} samples: give one weight a sample")]
    WeightCount {
        /// The number of weights.
        found: u64,
        /// The dataset's length.
        dataset_len: u64,
    },
    /// A weight is negative, infinite or not a number.
    #[error("weight {at} is {weight}: weights are finite and not negative")]
    BadWeight {
        /// The sample.
        at: u64,
        /// Its weight.
        weight: f64,
    },
    /// A weighted order of no samples.
    #[error("num_samples is 0: a weighted order draws at least one sample an epoch")]
    NoSamples,
    /// No sample can be drawn.
    #[error("none of the {dataset_len} weights is above 0")]
    NoWeight {
        /// The dataset's length.
        dataset_len: u64,
    },
    /// Drawing without replacement runs out of samples.
    #[error(
        "{num_samples} samples without replacement, but only {positive} weights are above 0: \
         lower num_samples or draw with replacement"
    )]
    TooFewWeights {
        /// The weights above 0.
        positive: u64,
        /// The samples asked for.
        num_samples: u64,
    },
    /// A part of an epoch that is not there.
    #[error("positions {start}..{end} of an epoch of {len} samples: take a part of 0..{len}")]
    Positions {
        /// The first position asked for.
        start: u64,
        /// The position after the last.
        end: u64,
        /// The epoch's samples, of this rank.
        len: u64,
    },
    /// The dataset or the epoch has more samples than can be numbered.
    #[error("{len} samples: an epoch ends at {MAX_LEN}")]
    TooLong {
        /// The length asked for.
        len: u64,
    },
}

#[cfg(test)]
mod tests;
