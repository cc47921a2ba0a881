//! Where a loader stands, in a few dozen bytes: what was delivered, and of what.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::ErrorPolicy;
use crate::dataset::{Dataset, Fingerprint};
use crate::sampler::{Sampler, ShardMode};

/// The version of the format; goes up when its fields change their meaning.
const VERSION: u8 = 1;

/// Where a loader stands: to be kept in a checkpoint, beside the model, and given to
/// [`DataLoader::resume`](crate::DataLoader::resume).
///
/// It holds the batches that were handed to the caller, not those made ahead, and tells the data,
/// transform, decoder, seed, order and batches apart that they came from. It does not depend on the
/// number of workers, nor on the rank where batches are delivered in order: what one rank saved, all
/// may resume from.
///
/// With serde it is a small map in readable formats (JSON: about 200 bytes) and a string of bytes in
/// others; [`to_bytes`](Self::to_bytes) gives the same 50 to 70 bytes. See `docs/resume.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderState {
    progress: Progress,
    identity: Identity,
}

/// Which batches of an epoch were delivered: those before `batch` but the missing ones.
///
/// Batches are queued in the order of their numbers, so what is missing is at work, and there are at
/// most as many as are made ahead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    epoch: u64,
    batch: u64,
    /// Ascending.
    missing: Vec<u64>,
}

/// What batches are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    /// Batches of an epoch of this rank.
    batches: u64,
    batch_size: u64,
    drop_last: bool,
    rank: u32,
    world: u32,
    /// `None` where there is one rank.
    mode: Option<ShardMode>,
    policy: ErrorPolicy,
    seed: u64,
    order: Mark,
    dataset: BTreeMap<String, Mark>,
}

/// The lowest 32 bits of a fingerprint. They tell what changed by accident: one change of four
/// billion goes unnoticed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(u32);

impl From<Fingerprint> for Mark {
    fn from(fingerprint: Fingerprint) -> Self {
        Self(fingerprint.0 as u32)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LoaderState {
    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.progress.epoch
    }

    /// Batches of the epoch that were delivered.
    pub fn batches_delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// True where every batch of the epoch was delivered. Resuming then gives an epoch without
    /// batches, and training goes on with the next one.
    pub fn is_complete(&self) -> bool {
        self.batches_delivered() == self.identity.batches
    }

    /// The state as bytes: a version, numbers of variable length, and 4 bytes a fingerprint.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (progress, identity) = (&self.progress, &self.identity);
        let mut out = vec![VERSION];
        let flags = u8::from(identity.drop_last)
            | number_of(&POLICIES, &identity.policy) << 1
            | number_of(&MODES, &identity.mode) << 4;
        out.push(flags);
        let ranks = [identity.rank.into(), identity.world.into()];
        let numbers = [progress.epoch, progress.batch, identity.batches, identity.batch_size];
        numbers.into_iter().chain(ranks).chain([identity.seed]).for_each(|n| put(&mut out, n));
        out.extend(identity.order.0.to_le_bytes());
        put(&mut out, identity.dataset.len() as u64);
        for (part, mark) in &identity.dataset {
            put(&mut out, part.len() as u64);
            out.extend(part.as_bytes());
            out.extend(mark.0.to_le_bytes());
        }
        put(&mut out, progress.missing.len() as u64);
        let mut last = 0;
        for &batch in &progress.missing {
            put(&mut out, batch - last);
            last = batch;
        }
        out
    }

    /// The state that [`to_bytes`](Self::to_bytes) gave these bytes for.
    ///
    /// # Errors
    /// Where they are another version's, or not a state.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        let (&found, rest) = bytes.split_first().ok_or(StateError::Damaged)?;
        if found != VERSION {
            return Err(StateError::Version { found: found.into(), supported: VERSION.into() });
        }
        Self::unpack(rest).filter(Self::is_sound).ok_or(StateError::Damaged)
    }

    fn unpack(mut bytes: &[u8]) -> Option<Self> {
        let from = &mut bytes;
        let flags = take(from, 1)?[0];
        let [epoch, batch, batches, batch_size] = [get(from)?, get(from)?, get(from)?, get(from)?];
        let [rank, world] = [get(from)?.try_into().ok()?, get(from)?.try_into().ok()?];
        let seed = get(from)?;
        let order = mark(from)?;
        let parts = get(from)?;
        let mut dataset = BTreeMap::new();
        for _ in 0..parts {
            let len = get(from)?.try_into().ok()?;
            let part = std::str::from_utf8(take(from, len)?).ok()?.to_owned();
            dataset.insert(part, mark(from)?);
        }
        let count = get(from)?;
        let mut missing = Vec::new();
        let mut last = 0u64;
        for _ in 0..count {
            last = last.checked_add(get(from)?)?;
            missing.push(last);
        }
        let identity = Identity {
            batches,
            batch_size,
            drop_last: flags & 1 != 0,
            rank,
            world,
            mode: *MODES.get(usize::from(flags >> 4))?,
            policy: *POLICIES.get(usize::from(flags >> 1 & 7))?,
            seed,
            order,
            dataset,
        };
        let progress = Progress { epoch, batch, missing };
        from.is_empty().then_some(Self { progress, identity })
    }

    /// False where the numbers contradict each other.
    fn is_sound(&self) -> bool {
        let Progress { batch, missing, .. } = &self.progress;
        *batch <= self.identity.batches
            && missing.is_sorted_by(|a, b| a < b)
            && missing.last().is_none_or(|last| last < batch)
    }
}

/// Policies and modes by their number in the bytes.
const POLICIES: [ErrorPolicy; 3] = [ErrorPolicy::Stop, ErrorPolicy::Skip, ErrorPolicy::Substitute];
const MODES: [Option<ShardMode>; 4] =
    [None, Some(ShardMode::Pad), Some(ShardMode::Drop), Some(ShardMode::Exact)];

fn number_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(0) as u8
}

/// Appends a number, seven bits a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn get(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = u64::from(take(from, 1)?[0]);
        let bits = byte & 0x7f;
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn mark(from: &mut &[u8]) -> Option<Mark> {
    Some(Mark(u32::from_le_bytes(take(from, 4)?.try_into().ok()?)))
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    from.split_off(..len)
}

/// Why bytes are not a [`LoaderState`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another version of this library wrote it.
    #[error("the loader's state has format {found}, this version reads {supported}")]
    Version {
        /// The format's version.
        found: u32,
        /// The one that can be read.
        supported: u32,
    },
    /// It is cut off, or its numbers contradict each other.
    #[error("the loader's state is damaged")]
    Damaged,
}

/// The form for formats that people read.
#[derive(Serialize, Deserialize)]
#[serde(rename = "LoaderState")]
struct Readable {
    version: Version,
    epoch: u64,
    batch: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missing: Vec<u64>,
    batches: u64,
    batch_size: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    drop_last: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard: Option<ReadableShard>,
    #[serde(default, skip_serializing_if = "is_default")]
    error_policy: ErrorPolicy,
    seed: u64,
    order: Mark,
    dataset: BTreeMap<String, Mark>,
}

#[derive(Serialize, Deserialize)]
struct ReadableShard {
    rank: u32,
    world: u32,
    mode: ShardMode,
}

/// Refuses other versions by their number, before what they hold is looked at.
struct Version;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        VERSION.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let found = u32::deserialize(from)?;
        let supported = VERSION.into();
        (found == supported)
            .then_some(Self)
            .ok_or_else(|| de::Error::custom(StateError::Version { found, supported }))
    }
}

impl Serialize for Mark {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mark {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        u32::from_str_radix(&text, 16).map(Self).map_err(de::Error::custom)
    }
}

impl From<&LoaderState> for Readable {
    fn from(state: &LoaderState) -> Self {
        let (Progress { epoch, batch, missing }, identity) =
            (state.progress.clone(), state.identity.clone());
        let (rank, world) = (identity.rank, identity.world);
        Self {
            version: Version,
            epoch,
            batch,
            missing,
            batches: identity.batches,
            batch_size: identity.batch_size,
            drop_last: identity.drop_last,
            shard: identity.mode.map(|mode| ReadableShard { rank, world, mode }),
            error_policy: identity.policy,
            seed: identity.seed,
            order: identity.order,
            dataset: identity.dataset,
        }
    }
}

impl From<Readable> for LoaderState {
    fn from(from: Readable) -> Self {
        let shard = from.shard.as_ref();
        let identity = Identity {
            batches: from.batches,
            batch_size: from.batch_size,
            drop_last: from.drop_last,
            rank: shard.map_or(0, |shard| shard.rank),
            world: shard.map_or(1, |shard| shard.world),
            mode: shard.map(|shard| shard.mode),
            policy: from.error_policy,
            seed: from.seed,
            order: from.order,
            dataset: from.dataset,
        };
        let progress = Progress { epoch: from.epoch, batch: from.batch, missing: from.missing };
        Self { progress, identity }
    }
}

impl Serialize for LoaderState {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            Readable::from(self).serialize(to)
        } else {
            to.serialize_bytes(&self.to_bytes())
        }
    }
}

impl<'de> Deserialize<'de> for LoaderState {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return from.deserialize_bytes(Bytes);
        }
        let state = Self::from(Readable::deserialize(from)?);
        if state.is_sound() { Ok(state) } else { Err(de::Error::custom(StateError::Damaged)) }
    }
}

struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = LoaderState;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of a loader's state")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<LoaderState, E> {
        LoaderState::from_bytes(bytes).map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut from: A) -> Result<LoaderState, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = from.next_element()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

/// One part of what batches are made of that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// `seed`, `order`, `batch_size`, `drop_last`, `ranks`, `shard mode`, `rank`, `error_policy`, or
    /// a part of the dataset's fingerprint
    /// ([`Dataset::fingerprint_parts`](crate::Dataset::fingerprint_parts)): `data`, `transform` and
    /// `decoder` for an [`ImageDataset`](crate::ImageDataset).
    pub what: String,
    /// What it was when the state was saved: the value, or the beginning of its fingerprint.
    pub saved: String,
    /// What it is in this loader.
    pub now: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {} and is {}", self.what, self.saved, self.now)
    }
}

/// Why a loader can't go on from a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The batches would not be those of the run that saved it.
    #[error(
        "the state is of other batches than this loader's: {}; set these as they were, or start \
         anew with epoch() or epoch_from()",
        .differences.iter().map(Difference::to_string).collect::<Vec<_>>().join(", ")
    )]
    Mismatch {
        /// Everything that differs, at least one.
        differences: Vec<Difference>,
    },
    /// It names a batch that an epoch of this loader doesn't have.
    #[error("the state is damaged: it is at batch {batch} of an epoch of {batches}")]
    NoSuchBatch {
        /// The batch to go on from.
        batch: u64,
        /// The epoch's length.
        batches: u64,
    },
}

impl Progress {
    pub(super) fn at(epoch: u64, batch: u64) -> Self {
        Self { epoch, batch, missing: Vec::new() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The batch after the last one that was delivered.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// Batches before it that were not.
    pub(super) fn missing(&self) -> &[u64] {
        &self.missing
    }

    fn delivered(&self) -> u64 {
        self.batch - self.missing.len() as u64
    }

    fn deliver(&mut self, batch: u64) {
        if batch >= self.batch {
            self.missing.extend(self.batch..batch);
            self.batch = batch + 1;
        } else {
            self.missing.retain(|&missing| missing != batch);
        }
    }
}

/// One epoch's progress, shared by its iterator, which moves it, and the loader.
#[derive(Clone, Debug, Default)]
pub(super) struct Track(Arc<Mutex<Progress>>);

impl Track {
    pub(super) fn new(progress: Progress) -> Self {
        Self(Arc::new(Mutex::new(progress)))
    }

    pub(super) fn deliver(&self, batch: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).deliver(batch);
    }

    fn progress(&self) -> Progress {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a loader keeps to tell where it stands.
pub(super) struct Tracker {
    sampler: Sampler,
    batches: u64,
    batch_size: u64,
    drop_last: bool,
    policy: ErrorPolicy,
    /// Made when it is first asked for: a dataset's fingerprint may take a while.
    identity: OnceLock<Identity>,
    /// The latest epoch's.
    current: Mutex<Track>,
}

impl Tracker {
    pub(super) fn new(
        sampler: Sampler,
        batches: u64,
        batch_size: u64,
        drop_last: bool,
        policy: ErrorPolicy,
    ) -> Self {
        let (identity, current) = Default::default();
        Self { sampler, batches, batch_size, drop_last, policy, identity, current }
    }

    pub(super) fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// Starts to follow another epoch.
    pub(super) fn start(&self, progress: Progress) -> Track {
        let track = Track::new(progress);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = track.clone();
        track
    }

    /// The latest epoch's state.
    pub(super) fn state(&self, dataset: &impl Dataset) -> LoaderState {
        let track = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.state_of(&track, dataset)
    }

    pub(super) fn state_of(&self, track: &Track, dataset: &impl Dataset) -> LoaderState {
        LoaderState { progress: track.progress(), identity: self.identity(dataset).clone() }
    }

    /// Where an epoch of this loader goes on from that state.
    pub(super) fn locate(
        &self,
        state: &LoaderState,
        dataset: &impl Dataset,
    ) -> Result<Progress, ResumeError> {
        let now = self.identity(dataset);
        let differences = state.identity.differences(now, !state.progress.missing.is_empty());
        if !differences.is_empty() {
            return Err(ResumeError::Mismatch { differences });
        }
        let mut progress = state.progress.clone();
        if now.mode == Some(ShardMode::Exact) {
            // Ranks may differ by one batch; who has the shorter share is through with it.
            progress.batch = progress.batch.min(now.batches);
        }
        if progress.batch > now.batches {
            return Err(ResumeError::NoSuchBatch { batch: progress.batch, batches: now.batches });
        }
        Ok(progress)
    }

    fn identity(&self, dataset: &impl Dataset) -> &Identity {
        self.identity.get_or_init(|| {
            let shard = self.sampler.shard().filter(|shard| shard.world() > 1);
            let parts = dataset.fingerprint_parts();
            Identity {
                batches: self.batches,
                batch_size: self.batch_size,
                drop_last: self.drop_last,
                rank: shard.map_or(0, |shard| shard.rank()),
                world: shard.map_or(1, |shard| shard.world()),
                mode: shard.map(|shard| shard.mode()),
                policy: self.policy,
                seed: self.sampler.seed(),
                order: self.sampler.order_fingerprint().into(),
                dataset: parts.into_iter().map(|(part, f)| (part.to_owned(), f.into())).collect(),
            }
        })
    }
}

impl Identity {
    /// What differs, the data first. The rank matters only where its epochs are not delivered in
    /// order, so that its missing batches are its own.
    fn differences(&self, now: &Self, with_rank: bool) -> Vec<Difference> {
        let mut found = Vec::new();
        let mut compare = |what: &str, saved: String, now: String| {
            if saved != now {
                found.push(Difference { what: what.to_owned(), saved, now });
            }
        };
        let show = |mark: Option<&Mark>| mark.map_or("nothing".to_owned(), Mark::to_string);
        let both = self.dataset.keys().chain(now.dataset.keys());
        for part in both.collect::<std::collections::BTreeSet<_>>() {
            compare(part, show(self.dataset.get(part)), show(now.dataset.get(part)));
        }
        compare("seed", self.seed.to_string(), now.seed.to_string());
        compare("order", self.order.to_string(), now.order.to_string());
        compare("batch_size", self.batch_size.to_string(), now.batch_size.to_string());
        compare("drop_last", self.drop_last.to_string(), now.drop_last.to_string());
        compare("ranks", self.world.to_string(), now.world.to_string());
        if let (Some(saved), Some(now)) = (self.mode, now.mode) {
            compare("shard mode", format!("{saved:?}"), format!("{now:?}"));
        }
        if with_rank {
            compare("rank", self.rank.to_string(), now.rank.to_string());
        }
        // What was delivered under `Stop` had no failed sample, and is the same under the others.
        if self.policy != ErrorPolicy::Stop {
            compare("error_policy", format!("{:?}", self.policy), format!("{:?}", now.policy));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(progress: Progress) -> LoaderState {
        let mark = |text: &str| Mark::from(Fingerprint::of(text.as_bytes()));
        let identity = Identity {
            batches: 5005,
            batch_size: 256,
            drop_last: false,
            rank: 0,
            world: 1,
            mode: None,
            policy: ErrorPolicy::Stop,
            seed: 42,
            order: mark("order"),
            dataset: ["data", "decoder", "transform"].map(|p| (p.to_owned(), mark(p))).into(),
        };
        LoaderState { progress, identity }
    }

    #[test]
    fn a_state_is_a_few_dozen_bytes() {
        let state = state(Progress::at(17, 1234));
        assert_eq!(state.to_bytes().len(), 53);
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(
            json,
            "{\"version\":1,\"epoch\":17,\"batch\":1234,\"batches\":5005,\"batch_size\":256,\
             \"seed\":42,\"order\":\"b0bdbc0a\",\"dataset\":{\"data\":\"f23aa86d\",\
             \"decoder\":\"2f0df232\",\"transform\":\"94a80d3d\"}}"
        );
    }

    #[test]
    fn another_version_is_named() {
        let state = state(Progress::at(0, 1));
        let json = serde_json::to_string(&state).unwrap().replace("\"version\":1", "\"version\":9");
        let error = serde_json::from_str::<LoaderState>(&json).unwrap_err().to_string();
        assert!(error.contains("format 9, this version reads 1"), "{error}");
        let mut bytes = state.to_bytes();
        bytes[0] = 9;
        let version = StateError::Version { found: 9, supported: 1 };
        assert_eq!(LoaderState::from_bytes(&bytes), Err(version));
    }

    #[test]
    fn a_state_that_contradicts_itself_is_refused() {
        for (batch, missing) in [(6000, vec![]), (7, vec![7]), (7, vec![3, 3]), (7, vec![5, 3])] {
            let state = state(Progress { epoch: 0, batch, missing });
            let json = serde_json::to_string(&state).unwrap();
            let error = serde_json::from_str::<LoaderState>(&json).unwrap_err().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_state_survives_every_form(
            (epoch, seed, batch_size) in any::<(u64, u64, u64)>(),
            delivered in prop::collection::vec(0u64..200, 0..50),
            (rank, world) in (0u32..9, 1u32..9),
            (drop_last, mode, policy) in (any::<bool>(), 0usize..4, 0usize..3),
        ) {
            let mut progress = Progress::at(epoch, 0);
            delivered.iter().for_each(|&batch| progress.deliver(batch));
            let mut seen = delivered.clone();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(progress.delivered(), seen.len() as u64);
            let mut state = state(progress);
            let mode = MODES[mode];
            let (rank, world) = if mode.is_some() { (rank, world) } else { (0, 1) };
            let policy = POLICIES[policy];
            state.identity = Identity {
                rank, world, mode, policy, seed, batch_size, drop_last, ..state.identity
            };
            let json = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(&serde_json::from_str::<LoaderState>(&json).unwrap(), &state);
            prop_assert_eq!(&LoaderState::from_bytes(&state.to_bytes()).unwrap(), &state);
            let bytes = postcard::to_stdvec(&state).unwrap();
            prop_assert_eq!(&postcard::from_bytes::<LoaderState>(&bytes).unwrap(), &state);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = LoaderState::from_bytes(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = LoaderState::from_bytes(&bytes);
        }

        #[test]
        fn a_state_that_is_cut_off_is_refused(keep in 0.0f64..1.0) {
            let whole = state(Progress { epoch: 3, batch: 9, missing: vec![2, 8] }).to_bytes();
            let cut = &whole[..(keep * whole.len() as f64) as usize];
            prop_assert_eq!(LoaderState::from_bytes(cut), Err(StateError::Damaged));
        }
    }
}
