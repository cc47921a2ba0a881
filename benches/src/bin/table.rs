//! Measures what it costs to have one table in many processes, beside what Python programs do.
//!
//! ```text
//! table [--rows 13421773] [--tasks 32] [--processes 8] [--runs 5] [--file FILE] [--json FILE]
//!       [--python PYTHON] [--pickled]
//! ```
//!
//! The table has ten columns of random `f64`, 1 GiB at the default `--rows`; it is written to `--file`
//! where that does not exist (default: the folder for temporary files).
//! 1. A pool of processes is started and sums a column in `--tasks` parts: with the table as an argument of
//!    each task (`argument`), and with the table given to the pool (`global`). With `--python`, the same by
//!    `peers/table.py`, where `argument` takes minutes and is left out without `--pickled`.
//! 2. `--processes` processes read random rows of the shared table at once, beside the same number of threads
//!    that read a `Vec` of rows of their own process (`random`).
//! 3. Batches of 4096 shuffled rows, as ten `f32` of which the last is the target, on one core (`batches`),
//!    beside PyTorch's DataLoader over a TensorDataset.
//!
//! Runs of all are interleaved; figures are medians.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use benches::{Args, median, write_results};
use loader_core::arrow::array::{Float64Array, RecordBatch};
use loader_core::arrow::schema::{DataType, Field, Schema};
use loader_core::{
    ColumnError, DataLoader, ProcessPool, ProcessRole, Registry, Sample, SharedTable, SharedTask,
    TableDataset, Task, Workers,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const COLUMNS: usize = 10;
/// Random rows that each process or thread reads.
const READS: u64 = 1 << 20;
const BATCH: usize = 4096;
/// Batches that are measured, after one to get going.
const BATCHES: usize = 200;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Part {
    number: usize,
    of: usize,
}

const ARGUMENT: Task<(SharedTable, Part), f64, ColumnError> =
    Task::new("argument", |(table, part)| sum(&table, part));
const GLOBAL: SharedTask<SharedTable, Part, f64, ColumnError> = SharedTask::new("global", sum);
const RANDOM: SharedTask<SharedTable, u64, (f64, f64), ColumnError> =
    SharedTask::new("random", |table, seed| {
        let columns: Vec<&[f64]> =
            (0..COLUMNS).map(|column| table.column_by_index(column)).collect::<Result<_, _>>()?;
        Ok(read_randomly(seed, table.len(), |row| columns.iter().map(|column| column[row]).sum()))
    });

fn sum(table: &SharedTable, part: Part) -> Result<f64, ColumnError> {
    let row = |number| table.len() * number / part.of;
    Ok(table.column_by_index::<f64>(0)?[row(part.number)..row(part.number + 1)].iter().sum())
}

/// Seconds for all reads, and their sum.
fn read_randomly(seed: u64, rows: usize, read: impl Fn(usize) -> f64) -> (f64, f64) {
    let mut draws = Sample { index: 0, epoch: 0, seed, occurrence: 0 }.draws(0);
    let picked: Vec<_> = (0..READS).map(|_| draws.below(rows as u64) as usize).collect();
    let begun = Instant::now();
    let sum = picked.into_iter().map(read).sum();
    (begun.elapsed().as_secs_f64(), sum)
}

fn main() -> ExitCode {
    let registry = Registry::new().task(ARGUMENT).task(GLOBAL).task(RANDOM);
    let done = loader_core::init_with(registry).map_err(Into::into).and_then(|()| compare());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("table: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    table: SharedTable,
    file: PathBuf,
    tasks: usize,
    processes: usize,
    python: Option<String>,
}

fn compare() -> Result<(), Box<dyn Error>> {
    let known = ["rows", "tasks", "processes", "runs", "file", "json", "python"];
    let args = Args::parse_with_flags(&known, &["pickled"])?;
    let rows = args.number("rows", 13_421_773)?;
    let file = args.get("file").map_or_else(
        || std::env::temp_dir().join(format!("loader-bench-{rows}.arrow")),
        PathBuf::from,
    );
    if !file.exists() {
        write(&file, rows)?;
    }
    let bench = Bench {
        table: SharedTable::open(&file)?,
        file,
        tasks: args.number("tasks", 32)?.max(1) as usize,
        processes: args.number("processes", 8)?.max(1) as usize,
        python: args.get("python").map(str::to_owned),
    };
    let runs = args.number("runs", 5)?.max(1);

    type Measure = fn(&Bench) -> Result<Value, Box<dyn Error>>;
    let mut all: Vec<(&str, Measure)> = vec![
        ("argument", Bench::argument),
        ("global", Bench::global),
        ("random rows, processes", Bench::random),
        ("random rows, Vec and threads", Bench::random_vec),
        ("batches", Bench::batches),
    ];
    if bench.python.is_some() {
        all.push(("global Python", |bench| bench.peer("global")));
        all.push(("batches PyTorch", |bench| bench.peer("dataset")));
    }
    let mut results: Vec<(&str, Vec<Value>)> =
        all.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for _ in 0..runs {
        for ((_, measure), (_, runs)) in all.iter().zip(&mut results) {
            runs.push(measure(&bench)?);
        }
    }
    if args.has("pickled") && bench.python.is_some() {
        // Minutes, so once.
        results.push(("argument Python", vec![bench.peer("argument")?]));
    }
    println!("{:30} {:>10} {:>14} {:>8}", "", "ms", "rows/s", "USS MB");
    for (name, runs) in &results {
        let of = |what: &str| {
            median(&runs.iter().filter_map(|run| run[what].as_f64()).collect::<Vec<_>>())
        };
        let show = |value: Option<f64>, scale: f64| {
            value.map_or_else(String::new, |value| format!("{:.1}", value * scale))
        };
        println!(
            "{name:30} {:>10} {:>14} {:>8}",
            show(of("seconds"), 1e3),
            show(of("rows_per_second"), 1.0),
            show(of("worker_uss_kb"), 1.0 / 1024.0),
        );
    }
    if let Some(path) = args.get("json") {
        let results = results.into_iter().map(|(name, runs)| {
            json!({"name": name, "rows": bench.table.len(), "columns": COLUMNS,
                   "tasks": bench.tasks, "processes": bench.processes, "runs": runs})
        });
        write_results(path, "table", results)?;
    }
    Ok(())
}

/// Columns of numbers from 0 to 1, as an Arrow file.
fn write(file: &Path, rows: u64) -> Result<(), Box<dyn Error>> {
    const BATCH: u64 = 1 << 16;
    let field = |column| Field::new(format!("c{column}"), DataType::Float64, false);
    let schema = Arc::new(Schema::new((0..COLUMNS).map(field).collect::<Vec<_>>()));
    let batches = (0..rows).step_by(BATCH as usize).map(|first| {
        let column = |seed| {
            let mut draws = Sample { index: first, epoch: 0, seed, occurrence: 0 }.draws(0);
            Arc::new(Float64Array::from_iter_values(
                (first..rows.min(first + BATCH)).map(|_| draws.unit()),
            ))
        };
        let columns = (0..COLUMNS as u64).map(|seed| column(seed) as _).collect();
        RecordBatch::try_new(Arc::clone(&schema), columns)
    });
    let batches = batches.collect::<Result<Vec<_>, _>>()?;
    Ok(SharedTable::from_batches(&schema, batches)?.save(file)?)
}

impl Bench {
    fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let of = self.tasks;
        (0..of).map(move |number| Part { number, of })
    }

    fn argument(&self) -> Result<Value, Box<dyn Error>> {
        let begun = Instant::now();
        let pool = ProcessPool::new(self.processes)?;
        let sums = pool.map(&ARGUMENT, self.parts().map(|part| (self.table.clone(), part)))?;
        Ok(told(begun, &sums, &pool))
    }

    fn global(&self) -> Result<Value, Box<dyn Error>> {
        let begun = Instant::now();
        let pool = ProcessPool::builder(self.processes).shared(&self.table).build()?;
        let sums = pool.map(&GLOBAL, self.parts())?;
        Ok(told(begun, &sums, &pool))
    }

    fn random(&self) -> Result<Value, Box<dyn Error>> {
        let pool = ProcessPool::builder(self.processes).shared(&self.table).build()?;
        // Once to have all pages mapped, as those of the Vec are.
        pool.map(&RANDOM, 0..self.processes as u64)?;
        let begun = Instant::now();
        let read = pool.map(&RANDOM, 0..self.processes as u64)?;
        Ok(rate(begun, &read))
    }

    fn random_vec(&self) -> Result<Value, Box<dyn Error>> {
        let columns =
            (0..COLUMNS).map(|column| Ok(self.table.column_by_index::<f64>(column)?.to_vec()));
        let columns = columns.collect::<Result<Vec<_>, ColumnError>>()?;
        let rows = self.table.len();
        let read = |seed| {
            let row = |row: usize| columns.iter().map(|column| column[row]).sum();
            read_randomly(seed, rows, row)
        };
        let read = &read;
        let all = || {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..self.processes as u64)
                    .map(|seed| scope.spawn(move || read(seed)))
                    .collect();
                let joined = threads.into_iter().map(|thread| thread.join());
                joined.collect::<Result<Vec<_>, _>>().map_err(|_| "a thread panicked")
            })
        };
        all()?;
        let begun = Instant::now();
        Ok(rate(begun, &all()?))
    }

    fn batches(&self) -> Result<Value, Box<dyn Error>> {
        let names: Vec<_> = (0..COLUMNS).map(|column| format!("c{column}")).collect();
        let dataset = TableDataset::builder(self.table.clone())
            .features(&names[..COLUMNS - 1])
            .target(&names[COLUMNS - 1])
            .build()?;
        let loader = DataLoader::builder(dataset)
            .batch_size(BATCH)
            .shuffle(0)
            .workers(Workers::threads(1))
            .build()?;
        let mut epoch = loader.epoch(0)?;
        epoch.next().transpose()?;
        let (begun, mut rows) = (Instant::now(), 0);
        for batch in epoch.take(BATCHES) {
            rows += batch?.len();
        }
        Ok(json!({"rows_per_second": rows as f64 / begun.elapsed().as_secs_f64()}))
    }

    fn peer(&self, how: &str) -> Result<Value, Box<dyn Error>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/table.py");
        let python = self.python.as_deref().unwrap_or("python3");
        let out = Command::new(python)
            .arg(&script)
            .args(["--how", how, "--tasks", &self.tasks.to_string()])
            .args(["--processes", &self.processes.to_string(), "--table"])
            .arg(&self.file)
            .output()
            .map_err(|e| format!("{python}: {e}"))?;
        if !out.status.success() {
            return Err(format!("{python}: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        Ok(serde_json::from_slice(&out.stdout)?)
    }
}

fn told(begun: Instant, sums: &[f64], pool: &ProcessPool<impl Sized>) -> Value {
    let seconds = begun.elapsed().as_secs_f64();
    let report = pool.memory_report();
    let workers = report.processes.iter().filter(|process| process.role == ProcessRole::Worker);
    let uss = workers.map(|worker| worker.total.uss).max().unwrap_or(0);
    json!({"seconds": seconds, "sum": sums.iter().sum::<f64>(), "worker_uss_kb": uss >> 10})
}

fn rate(begun: Instant, read: &[(f64, f64)]) -> Value {
    let seconds = begun.elapsed().as_secs_f64();
    let sum: f64 = read.iter().map(|(_, sum)| sum).sum();
    json!({"rows_per_second": (READS * read.len() as u64) as f64 / seconds, "sum": sum})
}
