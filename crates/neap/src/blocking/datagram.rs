//! UDP sockets.

use super::waiting::{READ_READY, WRITE_READY, WaitMode, wait};
use crate::clock;
use crate::engine::Engine;
use crate::error::socket_error;
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::wait::Drive;
use neap_tcp::time::Rate;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A UDP socket, as [`std::net::UdpSocket`].
#[derive(Clone, Debug)]
pub struct UdpSocket {
    handle: UdpHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
}

impl UdpSocket {
    /// Binds to an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver).
    pub fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        let engine = stack.engine();
        local.endpoint()?.try_each(&engine.resolver, |local, _| {
            let handle = engine.stack.bind_udp(local, false).map_err(socket_error)?;
            Ok(Self { handle, engine: engine.clone(), wait_mode: Arc::default() })
        })
    }

    pub(crate) fn handle(&self) -> &UdpHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Fixes the peer: [`send`](Self::send) sends to it, and datagrams of others are not received.
    /// Of several addresses the first that can be had is taken.
    ///
    /// # Errors
    /// `InvalidInput` for an address of the other family; of several addresses the error of the
    /// last one. `Unsupported` for a name if the stack has no
    /// [resolver](crate::Builder::resolver).
    pub fn connect(&self, remote: impl ToAddrs) -> io::Result<()> {
        remote.endpoint()?.try_each(&self.engine.resolver, |remote, _| self.connect_to(remote))
    }

    pub(crate) fn connect_to(&self, remote: SocketAddr) -> io::Result<()> {
        self.handle.connect(Some(remote)).map_err(socket_error)
    }

    /// Sends a datagram; waits while too much of this socket is below. Of several addresses the
    /// first is taken.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the write timeout; `NetworkUnreachable` without a
    /// route. `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver).
    pub fn send_to(&self, data: &[u8], remote: impl ToAddrs) -> io::Result<usize> {
        let remote = remote.endpoint()?.first(&self.engine.resolver)?;
        self.send_some(data, Some(remote))
    }

    /// Sends a datagram to the connected peer.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_some(data, None)
    }

    fn send_some(&self, data: &[u8], remote: Option<SocketAddr>) -> io::Result<usize> {
        let datagram = Bytes::copy_from_slice(data);
        let attempt = || self.handle.send_to(clock::now(), datagram.clone(), remote);
        let timeout = &self.wait_mode.write_timeout;
        self.wait_for(WRITE_READY, timeout, attempt).map_err(socket_error)?;
        Ok(data.len())
    }

    fn wait_for<T>(
        &self,
        interest: Ready,
        timeout: &AtomicU64,
        mut attempt: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        if self.wait_mode.nonblocking.load(Relaxed) {
            return match attempt() {
                Err(SocketError::WouldBlock) => {
                    self.engine.look_in(0);
                    attempt()
                }
                done => done,
            };
        }
        let deadline = WaitMode::deadline(timeout);
        let block = &SocketError::WouldBlock;
        wait(&self.engine, &self.handle, interest, deadline, block, attempt)
    }

    /// Sends a datagram; `WouldBlock` if too much is below, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_send(&self, data: &[u8], remote: Option<SocketAddr>) -> io::Result<usize> {
        let datagram = Bytes::copy_from_slice(data);
        self.handle.send_to(clock::now(), datagram, remote).map_err(socket_error)?;
        Ok(data.len())
    }

    /// Takes a datagram; `WouldBlock` if there is none, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let datagram = self.handle.recv_from().map_err(socket_error)?;
        let len = datagram.data.len().min(buf.len());
        buf[..len].copy_from_slice(&datagram.data[..len]);
        Ok((len, datagram.from))
    }

    /// Waits for a datagram; what does not fit `buf` is lost.
    ///
    /// # Errors
    /// `WouldBlock` in non-blocking mode or after the read timeout.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let attempt = || self.handle.recv_from();
        let timeout = &self.wait_mode.read_timeout;
        let datagram = self.wait_for(READ_READY, timeout, attempt).map_err(socket_error)?;
        let len = datagram.data.len().min(buf.len());
        buf[..len].copy_from_slice(&datagram.data[..len]);
        Ok((len, datagram.from))
    }

    /// As [`recv_from`](Self::recv_from), without the peer's address.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(len, _)| len)
    }

    /// Our address.
    ///
    /// # Errors
    /// None; std's signature.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.handle.local_addr())
    }

    /// Whether calls return `WouldBlock` instead of waiting.
    ///
    /// # Errors
    /// None; std's signature.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// `SO_RCVTIMEO`.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.read_timeout, timeout)
    }

    /// `SO_SNDTIMEO`.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.write_timeout, timeout)
    }

    /// `SO_MAX_PACING_RATE` in bytes per second; `None` is unlimited. Executed by the `fq` qdisc,
    /// as in Linux; see [`Builder::qdisc`](crate::Builder::qdisc).
    ///
    /// # Errors
    /// None today.
    pub fn set_max_pacing_rate(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
        self.handle.set_max_pacing_rate(bytes_per_second.map_or(Rate::UNLIMITED, Rate));
        Ok(())
    }
}
