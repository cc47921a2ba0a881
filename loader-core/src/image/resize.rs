//! Resizes a part of an image the way Pillow does, computing only the window of the result that is
//! kept.

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use super::params::Rect;
use super::transform::Interpolation;
use crate::dataset::{SampleError, Stage};

/// What to resize: the `region` of an image `stored` becomes `size`, of which `window` is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) stored: (u32, u32),
    pub(crate) region: Rect,
    pub(crate) size: (u32, u32),
    pub(crate) window: Rect,
    pub(crate) interpolation: Interpolation,
}

/// Memory that is kept from resize to resize.
#[derive(Debug, Default)]
pub(crate) struct ResizeScratch {
    /// Resized in width only.
    middle: Vec<u8>,
    columns: Vec<usize>,
    resizer: Resizer,
}

impl ResizeScratch {
    /// Gives back what exceeds that many bytes.
    pub(crate) fn trim(&mut self, keep: usize) {
        if self.middle.capacity() > keep {
            self.middle = Vec::new();
        }
        if self.resizer.size_of_internal_buffers() > keep {
            self.resizer.reset_internal_buffers();
        }
    }
}

/// Writes the window to `to`, which becomes exactly as long as needed.
pub(crate) fn resize(
    job: &Job,
    from: &[u8],
    to: &mut Vec<u8>,
    scratch: &mut ResizeScratch,
) -> Result<(), SampleError> {
    to.resize(job.window.width as usize * job.window.height as usize * 3, 0);
    // Filter and its radius, in pixels of the smaller of both images.
    let filter = match job.interpolation {
        Interpolation::Nearest => {
            nearest(job, from, to, &mut scratch.columns);
            return Ok(());
        }
        Interpolation::Bilinear => (FilterType::Bilinear, 1.0),
        Interpolation::Bicubic => (FilterType::CatmullRom, 2.0),
        Interpolation::Lanczos => (FilterType::Lanczos3, 3.0),
    };
    convolve(job, filter, from, to, scratch)
        .map_err(|e| SampleError::new(Stage::Transform, format_args!("resize {job:?}: {e}")))
}

/// In two passes, in Pillow's order: between them levels are rounded and clipped, so the order
/// shows, most of all where a cubic overshoots.
fn convolve(
    job: &Job,
    (filter, radius): (FilterType, f64),
    from: &[u8],
    to: &mut [u8],
    scratch: &mut ResizeScratch,
) -> Result<(), Box<dyn std::error::Error>> {
    let Job { stored, region, size, window, .. } = *job;
    let ResizeScratch { middle, resizer, .. } = scratch;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    // The window's place in the region. Pixels around it still take part, so the result is that of
    // resizing all and cropping then.
    let axis = |region: u32, size: u32, start: u32, len: u32| {
        let scale = f64::from(region) / f64::from(size);
        let start = f64::from(start) * scale;
        (start, (f64::from(len) * scale).min(f64::from(region) - start))
    };
    let (left, width) = axis(region.width, size.0, window.x, window.width);
    let (top, height) = axis(region.height, size.1, window.y, window.height);
    let whole = TypedImageRef::<U8x3>::from_buffer(stored.0, stored.1, from)?;
    let mut target = TypedImage::<U8x3>::from_buffer(window.width, window.height, to)?;
    if height_first(region.size(), size) {
        // The resizer's own order.
        let part =
            TypedCroppedImage::from_ref(&whole, region.x, region.y, region.width, region.height)?;
        resizer.resize_typed(&part, &mut target, &options.crop(left, top, width, height))?;
        return Ok(());
    }

    // The rows that the window's rows are made of, and one to be safe from rounding.
    let reach = radius * (f64::from(region.height) / f64::from(size.1)).max(1.0) + 1.0;
    let first = (top - reach).floor().max(0.0) as u32;
    let rows = ((top + height + reach).ceil() as u32).min(region.height) - first;
    let part = TypedCroppedImage::from_ref(&whole, region.x, region.y + first, region.width, rows)?;
    middle.resize(window.width as usize * rows as usize * 3, 0);
    let mut narrow = TypedImage::<U8x3>::from_buffer(window.width, rows, middle)?;
    let crop = options.crop(left, 0.0, width, f64::from(rows));
    resizer.resize_typed(&part, &mut narrow, &crop)?;

    let crop = options.crop(0.0, top - f64::from(first), f64::from(window.width), height);
    resizer.resize_typed(&narrow, &mut target, &crop)?;
    Ok(())
}

/// Pillow's rule since version 13, found by comparing four thousand sizes; before, it always took
/// the width first.
fn height_first(from: (u32, u32), to: (u32, u32)) -> bool {
    let less = |from: u32, to: u32| i64::from(from) - i64::from(to);
    let rows = less(from.1, to.1);
    rows > 0 && rows > 2 * less(from.0, to.0)
}

fn nearest(job: &Job, from: &[u8], to: &mut [u8], columns: &mut Vec<usize>) {
    let Job { stored, region, size, window, .. } = *job;
    columns.clear();
    columns.extend(
        positions(region.width, size.0, window.x, window.width)
            .map(|x| (region.x as usize + x) * 3),
    );
    let row_bytes = stored.0 as usize * 3;
    let rows = positions(region.height, size.1, window.y, window.height);
    for (to, y) in to.chunks_exact_mut(window.width as usize * 3).zip(rows) {
        let row = &from[(region.y as usize + y) * row_bytes..][..row_bytes];
        for (to, &x) in to.as_chunks_mut::<3>().0.iter_mut().zip(&*columns) {
            to.copy_from_slice(&row[x..x + 3]);
        }
    }
}

/// The source positions of a window of a nearest-neighbour resize. Pillow adds the scale up pixel
/// by pixel, which decides where a centre falls on a border.
fn positions(from: u32, to: u32, start: u32, len: u32) -> impl Iterator<Item = usize> {
    let scale = f64::from(from) / f64::from(to);
    let mut centre = scale * 0.5;
    (0..start + len)
        .map(move |_| {
            let at = centre;
            centre += scale;
            (at as usize).min(from as usize - 1)
        })
        .skip(start as usize)
}
