//! A ResNet of burn's layers.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::activation::relu;

use crate::network::{self, Network};

/// `[n, 3, size, size]` images to `[n, classes]` logits.
#[derive(Module, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    pool: Option<MaxPool2d>,
    blocks: Vec<Block>,
    mean: AdaptiveAvgPool2d,
    head: Linear,
}

impl ResNet {
    /// A network with random weights.
    pub fn new(network: &Network, device: &Device) -> Self {
        let (stem, pooled) = network.stem();
        let pool = MaxPool2dConfig::new([3, 3])
            .with_strides([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
        Self {
            stem: ConvNorm::new(&stem, device),
            pool: pooled.then(|| pool.init()),
            blocks: network.stages().iter().flatten().map(|b| Block::new(b, device)).collect(),
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(network.features(), network.classes).init(device),
        }
    }

    /// The logits of a batch.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
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

/// Convolutions and a way around them.
#[derive(Module, Debug)]
struct Block {
    convs: Vec<ConvNorm>,
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn new(block: &network::Block, device: &Device) -> Self {
        Self {
            convs: block.convs.iter().map(|conv| ConvNorm::new(conv, device)).collect(),
            shortcut: block.shortcut.as_ref().map(|conv| ConvNorm::new(conv, device)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x.clone()),
            None => x.clone(),
        };
        let mut x = x;
        for (number, conv) in self.convs.iter().enumerate() {
            x = conv.forward(if number == 0 { x } else { relu(x) });
        }
        relu(x + around)
    }
}

/// A convolution and the batch norm that makes its bias superfluous.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(conv: &network::Conv, device: &Device) -> Self {
        let network::Conv { channels, kernel, stride } = *conv;
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
