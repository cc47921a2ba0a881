//! Reads baseline scans in libjpeg's place, which spends most of its time on that.
//!
//! Coefficients are looked up with their values, and where a unit is not looked at, above the wanted rows
//! or beside the wanted columns, its coefficients are stepped over. What is found is what libjpeg would
//! find. That holds for whole files; where anything is odd, a unit is refused, and libjpeg reads the file
//! from its start in its own way.

use crate::image::jpeg::huffman::{Ac, Bits, Codes, Definition, Scratch};

/// Blocks of a unit at most.
const BLOCKS: usize = 10;

/// `struct lj_block`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    component: u8,
    dc: u8,
    ac: u8,
    dc_only: u8,
}

/// `struct lj_scan`, whose tables are `struct lj_table`: what libjpeg tells of a scan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Description {
    at: u64,
    units: u32,
    first: u32,
    last: u32,
    restart: u32,
    blocks: u32,
    block: [Block; BLOCKS],
    dc: [Definition; 4],
    ac: [Definition; 4],
}

impl Default for Description {
    fn default() -> Self {
        Self {
            at: 0,
            units: 0,
            first: 0,
            last: 0,
            restart: 0,
            blocks: 0,
            block: [Block::default(); BLOCKS],
            dc: [Definition::EMPTY; 4],
            ac: [Definition::EMPTY; 4],
        }
    }
}

/// A block of a unit and its tables.
#[derive(Clone, Copy, Debug)]
struct Reading<'a> {
    component: usize,
    dc: &'a Codes,
    ac: &'a Ac,
    dc_only: bool,
}

/// A scan that is being read.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    bits: Bits<'a>,
    readings: [Option<Reading<'a>>; BLOCKS],
    blocks: usize,
    /// The last first coefficient of each component.
    last: [i32; 4],
    units: u32,
    wanted: std::ops::RangeInclusive<u32>,
    /// The next unit's place in its row.
    column: u32,
    restart: u32,
    /// Units up to the next restart marker, and its number.
    to_go: u32,
    marker: u8,
}

impl<'a> Scan<'a> {
    /// `None` where it is not of a kind that is read here.
    pub(super) fn of(
        bytes: &'a [u8],
        scan: &Description,
        scratch: &'a mut Scratch,
    ) -> Option<Self> {
        let blocks = scan.block.get(..scan.blocks as usize)?;
        let (tables, chunk) = scratch.parts();
        for block in blocks {
            let (dc, ac) = (usize::from(block.dc), usize::from(block.ac));
            tables.define_dc(dc, scan.dc.get(dc)?)?;
            tables.define_ac(ac, scan.ac.get(ac)?)?;
        }
        let tables = &*tables;
        let mut readings = [None; BLOCKS];
        for (reading, block) in readings.iter_mut().zip(blocks) {
            *reading = Some(Reading {
                component: block.component.into(),
                dc: tables.dc(block.dc.into())?,
                ac: tables.ac(block.ac.into())?,
                dc_only: block.dc_only != 0,
            });
        }
        Some(Self {
            bits: Bits::of(bytes, usize::try_from(scan.at).ok()?, chunk),
            readings,
            blocks: blocks.len(),
            last: [0; 4],
            units: scan.units,
            wanted: scan.first..=scan.last,
            column: 0,
            restart: scan.restart,
            to_go: scan.restart,
            marker: 0,
        })
    }

    /// Blocks of a unit.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Reads the next unit into the blocks of zeros that `block` gives by number, or steps over it.
    /// `None` where anything is odd; then it is not to be called again.
    #[inline(always)]
    pub(super) fn unit<'b>(
        &mut self,
        block: Option<impl FnMut(usize) -> &'b mut [i16; 64]>,
    ) -> Option<()> {
        if self.restart != 0 {
            if self.to_go == 0 {
                self.bits.restart(self.marker)?;
                self.marker = (self.marker + 1) % 8;
                self.last = [0; 4];
                self.to_go = self.restart;
            }
            self.to_go -= 1;
        }
        self.bits.start_unit();
        let seen = self.wanted.contains(&self.column);
        self.column = if self.column + 1 == self.units { 0 } else { self.column + 1 };
        let mut block = block.filter(|_| seen);
        for (i, reading) in self.readings.iter().flatten().enumerate() {
            let (size, difference) = self.bits.symbol(reading.dc)?;
            (size < 16).then_some(())?;
            let last = self.last.get_mut(reading.component)?;
            *last = last.wrapping_add(difference);
            let ac = reading.ac;
            match &mut block {
                Some(block) => {
                    let block = block(i);
                    block[0] = *last as i16;
                    if reading.dc_only {
                        self.bits.skip(ac, 1)?;
                    } else {
                        self.bits.coefficients(ac, block)?;
                    }
                }
                None => self.bits.skip(ac, 1)?,
            }
        }
        self.bits.enough().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::image::decode::scaled;
    use crate::image::jpeg::stored_files;
    use crate::image::jpeg::turbo::ffi::{Decoder, Rows};

    /// What of a file is decoded, in shares of its size.
    #[derive(Clone, Copy, Debug)]
    struct Part {
        scale: u32,
        x: f64,
        y: f64,
        w: f64,
        h: f64,
    }

    const WHOLE: Part = Part { scale: 8, x: 0.0, y: 0.0, w: 1.0, h: 1.0 };

    /// The pixels of a part of a file, and whether its scan was refused.
    fn decode(bytes: &[u8], part: Part, plainly: bool) -> Result<(Vec<u8>, bool), String> {
        let mut decoder = Decoder::new()?;
        let mut opened = decoder.open(bytes, 1 << 26)?;
        let header = *opened.header();
        let channels = if header.components == 4 { 4 } else { 3 };
        let share = |side: u32, share: f64| (f64::from(side) * share) as u32;
        let (w, h) = (scaled(header.width, part.scale), scaled(header.height, part.scale));
        let (x, y) = (share(w, part.x), share(h, part.y));
        let columns = (part.w < 1.0).then(|| (x, share(w - x, part.w).max(1)));
        let rows = share(h - y, part.h).max(1);
        if u64::from(w) * u64::from(rows) > 1 << 20 {
            return Err("it claims to be huge".into());
        }
        let mut refused = false;
        loop {
            let started = opened.start(part.scale, channels, columns)?;
            let mut out = vec![0; (started.width * rows * channels) as usize];
            match started.rows(y, rows, &mut out, plainly || refused)? {
                Rows::Made => return Ok((out, refused)),
                Rows::Again(again) => (opened, refused) = (again, true),
            }
        }
    }

    fn files() -> Vec<(String, Vec<u8>)> {
        let mut files = stored_files();
        files.retain(|(name, _)| name != "lossless");
        files
    }

    #[test]
    fn whole_files_are_what_libjpeg_reads_and_none_is_refused() {
        let mut read = 0;
        for (name, bytes) in files() {
            for scale in [8, 4, 2, 1] {
                let part = Part { scale, ..WHOLE };
                let Ok((expected, _)) = decode(&bytes, part, true) else { continue };
                let (got, refused) = decode(&bytes, part, false).unwrap();
                assert!(got == expected, "{name} at {scale}/8");
                // These are damaged, or odd.
                let odd = ["bad_"];
                assert!(!refused || odd.iter().any(|odd| name.contains(odd)), "{name}");
                read += usize::from(!refused);
            }
        }
        assert!(read > 200, "{read}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6_000))]

        /// Among them are wrong markers, lost ends, and codes that lead beyond a block.
        #[test]
        fn any_part_of_any_file_is_what_libjpeg_reads_damaged_or_not(
            file in any::<prop::sample::Index>(),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..4),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
            scale in prop::sample::select(vec![1, 2, 4, 8]),
            x in 0.0..1.0, y in 0.0..1.0, w in 0.0..1.2, h in 0.0..1.2,
        ) {
            thread_local! {
                static FILES: Vec<(String, Vec<u8>)> = files();
            }
            let (name, mut bytes) = FILES.with(|files| file.get(files).clone());
            for (at, bit) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                bytes.truncate(1 + cut.index(bytes.len()));
                bytes.extend([0xff, 0xd9]);
            }
            let part = Part { scale, x, y, w: f64::min(w, 1.0), h: f64::min(h, 1.0) };
            let pixels = |plainly| decode(&bytes, part, plainly).map(|(pixels, _)| pixels);
            prop_assert!(pixels(false) == pixels(true), "{}", name);
        }
    }
}
