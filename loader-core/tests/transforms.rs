//! Transforms through the public interface, on files made here.

#![allow(clippy::unwrap_used)] // helpers outside of test functions

use half::{bf16, f16};
use image::ImageEncoder;
use image::codecs::jpeg::JpegEncoder;
use loader_core::ops::{
    Custom, Erase, GaussianBlur, Interpolation, RandAugment, RandomAdjustSharpness, RandomAffine,
    RandomCrop, RandomErasing, RandomInvert, RandomResizedCrop, RandomRotation, Resize,
    TrivialAugmentWide,
};
use loader_core::{
    DType, DecodeOptions, ExifOrientation, ImageScratch, Layout, Pipeline, Sample, SampleError,
    Scaling, Stage, Transform, TransformError, register_transform,
};

/// A binary PPM: lossless, and its pixels can be read off.
fn ppm(w: u32, h: u32, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<u8> {
    let mut file = format!("P6 {w} {h} 255\n").into_bytes();
    for y in 0..h {
        for x in 0..w {
            file.extend(pixel(x, y));
        }
    }
    file
}

fn texture(x: u32, y: u32) -> [u8; 3] {
    [x * 5 + y, (x ^ y) * 3, x * y / 4].map(|v| v as u8)
}

fn jpeg(w: u32, h: u32) -> Vec<u8> {
    let pixels: Vec<u8> =
        (0..h).flat_map(|y| (0..w).flat_map(move |x| texture(x / 3, y / 3))).collect();
    let mut file = Vec::new();
    JpegEncoder::new_with_quality(&mut file, 90)
        .write_image(&pixels, w, h, image::ExtendedColorType::Rgb8)
        .unwrap();
    file
}

fn sample(index: u64) -> Sample {
    Sample { index, epoch: 0, seed: 7, occurrence: 0 }
}

/// One sample as elements of type `T`.
fn run<T: bytemuck::Pod>(
    transform: &Transform,
    file: &[u8],
    sample: Sample,
) -> Result<Vec<T>, SampleError> {
    let pipeline = transform.compile().unwrap();
    let elements = pipeline.field().1.iter().product();
    let mut out = vec![T::zeroed(); elements];
    let bytes = bytemuck::cast_slice_mut(&mut out);
    pipeline.run(file, &sample, &mut ImageScratch::default(), bytes)?;
    Ok(out)
}

#[test]
fn raw_bytes_are_the_files_in_either_layout() {
    let file = ppm(5, 4, texture);
    let raw = Transform::new().resize((4, 5));
    let pixels = &file[file.len() - 60..];
    assert_eq!(
        run::<u8>(&raw.clone().to(DType::U8, Layout::Nhwc), &file, sample(0)).unwrap(),
        pixels
    );
    let planes = run::<u8>(&raw.to(DType::U8, Layout::Nchw), &file, sample(0)).unwrap();
    for (i, value) in planes.iter().enumerate() {
        assert_eq!(*value, pixels[i % 20 * 3 + i / 20]);
    }
}

#[test]
fn every_float_type_is_the_f32_value_rounded_once() {
    let file = ppm(16, 16, |x, y| [(y * 16 + x) as u8, (x * y) as u8, 255]);
    let to = |dtype| {
        Transform::new()
            .resize((16, 16))
            .to(dtype, Layout::Nhwc)
            .normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    };
    let exact = run::<f32>(&to(DType::F32), &file, sample(0)).unwrap();
    assert_eq!(exact[0], (0.0f32 / 255.0 - 0.485) / 0.229);
    let half = run::<f16>(&to(DType::F16), &file, sample(0)).unwrap();
    let brain = run::<bf16>(&to(DType::BF16), &file, sample(0)).unwrap();
    for ((exact, half), brain) in exact.iter().zip(half).zip(brain) {
        assert_eq!((half, brain), (f16::from_f32(*exact), bf16::from_f32(*exact)));
    }
}

#[test]
fn certain_flips_mirror_in_every_type_and_layout() {
    let file = ppm(6, 3, texture);
    let mirrored = ppm(6, 3, |x, y| texture(5 - x, 2 - y));
    for layout in [Layout::Nchw, Layout::Nhwc] {
        for channels in [1, 3] {
            let plain = Transform::new().resize((3, 6)).grayscale(channels).to(DType::F32, layout);
            let flipped = plain.clone().random_horizontal_flip(1.0).random_vertical_flip(1.0);
            assert_eq!(
                run::<f32>(&flipped, &file, sample(0)).unwrap(),
                run::<f32>(&plain, &mirrored, sample(0)).unwrap()
            );
        }
    }
}

#[test]
fn a_flip_before_a_crop_is_a_flip_of_the_file() {
    let file = ppm(60, 40, texture);
    let mirrored = ppm(60, 40, |x, y| texture(59 - x, y));
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear] {
        let rest = |t: Transform| {
            t.then(Resize::new(31).interpolation(interpolation))
                .then(RandomCrop::new((24, 50)).padding((1, 2, 3, 4)).fill([9, 8, 7]))
                .to(DType::U8, Layout::Nhwc)
        };
        let center = |t: Transform| {
            t.then(Resize::new(31).interpolation(interpolation)).center_crop((24, 50))
        };
        let flip = Transform::new().random_horizontal_flip(1.0);
        let never = Transform::new().random_horizontal_flip(0.0);
        for (flipped, plain) in
            [(rest(flip.clone()), rest(never.clone())), (center(flip), center(never))]
        {
            let one = run::<u8>(&flipped, &file, sample(3)).unwrap();
            let other = run::<u8>(&plain, &mirrored, sample(3)).unwrap();
            let limit = if interpolation == Interpolation::Nearest { 0 } else { 1 };
            assert!(one.iter().zip(&other).all(|(a, b)| a.abs_diff(*b) <= limit));
        }
    }
}

#[test]
fn a_sample_depends_on_its_key_alone() {
    let file = jpeg(320, 240);
    let transform =
        Transform::imagenet_train(64).then(RandomErasing::new(0.9).value(Erase::Random));
    let key = Sample { index: 5, epoch: 1, seed: 42, occurrence: 0 };
    let first = run::<f32>(&transform, &file, key).unwrap();
    assert_eq!(first, run::<f32>(&transform, &file, key).unwrap());
    for other in [
        Sample { index: 6, ..key },
        Sample { epoch: 2, ..key },
        Sample { seed: 43, ..key },
        Sample { occurrence: 1, ..key },
    ] {
        assert_ne!(first, run::<f32>(&transform, &file, other).unwrap(), "{other:?}");
    }
}

/// Runs on a scratch that other images were made with.
fn used(
    pipeline: &Pipeline,
    scratch: &mut ImageScratch,
    file: &[u8],
) -> Result<Vec<f32>, SampleError> {
    let mut out = vec![f32::NAN; pipeline.field().1.iter().product()];
    pipeline.run(file, &sample(1), scratch, bytemuck::cast_slice_mut(&mut out))?;
    Ok(out)
}

#[test]
fn the_scratch_leaves_no_trace() {
    let whole = jpeg(300, 200);
    let mut files = vec![ppm(50, 30, texture), whole.clone(), jpeg(31, 17)];
    // Whole by their end marker, but with rows that are not there.
    for len in (700..whole.len()).step_by(997) {
        files.push([&whole[..len], &[0xff, 0xd9]].concat());
    }
    for transform in [
        Transform::imagenet_train(48),
        Transform::imagenet_eval(48),
        Transform::new()
            .then(Resize::new(60).interpolation(Interpolation::Bicubic))
            .color_jitter(0.4, 0.4, 0.4, 0.1)
            .then(RandomCrop::new(64).padding(4))
            .to(DType::F32, Layout::Nchw),
        Transform::new()
            .then(RandomRotation::new(90.0).expand(true).interpolation(Interpolation::Bilinear))
            .then(GaussianBlur::new(7))
            .then(RandAugment::new(5, 20))
            .random_resized_crop(40)
            .then(TrivialAugmentWide::default())
            .then(RandomAffine::new(30.0).scale(0.5, 2.0).interpolation(Interpolation::Bicubic))
            .then(RandomAdjustSharpness { sharpness_factor: 3.0, p: 1.0 })
            .to(DType::F32, Layout::Nchw),
    ] {
        let pipeline = transform.compile().unwrap();
        let fresh: Vec<_> =
            files.iter().map(|f| used(&pipeline, &mut ImageScratch::default(), f)).collect();
        let mut scratch = ImageScratch::default();
        for (file, expected) in files.iter().zip(&fresh).chain(files.iter().zip(&fresh).rev()) {
            assert!(used(&pipeline, &mut scratch, file) == *expected);
        }
    }
}

#[test]
fn every_element_is_written() {
    let file = jpeg(90, 70);
    for layout in [Layout::Nchw, Layout::Nhwc] {
        for channels in [1, 3] {
            let transform =
                Transform::new().center_crop((80, 100)).grayscale(channels).to(DType::F32, layout);
            let pipeline = transform.compile().unwrap();
            let out = used(&pipeline, &mut ImageScratch::default(), &file).unwrap();
            assert!(out.iter().all(|v| (0.0..=1.0).contains(v)));
        }
    }
}

#[test]
fn erased_pixels_have_the_value_and_the_others_do_not_change() {
    let file = ppm(40, 30, texture);
    let plain = Transform::new().resize((30, 40)).to(DType::F32, Layout::Nhwc);
    let erase = plain.clone().then(RandomErasing::new(1.0).value([-1.0, -2.0, -3.0]));
    let before = run::<f32>(&plain, &file, sample(2)).unwrap();
    let after = run::<f32>(&erase, &file, sample(2)).unwrap();
    let mut erased = 0;
    for (old, new) in before.chunks(3).zip(after.chunks(3)) {
        if old != new {
            assert_eq!(new, [-1.0, -2.0, -3.0]);
            erased += 1;
        }
    }
    let share = f64::from(erased) / 1200.0;
    assert!((0.015..0.34).contains(&share), "{share}");
    let flipped = run::<f32>(&erase.random_horizontal_flip(1.0), &file, sample(2)).unwrap();
    for (row, mirrored) in after.chunks(120).zip(flipped.chunks(120)) {
        assert!(row.chunks(3).eq(mirrored.chunks(3).rev()), "a later flip moves what was erased");
    }
}

#[test]
fn random_fill_is_standard_normal() {
    let file = ppm(300, 300, |_, _| [0; 3]);
    let transform = Transform::new()
        .resize((300, 300))
        .to(DType::F32, Layout::Nchw)
        .then(RandomErasing { p: 1.0, scale: (0.5, 0.5), ratio: (1.0, 1.0), value: Erase::Random });
    let values: Vec<f64> = run::<f32>(&transform, &file, sample(0))
        .unwrap()
        .into_iter()
        .filter(|v| *v != 0.0)
        .map(f64::from)
        .collect();
    let n = values.len() as f64;
    assert!((n - 135_000.0).abs() < 1_000.0, "{n}");
    let moment = |power| values.iter().map(|v| v.powi(power)).sum::<f64>() / n;
    assert!(moment(1).abs() < 0.02, "{}", moment(1));
    assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
    assert!(moment(3).abs() < 0.06, "{}", moment(3));
    assert!((moment(4) - 3.0).abs() < 0.15, "{}", moment(4));
    let beyond = values.iter().filter(|v| v.abs() > 1.959_964).count() as f64 / n;
    assert!((beyond - 0.05).abs() < 0.004, "{beyond}");
}

#[test]
fn flips_happen_with_their_probability() {
    let file = ppm(2, 1, |x, _| [x as u8; 3]);
    let transform =
        Transform::new().resize((1, 2)).random_horizontal_flip(0.3).to(DType::U8, Layout::Nhwc);
    let pipeline = transform.compile().unwrap();
    let mut scratch = ImageScratch::default();
    let mut out = [0; 6];
    let flipped = (0..10_000)
        .filter(|&i| {
            pipeline.run(&file, &sample(i), &mut scratch, &mut out).unwrap();
            out[0] == 1
        })
        .count();
    assert!((2_800..3_200).contains(&flipped), "{flipped}");
}

#[test]
fn an_image_too_small_for_its_crop_is_an_error_of_the_transform() {
    let error =
        run::<u8>(&Transform::new().random_crop(8), &ppm(9, 7, texture), sample(0)).unwrap_err();
    assert_eq!(error.stage, Stage::Transform);
    assert!(error.message.contains("pad_if_needed"), "{error}");
}

#[test]
fn a_resize_beyond_the_limit_is_an_error_unless_its_crop_bounds_it() {
    let sliver = ppm(20_000, 1, |_, _| [1, 2, 3]);
    let bounded = Transform::new().resize(256).center_crop(64);
    assert_eq!(run::<u8>(&bounded, &sliver, sample(0)).unwrap()[..4], [1; 4]);
    let unbounded = Transform::new().resize(256).grayscale(3).center_crop(64);
    let error = run::<u8>(&unbounded, &sliver, sample(0)).unwrap_err();
    assert_eq!(error.stage, Stage::Transform);
    assert!(error.message.contains("DecodeOptions::max_bytes"), "{error}");
}

#[test]
fn wrong_space_for_the_sample_is_an_error() {
    let pipeline = Transform::imagenet_eval(8).compile().unwrap();
    let file = ppm(20, 20, texture);
    let mut scratch = ImageScratch::default();
    let mut space = [0f64; 3 * 8 * 8];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut space);
    for wrong in [0..764, 1..769, 0..772] {
        let out = &mut bytes[wrong];
        let error = pipeline.run(&file, &sample(0), &mut scratch, out).unwrap_err();
        assert_eq!(error.stage, Stage::Write);
    }
    assert_eq!(pipeline.run(&file, &sample(0), &mut scratch, &mut bytes[..768]), Ok(()));
}

#[test]
fn a_pipeline_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Pipeline>();
    fn sent<T: Send>() {}
    sent::<ImageScratch>();
}

/// Waves, an edge of brightness and one of colour: what a photograph has, at a size where scaling pays.
fn photograph(w: u32, h: u32) -> Vec<u8> {
    let wave = |v: f64| v.sin() * 50.0;
    let pixel = |x: u32, y: u32| {
        let (u, v) = (f64::from(x) / f64::from(w), f64::from(y) / f64::from(h));
        let shade = 110.0 + wave(u * 40.0 + v * 9.0) + wave(v * 31.0) * u;
        let object = if (u - 0.5).hypot(v - 0.4) < 0.25 { 60.0 } else { 0.0 };
        let grain = x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503);
        let grain = f64::from(grain.wrapping_mul(2_246_822_519) >> 28);
        [shade + object, shade - object / 2.0, shade * 0.8 + v * 40.0].map(|c| (c + grain) as u8)
    };
    let pixels: Vec<u8> = (0..h).flat_map(|y| (0..w).flat_map(move |x| pixel(x, y))).collect();
    let mut file = Vec::new();
    JpegEncoder::new_with_quality(&mut file, 90)
        .write_image(&pixels, w, h, image::ExtendedColorType::Rgb8)
        .unwrap();
    file
}

#[test]
fn fast_scaling_is_the_same_picture() {
    let file = photograph(1600, 1203);
    let with = |t: &Transform, scaling| {
        let options = DecodeOptions { scaling, ..DecodeOptions::default() };
        run::<u8>(&t.clone().decode(options), &file, sample(1)).unwrap()
    };
    for size in [40, 140, 290, 590] {
        for transform in [
            Transform::new().resize((size, size)),
            Transform::new().resize(size).center_crop(size * 7 / 8),
            Transform::new()
                .random_horizontal_flip(1.0)
                .then(RandomResizedCrop::new(size / 2).scale(0.4, 0.9)),
        ] {
            let (exact, fast) = (with(&transform, Scaling::Exact), with(&transform, Scaling::Fast));
            let differences = exact.iter().zip(&fast).map(|(a, b)| f64::from(a.abs_diff(*b)));
            let mean = differences.sum::<f64>() / exact.len() as f64;
            assert!(mean < 1.5, "{size}: {mean}");
            // Without libjpeg-turbo, to 1/8 only.
            let scaled = cfg!(feature = "libjpeg-turbo") || size <= 140;
            assert!(mean > 0.0 || !scaled, "{size}");
        }
    }
}

#[test]
fn fast_scaling_changes_nothing_that_it_cannot_make_faster() {
    let fast = DecodeOptions { scaling: Scaling::Fast, ..DecodeOptions::default() };
    let large = photograph(800, 600);
    let png = ppm(800, 600, texture);
    let nearest = Resize::new((60, 60)).interpolation(Interpolation::Nearest);
    for (transform, file) in [
        (Transform::new().resize((301, 401)), &large),
        (Transform::new().then(nearest), &large),
        (Transform::new().center_crop(60), &large),
        (Transform::new().color_jitter(0.4, 0.4, 0.4, 0.1).resize((60, 60)), &large),
        (Transform::new().resize((60, 60)), &png),
    ] {
        let one = run::<u8>(&transform, file, sample(1)).unwrap();
        assert!(run::<u8>(&transform.decode(fast), file, sample(1)).unwrap() == one);
    }
}

/// Orientation turns the wanted part back before it is decoded.
#[test]
fn a_part_of_a_turned_file_is_that_part_of_the_upright_one() {
    let file = jpeg(90, 70);
    let exif = |value: u8| {
        let mut block = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        block.extend([value, 0, 0, 0, 0, 0, 0, 0]);
        let mut out = file[..2].to_vec();
        out.extend([0xff, 0xe1]);
        out.extend((block.len() as u16 + 2).to_be_bytes());
        out.extend(block);
        out.extend(&file[2..]);
        out
    };
    let options = DecodeOptions { orientation: ExifOrientation::Apply, ..DecodeOptions::default() };
    for value in 1..=8 {
        let (w, h) = if value > 4 { (70, 90) } else { (90, 70) };
        let transform = |t: Transform| t.decode(options).to(DType::U8, Layout::Nhwc);
        // A crop of all is decoded whole.
        let whole = transform(Transform::new().center_crop((h, w)));
        let whole = run::<u8>(&whole, &exif(value), sample(0)).unwrap();
        let part = transform(Transform::new().center_crop((20, 10)));
        let part = run::<u8>(&part, &exif(value), sample(0)).unwrap();
        let rows = whole.chunks(w as usize * 3).skip((h as usize - 20) / 2);
        let expected: Vec<u8> = rows
            .take(20)
            .flat_map(|row| &row[(w as usize - 10) / 2 * 3..][..30])
            .copied()
            .collect();
        assert!(part == expected, "{value}");
    }
}

#[test]
fn a_custom_step_changes_what_it_sees_and_the_rest_goes_on() {
    // Writes where each pixel is, the image's size, and what was there.
    register_transform("place", |pixels, args, _| {
        assert_eq!(*args, 7);
        let (w, h) = (pixels.width(), pixels.height());
        for (i, pixel) in (0..w * h).zip(pixels.rgb_mut().chunks_exact_mut(3)) {
            let was = pixel[0];
            pixel.copy_from_slice(&[(i % w) as u8, (i / w) as u8, was]);
        }
        Ok(())
    });
    let file = ppm(20, 10, |x, y| [(x * 10 + y) as u8, 0, 0]);
    let crop = |t: Transform| t.then(Resize::new((10, 20))).center_crop((4, 6));
    let step = Custom::new("place").args(7);
    let before = crop(Transform::new()).random_horizontal_flip(1.0).then(step.clone());
    let out = run::<u8>(&before.to(DType::U8, Layout::Nhwc), &file, sample(0)).unwrap();
    for (i, pixel) in out.chunks(3).enumerate() {
        let (x, y) = (i % 6, i / 6);
        // A flip that came before is done, though it would otherwise wait.
        assert_eq!(pixel, [x, y, (12 - x) * 10 + y + 3].map(|v| v as u8));
    }
    let after = crop(Transform::new().then(step)).then(RandomInvert { p: 1.0 });
    let after = after.random_vertical_flip(1.0).to(DType::U8, Layout::Nhwc);
    let out = run::<u8>(&after, &file, sample(0)).unwrap();
    for (i, pixel) in out.chunks(3).enumerate() {
        let (x, y) = (7 + i % 6, 6 - i / 6);
        assert_eq!(pixel, [x, y, x * 10 + y].map(|v| 255 - v as u8));
    }
}

#[test]
fn a_custom_step_draws_for_its_sample_and_place() {
    register_transform("noise", |pixels, _, draws| {
        pixels.rgb_mut().fill_with(|| draws.below(256) as u8);
        Ok(())
    });
    let file = ppm(4, 4, texture);
    let once = Transform::new().resize((4, 4)).then(Custom::new("noise"));
    let noise = |transform: &Transform, index| run::<u8>(transform, &file, sample(index)).unwrap();
    assert_eq!(noise(&once, 1), noise(&once, 1));
    assert_ne!(noise(&once, 1), noise(&once, 2));
    assert_ne!(noise(&once, 1), noise(&once.clone().then(Custom::new("noise")), 1));
}

#[test]
fn what_a_custom_step_refuses_is_the_samples_error() {
    register_transform("refuses", |_, _, _| Err("not this one".into()));
    let transform = Transform::new().resize((4, 4)).then(Custom::new("refuses"));
    let error = run::<u8>(&transform, &ppm(4, 4, texture), sample(0)).unwrap_err();
    assert_eq!((error.stage, error.message.as_str()), (Stage::Transform, "refuses: not this one"));
}

#[test]
fn an_unknown_custom_step_is_refused_with_what_to_call() {
    let transform = Transform::new().resize((4, 4)).then(Custom::new("nobody knows"));
    let error = transform.compile().unwrap_err();
    assert!(matches!(error, TransformError::Unregistered { op: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("call register_transform"), "{error}");
}
