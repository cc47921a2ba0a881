//! A claim: the right to make the samples behind one cell.

use std::ops::Range;
use std::slice;

use super::arena::{Arena, Descriptor};
use super::cell::WorkerId;
use super::place::Place;
use crate::dataset::{SampleError, SampleWriter};

/// Dropping it finishes the cell; samples that were not marked as made count as failed.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    arena: &'a Arena,
    slot: u32,
    cell: u32,
    worker: WorkerId,
}

impl<'a> Claim<'a> {
    /// The caller has claimed the cell for the worker.
    pub(super) fn new(arena: &'a Arena, slot: u32, cell: u32, worker: WorkerId) -> Self {
        Self { arena, slot, cell, worker }
    }

    /// The batch that this is a piece of.
    pub(crate) fn descriptor(&self) -> Descriptor {
        self.arena.descriptor(self.slot)
    }

    /// The places in the batch that are this claim's.
    pub(crate) fn places(&self) -> Range<u32> {
        self.arena.board().places(self.slot, self.cell)
    }

    /// What earlier attempts left at that place.
    pub(crate) fn place(&self, at: u32) -> Place {
        self.arena.place(self.slot, at)
    }

    /// Notes that the place's present candidate is about to be made, and which sample it is. Tells
    /// since when, by the clock of [`now`](super::now), in nanoseconds.
    pub(crate) fn begin(&mut self, at: u32, index: u64) -> u64 {
        assert!(self.places().contains(&at));
        self.arena.set_place(self.slot, at, self.place(at).started(index));
        self.arena.desk(self.worker).begin(self.slot, at)
    }

    /// Where the sample at that place is written.
    pub(crate) fn writer(&mut self, at: u32) -> SampleWriter<'_> {
        assert!(self.places().contains(&at));
        let (arena, slot) = (self.arena, self.slot);
        let geometry = arena.geometry();
        SampleWriter::new(&geometry.fields, |field| {
            let start = arena.sample_ptr(slot, field, at);
            // SAFETY:
            // - In bounds and reserved: `sample_ptr` checked it, and only reserved slots are opened.
            // - Exclusive: the place is behind a cell that this claim holds, parts of different
            //   fields are apart, `SampleWriter::new` asks for each field once, and the writer
            //   borrows the claim mutably, so there is one at a time. Lease holders touch a slot
            //   only while all its cells are settled. A claim is taken from a worker only when its
            //   process is gone.
            // - Initialized: shared pages begin as zero, and every byte is a valid `u8`.
            // - Alive: the writer borrows the claim, which borrows the arena.
            unsafe { slice::from_raw_parts_mut(start, geometry.sample_bytes[field]) }
        })
    }

    /// Where all samples of the claim are written, one behind the other.
    pub(crate) fn run_writer(&mut self) -> SampleWriter<'_> {
        let (arena, slot, places) = (self.arena, self.slot, self.places());
        let geometry = arena.geometry();
        SampleWriter::new(&geometry.fields, |field| {
            let (start, bytes) = arena.run_ptr(slot, field, &places);
            // SAFETY: as in `writer`, for places of which each is this claim's.
            unsafe { slice::from_raw_parts_mut(start, bytes) }
        })
    }

    /// Notes that the candidate is made.
    pub(crate) fn made(&mut self, at: u32, padding: bool) {
        self.arena.set_place(self.slot, at, self.place(at).made(padding));
        self.arena.desk(self.worker).end();
    }

    /// Notes that the candidate could not be made. The place counts as failed unless a later one
    /// is made.
    pub(crate) fn failed(&mut self, at: u32, error: &SampleError) {
        let place = self.place(at);
        // Told first: a death in between has the candidate tried again, and told once.
        let (attempt, index) = (place.attempt(), place.index());
        self.arena.tell(self.slot, at, attempt, index, self.worker, error);
        self.arena.set_place(self.slot, at, place.failed());
        self.arena.desk(self.worker).end();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // If the slot is open again already, its consumer was not asleep.
        if self.arena.board().finish(self.slot, self.cell, self.worker) {
            self.arena.notify_ready();
        }
    }
}
