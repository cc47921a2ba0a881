//! Checkpoints: folders that are whole or not there, of which the newest is kept.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use loader_core::LoaderState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::meters::Score;

/// A checkpoint's file beside those of the framework.
const PROGRESS: &str = "progress.json";

/// How far a run has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// What the run is: whatever of the arguments must stay the same.
    pub recipe: Value,
    /// Steps done.
    pub step: u64,
    /// Of the epoch's samples so far.
    pub score: Score,
    /// Where the loader of the training set stands.
    pub loader: LoaderState,
}

/// The folder of a run's checkpoints.
///
/// A checkpoint is a folder `step-00001234` in it, with the framework's files and
/// `progress.json`. It is written under another name, forced to the disk and renamed; only then are
/// older ones removed. So a run that is killed at any moment leaves the last one whole.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// Makes the folder, where it isn't there, and removes what a killed run left half written.
    ///
    /// # Errors
    /// Where that can't be done.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|e| at(folder, &e))?;
        for entry in fs::read_dir(folder).map_err(|e| at(folder, &e))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(".step-") {
                fs::remove_dir_all(entry.path()).map_err(|e| at(&entry.path(), &e))?;
            }
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where checkpoints are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a checkpoint, of which `write` makes the framework's files, and removes older ones.
    ///
    /// # Errors
    /// Where a file can't be written; older checkpoints are still there then.
    pub fn save(
        &self,
        progress: &Progress,
        write: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let name = format!("step-{:08}", progress.step);
        let (aside, named) = (self.folder.join(format!(".{name}.part")), self.folder.join(name));
        fs::create_dir(&aside).map_err(|e| at(&aside, &e))?;
        write(&aside)?;
        let json = serde_json::to_vec_pretty(progress)?;
        fs::write(aside.join(PROGRESS), json).map_err(|e| at(&aside, &e))?;
        for file in fs::read_dir(&aside)? {
            File::open(file?.path())?.sync_all()?;
        }
        File::open(&aside)?.sync_all()?;
        fs::rename(&aside, &named).map_err(|e| at(&named, &e))?;
        File::open(&self.folder)?.sync_all()?;
        for (step, folder) in self.all()? {
            if step < progress.step {
                fs::remove_dir_all(&folder).map_err(|e| at(&folder, &e))?;
            }
        }
        Ok(named)
    }

    /// The newest checkpoint, if there is any.
    ///
    /// # Errors
    /// Where it can't be read or is of another run, with everything that differs.
    pub fn newest(&self, recipe: &Value) -> Result<Option<(PathBuf, Progress)>, Error> {
        let Some((_, folder)) = self.all()?.into_iter().max() else { return Ok(None) };
        let file = folder.join(PROGRESS);
        let json = fs::read(&file).map_err(|e| at(&file, &e))?;
        let progress: Progress =
            serde_json::from_slice(&json).map_err(|e| format!("{}: {e}", file.display()))?;
        let differences = differences(&progress.recipe, recipe);
        if !differences.is_empty() {
            let folder = folder.display();
            return Err(format!("{folder} is of another run: {}", differences.join(", ")).into());
        }
        Ok(Some((folder, progress)))
    }

    /// Steps and folders of all that are whole.
    fn all(&self) -> Result<Vec<(u64, PathBuf)>, Error> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|e| at(&self.folder, &e))? {
            let entry = entry?;
            let name = entry.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.parse().ok());
            all.extend(step.map(|step| (step, entry.path())));
        }
        Ok(all)
    }
}

fn at(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Every entry that differs, with what it was and what it is.
fn differences(was: &Value, is: &Value) -> Vec<String> {
    let (Some(was), Some(is)) = (was.as_object(), is.as_object()) else { return Vec::new() };
    let mut names: Vec<_> = was.keys().chain(is.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let absent = Value::Null;
    let differing = names.into_iter().filter_map(|name| {
        let (was, is) = (was.get(name).unwrap_or(&absent), is.get(name).unwrap_or(&absent));
        (was != is).then(|| format!("{name} was {was} and is {is}"))
    });
    differing.collect()
}

/// A number that tells weights apart, bit by bit (64-bit FNV-1a).
pub fn fingerprint(weights: &[f32]) -> u64 {
    let bytes = weights.iter().flat_map(|weight| weight.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_of_two_runs_is_told_from_both_sides() {
        let was = serde_json::json!({"lr": 0.1, "size": 32, "epochs": 3});
        let is = serde_json::json!({"lr": 0.2, "size": 32, "arch": "resnet50"});
        let told = differences(&was, &is);
        let expected = [
            "arch was null and is \"resnet50\"",
            "epochs was 3 and is null",
            "lr was 0.1 and is 0.2",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn fingerprints_tell_apart_what_compares_equal() {
        assert_ne!(fingerprint(&[0.0, 1.0]), fingerprint(&[-0.0, 1.0]));
        assert_eq!(fingerprint(&[0.5, 1.0]), fingerprint(&[0.5, 1.0]));
    }
}
