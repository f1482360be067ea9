//! Orphans: what is left of a connection whose application is gone, and whose FIN the peer has not
//! acknowledged.
//!
//! A host keeps such a connection as an [`Orphan`] once its FIN was sent again and nothing else
//! waits. So peers that vanish cost little. Linux keeps the whole socket.
//!
//! Sources: RFC 9293 section 3.10.7.4, RFC 5961, Linux's `tcp_rcv_state_process` and
//! `tcp_retransmit_timer`. Cost: at most 80 bytes, O(1) per segment and timeout.

use crate::handshake::is_paws_reject;
use crate::segment::{Flags, Segment};
use crate::seq::SeqNumber;
use crate::state::{State, Transition};
use crate::time::{Instant, Nanos};
use crate::time_wait::{Ends, Heritage, TimeWait, TimeWaitVerdict};

/// What is left of a connection after its application.
#[derive(Clone, Copy, Debug)]
pub enum Remains {
    /// The FIN of this end is not acknowledged.
    Orphan(Orphan),
    /// It is: FIN-WAIT-2 or TIME-WAIT.
    TimeWait(TimeWait),
}

/// Action that [`Remains`] ask their host for.
#[derive(Clone, Debug)]
pub enum RemainsVerdict {
    /// Do nothing.
    Drop,
    /// Send this segment.
    Send(Segment),
    /// Forget the connection.
    Remove,
    /// Forget the connection and send this reset, since data came that nobody will read.
    Reset(Segment),
    /// Forget the connection and give the SYN to the listener, as
    /// [`TimeWaitVerdict::Reopen`] says.
    Reopen {
        /// The initial sequence number to use.
        iss: SeqNumber,
    },
}

impl Remains {
    /// Returns when something is to be done about the connection: see
    /// [`on_deadline`](Self::on_deadline).
    pub fn deadline(&self) -> Instant {
        match self {
            Self::Orphan(orphan) => orphan.deadline,
            Self::TimeWait(time_wait) => time_wait.deadline(),
        }
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> State {
        match self {
            Self::Orphan(orphan) => orphan.state,
            Self::TimeWait(time_wait) if time_wait.waits_for_fin() => State::FinWait2,
            Self::TimeWait(_) => State::TimeWait,
        }
    }

    /// Returns whether the FIN of this end is not acknowledged.
    pub fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_))
    }

    /// Returns whether the connection is in TIME-WAIT.
    pub fn is_time_wait(&self) -> bool {
        matches!(self, Self::TimeWait(rest) if !rest.waits_for_fin())
    }

    /// Returns what a new connection between the same ends begins with, as
    /// [`TimeWait::heritage`]; `None` while the FIN of this end is not acknowledged.
    pub fn heritage(&self) -> Option<Heritage> {
        match self {
            Self::Orphan(_) => None,
            Self::TimeWait(time_wait) => time_wait.heritage(),
        }
    }

    /// Does what is due. [`RemainsVerdict::Remove`] says that the peer was waited for long enough.
    pub fn on_deadline(&mut self, now: Instant) -> RemainsVerdict {
        match self {
            _ if self.deadline() > now => RemainsVerdict::Drop,
            Self::Orphan(orphan) => orphan.on_deadline(now),
            Self::TimeWait(_) => RemainsVerdict::Remove,
        }
    }

    /// Judges a segment between these ends; see [`TimeWait::on_segment`].
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        may_reopen: bool,
    ) -> RemainsVerdict {
        match self {
            Self::TimeWait(time_wait) => match time_wait.on_segment(now, segment, may_reopen) {
                TimeWaitVerdict::Drop => RemainsVerdict::Drop,
                TimeWaitVerdict::Ack(ack) => RemainsVerdict::Send(ack),
                TimeWaitVerdict::Reopen { iss } => RemainsVerdict::Reopen { iss },
                TimeWaitVerdict::Remove => RemainsVerdict::Remove,
                TimeWaitVerdict::Reset(reset) => RemainsVerdict::Reset(reset),
            },
            Self::Orphan(orphan) => {
                let verdict = orphan.on_segment(now, segment);
                match orphan.state {
                    State::FinWait2 => {
                        *self = Self::TimeWait(TimeWait::fin_wait_2(
                            now,
                            now + orphan.fin_timeout(),
                            orphan.ends,
                        ));
                    }
                    State::TimeWait => *self = Self::TimeWait(TimeWait::new(now, orphan.ends)),
                    State::Closed => return RemainsVerdict::Remove,
                    _ => {}
                }
                verdict
            }
        }
    }

    /// Returns the reset that tells the peer of the end.
    pub fn reset(&self, now: Instant) -> Segment {
        let ends = match self {
            Self::Orphan(orphan) => &orphan.ends,
            Self::TimeWait(time_wait) => time_wait.ends(),
        };
        Segment { flags: Flags::RST | Flags::ACK, ..ends.segment(now, ends.snd_nxt) }
    }
}

/// How an orphan sends its FIN again.
#[derive(Clone, Copy, Debug)]
pub struct FinTimer {
    /// The timeout that runs, backed off.
    pub rto: Nanos,
    /// No timeout is longer.
    pub rto_max: Nanos,
    /// When the timeout is over.
    pub deadline: Instant,
    /// When the peer is given up.
    pub end: Instant,
    /// `net.ipv4.tcp_fin_timeout`, in seconds.
    pub fin_timeout: u32,
}

/// Connection whose FIN is sent and not acknowledged, and of which nothing else is left to do.
#[derive(Clone, Copy, Debug)]
pub struct Orphan {
    ends: Ends,
    rto_ms: u32,
    rto_max_ms: u32,
    fin_timeout: u32,
    deadline: Instant,
    end: Instant,
    /// FIN-WAIT-1, CLOSING or LAST-ACK.
    state: State,
}

impl Orphan {
    /// Takes over a connection in FIN-WAIT-1, CLOSING or LAST-ACK. The number before
    /// `ends.snd_nxt` is that of the FIN.
    pub fn new(state: State, ends: Ends, timer: &FinTimer) -> Self {
        let millis = |time: Nanos| u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1);
        Self {
            ends,
            rto_ms: millis(timer.rto),
            rto_max_ms: millis(timer.rto_max),
            fin_timeout: timer.fin_timeout,
            deadline: timer.deadline,
            end: timer.end,
            state,
        }
    }

    fn fin_timeout(&self) -> Nanos {
        Nanos::from_secs(self.fin_timeout.into())
    }

    /// Sends the FIN again, with doubled timeouts (`tcp_retransmit_timer`).
    fn on_deadline(&mut self, now: Instant) -> RemainsVerdict {
        if now >= self.end {
            return RemainsVerdict::Remove;
        }
        self.rto_ms = self.rto_ms.saturating_mul(2).min(self.rto_max_ms);
        self.deadline = now + Nanos::from_millis(self.rto_ms.into());
        let fin = self.ends.segment(now, self.ends.snd_nxt - 1);
        RemainsVerdict::Send(Segment { flags: Flags::FIN | Flags::ACK, ..fin })
    }

    /// The order of the checks is that of a connection. A state that leaves FIN-WAIT-1, CLOSING and
    /// LAST-ACK is for the caller.
    fn on_segment(&mut self, now: Instant, segment: &Segment) -> RemainsVerdict {
        let ends = &mut self.ends;
        let is_reset = segment.flags.contains(Flags::RST);
        let is_old = !is_reset && is_paws_reject(ends.ts_recent, &segment.options);
        if is_old || !ends.is_in_window(segment) {
            return if is_reset { RemainsVerdict::Drop } else { answer(ends, now) };
        }
        if is_reset && segment.seq == ends.rcv_nxt {
            return RemainsVerdict::Remove;
        }
        if is_reset || segment.flags.contains(Flags::SYN) {
            return answer(ends, now);
        }
        if !segment.flags.contains(Flags::ACK) {
            return RemainsVerdict::Drop;
        }
        if segment.ack.after(ends.snd_nxt) {
            return answer(ends, now);
        }
        ends.note_timestamp(segment);
        let has_fin = segment.flags.contains(Flags::FIN);
        if self.state == State::FinWait1 && ends.is_new_data(segment) {
            return RemainsVerdict::Reset(Segment {
                seq: segment.ack,
                flags: Flags::RST,
                ..Segment::default()
            });
        }
        let is_fin = has_fin && segment.end_seq() == ends.rcv_nxt + 1;
        let is_acked = segment.ack == ends.snd_nxt;
        if is_acked {
            self.state = self.state.after(Transition::FinAcked);
        }
        if is_fin && matches!(self.state, State::FinWait1 | State::FinWait2) {
            self.ends.rcv_nxt += 1;
            self.state = self.state.after(Transition::FinArrived);
            return RemainsVerdict::Send(self.ends.segment(now, self.ends.snd_nxt));
        }
        if segment.seq_len() > 0 { answer(&mut self.ends, now) } else { RemainsVerdict::Drop }
    }
}

/// Tells the peer where this end is, at most once per `tcp_invalid_ratelimit`.
fn answer(ends: &mut Ends, now: Instant) -> RemainsVerdict {
    if ends.may_answer(now) {
        RemainsVerdict::Send(ends.segment(now, ends.snd_nxt))
    } else {
        RemainsVerdict::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Options, Timestamps};
    use crate::time_wait::TIME_WAIT;
    use bytes::Bytes;

    const RCV_NXT: SeqNumber = SeqNumber(10);
    const SND_NXT: SeqNumber = SeqNumber(u32::MAX - 5);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn ends() -> Ends {
        Ends {
            rcv_nxt: RCV_NXT,
            snd_nxt: SND_NXT,
            rcv_wnd: 500,
            rcv_wscale: 2,
            ts_recent: Some(100),
            ts_offset: 0,
            ratelimit_ms: 500,
            quiet_until: Instant::ZERO,
        }
    }

    fn orphan(state: State) -> Remains {
        let timer = FinTimer {
            rto: Nanos::from_millis(400),
            rto_max: Nanos::from_secs(120),
            deadline: at(400),
            end: at(102_200),
            fin_timeout: 60,
        };
        Remains::Orphan(Orphan::new(state, ends(), &timer))
    }

    fn segment(flags: Flags, seq: SeqNumber, ack: SeqNumber) -> Segment {
        let timestamps = Some(Timestamps { value: 101, echo: 0 });
        let options = Options { timestamps, ..Options::default() };
        Segment { seq, ack, flags, options, ..Segment::default() }
    }

    fn data(bytes: &'static [u8], ack: SeqNumber) -> Segment {
        let payload = Bytes::from_static(bytes).into();
        Segment { payload, ..segment(Flags::ACK, RCV_NXT, ack) }
    }

    fn hears(remains: &mut Remains, ms: u64, segment: &Segment) -> RemainsVerdict {
        remains.on_segment(at(ms), segment, true)
    }

    #[test]
    fn an_orphan_is_small() {
        assert!(size_of::<Orphan>() <= 80, "{}", size_of::<Orphan>());
        assert!(size_of::<Remains>() <= 88, "{}", size_of::<Remains>());
    }

    #[test]
    fn the_fin_is_sent_again_with_doubled_timeouts_until_the_peer_is_given_up() {
        let mut remains = orphan(State::LastAck);
        let mut times = Vec::new();
        loop {
            let now = remains.deadline();
            assert!(matches!(remains.on_deadline(now - Nanos(1)), RemainsVerdict::Drop));
            match remains.on_deadline(now) {
                RemainsVerdict::Send(fin) => {
                    assert_eq!((fin.seq, fin.ack), (SND_NXT - 1, RCV_NXT));
                    assert_eq!(fin.flags, Flags::FIN | Flags::ACK);
                    times.push(now.since(Instant::ZERO).as_millis());
                }
                verdict => {
                    assert!(matches!(verdict, RemainsVerdict::Remove), "{verdict:?}");
                    break;
                }
            }
        }
        assert_eq!(times, [400, 1200, 2800, 6000, 12400, 25200, 50800, 102_000]);
    }

    #[test]
    fn the_ack_of_the_fin_ends_each_state() {
        let ack = segment(Flags::ACK, RCV_NXT, SND_NXT);
        let mut remains = orphan(State::LastAck);
        assert!(matches!(hears(&mut remains, 1, &ack), RemainsVerdict::Remove));
        let mut remains = orphan(State::Closing);
        assert!(matches!(hears(&mut remains, 1, &ack), RemainsVerdict::Drop));
        assert!(remains.is_time_wait() && remains.deadline() == at(1) + TIME_WAIT);
        let mut remains = orphan(State::FinWait1);
        assert!(matches!(hears(&mut remains, 1, &ack), RemainsVerdict::Drop));
        assert!(!remains.is_orphan() && !remains.is_time_wait());
        let fin = segment(Flags::FIN | Flags::ACK, RCV_NXT, SND_NXT);
        let RemainsVerdict::Send(answer) = hears(&mut remains, 2, &fin) else {
            panic!("the FIN is acknowledged");
        };
        assert_eq!((answer.ack, answer.flags), (RCV_NXT + 1, Flags::ACK));
        assert!(remains.is_time_wait());
    }

    #[test]
    fn a_fin_without_the_ack_of_ours_is_a_simultaneous_close() {
        let mut remains = orphan(State::FinWait1);
        let fin = segment(Flags::FIN | Flags::ACK, RCV_NXT, SND_NXT - 1);
        assert!(matches!(hears(&mut remains, 1, &fin), RemainsVerdict::Send(_)));
        assert!(remains.is_orphan());
        let ack = segment(Flags::ACK, RCV_NXT + 1, SND_NXT);
        hears(&mut remains, 2, &ack);
        assert!(remains.is_time_wait());
        let mut remains = orphan(State::FinWait1);
        let both = segment(Flags::FIN | Flags::ACK, RCV_NXT, SND_NXT);
        assert!(matches!(hears(&mut remains, 1, &both), RemainsVerdict::Send(_)));
        assert!(remains.is_time_wait());
    }

    #[test]
    fn data_that_nobody_will_read_is_reset() {
        for ack in [SND_NXT - 1, SND_NXT] {
            let verdict = hears(&mut orphan(State::FinWait1), 1, &data(b"late", ack));
            let RemainsVerdict::Reset(reset) = verdict else { panic!("{verdict:?}") };
            assert_eq!((reset.seq, reset.flags), (ack, Flags::RST));
        }
        let mut remains = orphan(State::FinWait1);
        hears(&mut remains, 1, &segment(Flags::ACK, RCV_NXT, SND_NXT));
        let verdict = hears(&mut remains, 2, &data(b"late", SND_NXT));
        assert!(matches!(verdict, RemainsVerdict::Reset(_)), "in FIN-WAIT-2 too: {verdict:?}");
        // Behind the peer's FIN nothing can be data.
        let verdict = hears(&mut orphan(State::LastAck), 1, &data(b"late", SND_NXT - 1));
        assert!(matches!(verdict, RemainsVerdict::Send(_)), "{verdict:?}");
    }

    #[test]
    fn strangers_end_nothing_and_are_answered_at_a_limited_rate() {
        for state in [State::FinWait1, State::Closing, State::LastAck] {
            let strange = [
                segment(Flags::RST, RCV_NXT + 1, SND_NXT),
                segment(Flags::SYN, RCV_NXT, SND_NXT),
                segment(Flags::ACK, RCV_NXT, SND_NXT + 1),
                segment(Flags::ACK, RCV_NXT - 1, SND_NXT),
                segment(Flags::ACK, RCV_NXT + 2001, SND_NXT),
                Segment {
                    options: Options {
                        timestamps: Some(Timestamps { value: 99, echo: 0 }),
                        ..Options::default()
                    },
                    ..segment(Flags::ACK, RCV_NXT, SND_NXT)
                },
            ];
            for segment in strange {
                let mut remains = orphan(state);
                let first = hears(&mut remains, 1, &segment);
                assert!(matches!(first, RemainsVerdict::Send(_)), "{segment:?}: {first:?}");
                assert!(matches!(hears(&mut remains, 2, &segment), RemainsVerdict::Drop));
                assert!(remains.is_orphan(), "{segment:?}");
            }
            let reset = segment(Flags::RST, RCV_NXT, SND_NXT);
            assert!(matches!(hears(&mut orphan(state), 1, &reset), RemainsVerdict::Remove));
        }
    }
}
