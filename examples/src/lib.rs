//! What the training programs of this crate share.
//!
//! [`training`] is the loop of the `imagenet` programs, for any framework that is a
//! [`Learner`](training::Learner); [`in_burn`] and `in_tch` (feature `tch`) are two. What stands
//! around the loop is the same for both: arguments, data, targets, schedule, meters, checkpoints and
//! the shape of the network.

pub mod args;
pub mod checkpoint;
pub mod data;
pub mod in_burn;
#[cfg(feature = "tch")]
pub mod in_tch;
pub mod meters;
pub mod network;
pub mod schedule;
pub mod star;
pub mod targets;
pub mod training;

/// Whatever ends a program, to be told to who started it.
pub type Error = Box<dyn std::error::Error>;

/// Runs what a `main` consists of, and tells what ended it.
pub fn exit_code(run: impl FnOnce() -> Result<(), Error>) -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
