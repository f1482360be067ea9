//! Readiness: a word of bits and a generation, and the waiters that sleep on it.
//!
//! A waiter reads the word, tries its call, and registers with the generation that it read before
//! the try; a change in between makes the registration fail, so no change is lost.
//!
//! Cost: one load to look, one compare-exchange when the bits change, a mutex only when they change
//! or somebody waits. 32 bytes while nobody waits.

use crate::sync::{Mutex, lock};
use core::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

bitflags::bitflags! {
    /// What a socket is ready for (`EPOLLIN`, `EPOLLOUT`, `EPOLLRDHUP`, `EPOLLHUP`, `EPOLLERR`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Ready: u8 {
        /// A read (or accept) would not block.
        const READABLE = 1;
        /// A write would not block.
        const WRITABLE = 2;
        /// The peer closed its direction.
        const READ_CLOSED = 4;
        /// The own direction is closed.
        const WRITE_CLOSED = 8;
        /// An error is pending.
        const ERROR = 16;
    }
}

/// A reading of [`Readiness`]: the bits, and the generation that a waiter passes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyState(u64);

impl ReadyState {
    /// What the socket was ready for.
    pub fn bits(self) -> Ready {
        Ready::from_bits_truncate(self.0 as u8)
    }

    /// Counts the gains of bits.
    pub fn generation(self) -> u64 {
        self.0 >> 8
    }
}

/// The readiness of one socket.
#[derive(Debug, Default)]
pub struct Readiness {
    word: AtomicU64,
    waiters: Mutex<Vec<Waker>>,
}

impl Readiness {
    /// Nothing ready, nobody waiting.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bits and the generation now.
    pub fn state(&self) -> ReadyState {
        ReadyState(self.word.load(Ordering::Acquire))
    }

    /// Replaces the bits. If one was gained, the generation advances and all waiters are woken;
    /// what is lost concerns nobody who waits.
    pub fn set(&self, bits: Ready) {
        if self.state().bits() != bits {
            self.change(|before| (bits, !(bits - before).is_empty()));
        }
    }

    /// Adds bits, and wakes the waiters even if they were there before: something new came.
    pub fn signal(&self, bits: Ready) {
        self.change(|before| (before | bits, true));
    }

    /// Removes bits.
    pub fn clear(&self, bits: Ready) {
        self.change(|before| (before - bits, false));
    }

    fn change(&self, next: impl Fn(Ready) -> (Ready, bool)) {
        let mut wakes = false;
        let advance = |word: u64| {
            let (bits, gained) = next(Ready::from_bits_truncate(word as u8));
            wakes = gained;
            let generation = (word >> 8).wrapping_add(u64::from(gained));
            Some((generation << 8) | u64::from(bits.bits()))
        };
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, advance);
        if !wakes {
            return;
        }
        let waiters = core::mem::take(&mut *lock(&self.waiters));
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Wakes `waker` at the next gain, unless one happened since `seen`: then nothing is
    /// registered and the answer is false. A waiter that is registered already is kept once.
    #[must_use = "false means that the state changed: look again"]
    pub fn register(&self, seen: ReadyState, waker: &Waker) -> bool {
        let mut waiters = lock(&self.waiters);
        // The word changes before the list is emptied, so under this lock either the change is
        // visible or its wake-up is still to come.
        if self.state().generation() != seen.generation() {
            return false;
        }
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Wakes(AtomicUsize);
    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_change_since_the_look_refuses_the_waiter() {
        let readiness = Readiness::new();
        let seen = readiness.state();
        readiness.set(Ready::READABLE);
        let wakes = Arc::new(Wakes::default());
        let waker = wakes.clone().into();
        assert!(!readiness.register(seen, &waker));
        assert!(readiness.register(readiness.state(), &waker));
        assert!(readiness.register(readiness.state(), &waker), "kept once");
        readiness.set(Ready::READABLE);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "no change, no wake-up");
        readiness.signal(Ready::READABLE);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(readiness.state().bits(), Ready::READABLE);
        assert_eq!(readiness.state().generation(), 2);
        readiness.clear(Ready::READABLE);
        assert_eq!(readiness.state().bits(), Ready::empty());
        assert_eq!(readiness.state().generation(), 2, "a loss wakes nobody");
    }
}
