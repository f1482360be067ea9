//! Readiness of a socket: a word of bits and a generation, and the waiters that sleep on it.
//!
//! A waiter reads the word, tries its call, and registers with the generation that it read before
//! the try; a change in between makes the registration fail, so no change is lost. It is woken only
//! by a gain of what it waits for: data that arrives does not wake a writer.
//!
//! Of the *exclusive* waiters one is woken by each thing that comes to be taken: a connection, a
//! datagram, an error. No thing is left while they sleep, because of two rules. A waiter registers
//! only where nothing is there, and a waiter that is woken tries its call, or passes the wake-up
//! on. So at any time as many of the woken ones still have to try as there are things.
//!
//! A socket changes its word under its own lock, so that bits and what they stand for agree. It
//! wakes the waiters without that lock: `Readiness::gain` returns them.
//!
//! Cost: one load to look, one compare-exchange when bits change or an edge comes, a mutex and
//! O(waiters of this socket) only when somebody waits. 32 bytes while nobody waits.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use neap_tcp::transmit::small_queue::TxAccount;
use smallvec::SmallVec;
use std::task::Waker;

/// Events that a socket is ready for (`EPOLLIN`, `EPOLLOUT`, `EPOLLRDHUP`, `EPOLLHUP`, `EPOLLERR`).
pub use neap_tcp::connection::Readiness as Ready;

/// Value of a [`Readiness`] at one moment: the bits, and the generation that a waiter passes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyState(u64);

impl ReadyState {
    /// Returns the events that the socket was ready for.
    pub fn bits(self) -> Ready {
        Ready::from_bits_truncate(self.0 as u8)
    }

    /// Returns the generation, which grows with each gain of readiness.
    pub fn generation(self) -> u64 {
        self.0 >> GENERATION
    }
}

/// In the word: somebody has registered since the list of waiters was last emptied.
const WAITED_FOR: u64 = 1 << 8;
/// Where the generation begins in the word.
const GENERATION: u32 = 9;

/// Readiness of one socket, and its waiters.
#[derive(Debug, Default)]
pub struct Readiness {
    word: AtomicU64,
    waiters: Mutex<Vec<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    interest: Ready,
    is_exclusive: bool,
    waker: Waker,
}

/// Where an exclusive waiter stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Last,
}

/// Waiters that a change wakes, taken off their list. They are woken by [`wake`](Self::wake), which
/// is called without a lock: a waker may look at the socket.
#[must_use = "the waiters sleep until `wake` is called"]
#[derive(Debug, Default)]
pub(crate) struct Woken(SmallVec<[Waker; 2]>);

impl Woken {
    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }

    /// Both are woken by one call.
    pub(crate) fn add(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// What a call takes, so that nobody else finds it. All else that comes stays for everybody.
const TAKEN: Ready = Ready::READABLE.union(Ready::ERROR);

/// Bytes below that a full socket of datagrams becomes writable with (`sock_def_write_space`).
pub(crate) fn half(send_buffer: u64) -> u64 {
    send_buffer / 2
}

impl Readiness {
    /// Returns a readiness with nothing ready and nobody waiting.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the current bits and generation.
    pub fn state(&self) -> ReadyState {
        ReadyState(self.word.load(Ordering::Acquire))
    }

    /// Replaces the bits. Gained bits, and those set in `edges`, advance the generation and wake
    /// the waiters for them. Lost bits wake nobody.
    pub fn set(&self, bits: Ready, edges: Ready) {
        let edges = edges & bits;
        if !edges.is_empty() || self.state().bits() != bits {
            self.change(1, |before| (bits, (bits - before) | edges)).wake();
        }
    }

    /// Adds bits and wakes their waiters even if the bits were set before, since something new
    /// came.
    pub fn signal(&self, bits: Ready) {
        self.signal_each(bits, 1);
    }

    /// As [`signal`](Self::signal) for so many things that came at once: an exclusive waiter is
    /// woken for each.
    pub fn signal_each(&self, bits: Ready, things: usize) {
        self.gain(bits, things).wake();
    }

    /// As [`signal_each`](Self::signal_each) for a caller that has a lock: the waiters are
    /// returned, for the time without it.
    pub(crate) fn gain(&self, bits: Ready, things: usize) -> Woken {
        self.change(things, |before| (before | bits, bits))
    }

    /// Removes bits.
    pub fn clear(&self, bits: Ready) {
        // A loss wakes nobody.
        let _ = self.change(0, |before| (before - bits, Ready::empty()));
    }

    /// Whether a socket of datagrams has room below: at most `limit` bytes of it are there. If not,
    /// it is no longer writable, until the completion that leaves `wake_at` bytes or fewer.
    pub(crate) fn admit(&self, account: &TxAccount, limit: u64, wake_at: u64) -> bool {
        if account.admit_waking_at(limit, wake_at) {
            return true;
        }
        // The first look may already be answered by a wake-up: clear, then look again.
        self.clear(Ready::WRITABLE);
        let has_room = account.admit_waking_at(limit, wake_at);
        if has_room {
            self.signal(Ready::WRITABLE);
        }
        has_room
    }

    /// `next` says for the bits before what they are afterwards, and what was gained: so many
    /// things, if they are to be taken.
    fn change(&self, things: usize, next: impl Fn(Ready) -> (Ready, Ready)) -> Woken {
        let mut gained = Ready::empty();
        let advance = |word: u64| {
            let (bits, gains) = next(Ready::from_bits_truncate(word as u8));
            gained = gains;
            let generation = (word >> GENERATION).wrapping_add(u64::from(!gains.is_empty()));
            Some((generation << GENERATION) | (word & WAITED_FOR) | u64::from(bits.bits()))
        };
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, advance);
        let (Ok(before) | Err(before)) = before;
        if gained.is_empty() || before & WAITED_FOR == 0 {
            return Woken::default();
        }
        self.take_waiters(gained, if TAKEN.contains(gained) { things } else { usize::MAX }, true)
    }

    /// Takes the waiters for any of `bits` off the list: at most `exclusive` of the exclusive ones,
    /// and all others if `others`.
    fn take_waiters(&self, bits: Ready, mut exclusive: usize, others: bool) -> Woken {
        let mut waiters = lock(&self.waiters);
        let is_woken = |waiter: &mut Waiter| {
            if !waiter.interest.intersects(bits) {
                return false;
            }
            if !waiter.is_exclusive {
                return others;
            }
            let is_its_turn = exclusive > 0;
            exclusive = exclusive.saturating_sub(1);
            is_its_turn
        };
        let woken = waiters.extract_if(.., is_woken).map(|waiter| waiter.waker).collect();
        if waiters.is_empty() {
            *waiters = Vec::new();
            self.word.fetch_and(!WAITED_FOR, Ordering::AcqRel);
        }
        Woken(woken)
    }

    /// Wakes the next exclusive waiter if there is still something for it. An exclusive waiter
    /// calls this that was woken and takes nothing: what it was woken for is there for another.
    ///
    /// Cost: one load if nobody waits.
    pub fn pass_on(&self) {
        let word = self.word.load(Ordering::Acquire);
        let there = ReadyState(word).bits() & TAKEN;
        if word & WAITED_FOR != 0 && !there.is_empty() {
            self.take_waiters(there, 1, false).wake();
        }
    }

    /// Registers `waker` for the next gain of any of `interest`. Returns false and registers
    /// nothing if something was gained since `seen`.
    ///
    /// A waiter that is registered already is kept once, with both interests.
    #[must_use = "false means that the state changed: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.add(seen, interest, waker, None)
    }

    /// As [`register`](Self::register) for a waiter that takes what comes (`EPOLLEXCLUSIVE`,
    /// `add_wait_queue_exclusive`). A thing to be taken wakes one of these, the one that has
    /// waited longest. What ends the socket wakes all.
    ///
    /// A waiter that `drives` comes first: it is awake when something comes.
    ///
    /// Who was woken, or may have been woken before it unregistered, tries its call or
    /// [passes on](Self::pass_on).
    #[must_use = "false means that the state changed: look again"]
    pub fn register_exclusive(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.add(seen, interest, waker, Some(if drives { Place::First } else { Place::Last }))
    }

    /// Registers a waiter; an exclusive one has a place among the others.
    fn add(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        exclusive: Option<Place>,
    ) -> bool {
        let mut waiters = lock(&self.waiters);
        // Mark and generation are one word: either the change that follows sees the mark, and waits
        // for this lock, or this look sees the change.
        let now = ReadyState(self.word.fetch_or(WAITED_FOR, Ordering::AcqRel));
        if now.generation() != seen.generation() {
            return false;
        }
        let is_exclusive = exclusive.is_some();
        if let Some(known) = waiters.iter_mut().find(|known| known.waker.will_wake(waker)) {
            known.interest |= interest;
            known.is_exclusive &= is_exclusive;
            return true;
        }
        let at = if exclusive == Some(Place::First) { 0 } else { waiters.len() };
        waiters.insert(at, Waiter { interest, is_exclusive, waker: waker.clone() });
        true
    }

    /// Removes a waiter that was registered and not woken. O(waiters of this socket); one load if
    /// nobody waits.
    pub fn unregister(&self, waker: &Waker) {
        // A waiter that is in the list has set the mark, which goes only with an empty list.
        if self.word.load(Ordering::Acquire) & WAITED_FOR == 0 {
            return;
        }
        let mut waiters = lock(&self.waiters);
        waiters.retain(|waiter| !waiter.waker.will_wake(waker));
        if waiters.is_empty() {
            self.word.fetch_and(!WAITED_FOR, Ordering::AcqRel);
        }
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
        readiness.set(Ready::READABLE, Ready::empty());
        let wakes = Arc::new(Wakes::default());
        let waker = wakes.clone().into();
        let any = Ready::all();
        assert!(!readiness.register(seen, any, &waker));
        assert!(readiness.register(readiness.state(), any, &waker));
        assert!(readiness.register(readiness.state(), any, &waker), "kept once");
        readiness.set(Ready::READABLE, Ready::empty());
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "no change, no wake-up");
        readiness.signal(Ready::READABLE);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(readiness.state().bits(), Ready::READABLE);
        assert_eq!(readiness.state().generation(), 2);
        readiness.clear(Ready::READABLE);
        assert_eq!(readiness.state().bits(), Ready::empty());
        assert_eq!(readiness.state().generation(), 2, "a loss wakes nobody");
    }

    #[test]
    fn a_waiter_that_left_is_not_held_and_others_are_still_woken() {
        let readiness = Readiness::new();
        let (stays, leaves) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        for wakes in [&stays, &leaves] {
            let waker = wakes.clone().into();
            assert!(readiness.register(readiness.state(), Ready::READABLE, &waker));
        }
        readiness.unregister(&leaves.clone().into());
        assert_eq!((Arc::strong_count(&stays), Arc::strong_count(&leaves)), (2, 1));
        readiness.signal(Ready::READABLE);
        let woken = [&stays, &leaves].map(|wakes| wakes.0.load(Ordering::SeqCst));
        assert_eq!(woken, [1, 0]);
        readiness.unregister(&stays.clone().into());
        assert_eq!(Arc::strong_count(&stays), 1);
    }

    #[test]
    fn only_a_gain_of_what_it_waits_for_wakes_a_waiter() {
        let readiness = Readiness::new();
        let (reader, writer) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
        let count = |wakes: &Arc<Wakes>| wakes.0.load(Ordering::SeqCst);
        let wait = |interest, wakes: &Arc<Wakes>| {
            assert!(readiness.register(readiness.state(), interest, &wakes.clone().into()));
        };
        wait(Ready::READABLE, &reader);
        wait(Ready::WRITABLE, &writer);
        readiness.set(Ready::WRITABLE, Ready::empty());
        assert_eq!((count(&reader), count(&writer)), (0, 1));
        readiness.set(Ready::WRITABLE | Ready::READABLE, Ready::empty());
        assert_eq!((count(&reader), count(&writer)), (1, 1));
        // The level stayed, but room came anew.
        wait(Ready::WRITABLE, &writer);
        readiness.set(Ready::WRITABLE, Ready::WRITABLE);
        assert_eq!((count(&reader), count(&writer)), (1, 2));
        wait(Ready::WRITABLE, &writer);
        readiness.set(Ready::empty(), Ready::WRITABLE);
        assert_eq!(count(&writer), 2, "an edge to nothing is none");
    }
}
