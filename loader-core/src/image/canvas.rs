//! The image on its way: a part of a buffer, seen through a resize and flips that are not done yet.
//!
//! Crops and flips only move the view. A resize waits for the crop behind it, so that only what is
//! kept is computed. Pixels move when a later step or the final write needs them.

use super::color;
use super::params::{Rect, Step};
use super::pipeline::ImageScratch;
use super::resize::{self, Job};
use super::transform::Interpolation;
use crate::dataset::{SampleError, Stage};

/// Where the current image is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// The size of the image in `ImageScratch::front`.
    pub(crate) stored: (u32, u32),
    /// The part of it that is in view.
    pub(crate) region: Rect,
    pub(crate) flip_horizontal: bool,
    pub(crate) flip_vertical: bool,
    resize: Option<Waiting>,
}

/// A resize of the region to `size`, of which `window` is in view.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    size: (u32, u32),
    interpolation: Interpolation,
    window: Rect,
}

impl View {
    pub(crate) fn whole(size: (u32, u32)) -> Self {
        Self {
            stored: size,
            region: Rect::whole(size),
            flip_horizontal: false,
            flip_vertical: false,
            resize: None,
        }
    }

    fn rect(&mut self) -> &mut Rect {
        match &mut self.resize {
            Some(waiting) => &mut waiting.window,
            None => &mut self.region,
        }
    }

    fn crop(&mut self, part: Rect) {
        let (mirror_x, mirror_y) = (self.flip_horizontal, self.flip_vertical);
        let rect = self.rect();
        let x = if mirror_x { rect.width - part.width - part.x } else { part.x };
        let y = if mirror_y { rect.height - part.height - part.y } else { part.y };
        *rect = Rect { x: rect.x + x, y: rect.y + y, ..part };
    }
}

/// A view and the buffers below it.
pub(crate) struct Canvas<'a> {
    scratch: &'a mut ImageScratch,
    view: View,
    max_pixels: u64,
}

impl<'a> Canvas<'a> {
    /// On the image of that size in `scratch.front`.
    pub(crate) fn new(scratch: &'a mut ImageScratch, size: (u32, u32), max_pixels: u64) -> Self {
        Self { scratch, view: View::whole(size), max_pixels }
    }

    pub(crate) fn apply(&mut self, step: Step) -> Result<(), SampleError> {
        match step {
            Step::Crop(part) => self.view.crop(part),
            Step::Resize(width, height, interpolation) => {
                self.settle_resize()?;
                self.settle_flips()?;
                let size = (width, height);
                if size != self.view.region.size() {
                    let window = Rect::whole(size);
                    self.view.resize = Some(Waiting { size, interpolation, window });
                }
            }
            Step::Pad(sides, fill) => {
                self.settle_resize()?;
                self.pad(sides, fill)?;
            }
            Step::FlipHorizontal => self.view.flip_horizontal ^= true,
            Step::FlipVertical => self.view.flip_vertical ^= true,
            Step::Brightness(factor) => self.recolor(|rows| color::brightness(rows, factor))?,
            Step::Contrast(factor) => self.recolor(|rows| color::contrast(rows, factor))?,
            Step::Saturation(factor) => self.recolor(|rows| color::saturation(rows, factor))?,
            Step::Hue(factor) => self.recolor(|rows| color::hue(rows, factor))?,
            Step::Grayscale => self.recolor(color::grayscale)?,
        }
        Ok(())
    }

    /// Does what waits, except for the flips, which the final write does on its way.
    pub(crate) fn finish(mut self) -> Result<(&'a [u8], View), SampleError> {
        self.settle_resize()?;
        Ok((&self.scratch.front, self.view))
    }

    /// Hands a list of steps back to the scratch memory.
    pub(crate) fn keep_steps(&mut self, steps: Vec<Step>) {
        self.scratch.steps = steps;
    }

    fn settle_resize(&mut self) -> Result<(), SampleError> {
        let Some(Waiting { size, interpolation, window }) = self.view.resize.take() else {
            return Ok(());
        };
        self.check_size(window.size())?;
        let View { stored, region, .. } = self.view;
        let job = Job { stored, region, size, window, interpolation };
        let ImageScratch { front, back, resize, .. } = &mut *self.scratch;
        resize::resize(&job, front, back, resize)?;
        std::mem::swap(front, back);
        self.view.stored = window.size();
        self.view.region = Rect::whole(window.size());
        Ok(())
    }

    fn settle_flips(&mut self) -> Result<(), SampleError> {
        if self.view.flip_horizontal || self.view.flip_vertical {
            self.pad([0; 4], [0; 3])?;
        }
        Ok(())
    }

    /// Copies the region into a frame, flipped as it is seen.
    fn pad(
        &mut self,
        [left, top, right, bottom]: [u32; 4],
        fill: [u8; 3],
    ) -> Result<(), SampleError> {
        let View { stored, region, flip_horizontal, flip_vertical, .. } = self.view;
        let size = (region.width + left + right, region.height + top + bottom);
        self.check_size(size)?;
        let ImageScratch { front, back, .. } = &mut *self.scratch;
        back.resize(size.0 as usize * size.1 as usize * 3, 0);
        back.as_chunks_mut::<3>().0.fill(fill);
        let row_bytes = size.0 as usize * 3;
        let (left, width) = (left as usize * 3, region.width as usize * 3);
        for y in 0..region.height {
            let from_y = if flip_vertical { region.height - 1 - y } else { y };
            let from = row(front, stored, region, from_y);
            let to = &mut back[(top + y) as usize * row_bytes..][left..][..width];
            if flip_horizontal {
                let from = from.as_chunks::<3>().0.iter().rev();
                to.as_chunks_mut::<3>().0.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            } else {
                to.copy_from_slice(from);
            }
        }
        std::mem::swap(front, back);
        self.view = View::whole(size);
        Ok(())
    }

    fn recolor(&mut self, change: impl FnOnce(color::Rows<'_>)) -> Result<(), SampleError> {
        self.settle_resize()?;
        let View { stored, region, .. } = self.view;
        change(color::Rows::new(&mut self.scratch.front, stored.0, region));
        Ok(())
    }

    fn check_size(&self, (width, height): (u32, u32)) -> Result<(), SampleError> {
        if u64::from(width) * u64::from(height) <= self.max_pixels {
            return Ok(());
        }
        Err(SampleError::new(
            Stage::Transform,
            format_args!(
                "an image of {width}x{height} on the way is above Limits::max_pixels = {}",
                self.max_pixels
            ),
        ))
    }
}

/// The `y`-th row of a region of a stored image.
pub(crate) fn row(pixels: &[u8], stored: (u32, u32), region: Rect, y: u32) -> &[u8] {
    let start = (region.y + y) as usize * stored.0 as usize + region.x as usize;
    &pixels[start * 3..][..region.width as usize * 3]
}
