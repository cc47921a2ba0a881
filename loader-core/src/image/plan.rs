//! The plan for one sample: its random parameters drawn and its geometry worked out from the image
//! size alone, before a pixel is decoded.
//!
//! A crop never copies: it narrows the view of what came before. A crop that follows a resize or
//! padding narrows what that step makes, so pixels that nobody sees are never computed. Flips
//! are only remembered, and mirror the coordinates of what follows; the final write applies them.

use super::geometry::{self, Flip, Rect};
use super::ops::{Extent, Fill, Interpolation, Padding, PaddingMode, Target};
use super::params::Adjust;
use crate::rng::Draws;

/// A step that makes new pixels, or changes them in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Resize(ResizeStep),
    Pad(PadStep),
    Adjust(Rect, Adjust),
}

/// Resizes `from` to `full` and makes the part `window` of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ResizeStep {
    pub(super) from: Rect,
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
    pub(super) steps: Vec<Step>,
    /// The part of the last step's image that is written.
    pub(super) view: Rect,
    pub(super) flip: Flip,
    pub(super) erase: Vec<EraseStep>,
}

impl Default for Plan {
    fn default() -> Self {
        let (steps, erase) = (Vec::new(), Vec::new());
        Self { steps, view: Rect::whole(0, 0), flip: Flip::default(), erase }
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
                Step::Resize(ResizeStep { from, full, window, interpolation, mirrored })
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

    /// To be called after the last operation.
    pub(super) fn finish(&mut self) {
        self.settle();
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
        plan.finish();
        let [Step::Resize(step)] = plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(step.from, Rect::whole(500, 400));
        assert_eq!(step.full, (320, 256));
        assert_eq!(step.window, Rect { x: 48, y: 16, w: 224, h: 224 });
        assert_eq!(plan.view, Rect::whole(224, 224));
    }

    #[test]
    fn crops_are_read_in_place() {
        let mut plan = plan(500, 400);
        plan.crop(Rect { x: 100, y: 50, w: 300, h: 200 });
        plan.crop(Rect { x: 10, y: 20, w: 30, h: 40 });
        plan.finish();
        assert!(plan.steps.is_empty());
        assert_eq!(plan.view, Rect { x: 110, y: 70, w: 30, h: 40 });
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
        plan.finish();
        let [Step::Resize(step), Step::Adjust(seen, _)] = plan.steps[..] else {
            panic!("{plan:?}")
        };
        assert_eq!((step.window, seen), (Rect::whole(50, 30), Rect::whole(50, 30)));
        assert_eq!(plan.view, Rect { x: 15, y: 5, w: 20, h: 20 });
    }
}
