//! Data that takes no time to make, for benches of what comes after it.

use loader_core::{DType, Dataset, Field, Fingerprint, Sample, SampleError, SampleWriter};

/// `[3, side, side]` images of zeros and a label: the loader has them ready at once.
pub struct Zeros {
    /// Height and width of an image.
    pub side: usize,
}

impl Dataset for Zeros {
    type Scratch = ();

    fn len(&self) -> u64 {
        1 << 40
    }

    fn fields(&self) -> Vec<Field> {
        let shape = [3, self.side, self.side];
        vec![Field::new("image", DType::F32, shape), Field::new("label", DType::I64, [])]
    }

    fn load(&self, _: &Sample, _: &mut (), out: &mut SampleWriter<'_>) -> Result<(), SampleError> {
        out.field::<f32>(0)?.fill(0.0);
        out.field::<i64>(1)?.fill(0);
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(b"zeros")
    }
}
