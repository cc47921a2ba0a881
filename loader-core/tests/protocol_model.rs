//! The claim protocol under loom, which tries every order in which threads can see each other's
//! stores, within the bounds that each test states. The protocol's own files are compiled here, over
//! a board on the heap.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use loom::sync::Arc;
use loom::thread;

/// What `src/shm/sync.rs` is to the crate.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/shm/board.rs"]
#[expect(dead_code, reason = "the arena uses more of it than these models")]
mod board;
#[path = "../src/shm/cell.rs"]
mod cell;

use board::{Board, Layout, Words};
use cell::WorkerId;
use sync::{AtomicU32, AtomicU64, Ordering};

/// A board of a few slots, on the heap.
struct Heap {
    halves: HashMap<usize, AtomicU32>,
    wholes: HashMap<usize, AtomicU64>,
}

impl Words for Heap {
    fn u32(&self, at: usize) -> &AtomicU32 {
        &self.halves[&at]
    }

    fn u64(&self, at: usize) -> &AtomicU64 {
        &self.wholes[&at]
    }
}

/// For batches of up to `cells` samples, one a cell.
fn board(slots: usize, cells: usize) -> Arc<Board<Heap>> {
    let layout = Layout {
        tail_at: 0,
        head_at: 8,
        queue_at: 100,
        queue_len: 2 * slots as u64,
        slots_at: 1000,
        slot_bytes: 1000,
        cursor_at: 0,
        count_at: 4,
        number_at: 8,
        cells_at: 100,
        batch_size: cells,
        per_cell: 1,
    };
    let slot_at = |slot: usize, at| layout.slots_at + slot * layout.slot_bytes + at;
    let mut halves: Vec<usize> = (0..2 * slots).map(|n| layout.queue_at + 4 * n).collect();
    let mut wholes = vec![layout.tail_at, layout.head_at];
    for slot in 0..slots {
        halves.extend([slot_at(slot, layout.cursor_at), slot_at(slot, layout.count_at)]);
        halves.extend((0..cells).map(|cell| slot_at(slot, layout.cells_at + 4 * cell)));
        wholes.push(slot_at(slot, layout.number_at));
    }
    let halves = halves.into_iter().map(|at| (at, AtomicU32::new(0))).collect();
    let wholes = wholes.into_iter().map(|at| (at, AtomicU64::new(0))).collect();
    Arc::new(Board { words: Heap { halves, wholes }, layout })
}

/// Claims and finishes until nothing is found; tells how many cells, and whether one of them was a
/// slot's last.
fn work(board: &Board<Heap>, worker: WorkerId) -> (u32, bool) {
    let (mut made, mut last) = (0, false);
    while let Some((slot, index)) = board.claim(worker) {
        last |= board.finish(slot, index, worker);
        made += 1;
    }
    (made, last)
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Bounds: 3 workers, 2 cells, 3 preemptions.
#[test]
fn each_cell_is_made_once_and_somebody_sees_the_last_one() {
    check(3, || {
        let board = board(1, 2);
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let board = board.clone();
                thread::spawn(move || work(&board, worker))
            })
            .collect();
        assert!(board.open(0, 2));
        let mut all = vec![work(&board, 2)];
        all.extend(workers.into_iter().map(|worker| worker.join().unwrap()));
        assert_eq!(all.iter().map(|(made, _)| made).sum::<u32>(), 2);
        assert!(all.iter().any(|(_, last)| *last) && board.is_settled(0));
    });
}

/// Bounds: 2 workers, a batch of 1 cell and then one of 2 in the same slot, 3 preemptions.
#[test]
fn no_cell_is_lost_when_a_slot_is_reused_for_a_longer_batch() {
    check(3, || {
        let board = board(1, 2);
        assert!(board.open(0, 1));
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let board = board.clone();
                thread::spawn(move || work(&board, worker).0)
            })
            .collect();
        let mut reopened = false;
        if board.is_settled(0) {
            assert!(board.open(0, 2));
            reopened = true;
        }
        let made: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert_eq!(made + work(&board, 2).0, if reopened { 3 } else { 1 });
        assert!(board.is_settled(0));
    });
}

/// Bounds: 1 worker that dies over its first claim, 1 that lives, 2 cells, 4 preemptions.
#[test]
fn what_a_dead_worker_held_is_found_by_another() {
    check(4, || {
        let board = board(1, 2);
        assert!(board.open(0, 2));
        let (doomed, living) = (board.clone(), board.clone());
        let doomed = thread::spawn(move || doomed.claim(0).is_some());
        let living = thread::spawn(move || work(&living, 1).0);
        let held = doomed.join().unwrap();
        let mut lost = 0;
        board.take_back(0, &(0..1), true, |_| lost += 1);
        assert_eq!(lost, u32::from(held));
        assert!(board.offer_again(0));
        let made = living.join().unwrap();
        assert_eq!(made + work(&board, 2).0, 2);
        assert!(board.is_settled(0));
    });
}

/// Bounds: 1 worker that dies between cursor and cell, 1 that lives, 2 cells, 4 preemptions.
#[test]
fn a_cell_that_a_dead_worker_had_passed_is_found_by_another() {
    check(4, || {
        let board = board(1, 2);
        assert!(board.open(0, 2));
        let (doomed, living) = (board.clone(), board.clone());
        let doomed = thread::spawn(move || {
            let cursor = doomed.words.u32(doomed.slot_at(0) + doomed.layout.cursor_at);
            cursor.fetch_add(1, Ordering::AcqRel);
        });
        let living = thread::spawn(move || work(&living, 1).0);
        doomed.join().unwrap();
        board.take_back(0, &(0..1), true, |_| {});
        assert!(board.offer_again(0));
        let made = living.join().unwrap();
        assert_eq!(made + work(&board, 2).0, 2);
        assert!(board.is_settled(0));
    });
}

/// Bounds: 2 slots, 1 dead worker, 2 living ones, 3 preemptions.
#[test]
fn a_batch_that_comes_back_is_found_behind_the_head() {
    check(3, || {
        let board = board(2, 1);
        assert!(board.open(0, 1) && board.claim(0).is_some());
        let living: Vec<_> = (1..3)
            .map(|worker| {
                let board = board.clone();
                thread::spawn(move || work(&board, worker).0)
            })
            .collect();
        assert!(board.open(1, 1));
        board.take_back(0, &(0..1), true, |_| {});
        assert!(board.offer_again(0));
        let made: u32 = living.into_iter().map(|worker| worker.join().unwrap()).sum();
        assert_eq!(made + work(&board, 3).0, 2);
        assert!(board.is_settled(0) && board.is_settled(1));
    });
}

/// Bounds: 1 worker, 2 cells, all preemptions.
#[test]
fn a_withdrawn_batch_is_seen_to_be_left_by_its_worker_or_its_pool() {
    loom::model(|| {
        let board = board(1, 2);
        assert!(board.open(0, 2));
        let claimed = board.claim(0).unwrap();
        let worker = {
            let board = board.clone();
            thread::spawn(move || board.finish(claimed.0, claimed.1, 0))
        };
        board.withdraw(0);
        let seen = board.is_settled(0);
        assert!(worker.join().unwrap() || seen);
        assert!(board.claim(0).is_none());
    });
}

/// Bounds: 1 worker, 3 batches through 1 slot and a queue of 2, 3 preemptions.
#[test]
fn an_entry_of_the_queue_stays_while_its_batch_needs_it() {
    check(3, || {
        let board = board(1, 1);
        let worker = {
            let board = board.clone();
            thread::spawn(move || (0..3).map(|_| work(&board, 0).0).sum::<u32>())
        };
        let (mut opened, mut made) = (0, 0);
        for _ in 0..3 {
            if board.is_settled(0) && board.open(0, 1) {
                opened += 1;
            }
            made += work(&board, 1).0;
        }
        made += worker.join().unwrap();
        assert_eq!(made + work(&board, 2).0, opened);
    });
}
