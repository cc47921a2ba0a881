//! A complete batch in its slot, in the hands of whoever consumes it.

use std::sync::Arc;

use super::arena::Arena;
use super::failure::Failure;
use super::geometry::{FAILURE_BYTES, Geometry, MAX_FAILURES};
use super::place::Place;

/// How one sample of a batch turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// The index of the sample that was written.
    pub(crate) index: u64,
    pub(crate) padding: bool,
    pub(crate) failed: bool,
}

impl From<Place> for Filled {
    fn from(place: Place) -> Self {
        Self { index: place.index(), padding: place.is_padding(), failed: !place.is_made() }
    }
}

/// A slot whose batch is complete.
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
        self.arena.geometry()
    }

    /// Bytes of one sample in a field.
    pub(crate) fn sample_bytes(&self, field: usize) -> usize {
        self.geometry().sample_bytes[field]
    }

    pub(crate) fn filled(&self, at: u32) -> Filled {
        self.arena.place(self.slot, at).into()
    }

    /// How many candidates failed in the first `count` places, and the first of them in words.
    pub(crate) fn failures(&self, count: u32) -> (u64, Vec<Failure>) {
        let failed = (0..count).map(|at| u64::from(self.arena.place(self.slot, at).attempt()));
        let failed = failed.sum();
        let mut told: Vec<Failure> = Vec::new();
        if failed > 0 {
            for n in 0..MAX_FAILURES as u32 {
                // Unsealed: its writer died, and who came after it wrote another.
                if self.arena.is_sealed(self.slot, n) {
                    let start = self.arena.failure_ptr(self.slot, n);
                    // SAFETY: in bounds by `failure_ptr`; nobody writes, as all cells are settled
                    // and this lease keeps the slot from being opened.
                    let record = unsafe { &*start.cast::<[u8; FAILURE_BYTES]>() };
                    let failure = Failure::decode(record);
                    let known = |f: &Failure| (f.at, f.attempt) == (failure.at, failure.attempt);
                    if !told.iter().any(known) {
                        told.push(failure);
                    }
                }
            }
        }
        (failed, told)
    }

    /// How many of the first `count` places another sample took that was made, where theirs failed.
    pub(crate) fn substituted(&self, count: u32) -> u64 {
        let places = (0..count).map(|at| self.arena.place(self.slot, at));
        places.filter(|place| place.is_made() && place.attempt() > 0).count() as u64
    }

    /// Where a field's samples begin. Valid for reads and writes of `sample_bytes * batch_size`
    /// bytes while the lease lives, and aligned to 64 bytes.
    pub(crate) fn field_ptr(&self, field: usize) -> *mut u8 {
        self.arena.field_ptr(self.slot, field)
    }

    /// Where a field's samples begin in the segment.
    pub(crate) fn field_offset(&self, field: usize) -> usize {
        self.arena.slot_at(self.slot) + self.geometry().field_at[field]
    }

    /// Where the words of the samples' places begin in the segment, 8 bytes each.
    pub(crate) fn words_offset(&self) -> usize {
        self.arena.slot_at(self.slot) + self.geometry().words_at
    }

    /// Closes up the gaps of failed samples, keeping the order. Returns how many samples are left.
    pub(crate) fn compact(&mut self, count: u32) -> u32 {
        let mut kept = 0;
        for at in 0..count {
            if self.filled(at).failed {
                continue;
            }
            if kept != at {
                self.arena.set_place(self.slot, kept, self.arena.place(self.slot, at));
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
