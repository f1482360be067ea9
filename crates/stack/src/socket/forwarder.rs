//! [`ForwarderHandle`] and [`PendingHandle`]: connections that an application decides about
//! before they are answered.

use super::tcp::TcpHandle;
use crate::drop_reason::DropReason;
use crate::host::Host;
use crate::host::error::SocketError;
use crate::host::forwarder::{Forwarder, Pending, TcpForwarderOptions};
use crate::host::readiness::{Ready, ReadyState};
use crate::net::Visit;
use crate::net::icmp::{Ends, syn_packet};
use crate::net::interface::InterfaceId;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_tcp::options::SocketOptions;
use neap_tcp::segment::Segment;
use neap_tcp::time::Instant;
use std::sync::{Arc, Weak};
use std::task::Waker;

pub use crate::net::icmp::Refusal;

/// The application's reference to a forwarder; clones share it, the last one closes it. What is
/// pending then is reset.
#[derive(Clone, Debug)]
pub struct ForwarderHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    forwarder: Arc<Forwarder>,
    host: Arc<Host>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.host.close_forwarder(&self.forwarder, self.host.last_noted_time());
    }
}

/// A reference to a forwarder that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakForwarderHandle(Weak<Held>);

impl WeakForwarderHandle {
    /// The forwarder, while an application holds it.
    pub fn upgrade(&self) -> Option<ForwarderHandle> {
        self.0.upgrade().map(ForwarderHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl ForwarderHandle {
    pub(crate) fn new(forwarder: Arc<Forwarder>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { forwarder, host }))
    }

    /// The oldest pending connection that was not received.
    ///
    /// # Errors
    /// `WouldBlock`; `ShutDown` once closed; `Reported` with `NetworkDown` if the device of its
    /// interface is gone.
    pub fn receive(&self) -> Result<PendingHandle, SocketError> {
        let Held { forwarder, host } = &*self.0;
        let pending = forwarder.receive()?;
        Ok(PendingHandle { pending, host: host.clone() })
    }

    /// Stops taking SYNs: what is pending is reset.
    pub fn close(&self, now: Instant) {
        self.0.host.close_forwarder(&self.0.forwarder, now);
    }

    /// The options that it was made with.
    pub fn options(&self) -> &TcpForwarderOptions {
        &self.0.forwarder.options
    }

    /// Connections that are pending, and those of them that were not received.
    pub fn queued(&self) -> (usize, usize) {
        self.0.forwarder.queued()
    }

    /// Connections that count for the bounds: pending ones, and those whose handshake runs.
    pub fn places(&self) -> usize {
        self.0.forwarder.places()
    }

    /// Returns what the forwarder is ready for ([`Ready::READABLE`]: to receive), and the
    /// generation to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.forwarder.readiness.state()
    }

    /// Registers a waker as [`TcpHandle::register`] does.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.forwarder.readiness.register(seen, interest, waker)
    }

    /// Registers a waker as [`register`](Self::register) does, for a thread that will receive: each
    /// connection wakes one of these, the one that has waited longest. One that `drives` the stack
    /// comes first. The end of the forwarder wakes all.
    ///
    /// Who was woken, or may have been woken before it unregistered, calls
    /// [`receive`](Self::receive) or [`pass_on`](Self::pass_on). Otherwise a connection may wait
    /// while others sleep.
    #[must_use = "false means: look again"]
    pub fn register_exclusive(
        &self,
        seen: ReadyState,
        interest: Ready,
        waker: &Waker,
        drives: bool,
    ) -> bool {
        self.0.forwarder.readiness.register_exclusive(seen, interest, waker, drives)
    }

    /// Wakes the next waker of [`register_exclusive`](Self::register_exclusive) if a connection or
    /// an error is there, for a caller that leaves what it was woken for.
    pub fn pass_on(&self) {
        self.0.forwarder.readiness.pass_on();
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.forwarder.readiness.unregister(waker);
    }

    /// A reference that does not keep the forwarder open.
    pub fn downgrade(&self) -> WeakForwarderHandle {
        WeakForwarderHandle(Arc::downgrade(&self.0))
    }
}

/// A SYN that nobody has answered yet.
///
/// The application accepts it, resets it, rejects it by an ICMP error, or ignores it. Dropping the
/// value without a decision resets it, so that the peer of a program that fails learns of it at
/// once. The value is over without a decision if the peer resets the connection, when the time of
/// the forwarder is over, and with the forwarder itself.
#[derive(Debug)]
pub struct PendingHandle {
    pending: Arc<Pending>,
    host: Arc<Host>,
}

impl Drop for PendingHandle {
    fn drop(&mut self) {
        self.refuse(self.host.last_noted_time());
    }
}

impl PendingHandle {
    /// Address and port that the peer wants to reach. A link-local address of IPv6 has no scope,
    /// which would name another interface where it is reached from another host:
    /// [`remote_addr`](Self::remote_addr) shows the link.
    pub fn local_addr(&self) -> SocketAddr {
        self.pending.tuple.local_addr()
    }

    /// The peer's address and port.
    pub fn remote_addr(&self) -> SocketAddr {
        self.pending.tuple.remote_addr()
    }

    /// Interface that the SYN came in by.
    pub fn interface(&self) -> Option<InterfaceId> {
        self.pending.arrival.interface
    }

    /// Hops that were left of the first SYN (`IP_RECVTTL`).
    pub fn hop_limit(&self) -> u8 {
        self.pending.arrival.hop_limit
    }

    /// DSCP and ECN of the first SYN (`IP_RECVTOS`).
    pub fn tos(&self) -> u8 {
        self.pending.arrival.tos
    }

    /// MSS that the peer announces, in bytes, as of its last SYN.
    pub fn max_segment(&self) -> Option<u16> {
        self.pending.syn().0.segment().options.mss
    }

    /// Why there is nothing to decide any more: the peer has reset the connection, its time is
    /// over, or the forwarder is closed. `None` while it is pending.
    pub fn error(&self) -> Option<SocketError> {
        self.pending.syn().1
    }

    /// Answers the SYN. The handle becomes writable when the handshake is over, and has an error
    /// when that failed. `options` act from the SYN-ACK on.
    ///
    /// # Errors
    /// [`error`](Self::error); `NetworkUnreachable` without a route to the peer, `AddressInUse` if
    /// a socket was opened with the same ends, `InvalidArgument` for a controller that is unknown
    /// and for an option out of range, `ShutDown`. The connection is reset then.
    pub fn accept(self, now: Instant, options: SocketOptions) -> Result<TcpHandle, SocketError> {
        let accepted = self.host.accept_pending(now, &self.pending, options);
        match accepted {
            Ok(socket) => Ok(TcpHandle::new(socket, self.host.clone())),
            Err(error) => {
                self.refuse(now);
                Err(error)
            }
        }
    }

    /// Refuses the connection as a host does where nobody listens.
    pub fn reset(self, now: Instant) {
        self.refuse(now);
    }

    /// Tells the peer by an ICMP error that it cannot have the connection. The rate of such errors
    /// is limited; a SYN that gets none is dropped, and counted.
    pub fn reject(self, now: Instant, why: Refusal) {
        let Ok(decided) = self.pending.decide() else { return };
        self.pending.forget(self.host.flow_key);
        let Pending { tuple, shard, .. } = &*self.pending;
        let packet = self.packet_of(&decided.syn.segment());
        let visit = Visit::new(now, *shard);
        let interface = InterfaceId::from_index(tuple.scope);
        let (local, remote) = (tuple.local, tuple.remote);
        self.host.net.refuse(visit, Ends { local, remote, interface }, &packet, why);
    }

    /// Returns the SYN as an IP packet, for an ICMP error to quote. Identification and IP options
    /// are not those that it came with. The bytes are copied.
    pub fn to_packet(&self) -> Bytes {
        self.packet_of(&self.pending.syn().0.segment())
    }

    fn packet_of(&self, syn: &Segment) -> Bytes {
        let Pending { tuple, arrival, .. } = &*self.pending;
        syn_packet(tuple, syn, (arrival.hop_limit, arrival.tos))
    }

    /// Drops the SYN without an answer, and counts it. The next one of the peer is a new pending
    /// connection.
    pub fn ignore(self) {
        if self.pending.decide().is_ok() {
            self.pending.forget(self.host.flow_key);
            self.host.net.counters.drops.count(DropReason::PendingIgnored);
        }
    }

    fn refuse(&self, now: Instant) {
        if let Ok(decided) = self.pending.decide() {
            self.pending.forget(self.host.flow_key);
            let visit = Visit::new(now, self.pending.shard);
            self.host.send_reset(visit, &self.pending.tuple, &decided.syn.segment());
        }
    }

    /// Returns [`Ready::ERROR`] when there is nothing to decide any more, and the generation to
    /// register with.
    pub fn readiness(&self) -> ReadyState {
        self.pending.readiness.state()
    }

    /// Registers a waker as [`TcpHandle::register`] does.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.pending.readiness.register(seen, interest, waker)
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.pending.readiness.unregister(waker);
    }

    /// The shard whose driver received the SYN.
    pub fn shard(&self) -> usize {
        self.pending.shard
    }

    /// A reference to wait with, which neither decides nor keeps the SYN pending.
    pub fn downgrade(&self) -> WeakPendingHandle {
        WeakPendingHandle(Arc::downgrade(&self.pending))
    }
}

/// A reference to a pending connection that decides nothing.
#[derive(Clone, Debug)]
pub struct WeakPendingHandle(Weak<Pending>);

impl WeakPendingHandle {
    /// What is to be waited for, while the connection is pending.
    pub fn upgrade(&self) -> Option<PendingWatch> {
        self.0.upgrade().map(PendingWatch)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The readiness of a pending connection: [`Ready::ERROR`] when there is nothing to decide any
/// more.
#[derive(Debug)]
pub struct PendingWatch(Arc<Pending>);

impl PendingWatch {
    /// As [`PendingHandle::readiness`].
    pub fn readiness(&self) -> ReadyState {
        self.0.readiness.state()
    }

    /// As [`PendingHandle::register`].
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.readiness.register(seen, interest, waker)
    }

    /// As [`PendingHandle::unregister`].
    pub fn unregister(&self, waker: &Waker) {
        self.0.readiness.unregister(waker);
    }

    /// As [`PendingHandle::shard`].
    pub fn shard(&self) -> usize {
        self.0.shard
    }
}
