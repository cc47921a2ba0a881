//! Worker threads of this process.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::fill::Job;
use crate::shm::WorkerId;

/// How long dropping a loader waits for its threads. One that is still inside a sample then goes on
/// in the background, holding what it needs, and ends with that sample.
const PATIENCE: Duration = Duration::from_millis(900);

/// Running threads; dropping it ends them.
pub(crate) struct Threads {
    job: Arc<Job>,
    running: Arc<Running>,
}

#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    one_less: Condvar,
}

/// Counts a thread out, however it ends.
struct Ended(Arc<Running>);

impl Drop for Ended {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.one_less.notify_all();
    }
}

impl Threads {
    pub(crate) fn start(job: Job, count: WorkerId) -> io::Result<Self> {
        let threads = Self { job: Arc::new(job), running: Arc::default() };
        for worker in 0..count {
            let job = Arc::clone(&threads.job);
            *threads.running.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            let ended = Ended(Arc::clone(&threads.running));
            // If one can't start, dropping `threads` ends those that did.
            thread::Builder::new().name(format!("loader-{worker}")).spawn(move || {
                let _ended = ended;
                job.work(worker);
            })?;
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.job.arena.close();
        let until = Instant::now() + PATIENCE;
        let mut count = self.running.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(threads = *count, "workers are still busy with a sample");
                return;
            }
            let waited = self.running.one_less.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
