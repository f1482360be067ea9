//! [`Connection`]: one TCP connection, made of sender, receiver and state.
//!
//! It has four kinds of methods. Input: `on_segment`, `on_deadline`, `on_path_change`,
//! `on_unreachable`. Application: `write`, `read`, `shutdown_write`, `close`, `abort`,
//! `set_option`. Output: `transmit`. Getters: the rest. Input sends nothing: it notes what has to
//! be sent, and the caller calls `transmit` once after any number of inputs, so that ACKs merge.

mod chronograph;
mod closing;
mod deadlines;
mod error;
mod figures;
mod input;
mod liveness;
mod mss;
mod opening;
mod output;
mod reading;
mod remains;
mod retransmit;
mod send_space;
mod settings;
mod timers;
mod write;

pub use error::{ConnectionError, ReadError, WriteError};
pub use write::WriteFlags;

use crate::config::Config;
use crate::congestion::CongestionControl;
use crate::counters::Counters;
use crate::handshake;
use crate::memory::Held;
use crate::options::SocketOptions;
use crate::receiver::{Estimates, Receiver};
use crate::sender::Sender;
use crate::sender::pages::Pages;
use crate::seq::SeqNumber;
use crate::state::{State, Transition};
use crate::time::Instant;
use crate::time_wait::TimeWait;
use crate::transmit::TxBlocked;
use crate::transmit::egress::GsoLimits;
use crate::transmit::late::LateQueue;
use crate::transmit::small_queue::TxAccount;
use chronograph::{Chronograph, TimeoutTally};
use deadlines::Deadlines;
use error::Errors;
use liveness::Liveness;
use opening::Opening;
use std::sync::Arc;

/// Properties of the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Size of the IP header: 20 or 40 bytes.
    pub ip_header: u32,
}

/// Values that a new connection gets from its host.
#[derive(Debug)]
pub struct Setup {
    /// Settings of the stack.
    pub config: Arc<Config>,
    /// Counters of the shard, to which the connection adds.
    pub counters: Arc<Counters>,
    /// Source of the memory that writes are copied into.
    pub pages: Arc<dyn Pages>,
    /// Account of the connection's bytes below TCP.
    pub account: Arc<TxAccount>,
    /// Congestion controller.
    pub controller: Box<dyn CongestionControl>,
    /// Initial sequence number (RFC 6528).
    pub isn: SeqNumber,
    /// Offset that is added to the clock in timestamps.
    pub ts_offset: u32,
    /// Path to the peer.
    pub path: Path,
    /// Options that were set before the connection was opened. They are shared until one is set.
    pub options: Arc<SocketOptions>,
}

bitflags::bitflags! {
    /// Calls that an application can make without waiting, as a set of flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// A read returns data or the end of the stream.
        const READABLE = 1;
        /// A write finds room.
        const WRITABLE = 2;
        /// The peer sent its FIN, or reading was shut down.
        const READ_CLOSED = 4;
        /// Writing was shut down, or the connection is closed.
        const WRITE_CLOSED = 8;
        /// The connection failed, or an error waits to be read.
        const ERROR = 16;
        /// The error queue of the socket is not empty (`MSG_ERRQUEUE`). UDP sockets alone set it.
        const ERROR_QUEUE = 32;
        /// Nothing that was written waits for the peer any more: writing was shut down and the peer
        /// has acknowledged the FIN, or the connection is over. A `close` that lingers waits for
        /// it (`sk_stream_closing`).
        const ALL_ACKED = 64;
    }
}

bitflags::bitflags! {
    /// What the next `transmit` must send beyond what the queues say.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Owed: u8 {
        const RESET = 1;
        const SYN = 2;
        const ZERO_WINDOW_PROBE = 4;
        const KEEPALIVE = 8;
        const LOSS_PROBE = 16;
        const RETRANSMIT_HEAD = 32;
        /// New data goes before retransmissions (F-RTO).
        const NEW_DATA_FIRST = 64;
    }
}

impl Owed {
    /// Whether `what` is owed; no longer afterwards.
    fn take(&mut self, what: Self) -> bool {
        let is_owed = self.contains(what);
        self.remove(what);
        is_owed
    }
}

/// Room in the send buffer, as the last write found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// The write was taken, and a writer that goes by readiness stops here.
    Little,
    /// The write was cut short or refused.
    Refused,
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    None,
    Queued,
    Sent,
}

/// One TCP connection (Linux's `tcp_sock`), from SYN-SENT, SYN-RECEIVED or ESTABLISHED to its end.
///
/// Cost: 1216 bytes. An idle connection has no heap memory beyond its boxed controller.
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
    opening: Opening,
    fin: Fin,
    owed: Owed,
    /// Why the last `transmit` stopped.
    blocked: TxBlocked,
    /// What was learnt of a queue below that runs empty; `None` while none did.
    late_queue: Option<Box<LateQueue>>,
    /// The small-queue check was waived although the limit was reached.
    was_waived: bool,
    /// `gso` is that of the way down as it is now.
    knows_way: bool,
    chronograph: Chronograph,
    /// End of the last short segment sent (Minshall).
    small_end: SeqNumber,
    /// The sender is prepared for the next frame, the first of a flight.
    is_started: bool,
    /// A frame waited to grow until the congestion window has room.
    blocked_by_cwnd: bool,
    /// What is queued goes out whatever Nagle says (`TCP_NAGLE_PUSH`).
    push_override: bool,
    /// The last event was a write: autocorking may apply.
    wrote: bool,
    /// What the last write found, until room comes back.
    room: Room,
    /// Edges since they were last taken, whether or not the level was there before.
    edges: Readiness,
    /// Segments of a frame by the last sizing: the floor of a low-water mark in time.
    frame_segments: u8,
    /// Send buffer, bytes of memory (`sk_sndbuf`).
    sndbuf: u32,
    /// Pages of the host's memory for the write queue.
    held: Held,
    liveness: Liveness,
    errors: Errors,
    /// The application reads no more (`SHUT_RD`).
    read_shut: bool,
    /// The application is gone.
    is_orphan: bool,
    /// The host counts it among its orphans.
    is_counted: bool,
    /// Nothing for most of most lives.
    rare: Option<Box<Rare>>,
    /// Wire segments that arrived, that left, and that arrived with data.
    segs_in: u64,
    segs_out: u64,
    data_segs_in: u64,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Connection>() <= 1216, "an idle connection would grow");

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_orphan();
        self.counters.release_memory(&mut self.held);
        self.counters.memory.remove_connection();
    }
}

/// State that few connections have, or only at their end.
#[derive(Debug, Default)]
struct Rare {
    timeouts: TimeoutTally,
    time_wait: Option<TimeWait>,
    /// The settings that hold once the handshake is over; see [`Connection::set_config`].
    next_config: Option<Arc<Config>>,
    /// A reset for a segment that belongs to no connection, at this sequence number.
    stray_reset: Option<SeqNumber>,
}

impl Connection {
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
            opening: Opening::new(now, setup.isn, setup.ts_offset, &setup.options),
            options: setup.options,
            path: setup.path,
            fin: Fin::None,
            owed: Owed::default(),
            blocked: TxBlocked::NotOpen,
            late_queue: None,
            was_waived: false,
            knows_way: false,
            chronograph: Chronograph::default(),
            small_end: setup.isn,
            is_started: false,
            blocked_by_cwnd: false,
            push_override: false,
            wrote: false,
            room: Room::Enough,
            edges: Readiness::empty(),
            frame_segments: 1,
            sndbuf,
            held: Held::default(),
            liveness: Liveness::new(now),
            errors: Errors::default(),
            read_shut: false,
            is_orphan: false,
            is_counted: false,
            rare: None,
            segs_in: 0,
            segs_out: 0,
            data_segs_in: 0,
        };
        connection.sender.set_max_pacing_rate(connection.options.max_pacing_rate);
        connection.counters.memory.add_connection();
        connection
    }

    /// What few connections have.
    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// `TSval` at `now`.
    fn timestamp(&self, now: Instant) -> u32 {
        handshake::timestamp(now, self.opening.ts_offset)
    }

    fn estimates(&self, now: Instant) -> Estimates {
        Estimates {
            srtt: self.sender.rtt().srtt(),
            rto: self.sender.rtt().rto(),
            rto_min: self.sender.rtt().rto_min(),
            tsval: self.timestamp(now),
            lowat: self.options.receive_lowat,
        }
    }

    /// Whether data or a FIN waits that was never sent (`tcp_send_head`).
    fn has_waiting(&self) -> bool {
        self.sender.has_unsent() || self.fin == Fin::Queued
    }

    /// Every change of state is a transition of the table.
    fn turn(&mut self, transition: Transition) {
        self.state = self.state.after(transition);
        if self.state == State::Closed {
            self.end_orphan();
        }
    }

    /// Returns the state of the connection (RFC 9293 section 3.3.2).
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns whether the connection is closed and has nothing left to send. Its socket may then
    /// be freed, once the application has dropped it.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::TimeWait) && !self.owed.contains(Owed::RESET)
    }

    /// Returns the current options.
    pub fn options(&self) -> &SocketOptions {
        &self.options
    }

    /// Takes the error for which the connection failed (`SO_ERROR`); the next call returns `None`.
    pub fn take_error(&mut self) -> Option<ConnectionError> {
        self.errors.take_any()
    }

    /// As [`take_error`](Self::take_error), but what a router reported and did not end the
    /// connection stays (`sk_err` without `sk_err_soft`).
    #[doc(hidden)]
    pub fn take_failure(&mut self) -> Option<ConnectionError> {
        self.errors.take()
    }

    /// Sets or clears the error that the next call returns (`sk_err`), as reading the error queue
    /// does. The connection stays open.
    pub fn set_error(&mut self, error: Option<ConnectionError>) {
        match error {
            Some(error) => self.errors.set(error),
            None => self.errors.forget(),
        }
    }

    /// Returns when to call [`on_deadline`](Self::on_deadline); [`Instant::FAR_FUTURE`] if never.
    pub fn deadline(&self) -> Instant {
        if self.state == State::Closed {
            return Instant::FAR_FUTURE;
        }
        self.deadlines.next().min(self.receiver.deadline())
    }

    /// Returns which calls an application can make without waiting.
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
        ready.set(Readiness::ERROR, self.errors.is_pending());
        ready.set(Readiness::ALL_ACKED, self.state.has_no_more_to_send());
        ready
    }

    /// Takes the edges of readiness since the last call: data that arrived behind unread data, or
    /// room that came back after a refused write.
    ///
    /// An edge-triggered waiter needs them where the level did not change.
    pub fn take_edges(&mut self) -> Readiness {
        std::mem::take(&mut self.edges)
    }

    /// Returns the bytes that were written and not acknowledged (`SIOCOUTQ`); a FIN counts as one.
    pub fn outq(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Closed => 0,
            _ => self.sender.unacked().saturating_add(self.outq_nsd()),
        }
    }

    /// Returns the bytes in the send buffer that were never sent (`SIOCOUTQNSD`).
    pub fn outq_nsd(&self) -> u32 {
        match self.state {
            State::SynSent | State::SynReceived | State::Closed => 0,
            _ => self.sender.unsent() + u32::from(self.fin == Fin::Queued),
        }
    }

    /// Returns why the last [`transmit`](Self::transmit) stopped.
    pub fn blocked(&self) -> TxBlocked {
        self.blocked
    }

    /// Returns how many bytes of memory the socket's backlog may take: receive buffer plus send
    /// buffer, as in Linux.
    pub fn backlog_limit(&self) -> u32 {
        self.receiver.rcvbuf().saturating_add(self.sndbuf)
    }

    /// Returns how many bytes of memory the receive buffer has left (`sk_rcvbuf` less
    /// `sk_rmem_alloc`).
    pub fn receive_room(&self) -> u32 {
        self.receiver.rcvbuf().saturating_sub(self.receiver.rmem_alloc())
    }

    /// Returns how many bytes can be read (`FIONREAD`).
    pub fn unread(&self) -> u32 {
        self.receiver.unread()
    }

    /// Returns whether the peer has not acknowledged all that was sent.
    pub fn has_unacked(&self) -> bool {
        self.sender.has_unacked()
    }

    /// Returns whether what is sent now begins a turn: the two sides take turns in sending, and
    /// nothing is in flight.
    pub fn begins_turn(&self) -> bool {
        !self.has_unacked() && self.receiver.takes_turns()
    }

    /// Returns whether `seq` is in flight. Quoted segments of ICMP errors are checked with it (RFC
    /// 5927 section 4).
    pub fn is_in_flight(&self, seq: SeqNumber) -> bool {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            return seq == self.opening.iss;
        }
        seq.at_or_after(self.sender.una()) && seq.before(self.sender.nxt())
    }
}
