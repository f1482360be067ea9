//! The network that the guest sees.

use crate::gateway::namespace::Link;
use ipnet::Ipv4Net;
use neap::InterfaceConfig;
use neap::device::Device;
use neap::net::{Address, AdvertisedDnsServer, AdvertisedPrefix, Prefix, RouterAdvertisement};
use neap_gateway::{DhcpConfig, Policy, Translation};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Hosts of the network by their numbers in it.
const GATEWAY: u32 = 2;
const RESOLVER: u32 = 3;
const FIRST_BY_DHCP: u32 = 15;
const BY_DHCP: u32 = 16;
const GUEST: u32 = 100;

const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const RESOLVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
const NETWORK_V6: &str = "fd00::/64";
const LINK_LOCAL: &str = "fe80::2/64";
/// Lifetimes of addresses that guests make of the prefix, in seconds, and of the resolver.
const VALID: u32 = 86_400;
const PREFERRED: u32 = 14_400;
const DNS_PORT: u16 = 53;

/// A network with the addresses of slirp4netns.
#[derive(Clone, Debug)]
pub(super) struct Network {
    cidr: Ipv4Net,
    pub(super) mtu: u16,
    pub(super) has_v6: bool,
    /// Whether the gateway answers as the resolver.
    pub(super) has_dns: bool,
}

impl Network {
    pub(super) fn new(cidr: Ipv4Net, mtu: u16, has_v6: bool, has_dns: bool) -> Self {
        Self { cidr, mtu, has_v6, has_dns }
    }

    fn host(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.cidr.network().to_bits() + number)
    }

    /// The address that stands for the host, and is the router of the guest.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.host(GATEWAY)
    }

    /// The address that the guest gets.
    pub(super) fn guest(&self) -> Ipv4Addr {
        self.host(GUEST)
    }

    /// What is set up in the guest's namespace. Addresses of IPv6 are the guest's to make, of the
    /// prefix that is advertised.
    pub(super) fn link(&self, mac: Option<[u8; 6]>) -> Link {
        Link {
            mtu: self.mtu,
            mac,
            addresses: vec![(self.guest().into(), self.cidr.prefix_len())],
            makes_v6: self.has_v6,
            routers: vec![self.gateway().into()],
        }
    }

    /// The gateway's interface on the device of the guest.
    pub(super) fn interface(&self, device: Device) -> InterfaceConfig {
        let interface = InterfaceConfig::new(device).any_destination(true).begin_unread();
        let interface = self.own_addresses().into_iter().fold(interface, InterfaceConfig::address);
        if !self.has_v6 {
            return interface;
        }
        let network = NETWORK_V6.parse().expect("a prefix");
        interface.router_advertisements(self.advertisement(network))
    }

    /// Addresses of the gateway's interface.
    pub(super) fn own_addresses(&self) -> Vec<Address> {
        let v4 = |number| format!("{}/{}", self.host(number), self.cidr.prefix_len());
        let network: Prefix = NETWORK_V6.parse().expect("a prefix");
        let v6 = |address: Ipv6Addr| format!("{address}/{}", network.len());
        let all = [
            (true, v4(GATEWAY)),
            (self.has_dns, v4(RESOLVER)),
            (self.has_v6, v6(GATEWAY_V6)),
            (self.has_v6 && self.has_dns, v6(RESOLVER_V6)),
            (self.has_v6, LINK_LOCAL.to_owned()),
        ];
        let text = all.iter().filter(|(is_there, _)| *is_there).map(|(_, text)| text);
        text.map(|text| text.parse().expect("an address with its prefix length")).collect()
    }

    fn advertisement(&self, network: Prefix) -> RouterAdvertisement {
        let prefix = AdvertisedPrefix {
            valid: VALID,
            preferred: PREFERRED,
            ..AdvertisedPrefix::new(network)
        };
        let resolver = AdvertisedDnsServer { address: RESOLVER_V6, lifetime: VALID };
        RouterAdvertisement {
            mtu: Some(self.mtu.into()),
            prefixes: vec![prefix],
            rdnss: if self.has_dns { vec![resolver] } else { Vec::new() },
            ..RouterAdvertisement::default()
        }
    }

    /// Addresses that stand for others: the resolver's for that of the host, and the gateway's for
    /// the loopback address of the host, which the policy judges.
    pub(super) fn translations(&self) -> Vec<Translation> {
        let v4: [IpAddr; 3] =
            [self.gateway().into(), Ipv4Addr::LOCALHOST.into(), self.host(RESOLVER).into()];
        let v6: [IpAddr; 3] = [GATEWAY_V6.into(), Ipv6Addr::LOCALHOST.into(), RESOLVER_V6.into()];
        let mut translations = Vec::new();
        for [gateway, loopback, resolver] in
            [Some(v4), self.has_v6.then_some(v6)].into_iter().flatten()
        {
            translations.push(Translation::address(gateway, loopback));
            if self.has_dns {
                translations.push(Translation::resolver(SocketAddr::new(resolver, DNS_PORT)));
            }
        }
        translations
    }

    /// Denies the family that the guest does not have: its interface takes packets for all
    /// addresses.
    pub(super) fn restrict(&self, policy: &mut Policy) {
        if !self.has_v6 {
            policy.deny("::/0".parse().expect("a prefix"));
        }
    }

    /// What guests are told by DHCP.
    pub(super) fn dhcp(&self) -> DhcpConfig {
        let mut dhcp = DhcpConfig::new(self.gateway(), self.cidr, self.host(FIRST_BY_DHCP));
        dhcp.addresses = BY_DHCP;
        dhcp.router = Some(self.gateway());
        dhcp.mtu = Some(self.mtu);
        if self.has_dns {
            dhcp.dns = vec![self.host(RESOLVER)];
        }
        dhcp
    }
}
