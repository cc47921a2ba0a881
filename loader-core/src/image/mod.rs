//! Files of images to tensors: decode, transform, write in place.

mod canvas;
mod color;
mod decode;
mod params;
#[cfg(test)]
mod parity;
mod pipeline;
mod resize;
mod transform;
mod write;

pub use decode::Limits;
pub use pipeline::{ImageScratch, Pipeline, TransformError};
pub use transform::{
    CenterCrop, ColorJitter, Erase, Grayscale, IMAGENET_MEAN, IMAGENET_STD, Interpolation, Layout,
    Normalize, Op, RandomCrop, RandomErasing, RandomHorizontalFlip, RandomResizedCrop,
    RandomVerticalFlip, Resize, ResizeTo, Transform,
};
