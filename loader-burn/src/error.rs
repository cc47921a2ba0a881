//! Why a batch can't be the tensors that are asked for.

use std::error::Error;

use loader_core::{DType, FieldError};

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

/// Why a batch did not become tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The batch doesn't have the field, or has given it away.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The tensor's type has another number of dimensions, the batch dimension included.
    #[error(
        "field {field:?} has shape {shape:?} in a batch, which is not a tensor of rank {asked}"
    )]
    Rank {
        /// The field's name.
        field: String,
        /// Its shape, with the batch dimension first.
        shape: Vec<usize>,
        /// The rank that was asked for.
        asked: usize,
    },
    /// The tensor's type holds elements of another kind: floats are for `f16`, `bf16` and `f32`,
    /// integers for `u8` and `i64`.
    #[error("field {field:?} holds {dtype:?}, which is no element of a burn {asked} tensor")]
    Kind {
        /// The field's name.
        field: String,
        /// Its element type.
        dtype: DType,
        /// The kind that was asked for.
        asked: &'static str,
    },
    /// The device can't hold this element type. The transform decides which one is written.
    #[error("field {field:?} holds {dtype:?}, which {device} does not support")]
    Unsupported {
        /// The field's name.
        field: String,
        /// Its element type.
        dtype: DType,
        /// The device.
        device: String,
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
