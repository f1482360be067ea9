//! One TCP connection as a pure state machine.
#![forbid(unsafe_code)]

pub mod config;
pub mod congestion;
pub mod counters;
pub mod receiver;
pub mod segment;
pub mod seq;
mod sync;
pub mod time;
pub mod transmit;
