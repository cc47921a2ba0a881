//! The arena: one segment with a control block and slots, each of which holds a batch.
//!
//! Who may do what:
//! - The *pool* (one, under a lock, in the process that consumes) opens free slots for batches.
//! - A *worker* claims a cell of an open slot and writes the samples behind it, until it finishes.
//! - The *lease* holder owns a slot whose cells are all settled, until it gives the slot back.
//!
//! Everything else in the control block (cursor, head) only tells workers where to look first. A
//! claim is valid wherever it succeeds, since a cell is free only while its slot's batch is wanted,
//! and the batch's descriptor can't change while one of its cells is claimed.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::cell::{self, WorkerId};
use super::futex;
use super::geometry::{FAILURE_BYTES, Geometry, LINE, MAX_FAILURES, MAX_SLOTS};
use super::segment::{MemoryError, Segment};
use crate::dataset::{SampleError, SampleWriter, Stage};

/// Counts up when there is work or the loader ends; idle workers wait on it.
const WORK: usize = 0;
/// Counts up when a batch may be complete; the consumer waits on it.
const READY: usize = LINE;
/// 1 once workers should end.
const CLOSED: usize = 2 * LINE;
/// Batches queued so far; number `n` is in entry `n % queue_len` of the queue.
const TAIL: usize = 3 * LINE;
/// A batch before which nothing is left to claim. A hint.
const HEAD: usize = 4 * LINE;

/// Of a slot: the cell to try next. A hint.
const CURSOR: usize = 0;
const COUNT: usize = LINE;
const FAILURES: usize = LINE + 4;
const EPOCH: usize = LINE + 8;
const FIRST: usize = LINE + 16;
/// The batch's number in the queue.
const NUMBER: usize = LINE + 24;

/// In a sample's word, beside its index in the dataset.
const FAILED: u64 = 1 << 63;
const PADDING: u64 = 1 << 62;

/// What a slot is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) epoch: u64,
    /// The position in the epoch of the batch's first sample.
    pub(crate) first: u64,
    /// Its samples, at most the batch size.
    pub(crate) count: u32,
}

/// How one sample of a batch turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// The index of the sample that was written.
    pub(crate) index: u64,
    pub(crate) padding: bool,
    pub(crate) failed: bool,
}

/// What a worker tells of a sample that it could not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The place in the batch.
    pub(crate) at: u32,
    /// The index in the dataset of what failed.
    pub(crate) index: u64,
    pub(crate) worker: WorkerId,
    pub(crate) error: SampleError,
}

#[derive(Debug)]
pub(crate) struct Arena {
    segment: Segment,
    geometry: Geometry,
    max_slots: usize,
}

impl Arena {
    /// An arena that can grow to `max_slots` slots, none of them reserved.
    pub(crate) fn create(geometry: Geometry, max_slots: usize) -> Result<Self, MemoryError> {
        assert!((1..=MAX_SLOTS).contains(&max_slots), "{max_slots} slots");
        let slots_at = Geometry::slots_at(max_slots);
        let segment = Segment::create(slots_at + geometry.slot_bytes * max_slots)?;
        segment.reserve(0..slots_at)?;
        Ok(Self { segment, geometry, max_slots })
    }

    pub(crate) fn max_slots(&self) -> usize {
        self.max_slots
    }

    /// Reserves the memory of a slot, after which it may be opened.
    pub(crate) fn reserve(&self, slot: u32) -> Result<(), MemoryError> {
        let at = self.slot_at(slot);
        self.segment.reserve(at..at + self.geometry.slot_bytes)
    }

    /// Offers a slot to the workers. False where the queue is full, which a batch that completes
    /// may change.
    ///
    /// The caller is the pool: the slot is reserved, nobody holds its lease, its cells are settled,
    /// and no other call to `open` runs at the same time.
    pub(crate) fn open(&self, slot: u32, batch: Descriptor) -> bool {
        let number = self.u64_at(TAIL).load(Ordering::Relaxed);
        let entry = self.queued(number);
        if let Some(earlier) = number.checked_sub(self.queue_len()) {
            // Workers find free cells through the queue alone, so an entry must stay while its
            // batch has any. The queue has twice as many entries as there are slots; only batches
            // that complete out of order while a worker dawdles between two steps fill it.
            let holder = entry.load(Ordering::Relaxed);
            if self.slot_u64(holder, NUMBER).load(Ordering::Relaxed) == earlier
                && self.has_free_cell(holder)
            {
                return false;
            }
        }
        self.slot_u64(slot, NUMBER).store(number, Ordering::Relaxed);
        self.slot_u32(slot, COUNT).store(batch.count, Ordering::Relaxed);
        self.slot_u32(slot, FAILURES).store(0, Ordering::Relaxed);
        self.slot_u64(slot, EPOCH).store(batch.epoch, Ordering::Relaxed);
        self.slot_u64(slot, FIRST).store(batch.first, Ordering::Relaxed);
        for at in 0..batch.count {
            self.word(slot, at).store(FAILED, Ordering::Relaxed);
        }
        for index in 0..self.cells(batch.count) {
            cell::open(self.cell(slot, index));
        }
        // After the cells: a worker that was late with an earlier batch of this slot may have
        // counted the cursor up while they were settled, and would have passed over one of them.
        self.slot_u32(slot, CURSOR).store(0, Ordering::Release);
        entry.store(slot, Ordering::Relaxed);
        // Release: pairs with `claim`.
        self.u64_at(TAIL).store(number + 1, Ordering::Release);
        futex::notify(self.u32_at(WORK));
        true
    }

    /// Withdraws what is not yet claimed of a slot's batch, which nobody wants any more.
    pub(crate) fn withdraw(&self, slot: u32) {
        let count = self.slot_u32(slot, COUNT).load(Ordering::Relaxed);
        for index in 0..self.cells(count) {
            cell::void(self.cell(slot, index));
        }
    }

    /// True where every cell of the slot is settled: the batch is complete, or withdrawn and left.
    pub(crate) fn is_settled(&self, slot: u32) -> bool {
        // Acquire is enough for the count: it was stored by the pool before the cells were opened.
        let count = self.slot_u32(slot, COUNT).load(Ordering::Acquire);
        (0..self.cells(count)).all(|index| cell::is_settled(self.cell(slot, index)))
    }

    fn has_free_cell(&self, slot: u32) -> bool {
        let count = self.slot_u32(slot, COUNT).load(Ordering::Relaxed);
        (0..self.cells(count)).any(|index| cell::is_free(self.cell(slot, index)))
    }

    /// The state of the ready word, to be read before looking for complete batches.
    pub(crate) fn ready_word(&self) -> u32 {
        self.u32_at(READY).load(Ordering::SeqCst)
    }

    /// Waits until a batch may have become complete since `seen` was read.
    pub(crate) fn wait_ready(&self, seen: u32, timeout: Option<Duration>) {
        futex::wait(self.u32_at(READY), seen, timeout);
    }

    /// Wakes the consumer, which looks again at what it waits for.
    pub(crate) fn notify_ready(&self) {
        futex::notify(self.u32_at(READY));
    }

    /// Tells all workers to end.
    pub(crate) fn close(&self) {
        self.u32_at(CLOSED).store(1, Ordering::SeqCst);
        futex::notify(self.u32_at(WORK));
    }

    /// Takes the next piece of work, waiting for it. `None` once the arena is closed.
    pub(crate) fn next_claim(&self, worker: WorkerId) -> Option<Claim<'_>> {
        loop {
            let seen = self.u32_at(WORK).load(Ordering::SeqCst);
            if self.u32_at(CLOSED).load(Ordering::SeqCst) != 0 {
                return None;
            }
            if let Some(claim) = self.claim(worker) {
                return Some(claim);
            }
            futex::wait(self.u32_at(WORK), seen, None);
        }
    }

    fn claim(&self, worker: WorkerId) -> Option<Claim<'_>> {
        // Acquire: pairs with `open`, so every queued slot is seen with its cursor set back.
        let tail = self.u64_at(TAIL).load(Ordering::Acquire);
        let mut seq = self.u64_at(HEAD).load(Ordering::Relaxed);
        while seq < tail {
            let slot = self.queued(seq).load(Ordering::Relaxed);
            if let Some(cell) = self.claim_in(slot, worker) {
                return Some(Claim { arena: self, slot, cell, worker });
            }
            let next = seq + 1;
            let moved =
                self.u64_at(HEAD).compare_exchange(seq, next, Ordering::Relaxed, Ordering::Relaxed);
            // Another worker may be further already.
            seq = moved.map_or_else(|now| now.max(next), |_| next);
        }
        None
    }

    fn claim_in(&self, slot: u32, worker: WorkerId) -> Option<u32> {
        let cursor = self.slot_u32(slot, CURSOR);
        let cells = || self.cells(self.slot_u32(slot, COUNT).load(Ordering::Relaxed));
        loop {
            // Looked at first, so that idle workers don't count it up for ever.
            if cursor.load(Ordering::Acquire) >= cells() {
                return None;
            }
            let index = cursor.fetch_add(1, Ordering::AcqRel);
            // Counted anew, after the cursor: the slot may have been opened for a longer batch
            // since, and this index may be the only one that leads to a cell of it.
            if index >= cells() {
                return None;
            }
            if cell::claim(self.cell(slot, index), worker) {
                return Some(index);
            }
        }
    }

    fn cells(&self, count: u32) -> u32 {
        let count = (count as usize).min(self.geometry.batch_size);
        count.div_ceil(self.geometry.per_cell) as u32
    }

    fn slot_at(&self, slot: u32) -> usize {
        assert!((slot as usize) < self.max_slots, "slot {slot} of {}", self.max_slots);
        Geometry::slots_at(self.max_slots) + slot as usize * self.geometry.slot_bytes
    }

    fn queue_len(&self) -> u64 {
        Geometry::queue_len(self.max_slots) as u64
    }

    fn queued(&self, number: u64) -> &AtomicU32 {
        self.u32_at(Geometry::queue_at() + 4 * (number % self.queue_len()) as usize)
    }

    fn slot_u32(&self, slot: u32, word: usize) -> &AtomicU32 {
        self.u32_at(self.slot_at(slot) + word)
    }

    fn slot_u64(&self, slot: u32, word: usize) -> &AtomicU64 {
        self.u64_at(self.slot_at(slot) + word)
    }

    fn cell(&self, slot: u32, index: u32) -> &AtomicU32 {
        self.u32_at(self.slot_at(slot) + self.geometry.cells_at + 4 * index as usize)
    }

    fn word(&self, slot: u32, at: u32) -> &AtomicU64 {
        self.u64_at(self.slot_at(slot) + self.geometry.words_at + 8 * at as usize)
    }

    fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.segment.len());
        // SAFETY:
        // - In bounds and aligned: just checked; the map begins at a page.
        // - Reserved: control words lie in the header, reserved by `create`, or in a slot, which
        //   `open` requires to be reserved and only the queue makes known to workers.
        // - Shared: the words of the control block are only ever accessed as atomics.
        // - Alive: the reference borrows `self`, which owns the map.
        unsafe { AtomicU32::from_ptr(self.segment.as_mut_ptr().add(at).cast()) }
    }

    fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.segment.len());
        // SAFETY: as in `u32_at`.
        unsafe { AtomicU64::from_ptr(self.segment.as_mut_ptr().add(at).cast()) }
    }

    /// A part of a slot, as an address. What may be done there is for the caller to argue.
    fn address(&self, slot: u32, at: usize, bytes: usize) -> *mut u8 {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.geometry.slot_bytes));
        // SAFETY: in bounds of the map, since the part is in bounds of the slot.
        unsafe { self.segment.as_mut_ptr().add(self.slot_at(slot) + at) }
    }

    fn failure_at(&self, n: u32) -> usize {
        self.geometry.failures_at + n as usize * FAILURE_BYTES
    }
}

/// The right to write the samples behind one cell. Dropping it finishes the cell; samples that were
/// not marked as made count as failed.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    arena: &'a Arena,
    slot: u32,
    cell: u32,
    worker: WorkerId,
}

impl Claim<'_> {
    /// The batch that this is a piece of.
    pub(crate) fn descriptor(&self) -> Descriptor {
        let arena = self.arena;
        // Relaxed: the claim acquired what `open` wrote before it.
        Descriptor {
            epoch: arena.slot_u64(self.slot, EPOCH).load(Ordering::Relaxed),
            first: arena.slot_u64(self.slot, FIRST).load(Ordering::Relaxed),
            count: arena.slot_u32(self.slot, COUNT).load(Ordering::Relaxed),
        }
    }

    /// The places in the batch that are this claim's.
    pub(crate) fn places(&self) -> std::ops::Range<u32> {
        let per_cell = self.arena.geometry.per_cell as u32;
        let count = self.arena.slot_u32(self.slot, COUNT).load(Ordering::Relaxed);
        let first = self.cell * per_cell;
        first..count.min(first.saturating_add(per_cell))
    }

    /// Where the sample at that place is written.
    pub(crate) fn writer(&mut self, at: u32) -> SampleWriter<'_> {
        assert!(self.places().contains(&at));
        let (arena, slot) = (self.arena, self.slot);
        let geometry = &arena.geometry;
        SampleWriter::new(&geometry.fields, |field| {
            let bytes = geometry.sample_bytes[field];
            let start = arena.address(slot, geometry.field_at[field] + at as usize * bytes, bytes);
            // SAFETY:
            // - In bounds and reserved: `address` checked it, and only reserved slots are opened.
            // - Exclusive: the place is behind a cell that this claim holds, parts of different
            //   fields are apart, `SampleWriter::new` asks for each field once, and the writer
            //   borrows the claim mutably, so there is one at a time. Lease holders touch a slot
            //   only while all its cells are settled.
            // - Initialized: shared pages begin as zero, and every byte is a valid `u8`.
            // - Alive: the writer borrows the claim, which borrows the arena.
            unsafe { slice::from_raw_parts_mut(start, bytes) }
        })
    }

    /// Notes that the sample at that place is written.
    pub(crate) fn made(&mut self, at: u32, index: u64, padding: bool) {
        let word = index | if padding { PADDING } else { 0 };
        self.arena.word(self.slot, at).store(word, Ordering::Relaxed);
    }

    /// Notes that the sample at that place could not be made, and goes on to count as failed
    /// unless a call to [`made`](Self::made) follows.
    pub(crate) fn failed(&mut self, at: u32, index: u64, error: &SampleError) {
        self.arena.word(self.slot, at).store(index | FAILED, Ordering::Relaxed);
        let n = self.arena.slot_u32(self.slot, FAILURES).fetch_add(1, Ordering::Relaxed);
        if n as usize >= MAX_FAILURES {
            return;
        }
        let start = self.arena.address(self.slot, self.arena.failure_at(n), FAILURE_BYTES);
        // SAFETY: as in `writer`; the record is this claim's because `fetch_add` gave out its
        // number once since the slot was opened.
        let record = unsafe { slice::from_raw_parts_mut(start, FAILURE_BYTES) };
        encode_failure(record, at, index, self.worker, error);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        cell::finish(self.arena.cell(self.slot, self.cell), self.worker);
        // Of the workers that finish a batch's last cells at once, at least one sees all settled.
        // If the slot is open again already, its consumer was not asleep.
        if self.arena.is_settled(self.slot) {
            self.arena.notify_ready();
        }
    }
}

/// Stage names on the wire, by number.
const STAGES: [Stage; 5] =
    [Stage::Read, Stage::Decode, Stage::Transform, Stage::Write, Stage::Panic];

fn encode_failure(record: &mut [u8], at: u32, index: u64, worker: WorkerId, error: &SampleError) {
    let text = error.message.as_bytes();
    let len = text.len().min(record.len() - 20);
    let stage = STAGES.iter().position(|&s| s == error.stage).unwrap_or(0);
    record[..8].copy_from_slice(&index.to_le_bytes());
    record[8..12].copy_from_slice(&at.to_le_bytes());
    record[12..14].copy_from_slice(&worker.to_le_bytes());
    record[14..16].copy_from_slice(&(stage as u16).to_le_bytes());
    record[16..20].copy_from_slice(&(len as u32).to_le_bytes());
    record[20..20 + len].copy_from_slice(&text[..len]);
}

fn decode_failure(record: &[u8]) -> Failure {
    let part = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&record[at..at + len]);
        u64::from_le_bytes(bytes)
    };
    let len = (part(16, 4) as usize).min(record.len() - 20);
    let message = String::from_utf8_lossy(&record[20..20 + len]).into_owned();
    let stage = STAGES.get(part(14, 2) as usize).copied().unwrap_or(Stage::Read);
    Failure {
        at: part(8, 4) as u32,
        index: part(0, 8),
        worker: part(12, 2) as WorkerId,
        error: SampleError { stage, message },
    }
}

/// A slot whose batch is complete, owned by whoever consumes it.
///
/// The pool makes at most one lease of a slot, when all its cells are settled, and opens the slot
/// again only after the lease was given back; that's what makes the access exclusive.
#[derive(Debug)]
pub(crate) struct SlotLease {
    arena: Arc<Arena>,
    slot: u32,
}

impl SlotLease {
    /// The caller is the pool, which keeps the promise above.
    pub(crate) fn new(arena: Arc<Arena>, slot: u32) -> Self {
        debug_assert!(arena.is_settled(slot));
        Self { arena, slot }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.arena.geometry
    }

    /// Bytes of one sample in a field.
    pub(crate) fn sample_bytes(&self, field: usize) -> usize {
        self.geometry().sample_bytes[field]
    }

    pub(crate) fn filled(&self, at: u32) -> Filled {
        let word = self.arena.word(self.slot, at).load(Ordering::Relaxed);
        Filled {
            index: word & !(FAILED | PADDING),
            padding: word & PADDING != 0,
            failed: word & FAILED != 0,
        }
    }

    /// How many failures were noted, and the first of them in words.
    pub(crate) fn failures(&self) -> (u32, Vec<Failure>) {
        let noted = self.arena.slot_u32(self.slot, FAILURES).load(Ordering::Relaxed);
        let told = (0..noted.min(MAX_FAILURES as u32)).map(|n| {
            let start = self.arena.address(self.slot, self.arena.failure_at(n), FAILURE_BYTES);
            // SAFETY: in bounds by `address`; nobody writes, as all cells are settled and this
            // lease keeps the slot from being opened.
            decode_failure(unsafe { slice::from_raw_parts(start, FAILURE_BYTES) })
        });
        (noted, told.collect())
    }

    /// Where a field's samples begin. Valid for reads and writes of `sample_bytes * batch_size`
    /// bytes while the lease lives, and aligned to 64 bytes.
    pub(crate) fn field_ptr(&self, field: usize) -> *mut u8 {
        let geometry = self.geometry();
        let bytes = geometry.sample_bytes[field] * geometry.batch_size;
        self.arena.address(self.slot, geometry.field_at[field], bytes)
    }

    /// Closes up the gaps of failed samples, keeping the order. Returns how many samples are left.
    pub(crate) fn compact(&mut self, count: u32) -> u32 {
        let mut kept = 0;
        for at in 0..count {
            if self.filled(at).failed {
                continue;
            }
            if kept != at {
                let word = self.arena.word(self.slot, at).load(Ordering::Relaxed);
                self.arena.word(self.slot, kept).store(word, Ordering::Relaxed);
                for (field, &bytes) in self.geometry().sample_bytes.iter().enumerate() {
                    let base = self.field_ptr(field);
                    // SAFETY: both places are inside the field, apart since `kept < at`, and
                    // exclusive to this lease, which is borrowed mutably.
                    unsafe {
                        let from = base.add(at as usize * bytes);
                        from.copy_to_nonoverlapping(base.add(kept as usize * bytes), bytes);
                    }
                }
            }
            kept += 1;
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::field::{DType, Field};

    fn arena(batch_size: usize, slots: usize) -> Arc<Arena> {
        let geometry = Geometry::new(vec![Field::new("x", DType::I64, [])], batch_size).unwrap();
        let arena = Arena::create(geometry, slots).unwrap();
        for slot in 0..slots {
            arena.reserve(slot as u32).unwrap();
        }
        Arc::new(arena)
    }

    fn fill(mut claim: Claim<'_>) {
        let batch = claim.descriptor();
        for at in claim.places() {
            let position = batch.first + u64::from(at);
            claim.writer(at).field::<i64>(0).unwrap()[0] = position as i64;
            claim.made(at, position, false);
        }
    }

    #[test]
    fn a_failure_survives_its_record() {
        let mut record = [0; FAILURE_BYTES];
        let error = SampleError::new(Stage::Decode, "é".repeat(300));
        encode_failure(&mut record, 3, 1 << 40, 9, &error);
        let back = decode_failure(&record);
        assert_eq!(
            (back.at, back.index, back.worker, back.error.stage),
            (3, 1 << 40, 9, Stage::Decode)
        );
        assert!(error.message.starts_with(back.error.message.trim_end_matches('\u{fffd}')));
        decode_failure(&[0xff; FAILURE_BYTES]);
    }

    #[test]
    fn withdrawn_work_is_not_handed_out() {
        let arena = arena(4, 2);
        assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 4 }));
        let held = arena.claim(1).unwrap();
        arena.withdraw(0);
        assert!(!arena.is_settled(0), "one cell is still being written");
        drop(held);
        assert!(arena.is_settled(0) && arena.claim(1).is_none());
    }

    #[test]
    fn the_last_piece_of_the_largest_batch_ends_with_it() {
        let fields = vec![Field::new("x", DType::U8, [])];
        let geometry = Geometry::new(fields, u32::MAX as usize).unwrap();
        let arena = Arena::create(geometry, 1).unwrap();
        arena.slot_u32(0, COUNT).store(u32::MAX, Ordering::Relaxed);
        let last = arena.cells(u32::MAX) - 1;
        cell::open(arena.cell(0, last));
        assert!(cell::claim(arena.cell(0, last), 0));
        let claim = Claim { arena: &arena, slot: 0, cell: last, worker: 0 };
        assert_eq!(claim.places().end, u32::MAX);
    }

    #[test]
    fn samples_of_a_dropped_claim_count_as_failed() {
        let arena = arena(2, 1);
        assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 2 }));
        drop(arena.claim(0).unwrap());
        fill(arena.claim(0).unwrap());
        let lease = SlotLease::new(arena, 0);
        assert!(lease.filled(0).failed && !lease.filled(1).failed);
    }

    /// Slots are opened again the moment they are complete, while late workers still look at them.
    #[test]
    fn no_sample_is_lost_or_doubled_when_slots_are_reused_at_once() {
        for (batch_size, short) in [(1, 1), (3, 3), (2000, 2000), (8, 1)] {
            let arena = arena(batch_size, 3);
            // Each fourth batch is a short one, as an epoch's last.
            let count = |n: u64| if n % 4 == 3 { short } else { batch_size as u32 };
            std::thread::scope(|scope| {
                for worker in 0..4 {
                    let arena = &arena;
                    scope.spawn(move || {
                        while let Some(claim) = arena.next_claim(worker) {
                            fill(claim);
                        }
                    });
                }
                let batches = if batch_size > 100 { 200 } else { 20_000u64 };
                let mut seen = HashSet::new();
                let mut open: Vec<(u32, u64, u32)> = Vec::new();
                let (mut next, mut samples) = (0, 0);
                while next < batches || !open.is_empty() {
                    let word = arena.ready_word();
                    if let Some(i) = open.iter().position(|open| arena.is_settled(open.0)) {
                        let (slot, first, count) = open.remove(i);
                        let lease = SlotLease::new(Arc::clone(&arena), slot);
                        for at in 0..count {
                            let filled = lease.filled(at);
                            assert_eq!(filled.index, first + u64::from(at));
                            assert!(!filled.failed && seen.insert(filled.index));
                            // SAFETY: the lease is held and the place is inside the field.
                            let value =
                                unsafe { *lease.field_ptr(0).cast::<i64>().add(at as usize) };
                            assert_eq!(value as u64, filled.index);
                        }
                    } else if next < batches && open.len() < 3 {
                        let slot = (0..3).find(|s| open.iter().all(|o| o.0 != *s)).unwrap();
                        let (first, count) = (samples, count(next));
                        if arena.open(slot, Descriptor { epoch: 0, first, count }) {
                            open.push((slot, first, count));
                            samples += u64::from(count);
                            next += 1;
                        } else {
                            std::thread::yield_now();
                        }
                    } else {
                        arena.wait_ready(word, None);
                    }
                }
                assert_eq!(seen.len() as u64, samples);
                arena.close();
            });
        }
    }
}
