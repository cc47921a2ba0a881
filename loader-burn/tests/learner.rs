//! A loader in the place of burn's own: what `burn-train` may rely on, and a training by it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;

use burn::data::dataloader::split::split_dataloader;
use burn::data::dataloader::{DataLoader as BurnsLoader, Progress};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::optim::lr_scheduler::constant::ConstantLr;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::logger::InMemoryMetricLogger;
use burn::train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, LearningResult,
    MultiDeviceOptim, SupervisedTraining, TrainOutput, TrainStep, TrainingError,
};
use loader_burn::{BatchTensors, BurnLoader, TensorError};
use loader_core::{
    Batch, DType, DataLoader, DataLoaderBuilder, ImageDataset, Layout, Transform, Workers,
};

use crate::common::{Folder, Numbers};

const SAMPLES: usize = 45;

fn settings() -> DataLoaderBuilder<Numbers> {
    let numbers = Numbers { samples: SAMPLES as u64 };
    DataLoader::builder(numbers).batch_size(4).shuffle(5).workers(Workers::threads(2))
}

/// A struct of one's own, as a burn `Batcher` makes it.
struct Labelled {
    labels: Tensor<1, Int>,
}

impl Labelled {
    fn of(mut batch: Batch, device: &Device) -> Result<Self, TensorError> {
        Ok(Self { labels: batch.take_tensor("label", device)? })
    }
}

fn loader() -> BurnLoader<Numbers, Labelled> {
    BurnLoader::new(settings(), &Device::flex(), Labelled::of).unwrap()
}

fn ints(batch: Labelled) -> Vec<i64> {
    batch.labels.into_data().try_into_vec().unwrap()
}

fn epoch(loader: &dyn BurnsLoader<Labelled>) -> Vec<Vec<i64>> {
    loader.iter().map(|batch| ints(batch.unwrap())).collect()
}

/// What the loader of `loader-core` gives.
fn expected(number: u64) -> Vec<Vec<i64>> {
    let loader = settings().build().unwrap();
    let batches = loader.epoch(number).unwrap();
    batches.map(|batch| batch.unwrap().get("label").unwrap().to_vec()).collect()
}

#[test]
fn each_iterator_is_the_next_epoch() {
    let loader = loader();
    let epochs: Vec<_> = (0..3).map(|_| epoch(&loader)).collect();
    assert_eq!(epochs, [0, 1, 2].map(expected));
    assert_ne!(epochs[0], epochs[1]);
    assert_eq!(epoch(&loader.from_epoch(7)), expected(7));
}

#[test]
fn validation_repeats_one_epoch() {
    let loader = loader().repeating(3);
    assert_eq!([epoch(&loader), epoch(&loader)], [expected(3), expected(3)]);
}

#[test]
fn loaders_for_other_devices_go_on_with_the_same_epochs() {
    let loader = loader();
    let device = Device::flex().autodiff();
    let other = loader.to_device(&device);
    assert_eq!(epoch(&loader), expected(0));
    assert_eq!(epoch(&*other), expected(1));
    assert_eq!(loader.state().epoch(), 1);
    let batch = other.iter().next().unwrap().unwrap();
    assert_eq!(batch.labels.device(), device);
}

#[test]
fn progress_is_in_samples_and_ends_at_their_number() {
    let loader = loader();
    assert_eq!(loader.num_items(), SAMPLES);
    let mut batches = loader.iter();
    let mut seen = Vec::new();
    while batches.next().transpose().unwrap().is_some() {
        let Progress { items_processed, items_total, .. } = batches.progress();
        assert_eq!(items_total, SAMPLES);
        seen.push(items_processed);
    }
    assert_eq!(seen, [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 45]);
    assert!(batches.progress().is_completed());
}

#[test]
fn parts_for_several_devices_give_one_epoch_together_and_other_samples_in_the_next() {
    let devices = [Device::flex(), Device::flex().autodiff()];
    let parts = split_dataloader::<Labelled>(Arc::new(loader()), &devices);
    assert_eq!(parts.iter().map(|part| part.num_items()).collect::<Vec<_>>(), [22, 23]);
    let epochs = [(); 2].map(|()| {
        // At once, as a learner of several devices iterates them.
        let mut iterators: Vec<_> = parts.iter().map(|part| part.iter()).collect();
        let mut labels = vec![Vec::new(); 2];
        for round in 0..6 {
            for (part, iterator) in iterators.iter_mut().enumerate() {
                let batch = iterator.next().unwrap().unwrap();
                assert_eq!(batch.labels.device(), devices[part], "round {round}");
                labels[part].extend(ints(batch));
            }
        }
        assert!(iterators.iter_mut().all(|iterator| iterator.next().is_none()));
        labels
    });
    for (labels, number) in epochs.iter().zip([0, 1]) {
        assert_eq!(labels.concat(), expected(number).concat());
    }
    let first = |epoch: &[Vec<i64>]| epoch[0].iter().copied().collect::<HashSet<_>>();
    assert_ne!(first(&epochs[0]), first(&epochs[1]));
}

#[test]
fn a_resumed_loader_goes_on_amid_the_epoch() {
    let loader = loader().from_epoch(2);
    let mut batches = loader.iter();
    batches.by_ref().take(5).for_each(|batch| drop(batch.unwrap()));
    let state = loader.state();
    drop(batches);

    let resumed = self::loader().resume(&state).unwrap();
    let mut batches = resumed.iter();
    assert_eq!(ints(batches.next().unwrap().unwrap()), expected(2)[5]);
    assert_eq!(batches.progress().items_processed, 24);
    let rest: Vec<_> = batches.by_ref().map(|batch| ints(batch.unwrap())).collect();
    assert_eq!(rest, expected(2)[6..]);
    assert!(batches.progress().is_completed());
    drop(batches);
    assert_eq!(epoch(&resumed), expected(3));

    // A state from between two epochs goes on with the next one.
    let resumed = self::loader().resume(&resumed.state()).unwrap();
    assert_eq!(epoch(&resumed), expected(4));
    let other = BurnLoader::new(settings().seed(6), &Device::flex(), Labelled::of).unwrap();
    assert!(other.resume(&state).unwrap_err().to_string().contains("seed"));
}

#[test]
fn what_goes_wrong_is_an_item() {
    let device = Device::flex();
    let picky = |_: Batch, _: &Device| Err::<Labelled, _>(TensorError::other("no taste for it"));
    let loader = BurnLoader::new(settings(), &device, picky).unwrap();
    let error = loader.iter().next().unwrap().err().unwrap();
    assert_eq!(error.to_string(), "no taste for it");

    let loader = self::loader();
    let mut first = loader.iter();
    assert_eq!(ints(first.next().unwrap().unwrap()), expected(0)[0]);
    assert_eq!(epoch(&loader), expected(1));
    let error = first.find_map(Result::err).unwrap();
    assert!(error.to_string().contains("started another epoch"), "{error}");

    let beyond = loader.slice(40, 50).to_device(&device);
    assert_eq!(beyond.num_items(), 10);
    for _ in 0..2 {
        let mut batches = beyond.iter();
        let error = batches.next().unwrap().err().unwrap();
        assert!(error.to_string().contains("40..50 of an epoch of 45"), "{error}");
        assert!(batches.next().is_none());
    }
}

/// Tells bright images from dark ones.
#[derive(Module, Debug)]
struct Judge {
    linear: Linear,
}

struct Images {
    images: Tensor<4>,
    targets: Tensor<1, Int>,
}

impl Images {
    fn of(batch: Batch, device: &Device) -> Result<Self, TensorError> {
        let (images, targets) = batch.into_tensors(device)?;
        Ok(Self { images, targets })
    }
}

impl Judge {
    fn new(device: &Device) -> Self {
        let pixels = 3 * common::SIDE * common::SIDE;
        Self { linear: LinearConfig::new(pixels, 2).init(device) }
    }

    fn judge(&self, batch: Images) -> ClassificationOutput {
        let output = self.linear.forward(batch.images.flatten(1, 3));
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        let loss = loss.forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Judge {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, batch: Images) -> TrainOutput<ClassificationOutput> {
        let output = self.judge(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Judge {
    type Input = Images;
    type Output = ClassificationOutput;

    fn step(&self, batch: Images) -> ClassificationOutput {
        self.judge(batch)
    }
}

const EPOCHS: usize = 4;

fn images(folder: &Folder) -> DataLoaderBuilder<ImageDataset> {
    let crop = Transform::new().center_crop(common::SIDE as u32);
    let transform = crop.to(DType::F32, Layout::Nchw).normalize([0.5; 3], [0.5; 3]);
    let data = folder.open().transform(&transform).unwrap();
    DataLoader::builder(data).batch_size(8).workers(Workers::threads(2))
}

type ImagesLoader = Arc<BurnLoader<ImageDataset, Images>>;

fn train(
    folder: &Folder,
    strategy: ExecutionStrategy,
) -> (ImagesLoader, ImagesLoader, LearningResult<Judge>) {
    let device = Device::flex();
    let train = BurnLoader::new(images(folder).shuffle(1), &device, Images::of).unwrap();
    let valid = BurnLoader::new(images(folder), &device, Images::of).unwrap().repeating(0);
    let (train, valid) = (Arc::new(train), Arc::new(valid));
    let artifacts = tempfile::tempdir().unwrap();
    let training = SupervisedTraining::new(artifacts.path(), train.clone(), valid.clone());
    let model = Judge::new(&device.autodiff());
    let learner = Learner::new(model, SgdConfig::new().init(), ConstantLr::new(0.02));
    let result = training
        .num_epochs(EPOCHS)
        .with_training_strategy(strategy.into())
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .launch(learner);
    (train, valid, result)
}

/// Whether the model tells all of them right.
fn all_right(model: &Judge, loader: &ImagesLoader) -> bool {
    loader.iter().all(|batch| {
        let ClassificationOutput { output, targets, .. } = model.judge(batch.unwrap());
        let of = |data: TensorData| data.try_into_vec_as::<i64>().unwrap();
        of(output.argmax(1).into_data()) == of(targets.into_data())
    })
}

#[test]
fn the_learner_of_burn_train_trains_with_it() {
    let folder = Folder::of_bright_and_dark(24);
    let device = Device::flex().autodiff();
    let (train, valid, result) = train(&folder, ExecutionStrategy::SingleDevice(device));
    assert!(result.error.is_none(), "{:?}", result.error);
    let state = train.state();
    assert_eq!((state.epoch(), state.is_complete()), (EPOCHS as u64 - 1, true));
    assert_eq!(valid.state().epoch(), 0);
    assert!(all_right(&result.model, &valid));
}

#[test]
fn the_learner_trains_on_several_devices_with_it() {
    let folder = Folder::of_bright_and_dark(24);
    let devices = vec![Device::flex().autodiff(), Device::flex().autodiff()];
    let strategy = ExecutionStrategy::MultiDevice(devices, MultiDeviceOptim::OptimMainDevice);
    let (_, valid, result) = train(&folder, strategy);
    assert!(result.error.is_none(), "{:?}", result.error);
    assert!(all_right(&result.model, &valid));
}

#[test]
fn a_broken_file_ends_the_training_with_its_path() {
    let folder = Folder::of_bright_and_dark(24);
    let broken = folder.write("dark/00 broken.png", b"\x89PNG\r\n\x1a\n and no more");
    let device = Device::flex().autodiff();
    let (.., result) = train(&folder, ExecutionStrategy::SingleDevice(device));
    let Some(TrainingError::Dataset(error)) = result.error.as_deref() else {
        panic!("{:?}", result.error)
    };
    assert!(error.to_string().contains(broken.to_str().unwrap()), "{error}");
}
