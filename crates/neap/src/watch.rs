//! Sources that a [`Poller`](crate::Poller) can wait for.

use crate::blocking::{
    IcmpSocket, PendingConnection, TcpForwarder, TcpListener, TcpStream, UdpForwarder, UdpSocket,
};
use crate::engine::Engine;
use neap_stack::socket::forwarder::{
    ForwarderHandle, PendingWatch, WeakForwarderHandle, WeakPendingHandle,
};
use neap_stack::socket::icmp::{IcmpHandle, WeakIcmpHandle};
use neap_stack::socket::listener::{ListenerHandle, WeakListenerHandle};
use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_stack::socket::tcp::{TcpHandle, WeakTcpHandle};
use neap_stack::socket::udp::{UdpHandle, WeakUdpHandle};
use neap_stack::wait::Source;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

/// Source of events that a [`Poller`](crate::Poller) can wait for: [`TcpStream`], [`TcpListener`],
/// [`TcpForwarder`], [`PendingConnection`], [`UdpSocket`], [`UdpForwarder`] and [`IcmpSocket`] of
/// any stack, and every descriptor of the kernel.
pub trait Pollable: sealed::Watch {}

impl<T: sealed::Watch> Pollable for T {}

mod sealed {
    pub trait Watch {
        fn target(&self) -> super::Target<'_>;
    }
}

pub(crate) use sealed::Watch;

/// The place where a [`Pollable`] is to be waited for.
#[derive(Debug)]
pub enum Target<'a> {
    /// A socket of a stack.
    Socket(WeakSocket, Arc<Engine>),
    /// A descriptor of the kernel.
    File(BorrowedFd<'a>),
}

impl<T: AsFd> Watch for T {
    fn target(&self) -> Target<'_> {
        Target::File(self.as_fd())
    }
}

impl Watch for TcpStream {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Tcp(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for TcpListener {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Listener(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for TcpForwarder {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Forwarder(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for PendingConnection {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Pending(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for UdpSocket {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Udp(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for IcmpSocket {
    fn target(&self) -> Target<'_> {
        Target::Socket(WeakSocket::Icmp(self.handle().downgrade()), self.engine().clone())
    }
}

impl Watch for UdpForwarder {
    fn target(&self) -> Target<'_> {
        self.socket().target()
    }
}

/// A socket that is not kept open.
#[derive(Clone, Debug)]
pub enum WeakSocket {
    /// A connection.
    Tcp(WeakTcpHandle),
    /// A listener.
    Listener(WeakListenerHandle),
    /// A forwarder of SYNs.
    Forwarder(WeakForwarderHandle),
    /// A SYN that nobody has answered.
    Pending(WeakPendingHandle),
    /// A UDP socket.
    Udp(WeakUdpHandle),
    /// An ICMP socket.
    Icmp(WeakIcmpHandle),
}

impl WeakSocket {
    /// The socket, while an application has it open.
    pub(crate) fn upgrade(&self) -> Option<Socket> {
        Some(match self {
            Self::Tcp(weak) => Socket::Tcp(weak.upgrade()?),
            Self::Listener(weak) => Socket::Listener(weak.upgrade()?),
            Self::Forwarder(weak) => Socket::Forwarder(weak.upgrade()?),
            Self::Pending(weak) => Socket::Pending(weak.upgrade()?),
            Self::Udp(weak) => Socket::Udp(weak.upgrade()?),
            Self::Icmp(weak) => Socket::Icmp(weak.upgrade()?),
        })
    }

    /// Tells sockets apart, as long as one of these is held.
    pub(crate) fn identity(&self) -> usize {
        match self {
            Self::Tcp(weak) => weak.identity(),
            Self::Listener(weak) => weak.identity(),
            Self::Forwarder(weak) => weak.identity(),
            Self::Pending(weak) => weak.identity(),
            Self::Udp(weak) => weak.identity(),
            Self::Icmp(weak) => weak.identity(),
        }
    }
}

/// A socket of any kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpHandle),
    Listener(ListenerHandle),
    Forwarder(ForwarderHandle),
    Pending(PendingWatch),
    Udp(UdpHandle),
    Icmp(IcmpHandle),
}

impl Socket {
    /// Returns what of `bits` the application is told. A [`TcpStream`] has no call that takes a
    /// record of the error queue, so its records would be told for ever.
    pub(crate) fn told(&self, bits: Ready) -> Ready {
        match self {
            Self::Tcp(_) => bits - Ready::ERROR_QUEUE,
            _ => bits,
        }
    }
}

impl Source for Socket {
    fn readiness(&self) -> ReadyState {
        match self {
            Self::Tcp(handle) => handle.readiness(),
            Self::Listener(handle) => handle.readiness(),
            Self::Forwarder(handle) => handle.readiness(),
            Self::Pending(handle) => handle.readiness(),
            Self::Udp(handle) => handle.readiness(),
            Self::Icmp(handle) => handle.readiness(),
        }
    }

    fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        match self {
            Self::Tcp(handle) => handle.register(seen, interest, waker),
            Self::Listener(handle) => handle.register(seen, interest, waker),
            Self::Forwarder(handle) => handle.register(seen, interest, waker),
            Self::Pending(handle) => handle.register(seen, interest, waker),
            Self::Udp(handle) => handle.register(seen, interest, waker),
            Self::Icmp(handle) => handle.register(seen, interest, waker),
        }
    }

    fn unregister(&self, waker: &Waker) {
        match self {
            Self::Tcp(handle) => handle.unregister(waker),
            Self::Listener(handle) => handle.unregister(waker),
            Self::Forwarder(handle) => handle.unregister(waker),
            Self::Pending(handle) => handle.unregister(waker),
            Self::Udp(handle) => handle.unregister(waker),
            Self::Icmp(handle) => handle.unregister(waker),
        }
    }

    fn shard(&self) -> usize {
        match self {
            Self::Tcp(handle) => Source::shard(handle),
            Self::Listener(handle) => Source::shard(handle),
            Self::Forwarder(handle) => Source::shard(handle),
            Self::Pending(handle) => Source::shard(handle),
            Self::Udp(handle) => Source::shard(handle),
            Self::Icmp(handle) => Source::shard(handle),
        }
    }
}
