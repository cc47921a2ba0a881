//! Alone in its process, so that what it measures is its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;
use std::ops::Range;

use benches::Footprint;
use burn::tensor::{Device, Int, Tensor};
use loader_burn::BatchTensors;
use loader_core::{DataLoader, Workers};

use crate::common::Numbers;

const BATCH: usize = 8;

#[test]
fn ten_thousand_hand_overs_leave_memory_descriptors_and_slots_flat() {
    let device = Device::flex();
    let loader = DataLoader::builder(Numbers { samples: 1000 * BATCH as u64 })
        .batch_size(BATCH)
        .shuffle(42)
        .prefetch(2)
        .workers(Workers::threads(2))
        .build()
        .unwrap();
    let run = |epochs: Range<u64>| {
        let (mut batches, mut slots) = (0, HashSet::new());
        for mut batch in epochs.flat_map(|epoch| loader.epoch(epoch).unwrap()).map(Result::unwrap) {
            slots.insert(batch.get::<f32>("image").unwrap().as_ptr());
            let images: Tensor<4> = batch.take_tensor("image", &device).unwrap();
            let labels: Tensor<1, Int> = batch.take_tensor("label", &device).unwrap();
            let view = images.clone().narrow(0, 1, 1).slice([0..1, 0..1, 0..1, 0..1]);
            drop((batch, images));
            let label = labels.narrow(0, 1, 1).into_scalar::<i64>();
            assert_eq!(view.into_scalar::<f32>() as i64, label);
            batches += 1;
        }
        (batches, slots)
    };
    let (_, mut slots) = run(0..2);
    let before = Footprint::now().unwrap();
    let (batches, more) = run(2..12);
    assert_eq!(batches, 10_000);
    let after = Footprint::now().unwrap();
    assert_eq!(before.descriptors, after.descriptors);
    // 100 bytes leaked at each hand-over would be 1000 kB.
    assert!(after.anonymous < before.anonymous + 800, "kB: {before:?}, then {after:?}");
    slots.extend(more);
    // Two made ahead, and the one in use.
    assert!(slots.len() <= 3, "{} slots", slots.len());
}
