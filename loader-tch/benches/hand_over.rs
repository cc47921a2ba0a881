//! What it costs to turn a ready batch into tensors, beside a copy of it into a new tensor.

use std::hint::black_box;

use benches::zeros::Zeros;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use loader_core::{Batch, DataLoader, Workers};
use loader_tch::BatchTensors;
use tch::Tensor;

fn hand_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("64 images");
    group.sample_size(30);
    for side in [8, 64, 224] {
        let loader = DataLoader::builder(Zeros { side })
            .batch_size(64)
            .workers(Workers::threads(2))
            .build()
            .expect("a loader");
        let mut epoch = loader.epoch(0).expect("an epoch");
        let mut next = || epoch.next().expect("a long epoch").expect("a batch");
        group.bench_with_input(BenchmarkId::new("into_tensors", side), &side, |b, _| {
            let tensors = |batch: Batch| batch.into_tensors().expect("two fields");
            b.iter_batched(&mut next, tensors, BatchSize::PerIteration);
        });
        group.bench_with_input(BenchmarkId::new("Tensor::from_slice", side), &side, |b, _| {
            let copies = |mut batch: Batch| {
                let image = batch.take("image").expect("a field");
                let label = batch.take("label").expect("a field");
                // Bytes, since a copy of floats costs the same; the shapes are left out.
                let copies =
                    (Tensor::from_slice(image.as_ref()), Tensor::from_slice(label.as_ref()));
                black_box((copies, image, label))
            };
            b.iter_batched(&mut next, copies, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, hand_over);
criterion_main!(benches);
