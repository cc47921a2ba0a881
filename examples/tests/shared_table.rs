//! Runs the example on a small table.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;

fn told(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_shared_table")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn both_ways_sum_the_whole_table_and_the_memory_is_told() {
    let sum = |told: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix("sum of all: "));
        line.unwrap().parse::<f64>().unwrap()
    };
    let many = told(&["--rows", "200000", "--columns", "3", "--tasks", "32", "--processes", "3"]);
    let one = told(&["--rows", "200000", "--columns", "3", "--tasks", "1", "--processes", "1"]);
    // 600,000 numbers from 0 to 1; parts of rows add up in another order.
    assert!((sum(&many) - 300_000.0).abs() < 2_000.0, "{many}");
    assert!((sum(&many) - sum(&one)).abs() < 0.01, "{one}");
    for part in ["3 columns of f64", "as an argument", "as a global", "Was the table copied?"] {
        assert!(many.contains(part), "{many}");
    }
    assert_eq!(many.matches("\nworker ").count(), 3, "{many}");
}

#[test]
fn more_tasks_than_rows_are_tasks_without_rows() {
    let told = told(&["--rows", "3", "--columns", "1", "--tasks", "8", "--processes", "2"]);
    assert!(told.contains("8 tasks on 2 processes"), "{told}");
}
