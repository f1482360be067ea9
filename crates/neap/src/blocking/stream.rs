//! TCP connections.

use super::waiting::{Caller, READ_READY, WRITE_READY, WaitMode};
use crate::clock;
use crate::condition::IsReady;
use crate::engine::Engine;
use crate::error::{
    connection_error, hop_limit, option_error, read_error, socket_error, write_error,
};
use crate::resolver::ToAddrs;
use crate::workers::Stack;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::mapped;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::ConnectOptions;
use neap_stack::wait::Drive;
use neap_tcp::connection::{ReadError, WriteError, WriteFlags};
use neap_tcp::info::TcpInfo;
use neap_tcp::options::{SocketOption, SocketOptions};
use neap_tcp::state::State;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The error of a read that found no data.
const NO_DATA: ReadError = ReadError::WouldBlock;

/// A TCP connection of a stack, used as [`std::net::TcpStream`] is.
///
/// `&TcpStream` reads and writes too, and clones share the connection with its modes and timeouts,
/// so several threads may use it at once. The connection is closed when the last clone is dropped,
/// or for all clones by [`close`](Self::close).
///
/// A stream has no descriptor of the kernel, so it does not implement `AsFd`. A
/// [`Poller`](crate::Poller) waits for it, and for descriptors beside it.
#[derive(Clone)]
pub struct TcpStream {
    handle: TcpHandle,
    engine: Arc<Engine>,
    wait_mode: Arc<WaitMode>,
    /// A socket of IPv6, which shows addresses of IPv4 as mapped ones.
    is_v6: bool,
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addr, peer) =
            (self.show(self.handle.local_addr()), self.show(self.handle.remote_addr()));
        f.debug_struct("TcpStream")
            .field("addr", &addr)
            .field("peer", &peer)
            .finish_non_exhaustive()
    }
}

impl TcpStream {
    /// Opens a connection and waits until it is established. Several addresses, or those of a
    /// name, are tried in turn.
    ///
    /// # Errors
    /// The answer of the peer or the network, with std's kinds, for instance `ConnectionRefused`,
    /// `TimedOut` or `HostUnreachable`; of several addresses the error of the last one.
    /// `Unsupported` for a name if the stack has no
    /// [resolver](crate::Builder::resolver).
    pub fn connect(stack: &Stack, remote: impl ToAddrs) -> io::Result<Self> {
        Self::connect_with(stack, remote, ConnectOptions::default(), None)
    }

    /// Opens a connection as [`connect`](Self::connect) does, and gives up after `timeout`. Where
    /// several addresses are tried, each gets an equal share of the time that is left. The look-up
    /// of a name counts, but only its resolver can end it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `TimedOut` when the time is over; `InvalidInput` for a
    /// timeout of zero.
    pub fn connect_timeout(
        stack: &Stack,
        remote: impl ToAddrs,
        timeout: Duration,
    ) -> io::Result<Self> {
        Self::connect_with(stack, remote, ConnectOptions::default(), Some(timeout))
    }

    /// Opens a connection as [`connect_timeout`](Self::connect_timeout) does, from a given local
    /// address and with options that are set before the SYN leaves.
    ///
    /// # Errors
    /// As [`connect_timeout`](Self::connect_timeout).
    pub fn connect_with(
        stack: &Stack,
        remote: impl ToAddrs,
        options: ConnectOptions,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        if timeout == Some(Duration::ZERO) {
            let message = "a timeout of zero leaves no time to connect: give a longer one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let deadline = timeout.map_or(Instant::FAR_FUTURE, |timeout| clock::now() + timeout.into());
        remote.endpoint()?.try_each(&stack.engine().resolver, move |remote, left| {
            let now = clock::now();
            let until = match deadline {
                Instant::FAR_FUTURE => deadline,
                // An address that does not answer must leave time for the others.
                _ => now + deadline.since(now) / left as u64,
            };
            Self::connect_until(stack, remote, options.clone(), until)
        })
    }

    fn connect_until(
        stack: &Stack,
        remote: SocketAddr,
        options: ConnectOptions,
        deadline: Instant,
    ) -> io::Result<Self> {
        Self::connect_nonblocking(stack, remote, options)?.established_by(deadline)
    }

    /// Waits until the handshake is over, and makes the stream a blocking one. A connection that is
    /// not established in time is reset.
    pub(crate) fn established_by(self, deadline: Instant) -> io::Result<Self> {
        let handle = &self.handle;
        let mut condition = IsReady { source: handle, interest: WRITE_READY };
        let in_time = self.engine.wait(handle.shard(), deadline, &mut condition);
        if !in_time {
            handle.abort(clock::now());
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self.take_error()? {
            Some(error) => Err(error),
            None => {
                self.set_nonblocking(false)?;
                Ok(self)
            }
        }
    }

    /// Begins to open a connection and does not wait: the stream is non-blocking, and becomes
    /// writable when it is established or has failed ([`take_error`](Self::take_error)).
    ///
    /// # Errors
    /// The reason why no SYN can be sent: `NetworkUnreachable` without a route, `AddrNotAvailable`
    /// for a local address that the stack does not have or without a free port.
    pub fn connect_nonblocking(
        stack: &Stack,
        remote: SocketAddr,
        mut options: ConnectOptions,
    ) -> io::Result<Self> {
        let engine = stack.engine().clone();
        options.local = options.local.map(mapped::to_canonical);
        let to = mapped::to_canonical(remote);
        let handle = engine.stack.connect(clock::now(), to, options).map_err(socket_error)?;
        let stream = Self::new(handle, engine, remote.is_ipv6());
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// A stream around a connection. `is_v6` says that addresses of IPv4 show as mapped ones.
    pub(crate) fn new(handle: TcpHandle, engine: Arc<Engine>, is_v6: bool) -> Self {
        Self { handle, engine, wait_mode: Arc::default(), is_v6 }
    }

    fn show(&self, address: SocketAddr) -> SocketAddr {
        mapped::show(address, self.is_v6)
    }

    pub(crate) fn handle(&self) -> &TcpHandle {
        &self.handle
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn wait_for<T, E: Clone + PartialEq>(
        &self,
        interest: Ready,
        timeout: &AtomicU64,
        would_block: &E,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        Caller { engine: &self.engine, source: &self.handle, mode: &self.wait_mode }.wait_for(
            interest,
            Some(timeout),
            would_block,
            attempt,
        )
    }

    fn count_written(&self, bytes: usize) {
        self.engine.count_written(self.handle.shard(), bytes);
    }

    /// Reads what is there; `WouldBlock` if nothing is, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.handle.read(clock::now(), buf).map_err(read_error)
    }

    /// Reads what is there into several buffers; `WouldBlock` if nothing is, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.handle.read_vectored(clock::now(), bufs).map_err(read_error)
    }

    /// Copies what is there and leaves it; `WouldBlock` if nothing is, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.handle.peek(clock::now(), buf).map_err(read_error)
    }

    /// Writes what there is room for; `WouldBlock` if there is none, whatever the mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let written = self.handle.write(clock::now(), data).map_err(write_error)?;
        self.count_written(written);
        Ok(written)
    }

    /// Writes what there is room for of several slices; `WouldBlock` if there is none, whatever the
    /// mode.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        let flags = WriteFlags::empty();
        let written =
            self.handle.send_vectored(clock::now(), slices, flags).map_err(write_error)?;
        self.count_written(written);
        Ok(written)
    }

    fn write_some(&self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.write_by(|| self.handle.write(clock::now(), data))
    }

    fn write_some_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(0);
        }
        self.write_by(|| self.handle.send_vectored(clock::now(), slices, WriteFlags::empty()))
    }

    fn write_by(&self, attempt: impl FnMut() -> Result<usize, WriteError>) -> io::Result<usize> {
        let block = &WriteError::WouldBlock;
        let timeout = &self.wait_mode.write_timeout;
        let written = self.wait_for(WRITE_READY, timeout, block, attempt).map_err(write_error)?;
        self.count_written(written);
        Ok(written)
    }

    /// Sends all of `data` with the flags of `send(2)`, and returns its length. It waits for room
    /// as needed. In non-blocking mode it takes what fits, and returns how much that was. If the
    /// connection fails or the time is over after a part, it returns the length of that, and the
    /// next call returns the error.
    ///
    /// # Errors
    /// As [`Write::write`]: `WouldBlock` if nothing fits in non-blocking mode or in the write
    /// timeout; `BrokenPipe` after a shutdown; the reason why the connection failed.
    pub fn send(&self, data: &[u8], flags: WriteFlags) -> io::Result<usize> {
        let mut rest = data;
        if rest.is_empty() {
            return Ok(0);
        }
        self.send_all(|| {
            let sent = self.handle.send(clock::now(), rest, flags)?;
            rest = &rest[sent..];
            Ok((sent, rest.is_empty()))
        })
    }

    /// Sends all of `data` without copying it, and returns its length. The connection shares the
    /// bytes until the peer has acknowledged them. It waits for room as needed. In non-blocking
    /// mode it takes what fits from the front of `data`. Use it for large data that is in memory
    /// already, such as a file.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_bytes(&self, data: &mut Bytes) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        self.send_all(|| {
            let sent = self.handle.write_bytes(clock::now(), data)?;
            Ok((sent, data.is_empty()))
        })
    }

    /// Sends by `attempt`, which says how much it took and whether that was all, until it was; in
    /// non-blocking mode once. The timeout counts for all of it, as in Linux's `tcp_sendmsg`. An
    /// error that follows a part is left to the next call.
    fn send_all(
        &self,
        mut attempt: impl FnMut() -> Result<(usize, bool), WriteError>,
    ) -> io::Result<usize> {
        let (block, timeout) = (&WriteError::WouldBlock, &self.wait_mode.write_timeout);
        let mut total = 0;
        let sent = self.wait_for(WRITE_READY, timeout, block, || {
            loop {
                let (sent, is_all) = attempt()?;
                total += sent;
                self.count_written(sent);
                if is_all || self.wait_mode.nonblocking.load(Relaxed) {
                    return Ok(());
                }
            }
        });
        match sent {
            Err(error) if total == 0 => Err(write_error(error)),
            Err(WriteError::Failed(error)) => {
                self.handle.give_error_back(clock::now(), error);
                Ok(total)
            }
            _ => Ok(total),
        }
    }

    fn read_some(&self, buf: &mut [u8]) -> io::Result<usize> {
        let waits = !self.wait_mode.nonblocking.load(Relaxed);
        let read = self.wait_for(READ_READY, &self.wait_mode.read_timeout, &NO_DATA, || {
            if waits {
                self.handle.read_low_water(clock::now(), buf)
            } else {
                self.handle.read(clock::now(), buf)
            }
        });
        match read {
            // The time is over, so less than the low-water mark is enough.
            Err(NO_DATA) if waits => self.handle.read(clock::now(), buf),
            read => read,
        }
        .map_err(read_error)
    }

    fn read_some_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let low_water = self.handle.receive_lowat(clock::now());
        if low_water > 1
            && let Some(buf) = bufs.iter_mut().find(|buf| !buf.is_empty())
        {
            return self.read_some(buf);
        }
        self.wait_for(READ_READY, &self.wait_mode.read_timeout, &NO_DATA, || {
            self.handle.read_vectored(clock::now(), bufs)
        })
        .map_err(read_error)
    }

    /// Takes received bytes without copying them; `None` is the end of the stream. How many they
    /// are depends on how they arrived: at most a super-frame, 64 KiB. It waits as a read does, but
    /// not for `SO_RCVLOWAT`.
    ///
    /// The bytes share the memory of the packet that they came in, which may be larger than they
    /// are. A program that keeps them for long copies them.
    ///
    /// # Errors
    /// As [`Read::read`].
    pub fn recv_bytes(&self) -> io::Result<Option<Bytes>> {
        self.wait_for(READ_READY, &self.wait_mode.read_timeout, &NO_DATA, || {
            self.handle.read_bytes(clock::now())
        })
        .map_err(read_error)
    }

    /// Reads bytes and leaves them to be read again (`MSG_PEEK`). It waits as a read does.
    ///
    /// # Errors
    /// As [`Read::read`]: `WouldBlock` in non-blocking mode or after the read timeout; the reason
    /// why the connection failed.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.wait_for(READ_READY, &self.wait_mode.read_timeout, &NO_DATA, || {
            self.handle.peek(clock::now(), buf)
        })
        .map_err(read_error)
    }

    /// Shuts reading, writing or both down. After the end of writing the peer reads everything that
    /// was written, and then the end of the stream.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended: both ends are shut down, or it has failed.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let now = clock::now();
        if matches!(self.handle.state(now), State::Closed | State::TimeWait) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if how != Shutdown::Write {
            self.handle.shutdown_read(now);
        }
        if how != Shutdown::Read {
            self.handle.shutdown_write(now);
        }
        Ok(())
    }

    /// Returns another handle of the same connection, as `clone` does. Modes and timeouts are
    /// shared.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Returns the peer's address and port. An IPv4 peer of a socket of IPv6 is shown as a mapped
    /// address (`::ffff:a.b.c.d`), as by Linux.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.show(self.handle.remote_addr()))
    }

    /// Returns the own address and port, shown as [`peer_addr`](Self::peer_addr) shows the peer's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.show(self.handle.local_addr()))
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again. It holds for all clones.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.wait_mode.nonblocking.store(nonblocking, Relaxed);
        Ok(())
    }

    /// Sets how long a read waits (`SO_RCVTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.read_timeout, timeout)
    }

    /// Sets how long a write waits (`SO_SNDTIMEO`); `None` waits for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a timeout of zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        WaitMode::set(&self.wait_mode.write_timeout, timeout)
    }

    /// Returns how long a read waits (`SO_RCVTIMEO`).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.read_timeout))
    }

    /// Returns how long a write waits (`SO_SNDTIMEO`).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(WaitMode::get(&self.wait_mode.write_timeout))
    }

    /// Sets one option.
    ///
    /// # Errors
    /// `InvalidInput` for a value out of range or an unknown name.
    pub fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.handle.set_option(clock::now(), option).map_err(option_error)
    }

    /// Returns all options as they are.
    pub fn options(&self) -> SocketOptions {
        self.handle.options(clock::now())
    }

    /// Sets `TCP_NODELAY`: a short write leaves at once.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(SocketOption::NoDelay(nodelay))
    }

    /// Returns `TCP_NODELAY`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.options().nodelay)
    }

    /// Sets `SO_LINGER`. A time other than zero makes [`close`](Self::close) wait. A time of zero
    /// makes a close, or the drop of the last clone, reset the connection.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::Linger(linger.map(Into::into)))
    }

    /// Returns `SO_LINGER`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.options().linger.map(Into::into))
    }

    /// Returns how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    pub fn ttl(&self) -> io::Result<u32> {
        let is_v4 = self.handle.remote_addr().is_ipv4();
        Ok(self.engine.stack.hop_limit(self.options().hop_limit, is_v4).into())
    }

    /// Sets how many hops a packet may take (`IP_TTL`, of IPv6 `IPV6_UNICAST_HOPS`).
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not from 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_option(SocketOption::HopLimit(hop_limit(ttl)?))
    }

    /// Limits the rate in bytes per second (`SO_MAX_PACING_RATE`); `None` is unlimited.
    pub fn set_max_pacing_rate(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
        let rate = bytes_per_second.map_or(Rate::UNLIMITED, Rate);
        self.set_option(SocketOption::MaxPacingRate(rate))
    }

    /// Takes the pending error (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.handle.take_error(clock::now()).map(connection_error))
    }

    /// Returns how many bytes were written and not acknowledged (`SIOCOUTQ`).
    pub fn outq(&self) -> u32 {
        self.handle.outq(clock::now())
    }

    /// Returns how many bytes were written and never sent (`SIOCOUTQNSD`).
    pub fn outq_nsd(&self) -> u32 {
        self.handle.outq_nsd(clock::now())
    }

    /// Returns the figures of the connection (`TCP_INFO`), with the reason why it is not sending
    /// and the places of its bytes.
    pub fn info(&self) -> TcpInfo {
        self.handle.info(clock::now())
    }

    /// Closes, and says how long the caller is to linger.
    pub(crate) fn begin_close(&self) -> Nanos {
        let linger = self.options().linger.unwrap_or(Nanos::ZERO);
        self.handle.close(clock::now());
        linger
    }

    /// Closes the connection for this handle and for all its clones. What was written before is
    /// still sent, and the FIN after it; but data that nobody has read resets the connection, as in
    /// Linux. Clones read the end of the stream from now on, and their writes fail with
    /// `BrokenPipe`. Dropping a handle closes nothing while there is another clone.
    ///
    /// With [`SO_LINGER`](Self::set_linger) set to a time, the call waits until the peer has
    /// acknowledged everything, in non-blocking mode too; with a linger time of zero it resets the
    /// connection. Otherwise it returns at once, and so does a drop always.
    ///
    /// # Errors
    /// Only with a linger time: `WouldBlock` when the time is over (what is left is still sent);
    /// otherwise why the connection failed before everything was acknowledged.
    pub fn close(self) -> io::Result<()> {
        let linger = self.begin_close();
        if linger == Nanos::ZERO {
            return Ok(());
        }
        let mut condition = IsReady { source: &self.handle, interest: Ready::ALL_ACKED };
        if !self.engine.wait(self.handle.shard(), clock::now() + linger, &mut condition) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.take_error()?.map_or(Ok(()), Err)
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_some(buf)
    }
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_some_vectored(bufs)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_some(buf)
    }
    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_some_vectored(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_some(data)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_some_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for &TcpStream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_some(data)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_some_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
