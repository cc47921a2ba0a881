//! A batch: a lease on a slot of shared memory, read in place or taken apart into its fields.

use std::fmt;
use std::slice;
use std::sync::Arc;

use super::pool::Held;
use super::share::{ShareError, SharedBatch};
use crate::field::{DType, Element, Field, SharedField};
use crate::rng::Draws;

/// A batch of samples in shared memory.
///
/// It is a lease: the memory is used for a later batch once the batch, every [`FieldLease`] taken
/// from it and everything built over those are dropped. Until then nobody else touches it, so it
/// may be changed in place.
pub struct Batch {
    held: Arc<Held>,
    len: usize,
    epoch: u64,
    number: u64,
    seed: u64,
    taken: u16,
    shared: Option<SharedBatch>,
}

impl Batch {
    pub(super) fn new(held: Held, len: u32, epoch: u64, number: u64, seed: u64) -> Self {
        let (held, len) = (Arc::new(held), len as usize);
        Self { held, len, epoch, number, seed, taken: 0, shared: None }
    }

    /// The number of samples: the batch size, or less in the last batch of an epoch or where
    /// failed samples were skipped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The epoch that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its number in the epoch, from 0. To go on after it, start with
    /// [`epoch_from`](crate::DataLoader::epoch_from) at the number after.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The random draws of the `operation`-th random step on this batch: a function of the loader's
    /// seed, the epoch, the batch's number and its first sample, so that ranks draw apart. They have
    /// nothing in common with those of [`Sample::draws`](crate::Sample::draws).
    pub fn draws(&self, operation: u64) -> Draws {
        let first = self.indices().next().unwrap_or_default();
        // Samples occur less often than that.
        Draws::keyed(self.seed, self.epoch, first, u64::MAX - self.number, operation)
    }

    /// The fields of a sample.
    pub fn fields(&self) -> &[Field] {
        &self.held.lease.geometry().fields
    }

    /// The samples' indices in the dataset, in the order of the batch.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        (0..self.len as u32).map(|at| self.held.lease.filled(at).index)
    }

    /// For each sample, true where it only fills up a rank's share
    /// ([`ShardMode::Pad`](crate::ShardMode::Pad)) and should be left out of metrics.
    pub fn padding(&self) -> impl ExactSizeIterator<Item = bool> + '_ {
        (0..self.len as u32).map(|at| self.held.lease.filled(at).padding)
    }

    /// The elements of a field, sample after sample (row-major, batch dimension first).
    ///
    /// # Errors
    /// Where there is no such field, it is of another type, or it was taken.
    pub fn get<T: Element>(&self, field: &str) -> Result<&[T], FieldError> {
        let (at, bytes) = self.typed::<T>(field)?;
        // SAFETY: as in `FieldLease::as_ref`; the field was not taken, so it is this batch's, and
        // the batch is borrowed for as long as the slice.
        let bytes = unsafe { slice::from_raw_parts(self.held.lease.field_ptr(at), bytes) };
        Ok(bytemuck::cast_slice(bytes))
    }

    /// The same, to be changed in place.
    ///
    /// # Errors
    /// As for [`get`](Self::get), and where the batch was [shared](Self::share).
    pub fn get_mut<T: Element>(&mut self, field: &str) -> Result<&mut [T], FieldError> {
        let (at, bytes) = self.typed::<T>(field)?;
        self.unshared(field)?;
        // SAFETY: as in `get`, and the batch is borrowed mutably.
        let bytes = unsafe { slice::from_raw_parts_mut(self.held.lease.field_ptr(at), bytes) };
        Ok(bytemuck::cast_slice_mut(bytes))
    }

    /// Takes a field out of the batch, to be owned and sent on by itself.
    ///
    /// # Errors
    /// Where there is no such field, it was taken before, or the batch was [shared](Self::share).
    pub fn take(&mut self, field: &str) -> Result<FieldLease, FieldError> {
        let (at, bytes) = self.find(field)?;
        self.unshared(field)?;
        self.taken |= 1 << at;
        let spec = &self.fields()[at];
        let shape = [self.len].into_iter().chain(spec.shape.iter().copied()).collect();
        Ok(FieldLease { dtype: spec.dtype, shape, at, bytes, held: Arc::clone(&self.held) })
    }

    /// Lets other processes of this user open the batch, with the handle that is returned, until it
    /// is dropped; its memory is used again when they are through with it too. From now on it can
    /// only be read. Sharing it again gives the same handle.
    ///
    /// # Errors
    /// Where the loader is not [`shareable`](crate::DataLoaderBuilder::shareable), or a field was
    /// taken.
    pub fn share(&mut self) -> Result<SharedBatch, ShareError> {
        if self.taken != 0 {
            return Err(ShareError::Taken);
        }
        if let Some(shared) = &self.shared {
            return Ok(shared.clone());
        }
        let shared = SharedBatch::new(&self.held, self.len, self.epoch, self.number)?;
        Ok(self.shared.insert(shared).clone())
    }

    /// Others may read what was shared at any time.
    fn unshared(&self, field: &str) -> Result<(), FieldError> {
        match self.shared {
            None => Ok(()),
            Some(_) => Err(FieldError::Shared { field: field.to_owned() }),
        }
    }

    fn typed<T: Element>(&self, field: &str) -> Result<(usize, usize), FieldError> {
        let (at, bytes) = self.find(field)?;
        let found = self.fields()[at].dtype;
        if found == T::DTYPE {
            Ok((at, bytes))
        } else {
            Err(FieldError::Type { field: field.to_owned(), asked: T::DTYPE, found })
        }
    }

    fn find(&self, field: &str) -> Result<(usize, usize), FieldError> {
        let Some(at) = self.fields().iter().position(|f| f.name == field) else {
            let fields = self.fields().iter().map(|f| f.name.clone()).collect();
            return Err(FieldError::Missing { field: field.to_owned(), fields });
        };
        if self.taken & (1 << at) != 0 {
            return Err(FieldError::Taken { field: field.to_owned() });
        }
        Ok((at, self.held.lease.sample_bytes(at) * self.len))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("epoch", &self.epoch)
            .field("number", &self.number)
            .field("len", &self.len)
            .field("fields", &self.fields())
            .finish_non_exhaustive()
    }
}

/// One field of a batch, owned: contiguous, row-major, aligned to 64 bytes.
///
/// It is what a tensor takes as its storage. The batch's memory is used again only when the batch
/// and all of its field leases are dropped.
pub struct FieldLease {
    held: Arc<Held>,
    at: usize,
    bytes: usize,
    dtype: DType,
    shape: Vec<usize>,
}

impl FieldLease {
    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, batch dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where the elements begin. The address stays the same when the lease is moved.
    pub fn as_ptr(&self) -> *const u8 {
        self.held.lease.field_ptr(self.at)
    }

    /// The same, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.held.lease.field_ptr(self.at)
    }
}

impl SharedField for FieldLease {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }
}

impl AsRef<[u8]> for FieldLease {
    /// The elements as bytes, in this machine's byte order.
    fn as_ref(&self) -> &[u8] {
        // SAFETY:
        // - In bounds: `bytes` is at most the field's size, which `field_ptr` vouches for.
        // - No writer: a field is taken from its batch once, so this lease is its only owner, and
        //   it is borrowed. Workers don't touch a slot that is held.
        // - Alive: `held` keeps the slot and the map.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }
}

impl AsMut<[u8]> for FieldLease {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`, and borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.bytes) }
    }
}

impl fmt::Debug for FieldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldLease")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

/// Why a field of a batch can't be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// The dataset has no field of that name.
    #[error("no field {field:?}, there are {fields:?}")]
    Missing {
        /// The name asked for.
        field: String,
        /// The names there are.
        fields: Vec<String>,
    },
    /// Its elements are of another type.
    #[error("field {field:?} holds {found:?}, not {asked:?}")]
    Type {
        /// The field.
        field: String,
        /// The type asked for.
        asked: DType,
        /// The type it has.
        found: DType,
    },
    /// The batch was shared with other processes, which may be reading it.
    #[error("field {field:?} can only be read: the batch was shared with other processes")]
    Shared {
        /// The field.
        field: String,
    },
    /// It was taken out of the batch before.
    #[error("field {field:?} was already taken out of the batch")]
    Taken {
        /// The field.
        field: String,
    },
}
