//! A transform that was checked, ready to run.

use half::{bf16, f16};

use super::canvas::{Canvas, View};
use super::decode::{Limits, decode};
use super::params::{self, Step};
use super::resize::ResizeScratch;
use super::transform::{Erase, Layout, Op, RandomErasing, ResizeTo, Transform};
use super::write::{self, Form, Target};
use crate::dataset::{Fingerprint, Sample, SampleError, Stage};
use crate::field::{DType, Field};

/// The largest edge that a transform may make.
const MAX_EDGE: u32 = 1 << 16;

/// Why a [`Transform`] can't be compiled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// Samples would differ in size.
    #[error(
        "the size of the result depends on the image; add CenterCrop, RandomCrop, \
         RandomResizedCrop or Resize::exact{}",
        if *.resize { " (Resize::smaller_edge fixes one edge only)" } else { "" }
    )]
    NoFixedSize {
        /// Whether a resize of the smaller edge is all there is.
        resize: bool,
    },
    /// A parameter is out of its range.
    #[error("operation {number}, {op}: {parameter} is {value}, must be {want}")]
    Parameter {
        /// The operation's place in [`Transform::ops`].
        number: usize,
        /// Its name.
        op: &'static str,
        /// The parameter's name.
        parameter: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        want: &'static str,
    },
    /// The operation can't come there.
    #[error("operation {number}, {op}, comes after {after}; move it before")]
    Order {
        /// The operation's place in [`Transform::ops`].
        number: usize,
        /// Its name.
        op: &'static str,
        /// The operation that ends the part in which it may come.
        after: &'static str,
    },
    /// The image is always too small for the crop.
    #[error(
        "operation {number}, RandomCrop: {want_width}x{want_height} is cut from \
         {width}x{height}; set pad_if_needed or resize to more"
    )]
    TooSmall {
        /// The operation's place in [`Transform::ops`].
        number: usize,
        /// Columns of the crop.
        want_width: u32,
        /// Rows of the crop.
        want_height: u32,
        /// Columns of the image.
        width: u32,
        /// Rows of the image.
        height: u32,
    },
    /// The operation and the element type of the result exclude each other.
    #[error("{op} with a result of {dtype:?}: {why}")]
    DType {
        /// The operation's name, or the transform itself.
        op: &'static str,
        /// The element type.
        dtype: DType,
        /// Why not, and what to do.
        why: &'static str,
    },
}

/// Memory that is kept from image to image.
#[derive(Debug, Default)]
pub struct ImageScratch {
    /// What the decoder wrote, where it is not RGB.
    pub(super) raw: Vec<u8>,
    /// The current image, RGB.
    pub(super) front: Vec<u8>,
    /// The next image.
    pub(super) back: Vec<u8>,
    pub(super) resize: ResizeScratch,
    pub(super) steps: Vec<Step>,
}

impl ImageScratch {
    /// The most bytes of a buffer that are kept: a 12-megapixel image.
    const KEEP: usize = 36 << 20;

    /// Gives back what one giant image took.
    fn trim(&mut self) {
        for buffer in [&mut self.raw, &mut self.front, &mut self.back] {
            if buffer.capacity() > Self::KEEP {
                *buffer = Vec::new();
            }
        }
        self.resize.trim(Self::KEEP);
    }
}

/// A [`Transform`] that was checked: makes one sample of an image file's bytes.
#[derive(Clone, Debug)]
pub struct Pipeline {
    ops: Vec<Op>,
    /// With its number among the operations.
    erasing: Option<(u64, RandomErasing)>,
    size: (u32, u32),
    dtype: DType,
    form: Form,
    limits: Limits,
    fingerprint: Fingerprint,
}

impl Transform {
    /// Checks the transform and prepares it to run.
    ///
    /// # Errors
    /// Where a parameter is out of its range, an operation is out of place, or the size of the
    /// result is not fixed.
    pub fn compile(&self) -> Result<Pipeline, TransformError> {
        Check::default().transform(self)
    }
}

/// What is known of the image while the operations are gone through.
#[derive(Default)]
struct Check {
    number: usize,
    op: &'static str,
    size: Option<(u32, u32)>,
    smaller_edge: bool,
    gray: bool,
    /// The operation that ended the part on 8-bit levels.
    ended: Option<&'static str>,
    normalize: Option<(Vec<f64>, Vec<f64>)>,
    erasing: Option<(u64, RandomErasing)>,
}

impl Check {
    fn transform(mut self, transform: &Transform) -> Result<Pipeline, TransformError> {
        let dtype = transform.dtype;
        if dtype == DType::I64 {
            let why = "images are U8, F16, BF16 or F32";
            return Err(TransformError::DType { op: "Transform", dtype, why });
        }
        for (number, op) in transform.ops.iter().enumerate() {
            (self.number, self.op) = (number, op.name());
            self.op(op, dtype)?;
        }
        let size = self.size.ok_or(TransformError::NoFixedSize { resize: self.smaller_edge })?;
        let channels = self.channels();
        let (mean, std) = self.normalize.unwrap_or((vec![0.0; channels], vec![1.0; channels]));
        let (mut mul, mut add) = ([0.0; 3], [0.0; 3]);
        for c in 0..channels {
            mul[c] = (1.0 / 255.0 / std[c]) as f32;
            add[c] = (-mean[c] / std[c]) as f32;
        }
        Ok(Pipeline {
            ops: transform.ops.clone(),
            erasing: self.erasing,
            size,
            dtype,
            form: Form { layout: transform.layout, channels, mul, add },
            limits: transform.limits,
            fingerprint: transform.fingerprint(),
        })
    }

    fn channels(&self) -> usize {
        if self.gray { 1 } else { 3 }
    }

    fn op(&mut self, op: &Op, dtype: DType) -> Result<(), TransformError> {
        if let Some(after) = self.ended {
            let allowed = matches!(op, Op::RandomErasing(_)) && after == "Normalize";
            if !allowed {
                let (number, op) = (self.number, self.op);
                return Err(TransformError::Order { number, op, after });
            }
        }
        match op {
            Op::Resize(op) => match op.to {
                ResizeTo::Exact { height, width } => self.fix(height, width)?,
                ResizeTo::SmallerEdge { size, max_size } => {
                    self.edge("size", size)?;
                    if let Some(most) = max_size {
                        self.edge("max_size", most)?;
                        self.require(most > size, "max_size", most, "more than size")?;
                    }
                    self.smaller_edge = true;
                    self.size = self.size.map(|have| params::resized(op.to, have));
                    if let Some((width, height)) = self.size {
                        self.fix(height, width)?;
                    }
                }
            },
            Op::CenterCrop(op) => self.fix(op.height, op.width)?,
            Op::RandomResizedCrop(op) => {
                self.fix(op.height, op.width)?;
                self.range("scale", op.scale, 0.0, f64::MAX, "0 <= low <= high")?;
                self.positive_range("ratio", op.ratio)?;
            }
            Op::RandomCrop(op) => {
                for sides in op.padding {
                    let want = "at most 65536";
                    self.require(sides <= MAX_EDGE, "padding", sides, want)?;
                }
                if let Some((width, height)) = self.size {
                    let [left, top, right, bottom] = op.padding;
                    let (width, height) = (width + left + right, height + top + bottom);
                    if !op.pad_if_needed && (width < op.width || height < op.height) {
                        return Err(TransformError::TooSmall {
                            number: self.number,
                            want_width: op.width,
                            want_height: op.height,
                            width,
                            height,
                        });
                    }
                }
                self.fix(op.height, op.width)?;
            }
            Op::RandomHorizontalFlip(op) => self.probability(op.p)?,
            Op::RandomVerticalFlip(op) => self.probability(op.p)?,
            Op::ColorJitter(op) => {
                self.range("brightness", op.brightness, 0.0, f64::MAX, "0 <= low <= high")?;
                self.range("contrast", op.contrast, 0.0, f64::MAX, "0 <= low <= high")?;
                self.range("saturation", op.saturation, 0.0, f64::MAX, "0 <= low <= high")?;
                self.range("hue", op.hue, -0.5, 0.5, "-0.5 <= low <= high <= 0.5")?;
            }
            Op::Grayscale(op) => {
                let n = op.channels;
                self.require(n == 1 || n == 3, "channels", n, "1 or 3")?;
                self.gray = n == 1;
            }
            Op::Normalize(op) => {
                if dtype == DType::U8 {
                    let why = "normalised values are not levels; leave it out or take F32";
                    return Err(TransformError::DType { op: self.op, dtype, why });
                }
                let want = "one finite number a channel (1 behind Grayscale to 1, else 3)";
                let n = self.channels();
                let fits = |v: &[f64]| v.len() == n && v.iter().all(|x| x.is_finite());
                self.require(fits(&op.mean), "mean", format_args!("{:?}", op.mean), want)?;
                let want = "one finite number above 0 a channel (1 behind Grayscale to 1, else 3)";
                let fits = fits(&op.std) && op.std.iter().all(|&x| x > 0.0);
                self.require(fits, "std", format_args!("{:?}", op.std), want)?;
                self.normalize = Some((op.mean.clone(), op.std.clone()));
                self.ended = Some(self.op);
            }
            Op::RandomErasing(op) => self.erasing(op, dtype)?,
        }
        Ok(())
    }

    fn erasing(&mut self, op: &RandomErasing, dtype: DType) -> Result<(), TransformError> {
        self.probability(op.p)?;
        self.range("scale", op.scale, 0.0, 1.0, "0 <= low <= high <= 1")?;
        self.positive_range("ratio", op.ratio)?;
        let values: &[f64] = match &op.value {
            Erase::Value(v) => std::slice::from_ref(v),
            Erase::PerChannel(v) => {
                let fits = v.len() == self.channels();
                self.require(fits, "value", format_args!("{v:?}"), "one number a channel")?;
                v
            }
            Erase::Random if dtype == DType::U8 => {
                let why = "normal draws are not levels; erase with a value or take F32";
                return Err(TransformError::DType { op: self.op, dtype, why });
            }
            Erase::Random => &[],
        };
        for v in values {
            self.require(v.is_finite(), "value", v, "finite")?;
            let level = dtype != DType::U8 || (0.0..=255.0).contains(v);
            self.require(level, "value", v, "a level 0..=255, as the result is U8")?;
        }
        self.erasing = Some((self.number as u64, op.clone()));
        self.ended = Some(self.op);
        Ok(())
    }

    /// From here on every image has that size.
    fn fix(&mut self, height: u32, width: u32) -> Result<(), TransformError> {
        self.edge("height", height)?;
        self.edge("width", width)?;
        self.size = Some((width, height));
        Ok(())
    }

    fn edge(&self, parameter: &'static str, pixels: u32) -> Result<(), TransformError> {
        self.require((1..=MAX_EDGE).contains(&pixels), parameter, pixels, "1..=65536 pixels")
    }

    fn probability(&self, p: f64) -> Result<(), TransformError> {
        self.require((0.0..=1.0).contains(&p), "p", p, "within 0..=1")
    }

    fn positive_range(
        &self,
        parameter: &'static str,
        range: (f64, f64),
    ) -> Result<(), TransformError> {
        self.range(parameter, range, f64::MIN_POSITIVE, f64::MAX, "0 < low <= high")
    }

    fn range(
        &self,
        parameter: &'static str,
        (low, high): (f64, f64),
        least: f64,
        most: f64,
        want: &'static str,
    ) -> Result<(), TransformError> {
        let fits = least <= low && low <= high && high <= most;
        self.require(fits, parameter, format_args!("({low}, {high})"), want)
    }

    fn require(
        &self,
        holds: bool,
        parameter: &'static str,
        value: impl std::fmt::Display,
        want: &'static str,
    ) -> Result<(), TransformError> {
        if holds {
            return Ok(());
        }
        let (number, op, value) = (self.number, self.op, value.to_string());
        Err(TransformError::Parameter { number, op, parameter, value, want })
    }
}

impl Pipeline {
    /// The field that holds the result: `image`, of shape `[channels, height, width]` or
    /// `[height, width, channels]`.
    pub fn field(&self) -> Field {
        let (width, height) = (self.size.0 as usize, self.size.1 as usize);
        let channels = self.form.channels;
        let shape = match self.form.layout {
            Layout::Nchw => [channels, height, width],
            Layout::Nhwc => [height, width, channels],
        };
        Field::new("image", self.dtype, shape)
    }

    /// That of the [`Transform`].
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Makes a sample of an image file's `bytes` in `out`, the memory of [`field`](Self::field) in
    /// this machine's byte order, aligned to its element. All of it is overwritten.
    ///
    /// # Errors
    /// Where the bytes are not an image that can be decoded within the limits, the image can't be
    /// transformed, or `out` has the wrong length or alignment. What `out` holds then is
    /// unspecified.
    pub fn run(
        &self,
        bytes: &[u8],
        sample: &Sample,
        scratch: &mut ImageScratch,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        let result = match self.dtype {
            DType::U8 => self.run_as::<u8>(bytes, sample, scratch, out),
            DType::F16 => self.run_as::<f16>(bytes, sample, scratch, out),
            DType::BF16 => self.run_as::<bf16>(bytes, sample, scratch, out),
            DType::F32 => self.run_as::<f32>(bytes, sample, scratch, out),
            DType::I64 => Err(SampleError::new(Stage::Write, "images are not I64")),
        };
        scratch.trim();
        result
    }

    fn run_as<T: Target>(
        &self,
        bytes: &[u8],
        sample: &Sample,
        scratch: &mut ImageScratch,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        let (width, height) = self.size;
        let elements = width as usize * height as usize * self.form.channels;
        let given = out.len();
        let out: &mut [T] = bytemuck::try_cast_slice_mut(out)
            .ok()
            .filter(|out: &&mut [T]| out.len() == elements)
            .ok_or_else(|| {
                SampleError::new(
                    Stage::Write,
                    format_args!(
                        "the image needs {elements} aligned elements of {:?}, given {given} bytes",
                        self.dtype
                    ),
                )
            })?;
        let size = decode(bytes, self.limits, &mut scratch.raw, &mut scratch.front)?;
        let (pixels, view) = self.transform(size, sample, scratch)?;
        write::write(pixels, &view, &self.form, out);
        self.erase(sample, out);
        Ok(())
    }

    /// Takes the steps on the image in `scratch.front`.
    fn transform<'a>(
        &self,
        size: (u32, u32),
        sample: &Sample,
        scratch: &'a mut ImageScratch,
    ) -> Result<(&'a [u8], View), SampleError> {
        let mut steps = std::mem::take(&mut scratch.steps);
        steps.clear();
        let planned = params::steps(&self.ops, size, sample, &mut steps);
        let mut canvas = Canvas::new(scratch, size, self.limits.max_pixels);
        let taken = planned.and_then(|_| steps.iter().try_for_each(|&step| canvas.apply(step)));
        canvas.keep_steps(steps);
        taken?;
        canvas.finish()
    }

    fn erase<T: Target>(&self, sample: &Sample, out: &mut [T]) {
        let Some((number, op)) = &self.erasing else { return };
        let mut draws = sample.draws(*number);
        let Some(part) = params::random_erasing(op, self.size, &mut draws) else { return };
        match &op.value {
            Erase::Value(v) => write::erase(out, &self.form, self.size, part, |_| *v as f32),
            Erase::PerChannel(v) => {
                write::erase(out, &self.form, self.size, part, |c| v[c] as f32);
            }
            Erase::Random => write::erase(out, &self.form, self.size, part, |_| {
                params::normal(&mut draws) as f32
            }),
        }
    }
}
