//! The arena as its pool, its workers and its consumer use it together.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::dataset::{SampleError, Stage};
use crate::field::{DType, Field};

#[test]
fn a_cell_is_claimed_once_between_opening_and_finishing() {
    let cell = sync::AtomicU32::new(0);
    assert!(cell::is_settled(&cell) && !cell::claim(&cell, 1));
    cell::open(&cell);
    assert!(cell::claim(&cell, 1) && !cell::claim(&cell, 2) && !cell::is_settled(&cell));
    cell::void(&cell);
    assert!(!cell::is_settled(&cell), "a claimed cell can't be withdrawn");
    cell::finish(&cell, 1);
    assert!(cell::is_settled(&cell) && !cell::claim(&cell, 2));
}

#[test]
fn a_withdrawn_cell_can_not_be_claimed() {
    let cell = sync::AtomicU32::new(0);
    cell::open(&cell);
    cell::void(&cell);
    assert!(cell::is_settled(&cell) && !cell::claim(&cell, 1));
}

#[test]
fn a_dead_workers_cell_goes_to_another_or_is_settled() {
    let cell = sync::AtomicU32::new(0);
    cell::open(&cell);
    assert!(cell::claim(&cell, 7));
    assert!(cell::is_claimed_by(&cell, &(6..8)) && !cell::is_claimed_by(&cell, &(0..7)));
    cell::give_back(&cell, true);
    assert!(cell::claim(&cell, 8) && !cell::is_claimed_by(&cell, &(6..8)));
    cell::give_back(&cell, false);
    assert!(cell::is_settled(&cell) && !cell::is_claimed_by(&cell, &(0..9)));
}

const WORKERS: usize = 64;

fn arena(batch_size: usize, slots: usize) -> Arc<Arena> {
    let geometry = Geometry::new(vec![Field::new("x", DType::I64, [])], batch_size).unwrap();
    let arena = Arena::create(geometry, slots, WORKERS).unwrap();
    arena.reserve(0..slots as u32).unwrap();
    Arc::new(arena)
}

fn fill(mut claim: Claim<'_>) {
    let batch = claim.descriptor();
    for at in claim.places() {
        let position = batch.first + u64::from(at);
        claim.begin(at, position);
        claim.writer(at).field::<i64>(0).unwrap()[0] = position as i64;
        claim.made(at, false);
    }
}

#[test]
fn withdrawn_work_is_not_handed_out() {
    let arena = arena(4, 2);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 4 }));
    let held = arena.claim(1).unwrap();
    arena.withdraw(0);
    assert!(!arena.is_settled(0), "one cell is still being written");
    drop(held);
    assert!(arena.is_settled(0) && arena.claim(1).is_none());
}

#[test]
fn the_last_piece_of_the_largest_batch_ends_with_it() {
    let fields = vec![Field::new("x", DType::U8, [])];
    let geometry = Geometry::new(fields, u32::MAX as usize).unwrap();
    let arena = Arena::create(geometry, 1, 1).unwrap();
    arena.board().count(0).store(u32::MAX, Ordering::Relaxed);
    let last = u32::MAX.div_ceil(arena.geometry().per_cell as u32) - 1;
    assert_eq!(arena.board().places(0, last).end, u32::MAX);
}

#[test]
fn samples_of_a_dropped_claim_count_as_failed() {
    let arena = arena(2, 1);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 2 }));
    drop(arena.claim(0).unwrap());
    fill(arena.claim(0).unwrap());
    let lease = SlotLease::new(arena, 0);
    assert!(lease.filled(0).failed && !lease.filled(1).failed);
}

/// Has the workers of an arena end when it is dropped.
struct Closing<'a>(&'a Arena);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Slots are opened again the moment they are complete, while late workers still look at them.
#[test]
fn no_sample_is_lost_or_doubled_when_slots_are_reused_at_once() {
    for (batch_size, short) in [(1, 1), (3, 3), (2000, 2000), (8, 1)] {
        let arena = arena(batch_size, 3);
        // Each fourth batch is a short one, as an epoch's last.
        let count = |n: u64| if n % 4 == 3 { short } else { batch_size as u32 };
        std::thread::scope(|scope| {
            let _close = Closing(&arena);
            for worker in 0..4 {
                let arena = &arena;
                scope.spawn(move || {
                    while let Some(claim) = arena.next_claim(worker) {
                        fill(claim);
                    }
                });
            }
            let batches = if batch_size > 100 { 200 } else { 20_000u64 };
            let mut seen = HashSet::new();
            let mut open: Vec<(u32, u64, u32)> = Vec::new();
            let (mut next, mut samples) = (0, 0);
            while next < batches || !open.is_empty() {
                let word = arena.ready_word();
                if let Some(i) = open.iter().position(|open| arena.is_settled(open.0)) {
                    let (slot, first, count) = open.remove(i);
                    let lease = SlotLease::new(Arc::clone(&arena), slot);
                    for at in 0..count {
                        let filled = lease.filled(at);
                        assert_eq!(filled.index, first + u64::from(at));
                        assert!(!filled.failed && seen.insert(filled.index));
                        // SAFETY: the lease is held and the place is inside the field.
                        let value = unsafe { *lease.field_ptr(0).cast::<i64>().add(at as usize) };
                        assert_eq!(value as u64, filled.index);
                    }
                } else if next < batches && open.len() < 3 {
                    let slot = (0..3).find(|s| open.iter().all(|o| o.0 != *s)).unwrap();
                    let (first, count) = (samples, count(next));
                    if arena.open(slot, Descriptor { epoch: 0, first, count }) {
                        open.push((slot, first, count));
                        samples += u64::from(count);
                        next += 1;
                    } else {
                        std::thread::yield_now();
                    }
                } else {
                    arena.wait_ready(word, None);
                }
            }
            assert_eq!(seen.len() as u64, samples);
        });
    }
}

/// What is left of a worker that died: its claim, and how far it got.
fn die(mut claim: Claim<'_>, making: Option<u32>) {
    if let Some(at) = making {
        claim.begin(at, u64::from(at) + 100);
    }
    mem::forget(claim);
}

#[test]
fn what_a_dead_worker_claimed_is_made_by_another() {
    let arena = arena(4, 2);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 4 }));
    fill(arena.claim(3).unwrap());
    die(arena.claim(3).unwrap(), Some(1));
    (0..2).for_each(|_| fill(arena.claim(4).unwrap()));
    assert!(!arena.is_settled(0) && arena.claim(4).is_none());
    let lost = arena.take_back(0, &(3..4), true, true);
    assert_eq!(lost, [Lost { slot: 0, at: 1, index: 101, attempt: 0, poison: false }]);
    assert!(arena.offer_again(0));
    fill(arena.claim(4).unwrap());
    let lease = SlotLease::new(arena, 0);
    assert!((0..4).all(|at| lease.filled(at).index == u64::from(at)));
}

#[test]
fn a_sample_that_kills_twice_is_not_offered_a_third_time() {
    let arena = arena(1, 1);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 1 }));
    for death in 1..=2 {
        die(arena.claim(0).unwrap(), Some(0));
        let lost = arena.take_back(0, &(0..1), true, true);
        assert_eq!(lost[0].poison, death == 2);
        arena.offer_again(0);
    }
    arena.tell(0, 0, 0, 100, 0, &SampleError::new(Stage::Worker, "killed"));
    let claim = arena.claim(1).unwrap();
    assert_eq!(claim.place(0).attempt(), 1, "whoever claims it goes on with the next candidate");
    drop(claim);
    let lease = SlotLease::new(arena, 0);
    let (failed, told) = lease.failures(1);
    assert_eq!((failed, told.len(), told[0].index), (1, 1, 100));
    assert!(lease.filled(0).failed);
}

#[test]
fn a_failure_that_a_dead_worker_had_told_is_told_once() {
    let arena = arena(1, 1);
    let error = SampleError::new(Stage::Decode, "broken");
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 1 }));
    let mut claim = arena.claim(0).unwrap();
    claim.begin(0, 7);
    // It dies between the words and the place.
    arena.tell(0, 0, 0, 7, 0, &error);
    mem::forget(claim);
    arena.take_back(0, &(0..1), true, false);
    arena.offer_again(0);
    let mut claim = arena.claim(1).unwrap();
    claim.begin(0, 7);
    claim.failed(0, &error);
    drop(claim);
    let (failed, told) = SlotLease::new(arena, 0).failures(1);
    assert_eq!((failed, told.len()), (1, 1));
}

#[test]
fn a_withdrawn_slot_is_settled_by_its_dead_worker() {
    let arena = arena(2, 1);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 2 }));
    die(arena.claim(0).unwrap(), Some(0));
    arena.withdraw(0);
    assert!(!arena.is_settled(0));
    arena.take_back(0, &(0..1), false, false);
    assert!(arena.is_settled(0) && arena.claim(1).is_none());
}

/// Cells come back after others have taken their batch's entry of the queue.
#[test]
fn a_batch_that_lost_its_place_in_the_queue_gets_another() {
    let arena = arena(2, 2);
    assert!(arena.open(0, Descriptor { epoch: 0, first: 0, count: 2 }));
    die(arena.claim(0).unwrap(), None);
    fill(arena.claim(1).unwrap());
    for batch in 1..20 {
        assert!(arena.open(1, Descriptor { epoch: 0, first: 2 * batch, count: 2 }));
        (0..2).for_each(|_| fill(arena.claim(1).unwrap()));
    }
    arena.take_back(0, &(0..1), true, false);
    assert!(arena.offer_again(0));
    let claim = arena.claim(1).unwrap();
    assert_eq!(claim.descriptor().first, 0);
    fill(claim);
    assert!(arena.is_settled(0));
}

/// The whole protocol under load: workers die at random moments, as far as threads can.
#[test]
fn no_sample_is_lost_or_doubled_while_workers_die() {
    const BATCH: u32 = 5;
    let arena = arena(BATCH as usize, 4);
    std::thread::scope(|scope| {
        // Where an assertion fails, too: the scope waits for its threads.
        let _close = Closing(&arena);
        let (sender, deaths) = std::sync::mpsc::channel();
        let spawn = |worker: u16| {
            let (arena, sender) = (&arena, sender.clone());
            scope.spawn(move || {
                let mut life = 3 + u64::from(worker) % 7;
                while let Some(claim) = arena.next_claim(worker) {
                    life -= 1;
                    if life == 0 {
                        let at = claim.places().start;
                        die(claim, Some(at));
                        sender.send(worker).unwrap();
                        arena.notify_ready();
                        return;
                    }
                    fill(claim);
                }
            });
        };
        (0..4).for_each(spawn);
        // Numbers of workers that are not alive, the longest dead first.
        let mut free: VecDeque<u16> = (4..WORKERS as u16).collect();
        // As the pool does, since the queue may be full for a moment.
        let mut unoffered = Vec::new();
        let (mut queued, mut next, mut seen) = (Vec::new(), 0u64, HashSet::new());
        let mut deaths_seen = 0;
        while seen.len() < 3000 * BATCH as usize {
            let word = arena.ready_word();
            let mut idle = true;
            while let Ok(worker) = deaths.try_recv() {
                for &(slot, _) in &queued {
                    arena.take_back(slot, &(worker..worker + 1), true, false);
                }
                unoffered.extend(queued.iter().map(|&(slot, _)| slot));
                free.push_back(worker);
                spawn(free.pop_front().unwrap());
                deaths_seen += 1;
                idle = false;
            }
            unoffered.retain(|&slot| !arena.offer_again(slot));
            idle &= unoffered.is_empty();
            if let Some(i) = queued.iter().position(|&(slot, _)| arena.is_settled(slot)) {
                let (slot, first) = queued.remove(i);
                let lease = SlotLease::new(Arc::clone(&arena), slot);
                for at in 0..BATCH {
                    let filled = lease.filled(at);
                    assert_eq!(filled.index, first + u64::from(at));
                    assert!(!filled.failed && seen.insert(filled.index));
                }
                idle = false;
            } else if next < 3000 && queued.len() < 4 {
                let slot = (0..4).find(|s| queued.iter().all(|q| q.0 != *s)).unwrap();
                let first = next * u64::from(BATCH);
                if arena.open(slot, Descriptor { epoch: 0, first, count: BATCH }) {
                    queued.push((slot, first));
                    next += 1;
                    idle = false;
                }
            }
            if idle {
                arena.wait_ready(word, None);
            }
        }
        assert!(deaths_seen > 1000);
    });
}
