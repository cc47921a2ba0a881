//! Tables of every origin, and loaders over their rows.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod converting;
mod damage;
mod handles;
mod lending;
mod loading;
mod made;
mod reading;
