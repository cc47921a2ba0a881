//! A segment with a name in `/dev/shm`, for processes that are not the owner's children: how it is
//! made, opened, checked and swept away. Its layout and the protocol are in `docs/sharing-batches.md`.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use shared_memory::{Shmem, ShmemConf, ShmemError};

use super::futex;
use super::geometry::PAGE;
use super::process::{Process, namespace};
use super::segment::{MemoryError, Segment};
use super::share::{self, HOLDERS};

/// Where the names of POSIX shared memory lie as files on Linux.
const DIR: &str = "/dev/shm";
/// What all names begin with.
const PREFIX: &str = "loader-core";

/// Words of the file's last page. The magic number is stored last.
const MAGIC: usize = 0;
const VERSION: usize = 8;
const FILE_LEN: usize = 16;
const SLOTS_AT: usize = 24;
const SLOT_BYTES: usize = 32;
const SLOTS: usize = 40;
const BODY: usize = 48;
const READY: usize = 56;
const NAMESPACE: usize = 64;
/// The holders' table: each entry a process, or 0.
const TABLE: usize = 128;

const MAGIC_NUMBER: u64 = u64::from_le_bytes(*b"ldrshare");
const THIS_VERSION: u64 = 1;

/// Where things lie in the arena at the beginning of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slots_at: usize,
    pub(super) slot_bytes: usize,
    pub(super) slots: usize,
    /// The part of a slot, from here on, that nobody writes while it is held.
    pub(super) body: usize,
    /// The word to count up and wake when a slot becomes free.
    pub(super) ready: usize,
}

impl Layout {
    /// The arena's length and the whole file's. `None` where the numbers contradict each other.
    fn lengths(&self) -> Option<(usize, usize)> {
        let arena = self.slots_at.checked_add(self.slot_bytes.checked_mul(self.slots)?)?;
        let words = self.slots.checked_mul(8)?.checked_next_multiple_of(PAGE)?;
        let whole = arena.checked_add(words)?.checked_add(PAGE)?;
        let pages = self.slots_at.is_multiple_of(PAGE) && self.slot_bytes.is_multiple_of(PAGE);
        let ready = self.ready.is_multiple_of(4) && self.ready.checked_add(4)? <= self.slots_at;
        let fits = u32::try_from(self.slots).is_ok() && whole <= isize::MAX as usize;
        (pages && ready && fits && self.body <= self.slot_bytes).then_some((arena, whole))
    }
}

/// Bytes free in the file system of a file. `None` where it has no limit of its own.
pub(super) fn free_in(file: &File) -> Option<u64> {
    let stat = rustix::fs::fstatvfs(file).ok()?;
    (stat.f_blocks > 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(super) fn path_of(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn name_of(owner: Process, namespace: u64, random: u64) -> String {
    format!("{PREFIX}.{}.{:08x}.{namespace:016x}.{random:016x}", owner.pid(), owner.start())
}

/// Whose segment has that name, and in which namespace. `None` for all other names.
pub(super) fn parse_name(name: &str) -> Option<(Process, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('.')?.split('.');
    let pid = parts.next()?.parse().ok()?;
    let start = u32::from_str_radix(parts.next()?, 16).ok()?;
    let namespace = u64::from_str_radix(parts.next()?, 16).ok()?;
    let random = u64::from_str_radix(parts.next()?, 16).ok()?;
    let owner = Process::new(pid, start);
    (name_of(owner, namespace, random) == name).then_some((owner, namespace))
}

/// Makes a segment of this process's, of that length, none of which is reserved, under a name that nobody has.
pub(super) fn create(len: usize) -> io::Result<Shmem> {
    let (owner, namespace) = (Process::current()?, namespace()?);
    loop {
        // The standard library seeds each of these at random.
        let name = name_of(owner, namespace, RandomState::new().build_hasher().finish());
        match ShmemConf::new().size(len).os_id(format!("/{name}")).create() {
            Err(ShmemError::MappingIdExists) => {}
            made => return made.map_err(|e| os_error(&e)),
        }
    }
}

/// The name of a segment in `/dev/shm`.
pub(super) fn name_in(shmem: &Shmem) -> &str {
    shmem.get_os_id().trim_start_matches('/')
}

/// The file of that name in `/dev/shm`; a link is not followed.
pub(super) fn open(name: &str, write: bool) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new().read(true).write(write).custom_flags(flags).open(path_of(name))
}

/// A mapped segment.
pub(super) struct Mapped {
    shmem: Shmem,
    layout: Layout,
    arena_len: usize,
    /// The process that mapped it: its children inherit the mapping, not its duties.
    pid: u32,
}

// SAFETY: `Shmem` is an address, a length, a descriptor and strings, none of which belongs to a
// thread. What lies at the address is shared with other processes anyway; it is reached through
// atomics, and through `Reference::bytes` and the arena, which argue for themselves.
unsafe impl Send for Mapped {}
// SAFETY: as above; no method of `Shmem` that takes `&self` writes.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(shmem: Shmem, layout: Layout, arena_len: usize) -> Self {
        Self { shmem, layout, arena_len, pid: std::process::id() }
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        self.shmem.as_ptr()
    }

    /// Bytes of the arena, which the segment begins with.
    pub(super) fn arena_len(&self) -> usize {
        self.arena_len
    }

    fn name(&self) -> &str {
        name_in(&self.shmem)
    }

    /// A word of the last page.
    fn head(&self, word: usize) -> &AtomicU64 {
        &words(&self.shmem, self.shmem.len() - PAGE + word, 1)[0]
    }

    fn table(&self) -> &[AtomicU64] {
        words(&self.shmem, self.shmem.len() - PAGE + TABLE, HOLDERS)
    }

    /// One word a slot.
    fn slots(&self) -> &[AtomicU64] {
        words(&self.shmem, self.arena_len, self.layout.slots)
    }

    fn slot(&self, slot: u32) -> &AtomicU64 {
        &self.slots()[slot as usize]
    }

    /// Wakes the owner, who may wait for a slot.
    fn notify(&self) {
        // SAFETY:
        // - In bounds and aligned: `Layout::lengths` checked it, and the map begins at a page.
        // - Reserved and shared: it lies in the arena's control block, all words of which are only
        //   ever accessed as atomics; and before the slots, so no slice covers it.
        // - Alive: the reference borrows `self`, which owns the map.
        futex::notify(unsafe {
            AtomicU32::from_ptr(self.as_mut_ptr().add(self.layout.ready).cast())
        });
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // A child that was forked with it must not take the name from its parent.
            self.shmem.set_owner(false);
        }
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The words at a place outside of the arena's slots.
fn words(shmem: &Shmem, at: usize, count: usize) -> &[AtomicU64] {
    let end = count.checked_mul(8).and_then(|bytes| bytes.checked_add(at));
    assert!(at.is_multiple_of(8) && end.is_some_and(|end| end <= shmem.len()));
    // SAFETY:
    // - In bounds and aligned: just checked; the map begins at a page.
    // - Reserved: `create` reserved all that lies behind the arena. (Who opens a file checked that
    //   it is his own user's, and as long as it was then; see "Trust" in docs/sharing-batches.md.)
    // - Shared: what lies behind the arena is only ever accessed as atomics.
    // - Alive: the slice borrows the map.
    unsafe { slice::from_raw_parts(shmem.as_ptr().add(at).cast::<AtomicU64>(), count) }
}

fn os_error(error: &ShmemError) -> io::Error {
    match error {
        ShmemError::MapCreateFailed(code)
        | ShmemError::MapOpenFailed(code)
        | ShmemError::UnknownOsError(code) => io::Error::from_raw_os_error(*code as i32),
        other => io::Error::other(other.to_string()),
    }
}

/// The owner's side of a named segment. Dropping it removes the name.
#[derive(Debug)]
pub(crate) struct Shares {
    mapped: Arc<Mapped>,
    /// Held while the dead are looked for, which one caller may do at a time.
    reaping: Mutex<()>,
}

impl Drop for Shares {
    fn drop(&mut self) {
        // Not left to the mapping, which a worker that is busy with a sample keeps for as long, even
        // to the end of the process.
        if self.mapped.pid == std::process::id() {
            let _ = fs::remove_file(path_of(self.name()));
        }
    }
}

impl Shares {
    /// Makes a segment with room for that arena, nothing of which is reserved, though there is room
    /// for `at_once` slots.
    pub(super) fn create(layout: Layout, at_once: usize) -> Result<(Segment, Self), MemoryError> {
        let needed = (layout.slots_at + layout.slot_bytes * layout.slots) as u64;
        let system = |source| MemoryError::System { needed, source };
        let (arena_len, len) =
            layout.lengths().ok_or_else(|| system(io::ErrorKind::InvalidInput.into()))?;
        let namespace = namespace().map_err(system)?;
        let shmem = create(len).map_err(system)?;
        let mapped = Arc::new(Mapped::new(shmem, layout, arena_len));
        // To reserve memory later: not by the name, which somebody may have removed by then.
        let file = open(mapped.name(), true).map_err(system)?;
        if let Some(free) = free_in(&file) {
            let now = layout.slots_at + layout.slot_bytes * at_once + (len - arena_len);
            if now as u64 > free {
                return Err(MemoryError::SharedFull { needed: now as u64, free });
            }
        }
        let segment = Segment::named(file, Arc::clone(&mapped));
        segment.reserve(arena_len..len)?;
        let head = [
            (VERSION, THIS_VERSION),
            (FILE_LEN, len as u64),
            (SLOTS_AT, layout.slots_at as u64),
            (SLOT_BYTES, layout.slot_bytes as u64),
            (SLOTS, layout.slots as u64),
            (BODY, layout.body as u64),
            (READY, layout.ready as u64),
            (NAMESPACE, namespace),
        ];
        for (word, value) in head {
            mapped.head(word).store(value, Ordering::Relaxed);
        }
        // Release: pairs with `map`.
        mapped.head(MAGIC).store(MAGIC_NUMBER, Ordering::Release);
        Ok((segment, Self { mapped, reaping: Mutex::default() }))
    }

    /// The segment's name.
    pub(crate) fn name(&self) -> &str {
        self.mapped.name()
    }

    /// Lets other processes open a slot that the caller holds, and that is free. Returns the
    /// generation.
    pub(crate) fn publish(&self, slot: u32) -> u32 {
        let taken = self.mapped.table().iter().filter(|h| h.load(Ordering::Relaxed) != 0).count();
        if taken > HOLDERS / 2 {
            self.reap();
        }
        share::publish(self.mapped.slot(slot))
    }

    /// Ends the opening of a slot. True where nobody has it open.
    pub(crate) fn withdraw(&self, slot: u32) -> bool {
        // A child that was forked with the batch does not own the slot.
        self.mapped.pid == std::process::id() && share::withdraw(self.mapped.slot(slot))
    }

    /// True where nobody has the slot open and nobody can open it.
    pub(crate) fn is_free(&self, slot: u32) -> bool {
        share::is_free(self.mapped.slot(slot))
    }

    /// Takes back what processes had open that are dead. True where a slot became free. Takes some
    /// ten microseconds for each process that has batches open.
    pub(crate) fn reap(&self) -> bool {
        let _alone = lock(&self.reaping);
        let is_dead = |holder| Process(holder).is_dead();
        share::reap(self.mapped.table(), self.mapped.slots(), is_dead)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a shared batch can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The loader's segment is not there.
    #[error(
        "segment {segment} is gone: its loader and all its batches were dropped, or its name was \
         removed from /dev/shm"
    )]
    Gone {
        /// Its name in `/dev/shm`.
        segment: String,
    },
    /// The sender dropped the batch.
    #[error(
        "batch {number} of epoch {epoch} is gone: its sender dropped it before it was opened here \
         (keep the batch until the receiver has opened it)"
    )]
    Dropped {
        /// Its epoch.
        epoch: u64,
        /// Its number there.
        number: u64,
    },
    /// Somebody else's.
    #[error("segment {segment} belongs to user {owner}: batches are shared within one user")]
    OtherUser {
        /// Its name in `/dev/shm`.
        segment: String,
        /// The user's number.
        owner: u32,
    },
    /// Made where processes have other numbers, so that the sender could not notice this one's death.
    #[error(
        "segment {segment} was made in another PID or time namespace, such as a container's: run \
         sender and receiver in one (docker run --pid=container:NAME --ipc=container:NAME)"
    )]
    OtherNamespace {
        /// Its name in `/dev/shm`.
        segment: String,
    },
    /// Too many processes.
    #[error("{limit} processes have batches of segment {segment} open already: that is the limit")]
    TooManyProcesses {
        /// Its name in `/dev/shm`.
        segment: String,
        /// The most there can be.
        limit: usize,
    },
    /// The handle or the segment is not what this crate made, or was made by another version.
    #[error("shared batch in segment {segment:?}: {what}")]
    Damaged {
        /// Its name in `/dev/shm`.
        segment: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The system refused it.
    #[error("opening segment {segment}: {source}")]
    Io {
        /// Its name in `/dev/shm`.
        segment: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Maps a segment of that name, after checking that it is this user's and holds what it says.
fn map(name: &str) -> Result<Mapped, OpenError> {
    let segment = || name.to_owned();
    let damaged = |what| OpenError::Damaged { segment: segment(), what };
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Gone { segment: segment() },
        _ => OpenError::Io { segment: segment(), source },
    };
    // Before anything is opened: the name comes from outside.
    let (_, theirs) = parse_name(name).ok_or_else(|| damaged("not a segment's name"))?;
    let file = fs::symlink_metadata(path_of(name)).map_err(io)?;
    if file.uid() != rustix::process::geteuid().as_raw() {
        return Err(OpenError::OtherUser { segment: segment(), owner: file.uid() });
    }
    if theirs != namespace().map_err(io)? {
        return Err(OpenError::OtherNamespace { segment: segment() });
    }
    if !file.is_file() || file.len() < 2 * PAGE as u64 {
        return Err(damaged("too short for a segment"));
    }
    let shmem = ShmemConf::new().os_id(format!("/{name}")).open().map_err(|e| io(os_error(&e)))?;
    if shmem.len() as u64 != file.len() || !shmem.len().is_multiple_of(PAGE) {
        return Err(damaged("its length changes"));
    }
    let word = |at| &words(&shmem, shmem.len() - PAGE + at, 1)[0];
    let number = |at| usize::try_from(word(at).load(Ordering::Relaxed)).unwrap_or(usize::MAX);
    // Acquire: pairs with `create`.
    if word(MAGIC).load(Ordering::Acquire) != MAGIC_NUMBER {
        return Err(damaged("its end is cut off, or it is no segment"));
    }
    if word(VERSION).load(Ordering::Relaxed) != THIS_VERSION {
        return Err(damaged("another version of this crate made it"));
    }
    let layout = Layout {
        slots_at: number(SLOTS_AT),
        slot_bytes: number(SLOT_BYTES),
        slots: number(SLOTS),
        body: number(BODY),
        ready: number(READY),
    };
    match layout.lengths() {
        Some((arena_len, len)) if len == shmem.len() && len == number(FILE_LEN) => {
            // A file with holes may have no memory behind it.
            let least = layout.slots_at + layout.slot_bytes + (len - arena_len);
            if file.blocks().saturating_mul(512) < least.min(len) as u64 {
                return Err(damaged("its memory is not reserved"));
            }
            Ok(Mapped::new(shmem, layout, arena_len))
        }
        _ => Err(damaged("its length is not what it says")),
    }
}

/// This process's part in a segment of another one: an entry in the table of holders.
struct Attachment {
    mapped: Mapped,
    process: Process,
    holder: u32,
    /// How often each slot is open here.
    open: Mutex<HashMap<u32, usize>>,
}

/// Segments that batches are open of, so that each is mapped once.
static ATTACHED: Mutex<Option<HashMap<String, Weak<Attachment>>>> = Mutex::new(None);

impl Attachment {
    fn of(segment: &str) -> Result<Arc<Self>, OpenError> {
        let mut attached = lock(&ATTACHED);
        let attached = attached.get_or_insert_default();
        // An entry that came here through a fork is the parent's.
        let own = |kept: &Arc<Self>| kept.mapped.pid == std::process::id();
        if let Some(kept) = attached.get(segment).and_then(Weak::upgrade).filter(own) {
            return Ok(kept);
        }
        let mapped = map(segment)?;
        let process = Process::current()
            .map_err(|source| OpenError::Io { segment: segment.to_owned(), source })?;
        let limit = HOLDERS;
        let holder = share::register(mapped.table(), process.0)
            .ok_or_else(|| OpenError::TooManyProcesses { segment: segment.to_owned(), limit })?;
        let made = Arc::new(Self { mapped, process, holder, open: Mutex::default() });
        attached.retain(|_, kept| kept.strong_count() > 0);
        attached.insert(segment.to_owned(), Arc::downgrade(&made));
        Ok(made)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if self.mapped.pid == std::process::id() {
            // No bit is left: every reference is gone, for they own this.
            share::unregister(&self.mapped.table()[self.holder as usize], self.process.0);
        }
    }
}

/// A slot of another process's segment, kept from being used again.
pub(crate) struct Reference {
    attachment: Arc<Attachment>,
    slot: u32,
}

impl Reference {
    /// Opens a slot; `None` where it is not open, or holds another batch by now.
    pub(crate) fn open(
        segment: &str,
        slot: u32,
        generation: u32,
    ) -> Result<Option<Self>, OpenError> {
        let attachment = Attachment::of(segment)?;
        let Some(word) = attachment.mapped.slots().get(slot as usize) else {
            let what = "the handle names a slot that is not there";
            return Err(OpenError::Damaged { segment: segment.to_owned(), what });
        };
        let mut open = lock(&attachment.open);
        let acquired = match open.get_mut(&slot) {
            // This process has it open, so it holds what it did.
            Some(count) if share::generation(word) == generation => {
                *count += 1;
                true
            }
            Some(_) => false,
            None => {
                let acquired = share::acquire(word, generation, attachment.holder);
                if acquired {
                    open.insert(slot, 1);
                }
                acquired
            }
        };
        drop(open);
        Ok(acquired.then_some(Self { attachment, slot }))
    }

    /// A part of the slot, by its place in the file. `None` where it is not within what the slot's
    /// batch takes.
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let mapped = &self.attachment.mapped;
        let Layout { slots_at, slot_bytes, body, .. } = mapped.layout;
        // In bounds of the map: `Layout::lengths` and `open` checked that the slot is.
        let slot = (slots_at + slot_bytes * self.slot as usize) as u64;
        let end = at.checked_add(len)?;
        if at < slot + body as u64 || end > slot + slot_bytes as u64 {
            return None;
        }
        // SAFETY:
        // - In bounds and reserved: it lies in a slot, and a slot has its memory before its batch is
        //   made, let alone shared.
        // - No writer: workers and the pool write to the body of a slot only when it is free, which
        //   it is not while this process's bit is set, and the sender gave up writing when it shared
        //   the batch. Receivers have no way to write.
        // - Initialized: shared pages begin as zero, and every byte is a valid `u8`.
        // - Alive: the slice borrows `self`, which owns the map.
        // Relies on peers running this same code; see "Trust" in docs/sharing-batches.md.
        Some(unsafe { slice::from_raw_parts(mapped.as_mut_ptr().add(at as usize), len as usize) })
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let Attachment { mapped, holder, open, .. } = &*self.attachment;
        if mapped.pid != std::process::id() {
            return;
        }
        let mut open = lock(open);
        let Some(count) = open.get_mut(&self.slot) else { return };
        *count -= 1;
        if *count == 0 {
            open.remove(&self.slot);
            if share::release(mapped.slot(self.slot), *holder) {
                mapped.notify();
            }
        }
    }
}

/// A segment that [`sweep_segments`] removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweptSegment {
    /// Its name in `/dev/shm`.
    pub name: String,
    /// The number that its owner had.
    pub pid: u32,
    /// Bytes of memory that it held.
    pub bytes: u64,
}

/// Removes segments in `/dev/shm` whose loader was killed, and tells which. Building a loader that is
/// [`shareable`](crate::DataLoaderBuilder::shareable) does it too.
///
/// Only segments of this crate and this user are looked at, and of those only the ones whose owner is
/// certainly gone: neither one that lives, nor one in another PID namespace, such as a container's.
/// Batches that somebody still has open stay readable until they are dropped.
///
/// # Errors
/// Where `/dev/shm` can't be listed, or a segment can't be removed.
pub fn sweep_segments() -> io::Result<Vec<SweptSegment>> {
    let listing = match fs::read_dir(DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing?,
    };
    let (here, user) = (namespace()?, rustix::process::geteuid().as_raw());
    let mut swept = Vec::new();
    for entry in listing {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some((owner, namespace)) = parse_name(&name) else { continue };
        if namespace != here || !owner.is_dead() {
            continue;
        }
        let removed = entry.metadata().and_then(|file| {
            let ours = file.uid() == user;
            if ours {
                fs::remove_file(entry.path())?;
            }
            Ok(ours.then_some(file.blocks().saturating_mul(512)))
        });
        match removed {
            Ok(Some(bytes)) => swept.push(SweptSegment { name, pid: owner.pid(), bytes }),
            Ok(None) => {}
            // Somebody else swept it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner_and_nothing_else_is_taken_for_one() {
        let owner = Process::new(4_194_303, 0xfedc_ba98);
        let name = name_of(owner, 0x12, u64::MAX);
        assert_eq!(name, "loader-core.4194303.fedcba98.0000000000000012.ffffffffffffffff");
        assert_eq!(parse_name(&name), Some((owner, 0x12)));
        for other in [
            "".to_owned(),
            "loader-core".to_owned(),
            name.replace("fedcba98", "FEDCBA98"),
            name.replace("4194303", "+4194303"),
            name.replace("4194303", "04194303"),
            name.replace("4194303", "4194304999999"),
            format!("{name}.0"),
            format!("../{name}"),
            format!("{name}/"),
            name.replace("loader-core", "loader-core2"),
        ] {
            assert_eq!(parse_name(&other), None, "{other}");
        }
    }

    #[test]
    fn a_layout_that_can_not_be_is_refused() {
        let layout = Layout { slots_at: 4096, slot_bytes: 8192, slots: 3, body: 192, ready: 64 };
        assert_eq!(layout.lengths(), Some((4096 + 3 * 8192, 4096 + 3 * 8192 + 8192)));
        for wrong in [
            Layout { slots_at: 4095, ..layout },
            Layout { slot_bytes: 8200, ..layout },
            Layout { slot_bytes: usize::MAX - 4095, ..layout },
            Layout { slots: usize::MAX / 8192, ..layout },
            Layout { slots: usize::MAX, ..layout },
            Layout { body: 8193, ..layout },
            Layout { ready: 4096, ..layout },
            Layout { ready: 62, ..layout },
            Layout { ready: usize::MAX - 3, ..layout },
        ] {
            assert_eq!(wrong.lengths(), None, "{wrong:?}");
        }
    }

    #[test]
    fn generations_start_over_after_the_last_one() {
        let word = AtomicU64::new(!0 << (HOLDERS + 1));
        assert!(share::is_free(&word));
        assert_eq!(share::publish(&word), 0);
        assert!(share::acquire(&word, 0, 31) && !share::withdraw(&word) && !share::is_free(&word));
        assert!(!share::acquire(&word, 0, 3), "withdrawn");
        assert!(share::release(&word, 31) && share::is_free(&word));
        assert_eq!(share::publish(&word), 1);
    }

    #[test]
    fn taking_a_holder_back_twice_changes_nothing() {
        let word = AtomicU64::new(0);
        let generation = share::publish(&word);
        assert!(share::acquire(&word, generation, 0) && share::acquire(&word, generation, 1));
        share::withdraw(&word);
        assert!(!share::release(&word, 1) && !share::release(&word, 1) && !share::is_free(&word));
        assert!(share::release(&word, 0) && !share::release(&word, 0) && share::is_free(&word));
    }
}
