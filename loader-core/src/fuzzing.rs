//! The readers of bytes from outside, as functions that must return whatever they are given: what
//! the fuzz targets in `fuzz/` call, and the tests that replay their corpus.

use std::fs::File;

use crate::dataset::Sample;
use crate::image::{ImageScratch, Transform};
use crate::index::PathTable;
use crate::shared::array::SharedArray;
use crate::shm::sealed_file;
use crate::worker;

/// A path table: attached, read and checked.
pub fn table(bytes: &[u8]) {
    let Ok(table) = PathTable::in_memory(bytes) else { return };
    let mut path = Vec::new();
    for index in (0..table.len()).take(100) {
        if let Ok(entry) = table.get(index) {
            path.clear();
            entry.write_path(&mut path);
            let _ = entry.label();
        }
    }
    for class in 0..table.class_count().min(100) {
        let _ = table.class_name(class);
    }
    let _ = table.report();
    let _ = table.verify();
}

/// An array in a file: opened and read.
pub fn array(bytes: &[u8]) {
    let Ok(file) = sealed_file("array", bytes) else { return };
    let Ok(array) = SharedArray::of_descriptor(file) else { return };
    let _ = array.as_slice::<f64>().map(<[f64]>::last);
    let rows = array.shape().first().copied().unwrap_or(0);
    for row in [0, rows / 2, rows.wrapping_sub(1), rows, usize::MAX] {
        let _ = array.row::<u8>(row);
        let _ = array.rows::<f32>(row / 2..row);
    }
}

/// What a worker process is sent, with files of the right kind beside it.
pub fn job(bytes: &[u8]) {
    let numbers = [0u64, 1, 2, 3, 1 << 40, f64::to_bits(0.5), u64::MAX, 7];
    let numbers = sealed_file("numbers", bytemuck::cast_slice(&numbers)).map(File::into);
    let table = PathTable::from_paths("/data", ["a", "b"], [("a/1.jpg", 0), ("b/2.jpg", 1)]);
    let (Ok(numbers), Ok(table)) = (numbers, table) else { return };
    let Ok(table) = table.file().try_clone() else { return };
    worker::fuzz_job(bytes, numbers, table.into());
}

/// An image file: decoded, cropped, resized and written.
pub fn image(bytes: &[u8]) {
    let options = crate::DecodeOptions { max_pixels: 1 << 20, ..Default::default() };
    let transform = Transform::imagenet_train(32).decode(options);
    let Ok(pipeline) = transform.compile() else { return };
    let mut out = vec![0; 3 * 32 * 32 * 4];
    let sample = Sample { index: 0, epoch: 0, seed: 0, occurrence: 0 };
    let _ = pipeline.run(bytes, &sample, &mut ImageScratch::default(), &mut out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Draws;

    /// Gives every seed of the target's corpus, whole and damaged in reproducible ways.
    fn replay(corpus: &str, damaged: u64, target: fn(&[u8])) {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(corpus);
        let mut seeds = 0;
        for seed in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(seed.unwrap().path()).unwrap();
            target(&bytes);
            seeds += 1;
            let len = bytes.len() as u64;
            let mut draws = Draws::keyed(1, seeds, len, 0, 0);
            for _ in 0..damaged {
                let mut bytes = bytes.clone();
                for _ in 0..1 + draws.below(3) {
                    let at = draws.below(len) as usize;
                    bytes[at] = match draws.below(4) {
                        0 => bytes[at] ^ (1 << draws.below(8)),
                        1 => 0xff,
                        2 => 0,
                        _ => draws.below(256) as u8,
                    };
                }
                bytes.truncate(if draws.below(4) == 0 { draws.below(len) } else { len } as usize);
                target(&bytes);
            }
        }
        assert!(seeds > 0, "no corpus");
    }

    #[test]
    fn damaged_path_tables_are_survived() {
        replay("table", 3000, table);
    }

    #[test]
    fn damaged_arrays_are_survived() {
        replay("array", 3000, array);
    }

    #[test]
    fn damaged_jobs_are_survived() {
        replay("job", 1000, job);
    }

    #[test]
    fn damaged_images_are_survived() {
        replay("image", 300, image);
    }
}
