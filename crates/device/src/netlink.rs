//! The rtnetlink requests that give an interface an address, list addresses, and tell what a TUN
//! device is (rtnetlink(7)).

use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTA_DST: u16 = 1;
/// Where `struct rtmsg` has the type, and the type of an address of this host.
const RTM_TYPE: usize = 7;
const RTN_LOCAL: u8 = 2;
/// Time between two looks for a new address.
const REACHABLE_STEP: Duration = Duration::from_millis(1);
/// No duplicate address detection: it would keep the address unusable for a second.
const IFA_F_NODAD: u8 = 0x02;
/// Kinds of attributes have flags in the upper bits.
const NLA_TYPE_MASK: u16 = 0x3fff;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
/// Where `struct rtnl_link_stats64` has `tx_dropped`, its eighth number.
const TX_DROPPED: usize = 56;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_PI: u16 = 4;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;

/// Adds `address/prefix` to the interface with this index, and waits until it can be reached, but
/// no longer than `patience`.
pub(crate) fn add_address(
    index: u32,
    address: IpAddr,
    prefix: u8,
    patience: Duration,
) -> Result<()> {
    let socket = open()?;
    let mut reply = [0u8; 1024];
    let mut ask = |message: &[u8]| {
        send(&socket, message, SendFlags::empty())?;
        let (len, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
        parse(&reply[..len])
    };
    ask(&new_address(index, address, prefix))?;
    // The kernel makes an IPv6 address local in a work queue, some time after it has acknowledged.
    let begin = Instant::now();
    while ask(&get_route(address)) != Ok(Reply::Route(RTN_LOCAL)) && begin.elapsed() < patience {
        std::thread::sleep(REACHABLE_STEP);
    }
    Ok(())
}

/// A socket for requests about the network namespace of this thread.
pub(crate) fn open() -> Result<OwnedFd> {
    // No protocol is protocol 0, NETLINK_ROUTE.
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
}

/// The addresses that the kernel has in the namespace of `socket`, each with the index of its
/// interface.
pub(crate) fn addresses(socket: &OwnedFd) -> Result<Vec<(IpAddr, u32)>> {
    let mut reply = vec![0u8; 32 << 10];
    forget_answers(socket, &mut reply);
    let request = message(RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, &[0; 8]);
    send(socket, &request, SendFlags::empty())?;
    let mut found = Vec::new();
    loop {
        let (len, _) = recv(socket, &mut reply[..], RecvFlags::empty())?;
        let mut rest = &reply[..len];
        while let Some((kind, body, after)) = first(rest) {
            match kind {
                RTM_NEWADDR => found.extend(address_in(body)),
                // All of the answer is read, so that the kernel is done with the socket.
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(Errno::BADMSG),
                _ => {}
            }
            rest = after;
        }
        if !rest.is_empty() {
            return Err(Errno::BADMSG);
        }
    }
}

/// Takes what a request that failed may have left of its answer.
fn forget_answers(socket: &OwnedFd, room: &mut [u8]) {
    while recv(socket, &mut *room, RecvFlags::DONTWAIT).is_ok() {}
}

/// The kind and the body of the first of several messages, and the others.
fn first(messages: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(messages.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(messages.get(4..6)?.try_into().ok()?);
    let body = messages.get(16..len)?;
    Some((kind, body, messages.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes of a message, each with its kind.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// What the kernel tells of the link with this index in the namespace of `socket`: the attributes
/// behind `struct ifinfomsg`.
fn link(socket: &OwnedFd, index: i32) -> Result<Vec<u8>> {
    let mut reply = vec![0u8; 32 << 10];
    forget_answers(socket, &mut reply);
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    send(socket, &message(RTM_GETLINK, NLM_F_REQUEST, &body), SendFlags::empty())?;
    let (len, _) = recv(socket, &mut reply[..], RecvFlags::empty())?;
    let Some((RTM_NEWLINK, body, _)) = first(&reply[..len]) else { return Err(Errno::BADMSG) };
    Ok(body.get(16..).unwrap_or_default().to_vec())
}

/// The value of the first attribute of this kind in a message.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(message).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Whether the packets of the TUN device with this index have packet information in front (no
/// `IFF_NO_PI`). `TUNGETIFF` does not tell: its `IFF_NOFILTER` is the same bit.
pub(crate) fn has_packet_information(index: i32) -> Result<bool> {
    let link = link(&open()?, index)?;
    Ok(tun_attribute(&link, IFLA_TUN_PI) == Some(&[1]))
}

/// Number of queues of the TUN device with this index that a process has open; `None` if it is no
/// TUN device, or was made without `IFF_MULTI_QUEUE`.
pub(crate) fn open_tun_queues(index: i32) -> Result<Option<u32>> {
    let link = link(&open()?, index)?;
    let queues = tun_attribute(&link, IFLA_TUN_NUM_QUEUES);
    Ok(queues.and_then(|queues| queues.try_into().ok()).map(u32::from_ne_bytes))
}

/// An attribute that only TUN devices have.
fn tun_attribute(link: &[u8], wanted: u16) -> Option<&[u8]> {
    attribute(attribute(attribute(link, IFLA_LINKINFO)?, IFLA_INFO_DATA)?, wanted)
}

/// Packets that the kernel dropped because they could not be sent through the interface with this
/// index in the namespace of `socket` (`tx_dropped` of `struct rtnl_link_stats64`).
pub(crate) fn tx_dropped(socket: &OwnedFd, index: i32) -> Result<u64> {
    let link = link(socket, index)?;
    let stats = attribute(&link, IFLA_STATS64);
    let dropped = stats.and_then(|stats| stats.get(TX_DROPPED..TX_DROPPED + 8)?.try_into().ok());
    dropped.map(u64::from_ne_bytes).ok_or(Errno::BADMSG)
}

/// The address that a `struct ifaddrmsg` and its attributes tell of, and the index of its
/// interface.
fn address_in(body: &[u8]) -> Option<(IpAddr, u32)> {
    let index = u32::from_ne_bytes(body.get(4..8)?.try_into().ok()?);
    let (mut own, mut peer) = (None, None);
    for (kind, value) in attributes(body.get(8..)?) {
        match kind {
            IFA_LOCAL => own = Some(value),
            IFA_ADDRESS => peer = Some(value),
            _ => {}
        }
    }
    // On a link between two hosts the second is the other one's address.
    let bytes = own.or(peer)?;
    let address = match i32::from(body[0]) {
        libc::AF_INET => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        libc::AF_INET6 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some((address, index))
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, address: IpAddr) {
    let value = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    body.extend((value.len() as u16 + 4).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(16 + body.len());
    message.extend((body.len() as u32 + 16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Setting the same address twice is no error.
fn new_address(index: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
    let mut body = vec![family(address), prefix, flags, 0];
    body.extend(index.to_ne_bytes());
    push_attribute(&mut body, IFA_LOCAL, address);
    push_attribute(&mut body, IFA_ADDRESS, address);
    if let IpAddr::V4(v4) = address
        && prefix < 31
    {
        // Otherwise programs that ask for the interface's broadcast address get 0.0.0.0.
        let broadcast = Ipv4Addr::from_bits(v4.to_bits() | u32::MAX >> prefix);
        push_attribute(&mut body, IFA_BROADCAST, broadcast.into());
    }
    message(RTM_NEWADDR, NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE | NLM_F_CREATE, &body)
}

/// How the kernel would reach the address.
fn get_route(address: IpAddr) -> Vec<u8> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let mut body = vec![family(address), bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    push_attribute(&mut body, RTA_DST, address);
    message(RTM_GETROUTE, NLM_F_REQUEST, &body)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Done,
    /// The type of a route (`RTN_*`).
    Route(u8),
}

/// The first message of a reply: a route, or an `nlmsgerr`, where code 0 is success and anything
/// else a negative errno.
fn parse(reply: &[u8]) -> Result<Reply> {
    let kind = reply.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let code = reply.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(Reply::Done),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(code.saturating_neg())),
        (Some(RTM_NEWROUTE), _) => {
            reply.get(16 + RTM_TYPE).map(|&kind| Reply::Route(kind)).ok_or(Errno::BADMSG)
        }
        _ => Err(Errno::BADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_as_long_as_it_says() {
        // The header, an `ifaddrmsg`, and the attributes, of which IPv4 has a third.
        for (address, len) in [("10.0.0.1", 16 + 8 + 3 * 8), ("fd00::1", 16 + 8 + 2 * 20)] {
            let message = new_address(3, address.parse().expect("an address"), 24);
            assert_eq!(message.len(), len);
            assert_eq!(message[..4], (len as u32).to_ne_bytes());
        }
    }

    #[test]
    fn an_address_of_ipv4_has_the_broadcast_address_of_its_network() {
        let broadcast = |prefix| {
            let message = new_address(3, "10.1.2.3".parse().expect("an address"), prefix);
            let kind = u16::from_ne_bytes([message[42], message[43]]);
            (kind, message[44..48].to_vec())
        };
        assert_eq!(broadcast(24), (IFA_BROADCAST, vec![10, 1, 2, 255]));
        assert_eq!(broadcast(12), (IFA_BROADCAST, vec![10, 15, 255, 255]));
    }

    #[test]
    fn errors_of_the_kernel_come_back() {
        let mut reply = [0u8; 36];
        reply[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert_eq!(parse(&reply), Ok(Reply::Done));
        reply[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(parse(&reply), Err(Errno::PERM));
        assert_eq!(parse(&reply[..10]), Err(Errno::BADMSG));
    }

    #[test]
    fn a_route_tells_its_type() {
        let mut reply = [0u8; 28];
        reply[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        reply[23] = RTN_LOCAL;
        assert_eq!(parse(&reply), Ok(Reply::Route(RTN_LOCAL)));
        assert_eq!(parse(&reply[..20]), Err(Errno::BADMSG));
    }
}
