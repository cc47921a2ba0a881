//! What burn's own folder dataset and loader get wrong: files in upper case are not seen, a bad
//! image is a panic, and each thread keeps its own part of the data for all epochs.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;

use burn::data::dataloader;
use burn::tensor::{Device, Int, Tensor};
use loader_burn::{BatchTensors, BurnLoader, TensorError};
use loader_core::{Batch, DataLoader, ErrorPolicy, Transform, Workers};

use crate::common::{Folder, Numbers, SIDE};

fn transform() -> Transform {
    Transform::new().center_crop(SIDE as u32)
}

fn label(mut batch: Batch, device: &Device) -> Result<Vec<i64>, TensorError> {
    let labels: Tensor<1, Int> = batch.take_tensor("label", device)?;
    labels.into_data().try_into_vec().map_err(|error| TensorError::other(format!("{error:?}")))
}

fn labels(loader: &dyn dataloader::DataLoader<Vec<i64>>) -> Vec<Vec<i64>> {
    loader.iter().map(Result::unwrap).collect()
}

#[test]
fn extensions_in_upper_case_are_read() {
    let folder = Folder::new();
    for name in ["a/0.png", "a/1.PNG", "b/2.JPEG", "b/3.Jpg"] {
        folder.image(name, 100);
    }
    let data = folder.open().transform(transform()).unwrap();
    let loader = DataLoader::builder(data).batch_size(4);
    let loader = BurnLoader::new(loader, &Device::flex(), label).unwrap();
    assert_eq!(labels(&loader), [[0, 0, 1, 1]]);
}

#[test]
fn a_bad_image_is_an_error_with_its_path_or_left_out() {
    let folder = Folder::of_bright_and_dark(4);
    let bad = folder.write("dark/2 bad.jpg", b"not an image");
    let loader = |policy| {
        let data = folder.open().transform(transform()).unwrap();
        let loader = DataLoader::builder(data).batch_size(3).error_policy(policy);
        BurnLoader::new(loader, &Device::flex(), label).unwrap()
    };
    let stopping = loader(ErrorPolicy::Stop);
    let error = dataloader::DataLoader::iter(&stopping).find_map(Result::err).unwrap();
    assert!(error.to_string().contains(bad.to_str().unwrap()), "{error}");
    assert_eq!(labels(&loader(ErrorPolicy::Skip)).concat(), [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn samples_are_bound_to_no_worker() {
    let epochs = |threads| {
        let loader = DataLoader::builder(Numbers { samples: 64 }).batch_size(4).shuffle(3);
        let loader = loader.workers(Workers::threads(threads));
        let loader = BurnLoader::new(loader, &Device::flex(), label).unwrap();
        [(); 8].map(|()| labels(&loader))
    };
    let of_four = epochs(4);
    assert_eq!(of_four, epochs(1));
    // Were each quarter a thread's own, no batch would hold samples of two of them.
    let quarters = |batch: &[i64]| batch.iter().map(|label| label / 16).collect::<HashSet<_>>();
    let mixed = of_four.iter().flatten().filter(|batch| quarters(batch).len() > 1).count();
    assert!(mixed > 100, "{mixed} of 128 batches");
    // And who meets sample 0 would be of its quarter.
    let met = of_four.iter().flatten().filter(|batch| batch.contains(&0)).flatten();
    assert_eq!(met.map(|label| label / 16).collect::<HashSet<_>>().len(), 4);
}
