//! Worker threads of this process.

use std::io;
use std::sync::Arc;
use std::thread;

use super::fill::Job;
use super::running::Running;
use crate::shm::WorkerId;

/// Running threads; dropping it ends them. One that is still inside a sample then goes on in the
/// background, holding what it needs, and ends with that sample.
pub(crate) struct Threads {
    job: Arc<Job>,
    running: Arc<Running>,
}

impl Threads {
    pub(super) fn start(job: Job, count: WorkerId) -> io::Result<Self> {
        let threads = Self { job: Arc::new(job), running: Arc::default() };
        for worker in 0..count {
            let job = Arc::clone(&threads.job);
            let run = threads.running.begin();
            // If one can't start, dropping `threads` ends those that did.
            thread::Builder::new().name(format!("loader-{worker}")).spawn(move || {
                // Dropped in the opposite order: who waits for the end of the run finds all free.
                let _run = run;
                let job = job;
                job.work(worker);
            })?;
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.job.arena.close();
        let left = self.running.wait_for_end();
        if left > 0 {
            tracing::warn!(threads = left, "workers are still busy with a sample");
        }
    }
}
