//! Huffman-coded bits of a baseline scan (ITU-T T.81, annex F), two coefficients at a time.
//!
//! A table tells for the next bits of the file which coefficients they hold, values and all. Most are short,
//! so that two fit, and decoding is bound by one such look after the other.

use super::natural_order;

/// Bits that are looked up at once. More would find more in them, and lose that to cache misses.
const LOOK: u32 = 11;
/// Looks that 56 bits are enough for.
const LOOKS: u32 = 56 / LOOK;

/// What is kept from file to file: most have the same tables.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    tables: Tables,
    chunk: Vec<u8>,
}

impl Scratch {
    /// The tables, and what [`Bits`] need.
    pub(super) fn parts(&mut self) -> (&mut Tables, &mut Vec<u8>) {
        (&mut self.tables, &mut self.chunk)
    }
}

/// Tables by the numbers that a file gives them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    dc: [Kept<Codes>; 4],
    ac: [Kept<Ac>; 4],
}

/// A table, and what it was made of, if that could be done.
#[derive(Debug, Default)]
struct Kept<T> {
    definition: Option<Definition>,
    table: T,
}

/// A table as a file has it: the number of codes of each length, and what they stand for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Definition {
    pub(super) counts: [u8; 16],
    pub(super) symbols: [u8; 256],
}

impl Definition {
    pub(super) const EMPTY: Self = Self { counts: [0; 16], symbols: [0; 256] };
}

impl Tables {
    /// Has that table of first coefficients under that number; `None` where it can't be one.
    pub(super) fn define_dc(&mut self, number: usize, table: &Definition) -> Option<()> {
        self.dc.get_mut(number)?.define(table, Codes::set)
    }

    /// The same for tables of the other coefficients.
    pub(super) fn define_ac(&mut self, number: usize, table: &Definition) -> Option<()> {
        self.ac.get_mut(number)?.define(table, Ac::set)
    }

    /// The last that was defined, be it by an earlier file.
    pub(super) fn dc(&self, number: usize) -> Option<&Codes> {
        self.dc.get(number).map(|kept| &kept.table)
    }

    pub(super) fn ac(&self, number: usize) -> Option<&Ac> {
        self.ac.get(number).map(|kept| &kept.table)
    }
}

impl<T> Kept<T> {
    /// In the place of the last one, so that nothing is allocated.
    fn define(
        &mut self,
        definition: &Definition,
        set: impl FnOnce(&mut T, &Definition) -> Option<()>,
    ) -> Option<()> {
        if self.definition.as_ref() != Some(definition) {
            self.definition = None;
            set(&mut self.table, definition)?;
            self.definition = Some(*definition);
        }
        Some(())
    }
}

/// A Huffman table.
#[derive(Debug)]
pub(super) struct Codes {
    /// For the next bits: a code's length in the high half, its symbol in the low one; 0 where the code
    /// is longer.
    short: Box<[u16; 1 << LOOK]>,
    /// By length, the first 16 bits beyond those that begin with a code of that length.
    ends: [u32; 17],
    /// What to add to a code of a length to get its place among the symbols.
    offsets: [i32; 17],
    symbols: [u8; 256],
}

impl Default for Codes {
    fn default() -> Self {
        let short = Box::new([0; 1 << LOOK]);
        Self { short, ends: [0; 17], offsets: [0; 17], symbols: [0; 256] }
    }
}

impl Codes {
    fn set(&mut self, &Definition { ref counts, symbols }: &Definition) -> Option<()> {
        self.short.fill(0);
        self.symbols = symbols;
        let (mut code, mut at) = (0u32, 0usize);
        for (length, &count) in (1..=16u32).zip(counts) {
            code <<= 1;
            self.offsets[length as usize] = at as i32 - code as i32;
            for _ in 0..count {
                let symbol = *symbols.get(at)?;
                if code >= 1 << length {
                    return None;
                }
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let entry = (length as u16) << 8 | u16::from(symbol);
                    self.short[first..first + (1 << (LOOK - length))].fill(entry);
                }
                code += 1;
                at += 1;
            }
            self.ends[length as usize] = code << (16 - length);
        }
        Some(())
    }

    /// Length and symbol of a code that is longer than what is looked up.
    #[cold]
    fn long(&self, window: Window) -> Option<(u32, u8)> {
        let next = (window.buffer >> 48) as u32;
        let length = (LOOK + 1..=16).find(|&length| next < self.ends[length as usize])?;
        let code = (next >> (16 - length)) as i32;
        let symbol = self.symbols.get((code + self.offsets[length as usize]) as usize)?;
        Some((length, *symbol))
    }

    /// The symbol that the bits begin with, and what comes after it.
    #[inline(always)]
    fn next(&self, window: Window) -> Option<(u8, Window)> {
        let entry = self.short[window.look()];
        if entry == 0 {
            let (length, symbol) = self.long(window)?;
            return Some((symbol, window.take(length)));
        }
        Some((entry as u8, window.take(u32::from(entry >> 8))))
    }
}

/// A table of the coefficients but the first of a block.
#[derive(Debug)]
pub(super) struct Ac {
    codes: Codes,
    /// For the next bits, the coefficients that they hold.
    pairs: Box<[Pair; 1 << LOOK]>,
}

/// Two coefficients, or one. A coefficient is a run of zeros and what ends it, which may be the block's end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
struct Pair {
    /// 0 where not even one ends within the bits.
    bits: u8,
    /// Places that the first goes on by.
    first: u8,
    /// Places that both go on by; [`END`] or more at the end of the block.
    both: u8,
    values: [i16; 2],
}

/// Leads beyond a block by more than any run of zeros.
const END: u8 = 128;

impl Default for Ac {
    fn default() -> Self {
        Self { codes: Codes::default(), pairs: Box::new([Pair::default(); 1 << LOOK]) }
    }
}

impl Ac {
    fn set(&mut self, definition: &Definition) -> Option<()> {
        self.codes.set(definition)?;
        let single: [Pair; 1 << LOOK] = std::array::from_fn(|look| self.codes.single(look));
        for (look, pair) in self.pairs.iter_mut().enumerate() {
            *pair = single[look];
            if pair.bits == 0 || pair.both >= END {
                continue;
            }
            let next = single[(look << pair.bits) & ((1 << LOOK) - 1)];
            if next.bits > 0 && u32::from(pair.bits + next.bits) <= LOOK {
                pair.bits += next.bits;
                pair.both += next.both;
                pair.values[1] = next.values[1];
            }
        }
        Some(())
    }

    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    /// Places that a symbol leads on by.
    #[inline(always)]
    fn advance(symbol: u8) -> u8 {
        match (symbol >> 4, symbol & 15) {
            (0..15, 0) => END,
            (run, _) => run + 1,
        }
    }
}

impl Codes {
    /// The one coefficient that bits begin with, as both of a pair: it is written twice.
    fn single(&self, look: usize) -> Pair {
        let entry = self.short[look];
        let (length, symbol) = (u32::from(entry >> 8), entry as u8);
        let size = u32::from(symbol & 15);
        if length == 0 || length + size > LOOK {
            return Pair::default();
        }
        let window = Window { buffer: (look as u64) << (64 - LOOK), count: LOOK };
        let value = window.take(length).value(size) as i16;
        let both = Ac::advance(symbol);
        // The end of a block writes a 0 to the next place.
        let first = if both == END { 1 } else { both };
        Pair { bits: (length + size) as u8, first, both, values: [value; 2] }
    }
}

/// Where a coefficient in zigzag order has its place in a block. Those beyond the last share its place:
/// the end of a block writes its 0 there, where nothing was written yet.
const PLACES: [u8; 256] = {
    let mut places = [63; 256];
    let mut i = 0;
    while i < 64 {
        places[i] = natural_order(i);
        i += 1;
    }
    places
};

/// The next bits, from the highest down; there are `count`. It is apart from where they come from and
/// goes by value, so that it stays in registers.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    buffer: u64,
    count: u32,
}

impl Window {
    #[inline(always)]
    fn look(self) -> usize {
        (self.buffer >> (64 - LOOK)) as usize
    }

    #[inline(always)]
    fn take(self, bits: u32) -> Self {
        Self { buffer: self.buffer << bits, count: self.count.wrapping_sub(bits) }
    }

    /// The value of that many bits: those that begin with a 0 are negative.
    #[inline(always)]
    fn value(self, size: u32) -> i32 {
        // In two shifts, since there is none by 64.
        let value = (self.buffer >> 1 >> (63 - size)) as i32;
        let negative = (!self.buffer as i64 >> 63) as i32;
        value + (negative & (1 - (1 << size)))
    }
}

/// Bytes that are freed of what is stuffed between them at a time.
const CHUNK: usize = 1 << 14;
/// More than the bytes of a unit: 10 blocks of 64 coefficients of 31 bits.
const UNIT: usize = 4 << 10;

/// The bits of a scan between two markers, without what is stuffed between them.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    file: &'a [u8],
    /// The next byte of the file to go into the chunk.
    at: usize,
    /// Bytes of the scan, and after the last of them zeros, a unit's worth.
    chunk: &'a mut Vec<u8>,
    /// The next byte of the chunk.
    next: usize,
    /// Where the scan's bytes end in the chunk, once that is known.
    end: Option<usize>,
    window: Window,
}

impl<'a> Bits<'a> {
    pub(super) fn of(file: &'a [u8], at: usize, chunk: &'a mut Vec<u8>) -> Self {
        chunk.clear();
        Self { file, at, chunk, next: 0, end: None, window: Window::default() }
    }

    /// Makes sure of the bits of a unit, if there are so many. To be called before each.
    #[inline(always)]
    pub(super) fn start_unit(&mut self) {
        if self.end.is_none() && self.next + UNIT > self.chunk.len() {
            self.load();
        }
    }

    #[cold]
    #[inline(never)]
    fn load(&mut self) {
        self.chunk.drain(..self.next);
        self.next = 0;
        while self.chunk.len() < CHUNK {
            let rest = self.file.get(self.at..).unwrap_or_default();
            let rest = &rest[..rest.len().min(CHUNK)];
            let plain = memchr::memchr(0xff, rest).unwrap_or(rest.len());
            self.chunk.extend_from_slice(&rest[..plain]);
            self.at += plain;
            match self.file.get(self.at..) {
                Some([0xff, 0, ..]) => {
                    self.chunk.push(0xff);
                    self.at += 2;
                }
                Some([byte, ..]) if *byte != 0xff => {}
                // A marker, or the end of the file.
                _ => {
                    self.end = Some(self.chunk.len());
                    self.chunk.resize(self.chunk.len() + UNIT + 8, 0);
                    return;
                }
            }
        }
    }

    /// Fills the window to 56 bits or more.
    #[inline(always)]
    fn fill(&mut self, window: Window) -> Option<Window> {
        let word = self.chunk.get(self.next..)?.first_chunk::<8>()?;
        let word = u64::from_be_bytes(*word);
        self.next += ((63 - window.count) / 8) as usize;
        // What is there beyond `count` is the start of the next byte.
        Some(Window { buffer: window.buffer | word >> window.count, count: window.count | 56 })
    }

    /// A symbol and the value after it, whose length is the symbol's low half; together 31 bits at most.
    #[inline(always)]
    pub(super) fn symbol(&mut self, codes: &Codes) -> Option<(u8, i32)> {
        let window = self.fill(self.window)?;
        let (symbol, window) = codes.next(window)?;
        let size = u32::from(symbol & 15);
        self.window = window.take(size);
        Some((symbol, window.value(size)))
    }

    /// Steps over the rest of a block, from coefficient `at` on.
    #[inline(always)]
    pub(super) fn skip(&mut self, ac: &Ac, at: usize) -> Option<()> {
        self.walk(ac, at, |_, _| ())
    }

    /// Reads all coefficients of a block but the first into a block of zeros, in their natural order.
    #[cfg_attr(not(feature = "libjpeg-turbo"), allow(dead_code))]
    #[inline(always)]
    pub(super) fn coefficients(&mut self, ac: &Ac, block: &mut [i16; 64]) -> Option<()> {
        self.walk(ac, 1, |at, value| {
            block[usize::from(PLACES[usize::from(at as u8)] & 63)] = value;
        })
    }

    /// Hands the coefficients from `at` on to `write`, each with its number. A 0 may be written beyond the
    /// block, or behind the last one.
    #[inline(always)]
    fn walk(&mut self, ac: &Ac, mut at: usize, mut write: impl FnMut(usize, i16)) -> Option<()> {
        let mut window = self.window;
        'fills: while at < 64 {
            window = self.fill(window)?;
            for _ in 0..LOOKS {
                let pair = ac.pairs[window.look()];
                // A second one must not be of the next block.
                if pair.bits == 0 || at + usize::from(pair.first) >= 64 {
                    window = self.fill(window)?;
                    let (symbol, after) = ac.codes.next(window)?;
                    let size = u32::from(symbol & 15);
                    window = after.take(size);
                    at += usize::from(Ac::advance(symbol));
                    write(at - 1, after.value(size) as i16);
                    continue 'fills;
                }
                window = window.take(pair.bits.into());
                write(at + usize::from(pair.first) - 1, pair.values[0]);
                at += usize::from(pair.both);
                write(at - 1, pair.values[1]);
                if at >= 64 {
                    break;
                }
            }
        }
        self.window = window;
        (at == 64 || at >= usize::from(END)).then_some(())
    }

    /// False where more was taken than the scan has.
    #[inline(always)]
    pub(super) fn enough(&self) -> bool {
        self.end.is_none_or(|end| self.next * 8 <= end * 8 + self.window.count as usize)
    }

    /// Goes on after a restart marker, which must be the next thing.
    pub(super) fn restart(&mut self, number: u8) -> Option<()> {
        // The marker may not have been met yet.
        self.start_unit();
        // Whole bytes that were not taken.
        let left = (self.end? + self.window.count as usize / 8).checked_sub(self.next)?;
        let marker = [0xff, 0xd0 + number % 8];
        (left == 0 && self.file.get(self.at..)?.starts_with(&marker)).then_some(())?;
        self.at += 2;
        self.chunk.clear();
        (self.next, self.end, self.window) = (0, None, Window::default());
        Some(())
    }
}
