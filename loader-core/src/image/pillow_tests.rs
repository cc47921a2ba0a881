//! Comparison with what Pillow and torchvision made of the same images; `tests/pillow/generate.py`
//! wrote the expectations.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::decode::{DecodeOptions, ExifOrientation, Source};
use super::geometry::Rect;
use super::ops::*;
use super::params::{self, Adjust};
use super::plan::{Plan, Step};
use super::{ImageScratch, Transform, color, jpeg};
use crate::dataset::{Sample, SampleError};
use crate::field::DType;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pillow")
}

pub(crate) fn stored<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The generator's `picks`.
fn picks(n: usize) -> Vec<usize> {
    if n <= 64 {
        (0..n).collect()
    } else {
        (0..64).map(|i| i * 2_654_435_761 % n).chain([n - 1]).collect()
    }
}

/// The generator's `pattern`.
pub(super) fn pattern(w: u32, h: u32) -> Vec<u8> {
    let mut rgb = Vec::new();
    for y in 0..i64::from(h) {
        for x in 0..i64::from(w) {
            let b = if (x / 5 + y / 3) % 2 == 0 { x * 2 + y } else { 255 - y * 3 };
            rgb.extend([x * x * 3 / 16 + y * 5, (x ^ y) * 9 + x * y / 7, b].map(|v| v as u8));
        }
    }
    rgb
}

#[derive(Deserialize)]
pub(super) struct Pixels {
    w: u32,
    h: u32,
    pixels: String,
}

impl Pixels {
    /// The differences of all stored values from those of an image.
    fn differences(&self, rgb: &[u8]) -> Vec<u8> {
        let expected = hex(&self.pixels);
        let picks = picks((self.w * self.h) as usize);
        assert_eq!(expected.len(), picks.len() * 3);
        let got = picks.iter().flat_map(|&i| &rgb[i * 3..][..3]);
        got.zip(&expected).map(|(a, b)| a.abs_diff(*b)).collect()
    }

    pub(super) fn assert_within(&self, limit: u8, rgb: &[u8], what: &str) {
        assert_eq!(rgb.len(), (self.w * self.h * 3) as usize, "{what}: size");
        let worst = self.differences(rgb).into_iter().max().unwrap();
        assert!(worst <= limit, "{what}: differs by {worst}");
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GivenStep {
    Crop([u32; 4]),
    Resize(GivenResize),
    CenterCrop((u32, u32)),
    Pad(GivenPad),
    Flip([bool; 2]),
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f64),
    Gray(()),
}

#[derive(Debug, Deserialize)]
struct GivenResize {
    size: Size,
    interpolation: Interpolation,
    max_size: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Edge(u32),
    Exact((u32, u32)),
}

#[derive(Debug, Deserialize)]
struct GivenPad {
    padding: [Vec<u32>; 2],
    fill: [u8; 3],
    mode: PaddingMode,
}

#[derive(Deserialize)]
struct PixelCase {
    image: (u32, u32),
    steps: Vec<GivenStep>,
    #[serde(flatten)]
    expected: Pixels,
}

fn add(plan: &mut Plan, step: &GivenStep) {
    match step {
        GivenStep::Crop([x, y, w, h]) => plan.crop(Rect { x: *x, y: *y, w: *w, h: *h }),
        GivenStep::Resize(step) => {
            let size = match step.size {
                Size::Edge(edge) => Target::SmallerEdge(edge),
                Size::Exact(size) => Target::Exact(size.into()),
            };
            assert!(plan.resize(size, step.max_size, step.interpolation));
        }
        GivenStep::CenterCrop(size) => assert!(plan.center_crop((*size).into())),
        GivenStep::Pad(step) => {
            let padding = step.padding.each_ref().map(|p| match p[..] {
                [all] => all.into(),
                [x, y] => (x, y).into(),
                [left, top, right, bottom] => (left, top, right, bottom).into(),
                _ => panic!("{p:?}"),
            });
            assert!(plan.pad(padding, step.fill.into(), step.mode));
        }
        GivenStep::Flip([horizontal, vertical]) => plan.flip(*horizontal, *vertical),
        GivenStep::Brightness(factor) => plan.adjust(Adjust::Brightness(*factor)),
        GivenStep::Contrast(factor) => plan.adjust(Adjust::Contrast(*factor)),
        GivenStep::Saturation(factor) => plan.adjust(Adjust::Saturation(*factor)),
        GivenStep::Hue(factor) => plan.adjust(Adjust::Hue(*factor)),
        GivenStep::Gray(_) => plan.adjust(Adjust::Gray),
    }
}

/// What the steps that `add` plans make of an image, as interleaved RGB.
pub(super) fn made<S>(
    size: (u32, u32),
    image: Vec<u8>,
    steps: &[S],
    add: impl Fn(&mut Plan, &S),
    scratch: &mut ImageScratch,
) -> Vec<u8> {
    let mut plan = Plan::default();
    plan.start(size.0, size.1);
    steps.iter().for_each(|step| add(&mut plan, step));
    plan.finish(size, &[]);
    let (w, h) = plan.size();
    let pipeline = Transform::new().resize((h, w)).to(DType::U8, Layout::Nhwc).compile().unwrap();
    scratch.image = image;
    let width = pipeline.apply(&plan, size, scratch).unwrap();
    let mut out = vec![0; (w * h * 3) as usize];
    pipeline.write(&mut plan, scratch, width, &mut out).unwrap();
    out
}

impl PixelCase {
    /// What its steps make of the test image.
    fn made(&self, scratch: &mut ImageScratch) -> Vec<u8> {
        let (w, h) = self.image;
        made(self.image, pattern(w, h), &self.steps, add, scratch)
    }
}

#[test]
fn resize_and_crop_are_pillows_within_one_level() {
    let mut scratch = ImageScratch::default();
    let (mut sum, mut count, mut cases) = (0u64, 0u64, 0);
    for case in stored::<Vec<PixelCase>>("pixels.json") {
        let Some(interpolation) = case.steps.iter().find_map(|s| match s {
            GivenStep::Resize(step) => Some(step.interpolation),
            _ => None,
        }) else {
            continue;
        };
        let limit = if interpolation == Interpolation::Nearest { 0 } else { 1 };
        let what = format!("{:?} {:?}", case.image, case.steps);
        let out = case.made(&mut scratch);
        case.expected.assert_within(limit, &out, &what);
        let differences = case.expected.differences(&out);
        sum += differences.iter().map(|&d| u64::from(d)).sum::<u64>();
        count += differences.len() as u64;
        cases += 1;
    }
    assert!(cases >= 500, "{cases}");
    let mean = sum as f64 / count as f64;
    assert!(mean < 0.1, "mean difference {mean}");
}

#[test]
fn colour_padding_and_flips_are_pillows_exactly() {
    let mut scratch = ImageScratch::default();
    let mut cases = 0;
    for case in stored::<Vec<PixelCase>>("pixels.json") {
        if !case.steps.iter().any(|s| matches!(s, GivenStep::Resize(_))) {
            let what = format!("{:?} {:?}", case.image, case.steps);
            case.expected.assert_within(0, &case.made(&mut scratch), &what);
            cases += 1;
        }
    }
    assert!(cases >= 80, "{cases}");
}

#[derive(Deserialize)]
struct ColorCase {
    steps: [GivenStep; 1],
    checksum: u64,
}

#[test]
fn colour_adjustments_are_pillows_for_a_million_colours() {
    let image: Vec<u8> =
        (0..1u32 << 20).flat_map(|i| [i as u8, (i >> 8) as u8, (i >> 16) as u8 * 17]).collect();
    for case in stored::<Vec<ColorCase>>("colors.json") {
        let mut plan = Plan::default();
        plan.start(1024, 1024);
        add(&mut plan, &case.steps[0]);
        let [Step::Adjust(rect, adjust)] = plan.steps[..] else { panic!("{plan:?}") };
        let mut adjusted = image.clone();
        color::apply(&mut adjusted, 1024, rect, adjust);
        let checksum: u64 =
            (0u64..).zip(&adjusted).map(|(i, &v)| (i % 65_521 + 1) * u64::from(v)).sum();
        assert_eq!(checksum, case.checksum, "{:?}", case.steps);
    }
}

#[derive(Deserialize)]
struct TensorCase {
    w: u32,
    h: u32,
    rect: Option<[u32; 4]>,
    value: Option<Vec<f32>>,
    values: String,
}

#[test]
fn normalised_and_erased_tensors_are_torchvisions_bit_for_bit() {
    for case in stored::<Vec<TensorCase>>("tensors.json") {
        let erase = match case.value.as_deref() {
            None | Some([]) => Erase::default(),
            Some([all]) => Erase::Constant(*all),
            Some(values) => Erase::PerChannel(values.into()),
        };
        let transform = Transform::new()
            .resize((case.h, case.w))
            .to(DType::F32, Layout::Nchw)
            .then(Normalize::imagenet())
            .then(RandomErasing::new(1.0).value(erase));
        let pipeline = transform.compile().unwrap();
        let mut plan = Plan::default();
        plan.start(case.w, case.h);
        if let Some([x, y, w, h]) = case.rect {
            let draws = Sample { index: 0, epoch: 0, seed: 0, occurrence: 0 }.draws(0);
            plan.erase(Rect { x, y, w, h }, 0, draws);
        }
        let scratch = ImageScratch { image: pattern(case.w, case.h), ..ImageScratch::default() };
        let mut out = vec![0f32; (case.w * case.h * 3) as usize];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        pipeline.write(&mut plan, &scratch, case.w, bytes).unwrap();
        let expected: Vec<f32> = hex(&case.values)
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        let got: Vec<f32> = picks(out.len()).into_iter().map(|i| out[i]).collect();
        assert_eq!(got, expected, "{}x{} {:?}", case.w, case.h, case.rect);
    }
}

fn decoded(bytes: &[u8], options: &DecodeOptions) -> Result<(u32, u32, Vec<u8>), SampleError> {
    let mut scratch = jpeg::Scratch::default();
    let source = Source::open(bytes, options, &mut scratch)?;
    let (w, h) = source.size();
    let (mut rgb, mut spare) = (Vec::new(), Vec::new());
    source.read(Rect::whole(w, h), 8, &mut rgb, &mut spare)?;
    rgb.truncate((w * h * 3) as usize);
    Ok((w, h, rgb))
}

#[test]
fn every_kind_of_file_decodes_to_pillows_rgb() {
    let mut report = Vec::new();
    for (name, expected) in stored::<BTreeMap<String, Pixels>>("images.json") {
        let bytes = std::fs::read(folder().join("images").join(&name)).unwrap();
        let (w, h, rgb) = match decoded(&bytes, &DecodeOptions::default()) {
            Ok(decoded) => decoded,
            Err(e) => {
                report.push(format!("{name}: {e}"));
                continue;
            }
        };
        assert_eq!((w, h), (expected.w, expected.h), "{name}");
        // Lossy formats leave the rounding of their transforms to the decoder.
        let limit = match name.as_str() {
            "png_named.jpg" => 0,
            "lossy.webp" => 2,
            name if name.ends_with(".jpg") => 2,
            _ => 0,
        };
        let worst = expected.differences(&rgb).into_iter().max().unwrap();
        if worst > limit {
            report.push(format!("{name}: differs by {worst}"));
        }
    }
    assert!(report.is_empty(), "{report:#?}");
}

#[derive(Deserialize)]
struct Turned {
    file: String,
    #[serde(flatten)]
    expected: Pixels,
}

#[test]
fn exif_orientation_is_applied_on_request_and_ignored_by_default() {
    let apply = DecodeOptions { orientation: ExifOrientation::Apply, ..DecodeOptions::default() };
    for (name, case) in stored::<BTreeMap<String, Turned>>("orientations.json") {
        let bytes = hex(&case.file);
        let (w, h, rgb) = decoded(&bytes, &apply).unwrap();
        assert_eq!((w, h), (case.expected.w, case.expected.h), "{name}");
        case.expected.assert_within(2, &rgb, &name);
        let (w, h, _) = decoded(&bytes, &DecodeOptions::default()).unwrap();
        assert_eq!((w, h), (20, 12), "{name}");
    }
}

#[derive(Deserialize)]
pub(crate) struct Summary {
    mean: f64,
    std: f64,
    quantiles: [f64; 5],
}

impl Summary {
    /// Compares moments and quantiles: our draws are as many again, and both have errors. What is
    /// tested is the share of our draws at or below torchvision's quantiles, which has the same
    /// error whatever the distribution; ties of whole numbers widen it by their own weight.
    pub(crate) fn assert_like(&self, values: &[f64], what: &str) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        let error = (2.0 / n).sqrt();
        assert!(
            (mean - self.mean).abs() <= 5.0 * self.std * error + 1e-9,
            "{what}: mean {mean}, torchvision's {}",
            self.mean
        );
        // The error of a deviation grows with the fourth moment; of two values, equally often, only
        // its square is left.
        let fourth = values.iter().map(|v| (v - mean).powi(4)).sum::<f64>() / n;
        let kurtosis = fourth / std.powi(4).max(f64::MIN_POSITIVE);
        assert!(
            (std - self.std).abs()
                <= 2.5 * self.std * error * (kurtosis - 1.0).max(0.0).sqrt()
                    + 25.0 * self.std / n
                    + 1e-9,
            "{what}: deviation {std}, torchvision's {}",
            self.std
        );
        for (share, quantile) in [0.05, 0.25, 0.5, 0.75, 0.95].into_iter().zip(self.quantiles) {
            let slack = 5.0 * error * f64::sqrt(share * (1.0 - share));
            let near = 1e-9 + quantile.abs() * 1e-6;
            let count = |upto: f64| values.iter().filter(|&&v| v <= upto).count() as f64 / n;
            let (below, upto) = (count(quantile - near), count(quantile + near));
            assert!(
                below - slack <= share && share <= upto + slack,
                "{what}: {below}..{upto} of the draws up to torchvision's quantile {share}"
            );
        }
    }
}

#[derive(Deserialize)]
struct WindowCase {
    image: (u32, u32),
    scale: (f64, f64),
    ratio: (f64, f64),
    found: Option<f64>,
    area: Summary,
    log_aspect: Summary,
    center_y: Summary,
    center_x: Summary,
}

#[derive(Deserialize)]
struct CropCase {
    image: (u32, u32),
    size: (u32, u32),
    y: Summary,
    x: Summary,
}

#[derive(Deserialize)]
struct JitterCase {
    factors: [f64; 4],
    place: [Summary; 4],
    drawn: [Summary; 4],
}

#[derive(Deserialize)]
struct Distributions {
    draws: u64,
    random_resized_crop: Vec<WindowCase>,
    random_crop: Vec<CropCase>,
    random_erasing: Vec<WindowCase>,
    color_jitter: JitterCase,
}

pub(crate) fn samples(n: u64) -> impl Iterator<Item = Sample> {
    (0..n).map(|index| Sample { index, epoch: 3, seed: 11, occurrence: 0 })
}

fn column<T>(values: &[T], f: impl Fn(&T) -> f64) -> Vec<f64> {
    values.iter().map(f).collect()
}

#[test]
fn drawn_windows_are_distributed_as_torchvisions() {
    let stored = stored::<Distributions>("distributions.json");
    for case in &stored.random_resized_crop {
        let (h, w) = case.image;
        let op = RandomResizedCrop::new(224)
            .scale(case.scale.0, case.scale.1)
            .ratio(case.ratio.0, case.ratio.1);
        let drawn: Vec<Rect> = samples(stored.draws)
            .map(|s| params::random_resized_crop(&mut s.draws(0), w, h, &op))
            .collect();
        compare_windows(case, &drawn, |r| f64::from(r.w) / f64::from(r.h), "RandomResizedCrop");
    }
    for case in &stored.random_erasing {
        let (h, w) = case.image;
        let op =
            RandomErasing { p: 1.0, scale: case.scale, ratio: case.ratio, value: Erase::default() };
        let drawn: Vec<Rect> = samples(stored.draws)
            .filter_map(|s| params::random_erasing(&mut s.draws(0), w, h, &op))
            .collect();
        let found = drawn.len() as f64 / stored.draws as f64;
        assert!((found - case.found.unwrap()).abs() < 0.01, "{found}");
        compare_windows(case, &drawn, |r| f64::from(r.h) / f64::from(r.w), "RandomErasing");
    }
    for case in &stored.random_crop {
        let (h, w) = case.image;
        let drawn: Vec<Rect> = samples(stored.draws)
            .filter_map(|s| params::random_crop(&mut s.draws(0), w, h, case.size.into()))
            .collect();
        assert_eq!(drawn.len() as u64, stored.draws);
        case.y.assert_like(&column(&drawn, |r| f64::from(r.y)), "RandomCrop y");
        case.x.assert_like(&column(&drawn, |r| f64::from(r.x)), "RandomCrop x");
    }
}

fn compare_windows(case: &WindowCase, drawn: &[Rect], aspect: impl Fn(&Rect) -> f64, op: &str) {
    let (h, w) = (f64::from(case.image.0), f64::from(case.image.1));
    let what = |name| format!("{op} of {:?}: {name}", case.image);
    let area = column(drawn, |r| f64::from(r.w) * f64::from(r.h) / (w * h));
    case.area.assert_like(&area, &what("area"));
    case.log_aspect.assert_like(&column(drawn, |r| aspect(r).ln()), &what("aspect"));
    let center_y = column(drawn, |r| (f64::from(r.y) + f64::from(r.h) / 2.0) / h);
    case.center_y.assert_like(&center_y, &what("y"));
    let center_x = column(drawn, |r| (f64::from(r.x) + f64::from(r.w) / 2.0) / w);
    case.center_x.assert_like(&center_x, &what("x"));
}

#[test]
fn jitter_is_distributed_as_torchvisions() {
    let stored = stored::<Distributions>("distributions.json");
    let [b, c, s, h] = stored.color_jitter.factors;
    let op = ColorJitter::new(b, c, s, h);
    let (mut places, mut factors) = ([const { Vec::new() }; 4], [const { Vec::new() }; 4]);
    for sample in samples(stored.draws) {
        for (place, adjust) in params::color_jitter(&mut sample.draws(0), &op).enumerate() {
            let (kind, factor) = match adjust {
                Adjust::Brightness(f) => (0, f64::from(f)),
                Adjust::Contrast(f) => (1, f64::from(f)),
                Adjust::Saturation(f) => (2, f64::from(f)),
                Adjust::Hue(f) => (3, f),
                Adjust::Gray | Adjust::Levels(_) => panic!("{adjust:?}"),
            };
            places[kind].push(place as f64);
            factors[kind].push(factor);
        }
    }
    for kind in 0..4 {
        let case = &stored.color_jitter;
        case.place[kind].assert_like(&places[kind], &format!("place of {kind}"));
        case.drawn[kind].assert_like(&factors[kind], &format!("factor of {kind}"));
    }
}

fn jpeg_kind(name: &str) -> Vec<u8> {
    std::fs::read(folder().join("jpegs").join(format!("{name}.jpg"))).unwrap()
}

/// What the decoder written in Rust refuses, and how it names it.
#[cfg(not(feature = "libjpeg-turbo"))]
fn refused(name: &str) -> Option<&'static str> {
    match name {
        "arithmetic" | "arithmetic_progressive" => Some("arithmetic coding"),
        "lossless" => Some("lossless coding"),
        "jfif_and_adobe_rgb" => Some("an Adobe marker contradicts"),
        "scan_for_each_component_420" => Some("a scan for each component"),
        _ if name.contains("_three") => Some("a sampling factor of 3"),
        _ if name.contains("_larger_colour") => Some("colour of a higher resolution"),
        _ => None,
    }
}

#[cfg(feature = "libjpeg-turbo")]
fn refused(_: &str) -> Option<&'static str> {
    None
}

#[test]
fn every_kind_of_jpeg_decodes_to_pillows_rgb() {
    let mut report = Vec::new();
    for (name, expected) in stored::<BTreeMap<String, Pixels>>("jpegs.json") {
        match (decoded(&jpeg_kind(&name), &DecodeOptions::default()), refused(&name)) {
            (Err(e), Some(part)) => {
                assert!(e.message.contains(part), "{name}: {e}");
                assert!(e.message.contains("needs libjpeg-turbo"), "{name}: {e}");
            }
            (Ok(_), Some(_)) => report.push(format!("{name}: is not refused")),
            (Err(e), None) => report.push(format!("{name}: {e}")),
            (Ok((w, h, rgb)), None) => {
                assert_eq!((w, h), (expected.w, expected.h), "{name}");
                let worst = expected.differences(&rgb).into_iter().max().unwrap();
                // libjpeg-turbo is what Pillow uses. The other rounds differently, and interpolates
                // colour in images so narrow that libjpeg does not.
                let limit = match name.as_str() {
                    _ if cfg!(feature = "libjpeg-turbo") => 0,
                    "size_1x9" | "size_3x5" => 4,
                    _ => 2,
                };
                if worst > limit {
                    report.push(format!("{name}: differs by {worst}"));
                }
            }
        }
    }
    assert!(report.is_empty(), "{report:#?}");
}

#[test]
fn a_jpeg_that_is_none_of_8_bits_with_a_size_and_an_end_is_a_clear_error() {
    for (name, part) in [
        ("bad_twelve_bits", "12 bits"),
        ("bad_two_components", "2 components can't be converted to RGB"),
        ("bad_no_height", ""),
        ("bad_no_end", "truncated"),
        ("bad_half", ""),
    ] {
        let error = decoded(&jpeg_kind(name), &DecodeOptions::default()).unwrap_err();
        assert!(error.message.starts_with("JPEG: "), "{name}: {error}");
        assert!(error.message.contains(part), "{name}: {error}");
    }
}

/// 400 scans of an empty one: with a few more bytes it could be days of work.
#[cfg(feature = "libjpeg-turbo")]
#[test]
fn a_jpeg_of_hundreds_of_scans_is_refused() {
    let error = decoded(&jpeg_kind("bad_many_scans"), &DecodeOptions::default()).unwrap_err();
    assert!(error.message.contains("more than 100 scans"), "{error}");
}
