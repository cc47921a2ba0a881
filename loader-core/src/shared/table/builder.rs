//! Opening a file as a table, converting it first where it can't be mapped as it is.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;

use super::error::SharedTableError;
use super::gather::{Gather, GatherError, Gathered};
use super::handle::Stamp;
use super::layout::{Fault, MAGIC};
use super::source::{Kind, ReadOptions, Source, open, unreadable};
use super::write::Plan;
use super::{MapError, Place, SharedTable, holds_something};
use crate::dataset::Fingerprint;
use crate::kept::{self, TableCache};
use crate::shm::{MemoryError, SharedBytes};

/// The note in a converted table's footer that says what it was made from.
const NOTE: &str = "loader_core.source";
/// Of what is converted how. A higher one has all kept tables made again.
const VERSION: u32 = 1;

/// How far a conversion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Rows so far.
    pub rows: u64,
    /// Bytes of the source that were read so far. Estimated for Parquet.
    pub bytes: u64,
    /// Bytes of the source.
    pub of: u64,
}

/// Settings for opening a file as a [`SharedTable`].
#[must_use]
pub struct SharedTableBuilder {
    path: PathBuf,
    cache: TableCache,
    rebuild: bool,
    options: ReadOptions,
    progress: Option<Box<dyn FnMut(Progress) + Send>>,
}

/// What a converted table is of.
#[derive(Serialize)]
struct Note {
    version: u32,
    size: u64,
    mtime: (i64, i64),
    options: String,
}

impl SharedTableBuilder {
    pub(super) fn new(path: &Path) -> Self {
        let (cache, options) = Default::default();
        Self { path: path.to_owned(), cache, rebuild: false, options, progress: None }
    }

    /// Where a table that had to be converted is kept. Default [`TableCache::User`]. With
    /// [`TableCache::Off`] it lives in memory, and each opening converts it again.
    pub fn cache(mut self, cache: TableCache) -> Self {
        self.cache = cache;
        self
    }

    /// Whether to convert again what was converted before. Default false: it is where the source's size or
    /// time of change is another, or the settings are.
    pub fn rebuild(mut self, rebuild: bool) -> Self {
        self.rebuild = rebuild;
        self
    }

    /// Only these columns, in this order. Others are not even looked at. Default: all.
    pub fn columns(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.columns = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Is told how far a conversion has come, after each piece of it.
    pub fn progress(mut self, progress: impl FnMut(Progress) + Send + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Of CSV: what stands between two values. Default: a comma, or a tab where the file's name ends in
    /// `.tsv`.
    pub fn delimiter(mut self, delimiter: u8) -> Self {
        self.options.delimiter = Some(delimiter);
        self
    }

    /// Of CSV: whether the first line names the columns. Default true. Without, they are named `column_1`,
    /// `column_2` and so on.
    pub fn has_header(mut self, has_header: bool) -> Self {
        self.options.has_header = has_header;
        self
    }

    /// Of CSV: from how many rows the types of the columns are told. Default 10,000. A value further down
    /// that is not of that type is an error, which names the line. `usize::MAX` reads the whole file twice.
    ///
    /// A column is of booleans (`true`, `false`), `Int64`, `Float64`, dates (`2024-01-31`), timestamps
    /// (`2024-01-31T12:00:00`), or of strings where it is none of these.
    pub fn infer_rows(mut self, rows: usize) -> Self {
        self.options.infer_rows = rows;
        self
    }

    /// Of CSV: the type of a column, whatever its values look like.
    pub fn column_type(mut self, column: impl Into<String>, data_type: DataType) -> Self {
        self.options.column_types.insert(column.into(), data_type);
        self
    }

    /// Of CSV: what stands for a missing value, beside nothing at all. Default: nothing else. `NaN` is a
    /// number and no missing value.
    pub fn null_values(mut self, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.options.null_values = values.into_iter().map(Into::into).collect();
        self
    }

    /// Opens the table. A file that can be mapped as it is, or that was converted before, takes some tens
    /// of microseconds. Others are converted, while other processes that open it wait: with little memory,
    /// but with room on the disk for the table twice.
    ///
    /// # Errors
    /// Where the file can't be read, is no table, is damaged, has columns of types that tables don't have,
    /// or the converted table can't be written; what was there before is then left as it was.
    pub fn open(mut self) -> Result<SharedTable, SharedTableError> {
        let path = std::path::absolute(&self.path).map_err(|e| unreadable(&self.path, e))?;
        // Looked at first: opening a pipe would wait for a writer.
        if !fs::metadata(&path).map_err(|e| unreadable(&path, e))?.is_file() {
            return Err(unreadable(&path, io::Error::other("not a regular file")));
        }
        let file = File::open(&path).map_err(|e| unreadable(&path, e))?;
        let kind = Kind::of(&file, &path)?;
        if kind == Kind::ArrowFile {
            let again = file.try_clone().map_err(|e| unreadable(&path, e))?;
            match SharedTable::map(again, &path, None) {
                Ok(table) => return self.choose(table),
                Err(MapError::Fault(Fault::Form(why))) => {
                    tracing::info!(file = %path.display(), why, "the table has to be converted");
                }
                // It may not be among those that are asked for.
                Err(MapError::Fault(Fault::Type { .. })) if self.options.columns.is_some() => {}
                Err(error) => return Err(error.into_error(&path)),
            }
        }
        let stamp = Stamp::of(&file).map_err(|e| unreadable(&path, e))?;
        // Types and names only, which are all text.
        let options = serde_json::to_vec(&self.options).unwrap_or_default();
        let file_of = self.cache.file(&path, &options, "arrow", |name| std::env::var_os(name));
        let Some(kept) = file_of else {
            let spill = kept::unnamed(&std::env::temp_dir().join("table"));
            let spill = spill.or_else(|_| memory_file()).map_err(|source| {
                SharedTableError::Memory(MemoryError::System { needed: 0, source })
            })?;
            let gathered = self.gather(kind, file, stamp, &path, spill)?;
            return into_memory(&gathered, |len, fill| {
                SharedBytes::in_memory("loader-table", len, fill)
            });
        };
        let note = Note {
            version: VERSION,
            size: stamp.size,
            mtime: stamp.mtime,
            options: Fingerprint::of(&options).to_string(),
        };
        let note = serde_json::to_string(&note).unwrap_or_default();
        let exact = matches!(self.cache, TableCache::File(_));
        let attach = || attach(&kept, &note, exact);
        if self.rebuild {
            // Refuses to replace what is somebody else's.
            attach()?;
        }
        kept::attach_or_make(&kept, self.rebuild, attach, |no_place| {
            let io = |source| SharedTableError::Io {
                path: kept.clone(),
                what: "keeping the converted table there (name another place with \
                       SharedTableBuilder::cache or LOADER_CACHE_DIR, or keep it in memory with \
                       TableCache::Off)",
                source,
            };
            if let Some(error) = no_place {
                return Err(io(error));
            }
            let spill = kept::unnamed(&kept).map_err(io)?;
            let gathered = self.gather(kind, file, stamp, &path, spill).map_err(|e| match e {
                // Of the spill, which lies beside the table.
                SharedTableError::Memory(MemoryError::System { source, .. }) => io(source),
                other => other,
            })?;
            let plan = Plan::new(&gathered, &[(NOTE, note.clone())]);
            let written = kept::replace(&kept, |file| {
                plan.write(&mut BufWriter::with_capacity(1 << 20, file))
            });
            SharedTable::map(written.map_err(io)?, &kept, None).map_err(|e| e.into_error(&kept))
        })
    }

    /// The chosen columns of a table that is mapped as it is.
    fn choose(self, table: SharedTable) -> Result<SharedTable, SharedTableError> {
        let Some(names) = self.options.columns else { return Ok(table) };
        let number = |name: &String| {
            let found = table.index_of(name);
            found.map(|at| at as u32).map_err(|_| SharedTableError::NoColumn {
                path: table.shown(),
                column: name.clone(),
                columns: table.views().map(|column| column.name().to_owned()).collect(),
            })
        };
        let chosen = names.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        let (bytes, place) = (table.0.bytes.clone(), table.0.place.clone());
        let path = table.shown();
        SharedTable::over(bytes, place, Some(chosen)).map_err(|error| error.into_error(&path))
    }

    /// Reads all rows into the spill.
    fn gather(
        &mut self,
        kind: Kind,
        file: File,
        stamp: Stamp,
        path: &Path,
        spill: File,
    ) -> Result<Gathered, SharedTableError> {
        let again = file.try_clone().map_err(|e| unreadable(path, e))?;
        let source = guarded(path, || open(kind, file, path, &self.options))??;
        let Source { schema, mut batches, read, of } = source;
        let mut gather = Gather::new(schema, spill).map_err(|(column, data_type)| {
            SharedTableError::ColumnType { path: path.to_owned(), column, data_type }
        })?;
        while let Some(batch) = guarded(path, || batches.next())? {
            gather.push(&batch?).map_err(|error| match error {
                GatherError::Io(source) => {
                    SharedTableError::Memory(MemoryError::System { needed: 0, source })
                }
                GatherError::Batch(what) => {
                    SharedTableError::Damaged { path: path.to_owned(), what }
                }
            })?;
            if let Some(progress) = &mut self.progress {
                let bytes = read.load(Ordering::Relaxed).min(of);
                progress(Progress { rows: gather.rows() as u64, bytes, of });
            }
        }
        if Stamp::of(&again).map_err(|e| unreadable(path, e))? != stamp {
            let when = "while it was read";
            return Err(SharedTableError::Changed { path: path.to_owned(), when });
        }
        Ok(gather.finish())
    }
}

impl fmt::Debug for SharedTableBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTableBuilder")
            .field("path", &self.path)
            .field("cache", &self.cache)
            .field("rebuild", &self.rebuild)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Calls a reader of files that may be damaged, some of which panic over one.
fn guarded<T>(path: &Path, read: impl FnOnce() -> T) -> Result<T, SharedTableError> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| SharedTableError::Damaged {
        path: path.to_owned(),
        what: format!("its reader failed: {}", crate::worker::panic_message(&*panic)),
    })
}

/// The table that was converted before, where it is still right.
fn attach(kept: &Path, note: &str, exact: bool) -> Result<Option<SharedTable>, SharedTableError> {
    // What a path given by hand leads to may be somebody's own.
    let foreign = || {
        let what =
            "it is not a table that was converted by this crate, and so is not overwritten: \
                    name another file with TableCache::File"
                .to_owned();
        Err(SharedTableError::Kind { path: kept.to_owned(), what })
    };
    let Ok(file) = File::open(kept) else { return Ok(None) };
    let mut begin = [0; MAGIC.len()];
    let is_arrow = file.read_exact_at(&mut begin, 0).is_ok() && begin == *MAGIC;
    match SharedTable::map(file, kept, None) {
        Ok(table) => match table.0.notes.get(NOTE) {
            Some(found) if found == note => Ok(Some(table)),
            None if exact => foreign(),
            _ => Ok(None),
        },
        Err(error) => {
            if exact && !is_arrow && holds_something(kept) {
                return foreign();
            }
            let error = error.into_error(kept);
            tracing::info!(%error, "converting the table again");
            Ok(None)
        }
    }
}

type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<(), MemoryError>;

/// A table of these batches in memory that `make` makes.
pub(super) fn in_memory(
    schema: &Schema,
    batches: impl IntoIterator<Item = RecordBatch>,
    make: impl FnOnce(usize, Fill<'_>) -> Result<SharedBytes, MemoryError>,
) -> Result<SharedTable, SharedTableError> {
    let system = |source| SharedTableError::Memory(MemoryError::System { needed: 0, source });
    let spill = memory_file().map_err(system)?;
    let mut gather = Gather::new(schema.clone(), spill).map_err(|(column, data_type)| {
        SharedTableError::ColumnType { path: "(in memory)".into(), column, data_type }
    })?;
    for (number, batch) in (0..).zip(batches) {
        gather.push(&batch).map_err(|error| match error {
            GatherError::Io(source) => system(source),
            GatherError::Batch(what) => SharedTableError::Batch { batch: number, what },
        })?;
    }
    into_memory(&gather.finish(), make)
}

fn into_memory(
    gathered: &Gathered,
    make: impl FnOnce(usize, Fill<'_>) -> Result<SharedBytes, MemoryError>,
) -> Result<SharedTable, SharedTableError> {
    let plan = Plan::new(gathered, &[]);
    let needed = plan.len();
    let len = usize::try_from(needed).unwrap_or(usize::MAX);
    let bytes = make(len, &mut |mut bytes| {
        plan.write(&mut bytes).map_err(|source| MemoryError::System { needed, source })
    })?;
    let place = bytes.name().map_or(Place::Memory, |name| Place::Segment(name.to_owned()));
    SharedTable::over(bytes, place, None)
        .map_err(|error| error.into_error(Path::new("(in memory)")))
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create("loader-table-rows", MemfdFlags::CLOEXEC).map(File::from)?)
}
