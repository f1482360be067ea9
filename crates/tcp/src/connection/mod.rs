//! [`Connection`]: joins sender, receiver and state, and is what an application and a host see.
//!
//! Four kinds of verbs. Input: `on_segment`, `on_deadline`, `on_path_change`, `on_unreachable`.
//! Application: `write`, `read`, `shutdown_write`, `close`, `abort`, `set_option`. Output:
//! `transmit`. Getters: the rest. Input never sends: it records what is owed, and the caller calls
//! `transmit` afterwards, once for any number of inputs, so that ACKs merge.

mod chronograph;
mod deadlines;
mod figures;
mod input;
mod output;
mod retransmit;
mod send_space;
mod timers;
mod write;

pub use write::WriteFlags;

use crate::config::Config;
use crate::congestion::{self, CongestionControl};
use crate::counters::{Counter, Counters};
use crate::handshake::{self, Accepted, Negotiated, Offer};
use crate::options::{OptionError, SocketOption, SocketOptions};
use crate::receiver::{self, AckDue, Estimates, Receiver};
use crate::segment::{Flags, Segment};
use crate::sender::Sender;
use crate::sender::pages::Pages;
use crate::seq::SeqNumber;
use crate::state::{State, Transition};
use crate::time::{Instant, Nanos};
use crate::time_wait::TimeWait;
use crate::transmit::TxBlocked;
use crate::transmit::egress::GsoLimits;
use crate::transmit::late::LateQueue;
use crate::transmit::small_queue::TxAccount;
use bytes::Bytes;
use chronograph::{Chronograph, TimeoutTally};
use deadlines::Deadlines;
use std::sync::Arc;
use thiserror::Error;

/// The way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Bytes of the IP header: 20 or 40.
    pub ip_header: u32,
}

/// `TCP_MSS_DEFAULT`: a largest window up to this is used whole.
const DEFAULT_MSS: u32 = 536;

/// Everything that a new connection needs from its host.
#[derive(Debug)]
pub struct Setup {
    /// Settings.
    pub config: Arc<Config>,
    /// Where events are counted.
    pub counters: Arc<Counters>,
    /// What it writes into.
    pub pages: Arc<dyn Pages>,
    /// The account of its bytes below TCP.
    pub account: Arc<TxAccount>,
    /// Congestion control.
    pub controller: Box<dyn CongestionControl>,
    /// Initial sequence number (RFC 6528).
    pub isn: SeqNumber,
    /// What is added to the clock in timestamps.
    pub ts_offset: u32,
    /// The way to the peer.
    pub path: Path,
    /// Options that were set before the connection was opened; shared until one is set.
    pub options: Arc<SocketOptions>,
}

/// Why a connection failed (`SO_ERROR`).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConnectionError {
    /// The peer answered the SYN with a reset (ECONNREFUSED).
    #[error("connection refused")]
    Refused,
    /// The peer reset the connection (ECONNRESET).
    #[error("connection reset by peer")]
    Reset,
    /// The peer reset the connection after its FIN (EPIPE).
    #[error("broken pipe")]
    BrokenPipe,
    /// The peer stopped answering (ETIMEDOUT).
    #[error("connection timed out")]
    TimedOut,
    /// A router said so (EHOSTUNREACH).
    #[error("no route to host")]
    HostUnreachable,
    /// A router said so (ENETUNREACH).
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// The application or the host ended it (ECONNABORTED).
    #[error("connection aborted")]
    Aborted,
    /// The far host does not know the protocol (ENOPROTOOPT).
    #[error("protocol not available")]
    ProtocolUnavailable,
    /// A source route failed (EOPNOTSUPP).
    #[error("operation not supported")]
    NotSupported,
    /// A router does not know the host (EHOSTDOWN).
    #[error("host is down")]
    HostDown,
    /// A router says that the own host is isolated (ENONET).
    #[error("machine is not on the network")]
    NoNetwork,
    /// A router forbids it (EACCES).
    #[error("permission denied")]
    Forbidden,
    /// Somebody could not make sense of a header (EPROTO).
    #[error("protocol error")]
    Protocol,
    /// More than a link on the way takes (EMSGSIZE): datagrams alone.
    #[error("message too long")]
    MessageTooLong,
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WriteError {
    /// No room now, or not yet connected (EAGAIN).
    #[error("no room in the send buffer")]
    WouldBlock,
    /// The application shut the sending side down, or the connection is over (EPIPE).
    #[error("broken pipe")]
    Closed,
    /// The connection failed.
    #[error(transparent)]
    Failed(ConnectionError),
}

/// Why nothing was read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// Nothing has arrived (EAGAIN).
    #[error("nothing to read")]
    WouldBlock,
    /// The connection failed.
    #[error(transparent)]
    Failed(ConnectionError),
}

bitflags::bitflags! {
    /// What an application may do without waiting.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// Data or the end of the stream can be read.
        const READABLE = 1;
        /// A write finds room.
        const WRITABLE = 2;
        /// The peer sent its FIN, or reading was shut down.
        const READ_CLOSED = 4;
        /// Writing was shut down, or the connection is over.
        const WRITE_CLOSED = 8;
        /// The connection failed, or an error is to be told.
        const ERROR = 16;
        /// The error queue of the socket has something (`MSG_ERRQUEUE`); no connection sets it.
        const ERROR_QUEUE = 32;
    }
}

/// What the next `transmit` must send beyond what the queues say.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    reset: bool,
    syn: bool,
    zero_window_probe: bool,
    keepalive: bool,
    loss_probe: bool,
    retransmit_head: bool,
    new_data_first: bool,
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    None,
    Queued,
    Sent,
}

/// One TCP connection (`tcp_sock`), from SYN-SENT or ESTABLISHED to its end.
///
/// An idle one holds no heap beyond its boxed controller.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    counters: Arc<Counters>,
    account: Arc<TxAccount>,
    state: State,
    sender: Sender,
    receiver: Receiver,
    deadlines: Deadlines,
    options: Arc<SocketOptions>,
    path: Path,
    gso: GsoLimits,
    iss: SeqNumber,
    ts_offset: u32,
    peer_mss: u16,
    snd_wscale: u8,
    rcv_wscale: u8,
    timestamps: bool,
    fin: Fin,
    owed: Owed,
    blocked: TxBlocked,
    /// What was learnt of a queue below that runs empty; `None` while none did.
    late_queue: Option<Box<LateQueue>>,
    /// The small-queue check was waived although the limit was reached.
    was_waived: bool,
    chronograph: Chronograph,
    /// End of the last short segment sent (Minshall).
    small_end: SeqNumber,
    blocked_by_cwnd: bool,
    /// What is queued goes out whatever Nagle says (`TCP_NAGLE_PUSH`).
    push_override: bool,
    /// The last event was a write: autocorking may apply.
    wrote: bool,
    /// A writer was refused and waits for room (`SOCK_NOSPACE`).
    no_space: bool,
    /// Edges since they were last taken, whether or not the level was there before.
    edges: Readiness,
    /// Segments of a frame by the last sizing: the floor of a low-water mark in time.
    frame_segments: u8,
    sndbuf: u32,
    probe_backoff: u16,
    /// Probes of a closed window or of an idle peer since it was last heard (`icsk_probes_out`).
    probes_out: u16,
    /// When the SYN was last sent; of an open connection, when it opened.
    syn_sent_at: Instant,
    syn_retransmits: u16,
    /// First retransmission timeout of the row, for the user timeout.
    /// [`Instant::FAR_FUTURE`] while the peer answers.
    stalled_since: Instant,
    last_heard: Instant,
    challenge_after: Instant,
    error: Option<ConnectionError>,
    soft_error: Option<ConnectionError>,
    error_taken: bool,
    read_shut: bool,
    is_orphan: bool,
    /// Nothing for most of most lives.
    rare: Option<Box<Rare>>,
    segs_in: u64,
    segs_out: u64,
    data_segs_in: u64,
}

/// State that few connections have, or only at their end.
#[derive(Debug, Default)]
struct Rare {
    timeouts: TimeoutTally,
    time_wait: Option<TimeWait>,
    /// A reset for a segment that belongs to no connection, at this sequence number.
    stray_reset: Option<SeqNumber>,
}

impl Connection {
    /// Opens actively: the SYN leaves at the next [`transmit`](Self::transmit).
    pub fn connect(now: Instant, setup: Setup) -> Self {
        let counters = setup.counters.clone();
        counters.add(Counter::ActiveOpens, 1);
        let receiver = receiver::Terms {
            irs: SeqNumber(0),
            wnd: 0,
            wscale: 0,
            advmss: 536,
            mss: 536,
            ts_recent: None,
            sack: false,
            ecn: false,
            rcvbuf: setup.options.receive_buffer,
        };
        let mut receiver = Receiver::new(now, setup.config.clone(), counters, &receiver);
        if setup.options.quickack == Some(false) {
            receiver.set_quickack(0);
        }
        let mut connection = Self::new(now, State::SynSent, setup, receiver);
        connection.owed.syn = true;
        connection.arm_syn(now);
        connection
    }

    /// Takes over a passive open whose handshake is complete. The segment that completed it is to
    /// be given to [`on_segment`](Self::on_segment) next.
    pub fn accept(now: Instant, setup: Setup, accepted: Accepted) -> Self {
        setup.counters.add(Counter::PassiveOpens, 1);
        let setup = Setup { isn: accepted.iss, ts_offset: accepted.ts_offset, ..setup };
        let advmss = advertised_mss(&setup.path, &setup.options);
        let receiver = receiver_terms(&accepted.negotiated, accepted.irs, accepted.rcv_wnd, advmss);
        let receiver = receiver::Terms { rcvbuf: setup.options.receive_buffer, ..receiver };
        let receiver = Receiver::new(now, setup.config.clone(), setup.counters.clone(), &receiver);
        let mut connection = Self::new(now, State::SynReceived, setup, receiver);
        connection.agree(&accepted.negotiated);
        if let Some(rtt) = accepted.synack_rtt {
            connection.sender.on_handshake_rtt(now, rtt);
        }
        let (timeouts, time) = accepted.synack_timeouts;
        if timeouts > 0 {
            connection.rare().timeouts = TimeoutTally::after_row(timeouts, time);
        }
        connection.turn(Transition::SynAcked);
        connection.established(now, accepted.snd_wnd, accepted.irs);
        connection
    }

    fn new(now: Instant, state: State, setup: Setup, receiver: Receiver) -> Self {
        let sender = Sender::new(setup.isn, &setup.config, setup.controller, setup.pages);
        let sndbuf = setup.options.send_buffer.unwrap_or(setup.config.tcp_wmem.default);
        let mut connection = Self {
            gso: GsoLimits { max_size: setup.path.mtu, max_segs: 1 },
            config: setup.config,
            counters: setup.counters,
            account: setup.account,
            state,
            sender,
            receiver,
            deadlines: Deadlines::default(),
            options: setup.options,
            path: setup.path,
            iss: setup.isn,
            ts_offset: setup.ts_offset,
            peer_mss: 536,
            snd_wscale: 0,
            rcv_wscale: 0,
            timestamps: false,
            fin: Fin::None,
            owed: Owed::default(),
            blocked: TxBlocked::NotOpen,
            late_queue: None,
            was_waived: false,
            chronograph: Chronograph::default(),
            small_end: setup.isn,
            blocked_by_cwnd: false,
            push_override: false,
            wrote: false,
            no_space: false,
            edges: Readiness::empty(),
            frame_segments: 1,
            sndbuf,
            probe_backoff: 0,
            probes_out: 0,
            syn_sent_at: now,
            syn_retransmits: 0,
            stalled_since: Instant::FAR_FUTURE,
            last_heard: now,
            challenge_after: Instant::ZERO,
            error: None,
            soft_error: None,
            error_taken: false,
            read_shut: false,
            is_orphan: false,
            rare: None,
            segs_in: 0,
            segs_out: 0,
            data_segs_in: 0,
        };
        connection.sender.set_max_pacing_rate(connection.options.max_pacing_rate);
        connection
    }

    /// What was agreed in the handshake.
    fn agree(&mut self, negotiated: &Negotiated) {
        self.peer_mss = negotiated.mss;
        self.snd_wscale = negotiated.snd_wscale.unwrap_or(0);
        self.rcv_wscale = negotiated.rcv_wscale;
        self.timestamps = negotiated.ts_recent.is_some();
        self.sender.agree(negotiated.sack, negotiated.ecn);
        self.refresh_mss();
    }

    /// The handshake is complete.
    fn established(&mut self, now: Instant, window: u32, seq: SeqNumber) {
        self.syn_sent_at = now;
        if let Some(rare) = &mut self.rare {
            rare.timeouts.end_row(now);
        }
        self.sender.establish(window, seq, now, &self.config);
        self.refresh_mss();
        self.deadlines.clear_retransmit();
        self.small_end = self.sender.una();
        self.expand_sndbuf();
        self.arm_keepalive(now);
    }

    /// What few connections have.
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The SYN, or the SYN-ACK once the peer's SYN is known (simultaneous open).
    fn syn_segment(&mut self, now: Instant) -> Segment {
        let mut segment = self.offer().syn(now, self.iss, self.ts_offset);
        if self.syn_retransmits > 0 && self.config.tcp_ecn_fallback {
            segment.flags.remove(Flags::ECE | Flags::CWR);
        }
        if self.state == State::SynReceived {
            segment.flags = Flags::SYN | Flags::ACK;
            segment.ack = self.receiver.nxt();
            if let Some(timestamps) = &mut segment.options.timestamps {
                timestamps.echo = self.receiver.ts_recent();
            }
            if !self.timestamps {
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
        Offer::new(&self.config, self.path.ip_header, mss, space, locked.unwrap_or(u32::MAX))
    }

    /// Replaces the receiver by one that knows the peer's SYN.
    fn meet_peer(&mut self, now: Instant, syn: &Segment) -> Negotiated {
        let offer = self.offer();
        let negotiated = Negotiated::of(syn, &offer);
        let advmss = advertised_mss(&self.path, &self.options);
        let setup = receiver::Terms {
            rcvbuf: self.options.receive_buffer,
            ..receiver_terms(&negotiated, syn.seq, offer.rcv_wnd, advmss)
        };
        let acks_wait = !self.receiver.quickack();
        self.receiver = Receiver::new(now, self.config.clone(), self.counters.clone(), &setup);
        if acks_wait {
            self.receiver.set_quickack(0);
        }
        self.agree(&negotiated);
        negotiated
    }

    /// Recomputes the payload of a full segment from path, peer and options.
    fn refresh_mss(&mut self) {
        let header = self.usual_header();
        let mss = self.mss_for(header);
        let limit = self.options.max_segment.map_or(u32::MAX, u32::from);
        let mss = self.half_window(mss.min(limit), 68 - header);
        self.sender.set_mss(mss);
    }

    /// `bytes`, but no more than half of the largest window that the peer had, so that it need not
    /// wait for a window that never opens so far (`tcp_bound_to_half_wnd`); at least `least`.
    fn half_window(&self, bytes: u32, least: u32) -> u32 {
        let window = self.sender.max_wnd();
        let half = if window > DEFAULT_MSS { window / 2 } else { window };
        if half == 0 { bytes } else { bytes.min(half.max(least)) }
    }

    /// `TSval` at `now`.
    fn timestamp(&self, now: Instant) -> u32 {
        handshake::timestamp(now, self.ts_offset)
    }

    fn estimates(&self, now: Instant) -> Estimates {
        Estimates {
            srtt: self.sender.rtt().srtt(),
            rto: self.sender.rtt().rto(),
            tsval: self.timestamp(now),
            lowat: self.options.receive_lowat,
        }
    }

    fn turn(&mut self, transition: Transition) {
        self.state = self.state.after(transition);
    }

    /// Ends the connection with `error`.
    fn fail(&mut self, error: ConnectionError) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.counters.add(Counter::AttemptFails, 1);
        } else if self.state != State::Closed {
            self.counters.add(Counter::EstabResets, 1);
        }
        if self.state != State::Closed || self.error.is_none() {
            self.set_error(Some(error));
        }
        self.turn(Transition::Abort);
        self.deadlines.clear_all();
        self.sender.clear();
        self.fin = Fin::None;
        let reset = self.owed.reset;
        self.owed = Owed { reset, ..Owed::default() };
    }

    // Application.

    fn may_read(&mut self) -> Result<(), ReadError> {
        if self.receiver.unread() == 0
            && let Some(error) = self.take_failure()
        {
            return Err(ReadError::Failed(error));
        }
        Ok(())
    }

    /// `sk_err`, once. What ended the connection stays known.
    fn take_failure(&mut self) -> Option<ConnectionError> {
        let error = self.error.filter(|_| !self.error_taken)?;
        self.error_taken = true;
        Some(error)
    }

    fn is_at_end(&self) -> bool {
        self.receiver.is_finished() || self.read_shut || self.state == State::Closed
    }

    /// Moves received bytes to `buf`. `Ok(0)` is the end of the stream (or an empty `buf`).
    pub fn read(&mut self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.may_read()?;
        match self.receiver.read(now, buf) {
            0 if buf.is_empty() || self.is_at_end() => Ok(0),
            0 => Err(ReadError::WouldBlock),
            read => Ok(read),
        }
    }

    /// As [`read`](Self::read) for a caller that waits: `WouldBlock` also while fewer bytes are
    /// there than `SO_RCVLOWAT` and `buf` ask for and more can come.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_low_water(&mut self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
        let target = self.options.receive_lowat.min(len);
        if self.receiver.unread() > 0 && !self.receiver.has_enough(target) && !self.is_at_end() {
            return Err(ReadError::WouldBlock);
        }
        self.read(now, buf)
    }

    /// Takes received bytes without a copy. `Ok(None)` is the end of the stream.
    pub fn read_bytes(&mut self, now: Instant) -> Result<Option<Bytes>, ReadError> {
        self.may_read()?;
        match self.receiver.read_bytes(now) {
            None if self.is_at_end() => Ok(None),
            None => Err(ReadError::WouldBlock),
            slice => Ok(slice),
        }
    }

    /// Copies received bytes and leaves them (`MSG_PEEK`).
    pub fn peek(&mut self, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.may_read()?;
        match self.receiver.peek(buf) {
            0 if buf.is_empty() || self.is_at_end() => Ok(0),
            0 => Err(ReadError::WouldBlock),
            read => Ok(read),
        }
    }

    /// No more will be written: what is queued is sent, then FIN (`SHUT_WR`).
    pub fn shutdown_write(&mut self, now: Instant) {
        match self.state {
            State::SynSent => {
                self.turn(Transition::Shutdown);
                self.deadlines.clear_all();
            }
            // In SYN-RECEIVED the FIN waits for the handshake (RFC 9293 section 3.10.4).
            State::SynReceived | State::Established | State::CloseWait => {
                self.fin = Fin::Queued;
                self.turn(Transition::Shutdown);
            }
            _ => {}
        }
        let _ = now;
    }

    /// Nothing more will be read (`SHUT_RD`); what arrives is dropped unread.
    pub fn shutdown_read(&mut self) {
        self.read_shut = true;
        self.receiver.discard();
    }

    /// The application is gone (`close`): queued data and FIN are still sent, unless unread data or
    /// a linger time of zero asks for a reset (RFC 9293 section 3.10.4, RFC 2525 section 2.17).
    pub fn close(&mut self, now: Instant) {
        self.is_orphan = true;
        let lost_data = self.receiver.unread() > 0;
        let now_or_never = self.options.linger == Some(Nanos::ZERO);
        if self.state.is_synchronized()
            && self.state != State::TimeWait
            && (lost_data || now_or_never)
        {
            self.counters.add(Counter::AbortOnClose, 1);
            self.abort(now);
            return;
        }
        self.read_shut = true;
        self.shutdown_write(now);
        if self.state == State::FinWait2 {
            self.arm_orphan(now);
        }
    }

    /// Resets the connection; the RST leaves at the next [`transmit`](Self::transmit).
    pub fn abort(&mut self, _now: Instant) {
        self.owed.reset = self.state.is_synchronized() && self.state != State::TimeWait
            || self.state == State::SynReceived;
        self.fail(ConnectionError::Aborted);
    }

    /// Sets one option.
    ///
    /// # Errors
    /// As [`SocketOptions::set`].
    pub fn set_option(&mut self, now: Instant, option: SocketOption) -> Result<(), OptionError> {
        let was_corked = self.options.cork;
        let options = Arc::make_mut(&mut self.options);
        options.set(&option, &self.config)?;
        match option {
            SocketOption::NoDelay(on) => {
                self.push_override |= on;
                if on {
                    self.sender.end_hold();
                }
            }
            SocketOption::Cork(on) => {
                self.push_override |= was_corked && !on && options.nodelay;
                if !on {
                    self.sender.end_hold();
                }
            }
            SocketOption::QuickAck(value) => self.receiver.set_quickack(value),
            SocketOption::KeepAlive(_) | SocketOption::KeepAliveIdle(_) => self.arm_keepalive(now),
            SocketOption::SendBuffer(_) => {
                self.sndbuf = options.send_buffer.unwrap_or(self.sndbuf);
                self.check_space();
            }
            SocketOption::ReceiveBuffer(_) => {
                if let Some(bytes) = options.receive_buffer {
                    self.receiver.set_rcvbuf(bytes);
                }
            }
            SocketOption::ReceiveLowat(_) => {
                let bytes = options.receive_lowat;
                self.receiver.make_room_for(bytes);
                if self.receiver.has_enough(bytes) {
                    self.edges |= Readiness::READABLE;
                }
            }
            SocketOption::MaxSegment(_) => self.refresh_mss(),
            SocketOption::MaxPacingRate(_) | SocketOption::MaxPacingRate32(_) => {
                self.sender.set_max_pacing_rate(options.max_pacing_rate);
            }
            SocketOption::NotSentLowat(_) | SocketOption::NotSentLowatMicros(_) => {
                self.check_space();
            }
            SocketOption::Congestion(name) => {
                let controller = congestion::by_name(&name);
                let controller = controller.ok_or(OptionError::UnknownCongestion(name))?;
                self.sender.set_controller(controller, now, &self.config);
            }
            SocketOption::KeepAliveInterval(_)
            | SocketOption::KeepAliveCount(_)
            | SocketOption::UserTimeout(_)
            | SocketOption::Linger(_)
            | SocketOption::Priority(_)
            | SocketOption::ReceiveErrors(_) => {}
        }
        Ok(())
    }

    // Getters.

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the connection is over and owes nothing: the socket may be freed once the
    /// application has let go of it.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::TimeWait) && !self.owed.reset
    }

    /// What remains when both sides are closed; `Some` once, after the last ACK was sent.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        if self.receiver.ack_due() == AckDue::Now {
            return None;
        }
        self.rare.as_mut()?.time_wait.take()
    }

    /// Options as they stand.
    pub fn options(&self) -> &SocketOptions {
        &self.options
    }

    /// Why the connection failed, once (`SO_ERROR`).
    pub fn take_error(&mut self) -> Option<ConnectionError> {
        self.take_failure().or_else(|| self.soft_error.take())
    }

    /// Sets or forgets what the next call is told (`sk_err`), as reading the error queue does. The
    /// connection is as open as before.
    pub fn set_error(&mut self, error: Option<ConnectionError>) {
        match error {
            Some(_) => (self.error, self.error_taken) = (error, false),
            None => self.error_taken = true,
        }
    }

    /// When to call [`on_deadline`](Self::on_deadline); [`Instant::FAR_FUTURE`] if never.
    pub fn deadline(&self) -> Instant {
        if self.state == State::Closed {
            return Instant::FAR_FUTURE;
        }
        self.deadlines.next().min(self.receiver.deadline())
    }

    /// What the application may do without waiting.
    pub fn readiness(&self) -> Readiness {
        let mut ready = Readiness::empty();
        let over = self.state == State::Closed;
        let at_end = self.receiver.is_finished() || self.read_shut || over;
        let enough = self.receiver.has_enough(self.options.receive_lowat);
        ready.set(Readiness::READABLE, enough || at_end);
        ready.set(Readiness::READ_CLOSED, at_end);
        let write_closed = over || self.fin != Fin::None;
        ready.set(Readiness::WRITE_CLOSED, write_closed);
        let open = self.state.may_write() && self.is_writable();
        ready.set(Readiness::WRITABLE, open || write_closed);
        ready.set(Readiness::ERROR, self.error.is_some() && !self.error_taken);
        ready
    }

    /// What came since the last call and may be gone again: data that arrived behind data that
    /// nobody has read, room after a refused write. A waiter that goes by edges needs it where the
    /// level never left.
    pub fn take_edges(&mut self) -> Readiness {
        std::mem::take(&mut self.edges)
    }

    /// Bytes written and not acknowledged (`SIOCOUTQ`); the FIN counts as one.
    pub fn outq(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Closed => 0,
            _ => self.sender.unacked().saturating_add(self.outq_nsd()),
        }
    }

    /// Of these, bytes that were not sent once (`SIOCOUTQNSD`).
    pub fn outq_nsd(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Closed => 0,
            _ => self.sender.unsent() + u32::from(self.fin == Fin::Queued),
        }
    }

    /// Why the last [`transmit`](Self::transmit) stopped.
    pub fn blocked(&self) -> TxBlocked {
        self.blocked
    }

    /// Memory that the socket's backlog may take: receive plus send buffer, as in Linux.
    pub fn backlog_limit(&self) -> u32 {
        self.receiver.rcvbuf().saturating_add(self.sndbuf)
    }

    /// Memory that the receive buffer has left (`sk_rcvbuf` less `sk_rmem_alloc`).
    pub fn receive_room(&self) -> u32 {
        self.receiver.rcvbuf().saturating_sub(self.receiver.rmem_alloc())
    }

    /// Bytes that can be read (`FIONREAD`).
    pub fn unread(&self) -> u32 {
        self.receiver.unread()
    }

    /// Whether `seq` is in flight: the check of a quoted ICMP error (RFC 5927 section 4).
    pub fn is_in_flight(&self, seq: SeqNumber) -> bool {
        if self.state == State::SynSent {
            return seq == self.iss;
        }
        seq.at_or_after(self.sender.una()) && seq.before(self.sender.nxt())
    }
}

/// The MSS that we announce: what the path's MTU leaves, `TCP_MAXSEG` if smaller.
fn advertised_mss(path: &Path, options: &SocketOptions) -> u16 {
    let by_path = path.mtu.saturating_sub(path.ip_header + 20).clamp(88, 65495) as u16;
    by_path.min(options.max_segment.unwrap_or(u16::MAX))
}

fn receiver_terms(agreed: &Negotiated, irs: SeqNumber, wnd: u32, advmss: u16) -> receiver::Terms {
    let options = if agreed.ts_recent.is_some() { 12 } else { 0 };
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
