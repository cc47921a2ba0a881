//! A transform that was checked: compiling it, and running it on one file.

use half::{bf16, f16};

use super::custom::{Custom as CustomRun, Resolved};
use super::decode::{DecodeOptions, Source, room};
use super::filter::{Filter, FilterStep};
use super::geometry::Rect;
use super::levels::Levels;
use super::ops::*;
use super::plan::{Plan, Step};
use super::write::{self, EraseValue, Output, Shape, Table};
use super::{ImageScratch, Transform, augment, color, filter, params, resize};
use crate::dataset::{Sample, SampleError, Stage};
use crate::field::DType;
use crate::shm::Step as Lap;
use crate::stats::clock;

/// Why a [`Transform`] can't be compiled. `op` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransformError {
    /// Samples would differ in shape, so they can't share a batch.
    #[error(
        "the size of the output depends on the image; end its geometry with a fixed size: \
         center_crop(224), random_resized_crop(224), random_crop(224) or resize((224, 224))"
    )]
    SizeNotFixed,
    /// A parameter is out of its range.
    #[error("op {op} ({name}): {what}")]
    #[allow(missing_docs)]
    Parameter { op: usize, name: &'static str, what: String },
    /// An operation stands where it can't work.
    #[error("op {op} ({name}): {what}")]
    #[allow(missing_docs)]
    Order { op: usize, name: &'static str, what: &'static str },
    /// A step of the program's own is not known by that name.
    #[error(
        "op {op} (Custom): no step is registered as {name:?}; call register_transform with it \
         first, and before loader_core::init() where workers are processes"
    )]
    #[allow(missing_docs)]
    Unregistered { op: usize, name: String },
    /// A crop of an image that is known to be smaller.
    #[error(
        "op {op} (RandomCrop): {crop_height}x{crop_width} does not fit into {height}x{width}; \
         resize to more, or set padding or pad_if_needed"
    )]
    #[allow(missing_docs)]
    CropTooLarge { op: usize, crop_height: u32, crop_width: u32, height: u32, width: u32 },
}

/// No side of an output, a padding or a resize may be longer.
const MAX_SIDE: u32 = 1 << 16;

/// A compiled [`Transform`]: makes samples of one shape and element type out of image files.
///
/// It is immutable and shared between workers; what changes is in each worker's [`ImageScratch`].
#[derive(Clone, Debug)]
pub struct Pipeline {
    decode: DecodeOptions,
    ops: Vec<Numbered>,
    erase: Vec<EraseValue>,
    custom: Vec<Resolved>,
    shape: Shape,
    tables: Tables,
}

/// An operation, and its number among those that are random.
#[derive(Clone, Debug)]
struct Numbered {
    op: Op,
    draws: u64,
}

#[derive(Clone, Debug)]
enum Tables {
    U8(Box<Table<u8>>),
    F16(Box<Table<f16>>),
    BF16(Box<Table<bf16>>),
    F32(Box<Table<f32>>),
}

/// What is known of the image's size before it is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Nothing,
    SmallerEdge(u32),
    Size(u32, u32),
}

/// What is known while walking over the operations.
struct Checker {
    known: Known,
    channels: usize,
    to: Option<To>,
    op: usize,
    name: &'static str,
}

impl Checker {
    fn parameter(&self, what: impl Into<String>) -> TransformError {
        TransformError::Parameter { op: self.op, name: self.name, what: what.into() }
    }

    fn order(&self, what: &'static str) -> TransformError {
        TransformError::Order { op: self.op, name: self.name, what }
    }

    fn ensure(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), TransformError> {
        if holds { Ok(()) } else { Err(self.parameter(what())) }
    }

    fn on_pixels(&self) -> Result<(), TransformError> {
        match self.to {
            None => Ok(()),
            Some(_) => Err(self.order("works on pixels; put it before `to`")),
        }
    }

    fn on_tensor(&self) -> Result<To, TransformError> {
        self.to.ok_or_else(|| self.order("works on tensors; put `to(dtype, layout)` before it"))
    }

    fn probability(&self, p: f64) -> Result<(), TransformError> {
        self.ensure((0.0..=1.0).contains(&p), || format!("p = {p} is not in 0..=1"))
    }

    fn side(&self, side: u32) -> Result<(), TransformError> {
        self.ensure((1..=MAX_SIDE).contains(&side), || {
            format!("a side of {side} pixels is not in 1..={MAX_SIDE}")
        })
    }

    fn extent(&self, size: Extent) -> Result<(), TransformError> {
        self.side(size.height)?;
        self.side(size.width)
    }

    /// Bounds that hold something and lie in `low..=high`; NaN lies nowhere.
    fn bounds(
        &self,
        name: &str,
        (from, to): (f64, f64),
        low: f64,
        high: f64,
    ) -> Result<(), TransformError> {
        self.ensure(low <= from && from <= to && to <= high, || {
            format!("{name} ({from}, {to}) is not an increasing pair in {low}..={high}")
        })
    }

    /// Bounds that have a logarithm.
    fn ratio(&self, bounds: (f64, f64)) -> Result<(), TransformError> {
        self.ensure(bounds.0 > 0.0, || format!("ratio {bounds:?} must be above 0"))?;
        self.bounds("ratio", bounds, 0.0, f64::MAX)
    }

    fn per_channel(&self, name: &str, values: &[f32]) -> Result<(), TransformError> {
        let channels = self.channels;
        self.ensure(values.len() == 1 || values.len() == channels, || {
            format!("{name} has {} values; the image has {channels} channels", values.len())
        })?;
        self.ensure(values.iter().all(|v| v.is_finite()), || format!("{name} is not finite"))
    }

    fn fill(&self, fill: Fill) -> Result<(), TransformError> {
        self.ensure(self.channels == 3 || matches!(fill, Fill::All(_)), || {
            "the image has 1 channel, fill has 3".into()
        })
    }

    /// What an affine map is sampled with.
    fn sampled(&self, interpolation: Interpolation, fill: Fill) -> Result<(), TransformError> {
        self.on_pixels()?;
        self.ensure(interpolation != Interpolation::Lanczos, || {
            "interpolation can be nearest, bilinear or bicubic here".into()
        })?;
        self.fill(fill)
    }

    fn finite(&self, name: &str, bounds: (f64, f64)) -> Result<(), TransformError> {
        self.bounds(name, bounds, f64::MIN, f64::MAX)
    }

    fn center(&self, center: Option<(f64, f64)>) -> Result<(), TransformError> {
        self.ensure(center.is_none_or(|(x, y)| x.is_finite() && y.is_finite()), || {
            "center is not finite".into()
        })
    }

    fn magnitudes(&self, bins: u32) -> Result<(), TransformError> {
        self.ensure((2..=1 << 20).contains(&bins), || {
            format!("num_magnitude_bins is {bins}, it can be 2 to {}", 1 << 20)
        })
    }

    /// Those of the operations that change pixels with probability `p`.
    fn sometimes(&self, p: f64) -> Result<(), TransformError> {
        self.on_pixels()?;
        self.probability(p)
    }

    fn check(&mut self, op: &Op) -> Result<(), TransformError> {
        match op {
            Op::Resize(op) => {
                self.on_pixels()?;
                self.known = match op.size {
                    Target::Exact(size) => {
                        self.extent(size)?;
                        self.ensure(op.max_size.is_none(), || {
                            "max_size goes with a smaller edge, not with height and width".into()
                        })?;
                        Known::Size(size.width, size.height)
                    }
                    Target::SmallerEdge(edge) => {
                        self.side(edge)?;
                        if let Some(max) = op.max_size {
                            self.side(max)?;
                            self.ensure(max > edge, || {
                                format!("max_size {max} must be above the smaller edge {edge}")
                            })?;
                        }
                        match (self.known, op.max_size) {
                            (Known::Size(w, h), max) => {
                                super::geometry::resized(w, h, op.size, max)
                                    .map_or(Known::Nothing, |(w, h)| Known::Size(w, h))
                            }
                            (_, None) => Known::SmallerEdge(edge),
                            (_, Some(_)) => Known::Nothing,
                        }
                    }
                };
            }
            Op::CenterCrop(op) => {
                self.on_pixels()?;
                self.extent(op.size)?;
                self.known = Known::Size(op.size.width, op.size.height);
            }
            Op::RandomCrop(op) => {
                self.on_pixels()?;
                self.extent(op.size)?;
                self.fill(op.fill)?;
                let pad = op.padding;
                for side in [pad.left, pad.top, pad.right, pad.bottom] {
                    self.ensure(side <= MAX_SIDE, || {
                        format!("padding of {side} pixels is above {MAX_SIDE}")
                    })?;
                }
                let (width, height) = (op.size.width, op.size.height);
                let wider = |w: u32| width > w + pad.left + pad.right;
                let higher = |h: u32| height > h + pad.top + pad.bottom;
                let too_large = match self.known {
                    Known::Size(w, h) => (wider(w) || higher(h)).then_some((w, h)),
                    // Which of the two sides has that length is not known.
                    Known::SmallerEdge(edge) => {
                        (wider(edge) && higher(edge)).then_some((edge, edge))
                    }
                    Known::Nothing => None,
                };
                if let Some((w, h)) = too_large
                    && !op.pad_if_needed
                {
                    return Err(TransformError::CropTooLarge {
                        op: self.op,
                        crop_height: height,
                        crop_width: width,
                        height: h + pad.top + pad.bottom,
                        width: w + pad.left + pad.right,
                    });
                }
                self.known = Known::Size(op.size.width, op.size.height);
            }
            Op::RandomResizedCrop(op) => {
                self.on_pixels()?;
                self.extent(op.size)?;
                self.bounds("scale", op.scale, 0.0, 1.0)?;
                self.ratio(op.ratio)?;
                self.known = Known::Size(op.size.width, op.size.height);
            }
            Op::RandomHorizontalFlip(op) => self.probability(op.p)?,
            Op::RandomVerticalFlip(op) => self.probability(op.p)?,
            Op::ColorJitter(op) => {
                self.on_pixels()?;
                let high = f64::from(f32::MAX);
                self.bounds("brightness", op.brightness, 0.0, high)?;
                self.bounds("contrast", op.contrast, 0.0, high)?;
                self.bounds("saturation", op.saturation, 0.0, high)?;
                self.bounds("hue", op.hue, -0.5, 0.5)?;
            }
            Op::Grayscale(op) => {
                self.on_pixels()?;
                self.channels = match op.num_output_channels {
                    1 => 1,
                    3 => 3,
                    n => {
                        return Err(
                            self.parameter(format!("num_output_channels is {n}, it can be 1 or 3"))
                        );
                    }
                };
            }
            Op::RandomRotation(op) => {
                self.sampled(op.interpolation, op.fill)?;
                self.finite("degrees", op.degrees)?;
                self.center(op.center)?;
                if op.expand {
                    self.known = Known::Nothing;
                }
            }
            Op::RandomAffine(op) => {
                self.sampled(op.interpolation, op.fill)?;
                self.finite("degrees", op.degrees)?;
                self.center(op.center)?;
                let translate = op.translate.unwrap_or_default();
                for share in [translate.0, translate.1] {
                    self.ensure((0.0..=1.0).contains(&share), || {
                        format!("translate {translate:?} is not in 0..=1")
                    })?;
                }
                if let Some(scale) = op.scale {
                    self.ensure(scale.0 > 0.0, || format!("scale {scale:?} must be above 0"))?;
                    self.finite("scale", scale)?;
                }
                if let Some(shear) = op.shear {
                    self.finite("shear", shear.x)?;
                    self.finite("shear", shear.y)?;
                }
            }
            Op::GaussianBlur(op) => {
                self.on_pixels()?;
                for side in [op.kernel_size.0, op.kernel_size.1] {
                    self.ensure(side % 2 == 1 && side <= MAX_SIDE, || {
                        format!("kernel_size {:?} is not odd, or too large", op.kernel_size)
                    })?;
                }
                self.ensure(op.sigma.0 > 0.0, || format!("sigma {:?} must be above 0", op.sigma))?;
                self.finite("sigma", op.sigma)?;
            }
            Op::RandomAutocontrast(op) => self.sometimes(op.p)?,
            Op::RandomEqualize(op) => self.sometimes(op.p)?,
            Op::RandomInvert(op) => self.sometimes(op.p)?,
            Op::RandomPosterize(op) => {
                self.sometimes(op.p)?;
                self.ensure((1..=8).contains(&op.bits), || {
                    format!("bits is {}, it can be 1 to 8", op.bits)
                })?;
            }
            Op::RandomSolarize(op) => {
                self.sometimes(op.p)?;
                self.ensure(op.threshold.is_finite(), || "threshold is not finite".into())?;
            }
            Op::RandomAdjustSharpness(op) => {
                self.sometimes(op.p)?;
                let factor = op.sharpness_factor;
                self.ensure((0.0..=f64::from(f32::MAX)).contains(&factor), || {
                    format!("sharpness_factor {factor} is negative, or too large")
                })?;
            }
            Op::RandomGrayscale(op) => self.sometimes(op.p)?,
            Op::RandAugment(op) => {
                self.sampled(op.interpolation, op.fill)?;
                self.magnitudes(op.num_magnitude_bins)?;
                self.ensure(op.magnitude < op.num_magnitude_bins, || {
                    let bins = op.num_magnitude_bins;
                    format!("magnitude {} is not below num_magnitude_bins {bins}", op.magnitude)
                })?;
            }
            Op::TrivialAugmentWide(op) => {
                self.sampled(op.interpolation, op.fill)?;
                self.magnitudes(op.num_magnitude_bins)?;
            }
            Op::Custom(_) => self.on_pixels()?,
            Op::To(op) => {
                if self.to.is_some() {
                    return Err(self.order("a second `to`; give the final type in one"));
                }
                let written = matches!(op.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32);
                self.ensure(written, || format!("images can't be written as {:?}", op.dtype))?;
                self.to = Some(*op);
            }
            Op::Normalize(op) => {
                if self.on_tensor()?.dtype == DType::U8 {
                    return Err(self.order("works on floats; use `to` with F32, F16 or BF16"));
                }
                self.per_channel("mean", &op.mean)?;
                self.per_channel("std", &op.std)?;
                self.ensure(op.std.iter().all(|&v| v != 0.0), || "std holds a 0".into())?;
            }
            Op::RandomErasing(op) => {
                let floats = self.on_tensor()?.dtype != DType::U8;
                self.probability(op.p)?;
                self.bounds("scale", op.scale, 0.0, 1.0)?;
                self.ratio(op.ratio)?;
                let values = match &op.value {
                    Erase::Constant(value) => std::slice::from_ref(value),
                    Erase::PerChannel(values) => values,
                    Erase::Random if floats => &[],
                    Erase::Random => {
                        return Err(self.parameter("random values need a float output, not U8"));
                    }
                };
                if op.value != Erase::Random {
                    self.per_channel("value", values)?;
                }
                self.ensure(
                    floats || values.iter().all(|v| v.fract() == 0.0 && (0.0..=255.0).contains(v)),
                    || "value must be a whole number in 0..=255 for a U8 output".into(),
                )?;
            }
        }
        Ok(())
    }
}

impl Transform {
    /// Checks every parameter, the order of the operations and that the output's shape is fixed,
    /// and prepares what all samples share.
    ///
    /// # Errors
    /// The first thing that is wrong, and what to change.
    pub fn compile(&self) -> Result<Pipeline, TransformError> {
        let mut checker = Checker { known: Known::Nothing, channels: 3, to: None, op: 0, name: "" };
        let (mut ops, mut normalize, mut erase) = (Vec::new(), Vec::new(), Vec::new());
        let mut custom = Vec::new();
        let mut draws = 0;
        for (at, op) in self.ops().iter().enumerate() {
            (checker.op, checker.name) = (at, op.name());
            checker.check(op)?;
            match op {
                Op::Normalize(op) => normalize.push(op.clone()),
                Op::RandomErasing(op) => erase.push(match &op.value {
                    Erase::Constant(value) => EraseValue::Constant([*value; 3]),
                    Erase::PerChannel(values) => EraseValue::Constant(std::array::from_fn(|c| {
                        values.get(c).or(values.first()).copied().unwrap_or_default()
                    })),
                    Erase::Random => EraseValue::Random,
                }),
                Op::Custom(op) => custom.push(Resolved::find(op).ok_or_else(|| {
                    TransformError::Unregistered { op: at, name: op.name.clone() }
                })?),
                _ => {}
            }
            ops.push(Numbered { op: op.clone(), draws });
            draws += u64::from(op.is_random());
        }
        let Known::Size(w, h) = checker.known else {
            return Err(TransformError::SizeNotFixed);
        };
        let to = checker.to.unwrap_or(To { dtype: DType::U8, layout: Layout::Nchw });
        let tables = match to.dtype {
            DType::F16 => Tables::F16(write::float_table(&normalize)),
            DType::BF16 => Tables::BF16(write::float_table(&normalize)),
            DType::F32 => Tables::F32(write::float_table(&normalize)),
            // The checker has refused all others.
            _ => Tables::U8(write::raw_table()),
        };
        let shape =
            Shape { channels: checker.channels, w: w as usize, h: h as usize, layout: to.layout };
        Ok(Pipeline { decode: *self.decode_options(), ops, erase, custom, shape, tables })
    }
}

impl Pipeline {
    /// The element type and the shape of a sample: `[channels, height, width]` for NCHW,
    /// `[height, width, channels]` for NHWC.
    pub fn field(&self) -> (DType, Vec<usize>) {
        let dtype = match self.tables {
            Tables::U8(_) => DType::U8,
            Tables::F16(_) => DType::F16,
            Tables::BF16(_) => DType::BF16,
            Tables::F32(_) => DType::F32,
        };
        let Shape { channels, w, h, layout } = self.shape;
        let shape = match layout {
            Layout::Nchw => vec![channels, h, w],
            Layout::Nhwc => vec![h, w, channels],
        };
        (dtype, shape)
    }

    /// Makes the sample of the image file `bytes` in `out`, whose content is overwritten.
    ///
    /// `out` has the bytes of one sample of [`field`](Self::field), aligned for its element type.
    /// Randomness comes from [`Sample::draws`] alone, numbered by the random operations in order.
    /// `scratch` keeps the working memory, so that a worker which has seen its largest image
    /// allocates only what the decoder and the resize filter's weights need.
    ///
    /// # Errors
    /// Where the file is not an image that can be decoded within the limits, where a crop does not
    /// fit the image, or where `out` has the wrong length or alignment.
    pub fn run(
        &self,
        bytes: &[u8],
        sample: &Sample,
        scratch: &mut ImageScratch,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        clock::enter(Lap::Decode);
        let mut plan = std::mem::take(&mut scratch.plan);
        let result = self.run_planned(bytes, sample, &mut plan, scratch, out);
        scratch.plan = plan;
        scratch.trim();
        clock::enter(Lap::Load);
        result
    }

    fn run_planned(
        &self,
        bytes: &[u8],
        sample: &Sample,
        plan: &mut Plan,
        scratch: &mut ImageScratch,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        let source = Source::open(bytes, &self.decode, &mut scratch.jpeg)?;
        let size = source.size();
        self.draw(plan, size, sample)?;
        plan.finish(size, source.scales());
        let made = source.read(plan.source, plan.scale, &mut scratch.image, &mut scratch.spare)?;
        plan.start_at(made);
        clock::enter(Lap::Transform);
        let width = self.apply(plan, (made.w, made.h), scratch)?;
        clock::enter(Lap::Write);
        self.write(plan, scratch, width, out)
    }

    /// Draws the sample's parameters and works out its geometry.
    pub(super) fn draw(
        &self,
        plan: &mut Plan,
        (w, h): (u32, u32),
        sample: &Sample,
    ) -> Result<(), SampleError> {
        let too_large = || {
            let message = format_args!("the {w}x{h} image would become too large");
            SampleError::new(Stage::Transform, message)
        };
        let fits = |fits: bool| if fits { Ok(()) } else { Err(too_large()) };
        plan.start(w, h);
        let (mut erased, mut custom) = (0, 0);
        for Numbered { op, draws: number } in &self.ops {
            let draws = || sample.draws(*number);
            match op {
                Op::Resize(op) => fits(plan.resize(op.size, op.max_size, op.interpolation))?,
                Op::CenterCrop(op) => fits(plan.center_crop(op.size))?,
                Op::RandomCrop(op) => {
                    fits(random_crop_padding(plan, op))?;
                    let (w, h) = plan.size();
                    let crop = params::random_crop(&mut draws(), w, h, op.size);
                    plan.crop(crop.ok_or_else(|| {
                        SampleError::new(
                            Stage::Transform,
                            format_args!(
                                "RandomCrop of {}x{} from an image of {h}x{w} (height x width); \
                                 set pad_if_needed, or resize first",
                                op.size.height, op.size.width
                            ),
                        )
                    })?);
                }
                Op::RandomResizedCrop(op) => {
                    let (w, h) = plan.size();
                    plan.crop(params::random_resized_crop(&mut draws(), w, h, op));
                    fits(plan.resize(Target::Exact(op.size), None, op.interpolation))?;
                }
                Op::RandomHorizontalFlip(op) => plan.flip(draws().chance(op.p), false),
                Op::RandomVerticalFlip(op) => plan.flip(false, draws().chance(op.p)),
                Op::ColorJitter(op) => {
                    params::color_jitter(&mut draws(), op).for_each(|adjust| plan.adjust(adjust));
                }
                Op::Grayscale(_) => plan.adjust(params::Adjust::Gray),
                Op::RandomRotation(op) => augment::random_rotation(plan, op, &mut draws()),
                Op::RandomAffine(op) => augment::random_affine(plan, op, &mut draws()),
                Op::GaussianBlur(op) => augment::gaussian_blur(plan, op, &mut draws()),
                Op::RandomAutocontrast(op) => {
                    levels(plan, draws().chance(op.p), Levels::AutoContrast)
                }
                Op::RandomEqualize(op) => levels(plan, draws().chance(op.p), Levels::Equalize),
                Op::RandomInvert(op) => levels(plan, draws().chance(op.p), Levels::Invert),
                Op::RandomPosterize(op) => {
                    levels(plan, draws().chance(op.p), Levels::Posterize(op.bits));
                }
                Op::RandomSolarize(op) => {
                    levels(plan, draws().chance(op.p), Levels::Solarize(op.threshold));
                }
                Op::RandomAdjustSharpness(op) => {
                    if draws().chance(op.p) {
                        plan.filter(Filter::Sharpness(op.sharpness_factor as f32));
                    }
                }
                Op::RandomGrayscale(op) => {
                    if draws().chance(op.p) {
                        plan.adjust(params::Adjust::Gray);
                    }
                }
                Op::RandAugment(op) => {
                    augment::rand_augment(&mut draws(), op, plan.size()).for_each(|choice| {
                        augment::apply(plan, choice, op.interpolation, op.fill);
                    });
                }
                Op::TrivialAugmentWide(op) => {
                    let choice = augment::trivial_augment_wide(&mut draws(), op);
                    augment::apply(plan, choice, op.interpolation, op.fill);
                }
                Op::Custom(_) => {
                    let run = CustomRun { index: custom, sample: *sample, draws: *number };
                    plan.filter(Filter::Custom(run));
                    custom += 1;
                }
                Op::To(_) | Op::Normalize(_) => {}
                Op::RandomErasing(op) => {
                    let (w, h) = plan.size();
                    let mut draws = draws();
                    if let Some(rect) = params::random_erasing(&mut draws, w, h, op) {
                        plan.erase(rect, erased, draws);
                    }
                    erased += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes the decoded image in `scratch.image` through the plan's steps, and gives the width of
    /// what is in `scratch.image` then.
    pub(super) fn apply(
        &self,
        plan: &Plan,
        (mut width, mut height): (u32, u32),
        scratch: &mut ImageScratch,
    ) -> Result<u32, SampleError> {
        let ImageScratch { image, spare, resize, filter, .. } = scratch;
        for step in &plan.steps {
            let src = &mut image[..width as usize * height as usize * 3];
            let made = match step {
                Step::Adjust(rect, adjust) => {
                    color::apply(src, width, *rect, *adjust);
                    continue;
                }
                Step::Resize(step) => {
                    let dst = self.space(spare, step.window, resize::working_bytes(step))?;
                    resize::resize(resize, src, (width, height), step, dst)
                        .map_err(|e| SampleError::new(Stage::Transform, e))?;
                    step.window
                }
                Step::Pad(step) => {
                    let dst = self.space(spare, step.window, 0)?;
                    resize::pad(resize, src, width, step, dst);
                    step.window
                }
                Step::Filter(step) => {
                    let made = step.made();
                    self.filter(filter, step, src, width, self.space(spare, made, 0)?)?;
                    made
                }
            };
            std::mem::swap(image, spare);
            (width, height) = (made.w, made.h);
        }
        Ok(width)
    }

    /// Makes the step's image in `dst`.
    fn filter(
        &self,
        scratch: &mut filter::Scratch,
        step: &FilterStep,
        src: &[u8],
        width: u32,
        dst: &mut [u8],
    ) -> Result<(), SampleError> {
        let FilterStep { from, flip, filter } = step;
        match filter {
            Filter::Affine(affine) => super::affine::apply(affine, src, width, *from, *flip, dst),
            Filter::Blur(blur) => filter::blur(scratch, *blur, src, width, *from, dst),
            Filter::Sharpness(factor) => filter::sharpness(*factor, src, width, *from, dst),
            Filter::Custom(run) => {
                filter::copy(src, width, *from, *flip, dst);
                return self.custom[run.index].run((from.w, from.h), run, dst);
            }
        }
        Ok(())
    }

    /// Room for an image of the size of `made`, where that and `more` bytes are within the limit.
    fn space<'a>(
        &self,
        buffer: &'a mut Vec<u8>,
        made: Rect,
        more: u64,
    ) -> Result<&'a mut [u8], SampleError> {
        let own = u64::from(made.w) * u64::from(made.h) * 3;
        let bytes = own.saturating_add(more);
        if bytes > self.decode.max_bytes {
            let limit = self.decode.max_bytes;
            return Err(SampleError::new(
                Stage::Transform,
                format_args!(
                    "resizing or padding to {}x{} takes {bytes} bytes, more than the limit of \
                     {limit} (DecodeOptions::max_bytes)",
                    made.w, made.h
                ),
            ));
        }
        room(buffer, own as usize).map_err(|e| SampleError::new(Stage::Transform, e))
    }

    pub(super) fn write(
        &self,
        plan: &mut Plan,
        scratch: &ImageScratch,
        width: u32,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        match &self.tables {
            Tables::U8(table) => self.write_as(plan, scratch, width, table, out),
            Tables::F16(table) => self.write_as(plan, scratch, width, table, out),
            Tables::BF16(table) => self.write_as(plan, scratch, width, table, out),
            Tables::F32(table) => self.write_as(plan, scratch, width, table, out),
        }
    }

    fn write_as<T: Output>(
        &self,
        plan: &mut Plan,
        scratch: &ImageScratch,
        width: u32,
        table: &Table<T>,
        out: &mut [u8],
    ) -> Result<(), SampleError> {
        let have = out.len();
        let out: &mut [T] = bytemuck::try_cast_slice_mut(out).map_err(|e| {
            SampleError::new(Stage::Write, format_args!("{have} bytes as {:?}: {e}", T::DTYPE))
        })?;
        let shape = self.shape;
        let want = shape.channels * shape.w * shape.h;
        if out.len() != want {
            let message = format_args!("{} elements of space for a sample of {want}", out.len());
            return Err(SampleError::new(Stage::Write, message));
        }
        write::image(&scratch.image, width, plan.view, plan.flip, shape, table, out);
        for erase in &mut plan.erase {
            write::erase(erase.rect, shape, &self.erase[erase.value], &mut erase.draws, out);
        }
        Ok(())
    }
}

fn levels(plan: &mut Plan, changes: bool, levels: Levels) {
    if changes {
        plan.adjust(params::Adjust::Levels(levels));
    }
}

/// Pads for a random crop: first as asked, then what is still missing, on both sides.
fn random_crop_padding(plan: &mut Plan, op: &RandomCrop) -> bool {
    let (w, h) = plan.size();
    let pad = op.padding;
    let missing = |side: u32, before: u32, after: u32, want: u32| {
        if op.pad_if_needed { want.saturating_sub(side + before + after) } else { 0 }
    };
    let x = missing(w, pad.left, pad.right, op.size.width);
    let y = missing(h, pad.top, pad.bottom, op.size.height);
    plan.pad([pad, Padding::from((x, y))], op.fill, op.padding_mode)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixed() -> Transform {
        Transform::new().center_crop(8)
    }

    fn floats() -> Transform {
        fixed().to(DType::F32, Layout::Nchw)
    }

    fn message(transform: Transform) -> String {
        transform.compile().unwrap_err().to_string()
    }

    #[test]
    fn an_open_size_is_refused_with_what_to_add() {
        for open in [
            Transform::new(),
            Transform::new().resize(256),
            Transform::new().random_horizontal_flip(0.5).to(DType::F32, Layout::Nchw),
            Transform::new().then(Resize::new(256).max_size(300)),
            fixed().then(RandomRotation::new(10.0).expand(true)),
        ] {
            assert_eq!(open.compile().unwrap_err(), TransformError::SizeNotFixed);
        }
        assert!(message(Transform::new().resize(256)).contains("center_crop(224)"));
    }

    #[test]
    fn a_smaller_edge_of_a_known_size_is_a_known_size() {
        let shape = |t: Transform| t.compile().unwrap().field().1;
        assert_eq!(shape(Transform::new().center_crop((30, 60)).resize(20)), [3, 20, 40]);
        let limited = Transform::new().center_crop((30, 60)).then(Resize::new(20).max_size(30));
        assert_eq!(shape(limited), [3, 15, 30]);
    }

    #[test]
    fn the_field_is_what_was_asked_for() {
        let field = |t: Transform| t.compile().unwrap().field();
        assert_eq!(field(Transform::new().resize((4, 6))), (DType::U8, vec![3, 4, 6]));
        assert_eq!(
            field(Transform::new().resize((4, 6)).grayscale(1).to(DType::BF16, Layout::Nhwc)),
            (DType::BF16, vec![4, 6, 1])
        );
        let eval = field(Transform::imagenet_eval(224));
        assert_eq!(eval, (DType::F32, vec![3, 224, 224]));
        assert_eq!(field(Transform::imagenet_train(224)), eval);
    }

    #[test]
    fn a_parameter_out_of_range_is_refused_by_name() {
        let rrc = RandomResizedCrop::new(8);
        let rgb = Fill::Rgb([1, 2, 3]);
        for (transform, part) in [
            (fixed().random_horizontal_flip(-0.1), "p = -0.1"),
            (fixed().random_vertical_flip(1.1), "p = 1.1"),
            (fixed().random_vertical_flip(f64::NAN), "p = NaN"),
            (Transform::new().center_crop(0), "a side of 0"),
            (Transform::new().resize(1 << 17), "a side of 131072"),
            (Transform::new().then(Resize::new(8).max_size(8)), "max_size 8"),
            (Transform::new().then(Resize::new((8, 8)).max_size(9)), "max_size goes with"),
            (Transform::new().then(rrc.scale(0.9, 0.1)), "scale (0.9, 0.1)"),
            (Transform::new().then(rrc.scale(-0.1, 1.0)), "scale (-0.1, 1)"),
            (Transform::new().then(rrc.scale(0.5, 1.5)), "scale (0.5, 1.5)"),
            (Transform::new().then(rrc.ratio(-1.0, 1.0)), "ratio (-1.0, 1.0) must be above 0"),
            (Transform::new().then(rrc.ratio(1.0, f64::INFINITY)), "ratio (1, inf)"),
            (fixed().color_jitter(-0.1, 0.0, 0.0, 0.0), "brightness (1.1, 0.9)"),
            (fixed().color_jitter(0.0, f64::NAN, 0.0, 0.0), "contrast"),
            (fixed().color_jitter(0.0, 0.0, 0.0, 0.6), "hue (-0.6, 0.6)"),
            (fixed().grayscale(2), "num_output_channels is 2"),
            (fixed().then(RandomRotation::new(-1.0)), "degrees (1, -1)"),
            (fixed().then(RandomRotation::new(f64::INFINITY)), "degrees (-inf, inf)"),
            (fixed().then(RandomRotation::new(1.0).center(f64::NAN, 0.0)), "center is not finite"),
            (
                fixed().then(RandomRotation::new(1.0).interpolation(Interpolation::Lanczos)),
                "nearest, bilinear or bicubic",
            ),
            (fixed().grayscale(1).then(RandomRotation::new(1.0).fill(rgb)), "fill has 3"),
            (fixed().then(RandomAffine::new(1.0).translate(0.1, 1.5)), "translate (0.1, 1.5)"),
            (
                fixed().then(RandomAffine::new(1.0).scale(0.0, 1.0)),
                "scale (0.0, 1.0) must be above",
            ),
            (fixed().then(RandomAffine::new(1.0).shear(f64::NAN)), "shear"),
            (fixed().then(GaussianBlur::new(4)), "kernel_size (4, 4) is not odd"),
            (fixed().then(GaussianBlur::new(3).sigma(0.0, 1.0)), "sigma (0.0, 1.0) must be above"),
            (fixed().then(RandomEqualize { p: 1.5 }), "p = 1.5"),
            (fixed().then(RandomPosterize::new(0)), "bits is 0"),
            (fixed().then(RandomSolarize::new(f64::NAN)), "threshold is not finite"),
            (fixed().then(RandomAdjustSharpness::new(-1.0)), "sharpness_factor -1"),
            (fixed().then(RandAugment::new(2, 31)), "magnitude 31 is not below"),
            (
                fixed().then(TrivialAugmentWide {
                    num_magnitude_bins: 1,
                    ..TrivialAugmentWide::default()
                }),
                "num_magnitude_bins is 1",
            ),
            (fixed().grayscale(1).then(RandomCrop::new(8).fill(rgb)), "fill has 3"),
            (Transform::new().then(RandomCrop::new(8).padding(1 << 20)), "padding of 1048576"),
            (fixed().to(DType::I64, Layout::Nchw), "I64"),
            (floats().normalize([0.5, 0.5], [1.0]), "mean has 2 values"),
            (floats().normalize([0.5], [0.0]), "std holds a 0"),
            (floats().normalize([f32::NAN], [1.0]), "mean is not finite"),
            (floats().random_erasing(2.0), "p = 2"),
            (
                fixed()
                    .grayscale(1)
                    .to(DType::F32, Layout::Nchw)
                    .then(RandomErasing::new(0.5).value([0.0, 1.0, 2.0])),
                "value has 3 values",
            ),
            (
                fixed()
                    .to(DType::U8, Layout::Nchw)
                    .then(RandomErasing::new(0.5).value(Erase::Random)),
                "random values need a float",
            ),
            (
                fixed().to(DType::U8, Layout::Nchw).then(RandomErasing::new(0.5).value(0.5)),
                "whole number",
            ),
        ] {
            let error = transform.compile().unwrap_err();
            assert!(matches!(error, TransformError::Parameter { .. }), "{error}");
            assert!(error.to_string().contains(part), "{error} should name {part}");
        }
    }

    #[test]
    fn an_op_out_of_order_is_refused_with_its_place() {
        for (transform, start) in [
            (fixed().normalize([0.5], [0.5]), "op 1 (Normalize): works on tensors"),
            (fixed().random_erasing(0.5), "op 1 (RandomErasing): works on tensors"),
            (floats().center_crop(4), "op 2 (CenterCrop): works on pixels"),
            (floats().color_jitter(0.1, 0.0, 0.0, 0.0), "op 2 (ColorJitter): works on pixels"),
            (floats().to(DType::U8, Layout::Nchw), "op 2 (To): a second"),
            (floats().then(RandAugment::default()), "op 2 (RandAugment): works on pixels"),
            (floats().then(RandomInvert { p: 0.5 }), "op 2 (RandomInvert): works on pixels"),
            (floats().then(Custom::new("any")), "op 2 (Custom): works on pixels"),
            (
                fixed().to(DType::U8, Layout::Nchw).normalize([0.5], [0.5]),
                "op 2 (Normalize): works on floats",
            ),
        ] {
            assert!(message(transform.clone()).starts_with(start), "{}", message(transform));
        }
        assert!(floats().random_horizontal_flip(0.5).normalize([0.5], [0.5]).compile().is_ok());
    }

    #[test]
    fn a_crop_that_can_never_fit_is_refused() {
        let too_large =
            |t: Transform| matches!(t.compile(), Err(TransformError::CropTooLarge { .. }));
        assert!(too_large(fixed().random_crop(9)));
        assert!(too_large(fixed().random_crop((4, 9))));
        assert!(too_large(Transform::new().resize(8).random_crop(9)));
        // One side of the image may well be long enough.
        assert!(!too_large(Transform::new().resize(8).random_crop((4, 9))));
        assert!(!too_large(fixed().then(RandomCrop::new(9).padding((1, 1, 0, 0)))));
        assert!(!too_large(fixed().then(RandomCrop::new(9).pad_if_needed(true))));
        assert!(!too_large(Transform::new().random_crop(9)));
    }

    #[test]
    fn only_random_ops_number_the_draws() {
        let draws =
            |t: Transform| t.compile().unwrap().ops.iter().map(|op| op.draws).collect::<Vec<_>>();
        assert_eq!(draws(Transform::imagenet_train(8)), [0, 1, 2, 2]);
        assert_eq!(
            draws(Transform::new().resize(9).random_crop(8).random_vertical_flip(0.5)),
            [0, 0, 1]
        );
    }

    /// What every step reads and makes must be there, and the view must be the output.
    fn check(plan: &Plan, (mut w, mut h): (u32, u32), shape: Shape) -> Result<(), String> {
        let inside = |r: Rect, w: u32, h: u32| {
            r.w > 0
                && r.h > 0
                && u64::from(r.x) + u64::from(r.w) <= u64::from(w)
                && u64::from(r.y) + u64::from(r.h) <= u64::from(h)
        };
        for step in &plan.steps {
            let fits = match step {
                Step::Resize(step) => {
                    let fits =
                        inside(step.from, w, h) && inside(step.window, step.full.0, step.full.1);
                    (w, h) = (step.window.w, step.window.h);
                    fits
                }
                Step::Pad(step) => {
                    let fits = inside(step.from, w, h);
                    (w, h) = (step.window.w, step.window.h);
                    fits
                }
                Step::Adjust(rect, _) => inside(*rect, w, h),
                Step::Filter(step) => {
                    let fits = inside(step.from, w, h);
                    (w, h) = (step.made().w, step.made().h);
                    fits
                }
            };
            if !fits {
                return Err(format!("{step:?} of {w}x{h}"));
            }
        }
        let view = plan.view;
        if !inside(view, w, h) || (view.w as usize, view.h as usize) != (shape.w, shape.h) {
            return Err(format!("{view:?} of {w}x{h}"));
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn any_image_size_gives_exactly_the_shape(
            w in prop_oneof![1u32..40, 200u32..300, 1u32..65_536],
            h in prop_oneof![1u32..40, 200u32..300, 1u32..65_536],
            index in any::<u64>(),
        ) {
            thread_local! {
                static PIPELINES: [Pipeline; 4] = [
                    Transform::imagenet_train(224),
                    Transform::imagenet_eval(224),
                    Transform::new()
                        .random_horizontal_flip(0.5)
                        .then(Resize::new(40).max_size(60))
                        .then(RandomCrop::new((224, 220)).padding((3, 1, 0, 2)).pad_if_needed(true))
                        .color_jitter(0.1, 0.1, 0.1, 0.1)
                        .random_vertical_flip(0.5)
                        .center_crop(211)
                        .random_resized_crop(224),
                    Transform::new()
                        .random_horizontal_flip(0.5)
                        .then(RandAugment::new(4, 30))
                        .then(Resize::new(40).max_size(60))
                        .then(RandomRotation::new(180.0).expand(true))
                        .then(GaussianBlur::new(3))
                        .then(RandomCrop::new((30, 50)).pad_if_needed(true))
                        .then(TrivialAugmentWide::default())
                        .then(RandomAdjustSharpness::new(2.0))
                        .then(RandomAffine::new(30.0).translate(0.5, 0.5)),
                ].map(|t| t.compile().unwrap());
            }
            let sample = Sample { index, epoch: 0, seed: 0, occurrence: 0 };
            PIPELINES.with(|pipelines| {
                for pipeline in pipelines {
                    let mut plan = Plan::default();
                    pipeline.draw(&mut plan, (w, h), &sample).unwrap();
                    plan.finish((w, h), &[]);
                    if let Err(wrong) = check(&plan, (w, h), pipeline.shape) {
                        prop_assert!(false, "{}x{}: {}", w, h, wrong);
                    }
                }
                Ok(())
            })?;
        }
    }
}
