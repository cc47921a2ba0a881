//! Runs the example on text that is made here.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_custom_dataset");
    Command::new(program).arg(dir).args(args).output().unwrap()
}

/// What it says, but for the speed.
fn told(dir: &Path, args: &[&str]) -> Vec<String> {
    let Output { status, stdout, stderr } = run(dir, args);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let text = String::from_utf8(stdout).unwrap();
    text.lines().map(|line| line.rsplit_once(", ").map_or(line, |(rest, _)| rest).into()).collect()
}

/// 300 lines of 3, 7 and 30 bytes, in two languages.
fn texts() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines = |of: [&str; 3]| -> String { of.iter().cycle().take(150).copied().collect() };
    let numbers = ["one\n", "\n", "fifteen and twenty-one make 36\n"];
    fs::write(dir.path().join("english.txt"), lines(numbers)).unwrap();
    // In upper case, of another system, and without an end of its last line.
    let more = lines(["a\u{20ac}bcd\r\n", "eins zw\r\n", "noch\r\n"]) + "ende";
    fs::write(dir.path().join("other.TXT"), more).unwrap();
    fs::write(dir.path().join("notes.md"), "no text\n").unwrap();
    dir
}

#[test]
fn lines_are_the_same_batches_in_threads_and_processes() {
    let dir = texts();
    let of = |workers: &str| {
        told(dir.path(), &["--workers", workers, "--length", "16", "--epochs", "2"])
    };
    let threads = of("threads:2");
    // 50 lines of 3 bytes and 50 cut to 16; 100 of 7 bytes, 50 of 4 and the last.
    let bytes = 50 * 3 + 50 * 16 + 100 * 7 + 50 * 4 + 4;
    assert!(threads[0].starts_with("251 lines of 2 files: english"), "{threads:?}");
    assert!(threads[1].starts_with(&format!("epoch 0: 251 lines, {bytes} bytes, content ")));
    assert_eq!(threads.len(), 3);
    let content = |line: &str| line.split("content ").nth(1).unwrap().to_owned();
    assert_ne!(content(&threads[1]), content(&threads[2]), "another order");
    for workers in ["threads:1", "processes:2", "subprocess:2"] {
        assert_eq!(of(workers), threads, "{workers}");
    }
}

#[test]
fn a_folder_without_text_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("empty.txt"), "\n\n").unwrap();
    let Output { status, stderr, .. } = run(dir.path(), &[]);
    assert!(!status.success());
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(stderr.contains("no line of text"), "{stderr}");
    assert!(stderr.contains(dir.path().to_str().unwrap()), "{stderr}");
}
