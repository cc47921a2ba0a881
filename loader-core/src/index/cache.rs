//! How a path table is kept between runs: attached while it is right, brought up to date or made again
//! where it is not.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::table::{PathTable, TableError};
use crate::kept;
use crate::told::tell;

/// How opening a dataset came by its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableOrigin {
    /// A kept table was still right.
    Attached,
    /// A kept table was brought up to date: the directories that changed were read again.
    Refreshed,
    /// The whole tree was scanned.
    Scanned,
}

/// What a caller of [`open`] says about its table.
pub(crate) trait Source {
    type Error: From<TableError>;

    /// True where the table is of these options and nothing changed since.
    fn is_fresh(&self, table: &PathTable) -> bool;

    /// Makes the table; `old` may save some of the work.
    fn build(&self, old: Option<&PathTable>) -> Result<Built, Self::Error>;

    /// Writes its file.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }
}

/// A table just made.
pub(crate) struct Built {
    pub(crate) bytes: Vec<u8>,
    pub(crate) origin: TableOrigin,
}

/// Attaches the table in `file` if it is still right, else makes it while others wait.
///
/// `force` scans whatever the file holds. Where the file can't be written the table stays in memory.
pub(crate) fn open<S: Source>(
    file: Option<&Path>,
    exact: bool,
    force: bool,
    source: &S,
) -> Result<(PathTable, TableOrigin), S::Error> {
    let Some(file) = file else { return in_memory(source.build(None)?) };
    let old = RefCell::new(None);
    let kept = || match attach(file, exact)? {
        Some(table) if source.is_fresh(&table) => Ok(Some((table, TableOrigin::Attached))),
        other => {
            old.replace(other);
            Ok::<_, S::Error>(None)
        }
    };
    kept::attach_or_make(file, force, kept, |no_place| {
        let old = old.take().filter(|_| !force);
        let built = source.build(old.as_ref())?;
        if let Some(error) = no_place {
            tell(&format_args!(
                "the path table can't be kept in {file:?} ({error}), so it stays in memory and the next opening \
                 scans again; set LOADER_CACHE_DIR to a folder that can be written"
            ));
            return in_memory(built);
        }
        if let Some(old) = old
            && *old.bytes() == built.bytes
        {
            return Ok((old, TableOrigin::Refreshed));
        }
        match kept::replace(file, |file| source.write(file, &built.bytes)) {
            Ok(written) => Ok((PathTable::map(written, file.to_owned())?, built.origin)),
            Err(error) => {
                let bytes = built.bytes.len();
                tell(&format_args!(
                    "the path table, {bytes} bytes, could not be written to {file:?} ({error}), so it stays in \
                     memory and the next opening scans again"
                ));
                in_memory(built)
            }
        }
    })
}

fn in_memory<E: From<TableError>>(built: Built) -> Result<(PathTable, TableOrigin), E> {
    Ok((PathTable::in_memory(&built.bytes)?, built.origin))
}

/// The table in `file`, where there is one of use.
fn attach(file: &Path, exact: bool) -> Result<Option<PathTable>, TableError> {
    match PathTable::attach(file) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        // A path given by hand may be mistyped: leave somebody's photograph alone. An empty file
        // is nobody's.
        Err(error @ TableError::NotATable { .. })
            if exact && fs::metadata(file).is_ok_and(|meta| meta.len() > 0) =>
        {
            Err(error)
        }
        Err(error) => {
            tracing::info!(%error, "making the kept path table again");
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use rustix::io::Errno;

    use super::*;
    use crate::kept::beside;

    /// Makes the same table each time, and fails to write it where told so.
    #[derive(Default)]
    struct Fixed {
        fresh: Cell<bool>,
        disk_full: bool,
        builds: Cell<u32>,
    }

    impl Source for Fixed {
        type Error = TableError;

        fn is_fresh(&self, _: &PathTable) -> bool {
            self.fresh.get()
        }

        fn build(&self, _: Option<&PathTable>) -> Result<Built, TableError> {
            self.builds.set(self.builds.get() + 1);
            let name = format!("a/{}.jpg", self.builds.get());
            let table = PathTable::from_paths("/data", ["a"], [(name, 0)])?;
            Ok(Built { bytes: table.bytes().to_vec(), origin: TableOrigin::Scanned })
        }

        fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
            if self.disk_full {
                file.write_all(&bytes[..bytes.len() / 2])?;
                return Err(Errno::NOSPC.into());
            }
            file.write_all(bytes)
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_disk_leaves_no_file_and_the_table_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.paths");
        let full = Fixed { disk_full: true, ..Fixed::default() };
        let (table, _) = open(Some(&file), false, false, &full).unwrap();
        assert_eq!(table.get(0).unwrap().to_path(), Path::new("/data/a/1.jpg"));
        assert_eq!(names(folder.path()), ["t.paths.lock"]);
    }

    #[test]
    fn a_full_disk_keeps_the_table_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.paths");
        let (kept, _) = open(Some(&file), false, false, &Fixed::default()).unwrap();
        let full = Fixed { disk_full: true, builds: Cell::new(7), ..Fixed::default() };
        let (table, _) = open(Some(&file), false, false, &full).unwrap();
        assert_eq!(table.get(0).unwrap().to_path(), Path::new("/data/a/8.jpg"));
        let again = PathTable::attach(&file).unwrap();
        again.verify().unwrap();
        assert_eq!(again.fingerprint(), kept.fingerprint());
    }

    #[test]
    fn kept_files_are_private_and_leftovers_of_the_dead_are_swept() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("new/cache");
        let file = folder.join("t.paths");
        open(Some(&file), false, false, &Fixed::default()).unwrap();
        fs::write(beside(&file, ".999-0.aside"), "half").unwrap();
        fs::write(folder.join("other.paths.999-0.aside"), "of another table").unwrap();
        open(Some(&file), false, true, &Fixed::default()).unwrap();
        assert_eq!(names(&folder), ["other.paths.999-0.aside", "t.paths", "t.paths.lock"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&folder), mode(&file)], [0o700, 0o600]);
    }

    #[test]
    fn a_folder_that_can_not_be_made_means_memory() {
        // Not even root can make folders there.
        let file = Path::new("/proc/loader/t.paths");
        let source = Fixed::default();
        let (table, origin) = open(Some(file), false, false, &source).unwrap();
        assert_eq!((table.len(), origin), (1, TableOrigin::Scanned));
        assert_eq!(table.path(), Path::new("(in memory)"));
    }

    #[test]
    fn pipes_in_the_place_of_table_or_lock_hold_nobody_up() {
        let pipe = |path: &Path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        };
        let folder = tempfile::tempdir().unwrap();
        let (table, lock) = (folder.path().join("t.paths"), folder.path().join("l.paths"));
        pipe(&table);
        let (made, _) = open(Some(&table), false, false, &Fixed::default()).unwrap();
        assert_eq!((made.len(), made.path()), (1, &*table));
        pipe(&kept::beside(&lock, ".lock"));
        let (made, _) = open(Some(&lock), false, false, &Fixed::default()).unwrap();
        assert_eq!(made.path(), Path::new("(in memory)"));
    }

    #[test]
    fn damaged_tables_are_made_again_but_other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.paths");
        let source = Fixed { fresh: Cell::new(true), ..Fixed::default() };
        let (table, _) = open(Some(&file), true, false, &source).unwrap();
        let good = table.bytes().to_vec();
        let mut other_version = good.clone();
        other_version[8] = 99;
        for bad in [&good[..good.len() - 1], &good[..100], &other_version, b""] {
            fs::write(&file, bad).unwrap();
            let (table, origin) = open(Some(&file), true, false, &source).unwrap();
            table.verify().unwrap();
            assert_eq!(origin, TableOrigin::Scanned);
        }
        fs::write(&file, "a photograph").unwrap();
        let error = open(Some(&file), true, false, &source).unwrap_err();
        assert!(matches!(error, TableError::NotATable { .. }));
        assert_eq!(fs::read(&file).unwrap(), b"a photograph");
        // In the cache's own folder whatever has the name is a table that went bad.
        open(Some(&file), false, false, &source).unwrap().0.verify().unwrap();
    }

    #[test]
    fn a_table_in_use_stays_whole_while_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.paths");
        let source = Fixed::default();
        let (first, _) = open(Some(&file), false, false, &source).unwrap();
        let (second, _) = open(Some(&file), false, false, &source).unwrap();
        assert_eq!(first.get(0).unwrap().to_path(), Path::new("/data/a/1.jpg"));
        assert_eq!(second.get(0).unwrap().to_path(), Path::new("/data/a/2.jpg"));
    }
}
