//! Puts a table together: packs the names of each directory, then lays the sections one behind the
//! other.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::fingerprint::{Digest, NamesDigest};
use super::format::{BLOCK, DirRecord, Header, MAX_NAME, NO_CLASS, Section, Stamp, encode};
use super::report::Notes;
use super::table::{PathTable, TableError};

/// The file names of one directory, without the prefix and the suffix that all of them share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    pub(crate) prefix: Vec<u8>,
    pub(crate) suffix: Vec<u8>,
    pub(crate) middles: Vec<u8>,
    pub(crate) lens: Vec<u16>,
    /// Their number and hash, for the fingerprint.
    pub(crate) digest: (u64, u128),
}

impl Packed {
    /// Packs the names in the order given; none may be longer than [`MAX_NAME`].
    pub(crate) fn new<'a>(
        names: impl Iterator<Item = &'a [u8]> + Clone,
        digest: &mut NamesDigest,
    ) -> Self {
        let mut rest = names.clone();
        let Some(first) = rest.next() else { return Self::default() };
        let (mut prefix, mut suffix, mut shortest) = (first.len(), first.len(), first.len());
        let (mut count, mut bytes) = (1, first.len());
        for name in rest {
            prefix = common(first[..prefix].iter(), name.iter());
            suffix = common(first[first.len() - suffix..].iter().rev(), name.iter().rev());
            shortest = shortest.min(name.len());
            (count, bytes) = (count + 1, bytes + name.len());
        }
        // In `aXa`, `aa` both ends are shared but must not overlap.
        suffix = suffix.min(shortest - prefix);
        let mut middles = Vec::with_capacity(bytes - count * (prefix + suffix));
        let mut lens = Vec::with_capacity(count);
        for name in names {
            digest.name(&[name]);
            let middle = &name[prefix..name.len() - suffix];
            middles.extend_from_slice(middle);
            lens.push(middle.len() as u16);
        }
        let (prefix, suffix) = (&first[..prefix], &first[first.len() - suffix..]);
        Self {
            prefix: prefix.to_vec(),
            suffix: suffix.to_vec(),
            middles,
            lens,
            digest: digest.take(),
        }
    }

    /// What is left of each name.
    pub(crate) fn each(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.middles.as_slice();
        self.lens.iter().map(move |&len| {
            let (middle, behind) = rest.split_at(usize::from(len));
            rest = behind;
            middle
        })
    }
}

fn common<'a>(a: impl Iterator<Item = &'a u8>, b: impl Iterator<Item = &'a u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// A directory of the table to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dir {
    /// Relative to the root, with a slash at its end; empty for the root itself.
    pub(crate) path: Vec<u8>,
    pub(crate) stamp: Stamp,
    pub(crate) names: Packed,
    pub(crate) notes: Notes,
}

/// All that goes into a table.
pub(crate) struct Content<'a> {
    pub(crate) root: &'a Path,
    pub(crate) options: &'a [u8],
    pub(crate) classes: &'a [Vec<u8>],
    /// With their classes. Those with entries must be in stored order.
    pub(crate) dirs: Vec<(u32, Dir)>,
    /// The stored entry at each position, where the order is not the stored one.
    pub(crate) order: Vec<u32>,
    /// The class of each stored entry, where directories have none.
    pub(crate) labels: Vec<u32>,
}

/// The bytes of the table.
pub(crate) fn table(content: Content<'_>) -> Result<Vec<u8>, TableError> {
    let Content { root, options, classes, mut dirs, order, labels } = content;
    // Directories with entries first, so that a step to the next one always skips an entry.
    dirs.sort_by_key(|(_, dir)| dir.names.lens.is_empty());
    let filled = dirs.iter().filter(|(_, dir)| !dir.names.lens.is_empty()).count();
    let entries = dirs.iter().map(|(_, dir)| dir.names.lens.len() as u64).sum::<u64>();
    let count = |what, n: usize| {
        u32::try_from(n).map_err(|_| TableError::TooLarge { what, count: n as u64 })
    };
    let mut header = Header {
        entries,
        dirs: count("directories", dirs.len())?,
        filled: count("directories", filled)?,
        classes: count("classes", classes.len())?,
        ..Header::default()
    };

    let mut ends = Vec::with_capacity(classes.len() * 4);
    let mut end = 0;
    for name in classes {
        end += name.len();
        ends.extend_from_slice(&count("bytes of class names", end)?.to_le_bytes());
    }

    let (mut records, mut text) = (Vec::new(), Vec::new());
    let (mut stamps, mut report) = (Vec::new(), Vec::new());
    let mut names = Vec::with_capacity(dirs.iter().map(|(_, d)| d.names.middles.len()).sum());
    let mut blocks = Vec::with_capacity((entries.div_ceil(BLOCK) as usize + 1) * 12);
    let mut deltas = Vec::with_capacity(entries as usize * 2);
    let mut stored = 0;
    let mut base = 0;
    for (index, (class, dir)) in (0u32..).zip(&dirs) {
        let class = if labels.is_empty() && !dir.names.lens.is_empty() { *class } else { NO_CLASS };
        let record = DirRecord {
            first: stored,
            text: text.len() as u64,
            class,
            path: count("bytes of a directory's path", dir.path.len())?,
            prefix: dir.names.prefix.len() as u16,
            suffix: dir.names.suffix.len() as u16,
        };
        records.extend_from_slice(&record.encode());
        for part in [&dir.path, &dir.names.prefix, &dir.names.suffix] {
            text.extend_from_slice(part);
        }
        stamps.extend_from_slice(&dir.stamp.encode());
        dir.notes.encode(index, &mut report);

        let mut at = names.len() as u64;
        for len in &dir.names.lens {
            if stored.is_multiple_of(BLOCK) {
                base = at;
                blocks.extend_from_slice(&base.to_le_bytes());
                blocks.extend_from_slice(&index.to_le_bytes());
            }
            // At most BLOCK - 1 names of MAX_NAME bytes lie between.
            deltas.extend_from_slice(&((at - base) as u16).to_le_bytes());
            at += u64::from(*len);
            stored += 1;
        }
        names.extend_from_slice(&dir.names.middles);
    }
    blocks.extend_from_slice(&(names.len() as u64).to_le_bytes());
    blocks.extend_from_slice(&0u32.to_le_bytes());

    let mut digest = Digest::default();
    digest.classes(header.classes, classes.iter().map(Vec::as_slice));
    if order.is_empty() && labels.is_empty() {
        for (class, dir) in dirs.iter().take(filled) {
            digest.run(&dir.path, *class, dir.names.digest);
        }
    } else {
        let entries =
            dirs.iter().flat_map(|(class, dir)| dir.names.each().map(move |n| (*class, dir, n)));
        let entries: Vec<_> = entries.collect();
        for index in 0..entries.len() {
            let stored = order.get(index).map_or(index, |&stored| stored as usize);
            let (class, dir, middle) = entries[stored];
            let class = labels.get(stored).copied().unwrap_or(class);
            digest.entry(&dir.path, class, &[&dir.names.prefix, middle, &dir.names.suffix]);
        }
    }
    header.fingerprint = digest.finish();
    drop(dirs);
    let le = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut sections: [Vec<u8>; Section::ALL.len()] = [
        root.as_os_str().as_bytes().to_vec(),
        options.to_vec(),
        report,
        ends,
        classes.concat(),
        records,
        text,
        stamps,
        names,
        blocks,
        deltas,
        le(&order),
        le(&labels),
    ];
    Ok(encode(&header, |section| std::mem::take(&mut sections[section as usize])))
}

impl PathTable {
    /// A table of files that are known from elsewhere: their paths, relative to `root` or absolute,
    /// each with the number of its class. The order is kept, and so are duplicates. The files are
    /// not looked at. The table lives in memory; [`save`](Self::save) writes it to a file.
    ///
    /// # Errors
    /// Where a path has no file name, contains a zero byte, or has a file name of more than 1023
    /// bytes, where a label is not below the number of classes, and where there are too many.
    pub fn from_paths<P: AsRef<Path>, C: AsRef<OsStr>>(
        root: impl AsRef<Path>,
        classes: impl IntoIterator<Item = C>,
        paths: impl IntoIterator<Item = (P, u32)>,
    ) -> Result<Self, TableError> {
        let root = root.as_ref();
        let classes: Vec<Vec<u8>> =
            classes.into_iter().map(|c| c.as_ref().as_bytes().to_vec()).collect();
        let class_count = u32::try_from(classes.len()).unwrap_or(u32::MAX);

        #[derive(Default)]
        struct Group {
            path: Vec<u8>,
            names: Vec<u8>,
            ends: Vec<usize>,
            labels: Vec<u32>,
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        // The group of each path; shorter than the list as long as groups are not interleaved.
        let mut places: Vec<u32> = Vec::new();
        let mut last = usize::MAX;
        for (index, (path, label)) in (0u64..).zip(paths) {
            let path = path.as_ref();
            let bad = |what| TableError::BadPath { index, path: path.to_owned(), what };
            let relative = path.strip_prefix(root).ok().filter(|_| path.is_absolute());
            let bytes = relative.unwrap_or(path).as_os_str().as_bytes();
            let name_at = bytes.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
            let (dir, name) = bytes.split_at(name_at);
            if name.is_empty() || name == b"." || name == b".." {
                return Err(bad("has no file name"));
            }
            if bytes.contains(&0) {
                return Err(bad("contains a zero byte"));
            }
            if name.len() > MAX_NAME {
                return Err(bad("its file name has more than 1023 bytes"));
            }
            if label >= class_count {
                let path = path.to_owned();
                return Err(TableError::BadLabel { index, path, label, classes: class_count });
            }
            if groups.get(last).is_none_or(|group| group.path != dir) {
                last = *known.entry(dir.to_vec()).or_insert(groups.len());
            }
            if last == groups.len() {
                groups.push(Group { path: dir.to_vec(), ..Group::default() });
            }
            let group = &mut groups[last];
            group.names.extend_from_slice(name);
            group.ends.push(group.names.len());
            group.labels.push(label);
            places.push(
                u32::try_from(last).map_err(|_| TableError::TooLarge {
                    what: "directories",
                    count: last as u64,
                })?,
            );
        }

        let order = if places.is_sorted() { Vec::new() } else { order(&places, groups.len())? };
        let one_class =
            |group: &Group| group.labels.iter().all(|label| Some(label) == group.labels.first());
        let labels = if groups.iter().all(one_class) {
            Vec::new()
        } else {
            groups.iter().flat_map(|group| group.labels.iter().copied()).collect()
        };
        let mut digest = NamesDigest::default();
        let dirs = groups.into_iter().map(|group| {
            let starts = std::iter::once(0).chain(group.ends.iter().copied());
            let names = starts.zip(&group.ends).map(|(from, to)| &group.names[from..*to]);
            let names = Packed::new(names, &mut digest);
            (group.labels[0], Dir { path: group.path, names, ..Dir::default() })
        });
        let dirs = dirs.collect();
        let classes = &classes;
        let bytes = table(Content { root, options: &[], classes, dirs, order, labels })?;
        Self::in_memory(&bytes)
    }
}

/// Where each entry is stored once the groups lie one behind the other.
fn order(places: &[u32], groups: usize) -> Result<Vec<u32>, TableError> {
    if u32::try_from(places.len()).is_err() {
        return Err(TableError::TooLarge { what: "unordered entries", count: places.len() as u64 });
    }
    let mut next = vec![0u32; groups + 1];
    for place in places {
        next[*place as usize + 1] += 1;
    }
    for group in 1..next.len() {
        next[group] += next[group - 1];
    }
    let mut take = |place: &u32| {
        let at = &mut next[*place as usize];
        *at += 1;
        *at - 1
    };
    Ok(places.iter().map(&mut take).collect())
}

/// The directories of a table, unpacked to go into another one.
pub(crate) fn unpack(table: &PathTable, dir: u32, digest: &mut NamesDigest) -> Option<Dir> {
    let record = table.dir(dir)?;
    let (path, prefix, suffix) = table.dir_text(&record)?;
    let (first, end) = table.dir_entries(dir)?;
    let mut names =
        Packed { prefix: prefix.to_vec(), suffix: suffix.to_vec(), ..Packed::default() };
    for stored in first..end {
        let middle = table.middle(stored)?;
        digest.name(&[prefix, middle, suffix]);
        names.middles.extend_from_slice(middle);
        names.lens.push(u16::try_from(middle.len()).ok().filter(|&n| n as usize <= MAX_NAME)?);
    }
    names.digest = digest.take();
    let (path, stamp) = (path.to_vec(), table.stamp(dir)?);
    Some(Dir { path, stamp, names, notes: Notes::default() })
}
