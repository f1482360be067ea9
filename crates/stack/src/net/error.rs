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
    /// The interface never was, or was removed.
    #[error("there is no {0}: it was removed, or is of another stack")]
    NoInterface(InterfaceId),
    /// The address cannot be that of a host.
    #[error(
        "address {address}: {fault}; give that of a host with its prefix length, for instance \
         10.9.0.2/24"
    )]
    Address {
        /// What was given.
        address: Address,
        /// What is wrong with it.
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
        /// What was given.
        address: IpAddr,
        /// Who has it.
        interface: InterfaceId,
    },
    /// The interface does not have the address.
    #[error("address {address}: {interface} does not have it")]
    NoAddress {
        /// What was given.
        address: IpAddr,
        /// Who should have it.
        interface: InterfaceId,
    },
    /// A route of this prefix and metric is there.
    #[error(
        "route {prefix} metric {metric}: it exists already; replace it, or give another metric"
    )]
    RouteExists {
        /// Where it leads.
        prefix: Prefix,
        /// Its metric.
        metric: u32,
    },
    /// No such route is there.
    #[error("route {prefix}: there is none through {interface} with that metric")]
    NoRoute {
        /// What was given.
        prefix: Prefix,
        /// Through which it should lead.
        interface: InterfaceId,
    },
    /// No route without a gateway leads to the gateway through the interface.
    #[error(
        "gateway {gateway}: it is in none of the networks of {interface}; add an address of its \
         network, or a route to it, first"
    )]
    GatewayUnreachable {
        /// What was given.
        gateway: IpAddr,
        /// Through which it should be reached.
        interface: InterfaceId,
    },
    /// The gateway is this host itself.
    #[error("gateway {gateway}: it is an own address; give that of the router")]
    GatewayIsOwn {
        /// What was given.
        gateway: IpAddr,
    },
    /// IPv4 and IPv6 are mixed.
    #[error("{argument} {address}: it is not of the address family of {prefix}")]
    Family {
        /// Which part of the route.
        argument: &'static str,
        /// Its value.
        address: IpAddr,
        /// Where the route leads.
        prefix: Prefix,
    },
    /// The preferred source is no own address.
    #[error("pref_src {address}: it is no address of this host; add it to an interface first")]
    NotOwn {
        /// What was given.
        address: IpAddr,
    },
    /// The MTU does not fit the interface.
    #[error(
        "mtu {mtu}: {interface} takes {least} to {most} bytes; its device sets the upper bound, and \
         an IPv6 address needs 1280"
    )]
    Mtu {
        /// What was given.
        mtu: u16,
        /// The least that it may be.
        least: u16,
        /// The most that it may be.
        most: u16,
        /// Which interface.
        interface: InterfaceId,
    },
    /// The link has no link addresses.
    #[error("{0} has no neighbours: its packets have no link header")]
    NoNeighbors(InterfaceId),
    /// No entry can make room.
    #[error("the neighbour table of {0} is full of entries in use: remove some first")]
    NeighborTableFull(InterfaceId),
    /// The neighbour is not known.
    #[error("neighbour {address}: {interface} does not know it")]
    NoNeighbor {
        /// What was given.
        address: IpAddr,
        /// Whose neighbour it should be.
        interface: InterfaceId,
    },
}

neap_tcp::debug_as_display!(NetError);
