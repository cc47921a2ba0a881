//! Reading ahead: the order is known, so the files of coming samples are asked for while earlier
//! ones are decoded. Threads of their own do it, with a depth of their own, since waiting for a disk
//! or a network takes no CPU.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use crate::sampler::{EpochOrder, Sampler};

/// How far ahead files are read, and by how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAhead {
    pub(super) samples: u64,
    pub(super) threads: usize,
}

impl ReadAhead {
    /// That many samples ahead of the batches that are being made.
    pub fn samples(samples: u64) -> Self {
        Self { samples, ..Self::default() }
    }

    /// By that many threads: how many files are waited for at the same time. Where opening a file
    /// takes `t` seconds, `n` threads get ahead of workers that make up to `n / t` samples a second.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Not at all.
    pub fn off() -> Self {
        Self { samples: 0, threads: 0 }
    }

    pub(super) fn is_off(self) -> bool {
        self.samples == 0 || self.threads == 0
    }
}

impl Default for ReadAhead {
    /// 256 samples ahead, by 2 threads.
    fn default() -> Self {
        Self { samples: 256, threads: 2 }
    }
}

/// Asks for the data of a sample; false where there is nothing to ask for, for any.
type Ask = dyn Fn(u64) -> bool + Send + Sync;

/// The threads that read ahead. They end with it.
pub(super) struct Readers {
    shared: Arc<Shared>,
    samples: u64,
}

struct Shared {
    sampler: Sampler,
    ask: Box<Ask>,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Positions whose files are to be asked for.
    wanted: VecDeque<Wanted>,
    /// The epoch that was wanted last, and up to which position.
    until: (u64, u64),
    order: Option<(u64, Arc<EpochOrder>)>,
    closed: bool,
}

struct Wanted {
    epoch: u64,
    positions: Range<u64>,
}

impl Readers {
    pub(super) fn start(setting: ReadAhead, sampler: Sampler, ask: Box<Ask>) -> io::Result<Self> {
        let (state, work) = (Mutex::default(), Condvar::new());
        let readers = Self {
            shared: Arc::new(Shared { sampler, ask, state, work }),
            samples: setting.samples,
        };
        for reader in 0..setting.threads {
            let shared = Arc::clone(&readers.shared);
            let name = thread::Builder::new().name(format!("loader-read-{reader}"));
            name.spawn(move || shared.read())?;
        }
        Ok(readers)
    }

    /// A batch of these positions is given to the workers.
    pub(super) fn follow(&self, epoch: u64, batch: Range<u64>) {
        let state = &mut *self.shared.lock();
        if state.closed {
            return;
        }
        let known = if state.until.0 == epoch { state.until.1 } else { 0 };
        let end = batch.end.saturating_add(self.samples).min(self.shared.sampler.len());
        let positions = known.max(batch.start)..end;
        // What workers are at is too late to ask for.
        if let Some(late) = state.wanted.front_mut().filter(|wanted| wanted.epoch == epoch) {
            late.positions.start = late.positions.start.max(batch.start);
        }
        if positions.is_empty() {
            return;
        }
        state.until = (epoch, end);
        match state.wanted.back_mut() {
            Some(last) if last.epoch == epoch && last.positions.end == positions.start => {
                last.positions.end = end;
            }
            _ => state.wanted.push_back(Wanted { epoch, positions }),
        }
        self.shared.work.notify_all();
    }

    /// Ends the threads, each after the file that it is at.
    pub(super) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
    }

    /// Nothing of what was followed is wanted any more.
    pub(super) fn forget(&self) {
        let state = &mut *self.shared.lock();
        state.wanted.clear();
        state.until = (0, 0);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        while let Some((order, position)) = self.next() {
            let index = order.pick(order.global(position)).index;
            // What goes wrong here goes wrong again, and is told, when the sample is made.
            match catch_unwind(AssertUnwindSafe(|| (self.ask)(index))) {
                Ok(true) | Err(_) => {}
                Ok(false) => return self.lock().closed = true,
            }
        }
    }

    fn next(&self) -> Option<(Arc<EpochOrder>, u64)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let Some(wanted) = state.wanted.front_mut() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let epoch = wanted.epoch;
            match wanted.positions.next() {
                None => drop(state.wanted.pop_front()),
                Some(position) => {
                    let kept = state.order.as_ref().filter(|(made, _)| *made == epoch);
                    let kept = kept.map(|(_, order)| Arc::clone(order));
                    drop(state);
                    return Some((kept.unwrap_or_else(|| self.make_order(epoch)), position));
                }
            }
        }
    }

    /// Without the lock, since some orders take a sort.
    fn make_order(&self, epoch: u64) -> Arc<EpochOrder> {
        let order = Arc::new(self.sampler.epoch(epoch));
        self.lock().order = Some((epoch, Arc::clone(&order)));
        order
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::sampler::Order;

    fn readers(setting: ReadAhead) -> (Readers, mpsc::Receiver<u64>) {
        let sampler = Sampler::new(Order::Sequential, None, 100, 0).unwrap();
        let (asked, told) = mpsc::channel();
        let ask = Box::new(move |index| asked.send(index).is_ok());
        (Readers::start(setting, sampler, ask).unwrap(), told)
    }

    #[test]
    fn each_position_is_asked_for_once_up_to_the_depth() {
        let (readers, told) = readers(ReadAhead::samples(20).threads(1));
        readers.follow(4, 0..8);
        assert_eq!(told.iter().take(28).collect::<Vec<_>>(), (0..28).collect::<Vec<_>>());
        readers.follow(4, 8..16);
        readers.follow(4, 16..24);
        assert_eq!(told.iter().take(16).collect::<Vec<_>>(), (28..44).collect::<Vec<_>>());
        readers.follow(4, 92..100);
        assert_eq!(told.iter().take(8).collect::<Vec<_>>(), (92..100).collect::<Vec<_>>());
        readers.follow(5, 0..8);
        assert_eq!(told.iter().take(28).collect::<Vec<_>>(), (0..28).collect::<Vec<_>>());
        drop(readers);
        assert_eq!(told.iter().next(), None);
    }

    #[test]
    fn readers_that_are_late_skip_what_workers_are_at() {
        let sampler = Sampler::new(Order::Sequential, None, 100, 0).unwrap();
        let (asked, told) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let ask = Box::new(move |index| {
            asked.send(index).unwrap();
            gate.lock().unwrap().recv().is_ok()
        });
        let readers = Readers::start(ReadAhead::samples(4).threads(1), sampler, ask).unwrap();
        readers.follow(0, 0..8);
        assert_eq!(told.recv(), Ok(0));
        (1..6).for_each(|batch| readers.follow(0, batch * 8..batch * 8 + 8));
        assert_eq!(readers.shared.lock().wanted.len(), 1);
        go.send(()).unwrap();
        assert_eq!(told.recv(), Ok(40));
    }

    #[test]
    fn a_panic_does_not_end_it_and_false_does() {
        let sampler = Sampler::new(Order::Sequential, None, 100, 0).unwrap();
        let (asked, told) = mpsc::channel();
        let ask = Box::new(move |index| {
            asked.send(index).unwrap();
            assert!(index != 1, "told to panic");
            index < 3
        });
        let readers = Readers::start(ReadAhead::samples(50).threads(1), sampler, ask).unwrap();
        readers.follow(0, 0..8);
        assert_eq!(told.iter().take(4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        // The channel ends when the thread has ended and the readers are gone.
        drop(readers);
        assert_eq!(told.iter().next(), None);
    }
}
