//! Fields as tensors of burn's LibTorch backend: `loader-tch`'s tensors, wrapped.

#![allow(deprecated, reason = "burn gives the backend up some day, but has it")]

use burn::backend::libtorch::TchTensor;
use burn::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchDevice, DispatchTensor, DispatchTensorKind,
    LibTorchDevice,
};
use burn::tensor::kind::{Autodiff, Basic, Kind};
use burn::tensor::{Bool, Device, Float, Int, Tensor};
use loader_core::FieldLease;
use loader_tch::{FieldTensor, Upload};

use crate::error::TensorError;

/// The device by the backend's own name, where it is one of libtorch's.
pub(crate) fn torch_device(device: &Device) -> Option<LibTorchDevice> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::LibTorch(device) => Some(*device),
        _ => None,
    }
}

/// The field as a tensor of that device, which holds its element type; `torch` is its other name.
pub(crate) fn tensor<const D: usize, K: Basic>(
    lease: FieldLease,
    torch: LibTorchDevice,
    device: &Device,
) -> Result<Tensor<D, K>, TensorError> {
    let tensor = lease.into_tensor().and_then(|tensor| tensor.upload(torch.into()));
    // burn changes a tensor in place where it has the only handle to it, as it has here.
    let tensor = TchTensor::new(tensor.map_err(TensorError::other)?);
    let (place, tensor): (fn(_, _) -> _, _) = match K::KIND {
        Kind::Float => (place::<D, Float>, BackendTensor::Float(tensor)),
        Kind::Int => (place::<D, Int>, BackendTensor::Int(tensor)),
        Kind::Bool => (place::<D, Bool>, BackendTensor::Bool(tensor)),
    };
    let kind = DispatchTensorKind::LibTorch(tensor);
    let tensor = DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled };
    Ok(Tensor::from_dispatch(place(tensor, device)))
}

/// The tensor with the device's autodiff, if it has one.
fn place<const D: usize, K: Autodiff>(tensor: DispatchTensor, device: &Device) -> DispatchTensor {
    let tensor = Tensor::<D, K>::from_dispatch(tensor);
    let tensor = match device.gradient_checkpointing_strategy() {
        Some(strategy) => tensor.autodiff().with_gradient_checkpointing_strategy(strategy),
        None => tensor,
    };
    tensor.into_dispatch()
}
