//! From files to batches: an image folder through transforms and workers.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::{DynamicImage, ImageFormat, RgbImage};
use loader_core::{
    BuildError, DType, DataLoader, Dataset, ErrorPolicy, ImageFolder, LoadError, Order, Stage,
    TableCache, Transform, Workers,
};

/// A picture of that size whose pixels depend on `seed`.
fn picture(width: u32, height: u32, seed: u32) -> DynamicImage {
    RgbImage::from_fn(width, height, |x, y| {
        image::Rgb([(x * 3 + seed) as u8, (y * 5) as u8, ((x + y) * 2 + seed * 7) as u8])
    })
    .into()
}

fn encode(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// 60 files of three classes: JPEGs of odd sizes, PNGs named .JPEG, gray ones, a GIF.
fn tree(root: &Path) {
    for n in 0..60u32 {
        let dir = root.join(["cat", "dog", "eel"][n as usize % 3]);
        fs::create_dir_all(&dir).unwrap();
        let mut picture = picture(40 + n * 13 % 90, 30 + n * 29 % 110, n);
        if n % 10 == 4 {
            picture = picture.to_luma8().into();
        }
        let format = match n % 7 {
            3 => ImageFormat::Png,
            5 => ImageFormat::Gif,
            _ => ImageFormat::Jpeg,
        };
        if format == ImageFormat::Gif {
            picture = picture.to_rgba8().into();
        }
        fs::write(dir.join(format!("{n:03}.JPEG")), encode(&picture, format)).unwrap();
    }
}

fn open(root: &Path) -> ImageFolder {
    ImageFolder::builder(root).cache(TableCache::Off).open().unwrap()
}

fn epoch_bytes(folder: &ImageFolder, threads: usize, epoch: u64) -> Vec<(Vec<u32>, Vec<i64>)> {
    let loader = DataLoader::builder(folder.transform(Transform::imagenet_train(32)).unwrap())
        .batch_size(16)
        .shuffle(42)
        .workers(Workers::threads(threads))
        .build()
        .unwrap();
    let batches = loader.epoch(epoch).unwrap().map(|batch| {
        let batch = batch.unwrap();
        let image = batch.get::<f32>("image").unwrap().iter().map(|x| x.to_bits()).collect();
        (image, batch.get::<i64>("label").unwrap().to_vec())
    });
    batches.collect()
}

#[test]
fn augmented_images_are_the_same_bytes_under_any_number_of_threads() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let folder = open(root.path());
    let one = [epoch_bytes(&folder, 1, 0), epoch_bytes(&folder, 1, 1)];
    assert_ne!(one[0], one[1]);
    for threads in [2, 7, 16] {
        assert!(epoch_bytes(&folder, threads, 0) == one[0], "{threads} threads");
        assert!(epoch_bytes(&open(root.path()), threads, 1) == one[1], "{threads} threads");
    }
}

#[test]
fn a_sample_is_its_file_through_the_transform_with_its_folder_s_label() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let folder = open(root.path());
    let transform = Transform::imagenet_eval(24);
    let dataset = folder.transform(&transform).unwrap();
    let loader = DataLoader::builder(dataset).batch_size(7).build().unwrap();
    let pipeline = transform.compile().unwrap();
    assert_eq!(pipeline.field(), (DType::F32, vec![3, 24, 24]));
    let mut index = 0;
    for batch in loader.epoch(0).unwrap() {
        let batch = batch.unwrap();
        let images = batch.get::<f32>("image").unwrap();
        for (image, &label) in images.chunks(3 * 24 * 24).zip(batch.get::<i64>("label").unwrap()) {
            let entry = folder.sample(index).unwrap();
            assert_eq!(label, entry.label());
            let sample = loader_core::Sample { index, epoch: 0, seed: 0, occurrence: 0 };
            let mut expected = vec![0f32; image.len()];
            let bytes = fs::read(entry.to_path()).unwrap();
            let out = bytemuck::cast_slice_mut(&mut expected);
            pipeline.run(&bytes, &sample, &mut Default::default(), out).unwrap();
            assert!(image == expected, "{:?}", entry.to_path());
            index += 1;
        }
    }
    assert_eq!(index, 60);
}

#[test]
fn files_that_changed_since_the_scan_are_errors_that_name_them() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let folder = open(root.path());
    let path = |n: u64| folder.sample(n).unwrap().to_path();
    fs::remove_file(path(3)).unwrap();
    fs::write(path(11), b"").unwrap();
    let whole = fs::read(path(20)).unwrap();
    fs::write(path(20), &whole[..whole.len() / 2]).unwrap();
    fs::write(path(31), b"not an image").unwrap();
    fs::remove_file(path(40)).unwrap();
    fs::create_dir(path(40)).unwrap();

    let dataset = folder.transform(Transform::imagenet_eval(24)).unwrap();
    let loader = DataLoader::builder(dataset.clone()).batch_size(8).build().unwrap();
    match loader.epoch(0).unwrap().find_map(Result::err) {
        Some(LoadError::Sample(failure)) => {
            assert_eq!((failure.index, failure.path.unwrap()), (3, path(3)));
            assert_eq!((failure.class.as_deref(), failure.error.stage), (Some("cat"), Stage::Read));
        }
        other => panic!("{other:?}"),
    }

    let skipping = DataLoader::builder(dataset).batch_size(8).error_policy(ErrorPolicy::Skip);
    let loader = skipping.build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let samples: usize = epoch.by_ref().map(|batch| batch.unwrap().len()).sum();
    assert_eq!((samples, epoch.report().count), (55, 5));
    let mut failed: Vec<_> =
        epoch.report().failures.iter().map(|f| (f.index, f.error.stage)).collect();
    failed.sort_by_key(|f| f.0);
    let (read, decode) = (Stage::Read, Stage::Decode);
    assert_eq!(failed, [(3, read), (11, decode), (20, decode), (31, decode), (40, read)]);
}

#[test]
fn images_of_different_sizes_are_refused_before_any_is_read() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let error = open(root.path()).transform(Transform::new()).unwrap_err().to_string();
    assert!(error.to_lowercase().contains("size"), "{error}");
}

#[test]
fn a_batch_size_that_no_memory_holds_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    tree(root.path());
    let dataset = open(root.path()).transform(Transform::imagenet_eval(224)).unwrap();
    let weights = vec![1.0; dataset.len() as usize];
    let order = Order::Weighted { weights, num_samples: 1 << 31, replacement: true };
    let builder = DataLoader::builder(dataset).order(order).batch_size(1 << 31);
    let error = builder.build().unwrap_err();
    assert!(matches!(error, BuildError::Memory(_) | BuildError::Geometry(_)), "{error}");
}
