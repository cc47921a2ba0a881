//! ResNet-18 of any width, with a stem for photographs and one for thumbnails.
//!
//! He et al., "Deep Residual Learning for Image Recognition" (2015): four stages of two basic
//! blocks; the thumbnail stem is the one of the paper's CIFAR-10 experiments.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::activation::relu;

/// Side length below which an image is a thumbnail: its first layer keeps every pixel.
const THUMBNAIL: usize = 64;

/// What decides the shape of a [`ResNet18`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResNet18Config {
    /// Classes to tell apart.
    pub(crate) classes: usize,
    /// Channels of the first stage, doubled by each of the next three. The paper's are 64.
    pub(crate) width: usize,
    /// Side length of the images in pixels.
    pub(crate) size: usize,
}

/// `[n, 3, size, size]` images to `[n, classes]` logits.
#[derive(Module, Debug)]
pub(crate) struct ResNet18 {
    stem: ConvNorm,
    pool: Option<MaxPool2d>,
    blocks: Vec<BasicBlock>,
    mean: AdaptiveAvgPool2d,
    head: Linear,
}

impl ResNet18Config {
    /// A network with random weights.
    pub(crate) fn init(&self, device: &Device) -> ResNet18 {
        let Self { classes, width, size } = *self;
        let (stem, pool) = if size < THUMBNAIL {
            (ConvNorm::new([3, width], 3, 1, device), None)
        } else {
            let pool = MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
            (ConvNorm::new([3, width], 7, 2, device), Some(pool.init()))
        };
        let stages = [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)];
        let mut blocks = Vec::new();
        let mut channels = width;
        for (out, stride) in stages {
            blocks.push(BasicBlock::new([channels, out], stride, device));
            blocks.push(BasicBlock::new([out, out], 1, device));
            channels = out;
        }
        ResNet18 {
            stem,
            pool,
            blocks,
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(channels, classes).init(device),
        }
    }
}

impl ResNet18 {
    /// The logits of a batch.
    pub(crate) fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let mut x = relu(self.stem.forward(images));
        if let Some(pool) = &self.pool {
            x = pool.forward(x);
        }
        for block in &self.blocks {
            x = block.forward(x);
        }
        self.head.forward(self.mean.forward(x).flatten(1, 3))
    }
}

/// Two 3x3 convolutions and a way around them.
#[derive(Module, Debug)]
struct BasicBlock {
    first: ConvNorm,
    second: ConvNorm,
    /// A 1x1 convolution where the block changes the shape.
    shortcut: Option<ConvNorm>,
}

impl BasicBlock {
    fn new(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        let [from, to] = channels;
        Self {
            first: ConvNorm::new([from, to], 3, stride, device),
            second: ConvNorm::new([to, to], 3, 1, device),
            shortcut: (from != to || stride != 1)
                .then(|| ConvNorm::new([from, to], 1, stride, device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x.clone()),
            None => x.clone(),
        };
        relu(self.second.forward(relu(self.first.forward(x))) + around)
    }
}

/// A convolution and the batch norm that makes its bias superfluous.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        let pad = kernel / 2;
        let conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_bias(false)
            .with_initializer(Initializer::KaimingNormal { gain: 2f64.sqrt(), fan_out_only: true });
        Self { conv: conv.init(device), norm: BatchNormConfig::new(channels[1]).init(device) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}
