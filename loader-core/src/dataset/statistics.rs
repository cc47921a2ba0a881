//! What the numbers of a table's columns are like, so that a model gets them on one scale.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::Fingerprint;
use super::table::numbers::{Number, Numbers, Values, with_numbers};
use crate::kept::{self, TableCache};
use crate::shared::table::{ColumnError, SharedTable};

/// Rows that are summed up on their own before they are put together.
const CHUNK: usize = 1 << 16;

/// Mean, standard deviation and range of columns, by name.
///
/// Compute them of the training set, and standardise every set with the same:
/// [`TableDatasetBuilder::standardize`](crate::TableDatasetBuilder::standardize). They can be written with
/// any format of serde and kept with the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    columns: BTreeMap<String, Vec<Moments>>,
}

/// What a column, or one place of its lists, holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moments {
    /// Numbers that were counted. Without any, the rest are 0.
    pub count: u64,
    /// Rows without a value, which are left out.
    pub nulls: u64,
    /// Values that are infinite or not a number, which are left out too.
    pub not_finite: u64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation: the root of the mean squared distance from the mean.
    pub std: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

/// Why there are no statistics.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StatisticsError {
    /// A column can't be read as numbers.
    #[error(transparent)]
    Column(#[from] ColumnError),
}

impl Statistics {
    /// Of these columns of a table, computed by all threads of rayon's pool: the table is read once.
    ///
    /// A dictionary counts by its keys, a boolean as 0 or 1, and of a list each place is a column of its
    /// own. Sums are kept as means and squared distances from them and put together pairwise, so that
    /// neither the number of rows nor an offset costs precision. The result does not depend on the number
    /// of threads.
    ///
    /// # Errors
    /// Where there is no such column, or it has no numbers.
    pub fn of<'a>(
        table: &SharedTable,
        columns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, StatisticsError> {
        let mut of = BTreeMap::new();
        for column in columns {
            let numbers = Numbers::of(table, column)?;
            of.insert(column.to_owned(), moments(table, &numbers)?);
        }
        Ok(Self { columns: of })
    }

    /// The same, kept in a file where `cache` says from the first time on, until the table's file changes.
    /// Those of a table in memory are computed each time.
    ///
    /// # Errors
    /// Those of [`of`](Self::of). That a file can't be written is a warning.
    pub fn kept<'a>(
        table: &SharedTable,
        columns: impl IntoIterator<Item = &'a str>,
        cache: &TableCache,
    ) -> Result<Self, StatisticsError> {
        let columns: Vec<&str> = columns.into_iter().collect();
        let options = serde_json::to_vec(&("statistics", 1, &columns)).unwrap_or_default();
        let place = table.path().zip(serde_json::to_vec(table).ok());
        let file = place.and_then(|(path, handle)| {
            let file = cache.file(path, &options, "statistics", |name| std::env::var_os(name))?;
            Some((file, Fingerprint::of(&handle)))
        });
        let Some((file, of)) = file else { return Self::of(table, columns) };
        let attach = || Ok(read(&file, of));
        kept::attach_or_make(&file, false, attach, |no_place| {
            let made = Self::of(table, columns.iter().copied())?;
            let written = match no_place {
                None => write(&file, &Kept { of, statistics: made.clone() }),
                Some(error) => Err(error),
            };
            if let Err(error) = written {
                tracing::warn!(file = %file.display(), %error, "statistics could not be kept");
            }
            Ok(made)
        })
    }

    /// Those of some of the columns.
    pub(super) fn only<'a>(&self, columns: impl Iterator<Item = &'a String>) -> Self {
        let columns =
            columns.filter_map(|name| Some((name.clone(), self.columns.get(name)?.clone())));
        Self { columns: columns.collect() }
    }

    /// Of a column: one entry, or one for each place of its lists. `None` where it is not among them.
    pub fn get(&self, column: &str) -> Option<&[Moments]> {
        self.columns.get(column).map(Vec::as_slice)
    }

    /// The columns, by name.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = (&str, &[Moments])> {
        self.columns.iter().map(|(name, moments)| (name.as_str(), moments.as_slice()))
    }
}

/// What the file holds: the statistics, and which table they are of.
#[derive(Serialize, Deserialize)]
struct Kept {
    of: Fingerprint,
    statistics: Statistics,
}

fn read(file: &Path, of: Fingerprint) -> Option<Statistics> {
    let kept: Kept = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (kept.of == of).then_some(kept.statistics)
}

fn write(file: &Path, kept: &Kept) -> std::io::Result<()> {
    kept::replace(file, |to| serde_json::to_writer(to, kept).map_err(std::io::Error::from))
        .map(drop)
}

/// Of one column, one for each place of its lists.
fn moments(table: &SharedTable, numbers: &Numbers) -> Result<Vec<Moments>, ColumnError> {
    let (values, present) = numbers.read(table)?;
    let (rows, width) = (table.len(), numbers.width);
    let chunks: Vec<_> = (0..rows).step_by(CHUNK).map(|at| at..rows.min(at + CHUNK)).collect();
    let of_place = |place: usize| {
        let sums = |rows: Range<usize>| {
            with_numbers!(values, get => {
                let items = rows.map(|row| (row, row * width + place));
                if present.all() {
                    Sums::of(items.map(|(_, item)| get(item).to_f64()))
                } else {
                    let all = items.len();
                    let there = items.filter(|&(row, item)| present.has(row, item));
                    let sums = Sums::of(there.map(|(_, item)| get(item).to_f64()));
                    Sums { nulls: all as u64 - sums.count - sums.not_finite, ..sums }
                }
            })
        };
        let parts: Vec<_> = chunks.par_iter().map(|rows| sums(rows.clone())).collect();
        together(&parts).moments()
    };
    Ok((0..width).map(of_place).collect())
}

/// Puts halves together, so that errors grow with the logarithm of the number of parts.
fn together(parts: &[Sums]) -> Sums {
    match parts {
        [] => Sums::default(),
        [one] => *one,
        parts => {
            let (left, right) = parts.split_at(parts.len() / 2);
            together(left).and(together(right))
        }
    }
}

/// Count, mean, and squared distances from the mean, of some rows.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    nulls: u64,
    not_finite: u64,
    mean: f64,
    squares: f64,
    min: f64,
    max: f64,
}

impl Sums {
    /// Of few enough numbers to be summed up in two passes.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let mut found = Self { min: f64::INFINITY, max: f64::NEG_INFINITY, ..Self::default() };
        // Distances from the first number stay small where all numbers are large.
        let Some(first) = values.clone().find(|value| value.is_finite()) else {
            return Self { not_finite: values.count() as u64, ..Self::default() };
        };
        let mut sum = 0.0;
        for value in values.clone() {
            if value.is_finite() {
                found.count += 1;
                // Scaled down, since the distance of two numbers may be more than the largest one.
                sum += value / 2.0 - first / 2.0;
                found.min = found.min.min(value);
                found.max = found.max.max(value);
            } else {
                found.not_finite += 1;
            }
        }
        found.mean = first + 2.0 * (sum / found.count as f64);
        let mean = found.mean;
        let squares = values.filter(|value| value.is_finite()).map(|value| (value - mean).powi(2));
        found.squares = squares.sum();
        found
    }

    /// Of both (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    /// variances", 1979).
    fn and(self, other: Self) -> Self {
        let nulls = self.nulls + other.nulls;
        let not_finite = self.not_finite + other.not_finite;
        let (a, b) = match (self.count, other.count) {
            (_, 0) => return Self { nulls, not_finite, ..self },
            (0, _) => return Self { nulls, not_finite, ..other },
            (a, b) => (a as f64, b as f64),
        };
        let distance = other.mean - self.mean;
        Self {
            count: self.count + other.count,
            nulls,
            not_finite,
            mean: self.mean + distance * (b / (a + b)),
            squares: self.squares + other.squares + distance * distance * (a * (b / (a + b))),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    fn moments(self) -> Moments {
        let Self { count, nulls, not_finite, mean, squares, min, max } = self;
        if count == 0 {
            return Moments { nulls, not_finite, ..Moments::default() };
        }
        let std = (squares / count as f64).sqrt();
        Moments { count, nulls, not_finite, mean, std, min, max }
    }
}
