//! Tensors are the loader's memory, hold its slot, and never change one another.

#![allow(clippy::unwrap_used)]

use std::ops::Range;

use burn::tensor::{DType, Device, Float, Int, Tensor};
use half::{bf16, f16};
use loader_burn::{BatchTensors, TensorError};
use loader_core::{
    Batch, BuildError, DataLoader, Dataset, Field, FieldError, Fingerprint, LoadError, Sample,
    SampleError, SampleWriter, Workers,
};

const SAMPLES: u64 = 24;
const BATCH: usize = 4;

/// A field of every element type; each element tells the sample and its place in it.
struct Numbers;

impl Dataset for Numbers {
    type Scratch = ();

    fn len(&self) -> u64 {
        SAMPLES
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("image", loader_core::DType::F32, [3, 2, 5]),
            Field::new("label", loader_core::DType::I64, []),
            Field::new("mask", loader_core::DType::U8, [7]),
            Field::new("half", loader_core::DType::F16, [2, 2]),
            Field::new("brain", loader_core::DType::BF16, [3]),
        ]
    }

    fn load(
        &self,
        sample: &Sample,
        _: &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        let value = |at: usize| number(sample.index, at) as f32;
        out.field::<f32>(0)?.iter_mut().enumerate().for_each(|(at, v)| *v = value(at));
        out.field::<i64>(1)?[0] = number(sample.index, 0);
        out.field::<u8>(2)?.iter_mut().enumerate().for_each(|(at, v)| *v = value(at) as u8);
        let halves = out.field::<f16>(3)?.iter_mut().enumerate();
        halves.for_each(|(at, v)| *v = f16::from_f32(value(at)));
        let brains = out.field::<bf16>(4)?.iter_mut().enumerate();
        brains.for_each(|(at, v)| *v = bf16::from_f32(value(at)));
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"numbers")
    }
}

/// Small enough to be exact in every element type.
fn number(index: u64, at: usize) -> i64 {
    (index as i64 * 5 + at as i64) % 120
}

fn numbers(indices: Range<u64>, per_sample: usize) -> Vec<i64> {
    indices.flat_map(|index| (0..per_sample).map(move |at| number(index, at))).collect()
}

/// A loader that has memory for two batches and makes one ahead.
fn loader() -> DataLoader<Numbers> {
    let budget = |bytes| {
        let loader = DataLoader::builder(Numbers).batch_size(BATCH).prefetch(1);
        loader.workers(Workers::threads(2)).memory_budget(bytes).build()
    };
    let Err(BuildError::Budget { batch_bytes, .. }) = budget(0) else {
        panic!("no batch fits in nothing")
    };
    budget(2 * batch_bytes).unwrap()
}

fn first_batch() -> Batch {
    loader().epoch(0).unwrap().next().unwrap().unwrap()
}

/// The backend that computes in the host's memory, with and without autodiff.
fn devices() -> Vec<Device> {
    vec![Device::flex(), Device::flex().autodiff()]
}

/// The address ranges in this process at which arenas are mapped.
fn segments() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let arenas = maps.lines().filter(|line| line.contains("memfd:loader-batches"));
    let hex = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
    let range = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        hex(from)..hex(to)
    };
    arenas.map(range).collect()
}

fn in_a_segment<T>(address: *const T) -> bool {
    segments().iter().any(|range| range.contains(&(address as usize)))
}

/// Where the only handle to a tensor has its storage. Copies where it is not the only one.
fn floats_at<const D: usize>(tensor: Tensor<D>) -> *const u8 {
    tensor.inner().into_data().as_bytes().as_ptr()
}

#[test]
fn storage_lies_in_the_segment() {
    for device in devices() {
        let (mut batch, segment) = (first_batch(), segments());
        assert!(!segment.is_empty());
        let at: [*const u8; 2] = [
            batch.get::<f32>("image").unwrap().as_ptr().cast(),
            batch.get::<i64>("label").unwrap().as_ptr().cast(),
        ];
        assert!(at.iter().all(|&at| in_a_segment(at)));

        // The data that comes out of the tensors is what went in, not a copy of it: it is held
        // while its address is compared.
        let images: Tensor<4> = batch.take_tensor("image", &device).unwrap();
        let labels: Tensor<1, Int> = batch.take_tensor("label", &device).unwrap();
        let images = images.inner().into_data();
        let labels = labels.inner().into_data();
        assert_eq!([images.as_bytes().as_ptr(), labels.as_bytes().as_ptr()], at, "{device:?}");
        assert!(in_a_segment(images.as_bytes().as_ptr()));
    }
}

#[test]
fn contents_shapes_and_element_types_are_kept() {
    for device in devices() {
        let mut batch = first_batch();
        let image: Tensor<4> = batch.take_tensor("image", &device).unwrap();
        let label: Tensor<1, Int> = batch.take_tensor("label", &device).unwrap();
        let mask: Tensor<2, Int> = batch.take_tensor("mask", &device).unwrap();
        assert_eq!(image.dims(), [BATCH, 3, 2, 5]);
        assert_eq!(label.dims(), [BATCH]);
        assert_eq!(mask.dims(), [BATCH, 7]);
        assert_eq!(
            [image.dtype(), label.dtype(), mask.dtype()],
            [DType::F32, DType::I64, DType::U8]
        );

        let image: Vec<f32> = image.into_data().try_into_vec().unwrap();
        let image: Vec<i64> = image.into_iter().map(|v| v as i64).collect();
        let mask: Vec<u8> = mask.into_data().try_into_vec().unwrap();
        let mask: Vec<i64> = mask.into_iter().map(i64::from).collect();
        assert_eq!(image, numbers(0..4, 30), "{device:?}");
        assert_eq!(label.into_data().try_into_vec::<i64>().unwrap(), numbers(0..4, 1));
        assert_eq!(mask, numbers(0..4, 7));
    }
}

#[test]
fn half_precision_is_kept() {
    let device = Device::flex();
    let mut batch = first_batch();
    let half: Tensor<3> = batch.take_tensor("half", &device).unwrap();
    let brain: Tensor<2> = batch.take_tensor("brain", &device).unwrap();
    assert_eq!([half.dtype(), brain.dtype()], [DType::F16, DType::BF16]);
    let half: Vec<f16> = half.into_data().try_into_vec().unwrap();
    let brain: Vec<bf16> = brain.into_data().try_into_vec().unwrap();
    assert_eq!(half, numbers(0..4, 4).iter().map(|&v| f16::from_f32(v as f32)).collect::<Vec<_>>());
    assert_eq!(
        brain,
        numbers(0..4, 3).iter().map(|&v| bf16::from_f32(v as f32)).collect::<Vec<_>>()
    );
}

#[test]
fn a_slot_comes_back_with_the_last_clone_or_view() {
    for device in devices() {
        let loader = loader();
        let mut epoch = loader.epoch(0).unwrap();
        let first = epoch.next().unwrap().unwrap();
        let slot = first.get::<f32>("image").unwrap().as_ptr();
        let (images, labels) = first.into_tensors(&device).unwrap();
        let _second = epoch.next().unwrap().unwrap();

        let mut refused = |why: &str| {
            let next = epoch.next().unwrap();
            assert!(
                matches!(next, Err(LoadError::BatchesHeld { held: 2, .. })),
                "{device:?}, {why}"
            );
        };
        refused("both tensors are there");
        let clone = images.clone();
        drop(images);
        refused("a clone of one is left, and the other");
        drop(labels);
        let view = clone.clone().reshape([BATCH * 3, 10]).narrow(0, 2, 1);
        drop(clone);
        refused("a view is left");
        assert_eq!(
            view.clone().into_data().try_to_vec_as::<i64>().unwrap(),
            numbers(0..1, 30)[20..]
        );
        drop(view);

        let third = epoch.next().unwrap().unwrap();
        assert_eq!(third.get::<f32>("image").unwrap().as_ptr(), slot, "{device:?}");
        assert_eq!(third.get::<i64>("label").unwrap(), numbers(8..12, 1));
    }
}

#[test]
fn changing_a_tensor_changes_no_other() {
    for device in devices() {
        let mut batch = first_batch();
        let images: Tensor<4> = batch.take_tensor("image", &device).unwrap();
        let labels: Tensor<1, Int> = batch.take_tensor("label", &device).unwrap();
        let (clone, view) = (images.clone(), images.clone().narrow(0, 1, 2));

        // burn reuses memory that a tensor has for itself; here it is shared.
        let images = images.mul_scalar(0.0);
        let labels = labels.mul_scalar(0);
        let as_ints = |tensor: Tensor<4>| tensor.into_data().try_into_vec_as::<i64>().unwrap();
        assert_eq!(as_ints(images), [0; 120]);
        assert_eq!(labels.into_data().try_into_vec_as::<i64>().unwrap(), [0; 4]);
        assert_eq!(as_ints(view), numbers(1..3, 30), "{device:?}");
        // The last handle may be changed in place, and is the only one that sees it.
        let filled = clone.clone().slice_assign([0..1, 0..3], Tensor::ones([1, 3, 2, 5], &device));
        assert_eq!(as_ints(clone), numbers(0..4, 30), "{device:?}");
        assert_eq!(as_ints(filled)[..31], [[1; 30].as_slice(), &[number(1, 0)]].concat());
        assert_eq!(batch.get::<u8>("mask").unwrap()[..7], [0, 1, 2, 3, 4, 5, 6]);
    }
}

#[test]
fn tensors_outlive_the_loader_and_its_threads() {
    for device in devices() {
        let loader = loader();
        let (images, labels) =
            loader.epoch(0).unwrap().next().unwrap().unwrap().into_tensors(&device).unwrap();
        drop(loader);
        let there = std::thread::spawn(move || (images.sum(), labels.sum())).join().unwrap();
        let (images, labels) = (there.0.into_scalar::<f32>(), there.1.into_scalar::<i64>());
        assert_eq!(images as i64, numbers(0..4, 30).iter().sum::<i64>());
        assert_eq!(labels, numbers(0..4, 1).iter().sum::<i64>());
    }
}

#[test]
fn gradients_flow_through_images_in_the_slot() {
    for device in devices().into_iter().filter(Device::is_autodiff) {
        let (images, _) = first_batch().into_tensors(&device).unwrap();
        let weight = Tensor::<4>::ones([1, 3, 2, 5], &device).require_grad();
        let gradient = weight.grad(&(images * weight.clone()).sum().backward()).unwrap();
        let expected: Vec<i64> =
            (0..30).map(|at| (0..4).map(|index| number(index, at)).sum()).collect();
        assert_eq!(gradient.into_data().try_into_vec_as::<i64>().unwrap(), expected);
    }
}

#[test]
fn what_does_not_fit_is_an_error_and_stays_in_the_batch() {
    let device = Device::flex();
    let mut batch = first_batch();
    let rank = batch.take_tensor::<3, Float>("image", &device).unwrap_err();
    assert_eq!(
        rank.to_string(),
        "field \"image\" has shape [4, 3, 2, 5] in a batch, which is not a tensor of rank 3"
    );
    let kind = batch.take_tensor::<4, Int>("image", &device).unwrap_err();
    assert_eq!(
        kind.to_string(),
        "field \"image\" holds F32, which is no element of a burn Int tensor"
    );
    let missing = batch.take_tensor::<1, Int>("lable", &device).unwrap_err();
    assert!(matches!(missing, TensorError::Field(FieldError::Missing { .. })));

    assert_eq!(
        floats_at(batch.take_tensor::<4, Float>("image", &device).unwrap()).align_offset(64),
        0
    );
    let taken = batch.take_tensor::<4, Float>("image", &device).unwrap_err();
    assert!(matches!(taken, TensorError::Field(FieldError::Taken { .. })));
}

#[test]
fn the_last_batch_is_shorter() {
    let loader = DataLoader::builder(Numbers).batch_size(5).build().unwrap();
    let last = loader.epoch(0).unwrap().last().unwrap().unwrap();
    let (images, labels) = last.into_tensors(&Device::flex()).unwrap();
    assert_eq!(images.dims(), [4, 3, 2, 5]);
    assert_eq!(labels.into_data().try_into_vec_as::<i64>().unwrap(), numbers(20..24, 1));
}
