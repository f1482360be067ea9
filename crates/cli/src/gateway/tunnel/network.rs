//! The addresses and routes of a tunnel's interface: routes lead to what peers may have, so that
//! all else is unreachable at once.

use neap::net::{Address, InterfaceId, NetError, Prefix, Route, RouteEntry};
use neap::{InterfaceConfig, Stack};
use neap_wireguard::file::File;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

/// What a file says of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    addresses: BTreeSet<IpAddr>,
    /// Destinations with the lengths of their prefixes.
    routes: BTreeSet<(IpAddr, u8)>,
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
        Self { addresses, routes }
    }

    /// Gives an interface its addresses and routes.
    pub(super) fn configure(&self, mut interface: InterfaceConfig) -> InterfaceConfig {
        for &ip in &self.addresses {
            interface = interface.address(address(ip));
        }
        let routes = self.routes.iter().filter_map(|&(ip, len)| Prefix::new(ip, len).ok());
        routes.fold(interface, InterfaceConfig::on_link)
    }

    /// Changes the interface of a running stack to what `new` says, and takes what was done: the
    /// rest is tried again with the next change.
    ///
    /// Returns lines about what is refused.
    pub(super) fn change(&mut self, new: &Self, stack: &Stack) -> Vec<String> {
        let interfaces = stack.host().interfaces();
        let Some(interface) = interfaces.first().map(|interface| interface.id) else {
            // The device is gone, and nothing passes any more.
            *self = new.clone();
            return Vec::new();
        };
        let mut failures = Vec::new();
        let mut is_done = |what: &dyn Display, failed: Option<NetError>| {
            failures.extend(failed.as_ref().map(|error| format!("{what}: {error}")));
            failed.is_none()
        };
        for &ip in new.addresses.difference(&self.addresses.clone()) {
            if is_done(&ip, stack.add_address(interface, address(ip)).err()) {
                self.addresses.insert(ip);
            }
        }
        for &ip in self.addresses.clone().difference(&new.addresses) {
            if is_done(&ip, stack.remove_address(interface, ip).err()) {
                self.addresses.remove(&ip);
            }
        }
        for &route in self.routes.clone().difference(&new.routes) {
            if let Ok(prefix) = Prefix::new(route.0, route.1) {
                // It may have gone with an address.
                let _ = stack.remove_route(prefix, interface, None);
            }
            self.routes.remove(&route);
        }
        for &(ip, len) in new.routes.difference(&self.routes.clone()) {
            let replaced = stack.replace_route(entry((ip, len), interface));
            if is_done(&format_args!("{ip}/{len}"), replaced.err()) {
                self.routes.insert((ip, len));
            }
        }
        failures
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
