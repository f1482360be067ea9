//! The network that a sandbox sees. The addresses are those of slirp4netns, which programs and
//! people know.

use neap::net::Address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Name of the interface in the sandbox.
pub(super) const INTERFACE: &str = "tap0";

/// Address of the sandbox.
pub(super) const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
pub(super) const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);
/// Addresses of the gateway.
pub(super) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(super) const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// Address at which the gateway answers for the resolver of the host.
pub(super) const DNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3)), 53);

const V4_LENGTH: u8 = 24;
const V6_LENGTH: u8 = 64;

/// Own addresses of the gateway's stack, with their prefixes.
pub(super) fn gateway_addresses() -> Vec<Address> {
    let text = [
        format!("{GATEWAY_V4}/{V4_LENGTH}"),
        format!("{}/{V4_LENGTH}", DNS.ip()),
        format!("{GATEWAY_V6}/{V6_LENGTH}"),
    ];
    text.iter().map(|text| text.parse().expect("an address with its prefix length")).collect()
}

/// Addresses of the sandbox, with their prefix lengths.
pub(super) fn guest_addresses() -> Vec<(IpAddr, u8)> {
    vec![(GUEST_V4.into(), V4_LENGTH), (GUEST_V6.into(), V6_LENGTH)]
}
