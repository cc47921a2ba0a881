//! The plan for one sample: its random parameters drawn and its geometry worked out from the image
//! size alone, before a pixel is decoded.
//!
//! A crop never copies: it narrows the view of what came before. A crop that follows a resize or
//! padding narrows what that step makes, so pixels that nobody sees are never computed. Flips
//! are only remembered, and mirror the coordinates of what follows; the final write applies them.
//! Last, every step is narrowed to the pixels that its result depends on, down to the part of the file
//! that has to be decoded.

use super::decode::scaled;
use super::filter::{Filter, FilterStep};
use super::geometry::{self, Flip, Frame, Rect};
use super::ops::{Extent, Fill, Interpolation, Padding, PaddingMode, Target};
use super::params::Adjust;
use crate::rng::Draws;

/// A step that makes new pixels, or changes them in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Resize(ResizeStep),
    Pad(PadStep),
    Adjust(Rect, Adjust),
    Filter(FilterStep),
}

/// Resizes `frame` to `full` and makes the part `window` of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ResizeStep {
    /// The pixels that have a part in the window.
    pub(super) from: Rect,
    /// What becomes `full`, in the coordinates of `from`, which is less of it or, where its borders
    /// run through pixels, a little more.
    pub(super) frame: Frame,
    pub(super) full: (u32, u32),
    pub(super) window: Rect,
    pub(super) interpolation: Interpolation,
    /// The image will be mirrored at the end: ties of `Nearest` go the other way.
    pub(super) mirrored: Flip,
}

/// Puts padding around `from`, twice, and makes the part `window` of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PadStep {
    pub(super) from: Rect,
    pub(super) padding: [Padding; 2],
    pub(super) window: Rect,
    pub(super) fill: Fill,
    pub(super) mode: PaddingMode,
}

/// A rectangle of the output to fill.
#[derive(Clone, Debug)]
pub(super) struct EraseStep {
    pub(super) rect: Rect,
    /// The index of the fill value in the pipeline.
    pub(super) value: usize,
    /// Where random values come from.
    pub(super) draws: Draws,
}

/// What is to be done to one image.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How much the decoder scales, in eighths.
    pub(super) scale: u32,
    /// The part of the scaled image that is needed.
    pub(super) source: Rect,
    pub(super) steps: Vec<Step>,
    /// The part of the last step's image that is written.
    pub(super) view: Rect,
    pub(super) flip: Flip,
    pub(super) erase: Vec<EraseStep>,
}

impl Default for Plan {
    fn default() -> Self {
        let (steps, erase) = (Vec::new(), Vec::new());
        let nothing = Rect::whole(0, 0);
        let flip = Flip::default();
        Self { scale: 8, source: nothing, steps, view: nothing, flip, erase }
    }
}

impl Plan {
    /// Starts over with an image of that size.
    pub(super) fn start(&mut self, w: u32, h: u32) {
        self.steps.clear();
        self.erase.clear();
        self.view = Rect::whole(w, h);
        self.flip = Flip::default();
    }

    /// Width and height of the image as it is now.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.view.w, self.view.h)
    }

    pub(super) fn crop(&mut self, crop: Rect) {
        let (w, h) = self.size();
        self.view = self.view.nested(crop.mirrored(self.flip, w, h));
    }

    /// False where the result would have a side beyond `u32`.
    #[must_use]
    pub(super) fn resize(
        &mut self,
        to: Target,
        max_size: Option<u32>,
        interpolation: Interpolation,
    ) -> bool {
        let (w, h) = self.size();
        let Some(full) = geometry::resized(w, h, to, max_size) else { return false };
        if full != (w, h) {
            let window = Rect::whole(full.0, full.1);
            let mirrored = self.flip;
            self.push(window, |from| {
                let frame = Frame::whole(from.w, from.h);
                Step::Resize(ResizeStep { from, frame, full, window, interpolation, mirrored })
            });
        }
        true
    }

    /// False where the result would have a side beyond `u32`.
    #[must_use]
    pub(super) fn pad(&mut self, padding: [Padding; 2], fill: Fill, mode: PaddingMode) -> bool {
        let padding = padding.map(|p| Padding {
            left: if self.flip.horizontal { p.right } else { p.left },
            right: if self.flip.horizontal { p.left } else { p.right },
            top: if self.flip.vertical { p.bottom } else { p.top },
            bottom: if self.flip.vertical { p.top } else { p.bottom },
        });
        let sum = |side: u32, parts: [u32; 4]| {
            parts.iter().try_fold(side, |sum, &part| sum.checked_add(part))
        };
        let [p, q] = padding;
        let (w, h) = self.size();
        let (Some(padded_w), Some(padded_h)) = (
            sum(w, [p.left, p.right, q.left, q.right]),
            sum(h, [p.top, p.bottom, q.top, q.bottom]),
        ) else {
            return false;
        };
        if (padded_w, padded_h) != (w, h) {
            let window = Rect::whole(padded_w, padded_h);
            self.push(window, |from| Step::Pad(PadStep { from, padding, window, fill, mode }));
        }
        true
    }

    pub(super) fn center_crop(&mut self, size: Extent) -> bool {
        let (w, h) = self.size();
        let (padding, crop) = geometry::center(w, h, size);
        let fits = self.pad([padding, Padding::default()], Fill::default(), PaddingMode::Constant);
        if fits {
            self.crop(crop);
        }
        fits
    }

    pub(super) fn adjust(&mut self, adjust: Adjust) {
        self.settle();
        self.steps.push(Step::Adjust(self.view, adjust));
    }

    pub(super) fn filter(&mut self, filter: Filter) {
        let (w, h) = filter.size(self.size());
        let flip =
            if filter.sees_flips() { std::mem::take(&mut self.flip) } else { Flip::default() };
        self.push(Rect::whole(w, h), |from| Step::Filter(FilterStep { from, flip, filter }));
    }

    pub(super) fn flip(&mut self, horizontal: bool, vertical: bool) {
        let (w, h) = self.size();
        for erase in &mut self.erase {
            erase.rect = erase.rect.mirrored(Flip { horizontal, vertical }, w, h);
        }
        self.flip.horizontal ^= horizontal;
        self.flip.vertical ^= vertical;
    }

    pub(super) fn erase(&mut self, rect: Rect, value: usize, draws: Draws) {
        self.erase.push(EraseStep { rect, value, draws });
    }

    /// To be called after the last operation, with the size of the stored image. The decoder may be
    /// made to scale to one of `scales`, eighths in rising order.
    pub(super) fn finish(&mut self, (w, h): (u32, u32), scales: &[u32]) {
        self.settle();
        self.scale = 8;
        if let Some(Step::Resize(step)) = self.steps.first_mut() {
            self.scale = step.decoder_scale(scales);
            step.scale((w, h), self.scale);
        }
        for step in &mut self.steps {
            if let Step::Resize(step) = step {
                step.narrow();
            }
        }
        self.source = match self.steps.first() {
            None => self.view,
            Some(
                Step::Adjust(from, _)
                | Step::Filter(FilterStep { from, .. })
                | Step::Resize(ResizeStep { from, .. })
                | Step::Pad(PadStep { from, .. }),
            ) => *from,
        };
    }

    /// Makes the plan one for an image that is cut off left of and above `origin`.
    pub(super) fn start_at(&mut self, origin: Rect) {
        for step in &mut self.steps {
            match step {
                Step::Adjust(rect, _) => *rect = rect.seen_from(origin),
                Step::Filter(FilterStep { from, .. })
                | Step::Resize(ResizeStep { from, .. })
                | Step::Pad(PadStep { from, .. }) => {
                    *from = from.seen_from(origin);
                    return;
                }
            }
        }
        self.view = self.view.seen_from(origin);
    }

    fn push(&mut self, made: Rect, step: impl FnOnce(Rect) -> Step) {
        self.settle();
        self.steps.push(step(self.view));
        self.view = made;
    }

    /// Narrows what the last step makes to what is seen of it.
    fn settle(&mut self) {
        if let Some(Step::Resize(ResizeStep { window, .. }) | Step::Pad(PadStep { window, .. })) =
            self.steps.last_mut()
        {
            *window = window.nested(self.view);
            self.view = Rect::whole(self.view.w, self.view.h);
        }
    }
}

impl ResizeStep {
    /// The smallest scale that leaves the frame at least as large as what it is resized to.
    fn decoder_scale(&self, scales: &[u32]) -> u32 {
        let enough = |side: u32, full: u32, scale: u32| {
            u64::from(side) * u64::from(scale) >= u64::from(full) * 8
        };
        let fits = |scale: &u32| {
            enough(self.from.w, self.full.0, *scale) && enough(self.from.h, self.full.1, *scale)
        };
        match self.interpolation {
            // It picks single pixels, and others are not the same.
            Interpolation::Nearest => 8,
            _ => scales.iter().copied().find(fits).unwrap_or(8),
        }
    }

    /// Makes the step one for the `w` x `h` image scaled to `scale`/8.
    fn scale(&mut self, (w, h): (u32, u32), scale: u32) {
        if scale == 8 {
            return;
        }
        let axis = |at: u32, len: u32, side: u32| {
            let eighths = |v: u32| f64::from(v) * f64::from(scale) / 8.0;
            let first = eighths(at).floor();
            let end = eighths(at + len).ceil().min(f64::from(scaled(side, scale)));
            (first as u32, (end - first) as u32, eighths(at) - first, eighths(len))
        };
        let (x, from_w, frame_x, frame_w) = axis(self.from.x, self.from.w, w);
        let (y, from_h, frame_y, frame_h) = axis(self.from.y, self.from.h, h);
        self.from = Rect { x, y, w: from_w, h: from_h };
        self.frame = Frame { x: frame_x, y: frame_y, w: frame_w, h: frame_h };
    }

    /// Leaves out what has no part in the window.
    fn narrow(&mut self) {
        let support = match self.interpolation {
            Interpolation::Nearest => return, // sums up positions from the frame's border
            Interpolation::Bilinear => 1.0,
            Interpolation::Bicubic => 2.0,
            Interpolation::Lanczos => 3.0,
        };
        // The first pixel that is needed, and their number.
        let axis = |from: u32, (start, len): (f64, f64), full: u32, (at, count): (u32, u32)| {
            let step = len / f64::from(full);
            // One pixel more than the filter's radius, so that rounding never counts.
            let radius = support * step.max(1.0) + 1.0;
            let first = (start + f64::from(at) * step - radius).floor().max(0.0);
            let end = (start + f64::from(at + count) * step + radius).ceil().min(f64::from(from));
            (first as u32, (end - first) as u32)
        };
        let Self { from, frame, full, window, .. } = *self;
        let (x, w) = axis(from.w, (frame.x, frame.w), full.0, (window.x, window.w));
        let (y, h) = axis(from.h, (frame.y, frame.h), full.1, (window.y, window.h));
        self.from = from.nested(Rect { x, y, w, h });
        self.frame.x -= f64::from(x);
        self.frame.y -= f64::from(y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(w: u32, h: u32) -> Plan {
        let mut plan = Plan::default();
        plan.start(w, h);
        plan
    }

    #[test]
    fn a_crop_after_a_resize_makes_only_what_is_seen() {
        let mut plan = plan(500, 400);
        assert!(plan.resize(Target::SmallerEdge(256), None, Interpolation::Bilinear));
        assert!(plan.center_crop(224.into()));
        plan.finish((500, 400), &[]);
        let [Step::Resize(step)] = plan.steps[..] else { panic!("{plan:?}") };
        // 500 / 320 pixels make one: 75 to 425 and 25 to 375, and the filter reaches 1.56 further.
        assert_eq!(step.from, Rect { x: 72, y: 22, w: 356, h: 356 });
        assert_eq!(step.frame, Frame { x: -72.0, y: -22.0, w: 500.0, h: 400.0 });
        assert_eq!((plan.source, plan.scale), (step.from, 8));
        assert_eq!(step.full, (320, 256));
        assert_eq!(step.window, Rect { x: 48, y: 16, w: 224, h: 224 });
        assert_eq!(plan.view, Rect::whole(224, 224));
    }

    #[test]
    fn crops_are_read_in_place() {
        let mut plan = plan(500, 400);
        plan.crop(Rect { x: 100, y: 50, w: 300, h: 200 });
        plan.crop(Rect { x: 10, y: 20, w: 30, h: 40 });
        plan.finish((500, 400), &[1, 2, 4]);
        assert!(plan.steps.is_empty());
        assert_eq!(plan.view, Rect { x: 110, y: 70, w: 30, h: 40 });
        assert_eq!((plan.source, plan.scale), (plan.view, 8));
        plan.start_at(Rect { x: 96, y: 70, w: 48, h: 40 });
        assert_eq!(plan.view, Rect { x: 14, y: 0, w: 30, h: 40 });
    }

    #[test]
    fn the_decoder_scales_as_far_as_the_result_allows() {
        let scale = |crop: Rect, size: u32, scales: &[u32]| {
            let mut plan = plan(4000, 3001);
            plan.crop(crop);
            let target = Target::Exact(size.into());
            assert!(plan.resize(target, None, Interpolation::Bilinear));
            plan.finish((4000, 3001), scales);
            plan.scale
        };
        let whole = Rect::whole(4000, 3001);
        for (size, expected) in [(224, 1), (375, 1), (376, 2), (750, 2), (751, 4), (1501, 8)] {
            assert_eq!(scale(whole, size, &[1, 2, 4]), expected, "{size}");
            assert_eq!(scale(whole, size, &[]), 8, "{size}");
        }
        // The smaller side decides.
        assert_eq!(scale(Rect { h: 223, ..whole }, 224, &[1, 2, 4]), 8);
        assert_eq!(scale(Rect { h: 448, ..whole }, 224, &[1, 2, 4]), 4);
    }

    #[test]
    fn a_scaled_frame_keeps_its_place() {
        let mut plan = plan(4000, 3001);
        plan.crop(Rect { x: 1001, y: 2003, w: 2999, h: 998 });
        assert!(plan.resize(Target::Exact(100.into()), None, Interpolation::Bilinear));
        plan.finish((4000, 3001), &[1, 2, 4]);
        let [Step::Resize(step)] = plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(plan.scale, 1);
        assert_eq!(step.from, Rect { x: 125, y: 250, w: 375, h: 126 });
        assert_eq!(step.frame, Frame { x: 0.125, y: 0.375, w: 374.875, h: 124.75 });
    }

    #[test]
    fn a_flip_mirrors_the_crop_that_follows() {
        let mut plan = plan(100, 60);
        plan.flip(true, false);
        plan.crop(Rect { x: 5, y: 7, w: 20, h: 10 });
        assert_eq!(plan.view, Rect { x: 75, y: 7, w: 20, h: 10 });
        plan.flip(true, true);
        assert_eq!(plan.flip, Flip { horizontal: false, vertical: true });
    }

    #[test]
    fn colour_between_resize_and_crop_keeps_them_apart() {
        let mut plan = plan(100, 60);
        assert!(plan.resize(Target::SmallerEdge(30), None, Interpolation::Bilinear));
        plan.adjust(Adjust::Contrast(2.0));
        assert!(plan.center_crop(20.into()));
        plan.finish((100, 60), &[1, 2, 4]);
        let [Step::Resize(step), Step::Adjust(seen, _)] = plan.steps[..] else {
            panic!("{plan:?}")
        };
        assert_eq!((step.window, seen), (Rect::whole(50, 30), Rect::whole(50, 30)));
        assert_eq!(plan.view, Rect { x: 15, y: 5, w: 20, h: 20 });
    }
}
