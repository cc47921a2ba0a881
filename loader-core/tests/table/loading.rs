//! Rows as samples of a loader.

use std::sync::Arc;

use loader_core::arrow::array::{ArrayRef, Float64Array, RecordBatch, UInt64Array};
use loader_core::{
    Batch, ColumnError, DType, DataLoader, Dataset, Location, SharedTable, Statistics, TableCache,
    TableDataset, TableDatasetError, Workers,
};
use proptest::prelude::*;

use crate::made::*;

fn batches(dataset: TableDataset, batch_size: usize, trace: usize) -> Vec<Batch> {
    let loader = DataLoader::builder(dataset).batch_size(batch_size).shuffle(3).trace(trace);
    let loader = loader.workers(Workers::threads(2)).memory_budget(1 << 30).build().unwrap();
    loader.epoch(1).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_sample_is_its_row() {
    let table = table(&batch(0, 200, false));
    let dataset = TableDataset::builder(table.clone())
        .features(["f64", "bool", "lists", "class", "u8"])
        .target("i32")
        .field("exact", ["i64"], DType::I64)
        .scalar("wide", "f64", DType::F64)
        .build()
        .unwrap();
    let shapes: Vec<_> =
        dataset.fields().into_iter().map(|field| (field.name, field.dtype, field.shape)).collect();
    let expected = [
        ("features".to_owned(), DType::F32, vec![7]),
        ("target".to_owned(), DType::I64, vec![]),
        ("exact".to_owned(), DType::I64, vec![1]),
        ("wide".to_owned(), DType::F64, vec![]),
    ];
    assert_eq!(shapes, expected);
    let keys = table.view("class").unwrap().keys::<i8>().unwrap();
    let mut rows = 0;
    for batch in batches(dataset, 37, 0) {
        let features = batch.get::<f32>("features").unwrap().chunks(7);
        for (at, (index, features)) in batch.indices().zip(features).enumerate() {
            let row = index as usize;
            let list = [0, 1, 2].map(|item| (row * 3 + item) as f32 / 4.0);
            let expected = [
                (row as f64 / 7.0) as f32,
                f32::from(u8::from(row.is_multiple_of(2))),
                list[0],
                list[1],
                list[2],
                f32::from(keys[row]),
                f32::from(row as u8),
            ];
            assert_eq!(features, expected);
            assert_eq!(batch.get::<i64>("target").unwrap()[at], row as i64 - 9);
            assert_eq!(batch.get::<i64>("exact").unwrap()[at], (row as i64) << 40);
            assert_eq!(batch.get::<f64>("wide").unwrap()[at], row as f64 / 7.0);
            rows += 1;
        }
    }
    assert_eq!(rows, 200);
}

#[test]
fn missing_values_are_refused_or_filled() {
    let table = table(&batch(0, 90, true));
    let build = |column: &str| TableDataset::builder(table.clone()).features([column]).build();
    for column in ["f64", "bool", "lists", "class"] {
        let error = build(column).unwrap_err();
        let named =
            matches!(&error, TableDatasetError::Nulls { column: c, nulls: 30 } if c == column);
        assert!(named, "{error}");
    }
    let dataset = TableDataset::builder(table.clone())
        .features(["f64", "lists"])
        .target("i32")
        .fill_null(-1.0)
        .build()
        .unwrap();
    for batch in batches(dataset, 16, 0) {
        let features = batch.get::<f32>("features").unwrap().chunks(4);
        for ((index, features), target) in
            batch.indices().zip(features).zip(batch.get::<i64>("target").unwrap())
        {
            if index % 3 == 1 {
                assert_eq!((features, *target), (&[-1.0; 4][..], -1));
            } else {
                assert_eq!(features[0], (index as f64 / 7.0) as f32);
                assert_eq!(*target, index as i64 - 9);
            }
        }
    }
    let half = TableDataset::builder(table).target("i32").fill_null(0.5).build();
    assert!(matches!(half, Err(TableDatasetError::Lossy { .. })), "{half:?}");
}

#[test]
fn columns_that_can_not_be_fields_are_refused_in_words() {
    let table = table(&batch(0, 9, false));
    let build = || TableDataset::builder(table.clone());
    let words = |built: Result<TableDataset, TableDatasetError>| built.unwrap_err().to_string();
    assert!(words(build().build()).contains("TableDatasetBuilder::features"));
    assert!(words(build().features(["text"]).build()).contains("can't be read as numbers"));
    assert!(words(build().features(["x"]).build()).contains("no column \"x\""));
    assert!(words(build().features([] as [&str; 0]).build()).contains("without columns"));
    assert!(words(build().target("lists").build()).contains("3 numbers a row"));
    assert!(words(build().field("f", ["f64"], DType::I64).build()).contains("F64"));
    assert!(words(build().field("f", ["u64"], DType::I64).build()).contains("U64"));
    assert!(words(build().field("f", ["u8"], DType::U8).build()).contains("F32, F64 or I64"));
    let statistics = Statistics::of(&table, ["f32"]).unwrap();
    let error = words(build().features(["f64"]).standardize(&statistics).build());
    assert!(error.contains("no statistics of column \"f64\""), "{error}");
}

#[test]
fn a_standardised_column_has_mean_0_and_deviation_1() {
    let rows = 3000;
    let table = table(&batch(0, rows, false));
    let names = ["f64", "i64", "lists", "bool"];
    let statistics = Statistics::of(&table, names).unwrap();
    let json = serde_json::to_string(&statistics).unwrap();
    let statistics: Statistics = serde_json::from_str(&json).unwrap();
    let dataset = TableDataset::builder(table)
        .features(names)
        .target("f64")
        .standardize(&statistics)
        .features_dtype(DType::F64)
        .build()
        .unwrap();
    let mut sums = [(0.0, 0.0); 6];
    for batch in batches(dataset, 100, 0) {
        for row in batch.get::<f64>("features").unwrap().chunks(6) {
            for (sum, x) in sums.iter_mut().zip(row) {
                *sum = (sum.0 + x, sum.1 + x * x);
            }
        }
        // The target stays as it is.
        let index = batch.indices().next().unwrap();
        assert_eq!(batch.get::<f32>("target").unwrap()[0], (index as f64 / 7.0) as f32);
    }
    for (sum, squares) in sums {
        assert!(sum.abs() < 1e-9 * rows as f64 && (squares / rows as f64 - 1.0).abs() < 1e-9);
    }
}

#[test]
fn statistics_are_exact_where_naive_sums_are_not() {
    let values = (0..200_000).map(|row| 1e9 + f64::from(row % 3) / 1024.0);
    let column = Arc::new(Float64Array::from_iter_values(values)) as ArrayRef;
    let table = table(&RecordBatch::try_from_iter([("x", column)]).unwrap());
    let [found] = Statistics::of(&table, ["x"]).unwrap().get("x").unwrap()[..] else { panic!() };
    // 66,667 zeros, 66,667 ones and 66,666 twos.
    let n = 200_000f64;
    let mean = (66_667.0 + 2.0 * 66_666.0) / n;
    let std = ((66_667.0 + 4.0 * 66_666.0) / n - mean * mean).sqrt() / 1024.0;
    assert!((found.std - std).abs() < 1e-12, "{} is not {std}", found.std);
    assert!((found.mean - 1e9 - mean / 1024.0).abs() < 2e-7);
    assert_eq!((found.count, found.min, found.max), (200_000, 1e9, 1e9 + 2.0 / 1024.0));
}

#[test]
fn what_is_no_number_is_counted_and_left_out() {
    let values = [Some(1.0), None, Some(f64::NAN), Some(3.0), Some(f64::INFINITY), None];
    let column = Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let empty = Arc::new(Float64Array::from(vec![None; 6])) as ArrayRef;
    let batch = RecordBatch::try_from_iter_with_nullable([("x", column, true), ("e", empty, true)]);
    let statistics = Statistics::of(&table(&batch.unwrap()), ["x", "e"]).unwrap();
    let x = statistics.get("x").unwrap()[0];
    assert_eq!((x.count, x.nulls, x.not_finite), (2, 2, 2));
    assert_eq!((x.mean, x.std, x.min, x.max), (2.0, 1.0, 1.0, 3.0));
    let e = statistics.get("e").unwrap()[0];
    assert_eq!((e.count, e.nulls, e.mean, e.std), (0, 6, 0.0, 0.0));
    let error = Statistics::of(&table(&crate::made::batch(0, 3, false)), ["text"]).unwrap_err();
    assert!(error.to_string().contains("can't be read as numbers"), "{error}");
}

#[test]
fn statistics_are_kept_until_the_table_changes() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    let cache = TableCache::Folder(folder.path("cache"));
    write_file(&path, &[numbers(100)], false);
    let table = folder.builder(&path).open().unwrap();
    let first = Statistics::kept(&table, ["a", "b"], &cache).unwrap();
    assert_eq!(first, Statistics::of(&table, ["a", "b"]).unwrap());
    let kept = folder.kept().into_iter().find(|name| name.ends_with(".statistics")).unwrap();
    let kept = folder.path("cache").join(kept);
    let marked = std::fs::read_to_string(&kept).unwrap().replace("\"nulls\":0", "\"nulls\":7");
    std::fs::write(&kept, marked).unwrap();
    let again = Statistics::kept(&table, ["a", "b"], &cache).unwrap();
    assert_eq!(again.get("a").unwrap()[0].nulls, 7, "read from the file");
    write_file(&path, &[numbers(101)], false);
    let table = folder.builder(&path).open().unwrap();
    let third = Statistics::kept(&table, ["a", "b"], &cache).unwrap();
    assert_eq!((third.get("a").unwrap()[0].count, third.get("a").unwrap()[0].nulls), (101, 0));
}

#[test]
fn fingerprints_tell_data_fields_and_scale_apart() {
    let build = |rows, column: &str, statistics: Option<&Statistics>| {
        let builder = TableDataset::builder(table(&numbers(rows))).features([column]);
        let builder = statistics.map_or(builder.clone(), |s| builder.standardize(s));
        builder.build().unwrap()
    };
    let parts = |dataset: &TableDataset| dataset.fingerprint_parts();
    let base = build(100, "a", None);
    assert_eq!(parts(&base), parts(&build(100, "a", None)));
    let differing = |other: &TableDataset| {
        let both = parts(&base).into_iter().zip(parts(other));
        both.filter(|(a, b)| a != b).map(|((name, _), _)| name).collect::<Vec<_>>()
    };
    assert_eq!(differing(&build(101, "a", None)), ["data"]);
    assert_eq!(differing(&build(100, "b", None)), ["data", "fields"]);
    let statistics = Statistics::of(&table(&numbers(9)), ["a"]).unwrap();
    assert_eq!(differing(&build(100, "a", Some(&statistics))), ["fields", "normalisation"]);
    assert_ne!(base.fingerprint(), build(101, "a", None).fingerprint());
}

#[test]
fn a_sample_is_located_by_file_and_row() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    write_file(&path, &[numbers(5)], false);
    let table = SharedTable::open(&path).unwrap();
    let dataset = TableDataset::builder(table).target("a").build().unwrap();
    let mut shown = path.into_os_string();
    shown.push(", row 3");
    assert_eq!(dataset.locate(3), Location { path: Some(shown.into()), class: None });
}

#[test]
fn keys_that_no_integer_of_64_bits_holds_are_refused() {
    let column = Arc::new(UInt64Array::from(vec![u64::MAX])) as ArrayRef;
    let table = table(&RecordBatch::try_from_iter([("y", column)]).unwrap());
    // As a target it is a float by default.
    let dataset = TableDataset::builder(table.clone()).target("y").build().unwrap();
    assert_eq!(dataset.fields()[0].dtype, DType::F32);
    let exact = TableDataset::builder(table.clone()).target("y").target_dtype(DType::I64).build();
    assert!(matches!(exact, Err(TableDatasetError::Lossy { .. })));
    assert!(matches!(table.column::<i64>("y"), Err(ColumnError::Type { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // With a timeline samples are made one by one.
    #[test]
    fn rows_made_in_runs_are_those_made_one_by_one(rows in 1usize..500, batch_size in 1usize..300) {
        let dataset = || {
            TableDataset::builder(table(&batch(0, rows, true)))
                .features(["f64", "lists", "class"])
                .target("i16")
                .fill_null(5.0)
                .build()
                .unwrap()
        };
        let (runs, single) = (batches(dataset(), batch_size, 0), batches(dataset(), batch_size, 64));
        prop_assert_eq!(runs.len(), single.len());
        for (a, b) in runs.iter().zip(&single) {
            prop_assert!(a.indices().eq(b.indices()));
            prop_assert_eq!(a.get::<f32>("features"), b.get::<f32>("features"));
            prop_assert_eq!(a.get::<i64>("target"), b.get::<i64>("target"));
        }
    }
}
