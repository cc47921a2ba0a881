//! The words by which processes share a slot, under loom: every order in which a sender, receivers
//! and the looking after the dead can meet, and every value that relaxed memory may show them.
//!
//! Bounds: two or three threads, one slot, two generations, one to three holders; every order, but
//! for one test of three threads, where a thread is interrupted at most three times.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// What the module's parent has in its place: the model checker's atomics.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[allow(dead_code, reason = "the model leaves out what only looks")]
#[path = "../src/shm/share.rs"]
mod share;

use sync::AtomicU64;

/// A slot's word and bytes, and the table of holders.
struct Slot {
    word: [AtomicU64; 1],
    bytes: UnsafeCell<u32>,
    table: [AtomicU64; 2],
}

impl Slot {
    fn new() -> Arc<Self> {
        let word = [AtomicU64::new(0)];
        let table = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Self { word, bytes: UnsafeCell::new(0), table })
    }

    /// The owner's part: writes a batch and shares it, which is the `generation`-th time.
    fn fill(&self, generation: u32) {
        assert!(share::is_free(&self.word[0]));
        // SAFETY: the slot is free; loom reports whoever accesses it at the same time.
        self.bytes.with_mut(|bytes| unsafe { *bytes = 10 * generation });
        assert_eq!(share::publish(&self.word[0]), generation);
    }

    /// A receiver's part: opens that generation, reads it and drops it. True where it was open.
    fn read(&self, generation: u32, identity: u64) -> bool {
        let Some(holder) = share::register(&self.table, identity) else { panic!("no entry") };
        let opened = share::acquire(&self.word[0], generation, holder);
        if opened {
            // SAFETY: the slot is held; loom reports whoever writes to it at the same time.
            self.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 10 * generation));
            share::release(&self.word[0], holder);
        }
        share::unregister(&self.table[holder as usize], identity);
        opened
    }

    fn refill_when_free(&self, generation: u32) -> bool {
        let free = share::is_free(&self.word[0]);
        if free {
            self.fill(generation);
        }
        free
    }
}

#[test]
fn a_slot_is_written_only_while_nobody_reads_it() {
    let mut bounded = loom::model::Builder::new();
    // All orders take half a minute, and hold too.
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let slot = Slot::new();
        slot.fill(1);
        let receivers = [7, 8].map(|identity| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.read(1, identity))
        });
        let free = share::withdraw(&slot.word[0]);
        let refilled = slot.refill_when_free(2);
        assert!(refilled || !free);
        for receiver in receivers {
            receiver.join().unwrap();
        }
        if !refilled {
            slot.fill(2);
        }
        assert!(slot.read(2, 9) && !slot.read(1, 9));
    });
}

#[test]
fn a_late_receiver_gets_its_own_batch_or_none() {
    loom::model(|| {
        let slot = Slot::new();
        slot.fill(1);
        let receiver = thread::spawn({
            let slot = Arc::clone(&slot);
            move || (slot.read(1, 7), slot.read(2, 7))
        });
        share::withdraw(&slot.word[0]);
        if slot.refill_when_free(2) {
            share::withdraw(&slot.word[0]);
        }
        receiver.join().unwrap();
        assert!(share::is_free(&slot.word[0]));
    });
}

#[test]
fn the_last_to_leave_a_withdrawn_slot_knows_it() {
    loom::model(|| {
        let slot = Slot::new();
        slot.fill(1);
        for holder in 0..2 {
            assert!(share::acquire(&slot.word[0], 1, holder));
        }
        let leaves = [0, 1].map(|holder| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || share::release(&slot.word[0], holder))
        });
        let told = share::withdraw(&slot.word[0]);
        let told = leaves.map(|leaves| leaves.join().unwrap()).into_iter().chain([told]);
        // Else the owner would wait for a slot that is free already.
        assert_eq!(told.filter(|&told| told).count(), 1);
    });
}

#[test]
fn the_dead_are_taken_back_and_the_living_are_not() {
    loom::model(|| {
        let slot = Slot::new();
        slot.fill(1);
        // Process 7 died with the batch open.
        let dead = share::register(&slot.table, 7).unwrap();
        assert!(share::acquire(&slot.word[0], 1, dead));
        let receiver = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.read(1, 8)
        });
        share::withdraw(&slot.word[0]);
        share::reap(&slot.table, &slot.word, |identity| identity == 7);
        let refilled = slot.refill_when_free(2);
        receiver.join().unwrap();
        assert!(refilled || share::is_free(&slot.word[0]));
        assert_eq!(share::register(&slot.table, 9), Some(dead));
    });
}

#[test]
fn two_processes_that_come_at_once_get_entries_of_their_own() {
    loom::model(|| {
        let slot = Slot::new();
        let come = [7, 8, 9].map(|identity| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || share::register(&slot.table, identity))
        });
        let mut got = come.map(|come| come.join().unwrap());
        got.sort_unstable();
        assert_eq!(got, [None, Some(0), Some(1)]);
    });
}
