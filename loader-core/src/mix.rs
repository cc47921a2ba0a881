//! MixUp and CutMix: what mixes the samples of a batch with each other, after it was loaded.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::field::{DType, Element};
use crate::image::Layout;
use crate::loader::{Batch, FieldError};
use crate::rng::Draws;

/// Blends each sample of a batch with the one before it, the first with the last, by a random share
/// (Zhang and others, "mixup: Beyond Empirical Risk Minimization", 2017).
///
/// What torchvision's `v2.MixUp` does, and the same values for the same share. The share comes from
/// [`Batch::draws`], so it is a function of the loader's seed and the batch. The batch should be
/// shuffled, since neighbours are mixed.
///
/// ```no_run
/// # fn train(loader: &loader_core::DataLoader<loader_core::ImageDataset>) -> Result<(), Box<dyn std::error::Error>> {
/// use loader_core::{CutMix, MixUp};
///
/// let (mixup, cutmix) = (MixUp::new(1000).alpha(0.2), CutMix::new(1000));
/// for batch in loader.epoch(0)? {
///     let mut batch = batch?;
///     // One of the two, as v2.RandomChoice does; class probabilities of shape [batch, 1000].
///     let labels: Vec<f32> = match batch.draws(0).chance(0.5) {
///         true => mixup.apply(&mut batch)?,
///         false => cutmix.apply(&mut batch)?,
///     };
///     let images = batch.take("image")?;
///     # drop((labels, images));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixUp {
    alpha: f64,
    num_classes: usize,
    image: String,
    label: String,
}

/// Puts a random box of each sample's predecessor in the batch into the sample, the last one's into
/// the first (Yun and others, "CutMix: Regularization Strategy to Train Strong Classifiers with
/// Localizable Features", 2019).
///
/// What torchvision's `v2.CutMix` does, and the same values for the same box. See [`MixUp`] for how
/// it is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CutMix {
    alpha: f64,
    num_classes: usize,
    image: String,
    label: String,
    layout: Layout,
}

/// Numbers of [`Batch::draws`] that others hardly use.
const MIXUP_DRAWS: u64 = u64::from_le_bytes(*b"MixUp\0\0\0");
const CUTMIX_DRAWS: u64 = u64::from_le_bytes(*b"CutMix\0\0");

const ALPHA: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

impl MixUp {
    /// For labels below `num_classes`, with the fields `image` and `label` and an `alpha` of 1.
    pub fn new(num_classes: usize) -> Self {
        Self { alpha: 1.0, num_classes, image: "image".into(), label: "label".into() }
    }

    /// Sets both parameters of the beta distribution that the share comes from, 1e-6 to 1e6.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets the names of the fields that hold images and labels.
    pub fn fields(mut self, image: impl Into<String>, label: impl Into<String>) -> Self {
        (self.image, self.label) = (image.into(), label.into());
        self
    }

    /// Mixes the batch's images in place, and gives the labels as class probabilities, row-major in
    /// the shape `[batch.len(), num_classes]`. The batch's own labels stay as they are.
    ///
    /// Costs one pass over the images and memory for one of them.
    ///
    /// # Errors
    /// Where alpha is out of range, the images are no floats, a label is no class, or a field can't
    /// be had. The batch is unchanged then.
    pub fn apply(&self, batch: &mut Batch) -> Result<Vec<f32>, MixError> {
        let lambda = beta(&mut batch.draws(MIXUP_DRAWS), self.alpha)?;
        let labels = labels(batch, &self.label, self.num_classes, lambda)?;
        let (field, n) = (self.image.as_str(), batch.len());
        match dtype(batch, field)? {
            DType::F32 => blend::<f32>(batch.get_mut(field)?, n, lambda),
            DType::F16 => blend::<f16>(batch.get_mut(field)?, n, lambda),
            DType::BF16 => blend::<bf16>(batch.get_mut(field)?, n, lambda),
            found => return Err(MixError::NotFloat { field: field.to_owned(), found }),
        }
        Ok(labels)
    }
}

impl CutMix {
    /// For labels below `num_classes`, with the fields `image` (NCHW) and `label` and an `alpha` of
    /// 1.
    pub fn new(num_classes: usize) -> Self {
        let (image, label) = ("image".into(), "label".into());
        Self { alpha: 1.0, num_classes, image, label, layout: Layout::Nchw }
    }

    /// Sets both parameters of the beta distribution that the box's area comes from, 1e-6 to 1e6.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets the names of the fields that hold images and labels.
    pub fn fields(mut self, image: impl Into<String>, label: impl Into<String>) -> Self {
        (self.image, self.label) = (image.into(), label.into());
        self
    }

    /// Sets the layout of the images, which has to be that of the transform.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Mixes the batch's images in place, and gives the labels as class probabilities, row-major in
    /// the shape `[batch.len(), num_classes]`. The batch's own labels stay as they are.
    ///
    /// Costs a copy of the box in every image, and memory for one image.
    ///
    /// # Errors
    /// Where alpha is out of range, the images don't have three dimensions, a label is no class, or
    /// a field can't be had. The batch is unchanged then.
    pub fn apply(&self, batch: &mut Batch) -> Result<Vec<f32>, MixError> {
        let (field, n) = (self.image.as_str(), batch.len());
        let dtype = dtype(batch, field)?;
        let planes = planes(batch, field, self.layout)?;
        let mut draws = batch.draws(CUTMIX_DRAWS);
        let (cut, lambda) = cut(&mut draws, self.alpha, planes.w, planes.h)?;
        let labels = labels(batch, &self.label, self.num_classes, lambda)?;
        match dtype {
            DType::U8 => paste::<u8>(batch.get_mut(field)?, n, planes, cut),
            DType::F16 => paste::<f16>(batch.get_mut(field)?, n, planes, cut),
            DType::BF16 => paste::<bf16>(batch.get_mut(field)?, n, planes, cut),
            DType::F32 => paste::<f32>(batch.get_mut(field)?, n, planes, cut),
            found => return Err(MixError::NotPixels { field: field.to_owned(), found }),
        }
        Ok(labels)
    }
}

/// Why a batch can't be mixed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MixError {
    /// A field can't be had.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The distribution's parameter is out of range.
    #[error("alpha is {alpha}, it can be 1e-6 to 1e6")]
    Alpha {
        /// What it was set to.
        alpha: f64,
    },
    /// Whole numbers can't be blended.
    #[error(
        "field {field:?} holds {found:?}, and only floats can be mixed; write them with \
         `to(DType::F32, layout)`, or use CutMix"
    )]
    NotFloat {
        /// The field.
        field: String,
        /// Its element type.
        found: DType,
    },
    /// No images have such elements.
    #[error("field {field:?} holds {found:?}; images are U8, F16, BF16 or F32")]
    NotPixels {
        /// The field.
        field: String,
        /// Its element type.
        found: DType,
    },
    /// A field has another shape.
    #[error("a sample of field {field:?} has the shape {found:?}, not {expected}")]
    Shape {
        /// The field.
        field: String,
        /// Its shape.
        found: Vec<usize>,
        /// What was expected.
        expected: &'static str,
    },
    /// A label is not below the number of classes.
    #[error(
        "the label of sample {index} is {label}, which is none of {num_classes} classes; count them \
         in `new`"
    )]
    Label {
        /// The sample's index in the dataset.
        index: u64,
        /// Its label.
        label: i64,
        /// The number of classes.
        num_classes: usize,
    },
}

fn shape<'a>(batch: &'a Batch, field: &str) -> &'a [usize] {
    batch.fields().iter().find(|f| f.name == field).map_or(&[], |f| &f.shape)
}

fn dtype(batch: &Batch, field: &str) -> Result<DType, FieldError> {
    batch.fields().iter().find(|f| f.name == field).map(|f| f.dtype).ok_or_else(|| {
        let fields = batch.fields().iter().map(|f| f.name.clone()).collect();
        FieldError::Missing { field: field.to_owned(), fields }
    })
}

/// Class probabilities: `lambda` of the sample's own, the rest of its predecessor's.
fn labels(
    batch: &Batch,
    field: &str,
    num_classes: usize,
    lambda: f64,
) -> Result<Vec<f32>, MixError> {
    let labels = batch.get::<i64>(field)?;
    if labels.len() != batch.len() {
        let found = shape(batch, field).to_vec();
        return Err(MixError::Shape {
            field: field.to_owned(),
            found,
            expected: "that of a scalar",
        });
    }
    let class = |(&label, index)| match usize::try_from(label) {
        Ok(class) if class < num_classes => Ok(class),
        _ => Err(MixError::Label { index, label, num_classes }),
    };
    let classes: Vec<usize> =
        labels.iter().zip(batch.indices()).map(class).collect::<Result<_, _>>()?;
    Ok(probabilities(&classes, num_classes, lambda))
}

fn probabilities(classes: &[usize], num_classes: usize, lambda: f64) -> Vec<f32> {
    let mut out = vec![0.0; classes.len() * num_classes];
    let before = classes.iter().cycle().skip(classes.len().saturating_sub(1));
    for (row, (own, before)) in out.chunks_exact_mut(num_classes).zip(classes.iter().zip(before)) {
        row[*before] += (1.0 - lambda) as f32;
        row[*own] += lambda as f32;
    }
    out
}

/// A float that is multiplied and added as torch does it: in `f32`, each result rounded.
trait Blend: Element {
    fn times(self, factor: f32) -> Self;
    fn plus(self, other: Self) -> Self;
}

impl Blend for f32 {
    fn times(self, factor: f32) -> Self {
        self * factor
    }

    fn plus(self, other: Self) -> Self {
        self + other
    }
}

macro_rules! blend_as_f32 {
    ($($half:ty),*) => {$(
        impl Blend for $half {
            fn times(self, factor: f32) -> Self {
                Self::from_f32(self.to_f32() * factor)
            }

            fn plus(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() + other.to_f32())
            }
        }
    )*};
}
blend_as_f32!(f16, bf16);

/// Calls `f` on each sample and the one before it, the last one before the first.
fn with_predecessors<T: Element>(images: &mut [T], n: usize, mut f: impl FnMut(&mut [T], &[T])) {
    let Some(len) = images.len().checked_div(n).filter(|len| *len > 0) else { return };
    let last = images[(n - 1) * len..].to_vec();
    // From the end, so that a predecessor is still what it was.
    for at in (1..n).rev() {
        let (before, own) = images.split_at_mut(at * len);
        f(&mut own[..len], &before[(at - 1) * len..]);
    }
    f(&mut images[..len], &last);
}

fn blend<T: Blend>(images: &mut [T], n: usize, lambda: f64) {
    let (own_share, share) = (lambda as f32, (1.0 - lambda) as f32);
    with_predecessors(images, n, |own, before| {
        for (own, before) in own.iter_mut().zip(before) {
            *own = before.times(share).plus(own.times(own_share));
        }
    });
}

/// How an image lies in memory: `count` planes of `h` rows of `w` times `step` elements.
#[derive(Clone, Copy, Debug)]
struct Planes {
    count: usize,
    h: usize,
    w: usize,
    step: usize,
}

fn planes(batch: &Batch, field: &str, layout: Layout) -> Result<Planes, MixError> {
    match (shape(batch, field), layout) {
        (&[c, h, w], Layout::Nchw) => Ok(Planes { count: c, h, w, step: 1 }),
        (&[h, w, c], Layout::Nhwc) => Ok(Planes { count: 1, h, w, step: c }),
        _ => {
            let (field, found) = (field.to_owned(), shape(batch, field).to_vec());
            Err(MixError::Shape { field, found, expected: "that of an image" })
        }
    }
}

/// From the first column and row to those after the last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    x: (usize, usize),
    y: (usize, usize),
}

/// The box, and the share of the image that is outside of it.
fn cut(draws: &mut Draws, alpha: f64, w: usize, h: usize) -> Result<(Cut, f64), MixError> {
    let lambda = beta(draws, alpha)?;
    let x = draws.below(w as u64) as usize;
    let y = draws.below(h as u64) as usize;
    let r = 0.5 * (1.0 - lambda).sqrt();
    let around = |at: usize, side: usize| {
        let half = (r * side as f64) as usize;
        (at.saturating_sub(half), (at + half).min(side))
    };
    let cut = Cut { x: around(x, w), y: around(y, h) };
    let area = (cut.x.1 - cut.x.0) * (cut.y.1 - cut.y.0);
    Ok((cut, 1.0 - area as f64 / (w * h) as f64))
}

fn paste<T: Element>(images: &mut [T], n: usize, planes: Planes, cut: Cut) {
    let Planes { count, h, w, step } = planes;
    with_predecessors(images, n, |own, before| {
        for row in (0..count).flat_map(|plane| (cut.y.0..cut.y.1).map(move |y| plane * h + y)) {
            let part = (row * w + cut.x.0) * step..(row * w + cut.x.1) * step;
            own[part.clone()].copy_from_slice(&before[part]);
        }
    });
}

/// A draw from the beta distribution with both parameters `alpha`: one of two gamma draws, as a share
/// of their sum. They are compared by their logarithms, as small ones would be rounded to 0.
fn beta(draws: &mut Draws, alpha: f64) -> Result<f64, MixError> {
    if !ALPHA.contains(&alpha) {
        return Err(MixError::Alpha { alpha });
    }
    let (x, y) = (ln_gamma(draws, alpha), ln_gamma(draws, alpha));
    Ok(1.0 / (1.0 + (y - x).exp()))
}

/// The logarithm of a draw from the gamma distribution of that shape (Marsaglia and Tsang, "A Simple
/// Method for Generating Gamma Variables", 2000).
fn ln_gamma(draws: &mut Draws, shape: f64) -> f64 {
    // 1 - unit() is never 0.
    if shape < 1.0 {
        return ln_gamma(draws, shape + 1.0) + (1.0 - draws.unit()).ln() / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let radius = (-2.0 * (1.0 - draws.unit()).ln()).sqrt();
        let x = radius * (std::f64::consts::TAU * draws.unit()).cos();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - draws.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d.ln() + v.ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::image::pillow_tests::{Summary, hex, samples, stored};

    #[derive(Deserialize)]
    struct Expected {
        images: String,
        labels: String,
    }

    #[derive(Deserialize)]
    struct Case {
        dtype: DType,
        len: usize,
        lambda: f64,
        #[serde(rename = "box")]
        cut: [usize; 4],
        mixup: Expected,
        cutmix: Expected,
    }

    fn parsed<T: bytemuck::Pod>(text: &str) -> Vec<T> {
        bytemuck::pod_collect_to_vec(&hex(text))
    }

    fn check<T: Blend + PartialEq + std::fmt::Debug>(case: &Case, from: fn(f32) -> T) {
        let n = case.len;
        let images: Vec<T> =
            (0..n * 30).map(|i| from(((i * 7919 % 1009) as f32 - 500.0) / 250.0)).collect();
        let classes = &[2, 0, 2, 3][..n];
        let mut mixed = images.clone();
        blend(&mut mixed, n, case.lambda);
        assert_eq!(mixed, parsed::<T>(&case.mixup.images), "{:?}", case.dtype);
        assert_eq!(probabilities(classes, 4, case.lambda), parsed::<f32>(&case.mixup.labels));
        let [x1, y1, x2, y2] = case.cut;
        let cut = Cut { x: (x1, x2), y: (y1, y2) };
        let mut pasted = images.clone();
        paste(&mut pasted, n, Planes { count: 2, h: 3, w: 5, step: 1 }, cut);
        assert_eq!(pasted, parsed::<T>(&case.cutmix.images), "{:?}", case.dtype);
        let lambda = 1.0 - ((x2 - x1) * (y2 - y1)) as f64 / 15.0;
        assert_eq!(probabilities(classes, 4, lambda), parsed::<f32>(&case.cutmix.labels));
        // The same images with the channels last.
        let last = |images: &[T]| -> Vec<T> {
            let at = |i: usize| images[i / 30 * 30 + i % 2 * 15 + i % 30 / 2];
            (0..images.len()).map(at).collect()
        };
        let mut pasted_last = last(&images);
        paste(&mut pasted_last, n, Planes { count: 1, h: 3, w: 5, step: 2 }, cut);
        assert_eq!(pasted_last, last(&pasted));
    }

    #[test]
    fn mixed_batches_are_torchvisions_bit_for_bit() {
        for case in stored::<Vec<Case>>("mixed.json") {
            match case.dtype {
                DType::F32 => check::<f32>(&case, |v| v),
                DType::F16 => check(&case, f16::from_f32),
                DType::BF16 => check(&case, bf16::from_f32),
                other => panic!("{other:?}"),
            }
        }
    }

    #[derive(Deserialize)]
    struct MixUpCase {
        alpha: f64,
        lambda: Summary,
    }

    #[derive(Deserialize)]
    struct CutMixCase {
        alpha: f64,
        size: (usize, usize),
        #[serde(rename = "box")]
        cut: [Summary; 4],
        lambda: Summary,
    }

    #[derive(Deserialize)]
    struct Distributions {
        draws: u64,
        mixup: Vec<MixUpCase>,
        cutmix: Vec<CutMixCase>,
    }

    fn distributions<T: DeserializeOwned>() -> T {
        stored("augment_distributions.json")
    }

    #[test]
    fn shares_and_boxes_are_distributed_as_torchvisions() {
        let stored: Distributions = distributions();
        for case in &stored.mixup {
            let drawn: Vec<f64> = samples(stored.draws)
                .map(|sample| beta(&mut sample.draws(0), case.alpha).unwrap())
                .collect();
            case.lambda.assert_like(&drawn, &format!("MixUp of {}", case.alpha));
        }
        for case in &stored.cutmix {
            let (h, w) = case.size;
            let drawn: Vec<(Cut, f64)> = samples(stored.draws)
                .map(|sample| cut(&mut sample.draws(0), case.alpha, w, h).unwrap())
                .collect();
            let what = format!("CutMix of {}", case.alpha);
            let sides: [fn(&Cut) -> usize; 4] = [|c| c.x.0, |c| c.y.0, |c| c.x.1, |c| c.y.1];
            for (side, expected) in sides.iter().zip(&case.cut) {
                let values: Vec<f64> = drawn.iter().map(|(cut, _)| side(cut) as f64).collect();
                expected.assert_like(&values, &what);
            }
            let shares: Vec<f64> = drawn.iter().map(|(_, lambda)| *lambda).collect();
            case.lambda.assert_like(&shares, &what);
        }
    }

    #[test]
    fn any_alpha_gives_a_share() {
        let mut draws = Draws::keyed(1, 2, 3, 4, 5);
        for alpha in [1e-6, 1e-3, 1.0, 1e6] {
            for _ in 0..1_000 {
                let lambda = beta(&mut draws, alpha).unwrap();
                assert!((0.0..=1.0).contains(&lambda), "{alpha}: {lambda}");
            }
        }
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(beta(&mut draws, alpha), Err(MixError::Alpha { .. })));
        }
    }

    /// A seed means the same mixture after every update.
    #[test]
    fn draws_are_pinned() {
        let mut draws = Draws::keyed(42, 1, 2, 3, 4);
        let drawn = (beta(&mut draws, 0.2).unwrap(), cut(&mut draws, 1.0, 224, 200).unwrap());
        let cut = Cut { x: (93, 224), y: (48, 182) };
        assert_eq!(drawn, (0.923_616_794_490_978_7, (cut, 0.608_169_642_857_142_8)));
    }
}
