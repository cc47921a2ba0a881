//! An explicit array of numbers that an order is made of, shared by everyone who reads the order.

use std::sync::Arc;

/// Numbers that are made once and read by all workers; a clone shares them.
#[derive(Clone, Debug)]
pub(super) struct Indices(Arc<[u64]>);

impl Indices {
    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl From<Vec<u64>> for Indices {
    fn from(numbers: Vec<u64>) -> Self {
        Self(numbers.into())
    }
}
