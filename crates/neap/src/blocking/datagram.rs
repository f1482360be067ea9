//! UDP sockets.

use super::waiting::{Caller, ERROR_READY, READ_READY, WRITE_READY, WaitMode};
use crate::clock;
use crate::engine::Engine;
use crate::error::{hop_limit, socket_error};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::interface::InterfaceId;
use neap_stack::socket::errors::ErrorRecord;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::{ReceivedDatagram, Refusal, SendDatagram, UdpHandle};
use neap_stack::socket::{SocketError, mapped};
use neap_stack::stack::UdpOptions;
use neap_tcp::time::Rate;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A datagram with both of its ends: to be sent by [`UdpSocket::send_batch`], or received by
/// [`UdpSocket::recv_batch`]. Its bytes are shared, not copied.
///
/// The settings of one datagram come before those of the socket. A received datagram has none of
/// them, so that it may be sent back as it is; what its packet said is in
/// [`arrival`](Self::arrival).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Data.
    pub data: Bytes,
    /// The peer: who sent it, or who is to receive it. The scope of a link-local address of IPv6 is
    /// the [number](InterfaceId::index) of the interface that leads to it.
    pub peer: SocketAddr,
    /// The own end: the address and port that it was sent to (`IP_ORIGDSTADDR`), or that it is to
    /// be sent from (`IP_PKTINFO`). `None`, and the unspecified address, send from the address that
    /// the socket is bound to, or else from the one that the route prefers. Port 0 is the port of
    /// the socket. A [`UdpForwarder`](crate::UdpForwarder) sends from any address and port, and
    /// needs both.
    pub local: Option<SocketAddr>,
    /// Interface that it is to leave by, without a router where no route leads there; `None` is the
    /// one that the scope of `peer` names, or else that of the route.
    pub interface: Option<InterfaceId>,
    /// Hops that it may take, from 1 to 255 (`IP_TTL`, `IPV6_HOPLIMIT`); `None` is
    /// [`UdpSocket::ttl`], and 1 to a group.
    pub hop_limit: Option<u8>,
    /// TOS byte or traffic class, with the ECN codepoint in the low two bits (`IP_TOS`,
    /// `IPV6_TCLASS`); `None` is [`UdpSocket::tos`].
    pub tos: Option<u8>,
    /// It is to leave whole or not at all (`IP_PMTUDISC_DO`). Where the path takes less, sending
    /// fails, and [`UdpSocket::recv_error`] says how much it takes. Other datagrams leave in
    /// fragments.
    pub dont_fragment: bool,
    /// What the packet said of itself, if it was received. Sending ignores it.
    pub arrival: Option<Arrival>,
}

/// How a datagram or a SYN came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrival {
    /// Interface that it came in by; `None` for one of this stack.
    pub interface: Option<InterfaceId>,
    /// Hops that its packet had left (`IP_RECVTTL`, `IPV6_RECVHOPLIMIT`). Of a fragmented datagram
    /// they are those of the fragment that came last.
    pub hop_limit: u8,
    /// TOS byte or traffic class, with the ECN codepoint in the low two bits (`IP_RECVTOS`,
    /// `IPV6_RECVTCLASS`).
    pub tos: u8,
    /// Whether it was sent to all hosts of a network.
    pub is_broadcast: bool,
    /// Whether it is a datagram that routers may not cut: it came whole in a packet with the
    /// don't-fragment bit or of IPv6.
    pub dont_fragment: bool,
}

impl Datagram {
    /// Returns a received datagram as the IP packet that it came in, for an ICMP error to quote
    /// ([`IcmpMessage::of_error`](crate::IcmpMessage::of_error)). `None` for one that was not
    /// received. The bytes are copied.
    pub fn to_packet(&self) -> Option<Bytes> {
        self.to_received(mapped::to_canonical)?.to_packet()
    }

    /// The datagram as the stack received it, with addresses in the form that `canonical` gives
    /// them; `None` for one that was not received.
    fn to_received(
        &self,
        canonical: impl Fn(SocketAddr) -> SocketAddr,
    ) -> Option<ReceivedDatagram> {
        let (local, arrival) = (self.local?, self.arrival?);
        let (from, to) = (canonical(self.peer), canonical(local));
        let mut received = ReceivedDatagram::new(from, to, self.data.clone());
        (received.hop_limit, received.tos) = (arrival.hop_limit, arrival.tos);
        received.interface = arrival.interface;
        Some(received)
    }

    /// Makes a datagram that is to be sent to `peer` with the settings of the socket.
    pub fn new(data: impl Into<Bytes>, peer: SocketAddr) -> Self {
        Self {
            data: data.into(),
            peer,
            local: None,
            interface: None,
            hop_limit: None,
            tos: None,
            dont_fragment: false,
            arrival: None,
        }
    }

    /// Makes the answer to a received datagram: to its sender, from the address and port that it
    /// was sent to. The answer to a broadcast one is sent from an address of the interface that it
    /// came in by, and that to a link-local address leaves by the interface that its scope names.
    #[must_use]
    pub fn reply(&self, data: impl Into<Bytes>) -> Self {
        let answer = Self::new(data, self.peer);
        match self.arrival {
            Some(arrival) if arrival.is_broadcast => {
                Self { interface: arrival.interface, ..answer }
            }
            _ => Self { local: self.local, ..answer },
        }
    }
}

/// A UDP socket of a stack, used as [`std::net::UdpSocket`] is.
///
/// A socket on `[::]` serves IPv4 too, as on Linux, and shows IPv4 addresses as mapped ones
/// (`::ffff:a.b.c.d`); [`UdpOptions::only_v6`] ends that. Clones share the socket, and several
/// threads may use it at once. It is closed when the last clone is dropped.
///
/// The stack is in no group, so std's methods for groups are missing. A datagram to a group leaves
/// as one to a single host does, and takes one hop unless it [says another](Datagram::hop_limit).
/// The socket has no descriptor of the kernel; a [`Poller`](crate::Poller) waits for it.
#[derive(Clone)]
pub struct UdpSocket {
    handle: UdpHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
    only_v6: bool,
    /// A socket of IPv6, which shows addresses of IPv4 as mapped ones.
    is_v6: bool,
}

impl fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addr = self.show(self.handle.local_addr());
        f.debug_struct("UdpSocket").field("addr", &addr).finish_non_exhaustive()
    }
}

impl UdpSocket {
    /// Binds to an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver).
    pub fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, UdpOptions::default())
    }

    /// Binds as [`bind`](Self::bind) does, with options that must be set before.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(stack: &Stack, local: impl ToAddrs, options: UdpOptions) -> io::Result<Self> {
        let engine = stack.engine();
        local.endpoint()?.try_each(&engine.resolver, |local, _| {
            let only_v6 = options.only_v6;
            let bound = if only_v6 { local } else { mapped::to_canonical(local) };
            let handle = engine.stack.bind_udp(bound, options).map_err(socket_error)?;
            let (engine, wait_mode) = (engine.clone(), Arc::default());
            Ok(Self { handle, engine, wait_mode, only_v6, is_v6: local.is_ipv6() })
        })
    }

    /// A socket around the handle of a forwarder, which shows addresses as they are.
    pub(super) fn of_forwarder(handle: UdpHandle, engine: Arc<Engine>) -> Self {
        Self { handle, engine, wait_mode: Arc::default(), only_v6: false, is_v6: false }
    }

    pub(crate) fn handle(&self) -> &UdpHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn show(&self, address: SocketAddr) -> SocketAddr {
        mapped::show(address, self.is_v6)
    }

    /// An address that the application gave, as the stack knows it.
    fn canonical(&self, address: SocketAddr) -> SocketAddr {
        if self.only_v6 { address } else { mapped::to_canonical(address) }
    }

    /// Fixes the peer: [`send`](Self::send) sends to it, and datagrams of others are not received.
    /// Of several addresses the first that can be had is taken.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route, `AddrNotAvailable` if the interface on the way has no
    /// address of that family, `InvalidInput` for an address of the other family; of several
    /// addresses the error of the last one. `Unsupported` for a name if the stack has no
    /// [resolver](crate::Builder::resolver).
    pub fn connect(&self, remote: impl ToAddrs) -> io::Result<()> {
        remote.endpoint()?.try_each(&self.engine.resolver, |remote, _| self.connect_to(remote))
    }

    pub(crate) fn connect_to(&self, remote: SocketAddr) -> io::Result<()> {
        self.handle.connect(Some(self.canonical(remote))).map_err(socket_error)
    }

    /// Returns the peer that [`connect`](Self::connect) fixed.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.handle.remote_addr().ok_or(io::ErrorKind::NotConnected)?;
        Ok(self.show(peer))
    }

    /// Sends a datagram. It waits while the send buffer is full of datagrams that have not left. Of
    /// several addresses the first is taken.
    ///
    /// # Errors
    /// `WouldBlock` if it would have to wait in non-blocking mode, or after the write timeout;
    /// `NetworkUnreachable` without a route; `InvalidInput` for a datagram that is longer than any
    /// packet, and for an address of the other family. `Unsupported` for a name if the stack has no
    /// [resolver](crate::Builder::resolver).
    pub fn send_to(&self, data: &[u8], remote: impl ToAddrs) -> io::Result<usize> {
        let remote = remote.endpoint()?.first(&self.engine.resolver)?;
        self.send_some(data, Some(remote))
    }

    /// Sends a datagram to the connected peer. It waits as [`send_to`](Self::send_to) does.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); `InvalidInput` without a peer.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_some(data, None)
    }

    fn send_some(&self, data: &[u8], remote: Option<SocketAddr>) -> io::Result<usize> {
        let datagram = Bytes::copy_from_slice(data);
        let remote = remote.map(|remote| self.canonical(remote));
        let attempt = || self.handle.send_to(clock::now(), datagram.clone(), remote);
        let timeout = &self.wait_mode.write_timeout;
        self.wait_for(WRITE_READY, timeout, attempt).map_err(socket_error)?;
        Ok(data.len())
    }

    /// Sends datagrams in their order, to a peer each, as `sendmmsg(2)` does, and returns how many
    /// were sent. It waits until there is room for the first, and stops at one that is refused; the
    /// caller goes on with the rest. The socket's lock is taken once for all, and no bytes are
    /// copied. Datagrams of one length to one peer that follow each other leave as one
    /// super-frame where the device takes it
    /// ([`gso_udp`](crate::device::Capabilities::gso_udp)), as with `UDP_SEGMENT`; the last of them
    /// may be shorter.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to) for the first datagram: the error of a later one is that of
    /// the call that begins with it. `AddrNotAvailable` for a [`Datagram::local`] that is no
    /// address of the stack (unless the socket is [transparent](UdpOptions::transparent)), or not
    /// the address and port that the socket is bound to. `PermissionDenied` for a broadcast address
    /// without [`set_broadcast`](Self::set_broadcast). `InvalidInput` for a hop limit of 0, and for
    /// one that is longer than the path takes and not to be cut.
    pub fn send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        let timeout = &self.wait_mode.write_timeout;
        self.wait_for(WRITE_READY, timeout, || self.attempt_batch(datagrams)).map_err(socket_error)
    }

    fn attempt_batch(&self, datagrams: &[Datagram]) -> Result<usize, SocketError> {
        let to_send = |datagram: &Datagram| {
            let &Datagram { peer, local, interface, hop_limit, tos, dont_fragment, .. } = datagram;
            let from = local.map(|local| self.canonical(local));
            let (data, to) = (datagram.data.clone(), Some(self.canonical(peer)));
            SendDatagram { data, to, from, interface, hop_limit, tos, dont_fragment }
        };
        match self.handle.send_batch(clock::now(), datagrams.iter().map(to_send)) {
            (0, Err(error)) => Err(error),
            (sent, _) => Ok(sent),
        }
    }

    fn wait_for<T>(
        &self,
        interest: Ready,
        timeout: &AtomicU64,
        attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        Caller { engine: &self.engine, source: &self.handle, mode: &self.wait_mode }.wait_for(
            interest,
            Some(timeout),
            &SocketError::WouldBlock,
            attempt,
        )
    }

    /// Copies what fits.
    fn copy(&self, datagram: &ReceivedDatagram, buf: &mut [u8]) -> (usize, SocketAddr) {
        let len = datagram.data.len().min(buf.len());
        buf[..len].copy_from_slice(&datagram.data[..len]);
        (len, self.show(datagram.from))
    }

    /// Waits for a datagram, and returns its length and its sender; what does not fit `buf` is
    /// lost.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout; for a connected socket the
    /// answer of a router or of the peer to an earlier datagram, for instance `ConnectionRefused`;
    /// `NetworkDown` when the device that the socket was reached through is gone.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let timeout = &self.wait_mode.read_timeout;
        let datagram = self.wait_for(READ_READY, timeout, || self.handle.recv_from());
        Ok(self.copy(&datagram.map_err(socket_error)?, buf))
    }

    /// Waits for a datagram, without the peer's address; what does not fit `buf` is lost.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(len, _)| len)
    }

    /// Waits for a datagram and leaves it to be received again (`MSG_PEEK`).
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let timeout = &self.wait_mode.read_timeout;
        let datagram = self.wait_for(READ_READY, timeout, || self.handle.peek_from());
        Ok(self.copy(&datagram.map_err(socket_error)?, buf))
    }

    /// Waits for a datagram, without the peer's address, and leaves it to be received again.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).map(|(len, _)| len)
    }

    /// Waits for datagrams as `recvmmsg(2)` does, appends at most `most` of them to `into`, and
    /// returns how many they were. It returns as soon as there is one. The socket's lock is taken
    /// once for all, and no bytes are copied.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_batch(&self, into: &mut Vec<Datagram>, most: usize) -> io::Result<usize> {
        let timeout = &self.wait_mode.read_timeout;
        let count = self.wait_for(READ_READY, timeout, || self.take_batch(into, most));
        count.map_err(socket_error)
    }

    fn take_batch(&self, into: &mut Vec<Datagram>, most: usize) -> Result<usize, SocketError> {
        self.handle.recv_batch(most, |datagram| into.push(self.received(datagram)))
    }

    /// Waits for a datagram, with both of its ends.
    pub(super) fn recv_datagram(&self) -> io::Result<Datagram> {
        let timeout = &self.wait_mode.read_timeout;
        let datagram = self.wait_for(READ_READY, timeout, || self.handle.recv_from());
        Ok(self.received(datagram.map_err(socket_error)?))
    }

    /// Answers a received datagram by an ICMP error.
    pub(super) fn refuse(&self, datagram: &Datagram, why: Refusal) -> io::Result<()> {
        let Some(received) = datagram.to_received(|address| self.canonical(address)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.handle.refuse(clock::now(), &received, why).map_err(socket_error)
    }

    /// A received datagram as the application sees it.
    fn received(&self, datagram: ReceivedDatagram) -> Datagram {
        let ReceivedDatagram {
            from,
            to,
            hop_limit,
            tos,
            interface,
            is_broadcast,
            dont_fragment,
            data,
            ..
        } = datagram;
        let arrival = Arrival { interface, hop_limit, tos, is_broadcast, dont_fragment };
        let local = Some(self.show(to));
        Datagram { local, arrival: Some(arrival), ..Datagram::new(data, self.show(from)) }
    }

    /// Returns another handle of the same socket, as `clone` does. Modes and timeouts are shared.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the own address and port. If a socket that is bound to all addresses is connected,
    /// it is the address that datagrams to the peer are sent from, as on Linux.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.show(self.handle.name()))
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.handle.take_error().map(socket_error))
    }

    /// Returns whether it serves IPv6 alone: by [`UdpOptions::only_v6`], or because it is bound to
    /// one address of IPv6.
    pub fn only_v6(&self) -> io::Result<bool> {
        Ok(self.only_v6 || mapped::is_one_of_v6(self.handle.local_addr()))
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again. It holds for all clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Sets how long a receiving call waits (`SO_RCVTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.read_timeout, timeout)
    }

    /// Sets how long a sending call waits (`SO_SNDTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.write_timeout, timeout)
    }

    /// Returns how long a receiving call waits (`SO_RCVTIMEO`).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.read_timeout))
    }

    /// Returns how long a sending call waits (`SO_SNDTIMEO`).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.write_timeout))
    }

    /// Sets the receive and the send buffer (`SO_RCVBUF`, `SO_SNDBUF`) in bytes of memory. A
    /// datagram takes 640 bytes besides its data. `None` leaves a buffer as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        self.handle.set_buffers(receive, send);
    }

    /// Returns the sizes of the receive and the send buffer, in bytes of memory.
    pub fn buffers(&self) -> (u32, u32) {
        self.handle.buffers()
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        let is_v4 = self.handle.local_addr().is_ipv4();
        let (v4, v6) = self.handle.hop_limits();
        Ok(self.engine.stack.hop_limit(if is_v4 { v4 } else { v6 }, is_v4).into())
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS`, which are not for datagrams to groups.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let hops = hop_limit(ttl)?;
        self.handle.set_hop_limits(hops, hops);
        Ok(())
    }

    /// Returns the TOS byte of packets, of IPv6 their traffic class (`IP_TOS`, `IPV6_TCLASS`).
    pub fn tos(&self) -> io::Result<u8> {
        let (v4, v6) = self.handle.tos();
        Ok(if self.handle.local_addr().is_ipv4() { v4 } else { v6 })
    }

    /// Sets `IP_TOS` and `IPV6_TCLASS`, with the ECN codepoint in the low two bits. As in Linux the
    /// TOS byte also chooses the band of `pfifo_fast` and `fq`.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.handle.set_tos(tos, tos);
        Ok(())
    }

    /// Returns whether the socket may send to broadcast addresses (`SO_BROADCAST`).
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(self.handle.broadcast())
    }

    /// Lets the socket send to `255.255.255.255` and to the broadcast address of a network
    /// (`SO_BROADCAST`); without it such calls fail with `PermissionDenied`. Sockets that are bound
    /// to `0.0.0.0` or to the broadcast address receive what others send there.
    ///
    /// A stack that has no address yet sends to `255.255.255.255` from `0.0.0.0`, by the interface
    /// that [`Datagram::interface`] names. On Ethernet such an interface also receives datagrams
    /// for any address that come to its link address, as a DHCP client needs it.
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.handle.set_broadcast(broadcast);
        Ok(())
    }

    /// Asks for the error queue (`IP_RECVERR`, `IPV6_RECVERR`): what ICMP says of any datagram is
    /// told by the next call, connected or not, and kept for [`recv_error`](Self::recv_error).
    pub fn set_receive_errors(&self, on: bool) -> io::Result<()> {
        self.handle.set_receive_errors(on, on);
        if !on {
            self.handle.clear_errors();
        }
        Ok(())
    }

    /// Waits for a record of the error queue (`MSG_ERRQUEUE`): which datagram, by both of its ends,
    /// met which error, and who says so. Records beyond the room in the receive buffer are dropped
    /// and counted.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout; `ConnectionAborted` when the
    /// stack was dropped.
    pub fn recv_error(&self) -> io::Result<ErrorRecord> {
        let timeout = &self.wait_mode.read_timeout;
        self.wait_for(ERROR_READY, timeout, || self.take_record()).map_err(socket_error)
    }

    fn take_record(&self) -> Result<ErrorRecord, SocketError> {
        let Some(mut record) = self.handle.next_error() else {
            let has_ended = self.handle.readiness().bits().contains(Ready::READ_CLOSED);
            return Err(if has_ended { SocketError::ShutDown } else { SocketError::WouldBlock });
        };
        record.destination = self.show(record.destination);
        record.source = record.source.map(|source| self.show(source));
        record.offender = record.offender.map(|ip| self.show(SocketAddr::new(ip, 0)).ip());
        Ok(record)
    }

    /// Limits the rate in bytes per second (`SO_MAX_PACING_RATE`); `None` is unlimited. It needs
    /// the qdisc `fq`, as in Linux: see [`Builder::qdisc`](crate::Builder::qdisc).
    pub fn set_max_pacing_rate(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
        self.handle.set_max_pacing_rate(bytes_per_second.map_or(Rate::UNLIMITED, Rate));
        Ok(())
    }
}

/// What a task tries: `WouldBlock` where it would have to wait, whatever the mode.
#[cfg(feature = "tokio")]
impl UdpSocket {
    pub(crate) fn try_send(&self, data: &[u8], remote: Option<SocketAddr>) -> io::Result<usize> {
        let datagram = Bytes::copy_from_slice(data);
        let remote = remote.map(|remote| self.canonical(remote));
        self.handle.send_to(clock::now(), datagram, remote).map_err(socket_error)?;
        Ok(data.len())
    }

    pub(crate) fn try_send_batch(&self, datagrams: &[Datagram]) -> io::Result<usize> {
        self.attempt_batch(datagrams).map_err(socket_error)
    }

    pub(crate) fn try_recv_datagram(&self) -> io::Result<Datagram> {
        self.handle.recv_from().map(|datagram| self.received(datagram)).map_err(socket_error)
    }

    pub(crate) fn try_recv_error(&self) -> io::Result<ErrorRecord> {
        self.take_record().map_err(socket_error)
    }

    pub(crate) fn try_recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.handle.recv_from().map_err(socket_error)?;
        Ok(self.copy(&datagram, buf))
    }

    pub(crate) fn try_peek(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.handle.peek_from().map_err(socket_error)?;
        Ok(self.copy(&datagram, buf))
    }

    pub(crate) fn try_recv_batch(
        &self,
        into: &mut Vec<Datagram>,
        most: usize,
    ) -> io::Result<usize> {
        self.take_batch(into, most).map_err(socket_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_that_is_refused_is_known_by_the_interface_that_it_came_in_by() {
        let address = |text: &str| text.parse().expect("an address");
        let interface = InterfaceId::from_index(3);
        let arrival =
            Arrival { interface, hop_limit: 9, tos: 4, is_broadcast: false, dont_fragment: true };
        let datagram = Datagram {
            local: Some(address("[fe80::1]:53")),
            arrival: Some(arrival),
            ..Datagram::new(&b"question"[..], address("[fe80::9]:1000"))
        };
        let received = datagram.to_received(|address| address).expect("it was received");
        assert_eq!((received.hop_limit, received.tos), (9, 4));
        assert!(received.interface.is_some());
        assert_eq!(received.interface, interface);
    }
}
