//! One TCP connection as a pure state machine.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod counters;
pub mod handshake;
pub mod isn;
pub mod segment;
pub mod sender;
pub mod seq;
mod syn_cookies;
mod sync;
pub mod time;
pub mod transmit;
