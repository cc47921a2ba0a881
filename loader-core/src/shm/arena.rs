//! The arena: one segment with a control block and slots, each of which holds a batch.
//!
//! The [`Board`] in it says who may touch what: a slot's pool opens it, a [`Claim`] writes places of
//! it, and when all are settled a [`SlotLease`](super::SlotLease) owns it.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use super::board::{Board, Layout, Words};
use super::cell::WorkerId;
use super::claim::Claim;
use super::desk::Desk;
use super::failure::{Failure, SEAL_AT};
use super::futex;
use super::geometry::{
    DESK_BYTES, FAILURE_BYTES, Geometry, LINE, MAX_FAILURES, MAX_SLOTS, MAX_WORKERS,
};
use super::named::{self, Shares};
use super::place::Place;
use super::segment::{MemoryError, Segment};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use crate::dataset::SampleError;

/// Counts up when there is work or the loader ends; idle workers wait on it.
const WORK: usize = 0;
/// Counts up when a batch may be complete; the consumer waits on it.
const READY: usize = LINE;
/// 1 once workers should end.
const CLOSED: usize = 2 * LINE;
const TAIL: usize = 3 * LINE;
const HEAD: usize = 4 * LINE;

/// Of a slot.
const CURSOR: usize = 0;
const COUNT: usize = LINE;
/// Failure records handed out.
const RECORDS: usize = LINE + 4;
const EPOCH: usize = LINE + 8;
const FIRST: usize = LINE + 16;
const NUMBER: usize = LINE + 24;
/// How often the slot was opened; never 0 in an open slot.
const GENERATION: usize = LINE + 32;

/// What a slot is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) epoch: u64,
    /// The position in the epoch of the batch's first sample.
    pub(crate) first: u64,
    /// Its samples, at most the batch size.
    pub(crate) count: u32,
}

/// A sample that was being made when its worker died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) slot: u32,
    pub(crate) at: u32,
    pub(crate) index: u64,
    pub(crate) attempt: u32,
    /// It is the second time, and it counts as failed.
    pub(crate) poison: bool,
}

#[derive(Debug)]
pub(crate) struct Arena {
    board: Board<Segment>,
    geometry: Geometry,
    max_slots: usize,
    workers: usize,
}

impl Arena {
    /// An arena that can grow to `max_slots` slots, none of them reserved.
    pub(crate) fn create(
        geometry: Geometry,
        max_slots: usize,
        workers: usize,
    ) -> Result<Self, MemoryError> {
        let len = Self::len(&geometry, max_slots, workers);
        let segment = Segment::create("loader-batches", len)?;
        segment.reserve(0..Geometry::slots_at(max_slots, workers))?;
        Ok(Self::over(segment, geometry, max_slots, workers))
    }

    /// The same in a segment with a name, of which other processes may open batches. There is room
    /// in `/dev/shm` for `at_once` slots.
    pub(crate) fn create_shareable(
        geometry: Geometry,
        max_slots: usize,
        workers: usize,
        at_once: usize,
    ) -> Result<(Self, Shares), MemoryError> {
        let slots_at = Geometry::slots_at(max_slots, workers);
        let layout = named::Layout {
            slots_at,
            slot_bytes: geometry.slot_bytes,
            slots: max_slots,
            body: geometry.words_at,
            ready: READY,
        };
        let (segment, shares) = Shares::create(layout, at_once)?;
        segment.reserve(0..slots_at)?;
        Ok((Self::over(segment, geometry, max_slots, workers), shares))
    }

    /// The same arena in another process.
    pub(crate) fn attach(
        fd: OwnedFd,
        geometry: Geometry,
        max_slots: usize,
        workers: usize,
    ) -> io::Result<Self> {
        let segment = Segment::attach(fd, Self::len(&geometry, max_slots, workers))?;
        Ok(Self::over(segment, geometry, max_slots, workers))
    }

    fn len(geometry: &Geometry, max_slots: usize, workers: usize) -> usize {
        assert!((1..=MAX_SLOTS).contains(&max_slots), "{max_slots} slots");
        assert!((1..=MAX_WORKERS).contains(&workers), "{workers} workers");
        Geometry::slots_at(max_slots, workers) + geometry.slot_bytes * max_slots
    }

    fn over(segment: Segment, geometry: Geometry, max_slots: usize, workers: usize) -> Self {
        let layout = Layout {
            tail_at: TAIL,
            head_at: HEAD,
            queue_at: Geometry::queue_at(),
            queue_len: Geometry::queue_len(max_slots) as u64,
            slots_at: Geometry::slots_at(max_slots, workers),
            slot_bytes: geometry.slot_bytes,
            cursor_at: CURSOR,
            count_at: COUNT,
            number_at: NUMBER,
            cells_at: geometry.cells_at,
            batch_size: geometry.batch_size,
            per_cell: geometry.per_cell,
        };
        Self { board: Board { words: segment, layout }, geometry, max_slots, workers }
    }

    /// What another process needs to attach.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.board.words.fd()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) fn max_slots(&self) -> usize {
        self.max_slots
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    pub(crate) fn desk(&self, worker: WorkerId) -> Desk<'_> {
        assert!(usize::from(worker) < self.workers, "worker {worker} of {}", self.workers);
        let at = Geometry::desks_at(self.max_slots) + DESK_BYTES * usize::from(worker);
        Desk { words: &self.board.words, at }
    }

    /// Samples that all workers have finished, whatever came of them.
    pub(crate) fn done(&self) -> u64 {
        (0..self.workers as WorkerId).map(|worker| self.desk(worker).done()).sum()
    }

    /// Reserves the memory of slots, after which they may be opened. One call costs less than one for each: the
    /// system is asked what it has left.
    pub(crate) fn reserve(&self, slots: Range<u32>) -> Result<(), MemoryError> {
        let Some(last) = slots.clone().last() else { return Ok(()) };
        let bytes = self.slot_at(slots.start)..self.slot_at(last) + self.geometry.slot_bytes;
        self.board.words.reserve(bytes)
    }

    /// Offers a slot to the workers. False where the queue is full, which a batch that completes
    /// may change.
    ///
    /// The caller is the pool: the slot is reserved, nobody holds its lease, its cells are settled,
    /// and no other call of the pool runs at the same time.
    pub(crate) fn open(&self, slot: u32, batch: Descriptor) -> bool {
        // Relaxed: workers see all this by the cells, which the board opens after it.
        self.slot_u32(slot, RECORDS).store(0, Ordering::Relaxed);
        let generation = self.slot_u32(slot, GENERATION).load(Ordering::Relaxed);
        self.slot_u32(slot, GENERATION).store(generation.wrapping_add(1).max(1), Ordering::Relaxed);
        self.slot_u64(slot, EPOCH).store(batch.epoch, Ordering::Relaxed);
        self.slot_u64(slot, FIRST).store(batch.first, Ordering::Relaxed);
        for at in 0..batch.count {
            self.set_place(slot, at, Place::EMPTY);
        }
        let opened = self.board.open(slot, batch.count);
        if opened {
            futex::notify(self.board.words.u32(WORK));
        }
        opened
    }

    /// Withdraws what is not yet claimed of a slot's batch, which nobody wants any more.
    pub(crate) fn withdraw(&self, slot: u32) {
        self.board.withdraw(slot);
    }

    /// Takes back what dead workers had claimed of a slot. The samples that they were making are
    /// `blamed` where they may be the reason, and told in the order of their places.
    ///
    /// The caller is the pool, and has the system's word that the workers are gone. Where the batch
    /// is wanted, [`offer_again`](Self::offer_again) must follow.
    pub(crate) fn take_back(
        &self,
        slot: u32,
        workers: &Range<WorkerId>,
        wanted: bool,
        blamed: bool,
    ) -> Vec<Lost> {
        let mut lost = Vec::new();
        self.board.take_back(slot, workers, wanted, |cell| {
            for at in self.board.places(slot, cell) {
                let place = self.place(slot, at);
                if place.is_started() {
                    let (left, poison) = place.died(blamed);
                    let (index, attempt) = (place.index(), place.attempt());
                    lost.push(Lost { slot, at, index, attempt, poison });
                    self.set_place(slot, at, left);
                }
            }
        });
        lost
    }

    /// Lets workers find the free cells of an open slot that they may have passed. False where the
    /// queue is full.
    ///
    /// The caller is the pool.
    pub(crate) fn offer_again(&self, slot: u32) -> bool {
        let offered = self.board.offer_again(slot);
        futex::notify(self.board.words.u32(WORK));
        offered
    }

    /// True where every cell of the slot is settled: the batch is complete, or withdrawn and left.
    pub(crate) fn is_settled(&self, slot: u32) -> bool {
        self.board.is_settled(slot)
    }

    /// What an open slot is to hold.
    pub(crate) fn descriptor(&self, slot: u32) -> Descriptor {
        // Relaxed: whoever asks has claimed or opened the slot, and so sees what was written before.
        Descriptor {
            epoch: self.slot_u64(slot, EPOCH).load(Ordering::Relaxed),
            first: self.slot_u64(slot, FIRST).load(Ordering::Relaxed),
            count: self.board.count(slot).load(Ordering::Relaxed),
        }
    }

    /// The state of the ready word, to be read before looking for complete batches.
    pub(crate) fn ready_word(&self) -> u32 {
        self.board.words.u32(READY).load(Ordering::SeqCst)
    }

    /// Waits until a batch may have become complete since `seen` was read.
    pub(crate) fn wait_ready(&self, seen: u32, timeout: Option<Duration>) {
        futex::wait(self.board.words.u32(READY), seen, timeout);
    }

    /// Wakes the consumer, which looks again at what it waits for.
    pub(crate) fn notify_ready(&self) {
        futex::notify(self.board.words.u32(READY));
    }

    /// Tells all workers to end.
    pub(crate) fn close(&self) {
        self.board.words.u32(CLOSED).store(1, Ordering::SeqCst);
        futex::notify(self.board.words.u32(WORK));
    }

    /// Takes the next piece of work, waiting for it. `None` once the arena is closed.
    pub(crate) fn next_claim(&self, worker: WorkerId) -> Option<Claim<'_>> {
        loop {
            let seen = self.board.words.u32(WORK).load(Ordering::SeqCst);
            if self.board.words.u32(CLOSED).load(Ordering::SeqCst) != 0 {
                return None;
            }
            if let Some(claim) = self.claim(worker) {
                return Some(claim);
            }
            let desk = self.desk(worker);
            desk.rest();
            futex::wait(self.board.words.u32(WORK), seen, None);
            desk.resume();
        }
    }

    pub(super) fn claim(&self, worker: WorkerId) -> Option<Claim<'_>> {
        let (slot, cell) = self.board.claim(worker)?;
        Some(Claim::new(self, slot, cell, worker))
    }

    pub(super) fn board(&self) -> &Board<Segment> {
        &self.board
    }

    pub(crate) fn place(&self, slot: u32, at: u32) -> Place {
        // Relaxed, as in `set_place`: one party at a time has the place, and hands it on by the
        // cell.
        Place(self.word(slot, at).load(Ordering::Relaxed))
    }

    /// The index of the sample at a place that a desk names; `None` where there is no such place.
    pub(crate) fn index_at(&self, slot: u32, at: u32) -> Option<u64> {
        let there = (slot as usize) < self.max_slots && (at as usize) < self.geometry.batch_size;
        there.then(|| self.place(slot, at).index())
    }

    pub(super) fn set_place(&self, slot: u32, at: u32, place: Place) {
        self.word(slot, at).store(place.0, Ordering::Relaxed);
    }

    /// Tells in words of a candidate that failed, as long as there is room. The caller has the
    /// place, by a claim or as the pool that took it back.
    pub(crate) fn tell(
        &self,
        slot: u32,
        at: u32,
        attempt: u32,
        index: u64,
        worker: WorkerId,
        error: &SampleError,
    ) {
        let n = self.slot_u32(slot, RECORDS).fetch_add(1, Ordering::Relaxed);
        if n as usize >= MAX_FAILURES {
            return;
        }
        let failure = Failure { at, attempt, index, worker, error: error.clone() };
        let record = failure.encode();
        let start = self.failure_ptr(slot, n);
        // SAFETY:
        // - In bounds: `failure_ptr` checked it; the seal that follows lies in the record.
        // - Exclusive: `fetch_add` gave out the number once since the slot was opened, and nobody
        //   reads records while a cell of the slot is claimed, as one of the caller's is.
        unsafe {
            let (front, back) = (&record[..SEAL_AT], &record[SEAL_AT + 4..]);
            start.copy_from_nonoverlapping(front.as_ptr(), front.len());
            start.add(SEAL_AT + 4).copy_from_nonoverlapping(back.as_ptr(), back.len());
        }
        // Release: a record is whole where its seal is there, even if its writer died right after.
        self.seal(slot, n).store(self.generation(slot), Ordering::Release);
    }

    /// True where that record was written whole since the slot was opened.
    pub(super) fn is_sealed(&self, slot: u32, n: u32) -> bool {
        self.seal(slot, n).load(Ordering::Acquire) == self.generation(slot)
    }

    fn seal(&self, slot: u32, n: u32) -> &AtomicU32 {
        self.slot_u32(slot, self.failure_at(n) + SEAL_AT)
    }

    fn generation(&self, slot: u32) -> u32 {
        self.slot_u32(slot, GENERATION).load(Ordering::Relaxed)
    }

    pub(super) fn failure_ptr(&self, slot: u32, n: u32) -> *mut u8 {
        self.address(slot, self.failure_at(n), FAILURE_BYTES)
    }

    fn failure_at(&self, n: u32) -> usize {
        self.geometry.failures_at + n as usize * FAILURE_BYTES
    }

    /// Where a field's samples begin: `sample_bytes * batch_size` bytes.
    pub(super) fn field_ptr(&self, slot: u32, field: usize) -> *mut u8 {
        let bytes = self.geometry.sample_bytes[field] * self.geometry.batch_size;
        self.address(slot, self.geometry.field_at[field], bytes)
    }

    /// Where one sample of a field lies: `sample_bytes` bytes.
    pub(super) fn sample_ptr(&self, slot: u32, field: usize, at: u32) -> *mut u8 {
        let bytes = self.geometry.sample_bytes[field];
        self.address(slot, self.geometry.field_at[field] + at as usize * bytes, bytes)
    }

    /// Where samples of a field that lie side by side begin, and their bytes.
    pub(super) fn run_ptr(&self, slot: u32, field: usize, places: &Range<u32>) -> (*mut u8, usize) {
        let bytes = self.geometry.sample_bytes[field];
        let run = places.len() * bytes;
        let start = self.geometry.field_at[field] + places.start as usize * bytes;
        (self.address(slot, start, run), run)
    }

    /// A part of a slot, as an address. What may be done there is for the caller to argue.
    fn address(&self, slot: u32, at: usize, bytes: usize) -> *mut u8 {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.geometry.slot_bytes));
        // SAFETY: in bounds of the map, since the part is in bounds of the slot.
        unsafe { self.board.words.as_mut_ptr().add(self.slot_at(slot) + at) }
    }

    pub(super) fn slot_at(&self, slot: u32) -> usize {
        assert!((slot as usize) < self.max_slots, "slot {slot} of {}", self.max_slots);
        self.board.slot_at(slot)
    }

    fn slot_u32(&self, slot: u32, word: usize) -> &AtomicU32 {
        self.board.words.u32(self.slot_at(slot) + word)
    }

    fn slot_u64(&self, slot: u32, word: usize) -> &AtomicU64 {
        self.board.words.u64(self.slot_at(slot) + word)
    }

    fn word(&self, slot: u32, at: u32) -> &AtomicU64 {
        self.slot_u64(slot, self.geometry.words_at + 8 * at as usize)
    }
}
