//! The loader: a dataset, an order and workers, put together and iterated as batches.

mod batch;
mod builder;
mod counters;
mod epoch;
mod error;
mod pool;
mod read_ahead;
mod share;
mod state;
mod watch;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

pub use batch::{Batch, FieldError, FieldLease};
pub use builder::DataLoaderBuilder;
pub use epoch::{Epoch, FailureReport};
pub use error::{BuildError, LoadError, SampleFailure};
use serde::{Deserialize, Serialize};
pub use watch::Stall;

use self::pool::Pool;
pub use self::read_ahead::ReadAhead;
pub use self::share::{OpenBatch, OpenField, ShareError, SharedBatch};
pub use self::state::{Difference, LoaderState, ResumeError, StateError};
use self::state::{Progress, Tracker};
use crate::dataset::{Dataset, Recipe};
use crate::stats::{MemoryReport, ProcessRole, Stats};
use crate::worker::{Control, Crew, fork_server_pid};

/// What happens when a sample can't be made. Under each of them an epoch ends with an error where no
/// sample is at fault ([`Stage::System`](crate::Stage::System)), such as a process that may open no more
/// files: leaving samples out would lose all of them without a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorPolicy {
    /// The epoch ends with the error.
    #[default]
    Stop,
    /// The sample is left out, so its batch is shorter; a batch without samples is left out whole.
    Skip,
    /// Another of the epoch's samples, of all ranks, takes its place, chosen by the position alone,
    /// so that nothing else changes. It is one that the epoch gives elsewhere too.
    /// If that one fails too, another, eight in all; then the epoch ends with the error.
    Substitute,
}

/// Gives a dataset's samples as batches in shared memory, epoch by epoch.
///
/// Made by [`builder`](Self::builder). Its workers start with it, stay for all epochs and end when
/// it is dropped; batches and tensors over them may live on.
///
/// The bytes of a batch depend on the data, the transform, the seed, the epoch and the batch's
/// number, and on nothing else: not on the number of workers, nor on what was loaded before.
///
/// ```
/// use loader_core::{DType, DataLoader, Dataset, Field, Fingerprint, Sample, SampleError, SampleWriter};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     type Scratch = ();
///
///     fn len(&self) -> u64 {
///         10
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::new("square", DType::I64, [])]
///     }
///     fn load(&self, sample: &Sample, _: &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
///         out.field::<i64>(0)?[0] = (sample.index * sample.index) as i64;
///         Ok(())
///     }
///     fn fingerprint(&self) -> Fingerprint {
///         Fingerprint::of(b"squares of 0..10")
///     }
/// }
///
/// let loader = DataLoader::builder(Squares).batch_size(4).build()?;
/// let mut sizes = Vec::new();
/// for batch in loader.epoch(0)? {
///     let batch = batch?;
///     sizes.push(batch.len());
///     println!("{:?}", batch.get::<i64>("square")?);
/// }
/// assert_eq!(sizes, [4, 4, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DataLoader<D: Dataset> {
    dataset: Arc<D>,
    pool: Arc<Pool>,
    policy: ErrorPolicy,
    tracker: Arc<Tracker>,
    // Dropped after `drop` has closed the pool.
    _workers: Crew,
}

impl<D: Dataset> DataLoader<D> {
    /// A builder for a loader over that dataset.
    pub fn builder(dataset: D) -> DataLoaderBuilder<D> {
        DataLoaderBuilder::new(dataset)
    }

    /// Batches of an epoch. Exact, except that [`ErrorPolicy::Skip`] leaves out a batch of which
    /// every sample failed.
    pub fn len(&self) -> u64 {
        self.pool.batches()
    }

    /// Always false: a loader without a batch is refused when it is built.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that an epoch of this rank gives, without those that `drop_last` leaves out.
    pub fn samples(&self) -> u64 {
        self.pool.samples()
    }

    /// Samples of a batch, but for what is left for the last one.
    pub fn batch_size(&self) -> usize {
        self.pool.batch_size() as usize
    }

    /// The dataset.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The ids of the worker processes that run at present; none where workers are threads. Their
    /// memory can be looked at there, and debuggers attached.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.pool.control().map(Control::pids).unwrap_or_default()
    }

    /// Where the time went since the loader was built: in the stages of making samples, in waiting on
    /// either side. Reads some words of shared memory for each worker, and can be asked at any time from
    /// any thread.
    ///
    /// ```no_run
    /// # fn train(loader: &loader_core::DataLoader<loader_core::ImageDataset>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut before = loader.stats();
    /// for epoch in 0..90 {
    ///     for batch in loader.epoch(epoch)? {
    ///         // ...
    ///     }
    ///     let now = loader.stats();
    ///     println!("epoch {epoch}: {}", now.since(&before).verdict());
    ///     before = now;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.pool.stats()
    }

    /// Writes a timeline of the last samples of every worker, and of what the loop waited and worked, as
    /// JSON that `chrome://tracing` and <https://ui.perfetto.dev> show. How many samples is what
    /// [`trace`](DataLoaderBuilder::trace) was given. May be called at any time, while workers work.
    ///
    /// ```no_run
    /// # fn train(loader: &loader_core::DataLoader<loader_core::ImageDataset>) -> std::io::Result<()> {
    /// loader.write_trace(std::fs::File::create("trace.json")?)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where no timeline was kept, or `out` does not take it.
    pub fn write_trace(&self, out: impl io::Write) -> io::Result<()> {
        self.pool.write_trace(out)
    }

    /// What this program, the fork server and the worker processes have of the machine's memory, and
    /// what of it they share. Takes milliseconds, since the system looks at every page.
    pub fn memory_report(&self) -> MemoryReport {
        let mut processes = vec![(std::process::id(), ProcessRole::Program)];
        if self.pool.control().is_some() {
            processes.extend(fork_server_pid().map(|pid| (pid, ProcessRole::ForkServer)));
            let workers = self.worker_pids().into_iter();
            processes.extend(workers.map(|pid| (pid, ProcessRole::Worker)));
        }
        // The names under which the system shows the files that workers map.
        let name = |fd: BorrowedFd<'_>| {
            let file = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            file.ok()?.into_os_string().into_string().ok()
        };
        let recipe = self.dataset.recipe().ok();
        let files = recipe.iter().flat_map(Recipe::files).filter_map(name).collect::<Vec<_>>();
        MemoryReport::of_loader(&processes, &files)
    }

    /// Worker processes that died so far and were replaced.
    pub fn restarts(&self) -> u64 {
        self.pool.control().map_or(0, Control::restarts)
    }

    /// Starts an epoch. Its first batches may be there already: while one epoch drains, the next
    /// one fills, unless [`prefetch_next_epoch`](DataLoaderBuilder::prefetch_next_epoch) is off.
    ///
    /// One epoch runs at a time: an earlier one that is still being iterated ends with
    /// [`LoadError::Superseded`].
    ///
    /// # Errors
    /// None today; what can go wrong with one epoch, such as its order, is reported here.
    pub fn epoch(&self, epoch: u64) -> Result<Epoch<D>, LoadError> {
        self.epoch_from(epoch, 0)
    }

    /// Starts an epoch at one of its batches, as after an interruption: the batches are those that
    /// an unbroken epoch gives from there on. Costs no more than starting at 0.
    ///
    /// # Errors
    /// [`LoadError::NoSuchBatch`] where `batch` is beyond [`len`](Self::len).
    pub fn epoch_from(&self, epoch: u64, batch: u64) -> Result<Epoch<D>, LoadError> {
        let batches = self.len();
        if batch > batches {
            return Err(LoadError::NoSuchBatch { batch, batches });
        }
        Ok(self.start(Progress::at(epoch, batch)))
    }

    /// Where this loader stands: the epoch started last, and its batches that were handed out,
    /// whatever is made ahead. Before the first epoch, the start of epoch 0.
    ///
    /// A batch counts from the moment that the iterator returns it. The first call takes as long as
    /// the dataset needs for its fingerprint, further ones less than a microsecond.
    pub fn state(&self) -> LoaderState {
        self.tracker.state(&*self.dataset)
    }

    /// Goes on from where a run stood that was [saved](Self::state): an iterator of those batches of
    /// the epoch that were not delivered yet, with the same bytes, under any workers. Where the epoch
    /// was complete there are none, and its number tells which one is next. Takes no longer than
    /// starting an epoch does. The failure report starts anew.
    ///
    /// ```
    /// # use loader_core::{DType, DataLoader, Dataset, Field, Fingerprint, LoaderState, Sample};
    /// # use loader_core::{SampleError, SampleWriter};
    /// # struct Squares;
    /// # impl Dataset for Squares {
    /// #     type Scratch = ();
    /// #     fn len(&self) -> u64 { 10 }
    /// #     fn fields(&self) -> Vec<Field> { vec![Field::new("x", DType::I64, [])] }
    /// #     fn load(&self, s: &Sample, _: &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
    /// #         out.field::<i64>(0)?[0] = s.index as i64;
    /// #         Ok(())
    /// #     }
    /// #     fn fingerprint(&self) -> Fingerprint { Fingerprint(0) }
    /// # }
    /// let loader = DataLoader::builder(Squares).batch_size(4).shuffle(1).build()?;
    /// # let mut first = loader.epoch(0)?;
    /// # first.next();
    /// # let checkpoint = serde_json::to_string(&loader.state())?;
    /// let saved: LoaderState = serde_json::from_str(&checkpoint)?;
    /// let mut epoch = loader.resume(&saved)?;
    /// while epoch.number() < 3 {
    ///     for batch in &mut epoch {
    ///         let batch = batch?;
    ///         let checkpoint = serde_json::to_string(&loader.state())?;
    ///     }
    ///     epoch = loader.epoch(epoch.number() + 1)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ResumeError::Mismatch`] names whatever differs of what batches are made of.
    pub fn resume(&self, state: &LoaderState) -> Result<Epoch<D>, ResumeError> {
        Ok(self.start(self.tracker.locate(state, &*self.dataset)?))
    }

    fn start(&self, from: Progress) -> Epoch<D> {
        let ticket = self.pool.start(from.epoch(), from.batch(), from.missing());
        let (dataset, pool) = (Arc::clone(&self.dataset), Arc::clone(&self.pool));
        let epoch = from.epoch();
        tracing::debug!(epoch, batch = from.batch(), "epoch started");
        let track = self.tracker.start(from);
        let tracker = Arc::clone(&self.tracker);
        Epoch::new(dataset, pool, self.policy, ticket, epoch, tracker, track)
    }
}

impl<D: Dataset> Drop for DataLoader<D> {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl<D: Dataset> std::fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLoader")
            .field("batches", &self.len())
            .field("batch_size", &self.pool.batch_size())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
