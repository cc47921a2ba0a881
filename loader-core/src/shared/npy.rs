//! The .npy format, version 1 to 3, by `numpy.lib.format`: a magic string, a version, and a Python
//! literal that tells element type and shape, padded so that the elements behind it are aligned.
//!
//! Reading takes nothing for granted: whatever the bytes are, the answer is a header whose elements are
//! all there, or an error.

use std::fmt::Write as _;

use crate::field::DType;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Magic, version, and the shortest length.
const SHORTEST: usize = 10;
/// What NumPy reads of a header at most, unless told to trust the file.
const MAX_HEADER: usize = 10_000;
/// Dimensions that NumPy's arrays have at most.
const MAX_DIMS: usize = 64;
/// Elements begin at a multiple of this, as in what NumPy writes.
const ALIGN: usize = 64;
const NATIVE: u8 = if cfg!(target_endian = "little") { b'<' } else { b'>' };

/// Why a file is no .npy file that can be used where it lies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// It begins with something else.
    #[error(
        "not a .npy file, which begins with \\x93NUMPY (an .npz file is an archive of several: save \
         each by np.save)"
    )]
    NotNpy,
    /// A version of the format that NumPy doesn't know either.
    #[error("version {major}.{minor} of the .npy format; 1.0, 2.0 and 3.0 are known")]
    Version {
        /// Its major number.
        major: u8,
        /// Its minor number.
        minor: u8,
    },
    /// The header can't be read.
    #[error("the .npy header is damaged: {0}")]
    Header(&'static str),
    /// Its columns are contiguous, not its rows.
    #[error("the array is in Fortran order: save np.ascontiguousarray(a) instead of a")]
    FortranOrder,
    /// Its bytes are in the order of other machines.
    #[error(
        "elements {descr:?} are in another byte order than this machine's: save \
         a.astype(a.dtype.newbyteorder('=')) instead of a"
    )]
    ByteOrder {
        /// The element type as NumPy writes it.
        descr: String,
    },
    /// Objects, structures, text, dates or complex numbers.
    #[error(
        "elements {descr} are none of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1: save a.astype(..), or each \
         field of a structure by itself"
    )]
    Elements {
        /// The element type as NumPy writes it.
        descr: String,
    },
    /// There are fewer bytes than the header says.
    #[error("cut short: the header tells of {needed} bytes, {found} are there; save it again")]
    Truncated {
        /// Bytes that the file should have at least.
        needed: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// No machine has that many bytes.
    #[error("the header tells of a shape {shape:?}, which no memory can hold")]
    TooLarge {
        /// The dimensions.
        shape: Vec<usize>,
    },
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Where the elements begin.
    pub(super) at: usize,
}

impl Header {
    /// Reads the header of those bytes, and makes sure that all elements are among them. More may
    /// follow, as NumPy allows: `np.save` may write several arrays to one file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NpyError> {
        let (Some(magic), Some(&[major, minor])) = (bytes.get(..6), bytes.get(6..8)) else {
            return Err(NpyError::NotNpy);
        };
        if magic != MAGIC {
            return Err(NpyError::NotNpy);
        }
        let truncated = |needed: usize| NpyError::Truncated {
            needed: needed as u64,
            found: bytes.len() as u64,
        };
        let (text_at, len) = match (major, minor) {
            (1, 0) => match bytes.get(8..10) {
                Some(&[a, b]) => (10, usize::from(u16::from_le_bytes([a, b]))),
                _ => return Err(truncated(SHORTEST)),
            },
            (2 | 3, 0) => match bytes.get(8..12) {
                Some(&[a, b, c, d]) => (12, u32::from_le_bytes([a, b, c, d]) as usize),
                _ => return Err(truncated(12)),
            },
            _ => return Err(NpyError::Version { major, minor }),
        };
        if len > MAX_HEADER {
            return Err(NpyError::Header("it is longer than the 10,000 bytes that NumPy reads"));
        }
        let at = text_at + len;
        let text = bytes.get(text_at..at).ok_or_else(|| truncated(at))?;
        let (dtype, shape) = described(text)?;
        let header = Self { dtype, shape, at };
        let end = header.end().ok_or_else(|| NpyError::TooLarge { shape: header.shape.clone() })?;
        if end > bytes.len() {
            return Err(truncated(end));
        }
        Ok(header)
    }

    /// A header for that type and shape. `None` where no memory holds it.
    pub(super) fn new(dtype: DType, shape: &[usize]) -> Option<Self> {
        let header = Self { dtype, shape: shape.to_vec(), at: 0 };
        let at = header.text().len();
        let header = Self { at, ..header };
        (shape.len() <= MAX_DIMS && header.end().is_some()).then_some(header)
    }

    /// Elements. No overflow: `parse` and `new` have seen that their bytes can be counted.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where the elements end. `None` where that is beyond every memory.
    fn end(&self) -> Option<usize> {
        // Zeros first, so that they don't hide that the others overflow: strides of such an array do.
        let nonzero = self.shape.iter().filter(|&&d| d > 0);
        let most = nonzero.clone().try_fold(self.dtype.size(), |n, &d| n.checked_mul(d))?;
        let bytes = if nonzero.count() < self.shape.len() { 0 } else { most };
        let end = self.at.checked_add(bytes)?;
        (most <= isize::MAX as usize && end <= isize::MAX as usize).then_some(end)
    }

    /// Bytes of header and elements.
    pub(super) fn len(&self) -> usize {
        self.at + self.elements() * self.dtype.size()
    }

    /// The header as NumPy writes it, version 1.0.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut shape = String::new();
        for (i, dim) in self.shape.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            // Writing to a string can't fail.
            let _ = write!(shape, "{comma}{dim}");
        }
        if self.shape.len() == 1 {
            shape.push(',');
        }
        let descr = descr(self.dtype);
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
        let at = (SHORTEST + text.len() + 1).next_multiple_of(ALIGN);
        let len = (at - SHORTEST) as u16;
        let mut bytes = [MAGIC, &[1, 0], &len.to_le_bytes(), text.as_bytes()].concat();
        bytes.resize(at - 1, b' ');
        bytes.push(b'\n');
        bytes
    }
}

/// NumPy's name of an element type; that of bfloat16 it knows where `ml_dtypes` is imported.
fn descr(dtype: DType) -> String {
    let kind = match dtype {
        DType::BF16 => return "bfloat16".to_owned(),
        DType::F16 | DType::F32 | DType::F64 => 'f',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
    };
    let order = if dtype.size() == 1 { b'|' } else { NATIVE };
    format!("{}{kind}{}", char::from(order), dtype.size())
}

fn dtype(descr: &str) -> Result<DType, NpyError> {
    let (order, code) = match descr.as_bytes().first() {
        Some(&order @ (b'<' | b'>' | b'|' | b'=')) => (order, &descr[1..]),
        _ => (b'=', descr),
    };
    let dtype = match code {
        "bfloat16" if order == b'=' => DType::BF16,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        // NumPy keeps a bool as a byte of 0 or 1.
        "u1" | "b1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        _ => return Err(NpyError::Elements { descr: format!("{descr:?}") }),
    };
    if dtype.size() > 1 && matches!(order, b'<' | b'>') && order != NATIVE {
        return Err(NpyError::ByteOrder { descr: descr.to_owned() });
    }
    Ok(dtype)
}

/// Reads the literal: a dictionary of exactly three keys.
fn described(text: &[u8]) -> Result<(DType, Vec<usize>), NpyError> {
    let mut literal = Literal(text);
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    literal.expect(b'{')?;
    while !literal.take(b'}') {
        let key = literal.string()?;
        literal.expect(b':')?;
        let new = match key {
            "descr" => descr.replace(literal.elements()?).is_none(),
            "fortran_order" => fortran.replace(literal.truth()?).is_none(),
            "shape" => shape.replace(literal.shape()?).is_none(),
            _ => return Err(NpyError::Header("it has a key that is not of the format")),
        };
        if !new {
            return Err(NpyError::Header("it has a key twice"));
        }
        if !literal.take(b',') {
            literal.expect(b'}')?;
            break;
        }
    }
    if !literal.is_at_end() {
        return Err(NpyError::Header("something follows its dictionary"));
    }
    let (Some(dtype), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err(NpyError::Header("it lacks descr, fortran_order or shape"));
    };
    // In an array of one dimension, or of one element a column, both orders are the same.
    let is_both = shape.iter().filter(|&&dim| dim != 1).count() <= 1 || shape.contains(&0);
    if fortran && !is_both {
        return Err(NpyError::FortranOrder);
    }
    Ok((dtype, shape))
}

/// What is left to read of a Python literal.
struct Literal<'a>(&'a [u8]);

impl<'a> Literal<'a> {
    fn skip_space(&mut self) {
        self.0 = self.0.trim_ascii_start();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.0.is_empty()
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, byte: u8) -> Result<(), NpyError> {
        let what = "it is not the dictionary that NumPy writes";
        if self.take(byte) { Ok(()) } else { Err(NpyError::Header(what)) }
    }

    /// A string without escapes, which neither keys nor the types that we read have.
    fn string(&mut self) -> Result<&'a str, NpyError> {
        self.skip_space();
        let no_string = NpyError::Header("a string is missing or not closed");
        let Some((&quote @ (b'\'' | b'"'), rest)) = self.0.split_first() else {
            return Err(no_string);
        };
        let end = rest.iter().position(|&byte| byte == quote).ok_or(no_string)?;
        self.0 = &rest[end + 1..];
        std::str::from_utf8(&rest[..end]).map_err(|_| NpyError::Header("a string is not text"))
    }

    fn elements(&mut self) -> Result<DType, NpyError> {
        self.skip_space();
        match self.0.first() {
            Some(b'[') => Err(NpyError::Elements { descr: "of a structure".to_owned() }),
            Some(b'(') => Err(NpyError::Elements { descr: "of arrays".to_owned() }),
            _ => dtype(self.string()?),
        }
    }

    fn truth(&mut self) -> Result<bool, NpyError> {
        self.skip_space();
        for (word, truth) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(truth);
            }
        }
        Err(NpyError::Header("fortran_order is neither True nor False"))
    }

    /// A tuple of numbers, each with the `L` that Python 2 wrote or without.
    fn shape(&mut self) -> Result<Vec<usize>, NpyError> {
        let no_shape = NpyError::Header("the shape is not a tuple of numbers");
        let mut shape = Vec::new();
        if !self.take(b'(') {
            return Err(no_shape);
        }
        while !self.take(b')') {
            self.skip_space();
            let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (number, rest) = self.0.split_at(digits);
            let number = std::str::from_utf8(number).ok().and_then(|digits| digits.parse().ok());
            shape.push(number.ok_or_else(|| no_shape.clone())?);
            self.0 = rest.strip_prefix(b"L").unwrap_or(rest);
            if shape.len() > MAX_DIMS {
                return Err(NpyError::Header("it has more than 64 dimensions"));
            }
            if !self.take(b',') {
                // `(3)` is a number in parentheses.
                if shape.len() == 1 || !self.take(b')') {
                    return Err(no_shape);
                }
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const DTYPES: [DType; 12] = [
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// A file of version 1.0 with that literal and no elements.
    fn with(literal: &str) -> Vec<u8> {
        let len = (literal.len() as u16).to_le_bytes();
        [MAGIC, &[1, 0], &len, literal.as_bytes()].concat()
    }

    fn error(literal: &str) -> NpyError {
        Header::parse(&with(literal)).unwrap_err()
    }

    #[test]
    fn a_header_is_numpys_to_the_byte() {
        let header = Header::new(DType::F32, &[3, 4]).unwrap();
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
        let expected = [b"\x93NUMPY\x01\0\x76\0", text.as_bytes()].concat();
        assert_eq!(header.text()[..expected.len()], expected);
        assert_eq!((header.text().len(), header.at), (128, 128));
        assert_eq!(header.text().last(), Some(&b'\n'));
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were_written(
            dtype in prop::sample::select(&DTYPES[..]),
            shape in vec(0usize..5, 0..6),
        ) {
            let header = Header::new(dtype, &shape).unwrap();
            let mut bytes = header.text();
            prop_assert!(bytes.len().is_multiple_of(ALIGN));
            bytes.resize(header.len(), 0);
            prop_assert_eq!(Header::parse(&bytes), Ok(header));
            if !bytes.len().is_multiple_of(ALIGN) {
                bytes.pop();
                let cut = Header::parse(&bytes);
                prop_assert!(matches!(cut, Err(NpyError::Truncated { .. })), "{cut:?}");
            }
        }

        #[test]
        fn any_bytes_give_a_header_or_an_error(
            version in 1u8..4,
            literal in "[{}(),:'\"0-9L<>|=fiubA-F \\[\\]]{0,80}",
        ) {
            let mut bytes = with(&literal);
            bytes[6] = version;
            let _ = Header::parse(&bytes);
        }
    }

    #[test]
    fn every_prefix_and_every_changed_byte_gives_a_header_that_fits_or_an_error() {
        let header = Header::new(DType::I64, &[7, 3]).unwrap();
        let mut whole = header.text();
        whole.resize(header.len(), 1);
        for len in 0..whole.len() {
            Header::parse(&whole[..len]).unwrap_err();
        }
        for at in 0..header.at {
            for byte in 0..=255 {
                let mut changed = whole.clone();
                changed[at] = byte;
                if let Ok(found) = Header::parse(&changed) {
                    assert!(found.len() <= whole.len(), "byte {at} as {byte}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn what_can_not_be_used_in_place_is_an_error_of_its_own_kind() {
        let of = |descr: &str, fortran: &str, shape: &str| {
            error(&format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"))
        };
        assert_eq!(of("'<f4'", "True", "(2, 3)"), NpyError::FortranOrder);
        assert!(matches!(of("'>f4'", "False", "(2,)"), NpyError::ByteOrder { .. }));
        for descr in
            ["'|O'", "'<U8'", "'|S3'", "'<c16'", "'<M8[ns]'", "[('a', '<f4')]", "('<f4', (2,))"]
        {
            let error = of(descr, "False", "(2,)");
            assert!(matches!(error, NpyError::Elements { .. }), "{descr}: {error}");
        }
        for shape in ["(4294967296, 4294967296)", "(0, 4294967296, 4294967296, 2)"] {
            let error = of("'<f4'", "False", shape);
            assert!(matches!(error, NpyError::TooLarge { .. }), "{shape}: {error}");
        }
        let error = of("'<f8'", "False", "(1000000000000,)");
        assert!(matches!(error, NpyError::Truncated { needed: 8_000_000_000_000.., .. }));
        for shape in ["(3)", "3", "(-1,)", "(99999999999999999999999,)", "(1 2)", "(,)", "()("] {
            assert!(matches!(of("'<f4'", "False", shape), NpyError::Header(_)), "{shape}");
        }
    }

    #[test]
    fn headers_of_other_writers_are_read() {
        let parsed = |literal: &str| Header::parse(&with(literal)).unwrap();
        let header = parsed("{\"shape\":(0L,3L),\"fortran_order\":True,\"descr\":'i2'}  \n");
        assert_eq!((header.dtype, header.shape), (DType::I16, vec![0, 3]));
        let header = parsed("{'descr':'>u1','fortran_order':False,'shape':(0,),}");
        assert_eq!((header.dtype, header.shape), (DType::U8, vec![0]));
    }

    #[test]
    fn a_header_that_claims_to_be_huge_is_refused() {
        let bytes = [MAGIC, &[2, 0], &u32::MAX.to_le_bytes()].concat();
        assert!(matches!(Header::parse(&bytes), Err(NpyError::Header(_))));
        assert_eq!(Header::parse(b"PK\x03\x04 an archive"), Err(NpyError::NotNpy));
        assert_eq!(Header::parse(b""), Err(NpyError::NotNpy));
        let version = Header::parse(&[MAGIC, &[4, 0, 0, 0]].concat());
        assert_eq!(version, Err(NpyError::Version { major: 4, minor: 0 }));
    }
}
