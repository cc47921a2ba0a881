//! What arrives, in which order, from which memory: over samples that tell who they are.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use loader_core::{
    Batch, BuildError, DType, DataLoader, DataLoaderBuilder, Dataset, Draws, ErrorPolicy, Field,
    Fingerprint, LoadError, Sample, SampleError, SampleWriter, Shard, ShardMode, Workers,
};

/// A sample is its index, its epoch and its first random draws, many times over.
#[derive(Clone)]
struct Telling {
    len: u64,
    width: usize,
    loads: Arc<AtomicU64>,
    /// That sample is not made before the flag is set.
    slow: Option<(u64, Arc<AtomicBool>)>,
}

fn telling(len: u64) -> Telling {
    Telling { len, width: 4, loads: Arc::default(), slow: None }
}

impl Telling {
    fn loader(self) -> DataLoaderBuilder<Self> {
        DataLoader::builder(self).batch_size(8).workers(Workers::threads(3))
    }
}

impl Dataset for Telling {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("draws", DType::I64, [self.width]), Field::new("who", DType::I64, [2])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        if let Some((_, go)) = self.slow.as_ref().filter(|slow| slow.0 == s.index) {
            while !go.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
        let mut draws = s.draws(0);
        out.field::<i64>(0)?.fill_with(|| draws.below(1 << 62) as i64);
        out.field::<i64>(1)?.copy_from_slice(&[s.index as i64, s.epoch as i64]);
        self.loads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.len.into())
    }
}

fn draws(batch: &Batch) -> &[i64] {
    batch.get("draws").unwrap()
}

fn indices(batch: &Batch) -> Vec<u64> {
    batch.get::<i64>("who").unwrap().chunks(2).map(|who| who[0] as u64).collect()
}

/// Waits for what other threads bring about.
fn wait_until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::yield_now();
    }
}

fn random(seed: u64) -> Draws {
    Sample { index: 0, epoch: 0, seed, occurrence: 0 }.draws(0)
}

#[test]
fn no_two_samples_of_two_epochs_are_augmented_alike() {
    const LEN: u64 = 5000;
    for workers in [1, 5] {
        let loader = telling(LEN).loader().shuffle(1).workers(Workers::threads(workers));
        let loader = loader.build().unwrap();
        let mut first = HashSet::new();
        let mut histogram = [0u32; 16];
        for epoch in 0..2 {
            for batch in loader.epoch(epoch).unwrap() {
                for draws in draws(&batch.unwrap()).chunks(4) {
                    first.insert(draws[0]);
                    draws.iter().for_each(|draw| histogram[(draw >> 58) as usize] += 1);
                }
            }
        }
        // Of 62 bits each: two equal ones would be a miracle.
        assert_eq!(first.len() as u64, 2 * LEN);
        let mean = f64::from(2 * LEN as u32 * 4) / 16.0;
        let chi: f64 = histogram.iter().map(|&n| (f64::from(n) - mean).powi(2) / mean).sum();
        // 15 degrees of freedom: 50 is exceeded once in 80,000 tries.
        assert!(chi < 50.0, "{histogram:?}");
    }
}

#[test]
fn a_validation_loop_in_between_changes_nothing_of_the_training_run() {
    let build = |seed| telling(200).loader().shuffle(seed).build().unwrap();
    let content = |batch: &Batch| (indices(batch), draws(batch).to_vec());
    let whole = |seed| {
        let loader = build(seed);
        let epochs = (0..3).flat_map(|epoch| loader.epoch(epoch).unwrap().collect::<Vec<_>>());
        epochs.map(|batch| content(&batch.unwrap())).collect::<Vec<_>>()
    };
    let expected = [whole(1), whole(2)];
    let loaders = [build(1), build(2)];
    let mut epochs = [0, 1].map(|i: usize| loaders[i].epoch(0).unwrap());
    let mut seen = [Vec::new(), Vec::new()];
    let mut random = random(4);
    while seen[0].len() + seen[1].len() < 150 {
        let i = random.below(2) as usize;
        match epochs[i].next() {
            Some(batch) => seen[i].push(content(&batch.unwrap())),
            None if epochs[i].number() < 2 => {
                epochs[i] = loaders[i].epoch(epochs[i].number() + 1).unwrap();
            }
            None => {}
        }
    }
    assert!(seen == expected);
}

/// The number of samples of a rank, as the documentation of the modes gives it.
fn share(len: u64, rank: u64, world: u64, mode: ShardMode) -> u64 {
    match mode {
        ShardMode::Pad => len.div_ceil(world),
        ShardMode::Drop => len / world,
        ShardMode::Exact => len / world + u64::from(rank < len % world),
    }
}

#[test]
fn lengths_follow_the_formula_for_all_workers_and_ranks() {
    for len in [1, 6, 8, 31, 40] {
        for (batch_size, drop_last) in [(1, false), (4, false), (4, true), (40, true)] {
            for workers in [1, 2, 5] {
                for (rank, world) in [(0, 1), (0, 3), (1, 3), (2, 3)] {
                    for mode in [ShardMode::Pad, ShardMode::Drop, ShardMode::Exact] {
                        let samples = share(len, rank, world, mode);
                        let batches = match drop_last {
                            true => samples / batch_size,
                            false => samples.div_ceil(batch_size),
                        };
                        let shard = Shard::new(rank as u32, world as u32, mode).unwrap();
                        let builder = telling(len).loader().batch_size(batch_size as usize);
                        let builder = builder.drop_last(drop_last).shard(shard).shuffle(len);
                        match builder.workers(Workers::threads(workers)).build() {
                            Err(BuildError::NoBatches { .. }) => assert_eq!(batches, 0),
                            Err(error) => panic!("{error}"),
                            Ok(loader) => {
                                assert_eq!(loader.len(), batches);
                                let epoch = loader.epoch(1).unwrap();
                                let sizes: Vec<_> =
                                    epoch.map(|batch| batch.unwrap().len() as u64).collect();
                                let expected: Vec<_> = (0..batches)
                                    .map(|batch| batch_size.min(samples - batch * batch_size))
                                    .collect();
                                assert_eq!(sizes, expected);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// With a shuffle that is dealt to workers in fixed parts, samples would meet only their part's.
#[test]
fn samples_meet_all_others_in_batches_whatever_the_workers() {
    const LEN: u64 = 128;
    const EPOCHS: u64 = 400;
    let loader = telling(LEN).loader().shuffle(6).workers(Workers::threads(4)).build().unwrap();
    let mut met: HashMap<(u64, u64), u32> = HashMap::new();
    for epoch in 0..EPOCHS {
        for batch in loader.epoch(epoch).unwrap() {
            let mut batch = indices(&batch.unwrap());
            batch.sort_unstable();
            for (at, &b) in batch.iter().enumerate() {
                batch[..at].iter().for_each(|&a| *met.entry((a, b)).or_default() += 1);
            }
        }
    }
    let pairs = (LEN * (LEN - 1) / 2) as f64;
    assert_eq!(met.len() as f64, pairs, "some pairs never met");
    // Each pair meets with probability 7/127 an epoch.
    let (p, tries) = (7.0 / 127.0, EPOCHS as f64);
    let z = met.values().map(|&n| (f64::from(n) - p * tries).powi(2) / (p * (1.0 - p) * tries));
    let spread = z.sum::<f64>() / pairs;
    // The mean of 8128 such squares, nearly independent, strays by 0.016.
    assert!((spread - 1.0).abs() < 0.1, "{spread}");
}

#[test]
fn ranks_of_any_number_give_every_sample_once_or_mark_its_repeats() {
    for world in 1..=8 {
        for len in [8, 17, 101, 127] {
            for mode in [ShardMode::Exact, ShardMode::Pad] {
                let (mut seen, mut padding) = (Vec::new(), 0);
                for rank in 0..world {
                    let shard = Shard::new(rank, world, mode).unwrap();
                    let builder = telling(len).loader().shuffle(2).shard(shard);
                    let loader = builder.workers(Workers::threads(1)).build().unwrap();
                    for batch in loader.epoch(0).unwrap() {
                        let batch = batch.unwrap();
                        let marked = indices(&batch).into_iter().zip(batch.padding());
                        let (repeats, own): (Vec<_>, Vec<_>) = marked.partition(|sample| sample.1);
                        padding += repeats.len() as u64;
                        seen.extend(own.into_iter().map(|sample| sample.0));
                    }
                }
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..len), "{len} over {world}, {mode:?}");
                let world = u64::from(world);
                let expected =
                    if mode == ShardMode::Pad { len.div_ceil(world) * world - len } else { 0 };
                assert_eq!(padding, expected, "{len} over {world}");
            }
        }
    }
}

/// There is no `set_epoch` to forget: the number is how an epoch is asked for.
#[test]
fn every_epoch_has_an_order_of_its_own() {
    let loader = telling(60).loader().shuffle(2).build().unwrap();
    let order =
        |epoch| loader.epoch(epoch).unwrap().flat_map(|b| indices(&b.unwrap())).collect::<Vec<_>>();
    let orders: HashSet<_> = (0..20).map(order).collect();
    assert_eq!(orders.len(), 20);
}

#[test]
fn the_next_epoch_is_filled_while_the_last_batches_of_one_are_held() {
    let dataset = telling(32);
    let loads = Arc::clone(&dataset.loads);
    let loader = dataset.loader().prefetch(3).build().unwrap();
    for epoch in 0..4 {
        let mut batches = loader.epoch(epoch).unwrap();
        let last: Vec<_> = batches.by_ref().take(4).map(Result::unwrap).collect();
        // Nobody has asked for another batch, nor for the next epoch. It is on its way all the same.
        wait_until(|| loads.load(Ordering::Acquire) == (epoch + 1) * 32 + 3 * 8);
        assert!(last.iter().all(|batch| batch.epoch() == epoch));
        drop(last);
        assert!(batches.next().is_none());
    }
    let first = loader.epoch(4).unwrap().next().unwrap().unwrap();
    assert!(first.get::<i64>("who").unwrap().chunks(2).all(|who| who[1] == 4));
}

#[test]
fn a_slow_sample_holds_up_nobody_else_and_changes_no_order() {
    let go = Arc::new(AtomicBool::new(false));
    let dataset = Telling { slow: Some((3, Arc::clone(&go))), ..telling(80) };
    let loads = Arc::clone(&dataset.loads);
    let builder = dataset.loader().prefetch(4).workers(Workers::threads(2));
    let loader = builder.build().unwrap();
    let epoch = loader.epoch(0).unwrap();
    // One worker has it; the other makes all the rest of all batches that are made ahead.
    wait_until(|| loads.load(Ordering::Acquire) == 4 * 8 - 1);
    go.store(true, Ordering::Release);
    let order: Vec<_> = epoch.flat_map(|batch| indices(&batch.unwrap())).collect();
    assert!(order.into_iter().eq(0..80));
}

/// Every batch is held for a while, all its elements told by its own header; whoever writes to it
/// meanwhile, or before its lease is back, is found out.
#[test]
fn what_is_held_is_never_written_to_while_slots_are_reused() {
    let dataset = Telling { width: 700, ..telling(4000) };
    let slot = 64 << 10;
    let builder = dataset.loader().shuffle(1).prefetch(2).memory_budget(24 * slot);
    let loader = builder.workers(Workers::threads(4)).build().unwrap();
    let is_right = |batch: &Batch| {
        batch.indices().zip(draws(batch).chunks(700)).all(|(index, found)| {
            let sample = Sample { index, epoch: batch.epoch(), seed: 1, occurrence: 0 };
            let mut draws = sample.draws(0);
            found.iter().all(|&draw| draw == draws.below(1 << 62) as i64)
        })
    };
    let mut random = random(8);
    let mut held: Vec<Batch> = Vec::new();
    for epoch in 0..2 {
        for batch in loader.epoch(epoch).unwrap() {
            held.push(batch.unwrap());
            while held.len() > 18 || (!held.is_empty() && random.below(2) == 0) {
                let batch = held.swap_remove(random.below(held.len() as u64) as usize);
                assert!(is_right(&batch));
            }
        }
    }
    assert!(held.iter().all(is_right));
}

#[test]
fn who_copies_what_is_kept_never_runs_out_of_batches() {
    let slot = 16 << 10;
    let loader = telling(4000).loader().prefetch(1).memory_budget(2 * slot).build().unwrap();
    let kept: Vec<_> = loader.epoch(0).unwrap().flat_map(|b| indices(&b.unwrap())).collect();
    assert!(kept.into_iter().eq(0..4000));
}

/// Bytes of memory behind the shared segments of this process that are that long.
fn segments(lengths: std::ops::Range<u64>) -> Vec<u64> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap().path());
    let ours = fds.filter(|fd| {
        std::fs::read_link(fd).is_ok_and(|name| name.to_string_lossy().contains("loader-batches"))
    });
    let found = ours.filter_map(|fd| std::fs::metadata(fd).ok());
    found.filter(|file| lengths.contains(&file.len())).map(|file| file.blocks() * 512).collect()
}

#[test]
fn the_memory_of_batches_stays_within_the_budget() {
    const BUDGET: u64 = 40 << 20;
    let dataset = Telling { width: 1 << 16, ..telling(2000) };
    let loader = dataset.loader().memory_budget(BUDGET).build().unwrap();
    // No other test of this program has one of that length.
    let own = || segments(BUDGET * 3 / 4..BUDGET + (1 << 20));
    // Four megabytes a batch: at first for those made ahead and one in use.
    assert!(own().iter().all(|&bytes| bytes < 20 << 20), "{:?}", own());
    let mut epoch = loader.epoch(0).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match epoch.next().unwrap() {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    assert!(matches!(error, LoadError::BatchesHeld { .. }), "{text}");
    assert!(text.contains("batches are held") && text.contains("raise memory_budget"), "{text}");
    let most = own();
    assert_eq!(most.len(), 1);
    // The control words lie beside the batches.
    assert!(most[0] > BUDGET * 3 / 4 && most[0] <= BUDGET + (1 << 20), "{most:?}");
    drop(held);
    assert!(epoch.all(|batch| batch.is_ok()));
    assert_eq!(own(), most, "no more however long it runs");
}

/// A shuffle costs nothing for samples that nobody asked for yet.
#[test]
fn a_shuffle_of_a_trillion_samples_starts_at_once() {
    let loader = telling(1 << 40).loader().shuffle(3).build().unwrap();
    let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let spread = indices(&batch).into_iter().filter(|&index| index > 1 << 36).count();
    assert!(spread >= 4, "{:?}", indices(&batch));
}

#[test]
fn what_is_written_into_a_batch_is_seen_in_no_other() {
    let build = || telling(64).loader().shuffle(1).memory_budget(4 * (16 << 10)).build().unwrap();
    let (spoiled, clean) = (build(), build());
    for epoch in 0..3 {
        for (ours, theirs) in spoiled.epoch(epoch).unwrap().zip(clean.epoch(epoch).unwrap()) {
            let (mut ours, theirs) = (ours.unwrap(), theirs.unwrap());
            assert_eq!(draws(&ours), draws(&theirs));
            ours.get_mut::<i64>("draws").unwrap().iter_mut().for_each(|x| *x = x.wrapping_add(1));
            ours.get_mut::<i64>("who").unwrap().fill(-1);
            assert!(ours.indices().eq(theirs.indices()), "its own list is out of reach");
        }
    }
}

/// The thread that reads is not the one that drops, and neither is the loader's.
#[test]
fn batches_outlive_their_loader_on_other_threads() {
    let (send, receive) = mpsc::channel::<Batch>();
    let reader = std::thread::spawn(move || {
        let kept: Vec<_> = receive.iter().collect();
        kept.iter().flat_map(indices).collect::<Vec<_>>()
    });
    let builder = telling(64).loader().error_policy(ErrorPolicy::Skip);
    let loader = builder.build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.by_ref().take(5).for_each(|batch| send.send(batch.unwrap()).unwrap());
    drop(epoch);
    drop(loader);
    drop(send);
    assert!(reader.join().unwrap().into_iter().eq(0..40));
}

#[test]
fn a_batch_larger_than_the_epoch_takes_the_memory_of_the_epoch() {
    let builder = telling(20).loader().batch_size(1 << 30).memory_budget(1 << 20).shuffle(3);
    let loader = builder.build().unwrap();
    let state = loader.state();
    for epoch in 0..2 {
        let batches: Vec<_> = loader.epoch(epoch).unwrap().map(Result::unwrap).collect();
        let mut all = batches.iter().flat_map(indices).collect::<Vec<_>>();
        all.sort_unstable();
        assert_eq!((batches.len(), all), (1, (0..20).collect()));
    }
    assert_eq!((loader.len(), loader.batch_size()), (1, 1 << 30));
    assert_eq!(loader.resume(&state).unwrap().count(), 1);
}

#[test]
fn a_time_may_be_as_long_as_there_is() {
    let flag = Arc::new(AtomicBool::new(false));
    let dataset = Telling { slow: Some((3, Arc::clone(&flag))), ..telling(20) };
    let loads = Arc::clone(&dataset.loads);
    let loader = dataset.loader().timeout(Duration::MAX).wait_for_slot(Duration::MAX);
    let loader = loader.build().unwrap();
    let epoch = loader.epoch(0).unwrap();
    let waiter = std::thread::spawn(move || epoch.map(|batch| batch.unwrap().len()).sum::<usize>());
    while loads.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    flag.store(true, Ordering::SeqCst);
    assert_eq!(waiter.join().unwrap(), 20);
}
