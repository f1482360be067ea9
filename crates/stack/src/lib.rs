//! One host.
#![forbid(unsafe_code)]

pub mod bql;
pub mod device;
pub mod frame;
pub mod hand_off;
pub mod qdisc;
mod sync;
pub mod wheel;
