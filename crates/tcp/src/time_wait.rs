//! TIME-WAIT: what is left of a connection that both ends have closed. And FIN-WAIT-2 without an
//! application: the peer has not closed yet.
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
    /// Forget the connection and send this reset: data came in FIN-WAIT-2, and nobody will read it.
    Reset(Segment),
}

/// What a connection that a host opens between the ends of an old one begins with, so that nothing
/// of the old one is taken for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heritage {
    /// The initial sequence number, beyond all that the old connection has sent.
    pub iss: SeqNumber,
    /// The last timestamp of the peer.
    pub ts_recent: u32,
}

/// Where both ends of a connection are, and what their segments carry.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The next number that is expected of the peer.
    pub rcv_nxt: SeqNumber,
    /// The number behind all that this end has sent, its FIN included.
    pub snd_nxt: SeqNumber,
    /// The window field that this end sent last, as on the wire.
    pub rcv_wnd: u16,
    /// The shift of that field.
    pub rcv_wscale: u8,
    /// The timestamp to echo; `None` without timestamps.
    pub ts_recent: Option<u32>,
    /// Offset of this end's timestamps.
    pub ts_offset: u32,
    /// `net.ipv4.tcp_invalid_ratelimit`, in milliseconds.
    pub ratelimit_ms: u32,
    /// No answer leaves before this.
    pub quiet_until: Instant,
}

impl Ends {
    /// Whether the segment brings bytes that did not come before, or a FIN behind such bytes: the
    /// peer has sent data that nobody will read.
    pub(crate) fn is_new_data(&self, segment: &Segment) -> bool {
        let end = segment.seq + segment.payload.len();
        segment.seq_len() > 0 && end.after(self.rcv_nxt)
    }

    /// Whether the segment touches the window.
    pub(crate) fn is_in_window(&self, segment: &Segment) -> bool {
        let edge = self.rcv_nxt + (u32::from(self.rcv_wnd) << self.rcv_wscale);
        !segment.end_seq().before(self.rcv_nxt) && !segment.seq.after(edge)
    }

    /// Takes over the timestamp to echo (RFC 7323 section 4.3).
    pub(crate) fn note_timestamp(&mut self, segment: &Segment) {
        if segment.seq.at_or_before(self.rcv_nxt)
            && let (Some(recent), Some(ts)) = (&mut self.ts_recent, segment.options.timestamps)
        {
            *recent = ts.value;
        }
    }

    /// A segment without data at `seq`, as it leaves at `now`.
    pub(crate) fn segment(&self, now: Instant, seq: SeqNumber) -> Segment {
        let value = timestamp(now, self.ts_offset);
        Segment {
            seq,
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

    /// Whether the rate limit lets an answer leave, which then counts.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        let may = now >= self.quiet_until;
        if may {
            self.quiet_until = now + Nanos::from_millis(self.ratelimit_ms.into());
        }
        may
    }
}

/// The first number of a connection that follows one which has sent up to `snd_nxt`.
fn beyond(snd_nxt: SeqNumber) -> SeqNumber {
    snd_nxt + u32::from(u16::MAX) + 2
}

/// Connection in TIME-WAIT, or in FIN-WAIT-2 without an application. It takes at most 64 bytes, and
/// O(1) per segment.
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    ends: Ends,
    since: Instant,
    deadline: Instant,
    /// The peer's FIN has not come.
    waits_for_fin: bool,
}

impl TimeWait {
    /// Takes over a connection that enters TIME-WAIT.
    pub fn new(now: Instant, ends: Ends) -> Self {
        Self { ends, since: now, deadline: now + TIME_WAIT, waits_for_fin: false }
    }

    /// Takes over a connection in FIN-WAIT-2, which waits for the peer's FIN until `deadline`
    /// (`tcp_time_wait` with `TCP_FIN_WAIT2`).
    pub fn fin_wait_2(now: Instant, deadline: Instant, ends: Ends) -> Self {
        Self { ends, since: now, deadline, waits_for_fin: true }
    }

    /// Returns whether the peer's FIN has not come: the state is FIN-WAIT-2.
    pub fn waits_for_fin(&self) -> bool {
        self.waits_for_fin
    }

    /// Returns what a new connection that this host opens between the ends begins with; `None` if
    /// it would be unsafe, since the peer's segments carry no timestamps (`tcp_twsk_unique`).
    pub fn heritage(&self) -> Option<Heritage> {
        let Ends { snd_nxt, ts_recent, .. } = self.ends;
        ts_recent.map(|ts_recent| Heritage { iss: beyond(snd_nxt), ts_recent })
    }

    pub(crate) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Returns when the connection may be forgotten.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns when TIME-WAIT was entered.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Judges a segment between these ends. `may_reopen` says that somebody would take a SYN: a SYN
    /// that nobody takes is answered like any other old one, and ends nothing.
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        may_reopen: bool,
    ) -> TimeWaitVerdict {
        let is_old = is_paws_reject(self.ends.ts_recent, &segment.options);
        let is_reset = segment.flags.contains(Flags::RST);
        if self.waits_for_fin {
            return self.in_fin_wait_2(now, segment, is_old && !is_reset);
        }
        let is_expected = segment.seq == self.ends.rcv_nxt;
        if !is_old && is_expected && (is_reset || segment.seq_len() == 0) {
            return self.on_expected(now, segment, is_reset);
        }
        if may_reopen && !is_old && self.is_new_connection(segment) {
            return TimeWaitVerdict::Reopen { iss: beyond(self.ends.snd_nxt) };
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
        if may_loop {
            return self.acknowledge(now);
        }
        TimeWaitVerdict::Ack(self.ends.segment(now, self.ends.snd_nxt))
    }

    /// FIN-WAIT-2. Resets and SYNs are judged as by a connection (RFC 5961).
    fn in_fin_wait_2(&mut self, now: Instant, segment: &Segment, is_old: bool) -> TimeWaitVerdict {
        let is_reset = segment.flags.contains(Flags::RST);
        let ends = &mut self.ends;
        if is_old || !ends.is_in_window(segment) {
            return if is_reset { TimeWaitVerdict::Drop } else { self.acknowledge(now) };
        }
        if is_reset && segment.seq == ends.rcv_nxt {
            return TimeWaitVerdict::Remove;
        }
        let is_future = segment.ack.after(ends.snd_nxt);
        if is_reset || segment.flags.contains(Flags::SYN) || is_future {
            return self.acknowledge(now);
        }
        if !segment.flags.contains(Flags::ACK) {
            return TimeWaitVerdict::Drop;
        }
        if ends.is_new_data(segment) {
            let (seq, flags) = (segment.ack, Flags::RST);
            return TimeWaitVerdict::Reset(Segment { seq, flags, ..Segment::default() });
        }
        ends.note_timestamp(segment);
        let has_fin = segment.flags.contains(Flags::FIN);
        if has_fin && segment.end_seq() == ends.rcv_nxt + 1 {
            ends.rcv_nxt += 1;
            let ack = ends.segment(now, ends.snd_nxt);
            *self = Self::new(now, self.ends);
            return TimeWaitVerdict::Ack(ack);
        }
        if segment.seq_len() > 0 { self.acknowledge(now) } else { TimeWaitVerdict::Drop }
    }

    /// A reset, or an ACK without anything new, at exactly the next number.
    fn on_expected(&mut self, now: Instant, segment: &Segment, is_reset: bool) -> TimeWaitVerdict {
        if is_reset {
            return TimeWaitVerdict::Remove;
        }
        self.deadline = now + TIME_WAIT;
        self.ends.note_timestamp(segment);
        TimeWaitVerdict::Drop
    }

    /// A SYN that no segment of the old connection can be mistaken for: behind all that was
    /// received, or with a newer timestamp (RFC 6191).
    fn is_new_connection(&self, segment: &Segment) -> bool {
        let is_syn = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
        let is_newer = match (self.ends.ts_recent, segment.options.timestamps) {
            (Some(recent), Some(ts)) => SeqNumber(ts.value).after(SeqNumber(recent)),
            _ => false,
        };
        is_syn && (segment.seq.after(self.ends.rcv_nxt) || is_newer)
    }

    /// Answers within the rate limit (`tcp_oow_rate_limited`).
    fn acknowledge(&mut self, now: Instant) -> TimeWaitVerdict {
        if !self.ends.may_answer(now) {
            return TimeWaitVerdict::Drop;
        }
        TimeWaitVerdict::Ack(self.ends.segment(now, self.ends.snd_nxt))
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
        let ends = Ends {
            rcv_nxt: RCV_NXT,
            snd_nxt: SND_NXT,
            rcv_wnd: 500,
            rcv_wscale: 0,
            ts_recent: Some(100),
            ts_offset: 0,
            ratelimit_ms: 500,
            quiet_until: Instant::ZERO,
        };
        TimeWait::new(at(0), ends)
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
        let verdict = remains.on_segment(at(1000), &fin, true);
        let TimeWaitVerdict::Ack(ack) = verdict else { panic!("{verdict:?}") };
        assert_eq!((ack.seq, ack.ack, ack.window, ack.flags), (SND_NXT, RCV_NXT, 500, Flags::ACK));
        assert_eq!(ack.options.timestamps, Some(Timestamps { value: 1000, echo: 100 }));
        assert_eq!(remains.deadline(), at(61_000));
        assert!(matches!(remains.on_segment(at(1001), &fin, true), TimeWaitVerdict::Ack(_)));
    }

    #[test]
    fn only_an_exact_reset_removes() {
        let mut remains = time_wait();
        for (seq, tsval) in [(RCV_NXT + 1, None), (RCV_NXT - 1, None), (RCV_NXT, Some(99))] {
            let verdict = remains.on_segment(at(1), &segment(Flags::RST, seq, tsval), true);
            assert!(matches!(verdict, TimeWaitVerdict::Drop));
        }
        let verdict = remains.on_segment(at(1), &segment(Flags::RST, RCV_NXT, None), true);
        assert!(matches!(verdict, TimeWaitVerdict::Remove));
    }

    #[test]
    fn a_new_syn_reopens() {
        for (seq, tsval) in [(RCV_NXT + 1, None), (RCV_NXT - 1000, Some(101))] {
            let verdict = time_wait().on_segment(at(1), &segment(Flags::SYN, seq, tsval), true);
            let TimeWaitVerdict::Reopen { iss } = verdict else { panic!("{verdict:?}") };
            assert!(iss.after(SND_NXT + 65535));
        }
    }

    #[test]
    fn an_old_syn_does_not_reopen() {
        let old = segment(Flags::SYN, RCV_NXT + 1, Some(99));
        assert!(
            matches!(time_wait().on_segment(at(1), &old, true), TimeWaitVerdict::Ack(_)),
            "PAWS"
        );
        let reset = segment(Flags::SYN | Flags::RST, RCV_NXT + 1, Some(100));
        assert!(matches!(time_wait().on_segment(at(1), &reset, true), TimeWaitVerdict::Drop));
        for seq in [RCV_NXT, RCV_NXT - 1] {
            let mut remains = time_wait();
            let syn = segment(Flags::SYN, seq, Some(100));
            let verdict = remains.on_segment(at(1), &syn, true);
            let TimeWaitVerdict::Ack(ack) = verdict else { panic!("{verdict:?}") };
            assert_eq!((ack.seq, ack.ack), (SND_NXT, RCV_NXT), "its sender will reset");
            assert!(
                matches!(remains.on_segment(at(500), &syn, true), TimeWaitVerdict::Drop),
                "limited"
            );
            assert!(matches!(remains.on_segment(at(501), &syn, true), TimeWaitVerdict::Ack(_)));
            assert_eq!(remains.deadline(), at(60_000), "it may be a good one that came too early");
        }
    }

    #[test]
    fn late_data_is_answered_with_where_we_are() {
        let data = Segment {
            payload: Bytes::from_static(b"late").into(),
            ..segment(Flags::ACK, RCV_NXT, None)
        };
        assert!(matches!(time_wait().on_segment(at(1), &data, true), TimeWaitVerdict::Ack(_)));
        let pure_ack = segment(Flags::ACK, RCV_NXT, Some(200));
        let mut remains = time_wait();
        assert!(matches!(remains.on_segment(at(5), &pure_ack, true), TimeWaitVerdict::Drop));
        assert_eq!((remains.ends.ts_recent, remains.deadline()), (Some(200), at(60_005)));
    }
}
