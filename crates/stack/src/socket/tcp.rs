//! [`TcpHandle`]: the application's reference to a connection.

use crate::host::Host;
use crate::host::error_queue::{ErrorQueue, ErrorRecord};
use crate::host::readiness::{Ready, ReadyState};
use crate::host::run_list::Work;
use crate::host::tcp::TcpSocket;
use bytes::Bytes;
use core::net::SocketAddr;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use neap_tcp::connection::{Connection, ConnectionError, ReadError, WriteError, WriteFlags};
use neap_tcp::info::TcpInfo;
use neap_tcp::options::{OptionError, SocketOption, SocketOptions};
use neap_tcp::state::State;
use neap_tcp::time::Instant;
use std::sync::{Arc, Weak};
use std::task::Waker;

pub use crate::host::tcp::FlowInfo;

/// The application's reference to a TCP socket; clones share it. When the last one is dropped, the
/// connection is closed as by [`close`](Self::close).
#[derive(Clone, Debug)]
pub struct TcpHandle(Arc<Held>);

#[derive(Debug)]
struct Held {
    socket: Arc<TcpSocket>,
    host: Arc<Host>,
    is_closed: AtomicBool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !*self.is_closed.get_mut() {
            // Dropping knows no time: the driver of the shard closes.
            self.socket.cell.request(Work::CLOSE);
        }
    }
}

/// A reference to a TCP socket that does not keep it open.
#[derive(Clone, Debug)]
pub struct WeakTcpHandle(Weak<Held>);

impl WeakTcpHandle {
    /// The socket, while an application holds it.
    pub fn upgrade(&self) -> Option<TcpHandle> {
        self.0.upgrade().map(TcpHandle)
    }

    /// Tells sockets apart, as long as this reference is held.
    pub fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

impl TcpHandle {
    pub(crate) fn new(socket: Arc<TcpSocket>, host: Arc<Host>) -> Self {
        Self(Arc::new(Held { socket, host, is_closed: AtomicBool::new(false) }))
    }

    /// `SO_REUSEADDR`: whether sockets that have it too may be bound to the address and port of the
    /// connection. What is in TIME-WAIT keeps what it had.
    pub fn set_reuse(&self, on: bool) {
        self.0.host.demux.set_reuse(&self.0.socket, on);
    }

    fn with<R>(&self, now: Instant, f: impl FnOnce(&mut Connection, Instant) -> R) -> R {
        self.0.socket.with(&self.0.host, now, f)
    }

    fn look<R>(&self, now: Instant, f: impl FnOnce(&mut Connection, Instant) -> R) -> R {
        self.0.socket.look(&self.0.host, now, f)
    }

    /// Queues a copy of the front of `data` and sends what may go. How many bytes were taken.
    ///
    /// # Errors
    /// As [`Connection::write`]; `WouldBlock` when the send buffer is full.
    pub fn write(&self, now: Instant, data: &[u8]) -> Result<usize, WriteError> {
        self.send(now, data, WriteFlags::empty())
    }

    /// As [`write`](Self::write), with `MSG_MORE` and `MSG_EOR`. Of what is more than one buffer,
    /// the first leaves before the rest is copied.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn send(&self, now: Instant, data: &[u8], flags: WriteFlags) -> Result<usize, WriteError> {
        self.0.socket.send(&self.0.host, now, data, flags)
    }

    /// As [`send`](Self::send) of all the slices one after the other, as one write.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn send_vectored<B: Deref<Target = [u8]>>(
        &self,
        now: Instant,
        slices: &[B],
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.0.socket.send_vectored(&self.0.host, now, slices, flags)
    }

    /// As [`write`](Self::write) without a copy: takes the front of `data`.
    ///
    /// # Errors
    /// As [`Connection::write_bytes`].
    pub fn write_bytes(&self, now: Instant, data: &mut Bytes) -> Result<usize, WriteError> {
        self.send_bytes(now, data, WriteFlags::empty())
    }

    /// As [`write_bytes`](Self::write_bytes), with `MSG_MORE` and `MSG_EOR`.
    ///
    /// # Errors
    /// As [`Connection::write_bytes`].
    pub fn send_bytes(
        &self,
        now: Instant,
        data: &mut Bytes,
        flags: WriteFlags,
    ) -> Result<usize, WriteError> {
        self.with(now, |connection, _| connection.write_bytes(data, flags))
    }

    /// Copies received bytes; `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Connection::read`]; `WouldBlock` when nothing is there.
    pub fn read(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.with(now, |connection, now| connection.read(now, buf))
    }

    /// As [`read`](Self::read) into one buffer after the other.
    ///
    /// # Errors
    /// As [`Connection::read`].
    pub fn read_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        now: Instant,
        bufs: &mut [B],
    ) -> Result<usize, ReadError> {
        self.with(now, |connection, now| {
            let mut done = 0;
            for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
                // The call returns what was read. An error that follows stays for the next call.
                if done > 0 && connection.unread() == 0 {
                    break;
                }
                done += connection.read(now, buf)?;
            }
            Ok(done)
        })
    }

    /// Owns the connection once for a call that looks at it and reads. `f` gets the connection and
    /// the time, and must not call the socket.
    #[doc(hidden)]
    pub fn read_with<R>(&self, now: Instant, f: impl FnOnce(&mut Connection, Instant) -> R) -> R {
        self.with(now, f)
    }

    /// As [`read`](Self::read) for a caller that waits for `SO_RCVLOWAT` bytes.
    ///
    /// # Errors
    /// As [`Connection::read_low_water`].
    pub fn read_low_water(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.with(now, |connection, now| connection.read_low_water(now, buf))
    }

    /// As [`read`](Self::read) without a copy; `Ok(None)` is the end of the stream.
    ///
    /// # Errors
    /// As [`Connection::read_bytes`].
    pub fn read_bytes(&self, now: Instant) -> Result<Option<Bytes>, ReadError> {
        self.with(now, Connection::read_bytes)
    }

    /// As [`read`](Self::read), and the bytes stay.
    ///
    /// # Errors
    /// As [`Connection::peek`].
    pub fn peek(&self, now: Instant, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.with(now, |connection, _| connection.peek(buf))
    }

    /// No more data will be written: FIN follows what is queued.
    pub fn shutdown_write(&self, now: Instant) {
        self.with(now, |connection, _| connection.shutdown_write());
    }

    /// No more data will be read: reads return the end of the stream.
    pub fn shutdown_read(&self, now: Instant) {
        self.with(now, |connection, _| connection.shutdown_read());
    }

    /// Closes as the linger option says; data still queued is sent by the stack.
    pub fn close(&self, now: Instant) {
        if !self.0.is_closed.swap(true, Relaxed) {
            self.with(now, Connection::close);
        }
    }

    /// Resets the connection.
    pub fn abort(&self, now: Instant) {
        self.with(now, |connection, _| connection.abort());
    }

    /// Returns what the socket is ready for, and the generation to register with.
    pub fn readiness(&self) -> ReadyState {
        self.0.socket.readiness.state()
    }

    /// Registers `waker` for the next time that the socket becomes ready for any of `interest`,
    /// even if it was ready before. Returns false and registers nothing if the socket has become
    /// ready for something since `seen`.
    ///
    /// The thread that calls the waker may own the connection at that time. A waker wakes a thread
    /// or a task, which then calls the socket. If it called the connection itself, it would wait
    /// for its own thread.
    #[must_use = "false means: look again"]
    pub fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        self.0.socket.readiness.register(seen, interest, waker)
    }

    /// Forgets a waker that was registered.
    pub fn unregister(&self, waker: &Waker) {
        self.0.socket.readiness.unregister(waker);
    }

    /// A reference that does not keep the socket open.
    pub fn downgrade(&self) -> WeakTcpHandle {
        WeakTcpHandle(Arc::downgrade(&self.0))
    }

    /// `FIONREAD`: bytes that can be read.
    pub fn unread(&self, now: Instant) -> u32 {
        self.look(now, |connection, _| connection.unread())
    }

    /// `SO_RCVLOWAT`, at least 1.
    pub fn receive_lowat(&self, now: Instant) -> u32 {
        self.look(now, |connection, _| connection.options().receive_lowat)
    }

    /// `SIOCOUTQ`: bytes written and not acknowledged.
    pub fn outq(&self, now: Instant) -> u32 {
        self.look(now, |connection, _| connection.outq())
    }

    /// `SIOCOUTQNSD`: bytes written and never sent.
    pub fn outq_nsd(&self, now: Instant) -> u32 {
        self.look(now, |connection, _| connection.outq_nsd())
    }

    /// State of the connection.
    pub fn state(&self, now: Instant) -> State {
        self.look(now, |connection, _| connection.state())
    }

    /// `SO_ERROR`: the pending error, once.
    pub fn take_error(&self, now: Instant) -> Option<ConnectionError> {
        self.with(now, |connection, _| connection.take_error())
    }

    /// The error that ended the connection, once: a report that did not end it is none
    /// (`sk_err` without `sk_err_soft`).
    #[doc(hidden)]
    pub fn take_failure(&self, now: Instant) -> Option<ConnectionError> {
        self.with(now, |connection, _| connection.take_failure())
    }

    /// Gives an error back that a call was told and could not report, since it had moved bytes: the
    /// next call is told it.
    #[doc(hidden)]
    pub fn give_error_back(&self, now: Instant, error: ConnectionError) {
        self.with(now, |connection, _| connection.set_error(Some(error)));
    }

    /// `MSG_ERRQUEUE`: the oldest record of the error queue. What [`take_error`](Self::take_error)
    /// says is the next record's error then, or nothing.
    pub fn next_error(&self, now: Instant) -> Option<ErrorRecord> {
        self.0.socket.next_error(&self.0.host, now)
    }

    /// The error queue, which outlives the connection where the socket does; `other` is in its
    /// place.
    #[doc(hidden)]
    pub fn swap_errors(
        &self,
        now: Instant,
        other: Option<Box<ErrorQueue>>,
    ) -> Option<Box<ErrorQueue>> {
        self.0.socket.swap_errors(&self.0.host, now, other)
    }

    /// The options as they are.
    pub fn options(&self, now: Instant) -> SocketOptions {
        self.look(now, |connection, _| connection.options().clone())
    }

    /// Sets an option.
    ///
    /// # Errors
    /// As [`Connection::set_option`].
    pub fn set_option(&self, now: Instant, option: SocketOption) -> Result<(), OptionError> {
        self.with(now, |connection, now| connection.set_option(now, option))
    }

    /// `TCP_INFO`.
    pub fn info(&self, now: Instant) -> TcpInfo {
        self.look(now, |connection, now| connection.info(now))
    }

    /// Own address and port; a link-local address of IPv6 with the scope of the peer's.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.socket.tuple().local_name()
    }

    /// The peer's address and port; a link-local address of IPv6 has the
    /// [number](crate::interface::InterfaceId::index) of the interface as its scope.
    pub fn remote_addr(&self) -> SocketAddr {
        self.0.socket.tuple().remote_addr()
    }

    /// The shard whose driver serves this socket's timers and completions.
    pub fn shard(&self) -> usize {
        self.0.socket.cell.list().shard()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stack::{ConnectOptions, ListenOptions, Stack, StackConfig};

    /// A host that is connected to itself: the host, the time, client and server.
    fn pair() -> (Stack, Instant, TcpHandle, TcpHandle) {
        let stack = Stack::new(StackConfig::default()).expect("default settings");
        let now = Instant::from_nanos(1_000_000_000);
        let to = "127.0.0.1:80".parse().expect("an address");
        let listener = stack.listen(to, ListenOptions::default()).expect("nobody listens");
        let client = stack.connect(now, to, ConnectOptions::default()).expect("a free port");
        run(&stack, now);
        let (server, _) = listener.accept().expect("a connection");
        (stack, now, client, server)
    }

    fn run(stack: &Stack, now: Instant) {
        while stack.poll(0, now).0 <= now {}
    }

    #[test]
    fn whoever_waits_for_the_peer_to_acknowledge_everything_is_told() {
        #[derive(Default)]
        struct IsTold(AtomicBool);
        impl std::task::Wake for IsTold {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Relaxed);
            }
        }
        let (stack, now, client, server) = pair();
        client.write(now, b"to the last byte").expect("room");
        client.close(now);
        let told = Arc::new(IsTold::default());
        let seen = client.readiness();
        assert!(!seen.bits().contains(Ready::ALL_ACKED));
        assert!(client.register(seen, Ready::ALL_ACKED, &told.clone().into()));
        assert!(!told.0.load(Relaxed));
        run(&stack, now);
        assert!(told.0.load(Relaxed), "the peer has acknowledged the FIN");
        assert!(client.readiness().bits().contains(Ready::ALL_ACKED));
        // The peer has not closed, so the connection is not over.
        assert!(!server.readiness().bits().contains(Ready::ALL_ACKED));
    }

    #[test]
    fn work_is_kicked_once_and_only_while_nobody_polls() {
        use std::sync::atomic::AtomicU32;
        struct Kicks(AtomicU32);
        impl std::task::Wake for Kicks {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Relaxed);
            }
        }
        let (stack, now, client, server) = pair();
        let kicks = Arc::new(Kicks(AtomicU32::new(0)));
        stack.set_kick(0, Some(kicks.clone().into()));
        run(&stack, now);
        assert_eq!(kicks.0.load(Relaxed), 0);
        client.write(now, b"one").expect("room");
        client.write(now, b"two").expect("room");
        assert_eq!(kicks.0.load(Relaxed), 1, "until the next poll");
        assert!(stack.has_work(0));
        run(&stack, now);
        assert!(!stack.has_work(0));
        drop(client);
        assert_eq!(kicks.0.load(Relaxed), 2, "closing is work");
        run(&stack, now);
        assert_eq!(server.read(now, &mut [0; 10]), Ok(6));
        assert_eq!(server.read(now, &mut [0; 10]), Ok(0));
    }
}
