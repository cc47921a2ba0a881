//! Trains a small ResNet on CIFAR-10 as an image folder, or on thumbnails of other things; in tch, on
//! the CPU.
//!
//! The shortest way from a folder to a trained network: two loaders, a loop over
//! [`tensors`](loader_tch::EpochTensors::tensors), and tch's own optimizer and loss.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use loader_core::{DType, DataLoader, ImageFolder, Layout, Transform, Workers, ops};
use loader_tch::EpochTensors;
use tch::nn::{self, ModuleT, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use examples::Error;
use examples::in_tch::ResNet;
use examples::network::{Arch, Network};
use examples::schedule::Schedule;

const SIDE: u32 = 32;
const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
const STD: [f32; 3] = [0.2470, 0.2435, 0.2616];

/// Trains a small ResNet on CIFAR-10 as an image folder
#[derive(Parser)]
struct Args {
    /// Folder with train/ and test/ (or val/), each with a folder of images for every class
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Passes over the training set
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Images a step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Channels of the first stage of the ResNet-18
    #[arg(long, default_value_t = 16)]
    width: usize,
    /// Highest learning rate
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Who decodes images: threads:N, processes:N or subprocess:N
    #[arg(long, default_value_t)]
    workers: Workers,
    /// Seed of the weights, the order and the augmentation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Fail where the test accuracy ends below this percentage
    #[arg(long, value_name = "PERCENT")]
    min_accuracy: Option<f64>,
}

fn main() -> ExitCode {
    examples::exit_code(|| {
        // Before anything else: worker processes come from a process with one thread.
        loader_core::init()?;
        run(&Args::parse())
    })
}

fn run(args: &Args) -> Result<(), Error> {
    let train = ImageFolder::open(args.data.join("train"))?;
    let classes: Vec<_> = train.classes().map(ToOwned::to_owned).collect();
    let (images, classes_len) = (train.len(), classes.len());
    let test = ["test", "val"].map(|name| args.data.join(name)).into_iter().find(|d| d.is_dir());
    let test = test.ok_or_else(|| format!("{}: no test/ and no val/", args.data.display()))?;
    let test = ImageFolder::builder(test).classes(classes).open()?;
    println!("{images} images of {classes_len} classes to train on, {} to test", test.len());

    let tensor = |images: Transform| images.to(DType::F32, Layout::Nchw).normalize(MEAN, STD);
    let whole = Transform::new().resize((SIDE, SIDE));
    let moved = whole.clone().then(ops::RandomCrop::new(SIDE).padding(4));
    let train = DataLoader::builder(train.transform(tensor(moved.random_horizontal_flip(0.5)))?)
        .batch_size(args.batch_size)
        .shuffle(args.seed)
        .workers(args.workers)
        .build()?;
    let test = DataLoader::builder(test.transform(tensor(whole))?)
        .batch_size(args.batch_size)
        .workers(args.workers)
        .build()?;

    tch::manual_seed(args.seed as i64);
    let network =
        Network { arch: Arch::ResNet18, classes: classes_len, width: args.width, size: SIDE };
    let store = VarStore::new(Device::Cpu);
    let model = ResNet::new(&network, &store.root());
    let mut optimizer = nn::sgd(0.9, 0.0, 5e-4, true).build(&store, args.lr)?;
    let steps = args.epochs * train.len();
    let schedule = Schedule { peak: args.lr, warm_up: steps / 10, steps };

    let start = Instant::now();
    let mut accuracy = 0.0;
    for epoch in 0..args.epochs {
        let mut loss_sum = 0.0;
        for (step, pair) in (epoch * train.len()..).zip(train.epoch(epoch)?.tensors()) {
            let (images, labels) = pair?;
            let loss = model.forward_t(&images, true).cross_entropy_for_logits(&labels);
            optimizer.set_lr(schedule.at(step));
            optimizer.backward_step(&loss);
            loss_sum += f64::try_from(&loss)? * labels.size1()? as f64;
        }
        let trained = start.elapsed();

        let mut right = 0;
        for pair in test.epoch(0)?.tensors() {
            let (images, labels) = pair?;
            right += no_grad(|| hits(&model.forward_t(&images, false), &labels))?;
        }
        accuracy = 100.0 * right as f64 / test.samples() as f64;
        println!(
            "epoch {:2}/{}: loss {:.3}, test {accuracy:.1}%, {:.1} s since the start",
            epoch + 1,
            args.epochs,
            loss_sum / images as f64,
            trained.as_secs_f64(),
        );
    }
    println!(
        "test accuracy {accuracy:.1}% after {} epochs and {:.0} s",
        args.epochs,
        start.elapsed().as_secs_f64()
    );
    match args.min_accuracy {
        Some(least) if accuracy < least => Err(format!("accuracy below {least}%").into()),
        _ => Ok(()),
    }
}

/// How many samples have their highest logit at their label.
fn hits(logits: &Tensor, labels: &Tensor) -> Result<i64, Error> {
    Ok(i64::try_from(logits.argmax(1, false).eq_tensor(labels).sum(Kind::Int64))?)
}
