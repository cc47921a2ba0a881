//! The final pass: flip, normalise, convert and lay out, straight into the sample's place in the
//! batch.
//!
//! A pixel has 256 values a channel, so whatever is done to it is a table. That keeps the result
//! bit-equal to torchvision's `f32` arithmetic (a fused multiply-add is not), costs the same
//! for every element type, and takes any number of normalisations.

use half::{bf16, f16};

use super::geometry::{Flip, Rect};
use super::ops::{Layout, Normalize};
use super::params::Normal;
use crate::field::Element;
use crate::rng::Draws;

/// What is written for each value of each channel.
pub(super) type Table<T> = [[T; 256]; 3];

/// An element type that can be written.
pub(super) trait Output: Element {
    fn from_f32(value: f32) -> Self;
}

impl Output for u8 {
    fn from_f32(value: f32) -> Self {
        value as u8
    }
}

impl Output for f16 {
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Output for bf16 {
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Output for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// The table of raw values.
pub(super) fn raw_table() -> Box<Table<u8>> {
    Box::new([std::array::from_fn(|v| v as u8); 3])
}

/// The table of values scaled to `[0, 1]`, then normalised.
pub(super) fn float_table<T: Output>(normalize: &[Normalize]) -> Box<Table<T>> {
    let pick = |values: &[f32], channel: usize| {
        values.get(if values.len() == 1 { 0 } else { channel }).copied()
    };
    Box::new(std::array::from_fn(|channel| {
        std::array::from_fn(|v| {
            let scaled = v as f32 / 255.0;
            T::from_f32(normalize.iter().fold(scaled, |v, n| {
                // A grey pipeline has one mean; the channels that it does not write stay as is.
                match (pick(&n.mean, channel), pick(&n.std, channel)) {
                    (Some(mean), Some(std)) => (v - mean) / std,
                    _ => v,
                }
            }))
        })
    }))
}

/// What a sample looks like in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) channels: usize,
    pub(super) w: usize,
    pub(super) h: usize,
    pub(super) layout: Layout,
}

/// Writes `view` of the RGB image of that `width`; `out` has `shape.channels * view.w * view.h`
/// elements.
pub(super) fn image<T: Output>(
    src: &[u8],
    width: u32,
    view: Rect,
    flip: Flip,
    shape: Shape,
    table: &Table<T>,
    out: &mut [T],
) {
    let Shape { channels, w, h, layout } = shape;
    let rows = (0..h).map(|y| {
        let y = view.y as usize + if flip.vertical { h - 1 - y } else { y };
        let pixels = &src[(y * width as usize + view.x as usize) * 3..][..w * 3];
        pixels.as_chunks::<3>().0
    });
    let [red, green, blue] = table;
    match (channels, layout) {
        (1, _) => {
            for (row, out) in rows.zip(out.chunks_exact_mut(w)) {
                each(row, flip, out.iter_mut(), |&[r, ..], out| *out = red[r as usize]);
            }
        }
        (_, Layout::Nhwc) => {
            for (row, out) in rows.zip(out.chunks_exact_mut(w * 3)) {
                let out = out.as_chunks_mut::<3>().0;
                each(row, flip, out.iter_mut(), |&[r, g, b], out| {
                    *out = [red[r as usize], green[g as usize], blue[b as usize]];
                });
            }
        }
        (_, Layout::Nchw) => {
            let (out_r, rest) = out.split_at_mut(w * h);
            let (out_g, out_b) = rest.split_at_mut(w * h);
            let out = out_r
                .chunks_exact_mut(w)
                .zip(out_g.chunks_exact_mut(w))
                .zip(out_b.chunks_exact_mut(w));
            for (row, ((out_r, out_g), out_b)) in rows.zip(out) {
                let out = out_r.iter_mut().zip(out_g).zip(out_b);
                each(row, flip, out, |&[r, g, b], ((out_r, out_g), out_b)| {
                    *out_r = red[r as usize];
                    *out_g = green[g as usize];
                    *out_b = blue[b as usize];
                });
            }
        }
    }
}

/// Calls `f` on every pixel of a row and its place.
fn each<O>(
    row: &[[u8; 3]],
    flip: Flip,
    out: impl Iterator<Item = O>,
    mut f: impl FnMut(&[u8; 3], O),
) {
    // Two loops, so that neither decides the direction pixel by pixel.
    if flip.horizontal {
        row.iter().rev().zip(out).for_each(|(pixel, out)| f(pixel, out));
    } else {
        row.iter().zip(out).for_each(|(pixel, out)| f(pixel, out));
    }
}

/// What an erased rectangle is filled with, by channel.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EraseValue {
    Constant([f32; 3]),
    Random,
}

/// Fills `rect` of a written sample.
pub(super) fn erase<T: Output>(
    rect: Rect,
    shape: Shape,
    value: &EraseValue,
    draws: &mut Draws,
    out: &mut [T],
) {
    let Shape { channels, w, h, layout } = shape;
    let mut normal = Normal::new(draws);
    for channel in 0..channels {
        for y in rect.y as usize..(rect.y + rect.h) as usize {
            for x in rect.x as usize..(rect.x + rect.w) as usize {
                let value = match value {
                    EraseValue::Constant(values) => values[channel],
                    EraseValue::Random => normal.next(),
                };
                let at = match layout {
                    Layout::Nchw => (channel * h + y) * w + x,
                    Layout::Nhwc => (y * w + x) * channels + channel,
                };
                out[at] = T::from_f32(value);
            }
        }
    }
}
