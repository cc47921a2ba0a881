//! Where tables are kept between runs, and how one process makes a table while others wait for it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::table::{PathTable, TableError};
use crate::dataset::Fingerprint;

/// Where a table is kept between runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableCache {
    /// A file in `$LOADER_CACHE_DIR`, else `$XDG_CACHE_HOME/loader`, else `$HOME/.cache/loader`,
    /// named after the root folder and the options.
    #[default]
    User,
    /// Such a file in this folder, which is made if need be.
    Folder(PathBuf),
    /// Exactly this file. One that is no path table is never overwritten.
    File(PathBuf),
    /// Nowhere: every opening scans, and the table lives in memory.
    Off,
}

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

impl TableCache {
    /// The file for the table of `root`; `None` where none is to be kept or no place is known.
    pub(crate) fn file(
        &self,
        root: &Path,
        options: &[u8],
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Option<PathBuf> {
        let folder = match self {
            Self::Off => return None,
            Self::File(path) => return Some(path.clone()),
            Self::Folder(path) => path.clone(),
            Self::User => {
                let var = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
                // The XDG specification has relative paths ignored.
                let xdg = var("XDG_CACHE_HOME").filter(|path| path.is_absolute());
                let base = || xdg.or_else(|| Some(var("HOME")?.join(".cache")));
                var("LOADER_CACHE_DIR").or_else(|| Some(base()?.join("loader")))?
            }
        };
        let root_bytes = root.as_os_str().as_bytes();
        let key = Fingerprint::of(root_bytes).and(Fingerprint::of(options));
        // The folder's name is for people who look into the cache; the hash is what counts.
        let name = root.file_name().unwrap_or_default().as_bytes().iter();
        let name = name.take(32).map(|&b| if b.is_ascii_alphanumeric() { b as char } else { '_' });
        Some(folder.join(format!("{}-{key}.paths", name.collect::<String>())))
    }
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
        write_synced(file, bytes)
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
    let kept = |old: &mut Option<PathTable>| match attach(file, exact)? {
        Some(table) if source.is_fresh(&table) => Ok(Some(table)),
        other => {
            *old = other;
            Ok::<_, TableError>(None)
        }
    };
    let mut old = None;
    if !force && let Some(table) = kept(&mut old)? {
        return Ok((table, TableOrigin::Attached));
    }
    let (lock, alone) = match lock(file) {
        Ok(locked) => locked,
        Err(error) => {
            tracing::warn!(
                file = %file.display(), %error,
                "the path table can't be kept there, so it stays in memory and the next opening \
                 scans again; set LOADER_CACHE_DIR to a folder that can be written"
            );
            return in_memory(source.build(old.as_ref().filter(|_| !force))?);
        }
    };
    // Whoever held the lock may just have made it.
    if !force && let Some(table) = kept(&mut old)? {
        return Ok((table, TableOrigin::Attached));
    }
    let old = old.filter(|_| !force);
    let built = source.build(old.as_ref())?;
    if let Some(old) = old
        && *old.bytes() == built.bytes
    {
        return Ok((old, TableOrigin::Refreshed));
    }
    if alone {
        sweep(file);
    }
    match replace(file, &built.bytes, |file, bytes| source.write(file, bytes)) {
        Ok(written) => {
            drop(lock);
            Ok((PathTable::map(written, file.to_owned())?, built.origin))
        }
        Err(error) => {
            tracing::warn!(
                file = %file.display(), bytes = built.bytes.len(), %error,
                "the path table could not be written, so it stays in memory and the next opening \
                 scans again"
            );
            in_memory(built)
        }
    }
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

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Waits until no other process makes the table in `file`. The lock goes with the returned file,
/// also when its process dies. False where the file system has no locks.
fn lock(file: &Path) -> io::Result<(File, bool)> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let path = beside(file, ".lock");
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        tracing::info!(file = %file.display(), "waiting for another process to make the path table");
    }
    loop {
        match flock(&lock, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            // Some file systems have no locks. Two may then scan at once; each result is whole.
            Err(error) => {
                tracing::debug!(%error, "no lock on the path table");
                return Ok((lock, false));
            }
            Ok(()) => return Ok((lock, true)),
        }
    }
}

/// Removes what makers that died left beside `file`. To be called under its lock.
fn sweep(file: &Path) {
    let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = file.file_name().map(OsStr::as_bytes) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let aside = other.as_bytes().strip_prefix(name).is_some_and(|rest| {
            rest.strip_prefix(b".").and_then(|r| r.strip_suffix(b".aside")).is_some()
        });
        if aside && let Err(error) = fs::remove_file(entry.path()) {
            tracing::debug!(file = %entry.path().display(), %error, "left-over not removed");
        }
    }
}

/// Writes all bytes and has them safe on disk.
pub(crate) fn write_synced(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts a file with these bytes in the place of `path`, which keeps its old content until then and
/// if anything fails.
pub(crate) fn replace(
    path: &Path,
    bytes: &[u8],
    write: impl FnOnce(&mut File, &[u8]) -> io::Result<()>,
) -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = beside(path, &format!(".{}-{count}.aside", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    // The file that is returned, and may be handed on, can't be written through.
    let written = write(&mut file, bytes).and_then(|()| {
        let read_only = File::open(&aside)?;
        fs::rename(&aside, path)?;
        Ok(read_only)
    });
    let file = match written {
        Ok(file) => file,
        Err(error) => {
            // The write's error is the one to report.
            drop(fs::remove_file(&aside));
            return Err(error);
        }
    };
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Without this a crash of the machine may bring the old file back, which is whole too.
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!(folder = %folder.display(), %error, "folder not synced");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

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
            write_synced(file, bytes)
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

    #[test]
    fn the_cache_folder_follows_the_environment() {
        let at = |vars: &[(&str, &str)]| {
            let env = |name: &str| {
                let found = vars.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let file = TableCache::User.file(Path::new("/data/train"), b"", env)?;
            Some(file.parent().unwrap().to_owned())
        };
        let all = [("LOADER_CACHE_DIR", "/l"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(at(&all), Some("/l".into()));
        assert_eq!(at(&all[1..]), Some("/x/loader".into()));
        assert_eq!(at(&all[2..]), Some("/h/.cache/loader".into()));
        assert_eq!(at(&[("XDG_CACHE_HOME", "relative"), all[2]]), Some("/h/.cache/loader".into()));
        assert_eq!(at(&[("LOADER_CACHE_DIR", ""), all[2]]), Some("/h/.cache/loader".into()));
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn file_names_tell_roots_and_options_apart() {
        let name = |root: &str, options: &[u8]| {
            let folder = TableCache::Folder("/c".into());
            folder.file(Path::new(root), options, |_| None).unwrap()
        };
        assert_ne!(name("/a/train", b""), name("/b/train", b""));
        assert_ne!(name("/a/train", b""), name("/a/train", b"hidden"));
        let file = name("/a/tr ain", b"");
        assert!(file.to_str().unwrap().starts_with("/c/tr_ain-"), "{file:?}");
    }
}
