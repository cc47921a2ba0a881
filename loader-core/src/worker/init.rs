//! Starting the fork server, which has to come first in a program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::process::{Pid, getpid};

use super::job::Assignment;
use super::registry::Registry;
use super::supervisor::{WorkerError, how_ended};
use super::sys::{self, Forked};
use super::{StartWorkersError, server, wire};
use crate::limits;

/// Why worker processes can't be made ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The program has started threads already.
    #[error(
        "loader_core::init() was called in a process with {threads} threads, and only a process \
         with one can be forked safely: make it the first line of main, before anything that starts \
         threads (test harnesses, async runtimes, thread pools); worker threads need no init"
    )]
    TooLate {
        /// The threads there are.
        threads: usize,
    },
    /// It was called before.
    #[error("loader_core::init() was called twice: once, as the first line of main, is enough")]
    Again,
    /// Two tasks have one name, so that one would be run in the other's place.
    #[error("two tasks are registered as {name:?}: give each a name of its own")]
    SameName {
        /// Their name.
        name: String,
    },
    /// The system refused.
    #[error(
        "worker processes can't be made ready: {0}{hint} (worker threads need no init)",
        hint = limits::hint(.0)
    )]
    System(#[from] io::Error),
}

/// The program's end of the fork server.
pub(super) struct ForkServer {
    pub(super) pid: Pid,
    control: OwnedFd,
    /// The datasets that workers can open.
    pub(super) datasets: Vec<String>,
    /// The tasks that they can run; each is sent by its place here.
    pub(super) tasks: Vec<String>,
}

static SERVER: OnceLock<ForkServer> = OnceLock::new();

impl ForkServer {
    /// `None` where `init` was not called.
    pub(super) fn get() -> Option<&'static Self> {
        SERVER.get()
    }

    /// Hands over what processes are for; what comes of it is told through `socket`'s other end.
    pub(super) fn send(
        &self,
        assignment: &Assignment,
        socket: OwnedFd,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), StartWorkersError> {
        let fds = [&[socket.as_fd()], files].concat();
        wire::send(self.control.as_fd(), assignment, &fds).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                WorkerError::ServerGone { how: how_ended(self.pid) }.into()
            }
            _ => error.into(),
        })
    }
}

/// The process that forks workers, where `init` was called.
pub(crate) fn fork_server_pid() -> Option<u32> {
    ForkServer::get().map(|server| server.pid.as_raw_pid().unsigned_abs())
}

/// Makes worker processes possible, for loaders with
/// [`Workers::processes`](crate::Workers::processes) and the like, and for a
/// [`ProcessPool`](crate::ProcessPool): forks a small server that will
/// fork them. To be called as the first line of `main`, while the program has one thread. Takes
/// about a millisecond. Loaders with worker threads need no init.
///
/// The server and all workers end with the program, however it ends.
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     loader_core::init()?;
///     // open datasets, build loaders, train
///     Ok(())
/// }
/// ```
///
/// # Errors
/// Where the program has more than one thread, called it before, or the system can't fork.
pub fn init() -> Result<(), InitError> {
    init_with(Registry::new())
}

/// The same as [`init`] for a program with datasets or tasks of its own: worker processes open and run
/// what the registry names.
///
/// # Errors
/// Those of [`init`], and [`InitError::SameName`].
pub fn init_with(registry: Registry) -> Result<(), InitError> {
    if SERVER.get().is_some() {
        return Err(InitError::Again);
    }
    let threads = sys::thread_count()?;
    if threads != 1 {
        return Err(InitError::TooLate { threads });
    }
    if let Some(name) = registry.doubled() {
        return Err(InitError::SameName { name: name.to_owned() });
    }
    let (control, servers) = wire::pair()?;
    let program = getpid();
    match sys::fork()? {
        Forked::Child => {
            drop(control);
            server::run(program, servers, &registry)
        }
        Forked::Parent(pid) => {
            let (datasets, tasks) = (registry.datasets(), registry.tasks());
            let server = ForkServer { pid, control, datasets, tasks };
            SERVER.set(server).map_err(|_| InitError::Again)
        }
    }
}
