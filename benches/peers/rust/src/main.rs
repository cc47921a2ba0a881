//! How many images a second Rust's other loaders deliver: the same files, transforms and batches as
//! `throughput` (benches/src/bin/throughput.rs).
//!
//!     rust-peers --root DIR --task train|eval --peer burn|dataloader-rs|ai-dataloader|tch
//!         [--workers 2] [--batch-size 128] [--epochs 3]
//!
//! None of them comes with these transforms, so they are written here as their users write them, with the
//! crate `image`. tch's is its own `load_image_and_resize224` in a loop: it has no workers, and its resize
//! keeps the aspect ratio and cuts the middle out. Prints what peers/throughput.py prints.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::transform::{Mapper, MapperDataset};
use burn::data::dataset::vision::{Annotation, ImageDatasetItem, ImageFolderDataset, PixelData};
use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::{Parser, ValueEnum};
use image::RgbImage;
use image::imageops::{self, FilterType};
use rand::RngExt;

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
const SIZE: u32 = 224;
const ELEMENTS: usize = 3 * (SIZE * SIZE) as usize;

#[derive(Clone, Copy, ValueEnum)]
enum Task {
    Train,
    Eval,
}

#[derive(Clone, Copy, ValueEnum)]
enum Peer {
    Burn,
    DataloaderRs,
    AiDataloader,
    Tch,
}

#[derive(Parser)]
struct Args {
    /// A folder of class folders with JPEG files
    #[arg(long)]
    root: PathBuf,
    #[arg(long, default_value = "train")]
    task: Task,
    #[arg(long)]
    peer: Peer,
    #[arg(long, default_value_t = 2)]
    workers: usize,
    #[arg(long, default_value_t = 128)]
    batch_size: usize,
    #[arg(long, default_value_t = 3)]
    epochs: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// An image as a tensor `[3, 224, 224]`, and its class.
type Sample = (Vec<f32>, i64);

fn main() -> Result<(), Error> {
    let args = Args::parse();
    let samples = samples(&args.root)?;
    let mut epoch: Box<dyn FnMut() -> Result<usize, Error>> = match args.peer {
        Peer::Burn => burn(&args, &samples)?,
        Peer::DataloaderRs => dataloader_rs(&args, samples),
        Peer::AiDataloader => ai_dataloader(&args, samples),
        Peer::Tch => tch(&args, samples)?,
    };
    let mut rates = Vec::new();
    for _ in 0..=args.epochs {
        let begun = Instant::now();
        let images = epoch()?;
        rates.push(images as f64 / begun.elapsed().as_secs_f64());
    }
    let name = |value: &dyn Fn() -> Option<String>| value().unwrap_or_default();
    println!(
        "{}",
        serde_json::json!({
            "peer": name(&|| Some(args.peer.to_possible_value()?.get_name().to_owned())),
            "task": name(&|| Some(args.task.to_possible_value()?.get_name().to_owned())),
            "first": rates[0],
            "images_per_second": rates[1..],
        })
    );
    Ok(())
}

/// All files with their classes, in order.
fn samples(root: &Path) -> io::Result<Vec<(PathBuf, i64)>> {
    let sorted = |folder: &Path| {
        let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
        let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
        entries.sort();
        Ok::<_, io::Error>(entries)
    };
    let mut samples = Vec::new();
    for (class, folder) in (0..).zip(sorted(root)?) {
        samples.extend(sorted(&folder)?.into_iter().map(|file| (file, class)));
    }
    Ok(samples)
}

fn read(path: &Path) -> Result<RgbImage, Error> {
    Ok(image::ImageReader::open(path)?.with_guessed_format()?.decode()?.into_rgb8())
}

/// torchvision's RandomResizedCrop and RandomHorizontalFlip, or Resize and CenterCrop; normalised.
fn transform(image: &RgbImage, task: Task) -> Vec<f32> {
    let (width, height) = image.dimensions();
    let pixels = match task {
        Task::Train => {
            let mut rng = rand::rng();
            let (x, y, w, h) = random_crop(&mut rng, width, height);
            let crop = imageops::crop_imm(image, x, y, w, h);
            let mut pixels = imageops::resize(&*crop, SIZE, SIZE, FilterType::Triangle);
            if rng.random() {
                imageops::flip_horizontal_in_place(&mut pixels);
            }
            pixels
        }
        Task::Eval => {
            let short = width.min(height);
            let (w, h) = (256 * width / short, 256 * height / short);
            let resized = imageops::resize(image, w, h, FilterType::Triangle);
            imageops::crop_imm(&resized, (w - SIZE) / 2, (h - SIZE) / 2, SIZE, SIZE).to_image()
        }
    };
    let mut out = vec![0.0; ELEMENTS];
    for (channel, plane) in out.chunks_exact_mut(ELEMENTS / 3).enumerate() {
        let (scale, shift) = (1.0 / (255.0 * STD[channel]), MEAN[channel] / STD[channel]);
        for (value, pixel) in plane.iter_mut().zip(pixels.pixels()) {
            *value = f32::from(pixel[channel]) * scale - shift;
        }
    }
    out
}

fn random_crop(rng: &mut impl RngExt, width: u32, height: u32) -> (u32, u32, u32, u32) {
    for _ in 0..10 {
        let area = f64::from(width * height) * rng.random_range(0.08..1.0);
        let ratio = rng.random_range((3f64 / 4.0).ln()..(4f64 / 3.0).ln()).exp();
        let (w, h) = ((area * ratio).sqrt().round() as u32, (area / ratio).sqrt().round() as u32);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let (x, y) = (rng.random_range(0..=width - w), rng.random_range(0..=height - h));
            return (x, y, w, h);
        }
    }
    let side = width.min(height);
    ((width - side) / 2, (height - side) / 2, side, side)
}

fn stack(samples: Vec<Sample>) -> (Vec<f32>, Vec<i64>) {
    let mut images = Vec::with_capacity(samples.len() * ELEMENTS);
    let labels = samples.iter().map(|(_, label)| *label).collect();
    samples.iter().for_each(|(image, _)| images.extend_from_slice(image));
    (images, labels)
}

type Epoch = Box<dyn FnMut() -> Result<usize, Error>>;

/// burn's ImageFolderDataset, a mapper and its DataLoader.
fn burn(args: &Args, samples: &[(PathBuf, i64)]) -> Result<Epoch, Error> {
    struct Load {
        task: Task,
    }

    impl Mapper<ImageDatasetItem, Sample> for Load {
        fn map(&self, item: &ImageDatasetItem) -> Sample {
            let PixelData::U8(pixels) = &item.image else { panic!("{}: 16 bits", item.image_path) };
            let (w, h) = (item.image_width as u32, item.image_height as u32);
            let rgb = if pixels.len() == 3 * (w * h) as usize {
                pixels.clone()
            } else {
                pixels.iter().flat_map(|&gray| [gray; 3]).collect()
            };
            let Annotation::Label(label) = item.annotation else { panic!("no label") };
            let image = RgbImage::from_raw(w, h, rgb).expect("as many pixels as it says");
            (transform(&image, self.task), label as i64)
        }
    }

    struct Stack;

    impl Batcher<Sample, (Tensor<4>, Tensor<1, Int>)> for Stack {
        fn batch(&self, items: Vec<Sample>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
            let (images, labels) = stack(items);
            let (n, side) = (labels.len(), SIZE as usize);
            let images = TensorData::new(images, [n, 3, side, side]);
            (
                Tensor::from_data(images, device),
                Tensor::from_data(TensorData::new(labels, [n]), device),
            )
        }
    }

    // It does not find files that end in .JPEG, so it gets them under other names.
    let links = tempfile::tempdir()?;
    for (file, class) in samples {
        let folder = links.path().join(format!("{class:04}"));
        fs::create_dir_all(&folder)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        std::os::unix::fs::symlink(file.canonicalize()?, folder.join(format!("{name}.jpg")))?;
    }
    let folder = ImageFolderDataset::new_classification(links.path())?;
    let loader = DataLoaderBuilder::new(Stack)
        .batch_size(args.batch_size)
        .shuffle(0)
        .num_workers(args.workers)
        .set_device(Device::flex())
        .build(MapperDataset::new(folder, Load { task: args.task }));
    Ok(Box::new(move || {
        let _kept = &links;
        let mut images = 0;
        for batch in loader.iter() {
            images += batch?.0.dims()[0];
        }
        Ok(images)
    }))
}

struct Files {
    samples: Vec<(PathBuf, i64)>,
    task: Task,
}

impl Files {
    fn sample(&self, index: usize) -> Result<Sample, Error> {
        let (path, label) = &self.samples[index];
        Ok((transform(&read(path)?, self.task), *label))
    }
}

impl dataloader_rs::Dataset for Files {
    type Item = Sample;

    fn get(&self, index: usize) -> dataloader_rs::error::Result<Sample> {
        self.sample(index).map_err(|e| io::Error::other(e.to_string()).into())
    }

    fn len(&self) -> usize {
        self.samples.len()
    }
}

struct Stacked;

impl dataloader_rs::Collator<Sample> for Stacked {
    type Batch = (Vec<f32>, Vec<i64>);

    fn collate(&self, items: Vec<Sample>) -> dataloader_rs::error::Result<Self::Batch> {
        Ok(stack(items))
    }
}

fn dataloader_rs(args: &Args, samples: Vec<(PathBuf, i64)>) -> Epoch {
    let mut loader = dataloader_rs::DataLoader::builder(Files { samples, task: args.task })
        .batch_size(args.batch_size)
        .sampler(dataloader_rs::RandomSampler::new(0))
        .collator(Stacked)
        .num_workers(args.workers)
        .build();
    Box::new(move || {
        let mut images = 0;
        for batch in &mut loader {
            images += batch?.1.len();
        }
        Ok(images)
    })
}

impl ai_dataloader::Len for Files {
    fn len(&self) -> usize {
        self.samples.len()
    }
}

impl ai_dataloader::GetSample for Files {
    type Sample = Sample;

    fn get_sample(&self, index: usize) -> Sample {
        self.sample(index).expect("it has no errors")
    }
}

impl ai_dataloader::Dataset for Files {}

fn ai_dataloader(args: &Args, samples: Vec<(PathBuf, i64)>) -> Epoch {
    let loader = ai_dataloader::indexable::DataLoader::builder(Files { samples, task: args.task })
        .batch_size(args.batch_size)
        .shuffle()
        .num_threads(args.workers)
        .collate_fn(stack)
        .build();
    Box::new(move || Ok(loader.iter().map(|(_, labels)| labels.len()).sum()))
}

#[cfg(feature = "tch")]
fn tch(args: &Args, samples: Vec<(PathBuf, i64)>) -> Result<Epoch, Error> {
    if matches!(args.task, Task::Train) {
        return Err("tch has no random crop".into());
    }
    let batch_size = args.batch_size;
    Ok(Box::new(move || {
        let mut images = 0;
        for batch in samples.chunks(batch_size) {
            let read =
                |(path, _): &(PathBuf, i64)| tch::vision::imagenet::load_image_and_resize224(path);
            let batch = batch.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            images += tch::Tensor::f_stack(&batch, 0)?.size()[0] as usize;
        }
        Ok(images)
    }))
}

#[cfg(not(feature = "tch"))]
fn tch(_: &Args, _: Vec<(PathBuf, i64)>) -> Result<Epoch, Error> {
    Err("built without the feature tch".into())
}
