//! Listening sockets.

use super::stream::TcpStream;
use super::waiting::{READ_READY, WaitMode, wait};
use crate::engine::Engine;
use crate::error::socket_error;
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
    /// Listens on an address of the stack; port 0 takes a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`.
    pub fn bind(stack: &Stack, local: SocketAddr) -> io::Result<Self> {
        Self::bind_with(stack, local, ListenOptions::default())
    }

    /// As [`bind`](Self::bind), with a backlog and options that accepted sockets inherit.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(stack: &Stack, local: SocketAddr, options: ListenOptions) -> io::Result<Self> {
        let engine = stack.engine().clone();
        let handle = engine.stack.listen(local, options).map_err(socket_error)?;
        Ok(Self { handle, engine, wait_mode: Arc::new(WaitMode::default()) })
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
