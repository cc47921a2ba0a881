//! Comparison of the augmentations with Pillow's and torchvision's; `tests/pillow/augment.py` wrote
//! the expectations.

use serde::Deserialize;

use super::ImageScratch;
use super::affine::Motion;
use super::augment::{self, CHOICES, Choice, Space};
use super::filter::{Blur, Filter};
use super::geometry::Rect;
use super::levels::Levels;
use super::ops::*;
use super::params::Adjust;
use super::pillow_tests::{Pixels, Summary, made, pattern, samples, stored};
use super::plan::Plan;
use crate::dataset::Sample;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Given {
    Flip([bool; 2]),
    Crop([u32; 4]),
    Rotate(GivenRotation),
    Affine(GivenAffine),
    Blur(GivenBlur),
    Sharpness(f32),
    Augment((String, f64, Interpolation)),
    Posterize(u32),
    Solarize(f64),
    Invert(()),
    Equalize(()),
    Autocontrast(()),
}

#[derive(Debug, Deserialize)]
struct GivenRotation {
    angle: f64,
    interpolation: Interpolation,
    expand: bool,
    center: Option<(f64, f64)>,
    fill: [u8; 3],
}

#[derive(Debug, Deserialize)]
struct GivenAffine {
    angle: f64,
    translate: (i32, i32),
    scale: f64,
    shear: (f64, f64),
    interpolation: Interpolation,
    center: Option<(f64, f64)>,
    fill: [u8; 3],
}

#[derive(Debug, Deserialize)]
struct GivenBlur {
    kernel_size: (u32, u32),
    sigma: f64,
}

#[derive(Deserialize)]
struct Case {
    image: (u32, u32),
    levels: (u64, u64),
    steps: Vec<Given>,
    #[serde(flatten)]
    expected: Pixels,
}

fn choice(name: &str) -> Choice {
    *CHOICES.iter().find(|choice| format!("{choice:?}") == name).unwrap()
}

fn add(plan: &mut Plan, step: &Given) {
    let levels = |plan: &mut Plan, levels| plan.adjust(Adjust::Levels(levels));
    match step {
        Given::Flip([horizontal, vertical]) => plan.flip(*horizontal, *vertical),
        Given::Crop([x, y, w, h]) => plan.crop(Rect { x: *x, y: *y, w: *w, h: *h }),
        Given::Rotate(given) => {
            let GivenRotation { angle, interpolation, expand, center, fill } = *given;
            augment::rotate(plan, angle, center, expand, interpolation, fill.into());
        }
        Given::Affine(given) => {
            let GivenAffine { angle, translate, scale, shear, interpolation, center, fill } =
                *given;
            let motion = Motion { angle, translate, scale, shear };
            augment::affine(plan, motion, center, interpolation, fill.into());
        }
        Given::Blur(GivenBlur { kernel_size: kernel, sigma }) => {
            plan.filter(Filter::Blur(Blur { kernel: *kernel, sigma: *sigma }));
        }
        Given::Sharpness(factor) => plan.filter(Filter::Sharpness(*factor)),
        Given::Augment((name, magnitude, interpolation)) => {
            augment::apply(plan, (choice(name), *magnitude), *interpolation, Fill::default());
        }
        Given::Posterize(bits) => levels(plan, Levels::Posterize(*bits)),
        Given::Solarize(threshold) => levels(plan, Levels::Solarize(*threshold)),
        Given::Invert(()) => levels(plan, Levels::Invert),
        Given::Equalize(()) => levels(plan, Levels::Equalize),
        Given::Autocontrast(()) => levels(plan, Levels::AutoContrast),
    }
}

impl Case {
    /// What its steps make of the test image, brought to its levels.
    fn made(&self, scratch: &mut ImageScratch) -> Vec<u8> {
        let ((w, h), (low, high)) = (self.image, self.levels);
        let image = pattern(w, h)
            .into_iter()
            .map(|v| (low + u64::from(v) * (high - low) / 255) as u8)
            .collect();
        made(self.image, image, &self.steps, add, scratch)
    }
}

#[test]
fn augmented_pixels_are_pillows_exactly_and_blurred_ones_within_one_level() {
    let mut scratch = ImageScratch::default();
    let (mut cases, mut blurred) = (0, 0);
    for case in stored::<Vec<Case>>("augmented.json") {
        let blurs = case.steps.iter().any(|step| matches!(step, Given::Blur(_)));
        let what = format!("{:?} {:?} {:?}", case.image, case.levels, case.steps);
        case.expected.assert_within(u8::from(blurs), &case.made(&mut scratch), &what);
        cases += 1;
        blurred += usize::from(blurs);
    }
    assert!(cases >= 600 && blurred >= 50, "{cases} {blurred}");
}

#[derive(Deserialize)]
struct Magnitudes {
    size: Option<(u32, u32)>,
    bins: u32,
    magnitudes: Vec<Vec<f64>>,
    signed: Vec<bool>,
}

#[test]
fn magnitudes_are_torchvisions() {
    for case in stored::<Vec<Magnitudes>>("magnitudes.json") {
        let space = case.size.map_or(Space::Wide, |(h, w)| Space::Rand(w, h));
        for ((choice, expected), signed) in CHOICES.iter().zip(&case.magnitudes).zip(&case.signed) {
            assert_eq!(choice.is_signed(), *signed, "{choice:?}");
            let bins = if choice.has_magnitude() { case.bins } else { 1 };
            assert_eq!(expected.len(), bins as usize, "{choice:?}");
            for (bin, &expected) in (0..).zip(expected) {
                let got = choice.magnitude(space, bin, case.bins);
                // The last bit of torch's depends on the width of the processor's vectors.
                assert!(
                    (got - expected).abs() <= expected.abs() * 2e-7,
                    "{choice:?} {bin} of {} in {space:?}: {got}, not {expected}",
                    case.bins
                );
            }
        }
    }
}

#[derive(Deserialize)]
struct Chosen {
    choice: Summary,
    magnitudes: Vec<Summary>,
}

impl Chosen {
    fn assert_like(&self, drawn: &[(Choice, f64)], what: &str) {
        let index = |choice| CHOICES.iter().position(|&c| c == choice).unwrap();
        let chosen: Vec<f64> = drawn.iter().map(|&(choice, _)| index(choice) as f64).collect();
        self.choice.assert_like(&chosen, what);
        for (&choice, expected) in CHOICES.iter().zip(&self.magnitudes) {
            let magnitudes: Vec<f64> =
                drawn.iter().filter(|drawn| drawn.0 == choice).map(|drawn| drawn.1).collect();
            expected.assert_like(&magnitudes, &format!("{what}: {choice:?}"));
        }
    }
}

#[derive(Deserialize)]
struct Distributions {
    draws: u64,
    rotation: Summary,
    affine: [Summary; 6],
    sigma: Summary,
    rand_augment: Chosen,
    trivial_augment_wide: Chosen,
}

#[test]
fn augmentations_are_drawn_as_torchvisions() {
    let stored = stored::<Distributions>("augment_distributions.json");
    let each = || samples(stored.draws).map(|sample| sample.draws(0));
    let rotation = RandomRotation::new(0.0).degrees(-30.0, 50.0);
    let angles: Vec<f64> =
        each().map(|mut draws| draws.uniform(rotation.degrees.0, rotation.degrees.1)).collect();
    stored.rotation.assert_like(&angles, "rotation");
    let affine = RandomAffine::new(0.0)
        .degrees(-20.0, 70.0)
        .translate(0.1, 0.4)
        .scale(0.5, 1.7)
        .shear((-10.0, 5.0, 2.0, 30.0));
    let motions: Vec<Motion> =
        each().map(|mut draws| augment::motion(&mut draws, &affine, (100, 60))).collect();
    let columns: [fn(&Motion) -> f64; 6] = [
        |m| m.angle,
        |m| m.translate.0.into(),
        |m| m.translate.1.into(),
        |m| m.scale,
        |m| m.shear.0,
        |m| m.shear.1,
    ];
    for (i, (column, expected)) in columns.iter().zip(&stored.affine).enumerate() {
        let values: Vec<f64> = motions.iter().map(column).collect();
        expected.assert_like(&values, &format!("affine {i}"));
    }
    let blur = GaussianBlur::new(3);
    let sigmas: Vec<f64> = each()
        .map(|mut draws| {
            let mut plan = Plan::default();
            plan.start(9, 9);
            augment::gaussian_blur(&mut plan, &blur, &mut draws);
            match plan.steps[..] {
                [
                    super::plan::Step::Filter(super::filter::FilterStep {
                        filter: Filter::Blur(blur),
                        ..
                    }),
                ] => blur.sigma,
                _ => panic!("{plan:?}"),
            }
        })
        .collect();
    stored.sigma.assert_like(&sigmas, "sigma");
    let rand = RandAugment { num_ops: 1, ..RandAugment::default() };
    let drawn: Vec<_> = each()
        .flat_map(|mut draws| {
            augment::rand_augment(&mut draws, &rand, (97, 61)).collect::<Vec<_>>()
        })
        .collect();
    stored.rand_augment.assert_like(&drawn, "RandAugment");
    let wide = TrivialAugmentWide::default();
    let drawn: Vec<_> =
        each().map(|mut draws| augment::trivial_augment_wide(&mut draws, &wide)).collect();
    stored.trivial_augment_wide.assert_like(&drawn, "TrivialAugmentWide");
}

/// A seed means the same augmentations after every update.
#[test]
fn augmentations_are_pinned() {
    let sample = Sample { index: 5, epoch: 2, seed: 42, occurrence: 0 };
    let rand: Vec<_> =
        augment::rand_augment(&mut sample.draws(1), &RandAugment::new(4, 9), (100, 80)).collect();
    let wide = augment::trivial_augment_wide(&mut sample.draws(2), &TrivialAugmentWide::default());
    let affine = RandomAffine::new(30.0).translate(0.2, 0.2).scale(0.5, 2.0).shear(20.0);
    let motion = augment::motion(&mut sample.draws(3), &affine, (100, 80));
    let nine = f64::from(0.9f32 / 30.0 * 9.0);
    assert_eq!(
        rand,
        [
            (Choice::Identity, 0.0),
            (Choice::Brightness, nine),
            (Choice::Color, -nine),
            (Choice::Sharpness, -nine)
        ]
    );
    assert_eq!(wide, (Choice::Color, 0.395_999_997_854_232_8));
    let expected = Motion {
        angle: 8.855_019_116_674_221,
        translate: (-14, -11),
        scale: 1.180_547_148_109_562_8,
        shear: (15.465_826_242_013_236, 0.0),
    };
    assert_eq!(motion, expected);
}
