//! Connections of the host's kernel, as ends of a relay. They probe a side that has long been
//! silent (`SO_KEEPALIVE`), at the times of the host.

use crate::bounds::LowWater;
use crate::ip_header;
use crate::outbound::{NotOwn, Outbound};
use crate::pieces::Piece;
use crate::relay::{End, MOST_PIECE, SMALL, Segments, take_front};
use bytes::Bytes;
use neap::device::{SendQueue, look_through_all_local_ports, send_queue};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Bytes that one call sends, if they are there: fewer calls wake the destination less often.
const AT_ONCE: usize = 192 << 10;
/// Pieces that one call sends at the most.
const MOST_PIECES: usize = 16;

/// The header of TCP with time stamps, which the size of a segment leaves room for.
const TCP_HEADER: usize = 32;

/// A connection of the host's kernel.
#[derive(Debug)]
pub struct HostStream {
    socket: Socket,
    /// Most bytes that are received at once.
    piece: usize,
    /// No more than [`SMALL`].
    saves_memory: bool,
    low_water: LowWater,
}

impl HostStream {
    /// Begins a connection, from a local address if `from` has one. It is open when the socket is
    /// writable and [`take_error`](End::take_error) has nothing to say.
    ///
    /// # Errors
    /// The kernel refuses at once, or there are no descriptors left.
    pub fn connect(to: SocketAddr, outbound: &Outbound) -> io::Result<Self> {
        Self::connect_prepared(to, outbound, |_| Ok(()))
    }

    /// The same with a socket that is `prepared` before its SYN leaves.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or what is prepared fails.
    pub(crate) fn connect_prepared(
        to: SocketAddr,
        outbound: &Outbound,
        prepared: impl FnOnce(&Socket) -> io::Result<()>,
    ) -> io::Result<Self> {
        let domain = Domain::for_address(to);
        let socket = outbound.socket(domain, Type::STREAM, Protocol::TCP)?;
        set_options(&socket)?;
        // A kernel that does not know it finds the same ports, and looks for them for longer.
        let _ = look_through_all_local_ports(&socket);
        prepared(&socket)?;
        let from = outbound.from(to);
        if !from.ip().is_unspecified() {
            // The port is chosen by connect(2), which may use one for several destinations.
            setsockopt(&socket, IpBindAddressNoPort, &true)?;
            socket.bind(&from.into()).map_err(|error| NotOwn::of_bind(error, from))?;
        }
        match begin(&socket, to) {
            Err(error) if has_no_address(&error, to, outbound) => Err(Errno::NETUNREACH.into()),
            begun => begun.map(|()| Self::new(socket)),
        }
    }

    /// Begins a connection by a socket of any network namespace, as [`connect`](Self::connect) does
    /// by one of its own.
    ///
    /// # Errors
    /// It is no socket for connections, or the kernel refuses at once.
    pub(crate) fn connect_by(socket: Socket, to: SocketAddr) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        set_options(&socket)?;
        begin(&socket, to).map(|()| Self::new(socket))
    }

    /// The address and port that the connection is from.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let own = self.socket.local_addr()?;
        own.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn new(socket: Socket) -> Self {
        let (piece, low_water) = (MOST_PIECE, LowWater::default());
        Self { socket, piece, saves_memory: false, low_water }
    }

    /// A connection that the host has accepted, in non-blocking mode.
    ///
    /// # Errors
    /// The kernel refuses an option.
    pub fn accepted(socket: Socket) -> io::Result<Self> {
        set_options(&socket)?;
        Ok(Self::new(socket))
    }

    /// Whether the handshake is over.
    ///
    /// # Errors
    /// Why it failed.
    pub fn is_connected(&mut self) -> io::Result<bool> {
        if self.socket.peer_addr().is_ok() {
            return Ok(true);
        }
        self.take_error().map(|()| false)
    }
}

/// Begins a connection without waiting for it.
fn begin(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    match socket.connect(&SockAddr::from(to)) {
        Err(error) if !is_under_way(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What all connections have that a relay feeds.
fn set_options(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(LowWater::FIRST)?;
    // Whoever is gone without a word ends the connection in the end. The relay answers the probes
    // of the other side, so that nobody else would notice.
    socket.set_keepalive(true)
}

/// Whether an error of `connect(2)` is of a host that has no address of IPv6 to connect from
/// (`disable_ipv6`), rather than no port: the kernel says `EADDRNOTAVAIL` of both. A UDP socket
/// needs none of the ports that connections use up.
fn has_no_address(error: &io::Error, to: SocketAddr, outbound: &Outbound) -> bool {
    let is_it = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
    let look = || {
        let socket = outbound.socket(Domain::for_address(to), Type::DGRAM, Protocol::UDP)?;
        socket.connect(&SockAddr::from(to))
    };
    to.is_ipv6() && is_it(error) && look().is_err_and(|error| is_it(&error))
}

/// Sends at most `most` bytes from the front of `pieces`, and returns how many.
fn send_pieces(socket: &Socket, pieces: &VecDeque<Bytes>, most: usize) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); MOST_PIECES];
    let (mut count, mut room) = (0, most);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(&piece[..piece.len().min(room)]);
        room -= slice.len();
        count += 1;
        if room == 0 {
            break;
        }
    }
    let mut control = SendAncillaryBuffer::default();
    let sent = sendmsg(socket, &slices[..count], &mut control, SendFlags::NOSIGNAL)?;
    Ok(sent)
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
        let mut piece = Piece::take();
        let flags = RecvFlags::empty();
        let most = if self.saves_memory { self.piece.min(SMALL) } else { self.piece };
        let count = piece.fill(most, |room| {
            rustix::net::recv(&self.socket, room, flags).map(|(count, _)| count)
        })?;
        Ok((count > 0).then(|| piece.into_bytes()))
    }

    fn send_queue(&self) -> Option<SendQueue> {
        send_queue(&self.socket).ok()
    }

    fn send(&mut self, pieces: &mut VecDeque<Bytes>, most: usize) -> io::Result<usize> {
        let sent = send_pieces(&self.socket, pieces, most)?;
        take_front(pieces, sent);
        if let Some(mark) = self.low_water.count(sent, Instant::now) {
            self.socket.set_tcp_notsent_lowat(mark)?;
        }
        Ok(sent)
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn set_piece(&mut self, bytes: usize) {
        self.piece = bytes.clamp(1, MOST_PIECE);
    }

    fn save_memory(&mut self, saves: bool) {
        self.saves_memory = saves;
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
        let headers = ip_header::len(is_v6) + TCP_HEADER;
        let data = self.socket.tcp_mss().map_or(Segments::default().data, |mss| mss as usize);
        Segments { data, headers }
    }

    fn limit_unsent(&mut self, bytes: usize) {
        // It takes bytes as long as fewer than these are not sent.
        let mark = self.low_water.limit(u32::try_from(bytes).unwrap_or(u32::MAX));
        // A kernel that refuses it has longer queues, and loses nothing.
        let _ = self.socket.set_tcp_notsent_lowat(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    /// What waits for a guest is bounded by its bytes.
    #[test]
    fn a_piece_holds_no_more_than_twice_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let mut client = std::net::TcpStream::connect(to).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        // It waits for what is sent here, as it is in blocking mode.
        let mut stream = HostStream::accepted(accepted.into()).expect("options");
        for length in [1, 8193, MOST_PIECE / 2] {
            let free = Piece::free();
            client.write_all(&vec![0; length]).expect("sent");
            stream.set_piece(length);
            let mut kept = Vec::new();
            while kept.iter().map(Bytes::len).sum::<usize>() < length {
                kept.push(End::receive(&mut stream).expect("received").expect("no end"));
            }
            assert_eq!(Piece::free(), free.max(1), "{length}");
        }
    }

    #[test]
    fn connections_notice_that_the_other_side_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("an address");
        let connected = HostStream::connect(to, &Outbound::default()).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        let accepted = HostStream::accepted(accepted.into()).expect("options");
        for stream in [connected, accepted] {
            assert!(stream.socket.keepalive().expect("an option"));
        }
    }

    #[test]
    fn connections_from_one_address_share_ports() {
        let (v4, v6) = (Some(Ipv4Addr::LOCALHOST), Some(Ipv6Addr::LOCALHOST));
        let outbound = Outbound { v4, v6, ..Outbound::default() };
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let to = listener.local_addr().expect("an address");
            let stream = HostStream::connect(to, &outbound).expect("a connection");
            let does = nix::sys::socket::getsockopt(&stream.socket, IpBindAddressNoPort);
            assert_eq!(does, Ok(true), "{address}");
            let port = stream.socket.local_addr().expect("bound").as_socket().map(|own| own.port());
            assert!(port.is_some_and(|port| port > 0), "{address}");
        }
    }
}
