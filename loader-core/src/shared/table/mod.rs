//! A table of columns in Arrow's layout, in one mapping that all processes share.

mod builder;
mod column;
mod error;
mod gather;
mod handle;
mod layout;
mod slices;
mod source;
mod spill;
mod write;

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Schema, SchemaRef};
use rayon::prelude::*;

pub use self::builder::{Progress, SharedTableBuilder};
pub use self::column::{Bits, Blobs, Column, Strings, Validity};
pub use self::error::{ColumnError, SharedTableError};
use self::handle::Stamp;
use self::layout::{Layout, Notes};
pub use self::slices::{LentField, TableSlice, TableSlices};
use crate::field::Element;
use crate::kept;
use crate::shm::SharedBytes;

/// Columns in Arrow's layout that any number of processes read where they lie: nobody copies them, and
/// attaching takes the same few microseconds whatever their size.
///
/// An Arrow IPC file (Feather version 2, `.arrow`) with one batch that is not compressed is mapped as it
/// is. Other Arrow files, CSV, and with the feature `parquet` Parquet files are converted once into such a
/// file, which is kept where [`TableCache`](crate::TableCache) says, and mapped from then on until the
/// source's size or time of change differ. See `docs/shared-table.md`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("houses.csv");
/// # std::fs::write(&path, "rooms,price,town\n3,250.5,Ulm\n5,410,Bonn\n")?;
/// # let builder = |path: &std::path::Path| loader_core::SharedTable::builder(path);
/// # let cache = loader_core::TableCache::Folder(folder.path().join("cache"));
/// let houses = builder(&path).cache(cache).open()?; // or SharedTable::open(&path)?
/// let prices: &[f64] = houses.column("price")?;
/// assert_eq!(prices, [250.5, 410.0]);
/// assert_eq!(houses.view("town")?.strings()?.get(1)?, Some("Bonn"));
/// # Ok(())
/// # }
/// ```
///
/// A clone shares the map. In the arguments of a process pool's task, and to a loader's worker processes,
/// a table travels as its open file. Anywhere else serde writes a handle of some hundred bytes: the file's
/// path, size and time of change, or the name of the segment of a
/// [`shareable`](Self::shareable) table.
///
/// # Trust
/// Attaching checks the file's metadata and where the columns lie; what a column holds is checked when it
/// is read. So a damaged file, or one that was made to do harm, gives errors or wrong numbers, never
/// undefined behaviour and never an allocation that it chose. A file must not be written to or cut off
/// while it is mapped: its readers would see the change, and a process that reads behind the new end is
/// killed by `SIGBUS`, as with any mapped file. Write aside and rename instead, as this crate does.
#[derive(Clone)]
pub struct SharedTable(Arc<Inner>);

struct Inner {
    bytes: SharedBytes,
    place: Place,
    /// Only these columns of the file.
    chosen: Option<Vec<u32>>,
    schema: SchemaRef,
    rows: usize,
    columns: Vec<layout::Column>,
    notes: Notes,
}

/// Where the mapped bytes are.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// This file, as it was then.
    File { path: PathBuf, stamp: Stamp },
    /// A segment of that name.
    Segment(String),
    /// Nowhere that another process could find.
    Memory,
}

impl SharedTable {
    /// Opens the table in a file, with the defaults of [`builder`](Self::builder).
    ///
    /// # Errors
    /// Where the file can't be read, is no table, or has a column of a type that tables don't have.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SharedTableError> {
        Self::builder(path).open()
    }

    /// Settings for opening a file.
    pub fn builder(path: impl AsRef<Path>) -> SharedTableBuilder {
        SharedTableBuilder::new(path.as_ref())
    }

    /// Makes a table of batches that have that schema, in memory that worker processes share. It has no
    /// name, and goes with its last holder. Takes twice its size of memory at most while it is made.
    ///
    /// # Errors
    /// Where a batch does not fit, a column's type is none that tables have, or there is no memory.
    pub fn from_batches(
        schema: &Schema,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<Self, SharedTableError> {
        builder::in_memory(schema, batches, |len, fill| {
            SharedBytes::in_memory("loader-table", len, fill)
        })
    }

    /// The same in a segment of `/dev/shm`, which processes that are not this one's children open by the
    /// handle that serde writes. Only this user can; the segment goes with the last clone in this process,
    /// and stays readable to those who have it open.
    ///
    /// # Errors
    /// Those of [`from_batches`](Self::from_batches).
    pub fn shareable(
        schema: &Schema,
        batches: impl IntoIterator<Item = RecordBatch>,
    ) -> Result<Self, SharedTableError> {
        builder::in_memory(schema, batches, |len, fill| SharedBytes::named(len, fill))
    }

    /// Maps the table in a file, which has to be of the form that is mapped.
    fn map(file: File, path: &Path, chosen: Option<Vec<u32>>) -> Result<Self, MapError> {
        let io = |source| {
            let path = path.to_owned();
            MapError::Other(SharedTableError::Io { path, what: "mapping it", source })
        };
        let stamp = Stamp::of(&file).map_err(io)?;
        let bytes = SharedBytes::of_file(file).map_err(io)?;
        let place = Place::File { path: path.to_owned(), stamp };
        Self::over(bytes, place, chosen)
    }

    fn over(bytes: SharedBytes, place: Place, chosen: Option<Vec<u32>>) -> Result<Self, MapError> {
        let Layout { mut schema, rows, mut columns, notes } =
            Layout::parse(bytes.bytes()).map_err(MapError::Fault)?;
        if let Some(chosen) = &chosen {
            let at = |n: &u32| *n as usize;
            let Ok(projected) = schema.project(&chosen.iter().map(at).collect::<Vec<_>>()) else {
                let what = "it has fewer columns than were chosen of it".to_owned();
                return Err(MapError::Fault(layout::Fault::Damaged(what)));
            };
            columns = chosen.iter().map(|n| columns[at(n)].clone()).collect();
            schema = projected;
        }
        let schema = Arc::new(schema);
        Ok(Self(Arc::new(Inner { bytes, place, chosen, schema, rows, columns, notes })))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.0.rows
    }

    /// True where there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names and types of the columns, in their order.
    pub fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    /// The file that is mapped: the one that was opened, or the one that it was converted to. `None` for a
    /// table in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.0.place {
            Place::File { path, .. } => Some(path),
            Place::Segment(_) | Place::Memory => None,
        }
    }

    /// The path, or a description in brackets where there is none.
    pub(crate) fn shown(&self) -> PathBuf {
        self.path().map_or_else(|| PathBuf::from("(in memory)"), Path::to_owned)
    }

    /// The numbers of a column in which none is missing, in the table's memory. For how dates, times and
    /// decimals are stored see [`Column::values`]; for everything else [`view`](Self::view).
    ///
    /// # Errors
    /// Where there is no such column, it is not stored as `T`s, or it has nulls.
    pub fn column<T: Element>(&self, name: &str) -> Result<&[T], ColumnError> {
        self.view(name)?.non_null()
    }

    /// The same by the column's number.
    ///
    /// # Errors
    /// Those of [`column`](Self::column).
    pub fn column_by_index<T: Element>(&self, index: usize) -> Result<&[T], ColumnError> {
        self.view_at(index)?.non_null()
    }

    /// A column of any type. Where two have the name, the first one.
    ///
    /// # Errors
    /// Where there is none of that name.
    pub fn view(&self, name: &str) -> Result<Column<'_>, ColumnError> {
        self.view_at(self.index_of(name)?)
    }

    /// The same by the column's number.
    ///
    /// # Errors
    /// Where there is none.
    pub fn view_at(&self, index: usize) -> Result<Column<'_>, ColumnError> {
        let Inner { bytes, schema, columns, .. } = &*self.0;
        match schema.fields().get(index).zip(columns.get(index)) {
            Some((field, column)) => Ok(Column::new(bytes, field, column)),
            None => Err(ColumnError::OutOfRange { index, columns: columns.len() }),
        }
    }

    /// All columns in their order.
    pub fn views(&self) -> impl ExactSizeIterator<Item = Column<'_>> {
        let Inner { bytes, schema, columns, .. } = &*self.0;
        schema.fields().iter().zip(columns).map(|(field, column)| Column::new(bytes, field, column))
    }

    pub(crate) fn index_of(&self, name: &str) -> Result<usize, ColumnError> {
        let fields = self.0.schema.fields();
        fields.iter().position(|field| field.name() == name).ok_or_else(|| ColumnError::Missing {
            column: name.to_owned(),
            columns: fields.iter().map(|field| field.name().clone()).collect(),
        })
    }

    /// A column as an array of Arrow over the table's memory; see [`Column::arrow`].
    ///
    /// # Errors
    /// Where there is no such column, or it is damaged.
    pub fn arrow(&self, name: &str) -> Result<ArrayRef, ColumnError> {
        self.view(name)?.arrow()
    }

    /// All columns as a batch of Arrow over the table's memory. Checks all of it, so it is best kept.
    ///
    /// # Errors
    /// Where a column is damaged.
    pub fn record_batch(&self) -> Result<RecordBatch, ColumnError> {
        let columns = self.views().map(|column| column.arrow()).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.len()));
        let schema = Arc::clone(self.schema());
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(|error| {
            ColumnError::Damaged { column: "(all)".to_owned(), what: error.to_string() }
        })
    }

    /// Checks everything: offsets, UTF-8, keys of dictionaries, and the numbers of nulls. Reads the whole
    /// table, its columns in parallel.
    ///
    /// # Errors
    /// The first damaged column.
    pub fn verify(&self) -> Result<(), ColumnError> {
        self.views().collect::<Vec<_>>().par_iter().try_for_each(Column::verify)
    }

    /// Writes the table to a file that is mapped when it is opened: aside, synced, and renamed into place.
    /// Columns that were left out when this one was opened are written too.
    ///
    /// # Errors
    /// Where that fails; the file is then as it was before.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SharedTableError> {
        let path = path.as_ref();
        kept::replace(path, |file| file.write_all(self.0.bytes.bytes())).map(drop).map_err(
            |source| SharedTableError::Io { path: path.to_owned(), what: "writing it", source },
        )
    }

    /// The rows in their order, as slices of so many that lend the table's own memory; see
    /// [`TableSlices`]. The last slice may be shorter.
    ///
    /// # Errors
    /// Where there is no such column, one is asked for twice, it has nulls, it is neither of numbers nor of
    /// lists of numbers, or `rows` is 0.
    pub fn slices(&self, columns: &[&str], rows: usize) -> Result<TableSlices, ColumnError> {
        TableSlices::new(self, columns, 0..self.len(), rows)
    }

    /// The same for some of the rows.
    ///
    /// # Errors
    /// Those of [`slices`](Self::slices), and where there are no such rows.
    pub fn slices_of(
        &self,
        columns: &[&str],
        of: Range<usize>,
        rows: usize,
    ) -> Result<TableSlices, ColumnError> {
        TableSlices::new(self, columns, of, rows)
    }

    pub(crate) fn bytes(&self) -> &SharedBytes {
        &self.0.bytes
    }
}

impl AsFd for SharedTable {
    /// The open file that is mapped.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bytes.as_fd()
    }
}

impl fmt::Debug for SharedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable")
            .field("path", &self.shown())
            .field("rows", &self.len())
            .field("columns", &self.0.columns.len())
            .finish_non_exhaustive()
    }
}

/// Why a file can't be mapped as a table.
#[derive(Debug)]
enum MapError {
    Fault(layout::Fault),
    Other(SharedTableError),
}

impl MapError {
    fn into_error(self, path: &Path) -> SharedTableError {
        match self {
            Self::Fault(fault) => fault.into_error(path),
            Self::Other(error) => error,
        }
    }
}

/// True where a file is there and holds anything.
fn holds_something(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.len() > 0)
}
