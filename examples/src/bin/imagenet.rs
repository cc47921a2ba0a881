//! Trains a ResNet on an image folder with burn, on the CPU.

use std::process::ExitCode;

use examples::in_burn::Burn;

fn main() -> ExitCode {
    examples::training::main::<Burn>()
}
