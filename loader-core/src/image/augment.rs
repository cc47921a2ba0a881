//! The augmentations' random parameters, drawn as torchvision's `get_params` draws them, and what
//! they mean for the plan.

use super::affine::{Affine, Motion, Rotation, rotation};
use super::filter::{Blur, Filter};
use super::levels::Levels;
use super::ops::{
    Fill, GaussianBlur, Interpolation, RandAugment, RandomAffine, RandomRotation,
    TrivialAugmentWide,
};
use super::params::Adjust;
use super::plan::Plan;
use crate::rng::Draws;

pub(super) fn random_rotation(plan: &mut Plan, op: &RandomRotation, draws: &mut Draws) {
    let degrees = draws.uniform(op.degrees.0, op.degrees.1);
    rotate(plan, degrees, op.center, op.expand, op.interpolation, op.fill);
}

/// `F.rotate`.
pub(super) fn rotate(
    plan: &mut Plan,
    degrees: f64,
    center: Option<(f64, f64)>,
    expand: bool,
    interpolation: Interpolation,
    fill: Fill,
) {
    match rotation(degrees, plan.size(), center, expand) {
        Rotation::Nothing => {}
        Rotation::HalfTurn => plan.flip(true, true),
        Rotation::Affine(matrix, size) => {
            plan.filter(Filter::Affine(Affine { matrix, size, interpolation, fill }));
        }
    }
}

/// The amounts that a [`RandomAffine`] of a `w` x `h` image draws.
pub(super) fn motion(draws: &mut Draws, op: &RandomAffine, (w, h): (u32, u32)) -> Motion {
    let mut within = |(low, high)| draws.uniform(low, high);
    let mut motion = Motion { angle: within(op.degrees), ..Motion::NONE };
    if let Some((x, y)) = op.translate {
        let mut shift = |share: f64, side: u32| {
            let most = share * f64::from(side);
            within((-most, most)).round_ties_even() as i32
        };
        motion.translate = (shift(x, w), shift(y, h));
    }
    if let Some(scale) = op.scale {
        motion.scale = within(scale);
    }
    if let Some(shear) = op.shear {
        motion.shear = (within(shear.x), within(shear.y));
    }
    motion
}

pub(super) fn random_affine(plan: &mut Plan, op: &RandomAffine, draws: &mut Draws) {
    let motion = motion(draws, op, plan.size());
    affine(plan, motion, op.center, op.interpolation, op.fill);
}

/// `F.affine`.
pub(super) fn affine(
    plan: &mut Plan,
    motion: Motion,
    center: Option<(f64, f64)>,
    interpolation: Interpolation,
    fill: Fill,
) {
    let size = plan.size();
    let center = center.unwrap_or((f64::from(size.0) * 0.5, f64::from(size.1) * 0.5));
    let matrix = motion.matrix(center);
    plan.filter(Filter::Affine(Affine { matrix, size, interpolation, fill }));
}

pub(super) fn gaussian_blur(plan: &mut Plan, op: &GaussianBlur, draws: &mut Draws) {
    let sigma = draws.uniform(op.sigma.0, op.sigma.1);
    plan.filter(Filter::Blur(Blur { kernel: op.kernel_size, sigma }));
}

/// What RandAugment and TrivialAugment choose from, in torchvision's order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Choice {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

pub(super) const CHOICES: [Choice; 14] = [
    Choice::Identity,
    Choice::ShearX,
    Choice::ShearY,
    Choice::TranslateX,
    Choice::TranslateY,
    Choice::Rotate,
    Choice::Brightness,
    Choice::Color,
    Choice::Contrast,
    Choice::Sharpness,
    Choice::Posterize,
    Choice::Solarize,
    Choice::AutoContrast,
    Choice::Equalize,
];

/// How large magnitudes get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Space {
    /// RandAugment's, for an image of that size.
    Rand(u32, u32),
    /// TrivialAugmentWide's.
    Wide,
}

impl Choice {
    /// False where there is only one magnitude.
    pub(super) fn has_magnitude(self) -> bool {
        !matches!(self, Self::Identity | Self::AutoContrast | Self::Equalize)
    }

    /// True where the magnitude may as well be negative.
    pub(super) fn is_signed(self) -> bool {
        self.has_magnitude() && !matches!(self, Self::Posterize | Self::Solarize)
    }

    /// The `bin`-th of `bins` magnitudes, with the `f32` arithmetic of `torch.linspace`.
    pub(super) fn magnitude(self, space: Space, bin: u32, bins: u32) -> f64 {
        let pick = |rand: f64, wide: f64| match space {
            Space::Rand(..) => rand,
            Space::Wide => wide,
        };
        // Translations are that share of the side, or a number of pixels.
        let pixels = |side: fn(u32, u32) -> u32| match space {
            Space::Rand(w, h) => 150.0 / 331.0 * f64::from(side(w, h)),
            Space::Wide => 32.0,
        };
        let up_to = |end: f64| linspace(0.0, end, bin, bins);
        match self {
            Self::Identity | Self::AutoContrast | Self::Equalize => 0.0,
            Self::ShearX | Self::ShearY => up_to(pick(0.3, 0.99)),
            Self::TranslateX => up_to(pixels(|w, _| w)),
            Self::TranslateY => up_to(pixels(|_, h| h)),
            Self::Rotate => up_to(pick(30.0, 135.0)),
            Self::Brightness | Self::Color | Self::Contrast | Self::Sharpness => {
                up_to(pick(0.9, 0.99))
            }
            Self::Posterize => {
                let step = f64::from(bins - 1) / pick(4.0, 6.0);
                8.0 - f64::from((bin as f32 / step as f32).round_ties_even())
            }
            Self::Solarize => linspace(255.0, 0.0, bin, bins),
        }
    }
}

fn linspace(start: f64, end: f64, at: u32, count: u32) -> f64 {
    let (start, end) = (start as f32, end as f32);
    let step = (end - start) / (count - 1) as f32;
    let value = if at < count / 2 {
        start + step * at as f32
    } else {
        end - step * (count - at - 1) as f32
    };
    value.into()
}

/// The operations that a [`RandAugment`] of a `w` x `h` image draws, with their magnitudes.
pub(super) fn rand_augment(
    draws: &mut Draws,
    op: &RandAugment,
    (w, h): (u32, u32),
) -> impl Iterator<Item = (Choice, f64)> {
    let (bin, bins) = (op.magnitude, op.num_magnitude_bins);
    (0..op.num_ops).map(move |_| {
        let choice = CHOICES[draws.below(CHOICES.len() as u64) as usize];
        (choice, signed(draws, choice, choice.magnitude(Space::Rand(w, h), bin, bins)))
    })
}

/// The operation that a [`TrivialAugmentWide`] draws, with its magnitude.
pub(super) fn trivial_augment_wide(draws: &mut Draws, op: &TrivialAugmentWide) -> (Choice, f64) {
    let bins = op.num_magnitude_bins;
    let choice = CHOICES[draws.below(CHOICES.len() as u64) as usize];
    let bin = if choice.has_magnitude() { draws.below(bins.into()) as u32 } else { 0 };
    (choice, signed(draws, choice, choice.magnitude(Space::Wide, bin, bins)))
}

fn signed(draws: &mut Draws, choice: Choice, magnitude: f64) -> f64 {
    if choice.is_signed() && draws.below(2) == 1 { -magnitude } else { magnitude }
}

/// Torchvision's `_apply_op`.
pub(super) fn apply(
    plan: &mut Plan,
    (choice, magnitude): (Choice, f64),
    interpolation: Interpolation,
    fill: Fill,
) {
    let mut moved = |motion, center| affine(plan, motion, center, interpolation, fill);
    let factor = (1.0 + magnitude) as f32;
    let angle = magnitude.atan().to_degrees();
    match choice {
        Choice::Identity => {}
        Choice::ShearX => {
            moved(Motion { shear: (angle, 0.0), ..Motion::NONE }, Some((0.0, 0.0)));
        }
        Choice::ShearY => {
            moved(Motion { shear: (0.0, angle), ..Motion::NONE }, Some((0.0, 0.0)));
        }
        Choice::TranslateX => {
            moved(Motion { translate: (magnitude as i32, 0), ..Motion::NONE }, None);
        }
        Choice::TranslateY => {
            moved(Motion { translate: (0, magnitude as i32), ..Motion::NONE }, None);
        }
        Choice::Rotate => rotate(plan, magnitude, None, false, interpolation, fill),
        Choice::Brightness => plan.adjust(Adjust::Brightness(factor)),
        Choice::Color => plan.adjust(Adjust::Saturation(factor)),
        Choice::Contrast => plan.adjust(Adjust::Contrast(factor)),
        Choice::Sharpness => plan.filter(Filter::Sharpness(factor)),
        Choice::Posterize => plan.adjust(Adjust::Levels(Levels::Posterize(magnitude as u32))),
        Choice::Solarize => plan.adjust(Adjust::Levels(Levels::Solarize(magnitude))),
        Choice::AutoContrast => plan.adjust(Adjust::Levels(Levels::AutoContrast)),
        Choice::Equalize => plan.adjust(Adjust::Levels(Levels::Equalize)),
    }
}
