//! Measures how many images a second the loader delivers when the training loop costs nothing.
//!
//! `throughput --root FOLDER [--task train|eval] [--workers threads:N|processes:N|subprocess:N]
//! [--batch-size 128] [--size 224] [--epochs 3] [--latency MS] [--readers N] [--json FILE]`
//!
//! Every epoch is timed by itself; the table ends with their median. Beside the rate stands where the
//! workers' time went, in microseconds a sample, and at the end what the loader makes of it. Building
//! the loader and the wait for its first batch are told apart from that. The images come from the page
//! cache if they fit there, since the first epoch reads them all. `--latency` makes each file take that long to open, once an
//! epoch, as on a network's file system; `--readers` is the number of threads that read ahead, 0 for
//! none.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use benches::{Args, median, pss_with, write_results};
use loader_core::{
    DataLoader, Dataset, Field, Fingerprint, ImageDataset, ImageFolder, ReadAhead, Recipe,
    RecipeError, Sample, SampleError, SampleWriter, Stage, Transform, Workers,
};
use serde_json::json;

fn main() -> ExitCode {
    match loader_core::init().map_err(|e| e.to_string()).and_then(|()| run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("throughput: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = Args::parse(&[
        "root",
        "task",
        "workers",
        "batch-size",
        "size",
        "epochs",
        "latency",
        "readers",
        "json",
    ])?;
    let root = args.path("root")?;
    let size = u32::try_from(args.number("size", 224)?).map_err(|e| format!("--size: {e}"))?;
    let task = args.get("task").unwrap_or("train");
    let transform = match task {
        "train" => Transform::imagenet_train(size),
        "eval" => Transform::imagenet_eval(size),
        other => return Err(format!("--task is train or eval, not {other}")),
    };
    let workers = args.get("workers").map(str::parse).transpose();
    let workers: Workers = workers.map_err(|e| format!("--workers: {e}"))?.unwrap_or_default();
    let epochs = args.number("epochs", 3)?.max(1);
    let latency = Duration::from_millis(args.number("latency", 0)?);
    let readers = args.number("readers", 2)? as usize;

    let begin = Instant::now();
    let folder = ImageFolder::open(&root).map_err(|e| e.to_string())?;
    let opened = begin.elapsed().as_secs_f64();
    let images = folder.transform(&transform).map_err(|e| e.to_string())?;
    let dataset = Distant { images, latency, near: Mutex::default() };
    let loader = DataLoader::builder(dataset)
        .batch_size(args.number("batch-size", 128)? as usize)
        .shuffle(0)
        .workers(workers)
        .read_ahead(ReadAhead::default().threads(readers))
        .build()
        .map_err(|e| e.to_string())?;
    let built = begin.elapsed().as_secs_f64() - opened;

    let mut first = None;
    let mut rates = Vec::new();
    let (mut before, mut stats) = (loader.stats(), Vec::new());
    println!(
        "{:24} {:>12} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6}",
        "epoch", "images/s", "load", "read", "decode", "transf.", "write", "CPU", "busy", "waits"
    );
    for epoch in 0..epochs {
        let start = Instant::now();
        let mut images = 0;
        for batch in loader.epoch(epoch).map_err(|e| e.to_string())? {
            images += batch.map_err(|e| e.to_string())?.len();
            first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        }
        let rate = images as f64 / start.elapsed().as_secs_f64();
        rates.push(rate);
        let now = loader.stats();
        let of = now.since(&before);
        before = now;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / of.load.count.max(1) as f64;
        let [load, read, decode, transform, write] =
            [of.load, of.read, of.decode, of.transform, of.write].map(|stage| each(stage.time));
        println!(
            "{epoch:<24} {rate:>12.1} {load:>8.1} {read:>8.1} {decode:>8.1} {transform:>8.1} \
             {write:>8.1} {:>8.1} {:>5.1}% {:>5.1}%",
            each(of.cpu),
            of.busy_share() * 100.0,
            of.wait_share() * 100.0
        );
        stats.push(of);
    }
    let first = first.unwrap_or(f64::NAN);
    println!("{:24} {:>12.1}", "median", median(&rates).unwrap_or(f64::NAN));
    println!("{:24} {:>9.2} ms", "open the folder", opened * 1e3);
    println!("{:24} {:>9.2} ms", "build the loader", built * 1e3);
    println!("{:24} {:>9.2} ms", "first batch", first * 1e3);
    println!("{:24} {:>12}", "workers", workers);
    println!("{:24} {:>12}", "decoder", loader_core::DECODER);
    if let Some(last) = stats.last() {
        println!("{}", last.verdict());
    }
    let pss = pss_with(&loader.worker_pids());
    println!("{:24} {:>9.1} MB of all processes", "memory", pss as f64 / 1024.0);
    if let Some(path) = args.get("json") {
        let result = json!({
            "name": format!("{task} {workers}"),
            "task": task, "workers": workers.to_string(), "size": size,
            "decoder": loader_core::DECODER, "latency_ms": latency.as_millis() as u64,
            "readers": readers,
            "runs": [{
                "images_per_second": rates, "pss": pss, "stats": stats,
                "seconds": { "open": opened, "build": built, "first_batch": first },
            }],
        });
        write_results(path, "throughput", [result])?;
    }
    Ok(())
}

/// Images on a file system that takes its time, in threads only.
struct Distant {
    images: ImageDataset,
    latency: Duration,
    /// What was read ahead and not loaded since.
    near: Mutex<HashSet<u64>>,
}

impl Distant {
    fn near(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.near.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dataset for Distant {
    type Scratch = <ImageDataset as Dataset>::Scratch;

    fn len(&self) -> u64 {
        self.images.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.images.fields()
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Self::Scratch,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        if !self.latency.is_zero() && !self.near().remove(&sample.index) {
            out.enter(Stage::Read);
            std::thread::sleep(self.latency);
        }
        self.images.load(sample, scratch, out)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.images.fingerprint()
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        self.images.recipe()
    }

    fn read_ahead(&self, index: u64) -> bool {
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
            self.near().insert(index);
        }
        self.images.read_ahead(index)
    }
}
