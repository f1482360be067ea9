//! One host.
#![forbid(unsafe_code)]

pub mod device;
pub mod fragment;
pub mod frame;
pub mod gro;
pub mod gso;
pub mod qdisc;
pub mod reassembly;
pub mod wire;
