//! The segment that an arena lies in. Most are anonymous (memfd): they have no name to leave behind,
//! take nothing from `/dev/shm`, and go with their last holder. One that other processes may open by
//! name is a [`Mapped`] with more behind the arena.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;

use super::board::Words;
use super::named::{Mapped, free_in};
use super::sync::{AtomicU32, AtomicU64};
use crate::limits;

/// Why there is no memory for batches, a table or an array.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Reserving it would exceed what the machine or the control group has left.
    #[error(
        "{needed} bytes of shared memory are needed, but only {available} are available: raise the \
         memory limit, or, for batches, lower batch_size or prefetch"
    )]
    Exhausted {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that can be had, by `/proc/meminfo` and the control group's limit.
        available: u64,
    },
    /// `/dev/shm` has no room for it.
    #[error(
        "{needed} bytes are needed in /dev/shm, where {free} are free: enlarge it (docker run \
         --shm-size, mount -o remount,size=), for batches lower batch_size or prefetch, or leave out \
         shareable(true), which alone needs it"
    )]
    SharedFull {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that are free there.
        free: u64,
    },
    /// The system refused it.
    #[error("{needed} bytes of shared memory: {source}{}", advice(.source))]
    System {
        /// Bytes asked for.
        needed: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// What helps where the system said so.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => {
            ": there are not so many addresses (ulimit -v limits them). For batches, lower memory_budget, \
             batch_size or prefetch"
        }
        Some(Errno::NOENT) => ": it lies in /dev/shm, which has to be mounted",
        _ => limits::hint(error),
    }
}

/// A range of addresses backed by shared memory, of which only the reserved parts may be touched.
#[derive(Debug)]
pub(super) struct Segment {
    file: File,
    map: Map,
}

#[derive(Debug)]
enum Map {
    Anonymous(MmapRaw),
    Named(Arc<Mapped>),
}

impl Segment {
    /// A segment of `len` bytes of address space, none of them reserved. The system shows it under that
    /// name.
    pub(super) fn create(name: &str, len: usize) -> Result<Self, MemoryError> {
        let system = |source| MemoryError::System { needed: len as u64, source };
        let fd = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|e| system(e.into()))?;
        let file = File::from(fd);
        file.set_len(len as u64).map_err(system)?;
        let map = MmapOptions::new().len(len).map_raw(&file).map_err(system)?;
        Ok(Self { file, map: Map::Anonymous(map) })
    }

    /// The beginning of a segment with a name, whose file that is.
    pub(super) fn named(file: File, map: Arc<Mapped>) -> Self {
        Self { file, map: Map::Named(map) }
    }

    /// Maps a segment that another process created with that length.
    pub(super) fn attach(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let file = File::from(fd);
        let found = file.metadata()?.len();
        // A segment with a name goes on behind the arena.
        if found < len as u64 {
            let text = format!("the segment for batches has {found} bytes, fewer than {len}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Self { file, map: Map::Anonymous(map) })
    }

    /// What another process needs to attach.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reserves memory for a range, so that touching it can't fail later.
    pub(super) fn reserve(&self, range: Range<usize>) -> Result<(), MemoryError> {
        reserve(&self.file, range, matches!(self.map, Map::Named(_)))
    }

    pub(super) fn as_mut_ptr(&self) -> *mut u8 {
        match &self.map {
            Map::Anonymous(map) => map.as_mut_ptr(),
            Map::Named(map) => map.as_mut_ptr(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.map {
            Map::Anonymous(map) => map.len(),
            Map::Named(map) => map.arena_len(),
        }
    }
}

/// Reserves memory for a range of a file in memory. A memfd's pages are limited by nothing but the machine's
/// memory and the control group's, and exceeding either kills a process instead of failing a call, so both
/// are asked first; and those of a file with a name by the size of `/dev/shm` as well.
pub(super) fn reserve(file: &File, range: Range<usize>, is_named: bool) -> Result<(), MemoryError> {
    let needed = range.len() as u64;
    if is_named
        && let Some(free) = free_in(file)
        && needed > free
    {
        return Err(MemoryError::SharedFull { needed, free });
    }
    if let Some(available) = available_memory()
        && needed > available
    {
        return Err(MemoryError::Exhausted { needed, available });
    }
    loop {
        match fallocate(file, FallocateFlags::empty(), range.start as u64, needed) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // Somebody was faster than the look above.
            Err(Errno::NOSPC) if is_named => {
                let free = free_in(file).unwrap_or(0);
                return Err(MemoryError::SharedFull { needed, free });
            }
            Err(e) => return Err(MemoryError::System { needed, source: e.into() }),
        }
    }
}

impl Words for Segment {
    fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.len());
        // SAFETY:
        // - In bounds and aligned: just checked; the map begins at a page.
        // - Reserved: control words lie in the header, reserved when the arena is made, or in a
        //   slot, which is reserved before it is opened, and only then known to workers.
        // - Shared: the words of the control block are only ever accessed as atomics.
        // - Alive: the reference borrows `self`, which owns the map.
        unsafe { AtomicU32::from_ptr(self.as_mut_ptr().add(at).cast()) }
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len());
        // SAFETY: as in `u32`.
        unsafe { AtomicU64::from_ptr(self.as_mut_ptr().add(at).cast()) }
    }
}

/// Bytes that can still be allocated: the machine's `MemAvailable` and, for control groups, what their
/// limits leave this process's group and each one above it. `None` where the machine doesn't tell.
pub(crate) fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    Some(control_group_memory().map_or(machine, |group| group.min(machine)))
}

/// How a version of control groups tells of memory.
struct Groups {
    mount: &'static str,
    max: &'static str,
    current: &'static str,
    /// What stands before the names in `memory.stat` that count groups below, too.
    total: &'static str,
}

const VERSION_2: Groups =
    Groups { mount: "/sys/fs/cgroup", max: "memory.max", current: "memory.current", total: "" };
const VERSION_1: Groups = Groups {
    mount: "/sys/fs/cgroup/memory",
    max: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    total: "total_",
};

fn control_group_memory() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let left = own_groups(&groups).filter_map(|(version, own)| {
        let mount = Path::new(version.mount);
        let above = mount.join(own);
        above
            .ancestors()
            .take_while(|dir| dir.starts_with(mount))
            .filter_map(|dir| version.left(dir))
            .min()
    });
    left.min()
}

/// This process's groups that may limit its memory, below their mounts, as `/proc/self/cgroup` lists
/// them: a number, the controllers, and the path, between colons.
fn own_groups(list: &str) -> impl Iterator<Item = (&'static Groups, &str)> {
    list.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, own) = line.split_once(":/")?;
        let version_1 = controllers.split(',').any(|name| name == "memory");
        match controllers {
            "" => Some((&VERSION_2, own)),
            _ => version_1.then_some((&VERSION_1, own)),
        }
    })
}

impl Groups {
    /// What the group of that folder has left, where it is limited.
    fn left(&self, dir: &Path) -> Option<u64> {
        let read = |file| std::fs::read_to_string(dir.join(file)).ok();
        // Version 2 says "max" where there is no limit, version 1 a number that nobody means. Then nothing else is
        // asked for: the statistics take the system a millisecond.
        let max = read(self.max)?;
        max.trim().parse().ok().filter(|&max: &u64| max < 1 << 62)?;
        let stat = read("memory.stat").unwrap_or_default();
        left_in_group(&max, &read(self.current)?, &stat, self.total)
    }
}

/// What a group has left. Files that were read count towards `memory.current` for as long as they
/// are cached, and whoever reads a dataset fills his group with them; the kernel drops them for
/// whatever else is needed. (Shared memory is not among those two.)
fn left_in_group(max: &str, current: &str, stat: &str, total: &str) -> Option<u64> {
    let max = max.trim().parse::<u64>().ok()?;
    let current = current.trim().parse::<u64>().ok()?;
    let cached = |name: &str| {
        let value = |line: &str| {
            let value = line.strip_prefix(total)?.strip_prefix(name)?.strip_prefix(' ')?;
            value.trim().parse::<u64>().ok()
        };
        stat.lines().find_map(value).unwrap_or(0)
    };
    let cached = cached("active_file").saturating_add(cached("inactive_file"));
    Some(max.saturating_sub(current.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_machine_has_is_an_error_that_tells_both_sides() {
        let available = available_memory().unwrap();
        let len = usize::try_from(available).unwrap() * 2;
        let segment = Segment::create("test", len).unwrap();
        match segment.reserve(0..len) {
            Err(MemoryError::Exhausted { needed, available }) => {
                assert!(needed == len as u64 && available > 0);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_range_beyond_all_addresses_is_an_error_that_names_the_knob() {
        let error = Segment::create("test", 1 << 60).unwrap_err().to_string();
        assert!(error.contains("lower memory_budget"), "{error}");
    }

    #[test]
    fn cached_files_do_not_count_as_used_by_a_control_group() {
        let stat = "anon 300\nfile 650\nshmem 50\ninactive_file 400\nactive_file 200\n";
        assert_eq!(left_in_group("1000\n", "990\n", stat, ""), Some(610));
        assert_eq!(left_in_group("1000\n", "990\n", "", ""), Some(10));
        assert_eq!(left_in_group("100\n", "990\n", stat, ""), Some(0));
        assert_eq!(left_in_group("max\n", "990\n", stat, ""), None);
        let stat =
            "inactive_file 1\nactive_file 2\ntotal_inactive_file 400\ntotal_active_file 200\n";
        assert_eq!(left_in_group("1000\n", "990\n", stat, "total_"), Some(610));
    }

    #[test]
    fn the_control_groups_of_both_versions_are_found() {
        let mounts = |list| -> Vec<_> {
            own_groups(list).map(|(version, own)| (version.max, own.to_owned())).collect()
        };
        let own = |max, own: &str| (max, own.to_owned());
        assert_eq!(mounts("0::/a.slice/b\n"), [own("memory.max", "a.slice/b")]);
        assert_eq!(
            mounts("12:pids:/\n5:cpu,memory:/docker/f:5\n1:name=systemd:/x\n0::/\n"),
            [own("memory.limit_in_bytes", "docker/f:5"), own("memory.max", "")],
        );
        assert_eq!(mounts("3:memoryless:/a\nnonsense\n"), []);
    }

    #[test]
    fn reserved_memory_is_zero() {
        let segment = Segment::create("test", 1 << 20).unwrap();
        segment.reserve(0..1 << 16).unwrap();
        // SAFETY: in bounds and reserved; nobody else has the segment.
        let bytes = unsafe { std::slice::from_raw_parts(segment.as_mut_ptr(), 1 << 16) };
        assert!(bytes.iter().all(|&b| b == 0));
    }
}
