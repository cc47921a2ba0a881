//! Counts threads that run, so that their owner can wait for their end, and not for ever.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long dropping a loader waits for its workers.
const PATIENCE: Duration = Duration::from_millis(900);

#[derive(Default)]
pub(super) struct Running {
    count: Mutex<usize>,
    one_less: Condvar,
}

/// One that runs; counts it out when dropped, however it ends.
pub(super) struct Run(Arc<Running>);

impl Running {
    pub(super) fn begin(self: &Arc<Self>) -> Run {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Run(Arc::clone(self))
    }

    /// Waits until all have ended, or less than a second. Returns how many are left.
    pub(super) fn wait_for_end(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.one_less.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *count
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.one_less.notify_all();
    }
}
