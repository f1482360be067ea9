//! What the host's kernel says of datagrams that it could not deliver: the error queue of a socket
//! (`IP_RECVERR`, `IPV6_RECVERR`), and what a guest is told of it.

use bytes::Bytes;
use neap::{IcmpErrorKind, IcmpMessage, IcmpSocket};
use nix::errno::Errno;
use nix::libc::{SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, sock_extended_err};
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use rustix::net::sockopt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

/// A datagram that was not delivered.
#[derive(Debug)]
pub struct Undelivered {
    /// Where it was sent to.
    pub to: SocketAddr,
    /// Its beginning, as far as it was quoted.
    pub data: Bytes,
    /// What an ICMP error of the family of `to` says.
    pub kind: IcmpErrorKind,
    /// Who said so; `None` if it is the host itself.
    pub offender: Option<IpAddr>,
}

/// Asks for the error queue of a socket.
pub(crate) fn ask(socket: &impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        setsockopt(socket, Ipv6RecvErr, &true)?;
    } else {
        setsockopt(socket, Ipv4RecvErr, &true)?;
    }
    Ok(())
}

/// The next record of the error queue, by way of `buffer`. Errors of which a guest is not to be
/// told are passed over.
pub(crate) fn take(socket: &impl AsFd, buffer: &mut [u8]) -> Option<Undelivered> {
    loop {
        let mut control = nix::cmsg_space!([u8; 256]);
        let parts = &mut [IoSliceMut::new(buffer)];
        let (descriptor, flags) = (socket.as_fd().as_raw_fd(), MsgFlags::MSG_ERRQUEUE);
        let received =
            recvmsg::<SockaddrStorage>(descriptor, parts, Some(&mut control), flags).ok()?;
        let count = received.bytes;
        let to = received.address.and_then(socket_addr);
        let said = received.cmsgs().ok()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4RecvErr(error, from) => {
                let from = from.map(|from| Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr)));
                Some((kind(&error)?, from.map(IpAddr::V4)))
            }
            ControlMessageOwned::Ipv6RecvErr(error, from) => {
                let from = from.map(|from| Ipv6Addr::from(from.sin6_addr.s6_addr));
                Some((kind(&error)?, from.map(IpAddr::V6)))
            }
            _ => None,
        });
        if let (Some(to), Some((kind, offender))) = (to, said) {
            let offender = offender.filter(|address| !address.is_unspecified());
            let data = Bytes::copy_from_slice(&buffer[..count]);
            return Some(Undelivered { to, data, kind, offender });
        }
    }
}

/// The message that a record came of.
fn kind(error: &sock_extended_err) -> Option<IcmpErrorKind> {
    /// Types of messages: RFC 792, RFC 4443.
    const UNREACHABLE: u8 = 3;
    const TIME_EXCEEDED: u8 = 11;
    const UNREACHABLE_V6: u8 = 1;
    const TIME_EXCEEDED_V6: u8 = 3;
    if i32::try_from(error.ee_errno) == Ok(Errno::EMSGSIZE as i32) {
        return Some(IcmpErrorKind::PacketTooBig { mtu: error.ee_info });
    }
    let code = error.ee_code;
    match (error.ee_origin, error.ee_type) {
        (SO_EE_ORIGIN_ICMP, UNREACHABLE) | (SO_EE_ORIGIN_ICMP6, UNREACHABLE_V6) => {
            Some(IcmpErrorKind::Unreachable { code })
        }
        (SO_EE_ORIGIN_ICMP, TIME_EXCEEDED) | (SO_EE_ORIGIN_ICMP6, TIME_EXCEEDED_V6)
            if code == 0 =>
        {
            Some(IcmpErrorKind::TimeExceeded)
        }
        _ => None,
    }
}

/// Tells a guest of an error about its `packet`, which it has sent to `seen`. Whether it was told.
///
/// The rate is not limited: whoever made the error has limits of his own, and a guest with a
/// `traceroute` gets errors of many hops at once.
pub(crate) fn pass_on(
    socket: &IcmpSocket,
    packet: &Bytes,
    seen: IpAddr,
    error: &Undelivered,
) -> bool {
    let Undelivered { to, kind, offender, .. } = error;
    let unspecified: IpAddr =
        if seen.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = match *offender {
        Some(offender) if offender == to.ip() => seen,
        Some(offender) if offender.is_ipv4() == seen.is_ipv4() && !offender.is_loopback() => {
            offender
        }
        _ => unspecified,
    };
    let kind = translated(*kind, to.is_ipv6(), seen.is_ipv6());
    let message = IcmpMessage::of_error(from, packet, kind);
    message.is_some_and(|message| socket.send(&message).is_ok())
}

/// An error in the words of the other family (RFC 7915 sections 4.2 and 5.2).
fn translated(kind: IcmpErrorKind, is_v6: bool, to_v6: bool) -> IcmpErrorKind {
    /// Bytes by which the header of IPv6 is longer.
    const LONGER: u32 = 20;
    match (kind, is_v6, to_v6) {
        (IcmpErrorKind::Unreachable { code }, false, true) => IcmpErrorKind::Unreachable {
            code: match code {
                3 => 4,
                9 | 10 | 13 | 15 => 1,
                _ => 0,
            },
        },
        (IcmpErrorKind::Unreachable { code }, true, false) => IcmpErrorKind::Unreachable {
            code: match code {
                1 => 10,
                4 => 3,
                _ => 1,
            },
        },
        (IcmpErrorKind::PacketTooBig { mtu }, false, true) => {
            IcmpErrorKind::PacketTooBig { mtu: mtu + LONGER }
        }
        (IcmpErrorKind::PacketTooBig { mtu }, true, false) => {
            IcmpErrorKind::PacketTooBig { mtu: mtu.saturating_sub(LONGER) }
        }
        _ => kind,
    }
}

/// Asks for the TOS bytes of the packets that come to a socket (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
pub(crate) fn ask_tos(socket: &impl AsFd, is_v6: bool) -> io::Result<()> {
    if is_v6 {
        sockopt::set_ipv6_recvtclass(socket, true)?;
    }
    // A socket of IPv6 may get datagrams of IPv4, too.
    sockopt::set_ip_recvtos(socket, true)?;
    Ok(())
}

/// The TOS byte or traffic class, if a control message says it.
pub(crate) fn tos_of(message: &ControlMessageOwned) -> Option<u8> {
    match *message {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        ControlMessageOwned::Ipv6TClass(class) => u8::try_from(class).ok(),
        _ => None,
    }
}

/// How a packet leaves: with a hop less than it came with, and with the TOS that it came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// TTL of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// It may not be cut into fragments.
    pub dont_fragment: bool,
    /// TOS byte or traffic class, with the ECN codepoint in the low two bits.
    pub tos: u8,
}

impl Manner {
    /// That of packets of which nothing is asked.
    pub(crate) const PLAIN: Self = Self { hop_limit: 64, dont_fragment: false, tos: 0 };

    /// That of a packet that came in with this hop limit, which is at least 2: the stack answers
    /// for those whose hops are used up.
    pub(crate) fn of(hop_limit: u8, dont_fragment: bool, tos: u8) -> Self {
        Self { hop_limit: hop_limit.saturating_sub(1).max(1), dont_fragment, tos }
    }

    /// Gives a socket this manner, if it has another one. A guest's socket rarely changes it, so
    /// this costs less than a control message of each datagram.
    ///
    /// Cost: a system call for each part that is another one.
    pub(crate) fn apply(
        self,
        to: &mut Option<Self>,
        socket: &impl AsFd,
        families: Families,
    ) -> io::Result<()> {
        if *to == Some(self) {
            return Ok(());
        }
        // What a call that fails leaves is not known.
        let former = to.take();
        for part in self.other_than(former) {
            part.set(socket, families)?;
        }
        *to = Some(self);
        Ok(())
    }

    /// The parts in which it differs from the former one.
    fn other_than(self, former: Option<Self>) -> impl Iterator<Item = Part> {
        let former = former.map(Self::parts);
        let own = self.parts().into_iter();
        own.filter(move |part| former.is_none_or(|former| !former.contains(part)))
    }

    fn parts(self) -> [Part; 3] {
        let Self { hop_limit, dont_fragment, tos } = self;
        [Part::HopLimit(hop_limit), Part::DontFragment(dont_fragment), Part::Tos(tos)]
    }
}

/// The families of the datagrams that a socket sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    V4,
    V6,
    /// Those of IPv4 have addresses in the form that IPv6 has for them.
    Both,
}

impl Families {
    /// Whether the addresses of the socket are of IPv6.
    pub(crate) fn is_v6(self) -> bool {
        self != Self::V4
    }
}

/// A part of a [`Manner`], which is an option of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    HopLimit(u8),
    DontFragment(bool),
    Tos(u8),
}

impl Part {
    fn set(self, socket: &impl AsFd, families: Families) -> io::Result<()> {
        use sockopt::{Ipv4PathMtuDiscovery as V4, Ipv6PathMtuDiscovery as V6};
        match (self, families.is_v6()) {
            (Self::HopLimit(hops), true) => sockopt::set_ipv6_unicast_hops(socket, Some(hops))?,
            (Self::HopLimit(hops), false) => sockopt::set_ip_ttl(socket, hops.into())?,
            (Self::DontFragment(whole), true) => {
                sockopt::set_ipv6_mtu_discover(socket, if whole { V6::DO } else { V6::WANT })?;
            }
            (Self::DontFragment(whole), false) => {
                sockopt::set_ip_mtu_discover(socket, if whole { V4::DO } else { V4::WANT })?;
            }
            (Self::Tos(tos), _) => {
                if families.is_v6() {
                    sockopt::set_ipv6_tclass(socket, tos.into())?;
                }
                if families != Families::V6 {
                    sockopt::set_ip_tos(socket, tos)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn socket_addr(address: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_the_words_of_the_guests_family() {
        let unreachable = |code| IcmpErrorKind::Unreachable { code };
        let too_big = |mtu| IcmpErrorKind::PacketTooBig { mtu };
        for (v4, v6) in [
            (unreachable(3), unreachable(4)),
            (unreachable(10), unreachable(1)),
            (too_big(1480), too_big(1500)),
            (IcmpErrorKind::TimeExceeded, IcmpErrorKind::TimeExceeded),
        ] {
            assert_eq!((translated(v4, false, true), translated(v6, true, false)), (v6, v4));
            assert_eq!((translated(v4, false, false), translated(v6, true, true)), (v4, v6));
        }
        assert_eq!(translated(unreachable(0), false, true), unreachable(0));
        assert_eq!(translated(unreachable(3), true, false), unreachable(1));
    }

    #[test]
    fn only_the_parts_of_a_manner_that_are_others_are_set() {
        let manner = Manner { hop_limit: 63, dont_fragment: true, tos: 2 };
        let parts = |former| manner.other_than(former).collect::<Vec<_>>();
        assert_eq!(parts(None), [Part::HopLimit(63), Part::DontFragment(true), Part::Tos(2)]);
        assert_eq!(parts(Some(Manner { tos: 3, ..manner })), [Part::Tos(2)]);
        assert_eq!(parts(Some(Manner { hop_limit: 1, ..manner })), [Part::HopLimit(63)]);
        assert_eq!(parts(Some(manner)), []);
    }

    #[test]
    fn a_packet_has_a_hop_less_outside() {
        let manner = Manner { hop_limit: 63, dont_fragment: true, tos: 2 };
        assert_eq!(Manner::of(64, true, 2), manner);
        assert_eq!(Manner::of(0, false, 0).hop_limit, 1);
    }
}
