//! Randomness as a function: every draw is keyed by (seed, epoch, sample, operation), so it does not
//! depend on which worker makes it, in which order, or how often.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random draws that belongs to one sample and one operation on it.
///
/// ChaCha with eight rounds, the 256-bit key made of the seed, the epoch, the sample and its
/// occurrence in the epoch, the stream number being the operation's. The conversions to ranges are
/// this module's own, so that an update of a dependency never changes what a seed means.
#[derive(Clone, Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    pub(crate) fn keyed(
        seed: u64,
        epoch: u64,
        sample: u64,
        occurrence: u64,
        operation: u64,
    ) -> Self {
        let mut key = [0; 32];
        for (part, value) in key.chunks_exact_mut(8).zip([seed, epoch, sample, occurrence]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(operation);
        Self(rng)
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform from `low` to `high`, which is reached by rounding alone; `low` where the range is
    /// empty.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low).max(0.0) * self.unit()
    }

    /// Uniform in `0..n` without bias (Lemire, "Fast Random Integer Generation in an Interval",
    /// 2019); 0 where `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let mut wide = u128::from(self.bits()) * u128::from(n);
        if (wide as u64) < n {
            let reject = n.wrapping_neg() % n;
            while (wide as u64) < reject {
                wide = u128::from(self.bits()) * u128::from(n);
            }
        }
        (wide >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_key_changes_the_draws() {
        let base = [1, 2, 3, 4, 5];
        let first = |k: [u64; 5]| Draws::keyed(k[0], k[1], k[2], k[3], k[4]).bits();
        for part in 0..5 {
            let mut other = base;
            other[part] += 1;
            assert_ne!(first(base), first(other), "part {part}");
        }
        assert_eq!(first(base), first(base));
    }

    #[test]
    fn below_is_near_uniform_and_in_range() {
        let mut draws = Draws::keyed(7, 0, 0, 0, 0);
        let mut seen = [0u32; 6];
        for _ in 0..60_000 {
            seen[draws.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|n| (9_600..10_400).contains(n)), "{seen:?}");
        assert_eq!(draws.below(0), 0);
        assert_eq!(draws.below(1), 0);
    }

    #[test]
    fn an_empty_range_gives_its_low_end() {
        let mut draws = Draws::keyed(7, 0, 0, 0, 0);
        assert!((0..9).all(|_| draws.uniform(2.0, -1.0) == 2.0 && draws.uniform(3.0, 3.0) == 3.0));
    }

    /// A seed means the same bytes on every machine and after every update.
    #[test]
    fn draws_are_pinned() {
        let mut draws = Draws::keyed(42, 1, 2, 3, 4);
        assert_eq!(
            [draws.bits(), draws.below(1000), draws.bits()],
            [14955996647251286107, 170, 13884428525605855411]
        );
    }
}
