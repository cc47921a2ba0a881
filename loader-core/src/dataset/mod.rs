//! What the loader loads: the [`Dataset`] trait and the datasets that come with the crate.

pub(crate) mod arrays;
pub(crate) mod image_folder;
pub(crate) mod imagenet;
pub(crate) mod images;
mod recipe;
#[cfg(feature = "table")]
pub(crate) mod statistics;
#[cfg(feature = "table")]
pub(crate) mod table;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use rustix::io::Errno;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use self::recipe::DescribedRecipe;
pub use self::recipe::{Recipe, RecipeError};
use crate::field::{Element, Field};
use crate::rng::Draws;
use crate::shm::Step;
use crate::stats::clock;

/// Samples of a fixed layout, each made from its index alone.
///
/// The loader calls [`load`](Dataset::load) from many workers at once, in any order, and writes the
/// result straight into the shared memory of a batch. Anything random must come from
/// [`Sample::draws`], so that the bytes of a sample depend on (seed, epoch, index) and nothing else.
pub trait Dataset: Send + Sync + 'static {
    /// Memory that a worker keeps between samples, such as decode buffers; `()` where there is none.
    type Scratch: Default;

    /// The number of samples.
    fn len(&self) -> u64;

    /// True where there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The layout of a sample; the same at every call.
    fn fields(&self) -> Vec<Field>;

    /// Makes the sample, writing every element of every field of `out`.
    ///
    /// # Errors
    /// A [`SampleError`] where the sample can't be made; what happens then is the loader's error
    /// policy. A panic counts as an error too.
    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Self::Scratch,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError>;

    /// How many samples of a batch a worker takes at a time, at least. Default 1: a sample takes long
    /// enough for them to be handed out one by one. Where one takes less than a microsecond, handing it
    /// out is most of the work: take some dozens, and implement [`load_run`](Self::load_run).
    fn run_len(&self) -> usize {
        1
    }

    /// Makes several samples at once, which lie side by side in a batch: each field of `out` has the
    /// elements of all of them, one sample behind the other, and all are to be written. Asked for
    /// where [`run_len`](Self::run_len) is above 1.
    ///
    /// False says that it could not, which is the default. Each sample is then [loaded](Self::load) by
    /// itself, as after a panic or the death of a worker, so that errors are those of one sample. What a
    /// sample is must be the same either way.
    fn load_run(
        &self,
        samples: &[Sample],
        scratch: &mut Self::Scratch,
        out: &mut SampleWriter<'_>,
    ) -> bool {
        let _ = (samples, scratch, out);
        false
    }

    /// Identifies the data and everything that shapes a sample's bytes; two datasets with the same
    /// fingerprint give the same samples.
    fn fingerprint(&self) -> Fingerprint;

    /// Asks the system for the data of a sample that will be loaded soon, so that it need not be
    /// waited for then. May wait; it is called from threads that do nothing else, at most once for
    /// each position of an epoch, and not for every one. False says that there is nothing to ask for
    /// and that it need not be called again: the default.
    fn read_ahead(&self, index: u64) -> bool {
        let _ = index;
        false
    }

    /// What a worker process needs to open this dataset too. Only asked for where workers are
    /// processes ([`Workers::processes`](crate::Workers::processes)).
    ///
    /// # Errors
    /// By default [`RecipeError::NotShareable`].
    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Err(RecipeError::NotShareable)
    }

    /// The same in parts that change for different reasons, each with its name, so that a run
    /// resumed with another transform is told so. Default: all of it as `data`.
    fn fingerprint_parts(&self) -> Vec<(&'static str, Fingerprint)> {
        vec![("data", self.fingerprint())]
    }

    /// Where a sample comes from, for error messages.
    fn locate(&self, index: u64) -> Location {
        let _ = index;
        Location::default()
    }
}

/// A dataset that several loaders share.
impl<D: Dataset> Dataset for Arc<D> {
    type Scratch = D::Scratch;

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn fields(&self) -> Vec<Field> {
        (**self).fields()
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Self::Scratch,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        (**self).load(sample, scratch, out)
    }

    fn run_len(&self) -> usize {
        (**self).run_len()
    }

    fn load_run(
        &self,
        samples: &[Sample],
        scratch: &mut Self::Scratch,
        out: &mut SampleWriter<'_>,
    ) -> bool {
        (**self).load_run(samples, scratch, out)
    }

    fn fingerprint(&self) -> Fingerprint {
        (**self).fingerprint()
    }

    fn read_ahead(&self, index: u64) -> bool {
        (**self).read_ahead(index)
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        (**self).recipe()
    }

    fn fingerprint_parts(&self) -> Vec<(&'static str, Fingerprint)> {
        (**self).fingerprint_parts()
    }

    fn locate(&self, index: u64) -> Location {
        (**self).locate(index)
    }
}

/// Which sample to make, and the source of its randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The index in the dataset, below its length.
    pub index: u64,
    /// The epoch that the sample is made for.
    pub epoch: u64,
    /// The loader's seed.
    pub seed: u64,
    /// Tells apart the occurrences of one index in one epoch where the order repeats it, else 0.
    pub occurrence: u64,
}

impl Sample {
    /// The random draws of the `operation`-th random step on this sample. The same arguments give
    /// the same draws, and different ones give independent draws.
    pub fn draws(&self, operation: u64) -> Draws {
        Draws::keyed(self.seed, self.epoch, self.index, self.occurrence, operation)
    }
}

/// Identifies data or a configuration by a 128-bit hash of its content.
///
/// People read it as 32 hexadecimal digits, and so do formats of serde that are made for them: numbers of
/// that size are more than JSON's have room for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// The fingerprint of some bytes (XXH3, 128 bits).
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// One that depends on both, and on their order.
    pub fn and(self, other: Self) -> Self {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&self.0.to_le_bytes());
        both[16..].copy_from_slice(&other.0.to_le_bytes());
        Self::of(&both)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(self) } else { self.0.serialize(to) }
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return u128::deserialize(from).map(Self);
        }
        let digits = Cow::<str>::deserialize(from)?;
        u128::from_str_radix(&digits, 16)
            .map(Self)
            .map_err(|e| D::Error::custom(format_args!("fingerprint {digits:?}: {e}")))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// Where a sample comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The file, where it is one.
    pub path: Option<PathBuf>,
    /// The name of its class, where it has one. Names that are not UTF-8 are shown escaped.
    pub class: Option<String>,
}

/// The step at which a sample failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Stage {
    /// Reading the bytes.
    Read,
    /// Decoding them.
    Decode,
    /// Transforming what was decoded.
    Transform,
    /// Writing the sample's fields.
    Write,
    /// The dataset's own code panicked.
    Panic,
    /// The worker process died of it, or had to be stopped.
    Worker,
    /// Something that every sample needs is missing: the system gives no more open files, or what the
    /// dataset knows of all samples is damaged. No sample is at fault, so it ends the epoch under every
    /// [`ErrorPolicy`](crate::ErrorPolicy).
    System,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::Write => "write",
            Self::Panic => "panic",
            Self::Worker => "worker",
            Self::System => "system",
        })
    }
}

/// Why one sample could not be made.
///
/// It holds text rather than a source error because it travels between processes. The loader adds
/// the index, the path and the class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{stage}: {message}")]
pub struct SampleError {
    /// The step that failed.
    pub stage: Stage,
    /// What went wrong, in words.
    pub message: String,
}

impl SampleError {
    /// A failure at that stage.
    pub fn new(stage: Stage, message: impl fmt::Display) -> Self {
        Self { stage, message: message.to_string() }
    }

    /// A failure to read a sample's data: of the stage [`Read`](Stage::Read), or
    /// [`System`](Stage::System) where the process, or the machine, has no more files to open.
    pub fn read(error: &io::Error) -> Self {
        let limit = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => "the limit of this process (ulimit -n)",
            Some(Errno::NFILE) => "the limit of the machine (sysctl fs.file-max)",
            _ => return Self::new(Stage::Read, error),
        };
        let what = "raise it, or look for what keeps files open. No file is at fault";
        Self::new(Stage::System, format_args!("{error}: {limit} is reached; {what}"))
    }
}

/// The most fields a dataset may have.
pub(crate) const MAX_FIELDS: usize = 16;

/// The place in a batch where one sample is written: its part of every field.
#[derive(Debug)]
pub struct SampleWriter<'a> {
    fields: &'a [Field],
    parts: [&'a mut [u8]; MAX_FIELDS],
    asked: u16,
}

impl<'a> SampleWriter<'a> {
    /// A writer over one byte slice a field, in the order of `fields`, of which there are at most
    /// [`MAX_FIELDS`].
    pub(crate) fn new(fields: &'a [Field], mut part: impl FnMut(usize) -> &'a mut [u8]) -> Self {
        let parts = std::array::from_fn(|i| if i < fields.len() { part(i) } else { &mut [] });
        Self { fields, parts, asked: 0 }
    }

    /// The elements of the `field`-th field, to be overwritten. What they hold before is
    /// unspecified.
    ///
    /// # Errors
    /// Where there is no such field or its element type is not `T`.
    pub fn field<T: Element>(&mut self, field: usize) -> Result<&mut [T], SampleError> {
        let spec = self.spec(field)?;
        if spec.dtype != T::DTYPE {
            return Err(SampleError::new(
                Stage::Write,
                format_args!("field {:?} holds {:?}, not {:?}", spec.name, spec.dtype, T::DTYPE),
            ));
        }
        bytemuck::try_cast_slice_mut(self.bytes(field)?)
            .map_err(|e| SampleError::new(Stage::Write, format_args!("field {:?}: {e}", spec.name)))
    }

    /// The bytes of the `field`-th field, to be overwritten, in this machine's byte order.
    ///
    /// # Errors
    /// Where there is no such field.
    pub fn bytes(&mut self, field: usize) -> Result<&mut [u8], SampleError> {
        self.spec(field)?;
        self.asked |= 1 << field;
        Ok(&mut *self.parts[field])
    }

    /// Says that a stage of making the sample begins, for the loader's [`Stats`](crate::Stats): its time
    /// counts as that of [`Read`](Stage::Read), [`Decode`](Stage::Decode),
    /// [`Transform`](Stage::Transform) or [`Write`](Stage::Write) until the next stage begins or the
    /// sample ends. What is not said counts as `load`. Costs a look at the clock.
    ///
    /// A [`Pipeline`](crate::Pipeline) says its stages by itself, and that they are over.
    pub fn enter(&mut self, stage: Stage) {
        clock::enter(match stage {
            Stage::Read => Step::Read,
            Stage::Decode => Step::Decode,
            Stage::Transform => Step::Transform,
            Stage::Write => Step::Write,
            Stage::Panic | Stage::Worker | Stage::System => Step::Load,
        });
    }

    /// Says that so many bytes were read for the sample, for [`Stats`](crate::Stats).
    pub fn count_read(&mut self, bytes: u64) {
        clock::count_read(bytes);
    }

    fn spec(&self, field: usize) -> Result<&'a Field, SampleError> {
        self.fields.get(field).ok_or_else(|| {
            let n = self.fields.len();
            SampleError::new(Stage::Write, format_args!("field {field} of a sample of {n} fields"))
        })
    }

    /// The first field that nobody asked for: its bytes are still those of another batch.
    pub(crate) fn forgotten(&self) -> Option<&'a Field> {
        self.fields.iter().enumerate().find(|(i, _)| self.asked & (1 << i) == 0).map(|(_, f)| f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_survives_every_format() {
        for print in
            [Fingerprint(0), Fingerprint(7), Fingerprint::of(b"data"), Fingerprint(u128::MAX)]
        {
            let value = serde_json::to_value(print).unwrap();
            assert_eq!(serde_json::from_value::<Fingerprint>(value).unwrap(), print);
            let packed = rmp_serde::to_vec(&print).unwrap();
            assert_eq!(rmp_serde::from_slice::<Fingerprint>(&packed).unwrap(), print);
        }
        let error = serde_json::from_str::<Fingerprint>("\"no digits\"").unwrap_err().to_string();
        assert!(error.contains("no digits"), "{error}");
    }
}
