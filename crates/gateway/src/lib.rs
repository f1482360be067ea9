//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod config;
mod counters;
mod datagrams;
mod engine;
pub mod guest;
pub mod host;
mod host_datagrams;
mod inspect;
mod journal;
mod policy;
mod published;
mod relay;
mod resolver;
mod token;
mod upstream;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use engine::{Gateway, StopHandle};
pub use inspect::{FlowView, Holdings, Inspector};
pub use policy::Policy;
pub use published::Transport;
pub use relay::{End, MOST_HELD, Progress, Relay, Side};
pub use upstream::{Direct, Far, Upstream};
