//! Sequence numbers modulo 2^32 (RFC 9293, section 3.4).

use core::ops::{Add, AddAssign, Sub};

/// Sequence number. Comparisons are circular, so there is no `Ord`: use [`before`](Self::before)
/// and [`after`](Self::after).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Returns whether `self` comes before `other`, by less than 2^31.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
    /// Returns whether `self` comes after `other`, by less than 2^31.
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }
    /// Returns whether `self` is at or before `other`.
    pub const fn at_or_before(self, other: Self) -> bool {
        !other.before(self)
    }
    /// Returns whether `self` is at or after `other`.
    pub const fn at_or_after(self, other: Self) -> bool {
        !self.before(other)
    }
    /// Returns the bytes from `earlier` to `self`, modulo 2^32.
    pub const fn bytes_since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
    /// Returns the later of two sequence numbers.
    pub const fn later(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
    /// Returns the earlier of two sequence numbers.
    pub const fn earlier(self, other: Self) -> Self {
        if self.before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNumber {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_wraps() {
        let high = SeqNumber(u32::MAX - 1);
        let low = high + 5;
        assert!(high.before(low) && low.after(high));
        assert!(!low.before(high) && low.at_or_after(low) && low.at_or_before(low));
        assert_eq!(low.bytes_since(high), 5);
        assert_eq!(low.later(high), low);
        assert_eq!(low.earlier(high), high);
    }
}
