//! A shuffle without an array: one sample's place in the epoch costs no memory and some nanoseconds.

use crate::rng::Draws;

/// Rounds of the network. Differences between neighbouring positions show a trace of structure (at
/// 256 samples, the worst length) up to six rounds and none from eight on; ten leave a margin.
const ROUNDS: usize = 10;

/// The smallest side of the grid. With fewer cells, the round functions of a short order could not
/// reach all permutations; what lies outside `0..len` is walked over.
const MIN_SIDE: u64 = 16;

/// A keyed bijection of `0..len`.
///
/// The generalised Feistel cipher of Black and Rogaway, "Ciphers with Arbitrary Finite Domains"
/// (CT-RSA 2002), section 5: the numbers below `len` are laid out on a grid of about
/// sqrt(len) x sqrt(len) cells; each round adds a keyed function of one coordinate to the other,
/// modulo that side. A result outside `0..len` goes through again (cycle walking), which is rarer
/// than once in sqrt(len) from 256 up. The round function is the finaliser of SplitMix64 (Steele,
/// Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014; constants of
/// Stafford's variant 13). It is a good shuffle, not a secret one.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    len: u64,
    columns: u64,
    rows: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that `draws` keys; `len` is below 2^63.
    pub(super) fn new(len: u64, mut draws: Draws) -> Self {
        let root = len.isqrt();
        let columns = if root * root < len { root + 1 } else { root }.max(MIN_SIDE);
        let rows = len.div_ceil(columns).max(MIN_SIDE);
        Self { len, columns, rows, keys: std::array::from_fn(|_| draws.bits()) }
    }

    /// Where `position`, which is below `len`, is sent.
    pub(super) fn get(&self, position: u64) -> u64 {
        debug_assert!(position < self.len);
        let mut value = self.encipher(position);
        // Ends: on a cycle that starts below `len`, the walk meets its start if nothing else.
        while value >= self.len {
            value = self.encipher(value);
        }
        value
    }

    fn encipher(&self, value: u64) -> u64 {
        let (mut row, mut column) = (value / self.columns, value % self.columns);
        for keys in self.keys.chunks_exact(2) {
            column = shift(column, mix(row ^ keys[0]), self.columns);
            row = shift(row, mix(column ^ keys[1]), self.rows);
        }
        row * self.columns + column
    }
}

/// `at`, moved round a circle of `side` places by a uniform share of it.
fn shift(at: u64, bits: u64, side: u64) -> u64 {
    let by = ((u128::from(bits) * u128::from(side)) >> 64) as u64;
    let sum = at + by;
    if sum >= side { sum - side } else { sum }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
