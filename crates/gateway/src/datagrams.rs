//! Datagrams of guests: each address and port of a guest has a UDP socket of the host, with which
//! it reaches every destination and gets every answer (endpoint-independent mapping, RFC 4787
//! section 4.1).
//!
//! Cost: a datagram is one system call of the host and one look at a table in each direction. A
//! mapping has a descriptor and about 300 bytes; that it ages costs O(1) for each time that it is
//! looked at, which is once per [timeout](TIMEOUT).

use crate::clients::Clients;
use crate::config::GatewayConfig;
use crate::counters::Counters;
use crate::host_datagrams::{HostDatagrams, MOST_BYTES, MOST_SEGMENTS};
use crate::published::{Publication, shown};
use crate::token::{Generation, Slot, Token};
use bytes::Bytes;
use neap::{Datagram, Events, Poller, Refusal, UdpForwarder};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mapping without datagrams is forgotten after so long; at least two minutes (RFC 4787 section
/// 4.3).
const TIMEOUT: Duration = Duration::from_secs(180);
/// The same of a mapping that has asked resolvers only.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(30);
const RESOLVER_PORT: u16 = 53;

/// Datagrams that are passed on in one direction before others have their turn.
const BATCH: usize = 2 * MOST_SEGMENTS;
/// Memory for datagrams that wait for the gateway, and of those that wait for the device: some
/// visits of the device's queue.
const QUEUE: u32 = 8 << 20;
/// Translated destinations that a mapping remembers, so that answers come from where the guest
/// sent to.
const MOST_TRANSLATED: usize = 16;

/// The datagrams of all guests.
pub(crate) struct Datagrams {
    forwarder: UdpForwarder,
    mappings: Slab<Mapping>,
    /// By address and port of the guest, and whether the destination is of IPv6: a translated one
    /// may be of the other family.
    of_guest: HashMap<(SocketAddr, bool), usize>,
    /// Mappings of published ports, by address and port of the guest.
    published: HashMap<SocketAddr, SmallVec<[usize; 1]>>,
    /// Mappings by the time when they may have to be forgotten, of each kind.
    ages: [VecDeque<(Instant, Slot)>; 2],
    /// Datagrams on their way, and the memory for one.
    batch: Vec<Datagram>,
    buffer: Box<[u8]>,
    generation: Generation,
    counters: Arc<Counters>,
}

struct Mapping {
    generation: Generation,
    guest: SocketAddr,
    is_v6: bool,
    socket: HostDatagrams,
    /// The guest's first datagram, without its data: a pattern for what ICMP errors quote.
    first: Datagram,
    last_used: Instant,
    asks_resolvers_only: bool,
    /// Of a published port. Its mapping does not age.
    published: Option<Port>,
    /// Where it sends to, and what the guest calls it.
    translated: Vec<(SocketAddr, SocketAddr)>,
}

/// A published port.
struct Port {
    publication: Publication,
    clients: Clients,
}

impl Mapping {
    /// What the guest calls a destination.
    fn seen(&self, real: SocketAddr) -> SocketAddr {
        let known = self.translated.iter().find(|(to, _)| *to == real);
        known.map_or(real, |&(_, seen)| seen)
    }

    /// What the guest sees as the sender of a datagram.
    fn seen_from(&mut self, real: SocketAddr, guests: &[IpAddr]) -> SocketAddr {
        let seen = self.seen(real);
        let Some(port) = &mut self.published else { return seen };
        // What the guest has sent to by a name of its own answers by that name.
        if seen != real {
            return seen;
        }
        let seen = shown(real, port.publication.stand_in, guests);
        port.clients.note(real, seen);
        seen
    }

    /// The client of the published port that the guest sees as `seen`.
    fn client(&self, seen: SocketAddr) -> Option<SocketAddr> {
        self.published.as_ref()?.clients.real(seen)
    }

    /// Whether the socket reaches others than those who have sent to it.
    fn reaches(&self, to: SocketAddr) -> bool {
        let Some(port) = &self.published else { return false };
        port.publication.port.ip().is_unspecified() && to.is_ipv6() == self.is_v6
    }

    /// Notes what the guest calls a destination.
    fn translate(&mut self, real: SocketAddr, seen: SocketAddr) {
        if self.translated.contains(&(real, seen)) {
            return;
        }
        if self.translated.len() == MOST_TRANSLATED {
            self.translated.remove(0);
        }
        self.translated.push((real, seen));
    }

    fn timeout(&self) -> Duration {
        if self.asks_resolvers_only { RESOLVER_TIMEOUT } else { TIMEOUT }
    }
}

impl Datagrams {
    pub(crate) fn new(forwarder: UdpForwarder, counters: Arc<Counters>) -> io::Result<Self> {
        forwarder.set_nonblocking(true)?;
        forwarder.set_buffers(Some(QUEUE), Some(QUEUE));
        Ok(Self {
            forwarder,
            mappings: Slab::new(),
            of_guest: HashMap::new(),
            published: HashMap::new(),
            ages: [VecDeque::new(), VecDeque::new()],
            batch: Vec::with_capacity(BATCH),
            buffer: vec![0; MOST_BYTES].into(),
            generation: Generation::default(),
            counters,
        })
    }

    /// Passes on what guests have sent. Whether there may be more.
    pub(crate) fn on_guests(&mut self, poller: &Poller, config: &GatewayConfig) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        let received = self.forwarder.recv_batch(&mut batch, BATCH).unwrap_or(0);
        let mut rest = &batch[..];
        while let Some(first) = rest.first() {
            let (run, others) = rest.split_at(first_run(rest));
            if let Some((key, to)) = self.way_of(first, poller, config) {
                self.pass_on(key, to, run);
            }
            rest = others;
        }
        batch.clear();
        self.batch = batch;
        received == BATCH
    }

    /// The mapping of a guest's datagram, and where it goes; `None` if it does not go on.
    fn way_of(
        &mut self,
        datagram: &Datagram,
        poller: &Poller,
        config: &GatewayConfig,
    ) -> Option<(usize, SocketAddr)> {
        let wanted = datagram.local?;
        // An answer to a client of a published port goes back to it, whatever it is called.
        for &key in self.published.get(&datagram.peer).into_iter().flatten() {
            if let Some(real) = self.mappings[key].client(wanted) {
                return Some((key, real));
            }
        }
        if !config.passes_udp {
            self.counters.count(|counters| &counters.denied_datagrams);
            return None;
        }
        let Some(to) = config.destination(wanted) else {
            self.counters.count(|counters| &counters.denied_datagrams);
            // It may be beyond the limit of ICMP errors.
            let _ = self.forwarder.refuse(datagram, Refusal::Prohibited);
            return None;
        };
        let Ok(key) = self.mapping_of(datagram, to, poller, config) else {
            self.counters.count(|counters| &counters.full_mappings);
            return None;
        };
        let mapping = &mut self.mappings[key];
        mapping.asks_resolvers_only &= to.port() == RESOLVER_PORT;
        if to != wanted {
            mapping.translate(to, wanted);
        }
        Some((key, to))
    }

    /// Sends datagrams of one guest to one destination.
    fn pass_on(&mut self, key: usize, to: SocketAddr, run: &[Datagram]) {
        let mapping = &mut self.mappings[key];
        mapping.last_used = Instant::now();
        let data: SmallVec<[Bytes; 8]> = run.iter().map(|datagram| datagram.data.clone()).collect();
        let sent = mapping.socket.send(&data, to) as u64;
        self.counters.add(|counters| &counters.datagrams_out, sent);
        self.counters.add(|counters| &counters.unsent_datagrams, run.len() as u64 - sent);
    }

    /// The mapping of a guest's address and port, which is made if there is none.
    fn mapping_of(
        &mut self,
        datagram: &Datagram,
        to: SocketAddr,
        poller: &Poller,
        config: &GatewayConfig,
    ) -> io::Result<usize> {
        let (guest, is_v6) = (datagram.peer, to.is_ipv6());
        if let Some(&key) = self.of_guest.get(&(guest, is_v6)) {
            return Ok(key);
        }
        // A published port is the one outside that the guest's port has.
        let mut published = self.published.get(&guest).into_iter().flatten();
        if let Some(&key) = published.find(|&&key| self.mappings[key].reaches(to)) {
            return Ok(key);
        }
        if self.mappings.len() >= config.most_mappings {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let socket = HostDatagrams::bind(config.outbound.from(to))?;
        let (key, generation) = (self.mappings.vacant_key(), self.generation.advance());
        let slot = Slot { key, generation };
        poller.add(&socket, Token::Mapping(slot).to_bits(), Events::IN | Events::ET)?;
        let last_used = Instant::now();
        let (asks_resolvers_only, translated) = (true, Vec::new());
        let first = Datagram { data: Bytes::new(), ..datagram.clone() };
        let mapping = Mapping {
            generation,
            guest,
            is_v6,
            socket,
            first,
            last_used,
            asks_resolvers_only,
            published: None,
            translated,
        };
        self.ages[0].push_back((last_used + mapping.timeout(), slot));
        self.mappings.insert(mapping);
        self.of_guest.insert((guest, is_v6), key);
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
        let (key, generation) = (self.mappings.vacant_key(), self.generation.advance());
        let slot = Slot { key, generation };
        poller.add(&socket, Token::Mapping(slot).to_bits(), Events::IN | Events::ET)?;
        // Nothing is known of the guest's packets; what ICMP says of answers is not passed on.
        let first = Datagram::new(Bytes::new(), guest);
        self.mappings.insert(Mapping {
            generation,
            guest,
            is_v6: port.is_ipv6(),
            socket,
            first,
            last_used: Instant::now(),
            asks_resolvers_only: false,
            published: Some(Port { publication, clients: Clients::default() }),
            translated: Vec::new(),
        });
        self.published.entry(guest).or_default().push(key);
        Ok((port, slot))
    }

    /// Closes a published port.
    pub(crate) fn unpublish(&mut self, slot: Slot) {
        let mapping = self.mappings.remove(slot.key);
        if let Some(keys) = self.published.get_mut(&mapping.guest) {
            keys.retain(|key| *key != slot.key);
            if keys.is_empty() {
                self.published.remove(&mapping.guest);
            }
        }
    }

    /// Takes answers for a mapping. Whether there may be more.
    pub(crate) fn on_host(&mut self, slot: Slot, config: &GatewayConfig) -> bool {
        let Slot { key, generation } = slot;
        let Some(mapping) = self.mappings.get_mut(key) else { return false };
        // The place may have become that of another one.
        if mapping.generation != generation {
            return false;
        }
        let mut has_more = true;
        // Each look may bring an error instead, of a datagram that was sent.
        for _ in 0..BATCH {
            if self.batch.len() >= BATCH {
                break;
            }
            let arrived = match mapping.socket.receive(&mut self.buffer) {
                Ok(arrived) => arrived,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    has_more = false;
                    break;
                }
                Err(_) => continue,
            };
            let from = mapping.seen_from(arrived.from, &config.guest_addresses);
            self.batch.extend(arrived.datagrams().map(|data| {
                let mut datagram = Datagram::new(data, mapping.guest);
                datagram.local = Some(from);
                datagram
            }));
        }
        while let Some(undelivered) = mapping.socket.undelivered(&mut self.buffer) {
            let local = Some(mapping.seen(undelivered.to));
            let quoted = Datagram { data: undelivered.data, local, ..mapping.first.clone() };
            self.counters.count(|counters| &counters.undelivered_datagrams);
            // It may be beyond the limit of ICMP errors.
            let _ = self.forwarder.refuse(&quoted, undelivered.why);
        }
        mapping.last_used = Instant::now();
        let mut rest = &self.batch[..];
        while !rest.is_empty() {
            let sent = self.forwarder.send_batch(rest).unwrap_or(0);
            self.counters.add(|counters| &counters.datagrams_in, sent as u64);
            // What stops a batch is one datagram: it is dropped, and the others go on.
            let dropped = usize::from(sent < rest.len());
            self.counters.add(|counters| &counters.lost_datagrams, dropped as u64);
            rest = &rest[sent + dropped..];
        }
        self.batch.clear();
        has_more
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.ages.iter().filter_map(|age| age.front()).map(|&(due, _)| due).min()
    }

    /// Forgets mappings that were not used for long.
    pub(crate) fn expire(&mut self, now: Instant) {
        for kind in 0..self.ages.len() {
            while let Some(&(due, slot)) = self.ages[kind].front() {
                if due > now {
                    break;
                }
                self.ages[kind].pop_front();
                let Slot { key, generation } = slot;
                let Some(mapping) = self.mappings.get(key) else { continue };
                if mapping.generation != generation {
                    continue;
                }
                let due = mapping.last_used + mapping.timeout();
                if due <= now {
                    self.of_guest.remove(&(mapping.guest, mapping.is_v6));
                    self.mappings.remove(key);
                } else {
                    let kind = usize::from(!mapping.asks_resolvers_only);
                    self.ages[kind].push_back((due, slot));
                }
            }
        }
    }

    /// What brings datagrams of guests.
    pub(crate) fn forwarder(&self) -> &UdpForwarder {
        &self.forwarder
    }
}

/// How many datagrams from the first on the host can send in one call: of one guest, to one
/// destination, of one length; the last may be shorter.
fn first_run(datagrams: &[Datagram]) -> usize {
    let first = &datagrams[0];
    let (size, mut bytes) = (first.data.len(), 0);
    let mut count = 0;
    for datagram in datagrams.iter().take(MOST_SEGMENTS) {
        bytes += datagram.data.len();
        let is_alike = datagram.peer == first.peer && datagram.local == first.local;
        let is_empty_part = count > 0 && datagram.data.is_empty();
        if !is_alike || is_empty_part || datagram.data.len() > size || bytes > MOST_BYTES {
            break;
        }
        count += 1;
        // A super-datagram has no empty parts.
        if datagram.data.len() < size || size == 0 {
            break;
        }
    }
    count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
