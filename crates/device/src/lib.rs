//! TUN and AF_PACKET as devices of neap-stack.
//!
//! # A tour
//!
//! Open one ([`Tun::open`], [`Packet::open`]), give the kernel's end its address if there is one
//! ([`configure_link`]), and attach `into_device()` to a stack. An [`Error`] of opening says what
//! to do.
//!
//! The driver decides when "the wire has it": for TUN at the return of the write ([`tun`]), for
//! AF_PACKET when the ring slot is free again ([`packet`]). Both exchange super-frames and
//! unfinished checksums through the virtio-net header (`virtio`). Received packets are slices of
//! blocks that are used again (`arena`).
//!
//! All unsafe code of the crate is in two modules: system calls and mappings in `sys`, shared slots
//! in `ring`.
//!
//! # Versions
//!
//! This crate is an internal part of `neap` and promises nothing: any version may change anything.
//! Depend on `neap`, which re-exports by name what it promises.
#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod arena;
pub mod clock;
mod error;
mod link;
mod local_ports;
mod monitor;
mod netlink;
pub mod packet;
mod ring;
mod scheduling;
mod send_queue;
mod sys;
mod threaded;
pub mod tun;
pub mod udp;
mod virtio;
mod write;

pub use error::Error;
pub use link::{LinkConfig, configure_link};
pub use local_ports::look_through_all_local_ports;
pub use packet::{Packet, PacketConfig};
pub use scheduling::{Scheduling, SchedulingError};
pub use send_queue::{SendQueue, send_queue};
pub use tun::{Tun, TunConfig, TunQueue};
