//! What a loader counts of itself: exactly where it counts, roughly where it times.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use loader_core::{
    Bottleneck, DType, DataLoader, DataLoaderBuilder, Dataset, ErrorPolicy, Field, Fingerprint,
    ImageFolder, Layout, Sample, SampleError, SampleWriter, Stage, Stats, TableCache, Transform,
    Workers,
};
use serde_json::Value;

/// What making a sample takes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    sleep: Duration,
    /// By the thread's own clock.
    cpu: Duration,
    /// Sleep as that stage.
    stage: Option<Stage>,
}

struct Costly {
    len: u64,
    cost: Cost,
    loads: Arc<AtomicU64>,
}

impl Dataset for Costly {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("index", DType::I64, [])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        if let Some(stage) = self.cost.stage {
            out.enter(stage);
            out.count_read(3);
        }
        thread::sleep(self.cost.sleep);
        let begun = cpu();
        while cpu() < begun + self.cost.cpu {}
        out.field::<i64>(0)?[0] = s.index as i64;
        self.loads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.len.into())
    }
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn costly(len: u64, cost: Cost) -> DataLoaderBuilder<Costly> {
    let builder = DataLoader::builder(Costly { len, cost, loads: Arc::default() });
    builder.batch_size(8).prefetch_next_epoch(false).workers(Workers::threads(2))
}

/// One epoch of a loop that does `work` on each batch.
fn epoch<D: Dataset>(loader: &DataLoader<D>, number: u64, work: impl Fn()) -> Stats {
    let before = loader.stats();
    for batch in loader.epoch(number).unwrap() {
        let _batch = batch.unwrap();
        work();
    }
    loader.stats().since(&before)
}

#[test]
fn epochs_are_told_apart_and_counted_exactly() {
    let loader = costly(52, Cost::default()).build().unwrap();
    for number in 0..3 {
        let stats = epoch(&loader, number, || {});
        assert_eq!((stats.batches, stats.samples, stats.load.count), (7, 52, 52));
        assert_eq!(
            (stats.failed, stats.restarts, stats.read.count, stats.bytes_read),
            (0, 0, 0, 0)
        );
        assert!(stats.waited + stats.looped <= stats.elapsed, "{stats:?}");
    }
    let all = loader.stats();
    assert_eq!((all.batches, all.samples, all.load.count), (21, 156, 156));
    assert!(all.workers == 2 && all.cpus > 0);
    // With nothing left to do, workers come to rest.
    while loader.stats().idle < Duration::from_millis(1) {
        thread::yield_now();
    }
}

#[test]
fn an_epoch_that_is_left_counts_what_it_gave() {
    let loader = costly(80, Cost::default()).build().unwrap();
    drop(loader.epoch(0).unwrap().take(3).map(Result::unwrap).collect::<Vec<_>>());
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.samples), (3, 24));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(loader.stats().looped, stats.looped, "no loop, no time in one");
}

#[test]
fn a_dataset_that_waits_is_told_from_one_that_computes() {
    let cost = Duration::from_millis(2);
    let waits = costly(40, Cost { sleep: cost, ..Cost::default() }).build().unwrap();
    let waits = epoch(&waits, 0, || {});
    assert!(waits.busy() >= 40 * cost && waits.load.time == waits.busy(), "{waits}");
    assert!(2 * waits.cpu < waits.busy(), "{waits}");
    assert!(waits.wait_share() > 0.5, "{waits}");

    let computes = costly(40, Cost { cpu: cost, ..Cost::default() }).build().unwrap();
    let computes = epoch(&computes, 0, || {});
    assert!(computes.busy() >= 40 * cost, "{computes}");
    // A worker's CPU time may be some milliseconds behind.
    assert!(2 * computes.cpu >= 40 * cost && computes.cpu <= 2 * computes.elapsed, "{computes}");
}

#[test]
fn a_stage_that_a_dataset_enters_is_named() {
    let cost =
        Cost { sleep: Duration::from_millis(2), stage: Some(Stage::Read), ..Cost::default() };
    let stats = epoch(&costly(160, cost).build().unwrap(), 0, || {});
    assert_eq!((stats.read.count, stats.load.count, stats.bytes_read), (160, 160, 3 * 160));
    assert!(stats.read.time >= 160 * cost.sleep && stats.load.time < stats.read.time, "{stats}");
    // On a busy machine the loop may be late to ask, and then the workers idle.
    let mut saturated = stats.clone();
    (saturated.waited, saturated.looped) = (stats.busy() / 2, Duration::ZERO);
    assert_eq!(saturated.verdict().bottleneck, Bottleneck::Read, "{stats}");
}

#[test]
fn a_loop_that_works_long_is_bound_by_itself() {
    let loader = costly(80, Cost::default()).prefetch(3).build().unwrap();
    let loads = Arc::clone(&loader.dataset().loads);
    let taken = AtomicU64::new(0);
    let stats = epoch(&loader, 0, || {
        thread::sleep(Duration::from_millis(20));
        // On a busy machine the next one may not be there yet.
        let taken = taken.fetch_add(1, Ordering::Relaxed) + 1;
        while loads.load(Ordering::Relaxed) < 80.min(8 * (taken + 3)) {
            thread::yield_now();
        }
    });
    assert!(stats.looped >= Duration::from_millis(200), "{stats}");
    assert!(stats.wait_share() < 0.5, "{stats}");
    // The first batch is all that was waited for, which a machine may make long.
    let mut settled = stats.clone();
    settled.waited = Duration::ZERO;
    assert_eq!(settled.verdict().bottleneck, Bottleneck::Loop, "{stats}");
    assert!(stats.idle > stats.busy(), "{stats}");
}

#[test]
fn batches_that_are_held_are_told_where_there_is_no_memory_for_more() {
    let slot = 16 << 10;
    let builder = costly(160, Cost::default()).prefetch(2).memory_budget(3 * slot);
    let loader = builder.wait_for_slot(Duration::from_secs(600)).build().unwrap();
    let (send, receive) = mpsc::channel();
    let holder = thread::spawn(move || {
        let mut held = Vec::new();
        for batch in receive {
            held.push(batch);
            if held.len() == 3 {
                thread::sleep(Duration::from_millis(20));
                held.clear();
            }
        }
    });
    for batch in loader.epoch(0).unwrap() {
        send.send(batch.unwrap()).unwrap();
    }
    let stats = loader.stats();
    drop(send);
    holder.join().unwrap();
    assert_eq!((stats.batches, stats.samples), (20, 160));
    // Six times all three were held for a while.
    assert!(stats.waited_for_slot >= Duration::from_millis(60), "{stats:?}");
    assert!(stats.waited >= stats.waited_for_slot, "{stats:?}");
    assert!(stats.short_of_slots >= stats.waited_for_slot / 2, "{stats:?}");
    assert_eq!(stats.verdict().bottleneck, Bottleneck::Slots, "{stats}");
}

#[test]
fn who_looks_in_the_middle_of_a_wait_sees_how_long_it_lasts() {
    let cost = Cost { sleep: Duration::from_millis(400), ..Cost::default() };
    let loader = Arc::new(costly(1, cost).build().unwrap());
    let looker = {
        let loader = Arc::clone(&loader);
        thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) {
                let stats = loader.stats();
                if stats.batches == 0 && stats.waited >= Duration::from_millis(50) {
                    return true;
                }
                thread::sleep(Duration::from_millis(1));
            }
            false
        })
    };
    assert_eq!(epoch(&*loader, 0, || {}).samples, 1);
    assert!(looker.join().unwrap());
}

/// Twenty images of which three are broken, and the bytes of all files.
fn folder(root: &Path) -> (ImageFolder, u64) {
    let class = root.join("class");
    fs::create_dir(&class).unwrap();
    let mut bytes = 0;
    for n in 0..20u8 {
        let file = class.join(format!("{n:02}.png"));
        match n {
            3 | 11 => fs::write(&file, b"no image").unwrap(),
            12 => fs::write(&file, b"").unwrap(),
            _ => image::RgbImage::from_pixel(30, 20, image::Rgb([n; 3])).save(&file).unwrap(),
        }
        bytes += fs::metadata(&file).unwrap().len();
    }
    (ImageFolder::builder(root).cache(TableCache::Off).open().unwrap(), bytes)
}

#[test]
fn stages_of_images_and_what_became_of_broken_ones_are_counted_exactly() {
    let root = tempfile::tempdir().unwrap();
    let (folder, bytes) = folder(root.path());
    let of = |policy| {
        let transform = Transform::new().resize((8, 8)).to(DType::F32, Layout::Nchw);
        let builder = DataLoader::builder(folder.transform(transform).unwrap());
        let builder = builder.batch_size(6).error_policy(policy).prefetch_next_epoch(false);
        let loader = builder.workers(Workers::threads(3)).build().unwrap();
        epoch(&loader, 0, || {})
    };
    let skip = of(ErrorPolicy::Skip);
    assert_eq!((skip.batches, skip.samples), (4, 17));
    assert_eq!((skip.failed, skip.skipped, skip.substituted), (3, 3, 0));
    assert_eq!((skip.load.count, skip.read.count, skip.decode.count), (20, 20, 20));
    assert_eq!((skip.transform.count, skip.write.count), (17, 17));
    assert_eq!(skip.bytes_read, bytes);
    assert!(!skip.decode.time.is_zero() && skip.cpu_per_sample() < Duration::from_secs(1));

    let substitute = of(ErrorPolicy::Substitute);
    assert_eq!((substitute.batches, substitute.samples), (4, 20));
    assert_eq!((substitute.skipped, substitute.substituted), (0, 3));
    assert_eq!(substitute.load.count, 20 + substitute.failed);
    assert_eq!((substitute.transform.count, substitute.write.count), (20, 20));
}

#[test]
fn an_epoch_that_ends_with_an_error_counts_it() {
    let root = tempfile::tempdir().unwrap();
    let (folder, _) = folder(root.path());
    let dataset = folder.transform(Transform::new().resize((8, 8))).unwrap();
    let loader = DataLoader::builder(dataset).batch_size(4).build().unwrap();
    assert!(loader.epoch(0).unwrap().any(|batch| batch.is_err()));
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.failed, stats.skipped, stats.substituted), (0, 1, 0, 0));
}

/// The events of a trace that have a duration, by name.
fn spans(trace: &[u8]) -> HashMap<String, Vec<Value>> {
    let trace: Value = serde_json::from_slice(trace).unwrap();
    let mut spans: HashMap<String, Vec<Value>> = HashMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" {
            spans.entry(event["name"].as_str().unwrap().into()).or_default().push(event.clone());
        }
    }
    spans
}

#[test]
fn a_trace_shows_each_stage_of_each_sample_of_each_worker() {
    let root = tempfile::tempdir().unwrap();
    let (folder, _) = folder(root.path());
    let dataset = folder.transform(Transform::new().resize((8, 8))).unwrap();
    let builder = DataLoader::builder(dataset).batch_size(5).error_policy(ErrorPolicy::Skip);
    let builder = builder.workers(Workers::threads(2)).prefetch_next_epoch(false).trace(100);
    let loader = builder.build().unwrap();
    epoch(&loader, 4, || thread::sleep(Duration::from_millis(1)));
    let mut trace = Vec::new();
    loader.write_trace(&mut trace).unwrap();
    let spans = spans(&trace);
    let count = |name: &str| spans[name].len();
    assert_eq!((count("sample"), count("failed sample")), (17, 3));
    assert_eq!((count("read"), count("decode"), count("write")), (20, 20, 17));
    assert_eq!((count("wait"), count("work on a batch")), (4, 4));
    assert!(spans["work on a batch"].iter().all(|span| span["dur"].as_f64().unwrap() >= 1000.0));
    let mut named: Vec<_> = spans["sample"].iter().chain(&spans["failed sample"]).collect();
    named.sort_by_key(|span| span["args"]["index"].as_u64());
    for (n, span) in named.iter().enumerate() {
        assert_eq!((&span["args"]["epoch"], &span["args"]["index"]), (&4.into(), &n.into()));
        assert!(span["args"]["path"].as_str().unwrap().ends_with(&format!("class/{n:02}.png")));
    }
    // The stages of a worker's samples lie in them and follow each other.
    for worker in 0..2 {
        let mut stages: Vec<_> = ["load", "read", "decode", "transform", "write"]
            .iter()
            .flat_map(|name| spans[*name].iter().filter(|span| span["tid"] == worker))
            .map(|span| (span["ts"].as_f64().unwrap(), span["dur"].as_f64().unwrap()))
            .collect();
        stages.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert!(stages.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0 + 0.01));
    }
}

#[test]
fn a_trace_keeps_the_last_samples_and_none_where_none_was_asked_for() {
    let loader =
        costly(200, Cost::default()).workers(Workers::threads(1)).trace(10).build().unwrap();
    epoch(&loader, 0, || {});
    let mut trace = Vec::new();
    loader.write_trace(&mut trace).unwrap();
    let kept: Vec<_> = spans(&trace)["sample"]
        .iter()
        .map(|span| span["args"]["index"].as_u64().unwrap())
        .collect();
    assert!(kept.into_iter().eq(190..200));
    let loader = costly(8, Cost::default()).build().unwrap();
    let error = loader.write_trace(Vec::new()).unwrap_err().to_string();
    assert!(error.contains("DataLoaderBuilder::trace"), "{error}");
}
