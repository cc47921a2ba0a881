//! Waiting on a word of shared memory. The words are shared between processes, so the futexes are
//! not the process-private kind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Returns once `word` may have changed from `seen`, or after the timeout. May return early.
pub(super) fn wait(word: &AtomicU32, seen: u32, timeout: Option<Duration>) {
    // What does not fit is longer than anybody waits.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    // Every outcome (woken, changed, interrupted, timed out) means: look again.
    let _ = futex::wait(word, Flags::empty(), seen, timeout.as_ref());
}

/// Counts the word up and wakes everyone who waits on it.
///
/// SeqCst, as all that the waiters check before they sleep: either they see what was stored before
/// this call, or they see the new count and don't sleep.
pub(super) fn notify(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}
