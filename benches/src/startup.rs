//! One start of a loader in a program of its own, measured: what `startup` repeats and sums up, and
//! what a program that links something large repeats under its own conditions.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, ImageFolder, PathTable, Recipe, RecipeError,
    Registry, Sample, SampleError, SampleWriter, Stage, TableCache, Transform, Workers,
};
use serde::{Deserialize, Serialize};

use crate::memory::children;
use crate::{Memory, timed};

/// Names the start to measure, to the program that is started for it.
const ASKED: &str = "LOADER_STARTUP";
/// Bytes of each of the strings.
pub const STRING_BYTES: u64 = 64;
const STRING_CLASSES: u64 = 1000;
/// Samples after which a worker that has not made one is given up on.
const PATIENCE: usize = 200_000;
/// How long workers get to come to rest before their memory is looked at.
const REST: Duration = Duration::from_millis(150);

/// What to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// What there is to load.
    pub source: Source,
    /// What to do with it.
    pub task: Task,
    /// Who does it.
    pub workers: Model,
}

/// What there is to load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// A table made from a list of strings, of that many bytes together.
    Strings {
        /// Bytes of all strings.
        bytes: u64,
    },
    /// A folder tree, and the folder where its table is kept.
    Tree {
        /// The tree.
        root: PathBuf,
        /// The folder for the table.
        cache: PathBuf,
    },
}

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Read the folders and write the table; no loader.
    Scan,
    /// Look up entries, one a batch; no file is read.
    Paths,
    /// Look up all entries, `batch_size` a batch, in each of so many epochs; no file is read.
    Epochs {
        /// Epochs.
        count: u64,
        /// Samples a batch.
        batch_size: usize,
    },
    /// Decode images to training batches of 224 by 224 pixels in `f32`.
    Images {
        /// Samples a batch.
        batch_size: usize,
    },
}

/// Who makes the samples, as command lines say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Model {
    /// Threads of the program.
    Threads(usize),
    /// Processes of one thread each.
    Processes(usize),
    /// One process with that many threads.
    Subprocess(usize),
}

impl Model {
    /// As the loader takes it.
    pub fn workers(self) -> Workers {
        match self {
            Self::Threads(n) => Workers::threads(n),
            Self::Processes(n) => Workers::processes(n),
            Self::Subprocess(n) => Workers::subprocess(n),
        }
    }

    fn processes(self) -> usize {
        match self {
            Self::Threads(_) => 0,
            Self::Processes(n) => n,
            Self::Subprocess(_) => 1,
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Threads(n) | Self::Processes(n) | Self::Subprocess(n) => n,
        }
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Threads(n) => write!(f, "threads:{n}"),
            Self::Processes(n) => write!(f, "processes:{n}"),
            Self::Subprocess(n) => write!(f, "subprocess:{n}"),
        }
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: workers are threads:N, processes:N or subprocess:N");
        let (model, count) = text.split_once(':').ok_or_else(wrong)?;
        let count = count.parse().map_err(|_| wrong())?;
        match model {
            "threads" => Ok(Self::Threads(count)),
            "processes" => Ok(Self::Processes(count)),
            "subprocess" => Ok(Self::Subprocess(count)),
            _ => Err(wrong()),
        }
    }
}

/// What came of one start. Peers tell the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// How long each step took:
    ///
    /// - `scan`: reading all folders and writing the table
    /// - `index`: opening the kept table, or making one from the list of strings
    /// - `init`: starting the fork server, at the top of `main`
    /// - `build`: making the loader, its workers included
    /// - `first`: from asking for the epoch to its first batch
    /// - `start`: both of these
    /// - `every`: from before `build` until every worker has delivered a sample
    pub seconds: BTreeMap<String, f64>,
    /// Memory of the program once the workers are at rest.
    pub program: Memory,
    /// Memory of the process that forks the workers, where there is one.
    #[serde(default)]
    pub server: Option<Memory>,
    /// Memory of each worker process.
    #[serde(default)]
    pub workers: Vec<Memory>,
    /// Memory after each epoch, of the program and its workers.
    #[serde(default)]
    pub epochs: Vec<(Memory, Vec<Memory>)>,
    /// Processes that wanted a CPU in the last minute, on average, others' included.
    #[serde(default)]
    pub load: f64,
}

impl Start {
    /// The start that this process was started for, if it was.
    ///
    /// # Errors
    /// Where it can't be read.
    pub fn asked() -> Result<Option<Self>, String> {
        let Ok(text) = std::env::var(ASKED) else { return Ok(None) };
        serde_json::from_str(&text).map(Some).map_err(|e| format!("{ASKED}={text}: {e}"))
    }

    /// The environment variable that asks a program for this start.
    fn ask(&self) -> Result<(&'static str, String), String> {
        serde_json::to_string(self).map(|text| (ASKED, text)).map_err(|e| e.to_string())
    }

    /// Has a program do it whose `main` begins with [`asked`](Self::asked) and [`measure`](Self::measure).
    ///
    /// # Errors
    /// What the program says where it fails.
    pub fn run_in(&self, program: &Path) -> Result<Run, String> {
        let (name, value) = self.ask()?;
        let out = Command::new(program).env(name, value).output();
        let out = out.map_err(|e| format!("{}: {e}", program.display()))?;
        let text = String::from_utf8_lossy(&out.stdout);
        serde_json::from_str(text.trim())
            .map_err(|_| String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Starts it and measures. To be called as the first line of `main`; `between` runs after the
    /// init of worker processes, where a program would do what it does before it loads.
    ///
    /// # Errors
    /// Whatever fails, in words.
    pub fn measure(&self, between: impl FnOnce()) -> Result<Run, String> {
        let mut run = Run::default();
        if self.workers.processes() > 0 && self.task != Task::Scan {
            let registry = Registry::new().dataset(RECIPE, Paths::attach);
            let (init, took) = timed(|| loader_core::init_with(registry));
            init.map_err(|e| e.to_string())?;
            run.note("init", took);
        }
        between();
        match self.task {
            Task::Scan => run.note("scan", timed_result(|| self.folder(true))?.1),
            Task::Paths => {
                let table = match &self.source {
                    Source::Strings { bytes } => {
                        let strings = strings(*bytes);
                        let (table, took) = timed_result(|| table(&strings))?;
                        run.note("index", took);
                        table
                    }
                    Source::Tree { .. } => {
                        let (folder, took) = timed_result(|| self.folder(false))?;
                        run.note("index", took);
                        folder.table().clone()
                    }
                };
                self.first_sample(Paths { table }, &mut run)?;
            }
            Task::Epochs { count, batch_size } => {
                let Source::Strings { bytes } = self.source else {
                    return Err("epochs are of strings".to_owned());
                };
                // The list is not kept, as a table that is opened has none.
                let table = table(&strings(bytes))?;
                self.epochs(Paths { table }, count, batch_size, &mut run)?;
            }
            Task::Images { batch_size } => {
                let (folder, took) = timed_result(|| self.folder(false))?;
                run.note("index", took);
                let dataset =
                    folder.transform(Transform::imagenet_train(224)).map_err(|e| e.to_string())?;
                self.first_batch(dataset, batch_size, &mut run)?;
            }
        }
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        run.load = load.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
        Ok(run)
    }

    fn folder(&self, scan: bool) -> Result<ImageFolder, String> {
        let Source::Tree { root, cache } = &self.source else {
            return Err("strings are no folder".to_owned());
        };
        let cache = TableCache::Folder(cache.clone());
        let folder = ImageFolder::builder(root).cache(cache).rescan(scan).open();
        folder.map_err(|e| e.to_string())
    }

    fn first_sample(&self, dataset: Paths, run: &mut Run) -> Result<(), String> {
        let begin = Instant::now();
        let loader = DataLoader::builder(dataset).workers(self.workers.workers()).build();
        let loader = loader.map_err(|e| e.to_string())?;
        let built = begin.elapsed();
        let mut seen = HashSet::new();
        for batch in loader.epoch(0).map_err(|e| e.to_string())?.take(PATIENCE) {
            let batch = batch.map_err(|e| e.to_string())?;
            let worker = batch.get::<i64>("worker").map_err(|e| e.to_string())?[0];
            if seen.is_empty() {
                run.started(built, begin.elapsed());
            }
            seen.insert(worker);
            if seen.len() == self.workers.count() {
                run.note("every", begin.elapsed());
                break;
            }
        }
        run.look_at_memory(&loader.worker_pids());
        Ok(())
    }

    fn shuffled<D: Dataset>(&self, dataset: D, batch_size: usize) -> Result<DataLoader<D>, String> {
        let loader = DataLoader::builder(dataset).batch_size(batch_size).shuffle(0);
        loader.workers(self.workers.workers()).build().map_err(|e| e.to_string())
    }

    fn epochs(
        &self,
        dataset: Paths,
        count: u64,
        batch_size: usize,
        run: &mut Run,
    ) -> Result<(), String> {
        let begin = Instant::now();
        let loader = self.shuffled(dataset, batch_size)?;
        run.note("build", begin.elapsed());
        for epoch in 0..count {
            let begin = Instant::now();
            for batch in loader.epoch(epoch).map_err(|e| e.to_string())? {
                batch.map_err(|e| e.to_string())?;
            }
            run.note(&format!("epoch {epoch}"), begin.elapsed());
            run.look_at_memory(&loader.worker_pids());
            run.epochs.push((run.program, run.workers.clone()));
        }
        Ok(())
    }

    fn first_batch<D: Dataset>(
        &self,
        dataset: D,
        batch_size: usize,
        run: &mut Run,
    ) -> Result<(), String> {
        let begin = Instant::now();
        let loader = self.shuffled(dataset, batch_size)?;
        let built = begin.elapsed();
        let mut epoch = loader.epoch(0).map_err(|e| e.to_string())?;
        let first = epoch.next().ok_or("an epoch without a batch")?.map_err(|e| e.to_string())?;
        run.started(built, begin.elapsed());
        run.look_at_memory(&loader.worker_pids());
        drop(first);
        Ok(())
    }
}

impl Run {
    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    fn note(&mut self, name: &str, took: Duration) {
        self.seconds.insert(name.to_owned(), took.as_secs_f64());
    }

    fn started(&mut self, built: Duration, first: Duration) {
        self.note("build", built);
        self.note("first", first - built);
        self.note("start", first);
    }

    fn look_at_memory(&mut self, workers: &[u32]) {
        thread::sleep(REST);
        let own = std::process::id();
        self.workers = workers.iter().filter_map(|&pid| Memory::of(pid)).collect();
        self.program = Memory::of(own).unwrap_or_default();
        self.server = children(own).first().and_then(|&server| Memory::of(server));
    }
}

fn timed_result<T>(work: impl FnOnce() -> Result<T, String>) -> Result<(T, Duration), String> {
    let (out, took) = timed(work);
    Ok((out?, took))
}

/// Strings like the paths of training images, with names that no compression makes small. One behind
/// the other: freeing millions of them would have the allocator tidy up in the middle of what is
/// measured next.
fn strings(bytes: u64) -> String {
    let count = bytes / STRING_BYTES;
    let mut random = 0u64;
    let mut next = || {
        // SplitMix64: any sequence without a pattern does.
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut strings = String::with_capacity((count * STRING_BYTES) as usize);
    for i in 0..count {
        let class = class(i, count);
        let name = format!("{:016x}{:016x}{:011x}", next(), next(), next() >> 20);
        strings.push_str(&format!("train/n{class:08}/{name}.JPEG"));
    }
    strings
}

/// The class of the `i`-th string.
fn class(i: u64, count: u64) -> u32 {
    (i * STRING_CLASSES / count) as u32
}

fn table(strings: &str) -> Result<PathTable, String> {
    let classes = (0..STRING_CLASSES).map(|class| format!("n{class:08}"));
    let count = strings.len() as u64 / STRING_BYTES;
    let paths = strings.as_bytes().chunks_exact(STRING_BYTES as usize).map(OsStr::from_bytes);
    let paths = (0..).zip(paths).map(|(i, path)| (path, class(i, count)));
    PathTable::from_paths("/data", classes, paths).map_err(|e| e.to_string())
}

const RECIPE: &str = "paths";

/// The entries of a table, looked up and not read.
struct Paths {
    table: PathTable,
}

/// A worker's number and its memory for a path.
struct Scratch {
    worker: i64,
    path: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        static THREADS: AtomicI64 = AtomicI64::new(0);
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        Self { worker: i64::from(std::process::id()) << 32 | thread, path: Vec::new() }
    }
}

impl Paths {
    fn attach(mut recipe: Recipe) -> Result<Self, String> {
        let file = recipe.take_file(0).map_err(|e| e.to_string())?;
        Ok(Self { table: PathTable::from_file(file).map_err(|e| e.to_string())? })
    }
}

impl Dataset for Paths {
    type Scratch = Scratch;

    fn len(&self) -> u64 {
        self.table.len()
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("label", DType::I64, []), Field::new("worker", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Scratch,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        let entry = self.table.get(sample.index).map_err(|e| SampleError::new(Stage::Read, e))?;
        scratch.path.clear();
        entry.write_path(&mut scratch.path);
        out.field::<i64>(0)?[0] = entry.label();
        out.field::<i64>(1)?[0] = scratch.worker;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.table.fingerprint()
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Recipe::new(RECIPE, &())?.file(self.table.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_as_long_as_they_are_said_to_be_and_all_different() {
        let strings = strings(1 << 20);
        let table = table(&strings).unwrap();
        let paths: HashSet<_> =
            table.iter().map(|entry| entry.unwrap().to_relative_path()).collect();
        assert_eq!((strings.len(), paths.len()), (1 << 20, 1 << 14));
        assert!(paths.iter().all(|path| path.as_os_str().len() as u64 == STRING_BYTES));
    }

    #[test]
    fn workers_read_as_they_are_written() {
        for model in [Model::Threads(1), Model::Processes(8), Model::Subprocess(2)] {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert!("processes".parse::<Model>().is_err());
        assert!("fibres:8".parse::<Model>().is_err());
    }
}
