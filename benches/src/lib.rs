//! What the measuring programs share: reading their arguments, summing up repeated runs, and telling
//! where they ran.

mod memory;
mod place;
pub mod startup;
pub mod zeros;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use memory::{Footprint, Memory, pss_with};
pub use place::write_results;

/// The `--name value` arguments of a program, and `--name` for those that take none; of several of
/// one name the last counts.
#[derive(Debug)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Reads the command line.
    ///
    /// # Errors
    /// Where an argument is not `--name value` or its name is not among `known`.
    pub fn parse(known: &[&str]) -> Result<Self, String> {
        Self::parse_with_flags(known, &[])
    }

    /// The same, where `flags` take no value.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn parse_with_flags(known: &[&str], flags: &[&str]) -> Result<Self, String> {
        let mut left = std::env::args().skip(1);
        let mut out = Vec::new();
        while let Some(arg) = left.next() {
            let all = [known, flags].concat();
            let name = arg.strip_prefix("--").filter(|name| all.contains(name));
            let Some(name) = name else {
                return Err(format!("unknown argument {arg:?}; known are --{}", all.join(", --")));
            };
            if flags.contains(&name) {
                out.push((name.to_owned(), String::new()));
                continue;
            }
            let value = left.next().ok_or_else(|| format!("--{name} needs a value"))?;
            out.push((name.to_owned(), value));
        }
        Ok(Self(out))
    }

    /// The value of `--name`, where given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// True where `--name` was given.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The value of `--name` as a path.
    ///
    /// # Errors
    /// Where it was not given.
    pub fn path(&self, name: &str) -> Result<PathBuf, String> {
        self.get(name).map(PathBuf::from).ok_or_else(|| format!("--{name} is needed"))
    }

    /// The value of `--name` as a number, or `default` where not given.
    ///
    /// # Errors
    /// Where it is not a number.
    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        self.get(name).map_or(Ok(default), |value| {
            value.parse().map_err(|_| format!("--{name} {value}: not a number"))
        })
    }
}

/// What `work` returns and how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let out = work();
    (out, start.elapsed())
}

/// The middle of the values, the upper one of the two middle ones; `None` where there is none.
pub fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}
