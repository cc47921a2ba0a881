//! What tables are made from: CSV, Parquet and Arrow files, each as batches of rows that are read one at a
//! time. The content tells the kind, not the name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_csv::reader::{Format, ReaderBuilder};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{
    Block, CompressionType, MessageHeader, MetadataVersion, root_as_footer, root_as_message,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use serde::Serialize;

use super::error::SharedTableError;
use super::layout::{CONTINUATION, Envelope, Fault, MAGIC, footer};
use crate::shm::{SharedBytes, available_memory};

/// Values that are read at once, about, and rows.
const BATCH_VALUES: usize = 4 << 20;
const BATCH_ROWS: std::ops::RangeInclusive<usize> = (1 << 10)..=(64 << 10);
/// Bytes of a file from which its kind is told.
const SAMPLE: usize = 64 << 10;

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ArrowFile,
    ArrowStream,
    Parquet,
    Csv,
}

/// Settings that change what is read from a source.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReadOptions {
    /// Only these columns, in this order.
    pub(super) columns: Option<Vec<String>>,
    pub(super) delimiter: Option<u8>,
    pub(super) has_header: bool,
    pub(super) infer_rows: usize,
    pub(super) null_values: Vec<String>,
    #[serde(serialize_with = "types_as_text")]
    pub(super) column_types: BTreeMap<String, DataType>,
}

fn types_as_text<S: serde::Serializer>(
    types: &BTreeMap<String, DataType>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(types.iter().map(|(name, data_type)| (name, data_type.to_string())))
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            columns: None,
            delimiter: None,
            has_header: true,
            infer_rows: 10_000,
            null_values: Vec::new(),
            column_types: BTreeMap::new(),
        }
    }
}

type Rows = Box<dyn Iterator<Item = Result<RecordBatch, SharedTableError>>>;

/// Rows that come batch by batch.
pub(super) struct Source {
    pub(super) schema: Schema,
    pub(super) batches: Rows,
    /// Bytes of the file that have been read, and all of them.
    pub(super) read: Arc<AtomicU64>,
    pub(super) of: u64,
}

impl Kind {
    /// Looks at the file's beginning.
    pub(super) fn of(file: &File, path: &Path) -> Result<Self, SharedTableError> {
        let mut sample = vec![0; SAMPLE];
        let mut len = 0;
        while len < sample.len() {
            match file.read_at(&mut sample[len..], len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(unreadable(path, source)),
            }
        }
        let sample = &sample[..len];
        let refuse = |what: &str| {
            Err(SharedTableError::Kind { path: path.to_owned(), what: what.to_owned() })
        };
        let begins = |magic: &[u8]| sample.starts_with(magic);
        if begins(MAGIC) {
            return Ok(Self::ArrowFile);
        }
        if begins(&CONTINUATION) {
            return Ok(Self::ArrowStream);
        }
        if begins(b"PAR1") {
            return Ok(Self::Parquet);
        }
        if begins(b"FEA1") {
            return refuse("it is a Feather file of version 1: write it again as version 2");
        }
        if begins(&[0x1f, 0x8b]) || begins(&[0x28, 0xb5, 0x2f, 0xfd]) || begins(b"PK\x03\x04") {
            return refuse("it is a compressed file: unpack it first");
        }
        if sample.is_empty() {
            return refuse("it is empty");
        }
        // A character may be cut off at the end of the sample.
        let text = match std::str::from_utf8(sample) {
            Ok(_) => true,
            Err(error) => error.error_len().is_none() && len == SAMPLE,
        };
        if !text || sample.contains(&0) {
            return refuse(
                "it is neither an Arrow file (Feather version 2), nor Parquet, nor CSV in UTF-8",
            );
        }
        Ok(Self::Csv)
    }
}

/// Opens a file that has to be converted.
pub(super) fn open(
    kind: Kind,
    file: File,
    path: &Path,
    options: &ReadOptions,
) -> Result<Source, SharedTableError> {
    match kind {
        Kind::ArrowFile | Kind::ArrowStream => {
            let bytes = SharedBytes::of_file(file).map_err(|e| unreadable(path, e))?;
            arrow(bytes, kind == Kind::ArrowStream, path, options)
        }
        Kind::Parquet => parquet(file, path, options),
        Kind::Csv => csv(file, path, options),
    }
}

pub(super) fn unreadable(path: &Path, source: io::Error) -> SharedTableError {
    SharedTableError::Io { path: path.to_owned(), what: "reading it", source }
}

fn damaged(path: &Path, what: impl ToString) -> SharedTableError {
    SharedTableError::Damaged { path: path.to_owned(), what: what.to_string() }
}

/// Rows of that many columns that are read at once.
fn batch_rows(columns: usize) -> usize {
    (BATCH_VALUES / columns.max(1)).clamp(*BATCH_ROWS.start(), *BATCH_ROWS.end())
}

/// Where the chosen columns stand, in the order in which they were asked for.
fn chosen(
    schema: &Schema,
    path: &Path,
    options: &ReadOptions,
) -> Result<Option<Vec<usize>>, SharedTableError> {
    let Some(columns) = &options.columns else { return Ok(None) };
    let find = |column: &String| {
        schema.index_of(column).map_err(|_| SharedTableError::NoColumn {
            path: path.to_owned(),
            column: column.clone(),
            columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
        })
    };
    columns.iter().map(find).collect::<Result<Vec<_>, _>>().map(Some)
}

fn projected(schema: &Schema, columns: Option<&[usize]>) -> Schema {
    let Some(columns) = columns else { return schema.clone() };
    let fields: Vec<_> = columns.iter().map(|&at| Arc::clone(&schema.fields()[at])).collect();
    Schema::new_with_metadata(fields, schema.metadata.clone())
}

// Arrow

/// The messages of an Arrow file or stream, decoded one after the other. Columns that are not compressed
/// are not copied.
fn arrow(
    bytes: SharedBytes,
    stream: bool,
    path: &Path,
    options: &ReadOptions,
) -> Result<Source, SharedTableError> {
    let found = if stream { of_stream(bytes.bytes()) } else { of_file(bytes.bytes()) };
    let Messages { schema, version, blocks } = found.map_err(|fault| fault.into_error(path))?;
    let columns = chosen(&schema, path, options)?;
    let mut decoder = FileDecoder::new(Arc::new(schema.clone()), version);
    if let Some(columns) = &columns {
        decoder = decoder.with_projection(columns.clone());
    }
    let schema = projected(&schema, columns.as_deref());
    let of = bytes.bytes().len() as u64;
    let read = Arc::new(AtomicU64::new(0));
    let (counted, path) = (Arc::clone(&read), path.to_owned());
    let whole = Buffer::from(bytes::Bytes::from_owner(bytes.clone()));
    let batches = blocks.into_iter().filter_map(move |block| {
        let mut decode = || {
            let is_dictionary =
                check(bytes.bytes(), &block).map_err(|fault| fault.into_error(&path))?;
            let len = block.metaDataLength() as usize + block.bodyLength() as usize;
            let buffer = whole.slice_with_length(block.offset() as usize, len);
            counted.store(block.offset() as u64 + len as u64, Ordering::Relaxed);
            let decoded = if is_dictionary {
                decoder.read_dictionary(&block, &buffer).map(|()| None)
            } else {
                decoder.read_record_batch(&block, &buffer)
            };
            decoded.map_err(|e| damaged(&path, e))
        };
        decode().transpose()
    });
    Ok(Source { schema, batches: Box::new(batches), read, of })
}

/// What an Arrow file or stream holds.
struct Messages {
    schema: Schema,
    version: MetadataVersion,
    /// Dictionaries and batches, each dictionary before it is used.
    blocks: Vec<Block>,
}

fn of_file(bytes: &[u8]) -> Result<Messages, Fault> {
    // Copied, since it may not be aligned.
    let footer = bytes[footer(bytes)?].to_vec();
    let footer = root_as_footer(&footer).map_err(|e| Fault::Damaged(format!("its footer: {e}")))?;
    let Some(schema) = footer.schema() else {
        return Err(Fault::Damaged("there is no schema".to_owned()));
    };
    let schema = try_fb_to_schema(schema).map_err(|e| Fault::Damaged(e.to_string()))?;
    let blocks = footer.dictionaries().into_iter().flatten();
    let blocks = blocks.chain(footer.recordBatches().into_iter().flatten()).copied();
    Ok(Messages { schema, version: footer.version(), blocks: blocks.collect() })
}

fn of_stream(bytes: &[u8]) -> Result<Messages, Fault> {
    let cut_off = || Fault::Damaged("it was cut off, or is still being written".to_owned());
    let mut schema = None;
    let (mut version, mut blocks) = (MetadataVersion::V5, Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let (prefix, metadata) = bytes
            .get(at..at + 8)
            .and_then(|prefix| prefix.split_at_checked(4))
            .ok_or_else(cut_off)?;
        if prefix != CONTINUATION {
            return Err(Fault::Damaged(format!("no message at byte {at}")));
        }
        let len = metadata.try_into().map_or(0, i32::from_le_bytes);
        if len == 0 {
            break;
        }
        let len = usize::try_from(len).map_err(|_| cut_off())?;
        // Copied, since it may not be aligned.
        let metadata = bytes[at + 8..].get(..len).ok_or_else(cut_off)?.to_vec();
        let message =
            root_as_message(&metadata).map_err(|e| Fault::Damaged(format!("a message: {e}")))?;
        let block = Block::new(at as i64, len as i32 + 8, message.bodyLength());
        match message.header_as_schema() {
            Some(found) => {
                version = message.version();
                schema = Some(try_fb_to_schema(found).map_err(|e| Fault::Damaged(e.to_string()))?);
            }
            None => blocks.push(block),
        }
        let body = usize::try_from(message.bodyLength()).map_err(|_| cut_off())?;
        at = (at + 8 + len)
            .checked_add(body)
            .filter(|&end| end <= bytes.len())
            .ok_or_else(cut_off)?;
    }
    match schema {
        Some(schema) => Ok(Messages { schema, version, blocks }),
        None => Err(Fault::Damaged("there is no schema".to_owned())),
    }
}

/// Checks what the decoder takes on trust: that a message and its buffers lie in the file, and that what
/// is compressed does not claim to be larger than memory. Tells whether it is a dictionary.
fn check(bytes: &[u8], block: &Block) -> Result<bool, Fault> {
    let wrong = |what: &str| Err(Fault::Damaged(what.to_owned()));
    let envelope = Envelope::of_block(bytes, block, bytes.len())?;
    let message = envelope.message()?;
    let (batch, is_dictionary) = match message.header_type() {
        MessageHeader::RecordBatch => (message.header_as_record_batch(), false),
        MessageHeader::DictionaryBatch => {
            (message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()), true)
        }
        _ => return wrong("a message that is neither rows nor a dictionary"),
    };
    let Some(batch) = batch else { return wrong("a message without rows") };
    let body = &bytes[envelope.body.clone()];
    let compression = batch.compression().map(|compression| compression.codec());
    if compression == Some(CompressionType::ZSTD) && !cfg!(feature = "parquet") {
        return Err(Fault::Form(
            "columns compressed by Zstandard, which loader-core reads with its feature `parquet`",
        ));
    }
    let mut unpacked = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let range =
            usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let part = range.and_then(|(at, len)| body.get(at..)?.get(..len));
        let Some(part) = part else { return wrong("a buffer lies outside of its message") };
        if compression.is_some() && !part.is_empty() {
            let Some(len) = part.first_chunk() else { return wrong("a buffer is too short") };
            // -1 says that this one is not compressed.
            unpacked = unpacked.saturating_add(i64::from_le_bytes(*len).try_into().unwrap_or(0));
        }
    }
    if available_memory().is_some_and(|available| unpacked > available / 2) {
        return wrong("a batch claims to be larger than half of the memory");
    }
    Ok(is_dictionary)
}

// Parquet

#[cfg(not(feature = "parquet"))]
fn parquet(_: File, path: &Path, _: &ReadOptions) -> Result<Source, SharedTableError> {
    let what =
        "it is a Parquet file, which loader-core reads with its feature `parquet`".to_owned();
    Err(SharedTableError::Kind { path: path.to_owned(), what })
}

#[cfg(feature = "parquet")]
fn parquet(file: File, path: &Path, options: &ReadOptions) -> Result<Source, SharedTableError> {
    use parquet::arrow::ProjectionMask;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    let of = file.metadata().map_err(|e| unreadable(path, e))?.len();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| damaged(path, e))?;
    let columns = chosen(reader.schema(), path, options)?;
    let schema = projected(reader.schema(), columns.as_deref());
    let rows = reader.metadata().file_metadata().num_rows().max(1).unsigned_abs();
    let mask = columns.as_ref().map_or_else(ProjectionMask::all, |columns| {
        ProjectionMask::roots(reader.parquet_schema(), columns.iter().copied())
    });
    let reader =
        reader.with_projection(mask).with_batch_size(batch_rows(schema.fields().len())).build();
    let reader = reader.map_err(|e| damaged(path, e))?;
    let read = Arc::new(AtomicU64::new(0));
    let (counted, path) = (Arc::clone(&read), path.to_owned());
    // The reader gives columns in the order of the file.
    let names: Option<Vec<_>> =
        columns.map(|_| schema.fields().iter().map(|field| field.name().clone()).collect());
    let mut seen = 0;
    let batches = reader.map(move |batch| {
        let batch = batch.map_err(|e| damaged(&path, e))?;
        seen += batch.num_rows() as u64;
        // Its own position is not told.
        let share = u128::from(of) * u128::from(seen.min(rows)) / u128::from(rows);
        counted.store(share as u64, Ordering::Relaxed);
        match &names {
            None => Ok(batch),
            Some(names) => {
                let at = names.iter().map(|name| batch.schema_ref().index_of(name));
                let at = at.collect::<Result<Vec<_>, _>>().map_err(|e| damaged(&path, e))?;
                batch.project(&at).map_err(|e| damaged(&path, e))
            }
        }
    });
    Ok(Source { schema, batches: Box::new(batches), read, of })
}

// CSV

/// Counts what goes through.
struct Counting<R> {
    from: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(into)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

fn csv(mut file: File, path: &Path, options: &ReadOptions) -> Result<Source, SharedTableError> {
    let of = file.metadata().map_err(|e| unreadable(path, e))?.len();
    let format = csv_format(path, options)?;
    to_text(&mut file).map_err(|e| unreadable(path, e))?;
    let inferred = format.infer_schema(BufReader::new(&file), Some(options.infer_rows));
    let (inferred, _) = inferred.map_err(|e| damaged(path, e))?;
    let whole = Arc::new(csv_schema(&inferred, path, options)?);
    let columns = chosen(&whole, path, options)?;
    let schema = projected(&whole, columns.as_deref());
    to_text(&mut file).map_err(|e| unreadable(path, e))?;
    let read = Arc::new(AtomicU64::new(0));
    let from = Counting { from: file, read: Arc::clone(&read) };
    let rows = batch_rows(whole.fields().len());
    let mut reader =
        ReaderBuilder::new(Arc::clone(&whole)).with_format(format).with_batch_size(rows);
    if let Some(columns) = columns {
        reader = reader.with_projection(columns);
    }
    let reader = reader.build_buffered(BufReader::with_capacity(1 << 20, from));
    let reader = reader.map_err(|e| damaged(path, e))?;
    let (path, named) = (path.to_owned(), options.column_types.clone());
    let batches = reader.map(move |batch| {
        batch.map_err(|error| {
            let Some(BadValue { value, data_type, column, line }) = BadValue::of(&error) else {
                return damaged(&path, error);
            };
            let column = whole.fields().get(column).map_or("", |field| field.name()).to_owned();
            let why = if named.contains_key(&column) {
                "named with SharedTableBuilder::column_type"
            } else {
                "told from the first rows"
            };
            // It counts from 0.
            let line = line + 1;
            SharedTableError::Value { path: path.clone(), line, column, data_type, value, why }
        })
    });
    Ok(Source { schema, batches: Box::new(batches), read, of })
}

/// Goes to the beginning of a file's text, behind the mark that some put before it.
fn to_text(file: &mut File) -> io::Result<u64> {
    let mut mark = [0; 3];
    let marked = file.read_at(&mut mark, 0)? == 3 && mark == *b"\xef\xbb\xbf";
    file.seek(SeekFrom::Start(if marked { 3 } else { 0 }))
}

fn csv_format(path: &Path, options: &ReadOptions) -> Result<Format, SharedTableError> {
    let tabs = path.extension().is_some_and(|extension| extension == "tsv");
    let delimiter = options.delimiter.unwrap_or(if tabs { b'\t' } else { b',' });
    let format = Format::default().with_header(options.has_header).with_delimiter(delimiter);
    if options.null_values.is_empty() {
        return Ok(format);
    }
    let values: Vec<_> = options.null_values.iter().map(|value| regex::escape(value)).collect();
    match regex::Regex::new(&format!("^(?:{})?$", values.join("|"))) {
        Ok(values) => Ok(format.with_null_regex(values)),
        Err(error) => {
            let what = format!("its null_values are too many or too long: {error}");
            Err(SharedTableError::Kind { path: path.to_owned(), what })
        }
    }
}

/// The columns with the types that were named, else told from the first rows.
fn csv_schema(
    inferred: &Schema,
    path: &Path,
    options: &ReadOptions,
) -> Result<Schema, SharedTableError> {
    let mut named = options.column_types.keys();
    if let Some(column) = named.find(|name| inferred.index_of(name).is_err()) {
        return Err(SharedTableError::NoColumn {
            path: path.to_owned(),
            column: column.clone(),
            columns: inferred.fields().iter().map(|field| field.name().clone()).collect(),
        });
    }
    let fields = inferred.fields().iter().map(|field| {
        let data_type = options.column_types.get(field.name()).unwrap_or(field.data_type());
        // No value in all those rows.
        let data_type = if *data_type == DataType::Null { &DataType::Utf8 } else { data_type };
        Field::new(field.name(), data_type.clone(), true)
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

/// What arrow-csv says of a value that it can't read, which it says in words only.
struct BadValue {
    value: String,
    data_type: String,
    column: usize,
    line: u64,
}

impl BadValue {
    fn of(error: &ArrowError) -> Option<Self> {
        let ArrowError::ParseError(text) = error else { return None };
        let rest = text.strip_prefix("Error while parsing value '")?;
        // The row comes last, and may hold any text; the value may too.
        let (head, _) = rest.split_once(". Row data: ")?;
        let (head, line) = head.rsplit_once(" at line ")?;
        let (head, column) = head.rsplit_once(" for column ")?;
        let (value, data_type) = head.rsplit_once("' as type '")?;
        Some(Self {
            value: value.to_owned(),
            data_type: data_type.trim_end_matches('\'').to_owned(),
            column: column.parse().ok()?,
            line: line.parse().ok()?,
        })
    }
}
