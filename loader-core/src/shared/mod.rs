//! What every worker needs and nobody copies: arrays and tables in memory that processes share, and
//! how they travel.

pub(crate) mod array;
pub(crate) mod npy;
pub(crate) mod parcel;
#[cfg(feature = "table")]
pub(crate) mod table;
