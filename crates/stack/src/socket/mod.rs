//! Sockets as applications hold them: references that may be cloned and used from any thread.

pub mod bound;
pub mod forwarder;
pub mod icmp;
pub mod listener;
pub mod mapped;
pub mod tcp;
pub mod udp;

pub use crate::host::error::SocketError;
pub use crate::host::socket_id::SocketId;
pub use crate::host::{error_queue as errors, readiness};
