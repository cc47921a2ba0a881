//! Functions run by worker processes: what Python's `multiprocessing.Pool` is, except that what is large
//! in arguments and results is not pickled, but passed as it lies in shared memory.

mod channel;
mod dispatch;
mod error;
mod results;
mod serve;
mod task;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::channel::Packed;
use self::dispatch::{Desk, Dispatch};
pub use self::error::{PoolError, TaskCause, TaskError};
pub use self::results::Results;
use self::results::{Bounds, Calls};
pub(super) use self::serve::serve;
pub(super) use self::task::Run;
pub use self::task::{PoolTask, SharedTask, Task, TaskFor};
use super::StartWorkersError;
use super::init::{ForkServer, fork_server_pid};
use super::job::Assignment;
use super::supervisor::Processes;
use crate::shared::parcel;
use crate::shm::MAX_WORKERS;
use crate::stats::{MemoryReport, ProcessRole};

/// Worker processes that run registered functions: what Python calls `multiprocessing.Pool`.
///
/// A [`SharedArray`](crate::SharedArray), or a `SharedTable` with the feature `table`, in arguments or results is
/// not copied, however large it is: its descriptor travels, and whoever gets it maps the same memory. Everything
/// else is packed by serde.
///
/// ```no_run
/// use loader_core::{ArrayError, ProcessPool, Registry, SharedArray, Task};
///
/// const MEAN: Task<(SharedArray, usize), f64, ArrayError> = Task::new("mean", mean);
///
/// fn mean((table, column): (SharedArray, usize)) -> Result<f64, ArrayError> {
///     let column = table.row::<f64>(column)?;
///     Ok(column.iter().sum::<f64>() / column.len() as f64)
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     loader_core::init_with(Registry::new().task(MEAN))?;     // the first line of main
///     let table = SharedArray::open("table.npy")?;
///     let pool = ProcessPool::new(8)?;
///     let means = pool.map(&MEAN, (0..32).map(|i| (table.clone(), i)))?;
///     println!("{means:?}");
///     Ok(())
/// }
/// ```
///
/// What all tasks need can be given once, as programs in Python do by a global that is inherited:
/// [`shared`](ProcessPoolBuilder::shared), for which the type's `S` stands.
///
/// A process that dies is replaced, and the task that it ran is run once more; where that one's process
/// dies too, the task is an error. Tasks are never run more than twice, and never twice without such a
/// death. May be used from several threads at once. Dropping the pool kills its processes, whatever they
/// are at, within a second.
pub struct ProcessPool<S = ()> {
    desk: Arc<Desk>,
    processes: Processes,
    count: u16,
    shared: PhantomData<fn() -> S>,
}

/// Makes a [`ProcessPool`]; from [`ProcessPool::builder`].
#[derive(Debug)]
pub struct ProcessPoolBuilder<S = ()> {
    processes: usize,
    timeout: Option<Duration>,
    packed: Result<Packed, String>,
    shared: PhantomData<fn() -> S>,
}

fn packed<S: Serialize>(value: &S) -> Result<Packed, String> {
    Packed::as_files(parcel::pack(value).map_err(|e| e.to_string())?)
}

impl ProcessPool {
    /// A pool of that many processes. Takes a few milliseconds; they are there until it is dropped.
    ///
    /// # Errors
    /// Where the program did not begin with [`init_with`](crate::init_with), or the system can't start
    /// processes.
    pub fn new(processes: usize) -> Result<Self, PoolError> {
        Self::builder(processes).build()
    }

    /// A pool with more choice.
    pub fn builder(processes: usize) -> ProcessPoolBuilder {
        let (timeout, packed) = (None, packed(&()));
        ProcessPoolBuilder { processes, timeout, packed, shared: PhantomData }
    }
}

impl<S> ProcessPoolBuilder<S> {
    /// How long a task may take. A process that takes longer is killed, as if it had died by itself.
    /// Default: no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Gives every [`SharedTask`] this value: each process unpacks it when its first task asks for it, and
    /// keeps it. Arrays in it are passed as descriptors. Default: nothing, `()`.
    pub fn shared<T: Serialize + DeserializeOwned + 'static>(
        self,
        value: &T,
    ) -> ProcessPoolBuilder<T> {
        let Self { processes, timeout, .. } = self;
        ProcessPoolBuilder { processes, timeout, packed: packed(value), shared: PhantomData }
    }

    /// Starts the processes.
    ///
    /// # Errors
    /// Those of [`ProcessPool::new`], and [`PoolError::Shared`].
    pub fn build(self) -> Result<ProcessPool<S>, PoolError> {
        let out_of_range = PoolError::Processes { processes: self.processes, max: MAX_WORKERS };
        let count = u16::try_from(self.processes).ok();
        let count = count.filter(|&count| (1..=MAX_WORKERS).contains(&count.into()));
        let count = count.ok_or(out_of_range)?;
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(PoolError::NoTime);
        }
        let packed = self.packed.map_err(|why| PoolError::Shared { why })?;
        let server = ForkServer::get().ok_or(StartWorkersError::NotInitialized)?;
        let desk = Arc::new(Desk::new().map_err(StartWorkersError::System)?);
        let dispatch = Dispatch::new(Arc::clone(&desk), count, self.timeout);
        let assignment = Assignment::Tasks { processes: count };
        let processes =
            Processes::start(server, &assignment, &packed.files(), dispatch, self.timeout)?;
        Ok(ProcessPool { desk, processes, count, shared: PhantomData })
    }
}

impl<S> ProcessPool<S> {
    /// Runs the task on each of the arguments and returns the results in their order: Python's
    /// `Pool.map`. Arguments are taken as there is somebody to work on them.
    ///
    /// # Errors
    /// The error of the first argument whose task has no result. What comes after it is not begun any
    /// more; what was begun already runs to its end, unheeded.
    pub fn map<T: TaskFor<S>>(
        &self,
        task: &T,
        args: impl IntoIterator<Item = T::Args>,
    ) -> Result<Vec<T::Output>, PoolError> {
        let bounds = Bounds { ahead: u64::MAX, stop: true, ..self.bounds() };
        self.calls(task, args, bounds)?.collect()
    }

    /// The same as an iterator: Python's `Pool.imap`. Arguments are taken as results are: at most 16 for
    /// each process are ahead of the result that is asked for next. A task without a result is an error in
    /// its place, and the others go on. Where the processes can't go on, [`PoolError::Workers`] is the last
    /// item.
    ///
    /// Dropping the iterator leaves tasks that are running to their end, and begins no more.
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`].
    pub fn imap<T: TaskFor<S>, I: IntoIterator<Item = T::Args>>(
        &self,
        task: &T,
        args: I,
    ) -> Result<Results<'_, T, I::IntoIter>, PoolError> {
        self.calls(task, args, self.bounds())
    }

    fn bounds(&self) -> Bounds {
        let processes = u64::from(self.count);
        Bounds { under_way: 4 * processes, ahead: 16 * processes, stop: false }
    }

    fn calls<T: TaskFor<S>, I: IntoIterator<Item = T::Args>>(
        &self,
        task: &T,
        args: I,
        bounds: Bounds,
    ) -> Result<Results<'_, T, I::IntoIter>, PoolError> {
        let registered = ForkServer::get().map_or(&[][..], |server| &server.tasks);
        let Some(at) = registered.iter().position(|name| name == task.name()) else {
            let (name, mut registered) = (task.name().to_owned(), registered.to_vec());
            registered.sort_unstable();
            return Err(PoolError::NotRegistered { name, registered });
        };
        let calls = Calls::new(&self.desk, at as u32, task.name().to_owned(), bounds);
        Ok(Results::new(calls, args.into_iter()))
    }

    /// The processes' numbers; one that is being replaced is left out.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.control().pids()
    }

    /// Processes that died so far and were replaced.
    pub fn restarts(&self) -> u64 {
        self.processes.control().restarts()
    }

    /// What this program, the fork server and the pool's processes have of the machine's memory, and what
    /// of it they share.
    pub fn memory_report(&self) -> MemoryReport {
        let program = (std::process::id(), ProcessRole::Program);
        let server = fork_server_pid().map(|pid| (pid, ProcessRole::ForkServer));
        let workers = self.pids().into_iter().map(|pid| (pid, ProcessRole::Worker));
        let processes: Vec<_> = [program].into_iter().chain(server).chain(workers).collect();
        MemoryReport::of_loader(&processes, &[])
    }
}

impl<S> fmt::Debug for ProcessPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessPool").field("processes", &self.count).finish_non_exhaustive()
    }
}
