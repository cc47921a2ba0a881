//! The caller's side: packs arguments as there is room, and gives results in order.

use std::collections::HashMap;
use std::fmt;
use std::iter::{Fuse, FusedIterator};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::channel::Packed;
use super::dispatch::{Answer, Desk, Ticket};
use super::error::{PoolError, TaskCause, TaskError};
use super::task::PoolTask;
use crate::shared::parcel;

/// How far arguments are taken ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Tasks without an answer.
    pub(super) under_way: u64,
    /// Tasks after the one whose result is given next.
    pub(super) ahead: u64,
    /// Takes no more arguments after a failure.
    pub(super) stop: bool,
}

/// One caller's tasks, without their types.
pub(super) struct Calls<'p> {
    desk: &'p Desk,
    task: u32,
    name: String,
    bounds: Bounds,
    sender: Sender<(u64, Answer)>,
    answers: Receiver<(u64, Answer)>,
    /// Lets queued tasks know whether their answer is wanted.
    wanted: Arc<()>,
    /// Arguments taken.
    taken: u64,
    /// Tasks that have an answer.
    answered: u64,
    /// Results given.
    given: u64,
    failed: bool,
    /// The processes can't go on, which was told.
    over: bool,
}

impl<'p> Calls<'p> {
    pub(super) fn new(desk: &'p Desk, task: u32, name: String, bounds: Bounds) -> Self {
        let (sender, answers) = channel();
        Self {
            desk,
            task,
            name,
            bounds,
            sender,
            answers,
            wanted: Arc::default(),
            taken: 0,
            answered: 0,
            given: 0,
            failed: false,
            over: false,
        }
    }

    fn has_room(&self) -> bool {
        self.taken - self.answered < self.bounds.under_way
            && self.taken - self.given < self.bounds.ahead
            && !(self.bounds.stop && self.failed)
    }

    fn error(&self, index: u64, cause: TaskCause) -> PoolError {
        TaskError { task: self.name.clone(), index, cause }.into()
    }

    /// Submits the task of the argument that was taken last.
    fn submit<A: serde::Serialize>(&self, args: &A) -> Result<(), PoolError> {
        let number = self.taken - 1;
        let packed = parcel::pack(args).map_err(|e| e.to_string()).and_then(Packed::new);
        let packed = packed.map_err(|why| self.error(number, TaskCause::Arguments(why)))?;
        let (answers, wanted) = (self.sender.clone(), Arc::downgrade(&self.wanted));
        let ticket = Ticket { number, task: self.task, packed, deaths: 0, answers, wanted };
        Ok(self.desk.submit(ticket)?)
    }

    fn result<R: serde::de::DeserializeOwned>(
        &self,
        index: u64,
        answer: Answer,
    ) -> Result<R, PoolError> {
        let cause = match answer {
            Answer::Received(received) => match (received.what, received.content) {
                (TaskCause::DONE, Ok((bytes, files))) => match parcel::unpack(&bytes, files) {
                    Ok(result) => return Ok(result),
                    Err(error) => TaskCause::Result(error.to_string()),
                },
                (what, Ok((why, _))) => {
                    TaskCause::of_told(what, String::from_utf8_lossy(&why).into_owned())
                }
                (_, Err(why)) => TaskCause::Result(why),
            },
            Answer::Died { runs, last } => TaskCause::Died { runs, last },
            Answer::Unsent(why) => TaskCause::Arguments(why),
            Answer::Over(error) => return Err(error.into()),
        };
        Err(self.error(index, cause))
    }
}

/// The results of a task's runs in the order of its arguments; from
/// [`ProcessPool::imap`](crate::ProcessPool::imap).
pub struct Results<'p, T: PoolTask, I> {
    calls: Calls<'p>,
    args: Fuse<I>,
    /// Results that others before them are waited for.
    early: HashMap<u64, Result<T::Output, PoolError>>,
}

impl<'p, T: PoolTask, I: Iterator<Item = T::Args>> Results<'p, T, I> {
    pub(super) fn new(calls: Calls<'p>, args: I) -> Self {
        Self { calls, args: args.fuse(), early: HashMap::new() }
    }

    /// Takes arguments as far as there is room.
    fn fill(&mut self) {
        while self.calls.has_room() {
            let Some(args) = self.args.next() else { return };
            self.calls.taken += 1;
            if let Err(error) = self.calls.submit(&args) {
                self.keep(self.calls.taken - 1, Err(error));
            }
        }
    }

    fn keep(&mut self, index: u64, result: Result<T::Output, PoolError>) {
        self.calls.answered += 1;
        self.calls.failed |= result.is_err();
        self.early.insert(index, result);
    }

    fn take(&mut self, (index, answer): (u64, Answer)) {
        let result = self.calls.result(index, answer);
        self.keep(index, result);
    }
}

impl<T: PoolTask, I: Iterator<Item = T::Args>> Iterator for Results<'_, T, I> {
    type Item = Result<T::Output, PoolError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.calls.over {
            while let Ok(answer) = self.calls.answers.try_recv() {
                self.take(answer);
            }
            self.fill();
            if let Some(result) = self.early.remove(&self.calls.given) {
                self.calls.given += 1;
                self.calls.over = matches!(result, Err(PoolError::Workers(_)));
                return Some(result);
            }
            if self.calls.given == self.calls.taken {
                return None;
            }
            // Every task that was submitted gets an answer, and the sender is here too.
            let answer = self.calls.answers.recv().ok()?;
            self.take(answer);
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let begun = (self.calls.taken - self.calls.given) as usize;
        let (least, most) = self.args.size_hint();
        (least.saturating_add(begun), most.and_then(|most| most.checked_add(begun)))
    }
}

impl<T: PoolTask, I: Iterator<Item = T::Args>> FusedIterator for Results<'_, T, I> {}

impl<T: PoolTask, I> fmt::Debug for Results<'_, T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calls { name, taken, given, .. } = &self.calls;
        f.debug_struct("Results")
            .field("task", name)
            .field("taken", taken)
            .field("given", given)
            .finish_non_exhaustive()
    }
}
