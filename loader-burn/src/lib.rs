//! Batches of `loader-core` as burn tensors whose storage is the loader's shared memory.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use loader_burn::BatchTensors;
//! use loader_core::{DataLoader, ImageFolder, Transform};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex().autodiff();
//! let train = ImageFolder::open("train")?.transform(&Transform::imagenet_train(224))?;
//! let loader = DataLoader::builder(train).batch_size(64).shuffle(42).build()?;
//! for batch in loader.epoch(0)? {
//!     let (images, labels) = batch?.into_tensors(&device)?; // [64, 3, 224, 224] and [64]
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is copied
//! Nothing, on burn's CPU backend flex, with or without autodiff: a tensor holds a lease of its
//! field, and the slot of the batch goes back to the loader when the last tensor, clone or view over
//! any of its fields is dropped. Other backends copy once, from the slot to the device. An operation
//! that burn does in place gives that tensor memory of its own first, so what one handle does is
//! never seen through another.
//!
//! A model that is trained keeps its input until `backward` is done, so the slot of a batch is taken
//! from the forward pass on until its gradients are there.

mod data;
mod error;
mod tensors;

pub use data::tensor_data;
pub use error::TensorError;
pub use tensors::BatchTensors;
