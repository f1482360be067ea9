//! Destinations that stand for others, as one guest's socket knows them.

/// Translated destinations that a socket remembers, so that answers come from where the guest sent
/// to.
const MOST: usize = 16;

/// Destinations of one socket, and what its guest calls them. The oldest is forgotten for a
/// seventeenth.
///
/// Cost: a look at each of them, which are none for most sockets.
#[derive(Debug)]
pub(crate) struct Translated<T> {
    /// What it is, and what the guest calls it.
    known: Vec<(T, T)>,
}

impl<T> Default for Translated<T> {
    fn default() -> Self {
        Self { known: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Translated<T> {
    /// Notes what the guest calls a destination.
    pub(crate) fn note(&mut self, real: T, seen: T) {
        if real == seen || self.known.contains(&(real, seen)) {
            return;
        }
        if self.known.len() == MOST {
            self.known.remove(0);
        }
        self.known.push((real, seen));
    }

    /// What the guest calls a destination.
    pub(crate) fn seen(&self, real: T) -> T {
        let known = self.known.iter().find(|(to, _)| *to == real);
        known.map_or(real, |&(_, seen)| seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut translated = Translated::default();
        translated.note(1, 1);
        for real in 0..=MOST {
            translated.note(real, real + 100);
            translated.note(real, real + 100);
        }
        assert_eq!((translated.seen(0), translated.seen(1)), (0, 101));
        assert_eq!(translated.seen(MOST), MOST + 100);
    }
}
