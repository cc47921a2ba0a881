//! What a loader counts is the same whoever does the work, and stays when that one dies.

use std::time::Duration;

use loader_core::Workers;

use crate::data::{Act, Noise, flag_file, noise, wait_until};

crate::tests![
    every_model_counts_alike,
    what_a_process_counted_stays_when_it_dies,
    a_trace_shows_what_processes_did,
];

fn every_model_counts_alike() {
    let workers = |workers: Workers, count: u64| (workers, count);
    for (workers, count) in [
        workers(Workers::threads(2), 2),
        workers(Workers::processes(2), 2),
        workers(Workers::subprocess(3), 3),
        workers(Workers::processes(2).threads_per_process(2), 4),
    ] {
        let dataset = Noise { micros: 200, ..noise(200) }.act(13, Act::Fail);
        let builder = dataset.loader().prefetch_next_epoch(false);
        let builder = builder.error_policy(loader_core::ErrorPolicy::Skip);
        let loader = builder.workers(workers).build().unwrap();
        for epoch in 0..2 {
            let before = loader.stats();
            loader.epoch(epoch).unwrap().for_each(|batch| drop(batch.unwrap()));
            let stats = loader.stats().since(&before);
            assert_eq!(
                (stats.batches, stats.samples, stats.load.count),
                (13, 199, 200),
                "{workers}"
            );
            assert_eq!((stats.failed, stats.skipped, stats.workers), (1, 1, count), "{workers}");
            assert!(stats.busy() >= Duration::from_micros(200 * 199), "{workers}: {stats}");
        }
        // Told at the latest when there is nothing more to do.
        wait_until("their CPU time", || !loader.stats().cpu.is_zero());
        wait_until("their rest", || loader.stats().idle > Duration::from_millis(5));
    }
}

fn what_a_process_counted_stays_when_it_dies() {
    // Of no other test.
    let number = std::process::id() | 1 << 30;
    let _ = std::fs::remove_file(flag_file(number));
    let dataset = Noise { micros: 100, ..noise(300) }.act(170, Act::SegfaultOnce(number));
    let builder = dataset.loader().prefetch_next_epoch(false).workers(Workers::processes(2));
    let loader = builder.build().unwrap();
    loader.epoch(0).unwrap().for_each(|batch| drop(batch.unwrap()));
    std::fs::remove_file(flag_file(number)).unwrap();
    let stats = loader.stats();
    // Finished samples are counted once, the one that was being made is lost time.
    assert_eq!((stats.samples, stats.load.count, stats.restarts), (300, 300, 1), "{stats}");
    assert!(!stats.lost.is_zero() && stats.failed == 0, "{stats}");
    assert!(stats.busy() >= Duration::from_micros(100 * 300), "{stats}");
    assert!(stats.to_string().contains("1 worker processes replaced"), "{stats}");
}

fn a_trace_shows_what_processes_did() {
    let builder = noise(100).loader().prefetch_next_epoch(false).trace(1000);
    let loader = builder.workers(Workers::processes(2).threads_per_process(2)).build().unwrap();
    loader.epoch(0).unwrap().for_each(|batch| drop(batch.unwrap()));
    let mut trace = Vec::new();
    loader.write_trace(&mut trace).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let samples = events.iter().filter(|event| event["name"] == "sample");
    let mut indices: Vec<_> =
        samples.map(|sample| sample["args"]["index"].as_u64().unwrap()).collect();
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..100));
}
