//! Datagrams of guests: each address and port of a guest has a UDP socket of the host, with which
//! it reaches every destination and gets every answer (endpoint-independent mapping, RFC 4787
//! section 4.1). Only the host's own loopback addresses have another one. Whoever the policy does
//! not deny may send to that socket (endpoint-independent filtering, section 5).
//!
//! Cost: a datagram is one system call of the host and one look at a table in each direction, and
//! one of a stranger a look at the policy. A mapping has a descriptor and about 450 bytes; that it
//! ages costs O(log n) for each time that it is looked at, which is once per [timeout](TIMEOUT).

use crate::ages::Ages;
use crate::clients::{Clients, PortClient};
use crate::config::{GatewayConfig, RESOLVER_PORT, SECURE_RESOLVER_PORT};
use crate::counters::{Counters, Which, refused_as_new};
use crate::crossings::Answer;
use crate::deadlines::Deadlines;
use crate::destination::Destination;
use crate::dns::{Dns, QuestionWays, Target};
use crate::guests::{Account, Guests};
use crate::holdings;
use crate::host_datagrams::{Arrived, HostDatagrams, MOST_SEGMENTS, Sent, Settled};
use crate::host_errors::{self, Manner, Undelivered};
use crate::outbound::{Outbound, Reach};
use crate::peers::Peers;
use crate::published::{Publication, is_of_link, shown};
use crate::receive_room::ReceiveRoom;
use crate::refused::Refused;
use crate::sending::{Sender, Sending, Service};
use crate::token::{Generation, Slot, Token};
use crate::translated::Translated;
use crate::upstream::{FarDatagrams, Upstream};
use crate::waiting_datagrams::{Held, Most, Queue, Waiting, WaitingDatagrams};
use bytes::Bytes;
use neap::control::SocketReport;
use neap::time::Rate;
use neap::{Datagram, IcmpErrorKind, IcmpSocket, Poller, Refusal, UdpForwarder};
use slab::Slab;
use smallvec::SmallVec;
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapping that its guest does not use is forgotten after so long; at least two minutes (RFC 4787
/// section 4.3). What comes from those whom the guest has sent to is use as well, as it may get
/// something for longer than that without a word. What comes from others is none: they would keep
/// it for as long as they like (REQ-6).
const TIMEOUT: Duration = Duration::from_secs(180);
/// The same of a mapping that has asked resolvers only.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Datagrams that are passed on in one direction before others have their turn.
const BATCH: usize = 2 * MOST_SEGMENTS;
/// Memory for datagrams that wait for the gateway, and of those that wait for the device: some
/// visits of the device's queue.
const QUEUE: u32 = 8 << 20;
/// Datagrams that wait for the rate, of all guests.
const MOST_WAITING: Most = Most { number: 10_240, bytes: 8 << 20 };
/// Hop limit of datagrams whose own is not known.
const HOP_LIMIT: u8 = 64;

/// The datagrams of all guests.
pub(crate) struct Datagrams {
    forwarder: UdpForwarder,
    /// What tells guests of errors.
    icmp: IcmpSocket,
    mappings: Slab<Mapping>,
    /// No more mappings are made.
    is_draining: bool,
    /// By address and port of the guest, and what their sockets reach.
    of_guest: HashMap<(SocketAddr, Reach), usize>,
    /// Published ports, by address and port of the guest.
    published: HashMap<SocketAddr, PortsOf>,
    /// Mappings by the time when they may have to be forgotten.
    ages: Ages,
    /// Mappings whose sockets cannot send yet, by the time when they are given up.
    openings: Deadlines,
    /// Datagrams on their way, and the memory for what one call receives.
    batch: Vec<Datagram>,
    room: ReceiveRoom,
    /// What has come to published ports from loopback addresses since it was taken, and to which
    /// address and port of the guest: where it does not go by the stack.
    for_loopback: Vec<(SocketAddr, Arrived)>,
    generation: Generation,
    counters: Arc<Counters>,
    guests: Guests,
    /// Datagrams of guests that wait for the rate, if there is one.
    waiting: Option<WaitingDatagrams<Waiting>>,
    /// The latest way that has failed: whose, and why.
    failure: Option<(SocketAddr, io::Error)>,
}

/// What datagrams of guests are passed on with.
pub(crate) struct Ways<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) config: &'a GatewayConfig,
    pub(crate) upstream: &'a dyn Upstream,
    pub(crate) dns: &'a mut Dns,
}

struct Mapping {
    generation: Generation,
    guest: SocketAddr,
    reach: Reach,
    socket: Box<dyn FarDatagrams>,
    /// The guest's first datagram, without its data: a pattern for what ICMP errors quote. One
    /// without an arrival stands for it until there is one.
    first: Datagram,
    last_used: Instant,
    asks_resolvers_only: bool,
    /// Of a published port. Its mapping does not age.
    published: Option<Port>,
    translated: Translated<SocketAddr>,
    /// Whom the guest has sent to lately.
    peers: Peers,
    /// Its place in the schedule and what waits there, once it has sent under a rate.
    turn: Option<(usize, Queue)>,
    account: Account,
}

/// A published port.
struct Port {
    publication: Publication,
    /// The socket is bound to an interface, and reaches nothing else.
    is_of_interface: bool,
}

/// The published ports of a guest's address and port.
#[derive(Default)]
struct PortsOf {
    mappings: SmallVec<[usize; 1]>,
    clients: Clients,
}

impl Mapping {
    /// What the guest sees as the sender of a datagram. `of_guest` are the ports that this is one
    /// of, and `key` is its own place.
    fn seen_from(
        &self,
        arrived: &Arrived,
        guests: &[IpAddr],
        key: usize,
        of_guest: Option<&mut PortsOf>,
    ) -> SocketAddr {
        let real = arrived.from;
        let seen = self.translated.seen(real);
        let (Some(port), Some(of_guest)) = (&self.published, of_guest) else { return seen };
        // What the guest has sent to by a name of its own answers by that name.
        if seen != real {
            return seen;
        }
        let wanted = shown(real, port.publication.stand_in, guests);
        let client = PortClient { mapping: key, address: real, asked: arrived.to };
        of_guest.clients.note(client, wanted)
    }

    /// What the guest calls somebody whom a datagram of its own goes to.
    fn called(&self, real: SocketAddr, key: usize, of_guest: Option<&PortsOf>) -> SocketAddr {
        let seen = self.translated.seen(real);
        let of_guest = of_guest.filter(|_| seen == real);
        of_guest.and_then(|ports| ports.clients.seen((key, real))).unwrap_or(seen)
    }

    /// Notes what the packets of the guest are like, unless that is known.
    fn note_pattern(&mut self, datagram: &Datagram) {
        if self.first.arrival.is_none() {
            self.first = Datagram { data: Bytes::new(), ..datagram.clone() };
        }
    }

    /// Whether a datagram goes to the guest past the stack, by sockets of its namespace.
    fn is_for_loopback(&self, from: SocketAddr, config: &GatewayConfig) -> bool {
        let goes_past = self.published.is_some() && config.guest_sockets.is_some();
        goes_past && from.ip().to_canonical().is_loopback()
    }

    /// Whether a datagram is passed on from somebody whom the guest has not sent to lately.
    fn takes(&self, from: SocketAddr, config: &GatewayConfig) -> bool {
        // Published ports are for everybody. What the guest calls by another address it was allowed
        // to reach.
        self.published.is_some()
            || self.translated.seen(from) != from
            || config.policy.allows(from.ip())
    }

    /// Whether the socket reaches others than those who have sent to it.
    fn reaches(&self, to: SocketAddr) -> bool {
        let Some(port) = self.published.as_ref().filter(|port| !port.is_of_interface) else {
            return false;
        };
        port.publication.port.ip().is_unspecified() && to.is_ipv6() == self.reach.is_v6
    }

    fn timeout(&self) -> Duration {
        if self.asks_resolvers_only { RESOLVER_TIMEOUT } else { TIMEOUT }
    }
}

impl Datagrams {
    pub(crate) fn new(
        forwarder: UdpForwarder,
        icmp: IcmpSocket,
        counters: Arc<Counters>,
        guests: Guests,
    ) -> io::Result<Self> {
        forwarder.set_nonblocking(true)?;
        forwarder.set_buffers(Some(QUEUE), Some(QUEUE));
        Ok(Self {
            forwarder,
            icmp,
            mappings: Slab::new(),
            is_draining: false,
            of_guest: HashMap::new(),
            published: HashMap::new(),
            ages: Ages::default(),
            openings: Deadlines::default(),
            batch: Vec::with_capacity(BATCH),
            room: ReceiveRoom::new(),
            for_loopback: Vec::new(),
            generation: Generation::default(),
            counters,
            guests,
            waiting: None,
            failure: None,
        })
    }

    /// The latest way of a guest's datagrams that has failed since this was asked, and why.
    pub(crate) fn failure(&mut self) -> Option<(SocketAddr, io::Error)> {
        self.failure.take()
    }

    /// Makes no more mappings.
    pub(crate) fn refuse_new(&mut self) {
        self.is_draining = true;
    }

    /// Datagrams of guests wait for their turns under a rate.
    pub(crate) fn limit(&mut self, rate: Rate) {
        self.waiting = Some(WaitingDatagrams::new(rate, MOST_WAITING));
    }

    /// Passes on what guests have sent. Whether there may be more.
    pub(crate) fn on_guests(
        &mut self,
        ways: &mut Ways<'_>,
        mut sending: Option<&mut Sending>,
    ) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.forwarder.recv_batch(&mut batch, BATCH).unwrap_or(0);
        let mut rest = &batch[..];
        while let Some(first) = rest.first() {
            let (run, others) = rest.split_at(first_run(rest));
            if let Some((key, to)) = self.way_of(first, run, ways) {
                let mapping = &mut self.mappings[key];
                mapping.last_used = Instant::now();
                mapping.peers.note(to.address.ip());
                mapping.note_pattern(first);
                match &mut sending {
                    Some(sending) => self.hold(key, &to, run, sending),
                    None => self.pass_on(key, &to, run),
                }
            }
            rest = others;
        }
        batch.clear();
        self.batch = batch;
        received == BATCH
    }

    /// The mapping of the first of a guest's datagrams, and where they go; `None` if they do not go
    /// on.
    fn way_of(
        &mut self,
        datagram: &Datagram,
        run: &[Datagram],
        ways: &mut Ways<'_>,
    ) -> Option<(usize, Destination)> {
        let wanted = datagram.local?;
        // An answer to a client of a published port goes back to it, whatever it is called.
        let guests = &ways.config.guest_addresses;
        if let Some(client) = self.answered(datagram.peer, wanted, guests) {
            let to = Destination { from: client.asked, ..client.address.into() };
            return Some((client.mapping, to));
        }
        if !ways.config.passes_udp {
            self.counters.add(|counters| &counters.denied_datagrams, run.len() as u64);
            return None;
        }
        let to = match ways.dns.target(ways.config, wanted) {
            Target::To(to) => to,
            Target::Resolver if wanted.port() != SECURE_RESOLVER_PORT => {
                let (poller, upstream) = (ways.poller, ways.upstream);
                let to_resolver = QuestionWays { poller, upstream, guests: &self.forwarder };
                run.iter().for_each(|question| ways.dns.ask(question, to_resolver));
                return None;
            }
            Target::Resolver | Target::Nobody => {
                self.refuse(datagram, run, Refusal::Port, |counters| &counters.unsent_datagrams);
                return None;
            }
            Target::Denied => {
                let why = Refusal::Prohibited;
                self.refuse(datagram, run, why, |counters| &counters.denied_datagrams);
                return None;
            }
        };
        let key = match self.mapping_of(datagram, &to, ways) {
            Ok(key) => key,
            Err(error) => {
                self.refuse_for(&error, datagram, run);
                return None;
            }
        };
        let mapping = &mut self.mappings[key];
        mapping.asks_resolvers_only &= to.address.port() == RESOLVER_PORT;
        mapping.translated.note(to.address, wanted);
        Some((key, to))
    }

    /// The client of a published port that a guest answers. To a link-local stand-in the guest
    /// answers from its own link-local address (RFC 6724 section 5, rule 2), unless its server
    /// names the address that was asked. One of `guests` is then the one that was asked.
    fn answered(
        &self,
        guest: SocketAddr,
        seen: SocketAddr,
        guests: &[IpAddr],
    ) -> Option<PortClient> {
        let of = |guest: SocketAddr| self.published.get(&guest)?.clients.real(seen);
        of(guest).or_else(|| {
            let mut asked =
                guests.iter().filter(|_| is_of_link(guest.ip()) && is_of_link(seen.ip()));
            asked.find_map(|&address| of(SocketAddr::new(address, guest.port())))
        })
    }

    /// Datagrams are not passed on, as they can have no mapping.
    fn refuse_for(&self, error: &io::Error, first: &Datagram, run: &[Datagram]) {
        if error.kind() == io::ErrorKind::Unsupported {
            let why = Refusal::Prohibited;
            return self.refuse(first, run, why, |counters| &counters.uncarried_datagrams);
        }
        let why = match Refused::of(error) {
            // It may have room again soon.
            Refused::Full | Refused::NoPort | Refused::Draining => {
                let which = refused_as_new(self.is_draining, |counters| &counters.full_mappings);
                self.counters.add(which, run.len() as u64);
                return;
            }
            Refused::NoAddress => {
                let which: Which = |counters| &counters.no_address;
                return self.refuse(first, run, Refusal::Network, which);
            }
            Refused::Network => Refusal::Network,
            Refused::Host | Refused::Reset | Refused::TimedOut => Refusal::Host,
            Refused::Prohibited => Refusal::Prohibited,
        };
        self.refuse(first, run, why, |counters| &counters.unsent_datagrams);
    }

    /// Tells a guest why its datagrams are not passed on.
    fn refuse(&self, first: &Datagram, run: &[Datagram], why: Refusal, reason: Which) {
        self.counters.add(reason, run.len() as u64);
        // It may be beyond the limit of ICMP errors.
        let _ = self.forwarder.refuse(first, why);
    }

    /// Sends datagrams of one guest to one destination.
    fn pass_on(&mut self, key: usize, to: &Destination, run: &[Datagram]) {
        let mapping = &mut self.mappings[key];
        let data: SmallVec<[Bytes; 8]> = run.iter().map(|datagram| datagram.data.clone()).collect();
        let sent = mapping.socket.send(&data, to, manner(&run[0]));
        let Sent { count, held, why, is_too_long } = sent;
        self.counters.add(|counters| &counters.datagrams_out, count as u64);
        let bytes = length(&run[..count]);
        mapping.account.add(bytes, 0);
        self.counters.add(|counters| &counters.datagram_bytes_out, bytes);
        let unsent = run.len() - count - held;
        self.counters.add(|counters| &counters.unsent_datagrams, unsent as u64);
        if let Some(why) = why {
            // It may be beyond the limit of ICMP errors.
            let _ = self.forwarder.refuse(&run[0], why);
        }
        if is_too_long {
            self.tell_of_errors(key, Some(to.address.port()));
        }
    }

    /// Lets datagrams of one guest wait for their turn.
    fn hold(&mut self, key: usize, to: &Destination, run: &[Datagram], sending: &mut Sending) {
        let Some(waiting) = &mut self.waiting else { return };
        let (now, mapping) = (sending.now(), &mut self.mappings[key]);
        let new = || (sending.insert(Sender::Mapping(key)), waiting.new_queue());
        let (id, queue) = mapping.turn.get_or_insert_with(new);
        let push = |datagram: &Datagram| {
            let held = Waiting { datagram: datagram.clone(), to: to.clone() };
            waiting.push(queue, held, now)
        };
        let mut dropped: usize = run.iter().map(push).sum();
        sending.wake(*id);
        let queues = self.mappings.iter_mut().filter_map(|(_, mapping)| mapping.turn.as_mut());
        dropped += waiting.bound(queues.map(|(_, queue)| queue), now);
        self.counters.add(|counters| &counters.late_datagrams, dropped as u64);
    }

    /// Sends what waits of a mapping whose turn it is.
    pub(crate) fn serve(&mut self, key: usize, service: Service, sending: &mut Sending) {
        let now = sending.now();
        let mut targets = SmallVec::<[Destination; 4]>::new();
        let mut batch = std::mem::take(&mut self.batch);
        let (mut bytes, mut dropped, mut has_more) = (0, 0, false);
        if let Some(waiting) = &mut self.waiting
            && let Some(Mapping { turn: Some((_, queue)), .. }) = self.mappings.get_mut(key)
        {
            while bytes < service.bytes && batch.len() < BATCH {
                let (next, lost) = waiting.pop(queue, now);
                dropped += lost;
                let Some(next) = next else { break };
                bytes += next.on_wire();
                batch.push(next.datagram);
                targets.push(next.to);
            }
            has_more = !queue.is_empty();
        }
        let mut start = 0;
        while start < batch.len() {
            let end = start + first_run(&batch[start..]);
            self.pass_on(key, &targets[start], &batch[start..end]);
            start = end;
        }
        batch.clear();
        self.batch = batch;
        self.counters.add(|counters| &counters.late_datagrams, dropped as u64);
        sending.on_sent(service, bytes, has_more);
    }

    /// The mapping of a guest's address and port, which is made if there is none.
    fn mapping_of(
        &mut self,
        datagram: &Datagram,
        to: &Destination,
        ways: &Ways<'_>,
    ) -> io::Result<usize> {
        let reach = Reach::of(to.address.ip(), ways.upstream.leaves_by_host());
        let guest = datagram.peer;
        if let Some(&key) = self.of_guest.get(&(guest, reach)) {
            return Ok(key);
        }
        // A published port is the one outside that the guest's port has. It is where its clients
        // find it: what is to leave by an address, interface or mark has a socket of its own.
        let published = self.published.get(&guest);
        let mut published = published.into_iter().flat_map(|ports| &ports.mappings);
        if ways.upstream.leaves_by_host()
            && ways.config.outbound == Outbound::default()
            && let Some(&key) = published.find(|&&key| self.mappings[key].reaches(to.address))
        {
            return Ok(key);
        }
        if self.is_draining || self.mappings.len() >= ways.config.most_mappings {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let socket = ways.upstream.datagrams(to)?;
        let (key, generation) = (self.mappings.vacant_key(), self.generation.advance());
        let slot = Slot { key, generation };
        socket.enter(ways.poller, Token::Mapping(slot).to_bits())?;
        if let Some(due) = socket.opens_until() {
            self.openings.set(due, slot);
        }
        let last_used = Instant::now();
        let (asks_resolvers_only, translated) = (true, Translated::default());
        let first = Datagram { data: Bytes::new(), ..datagram.clone() };
        let mapping = Mapping {
            generation,
            guest,
            reach,
            socket,
            first,
            last_used,
            asks_resolvers_only,
            published: None,
            translated,
            peers: Peers::default(),
            turn: None,
            account: self.guests.mapping(guest.ip()),
        };
        self.ages.set(last_used + mapping.timeout(), slot);
        self.mappings.insert(mapping);
        self.of_guest.insert((guest, reach), key);
        self.counters.count(|counters| &counters.mappings);
        Ok(key)
    }

    /// Makes a UDP port of the host that of a guest, see
    /// [`Gateway::publish`](crate::Gateway::publish). Returns the address and port of the host.
    pub(crate) fn publish(
        &mut self,
        poller: &Poller,
        socket: HostDatagrams,
        publication: Publication,
    ) -> io::Result<(SocketAddr, Slot)> {
        let guest = publication.guest;
        let port = socket.local_addr()?;
        let is_of_interface = SockRef::from(&socket).device()?.is_some();
        let (key, generation) = (self.mappings.vacant_key(), self.generation.advance());
        let slot = Slot { key, generation };
        let socket: Box<dyn FarDatagrams> = Box::new(socket);
        socket.enter(poller, Token::Mapping(slot).to_bits())?;
        // Nothing is known of the guest's packets before it answers.
        let first = Datagram::new(Bytes::new(), guest);
        self.mappings.insert(Mapping {
            generation,
            guest,
            reach: Reach { is_v6: port.is_ipv6(), is_loopback: false },
            socket,
            first,
            last_used: Instant::now(),
            asks_resolvers_only: false,
            published: Some(Port { publication, is_of_interface }),
            translated: Translated::default(),
            peers: Peers::default(),
            turn: None,
            account: self.guests.mapping(guest.ip()),
        });
        self.published.entry(guest).or_default().mappings.push(key);
        Ok((port, slot))
    }

    /// A mapping is over: what waits of it is dropped.
    fn leave_schedule(&mut self, turn: Option<(usize, Queue)>, sending: Option<&mut Sending>) {
        let (Some((id, queue)), Some(sending)) = (turn, sending) else { return };
        sending.remove(id);
        let dropped = self.waiting.as_mut().map_or(0, |all| all.clear(queue));
        self.counters.add(|counters| &counters.late_datagrams, dropped as u64);
    }

    /// Closes a published port.
    pub(crate) fn unpublish(&mut self, slot: Slot, sending: Option<&mut Sending>) {
        let mapping = self.mappings.remove(slot.key);
        self.leave_schedule(mapping.turn, sending);
        if let Some(ports) = self.published.get_mut(&mapping.guest) {
            ports.mappings.retain(|key| *key != slot.key);
            ports.clients.forget(slot.key);
            if ports.mappings.is_empty() {
                self.published.remove(&mapping.guest);
            }
        }
    }

    /// Takes answers for a mapping. Whether there may be more.
    pub(crate) fn on_host(
        &mut self,
        slot: Slot,
        config: &GatewayConfig,
        sending: Option<&mut Sending>,
    ) -> bool {
        let Slot { key, generation } = slot;
        let Some(mapping) = self.mappings.get_mut(key) else { return false };
        // The place may have become that of another one.
        if mapping.generation != generation {
            return false;
        }
        let is_published = mapping.published.is_some();
        let ports = if is_published { self.published.get_mut(&mapping.guest) } else { None };
        let (mut ports, mut has_more, mut is_used) = (ports, true, false);
        // Each look may bring an error instead, of a datagram that was sent.
        for _ in 0..BATCH {
            if self.batch.len() >= BATCH {
                break;
            }
            let arrived = match mapping.socket.receive(&mut self.room) {
                Ok(arrived) => arrived,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    has_more = false;
                    break;
                }
                Err(error) => {
                    if error.kind() == io::ErrorKind::InvalidData {
                        self.counters.count(|counters| &counters.bad_datagrams);
                    }
                    continue;
                }
            };
            self.counters.add(|counters| &counters.overrun_datagrams, arrived.overrun.into());
            if mapping.is_for_loopback(arrived.from, config) {
                self.for_loopback.push((mapping.guest, arrived));
                continue;
            }
            let is_peer = mapping.peers.has(arrived.from.ip());
            is_used |= is_peer;
            if !is_peer && !mapping.takes(arrived.from, config) {
                let denied = arrived.datagrams().count();
                self.counters.add(|counters| &counters.denied_datagrams, denied as u64);
                continue;
            }
            let guests = &config.guest_addresses;
            let from = mapping.seen_from(&arrived, guests, key, ports.as_deref_mut());
            self.batch.extend(arrived.datagrams().map(|data| {
                let mut datagram = Datagram::new(data, mapping.guest);
                (datagram.local, datagram.tos) = (Some(from), Some(arrived.tos));
                datagram
            }));
        }
        if is_used {
            mapping.last_used = Instant::now();
        }
        self.settle(key);
        self.tell_of_errors(key, None);
        self.deliver(key);
        self.openings.drop_first(|slot| !is_opening(&self.mappings, slot));
        let mapping = &mut self.mappings[key];
        if mapping.socket.is_over() {
            let guest = mapping.guest;
            self.failure =
                mapping.socket.failure().map(|error| (guest, error)).or(self.failure.take());
            self.remove(key, sending);
            return false;
        }
        has_more
    }

    /// What has come to published ports from loopback addresses since the last call, and for which
    /// address and port of the guest.
    pub(crate) fn take_for_loopback(&mut self) -> Vec<(SocketAddr, Arrived)> {
        std::mem::take(&mut self.for_loopback)
    }

    /// Sends an answer by a published port. Returns how many of its datagrams have left.
    pub(crate) fn answer(&mut self, answer: &Answer) -> usize {
        let Slot { key, generation } = answer.port;
        let mapping = self.mappings.get_mut(key);
        let Some(mapping) = mapping.filter(|mapping| mapping.generation == generation) else {
            return 0;
        };
        let to = Destination { from: answer.from, ..answer.to.into() };
        let manner = Manner { tos: answer.tos, ..Manner::PLAIN };
        mapping.socket.send(&answer.data, &to, manner).count
    }

    /// Passes to its guest what has come for a mapping.
    fn deliver(&mut self, key: usize) {
        let mut rest = &self.batch[..];
        while !rest.is_empty() {
            let sent = self.forwarder.send_batch(rest).unwrap_or(0);
            let bytes = length(&rest[..sent]);
            self.mappings[key].account.add(0, bytes);
            self.counters.add(|counters| &counters.datagram_bytes_in, bytes);
            self.counters.add(|counters| &counters.datagrams_in, sent as u64);
            // What stops a batch is one datagram: it is dropped, and the others go on.
            let dropped = usize::from(sent < rest.len());
            self.counters.add(|counters| &counters.lost_datagrams, dropped as u64);
            rest = &rest[sent + dropped..];
        }
        self.batch.clear();
    }

    /// Counts what became of datagrams that had to wait.
    fn settle(&mut self, key: usize) {
        let mapping = &mut self.mappings[key];
        let Settled { count, bytes, unsent } = mapping.socket.settled();
        mapping.account.add(bytes, 0);
        self.counters.add(|counters| &counters.datagrams_out, count as u64);
        self.counters.add(|counters| &counters.datagram_bytes_out, bytes);
        self.counters.add(|counters| &counters.unsent_datagrams, unsent as u64);
    }

    /// Forgets a mapping that is not that of a published port.
    fn remove(&mut self, key: usize, sending: Option<&mut Sending>) {
        // What waits in it does not leave any more.
        self.mappings[key].socket.give_up();
        self.settle(key);
        let mapping = self.mappings.remove(key);
        self.of_guest.remove(&(mapping.guest, mapping.reach));
        self.leave_schedule(mapping.turn, sending);
        let Self { ages, openings, mappings, of_guest, .. } = self;
        openings.drop_first(|slot| !is_opening(mappings, slot));
        ages.drop_gone(of_guest.len(), |Slot { key, generation }| {
            mappings.get(key).is_some_and(|mapping| mapping.generation == generation)
        });
    }

    /// Tells a guest what became of its datagrams. `refused` is the port of one that the host has
    /// just refused for its length: it is the last that the host itself calls too long, and IPv4
    /// does not name its port. The others are of the same call made twice, and of datagrams that
    /// were then cut.
    fn tell_of_errors(&mut self, key: usize, refused: Option<u16>) {
        let mut last = None;
        while let Some(undelivered) = self.mappings[key].socket.undelivered(self.room.buffer()) {
            let is_too_long = matches!(undelivered.kind, IcmpErrorKind::PacketTooBig { .. });
            if is_too_long && undelivered.offender.is_none() {
                last = Some(undelivered);
            } else {
                self.tell_of_error(key, &undelivered);
            }
        }
        if let (Some(mut undelivered), Some(port)) = (last, refused) {
            if undelivered.to.port() == 0 {
                undelivered.to.set_port(port);
            }
            self.tell_of_error(key, &undelivered);
        }
    }

    fn tell_of_error(&self, key: usize, undelivered: &Undelivered) {
        let mapping = &self.mappings[key];
        let ports = self.published.get(&mapping.guest);
        let seen = mapping.called(undelivered.to, key, ports);
        if tell(&self.icmp, mapping, seen, undelivered) {
            self.counters.count(|counters| &counters.undelivered_datagrams);
        }
    }

    /// Whether datagrams of guests wait for the rate, or for a mapping that cannot send yet.
    pub(crate) fn wait(&self) -> bool {
        let wait_for_rate = self.waiting.as_ref().is_some_and(|waiting| !waiting.is_empty());
        wait_for_rate || self.openings.next().is_some()
    }

    /// The run ends: what waits is dropped.
    pub(crate) fn give_up(&mut self, mut sending: Option<&mut Sending>) {
        let keys: Vec<usize> = self.mappings.iter().map(|(key, _)| key).collect();
        for key in keys {
            let mapping = &mut self.mappings[key];
            mapping.socket.give_up();
            let turn = mapping.turn.take();
            self.settle(key);
            self.leave_schedule(turn, sending.as_deref_mut());
        }
    }

    /// Whether no guest has a mapping.
    pub(crate) fn is_idle(&self) -> bool {
        self.of_guest.is_empty()
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.ages.next().into_iter().chain(self.openings.next()).min()
    }

    /// How many mappings there are.
    pub(crate) fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// The mappings, for somebody who looks at this time. It costs a system call for each.
    pub(crate) fn list(&self, now: Instant) -> impl Iterator<Item = SocketReport> {
        self.mappings.iter().map(move |(_, mapping)| {
            let Mapping { guest, socket, last_used, peers, published, .. } = mapping;
            let (outside, peers) = (socket.local_addr(), peers.iter().collect());
            let mut report = holdings::mapping("udp", *guest, outside, (*last_used, now), peers);
            if let Some(own) = &mut report.mapping {
                own.published = published.is_some();
            }
            report
        })
    }

    /// Forgets mappings that were not used for long, and gives up those that cannot send.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        config: &GatewayConfig,
        mut sending: Option<&mut Sending>,
    ) {
        while let Some(slot) = self.openings.take(now) {
            if is_opening(&self.mappings, slot) {
                self.mappings[slot.key].socket.give_up();
                self.on_host(slot, config, sending.as_deref_mut());
            }
        }
        while let Some(slot) = self.ages.take(now) {
            let Slot { key, generation } = slot;
            let Some(mapping) = self.mappings.get(key) else { continue };
            if mapping.generation != generation {
                continue;
            }
            let due = mapping.last_used + mapping.timeout();
            if due <= now {
                self.remove(key, sending.as_deref_mut());
            } else {
                self.ages.set(due, slot);
            }
        }
    }

    /// What brings datagrams of guests.
    pub(crate) fn forwarder(&self) -> &UdpForwarder {
        &self.forwarder
    }
}

/// Whether a mapping is there, and cannot send yet.
fn is_opening(mappings: &Slab<Mapping>, slot: Slot) -> bool {
    mappings.get(slot.key).is_some_and(|mapping| {
        mapping.generation == slot.generation && mapping.socket.opens_until().is_some()
    })
}

/// How a datagram leaves.
fn manner(datagram: &Datagram) -> Manner {
    let arrival = datagram.arrival;
    let hop_limit = arrival.map_or(HOP_LIMIT, |arrival| arrival.hop_limit);
    let tos = arrival.map_or(0, |arrival| arrival.tos);
    Manner::of(hop_limit, arrival.is_some_and(|arrival| arrival.dont_fragment), tos)
}

/// Tells a guest of an error about a datagram of its own to `seen`. Whether it was told.
fn tell(icmp: &IcmpSocket, mapping: &Mapping, seen: SocketAddr, undelivered: &Undelivered) -> bool {
    let data = undelivered.data.clone();
    let quoted = Datagram { data, local: Some(seen), ..mapping.first.clone() };
    let packet = quoted.to_packet();
    packet.is_some_and(|packet| host_errors::pass_on(icmp, &packet, seen.ip(), undelivered))
}

/// Bytes of datagrams, without headers.
fn length(datagrams: &[Datagram]) -> u64 {
    datagrams.iter().map(|datagram| datagram.data.len() as u64).sum()
}

/// How many datagrams from the first on the host can send in one call: of one guest, to one
/// destination, of one manner and length; the last may be shorter.
fn first_run(datagrams: &[Datagram]) -> usize {
    let first = &datagrams[0];
    let is_alike = |datagram: &&Datagram| {
        datagram.peer == first.peer
            && datagram.local == first.local
            && manner(datagram) == manner(first)
    };
    let alike = datagrams.iter().take_while(is_alike);
    crate::host_datagrams::first_run(alike.map(|datagram| datagram.data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::host_datagrams::MOST_BYTES;
    use crate::upstream::Direct;
    use neap::{IcmpOptions, Stack, UdpForwarderOptions};
    use std::os::unix::net::UnixDatagram;

    fn run(lengths: &[usize]) -> usize {
        let peer = "10.0.2.100:1000".parse().expect("an address");
        let datagram = |&length: &usize| Datagram::new(vec![0; length], peer);
        first_run(&lengths.iter().map(datagram).collect::<Vec<_>>())
    }

    #[test]
    fn a_run_ends_behind_a_shorter_datagram_and_before_a_longer_one() {
        assert_eq!(run(&[100, 100, 100]), 3);
        assert_eq!(run(&[100, 100, 50, 50]), 3);
        assert_eq!(run(&[100, 200]), 1);
        assert_eq!(run(&[0, 0]), 1);
        assert_eq!(run(&[100, 0, 100]), 1);
        assert_eq!(run(&[1400; 100]), MOST_BYTES / 1400);
        assert_eq!(run(&[10; 100]), MOST_SEGMENTS);
    }

    /// The datagrams of guests at the other end of a cable.
    fn cabled() -> (Datagrams, UnixDatagram, Stack) {
        let (own, cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
        let stack = stack.expect("a stack");
        let forwarder = UdpForwarder::new(&stack, UdpForwarderOptions::default()).expect("one");
        let icmp = IcmpSocket::open(&stack, IcmpOptions::default()).expect("a socket");
        let datagrams = Datagrams::new(forwarder, icmp, Arc::default(), Guests::default());
        (datagrams.expect("a table"), cable, stack)
    }

    #[test]
    fn only_those_whom_the_guest_has_sent_to_keep_a_mapping() {
        let (mut datagrams, cable, _stack) = cabled();
        let mut config = GatewayConfig::default();
        config.policy.deny("127.0.0.3/32".parse().expect("a prefix"));
        let poller = Poller::new().expect("descriptors");
        let mut dns = Dns::new(&config, Arc::default());
        let ways = Ways { poller: &poller, config: &config, upstream: &Direct, dns: &mut dns };
        let server = |last| {
            let at = SocketAddr::from(([127, 0, 0, last], 0));
            std::net::UdpSocket::bind(at).expect("a socket")
        };
        let [peer, stranger, denied] = [1, 2, 3].map(server);
        let to = Destination::from(peer.local_addr().expect("an address"));
        let first = Datagram::new(&b"hello"[..], "10.0.2.100:1000".parse().expect("an address"));
        let key = datagrams.mapping_of(&first, &to, &ways).expect("a socket");
        datagrams.mappings[key].peers.note(to.address.ip());
        datagrams.pass_on(key, &to, std::slice::from_ref(&first));
        let (_, outside) = peer.recv_from(&mut [0; 10]).expect("it comes");
        let Mapping { generation, last_used: start, .. } = datagrams.mappings[key];
        let slot = Slot { key, generation };
        // The guest gets nothing from a loopback address.
        let call = |datagrams: &mut Datagrams, one: &std::net::UdpSocket, last| {
            let real = one.local_addr().expect("an address");
            let seen = SocketAddr::from(([192, 0, 2, last], real.port()));
            datagrams.mappings[key].translated.note(real, seen);
        };
        call(&mut datagrams, &peer, 1);
        call(&mut datagrams, &stranger, 2);
        let comes_of = |datagrams: &mut Datagrams, from: &std::net::UdpSocket| {
            from.send_to(b"you", outside).expect("sent");
            datagrams.on_host(slot, &config, None);
            let figures = datagrams.counters.figures();
            let is_used = datagrams.mappings[key].last_used > start;
            (figures.datagrams_in, figures.denied_datagrams, is_used)
        };
        assert_eq!(comes_of(&mut datagrams, &denied), (0, 1, false));
        assert_eq!(comes_of(&mut datagrams, &stranger), (1, 1, false));
        assert_eq!(comes_of(&mut datagrams, &peer), (2, 1, true));
        // What the guest was allowed to send to answers, whatever the policy says of it.
        call(&mut datagrams, &denied, 3);
        assert_eq!(comes_of(&mut datagrams, &denied), (3, 1, true));
        cable.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        for last in [2, 1, 3] {
            let mut packet = [0; 100];
            cable.recv(&mut packet).expect("it comes");
            assert_eq!(packet[12..16], [192, 0, 2, last]);
        }
    }

    #[test]
    fn mappings_that_end_at_once_leave_nothing() {
        let (mut datagrams, _cable, _stack) = cabled();
        let (poller, config) = (Poller::new().expect("descriptors"), GatewayConfig::default());
        let mut dns = Dns::new(&config, Arc::default());
        let ways = Ways { poller: &poller, config: &config, upstream: &Direct, dns: &mut dns };
        let first = Datagram::new(Bytes::new(), "10.0.2.100:1000".parse().expect("an address"));
        let to = Destination::from("127.0.0.1:9".parse::<SocketAddr>().expect("an address"));
        for _ in 0..1000 {
            let key = datagrams.mapping_of(&first, &to, &ways).expect("a socket");
            datagrams.remove(key, None);
        }
        assert!(datagrams.ages.len() <= 100, "{}", datagrams.ages.len());
    }
}
