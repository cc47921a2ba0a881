//! A table's own memory as tensors.

#![cfg(feature = "table")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use loader_core::arrow::array::{Array, Float64Array, RecordBatch};
use loader_core::{DataLoader, LentField, SharedTable, TableDataset};
use loader_tch::{BatchTensors, FieldTensor};
use tch::{Kind, Tensor};

const ROWS: i64 = 1000;

fn table() -> SharedTable {
    let x = Float64Array::from_iter_values((0..ROWS).map(|row| row as f64));
    let batch = RecordBatch::try_from_iter([("x", Arc::new(x) as Arc<dyn Array>)]).unwrap();
    SharedTable::from_batches(&batch.schema(), [batch]).unwrap()
}

fn take(table: &SharedTable) -> LentField {
    table.slices(&["x"], ROWS as usize).unwrap().next().unwrap().take("x").unwrap()
}

#[test]
fn slices_of_a_table_are_tensors_over_its_memory() {
    let table = table();
    let mut rows = 0;
    for mut slice in table.slices(&["x"], 64).unwrap() {
        let field = slice.take("x").unwrap();
        let address = field.as_ptr();
        let x = field.into_tensor().unwrap();
        assert_eq!((x.data_ptr() as *const u8, x.kind()), (address, Kind::Double));
        let expected = Tensor::arange_start(
            slice.rows().start as i64,
            slice.rows().end as i64,
            (Kind::Double, x.device()),
        );
        assert!(x.equal(&expected));
        rows += x.size()[0];
    }
    assert_eq!(rows, ROWS);
}

#[test]
fn what_is_written_in_place_nobody_else_sees() {
    let table = table();
    let mut ours = take(&table).into_tensor().unwrap();
    let _ = ours.fill_(7.0);
    assert_eq!(table.column::<f64>("x").unwrap()[3], 3.0);
    let theirs = take(&table).into_tensor().unwrap();
    drop(table);
    assert_eq!(ours.sum(Kind::Double).double_value(&[]), 7.0 * ROWS as f64);
    assert_eq!(theirs.sum(Kind::Double).double_value(&[]), (ROWS * (ROWS - 1) / 2) as f64);
}

#[test]
fn batches_of_shuffled_rows_are_tensors_as_any_batches_are() {
    let rows = TableDataset::builder(table()).features(["x"]).target("x").build().unwrap();
    let loader = DataLoader::builder(rows).batch_size(128).shuffle(1).build().unwrap();
    let mut sum = 0.0;
    for batch in loader.epoch(0).unwrap() {
        let mut batch = batch.unwrap();
        let features = batch.take_tensor("features").unwrap();
        let target = batch.take_tensor("target").unwrap();
        assert_eq!(features.size(), [target.size()[0], 1]);
        assert!(features.squeeze_dim(1).equal(&target));
        sum += target.sum(Kind::Double).double_value(&[]);
    }
    assert_eq!(sum, (ROWS * (ROWS - 1) / 2) as f64);
}
