//! Tables of new levels: what Pillow's `ImageOps` does to each value, in place on part of an RGB
//! image.

use super::color::rows;
use super::geometry::Rect;

/// New values of each channel.
type Tables = [[u8; 256]; 3];

/// A change of each value by a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Levels {
    /// Stretches each channel to the full range.
    AutoContrast,
    /// Equalises each channel's histogram.
    Equalize,
    /// Inverts every value.
    Invert,
    /// Keeps that many of the highest bits.
    Posterize(u32),
    /// Inverts the values from the threshold on.
    Solarize(f64),
}

/// Applies it to the pixels of `rect` in the image of that `width`.
pub(super) fn apply(image: &mut [u8], width: u32, rect: Rect, levels: Levels) {
    let tables = match levels {
        Levels::AutoContrast => histogram(image, width, rect).map(|h| stretched(&h)),
        Levels::Equalize => histogram(image, width, rect).map(|h| equalized(&h)),
        Levels::Invert => [std::array::from_fn(|v| 255 - v as u8); 3],
        Levels::Posterize(bits) => {
            let dropped = 8u32.saturating_sub(bits);
            [std::array::from_fn(|v| (v >> dropped << dropped) as u8); 3]
        }
        Levels::Solarize(threshold) => {
            [std::array::from_fn(|v| if (v as f64) < threshold { v as u8 } else { 255 - v as u8 });
                3]
        }
    };
    by_tables(image, width, rect, &tables);
}

fn by_tables(image: &mut [u8], width: u32, rect: Rect, [red, green, blue]: &Tables) {
    for row in rows(image, width, rect) {
        for [r, g, b] in row.as_chunks_mut::<3>().0 {
            (*r, *g, *b) = (red[*r as usize], green[*g as usize], blue[*b as usize]);
        }
    }
}

fn histogram(image: &mut [u8], width: u32, rect: Rect) -> [[u32; 256]; 3] {
    let mut counts = [[0; 256]; 3];
    for row in rows(image, width, rect) {
        for pixel in row.as_chunks::<3>().0 {
            for (counts, &value) in counts.iter_mut().zip(pixel) {
                counts[value as usize] += 1;
            }
        }
    }
    counts
}

fn unchanged() -> [u8; 256] {
    std::array::from_fn(|v| v as u8)
}

/// `ImageOps.autocontrast` without a cutoff.
fn stretched(counts: &[u32; 256]) -> [u8; 256] {
    let low = counts.iter().position(|&n| n > 0).unwrap_or(0);
    let high = counts.iter().rposition(|&n| n > 0).unwrap_or(0);
    if high <= low {
        return unchanged();
    }
    let scale = 255.0 / (high - low) as f64;
    let offset = -(low as f64) * scale;
    std::array::from_fn(|v| (v as f64 * scale + offset) as u8)
}

/// `ImageOps.equalize` without a mask.
fn equalized(counts: &[u32; 256]) -> [u8; 256] {
    let seen = || counts.iter().filter(|&&n| n > 0);
    let Some(&last) = seen().next_back() else { return unchanged() };
    let sum: u64 = counts.iter().map(|&n| u64::from(n)).sum();
    let step = (sum - u64::from(last)) / 255;
    if seen().count() < 2 || step == 0 {
        return unchanged();
    }
    let mut n = step / 2;
    counts.map(|count| {
        let value = (n / step).min(255) as u8;
        n += u64::from(count);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Levels; 5] = [
        Levels::AutoContrast,
        Levels::Equalize,
        Levels::Invert,
        Levels::Posterize(1),
        Levels::Solarize(10.0),
    ];

    #[test]
    fn only_the_rectangle_counts_and_changes() {
        let rect = Rect { x: 2, y: 1, w: 3, h: 200 };
        for levels in ALL {
            let mut image: Vec<u8> =
                (0..7 * 202 * 3).map(|i| (i * i / 7 % 200 + 20) as u8).collect();
            let before = image.clone();
            apply(&mut image, 7, rect, levels);
            let part = |image: &[u8]| -> Vec<u8> {
                let mut image = image.to_vec();
                rows(&mut image, 7, rect).flat_map(|row| row.to_vec()).collect()
            };
            let mut alone = part(&before);
            apply(&mut alone, 3, Rect::whole(3, 200), levels);
            assert_eq!(part(&image), alone, "{levels:?}");
            assert_ne!(part(&image), part(&before), "{levels:?}");
            for (i, (now, then)) in image.chunks(3).zip(before.chunks(3)).enumerate() {
                let inside = (2..5).contains(&(i % 7)) && (1..201).contains(&(i / 7));
                assert!(inside || now == then, "{levels:?} pixel {i}");
            }
        }
    }

    #[test]
    fn a_single_colour_stays_where_a_histogram_decides() {
        for levels in [Levels::AutoContrast, Levels::Equalize] {
            let mut image = [9, 0, 255].repeat(600);
            apply(&mut image, 30, Rect::whole(30, 20), levels);
            assert_eq!(image, [9, 0, 255].repeat(600), "{levels:?}");
        }
    }
}
