//! Worker processes: the same batches as threads give, and the results of tasks, whatever happens to the
//! processes.
//!
//! A program of its own, since the fork server has to be started before there are threads, as test
//! harnesses have. It starts itself again, with a victim's name, for what ends or spoils a process.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod crashes;
mod data;
mod deaths;
mod limits;
mod models;
mod pool;
mod runs;
mod starting;
mod stats;
#[cfg(feature = "table")]
mod tables;
mod together;
mod victims;
mod waiting;
mod weight;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Some(victim) = victims::asked_for() {
        return victim();
    }
    models::register_transforms();
    loader_core::init_with(data::registry()).unwrap();
    let tests = [
        models::TESTS,
        deaths::TESTS,
        crashes::TESTS,
        starting::TESTS,
        limits::TESTS,
        together::TESTS,
        weight::TESTS,
        waiting::TESTS,
        stats::TESTS,
        pool::TESTS,
        runs::TESTS,
        #[cfg(feature = "table")]
        tables::TESTS,
    ];
    let trials = tests.concat().into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// A test and its name.
type Test = (&'static str, fn());

/// The list of these functions as tests.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[$crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
