//! The list of known pains in docs/pains.md points at tests that exist.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

const LIST: &str = "docs/pains.md";
const ROWS: usize = 62;
/// What a row says where nothing answers it.
const OPEN: &str = "not yet";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rows of the list: number, and its cells from the pain on.
fn rows() -> Vec<(usize, Vec<String>)> {
    let list = fs::read_to_string(root().join(LIST)).unwrap();
    let rows = list.lines().filter_map(|line| {
        let cells: Vec<_> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let number = cells[0].parse().ok()?;
        Some((number, cells[1..4].iter().map(|&cell| cell.to_owned()).collect()))
    });
    rows.collect()
}

/// The names between backquotes: files end in `.rs`, each followed by tests in it.
fn named(cell: &str) -> Vec<(String, Vec<String>)> {
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    for name in cell.split('`').skip(1).step_by(2) {
        if name.ends_with(".rs") {
            files.push((name.to_owned(), Vec::new()));
        } else {
            files.last_mut().unwrap().1.push(name.to_owned());
        }
    }
    files
}

/// Whether a name is that of a test in the source: a function with the attribute, in a block of
/// properties, or in a `tests!` list.
fn is_test(source: &str, name: &str) -> bool {
    let Some((before, _)) = source.split_once(&format!("fn {name}(")) else { return false };
    let attributes = before.lines().rev().skip_while(|line| line.trim().is_empty());
    let attributes = attributes.take_while(|line| {
        let line = line.trim();
        line.starts_with("#[") || line.starts_with("//")
    });
    let listed = source.split("tests![").nth(1).and_then(|list| list.split(']').next());
    listed.is_some_and(|list| list.split(',').any(|listed| listed.trim() == name))
        || attributes.map(str::trim).any(|line| line == "#[test]")
}

#[test]
fn every_pain_has_its_row() {
    let numbers: Vec<_> = rows().into_iter().map(|row| row.0).collect();
    assert_eq!(numbers, (1..=ROWS).collect::<Vec<_>>());
}

#[test]
fn every_test_that_the_list_names_exists() {
    let mut sources: HashMap<String, String> = HashMap::new();
    for (number, cells) in rows() {
        let tests = &cells[2];
        let files = named(tests);
        assert_eq!(files.is_empty(), tests.starts_with(OPEN), "row {number}: {tests}");
        for (file, names) in files {
            let source = sources.entry(file.clone()).or_insert_with(|| {
                fs::read_to_string(root().join(&file))
                    .unwrap_or_else(|e| panic!("row {number}: {file}: {e}"))
            });
            assert!(!names.is_empty(), "row {number}: {file} without a test");
            for name in names {
                assert!(is_test(source, &name), "row {number}: no test {name} in {file}");
            }
        }
    }
}

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let source =
        "#[test]\n#[ignore]\nfn a() {}\n\nfn b() {}\ncrate::tests![\n    c,\n];\nfn c() {}\n";
    let found: Vec<_> =
        ["a", "b", "c", "d"].into_iter().filter(|name| is_test(source, name)).collect();
    assert_eq!(found, ["a", "c"]);
}
