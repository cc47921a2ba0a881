//! The atomics of the claim protocol, named in one place: `tests/protocol_model.rs` compiles the
//! protocol's files with loom's in their stead.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
