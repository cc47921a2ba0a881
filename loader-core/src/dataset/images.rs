//! Image files as a dataset: read, decode, transform, and the label beside it.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::image_folder::ImageFolder;
use super::{
    Dataset, Fingerprint, Location, Recipe, RecipeError, Sample, SampleError, SampleWriter, Stage,
};
use crate::field::{DType, Field};
use crate::image::{DECODER, ImageScratch, Pipeline, Transform, TransformError};
use crate::index::PathTable;

/// The name under which worker processes know an [`ImageDataset`].
pub(crate) const RECIPE: &str = "loader_core::ImageDataset";

/// The largest file that is read; no image within the decoder's limits needs more.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The files of an [`ImageFolder`] through a [`Transform`], made by
/// [`ImageFolder::transform`](ImageFolder::transform).
///
/// A sample has the fields `image`, of the transform's shape and dtype, and `label`, an `i64` scalar.
#[derive(Clone, Debug)]
pub struct ImageDataset {
    folder: ImageFolder,
    transform: Transform,
    pipeline: Pipeline,
    fingerprint: Fingerprint,
}

/// What travels to a worker process, beside the table's file.
#[derive(Serialize, Deserialize)]
struct Spec {
    root: OsString,
    transform: Transform,
}

/// Memory that a worker keeps between images.
#[derive(Debug, Default)]
pub struct FileScratch {
    path: Vec<u8>,
    bytes: Vec<u8>,
    image: ImageScratch,
}

impl ImageFolder {
    /// A dataset of these files, each put through the transform.
    ///
    /// # Errors
    /// Where the transform contradicts itself or does not give images of one size.
    pub fn transform(
        &self,
        transform: impl Borrow<Transform>,
    ) -> Result<ImageDataset, TransformError> {
        let transform = transform.borrow();
        let pipeline = transform.compile()?;
        let fingerprint = self.fingerprint().and(transform.fingerprint());
        let (folder, transform) = (self.clone(), transform.clone());
        Ok(ImageDataset { folder, transform, pipeline, fingerprint })
    }
}

impl ImageDataset {
    /// The files.
    pub fn folder(&self) -> &ImageFolder {
        &self.folder
    }

    /// The dataset again, in another process.
    pub(crate) fn attach(mut recipe: Recipe) -> Result<Self, String> {
        let spec: Spec = recipe.spec().map_err(|e| e.to_string())?;
        let file = recipe.take_file(0).map_err(|e| e.to_string())?;
        let table = PathTable::from_file(file).map_err(|e| e.to_string())?.with_root(spec.root);
        let folder = ImageFolder::from_table(table).map_err(|e| e.to_string())?;
        folder.transform(spec.transform).map_err(|e| e.to_string())
    }
}

impl Dataset for ImageDataset {
    type Scratch = FileScratch;

    fn len(&self) -> u64 {
        self.folder.len()
    }

    fn fields(&self) -> Vec<Field> {
        let (dtype, shape) = self.pipeline.field();
        vec![Field::new("image", dtype, shape), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut FileScratch,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        let entry =
            self.folder.sample(sample.index).map_err(|e| SampleError::new(Stage::System, e))?;
        scratch.path.clear();
        entry.write_path(&mut scratch.path);
        let path = Path::new(OsStr::from_bytes(&scratch.path));
        out.enter(Stage::Read);
        read_file(path, &mut scratch.bytes).map_err(|e| SampleError::read(&e))?;
        out.count_read(scratch.bytes.len() as u64);
        self.pipeline.run(&scratch.bytes, sample, &mut scratch.image, out.bytes(0)?)?;
        out.field::<i64>(1)?[0] = entry.label();
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    fn read_ahead(&self, index: u64) -> bool {
        if let Ok(entry) = self.folder.sample(index)
            && let Ok(file) = open_file(&entry.to_path())
        {
            // The system starts to read, and whoever reads the file next finds it in memory.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
        true
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        let table = self.folder.table();
        let root = std::path::absolute(table.root()).unwrap_or_else(|_| table.root().to_owned());
        let spec = Spec { root: root.into(), transform: self.transform.clone() };
        Recipe::new(RECIPE, &spec)?.file(table.file())
    }

    fn fingerprint_parts(&self) -> Vec<(&'static str, Fingerprint)> {
        let decoder = Fingerprint::of(DECODER.as_bytes());
        vec![
            ("data", self.folder.fingerprint()),
            ("transform", self.transform.described()),
            ("decoder", decoder),
        ]
    }

    fn locate(&self, index: u64) -> Location {
        let Ok(entry) = self.folder.sample(index) else { return Location::default() };
        let name = self.folder.table().class_name(entry.class());
        let class = name.map(|name| match name.to_str() {
            Some(name) => name.to_owned(),
            None => name.as_bytes().escape_ascii().to_string(),
        });
        Location { path: Some(entry.to_path()), class }
    }
}

/// Reads a whole file into `bytes`, which keeps its capacity from file to file. It is read, not
/// mapped: a file that shrinks meanwhile must be an error, not a signal.
fn read_file(path: &Path, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let file = open_file(path)?;
    let stat = rustix::fs::fstat(&file)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let size = stat.st_size as u64;
    let too_large = || std::io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes"));
    if size > MAX_FILE_BYTES {
        return Err(too_large());
    }
    bytes.clear();
    // One byte more lets the last read see the end without growing.
    bytes.try_reserve(size as usize + 1)?;
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(bytes)?;
    if read as u64 > MAX_FILE_BYTES { Err(too_large()) } else { Ok(()) }
}

fn open_file(path: &Path) -> std::io::Result<File> {
    // NONBLOCK: a pipe without a writer must not hold the worker up; regular files don't care.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_data_are_errors_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe.jpg");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let mut bytes = Vec::new();
        for path in [pipe, dir.path().to_owned(), "/dev/zero".into()] {
            let error = read_file(&path, &mut bytes).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{path:?}");
        }
        let sparse = dir.path().join("sparse.jpg");
        File::create(&sparse).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(read_file(&sparse, &mut bytes).unwrap_err().to_string().contains("larger"));
        assert!(bytes.capacity() < 1 << 20);
        std::fs::write(&sparse, b"now small").unwrap();
        read_file(&sparse, &mut bytes).unwrap();
        assert_eq!(bytes, b"now small");
    }
}
