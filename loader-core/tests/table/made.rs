//! Tables that tests make, and their rows in words.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_cast::display::array_value_to_string;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use loader_core::arrow::array::builder::{
    FixedSizeListBuilder, Float32Builder, StringDictionaryBuilder,
};
use loader_core::arrow::array::cast::AsArray;
use loader_core::arrow::array::types::Int8Type;
use loader_core::arrow::array::*;
use loader_core::arrow::schema::{DataType, Field, Schema, TimeUnit};
use loader_core::{SharedTable, SharedTableBuilder, TableCache};

/// A folder with a source and a cache in it.
pub(crate) struct Folder(pub(crate) tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Opens a source, with the cache in this folder.
    pub(crate) fn builder(&self, path: &Path) -> SharedTableBuilder {
        SharedTable::builder(path).cache(TableCache::Folder(self.path("cache")))
    }

    /// What conversions left.
    pub(crate) fn kept(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("cache")).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A batch with a column of every type, of rows numbered from `first` on. Every third value is missing
/// where `nulls` says so.
pub(crate) fn batch(first: usize, rows: usize, nulls: bool) -> RecordBatch {
    let there = move |row: usize| !(nulls && row % 3 == 1);
    let all = first..first + rows;
    let numbers = || all.clone().map(|row| there(row).then_some(row as i64));
    let texts =
        || all.clone().map(|row| there(row).then(|| format!("{}{row}", "é".repeat(row % 5))));
    // The same in all batches: Arrow's files have one.
    let classes = StringArray::from_iter_values((0..7).map(|class| format!("class {class}")));
    let mut dictionary =
        StringDictionaryBuilder::<Int8Type>::new_with_dictionary(rows, &classes).unwrap();
    texts().for_each(|text| {
        dictionary.append_option(text.map(|text| format!("class {}", text.len() % 7)));
    });
    let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), 3);
    for row in all.clone() {
        (0..3).for_each(|item| lists.values().append_value((row * 3 + item) as f32 / 4.0));
        lists.append(there(row));
    }
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(numbers().map(|n| n.map(|n| n as i8)).collect::<Int8Array>())),
        ("i16", Arc::new(numbers().map(|n| n.map(|n| n as i16)).collect::<Int16Array>())),
        ("i32", Arc::new(numbers().map(|n| n.map(|n| n as i32 - 9)).collect::<Int32Array>())),
        ("i64", Arc::new(numbers().map(|n| n.map(|n| n << 40)).collect::<Int64Array>())),
        ("u8", Arc::new(numbers().map(|n| n.map(|n| n as u8)).collect::<UInt8Array>())),
        ("u16", Arc::new(numbers().map(|n| n.map(|n| n as u16)).collect::<UInt16Array>())),
        ("u32", Arc::new(numbers().map(|n| n.map(|n| n as u32)).collect::<UInt32Array>())),
        ("u64", Arc::new(numbers().map(|n| n.map(|n| n as u64)).collect::<UInt64Array>())),
        ("f32", Arc::new(numbers().map(|n| n.map(|n| n as f32 / 3.0)).collect::<Float32Array>())),
        ("f64", Arc::new(numbers().map(|n| n.map(|n| n as f64 / 7.0)).collect::<Float64Array>())),
        ("bool", Arc::new(numbers().map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>())),
        ("date", Arc::new(numbers().map(|n| n.map(|n| n as i32)).collect::<Date32Array>())),
        (
            "timestamp",
            Arc::new(numbers().collect::<TimestampMicrosecondArray>().with_timezone("+00:00")),
        ),
        ("duration", Arc::new(numbers().collect::<DurationSecondArray>())),
        ("decimal", Arc::new(numbers().map(|n| n.map(i128::from)).collect::<Decimal128Array>())),
        ("text", Arc::new(texts().collect::<StringArray>())),
        ("large", Arc::new(texts().collect::<LargeStringArray>())),
        ("bytes", Arc::new(texts().map(|t| t.map(String::into_bytes)).collect::<BinaryArray>())),
        ("lists", Arc::new(lists.finish())),
        ("class", Arc::new(dictionary.finish())),
    ];
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, nulls)),
    )
    .unwrap()
}

/// Classes of which each batch has a dictionary of its own, one of which is null.
pub(crate) fn classes(first: usize, rows: usize) -> RecordBatch {
    let names = StringArray::from_iter(
        (0..5).map(|class| (class != 3).then(|| format!("class {}", first % 9 + class))),
    );
    let keys = Int8Array::from_iter((0..rows).map(|row| (row % 4 != 2).then_some(row as i8 % 5)));
    let column = DictionaryArray::try_new(keys, Arc::new(names)).unwrap();
    let column: ArrayRef = Arc::new(column);
    RecordBatch::try_from_iter_with_nullable([("class", column, true)]).unwrap()
}

/// The strings as views, as polars writes them.
pub(crate) fn views(batch: &RecordBatch) -> RecordBatch {
    let text = batch.column_by_name("text").unwrap().as_string::<i32>();
    let bytes = batch.column_by_name("bytes").unwrap().as_binary::<i32>();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("text", Arc::new(text.iter().collect::<StringViewArray>())),
        ("bytes", Arc::new(bytes.iter().collect::<BinaryViewArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
        .unwrap()
}

/// One batch of plain numbers.
pub(crate) fn numbers(rows: usize) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64 / 8.0)))),
        ("b", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| (row * row) as f64)))),
        ("y", Arc::new(Int32Array::from_iter_values((0..rows).map(|row| row as i32 % 10)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn table(batch: &RecordBatch) -> SharedTable {
    SharedTable::from_batches(&batch.schema(), [batch.clone()]).unwrap()
}

pub(crate) fn write_file(path: &Path, batches: &[RecordBatch], lz4: bool) {
    let compression = lz4.then_some(CompressionType::LZ4_FRAME);
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let file = File::create(path).unwrap();
    let schema = batches[0].schema();
    let mut writer = FileWriter::try_new_with_options(file, &schema, options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

pub(crate) fn write_stream(path: &Path, batches: &[RecordBatch]) {
    let mut writer =
        StreamWriter::try_new(File::create(path).unwrap(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

pub(crate) fn write_parquet(path: &Path, batches: &[RecordBatch]) {
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;

    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), Some(properties)).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
}

/// Rows in words, by column.
pub(crate) fn words(batches: &[RecordBatch]) -> Vec<(String, Vec<Option<String>>)> {
    let names = batches[0].schema().fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    let column = |at: usize| {
        let rows = batches.iter().flat_map(|batch| {
            let column = batch.column(at);
            (0..batch.num_rows()).map(|row| {
                column
                    .logical_nulls()
                    .is_none_or(|nulls| nulls.is_valid(row))
                    .then(|| array_value_to_string(column, row).unwrap())
            })
        });
        rows.collect()
    };
    names.into_iter().enumerate().map(|(at, name)| (name, column(at))).collect()
}

pub(crate) fn schema_of(fields: &[(&str, DataType)]) -> Schema {
    let field = |(name, data_type): &(&str, DataType)| Field::new(*name, data_type.clone(), true);
    Schema::new(fields.iter().map(field).collect::<Vec<_>>())
}

/// Types that tables don't have.
pub(crate) fn foreign_types() -> Vec<DataType> {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    vec![
        DataType::Null,
        DataType::List(Arc::clone(&item)),
        DataType::Struct([Arc::clone(&item)].into_iter().collect()),
        DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Utf8, true)), 2),
        DataType::Map(
            Arc::new(Field::new(
                "entries",
                DataType::Struct(
                    [
                        Arc::new(Field::new("key", DataType::Utf8, false)),
                        Arc::new(Field::new(
                            "value",
                            DataType::Timestamp(TimeUnit::Second, None),
                            true,
                        )),
                    ]
                    .into_iter()
                    .collect(),
                ),
                false,
            )),
            false,
        ),
    ]
}
