//! A worker's tally: what it has done so far and how long that took, in words beside its desk.
//!
//! The worker alone counts, so counting takes no lock and no locked instruction, and what it counted
//! stays when it dies. Anybody may read, and sees each word as of some recent moment, not all as of
//! the same one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::board::Words;
use super::desk::{Desk, nanos, now};
use super::geometry::LINE;
use super::sync::Ordering;

/// Until when the worker's time is counted, in nanoseconds of the monotonic clock.
const UNTIL: usize = LINE;
/// Since when it has been waiting for work; 0 while it has some.
const IDLE_SINCE: usize = LINE + 8;
/// What to add to its thread's CPU time for that of all who had its number.
const CPU_BEFORE: usize = LINE + 16;
/// When its CPU time was looked at last.
const CPU_AT: usize = LINE + 24;
const IDLE: usize = LINE + 32;
const CPU: usize = LINE + 40;
const LOST: usize = LINE + 48;
const BYTES: usize = LINE + 56;
const TIMES: usize = 2 * LINE;
const COUNTS: usize = TIMES + 8 * STEPS;

/// Asking for a thread's CPU time is a system call, which is made no more often than that.
const CPU_EVERY: u64 = 5_000_000;

/// The steps of a sample whose time is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Whatever is none of the others: all of a dataset that does not tell its steps.
    Load,
    Read,
    Decode,
    Transform,
    Write,
}

pub(crate) const STEPS: usize = 5;

impl Step {
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What one attempt at a sample took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    /// Nanoseconds in each step.
    pub(crate) times: [u64; STEPS],
    /// The steps that it got to, as [bits](Step::bit).
    pub(crate) entered: u8,
    /// Bytes that were read for it.
    pub(crate) bytes: u64,
    /// When it ended.
    pub(crate) end: u64,
}

impl Laps {
    /// Those of a sample that is begun at that time.
    pub(crate) const fn begun(since: u64) -> Self {
        Self { times: [0; STEPS], entered: Step::Load.bit(), bytes: 0, end: since }
    }
}

/// A worker's tally as it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) times: [Duration; STEPS],
    pub(crate) counts: [u64; STEPS],
    pub(crate) bytes: u64,
    pub(crate) idle: Duration,
    pub(crate) cpu: Duration,
    /// In samples that the worker died over.
    pub(crate) lost: Duration,
}

impl Desk<'_> {
    /// A worker takes the desk.
    pub(crate) fn start(&self) {
        self.put(UNTIL, nanos(now()));
        self.put(CPU_BEFORE, self.at(CPU).wrapping_sub(thread_cpu()));
    }

    /// Until when the worker's time is counted, which is when what it does next began.
    pub(super) fn until(&self) -> u64 {
        self.at(UNTIL)
    }

    /// Counts an attempt at a sample, or at so many at once, that has ended.
    pub(crate) fn count(&self, laps: &Laps, samples: u64) {
        for step in 0..STEPS {
            if laps.entered & 1 << step != 0 {
                self.add(TIMES + 8 * step, laps.times[step]);
                self.add(COUNTS + 8 * step, samples);
            }
        }
        if laps.bytes > 0 {
            self.add(BYTES, laps.bytes);
        }
        self.put(UNTIL, laps.end);
        if laps.end.saturating_sub(self.at(CPU_AT)) >= CPU_EVERY {
            self.count_cpu(laps.end);
        }
    }

    /// Counts what the worker did since it was counted last, other than samples.
    pub(crate) fn count_other(&self) {
        let now = nanos(now());
        self.add(TIMES, now.saturating_sub(self.until()));
        self.put(UNTIL, now);
    }

    /// The worker begins to wait for work.
    pub(super) fn rest(&self) {
        self.count_other();
        self.count_cpu(self.until());
        self.put(IDLE_SINCE, self.until());
    }

    /// It goes on.
    pub(super) fn resume(&self) {
        let now = nanos(now());
        self.end_idling(now);
        self.put(UNTIL, now);
    }

    fn end_idling(&self, now: u64) {
        let since = self.at(IDLE_SINCE);
        if since > 0 {
            // In this order: who reads in between misses a moment, but counts none twice.
            self.put(IDLE_SINCE, 0);
            self.add(IDLE, now.saturating_sub(since));
        }
    }

    /// Settles what a dead worker left; `since` is when it had begun the sample that it was making.
    pub(super) fn count_death(&self, since: Option<Duration>) {
        let now = nanos(now());
        self.end_idling(now);
        if let Some(since) = since {
            self.add(LOST, now.saturating_sub(nanos(since)));
        }
    }

    fn count_cpu(&self, now: u64) {
        self.put(CPU, self.at(CPU_BEFORE).wrapping_add(thread_cpu()));
        self.put(CPU_AT, now);
    }

    /// What was counted so far, a wait that lasts `now` included.
    pub(crate) fn tally(&self, now: Duration) -> Tally {
        let time = |word| Duration::from_nanos(self.at(word));
        let mut idle = time(IDLE);
        let since = time(IDLE_SINCE);
        if !since.is_zero() {
            idle += now.saturating_sub(since);
        }
        Tally {
            times: std::array::from_fn(|step| time(TIMES + 8 * step)),
            counts: std::array::from_fn(|step| self.at(COUNTS + 8 * step)),
            bytes: self.at(BYTES),
            idle,
            cpu: time(CPU),
            lost: time(LOST),
        }
    }

    // Relaxed, as on the rest of the desk.
    fn at(&self, word: usize) -> u64 {
        self.words.u64(self.at + word).load(Ordering::Relaxed)
    }

    fn put(&self, word: usize, value: u64) {
        self.words.u64(self.at + word).store(value, Ordering::Relaxed);
    }

    /// Not an atomic addition: the worker, or who settles for a dead one, is the only one to write.
    fn add(&self, word: usize, more: u64) {
        self.put(word, self.at(word).wrapping_add(more));
    }
}

/// CPU time of this thread so far, in nanoseconds.
fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    nanos(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
}
