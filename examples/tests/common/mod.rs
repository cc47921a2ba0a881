//! Runs the programs of this crate on data that they draw themselves.

use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder with a small data set in `data`, and room beside it.
pub struct Place(TempDir);

impl Place {
    /// That many images of each of three classes to train and to validate on.
    pub fn with_images(train: u32, val: u32) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let made = Command::new(env!("CARGO_BIN_EXE_make_dataset"))
            .arg("--out")
            .arg(place.data())
            .args(["--classes", "3"])
            .arg(format!("--train-per-class={train}"))
            .arg(format!("--val-per-class={val}"))
            .output()
            .unwrap();
        succeeded(&made);
        place
    }

    pub fn data(&self) -> PathBuf {
        self.join("data")
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A program that keeps its path tables here, and computes with one thread: on a busy machine,
    /// libtorch's threads wait minutes for each other.
    pub fn program(&self, path: &str) -> Command {
        let mut program = Command::new(path);
        program.env("LOADER_CACHE_DIR", self.join("tables")).env("OMP_NUM_THREADS", "1");
        program
    }
}

/// What the program printed.
pub fn succeeded(output: &Output) -> String {
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (told(&output.stdout), told(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    stdout
}
