//! The Rust half of `scripts/table-peers`: opens a table that another program wrote, says in JSON what it
//! found, and writes the table again for that program to read.
//!
//!     table_peers SOURCE TARGET

use std::error::Error;

use loader_core::arrow::array::cast::AsArray;
use loader_core::{Column, ColumnError, DType, SharedTable, TableCache};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(source), Some(target)) = (arguments.next(), arguments.next()) else {
        return Err("usage: table_peers SOURCE TARGET".into());
    };
    let table = SharedTable::builder(&source).cache(TableCache::Off).open()?;
    table.verify()?;
    table.save(&target)?;
    // What was saved is mapped where it lies, and is the same.
    let saved = SharedTable::open(&target)?;
    assert_eq!(saved.record_batch()?, table.record_batch()?);
    let columns = table.views().map(|column| Ok((column.name().to_owned(), values(&column)?)));
    let columns = columns.collect::<Result<serde_json::Map<_, _>, ColumnError>>()?;
    let in_place = table.path().is_some();
    println!("{}", json!({ "in_place": in_place, "rows": table.len(), "columns": columns }));
    Ok(())
}

/// The values, dates and the like as the numbers that they are stored as.
fn values(column: &Column<'_>) -> Result<Value, ColumnError> {
    let mut found: Vec<Value> = if let Ok(strings) = column.strings() {
        strings.iter().map(|text| text.map(|text| json!(text))).collect::<Result<_, _>>()?
    } else if let Ok(bits) = column.bools() {
        bits.iter().map(|bit| json!(bit)).collect()
    } else if let Ok((items, size)) = column.items() {
        let items = numbers(&items)?;
        items.chunks(size).map(|items| json!(items)).collect()
    } else if let Ok(values) = column.dictionary() {
        let strings = values.strings()?;
        let keys = column.arrow()?;
        // Those of nulls may be any.
        let keys =
            if values.is_empty() { Vec::new() } else { keys.as_any_dictionary().normalized_keys() };
        let texts = keys.into_iter().map(|key| strings.get(key).map(|text| json!(text)));
        texts.collect::<Result<_, _>>()?
    } else {
        numbers(column)?
    };
    if let Some(validity) = column.validity() {
        for (value, valid) in found.iter_mut().zip(validity.iter()) {
            if !valid {
                *value = Value::Null;
            }
        }
    }
    Ok(Value::Array(found))
}

fn numbers(column: &Column<'_>) -> Result<Vec<Value>, ColumnError> {
    macro_rules! all {
        ($type:ty) => {
            column.values::<$type>()?.iter().map(|value| json!(value)).collect()
        };
    }
    Ok(match column.storage() {
        Some(DType::U8) => all!(u8),
        Some(DType::U16) => all!(u16),
        Some(DType::U32) => all!(u32),
        Some(DType::U64) => all!(u64),
        Some(DType::I8) => all!(i8),
        Some(DType::I16) => all!(i16),
        Some(DType::I32) => all!(i32),
        Some(DType::I64) => all!(i64),
        Some(DType::F32) => all!(f32),
        _ => all!(f64),
    })
}
