//! Doors: ways between sockets of the host and a stack, such as the stack of a tunnel.
//!
//! What comes to a proxy or a port of the host goes into the stack, and what comes to a port of the
//! stack goes to the host. Names are looked up by servers that are asked through the stack. None
//! goes to the resolver of the host, but for those of the host's network: targets of
//! [`Door::Server`] where there are no such servers.
//!
//! Cost: one thread for all connections, and O(1) per event. A connection has a socket of the host,
//! one of the stack, two entries of a poller and about 500 bytes. While a client says what it
//! wants, and while the head of an HTTP answer comes, it holds at most 16 KiB more.

mod answer;
mod body;
mod cache;
mod config;
mod dialogue;
mod engine;
mod figures;
mod handle;
mod host_names;
mod http;
mod lookups;
mod mappings;
mod near;
mod ports;
mod session;
mod sni;
mod socks;
mod stdio;
mod step;
mod tls;
mod users;

pub use config::{
    Door, DoorsConfig, DoorsError, Host, ResolveStrategy, Target, TargetError, TunnelResolver,
};
pub use engine::Doors;
pub use figures::{DoorsFigures, DoorsInspector};
pub use handle::{DoorId, DoorsHandle};
pub use tls::TlsIdentity;
pub use users::Users;
