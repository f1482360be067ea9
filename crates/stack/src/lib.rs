//! One host.
#![forbid(unsafe_code)]

pub mod bql;
pub mod device;
pub mod frame;
mod gso;
pub mod hand_off;
mod keyed;
pub mod neighbor;
pub mod port;
pub mod qdisc;
pub mod route;
mod sync;
pub mod wheel;
