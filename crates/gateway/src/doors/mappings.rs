//! Datagrams between clients of the host and the stack: each client of a UDP tunnel, and each
//! association of SOCKS5, has ports of its own in the stack.
//!
//! Cost: a socket of the stack for each family, for an association a socket of the host, too, and
//! about 400 bytes. A datagram is one system call of the host; those of one length from or to one
//! place share a call, except for what an association gets, each datagram of which has a header of
//! its own. What waits for a name is at most [`MOST_EARLY`] datagrams of [`MOST_EARLY_BYTES`].
//!
//! A client of a tunnel that is silent may lose its place. An association lasts as long as its
//! connection, so associations have a part of the places alone.

use super::config::{Host, Target};
use super::figures::Counters;
use super::lookups::{Lookups, Waiter};
use super::step::{Failure, Found};
use super::{ports, socks};
use crate::ages::Ages;
use crate::host_datagrams::{HostDatagrams, MOST_SEGMENTS, Sent, first_run};
use crate::host_errors::Manner;
use crate::own_address::OwnAddress;
use crate::receive_room::ReceiveRoom;
use crate::stack_upstream::StackDatagrams;
use crate::token::{Generation, Slot, Token};
use crate::upstream::FarDatagrams;
use bytes::Bytes;
use neap::{Events, Poller, Refusal, Stack};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls for one socket before others have their turn.
const BATCH: usize = 64;
/// Datagrams of one mapping that wait for a name, and their bytes.
const MOST_EARLY: usize = 16;
const MOST_EARLY_BYTES: usize = 64 << 10;
/// A client of a tunnel that was silent for so long may lose its place to another one, where all
/// places are taken.
const IDLE: Duration = Duration::from_secs(10);
/// This part of the places becomes free at once, so that a look at all of them serves many clients.
const FREED: usize = 16;
/// This part of the places associations may have, and this part of that those of one address. All
/// programs of the host share its loopback addresses, which have no such bound.
const OF_ASSOCIATIONS: usize = 2;
const OF_AN_ADDRESS: usize = 4;
/// Looks at all places that were in vain are so far apart.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// All clients that send datagrams.
pub(super) struct Mappings {
    stack: Arc<Stack>,
    table: Slab<Mapping>,
    /// Those of tunnels, by door and client.
    of_client: HashMap<(usize, SocketAddr), usize>,
    /// How many associations each address has.
    associations: HashMap<IpAddr, usize>,
    generation: Generation,
    /// Clients of tunnels by the time when they may have to be forgotten.
    ages: Ages,
    most: usize,
    /// When places may be looked for again, after a look that was in vain.
    next_look: Instant,
    room: ReceiveRoom,
    counters: Arc<Counters>,
}

struct Mapping {
    generation: Generation,
    kind: Kind,
    /// Of IPv4, and of IPv6.
    sockets: [Option<StackDatagrams>; 2],
    early: VecDeque<(Target, Bytes)>,
    early_bytes: usize,
    last_used: Instant,
    /// How long a client of a tunnel may be silent; `None` is for ever.
    timeout: Option<Duration>,
}

enum Kind {
    /// A client of a tunnel, the address that it has asked last, and where its datagrams go once
    /// that is known.
    Tunnel { door: usize, client: SocketAddr, asked: Option<OwnAddress>, to: Option<SocketAddr> },
    /// An association; its client has this address, whose port is 0 until it is known.
    Association { host: HostDatagrams, client: SocketAddr },
}

/// What mappings need besides themselves.
pub(super) struct Ways<'a> {
    pub(super) poller: &'a Poller,
    pub(super) lookups: &'a mut Lookups,
    pub(super) ports: &'a mut [ports::Port],
}

impl Mapping {
    /// Whether a datagram may wait for a name.
    fn has_room_for(&self, datagram: &Bytes) -> bool {
        self.early.len() < MOST_EARLY && self.early_bytes + datagram.len() <= MOST_EARLY_BYTES
    }

    /// Whether one of some datagrams may.
    fn has_room_for_one(&self, data: &[Bytes]) -> bool {
        data.iter().any(|datagram| self.has_room_for(datagram))
    }
}

impl Mappings {
    pub(super) fn new(stack: Arc<Stack>, most: usize, counters: Arc<Counters>) -> Self {
        Self {
            stack,
            table: Slab::new(),
            of_client: HashMap::new(),
            associations: HashMap::new(),
            generation: Generation::default(),
            ages: Ages::default(),
            most,
            next_look: Instant::now(),
            room: ReceiveRoom::new(),
            counters,
        }
    }

    /// A mapping; `None` if there are too many.
    fn insert(&mut self, kind: Kind) -> Option<Slot> {
        let associated = match &kind {
            Kind::Association { client, .. } => Some(client.ip()),
            Kind::Tunnel { .. } => None,
        };
        let may_have_one = associated.is_none_or(|client| self.may_associate(client));
        let has_room =
            may_have_one && (self.table.len() < self.most || self.make_room(Instant::now()));
        if !has_room {
            return None;
        }
        if let Some(client) = associated {
            *self.associations.entry(client).or_default() += 1;
        }
        let (generation, last_used) = (self.generation.advance(), Instant::now());
        let (sockets, early, early_bytes) = ([None, None], VecDeque::new(), 0);
        let timeout = None;
        let mapping = Mapping { generation, kind, sockets, early, early_bytes, last_used, timeout };
        self.counters.count(|counters| &counters.mappings);
        Some(Slot { key: self.table.insert(mapping), generation })
    }

    /// Whether an address may have one more association.
    fn may_associate(&self, client: IpAddr) -> bool {
        // All others are of tunnels.
        let number = self.table.len() - self.of_client.len();
        let own = self.associations.get(&client).copied().unwrap_or(0);
        let most = self.most.div_ceil(OF_ASSOCIATIONS);
        number < most && (client.is_loopback() || own < most.div_ceil(OF_AN_ADDRESS))
    }

    /// Forgets the clients of tunnels that have been silent for longest. Whether there is room
    /// then.
    ///
    /// A look at all places frees a part of them or is followed by a pause, so that a client costs
    /// few looks.
    fn make_room(&mut self, now: Instant) -> bool {
        if now < self.next_look {
            return false;
        }
        let last_used = |key: &usize| self.table[*key].last_used;
        let is_idle = |key: &usize| now.duration_since(last_used(key)) >= IDLE;
        let mut idle: Vec<usize> = self.of_client.values().copied().filter(is_idle).collect();
        if idle.is_empty() {
            self.next_look = now + LOOK_PAUSE;
            return false;
        }
        let count = (self.most / FREED).clamp(1, idle.len());
        idle.select_nth_unstable_by_key(count - 1, last_used);
        for key in &idle[..count] {
            self.remove(self.slot(*key));
        }
        let Self { ages, table, .. } = self;
        ages.drop_gone(table.len(), |slot| is_there(table, slot));
        true
    }

    /// An association for the client of a connection that came to `local`; its datagrams have this
    /// port, or any if that is 0. Returns the port of the host that it is to send to.
    pub(super) fn associate(
        &mut self,
        poller: &Poller,
        mut local: SocketAddr,
        mut client: SocketAddr,
        port: u16,
    ) -> io::Result<(Slot, SocketAddr)> {
        local.set_port(0);
        client.set_port(port);
        let host = HostDatagrams::bind(local)?;
        let bound = host.local_addr()?;
        let kind = Kind::Association { host, client };
        let slot = self.insert(kind).ok_or_else(|| {
            self.counters.count(|counters| &counters.full_mappings);
            io::ErrorKind::QuotaExceeded
        })?;
        let Kind::Association { host, .. } = &self.table[slot.key].kind else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let entered = poller.add(host, Token::Mapping(slot).to_bits(), Events::IN | Events::ET);
        if let Err(error) = entered {
            self.remove(slot);
            return Err(error);
        }
        Ok((slot, bound))
    }

    /// Ends an association.
    pub(super) fn remove(&mut self, slot: Slot) {
        if self.is_there(slot) {
            let mapping = self.table.remove(slot.key);
            self.count_early(&mapping);
            match mapping.kind {
                Kind::Tunnel { door, client, .. } => drop(self.of_client.remove(&(door, client))),
                Kind::Association { client, .. } => {
                    let client = client.ip();
                    if let Some(number) = self.associations.get_mut(&client) {
                        *number -= 1;
                        if *number == 0 {
                            self.associations.remove(&client);
                        }
                    }
                }
            }
        }
    }

    /// Ends all that came to a door.
    pub(super) fn close_door(&mut self, index: usize) {
        let own = self.of_client.iter().filter(|((door, _), _)| *door == index);
        let own: Vec<Slot> = own.map(|(_, &key)| self.slot(key)).collect();
        own.into_iter().for_each(|slot| self.remove(slot));
    }

    fn slot(&self, key: usize) -> Slot {
        Slot { key, generation: self.table[key].generation }
    }

    /// Counts what waits for a name in a mapping that is over.
    fn count_early(&self, mapping: &Mapping) {
        let number = mapping.early.len() as u64;
        self.counters.add(|counters| &counters.unresolved_datagrams, number);
    }

    fn is_there(&self, slot: Slot) -> bool {
        is_there(&self.table, slot)
    }

    /// Passes on what came to the port of a tunnel. Whether there may be more.
    pub(super) fn on_door(
        &mut self,
        door: usize,
        target: &Target,
        timeout: Option<Duration>,
        ways: &mut Ways<'_>,
    ) -> bool {
        for _ in 0..BATCH {
            let ports::Port::Datagrams(socket) = &mut ways.ports[door] else { return false };
            let arrived = match socket.receive(&mut self.room) {
                Ok(arrived) => arrived,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.counters.count(|counters| &counters.bad_datagrams);
                    continue;
                }
                // A client has closed its port.
                Err(_) => {
                    while socket.undelivered(self.room.buffer()).is_some() {}
                    continue;
                }
            };
            self.counters.add(|counters| &counters.overrun_datagrams, arrived.overrun.into());
            let data: SmallVec<[Bytes; 8]> = arrived.datagrams().collect();
            let client = arrived.from;
            let key = match self.of_client.get(&(door, client)) {
                Some(&key) => key,
                None => {
                    let kind = Kind::Tunnel { door, client, asked: None, to: None };
                    let Some(slot) = self.insert(kind) else {
                        let number = data.len() as u64;
                        self.counters.add(|counters| &counters.full_mappings, number);
                        continue;
                    };
                    self.of_client.insert((door, client), slot.key);
                    self.table[slot.key].timeout = timeout;
                    if let Some(timeout) = timeout {
                        self.ages.set(Instant::now() + timeout, slot);
                    }
                    slot.key
                }
            };
            let mapping = &mut self.table[key];
            mapping.last_used = Instant::now();
            if let Kind::Tunnel { asked, .. } = &mut mapping.kind {
                *asked = arrived.to;
            }
            self.send(key, target, &data, ways);
        }
        true
    }

    /// Sends datagrams of a mapping to a target, now or when its name is known.
    fn send(&mut self, key: usize, target: &Target, data: &[Bytes], ways: &mut Ways<'_>) {
        let mapping = &mut self.table[key];
        let fixed = match (&target.host, &mapping.kind) {
            (_, Kind::Tunnel { to: Some(to), .. }) => Some(to.ip()),
            (Host::Address(ip), _) => Some(*ip),
            _ => None,
        };
        if let Some(ip) = fixed {
            return self.pass_on(key, (&[ip], target.port), data, ways.poller);
        }
        let found = match &target.host {
            Host::Name(name) => {
                let waits = |(early, _): &(Target, Bytes)| early.host == target.host;
                // A name that is waited for is not asked for again.
                if mapping.early.iter().any(waits) {
                    return self.hold(key, target, data);
                }
                let found = if mapping.has_room_for_one(data) {
                    let slot = Slot { key, generation: mapping.generation };
                    ways.lookups.find(name, Waiter::Mapping(slot), ways.poller)
                } else {
                    // Nothing would wait for the name, and each datagram would ask for it again.
                    ways.lookups.known(name)
                };
                match found {
                    Some(found) => found,
                    None => return self.hold(key, target, data),
                }
            }
            // The stack does not have the link.
            _ => Err(Failure::Network),
        };
        match found {
            Ok(found) => self.pass_on(key, (&found, target.port), data, ways.poller),
            Err(_) => {
                let number = data.len() as u64;
                self.counters.add(|counters| &counters.unresolved_datagrams, number);
            }
        }
    }

    /// Lets datagrams wait for a name.
    fn hold(&mut self, key: usize, target: &Target, data: &[Bytes]) {
        let mapping = &mut self.table[key];
        for datagram in data {
            if !mapping.has_room_for(datagram) {
                self.counters.count(|counters| &counters.full_mappings);
                continue;
            }
            mapping.early_bytes += datagram.len();
            mapping.early.push_back((target.clone(), datagram.clone()));
        }
    }

    /// Sends what has waited for a name.
    pub(super) fn on_name(&mut self, slot: Slot, name: &str, found: &Found, poller: &Poller) {
        if !self.is_there(slot) {
            return;
        }
        let early = std::mem::take(&mut self.table[slot.key].early);
        self.table[slot.key].early_bytes = 0;
        let is_named =
            |target: &Target| matches!(&target.host, Host::Name(other) if **other == *name);
        for (target, data) in early {
            if !is_named(&target) {
                let mapping = &mut self.table[slot.key];
                mapping.early_bytes += data.len();
                mapping.early.push_back((target, data));
                continue;
            }
            match found {
                Ok(found) => self.pass_on(slot.key, (found, target.port), &[data], poller),
                Err(_) => self.counters.count(|counters| &counters.unresolved_datagrams),
            }
        }
    }

    /// Sends datagrams to the first of some addresses that a route leads to. That is where those of
    /// a tunnel's client go from then on, and who answers it, until no route leads there any more.
    fn pass_on(
        &mut self,
        key: usize,
        (found, port): (&[IpAddr], u16),
        data: &[Bytes],
        poller: &Poller,
    ) {
        let mut number = 0;
        for &ip in found {
            let to = ports::canonical(SocketAddr::new(ip, port));
            let Some(sent) = self.send_to(key, to, data, poller) else {
                let number = data.len() as u64;
                return self.counters.add(|counters| &counters.full_mappings, number);
            };
            number = sent.count;
            let is_unreachable = number == 0 && sent.why == Some(Refusal::Network);
            if let Kind::Tunnel { to: known, .. } = &mut self.table[key].kind {
                if number > 0 {
                    *known = Some(to);
                } else if is_unreachable {
                    *known = None;
                }
            }
            if !is_unreachable {
                break;
            }
        }
        self.counters.add(|counters| &counters.datagrams_out, number as u64);
        self.counters.add(|counters| &counters.unsent_datagrams, (data.len() - number) as u64);
    }

    /// Sends datagrams to an address. `None` if there is no socket for them.
    fn send_to(
        &mut self,
        key: usize,
        to: SocketAddr,
        data: &[Bytes],
        poller: &Poller,
    ) -> Option<Sent> {
        let mapping = &mut self.table[key];
        let slot = Slot { key, generation: mapping.generation };
        let socket = match &mut mapping.sockets[usize::from(to.is_ipv6())] {
            Some(socket) => socket,
            place @ None => {
                let opened = StackDatagrams::open(&self.stack, to.is_ipv6());
                let opened = opened.and_then(|socket| {
                    socket.enter(poller, Token::Mapping(slot).to_bits())?;
                    Ok(socket)
                });
                place.insert(opened.ok()?)
            }
        };
        let mut all = Sent::default();
        for data in data.chunks(MOST_SEGMENTS) {
            let sent = socket.send(data, &to.into(), Manner::PLAIN);
            all = Sent { count: all.count + sent.count, ..sent };
        }
        Some(all)
    }

    /// Passes on what came to a mapping, from either side. Whether there may be more.
    pub(super) fn on_event(&mut self, slot: Slot, ways: &mut Ways<'_>) -> bool {
        if !self.is_there(slot) {
            return false;
        }
        let from_stack = self.take_from_stack(slot.key, ways);
        let from_client = self.take_from_client(slot.key, ways);
        from_stack || from_client
    }

    /// Passes on what the client of an association has sent.
    fn take_from_client(&mut self, key: usize, ways: &mut Ways<'_>) -> bool {
        for _ in 0..BATCH {
            let Mapping { kind, last_used, .. } = &mut self.table[key];
            let Kind::Association { host, client } = kind else { return false };
            let arrived = match host.receive(&mut self.room) {
                Ok(arrived) => arrived,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.counters.count(|counters| &counters.bad_datagrams);
                    continue;
                }
                Err(_) => {
                    while host.undelivered(self.room.buffer()).is_some() {}
                    continue;
                }
            };
            self.counters.add(|counters| &counters.overrun_datagrams, arrived.overrun.into());
            let (from, number) = (arrived.from, arrived.datagrams().count() as u64);
            if place(from) != place(*client) || ![0, from.port()].contains(&client.port()) {
                self.counters.add(|counters| &counters.bad_datagrams, number);
                continue;
            }
            client.set_port(from.port());
            *last_used = Instant::now();
            for datagram in arrived.datagrams() {
                match socks::read_datagram(&datagram) {
                    Some((target, header)) => {
                        self.send(key, &target, &[datagram.slice(header..)], ways);
                    }
                    None => self.counters.count(|counters| &counters.bad_datagrams),
                }
            }
        }
        true
    }

    /// Passes on what the stack has received for a client.
    fn take_from_stack(&mut self, key: usize, ways: &mut Ways<'_>) -> bool {
        let mapping = &mut self.table[key];
        let mut has_more = false;
        for family in 0..mapping.sockets.len() {
            let Some(socket) = &mut mapping.sockets[family] else { continue };
            let mut batch: SmallVec<[(SocketAddr, Bytes); BATCH]> = SmallVec::new();
            // Nothing tells of what is left, unless the socket was seen to be empty.
            let mut is_empty = false;
            for _ in 0..BATCH {
                match socket.receive(&mut self.room) {
                    Ok(arrived) => {
                        let from = arrived.from;
                        batch.extend(arrived.datagrams().map(|data| (from, data)));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        is_empty = true;
                        break;
                    }
                    // Nobody is told of a datagram that could not be delivered.
                    Err(_) => while socket.undelivered(self.room.buffer()).is_some() {},
                }
            }
            has_more |= !is_empty;
            if batch.is_empty() {
                continue;
            }
            mapping.last_used = Instant::now();
            let (sent, bad) = deliver(&mut mapping.kind, &batch, ways.ports);
            let unsent = batch.len() - sent - bad;
            self.counters.add(|counters| &counters.datagrams_in, sent as u64);
            self.counters.add(|counters| &counters.bad_datagrams, bad as u64);
            self.counters.add(|counters| &counters.unsent_datagrams, unsent as u64);
        }
        has_more
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.ages.next()
    }

    /// Forgets clients that were not heard of for long.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(slot) = self.ages.take(now) {
            let Some(mapping) = self.table.get(slot.key) else { continue };
            let Some(timeout) = mapping.timeout.filter(|_| self.is_there(slot)) else { continue };
            let due = mapping.last_used + timeout;
            if due <= now {
                self.remove(slot);
            } else {
                self.ages.set(due, slot);
            }
        }
    }
}

/// An address with its zone: hosts of several links may have the same link-local one.
fn place(address: SocketAddr) -> (IpAddr, u32) {
    let zone = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    (address.ip(), zone)
}

fn is_there(table: &Slab<Mapping>, slot: Slot) -> bool {
    table.get(slot.key).is_some_and(|mapping| mapping.generation == slot.generation)
}

/// Sends a client what came for it. Returns how many datagrams it got, and how many were of
/// strangers.
fn deliver(
    kind: &mut Kind,
    batch: &[(SocketAddr, Bytes)],
    ports: &mut [ports::Port],
) -> (usize, usize) {
    match kind {
        Kind::Association { host, client } => {
            let mut sent = 0;
            for (from, data) in batch {
                let datagram = socks::datagram(ports::canonical(*from), data);
                sent += host.send(&[datagram], *client, Manner::PLAIN).count;
            }
            (sent, 0)
        }
        Kind::Tunnel { door, client, asked, to } => {
            let own = batch.iter().filter(|(from, _)| Some(ports::canonical(*from)) == *to);
            let own: SmallVec<[Bytes; BATCH]> = own.map(|(_, data)| data.clone()).collect();
            let bad = batch.len() - own.len();
            let ports::Port::Datagrams(socket) = &mut ports[*door] else { return (0, bad) };
            let (mut sent, mut rest) = (0, &own[..]);
            while !rest.is_empty() {
                let (run, others) = rest.split_at(first_run(rest.iter().map(Bytes::len)));
                sent += socket.send_from(*asked, run, *client, Manner::PLAIN).count;
                rest = others;
            }
            (sent, bad)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::doors::config::{ResolveStrategy, TunnelResolver};
    use crate::host_echo::namespace;
    use std::os::unix::net::UnixDatagram;

    const MOST: usize = 64;

    /// A table whose places are all taken by clients of a tunnel, of which those with these numbers
    /// have been silent for a minute.
    fn full(idle: std::ops::Range<usize>) -> Mappings {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
        let stack = Arc::new(stack.expect("a stack"));
        let mut mappings = Mappings::new(stack, MOST, Arc::default());
        for number in 0..MOST {
            let slot = add(&mut mappings, number).expect("room");
            if idle.contains(&number) {
                let earlier = Instant::now().checked_sub(Duration::from_secs(60));
                mappings.table[slot.key].last_used = earlier.expect("the machine ran then");
            }
        }
        mappings
    }

    fn add(mappings: &mut Mappings, number: usize) -> Option<Slot> {
        let client = SocketAddr::from(([192, 0, 2, 1], number as u16));
        let kind = Kind::Tunnel { door: 0, client, asked: None, to: None };
        let slot = mappings.insert(kind)?;
        mappings.of_client.insert((0, client), slot.key);
        Some(slot)
    }

    #[test]
    fn where_all_places_are_taken_silent_clients_of_tunnels_lose_theirs() {
        let mut mappings = full(0..6);
        for number in 0..6 {
            assert!(add(&mut mappings, MOST + number).is_some(), "the place of {number}");
        }
        assert!(add(&mut mappings, MOST + 6).is_none(), "all have been heard of late");
        assert_eq!((mappings.table.len(), mappings.of_client.len()), (MOST, MOST));
    }

    #[test]
    fn each_datagram_is_counted_for_which_there_is_no_place() {
        const SENT: usize = 10;
        let mut mappings = full(0..0);
        let (poller, counters) = (Poller::new().expect("a poller"), mappings.counters.clone());
        let loopback = || HostDatagrams::bind(([127, 0, 0, 1], 0).into()).expect("a socket");
        let (door, mut client) = (loopback(), loopback());
        let at = door.local_addr().expect("an address");
        let (mut lookups, mut ports) =
            (lookups(&mappings.stack, &counters), [ports::Port::Datagrams(door)]);
        let ways = &mut Ways { poller: &poller, lookups: &mut lookups, ports: &mut ports };
        let sent = client.send(&vec![Bytes::from_static(b"hello"); SENT], at, Manner::PLAIN);
        assert_eq!(sent.count, SENT);
        let target = "10.0.2.4:9".parse().expect("a target");
        // What is sent over the loopback is there when the call returns.
        mappings.on_door(0, &target, None, ways);
        assert_eq!(loaded(&counters.full_mappings), SENT as u64);
    }

    #[test]
    fn clients_that_have_lost_their_places_leave_nothing() {
        let mut mappings = full(0..0);
        let far = Instant::now() + Duration::from_secs(86_400);
        for number in 0..100 * MOST {
            mappings.table.iter_mut().for_each(|(_, one)| one.last_used -= 2 * IDLE);
            let slot = add(&mut mappings, number).expect("the place of another");
            mappings.ages.set(far, slot);
        }
        let mut kept = 0;
        while mappings.ages.take(far).is_some() {
            kept += 1;
        }
        assert!(kept <= 4 * MOST, "{kept} times of nobody");
    }

    #[test]
    fn an_association_keeps_its_place() {
        let mut mappings = full(0..0);
        let slot = Slot { key: 0, generation: mappings.table[0].generation };
        mappings.remove(slot);
        let any = "127.0.0.1:0".parse().expect("an address");
        let host = HostDatagrams::bind(any).expect("a socket");
        let kind = Kind::Association { host, client: any };
        let slot = mappings.insert(kind).expect("room");
        mappings.table[slot.key].last_used -= Duration::from_secs(60);
        assert!(add(&mut mappings, MOST).is_none() && mappings.is_there(slot));
    }

    fn associate(mappings: &mut Mappings, client: &str) -> Option<Slot> {
        let host = HostDatagrams::bind("127.0.0.1:0".parse().expect("an address"));
        let client = SocketAddr::new(client.parse().expect("an address"), 0);
        mappings.insert(Kind::Association { host: host.expect("a socket"), client })
    }

    #[test]
    fn associations_leave_places_to_clients_of_tunnels_and_to_other_addresses() {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let mut mappings = Mappings::new(stack(own, "10.0.2.3/24"), MOST, Arc::default());
        let mut of_one = Vec::new();
        while let Some(slot) = associate(&mut mappings, "192.0.2.1") {
            of_one.push(slot);
        }
        assert_eq!(of_one.len(), MOST / 8);
        let others = (0..MOST).filter(|_| associate(&mut mappings, "127.0.0.1").is_some());
        assert_eq!(others.count(), MOST / 2 - MOST / 8);
        assert!(associate(&mut mappings, "192.0.2.2").is_none());
        // Another one has the place of one that is over.
        mappings.remove(of_one[0]);
        assert!(associate(&mut mappings, "192.0.2.2").is_some());
        let clients = (0..MOST).filter(|&number| add(&mut mappings, number).is_some());
        assert_eq!(clients.count(), MOST / 2);
        for slot in of_one {
            mappings.remove(slot);
        }
        assert!(!mappings.associations.contains_key(&"192.0.2.1".parse().expect("an address")));
    }

    /// A stack at one end of a cable, and that end of it.
    fn stack(end: UnixDatagram, address: &str) -> Arc<Stack> {
        let device = device::device("cable", end).expect("a device");
        Arc::new(Stack::builder().device(device).address(address).build().expect("a stack"))
    }

    /// A table with an association of this client.
    fn associated(stack: &Arc<Stack>, client: SocketAddr) -> (Mappings, Slot) {
        let mut mappings = Mappings::new(stack.clone(), MOST, Arc::default());
        let host = HostDatagrams::bind(SocketAddr::new(client.ip(), 0)).expect("a socket");
        let slot = mappings.insert(Kind::Association { host, client }).expect("room");
        (mappings, slot)
    }

    /// Names that are asked for of one server of the stack.
    fn lookups(stack: &Arc<Stack>, counters: &Arc<Counters>) -> Lookups {
        let servers = vec!["10.0.2.4:53".parse().expect("an address")];
        let strategy = ResolveStrategy::Auto;
        let resolver = TunnelResolver { servers, search: Vec::new(), strategy };
        Lookups::new(stack.clone(), resolver, counters.clone())
    }

    fn loaded(counter: &std::sync::atomic::AtomicU64) -> u64 {
        counter.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[test]
    fn what_is_behind_an_error_in_a_full_batch_is_passed_on_as_well() {
        const SENT: u64 = 80;
        let (own, other) = UnixDatagram::pair().expect("a pair");
        let (near, far) = (stack(own, "10.0.2.3/24"), stack(other, "10.0.2.4/24"));
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let (mut mappings, slot) = associated(&near, client.local_addr().expect("an address"));
        let (poller, counters) = (Poller::new().expect("a poller"), mappings.counters.clone());
        let (mut lookups, mut ports) = (lookups(&near, &counters), []);
        let ways = &mut Ways { poller: &poller, lookups: &mut lookups, ports: &mut ports };
        let server = neap::UdpSocket::bind(&far, "10.0.2.4:9").expect("a socket");
        // Nobody has the port of the first one. The answer to that is on its way before the second
        // one is received.
        for to in ["10.0.2.4:10", "10.0.2.4:9"] {
            let to = to.parse().expect("a target");
            mappings.send(slot.key, &to, &[Bytes::from_static(b"hello")], ways);
        }
        let (_, from) = server.recv_from(&mut [0; 100]).expect("the second one");
        // The cable keeps the order, so the stack has all when it has the last one.
        let last = neap::UdpSocket::bind(&near, "10.0.2.3:0").expect("a socket");
        for _ in 0..SENT {
            server.send_to(b"answer", from).expect("sent");
        }
        server.send_to(b"last", last.local_addr().expect("an address")).expect("sent");
        last.recv_from(&mut [0; 100]).expect("the last one");
        while mappings.on_event(slot, ways) {}
        assert_eq!(loaded(&counters.datagrams_in), SENT);
    }

    #[test]
    fn datagrams_for_which_there_is_no_room_ask_for_no_name() {
        const SENT: u64 = 10_000;
        let (own, _silent) = UnixDatagram::pair().expect("a pair");
        let near = stack(own, "10.0.2.3/24");
        let (mut mappings, slot) = associated(&near, "127.0.0.1:9".parse().expect("an address"));
        let (poller, counters) = (Poller::new().expect("a poller"), mappings.counters.clone());
        let (mut lookups, mut ports) = (lookups(&near, &counters), []);
        let mut send = |name: &str, length: usize| {
            let ways = &mut Ways { poller: &poller, lookups: &mut lookups, ports: &mut ports };
            let to = format!("{name}:9").parse().expect("a target");
            mappings.send(slot.key, &to, &[vec![0; length].into()], ways);
        };
        send("a.test", 65_000);
        (0..SENT).for_each(|_| send("b.test", 700));
        // A name that is known needs no room.
        send("localhost", 700);
        // One that there is room for waits.
        send("c.test", 10);
        (0..SENT).for_each(|_| send("c.test", 700));
        assert_eq!(loaded(&counters.full_mappings), 2 * SENT);
        let waiters = ["a.test", "b.test", "c.test"].map(|name| lookups.waiters_of(name));
        assert_eq!(waiters, [1, 0, 1]);
    }

    #[test]
    fn a_client_with_a_link_local_address_gets_its_answers() {
        namespace::in_namespace(|| {
            namespace::run("ip link set lo up");
            namespace::run("ip link add link0 type veth peer name link1");
            namespace::run("ip link set link1 up");
            namespace::run("ip link set link0 up");
            namespace::run("ip address add fe80::2/64 dev link0 nodad");
            let zone = nix::net::if_::if_nametoindex("link0").expect("it is there");
            let ip = "fe80::2".parse().expect("an address");
            let local = SocketAddr::from(std::net::SocketAddrV6::new(ip, 0, 0, zone));
            let (own, other) = UnixDatagram::pair().expect("a pair");
            let (near, far) = (stack(own, "10.0.2.3/24"), stack(other, "10.0.2.4/24"));
            let mut mappings = Mappings::new(near.clone(), MOST, Arc::default());
            let (poller, counters) = (Poller::new().expect("a poller"), mappings.counters.clone());
            let (mut lookups, mut ports) = (lookups(&near, &counters), []);
            let ways = &mut Ways { poller: &poller, lookups: &mut lookups, ports: &mut ports };
            let client = std::net::UdpSocket::bind(local).expect("a socket");
            let from = client.local_addr().expect("an address");
            let (slot, at) = mappings.associate(&poller, local, from, 0).expect("a port");
            let server = neap::UdpSocket::bind(&far, "10.0.2.4:9").expect("a socket");
            let asked = socks::datagram("10.0.2.4:9".parse().expect("an address"), b"hello");
            client.send_to(&asked, at).expect("sent");
            // The loopback may deliver it in another thread.
            while loaded(&counters.datagrams_out) == 0 {
                mappings.on_event(slot, ways);
                std::thread::yield_now();
            }
            let (_, from) = server.recv_from(&mut [0; 100]).expect("it is passed on");
            server.send_to(b"answer", from).expect("sent");
            client.set_nonblocking(true).expect("set");
            let mut bytes = [0; 100];
            while loaded(&counters.datagrams_in) + loaded(&counters.unsent_datagrams) == 0 {
                mappings.on_event(slot, ways);
                std::thread::yield_now();
            }
            let count = client.recv(&mut bytes).expect("the answer");
            assert!(bytes[..count].ends_with(b"answer"), "{:?}", &bytes[..count]);
        });
    }

    #[test]
    fn what_waits_for_a_name_is_counted_when_its_client_goes() {
        let (own, _silent) = UnixDatagram::pair().expect("a pair");
        let near = stack(own, "10.0.2.3/24");
        let (mut mappings, slot) = associated(&near, "127.0.0.1:9".parse().expect("an address"));
        let (poller, counters) = (Poller::new().expect("a poller"), mappings.counters.clone());
        let (mut lookups, mut ports) = (lookups(&near, &counters), []);
        let ways = &mut Ways { poller: &poller, lookups: &mut lookups, ports: &mut ports };
        let to = "a.test:9".parse().expect("a target");
        mappings.send(slot.key, &to, &[Bytes::from_static(b"hello")], ways);
        assert_eq!(loaded(&counters.unresolved_datagrams), 0, "it waits");
        mappings.remove(slot);
        assert_eq!(loaded(&counters.unresolved_datagrams), 1);
    }
}
