//! Bytes of a file to interleaved RGB, whatever the format, within limits known from the header.

use std::io::Cursor;

use image::{ColorType, ImageDecoder, ImageError, ImageReader};
use serde::{Deserialize, Serialize};

use crate::dataset::{SampleError, Stage};

/// Names the decoder in fingerprints: another one may round differently.
pub(crate) const DECODER: &str = "image-0.25";

/// The largest images that are decoded, checked from the header before any memory is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Pixels of the image in its file, and of every image on the way; default 178,956,970, above
    /// which Pillow refuses too.
    pub max_pixels: u64,
    /// Bytes of the decoded image, in the depth and channels of its file; default 1 GiB.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_pixels: 178_956_970, max_bytes: 1 << 30 }
    }
}

/// Decodes into `rgb`, three bytes a pixel, and returns width and height. `raw` is working memory.
///
/// Gray is replicated, alpha dropped, of 16 bits the upper eight are kept.
pub(crate) fn decode(
    bytes: &[u8],
    limits: Limits,
    raw: &mut Vec<u8>,
    rgb: &mut Vec<u8>,
) -> Result<(u32, u32), SampleError> {
    let fail = |e: &dyn std::fmt::Display| SampleError::new(Stage::Decode, e);
    if bytes.is_empty() {
        return Err(fail(&"the file is empty"));
    }
    if is_truncated_jpeg(bytes) {
        return Err(fail(&format_args!(
            "truncated JPEG: no end marker in its {} bytes",
            bytes.len()
        )));
    }
    let decoder =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| fail(&e))?;
    if decoder.format().is_none() {
        let head = &bytes[..bytes.len().min(8)];
        return Err(fail(&format_args!(
            "not an image format that is known; begins with {head:02x?}"
        )));
    }
    let mut decoder = {
        let mut reader = decoder;
        reader.limits(image_limits(limits));
        reader.into_decoder().map_err(|e| fail(&explain(&e)))?
    };
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err(fail(&format_args!("an image of {width}x{height} pixels")));
    }
    if pixels > limits.max_pixels {
        return Err(fail(&format_args!(
            "{width}x{height} is {pixels} pixels, above Limits::max_pixels = {}",
            limits.max_pixels
        )));
    }
    let needed = decoder.total_bytes();
    if needed > limits.max_bytes {
        return Err(fail(&format_args!(
            "{width}x{height} takes {needed} bytes, above Limits::max_bytes = {}",
            limits.max_bytes
        )));
    }
    decoder.set_limits(image_limits(limits)).map_err(|e| fail(&explain(&e)))?;
    let color = decoder.color_type();
    let needed = usize::try_from(needed).map_err(|e| fail(&e))?;
    if color == ColorType::Rgb8 {
        rgb.resize(needed, 0);
        decoder.read_image(rgb).map_err(|e| fail(&explain(&e)))?;
        return Ok((width, height));
    }
    raw.resize(needed, 0);
    decoder.read_image(raw).map_err(|e| fail(&explain(&e)))?;
    let pixels = usize::try_from(pixels).map_err(|e| fail(&e))?;
    rgb.resize(pixels * 3, 0);
    // 16-bit samples come in this machine's byte order.
    let high = usize::from(cfg!(target_endian = "little"));
    match color {
        ColorType::L8 => to_rgb::<1>(raw, rgb, [0, 0, 0]),
        ColorType::La8 => to_rgb::<2>(raw, rgb, [0, 0, 0]),
        ColorType::Rgba8 => to_rgb::<4>(raw, rgb, [0, 1, 2]),
        ColorType::L16 => to_rgb::<2>(raw, rgb, [high; 3]),
        ColorType::La16 => to_rgb::<4>(raw, rgb, [high; 3]),
        ColorType::Rgb16 => to_rgb::<6>(raw, rgb, [high, 2 + high, 4 + high]),
        ColorType::Rgba16 => to_rgb::<8>(raw, rgb, [high, 2 + high, 4 + high]),
        other => {
            return Err(fail(&format_args!("pixels of type {other:?} are not 8 or 16 bits")));
        }
    }
    Ok((width, height))
}

/// Picks three bytes of every `N`.
fn to_rgb<const N: usize>(raw: &[u8], rgb: &mut [u8], pick: [usize; 3]) {
    for (to, from) in rgb.as_chunks_mut::<3>().0.iter_mut().zip(raw.as_chunks::<N>().0) {
        *to = pick.map(|i| from[i]);
    }
}

fn image_limits(limits: Limits) -> image::Limits {
    let mut out = image::Limits::no_limits();
    // What a decoder needs beside the image, too.
    out.max_alloc = Some(limits.max_bytes.saturating_mul(2));
    out
}

fn explain(error: &ImageError) -> String {
    match error {
        ImageError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            format!("the file is truncated ({e})")
        }
        other => other.to_string(),
    }
}

/// Whether a JPEG lacks its end marker. The decoder would fill in what is missing with gray.
fn is_truncated_jpeg(bytes: &[u8]) -> bool {
    if !bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        return false;
    }
    // Thumbnails inside the header have end markers too, so look behind the first scan's header.
    let mut at = 2;
    while let Some(&[marker_start, marker, high, low]) = bytes.get(at..at + 4) {
        if marker_start != 0xff {
            return false;
        }
        if marker == 0xff {
            at += 1;
            continue;
        }
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
        if marker == 0xda {
            let scan = bytes.get(at..).unwrap_or(&[]);
            return !scan.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
        }
    }
    true
}
