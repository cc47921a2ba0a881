//! Alone in its process, so that what it measures is its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::collections::HashSet;
use std::ops::Range;

use benches::Footprint;
use loader_tch::EpochTensors;

use crate::common::{BATCH, Numbers, loader_of};

#[test]
fn ten_thousand_hand_overs_leave_memory_descriptors_and_slots_flat() {
    let loader = loader_of(Numbers { samples: 1000 * BATCH as u64, broken: None });
    let run = |epochs: Range<u64>| {
        let (mut batches, mut slots) = (0, HashSet::new());
        for pair in epochs.flat_map(|epoch| loader.epoch(epoch).unwrap().tensors()) {
            let (images, labels) = pair.unwrap();
            slots.insert(images.data_ptr() as usize);
            let view = images.get(0);
            drop(images);
            assert_eq!(view.double_value(&[0, 0]), labels.int64_value(&[0]) as f64);
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
    // Three made ahead, and the one in use.
    assert!(slots.len() <= 4, "{} slots", slots.len());
}
