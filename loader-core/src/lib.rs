//! Image folders to training batches in shared memory.

mod dataset;
mod field;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod image;
mod index;
mod kept;
mod limits;
mod loader;
mod mix;
mod rng;
mod sampler;
mod shared;
mod shm;
mod stats;
mod told;
mod worker;

pub use dataset::arrays::{ArrayDataset, ArrayDatasetError};
pub use dataset::image_folder::{
    ClassOrder, EmptyClasses, FolderError, ImageFolder, ImageFolderBuilder, Unreadable,
};
pub use dataset::imagenet::{ImageNet, ImageNetBuilder, ImageNetError, Split};
pub use dataset::images::{FileScratch, ImageDataset};
#[cfg(feature = "table")]
pub use dataset::statistics::{Moments, Statistics, StatisticsError};
#[cfg(feature = "table")]
pub use dataset::table::{TableDataset, TableDatasetBuilder, TableDatasetError};
pub use dataset::{
    Dataset, Fingerprint, Location, Recipe, RecipeError, Sample, SampleError, SampleWriter, Stage,
};
pub use field::{DType, Element, Field, SharedField};
pub use image::{
    DECODER, DecodeOptions, ExifOrientation, Gray16, ImageScratch, Layout, Pipeline, Pixels,
    Scaling, Transform, TransformError, ops, register_transform,
};
pub use index::{Entry, LeftOut, PathTable, Reason, ScanReport, TableError, TableOrigin};
pub use kept::TableCache;
pub use loader::{
    Batch, BuildError, DataLoader, DataLoaderBuilder, Difference, Epoch, ErrorPolicy,
    FailureReport, FieldError, FieldLease, LoadError, LoaderState, OpenBatch, OpenField, ReadAhead,
    ResumeError, SampleFailure, ShareError, SharedBatch, Stall, StateError,
};
pub use mix::{CutMix, MixError, MixUp};
pub use rng::Draws;
pub use sampler::{EpochOrder, Order, OrderError, Pick, Sampler, Shard, ShardError, ShardMode};
pub use shared::array::{ArrayBuilder, ArrayError, ArrayHandle, SharedArray};
pub use shared::npy::NpyError;
#[cfg(feature = "table")]
pub use shared::table::{
    Bits, Blobs, Column, ColumnError, LentField, Progress, SharedTable, SharedTableBuilder,
    SharedTableError, Strings, TableSlice, TableSlices, Validity,
};
pub use shm::{GeometryError, MemoryError, OpenError, SweptSegment, sweep_segments};
pub use stats::{
    Bottleneck, MemoryReport, MemoryUse, ProcessMemory, ProcessRole, StageStats, Stats, Verdict,
};
pub use worker::{
    InitError, ParseWorkersError, PoolError, PoolTask, ProcessPool, ProcessPoolBuilder, Registry,
    Results, SharedTask, StartWorkersError, Task, TaskCause, TaskError, TaskFor, WorkerError,
    Workers, init, init_with,
};

/// The crates whose arrays and types [`SharedTable`] takes and gives, in their right version.
#[cfg(feature = "table")]
pub mod arrow {
    pub use arrow_array as array;
    pub use arrow_schema as schema;
}
