//! Measures how long a loader takes to start, and what each worker has of the machine's memory,
//! beside PyTorch's DataLoader on the same files.
//!
//! ```text
//! startup --strings [--mib 16,32,64,128] [--counts 1,2,4,8]
//! startup --root FOLDER [--counts 8] [--batch-size 128]
//! either with [--runs 9] [--json FILE] [--python PYTHON [--slow-peers]] [--linked PROGRAM]
//! ```
//!
//! `--strings` has path-like strings of 64 bytes as its index, `--root` a folder of class folders.
//! Starting means: from before the loader is built to its first batch, of one sample that is looked up
//! and not read. Every start of ours is a program of its own; PyTorch's program stays, so that it
//! makes its list once, and only its workers start anew. Runs of all contenders are interleaved, in
//! turns forwards and backwards; figures are medians.
//!
//! PyTorch is measured with forked workers, and where `--slow-peers` is given, once, with spawned ones
//! and with its fork server, which take most of a minute each on a million entries. `PROGRAM`
//! does the same as this one's starts in a program that links something else, such as loader-tch's
//! example `startup_with_libtorch`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use benches::startup::{Model, Run, STRING_BYTES, Source, Start, Task};
use benches::{Args, Memory, median, write_results};
use serde_json::{Value, json};

fn main() -> ExitCode {
    // First of all, since worker processes need it.
    let done = match Start::asked() {
        Ok(Some(start)) => start.measure(|| {}).map(|run| println!("{}", run.to_json())),
        Ok(None) => compare(),
        Err(message) => Err(message),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("startup: {message}");
            ExitCode::FAILURE
        }
    }
}

/// One thing that is measured again and again.
struct Contender {
    name: String,
    /// What tells it from the others, for the record.
    about: Value,
    how: How,
    /// How often at most.
    runs: usize,
    done: Vec<Run>,
}

enum How {
    Ours {
        program: PathBuf,
        start: Start,
    },
    /// A line for the peer of that source.
    Peer {
        peer: usize,
        line: String,
    },
}

fn compare() -> Result<(), String> {
    let args = Args::parse_with_flags(
        &["root", "mib", "counts", "batch-size", "runs", "json", "python", "linked"],
        &["strings", "slow-peers"],
    )?;
    let scratch = std::env::temp_dir().join(format!("loader-startup-{}", std::process::id()));
    let result = measure(&args, &scratch);
    drop(fs::remove_dir_all(&scratch));
    let contenders = result?;
    print(&contenders);
    if let Some(path) = args.get("json") {
        let results = contenders.iter().map(|contender| {
            let mut result = json!({ "name": contender.name, "runs": contender.done });
            if let (Some(result), Some(about)) =
                (result.as_object_mut(), contender.about.as_object())
            {
                result.extend(about.clone());
            }
            result
        });
        write_results(path, "startup", results)?;
    }
    Ok(())
}

fn measure(args: &Args, scratch: &Path) -> Result<Vec<Contender>, String> {
    let runs = args.number("runs", 9)?.max(1) as usize;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let strings = args.has("strings");
    let counts = numbers(args.get("counts").unwrap_or(if strings { "1,2,4,8" } else { "8" }))?;
    let sources = if strings {
        let mib = numbers(args.get("mib").unwrap_or("16,32,64,128"))?;
        mib.into_iter().map(|mib| Source::Strings { bytes: (mib as u64) << 20 }).collect()
    } else {
        let root = fs::canonicalize(args.path("root")?).map_err(|e| format!("--root: {e}"))?;
        vec![Source::Tree { root, cache: scratch.join("tables") }]
    };
    let batch_size = args.number("batch-size", 128)? as usize;

    let mut peers = Vec::new();
    let mut contenders = Vec::new();
    for source in sources {
        let label = match &source {
            Source::Strings { bytes } => format!("{} MiB ", bytes >> 20),
            Source::Tree { .. } => String::new(),
        };
        let mut add = |program: &Path, linked: &str, task, workers: Model| {
            let start = Start { source: source.clone(), task, workers };
            let task = match task {
                Task::Scan => "scan".to_owned(),
                Task::Paths => workers.to_string(),
                Task::Epochs { count, .. } => format!("{workers}, {count} epochs"),
                Task::Images { batch_size } => format!("{workers}, batch of {batch_size} images"),
            };
            contenders.push(Contender {
                name: format!("{label}{task}{linked}"),
                about: json!({ "loader": "ours", "start": start, "linked": !linked.is_empty() }),
                how: How::Ours { program: program.to_owned(), start },
                runs,
                done: Vec::new(),
            });
        };
        if !strings {
            add(&own, "", Task::Scan, Model::Threads(1));
        }
        for &count in &counts {
            let models = [Model::Threads(count), Model::Processes(count), Model::Subprocess(count)];
            models.into_iter().for_each(|model| add(&own, "", Task::Paths, model));
            if let Some(program) = args.get("linked") {
                add(program.as_ref(), ", linked", Task::Paths, Model::Processes(count));
            }
            if !strings {
                for model in models {
                    add(&own, "", Task::Images { batch_size }, model);
                }
            }
        }
        if let Some(python) = args.get("python") {
            let peer = Peer::start(python, &source)?;
            for &count in &counts {
                for method in ["fork", "spawn", "forkserver"] {
                    let slow = method != "fork";
                    if slow && !args.has("slow-peers") {
                        continue;
                    }
                    contenders.push(Contender {
                        name: format!("{label}PyTorch {method}:{count}"),
                        about: json!({
                            "loader": "PyTorch", "method": method, "workers": count,
                            "source": source, "peer": peer.hello,
                        }),
                        how: How::Peer { peer: peers.len(), line: format!("{method} {count}") },
                        runs: if slow { 1 } else { runs },
                        done: Vec::new(),
                    });
                }
            }
            peers.push(peer);
        }
    }

    for round in 0..runs {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            // Except that a scan comes first, since it makes the table.
            order[usize::from(!strings)..].reverse();
        }
        for i in order {
            let contender = &mut contenders[i];
            if contender.done.len() == contender.runs {
                continue;
            }
            let run = match &contender.how {
                How::Ours { program, start } => ours(program, start),
                How::Peer { peer, line } => peers[*peer].ask(line),
            };
            contender.done.push(run.map_err(|e| format!("{}: {e}", contender.name))?);
        }
        eprintln!("round {} of {runs}", round + 1);
    }
    Ok(contenders)
}

fn numbers(list: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|&n| n > 0);
    let numbers = list.split(',').map(|text| number(text).ok_or(format!("{list}: {text}?")));
    numbers.collect()
}

/// A start in a program of its own.
fn ours(program: &Path, start: &Start) -> Result<Run, String> {
    if let (Source::Tree { cache, .. }, Task::Scan) = (&start.source, start.task) {
        drop(fs::remove_dir_all(cache));
    }
    start.run_in(program)
}

/// A Python program that holds its list of samples and starts loaders as it is told.
struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// What it said of itself.
    hello: Value,
}

impl Peer {
    fn start(python: &str, source: &Source) -> Result<Self, String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/torch_startup.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        match source {
            Source::Strings { bytes } => {
                command.args(["--strings", &(bytes / STRING_BYTES * STRING_BYTES).to_string()])
            }
            Source::Tree { root, .. } => command.arg("--root").arg(root),
        };
        let mut child = command.spawn().map_err(|e| format!("{python}: {e}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{python}: no pipes"));
        };
        let stdout = BufReader::new(stdout);
        let mut peer = Self { child, stdin, stdout, hello: Value::Null };
        peer.hello = serde_json::from_str(&peer.line()?).map_err(|e| e.to_string())?;
        Ok(peer)
    }

    fn ask(&mut self, line: &str) -> Result<Run, String> {
        writeln!(self.stdin, "{line}").map_err(|e| e.to_string())?;
        serde_json::from_str(&self.line()?).map_err(|e| e.to_string())
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(0) => Err("the Python program ended".to_owned()),
            Ok(_) => Ok(line),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It holds nothing that needs an orderly end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const STEPS: [&str; 7] = ["scan", "index", "init", "build", "first", "start", "every"];

fn print(contenders: &[Contender]) {
    print!("{:42}", "milliseconds, and MB a worker process");
    STEPS.iter().for_each(|step| print!(" {step:>9}"));
    println!(" {:>7} {:>7} {:>7} {:>5}", "RSS", "PSS", "USS", "load");
    for contender in contenders {
        print!("{:42}", contender.name);
        for step in STEPS {
            match middle(&contender.done, |run| run.seconds.get(step).copied()) {
                Some(seconds) => print!(" {:>9.2}", seconds * 1e3),
                None => print!(" {:>9}", "-"),
            }
        }
        for part in [|m: &Memory| m.rss, |m: &Memory| m.pss, |m: &Memory| m.uss] {
            let most = |run: &Run| run.workers.iter().map(part).max();
            match middle(&contender.done, |run| most(run).map(|kb| kb as f64 / 1024.0)) {
                Some(mb) => print!(" {mb:>7.2}"),
                None => print!(" {:>7}", "-"),
            }
        }
        let load = middle(&contender.done, |run| Some(run.load));
        println!(" {:>5.1}", load.unwrap_or(f64::NAN));
    }
    // How much faster a start is than PyTorch's of the same source and number of workers.
    let start = |c: &Contender| middle(&c.done, |run| run.seconds.get("start").copied());
    let starts: BTreeMap<&str, f64> =
        contenders.iter().filter_map(|c| Some((c.name.as_str(), start(c)?))).collect();
    for (name, theirs) in &starts {
        let Some((label, method)) = name.split_once("PyTorch ") else { continue };
        let Some((_, count)) = method.split_once(':') else { continue };
        let ours = format!("{label}processes:{count}");
        if let Some(time) = starts.get(ours.as_str()) {
            println!("{ours} starts {:.1} times as fast as {name}", theirs / time);
        }
    }
}

fn middle(runs: &[Run], value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(value).collect::<Vec<_>>())
}
