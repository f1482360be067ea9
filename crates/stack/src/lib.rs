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
//! The way up: [`shard`] takes packets from the device, `ip` parses and verifies them ([`wire`]),
//! [`gro`] joins what belongs together, [`demux`] finds the socket. Each touched connection gets its
//! segments and transmits once. If an application thread owns the connection at that moment, the
//! segments are its debt, and it settles them before it leaves.
//!
//! What nobody wanted is in [`drop_reason`], what happened in [`stats`].
#![forbid(unsafe_code)]

pub mod bql;
pub mod demux;
pub mod device;
pub mod drop_reason;
mod egress;
pub mod fragment;
pub mod frame;
pub mod gro;
pub mod gso;
pub mod hand_off;
mod icmp;
pub mod interface;
mod ip;
mod keyed;
pub mod listener;
pub mod neighbor;
pub mod port;
mod ports;
pub mod posix;
pub mod qdisc;
pub mod reassembly;
pub mod route;
pub mod shard;
pub mod socket;
pub mod sojourn;
pub mod stack;
pub mod stats;
mod sync;
pub mod wheel;
pub mod wire;
