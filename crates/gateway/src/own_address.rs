//! The address of the host that a datagram was sent to, so that the answer comes from there: a
//! socket that is bound to none would answer from the one that the route prefers.
//!
//! Cost: one control message in each direction (`IP_PKTINFO`, `IPV6_PKTINFO`).

use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, setsockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

/// An address of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnAddress {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

/// Asks for the addresses that the datagrams of a socket are sent to.
pub(crate) fn ask(socket: &impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        setsockopt(socket, Ipv6RecvPacketInfo, &true)?;
    }
    // A socket of IPv6 may get datagrams of IPv4, too.
    setsockopt(socket, Ipv4PacketInfo, &true)?;
    Ok(())
}

impl OwnAddress {
    /// What a control message adds to what others have said.
    pub(crate) fn of(message: &ControlMessageOwned, known: Option<Self>) -> Option<Self> {
        match message {
            // Of a broadcast datagram, too, this is an address of the interface.
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(Self::v4(info.ipi_spec_dst)),
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                let address = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                // Nobody sends from an address of many, and IPv4 has a message of its own.
                let is_own = !address.is_multicast() && address.to_ipv4_mapped().is_none();
                known.or(is_own.then(|| Self::v6(address, info.ipi6_ifindex)))
            }
            _ => known,
        }
    }

    fn v4(ipi_spec_dst: in_addr) -> Self {
        let ipi_addr = in_addr { s_addr: Ipv4Addr::UNSPECIFIED.into() };
        // The route chooses the interface.
        Self::V4(in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr })
    }

    fn v6(address: Ipv6Addr, interface: u32) -> Self {
        // An address of a link is one of an interface; else the route chooses that.
        let ipi6_ifindex = if address.is_unicast_link_local() { interface } else { 0 };
        let ipi6_addr = in6_addr { s6_addr: address.octets() };
        Self::V6(in6_pktinfo { ipi6_addr, ipi6_ifindex })
    }

    /// The control message by which a datagram leaves from here.
    pub(crate) fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}
