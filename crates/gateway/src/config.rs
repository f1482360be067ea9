//! Settings of a gateway.

use crate::dhcp::DhcpConfig;
use crate::dhcp6::Dhcp6Config;
use crate::guest_sockets::GuestSockets;
use crate::outbound::Outbound;
use crate::policy::Policy;
use crate::resolver::{Resolver, ResolversFile};
use neap::TcpForwarderOptions;
use neap::time::Rate;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Port of resolvers.
pub(crate) const RESOLVER_PORT: u16 = 53;
/// Port of resolvers that are asked over TLS (RFC 7858 section 3.1).
pub(crate) const SECURE_RESOLVER_PORT: u16 = 853;

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
    /// Addresses that guests know as the gateway's own. What is sent there, and no translation
    /// names, is refused as by a host where nobody listens, whoever has the address outside.
    pub own_addresses: Vec<IpAddr>,
    /// Who answers what guests ask a [resolver](Translation::resolver).
    pub resolver: Resolver,
    /// What reads the file of [`Resolver::Host`]; `None` leaves it to the gateway itself.
    pub resolvers_file: Option<Arc<dyn ResolversFile>>,
    /// Everything that is sent to port 53 is for the resolver, whatever the address is.
    pub takes_all_dns: bool,
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
    /// What a guest sends from a link-local address to a link-local stand-in is an answer of the
    /// published port of these addresses.
    pub guest_addresses: Vec<IpAddr>,
    /// Opens sockets in the network namespace of the guest. With it, a client of a published port
    /// that is at a loopback address of the host becomes a client at the guest's loopback address,
    /// and what it sends does not pass the stack. With `None` the guest sees the stand-in.
    pub guest_sockets: Option<Arc<dyn GuestSockets>>,
    /// Whether connections of guests pass. What does not pass is not answered.
    pub passes_tcp: bool,
    /// Whether datagrams of guests pass.
    pub passes_udp: bool,
    /// Whether echo requests (ping) of guests pass. Those to an address of the gateway's own stack
    /// are answered by that, unless its sysctl `net.ipv4.icmp_echo_ignore_all` or
    /// `net.ipv6.icmp.echo_ignore_all` is set.
    pub passes_echo: bool,
    /// How pings, questions to resolvers and datagrams from published ports leave the host. The
    /// answers of a published port leave by the port itself, with the mark.
    pub outbound: Outbound,
    /// Rate of what guests send, with estimated headers of IP and transport. Flows share it evenly,
    /// and those that send little go first; `None` is no limit.
    pub rate: Option<Rate>,
    /// Rate of what guests get, in packets of the gateway's interfaces; `None` is no limit.
    pub rate_in: Option<Rate>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            translations: Vec::new(),
            own_addresses: Vec::new(),
            resolver: Resolver::default(),
            resolvers_file: None,
            takes_all_dns: false,
            most_flows: 10_000,
            most_mappings: 10_000,
            dhcp: None,
            dhcp6: None,
            guest_addresses: Vec::new(),
            guest_sockets: None,
            passes_tcp: true,
            passes_udp: true,
            passes_echo: true,
            outbound: Outbound::default(),
            rate: None,
            rate_in: None,
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
    /// The resolver of the gateway.
    Resolver,
    /// A service that the user has chosen, which no policy keeps from the guest.
    Service(IpAddr),
}

/// Where a flow of a guest goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    To(SocketAddr),
    Resolver,
    /// An address of the gateway itself, at which nobody listens.
    Nobody,
    /// The policy is against it.
    Denied,
}

impl Translation {
    /// An address that stands for another one, at all ports. The policy judges the other one.
    pub fn address(from: IpAddr, to: IpAddr) -> Self {
        Self { from, port: None, to: Target::Host(to) }
    }

    /// An address and port that stand for the [resolver](GatewayConfig::resolver) of the gateway,
    /// which no policy denies. Connections to port 853 go to the same port of a nameserver, and
    /// the gateway does not read what they carry (DNS over TLS, RFC 7858). Datagrams to that port
    /// are refused, and so are connections if the resolver is [`Resolver::Names`].
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

    /// Where a flow goes that a guest wants to go to `to`.
    pub(crate) fn way(&self, to: SocketAddr) -> Way {
        let translated = match self.translations.iter().find(|one| one.matches(to)) {
            Some(Translation { to: Target::Resolver, .. }) => return Way::Resolver,
            Some(&Translation { to: Target::Service(service), .. }) => {
                return Way::To(SocketAddr::new(service, to.port()));
            }
            _ if self.takes_all_dns && to.port() == RESOLVER_PORT => return Way::Resolver,
            Some(&Translation { to: Target::Host(host), .. }) => SocketAddr::new(host, to.port()),
            None if self.own_addresses.contains(&to.ip()) => return Way::Nobody,
            None => to,
        };
        if self.policy.allows(translated.ip()) { Way::To(translated) } else { Way::Denied }
    }
}
