//! Sending and receiving: `read`, `write`, `send`, `recv` and their relatives, after `tcp_sendmsg`
//! and `tcp_recvmsg`.
//!
//! The caller flattens vectors and `struct msghdr`.

use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::cmsg::{self, Control};
use crate::errno::Errno;
use crate::file::{File, Object};
use crate::sockaddr::{self, Domain};
use crate::socket::{Kind, SharedSocket};
use crate::{Fd, Posix, Received};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_stack::socket::SocketError;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::{ReceivedDatagram, SendDatagram, UdpHandle};
use neap_tcp::connection::{Connection, ConnectionError, ReadError, WriteError, WriteFlags};
use neap_tcp::time::{Instant, Nanos};

/// How one call transfers.
#[derive(Clone, Copy)]
struct Transfer {
    now: Instant,
    /// `MSG_*`
    flags: i32,
    may_wait: bool,
    /// `SO_RCVTIMEO` or `SO_SNDTIMEO`
    timeout: Option<Nanos>,
    /// The direction was shut down before the connection began.
    is_shut: bool,
}

impl Transfer {
    /// Not all is done: the call waits for `event`, or ends with the bytes that it has.
    fn wait_for(self, call: &mut Call, event: u32) -> Result<Outcome<usize>, Errno> {
        let wait = if self.may_wait { call.wait(self.now, self.timeout, event) } else { None };
        match wait {
            Some(wait) => Ok(wait),
            None if call.done > 0 => Ok(Outcome::Done(call.done)),
            None => Err(Errno::EAGAIN),
        }
    }
}

pub(super) fn may_wait(file: &File, flags: i32) -> bool {
    flags & MSG_DONTWAIT == 0 && !file.is_nonblocking()
}

impl Posix {
    /// `read(2)`: receives like `recv` without flags. With an empty buffer it does nothing.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub fn read(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
    ) -> Result<Outcome<usize>, Errno> {
        let file = call.file(&self.table, fd)?;
        if let Object::Pipe(end) = &file.object {
            return end.read(now, call, !file.is_nonblocking(), buf);
        }
        if buf.is_empty() {
            file.socket().map_err(file_error)?;
            return Ok(Outcome::Done(0));
        }
        self.recv(now, call, fd, buf, 0).map_err(file_error)
    }

    /// `write(2)`: sends like `send` without flags.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub fn write(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
    ) -> Result<Outcome<usize>, Errno> {
        let file = call.file(&self.table, fd)?;
        if let Object::Pipe(end) = &file.object {
            return end.write(now, call, !file.is_nonblocking(), data);
        }
        self.send(now, call, fd, data, 0).map_err(file_error)
    }

    /// `recv(2)`: receives bytes or a datagram.
    ///
    /// # Errors
    /// Those of [`recv_from`](Self::recv_from).
    pub fn recv(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        Ok(self.recv_from(now, call, fd, buf, flags)?.map(|received| received.len))
    }

    /// `send(2)`: sends bytes or a datagram.
    ///
    /// # Errors
    /// Those of [`send_to`](Self::send_to).
    pub fn send(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
        flags: i32,
    ) -> Result<Outcome<usize>, Errno> {
        self.send_to(now, call, fd, data, flags, None)
    }

    /// `recvfrom(2)`: receives like [`recv_msg`](Self::recv_msg), without room for control
    /// messages.
    ///
    /// # Errors
    /// Those of [`recv_msg`](Self::recv_msg).
    pub fn recv_from(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
        flags: i32,
    ) -> Result<Outcome<Received>, Errno> {
        self.recv_msg(now, call, fd, buf, &mut [], flags)
    }

    /// `recvmsg(2)`: receives into a buffer for data and one for control messages (`msg_control`,
    /// laid out as cmsg(3) says). It waits up to `SO_RCVTIMEO`.
    ///
    /// The flags `MSG_PEEK`, `MSG_TRUNC`, `MSG_WAITALL` and `MSG_DONTWAIT` are supported. With
    /// `MSG_TRUNC` on TCP the bytes are dropped, and the buffer only says how many. With
    /// `MSG_ERRQUEUE` the call returns the oldest record of the error queue, or `EAGAIN` at once.
    ///
    /// # Errors
    /// `EAGAIN`; `ENOTCONN`; `EINVAL` for `MSG_OOB` on TCP, since there is no urgent data; the
    /// error that ended the connection or that an ICMP message reported, once.
    pub fn recv_msg(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        buf: &mut [u8],
        control: &mut [u8],
        flags: i32,
    ) -> Result<Outcome<Received>, Errno> {
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        if flags & MSG_ERRQUEUE != 0 {
            return shared.read_error(now, buf, control).map(Outcome::Done);
        }
        let mut socket = shared.lock();
        let (timeout, is_shut) = (socket.common.receive_timeout, socket.shut.0);
        let how = Transfer { now, flags, may_wait: may_wait(&file, flags), timeout, is_shut };
        match &socket.kind {
            Kind::Fresh | Kind::Stream { .. } if flags & MSG_OOB != 0 => Err(Errno::EINVAL),
            Kind::Fresh | Kind::Listening(_) => {
                socket.read_without_connection()?;
                Ok(Outcome::Done(Received::bytes(0)))
            }
            Kind::Stream { handle, .. } => {
                let handle = handle.clone();
                drop(socket);
                read_stream(how, call, &handle, buf)
            }
            Kind::Datagram(handle) => {
                let (domain, asked, handle) = (socket.domain, socket.common.asked, handle.clone());
                drop(socket);
                let datagram = match take_datagram(how, call, handle.as_ref())? {
                    Outcome::Done(Some(datagram)) => datagram,
                    Outcome::Done(None) => return Ok(Outcome::Done(Received::bytes(0))),
                    Outcome::Wait(until) => return Ok(Outcome::Wait(until)),
                };
                let mut messages = Control::new(control);
                if !asked.is_empty() {
                    let spec_dst = self.answer_source(domain, &datagram);
                    messages.put_datagram(domain, asked, &datagram, spec_dst);
                }
                Ok(Outcome::Done(give_datagram(flags, domain, &datagram, buf, messages)))
            }
        }
    }

    /// The own address that an answer to a datagram comes from (`fib_compute_spec_dst`).
    pub(super) fn answer_source(&self, domain: Domain, datagram: &ReceivedDatagram) -> IpAddr {
        if !datagram.is_broadcast {
            return datagram.to.ip();
        }
        self.stack.source_for(datagram.from.ip()).unwrap_or(domain.unspecified())
    }

    /// `sendto(2)`: sends data like [`send_msg`](Self::send_msg), without control messages.
    ///
    /// # Errors
    /// Those of [`send_msg`](Self::send_msg).
    pub fn send_to(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<Outcome<usize>, Errno> {
        self.send_msg(now, call, fd, data, &[], flags, to)
    }

    /// `sendmsg(2)`: sends data, with control messages laid out as cmsg(3) says (`msg_control`). It
    /// waits up to `SO_SNDTIMEO` until everything is taken.
    ///
    /// Datagrams take `IP_PKTINFO`, `IP_TTL`, `IP_TOS`, `IPV6_PKTINFO`, `IPV6_HOPLIMIT` and
    /// `IPV6_TCLASS`; TCP takes no messages and ignores them.
    ///
    /// The flags `MSG_MORE`, `MSG_EOR`, `MSG_DONTWAIT` and `MSG_NOSIGNAL` are supported.
    /// `MSG_ZEROCOPY` is a hint that changes nothing. TCP ignores `to`.
    ///
    /// # Errors
    /// `EAGAIN`; `EPIPE`, for which the caller raises SIGPIPE on TCP without `MSG_NOSIGNAL`;
    /// `EOPNOTSUPP` for `MSG_OOB`, `MSG_FASTOPEN` and `MSG_MORE` of datagrams; `EDESTADDRREQ`,
    /// `EMSGSIZE`, `ENOBUFS`; `EACCES` for a broadcast address without `SO_BROADCAST`; `EINVAL` for
    /// a bad control message, and for a source that is no own address; `ENODEV` for an interface
    /// that is not there; `ENETUNREACH` without a way, which by the loopback (index 1) there is to
    /// own addresses alone; the error that ended the connection, once.
    #[expect(clippy::too_many_arguments, reason = "those of the system call")]
    pub fn send_msg(
        &self,
        now: Instant,
        call: &mut Call,
        fd: Fd,
        data: &[u8],
        control: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<Outcome<usize>, Errno> {
        let file = call.file(&self.table, fd)?;
        let shared = file.socket()?;
        let mut socket = shared.lock();
        let (timeout, is_shut) = (socket.common.send_timeout, socket.shut.1);
        let how = Transfer { now, flags, may_wait: may_wait(&file, flags), timeout, is_shut };
        check_message(flags, to)?;
        match &socket.kind {
            Kind::Fresh | Kind::Listening(_) => Err(socket.write_without_connection().into()),
            Kind::Stream { handle, .. } => {
                let handle = handle.clone();
                drop(socket);
                write_stream(how, call, &handle, data)
            }
            Kind::Datagram(_) => {
                drop(socket);
                let (handle, datagram) =
                    self.datagram_to_send(now, shared, data, control, flags, to)?;
                write_datagram(how, call, &handle, datagram)
            }
        }
    }

    /// The datagram that a call asks for, and the socket of the stack that sends it.
    ///
    /// # Errors
    /// Those of [`send_msg`](Self::send_msg) that are found before anything is sent.
    pub(super) fn datagram_to_send(
        &self,
        now: Instant,
        shared: &SharedSocket,
        data: &[u8],
        control: &[u8],
        flags: i32,
        to: Option<&[u8]>,
    ) -> Result<(UdpHandle, SendDatagram), Errno> {
        check_message(flags, to)?;
        if flags & MSG_MORE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut socket = shared.lock();
        let to = to.map(|to| sockaddr::parse_destination(socket.domain, to)).transpose()?;
        let to = to.flatten().map(|to| socket.canonical_peer(to)).transpose()?;
        if matches!(socket.kind, Kind::Datagram(None)) && to.is_none() {
            return Err(Errno::EDESTADDRREQ);
        }
        let (domain, (whole_v4, whole_v6)) = (socket.domain, socket.common.dont_fragment);
        let is_shut = socket.shut.1;
        let handle = self.datagram(shared, &mut socket)?;
        drop(socket);
        let mut datagram = SendDatagram::new(Bytes::copy_from_slice(data), to);
        // The socket's own remote address costs its lock.
        let matters = whole_v4 != whole_v6 || !control.is_empty();
        let remote = to.or_else(|| if matters { handle.remote_addr() } else { None });
        let is_v4 = remote.is_some_and(|remote| remote.is_ipv4());
        datagram.dont_fragment = if is_v4 { whole_v4 } else { whole_v6 };
        if !control.is_empty() {
            let is_by_loopback = cmsg::apply(&mut datagram, domain, remote, control)?;
            if datagram.interface.is_some_and(|one| !self.stack.has_interface(one)) {
                return Err(Errno::ENODEV);
            }
            let is_here = |remote: SocketAddr| {
                let ip = remote.ip();
                ip.is_loopback() || self.stack.check_local(ip, false).is_ok()
            };
            if is_by_loopback && !remote.is_none_or(is_here) {
                return Err(Errno::ENETUNREACH);
            }
        }
        if is_shut {
            // Linux looks at the socket when all is known of the datagram
            // (`sock_alloc_send_pskb`).
            let found = handle.check_send(now, &datagram);
            let has_source = datagram.from.is_some();
            return Err(found.map_or_else(|e| refusal(e, &handle, has_source), |()| Errno::EPIPE));
        }
        Ok((handle, datagram))
    }
}

/// What is wrong with the flags or the address of a message, whatever the socket.
fn check_message(flags: i32, to: Option<&[u8]>) -> Result<(), Errno> {
    to.map_or(Ok(()), sockaddr::check_len)?;
    if flags & (MSG_OOB | MSG_FASTOPEN) != 0 { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}

/// `read` and `write` know no sockets, but whatever has a descriptor.
fn file_error(error: Errno) -> Errno {
    if error == Errno::ENOTSOCK { Errno::EINVAL } else { error }
}

/// Reads from a connection until enough is there (`tcp_recvmsg_locked`). The connection is owned
/// once, so what is decided and what is read are of one moment.
fn read_stream(
    how: Transfer,
    call: &mut Call,
    handle: &TcpHandle,
    buf: &mut [u8],
) -> Result<Outcome<Received>, Errno> {
    handle.read_with(how.now, |connection, now| read_owned(how, call, connection, now, buf))
}

/// As [`read_stream`], by the owner of the connection, whose time is `now`.
fn read_owned(
    how: Transfer,
    call: &mut Call,
    connection: &mut Connection,
    now: Instant,
    buf: &mut [u8],
) -> Result<Outcome<Received>, Errno> {
    let Transfer { flags, may_wait, is_shut, .. } = how;
    let whole = buf.len();
    let target = match flags & MSG_WAITALL {
        0 => (connection.options().receive_lowat as usize).min(whole),
        _ => whole,
    };
    let target = target.max(1);
    let is_peek = flags & MSG_PEEK != 0;
    let bits = connection.readiness();
    let unread = connection.unread() as usize;
    // What has come is told before what ended the connection, and the error stays for the next
    // call.
    let has_ended = bits.intersects(Ready::READ_CLOSED | Ready::ERROR) || is_shut;
    if is_shut && unread == 0 && !bits.contains(Ready::ERROR) {
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
        let read = match out.is_empty() && unread == 0 && !is_over {
            true => Err(ReadError::WouldBlock),
            false => take_bytes(flags, connection, now, out),
        };
        match read {
            Ok(0) => return Ok(Outcome::Done(Received::bytes(call.done))),
            Ok(read) => call.done += read,
            Err(ReadError::WouldBlock) => {}
            Err(error) => return Err(read_error(error)),
        }
    }
    if call.done >= target || (call.done > 0 && has_ended) {
        return Ok(Outcome::Done(Received::bytes(call.done)));
    }
    let wait = how.wait_for(call, POLLIN);
    if is_peek && unread > 0 && wait == Err(Errno::EAGAIN) {
        // The time is over: less than was asked for is shown, as a read returns it.
        let shown = take_bytes(flags, connection, now, out);
        return shown.map(|shown| Outcome::Done(Received::bytes(shown))).map_err(read_error);
    }
    Ok(wait?.map(Received::bytes))
}

/// Reads from a connection as the flags of the call say.
fn take_bytes(
    flags: i32,
    connection: &mut Connection,
    now: Instant,
    out: &mut [u8],
) -> Result<usize, ReadError> {
    // A buffer of nothing would look like the end of the stream.
    let room = out.len().min((connection.unread() as usize).max(1));
    match (flags & MSG_PEEK != 0, flags & MSG_TRUNC != 0) {
        (true, false) => connection.peek(out),
        (false, false) => connection.read(now, out),
        (true, true) => connection.peek(&mut vec![0; room]),
        (false, true) => connection.read(now, &mut vec![0; room]),
    }
}

fn read_error(error: ReadError) -> Errno {
    match error {
        ReadError::WouldBlock => Errno::EAGAIN,
        ReadError::Failed(error) => error.into(),
    }
}

/// Ends a call that was told `error`: with the bytes that it has moved, and the next call is told
/// the error. The connection may fail between the look at its readiness and the attempt.
fn part_before(
    how: Transfer,
    call: &Call,
    handle: &TcpHandle,
    error: ConnectionError,
) -> Result<usize, Errno> {
    if call.done == 0 {
        return Err(error.into());
    }
    handle.give_error_back(how.now, error);
    Ok(call.done)
}

/// Whether a connection of this readiness is open for writing, without an error to tell first.
pub(super) fn is_open(bits: Ready) -> bool {
    bits.contains(Ready::WRITABLE) && !bits.intersects(Ready::WRITE_CLOSED | Ready::ERROR)
}

/// Writes all of `data` beyond what `call` has written (`tcp_sendmsg_locked`).
fn write_stream(
    how: Transfer,
    call: &mut Call,
    handle: &TcpHandle,
    data: &[u8],
) -> Result<Outcome<usize>, Errno> {
    let Transfer { now, flags, is_shut, .. } = how;
    let bits = handle.readiness().bits();
    let is_over = bits.intersects(Ready::WRITE_CLOSED | Ready::ERROR);
    if call.done > 0 && is_over {
        return Ok(Outcome::Done(call.done));
    }
    if is_shut && is_open(bits) {
        return Err(Errno::EPIPE);
    }
    // A writer that sleeps is woken when a third of the buffer is free, not at the first byte.
    if !call.is_repeated() || is_over || bits.contains(Ready::WRITABLE) {
        let mut marks = WriteFlags::empty();
        marks.set(WriteFlags::MORE, flags & MSG_MORE != 0);
        marks.set(WriteFlags::EOR, flags & MSG_EOR != 0);
        let written = handle.send(now, &data[call.done.min(data.len())..], marks);
        match written {
            Ok(written) => call.done += written,
            Err(WriteError::WouldBlock) => {}
            Err(WriteError::Failed(error)) => {
                return part_before(how, call, handle, error).map(Outcome::Done);
            }
            Err(WriteError::Closed) if call.done > 0 => return Ok(Outcome::Done(call.done)),
            Err(error) => return Err(error.into()),
        }
        if call.done >= data.len() && written.is_ok() {
            return Ok(Outcome::Done(call.done));
        }
    }
    how.wait_for(call, POLLOUT)
}

/// Takes a datagram; `None` if reading has ended.
fn take_datagram(
    how: Transfer,
    call: &mut Call,
    handle: Option<&UdpHandle>,
) -> Result<Outcome<Option<ReceivedDatagram>>, Errno> {
    let Transfer { now, flags, may_wait, timeout, is_shut } = how;
    let next = match handle {
        Some(handle) if flags & MSG_PEEK != 0 => handle.peek_from(),
        Some(handle) => handle.recv_from(),
        None => Err(SocketError::WouldBlock),
    };
    match next {
        Ok(datagram) => Ok(Outcome::Done(Some(datagram))),
        // As in Linux, who does not wait hears nothing of the end.
        Err(SocketError::WouldBlock) if is_shut && may_wait => Ok(Outcome::Done(None)),
        Err(SocketError::WouldBlock) if may_wait => {
            call.wait(now, timeout, POLLIN).ok_or(Errno::EAGAIN)
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies a datagram; what does not fit `buf` is lost.
pub(super) fn give_datagram(
    flags: i32,
    domain: Domain,
    datagram: &ReceivedDatagram,
    buf: &mut [u8],
    messages: Control<'_>,
) -> Received {
    let (whole, cut) = (datagram.data.len(), datagram.data.len().min(buf.len()));
    buf[..cut].copy_from_slice(&datagram.data[..cut]);
    let (control, control_cut) = messages.finish();
    Received {
        len: if flags & MSG_TRUNC != 0 { whole } else { cut },
        flags: control_cut | if cut < whole { MSG_TRUNC } else { 0 },
        from: Some(domain.show(datagram.from)),
        control,
    }
}

/// Sends a datagram, to the connected peer if no address is given.
fn write_datagram(
    how: Transfer,
    call: &mut Call,
    handle: &UdpHandle,
    datagram: SendDatagram,
) -> Result<Outcome<usize>, Errno> {
    let (len, has_source) = (datagram.data.len(), datagram.from.is_some());
    match handle.send_batch(how.now, [datagram]).1 {
        Ok(()) => Ok(Outcome::Done(len)),
        Err(SocketError::WouldBlock) if how.may_wait => {
            call.wait(how.now, how.timeout, POLLOUT).ok_or(Errno::EAGAIN)
        }
        Err(error) => Err(refusal(error, handle, has_source)),
    }
}

/// The error of a datagram that the socket refused; `has_source` says that it named a source.
pub(super) fn refusal(error: SocketError, handle: &UdpHandle, has_source: bool) -> Errno {
    match error {
        // Bound to IPv4 or connected by it, it knows no other family (`udpv6_sendmsg`).
        SocketError::AddressFamily if handle.name().is_ipv4() => Errno::EAFNOSUPPORT,
        SocketError::AddressFamily => Errno::ENETUNREACH,
        SocketError::AddressNotAvailable if has_source => Errno::EINVAL,
        error => error.into(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::ops::{Deref, DerefMut};
    use neap_stack::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};
    use std::sync::mpsc::{Receiver, Sender, channel};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn run(stack: &Stack) {
        while stack.poll(0, NOW).0 <= NOW {}
    }

    /// A buffer whose reader owns the connection until the test lets go.
    struct Held {
        entered: Sender<()>,
        leave: Receiver<()>,
        byte: [u8; 1],
    }

    impl Deref for Held {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.byte
        }
    }

    impl DerefMut for Held {
        fn deref_mut(&mut self) -> &mut [u8] {
            let _ = self.entered.send(());
            let _ = self.leave.recv();
            &mut self.byte
        }
    }

    /// Waits until the thread of this name in `/proc` sleeps or is over.
    fn until_asleep(name: &std::path::Path) {
        let is_awake = || {
            let stat =
                std::fs::read_to_string(std::path::Path::new("/proc").join(name).join("stat"));
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('S'))
        };
        while is_awake() {
            std::thread::yield_now();
        }
    }

    /// A peer sends three bytes and a reset. `attempt` is a call that goes on after the three bytes
    /// and looks at the connection before the reset is known. Its result, and the error that it
    /// leaves to the next call.
    fn with_a_reset_between_two_looks(
        attempt: impl Fn(Transfer, &mut Call, &TcpHandle) -> Result<Outcome<usize>, Errno> + Sync,
    ) -> (Result<Outcome<usize>, Errno>, Option<Errno>) {
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let to = "127.0.0.1:80".parse().expect("an address");
        let listener = stack.listen(to, ListenOptions::default()).expect("nobody listens");
        let client = stack.connect(NOW, to, ConnectOptions::default()).expect("a free port");
        run(&stack);
        let (server, _) = listener.accept().expect("a connection");
        client.write(NOW, b"abc").expect("room");
        run(&stack);
        let flags = MSG_WAITALL;
        let how = Transfer { now: NOW, flags, may_wait: true, timeout: None, is_shut: false };
        let mut call = Call::new();
        let wait = read_stream(how, &mut call, &server, &mut [0; 10]);
        assert!(matches!((wait, call.done), (Ok(Outcome::Wait(_)), 3)));
        let (entered, has_entered) = channel();
        let (let_go, leave) = channel();
        let (say, hear) = channel();
        let outcome = std::thread::scope(|scope| {
            let (server, attempt) = (&server, &attempt);
            scope.spawn(move || {
                let held = Held { entered, leave, byte: [0] };
                server.read_vectored(NOW, &mut [held])
            });
            has_entered.recv().expect("the connection is owned");
            client.abort(NOW);
            run(&stack);
            let caller = scope.spawn(move || {
                say.send(std::fs::read_link("/proc/thread-self").expect("a name")).expect("heard");
                attempt(how, &mut call, server)
            });
            until_asleep(&hear.recv().expect("a thread"));
            let_go.send(()).expect("it waits");
            caller.join().expect("no panic")
        });
        (outcome, server.take_error(NOW).map(Errno::from))
    }

    #[test]
    fn a_reset_that_comes_while_a_reader_waits_for_the_connection_is_told_after_what_was_read() {
        let outcome = with_a_reset_between_two_looks(|how, call, handle| {
            Ok(read_stream(how, call, handle, &mut [0; 10])?.map(|received| received.len))
        });
        assert_eq!(outcome, (Ok(Outcome::Done(3)), Some(Errno::ECONNRESET)));
    }

    #[test]
    fn a_reset_that_comes_between_two_looks_is_told_after_what_was_written() {
        let outcome = with_a_reset_between_two_looks(|how, _, handle| {
            let mut call = Call::new();
            call.done = 3;
            write_stream(how, &mut call, handle, b"abcdef")
        });
        assert_eq!(outcome, (Ok(Outcome::Done(3)), Some(Errno::ECONNRESET)));
    }
}
