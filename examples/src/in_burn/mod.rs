//! The `imagenet` program's network and optimizer in burn.

mod resnet;

use std::path::Path;

use burn::module::{ModuleVisitor, Param, ParamGroup};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use burn::store::ModuleRecord;
use burn::tensor::activation::log_softmax;
use loader_burn::BatchTensors;
use loader_core::Batch;

use crate::Error;
use crate::meters::Answer;
use crate::network::Network;
use crate::training::Learner;

pub use resnet::ResNet;

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";

/// A network on the CPU, and the optimizer that trains it.
pub struct Burn {
    model: ResNet,
    optimizer: ModuleOptimizer,
    device: Device,
}

impl Learner for Burn {
    const FRAMEWORK: &'static str = "burn";

    fn new(network: &Network, weight_decay: f64, seed: u64) -> Result<Self, Error> {
        let device = Device::flex();
        device.seed(seed);
        let model = ResNet::new(network, &device.clone().autodiff());
        Ok(Self { model, optimizer: sgd(weight_decay), device })
    }

    fn learn(&mut self, mut batch: Batch, targets: &[f32], rate: f64) -> Result<Answer, Error> {
        let device = self.device.clone().autodiff();
        let logits = self.model.forward(batch.take_tensor("image", &device)?);
        let loss = cross_entropy(logits.clone(), targets, &device);
        let answer = Answer { loss: loss.clone().into_scalar(), logits: values(logits)? };
        let gradients = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optimizer.step(rate, self.model.clone(), gradients);
        Ok(answer)
    }

    fn answer(&self, mut batch: Batch, targets: &[f32]) -> Result<Answer, Error> {
        let logits = self.model.valid().forward(batch.take_tensor("image", &self.device)?);
        let loss = cross_entropy(logits.clone(), targets, &self.device);
        Ok(Answer { loss: loss.into_scalar(), logits: values(logits)? })
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        // A batch norm keeps what the last step added to its means aside; `valid` counts it in.
        self.model.valid().into_record().save(folder.join(MODEL))?;
        self.optimizer.save(folder.join(OPTIMIZER))?;
        Ok(())
    }

    fn load(&mut self, folder: &Path) -> Result<(), Error> {
        let record = ModuleRecord::load(folder.join(MODEL))?;
        self.model = self.model.clone().try_load_record(record)?;
        self.optimizer = self.optimizer.clone().load(folder.join(OPTIMIZER))?;
        Ok(())
    }

    fn weights(&self) -> Result<Vec<f32>, Error> {
        weights(&self.model)
    }
}

/// Stochastic gradient descent with Nesterov momentum, and weight decay for all but biases and batch
/// norms.
pub fn sgd(weight_decay: f64) -> ModuleOptimizer {
    let plain = SgdConfig::new().with_momentum(Some(
        MomentumConfig::new().with_momentum(0.9).with_dampening(0.0).with_nesterov(true),
    ));
    let decaying =
        plain.clone().with_weight_decay(Some(WeightDecayConfig::new(weight_decay as f32)));
    decaying.init().with_group(
        ParamGroup::from_any_predicates(vec!["norm", "bias"]),
        plain.build(),
        None,
    )
}

/// The mean over the samples, with class probabilities `[n, classes]` for targets.
pub fn cross_entropy(logits: Tensor<2>, targets: &[f32], device: &Device) -> Tensor<1> {
    let targets = Tensor::from_data(TensorData::new(targets.to_vec(), logits.dims()), device);
    -(log_softmax(logits, 1) * targets).sum_dim(1).mean()
}

/// A tensor's elements, row-major.
///
/// # Errors
/// Where they are no `f32`.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, Error> {
    Ok(tensor.try_into_data()?.try_into_vec_as()?)
}

/// All weights, running means and variances included, in the order of the layers.
///
/// # Errors
/// Where they are no `f32`.
pub fn weights(model: &ResNet) -> Result<Vec<f32>, Error> {
    struct Collect(Result<Vec<f32>, Error>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Ok(all) = &mut self.0 {
                match values(param.val()) {
                    Ok(more) => all.extend(more),
                    Err(error) => self.0 = Err(error),
                }
            }
        }
    }
    let mut collect = Collect(Ok(Vec::new()));
    model.valid().visit(&mut collect);
    collect.0
}
