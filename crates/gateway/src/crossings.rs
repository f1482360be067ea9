//! UDP between a socket of another network namespace and a server of this one, past the stack.
//! Each client of the socket has a socket of its own towards the server, which answers to that one.
//!
//! Cost: a call of the host in each direction for a super-datagram; a client has a descriptor and
//! about 200 bytes until it has sent and got nothing for [three minutes](TIMEOUT).

use crate::ages::Ages;
use crate::host_datagrams::{Arrived, HostDatagrams, RECEIVE_ROOM, Sent};
use crate::host_errors::Manner;
use crate::outbound::Outbound;
use crate::own_address::OwnAddress;
use crate::token::{Generation, Slot, Token};
use neap::{Events, Poller};
use slab::Slab;
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
    generation: Generation,
    /// Clients by the time when they may have to be forgotten.
    ages: Ages,
    clients: usize,
    buffer: Box<[u8]>,
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
        door: usize,
        client: SocketAddr,
        /// Where its last datagram went, and the answers come from.
        asked: Option<OwnAddress>,
        to: SocketAddr,
        last_used: Instant,
    },
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
            generation: Generation::default(),
            ages: Ages::default(),
            clients: 0,
            buffer: vec![0; RECEIVE_ROOM].into(),
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

    /// Passes on what has come to a socket.
    pub(crate) fn pass(&mut self, slot: Slot, poller: &Poller, most_clients: usize) -> Crossed {
        let mut crossed = Crossed::default();
        for _ in 0..BATCH {
            let Some(crossing) = self.sockets.get_mut(slot.key) else { return crossed };
            // The place may have become that of another one.
            if crossing.generation != slot.generation {
                return crossed;
            }
            match crossing.socket.receive(&mut self.buffer) {
                Ok(arrived) => {
                    self.pass_one(slot.key, &arrived, poller, most_clients, &mut crossed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return crossed,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => crossed.unsent += 1,
                // Nobody is told of a datagram that could not be delivered.
                Err(_) => while crossing.socket.undelivered(&mut self.buffer).is_some() {},
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
        let (sender, from, to, counter) = match &mut self.sockets[key].role {
            Role::Client { to, .. } if arrived.from != *to => {
                crossed.strange += data.len();
                return;
            }
            Role::Client { door, client, asked, last_used, .. } => {
                *last_used = Instant::now();
                (*door, *asked, *client, &mut crossed.back)
            }
            &mut Role::Door { to, .. } => {
                match self.client(key, arrived, to, poller, most_clients) {
                    Ok(client) => (client, None, to, &mut crossed.out),
                    Err(_) => {
                        crossed.full += data.len();
                        return;
                    }
                }
            }
        };
        let manner = Manner { tos: arrived.tos, ..Manner::PLAIN };
        let Sent { count, .. } = self.sockets[sender].socket.send_from(from, &data, to, manner);
        *counter += count;
        crossed.unsent += data.len() - count;
    }

    /// The socket of the client of a datagram, which is made if there is none.
    fn client(
        &mut self,
        door: usize,
        arrived: &Arrived,
        to: SocketAddr,
        poller: &Poller,
        most_clients: usize,
    ) -> io::Result<usize> {
        let (client, asked, last_used) = (arrived.from, arrived.to, Instant::now());
        if let Role::Door { clients, .. } = &self.sockets[door].role
            && let Some(&key) = clients.get(&client)
        {
            if let Role::Client { asked: to, last_used: last, .. } = &mut self.sockets[key].role {
                (*to, *last) = (asked, last_used);
            }
            return Ok(key);
        }
        if self.clients >= most_clients {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let role = Role::Client { door, client, asked, to, last_used };
        let slot = self.enter(poller, HostDatagrams::bind(Outbound::default().from(to))?, role)?;
        self.ages.set(last_used + TIMEOUT, slot);
        self.clients += 1;
        if let Role::Door { clients, .. } = &mut self.sockets[door].role {
            clients.insert(client, slot.key);
        }
        Ok(slot.key)
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.ages.next()
    }

    /// Forgets clients that were not heard of for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(slot) = self.ages.take(now) {
            let Some(crossing) = self.sockets.get(slot.key) else { continue };
            let Role::Client { door, client, last_used, .. } = crossing.role else { continue };
            if crossing.generation != slot.generation {
                continue;
            }
            if last_used + TIMEOUT > now {
                self.ages.set(last_used + TIMEOUT, slot);
                continue;
            }
            self.sockets.remove(slot.key);
            self.clients -= 1;
            if let Role::Door { clients, .. } = &mut self.sockets[door].role {
                clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::OwnedFd;

    fn socket() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let address = socket.local_addr().expect("an address");
        (socket, address)
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
            crossings.client(door, &arrived, to, &poller, 10).expect("room")
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
