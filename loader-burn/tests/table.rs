//! A table's own memory as tensors.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use burn::tensor::{DType, Device, Float, Int, Tensor};
use loader_burn::{BatchTensors, FieldTensor, TensorError};
use loader_core::arrow::array::{Array, Float64Array, Int32Array, RecordBatch};
use loader_core::{DataLoader, SharedTable, TableDataset};

const ROWS: usize = 1000;

fn table() -> SharedTable {
    let columns: [(&str, Arc<dyn Array>); 2] = [
        ("x", Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| row as f64)))),
        ("n", Arc::new(Int32Array::from_iter_values((0..ROWS as i32).map(|row| -row)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    SharedTable::from_batches(&batch.schema(), [batch]).unwrap()
}

#[test]
fn slices_of_a_table_are_tensors_over_its_memory() {
    let (table, device) = (table(), Device::flex());
    let mut rows = 0;
    for mut slice in table.slices(&["x", "n"], 64).unwrap() {
        let field = slice.take("x").unwrap();
        let address = field.as_ptr();
        let x: Tensor<1, Float> = field.into_tensor(&device).unwrap();
        let n: Tensor<1, Int> = slice.take("n").unwrap().into_tensor(&device).unwrap();
        assert_eq!((x.dtype(), n.dtype()), (DType::F64, DType::I32));
        let (x, n) = (x.into_data(), n.into_data());
        assert_eq!(x.as_bytes().as_ptr(), address, "copied");
        let expected: Vec<f64> = slice.rows().map(|row| row as f64).collect();
        assert_eq!(x.as_slice::<f64>().unwrap(), expected);
        assert!(
            n.as_slice::<i32>().unwrap().iter().zip(expected).all(|(&n, x)| f64::from(-n) == x)
        );
        rows += slice.rows().len();
    }
    assert_eq!(rows, ROWS);
}

#[test]
fn such_tensors_outlive_the_table_and_change_nobody_else() {
    let (table, device) = (table(), Device::flex());
    let take = || table.slices(&["x"], ROWS).unwrap().next().unwrap().take("x").unwrap();
    let ours: Tensor<1> = take().into_tensor(&device).unwrap();
    let changed = ours.clone().add_scalar(1.0).mul_scalar(2.0);
    let theirs: Tensor<1> = take().into_tensor(&device).unwrap();
    drop(table);
    assert!(ours.clone().equal(theirs).all().into_scalar::<bool>());
    let expected = (ours + 1.0) * 2.0;
    assert!(changed.equal(expected).all().into_scalar::<bool>());
}

#[test]
fn another_rank_or_kind_is_an_error() {
    let (table, device) = (table(), Device::flex());
    let take = |name| table.slices(&[name], 10).unwrap().next().unwrap().take(name).unwrap();
    let rank: Result<Tensor<2>, _> = take("x").into_tensor(&device);
    assert!(matches!(rank, Err(TensorError::Rank { asked: 2, .. })));
    let kind: Result<Tensor<1>, _> = take("n").into_tensor(&device);
    assert!(matches!(kind, Err(TensorError::Kind { .. })));
}

#[test]
fn batches_of_shuffled_rows_are_tensors_as_any_batches_are() {
    let device = Device::flex();
    let rows = TableDataset::builder(table()).features(["x", "n"]).target("n").build().unwrap();
    let loader = DataLoader::builder(rows).batch_size(128).shuffle(1).build().unwrap();
    let mut sum = 0;
    for batch in loader.epoch(0).unwrap() {
        let mut batch = batch.unwrap();
        let features: Tensor<2> = batch.take_tensor("features", &device).unwrap();
        let target: Tensor<1, Int> = batch.take_tensor("target", &device).unwrap();
        assert_eq!(features.dims(), [target.dims()[0], 2]);
        let n: Tensor<1> = features.slice([0..target.dims()[0], 1..2]).squeeze_dim(1);
        assert!(n.equal(target.clone().float()).all().into_scalar::<bool>());
        sum += target.sum().into_scalar::<i64>();
    }
    assert_eq!(sum, -((ROWS * (ROWS - 1) / 2) as i64));
}
