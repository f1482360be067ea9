//! TIME-WAIT: what is left of a connection that both ends have closed.
//!
//! Sources: RFC 9293 section 3.10.7.4, RFC 1122 section 4.2.2.13, RFC 6191; Linux's
//! `tcp_timewait_state_process`.

use crate::handshake::{is_paws_reject, timestamp};
use crate::segment::{Flags, Options, Segment, Timestamps};
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};

/// Time that a connection stays in TIME-WAIT (`TCP_TIMEWAIT_LEN`).
pub const TIME_WAIT: Nanos = Nanos::from_secs(60);

/// Action that a [`TimeWait`] asks its host for, after a segment.
#[derive(Clone, Debug)]
pub enum TimeWaitVerdict {
    /// Do nothing.
    Drop,
    /// Send this acknowledgment.
    Ack(Segment),
    /// Forget this connection and give the SYN to the listener: an acceptable SYN opens a new
    /// connection between the same ends.
    ///
    /// The SYN-ACK should start at `iss`, which is beyond all that was sent before.
    Reopen {
        /// The initial sequence number to use.
        iss: SeqNumber,
    },
    /// Forget the connection: the peer has reset it (as Linux with `tcp_rfc1337` off).
    Remove,
}

/// Connection in TIME-WAIT. It takes at most 64 bytes, and O(1) per segment.
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    rcv_nxt: SeqNumber,
    snd_nxt: SeqNumber,
    /// The last window field, as on the wire.
    rcv_wnd: u16,
    ts_recent: Option<u32>,
    ts_offset: u32,
    since: Instant,
    deadline: Instant,
    /// No acknowledgment before this (`tcp_invalid_ratelimit`).
    quiet_until: Instant,
    ratelimit_ms: u32,
}

impl TimeWait {
    /// Takes over a connection that enters TIME-WAIT. `rcv_wnd` is the window field that it sent
    /// last; `ratelimit_ms` is `tcp_invalid_ratelimit`.
    pub fn new(
        now: Instant,
        rcv_nxt: SeqNumber,
        snd_nxt: SeqNumber,
        rcv_wnd: u16,
        ts_recent: Option<u32>,
        ts_offset: u32,
        ratelimit_ms: u32,
    ) -> Self {
        Self {
            rcv_nxt,
            snd_nxt,
            rcv_wnd,
            ts_recent,
            ts_offset,
            since: now,
            deadline: now + TIME_WAIT,
            quiet_until: Instant::ZERO,
            ratelimit_ms,
        }
    }

    /// Returns when the connection may be forgotten.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns when TIME-WAIT was entered.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Judges a segment between these ends.
    pub fn on_segment(&mut self, now: Instant, segment: &Segment) -> TimeWaitVerdict {
        let is_old = is_paws_reject(self.ts_recent, &segment.options);
        let is_reset = segment.flags.contains(Flags::RST);
        if !is_old && segment.seq == self.rcv_nxt && (is_reset || segment.seq_len() == 0) {
            return self.on_expected(now, segment, is_reset);
        }
        if !is_old && self.is_new_connection(segment) {
            let iss = self.snd_nxt + u32::from(u16::MAX) + 2;
            return TimeWaitVerdict::Reopen { iss };
        }
        if is_reset {
            return TimeWaitVerdict::Drop;
        }
        // The peer did not see our last ACK and sends its FIN again: wait anew (RFC 9293). Old
        // duplicates also end here, and their answer tells the peer where we are. A SYN whose
        // number is too low gets that answer too: its sender, in SYN-SENT, resets this connection
        // and then opens the new one.
        if is_old || segment.flags.contains(Flags::ACK) {
            self.deadline = now + TIME_WAIT;
        }
        let may_loop = segment.seq_len() == 0 || segment.flags.contains(Flags::SYN);
        if may_loop && !self.may_answer(now) {
            return TimeWaitVerdict::Drop;
        }
        TimeWaitVerdict::Ack(self.acknowledgment(now))
    }

    /// A reset, or an ACK without anything new, at exactly the next number.
    fn on_expected(&mut self, now: Instant, segment: &Segment, is_reset: bool) -> TimeWaitVerdict {
        if is_reset {
            return TimeWaitVerdict::Remove;
        }
        self.deadline = now + TIME_WAIT;
        if let (Some(recent), Some(ts)) = (&mut self.ts_recent, segment.options.timestamps) {
            *recent = ts.value;
        }
        TimeWaitVerdict::Drop
    }

    /// A SYN that no segment of the old connection can be mistaken for: behind all that was
    /// received, or with a newer timestamp (RFC 6191).
    fn is_new_connection(&self, segment: &Segment) -> bool {
        let is_syn = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
        let is_newer = match (self.ts_recent, segment.options.timestamps) {
            (Some(recent), Some(ts)) => SeqNumber(ts.value).after(SeqNumber(recent)),
            _ => false,
        };
        is_syn && (segment.seq.after(self.rcv_nxt) || is_newer)
    }

    /// The rate limit of answers to what is neither data nor FIN (`tcp_oow_rate_limited`).
    fn may_answer(&mut self, now: Instant) -> bool {
        let may = now >= self.quiet_until;
        if may {
            self.quiet_until = now + Nanos::from_millis(u64::from(self.ratelimit_ms));
        }
        may
    }

    fn acknowledgment(&self, now: Instant) -> Segment {
        let value = timestamp(now, self.ts_offset);
        Segment {
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK,
            window: self.rcv_wnd,
            options: Options {
                timestamps: self.ts_recent.map(|echo| Timestamps { value, echo }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const RCV_NXT: SeqNumber = SeqNumber(10);
    const SND_NXT: SeqNumber = SeqNumber(u32::MAX - 5);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn time_wait() -> TimeWait {
        TimeWait::new(at(0), RCV_NXT, SND_NXT, 500, Some(100), 0, 500)
    }

    fn segment(flags: Flags, seq: SeqNumber, tsval: Option<u32>) -> Segment {
        Segment {
            seq,
            flags,
            options: Options {
                timestamps: tsval.map(|value| Timestamps { value, echo: 0 }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    #[test]
    fn the_remains_are_small_and_last_a_minute() {
        assert!(size_of::<TimeWait>() <= 64, "{}", size_of::<TimeWait>());
        assert_eq!(time_wait().deadline(), at(60_000));
    }

    #[test]
    fn a_repeated_fin_is_acknowledged_and_waited_for_anew() {
        let mut remains = time_wait();
        let fin = segment(Flags::FIN | Flags::ACK, RCV_NXT - 1, Some(100));
        let verdict = remains.on_segment(at(1000), &fin);
        let TimeWaitVerdict::Ack(ack) = verdict else { panic!("{verdict:?}") };
        assert_eq!((ack.seq, ack.ack, ack.window, ack.flags), (SND_NXT, RCV_NXT, 500, Flags::ACK));
        assert_eq!(ack.options.timestamps, Some(Timestamps { value: 1000, echo: 100 }));
        assert_eq!(remains.deadline(), at(61_000));
        assert!(matches!(remains.on_segment(at(1001), &fin), TimeWaitVerdict::Ack(_)));
    }

    #[test]
    fn only_an_exact_reset_removes() {
        let mut remains = time_wait();
        for (seq, tsval) in [(RCV_NXT + 1, None), (RCV_NXT - 1, None), (RCV_NXT, Some(99))] {
            let verdict = remains.on_segment(at(1), &segment(Flags::RST, seq, tsval));
            assert!(matches!(verdict, TimeWaitVerdict::Drop));
        }
        let verdict = remains.on_segment(at(1), &segment(Flags::RST, RCV_NXT, None));
        assert!(matches!(verdict, TimeWaitVerdict::Remove));
    }

    #[test]
    fn a_new_syn_reopens() {
        for (seq, tsval) in [(RCV_NXT + 1, None), (RCV_NXT - 1000, Some(101))] {
            let verdict = time_wait().on_segment(at(1), &segment(Flags::SYN, seq, tsval));
            let TimeWaitVerdict::Reopen { iss } = verdict else { panic!("{verdict:?}") };
            assert!(iss.after(SND_NXT + 65535));
        }
    }

    #[test]
    fn an_old_syn_does_not_reopen() {
        let old = segment(Flags::SYN, RCV_NXT + 1, Some(99));
        assert!(matches!(time_wait().on_segment(at(1), &old), TimeWaitVerdict::Ack(_)), "PAWS");
        let reset = segment(Flags::SYN | Flags::RST, RCV_NXT + 1, Some(100));
        assert!(matches!(time_wait().on_segment(at(1), &reset), TimeWaitVerdict::Drop));
        for seq in [RCV_NXT, RCV_NXT - 1] {
            let mut remains = time_wait();
            let syn = segment(Flags::SYN, seq, Some(100));
            let verdict = remains.on_segment(at(1), &syn);
            let TimeWaitVerdict::Ack(ack) = verdict else { panic!("{verdict:?}") };
            assert_eq!((ack.seq, ack.ack), (SND_NXT, RCV_NXT), "its sender will reset");
            assert!(matches!(remains.on_segment(at(500), &syn), TimeWaitVerdict::Drop), "limited");
            assert!(matches!(remains.on_segment(at(501), &syn), TimeWaitVerdict::Ack(_)));
            assert_eq!(remains.deadline(), at(60_000), "it may be a good one that came too early");
        }
    }

    #[test]
    fn late_data_is_answered_with_where_we_are() {
        let data = Segment {
            payload: Bytes::from_static(b"late").into(),
            ..segment(Flags::ACK, RCV_NXT, None)
        };
        assert!(matches!(time_wait().on_segment(at(1), &data), TimeWaitVerdict::Ack(_)));
        let pure_ack = segment(Flags::ACK, RCV_NXT, Some(200));
        let mut remains = time_wait();
        assert!(matches!(remains.on_segment(at(5), &pure_ack), TimeWaitVerdict::Drop));
        assert_eq!((remains.ts_recent, remains.deadline()), (Some(200), at(60_005)));
    }
}
