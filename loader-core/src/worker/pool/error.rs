//! What a pool of processes can report.

use crate::worker::{StartWorkersError, WorkerError};

/// Why a pool can't start, or a task has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// As many processes as there can't be.
    #[error("a pool of {processes} processes: there must be 1 to {max}")]
    Processes {
        /// The number asked for.
        processes: usize,
        /// The most that there can be.
        max: usize,
    },
    /// A timeout of nothing.
    #[error("timeout is zero: every task would take longer. Leave it out for no limit")]
    NoTime,
    /// What the pool is to share can't travel.
    #[error("what the pool is to share can't be passed to its processes: {why}")]
    Shared {
        /// Why not.
        why: String,
    },
    /// The processes can't be started.
    #[error(transparent)]
    Start(#[from] StartWorkersError),
    /// The program's registry does not know the task.
    #[error(
        "worker processes don't know the task {name:?}: add it to the registry that is given to \
         init_with, by Registry::task. Registered are {registered:?}"
    )]
    NotRegistered {
        /// The task's name.
        name: String,
        /// The names that are known.
        registered: Vec<String>,
    },
    /// A task has no result.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The processes can't go on.
    #[error(transparent)]
    Workers(#[from] WorkerError),
}

/// A task without a result, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task:?}, argument {index}: {cause}")]
#[non_exhaustive]
pub struct TaskError {
    /// The task's name.
    pub task: String,
    /// Which of the arguments, counted from 0.
    pub index: u64,
    /// What happened.
    pub cause: TaskCause,
}

/// What kept a task from giving a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskCause {
    /// Its function returned an error.
    #[error("{0}")]
    Failed(String),
    /// Its function panicked.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The process that ran it died, and so did the next one.
    #[error("{runs} processes died that ran it, and it is not run again; the last one {last}")]
    Died {
        /// How often it was run.
        runs: u32,
        /// How the last process ended.
        last: String,
    },
    /// The arguments can't be passed to a process.
    #[error("passing its arguments: {0}")]
    Arguments(String),
    /// The result can't be passed back.
    #[error("passing its result: {0}")]
    Result(String),
}

/// What an answer is, as its packet says.
impl TaskCause {
    pub(super) const DONE: u32 = 0;

    /// What travels of it.
    pub(super) fn told(&self) -> (u32, &str) {
        match self {
            Self::Failed(why) => (1, why),
            Self::Panicked(why) => (2, why),
            Self::Arguments(why) => (3, why),
            Self::Result(why) => (4, why),
            // Processes don't tell of their own death.
            Self::Died { last, .. } => (1, last),
        }
    }

    pub(super) fn of_told(what: u32, why: String) -> Self {
        match what {
            1 => Self::Failed(why),
            2 => Self::Panicked(why),
            3 => Self::Arguments(why),
            _ => Self::Result(why),
        }
    }
}
