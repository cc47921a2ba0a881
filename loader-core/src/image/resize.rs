//! Resizing and padding: the steps that make a new image of part of the last one.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::decode::room;
use super::geometry::{self, Rect};
use super::ops::{Fill, Interpolation, Padding, PaddingMode};
use super::plan::{PadStep, ResizeStep};

/// Working memory, kept between samples.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    resizer: Resizer,
    /// The image after the first of two passes.
    between: Vec<u8>,
    /// Source columns and rows of each output column and row; `None` is padding.
    columns: Vec<Option<u32>>,
    rows: Vec<Option<u32>>,
}

impl Scratch {
    /// The buffer that grows with the image.
    pub(super) fn between_mut(&mut self) -> &mut Vec<u8> {
        &mut self.between
    }
}

/// Bytes of working memory that the step needs besides its result.
pub(super) fn working_bytes(step: &ResizeStep) -> u64 {
    match step.interpolation {
        Interpolation::Nearest | Interpolation::Bilinear => 0,
        Interpolation::Bicubic | Interpolation::Lanczos if columns_first(step) => 0,
        Interpolation::Bicubic | Interpolation::Lanczos => {
            u64::from(step.window.w) * u64::from(step.from.h) * 3
        }
    }
}

/// Whether Pillow resizes along columns first; measured on its version 13.0, as its order is not
/// documented.
fn columns_first(step: &ResizeStep) -> bool {
    let w = step.frame.w - f64::from(step.full.0);
    let h = step.frame.h - f64::from(step.full.1);
    h > 0.0 && h > 2.0 * w
}

/// Makes the step's window of the RGB image `src` of that size in `dst`.
pub(super) fn resize(
    scratch: &mut Scratch,
    src: &[u8],
    (width, height): (u32, u32),
    step: &ResizeStep,
    dst: &mut [u8],
) -> Result<(), String> {
    let filter = match step.interpolation {
        Interpolation::Nearest => {
            nearest(scratch, src, width, step, dst);
            return Ok(());
        }
        Interpolation::Bilinear => FilterType::Bilinear,
        Interpolation::Bicubic => FilterType::CatmullRom,
        Interpolation::Lanczos => FilterType::Lanczos3,
    };
    let ResizeStep { from, frame, full, window, .. } = *step;
    // A view of `from` alone, not a crop box over the whole image: torchvision crops first, so no
    // pixel outside the crop has a part in the result.
    let image =
        TypedImageRef::<U8x3>::from_buffer(width, height, src).map_err(|e| e.to_string())?;
    let image =
        TypedCroppedImage::new(image, from.x, from.y, from.w, from.h).map_err(|e| e.to_string())?;
    let mut made =
        TypedImage::<U8x3>::from_buffer(window.w, window.h, dst).map_err(|e| e.to_string())?;
    // Here crop boxes are right: `window` is cut out of the resized image, so the pixels around it
    // do have a part in its borders.
    let (left, crop_w) = part(from.w, (frame.x, frame.w), full.0, window.x, window.w);
    let (top, crop_h) = part(from.h, (frame.y, frame.h), full.1, window.y, window.h);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    let Scratch { resizer, between, .. } = scratch;
    if filter == FilterType::Bilinear || columns_first(step) {
        let options = options.crop(left, top, crop_w, crop_h);
        return resizer.resize_typed(&image, &mut made, &options).map_err(|e| e.to_string());
    }
    // The other filters overshoot, and 8 bits cut that off after each pass, so the order of the
    // passes shows. Here it is rows first, where the resizer would take columns first.
    let bytes = working_bytes(step) as usize;
    let mut wide = TypedImage::<U8x3>::from_buffer(window.w, from.h, room(between, bytes)?)
        .map_err(|e| e.to_string())?;
    let rows = options.crop(left, 0.0, crop_w, f64::from(from.h));
    resizer.resize_typed(&image, &mut wide, &rows).map_err(|e| e.to_string())?;
    let columns = options.crop(0.0, top, f64::from(window.w), crop_h);
    resizer.resize_typed(&wide, &mut made, &columns).map_err(|e| e.to_string())
}

/// Where in `from` pixels the part `at..at + len` of a frame's resized form of `full` pixels lies.
fn part(from: u32, (start, size): (f64, f64), full: u32, at: u32, len: u32) -> (f64, f64) {
    let source = |v: u32| f64::from(v) * size / f64::from(full);
    let start = start + source(at);
    (start, source(len).min(f64::from(from) - start))
}

/// Pillow's nearest neighbour, with its way of summing up steps.
fn nearest(maps: &mut Scratch, src: &[u8], width: u32, step: &ResizeStep, dst: &mut [u8]) {
    let ResizeStep { from, full, window, mirrored, .. } = *step;
    nearest_axis(
        &mut maps.columns,
        (from.x, from.w),
        full.0,
        (window.x, window.w),
        mirrored.horizontal,
    );
    nearest_axis(&mut maps.rows, (from.y, from.h), full.1, (window.y, window.h), mirrored.vertical);
    gather(maps, src, width, [0; 3], dst);
}

fn nearest_axis(
    map: &mut Vec<Option<u32>>,
    (start, from): (u32, u32),
    full: u32,
    (at, len): (u32, u32),
    mirrored: bool,
) {
    let scale = f64::from(from) / f64::from(full);
    let mut position = scale * 0.5;
    let mut pick = || {
        let picked = (position as u32).min(from - 1);
        position += scale;
        picked
    };
    map.clear();
    let ahead = if mirrored { full - at - len } else { at };
    for _ in 0..ahead {
        pick();
    }
    map.extend(
        (0..len)
            .map(|_| pick())
            .map(|picked| Some(start + if mirrored { from - 1 - picked } else { picked })),
    );
    if mirrored {
        map.reverse();
    }
}

/// Makes the step's window of padding around part of the RGB image `src` of that width.
pub(super) fn pad(maps: &mut Scratch, src: &[u8], width: u32, step: &PadStep, dst: &mut [u8]) {
    let PadStep { from, padding, window, fill, mode } = *step;
    let fill = match fill {
        Fill::All(v) => [v; 3],
        Fill::Rgb(rgb) => rgb,
    };
    let Rect { x, y, w, h } = window;
    let sides = |before: fn(Padding) -> u32, after: fn(Padding) -> u32| {
        padding.map(|p| (i64::from(before(p)), i64::from(after(p))))
    };
    pad_axis(&mut maps.columns, (from.x, from.w), sides(|p| p.left, |p| p.right), (x, w), mode);
    pad_axis(&mut maps.rows, (from.y, from.h), sides(|p| p.top, |p| p.bottom), (y, h), mode);
    gather(maps, src, width, fill, dst);
}

fn pad_axis(
    map: &mut Vec<Option<u32>>,
    (start, from): (u32, u32),
    [first, second]: [(i64, i64); 2],
    (at, len): (u32, u32),
    mode: PaddingMode,
) {
    let from = i64::from(from);
    let once = from + first.0 + first.1;
    map.clear();
    map.extend((0..i64::from(len)).map(|i| {
        let at = geometry::unpadded(i64::from(at) + i, once, second.0, mode)?;
        geometry::unpadded(at, from, first.0, mode).map(|at| start + at as u32)
    }));
}

fn gather(maps: &Scratch, src: &[u8], width: u32, fill: [u8; 3], dst: &mut [u8]) {
    let src = src.as_chunks::<3>().0;
    let dst = dst.as_chunks_mut::<3>().0;
    for (out, row) in dst.chunks_exact_mut(maps.columns.len().max(1)).zip(&maps.rows) {
        let Some(row) = row else {
            out.fill(fill);
            continue;
        };
        let row = &src[*row as usize * width as usize..][..width as usize];
        for (out, column) in out.iter_mut().zip(&maps.columns) {
            *out = column.map_or(fill, |column| row[column as usize]);
        }
    }
}
