//! This program again, as somebody whose end is part of a test.

use std::io::BufReader;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{limits, starting};

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
];

/// The victim that this process was started as.
pub(crate) fn asked_for() -> Option<fn()> {
    let name = std::env::var(ASKED_FOR).ok()?;
    Some(VICTIMS.iter().find(|victim| victim.0 == name).unwrap().1)
}

/// A victim that runs.
pub(crate) struct Victim {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Victim {
    pub(crate) fn start(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ASKED_FOR, name).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
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
