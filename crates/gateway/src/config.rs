//! Settings of a gateway.

use crate::dhcp::DhcpConfig;
use crate::dhcp6::Dhcp6Config;
use crate::outbound::Outbound;
use crate::policy::Policy;
use crate::resolver;
use neap::TcpForwarderOptions;
use std::net::{IpAddr, SocketAddr};

/// Connections that wait for their other half at the same time, of one guest address.
const PENDING_OF_A_SOURCE: usize = 1024;
/// The same of all guests.
const PENDING: usize = 4096;

/// Settings of a [`Gateway`](crate::Gateway).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GatewayConfig {
    /// Destinations that guests may reach. The default lets them reach all.
    pub policy: Policy,
    /// Destinations that stand for others. The first that matches counts.
    pub translations: Vec<Translation>,
    /// TCP connections at the same time; more are refused.
    pub most_flows: usize,
    /// Addresses and ports of guests that send datagrams, at the same time; datagrams of more are
    /// dropped.
    pub most_mappings: usize,
    /// Addresses and settings that guests get by DHCP; `None` is no server.
    pub dhcp: Option<DhcpConfig>,
    /// The same of IPv6; `None` is no server.
    pub dhcp6: Option<Dhcp6Config>,
    /// Addresses that guests have. A client of a published port with such an address is the host,
    /// whose addresses they are as well; the guest sees the stand-in, as for a loopback address.
    pub guest_addresses: Vec<IpAddr>,
    /// Whether connections of guests pass. What does not pass is not answered.
    pub passes_tcp: bool,
    /// Whether datagrams of guests pass.
    pub passes_udp: bool,
    /// Addresses from which datagrams leave the host.
    pub outbound: Outbound,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            translations: Vec::new(),
            most_flows: 10_000,
            most_mappings: 10_000,
            dhcp: None,
            dhcp6: None,
            guest_addresses: Vec::new(),
            passes_tcp: true,
            passes_udp: true,
            outbound: Outbound::default(),
        }
    }
}

/// A destination that stands for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    from: IpAddr,
    /// `None` stands for every port.
    port: Option<u16>,
    to: Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// The port stays.
    Host(IpAddr),
    /// The first resolver of the host, at the port of the guest's choice. It may be a loopback
    /// address, which no policy keeps from the guest.
    Resolver,
    /// A service that the user has chosen, which no policy keeps from the guest.
    Service(IpAddr),
}

impl Translation {
    /// An address that stands for another one, at all ports. The policy judges the other one.
    pub fn address(from: IpAddr, to: IpAddr) -> Self {
        Self { from, port: None, to: Target::Host(to) }
    }

    /// An address and port that stand for the resolver of the host: the first `nameserver` of
    /// `/etc/resolv.conf`, which is read again when it has changed. No policy denies it.
    pub fn resolver(from: SocketAddr) -> Self {
        Self { from: from.ip(), port: Some(from.port()), to: Target::Resolver }
    }

    /// An address and port that stand for the same port of another address. No policy denies it.
    pub fn service(from: SocketAddr, to: IpAddr) -> Self {
        Self { from: from.ip(), port: Some(from.port()), to: Target::Service(to) }
    }

    fn matches(&self, to: SocketAddr) -> bool {
        self.from == to.ip() && self.port.is_none_or(|port| port == to.port())
    }
}

impl GatewayConfig {
    pub(crate) fn forwarder_options(&self) -> TcpForwarderOptions {
        TcpForwarderOptions {
            max_pending: PENDING.min(self.most_flows),
            max_per_source: PENDING_OF_A_SOURCE.min(self.most_flows),
            ..TcpForwarderOptions::default()
        }
    }

    /// Where a flow goes that a guest wants to go to `to`; `None` if the policy is against it.
    pub(crate) fn destination(&self, to: SocketAddr) -> Option<SocketAddr> {
        let translated = match self.translations.iter().find(|one| one.matches(to)) {
            Some(Translation { to: Target::Resolver, .. }) => {
                return Some(SocketAddr::new(resolver::first()?, to.port()));
            }
            Some(&Translation { to: Target::Service(service), .. }) => {
                return Some(SocketAddr::new(service, to.port()));
            }
            Some(&Translation { to: Target::Host(host), .. }) => SocketAddr::new(host, to.port()),
            None => to,
        };
        self.policy.allows(translated.ip()).then_some(translated)
    }
}
