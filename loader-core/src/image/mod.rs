//! From the bytes of an image file to a tensor in a batch: transforms as data, compiled once and
//! planned for each sample.

mod affine;
mod augment;
mod color;
mod custom;
mod decode;
mod filter;
mod geometry;
mod jpeg;
mod levels;
pub mod ops;
mod params;
mod pipeline;
mod plan;
mod resize;
mod transform;
mod write;

#[cfg(test)]
mod augment_tests;
#[cfg(test)]
pub(crate) mod pillow_tests;

pub use custom::{Pixels, register_transform};
pub use decode::{DECODER, DecodeOptions, ExifOrientation, Gray16, Scaling};
pub use ops::Layout;
pub use pipeline::{Pipeline, TransformError};
pub use transform::Transform;

/// Working memory of [`Pipeline::run`], kept by a worker between samples.
#[derive(Debug, Default)]
pub struct ImageScratch {
    /// The image as it is now, and where the next step makes another.
    image: Vec<u8>,
    spare: Vec<u8>,
    jpeg: jpeg::Scratch,
    plan: plan::Plan,
    resize: resize::Scratch,
    filter: filter::Scratch,
}

impl ImageScratch {
    /// One huge image must not hold its memory for the rest of the run: each buffer keeps at most
    /// this, enough for photographs of 22 megapixels.
    const KEEP: usize = 64 << 20;

    fn trim(&mut self) {
        for buffer in [&mut self.image, &mut self.spare, self.resize.between_mut()] {
            if buffer.len() > Self::KEEP {
                buffer.truncate(Self::KEEP);
                buffer.shrink_to_fit();
            }
        }
    }
}
