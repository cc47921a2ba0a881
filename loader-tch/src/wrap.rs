//! The edge to C++: memory and its owner go in, a tensor that keeps the owner alive comes out.

use std::ffi::{CStr, c_char, c_int, c_void};

use loader_core::DType;
use tch::Tensor;
use torch_sys::C_tensor;

use crate::TensorError;

unsafe extern "C" {
    fn loader_tch_wrap(
        data: *mut c_void,
        sizes: *const i64,
        dims: usize,
        dtype: c_int,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
        error: *mut c_char,
        room: usize,
    ) -> *mut C_tensor;
}

/// A contiguous CPU tensor of that shape over `data`; `owner` is dropped with the last tensor that
/// uses the storage, on whichever thread that is, or before an error is returned.
///
/// # Safety
/// Until `owner` is dropped, `data` is valid for reads and writes of as many elements as the shape
/// and `dtype` say, aligned for them, and nobody else reads or writes it.
pub(crate) unsafe fn wrap<T: Send + 'static>(
    data: *mut u8,
    shape: &[usize],
    dtype: DType,
    owner: T,
) -> Result<Tensor, TensorError> {
    // libtorch knows this memory by address alone and may drop it on any thread, hence `Send`.
    unsafe extern "C" fn release<T>(owner: *mut c_void) {
        // SAFETY: `owner` came from `Box::<T>::into_raw` below, and the C++ side calls this once.
        drop(unsafe { Box::from_raw(owner.cast::<T>()) });
    }
    let dtype_code = match dtype {
        DType::U8 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::F32 => 3,
        DType::I64 => 4,
        DType::I8 => 5,
        DType::I16 => 6,
        DType::I32 => 7,
        DType::F64 => 8,
        _ => return Err(TensorError::DType { dtype }),
    };
    let sizes = shape
        .iter()
        .map(|&size| i64::try_from(size))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| TensorError::Shape { shape: shape.to_vec() })?;
    let owner = Box::into_raw(Box::new(owner));
    let mut error: [c_char; 512] = [0; 512];
    // SAFETY:
    // - `sizes` and `error` outlive the call and their lengths are passed beside them.
    // - `dtype_code` is one of those that the C++ side has in its table.
    // - `release` fits the type that `owner` was boxed as.
    // - That `data` may be used until then is this function's own condition.
    let tensor = unsafe {
        loader_tch_wrap(
            data.cast(),
            sizes.as_ptr(),
            sizes.len(),
            dtype_code,
            owner.cast(),
            release::<T>,
            error.as_mut_ptr(),
            error.len(),
        )
    };
    if tensor.is_null() {
        // SAFETY: the C++ side ended its message by a zero inside `error`.
        let message = unsafe { CStr::from_ptr(error.as_ptr()) };
        return Err(TensorError::Torch { message: message.to_string_lossy().into_owned() });
    }
    // SAFETY: a tensor allocated by `new`, given to nobody else, as tch makes its own.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use half::{bf16, f16};
    use loader_core::Element;
    use tch::{Kind, Tensor};

    use super::*;

    /// Memory that counts how often it was given back.
    struct Owned<T> {
        elements: Vec<T>,
        dropped: Arc<AtomicUsize>,
    }

    impl<T> Drop for Owned<T> {
        fn drop(&mut self) {
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Count(Arc<AtomicUsize>);

    impl Count {
        fn new() -> Self {
            Self(Arc::default())
        }

        fn get(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }

        fn tensor<T: Element + Send>(&self, elements: &[T], shape: &[usize]) -> Tensor {
            self.try_tensor(elements, shape).unwrap()
        }

        fn try_tensor<T: Element + Send>(
            &self,
            elements: &[T],
            shape: &[usize],
        ) -> Result<Tensor, TensorError> {
            let mut owner = Owned { elements: elements.to_vec(), dropped: self.0.clone() };
            let data = owner.elements.as_mut_ptr().cast();
            // SAFETY: the elements belong to `owner`, whose vector does not grow, and the shapes of
            // these tests either have as many elements or are refused by libtorch.
            unsafe { wrap(data, shape, T::DTYPE, owner) }
        }
    }

    #[test]
    fn every_element_type_keeps_its_values() {
        let count = Count::new();
        let check = |tensor: Tensor, kind| {
            assert_eq!((tensor.kind(), tensor.size()), (kind, vec![2, 2]));
            assert!(tensor.is_contiguous());
            let values: Vec<f64> = tensor.to_kind(Kind::Double).view(-1).try_into().unwrap();
            assert_eq!(values, [0.0, 1.0, 2.0, 100.0]);
        };
        check(count.tensor(&[0u8, 1, 2, 100], &[2, 2]), Kind::Uint8);
        check(count.tensor(&[0.0, 1.0, 2.0, 100.0].map(f16::from_f32), &[2, 2]), Kind::Half);
        check(count.tensor(&[0.0, 1.0, 2.0, 100.0].map(bf16::from_f32), &[2, 2]), Kind::BFloat16);
        check(count.tensor(&[0.0f32, 1.0, 2.0, 100.0], &[2, 2]), Kind::Float);
        check(count.tensor(&[0.0f64, 1.0, 2.0, 100.0], &[2, 2]), Kind::Double);
        check(count.tensor(&[0i8, 1, 2, 100], &[2, 2]), Kind::Int8);
        check(count.tensor(&[0i16, 1, 2, 100], &[2, 2]), Kind::Int16);
        check(count.tensor(&[0i32, 1, 2, 100], &[2, 2]), Kind::Int);
        check(count.tensor(&[0i64, 1, 2, 100], &[2, 2]), Kind::Int64);
        assert_eq!(count.get(), 9);
    }

    #[test]
    fn scalars_and_empty_dimensions_have_their_shape() {
        let count = Count::new();
        assert_eq!(count.tensor(&[7i64], &[]).size(), [0i64; 0]);
        assert_eq!(count.tensor::<f32>(&[], &[0, 3, 2]).size(), [0, 3, 2]);
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn the_owner_outlives_every_clone_and_view() {
        let count = Count::new();
        let tensor = count.tensor(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
        let clone = tensor.shallow_clone();
        let row = tensor.get(2);
        let column = tensor.transpose(0, 1).get(1);
        drop(tensor);
        drop(clone);
        assert_eq!(count.get(), 0);
        assert_eq!(Vec::<f32>::try_from(row.shallow_clone()).unwrap(), [5.0, 6.0]);
        drop(row);
        assert_eq!(Vec::<f32>::try_from(column.contiguous()).unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(count.get(), 0);
        drop(column);
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn the_owner_outlives_what_autograd_saved() {
        let count = Count::new();
        let input = count.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]);
        let weight = Tensor::ones([2, 1], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
        let loss = input.matmul(&weight).sum(Kind::Float);
        drop(input);
        assert_eq!(count.get(), 0);
        loss.backward();
        assert_eq!(Vec::<f32>::try_from(weight.grad().view(-1)).unwrap(), [4.0, 6.0]);
        drop(loss);
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn the_owner_is_dropped_where_libtorch_refuses() {
        let count = Count::new();
        let error = count.try_tensor(&[1.0f32], &[1 << 62, 1 << 62]).unwrap_err();
        assert!(matches!(&error, TensorError::Torch { message } if !message.is_empty()), "{error}");
        assert_eq!(count.get(), 1);
        let error = count.try_tensor(&[1.0f32], &[usize::MAX]).unwrap_err();
        assert!(matches!(error, TensorError::Shape { .. }), "{error}");
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn a_tensor_may_be_dropped_on_another_thread() {
        let count = Count::new();
        let tensor = count.tensor(&[1i64, 2], &[2]);
        let view = tensor.get(0);
        thread::spawn(move || drop(tensor)).join().unwrap();
        assert_eq!(count.get(), 0);
        thread::spawn(move || assert_eq!(view.int64_value(&[]), 1)).join().unwrap();
        assert_eq!(count.get(), 1);
    }
}
