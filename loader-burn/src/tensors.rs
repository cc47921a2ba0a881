//! The fields of a batch as tensors of the rank and kind that the caller's types say.

use burn::tensor::kind::{Basic, Kind};
use burn::tensor::{Device, Int, Tensor};
use loader_core::{Batch, DType, Field, SharedField};

use crate::data::{burn_dtype, tensor_data};
use crate::error::TensorError;
#[cfg(feature = "tch")]
use crate::torch;

/// Batches as burn tensors; see the [crate's documentation](crate) for what is copied.
pub trait BatchTensors {
    /// The images and labels of an image batch: field `image`, `[n, channels, height, width]` (or
    /// with the channels last, as the transform has it), and field `label`, `[n]`.
    ///
    /// # Errors
    /// Where the batch has other fields, or they are of another rank or kind; see [`TensorError`].
    fn into_tensors(self, device: &Device) -> Result<(Tensor<4>, Tensor<1, Int>), TensorError>;

    /// One field, its element type kept, with the batch dimension first. Each can be taken once.
    ///
    /// # Errors
    /// Where there is no such field, it was taken before, or it is of another rank or kind than the
    /// type asked for, in which case it stays in the batch; see [`TensorError`].
    fn take_tensor<const D: usize, K: Basic>(
        &mut self,
        name: &str,
        device: &Device,
    ) -> Result<Tensor<D, K>, TensorError>;
}

impl BatchTensors for Batch {
    fn into_tensors(mut self, device: &Device) -> Result<(Tensor<4>, Tensor<1, Int>), TensorError> {
        Ok((self.take_tensor("image", device)?, self.take_tensor("label", device)?))
    }

    fn take_tensor<const D: usize, K: Basic>(
        &mut self,
        name: &str,
        device: &Device,
    ) -> Result<Tensor<D, K>, TensorError> {
        let samples = self.len();
        if let Some(spec) = self.fields().iter().find(|field| field.name == name) {
            check::<D, K>(spec, samples, device)?;
        }
        let lease = self.take(name)?;
        #[cfg(feature = "tch")]
        if let Some(torch) = torch::torch_device(device) {
            return torch::tensor(lease, torch, device);
        }
        from_field(name, lease, device)
    }
}

/// A field by itself as a tensor: of a slice of a table's rows (`loader_core::LentField`), or of a batch of
/// another process ([`OpenField`](loader_core::OpenField)).
pub trait FieldTensor: SharedField + Sized {
    /// The field as a tensor of the same shape, its element type kept. No copy on burn's flex; other devices
    /// copy it to where they have their memory.
    ///
    /// # Errors
    /// Where it is of another rank or kind than the type asked for, or the device can't hold it.
    fn into_tensor<const D: usize, K: Basic>(
        self,
        device: &Device,
    ) -> Result<Tensor<D, K>, TensorError> {
        let (samples, shape) = self.shape().split_first().unwrap_or((&1, &[]));
        check::<D, K>(&Field::new("field", self.dtype(), shape), *samples, device)?;
        from_field("field", self, device)
    }
}

impl<F: SharedField> FieldTensor for F {}

fn from_field<const D: usize, K: Basic>(
    name: &str,
    field: impl SharedField,
    device: &Device,
) -> Result<Tensor<D, K>, TensorError> {
    let dtype = field.dtype();
    let data = tensor_data(field).ok_or_else(|| kind_error::<K>(name, dtype))?;
    let options = (device, data.dtype());
    Ok(Tensor::from_data(data, options))
}

/// Everything that burn would panic at.
fn check<const D: usize, K: Basic>(
    spec: &Field,
    samples: usize,
    device: &Device,
) -> Result<(), TensorError> {
    let Field { name, dtype, shape } = spec;
    if shape.len() + 1 != D {
        let shape = std::iter::once(samples).chain(shape.iter().copied()).collect();
        return Err(TensorError::Rank { field: name.clone(), shape, asked: D });
    }
    let fits = match K::KIND {
        Kind::Float => matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64),
        Kind::Int => matches!(
            dtype,
            DType::U8
                | DType::U16
                | DType::U32
                | DType::U64
                | DType::I8
                | DType::I16
                | DType::I32
                | DType::I64
        ),
        Kind::Bool => false,
    };
    let burn_dtype = burn_dtype(*dtype).filter(|_| fits);
    let burn_dtype = burn_dtype.ok_or_else(|| kind_error::<K>(name, *dtype))?;
    if !device.supports_dtype(burn_dtype) {
        let device = format!("{device:?}");
        return Err(TensorError::Unsupported { field: name.clone(), dtype: *dtype, device });
    }
    Ok(())
}

fn kind_error<K: Basic>(field: &str, dtype: DType) -> TensorError {
    TensorError::Kind { field: field.to_owned(), dtype, asked: K::KIND.as_str() }
}
