//! One host.
#![forbid(unsafe_code)]

pub mod bql;
pub mod device;
pub mod fragment;
pub mod frame;
pub mod gro;
pub mod gso;
pub mod qdisc;
pub mod reassembly;
pub mod wire;
mod gso;
pub mod hand_off;
pub mod port;
pub mod qdisc;
mod sync;
pub mod wheel;
