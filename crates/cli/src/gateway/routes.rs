//! The default route of a sandbox, and the Ethernet address of an interface.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::IpAddr;

/// Sends all packets of the family of `gateway` through `gateway` behind an interface.
///
/// # Errors
/// What the kernel answers, and those of a netlink socket.
pub(super) fn set_default(gateway: IpAddr, interface: u32) -> io::Result<()> {
    let (family, address) = match gateway {
        IpAddr::V4(v4) => (AddressFamily::Inet, RouteAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, RouteAddress::Inet6(v6)),
    };
    let mut route = RouteMessage::default();
    route.header.address_family = family;
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Boot;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.attributes.push(RouteAttribute::Gateway(address));
    route.attributes.push(RouteAttribute::Oif(interface));
    request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_EXCL)
}

/// Gives an interface its Ethernet address.
///
/// # Errors
/// What the kernel answers, and those of a netlink socket.
pub(super) fn set_mac(interface: &str, mac: [u8; 6]) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index_of(interface)?;
    link.attributes.push(LinkAttribute::Address(mac.to_vec()));
    request(RouteNetlinkMessage::SetLink(link), 0)
}

/// An Ethernet address as people write it.
pub(crate) fn show_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The index of an interface in the network namespace of this thread.
pub(super) fn index_of(interface: &str) -> io::Result<u32> {
    // Any socket is of the namespace in which it was made.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    Ok(rustix::net::netdevice::name_to_index(socket, interface)?)
}

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    match answer.payload {
        NetlinkPayload::Error(error) => error.code.map_or(Ok(()), |_| Err(error.to_io())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without a result")),
    }
}
