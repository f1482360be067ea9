//! Another stack as the way of flows, such as the stack of a tunnel.
//!
//! Cost: a connection has a socket of that stack, and so does each address and port of a guest that
//! sends datagrams. Datagrams pass in batches, without copies.

use crate::destination::Destination;
use crate::guest::GuestStream;
use crate::host_datagrams::{Arrived, MOST_SEGMENTS, Sent};
use crate::host_errors::{Manner, Undelivered};
use crate::upstream::{Client, Far, FarDatagrams, Upstream};
use bytes::Bytes;
use neap::threadless::{ErrorOrigin, ErrorRecord};
use neap::{
    Datagram, Events, IcmpErrorKind, Poller, Refusal, SocketOptions, Stack, UdpOptions, UdpSocket,
};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of datagrams that wait for the gateway, and of those that wait for the device.
const QUEUE: u32 = 4 << 20;
/// Data that are not sent yet: those of a time at the rate of the connection, and no more than so
/// many.
const NOT_SENT_MICROS: u32 = 5000;
const NOT_SENT: u32 = 512 << 10;
/// How long the thread may be away before a worker of the stack takes over.
const AWAY: Duration = Duration::from_millis(10);

/// Options of connections that a relay feeds.
pub(crate) fn options() -> SocketOptions {
    SocketOptions {
        notsent_lowat: NOT_SENT,
        notsent_lowat_us: NOT_SENT_MICROS,
        ..SocketOptions::default()
    }
}

/// Leaves a stack to the thread of a relay, which comes back at once.
pub(crate) fn leave(stack: &Stack) {
    stack.set_lease(AWAY);
}

/// A stack as the way of all flows: they are its connections and datagrams, from its addresses. It
/// takes addresses only. A guest's hops are passed on with datagrams.
#[derive(Clone)]
pub struct StackUpstream(Arc<Stack>);

impl fmt::Debug for StackUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StackUpstream").finish()
    }
}

impl StackUpstream {
    /// Flows leave by this stack.
    pub fn new(stack: Arc<Stack>) -> Self {
        leave(&stack);
        Self(stack)
    }
}

impl Upstream for StackUpstream {
    fn connect(&self, to: &Destination, _: Client) -> io::Result<Box<dyn Far>> {
        Ok(Box::new(GuestStream::connect_from_stack(&self.0, address(to)?, options())?))
    }

    fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
        Ok(Box::new(StackDatagrams::open(&self.0, address(to)?.is_ipv6())?))
    }
}

/// A stack knows addresses only.
fn address(to: &Destination) -> io::Result<SocketAddr> {
    if to.name.is_some() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(to.address) }
}

/// A UDP socket of a stack, on all of its addresses of one family.
#[derive(Debug)]
pub(crate) struct StackDatagrams {
    socket: UdpSocket,
    /// Received, and not taken yet.
    arrived: VecDeque<Datagram>,
    batch: Vec<Datagram>,
}

impl StackDatagrams {
    pub(crate) fn open(stack: &Stack, is_v6: bool) -> io::Result<Self> {
        let any = if is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let options = UdpOptions { only_v6: is_v6, ..UdpOptions::default() };
        let socket = UdpSocket::bind_with(stack, SocketAddr::new(any, 0), options)?;
        socket.set_nonblocking(true)?;
        socket.set_receive_errors(true)?;
        socket.set_buffers(Some(QUEUE), Some(QUEUE));
        Ok(Self { socket, arrived: VecDeque::new(), batch: Vec::new() })
    }
}

impl FarDatagrams for StackDatagrams {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, manner: Manner) -> Sent {
        let datagram = |data: &Bytes| Datagram {
            hop_limit: Some(manner.hop_limit),
            ..Datagram::new(data.clone(), to.address)
        };
        self.batch.extend(datagrams.iter().map(datagram));
        let (mut sent, mut rest) = (Sent::default(), &self.batch[..]);
        // An error may be one of an earlier datagram: the call is made again.
        let mut may_repeat = true;
        while !rest.is_empty() {
            match self.socket.send_batch(rest) {
                Ok(count) => {
                    sent.count += count;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) if std::mem::take(&mut may_repeat) => {}
                Err(error) => {
                    sent.why = refusal(&error);
                    sent.is_too_long = error.kind() == io::ErrorKind::InvalidInput;
                    rest = &rest[1..];
                }
            }
        }
        self.batch.clear();
        sent
    }

    fn receive(&mut self, _: &mut [u8]) -> io::Result<Arrived> {
        if self.arrived.is_empty() {
            self.socket.recv_batch(&mut self.batch, MOST_SEGMENTS)?;
            self.arrived.extend(self.batch.drain(..));
        }
        let datagram = self.arrived.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(Arrived::one(datagram.peer, datagram.data))
    }

    fn undelivered(&mut self, _: &mut [u8]) -> Option<Undelivered> {
        loop {
            let record = self.socket.recv_error().ok()?;
            if let Some(kind) = kind(&record) {
                let ErrorRecord { destination: to, offender, data, .. } = record;
                return Some(Undelivered { to, data, kind, offender });
            }
        }
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.socket, token, Events::IN | Events::ET)
    }
}

/// What an error of sending is for a guest.
fn refusal(error: &io::Error) -> Option<Refusal> {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => Some(Refusal::Network),
        io::ErrorKind::HostUnreachable => Some(Refusal::Host),
        io::ErrorKind::PermissionDenied => Some(Refusal::Prohibited),
        _ => None,
    }
}

/// The ICMP error that a record came of; `None` for one of which a guest is not to be told.
fn kind(record: &ErrorRecord) -> Option<IcmpErrorKind> {
    /// Types and codes of messages: RFC 792, RFC 4443.
    const UNREACHABLE: u8 = 3;
    const MUST_FRAGMENT: u8 = 4;
    const TIME_EXCEEDED: u8 = 11;
    const UNREACHABLE_V6: u8 = 1;
    const TOO_BIG_V6: u8 = 2;
    const TIME_EXCEEDED_V6: u8 = 3;
    let code = record.code;
    let too_big = IcmpErrorKind::PacketTooBig { mtu: record.info };
    match (record.origin, record.kind) {
        (ErrorOrigin::Local, _) if record.info > 0 => Some(too_big),
        (ErrorOrigin::Icmp, UNREACHABLE) if code == MUST_FRAGMENT => Some(too_big),
        (ErrorOrigin::Icmp6, TOO_BIG_V6) => Some(too_big),
        (ErrorOrigin::Icmp, UNREACHABLE) | (ErrorOrigin::Icmp6, UNREACHABLE_V6) => {
            Some(IcmpErrorKind::Unreachable { code })
        }
        (ErrorOrigin::Icmp, TIME_EXCEEDED) | (ErrorOrigin::Icmp6, TIME_EXCEEDED_V6)
            if code == 0 =>
        {
            Some(IcmpErrorKind::TimeExceeded)
        }
        _ => None,
    }
}
