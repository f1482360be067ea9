//! One TCP connection as a pure state machine: segments and time in, segments out.
//!
//! Read [`connection::Connection`] first: it joins the parts and lists their verbs. Then
//! [`transmit`], the one exit with its gates in Linux's order; [`sender`] and [`receiver`], the two
//! halves; [`congestion`], what moves the window. Nothing here reads a clock, takes a lock, starts
//! a thread or knows how a segment is encoded.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod connection;
pub mod counters;
pub mod deadlines;
pub mod handshake;
pub mod info;
mod input;
pub mod isn;
pub mod options;
pub mod receiver;
pub mod segment;
pub mod sender;
pub mod seq;
pub mod state;
mod syn_cookies;
mod sync;
mod sysctl;
pub mod time;
pub mod time_wait;
mod timers;
pub mod transmit;
