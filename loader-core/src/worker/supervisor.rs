//! The loader's side of its worker processes: waits for what the fork server tells, gives back what
//! a dead worker had claimed, and has another one started.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::events::{End, Event, Order};
use super::init::ForkServer;
use super::job::{DescribedJob, JobFiles};
use super::running::{Run, Running};
use super::{StartWorkersError, wire};
use crate::shm::{Arena, WorkerId};

/// A stopped process is replaced after this, or the loader's timeout if that is shorter.
const STOPPED_FOR: Duration = Duration::from_secs(5);
/// Deaths in a row before any process was ready for work.
const STILLBORN: u32 = 8;
/// Deaths in a row over samples, per process, without one sample finished.
const FRUITLESS: u32 = 8;
/// Samples that are named when it comes to that.
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
        "{deaths} worker processes died one after the other without finishing a sample; the last \
         one {last}{}",
        if .samples.is_empty() {
            String::new()
        } else {
            format!("; samples that were being made, latest last: {}", .samples.join(", "))
        }
    )]
    Dying {
        /// Deaths without a sample finished in between.
        deaths: u32,
        /// How the last one ended.
        last: String,
        /// The samples that the last ones were making: index, and path where there is one.
        samples: Vec<String>,
    },
    /// The process that starts workers is gone, and all workers with it.
    #[error("the process that starts workers {how}: restart the program")]
    ServerGone {
        /// How it ended.
        how: String,
    },
}

/// What the supervisor does to the batches that are being made.
pub(crate) trait Batches: Send + Sync {
    /// Gives back what dead workers had claimed, and blames the samples that they were making where
    /// they may be the reason. Returns those samples, described.
    fn take_back(&self, workers: &Range<WorkerId>, blamed: bool, how: &str) -> Vec<String>;

    /// Ends the loader with that error.
    fn end(&self, error: WorkerError);
}

/// What everybody in this process may know of the worker processes and ask of them.
pub(crate) struct Control {
    socket: OwnedFd,
    threads: u16,
    pids: Mutex<Vec<Option<i32>>>,
    /// Processes that are killed because a sample takes too long.
    timed_out: Vec<AtomicBool>,
    restarts: AtomicU64,
    closing: AtomicBool,
}

impl Control {
    /// Ends the process of a worker whose sample takes too long. That counts against the sample.
    pub(crate) fn kill_for_timeout(&self, worker: WorkerId) {
        let process = worker / self.threads;
        self.timed_out[usize::from(process)].store(true, Ordering::Release);
        self.order(Order::Kill(process));
    }

    /// The process ids of those that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().iter().flatten().map(|pid| pid.unsigned_abs()).collect()
    }

    /// Processes that were started in the place of dead ones.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    fn order(&self, order: Order) {
        // Where the server is gone, the supervisor learns it from the socket.
        let _ = wire::send(self.socket.as_fd(), &order, &[]);
    }

    /// Has all processes killed. The server closes its end of the socket when they are gone.
    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let _ = shutdown(&self.socket, Shutdown::Write);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<i32>>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self, process: u16) -> Range<WorkerId> {
        process * self.threads..(process + 1) * self.threads
    }
}

/// Running worker processes; dropping it ends them.
pub(crate) struct Processes {
    control: Arc<Control>,
    supervisor: Arc<Running>,
}

impl Processes {
    /// Starts the processes, and waits until one of them is ready for work or says why it can't be.
    pub(super) fn start(
        server: &ForkServer,
        job: &DescribedJob,
        files: &JobFiles,
        arena: Arc<Arena>,
        batches: Arc<dyn Batches>,
        stopped_for: Option<Duration>,
    ) -> Result<Self, StartWorkersError> {
        let (socket, theirs) = wire::pair()?;
        server.send(job, theirs, files)?;
        let processes = job.processes;
        let control = Arc::new(Control {
            socket,
            threads: job.threads,
            pids: Mutex::new(vec![None; processes.into()]),
            timed_out: (0..processes).map(|_| AtomicBool::new(false)).collect(),
            restarts: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let started = Self { control: Arc::clone(&control), supervisor: Arc::default() };
        (0..processes).for_each(|process| control.order(Order::Start(process)));
        let mut supervisor = Supervisor {
            server_pid: server.pid,
            arena,
            batches,
            control,
            grace: stopped_for.unwrap_or(STOPPED_FOR).min(STOPPED_FOR),
            stopped: vec![None; processes.into()],
            ready: vec![false; processes.into()],
            stillborn: 0,
            fruitless: 0,
            done: 0,
            samples: Vec::new(),
            ooms: ooms(),
        };
        while !supervisor.ready.contains(&true) {
            match supervisor.turn() {
                Ok(()) => {}
                Err(Over::Broken(error)) => return Err(error.into()),
                Err(Over::Closed) => return Ok(started),
            }
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
enum Over {
    Closed,
    Broken(WorkerError),
}

struct Supervisor {
    server_pid: Pid,
    arena: Arc<Arena>,
    batches: Arc<dyn Batches>,
    control: Arc<Control>,
    grace: Duration,
    /// When a stopped process will be replaced.
    stopped: Vec<Option<Instant>>,
    ready: Vec<bool>,
    stillborn: u32,
    fruitless: u32,
    /// Samples done by all workers when `fruitless` was last looked at.
    done: u64,
    /// The samples that the last dead workers were making.
    samples: Vec<String>,
    /// Processes that the system has killed for want of memory, on the whole machine.
    ooms: Option<u64>,
}

impl Supervisor {
    fn run(self, run: Run) {
        // Dropped in the opposite order: who waits for the end of the run finds all closed.
        let _run = run;
        let mut supervisor = self;
        loop {
            match supervisor.turn() {
                Ok(()) => {}
                Err(Over::Closed) => return,
                Err(Over::Broken(error)) => {
                    supervisor.control.close();
                    supervisor.batches.end(error);
                }
            }
        }
    }

    /// Waits for one thing to happen and reacts to it.
    fn turn(&mut self) -> Result<(), Over> {
        let now = Instant::now();
        for process in 0..self.stopped.len() {
            if self.stopped[process].is_some_and(|until| until <= now) {
                self.stopped[process] = None;
                self.control.order(Order::Kill(process as u16));
            }
        }
        let next = self.stopped.iter().flatten().min();
        if !wait(&self.control, next.map(|until| until.saturating_duration_since(now))) {
            return Ok(());
        }
        match wire::receive::<Event>(self.control.socket.as_fd()) {
            Ok(Some((event, _))) => self.react(event),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(()),
            Ok(None) | Err(_) => Err(self.socket_ended()),
        }
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
                if let Some(known) = self.control.lock().get_mut(usize::from(process)) {
                    *known = Some(pid);
                }
                Ok(())
            }
            Event::Ready { process } => {
                self.stillborn = 0;
                self.set_ready(process, true);
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

    fn set_ready(&mut self, process: u16, ready: bool) {
        if let Some(known) = self.ready.get_mut(usize::from(process)) {
            *known = ready;
        }
    }

    fn ended(&mut self, process: u16, end: End) -> Result<(), Over> {
        let at = usize::from(process);
        if at >= self.ready.len() || self.control.closing.load(Ordering::Acquire) {
            return Ok(());
        }
        let workers = self.control.workers(process);
        let timed_out = self.control.timed_out[at].swap(false, Ordering::AcqRel);
        let blamed = self.is_blamed(&workers, end, timed_out, self.stopped[at].is_some());
        let how =
            if timed_out { "took longer than the timeout".to_owned() } else { end.to_string() };
        let lost = self.batches.take_back(&workers, blamed, &how);
        workers.for_each(|worker| self.arena.desk(worker).clear());
        tracing::warn!(process, how, samples = ?lost, "a worker process died; another takes its place");
        let was_ready = std::mem::replace(&mut self.ready[at], false);
        self.stopped[at] = None;
        self.control.lock()[at] = None;
        self.check_for_storm(was_ready, lost, &how)?;
        self.control.restarts.fetch_add(1, Ordering::Relaxed);
        self.control.order(Order::Start(process));
        Ok(())
    }

    /// Whether the samples of a dead process may be what it died of.
    fn is_blamed(
        &mut self,
        workers: &Range<WorkerId>,
        end: End,
        timed_out: bool,
        stopped: bool,
    ) -> bool {
        if timed_out {
            return !stopped;
        }
        if end.is_kill() {
            // Sent by somebody, unless the system was short of memory.
            let ooms = ooms();
            return std::mem::replace(&mut self.ooms, ooms) < ooms;
        }
        // Noted in the desk of the process's first worker.
        let sent = self.arena.desk(workers.start).was_sent();
        end.is_own_fault() && !sent
    }

    fn check_for_storm(
        &mut self,
        was_ready: bool,
        lost: Vec<String>,
        how: &str,
    ) -> Result<(), Over> {
        let done = self.arena.done();
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

/// Waits until the server has something to tell. False where the time is over.
fn wait(control: &Control, timeout: Option<Duration>) -> bool {
    // What does not fit is longer than anybody waits.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    let mut fds = [PollFd::new(&control.socket, PollFlags::IN)];
    matches!(poll(&mut fds, timeout.as_ref()), Ok(n) if n > 0)
}

/// Processes that the system has killed for want of memory since it started.
fn ooms() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/vmstat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}
