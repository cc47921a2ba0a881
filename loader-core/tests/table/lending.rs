//! Rows in their order, lent without a copy.

use loader_core::{ColumnError, DType};

use crate::made::*;

#[test]
fn slices_cover_all_rows_in_order_and_are_not_copies() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    write_file(&path, &[batch(0, 1000, false)], false);
    let table = folder.builder(&path).open().unwrap();
    let mut seen = (Vec::new(), Vec::new());
    let slices = table.slices(&["f64", "lists"], 300).unwrap();
    assert_eq!(slices.len(), 4);
    for mut slice in slices {
        let (rows, mut lists) = (slice.rows(), slice.take("lists").unwrap());
        assert!(slice.take("lists").is_err());
        assert_eq!((lists.dtype(), lists.shape()), (DType::F32, &[rows.len(), 3][..]));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = lists.as_mut_ptr() as usize;
        let map = maps.lines().find(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
            (start..end).contains(&at)
        });
        assert!(map.is_some_and(|map| map.ends_with("t.arrow")), "{map:?}");
        seen.0.extend(bytes_as::<f32>(lists.as_ref()));
        for (name, field) in slice.into_fields() {
            assert_eq!((&*name, field.shape()), ("f64", &[rows.len()][..]));
            seen.1.extend(bytes_as::<f64>(field.as_ref()));
        }
    }
    assert_eq!(seen.0, table.view("lists").unwrap().lists::<f32>().unwrap().0);
    assert_eq!(seen.1, table.column::<f64>("f64").unwrap());
    let some = table.slices_of(&["f64"], 990..1000, 4).unwrap().map(|slice| slice.rows());
    assert_eq!(some.collect::<Vec<_>>(), [990..994, 994..998, 998..1000]);
}

fn bytes_as<T: loader_core::Element>(bytes: &[u8]) -> Vec<T> {
    bytemuck::cast_slice(bytes).to_vec()
}

#[test]
fn what_is_written_to_a_lent_field_nobody_else_sees() {
    let table = table(&numbers(1000));
    let before = table.column::<f64>("a").unwrap().to_vec();
    let mut first: Vec<_> = table.slices(&["a"], 400).unwrap().collect();
    let mut field = first.remove(0).take("a").unwrap();
    field.as_mut().fill(0xff);
    assert_eq!(table.column::<f64>("a").unwrap(), before);
    let other = table.slices(&["a"], 400).unwrap().next().unwrap().take("a").unwrap();
    assert_eq!(bytes_as::<f64>(other.as_ref()), before[..400]);
    let next = first.remove(0).take("a").unwrap();
    assert_eq!(bytes_as::<f64>(next.as_ref()), before[400..800]);
    // Fields outlive the table, on any thread.
    drop((table, first));
    let sum = std::thread::spawn(move || field.as_ref().iter().map(|&b| u64::from(b)).sum::<u64>());
    assert_eq!(sum.join().unwrap(), 400 * 8 * 255);
    assert_eq!(bytes_as::<f64>(next.as_ref()), before[400..800]);
}

#[test]
fn columns_that_can_not_be_lent_are_named() {
    let table = table(&batch(0, 20, true));
    let refuse = |names: &[&str]| table.slices(names, 5).unwrap_err();
    assert!(matches!(refuse(&["f64"]), ColumnError::Nulls { nulls: 7, .. }));
    assert!(matches!(refuse(&["none"]), ColumnError::Missing { .. }));
    let whole = crate::made::table(&batch(0, 20, false));
    let twice = whole.slices(&["f64", "f64"], 5).unwrap_err().to_string();
    assert!(twice.contains("asked for twice"), "{twice}");
    assert!(matches!(whole.slices(&["text"], 5), Err(ColumnError::Type { .. })));
    assert!(matches!(whole.slices_of(&["f64"], 0..21, 5), Err(ColumnError::Row { .. })));
}
