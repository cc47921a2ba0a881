//! This program again, as somebody whose end is part of a test.

use std::ffi::OsStr;
use std::io::BufReader;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{limits, pool, starting, waiting, weight};

const ASKED_FOR: &str = "LOADER_TEST_VICTIM";

const VICTIMS: &[crate::Test] = &[
    ("without_init", starting::without_init),
    ("late_init", starting::late_init),
    ("unregistered", starting::unregistered),
    ("nested", starting::nested),
    ("endless", limits::endless),
    ("leaves", limits::leaves),
    ("serverless", limits::serverless),
    ("hoards", limits::hoards),
    ("frugal", limits::frugal),
    ("confined", limits::confined),
    ("threadless", limits::threadless),
    ("well_read", weight::well_read),
    ("crowded", weight::crowded),
    ("stuck", waiting::stuck),
    ("pools", pool::pools),
    ("doubled", pool::doubled),
    ("array_owner", pool::array_owner),
    ("pool_frugal", pool::pool_frugal),
    ("pool_endless", pool::pool_endless),
    ("pool_serverless", pool::pool_serverless),
    ("pool_without_init", pool::pool_without_init),
];

/// The victim that this process was started as.
pub(crate) fn asked_for() -> Option<fn()> {
    let name = std::env::var(ASKED_FOR).ok()?;
    let mut victims = VICTIMS.iter().chain(&waiting::PHASES);
    Some(victims.find(|victim| victim.0 == name).unwrap().1)
}

/// The number of processes that a victim of that name is or has started, and that still run.
pub(crate) fn processes(name: &str) -> usize {
    let told = format!("{ASKED_FOR}={name}");
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        environment.split(|&byte| byte == 0).any(|v| v == told.as_bytes()).then_some(pid)
    });
    pids.filter(|&pid| crate::data::runs(pid)).count()
}

/// A victim that runs.
pub(crate) struct Victim {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Victim {
    pub(crate) fn start(name: &str) -> Self {
        Self::start_with(name, Stdio::inherit(), &[])
    }

    /// With more in its environment.
    pub(crate) fn start_in(name: &str, environment: &[(&str, &OsStr)]) -> Self {
        Self::start_with(name, Stdio::inherit(), environment)
    }

    /// With its errors to be read, too.
    pub(crate) fn start_heard(name: &str) -> Self {
        Self::start_with(name, Stdio::piped(), &[])
    }

    fn start_with(name: &str, stderr: Stdio, environment: &[(&str, &OsStr)]) -> Self {
        // Who starts tests in the background may have them ignore Ctrl-C, and their children too.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(std::env::current_exe().unwrap());
        command.env(ASKED_FOR, name).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(stderr).envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = child.stderr.take().map(BufReader::new);
        Self { child, stdout, stderr }
    }

    pub(crate) fn stderr(&mut self) -> &mut BufReader<ChildStderr> {
        self.stderr.as_mut().unwrap()
    }

    pub(crate) fn stdout(&mut self) -> &mut BufReader<ChildStdout> {
        &mut self.stdout
    }

    /// Waits for its end, which has to be a good one.
    pub(crate) fn succeeds(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub(crate) fn kill(mut self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
        self.child.wait().unwrap();
    }
}
