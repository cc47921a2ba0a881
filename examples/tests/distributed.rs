//! The program `distributed`: its ranks have the data set between them, and end with the same weights.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use std::net::TcpListener;
use std::process::{Command, Stdio};

use common::{Place, succeeded};

/// 33 images, so that no number of ranks divides them.
fn program(place: &Place) -> Command {
    let mut program = place.program(env!("CARGO_BIN_EXE_distributed"));
    program.arg("--data").arg(place.data());
    program.args(["--epochs", "2", "--batch-size", "4", "--size", "16", "--width", "4"]);
    program
}

/// What each rank says of its weights.
fn weights(printed: &str) -> Vec<&str> {
    printed.lines().filter_map(|line| Some(line.split_once(": weights ")?.1)).collect()
}

#[test]
fn ranks_launched_together_have_every_sample_once() {
    let place = Place::with_images(11, 1);
    let printed = succeeded(&program(&place).args(["--launch", "3"]).output().unwrap());
    let each = "11 + 11 + 11 = 33 samples, each once";
    assert_eq!(printed.matches(each).count(), 2, "{printed}");
    let weights = weights(&printed);
    assert_eq!(weights, [weights[0]; 3]);
}

#[test]
fn ranks_started_by_hand_have_every_sample_once() {
    let place = Place::with_images(11, 1);
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let master = free.local_addr().unwrap().port() - 1;
    drop(free);
    let rank = |rank: &str| {
        let mut program = program(&place);
        program.env("RANK", rank).env("WORLD_SIZE", "2");
        program.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", master.to_string());
        program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Rank 0 last: the other waits for it.
    let other = rank("1");
    let printed = succeeded(&rank("0").wait_with_output().unwrap());
    let others = succeeded(&other.wait_with_output().unwrap());
    assert!(printed.contains("rank 0 of 2: 17 of 33 images, 5 batches an epoch"), "{printed}");
    assert!(printed.contains("17 + 16 = 33 samples, each once"), "{printed}");
    assert_eq!(weights(&printed), weights(&others));
    assert_eq!(weights(&printed).len(), 1);
}

#[test]
fn a_rank_that_nobody_told_its_place_says_what_to_set() {
    let place = Place::with_images(1, 1);
    let mut program = program(&place);
    for variable in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"] {
        program.env_remove(variable);
    }
    let output = program.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("RANK and WORLD_SIZE"), "{told}");
}
