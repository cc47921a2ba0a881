//! Gives tasks to the processes of a pool and takes their answers, on the thread that keeps the processes
//! alive. Callers put tasks into a queue, and wait for answers each at a channel of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::channel::{self, Packed, Received};
use crate::worker::WorkerError;
use crate::worker::supervisor::{Control, Death, Over, Supervisor, Work, wait};
use crate::worker::wire::{self, MAX_BYTES};

/// How often a task is run at most: once more after a process died of it, or beside it.
const RUNS: u32 = 2;
/// Who took no longer for the last task gets the next one before the answer, so that it need not wait for
/// it. Others don't: whatever is sent ahead of a long task's end has to wait for that.
const BRISK: Duration = Duration::from_millis(1);

/// A task to be run, and who wants its answer.
pub(super) struct Ticket {
    /// Its number among those of the caller.
    pub(super) number: u64,
    /// The place of its function in the registry.
    pub(super) task: u32,
    pub(super) packed: Packed,
    /// Processes that died while they ran it.
    pub(super) deaths: u32,
    pub(super) answers: Sender<(u64, Answer)>,
    /// Gone with the caller's interest.
    pub(super) wanted: Weak<()>,
}

/// What becomes of a task.
#[derive(Debug)]
pub(super) enum Answer {
    Received(Received),
    /// Each process that ran it died; how the last one did.
    Died {
        runs: u32,
        last: String,
    },
    /// It can't be sent.
    Unsent(String),
    Over(WorkerError),
}

impl Ticket {
    fn answer(self, answer: Answer) {
        // Who is gone wants none.
        let _ = self.answers.send((self.number, answer));
    }
}

/// What callers and the dispatching thread share.
pub(super) struct Desk {
    state: Mutex<State>,
    /// Wakes the thread.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Ticket>,
    /// The thread waits for tasks.
    idle: bool,
    /// Why no task will be run any more.
    over: Option<WorkerError>,
}

impl Desk {
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), wake })
    }

    /// Queues a task.
    pub(super) fn submit(&self, ticket: Ticket) -> Result<(), WorkerError> {
        let mut state = self.lock();
        if let Some(error) = &state.over {
            return Err(error.clone());
        }
        state.queue.push_back(ticket);
        if std::mem::take(&mut state.idle) {
            // It can't overflow: it is written once for each time that the thread has looked.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// The next task that is wanted still.
    fn next(&self) -> Option<Ticket> {
        let mut state = self.lock();
        while let Some(ticket) = state.queue.pop_front() {
            if ticket.wanted.strong_count() > 0 {
                return Some(ticket);
            }
        }
        state.idle = true;
        None
    }

    fn put_back(&self, ticket: Ticket) {
        self.lock().queue.push_front(ticket);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tasks of a pool's processes.
pub(super) struct Dispatch {
    desk: Arc<Desk>,
    seats: Vec<Seat>,
    timeout: Option<Duration>,
    /// Tasks that have an answer, whatever it is.
    finished: u64,
    /// Numbers the packets.
    sent: u64,
    buffer: Vec<u8>,
}

/// What one process is at.
struct Seat {
    /// `None` where it has hung up.
    channel: Option<OwnedFd>,
    ready: bool,
    /// It runs the first of these; each has the number of its packet.
    tasks: VecDeque<(u64, Ticket)>,
    /// Since when.
    begun: Instant,
    /// The last task did not take long.
    brisk: bool,
    /// It is being killed because its task takes too long.
    late: bool,
}

impl Seat {
    fn new(channel: Option<OwnedFd>) -> Self {
        let (tasks, begun) = (VecDeque::new(), Instant::now());
        Self { channel, ready: false, tasks, begun, brisk: false, late: false }
    }

    /// Whether it takes another task, and how soon: who has none comes first.
    fn rank(&self) -> Option<usize> {
        let room = self.tasks.is_empty() || self.brisk && self.tasks.len() == 1;
        (self.ready && !self.late && room).then_some(self.tasks.len())
    }
}

impl Dispatch {
    pub(super) fn new(desk: Arc<Desk>, processes: u16, timeout: Option<Duration>) -> Self {
        let seats = (0..processes).map(|_| Seat::new(None)).collect();
        Self { desk, seats, timeout, finished: 0, sent: 0, buffer: vec![0; MAX_BYTES] }
    }

    /// Kills who takes too long. Returns when the next one will.
    fn kill_late(&mut self, control: &Control) -> Option<Instant> {
        let timeout = self.timeout?;
        let now = Instant::now();
        let mut next = None;
        for (process, seat) in (0..).zip(&mut self.seats) {
            if seat.tasks.is_empty() || seat.late {
                continue;
            }
            match seat.begun.checked_add(timeout) {
                Some(until) if until <= now => {
                    seat.late = true;
                    control.kill_for_timeout(process);
                }
                until => next = [next, until].into_iter().flatten().min(),
            }
        }
        next
    }

    /// Sends as much as processes take.
    fn hand_out(&mut self) {
        while let Some(seat) = self.free_seat() {
            let Some(ticket) = self.desk.next() else { return };
            let seat = &mut self.seats[seat];
            let sent = match &seat.channel {
                Some(channel) => {
                    let flags = SendFlags::DONTWAIT;
                    ticket.packed.send(channel.as_fd(), self.sent, ticket.task, flags)
                }
                None => Err(Errno::PIPE.into()),
            };
            match sent {
                Ok(()) => {
                    if seat.tasks.is_empty() {
                        seat.begun = Instant::now();
                    }
                    seat.tasks.push_back((self.sent, ticket));
                    self.sent += 1;
                }
                Err(error) => match Errno::from_io_error(&error) {
                    // It is dying, and another one will come.
                    Some(Errno::PIPE | Errno::CONNRESET) => {
                        seat.ready = false;
                        self.desk.put_back(ticket);
                    }
                    // The system has enough on the way, and will take it after some answers.
                    Some(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM)
                        if self.seats.iter().any(|seat| !seat.tasks.is_empty()) =>
                    {
                        return self.desk.put_back(ticket);
                    }
                    _ => {
                        self.finished += 1;
                        ticket.answer(Answer::Unsent(error.to_string()));
                    }
                },
            }
        }
    }

    fn free_seat(&self) -> Option<usize> {
        let ranks = self.seats.iter().enumerate().filter_map(|(at, seat)| Some((seat.rank()?, at)));
        ranks.min().map(|(_, at)| at)
    }

    /// Takes the answers that a process has given.
    fn collect(&mut self, process: usize) {
        let seat = &mut self.seats[process];
        while let Some(channel) = &seat.channel {
            match channel::receive(channel.as_fd(), &mut self.buffer, RecvFlags::DONTWAIT) {
                Ok(Some(received)) => {
                    // It answers in the order in which it is asked.
                    let Some((number, ticket)) = seat.tasks.pop_front() else { continue };
                    debug_assert_eq!(number, received.number);
                    let now = Instant::now();
                    seat.brisk = now - seat.begun < BRISK;
                    seat.begun = now;
                    self.finished += 1;
                    ticket.answer(Answer::Received(received));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => seat.channel = None,
            }
        }
    }
}

impl Work for Dispatch {
    fn equip(&mut self, process: u16) -> io::Result<Option<OwnedFd>> {
        // A new channel for each: what a dead one was sent, nobody finds.
        let (ours, theirs) = wire::pair()?;
        self.seats[usize::from(process)] = Seat::new(Some(ours));
        Ok(Some(theirs))
    }

    fn ready(&mut self, process: u16) {
        self.seats[usize::from(process)].ready = true;
    }

    fn take_back(&mut self, process: u16, death: &Death<'_>) -> Vec<String> {
        let at = usize::from(process);
        // What it has answered it has done.
        self.collect(at);
        let mut tasks = std::mem::replace(&mut self.seats[at], Seat::new(None)).tasks;
        let first = tasks.pop_front();
        // What it had not begun yet is as if it had never been sent.
        tasks.into_iter().rev().for_each(|(_, ticket)| self.desk.put_back(ticket));
        let Some((_, mut ticket)) = first else { return Vec::new() };
        ticket.deaths += 1;
        let lost = format!("argument {}", ticket.number);
        if ticket.deaths < RUNS {
            self.desk.put_back(ticket);
        } else {
            self.finished += 1;
            let runs = ticket.deaths;
            ticket.answer(Answer::Died { runs, last: death.how.to_owned() });
        }
        vec![lost]
    }

    fn done(&self) -> u64 {
        self.finished
    }

    fn end(&mut self, error: WorkerError) {
        let queued = {
            let mut state = self.desk.lock();
            let error = state.over.get_or_insert_with(|| error.clone());
            tracing::debug!(%error, "a pool's processes have ended");
            std::mem::take(&mut state.queue)
        };
        let begun = self.seats.iter_mut().flat_map(|seat| seat.tasks.drain(..));
        let begun = begun.map(|(_, ticket)| ticket);
        begun.chain(queued).for_each(|ticket| ticket.answer(Answer::Over(error.clone())));
    }

    fn turn(supervisor: &mut Supervisor<Self>) -> Result<(), Over> {
        let stopped = supervisor.kill_stopped();
        supervisor.work.hand_out();
        let late = supervisor.work.kill_late(&supervisor.control);
        let until = [stopped, late].into_iter().flatten().min();
        let (open, ready): (Vec<usize>, Vec<bool>) = {
            let Dispatch { desk, seats, .. } = &supervisor.work;
            let channels = seats.iter().map(|seat| seat.channel.as_ref().map(AsFd::as_fd));
            let (open, channels): (Vec<_>, Vec<_>) =
                (0..).zip(channels).filter_map(|(at, channel)| Some((at, channel?))).unzip();
            let fixed = [supervisor.control.socket(), desk.wake.as_fd()];
            (open, wait(fixed.into_iter().chain(channels), until))
        };
        if ready[1] {
            let _ = rustix::io::read(&supervisor.work.desk.wake, &mut [0; 8]);
        }
        for (at, _) in open.into_iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            supervisor.work.collect(at);
        }
        if ready[0] { supervisor.listen() } else { Ok(()) }
    }
}

impl Drop for Dispatch {
    /// Nobody waits for a thread that is gone, whatever it died of.
    fn drop(&mut self) {
        self.end(WorkerError::ServerGone { how: "is not heard of any more".to_owned() });
    }
}
