//! How a table travels: as its open file inside a parcel, as a handle anywhere else.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::SharedTableError;
use super::{Place, SharedTable};
use crate::shared::parcel::{enclose, enclosed};
use crate::shm::SharedBytes;

/// What tells that a file is not what it was: size, and time of change in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) size: u64,
    pub(super) mtime: (i64, i64),
}

impl Stamp {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()) })
    }
}

/// What serde writes of a table.
#[derive(Debug, Serialize, Deserialize)]
struct Handle {
    at: At,
    /// Only these columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    columns: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum At {
    /// The number of its memory in the parcel, and the file that it was opened as.
    Enclosed(u32, Option<(OsString, Stamp)>),
    File(OsString, Stamp),
    Segment(String),
}

impl SharedTable {
    fn handle(&self) -> Result<Handle, &'static str> {
        let file = match &self.0.place {
            Place::File { path, stamp } => Some((path.clone().into_os_string(), *stamp)),
            Place::Segment(_) | Place::Memory => None,
        };
        let at = match (enclose(&self.0.bytes), file, &self.0.place) {
            (Some(number), file, _) => At::Enclosed(number, file),
            (None, Some((path, stamp)), _) => At::File(path, stamp),
            (None, None, Place::Segment(name)) => At::Segment(name.clone()),
            (None, None, _) => {
                return Err("the table lives in memory without a name, which only this program's \
                            worker processes can be given: make it with SharedTable::shareable, or save \
                            it to a file and open that");
            }
        };
        Ok(Handle { at, columns: self.0.chosen.clone() })
    }

    /// Opens what a handle names. Takes some tens of microseconds, whatever the table's size.
    fn of_handle(handle: Handle) -> Result<Self, SharedTableError> {
        let memory = PathBuf::from("(in memory)");
        match handle.at {
            At::Enclosed(number, file) => {
                let bytes = enclosed(number).ok_or_else(|| SharedTableError::Damaged {
                    path: memory.clone(),
                    what: format!("the memory of table {number} did not come with it"),
                })?;
                let (place, path) = match file {
                    Some((path, stamp)) => {
                        (Place::File { path: path.clone().into(), stamp }, path.into())
                    }
                    None => (Place::Memory, memory),
                };
                Self::over(bytes, place, handle.columns).map_err(|error| error.into_error(&path))
            }
            At::File(path, stamp) => {
                let path = PathBuf::from(path);
                let io = |source| SharedTableError::Io {
                    path: path.clone(),
                    what: "opening a table by its handle",
                    source,
                };
                let file = File::open(&path).map_err(io)?;
                if Stamp::of(&file).map_err(io)? != stamp {
                    let when = "since the handle of its table was made";
                    return Err(SharedTableError::Changed { path, when });
                }
                Self::map(file, &path, handle.columns).map_err(|error| error.into_error(&path))
            }
            At::Segment(name) => {
                let bytes = SharedBytes::open_named(&name)
                    .map_err(|source| SharedTableError::Segment { name: name.clone(), source })?;
                Self::over(bytes, Place::Segment(name), handle.columns)
                    .map_err(|error| error.into_error(&memory))
            }
        }
    }

    /// The table in an open file that came from another process, which opened it by that path.
    pub(crate) fn of_file(
        file: File,
        path: PathBuf,
        columns: Option<Vec<u32>>,
    ) -> Result<Self, SharedTableError> {
        Self::map(file, &path, columns).map_err(|error| error.into_error(&path))
    }

    /// The columns that were chosen of the file, where not all are.
    pub(crate) fn chosen(&self) -> Option<Vec<u32>> {
        self.0.chosen.clone()
    }
}

impl Serialize for SharedTable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.handle().map_err(S::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SharedTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::of_handle(Handle::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch};

    use super::*;
    use crate::shared::parcel::{Parcel, pack, unpack};

    fn table() -> SharedTable {
        let column = |factor: i64| {
            Arc::new(Int64Array::from_iter_values((0..100).map(|row| row * factor))) as ArrayRef
        };
        let batch = RecordBatch::try_from_iter([("a", column(1)), ("b", column(2))]).unwrap();
        SharedTable::from_batches(&batch.schema(), [batch]).unwrap()
    }

    fn files(parcel: &Parcel) -> Vec<OwnedFd> {
        parcel.held.iter().map(|held| held.as_fd().try_clone_to_owned().unwrap()).collect()
    }

    #[test]
    fn in_a_parcel_a_table_is_its_open_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.arrow");
        table().save(&path).unwrap();
        let in_file = SharedTable::builder(&path).columns(["b"]).open().unwrap();
        let parcel = pack(&(table(), &in_file, &in_file)).unwrap();
        assert!(parcel.held.len() == 2 && parcel.bytes.len() < 400);
        // Also where the file's name is gone meanwhile.
        std::fs::remove_file(&path).unwrap();
        let (memory, file, again): (SharedTable, SharedTable, SharedTable) =
            unpack(&parcel.bytes, files(&parcel)).unwrap();
        assert_eq!(memory.column::<i64>("b").unwrap()[7], 14);
        assert_eq!((file.path(), file.schema().fields().len()), (Some(&*path), 1));
        let address = |table: &SharedTable| table.column::<i64>("b").unwrap().as_ptr();
        assert_eq!(address(&file), address(&again));
    }

    #[test]
    fn a_parcel_that_came_without_its_memory_is_refused() {
        let parcel = pack(&table()).unwrap();
        let refused = unpack::<SharedTable>(&parcel.bytes, Vec::new()).unwrap_err();
        assert!(refused.0.contains("did not come with it"), "{}", refused.0);
    }
}
