//! Image folders on real trees: torchvision's order, changes between openings, what is left out,
//! and what fails.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod tree;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use loader_core::{
    ClassOrder, EmptyClasses, FolderError, ImageFolder, PathTable, Reason, TableCache, TableError,
    TableOrigin, Unreadable,
};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use serde_json::Value;
use tree::Tree;

/// What an opening shows, to compare two.
#[derive(Debug, PartialEq)]
struct Shown {
    classes: Vec<OsString>,
    samples: Vec<(PathBuf, i64)>,
    report: String,
    fingerprint: String,
}

fn show(folder: &ImageFolder) -> Shown {
    folder.table().verify().unwrap();
    Shown {
        classes: folder.classes().map(OsStr::to_owned).collect(),
        samples: samples(folder),
        report: folder.report().to_string(),
        fingerprint: folder.fingerprint().to_string(),
    }
}

fn samples(folder: &ImageFolder) -> Vec<(PathBuf, i64)> {
    folder.samples().map(|s| s.unwrap()).map(|s| (s.to_relative_path(), s.label())).collect()
}

fn fresh(root: &Path) -> ImageFolder {
    let builder = ImageFolder::builder(root).cache(TableCache::Off);
    builder.empty_classes(EmptyClasses::Keep).open().unwrap()
}

fn kept(tree: &Tree) -> ImageFolder {
    let builder = ImageFolder::builder(tree.root()).cache(TableCache::Folder(tree.cache()));
    builder.empty_classes(EmptyClasses::Keep).open().unwrap()
}

// ---------------------------------------------------------------- torchvision

fn decode(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        if *first == b'%' {
            let (hex, behind) = rest.split_at(2);
            bytes.push(u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap());
            rest = behind;
        } else {
            bytes.push(*first);
        }
    }
    OsString::from_vec(bytes).into()
}

fn texts(list: &Value) -> Vec<PathBuf> {
    list.as_array().unwrap().iter().map(|text| decode(text.as_str().unwrap())).collect()
}

#[test]
fn classes_samples_and_labels_are_torchvisions() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("torchvision/samples.json")).unwrap();
    assert!(cases.len() > 30);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let tree = Tree::new();
        for item in case["tree"].as_array().unwrap() {
            let path = decode(item[1].as_str().unwrap());
            match item[0].as_str().unwrap() {
                "dir" => tree.dir(path),
                "file" => tree.file(path),
                "link" => tree.link(decode(item[2].as_str().unwrap()), path),
                other => panic!("{other}"),
            };
        }
        let options = &case["options"];
        let open = |hidden: bool| {
            let mut builder =
                ImageFolder::builder(tree.root()).cache(TableCache::Off).hidden(hidden);
            if options["allow_empty"] == true {
                builder = builder.empty_classes(EmptyClasses::Keep);
            }
            if let Some(list) = options["extensions"].as_array() {
                builder = builder.extensions(list.iter().map(|e| e.as_str().unwrap()));
            }
            if options["classes"].is_array() {
                builder = builder.classes(texts(&options["classes"]));
            }
            if let Some(end) = options["predicate_ends"].as_str() {
                let end = end.to_owned();
                builder = builder.predicate(None, move |path| {
                    path.as_os_str().as_bytes().ends_with(end.as_bytes())
                });
            }
            builder.open().unwrap()
        };
        let theirs: Vec<(PathBuf, i64)> = case["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| (decode(s[0].as_str().unwrap()), s[1].as_i64().unwrap()))
            .collect();
        let classes: Vec<OsString> =
            texts(&case["classes"]).into_iter().map(PathBuf::into_os_string).collect();
        let left_out = texts(&case["left_out"]);

        // As torchvision where names with dots count too, except for broken links.
        let all = open(true);
        let broken = |path: &Path| !tree.path(path).exists();
        let expected: Vec<_> = theirs.iter().filter(|(p, _)| !broken(p)).cloned().collect();
        assert_eq!(samples(&all), expected, "{name}");
        assert_eq!(all.classes().map(OsStr::to_owned).collect::<Vec<_>>(), classes, "{name}");

        // By default without what is listed, and without hidden classes.
        let ours = open(false);
        let visible: Vec<_> =
            classes.iter().filter(|c| !c.as_bytes().starts_with(b".")).cloned().collect();
        let label = |class: i64| {
            let class = &classes[class as usize];
            visible.iter().position(|c| c == class).unwrap() as i64
        };
        let expected: Vec<_> = theirs
            .iter()
            .filter(|(path, _)| !left_out.contains(path))
            .map(|(path, class)| (path.clone(), label(*class)))
            .collect();
        assert_eq!(samples(&ours), expected, "{name}");
        assert_eq!(ours.classes().map(OsStr::to_owned).collect::<Vec<_>>(), visible, "{name}");
        for (path, class) in samples(&ours) {
            let name = path.components().next().unwrap();
            assert_eq!(ours.class_to_idx(name), Some(class));
        }
        ours.table().verify().unwrap();
    }
}

// ------------------------------------------------- changes between two openings

/// A change, and whether it changes a directory of the tree at all.
type Change = (&'static str, fn(&Tree), bool);

const CHANGES: [Change; 28] = [
    ("nothing", |_| {}, false),
    ("file added", |t| t.file("a/9.jpg"), true),
    ("file removed", |t| t.remove("a/1.jpg"), true),
    ("file renamed", |t| t.rename("a/1.jpg", "a/0.jpg"), true),
    ("file moved to another class", |t| t.rename("a/1.jpg", "b/1_.jpg"), true),
    ("file overwritten in place", |t| fs::write(t.path("a/1.jpg"), "new").unwrap(), false),
    (
        "file replaced by another",
        |t| {
            t.file("spare");
            t.rename("spare", "a/1.jpg");
        },
        true,
    ),
    (
        "file replaced by a folder",
        |t| {
            t.remove("a/1.jpg");
            t.file("a/1.jpg/x.jpg");
        },
        true,
    ),
    ("file added, times set back", |t| t.keeping_mtime("a", |t| t.file("a/9.jpg")), true),
    ("file removed, times set back", |t| t.keeping_mtime("a", |t| t.remove("a/1.jpg")), true),
    ("nested folder added", |t| t.file("a/new/deep/1.jpg"), true),
    ("nested folder removed", |t| fs::remove_dir_all(t.path("a/sub")).unwrap(), true),
    ("nested folder renamed", |t| t.rename("a/sub", "a/other"), true),
    ("file added deep down", |t| t.file("a/sub/deep/9.jpg"), true),
    ("empty folder added", |t| t.dir("a/empty"), true),
    ("class added", |t| t.file("aa/1.jpg"), true),
    ("empty class added", |t| t.dir("empty"), true),
    ("class removed", |t| fs::remove_dir_all(t.path("a")).unwrap(), true),
    ("class renamed", |t| t.rename("a", "z"), true),
    (
        "classes swapped",
        |t| {
            t.rename("a", "swap");
            t.rename("b", "a");
            t.rename("swap", "b");
        },
        true,
    ),
    (
        "nested folders swapped",
        |t| {
            t.rename("a/sub", "a/swap");
            t.rename("b/sub", "a/sub");
            t.rename("a/swap", "b/sub");
        },
        true,
    ),
    (
        "link led elsewhere",
        |t| {
            t.remove("links/folder");
            t.link("../../outside/two", "links/folder");
        },
        true,
    ),
    ("file added behind a link", |t| t.file("../outside/one/9.jpg"), true),
    (
        "link behind a link led elsewhere",
        |t| {
            t.remove("../outside/hop");
            t.link("two", "../outside/hop");
        },
        true,
    ),
    (
        "link behind a link led back up",
        |t| {
            t.remove("../outside/hop");
            t.link("../root/links", "../outside/hop");
        },
        true,
    ),
    ("target of a link removed", |t| fs::remove_dir_all(t.path("../outside/one")).unwrap(), true),
    ("junk added", |t| t.file("a/.DS_Store"), true),
    ("file beside the classes", |t| t.file("README"), true),
];

fn changeable() -> Tree {
    let tree = Tree::new();
    for file in [
        "a/1.jpg",
        "a/2.JPG",
        "a/x.txt",
        "a/sub/3.jpg",
        "a/sub/deep/4.jpg",
        "b/5.png",
        "b/sub/6.jpg",
        "../outside/one/7.jpg",
        "../outside/two/8.jpg",
        "links/9.jpg",
    ] {
        tree.file(file);
    }
    tree.link("../../outside/one", "links/folder");
    tree.link("one", "../outside/hop");
    tree.link("../../outside/hop", "links/hop");
    tree
}

#[test]
fn an_opening_after_any_change_shows_what_a_fresh_scan_shows() {
    let trees: Vec<_> = CHANGES.iter().map(|change| (change, changeable())).collect();
    // Until the times of the folders are old enough to be trusted.
    std::thread::sleep(Duration::from_millis(3100));
    for (_, tree) in &trees {
        assert_eq!(kept(tree).origin(), TableOrigin::Scanned);
        assert_eq!(kept(tree).origin(), TableOrigin::Attached);
    }
    for ((name, change, noticed), tree) in &trees {
        change(tree);
        let again = kept(tree);
        let expected = if *noticed { TableOrigin::Refreshed } else { TableOrigin::Attached };
        assert_eq!(again.origin(), expected, "{name}");
        assert_eq!(show(&again), show(&fresh(tree.root())), "{name}");
        // What was written is what was shown.
        assert_eq!(show(&kept(tree)), show(&again), "{name}");
    }
    for ((name, ..), tree) in trees.iter().filter(|((n, ..), _)| *n == "target of a link removed") {
        tree.file("../outside/one/back.jpg");
        assert_eq!(show(&kept(tree)), show(&fresh(tree.root())), "{name} and restored");
    }
}

#[test]
fn folders_that_changed_just_before_the_scan_are_read_again_until_their_time_is_old() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    assert_eq!(kept(&tree).origin(), TableOrigin::Scanned);
    // Within one tick of the clock the folder's times may stay as they were.
    tree.file("a/2.jpg");
    assert_eq!(kept(&tree).len(), 2);
    assert_eq!(kept(&tree).origin(), TableOrigin::Refreshed);
    std::thread::sleep(Duration::from_millis(3100));
    assert_eq!(kept(&tree).origin(), TableOrigin::Refreshed);
    assert_eq!(kept(&tree).origin(), TableOrigin::Attached);
}

#[test]
fn a_rescan_reads_what_no_time_tells() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    tree.file("../outside/2.jpg");
    tree.link("../../outside/2.jpg", "a/2.jpg");
    kept(&tree);
    std::thread::sleep(Duration::from_millis(3100));
    kept(&tree);
    tree.remove("../outside/2.jpg");
    assert_eq!(kept(&tree).len(), 2);
    let cache = TableCache::Folder(tree.cache());
    let again = ImageFolder::builder(tree.root()).cache(cache).rescan(true).open().unwrap();
    assert_eq!((again.len(), again.origin()), (1, TableOrigin::Scanned));
    assert_eq!(kept(&tree).len(), 1);
}

#[test]
fn a_read_only_folder_is_not_written_to() {
    use std::os::unix::fs::PermissionsExt;
    let tree = Tree::new();
    tree.file("a/1.jpg");
    let mode = |mode| {
        for dir in ["a", ""] {
            fs::set_permissions(tree.path(dir), PermissionsExt::from_mode(mode)).unwrap();
        }
    };
    mode(0o555);
    let times = || ["a", ""].map(|dir| fs::metadata(tree.path(dir)).unwrap().modified().unwrap());
    let before = times();
    assert_eq!(kept(&tree).len(), 1);
    assert_eq!(kept(&tree).len(), 1);
    assert_eq!(times(), before);
    mode(0o755);
}

#[test]
fn a_damaged_table_is_made_again() {
    let tree = Tree::new();
    (0..100).for_each(|i| tree.file(format!("a/{i}.jpg")));
    tree.file("a/left-out.txt");
    std::thread::sleep(Duration::from_millis(3100));
    let good = show(&kept(&tree));
    let path = kept(&tree).table().path().to_owned();
    let bytes = fs::read(&path).unwrap();
    let replace = |bytes: &[u8]| {
        // As a crash of the machine would: another file, not other bytes below a map.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    };
    for len in [0, 1, 100, 511, 512, bytes.len() / 2, bytes.len() - 1] {
        replace(&bytes[..len]);
        assert_eq!(show(&kept(&tree)), good, "{len} bytes");
    }
    let mut flipped = bytes.clone();
    flipped[20] ^= 1;
    replace(&flipped);
    assert_eq!(kept(&tree).origin(), TableOrigin::Scanned);
    // The report lies behind the root and the options; its first byte of a record is a directory's.
    let report_at = u64::from_le_bytes(bytes[176..184].try_into().unwrap()) as usize;
    let mut flipped = bytes.clone();
    flipped[report_at + 3] ^= 1;
    replace(&flipped);
    assert_eq!(show(&kept(&tree)), good);
    // Behind the header only `verify` sees it; a refresh does not build on it.
    let mut flipped = bytes.clone();
    *flipped.iter_mut().rev().find(|b| **b != 0).unwrap() ^= 1;
    replace(&flipped);
    assert!(kept(&tree).table().verify().is_err());
    tree.file("a/new.jpg");
    assert_eq!(show(&kept(&tree)), show(&fresh(tree.root())));
}

// ------------------------------------------------------------ many at once

#[test]
fn processes_and_threads_that_open_at_once_scan_once() {
    const CHILD: &str = "IMAGE_FOLDER_TEST_TREE";
    let open_at = |top: &Path| {
        let cache = TableCache::Folder(top.join("cache"));
        let folder = ImageFolder::builder(top.join("root")).cache(cache).open().unwrap();
        (folder.origin(), folder.fingerprint())
    };
    if let Some(top) = std::env::var_os(CHILD) {
        let (origin, fingerprint) = open_at(Path::new(&top));
        println!("opened {origin:?} {fingerprint}");
        return;
    }
    let tree = Tree::new();
    for i in 0..2000 {
        tree.file(format!("{}/{i}.jpg", i % 50));
    }
    let name = "processes_and_threads_that_open_at_once_scan_once";
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env(CHILD, tree.top())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let barrier = Barrier::new(4);
    let mut opened: Vec<String> = std::thread::scope(|scope| {
        let open = || {
            barrier.wait();
            let (origin, fingerprint) = open_at(tree.top());
            format!("opened {origin:?} {fingerprint}")
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for child in children {
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let line = text.lines().find_map(|line| Some(&line[line.find("opened ")?..]));
        opened.push(line.unwrap().to_owned());
    }
    let scanned = opened.iter().filter(|line| line.contains("Scanned")).count();
    assert_eq!((scanned, opened.len()), (1, 8), "{opened:?}");
    let mut fingerprints: Vec<_> = opened.iter().map(|line| line.rsplit(' ').next()).collect();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 1, "{opened:?}");
}

#[test]
fn folders_and_tables_go_to_other_threads() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    check::<ImageFolder>();
    check::<PathTable>();
}

// ------------------------------------------------------------------ options

#[test]
fn the_report_counts_what_was_left_out_and_survives_the_cache() {
    let tree = Tree::new();
    for file in [
        "a/1.jpg",
        "a/.DS_Store",
        "a/._1.jpg",
        "a/x.TXT",
        "a/y.txt",
        "a/z.avif",
        "a/noext",
        "a/.git/x.jpg",
        "b/1.jpg",
        "top.jpg",
        ".hidden/1.jpg",
    ] {
        tree.file(file);
    }
    tree.link("nowhere", "a/broken.jpg");
    tree.link("..", "a/up");
    tree.link(".", "a/self");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.path("b/pipe.jpg"),
        rustix::fs::FileType::Fifo,
        Mode::RUSR,
        0,
    )
    .unwrap();
    let first = kept(&tree);
    let report = first.report();
    let counts = |reason| {
        let left = report.left_out.iter().filter(move |left| left.reason == reason);
        left.map(|left| (left.detail.as_str(), left.count)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(counts(Reason::Hidden), [("", 4)].into());
    assert_eq!(counts(Reason::Extension), [(".avif", 1), (".txt", 2), ("(none)", 1)].into());
    assert_eq!(counts(Reason::BrokenLink), [("", 1)].into());
    assert_eq!(counts(Reason::Cycle), [("", 2)].into());
    assert_eq!(counts(Reason::Special), [("", 1)].into());
    assert_eq!(counts(Reason::BesideClasses), [("", 1)].into());
    assert_eq!((report.samples, report.classes, report.directories), (2, 2, 3));
    let text = report.to_string();
    assert!(text.contains("2 files with another extension (.txt), such as \"a/x.TXT\""), "{text}");
    assert_eq!(kept(&tree).report(), report);
}

#[test]
fn links_can_be_left_alone() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    tree.link("1.jpg", "a/2.jpg");
    tree.link("a", "b");
    let builder = ImageFolder::builder(tree.root()).cache(TableCache::Off).follow_links(false);
    let folder = builder.open().unwrap();
    assert_eq!((folder.len(), folder.classes().len()), (1, 1));
    assert_eq!(folder.report().count(Reason::Link), 2);
}

#[test]
fn empty_classes_are_refused_kept_or_dropped() {
    let tree = Tree::new();
    tree.file("b/1.jpg");
    tree.file("c/1.txt");
    tree.dir("a");
    let open = |policy| {
        let builder = ImageFolder::builder(tree.root()).cache(TableCache::Folder(tree.cache()));
        builder.empty_classes(policy).open()
    };
    let FolderError::EmptyClasses { classes, .. } = open(EmptyClasses::Refuse).unwrap_err() else {
        panic!()
    };
    assert_eq!(classes, ["a", "c"]);
    let text = open(EmptyClasses::Refuse).unwrap_err().to_string();
    assert!(text.contains("\"a\", \"c\"") && text.contains(".jpeg"), "{text}");
    let folder = open(EmptyClasses::Keep).unwrap();
    assert_eq!((folder.class_to_idx("b"), folder.class_counts()), (Some(1), vec![0, 1, 0]));
    let folder = open(EmptyClasses::Drop).unwrap();
    assert_eq!((folder.class_to_idx("b"), folder.class_counts()), (Some(0), vec![1]));
}

#[test]
fn validation_takes_the_training_classes() {
    let tree = Tree::new();
    tree.file("b/1.jpg");
    tree.file("c/1.jpg");
    let open = |list: &[&str]| {
        let builder = ImageFolder::builder(tree.root()).cache(TableCache::Off);
        builder.classes(list).empty_classes(EmptyClasses::Keep).open()
    };
    let folder = open(&["c", "a", "b"]).unwrap();
    // The order of the samples is that of the names; the labels are the list's.
    assert_eq!(samples(&folder), [("b/1.jpg".into(), 2), ("c/1.jpg".into(), 0)]);
    let error = open(&["a", "b"]).unwrap_err();
    assert!(
        matches!(&error, FolderError::UnknownClasses { classes, known: 2, .. } if *classes == ["c"])
    );
    assert!(matches!(open(&[]), Err(FolderError::Option { option: "classes", .. })));
    assert!(matches!(open(&["a", "a"]), Err(FolderError::Option { option: "classes", .. })));
    let missing = ImageFolder::builder(tree.root()).cache(TableCache::Off).classes(["a", "b", "c"]);
    assert!(matches!(missing.open(), Err(FolderError::EmptyClasses { .. })));
}

#[test]
fn classes_can_be_numbered_by_their_numbers() {
    let tree = Tree::new();
    for class in ["10", "9", "1", "x2", "x10", "01", "x2y"] {
        tree.file(format!("{class}/1.jpg"));
    }
    let builder = ImageFolder::builder(tree.root()).cache(TableCache::Off);
    let folder = builder.class_order(ClassOrder::Natural).open().unwrap();
    let classes: Vec<_> = folder.classes().collect();
    assert_eq!(classes, ["01", "1", "9", "10", "x2", "x2y", "x10"]);
    assert_eq!(samples(&folder)[2], ("10/1.jpg".into(), 3));
}

#[test]
fn a_predicate_replaces_the_extensions_and_is_kept_by_its_key() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    tree.file("a/2.txt");
    let open = |key: Option<&str>, end: &'static str| {
        let builder = ImageFolder::builder(tree.root()).cache(TableCache::Folder(tree.cache()));
        let root = tree.root().to_owned();
        let accept =
            move |path: &Path| path.starts_with(&root) && path.extension() == Some(end.as_ref());
        samples(&builder.predicate(key, accept).open().unwrap())
    };
    assert_eq!(open(None, "txt"), [("a/2.txt".into(), 0)]);
    assert!(!tree.cache().exists(), "kept without a key");
    assert_eq!(open(Some("text"), "txt"), [("a/2.txt".into(), 0)]);
    assert_eq!(open(Some("image"), "jpg"), [("a/1.jpg".into(), 0)]);
    let builder = ImageFolder::builder(tree.root()).cache(TableCache::Off);
    let folder = builder.predicate(None, |path| path.ends_with("1.jpg")).open().unwrap();
    assert_eq!(folder.report().count(Reason::Refused), 1);
}

#[test]
fn tables_of_other_options_are_told_apart() {
    let tree = Tree::new();
    for file in ["a/1.jpg", "a/.2.jpg", "a/3.gif", "b/4.jpg"] {
        tree.file(file);
    }
    let path = tree.top().join("exact.paths");
    let builder = || ImageFolder::builder(tree.root()).cache(TableCache::File(path.clone()));
    assert_eq!(builder().open().unwrap().len(), 2);
    assert_eq!(builder().hidden(true).open().unwrap().len(), 3);
    assert_eq!(builder().extensions(["gif", "jpg"]).open().unwrap().len(), 3);
    assert_eq!(builder().open().unwrap().len(), 2);
    assert_eq!(PathTable::attach(&path).unwrap().len(), 2);
}

#[test]
fn a_folder_mounted_elsewhere_gives_paths_below_the_root_it_was_opened_by() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    let path = tree.top().join("exact.paths");
    let open = |root: &Path| {
        let folder = ImageFolder::builder(root).cache(TableCache::File(path.clone())).open();
        folder.unwrap().sample(0).unwrap().to_path()
    };
    assert_eq!(open(tree.root()), tree.path("a/1.jpg"));
    let other = tree.top().join("mounted");
    symlink(tree.root(), &other).unwrap();
    assert_eq!(open(&other), other.join("a/1.jpg"));
}

// ------------------------------------------------------------------- errors

#[test]
fn what_is_no_folder_of_class_folders_is_told() {
    let tree = Tree::new();
    let open = |root: &Path| ImageFolder::builder(root).cache(TableCache::Off).open().unwrap_err();
    assert!(matches!(open(&tree.path("missing")), FolderError::NotAFolder { .. }));
    tree.file("file");
    assert!(matches!(open(&tree.path("file")), FolderError::NotAFolder { .. }));
    let error = open(tree.root());
    assert!(matches!(error, FolderError::NoClasses { .. }));
    assert!(error.to_string().contains("1 files beside the class folders, such as \"file\""));
    let none: [&str; 0] = [];
    let builder = ImageFolder::builder(tree.root()).extensions(none);
    assert!(matches!(builder.open(), Err(FolderError::Option { option: "extensions", .. })));
    let path = tree.path("file");
    fs::write(&path, "a photograph").unwrap();
    tree.file("a/1.jpg");
    let builder = ImageFolder::builder(tree.root()).cache(TableCache::File(path));
    assert!(matches!(builder.open(), Err(FolderError::Table(TableError::NotATable { .. }))));
}

#[test]
fn folders_that_can_not_be_read_are_refused_or_counted() {
    let tree = Tree::new();
    tree.file("a/1.jpg");
    // Not even root can open a path of more than 4096 bytes.
    let mut at = rustix::fs::open(tree.path("a"), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let name = "d".repeat(250);
    for _ in 0..20 {
        rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let open = |policy| {
        let builder = ImageFolder::builder(tree.root()).cache(TableCache::Folder(tree.cache()));
        builder.unreadable(policy).open()
    };
    let FolderError::Unreadable { count, examples, .. } = open(Unreadable::Refuse).unwrap_err()
    else {
        panic!()
    };
    assert_eq!(count, 1);
    assert!(examples[0].as_bytes().ends_with(b"File name too long (os error 36)"));
    for _ in 0..2 {
        let folder = open(Unreadable::Skip).unwrap();
        assert_eq!((folder.len(), folder.report().count(Reason::Unreadable)), (1, 1));
    }
    assert!(open(Unreadable::Refuse).is_err());
}

#[test]
fn class_names_that_are_not_text_survive_to_messages() {
    let tree = Tree::new();
    tree.dir(OsStr::from_bytes(b"bad\xff\nname"));
    let error = ImageFolder::builder(tree.root()).cache(TableCache::Off).open().unwrap_err();
    assert!(error.to_string().contains(r#""bad\xFF\nname""#), "{error}");
}

impl Tree {
    /// Makes a change below a folder and sets its time of modification back.
    fn keeping_mtime(&self, dir: &str, change: impl FnOnce(&Self)) {
        let stat = rustix::fs::stat(self.path(dir)).unwrap();
        change(self);
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: stat.st_mtime,
                tv_nsec: stat.st_mtime_nsec.try_into().unwrap(),
            },
        };
        let cwd = rustix::fs::CWD;
        rustix::fs::utimensat(cwd, self.path(dir), &times, AtFlags::empty()).unwrap();
        let now = rustix::fs::stat(self.path(dir)).unwrap();
        assert_eq!((now.st_mtime, now.st_mtime_nsec), (stat.st_mtime, stat.st_mtime_nsec));
    }
}
