//! Makes a folder tree of any number of images by linking to a few, so that scans can be measured
//! without a large dataset at hand.
//!
//! `make_tree --from FOLDER --to FOLDER [--entries 1281167] [--classes 1000]`
//!
//! The classes are named like ImageNet's synsets and the files like its training images, for
//! example `n00000007/n00000007_10026.JPEG`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use benches::{Args, timed};

/// Numbers of one class's files are distinct below this prime, like ImageNet's mostly five digits.
const NUMBERS: u64 = 30_011;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("make_tree: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = Args::parse(&["from", "to", "entries", "classes"])?;
    let (from, to) = (args.path("from")?, args.path("to")?);
    let (entries, classes) = (args.number("entries", 1_281_167)?, args.number("classes", 1000)?);
    if classes == 0 || entries.div_ceil(classes) > NUMBERS {
        return Err(format!("between 1 and {NUMBERS} files a class, please"));
    }
    let mut images = Vec::new();
    collect(&from, &mut images).map_err(|e| format!("{}: {e}", from.display()))?;
    images.sort();
    if images.is_empty() {
        return Err(format!("{}: no image in it", from.display()));
    }
    let (made, took) = timed(|| {
        (0..classes).try_fold(0, |made, class| {
            make_class(
                &to,
                class,
                entries / classes + u64::from(class < entries % classes),
                &images,
            )
            .map(|n| made + n)
        })
    });
    let made = made.map_err(|e| format!("{}: {e}", to.display()))?;
    println!("{made} files in {classes} classes under {} in {took:.1?}", to.display());
    Ok(())
}

/// The image files below a folder.
fn collect(folder: &Path, images: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, images)?;
        } else if path.extension().is_some_and(|e| {
            ["jpeg", "jpg", "png"].iter().any(|known| e.eq_ignore_ascii_case(known))
        }) {
            images.push(path);
        }
    }
    Ok(())
}

fn make_class(to: &Path, class: u64, files: u64, images: &[PathBuf]) -> io::Result<u64> {
    let synset = format!("n{class:08}");
    let folder = to.join(&synset);
    fs::create_dir_all(&folder)?;
    for i in 0..files {
        let number = (i * 7919 + class * 31) % NUMBERS;
        let image = &images[((class + i) % images.len() as u64) as usize];
        let file = folder.join(format!("{synset}_{number}.JPEG"));
        // Another file system, or a file system's limit on links to one file: copy.
        fs::hard_link(image, &file).or_else(|_| fs::copy(image, &file).map(drop))?;
    }
    Ok(files)
}
