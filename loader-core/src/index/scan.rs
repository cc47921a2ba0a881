//! Reads a folder tree in parallel, directory by directory, without looking at a single file: the
//! listing tells what is a file.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use rayon::slice::ParallelSliceMut;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Statx, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::build::{Dir, Packed, unpack};
use super::fingerprint::NamesDigest;
use super::format::{MAX_NAME, Stamp};
use super::report::{Notes, Reason};
use super::table::PathTable;

/// Directories that changed in the last seconds before the scan are read again at the next opening:
/// file systems keep times only so precisely (ext3, NFS: a second, FAT: two), and a change right
/// after the reading could leave the same time behind.
const SETTLED_AFTER: i64 = 2;
/// Bytes of directory listing asked of the system at once.
const LISTING: usize = 256 << 10;
/// Directories with more files than this are sorted by all threads.
const LARGE: usize = 1 << 15;
/// The least number of threads that read.
const MIN_THREADS: usize = 4;
/// Directories are checked by several threads from this number on.
const MANY: usize = 4096;

/// Says whether a file is a sample.
#[derive(Clone)]
pub(crate) enum Accept {
    /// Its name ends so, in any case.
    Extensions(Vec<Vec<u8>>),
    /// The function, which gets the full path, says so.
    Predicate(Arc<dyn Fn(&Path) -> bool + Send + Sync>),
}

/// What a scan takes for samples and where it goes.
#[derive(Clone)]
pub(crate) struct ScanOptions {
    pub(crate) accept: Accept,
    pub(crate) hidden: bool,
    pub(crate) follow_links: bool,
    /// Files of the root folder itself are samples and nothing below it is looked at.
    pub(crate) flat: bool,
}

/// Opens the root folder of a scan.
pub(crate) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(open_dir(rustix::fs::CWD, root.as_os_str().as_bytes())?)
}

fn open_dir(at: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// True where no directory of the table has changed since it was scanned.
pub(crate) fn is_fresh(table: &PathTable, root: BorrowedFd<'_>) -> bool {
    let fresh = |dirs: std::ops::Range<u32>| {
        for dir in dirs {
            let same = table.stamp(dir).zip(table.dir(dir)).is_some_and(|(stamp, record)| {
                let path = table.dir_text(&record).map(|(path, _, _)| path);
                !stamp.stale && path.and_then(|p| stamp_of(root, p)).is_some_and(|s| s == stamp)
            });
            if !same {
                return false;
            }
        }
        true
    };
    let dirs = table.directories();
    let threads = available_parallelism().map_or(1, |n| n.get() as u32);
    if (dirs as usize) < MANY || threads < 2 {
        return fresh(0..dirs);
    }
    let chunk = dirs.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts = (0..dirs).step_by(chunk as usize);
        let parts = parts.map(|at| at..at.saturating_add(chunk).min(dirs)).map(|part| {
            let check = {
                let part = part.clone();
                move || fresh(part)
            };
            // Where there can be no further thread, this one does its work.
            std::thread::Builder::new().spawn_scoped(scope, check).map_err(|_| part)
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().all(|part| match part {
            Ok(thread) => thread.join().unwrap_or(false),
            Err(part) => fresh(part),
        })
    })
}

fn stamp_of(root: BorrowedFd<'_>, path: &[u8]) -> Option<Stamp> {
    stat(root, path).ok().map(|stat| stamp(&stat))
}

fn stat(at: BorrowedFd<'_>, path: &[u8]) -> Result<Statx, Errno> {
    let flags = if path.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let want = StatxFlags::TYPE | StatxFlags::MTIME | StatxFlags::CTIME | StatxFlags::INO;
    statx(at, path, flags, want)
}

fn stamp(stat: &Statx) -> Stamp {
    Stamp {
        mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        ctime: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        ino: stat.stx_ino,
        stale: false,
    }
}

/// All directories below `root`, in no particular order. Those of `old` that did not change are
/// taken from it.
pub(crate) fn scan(
    root: &Path,
    root_fd: BorrowedFd<'_>,
    options: &ScanOptions,
    old: Option<&PathTable>,
) -> io::Result<Vec<Dir>> {
    let cx = Context {
        root,
        root_fd,
        options,
        started: clock_gettime(ClockId::Realtime).tv_sec,
        old: old.and_then(Old::new),
        out: Mutex::new(Vec::new()),
    };
    // Threads of its own, which end with the scan: a process may want to fork later. A few even on
    // one core, since a cold or remote file system lets each of them wait.
    let threads = available_parallelism().map_or(1, |n| n.get()).max(MIN_THREADS);
    let read_by = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_scoped(
            |thread| thread.run(),
            |pool| pool.scope(|scope| cx.visit(scope, Vec::new(), 0, None)),
        )
    };
    // Nothing is read before all threads are there.
    read_by(threads).or_else(|_| read_by(1)).map_err(|error| {
        io::Error::other(format!(
            "{error}: not even one thread could be started to read it; raise the limit on processes \
             (ulimit -u, or pids.max of the control group)"
        ))
    })?;
    Ok(cx.out.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// What an earlier table knows of the tree.
struct Old<'a> {
    table: &'a PathTable,
    dirs: HashMap<&'a [u8], u32>,
    children: HashMap<&'a [u8], Vec<&'a [u8]>>,
    notes: std::collections::BTreeMap<u32, Notes>,
}

impl<'a> Old<'a> {
    /// `None` where the table is damaged.
    fn new(table: &'a PathTable) -> Option<Self> {
        table.verify().ok()?;
        let mut dirs = HashMap::new();
        let mut children: HashMap<_, Vec<_>> = HashMap::new();
        for index in 0..table.directories() {
            let path = table.dir_text(&table.dir(index)?)?.0;
            dirs.insert(path, index);
            if let [parent @ .., b'/'] = path {
                let parent = parent.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
                children.entry(&path[..parent]).or_default().push(path);
            }
        }
        Some(Self { table, dirs, children, notes: Notes::of_table(table).ok()? })
    }

    /// The directory as it was, where its stamp is the same and can be trusted.
    fn unchanged(&self, path: &[u8], now: Stamp, digest: &mut NamesDigest) -> Option<Dir> {
        let index = *self.dirs.get(path)?;
        if self.table.stamp(index)? != now {
            return None;
        }
        let mut dir = unpack(self.table, index, digest)?;
        dir.notes = self.notes.get(&index).cloned().unwrap_or_default();
        Some(dir)
    }
}

struct Context<'a> {
    root: &'a Path,
    root_fd: BorrowedFd<'a>,
    options: &'a ScanOptions,
    started: i64,
    old: Option<Old<'a>>,
    out: Mutex<Vec<Dir>>,
}

/// A directory on the way down to the one that is read, to notice links that lead back up.
struct Above {
    device: (u32, u32),
    ino: u64,
    above: Option<Arc<Self>>,
}

/// True where `target`, found in the directory `here`, is that directory or one above it.
fn leads_up(target: &Statx, here: &Statx, mut above: Option<&Above>) -> bool {
    let inode = |stat: &Statx| ((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino);
    let target = inode(target);
    if target == inode(here) {
        return true;
    }
    while let Some(dir) = above {
        if (dir.device, dir.ino) == target {
            return true;
        }
        above = dir.above.as_deref();
    }
    false
}

/// Memory that a thread keeps from one directory to the next.
#[derive(Default)]
struct Scratch {
    listing: Vec<u8>,
    names: Vec<u8>,
    files: Vec<File>,
    digest: NamesDigest,
    path: Vec<u8>,
    extension: usize,
}

/// A file name in the arena of names, with eight of its bytes for a fast comparison.
#[derive(Clone, Copy)]
struct File {
    key: u64,
    at: u32,
    len: u16,
}

impl File {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        &names[self.at as usize..self.at as usize + usize::from(self.len)]
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// What a listing leads to: samples are in the scratch memory.
#[derive(Default)]
struct Listing {
    folders: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
    unknown: Vec<Vec<u8>>,
    notes: Notes,
}

impl<'a> Context<'a> {
    fn visit<'s>(
        &'s self,
        scope: &rayon::Scope<'s>,
        path: Vec<u8>,
        depth: u32,
        above: Option<Arc<Above>>,
    ) where
        'a: 's,
    {
        // Taken rather than borrowed: while a large sort waits for other threads, its thread may be
        // given another directory to read.
        let mut scratch = SCRATCH.take();
        let result = self.read(&mut scratch, &path, depth, above.as_deref());
        SCRATCH.set(scratch);
        let (dir, folders, here) = match result {
            Ok(read) => read,
            // It went away between its parent's listing and now, so its parent's stamp will tell.
            Err(Errno::NOENT | Errno::NOTDIR) => return,
            Err(error) => (unreadable(path, error), Vec::new(), None),
        };
        let here = here.map(|stat| {
            Arc::new(Above {
                device: (stat.stx_dev_major, stat.stx_dev_minor),
                ino: stat.stx_ino,
                above,
            })
        });
        self.out.lock().unwrap_or_else(PoisonError::into_inner).push(dir);
        if self.options.flat {
            return;
        }
        for folder in folders {
            let here = here.clone();
            scope.spawn(move |scope| self.visit(scope, folder, depth + 1, here));
        }
    }

    #[allow(clippy::type_complexity)]
    fn read(
        &self,
        scratch: &mut Scratch,
        path: &[u8],
        depth: u32,
        above: Option<&Above>,
    ) -> Result<(Dir, Vec<Vec<u8>>, Option<Statx>), Errno> {
        if let Some(old) = &self.old {
            let here = stat(self.root_fd, path)?;
            let folders = || old.children.get(path).into_iter().flatten();
            // A link outside of the tree may have changed where a folder of this one leads.
            let leads_down = |folder: &&[u8]| {
                stat(self.root_fd, folder).is_ok_and(|target| !leads_up(&target, &here, above))
            };
            if folders().all(leads_down)
                && let Some(dir) = old.unchanged(path, stamp(&here), &mut scratch.digest)
            {
                return Ok((dir, folders().map(|p| p.to_vec()).collect(), Some(here)));
            }
        }
        let fd = open_dir(self.root_fd, if path.is_empty() { b"." } else { path })?;
        // Before the listing: what changes from here on changes these times.
        let stat = stat(fd.as_fd(), b"")?;
        let mut listing = self.list(scratch, &fd, depth)?;
        for name in std::mem::take(&mut listing.unknown) {
            let stat = statx(&fd, &name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
            match stat.map(|stat| file_type(&stat)) {
                Ok(FileType::Unknown) => listing.notes.add(Reason::Special, b"", &name),
                Ok(kind) => self.sort_out(scratch, &mut listing, kind, &name, depth),
                Err(Errno::NOENT) => {}
                Err(error) => listing.notes.add(Reason::Unreadable, &said(error), &name),
            }
        }
        for name in std::mem::take(&mut listing.links) {
            self.follow(scratch, &mut listing, &fd, &name, depth, above, &stat);
        }
        if let Accept::Predicate(accept) = &self.options.accept {
            self.ask(scratch, &mut listing.notes, &**accept, path);
        }
        listing.notes.settle();
        let names = pack(scratch);
        let mut stamp = stamp(&stat);
        // Where a file system keeps no change time, the other one must do.
        let changed = if stamp.ctime == (0, 0) { stamp.mtime.0 } else { stamp.ctime.0 };
        stamp.stale = changed >= self.started - SETTLED_AFTER || listing.notes.unsettled();
        let folders = listing.folders.iter().map(|name| [path, name, b"/"].concat()).collect();
        let dir = Dir { path: path.to_vec(), stamp, names, notes: listing.notes };
        Ok((dir, folders, Some(stat)))
    }

    fn list(&self, scratch: &mut Scratch, fd: &OwnedFd, depth: u32) -> Result<Listing, Errno> {
        scratch.names.clear();
        scratch.files.clear();
        let mut listing = Listing::default();
        let mut buffer = std::mem::take(&mut scratch.listing);
        buffer.clear();
        buffer.reserve(LISTING);
        let mut read = || {
            let spare: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
            let mut entries = RawDir::new(fd, spare);
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name.first() == Some(&b'.') {
                    if name == b"." || name == b".." {
                        continue;
                    }
                    if !self.options.hidden {
                        listing.notes.add(Reason::Hidden, b"", name);
                        continue;
                    }
                }
                self.sort_out(scratch, &mut listing, entry.file_type(), name, depth);
            }
            Ok(())
        };
        let result = read();
        scratch.listing = buffer;
        result.map(|()| listing)
    }

    /// Puts a name where its type belongs.
    fn sort_out(
        &self,
        scratch: &mut Scratch,
        listing: &mut Listing,
        kind: FileType,
        name: &[u8],
        depth: u32,
    ) {
        match kind {
            FileType::RegularFile => self.file(scratch, &mut listing.notes, name, depth),
            FileType::Directory => listing.folders.push(name.to_vec()),
            FileType::Symlink if self.options.follow_links => listing.links.push(name.to_vec()),
            FileType::Symlink => listing.notes.add(Reason::Link, b"", name),
            FileType::Unknown => listing.unknown.push(name.to_vec()),
            _ => listing.notes.add(Reason::Special, b"", name),
        }
    }

    fn file(&self, scratch: &mut Scratch, notes: &mut Notes, name: &[u8], depth: u32) {
        if depth == 0 && !self.options.flat {
            return notes.add(Reason::BesideClasses, b"", name);
        }
        if let Accept::Extensions(extensions) = &self.options.accept {
            let ends = |extension: &Vec<u8>| {
                name.len() >= extension.len()
                    && name[name.len() - extension.len()..].eq_ignore_ascii_case(extension)
            };
            // Neighbours mostly have the same one.
            if !extensions.get(scratch.extension).is_some_and(ends) {
                match extensions.iter().position(ends) {
                    Some(found) => scratch.extension = found,
                    None => {
                        return notes.add(Reason::Extension, &extension_of(name), name);
                    }
                }
            }
        }
        // No file system of Linux has longer names, nor directories of 4 GB of names.
        if let Ok(at) = u32::try_from(scratch.names.len())
            && name.len() <= MAX_NAME
        {
            scratch.files.push(File { key: 0, at, len: name.len() as u16 });
            scratch.names.extend_from_slice(name);
        } else {
            notes.add(Reason::Unreadable, b"name or listing too long", name);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn follow(
        &self,
        scratch: &mut Scratch,
        listing: &mut Listing,
        fd: &OwnedFd,
        name: &[u8],
        depth: u32,
        above: Option<&Above>,
        here: &Statx,
    ) {
        let target = match stat(fd.as_fd(), name) {
            Ok(target) => target,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                return listing.notes.add(Reason::BrokenLink, b"", name);
            }
            Err(error) => return listing.notes.add(Reason::Unreadable, &said(error), name),
        };
        match file_type(&target) {
            FileType::Directory => {
                if leads_up(&target, here, above) {
                    listing.notes.add(Reason::Cycle, b"", name);
                } else {
                    listing.folders.push(name.to_vec());
                }
            }
            kind => self.sort_out(scratch, listing, kind, name, depth),
        }
    }

    /// Keeps the files that the predicate accepts.
    fn ask(
        &self,
        scratch: &mut Scratch,
        notes: &mut Notes,
        accept: &(dyn Fn(&Path) -> bool + Send + Sync),
        dir: &[u8],
    ) {
        let Scratch { files, names, path, .. } = scratch;
        files.retain(|file| {
            let name = file.name(names);
            path.clear();
            path.extend_from_slice(self.root.as_os_str().as_bytes());
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(dir);
            path.extend_from_slice(name);
            let accepted = accept(Path::new(OsStr::from_bytes(path)));
            if !accepted {
                notes.add(Reason::Refused, b"", name);
            }
            accepted
        });
    }
}

fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// A directory that could not be read: without entries, to be tried again at the next opening.
fn unreadable(path: Vec<u8>, error: Errno) -> Dir {
    let mut dir = Dir { path, stamp: Stamp { stale: true, ..Stamp::default() }, ..Dir::default() };
    dir.notes.add(Reason::Unreadable, &said(error), b"");
    dir
}

fn said(error: Errno) -> Vec<u8> {
    io::Error::from(error).to_string().into_bytes()
}

/// What a report calls the extension of a file.
fn extension_of(name: &[u8]) -> Vec<u8> {
    match name.iter().rposition(|&b| b == b'.') {
        Some(dot) if dot > 0 && name.len() - dot <= 16 => name[dot..].to_ascii_lowercase(),
        _ => b"(none)".to_vec(),
    }
}

/// The directory's samples in the order of their names.
fn pack(scratch: &mut Scratch) -> Packed {
    let Scratch { files, names, digest, .. } = scratch;
    let names = names.as_slice();
    if let Some((first, rest)) = files.split_first() {
        let first = first.name(names);
        let shared = rest.iter().fold(first.len(), |shared, file| {
            let name = file.name(names);
            if name.get(..shared) == Some(&first[..shared]) {
                return shared;
            }
            first[..shared].iter().zip(name).take_while(|(a, b)| a == b).count()
        });
        for file in files.iter_mut() {
            // Names contain no zero byte, so the padding puts a shorter name first, as it should.
            let mut key = [0; 8];
            let rest = &file.name(names)[shared..];
            let len = rest.len().min(8);
            key[..len].copy_from_slice(&rest[..len]);
            file.key = u64::from_be_bytes(key);
        }
    }
    let order =
        |a: &File, b: &File| a.key.cmp(&b.key).then_with(|| a.name(names).cmp(b.name(names)));
    if files.len() > LARGE {
        files.par_sort_unstable_by(order);
    } else {
        files.sort_unstable_by(order);
    }
    Packed::new(files.iter().map(|file| file.name(names)), digest)
}
