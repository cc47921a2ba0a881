//! Measures how many images a second the loader delivers when the training loop costs nothing.
//!
//! `throughput --root FOLDER [--task train|eval] [--threads N] [--batch-size 128] [--size 224]
//! [--epochs 3] [--json FILE]`
//!
//! Every epoch is timed by itself; the table ends with their median. Building the loader and the wait
//! for its first batch are told apart from that. The images come from the page cache if they fit there,
//! since the first epoch reads them all.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use benches::{Args, median};
use loader_core::{DataLoader, ImageFolder, Transform, Workers};
use serde_json::json;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("throughput: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = Args::parse(&["root", "task", "threads", "batch-size", "size", "epochs", "json"])?;
    let root = args.path("root")?;
    let size = u32::try_from(args.number("size", 224)?).map_err(|e| format!("--size: {e}"))?;
    let task = args.get("task").unwrap_or("train");
    let transform = match task {
        "train" => Transform::imagenet_train(size),
        "eval" => Transform::imagenet_eval(size),
        other => return Err(format!("--task is train or eval, not {other}")),
    };
    let threads = args.number("threads", 0)? as usize;
    let workers = if threads == 0 { Workers::default() } else { Workers::threads(threads) };
    let epochs = args.number("epochs", 3)?.max(1);

    let begin = Instant::now();
    let folder = ImageFolder::open(&root).map_err(|e| e.to_string())?;
    let opened = begin.elapsed().as_secs_f64();
    let dataset = folder.transform(&transform).map_err(|e| e.to_string())?;
    let loader = DataLoader::builder(dataset)
        .batch_size(args.number("batch-size", 128)? as usize)
        .shuffle(0)
        .workers(workers)
        .build()
        .map_err(|e| e.to_string())?;
    let built = begin.elapsed().as_secs_f64() - opened;

    let mut first = None;
    let mut rates = Vec::new();
    println!("{:24} {:>12}", "epoch", "images/s");
    for epoch in 0..epochs {
        let start = Instant::now();
        let mut images = 0;
        for batch in loader.epoch(epoch).map_err(|e| e.to_string())? {
            images += batch.map_err(|e| e.to_string())?.len();
            first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        }
        let rate = images as f64 / start.elapsed().as_secs_f64();
        println!("{epoch:<24} {rate:>12.1}");
        rates.push(rate);
    }
    let first = first.unwrap_or(f64::NAN);
    println!("{:24} {:>12.1}", "median", median(&rates).unwrap_or(f64::NAN));
    println!("{:24} {:>9.2} ms", "open the folder", opened * 1e3);
    println!("{:24} {:>9.2} ms", "build the loader", built * 1e3);
    println!("{:24} {:>9.2} ms", "first batch", first * 1e3);
    if let Some(path) = args.get("json") {
        let text = json!({
            "root": root, "task": task, "workers": format!("{workers:?}"), "size": size,
            "images_per_second": rates,
            "seconds": { "open": opened, "build": built, "first_batch": first },
        });
        fs::write(path, text.to_string()).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}
