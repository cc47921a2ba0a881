//! Where everything lies in an arena, computed from what a batch is made of.
//!
//! ```text
//! header | queue of slots | desks  control words, once
//! slot 0 | slot 1 | ...            each: slot header, claim cells, sample words, failures, fields
//! ```
//!
//! Every slot begins at a page, so that a further one can be reserved on its own, and every field
//! at a multiple of 64 bytes.

use serde::{Deserialize, Serialize};

use crate::dataset::MAX_FIELDS;
use crate::field::Field;

/// Cells a slot has at most. A worker that finishes one looks over all of them, so larger batches
/// are handed out in pieces of several samples.
const MAX_CELLS: usize = 1024;
/// Slots an arena has at most.
pub(crate) const MAX_SLOTS: usize = 4096;
/// Workers an arena has at most; a claim names its worker in 16 bits.
pub(crate) const MAX_WORKERS: usize = 4096;
/// Failures of a batch that are told in words; those beyond are counted.
pub(super) const MAX_FAILURES: usize = 16;
/// Bytes of one failure: a header of 20 and the text.
pub(super) const FAILURE_BYTES: usize = 512;
/// Bytes from one control word to the next: words that different parties write share no cache line.
pub(super) const LINE: usize = 64;

/// Bytes of a worker's desk and tally: an even number of lines, since neighbouring lines are fetched in
/// pairs.
pub(super) const DESK_BYTES: usize = 4 * LINE;
/// Slots begin at multiples of it. Not the system's page size, which may be a multiple of it.
pub(super) const PAGE: usize = 4096;
const HEADER_BYTES: usize = 8 * LINE;
const SLOT_HEADER_BYTES: usize = 2 * LINE;

/// Why a dataset's samples can't be laid out as batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// No field, or more than the limit.
    #[error("a dataset has 1 to {MAX_FIELDS} fields, this one {0}")]
    FieldCount(usize),
    /// Two fields of one name.
    #[error("two fields are named {0:?}")]
    SameName(String),
    /// A field whose samples take no bytes.
    #[error("field {name:?} of shape {shape:?} holds nothing")]
    EmptyField {
        /// The field.
        name: String,
        /// Its shape per sample.
        shape: Vec<usize>,
    },
    /// A batch beyond the address space.
    #[error("a batch of {batch_size} samples is too large to address: lower batch_size")]
    TooLarge {
        /// The batch size asked for.
        batch_size: usize,
    },
}

/// The layout of an arena. Equal input gives equal layout, so a worker process needs only the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Geometry {
    pub(crate) fields: Vec<Field>,
    pub(crate) batch_size: usize,
    /// Samples that one cell stands for.
    pub(crate) per_cell: usize,
    /// Bytes of a sample in each field.
    pub(super) sample_bytes: Vec<usize>,
    /// Where each field begins in a slot.
    pub(super) field_at: Vec<usize>,
    pub(super) cells_at: usize,
    pub(super) words_at: usize,
    pub(super) failures_at: usize,
    pub(crate) slot_bytes: usize,
}

impl Geometry {
    #[cfg(test)]
    pub(crate) fn new(fields: Vec<Field>, batch_size: usize) -> Result<Self, GeometryError> {
        Self::with_runs(fields, batch_size, 1)
    }

    /// The same where so many samples at least are handed out together.
    pub(crate) fn with_runs(
        fields: Vec<Field>,
        batch_size: usize,
        run: usize,
    ) -> Result<Self, GeometryError> {
        if fields.is_empty() || fields.len() > MAX_FIELDS {
            return Err(GeometryError::FieldCount(fields.len()));
        }
        for (i, field) in fields.iter().enumerate() {
            if fields[..i].iter().any(|other| other.name == field.name) {
                return Err(GeometryError::SameName(field.name.clone()));
            }
            if field.elements() == Some(0) {
                let (name, shape) = (field.name.clone(), field.shape.clone());
                return Err(GeometryError::EmptyField { name, shape });
            }
        }
        Self::lay_out(fields, batch_size, run).ok_or(GeometryError::TooLarge { batch_size })
    }

    fn lay_out(fields: Vec<Field>, batch_size: usize, run: usize) -> Option<Self> {
        let mut end = 0usize;
        let mut place = |bytes: usize, align: usize| {
            let at = end.checked_next_multiple_of(align)?;
            end = at.checked_add(bytes)?;
            Some(at)
        };
        let per_cell = batch_size.div_ceil(MAX_CELLS).max(run.min(batch_size)).max(1);
        place(SLOT_HEADER_BYTES, LINE)?;
        let cells_at = place(batch_size.div_ceil(per_cell).checked_mul(4)?, LINE)?;
        let words_at = place(batch_size.checked_mul(8)?, LINE)?;
        let failures_at = place(MAX_FAILURES * FAILURE_BYTES, LINE)?;
        let mut sample_bytes = Vec::new();
        let mut field_at = Vec::new();
        for field in &fields {
            let bytes = field.bytes()?;
            sample_bytes.push(bytes);
            field_at.push(place(bytes.checked_mul(batch_size)?, LINE)?);
        }
        let slot_bytes = end.checked_next_multiple_of(PAGE)?;
        slot_bytes.checked_mul(MAX_SLOTS)?.checked_add(Self::slots_at(MAX_SLOTS, MAX_WORKERS))?;
        (slot_bytes <= isize::MAX as usize / (2 * MAX_SLOTS)).then_some(())?;
        Some(Self {
            fields,
            batch_size,
            per_cell,
            sample_bytes,
            field_at,
            cells_at,
            words_at,
            failures_at,
            slot_bytes,
        })
    }

    pub(super) const fn queue_at() -> usize {
        HEADER_BYTES
    }

    /// Entries of the queue. See `Board::next_number` for the factor.
    pub(super) const fn queue_len(max_slots: usize) -> usize {
        2 * max_slots
    }

    pub(super) const fn desks_at(max_slots: usize) -> usize {
        (HEADER_BYTES + 4 * Self::queue_len(max_slots)).next_multiple_of(DESK_BYTES)
    }

    pub(crate) const fn slots_at(max_slots: usize, workers: usize) -> usize {
        (Self::desks_at(max_slots) + DESK_BYTES * workers).next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::field::DType;

    #[test]
    fn impossible_fields_are_refused() {
        let field = |name: &str, shape: &[usize]| Field::new(name, DType::F32, shape);
        let new = |fields, batch| Geometry::new(fields, batch).unwrap_err();
        assert_eq!(new(vec![], 1), GeometryError::FieldCount(0));
        assert_eq!(
            new(vec![field("a", &[]), field("a", &[])], 1),
            GeometryError::SameName("a".into())
        );
        assert!(matches!(new(vec![field("a", &[3, 0])], 1), GeometryError::EmptyField { .. }));
        assert!(matches!(
            new(vec![field("a", &[usize::MAX, 2])], 1),
            GeometryError::TooLarge { .. }
        ));
        assert!(matches!(new(vec![field("a", &[2])], usize::MAX), GeometryError::TooLarge { .. }));
    }

    proptest! {
        #[test]
        fn parts_of_a_slot_are_aligned_and_apart(
            shapes in prop::collection::vec((1usize..50, 0usize..5), 1..MAX_FIELDS),
            batch_size in 1usize..3000,
        ) {
            let types = [DType::U8, DType::F16, DType::BF16, DType::F32, DType::I64];
            let fields: Vec<_> = shapes.iter().enumerate()
                .map(|(i, &(n, t))| Field::new(i.to_string(), types[t], [n])).collect();
            let g = Geometry::new(fields, batch_size).unwrap();
            let cells = batch_size.div_ceil(g.per_cell);
            prop_assert!(cells <= MAX_CELLS);
            let mut parts = vec![
                (0, SLOT_HEADER_BYTES),
                (g.cells_at, 4 * cells),
                (g.words_at, 8 * batch_size),
                (g.failures_at, MAX_FAILURES * FAILURE_BYTES),
            ];
            parts.extend(g.field_at.iter().zip(&g.sample_bytes).map(|(&at, &n)| (at, n * batch_size)));
            parts.push((g.slot_bytes, 0));
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                prop_assert_eq!(pair[1].0 % LINE, 0);
            }
            prop_assert_eq!(g.slot_bytes % PAGE, 0);
        }
    }
}
