//! What a scan left out, and why: counted per directory, stored in the table, summed up for people.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::format::{Fault, Section, read_u16, read_u32, read_u64};
use super::table::{PathTable, to_path};

/// Examples that a directory keeps of each kind.
const EXAMPLES_A_DIRECTORY: usize = 3;
/// Examples that a report shows of each kind.
const EXAMPLES: usize = 5;
/// Kinds that a directory tells apart; the rarest beyond are summed up as [`OTHER`].
const KINDS_A_DIRECTORY: usize = 32;
/// The longest detail, in bytes.
const DETAIL: usize = 64;
const OTHER: &[u8] = b"(other)";

/// Why something in a scanned folder is not a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Its name begins with a dot. A folder counts as one; nobody looked inside.
    Hidden,
    /// A file without one of the extensions; the detail is the extension that it has, in lower
    /// case.
    Extension,
    /// A file that the given predicate refused.
    Refused,
    /// A file beside the class folders.
    BesideClasses,
    /// A link to nothing.
    BrokenLink,
    /// A link to a folder that contains the link: following it would never end.
    Cycle,
    /// A link, where links are not followed.
    Link,
    /// A device, a socket or a pipe.
    Special,
    /// A folder, or the target of a link, that could not be read; the detail is what the system
    /// said.
    Unreadable,
}

impl Reason {
    const ALL: [Self; 9] = [
        Self::Hidden,
        Self::Extension,
        Self::Refused,
        Self::BesideClasses,
        Self::BrokenLink,
        Self::Cycle,
        Self::Link,
        Self::Special,
        Self::Unreadable,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Hidden => "names that begin with a dot",
            Self::Extension => "files with another extension",
            Self::Refused => "files that the predicate refused",
            Self::BesideClasses => "files beside the class folders",
            Self::BrokenLink => "broken links",
            Self::Cycle => "links to a folder that contains them",
            Self::Link => "links, which are not followed",
            Self::Special => "devices, sockets and pipes",
            Self::Unreadable => "folders that could not be read",
        }
    }
}

/// What a scan left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Why.
    pub reason: Reason,
    /// The extension or the system's message, where the reason has such; else empty.
    pub detail: String,
    /// How many files, links or folders.
    pub count: u64,
    /// A few of them, relative to the root folder.
    pub examples: Vec<PathBuf>,
}

/// What a scan found and what it left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// Files that are samples.
    pub samples: u64,
    /// Classes, those without samples included.
    pub classes: u32,
    /// Directories that were read.
    pub directories: u32,
    /// What was left out, ordered by reason and detail.
    pub left_out: Vec<LeftOut>,
}

impl ScanReport {
    /// How many files, links or folders were left out for that reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.left_out.iter().filter(|l| l.reason == reason).map(|l| l.count).sum()
    }

    /// The report that a table's scan stored in it.
    pub(super) fn of_table(table: &PathTable) -> Result<Self, Fault> {
        let mut sums = BTreeMap::<(Reason, &[u8]), (u64, Vec<PathBuf>)>::new();
        for record in records(table.section(Section::Report)) {
            let record = record?;
            let dir = table.dir(record.dir).and_then(|dir| Some(table.dir_text(&dir)?.0));
            let dir = dir.ok_or(Fault::section(Section::Report, 0, "directory out of range"))?;
            let (count, examples) = sums.entry((record.reason, record.detail)).or_default();
            *count = count.saturating_add(record.count);
            let room = EXAMPLES.saturating_sub(examples.len());
            examples.extend(record.examples.iter().take(room).map(|n| to_path([dir, n].concat())));
        }
        let left_out = sums.into_iter().map(|((reason, detail), (count, examples))| LeftOut {
            reason,
            detail: detail.utf8_chunks().fold(String::new(), |mut text, chunk| {
                text.push_str(chunk.valid());
                text.extend(chunk.invalid().escape_ascii().map(char::from));
                text
            }),
            count,
            examples,
        });
        Ok(Self {
            samples: table.len(),
            classes: table.class_count(),
            directories: table.directories(),
            left_out: left_out.collect(),
        })
    }
}

impl fmt::Display for ScanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} samples, {} classes, {} directories",
            self.samples, self.classes, self.directories
        )?;
        for left in &self.left_out {
            write!(f, "\nleft out: {} {}", left.count, left.reason.words())?;
            if !left.detail.is_empty() {
                write!(f, " ({})", left.detail)?;
            }
            for (i, example) in left.examples.iter().enumerate() {
                write!(f, "{}{example:?}", if i == 0 { ", such as " } else { ", " })?;
            }
        }
        Ok(())
    }
}

/// What one directory's scan left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes(BTreeMap<Kind, Count>);

/// A reason and its detail.
type Kind = (Reason, Vec<u8>);
/// How many, and a few names.
type Count = (u64, Vec<Vec<u8>>);

impl Notes {
    pub(crate) fn add(&mut self, reason: Reason, detail: &[u8], name: &[u8]) {
        let detail = detail.get(..DETAIL).unwrap_or(detail).to_vec();
        let (count, examples) = self.0.entry((reason, detail)).or_default();
        *count += 1;
        // The first by name, so that the order in which the system lists them does not show.
        let at = examples.partition_point(|e| e.as_slice() < name);
        if at < EXAMPLES_A_DIRECTORY {
            examples.insert(at, name.to_vec());
            examples.truncate(EXAMPLES_A_DIRECTORY);
        }
    }

    /// True where what was left out may come back without a change of the directory's times.
    pub(crate) fn unsettled(&self) -> bool {
        let away = [Reason::BrokenLink, Reason::Cycle, Reason::Unreadable];
        self.0.keys().any(|(reason, _)| away.contains(reason))
    }

    /// Sums up the rarest kinds, such as the extensions of `part.000001`, `part.000002`, ...
    pub(crate) fn settle(&mut self) {
        if self.0.len() <= KINDS_A_DIRECTORY {
            return;
        }
        let mut all: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        all.sort_by_key(|((reason, _), (count, _))| {
            (*reason == Reason::Extension, std::cmp::Reverse(*count))
        });
        for ((reason, mut detail), (count, examples)) in all {
            if self.0.len() >= KINDS_A_DIRECTORY && reason == Reason::Extension {
                detail = OTHER.to_vec();
            }
            let (sum, kept) = self.0.entry((reason, detail)).or_default();
            *sum += count;
            kept.extend(examples);
            kept.sort();
            kept.truncate(EXAMPLES_A_DIRECTORY);
        }
    }

    pub(crate) fn encode(&self, dir: u32, out: &mut Vec<u8>) {
        for ((reason, detail), (count, examples)) in &self.0 {
            out.extend_from_slice(&dir.to_le_bytes());
            out.extend_from_slice(&[*reason as u8, detail.len() as u8, examples.len() as u8, 0]);
            out.extend_from_slice(&count.to_le_bytes());
            out.extend_from_slice(detail);
            for example in examples {
                out.extend_from_slice(&(example.len() as u16).to_le_bytes());
                out.extend_from_slice(example);
            }
        }
    }

    /// The notes of every directory that has some.
    pub(crate) fn of_table(table: &PathTable) -> Result<BTreeMap<u32, Self>, Fault> {
        let mut out: BTreeMap<u32, Self> = BTreeMap::new();
        for record in records(table.section(Section::Report)) {
            let Record { dir, reason, detail, count, examples } = record?;
            let examples = examples.into_iter().map(<[u8]>::to_vec).collect();
            out.entry(dir).or_default().0.insert((reason, detail.to_vec()), (count, examples));
        }
        Ok(out)
    }
}

struct Record<'a> {
    dir: u32,
    reason: Reason,
    detail: &'a [u8],
    count: u64,
    examples: Vec<&'a [u8]>,
}

/// The records of a report section; ends after the first damaged one.
fn records(section: &[u8]) -> impl Iterator<Item = Result<Record<'_>, Fault>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= section.len() {
            return None;
        }
        let record = record(section, &mut at);
        let fault = Fault::section(Section::Report, at as u64, "record cut off or unknown");
        if record.is_none() {
            at = section.len();
        }
        Some(record.ok_or(fault))
    })
}

fn record<'a>(section: &'a [u8], at: &mut usize) -> Option<Record<'a>> {
    let &[reason, detail, examples, 0] = section.get(*at + 4..*at + 8)? else { return None };
    let reason = *Reason::ALL.get(usize::from(reason))?;
    let (dir, count) = (read_u32(section, *at)?, read_u64(section, *at + 8)?);
    let take = |len: usize, from: &mut usize| {
        let bytes = section.get(*from..*from + len)?;
        *from += len;
        Some(bytes)
    };
    let mut next = *at + 16;
    let detail = take(usize::from(detail), &mut next)?;
    let mut names = Vec::with_capacity(usize::from(examples));
    for _ in 0..examples {
        let len = read_u16(section, next)?;
        next += 2;
        names.push(take(usize::from(len), &mut next)?);
    }
    *at = next;
    Some(Record { dir, reason, detail, count, examples: names })
}
