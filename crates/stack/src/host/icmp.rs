//! ICMP sockets: whole messages in and out, and errors about packets that others have sent.
//!
//! Cost: a message to an address of others takes one mutex and a look at each ICMP socket; one to
//! this host takes a load while no socket asks for them. A socket holds at most its receive buffer.
//! A message that is sent looks for its route.

use super::Host;
use super::error::SocketError;
use super::icmp_error::LongRequests;
use super::readiness::{Readiness, Ready, Woken, half};
use super::udp_egress::on_larger_buffer;
use crate::drop_reason::DropReason;
use crate::flow::{FourTuple, is_link_local};
use crate::frame::Headers;
use crate::net::egress::{CachedRoute, OutgoingDatagram};
use crate::net::icmp::{IcmpError, IcmpErrorKind, Refused};
use crate::net::interface::InterfaceId;
use crate::net::{self, Visit};
use crate::stats::IpCounter;
use crate::sync::{Mutex, lock};
use crate::wire::checksum::{Checksum, Pseudo};
use crate::wire::{Protocol, ecn_of, icmp, icmpv6, ipv4, ipv6};
use bytes::{BufMut, Bytes, BytesMut};
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use neap_tcp::connection::ConnectionError;
use neap_tcp::segment::Payload;
use neap_tcp::time::{Instant, Rate};
use neap_tcp::transmit::egress::Verdict;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Wake;

/// Default receive and send buffer of an ICMP socket, in bytes (`net.core.rmem_default`,
/// `wmem_default`).
pub const DEFAULT_BUFFER: u32 = 212_992;

/// Memory that a message counts besides its bytes (Linux's `SKB_TRUESIZE(0)`, rounded).
const OVERHEAD: u32 = 640;

/// The shard whose ports messages leave by.
const SHARD: usize = 0;

/// ICMP message of IPv4 or IPv6 with what its IP header says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IcmpMessage {
    /// Sender. In a message to be sent the unspecified address stands for the own address that the
    /// route prefers.
    pub source: IpAddr,
    /// Receiver, which an address of others may be.
    pub destination: IpAddr,
    /// Hops left. In a message to be sent 0 is the default of the stack.
    pub hop_limit: u8,
    /// TOS byte or traffic class, with ECN.
    pub tos: u8,
    /// Interface that the message came in by; `None` if this host has sent it to itself. A message
    /// to a link-local address of IPv6 leaves by it; sending ignores it otherwise.
    pub interface: Option<InterfaceId>,
    /// Whether it may not be cut: it came whole in a packet with the don't-fragment bit or of IPv6.
    /// A message to be sent leaves whole or not at all then (`IP_PMTUDISC_DO`). Others that are
    /// longer than the path takes are cut.
    pub dont_fragment: bool,
    /// The message from its type on. The stack fills in the checksum of a message to be sent.
    pub data: Bytes,
}

/// Options of [`Stack::open_icmp`](crate::stack::Stack::open_icmp).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpOptions {
    /// Receives messages to addresses of others that no connection of the stack is concerned by.
    /// They come through an interface that takes any destination.
    pub foreign: bool,
    /// Receives a copy of the messages to this host, those of neighbour and router discovery left
    /// out.
    pub own: bool,
    /// Receives what comes through this interface; `None` is any.
    pub interface: Option<InterfaceId>,
    /// May send from addresses of others (`IP_TRANSPARENT`).
    pub transparent: bool,
}

impl Default for IcmpOptions {
    /// The socket of a gateway: messages to addresses of others, from addresses of others.
    fn default() -> Self {
        Self { foreign: true, own: false, interface: None, transparent: true }
    }
}

impl IcmpMessage {
    /// Makes a message to be sent, of a type, a code, a checksum that does not matter, and what
    /// follows. Hop limit and TOS are the defaults.
    pub fn new(source: IpAddr, destination: IpAddr, data: impl Into<Bytes>) -> Self {
        let data = data.into();
        let (hop_limit, tos, interface, dont_fragment) = (0, 0, None, false);
        Self { source, destination, hop_limit, tos, interface, dont_fragment, data }
    }

    /// Returns the type of the message; 0 of one without bytes.
    pub fn kind(&self) -> u8 {
        self.data.first().copied().unwrap_or(0)
    }

    /// Returns the code of the message; 0 of one without it.
    pub fn code(&self) -> u8 {
        self.data.get(1).copied().unwrap_or(0)
    }

    /// Returns whether the message is an echo request.
    pub fn is_echo_request(&self) -> bool {
        let request =
            if self.destination.is_ipv4() { icmp::ECHO_REQUEST } else { icmpv6::ECHO_REQUEST };
        self.data.len() >= icmp::HEADER_LEN && (self.kind(), self.code()) == (request, 0)
    }

    /// Returns identifier and sequence number of an echo request or reply.
    pub fn echo(&self) -> Option<(u16, u16)> {
        let reply = if self.destination.is_ipv4() { icmp::ECHO_REPLY } else { icmpv6::ECHO_REPLY };
        let is_echo = self.is_echo_request() || (self.kind(), self.code()) == (reply, 0);
        let &[_, _, _, _, a, b, c, d] = self.data.first_chunk().filter(|_| is_echo)?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns the answer to an echo request, from the address that was asked and by the interface
    /// of the request; `None` for any other message. The bytes are copied.
    pub fn echo_reply(&self) -> Option<Self> {
        if !self.is_echo_request() {
            return None;
        }
        let reply = if self.destination.is_ipv4() { icmp::ECHO_REPLY } else { icmpv6::ECHO_REPLY };
        let mut data = BytesMut::with_capacity(self.data.len());
        data.put_u8(reply);
        data.extend_from_slice(&self.data[1..]);
        let answer = Self::new(self.destination, self.source, data);
        Some(Self { tos: self.tos, interface: self.interface, ..answer })
    }

    /// Makes the error that a router or a host with the address `source` reports of `packet`, an IP
    /// packet from its header on, to its sender. [`send`](crate::socket::icmp::IcmpHandle::send)
    /// does not limit its rate, so this is for errors that another host has limited: those that a
    /// gateway passes on. An unspecified `source` stands for an own address.
    ///
    /// `None` for a packet that no error may be sent about (RFC 1122 section 3.2.2, RFC 4443
    /// section 2.4), for a source of the other family, and for a code that does not exist.
    pub fn of_error(source: IpAddr, packet: &Bytes, error: IcmpErrorKind) -> Option<Self> {
        let (to, header, most) = net::icmp::error_header(source, packet, error)?;
        let quote = &packet[..packet.len().min(most)];
        Some(Self::new(source, to, [&header[..], quote].concat()))
    }

    /// Returns the message as an IP packet, for an ICMP error to quote. The identification of IPv4
    /// is 0.
    pub fn to_packet(&self) -> Bytes {
        let mut headers = Headers::default();
        let len = u16::try_from(self.data.len()).unwrap_or(u16::MAX).min(ipv4::MAX_PAYLOAD);
        let (dscp, ecn) = (self.tos >> 2, ecn_of(self.tos));
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Header {
                source,
                destination,
                protocol: Protocol::ICMP,
                ttl: self.hop_limit,
                dscp,
                ecn,
                identification: 0,
                dont_fragment: self.dont_fragment,
            }
            .emit(&mut headers, len),
            (IpAddr::V6(source), IpAddr::V6(destination)) => ipv6::Header {
                source,
                destination,
                protocol: Protocol::ICMPV6,
                hop_limit: self.hop_limit,
                dscp,
                ecn,
                flow_label: 0,
            }
            .emit(&mut headers, len),
            _ => {}
        }
        [headers.as_slice(), &self.data].concat().into()
    }
}

/// A message on its way to sockets.
pub(crate) struct Arrived {
    pub(crate) message: IcmpMessage,
    /// Nothing else is in the memory of its data, so that it may wait for long.
    pub(crate) is_alone: bool,
}

impl Arrived {
    /// The message for one more socket. The data is copied at most once, and all sockets share it.
    fn keep(&mut self) -> IcmpMessage {
        if !self.is_alone {
            self.message.data = Bytes::copy_from_slice(&self.message.data);
            self.is_alone = true;
        }
        self.message.clone()
    }
}

#[derive(Debug)]
struct IcmpState {
    queue: VecDeque<IcmpMessage>,
    queued_bytes: u32,
    receive_buffer: u32,
    send_buffer: u32,
    requests: LongRequests,
    /// Told once.
    error: Option<SocketError>,
    is_closed: bool,
}

/// One ICMP socket.
#[derive(Debug)]
pub(crate) struct IcmpSocket {
    options: IcmpOptions,
    readiness: Arc<IcmpReadiness>,
    account: Arc<TxAccount>,
    state: Mutex<IcmpState>,
}

/// Readiness that completions set.
#[derive(Debug, Default)]
struct IcmpReadiness(Readiness);

impl Wake for IcmpReadiness {
    fn wake(self: Arc<Self>) {
        self.0.signal(Ready::WRITABLE);
    }
}

/// Whether ICMP sockets have taken a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// No socket asks for it.
    ByNobody,
    /// All that ask for it have it.
    ByAll,
    /// It found so many of them full.
    Full(u64),
}

/// The ICMP sockets of a host.
#[derive(Debug, Default)]
pub(crate) struct IcmpTable {
    sockets: Mutex<Sockets>,
    /// Sockets that want the messages to this host.
    own: AtomicUsize,
}

#[derive(Debug, Default)]
struct Sockets {
    open: Vec<Arc<IcmpSocket>>,
    is_shut_down: bool,
}

impl IcmpTable {
    pub(crate) fn open(&self, options: IcmpOptions) -> Result<Arc<IcmpSocket>, SocketError> {
        let mut sockets = lock(&self.sockets);
        if sockets.is_shut_down {
            return Err(SocketError::ShutDown);
        }
        self.own.fetch_add(usize::from(options.own), Ordering::Relaxed);
        let socket = Arc::new(IcmpSocket::new(options));
        sockets.open.push(socket.clone());
        Ok(socket)
    }

    /// Forgets a socket whose last handle is gone.
    pub(crate) fn remove(&self, socket: &Arc<IcmpSocket>) {
        let mut sockets = lock(&self.sockets);
        if let Some(at) = sockets.open.iter().position(|one| Arc::ptr_eq(one, socket)) {
            let gone = sockets.open.swap_remove(at);
            self.own.fetch_sub(usize::from(gone.options.own), Ordering::Relaxed);
        }
    }

    /// Closes all sockets and refuses more.
    pub(crate) fn shut_down(&self) {
        let mut sockets = lock(&self.sockets);
        sockets.is_shut_down = true;
        let all = core::mem::take(&mut sockets.open);
        drop(sockets);
        self.own.store(0, Ordering::Relaxed);
        all.iter().for_each(|socket| socket.close());
    }

    /// Tells the sockets to which nothing can come any more that the device of an interface is
    /// gone; `is_last` says that no other is left.
    pub(crate) fn on_device_gone(&self, interface: InterfaceId, is_last: bool) {
        let mut woken = Woken::default();
        for socket in &lock(&self.sockets).open {
            let wanted = socket.options.interface;
            if wanted == Some(interface) || wanted.is_none() && is_last {
                woken.add(socket.on_network_down());
            }
        }
        woken.wake();
    }

    /// Sockets that are open.
    pub(crate) fn len(&self) -> usize {
        lock(&self.sockets).open.len()
    }

    /// Whether a socket wants the messages to this host. A load.
    pub(crate) fn wants_own(&self) -> bool {
        self.own.load(Ordering::Relaxed) > 0
    }

    /// Whether the error quotes an echo request that a socket has just sent.
    pub(crate) fn has_sent(&self, error: &IcmpError) -> bool {
        let open = &lock(&self.sockets).open;
        open.iter().any(|socket| lock(&socket.state).requests.contain(error))
    }

    /// Gives a message to all sockets that ask for it.
    pub(crate) fn deliver(&self, mut arrived: Arrived, is_foreign: bool) -> Taken {
        let (mut taken, mut woken) = (Taken::ByNobody, Woken::default());
        for socket in &lock(&self.sockets).open {
            let IcmpOptions { foreign, own, interface, .. } = socket.options;
            let is_asked_for = if is_foreign { foreign } else { own };
            if !is_asked_for
                || interface.is_some_and(|only| arrived.message.interface != Some(only))
            {
                continue;
            }
            let queued = socket.deliver(&mut arrived);
            let has_room = queued.is_some();
            woken.add(queued.unwrap_or_default());
            taken = match taken {
                Taken::Full(count) => Taken::Full(count + u64::from(!has_room)),
                _ if !has_room => Taken::Full(1),
                _ => Taken::ByAll,
            };
        }
        woken.wake();
        taken
    }
}

impl IcmpSocket {
    fn new(options: IcmpOptions) -> Self {
        let readiness = Arc::new(IcmpReadiness::default());
        readiness.0.signal(Ready::WRITABLE);
        let account = TxAccount::new(readiness.clone().into());
        let state = Mutex::new(IcmpState {
            queue: VecDeque::new(),
            queued_bytes: 0,
            receive_buffer: DEFAULT_BUFFER,
            send_buffer: DEFAULT_BUFFER,
            requests: LongRequests::default(),
            error: None,
            is_closed: false,
        });
        Self { options, readiness, account, state }
    }

    pub(crate) fn options(&self) -> &IcmpOptions {
        &self.options
    }

    pub(crate) fn readiness(&self) -> &Readiness {
        &self.readiness.0
    }

    /// Bytes of this socket that the wire does not have yet.
    pub(crate) fn bytes_below(&self) -> u64 {
        self.account.bytes()
    }

    /// Queues a message, and returns who waits for it; `None` when the receive buffer is full.
    fn deliver(&self, arrived: &mut Arrived) -> Option<Woken> {
        let mut state = lock(&self.state);
        let total = state.queued_bytes.saturating_add(memory(&arrived.message));
        let is_full = total > state.receive_buffer && !state.queue.is_empty();
        if state.is_closed || is_full {
            return None;
        }
        state.queued_bytes = total;
        state.queue.push_back(arrived.keep());
        Some(self.readiness.0.gain(Ready::READABLE, 1))
    }

    fn on_network_down(&self) -> Woken {
        let mut state = lock(&self.state);
        state.error = Some(ConnectionError::NetworkDown.into());
        self.readiness.0.gain(Ready::ERROR, 1)
    }

    /// The next message, unless an error is to be told first.
    pub(crate) fn receive(&self) -> Result<IcmpMessage, SocketError> {
        let mut state = lock(&self.state);
        if let Some(error) = state.error.take() {
            // The end of the stack keeps the bit.
            if !state.is_closed {
                self.readiness.0.clear(Ready::ERROR);
            }
            return Err(error);
        }
        let Some(message) = state.queue.pop_front() else {
            let is_closed = state.is_closed;
            return Err(if is_closed { SocketError::ShutDown } else { SocketError::WouldBlock });
        };
        state.queued_bytes -= memory(&message);
        if state.queue.is_empty() {
            self.readiness.0.clear(Ready::READABLE);
        }
        Ok(message)
    }

    /// Receive and send buffer, bytes.
    pub(crate) fn buffers(&self) -> (u32, u32) {
        let state = lock(&self.state);
        (state.receive_buffer, state.send_buffer)
    }

    /// Replaces the buffers' sizes; `None` leaves one as it is. A larger send buffer may have room
    /// at once.
    pub(crate) fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        let mut state = lock(&self.state);
        state.receive_buffer = receive.unwrap_or(state.receive_buffer);
        let before = state.send_buffer;
        let after = send.unwrap_or(before);
        state.send_buffer = after;
        drop(state);
        if after > before {
            on_larger_buffer(&self.readiness.0, &self.account, after);
        }
    }

    /// Drops what waits, and refuses all calls from now on.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let queue = core::mem::take(&mut state.queue);
        drop(state);
        drop(queue);
        self.readiness.0.signal(Ready::READ_CLOSED | Ready::WRITE_CLOSED | Ready::ERROR);
    }

    /// Whether there is room below; if not, the completion makes the socket writable that leaves
    /// half of the send buffer.
    fn admit(&self) -> Result<(), SocketError> {
        let state = lock(&self.state);
        let limit = u64::from(state.send_buffer);
        if state.is_closed {
            return Err(SocketError::ShutDown);
        }
        drop(state);
        if self.readiness.0.admit(&self.account, limit, half(limit)) {
            return Ok(());
        }
        Err(SocketError::WouldBlock)
    }

    /// The address that something is sent from to `remote`.
    fn source(
        &self,
        host: &Host,
        from: IpAddr,
        remote: IpAddr,
        interface: Option<InterfaceId>,
    ) -> Result<IpAddr, SocketError> {
        if from.is_unspecified() {
            return Ok(host.net.topology.source_for(remote, interface)?);
        }
        host.check_source(from, self.options.transparent)?;
        if from.is_ipv4() == remote.is_ipv4() { Ok(from) } else { Err(SocketError::AddressFamily) }
    }

    /// Sends a message, its checksum filled in.
    pub(crate) fn send(
        &self,
        host: &Host,
        now: Instant,
        message: &IcmpMessage,
    ) -> Result<(), SocketError> {
        let IcmpMessage { source, destination: remote, hop_limit, tos, ref data, .. } = *message;
        if data.len() < icmp::HEADER_LEN || remote.is_unspecified() || remote.is_multicast() {
            return Err(SocketError::InvalidArgument);
        }
        let most = if remote.is_ipv4() { ipv4::MAX_PAYLOAD } else { u16::MAX };
        if data.len() > usize::from(most) {
            return Err(SocketError::MessageTooLong);
        }
        if host.is_broadcast(remote) {
            return Err(SocketError::Reported(ConnectionError::Forbidden));
        }
        let interface = message.interface.filter(|_| is_link_local(remote));
        let local = self.source(host, source, remote, interface)?;
        let mut route = CachedRoute::new(self.options.transparent);
        let is_v4 = remote.is_ipv4();
        if message.dont_fragment {
            let header = if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
            let route = route.refresh_through(&host.net, now, local, remote, interface);
            if route.is_some_and(|route| header + data.len() > route.mtu as usize) {
                return Err(SocketError::MessageTooLong);
            }
        }
        self.admit()?;
        let headers = summed(local, remote, data).ok_or(SocketError::AddressFamily)?;
        if message.is_echo_request() {
            let mut state = lock(&self.state);
            state.requests.note((local, remote), headers.as_slice(), data.len());
        }
        let sent = if is_v4 { IpCounter::IcmpOutMsgs } else { IpCounter::Icmp6OutMsgs };
        host.net.counters.ip.add(sent, 1);
        let tuple = FourTuple::without_ports(local, remote);
        let datagram = OutgoingDatagram {
            local,
            remote,
            protocol: if is_v4 { Protocol::ICMP } else { Protocol::ICMPV6 },
            headers,
            payload: Payload::from(data.slice(icmp::HEADER_LEN..)),
            gso_size: None,
            flow: host.net.orphan_flow(&tuple),
            pacing_rate: Rate::UNLIMITED,
            credit: Some(TxCredit::charge(&self.account, memory(message))),
            hop_limit,
            tos,
            interface,
            may_be_cut: !message.dont_fragment,
        };
        let visit = Visit::new(now, SHARD);
        let output = host.net.send_datagram(visit, &mut route, datagram)?;
        host.on_undeliverable(visit, output.undeliverable);
        if output.verdict == Verdict::Dropped {
            return Err(SocketError::NoBuffers);
        }
        // A full socket is not writable, before a call is refused as well.
        let _ = self.admit();
        Ok(())
    }

    /// Tells the sender of `packet` of an error, from the address `from`. Whether the limit of such
    /// messages let it pass.
    pub(crate) fn send_error(
        &self,
        host: &Host,
        now: Instant,
        from: IpAddr,
        packet: &Bytes,
        error: IcmpErrorKind,
    ) -> Result<bool, SocketError> {
        self.admit()?;
        let visit = Visit::new(now, SHARD);
        // The packet does not say how it came: a socket of one interface got it there.
        let interface = self.options.interface;
        let source =
            |remote| self.source(host, from, remote, interface.filter(|_| is_link_local(remote)));
        match host.net.send_error(visit, packet, interface, error, source)? {
            Ok(()) => Ok(true),
            Err(Refused::Limited) => {
                host.net.counters.drops.count(DropReason::RateLimited);
                Ok(false)
            }
            Err(Refused::Forbidden | Refused::NoSuchError) => Err(SocketError::InvalidArgument),
        }
    }
}

/// Memory that a message counts for.
fn memory(message: &IcmpMessage) -> u32 {
    (message.data.len() as u32).saturating_add(OVERHEAD)
}

/// The header of a message with its checksum; `None` for addresses of two families. At least the
/// header is there.
fn summed(local: IpAddr, remote: IpAddr, data: &Bytes) -> Option<Headers> {
    let mut sum = match (local, remote) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Checksum::new(),
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Pseudo::v6(source, destination, Protocol::ICMPV6).with_len(data.len() as u32)
        }
        _ => return None,
    };
    let mut headers = Headers::default();
    let bytes = headers.prepend(icmp::HEADER_LEN);
    bytes.copy_from_slice(data.get(..icmp::HEADER_LEN)?);
    bytes[2..4].fill(0);
    sum.add(bytes);
    sum.add(&data[icmp::HEADER_LEN..]);
    let sum = sum.finish().to_be_bytes();
    bytes[2..4].copy_from_slice(&sum);
    Some(headers)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::wire::checksum;

    fn request(to: &str, from: &str) -> IcmpMessage {
        let (to, from): (IpAddr, IpAddr) = (to.parse().unwrap(), from.parse().unwrap());
        let kind = if to.is_ipv4() { 8 } else { 128 };
        IcmpMessage::new(from, to, vec![kind, 0, 9, 9, 1, 2, 3, 4, 5])
    }

    #[test]
    fn an_echo_is_told_and_answered() {
        for (to, from, reply) in [("192.0.2.1", "10.0.0.1", 0), ("2001:db8::1", "fd00::1", 129)] {
            let asked = request(to, from);
            assert_eq!((asked.is_echo_request(), asked.echo()), (true, Some((0x0102, 0x0304))));
            let answer = asked.echo_reply().unwrap();
            assert_eq!((answer.kind(), answer.echo()), (reply, asked.echo()));
            assert_eq!((answer.source, answer.destination), (asked.destination, asked.source));
            assert_eq!(answer.data[1..], asked.data[1..]);
            assert_eq!(answer.echo_reply(), None);
            let packet = asked.to_packet();
            assert!(packet.ends_with(&asked.data));
            for len in 0..8 {
                let cut = IcmpMessage { data: asked.data.slice(..len), ..asked.clone() };
                assert_eq!((cut.echo(), cut.echo_reply()), (None, None));
            }
        }
    }

    #[test]
    fn an_error_that_is_told_leaves_the_end_of_the_stack_to_be_seen() {
        let socket = IcmpSocket::new(IcmpOptions::default());
        socket.on_network_down().wake();
        socket.close();
        assert_eq!(socket.receive(), Err(ConnectionError::NetworkDown.into()));
        assert_eq!(socket.receive(), Err(SocketError::ShutDown));
        assert!(socket.readiness().state().bits().contains(Ready::ERROR));
    }

    #[test]
    fn the_stack_fills_in_the_checksum() {
        let asked = request("192.0.2.1", "10.0.0.1");
        let headers = summed(asked.source, asked.destination, &asked.data).unwrap();
        let whole = [headers.as_slice(), &asked.data[8..]].concat();
        assert_eq!(checksum::of(&whole), 0);
        let asked = request("2001:db8::1", "fd00::1");
        let headers = summed(asked.source, asked.destination, &asked.data).unwrap();
        let whole = [headers.as_slice(), &asked.data[8..]].concat();
        let pseudo = Pseudo::of(asked.source, asked.destination, Protocol::ICMPV6).unwrap();
        assert!(pseudo.verifies(&whole));
        assert!(summed(asked.source, "10.0.0.1".parse().unwrap(), &asked.data).is_none());
    }
}
