//! Questions to the kernel about the addresses and routes of a network namespace, and changes of
//! them (rtnetlink(7)). The namespace is that of the calling thread.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;

/// Asks for everything of a kind, and hands each answer to `take`.
///
/// # Errors
/// What the kernel answers; `InvalidData` for what cannot be read.
pub(super) fn dump(
    what: RouteNetlinkMessage,
    mut take: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
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
                NetlinkPayload::InnerMessage(inner) => take(inner),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
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
