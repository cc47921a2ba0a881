//! Arrays as a user has them: files of NumPy's, and as a dataset.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use loader_core::{
    ArrayDataset, ArrayError, BuildError, DType, DataLoader, Dataset, NpyError, SharedArray,
};
use serde::Deserialize;

/// An entry of `tests/npy/arrays.json`, which `generate.py` beside it wrote.
#[derive(Deserialize)]
struct Stored {
    name: String,
    file: String,
    #[serde(flatten)]
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Array { dtype: DType, shape: Vec<usize>, data: String },
    Error { error: String },
}

fn stored() -> Vec<Stored> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/npy/arrays.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn numpys_files_are_read_or_refused_by_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let (mut read, mut refused) = (0, 0);
    for Stored { name, file, expected } in stored() {
        std::fs::write(&path, hex(&file)).unwrap();
        match (SharedArray::open(&path), expected) {
            (Ok(array), Expected::Array { dtype, shape, data }) => {
                assert_eq!((array.dtype(), array.shape()), (dtype, &shape[..]), "{name}");
                assert_eq!(array.bytes(), hex(&data), "{name}");
                read += 1;
            }
            (Err(ArrayError::Npy { source, .. }), Expected::Error { error }) => {
                let kind = match source {
                    NpyError::FortranOrder => "FortranOrder",
                    NpyError::ByteOrder { .. } => "ByteOrder",
                    NpyError::Elements { .. } => "Elements",
                    other => panic!("{name}: {other}"),
                };
                assert_eq!(kind, error, "{name}");
                assert!(source.to_string().contains("save "), "{name}: {source}");
                refused += 1;
            }
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
    assert_eq!((read, refused), (24, 11));
}

#[test]
fn files_are_written_as_numpy_writes_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npy");
    let mut same = 0;
    for Stored { name, file, .. } in stored() {
        let file = hex(&file);
        std::fs::write(&path, &file).unwrap();
        let Ok(array) = SharedArray::open(&path) else { continue };
        array.write_npy(&path).unwrap();
        let written = std::fs::read(&path).unwrap();
        let again = SharedArray::open(&path).unwrap();
        assert_eq!((again.shape(), again.bytes()), (array.shape(), array.bytes()), "{name}");
        if !["version 2", "version 3", "python 2", "two in a file"].contains(&&*name) {
            // NumPy writes bools as such.
            let written = String::from_utf8_lossy(&written).replace("'|u1'", "'|b1'");
            let file = String::from_utf8_lossy(&file).replace("'|u1'", "'|b1'");
            assert_eq!(written, file, "{name}");
            same += 1;
        }
    }
    assert_eq!(same, 20);
}

fn dataset(rows: usize) -> (ArrayDataset, SharedArray, SharedArray) {
    let x = SharedArray::build([rows, 3], |values: &mut [f32]| {
        (0..).zip(values).for_each(|(i, value)| *value = i as f32);
    });
    let y = SharedArray::build([rows], |values: &mut [i64]| {
        (0..).zip(values).for_each(|(i, value)| *value = -i);
    });
    let (x, y) = (x.unwrap(), y.unwrap());
    (ArrayDataset::new([("x", x.clone()), ("y", y.clone())]).unwrap(), x, y)
}

#[test]
fn a_sample_is_its_row_of_each_array() {
    let (dataset, x, y) = dataset(101);
    assert_eq!(dataset.len(), 101);
    let loader = DataLoader::builder(dataset).batch_size(8).shuffle(3).build().unwrap();
    let mut seen = Vec::new();
    for batch in loader.epoch(0).unwrap() {
        let batch = batch.unwrap();
        let (xs, ys) = (batch.get::<f32>("x").unwrap(), batch.get::<i64>("y").unwrap());
        for ((index, row), label) in batch.indices().zip(xs.chunks(3)).zip(ys) {
            assert_eq!(row, x.row::<f32>(index as usize).unwrap());
            assert_eq!(label, &y.row::<i64>(index as usize).unwrap()[0]);
            seen.push(index);
        }
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..101));
}

#[test]
fn empty_and_doubly_named_arrays_are_refused_when_the_loader_is_built() {
    let error = DataLoader::builder(dataset(0).0).build().map(drop).unwrap_err();
    assert!(matches!(error, BuildError::Empty), "{error}");
    let (_, x, y) = dataset(5);
    let twice = ArrayDataset::new([("x", x), ("x", y)]).unwrap();
    let error = DataLoader::builder(twice).build().map(drop).unwrap_err();
    assert!(matches!(error, BuildError::Geometry(_)) && error.to_string().contains("\"x\""));
}
