//! A dataset of one's own, in worker threads and in worker processes.
//!
//! ```text
//! custom_dataset DIR [--workers processes:2] [--length 128] [--batch-size 64] [--epochs 1]
//! ```
//!
//! The samples are the lines of the `.txt` files of a folder: their bytes, cut or padded to one
//! length, and the number of their file as the label, as for telling languages apart. What it takes
//! to use one's own data: [`Dataset`] says what a sample is and makes it from its number; `recipe` and
//! `attach` say how a worker process opens the same data, from a small description and open files.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::{Device, Int, Tensor};
use clap::Parser;
use loader_burn::{BatchTensors, EpochTensors, TensorError};
use loader_core::{
    Batch, DType, DataLoader, Dataset, Field, Fingerprint, Location, Recipe, RecipeError, Registry,
    Sample, SampleError, SampleWriter, Workers,
};
use serde::{Deserialize, Serialize};

/// Reads lines of text as batches.
#[derive(Debug, Parser)]
struct Args {
    /// Folder of `.txt` files.
    dir: PathBuf,
    /// Who makes the samples, such as threads:4 or processes:2.
    #[arg(long, default_value = "threads:2")]
    workers: Workers,
    /// Bytes of a sample: longer lines are cut, shorter ones padded by zeros.
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// Lines of a batch.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Passes over the data.
    #[arg(long, default_value_t = 1)]
    epochs: u64,
}

/// Lines of text files. Where they begin is in a file of its own, so that a dataset of any size takes
/// no memory, and workers share what the system caches of it.
struct Lines {
    spec: Spec,
    /// One [`Entry`] a line.
    index: File,
    texts: Vec<File>,
}

/// What a worker process is told; open files go beside it.
#[derive(Clone, Serialize, Deserialize)]
struct Spec {
    paths: Vec<PathBuf>,
    length: usize,
    lines: u64,
    fingerprint: Fingerprint,
}

/// Where a line lies.
struct Entry {
    text: u32,
    bytes: u32,
    begin: u64,
}

impl Entry {
    const BYTES: usize = 16;

    fn to_bytes(&self) -> [u8; Self::BYTES] {
        let low = u64::from(self.text) << 32 | u64::from(self.bytes);
        (u128::from(self.begin) << 64 | u128::from(low)).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let all = u128::from_le_bytes(bytes);
        Self { text: (all >> 32) as u32, bytes: all as u32, begin: (all >> 64) as u64 }
    }
}

impl Lines {
    /// Finds the lines of the folder's text files, in the order of the files' names. Empty lines
    /// are no samples.
    fn open(dir: &Path, length: usize) -> Result<Self, Box<dyn Error>> {
        let in_dir = |e| format!("{}: {e}", dir.display());
        let files: Result<Vec<_>, _> = fs::read_dir(dir).map_err(in_dir)?.collect();
        let mut paths: Vec<_> = files.map_err(in_dir)?.iter().map(|file| file.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("txt")));
        paths.sort();

        let index = tempfile::tempfile()?;
        let mut entries = BufWriter::new(&index);
        let (mut lines, mut fingerprint) = (0, Fingerprint::of(&length.to_le_bytes()));
        let mut texts = Vec::new();
        for (text, path) in (0u32..).zip(&paths) {
            let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut reader = BufReader::new(&file);
            let (mut begin, mut line) = (0, Vec::new());
            loop {
                line.clear();
                let taken = reader.read_until(b'\n', &mut line)?;
                if taken == 0 {
                    break;
                }
                let content = line.trim_ascii_end();
                if !content.is_empty() {
                    let bytes = content.len().min(length) as u32;
                    entries.write_all(&Entry { text, bytes, begin }.to_bytes())?;
                    fingerprint = fingerprint.and(Fingerprint::of(content));
                    lines += 1;
                }
                begin += taken as u64;
            }
            fingerprint = fingerprint.and(Fingerprint::of(b"end of a file"));
            texts.push(file);
        }
        if lines == 0 {
            return Err(
                format!("{}: there is no line of text in any .txt file", dir.display()).into()
            );
        }
        entries.flush()?;
        drop(entries);
        Ok(Self { spec: Spec { paths, length, lines, fingerprint }, index, texts })
    }

    /// The same data in a worker process.
    fn attach(mut recipe: Recipe) -> Result<Self, Box<dyn Error>> {
        let spec: Spec = recipe.spec()?;
        let index = recipe.take_file(0)?;
        let texts =
            (1..=spec.paths.len()).map(|n| recipe.take_file(n)).collect::<Result<_, _>>()?;
        Ok(Self { spec, index, texts })
    }

    fn entry(&self, line: u64) -> std::io::Result<Entry> {
        let mut bytes = [0; Entry::BYTES];
        self.index.read_exact_at(&mut bytes, line * Entry::BYTES as u64)?;
        Ok(Entry::from_bytes(bytes))
    }
}

impl Dataset for Lines {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.spec.lines
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("tokens", DType::U8, [self.spec.length]),
            Field::new("length", DType::I64, []),
            Field::new("label", DType::I64, []),
        ]
    }

    fn load(
        &self,
        sample: &Sample,
        _: &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        let unread = |error| SampleError::read(&error);
        let Entry { text, bytes, begin } = self.entry(sample.index).map_err(unread)?;
        let (line, padding) = out.field::<u8>(0)?.split_at_mut(bytes as usize);
        // Straight into the batch.
        self.texts[text as usize].read_exact_at(line, begin).map_err(unread)?;
        padding.fill(0);
        out.field::<i64>(1)?[0] = bytes.into();
        out.field::<i64>(2)?[0] = text.into();
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.spec.fingerprint
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        let recipe = Recipe::new(NAME, &self.spec)?.file(&self.index)?;
        self.texts.iter().try_fold(recipe, |recipe, text| recipe.file(text))
    }

    fn locate(&self, index: u64) -> Location {
        let text = self.entry(index).ok().map(|entry| entry.text as usize);
        let path = text.and_then(|text| self.spec.paths.get(text)).cloned();
        Location { class: path.as_deref().map(stem), path }
    }
}

/// The name under which worker processes know the dataset.
const NAME: &str = "lines";

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// A batch as a training loop wants it.
struct Text {
    tokens: Tensor<2, Int>,
    length: Tensor<1, Int>,
    label: Tensor<1, Int>,
}

fn text(mut batch: Batch, device: &Device) -> Result<Text, TensorError> {
    Ok(Text {
        tokens: batch.take_tensor("tokens", device)?,
        length: batch.take_tensor("length", device)?,
        label: batch.take_tensor("label", device)?,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    // Before anything that starts a thread: worker processes are forked from here on.
    loader_core::init_with(Registry::new().dataset(NAME, Lines::attach))?;
    let args = Args::parse();
    let lines = Lines::open(&args.dir, args.length)?;
    let names: Vec<_> = lines.spec.paths.iter().map(|path| stem(path)).collect();
    println!("{} lines of {} files: {}", lines.len(), names.len(), names.join(", "));

    let loader = DataLoader::builder(lines)
        .batch_size(args.batch_size)
        .shuffle(42)
        .workers(args.workers)
        .build()?;
    let device = Device::flex();
    for epoch in 0..args.epochs {
        let begun = Instant::now();
        let (mut samples, mut bytes, mut content) = (0, 0, Fingerprint(0));
        for batch in loader.epoch(epoch)?.tensors_by(&device, text) {
            let Text { tokens, length, label } = batch?;
            samples += tokens.dims()[0];
            // Here a model would be trained. That the workers don't matter is seen by what they made.
            bytes += length.sum().into_scalar::<i64>();
            for part in [tokens.into_data(), label.into_data()] {
                content = content.and(Fingerprint::of(part.as_bytes()));
            }
        }
        let speed = samples as f64 / begun.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {samples} lines, {bytes} bytes, content {content}, {speed:.0} lines/s"
        );
    }
    Ok(())
}
