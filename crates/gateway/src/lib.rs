//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod clients;
mod config;
mod counters;
mod crossings;
mod datagrams;
mod dhcp;
mod dhcp_service;
mod echo;
mod engine;
pub mod guest;
mod handle;
pub mod host;
mod host_datagrams;
mod host_echo;
mod host_errors;
mod inspect;
mod journal;
mod outbound;
mod policy;
mod published;
mod refused;
mod relay;
mod resolver;
mod schedule;
mod sending;
mod token;
mod translated;
mod upstream;
mod waiting_datagrams;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use dhcp::{DhcpAnswer, DhcpConfig, DhcpError, DhcpServer};
pub use engine::Gateway;
pub use handle::GatewayHandle;
pub use inspect::{FlowView, Holdings, Inspector};
pub use outbound::{DirectFrom, Outbound};
pub use policy::Policy;
pub use published::{Publication, PublishedId, PublishedPort, Transport};
pub use relay::{End, MOST_HELD, Progress, Relay, Segments, Side};
pub use upstream::{Direct, Far, Upstream};
