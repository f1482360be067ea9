//! Opening of a connection: its SYN, what both ends agreed on, and the first state with a peer.

use super::chronograph::TimeoutTally;
use super::{Connection, Owed, Path, Setup};
use crate::counters::Counter;
use crate::handshake::{Accepted, Negotiated, Offer, echoed_rtt};
use crate::options::SocketOptions;
use crate::receiver::{self, Receiver};
use crate::segment::{Flags, Segment};
use crate::seq::SeqNumber;
use crate::state::{State, Transition};
use crate::time::{Instant, Nanos};
use crate::time_wait::Heritage;

/// Bytes that timestamps take in the header of each segment.
const TIMESTAMPS: u16 = 12;

bitflags::bitflags! {
    /// What the SYN-ACK of a passive open says. A SYN-ACK of a simultaneous open repeats the SYN.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct SynAck: u8 {
        /// The open is a passive one.
        const PASSIVE = 1;
        /// Windows are scaled.
        const WINDOW_SCALE = 2;
        /// SACK may be used.
        const SACK = 4;
        /// ECN may be used.
        const ECN = 8;
        /// It was sent once more because the peer's SYN came once more.
        const REPEATED = 16;
    }
}

/// The handshake and what it settled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// Our initial sequence number.
    pub(super) iss: SeqNumber,
    /// What we add to our clock in timestamps.
    pub(super) ts_offset: u32,
    /// When the SYN was last sent; of an open connection, when it opened.
    pub(super) sent_at: Instant,
    /// How often the SYN was sent again.
    pub(super) retransmits: u16,
    /// Of these, the ones that this host's own queues dropped when timeouts were doubling.
    pub(super) dropped: u16,
    /// The most payload and options of one segment, bytes: what the peer takes, and `TCP_MAXSEG`
    /// where it was less in the handshake (`mss_clamp`).
    pub(super) mss_clamp: u16,
    /// Shift of the peer's windows.
    pub(super) snd_wscale: u8,
    /// Shift of our windows.
    pub(super) rcv_wscale: u8,
    /// Segments carry timestamps.
    pub(super) timestamps: bool,
    /// What the SYN-ACK of a passive open says.
    pub(super) synack: SynAck,
}

impl Opening {
    /// Nothing is known of the peer.
    pub(super) fn new(
        now: Instant,
        iss: SeqNumber,
        ts_offset: u32,
        options: &SocketOptions,
    ) -> Self {
        Self {
            iss,
            ts_offset,
            sent_at: now,
            retransmits: 0,
            dropped: 0,
            mss_clamp: options.max_segment.unwrap_or(536),
            snd_wscale: 0,
            rcv_wscale: 0,
            timestamps: false,
            synack: SynAck::empty(),
        }
    }

    /// Whether the connection answers the peer's SYN.
    pub(super) fn is_passive(&self) -> bool {
        self.synack.contains(SynAck::PASSIVE)
    }

    /// What both ends agreed on.
    fn agree(&mut self, negotiated: &Negotiated, options: &SocketOptions) {
        self.mss_clamp = negotiated.mss.min(options.max_segment.unwrap_or(u16::MAX));
        self.snd_wscale = negotiated.snd_wscale.unwrap_or(0);
        self.rcv_wscale = negotiated.rcv_wscale;
        self.timestamps = negotiated.ts_recent.is_some();
    }

    /// Whether the SYN was not sent again.
    pub(super) fn is_first_syn(&self) -> bool {
        self.retransmits == 0 && !self.synack.contains(SynAck::REPEATED)
    }

    /// The time from the only SYN to now; `None` if it was sent again (Karn's rule).
    pub(super) fn rtt(&self, now: Instant) -> Option<Nanos> {
        self.is_first_syn().then(|| now.since(self.sent_at))
    }
}

impl Connection {
    /// Opens a connection actively. The SYN leaves at the next [`transmit`](Self::transmit).
    pub fn connect(now: Instant, setup: Setup) -> Self {
        Self::open(now, setup, None)
    }

    /// Opens a connection in the place of one in TIME-WAIT, as [`connect`](Self::connect).
    pub fn succeed(now: Instant, setup: Setup, heritage: Heritage) -> Self {
        let Heritage { iss, ts_recent } = heritage;
        Self::open(now, Setup { isn: iss, ..setup }, Some(ts_recent))
    }

    fn open(now: Instant, setup: Setup, ts_recent: Option<u32>) -> Self {
        setup.counters.add(Counter::ActiveOpens, 1);
        Self::begin(now, setup, ts_recent)
    }

    /// Opens a connection passively: it answers `syn`, a SYN without ACK and RST, and is in
    /// SYN-RECEIVED. The SYN-ACK leaves at the next [`transmit`](Self::transmit), and is repeated
    /// `tcp_synack_retries` times.
    ///
    /// A listener uses a [`Request`](crate::handshake::Request) for the time of the handshake: it
    /// takes less memory. Data in `syn` is ignored; the peer sends it again.
    pub fn answer(now: Instant, setup: Setup, syn: &Segment) -> Self {
        let mut connection = Self::begin(now, setup, None);
        let Negotiated { snd_wscale, sack, ecn, .. } = connection.meet_peer(now, syn);
        let synack = &mut connection.opening.synack;
        synack.insert(SynAck::PASSIVE);
        synack.set(SynAck::WINDOW_SCALE, snd_wscale.is_some());
        synack.set(SynAck::SACK, sack);
        synack.set(SynAck::ECN, ecn);
        connection.turn(Transition::SynArrived);
        connection
    }

    /// A connection in SYN-SENT, which owes its SYN. `ts_recent` is what it inherits.
    fn begin(now: Instant, setup: Setup, ts_recent: Option<u32>) -> Self {
        let counters = setup.counters.clone();
        let receiver = receiver::Terms {
            irs: SeqNumber(0),
            wnd: 0,
            wscale: 0,
            advmss: advertised_mss(&setup.path, &setup.options),
            mss: 536,
            ts_recent,
            sack: false,
            ecn: false,
            rcvbuf: setup.options.receive_buffer,
        };
        let mut receiver = Receiver::new(now, setup.config.clone(), counters, &receiver);
        receiver.make_room_for(setup.options.receive_lowat);
        if setup.options.quickack == Some(false) {
            receiver.set_quickack(0);
        }
        let mut connection = Self::new(now, State::SynSent, setup, receiver);
        connection.refresh_mss();
        connection.owed |= Owed::SYN;
        connection.arm_syn(now);
        connection
    }

    /// Makes a connection from a passive open whose handshake is complete.
    ///
    /// The segment that completed the handshake has to be given to [`on_segment`](Self::on_segment)
    /// next.
    pub fn accept(now: Instant, setup: Setup, accepted: Accepted) -> Self {
        setup.counters.add(Counter::PassiveOpens, 1);
        let setup = Setup { isn: accepted.iss, ts_offset: accepted.ts_offset, ..setup };
        let advmss = advertised_mss(&setup.path, &setup.options);
        let receiver = receiver_terms(&accepted.negotiated, accepted.irs, accepted.rcv_wnd, advmss);
        let receiver = receiver::Terms { rcvbuf: setup.options.receive_buffer, ..receiver };
        let mut receiver =
            Receiver::new(now, setup.config.clone(), setup.counters.clone(), &receiver);
        receiver.make_room_for(setup.options.receive_lowat);
        let mut connection = Self::new(now, State::SynReceived, setup, receiver);
        connection.agree(&accepted.negotiated);
        connection.sender.on_handshake(now, accepted.synack_rtt);
        let (timeouts, time) = accepted.synack_timeouts;
        if timeouts > 1 && !accepted.is_first_echoed {
            connection.sender.begin_with_one();
        }
        if timeouts > 0 {
            connection.rare().timeouts = TimeoutTally::after_row(timeouts, time);
        }
        connection.turn(Transition::SynAcked);
        connection.established(now, accepted.snd_wnd, accepted.irs);
        connection
    }

    /// What was agreed in the handshake.
    fn agree(&mut self, negotiated: &Negotiated) {
        self.opening.agree(negotiated, &self.options);
        self.sender.agree(negotiated.sack, negotiated.ecn);
        self.refresh_mss();
    }

    /// Takes what a SYN-ACK, or the ACK of one, says of the path: its round trip, and whether it
    /// loses packets. `first` is the timestamp of the first SYN or SYN-ACK of this end.
    ///
    /// After two timeouts the connection begins with one segment (RFC 5681 section 3.1, RFC 6928
    /// section 2), unless the peer echoes the first one, which was not lost then.
    pub(super) fn learn_of_path(&mut self, now: Instant, segment: &Segment, first: u32) {
        let has_timestamps = self.opening.timestamps;
        let echoed = segment.options.timestamps.filter(|_| has_timestamps).map(|ts| ts.echo);
        let by_echo = || echoed.and_then(|echo| echoed_rtt(self.timestamp(now), echo));
        let rtt = self.opening.rtt(now).or_else(by_echo);
        self.sender.on_handshake(now, rtt);
        let lost = self.opening.retransmits.saturating_sub(self.opening.dropped);
        if lost > 1 && echoed != Some(first) {
            self.sender.begin_with_one();
        }
    }

    /// The handshake is complete.
    pub(super) fn established(&mut self, now: Instant, window: u32, seq: SeqNumber) {
        self.opening.sent_at = now;
        self.liveness.on_progress();
        if let Some(rare) = &mut self.rare {
            rare.timeouts.end_row(now);
        }
        self.adopt_next_config();
        self.sender.establish(window, seq, now, &self.config);
        self.refresh_mss();
        self.deadlines.clear_retransmit();
        self.small_end = self.sender.una();
        self.expand_sndbuf();
        self.arm_keepalive(now);
    }

    /// The SYN, or the SYN-ACK once the peer's SYN is known (simultaneous open).
    pub(super) fn syn_segment(&mut self, now: Instant) -> Segment {
        let mut segment = self.offer().syn(now, self.opening.iss, self.opening.ts_offset);
        if self.opening.retransmits > 0 && self.config.tcp_ecn_fallback {
            segment.flags.remove(Flags::ECE | Flags::CWR);
        }
        if let Some(timestamps) = &mut segment.options.timestamps {
            // 0, unless the peer's SYN is known or an old connection is succeeded.
            timestamps.echo = self.receiver.ts_recent();
        }
        if self.state == State::SynReceived {
            let said = self.opening.synack;
            segment.flags = Flags::SYN | Flags::ACK;
            segment.flags.set(Flags::ECE, said.contains(SynAck::ECN));
            if said.contains(SynAck::PASSIVE) {
                let options = &mut segment.options;
                options.sack_permitted = said.contains(SynAck::SACK);
                options.window_scale =
                    options.window_scale.filter(|_| said.contains(SynAck::WINDOW_SCALE));
            }
            segment.ack = self.receiver.nxt();
            if !self.opening.timestamps {
                segment.options.timestamps = None;
            }
        }
        segment
    }

    /// What we are ready to agree to.
    fn offer(&self) -> Offer {
        let mss = advertised_mss(&self.path, &self.options);
        let locked = self.options.receive_buffer;
        let space = locked.unwrap_or(self.config.tcp_rmem.default) / 2;
        let clamp = locked.unwrap_or(u32::MAX);
        let offer = Offer::new(&self.config, self.path.ip_header, mss, space, clamp);
        // Who succeeds a connection counts on timestamps in each segment (`tcp_connect_init`).
        let is_heir = self.state == State::SynSent && self.receiver.ts_recent() != 0;
        if is_heir && self.config.tcp_timestamps {
            offer.with_window_of(space.min(clamp), mss.saturating_sub(TIMESTAMPS))
        } else {
            offer
        }
    }

    /// Replaces the receiver by one that knows the peer's SYN.
    pub(super) fn meet_peer(&mut self, now: Instant, syn: &Segment) -> Negotiated {
        let offer = self.offer();
        let negotiated = Negotiated::of(syn, &offer);
        let advmss = advertised_mss(&self.path, &self.options);
        let setup = receiver::Terms {
            rcvbuf: self.options.receive_buffer,
            ..receiver_terms(&negotiated, syn.seq, offer.rcv_wnd, advmss)
        };
        let acks_wait = !self.receiver.quickack();
        self.receiver = Receiver::new(now, self.config.clone(), self.counters.clone(), &setup);
        self.receiver.make_room_for(self.options.receive_lowat);
        if acks_wait {
            self.receiver.set_quickack(0);
        }
        self.agree(&negotiated);
        negotiated
    }
}

/// The MSS that we announce: what the path's MTU leaves, `TCP_MAXSEG` if smaller.
fn advertised_mss(path: &Path, options: &SocketOptions) -> u16 {
    let by_path = path.mtu.saturating_sub(path.ip_header + 20).clamp(88, 65495) as u16;
    by_path.min(options.max_segment.unwrap_or(u16::MAX))
}

fn receiver_terms(agreed: &Negotiated, irs: SeqNumber, wnd: u32, advmss: u16) -> receiver::Terms {
    let options = if agreed.ts_recent.is_some() { TIMESTAMPS } else { 0 };
    receiver::Terms {
        irs,
        wnd,
        wscale: agreed.rcv_wscale,
        advmss: advmss.saturating_sub(options),
        mss: agreed.mss.saturating_sub(options),
        ts_recent: agreed.ts_recent,
        sack: agreed.sack,
        ecn: agreed.ecn,
        rcvbuf: None,
    }
}
