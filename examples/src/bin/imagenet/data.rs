//! The training and the validation set as loaders of augmented batches.

use std::path::Path;

use burn::prelude::*;
use image::ImageReader;
use loader_burn::BatchTensors;
use loader_core::{DType, DataLoader, ImageDataset, ImageFolder, Layout, Transform, Workers, ops};

use crate::Error;

/// Side length below which images are thumbnails, to be shifted rather than cropped.
const THUMBNAIL: u32 = 64;

/// The folders of a data set.
pub(crate) struct Folders {
    pub(crate) train: ImageFolder,
    /// `None` where there is but one: then the training images are validated on.
    pub(crate) val: Option<ImageFolder>,
    /// Side length of a typical training image.
    side: u32,
}

impl Folders {
    /// Opens `train/` and `val/` or `test/` below `root`, with the classes of the former.
    pub(crate) fn open(root: &Path) -> Result<Self, Error> {
        let train = ImageFolder::open(root.join("train"))?;
        let val = ["val", "test"].map(|name| root.join(name)).into_iter().find(|dir| dir.is_dir());
        let val = val
            .map(|dir| {
                let classes = train.classes().map(ToOwned::to_owned);
                ImageFolder::builder(dir).classes(classes).open()
            })
            .transpose()?;
        let side = typical_side(&train)?;
        Ok(Self { train, val, side })
    }

    /// A side length to train at: that of the images, but no more than a CPU copes with.
    pub(crate) fn default_size(&self) -> u32 {
        (self.side / 8 * 8).clamp(16, 64)
    }

    /// Loaders of both sets.
    pub(crate) fn loaders(self, settings: &Settings) -> Result<Loaders, Error> {
        let Settings { size, batch_size, workers, seed } = *settings;
        let (augment, plain) = transforms(self.side, size);
        let val = self.val.unwrap_or_else(|| self.train.clone());
        let train = DataLoader::builder(self.train.transform(&augment)?)
            .batch_size(batch_size)
            .shuffle(seed)
            .workers(workers)
            .build()?;
        let val = DataLoader::builder(val.transform(&plain)?)
            .batch_size(batch_size)
            .workers(workers)
            .build()?;
        Ok(Loaders { train, val })
    }
}

/// How to load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) size: u32,
    pub(crate) batch_size: usize,
    pub(crate) workers: Workers,
    pub(crate) seed: u64,
}

/// Loaders of the training and the validation set.
pub(crate) struct Loaders {
    pub(crate) train: DataLoader<ImageDataset>,
    pub(crate) val: DataLoader<ImageDataset>,
}

/// One epoch of images, `[n, 3, size, size]`, and labels, `[n]`. Their storage is the memory that
/// the workers wrote.
pub(crate) fn tensors(
    loader: &DataLoader<ImageDataset>,
    epoch: u64,
    device: &Device,
) -> Result<impl Iterator<Item = Result<(Tensor<4>, Tensor<1, Int>), Error>>, Error> {
    Ok(loader.epoch(epoch)?.map(|batch| Ok(batch?.into_tensors(device)?)))
}

/// Transforms for training and for validation.
fn transforms(side: u32, size: u32) -> (Transform, Transform) {
    let tensor =
        |images: Transform| images.to(DType::F32, Layout::Nchw).then(ops::Normalize::imagenet());
    if side < THUMBNAIL {
        // As for CIFAR-10: keep all of the image, move it by an eighth.
        let resized = Transform::new().resize((size, size));
        let augment = resized
            .clone()
            .then(ops::RandomCrop::new(size).padding(size / 8))
            .random_horizontal_flip(0.5);
        (tensor(augment), tensor(resized))
    } else {
        // As for ImageNet, but with crops of 35% or more of the image rather than of 8% or more:
        // small networks and few epochs learn better from easier examples.
        let augment = Transform::new()
            .then(ops::RandomResizedCrop::new(size).scale(0.35, 1.0))
            .random_horizontal_flip(0.5);
        (tensor(augment), Transform::imagenet_eval(size))
    }
}

/// The median of the shorter sides of some images, spread over the folder.
fn typical_side(folder: &ImageFolder) -> Result<u32, Error> {
    let step = usize::try_from(folder.len().div_ceil(64))?;
    let mut sides = Vec::new();
    for sample in folder.samples().step_by(step) {
        let reader = ImageReader::open(sample?.to_path())?.with_guessed_format()?;
        // A file that can't be read is the loader's to report.
        if let Ok((width, height)) = reader.into_dimensions() {
            sides.push(width.min(height));
        }
    }
    sides.sort_unstable();
    let middle = sides.get(sides.len() / 2).copied();
    middle.ok_or_else(|| format!("{}: no readable image", folder.root().display()).into())
}
