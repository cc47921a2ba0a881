//! Random parameters of one sample, drawn as torchvision's `get_params` draws them.

use super::geometry::Rect;
use super::levels::Levels;
use super::ops::{ColorJitter, Extent, RandomErasing, RandomResizedCrop};
use crate::rng::Draws;

/// The window of a `w` x `h` image that is resized.
pub(super) fn random_resized_crop(
    draws: &mut Draws,
    w: u32,
    h: u32,
    op: &RandomResizedCrop,
) -> Rect {
    let area = f64::from(w) * f64::from(h);
    let (low, high) = op.ratio;
    for _ in 0..10 {
        let target = area * draws.uniform(op.scale.0, op.scale.1);
        let aspect = draws.uniform(low.ln(), high.ln()).exp();
        let cw = (target * aspect).sqrt().round_ties_even();
        let ch = (target / aspect).sqrt().round_ties_even();
        if 0.0 < cw && cw <= f64::from(w) && 0.0 < ch && ch <= f64::from(h) {
            return place(draws, w, h, cw as u32, ch as u32);
        }
    }
    let aspect = f64::from(w) / f64::from(h);
    let (cw, ch) = if aspect < low {
        (w, ((f64::from(w) / low).round_ties_even() as u32).clamp(1, h))
    } else if aspect > high {
        (((f64::from(h) * high).round_ties_even() as u32).clamp(1, w), h)
    } else {
        (w, h)
    };
    Rect { x: (w - cw) / 2, y: (h - ch) / 2, w: cw, h: ch }
}

/// The window that `RandomCrop` takes of a `w` x `h` image; `None` where it is too small.
pub(super) fn random_crop(draws: &mut Draws, w: u32, h: u32, size: Extent) -> Option<Rect> {
    (size.width <= w && size.height <= h).then(|| place(draws, w, h, size.width, size.height))
}

/// A `cw` x `ch` window at a uniformly random place of a `w` x `h` image.
fn place(draws: &mut Draws, w: u32, h: u32, cw: u32, ch: u32) -> Rect {
    // Rows first, as torchvision draws them.
    let y = draws.below(u64::from(h - ch) + 1) as u32;
    let x = draws.below(u64::from(w - cw) + 1) as u32;
    Rect { x, y, w: cw, h: ch }
}

/// The rectangle that is erased in a `w` x `h` image, if any.
pub(super) fn random_erasing(
    draws: &mut Draws,
    w: u32,
    h: u32,
    op: &RandomErasing,
) -> Option<Rect> {
    if !draws.chance(op.p) {
        return None;
    }
    let area = f64::from(w) * f64::from(h);
    for _ in 0..10 {
        let target = area * draws.uniform(op.scale.0, op.scale.1);
        let aspect = draws.uniform(op.ratio.0.ln(), op.ratio.1.ln()).exp();
        let eh = (target * aspect).sqrt().round_ties_even();
        let ew = (target / aspect).sqrt().round_ties_even();
        if eh < f64::from(h) && ew < f64::from(w) {
            return Some(place(draws, w, h, ew as u32, eh as u32));
        }
    }
    None
}

/// One adjustment of colour, by its factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Adjust {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f64),
    Gray,
    Levels(Levels),
}

/// The adjustments that a jitter makes, in order.
pub(super) fn color_jitter(
    draws: &mut Draws,
    op: &ColorJitter,
) -> impl Iterator<Item = Adjust> + use<> {
    let mut order = [0, 1, 2, 3];
    for last in (1..order.len()).rev() {
        order.swap(last, draws.below(last as u64 + 1) as usize);
    }
    // Bounds that hold nothing but the neutral value draw nothing, as in torchvision.
    let mut factor = |(low, high): (f64, f64), neutral: f64| {
        (low != neutral || high != neutral).then(|| draws.uniform(low, high))
    };
    let adjust = [
        factor(op.brightness, 1.0).map(|f| Adjust::Brightness(f as f32)),
        factor(op.contrast, 1.0).map(|f| Adjust::Contrast(f as f32)),
        factor(op.saturation, 1.0).map(|f| Adjust::Saturation(f as f32)),
        factor(op.hue, 0.0).map(Adjust::Hue),
    ];
    order.into_iter().filter_map(move |i| adjust[i])
}

/// Standard normal values (Box and Muller, "A Note on the Generation of Random Normal Deviates",
/// 1958), two from every two draws.
pub(super) struct Normal<'a> {
    draws: &'a mut Draws,
    spare: Option<f64>,
}

impl<'a> Normal<'a> {
    pub(super) fn new(draws: &'a mut Draws) -> Self {
        Self { draws, spare: None }
    }

    pub(super) fn next(&mut self) -> f32 {
        if let Some(spare) = self.spare.take() {
            return spare as f32;
        }
        // 1 - unit() is never 0.
        let radius = (-2.0 * (1.0 - self.draws.unit()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.draws.unit()).sin_cos();
        self.spare = Some(radius * sin);
        (radius * cos) as f32
    }
}
