//! How a dataset gets into a worker process: not the dataset travels, but what it takes to open it.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What it takes to open a dataset in another process: the name under which the program registered
/// it, a small description, and open files.
///
/// Anything large belongs into a file or a shared mapping whose descriptor is passed, so that all
/// workers use one copy. Description and dataset names together may take some 60 kB.
///
/// Made by [`Dataset::recipe`](super::Dataset::recipe), and turned into a dataset by the function
/// that was given to [`Registry::dataset`](crate::Registry::dataset).
#[derive(Debug)]
pub struct Recipe {
    name: String,
    spec: Value,
    files: Vec<Option<OwnedFd>>,
}

impl Recipe {
    /// A recipe for the dataset registered as `name`.
    ///
    /// # Errors
    /// Where `spec` can't be written as JSON.
    pub fn new(name: impl Into<String>, spec: &impl Serialize) -> Result<Self, RecipeError> {
        let spec = serde_json::to_value(spec).map_err(|e| RecipeError::Spec(e.to_string()))?;
        Ok(Self { name: name.into(), spec, files: Vec::new() })
    }

    /// Adds an open file, which every worker gets too. Position and locks are shared with it.
    ///
    /// # Errors
    /// Where this process may not open more files.
    pub fn file(mut self, file: impl AsFd) -> Result<Self, RecipeError> {
        let fd = file.as_fd().try_clone_to_owned().map_err(|e| RecipeError::File(e.to_string()))?;
        self.files.push(Some(fd));
        Ok(self)
    }

    /// The name that the dataset is registered under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The description.
    ///
    /// # Errors
    /// Where it is not a `T`.
    pub fn spec<T: DeserializeOwned>(&self) -> Result<T, RecipeError> {
        T::deserialize(&self.spec).map_err(|e| RecipeError::Spec(e.to_string()))
    }

    /// Takes the `n`-th of the files, in the order in which they were added.
    ///
    /// # Errors
    /// Where there is no such file, or it was taken before.
    pub fn take_file(&mut self, n: usize) -> Result<File, RecipeError> {
        let fd = self.files.get_mut(n).and_then(Option::take).ok_or(RecipeError::NoFile(n))?;
        Ok(File::from(fd))
    }

    /// What travels as text; the files go beside it.
    pub(crate) fn described(&self) -> DescribedRecipe {
        DescribedRecipe { name: self.name.clone(), spec: self.spec.clone() }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().flatten().map(AsFd::as_fd)
    }
}

/// A recipe without its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DescribedRecipe {
    pub(crate) name: String,
    spec: Value,
}

impl DescribedRecipe {
    pub(crate) fn with_files(self, files: Vec<OwnedFd>) -> Recipe {
        let files = files.into_iter().map(Some).collect();
        Recipe { name: self.name, spec: self.spec, files }
    }
}

/// Why a dataset can't go to a worker process, or can't be opened there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecipeError {
    /// The dataset does not implement [`recipe`](super::Dataset::recipe).
    NotShareable,
    /// The description can't be written, or read as what was asked for.
    Spec(String),
    /// A file can't be passed on.
    File(String),
    /// There is no such file in the recipe.
    NoFile(usize),
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotShareable => f.write_str(
                "the dataset does not say how another process opens it: implement \
                 Dataset::recipe and register it with init_with, or use worker threads",
            ),
            Self::Spec(error) => write!(f, "the description of the dataset: {error}"),
            Self::File(error) => write!(f, "a file of the dataset: {error}"),
            Self::NoFile(n) => write!(f, "file {n} of the dataset is not there, or was taken"),
        }
    }
}

impl std::error::Error for RecipeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_arrives_as_it_was_made() {
        let file = tempfile::tempfile().unwrap();
        let recipe = Recipe::new("numbers", &(3u64, 0.1f64)).unwrap().file(&file).unwrap();
        let text = serde_json::to_string(&recipe.described()).unwrap();
        let described: DescribedRecipe = serde_json::from_str(&text).unwrap();
        let mut back = described.with_files(vec![file.into()]);
        assert_eq!((back.name(), back.spec::<(u64, f64)>()), ("numbers", Ok((3, 0.1))));
        assert!(matches!(back.spec::<String>(), Err(RecipeError::Spec(_))));
        back.take_file(0).unwrap();
        assert_eq!(back.take_file(0).unwrap_err(), RecipeError::NoFile(0));
    }
}
