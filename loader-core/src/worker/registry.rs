//! The datasets that worker processes know how to open, and the tasks that they know how to run, by name.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::fill::{MakeSamples, erase};
use super::pool::{PoolTask, Run};
use crate::dataset::arrays::{self, ArrayDataset};
use crate::dataset::images::{self, ImageDataset};
#[cfg(feature = "table")]
use crate::dataset::table::{self, TableDataset};
use crate::dataset::{Dataset, Recipe};

type Attach = dyn Fn(Recipe) -> Result<Arc<dyn MakeSamples>, String> + Send + Sync;

/// The datasets that worker processes can open: the crate's own (images of folders, arrays, rows of
/// tables), and what is added here; and the tasks that a [`ProcessPool`](crate::ProcessPool) can run. Given
/// to [`init_with`](crate::init_with).
pub struct Registry {
    datasets: HashMap<String, Box<Attach>>,
    tasks: Vec<(String, Run)>,
}

impl Registry {
    /// Only the crate's own datasets.
    pub fn new() -> Self {
        let registry = Self { datasets: HashMap::new(), tasks: Vec::new() }
            .dataset(images::RECIPE, ImageDataset::attach)
            .dataset(arrays::RECIPE, ArrayDataset::attach);
        #[cfg(feature = "table")]
        let registry = registry.dataset(table::RECIPE, TableDataset::attach);
        registry
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

    /// Adds a [`Task`](crate::Task) or a [`SharedTask`](crate::SharedTask). No two may have one name, which
    /// [`init_with`](crate::init_with) refuses.
    pub fn task(mut self, task: impl PoolTask) -> Self {
        self.tasks.push((task.name().to_owned(), task.erase()));
        self
    }

    /// A name that two tasks have.
    pub(super) fn doubled(&self) -> Option<&str> {
        let mut names = HashSet::new();
        self.tasks.iter().map(|(name, _)| &**name).find(|&name| !names.insert(name))
    }

    pub(super) fn attach(&self, recipe: Recipe) -> Result<Arc<dyn MakeSamples>, String> {
        match self.datasets.get(recipe.name()) {
            Some(attach) => attach(recipe),
            None => Err(format!("no dataset is registered as {:?}", recipe.name())),
        }
    }

    pub(super) fn datasets(&self) -> Vec<String> {
        self.datasets.keys().cloned().collect()
    }

    pub(super) fn tasks(&self) -> Vec<String> {
        self.tasks.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The task at that place of [`tasks`](Self::tasks).
    pub(super) fn run(&self, task: u32) -> Option<&Run> {
        self.tasks.get(task as usize).map(|(_, run)| run)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("datasets", &self.datasets())
            .field("tasks", &self.tasks())
            .finish()
    }
}
