//! UDP between a socket of one network namespace and a server of another one, past the stack. Each
//! client of the socket has a socket of its own towards the server, which answers to that one.
//! Either the socket is a door in the guest's namespace and the server on the host, or it is a
//! published port, whose clients at loopback addresses have the guest's loopback for a server.
//!
//! Cost: a call of the host in each direction for a super-datagram; a client has a descriptor and
//! about 200 bytes until it has sent and got nothing for [three minutes](TIMEOUT).

use crate::ages::Ages;
use crate::descriptors;
use crate::guest_sockets::{self, GuestSockets};
use crate::host_datagrams::{Arrived, HostDatagrams, Sent};
use crate::host_errors::Manner;
use crate::outbound::Outbound;
use crate::own_address::OwnAddress;
use crate::published::Transport;
use crate::receive_room::ReceiveRoom;
use crate::token::{Generation, Slot, Token};
use bytes::Bytes;
use neap::{Events, Poller};
use slab::Slab;
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A client that sends and gets nothing is forgotten after so long (RFC 4787 section 4.3).
const TIMEOUT: Duration = Duration::from_secs(180);
/// Calls for one socket before others have their turn.
const BATCH: usize = 16;

/// All such sockets.
pub(crate) struct Crossings {
    sockets: Slab<Crossing>,
    /// Clients of published ports, each with the place of its socket.
    of_ports: HashMap<(Slot, SocketAddr), usize>,
    /// What servers have sent to clients of published ports since they were taken.
    answers: Vec<Answer>,
    generation: Generation,
    /// Clients by the time when they may have to be forgotten.
    ages: Ages,
    clients: usize,
    room: ReceiveRoom,
}

struct Crossing {
    generation: Generation,
    socket: HostDatagrams,
    role: Role,
}

enum Role {
    /// A socket of the other namespace, with its clients.
    Door { to: SocketAddr, clients: HashMap<SocketAddr, usize> },
    /// A socket of a client towards the server.
    Client {
        of: Front,
        client: SocketAddr,
        /// Where its last datagram went, and the answers come from.
        asked: Option<OwnAddress>,
        to: SocketAddr,
        last_used: Instant,
    },
}

/// What a client has sent to.
#[derive(Clone, Copy, Debug)]
enum Front {
    /// A door, by its place.
    Door(usize),
    /// A published port, by the place of its mapping.
    Port(Slot),
}

/// Datagrams for a client of a published port, which leave by that.
pub(crate) struct Answer {
    pub(crate) port: Slot,
    /// The address that the client has asked, if the port is that of several.
    pub(crate) from: Option<OwnAddress>,
    pub(crate) to: SocketAddr,
    pub(crate) data: Vec<Bytes>,
    pub(crate) tos: u8,
}

/// What becomes of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    pub(crate) out: usize,
    pub(crate) back: usize,
    pub(crate) unsent: usize,
    /// There were too many clients, or no descriptors.
    pub(crate) full: usize,
    /// They came to a client from others than the server.
    pub(crate) strange: usize,
    /// The host has dropped them, as too many waited for the gateway.
    pub(crate) overrun: usize,
    /// There may be more.
    pub(crate) has_more: bool,
}

impl Crossings {
    pub(crate) fn new() -> Self {
        Self {
            sockets: Slab::new(),
            of_ports: HashMap::new(),
            answers: Vec::new(),
            generation: Generation::default(),
            ages: Ages::default(),
            clients: 0,
            room: ReceiveRoom::new(),
        }
    }

    /// Takes a socket of another namespace, whose datagrams go to `to`.
    pub(crate) fn take(
        &mut self,
        poller: &Poller,
        socket: HostDatagrams,
        to: SocketAddr,
    ) -> io::Result<Slot> {
        self.enter(poller, socket, Role::Door { to, clients: HashMap::new() })
    }

    fn enter(&mut self, poller: &Poller, socket: HostDatagrams, role: Role) -> io::Result<Slot> {
        let (key, generation) = (self.sockets.vacant_key(), self.generation.advance());
        let slot = Slot { key, generation };
        poller.add(&socket, Token::Crossing(slot).to_bits(), Events::IN | Events::ET)?;
        self.sockets.insert(Crossing { generation, socket, role });
        Ok(slot)
    }

    /// Closes a socket of another namespace, and those of its clients.
    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Role::Door { clients, .. } = self.sockets.remove(slot.key).role {
            self.clients -= clients.len();
            clients.values().for_each(|&key| drop(self.sockets.remove(key)));
        }
    }

    /// Forgets the clients of a published port.
    pub(crate) fn forget_port(&mut self, port: Slot) {
        let Self { of_ports, sockets, clients, .. } = self;
        of_ports.retain(|(of, _), key| {
            let is_gone = *of == port;
            if is_gone {
                sockets.remove(*key);
                *clients -= 1;
            }
            !is_gone
        });
    }

    /// What servers have sent to clients of published ports since the last call.
    pub(crate) fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Passes on what has come from a client at a loopback address to a published port: to the
    /// guest's loopback address, by a socket of its namespace.
    pub(crate) fn enter_guest(
        &mut self,
        (port, guest, sockets): (Slot, SocketAddr, &dyn GuestSockets),
        arrived: &Arrived,
        poller: &Poller,
        most_clients: usize,
        crossed: &mut Crossed,
    ) {
        let data: Vec<_> = arrived.datagrams().collect();
        let Some(to) = guest_sockets::loopback(arrived.from, guest) else { return };
        let open = || {
            let socket = sockets.open(Transport::Udp, to.is_ipv6())?;
            descriptors::admit(&socket)?;
            // The guest sees the port of the client, unless somebody in its namespace has it. With
            // that of the server it would be its own peer.
            let own = SockRef::from(&socket);
            let bind = |port| own.bind(&SocketAddr::new(to.ip(), port).into());
            let port = Some(arrived.from.port()).filter(|&port| port != to.port());
            bind(port.unwrap_or(0)).or_else(|_| bind(0))?;
            // It takes datagrams of the server alone, so nobody takes it for a server.
            own.connect(&to.into())?;
            HostDatagrams::adopt(socket)
        };
        match self.client(Front::Port(port), arrived, to, poller, most_clients, open) {
            Ok(client) => self.send_in(client, &data, to, arrived.tos, crossed),
            Err(_) => crossed.full += data.len(),
        }
    }

    /// Passes on what has come to a socket.
    pub(crate) fn pass(&mut self, slot: Slot, poller: &Poller, most_clients: usize) -> Crossed {
        let mut crossed = Crossed::default();
        for _ in 0..BATCH {
            let Some(crossing) = self.sockets.get_mut(slot.key) else { return crossed };
            // The place may have become that of another one.
            if crossing.generation != slot.generation {
                return crossed;
            }
            match crossing.socket.receive(&mut self.room) {
                Ok(arrived) => {
                    self.pass_one(slot.key, &arrived, poller, most_clients, &mut crossed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return crossed,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => crossed.unsent += 1,
                // Nobody is told of a datagram that could not be delivered.
                Err(_) => while crossing.socket.undelivered(self.room.buffer()).is_some() {},
            }
        }
        crossed.has_more = true;
        crossed
    }

    fn pass_one(
        &mut self,
        key: usize,
        arrived: &Arrived,
        poller: &Poller,
        most_clients: usize,
        crossed: &mut Crossed,
    ) {
        let data: Vec<_> = arrived.datagrams().collect();
        crossed.overrun += arrived.overrun as usize;
        let tos = arrived.tos;
        match &mut self.sockets[key].role {
            Role::Client { to, .. } if arrived.from != *to => crossed.strange += data.len(),
            Role::Client { of, client, asked, last_used, .. } => {
                *last_used = Instant::now();
                let (from, to) = (*asked, *client);
                match *of {
                    Front::Door(door) => {
                        let sent = self.send(door, from, &data, to, tos);
                        crossed.back += sent;
                        crossed.unsent += data.len() - sent;
                    }
                    Front::Port(port) => self.answers.push(Answer { port, from, to, data, tos }),
                }
            }
            &mut Role::Door { to, .. } => {
                let open = || HostDatagrams::bind(Outbound::default().from(to));
                match self.client(Front::Door(key), arrived, to, poller, most_clients, open) {
                    Ok(client) => self.send_in(client, &data, to, tos, crossed),
                    Err(_) => crossed.full += data.len(),
                }
            }
        }
    }

    /// Sends what a client has sent to its server.
    fn send_in(
        &mut self,
        client: usize,
        data: &[Bytes],
        to: SocketAddr,
        tos: u8,
        crossed: &mut Crossed,
    ) {
        let sent = self.send(client, None, data, to, tos);
        crossed.out += sent;
        crossed.unsent += data.len() - sent;
    }

    /// Sends by a socket, and returns how many have left.
    fn send(
        &mut self,
        key: usize,
        from: Option<OwnAddress>,
        data: &[Bytes],
        to: SocketAddr,
        tos: u8,
    ) -> usize {
        let manner = Manner { tos, ..Manner::PLAIN };
        let Sent { count, .. } = self.sockets[key].socket.send_from(from, data, to, manner);
        count
    }

    /// The socket of the client of a datagram, which is opened if there is none.
    fn client(
        &mut self,
        of: Front,
        arrived: &Arrived,
        to: SocketAddr,
        poller: &Poller,
        most_clients: usize,
        open: impl FnOnce() -> io::Result<HostDatagrams>,
    ) -> io::Result<usize> {
        let (client, asked, last_used) = (arrived.from, arrived.to, Instant::now());
        if let Some(&key) = self.clients_of(of, client) {
            if let Role::Client { asked: to, last_used: last, .. } = &mut self.sockets[key].role {
                (*to, *last) = (asked, last_used);
            }
            return Ok(key);
        }
        if self.clients >= most_clients {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let socket = open()?;
        let slot = self.enter(poller, socket, Role::Client { of, client, asked, to, last_used })?;
        self.ages.set(last_used + TIMEOUT, slot);
        self.clients += 1;
        match of {
            Front::Port(port) => {
                self.of_ports.insert((port, client), slot.key);
            }
            Front::Door(door) => {
                if let Role::Door { clients, .. } = &mut self.sockets[door].role {
                    clients.insert(client, slot.key);
                }
            }
        }
        Ok(slot.key)
    }

    /// The place of a client's socket.
    fn clients_of(&self, of: Front, client: SocketAddr) -> Option<&usize> {
        match of {
            Front::Port(port) => self.of_ports.get(&(port, client)),
            Front::Door(door) => match &self.sockets[door].role {
                Role::Door { clients, .. } => clients.get(&client),
                Role::Client { .. } => None,
            },
        }
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.ages.next()
    }

    /// Forgets clients that were not heard of for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(slot) = self.ages.take(now) {
            let Some(crossing) = self.sockets.get(slot.key) else { continue };
            let Role::Client { of, client, last_used, .. } = crossing.role else { continue };
            if crossing.generation != slot.generation {
                continue;
            }
            if last_used + TIMEOUT > now {
                self.ages.set(last_used + TIMEOUT, slot);
                continue;
            }
            self.sockets.remove(slot.key);
            self.clients -= 1;
            match of {
                Front::Port(port) => {
                    self.of_ports.remove(&(port, client));
                }
                Front::Door(door) => {
                    if let Role::Door { clients, .. } = &mut self.sockets[door].role {
                        clients.remove(&client);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_echo::namespace;
    use socket2::{Domain, Socket, Type};
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};
    use std::os::fd::OwnedFd;

    fn socket() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let address = socket.local_addr().expect("an address");
        (socket, address)
    }

    /// Sockets of this namespace for those of a guest.
    #[derive(Debug)]
    struct Here;

    impl GuestSockets for Here {
        fn open(&self, _: Transport, is_v6: bool) -> io::Result<OwnedFd> {
            let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
            Socket::new(domain, Type::DGRAM, None).map(OwnedFd::from)
        }
    }

    /// A client at a loopback address sends to a guest.
    fn enter(crossings: &mut Crossings, poller: &Poller, from: SocketAddr) -> Crossed {
        let slot = Slot { key: 0, generation: Generation::default() };
        let guest = SocketAddr::from(([192, 0, 2, 1], SERVER.port()));
        let (arrived, mut crossed) = (Arrived::one(from, "question".into()), Crossed::default());
        crossings.enter_guest((slot, guest, &Here), &arrived, poller, 10, &mut crossed);
        crossed
    }

    /// Passes on until there is nothing more, whatever the token.
    fn turn(crossings: &mut Crossings, poller: &Poller) -> Crossed {
        let mut events = Vec::new();
        poller.wait(&mut events, Some(Duration::from_secs(20))).expect("waited");
        let mut sum = Crossed::default();
        for event in events {
            let Token::Crossing(slot) = Token::from_bits(event.token) else { panic!("{event:?}") };
            let one = crossings.pass(slot, poller, 1);
            sum.out += one.out;
            sum.back += one.back;
            sum.full += one.full;
            sum.strange += one.strange;
        }
        sum
    }

    #[test]
    fn questions_cross_answers_come_back_and_a_client_beyond_the_bound_is_counted() {
        let poller = Poller::new().expect("a poller");
        let mut crossings = Crossings::new();
        let (server, to) = socket();
        let door = UdpSocket::bind("0.0.0.0:0").expect("a port");
        let at = (Ipv4Addr::new(127, 0, 0, 2), door.local_addr().expect("an address").port());
        let at = SocketAddr::from(at);
        let door = HostDatagrams::adopt(OwnedFd::from(door)).expect("a socket");
        let slot = crossings.take(&poller, door, to).expect("taken");
        let (client, _) = socket();
        client.send_to(b"question", at).expect("sent");
        assert_eq!(turn(&mut crossings, &poller).out, 1);
        let mut bytes = [0; 100];
        let (count, from) = server.recv_from(&mut bytes).expect("it crossed");
        assert_eq!(&bytes[..count], b"question");
        let (stranger, _) = socket();
        stranger.send_to(b"answer", from).expect("sent");
        let crossed = turn(&mut crossings, &poller);
        assert_eq!((crossed.back, crossed.strange), (0, 1));
        server.send_to(b"answer", from).expect("sent");
        assert_eq!(turn(&mut crossings, &poller).back, 1);
        let (count, from) = client.recv_from(&mut bytes).expect("it came back");
        // The socket of the door has no address of its own.
        assert_eq!((&bytes[..count], from), (&b"answer"[..], at));
        let (other, _) = socket();
        other.send_to(b"me too", at).expect("sent");
        assert_eq!(turn(&mut crossings, &poller).full, 1);
        assert!(crossings.next_expiry().is_some());
        crossings.expire(Instant::now() + 2 * TIMEOUT);
        assert_eq!((crossings.clients, crossings.sockets.len()), (0, 1));
        other.send_to(b"me too", at).expect("sent");
        assert_eq!(turn(&mut crossings, &poller).out, 1, "the place is free again");
        crossings.remove(slot);
        assert_eq!((crossings.clients, crossings.sockets.len()), (0, 0));
        crossings.expire(Instant::now() + 2 * TIMEOUT);
    }

    /// The port of a client, and that of a guest's server.
    const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6000);
    const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5557);

    #[test]
    fn a_guest_that_refuses_is_asked_again_by_the_same_socket_and_strangers_do_not_come_in() {
        namespace::in_namespace(|| {
            namespace::run("ip link set lo up");
            let poller = Poller::new().expect("a poller");
            let mut crossings = Crossings::new();
            // The second one finds what became of the first one.
            for _ in 0..2 {
                assert_eq!(enter(&mut crossings, &poller, CLIENT).out, 1);
            }
            assert_eq!(turn(&mut crossings, &poller), Crossed::default(), "they are refused");
            let server = UdpSocket::bind(SERVER).expect("the port is free");
            server.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
            for _ in 0..2 {
                assert_eq!(enter(&mut crossings, &poller, CLIENT).out, 1);
                let (_, from) = server.recv_from(&mut [0; 100]).expect("it came in");
                assert_eq!(from, CLIENT);
                // The kernel refuses others, and tells them.
                let (stranger, _) = socket();
                stranger.connect(from).expect("connected");
                stranger.send(b"answer").expect("sent");
                let error = stranger.recv(&mut [0; 100]).expect_err("it is refused");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                server.send_to(b"answer", from).expect("sent");
                turn(&mut crossings, &poller);
                let answers = crossings.take_answers();
                let answers: Vec<_> = answers.iter().map(|one| (one.to, &one.data[..])).collect();
                assert_eq!(answers, [(CLIENT, &["answer".into()][..])]);
            }
            assert_eq!(crossings.clients, 1);
        });
    }

    #[test]
    fn a_client_with_the_port_of_the_server_neither_has_it_in_the_guest_nor_answers_itself() {
        namespace::in_namespace(|| {
            namespace::run("ip link set lo up");
            let poller = Poller::new().expect("a poller");
            let mut crossings = Crossings::new();
            assert_eq!(enter(&mut crossings, &poller, SERVER).out, 1);
            turn(&mut crossings, &poller);
            assert!(crossings.take_answers().is_empty());
            UdpSocket::bind(SERVER).expect("the port is free");
        });
    }

    #[test]
    fn a_client_is_forgotten_in_time_beside_one_that_goes_on() {
        let poller = Poller::new().expect("a poller");
        let mut crossings = Crossings::new();
        let (_server, to) = socket();
        let (door, _) = socket();
        let door = HostDatagrams::adopt(OwnedFd::from(door)).expect("a socket");
        let door = crossings.take(&poller, door, to).expect("taken").key;
        let start = Instant::now();
        let keys = [1, 2].map(|port| {
            let from = SocketAddr::from(([127, 0, 0, 1], port));
            let arrived = Arrived::one(from, "hello".into());
            let open = || HostDatagrams::bind(Outbound::default().from(to));
            let of = Front::Door(door);
            crossings.client(of, &arrived, to, &poller, 10, open).expect("room")
        });
        let use_at = |crossings: &mut Crossings, key: usize, seconds| {
            if let Role::Client { last_used, .. } = &mut crossings.sockets[key].role {
                *last_used = start + Duration::from_secs(seconds);
            }
        };
        // The first is used all the time, the second after 10 s for the last time.
        use_at(&mut crossings, keys[0], 180);
        use_at(&mut crossings, keys[1], 10);
        crossings.expire(start + Duration::from_secs(181));
        assert_eq!(crossings.clients, 2);
        assert_eq!(crossings.next_expiry(), Some(start + Duration::from_secs(190)));
        crossings.expire(start + Duration::from_secs(190));
        assert_eq!(crossings.clients, 1);
    }
}
