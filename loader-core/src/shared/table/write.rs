//! A table's file: Arrow IPC with one record batch, every buffer contiguous and at a multiple of 64.

use std::io::{self, Write};

use arrow_ipc::convert::{IpcSchemaEncoder, metadata_to_fb};
use arrow_ipc::writer::DictionaryTracker;
use arrow_ipc::{
    Block, Buffer, DictionaryBatchBuilder, FieldNode, FooterBuilder, MessageBuilder, MessageHeader,
    MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::Metadata;
use flatbuffers::FlatBufferBuilder;

use super::gather::{Gathered, Out, Part};
use super::layout::{CONTINUATION, MAGIC};

/// Buffers, and bodies of messages, begin at multiples of it.
const ALIGN: u64 = 64;

/// A table that is ready to be written.
pub(super) struct Plan<'a> {
    table: &'a Gathered,
    /// Schema, dictionaries, rows.
    messages: Vec<Planned<'a>>,
    footer: Vec<u8>,
    len: u64,
}

struct Planned<'a> {
    /// With what comes before it and padding behind it.
    metadata: Vec<u8>,
    buffers: Vec<Out<'a>>,
}

impl<'a> Plan<'a> {
    /// Computes where everything goes. `notes` are told in the footer, beside the schema.
    pub(super) fn new(table: &'a Gathered, notes: &[(&str, String)]) -> Self {
        let mut end = 8;
        let (mut dictionaries, mut batches) = (Vec::new(), Vec::new());
        let mut messages = Vec::new();
        let mut place = |metadata: Vec<u8>, body: u64, buffers| {
            let metadata = framed(metadata, end);
            let block = Block::new(end as i64, metadata.len() as i32, body as i64);
            end += metadata.len() as u64 + body;
            messages.push(Planned { metadata, buffers });
            block
        };
        let mut ids = DictionaryTracker::new(false);
        place(schema_message(table, &mut ids), 0, Vec::new());
        for (part, &id) in table.dictionaries().zip(ids.dict_id()) {
            let (metadata, body) = batch_message(&part, Some(id));
            dictionaries.push(place(metadata, body, part.buffers));
        }
        let part = table.batch();
        let (metadata, body) = batch_message(&part, None);
        batches.push(place(metadata, body, part.buffers));
        let footer = footer(table, &dictionaries, &batches, notes);
        let len = end + 8 + footer.len() as u64 + 4 + MAGIC.len() as u64;
        Self { table, messages, footer, len }
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Writes the file, from its beginning to its end. The columns are gone from the spill then.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&[0; 2])?;
        for message in &self.messages {
            out.write_all(&message.metadata)?;
            for buffer in &message.buffers {
                self.table.write(buffer, out)?;
                let padding = padded(buffer.len()) - buffer.len();
                out.write_all(&[0; ALIGN as usize][..padding as usize])?;
            }
        }
        out.write_all(&CONTINUATION)?;
        out.write_all(&[0; 4])?;
        out.write_all(&self.footer)?;
        out.write_all(&(self.footer.len() as i32).to_le_bytes())?;
        out.write_all(MAGIC)?;
        out.flush()
    }
}

fn padded(len: u64) -> u64 {
    len.next_multiple_of(ALIGN)
}

/// A message's metadata as it stands in a file at `at`: what is behind it begins at a multiple of 64.
fn framed(metadata: Vec<u8>, at: u64) -> Vec<u8> {
    let end = padded(at + 8 + metadata.len() as u64);
    let len = (end - at) as usize;
    let mut framed = Vec::with_capacity(len);
    framed.extend_from_slice(&CONTINUATION);
    framed.extend_from_slice(&(len as i32 - 8).to_le_bytes());
    framed.extend_from_slice(&metadata);
    framed.resize(len, 0);
    framed
}

fn schema_message(table: &Gathered, ids: &mut DictionaryTracker) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(ids);
    let schema = encoder.schema_to_fb_offset(&mut fbb, &table.schema);
    let mut message = MessageBuilder::new(&mut fbb);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::Schema);
    message.add_bodyLength(0);
    message.add_header(schema.as_union_value());
    let message = message.finish();
    fbb.finish(message, None);
    fbb.finished_data().to_vec()
}

/// The metadata of a batch, or of the values of a dictionary, and the length of its body.
fn batch_message(part: &Part<'_>, dictionary: Option<i64>) -> (Vec<u8>, u64) {
    let mut body = 0;
    let buffers: Vec<_> = part
        .buffers
        .iter()
        .map(|buffer| {
            let at = body;
            body += padded(buffer.len());
            Buffer::new(at as i64, buffer.len() as i64)
        })
        .collect();
    let node = |&(rows, nulls): &(usize, usize)| FieldNode::new(rows as i64, nulls as i64);
    let nodes: Vec<_> = part.nodes.iter().map(node).collect();
    let mut fbb = FlatBufferBuilder::new();
    let (nodes, buffers) = (fbb.create_vector(&nodes), fbb.create_vector(&buffers));
    let mut batch = RecordBatchBuilder::new(&mut fbb);
    batch.add_length(part.rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let batch = batch.finish();
    let (header_type, header) = match dictionary {
        None => (MessageHeader::RecordBatch, batch.as_union_value()),
        Some(id) => {
            let mut dictionary = DictionaryBatchBuilder::new(&mut fbb);
            dictionary.add_id(id);
            dictionary.add_data(batch);
            (MessageHeader::DictionaryBatch, dictionary.finish().as_union_value())
        }
    };
    let mut message = MessageBuilder::new(&mut fbb);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(header_type);
    message.add_bodyLength(body as i64);
    message.add_header(header);
    let message = message.finish();
    fbb.finish(message, None);
    (fbb.finished_data().to_vec(), body)
}

fn footer(
    table: &Gathered,
    dictionaries: &[Block],
    batches: &[Block],
    notes: &[(&str, String)],
) -> Vec<u8> {
    let mut fbb = FlatBufferBuilder::new();
    let (dictionaries, batches) = (fbb.create_vector(dictionaries), fbb.create_vector(batches));
    let mut ids = DictionaryTracker::new(false);
    let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(&mut ids);
    let schema = encoder.schema_to_fb_offset(&mut fbb, &table.schema);
    let mut metadata = Metadata::default();
    for (key, value) in notes {
        metadata.insert((*key).to_owned(), value.clone());
    }
    let metadata = metadata_to_fb(&mut fbb, &metadata);
    let mut footer = FooterBuilder::new(&mut fbb);
    footer.add_version(MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    footer.add_custom_metadata(metadata);
    let footer = footer.finish();
    fbb.finish(footer, None);
    fbb.finished_data().to_vec()
}
