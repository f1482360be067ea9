//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod datagrams;
mod destination;
pub mod dns;
mod engine;
pub mod guest;
pub mod host;
mod host_datagrams;
mod outside;
mod policy;
pub mod proxy;
mod published;
mod relay;
mod token;
mod upstream;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use destination::Destination;
pub use engine::{Gateway, StopHandle};
pub use host_datagrams::{Arrived, MOST_BYTES, MOST_SEGMENTS, Undelivered};
pub use outside::Outside;
pub use policy::Policy;
pub use published::Transport;
pub use relay::{End, MOST_HELD, Progress, Relay, Side};
pub use upstream::{Direct, Far, FarDatagrams, Upstream};
