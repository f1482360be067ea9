//! What a socket knows of its latest destinations.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Most destinations that are remembered.
pub(crate) const MOST: usize = 32;

/// A fact for each of the latest destinations that there is one of. The oldest is forgotten for a
/// 33rd.
///
/// Cost: a comparison for each destination that is remembered; no memory while there is none.
#[derive(Debug)]
pub(crate) struct Latest<T>(VecDeque<(IpAddr, T)>);

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Latest<T> {
    pub(crate) fn get(&self, to: IpAddr) -> Option<&T> {
        self.0.iter().find(|(ip, _)| *ip == to).map(|(_, fact)| fact)
    }

    /// Notes a fact of a destination, in the place of an earlier one.
    pub(crate) fn set(&mut self, to: IpAddr, fact: T) {
        self.0.retain(|(ip, _)| *ip != to);
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((to, fact));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_that_of_its_destination_and_the_oldest_is_forgotten() {
        let to = |last: usize| IpAddr::from([192, 0, 2, u8::try_from(last).expect("a byte")]);
        let mut latest = Latest::default();
        for last in 0..=MOST {
            latest.set(to(last), ());
        }
        let has = |last| latest.get(to(last)).is_some();
        assert!(has(1) && has(MOST));
        assert!(!has(MOST + 1), "another destination");
        assert!(!has(0), "forgotten");
    }
}
