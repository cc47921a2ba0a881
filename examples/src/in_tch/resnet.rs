//! A ResNet of tch's layers. Its variables have torchvision's names.

use tch::Tensor;
use tch::nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use tch::nn::{self, BatchNormConfig, ConvConfig, Init, Module, ModuleT, Path};

use crate::network::{self, Network};

/// `[n, 3, size, size]` images to `[n, classes]` logits.
#[derive(Debug)]
pub struct ResNet {
    stem: ConvNorm,
    pooled: bool,
    blocks: Vec<Block>,
    head: nn::Linear,
}

impl ResNet {
    /// A network with random weights, below `path`.
    pub fn new(network: &Network, path: &Path<'_>) -> Self {
        let (stem, pooled) = network.stem();
        let stem = ConvNorm::new(&stem, &(path / "conv1"), &(path / "bn1"));
        let mut blocks = Vec::new();
        for (stage, of_stage) in network.stages().iter().enumerate() {
            let path = path / format!("layer{}", stage + 1);
            let of_stage = of_stage.iter().enumerate();
            blocks.extend(of_stage.map(|(number, block)| Block::new(block, &(&path / number))));
        }
        let (features, classes) = (network.features() as i64, network.classes as i64);
        let head = nn::linear(path / "fc", features, classes, nn::LinearConfig::default());
        Self { stem, pooled, blocks, head }
    }
}

impl ModuleT for ResNet {
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        let mut x = self.stem.forward_t(images, train).relu();
        if self.pooled {
            x = x.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false);
        }
        for block in &self.blocks {
            x = block.forward_t(&x, train);
        }
        self.head.forward(&x.adaptive_avg_pool2d([1, 1]).flatten(1, 3))
    }
}

/// Convolutions and a way around them.
#[derive(Debug)]
struct Block {
    convs: Vec<ConvNorm>,
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn new(block: &network::Block, path: &Path<'_>) -> Self {
        let convs = block.convs.iter().zip(1..).map(|(conv, number)| {
            let (name, norm) = (format!("conv{number}"), format!("bn{number}"));
            ConvNorm::new(conv, &(path / name), &(path / norm))
        });
        let around = path / "downsample";
        let shortcut = block.shortcut.as_ref();
        Self {
            convs: convs.collect(),
            shortcut: shortcut.map(|conv| ConvNorm::new(conv, &(&around / 0), &(&around / 1))),
        }
    }
}

impl ModuleT for Block {
    fn forward_t(&self, x: &Tensor, train: bool) -> Tensor {
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.forward_t(x, train),
            None => x.shallow_clone(),
        };
        let mut x = x.shallow_clone();
        for (number, conv) in self.convs.iter().enumerate() {
            x = conv.forward_t(&if number == 0 { x } else { x.relu() }, train);
        }
        (x + around).relu()
    }
}

/// A convolution and the batch norm that makes its bias superfluous.
#[derive(Debug)]
struct ConvNorm {
    conv: nn::Conv2D,
    norm: nn::BatchNorm,
}

impl ConvNorm {
    fn new(conv: &network::Conv, path: &Path<'_>, norm: &Path<'_>) -> Self {
        let [from, to] = conv.channels.map(|channels| channels as i64);
        let kernel = conv.kernel as i64;
        let config = ConvConfig {
            stride: conv.stride as i64,
            padding: kernel / 2,
            bias: false,
            ws_init: Init::Kaiming {
                dist: NormalOrUniform::Normal,
                fan: FanInOut::FanOut,
                non_linearity: NonLinearity::ReLU,
            },
            ..ConvConfig::default()
        };
        let ones = BatchNormConfig { ws_init: Init::Const(1.0), ..BatchNormConfig::default() };
        Self {
            conv: nn::conv2d(path, from, to, kernel, config),
            norm: nn::batch_norm2d(norm, to, ones),
        }
    }
}

impl ModuleT for ConvNorm {
    fn forward_t(&self, x: &Tensor, train: bool) -> Tensor {
        self.norm.forward_t(&self.conv.forward(x), train)
    }
}
