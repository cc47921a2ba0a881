//! JPEG: what its headers tell, and the decoder of this build, [`File`].

mod eighth;
mod huffman;
#[cfg(feature = "libjpeg-turbo")]
mod turbo;
#[cfg(not(feature = "libjpeg-turbo"))]
mod zune;

#[cfg(feature = "libjpeg-turbo")]
pub(super) use turbo::{File, Scratch};
#[cfg(not(feature = "libjpeg-turbo"))]
pub(super) use zune::{File, Scratch};

use super::geometry::Rect;

impl File<'_> {
    /// Makes at least what is `wanted` of the file at an eighth of its size in the start of `rgb`, and gives
    /// the place of what it made; `None` where only `read` can do that.
    pub(super) fn read_eighth(
        &mut self,
        bytes: &[u8],
        header: &Header<'_>,
        wanted: Rect,
        rgb: &mut Vec<u8>,
        spare: &mut Vec<u8>,
    ) -> Option<Rect> {
        eighth::read(bytes, header, wanted, rgb, spare, self.huffman())
    }
}

/// Where the coefficient of that number in zigzag order (ITU-T T.81, figure 5) has its place in a block.
const fn natural_order(zigzag: usize) -> u8 {
    // Along diagonals, whose direction changes.
    let (mut x, mut y, mut left) = (0i32, 0i32, zigzag);
    while left > 0 {
        let up = (x + y) % 2 == 0;
        (x, y) = match (up, x, y) {
            (true, 7, _) => (x, y + 1),
            (true, _, 0) => (x + 1, y),
            (true, ..) => (x + 1, y - 1),
            (false, _, 7) => (x + 1, y),
            (false, 0, _) => (x, y + 1),
            (false, ..) => (x - 1, y + 1),
        };
        left -= 1;
    }
    (y * 8 + x) as u8
}

/// A segment of a file: its marker's last byte, where it starts, and what follows its length.
struct Segment<'a> {
    marker: u8,
    at: usize,
    content: &'a [u8],
}

/// The segments up to the first scan's header. They are walked rather than searched, because thumbnails
/// in them have markers of their own.
fn segments(bytes: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut at = 2;
    let mut last = false;
    std::iter::from_fn(move || {
        while !last {
            match bytes.get(at..)? {
                // Fill bytes may precede a marker.
                [0xff, 0xff, ..] => at += 1,
                // Markers that stand alone.
                [0xff, 0x00 | 0x01 | 0xd0..=0xd8, ..] => at += 2,
                [0xff, marker, high, low, ..] => {
                    let start = at;
                    at += 2 + usize::from(u16::from_be_bytes([*high, *low]));
                    last = *marker == 0xda;
                    let content = bytes.get(start + 4..at.min(bytes.len())).unwrap_or_default();
                    return Some(Segment { marker: *marker, at: start, content });
                }
                [_, _, ..] => at += 1, // garbage between segments
                _ => return None,
            }
        }
        None
    })
}

/// What every decoder is asked to agree on.
#[derive(Debug, Default)]
pub(super) struct Header<'a> {
    frame: Option<Frame>,
    /// The first EXIF block.
    pub(super) exif: Option<&'a [u8]>,
    /// True where an end-of-image marker follows the start of the first scan, which is where Pillow,
    /// too, draws the line: decoders fill what is missing with grey.
    pub(super) complete: bool,
}

/// The header of the frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Its marker's last byte, which tells the kind of coding.
    kind: u8,
    size: (u32, u32),
    components: u8,
}

impl<'a> Header<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut header = Self::default();
        for Segment { marker, at, content } in segments(bytes) {
            match marker {
                // Huffman tables, arithmetic tables and an extension are between them.
                0xc4 | 0xc8 | 0xcc => {}
                0xc0..=0xcf if header.frame.is_none() => {
                    header.frame = Frame::of(marker, content);
                }
                0xe1 if header.exif.is_none() => {
                    header.exif = content.strip_prefix(b"Exif\0\0");
                }
                0xda => {
                    // From the back: in a whole file it is among the last bytes.
                    header.complete = bytes[at..].windows(2).rev().any(|w| w == [0xff, 0xd9]);
                }
                _ => {}
            }
        }
        header
    }

    /// Width and height, where they are told.
    pub(super) fn size(&self) -> Option<(u32, u32)> {
        self.frame.map(|frame| frame.size).filter(|&(w, h)| w > 0 && h > 0)
    }

    /// Bytes that a pixel takes while it is decoded.
    pub(super) fn bytes_per_pixel(&self) -> u64 {
        match self.frame {
            Some(Frame { components: 4, .. }) => 7,
            _ => 3,
        }
    }

    /// The numbers of components that have a meaning in colour.
    fn check_components(&self) -> Result<(), String> {
        match self.frame {
            Some(Frame { components: n @ (0 | 2 | 5..), .. }) => {
                Err(format!("{n} components can't be converted to RGB"))
            }
            _ => Ok(()),
        }
    }

    fn is_lossless(&self) -> bool {
        self.frame.is_some_and(|frame| frame.kind == 0xc3)
    }
}

impl Frame {
    fn of(kind: u8, content: &[u8]) -> Option<Self> {
        let &[_, h1, h0, w1, w0, components, ..] = content else { return None };
        let side = |high, low| u32::from(u16::from_be_bytes([high, low]));
        Some(Self { kind, size: (side(w1, w0), side(h1, h0)), components })
    }
}

/// The stored JPEG files by name, in the order of their names.
#[cfg(test)]
fn stored_files() -> Vec<(String, Vec<u8>)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow/jpegs");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}
