//! Batches of `loader-core` as [`tch`] tensors whose storage is the batch's shared memory.
//!
//! ```no_run
//! # fn train<E>(epoch: impl Iterator<Item = Result<loader_core::Batch, E>>) -> Result<(), loader_tch::EpochError<E>> {
//! use loader_tch::EpochTensors;
//!
//! for pair in epoch.tensors() {
//!     let (images, labels) = pair?;
//!     println!("{:?} {:?}", images.size(), labels.size());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Nothing is copied, at any size: a batch is handed over in about a microsecond. A tensor owns its
//! part of the batch as any tensor owns its storage. Clones, views and what autograd saves keep it
//! alive, on any thread, and may outlive batch, epoch and loader; the batch's slot is free again
//! when the last of them, over any of its fields, is gone. Nobody else reads or writes the memory
//! meanwhile, so operations in place are fine.
//!
//! A loop that keeps tensors keeps slots. To keep a few samples of many batches, keep copies
//! (`Tensor::copy`, `Tensor::index_select`), not views.
//!
//! # Devices
//!
//! Batches lie in the CPU's memory. [`Tensors::upload`] and [`Upload`] copy them to another device;
//! to a GPU through pinned memory and without waiting, so that the slot is free as soon as the call
//! returns and the copy runs beside the program.
//!
//! # libtorch
//!
//! `eval "$(scripts/libtorch --env)"` sets up what building this crate needs. A program built with
//! it looks for `libtorch_cpu.so` along `LD_LIBRARY_PATH`, or along the rpath that its own build
//! script sets from `DEP_LOADER_TCH_LIBTORCH_LIB`.

mod upload;
mod wrap;

use std::error::Error;

use loader_core::{Batch, DType, FieldError, FieldLease};
use tch::{Device, Tensor};

pub use self::upload::Upload;

/// A field of a batch as a tensor; with the feature `table` also one of a slice of a table's rows
/// (`loader_core::LentField`).
pub trait FieldTensor {
    /// The field as a contiguous CPU tensor of the same shape and element type, batch dimension
    /// first. Its storage is the field's memory.
    ///
    /// # Errors
    /// Where libtorch refuses; the field is then given back.
    fn into_tensor(self) -> Result<Tensor, TensorError>;
}

#[cfg(feature = "table")]
impl FieldTensor for loader_core::LentField {
    fn into_tensor(mut self) -> Result<Tensor, TensorError> {
        let (data, shape, dtype) = (self.as_mut_ptr(), self.shape().to_vec(), self.dtype());
        // SAFETY:
        // - In bounds and aligned: the field covers exactly the elements of its shape and element type, and
        //   its table has refused columns that are not aligned for theirs.
        // - Alive: the map stays where it is until the field is dropped, wherever that is moved.
        // - Exclusive: each row of a column is lent once of a map that is private to its pass.
        unsafe { wrap::wrap(data, &shape, dtype, self) }
    }
}

impl FieldTensor for FieldLease {
    fn into_tensor(mut self) -> Result<Tensor, TensorError> {
        let (data, shape, dtype) = (self.as_mut_ptr(), self.shape().to_vec(), self.dtype());
        // SAFETY:
        // - In bounds and aligned: a lease covers exactly the elements of its shape and element
        //   type, and fields begin at multiples of 64 bytes.
        // - Alive: the memory stays where it is until the lease is dropped, wherever the lease
        //   itself is moved.
        // - Exclusive: there is one lease of a field of a batch, it was taken by value, and
        //   nobody writes to a slot before all leases of it are gone.
        unsafe { wrap::wrap(data, &shape, dtype, self) }
    }
}

/// A batch as tensors.
pub trait BatchTensors {
    /// The fields `image` and `label`, as the image datasets name them.
    ///
    /// # Errors
    /// Where the batch lacks one of them or libtorch refuses.
    fn into_tensors(self) -> Result<(Tensor, Tensor), TensorError>;

    /// The field of that name, which is then no longer in the batch.
    ///
    /// # Errors
    /// Where there is no such field, it was taken before, or libtorch refuses.
    fn take_tensor(&mut self, field: &str) -> Result<Tensor, TensorError>;
}

impl BatchTensors for Batch {
    fn into_tensors(mut self) -> Result<(Tensor, Tensor), TensorError> {
        Ok((self.take_tensor("image")?, self.take_tensor("label")?))
    }

    fn take_tensor(&mut self, field: &str) -> Result<Tensor, TensorError> {
        self.take(field)?.into_tensor()
    }
}

type IntoPair = fn(Batch) -> Result<(Tensor, Tensor), TensorError>;

/// An epoch as tensors: for every iterator of batches.
pub trait EpochTensors<E>: Iterator<Item = Result<Batch, E>> + Sized {
    /// The `image` and `label` of each batch, as [`BatchTensors::into_tensors`] gives them.
    fn tensors(self) -> Tensors<Self, IntoPair> {
        self.tensors_by(BatchTensors::into_tensors)
    }

    /// What `map` makes of each batch, for other fields or a struct of one's own.
    ///
    /// ```no_run
    /// # fn train<E>(epoch: impl Iterator<Item = Result<loader_core::Batch, E>>) {
    /// use loader_tch::{BatchTensors, EpochTensors};
    ///
    /// struct Text {
    ///     tokens: tch::Tensor,
    ///     length: tch::Tensor,
    /// }
    /// let epoch = epoch.tensors_by(|mut batch| {
    ///     Ok(Text { tokens: batch.take_tensor("tokens")?, length: batch.take_tensor("length")? })
    /// });
    /// # for batch in epoch { let _ = batch.map(|b| (b.tokens, b.length)); }
    /// # }
    /// ```
    fn tensors_by<T, F>(self, map: F) -> Tensors<Self, F>
    where
        F: FnMut(Batch) -> Result<T, TensorError>,
    {
        Tensors { epoch: self, map }
    }
}

impl<E, I: Iterator<Item = Result<Batch, E>>> EpochTensors<E> for I {}

/// An epoch whose batches become tensors. [`EpochTensors`] makes it.
#[derive(Clone, Debug)]
#[must_use = "iterators do nothing unless consumed"]
pub struct Tensors<I, F> {
    epoch: I,
    map: F,
}

impl<I, F> Tensors<I, F> {
    /// The epoch itself, for what else it can tell.
    pub fn epoch(&self) -> &I {
        &self.epoch
    }

    /// The same on that device; see [`Upload`]. A struct of one's own implements that trait, or
    /// uploads its tensors where it is made.
    pub fn upload<E, T: Upload>(
        self,
        device: Device,
    ) -> impl Iterator<Item = Result<T, EpochError<E>>>
    where
        I: Iterator<Item = Result<Batch, E>>,
        F: FnMut(Batch) -> Result<T, TensorError>,
    {
        self.map(move |batch| batch?.upload(device).map_err(EpochError::Tensor))
    }
}

impl<I, F, E, T> Iterator for Tensors<I, F>
where
    I: Iterator<Item = Result<Batch, E>>,
    F: FnMut(Batch) -> Result<T, TensorError>,
{
    type Item = Result<T, EpochError<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match self.epoch.next()? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(EpochError::Load(error))),
        };
        Some((self.map)(batch).map_err(EpochError::Tensor))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.epoch.size_hint()
    }
}

impl<I, F, E, T> ExactSizeIterator for Tensors<I, F>
where
    I: ExactSizeIterator<Item = Result<Batch, E>>,
    F: FnMut(Batch) -> Result<T, TensorError>,
{
}

/// Why there is no next batch of tensors.
#[derive(Debug, thiserror::Error)]
pub enum EpochError<E> {
    /// The loader could not make the batch.
    #[error(transparent)]
    Load(E),
    /// The batch could not become tensors.
    #[error(transparent)]
    Tensor(TensorError),
}

/// Why a batch could not become tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The batch has no such field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// tch has no such tensors.
    #[error(
        "fields of {dtype:?} have no tensor type in tch, which has U8, I8 to I64 and the floats"
    )]
    DType {
        /// The field's element type.
        dtype: DType,
    },
    /// A dimension is longer than libtorch can count.
    #[error("shape {shape:?} has a dimension above 2^63 - 1")]
    Shape {
        /// The field's shape, with the batch dimension.
        shape: Vec<usize>,
    },
    /// libtorch refused.
    #[error("libtorch: {message}")]
    Torch {
        /// What it said.
        message: String,
    },
    /// What the caller's own mapping says.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl TensorError {
    /// An error of the caller's own, from what makes its own struct of a batch.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}
