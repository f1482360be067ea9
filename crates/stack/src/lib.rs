//! One host: sockets, demultiplexing, IP, qdiscs and ports.
//!
//! # A tour
//!
//! [`stack::Stack`] is the host. It has three kinds of verbs: socket calls (`connect`, `listen`,
//! `bind_udp`, and those of the handles that they return), [`poll`](stack::Stack::poll), and
//! inspection (`flows`, counters). It has no clock and no threads: every call is told the time, and
//! whoever calls `poll` drives. All calls may come from any thread.
//!
//! The way down: a handle's `write` takes the connection out of its [`hand_off::HandOff`], the
//! connection cuts segments and gives them to the socket's `egress`, which puts headers in front
//! and finds interface and neighbour; the [`port::Port`] queues the [`frame::Frame`] in its
//! [`qdisc`] and drains it into the [`device`], all within the call. The frame's drop is its
//! completion; it may ask the shard's run list to let a throttled socket transmit again.
//!
//! The way up: [`shard`] takes packets from the device, `input` parses and verifies them
//! ([`wire`]),
//! [`gro`] joins what belongs together, `demux` finds the socket. Each touched connection gets its
//! segments and transmits once. If an application thread owns the connection at that moment, the
//! segments are its debt, and it settles them before it leaves.
//!
//! How applications wait for sockets is in [`wait`].
//!
//! What nobody wanted is in [`drop_reason`], what happened in [`stats`].
#![forbid(unsafe_code)]

pub mod device;
mod doorbell;
pub mod drop_reason;
pub mod flow;
pub mod frame;
pub mod hand_off;
mod host;
mod keyed;
mod net;
pub mod socket;
pub mod stack;
pub mod stats;
mod sync;
pub mod wait;
pub mod wheel;
pub mod wire;

pub use host::{gro, shard};
pub use net::{bql, fragment, gso, interface, neighbor, port, qdisc, reassembly, route, sojourn};
pub use socket::listener;
