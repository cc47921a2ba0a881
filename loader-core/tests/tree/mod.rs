//! Folder trees that tests make and that go with them.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A temporary folder with a dataset in `root/` and room for a cache beside it. Paths are relative
/// to the dataset.
pub(crate) struct Tree {
    top: tempfile::TempDir,
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().canonicalize().unwrap().join("root");
        fs::create_dir(&root).unwrap();
        Self { top, root }
    }

    pub(crate) fn top(&self) -> &Path {
        self.top.path()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.top().join("cache")
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn dir(&self, path: impl AsRef<Path>) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    /// An empty file, and the folders above it.
    pub(crate) fn file(&self, path: impl AsRef<Path>) {
        self.text(path, "");
    }

    pub(crate) fn text(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }
}
