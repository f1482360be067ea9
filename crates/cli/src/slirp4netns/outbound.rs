//! `--outbound-addr` and `--outbound-addr6`: addresses of the host, or interfaces that have some.

use super::Failure;
use neap_gateway::Outbound;
use nix::ifaddrs::getifaddrs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses from which flows leave.
pub(super) fn outbound(v4: Option<&str>, v6: Option<&str>) -> Result<Outbound, Failure> {
    let v4 = v4.map(|text| v4_of(text).ok_or_else(|| unknown("--outbound-addr", text, "IPv4")));
    let v6 = v6.map(|text| v6_of(text).ok_or_else(|| unknown("--outbound-addr6", text, "IPv6")));
    Ok(Outbound { v4: v4.transpose()?, v6: v6.transpose()?, ..Outbound::default() })
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
        let found = outbound(Some("lo"), Some("2001:db8::1")).expect("addresses");
        assert_eq!(found.v4, Some(Ipv4Addr::LOCALHOST));
        assert_eq!(found.v6, Some("2001:db8::1".parse().expect("an address")));
        let Err(Failure::Arguments(why)) = outbound(Some("nope0"), None) else {
            panic!("there is no such interface")
        };
        assert!(why.contains("nope0") && why.contains("IPv4 address"), "{why}");
    }
}
