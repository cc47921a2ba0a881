//! Trains a small network in burn on the rows of a CSV file.
//!
//! ```text
//! tabular [--csv FILE --target COLUMN] [--epochs 8] [--batch-size 1024] [--workers threads:2] [--seed 0]
//! ```
//!
//! The file is converted once, to columns in an Arrow file in the cache that every later run, and every
//! worker, maps. All columns but the target are features. A fifth of the rows, the same in each run of a
//! seed, is held back to validate on. Without `--csv`, a file is made up: 50,000 rows of eight numbers and a
//! target that is a function of them, with some noise.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::prelude::*;
use burn::tensor::activation::gelu;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use loader_burn::{BatchTensors, EpochTensors, TensorError};
use loader_core::{
    Batch, DType, DataLoader, Order, Sample, SharedTable, Statistics, TableDataset, Workers,
};

/// Trains a small network on the rows of a CSV file
#[derive(Debug, Parser)]
struct Args {
    /// A CSV (or Parquet, or Arrow) file of numbers, with names in its first line
    #[arg(long, requires = "target")]
    csv: Option<PathBuf>,
    /// The column to predict
    #[arg(long, default_value = "y")]
    target: String,
    /// Passes over the data
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// Rows a step
    #[arg(long, default_value_t = 1024)]
    batch_size: usize,
    /// Who gathers rows, such as threads:2 or processes:2
    #[arg(long, default_value = "threads:2")]
    workers: Workers,
    /// Seed of the weights, the order and what is held back
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Three layers.
#[derive(Module, Debug)]
struct Network {
    layers: [Linear; 2],
    head: Linear,
}

impl Network {
    fn new(features: usize, device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { layers: [layer(features, 64), layer(64, 64)], head: layer(64, 1) }
    }

    /// `[n, features]` to `[n, 1]`.
    fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let hidden = self.layers.iter().fold(features, |x, layer| gelu(layer.forward(x)));
        self.head.forward(hidden)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before anything that starts a thread: worker processes are forked from here on.
    loader_core::init()?;
    let args = Args::parse();
    let made_up = tempfile::tempdir()?;
    let csv = match &args.csv {
        Some(csv) => csv.clone(),
        None => make_up(made_up.path())?,
    };

    let begun = Instant::now();
    let table = open(&csv)?;
    println!(
        "{} rows and {} columns, there after {:.0} ms",
        table.len(),
        table.schema().fields().len(),
        1e3 * begun.elapsed().as_secs_f64()
    );
    let names = table.schema().fields().iter().map(|field| field.name().clone());
    let features: Vec<_> = names.filter(|name| *name != args.target).collect();
    let statistics =
        Statistics::of(&table, features.iter().chain([&args.target]).map(String::as_str))?;
    let [target] = statistics.get(&args.target).unwrap_or_default() else {
        return Err(format!("column {:?} is no target of one number", args.target).into());
    };
    let (mean, std) = (target.mean, target.std);

    let (training, validation) = split(table.len() as u64, args.seed);
    let loader = |order: Order| -> Result<_, Box<dyn Error>> {
        // A clone of the table is the same memory.
        let rows = TableDataset::builder(table.clone())
            .features(&features)
            .target(&args.target)
            .target_dtype(DType::F32)
            .standardize(&statistics)
            .build()?;
        let settings = DataLoader::builder(rows).batch_size(args.batch_size).order(order);
        Ok(settings.seed(args.seed).workers(args.workers).build()?)
    };
    let training = loader(Order::Subset { indices: training, shuffle: true })?;
    let validation = loader(Order::Subset { indices: validation, shuffle: false })?;

    let device = Device::flex();
    device.seed(args.seed);
    let learning = device.clone().autodiff();
    let mut network = Network::new(features.len(), &learning);
    let mut optimizer = AdamWConfig::new().init();
    let pair = |mut batch: Batch, device: &Device| -> Result<(Tensor<2>, Tensor<2>), TensorError> {
        let target: Tensor<1> = batch.take_tensor("target", device)?;
        let target = (target - mean) / std.max(f64::MIN_POSITIVE);
        Ok((batch.take_tensor("features", device)?, target.unsqueeze_dim(1)))
    };
    for epoch in 0..args.epochs {
        let begun = Instant::now();
        let (mut rows, mut error) = (0, 0.0);
        for batch in training.epoch(epoch)?.tensors_by(&learning, pair) {
            let (features, target) = batch?;
            let n = features.dims()[0];
            let loss = (network.forward(features) - target).square().mean();
            error += f64::from(loss.clone().into_scalar::<f32>()) * n as f64;
            rows += n;
            let gradients = GradientsParams::from_grads(loss.backward(), &network);
            network = optimizer.step(2e-3, network, gradients);
        }
        let speed = rows as f64 / begun.elapsed().as_secs_f64();

        let valid = network.valid();
        let (mut held, mut left) = (0, 0.0);
        for batch in validation.epoch(0)?.tensors_by(&device, pair) {
            let (features, target) = batch?;
            held += features.dims()[0];
            let squares = (valid.forward(features) - target).square().sum();
            left += f64::from(squares.into_scalar::<f32>());
        }
        // In units of the target; a guess of its mean would explain nothing.
        let rmse = |sum: f64, n: usize| std * (sum / n.max(1) as f64).sqrt();
        println!(
            "epoch {}/{}: RMSE {:.4}, validation {:.4} ({:.1}% of the variance explained), {speed:.0} rows/s",
            epoch + 1,
            args.epochs,
            rmse(error, rows),
            rmse(left, held),
            100.0 * (1.0 - left / held.max(1) as f64),
        );
    }
    println!("{}", training.stats().verdict());
    Ok(())
}

/// Opens the table; where it has to be converted first, a bar shows how far that is.
fn open(path: &Path) -> Result<SharedTable, Box<dyn Error>> {
    let style = ProgressStyle::with_template("converting {bar:40} {percent}% {msg}")?;
    let bar = ProgressBar::no_length().with_style(style);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let shown = bar.clone();
    let table = SharedTable::builder(path).progress(move |progress| {
        shown.set_length(progress.of);
        shown.set_position(progress.bytes);
        shown.set_message(format!("{} rows", progress.rows));
    });
    let table = table.open()?;
    bar.finish_and_clear();
    Ok(table)
}

/// Rows to train on, and a fifth of all to validate on.
fn split(rows: u64, seed: u64) -> (Vec<u64>, Vec<u64>) {
    // Other draws than those that the numbers of a made-up file are.
    let draws = |index| Sample { index, epoch: 0, seed, occurrence: 0 }.draws(1);
    (0..rows).partition(|&index| !draws(index).chance(0.2))
}

/// A file of numbers, and of a target that no linear function of them is.
fn make_up(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut text = String::from("x1,x2,x3,x4,x5,x6,x7,x8,y\n");
    for index in 0..50_000 {
        let mut draws = Sample { index, epoch: 0, seed: 0, occurrence: 0 }.draws(0);
        let x: [f64; 8] = std::array::from_fn(|_| draws.uniform(-1.0, 1.0));
        // The first five count (Friedman, "Multivariate Adaptive Regression Splines", 1991).
        let [a, b, c, d, e] = [x[0], x[1], x[2], x[3], x[4]].map(|x| (x + 1.0) / 2.0);
        let exact = 10.0 * (std::f64::consts::PI * a * b).sin()
            + 20.0 * (c - 0.5).powi(2)
            + 10.0 * d
            + 5.0 * e;
        let noise: f64 = (0..12).map(|_| draws.unit()).sum::<f64>() - 6.0;
        for value in x {
            write!(text, "{value:.5},")?;
        }
        writeln!(text, "{:.5}", exact + noise)?;
    }
    let path = folder.join("made-up.csv");
    fs::write(&path, text)?;
    Ok(path)
}
