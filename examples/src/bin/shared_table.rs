//! One table for all processes of a pool, which nobody copies, and what the system's monitors make of
//! that. `docs/sharing.md` tells the story.
//!
//! ```text
//! shared_table [--rows 13421773] [--columns 10] [--tasks 32] [--processes 8]
//! ```
//!
//! Makes a table of random `f64`, 1 GiB by default, and sums its columns in parts, a task for each part:
//! once with the table as an argument of every task, once with the table given to the pool beforehand, as
//! programs in Python do by a global that workers inherit.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use loader_core::arrow::array::{Array, Float64Array, RecordBatch};
use loader_core::arrow::schema::{DataType, Field, Schema};
use loader_core::{
    ColumnError, MemoryReport, ProcessMemory, ProcessPool, ProcessRole, Registry, Sample,
    SharedTable, SharedTask, Task,
};
use serde::{Deserialize, Serialize};

/// Sums a table's columns in a pool of processes, none of which copies it.
#[derive(Debug, Parser)]
struct Args {
    /// Rows of the table
    #[arg(long, default_value_t = 13_421_773, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Its columns, all f64
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    columns: u64,
    /// Parts that it is summed in
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    tasks: u64,
    /// Processes of a pool
    #[arg(long, default_value_t = 8)]
    processes: usize,
}

/// Which rows a task sums.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Part {
    number: u64,
    of: u64,
}

/// The table comes with every task.
const OF_ARGUMENT: Task<(SharedTable, Part), Vec<f64>, ColumnError> =
    Task::new("sums of an argument", |(table, part)| sums(&table, part));

/// The table was there before.
const OF_GLOBAL: SharedTask<SharedTable, Part, Vec<f64>, ColumnError> =
    SharedTask::new("sums of a global", sums);

/// The sum of each column over the part's rows.
fn sums(table: &SharedTable, part: Part) -> Result<Vec<f64>, ColumnError> {
    let row = |number| (table.len() as u128 * u128::from(number) / u128::from(part.of)) as usize;
    let rows = row(part.number)..row(part.number + 1);
    (0..table.schema().fields().len())
        .map(|column| Ok(table.column_by_index::<f64>(column)?[rows.clone()].iter().sum()))
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before anything that starts a thread: the pool's processes are forked from here on.
    loader_core::init_with(Registry::new().task(OF_ARGUMENT).task(OF_GLOBAL))?;
    let args = Args::parse();

    let begun = Instant::now();
    let table = random(args.rows, args.columns)?;
    println!(
        "a table of {} rows and {} columns of f64, {:.2} GiB, made in {:.1} s",
        table.len(),
        args.columns,
        (args.rows * args.columns * 8) as f64 / f64::from(1 << 30),
        begun.elapsed().as_secs_f64()
    );
    // Looks at all of it, so that whoever looks at it from here on shares what he sees with this process.
    let begun = Instant::now();
    let own_sum: f64 = sums(&table, Part { number: 0, of: 1 })?.iter().sum();
    println!("summed by this process alone in {:.1} ms", 1e3 * begun.elapsed().as_secs_f64());
    let parts = || (0..args.tasks).map(|number| Part { number, of: args.tasks });

    let begun = Instant::now();
    let pool = ProcessPool::new(args.processes)?;
    let of_argument = pool.map(&OF_ARGUMENT, parts().map(|part| (table.clone(), part)))?;
    tell(&args, "the table as an argument of every task", begun);
    let report = pool.memory_report();
    drop(pool);

    let begun = Instant::now();
    let pool = ProcessPool::builder(args.processes).shared(&table).build()?;
    let of_global = pool.map(&OF_GLOBAL, parts())?;
    tell(&args, "the table given to the pool, as a global", begun);
    drop(pool);

    let total = |sums: &[Vec<f64>]| sums.iter().flatten().sum::<f64>();
    // Parts add up in another order.
    if of_argument != of_global || (total(&of_argument) - own_sum).abs() > 1e-6 * own_sum.abs() {
        return Err("the sums differ".into());
    }
    println!("sum of all: {:.3}\n\n{report}", total(&of_argument));
    explain(&report);
    Ok(())
}

fn tell(args: &Args, how: &str, begun: Instant) {
    let (tasks, processes) = (args.tasks, args.processes);
    let ms = 1e3 * begun.elapsed().as_secs_f64();
    println!("{how}: {tasks} tasks on {processes} processes, started for it, in {ms:.1} ms");
}

/// Columns of numbers from 0 to 1, a batch at a time.
fn random(rows: u64, columns: u64) -> Result<SharedTable, Box<dyn Error>> {
    const BATCH: u64 = 1 << 16;
    let field = |column| Field::new(format!("c{column}"), DataType::Float64, false);
    let schema = Arc::new(Schema::new((0..columns).map(field).collect::<Vec<_>>()));
    let batches = (0..rows).step_by(BATCH as usize).map(|first| {
        let column = |column| {
            let mut draws = Sample { index: first, epoch: 0, seed: column, occurrence: 0 }.draws(0);
            let numbers = (first..rows.min(first + BATCH)).map(|_| draws.unit());
            Arc::new(numbers.collect::<Float64Array>()) as Arc<dyn Array>
        };
        RecordBatch::try_new(Arc::clone(&schema), (0..columns).map(column).collect())
    });
    Ok(SharedTable::from_batches(&schema, batches.map(|batch| batch.expect("as the schema says")))?)
}

/// What the figures of the system's monitors mean here.
fn explain(report: &MemoryReport) {
    let workers = || report.processes.iter().filter(|process| process.role == ProcessRole::Worker);
    let most = |of: fn(&ProcessMemory) -> u64| {
        workers().map(of).max().unwrap_or(0) as f64 / f64::from(1 << 20)
    };
    println!(
        "Was the table copied? A monitor shows RES, which is RSS: up to {:.1} MB for one worker. But these are\n\
         pages of the one table, which it has looked at. What a worker has of its own is {:.2} MB at most; that is\n\
         what its end would free. PSS, up to {:.1} MB, divides every page among all who map it, so only PSS may be\n\
         added up.",
        most(|process| process.total.rss),
        most(ProcessMemory::own),
        most(|process| process.total.pss),
    );
}
