//! One host.
#![forbid(unsafe_code)]

pub mod device;
pub mod frame;
pub mod qdisc;
