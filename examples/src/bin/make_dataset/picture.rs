//! Pictures of shapes and textures that can't be told apart by colour.

use std::f64::consts::{PI, TAU};

use image::{Rgb, RgbImage};
use loader_core::Draws;

/// What a picture shows, and the name of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Disc,
    Stripes,
    Square,
    Checkers,
    Triangle,
    Dots,
    Ring,
    Waves,
    Cross,
    Star,
}

impl Kind {
    /// Shapes and textures in turn, so that the first few of them are a mixture.
    pub(crate) const ALL: [Self; 10] = [
        Self::Disc,
        Self::Stripes,
        Self::Square,
        Self::Checkers,
        Self::Triangle,
        Self::Dots,
        Self::Ring,
        Self::Waves,
        Self::Cross,
        Self::Star,
    ];

    /// The name of the class's folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disc => "disc",
            Self::Stripes => "stripes",
            Self::Square => "square",
            Self::Checkers => "checkers",
            Self::Triangle => "triangle",
            Self::Dots => "dots",
            Self::Ring => "ring",
            Self::Waves => "waves",
            Self::Cross => "cross",
            Self::Star => "star",
        }
    }

    /// True where it covers the whole picture.
    fn is_texture(self) -> bool {
        matches!(self, Self::Stripes | Self::Checkers | Self::Dots | Self::Waves)
    }

    /// Distance of a point to the outline, negative inside. Shapes lie in the unit circle; textures
    /// have period 1.
    fn distance(self, x: f64, y: f64) -> f64 {
        let radius = x.hypot(y);
        match self {
            Self::Disc => radius - 0.9,
            Self::Ring => (radius - 0.75).abs() - 0.22,
            Self::Square => x.abs().max(y.abs()) - 0.75,
            Self::Triangle => {
                let side = |angle: f64| x * angle.cos() + y * angle.sin();
                side(PI / 2.0).max(side(PI * 7.0 / 6.0)).max(side(PI * 11.0 / 6.0)) - 0.5
            }
            Self::Cross => {
                let bar = |across: f64, along: f64| (across.abs() - 0.26).max(along.abs() - 1.0);
                bar(x, y).min(bar(y, x))
            }
            Self::Star => {
                // One half of one of the five points: the side from the tip at (1, 0) to the notch.
                let angle = (y.atan2(x).rem_euclid(TAU / 5.0) - PI / 5.0).abs();
                let (px, py) =
                    (radius * (PI / 5.0 - angle).cos(), radius * (PI / 5.0 - angle).sin());
                let (nx, ny) = (0.42 * (PI / 5.0).cos(), 0.42 * (PI / 5.0).sin());
                let (dx, dy) = (1.0 - nx, ny);
                ((px - nx) * dy + (py - ny) * dx) / dx.hypot(dy)
            }
            Self::Stripes => 0.25 - (x.rem_euclid(1.0) - 0.5).abs(),
            Self::Waves => {
                let bent = x + 0.3 * (TAU * y / 2.2).sin();
                0.25 - (bent.rem_euclid(1.0) - 0.5).abs()
            }
            Self::Checkers => (TAU / 2.0 * x).sin() * (TAU / 2.0 * y).sin() / PI,
            Self::Dots => (x.rem_euclid(1.0) - 0.5).hypot(y.rem_euclid(1.0) - 0.5) - 0.28,
        }
    }
}

/// Draws one picture of random size, place, angle, colours, shading and noise.
pub(crate) fn draw(kind: Kind, draws: &mut Draws) -> RgbImage {
    let mut side = || 60 + u32::try_from(draws.below(141)).unwrap_or(0);
    let (width, height) = (side(), side());
    let short = f64::from(width.min(height));
    // Pixels to a unit of the outline's coordinates.
    let unit = short
        * if kind.is_texture() { draws.uniform(0.14, 0.3) } else { draws.uniform(0.32, 0.46) };
    let (sin, cos) = draws.uniform(0.0, TAU).sin_cos();
    let center_x = f64::from(width) * draws.uniform(0.4, 0.6);
    let center_y = f64::from(height) * draws.uniform(0.4, 0.6);

    let [front, back] = contrasting_colors(draws);
    let shading = [draws.uniform(-30.0, 30.0), draws.uniform(-30.0, 30.0)];
    let noise = draws.uniform(0.0, 16.0);

    RgbImage::from_fn(width, height, |column, row| {
        let (x, y) = (f64::from(column) - center_x, f64::from(row) - center_y);
        let distance = kind.distance((x * cos + y * sin) / unit, (y * cos - x * sin) / unit);
        let cover = (0.5 - distance * unit).clamp(0.0, 1.0);
        let light = (shading[0] * x + shading[1] * y) / short + noise * draws.uniform(-1.0, 1.0);
        Rgb(std::array::from_fn(|c| {
            (cover * front[c] + (1.0 - cover) * back[c] + light).clamp(0.0, 255.0) as u8
        }))
    })
}

/// Any two colours that differ in lightness, so that a grey picture still shows what it is of.
fn contrasting_colors(draws: &mut Draws) -> [[f64; 3]; 2] {
    let lightness = |c: &[f64; 3]| 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
    loop {
        let mut color = || std::array::from_fn(|_| draws.uniform(0.0, 255.0));
        let pair = [color(), color()];
        if (lightness(&pair[0]) - lightness(&pair[1])).abs() > 80.0 {
            return pair;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loader_core::Sample;

    fn draws(index: u64) -> Draws {
        Sample { index, epoch: 0, seed: 5, occurrence: 0 }.draws(0)
    }

    #[test]
    fn every_kind_has_an_inside_and_an_outside() {
        for kind in Kind::ALL {
            let grid = (-20..=20).flat_map(|x| (-20..=20).map(move |y| (x, y)));
            let inside = grid
                .filter(|&(x, y)| kind.distance(f64::from(x) / 16.0, f64::from(y) / 16.0) < 0.0)
                .count();
            assert!((100..1400).contains(&inside), "{kind:?}: {inside} of 1681");
        }
    }

    #[test]
    fn a_picture_depends_on_its_draws_alone() {
        let picture = |index| draw(Kind::Star, &mut draws(index));
        assert_eq!(picture(3), picture(3));
        assert_ne!(picture(3).as_raw(), picture(4).as_raw());
    }

    #[test]
    fn colours_differ_in_lightness() {
        let grey = |c: [f64; 3]| 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
        for index in 0..100 {
            let [a, b] = contrasting_colors(&mut draws(index));
            assert!((grey(a) - grey(b)).abs() > 80.0);
        }
    }
}
