//! Connections of the host's kernel, as ends of a relay.

use crate::outbound::Outbound;
use crate::relay::{End, MOST_HELD, Segments};
use bytes::{Buf, Bytes};
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Pieces of up to so many bytes are copied into memory of their own size, so that small ones do
/// not each hold the memory of a large one.
const COPY_BREAK: usize = 8 << 10;

/// Bytes not yet sent that the host's socket takes (`TCP_NOTSENT_LOWAT`). The rest stays with the
/// sender.
const NOT_SENT: u32 = 128 << 10;

/// Headers of IP, and of TCP with time stamps, which the size of a segment leaves room for.
const V4_HEADERS: usize = 52;
const V6_HEADERS: usize = 72;

/// A connection of the host's kernel.
#[derive(Debug)]
pub struct HostStream {
    socket: Socket,
    /// Memory of the next piece.
    buffer: Vec<u8>,
}

impl HostStream {
    /// Begins a connection, from a local address if `from` has one. It is open when the socket is
    /// writable and [`take_error`](End::take_error) has nothing to say.
    ///
    /// # Errors
    /// The kernel refuses at once, or there are no descriptors left.
    pub fn connect(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let domain = Domain::for_address(to);
        // Non-blocking and close-on-exec from the beginning.
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new_raw(domain, kind, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOT_SENT)?;
        outbound.apply(&socket)?;
        let from = outbound.from(to);
        if !from.ip().is_unspecified() {
            socket.bind(&SockAddr::from(from))?;
        }
        match socket.connect(&SockAddr::from(to)) {
            Ok(()) => {}
            Err(error) if is_under_way(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(Self { socket, buffer: Vec::new() })
    }

    /// A connection that the host has accepted, in non-blocking mode.
    ///
    /// # Errors
    /// The kernel refuses an option.
    pub fn accepted(socket: Socket) -> io::Result<Self> {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOT_SENT)?;
        Ok(Self { socket, buffer: Vec::new() })
    }

    /// Whether the handshake is over.
    pub fn is_connected(&self) -> bool {
        self.socket.peer_addr().is_ok()
    }
}

fn is_under_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

impl AsFd for HostStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl End for HostStream {
    fn receive(&mut self) -> io::Result<Option<Bytes>> {
        self.buffer.clear();
        self.buffer.reserve_exact(MOST_HELD);
        let received =
            rustix::net::recv(&self.socket, spare_capacity(&mut self.buffer), RecvFlags::empty());
        let count = match received {
            Ok((_, count)) => count,
            Err(error) => {
                // An idle connection has no memory for what may come.
                self.buffer = Vec::new();
                return Err(error.into());
            }
        };
        if count == 0 {
            self.buffer = Vec::new();
            return Ok(None);
        }
        if self.buffer.len() <= COPY_BREAK {
            return Ok(Some(Bytes::copy_from_slice(&self.buffer)));
        }
        Ok(Some(Bytes::from(std::mem::take(&mut self.buffer))))
    }

    fn send(&mut self, data: &mut Bytes) -> io::Result<()> {
        let sent = rustix::net::send(&self.socket, data, SendFlags::NOSIGNAL)?;
        data.advance(sent);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn take_error(&mut self) -> io::Result<()> {
        self.socket.take_error()?.map_or(Ok(()), Err)
    }

    fn reset(&mut self) {
        // It is closed with the socket. The kernel refuses only what is not a socket.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }

    fn segments(&self) -> Segments {
        let is_v6 = self.socket.domain().is_ok_and(|domain| domain == Domain::IPV6);
        let headers = if is_v6 { V6_HEADERS } else { V4_HEADERS };
        let data = self.socket.tcp_mss().map_or(Segments::default().data, |mss| mss as usize);
        Segments { data, headers }
    }

    fn limit_unsent(&mut self, bytes: usize) {
        // It takes bytes as long as fewer than these are not sent.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(NOT_SENT);
        // A kernel that refuses it has longer queues, and loses nothing.
        let _ = self.socket.set_tcp_notsent_lowat(bytes);
    }
}
