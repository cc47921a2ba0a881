//! What the tests load: numbers that tell which they are, and folders of small images.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use loader_core::{
    DType, Dataset, Field, Fingerprint, ImageFolder, Sample, SampleError, SampleWriter, TableCache,
};

pub(crate) const SIDE: usize = 8;

/// Sample `i`: an image full of `i`, and the label `i`.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) samples: u64,
}

impl Dataset for Numbers {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> Vec<Field> {
        let shape = [3, SIDE, SIDE];
        vec![Field::new("image", DType::F32, shape), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        _: &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        out.field::<f32>(0)?.fill(sample.index as f32);
        out.field::<i64>(1)?.fill(sample.index as i64);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"numbers")
    }
}

/// A folder of images that goes with it.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// As many of each of two classes.
    pub(crate) fn of_bright_and_dark(each: u32) -> Self {
        let folder = Self::new();
        for i in 0..each {
            folder.image(&format!("dark/{i}.png"), (i * 4) as u8);
            folder.image(&format!("bright/{i}.png"), 255 - (i * 4) as u8);
        }
        folder
    }

    /// An image of one colour, in the format that the name says.
    pub(crate) fn image(&self, path: &str, value: u8) -> PathBuf {
        let path = self.place(path);
        RgbImage::from_pixel(SIDE as u32, SIDE as u32, Rgb([value; 3])).save(&path).unwrap();
        path
    }

    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.place(path);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn open(&self) -> ImageFolder {
        let cache = TableCache::File(self.0.path().join(".table"));
        ImageFolder::builder(self.root()).cache(cache).open().unwrap()
    }

    fn root(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap().join("images")
    }

    fn place(&self, path: &str) -> PathBuf {
        let path = self.root().join(Path::new(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}
