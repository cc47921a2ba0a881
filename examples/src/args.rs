//! The command line of the `imagenet` programs.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use loader_core::Workers;
use serde::{Deserialize, Serialize};

use crate::network::Arch;

/// Trains a ResNet on an image folder, on the CPU
///
/// What isn't given is chosen by the data.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Folder with train/ and val/ or test/, each with a folder of images for every class
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The network
    #[arg(long, value_enum, default_value_t)]
    pub arch: Arch,
    /// Channels of the first stage; few, for a CPU: the ResNets proper have 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub width: u32,
    /// Side length that images are brought to [default: theirs, 64 at most]
    #[arg(long, value_parser = clap::value_parser!(u32).range(16..))]
    pub size: Option<u32>,
    /// Passes over the training set [default: as many as make 20,000 images, 30 at most]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Images a step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// Highest learning rate, reached after a tenth of all steps
    #[arg(long, default_value_t = 0.1)]
    pub lr: f64,
    /// Weight decay, of all weights but biases and those of batch norms
    #[arg(long, default_value_t = 5e-4)]
    pub weight_decay: f64,
    /// How much of a target is spread over all classes
    #[arg(long, default_value_t = 0.1)]
    pub label_smoothing: f64,
    /// Smallest part of an image that a crop may be [default: 0.08, or 0.35 where there are less than
    /// 100,000 images]
    #[arg(long, value_name = "SHARE")]
    pub min_scale: Option<f64>,
    /// Augmentation beside crop and flip
    #[arg(long, value_enum, default_value_t)]
    pub auto_augment: AutoAugment,
    /// Blend images with their neighbours, shares from a beta distribution of this parameter
    #[arg(long, value_name = "ALPHA")]
    pub mixup: Option<f64>,
    /// Paste boxes of their neighbours into images; with --mixup, one of the two for each batch
    #[arg(long, value_name = "ALPHA")]
    pub cutmix: Option<f64>,
    /// Who decodes images: threads:N, processes:N or subprocess:N [default: a thread for each CPU]
    #[arg(long)]
    pub workers: Option<Workers>,
    /// Seed of the weights, the order and the augmentation
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Keep the newest checkpoint in this folder; one is written at the end of each epoch
    #[arg(long, value_name = "DIR")]
    pub checkpoints: Option<PathBuf>,
    /// Write one every so many batches too
    #[arg(long, value_name = "BATCHES", requires = "checkpoints")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Go on from the newest checkpoint, where there is one
    #[arg(long, requires = "checkpoints")]
    pub resume: bool,
    /// Write a checkpoint after so many batches and end, as a job with a time limit would
    #[arg(long, value_name = "BATCHES", requires = "checkpoints")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub stop_after: Option<u64>,
    /// Append a line for each batch to this file: epoch, batch, learning rate, loss
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Fail where the validation accuracy ends below this percentage
    #[arg(long, value_name = "PERCENT")]
    pub min_accuracy: Option<f64>,
}

/// Augmentations by torchvision's names, with its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum AutoAugment {
    /// None.
    #[default]
    None,
    /// `RandAugment`: two operations, magnitude 9.
    RandAugment,
    /// `TrivialAugmentWide`: one operation of any magnitude.
    TrivialAugmentWide,
}
