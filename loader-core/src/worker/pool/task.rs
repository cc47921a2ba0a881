//! Tasks: functions that worker processes know by name.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::Bytes;
use super::error::TaskCause;
use crate::shared::parcel::{self, Kept, Parcel};

/// What functions of tasks fail with, unless told otherwise.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A function that the processes of a [`ProcessPool`](crate::ProcessPool) run, and the name by which they
/// know it. Made as a constant, and [registered](crate::Registry::task) before
/// [`init_with`](crate::init_with).
///
/// Arguments and result are whatever serde takes; a [`SharedArray`](crate::SharedArray) in them travels as
/// a descriptor. The error may be anything that can be shown; of it, the text travels.
///
/// ```
/// use loader_core::{ArrayError, SharedArray, Task};
///
/// const MEAN: Task<(SharedArray, usize), f64, ArrayError> = Task::new("mean", mean);
///
/// fn mean((table, row): (SharedArray, usize)) -> Result<f64, ArrayError> {
///     let row = table.row::<f64>(row)?;
///     Ok(row.iter().sum::<f64>() / row.len() as f64)
/// }
/// ```
pub struct Task<A, R, E = BoxError> {
    name: &'static str,
    run: fn(A) -> Result<R, E>,
}

/// A [`Task`] whose function also gets what its pool was built to
/// [share](crate::ProcessPoolBuilder::shared): every process unpacks that once, and keeps it.
///
/// ```
/// use loader_core::{ArrayError, SharedArray, SharedTask};
///
/// const MEAN: SharedTask<SharedArray, usize, f64, ArrayError> = SharedTask::new("mean", mean);
///
/// fn mean(table: &SharedArray, row: usize) -> Result<f64, ArrayError> {
///     let row = table.row::<f64>(row)?;
///     Ok(row.iter().sum::<f64>() / row.len() as f64)
/// }
/// ```
pub struct SharedTask<S, A, R, E = BoxError> {
    name: &'static str,
    run: fn(&S, A) -> Result<R, E>,
}

impl<A, R, E> Task<A, R, E> {
    /// A task of that name, which is to be unique in the program.
    pub const fn new(name: &'static str, run: fn(A) -> Result<R, E>) -> Self {
        Self { name, run }
    }
}

impl<S, A, R, E> SharedTask<S, A, R, E> {
    /// A task of that name, which is to be unique in the program.
    pub const fn new(name: &'static str, run: fn(&S, A) -> Result<R, E>) -> Self {
        Self { name, run }
    }
}

/// A [`Task`] or a [`SharedTask`].
pub trait PoolTask: sealed::Erase {
    /// What its function takes.
    type Args: Serialize + DeserializeOwned;
    /// What it gives.
    type Output: Serialize + DeserializeOwned;

    /// Its name.
    fn name(&self) -> &str;
}

/// A task that runs in pools which share an `S`: any [`Task`], and a [`SharedTask`] over `S`.
pub trait TaskFor<S>: PoolTask {}

/// A task's function without its types: unpacks what came, runs, and packs the result.
pub struct Run(Box<Erased>);

type Erased = dyn Fn(&mut Bench, &Bytes, Vec<OwnedFd>) -> Result<Parcel, TaskCause> + Send + Sync;

impl Run {
    pub(super) fn run(
        &self,
        bench: &mut Bench,
        bytes: &Bytes,
        files: Vec<OwnedFd>,
    ) -> Result<Parcel, TaskCause> {
        (self.0)(bench, bytes, files)
    }
}

mod sealed {
    pub trait Erase {
        fn erase(self) -> super::Run;
    }
}

/// What a process keeps between tasks.
pub(super) struct Bench {
    pub(super) kept: Kept,
    shared: Shared,
}

/// What all tasks of a pool share.
enum Shared {
    Packed(Vec<OwnedFd>),
    Open(Box<dyn Any>),
    Failed(String),
}

impl Bench {
    /// Those are the files that the pool came with.
    pub(super) fn new(shared: Vec<OwnedFd>) -> Self {
        Self { kept: Kept::default(), shared: Shared::Packed(shared) }
    }

    /// What tasks share, unpacked by the first one that asks.
    fn shared<S: DeserializeOwned + 'static>(&mut self) -> Result<(&S, &mut Kept), TaskCause> {
        if let Shared::Packed(files) = &mut self.shared {
            let mut files = std::mem::take(files).into_iter();
            let open = || -> Result<S, String> {
                let bytes = files.next().ok_or("it did not come along")?;
                let bytes = Bytes::of_file(bytes).map_err(|e| e.to_string())?;
                parcel::unpack::<S>(&bytes, files.collect()).map_err(|e| e.to_string())
            };
            self.shared = match open() {
                Ok(shared) => Shared::Open(Box::new(shared)),
                Err(why) => Shared::Failed(format!("what the pool shares: {why}")),
            };
        }
        match &self.shared {
            Shared::Open(shared) => match shared.downcast_ref() {
                Some(shared) => Ok((shared, &mut self.kept)),
                None => Err(TaskCause::Arguments("the pool shares something else".to_owned())),
            },
            Shared::Failed(why) => Err(TaskCause::Arguments(why.clone())),
            Shared::Packed(_) => Err(TaskCause::Arguments("nothing is shared".to_owned())),
        }
    }
}

fn finish<R: Serialize, E: fmt::Display>(result: Result<R, E>) -> Result<Parcel, TaskCause> {
    let result = result.map_err(|e| TaskCause::Failed(e.to_string()))?;
    parcel::pack(&result).map_err(|e| TaskCause::Result(e.to_string()))
}

fn arguments<A: DeserializeOwned>(
    kept: &mut Kept,
    bytes: &Bytes,
    files: Vec<OwnedFd>,
) -> Result<A, TaskCause> {
    kept.unpack(bytes, files).map_err(|e| TaskCause::Arguments(e.to_string()))
}

impl<A, R, E> PoolTask for Task<A, R, E>
where
    A: Serialize + DeserializeOwned + 'static,
    R: Serialize + DeserializeOwned + 'static,
    E: fmt::Display + 'static,
{
    type Args = A;
    type Output = R;

    fn name(&self) -> &str {
        self.name
    }
}

impl<A, R, E> sealed::Erase for Task<A, R, E>
where
    A: DeserializeOwned + 'static,
    R: Serialize + 'static,
    E: fmt::Display + 'static,
{
    fn erase(self) -> Run {
        Run(Box::new(move |bench, bytes, files| {
            finish((self.run)(arguments(&mut bench.kept, bytes, files)?))
        }))
    }
}

impl<S, A, R, E> PoolTask for SharedTask<S, A, R, E>
where
    S: DeserializeOwned + 'static,
    A: Serialize + DeserializeOwned + 'static,
    R: Serialize + DeserializeOwned + 'static,
    E: fmt::Display + 'static,
{
    type Args = A;
    type Output = R;

    fn name(&self) -> &str {
        self.name
    }
}

impl<S, A, R, E> sealed::Erase for SharedTask<S, A, R, E>
where
    S: DeserializeOwned + 'static,
    A: DeserializeOwned + 'static,
    R: Serialize + 'static,
    E: fmt::Display + 'static,
{
    fn erase(self) -> Run {
        Run(Box::new(move |bench, bytes, files| {
            let (shared, kept) = bench.shared::<S>()?;
            finish((self.run)(shared, arguments(kept, bytes, files)?))
        }))
    }
}

impl<A, R, E, S> TaskFor<S> for Task<A, R, E> where Self: PoolTask {}
impl<S, A, R, E> TaskFor<S> for SharedTask<S, A, R, E> where Self: PoolTask {}

impl<A, R, E> Clone for Task<A, R, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, R, E> Copy for Task<A, R, E> {}

impl<S, A, R, E> Clone for SharedTask<S, A, R, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, A, R, E> Copy for SharedTask<S, A, R, E> {}

impl<A, R, E> fmt::Debug for Task<A, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S, A, R, E> fmt::Debug for SharedTask<S, A, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTask").field("name", &self.name).finish_non_exhaustive()
    }
}
