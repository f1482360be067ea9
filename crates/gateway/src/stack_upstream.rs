//! Another stack as the way of flows, such as the stack of a tunnel.
//!
//! Cost: a connection has a socket of that stack, and so does each address and port of a guest that
//! sends datagrams. Datagrams pass in batches, without copies.

use crate::destination::Destination;
use crate::guest::GuestStream;
use crate::host_datagrams::{Arrived, MOST_SEGMENTS, Sent};
use crate::host_errors::{Manner, Undelivered};
use crate::ip_header::{self, V4_HEADER, V6_HEADER};
use crate::receive_room::ReceiveRoom;
use crate::upstream::{Client, EchoReply, Far, FarDatagrams, FarEcho, Upstream};
use bytes::Bytes;
use neap::threadless::{ErrorOrigin, ErrorRecord};
use neap::{
    Datagram, Events, IcmpErrorKind, IcmpMessage, IcmpOptions, IcmpSocket, Poller, Refusal,
    SocketOptions, Stack, UdpOptions, UdpSocket,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

/// Bytes of datagrams that wait for the gateway, and of those that wait for the device.
const QUEUE: u32 = 4 << 20;
/// Data that are not sent yet: those of a time at the rate of the connection, and no more than so
/// many.
const NOT_SENT_MICROS: u32 = 5000;
const NOT_SENT: u32 = 512 << 10;
/// Where the identifier of an echo message is: behind type, code and checksum.
const IDENTIFIER_AT: usize = 4;
/// Bytes of the header of UDP.
const UDP_HEADER: usize = 8;
/// The protocols of ICMP, with their echo requests.
const FRAGMENT_OFFSET: u16 = 0x1fff;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// How long the thread may be away before a worker of the stack takes over.
const AWAY: Duration = Duration::from_millis(10);

/// How often it is looked whether a stack has delivered all, of which no event tells.
pub(crate) const LOOK_AT_REST: Duration = Duration::from_millis(20);

/// Whether the peers of a stack have acknowledged all that was sent to them, with the FINs of
/// connections that nobody has any more. Cost: O(listeners).
pub(crate) fn has_delivered(stack: &Stack) -> bool {
    let counts = stack.host().usage().tcp;
    counts.connections == 0 && counts.orphans == 0
}

/// Options of connections that a relay feeds.
pub(crate) fn options() -> SocketOptions {
    SocketOptions {
        notsent_lowat: NOT_SENT,
        notsent_lowat_us: NOT_SENT_MICROS,
        // The relay answers the probes of the other side, so that nobody else would notice.
        keepalive: true,
        ..SocketOptions::default()
    }
}

/// Leaves a stack to the thread of a relay, which comes back at once.
pub(crate) fn leave(stack: &Stack) {
    stack.set_lease(AWAY);
}

/// A stack as the way of all flows: they are its connections and datagrams, from its addresses. It
/// takes addresses only. A guest's hops and TOS are passed on with datagrams and pings.
///
/// What must not be cut is not cut, unless it is longer than the link takes by which it leaves the
/// stack: the larger MTU of the guest's interface made it possible.
#[derive(Clone)]
pub struct StackUpstream {
    stack: Arc<Stack>,
    /// The identifier that an echo socket got last.
    last_identifier: Arc<AtomicU16>,
}

impl fmt::Debug for StackUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackUpstream").finish_non_exhaustive()
    }
}

impl StackUpstream {
    /// Flows leave by this stack.
    pub fn new(stack: Arc<Stack>) -> Self {
        leave(&stack);
        Self { stack, last_identifier: Arc::default() }
    }
}

impl Upstream for StackUpstream {
    fn connect(&self, to: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        Ok(Box::new(GuestStream::connect_from_stack(&self.stack, address(to)?, options())?))
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Ok(Box::new(StackDatagrams::open(&self.stack, address(to)?.is_ipv6())?))
    }

    fn asks_by_datagrams(&self) -> bool {
        true
    }

    fn has_delivered(&self) -> bool {
        has_delivered(&self.stack)
    }

    fn echo(&self, is_v6: bool) -> io::Result<Box<dyn FarEcho>> {
        let identifier = self.last_identifier.fetch_add(1, Relaxed).wrapping_add(1);
        let options =
            IcmpOptions { foreign: false, own: true, interface: None, transparent: false };
        let socket = IcmpSocket::open(&self.stack, options)?;
        socket.set_nonblocking(true)?;
        let (stack, undelivered) = (self.stack.clone(), RefCell::default());
        Ok(Box::new(StackEcho { stack, socket, identifier, is_v6, undelivered }))
    }
}

/// Echo requests of one identifier.
///
/// Cost: each such socket sees all ICMP messages that come to the stack, so a reply costs a look of
/// each.
struct StackEcho {
    stack: Arc<Stack>,
    socket: IcmpSocket,
    identifier: u16,
    is_v6: bool,
    /// What was not delivered. Each has failed a call, after which the gateway asks for it.
    undelivered: RefCell<VecDeque<Undelivered>>,
}

impl StackEcho {
    /// How long a packet to `to` may be that must not be cut, if this request is longer.
    fn limit(&self, request: &[u8], to: IpAddr) -> Option<u32> {
        let header = ip_header::len(to.is_ipv6());
        let mtu = self.stack.path_mtu(to)?;
        (header + request.len() > mtu as usize).then_some(mtu)
    }
}

impl FarEcho for StackEcho {
    fn send(&mut self, request: &[u8], to: IpAddr, manner: Manner) -> io::Result<()> {
        let Some((head, rest)) = request.split_first_chunk::<IDENTIFIER_AT>() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let data = [&head[..], &self.identifier.to_be_bytes(), rest.get(2..).unwrap_or_default()];
        let any: IpAddr =
            if self.is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let mut message = IcmpMessage::new(any, to, data.concat());
        (message.hop_limit, message.tos) = (manner.hop_limit, manner.tos);
        message.dont_fragment = manner.dont_fragment && fits(&self.stack, request.len(), to);
        let sent = self.socket.send(&message);
        if sent.is_err()
            && message.dont_fragment
            && let Some(mtu) = self.limit(request, to)
        {
            let (to, data) = (SocketAddr::new(to, 0), Bytes::new());
            let kind = IcmpErrorKind::PacketTooBig { mtu };
            let undelivered = Undelivered { to, data, kind, offender: None };
            self.undelivered.borrow_mut().push_back(undelivered);
            return Err(Errno::MSGSIZE.into());
        }
        sent
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<EchoReply> {
        loop {
            let message = self.socket.recv()?;
            if let Some(undelivered) = undelivered(&message, self.identifier) {
                self.undelivered.borrow_mut().push_back(undelivered);
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let is_own = message.source.is_ipv6() == self.is_v6
                && !message.is_echo_request()
                && message.echo().is_some_and(|(identifier, _)| identifier == self.identifier);
            if let Some(room) = buffer.get_mut(..message.data.len()).filter(|_| is_own) {
                room.copy_from_slice(&message.data);
                let (bytes, from, tos) = (message.data.len(), message.source, message.tos);
                return Ok(EchoReply { bytes, from, tos });
            }
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        let any: IpAddr =
            if self.is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        Some(SocketAddr::new(any, self.identifier))
    }

    fn undelivered(&self, _: &mut [u8]) -> Option<Undelivered> {
        self.undelivered.borrow_mut().pop_front()
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.socket, token, Events::IN | Events::ET)
    }
}

/// Whether the link by which packets to an address leave a stack takes one with so many bytes
/// behind the header of IP. Cost: a look at the routes for what is longer than every link takes.
fn fits(stack: &Stack, bytes: usize, to: IpAddr) -> bool {
    /// Every link of IPv6 takes so much (RFC 8200 section 5), and others of today do.
    const LEAST_MTU: usize = 1280;
    let bytes = ip_header::len(to.is_ipv6()) + bytes;
    bytes <= LEAST_MTU || stack.link_mtu(to).is_none_or(|mtu| bytes <= mtu as usize)
}

/// The echo request with this identifier that a message is about, if it is an error about one.
fn undelivered(message: &IcmpMessage, identifier: u16) -> Option<Undelivered> {
    /// Where the packet begins that an error quotes.
    const QUOTED_AT: usize = 8;
    /// The request behind the header of IP, as far as it has an identifier and a sequence number.
    const REQUEST: usize = 8;
    let is_v6 = message.source.is_ipv6();
    let (head, packet) = message.data.split_first_chunk::<QUOTED_AT>()?;
    let value = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    // That of IPv4 has 16 bits, and other fields before it (RFC 4884).
    let mtu = if is_v6 { value } else { value & u32::from(u16::MAX) };
    let kind = kind_of(is_v6, head[0], head[1], mtu)?;
    let (to, protocol, at): (IpAddr, _, _) = if is_v6 {
        let header = packet.first_chunk::<V6_HEADER>().filter(|header| header[0] >> 4 == 6)?;
        let to: [u8; 16] = header[24..].try_into().ok()?;
        (to.into(), header[6], V6_HEADER)
    } else {
        let header = packet.first_chunk::<V4_HEADER>().filter(|header| header[0] >> 4 == 4)?;
        let to: [u8; 4] = header[16..].try_into().ok()?;
        let is_first = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET == 0;
        is_first.then_some((to.into(), header[9], usize::from(header[0] & 15) * 4))?
    };
    let (echo, request) = if is_v6 { (ICMPV6, ECHO_REQUEST_V6) } else { (ICMP, ECHO_REQUEST) };
    let data = packet.get(at..).filter(|data| data.len() >= REQUEST && protocol == echo)?;
    let is_own = data[..2] == [request, 0] && data[4..6] == identifier.to_be_bytes();
    let offender = Some(message.source);
    let data = || Bytes::copy_from_slice(data);
    is_own.then(|| Undelivered { to: SocketAddr::new(to, 0), data: data(), kind, offender })
}

/// A stack knows addresses only.
fn address(to: &Destination) -> io::Result<SocketAddr> {
    if to.name.is_some() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(to.address) }
}

/// A UDP socket of a stack, on all of its addresses of one family.
pub(crate) struct StackDatagrams {
    stack: Arc<Stack>,
    socket: UdpSocket,
    /// Received, and not taken yet.
    arrived: VecDeque<Datagram>,
    batch: Vec<Datagram>,
}

impl StackDatagrams {
    pub(crate) fn open(stack: &Arc<Stack>, is_v6: bool) -> io::Result<Self> {
        let any = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let options = UdpOptions { only_v6: is_v6, ..UdpOptions::default() };
        let socket = UdpSocket::bind_with(stack, SocketAddr::new(any, 0), options)?;
        socket.set_nonblocking(true)?;
        socket.set_receive_errors(true)?;
        socket.set_buffers(Some(QUEUE), Some(QUEUE));
        let stack = stack.clone();
        Ok(Self { stack, socket, arrived: VecDeque::new(), batch: Vec::new() })
    }
}

impl FarDatagrams for StackDatagrams {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent {
        let longest = datagrams.first().map_or(0, Bytes::len);
        let fits = || fits(&self.stack, UDP_HEADER + longest, to.address.ip());
        let dont_fragment = manner.dont_fragment && fits();
        let datagram = |data: &Bytes| Datagram {
            hop_limit: Some(manner.hop_limit),
            tos: Some(manner.tos),
            dont_fragment,
            ..Datagram::new(data.clone(), to.address)
        };
        self.batch.extend(datagrams.iter().map(datagram));
        let (mut sent, mut rest) = (Sent::default(), &self.batch[..]);
        // An error may be one of an earlier datagram: the call is made again.
        let mut may_repeat = true;
        while !rest.is_empty() {
            match self.socket.send_batch(rest) {
                Ok(count) => {
                    sent.count += count;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) if std::mem::take(&mut may_repeat) => {}
                Err(error) => {
                    sent.why = refusal(&error);
                    sent.is_too_long = error.kind() == io::ErrorKind::InvalidInput;
                    rest = &rest[1..];
                }
            }
        }
        self.batch.clear();
        sent
    }

    fn receive(&mut self, _: &mut ReceiveRoom) -> io::Result<Arrived> {
        if self.arrived.is_empty() {
            self.socket.recv_batch(&mut self.batch, MOST_SEGMENTS)?;
            self.arrived.extend(self.batch.drain(..));
        }
        let datagram = self.arrived.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        let mut arrived = Arrived::one(datagram.peer, datagram.data);
        arrived.tos = datagram.arrival.map_or(0, |arrival| arrival.tos);
        Ok(arrived)
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    fn undelivered(&mut self, _: &mut [u8]) -> Option<Undelivered> {
        loop {
            let record = self.socket.recv_error().ok()?;
            if let Some(kind) = kind(&record) {
                let ErrorRecord { destination: to, offender, data, .. } = record;
                return Some(Undelivered { to, data, kind, offender });
            }
        }
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.socket, token, Events::IN | Events::ET)
    }
}

/// What an error of sending is for a guest.
fn refusal(error: &io::Error) -> Option<Refusal> {
    match error.kind() {
        // The stack has no address of the family.
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable => {
            Some(Refusal::Network)
        }
        io::ErrorKind::HostUnreachable => Some(Refusal::Host),
        io::ErrorKind::PermissionDenied => Some(Refusal::Prohibited),
        _ => None,
    }
}

/// The ICMP error that a record came of; `None` for one of which a guest is not to be told.
fn kind(record: &ErrorRecord) -> Option<IcmpErrorKind> {
    match record.origin {
        ErrorOrigin::Local if record.info > 0 => {
            Some(IcmpErrorKind::PacketTooBig { mtu: record.info })
        }
        ErrorOrigin::Icmp => kind_of(false, record.kind, record.code, record.info),
        ErrorOrigin::Icmp6 => kind_of(true, record.kind, record.code, record.info),
        _ => None,
    }
}

/// The ICMP error with this type and code; `None` for one of which a guest is not to be told.
/// `mtu` is that of the link for which a packet was too big.
fn kind_of(is_v6: bool, kind: u8, code: u8, mtu: u32) -> Option<IcmpErrorKind> {
    /// Types and codes of messages: RFC 792, RFC 4443.
    const UNREACHABLE: u8 = 3;
    const MUST_FRAGMENT: u8 = 4;
    const TIME_EXCEEDED: u8 = 11;
    const UNREACHABLE_V6: u8 = 1;
    const TOO_BIG_V6: u8 = 2;
    const TIME_EXCEEDED_V6: u8 = 3;
    let too_big = IcmpErrorKind::PacketTooBig { mtu };
    match (is_v6, kind) {
        (false, UNREACHABLE) if code == MUST_FRAGMENT => Some(too_big),
        (true, TOO_BIG_V6) => Some(too_big),
        (false, UNREACHABLE) | (true, UNREACHABLE_V6) => Some(IcmpErrorKind::Unreachable { code }),
        (false, TIME_EXCEEDED) | (true, TIME_EXCEEDED_V6) if code == 0 => {
            Some(IcmpErrorKind::TimeExceeded)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn what_is_longer_than_the_link_of_the_stack_is_cut() {
        let (own, cable) = UnixDatagram::pair().expect("a pair");
        let device = crate::device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
        let upstream = StackUpstream::new(Arc::new(stack.expect("a stack")));
        let to = SocketAddr::from(([10, 0, 2, 9], 9));
        let manner = Manner { dont_fragment: true, ..Manner::PLAIN };
        let mut datagrams = upstream.datagrams(&to.into()).expect("a socket");
        let mut echo = upstream.echo(false).expect("a socket");
        let mut request = vec![0; 4000];
        request[0] = ECHO_REQUEST;
        let sent = datagrams.send(&[vec![7; 4000].into()], &to.into(), manner);
        assert_eq!(sent, Sent { count: 1, ..Sent::default() });
        echo.send(&request, to.ip(), manner).expect("sent");
        cable.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        // Each has three packets. What fits is not to be cut.
        let dont_fragment = |packet: &[u8]| packet[6] & 0x40 != 0;
        let mut packet = [0; 1500];
        for _ in 0..6 {
            let count = cable.recv(&mut packet).expect("it comes");
            assert!(!dont_fragment(&packet[..count]));
        }
        assert_eq!(datagrams.send(&[vec![7; 1472].into()], &to.into(), manner).count, 1);
        echo.send(&request[..1480], to.ip(), manner).expect("sent");
        for _ in 0..2 {
            assert_eq!(cable.recv(&mut packet).expect("it comes"), packet.len());
            assert!(dont_fragment(&packet));
        }
    }

    /// An error of `from` about `request`, an echo request.
    fn error_about(from: &str, request: &IcmpMessage, error: IcmpErrorKind) -> IcmpMessage {
        let from = from.parse().expect("an address");
        IcmpMessage::of_error(from, &request.to_packet(), error).expect("it may be told")
    }

    fn request(from: &str, to: &str) -> IcmpMessage {
        let [from, to]: [IpAddr; 2] = [from, to].map(|text| text.parse().expect("an address"));
        let kind = if to.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_V6 };
        IcmpMessage::new(from, to, vec![kind, 0, 0, 0, 0x12, 0x34, 0, 7, b'x'])
    }

    #[test]
    fn an_error_about_a_request_of_its_own_is_one_that_was_not_delivered() {
        let too_big = IcmpErrorKind::PacketTooBig { mtu: 1400 };
        for (asked, router) in [
            (request("10.0.0.1", "192.0.2.1"), "10.0.0.254"),
            (request("fd00::1", "2001:db8::1"), "fd00::fe"),
        ] {
            for error in [too_big, IcmpErrorKind::TimeExceeded] {
                let message = error_about(router, &asked, error);
                let told = undelivered(&message, 0x1234).expect("it is about that");
                assert_eq!((told.to.ip(), told.kind), (asked.destination, error));
                assert_eq!(told.offender, Some(router.parse().expect("an address")));
                assert_eq!(told.data, asked.data);
                assert!(undelivered(&message, 0x1235).is_none(), "another one's");
                for length in 0..message.data.len() - 1 {
                    let mut cut = message.clone();
                    cut.data = message.data.slice(..length);
                    let _ = undelivered(&cut, 0x1234);
                }
            }
            assert!(undelivered(&asked, 0x1234).is_none(), "no error");
        }
    }
}
