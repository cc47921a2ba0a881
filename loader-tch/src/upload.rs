//! The way to another device: through pinned memory and without waiting, where there is CUDA.

use tch::{Device, TchError, Tensor};

use crate::TensorError;

/// What can be copied to a device: a tensor, and tuples and lists of what can.
///
/// A struct of one's own does it field by field:
///
/// ```no_run
/// use loader_tch::{TensorError, Upload};
/// use tch::{Device, Tensor};
///
/// struct Text {
///     tokens: Tensor,
///     length: Tensor,
/// }
///
/// impl Upload for Text {
///     fn upload(self, device: Device) -> Result<Self, TensorError> {
///         Ok(Self { tokens: self.tokens.upload(device)?, length: self.length.upload(device)? })
///     }
/// }
/// ```
pub trait Upload: Sized {
    /// The same on that device; itself, without a copy, where it is there already.
    ///
    /// To a CUDA device it is copied into pinned memory, after which its own is free, and from there
    /// by a copy that the call does not wait for; work that is given to the device later comes after
    /// it. libtorch keeps the pinned memory until then. To other devices it is copied before the call
    /// returns. (The code for CUDA follows libtorch's
    /// documentation; no test of this crate has run it on a GPU.)
    ///
    /// # Errors
    /// Where libtorch refuses, as for a device that is not there or is full.
    fn upload(self, device: Device) -> Result<Self, TensorError>;
}

impl Upload for Tensor {
    fn upload(self, device: Device) -> Result<Self, TensorError> {
        if self.device() == device {
            return Ok(self);
        }
        let pinned = device.is_cuda() && self.device() == Device::Cpu;
        let kind = self.kind();
        let staged = if pinned { self.f_pin_memory(device).map_err(refused)? } else { self };
        // Only pinned memory is kept by libtorch until a copy is done that nobody waits for. The last
        // flag would copy where nothing changes.
        staged.f_to_device_(device, kind, pinned, false).map_err(refused)
    }
}

impl<A: Upload, B: Upload> Upload for (A, B) {
    fn upload(self, device: Device) -> Result<Self, TensorError> {
        Ok((self.0.upload(device)?, self.1.upload(device)?))
    }
}

impl<A: Upload, B: Upload, C: Upload> Upload for (A, B, C) {
    fn upload(self, device: Device) -> Result<Self, TensorError> {
        Ok((self.0.upload(device)?, self.1.upload(device)?, self.2.upload(device)?))
    }
}

impl<T: Upload> Upload for Vec<T> {
    fn upload(self, device: Device) -> Result<Self, TensorError> {
        self.into_iter().map(|part| part.upload(device)).collect()
    }
}

fn refused(error: TchError) -> TensorError {
    TensorError::Torch { message: error.to_string() }
}
