//! The claim cell: one word that says who makes a piece of a batch, and whether it is made.
//!
//! ```text
//!            open            claim (compare-exchange)         finish
//!   SETTLED ------> FREE ------------------------> CLAIMED by w ------> SETTLED
//!                   ^ \___________________ void _______|______________^ ^
//!                   |__________ give back: w is dead __|________________|
//! ```
//!
//! A claim names its owner in the same store that takes the cell, so it can't be lost between two.
//! The low byte is the state, the upper half the worker.

use std::ops::Range;

use super::sync::{AtomicU32, Ordering};

const STATE: u32 = 0xff;
const SETTLED: u32 = 0;
const FREE: u32 = 1;
const CLAIMED: u32 = 2;

/// The number of a worker, unique in its loader.
pub(crate) type WorkerId = u16;

const fn claimed(worker: WorkerId) -> u32 {
    CLAIMED | (worker as u32) << 16
}

/// Offers the cell to the workers. The caller is the only one who writes to a settled cell.
pub(crate) fn open(cell: &AtomicU32) {
    // Release: pairs with `claim`, whose holder then sees the batch's descriptor.
    cell.store(FREE, Ordering::Release);
}

/// Takes the cell for a worker if it is free.
pub(crate) fn claim(cell: &AtomicU32, worker: WorkerId) -> bool {
    // Acquire: pairs with `open` and `give_back`. It also keeps the writes of the holder after the
    // claim.
    cell.compare_exchange(FREE, claimed(worker), Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Ends the claim: what its holder wrote is there to be read. Does nothing where the worker has no
/// claim to end.
pub(crate) fn finish(cell: &AtomicU32, worker: WorkerId) {
    // Release: pairs with `is_settled`, for whoever reads the batch.
    let end = cell.compare_exchange(claimed(worker), SETTLED, Ordering::Release, Ordering::Relaxed);
    debug_assert!(end.is_ok(), "worker {worker} finished what it had not claimed");
}

/// Withdraws a cell that nobody has claimed.
pub(crate) fn void(cell: &AtomicU32) {
    let _ = cell.compare_exchange(FREE, SETTLED, Ordering::AcqRel, Ordering::Relaxed);
}

/// True where one of these workers holds the cell.
pub(crate) fn is_claimed_by(cell: &AtomicU32, workers: &Range<WorkerId>) -> bool {
    let word = cell.load(Ordering::Acquire);
    word & STATE == CLAIMED && workers.contains(&((word >> 16) as WorkerId))
}

/// Takes a claimed cell from a worker that is dead: to be claimed anew, or settled where its batch
/// is not wanted any more. The caller has the system's word that the worker is gone.
pub(crate) fn give_back(cell: &AtomicU32, wanted: bool) {
    // Release: pairs with the next holder's `claim`, who sees what the dead one had finished.
    cell.store(if wanted { FREE } else { SETTLED }, Ordering::Release);
}

/// True where nobody writes behind the cell, and nobody will before it is opened again.
pub(crate) fn is_settled(cell: &AtomicU32) -> bool {
    // Acquire: pairs with `finish`.
    cell.load(Ordering::Acquire) & STATE == SETTLED
}

/// True where the cell waits for a worker.
pub(crate) fn is_free(cell: &AtomicU32) -> bool {
    cell.load(Ordering::Relaxed) & STATE == FREE
}
