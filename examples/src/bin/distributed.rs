//! Trains a ResNet by several processes, each with its part of one shared path table; in burn, on the
//! CPU.
//!
//! `--launch N` starts N ranks on this machine. Started by torchrun, or by hand with `RANK`,
//! `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` set, it is one rank of such a run. Rank 0 listens at
//! the port after `MASTER_PORT`, which torchrun keeps for itself.
//!
//! The ranks average their weights after every step, through rank 0. With the same weights before the
//! step and SGD, whose steps are linear in the gradients, that is what averaging gradients gives.

use std::env;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use burn::module::{ModuleMapper, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use clap::Parser;
use loader_burn::BatchTensors;
use loader_core::{DataLoader, ImageDataset, Shard, ShardMode, Workers};

use examples::Error;
use examples::args::AutoAugment;
use examples::checkpoint::fingerprint;
use examples::data::{Folders, Settings};
use examples::in_burn::{ResNet, cross_entropy, sgd, values, weights};
use examples::meters::{Answer, Score};
use examples::network::{Arch, Network};
use examples::schedule::Schedule;
use examples::star::Star;
use examples::targets::Targets;

/// Trains a ResNet-18 on an image folder by several processes
#[derive(Parser)]
struct Args {
    /// Folder with train/ and val/ or test/, each with a folder of images for every class
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Start so many ranks on this machine, instead of being one that somebody else started
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    launch: Option<u32>,
    /// Passes over the training set
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Images a step of each rank
    #[arg(long, default_value_t = 16)]
    batch_size: usize,
    /// Side length that images are brought to
    #[arg(long, default_value_t = 32)]
    size: u32,
    /// Channels of the first stage
    #[arg(long, default_value_t = 8)]
    width: usize,
    /// Highest learning rate
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Worker threads of each rank
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seed of the weights, the order and the augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    examples::exit_code(|| match args.launch {
        Some(world) => launch(&args, world),
        None => {
            let shard = Shard::from_env(ShardMode::Pad)?;
            let (rank, world) = (shard.rank(), shard.world());
            run(&args, || join(rank, world), rank, world)
        }
    })
}

/// Finds the others by what a launcher tells every rank.
fn join(rank: u32, world: u32) -> Result<Star, Error> {
    let variable = |name| env::var(name).map_err(|e| format!("{name}: {e}"));
    let host = variable("MASTER_ADDR")?;
    let master: u16 = variable("MASTER_PORT")?.parse().map_err(|e| format!("MASTER_PORT: {e}"))?;
    let port = master.checked_add(1).ok_or("MASTER_PORT can be 65534 at most")?;
    if rank > 0 {
        return Star::connect((&host, port), rank, world);
    }
    let listener = TcpListener::bind((host.as_str(), port));
    Star::accept(&listener.map_err(|e| format!("{host}:{port}: {e}"))?, world)
}

/// Starts ranks 1 and up, and is rank 0.
fn launch(args: &Args, world: u32) -> Result<(), Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let master = listener.local_addr()?.port() - 1;
    let mut others = Ranks(Vec::new());
    for rank in 1..world {
        let mut command = Command::new(env::current_exe()?);
        command.args(without_launch(env::args().skip(1)));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", master.to_string());
        others.0.push(command.spawn()?);
    }
    run(args, || Star::accept(&listener, world), 0, world)?;
    for (other, rank) in others.0.iter_mut().zip(1..) {
        let status = other.wait()?;
        if !status.success() {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}

/// The processes of other ranks, which end with rank 0.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            // Fails only for those that have ended.
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

fn without_launch(mut args: impl Iterator<Item = String>) -> Vec<String> {
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--launch" {
            args.next();
        } else if !arg.starts_with("--launch=") {
            kept.push(arg);
        }
    }
    kept
}

/// One rank's part. It joins the others once its own data is open, so that what is wrong with that is
/// told by each.
fn run(
    args: &Args,
    join: impl FnOnce() -> Result<Star, Error>,
    rank: u32,
    world: u32,
) -> Result<(), Error> {
    let folders = Folders::open(&args.data)?;
    let (images, classes) = (folders.train.len(), folders.train.classes().len());
    let settings = Settings {
        size: args.size,
        min_scale: folders.default_min_scale(),
        auto_augment: AutoAugment::None,
        batch_size: args.batch_size,
        workers: Workers::threads(args.threads),
        seed: args.seed,
        // Every rank takes as many steps as the others; each validation image is answered once.
        shards: Some((
            Shard::new(rank, world, ShardMode::Pad)?,
            Shard::new(rank, world, ShardMode::Exact)?,
        )),
    };
    let loaders = folders.loaders(&settings)?;
    println!(
        "rank {rank} of {world}: {} of {images} images, {} batches an epoch",
        loaders.train.samples(),
        loaders.train.len()
    );
    let mut star = join()?;

    let device = Device::flex();
    device.seed(args.seed);
    let network = Network { arch: Arch::ResNet18, classes, width: args.width, size: args.size };
    let steps = args.epochs * loaders.train.len();
    let mut trainer = Trainer {
        model: ResNet::new(&network, &device.clone().autodiff()),
        optimizer: sgd(5e-4),
        schedule: Schedule { peak: args.lr, warm_up: steps / 10, steps },
        targets: Targets::new(classes).smoothing(0.1),
        device,
        step: 0,
    };
    for epoch in 0..args.epochs {
        let start = Instant::now();
        let (score, seen) = trainer.train(&loaders.train, epoch, &mut star, world)?;
        let took = start.elapsed().as_secs_f64();
        let coverage = check_coverage(&star.gather(&seen)?, images)?;
        let [trained, loss, _] = summed(&score, &mut star)?;
        let [validated, _, top1] = summed(&trainer.validate(&loaders.val)?, &mut star)?;
        if rank == 0 {
            println!(
                "epoch {}/{}: {coverage}; loss {:.3}, val {:.1}%, {:.0} images/s",
                epoch + 1,
                args.epochs,
                loss / trained,
                100.0 * top1 / validated,
                trained / took,
            );
        }
    }
    println!("rank {rank}: weights {:016x}", fingerprint(&weights(&trainer.model)?));
    Ok(())
}

struct Trainer {
    model: ResNet,
    optimizer: ModuleOptimizer,
    schedule: Schedule,
    targets: Targets,
    device: Device,
    step: u64,
}

impl Trainer {
    /// Learns from this rank's part of an epoch, in step with the others. Also gives what it was, as
    /// little-endian indices, without the samples that only make the parts equally long.
    fn train(
        &mut self,
        loader: &DataLoader<ImageDataset>,
        epoch: u64,
        star: &mut Star,
        world: u32,
    ) -> Result<(Score, Vec<u8>), Error> {
        let device = self.device.clone().autodiff();
        let (mut score, mut seen) = (Score::default(), Vec::new());
        for batch in loader.epoch(epoch)? {
            let mut batch = batch?;
            let own = batch.indices().zip(batch.padding()).filter(|&(_, padding)| !padding);
            seen.extend(own.flat_map(|(index, _)| index.to_le_bytes()));
            let labels = batch.get::<i64>("label")?.to_vec();
            let targets = self.targets.of(&mut batch)?;
            let logits = self.model.forward(batch.take_tensor("image", &device)?);
            let loss = cross_entropy(logits.clone(), &targets, &device);
            let answer = Answer { loss: loss.clone().into_scalar(), logits: values(logits)? };
            score.add(&answer, &labels)?;

            let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
            let rate = self.schedule.at(self.step);
            let stepped = self.optimizer.step(rate, self.model.clone(), gradients);
            let mut all = weights(&stepped)?;
            star.sum(&mut all)?;
            all.iter_mut().for_each(|sum| *sum /= world as f32);
            self.model = stepped.map(&mut Replace(all.into_iter()));
            self.step += 1;
        }
        Ok((score, seen))
    }

    /// Answers this rank's part of the validation set.
    fn validate(&self, loader: &DataLoader<ImageDataset>) -> Result<Score, Error> {
        let model = self.model.valid();
        let mut score = Score::default();
        for batch in loader.epoch(0)? {
            let mut batch = batch?;
            let labels = batch.get::<i64>("label")?.to_vec();
            let logits = model.forward(batch.take_tensor("image", &self.device)?);
            score.add(&Answer { loss: 0.0, logits: values(logits)? }, &labels)?;
        }
        Ok(score)
    }
}

/// Gives a network the numbers that [`weights`] had listed, or others for them.
struct Replace(std::vec::IntoIter<f32>);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            let numbers: Vec<f32> = self.0.by_ref().take(old.shape().num_elements()).collect();
            let new = Tensor::from_data(TensorData::new(numbers, old.shape()), &old.device());
            if old.is_require_grad() { new.require_grad() } else { new }
        })
    }
}

/// Images, loss and hits of all ranks.
fn summed(score: &Score, star: &mut Star) -> Result<[f64; 3], Error> {
    let mut sums = [score.images as f32, score.loss as f32, score.top1 as f32];
    star.sum(&mut sums)?;
    Ok(sums.map(f64::from))
}

/// At rank 0, that the parts of all ranks are the data set: every sample once. What it tells.
fn check_coverage(parts: &[Vec<u8>], images: u64) -> Result<String, Error> {
    let index = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
    let mut all =
        parts.iter().flat_map(|part| part.chunks(8).map(index)).collect::<Result<Vec<u64>, _>>()?;
    all.sort_unstable();
    if !parts.is_empty() && !all.iter().copied().eq(0..images) {
        return Err(
            format!("the ranks had {} samples, not each of {images} once", all.len()).into()
        );
    }
    let sizes: Vec<String> = parts.iter().map(|part| (part.len() / 8).to_string()).collect();
    Ok(format!("{} = {images} samples, each once", sizes.join(" + ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(indices: &[u64]) -> Vec<u8> {
        indices.iter().flat_map(|index| index.to_le_bytes()).collect()
    }

    #[test]
    fn a_sample_that_is_missing_or_doubled_is_an_error() {
        let told = check_coverage(&[part(&[3, 0]), part(&[1, 2, 4])], 5).ok();
        assert_eq!(told.as_deref(), Some("2 + 3 = 5 samples, each once"));
        assert!(check_coverage(&[part(&[3, 0]), part(&[1, 2])], 5).is_err());
        assert!(check_coverage(&[part(&[3, 0]), part(&[1, 2, 3])], 5).is_err());
        assert!(check_coverage(&[part(&[3, 0]), part(&[1, 2, 4, 4])], 5).is_err());
    }
}
