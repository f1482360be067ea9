//! `--outbound-addr` and `--outbound-addr6`: addresses of the host, or interfaces that have some.

use super::Failure;
use crate::gateway::refused;
use neap_gateway::Outbound;
use nix::ifaddrs::getifaddrs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses from which flows leave.
pub(super) fn outbound(v4: Option<&str>, v6: Option<&str>) -> Result<Outbound, Failure> {
    const V4: &str = "--outbound-addr";
    const V6: &str = "--outbound-addr6";
    let v4 = v4.map(|text| v4_of(text).ok_or_else(|| unknown(V4, text, "IPv4"))).transpose()?;
    let v6 = v6.map(|text| v6_of(text).ok_or_else(|| unknown(V6, text, "IPv6"))).transpose()?;
    let named = [v4.map(|v4| (V4, IpAddr::V4(v4))), v6.map(|v6| (V6, IpAddr::V6(v6)))];
    for (option, address) in named.into_iter().flatten() {
        refused::own_address(option, address).map_err(Failure::Arguments)?;
    }
    Ok(Outbound { v4, v6, ..Outbound::default() })
}

fn unknown(option: &str, text: &str, family: &str) -> Failure {
    let expected = format!("expected an {family} address, or an interface that has one");
    Failure::Arguments(format!("{option} {text}: {expected}"))
}

fn v4_of(text: &str) -> Option<Ipv4Addr> {
    text.parse().ok().or_else(|| {
        of_interface(text).into_iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        })
    })
}

fn v6_of(text: &str) -> Option<Ipv6Addr> {
    text.parse().ok().or_else(|| {
        of_interface(text).into_iter().find_map(|address| match address {
            // One of the link reaches nobody without its interface.
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(v6),
            _ => None,
        })
    })
}

/// The addresses of an interface.
fn of_interface(name: &str) -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let addresses = interfaces.filter(|one| one.interface_name == name).filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    addresses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_interfaces_are_understood() {
        assert_eq!(v4_of("lo"), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(v6_of("2001:db8::1"), Some("2001:db8::1".parse().expect("an address")));
        let found = outbound(Some("lo"), None).expect("an address of this host");
        assert_eq!((found.v4, found.v6), (Some(Ipv4Addr::LOCALHOST), None));
        let Err(Failure::Arguments(why)) = outbound(Some("nope0"), None) else {
            panic!("there is no such interface")
        };
        assert!(why.contains("nope0") && why.contains("IPv4 address"), "{why}");
    }
}
