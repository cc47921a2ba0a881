//! A lease as burn's own bytes.

use burn::tensor::{AllocationProperty, Bytes, DType as BurnDType, TensorData};
use loader_core::{DType, SharedField};

/// The field as burn's data, for whatever burn makes of data: shape, element type and bytes of the
/// field, which is held until the data and all that shares it is dropped. Copies nothing. The field may be one
/// of a batch, of another process's batch, or of a table.
///
/// `None` where burn has no such element type; it has all of today's.
pub fn tensor_data(field: impl SharedField) -> Option<TensorData> {
    let dtype = burn_dtype(field.dtype())?;
    let shape = field.shape().to_vec();
    // "Other" is memory that is neither the heap's nor a file's; burn copies it before it writes.
    let bytes = Bytes::from_shared(bytes::Bytes::from_owner(field), AllocationProperty::Other);
    TensorData::try_from_bytes(bytes, shape, dtype).ok()
}

/// The element type by burn's name.
pub(crate) fn burn_dtype(dtype: DType) -> Option<BurnDType> {
    match dtype {
        DType::U8 => Some(BurnDType::U8),
        DType::U16 => Some(BurnDType::U16),
        DType::U32 => Some(BurnDType::U32),
        DType::U64 => Some(BurnDType::U64),
        DType::I8 => Some(BurnDType::I8),
        DType::I16 => Some(BurnDType::I16),
        DType::I32 => Some(BurnDType::I32),
        DType::F16 => Some(BurnDType::F16),
        DType::BF16 => Some(BurnDType::BF16),
        DType::F32 => Some(BurnDType::F32),
        DType::I64 => Some(BurnDType::I64),
        DType::F64 => Some(BurnDType::F64),
        _ => None,
    }
}
