//! Files at an eighth of their size, faster than entropy decoding takes.
//!
//! Of each block of 8x8 samples that needs the average only, the first coefficient of 64. The others have
//! to be stepped over, but nobody asks for their values. Colour that is
//! stored at half the resolution keeps it: its blocks give two averages a direction, from the first
//! coefficients.
//!
//! This is for the files that cameras write: baseline, one scan, grey or YCbCr. All others, and damaged
//! ones, are left to the decoder.

use super::huffman::{Ac, Bits, Definition, Scratch};
use super::{Header, Segment, segments};
use crate::image::decode::{room, scaled};
use crate::image::geometry::Rect;

/// The coefficients in zigzag order of which half-resolution colour is made.
const RIGHT: usize = 1;
const DOWN: usize = 2;
const BOTH: usize = 4;

/// Reads a block's slopes to the right, down and both, and steps over the rest.
#[inline(always)]
fn slopes(bits: &mut Bits<'_>, ac: &Ac, factors: &[i32; 5]) -> Option<[i32; 3]> {
    let mut first = [0i32; 5];
    let mut at = 1;
    while at <= BOTH {
        let (symbol, value) = bits.symbol(ac.codes())?;
        let (run, size) = (usize::from(symbol >> 4), symbol & 15);
        if size == 0 && run != 15 {
            at = 64;
            break;
        }
        at += run;
        if let (Some(slot), Some(factor)) = (first.get_mut(at), factors.get(at)) {
            *slot = value.wrapping_mul(*factor);
        }
        at += 1;
    }
    bits.skip(ac, at)?;
    // The mean of cos((2x + 1) pi / 16) for x in 0..4, times the square root of two, in 16 bits; and
    // that squared: so much of a slope is in the mean of each half, in units of an average.
    let part = |slope: i32, share: i64| ((i64::from(slope) * share) >> 16) as i32;
    Some([part(first[RIGHT], 59_384), part(first[DOWN], 59_384), part(first[BOTH], 53_810)])
}

/// A component of the image.
struct Component {
    id: u8,
    /// Blocks of a unit, and samples that each of them gives: their products are the same for all.
    blocks: (usize, usize),
    samples: (usize, usize),
    /// Quantisation of the coefficients that are used, by the table's number until it is known.
    quantisation: u8,
    dc: usize,
    ac: usize,
    last: i32,
}

/// What a file's headers say, where it is of the kind that is read here.
struct Scan<'a> {
    components: Vec<Component>,
    /// The first five values in zigzag order.
    quantisation: [Option<[i32; 5]>; 4],
    dc: [Option<Definition>; 4],
    ac: [Option<Definition>; 4],
    restart: usize,
    size: (u32, u32),
    bytes: &'a [u8],
}

impl<'a> Scan<'a> {
    fn of(bytes: &'a [u8], header: &Header<'_>) -> Option<Self> {
        let frame = header.frame?;
        (matches!(frame.kind, 0xc0 | 0xc1) && matches!(frame.components, 1 | 3)).then_some(())?;
        let size = header.size()?;
        let mut scan = Self {
            components: Vec::new(),
            quantisation: [None; 4],
            dc: [const { None }; 4],
            ac: [const { None }; 4],
            restart: 0,
            size,
            bytes: &[],
        };
        let (mut jfif, mut adobe) = (false, None);
        for Segment { marker, at, content } in segments(bytes) {
            match marker {
                0xe0 => jfif |= content.starts_with(b"JFIF\0"),
                0xee if content.starts_with(b"Adobe") => adobe = Some(*content.get(11)?),
                0xdb => scan.quantisation(content)?,
                0xc4 => scan.huffman(content)?,
                0xdd => {
                    scan.restart = usize::from(u16::from_be_bytes(*content.first_chunk()?));
                }
                0xc0 | 0xc1 => scan.frame(content)?,
                0xda => {
                    scan.start(content)?;
                    scan.bytes = bytes.get(at + 4 + content.len()..)?;
                }
                _ => {}
            }
        }
        // libjpeg's rule for what three components are.
        let ids: Vec<u8> = scan.components.iter().map(|c| c.id).collect();
        let ycc = jfif || adobe == Some(1) || (adobe.is_none() && ids != b"RGB");
        (!scan.bytes.is_empty() && (ids.len() == 1 || ycc)).then_some(scan)
    }

    fn quantisation(&mut self, mut content: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = content {
            let wide = kind >> 4 != 0;
            let value = |i: usize| {
                Some(if wide {
                    i32::from(u16::from_be_bytes([*rest.get(2 * i)?, *rest.get(2 * i + 1)?]))
                } else {
                    i32::from(*rest.get(i)?)
                })
            };
            let first = [value(0)?, value(1)?, value(2)?, value(3)?, value(4)?];
            *self.quantisation.get_mut(usize::from(kind & 15))? = Some(first);
            content = rest.get(if wide { 128 } else { 64 }..)?;
        }
        Some(())
    }

    fn huffman(&mut self, mut content: &[u8]) -> Option<()> {
        while let [kind, rest @ ..] = content {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let len = counts.iter().map(|&n| usize::from(n)).sum();
            let (symbols, rest) = rest.split_at_checked(len)?;
            let mut table = Definition { counts: *counts, ..Definition::EMPTY };
            table.symbols.get_mut(..len)?.copy_from_slice(symbols);
            let number = usize::from(kind & 15);
            match kind >> 4 {
                0 => *self.dc.get_mut(number)? = Some(table),
                _ => *self.ac.get_mut(number)? = Some(table),
            }
            content = rest;
        }
        Some(())
    }

    fn frame(&mut self, content: &[u8]) -> Option<()> {
        let (components, _) = content.get(6..)?.as_chunks::<3>();
        let (h, v) = components.first().map(|c| (c[1] >> 4, c[1] & 15))?;
        for &[id, factors, quantisation] in components {
            let (ch, cv) = (factors >> 4, factors & 15);
            let ratio = |first: u8, own: u8| match own {
                0 => None,
                _ if first == own => Some(1),
                _ if first == 2 * own => Some(2),
                _ => None,
            };
            let samples = (ratio(h, ch)?, ratio(v, cv)?);
            // The factors of a single component mean nothing.
            let alone = components.len() == 1;
            let blocks = if alone { (1, 1) } else { (usize::from(ch), usize::from(cv)) };
            let (dc, ac, last) = (0, 0, 0);
            self.components.push(Component { id, blocks, samples, quantisation, dc, ac, last });
        }
        Some(())
    }

    fn start(&mut self, content: &[u8]) -> Option<()> {
        let (count, rest) = content.split_first()?;
        (usize::from(*count) == self.components.len()).then_some(())?;
        let (tables, rest) = rest.split_at_checked(2 * self.components.len())?;
        for (component, [id, tables]) in self.components.iter_mut().zip(tables.as_chunks::<2>().0) {
            (component.id == *id).then_some(())?;
            component.dc = usize::from(tables >> 4);
            component.ac = usize::from(tables & 15);
        }
        (rest == [0, 63, 0]).then_some(())
    }
}

/// Makes at least what is `wanted` of the file at an eighth of its size in the start of `rgb`, and gives
/// the place of what it made; `None` where the decoder has to do that.
pub(super) fn read(
    bytes: &[u8],
    header: &Header<'_>,
    wanted: Rect,
    rgb: &mut Vec<u8>,
    spare: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Option<Rect> {
    let Scan { mut components, quantisation, dc, ac, restart, size, bytes } =
        Scan::of(bytes, header)?;
    let first = components.first()?;
    // Samples of a unit in the result.
    let (unit_w, unit_h) = first.blocks;
    let width = scaled(size.0, 1) as usize;
    let units = width.div_ceil(unit_w);
    let stride = units * unit_w;
    let made = Rect { x: 0, w: width as u32, ..wanted };
    let out = room(rgb, made.pixels() * 3).ok()?;
    let end = (wanted.y + wanted.h) as usize;

    let (tables, chunk) = scratch.parts();
    for component in &components {
        tables.define_dc(component.dc, dc.get(component.dc)?.as_ref()?)?;
        tables.define_ac(component.ac, ac.get(component.ac)?.as_ref()?)?;
    }
    let mut bits = Bits::of(bytes, 0, chunk);
    let mut done = 0;
    let rows = room(spare, stride * unit_h * components.len()).ok()?;
    for row in 0..end.div_ceil(unit_h) {
        for unit in 0..units {
            if restart != 0 && done != 0 && done % restart == 0 {
                bits.restart((done / restart - 1) as u8)?;
                components.iter_mut().for_each(|c| c.last = 0);
            }
            done += 1;
            bits.start_unit();
            for (component, rows) in
                components.iter_mut().zip(rows.chunks_exact_mut(stride * unit_h))
            {
                let factors = quantisation.get(usize::from(component.quantisation))?.as_ref()?;
                let (dc, ac) = (tables.dc(component.dc)?, tables.ac(component.ac)?);
                for y in 0..component.blocks.1 {
                    for x in 0..component.blocks.0 {
                        let (size, difference) = bits.symbol(dc)?;
                        (size < 16).then_some(())?;
                        component.last = component.last.wrapping_add(difference);
                        let average = component.last.wrapping_mul(factors[0]);
                        let at = y * component.samples.1 * stride
                            + unit * unit_w
                            + x * component.samples.0;
                        if component.samples == (1, 1) {
                            bits.skip(ac, 1)?;
                            rows[at] = sample(average);
                        } else {
                            let slopes = slopes(&mut bits, ac, factors)?;
                            half(average, slopes, component.samples, &mut rows[at..], stride);
                        }
                    }
                }
            }
        }
        bits.enough().then_some(())?;
        for y in 0..unit_h {
            let Some(at) = (row * unit_h + y).checked_sub(wanted.y as usize) else { continue };
            if at >= wanted.h as usize {
                break;
            }
            let out = out[at * width * 3..][..width * 3].as_chunks_mut::<3>().0;
            let line = |component: usize| &rows[(component * unit_h + y) * stride..][..width];
            if components.len() == 1 {
                out.iter_mut().zip(line(0)).for_each(|(out, &gray)| *out = [gray; 3]);
            } else {
                let colors = line(0).iter().zip(line(1)).zip(line(2));
                out.iter_mut().zip(colors).for_each(|(out, ((&y, &b), &r))| *out = color(y, b, r));
            }
        }
    }
    Some(made)
}

/// True where the headers are of the kind that is read here.
#[cfg(not(feature = "libjpeg-turbo"))]
pub(super) fn reads(bytes: &[u8], header: &Header<'_>) -> bool {
    Scan::of(bytes, header).is_some()
}

/// The mean of each 8x8 pixels of an image.
#[cfg(any(test, not(feature = "libjpeg-turbo")))]
pub(super) fn averages(rgb: &[u8], image: Rect, out: &mut [u8]) {
    let (w, h) = (image.w as usize, image.h as usize);
    let columns = w.div_ceil(8);
    for (at, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let (x, y) = (at % columns * 8, at / columns * 8);
        let (xs, ys) = (x..w.min(x + 8), y..h.min(y + 8));
        let count = xs.len() * ys.len();
        *out = std::array::from_fn(|channel| {
            let values =
                ys.clone().flat_map(|y| xs.clone().map(move |x| (y * w + x) * 3 + channel));
            let sum: usize = values.map(|at| usize::from(rgb[at])).sum();
            ((sum + count / 2) / count) as u8
        });
    }
}

/// A sample from its block's first coefficient, or a sum that stands for it.
fn sample(sum: i32) -> u8 {
    ((sum.wrapping_add(4) >> 3).wrapping_add(128)).clamp(0, 255) as u8
}

/// Writes a block of half the resolution: two samples in one direction or both.
fn half(
    average: i32,
    [right, down, both]: [i32; 3],
    samples: (usize, usize),
    out: &mut [u8],
    stride: usize,
) {
    let sum = |parts: [i32; 3]| parts.iter().fold(average, |sum, &part| sum.wrapping_add(part));
    match samples {
        (2, 2) => {
            out[0] = sample(sum([right, down, both]));
            out[1] = sample(sum([-right, down, -both]));
            out[stride] = sample(sum([right, -down, -both]));
            out[stride + 1] = sample(sum([-right, -down, both]));
        }
        (2, _) => {
            out[0] = sample(sum([right, 0, 0]));
            out[1] = sample(sum([-right, 0, 0]));
        }
        _ => {
            out[0] = sample(sum([down, 0, 0]));
            out[stride] = sample(sum([-down, 0, 0]));
        }
    }
}

/// YCbCr to RGB (ITU-R BT.601, full range) in 16 bits of fraction.
#[inline]
fn color(y: u8, b: u8, r: u8) -> [u8; 3] {
    let (y, b, r) = ((i32::from(y) << 16) + (1 << 15), i32::from(b) - 128, i32::from(r) - 128);
    [y + 91_881 * r, y - 22_554 * b - 46_802 * r, y + 116_130 * b]
        .map(|v| (v >> 16).clamp(0, 255) as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::jpeg::{File, Scratch, huffman, stored_files};

    fn whole(bytes: &[u8]) -> Option<Rect> {
        let (w, h) = Header::of(bytes).size()?;
        Some(Rect::whole(scaled(w, 1), scaled(h, 1)))
    }

    fn eighth(bytes: &[u8], wanted: Rect, old: u8) -> Option<(Rect, Vec<u8>)> {
        let (mut rgb, mut spare) = (vec![old; 1 << 12], vec![old; 1 << 12]);
        let mut huffman = huffman::Scratch::default();
        let made = read(bytes, &Header::of(bytes), wanted, &mut rgb, &mut spare, &mut huffman)?;
        rgb.truncate(made.pixels() * 3);
        Some((made, rgb))
    }

    /// The mean of each 8x8 pixels that the decoder makes.
    fn means(bytes: &[u8]) -> Vec<u8> {
        let mut scratch = Scratch::default();
        let file = File::open(bytes, &Header::of(bytes), 1 << 30, &mut scratch).unwrap();
        let (w, h) = file.size().unwrap();
        let mut rgb = Vec::new();
        let made = file.read(Rect::whole(w, h), 8, &mut rgb, &mut Vec::new()).unwrap();
        let mut out = vec![0; whole(bytes).unwrap().pixels() * 3];
        averages(&rgb, made, &mut out);
        out
    }

    /// Blocks that reach over the border have content there that the mean does not see, so they are
    /// left out.
    fn inner(made: Rect, rgb: &[u8]) -> impl Iterator<Item = u8> {
        let w = made.w as usize;
        let rows = rgb.chunks(w * 3).take(made.h as usize - 1);
        rows.flat_map(move |row| row[..(w - 1) * 3].iter().copied())
    }

    #[test]
    fn each_pixel_is_the_mean_of_its_block() {
        for name in [
            "gray",
            "gray_2x2",
            "smooth_444",
            "smooth_420",
            "smooth_422",
            "smooth_440",
            "ycc_adobe",
            "ycc_without_markers",
            "ycc_ids_from_0",
            "comments",
            "thumbnail",
            "fill_bytes",
            "garbage_between_segments",
            "exif_uncalibrated",
        ] {
            let bytes = stored_files().into_iter().find(|f| f.0 == name).unwrap().1;
            let (made, rgb) = eighth(&bytes, whole(&bytes).unwrap(), 0).expect(name);
            let expected = means(&bytes);
            for (got, mean) in inner(made, &rgb).zip(inner(made, &expected)) {
                assert!(got.abs_diff(mean) <= 3, "{name}: {got}, the mean is {mean}");
            }
        }
    }

    /// Where colour has the full resolution, libjpeg does the same arithmetic.
    #[cfg(feature = "libjpeg-turbo")]
    #[test]
    fn each_pixel_is_libjpegs_at_an_eighth() {
        let mut compared = 0;
        for (name, bytes) in stored_files() {
            let Some((made, rgb)) = whole(&bytes).and_then(|all| eighth(&bytes, all, 0)) else {
                continue;
            };
            if !["gray", "gray_2x2", "smooth_444", "texture_444", "wide_quantisation"]
                .contains(&name.as_str())
            {
                continue;
            }
            let mut scratch = Scratch::default();
            let file = File::open(&bytes, &Header::of(&bytes), 1 << 30, &mut scratch).unwrap();
            let mut expected = Vec::new();
            file.read(made, 1, &mut expected, &mut Vec::new()).unwrap();
            let worst = rgb.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            assert_eq!(worst, 0, "{name}");
            compared += 1;
        }
        assert!(compared >= 5, "{compared}");
    }

    #[test]
    fn rows_are_the_same_whichever_are_wanted() {
        for (name, bytes) in stored_files() {
            let Some((made, all)) = whole(&bytes).and_then(|all| eighth(&bytes, all, 0)) else {
                continue;
            };
            for y in 0..made.h {
                for h in 1..=made.h - y {
                    let wanted = Rect { x: 3.min(made.w - 1), y, w: 1, h };
                    let (part, rgb) = eighth(&bytes, wanted, 0x55).expect(&name);
                    assert_eq!(part, Rect { y, h, ..made }, "{name}");
                    let row = made.w as usize * 3;
                    assert_eq!(rgb, all[y as usize * row..][..h as usize * row], "{name}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn damage_never_panics_and_never_shows_what_a_buffer_held_before(
            file in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..8),
        ) {
            thread_local! {
                static FILES: Vec<(String, Vec<u8>)> = stored_files();
            }
            let (name, mut bytes) = FILES.with(|files| file.get(files).clone());
            bytes.truncate(2 + cut.index(bytes.len() * 3));
            for (at, bit) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if let Some(all) = whole(&bytes) && all.pixels() < 1 << 20 {
                prop_assert!(eighth(&bytes, all, 0x55) == eighth(&bytes, all, 0xaa), "{}", name);
            }
        }
    }
}
