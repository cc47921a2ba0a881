//! Colour adjustments with Pillow's 8-bit arithmetic, in place on part of an RGB image.
//!
//! The formulas are those of Pillow's `ImageEnhance` over `Image.blend` (src/libImaging/Blend.c)
//! and of its conversions to `L` and `HSV` (src/libImaging/Convert.c).

use super::geometry::Rect;
use super::levels;
use super::params::Adjust;

/// Applies `adjust` to the pixels of `rect` in the image of that `width`.
pub(super) fn apply(image: &mut [u8], width: u32, rect: Rect, adjust: Adjust) {
    match adjust {
        Adjust::Brightness(factor) => by_table(image, width, rect, &blend_from(0, factor)),
        Adjust::Contrast(factor) => {
            let mean = mean_luma(image, width, rect);
            by_table(image, width, rect, &blend_from(mean, factor));
        }
        Adjust::Saturation(factor) => by_pixel(image, width, rect, |p| {
            let gray = luma(p);
            p.map(|v| blend(gray, v, factor))
        }),
        Adjust::Hue(factor) => {
            // Torchvision: np.int32(factor * 255).astype(np.uint8), added with wrap-around.
            let shift = (factor * 255.0) as i32 as u8;
            let sectors: [Sector; 256] = std::array::from_fn(|h| Sector::of(h as u8));
            by_pixel(image, width, rect, |p| {
                let [h, s, v] = to_hsv(p);
                to_rgb(sectors[h.wrapping_add(shift) as usize], s, v)
            });
        }
        Adjust::Gray => by_pixel(image, width, rect, |p| [luma(p); 3]),
        Adjust::Levels(change) => levels::apply(image, width, rect, change),
    }
}

/// The rows of `rect`.
pub(super) fn rows(image: &mut [u8], width: u32, rect: Rect) -> impl Iterator<Item = &mut [u8]> {
    let (x, w) = (rect.x as usize * 3, rect.w as usize * 3);
    image
        .chunks_exact_mut(width as usize * 3)
        .skip(rect.y as usize)
        .take(rect.h as usize)
        .map(move |row| &mut row[x..x + w])
}

fn by_table(image: &mut [u8], width: u32, rect: Rect, table: &[u8; 256]) {
    for row in rows(image, width, rect) {
        for value in row {
            *value = table[*value as usize];
        }
    }
}

fn by_pixel(image: &mut [u8], width: u32, rect: Rect, mut f: impl FnMut([u8; 3]) -> [u8; 3]) {
    for row in rows(image, width, rect) {
        for pixel in row.as_chunks_mut::<3>().0 {
            *pixel = f(*pixel);
        }
    }
}

/// ITU-R 601-2 luma in 16-bit fixed point.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

fn mean_luma(image: &mut [u8], width: u32, rect: Rect) -> u8 {
    let mut sum = 0u64;
    for row in rows(image, width, rect) {
        sum += row.as_chunks::<3>().0.iter().map(|&p| u64::from(luma(p))).sum::<u64>();
    }
    let pixels = u64::from(rect.w) * u64::from(rect.h);
    (sum as f64 / pixels as f64 + 0.5) as u8
}

/// `from + factor * (value - from)`, truncated and clamped: what the casts of Blend.c do.
pub(super) fn blend(from: u8, value: u8, factor: f32) -> u8 {
    (f32::from(from) + factor * (f32::from(value) - f32::from(from))) as u8
}

fn blend_from(from: u8, factor: f32) -> [u8; 256] {
    std::array::from_fn(|value| blend(from, value as u8, factor))
}

fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    if max == min {
        return [0, 0, max];
    }
    // Pillow's mix of float and double is kept, so that truncation falls the same way.
    let range = f32::from(max - min);
    let share = |v: u8| f32::from(max - v) / range;
    let (rc, gc, bc) = (share(r), share(g), share(b));
    let h = if r == max {
        bc - gc
    } else if g == max {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    // What Pillow's fmod(h / 6 + 1, 1) gives, as h / 6 lies between -1/6 and 5/6.
    let turned = f64::from(h) / 6.0 + 1.0;
    let h = if turned >= 1.0 { turned - 1.0 } else { turned } as f32;
    let s = range / f32::from(max);
    [(f64::from(h) * 255.0) as u8, (f64::from(s) * 255.0) as u8, max]
}

/// Where a hue lies on the colour circle: which sixth, and how far into it.
#[derive(Clone, Copy)]
struct Sector {
    sixth: u8,
    f: f64,
}

impl Sector {
    fn of(h: u8) -> Self {
        let position = f64::from(h) * 6.0 / 255.0;
        let sixth = position.floor();
        Self { sixth: sixth as u8 % 6, f: f64::from((position - sixth) as f32) }
    }
}

fn to_rgb(Sector { sixth, f }: Sector, s: u8, v: u8) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let fs = f64::from((f64::from(s) / 255.0) as f32);
    let scaled = |by: f64| round(f64::from(v) * by);
    let (p, q, t) = (scaled(1.0 - fs), scaled(1.0 - fs * f), scaled(1.0 - fs * (1.0 - f)));
    match sixth {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

/// `value.round() as u8` for what is not negative; without SSE 4.1 that would be a call.
fn round(value: f64) -> u8 {
    let whole = value as i32;
    (whole + i32::from(value - f64::from(whole) >= 0.5)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_is_the_standard_one() {
        for i in 0..=25_500 {
            let value = f64::from(i) / 100.0;
            assert_eq!(round(value), value.round() as u8, "{value}");
        }
        assert_eq!(round(0.499_999_999_999_999_94), 0);
    }

    #[test]
    fn only_the_rectangle_changes() {
        for adjust in [
            Adjust::Brightness(0.0),
            Adjust::Contrast(0.0),
            Adjust::Saturation(0.0),
            Adjust::Hue(0.4),
            Adjust::Gray,
        ] {
            let mut image = [90, 20, 250].repeat(7 * 5);
            let before = image.clone();
            let rect = Rect { x: 2, y: 1, w: 3, h: 2 };
            apply(&mut image, 7, rect, adjust);
            for (i, (now, then)) in image.chunks(3).zip(before.chunks(3)).enumerate() {
                let inside = (2..5).contains(&(i % 7)) && (1..3).contains(&(i / 7));
                assert_eq!(now != then, inside, "{adjust:?} pixel {i}");
            }
        }
    }
}
