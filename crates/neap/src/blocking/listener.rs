//! Listening sockets.

use super::stream::TcpStream;
use super::waiting::{Caller, READ_READY, WaitMode};
use crate::engine::Engine;
use crate::error::{hop_limit, option_error, socket_error};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use core::net::SocketAddr;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::{SocketError, mapped};
use neap_stack::stack::ListenOptions;
use neap_tcp::options::SocketOption;
use std::fmt;
use std::io;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A listening socket of a stack, used as [`std::net::TcpListener`] is.
///
/// A listener on `[::]` accepts connections of IPv4 too, as on Linux, and shows their addresses as
/// mapped ones (`::ffff:a.b.c.d`); [`ListenOptions::only_v6`] keeps them out. Clones share the
/// listener, and several threads may accept at once. It listens until the last clone is dropped;
/// connections that nobody has accepted by then are reset.
///
/// There is no `take_error`: [`accept`](Self::accept) tells the errors of a listener.
#[derive(Clone)]
pub struct TcpListener {
    handle: ListenerHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
    only_v6: bool,
    /// A socket of IPv6, which shows addresses of IPv4 as mapped ones.
    is_v6: bool,
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("addr", &self.shown_addr()).finish_non_exhaustive()
    }
}

impl TcpListener {
    /// Listens on an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver).
    pub fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, ListenOptions::default())
    }

    /// Listens as [`bind`](Self::bind) does, with a backlog and with options that accepted sockets
    /// inherit.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(
        stack: &Stack,
        local: impl ToAddrs,
        options: ListenOptions,
    ) -> io::Result<Self> {
        let engine = stack.engine();
        local.endpoint()?.try_each(&engine.resolver, move |local, _| {
            let (only_v6, is_v6) = (options.only_v6, local.is_ipv6());
            let bound = if only_v6 { local } else { mapped::to_canonical(local) };
            let handle = engine.stack.listen(bound, options.clone()).map_err(socket_error)?;
            let (engine, wait_mode) = (engine.clone(), Arc::default());
            Ok(Self { handle, engine, wait_mode, only_v6, is_v6 })
        })
    }

    pub(crate) fn handle(&self) -> &ListenerHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits for a connection, and returns it with the address of its peer.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode if no connection waits; `ConnectionAborted` when the stack
    /// was dropped; `NetworkDown` when the device that the listener was reached through is gone.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (handle, _) =
            Caller { engine: &self.engine, source: &self.handle, mode: &self.wait_mode }
                .wait_for(READ_READY, None, &SocketError::WouldBlock, || self.handle.accept())
                .map_err(socket_error)?;
        self.stream(handle)
    }

    /// The next connection; `WouldBlock` if there is none, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (handle, _) = self.handle.accept().map_err(socket_error)?;
        self.stream(handle)
    }

    fn stream(&self, handle: TcpHandle) -> io::Result<(TcpStream, SocketAddr)> {
        let stream = TcpStream::new(handle, self.engine.clone(), self.is_v6);
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// Returns an iterator over connections as they come. It has no end: in non-blocking mode it
    /// yields the error `WouldBlock` while no connection waits, and after the stack was dropped it
    /// yields `ConnectionAborted` each time.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Returns an iterator over connections as [`incoming`](Self::incoming) does, which owns the
    /// listener.
    pub fn into_incoming(self) -> IntoIncoming {
        IntoIncoming(self)
    }

    /// Returns another handle of the same listener, as `clone` does.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the address and port that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.shown_addr())
    }

    fn shown_addr(&self) -> SocketAddr {
        let address = self.handle.local_addr();
        mapped::show(address, self.is_v6)
    }

    /// Sets an option of connections that are accepted from now on; those that wait to be accepted
    /// keep theirs.
    ///
    /// # Errors
    /// `InvalidInput` for a value out of range or an unknown name.
    pub fn set_option(&self, option: &SocketOption) -> io::Result<()> {
        self.handle.set_option(option).map_err(option_error)
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        let is_v4 = self.handle.local_addr().is_ipv4();
        Ok(self.engine.stack.hop_limit(self.handle.options().hop_limit, is_v4).into())
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS` of connections that are accepted from now on.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_option(&SocketOption::HopLimit(hop_limit(ttl)?))
    }

    /// Returns whether it serves IPv6 alone: by [`ListenOptions::only_v6`], or because it is bound
    /// to one address of IPv6.
    pub fn only_v6(&self) -> io::Result<bool> {
        Ok(self.only_v6 || mapped::is_one_of_v6(self.handle.local_addr()))
    }

    /// Makes `accept` return `WouldBlock` instead of waiting, or wait again. It holds for all
    /// clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }
}

/// Connections of a listener as they come; made by [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

/// Connections of a listener as they come; made by [`TcpListener::into_incoming`].
#[derive(Debug)]
pub struct IntoIncoming(TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;
    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl Iterator for IntoIncoming {
    type Item = io::Result<TcpStream>;
    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}
impl FusedIterator for IntoIncoming {}
