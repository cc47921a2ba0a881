//! Rectangles, and the sizes that torchvision's rules give.

use super::ops::{Extent, Padding, PaddingMode, Target};

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) w: u32,
    pub(super) h: u32,
}

impl Rect {
    /// All of an image of that size.
    pub(super) fn whole(w: u32, h: u32) -> Self {
        Self { x: 0, y: 0, w, h }
    }

    pub(super) fn pixels(self) -> usize {
        self.w as usize * self.h as usize
    }

    /// `inner`, given in this rectangle's coordinates, in those that this one is given in.
    pub(super) fn nested(self, inner: Self) -> Self {
        Self { x: self.x + inner.x, y: self.y + inner.y, ..inner }
    }

    /// The rectangle in the coordinates of `origin`, which has to hold its first pixel.
    pub(super) fn seen_from(self, origin: Self) -> Self {
        Self { x: self.x - origin.x, y: self.y - origin.y, ..self }
    }

    /// Where the rectangle is after the `w` x `h` image around it is mirrored.
    pub(super) fn mirrored(self, flip: Flip, w: u32, h: u32) -> Self {
        Self {
            x: if flip.horizontal { w - self.x - self.w } else { self.x },
            y: if flip.vertical { h - self.y - self.h } else { self.y },
            ..self
        }
    }
}

/// A rectangle whose borders may run through pixels, or lie outside of the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) w: f64,
    pub(super) h: f64,
}

impl Frame {
    /// All of an image of that size.
    pub(super) fn whole(w: u32, h: u32) -> Self {
        Self { x: 0.0, y: 0.0, w: w.into(), h: h.into() }
    }
}

/// Which axes are mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flip {
    pub(super) horizontal: bool,
    pub(super) vertical: bool,
}

/// The size that `Resize` gives a `w` x `h` image: `int()` in torchvision's formula rounds down.
/// At least one pixel a side; `None` where a side is beyond `u32`.
pub(super) fn resized(w: u32, h: u32, to: Target, max_size: Option<u32>) -> Option<(u32, u32)> {
    let edge = match to {
        Target::Exact(Extent { height, width }) => return Some((width, height)),
        Target::SmallerEdge(edge) => u64::from(edge),
    };
    let (short, long) = (u64::from(w.min(h)), u64::from(w.max(h)));
    // Torchvision divides in f64; products here are below 2^53, where its truncated quotient is
    // the integer one.
    let (mut new_short, mut new_long) = (edge, edge * long / short.max(1));
    if let Some(max) = max_size.map(u64::from)
        && new_long > max
    {
        (new_short, new_long) = ((max * new_short / new_long).max(1), max);
    }
    let (new_short, new_long) = (u32::try_from(new_short).ok()?, u32::try_from(new_long).ok()?);
    Some(if w <= h { (new_short, new_long) } else { (new_long, new_short) })
}

/// The padding and the crop that `CenterCrop` makes of a `w` x `h` image; the crop is in the
/// coordinates of the padded image.
pub(super) fn center(w: u32, h: u32, size: Extent) -> (Padding, Rect) {
    let (missing_w, missing_h) = (size.width.saturating_sub(w), size.height.saturating_sub(h));
    let padding = Padding {
        left: missing_w / 2,
        top: missing_h / 2,
        right: missing_w.div_ceil(2),
        bottom: missing_h.div_ceil(2),
    };
    // Python's round() goes to the even neighbour.
    let offset = |have: u32, want: u32| (f64::from(have - want) / 2.0).round_ties_even() as u32;
    let crop = Rect {
        x: offset(w + missing_w, size.width),
        y: offset(h + missing_h, size.height),
        w: size.width,
        h: size.height,
    };
    (padding, crop)
}

/// Which of `len` pixels lies at `at` once `before` pixels of padding are put in front of them;
/// `None` where that is constant padding.
pub(super) fn unpadded(at: i64, len: i64, before: i64, mode: PaddingMode) -> Option<i64> {
    let at = at - before;
    if (0..len).contains(&at) {
        return Some(at);
    }
    match mode {
        PaddingMode::Constant => None,
        PaddingMode::Edge => Some(at.clamp(0, len - 1)),
        PaddingMode::Reflect if len == 1 => Some(0),
        PaddingMode::Reflect => {
            let period = 2 * (len - 1);
            let at = at.rem_euclid(period);
            Some(at.min(period - at))
        }
        PaddingMode::Symmetric => {
            let at = at.rem_euclid(2 * len);
            Some(at.min(2 * len - 1 - at))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn resized_is_torchvisions_float_formula(
            w in 1u32..70_000, h in 1u32..70_000, edge in 1u32..2_000,
            max in prop::option::of(1u32..3_000),
        ) {
            let max = max.map(|m| edge + m);
            let (short, long) = (w.min(h) as f64, w.max(h) as f64);
            let (mut new_short, mut new_long) =
                (edge as f64, (edge as f64 * long / short).trunc());
            if let Some(max) = max && new_long > max as f64 {
                (new_short, new_long) =
                    ((max as f64 * new_short / new_long).trunc().max(1.0), max as f64);
            }
            let expected = if w <= h { (new_short, new_long) } else { (new_long, new_short) };
            let (got_w, got_h) = resized(w, h, Target::SmallerEdge(edge), max).unwrap();
            prop_assert_eq!((got_w as f64, got_h as f64), expected);
        }

        #[test]
        fn a_centre_crop_fits_the_padded_image(
            w in 1u32..600, h in 1u32..600, width in 1u32..600, height in 1u32..600,
        ) {
            let (pad, crop) = center(w, h, Extent { height, width });
            prop_assert!(crop.x + crop.w <= w + pad.left + pad.right);
            prop_assert!(crop.y + crop.h <= h + pad.top + pad.bottom);
            prop_assert_eq!((crop.w, crop.h), (width, height));
        }
    }

    #[test]
    fn padding_modes_are_numpys() {
        let row = |mode| (0..9).map(|i| unpadded(i, 3, 3, mode)).collect::<Vec<_>>();
        let some = |v: [i64; 9]| v.map(Some).to_vec();
        assert_eq!(row(PaddingMode::Edge), some([0, 0, 0, 0, 1, 2, 2, 2, 2]));
        assert_eq!(row(PaddingMode::Reflect), some([1, 2, 1, 0, 1, 2, 1, 0, 1]));
        assert_eq!(row(PaddingMode::Symmetric), some([2, 1, 0, 0, 1, 2, 2, 1, 0]));
        assert_eq!(row(PaddingMode::Constant)[2..7], [None, Some(0), Some(1), Some(2), None]);
    }
}
