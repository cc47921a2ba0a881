//! Bytes that several processes read where they lie: a file, a file in memory that is sealed, or a
//! segment with a name. Whoever gets its descriptor, or its name, maps the same memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, memfd_create};

use super::named::{create, name_in, open, parse_name, path_of};
use super::sealed::{is_sealed, map_sealed, seal};
use super::segment::{MemoryError, reserve};

/// Bytes that nobody changes any more; a clone is another owner of the same map.
#[derive(Clone, Debug)]
pub(crate) struct SharedBytes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    map: Mmap,
    file: File,
    id: FileId,
    name: Option<OwnedName>,
}

/// Tells files apart while they are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    len: u64,
}

/// A name in `/dev/shm` that goes with its owner.
#[derive(Debug)]
struct OwnedName {
    name: String,
    /// A child that was forked with it must not take it from its parent.
    pid: u32,
}

impl Drop for OwnedName {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = fs::remove_file(path_of(&self.name));
        }
    }
}

impl SharedBytes {
    /// Maps a file, whole. It has to keep its length and content while it is mapped: what replaces it
    /// is written aside and renamed into its place. A file in memory has to be sealed.
    pub(crate) fn of_file(file: File) -> io::Result<Self> {
        let map = if is_sealed(&file) {
            map_sealed(&file)?
        } else {
            // SAFETY: the map is read-only, and lives as long as its bytes are borrowed. That nobody
            // writes to the file is what callers' documentation asks of users, as for path tables;
            // the code relies on it for no more than consistent answers.
            unsafe { Mmap::map(&file)? }
        };
        Self::new(map, file, None)
    }

    /// Makes a file in memory of that length, written by `fill`, which finds zeros. It has no name and
    /// goes with its last holder.
    pub(crate) fn in_memory<E: From<MemoryError>>(
        name: &str,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let system = |source| MemoryError::System { needed: len as u64, source };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags).map(File::from).map_err(|e| system(e.into()))?;
        file.set_len(len as u64).map_err(system)?;
        reserve(&file, 0..len, false)?;
        // SAFETY: this function alone has the file, and the map is gone when it is handed on.
        let mut map = unsafe { MmapMut::map_mut(&file) }.map_err(system)?;
        fill(&mut map)?;
        drop(map);
        seal(&file, name);
        Ok(Self::of_file(file).map_err(system)?)
    }

    /// The same in POSIX shared memory, with a name by which processes open it that are not this one's
    /// children. The name goes with the last owner in this process.
    pub(crate) fn named<E: From<MemoryError>>(
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let system = |source| MemoryError::System { needed: len as u64, source };
        let mut shmem = create(len).map_err(system)?;
        // From here on the name has one owner.
        shmem.set_owner(false);
        let name = OwnedName { name: name_in(&shmem).to_owned(), pid: std::process::id() };
        let file = open(&name.name, true).map_err(system)?;
        reserve(&file, 0..len, true)?;
        // SAFETY:
        // - In bounds: the segment was made that long, and all of it is reserved.
        // - Alone: nobody was told the name yet, and this process has no other reference to it.
        // - Alive: the slice ends before `shmem` is dropped.
        fill(unsafe { std::slice::from_raw_parts_mut(shmem.as_ptr(), len) })?;
        drop(shmem);
        let file = open(&name.name, false).map_err(system)?;
        // SAFETY: as in `of_file`: nobody writes to it any more. Only this user can open it.
        let map = unsafe { MmapOptions::new().len(len).map(&file) }.map_err(system)?;
        Ok(Self::new(map, file, Some(name)).map_err(system)?)
    }

    /// Opens a segment of that name, which has to be this user's.
    pub(crate) fn open_named(name: &str) -> io::Result<Self> {
        // Before anything is opened: the name comes from outside.
        if parse_name(name).is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a segment's name"));
        }
        let file = open(name, false)?;
        let meta = file.metadata()?;
        if meta.uid() != rustix::process::geteuid().as_raw() || !meta.is_file() {
            let what = format!("the segment belongs to user {}, who is another one", meta.uid());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        if meta.blocks().saturating_mul(512) < meta.len() {
            // Reading a hole takes memory, which may not be there.
            let what = "the segment's memory is not reserved: it is no table or array, or damaged";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Self::of_file(file)
    }

    fn new(map: Mmap, file: File, name: Option<OwnedName>) -> io::Result<Self> {
        let meta = file.metadata()?;
        let id = FileId { device: meta.dev(), inode: meta.ino(), len: map.len() as u64 };
        Ok(Self(Arc::new(Inner { map, file, id, name })))
    }

    /// The bytes. They begin at a page, and stay at their address while any clone lives.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.map
    }

    /// A map of its own, private to this process: what is written to it nobody else sees.
    #[cfg(feature = "table")]
    pub(crate) fn copy_on_write(&self) -> io::Result<MmapMut> {
        let mut options = MmapOptions::new();
        // Few pages are ever written to, so a table larger than memory is not refused for what all of
        // them would take.
        options.len(self.0.map.len()).no_reserve_swap();
        // SAFETY: as in `of_file`; what is written goes to private pages.
        unsafe { options.map_copy(&self.0.file) }
    }

    /// Which file it is.
    pub(crate) fn id(&self) -> FileId {
        self.0.id
    }

    /// The segment's name in `/dev/shm`, where this process made it as a named one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(|owned| &*owned.name)
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsFd for SharedBytes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl FileId {
    /// Of an open file.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { device: meta.dev(), inode: meta.ino(), len: meta.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::available_memory;

    fn fill(bytes: &mut [u8]) -> Result<(), MemoryError> {
        bytes.copy_from_slice(b"numbers");
        Ok(())
    }

    #[test]
    fn bytes_in_memory_are_sealed_and_open_by_their_descriptor() {
        let made = SharedBytes::in_memory("test", 7, fill).unwrap();
        let file = File::from(made.as_fd().try_clone_to_owned().unwrap());
        assert!(file.set_len(1).is_err());
        let other = SharedBytes::of_file(file).unwrap();
        assert_eq!((other.bytes(), other.id()), (&b"numbers"[..], made.id()));
        assert_ne!(other.bytes().as_ptr(), made.bytes().as_ptr());
    }

    #[test]
    fn a_named_segment_opens_while_its_owner_lives() {
        let made = SharedBytes::named(7, fill).unwrap();
        let name = made.name().unwrap().to_owned();
        let opened = SharedBytes::open_named(&name).unwrap();
        assert_eq!((opened.name(), opened.id()), (None, made.id()));
        drop(made);
        assert_eq!(opened.bytes(), b"numbers");
        let error = SharedBytes::open_named(&name).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_of_other_things_are_refused() {
        for name in ["", "../../etc/passwd", "loader-core.1.2.3.4", "psm_12345678"] {
            let error = SharedBytes::open_named(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }

    #[cfg(feature = "table")]
    #[test]
    fn writing_to_a_private_map_changes_nothing_else() {
        let made = SharedBytes::in_memory("test", 7, fill).unwrap();
        let mut own = made.copy_on_write().unwrap();
        own[0] = b'N';
        assert_eq!((&own[..2], &made.bytes()[..2]), (&b"Nu"[..], &b"nu"[..]));
    }

    #[test]
    fn more_than_the_machine_has_is_an_error_of_its_own_kind() {
        let len = usize::try_from(available_memory().unwrap()).unwrap() * 2;
        let made = SharedBytes::in_memory::<MemoryError>("test", len, |_| unreachable!());
        assert!(matches!(made, Err(MemoryError::Exhausted { .. })));
        let made = SharedBytes::named::<MemoryError>(len, |_| unreachable!());
        let full =
            matches!(made, Err(MemoryError::Exhausted { .. } | MemoryError::SharedFull { .. }));
        assert!(full, "{made:?}");
    }
}
