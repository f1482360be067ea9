//! Sending and receiving: `read`, `write`, `send`, `recv` and their relatives, as `tcp_sendmsg` and
//! `tcp_recvmsg` have it.
//!
//! Vectors and `struct msghdr` are the caller's to flatten. Control messages come with the error
//! queue alone, and none can be sent.

use crate::abi::*;
use crate::errno::Errno;
use crate::sockaddr;
use crate::socket::{Common, Kind};
use crate::{Call, Fd, Outcome, Posix};
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::connection::{ReadError, WriteError, WriteFlags};
use neap_tcp::time::{Instant, Nanos};

/// What a receiving call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// What the call returns: bytes, or with `MSG_TRUNC` the size of the datagram.
    pub len: usize,
    /// `msg_flags`: `MSG_TRUNC` where a datagram was cut, `MSG_CTRUNC` where control messages were,
    /// `MSG_ERRQUEUE`.
    pub flags: i32,
    /// Who sent the datagram, or whom the packet of an error was for; nothing for the bytes of TCP,
    /// as in Linux.
    pub from: Option<SocketAddr>,
    /// `msg_controllen`: bytes of control messages.
    pub control: usize,
}

impl Received {
    fn bytes(len: usize) -> Self {
        Self { len, flags: 0, from: None, control: 0 }
    }
}

/// Of one call: the descriptor, its flags, whether it may wait, and whether its direction was shut
/// down before the connection began.
#[derive(Clone, Copy)]
struct Way {
    now: Instant,
    fd: Fd,
    flags: i32,
    may_wait: bool,
    is_shut: bool,
}

impl Way {
    /// Not all is done: the call waits for `event` up to `timeout`, or ends with the bytes that it
    /// has.
    fn wait_for(
        self,
        call: &mut Call,
        timeout: Option<Nanos>,
        event: u32,
    ) -> Result<Outcome<usize>, Errno> {
        let wait =
            if self.may_wait { call.wait(self.now, timeout, (self.fd, event)) } else { None };
        match wait {
            Some(wait) => Ok(wait),
            None if call.done > 0 => Ok(Outcome::Done(call.done)),
            None => Err(Errno::EAGAIN),
        }
    }
}

impl Posix {
    /// `read(2)`: as `recv` without flags, and nothing at all for an empty buffer.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn read(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
    ) -> Result<Outcome<usize>, Errno> {
        if let Some(end) = self.pipe_end(fd) {
            return self.read_pipe(now, call, (fd, end), buf);
        }
        if buf.is_empty() {
            self.table.socket(fd).map_err(file_error)?;
            return Ok(Outcome::Done(0));
        }
        self.recv(now, call, fd, buf, 0).map_err(file_error)
    }

    /// `write(2)`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn write(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
    ) -> Result<Outcome<usize>, Errno> {
        if let Some(end) = self.pipe_end(fd) {
            return self.write_pipe(now, call, (fd, end), data);
        }
        self.send(now, call, fd, data, 0).map_err(file_error)
    }

    /// `recv(2)`.
    ///
    /// # Errors
    /// As [`recv_from`](Self::recv_from).
    pub fn recv(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        Ok(self.recv_from(now, call, fd, buf, flags)?.map(|received| received.len))
    }

    /// `send(2)`.
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to).
    pub fn send(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        self.send_to(now, call, fd, data, flags, None)
    }

    /// `recvfrom(2)`: [`recv_msg`](Self::recv_msg) without room for control messages.
    ///
    /// # Errors
    /// As [`recv_msg`](Self::recv_msg).
    pub fn recv_from(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
        flags: i32,
    ) -> Result<Outcome<Received>, Errno> {
        self.recv_msg(now, call, fd, (buf, &mut []), flags)
    }

    /// `recvmsg(2)` into a buffer for data and one for control messages (`msg_control`, laid out as
    /// cmsg(3) says); waits as `SO_RCVTIMEO` says. `MSG_PEEK`, `MSG_TRUNC`, `MSG_WAITALL` and
    /// `MSG_DONTWAIT` are known. With `MSG_TRUNC` on TCP the bytes are dropped and the buffer only
    /// says how many. With `MSG_ERRQUEUE` the oldest record of the error queue comes, or `EAGAIN`
    /// at once.
    ///
    /// # Errors
    /// `EAGAIN`; `ENOTCONN`; `EINVAL` for `MSG_OOB`, since there is no urgent data; what ended the
    /// connection or an ICMP message said, once.
    pub fn recv_msg(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        (buf, control): (&mut [u8], &mut [u8]),
        flags: i32,
    ) -> Result<Outcome<Received>, Errno> {
        let may_wait = flags & MSG_DONTWAIT == 0 && !self.table.is_nonblocking(fd);
        if flags & MSG_ERRQUEUE != 0 {
            return self.read_error(now, fd, buf, control).map(Outcome::Done);
        }
        let socket = self.table.socket_mut(fd)?;
        let way = Way { now, fd, flags, may_wait, is_shut: socket.shut.0 };
        match &socket.kind {
            Kind::Fresh => match socket.pending.take() {
                Some(error) => Err(error.into()),
                None if way.is_shut => Ok(Outcome::Done(Received::bytes(0))),
                None => Err(Errno::ENOTCONN),
            },
            Kind::Listening(_) => Err(Errno::ENOTCONN),
            Kind::Stream { .. } if flags & MSG_OOB != 0 => Err(Errno::EINVAL),
            Kind::Stream { handle, .. } => read_stream(way, call, &socket.common, handle, buf),
            Kind::Datagram(_) if flags & MSG_OOB != 0 => Err(Errno::EOPNOTSUPP),
            Kind::Datagram(handle) => {
                let next = match handle {
                    Some(handle) if flags & MSG_PEEK != 0 => handle.peek_from(),
                    Some(handle) => handle.recv_from(),
                    None => Err(SocketError::WouldBlock),
                };
                let datagram = match next {
                    Ok(datagram) => datagram,
                    // As in Linux, who does not wait hears nothing of the end.
                    Err(SocketError::WouldBlock) if way.is_shut && may_wait => {
                        return Ok(Outcome::Done(Received::bytes(0)));
                    }
                    Err(SocketError::WouldBlock) if may_wait => {
                        let timeout = socket.common.receive_timeout;
                        return call.wait(now, timeout, (fd, POLLIN)).ok_or(Errno::EAGAIN);
                    }
                    Err(error) => return Err(error.into()),
                };
                let (whole, cut) = (datagram.data.len(), datagram.data.len().min(buf.len()));
                buf[..cut].copy_from_slice(&datagram.data[..cut]);
                Ok(Outcome::Done(Received {
                    len: if flags & MSG_TRUNC != 0 { whole } else { cut },
                    flags: if cut < whole { MSG_TRUNC } else { 0 },
                    from: Some(socket.domain.show(datagram.from)),
                    control: 0,
                }))
            }
        }
    }

    /// `sendto(2)`, `sendmsg(2)`; waits as `SO_SNDTIMEO` says, until everything is taken.
    /// `MSG_MORE`, `MSG_EOR`, `MSG_DONTWAIT` and `MSG_NOSIGNAL` are known; `MSG_ZEROCOPY` is a hint
    /// that changes nothing. TCP ignores `to`.
    ///
    /// # Errors
    /// `EAGAIN`; `EPIPE`, and of TCP without `MSG_NOSIGNAL` it is for the caller to raise SIGPIPE;
    /// `EOPNOTSUPP` for `MSG_OOB`, `MSG_FASTOPEN` and `MSG_MORE` of datagrams;
    /// `EDESTADDRREQ`, `EMSGSIZE`, `ENOBUFS`; what ended the connection, once.
    pub fn send_to(
        &mut self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<Outcome<usize>, Errno> {
        let may_wait = flags & MSG_DONTWAIT == 0 && !self.table.is_nonblocking(fd);
        let socket = self.table.socket_mut(fd)?;
        let way = Way { now, fd, flags, may_wait, is_shut: socket.shut.1 };
        if let Some(to) = to {
            sockaddr::check_len(to)?;
        }
        if flags & (MSG_OOB | MSG_FASTOPEN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        match &socket.kind {
            Kind::Fresh => Err(socket.pending.take().map_or(Errno::EPIPE, Errno::from)),
            Kind::Listening(_) => Err(Errno::EPIPE),
            Kind::Stream { handle, .. } => write_stream(way, call, &socket.common, handle, data),
            Kind::Datagram(_) => self.send_datagram(way, call, data, to),
        }
    }

    fn send_datagram(
        &mut self,
        way: Way,
        call: &mut Call,
        data: &[u8],
        to: Option<&[u8]>,
    ) -> Result<Outcome<usize>, Errno> {
        let socket = self.table.socket(way.fd)?;
        if way.flags & MSG_MORE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let to = to.map(|to| sockaddr::parse_destination(socket.domain, to)).transpose()?;
        let to = to.flatten().map(|to| socket.canonical(to));
        if socket.shut.1 {
            return Err(Errno::EPIPE);
        }
        let timeout = socket.common.send_timeout;
        let handle = match &socket.kind {
            Kind::Datagram(None) if to.is_none() => return Err(Errno::EDESTADDRREQ),
            _ => self.datagram(way.fd)?,
        };
        match handle.send_to(way.now, Bytes::copy_from_slice(data), to) {
            Ok(()) => Ok(Outcome::Done(data.len())),
            Err(SocketError::WouldBlock) if way.may_wait => {
                call.wait(way.now, timeout, (way.fd, POLLOUT)).ok_or(Errno::EAGAIN)
            }
            Err(SocketError::AddressFamily) => Err(Errno::ENETUNREACH),
            Err(error) => Err(error.into()),
        }
    }
}

/// `read` and `write` know no sockets, but whatever has a descriptor.
fn file_error(error: Errno) -> Errno {
    if error == Errno::ENOTSOCK { Errno::EINVAL } else { error }
}

/// Reads from a connection until enough is there (`tcp_recvmsg_locked`).
fn read_stream(
    way: Way,
    call: &mut Call,
    common: &Common,
    handle: &TcpHandle,
    buf: &mut [u8],
) -> Result<Outcome<Received>, Errno> {
    let Way { now, flags, may_wait, .. } = way;
    let whole = buf.len();
    let target = match flags & MSG_WAITALL {
        0 => (handle.receive_lowat(now) as usize).min(whole),
        _ => whole,
    };
    let target = target.max(1);
    let is_peek = flags & MSG_PEEK != 0;
    let bits = handle.readiness().bits();
    let unread = handle.unread(now) as usize;
    // What has come is told before what ended the connection, and the error stays for the next
    // call.
    let has_ended = bits.intersects(Ready::READ_CLOSED | Ready::ERROR) || way.is_shut;
    if way.is_shut && unread == 0 && !bits.contains(Ready::ERROR) {
        return Ok(Outcome::Done(Received::bytes(call.done)));
    }
    let is_over = unread == 0 && has_ended;
    if call.done > 0 && is_over {
        return Ok(Outcome::Done(Received::bytes(call.done)));
    }
    let is_enough = if is_peek { unread >= target } else { call.done + unread >= target };
    let takes = is_enough || !may_wait || has_ended;
    let out = &mut buf[call.done.min(whole)..];
    if takes || !is_peek {
        let read = match (is_peek, flags & MSG_TRUNC != 0) {
            _ if out.is_empty() && unread == 0 && !is_over => Err(ReadError::WouldBlock),
            (true, false) => handle.peek(now, out),
            (true, true) => handle.peek(now, &mut vec![0; out.len().min(unread)]),
            (false, false) => handle.read(now, out),
            (false, true) if unread == 0 => handle.read(now, &mut vec![0; out.len().min(1)]),
            (false, true) => handle.read(now, &mut vec![0; out.len().min(unread)]),
        };
        match read {
            Ok(0) => return Ok(Outcome::Done(Received::bytes(call.done))),
            Ok(read) => call.done += read,
            Err(ReadError::WouldBlock) => {}
            Err(ReadError::Failed(error)) => return Err(error.into()),
        }
    }
    if call.done >= target || (call.done > 0 && has_ended) {
        return Ok(Outcome::Done(Received::bytes(call.done)));
    }
    Ok(way.wait_for(call, common.receive_timeout, POLLIN)?.map(Received::bytes))
}

/// Writes all of `data` beyond what `call` has written (`tcp_sendmsg_locked`).
fn write_stream(
    way: Way,
    call: &mut Call,
    common: &Common,
    handle: &TcpHandle,
    data: &[u8],
) -> Result<Outcome<usize>, Errno> {
    let now = way.now;
    let bits = handle.readiness().bits();
    let is_over = bits.intersects(Ready::WRITE_CLOSED | Ready::ERROR);
    if call.done > 0 && is_over {
        return Ok(Outcome::Done(call.done));
    }
    if way.is_shut && bits.contains(Ready::WRITABLE) && !is_over {
        return Err(Errno::EPIPE);
    }
    // A writer that sleeps is woken when a third of the buffer is free, not at the first byte.
    if !call.is_repeated() || is_over || bits.contains(Ready::WRITABLE) {
        let mut marks = WriteFlags::empty();
        marks.set(WriteFlags::MORE, way.flags & MSG_MORE != 0);
        marks.set(WriteFlags::EOR, way.flags & MSG_EOR != 0);
        let written = handle.send(now, &data[call.done.min(data.len())..], marks);
        match written {
            Ok(written) => call.done += written,
            Err(WriteError::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        if call.done >= data.len() && written.is_ok() {
            return Ok(Outcome::Done(call.done));
        }
    }
    way.wait_for(call, common.send_timeout, POLLOUT)
}
