//! Sending half of a connection: written data, data in flight, and the peer's answers.

pub mod delivery_rate;
mod departures;
pub mod pages;
pub mod recovery;
pub mod rto;
pub mod scoreboard;
pub mod send_queue;
pub mod steady_rate;
mod timeouts;
mod written;

use crate::config::Config;
use crate::congestion::{
    AckSample, CaState, CongestionControl, CongestionEvent, INITIAL_WINDOW, LostSegments, Start,
    Window,
};
use crate::counters::{Counter, Counters};
use crate::handshake::echoed_rtt;
use crate::segment::{SackBlock, Timestamps};
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos, Rate};
use crate::transmit::pacer::Pacer;
use delivery_rate::{Newest, RateSampler};
use pages::Pages;
use recovery::{AfterAck, Recovery};
use rto::RttEstimator;
use scoreboard::{Counts, Delivered, Marked, Scoreboard, Sent};
use send_queue::SendQueue;
use std::sync::Arc;
use steady_rate::SteadyRate;

/// Frames in flight up to which a debug build counts them anew after each ACK.
#[cfg(debug_assertions)]
const RECOUNTED_FRAMES: usize = 256;

/// Contents of one ACK, as the sender needs them.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Acknowledgment number.
    pub ack: SeqNumber,
    /// Sequence number of the segment that carries it, for the window update.
    pub seq: SeqNumber,
    /// Window in bytes, scaled.
    pub window: u32,
    /// SACK blocks.
    pub sack: &'a [SackBlock],
    /// Timestamps, when in use.
    pub timestamps: Option<Timestamps>,
    /// Timestamp clock of this end.
    pub clock: u32,
    /// ECN echo.
    pub ece: bool,
    /// Whether the segment carried data, SYN or FIN, so that it is no duplicate ACK.
    pub has_data: bool,
    /// Whether a FIN of this end waits to be sent.
    pub fin_waits: bool,
}

/// What an ACK did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckFacts {
    pub una_advanced: bool,
    /// Oldest unacknowledged sequence number before the ACK.
    pub prior_una: SeqNumber,
    /// End of the highest SACKed segment before the ACK, or `prior_una` without one.
    pub prior_highest: SeqNumber,
    pub fin_waits: bool,
    pub newly_acked: u32,
    pub newly_sacked: u32,
    /// Newly acknowledged segments that had not been SACKed.
    pub unsacked_acked: u32,
    /// The ACK ends inside of a frame.
    pub is_partial: bool,
    /// Something that was retransmitted was acknowledged.
    pub retransmitted_acked: bool,
    /// A segment sent before the episode and never retransmitted was delivered.
    pub original_delivered: bool,
    pub is_duplicate: bool,
    pub dsack: bool,
    /// Duplicates that the DSACK block reports.
    pub dsacked: u32,
    /// A DSACK block ends where the tail loss probe that is out does.
    pub dsack_of_probe: bool,
    pub ece: bool,
    pub ts_echo: Option<u32>,
    /// `tcp_max_reordering`.
    pub max_reordering: u32,
}

/// Reason why an ACK was not taken. It may be a blind guess, and a challenge ACK answers it (RFC
/// 5961 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckError {
    /// The ACK covers data that was never sent.
    Future,
    /// The ACK is older than any window, or than the first byte.
    TooOld,
}

/// Result of an ACK that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckOutcome {
    /// Whether the ACK acknowledged something new.
    pub advanced: bool,
    /// Whether a later ACK came before it. Its SACK blocks alone say something.
    pub is_old: bool,
    /// Whether the retransmission timer has to be set anew.
    pub rearm: bool,
    /// Whether F-RTO wants new data before retransmissions.
    pub new_data_first: bool,
    /// Time that RACK waits for segments that may be reordered.
    pub reorder_wait: Option<Nanos>,
}

/// Sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    /// Oldest unacknowledged sequence number.
    una: SeqNumber,
    /// Next sequence number to send.
    nxt: SeqNumber,
    /// The peer's window in bytes from `una`.
    wnd: u32,
    /// Largest window the peer ever gave.
    max_wnd: u32,
    wl1: SeqNumber,
    /// Payload bytes of a full segment, options of every segment subtracted (`mss_cache`).
    mss: u32,
    /// Written and not sent.
    queue: SendQueue,
    /// Sent and not acknowledged.
    board: Scoreboard,
    /// Congestion window.
    window: Window,
    /// Controller.
    controller: Box<dyn CongestionControl>,
    /// Round-trip estimate.
    rtt: RttEstimator,
    /// Delivery-rate sampler.
    rate: RateSampler,
    /// What was delivered over milliseconds.
    steady: SteadyRate,
    /// Departures.
    pacer: Pacer,
    /// Loss recovery.
    recovery: Recovery,
    /// What RACK waits for after the ACK being processed; [`Nanos::MAX`] for nothing.
    reorder_wait: Nanos,
    /// The peer understands SACK.
    sack: bool,
    /// ECN was agreed.
    ecn: bool,
    /// The next data segment carries CWR.
    ecn_cwr_owed: bool,
    is_cwnd_limited: bool,
    max_packets_out: u32,
    cwnd_usage_seq: SeqNumber,
    cwnd_used: u32,
    cwnd_stamp: Instant,
    /// When data was last sent; [`Instant::ZERO`] before the first.
    last_sent: Instant,
    /// When the last ACK arrived.
    last_ack_at: Instant,
    totals: Totals,
}

/// Totals of what was sent and acknowledged since the connection began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Data segments sent, retransmissions included (`data_segs_out`).
    pub data_segs_out: u64,
    /// Payload bytes sent, retransmissions included (`tcpi_bytes_sent`).
    pub bytes_sent: u64,
    /// Payload bytes retransmitted (`tcpi_bytes_retrans`).
    pub bytes_retransmitted: u64,
    /// Sequence numbers acknowledged: payload, FIN, and the SYN of an active open
    /// (`tcpi_bytes_acked`).
    pub bytes_acked: u64,
    /// Segments retransmitted (`tcpi_total_retrans`).
    pub total_retransmitted: u32,
    /// Segments that the peer reported as duplicates (`tcpi_dsack_dups`).
    pub dsack_dups: u32,
}

impl Sender {
    /// Returns the sender of a new connection, which has sent only a SYN at `iss`.
    pub fn new(
        iss: SeqNumber,
        config: &Config,
        controller: Box<dyn CongestionControl>,
        pages: Arc<dyn Pages>,
    ) -> Self {
        let recovery = Recovery::new(config.tcp_reordering);
        Self {
            una: iss,
            nxt: iss + 1,
            wnd: 0,
            max_wnd: 0,
            wl1: SeqNumber(0),
            mss: 536,
            queue: SendQueue::new(pages),
            board: Scoreboard::default(),
            window: Window::new(INITIAL_WINDOW),
            controller,
            rtt: RttEstimator::new(config.tcp_rto_min_us, config.tcp_rto_max_ms),
            rate: RateSampler::default(),
            steady: SteadyRate::default(),
            pacer: Pacer::default(),
            recovery,
            reorder_wait: Nanos::MAX,
            sack: false,
            ecn: false,
            ecn_cwr_owed: false,
            is_cwnd_limited: false,
            max_packets_out: 0,
            cwnd_usage_seq: iss,
            cwnd_used: 0,
            cwnd_stamp: Instant::ZERO,
            last_sent: Instant::ZERO,
            last_ack_at: Instant::ZERO,
            totals: Totals::default(),
        }
    }

    /// Takes the end of the handshake, with the peer's first window from the segment at `seq`.
    pub fn establish(&mut self, window: u32, seq: SeqNumber, now: Instant, config: &Config) {
        self.una = self.nxt;
        self.set_window(window);
        self.wl1 = seq;
        self.cwnd_usage_seq = self.nxt;
        self.cwnd_stamp = now;
        self.last_ack_at = now;
        self.start_controller(now, config);
        self.update_pacing_rate(config.tcp_pacing_ss_ratio, config.tcp_pacing_ca_ratio);
    }

    /// Sets whether SACK and ECN were agreed in the handshake.
    pub fn agree(&mut self, sack: bool, ecn: bool) {
        self.sack = sack;
        self.ecn = ecn;
    }

    /// Takes the acknowledgment of the SYN of an active open, which counts among the acknowledged
    /// bytes as a FIN does.
    ///
    /// The SYN of a passive open was acknowledged before there was a connection.
    pub fn on_syn_acked(&mut self) {
        self.totals.bytes_acked += 1;
    }

    /// Gives up F-RTO's test: what it asks for, new data, could not leave (`tcp_xmit_recovery`).
    pub fn give_up_frto(&mut self) {
        self.recovery.give_up_frto();
    }

    /// Begins with one segment, before anything is sent: the path has lost several SYNs
    /// (`tcp_init_transfer`).
    pub fn begin_with_one(&mut self) {
        self.window.cwnd = 1;
    }

    /// Sets the payload bytes of a full segment.
    pub fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }

    /// Cuts frames in flight anew that are too large for the MSS, and marks them lost
    /// (`tcp_simple_retransmit`). Returns whether there were any.
    ///
    /// That loss is no sign of congestion.
    pub fn resegment(&mut self) -> bool {
        let duplicates = self.board.counts().sacked_out;
        let were_cut = self.board.resegment(self.mss as u16);
        if were_cut {
            if !self.sack {
                self.board.set_reno_sacked(duplicates);
            }
            self.recovery.on_resegmented(self.nxt);
        }
        were_cut
    }

    /// Replaces the controller (`tcp_reinit_congestion_control`).
    pub fn set_controller(
        &mut self,
        controller: Box<dyn CongestionControl>,
        now: Instant,
        config: &Config,
    ) {
        self.controller = controller;
        // What the other one reduced is not undone (`tcp_init_congestion_control`).
        self.recovery.forget_ssthresh();
        self.start_controller(now, config);
        self.adopt_pacing_rate();
    }

    fn start_controller(&mut self, now: Instant, config: &Config) {
        let start = Start {
            now,
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min_rtt(),
            mss: self.mss,
            frame_rule: config.frame_rule(),
            hystart: config.hystart,
            delivered: self.rate.delivered(),
            lost: self.rate.lost(),
            random: u64::from(self.nxt.0),
        };
        self.controller.init(&start, &mut self.window);
        self.pacer.set_needed(self.controller.pacing_rate().is_some());
    }

    fn set_window(&mut self, window: u32) {
        self.wnd = window;
        self.max_wnd = self.max_wnd.max(window);
    }

    /// Returns SND.UNA, the oldest sequence number that is not acknowledged.
    pub fn una(&self) -> SeqNumber {
        self.una
    }

    /// Returns SND.NXT, the next sequence number to send.
    pub fn nxt(&self) -> SeqNumber {
        self.nxt
    }

    /// Returns how many sequence numbers are sent and not acknowledged.
    pub fn unacked(&self) -> u32 {
        self.nxt.bytes_since(self.una)
    }

    /// Returns SND.WND, the peer's window in bytes from [`una`](Self::una).
    pub fn wnd(&self) -> u32 {
        self.wnd
    }

    /// Returns the largest window that the peer ever advertised, in bytes.
    pub fn max_wnd(&self) -> u32 {
        self.max_wnd
    }

    /// Returns the payload bytes of a full segment, less the options of every segment
    /// (`mss_cache`).
    pub fn mss(&self) -> u32 {
        self.mss
    }

    /// Returns whether the peer understands SACK.
    pub fn sack(&self) -> bool {
        self.sack
    }

    /// Returns whether ECN was agreed.
    pub fn ecn(&self) -> bool {
        self.ecn
    }

    /// Returns whether a frame is in flight.
    pub fn has_unacked(&self) -> bool {
        !self.board.is_empty()
    }

    /// Returns the number of frames in flight.
    pub fn frames(&self) -> usize {
        self.board.frames()
    }

    /// Returns the bytes of memory of the frames in flight.
    pub fn memory_in_flight(&self) -> u32 {
        self.board.memory()
    }

    /// Returns when the oldest frame in flight was last sent.
    pub fn oldest_departure(&self) -> Option<Instant> {
        self.board.front().map(|sent| sent.sent_at)
    }

    /// Returns the segments in flight, counted by state.
    pub fn counts(&self) -> Counts {
        self.board.counts()
    }

    /// Returns how many segments the network is thought to hold (`tcp_packets_in_flight`).
    pub fn in_flight(&self) -> u32 {
        self.board.counts().in_flight()
    }

    /// Returns congestion window and slow-start threshold.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Returns how many segments the congestion window leaves.
    pub fn cwnd_left(&self) -> u32 {
        self.window.cwnd.saturating_sub(self.in_flight())
    }

    /// Returns the fewest segments of a frame, by the controller or `tcp_min_tso_segs`.
    pub fn min_tso_segs(&self, config: &Config) -> u32 {
        self.controller.min_tso_segs().unwrap_or(config.tcp_min_tso_segs)
    }

    /// Returns the congestion controller.
    pub fn controller(&self) -> &dyn CongestionControl {
        self.controller.as_ref()
    }

    /// Returns the estimates of round-trip time and timeout.
    pub fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    /// Returns the schedule of departures.
    pub fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    /// Returns the sampler of the delivery rate.
    pub fn rate(&self) -> &RateSampler {
        &self.rate
    }

    /// Returns the state of loss recovery.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the totals since the connection began.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns when data was last sent; [`Instant::ZERO`] before the first.
    pub fn last_sent(&self) -> Instant {
        self.last_sent
    }

    /// Returns when the last ACK arrived.
    pub fn last_ack_at(&self) -> Instant {
        self.last_ack_at
    }

    /// Returns how many bytes the peer's window leaves; 0 if the peer took window back.
    pub fn window_left(&self) -> u32 {
        let edge = self.una + self.wnd;
        if edge.after(self.nxt) { edge.bytes_since(self.nxt) } else { 0 }
    }

    /// Takes an ACK (`tcp_ack`).
    pub fn on_ack(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        config: &Config,
        counters: &Counters,
    ) -> Result<AckOutcome, AckError> {
        if ack.ack.after(self.nxt) {
            return Err(AckError::Future);
        }
        // What was never sent cannot have been acknowledged before.
        let reach = u64::from(self.max_wnd).min(self.totals.bytes_acked);
        if ack.ack.before(self.una - reach as u32) {
            return Err(AckError::TooOld);
        }
        let is_old = ack.ack.before(self.una);
        let mut facts = AckFacts {
            una_advanced: ack.ack.after(self.una),
            prior_una: self.una,
            prior_highest: self.highest_delivered(),
            fin_waits: ack.fin_waits,
            ece: ack.ece && self.ecn && !is_old,
            // An echo of 0 is none (`tcp_tsopt_ecr_before`).
            ts_echo: ack.timestamps.map(|ts| ts.echo).filter(|&echo| echo != 0),
            max_reordering: config.tcp_max_reordering,
            ..AckFacts::default()
        };
        let prior = self.board.counts();
        let mut sample = AckSample {
            now,
            prior_in_flight: prior.in_flight(),
            is_ece: facts.ece,
            has_sack: self.sack,
            mss: self.mss,
            ..AckSample::default()
        };
        if !is_old {
            self.last_ack_at = now;
        }
        let is_window_update = self.update_window(ack);
        let mut rtts = Rtts::default();
        self.process_sacks(now, ack, counters, &mut facts, &mut rtts);
        if facts.una_advanced {
            self.totals.bytes_acked += u64::from(ack.ack.bytes_since(self.una));
            self.una = ack.ack;
            facts.newly_acked = self.process_cumulative(now, counters, &mut facts, &mut rtts);
            self.recovery.end_row_of_timeouts();
        }
        facts.is_duplicate = ack.ack == self.una
            && !facts.una_advanced
            && !is_window_update
            && !ack.has_data
            && facts.newly_sacked == 0;
        if prior.packets_out == 0 {
            if facts.dsack {
                self.count_delivered(facts.dsacked, facts.ece, counters);
                // Everything had arrived, some of it twice: an undo may be due.
                self.react(now, &facts, counters);
            }
            // The answer to a probe may come behind that to the original.
            self.check_probe(now, &facts, counters);
            let advanced = facts.una_advanced;
            return Ok(AckOutcome { advanced, is_old, ..AckOutcome::default() });
        }
        let echoed = facts.ts_echo.and_then(|echo| echoed_rtt(ack.clock, echo));
        let delivered = self.delivered_segments(prior.sacked_out, &facts);
        self.count_delivered(delivered, facts.ece, counters);
        sample.is_ack_delayed = self.may_be_delayed(&facts, &rtts, prior.sacked_out);
        self.update_rtt(now, &rtts, &facts, echoed, &mut sample);
        sample.acked = facts.newly_acked;
        sample.acked_sacked = delivered;
        sample.min_rtt = self.rtt.min_rtt();
        sample.srtt = self.rtt.srtt();
        self.rate.sample(&rtts.newest, &mut sample, self.recovery.is_reneging());
        self.queue.reclaim();
        self.steady.on_ack(now, self.rate.delivered(), self.rate.is_app_limited());
        // An ACK that delivers nothing does not say when what it reports was sent.
        if let Some(prior_delivered) = rtts.newest.prior_delivered() {
            self.adapt_reordering_window(prior_delivered);
        }
        self.check_probe(now, &facts, counters);
        let lost_before = self.rate.lost();
        self.reorder_wait = Nanos::MAX;
        let after = self.react_if_needed(now, &facts, counters, &prior);
        sample.total_lost = self.rate.lost();
        sample.losses = sample.total_lost.wrapping_sub(lost_before);
        sample.lost = self.rate.lost_since(&rtts.newest);
        sample.in_flight = self.board.counts().in_flight();
        self.control(&mut sample, &facts, config, counters);
        #[cfg(debug_assertions)]
        if self.board.frames() <= RECOUNTED_FRAMES {
            assert_eq!(self.board.counts(), self.board.recount(self.sack));
        }
        Ok(AckOutcome {
            advanced: facts.una_advanced,
            is_old,
            rearm: facts.una_advanced || self.is_ahead_of_oldest(now, rtts.first_sacked),
            new_data_first: after == AfterAck::NewDataFirst,
            reorder_wait: (self.reorder_wait != Nanos::MAX).then_some(self.reorder_wait),
        })
    }

    /// Whether what was SACKed after `sacked_rtt` left before the oldest frame was last sent, so
    /// that the timeout begins anew. What left after that frame says nothing about it, and would
    /// put its timeout off for as long as more is sent (`tcp_clean_rtx_queue`).
    fn is_ahead_of_oldest(&self, now: Instant, sacked_rtt: Option<Nanos>) -> bool {
        let oldest = self.oldest_departure();
        sacked_rtt.zip(oldest).is_some_and(|(rtt, oldest)| rtt > now.since(oldest))
    }

    /// Takes the window of an acceptable segment (`tcp_ack_update_window`). Returns whether it
    /// tells of the window: of another one than before, or that it is closed.
    fn update_window(&mut self, ack: &Ack<'_>) -> bool {
        if ack.ack.before(self.una) || !self.may_update_window(ack.ack, ack.seq, ack.window) {
            return false;
        }
        self.wl1 = ack.seq;
        let is_news = self.wnd != ack.window || ack.window == 0;
        self.set_window(ack.window);
        is_news
    }

    /// Whether a segment at `seq` that acknowledges `ack` brings news of the window
    /// (`tcp_may_update_window`).
    pub(crate) fn may_update_window(&self, ack: SeqNumber, seq: SeqNumber, window: u32) -> bool {
        ack.after(self.una)
            || seq.after(self.wl1)
            || (seq == self.wl1 && (window > self.wnd || window == 0))
    }

    fn count_delivered(&mut self, segments: u32, is_ece: bool, counters: &Counters) {
        self.rate.count_delivered(segments, is_ece);
        counters.add(Counter::Delivered, u64::from(segments));
        if is_ece {
            counters.add(Counter::DeliveredCE, u64::from(segments));
        }
    }

    /// Segments that the ACK reports as delivered. A duplicate that a DSACK tells of is one more
    /// (`tcp_dsack_seen`).
    fn delivered_segments(&self, sacked_before: u32, facts: &AckFacts) -> u32 {
        if self.sack {
            return facts.unsacked_acked + facts.newly_sacked + facts.dsacked;
        }
        if facts.una_advanced {
            // A part of a segment is no delivery (`tcp_remove_reno_sacks`).
            let least = u32::from(facts.newly_acked > 0);
            facts.newly_acked.saturating_sub(sacked_before).max(least)
        } else {
            // No more duplicates than segments that may have caused them (`tcp_limit_reno_sacked`).
            let counts = self.board.counts();
            let may_be = counts.sacked_out + counts.lost_out < counts.packets_out;
            u32::from(facts.is_duplicate && may_be)
        }
    }

    fn react_if_needed(
        &mut self,
        now: Instant,
        facts: &AckFacts,
        counters: &Counters,
        prior: &Counts,
    ) -> AfterAck {
        let counts = self.board.counts();
        let plain = self.recovery.state() == CaState::Open
            && !facts.ece
            && !facts.is_duplicate
            && facts.newly_sacked == 0
            && !facts.dsack
            && counts.sacked_out + counts.lost_out + prior.sacked_out == 0;
        if plain {
            return AfterAck::Ordinary;
        }
        self.react(now, facts, counters)
    }

    /// End of the highest SACKed segment; the oldest unacknowledged number without one
    /// (`tcp_highest_sack_seq`).
    pub(super) fn highest_delivered(&self) -> SeqNumber {
        self.board.highest_sack().unwrap_or(self.una)
    }

    fn process_cumulative(
        &mut self,
        now: Instant,
        counters: &Counters,
        facts: &mut AckFacts,
        rtts: &mut Rtts,
    ) -> u32 {
        let mut board = std::mem::take(&mut self.board);
        let high_seq = self.recovery.high_seq();
        let mut lowest = facts.prior_highest;
        let mut unsacked = 0;
        let acked = board.acknowledge(self.una, |part| {
            unsacked += part.segments;
            facts.is_partial |= part.end != part.sent.end();
            if part.sent.ever_retransmitted {
                facts.retransmitted_acked = true;
            } else {
                facts.original_delivered |= part.end.at_or_before(high_seq);
                rtts.on_cumulative(now, part.sent.sent_at);
                if part.segments > 0 {
                    lowest = lowest.earlier(part.start);
                }
            }
            self.credit_delivery(now, part, facts.ts_echo, &mut rtts.newest);
        });
        self.board = board;
        facts.unsacked_acked = unsacked;
        if self.sack {
            if lowest.before(facts.prior_highest) {
                self.saw_reordering(lowest, Counter::SACKReorder, facts, counters);
            }
        } else if self.board.remove_reno_sacked(acked) {
            self.saw_reno_reordering(acked, facts.max_reordering, counters);
        }
        acked
    }

    /// `echo` is the timestamp that tells which copy was delivered, where there is one.
    fn credit_delivery(
        &mut self,
        now: Instant,
        part: Delivered<'_>,
        echo: Option<u32>,
        newest: &mut Newest,
    ) {
        let Delivered { sent, end, segments, .. } = part;
        self.rack_advance(now, sent, end, echo);
        // A part of a segment is no delivery, and its other part is yet to come.
        if segments > 0 {
            self.rate.on_delivered(newest, &sent.snapshot, sent.sent_at, end);
        }
    }

    /// SACK and DSACK blocks (`tcp_sacktag_write_queue`).
    fn process_sacks(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        counters: &Counters,
        facts: &mut AckFacts,
        rtts: &mut Rtts,
    ) {
        if !self.sack || ack.sack.is_empty() {
            return;
        }
        let dsacks = usize::from(is_dsack(ack.sack[0], ack.ack, ack.sack.get(1)));
        if dsacks > 0 {
            self.process_dsack(ack.sack[0], ack, counters, facts);
        }
        let high_seq = self.recovery.high_seq();
        // The blocks of one ACK are in no order, so only what was SACKed before it is overtaken.
        let mut lowest = facts.prior_highest;
        let mut board = std::mem::take(&mut self.board);
        for &block in &ack.sack[dsacks..] {
            let valid = block.left.before(block.right)
                && block.right.at_or_before(self.nxt)
                && block.left.after(self.una);
            if !valid {
                // A block below una is old news after reordered ACKs; others are nonsense. No block
                // begins at una, which would be higher then.
                let is_at_una = block.left == self.una && block.right.after(ack.ack);
                if block.right.after(self.nxt) || !block.left.before(block.right) || is_at_una {
                    counters.add(Counter::SACKDiscard, 1);
                }
                continue;
            }
            board.sack(block.left, block.right, |part| {
                facts.newly_sacked += part.segments;
                if !part.sent.ever_retransmitted {
                    facts.original_delivered |= part.end.at_or_before(high_seq);
                    rtts.on_sacked(now, part.sent.sent_at);
                    lowest = lowest.earlier(part.start);
                }
                // The echo of an ACK that leaves a hole is older than what arrived behind it.
                self.credit_delivery(now, part, None, &mut rtts.newest);
            });
        }
        self.board = board;
        if lowest.before(facts.prior_highest) && self.recovery.may_see_reordering() {
            self.saw_reordering(lowest, Counter::SACKReorder, facts, counters);
        }
    }

    fn process_dsack(
        &mut self,
        block: SackBlock,
        ack: &Ack<'_>,
        counters: &Counters,
        facts: &mut AckFacts,
    ) {
        let below = block.left.before(ack.ack);
        counters.add(if below { Counter::DSACKRecv } else { Counter::DSACKOfoRecv }, 1);
        let bytes = block.right.bytes_since(block.left);
        // Nobody can have sent more duplicates than the window holds.
        if !block.left.before(block.right) || bytes > self.max_wnd.max(1) {
            counters.add(Counter::DSACKIgnoredDubious, 1);
            return;
        }
        let segments = bytes.div_ceil(self.mss.max(1));
        // Whoever else makes duplicates, a probe that came twice was needless.
        facts.dsack_of_probe = segments == 1 && self.recovery.is_end_of_probe(block.right);
        self.totals.dsack_dups = self.totals.dsack_dups.saturating_add(segments);
        // More duplicates than were made here: the network makes them, or the peer lies.
        if self.totals.dsack_dups > self.totals.total_retransmitted {
            counters.add(Counter::DSACKIgnoredDubious, 1);
            return;
        }
        (facts.dsack, facts.dsacked) = (true, segments);
        self.count_dsack(block, segments, facts.dsack_of_probe);
    }

    /// Whether the receiver may have waited with the ACK (`FLAG_ACK_MAYBE_DELAYED`): it is for a
    /// short segment that was alone in its round trip, and tells of nothing else.
    fn may_be_delayed(&self, facts: &AckFacts, rtts: &Rtts, sacked_before: u32) -> bool {
        facts.newly_acked == 1
            && !facts.is_partial
            && !facts.retransmitted_acked
            && sacked_before + facts.newly_sacked == 0
            && !facts.dsack
            && !facts.ece
            && self.una.bytes_since(facts.prior_una) < self.mss
            && rtts.newest.prior_delivered().map(|prior| prior + 1) == Some(self.rate.delivered())
    }

    /// Round-trip samples of one ACK (`tcp_ack_update_rtt`).
    fn update_rtt(
        &mut self,
        now: Instant,
        rtts: &Rtts,
        facts: &AckFacts,
        echoed: Option<Nanos>,
        sample: &mut AckSample,
    ) {
        let by_sequence = rtts.first.filter(|_| !facts.retransmitted_acked);
        let rtt = by_sequence.or(rtts.first_sacked);
        if let Some(rtt) = rtt {
            let newest = rtts.last_sacked.or(rtts.last).unwrap_or(rtt);
            self.rtt.on_min_rtt(now, newest, sample.is_ack_delayed);
            self.rtt.on_sample(rtt, self.una, self.nxt);
            sample.rtt = Some(newest);
        } else if facts.una_advanced
            && facts.newly_acked > 0
            && let Some(rtt) = echoed
        {
            // What was retransmitted is timed by the echoed timestamp alone (RFC 7323 section 4).
            self.rtt.on_sample(rtt, self.una, self.nxt);
        }
    }

    /// Moves the window and the rate (`tcp_cong_control`).
    fn control(
        &mut self,
        sample: &mut AckSample,
        facts: &AckFacts,
        config: &Config,
        counters: &Counters,
    ) {
        sample.is_cwnd_limited = self.is_cwnd_limited();
        sample.state = self.recovery.state();
        sample.frame_rule = config.frame_rule();
        sample.hystart = config.hystart;
        sample.next_departure = self.pacer.next_departure();
        sample.pacing_rate = self.pacer.rate();
        sample.is_paced = self.pacer.is_spaced();
        if self.controller.owns_window() {
            self.controller.on_ack(sample, &mut self.window);
            if self.controller.marks_app_limited() {
                self.rate.mark_app_limited(sample.in_flight);
            }
        } else if self.recovery.in_reduction() {
            self.reduce(sample.acked_sacked, sample.losses, facts.una_advanced);
        } else {
            let may_raise = if self.recovery.reordering() > config.tcp_reordering {
                facts.una_advanced || facts.newly_sacked > 0
            } else {
                facts.newly_acked > 0
            };
            if may_raise {
                let threshold = self.window.ssthresh;
                self.controller.on_ack(sample, &mut self.window);
                self.cwnd_stamp = sample.now;
                if self.window.ssthresh != threshold {
                    self.count_hystart(counters);
                }
            }
        }
        self.window.cwnd = self.window.cwnd.max(1);
        self.update_pacing_rate(config.tcp_pacing_ss_ratio, config.tcp_pacing_ca_ratio);
    }

    fn count_hystart(&self, counters: &Counters) {
        let (detect, cwnd) = if self.controller.found_ack_train() {
            (Counter::HystartTrainDetect, Counter::HystartTrainCwnd)
        } else {
            (Counter::HystartDelayDetect, Counter::HystartDelayCwnd)
        };
        counters.add(detect, 1);
        counters.add(cwnd, u64::from(self.window.ssthresh));
    }

    /// The pacing rate (`tcp_update_pacing_rate`), unless the controller has one.
    fn update_pacing_rate(&mut self, ss_ratio: u32, ca_ratio: u32) {
        if self.adopt_pacing_rate() {
            return;
        }
        let ratio = if self.window.cwnd < self.window.ssthresh / 2 { ss_ratio } else { ca_ratio };
        let rate = match self.rate_of(self.window.cwnd) {
            Rate::UNLIMITED => Rate::UNLIMITED,
            Rate(rate) => {
                let scaled = u128::from(rate) * u128::from(ratio) / 100;
                Rate(u64::try_from(scaled).unwrap_or(u64::MAX - 1))
            }
        };
        self.pacer.set_rate(rate);
    }

    /// Takes the pacing rate of the controller. Returns whether it has one.
    fn adopt_pacing_rate(&mut self) -> bool {
        let rate = self.controller.pacing_rate();
        if let Some(rate) = rate {
            self.pacer.set_rate(rate);
        }
        rate.is_some()
    }

    /// Returns the rate at which the flow moves data; unlimited before the first sample.
    ///
    /// It is the most that was in flight in this window, over srtt, but no more than what was
    /// delivered in a round trip or, plus an eighth, over milliseconds. While something other than
    /// cwnd limits the flow, above all small queues, cwnd may be twice as much and says nothing. A
    /// flow that fills its window in slow start will move twice as much a round later.
    ///
    /// No flow moves more than its pacing rate. What a paced flow delivered in one round trip says
    /// nothing once that over milliseconds is known: a sample may cover the end of a frame alone,
    /// and a flow whose frames follow such samples sends less, which the next ones confirm.
    pub fn moved_rate(&self) -> Rate {
        let used = self.rate_of(self.max_packets_out.min(self.window.cwnd));
        let is_paced = self.pacer.is_needed();
        let steady =
            self.steady.rate(self.mss).map(|Rate(rate)| Rate(rate.saturating_add(rate / 8)));
        let delivered = self
            .rate
            .rate(self.mss)
            .filter(|_| !self.rate.is_rate_app_limited() && (!is_paced || steady.is_none()));
        let rate = [delivered, steady].into_iter().flatten().fold(used, Rate::min);
        let grows = self.window.in_slow_start() && self.is_cwnd_limited;
        let rate = if grows { Rate(rate.0.saturating_mul(2)) } else { rate };
        if is_paced { rate.min(self.pacer.rate()) } else { rate }
    }

    /// The rate of so many segments per round trip, or of those in flight if they are more.
    fn rate_of(&self, segments: u32) -> Rate {
        let segments = segments.max(self.board.counts().packets_out);
        let srtt = self.rtt.srtt();
        Rate::from_bytes_in(u64::from(segments) * u64::from(self.mss), srtt)
    }

    /// Returns whether the window limits the flow, not the application (`tcp_is_cwnd_limited`).
    pub fn is_cwnd_limited(&self) -> bool {
        self.is_cwnd_limited
            || (self.window.in_slow_start()
                && self.window.cwnd < self.max_packets_out.saturating_mul(2))
    }

    /// Records how much of the window is used (`tcp_cwnd_validate`).
    pub fn validate_cwnd(&mut self, now: Instant, limited: bool, no_space: bool, config: &Config) {
        let out = self.board.counts().packets_out;
        if self.una.at_or_after(self.cwnd_usage_seq)
            || limited
            || (!self.is_cwnd_limited && out > self.max_packets_out)
        {
            self.is_cwnd_limited = limited;
            self.max_packets_out = out;
            self.cwnd_usage_seq = self.nxt;
        }
        if self.is_cwnd_limited() {
            self.cwnd_used = 0;
            self.cwnd_stamp = now;
            return;
        }
        self.cwnd_used = self.cwnd_used.max(out);
        let idle = now.since(self.cwnd_stamp);
        if config.tcp_slow_start_after_idle
            && idle >= self.rtt.rto()
            && !self.controller.owns_window()
            && self.recovery.state() == CaState::Open
        {
            let used = self.cwnd_used.max(INITIAL_WINDOW);
            if !no_space && used < self.window.cwnd {
                let near = (self.window.cwnd / 2 + self.window.cwnd / 4).max(2);
                self.window.ssthresh = self.window.ssthresh.max(near);
                self.window.cwnd = self.window.cwnd.midpoint(used);
            }
            self.cwnd_used = 0;
            self.cwnd_stamp = now;
        }
    }

    /// Prepares a flow that has nothing in flight for its next frame, before that is sized.
    ///
    /// The controller hears that sending begins again, and its rate acts at once. The window
    /// shrinks once per RTO of silence (`tcp_cwnd_restart`). The caller does this once, however
    /// often the frame is refused.
    pub fn start_after_idle(&mut self, now: Instant, config: &Config) {
        let last_sent = self.last_sent;
        if last_sent == Instant::ZERO || !self.board.is_empty() {
            return;
        }
        let is_app_limited = self.rate.is_app_limited();
        let event = CongestionEvent::TxStart { last_sent, is_app_limited };
        self.controller.on_event(event, now, &mut self.window);
        self.adopt_pacing_rate();
        let rto = self.rtt.rto();
        let mut idle = now.since(last_sent);
        if !config.tcp_slow_start_after_idle || self.controller.owns_window() || idle <= rto {
            return;
        }
        let restart = INITIAL_WINDOW.min(self.window.cwnd);
        let near = (self.window.cwnd / 2 + self.window.cwnd / 4).max(2);
        self.window.ssthresh = self.window.ssthresh.max(near);
        while idle > rto && self.window.cwnd > restart {
            self.window.cwnd >>= 1;
            idle = idle.saturating_sub(rto);
        }
        self.window.cwnd = self.window.cwnd.max(restart);
        self.cwnd_used = 0;
        self.cwnd_stamp = now;
    }

    /// Marks frames lost by `mark`; counts what it notes of each and tells the controller.
    fn lose(
        &mut self,
        now: Instant,
        counters: &Counters,
        mark: impl FnOnce(&mut Scoreboard, &mut dyn FnMut(&Sent, Marked)),
    ) {
        let (rate, controller) = (&mut self.rate, self.controller.as_mut());
        mark(&mut self.board, &mut |sent, Marked { segments, again }| {
            counters.add(Counter::LostRetransmit, u64::from(again));
            let lost = LostSegments {
                segments,
                tx_in_flight: sent.snapshot.in_flight(),
                lost: rate.count_lost(&sent.snapshot, segments),
                is_app_limited: sent.snapshot.is_app_limited(),
                total_delivered: rate.delivered(),
            };
            controller.on_lost(now, &lost, &self.window);
        });
    }
}

/// Round-trip samples of one ACK, and the newest segment that it delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Rtts {
    newest: Newest,
    first: Option<Nanos>,
    last: Option<Nanos>,
    /// Of the oldest SACKed segment.
    first_sacked: Option<Nanos>,
    /// Of the newest SACKed segment.
    last_sacked: Option<Nanos>,
}

impl Rtts {
    fn on_cumulative(&mut self, now: Instant, sent_at: Instant) {
        let rtt = now.since(sent_at);
        self.first.get_or_insert(rtt);
        self.last = Some(rtt);
    }

    /// The blocks of one ACK are in no order.
    fn on_sacked(&mut self, now: Instant, sent_at: Instant) {
        let rtt = now.since(sent_at);
        self.first_sacked = self.first_sacked.max(Some(rtt));
        self.last_sacked = Some(self.last_sacked.unwrap_or(rtt).min(rtt));
    }
}

/// Whether the first block reports a duplicate (RFC 2883 section 4).
fn is_dsack(block: SackBlock, ack: SeqNumber, second: Option<&SackBlock>) -> bool {
    block.left.before(ack)
        || second.is_some_and(|second| {
            block.left.at_or_after(second.left) && block.right.at_or_before(second.right)
        })
}
