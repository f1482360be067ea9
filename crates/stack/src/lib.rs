//! One host of a TCP/IP stack: sockets, demultiplexing, IP, qdiscs and ports.
//!
//! # A tour
//!
//! The crate has three layers, and each knows only those below it.
//!
//! The face is [`stack::Stack`], one host, with the handles of [`socket`]. It has three kinds of
//! methods: socket calls (`connect`, `listen`, `bind_udp`, and those of the handles that they
//! return), [`poll`](stack::Stack::poll), and inspection (`flows`, counters). It has no clock and
//! no threads: every call gets the time, and the thread that calls `poll` drives. All calls may
//! come from any thread.
//!
//! `host` has the sockets: the tables that find them, the way of a packet up to them, and the
//! `shard`s by which drivers visit them. `net` is between a host and its links: it has addresses,
//! [`route`]s, [`neighbor`]s, [`interface`]s, [`qdisc`]s and [`port`]s. It knows no socket. A
//! failure that a socket has to hear of is a value that `net` returns.
//!
//! The way down: a handle's `write` takes the connection out of its [`hand_off::HandOff`]. The
//! connection cuts segments and gives them to its `tcp_egress`, which writes the headers and asks
//! `net` for interface and neighbour. The [`port::Port`] queues the [`frame::Frame`] in its
//! [`qdisc`] and drains it into the [`device`], all within the call. The drop of the frame is its
//! completion; it may ask the shard's run list to let a throttled socket transmit again.
//!
//! The way up: a `shard` takes packets from the device, `input` parses and verifies them
//! ([`wire`]), [`gro`] joins what belongs together, and `demux` finds the socket. Each connection
//! that got segments transmits once. If an application's thread owns the connection at that moment,
//! the segments are its debt, and it settles them before it leaves.
//!
//! [`wait`] is how applications wait for sockets, and [`driving`] how threads take turns to poll.
//! [`drop_reason`] counts dropped packets, and
//! [`stats`] the events of IP, ICMP and UDP.
//!
//! # Versions
//!
//! This crate is an internal part of `neap` and promises nothing: any version may change anything.
//! Depend on `neap`, which re-exports by name what it promises.
#![forbid(unsafe_code)]

pub mod device;
pub mod driving;
pub mod drop_reason;
pub mod event;
pub mod flow;
pub mod frame;
pub mod hand_off;
mod host;
mod keyed;
mod net;
mod passed;
pub mod socket;
pub mod stack;
pub mod stats;
mod sync;
pub mod wait;
pub mod wheel;
pub mod wire;

pub use host::gro;
pub use net::{error, gso, interface, neighbor, port, qdisc, reassembly, route, router};
