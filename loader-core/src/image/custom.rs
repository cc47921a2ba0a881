//! Steps of the program's own. A transform is data and travels to worker processes, so it names
//! them; the functions are in a table of the process, which forked workers inherit.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use crate::dataset::{Sample, SampleError, Stage};
use crate::rng::Draws;

type Change = dyn Fn(&mut Pixels<'_>, &Value, &mut Draws) -> Result<(), String> + Send + Sync;

static REGISTERED: RwLock<BTreeMap<String, Arc<Change>>> = RwLock::new(BTreeMap::new());

/// An image that a step registered with [`register_transform`] changes in place.
#[derive(Debug)]
pub struct Pixels<'a> {
    width: u32,
    height: u32,
    rgb: &'a mut [u8],
}

impl Pixels<'_> {
    /// Columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Red, green and blue of each pixel, row after row without gaps: `width * height * 3` bytes.
    /// After a [`Grayscale`](crate::ops::Grayscale) all three are equal; if that was to one
    /// channel, red is what counts.
    pub fn rgb_mut(&mut self) -> &mut [u8] {
        self.rgb
    }
}

/// Makes `change` known as `name`, for transforms with a [`Custom`](crate::ops::Custom) step of that
/// name.
///
/// The function gets the image as the step before left it, the step's arguments, and draws that
/// belong to the sample and the step. It has to depend on these alone. It is called by many
/// workers at once. An error is that of the sample, and so is a panic.
///
/// To be called before the transform is compiled, and where workers are processes also before
/// [`init`](crate::init): they know what the program had registered then. A name that is there
/// already is replaced, for transforms that are compiled later.
///
/// ```
/// use loader_core::ops::Custom;
/// use loader_core::{Transform, register_transform};
///
/// register_transform("posterise_red", |pixels, args, _draws| {
///     let bits = args["bits"].as_u64().filter(|bits| *bits <= 8).ok_or("bits is not 0 to 8")?;
///     let mask = !((1u16 << (8 - bits)) - 1) as u8;
///     pixels.rgb_mut().iter_mut().step_by(3).for_each(|red| *red &= mask);
///     Ok(())
/// });
/// // loader_core::init()?; for worker processes
/// let step = Custom::new("posterise_red").args(serde_json::json!({ "bits": 3 }));
/// let train = Transform::new().random_resized_crop(224).then(step).random_horizontal_flip(0.5);
/// train.compile()?;
/// # Ok::<(), loader_core::TransformError>(())
/// ```
pub fn register_transform(
    name: impl Into<String>,
    change: impl Fn(&mut Pixels<'_>, &Value, &mut Draws) -> Result<(), String> + Send + Sync + 'static,
) {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    registered.insert(name.into(), Arc::new(change));
}

/// A step whose function was found.
#[derive(Clone)]
pub(super) struct Resolved {
    name: String,
    args: Value,
    change: Arc<Change>,
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("name", &self.name).field("args", &self.args).finish()
    }
}

impl Resolved {
    /// `None` where nothing is registered under the name.
    pub(super) fn find(op: &super::ops::Custom) -> Option<Self> {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        let change = Arc::clone(registered.get(&op.name)?);
        Some(Self { name: op.name.clone(), args: op.args.clone(), change })
    }

    /// Changes the RGB image of that size.
    pub(super) fn run(
        &self,
        (width, height): (u32, u32),
        step: &Custom,
        rgb: &mut [u8],
    ) -> Result<(), SampleError> {
        let mut draws = step.sample.draws(step.draws);
        (self.change)(&mut Pixels { width, height, rgb }, &self.args, &mut draws)
            .map_err(|e| SampleError::new(Stage::Transform, format_args!("{}: {e}", self.name)))
    }
}

/// One run of such a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Custom {
    /// Its index in the pipeline.
    pub(super) index: usize,
    pub(super) sample: Sample,
    /// Its number among the random operations.
    pub(super) draws: u64,
}
