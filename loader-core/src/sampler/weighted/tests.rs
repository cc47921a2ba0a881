use super::*;

fn keyed(seed: u64) -> Draws {
    Draws::keyed(seed, 0, 0, u64::MAX, 3)
}

#[test]
fn own_logarithm_equals_the_platforms() {
    let mut draws = keyed(1);
    let near_one = (1..60).map(|k| 1.0 - 0.5f64.powi(k));
    for x in (0..20_000).map(|_| 1.0 - draws.unit()).chain(near_one).chain([0.5, 1.0, 2.0, 1e300]) {
        let (ours, theirs) = (ln(x), x.ln());
        assert!((ours - theirs).abs() <= 4.0 * f64::EPSILON * theirs.abs(), "{x}: {ours} {theirs}");
    }
}

#[test]
fn replacement_draws_by_weight() {
    let weights = [0.0, 1.0, 0.0, 3.0, 6.0, 0.0];
    let cumulated = cumulate(&weights);
    let mut seen = [0u64; 6];
    let mut draws = keyed(2);
    for _ in 0..100_000 {
        seen[draw(&cumulated, &mut draws) as usize] += 1;
    }
    let chi: f64 = [1, 3, 4]
        .map(|i| {
            let expected = weights[i] * 10_000.0;
            (seen[i] as f64 - expected).powi(2) / expected
        })
        .iter()
        .sum();
    assert!(chi < 20.0, "{seen:?}");
    assert_eq!([seen[0], seen[2], seen[5]], [0; 3]);
}

#[test]
fn weights_of_any_magnitude_are_scaled() {
    for weights in [[f64::MAX, f64::MAX, 0.0], [5e-324, 5e-324, 0.0], [1.0, 1.0, 0.0]] {
        let cumulated = cumulate(&weights);
        assert_eq!(cumulated.as_slice(), [1 << 61, 1 << 62, 1 << 62]);
        let mut both = race(&weights, 2, keyed(3)).as_slice().to_vec();
        both.sort_unstable();
        assert_eq!(both, [0, 1]);
    }
}

/// The probability of every ordered outcome, by drawing one after the other.
#[test]
fn a_race_equals_drawing_one_by_one() {
    let weights = [5.0, 0.0, 1.0, 3.0, 0.5];
    const RUNS: u64 = 60_000;
    let mut seen = std::collections::BTreeMap::<Vec<u64>, u64>::new();
    for seed in 0..RUNS {
        *seen.entry(race(&weights, 2, keyed(seed)).as_slice().to_vec()).or_default() += 1;
    }
    let total: f64 = weights.iter().sum();
    let (mut chi, mut outcomes) = (0.0, 0);
    for (a, first) in weights.iter().enumerate() {
        for (b, second) in weights.iter().enumerate() {
            let p = first / total * second / (total - first);
            if a != b && p > 0.0 {
                let n = seen.remove(&vec![a as u64, b as u64]).unwrap_or(0) as f64;
                chi += (n - p * RUNS as f64).powi(2) / (p * RUNS as f64);
                outcomes += 1;
            }
        }
    }
    assert!(seen.is_empty(), "impossible outcomes: {seen:?}");
    assert_eq!(outcomes, 12);
    // 11 degrees of freedom: 35 is exceeded once in 4000 tries.
    assert!(chi < 35.0, "chi-square {chi:.1}");
}

#[test]
fn a_shorter_race_is_the_beginning_of_a_longer_one() {
    let weights: Vec<f64> = (0..100).map(|i| f64::from(i % 7)).collect();
    let all = race(&weights, 85, keyed(9));
    for count in [1, 2, 50, 84] {
        assert_eq!(race(&weights, count, keyed(9)).as_slice(), &all.as_slice()[..count as usize]);
    }
}
