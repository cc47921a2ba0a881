//! What the loop's side of a loader counts: how long it waited and worked, and what it got.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::shm::{Recorder, nanos, now};
use crate::stats::{Stats, trace};

/// Relaxed throughout: these are read to be shown, and nothing else hangs on them. One thread at a
/// time counts, the one that has the epoch.
pub(super) struct Counters {
    built: Duration,
    waited: Stretch,
    /// A part of the waiting: for a batch to be dropped.
    waited_for_slot: Stretch,
    looped: Stretch,
    short_of_slots: Stretch,
    batches: AtomicU64,
    samples: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
    substituted: AtomicU64,
    recorder: Option<Arc<Recorder>>,
    /// For the timeline: the epoch and the batch that the loop works on.
    at: [AtomicU64; 2],
}

/// What the loop gets when it asks for a batch.
pub(super) enum Answer {
    Batch {
        epoch: u64,
        batch: u64,
    },
    /// None, and the loop goes on.
    Later,
    End,
}

/// Time that is spent in stretches.
#[derive(Default)]
pub(super) struct Stretch {
    /// In nanoseconds, those stretches that have ended.
    ended: AtomicU64,
    /// When the one that lasts began; 0 where none does.
    since: AtomicU64,
}

impl Stretch {
    pub(super) fn begin(&self) {
        self.begin_at(now());
    }

    fn begin_at(&self, now: Duration) {
        self.since.store(nanos(now), Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.end_at(now());
    }

    /// Does nothing where none lasts; gives when it began otherwise.
    fn end_at(&self, now: Duration) -> Option<u64> {
        let since = self.since.swap(0, Ordering::Relaxed);
        (since > 0).then(|| {
            self.ended.fetch_add(nanos(now).saturating_sub(since), Ordering::Relaxed);
            since
        })
    }

    /// Begins one where it should last and does not, and the other way round.
    fn set(&self, lasts: bool) {
        if lasts != (self.since.load(Ordering::Relaxed) > 0) {
            if lasts { self.begin() } else { self.end() }
        }
    }

    fn total(&self, now: Duration) -> Duration {
        let since = self.since.load(Ordering::Relaxed);
        let lasts = if since > 0 { nanos(now).saturating_sub(since) } else { 0 };
        Duration::from_nanos(self.ended.load(Ordering::Relaxed) + lasts)
    }
}

impl Counters {
    pub(super) fn new(recorder: Option<Arc<Recorder>>) -> Self {
        let [waited, waited_for_slot, looped, short_of_slots] = Default::default();
        let [batches, samples, failed, skipped, substituted] = Default::default();
        Self {
            built: now(),
            waited,
            waited_for_slot,
            looped,
            short_of_slots,
            batches,
            samples,
            failed,
            skipped,
            substituted,
            recorder,
            at: Default::default(),
        }
    }

    /// The loop asks for a batch.
    pub(super) fn asked(&self) {
        let now = now();
        let since = self.looped.end_at(now);
        self.record(trace::LOOP, since, now);
        self.waited.begin_at(now);
    }

    /// It has its answer, and where that is not the epoch's end, works on.
    pub(super) fn answered(&self, answer: Answer) {
        let now = now();
        let since = self.waited.end_at(now);
        if let Answer::Batch { epoch, batch } = answer {
            self.at[0].store(epoch, Ordering::Relaxed);
            self.at[1].store(batch, Ordering::Relaxed);
            self.record(trace::WAIT, since, now);
        }
        if !matches!(answer, Answer::End) {
            self.looped.begin_at(now);
        }
    }

    fn record(&self, kind: u32, since: Option<u64>, now: Duration) {
        if let (Some(recorder), Some(since)) = (&self.recorder, since) {
            let [epoch, batch] = [0, 1].map(|i: usize| self.at[i].load(Ordering::Relaxed));
            recorder.add(recorder.loop_ring(), kind, (since, batch, epoch), [(0, nanos(now))]);
        }
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// The loop leaves the epoch.
    pub(super) fn left(&self) {
        let now = now();
        let since = self.looped.end_at(now);
        self.record(trace::LOOP, since, now);
    }

    pub(super) fn waiting_for_slot(&self) -> &Stretch {
        &self.waited_for_slot
    }

    /// Whether a batch could be made but for the memory that held batches take.
    pub(super) fn set_short_of_slots(&self, short: bool) {
        self.short_of_slots.set(short);
    }

    /// A complete batch of which attempts had failed, and what became of their samples.
    pub(super) fn failures(&self, failed: u64, substituted: u64, skipped: u64) {
        self.failed.fetch_add(failed, Ordering::Relaxed);
        self.substituted.fetch_add(substituted, Ordering::Relaxed);
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
    }

    pub(super) fn delivered(&self, samples: u32) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.samples.fetch_add(u64::from(samples), Ordering::Relaxed);
    }

    pub(super) fn tell(&self, now: Duration, stats: &mut Stats) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.elapsed = now.saturating_sub(self.built);
        stats.waited = self.waited.total(now);
        stats.waited_for_slot = self.waited_for_slot.total(now);
        stats.looped = self.looped.total(now);
        stats.short_of_slots = self.short_of_slots.total(now);
        stats.batches = count(&self.batches);
        stats.samples = count(&self.samples);
        stats.failed = count(&self.failed);
        stats.skipped = count(&self.skipped);
        stats.substituted = count(&self.substituted);
    }
}
