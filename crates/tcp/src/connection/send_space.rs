//! Room for writers: send buffer, low-water mark, and when a waiting writer is woken.
//!
//! Three tests, after Linux. A write may begin a new buffer while memory and unsent bytes are below
//! their limits (`sk_stream_memory_free`). A writer that waits is woken later than that: when a
//! third of the send buffer is free and less than *half* of the low-water mark waits
//! (`__sk_stream_is_writeable`, Linux a74f0fa082b7), so that it is woken once per half mark and not
//! once per ACK, unless `neap.tcp_notsent_lowat_half` is off. And it is looked at whenever bytes
//! may have gone, by an ACK or by leaving for the wire (`tcp_check_space`, Linux 4bfe744ff164):
//! with a long round trip the queue is empty long before the ACK comes.
//!
//! Every write that was short or refused leaves a mark (`SOCK_NOSPACE`). Room that comes back to a
//! marked socket is an edge, even if it comes within the call that was refused and the level is the
//! same as before it. Cost: a few comparisons per visit of the socket; a multiplication and a
//! division where the mark is a time.

use super::{Connection, Readiness, Room};
use crate::config::BUFFER_OVERHEAD;
use crate::time::{Instant, Nanos, Rate};

/// Frames that a low-water mark given as time leaves room for at the least: one on its way down,
/// one that the writer fills meanwhile.
const LEAST_FRAMES: u32 = 2;

/// The smallest send buffer, bytes (`SOCK_MIN_SNDBUF`).
const LEAST_SNDBUF: u32 = 4_608;

/// Largest frame without "BIG TCP".
const GSO_LEGACY_MAX_SIZE: u32 = 65_536;

/// Memory that one segment counts for when the send buffer is dimensioned
/// (`tcp_sndbuf_expand`: the head of an skb rounded up to a power of two, and its descriptor).
fn memory_per_segment(mss: u32) -> u32 {
    (mss + 320 + 320).next_power_of_two() + 256
}

impl Connection {
    /// Unsent bytes at which a writer is refused: `TCP_NOTSENT_LOWAT` or its time, the lower one.
    fn notsent_limit(&self) -> u32 {
        let bytes = match self.options.notsent_lowat {
            0 => self.config.tcp_notsent_lowat,
            lowat => lowat,
        };
        let micros = match self.options.notsent_lowat_us {
            0 => self.config.tcp_notsent_lowat_us,
            micros => micros,
        };
        if micros == 0 { bytes } else { bytes.min(self.bytes_paced_in(micros)) }
    }

    /// Bytes that the pacing rate of this moment sends in so many microseconds, two frames at the
    /// least; no bound before a rate is known.
    fn bytes_paced_in(&self, micros: u32) -> u32 {
        let rate = self.sender.pacer().rate();
        if rate == Rate::UNLIMITED {
            return u32::MAX;
        }
        let frame = u32::from(self.frame_segments).max(1).saturating_mul(self.sender.mss());
        let least = frame.saturating_mul(LEAST_FRAMES);
        let bytes = rate.bytes_in(Nanos::from_micros(u64::from(micros)));
        u32::try_from(bytes).unwrap_or(u32::MAX).max(least)
    }

    /// Whether a new buffer may be begun; with `wake`, by the rule of wake-ups
    /// (`sk_stream_memory_free`).
    pub(super) fn memory_is_free(&self, wake: bool) -> bool {
        self.is_free_with(self.memory(), wake)
    }

    /// The same where the memory of the write queue is known.
    fn is_free_with(&self, memory: u32, wake: bool) -> bool {
        let is_halved = wake && self.config.notsent_lowat_half;
        let unsent = u64::from(self.sender.unsent()) << u32::from(is_halved);
        memory < self.sndbuf
            && unsent < u64::from(self.notsent_limit())
            && (memory == 0 || self.is_admitted(memory))
    }

    /// Whether the host lets a connection take more memory that has so much to send. A connection
    /// that has nothing is not asked, so that an ACK brings every refused writer back
    /// (`tcp_rtx_and_write_queues_empty` in `tcp_stream_alloc_skb`).
    fn is_admitted(&self, memory: u32) -> bool {
        self.counters.memory.admits(memory, self.config.tcp_wmem.min)
    }

    /// Payload bytes that a write may add to a buffer: a little where the host has no memory to
    /// give away (`tcp_wmem`'s least). The send buffer shrinks then to half of what waits
    /// (`sk_stream_moderate_sndbuf`).
    pub(super) fn bound_by_host(&mut self, goal: u32) -> u32 {
        let memory = self.memory();
        if self.is_admitted(memory) {
            return goal;
        }
        if self.options.send_buffer.is_none() {
            self.sndbuf = self.sndbuf.min(memory / 2).max(LEAST_SNDBUF);
        }
        goal.min(self.config.tcp_wmem.min.max(1))
    }

    /// Takes pages for what waits to be sent or acknowledged, or gives them back.
    pub(super) fn settle_memory(&mut self, now: Instant) {
        let memory = self.memory();
        self.counters.settle_memory(now, &mut self.held, memory);
    }

    /// Memory of the write queue (`sk_wmem_queued`).
    pub(super) fn memory(&self) -> u32 {
        self.sender.memory(self.size_goal())
    }

    /// Whether frames have been cut so fine that memory is far beyond the send buffer, which
    /// writers are held to before the cut: by twice, and two of the largest buffers
    /// (`tcp_fragment`). Then something is in flight, whose ACK gives memory back.
    pub(super) fn is_overfull(&self) -> bool {
        let slack = 2 * (GSO_LEGACY_MAX_SIZE + BUFFER_OVERHEAD);
        // What is not sent is no more than the buffer and a write; so most calls end here.
        self.sender.memory_in_flight() > self.sndbuf
            && self.memory() / 2 > self.sndbuf.saturating_add(slack)
    }

    /// Whether a waiting writer should be woken (`__sk_stream_is_writeable`): a third of the
    /// buffer is free, and less than half the low-water mark waits.
    pub(super) fn is_writable(&self) -> bool {
        let used = self.memory();
        self.sndbuf.saturating_sub(used) >= used / 2 && self.is_free_with(used, true)
    }

    /// Room may have come back: grow the buffer if the window asks for it, and end the writer's
    /// wait (`tcp_check_space`).
    pub(super) fn check_space(&mut self) {
        if self.room == Room::Enough {
            return;
        }
        if self.sender.cwnd_left() > 0 {
            self.expand_sndbuf();
        }
        if self.is_writable() {
            self.room = Room::Enough;
            self.edges |= Readiness::WRITABLE;
        }
    }

    /// `tcp_sndbuf_expand`: room for `sndbuf_expand` windows, while the host has memory.
    pub(super) fn expand_sndbuf(&mut self) {
        if self.options.send_buffer.is_some() || !self.counters.memory.lets_buffers_grow() {
            return;
        }
        let per_segment = memory_per_segment(self.sender.mss());
        let wanted = self.sender.buffered_segments().saturating_mul(per_segment);
        self.sndbuf = self.sndbuf.max(wanted.min(self.config.tcp_wmem.max));
    }
}
