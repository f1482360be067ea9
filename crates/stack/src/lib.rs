//! One host.
#![forbid(unsafe_code)]

pub mod bql;
pub mod device;
pub mod frame;
mod gso;
pub mod hand_off;
pub mod port;
pub mod qdisc;
mod sync;
pub mod wheel;
