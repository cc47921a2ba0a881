//! Arrays as a dataset: what torch's `TensorDataset` is.

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::{
    Dataset, Fingerprint, Location, Recipe, RecipeError, Sample, SampleError, SampleWriter,
};
use crate::field::Field;
use crate::shared::array::SharedArray;

/// The name under which worker processes know an [`ArrayDataset`].
pub(crate) const RECIPE: &str = "loader_core::ArrayDataset";

/// Bytes that are hashed at a time, by one of several threads.
const HASHED: usize = 16 << 20;

/// Arrays of equally many rows: sample `i` is row `i` of each, a field under its name.
///
/// What PyTorch calls `TensorDataset`. Worker processes get the arrays by descriptor, so all read the
/// same memory. A clone shares it too.
///
/// ```
/// # use loader_core::{ArrayDataset, DataLoader, SharedArray};
/// let x = SharedArray::from_slice([4, 2], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])?;
/// let y = SharedArray::from_slice([4], &[0i64, 1, 0, 1])?;
/// let loader = DataLoader::builder(ArrayDataset::new([("x", x), ("y", y)])?).batch_size(2).build()?;
/// let batch = loader.epoch(0)?.next().unwrap()?;
/// assert_eq!(batch.get::<f32>("x")?, [0.0, 1.0, 2.0, 3.0]);
/// assert_eq!(batch.get::<i64>("y")?, [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The fingerprint is that of the content, names and types: the same values are the same dataset,
/// whichever file they came from. It is made when it is first asked for, at several gigabytes a second.
#[derive(Clone, Debug)]
pub struct ArrayDataset {
    arrays: Vec<(Field, SharedArray)>,
    len: usize,
    fingerprint: Arc<OnceLock<Fingerprint>>,
}

/// Why arrays are no dataset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayDatasetError {
    /// There is none.
    #[error("a dataset needs an array at least")]
    NoArrays,
    /// One has no rows, since it has no dimension.
    #[error("the array {name:?} is a scalar, which has no rows")]
    Scalar {
        /// Its name.
        name: String,
    },
    /// They are of different lengths.
    #[error("the array {name:?} has {rows} rows, {first:?} has {expected}")]
    Rows {
        /// The one that differs from the first.
        name: String,
        /// Its rows.
        rows: usize,
        /// The name of the first.
        first: String,
        /// The rows of the first.
        expected: usize,
    },
}

impl ArrayDataset {
    /// A dataset of these arrays, by the names of their fields.
    ///
    /// # Errors
    /// Where there is none, or their first dimensions differ.
    pub fn new<N: Into<String>>(
        arrays: impl IntoIterator<Item = (N, SharedArray)>,
    ) -> Result<Self, ArrayDatasetError> {
        let mut found: Vec<(Field, SharedArray)> = Vec::new();
        let mut len = 0;
        for (name, array) in arrays {
            let name = name.into();
            let Some((&rows, shape)) = array.shape().split_first() else {
                return Err(ArrayDatasetError::Scalar { name });
            };
            match found.first() {
                Some((first, _)) if rows != len => {
                    let first = first.name.clone();
                    return Err(ArrayDatasetError::Rows { name, rows, first, expected: len });
                }
                _ => len = rows,
            }
            found.push((Field::new(name, array.dtype(), shape), array));
        }
        if found.is_empty() {
            return Err(ArrayDatasetError::NoArrays);
        }
        Ok(Self { arrays: found, len, fingerprint: Arc::default() })
    }

    /// The arrays, in the order in which they were given.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &SharedArray)> {
        self.arrays.iter().map(|(field, array)| (&*field.name, array))
    }

    /// The dataset again, in another process.
    pub(crate) fn attach(mut recipe: Recipe) -> Result<Self, String> {
        let names: Vec<String> = recipe.spec().map_err(|e| e.to_string())?;
        let arrays = names.into_iter().enumerate().map(|(n, name)| {
            let file = recipe.take_file(n).map_err(|e| e.to_string())?;
            Ok((name, SharedArray::of_descriptor(file)?))
        });
        Self::new(arrays.collect::<Result<Vec<_>, String>>()?).map_err(|e| e.to_string())
    }
}

/// The hash of the hashes of parts, so that all processors take part.
fn content(bytes: &[u8]) -> Fingerprint {
    let parts: Vec<Fingerprint> = bytes.par_chunks(HASHED).map(Fingerprint::of).collect();
    parts.into_iter().fold(Fingerprint::of(b""), Fingerprint::and)
}

impl Dataset for ArrayDataset {
    type Scratch = ();

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn fields(&self) -> Vec<Field> {
        self.arrays.iter().map(|(field, _)| field.clone()).collect()
    }

    fn load(
        &self,
        sample: &Sample,
        (): &mut (),
        out: &mut SampleWriter<'_>,
    ) -> Result<(), SampleError> {
        // The loader asks for no index beyond the length.
        let row = sample.index as usize;
        for (n, (_, array)) in self.arrays.iter().enumerate() {
            let out = out.bytes(n)?;
            let width = out.len();
            out.copy_from_slice(&array.bytes()[row * width..][..width]);
            crate::stats::clock::count_read(width as u64);
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        *self.fingerprint.get_or_init(|| {
            self.arrays.iter().fold(Fingerprint::of(RECIPE.as_bytes()), |all, (field, array)| {
                // A field is text and numbers, which JSON takes.
                let field = serde_json::to_vec(field).unwrap_or_default();
                all.and(Fingerprint::of(&field)).and(content(array.bytes()))
            })
        })
    }

    fn recipe(&self) -> Result<Recipe, RecipeError> {
        let names: Vec<_> = self.arrays.iter().map(|(field, _)| &field.name).collect();
        let recipe = Recipe::new(RECIPE, &names)?;
        self.arrays.iter().try_fold(recipe, |recipe, (_, array)| recipe.file(array.shared()))
    }

    fn locate(&self, _: u64) -> Location {
        let path = self.arrays.iter().find_map(|(_, array)| array.path());
        Location { path: path.map(ToOwned::to_owned), class: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[usize]) -> SharedArray {
        let values: Vec<u16> = (0..shape.iter().product::<usize>() as u16).collect();
        SharedArray::from_slice(shape, &values).unwrap()
    }

    #[test]
    fn arrays_that_do_not_fit_together_are_refused_by_name() {
        let none = ArrayDataset::new::<&str>([]).unwrap_err();
        assert_eq!(none, ArrayDatasetError::NoArrays);
        let scalar = ArrayDataset::new([("x", array(&[]))]).unwrap_err();
        assert_eq!(scalar, ArrayDatasetError::Scalar { name: "x".into() });
        let error = ArrayDataset::new([("x", array(&[3, 2])), ("y", array(&[4]))]).unwrap_err();
        assert_eq!(error.to_string(), "the array \"y\" has 4 rows, \"x\" has 3");
        let error = ArrayDataset::new([("x", array(&[0])), ("y", array(&[4]))]).unwrap_err();
        assert!(matches!(error, ArrayDatasetError::Rows { expected: 0, .. }));
    }

    #[test]
    fn a_dataset_attached_from_its_recipe_is_the_same() {
        let dataset = ArrayDataset::new([("x", array(&[3, 2])), ("y", array(&[3]))]).unwrap();
        let recipe = dataset.recipe().unwrap();
        let again = ArrayDataset::attach(recipe).unwrap();
        assert_eq!(again.fields(), dataset.fields());
        assert_eq!(again.fingerprint(), dataset.fingerprint());
    }

    #[test]
    fn the_fingerprint_tells_content_names_and_shapes_apart() {
        let of = |name: &str, array: SharedArray| {
            ArrayDataset::new([(name, array)]).unwrap().fingerprint()
        };
        let first = of("x", array(&[4, 2]));
        assert_eq!(first, of("x", array(&[4, 2])));
        let others = [
            of("y", array(&[4, 2])),
            of("x", array(&[2, 4])),
            of("x", array(&[8])),
            of("x", SharedArray::from_slice([4, 2], &[0u16; 8]).unwrap()),
            of("x", SharedArray::from_slice([4, 2], &[0i16, 1, 2, 3, 4, 5, 6, 7]).unwrap()),
        ];
        assert!(others.iter().all(|other| *other != first));
    }
}
