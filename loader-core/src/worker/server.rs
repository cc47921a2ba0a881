//! The fork server: a process with one thread, forked at the start of `main`, that forks worker
//! processes in about a millisecond each. It shares every page that was loaded by then, and nothing
//! that the program does later can get in its way.
//!
//! It knows nothing of arenas and samples. It starts and kills processes as it is told, tells what
//! becomes of them, and ends with the program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process, setpgid, waitid,
};

use super::events::{End, Event, Order};
use super::job::DescribedJob;
use super::process::WorkerProcess;
use super::registry::Registry;
use super::sys::{self, Forked};
use super::wire;

/// Serves until the program ends. Never returns: this process is a fork.
pub(super) fn run(program: Pid, control: OwnedFd, registry: &Registry) -> ! {
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        sys::die_with(program)?;
        // A process group of its own: Ctrl-C is the program's business, which takes its workers with
        // it. Not a session of its own, which Linux schedules as a group of its own (sched(7),
        // autogroup): beside a program with dozens of busy threads, such a group of few short-lived
        // processes has been seen to wait for seconds.
        let _ = setpgid(None, None);
        sys::may_write_to_terminal();
        if let Ok(null) = std::fs::File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(null);
        }
        let server = Server { control, events: sys::child_events()?, loaders: Vec::new() };
        server.serve(registry)
    }));
    sys::exit(i32::from(!matches!(served, Ok(Ok(())))))
}

struct Server {
    control: OwnedFd,
    events: OwnedFd,
    loaders: Vec<Loader>,
}

/// The processes of one loader.
struct Loader {
    socket: OwnedFd,
    job: DescribedJob,
    files: Vec<OwnedFd>,
    /// By number; `None` where there is none at present.
    children: Vec<Option<Pid>>,
    /// The loader is gone: what is left is to wait for the children's ends.
    ended: bool,
}

/// What a fork turned out to be.
enum Side {
    Server(Server),
    Worker(Box<WorkerProcess>),
}

impl Server {
    fn serve(mut self, registry: &Registry) -> io::Result<()> {
        loop {
            match self.turn()? {
                None => return Ok(()),
                Some(Side::Server(server)) => self = server,
                // The server, and with it every descriptor that is not this worker's, is gone.
                Some(Side::Worker(worker)) => worker.run(registry),
            }
        }
    }

    /// Waits for something to happen and reacts to it. `None` once the program has ended.
    fn turn(mut self) -> io::Result<Option<Side>> {
        // Loaders that are gone are left out: their sockets would be ready for ever.
        let live: Vec<usize> =
            (0..).zip(&self.loaders).filter(|(_, l)| !l.ended).map(|(i, _)| i).collect();
        let ready = {
            let fixed = [self.control.as_fd(), self.events.as_fd()];
            let sockets = live.iter().map(|&at| self.loaders[at].socket.as_fd());
            let mut fds: Vec<_> = fixed
                .into_iter()
                .chain(sockets)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => return Ok(Some(Side::Server(self))),
                polled => polled?,
            };
            fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>()
        };
        if ready[1] {
            sys::drain(self.events.as_fd());
            self.loaders.iter_mut().for_each(Loader::look_after_children);
        }
        for at in live.into_iter().zip(&ready[2..]).filter_map(|(at, ready)| ready.then_some(at)) {
            match wire::receive::<Order>(self.loaders[at].socket.as_fd()) {
                Ok(Some((Order::Kill(process), _))) => self.loaders[at].kill(process),
                Ok(Some((Order::Start(process), _))) => match self.start(at, process) {
                    Side::Server(server) => self = server,
                    worker => return Ok(Some(worker)),
                },
                Ok(None) | Err(_) => self.loaders[at].end(),
            }
        }
        self.loaders.retain(|loader| !loader.ended || loader.children.iter().any(Option::is_some));
        if ready[0] {
            match wire::receive::<DescribedJob>(self.control.as_fd()) {
                Ok(Some((job, mut files))) if !files.is_empty() => {
                    let socket = files.remove(0);
                    let children = vec![None; job.processes.into()];
                    self.loaders.push(Loader { socket, job, files, children, ended: false });
                }
                // A job that can't be read has no loader to answer to; dropping its socket tells.
                Ok(Some(_)) => {}
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
                Err(e) if e.kind() == io::ErrorKind::Other => {}
                Ok(None) => {
                    self.loaders.iter_mut().for_each(Loader::end);
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(Some(Side::Server(self)))
    }

    fn start(mut self, at: usize, process: u16) -> Side {
        let loader = &mut self.loaders[at];
        if usize::from(process) >= loader.children.len() {
            return Side::Server(self);
        }
        let server = getpid();
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                loader.children[usize::from(process)] = Some(pid);
                let pid = pid.as_raw_pid();
                tell(loader.socket.as_fd(), &Event::Started { process, pid });
                Side::Server(self)
            }
            Ok(Forked::Child) => {
                let Loader { socket, job, files, .. } = self.loaders.swap_remove(at);
                Side::Worker(Box::new(WorkerProcess { server, socket, process, job, files }))
            }
            Err(e) => {
                let why = format!("fork: {e}");
                tell(loader.socket.as_fd(), &Event::Refused { process, why });
                Side::Server(self)
            }
        }
    }
}

impl Loader {
    fn kill(&self, process: u16) {
        // A child that was not waited for keeps its number, so this can't hit another process.
        if let Some(Some(pid)) = self.children.get(usize::from(process)) {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }

    fn end(&mut self) {
        self.ended = true;
        (0..self.children.len() as u16).for_each(|process| self.kill(process));
    }

    fn look_after_children(&mut self) {
        for (process, child) in (0..).zip(&mut self.children) {
            while let Some(pid) = *child {
                let all = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED;
                let event = match waitid(WaitId::Pid(pid), all | WaitIdOptions::NOHANG) {
                    Ok(Some(status)) => told(process, &status),
                    Ok(None) => break,
                    Err(rustix::io::Errno::INTR) => continue,
                    // There is no such child, which can't be.
                    Err(_) => Event::Ended { process, end: End::Exited(-1) },
                };
                if matches!(event, Event::Ended { .. }) {
                    *child = None;
                }
                tell(self.socket.as_fd(), &event);
            }
        }
    }
}

fn told(process: u16, status: &WaitIdStatus) -> Event {
    if status.stopped() {
        Event::Stopped { process }
    } else if status.continued() {
        Event::Continued { process }
    } else if let Some(signal) = status.terminating_signal() {
        Event::Ended { process, end: End::Signaled(signal) }
    } else {
        Event::Ended { process, end: End::Exited(status.exit_status().unwrap_or(-1)) }
    }
}

/// Tells the loader; where it is gone, its socket's end says so too.
fn tell(socket: BorrowedFd<'_>, event: &Event) {
    let _ = wire::send(socket, event, &[]);
}
