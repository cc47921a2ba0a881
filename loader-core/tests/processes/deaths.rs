//! Workers are killed from outside, again and again: nobody who reads the batches notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use loader_core::{Batch, DataLoader, Draws, Fingerprint, Sample, Workers};
use rustix::process::{Pid, Signal, kill_process};

use crate::data::{Ending, Noise, hash, noise, undisturbed, wait_until};

crate::tests![
    killing_workers_changes_no_batch,
    killing_workers_of_many_threads_changes_no_batch,
    killing_workers_changes_no_batch_for_who_holds_some,
    a_stopped_worker_is_replaced,
    killing_an_idle_loaders_workers_does_no_harm,
];

const SAMPLES: u64 = 2000;
const DEATHS: u64 = 200;

fn random(seed: u64) -> Draws {
    Sample { index: 0, epoch: 0, seed, occurrence: 0 }.draws(0)
}

/// Kills random workers of the loader every few milliseconds while `consume` runs.
fn kill_while<T>(
    loader: &DataLoader<Noise>,
    signals: &[Signal],
    consume: impl FnOnce(&AtomicU64) -> T,
) -> T {
    let (over, kills) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = random(3);
            while !over.load(Ordering::Relaxed) {
                let pids = loader.worker_pids();
                if !pids.is_empty() {
                    let pid = pids[random.below(pids.len() as u64) as usize];
                    let signal = signals[random.below(signals.len() as u64) as usize];
                    // It may have died meanwhile.
                    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
                    kills.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(1 + random.below(5)));
            }
        });
        let _ending = Ending(&over);
        consume(&kills)
    })
}

/// Three epochs of batches, given to `each`; paced so that there are enough deaths on the way.
fn consume(loader: &DataLoader<Noise>, mut each: impl FnMut(u64, usize, Batch)) {
    let batches = 3 * loader.len();
    let mut taken = 0;
    for epoch in 0..3 {
        for (at, batch) in loader.epoch(epoch).unwrap().enumerate() {
            each(epoch, at, batch.unwrap());
            taken += 1;
            wait_until("enough deaths", || loader.restarts() * batches >= DEATHS * taken);
        }
    }
}

fn check_under_fire(workers: Workers, signals: &[Signal]) {
    let dataset = Noise { micros: 100, ..noise(SAMPLES) };
    let expected = undisturbed(dataset.clone(), 3);
    let builder = dataset.loader().workers(workers).timeout(Duration::from_secs(1));
    let loader = builder.build().unwrap();
    kill_while(&loader, signals, |_| {
        consume(&loader, |epoch, at, batch| {
            assert_eq!(hash(&batch), expected[epoch as usize][at], "batch {at} of epoch {epoch}");
        });
    });
    assert!(loader.restarts() >= DEATHS);
}

fn killing_workers_changes_no_batch() {
    let (kill, crash, stop) = (Signal::KILL, Signal::SEGV, Signal::STOP);
    check_under_fire(Workers::processes(4), &[kill, kill, crash, crash, stop]);
}

fn killing_workers_of_many_threads_changes_no_batch() {
    check_under_fire(
        Workers::processes(2).threads_per_process(3),
        &[Signal::KILL, Signal::SEGV, Signal::TERM],
    );
}

fn killing_workers_changes_no_batch_for_who_holds_some() {
    let dataset = Noise { micros: 100, ..noise(SAMPLES) };
    let expected = undisturbed(dataset.clone(), 3);
    let builder = dataset.loader().workers(Workers::processes(4)).memory_budget(64 << 20);
    let loader = builder.build().unwrap();
    let mut held: Vec<(Batch, Fingerprint)> = Vec::new();
    let mut random = random(9);
    kill_while(&loader, &[Signal::KILL], |_| {
        consume(&loader, |epoch, at, batch| {
            held.push((batch, expected[epoch as usize][at]));
            while held.len() > 20 || (!held.is_empty() && random.below(3) == 0) {
                let (batch, expected) = held.swap_remove(random.below(held.len() as u64) as usize);
                assert_eq!(hash(&batch), expected, "a batch changed while it was held");
            }
        });
    });
    held.iter().for_each(|(batch, expected)| assert_eq!(hash(batch), *expected));
}

fn a_stopped_worker_is_replaced() {
    let dataset = Noise { micros: 200, ..noise(400) };
    let expected = undisturbed(dataset.clone(), 1);
    let builder = dataset.loader().workers(Workers::processes(2));
    let loader = builder.timeout(Duration::from_secs(1)).build().unwrap();
    wait_until("all workers", || loader.worker_pids().len() == 2);
    for pid in loader.worker_pids() {
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    }
    let found: Vec<_> = loader.epoch(0).unwrap().map(|batch| hash(&batch.unwrap())).collect();
    assert_eq!(found, expected[0]);
    assert!(loader.restarts() >= 1);
}

fn killing_an_idle_loaders_workers_does_no_harm() {
    let expected = undisturbed(noise(100), 1);
    let loader = noise(100).loader().workers(Workers::processes(2)).build().unwrap();
    kill_while(&loader, &[Signal::KILL], |_| {
        wait_until("deaths", || loader.restarts() >= 100);
    });
    let found: Vec<_> = loader.epoch(0).unwrap().map(|batch| hash(&batch.unwrap())).collect();
    assert_eq!(found, expected[0]);
}
