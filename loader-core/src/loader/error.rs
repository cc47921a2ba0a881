//! What building a loader and iterating it can report.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::watch::Stall;
use crate::dataset::{Dataset, SampleError};
use crate::sampler::OrderError;
use crate::shm::{Failure, GeometryError, MemoryError, WorkerId};
use crate::worker::{StartWorkersError, WorkerError};

/// Why a loader could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The dataset has no samples.
    #[error("the dataset is empty")]
    Empty,
    /// This rank's share, or what `drop_last` leaves of it, is less than one batch.
    #[error(
        "an epoch would have no batch: {samples} samples for this rank, batch_size {batch_size}, \
         drop_last {drop_last}"
    )]
    NoBatches {
        /// Samples of this rank.
        samples: u64,
        /// The batch size asked for.
        batch_size: usize,
        /// Whether a short last batch is dropped.
        drop_last: bool,
    },
    /// A number that has to be at least 1, or a limit that is exceeded.
    #[error("{knob} is {value}, it must be in {min}..={max}")]
    OutOfRange {
        /// The builder's method.
        knob: &'static str,
        /// What it was given.
        value: usize,
        /// The least that works.
        min: usize,
        /// The most that works.
        max: usize,
    },
    /// A timeout of nothing.
    #[error("timeout is zero: every sample would take longer. Leave it out for no limit")]
    NoTime,
    /// The memory budget does not hold the batches made ahead and one in use.
    #[error(
        "memory_budget is {budget} bytes, but one batch takes {batch_bytes} and {batches} are \
         needed: raise it, or lower batch_size or prefetch"
    )]
    Budget {
        /// Bytes allowed.
        budget: u64,
        /// Bytes of one batch.
        batch_bytes: u64,
        /// Batches needed at least.
        batches: usize,
    },
    /// The order does not fit the dataset.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The samples can't be laid out as batches.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is no memory for the batches.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The workers could not be started.
    #[error(transparent)]
    Workers(#[from] StartWorkersError),
}

/// Why there is no next batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A sample could not be made, and the error policy says to stop.
    #[error(transparent)]
    Sample(Box<SampleFailure>),
    /// The caller holds so many batches that there is no memory left to make another.
    #[error(
        "{held} batches are held (a batch is held until its last tensor, view or clone is dropped, in \
         every process that opened it), \
         {max} is the most that fit in memory_budget{}{}: drop batches sooner, copy what is to be \
         kept, or raise memory_budget",
        if .waited.is_zero() { String::new() } else { format!(" and none came back in {waited:?}") },
        .refused.as_ref().map(|e| format!(" ({e})")).unwrap_or_default()
    )]
    BatchesHeld {
        /// Batches that the caller holds, or other processes have open.
        held: usize,
        /// The most there can be.
        max: usize,
        /// How long the loader waited for one to come back.
        waited: Duration,
        /// Why memory that the budget allows could not be had.
        refused: Option<MemoryError>,
    },
    /// Another epoch of the same loader was started, or the loader was dropped.
    #[error(
        "epoch {epoch} ended early: its loader was dropped, or started another epoch (keep the \
         loader in a variable as long as its epoch runs)"
    )]
    Superseded {
        /// The epoch that ended.
        epoch: u64,
    },
    /// One sample took longer than the timeout.
    #[error(
        "{0}, longer than the timeout: look at the file, or raise the loader's timeout (worker \
         processes are replaced instead)"
    )]
    Stalled(Box<Stall>),
    /// The worker processes can't go on.
    #[error(transparent)]
    Workers(WorkerError),
    /// A position beyond the epoch's end.
    #[error("there is no batch {batch} to start from: an epoch has {batches}")]
    NoSuchBatch {
        /// The batch asked for.
        batch: u64,
        /// The epoch's length.
        batches: u64,
    },
}

/// A sample that could not be made: which one, where it lies, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SampleFailure {
    /// The epoch.
    pub epoch: u64,
    /// The position in this rank's epoch.
    pub position: u64,
    /// The index in the dataset.
    pub index: u64,
    /// The file, where it is one.
    pub path: Option<PathBuf>,
    /// The name of its class, where it has one.
    pub class: Option<String>,
    /// The number of the worker that tried.
    pub worker: u16,
    /// What went wrong, and at which step.
    pub error: SampleError,
}

impl SampleFailure {
    pub(super) fn new<D: Dataset>(dataset: &D, epoch: u64, first: u64, failure: Failure) -> Self {
        let location = dataset.locate(failure.index);
        let worker: WorkerId = failure.worker;
        Self {
            epoch,
            position: first + u64::from(failure.at),
            index: failure.index,
            path: location.path,
            class: location.class,
            worker,
            error: failure.error,
        }
    }
}

impl fmt::Display for SampleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.index)?;
        if let Some(path) = &self.path {
            write!(f, " ({path:?}")?;
            if let Some(class) = &self.class {
                write!(f, ", class {class:?}")?;
            }
            write!(f, ")")?;
        }
        write!(f, " at position {} of epoch {}: {}", self.position, self.epoch, self.error)
    }
}

impl std::error::Error for SampleFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
