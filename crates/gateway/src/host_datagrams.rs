//! A UDP socket of the host, with super-datagrams in both directions and the errors of ICMP.

use crate::first_link::FirstLinks;
use crate::host_errors::{self, Families, Manner, Undelivered, socket_addr};
use crate::latest::Latest;
use crate::outbound::{NotOwn, Outbound};
use crate::own_address::{self, OwnAddress};
use crate::receive_room::ReceiveRoom;
use bytes::Bytes;
use neap::Refusal;
use nix::errno::Errno;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::sockopt::{RxqOvfl, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockRef, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Most bytes of several datagrams of a call: those of the largest UDP datagram over IPv4.
pub const MOST_BYTES: usize = 65_507;
/// Most datagrams of a call (`UDP_MAX_SEGMENTS`).
pub const MOST_SEGMENTS: usize = 64;

/// How many datagrams of these lengths, from the first on, the host can send in one call: of one
/// length; the last may be shorter. There is at least one.
pub(crate) fn first_run(lengths: impl Iterator<Item = usize>) -> usize {
    let (mut size, mut bytes, mut count) = (0, 0, 0);
    for length in lengths.take(MOST_SEGMENTS) {
        if count == 0 {
            size = length;
        }
        bytes += length;
        // A super-datagram has no empty parts.
        if count > 0 && (length == 0 || length > size || bytes > MOST_BYTES) {
            break;
        }
        count += 1;
        if length < size || size == 0 {
            break;
        }
    }
    count
}

/// Bytes of datagrams that wait for the gateway, which may have other work for some milliseconds.
const RECEIVE_BUFFER: usize = 4 << 20;

/// A socket that sends to and receives from everybody.
#[derive(Debug)]
pub(crate) struct HostDatagrams {
    socket: UdpSocket,
    /// Destinations to which the way out cannot cut super-datagrams: a policy of IPsec takes their
    /// packets, or the link has no checksums. Other ways of the same socket can.
    plain_ways: Latest<()>,
    families: Families,
    manner: Option<Manner>,
    first_links: FirstLinks,
    /// Packets that the host has dropped so far, as the buffer was full (`SO_RXQ_OVFL`).
    overrun: u32,
}

/// Datagrams of one sender that were received together.
#[derive(Debug)]
pub struct Arrived {
    /// Who sent them.
    pub from: SocketAddr,
    /// The address that they were sent to, if the socket of a server has none of its own.
    pub(crate) to: Option<OwnAddress>,
    /// TOS byte or traffic class of their packets, with ECN.
    pub(crate) tos: u8,
    data: Bytes,
    /// Length of each but the last, which may be shorter.
    segment: usize,
    /// Packets before these that the host has dropped, as too many waited for the gateway.
    pub(crate) overrun: u32,
}

impl Arrived {
    /// One datagram.
    pub fn one(from: SocketAddr, data: Bytes) -> Self {
        let segment = data.len().max(1);
        Self { from, to: None, tos: 0, data, segment, overrun: 0 }
    }

    /// The datagrams. They share memory.
    pub fn datagrams(&self) -> impl Iterator<Item = Bytes> + '_ {
        // An empty datagram is one, too.
        let count = self.data.len().div_ceil(self.segment).max(1);
        (0..count).map(move |index| {
            let start = index * self.segment;
            self.data.slice(start..(start + self.segment).min(self.data.len()))
        })
    }
}

/// What became of datagrams that were to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// How many have left.
    pub count: usize,
    /// How many wait until the way is open. [What becomes of them](Settled) is told later.
    pub held: usize,
    /// Why a guest is to be told that it did not take one. What is in the error queue is not told
    /// here.
    pub why: Option<Refusal>,
    /// Whether one was longer than the way takes. The last error of the queue that says so and
    /// has no offender says how long it may be, and perhaps not to which port it went. Others of
    /// this kind are not told.
    pub is_too_long: bool,
}

/// What became of datagrams that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// How many have left.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
    /// How many have not, and will not.
    pub unsent: usize,
}

impl Sent {
    fn failed(errno: Errno) -> Self {
        let is_too_long = errno == Errno::EMSGSIZE;
        Self { why: refusal(errno), is_too_long, ..Self::default() }
    }
}

impl HostDatagrams {
    /// A socket with an address and port of the host, which the kernel chooses where they are
    /// unspecified.
    pub(crate) fn bind(local: SocketAddr) -> io::Result<Self> {
        Self::bind_with(local, &Outbound::default(), true)
    }

    /// The socket of a server, of both families if the address is `[::]`: addresses of IPv4 are in
    /// the form that IPv6 has for them.
    pub(crate) fn bind_dual(local: SocketAddr) -> io::Result<Self> {
        let only_v6 = !local.ip().is_unspecified();
        Self::bind_with(local, &Outbound::default(), only_v6)?.knows_own_addresses()
    }

    /// A socket for destinations of the family of `like`, from which flows leave in this way.
    pub(crate) fn open(like: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        let from = outbound.from(like);
        Self::bind_with(from, outbound, true).map_err(|error| NotOwn::of_bind(error, from))
    }

    /// A socket with an address and port of the host, which the kernel chooses where they are
    /// unspecified, and with the interface and the mark of `outbound`.
    pub(crate) fn bind_with(
        local: SocketAddr,
        outbound: &Outbound,
        only_v6: bool,
    ) -> io::Result<Self> {
        let is_v6 = local.is_ipv6();
        let domain = Domain::for_address(local);
        let socket = outbound.socket(domain, Type::DGRAM, Protocol::UDP)?;
        if is_v6 {
            socket.set_only_v6(only_v6)?;
        }
        socket.bind(&local.into())?;
        Self::of(socket.into())
    }

    /// The socket of a server, which is bound already.
    ///
    /// # Errors
    /// It is no UDP socket.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<Self> {
        Self::of(socket)?.knows_own_addresses()
    }

    /// Datagrams come with the address that they were sent to, if the socket is bound to none: a
    /// client takes an answer from that address only.
    fn knows_own_addresses(self) -> io::Result<Self> {
        if self.local_addr()?.ip().is_unspecified() {
            own_address::ask(&self.socket, self.families.is_v6())?;
        }
        Ok(self)
    }

    fn of(socket: OwnedFd) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        // The host gives as much as `net.core.rmem_max` allows.
        SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER)?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        setsockopt(&socket, RxqOvfl, &1)?;
        let is_v6 = socket.local_addr()?.is_ipv6();
        host_errors::ask(&socket, is_v6)?;
        host_errors::ask_tos(&socket, is_v6)?;
        let families = match is_v6 {
            false => Families::V4,
            true if SockRef::from(&socket).only_v6()? => Families::V6,
            true => Families::Both,
        };
        Ok(Self {
            socket,
            plain_ways: Latest::default(),
            families,
            manner: None,
            first_links: FirstLinks::default(),
            overrun: 0,
        })
    }

    /// Its descriptor.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.socket.into()
    }

    /// The address and port of the host.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends datagrams of one length, of which the last may be shorter; at most [`MOST_SEGMENTS`]
    /// with [`MOST_BYTES`].
    ///
    /// One that must not be cut is cut all the same if it is longer than the link takes by which it
    /// leaves the host: the larger MTU of the guest's interface made it possible, and only a host
    /// with that link itself would have been told in time.
    pub(crate) fn send(&mut self, datagrams: &[Bytes], to: SocketAddr, manner: Manner) -> Sent {
        self.send_from(None, datagrams, to, manner)
    }

    /// The same from an address of the host, or from the one that the socket and the route give.
    pub(crate) fn send_from(
        &mut self,
        from: Option<OwnAddress>,
        datagrams: &[Bytes],
        to: SocketAddr,
        manner: Manner,
    ) -> Sent {
        let address = SockaddrStorage::from(to);
        let segment = datagrams.first().map_or(0, Bytes::len);
        let size = u16::try_from(segment).unwrap_or(u16::MAX);
        let mut control: SmallVec<[_; 2]> = from.iter().map(OwnAddress::message).collect();
        let is_too_long = self.first_links.is_known_too_long(segment, to.ip());
        if datagrams.len() > 1 && self.plain_ways.get(to.ip()).is_none() && !is_too_long {
            if self.take_on(manner).is_err() {
                return Sent::default();
            }
            let parts: Vec<_> = datagrams.iter().map(|data| IoSlice::new(data)).collect();
            control.push(ControlMessage::UdpGsoSegments(&size));
            let sent = self.try_send(&parts, &control, &address);
            control.pop();
            match sent {
                Ok(()) => return Sent { count: datagrams.len(), ..Sent::default() },
                Err(Errno::EIO) => self.plain_ways.set(to.ip(), ()),
                // Datagrams are longer than what it takes in one piece.
                Err(Errno::EINVAL | Errno::EMSGSIZE) => {}
                Err(errno) => return Sent::failed(errno),
            }
        }
        let mut sent = Sent::default();
        for data in datagrams {
            match self.send_one(data, &control, to, manner) {
                Ok(()) => sent.count += 1,
                Err(errno) => sent = Sent { count: sent.count, ..Sent::failed(errno) },
            }
        }
        sent
    }

    /// Sends one datagram. One that is longer than the link takes is cut; what the host has said of
    /// its length stays in the error queue.
    fn send_one(
        &mut self,
        data: &Bytes,
        control: &[ControlMessage<'_>],
        to: SocketAddr,
        mut manner: Manner,
    ) -> nix::Result<()> {
        let (parts, address) = ([IoSlice::new(data)], SockaddrStorage::from(to));
        manner.dont_fragment &= !self.first_links.is_known_too_long(data.len(), to.ip());
        self.take_on(manner)?;
        let sent = self.try_send(&parts, control, &address);
        let is_too_long = manner.dont_fragment && sent == Err(Errno::EMSGSIZE);
        if !is_too_long || !self.first_links.is_exceeded(&SockRef::from(&self.socket), data, to) {
            return sent;
        }
        self.take_on(Manner { dont_fragment: false, ..manner })?;
        self.try_send(&parts, control, &address)
    }

    /// Gives the socket a manner.
    fn take_on(&mut self, manner: Manner) -> nix::Result<()> {
        let applied = manner.apply(&mut self.manner, &self.socket, self.families);
        applied.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    }

    /// An error that is pending is of an earlier datagram: the call is made again.
    fn try_send(
        &self,
        parts: &[IoSlice<'_>],
        control: &[ControlMessage<'_>],
        to: &SockaddrStorage,
    ) -> nix::Result<()> {
        let call =
            || sendmsg(self.socket.as_raw_fd(), parts, control, MsgFlags::MSG_NOSIGNAL, Some(to));
        match call() {
            Ok(count) => Ok(count),
            Err(Errno::EAGAIN) => Err(Errno::EAGAIN),
            Err(_) => call(),
        }
        .map(drop)
    }

    /// Takes datagrams that have arrived, by way of `room`.
    ///
    /// # Errors
    /// `WouldBlock` if there are none; `InvalidData` for one that is longer than `room`; others
    /// are of datagrams that were sent, see [`undelivered`](Self::undelivered).
    pub(crate) fn receive(&mut self, room: &mut ReceiveRoom) -> io::Result<Arrived> {
        let mut control = nix::cmsg_space!(i32, u32, in_pktinfo, in6_pktinfo, u8, i32);
        let parts = &mut [IoSliceMut::new(room.buffer())];
        let (descriptor, flags) = (self.socket.as_raw_fd(), MsgFlags::empty());
        let received = recvmsg::<SockaddrStorage>(descriptor, parts, Some(&mut control), flags)?;
        let count = received.bytes;
        if received.flags.contains(MsgFlags::MSG_TRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let from = received.address.and_then(socket_addr).ok_or(io::ErrorKind::InvalidData)?;
        let (mut segment, mut to, mut tos, before) = (None, None, 0, self.overrun);
        for message in received.cmsgs()? {
            match message {
                ControlMessageOwned::UdpGroSegments(size) => segment = usize::try_from(size).ok(),
                ControlMessageOwned::RxqOvfl(dropped) => self.overrun = dropped,
                other => {
                    tos = host_errors::tos_of(&other).unwrap_or(tos);
                    to = OwnAddress::of(&other, to);
                }
            }
        }
        let data = room.take(0..count);
        let segment = segment.filter(|&size| size > 0).unwrap_or(count).max(1);
        let overrun = self.overrun.wrapping_sub(before);
        Ok(Arrived { from, to, tos, data, segment, overrun })
    }

    /// The next of the datagrams that could not be delivered, by way of `buffer`. Errors of which a
    /// guest is not to be told are passed over.
    pub(crate) fn undelivered(&mut self, buffer: &mut [u8]) -> Option<Undelivered> {
        host_errors::take(&self.socket, buffer)
    }
}

impl AsFd for HostDatagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What an error of `sendto(2)` is for a guest.
fn refusal(errno: Errno) -> Option<Refusal> {
    match errno {
        // The host has no address of the family (`disable_ipv6`), or the interface is gone.
        Errno::ENETUNREACH | Errno::ENETDOWN | Errno::EADDRNOTAVAIL | Errno::ENODEV => {
            Some(Refusal::Network)
        }
        Errno::EHOSTUNREACH => Some(Refusal::Host),
        Errno::EACCES | Errno::EPERM => Some(Refusal::Prohibited),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_echo::namespace;
    use crate::upstream::FarDatagrams;
    use neap::IcmpErrorKind;

    const MANNER: Manner = Manner { dont_fragment: true, ..Manner::PLAIN };
    use std::net::Ipv4Addr;

    fn pair() -> (HostDatagrams, HostDatagrams, SocketAddr) {
        let any = "0.0.0.0:0".parse().expect("an address");
        let (a, b) = (HostDatagrams::bind(any), HostDatagrams::bind(any));
        let (a, b) = (a.expect("a socket"), b.expect("a socket"));
        let port = b.socket.local_addr().expect("a port").port();
        (a, b, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
    }

    #[test]
    fn a_run_ends_behind_a_shorter_datagram_and_before_a_longer_one() {
        let run = |lengths: &[usize]| first_run(lengths.iter().copied());
        assert_eq!(run(&[100, 100, 100]), 3);
        assert_eq!(run(&[100, 100, 50, 50]), 3);
        assert_eq!(run(&[100, 200]), 1);
        assert_eq!(run(&[0, 0]), 1);
        assert_eq!(run(&[100, 0, 100]), 1);
        assert_eq!(run(&[1400; 100]), MOST_BYTES / 1400);
        assert_eq!(run(&[10; 100]), MOST_SEGMENTS);
    }

    #[test]
    fn datagrams_keep_their_boundaries() {
        let (mut a, mut b, to) = pair();
        let sent = [vec![1; 1000], vec![2; 1000], vec![3; 400]].map(Bytes::from);
        assert_eq!(a.send(&sent, to, MANNER).count, 3);
        assert_eq!(a.send(&[Bytes::new()], to, MANNER).count, 1);
        let (mut got, mut room) = (Vec::new(), ReceiveRoom::new());
        while let Ok(arrived) = b.receive(&mut room) {
            assert_eq!(arrived.from.ip(), to.ip());
            got.extend(arrived.datagrams());
        }
        assert_eq!(got, [&sent[..], &[Bytes::new()]].concat());
    }

    #[test]
    fn many_datagrams_stay_in_the_memory_that_they_were_received_into() {
        let (mut a, mut b, to) = pair();
        let sent = vec![Bytes::from(vec![1; 1400]); MOST_BYTES / 1400];
        assert_eq!(a.send(&sent, to, MANNER).count, sent.len());
        let mut room = ReceiveRoom::new();
        let at = room.buffer().as_ptr();
        let arrived = b.receive(&mut room).expect("they have arrived");
        assert!(arrived.datagrams().eq(sent));
        assert_eq!(arrived.datagrams().next().map(|first| first.as_ptr()), Some(at));
    }

    #[test]
    fn what_finds_the_buffer_full_is_told_with_the_next_datagram() {
        let (mut a, mut b, to) = pair();
        SockRef::from(&b.socket).set_recv_buffer_size(1).expect("a small buffer");
        let mut room = ReceiveRoom::new();
        let (mut got, mut overrun) = (0, 0);
        for _ in 0..2 {
            for _ in 0..50 {
                assert_eq!(a.send(&[Bytes::from(vec![1; 1000])], to, MANNER).count, 1);
            }
            while let Ok(arrived) = b.receive(&mut room) {
                (got, overrun) = (got + 1, overrun + arrived.overrun);
            }
        }
        assert_eq!(a.send(&[Bytes::from_static(b"the last")], to, MANNER).count, 1);
        overrun += b.receive(&mut room).expect("there is room").overrun;
        assert!(overrun > 0 && got + overrun == 100, "{got} {overrun}");
    }

    #[test]
    fn the_longest_datagrams_of_ipv6_arrive_whole_and_longer_ones_than_the_room_do_not() {
        let local = || HostDatagrams::bind("[::1]:0".parse().expect("an address"));
        let (mut a, mut b) = (local().expect("a socket"), local().expect("a socket"));
        let to = b.local_addr().expect("an address");
        let manner = Manner::PLAIN;
        let mut room = ReceiveRoom::new();
        // The kernel puts it together of two fragments: that may take a moment.
        b.socket.set_nonblocking(false).expect("set");
        let sent = [Bytes::from(vec![1; 65_527])];
        assert_eq!(a.send(&sent, to, manner).count, 1);
        let arrived = b.receive(&mut room).expect("it has arrived");
        assert!(arrived.datagrams().eq(sent.clone()));
        assert_eq!(a.send(&sent, to, manner).count, 1);
        let error = b.receive(&mut ReceiveRoom::of(1000)).expect_err("it is longer");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn the_tos_of_datagrams_leaves_and_arrives() {
        const ECT_0: u8 = 2;
        const CE: u8 = 3;
        const EF: u8 = 46 << 2;
        let bind = |at: &str| HostDatagrams::bind_dual(at.parse().expect("an address"));
        let mut server = bind("[::]:0").expect("a socket");
        let port = server.local_addr().expect("a port").port();
        let mut room = ReceiveRoom::new();
        for ip in ["127.0.0.1", "::1"] {
            let mut client = bind(&SocketAddr::new(ip.parse().expect("one"), 0).to_string());
            let client = client.as_mut().expect("a socket");
            let to = SocketAddr::new(ip.parse().expect("an address"), port);
            for tos in [0, ECT_0, EF | ECT_0, CE, 0] {
                let (manner, data) = (Manner { tos, ..MANNER }, [Bytes::from_static(b"x")]);
                assert_eq!(client.send(&data, to, manner).count, 1);
                let arrived = server.receive(&mut room).expect("it has arrived");
                assert_eq!(arrived.tos, tos, "{ip}");
                let sent = server.send_from(arrived.to, &data, arrived.from, manner);
                assert_eq!(sent.count, 1);
                assert_eq!(client.receive(&mut room).expect("an answer").tos, tos, "{ip}");
            }
        }
    }

    #[test]
    fn a_server_of_both_families_answers_from_the_address_that_was_asked() {
        let mut server =
            HostDatagrams::bind_dual("[::]:0".parse().expect("an address")).expect("a socket");
        let port = server.local_addr().expect("a port").port();
        let mut room = ReceiveRoom::new();
        for ip in ["127.0.0.1", "127.0.0.2", "::1"] {
            let ip: std::net::IpAddr = ip.parse().expect("an address");
            let any: std::net::IpAddr = if ip.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let client = UdpSocket::bind((any, 0)).expect("a socket");
            client.connect((ip, port)).expect("connected");
            client.send(b"hello").expect("sent");
            let arrived = server.receive(&mut room).expect("it has arrived");
            let answer: Vec<_> = arrived.datagrams().chain([Bytes::from_static(b"you")]).collect();
            assert_eq!(server.send_from(arrived.to, &answer, arrived.from, MANNER).count, 2);
            client.set_nonblocking(true).expect("set");
            assert_eq!(client.recv(room.buffer()).expect("an answer"), 5, "{ip}");
        }
    }

    #[test]
    fn an_error_still_wakes_after_a_long_datagram_was_cut() {
        namespace::in_namespace(|| {
            namespace::run("ip link set lo up mtu 1500");
            let (mut a, b, to) = pair();
            let poller = || neap::Poller::new().expect("descriptors");
            let (poller, other) = (poller(), poller());
            let mut events = Vec::new();
            for poller in [&poller, &other] {
                FarDatagrams::enter(&a, poller, 1).expect("entered");
            }
            let closed = pair().2;
            assert_eq!(a.send(&[Bytes::from_static(b"anybody?")], closed, MANNER).count, 1);
            other.wait(&mut events, None).expect("the error has come");
            let sent = a.send(&[vec![1; 4000].into()], to, MANNER);
            assert_eq!(sent, Sent { count: 1, ..Sent::default() });
            events.clear();
            poller.wait(&mut events, Some(std::time::Duration::ZERO)).expect("no wait");
            assert_eq!(events.len(), 1, "the error was not looked at yet");
            let mut all = std::iter::from_fn(|| a.undelivered(&mut [0; 1280]));
            assert!(all.any(|error| error.to == closed));
            drop(b);
        });
    }

    #[test]
    fn there_is_no_way_by_an_interface_that_is_gone() {
        namespace::in_namespace(|| {
            namespace::run("ip link add away type veth peer name other");
            let to = "192.0.2.7:9".parse().expect("an address");
            let outbound = Outbound { interface: Some("away".into()), ..Outbound::default() };
            let mut socket = HostDatagrams::open(to, &outbound).expect("a socket");
            namespace::run("ip link delete away");
            let sent = socket.send(&[Bytes::from_static(b"anybody?")], to, MANNER);
            assert_eq!(sent, Sent { why: Some(Refusal::Network), ..Sent::default() });
        });
    }

    #[test]
    fn a_closed_port_is_told() {
        let (mut a, b, to) = pair();
        drop(b);
        assert_eq!(a.send(&[Bytes::from_static(b"anybody?")], to, MANNER).count, 1);
        let mut room = ReceiveRoom::new();
        let error = a.receive(&mut room).expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let undelivered = a.undelivered(room.buffer()).expect("a record");
        assert_eq!(undelivered.to, to);
        assert_eq!(&undelivered.data[..], b"anybody?");
        assert_eq!(undelivered.kind, IcmpErrorKind::Unreachable { code: 3 });
        assert_eq!(undelivered.offender, Some(to.ip()));
        assert!(a.undelivered(room.buffer()).is_none());
    }
}
