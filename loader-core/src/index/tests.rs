//! Tests of the format: its bytes are pinned, damage is found, and nothing that a file may hold
//! does worse than give an error.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;

use super::build::{Content, Dir, Packed, table, unpack};
use super::fingerprint::NamesDigest;
use super::format::{HEADER_LEN, Section, Stamp, header_checksum};
use super::report::{Notes, Reason};
use super::table::{PathTable, TableError};

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/path-table-v1.bin");
const SPECIFICATION: &str = include_str!("../../../docs/path-table.md");

/// The table that the specification shows.
fn small() -> Vec<u8> {
    let mut digest = NamesDigest::default();
    let mut dir = |path: &str, names: &[&str], second: i64| Dir {
        path: path.into(),
        stamp: Stamp {
            mtime: (1_600_000_000 + second, 5),
            ctime: (1_700_000_000 + second, 6),
            ino: 100 + second as u64,
            stale: second == 1,
        },
        names: Packed::new(names.iter().map(|name| name.as_bytes()), &mut digest),
        notes: Notes::default(),
    };
    let mut root = dir("", &[], 0);
    root.notes.add(Reason::BesideClasses, b"", b"README");
    let dirs = vec![
        (0, root),
        (0, dir("cat/", &["cat_1.jpg", "cat_10.jpg", "cat_2.jpg"], 1)),
        (1, dir("dog/", &["a.png"], 2)),
        (1, dir("dog/old/", &["b.jpg", "c.JPG"], 3)),
    ];
    let (order, labels) = (Vec::new(), Vec::new());
    let classes = [b"cat".to_vec(), b"dog".to_vec()];
    let root = Path::new("/data");
    let content = Content { root, options: b"hidden\0", classes: &classes, dirs, order, labels };
    table(content).unwrap()
}

/// One with an order and labels.
fn listed() -> Vec<u8> {
    let paths = [("x/1", 1), ("y/2", 0), ("x/1", 1), ("x/3", 0), ("/else/where", 1)];
    PathTable::from_paths("/data", ["p", "q"], paths).unwrap().bytes().to_vec()
}

/// Everything that a reader may do. Returns whether all of it went well.
fn use_all(bytes: &[u8]) -> bool {
    let Ok(table) = PathTable::in_memory(bytes) else { return false };
    let mut good = table.verify().is_ok();
    let mut path = Vec::new();
    for index in 0..table.len().min(10_000) {
        match table.get(index) {
            Ok(entry) => entry.write_path(&mut path),
            Err(_) => good = false,
        }
    }
    good &= table.report().is_ok() && Notes::of_table(&table).is_ok();
    for class in 0..table.class_count().min(10_000) {
        good &= table.class_name(class).is_some();
    }
    for dir in 0..table.directories().min(10_000) {
        good &= unpack(&table, dir, &mut NamesDigest::default()).is_some();
    }
    good
}

#[test]
fn the_bytes_of_a_table_are_those_that_are_pinned() {
    let bytes = small();
    assert!(bytes == GOLDEN, "format changed: new version?\n{}", dump(&bytes));
}

#[test]
fn the_specification_shows_the_pinned_bytes() {
    let shown: Vec<u8> = SPECIFICATION
        .lines()
        .filter_map(|line| line.strip_prefix("    ")?.split_once("  "))
        .filter(|(at, _)| at.len() == 4 && at.bytes().all(|b| b.is_ascii_hexdigit()))
        .flat_map(|(_, bytes)| {
            let words = bytes.split(' ').take_while(|word| word.len() == 2);
            words.map(|word| u8::from_str_radix(word, 16).unwrap()).collect::<Vec<_>>()
        })
        .collect();
    assert!(shown == GOLDEN, "docs/path-table.md should show\n{}", dump(GOLDEN));
}

fn dump(bytes: &[u8]) -> String {
    let line = |(i, line): (usize, &[u8])| {
        let hex: Vec<_> = line.iter().map(|b| format!("{b:02x}")).collect();
        format!("    {:04x}  {}\n", i * 16, hex.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

#[test]
fn pinned_tables_read_as_what_they_were() {
    let table = PathTable::in_memory(GOLDEN).unwrap();
    table.verify().unwrap();
    let entries: Vec<_> =
        table.iter().map(|e| e.unwrap()).map(|e| (e.to_path(), e.label())).collect();
    let expected = [
        ("/data/cat/cat_1.jpg", 0),
        ("/data/cat/cat_10.jpg", 0),
        ("/data/cat/cat_2.jpg", 0),
        ("/data/dog/a.png", 1),
        ("/data/dog/old/b.jpg", 1),
        ("/data/dog/old/c.JPG", 1),
    ];
    assert_eq!(entries, expected.map(|(path, label)| (PathBuf::from(path), label)));
    assert_eq!(table.class_name(1), Some("dog".as_ref()));
    assert_eq!(table.class_name(2), None);
    assert_eq!(table.report().unwrap().left_out[0].examples, [Path::new("README")]);
    let moved = table.with_root("/mnt/");
    assert_eq!(moved.get(3).unwrap().to_path(), Path::new("/mnt/dog/a.png"));
    let whole = table.with_root("/");
    assert_eq!(whole.get(3).unwrap().to_path(), Path::new("/dog/a.png"));
    assert!(matches!(table.get(6), Err(TableError::OutOfRange { index: 6, len: 6 })));
}

#[test]
fn a_table_cut_off_anywhere_is_refused() {
    for whole in [small(), listed()] {
        for len in 0..whole.len() {
            assert!(PathTable::in_memory(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(PathTable::in_memory(&[&whole[..], &[0]].concat()).is_err());
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for whole in [small(), listed()] {
        assert!(use_all(&whole));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!use_all(&bytes), "bit {bit}");
        }
    }
}

#[test]
fn sections_that_this_version_does_not_know_are_refused() {
    let mut bytes = small();
    // The slot behind the last known one.
    bytes[128 + Section::ALL.len() * 24 + 8] = 1;
    mend(&mut bytes);
    assert!(matches!(PathTable::in_memory(&bytes), Err(TableError::Corrupt { .. })));
}

/// Gives a changed header the checksum that belongs to it.
fn mend(bytes: &mut [u8]) {
    let checksum = header_checksum(&bytes[..HEADER_LEN]);
    bytes[64..72].copy_from_slice(&checksum.to_le_bytes());
}

proptest! {
    #[test]
    fn random_bytes_give_errors(mut bytes in vec(any::<u8>(), 0..2000), magic: bool) {
        if magic && bytes.len() >= 16 {
            bytes[..16].copy_from_slice(&GOLDEN[..16]);
        }
        prop_assert!(!use_all(&bytes));
    }

    #[test]
    fn headers_that_lie_give_errors(
        edits in vec((0..HEADER_LEN, any::<u8>()), 1..4),
        words in vec((2..HEADER_LEN / 8, prop_oneof![
            any::<u64>(), 0..5000u64, Just(u64::MAX), Just(1 << 63), Just(u64::from(u32::MAX)),
        ]), 0..3),
        with_order: bool,
    ) {
        let mut bytes = if with_order { listed() } else { small() };
        for (at, value) in edits {
            bytes[at] = value;
        }
        for (at, value) in words {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        mend(&mut bytes);
        use_all(&bytes);
    }

    #[test]
    fn contents_that_lie_give_errors_or_other_paths(
        edits in vec((0..10_000usize, any::<u8>()), 1..8),
        with_order: bool,
    ) {
        let mut bytes = if with_order { listed() } else { small() };
        for (at, value) in edits {
            let at = HEADER_LEN + at % (bytes.len() - HEADER_LEN);
            bytes[at] = value;
        }
        use_all(&bytes);
    }

    #[test]
    fn lists_come_back_as_they_were(
        list in vec((vec(part(), 0..3), part(), 0..4u32), 0..300),
        sorted: bool,
        one_class_a_folder: bool,
    ) {
        let mut list: Vec<(PathBuf, u32)> = list
            .into_iter()
            .map(|(dirs, name, label)| {
                let label = if one_class_a_folder { dirs.len() as u32 } else { label };
                (dirs.into_iter().chain([name]).collect(), label)
            })
            .collect();
        if sorted {
            list.sort();
        }
        let table = PathTable::from_paths("/r", ["a", "b", "c", "d"], list.clone()).unwrap();
        table.verify().unwrap();
        let read: Vec<_> = table
            .iter()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.to_relative_path(), entry.class()))
            .collect();
        prop_assert_eq!(&read, &list);
        let absolute = list.iter().map(|(path, label)| (Path::new("/r").join(path), *label));
        let same = PathTable::from_paths("/r", ["a", "b", "c", "d"], absolute).unwrap();
        prop_assert_eq!(same.fingerprint(), table.fingerprint());
        if list.len() > 1 {
            let last = list.len() - 1;
            let other = (list[0] != list[last]).then(|| {
                list.swap(0, last);
                PathTable::from_paths("/r", ["a", "b", "c", "d"], list).unwrap().fingerprint()
            });
            prop_assert_ne!(other, Some(table.fingerprint()));
        }
    }

    #[test]
    fn packed_names_are_the_names(names in vec(vec(97..100u8, 0..8), 0..200)) {
        let packed = Packed::new(names.iter().map(Vec::as_slice), &mut NamesDigest::default());
        let read: Vec<_> = packed
            .each()
            .map(|middle| [&packed.prefix, middle, &packed.suffix].concat())
            .collect();
        prop_assert_eq!(read, names);
    }
}

/// A file or folder name, of few letters so that they repeat, or of any bytes.
fn part() -> impl Strategy<Value = OsString> {
    let few = vec(97..100u8, 1..4);
    let any = vec(any::<u8>(), 1..40).prop_map(|mut bytes| {
        bytes.iter_mut().for_each(|b| *b = if matches!(*b, 0 | b'/') { b'_' } else { *b });
        bytes.push(b'x');
        bytes
    });
    prop_oneof![3 => few, 1 => any].prop_map(OsString::from_vec)
}

#[test]
fn names_of_255_bytes_fill_a_block() {
    let name = |i: usize| format!("{i:03}{}", "n".repeat(252));
    let table =
        PathTable::from_paths("/", ["c"], (0..200).map(|i| (name(i * 37 % 200), 0))).unwrap();
    table.verify().unwrap();
    for i in 0..200 {
        let path = table.get(i as u64).unwrap().to_path();
        assert_eq!(path, Path::new("/").join(name(i * 37 % 200)));
    }
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let of = |path: &str, label| PathTable::from_paths("/r", ["c"], [("ok", 0), (path, label)]);
    for path in ["", "a/", "a/..", "a\0b", &"n".repeat(1024)] {
        let error = of(path, 0).unwrap_err();
        assert!(matches!(error, TableError::BadPath { index: 1, .. }), "{error}");
    }
    let error = of("a", 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "path 1 of the list, \"a\", has label 1, but there are 1 classes"
    );
    let none: [(&str, u32); 0] = [];
    let empty = PathTable::from_paths("/r", ["c"], none).unwrap();
    empty.verify().unwrap();
    assert!(empty.is_empty() && empty.get(0).is_err());
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let mut bytes = small();
    bytes[8] = 2;
    let error = PathTable::in_memory(&bytes).unwrap_err();
    assert!(matches!(error, TableError::Version { found: 2, supported: 1, .. }));
    let error = PathTable::in_memory(b"\xff\xd8\xff\xe0").unwrap_err();
    assert!(matches!(error, TableError::NotATable { .. }));
}

#[test]
fn a_saved_table_attaches_by_name_and_by_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.paths");
    let table = PathTable::from_paths("/r", ["c"], [("b/2", 0), ("a/1", 0), ("b/1", 0)]).unwrap();
    table.save(&path).unwrap();
    let by_name = PathTable::attach(&path).unwrap();
    let by_descriptor = PathTable::from_file(by_name.file().try_clone().unwrap()).unwrap();
    for other in [&by_name, &by_descriptor] {
        other.verify().unwrap();
        assert_eq!(other.fingerprint(), table.fingerprint());
        assert_eq!(other.get(1).unwrap().to_path(), Path::new("/r/a/1"));
    }
}

#[test]
fn names_that_are_not_text_survive_to_messages() {
    let name = std::ffi::OsStr::from_bytes(b"\xff\n.jpg");
    let error = PathTable::from_paths("/r", ["c"], [(name, 5)]).unwrap_err();
    assert!(error.to_string().contains(r#""\xFF\n.jpg""#), "{error}");
}

#[test]
fn rare_kinds_are_summed_up() {
    let mut notes = Notes::default();
    for i in 0..100 {
        let name = format!("part.{i:04}");
        notes.add(Reason::Extension, &name.as_bytes()[4..], name.as_bytes());
    }
    (0..5).for_each(|i| notes.add(Reason::Extension, b".txt", format!("{i}.txt").as_bytes()));
    notes.add(Reason::Hidden, b"", b".x");
    notes.settle();
    let mut dir = Dir { notes, ..Dir::default() };
    dir.path = b"c/".to_vec();
    let content = Content {
        root: Path::new("/"),
        options: b"",
        classes: &[],
        dirs: vec![(0, dir)],
        order: vec![],
        labels: vec![],
    };
    let report = PathTable::in_memory(&table(content).unwrap()).unwrap().report().unwrap();
    assert_eq!(report.count(Reason::Extension), 105);
    assert_eq!(report.count(Reason::Hidden), 1);
    assert!(report.left_out.len() <= 33);
    let text = report.left_out.iter().find(|left| left.detail == ".txt").unwrap();
    assert_eq!(
        (text.count, text.examples.as_slice()),
        (5, &["c/0.txt", "c/1.txt", "c/2.txt"].map(PathBuf::from)[..])
    );
}
