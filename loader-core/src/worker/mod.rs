//! Workers: whoever claims pieces of batches and makes their samples. Every execution model runs
//! the same loop over the same arena. And processes that run tasks, which are kept alive alike.

mod events;
mod fill;
mod init;
mod job;
mod loading;
mod pool;
mod process;
mod registry;
mod running;
mod server;
mod supervisor;
mod sys;
mod threads;
mod wire;

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "table")]
pub(crate) use fill::panic_message;
pub(crate) use fill::{Job, erase};
use init::ForkServer;
pub(crate) use init::fork_server_pid;
pub use init::{InitError, init, init_with};
use job::DescribedJob;
#[cfg(any(test, fuzzing))]
pub(crate) use job::fuzz_job;
pub(crate) use loading::Batches;
pub use pool::{
    PoolError, PoolTask, ProcessPool, ProcessPoolBuilder, Results, SharedTask, Task, TaskCause,
    TaskError, TaskFor,
};
pub use registry::Registry;
pub(crate) use supervisor::Control;
use supervisor::Processes;
pub use supervisor::WorkerError;
use threads::Threads;

use crate::dataset::{Recipe, RecipeError};
use crate::limits;

/// Who makes the samples.
///
/// The default is one thread for each CPU that this process may use: its affinity mask and the
/// quota of its control group count.
///
/// Threads share everything and start at once. Processes cost about a millisecond each to start and
/// a megabyte or so of memory; they earn it by isolation: a decoder that crashes takes one sample
/// with it instead of the training run. They need [`init`] at the start of the program. Whoever makes
/// them, the batches are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// `None`: none but this one.
    processes: Option<usize>,
    threads: usize,
}

impl Workers {
    /// That many threads of this process.
    pub fn threads(threads: usize) -> Self {
        Self { processes: None, threads }
    }

    /// That many processes of one thread each.
    pub fn processes(processes: usize) -> Self {
        Self { processes: Some(processes), threads: 1 }
    }

    /// One process with that many threads: as [`threads`](Self::threads), but whatever happens to
    /// them does not happen to this process.
    pub fn subprocess(threads: usize) -> Self {
        Self { processes: Some(1), threads }
    }

    /// That many threads in each of the processes, or in this one where there are none.
    pub fn threads_per_process(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Workers of all processes.
    pub(crate) fn count(self) -> usize {
        self.processes.unwrap_or(1).saturating_mul(self.threads)
    }

    pub(crate) fn are_processes(self) -> bool {
        self.processes.is_some()
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::threads(std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }
}

/// As programs take it on their command lines: `threads:4`, `processes:4`, `subprocess:4` (one process
/// of four threads), `processes:2x4` (two of four each), and `4` for threads.
impl FromStr for Workers {
    type Err = ParseWorkersError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse().map_err(|_| ParseWorkersError);
        let (kind, count) = text.split_once(':').unwrap_or(("threads", text));
        match (kind, count.split_once('x')) {
            ("threads", None) => Ok(Self::threads(number(count)?)),
            ("processes", None) => Ok(Self::processes(number(count)?)),
            ("subprocess", None) => Ok(Self::subprocess(number(count)?)),
            ("processes", Some((processes, threads))) => {
                Ok(Self::processes(number(processes)?).threads_per_process(number(threads)?))
            }
            _ => Err(ParseWorkersError),
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.processes, self.threads) {
            (None, threads) => write!(f, "threads:{threads}"),
            (Some(processes), 1) => write!(f, "processes:{processes}"),
            (Some(1), threads) => write!(f, "subprocess:{threads}"),
            (Some(processes), threads) => write!(f, "processes:{processes}x{threads}"),
        }
    }
}

/// What is written is no [`Workers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workers are threads:N, processes:N, subprocess:N (threads) or processes:NxM")]
pub struct ParseWorkersError;

/// Why workers could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartWorkersError {
    /// Worker processes were asked for in a program that did not call [`init`].
    #[error(
        "worker processes need loader_core::init() as the first line of main (or init_with, for \
         datasets and tasks of your own); worker threads don't"
    )]
    NotInitialized,
    /// The dataset can't go to another process.
    #[error("worker processes can't open {dataset}: {source}")]
    Recipe {
        /// The type of the dataset.
        dataset: &'static str,
        /// Why not.
        source: RecipeError,
    },
    /// The program's registry does not know the dataset.
    #[error(
        "worker processes don't know the dataset {name:?}: add it to the registry that is given to \
         init_with, by Registry::dataset. Registered are {registered:?}"
    )]
    NotRegistered {
        /// The name in the dataset's recipe.
        name: String,
        /// The names that are known.
        registered: Vec<String>,
    },
    /// A worker process could not start or could not open the dataset.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The system refused.
    #[error("starting workers: {0}{hint}", hint = limits::hint(.0))]
    System(#[from] std::io::Error),
}

/// Running workers; dropping it ends them.
pub(crate) enum Crew {
    Threads(#[expect(dead_code, reason = "held for its drop")] Threads),
    Processes(Processes),
}

impl Crew {
    /// `recipe` is asked for only where workers are processes; `timeout` is the loader's.
    pub(crate) fn start(
        workers: Workers,
        job: Job,
        recipe: impl FnOnce() -> Result<Recipe, StartWorkersError>,
        batches: Arc<dyn Batches>,
        timeout: Option<Duration>,
    ) -> Result<Self, StartWorkersError> {
        if !workers.are_processes() {
            return Ok(Self::Threads(Threads::start(job, workers.count() as u16)?));
        }
        let server = ForkServer::get().ok_or(StartWorkersError::NotInitialized)?;
        let recipe = recipe()?;
        if !server.datasets.iter().any(|name| name == recipe.name()) {
            let mut registered = server.datasets.clone();
            registered.sort_unstable();
            let name = recipe.name().to_owned();
            return Err(StartWorkersError::NotRegistered { name, registered });
        }
        let (processes, threads) = (workers.processes.unwrap_or(1) as u16, workers.threads as u16);
        let (described, files) = DescribedJob::new(&job, recipe, processes, threads)?;
        let arena = Arc::clone(&job.arena);
        let processes = loading::start(server, described, &files, arena, batches, timeout)?;
        Ok(Self::Processes(processes))
    }

    /// What can be asked of worker processes, where there are some.
    pub(crate) fn control(&self) -> Option<&Arc<Control>> {
        match self {
            Self::Threads(_) => None,
            Self::Processes(processes) => Some(processes.control()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_read_as_they_are_written() {
        for text in [
            "threads:1",
            "threads:16",
            "processes:1",
            "processes:8",
            "subprocess:2",
            "processes:3x2",
        ] {
            assert_eq!(text.parse::<Workers>().unwrap().to_string(), text);
        }
        assert_eq!("4".parse(), Ok(Workers::threads(4)));
        // Which a loader refuses.
        let none = [Workers::threads(0), Workers::processes(0).threads_per_process(4)];
        assert!(none.iter().all(|workers| workers.count() == 0));
        for text in ["", "threads:", "fork:2", "threads:2x2", "processes:x", "processes:-1"] {
            assert_eq!(text.parse::<Workers>(), Err(ParseWorkersError), "{text}");
        }
    }
}
