//! The desk: what a worker is doing, told in words of its own that anybody may read. Beside them is its
//! [tally](super::tally).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::board::Words;
use super::segment::Segment;
use super::sync::{AtomicU32, Ordering};

/// When the sample that is being made was begun, in nanoseconds of the monotonic clock, which all
/// processes share; 0 between samples.
const SINCE: usize = 0;
/// Its slot in the upper half, its place in the batch in the lower.
const WHERE: usize = 8;
/// Samples finished, whatever came of them.
const DONE: usize = 16;
/// 1 where a signal that another process sent ends the worker.
const SENT: usize = 24;

/// One worker's desk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desk<'a> {
    pub(super) words: &'a Segment,
    pub(super) at: usize,
}

/// A sample that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) slot: u32,
    pub(crate) at: u32,
    pub(crate) since: Duration,
}

/// The time since some fixed moment, the same for all processes.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// That time as it is kept in words.
pub(crate) fn nanos(time: Duration) -> u64 {
    // Of 584 years.
    time.as_nanos() as u64
}

// Relaxed throughout: nothing is read on the strength of these words but the words themselves.
impl<'a> Desk<'a> {
    /// A sample is about to be made. Tells since when, which is the end of what was done before: that
    /// saves a look at the clock.
    pub(super) fn begin(&self, slot: u32, at: u32) -> u64 {
        let place = u64::from(slot) << 32 | u64::from(at);
        let since = self.until();
        self.words.u64(self.at + WHERE).store(place, Ordering::Relaxed);
        self.words.u64(self.at + SINCE).store(since, Ordering::Relaxed);
        since
    }

    pub(super) fn end(&self) {
        self.words.u64(self.at + SINCE).store(0, Ordering::Relaxed);
        let done = self.words.u64(self.at + DONE);
        // Nobody else counts here.
        done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Clears what a dead worker left, before another one takes its number.
    pub(crate) fn clear(&self) {
        self.count_death(self.busy().map(|busy| busy.since));
        self.words.u64(self.at + SINCE).store(0, Ordering::Relaxed);
        self.words.u32(self.at + SENT).store(0, Ordering::Relaxed);
    }

    /// The sample that is being made, if any.
    pub(crate) fn busy(&self) -> Option<Busy> {
        let since = self.words.u64(self.at + SINCE).load(Ordering::Relaxed);
        let place = self.words.u64(self.at + WHERE).load(Ordering::Relaxed);
        let since = (since > 0).then(|| Duration::from_nanos(since))?;
        Some(Busy { slot: (place >> 32) as u32, at: place as u32, since })
    }

    pub(crate) fn done(&self) -> u64 {
        self.words.u64(self.at + DONE).load(Ordering::Relaxed)
    }

    /// The worker died of a signal that another process sent.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent_word().load(Ordering::Acquire) != 0
    }

    /// The word that a signal handler sets to 1 where another process sent the signal.
    pub(crate) fn sent_word(&self) -> &'a AtomicU32 {
        self.words.u32(self.at + SENT)
    }
}
