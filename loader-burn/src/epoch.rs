//! An epoch as tensors, for loops that are written by hand.

use burn::tensor::{Device, Int, Tensor};
use loader_core::Batch;

use crate::error::{EpochError, TensorError};
use crate::tensors::BatchTensors;

/// An epoch as tensors: for every iterator of batches.
pub trait EpochTensors<E>: Iterator<Item = Result<Batch, E>> + Sized {
    /// The `image` and `label` of each batch, as [`BatchTensors::into_tensors`] gives them.
    fn tensors(
        self,
        device: &Device,
    ) -> impl Iterator<Item = Result<(Tensor<4>, Tensor<1, Int>), EpochError<E>>> {
        self.tensors_by(device, BatchTensors::into_tensors)
    }

    /// What `map` makes of each batch, for other fields or a struct of one's own.
    ///
    /// ```no_run
    /// # fn train<E>(epoch: impl Iterator<Item = Result<loader_core::Batch, E>>) {
    /// use burn::tensor::{Device, Int, Tensor};
    /// use loader_burn::{BatchTensors, EpochTensors};
    ///
    /// struct Text {
    ///     tokens: Tensor<2, Int>,
    ///     length: Tensor<1, Int>,
    /// }
    /// let device = Device::default();
    /// let epoch = epoch.tensors_by(&device, |mut batch, device| {
    ///     Ok(Text {
    ///         tokens: batch.take_tensor("tokens", device)?,
    ///         length: batch.take_tensor("length", device)?,
    ///     })
    /// });
    /// # for batch in epoch { let _ = batch.map(|b| (b.tokens, b.length)); }
    /// # }
    /// ```
    fn tensors_by<T, F>(
        self,
        device: &Device,
        mut map: F,
    ) -> impl Iterator<Item = Result<T, EpochError<E>>>
    where
        F: FnMut(Batch, &Device) -> Result<T, TensorError>,
    {
        let device = device.clone();
        self.map(move |batch| {
            map(batch.map_err(EpochError::Load)?, &device).map_err(EpochError::Tensor)
        })
    }
}

impl<E, I: Iterator<Item = Result<Batch, E>>> EpochTensors<E> for I {}
