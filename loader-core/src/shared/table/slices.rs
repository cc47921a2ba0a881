//! Rows in their order, whose columns lend the table's own memory to whoever makes tensors of them.

use std::fmt;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use memmap2::MmapMut;

use super::{ColumnError, SharedTable};
use crate::field::{DType, SharedField};

/// A map of the table's file that is private to this process: its pages are the shared ones until they are
/// written to, which makes a copy of that page.
struct Private {
    start: *mut u8,
    /// Never looked at again: parts of it belong to fields that write to them.
    _map: MmapMut,
}

// SAFETY: the pointer is into the map, which may be used and dropped from any thread. Who reads and writes
// where is for `LentField` to argue.
unsafe impl Send for Private {}
// SAFETY: as above.
unsafe impl Sync for Private {}

/// Runs of rows in the order of the table, made by [`SharedTable::slices`]: each with the chosen columns as
/// fields that are not copied.
///
/// The fields may be written to in place, which nobody else sees: they lie in a map of the file that is
/// private to this pass, and only a page that is written to takes memory, until the last field is dropped.
pub struct TableSlices {
    map: Arc<Private>,
    columns: Vec<Lent>,
    left: Range<usize>,
    rows: usize,
}

#[derive(Clone)]
struct Lent {
    name: String,
    start: usize,
    dtype: DType,
    /// Items of a list; `None` for a number.
    size: Option<usize>,
}

impl Lent {
    fn row_bytes(&self) -> usize {
        self.dtype.size() * self.size.unwrap_or(1)
    }
}

impl TableSlices {
    pub(super) fn new(
        table: &SharedTable,
        names: &[&str],
        of: Range<usize>,
        rows: usize,
    ) -> Result<Self, ColumnError> {
        if rows == 0 {
            return Err(ColumnError::NoRows);
        }
        let mut columns = Vec::with_capacity(names.len());
        let mut taken: Vec<Range<usize>> = Vec::with_capacity(names.len());
        for &name in names {
            let column = table.view(name)?;
            if of.start > of.end || of.end > column.len() {
                let (row, rows) = (of.end as u64, column.len() as u64);
                return Err(ColumnError::Row { column: name.to_owned(), row, rows });
            }
            let (range, dtype, size) = column.contiguous()?;
            // Also in a file that lies about where its columns are: each byte is lent once.
            let twice = |other: &Range<usize>| other.start < range.end && range.start < other.end;
            if taken.iter().any(twice) {
                let what = "it lies where another one of these does, or was asked for twice";
                return Err(ColumnError::Damaged {
                    column: name.to_owned(),
                    what: what.to_owned(),
                });
            }
            columns.push(Lent { name: name.to_owned(), start: range.start, dtype, size });
            taken.push(range);
        }
        let mut map = table.bytes().copy_on_write().map_err(|e| ColumnError::Damaged {
            column: names.join(", "),
            what: format!("the table can't be mapped once more: {e}"),
        })?;
        let map = Arc::new(Private { start: map.as_mut_ptr(), _map: map });
        Ok(Self { map, columns, left: of, rows })
    }
}

impl Iterator for TableSlices {
    type Item = TableSlice;

    fn next(&mut self) -> Option<TableSlice> {
        if self.left.is_empty() {
            return None;
        }
        let rows = self.left.start..self.left.end.min(self.left.start.saturating_add(self.rows));
        self.left.start = rows.end;
        let fields = self.columns.iter().map(|column| {
            let shape = [rows.len()].into_iter().chain(column.size).collect();
            let field = LentField {
                map: Arc::clone(&self.map),
                start: column.start + rows.start * column.row_bytes(),
                bytes: rows.len() * column.row_bytes(),
                dtype: column.dtype,
                shape,
            };
            (column.name.clone(), field)
        });
        Some(TableSlice { fields: fields.collect(), rows })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let slices = self.left.len().div_ceil(self.rows);
        (slices, Some(slices))
    }
}

impl ExactSizeIterator for TableSlices {}

impl fmt::Debug for TableSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns.iter().map(|column| &column.name);
        f.debug_struct("TableSlices")
            .field("columns", &columns.collect::<Vec<_>>())
            .field("left", &self.left)
            .field("rows", &self.rows)
            .finish()
    }
}

/// Consecutive rows of a table.
#[derive(Debug)]
pub struct TableSlice {
    rows: Range<usize>,
    fields: Vec<(String, LentField)>,
}

impl TableSlice {
    /// Which rows of the table they are.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Takes a column's part out of the slice, to be owned and sent on by itself.
    ///
    /// # Errors
    /// Where it is not among the chosen ones, or was taken before.
    pub fn take(&mut self, column: &str) -> Result<LentField, ColumnError> {
        match self.fields.iter().position(|(name, _)| name == column) {
            Some(at) => Ok(self.fields.remove(at).1),
            None => Err(ColumnError::Missing {
                column: column.to_owned(),
                columns: self.fields.iter().map(|(name, _)| name.clone()).collect(),
            }),
        }
    }

    /// All columns that were not taken, with their names.
    pub fn into_fields(self) -> impl ExactSizeIterator<Item = (String, LentField)> {
        self.fields.into_iter()
    }
}

/// A run of rows of one column in the table's memory: contiguous, row-major, aligned for its type.
///
/// It is what a tensor takes as its storage, as a [`FieldLease`](crate::FieldLease) is. It keeps the map,
/// so it may outlive the table, and be sent to other threads.
pub struct LentField {
    map: Arc<Private>,
    start: usize,
    bytes: usize,
    dtype: DType,
    shape: Vec<usize>,
}

impl LentField {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, rows first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where the elements begin. The address stays the same when the field is moved.
    pub fn as_ptr(&self) -> *const u8 {
        self.address()
    }

    /// The same, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address()
    }

    fn address(&self) -> *mut u8 {
        // SAFETY: in bounds of the map, as the column's range is and the rows are in the column.
        unsafe { self.map.start.add(self.start) }
    }
}

impl AsRef<[u8]> for LentField {
    /// The elements as bytes, in this machine's byte order.
    fn as_ref(&self) -> &[u8] {
        // SAFETY:
        // - In bounds: the layout was checked against the map's length, and the rows against the column.
        // - No writer: an iterator lends each row of a column once, columns don't overlap, and this
        //   field is borrowed. Nobody else has this map. That nobody writes to the file itself is what
        //   `SharedTable`'s documentation asks of users, as for all maps of it.
        // - Initialized: file pages are, and every byte is a valid `u8`.
        // - Alive: `map` keeps the map.
        unsafe { slice::from_raw_parts(self.address(), self.bytes) }
    }
}

impl SharedField for LentField {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl AsMut<[u8]> for LentField {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.address(), self.bytes) }
    }
}

impl fmt::Debug for LentField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentField")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
