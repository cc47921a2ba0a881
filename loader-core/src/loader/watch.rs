//! The watchdog: what the consumer does while it waits for a batch. A wait that takes long is told,
//! with the sample that holds it up; a timeout makes it an error.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::pool::Locate;
use crate::shm::{Arena, WorkerId, now};
use crate::told::tell;

/// A wait is told after this, and again after twice and four times as long and so on.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Beyond the timeout, how long it may take until some worker takes up a sample.
const IDLE: Duration = Duration::from_secs(10);

/// A wait for a batch in which no sample is finished.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The worker that has been making one sample for longest; `None` where no worker makes any.
    pub worker: Option<u16>,
    /// The index of its sample in the dataset.
    pub index: Option<u64>,
    /// The file, where it is one.
    pub path: Option<PathBuf>,
    /// How long it has been making it, or how long nothing was finished.
    pub lasted: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(worker) = self.worker else {
            return write!(f, "no worker has taken up a sample for {:.1?}", self.lasted);
        };
        write!(f, "worker {worker} has been making sample ")?;
        match self.index {
            Some(index) => write!(f, "{index}")?,
            None => f.write_str("(unknown)")?,
        }
        if let Some(path) = &self.path {
            write!(f, " ({path:?})")?;
        }
        write!(f, " for {:.1?}", self.lasted)
    }
}

/// What comes of a look at the workers.
pub(super) enum Verdict {
    /// Look again after that time at the latest.
    Wait(Duration),
    /// The timeout has passed.
    Stalled(Stall),
}

/// Watches the workers during one wait.
pub(super) struct Watch {
    timeout: Option<Duration>,
    /// When a wait is told next.
    tell_at: Duration,
    tell_after: Duration,
    /// Samples done by all workers, and when that number was last seen to change.
    done: u64,
    changed: Duration,
}

impl Watch {
    pub(super) fn start(arena: &Arena, timeout: Option<Duration>) -> Self {
        let now = now();
        let (tell_at, tell_after) = (now + TOLD_AFTER, TOLD_AFTER);
        Self { timeout, tell_at, tell_after, done: arena.done(), changed: now }
    }

    pub(super) fn look(&mut self, arena: &Arena, locate: &Locate) -> Verdict {
        let now = now();
        let done = arena.done();
        if done != self.done {
            (self.done, self.changed) = (done, now);
        }
        let stall = self.slowest(arena, now);
        // Dead and stopped processes are replaced, which takes a while.
        let idle = if stall.worker.is_none() { IDLE } else { Duration::ZERO };
        if self.timeout.is_some_and(|timeout| stall.lasted >= timeout.saturating_add(idle)) {
            return Verdict::Stalled(located(stall, locate));
        }
        if now >= self.tell_at {
            let stall = located(stall.clone(), locate);
            tell(&format_args!("waiting for a batch: {stall}"));
            self.tell_after *= 2;
            self.tell_at = now + self.tell_after;
        }
        let busy = if stall.worker.is_some() { stall.lasted } else { Duration::ZERO };
        let told = self.tell_at - now;
        // A sample that begins after this look has all of the timeout before it.
        let left = self.timeout.map_or(told, |timeout| told.min(timeout.saturating_sub(busy)));
        // At least a little: a sample that has just begun may end in time.
        Verdict::Wait(left.max(Duration::from_millis(1)))
    }

    /// After a process was killed: how long to wait for what comes of it.
    pub(super) fn pause(&mut self) -> Duration {
        self.changed = now();
        Duration::from_millis(100)
    }

    fn slowest(&self, arena: &Arena, now: Duration) -> Stall {
        let workers = (0..arena.workers() as WorkerId).filter_map(|worker| {
            let busy = arena.desk(worker).busy()?;
            Some((worker, busy))
        });
        match workers.min_by_key(|(_, busy)| busy.since) {
            Some((worker, busy)) => Stall {
                worker: Some(worker),
                index: arena.index_at(busy.slot, busy.at),
                path: None,
                lasted: now.saturating_sub(busy.since),
            },
            None => {
                let lasted = now.saturating_sub(self.changed);
                Stall { worker: None, index: None, path: None, lasted }
            }
        }
    }
}

fn located(stall: Stall, locate: &Locate) -> Stall {
    Stall { path: stall.index.and_then(|index| locate(index).path), ..stall }
}
