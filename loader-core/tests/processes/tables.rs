//! Tables in worker processes: the same memory, and the same batches.

use std::sync::Arc;

use loader_core::arrow::array::{ArrayRef, BooleanArray, Float64Array, Int32Array, RecordBatch};
use loader_core::{
    Batch, DataLoader, Fingerprint, MemoryReport, SharedTable, Statistics, TableCache,
    TableDataset, Workers,
};
use rustix::process::{Pid, Signal, kill_process};

crate::tests![
    every_kind_of_table_gives_the_same_batches_in_processes,
    workers_share_the_table_s_memory,
];

fn rows(count: usize) -> RecordBatch {
    let floats = |factor: f64| {
        let column = Float64Array::from_iter_values((0..count).map(|row| row as f64 * factor));
        Arc::new(column) as ArrayRef
    };
    let flags =
        BooleanArray::from_iter((0..count).map(|row| (row % 5 > 0).then_some(row % 2 == 0)));
    let classes = Int32Array::from_iter_values((0..count).map(|row| row as i32 % 10));
    RecordBatch::try_from_iter_with_nullable([
        ("a", floats(0.5), false),
        ("b", floats(-3.0), false),
        ("flag", Arc::new(flags) as ArrayRef, true),
        ("y", Arc::new(classes) as ArrayRef, false),
    ])
    .unwrap()
}

fn dataset(table: SharedTable) -> TableDataset {
    let statistics = Statistics::of(&table, ["a", "b", "flag"]).unwrap();
    let builder = TableDataset::builder(table).features(["a", "b", "flag"]).target("y");
    builder.standardize(&statistics).fill_null(1.0).build().unwrap()
}

fn hash(batch: &Batch) -> Fingerprint {
    let features = batch.get::<f32>("features").unwrap().iter().flat_map(|x| x.to_le_bytes());
    let targets = batch.get::<i64>("target").unwrap().iter().flat_map(|y| y.to_le_bytes());
    Fingerprint::of(&features.chain(targets).collect::<Vec<u8>>())
}

fn every_kind_of_table_gives_the_same_batches_in_processes() {
    let folder = tempfile::tempdir().unwrap();
    let rows = rows(5000);
    let whole = SharedTable::from_batches(&rows.schema(), [rows.clone()]).unwrap();
    let path = folder.path().join("t.arrow");
    whole.save(&path).unwrap();
    let chosen = SharedTable::builder(&path).cache(TableCache::Off);
    let chosen = chosen.columns(["y", "flag", "b", "a"]).open().unwrap();
    let shareable = SharedTable::shareable(&rows.schema(), [rows]).unwrap();
    let epoch = |table: &SharedTable, workers, kill: bool| {
        let builder = DataLoader::builder(dataset(table.clone())).batch_size(300).shuffle(5);
        let loader = builder.workers(workers).build().unwrap();
        let batches = loader.epoch(0).unwrap().enumerate().map(|(at, batch)| {
            let found = hash(&batch.unwrap());
            if let Some(&pid) = loader.worker_pids().first().filter(|_| kill && at % 5 == 2) {
                // It may be gone already.
                let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
            }
            found
        });
        batches.collect::<Vec<_>>()
    };
    let expected = epoch(&whole, Workers::threads(1), false);
    for table in [&whole, &SharedTable::open(&path).unwrap(), &chosen, &shareable] {
        assert_eq!(epoch(table, Workers::processes(2), false), expected, "{table:?}");
        assert_eq!(epoch(table, Workers::processes(2), true), expected, "{table:?}");
    }
}

fn workers_share_the_table_s_memory() {
    let rows = rows(1_000_000);
    let table = SharedTable::from_batches(&rows.schema(), [rows]).unwrap();
    let bytes = 1_000_000 * (8 + 8 + 4);
    let builder = DataLoader::builder(dataset(table)).batch_size(1000).shuffle(5);
    let loader = builder.workers(Workers::processes(2)).build().unwrap();
    assert_eq!(loader.epoch(0).unwrap().map(Result::unwrap).count(), 1000);
    let report: MemoryReport = loader.memory_report();
    let pids = loader.worker_pids();
    assert_eq!(pids.len(), 2);
    for process in report.processes.iter().filter(|process| pids.contains(&process.pid)) {
        let own = process.total.uss;
        assert!(own < bytes / 4, "{own} bytes are a worker's own: {report}");
    }
}
