//! Trains a ResNet on an image folder with tch, on the CPU: the program `imagenet` in another
//! framework.

use std::process::ExitCode;

use examples::in_tch::Tch;

fn main() -> ExitCode {
    examples::training::main::<Tch>()
}
