//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod datagrams;
mod engine;
pub mod guest;
mod guest_rate;
pub mod host;
mod host_datagrams;
mod policy;
mod published;
mod relay;
mod resolver;
mod schedule;
mod sending;
mod token;
mod upstream;
mod waiting_datagrams;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use engine::{Gateway, StopHandle};
pub use policy::Policy;
pub use published::Transport;
pub use relay::{End, MOST_HELD, Progress, Relay, Segments, Side};
pub use upstream::{Direct, Far, Upstream};
