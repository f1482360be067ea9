//! WireGuard as a device of neap: a tunnel in one process, without privileges.
//!
//! # A tour
//!
//! [`Wireguard::open`] binds the UDP socket, [`Wireguard::into_device`] makes the device that a
//! stack takes, and a [`WireguardHandle`] shows and changes peers while the stack runs.
//!
//! [`file`](mod@file) reads the files of wg-quick and wireproxy.
//!
//! The engine (`engine`) has no I/O and no clock: cryptokey routing, sessions, deadlines. The
//! protocol itself comes from a crate behind a trait (`protocol`). The device (`device`) is the UDP
//! socket: super-datagrams both ways, true completions, the path's MTU.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod config;
mod counters;
mod device;
mod engine;
mod error;
pub mod file;
mod ip;
mod keys;
mod protocol;
mod routes;
mod status;

pub use config::{DEFAULT_MTU, Peer, WireguardConfig};
pub use device::{Wireguard, WireguardHandle};
pub use error::Error;
pub use keys::{KeyError, PresharedKey, PrivateKey, PublicKey};
pub use status::{PeerStatus, SocketBuffer, Status};
