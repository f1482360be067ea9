//! Memory of all connections of a host, and its bounds (`net.ipv4.tcp_mem`).
//!
//! A queue of a connection takes whole pages from its shard, some ahead of what it needs (Linux's
//! `sk_forward_alloc`). The shard tells the host of them in chunks (`tcp_memory_per_cpu_fw_alloc`),
//! so that connections of several shards do not write to one word.
//!
//! Above the second bound the host is *under pressure* until it is at the first one again: buffers
//! do not grow, and a connection that has more than its share takes nothing. Above the third bound
//! nobody does.
//!
//! Cost: a queue that changes within the pages that it has ahead costs a comparison, otherwise one
//! relaxed atomic operation on a word of its shard. The question whether the host is under pressure
//! is a load of a word that is written when the answer changes.

use crate::config::{Config, MemoryPages};
use crate::time::{Instant, Nanos};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// Size of a page in bytes.
pub const PAGE: u32 = 4096;

/// Pages that a queue keeps ahead of what it needs, at the most.
const AHEAD: u32 = 4;

/// Most pages that a shard has taken or given back without telling the host.
const MOST_UNTOLD: u64 = 256;

/// Share of the first bound that all shards together may leave untold, as a divisor.
const UNTOLD_SHARE: u64 = 64;

/// A send buffer up to this size is left to an orphan even if memory has run out
/// (`SOCK_MIN_SNDBUF`), in bytes.
const LEAST_SNDBUF: u32 = 4608;

/// Pages of memory that one queue of a connection has taken.
///
/// Whoever has it gives the pages back to the shard that it took them from.
#[derive(Debug, Default)]
pub(crate) struct Held(u32);

/// Change of the pressure on a host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// It began.
    Began,
    /// It ended after so long.
    Ended(Nanos),
    /// It did neither.
    Unchanged,
}

/// Memory and orphans of all connections of a host, and their bounds.
#[derive(Debug)]
pub struct HostMemory {
    /// Pages that the shards have told of.
    allocated: AtomicI64,
    low: AtomicU64,
    pressure: AtomicU64,
    high: AtomicU64,
    /// Pages after which a shard tells the host.
    chunk: AtomicU64,
    /// When the pressure began, in nanoseconds; 0 without pressure.
    pressed_since: AtomicU64,
    connections: AtomicI64,
    orphans: AtomicI64,
    max_orphans: AtomicU64,
}

impl Default for HostMemory {
    /// Returns memory without bounds.
    fn default() -> Self {
        Self {
            allocated: AtomicI64::new(0),
            low: AtomicU64::new(u64::MAX),
            pressure: AtomicU64::new(u64::MAX),
            high: AtomicU64::new(u64::MAX),
            chunk: AtomicU64::new(MOST_UNTOLD),
            pressed_since: AtomicU64::new(0),
            connections: AtomicI64::new(0),
            orphans: AtomicI64::new(0),
            max_orphans: AtomicU64::new(u64::MAX),
        }
    }
}

impl HostMemory {
    /// Goes by `tcp_mem` and `tcp_max_orphans` from now on, on a host with so many shards.
    pub fn set_limits(&self, config: &Config, shards: usize) {
        let MemoryPages { low, pressure, high } = config.tcp_mem;
        self.low.store(low.into(), Relaxed);
        self.pressure.store(pressure.into(), Relaxed);
        self.high.store(high.into(), Relaxed);
        let chunk = u64::from(low) / UNTOLD_SHARE / shards.max(1) as u64;
        self.chunk.store(chunk.clamp(1, MOST_UNTOLD), Relaxed);
        self.max_orphans.store(config.tcp_max_orphans.into(), Relaxed);
    }

    /// Returns the pages that connections have taken, as far as the shards have told.
    pub fn pages(&self) -> u64 {
        self.allocated.load(Relaxed).max(0) as u64
    }

    /// Returns the connections that exist.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed).max(0) as u64
    }

    /// Returns the connections that no application has any more, and whose end is not acknowledged.
    pub fn orphans(&self) -> u64 {
        self.orphans.load(Relaxed).max(0) as u64
    }

    /// Counts a connection that has lost its application.
    pub fn add_orphan(&self) {
        self.orphans.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection without an application.
    pub fn remove_orphan(&self) {
        self.orphans.fetch_sub(1, Relaxed);
    }

    /// Returns whether there are more orphans than `tcp_max_orphans`, each counted 2^`shift` times
    /// (`tcp_too_many_orphans`).
    pub fn has_too_many_orphans(&self, shift: u32) -> bool {
        self.orphans() << shift.min(8) > self.max_orphans.load(Relaxed)
    }

    /// Returns whether the host is under pressure: it was above the second bound of `tcp_mem`, and
    /// is above the first one since.
    pub fn is_under_pressure(&self) -> bool {
        self.pressed_since.load(Relaxed) != 0 && self.pages() > self.low.load(Relaxed)
    }

    /// Returns whether more is taken than the third bound of `tcp_mem`.
    pub fn is_exhausted(&self) -> bool {
        self.pressed_since.load(Relaxed) != 0 && self.pages() > self.high.load(Relaxed)
    }

    /// Notes when the pressure begins and when it ends (`sk_enter_memory_pressure`,
    /// `sk_leave_memory_pressure`). One caller is told of each.
    fn watch(&self, now: Instant) -> Pressure {
        let (pages, since) = (self.pages(), self.pressed_since.load(Relaxed));
        let change = |to| self.pressed_since.compare_exchange(since, to, Relaxed, Relaxed).is_ok();
        if since == 0 && pages > self.pressure.load(Relaxed) && change(now.as_nanos().max(1)) {
            return Pressure::Began;
        }
        if since != 0 && pages <= self.low.load(Relaxed) && change(0) {
            return Pressure::Ended(now.since(Instant::from_nanos(since)));
        }
        Pressure::Unchanged
    }

    /// Returns whether buffers may grow: the host is within the first bound.
    fn has_plenty(&self) -> bool {
        self.pages() < self.low.load(Relaxed)
    }
}

/// What a shard has taken of its host's memory.
#[derive(Debug, Default)]
pub struct ShardMemory {
    host: Arc<HostMemory>,
    /// Pages taken, less those given back, that the host was not told of.
    untold: AtomicI64,
}

impl ShardMemory {
    /// Returns the part of a shard that has taken nothing yet.
    pub fn new(host: Arc<HostMemory>) -> Self {
        Self { host, untold: AtomicI64::new(0) }
    }

    /// Returns the memory of the host.
    pub fn host(&self) -> &Arc<HostMemory> {
        &self.host
    }

    /// Returns the pages taken, less those given back, that the host was not told of.
    pub fn untold(&self) -> i64 {
        self.untold.load(Relaxed)
    }

    /// Counts `pages` as taken, or as given back if negative.
    fn take(&self, pages: i64) {
        let untold = self.untold.fetch_add(pages, Relaxed) + pages;
        if untold.unsigned_abs() >= self.host.chunk.load(Relaxed) {
            let told = self.untold.swap(0, Relaxed);
            self.host.allocated.fetch_add(told, Relaxed);
        }
    }

    /// Makes the pages of a queue those of `bytes`. Returns what became of the pressure.
    pub(crate) fn settle(&self, now: Instant, held: &mut Held, bytes: u32) -> Pressure {
        let need = bytes.div_ceil(PAGE);
        if need <= held.0 && held.0 - need <= AHEAD {
            return Pressure::Unchanged;
        }
        self.take(i64::from(need) - i64::from(held.0));
        held.0 = need;
        self.host.watch(now)
    }

    /// Gives the pages of a queue back.
    pub(crate) fn release(&self, held: &mut Held) {
        if held.0 > 0 {
            self.take(-i64::from(core::mem::take(&mut held.0)));
        }
    }

    /// Returns whether buffers may not grow (`tcp_under_memory_pressure`).
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.host.is_under_pressure()
    }

    /// Returns whether a buffer may grow beyond what its owner has used so far
    /// (`tcp_should_expand_sndbuf`, `tcp_clamp_window`).
    pub(crate) fn lets_buffers_grow(&self) -> bool {
        !self.host.is_under_pressure() && self.host.has_plenty()
    }

    /// Returns whether a queue that holds `own` bytes may take more. `least` bytes are granted to
    /// everybody while the host is within the third bound (`__sk_mem_raise_allocated`).
    pub(crate) fn admits(&self, own: u32, least: u32) -> bool {
        let host = &*self.host;
        if host.pressed_since.load(Relaxed) == 0 {
            return true;
        }
        let (pages, high) = (host.pages(), host.high.load(Relaxed));
        if pages > high {
            return false;
        }
        let share = u64::from(own.div_ceil(PAGE)).saturating_mul(host.connections());
        pages <= host.low.load(Relaxed) || own < least || share < high
    }

    /// Returns whether an orphan is to be given up: there are too many, or memory has run out while
    /// it holds `sending` bytes (`tcp_check_oom`).
    pub(crate) fn gives_up_orphan(&self, sending: u32, shift: u32) -> bool {
        self.host.has_too_many_orphans(shift)
            || (sending > LEAST_SNDBUF && self.host.is_exhausted())
    }

    /// Counts a connection.
    pub(crate) fn add_connection(&self) {
        self.host.connections.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection.
    pub(crate) fn remove_connection(&self) {
        self.host.connections.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Counter, Counters};
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn host(low: u32, pressure: u32, high: u32, shards: usize) -> (Arc<HostMemory>, Vec<Counters>) {
        let host = Arc::new(HostMemory::default());
        let tcp_mem = MemoryPages { low, pressure, high };
        host.set_limits(&Config { tcp_mem, tcp_max_orphans: 8, ..Config::default() }, shards);
        let counters = (0..shards).map(|_| Counters::of_host(host.clone())).collect();
        (host, counters)
    }

    #[test]
    fn pressure_lasts_from_the_second_bound_until_the_first() {
        let (host, shards) = host(64, 128, 256, 1);
        let (counters, mut held) = (&shards[0], Held::default());
        let mut set = |ms, pages| {
            counters.settle_memory(at(ms), &mut held, pages * PAGE);
            (host.is_under_pressure(), host.is_exhausted())
        };
        assert_eq!(set(1, 128), (false, false));
        assert_eq!(set(2, 140), (true, false));
        assert_eq!(set(3, 100), (true, false));
        assert_eq!(set(4, 300), (true, true));
        assert_eq!(set(12, 60), (false, false));
        assert_eq!(counters.get(Counter::MemoryPressures), 1);
        assert_eq!(counters.get(Counter::MemoryPressuresChrono), 10);
        assert_eq!(set(13, 120), (false, false), "it begins at the second bound only");
    }

    #[test]
    fn under_pressure_each_may_have_its_share_and_above_the_last_bound_nobody_takes() {
        let (_, shards) = host(64, 128, 256, 1);
        let memory = &shards[0].memory;
        (0..4).for_each(|_| memory.add_connection());
        let mut held = Held::default();
        assert!(memory.admits(u32::MAX, 0), "no pressure");
        shards[0].settle_memory(at(1), &mut held, 200 * PAGE);
        assert!(memory.admits(63 * PAGE, 0) && !memory.admits(64 * PAGE, 0));
        assert!(memory.admits(64 * PAGE, 65 * PAGE), "the least is granted");
        assert!(!memory.lets_buffers_grow());
        shards[0].settle_memory(at(2), &mut held, 300 * PAGE);
        assert!(!memory.admits(PAGE, 2 * PAGE));
        assert!(memory.gives_up_orphan(5000, 0) && !memory.gives_up_orphan(4000, 0));
        (0..5).for_each(|_| memory.host().add_orphan());
        assert!(memory.gives_up_orphan(0, 1) && !memory.gives_up_orphan(0, 0));
        shards[0].release_memory(&mut held);
        assert!(memory.admits(u32::MAX, 0));
    }

    proptest! {
        #[test]
        fn the_host_knows_what_its_shards_have_but_for_a_chunk_each(
            steps in prop::collection::vec((0_usize..3, 0_usize..20, 0_u32..2_000_000), 1..300)
        ) {
            let (host, shards) = host(10_000, 20_000, 30_000, 3);
            let mut queues: Vec<Held> = (0..60).map(|_| Held::default()).collect();
            for (shard, queue, bytes) in steps {
                let held = &mut queues[shard * 20 + queue];
                shards[shard].settle_memory(at(1), held, bytes);
                prop_assert!(held.0 >= bytes.div_ceil(PAGE));
                prop_assert!(held.0 <= bytes.div_ceil(PAGE) + AHEAD);
                let sum: u64 = queues.iter().map(|held| u64::from(held.0)).sum();
                let chunk = host.chunk.load(Relaxed);
                prop_assert!(host.pages().abs_diff(sum) <= 3 * chunk);
            }
            for (index, held) in queues.iter_mut().enumerate() {
                shards[index / 20].release_memory(held);
            }
            let untold: i64 = shards.iter().map(|one| one.memory.untold()).sum();
            prop_assert_eq!(host.allocated.load(Relaxed) + untold, 0);
        }
    }
}
