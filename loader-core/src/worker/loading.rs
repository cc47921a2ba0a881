//! The processes of a loader: what a dead one had claimed goes back to the others.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::StartWorkersError;
use super::init::ForkServer;
use super::job::{Assignment, DescribedJob, JobFiles};
use super::supervisor::{Death, Processes, Work, WorkerError};
use crate::shm::{Arena, WorkerId};

/// What the supervisor does to the batches that are being made.
pub(crate) trait Batches: Send + Sync {
    /// Gives back what dead workers had claimed, and blames the samples that they were making where
    /// they may be the reason. Returns those samples, described.
    fn take_back(&self, workers: &Range<WorkerId>, blamed: bool, how: &str) -> Vec<String>;

    /// Ends the loader with that error.
    fn end(&self, error: WorkerError);
}

struct Loading {
    arena: Arc<Arena>,
    batches: Arc<dyn Batches>,
    threads: u16,
    /// Processes that the system has killed for want of memory, on the whole machine.
    ooms: Option<u64>,
}

/// Starts processes that make samples.
pub(super) fn start(
    server: &ForkServer,
    job: DescribedJob,
    files: &JobFiles,
    arena: Arc<Arena>,
    batches: Arc<dyn Batches>,
    timeout: Option<Duration>,
) -> Result<Processes, StartWorkersError> {
    let loading = Loading { arena, batches, threads: job.threads, ooms: ooms() };
    let assignment = Assignment::Load(Box::new(job));
    Processes::start(server, &assignment, &files.borrowed(), loading, timeout)
}

impl Work for Loading {
    fn equip(&mut self, _: u16) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn ready(&mut self, _: u16) {}

    fn take_back(&mut self, process: u16, death: &Death<'_>) -> Vec<String> {
        let workers = process * self.threads..(process + 1) * self.threads;
        let blamed = self.is_blamed(&workers, death);
        let lost = self.batches.take_back(&workers, blamed, death.how);
        workers.for_each(|worker| self.arena.desk(worker).clear());
        lost
    }

    fn done(&self) -> u64 {
        self.arena.done()
    }

    fn end(&mut self, error: WorkerError) {
        self.batches.end(error);
    }
}

impl Loading {
    /// Whether the samples of a dead process may be what it died of.
    fn is_blamed(&mut self, workers: &Range<WorkerId>, death: &Death<'_>) -> bool {
        if death.timed_out {
            return !death.stopped;
        }
        if death.end.is_kill() {
            // Sent by somebody, unless the system was short of memory.
            let ooms = ooms();
            return std::mem::replace(&mut self.ooms, ooms) < ooms;
        }
        // Noted in the desk of the process's first worker.
        let sent = self.arena.desk(workers.start).was_sent();
        death.end.is_own_fault() && !sent
    }
}

/// Processes that the system has killed for want of memory since it started.
fn ooms() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/vmstat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}
