//! Who reads a slot in other processes: one word a slot, changed by single atomic operations, so
//! that a death between any two of them leaves nothing half done. See `docs/sharing-batches.md`.
//!
//! ```text
//!   bits 63..33  generation: how often the slot was published
//!   bit  32      open: its batch may still be opened
//!   bits 31..0   one for each holder, a process that has it open
//!
//!             publish (owner)          acquire / release (holders)
//!   FREE g ------------------> OPEN g+1 {} <----------------------> OPEN g+1 {a, b}
//!     ^                           | withdraw (owner)                   | withdraw (owner)
//!     |___________________________|                                    v
//!     |_______________________________________________________ CLOSED g+1 {a, b}
//!                         release by the last holder, or by the owner for a dead one
//! ```
//!
//! A holder's number is its entry in a table of identities; see [`register`].

use super::sync::{AtomicU64, Ordering};

/// Processes that can have batches of one segment open at a time.
pub(crate) const HOLDERS: usize = 32;

const HOLDER_BITS: u64 = (1 << HOLDERS) - 1;
const OPEN: u64 = 1 << HOLDERS;
const GENERATION_SHIFT: u32 = HOLDERS as u32 + 1;

/// The generation of what the slot holds, or held last.
pub(crate) fn generation(word: &AtomicU64) -> u32 {
    (word.load(Ordering::Relaxed) >> GENERATION_SHIFT) as u32
}

/// Lets other processes open what the slot holds, under the generation that is returned.
///
/// The caller is the owner and has the slot's lease; the slot [is free](is_free).
pub(crate) fn publish(word: &AtomicU64) -> u32 {
    let generation = generation(word).wrapping_add(1) & (u32::MAX >> 1);
    // A plain store loses nothing: nobody else changes the word of a free slot. Release: pairs with
    // `acquire`, whose caller then sees the batch.
    word.store(u64::from(generation) << GENERATION_SHIFT | OPEN, Ordering::Release);
    generation
}

/// Makes `holder` one of those who have the slot open; false where it is not open, or not under that
/// generation any more.
pub(crate) fn acquire(word: &AtomicU64, of: u32, holder: u32) -> bool {
    let mut now = word.load(Ordering::Relaxed);
    loop {
        if now & OPEN == 0 || now >> GENERATION_SHIFT != u64::from(of) {
            return false;
        }
        // Acquire: pairs with `publish`, also where other holders came and went since: their
        // changes continue its release sequence.
        let held = now | 1 << holder;
        match word.compare_exchange_weak(now, held, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(changed) => now = changed,
        }
    }
}

/// Takes a holder back. True where the slot became free by it.
pub(crate) fn release(word: &AtomicU64, holder: u32) -> bool {
    let bit = 1 << holder;
    // Release: pairs with `is_free`; whatever the holder read, it read before the slot is written
    // again.
    let before = word.fetch_and(!bit, Ordering::AcqRel);
    before & (OPEN | HOLDER_BITS) == bit
}

/// Ends the opening of what the slot holds. True where nobody has it open; otherwise it becomes
/// free when the last holder is taken back. The caller is the owner.
pub(crate) fn withdraw(word: &AtomicU64) -> bool {
    // Acquire: pairs with `release`.
    word.fetch_and(!OPEN, Ordering::AcqRel) & HOLDER_BITS == 0
}

/// True where nobody reads the slot and nobody can begin to, so that its owner may write.
pub(crate) fn is_free(word: &AtomicU64) -> bool {
    // Acquire: pairs with `release`.
    word.load(Ordering::Acquire) & (OPEN | HOLDER_BITS) == 0
}

/// Puts an identity, which is not 0, into a free entry of the holders' table. Its number is the
/// holder's. `None` where all are taken.
pub(crate) fn register(table: &[AtomicU64], identity: u64) -> Option<u32> {
    // One store takes the entry and says whose it is. Acquire: pairs with `unregister`.
    let free = |entry: &AtomicU64| {
        entry.compare_exchange(0, identity, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    table.iter().position(free).map(|at| at as u32)
}

/// Frees a holder's entry, after it was taken back from every slot.
pub(crate) fn unregister(entry: &AtomicU64, identity: u64) {
    // Release: pairs with `register`: the next holder of that number finds its bits cleared.
    let _ = entry.compare_exchange(identity, 0, Ordering::Release, Ordering::Relaxed);
}

/// Takes back all that the dead ones among the holders had open. True where a slot became free.
///
/// The caller is the owner, one call at a time: a second one that was late would take the bits of
/// whoever got the entry next. A dead process sets no more bits, so all are cleared when the entry is
/// freed.
pub(crate) fn reap(
    table: &[AtomicU64],
    slots: &[AtomicU64],
    is_dead: impl Fn(u64) -> bool,
) -> bool {
    let mut freed = false;
    for (holder, entry) in table.iter().enumerate() {
        let identity = entry.load(Ordering::Acquire);
        if identity != 0 && is_dead(identity) {
            for word in slots {
                freed |= release(word, holder as u32);
            }
            unregister(entry, identity);
        }
    }
    freed
}
