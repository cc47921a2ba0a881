//! A worker process, from its fork to its end. One of a loader runs the same loop as a worker thread,
//! over the same arena; one of a pool runs tasks.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rustix::process::{Pid, getpid};

use super::events::Event;
use super::fill::panic_message;
use super::job::{Assignment, DescribedJob};
use super::registry::Registry;
use super::{pool, sys, wire};

/// The exit code of a worker that said why it can't work.
const REFUSED: i32 = 3;
/// Bytes of such a reason at most.
const WHY_BYTES: usize = 4000;

/// What a fork of the server becomes.
pub(super) struct WorkerProcess {
    pub(super) server: Pid,
    /// To whoever has it, for one message.
    pub(super) socket: OwnedFd,
    pub(super) process: u16,
    pub(super) assignment: Assignment,
    /// Those that all its processes have.
    pub(super) files: Vec<OwnedFd>,
    /// Those of this one alone.
    pub(super) own: Vec<OwnedFd>,
}

impl WorkerProcess {
    pub(super) fn run(self, registry: &Registry) -> ! {
        let process = self.process;
        if sys::die_with(self.server).is_err() {
            // Nobody is there any more to be told.
            sys::exit(REFUSED);
        }
        let Ok(socket) = self.socket.try_clone() else { sys::exit(REFUSED) };
        let worked = catch_unwind(AssertUnwindSafe(|| self.work(registry)));
        let worked = worked.unwrap_or_else(|panic| Err(panic_message(&*panic).to_owned()));
        let Err(mut why) = worked else { sys::exit(0) };
        why.truncate(why.floor_char_boundary(WHY_BYTES));
        let _ = wire::send(socket.as_fd(), &Event::Refused { process, why }, &[]);
        sys::exit(REFUSED)
    }

    fn work(self, registry: &Registry) -> Result<(), String> {
        sys::unblock_child_events();
        sys::die_of_crashes();
        let Self { socket, process, assignment, files, own, .. } = self;
        let ready = move || {
            let ready = Event::Ready { process, pid: getpid().as_raw_pid() };
            wire::send(socket.as_fd(), &ready, &[]).map_err(|e| e.to_string())
        };
        match assignment {
            Assignment::Load(job) => load(*job, files, process, registry, ready),
            Assignment::Tasks { .. } => {
                let channel = own.into_iter().next().ok_or("the process came without a channel")?;
                ready()?;
                pool::serve(channel, files, registry);
                Ok(())
            }
        }
    }
}

/// Makes samples until the loader ends.
fn load(
    job: DescribedJob,
    files: Vec<OwnedFd>,
    process: u16,
    registry: &Registry,
    ready: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let threads = job.threads;
    // For ever, as this process has nothing else to do.
    let job = &*Box::leak(Box::new(job.attach(files, registry)?));
    let first = process * threads;
    sys::note_sent_signals(job.arena.desk(first).sent_word());
    ready()?;
    thread::scope(|scope| {
        for worker in first + 1..first + threads {
            let name = thread::Builder::new().name(format!("loader-{worker}"));
            name.spawn_scoped(scope, move || job.work(worker))
                .map_err(|e| format!("starting a thread: {e}"))?;
        }
        job.work(first);
        Ok(())
    })
}
