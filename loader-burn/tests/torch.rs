//! On burn's LibTorch backend tensors are the loader's memory too.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(deprecated, reason = "burn gives the backend up some day, but has it")]

mod common;

use std::collections::HashSet;

use burn::backend::LibTorch;
use burn::tensor::{Device, Int, Tensor};
use loader_burn::{BatchTensors, EpochTensors, TensorError};
use loader_core::{Batch, DataLoader, Workers};

use crate::common::{Numbers, SIDE};

const BATCH: usize = 4;

fn loader() -> DataLoader<Numbers> {
    let loader = DataLoader::builder(Numbers { samples: 24 }).batch_size(BATCH);
    loader.workers(Workers::threads(2)).build().unwrap()
}

fn first(loader: &DataLoader<Numbers>) -> Batch {
    loader.epoch(0).unwrap().next().unwrap().unwrap()
}

fn slots_of(loader: &DataLoader<Numbers>, epoch: u64) -> HashSet<usize> {
    let address = |batch: Batch| batch.get::<f32>("image").unwrap().as_ptr() as usize;
    loader.epoch(epoch).unwrap().map(|batch| address(batch.unwrap())).collect()
}

fn at(images: &Tensor<4>) -> usize {
    images.clone().try_into_primitive::<LibTorch>().unwrap().tensor.data_ptr() as usize
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

#[test]
fn storage_is_the_slot_until_the_last_view_is_gone() {
    let (loader, device) = (loader(), Device::libtorch());
    let batch = first(&loader);
    let slot = batch.get::<f32>("image").unwrap().as_ptr() as usize;
    let (images, labels) = batch.into_tensors(&device).unwrap();
    assert_eq!(at(&images), slot);
    assert_eq!(images.dims(), [BATCH, 3, SIDE, SIDE]);
    assert_eq!(labels.into_data().try_into_vec::<i64>().unwrap(), [0, 1, 2, 3]);
    let view = images.clone().narrow(0, 2, 1);
    drop(images);
    for epoch in 1..4 {
        assert!(!slots_of(&loader, epoch).contains(&slot), "reused in spite of a view");
    }
    assert_eq!(values(view.clone()), [2.0; 3 * SIDE * SIDE]);
    drop(view);
    assert!((10..30).any(|epoch| slots_of(&loader, epoch).contains(&slot)), "never came back");
}

#[test]
fn tensors_outlive_the_loader_and_change_no_other() {
    let device = Device::libtorch();
    let (images, labels) = {
        let loader = loader();
        let pair = loader.epoch(0).unwrap().tensors(&device).nth(1).unwrap();
        pair.unwrap()
    };
    let kept = images.clone();
    let zero = images.mul_scalar(0.0);
    assert_eq!(values(zero.sum()), [0.0]);
    let expected = (4 + 5 + 6 + 7) * 3 * SIDE * SIDE;
    assert_eq!(values(kept.sum()), [expected as f32]);
    assert_eq!(labels.sum().into_scalar::<i64>(), 4 + 5 + 6 + 7);
}

#[test]
fn gradients_flow_through_images_in_the_slot() {
    for device in
        [Device::libtorch().autodiff(), Device::libtorch().autodiff().gradient_checkpointing()]
    {
        let batch = first(&loader());
        let slot = batch.get::<f32>("image").unwrap().as_ptr() as usize;
        let (images, labels): (Tensor<4>, Tensor<1, Int>) = batch.into_tensors(&device).unwrap();
        assert_eq!(at(&images.clone().inner()), slot);
        assert_eq!((images.device(), labels.device()), (device.clone(), device.clone()));
        let weight = Tensor::<4>::ones([1, 3, SIDE, SIDE], &device).require_grad();
        let gradient = weight.grad(&(images * weight.clone()).sum().backward()).unwrap();
        assert_eq!(values(gradient), [6.0; 3 * SIDE * SIDE]);
    }
}

#[test]
fn what_the_backend_does_not_hold_is_refused() {
    let mut batch = first(&loader());
    let wrong = batch.take_tensor::<2, Int>("image", &Device::libtorch()).unwrap_err();
    assert!(matches!(wrong, TensorError::Rank { .. }), "{wrong}");
    let wrong = batch.take_tensor::<4, Int>("image", &Device::libtorch()).unwrap_err();
    assert!(matches!(wrong, TensorError::Kind { .. }), "{wrong}");
}
