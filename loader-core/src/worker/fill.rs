//! Filling what was claimed: position -> sample -> slot, with the error policy where it fails.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dataset::{Dataset, Sample, SampleError, SampleWriter, Stage};
use crate::rng::Draws;
use crate::sampler::{EpochOrder, Pick, Sampler};
use crate::shm::{Arena, Claim, Descriptor, Desk, Place, Recorder, WorkerId};
use crate::stats::{clock, trace};

/// How often a failed sample is replaced by another that fails too before the place counts as failed.
const SUBSTITUTES: u32 = 8;
/// No sample's own draws have this occurrence; the sampler's have the number after it.
const SUBSTITUTE_DRAWS: u64 = u64::MAX - 1;
/// Epochs whose order is kept: the one that drains, the one that fills, and one in reserve.
const KEPT_ORDERS: usize = 3;

/// A dataset with its scratch type hidden, so that the engine is not generic.
pub(crate) trait MakeSamples: Send + Sync {
    /// What one worker makes samples with.
    fn worker(self: Arc<Self>) -> Box<dyn MakeSample>;

    /// Whether samples are best made in runs.
    fn makes_runs(&self) -> bool;
}

/// A dataset in the hands of one worker.
pub(crate) trait MakeSample {
    /// Makes one sample.
    fn make(&mut self, sample: &Sample, out: &mut SampleWriter<'_>) -> Result<(), SampleError>;

    /// Makes samples that lie side by side, or tells that it can't.
    fn make_run(&mut self, samples: &[Sample], out: &mut SampleWriter<'_>) -> bool;
}

struct Erased<D>(Arc<D>);

struct Hand<D: Dataset> {
    dataset: Arc<D>,
    /// Made with the first sample, where a panic is caught.
    scratch: Option<D::Scratch>,
}

impl<D: Dataset> MakeSamples for Erased<D> {
    fn worker(self: Arc<Self>) -> Box<dyn MakeSample> {
        Box::new(Hand { dataset: Arc::clone(&self.0), scratch: None })
    }

    fn makes_runs(&self) -> bool {
        self.0.run_len() > 1
    }
}

impl<D: Dataset> MakeSample for Hand<D> {
    fn make(&mut self, sample: &Sample, out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        self.dataset.load(sample, self.scratch.get_or_insert_with(D::Scratch::default), out)
    }

    fn make_run(&mut self, samples: &[Sample], out: &mut SampleWriter<'_>) -> bool {
        self.dataset.load_run(samples, self.scratch.get_or_insert_with(D::Scratch::default), out)
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
        let (make, samples, padding) = (self.fresh(), Vec::new(), Vec::new());
        let mut filler = Filler { job: self, worker, desk, make, order: None, samples, padding };
        while let Some(claim) = self.arena.next_claim(worker) {
            filler.fill(claim);
        }
    }

    fn fresh(&self) -> Box<dyn MakeSample> {
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
    make: Box<dyn MakeSample>,
    order: Option<(u64, EpochOrder)>,
    /// The samples of a run, and which of them are padding.
    samples: Vec<Sample>,
    padding: Vec<bool>,
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
        if !self.fill_run(&mut claim, batch, &order) {
            for at in claim.places() {
                self.fill_place(&mut claim, at, batch, &order);
            }
        }
        self.order = Some((batch.epoch, order));
    }

    /// Makes all of a claim's samples at once, where the dataset does that. False where it does not, or
    /// could not: each is then made by itself, so that errors, panics and deaths are those of one sample.
    fn fill_run(&mut self, claim: &mut Claim<'_>, batch: Descriptor, order: &EpochOrder) -> bool {
        let job = self.job;
        // A timeline shows single samples.
        if !job.dataset.makes_runs() || job.recorder.is_some() {
            return false;
        }
        let places = claim.places();
        if places.clone().any(|at| claim.place(at) != Place::EMPTY) {
            return false;
        }
        let picks = places.clone().map(|at| {
            let Pick { index, occurrence, padding } =
                order.pick(order.global(batch.first + u64::from(at)));
            (Sample { index, epoch: batch.epoch, seed: job.seed, occurrence }, padding)
        });
        self.samples.clear();
        self.padding.clear();
        for (sample, padding) in picks {
            self.samples.push(sample);
            self.padding.push(padding);
        }
        let mut since = 0;
        // The first one last: what the desk names is where the run begins.
        for (at, sample) in places.clone().zip(&self.samples).rev() {
            since = claim.begin(at, sample.index);
        }
        let (make, samples) = (&mut self.make, &self.samples[..]);
        let run = || {
            let out = &mut claim.run_writer();
            let made = catch_unwind(AssertUnwindSafe(|| make.make_run(samples, out)));
            made.map(|made| made && out.forgotten().is_none())
        };
        let (made, laps) = clock::timed(since, false, run);
        if made.is_err() {
            self.renew();
        }
        if !made.unwrap_or(false) {
            self.desk.count_other();
            return false;
        }
        self.desk.count(&laps, self.samples.len() as u64);
        for (at, &padding) in places.zip(&self.padding) {
            claim.made(at, padding);
        }
        true
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
            self.desk.count(&laps, 1);
            if let Some(recorder) = recorder {
                let kind = if made.is_ok() { trace::SAMPLE } else { trace::FAILED };
                let what = (since, sample.index, epoch);
                clock::last_laps(|laps| {
                    recorder.add(self.worker.into(), kind, what, laps.iter().copied());
                });
            }
            match made {
                Ok(()) => return claim.made(at, pick.padding),
                Err(error) => {
                    claim.failed(at, &error);
                    // What all samples lack, a substitute lacks too, or has by chance.
                    if error.stage == Stage::System {
                        return;
                    }
                }
            }
        }
    }

    /// What the scratch memory holds after a panic is anyone's guess.
    fn renew(&mut self) {
        let spent = mem::replace(&mut self.make, self.job.fresh());
        let _ = catch_unwind(AssertUnwindSafe(|| drop(spent)));
    }

    fn make(&mut self, sample: &Sample, out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        let made = catch_unwind(AssertUnwindSafe(|| self.make.make(sample, out)));
        let made = made.unwrap_or_else(|panic| {
            self.renew();
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

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
