//! A loader as burn's own `DataLoader`, for the training loops of `burn-train`.

use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataloader::{DataLoader as BurnsLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use loader_core::{
    Batch, BuildError, DataLoader, DataLoaderBuilder, Dataset, Epoch, LoaderState, ResumeError,
};

use crate::error::TensorError;

type Map<O> = dyn Fn(Batch, &Device) -> Result<O, TensorError> + Send + Sync;

/// A loader that `burn-train` takes: it implements [`burn::data::dataloader::DataLoader`], and what
/// it gives is made of each batch by a function, as small as a burn `Batcher`.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use burn::data::dataloader;
/// use burn::tensor::{Device, Int, Tensor};
/// use loader_burn::{BatchTensors, BurnLoader};
/// use loader_core::{DataLoader, ImageFolder, Transform};
///
/// struct Images {
///     images: Tensor<4>,
///     targets: Tensor<1, Int>,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let train = ImageFolder::open("train")?.transform(&Transform::imagenet_train(224))?;
/// let settings = DataLoader::builder(train).batch_size(64).shuffle(42);
/// let train = BurnLoader::new(settings, &Device::flex(), |batch, device| {
///     let (images, targets) = batch.into_tensors(device)?;
///     Ok(Images { images, targets })
/// })?;
/// let train: Arc<dyn dataloader::DataLoader<Images>> = Arc::new(train);
/// // SupervisedTraining::new("artifacts", train, valid)
/// # Ok(())
/// # }
/// ```
///
/// # Epochs
/// Each call of `iter` is the next epoch, from 0, with the order and augmentation of that epoch;
/// [`from_epoch`](Self::from_epoch) starts at another one, [`resume`](Self::resume) amid one, and
/// [`repeating`](Self::repeating) gives the same epoch at each call, as validation wants it. Loaders
/// made by `to_device` go on with the same epochs. One iterator runs at a time: an earlier one ends
/// with an error.
///
/// # Errors
/// What goes wrong is an item of the iterator, with the file where there is one, and `burn-train`
/// ends the training with it. Then the epoch is over, except where too many batches are held.
///
/// # Several devices
/// `slice` gives a loader of its own, with workers and memory as the settings say, for a range of
/// *positions* of each epoch: devices get other samples in each epoch, and all of them together one
/// epoch. Where it can't be built, iterating it gives the error. A dataset that is no `Clone` becomes
/// one in an `Arc`. A part of a resumed loader begins with the epoch that was interrupted.
pub struct BurnLoader<D: Dataset, O> {
    shared: Arc<Shared<D>>,
    map: Arc<Map<O>>,
    device: Device,
}

/// What a loader has in common with those for other devices.
struct Shared<D: Dataset> {
    settings: DataLoaderBuilder<D>,
    loader: DataLoader<D>,
    next: Mutex<Next>,
}

/// Which epoch the next iterator gives.
#[derive(Clone)]
enum Next {
    Epoch(u64),
    Rest(LoaderState),
    Always(u64),
}

impl<D: Dataset + Clone, O: 'static> BurnLoader<D, O> {
    /// Builds the loader, whose batches become what `map` makes of them for that device. For images
    /// and labels `map` is [`BatchTensors::into_tensors`](crate::BatchTensors::into_tensors).
    ///
    /// # Errors
    /// A [`BuildError`] that names the setting to change.
    pub fn new(
        settings: DataLoaderBuilder<D>,
        device: &Device,
        map: impl Fn(Batch, &Device) -> Result<O, TensorError> + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let shared = Shared::build(settings, Next::Epoch(0))?;
        Ok(Self { shared, map: Arc::new(map), device: device.clone() })
    }

    /// The next iterator gives that epoch, and those after it the next ones. Epochs count from 0: a
    /// learner that goes on from `checkpoint(3)` has had three of them.
    #[must_use]
    pub fn from_epoch(self, epoch: u64) -> Self {
        self.shared.set(Next::Epoch(epoch));
        self
    }

    /// Every iterator gives that epoch: the same batches each time, as validation wants them.
    #[must_use]
    pub fn repeating(self, epoch: u64) -> Self {
        self.shared.set(Next::Always(epoch));
        self
    }

    /// The next iterator gives what was left of the epoch when that state was [saved](Self::state),
    /// and those after it the next epochs.
    ///
    /// # Errors
    /// Where the data or the settings are not those of the state; see [`ResumeError`].
    pub fn resume(self, state: &LoaderState) -> Result<Self, ResumeError> {
        drop(self.shared.loader.resume(state)?);
        let next = match state.is_complete() {
            true => Next::Epoch(state.epoch() + 1),
            false => Next::Rest(state.clone()),
        };
        self.shared.set(next);
        Ok(self)
    }

    /// Where the latest iterator stands, of this loader or of one made from it by `to_device`: keep
    /// an `Arc` of the loader beside the one that the learner gets, and save this with the model.
    pub fn state(&self) -> LoaderState {
        self.shared.loader.state()
    }

    fn on(&self, shared: Arc<Shared<D>>, device: &Device) -> Arc<dyn BurnsLoader<O>> {
        Arc::new(Self { shared, map: Arc::clone(&self.map), device: device.clone() })
    }
}

impl<D: Dataset + Clone> Shared<D> {
    fn build(settings: DataLoaderBuilder<D>, next: Next) -> Result<Arc<Self>, BuildError> {
        let loader = settings.clone().build()?;
        Ok(Arc::new(Self { settings, loader, next: Mutex::new(next) }))
    }

    fn set(&self, next: Next) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Those of its positions, for the same epochs.
    fn part(&self, positions: Range<u64>) -> Result<Arc<Self>, BuildError> {
        let next = match self.next.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            // What was delivered of the whole says nothing about a part.
            Next::Rest(state) => Next::Epoch(state.epoch()),
            next => next,
        };
        Self::build(self.settings.clone().positions(positions), next)
    }

    /// The epoch that is due, and the number of its batches that came before.
    fn begin(&self) -> Result<(Epoch<D>, u64), DatasetError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match next.clone() {
            Next::Always(epoch) => Ok((self.loader.epoch(epoch).map_err(DatasetError::new)?, 0)),
            Next::Epoch(epoch) => {
                *next = Next::Epoch(epoch + 1);
                Ok((self.loader.epoch(epoch).map_err(DatasetError::new)?, 0))
            }
            Next::Rest(state) => {
                let epoch = self.loader.resume(&state).map_err(DatasetError::new)?;
                *next = Next::Epoch(state.epoch() + 1);
                Ok((epoch, state.batches_delivered()))
            }
        }
    }
}

impl<D: Dataset + Clone, O: 'static> BurnsLoader<O> for BurnLoader<D, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let (batches, taken): (Box<dyn Iterator<Item = _>>, _) = match self.shared.begin() {
            Ok((epoch, taken)) => {
                let map = |batch| (self.map)(batch, &self.device).map_err(DatasetError::new);
                let batches = epoch.map(move |batch| map(batch.map_err(DatasetError::new)?));
                (Box::new(batches), taken)
            }
            Err(error) => (Box::new(iter::once(Err(error))), 0),
        };
        let batch_size = self.shared.loader.batch_size();
        Box::new(Batches { batches, taken: taken as usize, batch_size, items: self.num_items() })
    }

    fn num_items(&self) -> usize {
        self.shared.loader.samples() as usize
    }

    fn to_device(&self, device: &Device) -> Arc<dyn BurnsLoader<O>> {
        self.on(Arc::clone(&self.shared), device)
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn BurnsLoader<O>> {
        match self.shared.part(start as u64..end as u64) {
            Ok(shared) => self.on(shared, &self.device),
            Err(error) => Arc::new(NotBuilt { error: Arc::new(error), items: end - start }),
        }
    }
}

impl<D: Dataset, O> fmt::Debug for BurnLoader<D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnLoader")
            .field("loader", &self.shared.loader)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// The batches of an epoch, or the error that there is none.
struct Batches<'a, O> {
    batches: Box<dyn Iterator<Item = Result<O, DatasetError>> + 'a>,
    /// Batches of the epoch that were delivered.
    taken: usize,
    batch_size: usize,
    items: usize,
}

impl<O> Iterator for Batches<'_, O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next()?;
        self.taken += usize::from(batch.is_ok());
        Some(batch)
    }
}

impl<O> DataLoaderIterator<O> for Batches<'_, O> {
    /// In samples. Those that a batch lacks because they failed count too: learners wait for the
    /// epoch's end.
    fn progress(&self) -> Progress {
        let processed = self.taken.saturating_mul(self.batch_size).min(self.items);
        Progress::new(processed, self.items, Some("items".to_owned()))
    }
}

/// A part of a loader that could not be built, in a place that has no room for an error.
struct NotBuilt {
    error: Arc<BuildError>,
    items: usize,
}

impl<O: 'static> BurnsLoader<O> for NotBuilt {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let error = DatasetError::new(SharedError(Arc::clone(&self.error)));
        let batches = Box::new(iter::once(Err(error)));
        Box::new(Batches { batches, taken: 0, batch_size: 0, items: self.items })
    }

    fn num_items(&self) -> usize {
        self.items
    }

    fn to_device(&self, _: &Device) -> Arc<dyn BurnsLoader<O>> {
        Arc::new(Self { error: Arc::clone(&self.error), items: self.items })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn BurnsLoader<O>> {
        Arc::new(Self { error: Arc::clone(&self.error), items: end.saturating_sub(start) })
    }
}

/// An error that is told each time.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct SharedError(Arc<BuildError>);
