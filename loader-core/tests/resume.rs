//! Resuming: whatever was delivered before, the rest is what an unbroken run would have given.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Condvar, Mutex};

use loader_core::{
    Batch, DType, DataLoader, DataLoaderBuilder, Dataset, Epoch, ErrorPolicy, Field, Fingerprint,
    LoaderState, Order, ResumeError, Sample, SampleError, SampleWriter, Shard, ShardMode, Stage,
    Workers,
};

/// Random bytes and a label, of which some may fail, and one may wait.
#[derive(Clone, Default)]
struct Noise {
    len: u64,
    broken: Vec<u64>,
    gate: Option<(u64, Arc<Gate>)>,
    data: u128,
    transform: u128,
    decoder: u128,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

const LEN: u64 = 61;

fn noise() -> Noise {
    Noise { len: LEN, ..Noise::default() }
}

impl Dataset for Noise {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("noise", DType::U8, [9]), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        (): &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        if let Some((index, gate)) = &self.gate
            && *index == sample.index
        {
            gate.pass();
        }
        if self.broken.contains(&sample.index) {
            return Err(SampleError::new(Stage::Decode, "broken"));
        }
        let mut draws = sample.draws(0);
        out.field::<u8>(0)?.fill_with(|| draws.below(256) as u8);
        out.field::<i64>(1)?[0] = sample.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.data ^ self.transform ^ self.decoder)
    }

    fn fingerprint_parts(&self) -> Vec<(&'static str, Fingerprint)> {
        let parts = [("data", self.data), ("transform", self.transform), ("decoder", self.decoder)];
        parts.map(|(name, value)| (name, Fingerprint(value))).into()
    }
}

fn loader(dataset: Noise) -> DataLoaderBuilder<Noise> {
    DataLoader::builder(dataset).batch_size(8).shuffle(3).workers(Workers::threads(2))
}

type Content = (u64, u64, Vec<u8>, Vec<i64>);

fn content(batch: &Batch) -> Content {
    let bytes = batch.get::<u8>("noise").unwrap().to_vec();
    (batch.epoch(), batch.number(), bytes, batch.get::<i64>("label").unwrap().to_vec())
}

fn contents(epoch: &mut Epoch<Noise>) -> Vec<Content> {
    epoch.map(|batch| content(&batch.unwrap())).collect()
}

/// As a checkpoint keeps it.
fn stored(state: &LoaderState) -> LoaderState {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

const EPOCHS: u64 = 3;

fn unbroken() -> Vec<Content> {
    let loader = loader(noise()).build().unwrap();
    (0..EPOCHS).flat_map(|epoch| contents(&mut loader.epoch(epoch).unwrap())).collect()
}

/// What is left of the run after that state, as a training loop goes on with it.
fn rest(loader: &DataLoader<Noise>, state: &LoaderState) -> Vec<Content> {
    let mut epoch = loader.resume(state).unwrap();
    assert_eq!(epoch.number(), state.epoch());
    let mut seen = contents(&mut epoch);
    for epoch in epoch.number() + 1..EPOCHS {
        seen.extend(contents(&mut loader.epoch(epoch).unwrap()));
    }
    seen
}

#[test]
fn resuming_at_every_batch_of_three_epochs_gives_the_rest_of_the_unbroken_run() {
    let whole = unbroken();
    // Each state is saved under one number of workers and resumed under another.
    let loaders = [1, 2, 5, 16].map(|threads| {
        loader(noise())
            .prefetch(1 + threads % 4)
            .workers(Workers::threads(threads))
            .build()
            .unwrap()
    });
    let mut states = vec![loaders[0].state()];
    for epoch in 0..EPOCHS {
        let mut batches = loaders[1].epoch(epoch).unwrap();
        states.push(loaders[1].state());
        while let Some(batch) = batches.next() {
            batch.unwrap();
            states.push(loaders[1].state());
            assert_eq!(batches.state(), loaders[1].state());
        }
    }
    assert_eq!(states.len(), 1 + 3 * 9);
    for (i, state) in states.iter().enumerate() {
        let delivered = (state.epoch() * 8 + state.batches_delivered()) as usize;
        assert!(rest(&loaders[i % 4], &stored(state)) == whole[delivered..], "after {delivered}");
    }
}

#[test]
fn a_run_broken_twice_in_one_epoch_is_the_unbroken_run() {
    let whole = unbroken();
    for (first, second) in [(0, 0), (0, 3), (1, 1), (2, 5), (3, 8), (8, 8)] {
        let mut seen = Vec::new();
        let mut state = loader(noise()).build().unwrap().state();
        for until in [first, second] {
            // A loader of its own, as in a new process.
            let loader = loader(noise()).build().unwrap();
            let mut epoch = loader.resume(&stored(&state)).unwrap();
            let left = until - state.batches_delivered() as usize;
            seen.extend(epoch.by_ref().take(left).map(|batch| content(&batch.unwrap())));
            state = loader.state();
        }
        seen.extend(rest(&loader(noise()).build().unwrap(), &state));
        assert!(seen == whole, "broken after {first} and {second}");
    }
}

#[test]
fn a_complete_epoch_resumes_to_no_batches_and_names_itself() {
    let loader = loader(noise()).build().unwrap();
    contents(&mut loader.epoch(1).unwrap());
    let state = stored(&loader.state());
    assert!(state.is_complete() && state.epoch() == 1 && state.batches_delivered() == 8);
    let mut epoch = loader.resume(&state).unwrap();
    assert!(epoch.next().is_none());
    assert_eq!(epoch.number(), 1);
    assert_eq!(loader.state(), state);
}

#[test]
fn batches_made_ahead_do_not_count() {
    let loader = loader(noise()).prefetch(6).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let held = epoch.next().unwrap().unwrap();
    assert_eq!(loader.state().batches_delivered(), 1);
    drop(held);
    drop(epoch);
    assert_eq!(loader.state().batches_delivered(), 1);
}

#[test]
fn an_old_epoch_s_iterator_does_not_move_the_loader_s_state() {
    let loader = loader(noise()).build().unwrap();
    let mut old = loader.epoch(0).unwrap();
    old.next().unwrap().unwrap();
    let new = loader.epoch(1).unwrap();
    assert!(old.next().unwrap().is_err());
    assert_eq!((loader.state().epoch(), loader.state().batches_delivered()), (1, 0));
    assert_eq!((old.state().epoch(), old.state().batches_delivered()), (0, 1));
    drop(new);
}

#[test]
fn batches_delivered_out_of_order_are_not_given_again() {
    let whole = unbroken();
    for taken in 0..=7 {
        // The batch of the first sample in order can't be made while the gate is shut, and all
        // others pass it by.
        let gate = Arc::new(Gate::default());
        let first = whole[0].3[0] as u64;
        let dataset = Noise { gate: Some((first, Arc::clone(&gate))), ..noise() };
        let loader = loader(dataset).unordered(true).build().unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let mut seen: Vec<_> =
            epoch.by_ref().take(taken).map(|batch| content(&batch.unwrap())).collect();
        assert!(seen.iter().all(|batch| batch.1 != 0));
        let state = stored(&loader.state());
        assert!(state.to_bytes().len() < 64 && !state.is_complete());
        assert_eq!(state.batches_delivered(), taken as u64);
        gate.open();
        drop(epoch);
        for (threads, unordered) in [(1, false), (7, true)] {
            let workers = Workers::threads(threads);
            let loader =
                self::loader(noise()).workers(workers).unordered(unordered).build().unwrap();
            let mut epoch = loader.resume(&state).unwrap();
            let mut all = seen.clone();
            // Once more in between.
            all.extend(epoch.by_ref().take(1).map(|batch| content(&batch.unwrap())));
            let mut epoch = loader.resume(&stored(&loader.state())).unwrap();
            all.extend(contents(&mut epoch));
            assert!(loader.state().is_complete());
            all.sort();
            assert!(all == whole[..8], "after {taken}");
        }
        seen.clear();
    }
}

#[test]
fn skipped_samples_do_not_shift_what_is_resumed() {
    let broken = Noise { broken: (8..24).chain([40]).collect(), ..noise() };
    let build = || {
        loader(broken.clone())
            .order(Order::Sequential)
            .error_policy(ErrorPolicy::Skip)
            .build()
            .unwrap()
    };
    let whole = contents(&mut build().epoch(0).unwrap());
    assert_eq!(whole.iter().map(|batch| batch.1).collect::<Vec<_>>(), [0, 3, 4, 5, 6, 7]);
    for taken in 0..=whole.len() {
        let loader = build();
        let mut epoch = loader.epoch(0).unwrap();
        assert_eq!(epoch.by_ref().take(taken).count(), taken);
        let state = stored(&epoch.state());
        assert!(contents(&mut build().resume(&state).unwrap()) == whole[taken..]);
    }
}

#[test]
fn a_batch_that_ended_the_epoch_is_tried_again() {
    let stops = loader(Noise { broken: vec![20], ..noise() }).order(Order::Sequential);
    let loader = stops.build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    assert_eq!(epoch.by_ref().filter(Result::is_ok).count(), 2);
    assert_eq!(loader.state().batches_delivered(), 2);
    // What was delivered is the same under any policy, so a run may go on under another.
    let skips = self::loader(Noise { broken: vec![20], ..noise() })
        .order(Order::Sequential)
        .error_policy(ErrorPolicy::Skip)
        .build()
        .unwrap();
    let rest = contents(&mut skips.resume(&stored(&loader.state())).unwrap());
    assert_eq!(rest[0].3, [16, 17, 18, 19, 21, 22, 23]);
}

fn differences(error: ResumeError) -> Vec<(String, String, String)> {
    match error {
        ResumeError::Mismatch { differences } => {
            differences.into_iter().map(|d| (d.what, d.saved, d.now)).collect()
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_mismatch_names_what_differs_with_both_sides() {
    let shard = |rank, world, mode| Shard::new(rank, world, mode).unwrap();
    let build = |dataset: Noise| loader(dataset).shard(shard(0, 2, ShardMode::Pad));
    let skip = |loader: DataLoaderBuilder<Noise>| loader.error_policy(ErrorPolicy::Skip);
    let saved = skip(build(noise())).build().unwrap();
    let mut epoch = saved.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    let state = stored(&epoch.state());
    let subset = Order::Subset { indices: (0..LEN).collect(), shuffle: true };
    let cases: [(DataLoaderBuilder<Noise>, &str, &str, &str); 12] = [
        (skip(build(Noise { data: 1, ..noise() })), "data", "00000000", "00000001"),
        (skip(build(Noise { transform: 2, ..noise() })), "transform", "00000000", "00000002"),
        (skip(build(Noise { decoder: 3, ..noise() })), "decoder", "00000000", "00000003"),
        (skip(build(noise())).seed(4), "seed", "3", "4"),
        (skip(build(noise())).order(Order::Sequential), "order", "", ""),
        (skip(build(noise())).order(subset), "order", "", ""),
        (skip(build(noise())).batch_size(4), "batch_size", "8", "4"),
        (skip(build(noise())).drop_last(true), "drop_last", "false", "true"),
        (skip(build(noise())).shard(shard(0, 4, ShardMode::Pad)), "ranks", "2", "4"),
        (skip(build(noise())).shard(shard(0, 1, ShardMode::Pad)), "ranks", "2", "1"),
        (skip(build(noise())).shard(shard(0, 2, ShardMode::Drop)), "shard mode", "Pad", "Drop"),
        (build(noise()), "error_policy", "Skip", "Stop"),
    ];
    for (now, what, before, after) in cases {
        let error = now.build().unwrap().resume(&state).unwrap_err();
        let text = error.to_string();
        let found = differences(error);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert_eq!(found[0].0, what);
        assert_ne!(found[0].1, found[0].2);
        if !before.is_empty() {
            assert_eq!((found[0].1.as_str(), found[0].2.as_str()), (before, after));
        }
        assert!(
            text.contains(&format!("{what} was {} and is {}", found[0].1, found[0].2)),
            "{text}"
        );
    }
    let both = skip(build(Noise { data: 1, ..noise() })).seed(9).build().unwrap();
    let names: Vec<_> =
        differences(both.resume(&state).unwrap_err()).into_iter().map(|d| d.0).collect();
    assert_eq!(names, ["data", "seed"]);
}

#[test]
fn one_rank_s_state_serves_all_ranks() {
    for mode in [ShardMode::Pad, ShardMode::Drop, ShardMode::Exact] {
        // 25 samples of three ranks: one has 9 in `Exact`, which makes a batch more.
        let rank = |rank| {
            let shard = Shard::new(rank, 3, mode).unwrap();
            loader(Noise { len: 25, ..noise() }).batch_size(4).shard(shard).build().unwrap()
        };
        let first = rank(0);
        let mut epoch = first.epoch(0).unwrap();
        for taken in 0..=first.len() {
            let state = stored(&epoch.state());
            for other in 0..3 {
                let other = rank(other);
                let whole = contents(&mut other.epoch(0).unwrap());
                let rest = contents(&mut other.resume(&state).unwrap());
                assert!(rest == whole[whole.len().min(taken as usize)..], "{mode:?} {taken}");
            }
            epoch.next();
        }
    }
}

#[test]
fn a_state_with_gaps_belongs_to_its_rank() {
    let shard = |rank| Shard::new(rank, 2, ShardMode::Pad).unwrap();
    let whole = contents(&mut loader(noise()).shard(shard(0)).build().unwrap().epoch(0).unwrap());
    let gate = Arc::new(Gate::default());
    let dataset = Noise { gate: Some((whole[0].3[0] as u64, Arc::clone(&gate))), ..noise() };
    let first = loader(dataset).unordered(true).shard(shard(0)).build().unwrap();
    let mut epoch = first.epoch(0).unwrap();
    epoch.next().unwrap().unwrap();
    let state = stored(&epoch.state());
    gate.open();
    let second = loader(noise()).shard(shard(1)).build().unwrap();
    let expected = [("rank".to_owned(), "0".to_owned(), "1".to_owned())];
    assert_eq!(differences(second.resume(&state).unwrap_err()), expected);
}

#[test]
fn another_transform_of_images_is_told_from_other_images() {
    use loader_core::{DECODER, ImageFolder, TableCache, Transform};

    let parts = |folder: &ImageFolder, size| {
        folder.transform(Transform::imagenet_train(size)).unwrap().fingerprint_parts()
    };
    let folder = |names: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join("train/class").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        ImageFolder::builder(dir.path().join("train")).cache(TableCache::Off).open().unwrap()
    };
    let (one, two) = (folder(&["a.jpg"]), folder(&["a.jpg", "b.jpg"]));
    let changed = |a: Vec<(&'static str, Fingerprint)>, b: Vec<(&'static str, Fingerprint)>| {
        let changed: Vec<_> = a.iter().zip(&b).filter(|(a, b)| a != b).map(|(a, _)| a.0).collect();
        changed
    };
    assert_eq!(changed(parts(&one, 224), parts(&two, 224)), ["data"]);
    assert_eq!(changed(parts(&one, 224), parts(&one, 96)), ["transform"]);
    let decoder = ("decoder", Fingerprint::of(DECODER.as_bytes()));
    assert!(parts(&one, 224).contains(&decoder));
}
