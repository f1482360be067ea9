//! Datagrams by way of SOCKS5: an association (RFC 1928 section 7) is a connection to the proxy,
//! and a UDP socket whose datagrams name their destination.
//!
//! Cost: two descriptors for each mapping, a system call for each datagram, one more for those of a
//! destination that leave together and one for those that have arrived together, and what is held
//! until the proxy has answered, see [`Early`]. At most [`MOST_NAMED`] names and [`MOST_NUMERIC`]
//! addresses of destinations are remembered, which each datagram costs a look at.

use super::early::Early;
use super::error::{ProxyError, of_the_way};
use super::stream::{Dialogue, Talk};
use super::{PATIENCE, Proxy, socks5};
use crate::destination::Destination;
use crate::host_datagrams::{Arrived, Sent, Settled};
use crate::host_errors::{Manner, Undelivered};
use crate::receive_room::ReceiveRoom;
use crate::relay::End;
use crate::upstream::FarDatagrams;
use bytes::Bytes;
use neap::{Events, IcmpErrorKind, Poller};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, sendmsg};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

/// Names that an association remembers, so that answers come from where the guest sent to.
const MOST_NAMED: usize = 16;
/// Destinations without a name that it remembers, whose answers are not those of a name.
const MOST_NUMERIC: usize = 64;

/// Pieces that a proxy may say at once over the connection of an association.
const MOST_SAID: usize = 16;

/// What brings changes of a connection or socket.
const CHANGES: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// An association with a proxy.
#[derive(Debug)]
pub(super) struct Association {
    talk: Talk,
    server: SocketAddr,
    socket: Socket,
    state: State,
    /// What became of those that waited for the proxy's answer, and was not told yet.
    settled: Settled,
    due: Instant,
    /// Why it is over, until it was told.
    failure: Option<io::Error>,
    /// Named destinations, the latest last.
    named: Vec<Named>,
    /// Destinations without a name, in the order in which they came.
    numeric: VecDeque<SocketAddr>,
}

/// A named destination.
#[derive(Debug)]
struct Named {
    /// The guest's address of it, and its name.
    to: Destination,
    header: Bytes,
    /// Where its first answer came from.
    at: Option<SocketAddr>,
}

#[derive(Debug)]
enum State {
    Opens { early: Early },
    Open,
    Over { undelivered: Early },
}

impl Association {
    pub(super) fn open(proxy: &Proxy) -> io::Result<Self> {
        let server = proxy.server;
        let client = socks5::Client::associate(server.is_ipv6(), proxy.credentials.clone());
        let talk = Talk::begin(proxy, Dialogue::Socks(client))?;
        let domain = Domain::for_address(server);
        let socket = proxy.outbound.socket(domain, Type::DGRAM, Protocol::UDP)?;
        socket.bind(&SockAddr::from(proxy.outbound.from(server)))?;
        let state = State::Opens { early: Early::new(proxy.early.clone()) };
        let due = Instant::now() + PATIENCE;
        let (named, numeric, settled) = (Vec::new(), VecDeque::new(), Settled::default());
        let failure = None;
        Ok(Self { talk, server, socket, state, settled, due, failure, named, numeric })
    }

    /// Goes on with the dialogue, and sees when the proxy ends the association. An event may tell
    /// of the answer and of the end behind it, so the connection is read until nothing is there.
    fn advance(&mut self) {
        for _ in 0..MOST_SAID {
            let result = match &self.state {
                State::Opens { .. } => self.finish_opening(),
                // The connection lasts as long as the association. Nothing is said over it.
                State::Open => match self.talk.stream.receive() {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err(io::ErrorKind::ConnectionAborted.into()),
                    Err(error) => Err(error),
                },
                State::Over { .. } => return,
            };
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.fail(error),
            }
        }
        // It does not speak SOCKS5.
        self.fail(ProxyError::Malformed.into());
    }

    fn fail(&mut self, error: io::Error) {
        self.give_up();
        self.failure = Some(error);
    }

    fn finish_opening(&mut self) -> io::Result<()> {
        let relay = self.talk.advance()?.ok_or(io::ErrorKind::InvalidData)?;
        let relay = reachable(relay, self.server);
        self.socket.connect(&SockAddr::from(relay)).map_err(of_the_way)?;
        let opening = std::mem::replace(&mut self.state, State::Open);
        if let State::Opens { mut early } = opening {
            while let Some((to, data)) = early.pop() {
                // What the host does not take is lost, as datagrams are.
                if self.pass_on(&data, &to).is_ok() {
                    self.settled.count += 1;
                    self.settled.bytes += data.len() as u64;
                } else {
                    self.settled.unsent += 1;
                }
            }
        }
        Ok(())
    }

    /// Sends a datagram.
    fn pass_on(&mut self, data: &Bytes, to: &Destination) -> io::Result<()> {
        let header = self.header(to);
        let parts = [IoSlice::new(&header), IoSlice::new(data)];
        let mut control = rustix::net::SendAncillaryBuffer::default();
        let mut call = || sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL);
        match call() {
            // It is about an earlier datagram.
            Err(Errno::CONNREFUSED) => call(),
            result => result,
        }?;
        Ok(())
    }

    /// The header of datagrams to a destination, which is remembered.
    fn header(&mut self, to: &Destination) -> Bytes {
        if to.name.is_none() {
            if !self.numeric.contains(&to.address) {
                if self.numeric.len() == MOST_NUMERIC {
                    self.numeric.pop_front();
                }
                self.numeric.push_back(to.address);
            }
            return socks5::datagram_header(to);
        }
        if let Some(index) = self.named.iter().position(|known| known.to == *to) {
            self.named[index..].rotate_left(1);
        } else {
            if self.named.len() == MOST_NAMED {
                self.named.remove(0);
            }
            let header = socks5::datagram_header(to);
            self.named.push(Named { to: to.clone(), header, at: None });
        }
        self.named.last().expect("it was put there").header.clone()
    }

    /// What the guest calls the sender of a datagram. A proxy gives the address behind a name,
    /// which the guest does not know.
    fn seen(&mut self, from: Option<SocketAddr>) -> Option<SocketAddr> {
        let Some(from) = from else { return self.named.last().map(|named| named.to.address) };
        if self.numeric.contains(&from) {
            return Some(from);
        }
        if let Some(named) = self.named.iter().find(|named| named.at == Some(from)) {
            return Some(named.to.address);
        }
        let mut latest = self.named.iter_mut().rev();
        let has_port = |named: &Named| named.to.address.port() == from.port();
        // An address that is new is that of a name without an answer so far.
        if let Some(named) = latest.find(|named| has_port(named) && named.at.is_none()) {
            named.at = Some(from);
            return Some(named.to.address);
        }
        // Of a name that has other addresses as well; or of a destination that was forgotten.
        let other = self.named.iter().rev().find(|named| has_port(named));
        let other = other.filter(|_| self.numeric.len() < MOST_NUMERIC);
        Some(other.map_or(from, |named| named.to.address))
    }
}

/// Where datagrams go: a proxy that names no address means its own.
fn reachable(relay: SocketAddr, server: SocketAddr) -> SocketAddr {
    let is_any = relay.ip() == Ipv4Addr::UNSPECIFIED || relay.ip() == Ipv6Addr::UNSPECIFIED;
    if is_any || relay.is_ipv4() != server.is_ipv4() {
        SocketAddr::new(server.ip(), relay.port())
    } else {
        relay
    }
}

impl FarDatagrams for Association {
    fn send(&mut self, datagrams: &[Bytes], to: &Destination, _: Manner) -> Sent {
        if let State::Opens { early } = &mut self.state {
            let held = datagrams.iter().filter(|data| early.push(to, data)).count();
            return Sent { held, ..Sent::default() };
        }
        // The proxy may have ended the association, and passes on nothing then.
        self.advance();
        let is_open = matches!(self.state, State::Open);
        let datagrams = datagrams.iter().filter(|data| is_open && self.pass_on(data, to).is_ok());
        Sent { count: datagrams.count(), ..Sent::default() }
    }

    fn receive(&mut self, room: &mut ReceiveRoom) -> io::Result<Arrived> {
        if matches!(self.state, State::Opens { .. }) {
            self.advance();
        }
        if !matches!(self.state, State::Open) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (count, _) = match recv(&self.socket, room.buffer(), RecvFlags::empty()) {
            Err(Errno::WOULDBLOCK) => {
                // An event may have told of the end of the association.
                self.advance();
                return Err(io::ErrorKind::WouldBlock.into());
            }
            received => received?,
        };
        let (from, header) =
            socks5::read_datagram(&room.buffer()[..count]).ok_or(io::ErrorKind::InvalidData)?;
        let from = self.seen(from).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Arrived::one(from, room.take(header..count)))
    }

    fn undelivered(&mut self, _: &mut [u8]) -> Option<Undelivered> {
        let State::Over { undelivered } = &mut self.state else { return None };
        let (to, data) = undelivered.pop()?;
        // The host is unreachable.
        let code = if to.address.is_ipv4() { 1 } else { 3 };
        let kind = IcmpErrorKind::Unreachable { code };
        Some(Undelivered { to: to.address, data, kind, offender: None })
    }

    fn enter(&self, poller: &Poller, token: u64) -> io::Result<()> {
        poller.add(&self.talk.stream, token, CHANGES)?;
        poller.add(&self.socket, token, Events::IN | Events::ET)
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    fn settled(&mut self) -> Settled {
        std::mem::take(&mut self.settled)
    }

    fn opens_until(&self) -> Option<Instant> {
        matches!(self.state, State::Opens { .. }).then_some(self.due)
    }

    fn give_up(&mut self) {
        let opening = std::mem::replace(&mut self.state, State::Open);
        let undelivered =
            if let State::Opens { early } = opening { early } else { Early::default() };
        self.settled.unsent += undelivered.len();
        self.state = State::Over { undelivered };
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Over { .. })
    }

    fn failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::Outbound;
    use crate::proxy::Protocol;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

    #[test]
    fn datagrams_leave_from_the_address_of_connections() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = server.local_addr().expect("an address");
        let ours = Ipv4Addr::new(127, 0, 0, 2);
        let outbound = Outbound { v4: Some(ours), ..Outbound::default() };
        let mut proxy = Proxy::new(Protocol::Socks5, server, None);
        // As for a proxy elsewhere.
        proxy.outbound = outbound;
        let association = Association::open(&proxy).expect("a socket");
        let local = association.socket.local_addr().expect("an address").as_socket();
        assert_eq!(local.expect("of IP").ip(), ours);
    }

    #[test]
    fn an_end_that_comes_with_the_answer_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        let proxy = Proxy::new(Protocol::Socks5, server, None);
        let mut association = Association::open(&proxy).expect("a socket");
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 9]).expect("sent");
        stream.shutdown(Shutdown::Write).expect("open");
        let mut entries = [PollFd::new(&association.talk.stream, PollFlags::RDHUP)];
        poll(&mut entries, None).expect("the end has come");
        let error = association.receive(&mut ReceiveRoom::new()).expect_err("nobody sends");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(association.is_over(), "no other event tells of the end");
    }

    /// An association, and the connection that the proxy has for it.
    fn opening() -> (Association, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let server = listener.local_addr().expect("an address");
        let proxy = Proxy::new(Protocol::Socks5, server, None);
        let association = Association::open(&proxy).expect("a socket");
        let (stream, _) = listener.accept().expect("a connection");
        (association, stream)
    }

    fn place(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_proxy_that_does_not_take_the_user_is_at_fault_for_datagrams_too() {
        let (mut association, mut stream) = opening();
        // The proxy takes no method of authentication.
        stream.write_all(&[5, 0xff]).expect("sent");
        let mut entries = [PollFd::new(&association.talk.stream, PollFlags::IN)];
        poll(&mut entries, None).expect("the answer has come");
        association.receive(&mut ReceiveRoom::new()).expect_err("nobody sends");
        let failure = association.failure().expect("it has failed");
        assert!(crate::proxy::fault(&failure, true).is_some(), "{failure}");
        assert!(association.is_over() && association.failure().is_none());
    }

    #[test]
    fn datagrams_that_wait_for_the_proxy_have_few_bytes() {
        let (mut association, _silent) = opening();
        let datagrams = vec![Bytes::from(vec![0; 65_507]); 16];
        let sent = association.send(&datagrams, &place("192.0.2.1:9").into(), Manner::PLAIN);
        assert_eq!((sent.count, sent.held), (0, 1));
    }

    #[test]
    fn what_waited_for_a_proxy_that_does_not_answer_was_not_sent() {
        let (mut association, stream) = opening();
        let data = Bytes::from_static(b"hello");
        let sent =
            association.send(&[data.clone(), data], &place("192.0.2.1:9").into(), Manner::PLAIN);
        assert_eq!((sent.count, sent.held), (0, 2));
        assert_eq!(association.settled(), Settled::default(), "they wait");
        drop(stream);
        let mut entries = [PollFd::new(&association.talk.stream, PollFlags::RDHUP)];
        poll(&mut entries, None).expect("the end has come");
        association.receive(&mut ReceiveRoom::new()).expect_err("nobody sends");
        assert_eq!(association.settled(), Settled { unsent: 2, ..Settled::default() });
        assert_eq!(association.settled(), Settled::default(), "it is told once");
        assert!(association.undelivered(&mut []).is_some(), "the guest is told");
    }

    #[test]
    fn what_comes_behind_the_end_of_an_association_is_not_sent() {
        let (mut association, mut stream) = opening();
        let relay = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let to = place("192.0.2.1:9").into();
        let data = Bytes::from_static(b"hello");
        assert_eq!(association.send(std::slice::from_ref(&data), &to, Manner::PLAIN).held, 1);
        let port = relay.local_addr().expect("an address").port().to_be_bytes();
        stream.write_all(&[&[5, 0, 5, 0, 0, 1, 127, 0, 0, 1][..], &port].concat()).expect("sent");
        while !matches!(association.state, State::Open) {
            let mut entries = [PollFd::new(&association.talk.stream, PollFlags::IN)];
            poll(&mut entries, None).expect("an answer");
            association.receive(&mut ReceiveRoom::new()).expect_err("nobody has sent");
        }
        let settled = Settled { count: 1, bytes: 5, unsent: 0 };
        assert_eq!(association.settled(), settled, "it has left");
        assert_eq!(association.send(std::slice::from_ref(&data), &to, Manner::PLAIN).count, 1);
        drop(stream);
        let mut entries = [PollFd::new(&association.talk.stream, PollFlags::RDHUP)];
        poll(&mut entries, None).expect("the end has come");
        let sent = association.send(&[data], &to, Manner::PLAIN);
        assert_eq!((sent, association.is_over()), (Sent::default(), true));
    }

    #[test]
    fn datagrams_that_came_before_the_end_are_received_and_then_the_end_is_seen() {
        let (mut association, mut stream) = opening();
        let relay = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let port = relay.local_addr().expect("an address").port().to_be_bytes();
        stream.write_all(&[&[5, 0, 5, 0, 0, 1, 127, 0, 0, 1][..], &port].concat()).expect("sent");
        let mut room = ReceiveRoom::new();
        while !matches!(association.state, State::Open) {
            let mut entries = [PollFd::new(&association.talk.stream, PollFlags::IN)];
            poll(&mut entries, None).expect("an answer");
            association.receive(&mut room).expect_err("nobody has sent");
        }
        let to = association.socket.local_addr().expect("an address").as_socket();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, to.expect("of IP").port()));
        let datagram = socks5::datagram_header(&place("192.0.2.1:9").into());
        for _ in 0..100 {
            relay.send_to(&datagram, to).expect("sent");
        }
        drop(stream);
        let mut entries = [PollFd::new(&association.talk.stream, PollFlags::RDHUP)];
        poll(&mut entries, None).expect("the end has come");
        for number in 0..100 {
            association.receive(&mut room).expect("a datagram");
            assert!(!association.is_over(), "the connection was looked at for datagram {number}");
        }
        association.receive(&mut room).expect_err("no more were sent");
        assert!(association.is_over());
    }

    #[test]
    fn answers_come_from_the_destination_that_has_sent_them() {
        let (mut association, mut stream) = opening();
        let relay = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let port = relay.local_addr().expect("an address").port().to_be_bytes();
        let granted = [&[5, 0, 5, 0, 0, 1, 127, 0, 0, 1][..], &port].concat();
        stream.write_all(&granted).expect("sent");
        let mut room = ReceiveRoom::new();
        while !matches!(association.state, State::Open) {
            let mut entries = [PollFd::new(&association.talk.stream, PollFlags::IN)];
            poll(&mut entries, None).expect("an answer");
            let error = association.receive(&mut room).expect_err("nobody has sent");
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        let named = |name: &str, at: &str| Destination {
            name: Some(name.into()),
            ..Destination::from(place(at))
        };
        let first = named("first.example", "198.18.0.1:3478");
        let second = named("second.example", "198.18.0.2:3478");
        let numeric = place("192.0.2.9:3478");
        let mut asker = None;
        for to in [&first, &second, &numeric.into()] {
            assert_eq!(association.send(&[Bytes::from_static(b"x")], to, Manner::PLAIN).count, 1);
            asker = Some(relay.recv_from(&mut [0; 1000]).expect("it was passed on").1);
        }
        let mut seen = |from: &str| {
            let header = socks5::datagram_header(&place(from).into());
            relay.send_to(&header, asker.expect("it has an address")).expect("sent");
            let mut entries = [PollFd::new(&association.socket, PollFlags::IN)];
            poll(&mut entries, None).expect("a datagram");
            association.receive(&mut room).expect("an answer").from
        };
        assert_eq!(seen("192.0.2.9:3478"), numeric);
        // The name that was used last is taken for the one that answers first.
        assert_eq!(seen("192.0.2.2:3478"), second.address);
        assert_eq!(seen("192.0.2.1:3478"), first.address);
        assert_eq!(seen("192.0.2.2:3478"), second.address);
        assert_eq!(seen("192.0.2.3:3478"), second.address, "an unknown one");
        assert_eq!(seen("192.0.2.3:9"), place("192.0.2.3:9"), "of a port of no name");
    }

    #[test]
    fn a_relay_without_an_address_is_at_the_proxy() {
        let ip = |text: &str| -> SocketAddr { text.parse().expect("an address") };
        let server = ip("192.0.2.1:1080");
        assert_eq!(reachable(ip("0.0.0.0:999"), server), ip("192.0.2.1:999"));
        assert_eq!(reachable(ip("[::]:999"), server), ip("192.0.2.1:999"));
        assert_eq!(reachable(ip("192.0.2.7:999"), server), ip("192.0.2.7:999"));
    }
}
