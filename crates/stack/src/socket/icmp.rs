//! [`IcmpHandle`]: the application's reference to an ICMP socket.

use crate::host::Host;
use crate::host::error::SocketError;
use crate::host::icmp::IcmpSocket;
use crate::host::readiness::{Ready, ReadyState};
use bytes::Bytes;
use core::net::IpAddr;
use neap_tcp::time::Instant;
use std::sync::{Arc, Weak};
use std::task::Waker;

pub use crate::host::icmp::{DEFAULT_BUFFER, IcmpMessage, IcmpOptions};
pub use crate::net::icmp::IcmpErrorKind;

/// The application's reference to an ICMP socket; clones share it, the last one closes it.
#[derive(Clone, Debug)]
pub struct IcmpHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    socket: Arc<IcmpSocket>,
    host: Arc<Host>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.host.icmp.remove(&self.socket);
        self.socket.close();
    }
}

/// A reference to an ICMP socket that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakIcmpHandle(Weak<Held>);

impl WeakIcmpHandle {
    /// The socket, while an application holds it.
    pub fn upgrade(&self) -> Option<IcmpHandle> {
        self.0.upgrade().map(IcmpHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl IcmpHandle {
    pub(crate) fn new(socket: Arc<IcmpSocket>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { socket, host }))
    }

    /// The options that the socket was opened with.
    pub fn options(&self) -> &IcmpOptions {
        self.0.socket.options()
    }

    /// The next message.
    ///
    /// # Errors
    /// `WouldBlock`; `ShutDown`; `Reported` with `NetworkDown`, once, when the device of the only
    /// interface that it could come in by is gone.
    pub fn recv(&self) -> Result<IcmpMessage, SocketError> {
        self.0.socket.receive()
    }

    /// Sends a message of any type, with its checksum filled in. It is queued below, or refused as
    /// a whole.
    ///
    /// # Errors
    /// `WouldBlock` when the send buffer's worth of bytes is below; `NoBuffers` when the qdisc is
    /// full; `MessageTooLong`, also for a message that must not be cut and is longer than the path
    /// takes, see [`Stack::path_mtu`](crate::stack::Stack::path_mtu); `InvalidArgument` for a
    /// message of less than eight bytes, and to the unspecified address or to a group;
    /// `AddressFamily`; `AddressNotAvailable` for a source that the socket may not send from;
    /// `Reported` with `Forbidden` for a broadcast address; no route; `ShutDown`.
    pub fn send(&self, now: Instant, message: &IcmpMessage) -> Result<(), SocketError> {
        self.0.socket.send(&self.0.host, now, message)
    }

    /// Tells the sender of `packet`, which is an IP packet from its header on, of an error. The
    /// error quotes the packet and comes from `from`; the unspecified address stands for the own
    /// address that the route prefers. Returns false, and counts it, if a rate limit of ICMP errors
    /// (`net.ipv4.icmp_ratelimit` and others) withholds the message.
    ///
    /// A packet does not say by which link it came. To a link-local sender the error leaves by the
    /// [`interface`](IcmpOptions::interface) of the socket; without one, by the first link that has
    /// a route to it.
    ///
    /// # Errors
    /// `InvalidArgument` for a packet that no error may be sent about (RFC 1122 section 3.2.2, RFC
    /// 4443 section 2.4): an ICMP error, a fragment that is not the first, one from or to a group
    /// or all hosts, and what is no packet; and for a code that does not exist. Others as
    /// [`send`](Self::send).
    pub fn send_error(
        &self,
        now: Instant,
        from: IpAddr,
        packet: &Bytes,
        error: IcmpErrorKind,
    ) -> Result<bool, SocketError> {
        self.0.socket.send_error(&self.0.host, now, from, packet, error)
    }

    /// Receive and send buffer, bytes.
    pub fn buffers(&self) -> (u32, u32) {
        self.0.socket.buffers()
    }

    /// `SO_RCVBUF` and `SO_SNDBUF`, in bytes, not doubled; `None` leaves one as it is.
    pub fn set_buffers(&self, receive: Option<u32>, send: Option<u32>) {
        self.0.socket.set_buffers(receive, send);
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
    /// message wakes one of these, the one that has waited longest. One that `drives` the stack
    /// comes first. The end of the socket wakes all.
    ///
    /// Who was woken, or may have been woken before it unregistered, calls
    /// [`recv`](Self::recv) or [`pass_on`](Self::pass_on). Otherwise a message may wait while
    /// others sleep.
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

    /// Wakes the next waker of [`register_exclusive`](Self::register_exclusive) if a message or an
    /// error is there, for a caller that leaves what it was woken for.
    pub fn pass_on(&self) {
        self.0.socket.readiness().pass_on();
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.socket.readiness().unregister(waker);
    }

    /// A reference that does not keep the socket open.
    pub fn downgrade(&self) -> WeakIcmpHandle {
        WeakIcmpHandle(Arc::downgrade(&self.0))
    }

    /// Bytes of this socket that the wire does not have yet.
    pub fn bytes_below(&self) -> u64 {
        self.0.socket.bytes_below()
    }
}
