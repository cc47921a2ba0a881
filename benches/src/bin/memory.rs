//! Shows that the memory of workers grows neither with the index, nor from epoch to epoch.
//!
//! ```text
//! memory [--entries 1000000,5000000,20000000] [--workers processes:1,processes:2,processes:8]
//!     [--epochs 3] [--json FILE]
//! ```
//!
//! The index is a table of that many path-like strings of 64 bytes, and all entries are looked up in
//! each epoch, in an order of its own; no file is read. After each epoch stands what the program
//! and the workers have: a page that several map counts in the RSS of each, in parts in PSS, and
//! not at all in USS, which is what the end of the process would free.

use std::process::ExitCode;

use benches::startup::{Model, Run, STRING_BYTES, Source, Start, Task};
use benches::{Args, Memory, write_results};
use serde_json::json;

fn main() -> ExitCode {
    let done = match Start::asked() {
        Ok(Some(start)) => start.measure(|| {}).map(|run| println!("{}", run.to_json())),
        Ok(None) => sweep(),
        Err(message) => Err(message),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("memory: {message}");
            ExitCode::FAILURE
        }
    }
}

fn sweep() -> Result<(), String> {
    let args = Args::parse(&["entries", "workers", "epochs", "json"])?;
    let count = args.number("epochs", 3)?.max(1);
    let models = args.get("workers").unwrap_or("processes:1,processes:2,processes:8");
    let models = models.split(',').map(str::parse).collect::<Result<Vec<Model>, _>>()?;
    let entries = args.get("entries").unwrap_or("1000000,5000000,20000000").split(',');
    let entries = entries
        .map(|n| n.parse::<u64>().map_err(|e| format!("--entries {n}: {e}")))
        .collect::<Result<Vec<_>, _>>()?;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;

    println!(
        "{:24} {:>6} {:>9} {:>10} {:>10} {:>10} {:>10}",
        "MB", "epoch", "seconds", "program", "worker RSS", "PSS", "USS"
    );
    let mut results = Vec::new();
    for &entries in &entries {
        for &workers in &models {
            let source = Source::Strings { bytes: entries * STRING_BYTES };
            let task = Task::Epochs { count, batch_size: 4096 };
            let start = Start { source, task, workers };
            let run = start.run_in(&own)?;
            print(&format!("{entries} {workers}"), &run);
            results.push(json!({
                "name": format!("{entries} entries, {workers}"),
                "start": start, "entries": entries, "runs": [run],
            }));
        }
    }
    if let Some(path) = args.get("json") {
        write_results(path, "memory", results)?;
    }
    Ok(())
}

/// A line an epoch; of the workers, the one that has most.
fn print(name: &str, run: &Run) {
    let mb = |kb: u64| kb as f64 / 1024.0;
    for (epoch, (program, workers)) in run.epochs.iter().enumerate() {
        let seconds = run.seconds.get(&format!("epoch {epoch}")).copied().unwrap_or(f64::NAN);
        let most = |part: fn(&Memory) -> u64| mb(workers.iter().map(part).max().unwrap_or(0));
        println!(
            "{name:24} {epoch:>6} {seconds:>9.2} {:>10.1} {:>10.1} {:>10.2} {:>10.2}",
            mb(program.pss),
            most(|m| m.rss),
            most(|m| m.pss),
            most(|m| m.uss),
        );
    }
}
