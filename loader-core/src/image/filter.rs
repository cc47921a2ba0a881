//! Steps that make a new image of all that the one before shows: geometry beyond resizing, blur,
//! sharpness, and the program's own.

use super::affine::Affine;
use super::color::blend;
use super::custom::Custom;
use super::geometry::{Flip, Rect, unpadded};
use super::ops::PaddingMode;

/// What makes the new image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filter {
    Affine(Affine),
    Blur(Blur),
    /// Pillow's `ImageEnhance.Sharpness` of that factor.
    Sharpness(f32),
    Custom(Custom),
}

/// A Gaussian kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Blur {
    /// Columns and rows, both odd.
    pub(super) kernel: (u32, u32),
    pub(super) sigma: f64,
}

/// Makes a new image of `from`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FilterStep {
    pub(super) from: Rect,
    /// How it is mirrored first.
    pub(super) flip: Flip,
    pub(super) filter: Filter,
}

impl FilterStep {
    /// All of the new image.
    pub(super) fn made(&self) -> Rect {
        let (w, h) = self.filter.size((self.from.w, self.from.h));
        Rect::whole(w, h)
    }
}

impl Filter {
    /// The size of the result, from that of the image.
    pub(super) fn size(&self, before: (u32, u32)) -> (u32, u32) {
        match self {
            Self::Affine(affine) => affine.size,
            Self::Blur(_) | Self::Sharpness(_) | Self::Custom(_) => before,
        }
    }

    /// False where mirroring may as well come later.
    pub(super) fn sees_flips(&self) -> bool {
        match self {
            Self::Affine(_) | Self::Custom(_) => true,
            Self::Blur(_) | Self::Sharpness(_) => false,
        }
    }
}

/// Working memory, kept between samples.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// From the middle of the kernel on.
    columns: Vec<f32>,
    rows: Vec<f32>,
    /// A row with what is mirrored at its ends, and the row that is made of it.
    padded: Vec<f32>,
    sums: Vec<f32>,
}

/// Copies the part `rect` of the RGB image `src` of that `width`, mirrored.
pub(super) fn copy(src: &[u8], width: u32, rect: Rect, flip: Flip, dst: &mut [u8]) {
    let w = rect.w as usize;
    for (y, out) in dst.chunks_exact_mut(w * 3).enumerate() {
        let y = if flip.vertical { rect.h as usize - 1 - y } else { y };
        out.copy_from_slice(row(src, width, rect, y));
        if flip.horizontal {
            out.as_chunks_mut::<3>().0.reverse();
        }
    }
}

/// The `y`-th row of `rect`.
fn row(src: &[u8], width: u32, rect: Rect, y: usize) -> &[u8] {
    let at = (rect.y as usize + y) * width as usize + rect.x as usize;
    &src[at * 3..][..rect.w as usize * 3]
}

/// The right half of the kernel, the middle first; all of it sums up to 1.
fn kernel(weights: &mut Vec<f32>, size: u32, sigma: f64) {
    let radius = size / 2;
    let weight = |i: u32| (-0.5 * (f64::from(i) / sigma).powi(2)).exp();
    let sum = weight(0) + 2.0 * (1..=radius).map(weight).sum::<f64>();
    weights.clear();
    weights.extend((0..=radius).map(|i| (weight(i) / sum) as f32));
}

/// Torchvision's `gaussian_blur`: sums in `f32`, rounded to the nearest, ties to even. Sums are made
/// from the middle of the kernel outwards, so that mirroring before or after is the same.
pub(super) fn blur(
    scratch: &mut Scratch,
    Blur { kernel: (columns, rows), sigma }: Blur,
    src: &[u8],
    width: u32,
    rect: Rect,
    dst: &mut [u8],
) {
    let Scratch { columns: across, rows: down, padded, sums } = scratch;
    kernel(across, columns, sigma);
    kernel(down, rows, sigma);
    let (w, h) = (rect.w as usize, rect.h as usize);
    let side = (across.len() - 1) * 3;
    let reflected = |at: i64, len: usize| {
        unpadded(at, len as i64, 0, PaddingMode::Reflect).unwrap_or_default() as usize
    };
    padded.clear();
    padded.resize(w * 3 + 2 * side, 0.0);
    sums.clear();
    sums.resize(w * 3, 0.0);
    for (y, out) in dst.chunks_exact_mut(w * 3).enumerate() {
        let line = |offset: i64| row(src, width, rect, reflected(y as i64 + offset, h));
        let middle = &mut padded[side..][..w * 3];
        for (sum, &v) in middle.iter_mut().zip(line(0)) {
            *sum = f32::from(v) * down[0];
        }
        for (i, &weight) in (1..).zip(&down[1..]) {
            for (sum, (&above, &below)) in middle.iter_mut().zip(line(-i).iter().zip(line(i))) {
                *sum += f32::from(u16::from(above) + u16::from(below)) * weight;
            }
        }
        for i in 1..across.len() {
            let left = side - i * 3;
            let right = side + (w - 1 + i) * 3;
            for c in 0..3 {
                padded[left + c] = padded[side + reflected(-(i as i64), w) * 3 + c];
                padded[right + c] = padded[side + reflected((w - 1 + i) as i64, w) * 3 + c];
            }
        }
        for (sum, v) in sums.iter_mut().zip(&padded[side..]) {
            *sum = v * across[0];
        }
        for (i, &weight) in across.iter().enumerate().skip(1) {
            let (left, right) = (&padded[side - i * 3..], &padded[side + i * 3..]);
            for (sum, (left, right)) in sums.iter_mut().zip(left.iter().zip(right)) {
                *sum += (left + right) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums.iter()) {
            *out = to_nearest(*sum);
        }
    }
}

/// `value.round_ties_even() as u8` for 0 to 255; without SSE 4.1 that would be a call.
fn to_nearest(value: f32) -> u8 {
    const NO_FRACTION: f32 = 12_582_912.0; // 1.5 * 2^23
    ((value + NO_FRACTION) - NO_FRACTION) as u8
}

/// Blends with the smoothed image; its outermost pixels are not smoothed.
pub(super) fn sharpness(factor: f32, src: &[u8], width: u32, rect: Rect, dst: &mut [u8]) {
    let (w, h) = (rect.w as usize, rect.h as usize);
    for (y, out) in dst.chunks_exact_mut(w * 3).enumerate() {
        let middle = row(src, width, rect, y);
        out.copy_from_slice(middle);
        if y == 0 || y + 1 >= h || w < 3 {
            continue;
        }
        let (above, below) = (row(src, width, rect, y - 1), row(src, width, rect, y + 1));
        for i in 3..(w - 1) * 3 {
            let three =
                |row: &[u8]| u32::from(row[i - 3]) + u32::from(row[i]) + u32::from(row[i + 3]);
            let sum = three(above) + three(middle) + three(below) + 4 * u32::from(middle[i]);
            // The nearest of sum / 13, which never lies half way.
            let smooth = (2 * sum + 13) / 26;
            out[i] = blend(smooth as u8, middle[i], factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn to_nearest_is_the_standard_one() {
        for i in 0..=25_500 {
            let value = i as f32 / 100.0;
            assert_eq!(to_nearest(value), value.round_ties_even() as u8, "{value}");
        }
        assert_eq!(to_nearest(255.000_03), 255);
    }

    fn mirrored(image: &[u8], w: u32, h: u32) -> Vec<u8> {
        let mut out = vec![0; image.len()];
        let flip = Flip { horizontal: true, vertical: true };
        copy(image, w, Rect::whole(w, h), flip, &mut out);
        out
    }

    proptest! {
        /// What lets a flip wait until the end.
        #[test]
        fn blur_and_sharpness_commute_with_mirroring(
            (w, h) in (1u32..12, 1u32..12),
            kernel in (0u32..5, 0u32..5),
            sigma in 0.05f64..4.0,
            factor in 0f32..3.0,
            seed in any::<u64>(),
        ) {
            let image: Vec<u8> =
                (1..=u64::from(w * h * 3)).map(|i| (seed.wrapping_mul(i * i) >> 32) as u8).collect();
            let kernel = (kernel.0 * 2 + 1, kernel.1 * 2 + 1);
            let run = |image: &[u8]| {
                let rect = Rect::whole(w, h);
                let (mut blurred, mut sharp) = (vec![0; image.len()], vec![0; image.len()]);
                blur(&mut Scratch::default(), Blur { kernel, sigma }, image, w, rect, &mut blurred);
                sharpness(factor, image, w, rect, &mut sharp);
                (blurred, sharp)
            };
            let (blurred, sharp) = run(&mirrored(&image, w, h));
            let (plain, plain_sharp) = run(&image);
            prop_assert_eq!(mirrored(&blurred, w, h), plain);
            prop_assert_eq!(mirrored(&sharp, w, h), plain_sharp);
        }
    }
}
