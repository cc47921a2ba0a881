//! Reading a column where it lies: numbers as slices, strings one by one, each checked when it is touched.

use std::ops::Range;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, Field};

use super::error::ColumnError;
use super::layout::{self, Kind, Storage, storage};
use crate::field::{DType, Element};
use crate::shm::SharedBytes;

/// One column of a [`SharedTable`](super::SharedTable), borrowed from it.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    bytes: &'a SharedBytes,
    /// Of the column, also where this is a part of it.
    name: &'a str,
    data_type: &'a DataType,
    layout: &'a layout::Column,
}

impl<'a> Column<'a> {
    pub(super) fn new(
        bytes: &'a SharedBytes,
        field: &'a Field,
        layout: &'a layout::Column,
    ) -> Self {
        Self { bytes, name: field.name(), data_type: field.data_type(), layout }
    }

    /// Its name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Its type, as Arrow names it.
    pub fn data_type(&self) -> &'a DataType {
        self.data_type
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.layout.rows
    }

    /// True where there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of nulls, as the file says; [`SharedTable::verify`](super::SharedTable::verify) counts.
    pub fn null_count(&self) -> usize {
        self.layout.nulls
    }

    /// Which rows have a value; `None` where all have.
    pub fn validity(&self) -> Option<Validity<'a>> {
        let range = self.layout.validity.clone()?;
        Some(Validity(Bits { bytes: self.at(range), len: self.len() }))
    }

    /// The type that numbers are stored as: a date or a decimal as the integer it is, a dictionary as its
    /// keys, a list as its items. `None` for booleans, strings, bytes and numbers of more than 8 bytes.
    pub fn storage(&self) -> Option<DType> {
        match storage(self.data_type)? {
            Storage::Fixed { dtype, .. } => dtype,
            Storage::Dictionary { key, .. } => Some(key),
            Storage::List { item, .. } => match storage(&item)? {
                Storage::Fixed { dtype, .. } => dtype,
                _ => None,
            },
            Storage::Bits | Storage::Bytes { .. } => None,
        }
    }

    /// The numbers, one a row, in the table's memory. Where there are nulls, what stands for them is
    /// unspecified: see [`validity`](Self::validity).
    ///
    /// Dates, times and decimals are the integers that they are stored as: days or milliseconds since
    /// 1970, a timestamp's unit since 1970 in UTC, a decimal without its point.
    ///
    /// # Errors
    /// Where the column is not stored as `T`s.
    pub fn values<T: Element>(&self) -> Result<&'a [T], ColumnError> {
        match (&self.layout.kind, storage(self.data_type)) {
            (Kind::Fixed { values, .. }, Some(Storage::Fixed { dtype: Some(dtype), .. }))
                if dtype == T::DTYPE =>
            {
                self.cast(values.clone())
            }
            _ => Err(ColumnError::dtype(self.name, T::DTYPE, self.data_type)),
        }
    }

    /// The same, where no value is missing.
    ///
    /// # Errors
    /// Where there are nulls, or the column is not stored as `T`s.
    pub fn non_null<T: Element>(&self) -> Result<&'a [T], ColumnError> {
        let values = self.values()?;
        match self.null_count() {
            0 => Ok(values),
            nulls => Err(ColumnError::Nulls { column: self.name.to_owned(), nulls: nulls as u64 }),
        }
    }

    /// The booleans.
    ///
    /// # Errors
    /// Where the column is of another type.
    pub fn bools(&self) -> Result<Bits<'a>, ColumnError> {
        match &self.layout.kind {
            Kind::Bits(range) => Ok(Bits { bytes: self.at(range.clone()), len: self.len() }),
            _ => self.refuse("booleans"),
        }
    }

    /// The strings.
    ///
    /// # Errors
    /// Where the column is of another type.
    pub fn strings(&self) -> Result<Strings<'a>, ColumnError> {
        match self.data_type {
            DataType::Utf8 | DataType::LargeUtf8 => Ok(Strings(self.blobs()?)),
            _ => self.refuse("strings"),
        }
    }

    /// The bytes of a column of strings, of byte strings, or of values of a fixed number of bytes.
    ///
    /// # Errors
    /// Where the column is of another type.
    pub fn blobs(&self) -> Result<Blobs<'a>, ColumnError> {
        match &self.layout.kind {
            Kind::Bytes { .. } | Kind::Fixed { .. } => Ok(Blobs(*self)),
            _ => self.refuse("bytes"),
        }
    }

    /// The items of lists of a fixed size, one list behind the other, and how many a list has. Items of
    /// lists that are null are unspecified.
    ///
    /// # Errors
    /// Where the column is no list, its items are not stored as `T`s, or one of them is null.
    pub fn lists<T: Element>(&self) -> Result<(&'a [T], usize), ColumnError> {
        let (items, size) = self.items()?;
        Ok((items.non_null()?, size))
    }

    /// The items of lists of a fixed size as a column of their own, and how many a list has.
    ///
    /// # Errors
    /// Where the column is of another type.
    pub fn items(&self) -> Result<(Self, usize), ColumnError> {
        match (&self.layout.kind, self.data_type) {
            (Kind::List { items, size }, DataType::FixedSizeList(item, _)) => {
                Ok((Self { data_type: item.data_type(), layout: items, ..*self }, *size))
            }
            _ => self.refuse("lists of a fixed size"),
        }
    }

    /// The values of a dictionary, as a column of their own.
    ///
    /// # Errors
    /// Where the column is no dictionary.
    pub fn dictionary(&self) -> Result<Self, ColumnError> {
        match (&self.layout.kind, self.data_type) {
            (Kind::Dictionary { values, .. }, DataType::Dictionary(_, data_type)) => {
                Ok(Self { data_type, layout: values, ..*self })
            }
            _ => self.refuse("a dictionary"),
        }
    }

    /// The keys of a dictionary: the number of each row's value in it, from 0. They are not checked to
    /// be below its length. `T` is the type of the keys.
    ///
    /// # Errors
    /// Where the column is no dictionary, or its keys are not `T`s.
    pub fn keys<T: Element>(&self) -> Result<&'a [T], ColumnError> {
        match &self.layout.kind {
            Kind::Dictionary { keys, key, .. } if *key == T::DTYPE => self.cast(keys.clone()),
            _ => Err(ColumnError::dtype(self.name, T::DTYPE, &format!("{} keys", self.data_type))),
        }
    }

    /// The column as an array of Arrow over the table's memory, which the array keeps. All of it is
    /// checked first, as Arrow demands, so it takes time and is best kept.
    ///
    /// # Errors
    /// Where something does not hold.
    pub fn arrow(&self) -> Result<ArrayRef, ColumnError> {
        let owner = bytes::Bytes::from_owner(self.bytes.clone());
        let data = array_data(&Buffer::from(owner), self.layout, self.data_type);
        match data {
            Ok(data) => Ok(make_array(data)),
            Err(error) => self.damaged(error),
        }
    }

    /// Checks everything, as [`arrow`](Self::arrow) does, and the number of nulls.
    pub(super) fn verify(&self) -> Result<(), ColumnError> {
        self.arrow()?;
        let Some(validity) = self.validity() else { return Ok(()) };
        match validity.null_count() {
            found if found == self.null_count() => Ok(()),
            found => self.damaged(format!("{found} nulls, not {}", self.null_count())),
        }
    }

    /// Where the numbers lie in the map, and of which type they are: the values of a column without
    /// nulls, or the items of its lists.
    pub(super) fn contiguous(&self) -> Result<(Range<usize>, DType, Option<usize>), ColumnError> {
        if self.null_count() > 0 {
            let nulls = self.null_count() as u64;
            return Err(ColumnError::Nulls { column: self.name.to_owned(), nulls });
        }
        match (&self.layout.kind, storage(self.data_type)) {
            (Kind::Fixed { values, .. }, Some(Storage::Fixed { dtype: Some(dtype), .. })) => {
                Ok((values.clone(), dtype, None))
            }
            (Kind::List { size, .. }, _) => {
                let (items, size) = (self.items()?.0, *size);
                items.contiguous().map(|(range, dtype, _)| (range, dtype, Some(size)))
            }
            _ => self.refuse("numbers that lie one behind the other"),
        }
    }

    /// All bytes that the column's numbers are read from.
    pub(crate) fn raw(&self) -> Vec<&'a [u8]> {
        let mut ranges: Vec<_> = self.layout.validity.iter().cloned().collect();
        match &self.layout.kind {
            Kind::Fixed { values, .. } => ranges.push(values.clone()),
            Kind::Bits(bits) => ranges.push(bits.clone()),
            Kind::Bytes { offsets, data, .. } => ranges.extend([offsets.clone(), data.clone()]),
            Kind::Dictionary { keys, .. } => ranges.push(keys.clone()),
            Kind::List { .. } => {}
        }
        let mut raw: Vec<_> = ranges.into_iter().map(|range| self.at(range)).collect();
        if let Ok((items, _)) = self.items() {
            raw.extend(items.raw());
        }
        raw
    }

    fn at(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes.bytes()[range]
    }

    fn cast<T: Element>(&self, range: Range<usize>) -> Result<&'a [T], ColumnError> {
        // Checked when the layout was read, and again by the cast.
        bytemuck::try_cast_slice(self.at(range)).or_else(|error| self.damaged(error))
    }

    fn refuse<T>(&self, asked: &str) -> Result<T, ColumnError> {
        let found = self.data_type.to_string();
        Err(ColumnError::Type { column: self.name.to_owned(), asked: asked.to_owned(), found })
    }

    fn damaged<T>(&self, what: impl ToString) -> Result<T, ColumnError> {
        Err(ColumnError::Damaged { column: self.name.to_owned(), what: what.to_string() })
    }

    fn row(&self, row: usize) -> Result<Option<usize>, ColumnError> {
        if row >= self.len() {
            let (row, rows) = (row as u64, self.len() as u64);
            return Err(ColumnError::Row { column: self.name.to_owned(), row, rows });
        }
        Ok(self.validity().is_none_or(|validity| validity.is_valid(row)).then_some(row))
    }
}

/// A column in Arrow's own terms, and checked by them: offsets, keys, UTF-8.
fn array_data(
    whole: &Buffer,
    column: &layout::Column,
    data_type: &DataType,
) -> Result<ArrayData, arrow_schema::ArrowError> {
    let slice = |range: &Range<usize>| whole.slice_with_length(range.start, range.len());
    let nulls = column
        .validity
        .as_ref()
        .map(|range| NullBuffer::new(BooleanBuffer::new(slice(range), 0, column.rows)));
    let builder = ArrayDataBuilder::new(data_type.clone()).len(column.rows).nulls(nulls);
    let builder = match (&column.kind, data_type) {
        (Kind::Fixed { values, .. }, _) => builder.add_buffer(slice(values)),
        (Kind::Bits(bits), _) => builder.add_buffer(slice(bits)),
        (Kind::Bytes { offsets, large, data }, _) => {
            let offsets = match (offsets.is_empty(), large) {
                (false, _) => slice(offsets),
                (true, false) => Buffer::from_vec(vec![0i32]),
                (true, true) => Buffer::from_vec(vec![0i64]),
            };
            builder.add_buffer(offsets).add_buffer(slice(data))
        }
        (Kind::List { items, .. }, DataType::FixedSizeList(item, _)) => {
            builder.add_child_data(array_data(whole, items, item.data_type())?)
        }
        (Kind::Dictionary { keys, values, .. }, DataType::Dictionary(_, value_type)) => {
            builder.add_buffer(slice(keys)).add_child_data(array_data(whole, values, value_type)?)
        }
        _ => builder,
    };
    // Copies what is not aligned enough: decimals of 16 bytes in files of others.
    builder.align_buffers(true).build()
}

/// Bits, one a row.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Bits<'a> {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True where there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bit of a row.
    ///
    /// # Panics
    /// Where there is no such row, as slices do.
    pub fn get(&self, row: usize) -> bool {
        assert!(row < self.len, "row {row} of {}", self.len);
        self.bytes[row / 8] >> (row % 8) & 1 != 0
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = bool> + 'a {
        let bits = *self;
        (0..bits.len).map(move |row| bits.get(row))
    }

    /// The bits as they are stored: row 0 is the lowest bit of the first byte.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Which rows of a column have a value.
#[derive(Clone, Copy, Debug)]
pub struct Validity<'a>(Bits<'a>);

impl<'a> Validity<'a> {
    /// True where the row has a value.
    ///
    /// # Panics
    /// Where there is no such row, as slices do.
    pub fn is_valid(&self, row: usize) -> bool {
        self.0.get(row)
    }

    /// Of each row.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = bool> + 'a {
        self.0.iter()
    }

    /// The bitmap: row 0 is the lowest bit of the first byte, and 1 where there is a value.
    pub fn bitmap(&self) -> &'a [u8] {
        self.0.bytes
    }

    /// Counts the rows without a value.
    pub fn null_count(&self) -> usize {
        let Bits { bytes, len } = self.0;
        let whole = bytes[..len / 8].iter().map(|byte| byte.count_zeros() as usize).sum::<usize>();
        whole + (len / 8 * 8..len).filter(|&row| !self.is_valid(row)).count()
    }
}

/// The strings of a column.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a>(Blobs<'a>);

impl<'a> Strings<'a> {
    /// The string of a row, in the table's memory; `None` where it is null.
    ///
    /// # Errors
    /// Where there is no such row, or the file is damaged there.
    pub fn get(&self, row: usize) -> Result<Option<&'a str>, ColumnError> {
        let Some(bytes) = self.0.get(row)? else { return Ok(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => self.0.0.damaged(format!("row {row} is not UTF-8: {error}")),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<Option<&'a str>, ColumnError>> + 'a {
        let strings = *self;
        (0..strings.0.0.len()).map(move |row| strings.get(row))
    }
}

/// The byte strings of a column.
#[derive(Clone, Copy, Debug)]
pub struct Blobs<'a>(Column<'a>);

impl<'a> Blobs<'a> {
    /// The bytes of a row, in the table's memory; `None` where it is null.
    ///
    /// # Errors
    /// Where there is no such row, or the file is damaged there.
    pub fn get(&self, row: usize) -> Result<Option<&'a [u8]>, ColumnError> {
        let Some(row) = self.0.row(row)? else { return Ok(None) };
        let found = match &self.0.layout.kind {
            Kind::Fixed { values, width } => {
                self.0.at(values.clone()).get(row * width..(row + 1) * width)
            }
            Kind::Bytes { offsets, large, data } => {
                let offsets = self.0.at(offsets.clone());
                let range = if *large { span::<8>(offsets, row) } else { span::<4>(offsets, row) };
                range.and_then(|range| self.0.at(data.clone()).get(range))
            }
            _ => None,
        };
        match found {
            Some(bytes) => Ok(Some(bytes)),
            None => self.0.damaged(format!("row {row} lies outside of its bytes")),
        }
    }
}

/// Where a row's bytes lie, by offsets of `N` bytes each.
fn span<const N: usize>(offsets: &[u8], row: usize) -> Option<Range<usize>> {
    let at = |row: usize| {
        let bytes: &[u8; N] = offsets.get(row * N..)?.first_chunk()?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(bytes);
        usize::try_from(if N == 4 {
            i64::from(i32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))
        } else {
            i64::from_le_bytes(wide)
        })
        .ok()
    };
    Some(at(row)?..at(row + 1)?)
}
