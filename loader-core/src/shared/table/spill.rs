//! Rows of unknown number on their way into one contiguous slice a column: pieces in a file that has no
//! name, so that memory is bounded, and nothing is left of it whatever happens.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of all buffers together that wait in memory to be written, about.
const WAITING: usize = 64 << 20;
/// Bytes that one buffer writes at once.
const PIECES: std::ops::RangeInclusive<usize> = (16 << 10)..=(1 << 20);

/// The file, shared by all buffers of a table: thousands of columns take one descriptor.
#[derive(Debug)]
pub(super) struct Spill {
    file: File,
    end: u64,
    piece: usize,
}

impl Spill {
    /// For that many buffers. The file has no name any more.
    pub(super) fn new(file: File, buffers: usize) -> Self {
        let piece = (WAITING / buffers.max(1)).clamp(*PIECES.start(), *PIECES.end());
        Self { file, end: 0, piece }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<Piece> {
        self.file.write_all_at(bytes, self.end)?;
        let piece = Piece { at: self.end, len: bytes.len() };
        self.end += bytes.len() as u64;
        Ok(piece)
    }

    /// All is written, and will be read.
    pub(super) fn finish(self) -> Arc<File> {
        Arc::new(self.file)
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    at: u64,
    len: usize,
}

/// One buffer of one column.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pieces: Vec<Piece>,
    waiting: Vec<u8>,
    len: u64,
}

impl Stream {
    /// Bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn push(&mut self, bytes: &[u8], spill: &mut Spill) -> io::Result<()> {
        self.len += bytes.len() as u64;
        if self.waiting.len() + bytes.len() >= spill.piece {
            self.flush(spill)?;
            if bytes.len() >= spill.piece {
                self.pieces.push(spill.append(bytes)?);
                return Ok(());
            }
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self, spill: &mut Spill) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.pieces.push(spill.append(&self.waiting)?);
            self.waiting.clear();
        }
        Ok(())
    }

    /// Gives all bytes, in order, piece by piece, and the place they took in the file back.
    pub(super) fn read(
        &self,
        spill: &File,
        mut use_piece: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut buffer = Vec::new();
        for piece in &self.pieces {
            buffer.resize(piece.len, 0);
            spill.read_exact_at(&mut buffer, piece.at)?;
            // What was read is not needed again. Some file systems can't, which costs room alone.
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fallocate(spill, hole, piece.at, piece.len as u64);
            use_piece(&mut buffer)?;
        }
        buffer.clear();
        buffer.extend_from_slice(&self.waiting);
        use_piece(&mut buffer)
    }

    /// Writes all bytes, in order.
    pub(super) fn copy(&self, spill: &File, out: &mut impl Write) -> io::Result<()> {
        self.read(spill, |piece| out.write_all(piece))
    }
}

/// Bits, one a row.
#[derive(Debug)]
pub(super) struct BitStream {
    whole: Stream,
    rest: BooleanBufferBuilder,
    len: usize,
}

impl Default for BitStream {
    fn default() -> Self {
        Self { whole: Stream::default(), rest: BooleanBufferBuilder::new(0), len: 0 }
    }
}

impl BitStream {
    pub(super) fn push(&mut self, bits: &BooleanBuffer, spill: &mut Spill) -> io::Result<()> {
        self.rest.append_buffer(bits);
        self.len += bits.len();
        self.flush(spill)
    }

    /// The same bit for so many rows.
    pub(super) fn repeat(&mut self, bit: bool, rows: usize, spill: &mut Spill) -> io::Result<()> {
        let mut left = rows;
        while left > 0 {
            let n = left.min(1 << 20);
            self.rest.append_n(n, bit);
            self.len += n;
            self.flush(spill)?;
            left -= n;
        }
        Ok(())
    }

    fn flush(&mut self, spill: &mut Spill) -> io::Result<()> {
        let whole = self.rest.len() / 8;
        self.whole.push(&self.rest.as_slice()[..whole], spill)?;
        let mut rest = BooleanBufferBuilder::new(8);
        (whole * 8..self.rest.len()).for_each(|at| rest.append(self.rest.get_bit(at)));
        self.rest = rest;
        Ok(())
    }

    /// Bytes that they take.
    pub(super) fn bytes(&self) -> u64 {
        self.len.div_ceil(8) as u64
    }

    pub(super) fn copy(&self, spill: &File, out: &mut impl Write) -> io::Result<()> {
        self.whole.copy(spill, out)?;
        out.write_all(self.rest.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_in_order_however_they_are_cut() {
        let mut spill = Spill::new(tempfile::tempfile().unwrap(), 100_000);
        let (mut a, mut b) = (Stream::default(), Stream::default());
        let mut expected = [Vec::new(), Vec::new()];
        for i in 0..300usize {
            let bytes = vec![i as u8; i * 37 % 40_000];
            a.push(&bytes, &mut spill).unwrap();
            b.push(&bytes[..bytes.len() / 3], &mut spill).unwrap();
            expected[0].extend_from_slice(&bytes);
            expected[1].extend_from_slice(&bytes[..bytes.len() / 3]);
        }
        let file = spill.finish();
        for (stream, expected) in [a, b].iter().zip(&expected) {
            let mut out = Vec::new();
            stream.copy(&file, &mut out).unwrap();
            assert!(stream.len() == expected.len() as u64 && out == *expected);
        }
    }

    #[test]
    fn bits_come_back_at_every_alignment() {
        let mut spill = Spill::new(tempfile::tempfile().unwrap(), 1);
        let mut stream = BitStream::default();
        let mut expected = Vec::new();
        for i in 0..200usize {
            let bits: Vec<bool> = (0..i).map(|j| (i * j) % 3 == 1).collect();
            stream
                .push(&BooleanBuffer::from(&bits[..]).slice(i / 3, i - i / 3), &mut spill)
                .unwrap();
            expected.extend_from_slice(&bits[i / 3..]);
            stream.repeat(i % 2 == 0, i % 11, &mut spill).unwrap();
            expected.extend(vec![i % 2 == 0; i % 11]);
        }
        let mut out = Vec::new();
        stream.copy(&spill.finish(), &mut out).unwrap();
        assert_eq!(out.len() as u64, stream.bytes());
        let found: Vec<bool> =
            (0..expected.len()).map(|i| out[i / 8] >> (i % 8) & 1 != 0).collect();
        assert!(found == expected);
    }
}
