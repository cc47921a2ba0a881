//! The program `imagenet_tch`: interrupted anywhere and resumed, it gives what it gives unbroken.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;
mod interruption;

const PROGRAM: &str = env!("CARGO_BIN_EXE_imagenet_tch");

#[test]
fn a_run_stopped_anywhere_and_resumed_is_the_unbroken_run() {
    interruption::stopped_anywhere(PROGRAM);
}

#[test]
fn a_run_killed_amid_an_epoch_and_resumed_is_the_unbroken_run() {
    interruption::killed(PROGRAM);
}

#[test]
fn resnet_50_trains_and_goes_on() {
    interruption::resnet50(PROGRAM);
}

#[test]
fn checkpoints_of_other_runs_are_refused_with_what_differs() {
    interruption::other_runs(PROGRAM);
}
