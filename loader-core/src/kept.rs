//! Files that are made once and kept between runs: where they lie, and how one process makes a file while
//! others wait for it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "table")]
use rustix::fs::{CWD, Mode, openat};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::dataset::Fingerprint;
use crate::told::tell;

/// Where a table is kept between runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableCache {
    /// A file in `$LOADER_CACHE_DIR`, else `$XDG_CACHE_HOME/loader`, else `$HOME/.cache/loader`,
    /// named after what it was made from and the options.
    #[default]
    User,
    /// Such a file in this folder, which is made if need be.
    Folder(PathBuf),
    /// Exactly this file. One that is no such table is never overwritten.
    File(PathBuf),
    /// Nowhere: every opening makes the table, which lives in memory.
    Off,
}

impl TableCache {
    /// The file for the table that is made from `source`; `None` where none is to be kept or no place is
    /// known.
    pub(crate) fn file(
        &self,
        source: &Path,
        options: &[u8],
        extension: &str,
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
        let source_bytes = source.as_os_str().as_bytes();
        let key = Fingerprint::of(source_bytes).and(Fingerprint::of(options));
        // The source's name is for people who look into the cache; the hash is what counts.
        let name = source.file_name().unwrap_or_default().as_bytes().iter();
        let name = name.take(32).map(|&b| if b.is_ascii_alphanumeric() { b as char } else { '_' });
        Some(folder.join(format!("{}-{key}.{extension}", name.collect::<String>())))
    }
}

pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A wait for another process is told after this, and again after twice and four times as long and so
/// on.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Waits until no other process makes the table in `file`. The lock goes with the returned file,
/// also when its process dies. False where the file system has no locks.
fn lock(file: &Path) -> io::Result<(File, bool)> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let path = beside(file, ".lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    // A pipe in its place must not have this wait for a reader.
    let lock = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path)?;
    let since = Instant::now();
    let mut tell_at = TOLD_AFTER;
    loop {
        // Asked again and again, not waited for: a wait without a word is what people lose hours with.
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => {
                let waited = since.elapsed();
                if waited >= tell_at {
                    tell_at *= 2;
                    tell(&format_args!(
                        "waiting for {waited:.0?} for the process that holds {path:?} to make the table of a \
                         dataset (fuser tells which one; a stopped one holds it too)"
                    ));
                }
                thread::sleep(
                    (waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(100)),
                );
            }
            // Some file systems have no locks. Two may then make it at once; each result is whole.
            Err(error) => {
                tracing::debug!(%error, "no lock on the table");
                return Ok((lock, false));
            }
            Ok(()) => return Ok((lock, true)),
        }
    }
}

/// Removes what makers that died left beside `file`. To be called under its lock.
fn sweep(file: &Path) {
    let folder = folder_of(file);
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

/// Gives what `attach` finds to be right, or else what `make` makes while other processes wait for it.
/// `force` makes it whatever there is. `make` is told where the file can't be kept there.
pub(crate) fn attach_or_make<T, E>(
    file: &Path,
    force: bool,
    attach: impl Fn() -> Result<Option<T>, E>,
    make: impl FnOnce(Option<io::Error>) -> Result<T, E>,
) -> Result<T, E> {
    if !force && let Some(found) = attach()? {
        return Ok(found);
    }
    let (_lock, alone) = match lock(file) {
        Ok(locked) => locked,
        Err(error) => return make(Some(error)),
    };
    // Whoever held the lock may just have made it.
    if !force && let Some(found) = attach()? {
        return Ok(found);
    }
    if alone {
        sweep(file);
    }
    make(None)
}

/// An open file in the folder of `file` that has no name, and so leaves nothing behind.
#[cfg(feature = "table")]
pub(crate) fn unnamed(file: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, folder_of(file), flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file.into()),
        // Not every file system can.
        Err(_) => {
            let aside = aside(file);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            let opened = options.open(&aside)?;
            fs::remove_file(&aside)?;
            Ok(opened)
        }
    }
}

/// A name beside `file` that nobody else uses, and that [`sweep`] knows.
fn aside(file: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    beside(file, &format!(".{}-{count}.aside", std::process::id()))
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Puts a file that `write` writes in the place of `path`, which keeps its old content until all is
/// safe on disk, and if anything fails.
pub(crate) fn replace<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<File, E> {
    let aside = aside(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    // The file that is returned, and may be handed on, can't be written through.
    let written = write(&mut file).and_then(|()| {
        file.sync_all()?;
        let read_only = File::open(&aside)?;
        fs::rename(&aside, path)?;
        Ok::<_, E>(read_only)
    });
    let file = match written {
        Ok(file) => file,
        Err(error) => {
            // The write's error is the one to report.
            drop(fs::remove_file(&aside));
            return Err(error);
        }
    };
    let folder = folder_of(path);
    // Without this a crash of the machine may bring the old file back, which is whole too.
    if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
        tracing::debug!(folder = %folder.display(), %error, "folder not synced");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_follows_the_environment() {
        let at = |vars: &[(&str, &str)]| {
            let env = |name: &str| {
                let found = vars.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let file = TableCache::User.file(Path::new("/data/train"), b"", "paths", env)?;
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
            folder.file(Path::new(root), options, "paths", |_| None).unwrap()
        };
        assert_ne!(name("/a/train", b""), name("/b/train", b""));
        assert_ne!(name("/a/train", b""), name("/a/train", b"hidden"));
        let file = name("/a/tr ain", b"");
        assert!(file.to_str().unwrap().starts_with("/c/tr_ain-"), "{file:?}");
    }
}
