//! The `imagenet` program's network and optimizer in tch.

mod resnet;

use std::path::Path;

use loader_core::Batch;
use loader_tch::BatchTensors;
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::meters::Answer;
use crate::network::Network;
use crate::training::Learner;

pub use resnet::ResNet;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";

/// A network on the CPU, and the optimizer that trains it.
#[derive(Debug)]
pub struct Tch {
    model: ResNet,
    store: VarStore,
    optimizer: Sgd,
}

impl Learner for Tch {
    const FRAMEWORK: &'static str = "tch";

    fn new(network: &Network, weight_decay: f64, seed: u64) -> Result<Self, Error> {
        tch::manual_seed(seed as i64);
        let store = VarStore::new(Device::Cpu);
        let model = ResNet::new(network, &store.root());
        let optimizer = Sgd::new(&store, 0.9, weight_decay);
        Ok(Self { model, store, optimizer })
    }

    fn learn(&mut self, mut batch: Batch, targets: &[f32], rate: f64) -> Result<Answer, Error> {
        let logits = self.model.forward_t(&batch.take_tensor("image")?, true);
        let loss = cross_entropy(&logits, targets);
        loss.f_backward()?;
        self.optimizer.step(rate);
        answer(&loss, &logits)
    }

    fn answer(&self, mut batch: Batch, targets: &[f32]) -> Result<Answer, Error> {
        let images = batch.take_tensor("image")?;
        no_grad(|| {
            let logits = self.model.forward_t(&images, false);
            answer(&cross_entropy(&logits, targets), &logits)
        })
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        self.store.save(folder.join(MODEL))?;
        Tensor::write_safetensors(&self.optimizer.velocities(), folder.join(OPTIMIZER))?;
        Ok(())
    }

    fn load(&mut self, folder: &Path) -> Result<(), Error> {
        self.store.load(folder.join(MODEL))?;
        self.optimizer.load(Tensor::read_safetensors(folder.join(OPTIMIZER))?)
    }

    fn weights(&self) -> Result<Vec<f32>, Error> {
        let mut all = Vec::new();
        for (_, tensor) in by_name(&self.store) {
            all.extend(values(&tensor)?);
        }
        Ok(all)
    }
}

fn answer(loss: &Tensor, logits: &Tensor) -> Result<Answer, Error> {
    Ok(Answer { loss: f32::try_from(loss)?, logits: values(logits)? })
}

/// The mean over the samples, with class probabilities `[n, classes]` for targets.
fn cross_entropy(logits: &Tensor, targets: &[f32]) -> Tensor {
    let targets = Tensor::from_slice(targets).view_as(logits);
    let chosen = logits.log_softmax(1, Kind::Float) * targets;
    -chosen.sum_dim_intlist(1, false, Kind::Float).mean(Kind::Float)
}

/// A tensor's elements, row-major.
fn values(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    Ok(Vec::try_from(tensor.detach().contiguous().view(-1))?)
}

fn by_name(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut variables: Vec<_> = store.variables().into_iter().collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    variables
}

/// Stochastic gradient descent with Nesterov momentum, as `torch.optim.SGD` computes it. tch's own
/// hides its velocities, and a checkpoint needs them.
#[derive(Debug)]
struct Sgd {
    parameters: Vec<Parameter>,
    momentum: f64,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    weights: Tensor,
    velocity: Tensor,
    decay: f64,
}

impl Sgd {
    fn new(store: &VarStore, momentum: f64, weight_decay: f64) -> Self {
        let parameters = by_name(store).into_iter().filter(|(_, weights)| weights.requires_grad());
        let parameters = parameters.map(|(name, weights)| Parameter {
            name,
            velocity: weights.detach().zeros_like(),
            // What has one dimension is a bias or belongs to a batch norm.
            decay: if weights.dim() > 1 { weight_decay } else { 0.0 },
            weights,
        });
        Self { parameters: parameters.collect(), momentum }
    }

    /// Follows the gradients and clears them.
    fn step(&mut self, rate: f64) {
        let momentum = self.momentum;
        no_grad(|| {
            for Parameter { weights, velocity, decay, .. } in &mut self.parameters {
                let gradient = weights.grad() + &*weights * *decay;
                *velocity = &*velocity * momentum + &gradient;
                let _ = weights.g_sub_(&((gradient + &*velocity * momentum) * rate));
                weights.zero_grad();
            }
        });
    }

    fn velocities(&self) -> Vec<(&str, &Tensor)> {
        self.parameters.iter().map(|p| (p.name.as_str(), &p.velocity)).collect()
    }

    fn load(&mut self, velocities: Vec<(String, Tensor)>) -> Result<(), Error> {
        let mut velocities: std::collections::HashMap<_, _> = velocities.into_iter().collect();
        for Parameter { name, weights, velocity, .. } in &mut self.parameters {
            let saved = velocities.remove(name).filter(|saved| saved.size() == weights.size());
            *velocity = saved.ok_or_else(|| format!("the checkpoint has no velocity of {name}"))?;
        }
        Ok(())
    }
}
