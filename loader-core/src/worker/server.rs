//! The fork server: a process with one thread, forked at the start of `main`, that forks worker
//! processes in about a millisecond each. It shares every page that was loaded by then, and nothing
//! that the program does later can get in its way.
//!
//! It knows nothing of samples and tasks. It starts and kills processes as it is told, tells what
//! becomes of them, and ends with the program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process, setpgid, waitid,
};

use super::events::{End, Event, Order};
use super::job::Assignment;
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
        let server = Server { control, events: sys::child_events()?, groups: Vec::new() };
        server.serve(registry)
    }));
    sys::exit(i32::from(!matches!(served, Ok(Ok(())))))
}

struct Server {
    control: OwnedFd,
    events: OwnedFd,
    groups: Vec<Group>,
}

/// The processes of one loader or pool.
struct Group {
    socket: OwnedFd,
    assignment: Assignment,
    files: Vec<OwnedFd>,
    /// By number; `None` where there is none at present.
    children: Vec<Option<Pid>>,
    /// Who has them is gone: what is left is to wait for the children's ends.
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
        // Groups whose owner is gone are left out: their sockets would be ready for ever.
        let live: Vec<usize> =
            (0..).zip(&self.groups).filter(|(_, group)| !group.ended).map(|(i, _)| i).collect();
        let ready = {
            let fixed = [self.control.as_fd(), self.events.as_fd()];
            let sockets = live.iter().map(|&at| self.groups[at].socket.as_fd());
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
            self.groups.iter_mut().for_each(Group::look_after_children);
        }
        for at in live.into_iter().zip(&ready[2..]).filter_map(|(at, ready)| ready.then_some(at)) {
            match wire::receive::<Order>(self.groups[at].socket.as_fd()) {
                Ok(Some((Order::Kill(process), _))) => self.groups[at].kill(process),
                Ok(Some((Order::Start(process), own))) => match self.start(at, process, own) {
                    Side::Server(server) => self = server,
                    worker => return Ok(Some(worker)),
                },
                Ok(None) | Err(_) => self.groups[at].end(),
            }
        }
        self.groups.retain(|group| !group.ended || group.children.iter().any(Option::is_some));
        if ready[0] {
            match wire::receive::<Assignment>(self.control.as_fd()) {
                Ok(Some((assignment, mut files))) if !files.is_empty() => {
                    let socket = files.remove(0);
                    let children = vec![None; assignment.processes().into()];
                    self.groups.push(Group { socket, assignment, files, children, ended: false });
                }
                // One that can't be read has nobody to answer to; dropping its socket tells.
                Ok(Some(_)) => {}
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {}
                Err(e) if e.kind() == io::ErrorKind::Other => {}
                Ok(None) => {
                    self.groups.iter_mut().for_each(Group::end);
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(Some(Side::Server(self)))
    }

    /// `own` are the files for that process alone, which this one keeps no longer than it takes.
    fn start(mut self, at: usize, process: u16, own: Vec<OwnedFd>) -> Side {
        let group = &mut self.groups[at];
        if usize::from(process) >= group.children.len() {
            return Side::Server(self);
        }
        let server = getpid();
        match sys::fork() {
            Ok(Forked::Parent(pid)) => {
                group.children[usize::from(process)] = Some(pid);
                let pid = pid.as_raw_pid();
                tell(group.socket.as_fd(), &Event::Started { process, pid });
                Side::Server(self)
            }
            Ok(Forked::Child) => {
                let Group { socket, assignment, files, .. } = self.groups.swap_remove(at);
                let worker = WorkerProcess { server, socket, process, assignment, files, own };
                Side::Worker(Box::new(worker))
            }
            Err(e) => {
                let why = format!("fork: {e}");
                tell(group.socket.as_fd(), &Event::Refused { process, why });
                Side::Server(self)
            }
        }
    }
}

impl Group {
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

/// Tells the owner; where it is gone, its socket's end says so too.
fn tell(socket: BorrowedFd<'_>, event: &Event) {
    let _ = wire::send(socket, event, &[]);
}
