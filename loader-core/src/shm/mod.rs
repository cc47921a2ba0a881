//! Shared memory: the segment that batches lie in, and the protocol by which workers fill it.
//!
//! All of the crate's `unsafe` but the path table's byte access is here.

mod arena;
mod cell;
mod futex;
mod geometry;
mod segment;

pub(crate) use arena::{Arena, Claim, Descriptor, Failure, SlotLease};
pub(crate) use cell::WorkerId;
pub use geometry::GeometryError;
pub(crate) use geometry::{Geometry, MAX_SLOTS};
pub use segment::MemoryError;
pub(crate) use segment::available_memory;
