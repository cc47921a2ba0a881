//! Colour adjustments with Pillow's arithmetic on 8-bit levels, rounding included, in place.

use super::params::Rect;

/// The pixels of a region of an image, row by row.
pub(crate) struct Rows<'a> {
    pixels: &'a mut [u8],
    row_bytes: usize,
    region: Rect,
}

impl<'a> Rows<'a> {
    /// A region of an image of that width.
    pub(crate) fn new(pixels: &'a mut [u8], width: u32, region: Rect) -> Self {
        Self { pixels, row_bytes: width as usize * 3, region }
    }

    fn each(&mut self, mut f: impl FnMut(&mut [[u8; 3]])) {
        let Rect { x, y, width, height } = self.region;
        let rows = self.pixels.chunks_exact_mut(self.row_bytes);
        for row in rows.skip(y as usize).take(height as usize) {
            f(row[x as usize * 3..][..width as usize * 3].as_chunks_mut().0);
        }
    }
}

/// ITU-R 601-2 luma, as `convert("L")`.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// `Image.blend`: from `base` at factor 0 to `value` at 1, and beyond. Casts to `u8` saturate.
fn blend(base: u8, value: u8, factor: f32) -> u8 {
    (f32::from(base) + factor * (f32::from(value) - f32::from(base))) as u8
}

pub(crate) fn brightness(mut rows: Rows<'_>, factor: f64) {
    let table: [u8; 256] = std::array::from_fn(|v| blend(0, v as u8, factor as f32));
    rows.each(|row| row.as_flattened_mut().iter_mut().for_each(|v| *v = table[usize::from(*v)]));
}

pub(crate) fn contrast(mut rows: Rows<'_>, factor: f64) {
    let mut sum = 0u64;
    rows.each(|row| sum += row.iter().map(|&p| u64::from(luma(p))).sum::<u64>());
    let count = u64::from(rows.region.width) * u64::from(rows.region.height);
    let mean = (sum as f64 / count as f64 + 0.5) as u8;
    let table: [u8; 256] = std::array::from_fn(|v| blend(mean, v as u8, factor as f32));
    rows.each(|row| row.as_flattened_mut().iter_mut().for_each(|v| *v = table[usize::from(*v)]));
}

pub(crate) fn saturation(mut rows: Rows<'_>, factor: f64) {
    rows.each(|row| {
        for pixel in row {
            let gray = luma(*pixel);
            *pixel = pixel.map(|v| blend(gray, v, factor as f32));
        }
    });
}

/// Turns the hue by `factor` of the colour circle, in the 256 steps of Pillow's HSV.
pub(crate) fn hue(mut rows: Rows<'_>, factor: f64) {
    let turn = (factor * 255.0) as i32 as u8;
    rows.each(|row| {
        for pixel in row {
            let [h, s, v] = to_hsv(*pixel);
            *pixel = from_hsv([h.wrapping_add(turn), s, v]);
        }
    });
}

pub(crate) fn grayscale(mut rows: Rows<'_>) {
    rows.each(|row| row.iter_mut().for_each(|p| *p = [luma(*p); 3]));
}

/// Pillow's `rgb2hsv`, which mixes single and double precision.
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let s = range / f32::from(max);
    let [rc, gc, bc] = [r, g, b].map(|v| f32::from(max - v) / range);
    let h = if r == max {
        bc - gc
    } else if g == max {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let h = ((f64::from(h) / 6.0 + 1.0) % 1.0) as f32;
    [(f64::from(h) * 255.0) as u8, (f64::from(s) * 255.0) as u8, max]
}

/// Pillow's `hsv2rgb`.
fn from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let turns = f64::from(h) * 6.0 / 255.0;
    let sector = turns.floor();
    let f = f64::from((turns - sector) as f32);
    let s = f64::from(f32::from(s) / 255.0);
    let level = |x: f64| (f64::from(v) * x).round() as u8;
    let (p, q, t) = (level(1.0 - s), level(1.0 - s * f), level(1.0 - s * (1.0 - f)));
    match sector as u32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}
