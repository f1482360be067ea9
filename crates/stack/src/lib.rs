//! One host.
#![forbid(unsafe_code)]

pub mod bql;
pub mod device;
pub mod fragment;
pub mod frame;
pub mod gro;
pub mod gso;
pub mod hand_off;
mod keyed;
pub mod neighbor;
pub mod port;
pub mod qdisc;
pub mod reassembly;
pub mod route;
mod sync;
pub mod wheel;
pub mod wire;
