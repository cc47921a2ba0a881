//! What a table holds is what was put into it.

use loader_core::arrow::array::RecordBatch;
use std::sync::Arc;

use loader_core::arrow::array::cast::AsArray;
use loader_core::{ColumnError, DType, SharedTable, SharedTableError};
use proptest::prelude::*;

use crate::made::*;

#[test]
fn a_file_with_one_batch_is_mapped_where_it_lies() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    write_file(&path, &[batch(0, 1000, false)], false);
    let table = folder.builder(&path).open().unwrap();
    assert_eq!((table.path(), table.len()), (Some(&*path), 1000));
    assert!(folder.kept().is_empty(), "{:?}", folder.kept());
    let column = table.column::<f64>("f64").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let map = maps.lines().find(|line| line.ends_with(path.to_str().unwrap())).unwrap();
    let (start, end) = map.split_once(' ').unwrap().0.split_once('-').unwrap();
    let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
    assert!((start..end).contains(&(column.as_ptr() as usize)));
    table.verify().unwrap();
}

#[test]
fn every_type_is_read_in_place() {
    for nulls in [false, true] {
        let batch = batch(5, 100, nulls);
        let table = table(&batch);
        let there = |row: usize| !(nulls && row % 3 == 1);
        let rows = || (0..100).filter(|&at| there(at + 5));
        let i64s = table.view("i64").unwrap();
        assert!(rows().all(|at| i64s.values::<i64>().unwrap()[at] == (at as i64 + 5) << 40));
        assert_eq!(i64s.null_count(), (0..100).filter(|at| !there(at + 5)).count());
        let validity = i64s.validity().map(|validity| validity.iter().collect::<Vec<_>>());
        let expected = (0..100).map(|at| there(at + 5)).collect::<Vec<_>>();
        assert_eq!(validity, nulls.then_some(expected));
        let dates = table.view("date").unwrap();
        assert!(rows().all(|at| dates.values::<i32>().unwrap()[at] == at as i32 + 5));
        let bools = table.view("bool").unwrap().bools().unwrap();
        assert!(rows().all(|at| bools.get(at) == ((at + 5) % 2 == 0)));
        for name in ["text", "large"] {
            let strings = table.view(name).unwrap().strings().unwrap();
            for (at, text) in strings.iter().enumerate() {
                let row = at + 5;
                let expected = there(row).then(|| format!("{}{row}", "é".repeat(row % 5)));
                assert_eq!(text.unwrap(), expected.as_deref(), "{name} {row}");
            }
        }
        let lists = table.view("lists").unwrap();
        let (items, size) = lists.items().unwrap();
        assert_eq!(size, 3);
        assert_eq!(items.values::<f32>().unwrap()[7], 22.0 / 4.0);
        assert_eq!(lists.lists::<f32>().unwrap().0.len(), 300);
        let class = table.view("class").unwrap();
        let (keys, values) = (class.keys::<i8>().unwrap(), class.dictionary().unwrap());
        let values = values.strings().unwrap();
        let original = batch
            .column_by_name("class")
            .unwrap()
            .as_dictionary::<loader_core::arrow::array::types::Int8Type>();
        let original = original.downcast_dict::<loader_core::arrow::array::StringArray>().unwrap();
        for (at, expected) in original.into_iter().enumerate() {
            let found = class.validity().is_none_or(|v| v.is_valid(at));
            let found = found.then(|| values.get(keys[at] as usize).unwrap().unwrap());
            assert_eq!(found, expected);
        }
        let decimals = table.view("decimal").unwrap();
        let sixteen = decimals.blobs().unwrap().get(1).unwrap();
        assert_eq!(sixteen, there(6).then_some(&6i128.to_le_bytes()[..]));
        assert_eq!((decimals.storage(), class.storage()), (None, Some(DType::I8)));
    }
}

#[test]
fn what_was_not_asked_for_rightly_is_refused_in_words() {
    let table = table(&batch(0, 10, true));
    let words = |result: Result<&[f64], ColumnError>| result.unwrap_err().to_string();
    assert!(words(table.column("none")).contains("no column \"none\", there are [\"i8\""));
    assert!(words(table.column("i32")).contains("Int32, and can't be read as F64"));
    assert!(words(table.column("f64")).contains("has 3 nulls"));
    assert!(words(table.column_by_index(99)).contains("column 99 of a table of 20 columns"));
    let strings = table.view("text").unwrap().strings().unwrap();
    assert!(matches!(strings.get(10), Err(ColumnError::Row { row: 10, rows: 10, .. })));
}

#[test]
fn types_that_tables_do_not_have_are_named_and_can_be_left_out() {
    let folder = Folder::new();
    for data_type in foreign_types() {
        let schema = schema_of(&[
            ("fine", loader_core::arrow::schema::DataType::Int32),
            ("odd", data_type.clone()),
        ]);
        let batch = RecordBatch::new_empty(schema.into());
        for stream in [false, true] {
            let path = folder.path("t.arrow");
            if stream {
                write_stream(&path, std::slice::from_ref(&batch));
            } else {
                write_file(&path, std::slice::from_ref(&batch), false);
            }
            let error = folder.builder(&path).open().unwrap_err();
            let named =
                matches!(&error, SharedTableError::ColumnType { column, .. } if column == "odd");
            assert!(named, "{data_type}: {error}");
            assert!(error.to_string().contains("SharedTableBuilder::columns"), "{error}");
            let table = folder.builder(&path).columns(["fine"]).open().unwrap();
            assert_eq!((table.schema().fields().len(), table.len()), (1, 0));
        }
    }
}

#[test]
fn chosen_columns_come_in_the_order_that_was_asked_for() {
    let folder = Folder::new();
    let batches = [batch(0, 10, false), batch(10, 10, false)];
    let one = folder.path("one.arrow");
    write_file(&one, &batches[..1], false);
    let many = folder.path("many.arrow");
    write_file(&many, &batches, false);
    let parquet = folder.path("t.parquet");
    write_parquet(&parquet, &batches);
    let csv = folder.write("t.csv", "i8,text,f64,class\n0,a,0.5,b\n");
    for path in [one, many, parquet, csv] {
        let table = folder.builder(&path).columns(["f64", "class", "i8"]).open().unwrap();
        let names: Vec<_> = table.views().map(|column| column.name().to_owned()).collect();
        assert_eq!(names, ["f64", "class", "i8"], "{path:?}");
        table.verify().unwrap();
        let error = folder.builder(&path).columns(["f65"]).open().unwrap_err();
        assert!(matches!(error, SharedTableError::NoColumn { .. }), "{error}");
    }
}

#[test]
fn a_table_that_is_saved_is_mapped() {
    let folder = Folder::new();
    let batch = batch(0, 77, true);
    let path = folder.path("saved.arrow");
    table(&batch).save(&path).unwrap();
    let saved = folder.builder(&path).open().unwrap();
    assert_eq!(saved.path(), Some(&*path));
    assert_eq!(words(&[saved.record_batch().unwrap()]), words(&[batch]));
}

#[test]
fn an_empty_table_has_its_columns() {
    let empty = batch(0, 0, false);
    let table = SharedTable::from_batches(&empty.schema(), []).unwrap();
    assert!(table.is_empty());
    assert_eq!(table.column::<f64>("f64").unwrap(), [0.0; 0]);
    table.verify().unwrap();
    assert_eq!(table.record_batch().unwrap().num_rows(), 0);
}

#[test]
fn dictionaries_of_many_batches_become_one() {
    let batches: Vec<_> = (0..40).map(|n| classes(n, 50)).collect();
    let folder = Folder::new();
    let stream = folder.path("t.arrows");
    write_stream(&stream, &batches);
    let parquet = folder.path("t.parquet");
    write_parquet(&parquet, &batches);
    let tables = [
        SharedTable::from_batches(&batches[0].schema(), batches.clone()).unwrap(),
        folder.builder(&stream).open().unwrap(),
        folder.builder(&parquet).open().unwrap(),
    ];
    for table in tables {
        let class = table.view("class").unwrap();
        let values = class.dictionary().unwrap();
        let strings = values.strings().unwrap();
        let mut distinct: Vec<_> = strings.iter().map(|text| text.unwrap().unwrap()).collect();
        distinct.sort_unstable();
        let count = distinct.len();
        distinct.dedup();
        assert_eq!(distinct.len(), count);
        assert_eq!(words(&[table.record_batch().unwrap()]), words(&batches));
    }
}

#[test]
fn a_dictionary_that_outgrows_its_keys_gets_wider_ones() {
    use loader_core::arrow::array::types::Int8Type;
    use loader_core::arrow::array::{ArrayRef, DictionaryArray};

    let batch = |first: usize| {
        let texts: Vec<_> = (first..first + 100).map(|n| format!("name {n}")).collect();
        let column: DictionaryArray<Int8Type> = texts.iter().map(|text| &**text).collect();
        RecordBatch::try_from_iter([("name", Arc::new(column) as ArrayRef)]).unwrap()
    };
    for (last, keys) in [(128, DType::I8), (129, DType::I32)] {
        let batches = [batch(0), batch(last - 100)];
        let table = SharedTable::from_batches(&batches[0].schema(), batches.clone()).unwrap();
        let name = table.view("name").unwrap();
        assert_eq!((name.storage(), name.dictionary().unwrap().len()), (Some(keys), last));
        assert_eq!(words(&[table.record_batch().unwrap()]), words(&batches));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // Arrow's own writer and reader are the twin.
    #[test]
    fn every_form_of_a_table_gives_the_same_rows(
        sizes in prop::collection::vec(0usize..300, 1..5),
        nulls in any::<bool>(),
        cut in 0usize..20,
    ) {
        let mut first = 0;
        let batches: Vec<_> = sizes
            .iter()
            .map(|&rows| {
                // A slice, so that buffers begin anywhere.
                let made = batch(first, rows + cut, nulls).slice(cut / 2, rows);
                first += rows + cut;
                made
            })
            .collect();
        let expected = words(&batches);
        let folder = Folder::new();
        let plain = folder.path("plain.arrow");
        write_file(&plain, &batches, false);
        let packed = folder.path("packed.arrow");
        write_file(&packed, &batches, true);
        let stream = folder.path("stream.arrows");
        write_stream(&stream, &batches);
        let parquet = folder.path("t.parquet");
        write_parquet(&parquet, &batches);
        for path in [plain, packed, stream, parquet] {
            let table = folder.builder(&path).open().unwrap();
            table.verify().unwrap();
            prop_assert_eq!(&words(&[table.record_batch().unwrap()]), &expected, "{:?}", path);
        }
        let table = SharedTable::from_batches(&batches[0].schema(), batches.clone()).unwrap();
        prop_assert_eq!(&words(&[table.record_batch().unwrap()]), &expected);
        let viewed: Vec<_> = batches.iter().map(views).collect();
        let path = folder.path("views.arrow");
        write_file(&path, &viewed, false);
        let table = folder.builder(&path).open().unwrap();
        prop_assert_eq!(&words(&[table.record_batch().unwrap()]), &words(&viewed));
    }
}
