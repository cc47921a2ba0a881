//! Measures making, opening and attaching the path table of a folder tree, beside `find` and, where
//! a Python with torchvision is given, `torchvision.datasets.ImageFolder`.
//!
//! `scan --root FOLDER [--runs 5] [--python PYTHON] [--json FILE] [--cache FOLDER]`
//!
//! The runs of all contenders are interleaved, after one that warms the system's caches; figures
//! are medians. `find` and torchvision hold nothing afterwards: they only list.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use benches::{Args, median, timed};
use loader_core::{ImageFolder, PathTable, TableCache, TableOrigin};
use serde_json::json;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("scan: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Times of one contender, in seconds.
type Times = Vec<f64>;

fn run() -> Result<(), String> {
    // A process of its own, so that its memory is that of an attached process and nothing else.
    if let Some(table) = std::env::var_os("SCAN_MEMORY_OF") {
        println!("{}", attached_memory(Path::new(&table))?);
        return Ok(());
    }
    let args = Args::parse(&["root", "runs", "python", "json", "cache"])?;
    let root = args.path("root")?;
    let runs = args.number("runs", 5)?.max(1);
    let python = args.get("python");
    let scratch = std::env::temp_dir().join(format!("loader-scan-{}", std::process::id()));
    let cache = args.get("cache").map_or(scratch.clone(), PathBuf::from);
    let result = measure(&root, runs, python, &cache);
    // Only what was made here; a folder that was given stays.
    drop(fs::remove_dir_all(&scratch));
    let (rows, facts) = result?;

    println!("{:32} {:>12} {:>12} {:>12}", "", "median", "least", "most");
    for (name, times) in &rows {
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let most = times.iter().copied().fold(0.0, f64::max);
        let middle = median(times).unwrap_or(f64::NAN);
        println!("{name:32} {:>12} {:>12} {:>12}", show(middle), show(least), show(most));
    }
    for (name, value) in &facts {
        println!("{name:32} {value:>12.2}");
    }
    if let Some(path) = args.get("json") {
        let times: serde_json::Map<_, _> =
            rows.iter().map(|(name, times)| ((*name).to_owned(), json!(times))).collect();
        let facts: serde_json::Map<_, _> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let text = json!({ "root": root, "seconds": times, "facts": facts }).to_string();
        fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

type Rows = Vec<(&'static str, Times)>;
type Facts = Vec<(&'static str, f64)>;

fn measure(
    root: &Path,
    runs: u64,
    python: Option<&str>,
    cache: &Path,
) -> Result<(Rows, Facts), String> {
    let open = |rescan: bool| {
        ImageFolder::builder(root)
            .cache(TableCache::Folder(cache.to_owned()))
            .rescan(rescan)
            .open()
            .map_err(|e| e.to_string())
    };
    let find = || {
        Command::new("sh")
            .args(["-c", "find \"$0\" -type f | wc -l"])
            .arg(root)
            .output()
            .map_err(|e| format!("find: {e}"))
    };
    let mut rows: Rows = vec![
        ("build", vec![]),
        ("find DIR -type f | wc -l", vec![]),
        ("torchvision ImageFolder", vec![]),
        ("open, nothing changed", vec![]),
        ("attach", vec![]),
        ("verify", vec![]),
        ("read every path", vec![]),
    ];
    let mut facts = Facts::new();
    for run in 0..=runs {
        let (folder, build) = timed(|| open(true));
        let folder = folder?;
        let (found, find_time) = timed(find);
        let found = String::from_utf8_lossy(&found?.stdout).trim().to_owned();
        let torchvision = python.map(|python| torchvision(python, root)).transpose()?;
        let (again, opened) = timed(|| open(false));
        let again = again?;
        let table = again.table().path().to_owned();
        let (attached, attach) = timed(|| PathTable::attach(&table));
        let attached = attached.map_err(|e| e.to_string())?;
        let (verified, verify) = timed(|| attached.verify());
        verified.map_err(|e| e.to_string())?;
        let (bytes, read) = timed(|| {
            let mut path = Vec::new();
            attached.iter().flatten().fold(0, |sum, entry| {
                entry.write_path(&mut path);
                sum + path.len()
            })
        });
        if run == 0 {
            // Warms up, and tells whether what follows means anything.
            let len = folder.len();
            if again.origin() != TableOrigin::Attached {
                println!("note: folders changed seconds ago, so opening reads them again");
            }
            if found != len.to_string() {
                println!("note: find counts {found} files, of which {len} are samples");
            }
            facts.push(("entries", len as f64));
            facts.push(("bytes of paths an entry", bytes as f64 / len.max(1) as f64));
            let attached = &attached;
            facts.push(("table, bytes an entry", per_entry(attached.file_len(), len)));
            facts.push(("without the fixed part", per_entry(attached.entry_bytes(), len)));
            continue;
        }
        let times = [Some(build), Some(find_time), torchvision, Some(opened), Some(attach)];
        let times = times.into_iter().chain([Some(verify), Some(read)]);
        for ((_, row), time) in rows.iter_mut().zip(times) {
            row.extend(time.map(|time| time.as_secs_f64()));
        }
    }
    rows.retain(|(_, times)| !times.is_empty());
    let of = |name| rows.iter().find(|(n, _)| *n == name).and_then(|(_, times)| median(times));
    if let (Some(build), Some(find)) = (of("build"), of("find DIR -type f | wc -l")) {
        facts.push(("build / find", build / find));
    }
    let folder = open(false)?;
    // Touches every page here too, else those would count as private to the other process.
    folder.table().verify().map_err(|e| e.to_string())?;
    let memory = Command::new(std::env::current_exe().map_err(|e| e.to_string())?)
        .env("SCAN_MEMORY_OF", folder.table().path())
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&memory.stdout);
    let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
    if let (Some(attach), Some(read)) = (numbers.next(), numbers.next()) {
        facts.push(("private kB of an attached process", attach));
        facts.push(("the same once it read every path", read));
    }
    Ok((rows, facts))
}

fn per_entry(bytes: u64, entries: u64) -> f64 {
    bytes as f64 / entries.max(1) as f64
}

fn show(seconds: f64) -> String {
    let time = Duration::from_secs_f64(seconds);
    format!("{time:.2?}")
}

/// What `ImageFolder(root)` takes in a fresh interpreter, without its start and its imports.
fn torchvision(python: &str, root: &Path) -> Result<Duration, String> {
    let script = "import sys, time\nfrom torchvision.datasets import ImageFolder\n\
                  t = time.perf_counter()\nImageFolder(sys.argv[1])\n\
                  print(time.perf_counter() - t)";
    let out = Command::new(python)
        .args(["-c", script])
        .arg(root)
        .output()
        .map_err(|e| format!("{python}: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let seconds = text.trim().parse().map_err(|_| String::from_utf8_lossy(&out.stderr))?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Private kB that attaching adds to this process, and that reading every path adds. The parent
/// holds the same map, so pages of the table itself are shared.
fn attached_memory(table: &Path) -> Result<String, String> {
    let before = private_kb()?;
    let table = PathTable::attach(table).map_err(|e| e.to_string())?;
    let first = table.get(0).map_err(|e| e.to_string())?.to_path();
    let attached = private_kb()?;
    let mut path = first.into_os_string().into_encoded_bytes();
    table.iter().flatten().for_each(|entry| entry.write_path(&mut path));
    let read = private_kb()?;
    Ok(format!("{} {}", attached.saturating_sub(before), read.saturating_sub(before)))
}

fn private_kb() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").map_err(|e| e.to_string())?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    Ok(lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}
