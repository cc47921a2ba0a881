//! Naming a process so that another one with its number is not taken for it, and telling whether it
//! is gone.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, test_kill_process};
use xxhash_rust::xxh3::xxh3_64;

/// A process: its number in the upper half; in the lower one the lowest bits of the time at which it
/// started, in clock ticks since boot. Numbers are used again, but not within a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process(pub(super) u64);

impl Process {
    pub(super) fn new(pid: u32, start: u32) -> Self {
        Self(u64::from(pid) << 32 | u64::from(start))
    }

    /// This process.
    pub(super) fn current() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        let stat = Stat::parse(&stat).ok_or_else(|| io::Error::other("/proc/self/stat"))?;
        Ok(Self::new(std::process::id(), stat.start))
    }

    pub(super) fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn start(self) -> u32 {
        self.0 as u32
    }

    /// True where this process is certainly gone, and with it all that it had mapped. It has to be
    /// one of the caller's [namespace]; where the system hides it, it counts as alive.
    pub(super) fn is_dead(self) -> bool {
        let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // A /proc of another namespace would tell of other processes.
        let shown = fs::read_link("/proc/self").ok();
        if shown.as_deref() != Some(Path::new(&std::process::id().to_string())) {
            return false;
        }
        match fs::read_to_string(format!("/proc/{}/stat", self.pid())) {
            Ok(stat) => {
                Stat::parse(&stat).is_some_and(|stat| self.start() != stat.start || stat.over)
            }
            // Hidden processes are not found either, but they can be asked for.
            Err(_) => test_kill_process(pid) == Err(rustix::io::Errno::SRCH),
        }
    }
}

/// Identifies the namespaces that a process's number and start are told in.
pub(super) fn namespace() -> io::Result<u64> {
    let pid = fs::read_link("/proc/self/ns/pid")?;
    // Kernels before 5.6 have none.
    let time = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Ok(xxh3_64(format!("{pid:?} {time:?}").as_bytes()))
}

struct Stat {
    start: u32,
    /// It has ended, and only waits to be collected by its parent.
    over: bool,
}

impl Stat {
    /// Reads `/proc/<pid>/stat`; see proc_pid_stat(5).
    fn parse(stat: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, and may hold anything.
        let fields: Vec<_> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
        let state = *fields.first()?;
        let threads: u64 = fields.get(17)?.parse().ok()?;
        let start: u64 = fields.get(19)?.parse().ok()?;
        // A first thread that has ended shows as a zombie while others still run.
        Some(Self { start: start as u32, over: matches!(state, "Z" | "X") && threads <= 1 })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_dead_from_its_end_on_even_before_it_is_collected() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let process = Process::new(child.id(), Stat::parse(&stat).unwrap().start);
        assert!(!process.is_dead());
        assert!(Process::new(child.id(), process.start() ^ 1).is_dead(), "another one before it");
        child.kill().unwrap();
        while !process.is_dead() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(process.is_dead());
    }

    #[test]
    fn this_process_is_alive() {
        let process = Process::current().unwrap();
        assert!(process.pid() == std::process::id() && !process.is_dead());
        assert!(!Process(0).is_dead());
    }

    #[test]
    fn names_of_programs_do_not_confuse() {
        let rest = "S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 3 0 4294967301 0 0";
        let stat = Stat::parse(&format!("7 (a) Z (b) {rest}")).unwrap();
        assert!(stat.start == 5 && !stat.over);
        let zombie = format!("7 (x) {}", rest.replace("S 1", "Z 1"));
        assert!(!Stat::parse(&zombie).unwrap().over, "threads still run");
        assert!(Stat::parse(&zombie.replace(" 3 0 429", " 1 0 429")).unwrap().over);
        assert!(Stat::parse("7 (x) S 1").is_none() && Stat::parse("").is_none());
    }
}
