//! Folders with bad files: what is told about them, and that nothing else suffers.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use image::{DynamicImage, ImageFormat, RgbImage};
use loader_core::{
    DType, DataLoader, DataLoaderBuilder, Dataset, ErrorPolicy, Field, Fingerprint, ImageDataset,
    ImageFolder, Layout, LoadError, Sample, SampleError, SampleFailure, SampleWriter, Stage,
    TableCache, Transform, Workers,
};

/// A picture that tells `n`.
fn picture(n: u64) -> DynamicImage {
    let [low, high, ..] = n.to_le_bytes();
    RgbImage::from_fn(9, 8, |x, y| image::Rgb([low, high, (x * y) as u8])).into()
}

fn encode(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn dataset(root: &Path) -> ImageDataset {
    let folder = ImageFolder::builder(root).cache(TableCache::Off).open().unwrap();
    folder.transform(Transform::new().resize((8, 9)).to(DType::U8, Layout::Nhwc)).unwrap()
}

fn loader(dataset: ImageDataset) -> DataLoaderBuilder<ImageDataset> {
    DataLoader::builder(dataset).batch_size(16).workers(Workers::threads(3))
}

const FILES: u64 = 400;
/// One in a hundred.
const BAD: [u64; 4] = [17, 151, 152, 398];

/// A folder of which one file in a hundred is no image, each in a way of its own.
fn one_percent_bad() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        fs::create_dir(root.path().join(class)).unwrap();
    }
    for n in 0..FILES {
        let class = if n < FILES / 2 { "a" } else { "b" };
        let whole = encode(&picture(n), ImageFormat::Png);
        let bytes = match BAD.iter().position(|&bad| bad == n) {
            None => &whole,
            Some(0) => &b""[..],
            Some(1) => &whole[..whole.len() / 2],
            Some(2) => &b"<html>404</html>"[..],
            Some(_) => &whole[..20],
        };
        fs::write(root.path().join(format!("{class}/{n:03}.png")), bytes).unwrap();
    }
    root
}

/// The sizes of an epoch's batches, its samples as (index, number in the picture), and what failed.
type Seen = (Vec<usize>, Vec<(u64, u64)>, Vec<SampleFailure>);

fn see(builder: DataLoaderBuilder<ImageDataset>) -> Seen {
    let loader = builder.build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let (mut sizes, mut samples) = (Vec::new(), Vec::new());
    for batch in epoch.by_ref() {
        let batch = batch.unwrap();
        sizes.push(batch.len());
        let pixels = batch.get::<u8>("image").unwrap().chunks(9 * 8 * 3);
        let numbers = pixels.map(|image| u64::from(image[0]) + 256 * u64::from(image[1]));
        samples.extend(batch.indices().zip(numbers));
    }
    let mut failures = epoch.report().failures.clone();
    assert_eq!(epoch.report().count, failures.len() as u64);
    failures.sort_by_key(|failure| failure.index);
    (sizes, samples, failures)
}

/// Where each sample stands in an epoch without bad files: the order depends on the length alone.
fn order() -> Vec<u64> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    let bytes = encode(&picture(0), ImageFormat::Png);
    for n in 0..FILES {
        fs::write(root.path().join(format!("a/{n:03}.png")), &bytes).unwrap();
    }
    see(loader(dataset(root.path())).shuffle(5)).1.into_iter().map(|(index, _)| index).collect()
}

#[test]
fn one_bad_file_in_a_hundred_ends_the_epoch_where_that_is_asked_for() {
    let root = one_percent_bad();
    let loader = loader(dataset(root.path())).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    assert_eq!(epoch.next().unwrap().unwrap().len(), 16);
    match epoch.next() {
        Some(Err(LoadError::Sample(failure))) => assert_eq!(failure.index, BAD[0]),
        other => panic!("{other:?}"),
    }
    assert!(epoch.next().is_none());
}

#[test]
fn one_bad_file_in_a_hundred_is_skipped_and_all_others_keep_their_order() {
    let root = one_percent_bad();
    let builder = loader(dataset(root.path())).shuffle(5).error_policy(ErrorPolicy::Skip);
    let (sizes, samples, failures) = see(builder);
    let whole = order();
    let good = whole.iter().filter(|index| !BAD.contains(index));
    assert_eq!(samples, good.map(|&index| (index, index)).collect::<Vec<_>>());
    let expected: Vec<_> = whole
        .chunks(16)
        .map(|batch| batch.iter().filter(|index| !BAD.contains(index)).count())
        .collect();
    assert_eq!(sizes, expected);
    assert_eq!(failures.iter().map(|failure| failure.index).collect::<Vec<_>>(), BAD);
}

#[test]
fn three_bad_samples_are_substituted_and_every_other_stays_in_its_place() {
    let root = one_percent_bad();
    // Three are left.
    fs::write(root.path().join("a/017.png"), encode(&picture(17), ImageFormat::Png)).unwrap();
    let bad = &BAD[1..];
    let builder = loader(dataset(root.path())).shuffle(5).error_policy(ErrorPolicy::Substitute);
    let (sizes, samples, failures) = see(builder);
    assert_eq!(sizes, [16; 25]);
    assert!(samples.iter().all(|(index, number)| index == number), "labels go with their pixels");
    // The multiset is the whole epoch, the bad taken out and their substitutes put in.
    let mut counts: HashMap<u64, i32> = HashMap::new();
    let mut expected = counts.clone();
    for (&(index, _), whole) in samples.iter().zip(order()) {
        *counts.entry(index).or_default() += 1;
        *expected.entry(if bad.contains(&whole) { index } else { whole }).or_default() += 1;
        assert!(index == whole || bad.contains(&whole), "{index} stands where {whole} belongs");
        assert!(!bad.contains(&index));
    }
    assert_eq!(counts, expected);
    assert_eq!(counts.values().sum::<i32>(), FILES as i32);
    failures.iter().for_each(|failure| assert!(bad.contains(&failure.index)));
}

#[test]
fn a_failure_tells_everything_about_its_sample() {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&class).unwrap();
    let bad = class.join(OsStr::from_bytes(b"\xff\nb.png"));
    fs::write(class.join("a.png"), encode(&picture(1), ImageFormat::Png)).unwrap();
    fs::write(&bad, b"GARBAGE!").unwrap();
    let builder = loader(dataset(root.path())).batch_size(1).seed(3);
    let loader = builder.workers(Workers::threads(1)).build().unwrap();
    let mut epoch = loader.epoch(7).unwrap();
    epoch.next().unwrap().unwrap();
    let failure = match epoch.next() {
        Some(Err(LoadError::Sample(failure))) => failure,
        other => panic!("{other:?}"),
    };
    // Lossless.
    assert_eq!(failure.path.as_deref(), Some(&*bad));
    assert_eq!((failure.index, failure.position, failure.epoch), (1, 1, 7));
    assert_eq!((failure.class.as_deref(), failure.worker), (Some(r"caf\xe9"), 0));
    assert_eq!(failure.error.stage, Stage::Decode);
    assert_eq!(failure.error.message, "no known image format begins with \"GARBAGE!\"");
    // One line of text, which shows what is not text too.
    let text = LoadError::Sample(failure).to_string();
    for part in ["sample 1 ", r"caf\xE9/\xFF\nb.png", "position 1 of epoch 7", "decode: no known"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains('\n'), "{text}");
}

/// Whose tenth sample finds that no more files can be opened.
struct Starved;

impl Dataset for Starved {
    type Scratch = ();

    fn len(&self) -> u64 {
        40
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<u8>(0)?[0] = 0;
        match s.index {
            10 => Err(SampleError::read(&std::io::Error::from_raw_os_error(24))),
            9 | 11 => Err(SampleError::read(&std::io::Error::from_raw_os_error(2))),
            _ => Ok(()),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

#[test]
fn what_no_sample_is_to_blame_for_ends_the_epoch_under_every_policy() {
    for policy in [ErrorPolicy::Stop, ErrorPolicy::Skip, ErrorPolicy::Substitute] {
        let loader = DataLoader::builder(Starved).batch_size(8).error_policy(policy);
        let loader = loader.workers(Workers::threads(2)).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        assert_eq!(epoch.next().unwrap().unwrap().len(), 8, "{policy:?}");
        match epoch.next() {
            Some(Err(LoadError::Sample(failure))) if policy == ErrorPolicy::Stop => {
                assert!([9, 10].contains(&failure.index), "{failure}");
            }
            Some(Err(LoadError::Sample(failure))) => {
                assert_eq!((failure.index, failure.error.stage), (10, Stage::System));
                assert!(failure.to_string().contains("ulimit -n"), "{failure}");
            }
            other => panic!("{policy:?}: {other:?}"),
        }
        assert!(epoch.next().is_none());
        assert_eq!(loader.state().batches_delivered(), 1, "{policy:?}: it is tried again");
    }
}

#[test]
fn a_table_that_was_overwritten_does_not_pass_for_bad_samples() {
    let root = one_percent_bad();
    let kept = tempfile::tempdir().unwrap();
    let file = kept.path().join("t.paths");
    let folder = ImageFolder::builder(root.path()).cache(TableCache::File(file.clone()));
    let folder = folder.open().unwrap();
    let dataset = folder.transform(Transform::new().resize((8, 9))).unwrap();
    // Against all rules, in place.
    let len = fs::metadata(&file).unwrap().len() as usize;
    let mut table = fs::OpenOptions::new().write(true).open(&file).unwrap();
    table.write_all(&vec![0xff; len]).unwrap();
    let loader = loader(dataset).error_policy(ErrorPolicy::Skip).build().unwrap();
    match loader.epoch(0).unwrap().next() {
        Some(Err(LoadError::Sample(failure))) => {
            assert_eq!(failure.error.stage, Stage::System);
            assert!(failure.error.message.contains("delete it"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
}

/// A folder of all prefixes of a file: the file, the lengths of those that are samples, and the
/// failures that are told of the others.
fn prefixes(format: ImageFormat) -> (Vec<u8>, Vec<u64>, Vec<SampleFailure>) {
    let whole = encode(&picture(5), format);
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("x")).unwrap();
    for len in 0..=whole.len() {
        fs::write(root.path().join(format!("x/{len:06}.png")), &whole[..len]).unwrap();
    }
    let loader = loader(dataset(root.path())).error_policy(ErrorPolicy::Skip).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let good: Vec<_> =
        epoch.by_ref().flat_map(|batch| batch.unwrap().indices().collect::<Vec<_>>()).collect();
    let report = epoch.report().clone();
    assert_eq!(report.count + good.len() as u64, whole.len() as u64 + 1);
    for failure in &report.failures {
        assert_eq!(failure.error.stage, Stage::Decode);
        let name = format!("{:06}.png", failure.index);
        assert!(failure.path.as_ref().unwrap().ends_with(name), "{failure}");
    }
    let empty = report.failures.iter().find(|failure| failure.index == 0).unwrap();
    assert_eq!(empty.error.message, "the file is empty");
    (whole, good, report.failures)
}

#[test]
fn every_prefix_of_a_jpeg_file_is_a_failure_that_names_it() {
    let (whole, good, failures) = prefixes(ImageFormat::Jpeg);
    assert_eq!((good, failures.len()), (vec![whole.len() as u64], 100));
}

/// What follows a PNG's pixels may be missing without loss: its end marker and the check of the last
/// block.
#[test]
fn every_prefix_of_a_png_file_is_a_failure_or_has_all_pixels() {
    let (whole, good, failures) = prefixes(ImageFormat::Png);
    let end = whole.windows(4).position(|part| part == b"IEND").unwrap() as u64;
    assert!(good.iter().all(|&len| len + 16 > end), "{good:?}");
    assert_eq!(good.last(), Some(&(whole.len() as u64)));
    assert!(!failures.is_empty());
}
