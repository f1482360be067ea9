//! Handshake: what two ends agree on, and a passive open before it becomes a connection.
//!
//! Sources: RFC 9293 section 3.10.7, RFC 7323, RFC 3168 section 6.1.1; Linux's `tcp_check_req`.

mod syn_cookies;

pub use syn_cookies::SynCookies;

use crate::config::Config;
use crate::segment::{Flags, Options, Segment, Timestamps};
use crate::seq::SeqNumber;
use crate::time::{Instant, Nanos};

/// The largest shift of the window (RFC 7323 section 2.3).
const MAX_WSCALE: u8 = 14;
/// First retransmission of a SYN-ACK (Linux's `TCP_TIMEOUT_INIT`).
const SYNACK_TIMEOUT: Nanos = Nanos::from_secs(1);

/// Returns the `TSval` at `now`: milliseconds, moved by the connection's offset.
pub fn timestamp(now: Instant, ts_offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(ts_offset)
}

/// Whether a segment's `TSval` is older than `ts_recent` (RFC 7323 section 5.2). A `ts_recent` of 0
/// proves nothing: some stacks send it in their SYN and other numbers later (`tcp_paws_check`).
pub(crate) fn is_paws_reject(ts_recent: Option<u32>, options: &Options) -> bool {
    match (ts_recent.filter(|&recent| recent != 0), options.timestamps) {
        (Some(recent), Some(ts)) => SeqNumber(ts.value).before(SeqNumber(recent)),
        _ => false,
    }
}

/// The first window: whole segments, if there is space for one.
fn window_of(space: u32, mss: u16) -> u32 {
    let whole = space - space % u32::from(mss.max(1));
    if whole == 0 { space } else { whole }.min(u32::from(u16::MAX))
}

/// Abilities that this end offers in its SYN or SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// MSS that this end advertises, in bytes.
    pub mss: u16,
    /// First receive window, in bytes. The window of a SYN is never scaled.
    pub rcv_wnd: u32,
    /// Shift of later windows, if both ends scale.
    pub rcv_wscale: u8,
    window_scaling: bool,
    timestamps: bool,
    sack: bool,
    ecn: u8,
    default_mss: u16,
    min_mss: u16,
    rto_max_ms: u32,
}

impl Offer {
    /// Returns the offer of a socket with `space` bytes for received payload that may grow to
    /// `clamp` bytes, over IP headers of `ip_header` bytes (Linux's `tcp_select_initial_window`).
    ///
    /// `clamp` is `u32::MAX` unless `SO_RCVBUF` was set.
    pub fn new(config: &Config, ip_header: u32, mss: u16, space: u32, clamp: u32) -> Self {
        let space = space.min(clamp);
        let most = space.max(config.tcp_rmem.max).max(config.rmem_max).min(clamp);
        let rcv_wscale = (most.max(1).ilog2() as u8).saturating_sub(15).min(MAX_WSCALE);
        Self {
            mss,
            rcv_wnd: window_of(space, mss),
            rcv_wscale: if config.tcp_window_scaling { rcv_wscale } else { 0 },
            window_scaling: config.tcp_window_scaling,
            timestamps: config.tcp_timestamps,
            sack: config.tcp_sack,
            ecn: config.tcp_ecn,
            default_mss: if ip_header >= 40 { 1220 } else { 536 },
            min_mss: u16::try_from(config.tcp_min_snd_mss).unwrap_or(u16::MAX),
            rto_max_ms: config.tcp_rto_max_ms,
        }
    }

    /// Returns the offer with a first window of as many whole segments of `mss` bytes as there is
    /// `space` for.
    pub(crate) fn with_window_of(self, space: u32, mss: u16) -> Self {
        Self { rcv_wnd: window_of(space, mss), ..self }
    }

    /// Returns the SYN of an active open. It is sent again with a new `now` after a timeout.
    pub fn syn(&self, now: Instant, isn: SeqNumber, ts_offset: u32) -> Segment {
        let mut flags = Flags::SYN;
        flags.set(Flags::ECE | Flags::CWR, self.asks_ecn());
        let value = timestamp(now, ts_offset);
        Segment {
            seq: isn,
            flags,
            window: self.syn_window(),
            options: Options {
                mss: Some(self.mss),
                window_scale: self.window_scaling.then_some(self.rcv_wscale),
                sack_permitted: self.sack,
                timestamps: self.timestamps.then_some(Timestamps { value, echo: 0 }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    /// The SYN-ACK to a peer with whom `agreed` was negotiated.
    pub(crate) fn synack(
        &self,
        agreed: &Negotiated,
        seq: SeqNumber,
        ack: SeqNumber,
        tsval: u32,
    ) -> Segment {
        let mut flags = Flags::SYN | Flags::ACK;
        flags.set(Flags::ECE, agreed.ecn);
        Segment {
            seq,
            ack,
            flags,
            window: self.syn_window(),
            options: Options {
                mss: Some(self.mss),
                window_scale: agreed.snd_wscale.map(|_| agreed.rcv_wscale),
                sack_permitted: agreed.sack,
                timestamps: agreed.ts_recent.map(|echo| Timestamps { value: tsval, echo }),
                ..Options::default()
            },
            ..Segment::default()
        }
    }

    /// The timestamps of a segment, if this end speaks them.
    pub(crate) fn with_timestamps(&self, given: Option<Timestamps>) -> Option<Timestamps> {
        given.filter(|_| self.timestamps)
    }

    fn asks_ecn(&self) -> bool {
        self.ecn == 1
    }

    fn accepts_ecn(&self) -> bool {
        self.ecn != 0
    }

    fn syn_window(&self) -> u16 {
        u16::try_from(self.rcv_wnd).unwrap_or(u16::MAX)
    }
}

/// Result of the handshake: what both ends agreed on in their SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Largest sum of payload and options that the peer takes in one segment, in bytes.
    pub mss: u16,
    /// Shift of the peer's windows; `None` if windows are not scaled.
    pub snd_wscale: Option<u8>,
    /// Shift of the windows of this end; 0 if windows are not scaled.
    pub rcv_wscale: u8,
    /// SACK may be used in both directions.
    pub sack: bool,
    /// The peer's `TSval`; `None` if timestamps are not used.
    pub ts_recent: Option<u32>,
    /// ECN may be used (RFC 3168).
    pub ecn: bool,
}

impl Negotiated {
    /// Returns the agreement that follows from the peer's SYN or SYN-ACK and the `offer` of this
    /// end.
    ///
    /// A missing MSS option means the default of the address family (RFC 9293 section 3.7.1). An
    /// MSS below `tcp_min_snd_mss` is raised to it, so that no peer can force tiny segments.
    pub fn of(peer: &Segment, offer: &Offer) -> Self {
        let options = &peer.options;
        let mss = options.mss.filter(|&mss| mss > 0).unwrap_or(offer.default_mss);
        let scale = options.window_scale.filter(|_| offer.window_scaling);
        let ecn_flags = peer.flags & (Flags::ECE | Flags::CWR);
        let ecn = if peer.flags.contains(Flags::ACK) {
            offer.asks_ecn() && ecn_flags == Flags::ECE
        } else {
            offer.accepts_ecn() && ecn_flags == Flags::ECE | Flags::CWR
        };
        Self {
            mss: mss.max(offer.min_mss),
            snd_wscale: scale.map(|shift| shift.min(MAX_WSCALE)),
            rcv_wscale: if scale.is_some() { offer.rcv_wscale } else { 0 },
            sack: options.sack_permitted && offer.sack,
            ts_recent: offer.with_timestamps(options.timestamps).map(|ts| ts.value),
            ecn,
        }
    }
}

/// State of a completed passive open, from which a connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Initial sequence number of this end.
    pub iss: SeqNumber,
    /// Initial sequence number of the peer.
    pub irs: SeqNumber,
    /// What both ends agreed on.
    pub negotiated: Negotiated,
    /// The peer's window in bytes, from the last ACK of the handshake.
    pub snd_wnd: u32,
    /// Window that this end advertised, in bytes.
    pub rcv_wnd: u32,
    /// Offset that this end adds to its clock in timestamps.
    pub ts_offset: u32,
    /// Time from SYN-ACK to ACK; by the timestamp that the ACK echoes, in milliseconds, if the
    /// SYN-ACK was sent more than once or was a SYN cookie. `None` if nothing tells.
    pub synack_rtt: Option<Nanos>,
    /// Timeouts of the SYN-ACK, and the time since it was first sent.
    pub synack_timeouts: (u32, Nanos),
    /// The ACK echoes the first SYN-ACK, so that none was lost although timeouts have expired
    /// (`tcp_try_undo_spurious_syn`).
    pub is_first_echoed: bool,
}

/// Action that a [`Request`] asks its host for, after a segment or a deadline.
#[derive(Clone, Debug)]
pub enum RequestVerdict {
    /// Do nothing.
    Drop,
    /// Send the SYN-ACK again.
    Retransmit(Segment),
    /// Send a challenge ACK (RFC 5961 section 5); the request stays.
    Challenge(Segment),
    /// Send a reset for a segment that belongs to no connection. The request stays.
    Reset(Segment),
    /// Make a connection and give it the same segment, which may carry data and FIN.
    Accepted(Accepted),
    /// Forget the request: the peer reset it, or never answered.
    Closed,
}

/// Passive open that waits for the last ACK of its handshake (SYN-RECEIVED).
///
/// Cost: at most 96 bytes; O(1) per segment and timer.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    iss: SeqNumber,
    irs: SeqNumber,
    ts_offset: u32,
    /// `TSval` of the first SYN-ACK: no echo may be older.
    first_tsval: u32,
    offer: Offer,
    negotiated: Negotiated,
    /// SYN-ACKs sent again, for whatever reason.
    retransmits: u8,
    /// Timeouts so far.
    timeouts: u8,
    first_sent: Instant,
    deadline: Instant,
    /// No answer to an invalid segment before this.
    quiet_until: Instant,
}

impl Request {
    /// Takes a SYN (without ACK or RST). The caller sends [`synack`](Self::synack) at once.
    pub fn new(now: Instant, syn: &Segment, isn: SeqNumber, ts_offset: u32, offer: &Offer) -> Self {
        Self {
            iss: isn,
            irs: syn.seq,
            ts_offset,
            first_tsval: timestamp(now, ts_offset),
            offer: *offer,
            negotiated: Negotiated::of(syn, offer),
            retransmits: 0,
            timeouts: 0,
            first_sent: now,
            deadline: now + SYNACK_TIMEOUT,
            quiet_until: Instant::ZERO,
        }
    }

    /// Returns the sequence number of the SYN-ACK.
    pub fn iss(&self) -> SeqNumber {
        self.iss
    }

    /// Returns the SYN-ACK as of `now`.
    pub fn synack(&self, now: Instant) -> Segment {
        let tsval = timestamp(now, self.ts_offset);
        self.offer.synack(&self.negotiated, self.iss, self.rcv_nxt(), tsval)
    }

    /// Returns what both ends agreed on.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns when [`on_deadline`](Self::on_deadline) is due.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns how often the SYN-ACK was sent again since nobody answered.
    pub fn timeouts(&self) -> u8 {
        self.timeouts
    }

    /// Asks for the SYN-ACK to be sent again, after a time that doubles, and gives up after so many
    /// `retries` (`tcp_synack_retries`, or fewer where many half-open connections wait).
    pub fn on_deadline(&mut self, now: Instant, retries: u32) -> RequestVerdict {
        if now < self.deadline {
            return RequestVerdict::Drop;
        }
        if u32::from(self.timeouts) >= retries {
            return RequestVerdict::Closed;
        }
        self.timeouts += 1;
        self.retransmit(now)
    }

    /// Judges a segment for this pair of ends (RFC 9293 section 3.10.7.4, RFC 5961).
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &Segment,
        config: &Config,
    ) -> RequestVerdict {
        let is_syn_alone = segment.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
        let is_reset = segment.flags.contains(Flags::RST);
        let is_old = !is_reset && is_paws_reject(self.negotiated.ts_recent, &segment.options);
        if is_syn_alone && segment.seq == self.irs && !is_old {
            return if self.may_answer(now, config) {
                self.retransmit(now)
            } else {
                RequestVerdict::Drop
            };
        }
        if is_reset {
            return self.on_reset(now, segment, config);
        }
        if segment.flags.contains(Flags::ACK) && segment.ack != self.iss + 1 {
            return RequestVerdict::Reset(Segment {
                seq: segment.ack,
                flags: Flags::RST,
                ..Segment::default()
            });
        }
        if is_old || self.has_impossible_echo(now, segment) || !self.is_in_window(segment) {
            return self.challenge(now, config);
        }
        // A SYN at its own place is the first one once more, here with an ACK; any other in the
        // window may be an attack or a peer that restarted, and the challenge tells which.
        if segment.flags.contains(Flags::SYN) && segment.seq != self.irs {
            return self.challenge(now, config);
        }
        if !segment.flags.contains(Flags::ACK) {
            return RequestVerdict::Drop;
        }
        if !segment.seq.after(self.rcv_nxt())
            && let (Some(recent), Some(ts)) =
                (&mut self.negotiated.ts_recent, segment.options.timestamps)
        {
            *recent = ts.value;
        }
        RequestVerdict::Accepted(self.accepted(now, segment))
    }

    fn rcv_nxt(&self) -> SeqNumber {
        self.irs + 1
    }

    /// RFC 5961 section 3.2: only a reset at exactly the next number closes.
    fn on_reset(&mut self, now: Instant, segment: &Segment, config: &Config) -> RequestVerdict {
        if segment.seq == self.rcv_nxt() {
            RequestVerdict::Closed
        } else if self.is_in_window(segment) {
            self.challenge(now, config)
        } else {
            RequestVerdict::Drop
        }
    }

    fn is_in_window(&self, segment: &Segment) -> bool {
        let (left, right) = (self.rcv_nxt(), self.rcv_nxt() + self.offer.rcv_wnd);
        let (seq, end) = (segment.seq, segment.end_seq());
        seq == left || end.after(left) && seq.before(right) || seq == right && seq == end
    }

    /// An echo from before the first SYN-ACK or from the future (`PAWS` for what we sent).
    fn has_impossible_echo(&self, now: Instant, segment: &Segment) -> bool {
        let Some(ts) = segment.options.timestamps.filter(|ts| ts.echo != 0) else { return false };
        let last = timestamp(now, self.ts_offset).wrapping_sub(self.first_tsval);
        self.negotiated.ts_recent.is_some() && ts.echo.wrapping_sub(self.first_tsval) > last
    }

    fn retransmit(&mut self, now: Instant) -> RequestVerdict {
        self.retransmits = self.retransmits.saturating_add(1);
        let wait = SYNACK_TIMEOUT.saturating_mul(1 << self.timeouts.min(32));
        let most = Nanos::from_millis(u64::from(self.offer.rto_max_ms));
        self.deadline = now + wait.min(most);
        RequestVerdict::Retransmit(self.synack(now))
    }

    fn challenge(&mut self, now: Instant, config: &Config) -> RequestVerdict {
        if !self.may_answer(now, config) {
            return RequestVerdict::Drop;
        }
        let value = timestamp(now, self.ts_offset);
        RequestVerdict::Challenge(Segment {
            seq: self.iss + 1,
            ack: self.rcv_nxt(),
            flags: Flags::ACK,
            window: (self.offer.rcv_wnd >> self.negotiated.rcv_wscale).min(0xffff) as u16,
            options: Options {
                timestamps: self.negotiated.ts_recent.map(|echo| Timestamps { value, echo }),
                ..Options::default()
            },
            ..Segment::default()
        })
    }

    /// The rate limit of answers to invalid segments (`tcp_invalid_ratelimit`).
    fn may_answer(&mut self, now: Instant, config: &Config) -> bool {
        let may = now >= self.quiet_until;
        if may {
            let pause = Nanos::from_millis(u64::from(config.tcp_invalid_ratelimit));
            self.quiet_until = now + pause;
        }
        may
    }

    fn accepted(&self, now: Instant, segment: &Segment) -> Accepted {
        let has_timestamps = self.negotiated.ts_recent.is_some();
        let echo = segment.options.timestamps.filter(|_| has_timestamps).map(|ts| ts.echo);
        Accepted {
            iss: self.iss,
            irs: self.irs,
            negotiated: self.negotiated,
            snd_wnd: scaled_window(segment, self.negotiated.snd_wscale),
            rcv_wnd: self.offer.rcv_wnd,
            ts_offset: self.ts_offset,
            synack_rtt: match self.retransmits {
                0 => Some(now.since(self.first_sent)),
                _ => echo.and_then(|echo| echoed_rtt(timestamp(now, self.ts_offset), echo)),
            },
            synack_timeouts: (self.timeouts.into(), now.since(self.first_sent)),
            is_first_echoed: echo == Some(self.first_tsval),
        }
    }
}

/// A timestamp echo older than this many milliseconds is nonsense.
const MAX_ECHO_AGE: u32 = 1 << 24;

/// The round trip that an echoed timestamp tells of by our `clock`, a millisecond at least
/// (`tcp_rtt_tsopt_us`); `None` if the echo makes no sense.
pub(crate) fn echoed_rtt(clock: u32, echo: u32) -> Option<Nanos> {
    let age = clock.wrapping_sub(echo);
    (echo != 0 && age < MAX_ECHO_AGE).then(|| Nanos::from_millis(age.max(1).into()))
}

/// A window in bytes; that of a SYN is never scaled.
pub(crate) fn scaled_window(segment: &Segment, scale: Option<u8>) -> u32 {
    let is_syn = segment.flags.contains(Flags::SYN);
    u32::from(segment.window) << if is_syn { 0 } else { scale.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const ISS: SeqNumber = SeqNumber(u32::MAX);
    const IRS: SeqNumber = SeqNumber(5000);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Nanos::from_millis(ms)
    }

    fn offer() -> Offer {
        Offer::new(&Config::default(), 20, 1460, 65536, u32::MAX)
    }

    fn syn() -> Segment {
        let config = Config { tcp_ecn: 1, ..Config::default() };
        Offer::new(&config, 20, 1400, 65536, u32::MAX).syn(at(1000), IRS, 0)
    }

    fn request() -> Request {
        Request::new(at(0), &syn(), ISS, 0, &offer())
    }

    fn ack() -> Segment {
        Segment { seq: IRS + 1, ack: ISS + 1, flags: Flags::ACK, window: 10, ..Segment::default() }
    }

    #[test]
    fn a_request_is_small() {
        assert!(size_of::<Request>() <= 96, "{}", size_of::<Request>());
    }

    #[test]
    fn receive_window_and_scale_follow_the_largest_buffer() {
        let scale = |max, clamp| {
            let mut config = Config::default();
            config.tcp_rmem.max = max;
            config.rmem_max = 0;
            Offer::new(&config, 20, 1460, 65536, clamp).rcv_wscale
        };
        assert_eq!(scale(6 << 20, u32::MAX), 7);
        assert_eq!(scale(Config::default().tcp_rmem.max, u32::MAX), 10);
        assert_eq!(scale(65535, u32::MAX), 1);
        assert_eq!(scale(u32::MAX, u32::MAX), 14);
        assert_eq!(scale(6 << 20, 65535), 0);
        let first = |space| Offer::new(&Config::default(), 20, 1460, space, u32::MAX).rcv_wnd;
        assert_eq!([first(65536), first(1_000_000), first(100), first(0)], [64240, 65535, 100, 0]);
    }

    #[test]
    fn options_are_used_only_if_both_ends_have_them() {
        let agreed = Negotiated::of(&syn(), &offer());
        assert_eq!(
            agreed,
            Negotiated {
                mss: 1400,
                snd_wscale: Some(10),
                rcv_wscale: 10,
                sack: true,
                ts_recent: Some(1000),
                ecn: true,
            }
        );
        let config = Config {
            tcp_window_scaling: false,
            tcp_timestamps: false,
            tcp_sack: false,
            tcp_ecn: 0,
            ..Config::default()
        };
        let offer = Offer::new(&config, 40, 1440, 65536, u32::MAX);
        let plain = Negotiated::of(&syn(), &offer);
        let bare = Segment { flags: Flags::SYN, ..Segment::default() };
        let nothing = Negotiated::of(&bare, &offer);
        assert_eq!(nothing, Negotiated { mss: 1220, ..plain });
        assert_eq!((plain.snd_wscale, plain.rcv_wscale, plain.sack), (None, 0, false));
        assert_eq!((plain.ts_recent, plain.ecn), (None, false));
    }

    #[test]
    fn strange_sizes_are_bounded() {
        let mut syn = syn();
        syn.options.mss = Some(1);
        syn.options.window_scale = Some(255);
        let agreed = Negotiated::of(&syn, &offer());
        assert_eq!((agreed.mss, agreed.snd_wscale), (48, Some(14)));
        syn.options.mss = Some(0);
        assert_eq!(Negotiated::of(&syn, &offer()).mss, 536);
    }

    #[test]
    fn ecn_is_confirmed_by_ece_alone() {
        let synack = request().synack(at(0));
        assert_eq!(synack.flags, Flags::SYN | Flags::ACK | Flags::ECE);
        let asking = Offer { ecn: 1, ..offer() };
        assert!(Negotiated::of(&synack, &asking).ecn);
        assert!(!Negotiated::of(&synack, &offer()).ecn, "accepting is not asking");
        let reflected = Segment { flags: synack.flags | Flags::CWR, ..synack };
        assert!(!Negotiated::of(&reflected, &asking).ecn);
    }

    #[test]
    fn a_synack_offers_what_the_peer_did() {
        let synack = request().synack(at(7));
        assert_eq!((synack.seq, synack.ack, synack.window), (ISS, IRS + 1, 64240));
        assert_eq!(
            synack.options,
            Options {
                mss: Some(1460),
                window_scale: Some(10),
                sack_permitted: true,
                timestamps: Some(Timestamps { value: 7, echo: 1000 }),
                ..Options::default()
            }
        );
    }

    #[test]
    fn the_last_ack_establishes_and_measures() {
        let verdict = request().on_segment(at(30), &ack(), &Config::default());
        let RequestVerdict::Accepted(accepted) = verdict else { panic!("{verdict:?}") };
        assert_eq!((accepted.iss, accepted.irs), (ISS, IRS));
        assert_eq!((accepted.snd_wnd, accepted.rcv_wnd), (10_240, 64240));
        assert_eq!(accepted.synack_rtt, Some(Nanos::from_millis(30)));
    }

    #[test]
    fn data_and_fin_establish_even_out_of_order() {
        let segment = Segment {
            seq: IRS + 100,
            flags: Flags::ACK | Flags::FIN,
            payload: Bytes::from_static(b"hello").into(),
            ..ack()
        };
        assert!(matches!(
            request().on_segment(at(1), &segment, &Config::default()),
            RequestVerdict::Accepted(_)
        ));
    }

    #[test]
    fn synack_is_repeated_with_back_off_and_given_up() {
        let retries = Config::default().tcp_synack_retries;
        let mut request = request();
        let mut due = Vec::new();
        loop {
            let now = request.deadline();
            let early = request.on_deadline(now - Nanos(1), retries);
            assert!(matches!(early, RequestVerdict::Drop));
            due.push(now.as_millis() / 1000);
            match request.on_deadline(now, retries) {
                RequestVerdict::Retransmit(synack) => assert!(synack.flags.contains(Flags::SYN)),
                verdict => break assert!(matches!(verdict, RequestVerdict::Closed)),
            }
        }
        assert_eq!(due, [1, 3, 7, 15, 31, 63]);
        let verdict = request.on_segment(at(64_000), &ack(), &Config::default());
        let RequestVerdict::Accepted(accepted) = verdict else { panic!("{verdict:?}") };
        assert_eq!(accepted.synack_rtt, None, "Karn's rule");
    }

    #[test]
    fn a_repeated_syn_brings_one_synack_per_half_second() {
        let mut request = request();
        assert!(matches!(
            request.on_segment(at(1), &syn(), &Config::default()),
            RequestVerdict::Retransmit(_)
        ));
        assert!(matches!(
            request.on_segment(at(2), &syn(), &Config::default()),
            RequestVerdict::Drop
        ));
        assert!(matches!(
            request.on_segment(at(501), &syn(), &Config::default()),
            RequestVerdict::Retransmit(_)
        ));
    }

    #[test]
    fn a_wrong_ack_is_reset_and_the_request_stays() {
        let mut request = request();
        let wrong = Segment { ack: ISS + 2, ..ack() };
        let verdict = request.on_segment(at(1), &wrong, &Config::default());
        let RequestVerdict::Reset(reset) = verdict else { panic!("{verdict:?}") };
        assert_eq!((reset.seq, reset.flags), (ISS + 2, Flags::RST));
        assert!(matches!(
            request.on_segment(at(2), &ack(), &Config::default()),
            RequestVerdict::Accepted(_)
        ));
    }

    #[test]
    fn only_an_exact_reset_closes() {
        let mut request = request();
        let reset = |seq| Segment { seq, flags: Flags::RST, ..Segment::default() };
        assert!(matches!(
            request.on_segment(at(1), &reset(IRS), &Config::default()),
            RequestVerdict::Drop
        ));
        let inside = request.on_segment(at(1), &reset(IRS + 2), &Config::default());
        assert!(matches!(inside, RequestVerdict::Challenge(_)));
        assert!(matches!(
            request.on_segment(at(1), &reset(IRS + 1), &Config::default()),
            RequestVerdict::Closed
        ));
    }

    #[test]
    fn segments_out_of_place_are_challenged_at_a_limited_rate() {
        let old = Some(Timestamps { value: 999, echo: 0 });
        let early = Some(Timestamps { value: 1001, echo: u32::MAX });
        let future = Some(Timestamps { value: 1001, echo: 200 });
        let with =
            |timestamps| Segment { options: Options { timestamps, ..Options::default() }, ..ack() };
        let outside = Segment { seq: IRS + 70_000, ..ack() };
        let other_syn = Segment { seq: IRS + 10, flags: Flags::SYN, ..Segment::default() };
        for bad in [with(old), with(early), with(future), outside, other_syn] {
            let mut request = request();
            let verdict = request.on_segment(at(1), &bad, &Config::default());
            let RequestVerdict::Challenge(ack) = verdict else { panic!("{verdict:?} for {bad:?}") };
            assert_eq!((ack.seq, ack.ack, ack.window), (ISS + 1, IRS + 1, 62));
            assert!(matches!(
                request.on_segment(at(2), &bad, &Config::default()),
                RequestVerdict::Drop
            ));
        }
    }

    #[test]
    fn only_the_segment_that_opens_may_set_the_timestamp() {
        let ahead = Some(Timestamps { value: 1 << 30, echo: 1 });
        let with = |segment| Segment {
            options: Options { timestamps: ahead, ..Options::default() },
            ..segment
        };
        let others = [
            Segment { flags: Flags::PSH, ..ack() },
            Segment { ack: ISS + 2, ..ack() },
            Segment { seq: IRS + 10, flags: Flags::SYN, ..Segment::default() },
            Segment { seq: IRS + 2, flags: Flags::RST, ..Segment::default() },
        ];
        for other in others {
            let mut request = request();
            let verdict = request.on_segment(at(1), &with(other), &Config::default());
            assert!(!matches!(verdict, RequestVerdict::Accepted(_) | RequestVerdict::Closed));
            let timestamps = Some(Timestamps { value: 1001, echo: 1 });
            let genuine = Options { timestamps, ..Options::default() };
            let genuine = Segment { options: genuine, ..ack() };
            let verdict = request.on_segment(at(2), &genuine, &Config::default());
            let RequestVerdict::Accepted(accepted) = verdict else { panic!("{verdict:?}") };
            assert_eq!(accepted.negotiated.ts_recent, Some(1001));
        }
    }

    #[test]
    fn a_reset_at_the_next_number_closes_whatever_it_acknowledges() {
        for ack in [ISS, ISS + 1, ISS + 500] {
            let flags = Flags::RST | Flags::ACK;
            let reset = Segment { seq: IRS + 1, ack, flags, ..Segment::default() };
            let verdict = request().on_segment(at(1), &reset, &Config::default());
            assert!(matches!(verdict, RequestVerdict::Closed));
        }
    }

    #[test]
    fn a_zero_timestamp_of_the_syn_proves_nothing() {
        let mut syn = syn();
        syn.options.timestamps = Some(Timestamps { value: 0, echo: 0 });
        let mut request = Request::new(at(0), &syn, ISS, 0, &offer());
        let timestamps = Some(Timestamps { value: 1 << 31, echo: 1 });
        let segment = Segment { options: Options { timestamps, ..Options::default() }, ..ack() };
        let verdict = request.on_segment(at(1), &segment, &Config::default());
        assert!(matches!(verdict, RequestVerdict::Accepted(_)));
    }

    #[test]
    fn newer_timestamps_are_remembered() {
        let timestamps = Some(Timestamps { value: 2000, echo: 1 });
        let segment = Segment { options: Options { timestamps, ..Options::default() }, ..ack() };
        let verdict = request().on_segment(at(1), &segment, &Config::default());
        let RequestVerdict::Accepted(accepted) = verdict else { panic!("{verdict:?}") };
        assert_eq!(accepted.negotiated.ts_recent, Some(2000));
    }
}
