//! One host.
#![forbid(unsafe_code)]

pub mod device;
pub mod frame;
pub mod hand_off;
pub mod qdisc;
mod sync;
