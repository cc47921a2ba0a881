//! Batches of `loader-core` as burn tensors whose storage is the loader's shared memory.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use loader_burn::EpochTensors;
//! use loader_core::{DataLoader, ImageFolder, Transform};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex().autodiff();
//! let train = ImageFolder::open("train")?.transform(&Transform::imagenet_train(224))?;
//! let loader = DataLoader::builder(train).batch_size(64).shuffle(42).build()?;
//! for pair in loader.epoch(0)?.tensors(&device) {
//!     let (images, labels) = pair?; // [64, 3, 224, 224] and [64]
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is copied
//! Nothing, on burn's CPU backend flex, with or without autodiff: a tensor holds a lease of its
//! field, and the slot of the batch goes back to the loader when the last tensor, clone or view over
//! any of its fields is dropped. An operation that burn does in place gives that tensor memory of its
//! own first, so what one handle does is never seen through another.
//!
//! Nor on burn's LibTorch backend on the CPU, with this crate's feature `tch`, which needs libtorch
//! (see `loader-tch`). There an operation in place is done in the slot where no other handle shares it.
//! To libtorch's GPUs that feature copies as `loader_tch::Upload` does.
//!
//! Other backends copy once, from the slot to where the device has its memory; then the slot is free.
//! (ndarray, which burn gives up, keeps the slot and copies it at each operation.)
//!
//! A model that is trained keeps its input until `backward` is done, so the slot of a batch is taken
//! from the forward pass on until its gradients are there.
//!
//! # In `burn-train`
//! [`BurnLoader`] is burn's own `DataLoader`, for its learners. [`EpochTensors`] is for loops of one's
//! own; both make a struct of one's own of each batch by a function of batch and device.

mod data;
mod epoch;
mod error;
mod learner;
mod tensors;
#[cfg(feature = "tch")]
mod torch;

pub use data::tensor_data;
pub use epoch::EpochTensors;
pub use error::{EpochError, TensorError};
pub use learner::BurnLoader;
pub use tensors::{BatchTensors, FieldTensor};
