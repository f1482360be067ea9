//! Congestion control: the trait [`CongestionControl`] and the controllers that neap has.
//!
//! A controller gets an [`AckSample`] for each ACK and moves a [`Window`]. It may also set a pacing
//! rate.

pub mod bbr;
pub mod bbr3;
mod controllers;
pub mod cubic;
mod hystart;
mod path_model;
pub mod reno;
#[cfg(test)]
mod tests;

pub use controllers::{BUILT_IN, Controllers, RegisterError, UnknownController};

use crate::time::{Instant, Nanos, Rate};
use core::fmt;

/// Initial window in segments (RFC 6928, `TCP_INIT_CWND`).
pub const INITIAL_WINDOW: u32 = 10;

/// State of congestion control and loss recovery (`tcp_ca_state` in Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaState {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// SACKs or duplicate ACKs arrived that may come from reordering.
    Disorder,
    /// The window is being reduced without loss, after an ECN echo or a drop by a local qdisc.
    Cwr,
    /// Fast recovery: lost segments are being retransmitted.
    Recovery,
    /// A retransmission timeout has expired, and what was lost is being retransmitted.
    Loss,
}

/// Rule for the size of frames, as a congestion controller needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameRule {
    /// A frame takes one millisecond at the pacing rate, and has at least two segments.
    #[default]
    Linux,
    /// A frame takes a bounded time at the flow's rate.
    Bounded {
        /// Longest time of a frame in microseconds, from `neap.tcp_tso_max_usecs`.
        usecs: u32,
    },
}

/// Method by which CUBIC leaves slow start before packets are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HyStartRule {
    /// Slow start ends only by loss.
    Off,
    /// HyStart of Linux's CUBIC: trains of ACKs and rising delay end slow start.
    Linux,
    /// HyStart++ (RFC 9406).
    #[default]
    Rfc9406,
}

impl fmt::Display for CaState {
    /// Prints the name of the state in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "open",
            Self::Disorder => "disorder",
            Self::Cwr => "cwr",
            Self::Recovery => "recovery",
            Self::Loss => "loss",
        })
    }
}

/// Facts about one ACK, computed for the congestion controller (Linux's `rate_sample`).
///
/// All counts are wire segments.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AckSample {
    /// Time at which the ACK was processed.
    pub now: Instant,
    /// Segments newly acknowledged or SACKed by this ACK.
    pub acked_sacked: u32,
    /// Segments newly acknowledged by the cumulative ACK alone.
    pub acked: u32,
    /// Segments newly marked lost, lost retransmissions included.
    pub losses: u32,
    /// Segments marked lost since the connection began (`tp->lost`), modulo 2^32.
    pub total_lost: u32,
    /// Segments in flight just before this ACK was processed.
    pub prior_in_flight: u32,
    /// Segments in flight after this ACK.
    pub in_flight: u32,
    /// Segments delivered in the sampled interval; 0 when there is no sample.
    pub delivered: u32,
    /// Segments of `delivered` that the receiver reported as marked with CE.
    pub delivered_ce: u32,
    /// Value of the connection's `delivered` when the sampled segment was sent.
    pub prior_delivered: u64,
    /// Segments in flight when the sampled segment had left, its frame included; 0 when there is no
    /// sample.
    pub tx_in_flight: u32,
    /// Segments marked lost since the departure of the sampled segment.
    pub lost: u32,
    /// Segments delivered since the connection began.
    pub total_delivered: u64,
    /// Length of the sampled interval; zero when there is no sample.
    pub interval: Nanos,
    /// Round-trip time of the newest acknowledged segment; `None` if that was retransmitted.
    pub rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Minimum round-trip time of the last five minutes; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// Whether the sample was taken while the application had nothing to send.
    pub is_app_limited: bool,
    /// Whether the flight has filled the window since the last ACK.
    pub is_cwnd_limited: bool,
    /// Whether the receiver may have delayed the ACK: it covers a short segment that was alone in
    /// its round trip.
    pub is_ack_delayed: bool,
    /// Whether a new round began: the newest acknowledged segment was sent after the last round's
    /// end.
    pub is_round_start: bool,
    /// Whether the ACK carried an ECN echo.
    pub is_ece: bool,
    /// Whether the peer understands SACK, so that several losses of one round trip are seen.
    pub has_sack: bool,
    /// State of loss recovery after this ACK.
    pub state: CaState,
    /// Earliest departure of the next frame. It is later than `now` if frames wait for theirs.
    pub next_departure: Instant,
    /// Pacing rate until this ACK (`sk_pacing_rate`).
    pub pacing_rate: Rate,
    /// Whether departures are spaced at the pacing rate.
    pub is_paced: bool,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// Rule for the size of frames.
    pub frame_rule: FrameRule,
    /// Method by which slow start ends before loss.
    pub hystart: HyStartRule,
}

/// Congestion window and slow-start threshold, in wire segments as in Linux.
///
/// The sender owns the window and does what all controllers have in common: proportional rate
/// reduction, validation, undo. A controller moves the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Slow-start threshold; `u32::MAX` until the first congestion event.
    pub ssthresh: u32,
    /// Segments acknowledged towards the next increase (`snd_cwnd_cnt`).
    pub cwnd_cnt: u32,
    /// Largest congestion window (`snd_cwnd_clamp`), in segments.
    pub clamp: u32,
}

impl Window {
    /// Returns the window of a new connection: `initial` segments, no threshold.
    pub const fn new(initial: u32) -> Self {
        Self { cwnd: initial, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: 1 << 20 }
    }

    /// Returns whether the window grows by slow start.
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Slow start: grows the window by `acked` segments, up to the threshold (`tcp_slow_start`).
    ///
    /// Returns the segments of `acked` that are left. The arithmetic saturates.
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh);
        let left = acked - (cwnd - self.cwnd).min(acked);
        self.cwnd = cwnd.min(self.clamp);
        left
    }

    /// Congestion avoidance: grows the window by one segment per `per` acknowledged segments
    /// (`tcp_cong_avoid_ai`).
    pub fn additive_increase(&mut self, per: u32, acked: u32) {
        let per = per.max(1);
        if self.cwnd_cnt >= per {
            self.cwnd_cnt = 0;
            self.cwnd = self.cwnd.saturating_add(1);
        }
        self.cwnd_cnt = self.cwnd_cnt.saturating_add(acked);
        if self.cwnd_cnt >= per {
            let more = self.cwnd_cnt / per;
            self.cwnd_cnt -= more * per;
            self.cwnd = self.cwnd.saturating_add(more);
        }
        self.cwnd = self.cwnd.min(self.clamp);
    }
}

/// Event other than an ACK that a congestion controller is told of (Linux's `tcp_ca_event` and
/// `set_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CongestionEvent {
    /// The first transmission after idle: nothing was in flight.
    TxStart {
        /// Time at which the connection last sent.
        last_sent: Instant,
        /// Whether the application had nothing to send, so that samples are marked.
        is_app_limited: bool,
    },
    /// Fast recovery begins. [`CongestionControl::ssthresh`] was applied before.
    Recovery,
    /// A window reduction without loss begins, for an ECN echo or a local drop.
    Cwr,
    /// A retransmission timeout expired. It comes for each one of a row, and in the middle of a
    /// recovery, too; [`CongestionControl::ssthresh`] was applied before only if the timeout began
    /// a reduction.
    Loss,
    /// The connection is back in [`CaState::Open`] with the reduced window.
    Open,
    /// The reduction was undone: window and threshold have their old values again.
    Undo,
}

/// State of a connection when a controller starts: at the end of the handshake, or when the
/// controller replaces another one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Start {
    /// Current time.
    pub now: Instant,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Minimum round-trip time; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// Rule for the size of frames.
    pub frame_rule: FrameRule,
    /// Method by which slow start ends before loss.
    pub hystart: HyStartRule,
    /// Segments delivered since the connection began.
    pub delivered: u64,
    /// Segments marked lost since the connection began, modulo 2^32.
    pub lost: u32,
    /// Random number of this connection, which a peer cannot guess.
    pub random: u64,
}

/// Segments of one frame that were just marked lost.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct LostSegments {
    /// Number of the segments.
    pub segments: u32,
    /// Segments in flight when the frame had left, its own included.
    pub tx_in_flight: u32,
    /// Segments marked lost since the frame left, these included.
    pub lost: u32,
    /// Whether the frame left while the application had nothing more to send.
    pub is_app_limited: bool,
    /// Segments delivered since the connection began.
    pub total_delivered: u64,
}

/// Model of the path that a controller such as BBR has, as `TCP_CC_INFO` shows it (Linux's `struct
/// tcp_bbr_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathModel {
    /// Bandwidth of the path.
    pub bandwidth: Rate,
    /// Minimum round-trip time; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// Gain of the pacing rate, in parts of 256.
    pub pacing_gain: u32,
    /// Gain of the window, in parts of 256.
    pub cwnd_gain: u32,
}

/// Congestion controller of one connection.
///
/// The sender calls it; window and pacing rate are its output. A controller with state of its own
/// for every phase of recovery, such as BBR, sets [`owns_window`](Self::owns_window).
pub trait CongestionControl: fmt::Debug + Send {
    /// Returns the name of the controller, as in `tcp_congestion_control`.
    fn name(&self) -> &'static str;

    /// Starts the controller: the connection is established, or this controller replaces another
    /// one.
    fn init(&mut self, _start: &Start, _window: &mut Window) {}

    /// Takes an ACK and moves the window.
    ///
    /// It is called outside of recovery, and in every state if [`owns_window`](Self::owns_window)
    /// is true.
    fn on_ack(&mut self, sample: &AckSample, window: &mut Window);

    /// Returns the threshold for a congestion event that begins now, in segments; at least 2.
    fn ssthresh(&mut self, now: Instant, window: &Window) -> u32;

    /// Takes an event other than an ACK.
    fn on_event(&mut self, event: CongestionEvent, now: Instant, window: &mut Window);

    /// Takes segments of one frame that were marked lost, by an ACK or by a timer.
    ///
    /// It is called before [`on_ack`](Self::on_ack) and before the events of the recovery that the
    /// loss causes.
    fn on_lost(&mut self, _now: Instant, _lost: &LostSegments, _window: &Window) {}

    /// Returns whether the controller sends slowly on purpose, so that samples are marked as
    /// limited by the application.
    ///
    /// It is called after each [`on_ack`](Self::on_ack).
    fn marks_app_limited(&self) -> bool {
        false
    }

    /// Returns whether the last [`on_ack`](Self::on_ack) ended slow start because of a train of
    /// ACKs (`TCPHystartTrainDetect`), and not because of their delay.
    fn found_ack_train(&self) -> bool {
        false
    }

    /// Returns whether the controller sets window and rate in every state (Linux's `cong_control`).
    ///
    /// Proportional rate reduction and the common pacing formula do not act then.
    fn owns_window(&self) -> bool {
        false
    }

    /// Returns the pacing rate that the controller asks for; `None` leaves it to the common
    /// formula.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Returns the fewest segments per frame; `None` leaves that to the settings.
    fn min_tso_segs(&self) -> Option<u32> {
        None
    }

    /// Returns the controller's model of the path, if it has one.
    fn model(&self) -> Option<PathModel> {
        None
    }

    /// Returns how many congestion windows the send buffer should hold (`sndbuf_expand`).
    fn sndbuf_expand(&self) -> u32 {
        2
    }
}
