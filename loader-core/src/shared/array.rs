//! One array for all processes. Whatever it came from, its memory is a .npy file: one on disk, a sealed
//! one in memory, or a segment with a name. So it describes itself to whoever gets its descriptor.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::npy::{Header, NpyError};
use super::parcel;
use crate::field::{DType, Element};
use crate::shm::{MemoryError, SharedBytes};

/// The name under which the system shows arrays in memory.
const MEMORY: &str = "loader-array";

/// An n-dimensional array that many processes read and nobody copies: C order, one element type,
/// read-only. A clone is another owner of the same memory.
///
/// | made by | memory | another process gets it |
/// |---|---|---|
/// | [`open`](Self::open) | the .npy file, mapped where it lies | by path |
/// | [`from_slice`](Self::from_slice), [`build`](Self::build) | a file in memory, sealed | as a task's argument or result |
/// | [`builder`](Self::builder) with [`shareable`](ArrayBuilder::shareable) | a segment in `/dev/shm` | by name |
///
/// In arguments and results of a [`ProcessPool`](crate::ProcessPool) any array travels as a descriptor,
/// whatever its size. Written by another serializer it becomes a [handle](ArrayHandle): some hundred
/// bytes by which a process of the same user on the same machine opens it.
///
/// ```
/// # use loader_core::SharedArray;
/// let squares = SharedArray::build([3, 2], |values: &mut [f32]| {
///     (0..).zip(values).for_each(|(i, value)| *value = (i * i) as f32);
/// })?;
/// assert_eq!(squares.shape(), [3, 2]);
/// assert_eq!(squares.row::<f32>(1)?, [4.0, 9.0]);
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("squares.npy");
/// squares.write_npy(&path)?;                     // np.load reads it
/// let mapped = SharedArray::open(&path)?;        // nothing is read before it is used
/// assert_eq!(mapped.as_slice::<f32>()?, squares.as_slice::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Trust
/// A file that is open must keep its length and content: who replaces it writes aside and renames, as
/// [`write_npy`](Self::write_npy) does. Where somebody cuts a mapped file short, the system ends whoever
/// reads what is gone with SIGBUS.
#[derive(Clone, Debug)]
pub struct SharedArray {
    bytes: SharedBytes,
    header: Header,
    origin: Origin,
}

/// By what another process finds the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Origin {
    /// Nothing but its descriptor.
    Memory,
    Segment(String),
    File(FileState),
}

/// A file as it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    path: OsString,
    size: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
}

/// By which another process opens a [`SharedArray`]: path, size and time of its file, or the name of its
/// segment. In every format of serde.
///
/// It keeps nothing alive: where the file was replaced, or the segment went with its last owner in the
/// process that made it, [`open`](Self::open) says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayHandle(Origin);

/// Why an array can't be had, or not as asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The file can't be opened, mapped or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no array that can be used where it lies.
    #[error("{name}: {source}")]
    Npy {
        /// The file or segment.
        name: String,
        /// What is wrong with it.
        source: NpyError,
    },
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The elements are of another type.
    #[error("the array holds {found:?}, not {asked:?}")]
    DType {
        /// What it holds.
        found: DType,
        /// What was asked for.
        asked: DType,
    },
    /// A shape for another number of elements, or for more than memory can hold.
    #[error("a shape {shape:?} does not hold {elements} elements")]
    Shape {
        /// The shape given.
        shape: Vec<usize>,
        /// The elements given.
        elements: usize,
    },
    /// A shape of more bytes than there are addresses, or of more than 64 dimensions.
    #[error(
        "an array of shape {shape:?} is more than memory can hold, or has more than 64 dimensions"
    )]
    TooLarge {
        /// The shape given.
        shape: Vec<usize>,
    },
    /// There are no such rows.
    #[error("rows {start}..{end} of an array with {rows}")]
    Rows {
        /// The first row asked for.
        start: usize,
        /// The one after the last.
        end: usize,
        /// Rows that there are.
        rows: usize,
    },
    /// The array has no name by which another process finds it.
    #[error(
        "an array in memory has no name: build it with SharedArray::builder(shape).shareable(true), or \
         pass it as an argument of a ProcessPool's task"
    )]
    NotShareable,
    /// A handle's file or segment is gone.
    #[error(
        "{name} is gone: who made the array has to keep it (a segment goes with its last owner there)"
    )]
    Gone {
        /// The file or segment.
        name: String,
    },
    /// A handle's file is another one by now.
    #[error("{} was changed since the array was opened: send a new handle", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

/// Makes an array; from [`SharedArray::builder`].
#[derive(Clone, Debug)]
pub struct ArrayBuilder {
    shape: Vec<usize>,
    shareable: bool,
}

impl ArrayBuilder {
    /// Puts the array into POSIX shared memory with a name, so that processes that are no workers of this
    /// program open it by its [handle](SharedArray::handle). Takes room in `/dev/shm`. Default: false.
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = shareable;
        self
    }

    /// An array of what `fill` writes into zeros, in C order.
    ///
    /// # Errors
    /// [`ArrayError::Memory`] where there is not enough of it, [`ArrayError::TooLarge`].
    pub fn build<T: Element>(self, fill: impl FnOnce(&mut [T])) -> Result<SharedArray, ArrayError> {
        let Some(header) = Header::new(T::DTYPE, &self.shape) else {
            return Err(ArrayError::TooLarge { shape: self.shape });
        };
        let write = |bytes: &mut [u8]| {
            let (head, values) = bytes.split_at_mut(header.at);
            head.copy_from_slice(&header.text());
            // The map begins at a page, and the header's length is a multiple of 64.
            fill(bytemuck::cast_slice_mut(values));
            Ok(())
        };
        let bytes = if self.shareable {
            SharedBytes::named::<MemoryError>(header.len(), write)?
        } else {
            SharedBytes::in_memory::<MemoryError>(MEMORY, header.len(), write)?
        };
        let origin = match bytes.name() {
            Some(name) => Origin::Segment(name.to_owned()),
            None => Origin::Memory,
        };
        Ok(SharedArray { bytes, header, origin })
    }

    /// An array of those values, in C order.
    ///
    /// # Errors
    /// [`ArrayError::Shape`] where they are not as many as the shape has, and those of
    /// [`build`](Self::build).
    pub fn from_slice<T: Element>(self, values: &[T]) -> Result<SharedArray, ArrayError> {
        let count = self.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        if count != Some(values.len()) {
            return Err(ArrayError::Shape { shape: self.shape, elements: values.len() });
        }
        self.build(|all| all.copy_from_slice(values))
    }
}

impl SharedArray {
    /// Maps a .npy file, as `np.save` writes it. Takes microseconds, whatever its size: only the header
    /// is read.
    ///
    /// The elements have to be C-ordered numbers in this machine's byte order: `f2` `f4` `f8`, `i1` to
    /// `i8`, `u1` to `u8`, and `b1`, which is read as [`DType::U8`] of 0 and 1. What lies unaligned in the
    /// file, as some programs write it, is copied into memory once. Bytes behind the elements are passed
    /// over, as NumPy does.
    ///
    /// # Errors
    /// [`ArrayError::Npy`] says what to save instead.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArrayError> {
        Self::open_file(path.as_ref()).map(|(array, _)| array)
    }

    fn open_file(path: &Path) -> Result<(Self, FileState), ArrayError> {
        let io = |source| ArrayError::Io { path: path.to_owned(), source };
        // A pipe without a writer must not hold the caller up; regular files don't care.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(io(io::Error::other("not a regular file")));
        }
        let state = FileState {
            path: std::path::absolute(path).map_err(io)?.into_os_string(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
        };
        let bytes = SharedBytes::of_file(file).map_err(io)?;
        let array = Self::of_bytes(bytes, Origin::File(state.clone()))
            .map_err(|source| ArrayError::Npy { name: path.display().to_string(), source })?;
        Ok((array.aligned()?, state))
    }

    /// An array of those values, in C order, in memory.
    ///
    /// # Errors
    /// [`ArrayError::Shape`] where they are not as many as the shape has; [`ArrayError::Memory`].
    pub fn from_slice<T: Element>(
        shape: impl Into<Vec<usize>>,
        values: &[T],
    ) -> Result<Self, ArrayError> {
        Self::builder(shape).from_slice(values)
    }

    /// An array of what `fill` writes into zeros, in C order, in memory: nothing is copied.
    ///
    /// # Errors
    /// [`ArrayError::Memory`], [`ArrayError::TooLarge`].
    pub fn build<T: Element>(
        shape: impl Into<Vec<usize>>,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Self, ArrayError> {
        Self::builder(shape).build(fill)
    }

    /// Makes an array of that shape with more choice.
    pub fn builder(shape: impl Into<Vec<usize>>) -> ArrayBuilder {
        ArrayBuilder { shape: shape.into(), shareable: false }
    }

    /// The array that those bytes are, which may lie unaligned.
    fn of_bytes(bytes: SharedBytes, origin: Origin) -> Result<Self, NpyError> {
        let header = Header::parse(bytes.bytes())?;
        Ok(Self { bytes, header, origin })
    }

    /// The array in a file that came by its descriptor.
    pub(crate) fn of_descriptor(file: File) -> Result<Self, String> {
        let bytes = SharedBytes::of_file(file).map_err(|e| format!("mapping an array: {e}"))?;
        let array = Self::of_bytes(bytes, Origin::Memory).map_err(|e| format!("an array: {e}"))?;
        array.aligned().map_err(|e| e.to_string())
    }

    /// A copy where elements don't lie at multiples of their size, else the array itself.
    fn aligned(self) -> Result<Self, ArrayError> {
        let Self { header, origin, .. } = &self;
        if header.at.is_multiple_of(header.dtype.size()) {
            return Ok(self);
        }
        let shape = || header.shape.clone();
        let header = Header::new(header.dtype, &header.shape)
            .ok_or_else(|| ArrayError::TooLarge { shape: shape() })?;
        let bytes = SharedBytes::in_memory::<MemoryError>(MEMORY, header.len(), |bytes| {
            let (head, values) = bytes.split_at_mut(header.at);
            head.copy_from_slice(&header.text());
            values.copy_from_slice(self.bytes());
            Ok(())
        })?;
        Ok(Self { bytes, header, origin: origin.clone() })
    }

    /// Its dimensions; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.header.dtype
    }

    /// Elements, all dimensions together.
    pub fn len(&self) -> usize {
        self.header.elements()
    }

    /// True where there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' bytes, in C order and this machine's byte order. They stay at their address while
    /// any clone lives.
    pub fn bytes(&self) -> &[u8] {
        // `Header::parse` has seen that they are there, and the map keeps its length.
        &self.bytes.bytes()[self.header.at..self.header.len()]
    }

    /// All elements, in C order.
    ///
    /// # Errors
    /// [`ArrayError::DType`] where they are not of that type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ArrayError> {
        if self.dtype() != T::DTYPE {
            return Err(ArrayError::DType { found: self.dtype(), asked: T::DTYPE });
        }
        // The map begins at a page, and `aligned` has looked at the header's length.
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements of one entry of the first dimension.
    ///
    /// # Errors
    /// [`ArrayError::Rows`] where there is none, [`ArrayError::DType`].
    pub fn row<T: Element>(&self, row: usize) -> Result<&[T], ArrayError> {
        self.rows(row..row.saturating_add(1))
    }

    /// The elements of several entries of the first dimension.
    ///
    /// # Errors
    /// [`ArrayError::Rows`] where there are no such, [`ArrayError::DType`].
    pub fn rows<T: Element>(&self, rows: Range<usize>) -> Result<&[T], ArrayError> {
        let values = self.as_slice()?;
        let Range { start, end } = rows;
        let count = self.shape().first().copied().unwrap_or(0);
        if start > end || end > count {
            return Err(ArrayError::Rows { start, end, rows: count });
        }
        let width = values.len() / count.max(1);
        Ok(&values[start * width..end * width])
    }

    /// By which another process that is no worker of this program opens the array.
    ///
    /// # Errors
    /// [`ArrayError::NotShareable`] where it is in memory without a name.
    pub fn handle(&self) -> Result<ArrayHandle, ArrayError> {
        match &self.origin {
            Origin::Memory => Err(ArrayError::NotShareable),
            origin => Ok(ArrayHandle(origin.clone())),
        }
    }

    /// The file that it was opened from.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File(state) => Some(Path::new(&state.path)),
            Origin::Memory | Origin::Segment(_) => None,
        }
    }

    /// What travels to another process.
    pub(crate) fn shared(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Writes it as a .npy file, aside and renamed into its place: who has another file of that path open
    /// keeps it. bfloat16 is written under the name that NumPy knows where `ml_dtypes` is imported.
    ///
    /// # Errors
    /// [`ArrayError::Io`]; nothing is left behind then.
    pub fn write_npy(&self, path: impl AsRef<Path>) -> Result<(), ArrayError> {
        let path = path.as_ref();
        let io = |source| ArrayError::Io { path: path.to_owned(), source };
        let (aside, mut file) = create_beside(path).map_err(io)?;
        let mut write = || {
            file.write_all(&self.header.text())?;
            file.write_all(self.bytes())?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        write().map_err(|source| {
            // The write's error is the one to report.
            drop(fs::remove_file(&aside));
            io(source)
        })
    }
}

/// A new file in the folder of another, which it is to become.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut aside = path.as_os_str().to_owned();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        aside.push(format!(".{}-{number}.aside", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&aside) {
            // Left by a process of the same number that was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return Ok((aside.into(), created?)),
        }
    }
}

impl ArrayHandle {
    /// Opens the array: the same memory, in microseconds.
    ///
    /// # Errors
    /// [`ArrayError::Gone`] and [`ArrayError::Changed`] where it is not there any more.
    pub fn open(&self) -> Result<SharedArray, ArrayError> {
        match &self.0 {
            Origin::Memory => Err(ArrayError::NotShareable),
            Origin::File(state) => match SharedArray::open_file(Path::new(&state.path)) {
                Ok((array, found)) if found == *state => Ok(array),
                Ok(_) => Err(ArrayError::Changed { path: PathBuf::from(&state.path) }),
                Err(ArrayError::Io { path, source })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    Err(ArrayError::Gone { name: path.display().to_string() })
                }
                Err(error) => Err(error),
            },
            Origin::Segment(name) => {
                let bytes =
                    SharedBytes::open_named(name).map_err(|source| match source.kind() {
                        io::ErrorKind::NotFound => ArrayError::Gone { name: name.clone() },
                        _ => ArrayError::Io { path: PathBuf::from(name), source },
                    })?;
                SharedArray::of_bytes(bytes, self.0.clone())
                    .map_err(|source| ArrayError::Npy { name: name.clone(), source })?
                    .aligned()
            }
        }
    }
}

/// An array on its way.
#[derive(Serialize, Deserialize)]
enum Sent {
    /// Among the descriptors of a parcel, under that number; and by what it is found from elsewhere.
    Enclosed(u32, Origin),
    Handle(ArrayHandle),
}

impl Serialize for SharedArray {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let sent = match parcel::enclose(&self.bytes) {
            Some(number) => Sent::Enclosed(number, self.origin.clone()),
            None => Sent::Handle(self.handle().map_err(serde::ser::Error::custom)?),
        };
        sent.serialize(to)
    }
}

impl<'de> Deserialize<'de> for SharedArray {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Sent::deserialize(from)? {
            Sent::Handle(handle) => handle.open().map_err(D::Error::custom),
            Sent::Enclosed(number, origin) => {
                let bytes = parcel::enclosed(number);
                let bytes =
                    bytes.ok_or_else(|| D::Error::custom("the array did not come along"))?;
                let array = Self::of_bytes(bytes, origin).map_err(D::Error::custom)?;
                array.aligned().map_err(D::Error::custom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    /// Values of every bit pattern there is, made of bytes.
    fn round_trip<T: Element>(shape: &[usize], noise: &[u8]) -> Result<(), TestCaseError> {
        let fill = |values: &mut [T]| {
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
            bytes.iter_mut().zip(noise.iter().cycle()).for_each(|(byte, noise)| *byte = *noise);
        };
        let folder = folder();
        let path = folder.path().join("a.npy");
        for shareable in [false, true] {
            let made = SharedArray::builder(shape).shareable(shareable).build::<T>(fill).unwrap();
            made.write_npy(&path).unwrap();
            let opened = SharedArray::open(&path).unwrap();
            prop_assert_eq!(opened.dtype(), T::DTYPE);
            prop_assert_eq!(opened.shape(), shape);
            prop_assert_eq!(opened.bytes(), made.bytes());
            prop_assert_eq!(opened.as_slice::<T>().unwrap().len(), shape.iter().product::<usize>());
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn arrays_of_every_type_and_shape_come_back_from_files(
            shape in vec(0usize..6, 0..5),
            noise in vec(any::<u8>(), 1..40),
        ) {
            round_trip::<u8>(&shape, &noise)?;
            round_trip::<u16>(&shape, &noise)?;
            round_trip::<u32>(&shape, &noise)?;
            round_trip::<u64>(&shape, &noise)?;
            round_trip::<i8>(&shape, &noise)?;
            round_trip::<i16>(&shape, &noise)?;
            round_trip::<i32>(&shape, &noise)?;
            round_trip::<i64>(&shape, &noise)?;
            round_trip::<f16>(&shape, &noise)?;
            round_trip::<bf16>(&shape, &noise)?;
            round_trip::<f32>(&shape, &noise)?;
            round_trip::<f64>(&shape, &noise)?;
        }
    }

    #[test]
    fn rows_are_parts_of_the_first_dimension() {
        let array = SharedArray::from_slice([3, 2, 2], &(0..12).collect::<Vec<i32>>()).unwrap();
        assert_eq!(array.row::<i32>(1).unwrap(), [4, 5, 6, 7]);
        assert_eq!(array.rows::<i32>(1..3).unwrap(), (4..12).collect::<Vec<_>>());
        assert_eq!(array.rows::<i32>(3..3).unwrap(), [0i32; 0]);
        for rows in [2..4, 4..4, Range { start: 2, end: 1 }, usize::MAX..usize::MAX] {
            let error = array.rows::<i32>(rows).unwrap_err();
            assert!(matches!(error, ArrayError::Rows { rows: 3, .. }), "{error}");
        }
        assert!(matches!(array.row::<i32>(usize::MAX), Err(ArrayError::Rows { .. })));
        assert!(matches!(array.row::<u32>(0), Err(ArrayError::DType { .. })));
        let scalar = SharedArray::from_slice([], &[1.5f32]).unwrap();
        assert_eq!((scalar.len(), scalar.as_slice::<f32>().unwrap()), (1, &[1.5][..]));
        assert!(matches!(scalar.row::<f32>(0), Err(ArrayError::Rows { rows: 0, .. })));
        let empty = SharedArray::from_slice([0, 3], &[0f32; 0]).unwrap();
        assert!(empty.is_empty() && empty.row::<f32>(0).is_err());
    }

    #[test]
    fn shapes_that_do_not_fit_are_errors() {
        let error = SharedArray::from_slice([2, 2], &[1u8, 2, 3]).unwrap_err();
        assert!(matches!(error, ArrayError::Shape { elements: 3, .. }), "{error}");
        let error = SharedArray::from_slice([usize::MAX, 2], &[1u8]).unwrap_err();
        assert!(matches!(error, ArrayError::Shape { .. }), "{error}");
        let error = SharedArray::build([1 << 40, 1 << 40], |_: &mut [f64]| unreachable!());
        assert!(matches!(error, Err(ArrayError::TooLarge { .. })));
        let error = SharedArray::build(vec![1; 65], |_: &mut [f64]| unreachable!());
        assert!(matches!(error, Err(ArrayError::TooLarge { .. })));
        let error = SharedArray::build([1 << 50], |_: &mut [u8]| unreachable!());
        assert!(matches!(error, Err(ArrayError::Memory(_))));
    }

    #[test]
    fn a_file_is_mapped_and_not_read() {
        let folder = folder();
        let path = folder.path().join("sparse.npy");
        let header = Header::new(DType::F64, &[1 << 37]).unwrap();
        fs::write(&path, header.text()).unwrap();
        // A terabyte of which nothing is there.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(header.len() as u64).unwrap();
        let array = SharedArray::open(&path).unwrap();
        assert_eq!(array.row::<f64>(1 << 36).unwrap(), [0.0]);
    }

    #[test]
    fn unaligned_elements_are_copied_once_and_longer_files_are_read() {
        let folder = folder();
        let path = folder.path().join("old.npy");
        let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }";
        let len = (literal.len() as u16).to_le_bytes();
        let values = [1.5f64, -2.0].map(f64::to_le_bytes).concat();
        let bytes =
            [b"\x93NUMPY\x01\0", &len[..], literal.as_bytes(), &values, b"and more"].concat();
        assert!(!(10 + literal.len()).is_multiple_of(8));
        fs::write(&path, bytes).unwrap();
        let array = SharedArray::open(&path).unwrap();
        assert_eq!(array.as_slice::<f64>().unwrap(), [1.5, -2.0]);
        let again = array.handle().unwrap().open().unwrap();
        assert_eq!(again.as_slice::<f64>().unwrap(), [1.5, -2.0]);
        array.write_npy(&path).unwrap();
        assert_eq!(SharedArray::open(&path).unwrap().as_slice::<f64>().unwrap(), [1.5, -2.0]);
    }

    #[test]
    fn what_is_no_file_is_an_error_at_once() {
        let folder = folder();
        let pipe = folder.path().join("pipe.npy");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&pipe, folder.path(), Path::new("/nowhere.npy")] {
            let error = SharedArray::open(path).unwrap_err();
            assert!(matches!(error, ArrayError::Io { .. }), "{error}");
        }
        let empty = folder.path().join("empty.npy");
        fs::write(&empty, b"").unwrap();
        let error = SharedArray::open(&empty).unwrap_err();
        assert!(matches!(&error, ArrayError::Npy { source: NpyError::NotNpy, .. }), "{error}");
        assert!(error.to_string().contains("empty.npy"), "{error}");
    }

    #[test]
    fn a_file_that_can_not_be_written_leaves_nothing() {
        let folder = folder();
        let array = SharedArray::from_slice([1], &[1u8]).unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(matches!(array.write_npy(&taken), Err(ArrayError::Io { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_handle_opens_the_same_memory_while_it_is_there() {
        let folder = folder();
        let path = folder.path().join("a.npy");
        SharedArray::from_slice([3], &[1i32, 2, 3]).unwrap().write_npy(&path).unwrap();
        let file = SharedArray::open(&path).unwrap();
        let segment = SharedArray::builder([3]).shareable(true).from_slice(&[1i32, 2, 3]).unwrap();
        for array in [&file, &segment] {
            let json = serde_json::to_string(array).unwrap();
            let compact = postcard::to_allocvec(array).unwrap();
            assert!(json.len() < 1000 && compact.len() < 300);
            for opened in [
                serde_json::from_str::<SharedArray>(&json).unwrap(),
                postcard::from_bytes(&compact).unwrap(),
            ] {
                assert_eq!(opened.shared().id(), array.shared().id());
                assert_eq!(opened.as_slice::<i32>().unwrap(), [1, 2, 3]);
                assert_eq!(opened.handle().unwrap(), array.handle().unwrap());
            }
        }
        let handles = [&file, &segment].map(|array| array.handle().unwrap());
        let json = serde_json::to_string(&file).unwrap();
        SharedArray::from_slice([3], &[4i32, 5, 6]).unwrap().write_npy(&path).unwrap();
        assert!(matches!(handles[0].open(), Err(ArrayError::Changed { .. })));
        let error = serde_json::from_str::<SharedArray>(&json).unwrap_err().to_string();
        assert!(error.contains("send a new handle"), "{error}");
        assert_eq!(file.as_slice::<i32>().unwrap(), [1, 2, 3], "who has it open keeps it");
        fs::remove_file(&path).unwrap();
        drop(segment);
        for handle in handles {
            assert!(matches!(handle.open(), Err(ArrayError::Gone { .. })), "{handle:?}");
        }
    }

    #[test]
    fn an_array_in_memory_travels_in_parcels_only() {
        let array = SharedArray::from_slice([2], &[1u8, 2]).unwrap();
        let error = serde_json::to_string(&array).unwrap_err().to_string();
        assert!(error.contains("shareable(true)"), "{error}");
        assert!(matches!(array.handle(), Err(ArrayError::NotShareable)));
        let parcel = parcel::pack(&(&array, 7)).unwrap();
        assert!(parcel.bytes.len() < 100);
        let fd = std::os::fd::AsFd::as_fd(&parcel.held[0]).try_clone_to_owned().unwrap();
        let (back, _): (SharedArray, u8) = parcel::unpack(&parcel.bytes, vec![fd]).unwrap();
        assert_eq!((back.shared().id(), back.bytes()), (array.shared().id(), &[1, 2][..]));
        let lost = parcel::unpack::<(SharedArray, u8)>(&parcel.bytes, Vec::new()).unwrap_err();
        assert!(lost.to_string().contains("did not come along"), "{lost}");
    }
}
