//! Listening sockets.

use super::stream::TcpStream;
use super::waiting::{READ_READY, WaitMode, wait};
use crate::engine::Engine;
use crate::error::socket_error;
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::stack::ListenOptions;
use neap_stack::wait::Drive;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A listening socket, as [`std::net::TcpListener`].
#[derive(Clone, Debug)]
pub struct TcpListener {
    handle: ListenerHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
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
            let handle = engine.stack.listen(local, options.clone()).map_err(socket_error)?;
            Ok(Self { handle, engine: engine.clone(), wait_mode: Arc::default() })
        })
    }

    pub(crate) fn handle(&self) -> &ListenerHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode; `ConnectionAborted` when the stack was dropped.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let attempt = || self.handle.accept();
        let accepted = if self.wait_mode.nonblocking.load(Relaxed) {
            match attempt() {
                Err(SocketError::WouldBlock) => {
                    self.engine.look_in(0);
                    attempt()
                }
                done => done,
            }
        } else {
            let deadline = WaitMode::deadline(&self.wait_mode.read_timeout);
            let block = &SocketError::WouldBlock;
            wait(&self.engine, &self.handle, READ_READY, deadline, block, attempt)
        };
        let (handle, remote) = accepted.map_err(socket_error)?;
        Ok((TcpStream::new(handle, self.engine.clone()), remote))
    }

    /// The next connection; `WouldBlock` if there is none, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (handle, remote) = self.handle.accept().map_err(socket_error)?;
        Ok((TcpStream::new(handle, self.engine.clone()), remote))
    }

    /// Connections as they come.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<TcpStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// None; std's signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.handle.local_addr())
    }

    /// Whether `accept` returns `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; std's signature.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }
}
