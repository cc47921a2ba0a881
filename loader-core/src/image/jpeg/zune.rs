//! JPEG by zune-jpeg, which is written in Rust and needs no C compiler.
//!
//! It decodes whole images only. Of the kinds that it does not know, some come out in wrong colours, so
//! those are refused here.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Header, eighth, huffman, segments};
use crate::image::decode::{room, scaled};
use crate::image::geometry::Rect;

/// The decoder keeps nothing; this is for files at an eighth of their size.
#[derive(Debug, Default)]
pub(in crate::image) struct Scratch(huffman::Scratch);

/// A file whose header was read.
pub(in crate::image) struct File<'a>(Box<JpegDecoder<ZCursor<&'a [u8]>>>, &'a mut Scratch);

impl<'a> File<'a> {
    pub(in crate::image) fn open(
        bytes: &'a [u8],
        header: &Header<'_>,
        _max_bytes: u64,
        scratch: &'a mut Scratch,
    ) -> Result<Self, String> {
        header.check_components()?;
        if let Some(what) = unknown(bytes, header) {
            return Err(format!("{what} needs libjpeg-turbo, the feature of that name"));
        }
        let options = DecoderOptions::default()
            .set_strict_mode(false)
            .set_max_width(usize::MAX)
            .set_max_height(usize::MAX)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(|e| e.to_string())?;
        Ok(Self(Box::new(decoder), scratch))
    }

    pub(in crate::image) fn size(&self) -> Option<(u32, u32)> {
        self.0.dimensions().map(|(w, h)| (w as u32, h as u32))
    }

    /// What is kept for those who read the scan themselves.
    pub(super) fn huffman(&mut self) -> &mut huffman::Scratch {
        &mut self.1.0
    }

    /// The scales in eighths that there is fast code for.
    pub(in crate::image) fn scales(&self, bytes: &[u8], header: &Header<'_>) -> &'static [u32] {
        if eighth::reads(bytes, header) { &[1] } else { &[] }
    }

    /// Decodes into the start of `rgb`, whatever is wanted of it, and gives the place of what it made.
    /// A scale of 1 is for files that turn out to be damaged, and takes its time.
    pub(in crate::image) fn read(
        mut self,
        _wanted: Rect,
        scale: u32,
        rgb: &mut Vec<u8>,
        spare: &mut Vec<u8>,
    ) -> Result<Rect, String> {
        let (w, h) = self.size().ok_or("the header has no size")?;
        let whole = Rect::whole(w, h);
        let out = room(rgb, whole.pixels() * 3)?;
        if self.0.output_buffer_size() != Some(out.len()) {
            return Err("its components can't be converted to RGB".into());
        }
        self.0.decode_into(out).map_err(|e| e.to_string())?;
        if scale != 1 {
            return Ok(whole);
        }
        let made = Rect::whole(scaled(w, 1), scaled(h, 1));
        eighth::averages(out, whole, room(spare, made.pixels() * 3)?);
        std::mem::swap(rgb, spare);
        Ok(made)
    }
}

/// The first thing of a file that zune-jpeg 0.5 does not know or gets wrong.
fn unknown(bytes: &[u8], header: &Header<'_>) -> Option<&'static str> {
    let frame = header.frame?;
    match frame.kind {
        0xc0..=0xc2 => {}
        _ if header.is_lossless() => return Some("lossless coding"),
        0xc9 | 0xca => return Some("arithmetic coding"),
        _ => return Some("hierarchical coding or lossless arithmetic coding"),
    }
    let (mut jfif, mut adobe, mut subsampled) = (false, None, false);
    for segment in segments(bytes) {
        match (segment.marker, segment.content) {
            (0xe0, [b'J', b'F', b'I', b'F', 0, ..]) => jfif = true,
            (0xee, [b'A', b'd', b'o', b'b', b'e', .., transform])
                if segment.content.len() == 12 =>
            {
                adobe = Some(*transform);
            }
            (0xc0..=0xc2, [_, _, _, _, _, _, components @ ..]) => {
                let factors: Vec<_> = components
                    .as_chunks::<3>()
                    .0
                    .iter()
                    .map(|[_, factors, _]| (factors >> 4, factors & 15))
                    .collect();
                let first = factors.first().copied().unwrap_or_default();
                subsampled = factors.iter().any(|&f| f != (1, 1));
                if factors.len() > 1 && factors.iter().any(|&(h, v)| h == 3 || v == 3) {
                    return Some("a sampling factor of 3");
                }
                if factors.iter().any(|&(h, v)| h > first.0 || v > first.1) {
                    return Some("colour of a higher resolution than brightness");
                }
            }
            (0xda, [components, ..])
                if frame.kind != 0xc2 && subsampled && *components < frame.components =>
            {
                return Some("a scan for each component of subsampled colour");
            }
            _ => {}
        }
    }
    (frame.components == 3 && jfif && adobe == Some(0))
        .then_some("a JFIF marker that an Adobe marker contradicts")
}
