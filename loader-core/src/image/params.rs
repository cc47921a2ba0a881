//! Draws the parameters of random operations and turns a transform into concrete steps for one
//! image. Pure geometry: no pixel is touched, so the steps are known once the size is.

use std::f64::consts::TAU;

use super::transform::{
    CenterCrop, ColorJitter, Interpolation, Op, RandomCrop, RandomErasing, RandomResizedCrop,
    ResizeTo,
};
use crate::dataset::{Sample, SampleError, Stage};
use crate::rng::Draws;

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

impl Rect {
    pub(crate) fn whole((width, height): (u32, u32)) -> Self {
        Self { x: 0, y: 0, width, height }
    }

    pub(crate) fn size(self) -> (u32, u32) {
        (self.width, self.height)
    }
}

/// One step with nothing left to chance. Sizes are (width, height).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Crop(Rect),
    Resize(u32, u32, Interpolation),
    /// Left, top, right, bottom.
    Pad([u32; 4], [u8; 3]),
    FlipHorizontal,
    FlipVertical,
    Brightness(f64),
    Contrast(f64),
    Saturation(f64),
    Hue(f64),
    Grayscale,
}

/// Appends the steps that `ops` take on an image of that size, and returns the size of the result.
pub(crate) fn steps(
    ops: &[Op],
    size: (u32, u32),
    sample: &Sample,
    out: &mut Vec<Step>,
) -> Result<(u32, u32), SampleError> {
    let mut size = size;
    for (number, op) in (0..).zip(ops) {
        let draws = || sample.draws(number);
        match op {
            Op::Resize(op) => {
                size = resized(op.to, size);
                out.push(Step::Resize(size.0, size.1, op.interpolation));
            }
            Op::CenterCrop(op) => size = center_crop(op, size, out)?,
            Op::RandomResizedCrop(op) => {
                out.push(Step::Crop(random_resized_crop(op, size, &mut draws())));
                out.push(Step::Resize(op.width, op.height, op.interpolation));
                size = (op.width, op.height);
            }
            Op::RandomCrop(op) => size = random_crop(op, size, &mut draws(), out)?,
            Op::RandomHorizontalFlip(op) => {
                if draws().chance(op.p) {
                    out.push(Step::FlipHorizontal);
                }
            }
            Op::RandomVerticalFlip(op) => {
                if draws().chance(op.p) {
                    out.push(Step::FlipVertical);
                }
            }
            Op::ColorJitter(op) => color_jitter(op, &mut draws(), out),
            Op::Grayscale(_) => out.push(Step::Grayscale),
            // Part of the final write.
            Op::Normalize(_) | Op::RandomErasing(_) => {}
        }
    }
    Ok(size)
}

/// The size that a resize gives: torchvision's `_compute_resized_output_size`.
pub(crate) fn resized(to: ResizeTo, (width, height): (u32, u32)) -> (u32, u32) {
    let (size, max_size) = match to {
        ResizeTo::Exact { height, width } => return (width, height),
        ResizeTo::SmallerEdge { size, max_size } => (size, max_size),
    };
    let (short, long) = (width.min(height), width.max(height));
    let scaled = |a: u32, b: u32, c: u32| {
        u32::try_from(u64::from(a) * u64::from(b) / u64::from(c.max(1))).unwrap_or(u32::MAX).max(1)
    };
    let (mut new_short, mut new_long) = (size, scaled(size, long, short));
    if let Some(most) = max_size.filter(|&most| new_long > most) {
        (new_short, new_long) = (scaled(most, new_short, new_long), most);
    }
    if width <= height { (new_short, new_long) } else { (new_long, new_short) }
}

fn center_crop(
    op: &CenterCrop,
    size: (u32, u32),
    out: &mut Vec<Step>,
) -> Result<(u32, u32), SampleError> {
    let lack = (op.width.saturating_sub(size.0), op.height.saturating_sub(size.1));
    let sides = [lack.0 / 2, lack.1 / 2, lack.0.div_ceil(2), lack.1.div_ceil(2)];
    let (width, height) = pad(sides, [0; 3], size, out)?;
    // Python rounds a half to the even number.
    let middle = |have: u32, want: u32| (f64::from(have - want) / 2.0).round_ties_even() as u32;
    crop(
        Rect {
            x: middle(width, op.width),
            y: middle(height, op.height),
            width: op.width,
            height: op.height,
        },
        (width, height),
        out,
    );
    Ok((op.width, op.height))
}

fn pad(
    sides: [u32; 4],
    fill: [u8; 3],
    (width, height): (u32, u32),
    out: &mut Vec<Step>,
) -> Result<(u32, u32), SampleError> {
    if sides == [0; 4] {
        return Ok((width, height));
    }
    let [left, top, right, bottom] = sides;
    let sum = |a: u32, b: u32, c: u32| a.checked_add(b)?.checked_add(c);
    match (sum(width, left, right), sum(height, top, bottom)) {
        (Some(width), Some(height)) => {
            out.push(Step::Pad(sides, fill));
            Ok((width, height))
        }
        _ => Err(SampleError::new(
            Stage::Transform,
            format_args!("{width}x{height} padded by {sides:?} is too large"),
        )),
    }
}

fn crop(part: Rect, size: (u32, u32), out: &mut Vec<Step>) {
    if part != Rect::whole(size) {
        out.push(Step::Crop(part));
    }
}

/// Uniform in `0..=most`.
fn up_to(most: u32, draws: &mut Draws) -> u32 {
    draws.below(u64::from(most) + 1) as u32
}

/// torchvision's `RandomResizedCrop.get_params`.
pub(crate) fn random_resized_crop(
    op: &RandomResizedCrop,
    (width, height): (u32, u32),
    draws: &mut Draws,
) -> Rect {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * draws.uniform(op.scale.0, op.scale.1);
        let ratio = draws.uniform(op.ratio.0.ln(), op.ratio.1.ln()).exp();
        let w = (target * ratio).sqrt().round_ties_even() as u32;
        let h = (target / ratio).sqrt().round_ties_even() as u32;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let y = up_to(height - h, draws);
            let x = up_to(width - w, draws);
            return Rect { x, y, width: w, height: h };
        }
    }
    let ratio = f64::from(width) / f64::from(height);
    let (mut w, mut h) = (width, height);
    if ratio < op.ratio.0 {
        h = (f64::from(width) / op.ratio.0).round_ties_even() as u32;
    } else if ratio > op.ratio.1 {
        w = (f64::from(height) * op.ratio.1).round_ties_even() as u32;
    }
    let (w, h) = (w.clamp(1, width), h.clamp(1, height));
    Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
}

fn random_crop(
    op: &RandomCrop,
    size: (u32, u32),
    draws: &mut Draws,
    out: &mut Vec<Step>,
) -> Result<(u32, u32), SampleError> {
    let mut size = pad(op.padding, op.fill, size, out)?;
    if op.pad_if_needed {
        let x = op.width.saturating_sub(size.0);
        let y = op.height.saturating_sub(size.1);
        size = pad([x, y, x, y], op.fill, size, out)?;
    }
    let (width, height) = size;
    if width < op.width || height < op.height {
        return Err(SampleError::new(
            Stage::Transform,
            format_args!(
                "RandomCrop to {}x{} of an image of {width}x{height} (set pad_if_needed, or resize \
                 first)",
                op.width, op.height
            ),
        ));
    }
    let y = up_to(height - op.height, draws);
    let x = up_to(width - op.width, draws);
    crop(Rect { x, y, width: op.width, height: op.height }, size, out);
    Ok((op.width, op.height))
}

/// torchvision's `ColorJitter.get_params`: the order first, then one factor each.
fn color_jitter(op: &ColorJitter, draws: &mut Draws, out: &mut Vec<Step>) {
    let mut order = [0, 1, 2, 3];
    for i in (1..4).rev() {
        order.swap(i, draws.below(i as u64 + 1) as usize);
    }
    let mut step = |range: (f64, f64), neutral: f64, step: fn(f64) -> Step| {
        let factor = draws.uniform(range.0, range.1);
        (range != (neutral, neutral)).then(|| step(factor))
    };
    let steps = [
        step(op.brightness, 1.0, Step::Brightness),
        step(op.contrast, 1.0, Step::Contrast),
        step(op.saturation, 1.0, Step::Saturation),
        step(op.hue, 0.0, Step::Hue),
    ];
    out.extend(order.into_iter().filter_map(|i: usize| steps[i]));
}

/// torchvision's `RandomErasing.get_params`; `None` where nothing is erased.
pub(crate) fn random_erasing(
    op: &RandomErasing,
    (width, height): (u32, u32),
    draws: &mut Draws,
) -> Option<Rect> {
    if !draws.chance(op.p) {
        return None;
    }
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * draws.uniform(op.scale.0, op.scale.1);
        let ratio = draws.uniform(op.ratio.0.ln(), op.ratio.1.ln()).exp();
        let h = (target * ratio).sqrt().round_ties_even() as u32;
        let w = (target / ratio).sqrt().round_ties_even() as u32;
        if h < height && w < width {
            let y = up_to(height - h, draws);
            let x = up_to(width - w, draws);
            return Some(Rect { x, y, width: w, height: h });
        }
    }
    None
}

/// A standard normal draw (Box and Muller, 1958; the cosine half).
pub(crate) fn normal(draws: &mut Draws) -> f64 {
    // 1 - unit is in (0, 1], so the logarithm is finite.
    (-2.0 * (1.0 - draws.unit()).ln()).sqrt() * (TAU * draws.unit()).cos()
}
