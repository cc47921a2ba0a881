//! The hot pieces one by one: order, look-up, scan, decoding and transforms.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use loader_core::ops::{Interpolation, Resize};
use loader_core::{
    DType, ImageFolder, ImageScratch, Layout, Order, PathTable, Sample, Sampler, TableCache,
    Transform,
};

/// Entries of an index, as many as ImageNet's.
const ENTRIES: u64 = 1_281_167;

fn order(c: &mut Criterion) {
    let mut group = c.benchmark_group("order");
    group.throughput(Throughput::Elements(1));
    for (name, order) in [("sequential", Order::Sequential), ("shuffled", Order::Shuffled)] {
        let order = Sampler::new(order, None, ENTRIES, 42).expect("an order").epoch(3);
        let mut position = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                position = (position + 1) % ENTRIES;
                order.get(black_box(position))
            });
        });
    }
    group.finish();
}

fn lookup(c: &mut Criterion) {
    let names: Vec<String> =
        (0..ENTRIES).map(|i| format!("n{:08}/n{:08}_{i}.JPEG", i / 1282, i / 1282)).collect();
    let classes = (0..1000).map(|class| format!("n{class:08}"));
    let paths = (0..).zip(&names).map(|(i, name)| (name.as_str(), (i / 1282) as u32));
    let table = PathTable::from_paths("/data", classes, paths).expect("a table");
    let mut path = Vec::new();
    let mut index = 0;
    c.bench_function("look a path up", |b| {
        b.iter(|| {
            // Far from the last one, as in a shuffled epoch.
            index = (index + 700_001) % ENTRIES;
            path.clear();
            table.get(index).expect("an entry").write_path(&mut path);
            black_box(path.len())
        });
    });
}

fn scan(c: &mut Criterion) {
    let root = tempfile::tempdir().expect("a folder");
    for class in 0..100 {
        let folder = root.path().join(format!("n{class:08}"));
        fs::create_dir(&folder).expect("a folder");
        for i in 0..100 {
            fs::write(folder.join(format!("{i}.jpg")), "").expect("a file");
        }
    }
    let mut group = c.benchmark_group("scan");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("100 folders of 100 files", |b| {
        b.iter(|| ImageFolder::builder(root.path()).cache(TableCache::Off).open().expect("images"));
    });
    group.finish();
}

fn images(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../loader-core/tests/pillow/jpegs/texture_420.jpg");
    let file = fs::read(&file).expect("a stored image of 163 x 141 pixels");
    // One pixel costs nothing, and the nearest one needs a whole decode.
    let pixel = Resize::new((1, 1)).interpolation(Interpolation::Nearest);
    let tasks = [
        ("decode", Transform::new().then(pixel)),
        ("imagenet_train(112)", Transform::imagenet_train(112)),
        ("imagenet_eval(112)", Transform::imagenet_eval(112)),
        ("resize to 64 x 64, u8", Transform::new().resize((64, 64)).to(DType::U8, Layout::Nhwc)),
    ];
    let mut group = c.benchmark_group("image");
    for (name, transform) in tasks {
        let pipeline = transform.compile().expect("a transform");
        let (dtype, shape) = pipeline.field();
        let mut scratch = ImageScratch::default();
        let mut epoch = 0;
        group.bench_function(name, |b| {
            // Room for floats is aligned for whatever is written.
            let room = vec![0f32; shape.iter().product::<usize>() * dtype.size() / 4 + 1];
            let len = shape.iter().product::<usize>() * dtype.size();
            b.iter_batched_ref(
                || room.clone(),
                |room| {
                    epoch += 1;
                    let sample = Sample { index: 0, epoch, seed: 0, occurrence: 0 };
                    let out = &mut bytemuck::cast_slice_mut(room)[..len];
                    pipeline.run(&file, &sample, &mut scratch, out).expect("an image");
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(pieces, order, lookup, scan, images);
criterion_main!(pieces);
