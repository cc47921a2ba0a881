//! ImageNet's layouts, on trees of a few files.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod tree;

use std::ffi::OsStr;
use std::path::Path;

use loader_core::{FolderError, ImageNet, ImageNetError, Split, TableCache};
use tree::Tree;

fn open(tree: &Tree, split: Split) -> Result<ImageNet, ImageNetError> {
    ImageNet::builder(tree.root(), split).cache(TableCache::Off).open()
}

/// File names with their labels.
fn labels(data: &ImageNet) -> Vec<(String, i64)> {
    data.folder().table().verify().unwrap();
    let each = data.folder().samples().map(|sample| {
        let sample = sample.unwrap();
        let path = sample.to_path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), sample.label())
    });
    each.collect()
}

fn val(number: u32) -> String {
    format!("ILSVRC2012_val_{number:08}")
}

/// Training images of three classes, and four validation images in one folder.
fn flat() -> Tree {
    let tree = Tree::new();
    for (i, synset) in ["n01440764", "n01443537", "n02119789"].iter().enumerate() {
        tree.file(format!("train/{synset}/{synset}_{i}.JPEG"));
    }
    for number in [3, 1, 2, 4] {
        tree.file(format!("val/{}.JPEG", val(number)));
    }
    tree
}

fn solution(tree: &Tree, path: &str) {
    let rows = [(2, "n01440764 1 2 3 4 "), (1, "n02119789 85 1 499 272 n02119789 1 1 2 2 ")];
    let more = [(4, "n01440764 0 0 1 1"), (3, "n01443537"), (50_000, "n09999999 1 2 3 4")];
    let rows = rows.iter().chain(&more);
    let rows: Vec<_> = rows.map(|(image, boxes)| format!("{},{boxes}", val(*image))).collect();
    tree.text(path, &format!("ImageId,PredictionString\n{}\r\n", rows.join("\r\n")));
}

#[test]
fn class_folders_have_training_labels_and_readable_names() {
    let tree = flat();
    std::fs::remove_dir_all(tree.path("val")).unwrap();
    tree.file("val/n02119789/x.JPEG");
    tree.text(
        "LOC_synset_mapping.txt",
        "n01440764 tench, Tinca tinca\nn02119789 kit fox, Vulpes macrotis\n",
    );
    let train = open(&tree, Split::Train).unwrap();
    assert_eq!(train.folder().len(), 3);
    assert_eq!(train.class_name(0), Some("tench, Tinca tinca"));
    assert_eq!([train.class_name(1), train.class_name(3), train.class_name(-1)], [None; 3]);
    let val = open(&tree, Split::Val).unwrap();
    assert_eq!(labels(&val), [("x.JPEG".to_owned(), 2)]);
    assert_eq!(val.class_name(2), Some("kit fox, Vulpes macrotis"));
    tree.file("val/n00000000/x.JPEG");
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::Folder(FolderError::UnknownClasses { .. })));
}

#[test]
fn one_folder_takes_its_labels_from_the_challenges_table() {
    let tree = flat();
    solution(&tree, "LOC_val_solution.csv");
    tree.text("words.txt", "n02119789\tkit fox\n");
    let data = open(&tree, Split::Val).unwrap();
    let expected = [(1, 2), (2, 0), (3, 1), (4, 0)];
    assert_eq!(labels(&data), expected.map(|(n, label)| (format!("{}.JPEG", val(n)), label)));
    assert_eq!(data.folder().class_counts(), [2, 1, 1]);
    assert_eq!(data.class_name(2), Some("kit fox"));
    assert_eq!(data.folder().sample(0).unwrap().dir(), OsStr::new(""));
    let path = data.folder().sample(3).unwrap().to_path();
    assert_eq!(path, tree.path(format!("val/{}.JPEG", val(4))));

    tree.file(format!("val/{}.JPEG", val(7)));
    let ImageNetError::Unlabelled { count: 1, example, .. } = open(&tree, Split::Val).unwrap_err()
    else {
        panic!()
    };
    assert!(example.ends_with(format!("{}.JPEG", val(7))));
    tree.file(format!("val/{}.JPEG", val(50_000)));
    tree.remove(&format!("val/{}.JPEG", val(7)));
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::UnknownClass { known: 3, .. }), "{error}");
}

#[test]
fn one_folder_takes_its_labels_from_the_development_kit() {
    let tree = flat();
    tree.text("data/ILSVRC2012_validation_ground_truth.txt", "1\n30\n2\n30\n");
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::NoIdMap { .. }));
    assert!(error.to_string().contains("map_clsloc.txt"));
    tree.text(
        "data/map_clsloc.txt",
        "n02119789 1 kit_fox\nn01443537 2 goldfish\nn01440764 30 tench\n",
    );
    let data = open(&tree, Split::Val).unwrap();
    let labels: Vec<_> = labels(&data).into_iter().map(|(_, label)| label).collect();
    assert_eq!(labels, [2, 0, 1, 0]);
    tree.text("data/ILSVRC2012_validation_ground_truth.txt", "1\n\n31\n2\n30\n");
    let ImageNetError::Line { line: 3, what, .. } = open(&tree, Split::Val).unwrap_err() else {
        panic!()
    };
    assert_eq!(what, "no class has number 31");
}

#[test]
fn without_training_images_the_other_files_tell_the_classes() {
    let tree = flat();
    std::fs::remove_dir_all(tree.path("train")).unwrap();
    solution(&tree, "labels.csv");
    let builder = || {
        let builder = ImageNet::builder(tree.root(), Split::Val).cache(TableCache::Off);
        builder.labels(tree.path("labels.csv"))
    };
    let classes = |data: ImageNet| data.folder().classes().map(OsStr::to_owned).collect::<Vec<_>>();
    let own = ["n01440764", "n01443537", "n02119789", "n09999999"];
    assert_eq!(classes(builder().open().unwrap()), own);
    let mapping = "n02119789 kit fox\nn01440764 tench\nn01443537 goldfish\n";
    tree.text("LOC_synset_mapping.txt", mapping);
    assert_eq!(classes(builder().open().unwrap()), own[..3]);
    let given = ["n02119789", "n01443537", "n01440764"];
    assert_eq!(classes(builder().classes(given).open().unwrap()), given);
}

#[test]
fn the_archive_of_the_challenge_is_found() {
    let tree = Tree::new();
    tree.file("ILSVRC/Data/CLS-LOC/train/n01440764/1.JPEG");
    tree.file(format!("ILSVRC/Data/CLS-LOC/val/{}.JPEG", val(1)));
    tree.text("LOC_val_solution.csv", &format!("{},n01440764 1 1 1 1\n", val(1)));
    assert_eq!(open(&tree, Split::Train).unwrap().folder().len(), 1);
    assert_eq!(open(&tree, Split::Val).unwrap().folder().label(0).unwrap(), 0);
}

#[test]
fn what_is_missing_is_told() {
    let tree = Tree::new();
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::NoSplit { split: Split::Val, .. }));
    tree.file("val/1.JPEG");
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::NoLabels { .. }));
    assert!(error.to_string().contains("labels(path)"), "{error}");
    let builder = ImageNet::builder(tree.root(), Split::Val).labels(tree.path("none.csv"));
    assert!(matches!(builder.open(), Err(ImageNetError::NoLabels { .. })));
    tree.text("LOC_val_solution.csv", "ImageId,PredictionString\n1,n1\n1,n2\n");
    let error = open(&tree, Split::Val).unwrap_err();
    assert!(matches!(error, ImageNetError::Line { line: 3, .. }), "{error}");
    tree.text("LOC_val_solution.csv", "1,n1\nrubbish\n");
    let error = open(&tree, Split::Val).unwrap_err();
    let path = tree.path("LOC_val_solution.csv");
    let expected = format!("{path:?}, line 2: expected `image,synset ...`");
    assert_eq!(error.to_string(), expected);
    assert!(Path::new(&path).exists());
}
