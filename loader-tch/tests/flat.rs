//! Alone in its process, so that what it measures is its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;

use loader_tch::EpochExt;

use crate::common::{BATCH, Numbers, loader_of};

#[test]
fn ten_thousand_hand_overs_leave_memory_and_descriptors_flat() {
    let loader = loader_of(Numbers { samples: 1000 * BATCH as u64, broken: None });
    let run = |epochs: std::ops::Range<u64>| {
        let mut batches = 0;
        for pair in epochs.flat_map(|epoch| loader.epoch(epoch).unwrap().tensors()) {
            let (images, labels) = pair.unwrap();
            let view = images.get(0);
            drop(images);
            assert_eq!(view.double_value(&[0, 0]), labels.int64_value(&[0]) as f64);
            batches += 1;
        }
        batches
    };
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    run(0..2);
    let before = (descriptors(), resident());
    assert_eq!(run(2..12), 10_000);
    let after = (descriptors(), resident());
    assert_eq!(before.0, after.0, "descriptors");
    // 100 bytes leaked at each hand-over would be 1000 kB.
    assert!(after.1 < before.1 + 800, "private kB: {} then {}", before.1, after.1);
}
