//! What a batch is made of: named fields of one element type and a fixed shape per sample.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The element type of a [`Field`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// Unsigned byte.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed byte.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer, what frameworks expect of class labels.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// bfloat16: the upper half of an `f32`.
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// A Rust type that is the element of a field. Sealed: [`DType`] lists them all.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// The matching run-time tag.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $tag:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$tag;
        }
    )*};
}
element!(
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
);

/// Shared memory that is one field of many samples, owned: what a tensor can be made over without a copy.
/// The elements are contiguous, row-major and aligned for their type, stay at their address, and are not
/// written to by anybody else.
///
/// Implemented by what batches ([`FieldLease`](crate::FieldLease)), batches of other processes
/// ([`OpenField`](crate::OpenField)) and tables (`LentField`, with the feature `table`)
/// give.
pub trait SharedField: AsRef<[u8]> + Send + Sync + 'static {
    /// The element type.
    fn dtype(&self) -> DType;

    /// The shape, samples first.
    fn shape(&self) -> &[usize];
}

/// One named part of every sample, such as `image` or `label`.
///
/// In a batch the samples of a field lie one behind the other, so a batch of `n` samples is one
/// contiguous row-major tensor of shape `[n, shape...]`, aligned to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// The name by which the batch is asked for it; unique within a dataset.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// The shape of one sample, without the batch dimension. Empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field of that name, element type and shape per sample.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Elements in one sample; `None` where the product overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Bytes of one sample; `None` where the product overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.dtype.size())
    }
}
