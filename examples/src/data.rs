//! The training and the validation set as loaders of augmented batches.

use std::path::Path;

use image::ImageReader;
use loader_core::{
    DType, DataLoader, ImageDataset, ImageFolder, Layout, Shard, Transform, Workers, ops,
};

use crate::Error;
use crate::args::AutoAugment;
use crate::network::THUMBNAIL;

/// The smallest part of an image that a crop may be, as for ImageNet.
const USUAL_SCALE: f64 = 0.08;
/// The same for small data sets: small networks and few epochs learn better from easier examples.
const EASY_SCALE: f64 = 0.35;

/// The folders of a data set.
#[derive(Debug)]
pub struct Folders {
    /// The training images.
    pub train: ImageFolder,
    /// `None` where there is but one: then the training images are validated on.
    pub val: Option<ImageFolder>,
    /// Side length of a typical training image.
    side: u32,
}

impl Folders {
    /// Opens `train/` and `val/` or `test/` below `root`, with the classes of the former.
    ///
    /// # Errors
    /// Where a folder can't be opened or no training image can be read.
    pub fn open(root: &Path) -> Result<Self, Error> {
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
    pub fn default_size(&self) -> u32 {
        (self.side / 8 * 8).clamp(16, 64)
    }

    /// How small crops may be.
    pub fn default_min_scale(&self) -> f64 {
        if self.train.len() < 100_000 { EASY_SCALE } else { USUAL_SCALE }
    }

    /// Loaders of both sets.
    ///
    /// # Errors
    /// Where transform or loader refuse the settings.
    pub fn loaders(self, settings: &Settings) -> Result<Loaders, Error> {
        let Settings { batch_size, workers, seed, shards, .. } = *settings;
        let (augment, plain) = transforms(self.side, settings);
        let val = self.val.unwrap_or_else(|| self.train.clone());
        let mut train = DataLoader::builder(self.train.transform(&augment)?)
            .batch_size(batch_size)
            .shuffle(seed)
            .workers(workers);
        let mut val =
            DataLoader::builder(val.transform(&plain)?).batch_size(batch_size).workers(workers);
        if let Some((for_train, for_val)) = shards {
            (train, val) = (train.shard(for_train), val.shard(for_val));
        }
        Ok(Loaders { train: train.build()?, val: val.build()? })
    }
}

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Side length that images are brought to.
    pub size: u32,
    /// Smallest part of an image that a crop may be.
    pub min_scale: f64,
    /// Augmentation beside crop and flip.
    pub auto_augment: AutoAugment,
    /// Samples a batch.
    pub batch_size: usize,
    /// Who makes them.
    pub workers: Workers,
    /// Seed of order and augmentation.
    pub seed: u64,
    /// This process's part of the training and the validation set; all where there is none.
    pub shards: Option<(Shard, Shard)>,
}

/// Loaders of the training and the validation set.
#[derive(Debug)]
pub struct Loaders {
    /// Shuffled and augmented.
    pub train: DataLoader<ImageDataset>,
    /// In order, as they are.
    pub val: DataLoader<ImageDataset>,
}

/// Transforms for training and for validation, of images of that side.
fn transforms(side: u32, settings: &Settings) -> (Transform, Transform) {
    let Settings { size, min_scale, auto_augment, .. } = *settings;
    let tensor =
        |images: Transform| images.to(DType::F32, Layout::Nchw).then(ops::Normalize::imagenet());
    let augmented = |images: Transform| {
        let images = images.random_horizontal_flip(0.5);
        tensor(match auto_augment {
            AutoAugment::None => images,
            AutoAugment::RandAugment => images.then(ops::RandAugment::default()),
            AutoAugment::TrivialAugmentWide => images.then(ops::TrivialAugmentWide::default()),
        })
    };
    if side < THUMBNAIL {
        // As for CIFAR-10: keep all of the image, move it by an eighth.
        let resized = Transform::new().resize((size, size));
        let moved = resized.clone().then(ops::RandomCrop::new(size).padding(size / 8));
        (augmented(moved), tensor(resized))
    } else {
        let crop = ops::RandomResizedCrop::new(size).scale(min_scale, 1.0);
        (augmented(Transform::new().then(crop)), Transform::imagenet_eval(size))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn photographs_get_the_usual_transforms_of_imagenet() {
        let settings = Settings {
            size: 224,
            min_scale: USUAL_SCALE,
            auto_augment: AutoAugment::None,
            batch_size: 32,
            workers: Workers::default(),
            seed: 0,
            shards: None,
        };
        let usual = (Transform::imagenet_train(224), Transform::imagenet_eval(224));
        assert_eq!(transforms(400, &settings), usual);
        let with = Settings { auto_augment: AutoAugment::TrivialAugmentWide, ..settings };
        assert_eq!(transforms(400, &with).0.ops().len(), usual.0.ops().len() + 1);
    }
}
