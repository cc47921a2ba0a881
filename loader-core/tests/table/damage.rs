//! Files that are damaged, or were made to do harm, give errors or other rows.

use std::path::Path;

use loader_core::{SharedTable, TableCache, TableDataset};
use proptest::prelude::*;

use crate::made::*;

/// Touches everything that a reader can.
fn read_all(table: &SharedTable) {
    for column in table.views() {
        let rows = column.len().min(200);
        if let Ok(strings) = column.strings() {
            (0..rows).for_each(|row| drop(strings.get(row)));
        }
        if let Ok(blobs) = column.blobs() {
            (0..rows).for_each(|row| drop(blobs.get(row)));
        }
        if let Some(validity) = column.validity() {
            validity.null_count();
        }
        let _ = column.values::<f64>().map(|values| values.iter().sum::<f64>());
        let _ = column.bools().map(|bits| bits.iter().filter(|&bit| bit).count());
        let _ = column.lists::<f32>();
        let _ = column.dictionary().and_then(|values| values.arrow());
        let _ = column.arrow();
        if let Ok(slices) = table.slices(&[column.name()], 100) {
            for slice in slices {
                slice.into_fields().for_each(|(_, mut field)| field.as_mut().fill(1));
            }
        }
        let built = TableDataset::builder(table.clone()).features([column.name()]).build();
        let _ = built.map(|dataset| loader_core::Dataset::fingerprint(&dataset));
    }
    let _ = table.verify();
    let _ = table.record_batch();
}

fn survive(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    if let Ok(table) = SharedTable::builder(path).cache(TableCache::Off).open() {
        read_all(&table);
    }
}

/// Files of every form, small enough to be damaged often.
fn files(folder: &Folder) -> Vec<Vec<u8>> {
    let batches = [batch(0, 30, true), batch(30, 20, true)];
    let path = folder.path("whole");
    let mut files = Vec::new();
    let mut keep = || files.push(std::fs::read(&path).unwrap());
    table(&batches[0]).save(&path).unwrap();
    keep();
    write_file(&path, &batches[..1], false);
    keep();
    write_file(&path, &batches, true);
    keep();
    write_stream(&path, &batches);
    keep();
    write_parquet(&path, &batches);
    keep();
    files
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_survived(which in 0usize..5, seed in any::<u64>(), cut in 0u8..4) {
        thread_local! {
            static FILES: Vec<Vec<u8>> = files(&Folder::new());
        }
        let mut bytes = FILES.with(|files| files[which].clone());
        let mut state = seed;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for _ in 0..1 + draw(4) {
            // Half of them where the metadata is.
            let at = if draw(2) == 0 { draw(bytes.len()) } else { bytes.len() - 1 - draw(bytes.len() / 4) };
            bytes[at] = match draw(4) {
                0 => bytes[at] ^ (1 << draw(8)),
                1 => 0xff,
                2 => 0,
                _ => draw(256) as u8,
            };
        }
        if cut == 0 {
            bytes.truncate(draw(bytes.len()));
        }
        let folder = Folder::new();
        survive(&folder.path("damaged"), &bytes);
    }
}

#[test]
fn every_prefix_of_a_mapped_file_is_an_error() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    table(&batch(0, 20, true)).save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert!(SharedTable::builder(&path).cache(TableCache::Off).open().is_err(), "{len}");
    }
}

#[test]
fn a_column_that_is_damaged_inside_is_told_where_it_is_touched() {
    let folder = Folder::new();
    let path = folder.path("t.arrow");
    let whole = table(&batch(0, 20, false));
    whole.save(&path).unwrap();
    let text = whole.view("text").unwrap().blobs().unwrap().get(3).unwrap().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    bytes[at] = 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let table = SharedTable::open(&path).unwrap();
    let strings = table.view("text").unwrap().strings().unwrap();
    assert!(strings.get(2).is_ok());
    assert!(strings.get(3).unwrap_err().to_string().contains("row 3 is not UTF-8"));
    assert!(table.arrow("text").is_err() && table.verify().is_err());
    assert_eq!(table.column::<f64>("f64").unwrap().len(), 20);
}

#[test]
fn other_files_are_told_for_what_they_are() {
    let folder = Folder::new();
    for (content, words) in [
        (&b""[..], "it is empty"),
        (b"\x1f\x8b\x08 zipped", "unpack it first"),
        (b"FEA1 old", "write it again as version 2"),
        (b"\xff\xd8\xff\xe0 a photograph", "neither an Arrow file"),
        (b"a\0b", "neither an Arrow file"),
        (b"ARROW1\0\0", "does not begin as"),
        (b"PAR1 and no more", "damaged"),
    ] {
        let path = folder.write("file", content);
        let error = folder.builder(&path).open().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let error = folder.builder(&folder.path("missing")).open().unwrap_err().to_string();
    assert!(error.contains("No such file"), "{error}");
    let error = folder.builder(folder.0.path()).open().unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
