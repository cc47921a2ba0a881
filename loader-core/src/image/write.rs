//! The last pass: flip, normalise, convert and lay out straight into the batch.
//!
//! Rows go through a small block on the stack, so that the conversions are plain loops over slices
//! which the compiler vectorises.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::canvas::{View, row};
use super::params::Rect;
use super::transform::Layout;

/// Pixels that are converted at a time.
const BLOCK: usize = 64;

/// The form of the result. Values are `level * mul + add`, a pair a channel.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) layout: Layout,
    pub(crate) channels: usize,
    pub(crate) mul: [f32; 3],
    pub(crate) add: [f32; 3],
}

impl Form {
    /// Where the elements of a row's pixels lie: for every channel of the tensor's planes.
    fn index(&self, (width, height): (usize, usize), channel: usize, y: usize, x: usize) -> usize {
        match self.layout {
            Layout::Nchw => (channel * height + y) * width + x,
            Layout::Nhwc => (y * width + x) * self.channels + channel,
        }
    }
}

/// An element type that the last pass can make of levels.
pub(crate) trait Target: bytemuck::Pod {
    /// Converts `levels * mul + add`.
    fn affine(levels: &[u8], mul: f32, add: f32, out: &mut [Self]);
    /// The same with the values of three channels in turn.
    fn affine3(levels: &[[u8; 3]], mul: [f32; 3], add: [f32; 3], out: &mut [Self]);
    /// Rounds one value.
    fn from_value(value: f32) -> Self;
}

impl Target for u8 {
    fn affine(levels: &[u8], _: f32, _: f32, out: &mut [Self]) {
        out.copy_from_slice(levels);
    }

    fn affine3(levels: &[[u8; 3]], _: [f32; 3], _: [f32; 3], out: &mut [Self]) {
        out.copy_from_slice(levels.as_flattened());
    }

    fn from_value(value: f32) -> Self {
        value as u8
    }
}

impl Target for f32 {
    fn affine(levels: &[u8], mul: f32, add: f32, out: &mut [Self]) {
        for (to, &v) in out.iter_mut().zip(levels) {
            *to = f32::from(v) * mul + add;
        }
    }

    fn affine3(levels: &[[u8; 3]], mul: [f32; 3], add: [f32; 3], out: &mut [Self]) {
        for (to, v) in out.as_chunks_mut::<3>().0.iter_mut().zip(levels) {
            *to = std::array::from_fn(|c| f32::from(v[c]) * mul[c] + add[c]);
        }
    }

    fn from_value(value: f32) -> Self {
        value
    }
}

macro_rules! half_target {
    ($half:ty) => {
        impl Target for $half {
            fn affine(levels: &[u8], mul: f32, add: f32, out: &mut [Self]) {
                let mut values = [0f32; BLOCK];
                let values = &mut values[..levels.len()];
                f32::affine(levels, mul, add, values);
                out.convert_from_f32_slice(values);
            }

            fn affine3(levels: &[[u8; 3]], mul: [f32; 3], add: [f32; 3], out: &mut [Self]) {
                let mut values = [0f32; BLOCK * 3];
                let values = &mut values[..levels.len() * 3];
                f32::affine3(levels, mul, add, values);
                out.convert_from_f32_slice(values);
            }

            fn from_value(value: f32) -> Self {
                Self::from_f32(value)
            }
        }
    };
}
half_target!(f16);
half_target!(bf16);

/// Writes what is in view to `out`, whose length is that of the result.
pub(crate) fn write<T: Target>(pixels: &[u8], view: &View, form: &Form, out: &mut [T]) {
    let size = view.region.size();
    let size = (size.0 as usize, size.1 as usize);
    let mut block = [[0u8; 3]; BLOCK];
    let mut plane = [0u8; BLOCK];
    for y in 0..view.region.height {
        let from_y = if view.flip_vertical { view.region.height - 1 - y } else { y };
        let from = row(pixels, view.stored, view.region, from_y).as_chunks::<3>().0;
        let y = y as usize;
        for x in (0..size.0).step_by(BLOCK) {
            let n = BLOCK.min(size.0 - x);
            let levels = if view.flip_horizontal {
                let end = size.0 - x;
                let mirrored = from[end - n..end].iter().rev();
                block.iter_mut().zip(mirrored).for_each(|(to, from)| *to = *from);
                &block[..n]
            } else {
                &from[x..x + n]
            };
            if form.layout == Layout::Nhwc && form.channels == 3 {
                let at = form.index(size, 0, y, x);
                T::affine3(levels, form.mul, form.add, &mut out[at..at + n * 3]);
                continue;
            }
            for c in 0..form.channels {
                let plane = &mut plane[..n];
                plane.iter_mut().zip(levels).for_each(|(to, from)| *to = from[c]);
                let at = form.index(size, c, y, x);
                T::affine(plane, form.mul[c], form.add[c], &mut out[at..at + n]);
            }
        }
    }
}

/// Overwrites a rectangle of the result, channel by channel, row by row; `value` is told the channel.
pub(crate) fn erase<T: Target>(
    out: &mut [T],
    form: &Form,
    size: (u32, u32),
    part: Rect,
    mut value: impl FnMut(usize) -> f32,
) {
    let size = (size.0 as usize, size.1 as usize);
    for c in 0..form.channels {
        for y in part.y..part.y + part.height {
            for x in part.x..part.x + part.width {
                out[form.index(size, c, y as usize, x as usize)] = T::from_value(value(c));
            }
        }
    }
}
