//! The loader as its users see it, over datasets whose samples tell what they are.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use loader_core::{
    Batch, BuildError, CutMix, DType, DataLoader, DataLoaderBuilder, Dataset, Epoch, ErrorPolicy,
    Field, FieldError, Fingerprint, LoadError, Location, MixError, MixUp, Order, Sample,
    SampleError, SampleWriter, Shard, ShardMode, Stage, Workers,
};

/// Samples of a noisy "image" and a label; some fail, some panic.
#[derive(Clone, Debug, Default)]
struct Noise {
    len: u64,
    fails: HashSet<u64>,
    panics: HashSet<u64>,
    loads: Arc<AtomicU64>,
    /// Sample 0 waits until that many samples were asked for.
    first_waits_for: u64,
}

const PIXELS: usize = 48;

fn noise(len: u64) -> Noise {
    Noise { len, ..Noise::default() }
}

impl Dataset for Noise {
    type Scratch = Vec<f32>;

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("image", DType::F32, [3, 4, 4]), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        scratch: &mut Vec<f32>,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        while sample.index == 0 && self.loads.load(Ordering::Relaxed) < self.first_waits_for {
            std::thread::yield_now();
        }
        if self.fails.contains(&sample.index) {
            return Err(SampleError::new(
                Stage::Decode,
                format_args!("{} is broken", sample.index),
            ));
        }
        assert!(!self.panics.contains(&sample.index), "sample {} panics", sample.index);
        let mut draws = sample.draws(0);
        scratch.clear();
        scratch.extend((0..PIXELS).map(|_| draws.unit() as f32));
        out.field::<f32>(0)?.copy_from_slice(scratch);
        out.field::<i64>(1)?[0] = sample.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"noise").and(Fingerprint(self.len.into()))
    }

    fn locate(&self, index: u64) -> Location {
        let path = Some(format!("noise/{index}.jpg").into());
        Location { path, class: Some("noise".into()) }
    }
}

fn loader(dataset: Noise) -> DataLoaderBuilder<Noise> {
    DataLoader::builder(dataset).batch_size(8).workers(Workers::threads(2))
}

fn labels(batch: &Batch) -> Vec<i64> {
    batch.get::<i64>("label").unwrap().to_vec()
}

/// Everything of a batch that a training loop sees.
fn content(batch: &Batch) -> (Vec<u32>, Vec<i64>) {
    let image = batch.get::<f32>("image").unwrap();
    (image.iter().map(|x| x.to_bits()).collect(), labels(batch))
}

fn contents(epoch: Epoch<Noise>) -> Vec<(Vec<u32>, Vec<i64>)> {
    epoch.map(|batch| content(&batch.unwrap())).collect()
}

fn all_labels(epoch: Epoch<Noise>) -> Vec<i64> {
    epoch.flat_map(|batch| labels(&batch.unwrap())).collect()
}

#[test]
fn bytes_of_an_epoch_do_not_depend_on_the_number_of_threads() {
    let epochs = |threads| {
        let loader =
            loader(noise(203)).shuffle(5).workers(Workers::threads(threads)).build().unwrap();
        [0, 1, 2].map(|epoch| contents(loader.epoch(epoch).unwrap()))
    };
    let one = epochs(1);
    assert_ne!(one[0], one[1]);
    assert_eq!(one[0].len(), 26);
    for threads in [2, 7, 16] {
        assert!(epochs(threads) == one, "{threads} threads");
    }
    assert!(epochs(1) == one, "a second run");
}

#[test]
fn an_epoch_gives_every_sample_once_in_the_order_asked_for() {
    let plain = loader(noise(50)).build().unwrap();
    assert_eq!(all_labels(plain.epoch(3).unwrap()), (0..50).collect::<Vec<_>>());
    let shuffled = loader(noise(50)).shuffle(1).build().unwrap();
    let mut seen = all_labels(shuffled.epoch(0).unwrap());
    assert_ne!(seen, (0..50).collect::<Vec<_>>());
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

#[test]
fn lengths_are_exact_for_every_combination() {
    for len in [1, 7, 8, 9, 40] {
        for batch_size in [1, 3, 8, 64] {
            for drop_last in [false, true] {
                for world in [1, 2, 5] {
                    for mode in [ShardMode::Pad, ShardMode::Drop, ShardMode::Exact] {
                        let built = DataLoader::builder(noise(len))
                            .batch_size(batch_size)
                            .drop_last(drop_last)
                            .shard(Shard::new(world - 1, world, mode).unwrap())
                            .workers(Workers::threads(1))
                            .build();
                        let samples = match mode {
                            ShardMode::Pad => len.div_ceil(world.into()),
                            ShardMode::Drop => len / u64::from(world),
                            // The last rank has the least.
                            _ => len / u64::from(world),
                        };
                        let size = batch_size as u64;
                        let batches =
                            if drop_last { samples / size } else { samples.div_ceil(size) };
                        match built {
                            Err(BuildError::NoBatches { .. }) => assert_eq!(batches, 0),
                            Err(e) => panic!("{e}"),
                            Ok(loader) => {
                                let sizes: Vec<_> =
                                    loader.epoch(0).unwrap().map(|b| b.unwrap().len()).collect();
                                assert_eq!(sizes.len() as u64, batches);
                                assert_eq!(loader.len(), batches);
                                assert_eq!(sizes.iter().sum::<usize>() as u64, loader.samples());
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_share_an_epoch_and_mark_their_padding() {
    let mut seen = Vec::new();
    let mut padding = 0;
    for rank in 0..3 {
        let shard = Shard::new(rank, 3, ShardMode::Pad).unwrap();
        let loader = loader(noise(10)).shuffle(9).shard(shard).build().unwrap();
        for batch in loader.epoch(4).unwrap() {
            let batch = batch.unwrap();
            padding += batch.padding().filter(|&p| p).count();
            seen.extend(batch.indices().zip(batch.padding()).filter(|s| !s.1).map(|s| s.0));
        }
    }
    seen.sort_unstable();
    assert_eq!((seen, padding), ((0..10).collect(), 2));
}

#[test]
fn loaders_of_parts_of_an_epoch_give_all_of_it() {
    let dataset = Arc::new(noise(45));
    let settings = || DataLoader::builder(Arc::clone(&dataset)).batch_size(4).shuffle(9);
    let of = |loader: &DataLoader<_>, epoch| -> Vec<_> {
        loader.epoch(epoch).unwrap().map(|batch| content(&batch.unwrap())).collect()
    };
    let whole = settings().build().unwrap();
    let [first, rest] = [0..20, 20..45].map(|at| settings().positions(at).build().unwrap());
    assert_eq!((first.samples(), rest.samples(), rest.len()), (20, 25, 7));
    for epoch in [0, 1] {
        assert_eq!([of(&first, epoch), of(&rest, epoch)].concat(), of(&whole, epoch));
    }
    let labels = |epoch| of(&first, epoch).into_iter().flat_map(|(_, labels)| labels);
    assert_ne!(labels(0).collect::<HashSet<_>>(), labels(1).collect::<HashSet<_>>());

    let shard = |rank| settings().shard(Shard::new(rank, 2, ShardMode::Exact).unwrap());
    let (share, part) = (shard(1).build().unwrap(), shard(1).positions(8..16).build().unwrap());
    assert_eq!(of(&part, 3), of(&share, 3)[2..4]);
    let nested = settings().positions(20..45).positions(4..12).build().unwrap();
    assert_eq!(of(&nested, 3), of(&rest, 3)[1..3]);

    let beyond = settings().positions(20..46).build().unwrap_err();
    assert_eq!(
        beyond.to_string(),
        "positions 20..46 of an epoch of 45 samples: take a part of 0..45"
    );
    let state = first.state();
    assert!(whole.resume(&state).unwrap_err().to_string().contains("order"), "told apart");
}

#[test]
fn an_interrupted_epoch_goes_on_with_the_same_batches() {
    let loader = loader(noise(60)).shuffle(3).build().unwrap();
    let whole = contents(loader.epoch(2).unwrap());
    for batch in 0..=8 {
        let rest = contents(loader.epoch_from(2, batch).unwrap());
        assert!(rest == whole[batch as usize..], "from batch {batch}");
    }
    assert!(matches!(
        loader.epoch_from(2, 9).unwrap_err(),
        LoadError::NoSuchBatch { batch: 9, batches: 8 }
    ));
}

#[test]
fn the_next_epoch_is_begun_while_the_last_batch_is_used() {
    let dataset = noise(32);
    let loads = Arc::clone(&dataset.loads);
    let loader = loader(dataset).prefetch(2).build().unwrap();
    let mut epoch = loader.epoch(5).unwrap();
    for _ in 0..4 {
        drop(epoch.next().unwrap().unwrap());
    }
    assert!(epoch.next().is_none());
    // Two batches of epoch 6 are made by now, or will be without anyone asking.
    while loads.load(Ordering::Relaxed) < 48 {
        std::thread::yield_now();
    }
    let next = contents(loader.epoch(6).unwrap());
    let fresh = self::loader(noise(32)).build().unwrap();
    assert!(next == contents(fresh.epoch(6).unwrap()));
    // None of it was made twice: 32 + 32, and at most two batches of epoch 7.
    drop(epoch);
    assert!(loads.load(Ordering::Relaxed) <= 32 + 32 + 16);
}

#[test]
fn a_wrong_guess_of_the_next_epoch_changes_nothing() {
    let loader = loader(noise(32)).shuffle(8).build().unwrap();
    let fresh =
        |epoch| contents(self::loader(noise(32)).shuffle(8).build().unwrap().epoch(epoch).unwrap());
    for epoch in [0, 7, 7, 7, 3, 4, 1 << 40, u64::MAX, 0] {
        assert!(contents(loader.epoch(epoch).unwrap()) == fresh(epoch), "epoch {epoch}");
    }
}

#[test]
fn an_epoch_dropped_early_leaves_the_loader_usable() {
    let loader = loader(noise(100)).build().unwrap();
    for taken in 0..12 {
        let mut epoch = loader.epoch(0).unwrap();
        for number in 0..taken {
            assert_eq!(epoch.next().unwrap().unwrap().number(), number);
        }
    }
    assert_eq!(all_labels(loader.epoch(1).unwrap()).len(), 100);
}

#[test]
fn a_second_epoch_ends_the_first() {
    let loader = loader(noise(100)).build().unwrap();
    let mut first = loader.epoch(0).unwrap();
    first.next().unwrap().unwrap();
    let second = loader.epoch(1).unwrap();
    assert!(matches!(first.next(), Some(Err(LoadError::Superseded { epoch: 0 }))));
    assert!(first.next().is_none());
    drop(first);
    assert_eq!(all_labels(second).len(), 100);
}

#[test]
fn batches_outlive_epoch_and_loader() {
    let loader = loader(noise(64)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let held = [epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()];
    drop(loader);
    assert!(matches!(epoch.next(), Some(Err(LoadError::Superseded { .. }))));
    drop(epoch);
    assert_eq!(labels(&held[1]), (8..16).collect::<Vec<_>>());
}

#[test]
fn held_batches_keep_their_bytes_while_others_are_made() {
    let loader = loader(noise(400)).shuffle(1).memory_budget(1 << 22).build().unwrap();
    let mut kept = Vec::new();
    for (n, batch) in loader.epoch(0).unwrap().enumerate() {
        let batch = batch.unwrap();
        let seen = content(&batch);
        if n % 7 == 3 {
            kept.push((batch, seen));
        }
    }
    assert_eq!(kept.len(), 7);
    assert!(kept.iter().all(|(batch, seen)| content(batch) == *seen));
}

#[test]
fn holding_more_than_the_budget_is_an_error_that_can_be_mended() {
    let slot = 16 << 10;
    let loader = loader(noise(400)).memory_budget(5 * slot).prefetch(1).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match epoch.next().unwrap() {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    let most = held.len();
    assert!(most >= 4, "{most} held");
    match &error {
        LoadError::BatchesHeld { held, max, .. } => assert_eq!((*held, *max), (most, most)),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("memory_budget"), "{error}");
    drop(held.remove(0));
    assert_eq!(epoch.next().unwrap().unwrap().number(), most as u64);
}

#[test]
fn a_batch_given_back_by_another_thread_is_waited_for() {
    let loader = loader(noise(80))
        .memory_budget(5 * (16 << 10))
        .prefetch(1)
        .wait_for_slot(Duration::from_secs(60))
        .build()
        .unwrap();
    let (send, receive) = mpsc::channel::<Batch>();
    let consumer = std::thread::spawn(move || {
        let mut seen = Vec::new();
        let mut kept = Vec::new();
        for batch in receive {
            seen.extend(labels(&batch));
            kept.push(batch);
            if kept.len() == 4 {
                std::thread::sleep(Duration::from_millis(2));
                kept.clear();
            }
        }
        seen
    });
    for batch in loader.epoch(0).unwrap() {
        send.send(batch.unwrap()).unwrap();
    }
    drop(send);
    assert_eq!(consumer.join().unwrap(), (0..80).collect::<Vec<_>>());
}

/// The address ranges of anonymous shared segments in this process.
fn segments() -> Vec<std::ops::Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:loader-batches"));
    ours.map(|line| {
        let (from, to) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
        let number = |s| usize::from_str_radix(s, 16).unwrap();
        number(from)..number(to)
    })
    .collect()
}

#[test]
fn fields_lie_aligned_inside_the_segment_and_the_slot_returns_after_the_last_lease() {
    let loader = loader(noise(800)).memory_budget(2 * (16 << 10)).prefetch(1).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut batch = epoch.next().unwrap().unwrap();
    let mut image = batch.take("image").unwrap();
    let label = batch.take("label").unwrap();
    assert_eq!((image.shape(), label.shape()), (&[8, 3, 4, 4][..], &[8][..]));
    for address in [image.as_ptr(), label.as_ptr()] {
        assert!(segments().iter().any(|s| s.contains(&address.addr())));
        assert_eq!(address.addr() % 64, 0);
    }
    let address = image.as_ptr().addr();
    image.as_mut().fill(7);
    drop(batch);
    let other = epoch.next().unwrap().unwrap();
    drop(label);
    // Two slots in all; one lease of the first is left, so there is none for a third batch.
    assert!(matches!(epoch.next(), Some(Err(LoadError::BatchesHeld { held: 2, max: 2, .. }))));
    assert!(image.as_ref().iter().all(|&b| b == 7));
    drop(image);
    let mut third = epoch.next().unwrap().unwrap();
    assert_eq!(third.take("image").unwrap().as_ptr().addr(), address);
    drop(other);
    let fresh = self::loader(noise(800)).build().unwrap();
    let mut fresh = fresh.epoch(0).unwrap().skip(3);
    let after = epoch.next().unwrap().unwrap();
    assert!(
        content(&after) == content(&fresh.next().unwrap().unwrap()),
        "what was written in place is gone"
    );
}

#[test]
fn a_field_is_given_once_and_under_its_own_type() {
    let loader = loader(noise(8)).build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    assert!(matches!(batch.get::<f32>("label"), Err(FieldError::Type { found: DType::I64, .. })));
    assert!(matches!(batch.get::<f32>("x"), Err(FieldError::Missing { .. })));
    batch.get_mut::<i64>("label").unwrap()[0] = -1;
    let lease = batch.take("label").unwrap();
    assert_eq!(lease.as_ref()[..8], (-1i64).to_ne_bytes());
    assert!(matches!(batch.take("label"), Err(FieldError::Taken { .. })));
    assert!(matches!(batch.get::<i64>("label"), Err(FieldError::Taken { .. })));
}

fn broken() -> Noise {
    Noise { len: 40, fails: [3, 17, 18].into(), panics: [30].into(), ..Noise::default() }
}

#[test]
fn an_error_names_the_sample_and_ends_the_epoch() {
    let loader = loader(broken()).build().unwrap();
    let mut epoch = loader.epoch(2).unwrap();
    let Some(Err(LoadError::Sample(failure))) = epoch.next() else { panic!("no error") };
    assert_eq!((failure.index, failure.position, failure.epoch), (3, 3, 2));
    assert_eq!(failure.error, SampleError::new(Stage::Decode, "3 is broken"));
    let text = failure.to_string();
    for part in ["noise/3.jpg", "class \"noise\"", "decode: 3 is broken"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(epoch.next().is_none());
}

#[test]
fn skipped_samples_are_counted_and_the_rest_keeps_its_order() {
    let loader = loader(broken()).error_policy(ErrorPolicy::Skip).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let batches: Vec<_> = epoch.by_ref().map(|b| content(&b.unwrap())).collect();
    let labels: Vec<_> = batches.iter().flat_map(|b| b.1.clone()).collect();
    let expected: Vec<_> = (0..40).filter(|i| ![3, 17, 18, 30].contains(i)).collect();
    assert_eq!(labels, expected);
    // The images went with their labels.
    let whole = self::loader(noise(40)).build().unwrap();
    let whole: Vec<_> = contents(whole.epoch(0).unwrap()).into_iter().flat_map(|b| b.0).collect();
    let images: Vec<_> = batches.iter().flat_map(|b| b.0.clone()).collect();
    let expected: Vec<_> =
        expected.iter().flat_map(|&i| whole[i as usize * PIXELS..][..PIXELS].to_vec()).collect();
    assert!(images == expected);
    let report = epoch.report();
    assert_eq!(report.count, 4);
    let mut failed: Vec<_> = report.failures.iter().map(|f| (f.index, f.error.stage)).collect();
    failed.sort_by_key(|f| f.0);
    let decode = Stage::Decode;
    assert_eq!(failed, [(3, decode), (17, decode), (18, decode), (30, Stage::Panic)]);
}

#[test]
fn a_batch_whose_samples_all_failed_is_left_out() {
    let dataset = Noise { len: 24, fails: (8..16).collect(), ..Noise::default() };
    let loader = loader(dataset).error_policy(ErrorPolicy::Skip).build().unwrap();
    let numbers: Vec<_> = loader.epoch(0).unwrap().map(|b| b.unwrap().number()).collect();
    assert_eq!(numbers, [0, 2]);
}

#[test]
fn substitutes_change_no_other_place_and_are_the_same_every_time() {
    let epoch = |threads| {
        let loader = loader(broken())
            .shuffle(4)
            .error_policy(ErrorPolicy::Substitute)
            .workers(Workers::threads(threads))
            .build()
            .unwrap();
        let mut epoch = loader.epoch(0).unwrap();
        let labels: Vec<_> = epoch.by_ref().flat_map(|b| labels(&b.unwrap())).collect();
        assert!(epoch.report().count >= 4);
        labels
    };
    let substituted = epoch(1);
    assert_eq!(substituted, epoch(5));
    let whole = loader(noise(40)).shuffle(4).build().unwrap();
    let changed: Vec<_> = all_labels(whole.epoch(0).unwrap())
        .into_iter()
        .zip(substituted)
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a as u64)
        .collect();
    assert_eq!(changed.iter().copied().collect::<HashSet<_>>(), [3, 17, 18, 30].into());
}

#[test]
fn substitutes_that_all_fail_end_the_epoch() {
    let dataset = Noise { len: 8, fails: (0..8).collect(), ..Noise::default() };
    let loader = loader(dataset).error_policy(ErrorPolicy::Substitute).build().unwrap();
    assert!(matches!(loader.epoch(0).unwrap().next(), Some(Err(LoadError::Sample(_)))));
}

#[test]
fn substitutes_are_samples_of_the_epoch() {
    let order = Order::Subset { indices: (0..10).collect(), shuffle: true };
    let dataset = Noise { len: 10_000, fails: (0..5).collect(), ..Noise::default() };
    let loader =
        loader(dataset).order(order).error_policy(ErrorPolicy::Substitute).build().unwrap();
    for epoch in 0..4 {
        let labels = all_labels(loader.epoch(epoch).unwrap());
        assert!(labels.len() == 10 && labels.iter().all(|i| (5..10).contains(i)), "{labels:?}");
    }
}

#[test]
fn substitutes_do_not_depend_on_the_number_of_ranks() {
    let build = |rank, world| {
        loader(broken())
            .shuffle(4)
            .shard(Shard::new(rank, world, ShardMode::Exact).unwrap())
            .error_policy(ErrorPolicy::Substitute)
            .batch_size(1)
            .build()
            .unwrap()
    };
    let whole = contents(build(0, 1).epoch(0).unwrap());
    let ranks = [0, 1, 2].map(|rank| contents(build(rank, 3).epoch(0).unwrap()));
    let dealt: Vec<_> = (0..40).map(|at| ranks[at % 3][at / 3].clone()).collect();
    assert!(dealt == whole);
}

#[test]
fn an_error_keeps_its_cause_however_many_samples_fail_before_it() {
    let fails = (0..256).collect();
    let dataset = Noise { len: 256, fails, first_waits_for: 100, ..Noise::default() };
    let loader = loader(dataset).batch_size(256).build().unwrap();
    let Some(Err(LoadError::Sample(failure))) = loader.epoch(0).unwrap().next() else {
        panic!("no error")
    };
    assert_eq!(failure.error.message, format!("{} is broken", failure.index));
}

#[test]
fn unordered_delivery_gives_the_same_batches() {
    let loader = loader(noise(100)).shuffle(2).unordered(true).build().unwrap();
    let mut batches: Vec<_> =
        loader.epoch(0).unwrap().map(|b| b.unwrap()).map(|b| (b.number(), content(&b))).collect();
    batches.sort_by_key(|b| b.0);
    let ordered = self::loader(noise(100)).shuffle(2).build().unwrap();
    let batches: Vec<_> = batches.into_iter().map(|b| b.1).collect();
    assert!(batches == contents(ordered.epoch(0).unwrap()));
}

#[test]
fn repeats_of_a_sample_in_an_epoch_are_augmented_differently() {
    let order = Order::Subset { indices: vec![5; 8], shuffle: false };
    let loader = loader(noise(10)).order(order).build().unwrap();
    let (images, labels) = contents(loader.epoch(0).unwrap()).remove(0);
    assert_eq!(labels, [5; 8]);
    assert_eq!(images.chunks(PIXELS).collect::<HashSet<_>>().len(), 8);
}

/// Waits in sample 0 until it is let go.
struct Gate(Mutex<mpsc::Receiver<()>>);

impl Dataset for Gate {
    type Scratch = ();

    fn len(&self) -> u64 {
        32
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        (): &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        if sample.index == 0 {
            let _ = self.0.lock().unwrap().recv();
        }
        out.field::<u8>(0)?[0] = sample.index as u8;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

#[test]
fn a_slow_sample_holds_up_only_its_own_batch() {
    let (open, gate) = mpsc::channel();
    let loader = DataLoader::builder(Gate(Mutex::new(gate)))
        .batch_size(4)
        .workers(Workers::threads(2))
        .unordered(true)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let numbers: Vec<_> = epoch.by_ref().take(7).map(|b| b.unwrap().number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    open.send(()).unwrap();
    assert_eq!(epoch.next().unwrap().unwrap().number(), 0);
    drop(open);
}

#[test]
fn dropping_a_loader_does_not_wait_for_a_sample_that_never_returns() {
    let (open, gate) = mpsc::channel();
    let loader = DataLoader::builder(Gate(Mutex::new(gate))).workers(Workers::threads(2)).build();
    let loader = loader.unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    drop(loader);
    assert!(matches!(epoch.next(), Some(Err(LoadError::Superseded { .. }))));
    drop(open);
}

/// Its scratch memory can't be made.
struct BadScratch;

struct Scratch;

impl Default for Scratch {
    fn default() -> Self {
        panic!("no scratch memory")
    }
}

impl Dataset for BadScratch {
    type Scratch = Scratch;

    fn len(&self) -> u64 {
        4
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [])]
    }

    fn load(
        &self,
        _: &Sample,
        _: &mut Scratch,
        _: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

#[test]
fn a_panic_while_scratch_memory_is_made_is_an_error() {
    let loader = DataLoader::builder(BadScratch).workers(Workers::threads(2)).build().unwrap();
    let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("panic: no scratch memory"), "{error}");
}

/// Panics in every sample, and once more when its scratch memory is dropped.
struct Unruly;

#[derive(Default)]
struct Mine;

impl Drop for Mine {
    fn drop(&mut self) {
        panic!("again");
    }
}

impl Dataset for Unruly {
    type Scratch = Mine;

    fn len(&self) -> u64 {
        16
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [])]
    }

    fn load(&self, _: &Sample, _: &mut Mine, _: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        panic!("once");
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

#[test]
fn a_panic_while_scratch_memory_is_dropped_does_not_end_the_worker() {
    let loader = DataLoader::builder(Unruly).workers(Workers::threads(1));
    let loader = loader.error_policy(ErrorPolicy::Skip).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    assert!(epoch.next().is_none());
    assert_eq!(epoch.report().count, 16);
}

#[test]
fn who_waits_for_a_slot_is_told_when_the_loader_goes() {
    let loader = loader(noise(80))
        .memory_budget(2 * (16 << 10))
        .prefetch(1)
        .wait_for_slot(Duration::MAX)
        .build()
        .unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let held = [epoch.next().unwrap().unwrap(), epoch.next().unwrap().unwrap()];
    let waits = std::thread::spawn(move || epoch.next());
    std::thread::sleep(Duration::from_millis(20));
    drop(loader);
    assert!(matches!(waits.join().unwrap(), Some(Err(LoadError::Superseded { .. }))));
    drop(held);
}

/// Forgets a field.
struct Forgetful;

impl Dataset for Forgetful {
    type Scratch = ();

    fn len(&self) -> u64 {
        1
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("a", DType::U8, []), Field::new("b", DType::U8, [])]
    }

    fn load(&self, _: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<u8>(0)?[0] = 1;
        let wrong_type = out.field::<f32>(0).unwrap_err();
        assert!(wrong_type.message.contains("U8"));
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(1)
    }
}

#[test]
fn a_field_that_was_not_written_is_an_error_not_another_batch_s_bytes() {
    let loader = DataLoader::builder(Forgetful).build().unwrap();
    let error = loader.epoch(0).unwrap().next().unwrap().unwrap_err();
    assert!(error.to_string().contains("did not write field \"b\""), "{error}");
}

#[test]
fn contradictions_are_refused_when_the_loader_is_built() {
    let build = |builder: DataLoaderBuilder<Noise>| builder.build().unwrap_err();
    let knob = |error| match error {
        BuildError::OutOfRange { knob, value: 0, .. } => knob,
        other => panic!("{other}"),
    };
    assert_eq!(knob(build(loader(noise(9)).batch_size(0))), "batch_size");
    assert_eq!(knob(build(loader(noise(9)).prefetch(0))), "prefetch");
    assert_eq!(knob(build(loader(noise(9)).workers(Workers::threads(0)))), "workers");
    assert!(matches!(build(loader(noise(0))), BuildError::Empty));
    // Its indices would need the bits that mark padding and failures.
    assert!(matches!(build(loader(noise(i64::MAX as u64))), BuildError::Order(_)));
    assert!(loader(noise(1 << 56)).build().is_ok());
    assert!(matches!(build(loader(noise(7)).drop_last(true)), BuildError::NoBatches { .. }));
    assert!(matches!(build(loader(noise(9)).memory_budget(1000)), BuildError::Budget { .. }));
    let order = Order::Subset { indices: vec![9], shuffle: false };
    assert!(matches!(build(loader(noise(9)).order(order)), BuildError::Order(_)));
}

#[test]
fn more_memory_than_there_is_is_refused_with_both_sizes() {
    let error = loader(noise(1 << 40)).batch_size(u32::MAX as usize).build().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BuildError::Memory(_)), "{text}");
    assert!(text.contains("lower batch_size"), "{text}");
}

#[test]
fn descriptors_stay_constant_however_many_batches_are_held() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let loader = loader(noise(8000)).batch_size(8).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let first = epoch.next().unwrap().unwrap();
    let before = count();
    let held: Vec<_> = epoch.map(|b| b.unwrap()).collect();
    // Other tests of this process open and close a few at the same time.
    assert!(count() < before + 100, "{before} to {} with {} held", count(), held.len());
    drop(first);
}

#[test]
fn mixed_batches_depend_on_the_seed_and_the_batch_alone() {
    let mixed = |threads, seed, batch_size| {
        let loader = loader(noise(40))
            .batch_size(batch_size)
            .shuffle(seed)
            .workers(Workers::threads(threads))
            .build()
            .unwrap();
        let mix = |batch: Result<Batch, LoadError>| {
            let mut batch = batch.unwrap();
            let own = labels(&batch);
            let probabilities = match batch.draws(0).chance(0.5) {
                true => MixUp::new(40).alpha(0.4).apply(&mut batch).unwrap(),
                false => CutMix::new(40).apply(&mut batch).unwrap(),
            };
            for (at, row) in probabilities.chunks(40).enumerate() {
                let sum: f32 = row.iter().sum();
                assert!((sum - 1.0).abs() < 1e-6, "{sum}");
                let before = own[(at + own.len() - 1) % own.len()];
                let others = (0..40).filter(|class| *class != own[at] && *class != before);
                assert!(others.map(|class| row[class as usize]).all(|p| p == 0.0));
            }
            assert_eq!(labels(&batch), own);
            (content(&batch).0, probabilities)
        };
        loader.epoch(3).unwrap().map(mix).collect::<Vec<_>>()
    };
    assert_eq!(mixed(1, 5, 8), mixed(3, 5, 8));
    assert_ne!(mixed(1, 5, 8), mixed(1, 6, 8));
    // A batch of one is mixed with itself.
    assert_eq!(mixed(1, 5, 1).len(), 40);
}

#[test]
fn a_batch_that_cannot_be_mixed_stays_as_it_is() {
    let loader = loader(noise(8)).build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let before = content(&batch);
    let mut refused = |mixup: MixUp| mixup.apply(&mut batch).unwrap_err();
    let error = refused(MixUp::new(7));
    assert!(matches!(error, MixError::Label { index: 7, label: 7, num_classes: 7 }), "{error:?}");
    assert!(matches!(refused(MixUp::new(0)), MixError::Label { label: 0, .. }));
    assert!(matches!(refused(MixUp::new(8).alpha(0.0)), MixError::Alpha { .. }));
    let missing = refused(MixUp::new(8).fields("picture", "label"));
    assert!(matches!(missing, MixError::Field(FieldError::Missing { .. })), "{missing:?}");
    let floats = refused(MixUp::new(8).fields("label", "label"));
    assert!(matches!(floats, MixError::NotFloat { found: DType::I64, .. }), "{floats:?}");
    let labels = refused(MixUp::new(8).fields("image", "image"));
    assert!(matches!(labels, MixError::Field(FieldError::Type { .. })), "{labels:?}");
    let shape = CutMix::new(8).fields("label", "label").apply(&mut batch).unwrap_err();
    assert!(matches!(shape, MixError::Shape { .. }), "{shape:?}");
    assert_eq!(content(&batch), before);
    batch.take("image").unwrap();
    let taken = MixUp::new(8).apply(&mut batch).unwrap_err();
    assert!(matches!(taken, MixError::Field(FieldError::Taken { .. })), "{taken:?}");
}
