//! Transforms as data: what is done to an image, to be stored, compared, sent and compiled.

use serde::{Deserialize, Serialize};

use super::decode::{DECODER, Limits};
use crate::dataset::Fingerprint;
use crate::field::DType;

/// The mean that ImageNet models normalise with, per channel, of values in `[0, 1]`.
pub const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
/// The standard deviation that ImageNet models normalise with, per channel.
pub const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];

/// What is done to every image of a dataset: operations in order, and the form of the result.
///
/// Names, parameters, defaults and meaning of the operations are torchvision's. The result is one
/// tensor a sample, `f32` in `[0, 1]` and `NCHW` unless told otherwise.
/// [`compile`](Transform::compile) checks it all.
///
/// ```
/// use loader_core::{DType, Normalize, RandomCrop, RandomHorizontalFlip, Transform};
///
/// let cifar = Transform::new()
///     .then(RandomCrop::new(32).padding(4))
///     .then(RandomHorizontalFlip::default())
///     .then(Normalize::new([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]))
///     .dtype(DType::F16);
/// let pipeline = cifar.compile()?;
/// assert_eq!(pipeline.field().shape, [3, 32, 32]);
/// # Ok::<(), loader_core::TransformError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// The operations, first to last.
    pub ops: Vec<Op>,
    /// The element type of the result: `U8`, `F16`, `BF16` or `F32`.
    pub dtype: DType,
    /// The order of the result's dimensions.
    pub layout: Layout,
    /// The largest images that are decoded.
    pub limits: Limits,
}

impl Default for Transform {
    fn default() -> Self {
        Self::new()
    }
}

impl Transform {
    /// No operation; `f32` in `[0, 1]`, `NCHW`.
    pub fn new() -> Self {
        Self { ops: Vec::new(), dtype: DType::F32, layout: Layout::Nchw, limits: Limits::default() }
    }

    /// The usual training transform of ImageNet: [`RandomResizedCrop`] to `size`, a horizontal flip
    /// of every second image, ImageNet's mean and deviation.
    pub fn imagenet_train(size: u32) -> Self {
        Self::new()
            .then(RandomResizedCrop::new(size))
            .then(RandomHorizontalFlip::default())
            .then(Normalize::imagenet())
    }

    /// The usual evaluation transform of ImageNet: [`Resize`] of the smaller edge to
    /// `size * 256 / 224`, rounded, then [`CenterCrop`] to `size`, ImageNet's mean and deviation.
    pub fn imagenet_eval(size: u32) -> Self {
        let edge = (u64::from(size) * 256 + 112) / 224;
        Self::new()
            .then(Resize::smaller_edge(u32::try_from(edge).unwrap_or(u32::MAX)))
            .then(CenterCrop::new(size))
            .then(Normalize::imagenet())
    }

    /// Adds an operation at the end.
    #[must_use]
    pub fn then(mut self, op: impl Into<Op>) -> Self {
        self.ops.push(op.into());
        self
    }

    /// The element type of the result. `U8` is the raw levels 0..=255, the others are scaled by
    /// 1/255, as torchvision's `ToTensor` does.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The order of the result's dimensions.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The largest images that are decoded.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Identifies the transform and the decoder below it: everything that shapes a sample's bytes
    /// apart from the file and the seed.
    pub fn fingerprint(&self) -> Fingerprint {
        // JSON of a struct has one form: fields in order, numbers in their shortest exact digits.
        // Numbers that JSON lacks become null; `compile` refuses them.
        let text = serde_json::to_vec(self).unwrap_or_default();
        Fingerprint::of(DECODER.as_bytes()).and(Fingerprint::of(&text))
    }
}

/// The order of an image tensor's dimensions, batch first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Batch, channels, height, width: what PyTorch expects.
    #[default]
    Nchw,
    /// Batch, height, width, channels.
    Nhwc,
}

/// How pixels are made from their neighbours. All but `Nearest` are antialiased: they widen when an
/// image shrinks, as Pillow's do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The pixel below the centre.
    Nearest,
    /// A triangle.
    #[default]
    Bilinear,
    /// Cubic convolution, a = -0.5.
    Bicubic,
    /// A windowed sinc of three lobes.
    Lanczos,
}

/// One operation of a [`Transform`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are documented by the structs they hold")]
pub enum Op {
    Resize(Resize),
    CenterCrop(CenterCrop),
    RandomResizedCrop(RandomResizedCrop),
    RandomCrop(RandomCrop),
    RandomHorizontalFlip(RandomHorizontalFlip),
    RandomVerticalFlip(RandomVerticalFlip),
    ColorJitter(ColorJitter),
    Grayscale(Grayscale),
    Normalize(Normalize),
    RandomErasing(RandomErasing),
}

macro_rules! op {
    ($($name:ident),* $(,)?) => {
        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        impl Op {
            /// The operation's name, which is torchvision's.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }
        }
    };
}
op!(
    Resize,
    CenterCrop,
    RandomResizedCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    ColorJitter,
    Grayscale,
    Normalize,
    RandomErasing,
);

/// The size that [`Resize`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResizeTo {
    /// The smaller edge becomes `size`, the other follows, rounded down; where that one would
    /// exceed `max_size` it becomes `max_size` and the smaller edge follows.
    SmallerEdge {
        /// Pixels of the smaller edge.
        size: u32,
        /// The most pixels that the other edge may have.
        max_size: Option<u32>,
    },
    /// Exactly this size; the aspect ratio is not kept.
    Exact {
        /// Rows.
        height: u32,
        /// Columns.
        width: u32,
    },
}

/// Resizes the image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The size of the result.
    pub to: ResizeTo,
    /// Default bilinear.
    pub interpolation: Interpolation,
}

impl Resize {
    /// Makes the smaller edge that long and keeps the aspect ratio.
    pub fn smaller_edge(size: u32) -> Self {
        let to = ResizeTo::SmallerEdge { size, max_size: None };
        Self { to, interpolation: Interpolation::default() }
    }

    /// Makes the smaller edge `size`, or less where the other would exceed `max_size`.
    pub fn smaller_edge_at_most(size: u32, max_size: u32) -> Self {
        let to = ResizeTo::SmallerEdge { size, max_size: Some(max_size) };
        Self { to, interpolation: Interpolation::default() }
    }

    /// Exactly that size.
    pub fn exact(height: u32, width: u32) -> Self {
        Self { to: ResizeTo::Exact { height, width }, interpolation: Interpolation::default() }
    }

    /// Default bilinear.
    #[must_use]
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }
}

/// Cuts out the centre; an image that is smaller is padded with zeros first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CenterCrop {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

impl CenterCrop {
    /// A square.
    pub fn new(size: u32) -> Self {
        Self { height: size, width: size }
    }
}

/// Cuts out a random part of random area and aspect ratio and resizes it.
///
/// Ten tries to draw an area `area * U(scale)` and a ratio `exp(U(ln ratio))` that fit; if none
/// does, the centre with the nearest ratio that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomResizedCrop {
    /// Rows of the result.
    pub height: u32,
    /// Columns of the result.
    pub width: u32,
    /// The part's share of the area, lowest and highest; default (0.08, 1).
    pub scale: (f64, f64),
    /// Width over height of the part, lowest and highest; default (3/4, 4/3).
    pub ratio: (f64, f64),
    /// Default bilinear.
    pub interpolation: Interpolation,
}

impl RandomResizedCrop {
    /// A square.
    pub fn new(size: u32) -> Self {
        Self {
            height: size,
            width: size,
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: Interpolation::default(),
        }
    }

    /// The part's share of the area, lowest and highest; default (0.08, 1).
    #[must_use]
    pub fn scale(mut self, low: f64, high: f64) -> Self {
        self.scale = (low, high);
        self
    }

    /// Width over height of the part, lowest and highest; default (3/4, 4/3).
    #[must_use]
    pub fn ratio(mut self, low: f64, high: f64) -> Self {
        self.ratio = (low, high);
        self
    }

    /// Default bilinear.
    #[must_use]
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }
}

/// Pads the image with a colour and cuts out a part at a random place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomCrop {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Pixels added left, above, right and below; default none.
    pub padding: [u32; 4],
    /// Whether an image that is still smaller is padded on both sides by what it lacks, as
    /// torchvision does; else such an image is an error. Default no.
    pub pad_if_needed: bool,
    /// The colour of the padding; default black.
    pub fill: [u8; 3],
}

impl RandomCrop {
    /// A square, no padding.
    pub fn new(size: u32) -> Self {
        Self { height: size, width: size, padding: [0; 4], pad_if_needed: false, fill: [0; 3] }
    }

    /// Pixels added on each side; default none.
    #[must_use]
    pub fn padding(mut self, all: u32) -> Self {
        self.padding = [all; 4];
        self
    }

    /// Whether too small an image is padded; default no, which makes it an error.
    #[must_use]
    pub fn pad_if_needed(mut self, yes: bool) -> Self {
        self.pad_if_needed = yes;
        self
    }

    /// The colour of the padding; default black.
    #[must_use]
    pub fn fill(mut self, rgb: [u8; 3]) -> Self {
        self.fill = rgb;
        self
    }
}

/// Mirrors left and right with some probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomHorizontalFlip {
    /// The probability; default 0.5.
    pub p: f64,
}

/// Mirrors top and bottom with some probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomVerticalFlip {
    /// The probability; default 0.5.
    pub p: f64,
}

impl Default for RandomHorizontalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

impl Default for RandomVerticalFlip {
    fn default() -> Self {
        Self { p: 0.5 }
    }
}

/// Changes brightness, contrast, saturation and hue by random factors in random order, with Pillow's
/// arithmetic on 8-bit levels.
///
/// A range of one neutral value (1, for the hue 0) leaves that step out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColorJitter {
    /// Factor, lowest and highest, at least 0.
    pub brightness: (f64, f64),
    /// Factor, lowest and highest, at least 0.
    pub contrast: (f64, f64),
    /// Factor, lowest and highest, at least 0.
    pub saturation: (f64, f64),
    /// Shift in turns of the colour circle, within (-0.5, 0.5).
    pub hue: (f64, f64),
}

impl ColorJitter {
    /// Factors from `max(0, 1 - x)` to `1 + x`, and a hue from `-hue` to `hue`; 0 leaves a step out.
    pub fn new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        let around = |x: f64| ((1.0 - x).max(0.0), 1.0 + x);
        Self {
            brightness: around(brightness),
            contrast: around(contrast),
            saturation: around(saturation),
            hue: (-hue, hue),
        }
    }
}

/// Makes the image gray by ITU-R 601-2 luma, as Pillow's `convert("L")`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grayscale {
    /// 1, or 3 equal ones.
    pub channels: u32,
}

impl Default for Grayscale {
    fn default() -> Self {
        Self { channels: 1 }
    }
}

/// Takes the mean off every channel and divides by the deviation, after scaling to `[0, 1]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalize {
    /// One value a channel.
    pub mean: Vec<f64>,
    /// One value a channel, not 0.
    pub std: Vec<f64>,
}

impl Normalize {
    /// One value a channel in each.
    pub fn new(mean: impl Into<Vec<f64>>, std: impl Into<Vec<f64>>) -> Self {
        Self { mean: mean.into(), std: std.into() }
    }

    /// By [`IMAGENET_MEAN`] and [`IMAGENET_STD`].
    pub fn imagenet() -> Self {
        Self::new(IMAGENET_MEAN, IMAGENET_STD)
    }
}

/// What [`RandomErasing`] writes, in units of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Erase {
    /// The same value in all channels.
    Value(f64),
    /// One value a channel.
    PerChannel(Vec<f64>),
    /// Standard normal draws, one an element.
    Random,
}

/// Overwrites a random rectangle of the result; comes after [`Normalize`].
///
/// Ten tries to draw an area and a ratio that fit, else nothing is erased.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RandomErasing {
    /// The probability; default 0.5.
    pub p: f64,
    /// The rectangle's share of the area, lowest and highest; default (0.02, 0.33).
    pub scale: (f64, f64),
    /// Height over width of the rectangle, lowest and highest; default (0.3, 3.3).
    pub ratio: (f64, f64),
    /// Default the value 0.
    pub value: Erase,
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self { p: 0.5, scale: (0.02, 0.33), ratio: (0.3, 3.3), value: Erase::Value(0.0) }
    }
}
