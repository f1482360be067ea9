//! Congestion control: one [`AckSample`] in, window and pacing rate out.

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

/// Congestion state (`tcp_ca_state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaState {
    /// Nothing unusual.
    #[default]
    Open,
    /// SACKs or duplicate ACKs that may be reordering.
    Disorder,
    /// The window is being reduced without loss (ECN echo, local drop).
    Cwr,
    /// Fast recovery.
    Recovery,
    /// After a retransmission timeout.
    Loss,
}

/// How large frames are, as far as a congestion controller reckons with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameRule {
    /// A millisecond at the pacing rate, two segments at the least.
    #[default]
    Linux,
    /// At most so many microseconds at the rate of the flow.
    Bounded {
        /// `neap.tcp_tso_max_usecs`.
        usecs: u32,
    },
}

/// How slow start is watched, so that it ends before losses end it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HyStartRule {
    /// Not at all.
    Off,
    /// By trains of ACKs and by their delay, as Linux's CUBIC does it.
    Linux,
    /// HyStart++ (RFC 9406).
    #[default]
    Rfc9406,
}

/// What one ACK told the sender: the only input of a controller besides events
/// (Linux's `rate_sample`). All counts are wire segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// When the ACK was processed.
    pub now: Instant,
    /// Newly acknowledged or SACKed by this ACK.
    pub acked_sacked: u32,
    /// Newly acknowledged by the cumulative ACK alone.
    pub acked: u32,
    /// Newly marked lost, lost retransmissions included.
    pub losses: u32,
    /// Marked lost since the connection began (`tp->lost`), modulo 2^32.
    pub total_lost: u32,
    /// In flight just before this ACK was processed.
    pub prior_in_flight: u32,
    /// In flight now.
    pub in_flight: u32,
    /// Delivered over the sampled interval; 0 when there is no sample.
    pub delivered: u32,
    /// The segments of `delivered` that the receiver reported as marked.
    pub delivered_ce: u32,
    /// `delivered` of the connection when the sampled segment was sent.
    pub prior_delivered: u64,
    /// In flight when the sampled segment had left, its frame included; 0 without a sample.
    pub tx_in_flight: u32,
    /// Marked lost from the departure of the sampled segment until now.
    pub lost: u32,
    /// `delivered` of the connection now.
    pub total_delivered: u64,
    /// The sampled interval; zero when there is no sample.
    pub interval: Nanos,
    /// Round-trip time of the newest acknowledged segment; `None` if it was retransmitted.
    pub rtt: Option<Nanos>,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Minimum round-trip time of the last five minutes; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// The sample was taken while the application had nothing to send.
    pub is_app_limited: bool,
    /// The flight had filled the window since the last ACK.
    pub is_cwnd_limited: bool,
    /// The ACK was delayed by the receiver (it covered a single small segment late).
    pub is_ack_delayed: bool,
    /// A new round began: the newest acknowledged segment was sent after the previous round's end.
    pub is_round_start: bool,
    /// The ACK carried an ECN echo.
    pub is_ece: bool,
    /// The peer understands SACK, so that several losses of one round trip are seen.
    pub has_sack: bool,
    /// The state of loss recovery after this ACK.
    pub state: CaState,
    /// The earliest departure of the next frame; later than `now` when frames wait for theirs.
    pub next_departure: Instant,
    /// `sk_pacing_rate` until this ACK.
    pub pacing_rate: Rate,
    /// Departures are spaced at that rate.
    pub is_paced: bool,
    /// The segment size in bytes.
    pub mss: u32,
    /// How large frames are.
    pub frame_rule: FrameRule,
    /// How slow start is watched.
    pub hystart: HyStartRule,
}

/// The window, in wire segments as in Linux. The sender owns it and applies what is common to all
/// controllers (PRR, validation, undo); a controller moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window.
    pub cwnd: u32,
    /// Slow-start threshold; `u32::MAX` until the first congestion event.
    pub ssthresh: u32,
    /// Segments acknowledged towards the next increase (`snd_cwnd_cnt`).
    pub cwnd_cnt: u32,
    /// The window may not exceed this (`snd_cwnd_clamp`).
    pub clamp: u32,
}

impl Window {
    /// The window at the start of a connection.
    pub const fn new(initial: u32) -> Self {
        Self { cwnd: initial, ssthresh: u32::MAX, cwnd_cnt: 0, clamp: 1 << 20 }
    }

    /// Whether the window grows by slow start.
    pub const fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Slow start: grows by `acked`, at most to ssthresh. Returns what is left of `acked`
    /// (Linux's `tcp_slow_start`). Saturating: no window overflows.
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh);
        let left = acked - (cwnd - self.cwnd).min(acked);
        self.cwnd = cwnd.min(self.clamp);
        left
    }

    /// Congestion avoidance: one segment per `per` acknowledged (Linux's `tcp_cong_avoid_ai`).
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

/// What happens to a window besides ACKs (Linux's `tcp_ca_event` and `set_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionEvent {
    /// First transmission after idle: nothing was in flight.
    TxStart {
        /// When the connection last sent.
        last_sent: Instant,
        /// It had nothing to send, so samples are marked.
        is_app_limited: bool,
    },
    /// Fast recovery begins; [`CongestionControl::ssthresh`] was applied.
    Recovery,
    /// Window reduction without loss begins (ECN echo, local drop).
    Cwr,
    /// A retransmission timeout was declared.
    Loss,
    /// Back in the open state with the reduced window.
    Open,
    /// The reduction was undone: window and threshold are the old ones again.
    Undo,
}

/// What a controller begins with: at the end of the handshake, or when it takes over from another.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Now.
    pub now: Instant,
    /// Smoothed round-trip time; zero before the first sample.
    pub srtt: Nanos,
    /// Minimum round-trip time; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// The segment size in bytes.
    pub mss: u32,
    /// How large frames are.
    pub frame_rule: FrameRule,
    /// How slow start is watched.
    pub hystart: HyStartRule,
    /// Segments delivered so far.
    pub delivered: u64,
    /// Segments marked lost so far, modulo 2^32.
    pub lost: u32,
    /// Differs from connection to connection and cannot be guessed.
    pub random: u64,
}

/// Segments of one frame that were just marked lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct LostSegments {
    /// How many.
    pub segments: u32,
    /// In flight when the frame had left, itself included.
    pub tx_in_flight: u32,
    /// Marked lost since the frame left, these included.
    pub lost: u32,
    /// It left while the application had nothing more to send.
    pub is_app_limited: bool,
    /// Delivered so far on the connection.
    pub total_delivered: u64,
}

/// What a controller that models the path thinks of it, as `TCP_CC_INFO` tells it (Linux's
/// `struct tcp_bbr_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathModel {
    /// Bandwidth.
    pub bandwidth: Rate,
    /// Minimum round-trip time; [`Nanos::MAX`] before the first sample.
    pub min_rtt: Nanos,
    /// Gain of the pacing rate, in parts of 256.
    pub pacing_gain: u32,
    /// Gain of the window, in parts of 256.
    pub cwnd_gain: u32,
}

/// A congestion controller. The lab's users bring their own; BBR sets
/// [`owns_window`](Self::owns_window).
pub trait CongestionControl: fmt::Debug + Send {
    /// Its name as in `tcp_congestion_control`.
    fn name(&self) -> &'static str;

    /// The connection is established, or this controller takes over.
    fn init(&mut self, _start: &Start, _window: &mut Window) {}

    /// An ACK arrived. Called in every state where the window may move: outside recovery, and in
    /// all states when [`owns_window`](Self::owns_window).
    fn on_ack(&mut self, sample: &AckSample, window: &mut Window);

    /// The threshold for a congestion event that begins now, in segments; at least 2.
    fn ssthresh(&mut self, now: Instant, window: &Window) -> u32;

    /// Something besides an ACK happened.
    fn on_event(&mut self, event: CongestionEvent, now: Instant, window: &mut Window);

    /// Segments were marked lost, by an ACK or by a timer. Called before [`on_ack`](Self::on_ack)
    /// and before the events of the recovery that they cause.
    fn on_lost(&mut self, _now: Instant, _lost: &LostSegments, _window: &Window) {}

    /// Whether what is sent now is slow on purpose, so that samples of it are marked as limited by
    /// the application. Asked after each [`on_ack`](Self::on_ack).
    fn marks_app_limited(&self) -> bool {
        false
    }

    /// Whether slow start, if the last [`on_ack`](Self::on_ack) ended it by a threshold, ended by a
    /// train of ACKs (`TCPHystartTrainDetect`) and not by their delay.
    fn found_ack_train(&self) -> bool {
        false
    }

    /// Whether the controller sets window and rate in every state, so that PRR and the common
    /// pacing formula stay out (Linux's `cong_control`).
    fn owns_window(&self) -> bool {
        false
    }

    /// The pacing rate that the controller asks for; `None` leaves it to the common formula.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// The least number of segments per frame, where the controller has a view.
    fn min_tso_segs(&self) -> Option<u32> {
        None
    }

    /// The model of the path, where the controller has one.
    fn model(&self) -> Option<PathModel> {
        None
    }

    /// How many windows the send buffer should hold (`sndbuf_expand`).
    fn sndbuf_expand(&self) -> u32 {
        2
    }
}
