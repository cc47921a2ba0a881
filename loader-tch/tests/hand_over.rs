//! What a training loop relies on: tensors that are the shared memory, for as long as it wants them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::sync::mpsc;
use std::thread;

use loader_core::{Batch, DataLoader};
use loader_tch::{BatchTensors, EpochError, EpochTensors, FieldTensor, TensorError, Upload};
use tch::{Device, Kind, Tensor};

use crate::common::{BATCH, Numbers, SIDE, loader_of};

const SAMPLES: u64 = 64;

fn loader() -> DataLoader<Numbers> {
    loader_of(Numbers { samples: SAMPLES, broken: None })
}

fn first(loader: &DataLoader<Numbers>) -> Batch {
    loader.epoch(0).unwrap().next().unwrap().unwrap()
}

fn slots_of(loader: &DataLoader<Numbers>, epoch: u64) -> HashSet<usize> {
    let address = |mut batch: Batch| batch.take("image").unwrap().as_ptr() as usize;
    loader.epoch(epoch).unwrap().map(|batch| address(batch.unwrap())).collect()
}

fn assert_whole(images: &Tensor, labels: &Tensor) {
    assert_eq!(images.size(), [BATCH as i64, SIDE as i64, SIDE as i64]);
    assert_eq!((images.kind(), labels.kind()), (Kind::Float, Kind::Int64));
    let expected = labels.to_kind(Kind::Float).view([-1, 1, 1]).expand_as(images);
    assert!(images.equal(&expected));
}

/// The name of the mapping that an address of this process lies in.
fn mapping_at(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let mut parts = line.split_ascii_whitespace();
        let (low, high) = parts.next()?.split_once('-')?;
        let low = usize::from_str_radix(low, 16).ok()?;
        let high = usize::from_str_radix(high, 16).ok()?;
        (low..high).contains(&address).then(|| parts.skip(4).collect::<Vec<_>>().join(" "))
    })
}

#[test]
fn tensors_point_into_the_segment() {
    let loader = loader();
    let mut batch = first(&loader);
    let lease = batch.take("image").unwrap();
    let address = lease.as_ptr() as usize;
    let images = lease.into_tensor().unwrap();
    assert_eq!(images.data_ptr() as usize, address);
    assert_eq!(address % 64, 0);
    let labels = batch.take_tensor("label").unwrap();
    for tensor in [&images, &labels] {
        let mapping = mapping_at(tensor.data_ptr() as usize).unwrap();
        assert!(mapping.starts_with("/memfd:"), "{mapping:?}");
    }
    assert_whole(&images, &labels);
}

#[test]
fn a_slot_returns_after_the_last_tensor_over_it() {
    let loader = loader();
    let (images, labels) = first(&loader).into_tensors().unwrap();
    let slot = images.data_ptr() as usize;
    let row = images.get(3);
    let weight = Tensor::ones([SIDE as i64, 1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let loss = images.matmul(&weight).sum(Kind::Float);
    let expected = f64::try_from(row.get(0).get(0)).unwrap();

    let mut last_epoch = 0;
    let mut assert_kept = |what: &str| {
        for epoch in last_epoch + 1..last_epoch + 4 {
            assert!(!slots_of(&loader, epoch).contains(&slot), "reused in spite of {what}");
        }
        last_epoch += 3;
    };
    assert_kept("the tensors");
    drop(images);
    assert_kept("the other field, a view and autograd");
    drop(labels);
    assert_kept("a view and autograd");
    loss.backward();
    drop(loss);
    assert_kept("a view");
    assert_eq!(row.mean(Kind::Float).double_value(&[]), expected);
    drop(row);
    assert!((100..120).any(|epoch| slots_of(&loader, epoch).contains(&slot)), "never came back");
}

#[test]
fn views_outlive_batch_epoch_and_loader() {
    let kept: Vec<(Tensor, Tensor)> = {
        let loader = loader();
        let pairs = loader.epoch(0).unwrap().tensors().take(3);
        pairs.map(|pair| pair.map(|(images, labels)| (images.get(5), labels)).unwrap()).collect()
    };
    for (image, labels) in kept {
        let label = labels.int64_value(&[5]);
        assert!(image.equal(&Tensor::full([SIDE as i64; 2], label, (Kind::Float, Device::Cpu))));
    }
}

#[test]
fn operations_in_place_touch_nobody_else() {
    let loader = loader();
    let mut epoch = loader.epoch(0).unwrap().tensors();
    let (mut changed, _) = epoch.next().unwrap().unwrap();
    let (images, labels) = epoch.next().unwrap().unwrap();
    let _ = changed.fill_(-1.0);
    assert_whole(&images, &labels);
    drop(changed);
    for pair in loader.epoch(1).unwrap().tensors() {
        let (mut images, labels) = pair.unwrap();
        assert_whole(&images, &labels);
        let _ = images.g_mul_scalar_(2.0);
    }
    for pair in loader.epoch(1).unwrap().tensors() {
        let (images, labels) = pair.unwrap();
        assert_whole(&images, &labels);
    }
}

#[test]
fn batches_are_consumed_on_another_thread() {
    let loader = loader();
    let (sender, receiver) = mpsc::sync_channel(1);
    let consumer = thread::spawn(move || {
        let mut seen = Vec::new();
        for (images, labels) in receiver {
            assert_whole(&images, &labels);
            seen.extend(Vec::<i64>::try_from(labels).unwrap());
        }
        seen
    });
    for pair in loader.epoch(0).unwrap().tensors() {
        sender.send(pair.unwrap()).unwrap();
    }
    drop(sender);
    let mut seen = consumer.join().unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..SAMPLES as i64));
}

#[test]
fn errors_are_values_of_the_iterator() {
    let loader = loader_of(Numbers { samples: SAMPLES, broken: Some(9) });
    let error = loader.epoch(0).unwrap().tensors().find_map(Result::err).unwrap();
    assert!(matches!(error, EpochError::Load(_)), "{error}");
    assert!(error.to_string().contains("broken on purpose"), "{error}");
}

#[test]
fn missing_fields_are_told() {
    let mut batch = first(&loader());
    assert!(matches!(batch.take_tensor("depth"), Err(TensorError::Field(_))));
    let _images = batch.take_tensor("image").unwrap();
    let error = batch.take_tensor("image").unwrap_err();
    assert!(error.to_string().contains("image"), "{error}");
}

#[test]
fn uploading_to_the_cpu_copies_nothing() {
    let loader = loader();
    let (images, labels) = first(&loader).into_tensors().unwrap();
    let at = [images.data_ptr(), labels.data_ptr()];
    let (images, rest) = (images, vec![labels]).upload(Device::Cpu).unwrap();
    assert_eq!([images.data_ptr(), rest[0].data_ptr()], at);
    for pair in loader.epoch(1).unwrap().tensors().upload(Device::Cpu) {
        let (images, labels) = pair.unwrap();
        assert_whole(&images, &labels);
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_of_the_iterator() {
    // Far above what any machine has.
    let nowhere = Device::Cuda(100);
    let error = loader().epoch(0).unwrap().tensors().upload(nowhere).find_map(Result::err).unwrap();
    assert!(matches!(error, EpochError::Tensor(TensorError::Torch { .. })), "{error}");
}

#[test]
fn an_error_of_the_callers_own_mapping_is_told_as_it_is() {
    let loader = loader();
    let mut epoch = loader
        .epoch(0)
        .unwrap()
        .tensors_by(|_| Err::<Tensor, _>(TensorError::other("no taste for it")));
    assert_eq!(epoch.next().unwrap().unwrap_err().to_string(), "no taste for it");
}

#[test]
fn a_struct_of_ones_own_is_mapped() {
    struct Named {
        pixels: Tensor,
        target: Tensor,
    }
    let loader = loader();
    let epoch = loader.epoch(0).unwrap().tensors_by(|mut batch| {
        Ok(Named { target: batch.take_tensor("label")?, pixels: batch.take_tensor("image")? })
    });
    for batch in epoch {
        let Named { pixels, target } = batch.unwrap();
        assert_whole(&pixels, &target);
    }
}
