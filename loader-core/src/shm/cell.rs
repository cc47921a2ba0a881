//! The claim cell: one word that says who makes a piece of a batch, and whether it is made.
//!
//! ```text
//!            open            claim (compare-exchange)         finish
//!   SETTLED ------> FREE ------------------------> CLAIMED by w ------> SETTLED
//!                     \___________________ void ________________________^
//! ```
//!
//! A claim names its owner in the same store that takes the cell, so it can't be lost between two.
//! The low byte is the state, the upper half the worker.

use std::sync::atomic::{AtomicU32, Ordering};

const STATE: u32 = 0xff;
const SETTLED: u32 = 0;
const FREE: u32 = 1;
const CLAIMED: u32 = 2;

/// The number of a worker, unique in its loader.
pub(crate) type WorkerId = u16;

/// Offers the cell to the workers. The caller is the only one who writes to a settled cell.
pub(super) fn open(cell: &AtomicU32) {
    // Release: pairs with `claim`, whose holder then sees the batch's descriptor.
    cell.store(FREE, Ordering::Release);
}

/// Takes the cell for a worker if it is free.
pub(super) fn claim(cell: &AtomicU32, worker: WorkerId) -> bool {
    let claimed = CLAIMED | u32::from(worker) << 16;
    // Acquire: pairs with `open`. It also keeps the writes of the holder after the claim.
    cell.compare_exchange(FREE, claimed, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Ends the claim: what its holder wrote is there to be read.
pub(super) fn finish(cell: &AtomicU32, worker: WorkerId) {
    debug_assert_eq!(cell.load(Ordering::Relaxed), CLAIMED | u32::from(worker) << 16);
    // SeqCst (and so Release, for whoever reads the batch): of the workers that finish the last
    // cells of a batch at once, one at least must see all of them settled.
    cell.store(SETTLED, Ordering::SeqCst);
}

/// Withdraws a cell that nobody has claimed.
pub(super) fn void(cell: &AtomicU32) {
    let _ = cell.compare_exchange(FREE, SETTLED, Ordering::SeqCst, Ordering::Relaxed);
}

/// True where nobody writes behind the cell, and nobody will before it is opened again.
pub(super) fn is_settled(cell: &AtomicU32) -> bool {
    // SeqCst (and so Acquire): pairs with `finish`.
    cell.load(Ordering::SeqCst) & STATE == SETTLED
}

/// True where the cell waits for a worker.
pub(super) fn is_free(cell: &AtomicU32) -> bool {
    cell.load(Ordering::Relaxed) & STATE == FREE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_claimed_once_between_opening_and_finishing() {
        let cell = AtomicU32::new(0);
        assert!(is_settled(&cell) && !claim(&cell, 1));
        open(&cell);
        assert!(claim(&cell, 1) && !claim(&cell, 2) && !is_settled(&cell));
        void(&cell);
        assert!(!is_settled(&cell), "a claimed cell can't be withdrawn");
        finish(&cell, 1);
        assert!(is_settled(&cell) && !claim(&cell, 2));
    }

    #[test]
    fn a_withdrawn_cell_can_not_be_claimed() {
        let cell = AtomicU32::new(0);
        open(&cell);
        void(&cell);
        assert!(is_settled(&cell) && !claim(&cell, 1));
    }
}
