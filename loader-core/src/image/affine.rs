//! Rotations and other affine maps, sampled with Pillow's arithmetic.
//!
//! The matrices are those of torchvision's `_get_inverse_affine_matrix` and Pillow's
//! `Image.rotate`; where each pixel comes from, and how it is rounded, follows Pillow's
//! src/libImaging/Geometry.c: 16.16 fixed point for nearest, doubles otherwise, truncated.

use std::io::Write;

use super::geometry::{Flip, Rect};
use super::ops::{Fill, Interpolation};

/// Maps the middle of a pixel of the result to a place in the image: `x = m[0] x + m[1] y + m[2]`,
/// `y = m[3] x + m[4] y + m[5]`.
pub(super) type Matrix = [f64; 6];

/// An affine map, and the size of its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) matrix: Matrix,
    pub(super) size: (u32, u32),
    pub(super) interpolation: Interpolation,
    pub(super) fill: Fill,
}

/// What moves an image; angles in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Motion {
    pub(super) angle: f64,
    pub(super) translate: (i32, i32),
    pub(super) scale: f64,
    pub(super) shear: (f64, f64),
}

impl Motion {
    /// Leaves everything where it is.
    pub(super) const NONE: Self =
        Self { angle: 0.0, translate: (0, 0), scale: 1.0, shear: (0.0, 0.0) };

    /// From the moved image to the original one.
    pub(super) fn matrix(self, (cx, cy): (f64, f64)) -> Matrix {
        let rot = self.angle.to_radians();
        let (sx, sy) = (self.shear.0.to_radians(), self.shear.1.to_radians());
        let (tx, ty) = (f64::from(self.translate.0), f64::from(self.translate.1));
        // Rotation after shear, without the scale: its determinant is 1.
        let a = (rot - sy).cos() / sy.cos();
        let b = -(rot - sy).cos() * sx.tan() / sy.cos() - rot.sin();
        let c = (rot - sy).sin() / sy.cos();
        let d = -(rot - sy).sin() * sx.tan() / sy.cos() + rot.cos();
        let [a, b, c, d] = [d, -b, -c, a].map(|v| v / self.scale);
        [a, b, a * (-cx - tx) + b * (-cy - ty) + cx, c, d, c * (-cx - tx) + d * (-cy - ty) + cy]
    }
}

/// What `Image.rotate` does to an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rotation {
    Nothing,
    HalfTurn,
    Affine(Matrix, (u32, u32)),
}

/// Counter-clockwise by that many degrees; the size is that of the result.
pub(super) fn rotation(
    degrees: f64,
    (w, h): (u32, u32),
    center: Option<(f64, f64)>,
    expand: bool,
) -> Rotation {
    let degrees = degrees.rem_euclid(360.0);
    if center.is_none() && degrees == 0.0 {
        return Rotation::Nothing;
    }
    if center.is_none() && degrees == 180.0 {
        return Rotation::HalfTurn;
    }
    let (width, height) = (f64::from(w), f64::from(h));
    let (cx, cy) = center.unwrap_or((width / 2.0, height / 2.0));
    let radians = -degrees.to_radians();
    let (cos, sin) = (rounded(radians.cos()), rounded(radians.sin()));
    let linear = [cos, sin, rounded(-radians.sin()), cos];
    let [a, b, d, e] = linear;
    let map = |x: f64, y: f64, c: f64, f: f64| (a * x + b * y + c, d * x + e * y + f);
    let (c, f) = map(-cx, -cy, 0.0, 0.0);
    let (mut c, mut f) = (c + cx, f + cy);
    let mut size = (w, h);
    if expand {
        size = if center.is_none() && (degrees == 90.0 || degrees == 270.0) {
            (h, w)
        } else {
            let corners = [(0.0, 0.0), (width, 0.0), (width, height), (0.0, height)]
                .map(|(x, y)| map(x, y, c, f));
            let span = |v: [f64; 4]| {
                let (low, high) = v
                    .iter()
                    .fold((f64::MAX, f64::MIN), |(low, high), &v| (low.min(v), high.max(v)));
                ((high.ceil() - low.floor()) as u32).max(1)
            };
            (span(corners.map(|(x, _)| x)), span(corners.map(|(_, y)| y)))
        };
        let (new_w, new_h) = (f64::from(size.0), f64::from(size.1));
        (c, f) = map(-(new_w - width) / 2.0, -(new_h - height) / 2.0, c, f);
    }
    Rotation::Affine([a, b, c, d, e, f], size)
}

/// Python's `round(value, 15)`: to the nearest decimal, and from that to the nearest double.
fn rounded(value: f64) -> f64 {
    let mut text = [b' '; 24];
    let written = write!(&mut text[..], "{value:.15}");
    let text = std::str::from_utf8(&text).unwrap_or_default().trim_end();
    written.ok().and_then(|()| text.parse().ok()).unwrap_or(value)
}

/// Pixels around a place, by row, and how far it lies right of and below the middle of the last pixel
/// before it.
type Around<const N: usize> = ([[[u8; 3]; N]; N], f64, f64);

/// The part `rect` of an RGB image, mirrored.
struct View<'a> {
    pixels: &'a [[u8; 3]],
    width: usize,
    rect: Rect,
    flip: Flip,
}

impl View<'_> {
    /// The pixel at a place inside.
    fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let Rect { x: left, y: top, w, h } = self.rect;
        let x = if self.flip.horizontal { w as usize - 1 - x } else { x };
        let y = if self.flip.vertical { h as usize - 1 - y } else { y };
        self.pixels[(top as usize + y) * self.width + left as usize + x]
    }

    fn nearest(&self, x: i64, y: i64) -> Option<[u8; 3]> {
        let inside =
            (0..i64::from(self.rect.w)).contains(&x) && (0..i64::from(self.rect.h)).contains(&y);
        inside.then(|| self.at(x as usize, y as usize))
    }

    /// `N` by `N` pixels around a place, the last ones repeated outside; `None` where the place
    /// itself is outside.
    #[inline(always)]
    fn around<const N: usize>(&self, x: f64, y: f64) -> Option<Around<N>> {
        let (w, h) = (i64::from(self.rect.w), i64::from(self.rect.h));
        if x < 0.0 || x >= w as f64 || y < 0.0 || y >= h as f64 {
            return None;
        }
        let (x, y) = (x - 0.5, y - 0.5);
        let (left, top) = (x.floor(), y.floor());
        let before = N as i64 / 2 - 1;
        let column = |i: usize| (left as i64 - before + i as i64).clamp(0, w - 1) as usize;
        let row = |j: usize| (top as i64 - before + j as i64).clamp(0, h - 1) as usize;
        let columns: [usize; N] = std::array::from_fn(column);
        let pixels = std::array::from_fn(|j| {
            let row = row(j);
            columns.map(|column| self.at(column, row))
        });
        Some((pixels, x - left, y - top))
    }

    fn bilinear(&self, x: f64, y: f64) -> Option<[u8; 3]> {
        let (pixels, dx, dy) = self.around::<2>(x, y)?;
        let mix = |a: f64, b: f64, d: f64| a + (b - a) * d;
        Some(std::array::from_fn(|c| {
            let [above, below] =
                pixels.map(|[left, right]| mix(left[c].into(), right[c].into(), dx));
            mix(above, below, dy) as u8
        }))
    }

    fn bicubic(&self, x: f64, y: f64) -> Option<[u8; 3]> {
        let (pixels, dx, dy) = self.around::<4>(x, y)?;
        Some(std::array::from_fn(|c| {
            let rows = pixels.map(|row| cubic(row.map(|pixel| f64::from(pixel[c])), dx));
            cubic(rows, dy) as u8
        }))
    }
}

/// A cubic through the two values in the middle, `d` of the way from one to the other.
fn cubic([v1, v2, v3, v4]: [f64; 4], d: f64) -> f64 {
    let p2 = -v1 + v3;
    let p3 = 2.0 * (v1 - v2) + v3 - v4;
    let p4 = -v1 + v2 - v3 + v4;
    v2 + d * (p2 + d * (p3 + d * p4))
}

/// Makes the image of `rect` of the RGB image `src` of that `width`, after it is mirrored.
pub(super) fn apply(
    affine: &Affine,
    src: &[u8],
    width: u32,
    rect: Rect,
    flip: Flip,
    dst: &mut [u8],
) {
    let Affine { matrix, size: (w, _), interpolation, fill } = *affine;
    let view = View { pixels: src.as_chunks::<3>().0, width: width as usize, rect, flip };
    let fill = match fill {
        Fill::All(v) => [v; 3],
        Fill::Rgb(rgb) => rgb,
    };
    let rows = dst.as_chunks_mut::<3>().0.chunks_exact_mut(w as usize);
    match interpolation {
        Interpolation::Nearest => nearest(affine, &view, fill, rows),
        Interpolation::Bilinear => {
            interpolated(matrix, rows, |x, y| view.bilinear(x, y).unwrap_or(fill));
        }
        Interpolation::Bicubic | Interpolation::Lanczos => {
            interpolated(matrix, rows, |x, y| view.bicubic(x, y).unwrap_or(fill));
        }
    }
}

fn interpolated<'a>(
    [a, b, c, d, e, f]: Matrix,
    rows: impl Iterator<Item = &'a mut [[u8; 3]]>,
    pixel: impl Fn(f64, f64) -> [u8; 3],
) {
    for (y, row) in rows.enumerate() {
        let y = y as f64 + 0.5;
        for (x, out) in row.iter_mut().enumerate() {
            let x = x as f64 + 0.5;
            *out = pixel(a * x + b * y + c, d * x + e * y + f);
        }
    }
}

fn nearest<'a>(
    affine: &Affine,
    view: &View<'_>,
    fill: [u8; 3],
    rows: impl Iterator<Item = &'a mut [[u8; 3]]>,
) {
    let [a, b, c, d, e, f] = affine.matrix;
    let (w, h) = (f64::from(affine.size.0), f64::from(affine.size.1));
    let small =
        |x: f64, y: f64| (x * a + y * b + c).abs() < 32768.0 && (x * d + y * e + f).abs() < 32768.0;
    let fixed = small(0.0, 0.0) && small(w, h) && small(0.0, h) && small(w, 0.0);
    if fixed && (b != 0.0 || d != 0.0) {
        let fix = |v: f64| (v * 65536.0 + 0.5).floor() as i64;
        let (x_start, y_start) = (fix(c + a * 0.5 + b * 0.5), fix(f + d * 0.5 + e * 0.5));
        let [a, b, d, e] = [a, b, d, e].map(fix);
        for (row, out) in (0i64..).zip(rows) {
            let (mut x, mut y) = (x_start + b * row, y_start + e * row);
            for out in out {
                *out = view.nearest(x >> 16, y >> 16).unwrap_or(fill);
                x += a;
                y += d;
            }
        }
        return;
    }
    // Summed up step by step, as Pillow does it, since the rounding shows.
    let (mut x_start, mut y_start) = (c + b * 0.5 + a * 0.5, f + e * 0.5 + d * 0.5);
    let whole = |v: f64| if v < 0.0 { -1 } else { v as i64 };
    for out in rows {
        let (mut x, mut y) = (x_start, y_start);
        for out in out {
            *out = view.nearest(whole(x), whole(y)).unwrap_or(fill);
            x += a;
            y += d;
        }
        x_start += b;
        y_start += e;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_fifteen_decimals() {
        for (value, expected) in [
            (6.123_233_995_736_766e-17, 0.0),
            (-1.0, -1.0),
            (0.123_456_789_012_345_67, 0.123_456_789_012_346),
            (-0.500_000_000_000_000_1, -0.5),
        ] {
            assert_eq!(rounded(value), expected, "{value}");
        }
    }

    #[test]
    fn quarter_turns_keep_every_pixel() {
        let src: Vec<u8> = (0..5 * 4 * 3).collect();
        let Rotation::Affine(matrix, size) = rotation(90.0, (5, 4), None, true) else { panic!() };
        assert_eq!(size, (4, 5));
        for interpolation in
            [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic]
        {
            let affine = Affine { matrix, size, interpolation, fill: Fill::All(255) };
            let mut dst = vec![0; src.len()];
            apply(&affine, &src, 5, Rect::whole(5, 4), Flip::default(), &mut dst);
            for (i, pixel) in dst.chunks(3).enumerate() {
                let (x, y) = (4 - i / 4, i % 4);
                assert_eq!(pixel, &src[(y * 5 + x) * 3..][..3], "{interpolation:?} {i}");
            }
        }
    }

    /// Maps without sense, as extreme shears give them, fill the image and no more.
    #[test]
    fn any_matrix_is_safe() {
        let src = vec![7; 3 * 3 * 3];
        let values = [0.0, 1.0, -1e300, 1e300, f64::NAN, f64::INFINITY, 40_000.0];
        for i in 0..values.len().pow(3) {
            let pick = |n: usize| values[i / values.len().pow(n as u32) % values.len()];
            let matrix = std::array::from_fn(|n| pick(n % 3));
            for interpolation in
                [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic]
            {
                let affine = Affine { matrix, size: (4, 2), interpolation, fill: Fill::All(9) };
                let mut dst = vec![0; 4 * 2 * 3];
                apply(&affine, &src, 3, Rect::whole(3, 3), Flip::default(), &mut dst);
            }
        }
    }
}
