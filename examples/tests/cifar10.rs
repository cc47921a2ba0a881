//! The program `cifar10`: it learns.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use common::{Place, succeeded};

#[test]
fn three_classes_of_pictures_are_told_apart() {
    let place = Place::with_images(32, 10);
    let mut program = place.program(env!("CARGO_BIN_EXE_cifar10"));
    program.arg("--data").arg(place.data());
    program.args(["--epochs", "8", "--batch-size", "8", "--width", "4", "--lr", "0.03"]);
    // Guessing gives 33%, and the run 63%.
    program.args(["--min-accuracy", "45"]);
    let printed = succeeded(&program.output().unwrap());
    assert!(printed.contains("96 images of 3 classes to train on, 30 to test"), "{printed}");
    assert!(printed.contains("epoch  8/8"), "{printed}");
}
