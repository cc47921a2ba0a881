//! Shared memory: the segment that batches lie in, and the protocol by which workers fill it.

mod arena;
mod board;
mod bytes;
mod cell;
mod claim;
mod desk;
mod failure;
mod futex;
mod geometry;
mod lease;
mod named;
mod place;
mod process;
mod recorder;
mod sealed;
mod segment;
mod share;
mod sync;
mod tally;

#[cfg(test)]
pub(crate) use arena::Lost;
pub(crate) use arena::{Arena, Descriptor};
pub(crate) use bytes::{FileId, SharedBytes};
pub(crate) use cell::WorkerId;
pub(crate) use claim::Claim;
pub(crate) use desk::{Desk, nanos, now};
pub(crate) use failure::Failure;
pub use geometry::GeometryError;
pub(crate) use geometry::{Geometry, MAX_SLOTS, MAX_WORKERS};
pub(crate) use lease::{Filled, SlotLease};
pub use named::{OpenError, SweptSegment, sweep_segments};
pub(crate) use named::{Reference, Shares};
pub(crate) use place::{MAX_INDEX, Place};
pub(crate) use recorder::{MAX_RECORDS, Record, Recorder};
pub(crate) use sealed::{map_sealed, sealed_file};
pub use segment::MemoryError;
pub(crate) use segment::available_memory;
#[cfg(test)]
pub(crate) use tally::STEPS;
pub(crate) use tally::{Laps, Step, Tally};

#[cfg(test)]
mod tests;
