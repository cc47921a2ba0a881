//! The path table: which samples exist, in which order, in one file that every process maps.

mod build;
mod cache;
mod fingerprint;
mod format;
mod report;
mod scan;
mod table;
#[cfg(test)]
mod tests;

pub use cache::TableOrigin;
pub use report::{LeftOut, Reason, ScanReport};
pub use table::{Entry, PathTable, TableError};

pub(crate) use build::{Content, Dir, table as encode_table};
pub(crate) use cache::{Built, Source, open as open_kept};
pub(crate) use format::Section;
pub(crate) use scan::{Accept, ScanOptions, is_fresh, open_root, scan};
