//! Filling what was claimed: position -> sample -> slot, with the error policy where it fails.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crate::dataset::{Dataset, Sample, SampleError, SampleWriter, Stage};
use crate::rng::Draws;
use crate::sampler::{EpochOrder, Pick, Sampler};
use crate::shm::{Arena, Claim, WorkerId};

/// How often a failed sample is replaced by another that fails too before the place counts as failed.
const SUBSTITUTES: u64 = 8;
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
        let mut scratch = D::Scratch::default();
        Box::new(move |sample, out| self.0.load(sample, &mut scratch, out))
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
    pub(crate) dataset_len: u64,
    pub(crate) seed: u64,
    pub(crate) substitute: bool,
    /// Orders of recent epochs, so that one which takes a sort is made once.
    orders: Mutex<Vec<(u64, EpochOrder)>>,
}

impl Job {
    pub(crate) fn new(
        arena: Arc<Arena>,
        dataset: Arc<dyn MakeSamples>,
        sampler: Sampler,
        dataset_len: u64,
        seed: u64,
        substitute: bool,
    ) -> Self {
        let orders = Mutex::default();
        Self { arena, dataset, sampler, dataset_len, seed, substitute, orders }
    }

    /// Claims and fills until the arena is closed.
    pub(crate) fn work(&self, worker: WorkerId) {
        let mut filler = Filler { job: self, make: self.fresh(), order: None };
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
    make: Box<MakeSample>,
    order: Option<(u64, EpochOrder)>,
}

impl Filler<'_> {
    fn fill(&mut self, mut claim: Claim<'_>) {
        let batch = claim.descriptor();
        if self.order.as_ref().is_none_or(|(epoch, _)| *epoch != batch.epoch) {
            self.order = Some((batch.epoch, self.job.order(batch.epoch)));
        }
        for at in claim.places() {
            let position = batch.first + u64::from(at);
            let Some(pick) = self.order.as_ref().map(|(_, order)| order.get(position)) else {
                continue;
            };
            self.fill_place(&mut claim, at, position, batch.epoch, pick);
        }
    }

    fn fill_place(
        &mut self,
        claim: &mut Claim<'_>,
        at: u32,
        position: u64,
        epoch: u64,
        pick: Pick,
    ) {
        let seed = self.job.seed;
        let mut sample = Sample { index: pick.index, epoch, seed, occurrence: pick.occurrence };
        let mut substitutes = None;
        for attempt in 0..=SUBSTITUTES {
            match self.make(&sample, &mut claim.writer(at)) {
                Ok(()) => return claim.made(at, sample.index, pick.padding),
                Err(error) => claim.failed(at, sample.index, &error),
            }
            if !self.job.substitute || attempt == SUBSTITUTES {
                return;
            }
            // Chosen by the position alone, so that no other place of the epoch changes.
            let draws = substitutes
                .get_or_insert_with(|| Draws::keyed(seed, epoch, position, SUBSTITUTE_DRAWS, 0));
            sample.index = draws.below(self.job.dataset_len);
            sample.occurrence = SUBSTITUTE_DRAWS - 1 - position;
        }
    }

    fn make(&mut self, sample: &Sample, out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        let made = catch_unwind(AssertUnwindSafe(|| (self.make)(sample, out)));
        let made = made.unwrap_or_else(|panic| {
            // What the scratch memory holds after a panic is anyone's guess.
            self.make = self.job.fresh();
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

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
