//! One TCP connection as a pure state machine: segments and time in, segments out.
//!
//! # A tour
//!
//! Read [`connection::Connection`] first: it joins the parts and lists their verbs. Segments that
//! arrive, timers and calls of the application only note what is owed;
//! [`transmit`](connection::Connection::transmit) is the one exit, with its gates in Linux's order.
//! It hands [`segment::Segment`]s to an [`Egress`](transmit::egress::Egress), each with the
//! [`TxCredit`](transmit::small_queue::TxCredit) whose drop says that the wire has it.
//!
//! Below a connection, and without knowledge of it, are its parts. The [`sender`]: bytes not yet
//! sent ([`send_queue`](sender::send_queue)), frames in flight
//! ([`scoreboard`](sender::scoreboard)), loss ([`recovery`](sender::recovery)), round-trip time and
//! delivery rate; [`congestion`] moves its window. The [`receiver`]: order, window, and which ACK
//! is due when. [`transmit`]: how large a frame is, how much may be below, when it departs.
//!
//! Before a connection there is a [`Request`](handshake::Request) or a SYN cookie, after it a
//! [`TimeWait`](time_wait::TimeWait) or an [`Orphan`](orphan::Orphan); all are small. [`config`]
//! has every setting by the name of its sysctl, [`options`] those of a socket, [`info`] and
//! [`counters`] the figures, [`memory`] what bounds the buffers of all connections together.
//!
//! Nothing here reads a clock, takes a lock, starts a thread or knows how a segment is encoded. A
//! segment is committed only when the way down took it. Whatever a peer can make grow has a bound.
//!
//! # Versions
//!
//! This crate is an internal part of `neap` and promises nothing: any version may change anything.
//! Depend on `neap`, which re-exports by name what it promises.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod connection;
pub mod counters;
#[doc(hidden)]
pub mod debug;
pub mod handshake;
pub mod info;
pub mod isn;
pub mod lateness;
pub mod memory;
pub mod options;
pub mod orphan;
pub mod profile;
pub mod receiver;
pub mod segment;
pub mod sender;
pub mod seq;
pub mod state;
mod sync;
pub mod sysctl;
pub mod time;
pub mod time_wait;
pub mod transmit;
pub mod units;
mod windowed_min;
