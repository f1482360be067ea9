//! TCP under tokio.

use super::wait::{self, Direction};
use super::{drive, names};
use crate::blocking::{self, READ_READY, WRITE_READY};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use core::net::SocketAddr;
use neap_stack::socket::readiness::Ready as Bits;
use neap_stack::stack::{ConnectOptions, ListenOptions};
use neap_tcp::time::Nanos;
use std::future::ready;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A TCP connection of a stack, used as [`tokio::net::TcpStream`](::tokio::net::TcpStream) is.
///
/// [`get_ref`](Self::get_ref) gives its options and figures. The connection is closed when the
/// stream is dropped. The stream has no descriptor of the kernel, so `AsFd` is missing. So are
/// `try_read_buf`, `from_std` and `into_std`: use [`from_blocking`](Self::from_blocking) and
/// [`into_blocking`](Self::into_blocking) in place of the last two.
#[derive(Debug)]
pub struct TcpStream {
    socket: blocking::TcpStream,
    reads: Direction,
    writes: Direction,
}

impl TcpStream {
    /// Opens a connection. Several addresses, or those of a name, are tried in turn; the resolver
    /// runs on the runtime's pool for blocking calls. Dropped before the connection is established,
    /// the future closes it.
    ///
    /// # Errors
    /// What the peer or the network answered, with std's kinds; of several addresses the error of
    /// the last one. `Unsupported` for a name if the stack has no
    /// [resolver](crate::Builder::resolver). `Other` outside of a runtime.
    pub async fn connect(stack: &Stack, remote: impl ToAddrs) -> io::Result<Self> {
        Self::connect_with(stack, remote, ConnectOptions::default()).await
    }

    /// Opens a connection as [`connect`](Self::connect) does, from a given local address and with
    /// options that are set before the SYN leaves.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(
        stack: &Stack,
        remote: impl ToAddrs,
        options: ConnectOptions,
    ) -> io::Result<Self> {
        names::try_each(stack.engine(), remote.endpoint()?, |remote| {
            Self::connect_to(stack, remote, options.clone())
        })
        .await
    }

    async fn connect_to(
        stack: &Stack,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> io::Result<Self> {
        let stream =
            Self::from_blocking(blocking::TcpStream::connect_nonblocking(stack, remote, options)?)?;
        stream.writable().await?;
        if let Some(error) = stream.socket.take_error()? {
            return Err(error);
        }
        stream.find_driver();
        Ok(stream)
    }

    /// Makes a stream for tokio of a blocking one that nobody else holds. It becomes non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(socket: blocking::TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), socket.handle().shard())?;
        Ok(Self::new(socket))
    }

    /// The same of a connection that the peer knows already, which is not to be lost.
    pub(super) fn from_accepted(socket: blocking::TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let stream = Self::new(socket);
        stream.find_driver();
        Ok(stream)
    }

    fn new(socket: blocking::TcpStream) -> Self {
        let (reads, writes) = (Direction::new(READ_READY), Direction::new(WRITE_READY));
        Self { socket, reads, writes }
    }

    /// The handshake may have shown that the task of another runtime does not come.
    pub(super) fn find_driver(&self) {
        drive::ensure_if_possible(self.socket.engine(), self.socket.handle().shard());
    }

    /// Returns the socket itself, which is in non-blocking mode: options, addresses, figures.
    pub fn get_ref(&self) -> &blocking::TcpStream {
        &self.socket
    }

    /// Returns the socket as a blocking one. It stays non-blocking until
    /// [`set_nonblocking`](crate::TcpStream::set_nonblocking) says otherwise.
    pub fn into_blocking(self) -> blocking::TcpStream {
        self.socket
    }

    /// Returns the own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the peer's address and port.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Returns `TCP_NODELAY`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket.nodelay()
    }

    /// Sets `TCP_NODELAY`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.set_nodelay(nodelay)
    }

    /// Returns `SO_LINGER`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket.linger()
    }

    /// Sets `SO_LINGER`; see [`close`](Self::close).
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket.set_linger(linger)
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS`.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is; why the connection failed.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.try_read(buf)
    }

    /// Reads what is there into one buffer after the other.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.socket.try_read_vectored(bufs)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; why the connection failed.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.socket.try_write(data)
    }

    /// Writes what there is room for of several slices.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.try_write_vectored(slices)
    }

    /// Waits until the socket is ready for anything that `interest` names, and says for what.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        wait::ready_for(self.socket.handle(), interest).await
    }

    /// Calls `f`, which uses the socket without waiting, if the socket is ready for anything that
    /// `interest` names.
    ///
    /// # Errors
    /// That of `f`; `WouldBlock` if the socket is not ready.
    pub fn try_io<T>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        wait::try_io(self.socket.handle(), interest, f)
    }

    /// Calls `f`, which uses the socket without waiting, whenever the socket becomes ready for
    /// anything that `interest` names, until `f` returns something else than `WouldBlock`.
    ///
    /// # Errors
    /// That of `f`.
    pub async fn async_io<T>(
        &self,
        interest: Interest,
        f: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        wait::async_io(self.socket.handle(), interest, f).await
    }

    /// Waits until there is data, the end of the stream, or an error.
    pub async fn readable(&self) -> io::Result<()> {
        self.reads.ready(self.socket.handle()).await
    }

    /// Waits until a writer may be woken: a third of the send buffer is free, and less than half of
    /// the low-water mark is unsent.
    pub async fn writable(&self) -> io::Result<()> {
        self.writes.ready(self.socket.handle()).await
    }

    /// Does what [`readable`](Self::readable) does, for `poll` functions. The task that asked last
    /// is woken.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reads.poll_ready(cx, self.socket.handle())
    }

    /// Does what [`writable`](Self::writable) does, for `poll` functions. The task that asked last
    /// is woken.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes.poll_ready(cx, self.socket.handle())
    }

    /// Copies received bytes and leaves them.
    ///
    /// # Errors
    /// Why the connection failed.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.reads.wait(self.socket.handle(), || self.socket.try_peek(buf)).await
    }

    /// Closes the connection. What was written before is still sent; but data that nobody has read
    /// resets the connection. With a linger time set
    /// ([`neap::TcpStream::set_linger`](crate::TcpStream::set_linger)) the future waits until the
    /// peer has acknowledged everything; otherwise it is ready at once, and a drop does the same.
    ///
    /// # Errors
    /// As [`neap::TcpStream::close`](crate::TcpStream::close).
    ///
    /// # Panics
    /// With a linger time set, outside of a Tokio runtime and in one without a timer
    /// (`tokio::runtime::Builder::enable_time`).
    pub async fn close(self) -> io::Result<()> {
        let linger = self.socket.begin_close();
        if linger == Nanos::ZERO {
            return Ok(());
        }
        let handle = self.socket.handle();
        let acked = Direction::new(Bits::ALL_ACKED);
        let wait = acked.ready(handle);
        if ::tokio::time::timeout(linger.into(), wait).await.is_err() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.socket.take_error()?.map_or(Ok(()), Err)
    }

    /// A reader and a writer that borrow the stream.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// A reader and a writer for two tasks. When the writer is dropped, writing is shut down.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let stream = Arc::new(self);
        (OwnedReadHalf(stream.clone()), OwnedWriteHalf { stream, shuts_down: true })
    }

    /// Does what [`peek`](Self::peek) does, for `poll` functions. The task that asked last is
    /// woken.
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let room = buf.initialize_unfilled();
        let peeked = self.reads.poll(cx, self.socket.handle(), || self.socket.try_peek(room));
        let peeked = std::task::ready!(peeked)?;
        buf.advance(peeked);
        Poll::Ready(Ok(peeked))
    }

    fn read_some(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let room = buf.initialize_unfilled();
        let read = self.reads.poll(cx, self.socket.handle(), || self.socket.try_read(room));
        let read = std::task::ready!(read)?;
        buf.advance(read);
        Poll::Ready(Ok(()))
    }

    fn write_some(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.poll(cx, self.socket.handle(), || self.socket.try_write(data))
    }

    fn write_some_vectored(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes.poll(cx, self.socket.handle(), || self.socket.try_write_vectored(slices))
    }

    fn shut_down(&self) -> Poll<io::Result<()>> {
        // As tokio's: of a connection that has ended there is nothing to shut down.
        Poll::Ready(match self.socket.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            shut => shut,
        })
    }
}

/// The reader of [`TcpStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a TcpStream);

/// The writer of [`TcpStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a TcpStream);

/// The reader of [`TcpStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<TcpStream>);

/// The writer of [`TcpStream::into_split`]; shuts writing down when it is dropped.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<TcpStream>,
    shuts_down: bool,
}

/// Two halves that are not of one stream.
#[derive(Debug, thiserror::Error)]
#[error("the halves are not of one stream")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

/// Addresses of a stream, for its halves.
macro_rules! addresses {
    ($($half:ty)+) => {$(
        impl $half {
            /// Returns the own address and port.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                self.as_ref().local_addr()
            }

            /// Returns the peer's address and port.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                self.as_ref().peer_addr()
            }

            /// Waits as [`TcpStream::ready`] does.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.as_ref().ready(interest).await
            }
        }
    )+};
}

/// What a reader does without tokio's traits.
macro_rules! reads_when_ready {
    ($($half:ty)+) => {$(
        impl $half {
            /// Waits until there is data, the end of the stream, or an error.
            pub async fn readable(&self) -> io::Result<()> {
                self.as_ref().readable().await
            }

            /// Copies received bytes and leaves them.
            ///
            /// # Errors
            /// Why the connection failed.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().peek(buf).await
            }

            /// Reads what is there.
            ///
            /// # Errors
            /// `WouldBlock` if nothing is; why the connection failed.
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().try_read(buf)
            }

            /// Reads what is there into one buffer after the other.
            ///
            /// # Errors
            /// As [`try_read`](Self::try_read).
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.as_ref().try_read_vectored(bufs)
            }
        }
    )+};
}

/// What a writer does without tokio's traits.
macro_rules! writes_when_ready {
    ($($half:ty)+) => {$(
        impl $half {
            /// Waits until a writer may be woken, as [`TcpStream::writable`] does.
            pub async fn writable(&self) -> io::Result<()> {
                self.as_ref().writable().await
            }

            /// Writes what there is room for.
            ///
            /// # Errors
            /// `WouldBlock` if there is none; why the connection failed.
            pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
                self.as_ref().try_write(data)
            }

            /// Writes what there is room for of several slices.
            ///
            /// # Errors
            /// As [`try_write`](Self::try_write).
            pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                self.as_ref().try_write_vectored(slices)
            }
        }
    )+};
}

reads_when_ready!(ReadHalf<'_> OwnedReadHalf);
writes_when_ready!(WriteHalf<'_> OwnedWriteHalf);

addresses!(ReadHalf<'_> WriteHalf<'_> OwnedReadHalf OwnedWriteHalf);

impl OwnedReadHalf {
    /// Joins the halves to the stream that they came from.
    ///
    /// # Errors
    /// [`ReuniteError`] gives both halves back if they are not of one stream.
    pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &other.stream) {
            return Err(ReuniteError(self, other));
        }
        other.shuts_down = false;
        drop(other);
        Ok(Arc::into_inner(self.0).expect("there are two halves"))
    }
}

impl OwnedWriteHalf {
    /// Drops the writer without shutting writing down. Dropping the reader then closes the
    /// connection.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shuts_down {
            let _ = self.stream.shut_down();
        }
    }
}

/// The traits of tokio for what refers to a stream.
macro_rules! reads {
    ($($type:ty)+) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                (*self).as_ref().read_some(cx, buf)
            }
        }
    )+};
}

macro_rules! writes {
    ($($type:ty)+) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                data: &[u8],
            ) -> Poll<io::Result<usize>> {
                (*self).as_ref().write_some(cx, data)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                (*self).as_ref().write_some_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                (*self).as_ref().shut_down()
            }
        }
    )+};
}

reads!(TcpStream ReadHalf<'_> OwnedReadHalf);
writes!(TcpStream WriteHalf<'_> OwnedWriteHalf);

impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl AsRef<TcpStream> for ReadHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for WriteHalf<'_> {
    fn as_ref(&self) -> &TcpStream {
        self.0
    }
}

impl AsRef<TcpStream> for OwnedReadHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.0
    }
}

impl AsRef<TcpStream> for OwnedWriteHalf {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

/// A listening socket of a stack, used as
/// [`tokio::net::TcpListener`](::tokio::net::TcpListener) is.
///
/// A listener on `[::]` accepts connections of IPv4 too, as
/// [`neap::TcpListener`](crate::TcpListener) does.
#[derive(Debug)]
pub struct TcpListener {
    socket: blocking::TcpListener,
    accepts: Direction,
}

impl TcpListener {
    /// Listens on an address of the stack; port 0 takes a free one. Of several addresses the first
    /// that can be had is taken; the resolver of a name runs on the runtime's pool for blocking
    /// calls.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no [resolver](crate::Builder::resolver). `Other`
    /// outside of a runtime.
    pub async fn bind(stack: &Stack, local: impl ToAddrs) -> io::Result<Self> {
        Self::bind_with(stack, local, ListenOptions::default()).await
    }

    /// Listens as [`bind`](Self::bind) does, with a backlog and with options that accepted sockets
    /// inherit.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_with(
        stack: &Stack,
        local: impl ToAddrs,
        options: ListenOptions,
    ) -> io::Result<Self> {
        names::try_each(stack.engine(), local.endpoint()?, |local| {
            let socket = blocking::TcpListener::bind_with(stack, local, options.clone());
            ready(socket.and_then(Self::from_blocking))
        })
        .await
    }

    /// Makes a listener for tokio of a blocking one that nobody else holds. It becomes
    /// non-blocking.
    ///
    /// # Errors
    /// `Other` outside of a runtime. If no task drives the stack yet: `Unsupported` in a runtime
    /// without I/O, and `EMFILE` of the system, which has no kind in std, if the process has no
    /// descriptors left for a task.
    pub fn from_blocking(socket: blocking::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        drive::ensure(socket.engine(), 0)?;
        Ok(Self { socket, accepts: Direction::new(READ_READY) })
    }

    /// The socket itself, in non-blocking mode.
    pub fn get_ref(&self) -> &blocking::TcpListener {
        &self.socket
    }

    /// Returns the socket as a blocking one. It stays non-blocking until
    /// [`set_nonblocking`](crate::TcpListener::set_nonblocking) says otherwise.
    pub fn into_blocking(self) -> blocking::TcpListener {
        self.socket
    }

    /// Waits for the next connection. If the future is dropped early, it has accepted none.
    ///
    /// # Errors
    /// `ConnectionAborted` when the stack was dropped; `NetworkDown` when the device that the
    /// listener was reached through is gone.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let handle = self.socket.handle();
        let (stream, remote) = self.accepts.wait(handle, || self.socket.try_accept()).await?;
        Ok((TcpStream::from_accepted(stream)?, remote))
    }

    /// Does what [`accept`](Self::accept) does, for `poll` functions. The task that asked last is
    /// woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let handle = self.socket.handle();
        let accepted = self.accepts.poll(cx, handle, || self.socket.try_accept());
        let (stream, remote) = std::task::ready!(accepted)?;
        Poll::Ready(TcpStream::from_accepted(stream).map(|stream| (stream, remote)))
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets `IP_TTL` and `IPV6_UNICAST_HOPS`.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }
}
