//! A table's column as numbers of any type, read by row and place.

use half::f16;

use crate::field::{DType, Element};
use crate::shared::table::{Bits, Column, ColumnError, SharedTable, Validity};

/// A column that can be read as numbers: which one, and how.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) name: String,
    index: usize,
    how: How,
    /// Its element type; `None` for booleans.
    pub(crate) dtype: Option<DType>,
    /// Numbers of a row.
    pub(crate) width: usize,
    /// Rows without a value, and rows' items without one.
    pub(crate) nulls: u64,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Bits,
    Values,
    Keys,
    Items,
}

/// The numbers where they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    Bits(Bits<'a>),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    F16(&'a [f16]),
    F32(&'a [f32]),
    F64(&'a [f64]),
}

/// Runs the same code for each type of number: `$get` is a function from a position to the number there.
macro_rules! with_numbers {
    ($values:expr, $get:ident => $code:expr) => {
        with_numbers!(@ $values, $get => $code, U8 U16 U32 U64 I8 I16 I32 I64 F16 F32 F64)
    };
    (@ $values:expr, $get:ident => $code:expr, $($variant:ident)*) => {
        match $values {
            Values::Bits(bits) => {
                let $get = move |at: usize| u8::from(bits.get(at));
                $code
            }
            $(Values::$variant(slice) => {
                let $get = move |at: usize| slice[at];
                $code
            })*
        }
    };
}
pub(crate) use with_numbers;

/// A number of a table.
pub(crate) trait Number: Copy {
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// Of integers that fit, which is what it is asked for.
    fn to_i64(self) -> i64;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn to_f32(self) -> f32 {
                self as f32
            }

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn to_i64(self) -> i64 {
                self as i64
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl Number for f16 {
    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn to_f64(self) -> f64 {
        self.to_f64()
    }

    fn to_i64(self) -> i64 {
        self.to_f32() as i64
    }
}

/// Which numbers are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present<'a> {
    rows: Option<Validity<'a>>,
    items: Option<Validity<'a>>,
}

impl Present<'_> {
    /// True where none is missing.
    pub(crate) fn all(&self) -> bool {
        self.rows.is_none() && self.items.is_none()
    }

    /// Whether that item, of all items of all rows, is there.
    pub(crate) fn has(&self, row: usize, item: usize) -> bool {
        self.rows.is_none_or(|rows| rows.is_valid(row))
            && self.items.is_none_or(|items| items.is_valid(item))
    }
}

impl Numbers {
    pub(crate) fn of(table: &SharedTable, name: &str) -> Result<Self, ColumnError> {
        let index = table.index_of(name)?;
        let column = table.view_at(index)?;
        let mut found = Self {
            name: name.to_owned(),
            index,
            how: How::Values,
            dtype: column.storage(),
            width: 1,
            nulls: column.null_count() as u64,
        };
        if column.bools().is_ok() {
            found.how = How::Bits;
        } else if column.dictionary().is_ok() {
            found.how = How::Keys;
        } else if let Ok((items, size)) = column.items() {
            (found.how, found.width) = (How::Items, size);
            found.nulls += items.null_count() as u64;
        }
        let readable = found.dtype.is_some() || matches!(found.how, How::Bits);
        if !readable || found.width == 0 {
            return Err(ColumnError::Type {
                column: name.to_owned(),
                asked: "numbers".to_owned(),
                found: column.data_type().to_string(),
            });
        }
        Ok(found)
    }

    /// The numbers, and which of them are there.
    pub(crate) fn read<'a>(
        &self,
        table: &'a SharedTable,
    ) -> Result<(Values<'a>, Present<'a>), ColumnError> {
        let column = table.view_at(self.index)?;
        let rows = column.validity();
        let present = |items| Present { rows, items };
        Ok(match self.how {
            How::Bits => (Values::Bits(column.bools()?), present(None)),
            How::Values => (self.values(&column, false)?, present(None)),
            How::Keys => (self.values(&column, true)?, present(None)),
            How::Items => {
                let (items, _) = column.items()?;
                (self.values(&items, false)?, present(items.validity()))
            }
        })
    }

    fn values<'a>(&self, column: &Column<'a>, keys: bool) -> Result<Values<'a>, ColumnError> {
        fn slice<'a, T: Element>(column: &Column<'a>, keys: bool) -> Result<&'a [T], ColumnError> {
            if keys { column.keys() } else { column.values() }
        }
        Ok(match self.dtype {
            Some(DType::U8) => Values::U8(slice(column, keys)?),
            Some(DType::U16) => Values::U16(slice(column, keys)?),
            Some(DType::U32) => Values::U32(slice(column, keys)?),
            Some(DType::U64) => Values::U64(slice(column, keys)?),
            Some(DType::I8) => Values::I8(slice(column, keys)?),
            Some(DType::I16) => Values::I16(slice(column, keys)?),
            Some(DType::I32) => Values::I32(slice(column, keys)?),
            Some(DType::I64) => Values::I64(slice(column, keys)?),
            Some(DType::F16) => Values::F16(slice(column, keys)?),
            Some(DType::F32) => Values::F32(slice(column, keys)?),
            // Arrow has no bfloat16, and booleans are read elsewhere.
            Some(DType::F64 | DType::BF16) | None => Values::F64(slice(column, keys)?),
        })
    }
}
