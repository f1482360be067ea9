//! Timing of ACKs: delayed, quick and compressed ACKs, as Linux decides (RFC 9293 section 3.8.6.3,
//! RFC 5681 section 4.2).

use crate::segment::Flags;
use crate::time::{Instant, Nanos};

/// Shortest delay of an ACK, and the first estimate of the gap between segments (`TCP_DELACK_MIN`,
/// `TCP_ATO_MIN`).
pub const ATO_MIN: Nanos = Nanos::from_millis(40);
/// Longest delay of an ACK (`TCP_DELACK_MAX`).
pub const DELACK_MAX: Nanos = Nanos::from_millis(200);
/// ACKs without delay at the start and after trouble (`TCP_MAX_QUICKACKS`).
pub(super) const MAX_QUICKACKS: u8 = 16;
/// The longest that an ACK of out-of-order data waits for others (`tcp_comp_sack_delay_ns`).
const COMP_SACK_DELAY: Nanos = Nanos::from_millis(1);
/// ... and its share of the round-trip time, percent (`tcp_comp_sack_rtt_percent`).
const COMP_SACK_RTT_PERCENT: u64 = 33;
/// ACKs of out-of-order data that one ACK may stand for (`tcp_comp_sack_nr`).
const COMP_SACK_NR: u8 = 44;
/// Duplicate ACKs that are never compressed (`TCP_FASTRETRANS_THRESH`).
const DUP_ACKS: u8 = 3;
/// Bytes of a turn of the peer, at the most, whose ACK waits for the reply. The sender of more may
/// have more to send, and needs its ACKs.
pub(super) const TURN_MAX: u32 = 32_768;
/// Bytes of `TCP_MSS_DEFAULT` and `TCP_MIN_MSS`.
const MSS_DEFAULT: u32 = 536;
const MIN_MSS: u32 = 88;
/// Bytes of a TCP header without options.
const HEADER: u32 = 20;

/// Answer to the question whether an ACK has to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckDue {
    /// There is nothing to acknowledge.
    None,
    /// An ACK has to be sent now; ask again afterwards.
    Now,
    /// An ACK has to be sent at this time, unless data goes out before.
    Delayed(Instant),
}

/// Values of the sender that the timing of ACKs needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimates {
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Retransmission timeout.
    pub rto: Nanos,
    /// The least timeout (`tcp_rto_min_us` when the connection was made).
    pub rto_min: Nanos,
    /// `TSval` of a segment that is sent now.
    pub tsval: u32,
    /// `SO_RCVLOWAT`: bytes that the reader waits for.
    pub lowat: u32,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Pending: u8 {
        /// An ACK is owed.
        const SCHEDULED = 1;
        /// It may not wait.
        const NOW = 2;
        /// A small segment arrived: the end of a write, probably.
        const PUSHED = 4;
        /// Another one.
        const PUSHED2 = 8;
        /// The last segment was the end of what the peer had to send.
        const WRITTEN = 16;
    }
}

/// What a data segment tells about the size of the peer's segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSize {
    /// Payload bytes of the whole super-segment.
    pub(super) len: u32,
    /// Payload bytes of each piece, or 0.
    pub(super) gso_size: u32,
    /// Bytes of TCP options.
    pub(super) options: u32,
    pub(super) flags: Flags,
}

/// The state of the delayed-ACK engine (`icsk_ack`). Everything is O(1).
#[derive(Debug)]
pub(super) struct AckPolicy {
    /// Estimated gap between data segments; zero before the first.
    ato: Nanos,
    /// When the delayed ACK is due; `FAR_FUTURE` when none is.
    delayed: Instant,
    /// When the compressed ACK is due; `FAR_FUTURE` when none is.
    compressed_until: Instant,
    /// When data last arrived.
    last_data: Instant,
    /// Estimated size of the peer's segments, bytes.
    rcv_mss: u32,
    last_seg_size: u32,
    /// Next expected byte when duplicate ACKs were last counted.
    dup_nxt: u32,
    /// Longest time from data to the reply, microseconds, of which an eighth is forgotten with each
    /// reply.
    reply_us: u16,
    dup_acks: u8,
    compressed: u8,
    quick: u8,
    pingpong: bool,
    pending: Pending,
}

/// The longest that an ACK waits for the reply.
fn longest_wait(slack: Nanos) -> Nanos {
    slack.saturating_mul(4)
}

impl AckPolicy {
    /// `hint` bounds the first guess at the peer's segment size (`tcp_initialize_rcv_mss`).
    pub(super) fn new(hint: u32) -> Self {
        Self {
            ato: Nanos::ZERO,
            delayed: Instant::FAR_FUTURE,
            compressed_until: Instant::FAR_FUTURE,
            last_data: Instant::ZERO,
            rcv_mss: hint.clamp(MIN_MSS, MSS_DEFAULT),
            last_seg_size: 0,
            dup_nxt: 0,
            reply_us: 0,
            dup_acks: 0,
            compressed: 0,
            quick: 0,
            pingpong: false,
            pending: Pending::empty(),
        }
    }

    pub(super) fn rcv_mss(&self) -> u32 {
        self.rcv_mss
    }

    pub(super) fn ato(&self) -> Nanos {
        self.ato
    }

    pub(super) fn last_data(&self) -> Instant {
        self.last_data
    }

    pub(super) fn is_pingpong(&self) -> bool {
        self.pingpong
    }

    pub(super) fn set_pingpong(&mut self, pingpong: bool) {
        self.pingpong = pingpong;
    }

    /// Notes that the window grew or must not be spent on quick ACKs (`quick |= 1`, `quick = 0`).
    pub(super) fn hint_quick(&mut self, quick: bool) {
        self.quick = if quick { self.quick | 1 } else { 0 };
    }

    pub(super) fn schedule(&mut self) {
        self.pending |= Pending::SCHEDULED;
    }

    /// Takes the last segment for the end of a write.
    pub(super) fn note_push(&mut self) {
        self.pending |= Pending::PUSHED;
    }

    /// The ACK of a handshake waits for the first data.
    pub(super) fn delay_handshake(&mut self, now: Instant) {
        self.schedule();
        self.delayed = now + DELACK_MAX;
    }

    pub(super) fn schedule_now(&mut self) {
        self.pending |= Pending::SCHEDULED | Pending::NOW;
    }

    pub(super) fn is_scheduled(&self) -> bool {
        self.pending.contains(Pending::SCHEDULED)
    }

    /// Grants up to `max` quick ACKs, fewer when the window is small (`tcp_incr_quickack`).
    pub(super) fn incr_quick(&mut self, wnd: u32, max: u8) {
        let quick = match wnd / (2 * self.rcv_mss) {
            0 => 2,
            quick => u8::try_from(quick).unwrap_or(u8::MAX),
        };
        self.quick = self.quick.max(quick.min(max));
    }

    /// `tcp_enter_quickack_mode`.
    pub(super) fn enter_quick(&mut self, wnd: u32, max: u8) {
        self.incr_quick(wnd, max);
        self.pingpong = false;
        self.ato = ATO_MIN;
    }

    pub(super) fn is_quick(&self) -> bool {
        self.quick > 0 && !self.pingpong
    }

    /// Data arrived in order: moves the estimate of the gap (`tcp_event_data_recv`).
    pub(super) fn on_data(&mut self, now: Instant, wnd: u32, rto: Nanos) {
        self.schedule();
        let gap = now.since(self.last_data);
        if self.ato == Nanos::ZERO {
            self.incr_quick(wnd, MAX_QUICKACKS);
            self.ato = ATO_MIN;
        } else if gap <= ATO_MIN / 2 {
            self.ato = self.ato / 2 + ATO_MIN / 2;
        } else if gap < self.ato {
            self.ato = (self.ato / 2 + gap).min(rto.max(ATO_MIN));
        } else if gap > rto {
            self.incr_quick(wnd, MAX_QUICKACKS);
        }
        self.last_data = now;
    }

    /// Learns the peer's segment size (`tcp_measure_rcv_mss`). `header` is the length of a header
    /// with the usual options. Returns whether the size grew to a new value.
    pub(super) fn measure(&mut self, size: SegmentSize, advmss: u32, header: u32) -> bool {
        let previous = core::mem::take(&mut self.last_seg_size);
        let len = if size.gso_size == 0 { size.len } else { size.gso_size };
        let pushed = size.flags.contains(Flags::PSH);
        // Linux sets PSH on the last segment of every super-segment. Only one that is not full says
        // that the sender had no more.
        let is_partial = match size.gso_size {
            0 => size.len < self.rcv_mss,
            full => !size.len.is_multiple_of(full),
        };
        let is_last = pushed && is_partial && !size.flags.contains(Flags::FIN);
        self.pending.set(Pending::WRITTEN, is_last);
        if len >= self.rcv_mss {
            let changed = len != self.rcv_mss;
            self.rcv_mss = len.min(advmss.max(MIN_MSS));
            if pushed {
                self.pending |= Pending::PUSHED;
            }
            return changed;
        }
        let whole = len.saturating_add(HEADER + size.options);
        let remnant = Flags::FIN | Flags::URG | Flags::SYN | Flags::PSH;
        let full = whole >= MIN_MSS + HEADER && !size.flags.intersects(remnant);
        if whole >= MSS_DEFAULT + HEADER || full {
            self.last_seg_size = whole.saturating_sub(header);
            if self.last_seg_size == previous {
                self.rcv_mss = self.last_seg_size.max(MIN_MSS);
                return false;
            }
        }
        if self.pending.contains(Pending::PUSHED) {
            self.pending |= Pending::PUSHED2;
        }
        self.pending |= Pending::PUSHED;
        false
    }

    /// Whether `unacked` bytes or the mode demand an ACK at once. `window_moves` is asked only if
    /// more than a segment is unacknowledged (first half of `__tcp_ack_snd_check`).
    pub(super) fn is_urgent(&self, unacked: u32, window_moves: impl FnOnce() -> bool) -> bool {
        self.pending.contains(Pending::NOW)
            || self.is_quick()
            || (unacked > self.rcv_mss && window_moves())
    }

    /// Whether the application has its turn: the two sides take turns, and that of the peer, of
    /// `turn` bytes, is over. They are at most half of the window `wnd`, and `unacked` of
    /// them are not acknowledged. The reply carries the ACK then, if replies have come soon.
    pub(super) fn expects_reply(&self, unacked: u32, turn: u32, wnd: u32, slack: Nanos) -> bool {
        self.pending.contains(Pending::SCHEDULED | Pending::WRITTEN)
            && !self.pending.contains(Pending::NOW)
            && self.pingpong
            && unacked > self.rcv_mss
            && turn <= TURN_MAX.min(wnd / 2)
            && self.reply() < longest_wait(slack)
    }

    /// What replies take.
    fn reply(&self) -> Nanos {
        Nanos::from_micros(self.reply_us.into())
    }

    /// Gives the reply time to carry the ACK: twice what replies take, and `slack`. A peer whose
    /// round trips have the replies in them probes its tail later (RFC 8985 section 7.2: after two
    /// round trips, to which Linux adds 2 ms).
    pub(super) fn wait_for_reply(&mut self, now: Instant, slack: Nanos) {
        let wait = (slack + self.reply().saturating_mul(2)).min(longest_wait(slack));
        self.delayed = self.delayed.min(now + wait);
    }

    /// Sets the delayed-ACK timer (`tcp_send_delayed_ack`). The timer stays below `rto_min`, so
    /// that a peer with the same minimum does not retransmit first.
    pub(super) fn delay(&mut self, now: Instant, srtt: Nanos, rto_min: Nanos) {
        let mut ato = self.ato;
        if ato > ATO_MIN {
            let slow = self.pingpong || self.pending.contains(Pending::PUSHED);
            let mut max = if slow { DELACK_MAX } else { Nanos::from_millis(500) };
            if srtt != Nanos::ZERO {
                max = max.min(srtt.max(ATO_MIN));
            }
            ato = ato.min(max);
        }
        let tick = Nanos::from_millis(1);
        ato = ato.min(DELACK_MAX).min(rto_min.saturating_sub(tick).max(tick));
        self.schedule();
        if self.delayed <= now + ato / 4 {
            self.pending |= Pending::NOW;
        } else {
            self.delayed = self.delayed.min(now + ato);
        }
    }

    /// Out-of-order data waits: the first ACKs go at once, later ones are merged for a part of the
    /// round-trip time (second half of `__tcp_ack_snd_check`). Without SACK every ACK goes at once.
    pub(super) fn compress(&mut self, now: Instant, nxt: u32, sack: bool, rtt: Nanos) {
        if !sack || self.compressed >= COMP_SACK_NR {
            self.schedule_now();
            return;
        }
        if self.dup_nxt != nxt {
            self.dup_nxt = nxt;
            self.dup_acks = 0;
        }
        if self.dup_acks < DUP_ACKS {
            self.dup_acks += 1;
            self.schedule_now();
            return;
        }
        self.compressed += 1;
        if self.compressed_until == Instant::FAR_FUTURE {
            let share = Nanos(rtt.0 / 100 * COMP_SACK_RTT_PERCENT);
            self.compressed_until = now + share.min(COMP_SACK_DELAY);
        }
    }

    /// Whether a read that took all there was should be acknowledged (`tcp_cleanup_rbuf`).
    pub(super) fn wants_ack_after_read(&self, unacked: u32, drained: bool) -> bool {
        self.is_scheduled()
            && (unacked > self.rcv_mss
                || (drained
                    && (self.pending.contains(Pending::PUSHED2)
                        || (self.pending.contains(Pending::PUSHED) && !self.pingpong))))
    }

    /// Data was sent: a reply within the usual gap means that the two sides take turns
    /// (`tcp_event_data_sent`).
    pub(super) fn on_data_sent(&mut self, now: Instant, is_reply: bool) {
        if is_reply {
            let took = now.since(self.last_data).as_micros();
            let took = u16::try_from(took).unwrap_or(u16::MAX);
            self.reply_us = took.max(self.reply_us - self.reply_us / 8);
        }
        if now.since(self.last_data) < self.ato {
            self.pingpong = true;
        }
    }

    /// An ACK left, alone or with data (`tcp_event_ack_sent`).
    pub(super) fn on_ack_sent(&mut self) {
        if self.quick > 0 {
            let sent = u8::from(self.is_scheduled());
            if sent >= self.quick {
                self.quick = 0;
                self.ato = ATO_MIN;
            } else {
                self.quick -= sent;
            }
        }
        self.compressed = 0;
        self.compressed_until = Instant::FAR_FUTURE;
        self.delayed = Instant::FAR_FUTURE;
        self.pending = Pending::empty();
    }

    pub(super) fn due(&self) -> AckDue {
        if self.pending.contains(Pending::NOW) {
            return AckDue::Now;
        }
        match self.deadline() {
            Instant::FAR_FUTURE => AckDue::None,
            at => AckDue::Delayed(at),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.delayed.min(self.compressed_until)
    }

    /// Time passed. Returns whether a delayed ACK became due (`tcp_delack_timer_handler`).
    pub(super) fn on_deadline(&mut self, now: Instant, rto: Nanos) -> bool {
        if self.compressed_until <= now {
            self.compressed_until = Instant::FAR_FUTURE;
            self.schedule_now();
        }
        if self.delayed > now {
            return false;
        }
        self.delayed = Instant::FAR_FUTURE;
        if self.pending.contains(Pending::NOW) || !self.is_scheduled() {
            return false;
        }
        if self.pingpong {
            self.pingpong = false;
            self.ato = ATO_MIN;
        } else {
            self.ato = self.ato.saturating_mul(2).min(rto.max(ATO_MIN));
        }
        self.schedule_now();
        true
    }
}
