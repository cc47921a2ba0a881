//! A failure in words, as bytes of a slot: how a worker's error reaches the consumer.

use super::cell::WorkerId;
use super::geometry::FAILURE_BYTES;
use crate::dataset::{SampleError, Stage};

/// What a worker tells of a sample that it could not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The place in the batch.
    pub(crate) at: u32,
    /// Which candidate of that place, from 0.
    pub(crate) attempt: u32,
    /// The index in the dataset of what failed.
    pub(crate) index: u64,
    pub(crate) worker: WorkerId,
    pub(crate) error: SampleError,
}

/// Bytes of a record before its text. The last four are the seal, which says for which opening of
/// the slot the record was written; it is stored last and not part of what is encoded here.
const HEADER: usize = 24;
pub(super) const SEAL_AT: usize = 20;

/// Stages on the wire, by number.
const STAGES: [Stage; 7] = [
    Stage::Read,
    Stage::Decode,
    Stage::Transform,
    Stage::Write,
    Stage::Panic,
    Stage::Worker,
    Stage::System,
];

impl Failure {
    pub(super) fn encode(&self) -> [u8; FAILURE_BYTES] {
        let mut record = [0; FAILURE_BYTES];
        let text = self.error.message.as_bytes();
        let len = text.len().min(FAILURE_BYTES - HEADER);
        let stage = STAGES.iter().position(|&s| s == self.error.stage).unwrap_or(0);
        record[..8].copy_from_slice(&self.index.to_le_bytes());
        record[8..12].copy_from_slice(&self.at.to_le_bytes());
        record[12..14].copy_from_slice(&self.worker.to_le_bytes());
        record[14] = stage as u8;
        record[15] = self.attempt as u8;
        record[16..20].copy_from_slice(&(len as u32).to_le_bytes());
        record[HEADER..HEADER + len].copy_from_slice(&text[..len]);
        record
    }

    pub(super) fn decode(record: &[u8; FAILURE_BYTES]) -> Self {
        let part = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(&record[at..at + len]);
            u64::from_le_bytes(bytes)
        };
        let len = (part(16, 4) as usize).min(FAILURE_BYTES - HEADER);
        let message = String::from_utf8_lossy(&record[HEADER..HEADER + len]).into_owned();
        let stage = STAGES.get(usize::from(record[14])).copied().unwrap_or(Stage::Read);
        Self {
            at: part(8, 4) as u32,
            attempt: record[15].into(),
            index: part(0, 8),
            worker: part(12, 2) as WorkerId,
            error: SampleError { stage, message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_its_record() {
        let error = SampleError::new(Stage::Worker, "é".repeat(300));
        let failure = Failure { at: 3, attempt: 8, index: 1 << 40, worker: 9, error };
        let mut back = Failure::decode(&failure.encode());
        let cut = std::mem::take(&mut back.error.message);
        assert!(failure.error.message.starts_with(cut.trim_end_matches('\u{fffd}')));
        assert!(cut.len() > 400);
        back.error.message.clone_from(&failure.error.message);
        assert_eq!(back, failure);
        Failure::decode(&[0xff; FAILURE_BYTES]);
    }
}
