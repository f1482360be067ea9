//! The network of a namespace: what its interface gets, and what the gateway answers for.

use super::arguments::{Args, OrNone};
use super::host::{self, Host, Template};
use super::resolvers::Resolvers;
use ipnet::{IpNet, Ipv4Net};
use neap::net::{Address, AdvertisedDnsServer, AdvertisedDomain, AdvertisedPrefix};
use neap::net::{Prefix, RouterAdvertisement};
use neap_gateway::{Dhcp6Config, DhcpConfig, Policy, Translation};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Name of the interface where none of the host stands for it.
const INTERFACE: &str = "tap0";
/// Addresses of a namespace and its gateway on a host without a network.
const LOCAL_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 1);
const LOCAL_GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 2);
const LOCAL_LENGTH_V4: u8 = 16;
const LOCAL_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Networks of IPv6 have so many bits.
pub(super) const LENGTH_V6: u8 = 64;
/// Ports of resolvers: plain (RFC 1035), and over TLS (RFC 7858).
const RESOLVER_PORTS: [u16; 2] = [53, 853];
/// Most lifetime of a router in an advertisement, in seconds.
const ROUTER_LIFETIME: u16 = 9000;

/// The network of a namespace.
#[derive(Debug)]
pub(super) struct Network {
    /// Name of the interface in the namespace.
    pub(super) interface: String,
    pub(super) v4: Option<Family>,
    pub(super) v6: Option<Family>,
    pub(super) resolvers: Vec<IpAddr>,
    pub(super) domains: Vec<String>,
    /// Whether flows leave by the host itself, which can be in reach then.
    is_direct: bool,
}

/// The network of one family.
#[derive(Debug)]
pub(super) struct Family {
    /// Address of the namespace, with its prefix length; IPv6 may have none but its own link-local
    /// one.
    pub(super) guest: Option<(IpAddr, u8)>,
    /// The router that the namespace is told.
    pub(super) gateway: Option<IpAddr>,
    /// What stands for the loopback address of the host.
    pub(super) host: Option<IpAddr>,
    /// What stands for the host's own address.
    host_address: Option<IpAddr>,
    /// What stands for the resolver, and the resolver if it is not that of the gateway.
    resolver: Option<(IpAddr, Option<IpAddr>)>,
    /// What the interface gets as it is on the host; `None` where options say something else.
    pub(super) addresses: Option<Vec<netlink_packet_route::address::AddressMessage>>,
    pub(super) routes: Option<Vec<netlink_packet_route::route::RouteMessage>>,
}

impl Network {
    /// The network that the options and the host's own make.
    ///
    /// # Errors
    /// An option does not fit, and what is expected.
    pub(super) fn plan(args: &Args, host: Host, own: &Resolvers) -> Result<Self, String> {
        let missing = args.named_interfaces().find(|(name, _)| !host::has_interface(name));
        if let Some((name, option)) = missing {
            return Err(format!("{option} {name}: expected an interface of this host"));
        }
        if args.ipv6_only && !host.has_v6 {
            return Err("--ipv6-only: the kernel of this host has no IPv6".to_owned());
        }
        let v4_template = host.v4.filter(|_| !args.ipv6_only);
        let v6_template = host.v6.filter(|_| !args.ipv4_only);
        let interface = args.ns_ifname.clone().or_else(|| {
            let template = v4_template.as_ref().or(v6_template.as_ref());
            template.map(|template| template.interface.clone())
        });
        let v4 = (!args.ipv6_only).then(|| Family::v4(args, v4_template)).transpose()?;
        let v6 = (!args.ipv4_only && host.has_v6).then(|| Family::v6(args, v6_template));
        let mut network = Self {
            interface: interface.unwrap_or_else(|| INTERFACE.to_owned()),
            v4,
            v6,
            resolvers: Vec::new(),
            domains: Vec::new(),
            is_direct: args.own.way_out.is_direct(),
        };
        network.name_resolvers(args, own);
        Ok(network)
    }

    fn families(&self) -> impl Iterator<Item = &Family> {
        self.v4.iter().chain(&self.v6)
    }

    fn name_resolvers(&mut self, args: &Args, own: &Resolvers) {
        for (family, is_v6) in [(&mut self.v4, false), (&mut self.v6, true)] {
            let Some(family) = family else { continue };
            let is_local = own.servers.first().is_some_and(IpAddr::is_loopback);
            // A resolver at a loopback address is behind the address that stands for the host.
            // Beside an upstream those of the host are not asked.
            let of_host = family.host.filter(|_| is_local);
            let stand_in = if self.is_direct { of_host } else { family.gateway };
            family.resolver = family.resolver.or(stand_in.map(|address| (address, None)));
            let told = args.dns.iter().filter_map(|dns| match *dns {
                OrNone::Address(address) if address.is_ipv6() == is_v6 => Some(address),
                _ => None,
            });
            self.resolvers.extend(told);
            if args.dns.is_empty() {
                let forwarded = family.resolver.map(|(address, _)| address);
                let usable = |server: &&IpAddr| server.is_ipv6() == is_v6 && !server.is_loopback();
                match forwarded {
                    Some(address) => self.resolvers.push(address),
                    None => self.resolvers.extend(own.servers.iter().filter(usable)),
                }
            }
        }
        self.domains = if args.search.is_empty() {
            own.domains.clone()
        } else {
            let named = args.search.rsplit(|list| list == "none").next().unwrap_or_default();
            named.iter().flat_map(|list| list.split_whitespace()).map(str::to_owned).collect()
        };
    }

    /// Own addresses of the gateway's stack.
    pub(super) fn gateway_addresses(&self) -> Vec<Address> {
        let mut addresses = Vec::new();
        let address = |ip: IpAddr, length: u8| Address { ip, prefix: prefix(ip, length) };
        if let Some(v4) = &self.v4 {
            let ip = v4.gateway.unwrap_or(LOCAL_GATEWAY_V4.into());
            let length = v4.guest.map_or(LOCAL_LENGTH_V4, |(_, length)| length);
            addresses.push(address(ip, length));
        }
        if let Some(v6) = &self.v6 {
            let link_local = IpAddr::V6(v6.link_local());
            addresses.push(address(link_local, LENGTH_V6));
            let other = v6.gateway.filter(|gateway| *gateway != link_local);
            addresses.extend(other.map(|gateway| address(gateway, LENGTH_V6)));
        }
        addresses
    }

    /// What stands for the host where a client is at an address that the guest would not answer:
    /// what the namespace reaches the host by, or else the gateway. `guest` is its address.
    pub(super) fn stand_in(&self, guest: IpAddr) -> IpAddr {
        let (family, other) = match guest {
            IpAddr::V4(_) => (&self.v4, IpAddr::V4(LOCAL_GATEWAY_V4)),
            IpAddr::V6(_) => (&self.v6, IpAddr::V6(LOCAL_GATEWAY_V6)),
        };
        let of_family = |family: &Family| family.host.or(family.host_address).or(family.gateway);
        family.as_ref().and_then(of_family).unwrap_or(other)
    }

    /// Addresses that the namespace has, and the host as well.
    pub(super) fn guest_addresses(&self) -> Vec<IpAddr> {
        let copied = self.families().filter_map(|family| family.addresses.as_deref());
        let copied = copied.flatten().filter_map(host::local).map(|(address, _)| address);
        let own = self.families().filter_map(|family| family.guest).map(|(address, _)| address);
        copied.chain(own).collect()
    }

    /// Destinations that stand for others.
    pub(super) fn translations(&self) -> Vec<Translation> {
        let mut translations = Vec::new();
        for family in self.families() {
            if let Some((from, to)) = family.resolver {
                translations.extend(RESOLVER_PORTS.map(|port| match to {
                    Some(to) => Translation::service(SocketAddr::new(from, port), to),
                    None => Translation::resolver(SocketAddr::new(from, port)),
                }));
            }
            if let Some(from) = family.host {
                let to = match from {
                    IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
                };
                translations.push(Translation::address(from, to));
            }
            if let Some((from, (to, _))) = family.host_address.zip(family.guest) {
                translations.push(Translation::address(from, to));
            }
        }
        translations
    }

    /// Has names looked up in the domains of an upstream, unless options name some.
    pub(super) fn search_in(&mut self, domains: &[String], args: &Args) {
        if args.search.is_empty() {
            self.domains = domains.to_vec();
        }
    }

    /// Whether the namespace has an address at which the resolver of the gateway answers.
    pub(super) fn has_resolver(&self) -> bool {
        self.families().any(|family| matches!(family.resolver, Some((_, None))))
    }

    /// What the namespace may reach, apart from what options say: everything but the host's
    /// loopback addresses, unless an address stands for one. Addresses of its links are not denied,
    /// as the namespace is on one of them, with the address of the host. Beside an upstream no
    /// address of the host is in reach, by whatever stands for it.
    pub(super) fn policy(&self) -> Policy {
        let mut policy = Policy::default();
        let net = |text: &str| text.parse::<IpNet>().expect("a prefix");
        for own in ["0.0.0.0/8", "127.0.0.0/8", "::/128"] {
            policy.deny(net(own));
        }
        let has_host =
            |family: &Option<Family>| family.as_ref().is_some_and(|one| one.host.is_some());
        let reaches_host = |family: &Option<Family>| self.is_direct && has_host(family);
        if reaches_host(&self.v4) {
            policy.allow(net("127.0.0.1/32"));
        }
        if !reaches_host(&self.v6) {
            policy.deny(net("::1/128"));
        }
        for (family, all) in [(&self.v4, "0.0.0.0/0"), (&self.v6, "::/0")] {
            if family.is_none() {
                policy.deny(net(all));
            }
        }
        let beside =
            self.families().filter(|family| !self.is_direct && family.host_address.is_some());
        let own = beside.filter_map(|family| family.guest);
        own.for_each(|(address, _)| policy.deny(address.into()));
        policy
    }

    /// What the gateway advertises as a router; `None` without IPv6.
    pub(super) fn advertisement(&self, args: &Args) -> Option<RouterAdvertisement> {
        let v6 = self.v6.as_ref()?;
        let mut told = RouterAdvertisement {
            hop_limit: 255,
            managed: !args.no_dhcpv6,
            lifetime: ROUTER_LIFETIME,
            mtu: (args.mtu != 0).then_some(args.mtu.into()),
            ..RouterAdvertisement::default()
        };
        if let Some((guest, _)) = v6.guest {
            let mut prefix = AdvertisedPrefix::new(prefix(guest, LENGTH_V6));
            (prefix.valid, prefix.preferred) = (u32::MAX, u32::MAX);
            told.prefixes.push(prefix);
        }
        let lifetime = u32::MAX;
        if args.dhcp_dns {
            told.rdnss = self
                .resolvers_v6()
                .map(|address| AdvertisedDnsServer { address, lifetime })
                .collect();
        }
        if args.dhcp_search {
            let domains = self.domains.iter().cloned();
            told.dnssl = domains.map(|name| AdvertisedDomain { name, lifetime }).collect();
        }
        Some(told)
    }

    /// What clients of DHCP get; `None` without a router.
    pub(super) fn dhcp(&self, args: &Args) -> Option<DhcpConfig> {
        let v4 = self.v4.as_ref()?;
        let (Some((IpAddr::V4(guest), length)), Some(IpAddr::V4(gateway))) = (v4.guest, v4.gateway)
        else {
            return None;
        };
        let network = Ipv4Net::new(guest, length).ok()?;
        let mut config = DhcpConfig::new(gateway, network, guest);
        config.router = Some(gateway);
        config.mtu = (args.mtu != 0).then_some(args.mtu);
        config.hostname.clone_from(&args.hostname);
        config.fqdn.clone_from(&args.fqdn);
        if args.dhcp_dns {
            config.dns = self.resolvers_v4().collect();
        }
        if args.dhcp_search {
            config.domain = self.domains.first().cloned();
            config.search.clone_from(&self.domains);
        }
        Some(config)
    }

    /// What clients of DHCPv6 get; `None` without IPv6.
    pub(super) fn dhcp6(&self, args: &Args) -> Option<Dhcp6Config> {
        let v6 = self.v6.as_ref()?;
        let address = match v6.guest {
            Some((IpAddr::V6(address), _)) => Some(address),
            _ => None,
        };
        let mut config = Dhcp6Config::new(v6.link_local(), address);
        config.fqdn.clone_from(&args.fqdn);
        if args.dhcp_dns {
            config.dns = self.resolvers_v6().collect();
        }
        if args.dhcp_search {
            config.domains.clone_from(&self.domains);
        }
        Some(config)
    }

    pub(super) fn resolvers_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.resolvers.iter().filter_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
    }

    pub(super) fn resolvers_v4(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.resolvers.iter().filter_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }
}

pub(super) fn prefix(address: IpAddr, length: u8) -> Prefix {
    format!("{address}/{length}").parse::<Address>().expect("an address of that family").prefix
}

impl Family {
    fn v4(args: &Args, template: Option<Template>) -> Result<Self, String> {
        let is_local = template.is_none();
        let template = template.unwrap_or_default();
        let chosen = Args::v4(&args.address).map(IpAddr::V4);
        if chosen.is_none() && args.netmask.is_some() && template.address.is_none() && !is_local {
            return Err("--netmask: expected an IPv4 --address with it".to_owned());
        }
        let address = chosen.or(template.address.map(|(address, _)| address));
        let guest = match address {
            Some(address) => {
                let of_host = template.address.filter(|(other, _)| *other == address);
                let length = args.netmask.or(of_host.map(|(_, length)| length));
                Some((address, length.unwrap_or_else(|| length_of_class(address))))
            }
            None if is_local => Some((LOCAL_V4.into(), args.netmask.unwrap_or(LOCAL_LENGTH_V4))),
            None => None,
        };
        let gateway = Args::v4(&args.gateway).map(IpAddr::V4).or(template.gateway);
        let gateway = gateway.or(is_local.then_some(LOCAL_GATEWAY_V4.into()));
        let is_chosen = chosen.is_some();
        Ok(Self::of(args, false, guest, gateway, is_chosen, is_local, template))
    }

    fn v6(args: &Args, template: Option<Template>) -> Self {
        let is_local = template.is_none();
        let template = template.unwrap_or_default();
        let chosen = Args::v6(&args.address).map(IpAddr::V6);
        let guest = chosen.map(|address| (address, LENGTH_V6)).or(template.address);
        let gateway = Args::v6(&args.gateway).map(IpAddr::V6).or(template.gateway);
        let gateway = gateway.or(is_local.then_some(LOCAL_GATEWAY_V6.into()));
        Self::of(args, true, guest, gateway, chosen.is_some(), is_local, template)
    }

    fn of(
        args: &Args,
        is_v6: bool,
        guest: Option<(IpAddr, u8)>,
        gateway: Option<IpAddr>,
        is_chosen: bool,
        is_local: bool,
        template: Template,
    ) -> Self {
        let of_family =
            |list: &[IpAddr]| list.iter().rev().find(|address| address.is_ipv6() == is_v6).copied();
        let has_gateway_option = of_family(&args.gateway).is_some();
        let resolver = of_family(&args.dns_forward);
        let resolver = resolver.map(|address| (address, of_family(&args.dns_host)));
        let mapped_by_default = if args.no_map_gw { None } else { gateway };
        let addresses =
            (!is_chosen && !is_local && !args.no_copy_addrs).then_some(template.addresses);
        let copies_routes = !has_gateway_option && !is_local && !args.no_copy_routes;
        let mut routes = template.routes.filter(|_| copies_routes);
        if let Some(routes) = &mut routes {
            let copied = addresses.iter().flatten().filter_map(host::local);
            let own: Vec<_> = copied.chain(guest).map(|(address, _)| address).collect();
            host::forget_other_sources(routes, &own);
        }
        Self {
            guest,
            gateway,
            host: mapped(&args.map_host_loopback, is_v6).unwrap_or(mapped_by_default),
            host_address: mapped(&args.map_guest_addr, is_v6).flatten(),
            resolver,
            addresses,
            routes,
        }
    }

    /// The gateway's address of its link, of IPv6.
    fn link_local(&self) -> Ipv6Addr {
        match self.gateway {
            Some(IpAddr::V6(gateway)) if gateway.is_unicast_link_local() => gateway,
            _ => LOCAL_GATEWAY_V6,
        }
    }

    /// Whether the gateway is in the network of the namespace.
    pub(super) fn is_gateway_on_link(&self) -> bool {
        match (self.guest, self.gateway) {
            (Some((guest, length)), Some(gateway)) => {
                IpNet::new(guest, length).is_ok_and(|network| network.contains(&gateway))
            }
            _ => false,
        }
    }
}

/// What an option says of a family: `None` if it says nothing, `Some(None)` for no address.
fn mapped(option: &[OrNone], is_v6: bool) -> Option<Option<IpAddr>> {
    option.iter().rev().find_map(|value| match *value {
        OrNone::None => Some(None),
        OrNone::Address(address) => (address.is_ipv6() == is_v6).then_some(Some(address)),
    })
}

/// Prefix length of an address that the host does not have (RFC 791 section 3.2).
fn length_of_class(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.octets()[0] < 128 => 8,
        IpAddr::V4(v4) if v4.octets()[0] < 192 => 16,
        IpAddr::V4(v4) if v4.octets()[0] < 224 => 24,
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => LENGTH_V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn args(line: &str) -> Args {
        let words = std::iter::once("pasta").chain(line.split_whitespace());
        Args::try_parse_from(words).expect(line)
    }

    /// What the one interface of a host has of IPv4.
    fn v4() -> Option<Template> {
        Some(Template {
            interface: "eth0".to_owned(),
            address: Some((ip("192.0.2.10"), 24)),
            gateway: Some(ip("192.0.2.1")),
            ..Template::default()
        })
    }

    /// The network of a line of options, on a host with one interface.
    fn plan(line: &str, v6: Template) -> (Args, Network) {
        let args = args(line);
        let host = Host { v4: v4(), v6: Some(v6), has_v6: true };
        let network = Network::plan(&args, host, &Resolvers::default()).expect(line);
        (args, network)
    }

    /// What an interface has of IPv6 that has its link-local address only.
    fn link_local() -> Template {
        Template { interface: "eth0".to_owned(), ..Template::default() }
    }

    #[test]
    fn a_family_without_addresses_takes_the_options_of_its_own() {
        let line = "--dns-forward 192.0.2.53 --dns-forward fd00::53 --map-guest-addr fd00::9 \
                    --map-host-loopback fd00::8 --map-host-loopback 192.0.2.8";
        let (_, network) = plan(line, link_local());
        let (v4, v6) = (network.v4.as_ref().expect("IPv4"), network.v6.as_ref().expect("IPv6"));
        assert_eq!(v4.resolver, Some((ip("192.0.2.53"), None)));
        assert_eq!(v6.resolver, Some((ip("fd00::53"), None)));
        assert_eq!((v4.host, v6.host), (Some(ip("192.0.2.8")), Some(ip("fd00::8"))));
        assert_eq!((v4.host_address, v6.host_address), (None, Some(ip("fd00::9"))));
        assert_eq!(network.resolvers, [ip("192.0.2.53"), ip("fd00::53")]);
    }

    #[test]
    fn the_host_is_seen_by_the_address_that_it_is_reached_by() {
        for (line, seen) in [
            ("", "192.0.2.1"),
            ("--no-map-gw", "192.0.2.1"),
            ("--map-host-loopback 192.0.2.8 --map-guest-addr 169.254.1.2", "192.0.2.8"),
            // What Podman says.
            ("--no-map-gw --map-guest-addr 169.254.1.2", "169.254.1.2"),
        ] {
            let network = plan(line, link_local()).1;
            assert_eq!(network.stand_in(ip("192.0.2.10")), ip(seen), "{line}");
        }
    }

    #[test]
    fn the_loopback_of_the_host_is_in_reach_where_an_address_stands_for_it() {
        let own = ["127.0.0.1", "::1", "64:ff9b::7f00:1", "::ffff:127.0.0.1"];
        let never = ["127.0.0.53", "0.0.0.0", "0.1.2.3", "::", "64:ff9b::7f00:35"];
        let others = ["169.254.169.254", "192.0.2.10", "2001:db8::1"];
        let both = "--map-host-loopback 192.0.2.8 --map-host-loopback fd00::8";
        for (line, is_mapped) in [
            ("--no-map-gw", [false; 4]),
            ("--map-host-loopback none", [false; 4]),
            // The interface has no router of IPv6.
            ("", [true, false, true, true]),
            (both, [true; 4]),
            ("--no-map-gw --map-host-loopback fd00::8", [false, true, false, false]),
            ("--no-map-gw --map-guest-addr 169.254.1.2 --dns-forward 169.254.1.1", [false; 4]),
        ] {
            let policy = plan(line, link_local()).1.policy();
            let expected = own.into_iter().zip(is_mapped);
            let expected = expected.chain(never.map(|address| (address, false)));
            for (address, may) in expected.chain(others.map(|address| (address, true))) {
                assert_eq!(policy.allows(ip(address)), may, "{line}: {address}");
            }
        }
    }

    #[test]
    fn beside_an_upstream_nothing_of_the_host_is_in_reach_but_the_resolver_of_the_gateway() {
        let options = "--upstream wireguard:x --map-guest-addr 169.254.1.2";
        let line = format!("{options} --allow 10.0.0.0/8");
        let args = args(&line);
        let host = Host { v4: v4(), v6: Some(link_local()), has_v6: true };
        let own = Resolvers { servers: vec![ip("127.0.0.53")], domains: vec!["host.test".into()] };
        let mut network = Network::plan(&args, host, &own).expect("a network");
        let policy = network.policy();
        for own in ["127.0.0.1", "::1", "64:ff9b::7f00:1", "192.0.2.10"] {
            assert!(!policy.allows(ip(own)), "{own}");
        }
        for other in ["192.0.2.11", "203.0.113.7", "2001:db8::1"] {
            assert!(policy.allows(ip(other)), "{other}");
        }
        assert_eq!(network.resolvers, [ip("192.0.2.1")]);
        let resolver = Translation::resolver("192.0.2.1:53".parse().expect("an address"));
        assert_eq!(network.translations().first(), Some(&resolver));
        network.search_in(&["tunnel.test".to_owned()], &args);
        assert_eq!(network.domains, ["tunnel.test"]);
    }

    #[test]
    fn a_kernel_without_a_family_has_no_network_of_it() {
        let host = || Host { v4: v4(), v6: None, has_v6: false };
        let own = Resolvers::default();
        let network = Network::plan(&args("--config-net"), host(), &own).expect("IPv4");
        assert!(network.v4.is_some() && network.v6.is_none());
        assert!(!network.policy().allows(ip("2001:db8::1")));
        let told = Network::plan(&args("-6"), host(), &own).expect_err("there is no family left");
        assert!(told.contains("--ipv6-only"), "{told}");
    }

    #[test]
    fn search_domains_add_up_until_there_are_to_be_none() {
        for (options, domains) in [
            ("-S a.example -S b.example", &["a.example", "b.example"][..]),
            ("-S a.example -S none", &[]),
            ("-S none -S b.example", &["b.example"]),
            ("-S a.example -S none --search b.example", &["b.example"]),
        ] {
            assert_eq!(plan(options, link_local()).1.domains, domains, "{options}");
        }
    }
}
