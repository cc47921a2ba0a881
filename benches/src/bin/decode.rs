//! Measures what one CPU makes of image files in memory: decoding alone, at an eighth of the size, and the
//! usual transforms.
//!
//! `decode --root FOLDER [--images 1000] [--size 224] [--rounds 5] [--scaling exact|fast]
//! [--only TASK] [--json FILE]`
//!
//! Every round runs all tasks one after the other over all images, so that they share the machine's good
//! and bad moments; the table gives medians. `1/8` shrinks whole files to an eighth of their
//! size, as `Scaling::Fast` does: baseline files with less work than their entropy decoding takes.

use std::fs;
use std::process::ExitCode;

use benches::{Args, median, timed};
use loader_core::ops::{Interpolation, Resize};
use loader_core::{
    DECODER, DType, DecodeOptions, ImageFolder, ImageScratch, Layout, Sample, Scaling, Transform,
};
use serde_json::json;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("decode: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args = Args::parse(&["root", "images", "size", "rounds", "scaling", "only", "json"])?;
    let root = args.path("root")?;
    let size = u32::try_from(args.number("size", 224)?).map_err(|e| format!("--size: {e}"))?;
    let rounds = args.number("rounds", 5)?.max(1);
    let scaling = match args.get("scaling").unwrap_or("exact") {
        "exact" => Scaling::Exact,
        "fast" => Scaling::Fast,
        other => return Err(format!("--scaling is exact or fast, not {other}")),
    };

    let folder = ImageFolder::open(&root).map_err(|e| e.to_string())?;
    // Spread over the folder, whose neighbours are alike.
    let count = folder.len().min(args.number("images", 1000)?.max(1));
    let files = (0..count)
        .map(|i| {
            let index = (u128::from(i) * u128::from(folder.len()) / u128::from(count)) as u64;
            let path = folder.sample(index).map_err(|e| e.to_string())?.to_path();
            fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!("{count} files, {} bytes each on average", bytes / files.len().max(1));
    println!("decoders: {DECODER}; transforms: {scaling:?}");

    let with = |scaling| DecodeOptions { scaling, ..DecodeOptions::default() };
    // One pixel costs nothing. The nearest one needs a whole decode, and an average an eighth's.
    let pixel = |interpolation| Resize::new((1, 1)).interpolation(interpolation);
    let float = |t: Transform| t.to(DType::F32, Layout::Nchw);
    let mut tasks = vec![
        ("1/8", Transform::new().decode(with(Scaling::Fast)).then(pixel(Interpolation::Bilinear))),
        ("decode", Transform::new().then(pixel(Interpolation::Nearest))),
        ("train", Transform::imagenet_train(size).decode(with(scaling))),
        ("eval", Transform::imagenet_eval(size).decode(with(scaling))),
        ("squash", float(Transform::new().decode(with(scaling)).resize((size, size)))),
    ];
    if let Some(only) = args.get("only") {
        tasks.retain(|(name, _)| *name == only);
        if tasks.is_empty() {
            return Err(format!("--only {only}: no such task"));
        }
    }
    let mut scratch = ImageScratch::default();
    let mut rates = vec![Vec::new(); tasks.len()];
    for epoch in 0..rounds {
        for ((_, transform), rates) in tasks.iter().zip(&mut rates) {
            let pipeline = transform.compile().map_err(|e| e.to_string())?;
            let (dtype, shape) = pipeline.field();
            let elements = shape.iter().product::<usize>();
            // Room for floats is aligned for whatever the task writes.
            let mut out = vec![0f32; elements * dtype.size().div_ceil(4)];
            let out = &mut bytemuck::cast_slice_mut(&mut out)[..elements * dtype.size()];
            let (made, time) = timed(|| {
                (0..).zip(&files).try_for_each(|(index, file)| {
                    let sample = Sample { index, epoch, seed: 0, occurrence: 0 };
                    pipeline.run(file, &sample, &mut scratch, out)
                })
            });
            made.map_err(|e| e.to_string())?;
            rates.push(count as f64 / time.as_secs_f64());
        }
    }

    let medians: Vec<f64> = rates.iter().map(|r| median(r).unwrap_or(f64::NAN)).collect();
    println!("{:12} {:>10} {:>10} {:>8}", "task", "images/s", "ms", "of first");
    for ((name, _), rate) in tasks.iter().zip(&medians) {
        println!("{name:12} {rate:>10.1} {:>10.3} {:>7.0}%", 1e3 / rate, 100.0 * rate / medians[0]);
    }
    if let Some(path) = args.get("json") {
        let tasks: serde_json::Map<_, _> = tasks
            .iter()
            .zip(&rates)
            .map(|((name, _), rates)| ((*name).into(), json!(rates)))
            .collect();
        let text = json!({
            "root": root, "images": count, "bytes": bytes, "decoder": DECODER, "size": size,
            "scaling": format!("{scaling:?}"), "images_per_second": tasks,
        });
        fs::write(path, text.to_string()).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}
