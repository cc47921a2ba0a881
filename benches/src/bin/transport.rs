//! Measures how fast bytes get from a worker process to the program, beside what Python programs use.
//!
//! ```text
//! transport [--kib 64,2048,8192,32768] [--mib 2048] [--runs 5] [--json FILE] [--python PYTHON]
//! ```
//!
//! One worker process copies payloads of `--kib` from memory of its own, `--mib` in all, and the program
//! looks at the first and last byte of each. Ours are batches of one sample. With `--python`, the same by
//! `peers/transport.py`: SPDL's pool of shared memory segments, PyTorch's DataLoader, and a pipe. `memcpy`
//! is one thread that copies payloads as the worker does, to four places in turn: nothing that copies once
//! is faster. Runs of all are interleaved; each is a program of its own; figures are medians.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Instant;

use benches::{Args, median, pss_with, write_results};
use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, Recipe, RecipeError, Registry, Sample,
    SampleError, SampleWriter, Workers,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Names the run to measure, to the program that is started for it.
const ASKED: &str = "LOADER_TRANSPORT";
const PEERS: [&str; 3] = ["spdl-segments", "torch", "pipe"];

fn main() -> ExitCode {
    let done = match std::env::var(ASKED) {
        Ok(asked) => one_run(&asked),
        Err(_) => compare(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("transport: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What to move, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    mover: String,
    bytes: usize,
    count: usize,
}

/// What came of it. Peers tell the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    /// For all payloads, after a few to get going.
    seconds: f64,
    /// Of all processes, for the same.
    cpu_seconds: f64,
    /// Proportional set size of all processes together, in kB of 1024 bytes.
    pss: u64,
}

fn compare() -> Result<(), String> {
    let args = Args::parse(&["kib", "mib", "runs", "json", "python"])?;
    let total = args.number("mib", 2048)? as usize * (1 << 20);
    let runs = args.number("runs", 5)?.max(1);
    let sizes = args.get("kib").unwrap_or("64,2048,8192,32768").split(',');
    let sizes = sizes
        .map(|kib| kib.parse::<usize>().map_err(|e| format!("--kib {kib}: {e}")))
        .collect::<Result<Vec<_>, _>>()?;
    let python = args.get("python");
    let movers =
        ["loader", "memcpy"].into_iter().chain(PEERS.into_iter().filter(|_| python.is_some()));

    let mut results: Vec<(Task, Vec<Run>)> = Vec::new();
    for kib in &sizes {
        for mover in movers.clone() {
            let bytes = kib << 10;
            let count = (total / bytes).max(8);
            results.push((Task { mover: mover.to_owned(), bytes, count }, Vec::new()));
        }
    }
    for run in 0..runs {
        for (task, done) in &mut results {
            done.push(measure(task, python)?);
        }
        eprintln!("round {} of {runs}", run + 1);
    }
    print(&results);
    if let Some(path) = args.get("json") {
        let results = results.iter().map(|(task, runs)| {
            let name = format!("{} KiB {}", task.bytes >> 10, task.mover);
            json!({ "name": name, "task": task, "runs": runs })
        });
        write_results(path, "transport", results)?;
    }
    Ok(())
}

/// A run in a program of its own.
fn measure(task: &Task, python: Option<&str>) -> Result<Run, String> {
    let mut program = match python {
        Some(python) if PEERS.contains(&task.mover.as_str()) => {
            let mut program = Command::new(python);
            program.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/transport.py"));
            program
        }
        _ => Command::new(std::env::current_exe().map_err(|e| e.to_string())?),
    };
    let out = program.env(ASKED, json!(task).to_string()).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(text.trim().lines().last().unwrap_or_default())
        .map_err(|_| format!("{}: {}", task.mover, String::from_utf8_lossy(&out.stderr)))
}

fn print(results: &[(Task, Vec<Run>)]) {
    let middle = |runs: &[Run], value: fn(&Run) -> f64| {
        median(&runs.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    println!("{:28} {:>9} {:>12} {:>9}", "", "MB/s", "CPU s a GB", "PSS, MB");
    for (task, runs) in results {
        let gb = (task.bytes * task.count) as f64 / 1e9;
        println!(
            "{:>9} KiB {:14} {:>9.0} {:>12.3} {:>9.1}",
            task.bytes >> 10,
            task.mover,
            1e3 * gb / middle(runs, |run| run.seconds),
            middle(runs, |run| run.cpu_seconds) / gb,
            middle(runs, |run| run.pss as f64) / 1024.0,
        );
    }
}

/// What this program was started for.
fn one_run(asked: &str) -> Result<(), String> {
    let task: Task = serde_json::from_str(asked).map_err(|e| format!("{ASKED}={asked}: {e}"))?;
    let run = if task.mover == "memcpy" { copy(&task) } else { load(&task)? };
    println!("{}", json!(run));
    Ok(())
}

/// Payloads made before the clock starts.
const FIRST: usize = 8;

fn copy(task: &Task) -> Run {
    let from = payload(task.bytes);
    let mut places = vec![vec![0u8; task.bytes]; 4];
    let mut copied = |at: usize| {
        let place = &mut places[at % 4];
        place.copy_from_slice(&from);
        std::hint::black_box(&place[..]);
    };
    (0..FIRST).for_each(&mut copied);
    let (begin, cpu) = (Instant::now(), cpu_seconds(&[]));
    (0..task.count).for_each(copied);
    Run::since(begin, cpu, &[])
}

fn load(task: &Task) -> Result<Run, String> {
    let registry = Registry::new()
        .dataset(RECIPE, |recipe: Recipe| recipe.spec::<Payloads>().map_err(|e| e.to_string()));
    loader_core::init_with(registry).map_err(|e| e.to_string())?;
    let payloads = Payloads { bytes: task.bytes, count: (FIRST + task.count) as u64 };
    let loader = DataLoader::builder(payloads).workers(Workers::subprocess(1)).build();
    let loader = loader.map_err(|e| e.to_string())?;
    let mut epoch = loader.epoch(0).map_err(|e| e.to_string())?;
    let mut take = || {
        let batch = epoch.next().ok_or("the epoch ended early")?.map_err(|e| e.to_string())?;
        let bytes = batch.get::<u8>("bytes").map_err(|e| e.to_string())?;
        std::hint::black_box((bytes[0], bytes[bytes.len() - 1]));
        Ok::<_, String>(())
    };
    (0..FIRST).try_for_each(|_| take())?;
    let workers = loader.worker_pids();
    let (begin, cpu) = (Instant::now(), cpu_seconds(&workers));
    (0..task.count).try_for_each(|_| take())?;
    Ok(Run::since(begin, cpu, &workers))
}

impl Run {
    fn since(begin: Instant, cpu: f64, workers: &[u32]) -> Self {
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds(workers) - cpu;
        Self { seconds, cpu_seconds, pss: pss_with(workers) }
    }
}

/// CPU time that this process and others have had.
fn cpu_seconds(others: &[u32]) -> f64 {
    let own = std::process::id();
    let ticks = |pid: u32| -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    let sum: f64 = [own].iter().chain(others).filter_map(|&pid| ticks(pid)).sum();
    sum / rustix::param::clock_ticks_per_second() as f64
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

const RECIPE: &str = "payloads";

/// The same bytes again and again.
#[derive(Clone, Serialize, Deserialize)]
struct Payloads {
    bytes: usize,
    count: u64,
}

impl Dataset for Payloads {
    type Scratch = Vec<u8>;

    fn len(&self) -> u64 {
        self.count
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("bytes", DType::U8, [self.bytes])]
    }

    fn load(
        &self,
        _: &Sample,
        from: &mut Vec<u8>,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        if from.is_empty() {
            *from = payload(self.bytes);
        }
        out.field::<u8>(0)?.copy_from_slice(from);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(json!(self).to_string().as_bytes())
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Recipe::new(RECIPE, self)
    }
}
