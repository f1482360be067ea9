//! The addresses and routes of a tunnel's interface: routes lead to what peers may have, so that
//! all else is unreachable at once.

use neap::net::{Address, InterfaceId, NetError, Prefix, Route, RouteEntry};
use neap::{InterfaceConfig, Stack};
use neap_wireguard::file::File;
use std::collections::{BTreeSet, HashSet};
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
        let gone: Vec<_> = self.addresses.difference(&new.addresses).copied().collect();
        for ip in gone {
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
        // With the last address of a family the stack has given up its routes.
        let there: HashSet<_> = stack.host().routes().iter().map(|entry| entry.prefix).collect();
        self.routes.retain(|&(ip, len)| Prefix::new(ip, len).is_ok_and(|one| there.contains(&one)));
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

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::super::{Prepared, Settings, Tunnel};
    use super::*;

    #[test]
    fn routes_of_a_family_outlive_its_addresses() {
        let tunnel = Prepared::open(file("", ""), &Settings::default()).and_then(Prepared::start);
        let Ok(Tunnel { stack, network: mut current, .. }) = tunnel else { panic!("a tunnel") };
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let routes = BTreeSet::from(["0.0.0.0", "::"].map(|all| (address(all), 0)));
        let of = |addresses: &[&str]| Network {
            addresses: addresses.iter().map(|text| address(text)).collect(),
            routes: routes.clone(),
        };
        let all = routes.iter().map(|route| Prefix::of_all(route.0)).collect::<Vec<_>>();
        for (number, addresses) in
            [&["10.0.0.1", "fd00::1"][..], &["fd00::1"], &["10.0.0.1"], &[], &["10.0.0.1"]]
                .into_iter()
                .enumerate()
        {
            assert_eq!(current.change(&of(addresses), &stack), Vec::<String>::new());
            let there: Vec<_> = stack.host().routes().iter().map(|entry| entry.prefix).collect();
            let has_all = all.iter().all(|prefix| there.contains(prefix));
            assert!(has_all, "{number}: {there:?}");
        }
    }
}
