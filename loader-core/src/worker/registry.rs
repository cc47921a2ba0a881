//! The datasets that worker processes know how to open, by name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::fill::{MakeSamples, erase};
use crate::dataset::arrays::{self, ArrayDataset};
use crate::dataset::images::{self, ImageDataset};
use crate::dataset::{Dataset, Recipe};

type Attach = dyn Fn(Recipe) -> Result<Arc<dyn MakeSamples>, String> + Send + Sync;

/// The datasets that worker processes can open: [`ImageDataset`](crate::ImageDataset),
/// [`ArrayDataset`](crate::ArrayDataset), and what is added here. Given to [`init_with`](crate::init_with).
pub struct Registry {
    datasets: HashMap<String, Box<Attach>>,
}

impl Registry {
    /// Only the crate's own datasets.
    pub fn new() -> Self {
        Self { datasets: HashMap::new() }
            .dataset(images::RECIPE, ImageDataset::attach)
            .dataset(arrays::RECIPE, ArrayDataset::attach)
    }

    /// Adds a dataset: `attach` opens it from the [`Recipe`] of that name, in a worker process. A
    /// name that is there already is replaced.
    pub fn dataset<D: Dataset, E: fmt::Display>(
        mut self,
        name: impl Into<String>,
        attach: impl Fn(Recipe) -> Result<D, E> + Send + Sync + 'static,
    ) -> Self {
        let attach = move |recipe: Recipe| {
            attach(recipe).map(|dataset| erase(Arc::new(dataset))).map_err(|e| e.to_string())
        };
        self.datasets.insert(name.into(), Box::new(attach));
        self
    }

    pub(super) fn attach(&self, recipe: Recipe) -> Result<Arc<dyn MakeSamples>, String> {
        match self.datasets.get(recipe.name()) {
            Some(attach) => attach(recipe),
            None => Err(format!("no dataset is registered as {:?}", recipe.name())),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.datasets.keys().cloned().collect()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("datasets", &self.names()).finish()
    }
}
