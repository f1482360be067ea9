//! The UDP socket of the host: super-datagrams both ways, ECN, DF, and the errors of ICMP.

use crate::engine::Ends;
use crate::error::Error;
use crate::status::SocketBuffer;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use nix::errno::Errno;
use nix::libc::{
    EMSGSIZE, SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, in_addr, in_pktinfo, in6_addr, in6_pktinfo,
};
use nix::sys::socket::sockopt::{
    IpRecvTos, Ipv4PacketInfo, Ipv4RecvErr, Ipv6RecvErr, Ipv6RecvPacketInfo, Ipv6RecvTClass,
    RxqOvfl, UdpGroSegment,
};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
};
use rustix::event::epoll;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most bytes of a call: those of the largest UDP datagram over IPv4.
pub(crate) const MOST_BYTES: usize = 65_507;
/// Most datagrams of a call (`UDP_MAX_SEGMENTS`).
pub(crate) const MOST_SEGMENTS: usize = 64;
/// Bytes of datagrams that may wait here for the driver, which may have other work for some
/// milliseconds.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Bytes of memory that the host may hold, twice: the kernel tells of completions below half of it.
/// Half is two super-datagrams of each of four flows. All flows together stay below the queue of
/// 1 MB that a host's qdisc often has.
const SEND_BUFFER: usize = 1 << 20;
/// Calls for one batch, at most: all but the last may tell of an earlier datagram.
const CALLS_MAX: usize = 4;
/// Earlier sockets of which the host may hold datagrams. Those of older ones count as gone.
const OLD_MAX: usize = 8;
/// Records of the error queue that one look takes.
const ERRORS_MAX: usize = 256;

/// Traffic class of the two steps of a handshake, as the kernel's WireGuard has it
/// (`HANDSHAKE_DSCP`, AF41).
pub(crate) const HANDSHAKE_CLASS: u8 = 0x88;

/// A socket that sends to and receives from everybody, and that another may take the place of.
#[derive(Debug)]
pub(crate) struct HostSocket {
    sockets: RwLock<Sockets>,
    /// An epoll set with the socket alone. The driver waits for it, and does not notice when the
    /// socket changes. Each event of the socket is one of the set, although nobody takes events out
    /// of it.
    events: Arc<OwnedFd>,
    is_v6: bool,
    /// The way out cannot cut super-datagrams.
    is_plain: AtomicBool,
    /// Datagrams leave without DF: a path does not take a full packet.
    may_be_cut: AtomicBool,
    /// A call that sends has taken an error of ICMP away, whose record is still in the queue.
    has_errors: AtomicBool,
}

/// The socket, and those that it took the place of.
#[derive(Debug)]
struct Sockets {
    current: Arc<Bound>,
    /// Those of which the host holds datagrams yet, oldest first, or that a thread may still send
    /// by. Nothing else is done with them.
    old: Vec<Arc<Bound>>,
}

/// A socket at a port.
#[derive(Debug)]
struct Bound {
    fd: OwnedFd,
    /// Bytes, with the kernel's own, below which the host tells of completions.
    quiet_bound: u64,
    /// Datagrams for which it had no room, as the host has told last.
    lost: AtomicU32,
}

impl AsFd for Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Bound {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Bound {
    /// Bytes that the host still holds.
    fn held(&self) -> u64 {
        neap_device::udp::bytes_in_kernel(&self.fd).unwrap_or(0)
    }
}

/// Datagrams of one sender that were received together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) ends: Ends,
    pub(crate) len: usize,
    /// Length of each datagram but the last, which may be shorter.
    pub(crate) segment: usize,
    pub(crate) ecn: u8,
    /// Datagrams that the host has told the loss of with these: the socket had no room for them.
    pub(crate) lost: u32,
}

/// Datagrams of one length, of which the last may be shorter, and their outer header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// The datagrams one behind the other, in parts of whole datagrams.
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) segment: usize,
    /// Where they go, and the address that they leave from; without one the route chooses.
    pub(crate) to: Ends,
    /// The whole traffic class.
    pub(crate) class: u8,
    /// Routers may cut the datagrams: the path seems to lose large ones without a word.
    pub(crate) may_be_cut: bool,
}

impl Batch<'_> {
    fn is_one(&self) -> bool {
        self.parts.iter().map(|part| part.len()).sum::<usize>() <= self.segment
    }
}

/// How a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// By one call.
    Whole,
    /// By a call for each datagram, because the way out cannot cut.
    OneByOne,
    /// Without DF, because the path takes less.
    Fragmentable,
}

impl HostSocket {
    /// Binds a socket of both families, or of IPv4 where the host has no IPv6.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Mark`], [`Error::System`].
    pub(crate) fn open(port: u16, fwmark: Option<u32>) -> Result<Self, Error> {
        let (socket, is_v6) = match bind(port, true) {
            Ok(socket) => (socket, true),
            Err(error) if is_without_v6(&error) => {
                (bind(port, false).map_err(|source| Error::Port { port, source })?, false)
            }
            Err(source) => return Err(Error::Port { port, source }),
        };
        let fd = Arc::new(prepare(socket, is_v6, fwmark)?);
        let failed = |errno: rustix::io::Errno| Error::System {
            call: "epoll_create1",
            source: errno.into(),
        };
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        watch(&events, &fd, false).map_err(failed)?;
        Ok(Self {
            sockets: RwLock::new(Sockets { current: fd, old: Vec::new() }),
            events: Arc::new(events),
            is_v6,
            is_plain: AtomicBool::new(false),
            may_be_cut: AtomicBool::new(false),
            has_errors: AtomicBool::new(false),
        })
    }

    /// Moves to another port. What the old socket has received and nobody has taken is lost, as
    /// datagrams may be; what it has sent leaves, and is [held](Self::held) until then. So is the
    /// old port. Back at a port that is still held, its socket is used again.
    ///
    /// The buffers of a new socket are smaller if the right to have large ones was given up since.
    ///
    /// # Errors
    /// [`Error::Port`], [`Error::Mark`], [`Error::System`]; then nothing has changed.
    pub(crate) fn rebind(&self, port: u16, fwmark: Option<u32>) -> Result<(), Error> {
        let failed = |source| Error::Port { port, source };
        let is_at_port = |fd: &&Arc<Bound>| port != 0 && port_of(fd) == port;
        let again = self.read().old.iter().find(is_at_port).cloned();
        let fd = match again {
            Some(fd) => {
                // The mark may have changed since.
                let mark = fwmark.unwrap_or(0);
                let socket = SockRef::from(&fd);
                if socket.mark().ok() != Some(mark) {
                    socket.set_mark(mark).map_err(|source| Error::Mark { mark, source })?;
                }
                watch(&self.events, &fd, true).map_err(|errno| failed(errno.into()))?;
                fd
            }
            None => {
                let socket = bind(port, self.is_v6).map_err(failed)?;
                let fd = Arc::new(prepare(socket, self.is_v6, fwmark)?);
                watch(&self.events, &fd, false).map_err(|errno| failed(errno.into()))?;
                fd
            }
        };
        let old = {
            let mut sockets = self.write();
            // With the lock: who says something else meanwhile sets it for the new socket, or has
            // said it before.
            let dont_fragment = !self.may_be_cut.load(Ordering::Relaxed);
            if let Err(source) = set_dont_fragment(&fd, self.is_v6, dont_fragment) {
                ignore(&self.events, &fd);
                return Err(failed(source));
            }
            sockets.old.retain(|old| !Arc::ptr_eq(old, &fd));
            let old = core::mem::replace(&mut sockets.current, fd);
            sockets.old.push(old.clone());
            let too_many = sockets.old.len().saturating_sub(OLD_MAX);
            sockets.old.drain(..too_many);
            old
        };
        // It may live on for a moment in a thread that sends by it.
        ignore(&self.events, &old);
        drop(old);
        self.held();
        self.way_has_changed();
        Ok(())
    }

    /// The way out may be another one, which may cut super-datagrams again.
    pub(crate) fn way_has_changed(&self) {
        self.is_plain.store(false, Ordering::Relaxed);
    }

    /// Has datagrams leave without DF from here on, because a path does not take a full packet, or
    /// with it again.
    pub(crate) fn let_be_cut(&self, may_be_cut: bool) {
        if self.may_be_cut.swap(may_be_cut, Ordering::Relaxed) != may_be_cut {
            // If it fails, each batch that is too large tries again.
            let _ = set_dont_fragment(&self.fd(), self.is_v6, !may_be_cut);
        }
    }

    fn fd(&self) -> Arc<Bound> {
        self.read().current.clone()
    }

    fn read(&self) -> RwLockReadGuard<'_, Sockets> {
        self.sockets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Sockets> {
        self.sockets.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the mark of packets; 0 is none.
    ///
    /// # Errors
    /// [`Error::Mark`].
    pub(crate) fn set_mark(&self, mark: u32) -> Result<(), Error> {
        let set = SockRef::from(&self.fd()).set_mark(mark);
        set.map_err(|source| Error::Mark { mark, source })
    }

    /// Waits until there are datagrams, or with no flags errors of ICMP.
    #[cfg(test)]
    pub(crate) fn wait(&self, flags: rustix::event::PollFlags) {
        let fd = self.fd();
        let mut waiting = [rustix::event::PollFd::new(&fd, flags)];
        rustix::event::poll(&mut waiting, None).expect("an event");
    }

    /// Makes the way out one that cannot cut.
    #[cfg(test)]
    pub(crate) fn is_plain_now(&self) {
        self.is_plain.store(true, Ordering::Relaxed);
    }

    /// Whether the way out is taken for one that cannot cut.
    #[cfg(test)]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed)
    }

    /// The mark of packets.
    #[cfg(test)]
    pub(crate) fn mark(&self) -> u32 {
        SockRef::from(&self.fd()).mark().expect("a mark")
    }

    /// A descriptor that has an event with each event of the socket.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.events
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        port_of(&self.fd())
    }

    /// Bytes, with the kernel's own, below which the host tells of completions. It changes with
    /// the socket.
    pub(crate) fn quiet_bound(&self) -> u64 {
        self.read().current.quiet_bound
    }

    /// The buffers for what leaves and for what arrives.
    pub(crate) fn buffers(&self) -> (SocketBuffer, SocketBuffer) {
        let fd = self.fd();
        let buffer = |granted: rustix::io::Result<usize>, asked: usize| SocketBuffer {
            granted: granted.unwrap_or(0) as u64,
            wanted: 2 * asked as u64,
        };
        let send = buffer(sockopt::socket_send_buffer_size(&fd), SEND_BUFFER / 2);
        let receive = buffer(sockopt::socket_recv_buffer_size(&fd), RECEIVE_BUFFER);
        (send, receive)
    }

    /// Bytes that the host still holds, also of earlier sockets. One of which it holds nothing, and
    /// which no thread can still send by, is closed.
    pub(crate) fn held(&self) -> u64 {
        let (mut sum, mut is_done) = (0, false);
        {
            let sockets = self.read();
            sum += sockets.current.held();
            for old in &sockets.old {
                let bytes = old.held();
                sum += bytes;
                is_done |= bytes == 0;
            }
        }
        if is_done {
            // A thread that has taken the socket before the change may send by it, so it is looked
            // at when that is over.
            self.write().old.retain_mut(|old| Arc::get_mut(old).is_none_or(|old| old.held() > 0));
        }
        sum
    }

    /// Whether the host may hold datagrams of earlier sockets.
    pub(crate) fn has_old(&self) -> bool {
        !self.read().old.is_empty()
    }

    /// Sends a batch, by one call where the host can. `done` is the number of its datagrams that
    /// the host has taken; a batch that was taken in part goes on from there. The batch loses the
    /// address that it is to leave from if the host takes it without one alone.
    ///
    /// # Errors
    /// `EAGAIN` and `ENOBUFS`: the host takes it later. Others are for good.
    pub(crate) fn send(&self, batch: &mut Batch<'_>, done: &mut usize) -> nix::Result<Sent> {
        let mut envelope = self.envelope(batch);
        let sent = self.send_in(&mut envelope, *batch, done);
        if envelope.own.is_none() {
            batch.to.own = None;
        }
        sent
    }

    fn send_in(
        &self,
        envelope: &mut Envelope,
        batch: Batch<'_>,
        done: &mut usize,
    ) -> nix::Result<Sent> {
        if batch.may_be_cut {
            return self.send_fragmentable(envelope, batch, done);
        }
        let (is_one, may_be_cut) = (batch.is_one(), self.may_be_cut.load(Ordering::Relaxed));
        let mut sent = Sent::OneByOne;
        if *done == 0 && (is_one || !self.is_plain.load(Ordering::Relaxed)) {
            match self.call(envelope, batch) {
                Ok(()) => return Ok(Sent::Whole),
                // The way out cannot cut.
                Err(Errno::EIO) if !is_one => self.is_plain.store(true, Ordering::Relaxed),
                // The host cuts single datagrams, and no super-datagram into fragments. Older
                // kernels say so by EINVAL.
                Err(Errno::EINVAL | Errno::EMSGSIZE) if may_be_cut && !is_one => {
                    sent = Sent::Fragmentable;
                }
                // The path takes less than these datagrams have.
                Err(Errno::EINVAL | Errno::EMSGSIZE) => {
                    return self.send_fragmentable(envelope, batch, done);
                }
                Err(errno) => return Err(errno),
            }
        }
        match self.send_one_by_one(envelope, batch, done) {
            Ok(()) => Ok(sent),
            Err(Errno::EMSGSIZE) => self.send_fragmentable(envelope, batch, done),
            Err(errno) => Err(errno),
        }
    }

    fn send_one_by_one(
        &self,
        envelope: &mut Envelope,
        batch: Batch<'_>,
        done: &mut usize,
    ) -> nix::Result<()> {
        let datagrams = batch.parts.iter().flat_map(|part| part.chunks(batch.segment));
        for datagram in datagrams.skip(*done) {
            self.call(envelope, Batch { parts: &[datagram], ..batch })?;
            *done += 1;
        }
        Ok(())
    }

    /// Rare: what was cut before the path became smaller. It need not be lost this way.
    #[cold]
    fn send_fragmentable(
        &self,
        envelope: &mut Envelope,
        batch: Batch<'_>,
        done: &mut usize,
    ) -> nix::Result<Sent> {
        let (fd, failed) = (self.fd(), |_| Errno::EMSGSIZE);
        set_dont_fragment(&fd, self.is_v6, false).map_err(failed)?;
        let sent = self.send_one_by_one(envelope, batch, done);
        if !self.may_be_cut.load(Ordering::Relaxed) {
            set_dont_fragment(&fd, self.is_v6, true).map_err(failed)?;
        }
        sent.map(|()| Sent::Fragmentable)
    }

    /// What all datagrams of a batch have in front.
    fn envelope(&self, batch: &Batch<'_>) -> Envelope {
        let Ends { peer, own } = batch.to;
        Envelope {
            to: SockaddrStorage::from(self.outer(peer)),
            own: own.and_then(|own| PacketInfo::between(own, peer)),
            is_v4: peer.is_ipv4(),
            class: batch.class,
            wide_class: batch.class.into(),
        }
    }

    /// Sends by one call, from the address that the envelope has. If that is gone, or has no way
    /// out, the host chooses one, and the envelope has none from then on.
    fn call(&self, envelope: &mut Envelope, batch: Batch<'_>) -> nix::Result<()> {
        let first = self.call_from(envelope, batch);
        // Of the room that the host has, or of the size of the datagrams.
        let is_of_own =
            |errno: Errno| !is_full(errno) && !matches!(errno, Errno::EMSGSIZE | Errno::EIO);
        if envelope.own.is_none() || !first.is_err_and(is_of_own) {
            return first;
        }
        let own = envelope.own.take();
        let second = self.call_from(envelope, batch);
        if second.is_err() {
            envelope.own = own;
        }
        second
    }

    fn call_from(&self, envelope: &Envelope, batch: Batch<'_>) -> nix::Result<()> {
        let parts: SmallVec<[_; 4]> = batch.parts.iter().map(|part| IoSlice::new(part)).collect();
        let size = u16::try_from(batch.segment).unwrap_or(u16::MAX);
        let mut control: SmallVec<[ControlMessage<'_>; 3]> = SmallVec::new();
        let is_one = batch.is_one();
        if !is_one {
            control.push(ControlMessage::UdpGsoSegments(&size));
        }
        envelope.add_to(&mut control);
        let (fd, flags, to) = (self.fd(), MsgFlags::MSG_NOSIGNAL, Some(&envelope.to));
        // ICMP tells a socket without DF of no size.
        let size_is_own = !is_one && self.may_be_cut.load(Ordering::Relaxed);
        let send = || sendmsg(fd.as_raw_fd(), &parts, &control, flags, to).map(drop);
        let (result, was_pending) = past_pending(size_is_own, send);
        if was_pending {
            self.has_errors.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Whether errors wait in the queue that nobody has told of, once.
    pub(crate) fn take_has_errors(&self) -> bool {
        self.has_errors.load(Ordering::Relaxed) && self.has_errors.swap(false, Ordering::Relaxed)
    }

    /// An address as this socket takes it.
    fn outer(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()))
            }
            _ => to,
        }
    }

    /// Takes datagrams that have arrived into `buffer`, which has room for [`MOST_BYTES`] and
    /// more.
    ///
    /// # Errors
    /// `EAGAIN` if there are none. Others are of datagrams that were sent; see
    /// [`take_errors`](Self::take_errors).
    pub(crate) fn receive(&self, buffer: &mut [u8], control: &mut [u8]) -> nix::Result<Arrived> {
        let parts = &mut [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let fd = self.fd();
        let received = recvmsg::<SockaddrStorage>(fd.as_raw_fd(), parts, Some(control), flags)?;
        let len = received.bytes;
        let (mut segment, mut ecn, mut own, mut lost) = (len, 0, None, 0);
        for message in received.cmsgs()? {
            match message {
                ControlMessageOwned::UdpGroSegments(size) => {
                    segment = usize::try_from(size).unwrap_or(len);
                }
                ControlMessageOwned::Ipv4Tos(class) => ecn = class & 3,
                ControlMessageOwned::Ipv6TClass(class) => ecn = class as u8 & 3,
                ControlMessageOwned::Ipv4PacketInfo(info) => own = Some(PacketInfo::V4(info).own()),
                ControlMessageOwned::Ipv6PacketInfo(info) => own = Some(PacketInfo::V6(info).own()),
                ControlMessageOwned::RxqOvfl(all) => {
                    lost = all.wrapping_sub(fd.lost.swap(all, Ordering::Relaxed));
                }
                _ => {}
            }
        }
        let peer = received.address.and_then(socket_addr).ok_or(Errno::EPROTO)?;
        Ok(Arrived { ends: Ends { peer, own }, len, segment: segment.max(1), ecn, lost })
    }

    /// Room for the control messages of [`receive`](Self::receive).
    pub(crate) fn control_room() -> Vec<u8> {
        nix::cmsg_space!([u8; 256])
    }

    /// Takes errors from their queue.
    pub(crate) fn take_errors(&self) -> Errors {
        let (mut buffer, mut control) = ([0; 64], Self::control_room());
        let mut errors = Errors::default();
        while errors.count < ERRORS_MAX {
            let parts = &mut [IoSliceMut::new(&mut buffer)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let taken =
                recvmsg::<SockaddrStorage>(self.fd().as_raw_fd(), parts, Some(&mut control), flags);
            let Ok(taken) = taken else {
                errors.is_empty = true;
                break;
            };
            errors.count += 1;
            for message in taken.cmsgs().into_iter().flatten() {
                if let ControlMessageOwned::Ipv4RecvErr(record, _)
                | ControlMessageOwned::Ipv6RecvErr(record, _) = message
                {
                    let is_of_icmp =
                        matches!(record.ee_origin, SO_EE_ORIGIN_ICMP | SO_EE_ORIGIN_ICMP6);
                    errors.of_icmp += u64::from(is_of_icmp);
                    errors.is_of_path |= record.ee_errno == EMSGSIZE as u32;
                }
            }
        }
        errors
    }
}

/// What the queue of errors had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) count: usize,
    /// Those that ICMP has brought.
    pub(crate) of_icmp: u64,
    /// One of them says that a path does not take a datagram.
    pub(crate) is_of_path: bool,
    /// There are no more.
    pub(crate) is_empty: bool,
}

/// What all datagrams of a batch have in front, as the host takes it. It is made once for all of
/// them.
struct Envelope {
    to: SockaddrStorage,
    own: Option<PacketInfo>,
    is_v4: bool,
    class: u8,
    wide_class: i32,
}

impl Envelope {
    fn add_to<'a>(&'a self, control: &mut SmallVec<[ControlMessage<'a>; 3]>) {
        match (self.class, self.is_v4) {
            (0, _) => {}
            (_, true) => control.push(ControlMessage::Ipv4Tos(&self.class)),
            (_, false) => control.push(ControlMessage::Ipv6TClass(&self.wide_class)),
        }
        match &self.own {
            None => {}
            Some(PacketInfo::V4(info)) => control.push(ControlMessage::Ipv4PacketInfo(info)),
            Some(PacketInfo::V6(info)) => control.push(ControlMessage::Ipv6PacketInfo(info)),
        }
    }
}

/// An address of this host: that of datagrams that have arrived, or of those that leave.
#[derive(Clone, Copy)]
enum PacketInfo {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl PacketInfo {
    /// The way of a datagram stays that of its route: there is no interface in it. An address of
    /// the other family is none.
    fn between(own: IpAddr, peer: SocketAddr) -> Option<Self> {
        let peer = peer.ip().to_canonical();
        match own {
            IpAddr::V4(own) if peer.is_ipv4() => {
                let none = in_addr { s_addr: 0 };
                let ipi_spec_dst = in_addr { s_addr: u32::from_ne_bytes(own.octets()) };
                Some(Self::V4(in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr: none }))
            }
            IpAddr::V6(own) if peer.is_ipv6() => {
                let ipi6_addr = in6_addr { s6_addr: own.octets() };
                Some(Self::V6(in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 }))
            }
            _ => None,
        }
    }

    fn own(self) -> IpAddr {
        match self {
            Self::V4(info) => Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes()).into(),
            Self::V6(info) => Ipv6Addr::from(info.ipi6_addr.s6_addr).to_canonical(),
        }
    }
}

/// The host takes a datagram later.
fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM)
}

/// Calls again after an error that may be of an earlier datagram: ICMP has brought it, perhaps a
/// forged one, and the call that fails takes it away. `size_is_own`: `EMSGSIZE` is of this call
/// alone. Also returns whether there was such an error.
fn past_pending(
    size_is_own: bool,
    mut call: impl FnMut() -> nix::Result<()>,
) -> (nix::Result<()>, bool) {
    // The host is full, or the way out does not take the datagram.
    let is_own = |errno| {
        let is_size = errno == Errno::EMSGSIZE && size_is_own;
        is_size || is_full(errno) || matches!(errno, Errno::EINVAL | Errno::EIO)
    };
    let first = call();
    let (mut result, mut calls) = (first, 1);
    while calls < CALLS_MAX && !result.map_or_else(is_own, |()| true) {
        let before = result;
        (result, calls) = (call(), calls + 1);
        if result == before && result.is_err_and(is_of_way) {
            break;
        }
    }
    (result, result != first)
}

/// Nothing of this size, or nothing at all, leaves to the address: the way is too small, there is
/// none, or a route or a firewall forbids it. ICMP can say most of that, too, but the same twice is
/// of the datagram.
fn is_of_way(errno: Errno) -> bool {
    let has_no_way = matches!(
        errno,
        Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EAFNOSUPPORT
    );
    has_no_way || matches!(errno, Errno::EMSGSIZE | Errno::EPERM)
}

fn bind(port: u16, is_v6: bool) -> io::Result<Socket> {
    let (domain, any) = if is_v6 {
        (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
    } else {
        (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if is_v6 {
        socket.set_only_v6(false)?;
    }
    socket.bind(&any.into())?;
    Ok(socket)
}

fn port_of(socket: &impl AsFd) -> u16 {
    let local = SockRef::from(socket).local_addr().ok();
    local.and_then(|local| local.as_socket()).map_or(0, |local| local.port())
}

/// Has the events tell of a socket, of which they have told `before` or not.
fn watch(events: &OwnedFd, socket: &Bound, before: bool) -> rustix::io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    let call = if before { epoll::modify } else { epoll::add };
    call(events, socket, epoll::EventData::new_u64(0), flags)
}

/// Has the events tell of no datagrams that arrive at a socket.
fn ignore(events: &OwnedFd, socket: &Bound) {
    let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
    let _ = epoll::modify(events, socket, epoll::EventData::new_u64(0), flags);
}

/// Gives a bound socket its options.
fn prepare(socket: Socket, is_v6: bool, fwmark: Option<u32>) -> Result<Bound, Error> {
    let failed = |call| move |source| Error::System { call, source };
    socket.set_nonblocking(true).map_err(failed("O_NONBLOCK"))?;
    if let Some(mark) = fwmark {
        socket.set_mark(mark).map_err(|source| Error::Mark { mark, source })?;
    }
    let fd = OwnedFd::from(socket);
    set_buffers(&fd).map_err(failed("SO_SNDBUF"))?;
    set_options(&fd, is_v6).map_err(failed("setsockopt"))?;
    let quiet_bound = sockopt::socket_send_buffer_size(&fd).unwrap_or(0) as u64 / 2;
    Ok(Bound { fd, quiet_bound, lost: AtomicU32::new(0) })
}

#[cfg(test)]
std::thread_local! {
    /// The most that the host lets a test of this thread have as a send buffer, in bytes.
    pub(crate) static SEND_BUFFER_MAX: core::cell::Cell<usize> =
        const { core::cell::Cell::new(usize::MAX) };
}

fn set_buffers(fd: &OwnedFd) -> io::Result<()> {
    #[cfg(test)]
    let send = (SEND_BUFFER / 2).min(SEND_BUFFER_MAX.get());
    #[cfg(not(test))]
    let send = SEND_BUFFER / 2;
    // More than `net.core.wmem_max` and `rmem_max` needs a right. Without it the host takes as much
    // as it allows, which the status tells.
    if sockopt::set_socket_send_buffer_size_force(fd, send).is_err() {
        sockopt::set_socket_send_buffer_size(fd, send)?;
    }
    if sockopt::set_socket_recv_buffer_size_force(fd, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, RECEIVE_BUFFER)?;
    }
    Ok(())
}

fn set_options(fd: &OwnedFd, is_v6: bool) -> io::Result<()> {
    // Kernels before 5.0 hand over each datagram by itself, and those before 2.6.33 do not tell of
    // losses.
    for result in [setsockopt(fd, UdpGroSegment, &true), setsockopt(fd, RxqOvfl, &1)] {
        match result {
            Ok(()) | Err(Errno::ENOPROTOOPT | Errno::EINVAL | Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    // A socket of both families has the options of both.
    setsockopt(fd, Ipv4RecvErr, &true)?;
    setsockopt(fd, IpRecvTos, &true)?;
    if is_v6 {
        setsockopt(fd, Ipv6RecvErr, &true)?;
        setsockopt(fd, Ipv6RecvTClass, &true)?;
        // It has the addresses of both.
        setsockopt(fd, Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(fd, Ipv4PacketInfo, &true)?;
    }
    set_dont_fragment(fd, is_v6, true)
}

fn set_dont_fragment(fd: &impl AsFd, is_v6: bool, on: bool) -> io::Result<()> {
    let v4 = if on { Ipv4PathMtuDiscovery::DO } else { Ipv4PathMtuDiscovery::DONT };
    sockopt::set_ip_mtu_discover(fd, v4)?;
    if is_v6 {
        let v6 = if on { Ipv6PathMtuDiscovery::DO } else { Ipv6PathMtuDiscovery::DONT };
        sockopt::set_ipv6_mtu_discover(fd, v6)?;
    }
    Ok(())
}

/// The host was built or started without IPv6.
fn is_without_v6(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

fn socket_addr(address: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
}

/// What the path to an address takes in one IP packet, in bytes, as far as the host knows: its
/// route, and what ICMP has said (`IP_MTU`). It sends nothing.
pub(crate) fn path_mtu(to: SocketAddr, fwmark: Option<u32>) -> Option<u32> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP)).ok()?;
    if let Some(mark) = fwmark {
        socket.set_mark(mark).ok()?;
    }
    // With any other setting the kernel tells the MTU of the link.
    match to {
        SocketAddr::V4(_) => {
            sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).ok()?;
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO).ok()?;
        }
    }
    socket.connect(&to.into()).ok()?;
    match to {
        SocketAddr::V4(_) => sockopt::ip_mtu(&socket).ok(),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket).ok(),
    }
}

#[cfg(test)]
mod tests;
