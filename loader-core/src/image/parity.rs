//! Compares with what Pillow and torchvision made of the same images: `tests/pillow/generate.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::canvas::{Canvas, View, row};
use super::decode::{Limits, decode};
use super::params::{self, Rect, Step};
use super::pipeline::ImageScratch;
use super::transform::*;
use super::write;
use crate::dataset::Sample;
use crate::field::DType;
use crate::rng::Draws;

const SAMPLE: Sample = Sample { index: 0, epoch: 0, seed: 0, occurrence: 0 };

#[derive(Deserialize)]
struct Expectations {
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    kind: String,
    name: String,
    size: (u32, u32),
    seed: u32,
    what: Vec<Value>,
    shape: Vec<usize>,
    at: usize,
    bytes: usize,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow")
}

/// The cases of one kind, each with what it should give.
fn cases(kind: &str) -> Vec<(Case, Vec<u8>)> {
    let text = fs::read(folder().join("cases.json")).unwrap();
    let results = fs::read(folder().join("cases.bin")).unwrap();
    let all: Expectations = serde_json::from_slice(&text).unwrap();
    let with_result = |c: Case| {
        let result = results[c.at..c.at + c.bytes].to_vec();
        (c, result)
    };
    let found: Vec<_> = all.cases.into_iter().filter(|c| c.kind == kind).map(with_result).collect();
    assert!(!found.is_empty());
    found
}

/// The formula of `generate.py`.
fn level(x: u32, y: u32, c: u32, seed: u32) -> u8 {
    let mut h = x.wrapping_mul(73856093)
        ^ y.wrapping_mul(19349663)
        ^ c.wrapping_mul(83492791)
        ^ seed.wrapping_mul(2654435761);
    h ^= h >> 13;
    h = h.wrapping_mul(0x5bd1e995);
    h ^= h >> 15;
    ((x * 5 + y * 3 + c * 40) % 192 + (h & 63)) as u8
}

fn picture((width, height): (u32, u32), seed: u32) -> Vec<u8> {
    let pixel = |x, y| [0, 1, 2].map(|c| level(x, y, c, seed));
    (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect()
}

fn ppm(size: (u32, u32), seed: u32) -> Vec<u8> {
    let mut file = format!("P6 {} {} 255\n", size.0, size.1).into_bytes();
    file.extend(picture(size, seed));
    file
}

fn step(value: &Value) -> Step {
    if let Some(name) = value.as_str() {
        return match name {
            "FlipHorizontal" => Step::FlipHorizontal,
            "FlipVertical" => Step::FlipVertical,
            "Grayscale" => Step::Grayscale,
            other => panic!("{other}"),
        };
    }
    let (name, value) = value.as_object().unwrap().iter().next().unwrap();
    let integer = |v: &Value| v.as_u64().unwrap() as u32;
    match name.as_str() {
        "Crop" => Step::Crop(Rect {
            x: integer(&value["x"]),
            y: integer(&value["y"]),
            width: integer(&value["width"]),
            height: integer(&value["height"]),
        }),
        "Resize" => Step::Resize(
            integer(&value[0]),
            integer(&value[1]),
            serde_json::from_value(value[2].clone()).unwrap(),
        ),
        "Pad" => {
            let (sides, fill) = serde_json::from_value(value.clone()).unwrap();
            Step::Pad(sides, fill)
        }
        "Brightness" => Step::Brightness(value.as_f64().unwrap()),
        "Contrast" => Step::Contrast(value.as_f64().unwrap()),
        "Saturation" => Step::Saturation(value.as_f64().unwrap()),
        "Hue" => Step::Hue(value.as_f64().unwrap()),
        other => panic!("{other}"),
    }
}

/// What is in view, row by row.
fn seen(pixels: &[u8], view: &View) -> Vec<u8> {
    let form = write::Form { layout: Layout::Nhwc, channels: 3, mul: [0.0; 3], add: [0.0; 3] };
    let mut out = vec![0; (view.region.width * view.region.height * 3) as usize];
    write::write::<u8>(pixels, view, &form, &mut out);
    out
}

/// The largest and the mean difference.
fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let each = || a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: u64 = each().map(u64::from).sum();
    (each().max().unwrap_or(0), sum as f64 / a.len().max(1) as f64)
}

#[test]
fn steps_give_what_pillow_gives() {
    let mut worst = BTreeMap::<String, (u8, f64, u32)>::new();
    for (case, want) in cases("steps") {
        let mut scratch =
            ImageScratch { front: picture(case.size, case.seed), ..Default::default() };
        let mut canvas = Canvas::new(&mut scratch, case.size, u64::MAX);
        for value in &case.what {
            canvas.apply(step(value)).unwrap();
        }
        let (pixels, view) = canvas.finish().unwrap();
        assert_eq!([view.region.height as usize, view.region.width as usize], *case.shape);
        let (most, mean) = difference(&seen(pixels, &view), &want);
        let resized = case.name.starts_with("resize") && !case.name.ends_with("nearest");
        let allowed = u8::from(resized);
        assert!(most <= allowed, "{most} levels apart: {case:?}");
        let entry = worst.entry(case.name).or_default();
        *entry = (entry.0.max(most), entry.1 + mean, entry.2 + 1);
    }
    for (name, (_, mean, n)) in worst {
        let mean = mean / f64::from(n);
        assert!(mean < 0.1, "{name}: {mean} levels apart on average");
    }
}

#[test]
fn operations_give_what_torchvision_gives() {
    for (case, want) in cases("ops") {
        let mut transform = Transform::new().dtype(DType::U8).layout(Layout::Nhwc);
        for value in &case.what {
            transform = transform.then(serde_json::from_value::<Op>(value.clone()).unwrap());
        }
        let pipeline = transform.compile().unwrap();
        assert_eq!(pipeline.field().shape, [case.shape[0], case.shape[1], 3], "{case:?}");
        let mut out = vec![0; want.len()];
        let mut scratch = ImageScratch::default();
        pipeline.run(&ppm(case.size, case.seed), &SAMPLE, &mut scratch, &mut out).unwrap();
        let (most, mean) = difference(&out, &want);
        assert!(most <= 1 && mean < 0.2, "{most} levels apart, {mean} on average: {case:?}");
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "element {i}: {a}, not {b}");
    }
}

#[test]
fn normalised_values_are_torchvisions_in_every_form() {
    for (case, want) in cases("values") {
        let want = floats(&want);
        let file = ppm(case.size, case.seed);
        let mut scratch = ImageScratch::default();
        let mut transform =
            Transform::new().then(CenterCrop { height: case.size.1, width: case.size.0 });
        for value in &case.what {
            transform = transform.then(serde_json::from_value::<Op>(value.clone()).unwrap());
        }
        let mut run = |dtype: DType, layout: Layout| {
            let pipeline = transform.clone().dtype(dtype).layout(layout).compile().unwrap();
            // Memory of f32 is aligned enough for every element.
            let mut memory = vec![0f32; want.len()];
            let out = &mut bytemuck::cast_slice_mut(&mut memory)[..want.len() * dtype.size()];
            pipeline.run(&file, &SAMPLE, &mut scratch, out).unwrap();
            match dtype {
                DType::F16 => bytemuck::cast_slice::<_, half::f16>(out)
                    .iter()
                    .map(|v| v.to_f32())
                    .collect::<Vec<_>>(),
                DType::BF16 => {
                    bytemuck::cast_slice::<_, half::bf16>(out).iter().map(|v| v.to_f32()).collect()
                }
                _ => memory,
            }
        };
        let (channels, plane) = (case.shape[0], case.shape[1] * case.shape[2]);
        let planar = |v: Vec<f32>| {
            let at = |i: usize| v[i % plane * channels + i / plane];
            (0..v.len()).map(at).collect::<Vec<_>>()
        };
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 6e-4), (DType::BF16, 5e-3)] {
            assert_close(&run(dtype, Layout::Nchw), &want, tolerance);
            assert_close(&planar(run(dtype, Layout::Nhwc)), &want, tolerance);
        }
    }
}

#[test]
fn erasing_gives_what_torchvision_gives() {
    for (case, want) in cases("erase") {
        let at: Vec<u32> = case.what.iter().map(|v| v.as_u64().unwrap() as u32).collect();
        let pipeline = Transform::new()
            .then(CenterCrop { height: case.size.1, width: case.size.0 })
            .then(Normalize::imagenet())
            .compile()
            .unwrap();
        let mut out = vec![0f32; want.len() / 4];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        let file = ppm(case.size, case.seed);
        pipeline.run(&file, &SAMPLE, &mut ImageScratch::default(), bytes).unwrap();
        let form = write::Form { layout: Layout::Nchw, channels: 3, mul: [0.0; 3], add: [0.0; 3] };
        let part = Rect { y: at[0], x: at[1], height: at[2], width: at[3] };
        write::erase(&mut out, &form, case.size, part, |c| [0.5, -1.0, 2.0][c]);
        assert_close(&out, &floats(&want), 1e-6);
    }
}

/// JPEG decoders differ in rounding, most of all where they smooth chroma that is stored coarser.
fn file_tolerance(name: &str) -> u8 {
    match name {
        "ycc420.jpg" | "ycc422.jpg" => 3,
        name if name.ends_with(".jpg") => 2,
        "lossy.webp" => 2,
        _ => 0,
    }
}

#[test]
fn files_decode_to_what_pillow_converts_them_to() {
    let mut wrong = Vec::new();
    for (case, want) in cases("file") {
        let bytes = fs::read(folder().join("files").join(&case.name)).unwrap();
        let (mut raw, mut rgb) = (Vec::new(), Vec::new());
        let size = decode(&bytes, Limits::default(), &mut raw, &mut rgb);
        assert_eq!(size, Ok(case.size), "{}", case.name);
        let (most, mean) = difference(&rgb, &want);
        if most > file_tolerance(&case.name) {
            wrong.push(format!("{}: {most} levels apart, {mean} on average", case.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn drawn_parameters_have_torchvisions_distributions() {
    const N: usize = 60_000;
    let text = fs::read(folder().join("draws.json")).unwrap();
    let want: BTreeMap<String, Vec<(f64, f64)>> = serde_json::from_slice(&text).unwrap();
    let mut got = BTreeMap::<String, Vec<f64>>::new();
    let mut add = |name: String, value: f64| got.entry(name).or_default().push(value);
    let jitter = ColorJitter::new(0.4, 0.3, 0.2, 0.1);
    let erasing = RandomErasing { p: 1.0, ..RandomErasing::default() };
    let sample = |i: usize| Sample { index: i as u64, ..SAMPLE };
    for i in 0..N {
        let mut draws: Draws = sample(i).draws(0);
        for (w, h) in [(500, 375), (90, 400), (1000, 100)] {
            let part =
                params::random_resized_crop(&RandomResizedCrop::new(224), (w, h), &mut draws);
            let [x, y, pw, ph] = [part.x, part.y, part.width, part.height].map(f64::from);
            let name = |what: &str| format!("RandomResizedCrop {w}x{h} {what}");
            add(name("area"), pw * ph / f64::from(w * h));
            add(name("ratio"), pw / ph);
            add(name("x"), x);
            add(name("y"), y);
            add(name("width"), pw);
        }
        let part = params::random_erasing(&erasing, (96, 64), &mut draws).unwrap();
        let [x, y, pw, ph] = [part.x, part.y, part.width, part.height].map(f64::from);
        add("RandomErasing 96x64 area".into(), pw * ph / (96.0 * 64.0));
        add("RandomErasing 96x64 ratio".into(), ph / pw);
        add("RandomErasing 96x64 x".into(), x);
        add("RandomErasing 96x64 y".into(), y);
        let mut steps = Vec::new();
        let ops = [RandomCrop::new(32).into(), jitter.clone().into()];
        params::steps(&ops, (48, 40), &sample(i), &mut steps).unwrap();
        let Step::Crop(part) = steps[0] else { panic!("{steps:?}") };
        add("RandomCrop 48x40 x".into(), part.x.into());
        add("RandomCrop 48x40 y".into(), part.y.into());
        for (place, step) in steps[1..].iter().enumerate() {
            let (name, factor) = match *step {
                Step::Brightness(f) => ("brightness", f),
                Step::Contrast(f) => ("contrast", f),
                Step::Saturation(f) => ("saturation", f),
                Step::Hue(f) => ("hue", f),
                other => panic!("{other:?}"),
            };
            add(format!("ColorJitter {name}"), factor);
            add(format!("ColorJitter {name} place"), place as f64);
        }
    }
    assert_eq!(want.keys().collect::<Vec<_>>(), got.keys().collect::<Vec<_>>());
    for (name, points) in want {
        let values = &got[&name];
        assert_eq!(values.len(), N, "{name}");
        for (point, share) in points {
            // torchvision draws in single precision.
            let below = values.iter().filter(|&&v| v <= point + 1e-7).count() as f64 / N as f64;
            // Two samples of 60,000: 0.011 is about four standard deviations.
            assert!((below - share).abs() < 0.011, "{name} <= {point}: {below}, not {share}");
        }
    }
}

/// A view is what the final write reads; rows of a region start where the region does.
#[test]
fn rows_of_a_region_are_cut_from_the_stored_image() {
    let size = (5, 4);
    let pixels = picture(size, 1);
    let region = Rect { x: 1, y: 2, width: 3, height: 2 };
    let want: Vec<u8> = (1..4).flat_map(|x| [0, 1, 2].map(|c| level(x, 3, c, 1))).collect();
    assert_eq!(row(&pixels, size, region, 1), want);
}
