//! A dataset whose samples tell what they are, and do what they are told to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loader_core::{
    Batch, DType, DataLoader, DataLoaderBuilder, Dataset, Epoch, Field, Fingerprint, LoadError,
    Location, Recipe, RecipeError, Registry, Sample, SampleError, SampleWriter, Stage, Workers,
};
use serde::{Deserialize, Serialize};

/// What a sample does instead of being made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Act {
    Fail,
    Panic,
    Segfault,
    Abort,
    Exit,
    Hang,
    /// Segfaults while the file of that number in the temporary folder is missing, and makes it.
    SegfaultOnce(u32),
}

/// Noise that depends on the sample's draws, and the index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Noise {
    pub(crate) len: u64,
    pub(crate) acts: BTreeMap<u64, Act>,
    /// How long a sample takes, in microseconds of the CPU.
    pub(crate) micros: u64,
    /// Refuses to be opened, or dies of it.
    pub(crate) attach: Option<Act>,
    /// Makes samples of hundreds of kilobytes.
    pub(crate) large: bool,
    /// Makes so many samples at once; 0 where it makes them one by one.
    pub(crate) run: usize,
}

pub(crate) fn noise(len: u64) -> Noise {
    Noise { len, ..Noise::default() }
}

impl Noise {
    pub(crate) fn act(mut self, index: u64, act: Act) -> Self {
        self.acts.insert(index, act);
        self
    }

    pub(crate) fn loader(self) -> DataLoaderBuilder<Self> {
        DataLoader::builder(self).batch_size(16).shuffle(7)
    }

    pub(crate) fn in_runs(mut self, of: usize) -> Self {
        self.run = of;
        self
    }

    fn pixels(&self) -> usize {
        if self.large { 3 * 300 * 300 } else { 3 * 4 * 4 }
    }

    /// Writes a sample's image, unless it is to do something else.
    fn fill(
        &self,
        sample: &Sample,
        scratch: &mut Vec<f32>,
        image: &mut [f32],
    ) -> Result<(), SampleError> {
        if let Some(&act) = self.acts.get(&sample.index) {
            perform(act);
            if act == Act::Fail {
                return Err(SampleError::new(
                    Stage::Decode,
                    format_args!("{} is broken", sample.index),
                ));
            }
        }
        let begun = Instant::now();
        let mut draws = sample.draws(0);
        scratch.clear();
        scratch.extend((0..48).map(|_| draws.unit() as f32));
        image.chunks_mut(48).for_each(|c| c.copy_from_slice(&scratch[..c.len()]));
        while begun.elapsed() < Duration::from_micros(self.micros) {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Opens a [`Noise`] that travels as its own description.
fn attach(recipe: Recipe) -> Result<Noise, String> {
    let noise: Noise = recipe.spec().map_err(|e| e.to_string())?;
    match noise.attach {
        Some(Act::Fail) => Err("the disk is on fire".to_owned()),
        Some(act) => {
            perform(act);
            Ok(noise)
        }
        None => Ok(noise),
    }
}

pub(crate) fn registry() -> Registry {
    let registry = Registry::new()
        .dataset("noise", attach)
        .dataset("paths", crate::weight::attach_paths)
        .dataset("files", crate::waiting::attach_files);
    crate::pool::register(registry)
}

pub(crate) fn flag_file(number: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("loader-segfault-once-{number}"))
}

pub(crate) fn perform(act: Act) {
    match act {
        Act::Fail => {}
        Act::Panic => panic!("told to panic"),
        // As a crash inside C looks: the process raises it itself.
        Act::Segfault => raise_segfault(),
        Act::Abort => std::process::abort(),
        Act::Exit => std::process::exit(9),
        Act::Hang => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        Act::SegfaultOnce(number) => {
            if std::fs::OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(flag_file(number))
                .is_ok()
            {
                raise_segfault();
            }
        }
    }
}

fn raise_segfault() {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::SEGV).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

impl Dataset for Noise {
    type Scratch = Vec<f32>;

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        let pixels = self.pixels();
        vec![Field::new("image", DType::F32, [pixels]), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Vec<f32>,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        self.fill(sample, scratch, out.field::<f32>(0)?)?;
        out.field::<i64>(1)?[0] = sample.index as i64;
        Ok(())
    }

    fn run_len(&self) -> usize {
        self.run
    }

    fn load_run(
        &self,
        samples: &[Sample],
        scratch: &mut Vec<f32>,
        out: &mut SampleWriter<'_>,
    ) -> bool {
        let images = out.field::<f32>(0).unwrap().chunks_mut(self.pixels());
        for (sample, image) in samples.iter().zip(images) {
            if self.fill(sample, scratch, image).is_err() {
                return false;
            }
        }
        for (sample, label) in samples.iter().zip(out.field::<i64>(1).unwrap()) {
            *label = sample.index as i64;
        }
        true
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"noise").and(Fingerprint(self.len.into()))
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Recipe::new("noise", self)
    }

    fn locate(&self, index: u64) -> Location {
        let path = Some(format!("noise/{index}.jpg").into());
        Location { path, class: Some("noise".into()) }
    }
}

/// A dataset that can't leave its process.
pub(crate) struct Rooted;

impl Dataset for Rooted {
    type Scratch = ();

    fn len(&self) -> u64 {
        1
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [])]
    }

    fn load(&self, _: &Sample, _: &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<u8>(0)?[0] = 1;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"rooted")
    }
}

/// Everything about a batch that its reader can see.
pub(crate) fn hash(batch: &Batch) -> Fingerprint {
    let mut bytes: Vec<u8> = Vec::new();
    bytes
        .extend([batch.epoch(), batch.number(), batch.len() as u64].map(u64::to_le_bytes).concat());
    batch.indices().for_each(|index| bytes.extend(index.to_le_bytes()));
    bytes.extend(batch.get::<f32>("image").unwrap().iter().flat_map(|x| x.to_le_bytes()));
    bytes.extend(batch.get::<i64>("label").unwrap().iter().flat_map(|x| x.to_le_bytes()));
    Fingerprint::of(&bytes)
}

pub(crate) fn hashes<D: Dataset>(epoch: Epoch<D>) -> Result<Vec<Fingerprint>, LoadError> {
    epoch.map(|batch| batch.map(|batch| hash(&batch))).collect()
}

/// The batches of the first epochs, as hashes.
pub(crate) fn epochs(builder: DataLoaderBuilder<Noise>, epochs: u64) -> Vec<Vec<Fingerprint>> {
    let loader = builder.build().unwrap();
    (0..epochs).map(|epoch| hashes(loader.epoch(epoch).unwrap()).unwrap()).collect()
}

/// What a single thread makes of it, with nothing in its way.
pub(crate) fn undisturbed(dataset: Noise, count: u64) -> Vec<Vec<Fingerprint>> {
    epochs(dataset.loader().workers(Workers::threads(1)), count)
}

/// Whether a process of that number exists and is not merely waiting to be reaped.
pub(crate) fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X'])
    })
}

/// Ends a thread's loop, also where a test fails.
pub(crate) struct Ending<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for what must come to pass; the bound only keeps a failing test from hanging.
pub(crate) fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not come to pass");
        std::thread::sleep(Duration::from_millis(2));
    }
}
