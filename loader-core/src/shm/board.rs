//! The board: the words of an arena through which pieces of batches are offered, claimed, finished
//! and taken back. `docs/protocol.md` tells it as a whole.
//!
//! Who may do what:
//! - The *pool* (one, under a lock, in the process that consumes) opens settled slots, withdraws
//!   them, and takes back what dead workers had claimed.
//! - A *worker* claims a cell of an open slot, and finishes it.
//!
//! Cursor and head only tell workers where to look first. A claim is valid wherever it succeeds,
//! since a cell is free only while its slot's batch is wanted, and the slot can't be opened for
//! another batch while one of its cells is claimed.

use std::ops::Range;

use super::cell::{self, WorkerId};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words at byte offsets of shared memory, each always used as the same type.
pub(crate) trait Words {
    fn u32(&self, at: usize) -> &AtomicU32;
    fn u64(&self, at: usize) -> &AtomicU64;
}

/// Where the board's words lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Batches queued so far; number `n` is in entry `n % queue_len` of the queue.
    pub(crate) tail_at: usize,
    /// The low 48 bits: a batch before which nothing is left to claim. A hint. The upper 16 count
    /// how often it was set back.
    pub(crate) head_at: usize,
    pub(crate) queue_at: usize,
    pub(crate) queue_len: u64,
    /// Of the first slot, and from each slot to the next.
    pub(crate) slots_at: usize,
    pub(crate) slot_bytes: usize,
    /// In a slot: the cell to try next (a hint), the samples of its batch, the batch's number in
    /// the queue, the cells.
    pub(crate) cursor_at: usize,
    pub(crate) count_at: usize,
    pub(crate) number_at: usize,
    pub(crate) cells_at: usize,
    /// Samples of a batch at most, and samples that one cell stands for.
    pub(crate) batch_size: usize,
    pub(crate) per_cell: usize,
}

/// The part of `head` that is a batch's number.
const NUMBERS: u64 = (1 << 48) - 1;

#[derive(Debug)]
pub(crate) struct Board<W> {
    pub(crate) words: W,
    pub(crate) layout: Layout,
}

impl<W: Words> Board<W> {
    /// Offers a slot's cells to the workers. False where the queue is full, which a batch that
    /// completes may change.
    ///
    /// The caller is the pool. The slot's cells are settled, nobody holds its batch, and what
    /// workers shall read beside the cells is written.
    pub(crate) fn open(&self, slot: u32, count: u32) -> bool {
        let Some(number) = self.next_number() else { return false };
        self.count(slot).store(count, Ordering::Relaxed);
        for index in 0..self.cells(count) {
            cell::open(self.cell(slot, index));
        }
        // After the cells: a worker that was late with an earlier batch of this slot may have
        // counted the cursor up while they were settled, and would have passed over one of them.
        self.reset_cursor(slot);
        self.enqueue(slot, number);
        true
    }

    fn reset_cursor(&self, slot: u32) {
        // A swap and no store, since workers may be counting it up: it comes after all that they
        // did before, and they see what it publishes. Release: pairs with `claim_in`.
        self.cursor(slot).swap(0, Ordering::AcqRel);
    }

    /// The number of the next entry of the queue; `None` while that entry is still needed.
    fn next_number(&self) -> Option<u64> {
        let number = self.tail().load(Ordering::Relaxed);
        if let Some(earlier) = number.checked_sub(self.layout.queue_len) {
            // Workers find free cells through the queue alone, so an entry must stay while its
            // batch has any. The queue has twice as many entries as there are slots; only batches
            // that complete out of order while a worker dawdles between two steps fill it.
            let holder = self.queued(number).load(Ordering::Relaxed);
            let current = self.number(holder).load(Ordering::Relaxed) == earlier;
            if current && self.has_free_cell(holder) {
                return None;
            }
        }
        Some(number)
    }

    fn enqueue(&self, slot: u32, number: u64) {
        self.number(slot).store(number, Ordering::Relaxed);
        self.queued(number).store(slot, Ordering::Relaxed);
        // Release: pairs with `claim`.
        self.tail().store(number + 1, Ordering::Release);
    }

    /// Withdraws what is not yet claimed of a slot's batch, which nobody wants any more.
    pub(crate) fn withdraw(&self, slot: u32) {
        let count = self.count(slot).load(Ordering::Relaxed);
        for index in 0..self.cells(count) {
            cell::void(self.cell(slot, index));
        }
        // Either the worker that finishes the last claimed cell sees all settled, or the pool that
        // looks after this does.
        fence(Ordering::SeqCst);
    }

    /// Takes back the cells of a slot that dead workers had claimed, calling `lost` for each before
    /// anybody else can have it. They are free again where the batch is wanted, and settled
    /// otherwise. To have free ones found, [`offer_again`](Self::offer_again) must follow.
    ///
    /// The caller is the pool, and has the system's word that the workers are gone.
    pub(crate) fn take_back(
        &self,
        slot: u32,
        workers: &Range<WorkerId>,
        wanted: bool,
        mut lost: impl FnMut(u32),
    ) {
        let count = self.count(slot).load(Ordering::Relaxed);
        for index in 0..self.cells(count) {
            let cell = self.cell(slot, index);
            if cell::is_claimed_by(cell, workers) {
                lost(index);
                cell::give_back(cell, wanted);
            }
        }
    }

    /// Lets workers find the free cells of an open slot that they may have passed: those that were
    /// taken back, and one that a worker was about to claim when it died. False where the queue is
    /// full, as for [`open`](Self::open).
    ///
    /// The caller is the pool.
    pub(crate) fn offer_again(&self, slot: u32) -> bool {
        if !self.has_free_cell(slot) {
            return true;
        }
        self.reset_cursor(slot);
        let number = self.number(slot).load(Ordering::Relaxed);
        let tail = self.tail().load(Ordering::Relaxed);
        let queued = self.queued(number).load(Ordering::Relaxed) == slot;
        if !queued || tail - number > self.layout.queue_len {
            // Another batch has its entry since, as it had no free cell. It gets a new one.
            let Some(number) = self.next_number() else { return false };
            self.enqueue(slot, number);
            return true;
        }
        // A worker that saw the cursor at its end may be about to move the head on. The count in
        // the upper bits makes that fail.
        // Release: pairs with `claim`, which then sees the cursor set back.
        let back = |head: u64| {
            let count = (head >> 48).wrapping_add(1) << 48;
            Some(count | (head & NUMBERS).min(number))
        };
        let _ = self.head().fetch_update(Ordering::AcqRel, Ordering::Acquire, back);
        true
    }

    /// Takes a cell for a worker; gives its slot and index.
    pub(crate) fn claim(&self, worker: WorkerId) -> Option<(u32, u32)> {
        // Acquire: pairs with `enqueue`, so every queued slot is seen with its cursor set back.
        let tail = self.tail().load(Ordering::Acquire);
        // Acquire: pairs with `offer_again`.
        let mut head = self.head().load(Ordering::Acquire);
        while head & NUMBERS < tail {
            let slot = self.queued(head & NUMBERS).load(Ordering::Relaxed);
            if let Some(cell) = self.claim_in(slot, worker) {
                return Some((slot, cell));
            }
            let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
            head = match self.head().compare_exchange(head, head + 1, order, failed) {
                Ok(_) => head + 1,
                Err(now) => now,
            };
        }
        None
    }

    fn claim_in(&self, slot: u32, worker: WorkerId) -> Option<u32> {
        let cursor = self.cursor(slot);
        let cells = || self.cells(self.count(slot).load(Ordering::Relaxed));
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

    /// Ends a claim. True where that settled the last cell of the slot.
    pub(crate) fn finish(&self, slot: u32, index: u32, worker: WorkerId) -> bool {
        cell::finish(self.cell(slot, index), worker);
        // Of the workers that finish a batch's last cells at once, one at least sees all settled.
        fence(Ordering::SeqCst);
        self.is_settled(slot)
    }

    /// True where every cell of the slot is settled: the batch is complete, or withdrawn and left.
    pub(crate) fn is_settled(&self, slot: u32) -> bool {
        let count = self.count(slot).load(Ordering::Acquire);
        (0..self.cells(count)).all(|index| cell::is_settled(self.cell(slot, index)))
    }

    pub(crate) fn has_free_cell(&self, slot: u32) -> bool {
        let count = self.count(slot).load(Ordering::Relaxed);
        (0..self.cells(count)).any(|index| cell::is_free(self.cell(slot, index)))
    }

    /// The places of a batch behind a cell.
    pub(crate) fn places(&self, slot: u32, cell: u32) -> Range<u32> {
        let per_cell = self.layout.per_cell as u32;
        let count = self.count(slot).load(Ordering::Relaxed);
        let first = cell * per_cell;
        first..count.min(first.saturating_add(per_cell))
    }

    /// Cells that a batch of `count` samples has.
    fn cells(&self, count: u32) -> u32 {
        let count = (count as usize).min(self.layout.batch_size);
        count.div_ceil(self.layout.per_cell) as u32
    }

    pub(crate) fn slot_at(&self, slot: u32) -> usize {
        self.layout.slots_at + slot as usize * self.layout.slot_bytes
    }

    pub(crate) fn count(&self, slot: u32) -> &AtomicU32 {
        self.words.u32(self.slot_at(slot) + self.layout.count_at)
    }

    fn tail(&self) -> &AtomicU64 {
        self.words.u64(self.layout.tail_at)
    }

    fn head(&self) -> &AtomicU64 {
        self.words.u64(self.layout.head_at)
    }

    fn queued(&self, number: u64) -> &AtomicU32 {
        let entry = (number % self.layout.queue_len) as usize;
        self.words.u32(self.layout.queue_at + 4 * entry)
    }

    fn cursor(&self, slot: u32) -> &AtomicU32 {
        self.words.u32(self.slot_at(slot) + self.layout.cursor_at)
    }

    fn number(&self, slot: u32) -> &AtomicU64 {
        self.words.u64(self.slot_at(slot) + self.layout.number_at)
    }

    pub(crate) fn cell(&self, slot: u32, index: u32) -> &AtomicU32 {
        self.words.u32(self.slot_at(slot) + self.layout.cells_at + 4 * index as usize)
    }
}
