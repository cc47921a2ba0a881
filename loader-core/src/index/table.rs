//! Reads a mapped path table: every process of every job on the host shares its one copy in the
//! page cache.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use rustix::fs::OFlags;
use xxhash_rust::xxh3::xxh3_64;

use super::fingerprint::Digest;
use super::format::{
    BLOCK, BLOCK_LEN, DIR_LEN, DirRecord, Fault, Header, NO_CLASS, STAMP_LEN, Section, Stamp,
    read_u16, read_u32, read_u64,
};
use super::report::ScanReport;
use crate::dataset::Fingerprint;
use crate::kept;
use crate::shm::sealed_file;

/// Why a path table could not be opened, read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file could not be opened, mapped or written.
    #[error("path table {path:?}: {source}")]
    Io {
        /// The table's file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The first bytes are not a path table's.
    #[error("{path:?} is not a path table")]
    NotATable {
        /// The file.
        path: PathBuf,
    },
    /// Another version of the format wrote it.
    #[error(
        "path table {path:?} has format version {found}, this program reads {supported}: \
         delete it to have it made again"
    )]
    Version {
        /// The table's file.
        path: PathBuf,
        /// The version it states.
        found: u16,
        /// The version that this program reads.
        supported: u16,
    },
    /// The bytes contradict each other.
    #[error(
        "path table {path:?} is damaged ({section}, byte {at}: {what}): delete it to have it made \
         again"
    )]
    Corrupt {
        /// The table's file.
        path: PathBuf,
        /// The part of the file, as docs/path-table.md names them.
        section: &'static str,
        /// The byte within that part.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// There is no such entry.
    #[error("entry {index} of a path table of {len} entries")]
    OutOfRange {
        /// The entry asked for.
        index: u64,
        /// How many there are.
        len: u64,
    },
    /// A path of the given list can't be the path of a file.
    #[error("path {index} of the list, {path:?}: {what}")]
    BadPath {
        /// Its position in the list.
        index: u64,
        /// The path.
        path: PathBuf,
        /// Why not.
        what: &'static str,
    },
    /// A label of the given list is no class.
    #[error(
        "path {index} of the list, {path:?}, has label {label}, but there are {classes} classes"
    )]
    BadLabel {
        /// Its position in the list.
        index: u64,
        /// The path.
        path: PathBuf,
        /// The label given.
        label: u32,
        /// The number of classes given.
        classes: u32,
    },
    /// More directories, classes or entries than the format has room for.
    #[error("too many {what} for a path table: {count}")]
    TooLarge {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        count: u64,
    },
}

/// The paths and labels of a dataset in one mapped file.
///
/// Attaching reads the header and maps the rest, so it costs the same for ten entries and for ten
/// million, and no process holds a copy. A clone shares the map. [`get`](Self::get) takes constant
/// time and allocates nothing. A table whose bytes are damaged gives errors, or other paths than
/// it should; [`verify`](Self::verify) tells.
///
/// # Trust
/// A mapped file must not be changed in place. This crate never does that: it writes tables aside
/// and renames them, so that a table in use stays whole as long as anyone maps it. Truncating one
/// by hand raises `SIGBUS` in its readers, as with any mapped file. Tables in memory are sealed.
#[derive(Clone)]
pub struct PathTable {
    shared: Arc<Shared>,
    root: Arc<[u8]>,
}

struct Shared {
    map: Mmap,
    header: Header,
    file: File,
    path: PathBuf,
}

impl PathTable {
    /// Maps the table at `path`. Checks the header and the section geometry only.
    ///
    /// # Errors
    /// Where the file can't be mapped, is not a path table, has another version, or is damaged in
    /// its header.
    pub fn attach(path: impl AsRef<Path>) -> Result<Self, TableError> {
        let path = path.as_ref();
        // A pipe in its place must not have this wait for a writer; regular files don't care.
        let nonblocking = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(nonblocking).open(path);
        let file = file.map_err(|source| TableError::Io { path: path.to_owned(), source })?;
        Self::map(file, path.to_owned())
    }

    /// Maps the table that `file` holds, for processes that get a descriptor rather than a path.
    ///
    /// # Errors
    /// Those of [`attach`](Self::attach).
    pub fn from_file(file: File) -> Result<Self, TableError> {
        Self::map(file, PathBuf::from("(from a descriptor)"))
    }

    /// A table that exists in memory only, mapped by whoever holds its descriptor.
    pub(crate) fn in_memory(bytes: &[u8]) -> Result<Self, TableError> {
        let path = PathBuf::from("(in memory)");
        match sealed_file("path-table", bytes) {
            Ok(file) => Self::map(file, path),
            Err(source) => Err(TableError::Io { path, source }),
        }
    }

    pub(crate) fn map(file: File, path: PathBuf) -> Result<Self, TableError> {
        // SAFETY:
        // - The map is read-only and shared, and lives as long as `Shared` holds it.
        // - Its bytes must not change while a slice of them is borrowed. Tables are written aside,
        //   renamed into place with mode 0600 and never written again, and those in memory are
        //   sealed (`cache`); "Trust" above tells users to keep to that. The code relies on it for
        //   no more than consistent answers: each read checks its bounds against the map's length.
        let map = unsafe { Mmap::map(&file) };
        let map = map.map_err(|source| TableError::Io { path: path.clone(), source })?;
        let header = Header::decode(&map).map_err(|fault| explain(fault, &path))?;
        let mut table =
            Self { shared: Arc::new(Shared { map, header, file, path }), root: Arc::default() };
        table.root = trimmed(table.section(Section::Root)).into();
        Ok(table)
    }

    /// The same table with another root folder, for a dataset that is mounted elsewhere than where
    /// it was scanned.
    pub fn with_root(&self, root: impl AsRef<Path>) -> Self {
        let root = trimmed(root.as_ref().as_os_str().as_bytes()).into();
        Self { shared: self.shared.clone(), root }
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.shared.header.entries
    }

    /// True where there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The folder that the paths are relative to.
    pub fn root(&self) -> &Path {
        Path::new(OsStr::from_bytes(if self.root.is_empty() { b"/" } else { &self.root }))
    }

    /// The number of classes.
    pub fn class_count(&self) -> u32 {
        self.shared.header.classes
    }

    /// The name of a class; `None` where there is no such class or the table is damaged there.
    pub fn class_name(&self, class: u32) -> Option<&OsStr> {
        if class >= self.class_count() {
            return None;
        }
        let end = |class: u32| read_u32(self.section(Section::ClassEnds), class as usize * 4);
        let start = if class == 0 { 0 } else { end(class - 1)? };
        let name = self.section(Section::ClassNames).get(start as usize..end(class)? as usize)?;
        Some(OsStr::from_bytes(name))
    }

    /// The number of directories that were scanned, those without entries included.
    pub fn directories(&self) -> u32 {
        self.shared.header.dirs
    }

    /// Identifies the classes and the entries in their order, with their labels: not the root
    /// folder, nor anything about the files' contents.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.shared.header.fingerprint)
    }

    /// Bytes of the whole table.
    pub fn file_len(&self) -> u64 {
        self.shared.map.len() as u64
    }

    /// Bytes that grow with the number of entries: all but the header, the root, the options, the
    /// report, the classes and the directories.
    pub fn entry_bytes(&self) -> u64 {
        [Section::Names, Section::Blocks, Section::Deltas, Section::Order, Section::Labels]
            .map(|section| self.section(section).len() as u64)
            .iter()
            .sum()
    }

    /// The table's file, or a description in brackets where it has no name.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The open file, to hand to a process that shall attach by [`from_file`](Self::from_file).
    pub fn file(&self) -> &File {
        &self.shared.file
    }

    /// Writes the table to `path`: aside, synced, and renamed into place.
    ///
    /// # Errors
    /// Where that fails; the file is then as it was before.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TableError> {
        let path = path.as_ref();
        kept::replace(path, |file| file.write_all(&self.shared.map))
            .map(drop)
            .map_err(|source| TableError::Io { path: path.to_owned(), source })
    }

    /// The entry at that position of the order.
    ///
    /// # Errors
    /// Where there is no such entry, or the table is damaged there.
    pub fn get(&self, index: u64) -> Result<Entry<'_>, TableError> {
        if index >= self.len() {
            return Err(TableError::OutOfRange { index, len: self.len() });
        }
        self.entry(index).map_err(|fault| explain(fault, &self.shared.path))
    }

    /// All entries in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<Entry<'_>, TableError>> + '_ {
        // A file of so many entries would not fit into the address space.
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        (0..len).map(|index| self.get(index as u64))
    }

    /// What the scan left out, and why. Empty for a table that was made from a list.
    ///
    /// # Errors
    /// Where the table is damaged there.
    pub fn report(&self) -> Result<ScanReport, TableError> {
        ScanReport::of_table(self).map_err(|fault| explain(fault, &self.shared.path))
    }

    /// Checks every byte: checksums, positions, ranges, the order and the fingerprint. Reads the
    /// whole file: some 40 ms for a million entries.
    ///
    /// # Errors
    /// Where the table is damaged, naming the first place found.
    pub fn verify(&self) -> Result<(), TableError> {
        self.check().map_err(|fault| explain(fault, &self.shared.path))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.shared.map
    }

    pub(crate) fn section(&self, section: Section) -> &[u8] {
        // `Header::decode` checked that every section lies inside the map.
        self.shared.map.get(self.shared.header.range(section)).unwrap_or_default()
    }

    pub(crate) fn filled(&self) -> u32 {
        self.shared.header.filled
    }

    pub(crate) fn dir(&self, dir: u32) -> Option<DirRecord> {
        let at = dir as usize * DIR_LEN;
        DirRecord::decode(self.section(Section::Dirs).get(at..at.checked_add(DIR_LEN)?)?)
    }

    pub(crate) fn stamp(&self, dir: u32) -> Option<Stamp> {
        let at = dir as usize * STAMP_LEN;
        Stamp::decode(self.section(Section::Stamps).get(at..at.checked_add(STAMP_LEN)?)?)
    }

    /// The directory's path with a slash behind it, the prefix and the suffix of its file names.
    pub(crate) fn dir_text(&self, dir: &DirRecord) -> Option<(&[u8], &[u8], &[u8])> {
        let (path, prefix) = (dir.path as usize, usize::from(dir.prefix));
        let len = path.checked_add(prefix)?.checked_add(usize::from(dir.suffix))?;
        let start = usize::try_from(dir.text).ok()?;
        let text = self.section(Section::DirText).get(start..start.checked_add(len)?)?;
        let (path, names) = text.split_at_checked(path)?;
        let (prefix, suffix) = names.split_at_checked(prefix)?;
        Some((path, prefix, suffix))
    }

    /// The stored entries of a directory: from, to.
    pub(crate) fn dir_entries(&self, dir: u32) -> Option<(u64, u64)> {
        if dir >= self.filled() {
            return Some((self.len(), self.len()));
        }
        let first = self.dir(dir)?.first;
        let end = if dir + 1 < self.filled() { self.dir(dir + 1)?.first } else { self.len() };
        (first <= end && end <= self.len()).then_some((first, end))
    }

    fn block(&self, block: u64) -> Option<(u64, u32)> {
        let at = usize::try_from(block).ok()?.checked_mul(BLOCK_LEN)?;
        let record = self.section(Section::Blocks).get(at..at.checked_add(BLOCK_LEN)?)?;
        Some((read_u64(record, 0)?, read_u32(record, 8)?))
    }

    fn name_start(&self, stored: u64) -> Option<u64> {
        let (base, _) = self.block(stored / BLOCK)?;
        if stored == self.len() {
            return Some(self.block(stored.div_ceil(BLOCK))?.0);
        }
        let delta = read_u16(self.section(Section::Deltas), usize::try_from(stored).ok()? * 2)?;
        base.checked_add(u64::from(delta))
    }

    /// What is left of the stored entry's name between prefix and suffix.
    pub(crate) fn middle(&self, stored: u64) -> Option<&[u8]> {
        let start = usize::try_from(self.name_start(stored)?).ok()?;
        let end = usize::try_from(self.name_start(stored + 1)?).ok()?;
        self.section(Section::Names).get(start..end)
    }

    fn stored(&self, index: u64) -> Result<u64, Fault> {
        let order = self.section(Section::Order);
        if order.is_empty() {
            return Ok(index);
        }
        let at = index * 4;
        let stored = usize::try_from(at).ok().and_then(|at| read_u32(order, at)).map(u64::from);
        stored.filter(|&stored| stored < self.len()).ok_or(Fault::section(
            Section::Order,
            at,
            "entry out of range",
        ))
    }

    /// The directory that holds a stored entry: its block's first one, or one of those behind it.
    fn dir_of(&self, stored: u64) -> Option<(u32, DirRecord)> {
        let (_, mut index) = self.block(stored / BLOCK)?;
        let mut dir = self.dir(index)?;
        // Each further directory has an entry of this block, so there are fewer than a block's.
        for _ in 0..BLOCK {
            if index + 1 >= self.filled() {
                break;
            }
            let next = self.dir(index + 1)?;
            if next.first > stored {
                break;
            }
            (index, dir) = (index + 1, next);
        }
        (dir.first <= stored && index < self.filled()).then_some((index, dir))
    }

    fn entry(&self, index: u64) -> Result<Entry<'_>, Fault> {
        let stored = self.stored(index)?;
        let (_, dir) = self.dir_of(stored).ok_or(Fault::section(
            Section::Blocks,
            stored / BLOCK * BLOCK_LEN as u64,
            "no directory for its entries",
        ))?;
        let (dir_path, prefix, suffix) = self.dir_text(&dir).ok_or(Fault::section(
            Section::DirText,
            dir.text,
            "text of a directory out of range",
        ))?;
        let middle = self.middle(stored).ok_or(Fault::section(
            Section::Deltas,
            stored * 2,
            "name out of range",
        ))?;
        let labels = self.section(Section::Labels);
        let class = if labels.is_empty() {
            Some(dir.class)
        } else {
            usize::try_from(stored).ok().and_then(|stored| read_u32(labels, stored * 4))
        };
        let class = class.filter(|&class| class < self.class_count()).ok_or(Fault::section(
            if labels.is_empty() { Section::Dirs } else { Section::Labels },
            0,
            "class out of range",
        ))?;
        Ok(Entry { root: &self.root, dir: dir_path, prefix, middle, suffix, class })
    }

    fn check(&self) -> Result<(), Fault> {
        let header = &self.shared.header;
        let mut end = super::format::HEADER_LEN;
        for section in Section::ALL {
            let range = header.range(section);
            let gap = self.shared.map.get(end..range.start).unwrap_or_default();
            if gap.len() >= 8 || gap.iter().any(|&b| b != 0) {
                return Err(Fault::section(section, 0, "bytes before it that belong to nothing"));
            }
            if xxh3_64(self.section(section)) != header.checksum(section) {
                return Err(Fault::section(section, 0, "checksum does not match"));
            }
            end = range.end;
        }
        let rest = self.shared.map.get(end..).unwrap_or_default();
        if rest.len() >= 8 || rest.iter().any(|&b| b != 0) {
            return Err(Fault::header(16, "bytes at the end that belong to nothing"));
        }
        self.check_classes()?;
        self.check_dirs()?;
        self.check_names()?;
        self.check_order()?;
        ScanReport::of_table(self)?;
        if self.digest()? != header.fingerprint {
            return Err(Fault::header(48, "fingerprint does not match"));
        }
        Ok(())
    }

    fn check_classes(&self) -> Result<(), Fault> {
        let (ends, names) = (self.section(Section::ClassEnds), self.section(Section::ClassNames));
        let mut last = 0;
        for class in 0..self.class_count() as usize {
            let end = read_u32(ends, class * 4).filter(|&end| end >= last);
            last = end.ok_or(Fault::section(Section::ClassEnds, class as u64 * 4, "decreases"))?;
        }
        if last as usize != names.len() {
            return Err(Fault::section(Section::ClassNames, 0, "length does not fit"));
        }
        Ok(())
    }

    fn check_dirs(&self) -> Result<(), Fault> {
        let labelled = !self.section(Section::Labels).is_empty();
        let mut expected = 0;
        for index in 0..self.directories() {
            let fault = |what| Err(Fault::section(Section::Dirs, index as u64 * 32, what));
            let Some((dir, (path, prefix, suffix))) =
                self.dir(index).and_then(|dir| Some((dir, self.dir_text(&dir)?)))
            else {
                return fault("text out of range");
            };
            if !path.is_empty() && path.last() != Some(&b'/') {
                return fault("path without a slash at its end");
            }
            if [path, prefix, suffix].iter().any(|text| text.contains(&0)) {
                return fault("a zero byte in its text");
            }
            let filled = index < self.filled();
            if filled && !labelled && dir.class >= self.class_count() {
                return fault("class out of range");
            }
            if (!filled || labelled) && dir.class != NO_CLASS {
                return fault("a class that it should not have");
            }
            let first = if filled { dir.first } else { self.len() };
            if dir.first != first || (index == 0 && filled && first != 0) || first < expected {
                return fault("first entry out of order");
            }
            expected = if filled { first + 1 } else { self.len() };
        }
        if expected > self.len() {
            return Err(Fault::section(Section::Dirs, 0, "first entry out of range"));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Fault> {
        let names = self.section(Section::Names);
        let blocks = self.len().div_ceil(BLOCK);
        let mut last = 0;
        let mut dir = 0;
        for block in 0..=blocks {
            let first = block * BLOCK;
            let fault = |what| Fault::section(Section::Blocks, block * BLOCK_LEN as u64, what);
            let (base, hint) = self.block(block).ok_or(fault("cut off"))?;
            if base < last || base > names.len() as u64 || (block == 0 && base != 0) {
                return Err(fault("base out of order"));
            }
            if block == blocks {
                if base != names.len() as u64 || hint != 0 {
                    return Err(fault("last record does not close the names"));
                }
                break;
            }
            while self.dir_entries(dir).is_some_and(|(_, end)| end <= first && dir < self.filled())
            {
                dir += 1;
            }
            if hint != dir {
                return Err(fault("directory does not hold the first entry"));
            }
            last = base;
            for stored in first..(first + BLOCK).min(self.len()) {
                let fault = |what| Fault::section(Section::Deltas, stored * 2, what);
                let start = self.name_start(stored).ok_or(fault("cut off"))?;
                if start < last || (stored == first && start != base) {
                    return Err(fault("decreases"));
                }
                if self.middle(stored).ok_or(fault("name out of range"))?.contains(&0) {
                    return Err(fault("a zero byte in its name"));
                }
                last = start;
            }
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), Fault> {
        let (order, labels) = (self.section(Section::Order), self.section(Section::Labels));
        if !order.is_empty() {
            let mut seen = vec![false; order.len() / 4];
            for index in 0..self.len() {
                let stored = self.stored(index)? as usize;
                if seen.get_mut(stored).is_none_or(|seen| std::mem::replace(seen, true)) {
                    return Err(Fault::section(Section::Order, index * 4, "not a permutation"));
                }
            }
        }
        for (i, label) in labels.as_chunks::<4>().0.iter().enumerate() {
            if u32::from_le_bytes(*label) >= self.class_count() {
                return Err(Fault::section(Section::Labels, i as u64 * 4, "class out of range"));
            }
        }
        Ok(())
    }

    /// The fingerprint, computed from the entries.
    pub(crate) fn digest(&self) -> Result<u128, Fault> {
        let mut digest = Digest::default();
        digest.classes(
            self.class_count(),
            (0..self.class_count())
                .map(|class| self.class_name(class).unwrap_or_default().as_bytes()),
        );
        for index in 0..self.len() {
            let entry = self.entry(index)?;
            digest.entry(entry.dir, entry.class, &[entry.prefix, entry.middle, entry.suffix]);
        }
        Ok(digest.finish())
    }
}

impl AsFd for PathTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.file.as_fd()
    }
}

impl fmt::Debug for PathTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathTable")
            .field("file", &self.path())
            .field("root", &self.root())
            .field("entries", &self.len())
            .field("classes", &self.class_count())
            .field("directories", &self.directories())
            .field("fingerprint", &self.fingerprint())
            .finish()
    }
}

/// One file of a dataset: its path, borrowed from the table, and its class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    root: &'a [u8],
    dir: &'a [u8],
    prefix: &'a [u8],
    middle: &'a [u8],
    suffix: &'a [u8],
    class: u32,
}

impl<'a> Entry<'a> {
    /// The number of its class.
    pub fn class(&self) -> u32 {
        self.class
    }

    /// The number of its class as the integer that training code takes.
    pub fn label(&self) -> i64 {
        i64::from(self.class)
    }

    /// The directory relative to the root, with a slash at its end; empty for the root itself.
    pub fn dir(&self) -> &'a OsStr {
        OsStr::from_bytes(self.dir)
    }

    /// The file name in three pieces to be joined. The first and the last are shared by all files
    /// of the directory.
    pub fn name_parts(&self) -> [&'a [u8]; 3] {
        [self.prefix, self.middle, self.suffix]
    }

    /// Writes the path into `buffer`, in place of what it holds. Allocates only where the buffer
    /// is too small.
    pub fn write_path(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        // A list may hold absolute paths outside of the root.
        if self.dir.first() != Some(&b'/') {
            buffer.extend_from_slice(self.root);
            buffer.push(b'/');
        }
        self.write_relative(buffer);
    }

    fn write_relative(&self, buffer: &mut Vec<u8>) {
        for part in [self.dir, self.prefix, self.middle, self.suffix] {
            buffer.extend_from_slice(part);
        }
    }

    /// The path.
    pub fn to_path(&self) -> PathBuf {
        let mut buffer = Vec::new();
        self.write_path(&mut buffer);
        to_path(buffer)
    }

    /// The path relative to the root folder.
    pub fn to_relative_path(&self) -> PathBuf {
        let mut buffer = Vec::new();
        self.write_relative(&mut buffer);
        to_path(buffer)
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("path", &self.to_path()).field("class", &self.class).finish()
    }
}

pub(crate) fn to_path(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Without slashes at the end; the root of the file system becomes empty.
fn trimmed(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    path
}

fn explain(fault: Fault, path: &Path) -> TableError {
    let path = path.to_owned();
    match fault {
        Fault::NotATable => TableError::NotATable { path },
        Fault::Version(found) => {
            TableError::Version { path, found, supported: super::format::VERSION }
        }
        Fault::Corrupt { section, at, what } => TableError::Corrupt { path, section, at, what },
    }
}
