//! Reading ahead, over a store that takes its time and tells what it is asked.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, ReadAhead, Sample, SampleError, SampleWriter,
    Workers,
};

/// A disk: reads that are under way, and samples that are in memory.
#[derive(Default)]
struct Store {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    in_memory: HashMap<u64, bool>,
    under_way: usize,
    most_under_way: usize,
    /// Reads that a worker had to begin.
    begun_by_workers: usize,
}

impl Store {
    /// As the page cache does: waits for a read that is under way, and begins one where there is none.
    fn read(&self, index: u64, by_worker: bool) {
        let mut state = self.state.lock().unwrap();
        if !state.in_memory.contains_key(&index) {
            state.in_memory.insert(index, false);
            state.begun_by_workers += usize::from(by_worker);
            state.under_way += 1;
            state.most_under_way = state.most_under_way.max(state.under_way);
            drop(state);
            std::thread::sleep(Duration::from_millis(3));
            state = self.state.lock().unwrap();
            state.under_way -= 1;
            state.in_memory.insert(index, true);
            self.arrived.notify_all();
        }
        while !state.in_memory[&index] {
            state = self.arrived.wait(state).unwrap();
        }
    }
}

struct Slow(Arc<Store>);

impl Dataset for Slow {
    type Scratch = ();

    fn len(&self) -> u64 {
        200
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I64, [])]
    }

    fn load(&self, s: &Sample, _: &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        self.0.read(s.index, true);
        out.field::<i64>(0)?[0] = s.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"slow")
    }

    fn read_ahead(&self, index: u64) -> bool {
        self.0.read(index, false);
        true
    }
}

/// Loads an epoch with one worker; tells the most reads at a time and those that the worker began.
fn epoch(read_ahead: ReadAhead) -> (usize, usize) {
    let store = Arc::new(Store::default());
    let builder = DataLoader::builder(Slow(Arc::clone(&store))).batch_size(8).shuffle(3);
    let loader = builder.workers(Workers::threads(1)).read_ahead(read_ahead).build().unwrap();
    let mut seen: Vec<i64> = Vec::new();
    for batch in loader.epoch(0).unwrap() {
        seen.extend(batch.unwrap().get::<i64>("x").unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    let state = store.state.lock().unwrap();
    (state.most_under_way, state.begun_by_workers)
}

#[test]
fn many_reads_are_under_way_for_one_worker() {
    let (most, by_worker) = epoch(ReadAhead::samples(64).threads(16));
    assert!(most >= 10, "{most} reads at a time");
    assert!(by_worker < 100, "the worker had to begin {by_worker} of 200 reads");
}

#[test]
fn without_it_the_worker_waits_for_each() {
    assert_eq!(epoch(ReadAhead::off()), (1, 200));
}
