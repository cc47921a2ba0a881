//! What a loader or a pool, the fork server and the workers tell each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::sys::{CRASHES, signal_name};

/// To the fork server, about the processes of one loader or pool.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// The files that come with it are for that process alone.
    Start(u16),
    Kill(u16),
}

/// To the loader or pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    Started {
        process: u16,
        pid: i32,
    },
    /// From the worker itself: it is attached and takes work. May come before the server's word that it
    /// was started.
    Ready {
        process: u16,
        pid: i32,
    },
    /// The process can't be started, or can't do the job.
    Refused {
        process: u16,
        why: String,
    },
    Ended {
        process: u16,
        end: End,
    },
    Stopped {
        process: u16,
    },
    Continued {
        process: u16,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum End {
    Exited(i32),
    Signaled(i32),
}

impl End {
    /// True where the process itself is the reason, and with it the sample that it was making.
    pub(super) fn is_own_fault(self) -> bool {
        match self {
            Self::Exited(_) => true,
            Self::Signaled(signal) => CRASHES.contains(&signal),
        }
    }

    pub(super) fn is_kill(self) -> bool {
        self == Self::Signaled(libc::SIGKILL)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signaled(signal) => write!(f, "killed by {}", signal_name(*signal)),
        }
    }
}
