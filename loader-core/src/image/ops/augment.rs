//! The augmentations: random changes of geometry, colour and sharpness that keep the image's size.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Fill, Interpolation, half};

fn nearest() -> Interpolation {
    Interpolation::Nearest
}

/// Rotates around the centre by a random angle, counter-clockwise, uniform in `degrees`.
///
/// The arithmetic is Pillow's, so results are equal, and nothing is antialiased.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomRotation {
    /// Bounds of the angle.
    pub degrees: (f64, f64),
    /// Nearest (the default), bilinear or bicubic.
    #[serde(default = "nearest")]
    pub interpolation: Interpolation,
    /// Makes the image as large as the whole rotated one needs, so that a fixed size has to follow;
    /// meant for rotations around the centre. Default false.
    #[serde(default)]
    pub expand: bool,
    /// What to rotate around, x and y from the upper left corner. Default the image's centre.
    #[serde(default)]
    pub center: Option<(f64, f64)>,
    /// For what lies outside of the image, default 0.
    #[serde(default)]
    pub fill: Fill,
}

impl RandomRotation {
    /// By `-degrees..=degrees`.
    pub fn new(degrees: f64) -> Self {
        Self {
            degrees: (-degrees, degrees),
            interpolation: nearest(),
            expand: false,
            center: None,
            fill: Fill::default(),
        }
    }

    /// Sets the bounds of the angle.
    pub fn degrees(mut self, low: f64, high: f64) -> Self {
        self.degrees = (low, high);
        self
    }

    /// Sets how pixels are interpolated.
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Keeps the corners, in a larger image.
    pub fn expand(mut self, yes: bool) -> Self {
        self.expand = yes;
        self
    }

    /// Sets the point to rotate around.
    pub fn center(mut self, x: f64, y: f64) -> Self {
        self.center = Some((x, y));
        self
    }

    /// Sets the value of what lies outside.
    pub fn fill(mut self, fill: impl Into<Fill>) -> Self {
        self.fill = fill.into();
        self
    }
}

/// Bounds of the shear angles, in degrees; from one number or a pair, those along the x axis alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shear {
    /// Parallel to the x axis.
    pub x: (f64, f64),
    /// Parallel to the y axis, default none.
    #[serde(default)]
    pub y: (f64, f64),
}

impl From<f64> for Shear {
    fn from(degrees: f64) -> Self {
        Self { x: (-degrees, degrees), y: (0.0, 0.0) }
    }
}

impl From<(f64, f64)> for Shear {
    fn from(x: (f64, f64)) -> Self {
        Self { x, y: (0.0, 0.0) }
    }
}

impl From<(f64, f64, f64, f64)> for Shear {
    fn from((x_low, x_high, y_low, y_high): (f64, f64, f64, f64)) -> Self {
        Self { x: (x_low, x_high), y: (y_low, y_high) }
    }
}

/// Rotates (clockwise, unlike [`RandomRotation`]), moves, scales and shears around the centre, each
/// by a uniformly random amount.
///
/// The arithmetic is Pillow's, so results are equal, and nothing is antialiased.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAffine {
    /// Bounds of the angle.
    pub degrees: (f64, f64),
    /// How far to move at most, as shares of width and height, to either side in whole pixels.
    /// Default not at all.
    #[serde(default)]
    pub translate: Option<(f64, f64)>,
    /// Bounds of the scale, default 1.
    #[serde(default)]
    pub scale: Option<(f64, f64)>,
    /// Default none.
    #[serde(default)]
    pub shear: Option<Shear>,
    /// Nearest (the default), bilinear or bicubic.
    #[serde(default = "nearest")]
    pub interpolation: Interpolation,
    /// For what lies outside of the image, default 0.
    #[serde(default)]
    pub fill: Fill,
    /// The point that rotation, scale and shear leave where it is, x and y from the upper left
    /// corner. Default the image's centre.
    #[serde(default)]
    pub center: Option<(f64, f64)>,
}

impl RandomAffine {
    /// Rotates by `-degrees..=degrees`, and no more.
    pub fn new(degrees: f64) -> Self {
        Self {
            degrees: (-degrees, degrees),
            translate: None,
            scale: None,
            shear: None,
            interpolation: nearest(),
            fill: Fill::default(),
            center: None,
        }
    }

    /// Sets the bounds of the angle.
    pub fn degrees(mut self, low: f64, high: f64) -> Self {
        self.degrees = (low, high);
        self
    }

    /// Moves by at most these shares of width and height.
    pub fn translate(mut self, x: f64, y: f64) -> Self {
        self.translate = Some((x, y));
        self
    }

    /// Scales.
    pub fn scale(mut self, low: f64, high: f64) -> Self {
        self.scale = Some((low, high));
        self
    }

    /// Shears.
    pub fn shear(mut self, shear: impl Into<Shear>) -> Self {
        self.shear = Some(shear.into());
        self
    }

    /// Sets how pixels are interpolated.
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// Sets the value of what lies outside.
    pub fn fill(mut self, fill: impl Into<Fill>) -> Self {
        self.fill = fill.into();
        self
    }

    /// Sets the fixed point.
    pub fn center(mut self, x: f64, y: f64) -> Self {
        self.center = Some((x, y));
        self
    }
}

/// Blurs with a Gaussian kernel, its standard deviation uniform in `sigma`. The image is mirrored at
/// its borders.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GaussianBlur {
    /// Columns and rows (in this order, as in torchvision), both odd.
    pub kernel_size: (u32, u32),
    /// Bounds in pixels, above 0; default (0.1, 2).
    #[serde(default = "GaussianBlur::default_sigma")]
    pub sigma: (f64, f64),
}

impl GaussianBlur {
    fn default_sigma() -> (f64, f64) {
        (0.1, 2.0)
    }

    /// With a square kernel and the default bounds.
    pub fn new(kernel_size: u32) -> Self {
        Self { kernel_size: (kernel_size, kernel_size), sigma: Self::default_sigma() }
    }

    /// Sets the bounds of the standard deviation.
    pub fn sigma(mut self, low: f64, high: f64) -> Self {
        self.sigma = (low, high);
        self
    }
}

/// Stretches each channel to 0..=255 with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAutocontrast {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

/// Equalises the histogram of each channel with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomEqualize {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

/// Inverts the colours with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomInvert {
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

/// Keeps the highest bits of each value with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPosterize {
    /// How many, 1 to 8.
    pub bits: u32,
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

impl RandomPosterize {
    /// With probability 0.5.
    pub fn new(bits: u32) -> Self {
        Self { bits, p: half() }
    }
}

/// Inverts the values from `threshold` on with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomSolarize {
    /// On the scale of 0 to 255.
    pub threshold: f64,
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

impl RandomSolarize {
    /// With probability 0.5.
    pub fn new(threshold: f64) -> Self {
        Self { threshold, p: half() }
    }
}

/// Changes the sharpness with probability `p`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAdjustSharpness {
    /// 0 gives a smoothed image, 1 changes nothing, 2 sharpens twofold.
    pub sharpness_factor: f64,
    /// Default 0.5.
    #[serde(default = "half")]
    pub p: f64,
}

impl RandomAdjustSharpness {
    /// With probability 0.5.
    pub fn new(sharpness_factor: f64) -> Self {
        Self { sharpness_factor, p: half() }
    }
}

/// Replaces the colours by their luma with probability `p`; the number of channels stays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomGrayscale {
    /// Default 0.1.
    #[serde(default = "RandomGrayscale::default_p")]
    pub p: f64,
}

impl RandomGrayscale {
    fn default_p() -> f64 {
        0.1
    }
}

/// Applies `num_ops` random operations of one magnitude, one after another (Cubuk and others,
/// "RandAugment: Practical automated data augmentation with a reduced search space", 2019).
///
/// The 14 operations and their magnitudes are torchvision's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RandAugment {
    /// Default 2.
    pub num_ops: u32,
    /// Below `num_magnitude_bins`, default 9.
    pub magnitude: u32,
    /// How many magnitudes there are between none and the largest, at least 2; default 31.
    pub num_magnitude_bins: u32,
    /// Nearest (the default), bilinear or bicubic.
    pub interpolation: Interpolation,
    /// For what lies outside of the image, default 0.
    pub fill: Fill,
}

impl Default for RandAugment {
    fn default() -> Self {
        Self {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            interpolation: nearest(),
            fill: Fill::default(),
        }
    }
}

impl RandAugment {
    /// That many operations of that magnitude of 31.
    pub fn new(num_ops: u32, magnitude: u32) -> Self {
        Self { num_ops, magnitude, ..Self::default() }
    }
}

/// Applies one random operation of random magnitude (Müller and Hutter, "TrivialAugment: Tuning-free
/// Yet State-of-the-Art Data Augmentation", 2021), with the wide ranges.
///
/// The 14 operations and their magnitudes are torchvision's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrivialAugmentWide {
    /// How many magnitudes there are between none and the largest, at least 2; default 31.
    pub num_magnitude_bins: u32,
    /// Nearest (the default), bilinear or bicubic.
    pub interpolation: Interpolation,
    /// For what lies outside of the image, default 0.
    pub fill: Fill,
}

impl Default for TrivialAugmentWide {
    fn default() -> Self {
        Self { num_magnitude_bins: 31, interpolation: nearest(), fill: Fill::default() }
    }
}

/// A step of the program's own, known by its name: what
/// [`register_transform`](crate::register_transform) was given for it.
///
/// Name and arguments are part of the transform's fingerprint, the code is not: another version of
/// it wants another name or another argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custom {
    /// The name that it is registered under.
    pub name: String,
    /// What the function gets, default null.
    #[serde(default, serialize_with = "sorted")]
    pub args: Value,
}

/// Equal arguments make equal fingerprints, also where a dependency of the program has `serde_json`
/// keep the order of objects.
fn sorted<S: serde::Serializer>(args: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    let mut args = args.clone();
    args.sort_all_objects();
    args.serialize(serializer)
}

impl Custom {
    /// Without arguments.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), args: Value::Null }
    }

    /// Sets the arguments.
    pub fn args(mut self, args: impl Into<Value>) -> Self {
        self.args = args.into();
        self
    }
}
