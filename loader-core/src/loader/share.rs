//! A batch in other processes: a small handle that travels, and what it opens to.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::batch::FieldError;
use super::pool::Held;
use crate::field::{DType, Element, Field, SharedField};
use crate::shm::{Filled, OpenError, Place, Reference};

/// Names a [`Batch`](crate::Batch) to other processes of the same user and machine, in a few hundred
/// bytes: send it through a pipe, a socket or a queue, in any format of serde.
///
/// It does not keep the batch alive: the sender holds it until the receiver has
/// [opened](Self::open) it. From then on the receiver keeps its memory from being used again. A
/// handle whose batch was dropped gives [`OpenError::Dropped`], never other bytes.
///
/// Made by [`Batch::share`](crate::Batch::share). See `docs/sharing-batches.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedBatch {
    segment: String,
    slot: u32,
    generation: u32,
    epoch: u64,
    number: u64,
    len: u32,
    /// Where the samples' words lie in the segment.
    words: u64,
    /// And each field.
    fields: Vec<(Field, u64)>,
}

impl SharedBatch {
    pub(super) fn new(
        held: &Held,
        len: usize,
        epoch: u64,
        number: u64,
    ) -> Result<Self, ShareError> {
        let shares = held.shares().ok_or(ShareError::NotShareable)?;
        let lease = &held.lease;
        let fields = lease.geometry().fields.iter().enumerate();
        Ok(Self {
            segment: shares.name().to_owned(),
            slot: lease.slot(),
            generation: shares.publish(lease.slot()),
            epoch,
            number,
            len: len as u32,
            words: lease.words_offset() as u64,
            fields: fields.map(|(i, f)| (f.clone(), lease.field_offset(i) as u64)).collect(),
        })
    }

    /// The name of its loader's segment in `/dev/shm`.
    pub fn segment(&self) -> &str {
        &self.segment
    }

    /// The epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its number in the epoch.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Opens the batch in this process: the same memory, not a copy.
    ///
    /// The first batch of a loader maps its segment (tens of microseconds), which stays mapped while
    /// any of its batches is open here; further ones take about a microsecond.
    ///
    /// # Errors
    /// Where the batch or its loader is gone, it is not this user's, or the handle is damaged.
    pub fn open(&self) -> Result<OpenBatch, OpenError> {
        let damaged = |what| OpenError::Damaged { segment: self.segment.clone(), what };
        let reference = Reference::open(&self.segment, self.slot, self.generation)?
            .ok_or(OpenError::Dropped { epoch: self.epoch, number: self.number })?;
        let len = u64::from(self.len);
        let fits = |at: u64, align: u64, bytes: Option<u64>| {
            at.is_multiple_of(align) && bytes.is_some_and(|n| reference.bytes(at, n).is_some())
        };
        if !fits(self.words, 8, len.checked_mul(8)) {
            return Err(damaged("the handle's samples lie outside of its slot"));
        }
        for (field, at) in &self.fields {
            let bytes = field.bytes().and_then(|bytes| len.checked_mul(bytes as u64));
            if !fits(*at, 64, bytes) {
                return Err(damaged("a field of the handle lies outside of its slot"));
            }
        }
        Ok(OpenBatch { opened: Arc::new(Opened { reference, handle: self.clone() }) })
    }
}

/// A batch of another process, read in place.
///
/// The sender's memory is not used for another batch until this and all its clones are dropped, or
/// this process ends, however it does. It stays readable whatever happens to the sender. Nobody can
/// write to it. It may be sent to other threads, but does not survive a `fork`: the child's copies
/// keep nothing alive.
#[derive(Clone)]
pub struct OpenBatch {
    opened: Arc<Opened>,
}

struct Opened {
    reference: Reference,
    handle: SharedBatch,
}

impl OpenBatch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.opened.handle.len()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.opened.handle.is_empty()
    }

    /// The epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.opened.handle.epoch
    }

    /// Its number in the epoch.
    pub fn number(&self) -> u64 {
        self.opened.handle.number
    }

    /// The fields of a sample.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = &Field> + '_ {
        self.opened.handle.fields.iter().map(|(field, _)| field)
    }

    /// The samples' indices in the dataset, in the order of the batch.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.filled().map(|filled| filled.index)
    }

    /// For each sample, true where it only fills up a rank's share.
    pub fn padding(&self) -> impl ExactSizeIterator<Item = bool> + '_ {
        self.filled().map(|filled| filled.padding)
    }

    /// The elements of a field, sample after sample (row-major, batch dimension first), aligned to 64
    /// bytes.
    ///
    /// # Errors
    /// Where there is no such field, or it is of another type.
    pub fn get<T: Element>(&self, field: &str) -> Result<&[T], FieldError> {
        let (spec, at) = self.find(field)?;
        if spec.dtype != T::DTYPE {
            let (asked, found) = (T::DTYPE, spec.dtype);
            return Err(FieldError::Type { field: field.to_owned(), asked, found });
        }
        Ok(bytemuck::cast_slice(self.opened.part(at, spec.bytes().unwrap_or(0))))
    }

    /// A field, to be owned and sent on by itself: what a tensor that does not write to its storage
    /// can take as it lies there.
    ///
    /// # Errors
    /// Where there is no such field.
    pub fn field(&self, field: &str) -> Result<OpenField, FieldError> {
        let (spec, at) = self.find(field)?;
        let shape = [self.len()].into_iter().chain(spec.shape.iter().copied()).collect();
        let (dtype, bytes) = (spec.dtype, spec.bytes().unwrap_or(0));
        Ok(OpenField { opened: Arc::clone(&self.opened), at, bytes, dtype, shape })
    }

    fn find(&self, field: &str) -> Result<(&Field, u64), FieldError> {
        let found = self.opened.handle.fields.iter().find(|(f, _)| f.name == field);
        found.map(|(spec, at)| (spec, *at)).ok_or_else(|| {
            let fields = self.fields().map(|f| f.name.clone()).collect();
            FieldError::Missing { field: field.to_owned(), fields }
        })
    }

    fn filled(&self) -> impl ExactSizeIterator<Item = Filled> + '_ {
        let words: &[u64] = bytemuck::cast_slice(self.opened.part(self.opened.handle.words, 8));
        words.iter().map(|&word| Filled::from(Place(word)))
    }
}

impl Opened {
    /// That many bytes of every sample, which begin there; `open` checked that they do.
    fn part(&self, at: u64, bytes: usize) -> &[u8] {
        self.reference.bytes(at, (bytes * self.handle.len()) as u64).unwrap_or_default()
    }
}

/// One field of an [`OpenBatch`], owned: contiguous, row-major, aligned to 64 bytes, and not to be
/// written. It keeps the batch's memory as the batch does.
#[derive(Clone)]
pub struct OpenField {
    opened: Arc<Opened>,
    at: u64,
    /// Of a sample.
    bytes: usize,
    dtype: DType,
    shape: Vec<usize>,
}

impl OpenField {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, batch dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl SharedField for OpenField {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl AsRef<[u8]> for OpenField {
    /// The elements as bytes, in this machine's byte order. They stay at their address.
    fn as_ref(&self) -> &[u8] {
        self.opened.part(self.at, self.bytes)
    }
}

impl fmt::Debug for OpenField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenField")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OpenBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBatch").field("handle", &self.opened.handle).finish_non_exhaustive()
    }
}

/// Why a batch can't be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// Its loader's memory has no name.
    #[error(
        "the batch lies in memory that only this process and its workers can see: build the loader \
         with shareable(true)"
    )]
    NotShareable,
    /// A part of it belongs to somebody who may write to it.
    #[error("a field was taken out of the batch: share it before, and keep it whole")]
    Taken,
}
