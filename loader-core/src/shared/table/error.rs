//! What can go wrong with a table: opening or making one, and reading a column.

use std::io;
use std::path::PathBuf;

use crate::field::DType;
use crate::shm::MemoryError;

/// Why a table could not be opened or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedTableError {
    /// A file could not be opened, read, mapped or written.
    #[error("table {path:?}: {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The content is of no kind that tables are made from.
    #[error("{path:?} is no table: {what}")]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it looks like, and what to do.
        what: String,
    },
    /// The content contradicts itself, or ends too early.
    #[error("table {path:?} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A column of a type that has no place in a table.
    #[error(
        "column {column:?} of {path:?} is a {data_type}, and tables hold numbers, booleans, dates, \
         times, strings, bytes, dictionaries of these, and lists of numbers of a fixed size: convert it \
         where the file is made (a struct into a column for each of its fields, a list into one of a \
         fixed size), or leave it out with SharedTableBuilder::columns"
    )]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its type, as Arrow names it.
        data_type: String,
    },
    /// There is no column of that name.
    #[error("there is no column {column:?} in {path:?}, which has {columns:?}")]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        column: String,
        /// The names there are.
        columns: Vec<String>,
    },
    /// A value of a CSV file is not of its column's type.
    #[error(
        "line {line} of {path:?}: column {column:?} is {data_type}, and there stands {value:?}. The type \
         was {why}: look at more rows with SharedTableBuilder::infer_rows, name the type with \
         SharedTableBuilder::column_type, or name what stands for a missing value with \
         SharedTableBuilder::null_values"
    )]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where no value has line breaks of its own.
        line: u64,
        /// The column.
        column: String,
        /// The type that it has.
        data_type: String,
        /// What stands there.
        value: String,
        /// Where the type comes from.
        why: &'static str,
    },
    /// The source changed while it was read, or since the handle was made.
    #[error("{path:?} changed {when}: open the table again")]
    Changed {
        /// The file.
        path: PathBuf,
        /// Since when.
        when: &'static str,
    },
    /// The segment that a handle names is gone, or of no use.
    #[error(
        "the segment {name:?} of a table can't be opened: {source}; it goes with the table that made it"
    )]
    Segment {
        /// Its name in `/dev/shm`.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// There is no memory for it.
    #[error("memory for a table: {0}")]
    Memory(#[from] MemoryError),
    /// Batches that a table should be made of don't fit together.
    #[error("batch {batch} of the table: {what}")]
    Batch {
        /// Its number, from 0.
        batch: u64,
        /// What is wrong with it.
        what: String,
    },
}

/// Why a column can't be read as what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The table has no column of that name.
    #[error("no column {column:?}, there are {columns:?}")]
    Missing {
        /// The name asked for.
        column: String,
        /// The names there are.
        columns: Vec<String>,
    },
    /// The table has no column of that number.
    #[error("column {index} of a table of {columns} columns")]
    OutOfRange {
        /// The number asked for.
        index: usize,
        /// How many there are.
        columns: usize,
    },
    /// It is of another type.
    #[error("column {column:?} is of type {found}, and can't be read as {asked}")]
    Type {
        /// The column.
        column: String,
        /// What was asked for.
        asked: String,
        /// Its type, as Arrow names it.
        found: String,
    },
    /// Values are missing, and nothing was said about them.
    #[error(
        "column {column:?} has {nulls} nulls: read values and validity of its view, or fill the nulls"
    )]
    Nulls {
        /// The column.
        column: String,
        /// How many.
        nulls: u64,
    },
    /// There is no such row.
    #[error("row {row} of column {column:?}, which has {rows}")]
    Row {
        /// The column.
        column: String,
        /// The row asked for.
        row: u64,
        /// How many there are.
        rows: u64,
    },
    /// Slices were asked for that would never come to the end.
    #[error("slices of no rows: ask for one row at least")]
    NoRows,
    /// The bytes contradict each other.
    #[error("column {column:?} is damaged: {what}")]
    Damaged {
        /// The column.
        column: String,
        /// What is wrong.
        what: String,
    },
}

impl ColumnError {
    pub(crate) fn dtype(column: &str, asked: DType, found: &impl ToString) -> Self {
        let asked = format!("{asked:?}");
        Self::Type { column: column.to_owned(), asked, found: found.to_string() }
    }
}
