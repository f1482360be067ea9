//! Threads that help to seal the packets of a frame.
//!
//! The sending thread copies the packets of a frame into chunks, in order, and offers them. Each
//! helper takes one chunk at a time, and the sending thread takes what no helper has taken. Chunks
//! own their memory and are used again. So helpers share nothing with the sender, and the datagrams
//! leave in the order of the chunks.
//!
//! Waking a thread takes as long as sealing a frame. So a helper looks for the next chunk for
//! [`PATIENCE`] before it sleeps, and gives its processor to whoever else wants it meanwhile. While
//! nothing is sent, all sleep.
//!
//! A helper that loses its processor may be away for long, and one that panics for good. The sender
//! waits for [`LATE`] at most, and seals the whole frame by itself then, with other counters.

use crate::device::shared::lock;
use crate::protocol::{Seal, sealed_len};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a helper looks for a chunk before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long the sender waits for helpers when nothing is left for itself. It is several times of
/// what a chunk takes.
const LATE: Duration = Duration::from_micros(200);
/// Packets for which it is worth asking a helper.
pub(crate) const LEAST_PACKETS: usize = 8;

/// Packets of a frame that follow each other, before and after they are sealed.
#[derive(Debug)]
pub(crate) struct Chunk<S> {
    index: usize,
    /// Which call of [`Sealers::seal`] it is of.
    round: u64,
    seals: Vec<S>,
    plain: Vec<u8>,
    /// Where each packet ends in `plain`.
    ends: Vec<usize>,
    sealed: Vec<u8>,
    len: usize,
}

impl<S> Default for Chunk<S> {
    fn default() -> Self {
        let (seals, ends) = (Vec::new(), Vec::new());
        Self { index: 0, round: 0, seals, plain: Vec::new(), ends, sealed: Vec::new(), len: 0 }
    }
}

impl<S: Seal> Chunk<S> {
    /// Begins anew.
    pub(crate) fn clear(&mut self) {
        self.seals.clear();
        self.plain.clear();
        self.ends.clear();
        self.len = 0;
    }

    /// Adds a packet to be sealed by [`run`](Self::run).
    pub(crate) fn add(&mut self, packet: &[u8], seal: S) {
        self.plain.extend_from_slice(packet);
        self.ends.push(self.plain.len());
        self.seals.push(seal);
    }

    /// Seals one more packet at once.
    pub(crate) fn seal(&mut self, packet: &[u8], seal: S) {
        let end = self.len + sealed_len(packet.len());
        if self.sealed.len() < end {
            self.sealed.resize(end, 0);
        }
        self.len += seal.seal(packet, &mut self.sealed[self.len..]);
    }

    /// Seals all packets that were added.
    fn run(&mut self) {
        let (seals, plain) = (core::mem::take(&mut self.seals), core::mem::take(&mut self.plain));
        let (mut seals, ends) = (seals, core::mem::take(&mut self.ends));
        let mut start = 0;
        for (&end, seal) in ends.iter().zip(seals.drain(..)) {
            self.seal(&plain[start..end], seal);
            start = end;
        }
        (self.seals, self.plain, self.ends) = (seals, plain, ends);
    }

    /// The datagrams, one behind the other.
    pub(crate) fn datagrams(&self) -> &[u8] {
        &self.sealed[..self.len]
    }
}

/// The helpers of one sender. They end with it.
pub(crate) struct Sealers<S: Seal + 'static> {
    pool: Arc<Pool<S>>,
    threads: Vec<JoinHandle<()>>,
}

struct Pool<S> {
    state: Mutex<State<S>>,
    /// Chunks that wait, for those who look without the lock; `usize::MAX` in the end.
    waiting: AtomicUsize,
    work: Condvar,
    done: Condvar,
}

struct State<S> {
    offered: VecDeque<Chunk<S>>,
    /// Those of this round.
    finished: Vec<Chunk<S>>,
    /// Nobody waits any more for chunks of earlier ones.
    round: u64,
    is_over: bool,
    sleeping: usize,
}

impl<S: Seal + 'static> Sealers<S> {
    /// Starts as many threads; fewer, if the system has no more.
    pub(crate) fn new(count: usize) -> Self {
        let (offered, finished) = (VecDeque::new(), Vec::new());
        let state = State { offered, finished, round: 0, is_over: false, sleeping: 0 };
        let pool = Arc::new(Pool {
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let start = |index| {
            let pool = pool.clone();
            let builder = std::thread::Builder::new().name(format!("wg-seal-{index}"));
            builder.spawn(move || pool.help()).ok()
        };
        let threads = (0..count).map_while(start).collect();
        Self { pool, threads }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Seals all chunks, with the help of whoever is there. They stay in their order. Returns false
    /// if a helper was not back in time: its chunk is missing then, and nobody may send the others.
    #[must_use]
    pub(crate) fn seal(&self, chunks: &mut Vec<Chunk<S>>) -> bool {
        let count = chunks.len();
        let mut state = lock(&self.pool.state);
        state.round += 1;
        for (index, chunk) in chunks.iter_mut().enumerate() {
            (chunk.index, chunk.round) = (index, state.round);
        }
        state.offered.extend(chunks.drain(..));
        self.pool.waiting.store(state.offered.len(), Ordering::Release);
        for _ in 0..state.sleeping.min(count.saturating_sub(1)) {
            self.pool.work.notify_one();
        }
        while let Some(mut chunk) = self.pool.take(&mut state) {
            drop(state);
            chunk.run();
            state = lock(&self.pool.state);
            state.finished.push(chunk);
        }
        let is_missing = |state: &mut State<S>| state.finished.len() < count;
        let waited = self.pool.done.wait_timeout_while(state, LATE, is_missing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        chunks.append(&mut state.finished);
        // Whoever is late finds another one.
        state.round += 1;
        drop(state);
        chunks.sort_unstable_by_key(|chunk| chunk.index);
        chunks.len() == count
    }
}

impl<S: Seal> Pool<S> {
    fn take(&self, state: &mut State<S>) -> Option<Chunk<S>> {
        let chunk = state.offered.pop_front()?;
        self.waiting.store(state.offered.len(), Ordering::Release);
        Some(chunk)
    }

    /// The life of a helper.
    fn help(&self) {
        let mut state = lock(&self.state);
        while !state.is_over {
            if let Some(mut chunk) = self.take(&mut state) {
                drop(state);
                chunk.run();
                state = lock(&self.state);
                if chunk.round == state.round {
                    state.finished.push(chunk);
                    self.done.notify_one();
                }
                continue;
            }
            drop(state);
            let begin = Instant::now();
            while self.waiting.load(Ordering::Acquire) == 0 && begin.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            state = lock(&self.state);
            if state.offered.is_empty() && !state.is_over {
                state.sleeping += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            }
        }
    }
}

impl<S: Seal + 'static> Drop for Sealers<S> {
    fn drop(&mut self) {
        lock(&self.pool.state).is_over = true;
        self.pool.waiting.store(usize::MAX, Ordering::Release);
        self.pool.work.notify_all();
        for thread in self.threads.drain(..) {
            // It has told of its own panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns all bytes over.
    struct Flip;

    impl Seal for Flip {
        fn seal(self, packet: &[u8], into: &mut [u8]) -> usize {
            let len = sealed_len(packet.len());
            into[..len].fill(0);
            for (to, from) in into.iter_mut().zip(packet) {
                *to = !from;
            }
            len
        }
    }

    fn chunks(round: usize, count: usize) -> Vec<Chunk<Flip>> {
        let chunk = |index| {
            let mut chunk = Chunk::default();
            for packet in 0..5 {
                chunk.add(&[(round + index * 5 + packet) as u8; 100], Flip);
            }
            chunk
        };
        (0..count).map(chunk).collect()
    }

    #[test]
    fn the_order_is_that_of_the_chunks_with_any_number_of_helpers() {
        for helpers in [0, 1, 3] {
            let sealers = Sealers::new(helpers);
            assert_eq!(sealers.count(), helpers);
            for round in 0..200 {
                let mut offered = chunks(round, 1 + round % 7);
                let count = offered.len();
                while !sealers.seal(&mut offered) {
                    offered = chunks(round, count);
                }
                assert_eq!(offered.len(), count);
                let all: Vec<u8> =
                    offered.iter().flat_map(|chunk| chunk.datagrams().to_vec()).collect();
                for (index, datagram) in all.chunks(sealed_len(100)).enumerate() {
                    assert_eq!(datagram[0], !((round + index) as u8));
                }
                assert_eq!(all.len(), count * 5 * sealed_len(100));
            }
        }
    }

    /// What a helper's thread does with a packet instead of sealing it.
    type Instead = Arc<dyn Fn() + Send + Sync>;

    /// Seals by [`Flip`] on the sender's thread.
    struct AwayFromHelpers(Instead);

    impl Seal for AwayFromHelpers {
        fn seal(self, packet: &[u8], into: &mut [u8]) -> usize {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("wg-seal")) {
                (self.0)();
            }
            Flip.seal(packet, into)
        }
    }

    /// Has chunks sealed until a helper has taken one, which it does `instead` with. Chunks that it
    /// does not take are sealed all.
    fn seal_without_helpers(
        sealers: &Sealers<AwayFromHelpers>,
        has_begun: &AtomicUsize,
        instead: &Instead,
    ) {
        let offered = || {
            [1, 2].map(|byte| {
                let mut chunk = Chunk::default();
                chunk.add(&[byte; 100], AwayFromHelpers(instead.clone()));
                chunk
            })
        };
        let mut is_over = false;
        while !is_over {
            is_over = has_begun.load(Ordering::SeqCst) > 0;
            let mut chunks = offered().into();
            if !sealers.seal(&mut chunks) {
                // A helper may have lost its processor before it does anything.
                assert!(chunks.len() < 2);
                continue;
            }
            let firsts: Vec<u8> = chunks.iter().map(|chunk| chunk.datagrams()[0]).collect();
            assert_eq!(firsts, [!1, !2]);
        }
    }

    #[test]
    fn a_helper_that_lost_its_processor_holds_nobody_up() {
        let (sealers, has_begun) = (Sealers::new(1), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let (begun, closed) = (has_begun.clone(), gate.clone());
        let stays_away: Instead = Arc::new(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            let is_closed = |is_open: &mut bool| !*is_open;
            drop(closed.1.wait_while(lock(&closed.0), is_closed).expect("no panic"));
        });
        seal_without_helpers(&sealers, &has_begun, &stays_away);
        *lock(&gate.0) = true;
        gate.1.notify_all();
        // What it brings back is nobody's.
        let has_begun = AtomicUsize::new(1);
        seal_without_helpers(&sealers, &has_begun, &stays_away);
    }

    #[test]
    fn a_helper_that_panics_holds_nobody_up() {
        let (sealers, has_begun) = (Sealers::new(2), Arc::new(AtomicUsize::new(0)));
        let begun = has_begun.clone();
        let panics: Instead = Arc::new(move || {
            begun.fetch_add(1, Ordering::SeqCst);
            panic!("for the test");
        });
        seal_without_helpers(&sealers, &has_begun, &panics);
    }
}
