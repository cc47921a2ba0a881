//! Every statistic is taken of the permutation and of Fisher and Yates' shuffle, and both have to
//! pass the same bound. Seeds are fixed, so a test passes always or never.

use super::*;

type Shuffle = fn(u64, u64, u64) -> Vec<u64>;

fn keyed(seed: u64, epoch: u64) -> Draws {
    Draws::keyed(seed, epoch, 0, u64::MAX, 1)
}

fn ours(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let permutation = Permutation::new(len, keyed(seed, epoch));
    (0..len).map(|i| permutation.get(i)).collect()
}

fn fisher_yates(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
    let mut draws = keyed(seed, epoch);
    let mut order: Vec<u64> = (0..len).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, draws.below(i as u64 + 1) as usize);
    }
    order
}

const BOTH: [(&str, Shuffle); 2] = [("ours", ours), ("Fisher-Yates", fisher_yates)];

/// Standard deviations between the chi-square statistic of equally likely cells and its mean.
/// `free` is the number of degrees of freedom.
fn deviation(cells: &[u64], free: u64) -> f64 {
    let expected = cells.iter().sum::<u64>() as f64 / cells.len() as f64;
    let chi: f64 = cells.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
    (chi - free as f64) / (2.0 * free as f64).sqrt()
}

#[track_caller]
fn assert_uniform(what: &str, cells: &[u64], free: u64) {
    let deviation = deviation(cells, free);
    assert!(deviation.abs() < 4.5, "{what}: {deviation:.1} standard deviations from uniform");
}

#[test]
fn every_short_length_is_permuted() {
    for len in 1..2000 {
        let mut order = ours(len, len, 0);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..len), "length {len}");
    }
}

#[test]
fn long_lengths_are_permuted() {
    for len in [65_535, 65_536, 65_537, 999_983, 1_281_167] {
        let permutation = Permutation::new(len, keyed(3, 1));
        let mut seen = vec![false; len as usize];
        for i in 0..len {
            assert!(!std::mem::replace(&mut seen[permutation.get(i) as usize], true), "{len}");
        }
    }
}

/// Undoes the rounds, which a huge length can't be checked without.
#[test]
fn huge_lengths_have_an_inverse() {
    fn decipher(p: &Permutation, value: u64) -> u64 {
        let unshift = |at: u64, bits: u64, side: u64| {
            let by = ((u128::from(bits) * u128::from(side)) >> 64) as u64;
            (at + side - by) % side
        };
        let (mut row, mut column) = (value / p.columns, value % p.columns);
        for keys in p.keys.chunks_exact(2).rev() {
            row = unshift(row, mix(column ^ keys[1]), p.rows);
            column = unshift(column, mix(row ^ keys[0]), p.columns);
        }
        row * p.columns + column
    }
    for len in [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 10u64.pow(15) + 37, (1 << 63) - 1] {
        let permutation = Permutation::new(len, keyed(5, 2));
        let mut at = keyed(6, 0);
        for position in (0..1000).map(|_| at.below(len)).chain([0, 1, len - 2, len - 1]) {
            let value = permutation.get(position);
            assert!(value < len);
            let mut back = decipher(&permutation, value);
            while back >= len {
                back = decipher(&permutation, back);
            }
            assert_eq!(back, position, "length {len}");
        }
    }
}

#[test]
fn every_position_is_uniform() {
    for (name, shuffle) in BOTH {
        for len in [2, 3, 7, 16, 17, 100, 256, 300] {
            let mut cells = vec![0; (len * len) as usize];
            for seed in 0..(50 * len).max(4000) {
                for (i, value) in shuffle(len, seed, 0).into_iter().enumerate() {
                    cells[i * len as usize + value as usize] += 1;
                }
            }
            assert_uniform(&format!("{name}, length {len}"), &cells, (len - 1) * (len - 1));
        }
    }
}

#[test]
fn all_orders_of_a_few_samples_are_equally_likely() {
    for (name, shuffle) in BOTH {
        for (len, orders) in [(2, 2), (3, 6), (4, 24), (5, 120)] {
            let mut cells = vec![0; orders];
            for seed in 0..24_000 {
                let order = shuffle(len, seed, 0);
                let smaller_behind =
                    |i: usize| order[i..].iter().filter(|&&value| value < order[i]).count();
                let rank =
                    (0..order.len()).fold(0, |r, i| r * (order.len() - i) + smaller_behind(i));
                cells[rank] += 1;
            }
            assert_uniform(&format!("{name}, length {len}"), &cells, orders as u64 - 1);
        }
    }
}

#[test]
fn two_positions_go_anywhere_together() {
    for (name, shuffle) in BOTH {
        for (len, a, b) in [(16, 0, 1), (17, 3, 9), (32, 0, 16)] {
            let mut cells = vec![0; (len * (len - 1)) as usize];
            for seed in 0..20_000 {
                let order = shuffle(len, seed, 0);
                let (x, y) = (order[a], order[b]);
                cells[(x * (len - 1) + if y > x { y - 1 } else { y }) as usize] += 1;
            }
            let free = cells.len() as u64 - 1;
            assert_uniform(&format!("{name}, {a} and {b} of {len}"), &cells, free);
        }
    }
}

/// The statistic that shows too few rounds first: neighbours keep a distance.
#[test]
fn neighbours_are_torn_apart() {
    for (name, shuffle) in BOTH {
        for len in [64u64, 256, 1000] {
            for apart in [1, 2, len.isqrt(), len.isqrt() + 1] {
                let mut cells = vec![0; len as usize - 1];
                for seed in 0..400_000 / len {
                    let order = shuffle(len, seed, 0);
                    for (a, b) in order.iter().zip(&order[apart as usize..]) {
                        cells[((b + len - a) % len) as usize - 1] += 1;
                    }
                }
                assert_uniform(&format!("{name}, {apart} apart of {len}"), &cells, len - 2);
            }
        }
    }
}

/// Four corners of a rectangle of the grid keep no relation.
#[test]
fn the_grid_leaves_no_trace() {
    for (name, shuffle) in BOTH {
        for len in [256u64, 1024] {
            let side = len.isqrt() as usize;
            let mut cells = vec![0; len as usize];
            for seed in 0..400_000 / len {
                let order = shuffle(len, seed, 0);
                for i in 0..order.len() - side - 1 {
                    let sum =
                        order[i] + order[i + side + 1] + 2 * len - order[i + 1] - order[i + side];
                    cells[(sum % len) as usize] += 1;
                }
            }
            // Sums over one permutation depend on each other a little, so only excess counts.
            let deviation = deviation(&cells, len - 1);
            assert!(deviation < 6.0, "{name}, length {len}: {deviation:.1}");
        }
    }
}

/// Positions that stay, and positions that two permutations agree on, are Poisson with mean 1.
#[test]
fn agreement_is_chance() {
    const RUNS: u64 = 3000;
    const LEN: u64 = 500;
    type Pair<'a> = dyn Fn(u64) -> (Vec<u64>, Vec<u64>) + 'a;
    let poisson: Vec<f64> = {
        let mut p: Vec<f64> = (0..5)
            .scan((-1f64).exp(), |term, k| {
                let p = *term;
                *term /= f64::from(k + 1);
                Some(p)
            })
            .collect();
        p.push(1.0 - p.iter().sum::<f64>());
        p
    };
    for (name, shuffle) in BOTH {
        let identity: Vec<u64> = (0..LEN).collect();
        let pairs: [(&str, &Pair<'_>); 3] = [
            ("fixed points", &|seed| (shuffle(LEN, seed, 0), identity.clone())),
            ("epochs e and e+1", &|epoch| (shuffle(LEN, 9, epoch), shuffle(LEN, 9, epoch + 1))),
            ("seeds s and s+1", &|seed| (shuffle(LEN, seed, 0), shuffle(LEN, seed + 1, 0))),
        ];
        for (what, pair) in pairs {
            let mut cells = [0u64; 6];
            let mut correlation = 0.0;
            for run in 0..RUNS {
                let (a, b) = pair(run);
                let agree = a.iter().zip(&b).filter(|(x, y)| x == y).count();
                cells[agree.min(5)] += 1;
                let mean = (LEN - 1) as f64 / 2.0;
                let product = |(x, y): (&u64, &u64)| (*x as f64 - mean) * (*y as f64 - mean);
                let variance = (LEN * LEN - 1) as f64 / 12.0;
                correlation += a.iter().zip(&b).map(product).sum::<f64>() / variance / LEN as f64;
            }
            let chi: f64 = cells
                .iter()
                .zip(&poisson)
                .map(|(&n, p)| (n as f64 - p * RUNS as f64).powi(2) / (p * RUNS as f64))
                .sum();
            // 5 degrees of freedom: 25 is exceeded once in 7000 tries.
            assert!(chi < 25.0, "{name}, {what}: chi-square {chi:.1}, {cells:?}");
            // The rank correlation of two independent orders has variance 1 / (LEN - 1).
            let z = correlation / (RUNS as f64 / (LEN - 1) as f64).sqrt();
            assert!(z.abs() < 4.5, "{name}, {what}: correlation of {z:.1} deviations");
        }
    }
}

/// Two samples that shared a batch share one in the next epoch as often as any two do.
#[test]
fn batches_mix_between_epochs() {
    const LEN: u64 = 512;
    const BATCH: u64 = 16;
    const EPOCHS: u64 = 300;
    for (name, shuffle) in BOTH {
        let batch_of = |epoch| {
            let mut batch = vec![0; LEN as usize];
            for (position, sample) in shuffle(LEN, 4, epoch).into_iter().enumerate() {
                batch[sample as usize] = position as u64 / BATCH;
            }
            batch
        };
        let (mut together, mut tries) = (0u64, 0u64);
        let mut before = batch_of(0);
        for epoch in 1..=EPOCHS {
            let now = batch_of(epoch);
            for a in 0..LEN as usize {
                for b in 0..a {
                    if before[a] == before[b] {
                        tries += 1;
                        together += u64::from(now[a] == now[b]);
                    }
                }
            }
            before = now;
        }
        let p = (BATCH - 1) as f64 / (LEN - 1) as f64;
        let z = (together as f64 - p * tries as f64) / (tries as f64 * p * (1.0 - p)).sqrt();
        assert!(z.abs() < 4.5, "{name}: {together} of {tries} pairs again, {z:.1} deviations");
    }
}
