//! Image folders to training batches in shared memory.

mod dataset;
mod field;
mod rng;

pub use dataset::{Dataset, Fingerprint, Location, Sample, SampleError, SampleWriter, Stage};
pub use field::{DType, Element, Field};
pub use rng::Draws;
