//! Questions to the kernel about the addresses and routes of a network namespace, and changes of
//! them (rtnetlink(7)). The namespace is that of the calling thread.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;

/// Asks for everything of a kind and family, and hands each answer of that family to `take`. A
/// kernel without the family, as with `ipv6.disable=1`, answers with what all others have.
///
/// # Errors
/// What the kernel answers; `InvalidData` for what cannot be read.
pub(super) fn dump(
    what: RouteNetlinkMessage,
    mut take: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
    let family = family_of(&what);
    let socket = send(what, NLM_F_REQUEST | NLM_F_DUMP)?;
    loop {
        let (answer, _) = socket.recv_from_full()?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = deserialize(rest)?;
            let length = message.header.length as usize;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(inner) if family_of(&inner) == family => take(inner),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The family of what a message is about, of the kinds that are asked for.
fn family_of(message: &RouteNetlinkMessage) -> Option<AddressFamily> {
    use RouteNetlinkMessage::{GetAddress, GetRoute, NewAddress, NewRoute};
    match message {
        GetAddress(address) | NewAddress(address) => Some(address.header.family),
        GetRoute(route) | NewRoute(route) => Some(route.header.address_family),
        _ => None,
    }
}

/// Changes something. `flags` say what may be there already.
///
/// # Errors
/// What the kernel answers.
pub(super) fn change(what: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let socket = send(what, NLM_F_REQUEST | NLM_F_ACK | flags)?;
    let (answer, _) = socket.recv_from_full()?;
    match deserialize(&answer)?.payload {
        NetlinkPayload::Error(error) => error.code.map_or(Ok(()), |_| Err(error.to_io())),
        _ => Err(invalid("an answer without a result")),
    }
}

fn send(what: RouteNetlinkMessage, flags: u16) -> io::Result<Socket> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&to_bytes(what, flags), 0)?;
    Ok(socket)
}

fn to_bytes(what: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(what));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn deserialize(bytes: &[u8]) -> io::Result<NetlinkMessage<RouteNetlinkMessage>> {
    NetlinkMessage::deserialize(bytes).map_err(invalid)
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A message for another process.
pub(super) fn pack(message: RouteNetlinkMessage) -> Vec<u8> {
    to_bytes(message, 0)
}

/// A message that was [packed](pack).
///
/// # Errors
/// It is none.
pub(super) fn unpack(bytes: &[u8]) -> io::Result<RouteNetlinkMessage> {
    match deserialize(bytes)?.payload {
        NetlinkPayload::InnerMessage(inner) => Ok(inner),
        _ => Err(invalid("no message about a network")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::address::AddressMessage;
    use netlink_packet_route::route::RouteMessage;

    /// One that no kernel has addresses and routes of (`AF_X25`).
    const NOBODYS: AddressFamily = AddressFamily::Other(9);

    #[test]
    fn a_family_that_the_kernel_does_not_have_has_nothing() {
        let (mut addresses, mut routes) = (AddressMessage::default(), RouteMessage::default());
        (addresses.header.family, routes.header.address_family) = (NOBODYS, NOBODYS);
        for what in
            [RouteNetlinkMessage::GetAddress(addresses), RouteNetlinkMessage::GetRoute(routes)]
        {
            // The answer may be an error, too.
            let _ = dump(what, |message| panic!("{message:?}"));
        }
    }
}
