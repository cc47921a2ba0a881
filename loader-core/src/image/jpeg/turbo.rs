//! JPEG by libjpeg-turbo, for its speed and for what it can leave out: columns and rows that nobody
//! looks at, and detail that scaling would average away.

mod ffi;
mod scan;

use self::ffi::Rows;
use super::{Header, huffman};
use crate::image::decode::{room, scaled};
use crate::image::geometry::Rect;

/// libjpeg's state and working memory, made for the first file.
#[derive(Debug, Default)]
pub(in crate::image) struct Scratch(Option<ffi::Decoder>);

/// A file whose header was read.
#[derive(Debug)]
pub(in crate::image) struct File<'a> {
    opened: ffi::Opened<'a>,
    /// The lossless kind is decoded whole or not at all.
    lossless: bool,
}

impl<'a> File<'a> {
    /// `max_bytes` bounds libjpeg's working memory.
    pub(in crate::image) fn open(
        bytes: &'a [u8],
        header: &Header<'_>,
        max_bytes: u64,
        scratch: &'a mut Scratch,
    ) -> Result<Self, String> {
        header.check_components()?;
        let decoder = match &mut scratch.0 {
            Some(decoder) => decoder,
            none => none.insert(ffi::Decoder::new()?),
        };
        let opened = decoder.open(bytes, max_bytes)?;
        Ok(Self { opened, lossless: header.is_lossless() })
    }

    pub(in crate::image) fn size(&self) -> Option<(u32, u32)> {
        let header = self.opened.header();
        Some((header.width, header.height))
    }

    /// What is kept for those who read the scan themselves.
    pub(super) fn huffman(&mut self) -> &mut huffman::Scratch {
        self.opened.huffman()
    }

    /// The scales in eighths that `read` has fast code for.
    pub(in crate::image) fn scales(&self, _: &[u8], _: &Header<'_>) -> &'static [u32] {
        if self.lossless { &[] } else { &[1, 2, 4] }
    }

    /// Decodes at `scale`/8 of the size into the start of `rgb`, at least what is `wanted` of it, and
    /// gives the place of what it made. `spare` is working memory.
    pub(in crate::image) fn read(
        self,
        wanted: Rect,
        scale: u32,
        rgb: &mut Vec<u8>,
        spare: &mut Vec<u8>,
    ) -> Result<Rect, String> {
        let header = *self.opened.header();
        let (width, height) = (scaled(header.width, scale), scaled(header.height, scale));
        let wanted = if self.lossless { Rect::whole(width, height) } else { wanted };
        // Upsampling takes a part of each colour from its neighbours. At a border that it takes for the
        // image's there is none, so what is next to the border is cut off.
        let left = wanted.x.saturating_sub(header.max_h);
        let right = width.min(wanted.x + wanted.w + header.max_h);
        let columns = (right - left < width).then_some((left, right - left));
        let channels = if header.components == 4 { 4 } else { 3 };
        let (mut opened, mut plainly) = (self.opened, self.lossless);
        let made = loop {
            let started = opened.start(scale, channels, columns)?;
            let made = Rect { x: started.x, w: started.width, ..wanted };
            let out =
                room(if channels == 3 { rgb } else { spare }, made.pixels() * channels as usize)?;
            match started.rows(wanted.y, wanted.h, out, plainly)? {
                Rows::Made => break made,
                Rows::Again(again) => (opened, plainly) = (again, true),
            }
        };
        if channels == 4 {
            let cmyk = &spare[..made.pixels() * 4];
            let rgb = room(rgb, made.pixels() * 3)?.as_chunks_mut::<3>().0;
            for (&[c, m, y, k], out) in cmyk.as_chunks::<4>().0.iter().zip(rgb) {
                *out = [c, m, y].map(|ink| inverted(ink, k));
            }
        }
        Ok(made)
    }
}

/// Pillow's conversion of an ink and black, both stored inverted, as Adobe does.
fn inverted(ink: u8, black: u8) -> u8 {
    let product = u32::from(255 - ink) * u32::from(black) + 128;
    black.saturating_sub((((product >> 8) + product) >> 8) as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::image::jpeg::stored_files;

    /// All JPEG files that can be decoded, by name.
    fn files() -> Vec<(String, Vec<u8>)> {
        let mut files = stored_files();
        files.retain(|(name, _)| !name.starts_with("bad_"));
        assert!(files.len() > 70, "{}", files.len());
        files
    }

    fn read(
        scratch: &mut Scratch,
        bytes: &[u8],
        wanted: Option<Rect>,
        scale: u32,
    ) -> Result<(Rect, Vec<u8>), String> {
        let file = File::open(bytes, &Header::of(bytes), 1 << 30, scratch)?;
        let (w, h) = file.size().unwrap();
        let wanted = wanted.unwrap_or(Rect::whole(scaled(w, scale), scaled(h, scale)));
        let (mut rgb, mut spare) = (Vec::new(), Vec::new());
        let made = file.read(wanted, scale, &mut rgb, &mut spare)?;
        rgb.truncate(made.pixels() * 3);
        Ok((made, rgb))
    }

    fn rows(image: &(Rect, Vec<u8>), part: Rect) -> impl Iterator<Item = &[u8]> {
        let (made, rgb) = image;
        let at = part.seen_from(*made);
        (at.y..at.y + at.h).map(move |y| {
            &rgb[(y as usize * made.w as usize + at.x as usize) * 3..][..at.w as usize * 3]
        })
    }

    /// Every rectangle of a set that is dense where it matters: sides of one block or two, and odd ones.
    #[test]
    fn a_part_of_any_file_is_that_part_of_the_whole() {
        let mut scratch = Scratch::default();
        for (name, bytes) in files() {
            for scale in if name == "lossless" { &[8][..] } else { &[8, 4, 2, 1] } {
                let whole = read(&mut Scratch::default(), &bytes, None, *scale).unwrap();
                let (w, h) = (whole.0.w, whole.0.h);
                let places = |side: u32| {
                    [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 40, 64, 65, 95, 130, side - 1]
                        .into_iter()
                        .filter(move |&at| at < side)
                };
                for x in places(w) {
                    for y in places(h) {
                        for (cw, ch) in [(1, 1), (2, 17), (15, 2), (16, 16), (40, 33), (w, h)] {
                            let part = Rect { x, y, w: cw.min(w - x), h: ch.min(h - y) };
                            let made = read(&mut scratch, &bytes, Some(part), *scale).unwrap();
                            assert!(
                                rows(&made, part).eq(rows(&whole, part)),
                                "{name} at {scale}/8: {part:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Neither whole files nor damaged ones leave anything behind that the next one shows.
        #[test]
        fn a_file_looks_the_same_whatever_was_decoded_before(
            before in any::<prop::sample::Index>(),
            file in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..6),
            scale in prop::sample::select(vec![1, 2, 4, 8]),
            x in 0u32..160, y in 0u32..140, w in 1u32..100, h in 1u32..100,
        ) {
            thread_local! {
                static FILES: Vec<(String, Vec<u8>)> = files();
            }
            let pick = |index: prop::sample::Index| FILES.with(|files| index.get(files).clone());
            let (name, mut damaged) = pick(file);
            damaged.truncate(2 + cut.index(damaged.len() * 2));
            for (at, bit) in flips {
                let at = at.index(damaged.len());
                damaged[at] ^= 1 << bit;
            }
            // Of the size that a damaged header tells, unless it is a huge one.
            let part = Header::of(&damaged).size().map(|(fw, fh)| {
                let (fw, fh) = (scaled(fw, scale), scaled(fh, scale));
                let (x, y) = (x % fw, y % fh);
                Rect { x, y, w: w.min(fw - x), h: h.min(fh - y) }
            });
            let decode = |scratch: &mut Scratch| match part {
                Some(part) => {
                    let made = read(scratch, &damaged, Some(part), scale)?;
                    Ok(rows(&made, part).flatten().copied().collect::<Vec<u8>>())
                }
                None => read(scratch, &damaged, None, scale).map(|(_, rgb)| rgb),
            };
            let mut used = Scratch::default();
            let _ = read(&mut used, &pick(before).1, None, 8);
            let fresh = decode(&mut Scratch::default());
            prop_assert!(fresh == decode(&mut used), "{}", name);
            prop_assert!(fresh == decode(&mut used), "{} again", name);
        }
    }

    #[test]
    fn working_memory_has_the_limit_of_the_options() {
        let (_, bytes) = files().into_iter().find(|(n, _)| n == "texture_420_progressive").unwrap();
        let mut scratch = Scratch::default();
        let mut decode = |limit| {
            let file = File::open(&bytes, &Header::of(&bytes), limit, &mut scratch)?;
            file.read(Rect::whole(163, 141), 8, &mut Vec::new(), &mut Vec::new())
        };
        // 163 x 141 coefficients of two bytes for brightness, half as many for colour.
        let message = decode(60_000).unwrap_err();
        assert!(message.contains("DecodeOptions::max_bytes"), "{message}");
        assert!(decode(100).unwrap_err().contains("DecodeOptions::max_bytes"));
        assert!(decode(200_000).is_ok());
    }
}
