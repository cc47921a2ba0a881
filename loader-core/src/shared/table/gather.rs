//! Batches to columns: each column's buffers grow in the spill, dictionaries become one, and views become
//! plain strings.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ByteArrayType, ByteViewType};
use arrow_array::{Array, ArrayRef, GenericByteArray, GenericByteViewArray, RecordBatch};
use arrow_buffer::{ArrowNativeType, BooleanBuffer};
use arrow_schema::{DataType, Field, Schema};

use super::layout::{Storage, storage};
use super::spill::{BitStream, Spill, Stream};
use crate::field::DType;

/// Why rows can't be taken.
#[derive(Debug)]
pub(super) enum GatherError {
    /// The spill could not be written.
    Io(io::Error),
    /// The batch is not of the schema that was said, or not sound.
    Batch(String),
}

impl From<io::Error> for GatherError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

type Gathering = Result<(), GatherError>;

fn refuse<T>(what: impl Into<String>) -> Result<T, GatherError> {
    Err(GatherError::Batch(what.into()))
}

/// What views are turned into; other types stay.
pub(super) fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(key, values) => {
            DataType::Dictionary(key.clone(), Box::new(plain(values)))
        }
        other => other.clone(),
    }
}

/// All columns, as far as they have come.
#[derive(Debug)]
pub(super) struct Gather {
    schema: Schema,
    columns: Vec<Column>,
    spill: Spill,
    rows: usize,
}

#[derive(Debug)]
struct Column {
    rows: usize,
    nulls: usize,
    /// From the first null on.
    validity: Option<BitStream>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Fixed {
        width: usize,
        values: Stream,
    },
    Bits(BitStream),
    /// Each row's end as an `i64`, and the bytes.
    Bytes {
        ends: Stream,
        data: Stream,
        text: bool,
        large: bool,
    },
    List {
        size: usize,
        items: Box<Column>,
    },
    Dictionary {
        keys: Stream,
        key: DType,
        dictionary: Box<Dictionary>,
    },
}

/// The values of all batches' dictionaries, each once.
#[derive(Debug)]
struct Dictionary {
    numbers: HashMap<Box<[u8]>, i32>,
    values: Column,
    /// The latest batch's values and their numbers, since batches mostly have the same.
    latest: Option<(ArrayRef, Vec<Option<i32>>)>,
}

impl Gather {
    /// For batches of that schema. The name and type of a column that tables can't have is the error.
    pub(super) fn new(schema: Schema, spill: File) -> Result<Self, (String, String)> {
        let mut columns = Vec::new();
        for field in schema.fields() {
            let column = Column::new(&plain(field.data_type()));
            let refused = || (field.name().clone(), field.data_type().to_string());
            columns.push(column.ok_or_else(refused)?);
        }
        let spill = Spill::new(spill, columns.len() * 3);
        Ok(Self { schema, columns, spill, rows: 0 })
    }

    /// Rows so far.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a batch's rows.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Gathering {
        if batch.num_columns() != self.columns.len() {
            let (found, expected) = (batch.num_columns(), self.columns.len());
            return refuse(format!("{found} columns, not {expected}"));
        }
        for ((column, array), field) in
            self.columns.iter_mut().zip(batch.columns()).zip(self.schema.fields())
        {
            if array.data_type() != field.data_type() {
                let (found, expected) = (array.data_type(), field.data_type());
                return refuse(format!("column {:?} is a {found}, not a {expected}", field.name()));
            }
            column.push(array, &mut self.spill)?;
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    /// No more rows will come.
    pub(super) fn finish(self) -> Gathered {
        let Self { schema, columns, spill, rows } = self;
        let fields: Vec<_> = schema.fields().iter().zip(&columns).map(finished_field).collect();
        let schema = Schema::new_with_metadata(fields, schema.metadata.clone());
        Gathered { schema, rows, columns, spill: spill.finish() }
    }
}

/// The field as it will be written, now that lengths and nulls are known.
fn finished_field((field, column): (&Arc<Field>, &Column)) -> Field {
    let nullable = field.is_nullable() || column.nulls > 0;
    (**field).clone().with_data_type(column.data_type(field.data_type())).with_nullable(nullable)
}

impl Column {
    fn new(data_type: &DataType) -> Option<Self> {
        let text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
        let values = match storage(data_type)? {
            Storage::Fixed { width, .. } => Values::Fixed { width, values: Stream::default() },
            Storage::Bits => Values::Bits(BitStream::default()),
            Storage::Bytes { large } => {
                let (ends, data) = Default::default();
                Values::Bytes { ends, data, text, large }
            }
            Storage::List { size, item } => {
                Values::List { size, items: Box::new(Self::new(&item)?) }
            }
            Storage::Dictionary { key, values } => {
                let (numbers, latest) = Default::default();
                let dictionary = Dictionary { numbers, values: Self::new(&values)?, latest };
                let dictionary = Box::new(dictionary);
                Values::Dictionary { keys: Stream::default(), key, dictionary }
            }
        };
        Some(Self { rows: 0, nulls: 0, validity: None, values })
    }

    /// What it is written as.
    fn data_type(&self, from: &DataType) -> DataType {
        match (&self.values, from) {
            (Values::Bytes { text, .. }, _) => match (text, self.is_large()) {
                (true, false) => DataType::Utf8,
                (true, true) => DataType::LargeUtf8,
                (false, false) => DataType::Binary,
                (false, true) => DataType::LargeBinary,
            },
            (Values::Dictionary { dictionary, key, .. }, DataType::Dictionary(from_key, from)) => {
                let kept =
                    dictionary.values.rows == 0 || dictionary.values.rows - 1 <= largest(*key);
                let key = if kept { from_key.clone() } else { Box::new(DataType::Int32) };
                DataType::Dictionary(key, Box::new(dictionary.values.data_type(from)))
            }
            _ => from.clone(),
        }
    }

    /// Whether its offsets take 8 bytes.
    fn is_large(&self) -> bool {
        match &self.values {
            Values::Bytes { data, large, .. } => *large || data.len() > i32::MAX as u64,
            _ => false,
        }
    }

    fn push(&mut self, array: &ArrayRef, spill: &mut Spill) -> Gathering {
        match &mut self.values {
            Values::Fixed { width, values } => {
                let data = array.to_data();
                let range = data.offset() * *width..(data.offset() + data.len()) * *width;
                let bytes = data.buffers().first().and_then(|buffer| buffer.get(range));
                let Some(bytes) = bytes else { return refuse("an array shorter than it says") };
                values.push(bytes, spill)?;
            }
            Values::Bits(bits) => bits.push(array.as_boolean().values(), spill)?,
            Values::Bytes { ends, data, .. } => push_bytes(array, ends, data, spill)?,
            Values::List { size, items } => {
                let list = array.as_fixed_size_list();
                if list.values().len() != array.len() * *size {
                    return refuse("lists of another size");
                }
                items.push(list.values(), spill)?;
            }
            Values::Dictionary { keys, dictionary, .. } => {
                let numbers = dictionary.numbers(array, spill)?;
                let valid: BooleanBuffer = numbers.iter().map(Option::is_some).collect();
                let numbers: Vec<i32> = numbers.iter().map(|n| n.unwrap_or(0)).collect();
                keys.push(bytemuck::cast_slice(&numbers), spill)?;
                let missing = valid.len() - valid.count_set_bits();
                return self.count(array.len(), missing, Some(&valid), spill);
            }
        }
        let nulls = array.nulls();
        self.count(array.len(), array.null_count(), nulls.map(|nulls| nulls.inner()), spill)
    }

    /// Counts rows that were added, and which of them are null.
    fn count(
        &mut self,
        rows: usize,
        nulls: usize,
        valid: Option<&BooleanBuffer>,
        spill: &mut Spill,
    ) -> Gathering {
        if nulls > 0 && self.validity.is_none() {
            let mut bits = BitStream::default();
            bits.repeat(true, self.rows, spill)?;
            self.validity = Some(bits);
        }
        if let Some(bits) = &mut self.validity {
            match valid {
                Some(valid) => bits.push(valid, spill)?,
                None => bits.repeat(true, rows, spill)?,
            }
        }
        self.rows += rows;
        self.nulls += nulls;
        Ok(())
    }

    /// Adds one value of a dictionary.
    fn push_one(&mut self, value: &[u8], spill: &mut Spill) -> Gathering {
        match &mut self.values {
            Values::Fixed { values, .. } => values.push(value, spill)?,
            Values::Bytes { ends, data, .. } => {
                data.push(value, spill)?;
                ends.push(&(data.len() as i64).to_le_bytes(), spill)?;
            }
            _ => return refuse("a dictionary of such values"),
        }
        self.count(1, 0, None, spill)
    }
}

/// The largest key of that type, as far as keys go.
fn largest(key: DType) -> usize {
    match key {
        DType::I8 => i8::MAX as usize,
        DType::U8 => u8::MAX as usize,
        DType::I16 => i16::MAX as usize,
        DType::U16 => u16::MAX as usize,
        _ => i32::MAX as usize,
    }
}

/// Adds the bytes of strings, or byte strings, of any form.
fn push_bytes(
    array: &ArrayRef,
    ends: &mut Stream,
    data: &mut Stream,
    spill: &mut Spill,
) -> Gathering {
    fn whole<T: ByteArrayType>(
        array: &GenericByteArray<T>,
        ends: &mut Stream,
        data: &mut Stream,
        spill: &mut Spill,
    ) -> Gathering {
        let offsets = array.value_offsets();
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return Ok(()) };
        let (first, last) = (first.as_usize(), last.as_usize());
        let shift = data.len() as i64 - first as i64;
        let shifted: Vec<i64> =
            offsets[1..].iter().map(|offset| offset.as_usize() as i64 + shift).collect();
        data.push(&array.value_data()[first..last], spill)?;
        ends.push(bytemuck::cast_slice(&shifted), spill)?;
        Ok(())
    }
    fn views<T: ByteViewType>(
        array: &GenericByteViewArray<T>,
        ends: &mut Stream,
        data: &mut Stream,
        spill: &mut Spill,
    ) -> Gathering
    where
        T::Native: AsRef<[u8]>,
    {
        let (mut bytes, mut shifted) = (Vec::new(), Vec::with_capacity(array.len()));
        for value in array.iter() {
            if let Some(value) = value {
                bytes.extend_from_slice(value.as_ref());
            }
            shifted.push((data.len() + bytes.len() as u64) as i64);
        }
        data.push(&bytes, spill)?;
        ends.push(bytemuck::cast_slice(&shifted), spill)?;
        Ok(())
    }
    match array.data_type() {
        DataType::Utf8 => whole(array.as_string::<i32>(), ends, data, spill),
        DataType::LargeUtf8 => whole(array.as_string::<i64>(), ends, data, spill),
        DataType::Binary => whole(array.as_binary::<i32>(), ends, data, spill),
        DataType::LargeBinary => whole(array.as_binary::<i64>(), ends, data, spill),
        DataType::Utf8View => views(array.as_string_view(), ends, data, spill),
        DataType::BinaryView => views(array.as_binary_view(), ends, data, spill),
        other => refuse(format!("strings as a {other}")),
    }
}

impl Dictionary {
    /// Each row's number in this dictionary, which grows by what it has not seen.
    fn numbers(
        &mut self,
        array: &ArrayRef,
        spill: &mut Spill,
    ) -> Result<Vec<Option<i32>>, GatherError> {
        let rows = array.as_any_dictionary();
        let values = rows.values();
        let known = self.latest.as_ref().filter(|(latest, _)| Arc::ptr_eq(latest, values));
        if known.is_none() {
            let mut numbers = Vec::with_capacity(values.len());
            for at in 0..values.len() {
                numbers.push(match value_bytes(values, at)? {
                    Some(value) => Some(self.number(&value, spill)?),
                    None => None,
                });
            }
            self.latest = Some((Arc::clone(values), numbers));
        }
        let numbers = self.latest.as_ref().map_or(&[][..], |(_, numbers)| numbers);
        if numbers.is_empty() {
            return Ok(vec![None; array.len()]);
        }
        let keys = rows.normalized_keys();
        let number = |(row, key): (usize, &usize)| {
            if array.is_null(row) { None } else { numbers.get(*key).copied().flatten() }
        };
        Ok(keys.iter().enumerate().map(number).collect())
    }

    fn number(&mut self, value: &[u8], spill: &mut Spill) -> Result<i32, GatherError> {
        if let Some(&number) = self.numbers.get(value) {
            return Ok(number);
        }
        let Ok(number) = i32::try_from(self.numbers.len()) else {
            return refuse("more than 2^31 values in a dictionary: cast the column to strings");
        };
        self.values.push_one(value, spill)?;
        self.numbers.insert(value.into(), number);
        Ok(number)
    }
}

/// One value of a dictionary as bytes; `None` where it is null.
fn value_bytes(values: &ArrayRef, at: usize) -> Result<Option<Vec<u8>>, GatherError> {
    if values.is_null(at) {
        return Ok(None);
    }
    Ok(Some(match values.data_type() {
        DataType::Utf8 => values.as_string::<i32>().value(at).as_bytes().to_vec(),
        DataType::LargeUtf8 => values.as_string::<i64>().value(at).as_bytes().to_vec(),
        DataType::Utf8View => values.as_string_view().value(at).as_bytes().to_vec(),
        DataType::Binary => values.as_binary::<i32>().value(at).to_vec(),
        DataType::LargeBinary => values.as_binary::<i64>().value(at).to_vec(),
        DataType::BinaryView => values.as_binary_view().value(at).to_vec(),
        other => {
            let Some(Storage::Fixed { width, .. }) = storage(other) else {
                return refuse(format!("a dictionary of {other}s"));
            };
            let data = values.to_data();
            let start = (data.offset() + at) * width;
            match data.buffers().first().and_then(|buffer| buffer.get(start..start + width)) {
                Some(value) => value.to_vec(),
                None => return refuse("a dictionary shorter than it says"),
            }
        }
    }))
}

/// Columns that are complete, and wait to be written one behind the other.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) schema: Schema,
    pub(super) rows: usize,
    columns: Vec<Column>,
    spill: Arc<File>,
}

/// A record batch's part of the file: what its metadata says, and its buffers.
pub(super) struct Part<'a> {
    pub(super) rows: usize,
    /// Rows and nulls of each node.
    pub(super) nodes: Vec<(usize, usize)>,
    pub(super) buffers: Vec<Out<'a>>,
}

/// One buffer as it is written.
pub(super) enum Out<'a> {
    Nothing,
    Plain(&'a Stream),
    Bits(&'a BitStream),
    /// Of rows that end there.
    Offsets {
        ends: &'a Stream,
        large: bool,
    },
    Keys {
        numbers: &'a Stream,
        bytes: usize,
    },
}

impl Gathered {
    /// The batch of all rows.
    pub(super) fn batch(&self) -> Part<'_> {
        let mut part = Part { rows: self.rows, nodes: Vec::new(), buffers: Vec::new() };
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            column.put(field.data_type(), &mut part);
        }
        part
    }

    /// Those of the dictionaries, in the order of their columns.
    pub(super) fn dictionaries(&self) -> impl Iterator<Item = Part<'_>> {
        self.columns.iter().zip(self.schema.fields()).filter_map(|(column, field)| {
            let (Values::Dictionary { dictionary, .. }, DataType::Dictionary(_, data_type)) =
                (&column.values, field.data_type())
            else {
                return None;
            };
            let rows = dictionary.values.rows;
            let mut part = Part { rows, nodes: Vec::new(), buffers: Vec::new() };
            dictionary.values.put(data_type, &mut part);
            Some(part)
        })
    }

    /// Writes a buffer.
    pub(super) fn write(&self, buffer: &Out<'_>, out: &mut impl Write) -> io::Result<()> {
        let spill = &self.spill;
        match buffer {
            Out::Nothing => Ok(()),
            Out::Plain(stream) => stream.copy(spill, out),
            Out::Bits(bits) => bits.copy(spill, out),
            Out::Offsets { ends, large: true } => {
                out.write_all(&[0; 8])?;
                ends.copy(spill, out)
            }
            Out::Offsets { ends, large: false } => {
                out.write_all(&[0; 4])?;
                ends.read(spill, |piece| narrow::<8, 4>(piece, out))
            }
            Out::Keys { numbers, bytes } => numbers.read(spill, |piece| match bytes {
                1 => narrow::<4, 1>(piece, out),
                2 => narrow::<4, 2>(piece, out),
                4 => out.write_all(piece),
                _ => widen(piece, out),
            }),
        }
    }
}

/// Writes the lower bytes of each number.
fn narrow<const FROM: usize, const TO: usize>(
    piece: &mut [u8],
    out: &mut impl Write,
) -> io::Result<()> {
    let numbers = piece.len() / FROM;
    for at in 0..numbers {
        piece.copy_within(at * FROM..at * FROM + TO, at * TO);
    }
    out.write_all(&piece[..numbers * TO])
}

/// Writes each number of 4 bytes, none of which is negative, in 8.
fn widen(piece: &[u8], out: &mut impl Write) -> io::Result<()> {
    let wide: Vec<u8> = piece
        .chunks_exact(4)
        .flat_map(|number| [number[0], number[1], number[2], number[3], 0, 0, 0, 0])
        .collect();
    out.write_all(&wide)
}

impl Column {
    fn put<'a>(&'a self, data_type: &DataType, part: &mut Part<'a>) {
        part.nodes.push((self.rows, self.nulls));
        part.buffers.push(self.validity.as_ref().map_or(Out::Nothing, Out::Bits));
        match &self.values {
            Values::Fixed { values, .. } => part.buffers.push(Out::Plain(values)),
            Values::Bits(bits) => part.buffers.push(Out::Bits(bits)),
            Values::Bytes { ends, data, .. } => {
                part.buffers.push(Out::Offsets { ends, large: self.is_large() });
                part.buffers.push(Out::Plain(data));
            }
            Values::List { items, .. } => items.put(data_type, part),
            Values::Dictionary { keys: numbers, .. } => {
                let bytes = match storage(data_type) {
                    Some(Storage::Dictionary { key, .. }) => key.size(),
                    _ => 4,
                };
                part.buffers.push(Out::Keys { numbers, bytes });
            }
        }
    }
}

impl Out<'_> {
    /// Its bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Plain(stream) => stream.len(),
            Self::Bits(bits) => bits.bytes(),
            Self::Offsets { ends, large: true } => ends.len() + 8,
            Self::Offsets { ends, large: false } => ends.len() / 2 + 4,
            Self::Keys { numbers, bytes } => numbers.len() / 4 * *bytes as u64,
        }
    }
}
