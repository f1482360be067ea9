//! Random numbers from one seed, forked by purpose so that one more draw in one place changes
//! nothing in another.

use neap_tcp::time::Nanos;

/// Generator of random numbers (SplitMix64). Equal seeds give equal numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// Probability in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Probability of zero.
    pub const NEVER: Self = Self(0);

    /// Returns a probability of `n` per cent.
    pub const fn percent(n: u32) -> Self {
        Self(n * 10_000)
    }
}

/// Applies the generator's output function once.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// Returns the generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns an independent generator for one purpose.
    #[must_use]
    pub const fn fork(&self, purpose: u64) -> Self {
        Self(mix(self.0 ^ mix(purpose.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns a number from `low` to `high` whose magnitude is as likely to be small as large.
    pub fn log_range(&mut self, low: u64, high: u64) -> u64 {
        let low = low.max(1);
        let doublings = (high.max(low) / low).ilog2();
        let top = low << self.below(u64::from(doublings) + 1);
        self.range(low, (top * 2).min(high.max(low)))
    }

    /// Returns true with this probability. It draws nothing if that is zero.
    pub fn chance(&mut self, probability: Ppm) -> bool {
        probability.0 > 0 && self.below(1_000_000) < u64::from(probability.0)
    }

    /// Returns a time from zero to `most`. It draws nothing if that is zero.
    pub fn time(&mut self, most: Nanos) -> Nanos {
        if most == Nanos::ZERO { most } else { Nanos(self.range(0, most.0)) }
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_range_and_reach_its_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[rng.range(10, 13) as usize - 10] = true;
            assert!((3..=5000).contains(&rng.log_range(3, 5000)));
        }
        assert_eq!(seen, [true; 4]);
        assert_eq!(rng.range(7, 7), 7);
        assert!(!rng.chance(Ppm::NEVER) && rng.chance(Ppm::percent(100)));
    }

    #[test]
    fn forks_are_independent_of_draws_and_of_each_other() {
        let rng = Rng::new(5);
        let mut a = rng.fork(1);
        assert_eq!(a.next_u64(), rng.fork(1).next_u64());
        assert_ne!(rng.fork(1).next_u64(), rng.fork(2).next_u64());
    }
}
