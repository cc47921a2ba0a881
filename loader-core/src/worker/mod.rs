//! Workers: whoever claims pieces of batches and makes their samples. Every execution model runs
//! the same loop over the same arena.

mod fill;
mod threads;

use std::num::NonZeroUsize;

pub(crate) use fill::{Job, erase};
pub(crate) use threads::Threads;

/// Who makes the samples.
///
/// The default is one thread for each CPU that this process may use: its affinity mask and the
/// quota of its control group count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    threads: usize,
}

impl Workers {
    /// That many threads of this process.
    pub fn threads(threads: usize) -> Self {
        Self { threads }
    }

    pub(crate) fn count(self) -> usize {
        self.threads
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::threads(std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }
}
