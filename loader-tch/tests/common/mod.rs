//! A dataset whose samples tell which they are.

use loader_core::{
    DType, DataLoader, Dataset, Field, Fingerprint, Sample, SampleError, SampleWriter, Stage,
    Workers,
};

pub(crate) const SIDE: usize = 6;
pub(crate) const BATCH: usize = 8;

/// Sample `i`: an image full of `i`, and the label `i`. Sample `broken` can't be made.
pub(crate) struct Numbers {
    pub(crate) samples: u64,
    pub(crate) broken: Option<u64>,
}

impl Dataset for Numbers {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.samples
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::new("image", DType::F32, [SIDE, SIDE]), Field::new("label", DType::I64, [])]
    }

    fn load(
        &self,
        sample: &Sample,
        _: &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        if self.broken == Some(sample.index) {
            return Err(SampleError::new(Stage::Read, "broken on purpose"));
        }
        out.field::<f32>(0)?.fill(sample.index as f32);
        out.field::<i64>(1)?.fill(sample.index as i64);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"numbers")
    }
}

pub(crate) fn loader_of(dataset: Numbers) -> DataLoader<Numbers> {
    DataLoader::builder(dataset)
        .batch_size(BATCH)
        .shuffle(42)
        .workers(Workers::threads(2))
        .build()
        .unwrap()
}
