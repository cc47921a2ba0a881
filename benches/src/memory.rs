//! What a process has of the machine's memory, in the unit that peers tell it in.

use std::fs;

use loader_core::MemoryUse;
use serde::{Deserialize, Serialize};

/// Memory of one process, in kB of 1024 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// All pages that it has mapped and that are in memory, shared ones in full.
    pub rss: u64,
    /// The same, with a page that `n` processes map counted as a part in `n`.
    pub pss: u64,
    /// Pages that no other process maps: what its end would free.
    pub uss: u64,
}

impl Memory {
    /// That of a process; `None` where there is no such process or the system doesn't tell.
    pub fn of(pid: u32) -> Option<Self> {
        let MemoryUse { rss, pss, uss } = MemoryUse::of(pid).ok()?;
        Some(Self { rss: rss >> 10, pss: pss >> 10, uss: uss >> 10 })
    }
}

/// What a process must not have more and more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Memory that belongs to no file and is not shared, such as the heap, in kB of 1024 bytes.
    pub anonymous: u64,
}

impl Footprint {
    /// That of this process; `None` where the system doesn't tell.
    pub fn now() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let anonymous = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(Self { descriptors: fs::read_dir("/proc/self/fd").ok()?.count(), anonymous })
    }
}

/// The processes that any thread of a process has started and not waited for.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")));
    let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// The proportional set sizes of this process, of those that it has started and of its workers, which
/// are its fork server's, in kB of 1024 bytes: what they have of the machine's memory together.
pub fn pss_with(workers: &[u32]) -> u64 {
    let own = std::process::id();
    let all = [&[own], workers, &children(own)].concat();
    all.iter().filter_map(|&pid| Memory::of(pid)).map(|memory| memory.pss).sum()
}
