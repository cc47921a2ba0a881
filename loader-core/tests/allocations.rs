//! A worker that has seen its largest image allocates nothing more for one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use loader_core::ops::RandomCrop;
use loader_core::{ImageScratch, Sample, Transform};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System` as it came; the counter is a constant-initialised thread-local
// without a destructor, so that counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer is from `System`, as all are.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the pointer is from `System`, as all are.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations in one more round over the files, after three.
#[allow(clippy::unwrap_used)] // a helper of tests
fn steady(transform: &Transform, files: &[&str]) -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow/jpegs");
    let files: Vec<_> =
        files.iter().map(|name| fs::read(folder.join(format!("{name}.jpg"))).unwrap()).collect();
    let pipeline = transform.compile().unwrap();
    let (dtype, shape) = pipeline.field();
    let mut out = vec![0f32; shape.iter().product()];
    let out: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
    let out = &mut out[..shape.iter().product::<usize>() * dtype.size()];
    let mut scratch = ImageScratch::default();
    for _ in 0..4 {
        COUNT.set(0);
        for (index, file) in (0..).zip(&files) {
            // The same draws each time, since a larger crop may need a larger buffer.
            let sample = Sample { index, epoch: 0, seed: 1, occurrence: 0 };
            pipeline.run(file, &sample, &mut scratch, out).unwrap();
        }
    }
    COUNT.get()
}

/// Everything but an antialiased resize, whose filter weights are new for each size of a crop.
#[cfg(feature = "libjpeg-turbo")]
#[test]
fn an_image_is_decoded_changed_and_written_without_an_allocation() {
    use loader_core::ops::{Interpolation, RandomErasing, Resize};
    use loader_core::{DType, Layout as Order};

    let files = [
        "texture_420",
        "texture_444_progressive",
        "smooth_422",
        "gray",
        "cmyk",
        "restart_blocks",
        "rgb_adobe",
        "texture_420_progressive",
    ];
    for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
        for order in [Order::Nchw, Order::Nhwc] {
            let pixels = Transform::new()
                .then(RandomCrop::new(40).padding(3).pad_if_needed(true))
                .random_horizontal_flip(0.5)
                .color_jitter(0.4, 0.4, 0.4, 0.1)
                .then(Resize::new((32, 32)).interpolation(Interpolation::Nearest))
                .to(dtype, order);
            assert_eq!(steady(&pixels.random_erasing(0.5), &files), 0, "{dtype:?} {order:?}");
        }
    }
    let normalised = Transform::new().center_crop(40).to(DType::F32, Order::Nchw);
    let normalised = normalised.normalize([0.5], [0.25]).then(RandomErasing::new(0.5));
    assert_eq!(steady(&normalised, &files), 0);
}

/// The weights are some hundred small allocations, however large the image is.
#[test]
fn what_a_resize_allocates_depends_on_its_result_alone() {
    let count = |files: &[&str]| {
        let plain = Transform::new().then(RandomCrop::new((40, 40)));
        let resized = plain.clone().resize((32, 32));
        steady(&resized, files) - steady(&plain.resize((40, 40)), files)
    };
    assert_eq!(count(&["texture_444"]), count(&["smooth_444"]));
    assert!(count(&["texture_444"]) < 10 + 2 * (32 + 1));
}
