//! The owner's side of worker processes, be it a loader or a pool: waits for what the fork server tells,
//! has what a dead process was at taken back, and has another one started.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::events::{End, Event, Order};
use super::init::ForkServer;
use super::job::Assignment;
use super::running::{Run, Running};
use super::{StartWorkersError, wire};
use crate::shm::WorkerId;

/// A stopped process is replaced after this, or the loader's timeout if that is shorter.
const STOPPED_FOR: Duration = Duration::from_secs(5);
/// Deaths in a row before any process was ready for work.
const STILLBORN: u32 = 8;
/// Deaths in a row over samples or tasks, per process, without one finished.
const FRUITLESS: u32 = 8;
/// Samples or tasks that are named when it comes to that.
const NAMED: usize = 8;

/// Why worker processes can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A worker process could not be started, or could not open the dataset.
    #[error("a worker process can't work: {why}")]
    Refused {
        /// What it said.
        why: String,
    },
    /// They die as fast as they are started.
    #[error(
        "{deaths} worker processes died one after the other without finishing a sample or task; the \
         last one {last}{}",
        if .samples.is_empty() {
            String::new()
        } else {
            format!("; what they were at, latest last: {}", .samples.join(", "))
        }
    )]
    Dying {
        /// Deaths without a sample or task finished in between.
        deaths: u32,
        /// How the last one ended.
        last: String,
        /// The samples that the last ones were making, or the tasks that they ran: index, and path
        /// where there is one.
        samples: Vec<String>,
    },
    /// The process that starts workers is gone, and all workers with it.
    #[error("the process that starts workers {how}: restart the program")]
    ServerGone {
        /// How it ended.
        how: String,
    },
}

/// What processes are for, as far as their supervisor has to do with it.
pub(super) trait Work: Send + Sized + 'static {
    /// What a process that is started gets along.
    fn equip(&mut self, process: u16) -> io::Result<Option<OwnedFd>>;

    /// A process takes work from now on.
    fn ready(&mut self, process: u16);

    /// Takes back what a dead process was at, and tells what that was.
    fn take_back(&mut self, process: u16, death: &Death<'_>) -> Vec<String>;

    /// Counts what all processes have finished.
    fn done(&self) -> u64;

    /// Nothing will be done any more.
    fn end(&mut self, error: WorkerError);

    /// Waits for one thing to happen and reacts to it.
    fn turn(supervisor: &mut Supervisor<Self>) -> Result<(), Over> {
        let until = supervisor.kill_stopped();
        if wait([supervisor.control.socket()], until)[0] { supervisor.listen() } else { Ok(()) }
    }
}

/// How a process died.
pub(super) struct Death<'a> {
    pub(super) end: End,
    /// It was killed since what it was at took too long.
    pub(super) timed_out: bool,
    /// It was stopped at that time.
    pub(super) stopped: bool,
    /// In words.
    pub(super) how: &'a str,
}

/// What everybody in this process may know of worker processes and ask of them.
pub(crate) struct Control {
    socket: OwnedFd,
    threads: u16,
    pids: Mutex<Vec<Option<i32>>>,
    /// Processes that are killed because what they are at takes too long.
    timed_out: Vec<AtomicBool>,
    restarts: AtomicU64,
    closing: AtomicBool,
}

impl Control {
    /// Ends the process of a worker whose sample or task takes too long. That counts against it.
    pub(crate) fn kill_for_timeout(&self, worker: WorkerId) {
        let process = worker / self.threads;
        self.timed_out[usize::from(process)].store(true, Ordering::Release);
        self.kill(process);
    }

    /// The process ids of those that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().iter().flatten().map(|pid| pid.unsigned_abs()).collect()
    }

    /// Processes that were started in the place of dead ones.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn kill(&self, process: u16) {
        // Where the server is gone, the supervisor learns it from the socket.
        let _ = wire::send(self.socket(), &Order::Kill(process), &[]);
    }

    /// Has all processes killed. The server closes its end of the socket when they are gone.
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Running worker processes; dropping it ends them.
pub(crate) struct Processes {
    control: Arc<Control>,
    supervisor: Arc<Running>,
}

impl Processes {
    /// Starts the processes, and waits until one of them is ready for work or says why it can't be. A
    /// stopped one is replaced after `stopped_for`, or earlier.
    pub(super) fn start<W: Work>(
        server: &ForkServer,
        assignment: &Assignment,
        files: &[BorrowedFd<'_>],
        work: W,
        stopped_for: Option<Duration>,
    ) -> Result<Self, StartWorkersError> {
        let (socket, theirs) = wire::pair()?;
        server.send(assignment, theirs, files)?;
        let processes = assignment.processes();
        let control = Arc::new(Control {
            socket,
            threads: assignment.threads(),
            pids: Mutex::new(vec![None; processes.into()]),
            timed_out: (0..processes).map(|_| AtomicBool::new(false)).collect(),
            restarts: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let started = Self { control: Arc::clone(&control), supervisor: Arc::default() };
        let mut supervisor = Supervisor {
            server_pid: server.pid,
            control,
            work,
            grace: stopped_for.unwrap_or(STOPPED_FOR).min(STOPPED_FOR),
            stopped: vec![None; processes.into()],
            ready: vec![false; processes.into()],
            stillborn: 0,
            fruitless: 0,
            done: 0,
            samples: Vec::new(),
            heard: VecDeque::new(),
        };
        let begun = (0..processes).try_for_each(|process| {
            supervisor.start(process)?;
            supervisor.catch_up()
        });
        let begun = begun.and_then(|()| {
            while !supervisor.ready.contains(&true) {
                W::turn(&mut supervisor)?;
            }
            Ok(())
        });
        match begun {
            Ok(()) => {}
            Err(Over::Broken(error)) => return Err(error.into()),
            Err(Over::Closed) => return Ok(started),
        }
        let name = thread::Builder::new().name("loader-supervisor".to_owned());
        let run = started.supervisor.begin();
        name.spawn(move || supervisor.run(run))?;
        Ok(started)
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.control.close();
        if self.supervisor.wait_for_end() > 0 {
            tracing::warn!("worker processes are killed but not gone yet");
        }
    }
}

/// Why there is nothing more to supervise.
pub(super) enum Over {
    Closed,
    Broken(WorkerError),
}

pub(super) struct Supervisor<W> {
    server_pid: Pid,
    pub(super) control: Arc<Control>,
    pub(super) work: W,
    grace: Duration,
    /// When a stopped process will be replaced.
    stopped: Vec<Option<Instant>>,
    ready: Vec<bool>,
    stillborn: u32,
    fruitless: u32,
    /// What was done when `fruitless` was last looked at.
    done: u64,
    /// What the last dead processes were at.
    samples: Vec<String>,
    /// Events that came while an order could not be given.
    heard: VecDeque<Event>,
}

impl<W: Work> Supervisor<W> {
    fn run(self, run: Run) {
        // Dropped in the opposite order: who waits for the end of the run finds all closed.
        let _run = run;
        let mut supervisor = self;
        loop {
            match W::turn(&mut supervisor) {
                Ok(()) => {}
                Err(Over::Closed) => return,
                Err(Over::Broken(error)) => {
                    supervisor.control.close();
                    supervisor.work.end(error);
                }
            }
        }
    }

    /// Replaces processes that have been stopped for long. Returns when the next one is to be.
    pub(super) fn kill_stopped(&mut self) -> Option<Instant> {
        let now = Instant::now();
        for process in 0..self.stopped.len() {
            if self.stopped[process].is_some_and(|until| until <= now) {
                self.stopped[process] = None;
                self.control.kill(process as u16);
            }
        }
        self.stopped.iter().flatten().min().copied()
    }

    /// Takes what the server or a process tells.
    pub(super) fn listen(&mut self) -> Result<(), Over> {
        let event = self.hear()?;
        self.heard.extend(event);
        self.catch_up()
    }

    fn catch_up(&mut self) -> Result<(), Over> {
        while let Some(event) = self.heard.pop_front() {
            self.react(event)?;
        }
        Ok(())
    }

    fn hear(&self) -> Result<Option<Event>, Over> {
        match wire::receive::<Event>(self.control.socket()) {
            Ok(Some((event, _))) => Ok(Some(event)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Ok(None) | Err(_) => Err(self.socket_ended()),
        }
    }

    fn start(&mut self, process: u16) -> Result<(), Over> {
        let own = self.work.equip(process).map_err(|error| {
            let why = format!("what it is told its work through: {error}");
            Over::Broken(WorkerError::Refused { why })
        })?;
        let own = own.as_ref().map(AsFd::as_fd);
        let order = Order::Start(process);
        // Where the server can't take more orders, it may be waiting to be heard: a socket holds some
        // hundred messages. Other errors it tells by the socket's end.
        while let Ok(false) = wire::send_now(self.control.socket(), &order, own.as_slice()) {
            let event = self.hear()?;
            self.heard.extend(event);
        }
        Ok(())
    }

    fn socket_ended(&self) -> Over {
        if self.control.closing.load(Ordering::Acquire) {
            return Over::Closed;
        }
        Over::Broken(WorkerError::ServerGone { how: how_ended(self.server_pid) })
    }

    fn react(&mut self, event: Event) -> Result<(), Over> {
        match event {
            Event::Started { process, pid } => {
                self.set_pid(process, pid);
                Ok(())
            }
            Event::Ready { process, pid } => {
                self.stillborn = 0;
                self.set_pid(process, pid);
                self.set_ready(process);
                Ok(())
            }
            Event::Refused { why, .. } => Err(Over::Broken(WorkerError::Refused { why })),
            Event::Stopped { process } => {
                if let Some(stopped) = self.stopped.get_mut(usize::from(process)) {
                    *stopped = Some(Instant::now() + self.grace);
                    let grace = self.grace;
                    tracing::warn!(process, ?grace, "a worker process is stopped");
                }
                Ok(())
            }
            Event::Continued { process } => {
                if let Some(stopped) = self.stopped.get_mut(usize::from(process)) {
                    *stopped = None;
                }
                Ok(())
            }
            Event::Ended { process, end } => self.ended(process, end),
        }
    }

    fn set_pid(&self, process: u16, pid: i32) {
        if let Some(known) = self.control.lock().get_mut(usize::from(process)) {
            *known = Some(pid);
        }
    }

    fn set_ready(&mut self, process: u16) {
        if let Some(known) = self.ready.get_mut(usize::from(process)) {
            *known = true;
            self.work.ready(process);
        }
    }

    fn ended(&mut self, process: u16, end: End) -> Result<(), Over> {
        let at = usize::from(process);
        if at >= self.ready.len() || self.control.closing.load(Ordering::Acquire) {
            return Ok(());
        }
        let timed_out = self.control.timed_out[at].swap(false, Ordering::AcqRel);
        let stopped = self.stopped[at].take().is_some();
        let how =
            if timed_out { "took longer than the timeout".to_owned() } else { end.to_string() };
        let lost = self.work.take_back(process, &Death { end, timed_out, stopped, how: &how });
        tracing::warn!(process, how, lost = ?lost, "a worker process died; another takes its place");
        let was_ready = std::mem::replace(&mut self.ready[at], false);
        self.control.lock()[at] = None;
        self.check_for_storm(was_ready, lost, &how)?;
        self.control.restarts.fetch_add(1, Ordering::Relaxed);
        self.start(process)
    }

    fn check_for_storm(
        &mut self,
        was_ready: bool,
        lost: Vec<String>,
        how: &str,
    ) -> Result<(), Over> {
        let done = self.work.done();
        if done != self.done {
            self.done = done;
            self.fruitless = 0;
            self.samples.clear();
        }
        if !was_ready {
            self.stillborn += 1;
        } else if !lost.is_empty() {
            self.fruitless += 1;
        }
        self.samples.extend(lost);
        let extra = self.samples.len().saturating_sub(NAMED);
        self.samples.drain(..extra);
        let deaths = self.stillborn.max(self.fruitless);
        if self.stillborn >= STILLBORN || self.fruitless >= FRUITLESS * self.ready.len() as u32 {
            let (last, samples) = (how.to_owned(), std::mem::take(&mut self.samples));
            return Err(Over::Broken(WorkerError::Dying { deaths, last, samples }));
        }
        Ok(())
    }
}

/// How the fork server ended, which it did.
pub(super) fn how_ended(server: Pid) -> String {
    // Not reaped: the program may have several loaders that ask.
    match waitid(WaitId::Pid(server), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        Ok(Some(status)) => match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => format!("was {}", End::Signaled(signal)),
            (None, code) => End::Exited(code.unwrap_or(-1)).to_string(),
        },
        _ => "is gone".to_owned(),
    }
}

/// Waits until one of those has something to tell, or until then. Says which have.
pub(super) fn wait<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
    until: Option<Instant>,
) -> Vec<bool> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // What does not fit is longer than anybody waits.
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut fds: Vec<_> =
        fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
        // Interrupted; the caller looks again.
        Err(_) => vec![false; fds.len()],
    }
}
