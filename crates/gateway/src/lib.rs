//! A gateway from a TUN or TAP to the sockets of the host, without privileges of its own.
#![forbid(unsafe_code)]

mod clients;
mod config;
mod counters;
mod crossings;
mod datagrams;
mod dhcp;
mod dhcp6;
mod dhcp6_service;
mod dhcp_service;
mod engine;
pub mod guest;
mod handle;
pub mod host;
mod host_datagrams;
mod outbound;
mod policy;
mod published;
mod relay;
mod resolver;
mod token;
mod upstream;

pub use config::{GatewayConfig, Translation};
pub use counters::Figures;
pub use dhcp::{DhcpAnswer, DhcpConfig, DhcpError, DhcpServer};
pub use dhcp6::{Dhcp6Config, Dhcp6Server, SERVER_PORT_V6};
pub use engine::Gateway;
pub use handle::GatewayHandle;
pub use outbound::{DirectFrom, Outbound};
pub use policy::Policy;
pub use published::{Publication, PublishedId, PublishedPort, Transport};
pub use relay::{End, MOST_HELD, Progress, Relay, Side};
pub use upstream::{Direct, Far, Upstream};
