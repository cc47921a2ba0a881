//! The byte layout of a path table in one place; `docs/path-table.md` is its specification.
//!
//! Nothing here trusts its input: every position is computed with checked arithmetic and every read
//! goes through `get`, so that a damaged file gives an error and nothing else.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// The first bytes. Like PNG's, they show a transfer that changed line ends or dropped the high bit.
pub(crate) const MAGIC: [u8; 8] = *b"\x89PTBL\r\n\x1a";
/// The version that this code writes and the only one that it reads.
pub(crate) const VERSION: u16 = 1;
/// Bytes of the header, including the section table.
pub(crate) const HEADER_LEN: usize = 512;
/// Entries that share one record in [`Section::Blocks`].
pub(crate) const BLOCK: u64 = 64;
/// The longest file name that an offset within a block has room for. Linux allows 255 bytes.
pub(crate) const MAX_NAME: usize = 1023;
/// Bytes of a record in [`Section::Dirs`].
pub(crate) const DIR_LEN: usize = 32;
/// Bytes of a record in [`Section::Stamps`].
pub(crate) const STAMP_LEN: usize = 40;
/// Bytes of a record in [`Section::Blocks`].
pub(crate) const BLOCK_LEN: usize = 12;
/// The class of a directory without entries, or whose entries have a label each.
pub(crate) const NO_CLASS: u32 = u32::MAX;

const SLOTS: usize = 16;
const SLOTS_AT: usize = 128;
const SLOT_LEN: usize = 24;
const CHECKSUM_AT: Range<usize> = 64..72;

/// A section of the file; the value is its slot in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Root = 0,
    Options = 1,
    Report = 2,
    ClassEnds = 3,
    ClassNames = 4,
    Dirs = 5,
    DirText = 6,
    Stamps = 7,
    Names = 8,
    Blocks = 9,
    Deltas = 10,
    Order = 11,
    Labels = 12,
}

impl Section {
    /// All of them, in the order of the file.
    pub(crate) const ALL: [Self; 13] = [
        Self::Root,
        Self::Options,
        Self::Report,
        Self::ClassEnds,
        Self::ClassNames,
        Self::Dirs,
        Self::DirText,
        Self::Stamps,
        Self::Names,
        Self::Blocks,
        Self::Deltas,
        Self::Order,
        Self::Labels,
    ];

    /// Its name in error messages and in the specification.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "ROOT",
            Self::Options => "OPTIONS",
            Self::Report => "REPORT",
            Self::ClassEnds => "CLASS_ENDS",
            Self::ClassNames => "CLASS_NAMES",
            Self::Dirs => "DIRS",
            Self::DirText => "DIR_TEXT",
            Self::Stamps => "STAMPS",
            Self::Names => "NAMES",
            Self::Blocks => "BLOCKS",
            Self::Deltas => "DELTAS",
            Self::Order => "ORDER",
            Self::Labels => "LABELS",
        }
    }
}

/// What is wrong with a file, before its path is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NotATable,
    Version(u16),
    Corrupt { section: &'static str, at: u64, what: &'static str },
}

impl Fault {
    pub(crate) fn header(at: usize, what: &'static str) -> Self {
        Self::Corrupt { section: "header", at: at as u64, what }
    }

    pub(crate) fn section(section: Section, at: u64, what: &'static str) -> Self {
        Self::Corrupt { section: section.name(), at, what }
    }
}

/// The counts and section positions of a table, as the header states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) entries: u64,
    pub(crate) dirs: u32,
    /// Directories with entries; they come first.
    pub(crate) filled: u32,
    pub(crate) classes: u32,
    pub(crate) fingerprint: u128,
    pub(crate) sections: [Range<usize>; Section::ALL.len()],
    pub(crate) checksums: [u64; Section::ALL.len()],
}

impl Header {
    /// Where the section lies in the file.
    pub(crate) fn range(&self, section: Section) -> Range<usize> {
        self.sections[section as usize].clone()
    }

    pub(crate) fn checksum(&self, section: Section) -> u64 {
        self.checksums[section as usize]
    }

    /// Reads the header of `file` and checks that it is whole and that every section lies inside
    /// the file and has the length that the counts call for. Looks at no other byte.
    pub(crate) fn decode(file: &[u8]) -> Result<Self, Fault> {
        let head = file.get(..HEADER_LEN).unwrap_or(file);
        if head.get(..8) != Some(&MAGIC[..]) {
            return Err(Fault::NotATable);
        }
        let version = read_u16(head, 8).ok_or(Fault::header(8, "cut off"))?;
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        if head.len() < HEADER_LEN {
            return Err(Fault::header(head.len(), "cut off"));
        }
        let cut = || Fault::header(HEADER_LEN, "cut off");
        let u32_at = |at| read_u32(head, at).ok_or_else(cut);
        let u64_at = |at| read_u64(head, at).ok_or_else(cut);
        if u64_at(CHECKSUM_AT.start)? != header_checksum(head) {
            return Err(Fault::header(CHECKSUM_AT.start, "checksum does not match"));
        }
        if u64_at(16)? != file.len() as u64 {
            return Err(Fault::header(16, "states another file length"));
        }
        let zero = |range: Range<usize>| match head.get(range.clone()) {
            Some(bytes) if bytes.iter().all(|&b| b == 0) => Ok(()),
            _ => Err(Fault::header(range.start, "reserved bytes are not zero")),
        };
        zero(10..16)?;
        zero(44..48)?;
        zero(72..SLOTS_AT)?;
        // Slots that this version does not know hold sections that change what an entry means.
        zero(SLOTS_AT + Section::ALL.len() * SLOT_LEN..SLOTS_AT + SLOTS * SLOT_LEN)?;

        let mut header = Self {
            entries: u64_at(24)?,
            dirs: u32_at(32)?,
            filled: u32_at(36)?,
            classes: u32_at(40)?,
            fingerprint: u128::from(u64_at(48)?) | u128::from(u64_at(56)?) << 64,
            ..Self::default()
        };
        let mut end = HEADER_LEN;
        for section in Section::ALL {
            let at = SLOTS_AT + section as usize * SLOT_LEN;
            let start = usize::try_from(u64_at(at)?).ok();
            let len = usize::try_from(u64_at(at + 8)?).ok();
            let range = start.zip(len).and_then(|(start, len)| {
                let stop = start.checked_add(len)?;
                (start >= end && stop <= file.len()).then_some(start..stop)
            });
            let range = range.ok_or(Fault::header(at, "section outside the file"))?;
            end = range.end;
            header.sections[section as usize] = range;
            header.checksums[section as usize] = u64_at(at + 16)?;
        }
        header.check_lengths()?;
        Ok(header)
    }

    fn check_lengths(&self) -> Result<(), Fault> {
        if self.filled > self.dirs {
            return Err(Fault::header(36, "more directories with entries than directories"));
        }
        if (self.filled == 0) != (self.entries == 0) || u64::from(self.filled) > self.entries {
            return Err(Fault::header(36, "directories with entries do not fit the entries"));
        }
        let blocks = self.entries.div_ceil(BLOCK);
        let need = [
            (Section::ClassEnds, Some(u64::from(self.classes) * 4)),
            (Section::Dirs, Some(u64::from(self.dirs) * DIR_LEN as u64)),
            (Section::Stamps, Some(u64::from(self.dirs) * STAMP_LEN as u64)),
            (Section::Blocks, blocks.checked_add(1).and_then(|n| n.checked_mul(BLOCK_LEN as u64))),
            (Section::Deltas, self.entries.checked_mul(2)),
        ];
        let have = |section: Section| self.range(section).len() as u64;
        for (section, need) in need {
            if need != Some(have(section)) {
                return Err(Fault::section(section, 0, "length does not fit the counts"));
            }
        }
        for section in [Section::Order, Section::Labels] {
            if have(section) != 0 && self.entries.checked_mul(4) != Some(have(section)) {
                return Err(Fault::section(section, 0, "length does not fit the counts"));
            }
        }
        Ok(())
    }
}

/// A whole file made of these sections.
pub(crate) fn encode(counts: &Header, mut section: impl FnMut(Section) -> Vec<u8>) -> Vec<u8> {
    let mut file = vec![0; HEADER_LEN];
    for kind in Section::ALL {
        let start = file.len();
        let bytes = section(kind);
        let slot = SLOTS_AT + kind as usize * SLOT_LEN;
        put(&mut file, slot, &(start as u64).to_le_bytes());
        put(&mut file, slot + 8, &(bytes.len() as u64).to_le_bytes());
        put(&mut file, slot + 16, &xxh3_64(&bytes).to_le_bytes());
        file.extend_from_slice(&bytes);
        file.resize(file.len().next_multiple_of(8), 0);
    }
    let len = file.len() as u64;
    put(&mut file, 0, &MAGIC);
    put(&mut file, 8, &VERSION.to_le_bytes());
    put(&mut file, 16, &len.to_le_bytes());
    put(&mut file, 24, &counts.entries.to_le_bytes());
    put(&mut file, 32, &counts.dirs.to_le_bytes());
    put(&mut file, 36, &counts.filled.to_le_bytes());
    put(&mut file, 40, &counts.classes.to_le_bytes());
    put(&mut file, 48, &counts.fingerprint.to_le_bytes());
    let checksum = header_checksum(&file[..HEADER_LEN]);
    put(&mut file, CHECKSUM_AT.start, &checksum.to_le_bytes());
    file
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The checksum of a header, whatever stands in the place of the checksum itself.
pub(crate) fn header_checksum(head: &[u8]) -> u64 {
    let mut copy = [0; HEADER_LEN];
    copy.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
    copy[CHECKSUM_AT].fill(0);
    xxh3_64(&copy)
}

/// What is known of a directory from its inode, to see later whether its listing may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
    pub(crate) ino: u64,
    /// The directory changed so shortly before it was read that another change could have left the
    /// same times, or it could not be read: read it again.
    pub(crate) stale: bool,
}

impl Stamp {
    pub(crate) fn encode(self) -> [u8; STAMP_LEN] {
        let mut out = [0; STAMP_LEN];
        put(&mut out, 0, &self.mtime.0.to_le_bytes());
        put(&mut out, 8, &self.ctime.0.to_le_bytes());
        put(&mut out, 16, &self.ino.to_le_bytes());
        put(&mut out, 24, &self.mtime.1.to_le_bytes());
        put(&mut out, 28, &self.ctime.1.to_le_bytes());
        put(&mut out, 32, &u32::from(self.stale).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            mtime: (read_u64(bytes, 0)? as i64, read_u32(bytes, 24)?),
            ctime: (read_u64(bytes, 8)? as i64, read_u32(bytes, 28)?),
            ino: read_u64(bytes, 16)?,
            stale: read_u32(bytes, 32)? != 0,
        })
    }
}

/// A record of [`Section::Dirs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirRecord {
    /// The first of its entries, in stored order.
    pub(crate) first: u64,
    /// Where its text begins in [`Section::DirText`].
    pub(crate) text: u64,
    pub(crate) class: u32,
    /// The text: the relative path with a slash behind it, then the prefix and the suffix of the
    /// file names.
    pub(crate) path: u32,
    pub(crate) prefix: u16,
    pub(crate) suffix: u16,
}

impl DirRecord {
    pub(crate) fn encode(self) -> [u8; DIR_LEN] {
        let mut out = [0; DIR_LEN];
        put(&mut out, 0, &self.first.to_le_bytes());
        put(&mut out, 8, &self.text.to_le_bytes());
        put(&mut out, 16, &self.class.to_le_bytes());
        put(&mut out, 20, &self.path.to_le_bytes());
        put(&mut out, 24, &self.prefix.to_le_bytes());
        put(&mut out, 26, &self.suffix.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            first: read_u64(bytes, 0)?,
            text: read_u64(bytes, 8)?,
            class: read_u32(bytes, 16)?,
            path: read_u32(bytes, 20)?,
            prefix: read_u16(bytes, 24)?,
            suffix: read_u16(bytes, 26)?,
        })
    }
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    read(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    read(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    read(bytes, at).map(u64::from_le_bytes)
}
