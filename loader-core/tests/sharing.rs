//! Batches in other processes: the same bytes for as long as they are open, whoever dies.
//!
//! The other processes are this test binary again, started with a role.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use loader_core::{
    Batch, BuildError, DType, DataLoader, DataLoaderBuilder, Dataset, Field, FieldError,
    Fingerprint, LoadError, MemoryError, OpenBatch, OpenError, Sample, SampleError, SampleWriter,
    ShareError, SharedBatch, Workers, sweep_segments,
};

/// Every element of a sample is made of its index and the epoch.
struct Numbers {
    len: u64,
    width: usize,
}

impl Dataset for Numbers {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [self.width]), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        (): &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        out.field::<f32>(0)?.fill(value(sample.epoch, sample.index));
        out.field::<i64>(1)?[0] = sample.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

fn value(epoch: u64, index: u64) -> f32 {
    (epoch * 1000 + index) as f32
}

const LEN: u64 = 400;
const WIDTH: usize = 700;

fn loader() -> DataLoaderBuilder<Numbers> {
    DataLoader::builder(Numbers { len: LEN, width: WIDTH })
        .batch_size(8)
        .workers(Workers::threads(2))
        .shareable(true)
        .memory_budget(64 * SLOT)
}

/// Bytes of one batch in the arena.
const SLOT: u64 = 8 * 4096;

/// True where the batch holds what its number says, all of it.
fn is_right(epoch: u64, number: u64, x: &[f32], labels: &[i64]) -> bool {
    let first = number * 8;
    let labels_fit = labels.iter().enumerate().all(|(i, &l)| l as u64 == first + i as u64);
    let x_fits = x
        .chunks(WIDTH)
        .enumerate()
        .all(|(i, sample)| sample.iter().all(|&x| x == value(epoch, first + i as u64)));
    labels_fit && x_fits && labels.len() == 8 && x.len() == 8 * WIDTH
}

fn batch_is_right(batch: &Batch) -> bool {
    let (x, labels) = (batch.get("x").unwrap(), batch.get("label").unwrap());
    is_right(batch.epoch(), batch.number(), x, labels)
}

fn opened_is_right(batch: &OpenBatch) -> bool {
    let (x, labels) = (batch.get("x").unwrap(), batch.get("label").unwrap());
    let indices: Vec<_> = labels.iter().map(|&l| l as u64).collect();
    is_right(batch.epoch(), batch.number(), x, labels)
        && batch.indices().eq(indices)
        && batch.padding().all(|padding| !padding)
}

const ROLE: &str = "SHARING_TEST_ROLE";

/// What the other processes run. Does nothing as a test.
#[test]
fn in_another_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("receiver") => receive(),
        Ok("owner") => own(),
        Ok("cramped") => fill_dev_shm(),
        _ => {}
    }
}

fn commands() -> impl Iterator<Item = (String, String)> {
    std::io::stdin().lines().map(|line| {
        let line = line.unwrap();
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        (command.to_owned(), rest.to_owned())
    })
}

/// Opens what it is told to open, and holds it.
fn receive() {
    let mut held = Vec::new();
    for (command, handle) in commands() {
        match command.as_str() {
            "open" => match serde_json::from_str::<SharedBatch>(&handle).unwrap().open() {
                Ok(batch) => {
                    println!("@{}", opened_is_right(&batch));
                    held.push(batch);
                }
                Err(error) => println!("@{error}"),
            },
            "check" => println!("@{}", held.iter().all(opened_is_right)),
            "drop" => {
                held.clear();
                println!("@dropped");
            }
            _ => panic!("{command}"),
        }
    }
}

/// Goes through epochs and shares each batch as it is asked for.
fn own() {
    let loader = loader().build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut held = None;
    for (command, _) in commands() {
        match command.as_str() {
            "next" => {
                let mut batch = epoch.next().unwrap().unwrap();
                println!("@{}", serde_json::to_string(&batch.share().unwrap()).unwrap());
                held = Some(batch);
            }
            "run" => {
                println!("@running");
                for number in 0.. {
                    for batch in loader.epoch(number).unwrap() {
                        batch.unwrap().share().unwrap();
                    }
                }
            }
            _ => panic!("{command}"),
        }
    }
    drop(held);
}

/// Runs where `/dev/shm` has room for 256 KiB.
fn fill_dev_shm() {
    let too_much = loader().prefetch(8).build().unwrap_err();
    let BuildError::Memory(MemoryError::SharedFull { needed, free }) = too_much else {
        panic!("{too_much}")
    };
    assert!(needed > 9 * SLOT && free <= 256 << 10, "{needed} {free}");
    // Enough to begin with, but not to grow.
    let loader = loader().prefetch(2).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match epoch.next().unwrap() {
            Ok(batch) => held.push(batch),
            Err(error) => break error,
        }
    };
    let LoadError::BatchesHeld { refused: Some(MemoryError::SharedFull { .. }), .. } = error else {
        panic!("{error}")
    };
    assert!(held.len() >= 3 && held.iter().all(batch_is_right));
    drop(held);
    assert!(epoch.all(|batch| batch_is_right(&batch.unwrap())));
    println!("@done");
}

struct Other {
    child: Child,
    send: Option<ChildStdin>,
    receive: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "in_another_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let receive = BufReader::new(child.stdout.take().unwrap());
        Self { send: child.stdin.take(), receive, child }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.send.as_mut().unwrap(), "{command}").unwrap();
        loop {
            let mut line = String::new();
            assert_ne!(self.receive.read_line(&mut line).unwrap(), 0, "it ended");
            // The test harness prints before and beside it.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn open(&mut self, handle: &SharedBatch) -> String {
        self.ask(&format!("open {}", serde_json::to_string(handle).unwrap()))
    }

    fn next(&mut self) -> SharedBatch {
        serde_json::from_str(&self.ask("next")).unwrap()
    }

    /// Kills it as the kernel's memory killer does.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.send.take());
        let _ = self.child.wait();
    }
}

fn file(handle: &SharedBatch) -> PathBuf {
    Path::new("/dev/shm").join(handle.segment())
}

/// Names in `/dev/shm` of segments that process made.
fn segments_of(pid: u32) -> usize {
    let prefix = format!("loader-core.{pid}.");
    let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&prefix)).count()
}

#[test]
fn a_process_that_is_no_child_of_the_loader_s_reads_the_same_bytes() {
    let (mut owner, mut receiver) = (Other::start("owner"), Other::start("receiver"));
    for number in 0..10 {
        let handle = owner.next();
        assert_eq!((handle.epoch(), handle.number(), handle.len()), (0, number, 8));
        assert_eq!(receiver.open(&handle), "true");
    }
    assert_eq!(receiver.ask("check"), "true", "all ten, of which the owner has dropped nine");
}

#[test]
fn a_handle_is_a_few_hundred_bytes_and_survives_other_formats() {
    let loader = loader().build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let bytes = postcard::to_stdvec(&handle).unwrap();
    assert!(bytes.len() < 200, "{} bytes", bytes.len());
    assert!(serde_json::to_string(&handle).unwrap().len() < 400);
    let back: SharedBatch = postcard::from_bytes(&bytes).unwrap();
    assert!(back == handle && batch.share().unwrap() == handle);
    assert!(opened_is_right(&back.open().unwrap()));
}

#[test]
fn batches_of_other_loaders_can_not_be_shared_and_the_error_names_the_knob() {
    let loader = loader().shareable(false).build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let error = batch.share().unwrap_err();
    assert_eq!(error, ShareError::NotShareable);
    assert!(error.to_string().contains("shareable(true)"));
    assert!(batch.get_mut::<f32>("x").is_ok());
}

#[test]
fn what_is_shared_can_not_be_written_any_more() {
    let loader = loader().build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut batch = epoch.next().unwrap().unwrap();
    batch.get_mut::<f32>("x").unwrap()[0] = 77.0;
    let opened = batch.share().unwrap().open().unwrap();
    assert_eq!(opened.get::<f32>("x").unwrap()[0], 77.0);
    assert_eq!(opened.get::<f32>("x").unwrap().as_ptr().addr() % 64, 0);
    assert!(matches!(batch.get_mut::<f32>("x"), Err(FieldError::Shared { .. })));
    assert!(matches!(batch.take("label"), Err(FieldError::Shared { .. })));
    assert_eq!(batch.get::<i64>("label").unwrap().len(), 8);
    assert!(matches!(opened.get::<u8>("x"), Err(FieldError::Type { .. })));
    assert!(matches!(opened.get::<u8>("y"), Err(FieldError::Missing { .. })));
    let x = opened.field("x").unwrap();
    assert_eq!((x.dtype(), x.shape()), (DType::F32, &[8, WIDTH][..]));
    assert_eq!(x.as_ref().as_ptr(), opened.get::<f32>("x").unwrap().as_ptr().cast());
    assert_eq!(x.as_ref()[..4], 77f32.to_ne_bytes());
    let mut other = epoch.next().unwrap().unwrap();
    let label = other.take("label").unwrap();
    assert_eq!(other.share(), Err(ShareError::Taken));
    drop(label);
}

#[test]
fn a_handle_whose_batch_was_dropped_never_gives_other_bytes() {
    let loader = loader().memory_budget(3 * SLOT).prefetch(1).build().unwrap();
    let mut receiver = Other::start("receiver");
    let mut old: Vec<SharedBatch> = Vec::new();
    for batch in loader.epoch(0).unwrap() {
        let mut batch = batch.unwrap();
        // The same slots hold other batches by now, some of which are shared too.
        for handle in old.iter().rev().take(5) {
            assert!(matches!(handle.open(), Err(OpenError::Dropped { .. })));
        }
        if let Some(handle) = old.last() {
            let answer = receiver.open(handle);
            assert!(answer.contains("keep the batch until the receiver has opened it"), "{answer}");
        }
        if batch.number() % 3 != 2 {
            old.push(batch.share().unwrap());
        }
    }
}

#[test]
fn what_is_open_elsewhere_is_not_made_anew_however_much_is_made() {
    let loader = loader().memory_budget(6 * SLOT).prefetch(1).build().unwrap();
    let mut receiver = Other::start("receiver");
    let mut batches = loader.epoch(0).unwrap();
    for _ in 0..3 {
        let mut batch = batches.next().unwrap().unwrap();
        assert_eq!(receiver.open(&batch.share().unwrap()), "true");
    }
    drop(batches);
    for epoch in 1..6 {
        let mut batches = loader.epoch(epoch).unwrap();
        assert!(batches.by_ref().all(|batch| batch_is_right(&batch.unwrap())));
        assert_eq!(receiver.ask("check"), "true");
    }
}

#[test]
fn a_process_may_open_a_batch_several_times() {
    let loader = loader().memory_budget(2 * SLOT).prefetch(1).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut batch = epoch.next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let first = handle.open().unwrap();
    let second = handle.open().unwrap();
    let third = second.clone();
    drop((first, batch));
    // Open here, so it can be opened again though its sender is through with it.
    let fourth = handle.open().unwrap();
    let field = second.field("label").unwrap();
    drop((second, third));
    assert!(epoch.next().unwrap().is_ok());
    assert!(opened_is_right(&fourth));
    drop(fourth);
    assert!(epoch.next().unwrap().is_ok() && field.as_ref()[..8] == 0i64.to_ne_bytes());
    assert!(handle.open().is_ok(), "a field keeps its batch");
    drop(field);
    assert!(matches!(handle.open(), Err(OpenError::Dropped { .. })));
    assert_eq!(epoch.filter(|batch| batch_is_right(batch.as_ref().unwrap())).count(), 47);
}

/// A loader of two slots, both of which the receiver has open.
fn all_lent(
    receiver: &mut Other,
    wait: Duration,
) -> (DataLoader<Numbers>, loader_core::Epoch<Numbers>) {
    let loader = loader().memory_budget(2 * SLOT).prefetch(1).wait_for_slot(wait).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    for _ in 0..2 {
        let mut batch = epoch.next().unwrap().unwrap();
        assert_eq!(receiver.open(&batch.share().unwrap()), "true");
    }
    (loader, epoch)
}

#[test]
fn what_others_hold_counts_as_held() {
    let mut receiver = Other::start("receiver");
    let (_loader, mut epoch) = all_lent(&mut receiver, Duration::ZERO);
    let error = epoch.next().unwrap().unwrap_err();
    assert!(matches!(error, LoadError::BatchesHeld { held: 2, max: 2, .. }), "{error}");
    assert_eq!(receiver.ask("drop"), "dropped");
    assert!(batch_is_right(&epoch.next().unwrap().unwrap()));
}

#[test]
fn what_a_killed_process_had_open_comes_back() {
    let mut receiver = Other::start("receiver");
    let (_loader, mut epoch) = all_lent(&mut receiver, Duration::ZERO);
    assert!(epoch.next().unwrap().is_err());
    receiver.kill();
    assert_eq!(epoch.filter(|batch| batch_is_right(batch.as_ref().unwrap())).count(), 48);
}

#[test]
fn who_waits_for_a_slot_is_woken_when_another_process_drops_a_batch_or_dies() {
    for kill in [false, true] {
        let mut receiver = Other::start("receiver");
        let (_loader, mut epoch) = all_lent(&mut receiver, Duration::MAX);
        let waits = std::thread::spawn(move || batch_is_right(&epoch.next().unwrap().unwrap()));
        std::thread::sleep(Duration::from_millis(30));
        if kill {
            receiver.kill();
        } else {
            assert_eq!(receiver.ask("drop"), "dropped");
        }
        assert!(waits.join().unwrap());
    }
}

#[test]
fn processes_that_come_and_die_do_not_use_up_the_places() {
    let loader = loader().build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    for _ in 0..40 {
        let mut batch = epoch.next().unwrap().unwrap();
        let mut receiver = Other::start("receiver");
        assert_eq!(receiver.open(&batch.share().unwrap()), "true");
        receiver.kill();
    }
}

#[test]
fn what_is_open_survives_its_killed_owner_and_its_segment_is_swept() {
    let (mut owner, mut receiver) = (Other::start("owner"), Other::start("receiver"));
    let first = owner.next();
    assert_eq!(receiver.open(&first), "true");
    let second = owner.next();
    assert_eq!(receiver.open(&second), "true");
    let pid = owner.child.id();
    assert_eq!(segments_of(pid), 1);
    sweep_segments().unwrap();
    assert_eq!(segments_of(pid), 1, "its owner lives");
    owner.kill();
    assert_eq!(receiver.ask("check"), "true");
    sweep_segments().unwrap();
    assert_eq!(segments_of(pid), 0);
    assert_eq!(receiver.ask("check"), "true");
    let gone = Other::start("receiver").open(&second);
    assert!(gone.contains("is gone"), "{gone}");
    assert_eq!(receiver.open(&first), "true", "it has that one open");
}

#[test]
fn owners_killed_at_any_moment_leave_nothing_that_the_next_loader_does_not_sweep() {
    let mut pids = Vec::new();
    for n in 0..20 {
        let mut owner = Other::start("owner");
        if n % 4 != 0 {
            assert_eq!(owner.ask("run"), "running");
        }
        std::thread::sleep(Duration::from_micros(n * 700));
        owner.kill();
        pids.push(owner.child.id());
    }
    let loader = loader().build().unwrap();
    assert!(loader.epoch(0).unwrap().all(|batch| batch_is_right(&batch.unwrap())));
    assert_eq!(pids.iter().map(|&pid| segments_of(pid)).sum::<usize>(), 0);
}

#[test]
fn an_owner_that_ends_leaves_no_name() {
    let mut owner = Other::start("owner");
    owner.next();
    let pid = owner.child.id();
    drop(owner);
    assert_eq!(segments_of(pid), 0);
}

#[test]
fn a_segment_is_private_and_lives_as_long_as_its_last_batch() {
    let loader = loader().build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    assert_eq!(fs::metadata(file(&handle)).unwrap().mode() & 0o777, 0o600);
    drop(loader);
    let opened = handle.open().unwrap();
    drop(batch);
    assert!(!file(&handle).exists());
    assert!(opened_is_right(&opened));
}

#[test]
fn a_run_whose_names_are_removed_goes_on_and_grows() {
    let loader = loader().memory_budget(16 * SLOT).prefetch(1).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    let mut batch = epoch.next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let opened = handle.open().unwrap();
    fs::remove_file(file(&handle)).unwrap();
    let mut held: Vec<_> = epoch.by_ref().take(10).map(Result::unwrap).collect();
    assert!(held.iter().all(batch_is_right) && opened_is_right(&opened));
    // Who has the segment mapped needs no name.
    assert!(opened_is_right(&held[0].share().unwrap().open().unwrap()));
    let answer = Other::start("receiver").open(&held[1].share().unwrap());
    assert!(answer.contains("its name was removed"), "{answer}");
    drop(held);
    assert!(epoch.all(|batch| batch_is_right(&batch.unwrap())));
}

#[test]
fn two_loaders_share_at_once() {
    let loaders = [loader().build().unwrap(), loader().build().unwrap()];
    let mut epochs = [loaders[0].epoch(1).unwrap(), loaders[1].epoch(2).unwrap()];
    let mut receiver = Other::start("receiver");
    let mut segments = Vec::new();
    for _ in 0..5 {
        for epoch in &mut epochs {
            let handle = epoch.next().unwrap().unwrap().share();
            // Dropped before it was opened.
            assert!(receiver.open(&handle.unwrap()).contains("is gone"));
            let mut batch = epoch.next().unwrap().unwrap();
            let handle = batch.share().unwrap();
            assert_eq!(receiver.open(&handle), "true");
            segments.push(handle.segment().to_owned());
        }
    }
    segments.sort();
    segments.dedup();
    assert_eq!(segments.len(), 2);
    assert_eq!(receiver.ask("check"), "true");
}

#[test]
fn a_full_dev_shm_is_an_error_with_both_sizes() {
    let stat = rustix::fs::statvfs("/dev/shm").unwrap();
    let free = stat.f_bavail * stat.f_frsize;
    let width = (free / 8 / 4 + (1 << 20)) as usize;
    let dataset = Numbers { len: 8, width };
    let error = DataLoader::builder(dataset)
        .batch_size(8)
        .memory_budget(3 * (free + (1 << 30)))
        .prefetch(1)
        .shareable(true)
        .build()
        .unwrap_err();
    match &error {
        BuildError::Memory(MemoryError::SharedFull { needed, free }) => assert!(needed > free),
        other => panic!("{other}"),
    }
    let text = error.to_string();
    assert!(text.contains("--shm-size") && text.contains("shareable(true)"), "{text}");
}

/// In a mount namespace of its own, where the system lets this user make one.
#[test]
fn a_small_dev_shm_ends_in_errors_not_in_a_signal() {
    let unshare = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        unshare
            .arg("mount -t tmpfs -o size=256k tmpfs /dev/shm && exec \"$0\" \"$@\"")
            .args(command);
        unshare.env(ROLE, "cramped").output()
    };
    if !unshare(&["true"]).is_ok_and(|probe| probe.status.success()) {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output =
        unshare(&[this.to_str().unwrap(), "--exact", "in_another_process", "--nocapture"]).unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("@done"), "{}: {errors}", output.status);
}

fn edited(handle: &SharedBatch, edit: impl FnOnce(&mut serde_json::Value)) -> SharedBatch {
    let mut value = serde_json::to_value(handle).unwrap();
    edit(&mut value);
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_handle_that_lies_is_an_error() {
    let loader = loader().build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let mut lies = Vec::new();
    for at in [u64::MAX, u64::MAX - 63, 1 << 63, 1 << 40, 0, 64, 4096] {
        lies.push(edited(&handle, |v| v["words"] = at.into()));
        lies.push(edited(&handle, |v| v["fields"][0][1] = at.into()));
    }
    let at = serde_json::to_value(&handle).unwrap()["fields"][0][1].as_u64().unwrap();
    lies.push(edited(&handle, |v| v["fields"][0][1] = (at + 4).into()));
    lies.push(edited(&handle, |v| v["fields"][0][1] = (at + SLOT).into()));
    lies.push(edited(&handle, |v| v["len"] = u32::MAX.into()));
    lies.push(edited(&handle, |v| v["len"] = 9.into()));
    lies.push(edited(&handle, |v| v["slot"] = u32::MAX.into()));
    lies.push(edited(&handle, |v| v["fields"][0][0]["shape"] = vec![usize::MAX, 3].into()));
    lies.push(edited(&handle, |v| v["fields"][0][0]["shape"] = vec![1 << 30].into()));
    for name in ["", "/etc/passwd", "../../etc/passwd", "loader-core.1", "\0"] {
        lies.push(edited(&handle, |v| v["segment"] = name.into()));
    }
    for lie in lies {
        let error = lie.open().unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{lie:?}: {error}");
    }
    let dropped = edited(&handle, |v| v["generation"] = 7.into());
    assert!(matches!(dropped.open(), Err(OpenError::Dropped { .. })));
    assert!(opened_is_right(&handle.open().unwrap()));
}

/// A file in `/dev/shm` under a segment's name, removed when it is dropped.
struct Forged(PathBuf);

impl Forged {
    /// A copy of a living segment, under a name of its own.
    fn copy(handle: &SharedBatch, n: u64) -> (Self, SharedBatch, File) {
        let (rest, _) = handle.segment().rsplit_once('.').unwrap();
        let name = format!("{rest}.{n:016x}");
        let path = Path::new("/dev/shm").join(&name);
        fs::copy(file(handle), &path).unwrap();
        let copy = File::options().write(true).read(true).open(&path).unwrap();
        (Self(path), edited(handle, |v| v["segment"] = name.into()), copy)
    }
}

impl Drop for Forged {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_segment_that_lies_is_an_error() {
    let loader = loader().memory_budget(3 * SLOT).prefetch(2).build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let refused = |handle: &SharedBatch, what: &str| match handle.open() {
        Err(OpenError::Damaged { .. }) => {}
        other => panic!("{what}: {other:?}"),
    };
    let (forged, copied, file) = Forged::copy(&handle, 1);
    assert!(opened_is_right(&copied.open().unwrap()), "an honest copy");
    let len = file.metadata().unwrap().len();
    drop((forged, file));
    for (n, cut) in
        [0, 1, 4095, 4096, 8192, len - 4096, len - 1, len + 1, len + 4096].iter().enumerate()
    {
        let (_forged, copied, file) = Forged::copy(&handle, 10 + n as u64);
        file.set_len(*cut).unwrap();
        refused(&copied, &format!("{cut} of {len} bytes"));
    }
    for word in 0..8 {
        for (n, lie) in [0, 1, 4096, 1 << 20, u64::MAX, 1 << 63].into_iter().enumerate() {
            let (_forged, copied, file) = Forged::copy(&handle, 100 + word * 10 + n as u64);
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, len - 4096 + word * 8).unwrap();
            let truth = u64::from_le_bytes(bytes);
            file.write_all_at(&u64::to_le_bytes(lie), len - 4096 + word * 8).unwrap();
            // Some numbers may as well be true; they are then only used within bounds.
            if word < 6 && lie != truth {
                refused(&copied, &format!("word {word} is {lie}, not {truth}"));
            } else {
                let _ = copied.open();
            }
        }
    }
    // As long as it should be, but with nothing behind it.
    let (forged, copied, file) = Forged::copy(&handle, 200);
    let mut page = vec![0; 4096];
    file.read_exact_at(&mut page, len - 4096).unwrap();
    file.set_len(0).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(&page, len - 4096).unwrap();
    refused(&copied, "holes");
    drop(forged);
}

#[test]
fn segments_of_other_namespaces_are_neither_opened_nor_swept() {
    let loader = loader().build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let (start, random) = ("00000001", "0000000000000abc");
    let parts: Vec<_> = handle.segment().split('.').collect();
    let (here, elsewhere) = (parts[3], "0123456789abcdef");
    let names = [(elsewhere, "3999999"), (here, "3999999")].map(|(namespace, pid)| {
        let name = format!("loader-core.{pid}.{start}.{namespace}.{random}");
        let path = Path::new("/dev/shm").join(&name);
        fs::copy(file(&handle), &path).unwrap();
        (edited(&handle, |v| v["segment"] = name.into()), path)
    });
    let foreign = names[0].0.open().unwrap_err();
    sweep_segments().unwrap();
    let left = [names[0].1.exists(), names[1].1.exists()];
    let _ = fs::remove_file(&names[0].1);
    assert!(matches!(foreign, OpenError::OtherNamespace { .. }), "{foreign}");
    assert_eq!(left, [true, false], "its owner can't be judged from here; the other one is dead");
}

/// Only root can give a file to somebody else.
#[test]
fn segments_of_other_users_are_neither_opened_nor_swept() {
    let loader = loader().build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let handle = batch.share().unwrap();
    let namespace = handle.segment().split('.').nth(3).unwrap();
    let name = format!("loader-core.3999998.00000001.{namespace}.0000000000000abc");
    let path = Path::new("/dev/shm").join(&name);
    // Under another name until then, so that nobody sweeps it before.
    let forged = Forged(path.with_extension("new"));
    fs::copy(file(&handle), &forged.0).unwrap();
    if std::os::unix::fs::chown(&forged.0, Some(65534), None).is_err() {
        return;
    }
    fs::rename(&forged.0, &path).unwrap();
    let forged = Forged(path);
    let error = edited(&handle, |v| v["segment"] = name.into()).open().unwrap_err();
    assert!(matches!(error, OpenError::OtherUser { owner: 65534, .. }), "{error}");
    sweep_segments().unwrap();
    assert!(forged.0.exists());
}
