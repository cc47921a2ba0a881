//! What it costs to turn a ready batch into tensors, beside a copy of it into new ones.

use std::hint::black_box;

use benches::zeros::Zeros;
use burn::tensor::{Device, Int, Tensor, TensorData};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use loader_burn::BatchTensors;
use loader_core::{Batch, DataLoader, Workers};

const IMAGES: usize = 64;

fn hand_over(c: &mut Criterion) {
    let device = Device::flex();
    let mut group = c.benchmark_group("64 images");
    group.sample_size(30);
    for side in [8, 64, 224] {
        let loader = DataLoader::builder(Zeros { side })
            .batch_size(IMAGES)
            .workers(Workers::threads(2))
            .build()
            .expect("a loader");
        let mut epoch = loader.epoch(0).expect("an epoch");
        let mut next = || epoch.next().expect("a long epoch").expect("a batch");
        group.bench_with_input(BenchmarkId::new("into_tensors", side), &side, |b, _| {
            let tensors = |batch: Batch| batch.into_tensors(&device).expect("two fields");
            b.iter_batched(&mut next, tensors, BatchSize::PerIteration);
        });
        group.bench_with_input(BenchmarkId::new("TensorData::new", side), &side, |b, _| {
            // What a burn `Batcher` does that gets samples as vectors.
            let copies = |batch: Batch| {
                let image = batch.get::<f32>("image").expect("a field").to_vec();
                let label = batch.get::<i64>("label").expect("a field").to_vec();
                let image = TensorData::new(image, [IMAGES, 3, side, side]);
                let label = TensorData::new(label, [IMAGES]);
                let image: Tensor<4> = Tensor::from_data(image, &device);
                let label: Tensor<1, Int> = Tensor::from_data(label, &device);
                black_box((image, label, batch))
            };
            b.iter_batched(&mut next, copies, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, hand_over);
criterion_main!(benches);
