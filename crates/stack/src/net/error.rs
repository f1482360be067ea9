//! Why the network of a host could not be changed as asked.

use super::address::{Address, InterfaceId, Prefix};
use core::net::IpAddr;
use thiserror::Error;

pub use super::address::AddressFault;

/// Why interfaces, addresses, routes or neighbours could not be changed as asked. Nothing has
/// changed then.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NetError {
    /// There is no such interface: it was removed, or it is one of another stack.
    #[error("there is no {0}: it was removed, or is of another stack")]
    NoInterface(InterfaceId),
    /// The address cannot be that of a host.
    #[error(
        "address {address}: {fault}; give that of a host with its prefix length, for instance \
         10.9.0.2/24"
    )]
    Address {
        /// The address that was given.
        address: Address,
        /// The reason why no host can have it.
        fault: AddressFault,
    },
    /// An address is twice among those of one interface.
    #[error("address {address}: it was given twice; leave one out")]
    AddressRepeated {
        /// The second one.
        address: Address,
    },
    /// The kernel of the machine has the address.
    #[error(
        "address {address}: the kernel has it on {owner} and would answer for it; give the stack \
         another one, or take it from the kernel (ip address del {address} dev {owner})"
    )]
    AddressTaken {
        /// What was given.
        address: Address,
        /// Name of the kernel's interface.
        owner: String,
    },
    /// The interface has the address already.
    #[error("address {address}: {interface} has it already")]
    AddressExists {
        /// The address that was given.
        address: IpAddr,
        /// The interface that has it.
        interface: InterfaceId,
    },
    /// The interface does not have the address.
    #[error("address {address}: {interface} does not have it")]
    NoAddress {
        /// The address that was given.
        address: IpAddr,
        /// The interface that was named.
        interface: InterfaceId,
    },
    /// A route of this prefix and metric is there.
    #[error(
        "route {prefix} metric {metric}: it exists already; replace it, or give another metric"
    )]
    RouteExists {
        /// The network that it leads to.
        prefix: Prefix,
        /// The metric that it has.
        metric: u32,
    },
    /// No such route is there.
    #[error("route {prefix}: there is none through {interface} with that metric")]
    NoRoute {
        /// The prefix of the route that was given.
        prefix: Prefix,
        /// The interface that was named.
        interface: InterfaceId,
    },
    /// No route without a gateway leads to the gateway through the interface.
    #[error(
        "gateway {gateway}: it is in none of the networks of {interface}; add an address of its \
         network, or a route to it, first"
    )]
    GatewayUnreachable {
        /// The router that was given.
        gateway: IpAddr,
        /// The interface of the route.
        interface: InterfaceId,
    },
    /// The gateway is this host itself.
    #[error("gateway {gateway}: it is an own address; give that of the router")]
    GatewayIsOwn {
        /// The router that was given.
        gateway: IpAddr,
    },
    /// IPv4 and IPv6 are mixed.
    #[error("{argument} {address}: it is not of the address family of {prefix}")]
    Family {
        /// The part of the route that is wrong: `gateway` or `pref_src`.
        argument: &'static str,
        /// Its value.
        address: IpAddr,
        /// The network that the route leads to.
        prefix: Prefix,
    },
    /// The preferred source is no own address.
    #[error("pref_src {address}: it is no address of this host; add it to an interface first")]
    NotOwn {
        /// The address that was given.
        address: IpAddr,
    },
    /// The MTU does not fit the interface.
    #[error(
        "mtu {mtu}: {interface} takes {least} to {most} bytes; its device sets the upper bound, and \
         an IPv6 address needs 1280"
    )]
    Mtu {
        /// The MTU that was given, in bytes.
        mtu: u16,
        /// The least MTU of the interface, in bytes.
        least: u16,
        /// The largest MTU of the interface, in bytes.
        most: u16,
        /// The interface that was named.
        interface: InterfaceId,
    },
    /// The router advertisement cannot be sent.
    #[error("router advertisement: {problem}")]
    RouterAdvertisement {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A router needs a link-local address, from which it advertises itself.
    #[error(
        "{0} has no link-local address to advertise itself from: add one, for instance fe80::1/64"
    )]
    NoLinkLocal(InterfaceId),
    /// The link has no link addresses.
    #[error("{0} has no neighbours: its packets have no link header")]
    NoNeighbors(InterfaceId),
    /// No entry can make room.
    #[error("the neighbour table of {0} is full of entries in use: remove some first")]
    NeighborTableFull(InterfaceId),
    /// The neighbour is not known.
    #[error("neighbour {address}: {interface} does not know it")]
    NoNeighbor {
        /// The address that was given.
        address: IpAddr,
        /// The interface that was named.
        interface: InterfaceId,
    },
}

neap_tcp::debug_as_display!(NetError);
