//! [`UdpHandle`]: the application's reference to a UDP socket.

use crate::host::Host;
use crate::host::error::SocketError;
use crate::host::error_queue::ErrorRecord;
use crate::host::listed::UdpInfo;
use crate::host::readiness::{Ready, ReadyState};
use crate::host::udp::UdpSocket;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::time::{Instant, Rate};
use std::sync::{Arc, Weak};
use std::task::Waker;

pub use crate::host::udp::{DEFAULT_BUFFER, FORWARDER_BUFFER};
pub use crate::host::udp_egress::SendDatagram;
pub use crate::host::udp_queue::ReceivedDatagram;
pub use crate::net::icmp::Refusal;

/// The application's reference to a UDP socket; clones share it, the last one closes it.
#[derive(Clone, Debug)]
pub struct UdpHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    socket: Arc<UdpSocket>,
    host: Arc<Host>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.host.udp.remove(&self.socket);
        self.socket.close();
    }
}

/// A reference to a UDP socket that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakUdpHandle(Weak<Held>);

impl WeakUdpHandle {
    /// The socket, while an application holds it.
    pub fn upgrade(&self) -> Option<UdpHandle> {
        self.0.upgrade().map(UdpHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl UdpHandle {
    pub(crate) fn new(socket: Arc<UdpSocket>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { socket, host }))
    }

    /// The bound address; unspecified if bound to all addresses.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.local_addr()
    }

    /// The own address as `getsockname(2)` answers: of a connected socket that is bound to all
    /// addresses, the one that [`connect`](Self::connect) chose. The scope of a link-local address
    /// of IPv6 is that of the connected peer; without a peer it has none.
    pub fn name(&self) -> SocketAddr {
        self.0.socket.name()
    }

    /// `SO_REUSEADDR`: whether sockets that have it too may be bound to the same address.
    pub fn set_reuse(&self, on: bool) {
        self.0.socket.set_reuse(on);
    }

    /// The connected peer.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.0.socket.remote_addr()
    }

    /// Returns the largest IP packet that the way to the connected peer takes, in bytes (`IP_MTU`,
    /// `IPV6_MTU`). It is the way by which the socket sends, from its own address and on the link
    /// of the peer's scope. `None` without a peer, and without a way.
    pub fn path_mtu(&self, now: Instant) -> Option<u32> {
        self.0.socket.path_mtu(&self.0.host, now)
    }

    /// Sends to and receives from `remote` only; `None` ends that. A socket that is bound to all
    /// addresses has from then on the one that packets to `remote` are sent from: it sends from
    /// that one and receives what is sent to it. As in Linux it keeps that address when it is
    /// connected to another peer, until it is connected to `None`; and if the first peer is one of
    /// IPv4, it has nothing to do with IPv6 meanwhile.
    ///
    /// A peer with a link-local address of IPv6 is met by the interface whose
    /// [number](crate::interface::InterfaceId::index) is the scope of the address; without a scope
    /// by the first one that has a route. [`remote_addr`](Self::remote_addr) has that scope.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`] if the socket is bound to the other family, and for IPv6 if
    /// it is connected by IPv4; `NetworkUnreachable` without a route; `AddressNotAvailable` if the
    /// interface on the way has no address of that family; `Reported` with `Forbidden` for a
    /// broadcast address without [`set_broadcast`](Self::set_broadcast); `InvalidArgument` for a
    /// forwarder, and for another host if the socket has a loopback address.
    pub fn connect(&self, remote: Option<SocketAddr>) -> Result<(), SocketError> {
        self.0.socket.connect(&self.0.host, remote)
    }

    /// Sends `data` to `to`, or to the connected peer. The datagram is queued below, or refused as
    /// a whole.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer's worth of bytes is below, or the qdisc takes no more
    /// while frames of this socket wait in it: a completion makes the socket writable; `NoBuffers`
    /// when the qdisc is full of others' frames; `MessageTooLong`; `DestinationRequired`; a pending
    /// ICMP error; no route; `Reported` with `Forbidden` for a broadcast address without
    /// [`set_broadcast`](Self::set_broadcast); `AddressNotAvailable` for a forwarder, which has no
    /// address of its own to send from; `InvalidArgument` to another host from a loopback address.
    pub fn send_to(
        &self,
        now: Instant,
        data: Bytes,
        to: Option<SocketAddr>,
    ) -> Result<(), SocketError> {
        self.send_batch(now, [SendDatagram::new(data, to)]).1
    }

    /// Sends datagrams in their order until one is refused (`sendmmsg(2)`). How many were sent, and
    /// why the next one was not. The socket's lock is taken once for all, and the route is looked
    /// up once for each run of datagrams with one destination.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to); `AddressNotAvailable` for a source that is no own address, or
    /// not the one that the socket is bound to (a transparent socket sends from any), and for
    /// another port than the socket's; `InvalidArgument` for no hop.
    pub fn send_batch(
        &self,
        now: Instant,
        datagrams: impl IntoIterator<Item = SendDatagram>,
    ) -> (usize, Result<(), SocketError>) {
        self.0.socket.send_batch(&self.0.host, now, datagrams.into_iter())
    }

    /// Fails as [`send_batch`](Self::send_batch) of this datagram would now, whatever room there is
    /// below, and sends nothing.
    ///
    /// # Errors
    /// As `send_batch`, but neither `WouldBlock` nor `NoBuffers`. A pending ICMP error is told
    /// once.
    pub fn check_send(&self, now: Instant, datagram: &SendDatagram) -> Result<(), SocketError> {
        self.0.socket.check_send(&self.0.host, now, datagram)
    }

    /// Tells the sender of a received datagram by ICMP that its destination cannot be reached. The
    /// message comes from the address that the datagram was sent to and is under the limits of all
    /// ICMP errors, beyond which it is dropped and counted.
    ///
    /// # Errors
    /// `AddressNotAvailable` if the destination is no own address, and the socket is neither
    /// transparent nor a forwarder; for a broadcast one. `InvalidArgument` for what cannot have
    /// been received.
    pub fn refuse(
        &self,
        now: Instant,
        datagram: &ReceivedDatagram,
        why: Refusal,
    ) -> Result<(), SocketError> {
        self.0.socket.refuse(&self.0.host, now, datagram, why)
    }

    /// The next datagram.
    ///
    /// # Errors
    /// `WouldBlock`; a pending ICMP error; `ShutDown`.
    pub fn recv_from(&self) -> Result<ReceivedDatagram, SocketError> {
        self.0.socket.receive()
    }

    /// Gives up to `most` datagrams to `take`, which must not call the socket; how many there were
    /// (`recvmmsg(2)`). The socket's lock is taken once for all.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv_batch(
        &self,
        most: usize,
        take: impl FnMut(ReceivedDatagram),
    ) -> Result<usize, SocketError> {
        self.0.socket.receive_batch(most, take)
    }

    /// As [`recv_batch`](Self::recv_batch) for a call that has taken some datagrams before: a
    /// pending ICMP error ends it, and stays for the next call (`do_recvmmsg`).
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    #[doc(hidden)]
    pub fn recv_more(
        &self,
        most: usize,
        take: impl FnMut(ReceivedDatagram),
    ) -> Result<usize, SocketError> {
        self.0.socket.receive_more(most, take)
    }

    /// As [`recv_from`](Self::recv_from), and the datagram stays.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn peek_from(&self) -> Result<ReceivedDatagram, SocketError> {
        self.0.socket.peek()
    }

    /// `FIONREAD`: bytes of the next datagram, 0 without one.
    pub fn next_len(&self) -> u32 {
        self.0.socket.next_len()
    }

    /// Receive and send buffer, bytes.
    pub fn buffers(&self) -> (u32, u32) {
        self.0.socket.buffers()
    }

    /// `SO_RCVBUF` and `SO_SNDBUF`, in bytes, not doubled; `None` leaves one as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        self.0.socket.set_buffers(receive, send);
    }

    /// `SO_MAX_PACING_RATE` in bytes per second, [`Rate::UNLIMITED`] for none. As in Linux it is
    /// `fq` that spaces the datagrams, by their bytes on the wire; without `fq` nothing does.
    pub fn set_max_pacing_rate(&self, rate: Rate) {
        self.0.socket.set_max_pacing_rate(rate);
    }

    /// `SO_MAX_PACING_RATE` as it was set.
    pub fn max_pacing_rate(&self) -> Rate {
        self.0.socket.max_pacing_rate()
    }

    /// `IP_TTL` and `IPV6_UNICAST_HOPS`: hops that a packet may take; 0 is the default of the host.
    pub fn hop_limits(&self) -> (u8, u8) {
        self.0.socket.hop_limits()
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS`; 0 is the default of the host. Datagrams to groups
    /// take [one hop](SendDatagram::hop_limit) whatever is set.
    pub fn set_hop_limits(&self, v4: u8, v6: u8) {
        self.0.socket.set_hop_limits(v4, v6);
    }

    /// `IP_TOS` and `IPV6_TCLASS`: the TOS byte and the traffic class, ECN in the low two bits.
    pub fn tos(&self) -> (u8, u8) {
        self.0.socket.tos()
    }

    /// Sets `IP_TOS` and `IPV6_TCLASS`. As in Linux, the TOS byte also chooses the band of
    /// `pfifo_fast` and `fq`.
    pub fn set_tos(&self, v4: u8, v6: u8) {
        self.0.socket.set_tos(v4, v6);
    }

    /// `SO_BROADCAST`: whether the socket may send to broadcast addresses.
    pub fn broadcast(&self) -> bool {
        self.0.socket.may_broadcast()
    }

    /// Sets `SO_BROADCAST`.
    pub fn set_broadcast(&self, on: bool) {
        self.0.socket.set_broadcast(on);
    }

    /// `IP_TRANSPARENT`: whether the socket may send from addresses of others.
    pub fn transparent(&self) -> bool {
        self.0.socket.is_transparent()
    }

    /// Sets `IP_TRANSPARENT` for what is sent from now on. What the socket is bound to stays.
    pub fn set_transparent(&self, on: bool) {
        self.0.socket.set_transparent(on);
    }

    /// `SO_ERROR`: the pending error, once.
    pub fn take_error(&self) -> Option<SocketError> {
        self.0.socket.take_error()
    }

    /// `IP_RECVERR` for IPv4, `IPV6_RECVERR` for IPv6: what ICMP says of any datagram is told,
    /// connected or not, and kept in the error queue.
    pub fn set_receive_errors(&self, v4: bool, v6: bool) {
        self.0.socket.set_receive_errors(v4, v6);
    }

    /// `IP_RECVERR` and `IPV6_RECVERR` as they were set.
    pub fn receive_errors(&self) -> (bool, bool) {
        self.0.socket.receive_errors()
    }

    /// `MSG_ERRQUEUE`: the oldest record of the error queue. What [`take_error`](Self::take_error)
    /// says is the next record's error then, or nothing.
    pub fn next_error(&self) -> Option<ErrorRecord> {
        self.0.socket.next_error()
    }

    /// Empties the error queue, as turning the option off does.
    pub fn clear_errors(&self) {
        self.0.socket.clear_errors();
    }

    /// Returns what the socket is ready for, and the generation to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.socket.readiness().state()
    }

    /// Registers a waker as [`TcpHandle::register`](super::tcp::TcpHandle::register) does.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.socket.readiness().register(seen, interest, waker)
    }

    /// Registers a waker as [`register`](Self::register) does, for a thread that will receive: each
    /// datagram wakes one of these, the one that has waited longest. One that `drives` the stack
    /// comes first. The end of the socket wakes all.
    ///
    /// Who was woken, or may have been woken before it unregistered, calls
    /// [`recv_from`](Self::recv_from) or [`pass_on`](Self::pass_on). Otherwise a datagram may wait
    /// while others sleep.
    #[must_use = "false means: look again"]
    pub fn register_exclusive(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.0.socket.readiness().register_exclusive(seen, interest, waker, drives)
    }

    /// Wakes the next waker of [`register_exclusive`](Self::register_exclusive) if a datagram or an
    /// error is there, for a caller that leaves what it was woken for.
    pub fn pass_on(&self) {
        self.0.socket.readiness().pass_on();
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.socket.readiness().unregister(waker);
    }

    /// A reference that does not keep the socket open.
    pub fn downgrade(&self) -> WeakUdpHandle {
        WeakUdpHandle(Arc::downgrade(&self.0))
    }

    /// Figures of the socket, as a listing has them: its memory, and the datagrams that it dropped.
    pub fn info(&self) -> UdpInfo {
        self.0.socket.listed()
    }

    /// Bytes of this socket that the wire does not have yet.
    pub fn bytes_below(&self) -> u64 {
        self.0.socket.bytes_below()
    }
}
