//! Where the columns of an Arrow IPC file lie, read from its footer and the metadata of its messages.
//!
//! Nothing of the columns themselves is looked at. What is found here is safe to use: every range lies
//! in the file, is long enough for the rows that are claimed, and is aligned for its type.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::{
    Block, Buffer, Endianness, FieldNode, Message, MetadataVersion, RecordBatch, root_as_footer,
    root_as_message,
};
use arrow_schema::{DataType, IntervalUnit, Schema};

use super::error::SharedTableError;
use crate::field::DType;

/// At both ends of a file.
pub(super) const MAGIC: &[u8; 6] = b"ARROW1";
/// At the beginning it takes 8 bytes, at the end it stands behind the footer's length.
const HEAD: usize = 8;
const TAIL: usize = 10;
/// Before the length of a message's metadata.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];
/// No table has that much metadata, and it is copied before it is read.
const MAX_METADATA: usize = 1 << 28;

/// Why a file can't be mapped as a table.
#[derive(Debug)]
pub(super) enum Fault {
    /// It is fine, but in another form: it has to be converted.
    Form(&'static str),
    /// A column of a type that tables don't have.
    Type { column: String, data_type: String },
    /// It is damaged.
    Damaged(String),
}

impl Fault {
    /// The same as what the user is told.
    pub(super) fn into_error(self, path: &Path) -> SharedTableError {
        let path = path.to_owned();
        match self {
            Self::Form(what) => SharedTableError::Kind { path, what: format!("it has {what}") },
            Self::Type { column, data_type } => {
                SharedTableError::ColumnType { path, column, data_type }
            }
            Self::Damaged(what) => SharedTableError::Damaged { path, what },
        }
    }
}

fn damaged<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Damaged(what.into()))
}

/// What a file says about itself in its footer.
pub(super) type Notes = HashMap<String, String>;

/// A table in an IPC file.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) schema: Schema,
    pub(super) rows: usize,
    pub(super) columns: Vec<Column>,
    /// What the file says about itself, beside the schema.
    pub(super) notes: Notes,
}

/// One column, or the values of a dictionary.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) rows: usize,
    /// As the file counts them.
    pub(super) nulls: usize,
    /// One bit a row; there where there are nulls.
    pub(super) validity: Option<Range<usize>>,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// So many bytes a row.
    Fixed {
        values: Range<usize>,
        width: usize,
    },
    /// One bit a row.
    Bits(Range<usize>),
    /// Offsets of 4 or 8 bytes, one more than rows, into the bytes.
    Bytes {
        offsets: Range<usize>,
        large: bool,
        data: Range<usize>,
    },
    /// As many rows of another column to each row.
    List {
        size: usize,
        items: Box<Column>,
    },
    Dictionary {
        keys: Range<usize>,
        key: DType,
        values: Box<Column>,
    },
}

/// What a type is stored as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Bytes a row, what the address has to be a multiple of, and the type of the number, where it is one
    /// of ours.
    Fixed {
        width: usize,
        align: usize,
        dtype: Option<DType>,
    },
    Bits,
    Bytes {
        large: bool,
    },
    List {
        size: usize,
        item: DataType,
    },
    Dictionary {
        key: DType,
        values: DataType,
    },
}

/// What values of that type are stored as; `None` for types that tables don't have.
pub(super) fn storage(data_type: &DataType) -> Option<Storage> {
    use DataType as T;
    let number = |dtype: DType| {
        Some(Storage::Fixed { width: dtype.size(), align: dtype.size(), dtype: Some(dtype) })
    };
    let bytes = |width, align| Some(Storage::Fixed { width, align, dtype: None });
    match data_type {
        T::Boolean => Some(Storage::Bits),
        T::Int8 => number(DType::I8),
        T::Int16 => number(DType::I16),
        T::Int32 | T::Date32 | T::Time32(_) | T::Decimal32(..) => number(DType::I32),
        T::Interval(IntervalUnit::YearMonth) => number(DType::I32),
        T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(..) | T::Duration(_) => {
            number(DType::I64)
        }
        T::Decimal64(..) => number(DType::I64),
        T::UInt8 => number(DType::U8),
        T::UInt16 => number(DType::U16),
        T::UInt32 => number(DType::U32),
        T::UInt64 => number(DType::U64),
        T::Float16 => number(DType::F16),
        T::Float32 => number(DType::F32),
        T::Float64 => number(DType::F64),
        T::Interval(IntervalUnit::DayTime) => bytes(8, 4),
        T::Interval(IntervalUnit::MonthDayNano) => bytes(16, 8),
        // Read by Arrow's own arrays alone, which copy where they want more.
        T::Decimal128(..) => bytes(16, 8),
        T::Decimal256(..) => bytes(32, 8),
        T::FixedSizeBinary(width) => bytes(usize::try_from(*width).ok().filter(|&w| w > 0)?, 1),
        T::Utf8 | T::Binary => Some(Storage::Bytes { large: false }),
        T::LargeUtf8 | T::LargeBinary => Some(Storage::Bytes { large: true }),
        T::FixedSizeList(item, size) => {
            let item = item.data_type().clone();
            let size = usize::try_from(*size).ok()?;
            matches!(storage(&item)?, Storage::Fixed { .. }).then_some(Storage::List { size, item })
        }
        T::Dictionary(key, values) => {
            let Some(Storage::Fixed { dtype: Some(key), .. }) = storage(key) else { return None };
            let values = (**values).clone();
            let flat = matches!(storage(&values)?, Storage::Fixed { .. } | Storage::Bytes { .. });
            flat.then_some(Storage::Dictionary { key, values })
        }
        _ => None,
    }
}

/// True for the types that are tables' own, but stored in a form that can't be mapped.
fn is_view(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::Dictionary(_, values) => is_view(values),
        _ => false,
    }
}

/// The footer's part of the file, which begins where the messages end.
pub(super) fn footer(bytes: &[u8]) -> Result<Range<usize>, Fault> {
    let len = bytes.len();
    if len < HEAD + TAIL || !bytes.starts_with(MAGIC) {
        return damaged("it does not begin as an Arrow file");
    }
    let (tail, magic) = bytes[len - TAIL..].split_at(4);
    if magic != MAGIC {
        return damaged(
            "it does not end as an Arrow file: it was cut off, or is still being written",
        );
    }
    let footer = i32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let footer = usize::try_from(footer).ok().filter(|&n| n > 0 && n <= MAX_METADATA);
    let start = footer.and_then(|n| (len - TAIL).checked_sub(n)).filter(|&start| start >= HEAD);
    match start {
        Some(start) => Ok(start..len - TAIL),
        None => damaged("the length of its footer"),
    }
}

/// One message of a file: its metadata, copied so that it is aligned, and where its body lies.
pub(super) struct Envelope {
    metadata: Vec<u8>,
    pub(super) body: Range<usize>,
}

impl Envelope {
    /// The message that a block of the footer points at; messages end at `end`.
    pub(super) fn of_block(bytes: &[u8], block: &Block, end: usize) -> Result<Self, Fault> {
        let at = usize::try_from(block.offset()).ok();
        let len = usize::try_from(block.metaDataLength()).ok().filter(|&n| n <= MAX_METADATA);
        let body = usize::try_from(block.bodyLength()).ok();
        let ranges = at.zip(len).zip(body).and_then(|((at, len), body)| {
            let body_at = at.checked_add(len)?;
            Some((at..body_at, body_at..body_at.checked_add(body)?))
        });
        let Some((metadata, body)) = ranges.filter(|(_, body)| body.end <= end) else {
            return damaged("a message lies outside of the file");
        };
        let metadata = &bytes[metadata];
        // The continuation marker is missing in files of before 2019.
        let rest = metadata.strip_prefix(&CONTINUATION).unwrap_or(metadata);
        let Some((len, rest)) = rest.split_first_chunk() else {
            return damaged("a message is too short");
        };
        let len = usize::try_from(i32::from_le_bytes(*len)).ok();
        match len.and_then(|len| rest.get(..len)) {
            Some(metadata) => Ok(Self { metadata: metadata.to_vec(), body }),
            None => damaged("the length of a message's metadata"),
        }
    }

    pub(super) fn message(&self) -> Result<Message<'_>, Fault> {
        root_as_message(&self.metadata).map_err(|e| Fault::Damaged(format!("a message: {e}")))
    }
}

impl Layout {
    /// Reads where the columns lie.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let footer = footer(bytes)?;
        let end = footer.start;
        let footer = bytes[footer].to_vec();
        let footer =
            root_as_footer(&footer).map_err(|e| Fault::Damaged(format!("its footer: {e}")))?;
        if !matches!(footer.version(), MetadataVersion::V4 | MetadataVersion::V5) {
            return Err(Fault::Form("an old version of the format"));
        }
        let Some(fb_schema) = footer.schema() else { return damaged("there is no schema") };
        if fb_schema.endianness() != Endianness::Little {
            return Err(Fault::Form("numbers of big-endian machines"));
        }
        let schema = try_fb_to_schema(fb_schema).map_err(|e| Fault::Damaged(e.to_string()))?;
        for field in schema.fields() {
            if is_view(field.data_type()) {
                return Err(Fault::Form("strings stored as views"));
            }
            if storage(field.data_type()).is_none() {
                let (column, data_type) = (field.name().clone(), field.data_type().to_string());
                return Err(Fault::Type { column, data_type });
            }
        }
        let mut dictionaries = HashMap::new();
        for block in footer.dictionaries().into_iter().flatten() {
            let envelope = Envelope::of_block(bytes, block, end)?;
            let message = envelope.message()?;
            let Some(dictionary) = message.header_as_dictionary_batch() else {
                return damaged("a dictionary is none");
            };
            if dictionary.isDelta() || dictionaries.insert(dictionary.id(), envelope).is_some() {
                return Err(Fault::Form("a dictionary in several parts"));
            }
        }
        let blocks = footer.recordBatches();
        let mut blocks = blocks.into_iter().flatten();
        let (Some(block), None) = (blocks.next(), blocks.next()) else {
            return Err(Fault::Form("not exactly one record batch"));
        };
        let envelope = Envelope::of_block(bytes, block, end)?;
        let message = envelope.message()?;
        let Some(batch) = message.header_as_record_batch() else {
            return damaged("its record batch is none");
        };
        let mut parts = Parts::new(batch, &envelope.body)?;
        let rows = parts.rows;
        let mut columns = Vec::with_capacity(schema.fields().len());
        let fb_fields = fb_schema.fields().into_iter().flatten();
        for (field, fb_field) in schema.fields().iter().zip(fb_fields) {
            let dictionary = fb_field.dictionary().map(|dictionary| dictionary.id());
            let values = |data_type: &DataType| {
                let envelope = dictionary.and_then(|id| dictionaries.get(&id));
                let Some(envelope) = envelope else { return damaged("a dictionary is missing") };
                let message = envelope.message()?;
                let batch = message.header_as_dictionary_batch().and_then(|d| d.data());
                let Some(batch) = batch else { return damaged("a dictionary is empty") };
                let mut parts = Parts::new(batch, &envelope.body)?;
                let rows = parts.rows;
                parts.column(data_type, rows, &|_| damaged("a dictionary in a dictionary"))
            };
            let column = parts.column(field.data_type(), rows, &values).map_err(|e| match e {
                Fault::Damaged(what) => {
                    Fault::Damaged(format!("column {:?}: {what}", field.name()))
                }
                other => other,
            });
            columns.push(column?);
        }
        let notes = footer.custom_metadata().into_iter().flatten();
        let notes = notes.filter_map(|note| Some((note.key()?.into(), note.value()?.into())));
        Ok(Self { schema, rows, columns, notes: notes.collect() })
    }
}

/// The nodes and buffers of one record batch, taken one after the other.
struct Parts<'a> {
    rows: usize,
    body: &'a Range<usize>,
    nodes: Box<dyn Iterator<Item = &'a FieldNode> + 'a>,
    buffers: Box<dyn Iterator<Item = &'a Buffer> + 'a>,
}

impl<'a> Parts<'a> {
    fn new(batch: RecordBatch<'a>, body: &'a Range<usize>) -> Result<Self, Fault> {
        if batch.compression().is_some() {
            return Err(Fault::Form("compressed columns"));
        }
        let Ok(rows) = usize::try_from(batch.length()) else { return damaged("its rows") };
        let nodes = Box::new(batch.nodes().into_iter().flatten());
        let buffers = Box::new(batch.buffers().into_iter().flatten());
        Ok(Self { rows, body, nodes, buffers })
    }

    fn column(
        &mut self,
        data_type: &DataType,
        rows: usize,
        dictionary: &dyn Fn(&DataType) -> Result<Column, Fault>,
    ) -> Result<Column, Fault> {
        let Some(node) = self.nodes.next() else { return damaged("it has no node") };
        if usize::try_from(node.length()) != Ok(rows) {
            return damaged(format!("{} rows, not {rows}", node.length()));
        }
        let nulls = usize::try_from(node.null_count()).ok().filter(|&nulls| nulls <= rows);
        let Some(nulls) = nulls else {
            return damaged(format!("{} nulls in {rows} rows", node.null_count()));
        };
        let bits = rows.div_ceil(8);
        // Where there are no nulls, bits may be there or not.
        let validity = self.buffer(if nulls > 0 { Some(bits) } else { Some(0) }, 1)?;
        let validity = (nulls > 0).then_some(validity);
        let Some(storage) = storage(data_type) else {
            return damaged(format!("it is a {data_type}"));
        };
        let kind = match storage {
            Storage::Fixed { width, align, .. } => {
                let values = self.buffer(rows.checked_mul(width), align)?;
                Kind::Fixed { values, width }
            }
            Storage::Bits => Kind::Bits(self.buffer(Some(bits), 1)?),
            Storage::Bytes { large } => {
                let width = if large { 8 } else { 4 };
                // An empty column may have no offset at all.
                let len = if rows == 0 { Some(0) } else { (rows + 1).checked_mul(width) };
                let offsets = self.buffer(len, width)?;
                let data = self.whole_buffer()?;
                Kind::Bytes { offsets, large, data }
            }
            Storage::List { size, item } => {
                let Some(items) = rows.checked_mul(size) else {
                    return damaged("its lists are too long");
                };
                let items = self.column(&item, items, &|_| damaged("a dictionary in a list"))?;
                Kind::List { size, items: Box::new(items) }
            }
            Storage::Dictionary { key, values } => {
                let keys = self.buffer(rows.checked_mul(key.size()), key.size())?;
                Kind::Dictionary { keys, key, values: Box::new(dictionary(&values)?) }
            }
        };
        Ok(Column { rows, nulls, validity, kind })
    }

    /// The next buffer's first `len` bytes, which it has to have.
    fn buffer(&mut self, len: Option<usize>, align: usize) -> Result<Range<usize>, Fault> {
        let whole = self.whole_buffer()?;
        let Some(len) = len.filter(|&len| len <= whole.len()) else {
            return damaged(format!("{} bytes are too few for its rows", whole.len()));
        };
        if len == 0 {
            return Ok(whole.start..whole.start);
        }
        if !whole.start.is_multiple_of(align) {
            return Err(Fault::Form("columns that are not aligned"));
        }
        Ok(whole.start..whole.start + len)
    }

    fn whole_buffer(&mut self) -> Result<Range<usize>, Fault> {
        let Some(buffer) = self.buffers.next() else { return damaged("it has no buffer") };
        let at = usize::try_from(buffer.offset()).ok();
        let len = usize::try_from(buffer.length()).ok();
        let range = at.zip(len).and_then(|(at, len)| {
            let start = self.body.start.checked_add(at)?;
            Some(start..start.checked_add(len)?)
        });
        match range.filter(|range| range.end <= self.body.end) {
            Some(range) => Ok(range),
            None => damaged("it lies outside of its message"),
        }
    }
}
