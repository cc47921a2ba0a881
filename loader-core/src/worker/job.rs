//! A job on its way to a worker process: a few hundred bytes and open files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fill::Job;
use super::registry::Registry;
use crate::dataset::{DescribedRecipe, Recipe};
use crate::field::Field;
use crate::sampler::DescribedSampler;
use crate::shm::{Arena, Geometry, MAX_RECORDS, MAX_SLOTS, MAX_WORKERS, Recorder};

/// What processes are started for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Assignment {
    /// The samples of a loader.
    Load(Box<DescribedJob>),
    /// The tasks of a pool. Its files are what all tasks share, packed, and what that encloses; those of
    /// each process are its end of a channel.
    Tasks { processes: u16 },
}

impl Assignment {
    pub(super) fn processes(&self) -> u16 {
        match self {
            Self::Load(job) => job.processes,
            Self::Tasks { processes } => *processes,
        }
    }

    /// Workers of each process.
    pub(super) fn threads(&self) -> u16 {
        match self {
            Self::Load(job) => job.threads,
            Self::Tasks { .. } => 1,
        }
    }
}

/// What a worker process needs to know. Its files are, in this order: the arena, the rings of a timeline
/// if one is kept, the numbers of the order if it is an explicit one, those of the dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DescribedJob {
    pub(super) processes: u16,
    pub(super) threads: u16,
    fields: Vec<Field>,
    batch_size: usize,
    /// Samples handed out together at least.
    #[serde(default)]
    run: usize,
    max_slots: usize,
    sampler: DescribedSampler,
    seed: u64,
    substitute: bool,
    /// Records of each ring of the timeline.
    recorded: Option<usize>,
    dataset: DescribedRecipe,
}

/// The open files that go with it.
pub(super) struct JobFiles {
    arena: OwnedFd,
    recorder: Option<OwnedFd>,
    numbers: Option<OwnedFd>,
    recipe: Recipe,
}

impl JobFiles {
    pub(super) fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        let own = [Some(&self.arena), self.recorder.as_ref(), self.numbers.as_ref()];
        own.into_iter().flatten().map(AsFd::as_fd).chain(self.recipe.files()).collect()
    }
}

impl DescribedJob {
    /// Describes a job for processes.
    pub(super) fn new(
        job: &Job,
        recipe: Recipe,
        processes: u16,
        threads: u16,
    ) -> std::io::Result<(Self, JobFiles)> {
        let (arena, geometry) = (&job.arena, job.arena.geometry());
        let (sampler, numbers) = job.sampler.describe()?;
        let described = Self {
            processes,
            threads,
            fields: geometry.fields.clone(),
            batch_size: geometry.batch_size,
            run: geometry.per_cell,
            max_slots: arena.max_slots(),
            sampler,
            seed: job.seed,
            substitute: job.substitute,
            recorded: job.recorder.as_ref().map(|recorder| recorder.records()),
            dataset: recipe.described(),
        };
        let recorder = job.recorder.as_ref();
        let recorder = recorder.map(|recorder| recorder.fd().try_clone_to_owned()).transpose()?;
        let arena = arena.fd().try_clone_to_owned()?;
        Ok((described, JobFiles { arena, recorder, numbers, recipe }))
    }

    /// Workers of all processes.
    fn workers(&self) -> usize {
        usize::from(self.processes) * usize::from(self.threads)
    }

    /// The job itself, in the process that is to do it.
    pub(super) fn attach(self, files: Vec<OwnedFd>, registry: &Registry) -> Result<Job, String> {
        let in_range = |value: usize, max| (1..=max).contains(&value);
        if !in_range(self.workers(), MAX_WORKERS) || !in_range(self.max_slots, MAX_SLOTS) {
            let (workers, slots) = (self.workers(), self.max_slots);
            return Err(format!("a job of {workers} workers and {slots} slots"));
        }
        if self.recorded.is_some_and(|records| !in_range(records, MAX_RECORDS)) {
            return Err(format!("a timeline of {:?} records", self.recorded));
        }
        let workers = self.workers();
        let geometry = Geometry::with_runs(self.fields, self.batch_size, self.run);
        let geometry = geometry.map_err(|e| e.to_string())?;
        let mut files = files.into_iter();
        let mut next = |what: &str| files.next().ok_or(format!("the job came without {what}"));
        let arena = Arena::attach(next("its arena")?, geometry, self.max_slots, workers)
            .map_err(|e| format!("the memory for batches: {e}"))?;
        let recorder = match self.recorded {
            None => None,
            Some(records) => {
                let recorder = Recorder::attach(next("its timeline")?, records, workers);
                Some(Arc::new(recorder.map_err(|e| format!("the memory for a timeline: {e}"))?))
            }
        };
        let sampler = self.sampler.attach(|| next("the numbers of its order"))?;
        let dataset = registry.attach(self.dataset.with_files(files.collect()))?;
        Ok(Job::new(Arc::new(arena), dataset, sampler, self.seed, self.substitute, recorder))
    }
}

/// Reads those bytes as a job and attaches to it as a worker process does.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_job(bytes: &[u8], numbers: OwnedFd, table: OwnedFd) {
    let Ok(job) = serde_json::from_slice::<DescribedJob>(bytes) else { return };
    // As large as the job says, where that is not much: the file is sparse.
    let geometry = Geometry::with_runs(job.fields.clone(), job.batch_size, job.run);
    let len = geometry.ok().and_then(|geometry| {
        let slots = geometry.slot_bytes.checked_mul(job.max_slots)?;
        slots.checked_add(Geometry::slots_at(job.max_slots.min(MAX_SLOTS), job.workers()))
    });
    let len = len.unwrap_or(0).min(1 << 26) as u64;
    let sparse = |len: u64| {
        let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        rustix::fs::ftruncate(&file, len).ok().map(|()| file)
    };
    let Some(arena) = sparse(len) else { return };
    let recorder = job.recorded.and_then(|_| sparse(1 << 26));
    let numbers = job.sampler.has_numbers().then_some(numbers);
    let files = [Some(arena), recorder, numbers, Some(table)].into_iter().flatten().collect();
    if let Ok(job) = job.attach(files, &Registry::new()) {
        let order = job.sampler.epoch(0);
        (0..order.len().min(3)).for_each(|position| {
            order.get(position);
        });
    }
}
