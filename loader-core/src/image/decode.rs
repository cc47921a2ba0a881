//! From a file's bytes to interleaved 8-bit RGB: what Pillow's `convert("RGB")` gives.
//!
//! The content decides the format. Limits are checked against the header before anything is
//! allocated for pixels.

use std::fmt::Display;
use std::io::Cursor;

use super::geometry::Rect;
use super::jpeg;
use crate::dataset::{SampleError, Stage};
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};
use serde::{Deserialize, Serialize};

/// The decoders and their versions. Others may give other pixels, so this is part of a transform's
/// fingerprint.
#[cfg(not(feature = "libjpeg-turbo"))]
pub const DECODER: &str = "zune-jpeg 0.5.15, image 0.25.10";

/// The decoders and their versions. Others may give other pixels, so this is part of a transform's
/// fingerprint.
#[cfg(feature = "libjpeg-turbo")]
pub const DECODER: &str =
    concat!("libjpeg-turbo ", env!("LIBJPEG_TURBO_VERSION"), ", image 0.25.10");

/// What to do with the orientation that a camera stored beside the pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExifOrientation {
    /// Nothing, as torchvision's `ImageFolder` does.
    #[default]
    Ignore,
    /// Turn the image upright, as Pillow's `ImageOps.exif_transpose` does. Malformed EXIF data
    /// counts as none.
    Apply,
}

/// How 16-bit grey becomes 8-bit. (16-bit colour always keeps its high byte, as in Pillow.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gray16 {
    /// Values above 255 become 255, as in Pillow's `convert("RGB")`.
    #[default]
    Clip,
    /// The high byte: scans and depth maps keep their range.
    HighByte,
}

/// Whether a decoder may make an image smaller than it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// No: a resize sees the pixels of the whole image.
    #[default]
    Exact,
    /// JPEG to 1/2, 1/4 or 1/8 in the decoder, where an antialiased resize comes first and its result is
    /// no larger than that in either direction. Several times as fast for photographs of many
    /// megapixels; pixels differ by less than a level on average. Without the feature
    /// `libjpeg-turbo`, to 1/8 and of baseline files only.
    Fast,
}

/// How files are decoded, and what is refused before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeOptions {
    /// Default: ignored.
    pub orientation: ExifOrientation,
    /// Default: clipped.
    pub gray16: Gray16,
    /// Default: exact.
    pub scaling: Scaling,
    /// The most pixels that an image may have, default 178,956,970, where Pillow refuses a
    /// decompression bomb.
    pub max_pixels: u64,
    /// The most bytes that any one step on an image may need for pixels, default 2 GiB.
    pub max_bytes: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            orientation: ExifOrientation::default(),
            gray16: Gray16::default(),
            scaling: Scaling::default(),
            max_pixels: 178_956_970,
            max_bytes: 2 << 30,
        }
    }
}

fn failed(message: impl Display) -> SampleError {
    SampleError::new(Stage::Decode, message)
}

/// The first `len` bytes of a buffer that only grows. Where there is no memory for them (`ulimit -v`) it is
/// one sample that fails, and not the program.
pub(super) fn room(buffer: &mut Vec<u8>, len: usize) -> Result<&mut [u8], String> {
    if buffer.len() < len {
        // The old content is of no use, so it is not worth moving.
        buffer.clear();
        buffer.try_reserve(len).map_err(|_| {
            format!("out of memory: {len} bytes for pixels can't be had. DecodeOptions::max_bytes sets a limit")
        })?;
        buffer.resize(len, 0);
    }
    Ok(&mut buffer[..len])
}

enum Decoder<'a> {
    Jpeg { file: jpeg::File<'a>, bytes: &'a [u8], header: jpeg::Header<'a> },
    Other(Box<dyn ImageDecoder + 'a>),
}

/// A file whose header was read and found acceptable.
pub(super) struct Source<'a> {
    decoder: Decoder<'a>,
    format: ImageFormat,
    stored: (u32, u32),
    orientation: Orientation,
    gray16: Gray16,
    scaling: Scaling,
}

/// The size of a side that is scaled to `scale`/8.
pub(super) fn scaled(side: u32, scale: u32) -> u32 {
    (u64::from(side) * u64::from(scale)).div_ceil(8) as u32
}

impl<'a> Source<'a> {
    pub(super) fn open(
        bytes: &'a [u8],
        options: &DecodeOptions,
        scratch: &'a mut jpeg::Scratch,
    ) -> Result<Self, SampleError> {
        if bytes.is_empty() {
            return Err(failed("the file is empty"));
        }
        let format = image::guess_format(bytes).map_err(|_| match bytes.get(4..8) {
            Some(b"ftyp") => {
                failed("a HEIC or other ISO media file, which is not read: convert it to JPEG")
            }
            _ => {
                let start = bytes[..bytes.len().min(8)].escape_ascii();
                failed(format_args!("no known image format begins with \"{start}\""))
            }
        })?;
        match format {
            ImageFormat::Jpeg => Self::open_jpeg(bytes, options, scratch),
            ImageFormat::Png
            | ImageFormat::Gif
            | ImageFormat::Bmp
            | ImageFormat::Tiff
            | ImageFormat::WebP
            | ImageFormat::Pnm => Self::open_other(bytes, format, options),
            other => Err(failed(format_args!("{other:?} images are not supported"))),
        }
    }

    fn open_jpeg(
        bytes: &'a [u8],
        options: &DecodeOptions,
        scratch: &'a mut jpeg::Scratch,
    ) -> Result<Self, SampleError> {
        let wrong = |e: String| failed(format_args!("JPEG: {e}"));
        let header = jpeg::Header::of(bytes);
        let native = header.bytes_per_pixel();
        // Before the decoder sees the file, and again as it understands it.
        header.size().map_or(Ok(()), |size| check_limits(size, native, options))?;
        let file = jpeg::File::open(bytes, &header, options.max_bytes, scratch).map_err(wrong)?;
        let stored = file.size().ok_or_else(|| failed("JPEG: the header has no size"))?;
        check_limits(stored, native, options)?;
        if !header.complete {
            return Err(failed("JPEG: the file is truncated: it has no end-of-image marker"));
        }
        let orientation = match options.orientation {
            ExifOrientation::Ignore => None,
            ExifOrientation::Apply => header.exif.and_then(Orientation::from_exif_chunk),
        };
        let decoder = Decoder::Jpeg { file, bytes, header };
        Ok(Self {
            decoder,
            format: ImageFormat::Jpeg,
            stored,
            orientation: orientation.unwrap_or(Orientation::NoTransforms),
            gray16: options.gray16,
            scaling: options.scaling,
        })
    }

    fn open_other(
        bytes: &'a [u8],
        format: ImageFormat,
        options: &DecodeOptions,
    ) -> Result<Self, SampleError> {
        let wrong = |e| failed(format_args!("{format:?}: {e}"));
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(allowance(bytes, format).min(options.max_bytes));
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(wrong)?;
        let stored = decoder.dimensions();
        let native = u64::from(decoder.color_type().bytes_per_pixel());
        check_limits(stored, native + 3, options)?;
        let orientation = match options.orientation {
            ExifOrientation::Ignore => Orientation::NoTransforms,
            ExifOrientation::Apply => decoder.orientation().unwrap_or(Orientation::NoTransforms),
        };
        let decoder = Decoder::Other(Box::new(decoder));
        let DecodeOptions { gray16, scaling, .. } = *options;
        Ok(Self { decoder, format, stored, orientation, gray16, scaling })
    }

    /// Width and height of the whole image.
    pub(super) fn size(&self) -> (u32, u32) {
        let (w, h) = self.stored;
        if turns(self.orientation) { (h, w) } else { (w, h) }
    }

    /// The scales in eighths, in rising order, that `read` may be asked for beside 8.
    pub(super) fn scales(&self) -> &'static [u32] {
        match &self.decoder {
            Decoder::Jpeg { file, bytes, header } if self.scaling == Scaling::Fast => {
                file.scales(bytes, header)
            }
            _ => &[],
        }
    }

    /// Decodes into the start of `rgb`; `spare` is working memory.
    ///
    /// The image is scaled to `scale`/8, which is 8 or one of [`scales`](Self::scales). Of the result,
    /// at least `wanted` is made; what is made is returned.
    pub(super) fn read(
        self,
        wanted: Rect,
        scale: u32,
        rgb: &mut Vec<u8>,
        spare: &mut Vec<u8>,
    ) -> Result<Rect, SampleError> {
        let whole = Rect::whole(scaled(self.stored.0, scale), scaled(self.stored.1, scale));
        let made = match self.decoder {
            Decoder::Jpeg { mut file, bytes, header } => {
                let upright =
                    if turns(self.orientation) { (whole.h, whole.w) } else { (whole.w, whole.h) };
                let wanted = turned(wanted, upright, self.orientation);
                let eighth = match scale {
                    1 => file.read_eighth(bytes, &header, wanted, rgb, spare),
                    _ => None,
                };
                match eighth {
                    Some(made) => made,
                    None => file
                        .read(wanted, scale, rgb, spare)
                        .map_err(|e| failed(format_args!("JPEG: {e}")))?,
                }
            }
            Decoder::Other(decoder) => {
                let format = self.format;
                let wrong = |e| failed(format_args!("{format:?}: {e}"));
                let color = decoder.color_type();
                let out = room(rgb, whole.pixels() * 3).map_err(failed)?;
                // Some decoders leave out what a damaged file does not have.
                if color == ColorType::Rgb8 {
                    out.fill(0);
                    decoder.read_image_boxed(out).map_err(wrong)?;
                } else {
                    let bytes = whole.pixels() * usize::from(color.bytes_per_pixel());
                    let native = room(spare, bytes).map_err(failed)?;
                    native.fill(0);
                    decoder.read_image_boxed(native).map_err(wrong)?;
                    convert(native, color, format, self.gray16, out)?;
                }
                whole
            }
        };
        if self.orientation == Orientation::NoTransforms {
            return Ok(made);
        }
        let len = made.pixels() * 3;
        let upright = room(spare, len).map_err(failed)?;
        orient(&rgb[..len], (made.w, made.h), self.orientation, upright);
        std::mem::swap(rgb, spare);
        Ok(turned(made, (whole.w, whole.h), inverse(self.orientation)))
    }
}

/// Bytes that a decoder may take beside the pixels. For PNG that is some rows, of 8 bytes a pixel at most, and
/// metadata: compressed, so that a small file can hold gigabytes of it.
fn allowance(bytes: &[u8], format: ImageFormat) -> u64 {
    // The signature, and the length and name of the first chunk, which begins with the width.
    match bytes.get(16..20) {
        Some(&[a, b, c, d]) if format == ImageFormat::Png => {
            (16 << 20) + 64 * u64::from(u32::from_be_bytes([a, b, c, d]))
        }
        _ => u64::MAX,
    }
}

fn check_limits(
    (w, h): (u32, u32),
    bytes_per_pixel: u64,
    options: &DecodeOptions,
) -> Result<(), SampleError> {
    if w == 0 || h == 0 {
        return Err(failed(format_args!("the image is {w}x{h} pixels")));
    }
    let pixels = u64::from(w) * u64::from(h);
    if pixels > options.max_pixels {
        return Err(failed(format_args!(
            "{w}x{h} are {pixels} pixels, more than the limit of {} (DecodeOptions::max_pixels)",
            options.max_pixels
        )));
    }
    let bytes = pixels.saturating_mul(bytes_per_pixel);
    if bytes > options.max_bytes {
        return Err(failed(format_args!(
            "{w}x{h} take {bytes} bytes to decode, more than the limit of {} \
             (DecodeOptions::max_bytes)",
            options.max_bytes
        )));
    }
    Ok(())
}

/// Converts what a decoder gave to RGB: grey is repeated, alpha is dropped.
fn convert(
    native: &[u8],
    color: ColorType,
    format: ImageFormat,
    gray16: Gray16,
    out: &mut [u8],
) -> Result<(), SampleError> {
    fn each<const N: usize>(native: &[u8], out: &mut [u8], f: impl Fn(&[u8; N]) -> [u8; 3]) {
        for (pixel, out) in native.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<3>().0) {
            *out = f(pixel);
        }
    }
    let wide = |low: u8, high: u8| u16::from_ne_bytes([low, high]);
    let high = |a: u8, b: u8| (wide(a, b) >> 8) as u8;
    // Pillow rescales 16-bit PPM colour; elsewhere it keeps the high byte.
    let narrow = move |a: u8, b: u8| match format {
        ImageFormat::Pnm => ((u32::from(wide(a, b)) * 255 + 32767) / 65535) as u8,
        _ => high(a, b),
    };
    let gray = |a: u8, b: u8| match gray16 {
        Gray16::Clip => wide(a, b).min(255) as u8,
        Gray16::HighByte => high(a, b),
    };
    match color {
        ColorType::L8 => each(native, out, |&[v]| [v; 3]),
        ColorType::La8 => each(native, out, |&[v, _]| [v; 3]),
        ColorType::Rgba8 => each(native, out, |&[r, g, b, _]| [r, g, b]),
        ColorType::L16 => each(native, out, |&[a, b]| [gray(a, b); 3]),
        ColorType::La16 => each(native, out, |&[a, b, _, _]| [narrow(a, b); 3]),
        ColorType::Rgb16 => {
            each(native, out, |&[a, b, c, d, e, f]| [narrow(a, b), narrow(c, d), narrow(e, f)])
        }
        ColorType::Rgba16 => each(native, out, |&[a, b, c, d, e, f, _, _]| {
            [narrow(a, b), narrow(c, d), narrow(e, f)]
        }),
        other => {
            return Err(failed(format_args!(
                "{format:?}: pixels of type {other:?} are not supported"
            )));
        }
    }
    Ok(())
}

/// True where the orientation swaps width and height.
fn turns(orientation: Orientation) -> bool {
    use Orientation::*;
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

/// The orientation that takes an image back.
fn inverse(orientation: Orientation) -> Orientation {
    match orientation {
        Orientation::Rotate90 => Orientation::Rotate270,
        Orientation::Rotate270 => Orientation::Rotate90,
        other => other,
    }
}

/// Where in a `w` x `h` image a pixel of the upright image comes from.
fn origin(x: u32, y: u32, (w, h): (u32, u32), orientation: Orientation) -> (u32, u32) {
    match orientation {
        Orientation::NoTransforms => (x, y),
        Orientation::FlipHorizontal => (w - 1 - x, y),
        Orientation::Rotate180 => (w - 1 - x, h - 1 - y),
        Orientation::FlipVertical => (x, h - 1 - y),
        Orientation::Rotate90FlipH => (y, x),
        Orientation::Rotate90 => (y, h - 1 - x),
        Orientation::Rotate270FlipH => (w - 1 - y, h - 1 - x),
        Orientation::Rotate270 => (w - 1 - y, x),
    }
}

/// Where a rectangle of the upright image, which has that size, comes from.
fn turned(rect: Rect, upright: (u32, u32), orientation: Orientation) -> Rect {
    let size = if turns(orientation) { (upright.1, upright.0) } else { upright };
    let (x0, y0) = origin(rect.x, rect.y, size, orientation);
    let (x1, y1) = origin(rect.x + rect.w - 1, rect.y + rect.h - 1, size, orientation);
    Rect { x: x0.min(x1), y: y0.min(y1), w: x0.abs_diff(x1) + 1, h: y0.abs_diff(y1) + 1 }
}

/// Turns the `w` x `h` image `src` upright.
fn orient(src: &[u8], (w, h): (u32, u32), orientation: Orientation, out: &mut [u8]) {
    let (out_w, out_h) = if turns(orientation) { (h, w) } else { (w, h) };
    let src = src.as_chunks::<3>().0;
    let mut out = out.as_chunks_mut::<3>().0.iter_mut();
    for y in 0..out_h {
        for (x, out) in (0..out_w).zip(&mut out) {
            let (from_x, from_y) = origin(x, y, (w, h), orientation);
            *out = src[from_y as usize * w as usize + from_x as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pixels_beyond_all_memory_are_an_error() {
        let mut buffer = vec![7; 10];
        let error = room(&mut buffer, 1 << 60).unwrap_err();
        assert!(error.contains("out of memory: 1152921504606846976 bytes"), "{error}");
        assert_eq!(room(&mut buffer, 20).unwrap(), [0; 20]);
    }

    fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<(u32, u32, Vec<u8>), SampleError> {
        let mut scratch = jpeg::Scratch::default();
        let source = Source::open(bytes, options, &mut scratch)?;
        let (w, h) = source.size();
        let (mut rgb, mut spare) = (Vec::new(), Vec::new());
        source.read(Rect::whole(w, h), 8, &mut rgb, &mut spare)?;
        rgb.truncate(w as usize * h as usize * 3);
        Ok((w, h, rgb))
    }

    fn error(bytes: &[u8]) -> String {
        let error = decode(bytes, &DecodeOptions::default()).unwrap_err();
        assert_eq!(error.stage, Stage::Decode, "{error}");
        error.message
    }

    /// One file of every kind, by folder and name.
    fn fixtures() -> Vec<(String, Vec<u8>)> {
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow");
        let mut files = Vec::new();
        for folder in ["images", "jpegs"] {
            for entry in fs::read_dir(stored.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&stored).unwrap().display().to_string();
                files.push((name, fs::read(path).unwrap()));
            }
        }
        files.sort();
        files
    }

    fn fixture(name: &str) -> Vec<u8> {
        let name = format!("images/{name}");
        fixtures().into_iter().find(|(n, _)| *n == name).unwrap().1
    }

    #[test]
    fn the_constant_names_the_locked_versions() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
        let lock = fs::read_to_string(lock).unwrap();
        for decoder in DECODER.split(", ") {
            let (name, version) = decoder.split_once(' ').unwrap();
            if name == "libjpeg-turbo" {
                continue; // whose version comes from its header
            }
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            assert!(lock.contains(&entry), "{decoder}");
        }
    }

    #[test]
    fn what_is_no_image_is_told() {
        assert_eq!(error(b""), "the file is empty");
        assert_eq!(error(b"<!DOCTYPE html>"), "no known image format begins with \"<!DOCTYP\"");
        assert!(error(b"\0\0\0\x18ftypheic\0\0\0\0").contains("convert it to JPEG"));
        assert_eq!(error(b"qoif\0\0\0\x01\0\0\0\x01\x03\0"), "Qoi images are not supported");
    }

    #[test]
    fn every_prefix_of_a_jpeg_is_an_error() {
        for (name, bytes) in fixtures() {
            if name.ends_with(".jpg") && !name.contains("png_named") {
                for len in 0..bytes.len() {
                    error(&bytes[..len]);
                }
            }
        }
    }

    /// No file loses pixels silently: what still decodes lost only what follows them.
    #[test]
    fn a_prefix_of_any_file_is_an_error_or_has_all_pixels() {
        let options = DecodeOptions::default();
        let mut lost = Vec::new();
        for (name, bytes) in fixtures() {
            let whole = decode(&bytes, &options);
            let wrong = (0..bytes.len())
                .filter(|&len| {
                    let part = decode(&bytes[..len], &options);
                    part.is_ok() && part != whole
                })
                .collect::<Vec<_>>();
            if !wrong.is_empty() {
                lost.push((name, bytes.len(), wrong));
            }
        }
        assert!(lost.is_empty(), "{lost:?}");
    }

    #[test]
    fn garbage_after_the_end_of_a_jpeg_is_ignored() {
        let whole = fixture("420.jpg");
        let mut longer = whole.clone();
        longer.extend(b"\0\0garbage\xff\xd8");
        let options = DecodeOptions::default();
        assert_eq!(decode(&longer, &options), decode(&whole, &options));
    }

    /// Decodes into buffers that hold `old`.
    fn decode_over(old: u8, bytes: &[u8], options: &DecodeOptions) -> Result<Vec<u8>, SampleError> {
        let mut scratch = jpeg::Scratch::default();
        let source = Source::open(bytes, options, &mut scratch)?;
        let (w, h) = source.size();
        let size = w as usize * h as usize * 8;
        let (mut rgb, mut spare) = (vec![old; size], vec![old; size]);
        source.read(Rect::whole(w, h), 8, &mut rgb, &mut spare)?;
        rgb.truncate(w as usize * h as usize * 3);
        Ok(rgb)
    }

    /// An early end marker passes for a whole file; the rows it costs must not be old ones.
    #[test]
    fn a_jpeg_that_ends_early_never_shows_what_a_buffer_held_before() {
        let mut decoded = 0;
        for (name, bytes) in fixtures().iter().filter(|(name, _)| name.ends_with(".jpg")) {
            let options = DecodeOptions::default();
            // Every length of the small ones.
            for len in (2..bytes.len()).step_by(1 + bytes.len() / 1500 * 40) {
                let ended = [&bytes[..len], &[0xff, 0xd9]].concat();
                let one = decode_over(0x55, &ended, &options);
                decoded += usize::from(one.is_ok());
                assert!(one == decode_over(0xaa, &ended, &options), "{name}: {len} bytes");
            }
        }
        assert!(decoded > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Flipped bits never panic, and what decodes all the same never shows what a buffer held
        /// before: that would depend on the worker's last sample.
        #[test]
        fn flipped_bits_give_an_error_or_the_same_pixels_each_time(
            file in any::<prop::sample::Index>(),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..8),
        ) {
            thread_local! {
                static FILES: Vec<(String, Vec<u8>)> = fixtures();
            }
            let (name, mut bytes) = FILES.with(|files| file.get(files).clone());
            for (at, bit) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            let options = DecodeOptions {
                orientation: ExifOrientation::Apply,
                max_pixels: 1 << 20,
                max_bytes: 1 << 24,
                ..DecodeOptions::default()
            };
            let one = decode_over(0x55, &bytes, &options);
            let other = decode_over(0xaa, &bytes, &options);
            if let Err(error) = &one {
                prop_assert_eq!(error.stage, Stage::Decode);
            }
            prop_assert!(one == other, "{}", name);
        }
    }

    /// A PNG that claims that size and holds next to nothing.
    fn png_of_size(w: u32, h: u32) -> Vec<u8> {
        let mut bytes = fixture("rgb.png");
        bytes[16..20].copy_from_slice(&w.to_be_bytes());
        bytes[20..24].copy_from_slice(&h.to_be_bytes());
        let crc = bytes[12..29].iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
            })
        });
        bytes[29..33].copy_from_slice(&(!crc).to_be_bytes());
        bytes
    }

    #[test]
    fn a_header_bomb_is_refused_before_anything_is_allocated() {
        let mut bmp = fixture("rgb.bmp");
        bmp[18..22].copy_from_slice(&60_000u32.to_le_bytes());
        bmp[22..26].copy_from_slice(&60_000u32.to_le_bytes());
        let mut gif = fixture("palette.gif");
        gif[6..10].fill(0xff);
        let mut jpeg = fixture("420.jpg");
        let frame = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
        jpeg[frame + 5..frame + 9].fill(0xff);
        for bytes in [png_of_size(100_000, 100_000), bmp, gif, jpeg] {
            let message = error(&bytes);
            assert!(message.contains("DecodeOptions::max_pixels"), "{message}");
        }
        let options = DecodeOptions { max_bytes: 1 << 20, ..DecodeOptions::default() };
        let message = decode(&png_of_size(1_000, 1_000), &options).unwrap_err().message;
        assert!(message.contains("DecodeOptions::max_bytes"), "{message}");
    }

    #[test]
    fn limits_are_those_of_the_options() {
        let bytes = fixture("rgb.png");
        let limited = |max_pixels| DecodeOptions { max_pixels, ..DecodeOptions::default() };
        assert!(decode(&bytes, &limited(23 * 17)).is_ok());
        assert!(decode(&bytes, &limited(23 * 17 - 1)).is_err());
    }

    #[test]
    fn gray_of_16_bits_keeps_its_high_byte_on_request() {
        let options = DecodeOptions { gray16: Gray16::HighByte, ..DecodeOptions::default() };
        let (.., rgb) = decode(&fixture("gray_16bit.png"), &options).unwrap();
        // The fixture begins with 0, 1, 127, 255, 256, 65535.
        let first: Vec<u8> = rgb.chunks(3).take(6).map(|p| p[0]).collect();
        assert_eq!(first, [0, 0, 0, 0, 1, 255]);
    }

    /// A JPEG with that EXIF block.
    fn with_exif(exif: &[u8]) -> Vec<u8> {
        let jpeg = fixture("444.jpg");
        let mut out = jpeg[..2].to_vec();
        out.extend([0xff, 0xe1]);
        out.extend((exif.len() as u16 + 8).to_be_bytes());
        out.extend(b"Exif\0\0");
        out.extend(exif);
        out.extend(&jpeg[2..]);
        out
    }

    #[test]
    fn malformed_exif_counts_as_none() {
        let apply =
            DecodeOptions { orientation: ExifOrientation::Apply, ..DecodeOptions::default() };
        let upright = decode(&fixture("444.jpg"), &apply).unwrap();
        let header = b"II*\0\x08\0\0\0";
        let entry = |count: u32, value: u16| {
            let mut entry = b"\x01\0\x12\x01\x03\0".to_vec();
            entry.extend(count.to_le_bytes());
            entry.extend(value.to_le_bytes());
            entry.extend([0; 6]);
            [header.as_slice(), &entry].concat()
        };
        for (what, exif) in [
            ("nothing", Vec::new()),
            ("no header", b"garbage".to_vec()),
            ("an offset past the end", b"II*\0\xff\xff\xff\xff".to_vec()),
            ("a loop", b"II*\0\0\0\0\0".to_vec()),
            ("more entries than bytes", b"II*\0\x08\0\0\0\xff\xff\x12\x01".to_vec()),
            ("a huge count", entry(395_000_000, 6)),
            ("an unknown value", entry(1, 77)),
            ("a cut entry", entry(1, 6)[..15].to_vec()),
        ] {
            assert_eq!(decode(&with_exif(&exif), &apply).unwrap(), upright, "{what}");
        }
        let (w, h, _) = decode(&with_exif(&entry(1, 6)), &apply).unwrap();
        assert_eq!((w, h), (upright.1, upright.0), "the block itself is read");
    }
}
