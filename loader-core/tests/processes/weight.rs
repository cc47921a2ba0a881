//! What worker processes weigh, and what in the program could weigh on them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use loader_core::{
    DType, DataLoader, Dataset, ErrorPolicy, Field, Fingerprint, ImageFolder, Layout, MemoryUse,
    Order, PathTable, ProcessRole, Recipe, RecipeError, Sample, SampleError, SampleWriter, Stage,
    TableCache, Transform, Workers,
};

use crate::data::{Noise, hashes, noise, undisturbed, wait_until};
use crate::victims::Victim;

crate::tests![
    five_million_paths_weigh_nothing_in_any_worker,
    workers_stay_for_all_epochs,
    a_report_tells_shared_memory_from_what_a_worker_owns,
    images_that_claim_to_be_huge_take_no_memory,
    metadata_that_unpacks_to_half_a_gigabyte_takes_little_memory,
    processes_start_while_32_threads_allocate_and_decode,
];

/// The most private memory of a worker, in bytes; the table that it reads is many times as large.
const MOST: u64 = 5 << 20;

/// The paths of a table as samples, without a look at any file.
struct Paths(PathTable);

pub(crate) fn attach_paths(mut recipe: Recipe) -> Result<impl Dataset, String> {
    let file = recipe.take_file(0).map_err(|e| e.to_string())?;
    PathTable::from_file(file).map(Paths).map_err(|e| e.to_string())
}

impl Dataset for Paths {
    type Scratch = Vec<u8>;

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("path", DType::U8, [48])]
    }

    fn load(
        &self,
        sample: &Sample,
        path: &mut Vec<u8>,
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        let entry = self.0.get(sample.index).map_err(|e| SampleError::new(Stage::Read, e))?;
        path.clear();
        entry.write_path(path);
        path.resize(48, 0);
        out.field::<u8>(0)?.copy_from_slice(path);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint()
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        Recipe::new("paths", &())?.file(self.0.file())
    }
}

fn five_million_paths_weigh_nothing_in_any_worker() {
    Victim::start("well_read").succeeds();
}

/// A program of its own, so that nobody else's pages are in its workers.
pub(crate) fn well_read() {
    loader_core::init_with(crate::data::registry()).unwrap();
    const LEN: u64 = 5_000_000;
    let classes: Vec<_> = (0..1000).map(|class| format!("n{class:08}")).collect();
    let path = |n: u64| {
        let class = n * 1000 / LEN;
        let name = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (format!("n{class:08}/{name:012x}.JPEG"), class as u32)
    };
    let table = PathTable::from_paths("/data", &classes, (0..LEN).map(path)).unwrap();
    assert!(table.file_len() > 6 * MOST, "{}", table.file_len());
    // Pages that this process has mapped too are nobody's own.
    table.verify().unwrap();
    let mut table = Some(table);
    for workers in [4, 1] {
        let dataset = Paths(table.take().unwrap());
        let again = dataset.0.clone();
        // Every page of the table is read in each epoch.
        let indices = (0..LEN).step_by(37).collect();
        let builder = DataLoader::builder(dataset).batch_size(256);
        let builder = builder.order(Order::Subset { indices, shuffle: true });
        let loader = builder.workers(Workers::processes(workers)).build().unwrap();
        wait_until("all workers", || loader.worker_pids().len() == workers);
        let epochs = (0..3).map(|epoch| {
            for batch in loader.epoch(epoch).unwrap() {
                let batch = batch.unwrap();
                let found = batch.get::<u8>("path").unwrap();
                let expected = format!("/data/{}", path(batch.indices().next().unwrap()).0);
                assert!(found.starts_with(expected.as_bytes()));
            }
            let workers = loader.worker_pids().into_iter();
            workers.map(|pid| MemoryUse::of(pid).unwrap()).collect::<Vec<_>>()
        });
        let epochs: Vec<_> = epochs.collect();
        assert_eq!(loader.restarts(), 0);
        let own = epochs.iter().flatten().map(|memory| memory.uss).max().unwrap();
        assert!(own < MOST, "{workers} workers: {epochs:?}");
        let report = loader.memory_report();
        let tables = report.processes.iter().skip(2).map(|worker| worker.table);
        let shared = tables.filter(|table| table.rss > MOST && table.uss == 0).count();
        assert_eq!(shared, workers, "{report}");
        let pss = |epoch: usize| epochs[epoch].iter().map(|memory| memory.pss).sum::<u64>();
        assert!(pss(2) < pss(0) + (1 << 20), "{workers} workers: {epochs:?}");
        table = Some(again);
    }
}

fn workers_stay_for_all_epochs() {
    let loader = noise(100).loader().workers(Workers::processes(3)).build().unwrap();
    wait_until("all workers", || loader.worker_pids().len() == 3);
    let pids = loader.worker_pids();
    for epoch in 0..5 {
        hashes(loader.epoch(epoch).unwrap()).unwrap();
        assert_eq!(loader.worker_pids(), pids);
    }
    assert_eq!(loader.restarts(), 0);
}

fn a_report_tells_shared_memory_from_what_a_worker_owns() {
    let dataset = Noise { large: true, ..noise(200) };
    let loader = dataset.loader().workers(Workers::processes(2)).build().unwrap();
    wait_until("all workers", || loader.worker_pids().len() == 2);
    let batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let image = batch.get::<f32>("image").unwrap();
    // Pages are mapped when they are touched.
    assert!(image.iter().all(|value| (0.0..1.0).contains(value)));
    let bytes = 4 * image.len() as u64;
    let report = loader.memory_report();
    let roles: Vec<_> = report.processes.iter().map(|process| process.role).collect();
    let worker = ProcessRole::Worker;
    assert_eq!(roles, [ProcessRole::Program, ProcessRole::ForkServer, worker, worker]);
    assert_eq!(report.processes[0].pid, std::process::id());
    let text = report.to_string();
    // The batch is mapped by its reader and by whoever made a sample of it; it is nobody's own.
    assert!(report.processes[0].batches.rss >= bytes, "{text}");
    let workers = &report.processes[2..];
    assert!(workers.iter().map(|process| process.batches.rss).sum::<u64>() >= bytes, "{text}");
    assert!(workers.iter().all(|process| process.anonymous.uss < MOST), "{text}");
    let (total, batches) = (report.sum(|p| p.total), report.sum(|p| p.batches));
    assert!(batches.pss + bytes <= batches.rss && total.pss + bytes <= total.rss, "{text}");
    assert!(text.contains("These 4 processes have "), "{text}");

    let threads = noise(20).loader().workers(Workers::threads(2)).build().unwrap();
    assert_eq!(threads.memory_report().processes.len(), 1);
}

/// The check sum of a PNG's chunk.
fn crc32(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    });
    !crc
}

/// Fifty bytes that claim to be a PNG of 100,000 x 100,000 pixels.
fn png_bomb() -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
    png.extend([100_000u32.to_be_bytes(); 2].concat());
    png.extend([8, 2, 0, 0, 0]);
    let crc = crc32(&png[12..]);
    png.extend(crc.to_be_bytes());
    png.extend(b"\0\0\0\x05IDAT\x78\x9c\x03\0\0\0\0\0\x01");
    assert_eq!(png.len(), 50);
    png
}

/// A header that claims to be a BMP of that size.
fn bmp_bomb(width: i32, height: i32) -> Vec<u8> {
    let mut bmp = b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    bmp.extend([width, height].map(i32::to_le_bytes).concat());
    bmp.extend(b"\x01\0\x18\0");
    bmp.resize(54, 0);
    bmp
}

/// The most memory that the one worker of a loader over that folder ever had, in bytes, and the
/// messages of what failed.
fn most_memory(root: &Path) -> (u64, Vec<String>) {
    let folder = ImageFolder::builder(root).cache(TableCache::Off).open().unwrap();
    let transform = Transform::new().random_resized_crop(32).to(DType::U8, Layout::Nchw);
    let builder = DataLoader::builder(folder.transform(transform).unwrap()).batch_size(10);
    let builder = builder.error_policy(ErrorPolicy::Skip).workers(Workers::processes(1));
    let loader = builder.build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    epoch.by_ref().for_each(|batch| drop(batch.unwrap()));
    let failures = epoch.report().failures.iter().map(|failure| failure.error.message.clone());
    let status = fs::read_to_string(format!("/proc/{}/status", loader.worker_pids()[0])).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    assert_eq!(loader.restarts(), 0);
    (most.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10, failures.collect())
}

fn images_that_claim_to_be_huge_take_no_memory() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("x")).unwrap();
    let file = |n: u32| root.path().join(format!("x/{n:03}.bin.png"));
    for n in 0..20 {
        let image = image::RgbImage::from_pixel(40, 30, image::Rgb([n as u8, 2, 3]));
        image.save(file(n)).unwrap();
    }
    let (usual, failures) = most_memory(root.path());
    assert!(failures.is_empty());
    for n in 20..80 {
        let bytes = match n % 4 {
            0 | 1 => png_bomb(),
            2 => bmp_bomb(60_000, 60_000),
            _ => bmp_bomb(i32::MAX, i32::MAX),
        };
        fs::write(file(n), bytes).unwrap();
    }
    let (most, failures) = most_memory(root.path());
    assert_eq!(failures.len(), 60);
    assert!(failures.iter().any(|message| message.contains("DecodeOptions::max_pixels")));
    assert!(most < usual + (2 << 20), "{usual} bytes before, {most} with them");
}

/// A PNG of one pixel with a colour profile of half a gigabyte of zeros.
fn png_with_a_profile() -> Vec<u8> {
    // A zero, then copies of the 258 bytes before, in the fixed codes of RFC 1951.
    let copies = (512usize << 20) / 258;
    let zero = [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0];
    let copy = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    let bits = zero.into_iter().chain((0..copies).flat_map(|_| copy)).chain([0; 7]);
    let bits: Vec<u8> = bits.collect();
    let byte = |bits: &[u8]| bits.iter().zip(0..).fold(0, |byte, (bit, at)| byte | (bit << at));
    let packed: Vec<u8> = bits.chunks(8).map(byte).collect();
    let sum = (((1 + 258 * copies) as u32 % 65_521) << 16) | 1;
    let profile = [b"iCCPp\0\0\x78\x01", &packed[..], &sum.to_be_bytes()].concat();
    let len = (profile.len() - 4) as u32;
    let chunk = [&len.to_be_bytes(), &profile[..], &crc32(&profile).to_be_bytes()].concat();
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::new(40, 30).write_to(&mut png, image::ImageFormat::Png).unwrap();
    let mut png = png.into_inner();
    // Behind the header, which ends after 33 bytes.
    png.splice(33..33, chunk);
    png
}

fn metadata_that_unpacks_to_half_a_gigabyte_takes_little_memory() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("x")).unwrap();
    let png = png_with_a_profile();
    assert!(png.len() < 4 << 20);
    for n in 0..8 {
        fs::write(root.path().join(format!("x/{n}.png")), &png).unwrap();
    }
    let (most, failures) = most_memory(root.path());
    // It is left out where it is too large.
    assert!(failures.is_empty(), "{failures:?}");
    assert!(most < 64 << 20, "{most} bytes");
}

fn processes_start_while_32_threads_allocate_and_decode() {
    Victim::start("crowded").succeeds();
}

pub(crate) fn crowded() {
    loader_core::init_with(crate::data::registry()).unwrap();
    let image = image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8, y as u8, 7]));
    let mut file = std::io::Cursor::new(Vec::new());
    image.write_to(&mut file, image::ImageFormat::Png).unwrap();
    let file = file.into_inner();
    let expected = undisturbed(noise(48), 1).remove(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..32usize {
            let (over, file) = (&over, &file);
            scope.spawn(move || {
                for round in thread.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let sizes = (0..20).map(|n| 1usize << ((n + round) % 18));
                    let blocks: Vec<_> = sizes.map(Vec::<u8>::with_capacity).collect();
                    image::load_from_memory(file).unwrap();
                    drop(blocks);
                    // Else there would be no processor for anybody else.
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            });
        }
        for repeat in 0..300 {
            let workers = Workers::processes(1 + repeat % 3).threads_per_process(1 + repeat % 2);
            let loader = noise(48).loader().workers(workers).build().unwrap();
            let found = hashes(loader.epoch(0).unwrap()).unwrap();
            assert!(found == expected, "repeat {repeat}");
            assert_eq!(loader.restarts(), 0);
        }
        over.store(true, Ordering::Relaxed);
    });
}
