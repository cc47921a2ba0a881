//! Runs the example on the table that it makes up, and on others.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(cache: &Path, args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tabular"));
    program.env("LOADER_CACHE_DIR", cache).args(args).output().unwrap()
}

/// What it says of each epoch, but for the speed.
fn epochs(cache: &Path, args: &[&str]) -> Vec<String> {
    let output = run(cache, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8(output.stdout).unwrap();
    let epochs = told.lines().filter(|line| line.starts_with("epoch "));
    epochs.map(|line| line.rsplit_once(", ").unwrap().0.to_owned()).collect()
}

fn explained(epoch: &str) -> f64 {
    epoch.split('(').nth(1).unwrap().split('%').next().unwrap().parse().unwrap()
}

#[test]
fn it_learns_more_than_a_linear_function_could() {
    let cache = tempfile::tempdir().unwrap();
    let told = epochs(cache.path(), &["--epochs", "4"]);
    // The linear part of the function explains some 75%; noise is 4%.
    assert!(explained(told.last().unwrap()) > 85.0, "{told:?}");
}

#[test]
fn workers_and_a_kept_table_make_no_difference() {
    let place = tempfile::tempdir().unwrap();
    let (cache, csv) = (place.path().join("cache"), place.path().join("data.csv"));
    let rows: String =
        (0..500).map(|i| format!("{},{},{}\n", i % 7, i % 11, (i % 7) * 2)).collect();
    fs::write(&csv, format!("a,b,c\n{rows}")).unwrap();
    let of = |workers: &str| {
        let csv = csv.to_str().unwrap();
        let args = ["--csv", csv, "--target", "c", "--epochs", "2", "--batch-size", "64"];
        epochs(&cache, &[&args[..], &["--workers", workers]].concat())
    };
    let first = of("threads:1");
    assert_eq!(first.len(), 2);
    for workers in ["threads:2", "processes:2"] {
        assert_eq!(of(workers), first, "{workers}");
    }
}

#[test]
fn a_column_that_is_not_there_is_named() {
    let place = tempfile::tempdir().unwrap();
    let csv = place.path().join("data.csv");
    fs::write(&csv, "a,b\n1,2\n").unwrap();
    let output = run(place.path(), &["--csv", csv.to_str().unwrap(), "--target", "price"]);
    assert!(!output.status.success());
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("price"), "{told}");
}
