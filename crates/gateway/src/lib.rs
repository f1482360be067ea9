//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod bounds;
mod clients;
mod config;
mod counters;
mod datagrams;
mod echo;
mod engine;
pub mod guest;
mod handle;
pub mod host;
mod host_datagrams;
mod host_echo;
mod host_errors;
mod pieces;
mod policy;
mod published;
mod refused;
mod relay;
mod resolver;
mod token;
mod translated;
mod upstream;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use engine::Gateway;
pub use handle::GatewayHandle;
pub use policy::Policy;
pub use published::{Publication, PublishedId, PublishedPort, Transport};
pub use relay::{End, MOST_HELD, Progress, Relay, Side};
pub use upstream::{Direct, Far, Upstream};
