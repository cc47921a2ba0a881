//! What a ready batch costs who takes it: counted rather than timed.
//!
//! A program of its own, since it counts what is allocated.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, Sample, SampleError, SampleWriter, Workers,
};

thread_local! {
    /// Blocks and bytes allocated by this thread.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, counting for each thread.
struct Counting;

// SAFETY: everything is passed on to the system's allocator; counting allocates nothing, as the
// thread's counter is a constant without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set((ALLOCATED.get().0 + 1, ALLOCATED.get().1 + layout.size()));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Pixels(usize);

impl Dataset for Pixels {
    type Scratch = ();

    fn len(&self) -> u64 {
        1 << 20
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("image", DType::U8, [self.0]), Field::new("label", DType::I64, [])]
    }

    fn load(&self, s: &Sample, (): &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<u8>(0)?.fill(s.index as u8);
        out.field::<i64>(1)?[0] = s.index as i64;
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(0)
    }
}

/// The most blocks and bytes that taking one batch allocates on the thread which takes it.
fn hand_over(batch_size: usize, pixels: usize) -> (usize, usize) {
    let builder = DataLoader::builder(Pixels(pixels)).batch_size(batch_size).shuffle(1);
    let loader = builder.workers(Workers::threads(2)).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    // The first ones fill the pool's lists.
    epoch.by_ref().take(20).for_each(|batch| drop(batch.unwrap()));
    let costs = (0..100).map(|_| {
        let before = ALLOCATED.get();
        let batch = epoch.next().unwrap().unwrap();
        let after = ALLOCATED.get();
        assert_eq!(batch.len(), batch_size);
        (after.0 - before.0, after.1 - before.1)
    });
    costs.max().unwrap()
}

#[test]
fn taking_a_batch_allocates_a_constant_few_bytes_however_large_it_is() {
    let small = hand_over(1, 16);
    assert!(small.0 <= 2 && small.1 <= 256, "{small:?}");
    assert_eq!(hand_over(512, 16), small, "many samples");
    assert_eq!(hand_over(4, 1 << 20), small, "large samples");
}

#[test]
fn a_field_is_handed_on_without_a_copy_of_its_bytes() {
    let loader = DataLoader::builder(Pixels(1 << 20)).batch_size(4).build().unwrap();
    let mut batch = loader.epoch(0).unwrap().next().unwrap().unwrap();
    let address = batch.get::<u8>("image").unwrap().as_ptr();
    let before = ALLOCATED.get();
    let field = batch.take("image").unwrap();
    let bytes: &[u8] = field.as_ref();
    assert_eq!((bytes.as_ptr(), bytes.len()), (address, 4 << 20));
    assert!(ALLOCATED.get().1 - before.1 <= 64, "its shape");
}
