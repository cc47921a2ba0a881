//! Where the memory goes: what each process of a loader has, and how much of it is the same memory,
//! which adding up what `top` and `ps` show counts again and again.

use std::fmt;
use std::fs;
use std::io;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// What a process, or a part of it, has of the machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Pages that are mapped and in memory, shared ones in full: "resident set size".
    pub rss: u64,
    /// The same, with a page that `n` processes map counted as a part in `n`: "proportional". This one
    /// may be added up.
    pub pss: u64,
    /// Pages that no other process maps, which is what the end of the process would free: "unique".
    pub uss: u64,
}

/// The part that a process has in a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessRole {
    /// The program that has the loader.
    Program,
    /// The process that forks workers.
    ForkServer,
    /// A worker process.
    Worker,
    /// Any other.
    Other,
}

/// The memory of one process, in total and by what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessMemory {
    /// Its number.
    pub pid: u32,
    /// Its part.
    pub role: ProcessRole,
    /// Everything.
    pub total: MemoryUse,
    /// Shared memory that batches are made in, of any loader.
    pub batches: MemoryUse,
    /// Path tables, arrays, and other files that the dataset or a task hands to workers.
    pub table: MemoryUse,
    /// Program and libraries, and other files that are mapped.
    pub files: MemoryUse,
    /// Heap, stacks, and what else belongs to no file. After a fork it is shared until one side writes.
    pub anonymous: MemoryUse,
}

/// The memory of the processes of a loader. Shown, it says what of it is shared.
///
/// Made by [`DataLoader::memory_report`](crate::DataLoader::memory_report).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The program first, then the fork server if there is one, then the worker processes.
    pub processes: Vec<ProcessMemory>,
}

impl MemoryUse {
    /// That of a process, by `/proc/PID/smaps_rollup`. Takes as long as it takes the system to look at
    /// all of its pages.
    ///
    /// # Errors
    /// Where there is no such process, or it may not be looked at.
    pub fn of(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let mut total = Self::default();
        text.lines().for_each(|line| total.count(line));
        Ok(total)
    }

    /// Adds a line such as `Pss:  12 kB`; others are passed over.
    fn count(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(':') else { return };
        let field = match key {
            "Rss" => &mut self.rss,
            "Pss" => &mut self.pss,
            "Private_Clean" | "Private_Dirty" | "Private_Hugetlb" => &mut self.uss,
            _ => return,
        };
        let kb = value.trim().strip_suffix(" kB").and_then(|kb| kb.trim().parse::<u64>().ok());
        *field += kb.unwrap_or(0) << 10;
    }
}

impl AddAssign for MemoryUse {
    fn add_assign(&mut self, other: Self) {
        self.rss += other.rss;
        self.pss += other.pss;
        self.uss += other.uss;
    }
}

/// What a mapping holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Batches,
    Table,
    File,
    Anonymous,
}

impl Content {
    /// By the name of what is mapped; `tables` are names of the dataset's own files.
    fn of(name: &str, tables: &[String]) -> Self {
        let is_table = |name: &str| {
            let in_memory = [
                "/memfd:path-table",
                "/memfd:loader-array",
                "/memfd:loader-parcel",
                "/memfd:loader-table",
            ];
            in_memory.iter().any(|prefix| name.starts_with(prefix))
                || [".paths", ".npy", ".arrow"].iter().any(|suffix| name.ends_with(suffix))
        };
        let plain = name.strip_suffix(" (deleted)").unwrap_or(name);
        // A table may lie in a segment, as batches do.
        if is_table(plain) || tables.iter().any(|table| table == name) {
            Self::Table
        } else if name.starts_with("/memfd:loader-batches")
            || name.starts_with("/dev/shm/loader-core.")
        {
            Self::Batches
        } else if name.starts_with('/') {
            Self::File
        } else {
            Self::Anonymous
        }
    }
}

/// What a line of smaps that begins a mapping names: all behind the fifth column.
fn mapping(line: &str) -> Option<&str> {
    let mut columns = line.splitn(6, ' ');
    let (range, permissions) = (columns.next()?, columns.next()?);
    // `Rss:    4 kB` has a colon and no range.
    (!range.ends_with(':') && range.contains('-') && permissions.len() == 4)
        .then(|| columns.nth(3).unwrap_or("").trim_start())
}

impl ProcessMemory {
    /// That of any process.
    ///
    /// # Errors
    /// Where there is no such process, or it may not be looked at.
    pub fn of(pid: u32) -> io::Result<Self> {
        Self::with(pid, ProcessRole::Other, &[])
    }

    /// What would be freed if this process ended: its USS without shared memory that nobody else happens to
    /// have looked at.
    pub fn own(&self) -> u64 {
        self.total.uss.saturating_sub(self.batches.uss).saturating_sub(self.table.uss)
    }

    fn with(pid: u32, role: ProcessRole, tables: &[String]) -> io::Result<Self> {
        // The parts' PSS is rounded down for each mapping, so the total is asked for by itself.
        let total = MemoryUse::of(pid)?;
        let smaps = fs::read(format!("/proc/{pid}/smaps"))?;
        Ok(Self::parse(pid, role, total, &String::from_utf8_lossy(&smaps), tables))
    }

    fn parse(
        pid: u32,
        role: ProcessRole,
        total: MemoryUse,
        smaps: &str,
        tables: &[String],
    ) -> Self {
        let [batches, table, files, anonymous] = Default::default();
        let mut memory = Self { pid, role, total, batches, table, files, anonymous };
        let mut part = &mut memory.anonymous;
        for line in smaps.lines() {
            match mapping(line).map(|name| Content::of(name, tables)) {
                Some(Content::Batches) => part = &mut memory.batches,
                Some(Content::Table) => part = &mut memory.table,
                Some(Content::File) => part = &mut memory.files,
                Some(Content::Anonymous) => part = &mut memory.anonymous,
                None => part.count(line),
            }
        }
        memory
    }
}

impl MemoryReport {
    /// A report on any processes; those that are gone or may not be looked at are left out.
    pub fn of(pids: &[u32]) -> Self {
        let processes = pids.iter().filter_map(|&pid| ProcessMemory::of(pid).ok()).collect();
        Self { processes }
    }

    /// A report on the processes of a loader whose dataset has those files open.
    pub(crate) fn of_loader(pids: &[(u32, ProcessRole)], tables: &[String]) -> Self {
        let of = |&(pid, role): &(u32, ProcessRole)| ProcessMemory::with(pid, role, tables).ok();
        Self { processes: pids.iter().filter_map(of).collect() }
    }

    /// A part of all processes together. Only its `pss` is memory of the machine: the sum of `rss`
    /// counts shared memory once for each process, the sum of `uss` not at all.
    pub fn sum(&self, part: impl Fn(&ProcessMemory) -> MemoryUse) -> MemoryUse {
        let mut sum = MemoryUse::default();
        self.processes.iter().for_each(|process| sum += part(process));
        sum
    }
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// A table in megabytes, and what it means.
impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |process: &ProcessMemory| match process.role {
            ProcessRole::Program => "program",
            ProcessRole::ForkServer => "fork server",
            ProcessRole::Worker => "worker",
            ProcessRole::Other => "process",
        };
        writeln!(
            f,
            "{:20} {:>9} {:>9} {:>9}   of RSS: {:>8} {:>8} {:>8} {:>8}",
            "MB", "RSS", "PSS", "USS", "batches", "table", "code", "heap"
        )?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, of: &dyn Fn(Part) -> MemoryUse| {
            let total = of(Part::Total);
            let [rss, pss, uss] = [total.rss, total.pss, total.uss].map(mb);
            let parts = [Part::Batches, Part::Table, Part::Files, Part::Anonymous];
            let [batches, table, files, anonymous] = parts.map(|part| mb(of(part).rss));
            writeln!(
                f,
                "{name:20} {rss:>9} {pss:>9} {uss:>9}           {batches:>8} {table:>8} {files:>8} \
                 {anonymous:>8}"
            )
        };
        for process in &self.processes {
            let name = format!("{} {}", name(process), process.pid);
            row(f, &name, &|part| part.of(process))?;
        }
        if self.processes.len() < 2 {
            return write!(f, "one process: its memory is its RSS");
        }
        row(f, "sum", &|part| self.sum(|process| part.of(process)))?;
        let total = self.sum(|process| process.total);
        writeln!(
            f,
            "These {} processes have {} MB of memory: the sum of PSS. The sum of RSS, {} MB, counts what \
             they share once for each of them:",
            self.processes.len(),
            mb(total.pss),
            mb(total.rss),
        )?;
        for (part, what) in [
            (Part::Batches, "batches, which workers write and the loop reads in place"),
            (
                Part::Table,
                "tables, arrays and other files of datasets and tasks, mapped and not copied",
            ),
            (Part::Files, "program and libraries"),
            (
                Part::Anonymous,
                "heaps and stacks, shared with the fork server until somebody writes",
            ),
        ] {
            let sum = self.sum(|process| part.of(process));
            if sum.rss > 0 {
                writeln!(
                    f,
                    "  {:>8} MB, {:>8} MB in the sum of RSS: {what}",
                    mb(sum.pss),
                    mb(sum.rss)
                )?;
            }
        }
        let workers = || self.processes.iter().filter(|p| p.role == ProcessRole::Worker);
        let Some(own) = workers().map(ProcessMemory::own).max() else {
            return write!(f, "Of their own they have {} MB.", mb(total.uss));
        };
        write!(f, "A worker has at most {} MB of its own.", mb(own))?;
        // What only one process has looked at so far counts as that one's in USS.
        let alone = workers().map(|process| process.total.uss - process.own()).max();
        match alone.filter(|&alone| alone >= 1 << 20) {
            Some(alone) => write!(
                f,
                " Its USS may hold up to {} MB more of shared memory that no other process has looked at so \
                 far: no copy either.",
                mb(alone)
            ),
            None => Ok(()),
        }
    }
}

/// A part of a process's memory.
#[derive(Clone, Copy)]
enum Part {
    Total,
    Batches,
    Table,
    Files,
    Anonymous,
}

impl Part {
    fn of(self, process: &ProcessMemory) -> MemoryUse {
        match self {
            Self::Total => process.total,
            Self::Batches => process.batches,
            Self::Table => process.table,
            Self::Files => process.files,
            Self::Anonymous => process.anonymous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
559b31400000-559b31420000 r--p 00000000 103:02 263174                    /usr/bin/my program
Size:                128 kB
Rss:                 100 kB
Pss:                  50 kB
Private_Clean:         4 kB
559b31500000-559b31520000 rw-p 00000000 00:00 0                          [heap]
Rss:                  40 kB
Pss:                  40 kB
Private_Dirty:        36 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss:                   8 kB
Pss:                   8 kB
Private_Dirty:         8 kB
VmFlags: rd wr mr mw me ac sd
7f0010000000-7f0020000000 rw-s 00000000 00:01 2077                       /memfd:loader-batches (deleted)
Rss:                1000 kB
Pss:                 250 kB
7f0030000000-7f0040000000 rw-s 00000000 00:1a 3                          /dev/shm/loader-core.7.00000001.x
Rss:                 500 kB
Pss:                 500 kB
7f0050000000-7f0060000000 r--s 00000000 fe:01 99                         /home/me/.cache/loader/train-1.paths
Rss:                  64 kB
Pss:                  16 kB
7f0070000000-7f0080000000 r--s 00000000 fe:01 98                         /data/my list
Rss:                  32 kB
Pss:                   8 kB
";

    fn kb(rss: u64, pss: u64, uss: u64) -> MemoryUse {
        MemoryUse { rss: rss << 10, pss: pss << 10, uss: uss << 10 }
    }

    fn parsed(pid: u32, role: ProcessRole) -> ProcessMemory {
        let tables = ["/data/my list".to_owned()];
        ProcessMemory::parse(pid, role, kb(1744, 872, 48), SMAPS, &tables)
    }

    #[test]
    fn mappings_are_told_apart_by_what_they_hold() {
        let memory = parsed(7, ProcessRole::Worker);
        assert_eq!(memory.files, kb(100, 50, 4));
        assert_eq!(memory.anonymous, kb(48, 48, 44));
        assert_eq!(memory.batches, kb(1500, 750, 0));
        assert_eq!(memory.table, kb(96, 24, 0));
        let mut sum = memory.files;
        [memory.anonymous, memory.batches, memory.table].into_iter().for_each(|part| sum += part);
        assert_eq!(sum, memory.total);
    }

    #[test]
    fn the_words_say_what_is_counted_several_times() {
        let roles = [ProcessRole::Program, ProcessRole::ForkServer, ProcessRole::Worker];
        let processes = (1..).zip(roles).map(|(pid, role)| parsed(pid, role)).collect();
        let text = MemoryReport { processes }.to_string();
        for line in ["program 1", "fork server 2", "worker 3", "sum"] {
            assert!(text.lines().any(|l| l.starts_with(line)), "{text}");
        }
        assert!(text.contains("These 3 processes have 2.7 MB of memory: the sum of PSS"), "{text}");
        assert!(text.contains("     2.3 MB,      4.6 MB in the sum of RSS: batches"), "{text}");
        assert!(text.ends_with("A worker has at most 0.0 MB of its own."), "{text}");
    }

    #[test]
    fn memory_that_is_touched_is_found() {
        let before = ProcessMemory::of(std::process::id()).unwrap();
        let touched = vec![1u8; 64 << 20];
        let after = ProcessMemory::of(std::process::id()).unwrap();
        assert!(after.total.rss >= touched.len() as u64, "{before:?} {after:?}");
        assert!(after.anonymous.uss >= touched.len() as u64, "{before:?} {after:?}");
        assert!(after.files.rss > 0 && after.total.pss <= after.total.rss);
    }

    #[test]
    fn processes_that_are_gone_are_left_out() {
        assert!(MemoryUse::of(u32::MAX).is_err());
        let report = MemoryReport::of(&[std::process::id(), u32::MAX]);
        assert_eq!(report.processes.len(), 1);
        assert!(report.to_string().ends_with("its memory is its RSS"));
    }
}
