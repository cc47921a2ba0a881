//! A worker process, from its fork to its end: the same loop as a worker thread's, over the same
//! arena.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use rustix::process::Pid;

use super::events::Event;
use super::fill::panic_message;
use super::job::DescribedJob;
use super::registry::Registry;
use super::{sys, wire};

/// The exit code of a worker that said why it can't work.
const REFUSED: i32 = 3;
/// Bytes of such a reason at most.
const WHY_BYTES: usize = 4000;

/// What a fork of the server becomes.
pub(super) struct WorkerProcess {
    pub(super) server: Pid,
    /// The loader's socket, for one message.
    pub(super) socket: OwnedFd,
    pub(super) process: u16,
    pub(super) job: DescribedJob,
    pub(super) files: Vec<OwnedFd>,
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
        let threads = self.job.threads;
        // For ever, as this process has nothing else to do.
        let job = &*Box::leak(Box::new(self.job.attach(self.files, registry)?));
        let first = self.process * threads;
        sys::note_sent_signals(job.arena.desk(first).sent_word());
        let ready = Event::Ready { process: self.process };
        wire::send(self.socket.as_fd(), &ready, &[]).map_err(|e| e.to_string())?;
        drop(self.socket);
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
}
