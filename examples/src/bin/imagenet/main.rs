//! Trains a ResNet-18 on an image folder, on the CPU.
//!
//! Everything is as in the usual ImageNet recipe: random crops and flips, label smoothing, SGD with
//! Nesterov momentum and weight decay, a learning rate that warms up and then follows a cosine.
//! What isn't given on the command line is chosen by the data.

mod data;
mod model;
mod train;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::prelude::*;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use loader_core::Workers;

use data::{Folders, Settings};
use model::ResNet18Config;
use train::{Figures, Schedule, Trainer};

type Error = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(about = "Trains a ResNet-18 on an image folder, on the CPU")]
struct Args {
    /// Folder with train/ and val/ or test/, each with a folder of images for every class
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Passes over the training set [default: as many as make 20,000 images, 30 at most]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Images a step
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Side length that images are brought to [default: theirs, 64 at most]
    #[arg(long, value_parser = clap::value_parser!(u32).range(16..))]
    size: Option<u32>,
    /// Channels of the first stage; few, for a CPU: ResNet-18 proper has 64
    #[arg(long, default_value_t = 8)]
    width: usize,
    /// Highest learning rate
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Who decodes images: threads:N, processes:N or subprocess:N [default: a thread for each CPU]
    #[arg(long)]
    workers: Option<Workers>,
    /// Seed of the weights, the order and the augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Fail where the validation accuracy ends below this percentage
    #[arg(long, value_name = "PERCENT")]
    min_accuracy: Option<f64>,
}

fn main() -> ExitCode {
    // Before anything else: worker processes come from a process with one thread.
    match loader_core::init().map_err(Error::from).and_then(|()| run(&Args::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Error> {
    let device = Device::flex();
    device.seed(args.seed);

    let opening = Instant::now();
    let folders = Folders::open(&args.data)?;
    let opened = opening.elapsed();
    let classes = folders.train.classes().len();
    let images = folders.train.len();
    match &folders.val {
        Some(val) => println!(
            "{images} images of {classes} classes to train on, {} to validate on",
            val.len()
        ),
        None => println!(
            "{images} images of {classes} classes to train and, for want of others, to validate on"
        ),
    }

    let size = args.size.unwrap_or_else(|| folders.default_size());
    let epochs = args.epochs.unwrap_or_else(|| (20_000 / images).clamp(1, 30));
    let workers = args.workers.unwrap_or_default();
    let settings = Settings { size, batch_size: args.batch_size, workers, seed: args.seed };
    let building = Instant::now();
    let loaders = folders.loaders(&settings)?;
    let built = building.elapsed();
    let steps = epochs * loaders.train.len();
    println!(
        "ResNet-18 of width {}, {size}x{size} pixels, epochs: {epochs}, of {} batches of {}",
        args.width,
        loaders.train.len(),
        args.batch_size,
    );

    let learning = device.clone().autodiff();
    let model = ResNet18Config { classes, width: args.width, size: size as usize }.init(&learning);
    let schedule = Schedule { peak: args.lr, warm_up: steps / 10, steps };
    let mut trainer = Trainer::new(model, schedule, &learning);

    let mut total = Total::default();
    let mut accuracy = 0.0;
    for epoch in 0..epochs {
        let bar = progress_bar(loaders.train.len() + loaders.val.len(), epoch, epochs);
        let train = trainer.train(data::tensors(&loaders.train, epoch, &learning)?, &bar)?;
        let val = trainer.validate(data::tensors(&loaders.val, 0, &device)?, &bar)?;
        bar.finish_and_clear();
        report(epoch, epochs, classes, &train, &val);
        total.add(&train);
        accuracy = val.top1;
    }

    // From nothing open to the first batch in hand, without the making of the model in between.
    let first = opened + built + total.first.unwrap_or_default();
    println!(
        "validation accuracy {accuracy:.1}% after {epochs} epoch{}, {:.0} images/s, first batch {}",
        if epochs == 1 { "" } else { "s" },
        total.images as f64 / total.took.as_secs_f64(),
        milliseconds(first),
    );
    match args.min_accuracy {
        Some(least) if accuracy < least => Err(format!("accuracy below {least}%").into()),
        _ => Ok(()),
    }
}

/// The training of all epochs together.
#[derive(Default)]
struct Total {
    images: u64,
    took: Duration,
    first: Option<Duration>,
}

impl Total {
    fn add(&mut self, epoch: &Figures) {
        self.images += epoch.images;
        self.took += epoch.took;
        self.first.get_or_insert(epoch.first);
    }
}

/// Drawn on stderr, and only where that is a terminal.
fn progress_bar(batches: u64, epoch: u64, epochs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} batches, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let message = format!("epoch {}/{epochs}", epoch + 1);
    ProgressBar::new(batches).with_style(style).with_message(message)
}

fn report(epoch: u64, epochs: u64, classes: usize, train: &Figures, val: &Figures) {
    let top5 = if classes > 5 { format!(" (top-5 {:.1}%)", val.top5) } else { String::new() };
    println!(
        "epoch {:2}/{epochs}: loss {:.3}, train {:.1}%, val {:.1}%{top5}, {:.0} images/s, \
         first batch {}, {:.1}% waiting for data",
        epoch + 1,
        train.loss,
        train.top1,
        val.top1,
        train.rate(),
        milliseconds(train.first),
        100.0 * train.waited.as_secs_f64() / train.took.as_secs_f64(),
    );
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
