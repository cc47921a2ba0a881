//! One pass over the data: an iterator of batches.

use std::iter::FusedIterator;
use std::sync::Arc;

use super::ErrorPolicy;
use super::batch::Batch;
use super::error::{LoadError, SampleFailure};
use super::pool::{Pool, Ready};
use super::state::{LoaderState, Track, Tracker};
use crate::dataset::{Dataset, SampleError, Stage};
use crate::shm::Failure;

/// Failures of an epoch that are kept in full; those beyond are counted.
const KEPT_FAILURES: usize = 100;

/// The batches of one epoch, in order. Independent of the loader's lifetime, but its batches end
/// with [`LoadError::Superseded`] when the loader is dropped or starts another epoch.
///
/// After an error it ends, except after [`LoadError::BatchesHeld`]: drop a batch and go on.
pub struct Epoch<D: Dataset> {
    dataset: Arc<D>,
    pool: Arc<Pool>,
    policy: ErrorPolicy,
    ticket: u64,
    epoch: u64,
    ended: bool,
    report: FailureReport,
    tracker: Arc<Tracker>,
    track: Track,
}

/// What failed in an epoch so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureReport {
    /// Samples that could not be made, substitutes that failed too included.
    pub count: u64,
    /// The first 100 of them.
    pub failures: Vec<SampleFailure>,
}

impl<D: Dataset> Epoch<D> {
    pub(super) fn new(
        dataset: Arc<D>,
        pool: Arc<Pool>,
        policy: ErrorPolicy,
        ticket: u64,
        epoch: u64,
        tracker: Arc<Tracker>,
        track: Track,
    ) -> Self {
        let report = FailureReport::default();
        Self { dataset, pool, policy, ticket, epoch, ended: false, report, tracker, track }
    }

    /// The epoch's number.
    pub fn number(&self) -> u64 {
        self.epoch
    }

    /// Where this epoch stands, as [`DataLoader::state`](crate::DataLoader::state) tells of the
    /// latest one.
    pub fn state(&self) -> LoaderState {
        self.tracker.state_of(&self.track, &*self.dataset)
    }

    /// What failed so far, whatever the error policy made of it.
    pub fn report(&self) -> &FailureReport {
        &self.report
    }

    /// Judges a complete batch; `None` where nothing of it is left.
    fn judge(&mut self, mut ready: Ready) -> Result<Option<Batch>, LoadError> {
        let lease = &mut ready.held.lease;
        let (noted, told) = lease.failures(ready.count);
        let failed = (0..ready.count).find(|&at| lease.filled(at).failed);
        if noted > 0 {
            self.report.count += noted;
            let room = KEPT_FAILURES.saturating_sub(self.report.failures.len());
            let told = told.iter().take(room).cloned();
            let told = told.map(|f| SampleFailure::new(&*self.dataset, self.epoch, ready.first, f));
            self.report.failures.extend(told);
        }
        let mut count = ready.count;
        let substituted = if noted > 0 { lease.substituted(count) } else { 0 };
        let counters = self.pool.counters();
        if let Some(at) = failed {
            let of_system = |f: &Failure| f.error.stage == Stage::System;
            if self.policy != ErrorPolicy::Skip || told.iter().any(of_system) {
                // What no sample is to blame for; else the first place of which a cause was kept, and
                // the first of its causes is that of the sample which the order names, not of a
                // substitute.
                let ended = told.into_iter().filter(|f| lease.filled(f.at).failed);
                let first = ended.min_by_key(|f| (!of_system(f), f.at, f.attempt));
                let failure = first.unwrap_or_else(|| Failure {
                    at,
                    attempt: 0,
                    index: lease.filled(at).index,
                    worker: 0,
                    error: SampleError::new(
                        Stage::Write,
                        format_args!("its cause was not kept: {noted} failures in this batch"),
                    ),
                });
                let failure = SampleFailure::new(&*self.dataset, self.epoch, ready.first, failure);
                counters.failures(noted, substituted, 0);
                return Err(LoadError::Sample(Box::new(failure)));
            }
            count = lease.compact(count);
        }
        counters.failures(noted, substituted, u64::from(ready.count - count));
        if count > 0 {
            counters.delivered(count);
        }
        self.track.deliver(ready.batch);
        Ok((count > 0)
            .then(|| Batch::new(ready.held, count, self.epoch, ready.batch, self.tracker.seed())))
    }
}

impl<D: Dataset> Iterator for Epoch<D> {
    type Item = Result<Batch, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let ready = self.pool.next(self.ticket, self.epoch);
            match ready.and_then(|ready| ready.map(|ready| self.judge(ready)).transpose()) {
                Ok(Some(Some(batch))) => {
                    let (epoch, number, samples) = (self.epoch, batch.number(), batch.len());
                    tracing::trace!(epoch, batch = number, samples, "batch delivered");
                    return Some(Ok(batch));
                }
                Ok(Some(None)) => {}
                Ok(None) => {
                    tracing::debug!(
                        epoch = self.epoch,
                        failures = self.report.count,
                        "epoch ended"
                    );
                    self.ended = true;
                }
                Err(LoadError::BatchesHeld { held, max, waited, refused }) => {
                    // The one error that the caller can mend and go on from.
                    return Some(Err(LoadError::BatchesHeld { held, max, waited, refused }));
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.pool.batches() as usize))
    }
}

impl<D: Dataset> FusedIterator for Epoch<D> {}

impl<D: Dataset> Drop for Epoch<D> {
    fn drop(&mut self) {
        self.pool.stop(self.ticket);
    }
}

impl<D: Dataset> std::fmt::Debug for Epoch<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch")
            .field("epoch", &self.epoch)
            .field("ended", &self.ended)
            .field("failures", &self.report.count)
            .finish_non_exhaustive()
    }
}
