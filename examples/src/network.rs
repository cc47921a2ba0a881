//! The shape of a ResNet, for any framework.
//!
//! He et al., "Deep Residual Learning for Image Recognition" (2015). The strides of ResNet-50 are in
//! its 3x3 convolutions, as torchvision has them; the stem for thumbnails is the one of the paper's
//! CIFAR-10 experiments.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Side length below which an image is a thumbnail: the first layer keeps every pixel, and
/// augmentation shifts rather than crops.
pub const THUMBNAIL: u32 = 64;

/// The networks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Arch {
    /// Eight blocks of two 3x3 convolutions.
    #[default]
    ResNet18,
    /// Sixteen blocks of a 1x1, a 3x3 and a 1x1 convolution.
    ResNet50,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ResNet18 => "ResNet-18",
            Self::ResNet50 => "ResNet-50",
        })
    }
}

/// What decides the shape of a network.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Which one.
    pub arch: Arch,
    /// Classes to tell apart.
    pub classes: usize,
    /// Channels of the first stage, doubled by each of the next three. The paper's are 64.
    pub width: usize,
    /// Side length of the images in pixels.
    pub size: u32,
}

/// A convolution without bias, padded by half of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Channels in and out.
    pub channels: [usize; 2],
    /// Side length of the kernel.
    pub kernel: usize,
    /// Step between its places.
    pub stride: usize,
}

/// Convolutions and a way around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Each with a batch norm after it, and a ReLU between each two.
    pub convs: Vec<Conv>,
    /// A 1x1 convolution where the block changes the shape.
    pub shortcut: Option<Conv>,
}

impl Network {
    /// The first convolution, and whether a 3x3 max pooling of stride 2 follows.
    pub fn stem(&self) -> (Conv, bool) {
        let channels = [3, self.width];
        if self.size < THUMBNAIL {
            (Conv { channels, kernel: 3, stride: 1 }, false)
        } else {
            (Conv { channels, kernel: 7, stride: 2 }, true)
        }
    }

    /// The blocks of each of the four stages.
    pub fn stages(&self) -> [Vec<Block>; 4] {
        let (blocks, expansion) = match self.arch {
            Arch::ResNet18 => ([2, 2, 2, 2], 1),
            Arch::ResNet50 => ([3, 4, 6, 3], 4),
        };
        let mut from = self.width;
        [0, 1, 2, 3].map(|stage| {
            let inner = self.width << stage;
            let out = inner * expansion;
            let blocks = (0..blocks[stage]).map(|number| {
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                self.block([std::mem::replace(&mut from, out), inner, out], stride)
            });
            blocks.collect()
        })
    }

    fn block(&self, [from, inner, out]: [usize; 3], stride: usize) -> Block {
        let conv = |from, to, kernel, stride| Conv { channels: [from, to], kernel, stride };
        let convs = match self.arch {
            Arch::ResNet18 => vec![conv(from, inner, 3, stride), conv(inner, out, 3, 1)],
            Arch::ResNet50 => {
                vec![conv(from, inner, 1, 1), conv(inner, inner, 3, stride), conv(inner, out, 1, 1)]
            }
        };
        let shortcut = (from != out || stride != 1).then(|| conv(from, out, 1, stride));
        Block { convs, shortcut }
    }

    /// Channels that the last stage gives to the fully connected layer.
    pub fn features(&self) -> usize {
        let last = self.stages()[3].last().and_then(|block| block.convs.last().copied());
        last.map_or(self.width, |conv| conv.channels[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Convolutions, batch norms and the last layer.
    fn parameters(arch: Arch) -> usize {
        let network = Network { arch, classes: 1000, width: 64, size: 224 };
        let stages = network.stages();
        let blocks = stages.iter().flatten();
        let convs = blocks.flat_map(|block| block.convs.iter().chain(&block.shortcut));
        let (stem, _) = network.stem();
        let each = convs.chain([&stem]).map(|conv| {
            let [from, to] = conv.channels;
            from * to * conv.kernel * conv.kernel + 2 * to
        });
        each.sum::<usize>() + (network.features() + 1) * network.classes
    }

    #[test]
    fn parameters_are_as_many_as_torchvisions() {
        assert_eq!(parameters(Arch::ResNet18), 11_689_512);
        assert_eq!(parameters(Arch::ResNet50), 25_557_032);
    }
}
