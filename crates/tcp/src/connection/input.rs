//! What arrives: RFC 9293 section 3.10.7, hardened by RFC 5961 and RFC 7323.

use super::deadlines::Deadline;
use super::opening::SynAck;
use super::timers::{IDLE_RELEASE, SOON};
use super::{Connection, ConnectionError, Fin, Owed, Path, Readiness};
use crate::congestion::CaState;
use crate::counters::Counter;
use crate::handshake::{is_paws_reject, scaled_window};
use crate::receiver::{Acceptable, TsRecent};
use crate::segment::{Flags, Segment};
use crate::sender::{Ack, AckError};
use crate::state::{State, Transition};
use crate::time::Instant;
use crate::time_wait::TimeWait;

/// Ticks by which a timestamp may lag because of reordering (`TCP_PAWS_WINDOW`).
const PAWS_WINDOW: u32 = 1;

impl Connection {
    /// Takes a segment of this connection. Answers to it leave at the next
    /// [`transmit`](Self::transmit).
    pub fn on_segment(&mut self, now: Instant, segment: Segment) {
        let mut segment = segment;
        self.segs_in += u64::from(segment.segments());
        if !segment.payload.is_empty() {
            self.data_segs_in += u64::from(segment.segments());
        }
        let unread = self.receiver.unread();
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.on_syn_sent(now, &mut segment),
            _ => self.on_synchronized(now, &mut segment),
        }
        let lowat = self.options.receive_lowat;
        if self.receiver.unread() > unread && self.receiver.has_enough(lowat) {
            self.edges |= Readiness::READABLE;
        }
    }

    /// SYN-SENT (RFC 9293 section 3.10.7.3).
    fn on_syn_sent(&mut self, now: Instant, segment: &mut Segment) {
        let has_ack = segment.flags.contains(Flags::ACK);
        if has_ack && segment.ack != self.opening.iss + 1 {
            // An ACK of something else: an old connection's. Its sender must be told.
            if !segment.flags.contains(Flags::RST) {
                self.rare().stray_reset = Some(segment.ack);
            }
            if self.opening.retransmits == 0 {
                // The reset may be lost; the next SYN asks again soon
                // (`tcp_rcv_synsent_state_process`).
                self.deadlines.set_retransmit(Deadline::Retransmit, now + SOON);
            }
            return;
        }
        let is_reset = segment.flags.contains(Flags::RST);
        if has_ack && self.has_impossible_echo(now, segment) {
            self.counters.add(Counter::PAWSActive, 1);
            if !is_reset {
                self.rare().stray_reset = Some(segment.ack);
            }
            return;
        }
        if is_reset {
            if has_ack {
                self.fail(ConnectionError::Refused);
            }
            return;
        }
        if !segment.flags.contains(Flags::SYN) {
            return;
        }
        // A SYN that crosses ours may be one of the connection that this one succeeds.
        if !has_ack && is_paws_reject(Some(self.receiver.ts_recent()), &segment.options) {
            return;
        }
        self.meet_peer(now, segment);
        // Nothing was heard until now: the first SYN left at this time.
        let first = self.timestamp(self.liveness.last_heard());
        self.liveness.on_heard(now);
        self.errors.forget_soft();
        if !has_ack {
            self.turn(Transition::SynArrived);
            self.owed |= Owed::SYN;
            (self.opening.retransmits, self.opening.dropped) = (0, 0);
            self.arm_syn(now);
            return;
        }
        self.learn_of_path(now, segment, first);
        self.turn(Transition::SynAckArrived);
        self.established(now, scaled_window(segment, None), segment.seq);
        self.sender.on_syn_acked();
        self.receiver.owe_handshake_ack(now);
        if !segment.payload.is_empty() || segment.flags.contains(Flags::FIN) {
            self.process_data(now, segment);
        }
    }

    /// Whether a SYN-ACK or reset echoes a timestamp from before the first SYN or from the future.
    fn has_impossible_echo(&self, now: Instant, segment: &Segment) -> bool {
        let Some(timestamps) = segment.options.timestamps.filter(|ts| ts.echo != 0) else {
            return false;
        };
        // Nothing was heard since the connection was made, which is before its first SYN left.
        let first = self.timestamp(self.liveness.last_heard());
        let possible = self.timestamp(now).wrapping_sub(first);
        self.config.tcp_timestamps && timestamps.echo.wrapping_sub(first) > possible
    }

    /// All states with a peer (RFC 9293 section 3.10.7.4).
    fn on_synchronized(&mut self, now: Instant, segment: &mut Segment) {
        if !self.is_valid(now, segment) {
            return;
        }
        let was_opening = self.state == State::SynReceived;
        if was_opening && segment.ack != self.opening.iss + 1 {
            self.rare().stray_reset = Some(segment.ack);
            return;
        }
        if was_opening {
            self.open_passively(now, segment);
        }
        if self.process_ack(now, segment) {
            self.process_data(now, segment);
        }
    }

    /// The checks before the ACK, in the order of Linux's `tcp_validate_incoming`. Returns whether
    /// to go on.
    fn is_valid(&mut self, now: Instant, segment: &Segment) -> bool {
        if !segment.flags.intersects(Flags::ACK | Flags::RST | Flags::SYN) {
            self.counters.add(Counter::NoControlFlag, 1);
            return false;
        }
        let is_reset = segment.flags.contains(Flags::RST);
        let has_syn = segment.flags.contains(Flags::SYN);
        if !is_reset && let Some(refusal) = self.paws_refusal(now, segment) {
            self.counters.add(refusal, 1);
            if has_syn {
                self.challenge_syn(now);
            } else if refusal == Counter::PAWSEstab {
                self.receiver.on_unacceptable(now, segment, Counter::ACKSkippedPAWS);
            }
            return false;
        }
        if self.is_repeated_syn(segment) {
            self.answer_syn_again(now);
            return false;
        }
        if self.receiver.acceptable(segment.seq, segment.end_seq()) != Acceptable::Yes {
            self.on_outside(now, segment);
            return false;
        }
        if is_reset {
            self.on_reset(now, segment);
            return false;
        }
        if has_syn && !self.is_simultaneous_synack(segment) {
            self.challenge_syn(now);
            return false;
        }
        true
    }

    /// A segment outside the receive window.
    fn on_outside(&mut self, now: Instant, segment: &Segment) {
        let is_reset = segment.flags.contains(Flags::RST);
        if is_reset && self.is_at_fin(segment) {
            return self.on_reset(now, segment);
        }
        self.counters.add(Counter::OutOfWindow, 1);
        if is_reset {
            return;
        }
        if segment.flags.contains(Flags::SYN) {
            self.challenge_syn(now);
        } else {
            self.receiver.on_unacceptable(now, segment, Counter::ACKSkippedSeq);
        }
    }

    /// PAWS (RFC 7323 section 5.2), with Linux's tolerance for one tick of disorder and for pure
    /// ACKs that the network reordered and that say nothing new (`tcp_disordered_ack_check`).
    /// Returns the counter of the refusal; old pure ACKs, which are common and need no answer, have
    /// one of their own.
    fn paws_refusal(&self, now: Instant, segment: &Segment) -> Option<Counter> {
        let timestamps = segment.options.timestamps.filter(|_| self.opening.timestamps)?;
        let pure_ack = segment.seq_len() == 0 && segment.flags.contains(Flags::ACK);
        let window = scaled_window(segment, Some(self.opening.snd_wscale));
        let repeats = pure_ack
            && segment.seq == self.receiver.nxt()
            && segment.ack == self.sender.una()
            && !self.sender.may_update_window(segment.ack, segment.seq, window);
        let slack =
            if repeats { TsRecent::replay_window(self.sender.rtt().rto()) } else { PAWS_WINDOW };
        if !self.receiver.paws_refuses(now, timestamps.value, slack) {
            return None;
        }
        let is_old_ack = pure_ack && segment.seq.before(self.receiver.nxt());
        Some(if is_old_ack { Counter::PAWSOldAck } else { Counter::PAWSEstab })
    }

    /// The second half of a simultaneous open repeats the peer's SYN, with an ACK of this end's.
    fn is_simultaneous_synack(&self, segment: &Segment) -> bool {
        self.state == State::SynReceived
            && segment.flags.contains(Flags::SYN | Flags::ACK)
            && segment.seq_len() == 1
            && segment.seq + 1 == self.receiver.nxt()
            && segment.ack == self.sender.nxt()
    }

    /// The SYN that a passive open answers has come once more: the SYN-ACK may be lost.
    fn is_repeated_syn(&self, segment: &Segment) -> bool {
        self.state == State::SynReceived
            && self.opening.is_passive()
            && segment.flags & (Flags::SYN | Flags::ACK) == Flags::SYN
            && segment.seq + 1 == self.receiver.nxt()
    }

    /// Owes the SYN-ACK once more, if the rate limit of answers allows it (`tcp_check_req`).
    fn answer_syn_again(&mut self, now: Instant) {
        if !self.receiver.may_answer_invalid(now) {
            return;
        }
        self.owed |= Owed::SYN;
        self.opening.synack.insert(SynAck::REPEATED);
        self.arm_syn(now);
    }

    /// Some stacks reset at the sequence number of their FIN (`tcp_reset_check`).
    fn is_at_fin(&self, segment: &Segment) -> bool {
        self.receiver.is_finished() && segment.seq + 1 == self.receiver.nxt()
    }

    /// RFC 5961 section 3.2: only a reset at exactly the next sequence number resets.
    fn on_reset(&mut self, now: Instant, segment: &Segment) {
        if segment.seq != self.receiver.nxt() && !self.is_at_fin(segment) {
            self.challenge(now);
            return;
        }
        let error = match self.state {
            State::SynReceived if !self.opening.is_passive() => ConnectionError::Refused,
            State::CloseWait => ConnectionError::BrokenPipe,
            _ => ConnectionError::Reset,
        };
        self.fail(error);
    }

    fn challenge_syn(&mut self, now: Instant) {
        self.counters.add(Counter::SYNChallenge, 1);
        self.challenge(now);
    }

    /// Owes a challenge ACK, if the rate limit of the connection allows one (RFC 5961 section 7;
    /// `tcp_send_challenge_ack`).
    fn challenge(&mut self, now: Instant) {
        if self.receiver.may_answer_invalid(now) {
            self.counters.add(Counter::ChallengeACK, 1);
            self.receiver.owe_ack();
        } else {
            self.counters.add(Counter::ACKSkipped, 1);
        }
    }

    /// Our SYN of a simultaneous or passive open was acknowledged.
    fn open_passively(&mut self, now: Instant, segment: &Segment) {
        if self.opening.is_passive() {
            self.counters.add(Counter::PassiveOpens, 1);
        }
        // The peer's SYN was heard, and answered, at this time.
        self.learn_of_path(now, segment, self.timestamp(self.liveness.last_heard()));
        let window = scaled_window(segment, Some(self.opening.snd_wscale));
        self.turn(Transition::SynAcked);
        self.established(now, window, segment.seq);
        self.sender.on_syn_acked();
        if self.owed.take(Owed::SYN) {
            // The peer's ACK came before our SYN-ACK left, and a SYN-ACK of the peer asks for no
            // answer. Without an ACK of its SYN the peer would wait for its timer.
            self.receiver.owe_ack();
        }
        if self.fin != Fin::None {
            self.turn(Transition::Shutdown);
        }
    }

    /// Whether the segment is data in order and says nothing new to the sender, and nothing is
    /// missing. On the fast path of Linux it does not ask for transmission (`tcp_rcv_established`).
    /// To be asked before the data is taken in: what brings missing data is on the slow path.
    fn brings_data_alone(&self, segment: &Segment) -> bool {
        !segment.payload.is_empty()
            && segment.flags & (Flags::FIN | Flags::ECE | Flags::CWR) == Flags::empty()
            && segment.seq == self.receiver.nxt()
            && !self.receiver.has_holes()
            && segment.ack == self.sender.una()
            && scaled_window(segment, Some(self.opening.snd_wscale)) == self.sender.wnd()
    }

    /// The ACK part. Returns whether to go on with the data.
    fn process_ack(&mut self, now: Instant, segment: &Segment) -> bool {
        if !self.brings_data_alone(segment) {
            self.end_hold();
        }
        let ack = Ack {
            ack: segment.ack,
            seq: segment.seq,
            window: scaled_window(segment, Some(self.opening.snd_wscale)),
            sack: &segment.options.sack,
            timestamps: segment.options.timestamps.filter(|_| self.opening.timestamps),
            clock: self.timestamp(now),
            ece: segment.flags.contains(Flags::ECE),
            has_data: segment.seq_len() > 0,
            fin_waits: self.fin == Fin::Queued,
        };
        let largest = self.sender.max_wnd();
        let outcome = match self.sender.on_ack(now, &ack, &self.config, &self.counters) {
            Ok(outcome) => outcome,
            // RFC 5961 section 5.2.
            Err(AckError::Future | AckError::TooOld) => {
                self.challenge(now);
                return false;
            }
        };
        // Only what is behind the check of the ACK may say anything about the peer.
        if let Some(timestamps) = segment.options.timestamps
            && (!outcome.is_old || segment.seq_len() > 0)
        {
            self.receiver.update_ts_recent(now, segment.seq, timestamps.value);
        }
        if !outcome.is_old {
            self.errors.forget_soft();
            self.liveness.on_heard(now);
        }
        // While the window has no room for the next segment, ACKs do not put off the probe, which
        // sends what fits (RFC 9293 section 3.8.6.2.1).
        let fits = !self.has_waiting() || self.first_segment_fits(self.sender.mss());
        if fits || outcome.advanced {
            self.liveness.end_window_probes();
            self.deadlines.clear(Deadline::Probe);
        }
        if self.sender.max_wnd() > largest {
            // Half of it may be a full segment now.
            self.refresh_mss();
        }
        if outcome.advanced {
            self.liveness.on_progress();
        }
        if self.sender.recovery().state() != CaState::Loss
            && let Some(rare) = &mut self.rare
        {
            rare.timeouts.end_row(now);
        }
        if outcome.new_data_first {
            self.owed |= Owed::NEW_DATA_FIRST;
        }
        if !self.sender.has_unacked() {
            self.deadlines.clear(Deadline::Retransmit);
            self.deadlines.clear(Deadline::LossProbe);
            self.deadlines.clear(Deadline::Reorder);
            if outcome.advanced {
                self.deadlines.set(Deadline::IdleMemory, now + IDLE_RELEASE);
            }
        } else if let Some(wait) = outcome.reorder_wait {
            self.arm_reorder(now, wait);
        } else if outcome.rearm {
            self.arm_retransmit(now);
            self.arm_loss_probe(now, true);
        }
        if self.fin == Fin::Sent && self.sender.unacked() == 0 {
            self.on_fin_acked(now);
        }
        self.check_space();
        self.state != State::Closed
    }

    fn on_fin_acked(&mut self, now: Instant) {
        let before = self.state;
        self.turn(Transition::FinAcked);
        match self.state {
            State::FinWait2 if before != State::FinWait2 && self.is_orphan => self.arm_orphan(now),
            State::TimeWait if before != State::TimeWait => self.enter_time_wait(now),
            State::Closed => self.deadlines.clear_all(),
            _ => {}
        }
    }

    /// Data and FIN of an acceptable segment.
    fn process_data(&mut self, now: Instant, segment: &mut Segment) {
        if !self.state.may_receive() {
            self.on_data_after_fin(now, segment);
            return;
        }
        let fin = u32::from(segment.flags.contains(Flags::FIN));
        let is_new = segment.seq_len() > 0 && (segment.end_seq() - fin).after(self.receiver.nxt());
        let is_deaf = self.read_shut && self.fin != Fin::None;
        if is_new && (self.is_orphan || is_deaf) {
            // Nobody will read it (RFC 1122 section 4.2.2.13).
            self.counters.add(Counter::AbortOnData, 1);
            self.rare().stray_reset = Some(segment.ack);
            self.fail(ConnectionError::Reset);
            return;
        }
        let estimates = self.estimates(now);
        let intake = self.receiver.on_segment(now, segment, estimates);
        if self.read_shut {
            self.receiver.discard();
        }
        if intake.fin {
            self.on_fin(now);
        }
    }

    /// Data or a FIN behind the peer's FIN: what was received before is answered as a duplicate,
    /// and what would be new is ignored (RFC 9293 section 3.10.7.4, seventh).
    fn on_data_after_fin(&mut self, now: Instant, segment: &Segment) {
        if segment.seq_len() == 0 || !self.state.is_synchronized() {
            return;
        }
        if segment.seq.before(self.receiver.nxt()) {
            self.receiver.on_unacceptable(now, segment, Counter::ACKSkippedSeq);
        } else {
            self.counters.add(Counter::OutOfWindow, 1);
        }
    }

    fn on_fin(&mut self, now: Instant) {
        self.turn(Transition::FinArrived);
        if self.state == State::TimeWait {
            self.enter_time_wait(now);
        }
    }

    fn enter_time_wait(&mut self, now: Instant) {
        self.counters.add(Counter::TimeWaited, 1);
        self.deadlines.clear_all();
        let time_wait = TimeWait::new(now, self.ends());
        self.rare().time_wait = Some(time_wait);
    }

    /// Takes a change of the path to the peer. A smaller MTU is obeyed at once (RFC 1191, RFC
    /// 8201), and segments that no longer fit are sent again.
    pub fn on_path_change(&mut self, now: Instant, path: Path) {
        self.path = path;
        self.refresh_mss();
        if self.sender.resegment() {
            // What is still below cannot be sent again yet: that puts the timeout off no further.
            self.resume_retransmit(now);
        }
    }

    /// Takes an error that a router reported for a segment in flight.
    ///
    /// In the handshake any error ends the connection, as in Linux (`tcp_v4_err`; RFC 5461 section
    /// 3.1). Later the error is kept and named when the connection times out (RFC 1122 section
    /// 4.2.3.9). A socket with
    /// [`SocketOptions::receive_errors`](crate::options::SocketOptions::receive_errors) is told at
    /// once.
    pub fn on_unreachable(&mut self, error: ConnectionError) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.fail(error);
        } else if self.options.receive_errors {
            self.set_error(Some(error));
        } else {
            self.errors.note_soft(error);
        }
    }

    /// No route leads to the peer, or the own address is gone: remembered for when the connection
    /// times out (`inet_sk_rebuild_header`). A route that comes back lets it go on.
    pub fn on_no_route(&mut self) {
        self.errors.note_soft(ConnectionError::NetworkUnreachable);
    }

    /// The device on the way to the peer is gone, and there is no other way: the connection ends.
    pub fn on_network_down(&mut self) {
        if self.state != State::Closed {
            self.fail(ConnectionError::NetworkDown);
        }
    }
}
