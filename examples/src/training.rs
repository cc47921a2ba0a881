//! The loop of the `imagenet` programs: epochs of training and validation that can be interrupted
//! anywhere.
//!
//! The usual ImageNet recipe: random crops and flips, label smoothing, SGD with Nesterov momentum and
//! weight decay, a learning rate that warms up and then follows a cosine.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use loader_core::{Batch, Epoch, ImageDataset};

use crate::Error;
use crate::args::Args;
use crate::checkpoint::{Checkpoints, Progress, fingerprint};
use crate::data::{Folders, Loaders, Settings};
use crate::meters::{Answer, Score, Times, Waiting, milliseconds};
use crate::network::Network;
use crate::schedule::Schedule;
use crate::targets::Targets;

/// What a framework brings: a network, and stochastic gradient descent with Nesterov momentum of 0.9.
pub trait Learner: Sized {
    /// Its name.
    const FRAMEWORK: &'static str;

    /// A network with random weights that are a function of the seed. Weight decay is of all
    /// weights but biases and those of batch norms.
    ///
    /// # Errors
    /// Where the framework refuses.
    fn new(network: &Network, weight_decay: f64, seed: u64) -> Result<Self, Error>;

    /// Answers a batch and takes a step towards `targets`, `[n, classes]`.
    ///
    /// # Errors
    /// Where the framework refuses.
    fn learn(&mut self, batch: Batch, targets: &[f32], rate: f64) -> Result<Answer, Error>;

    /// Answers a batch without learning from it.
    ///
    /// # Errors
    /// Where the framework refuses.
    fn answer(&self, batch: Batch, targets: &[f32]) -> Result<Answer, Error>;

    /// Writes network and optimizer to files in a folder.
    ///
    /// # Errors
    /// Where a file can't be written.
    fn save(&self, folder: &Path) -> Result<(), Error>;

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// Where a file can't be read or is of another network.
    fn load(&mut self, folder: &Path) -> Result<(), Error>;

    /// Everything that decides an answer, running means and variances included, in an order of its
    /// own.
    ///
    /// # Errors
    /// Where the framework refuses.
    fn weights(&self) -> Result<Vec<f32>, Error>;
}

/// The whole program.
pub fn main<L: Learner>() -> ExitCode {
    crate::exit_code(|| {
        // Before anything else: worker processes come from a process with one thread.
        loader_core::init()?;
        run::<L>(&Args::parse())
    })
}

fn run<L: Learner>(args: &Args) -> Result<(), Error> {
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
    let settings = Settings {
        size,
        min_scale: args.min_scale.unwrap_or_else(|| folders.default_min_scale()),
        auto_augment: args.auto_augment,
        batch_size: args.batch_size,
        workers: args.workers.unwrap_or_default(),
        seed: args.seed,
        shards: None,
    };
    let building = Instant::now();
    let loaders = folders.loaders(&settings)?;
    let built = building.elapsed();
    let steps = epochs * loaders.train.len();
    println!(
        "{} of width {}, {size}x{size} pixels, epochs: {epochs}, of {} batches of {}",
        args.arch,
        args.width,
        loaders.train.len(),
        args.batch_size,
    );

    let network = Network { arch: args.arch, classes, width: args.width as usize, size };
    let mut run = Run {
        learner: L::new(&network, args.weight_decay, args.seed)?,
        schedule: Schedule { peak: args.lr, warm_up: steps / 10, steps },
        targets: Targets::new(classes)
            .smoothing(args.label_smoothing)
            .mixing(args.mixup, args.cutmix),
        plain: Targets::new(classes),
        classes,
        epochs,
        loaders,
        checkpoints: args.checkpoints.as_deref().map(Checkpoints::open).transpose()?,
        checkpoint_every: args.checkpoint_every,
        stop_after: args.stop_after,
        recipe: recipe::<L>(args, &network, epochs),
        log: args.log.as_deref().map(open_log).transpose()?,
        step: 0,
        score: Score::default(),
        saved: None,
    };
    let start = run.start(args.resume)?;
    // From nothing open to the first batch in hand, without the making of the model in between.
    let ready = opened + built;
    let End::Complete(accuracy) = run.epochs(start, ready)? else { return Ok(()) };
    match args.min_accuracy {
        Some(least) if accuracy < least => Err(format!("accuracy below {least}%").into()),
        _ => Ok(()),
    }
}

/// What must be the same when a run goes on, beside what the loader's state compares.
fn recipe<L: Learner>(args: &Args, network: &Network, epochs: u64) -> serde_json::Value {
    serde_json::json!({
        "framework": L::FRAMEWORK,
        "arch": network.arch,
        "width": network.width,
        "classes": network.classes,
        "size": network.size,
        "epochs": epochs,
        "lr": args.lr,
        "weight-decay": args.weight_decay,
        "label-smoothing": args.label_smoothing,
        "mixup": args.mixup,
        "cutmix": args.cutmix,
    })
}

fn open_log(path: &Path) -> Result<File, Error> {
    let file = File::options().create(true).append(true).open(path);
    file.map_err(|e| format!("{}: {e}", path.display()).into())
}

/// A run and all that changes while it goes on.
struct Run<L> {
    learner: L,
    schedule: Schedule,
    targets: Targets,
    /// Those of validation.
    plain: Targets,
    classes: usize,
    epochs: u64,
    loaders: Loaders,
    checkpoints: Option<Checkpoints>,
    checkpoint_every: Option<u64>,
    stop_after: Option<u64>,
    recipe: serde_json::Value,
    log: Option<File>,
    /// Steps done, those before an interruption included.
    step: u64,
    /// Of the epoch so far, likewise.
    score: Score,
    /// The newest checkpoint and its step.
    saved: Option<(u64, PathBuf)>,
}

enum End {
    /// With the last validation accuracy in percent.
    Complete(f64),
    Stopped,
}

impl<L: Learner> Run<L> {
    /// The epoch to begin with: the first, or what is left of the one that was interrupted.
    fn start(&mut self, resume: bool) -> Result<Epoch<ImageDataset>, Error> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(self.loaders.train.epoch(0)?) };
        let newest = checkpoints.newest(&self.recipe)?;
        let Some((folder, progress)) = newest else {
            if resume {
                println!("no checkpoint yet: begins anew");
            }
            return Ok(self.loaders.train.epoch(0)?);
        };
        if !resume {
            let folder = folder.display();
            return Err(format!("there is {folder}: give --resume, or another folder").into());
        }
        let epoch = self.loaders.train.resume(&progress.loader)?;
        self.learner.load(&folder)?;
        println!(
            "goes on from {}: epoch {}, after {} of {} batches",
            folder.display(),
            epoch.number() + 1,
            progress.loader.batches_delivered(),
            self.loaders.train.len(),
        );
        self.step = progress.step;
        self.score = progress.score;
        self.saved = Some((progress.step, folder));
        Ok(epoch)
    }

    fn epochs(&mut self, mut epoch: Epoch<ImageDataset>, ready: Duration) -> Result<End, Error> {
        let stop_at = self.stop_after.map(|batches| self.step + batches);
        let mut total = Total::default();
        let mut accuracy = 0.0;
        while epoch.number() < self.epochs {
            let number = epoch.number();
            let batches = self.loaders.train.len() + self.loaders.val.len();
            let bar = progress_bar(batches, number, self.epochs);
            bar.set_position(epoch.state().batches_delivered());

            let before = self.score.images;
            let Some(times) = self.train(&mut epoch, stop_at, &bar)? else {
                bar.finish_and_clear();
                println!("stopped after {} of {} batches", self.step, self.schedule.steps);
                return Ok(End::Stopped);
            };
            // Before validation: what is resumed from here validates and reports anew.
            if self.checkpoints.is_some() {
                self.checkpoint()?;
            }
            let val = self.validate(&bar)?;
            bar.finish_and_clear();
            let here = self.score.images - before;
            self.report(number, here, &times, &val);
            total.add(here, &times);
            accuracy = val.top1_percent();
            self.score = Score::default();
            epoch = self.loaders.train.epoch(number + 1)?;
        }

        if let Some((_, folder)) = &self.saved {
            let weights = fingerprint(&self.learner.weights()?);
            println!("{} is the end of this run, weights {weights:016x}", folder.display());
        }
        println!(
            "validation accuracy {accuracy:.1}% after {} epoch{}, {:.0} images/s, first batch {}",
            self.epochs,
            if self.epochs == 1 { "" } else { "s" },
            rate(total.images, total.took),
            milliseconds(ready + total.first.unwrap_or_default()),
        );
        Ok(End::Complete(accuracy))
    }

    /// Learns from every batch of the epoch that is left; `None` where it is time to stop.
    fn train(
        &mut self,
        epoch: &mut Epoch<ImageDataset>,
        stop_at: Option<u64>,
        bar: &ProgressBar,
    ) -> Result<Option<Times>, Error> {
        let mut batches = Waiting::new(epoch);
        for batch in batches.by_ref() {
            let mut batch = batch?;
            let place = (batch.epoch(), batch.number());
            let labels = batch.get::<i64>("label")?.to_vec();
            let targets = self.targets.of(&mut batch)?;
            let rate = self.schedule.at(self.step);
            let answer = self.learner.learn(batch, &targets, rate)?;
            self.score.add(&answer, &labels)?;
            self.step += 1;
            if let Some(log) = &mut self.log {
                // In one write, so that a run that is killed leaves no half line.
                let line = format!("{},{},{rate},{}\n", place.0, place.1, answer.loss);
                log.write_all(line.as_bytes())?;
            }
            let stop = stop_at == Some(self.step);
            if stop || self.checkpoint_every.is_some_and(|every| self.step.is_multiple_of(every)) {
                self.checkpoint()?;
            }
            if stop {
                return Ok(None);
            }
            bar.inc(1);
        }
        Ok(Some(batches.times()))
    }

    fn validate(&self, bar: &ProgressBar) -> Result<Score, Error> {
        let mut score = Score::default();
        for batch in self.loaders.val.epoch(0)? {
            let mut batch = batch?;
            let labels = batch.get::<i64>("label")?.to_vec();
            let targets = self.plain.of(&mut batch)?;
            score.add(&self.learner.answer(batch, &targets)?, &labels)?;
            bar.inc(1);
        }
        Ok(score)
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        if self.saved.as_ref().is_some_and(|(step, _)| *step == self.step) {
            return Ok(());
        }
        let progress = Progress {
            recipe: self.recipe.clone(),
            step: self.step,
            score: self.score,
            loader: self.loaders.train.state(),
        };
        let folder = checkpoints.save(&progress, |folder| self.learner.save(folder))?;
        self.saved = Some((self.step, folder));
        Ok(())
    }

    /// One line on an epoch, of which that many images were trained on by this process.
    fn report(&self, epoch: u64, images: u64, times: &Times, val: &Score) {
        let top5 = match self.classes {
            0..=5 => String::new(),
            _ => format!(" (top-5 {:.1}%)", val.top5_percent()),
        };
        println!(
            "epoch {:2}/{}: loss {:.3}, train {:.1}%, val {:.1}%{top5}, {:.0} images/s, \
             first batch {}, {:.1}% waiting for data",
            epoch + 1,
            self.epochs,
            self.score.mean_loss(),
            self.score.top1_percent(),
            val.top1_percent(),
            rate(images, times.took),
            milliseconds(times.first),
            100.0 * times.waited.as_secs_f64() / times.took.as_secs_f64(),
        );
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
    fn add(&mut self, images: u64, epoch: &Times) {
        self.images += images;
        self.took += epoch.took;
        self.first.get_or_insert(epoch.first);
    }
}

/// Images a second.
fn rate(images: u64, took: Duration) -> f64 {
    images as f64 / took.as_secs_f64()
}

/// Drawn on stderr, and only where that is a terminal.
fn progress_bar(batches: u64, epoch: u64, epochs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} batches, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let message = format!("epoch {}/{epochs}", epoch + 1);
    ProgressBar::new(batches).with_style(style).with_message(message)
}
