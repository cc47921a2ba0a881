//! Building a loader: every default, and every contradiction as an error.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::counters::Counters;
use super::error::BuildError;
use super::pool::{Plan, Pool};
use super::read_ahead::{ReadAhead, Readers};
use super::state::Tracker;
use super::{DataLoader, ErrorPolicy};
use crate::dataset::Dataset;
use crate::sampler::{Order, Sampler, Shard};
use crate::shm::{
    Arena, Geometry, MAX_RECORDS, MAX_SLOTS, MAX_WORKERS, Recorder, available_memory,
    sweep_segments,
};
use crate::worker::{Batches, Crew, Job, StartWorkersError, Workers, erase};

/// Batches made ahead by default.
const PREFETCH: usize = 3;
/// The default memory budget, where the machine has four times as much available.
const BUDGET: u64 = 2 << 30;

/// Settings of a [`DataLoader`], which [`build`](Self::build) checks. Their order matters only where
/// two set the same thing, as [`shuffle`](Self::shuffle) sets order and seed: the last one counts.
#[derive(Clone, Debug)]
#[must_use]
pub struct DataLoaderBuilder<D> {
    dataset: D,
    batch_size: usize,
    order: Order,
    seed: u64,
    shard: Option<Shard>,
    positions: Vec<Range<u64>>,
    drop_last: bool,
    workers: Workers,
    prefetch: Option<usize>,
    prefetch_next_epoch: bool,
    read_ahead: ReadAhead,
    memory_budget: Option<u64>,
    wait_for_slot: Duration,
    timeout: Option<Duration>,
    ordered: bool,
    policy: ErrorPolicy,
    shareable: bool,
    trace: usize,
}

impl<D: Dataset> DataLoaderBuilder<D> {
    pub(super) fn new(dataset: D) -> Self {
        Self {
            dataset,
            batch_size: 1,
            order: Order::Sequential,
            seed: 0,
            shard: None,
            positions: Vec::new(),
            drop_last: false,
            workers: Workers::default(),
            prefetch: None,
            prefetch_next_epoch: true,
            read_ahead: ReadAhead::default(),
            memory_budget: None,
            wait_for_slot: Duration::ZERO,
            timeout: None,
            ordered: true,
            policy: ErrorPolicy::default(),
            shareable: false,
            trace: 0,
        }
    }

    /// Samples a batch. Default 1.
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.batch_size = samples;
        self
    }

    /// Every sample once an epoch, in an order of each epoch's own; the same as
    /// [`Order::Shuffled`] and that [`seed`](Self::seed).
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.order = Order::Shuffled;
        self.seed(seed)
    }

    /// The order of an epoch. Default [`Order::Sequential`].
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The seed of the order and of the transforms' random draws. Default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// This process's share of every epoch in distributed training. Default: all.
    pub fn shard(mut self, shard: Shard) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Only those positions of every epoch, or of this process's share of it: loaders with other
    /// positions and the same settings give the rest of the same epoch. Where epochs have orders of
    /// their own, each gives other samples. Set again, it takes a part of that part. Default: all.
    pub fn positions(mut self, positions: Range<u64>) -> Self {
        self.positions.push(positions);
        self
    }

    /// Leaves out the last batch of an epoch where it would be shorter. Default false.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Who makes the samples. Default: one thread for each CPU that this process may use.
    pub fn workers(mut self, workers: Workers) -> Self {
        self.workers = workers;
        self
    }

    /// Batches made ahead of the one that the caller uses. Default 3, or what the memory budget
    /// allows. All workers share the work on one batch, so more helps only where batches differ
    /// much in cost.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// Whether the next epoch is begun while the last batches of one are used. Its number is
    /// guessed from those before: one more, or the same step as last time. Default true.
    pub fn prefetch_next_epoch(mut self, prefetch: bool) -> Self {
        self.prefetch_next_epoch = prefetch;
        self
    }

    /// How far files are read ahead of the batches that are being made; see [`ReadAhead`] for the
    /// default. Costs some microseconds of a CPU for each file, and saves the wait for a disk or a
    /// network; raise the threads where opening a file takes long. Only of use to datasets that
    /// implement [`read_ahead`](Dataset::read_ahead), as image folders do.
    pub fn read_ahead(mut self, read_ahead: ReadAhead) -> Self {
        self.read_ahead = read_ahead;
        self
    }

    /// Bytes of shared memory that batches may take. Memory for the batches made ahead and one in
    /// use is reserved at once; more is reserved when the caller holds more batches, up to this
    /// budget, and then asking for a batch is an error.
    ///
    /// Default: 2 GiB or a quarter of the available memory, whichever is less, but enough for
    /// `prefetch` + 1 batches.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// How long to wait for a batch to be dropped, by another thread, when the caller asks for one
    /// and all that fit in the memory budget are held. Default: not at all.
    pub fn wait_for_slot(mut self, timeout: Duration) -> Self {
        self.wait_for_slot = timeout;
        self
    }

    /// How long one sample may take. A worker process that takes longer is killed and replaced, and
    /// a sample that does that twice counts as failed; with worker threads, which can't be killed,
    /// the epoch ends with [`LoadError::Stalled`](crate::LoadError::Stalled). Looked at while the
    /// caller waits for a batch. Default: no limit; a wait of more than ten seconds is told as a
    /// `tracing` warning (or on standard error) with the sample that holds it up, and a worker
    /// process that somebody stopped is replaced after five seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Delivers batches as they are complete, not in the order of their numbers. Which samples form
    /// a batch doesn't change. Default false.
    pub fn unordered(mut self, unordered: bool) -> Self {
        self.ordered = !unordered;
        self
    }

    /// What happens when a sample can't be made. Default [`ErrorPolicy::Stop`].
    pub fn error_policy(mut self, policy: ErrorPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Whether batches can be [shared](crate::Batch::share) with processes that are not this loader's
    /// workers. Default false.
    ///
    /// Batches then lie in a segment of `/dev/shm`, which only this user can open and which has to be
    /// large enough; the segment goes with the loader and its batches. Where that process is killed,
    /// the segment stays until another such loader is built or
    /// [`sweep_segments`](crate::sweep_segments) is called.
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = shareable;
        self
    }

    /// Keeps a timeline of the last `samples` samples of each worker, for
    /// [`write_trace`](DataLoader::write_trace): 128 bytes of shared memory each. Default 0: none.
    pub fn trace(mut self, samples: usize) -> Self {
        self.trace = samples;
        self
    }

    /// Checks everything, reserves the memory and starts the workers, which wait for the first
    /// epoch. The time goes into reserving memory, which the system clears: tenths of a millisecond
    /// a megabyte of `prefetch` + 1 batches, whatever the dataset's length.
    ///
    /// # Errors
    /// A [`BuildError`] that names the setting to change.
    pub fn build(self) -> Result<DataLoader<D>, BuildError> {
        let in_range = |knob, value, max| {
            let ok = (1..=max).contains(&value);
            ok.then_some(()).ok_or(BuildError::OutOfRange { knob, value, min: 1, max })
        };
        in_range("batch_size", self.batch_size, u32::MAX as usize)?;
        in_range("workers", self.workers.count(), MAX_WORKERS)?;
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(BuildError::NoTime);
        }
        if let Some(prefetch) = self.prefetch {
            in_range("prefetch", prefetch, MAX_SLOTS - 1)?;
        }
        if self.trace > 0 {
            in_range("trace", self.trace, MAX_RECORDS)?;
        }
        let dataset_len = self.dataset.len();
        if dataset_len == 0 {
            return Err(BuildError::Empty);
        }
        let mut sampler = Sampler::new(self.order, self.shard, dataset_len, self.seed)?;
        for positions in self.positions {
            sampler = sampler.only(positions)?;
        }
        let batch_size = self.batch_size as u64;
        let dropped = if self.drop_last { sampler.len() % batch_size } else { 0 };
        let samples = sampler.len() - dropped;
        if samples == 0 {
            return Err(BuildError::NoBatches {
                samples: sampler.len(),
                batch_size: self.batch_size,
                drop_last: self.drop_last,
            });
        }
        // No batch holds more than an epoch does.
        let room = samples.min(batch_size) as usize;
        let run = self.dataset.run_len();
        let geometry = Geometry::with_runs(self.dataset.fields(), room, run)?;
        let batch_bytes = geometry.slot_bytes as u64;
        let (prefetch, slots) = slots(self.prefetch, self.memory_budget, batch_bytes)?;
        let plan = Plan {
            samples,
            batch_size,
            prefetch,
            prefetch_next_epoch: self.prefetch_next_epoch,
            ordered: self.ordered,
            wait_for_slot: self.wait_for_slot,
            timeout: self.timeout,
        };
        let workers = self.workers.count();
        let (arena, shares) = if self.shareable {
            if let Err(error) = sweep_segments() {
                tracing::warn!(%error, "segments of dead loaders could not be swept");
            }
            let (arena, shares) = Arena::create_shareable(geometry, slots, workers, prefetch + 1)?;
            (arena, Some(shares))
        } else {
            (Arena::create(geometry, slots, workers)?, None)
        };
        let arena = Arc::new(arena);
        let dataset = Arc::new(self.dataset);
        let locate = {
            let dataset = Arc::clone(&dataset);
            Box::new(move |index| dataset.locate(index))
        };
        let readers = if self.read_ahead.is_off() {
            None
        } else {
            let dataset = Arc::clone(&dataset);
            let ask = Box::new(move |index| dataset.read_ahead(index));
            let readers = Readers::start(self.read_ahead, sampler.clone(), ask);
            Some(readers.map_err(StartWorkersError::System)?)
        };
        let recorder = match self.trace {
            0 => None,
            records => Some(Arc::new(Recorder::create(records, workers)?)),
        };
        let counters = Counters::new(recorder.clone());
        let pool = Pool::new(Arc::clone(&arena), shares, plan, locate, readers, counters)?;
        let pool = Arc::new(pool);
        let substitute = self.policy == ErrorPolicy::Substitute;
        let erased = erase(Arc::clone(&dataset));
        let job = Job::new(arena, erased, sampler.clone(), self.seed, substitute, recorder);
        let recipe = || {
            let dataset_type = std::any::type_name::<D>();
            let refused = |source| StartWorkersError::Recipe { dataset: dataset_type, source };
            dataset.recipe().map_err(refused)
        };
        let batches = Arc::clone(&pool) as Arc<dyn Batches>;
        let workers = Crew::start(self.workers, job, recipe, batches, self.timeout)?;
        if let Some(control) = workers.control() {
            pool.set_control(Arc::clone(control));
        }
        let batches = pool.batches();
        let tracker = Tracker::new(sampler, batches, batch_size, self.drop_last, self.policy);
        let (policy, tracker) = (self.policy, Arc::new(tracker));
        Ok(DataLoader { dataset, pool, policy, tracker, _workers: workers })
    }
}

/// Batches made ahead, and slots there may be, from what the caller said and the memory there is.
fn slots(
    prefetch: Option<usize>,
    budget: Option<u64>,
    batch_bytes: u64,
) -> Result<(usize, usize), BuildError> {
    let fit = |budget: u64| usize::try_from(budget / batch_bytes).unwrap_or(MAX_SLOTS);
    if let Some(budget) = budget {
        let fit = fit(budget).min(MAX_SLOTS);
        let needed = prefetch.map_or(2, |p| p + 1);
        if fit < needed {
            return Err(BuildError::Budget { budget, batch_bytes, batches: needed });
        }
        return Ok((prefetch.unwrap_or(PREFETCH.min(fit - 1)), fit));
    }
    let prefetch = prefetch.unwrap_or(PREFETCH);
    let quarter = available_memory().map_or(BUDGET, |available| available / 4);
    Ok((prefetch, fit(BUDGET.min(quarter)).clamp(prefetch + 1, MAX_SLOTS)))
}
