//! The pool: which slot holds which batch. It decides what is made ahead; workers never ask it.
//!
//! Its lock is taken by the consumer once a batch, when one is asked for and when one comes back.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::counters::{Answer, Counters};
use super::error::LoadError;
use super::read_ahead::Readers;
use super::watch::{Verdict, Watch};
use crate::dataset::{Location, SampleError, Stage};
use crate::shm::{Arena, Descriptor, MemoryError, Shares, SlotLease, WorkerId, now};
use crate::stats::{Stats, trace};
use crate::worker::{Batches, Control, WorkerError};

/// How long a process that died with batches open goes unnoticed by who waits for their memory.
const REAP_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Pool {
    arena: Arc<Arena>,
    /// Where other processes may open batches.
    shares: Option<Shares>,
    plan: Plan,
    locate: Box<Locate>,
    readers: Option<Readers>,
    state: Mutex<State>,
    counters: Counters,
    /// Set where the workers are processes.
    control: OnceLock<Arc<Control>>,
}

/// Where a sample of the dataset comes from.
pub(super) type Locate = dyn Fn(u64) -> Location + Send + Sync;

/// What never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Samples an epoch, those of a dropped last batch not counted.
    pub(super) samples: u64,
    pub(super) batch_size: u64,
    /// Batches made ahead of the one that the consumer has.
    pub(super) prefetch: usize,
    pub(super) prefetch_next_epoch: bool,
    pub(super) ordered: bool,
    /// How long to wait for a held batch where no slot is left.
    pub(super) wait_for_slot: Duration,
    /// How long one sample may take.
    pub(super) timeout: Option<Duration>,
}

#[derive(Default)]
struct State {
    free: Vec<u32>,
    /// Slots that have memory: `0..reserved`.
    reserved: u32,
    /// Slots that the consumer has.
    held: usize,
    /// Slots that the consumer gave back, and other processes still have open.
    lent: Vec<u32>,
    /// Batches given to the workers, in order: the rest of the current epoch, then the next one.
    queued: VecDeque<Queued>,
    /// Slots of batches that nobody wants any more, until their workers have left them.
    withdrawn: Vec<u32>,
    /// Queued slots with cells that a dead worker gave back, while the workers' queue is full.
    unoffered: Vec<u32>,
    /// Counts the epochs started, so that an iterator knows whether it is the current one.
    ticket: u64,
    epoch: u64,
    /// Batches of the current epoch that are delivered, those before its start included.
    delivered: u64,
    /// The batch that is queued next; `None` where nothing is wanted.
    next: Option<Next>,
    /// Batches of the current epoch to queue before that one: a run that delivered out of order,
    /// and is resumed, left them out.
    again: VecDeque<u64>,
    /// What the difference between this epoch's number and the last one's suggests.
    following: Option<u64>,
    /// Why the last attempt to get more memory failed.
    refused: Option<MemoryError>,
    /// Why there will be no more batches.
    broken: Option<WorkerError>,
}

struct Queued {
    slot: u32,
    batch: u64,
    /// True for a batch of the following epoch.
    ahead: bool,
}

#[derive(Clone, Copy)]
struct Next {
    epoch: u64,
    batch: u64,
    ahead: bool,
}

/// A complete batch.
pub(super) struct Ready {
    pub(super) held: Held,
    pub(super) batch: u64,
    pub(super) first: u64,
    pub(super) count: u32,
}

impl Pool {
    /// A pool with memory for the batches that are made ahead and one that is used.
    pub(super) fn new(
        arena: Arc<Arena>,
        shares: Option<Shares>,
        plan: Plan,
        locate: Box<Locate>,
        readers: Option<Readers>,
        counters: Counters,
    ) -> Result<Self, MemoryError> {
        let reserved = (plan.prefetch + 1).min(arena.max_slots()) as u32;
        arena.reserve(0..reserved)?;
        let state = State { reserved, free: (0..reserved).rev().collect(), ..State::default() };
        let (state, control) = (Mutex::new(state), OnceLock::new());
        Ok(Self { arena, shares, plan, locate, readers, state, counters, control })
    }

    /// Lets the pool end processes whose sample takes too long.
    pub(super) fn set_control(&self, control: Arc<Control>) {
        // It is set once, when the loader is built.
        let _ = self.control.set(control);
    }

    pub(super) fn control(&self) -> Option<&Control> {
        self.control.get().map(|control| &**control)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Writes the timeline that is kept.
    pub(super) fn write_trace(&self, out: impl Write) -> io::Result<()> {
        let recorder = self.counters.recorder().ok_or_else(|| {
            io::Error::other(
                "no timeline was kept: ask for one by DataLoaderBuilder::trace(samples)",
            )
        })?;
        trace::write(recorder, &self.locate, out)
    }

    /// What workers and loop have counted so far.
    pub(super) fn stats(&self) -> Stats {
        let now = now();
        let mut stats = Stats::default();
        self.counters.tell(now, &mut stats);
        (0..self.arena.workers() as WorkerId)
            .for_each(|worker| stats.add(&self.arena.desk(worker).tally(now)));
        stats.cpus = granted_cpus();
        stats.restarts = self.control().map_or(0, Control::restarts);
        stats
    }

    pub(super) fn batches(&self) -> u64 {
        self.plan.samples.div_ceil(self.plan.batch_size)
    }

    pub(super) fn samples(&self) -> u64 {
        self.plan.samples
    }

    pub(super) fn batch_size(&self) -> u64 {
        self.plan.batch_size
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an epoch the current one. Keeps what is already queued where it is the beginning of
    /// that epoch, and withdraws it otherwise. Gives the batches from `batch` on, and those `missing`
    /// before it.
    pub(super) fn start(&self, epoch: u64, batch: u64, missing: &[u64]) -> u64 {
        let state = &mut *self.lock();
        let first = state.ticket == 0;
        let foreseen = batch == 0
            && state.delivered == self.batches()
            && state.next.is_some_and(|next| next.ahead && next.epoch == epoch);
        if !foreseen {
            self.withdraw(state);
            state.next = Some(Next { epoch, batch, ahead: false });
            state.again.extend(missing);
        }
        for queued in &mut state.queued {
            queued.ahead = false;
        }
        if let Some(next) = &mut state.next {
            next.ahead = false;
        }
        let step = if first { Some(1) } else { epoch.checked_sub(state.epoch) };
        state.following = step.and_then(|step| epoch.checked_add(step));
        state.ticket += 1;
        state.epoch = epoch;
        state.delivered = batch - missing.len() as u64;
        self.refill(state);
        state.ticket
    }

    /// Ends an epoch that is not iterated further. One that was delivered whole leaves the next
    /// epoch's beginning queued.
    pub(super) fn stop(&self, ticket: u64) {
        let state = &mut *self.lock();
        if state.ticket == ticket {
            self.counters.left();
            if state.delivered < self.batches() {
                self.withdraw(state);
            }
        }
    }

    /// Ends everything; leases may still come back.
    pub(super) fn close(&self) {
        let state = &mut *self.lock();
        state.ticket += 1;
        self.withdraw(state);
        if let Some(readers) = &self.readers {
            readers.close();
        }
    }

    fn withdraw(&self, state: &mut State) {
        state.next = None;
        self.counters.set_short_of_slots(false);
        state.unoffered.clear();
        if let Some(readers) = &self.readers {
            readers.forget();
        }
        state.again.clear();
        for queued in state.queued.drain(..) {
            self.arena.withdraw(queued.slot);
            state.withdrawn.push(queued.slot);
        }
        // Who waits for a batch of an epoch that has ended shall see it.
        self.arena.notify_ready();
    }

    /// Waits for the epoch's next batch. `None` at its end.
    pub(super) fn next(
        self: &Arc<Self>,
        ticket: u64,
        epoch: u64,
    ) -> Result<Option<Ready>, LoadError> {
        self.counters.asked();
        let next = self.wait_for_next(ticket, epoch);
        self.counters.answered(match &next {
            Ok(Some(ready)) => Answer::Batch { epoch, batch: ready.batch },
            // The loop drops a batch and asks again.
            Err(LoadError::BatchesHeld { .. }) => Answer::Later,
            Ok(None) | Err(_) => Answer::End,
        });
        next
    }

    fn wait_for_next(
        self: &Arc<Self>,
        ticket: u64,
        epoch: u64,
    ) -> Result<Option<Ready>, LoadError> {
        let asked = Instant::now();
        let mut watch = None;
        loop {
            let seen = self.arena.ready_word();
            let mut guard = self.lock();
            let state = &mut *guard;
            if state.ticket != ticket {
                return Err(LoadError::Superseded { epoch });
            }
            if state.delivered == self.batches() {
                return Ok(None);
            }
            self.refill(state);
            if let Some(queued) = self.take_complete(state) {
                state.delivered += 1;
                state.held += 1;
                self.refill(state);
                return Ok(Some(self.ready(&queued)));
            }
            if let Some(error) = &state.broken {
                return Err(LoadError::Workers(error.clone()));
            }
            let for_slot = state.queued.is_empty() && state.withdrawn.is_empty();
            let timeout = if for_slot {
                // Only the caller can help, by dropping a batch.
                let waited = asked.elapsed();
                let left = self.plan.wait_for_slot.saturating_sub(waited);
                if left.is_zero() {
                    return Err(LoadError::BatchesHeld {
                        held: state.held + state.lent.len(),
                        max: self.arena.max_slots(),
                        waited: self.plan.wait_for_slot.min(waited),
                        refused: state.refused.take(),
                    });
                }
                if state.lent.is_empty() { left } else { left.min(REAP_AFTER) }
            } else {
                // Not before there is a wait: most batches are there when they are asked for.
                let start = || Watch::start(&self.arena, self.plan.timeout);
                let watch = watch.get_or_insert_with(start);
                match watch.look(&self.arena, &self.locate) {
                    Verdict::Wait(timeout) => timeout,
                    Verdict::Stalled(stall) => match (self.control(), stall.worker) {
                        (Some(control), Some(worker)) => {
                            control.kill_for_timeout(worker);
                            watch.pause()
                        }
                        _ => return Err(LoadError::Stalled(Box::new(stall))),
                    },
                }
            };
            drop(guard);
            if for_slot {
                self.counters.waiting_for_slot().begin();
            }
            self.arena.wait_ready(seen, Some(timeout));
            self.counters.waiting_for_slot().end();
        }
    }

    fn take_complete(&self, state: &mut State) -> Option<Queued> {
        let candidates = if self.plan.ordered { 1 } else { state.queued.len() };
        let complete = (0..candidates.min(state.queued.len())).find(|&i| {
            let queued = &state.queued[i];
            !queued.ahead && self.arena.is_settled(queued.slot)
        })?;
        state.queued.remove(complete)
    }

    fn ready(self: &Arc<Self>, queued: &Queued) -> Ready {
        let lease = SlotLease::new(Arc::clone(&self.arena), queued.slot);
        let (first, count) = self.span(queued.batch);
        Ready { held: Held { lease, pool: Arc::clone(self) }, batch: queued.batch, first, count }
    }

    /// The first position of a batch, and its number of samples.
    fn span(&self, batch: u64) -> (u64, u32) {
        let first = batch * self.plan.batch_size;
        (first, self.plan.batch_size.min(self.plan.samples - first) as u32)
    }

    /// Gives the workers as much as is wanted ahead, as far as there are slots.
    fn refill(&self, state: &mut State) {
        state.unoffered.retain(|&slot| !self.arena.offer_again(slot));
        let short = self.fill_up(state);
        self.counters.set_short_of_slots(short);
    }

    /// True where more is wanted and held batches are why it can't be had.
    fn fill_up(&self, state: &mut State) -> bool {
        while state.queued.len() < self.plan.prefetch {
            let Some(next) = self.upcoming(state) else { return false };
            let Some(slot) = self.free_slot(state) else { return state.withdrawn.is_empty() };
            let (first, count) = self.span(next.batch);
            if !self.arena.open(slot, Descriptor { epoch: next.epoch, first, count }) {
                state.free.push(slot);
                return false;
            }
            state.queued.push_back(Queued { slot, batch: next.batch, ahead: next.ahead });
            if let Some(readers) = &self.readers {
                readers.follow(next.epoch, first..first + u64::from(count));
            }
            if state.again.pop_front().is_none() {
                state.next = Some(Next { batch: next.batch + 1, ..next });
            }
        }
        false
    }

    /// The batch to queue next: of this epoch, else of the one that will probably follow.
    fn upcoming(&self, state: &State) -> Option<Next> {
        let next = state.next?;
        if let Some(&batch) = state.again.front() {
            return Some(Next { batch, ..next });
        }
        if next.batch < self.batches() {
            return Some(next);
        }
        if next.ahead || !self.plan.prefetch_next_epoch {
            return None;
        }
        state.following.map(|epoch| Next { epoch, batch: 0, ahead: true })
    }

    fn free_slot(&self, state: &mut State) -> Option<u32> {
        if let Some(slot) = state.free.pop() {
            return Some(slot);
        }
        if let Some(slot) = self.returned(state) {
            return Some(slot);
        }
        if let Some(i) = state.withdrawn.iter().position(|&slot| self.arena.is_settled(slot)) {
            return Some(state.withdrawn.swap_remove(i));
        }
        // Withdrawn slots come back as soon as their workers are through with one sample each.
        if !state.withdrawn.is_empty() || state.reserved as usize >= self.arena.max_slots() {
            return None;
        }
        match self.arena.reserve(state.reserved..state.reserved + 1) {
            Ok(()) => {
                state.reserved += 1;
                Some(state.reserved - 1)
            }
            Err(e) => {
                state.refused = Some(e);
                None
            }
        }
    }

    /// A sample as error messages name it.
    fn describe(&self, index: u64) -> String {
        match (self.locate)(index).path {
            Some(path) => format!("{index} ({path:?})"),
            None => index.to_string(),
        }
    }

    /// A slot that other processes had open, and none has any more, whether it said so or died.
    fn returned(&self, state: &mut State) -> Option<u32> {
        let shares = self.shares.as_ref().filter(|_| !state.lent.is_empty())?;
        let free = |lent: &[u32]| lent.iter().position(|&slot| shares.is_free(slot));
        let found = free(&state.lent).or_else(|| {
            shares.reap();
            free(&state.lent)
        });
        found.map(|i| state.lent.swap_remove(i))
    }

    fn give_back(&self, slot: u32) {
        let state = &mut *self.lock();
        state.held -= 1;
        if self.shares.as_ref().is_none_or(|shares| shares.withdraw(slot)) {
            state.free.push(slot);
        } else {
            state.lent.push(slot);
        }
        self.refill(state);
        self.arena.notify_ready();
    }
}

/// CPUs that this process may use.
fn granted_cpus() -> u64 {
    // Asking takes some files of the control group.
    static CPUS: OnceLock<u64> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64))
}

impl Batches for Pool {
    fn take_back(&self, workers: &Range<WorkerId>, blamed: bool, how: &str) -> Vec<String> {
        let state = &mut *self.lock();
        let mut lost = Vec::new();
        // Nobody works on slots that are free or held.
        for &slot in &state.withdrawn {
            lost.extend(self.arena.take_back(slot, workers, false, false));
        }
        for queued in &state.queued {
            lost.extend(self.arena.take_back(queued.slot, workers, true, blamed));
        }
        for lost in lost.iter().filter(|lost| lost.poison) {
            let text = format!("the worker process {how} while making it, for the second time");
            let error = SampleError::new(Stage::Worker, text);
            self.arena.tell(lost.slot, lost.at, lost.attempt, lost.index, workers.start, &error);
        }
        // After that, as whoever claims a cell goes on from what its places tell.
        state.unoffered = state.queued.iter().map(|queued| queued.slot).collect();
        self.refill(state);
        self.arena.notify_ready();
        lost.iter().map(|lost| self.describe(lost.index)).collect()
    }

    fn end(&self, error: WorkerError) {
        self.lock().broken = Some(error);
        self.arena.notify_ready();
    }
}

/// A slot in the consumer's hands; dropping it gives the slot back.
pub(super) struct Held {
    pub(super) lease: SlotLease,
    pool: Arc<Pool>,
}

impl Held {
    pub(super) fn shares(&self) -> Option<&Shares> {
        self.pool.shares.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.give_back(self.lease.slot());
    }
}
