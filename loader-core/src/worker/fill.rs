//! Filling what was claimed: position -> sample -> slot, with the error policy where it fails.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dataset::{Dataset, Sample, SampleError, SampleWriter, Stage};
use crate::rng::Draws;
use crate::sampler::{EpochOrder, Sampler};
use crate::shm::{Arena, Claim, Descriptor, Desk, Recorder, WorkerId};
use crate::stats::{clock, trace};

/// How often a failed sample is replaced by another that fails too before the place counts as failed.
const SUBSTITUTES: u32 = 8;
/// No sample's own draws have this occurrence; the sampler's have the number after it.
const SUBSTITUTE_DRAWS: u64 = u64::MAX - 1;
/// Epochs whose order is kept: the one that drains, the one that fills, and one in reserve.
const KEPT_ORDERS: usize = 3;

/// A dataset with its scratch type hidden, so that the engine is not generic.
pub(crate) trait MakeSamples: Send + Sync {
    /// One worker's own function to make samples.
    fn worker(self: Arc<Self>) -> Box<MakeSample>;
}

/// Makes one sample.
pub(crate) type MakeSample = dyn FnMut(&Sample, &mut SampleWriter<'_>) -> Result<(), SampleError>;

struct Erased<D>(Arc<D>);

impl<D: Dataset> MakeSamples for Erased<D> {
    fn worker(self: Arc<Self>) -> Box<MakeSample> {
        // Made with the first sample, where a panic is caught.
        let mut scratch = None;
        Box::new(move |sample, out| {
            self.0.load(sample, scratch.get_or_insert_with(D::Scratch::default), out)
        })
    }
}

/// Hides the type of a dataset.
pub(crate) fn erase<D: Dataset>(dataset: Arc<D>) -> Arc<dyn MakeSamples> {
    Arc::new(Erased(dataset))
}

/// Everything a worker needs to know.
pub(crate) struct Job {
    pub(crate) arena: Arc<Arena>,
    pub(crate) dataset: Arc<dyn MakeSamples>,
    pub(crate) sampler: Sampler,
    pub(crate) seed: u64,
    pub(crate) substitute: bool,
    /// Where a timeline is kept, if it is.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Orders of recent epochs, so that one which takes a sort is made once.
    orders: Mutex<Vec<(u64, EpochOrder)>>,
}

impl Job {
    pub(crate) fn new(
        arena: Arc<Arena>,
        dataset: Arc<dyn MakeSamples>,
        sampler: Sampler,
        seed: u64,
        substitute: bool,
        recorder: Option<Arc<Recorder>>,
    ) -> Self {
        let orders = Mutex::default();
        Self { arena, dataset, sampler, seed, substitute, recorder, orders }
    }

    /// Claims and fills until the arena is closed.
    pub(crate) fn work(&self, worker: WorkerId) {
        let desk = self.arena.desk(worker);
        desk.start();
        let mut filler = Filler { job: self, worker, desk, make: self.fresh(), order: None };
        while let Some(claim) = self.arena.next_claim(worker) {
            filler.fill(claim);
        }
    }

    fn fresh(&self) -> Box<MakeSample> {
        Arc::clone(&self.dataset).worker()
    }

    fn order(&self, epoch: u64) -> EpochOrder {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(kept, _)| *kept == epoch) {
            return order.clone();
        }
        let order = self.sampler.epoch(epoch);
        if orders.len() == KEPT_ORDERS {
            orders.remove(0);
        }
        orders.push((epoch, order.clone()));
        order
    }
}

struct Filler<'a> {
    job: &'a Job,
    worker: WorkerId,
    desk: Desk<'a>,
    make: Box<MakeSample>,
    order: Option<(u64, EpochOrder)>,
}

impl Filler<'_> {
    fn fill(&mut self, mut claim: Claim<'_>) {
        let batch = claim.descriptor();
        let order = match self.order.take() {
            Some((epoch, order)) if epoch == batch.epoch => order,
            _ => {
                let order = self.job.order(batch.epoch);
                // Some take a sort, which is not to count for a sample.
                self.desk.count_other();
                order
            }
        };
        for at in claim.places() {
            self.fill_place(&mut claim, at, batch, &order);
        }
        self.order = Some((batch.epoch, order));
    }

    fn fill_place(
        &mut self,
        claim: &mut Claim<'_>,
        at: u32,
        batch: Descriptor,
        order: &EpochOrder,
    ) {
        // A worker that died may have been here.
        let begun = claim.place(at);
        if begun.is_made() {
            return;
        }
        let (seed, epoch) = (self.job.seed, batch.epoch);
        let position = order.global(batch.first + u64::from(at));
        let pick = order.pick(position);
        let mut sample = Sample { index: pick.index, epoch, seed, occurrence: pick.occurrence };
        let mut substitutes = None;
        let attempts = if self.job.substitute { SUBSTITUTES } else { 0 };
        for attempt in 0..=attempts {
            if attempt > 0 {
                // Chosen by the position in the whole epoch alone: no other place changes, and the
                // number of ranks makes no difference. Among the epoch's samples: a subset or
                // weights may leave out others for a reason.
                let draws = substitutes.get_or_insert_with(|| {
                    Draws::keyed(seed, epoch, position, SUBSTITUTE_DRAWS, 0)
                });
                sample.index = order.pick(draws.below(order.samples())).index;
                sample.occurrence = SUBSTITUTE_DRAWS - 1 - position;
            }
            if attempt < begun.attempt() {
                continue;
            }
            let since = claim.begin(at, sample.index);
            let recorder = self.job.recorder.as_deref();
            let make = || self.make(&sample, &mut claim.writer(at));
            let (made, laps) = clock::timed(since, recorder.is_some(), make);
            self.desk.count(&laps);
            if let Some(recorder) = recorder {
                let kind = if made.is_ok() { trace::SAMPLE } else { trace::FAILED };
                let what = (since, sample.index, epoch);
                clock::last_laps(|laps| {
                    recorder.add(self.worker.into(), kind, what, laps.iter().copied());
                });
            }
            match made {
                Ok(()) => return claim.made(at, pick.padding),
                Err(error) => claim.failed(at, &error),
            }
        }
    }

    fn make(&mut self, sample: &Sample, out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        let made = catch_unwind(AssertUnwindSafe(|| (self.make)(sample, out)));
        let made = made.unwrap_or_else(|panic| {
            // What the scratch memory holds after a panic is anyone's guess.
            let spent = mem::replace(&mut self.make, self.job.fresh());
            let _ = catch_unwind(AssertUnwindSafe(|| drop(spent)));
            Err(SampleError::new(Stage::Panic, panic_message(&*panic)))
        });
        made.and_then(|()| match out.forgotten() {
            None => Ok(()),
            Some(field) => Err(SampleError::new(
                Stage::Write,
                format_args!("the dataset did not write field {:?}", field.name),
            )),
        })
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
