//! The addresses and routes of a tunnel's interface: routes lead to what peers may have, so that
//! all else is unreachable at once.

use neap::net::{Address, InterfaceId, NetError, Prefix, Route, RouteEntry};
use neap::{InterfaceConfig, Stack};
use neap_wireguard::DEFAULT_MTU;
use neap_wireguard::file::File;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What a file says of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    addresses: BTreeSet<IpAddr>,
    /// Destinations with the lengths of their prefixes.
    routes: BTreeSet<(IpAddr, u8)>,
    mtu: Option<u16>,
}

impl Network {
    pub(super) fn of(file: &File) -> Self {
        let addresses: BTreeSet<_> =
            file.interface.addresses.iter().map(ipnet::IpNet::addr).collect();
        let allowed = file.peers.iter().flat_map(|peer| &peer.allowed_ips);
        let routes = allowed.map(|prefix| (prefix.network(), prefix.prefix_len()));
        // Only this host has its own addresses.
        let is_own = |(ip, len): &(IpAddr, u8)| *len == host_len(ip) && addresses.contains(ip);
        let routes = routes.filter(|route| !is_own(route)).collect();
        Self { addresses, routes, mtu: file.interface.mtu }
    }

    /// Gives an interface its addresses and routes.
    pub(super) fn configure(&self, mut interface: InterfaceConfig) -> InterfaceConfig {
        for &ip in &self.addresses {
            interface = interface.address(address(ip));
        }
        let routes = self.routes.iter().filter_map(|&(ip, len)| Prefix::new(ip, len).ok());
        routes.fold(interface, InterfaceConfig::on_link)
    }

    /// Changes the interface of a running stack from `self` to what `new` says.
    ///
    /// # Errors
    /// An address or the MTU is refused.
    pub(super) fn change(&self, new: &Self, stack: &Stack) -> Result<(), NetError> {
        let interfaces = stack.host().interfaces();
        let Some(interface) = interfaces.first().map(|interface| interface.id) else {
            // The device is gone, and nothing passes any more.
            return Ok(());
        };
        for &ip in new.addresses.difference(&self.addresses) {
            stack.add_address(interface, address(ip))?;
        }
        for &ip in self.addresses.difference(&new.addresses) {
            stack.remove_address(interface, ip)?;
        }
        for &route in self.routes.difference(&new.routes) {
            if let Ok(prefix) = Prefix::new(route.0, route.1) {
                // It may have gone with an address.
                let _ = stack.remove_route(prefix, interface, None);
            }
        }
        for &route in new.routes.difference(&self.routes) {
            stack.replace_route(entry(route, interface))?;
        }
        if self.mtu != new.mtu {
            stack.set_mtu(interface, new.mtu.unwrap_or(DEFAULT_MTU))?;
        }
        Ok(())
    }
}

/// Bits of an address.
fn host_len(ip: &IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// An address alone. Its network is behind the peers that may have it.
fn address(ip: IpAddr) -> Address {
    Address { ip, prefix: Prefix::of_host(ip) }
}

fn entry((ip, len): (IpAddr, u8), interface: InterfaceId) -> RouteEntry {
    let route = Route { interface, gateway: None, mtu: None, pref_src: None };
    let prefix = Prefix::new(ip, len).unwrap_or(Prefix::of_host(ip));
    RouteEntry { prefix, metric: 0, route }
}
