//! Draws a small image folder that a network can learn in a minute.
//!
//! `train/` and `val/` hold one folder of pictures a class, in the ways that pictures come in real
//! folders: sizes from 60 to 200 pixels, some grey, some PNGs named `.JPEG`, some `.JPG`. The same
//! arguments give the same bytes.

mod picture;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageFormat};
use loader_core::Sample;

use picture::Kind;

#[derive(Parser)]
#[command(about = "Draws a small image folder of shapes and textures to learn from")]
struct Args {
    /// The folder to make; must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of classes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=10))]
    classes: u8,
    /// Training images of each class
    #[arg(long, default_value_t = 200)]
    train_per_class: u64,
    /// Validation images of each class
    #[arg(long, default_value_t = 40)]
    val_per_class: u64,
    /// Another seed gives other pictures
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(images) => {
            println!("{images} images");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<u64, Error> {
    if args.out.exists() {
        return Err(format!("{} exists already", args.out.display()).into());
    }
    // Made aside and renamed, so that what has the name is whole.
    let mut aside = OsString::from(args.out.as_os_str());
    aside.push(".part");
    let aside = PathBuf::from(aside);
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    let classes = &Kind::ALL[..usize::from(args.classes)];
    let mut images = 0;
    for (split, per_class) in [("train", args.train_per_class), ("val", args.val_per_class)] {
        for &kind in classes {
            let folder = aside.join(split).join(kind.name());
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            for number in 0..per_class {
                // Numbered through over both splits: no validation picture is a training picture.
                let id = if split == "train" { number } else { args.train_per_class + number };
                write_picture(&folder, kind, id, args.seed)?;
                images += 1;
            }
        }
    }
    fs::rename(&aside, &args.out)?;
    Ok(images)
}

/// Writes the picture; every sixteenth or so is one of the oddities of real folders.
fn write_picture(folder: &Path, kind: Kind, id: u64, seed: u64) -> Result<(), Error> {
    let sample = Sample { index: id, epoch: kind as u64, seed, occurrence: 0 };
    let mut picture = DynamicImage::from(picture::draw(kind, &mut sample.draws(0)));
    let mut choices = sample.draws(1);
    let quality = 70 + u8::try_from(choices.below(26))?;
    let oddity = choices.below(16);
    if oddity == 0 {
        picture = picture.to_luma8().into();
    }
    let extension = match oddity {
        1 => "JPEG",
        2 => "JPG",
        _ => "jpg",
    };
    let mut bytes = Vec::new();
    if oddity == 1 {
        picture.write_to(&mut std::io::Cursor::new(&mut bytes), ImageFormat::Png)?;
    } else {
        picture.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, quality))?;
    }
    let path = folder.join(format!("{}_{id:05}.{extension}", kind.name()));
    fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()).into())
}
