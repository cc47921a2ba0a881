//! How long a loop waits for its data.

use std::time::{Duration, Instant};

/// An iterator that times how long its `next` takes.
pub(crate) struct Waiting<I> {
    inner: I,
    start: Instant,
    waited: Duration,
    first: Option<Duration>,
}

impl<I> Waiting<I> {
    pub(crate) fn new(inner: I) -> Self {
        Self { inner, start: Instant::now(), waited: Duration::ZERO, first: None }
    }

    /// Time since it was made.
    pub(crate) fn since_start(&self) -> Duration {
        self.start.elapsed()
    }

    /// Time spent in all calls of `next`.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Time spent in the first one.
    pub(crate) fn first(&self) -> Duration {
        self.first.unwrap_or_default()
    }
}

impl<I: Iterator> Iterator for Waiting<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let called = Instant::now();
        let item = self.inner.next();
        let wait = called.elapsed();
        self.first.get_or_insert(wait);
        self.waited += wait;
        item
    }
}
