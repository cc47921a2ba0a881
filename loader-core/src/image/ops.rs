//! The operations of a [`Transform`](crate::Transform): plain data with torchvision's names,
//! parameters and defaults.

mod augment;

use serde::{Deserialize, Serialize};

pub use self::augment::*;
use crate::field::DType;

/// One operation of a transform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs)] // each variant is documented at the type that it holds
pub enum Op {
    Resize(Resize),
    CenterCrop(CenterCrop),
    RandomCrop(RandomCrop),
    RandomResizedCrop(RandomResizedCrop),
    RandomHorizontalFlip(RandomHorizontalFlip),
    RandomVerticalFlip(RandomVerticalFlip),
    ColorJitter(ColorJitter),
    Grayscale(Grayscale),
    RandomRotation(RandomRotation),
    RandomAffine(RandomAffine),
    GaussianBlur(GaussianBlur),
    RandomAutocontrast(RandomAutocontrast),
    RandomEqualize(RandomEqualize),
    RandomInvert(RandomInvert),
    RandomPosterize(RandomPosterize),
    RandomSolarize(RandomSolarize),
    RandomAdjustSharpness(RandomAdjustSharpness),
    RandomGrayscale(RandomGrayscale),
    RandAugment(RandAugment),
    TrivialAugmentWide(TrivialAugmentWide),
    Custom(Custom),
    To(To),
    Normalize(Normalize),
    RandomErasing(RandomErasing),
}

impl Op {
    /// The operation's name, as torchvision spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Resize(_) => "Resize",
            Self::CenterCrop(_) => "CenterCrop",
            Self::RandomCrop(_) => "RandomCrop",
            Self::RandomResizedCrop(_) => "RandomResizedCrop",
            Self::RandomHorizontalFlip(_) => "RandomHorizontalFlip",
            Self::RandomVerticalFlip(_) => "RandomVerticalFlip",
            Self::ColorJitter(_) => "ColorJitter",
            Self::Grayscale(_) => "Grayscale",
            Self::RandomRotation(_) => "RandomRotation",
            Self::RandomAffine(_) => "RandomAffine",
            Self::GaussianBlur(_) => "GaussianBlur",
            Self::RandomAutocontrast(_) => "RandomAutocontrast",
            Self::RandomEqualize(_) => "RandomEqualize",
            Self::RandomInvert(_) => "RandomInvert",
            Self::RandomPosterize(_) => "RandomPosterize",
            Self::RandomSolarize(_) => "RandomSolarize",
            Self::RandomAdjustSharpness(_) => "RandomAdjustSharpness",
            Self::RandomGrayscale(_) => "RandomGrayscale",
            Self::RandAugment(_) => "RandAugment",
            Self::TrivialAugmentWide(_) => "TrivialAugmentWide",
            Self::Custom(_) => "Custom",
            Self::To(_) => "To",
            Self::Normalize(_) => "Normalize",
            Self::RandomErasing(_) => "RandomErasing",
        }
    }

    /// True where the operation draws random numbers.
    pub fn is_random(&self) -> bool {
        match self {
            Self::RandomCrop(_)
            | Self::RandomResizedCrop(_)
            | Self::RandomHorizontalFlip(_)
            | Self::RandomVerticalFlip(_)
            | Self::ColorJitter(_)
            | Self::RandomErasing(_)
            | Self::RandomRotation(_)
            | Self::RandomAffine(_)
            | Self::GaussianBlur(_)
            | Self::RandomAutocontrast(_)
            | Self::RandomEqualize(_)
            | Self::RandomInvert(_)
            | Self::RandomPosterize(_)
            | Self::RandomSolarize(_)
            | Self::RandomAdjustSharpness(_)
            | Self::RandomGrayscale(_)
            | Self::RandAugment(_)
            | Self::TrivialAugmentWide(_)
            | Self::Custom(_) => true,
            Self::Resize(_)
            | Self::CenterCrop(_)
            | Self::Grayscale(_)
            | Self::To(_)
            | Self::Normalize(_) => false,
        }
    }
}

macro_rules! into_op {
    ($($name:ident),*) => {$(
        impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        }
    )*};
}
into_op!(
    Resize,
    CenterCrop,
    RandomCrop,
    RandomResizedCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    ColorJitter,
    Grayscale,
    RandomRotation,
    RandomAffine,
    GaussianBlur,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    RandomAdjustSharpness,
    RandomGrayscale,
    RandAugment,
    TrivialAugmentWide,
    Custom,
    To,
    Normalize,
    RandomErasing
);

/// A height and a width in pixels; from one number, a square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
}

impl From<u32> for Extent {
    fn from(side: u32) -> Self {
        Self { height: side, width: side }
    }
}

impl From<(u32, u32)> for Extent {
    /// Height first, as torchvision has it.
    fn from((height, width): (u32, u32)) -> Self {
        Self { height, width }
    }
}

impl From<[u32; 2]> for Extent {
    /// Height first, as torchvision has it.
    fn from([height, width]: [u32; 2]) -> Self {
        Self { height, width }
    }
}

/// What [`Resize`] resizes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// The smaller edge gets this length; the other keeps the aspect ratio, rounded down.
    SmallerEdge(u32),
    /// Exactly this size, whatever the aspect ratio was.
    Exact(Extent),
}

impl From<u32> for Target {
    fn from(edge: u32) -> Self {
        Self::SmallerEdge(edge)
    }
}

impl From<(u32, u32)> for Target {
    fn from(height_width: (u32, u32)) -> Self {
        Self::Exact(height_width.into())
    }
}

impl From<[u32; 2]> for Target {
    fn from(height_width: [u32; 2]) -> Self {
        Self::Exact(height_width.into())
    }
}

/// How pixels between pixels are made. All but `Nearest` are antialiased, as in Pillow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A triangle over two pixels, wider when shrinking.
    #[default]
    Bilinear,
    /// Catmull-Rom's cubic over four pixels, wider when shrinking.
    Bicubic,
    /// A windowed sinc over six pixels, wider when shrinking.
    Lanczos,
}

/// Resizes the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// A smaller edge, or height and width.
    pub size: Target,
    /// Default bilinear.
    #[serde(default)]
    pub interpolation: Interpolation,
    /// With a smaller edge only: the longer edge is at most this, default no limit.
    #[serde(default)]
    pub max_size: Option<u32>,
}

impl Resize {
    /// To a smaller edge (`256`) or to height and width (`(224, 224)`), bilinear.
    pub fn new(size: impl Into<Target>) -> Self {
        Self { size: size.into(), interpolation: Interpolation::default(), max_size: None }
    }

    /// Sets how pixels are interpolated.
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Limits the longer edge.
    pub fn max_size(mut self, max_size: u32) -> Self {
        self.max_size = Some(max_size);
        self
    }
}

/// Takes the centre; where the image is smaller, it is padded with zeros on both sides first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Of the result.
    pub size: Extent,
}

impl CenterCrop {
    /// To that size.
    pub fn new(size: impl Into<Extent>) -> Self {
        Self { size: size.into() }
    }
}

/// Pixels to add on each side; from one number, on all four; from two, left and right, then top
/// and bottom; from four, left, top, right, bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Padding {
    pub left: u32,
    pub top: u32,
    pub right: u32,
    pub bottom: u32,
}

impl From<u32> for Padding {
    fn from(all: u32) -> Self {
        Self { left: all, top: all, right: all, bottom: all }
    }
}

impl From<(u32, u32)> for Padding {
    fn from((x, y): (u32, u32)) -> Self {
        Self { left: x, top: y, right: x, bottom: y }
    }
}

impl From<(u32, u32, u32, u32)> for Padding {
    fn from((left, top, right, bottom): (u32, u32, u32, u32)) -> Self {
        Self { left, top, right, bottom }
    }
}

/// What padding is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// The fill value.
    #[default]
    Constant,
    /// The last pixel, repeated.
    Edge,
    /// The image mirrored at its last pixel, which is not repeated.
    Reflect,
    /// The image mirrored at its border, so that the last pixel comes twice.
    Symmetric,
}

/// A padding value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fill {
    /// The same in every channel.
    All(u8),
    /// Red, green, blue.
    Rgb([u8; 3]),
}

impl Default for Fill {
    fn default() -> Self {
        Self::All(0)
    }
}

impl From<u8> for Fill {
    fn from(all: u8) -> Self {
        Self::All(all)
    }
}

impl From<[u8; 3]> for Fill {
    fn from(rgb: [u8; 3]) -> Self {
        Self::Rgb(rgb)
    }
}

/// Pads the image, then takes a window of `size` at a uniformly random place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    /// Of the result.
    pub size: Extent,
    /// Added before cropping, default none.
    #[serde(default)]
    pub padding: Padding,
    /// Where the padded image is still smaller than `size`, pads the whole difference on both of
    /// the sides concerned. Default false: then such an image is an error.
    #[serde(default)]
    pub pad_if_needed: bool,
    /// For constant padding, default 0.
    #[serde(default)]
    pub fill: Fill,
    /// Default constant.
    #[serde(default)]
    pub padding_mode: PaddingMode,
}

impl RandomCrop {
    /// A window of that size, without padding.
    pub fn new(size: impl Into<Extent>) -> Self {
        Self {
            size: size.into(),
            padding: Padding::default(),
            pad_if_needed: false,
            fill: Fill::default(),
            padding_mode: PaddingMode::default(),
        }
    }

    /// Pads before cropping.
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Pads images that are too small.
    pub fn pad_if_needed(mut self, yes: bool) -> Self {
        self.pad_if_needed = yes;
        self
    }

    /// Sets the value of constant padding.
    pub fn fill(mut self, fill: impl Into<Fill>) -> Self {
        self.fill = fill.into();
        self
    }

    /// Sets what padding is made of.
    pub fn padding_mode(mut self, mode: PaddingMode) -> Self {
        self.padding_mode = mode;
        self
    }
}

/// Takes a window of random area, aspect ratio and place, and resizes it to `size`.
///
/// The area is uniform in `scale` (of the image's), the aspect ratio log-uniform in `ratio`. After
/// ten windows that do not fit, the largest central one with an aspect ratio in range is taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Of the result.
    pub size: Extent,
    /// Bounds of the window's share of the area, default (0.08, 1).
    #[serde(default = "RandomResizedCrop::default_scale")]
    pub scale: (f64, f64),
    /// Bounds of width / height, default (3/4, 4/3).
    #[serde(default = "RandomResizedCrop::default_ratio")]
    pub ratio: (f64, f64),
    /// Default bilinear.
    #[serde(default)]
    pub interpolation: Interpolation,
}

impl RandomResizedCrop {
    fn default_scale() -> (f64, f64) {
        (0.08, 1.0)
    }

    fn default_ratio() -> (f64, f64) {
        (3.0 / 4.0, 4.0 / 3.0)
    }

    /// To that size, with the default bounds.
    pub fn new(size: impl Into<Extent>) -> Self {
        Self {
            size: size.into(),
            scale: Self::default_scale(),
            ratio: Self::default_ratio(),
            interpolation: Interpolation::default(),
        }
    }

    /// Sets the bounds of the area.
    pub fn scale(mut self, low: f64, high: f64) -> Self {
        self.scale = (low, high);
        self
    }

    /// Sets the bounds of the aspect ratio.
    pub fn ratio(mut self, low: f64, high: f64) -> Self {
        self.ratio = (low, high);
        self
    }

    /// Sets how pixels are interpolated.
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }
}

/// Mirrors left and right with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomHorizontalFlip {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

/// Mirrors top and bottom with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomVerticalFlip {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

fn half() -> f64 {
    0.5
}

/// Changes brightness, contrast, saturation and hue by random amounts, in random order.
///
/// Each factor is uniform in its bounds. For the first three, 1 changes nothing; hue is a share of
/// the colour circle, and 0 changes nothing. The arithmetic is Pillow's, on 8-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColorJitter {
    /// Bounds, at least 0; default (1, 1).
    #[serde(default = "ColorJitter::unchanged")]
    pub brightness: (f64, f64),
    /// Bounds, at least 0; default (1, 1).
    #[serde(default = "ColorJitter::unchanged")]
    pub contrast: (f64, f64),
    /// Bounds, at least 0; default (1, 1).
    #[serde(default = "ColorJitter::unchanged")]
    pub saturation: (f64, f64),
    /// Bounds in -0.5..=0.5; default (0, 0).
    #[serde(default)]
    pub hue: (f64, f64),
}

impl Default for ColorJitter {
    /// Changes nothing.
    fn default() -> Self {
        let one = Self::unchanged();
        Self { brightness: one, contrast: one, saturation: one, hue: (0.0, 0.0) }
    }
}

impl ColorJitter {
    fn unchanged() -> (f64, f64) {
        (1.0, 1.0)
    }

    /// Torchvision's single numbers: factors in `[max(0, 1 - x), 1 + x]`, hue in `[-hue, hue]`.
    pub fn new(brightness: f64, contrast: f64, saturation: f64, hue: f64) -> Self {
        // Not clamped where 1 - x > 1, so that a negative number is refused as an empty range.
        let around = |x: f64| ((1.0 - x).max(0.0), 1.0 + x);
        Self {
            brightness: around(brightness),
            contrast: around(contrast),
            saturation: around(saturation),
            hue: (-hue, hue),
        }
    }
}

/// Replaces the colours by their luma (ITU-R 601-2), as `num_output_channels` equal channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grayscale {
    /// 1 (the default) or 3.
    #[serde(default = "one")]
    pub num_output_channels: u32,
}

fn one() -> u32 {
    1
}

impl Default for Grayscale {
    fn default() -> Self {
        Self { num_output_channels: 1 }
    }
}

/// The order of a sample's dimensions, named for those of the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels, height, width: what tch and burn expect.
    #[default]
    Nchw,
    /// Height, width, channels.
    Nhwc,
}

/// Sets what is written: floats are scaled to `[0, 1]` by 1/255 (torchvision's `ToTensor`), `u8`
/// is the raw value (`PILToTensor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct To {
    /// `U8`, `F16`, `BF16` or `F32`.
    pub dtype: DType,
    /// Default NCHW.
    #[serde(default)]
    pub layout: Layout,
}

/// Subtracts the mean and divides by the standard deviation, by channel.
///
/// The arithmetic is `f32`'s, in torchvision's order; half precision is rounded once, at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// One value, or one for each channel.
    pub mean: Vec<f32>,
    /// One value, or one for each channel; none is 0.
    pub std: Vec<f32>,
}

impl Normalize {
    /// By that mean and standard deviation.
    pub fn new(mean: impl Into<Vec<f32>>, std: impl Into<Vec<f32>>) -> Self {
        Self { mean: mean.into(), std: std.into() }
    }

    /// By the mean and standard deviation of ImageNet's training set.
    pub fn imagenet() -> Self {
        Self::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    }
}

/// What an erased rectangle is filled with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Erase {
    /// One value.
    Constant(f32),
    /// One value for each channel.
    PerChannel(Vec<f32>),
    /// A standard normal value for each element; for floats only.
    Random,
}

impl Default for Erase {
    fn default() -> Self {
        Self::Constant(0.0)
    }
}

impl From<f32> for Erase {
    fn from(value: f32) -> Self {
        Self::Constant(value)
    }
}

impl From<[f32; 3]> for Erase {
    fn from(values: [f32; 3]) -> Self {
        Self::PerChannel(values.into())
    }
}

/// Fills a random rectangle with probability `p`; its values are those of the written tensor, so
/// 0 is the mean colour after [`Normalize`].
///
/// The area is uniform in `scale` (of the image's), the aspect ratio log-uniform in `ratio`. After
/// ten rectangles that do not fit, the image is left as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomErasing {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
    /// Bounds of the rectangle's share of the area, default (0.02, 0.33).
    #[serde(default = "RandomErasing::default_scale")]
    pub scale: (f64, f64),
    /// Bounds of height / width, default (0.3, 3.3).
    #[serde(default = "RandomErasing::default_ratio")]
    pub ratio: (f64, f64),
    /// Default 0.
    #[serde(default)]
    pub value: Erase,
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self {
            p: half(),
            scale: Self::default_scale(),
            ratio: Self::default_ratio(),
            value: Erase::default(),
        }
    }
}

impl RandomErasing {
    fn default_scale() -> (f64, f64) {
        (0.02, 0.33)
    }

    fn default_ratio() -> (f64, f64) {
        (0.3, 3.3)
    }

    /// With that probability and the default bounds.
    pub fn new(p: f64) -> Self {
        Self { p, ..Self::default() }
    }

    /// Sets what the rectangle is filled with.
    pub fn value(mut self, value: impl Into<Erase>) -> Self {
        self.value = value.into();
        self
    }
}
