//! Echo requests (ping) of guests: each address and identifier of a guest has a ping socket of the
//! host, with which it reaches every destination (RFC 5508 section 3). Only the host's own loopback
//! addresses have another one.
//!
//! Cost: a message is one system call of the host and one look at a table in each direction. A
//! socket has a descriptor and about 250 bytes; there are at most [`MOST`].

use crate::ages::Ages;
use crate::config::{GatewayConfig, Way};
use crate::counters::{Counters, refused_as_new};
use crate::guests::{Account, Guests};
use crate::holdings;
use crate::host_echo::HostEcho;
use crate::host_errors::{self, Manner, Undelivered};
use crate::ip_header;
use crate::outbound::{Outbound, Reach};
use crate::refused::Refused;
use crate::sending::{Sender, Sending, Service};
use crate::token::{Generation, Slot, Token};
use crate::translated::Translated;
use crate::upstream::{EchoReply, FarEcho, Upstream};
use crate::waiting_datagrams::{Held, Most, Queue, WaitingDatagrams};
use bytes::{BufMut, Bytes, BytesMut};
use neap::control::SocketReport;
use neap::time::Rate;
use neap::{IcmpErrorKind, IcmpMessage, IcmpSocket, Poller};
use rustix::io::Errno;
use slab::Slab;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Sockets at the same time; requests of more identifiers are dropped.
const MOST: usize = 1024;
/// A socket without requests is closed after so long (RFC 5508 REQ-2: at least 60 seconds).
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requests that wait for the rate, of all guests.
const MOST_WAITING: Most = Most { number: 1024, bytes: 1 << 20 };
/// Messages that are passed on in one direction before others have their turn.
const BATCH: usize = 64;
/// Memory for the largest message.
const MOST_BYTES: usize = 1 << 16;
/// Where the sequence number of a message begins: behind type, code, checksum and identifier.
const SEQUENCE_AT: usize = 6;
/// Where the data of a message begins.
const DATA_AT: usize = 8;
/// Code of an ICMP error: the administrator forbids it (RFC 1812 section 5.2.7.1, RFC 4443 section
/// 3.1).
const PROHIBITED: u8 = 13;
const PROHIBITED_V6: u8 = 1;
/// Code of an ICMP error: no route.
const NO_ROUTE: u8 = 0;

/// The echo requests of all guests.
pub(crate) struct Echoes {
    socket: IcmpSocket,
    /// Whether the host gives ping sockets of IPv4, and of IPv6.
    is_allowed: [bool; 2],
    pingers: Slab<Pinger>,
    /// No more sockets are opened.
    is_draining: bool,
    of_guest: HashMap<Key, usize>,
    /// Sockets by the time when they may have to be closed.
    ages: Ages,
    buffer: Box<[u8]>,
    generation: Generation,
    counters: Arc<Counters>,
    guests: Guests,
    /// Requests that wait for the rate, if there is one.
    waiting: Option<WaitingDatagrams<Request>>,
}

/// What requests are passed on with.
#[derive(Clone, Copy)]
pub(crate) struct EchoWays<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) config: &'a GatewayConfig,
    pub(crate) upstream: &'a dyn Upstream,
}

/// Address and identifier of a guest, and what its socket reaches.
type Key = (IpAddr, u16, Reach);

struct Pinger {
    generation: Generation,
    key: Key,
    far: Box<dyn FarEcho>,
    last_used: Instant,
    /// Where the last request went.
    to: IpAddr,
    translated: Translated<IpAddr>,
    /// Its place in the schedule and what waits there, once it has sent under a rate.
    turn: Option<(usize, Queue)>,
    account: Account,
}

/// An echo request, and where it goes.
#[derive(Debug)]
struct Request {
    message: IcmpMessage,
    to: IpAddr,
}

impl Held for Request {
    fn data(&self) -> &Bytes {
        &self.message.data
    }
    fn data_mut(&mut self) -> &mut Bytes {
        &mut self.message.data
    }
    fn headers(&self) -> usize {
        ip_header::len(self.to.is_ipv6())
    }
}

/// Bytes of a message, without headers.
fn length(message: &IcmpMessage) -> u64 {
    message.data.len().saturating_sub(DATA_AT) as u64
}

impl Echoes {
    /// Requests that leave by the upstream, if that carries them.
    pub(crate) fn new(
        socket: IcmpSocket,
        upstream: &dyn Upstream,
        counters: Arc<Counters>,
        guests: Guests,
    ) -> Self {
        let outbound = Outbound::default();
        Self {
            socket,
            is_allowed: [false, true].map(|is_v6| {
                let reach = Reach { is_v6, is_loopback: false };
                let opened = open(reach, upstream, &outbound);
                // Who has no descriptor just now may have one later.
                opened.map_or_else(|error| Refused::of(&error) == Refused::Full, |_| true)
            }),
            pingers: Slab::new(),
            is_draining: false,
            of_guest: HashMap::new(),
            ages: Ages::default(),
            buffer: vec![0; MOST_BYTES].into(),
            generation: Generation::default(),
            counters,
            guests,
            waiting: None,
        }
    }

    /// Requests of guests wait for their turns under a rate.
    pub(crate) fn limit(&mut self, rate: Rate) {
        self.waiting = Some(WaitingDatagrams::new(rate, MOST_WAITING));
    }

    /// Whether the host gives ping sockets of IPv4, and of IPv6.
    pub(crate) fn is_allowed(&self) -> [bool; 2] {
        self.is_allowed
    }

    /// Passes on what guests have sent. Whether there may be more.
    pub(crate) fn on_guests(
        &mut self,
        ways: EchoWays<'_>,
        mut sending: Option<&mut Sending>,
    ) -> bool {
        for _ in 0..BATCH {
            match self.socket.recv() {
                Ok(message) => self.pass_on(message, ways, sending.as_deref_mut()),
                Err(_) => return false,
            }
        }
        true
    }

    fn pass_on(&mut self, message: IcmpMessage, ways: EchoWays<'_>, sending: Option<&mut Sending>) {
        let Some((identifier, _)) = message.echo().filter(|_| message.is_echo_request()) else {
            return self.counters.count(|counters| &counters.dropped_icmp);
        };
        if !ways.config.passes_echo {
            return self.counters.count(|counters| &counters.denied_echoes);
        }
        let wanted = message.destination;
        let Way::To(to) = ways.config.way(SocketAddr::new(wanted, 0)) else {
            self.counters.count(|counters| &counters.denied_echoes);
            let code = if wanted.is_ipv4() { PROHIBITED } else { PROHIBITED_V6 };
            return self.refuse(&message, code);
        };
        if !self.is_allowed[usize::from(to.is_ipv6())] {
            return self.counters.count(|counters| &counters.unanswered_echoes);
        }
        let reach = Reach::of(to.ip(), ways.upstream.leaves_by_host());
        let key = (message.source, identifier, reach);
        let at = match self.pinger_of(key, to.ip(), ways) {
            Ok(at) => at,
            Err(error) => return self.refuse_for(&error, &message),
        };
        let pinger = &mut self.pingers[at];
        (pinger.last_used, pinger.to) = (Instant::now(), to.ip());
        pinger.translated.note(to.ip(), wanted);
        let request = Request { message, to: to.ip() };
        match sending {
            Some(sending) => self.hold(at, request, sending),
            None => self.send(at, &request),
        }
    }

    /// Lets a request wait for its turn.
    fn hold(&mut self, at: usize, request: Request, sending: &mut Sending) {
        let Some(waiting) = &mut self.waiting else { return };
        let (now, pinger) = (sending.now(), &mut self.pingers[at]);
        let new = || (sending.insert(Sender::Echo(at)), waiting.new_queue());
        let (id, queue) = pinger.turn.get_or_insert_with(new);
        let mut dropped = waiting.push(queue, request, now);
        sending.wake(*id);
        let queues = self.pingers.iter_mut().filter_map(|(_, one)| one.turn.as_mut());
        dropped += waiting.bound(queues.map(|(_, queue)| queue), now);
        self.counters.add(|counters| &counters.late_echoes, dropped as u64);
    }

    /// Sends what waits of an identifier whose turn it is.
    pub(crate) fn serve(&mut self, at: usize, service: Service, sending: &mut Sending) {
        let now = sending.now();
        let (mut bytes, mut dropped, mut has_more) = (0, 0, true);
        while bytes < service.bytes && has_more {
            let (Some(waiting), Some(pinger)) = (&mut self.waiting, self.pingers.get_mut(at))
            else {
                has_more = false;
                break;
            };
            let Some((_, queue)) = &mut pinger.turn else { break };
            let (next, lost) = waiting.pop(queue, now);
            (dropped, has_more) = (dropped + lost, !queue.is_empty());
            let Some(next) = next else { break };
            bytes += next.on_wire();
            self.send(at, &next);
        }
        self.counters.add(|counters| &counters.late_echoes, dropped as u64);
        sending.on_sent(service, bytes, has_more);
    }

    fn send(&mut self, at: usize, request: &Request) {
        let (pinger, message, to) = (&mut self.pingers[at], &request.message, request.to);
        let manner = Manner::of(message.hop_limit, message.dont_fragment, message.tos);
        let sent = match in_words_of(message, to.is_ipv6()) {
            Some(data) => pinger.far.send(&data, to, manner),
            None => pinger.far.send(&message.data, to, manner),
        };
        match sent {
            Ok(()) => {
                pinger.account.add(length(message), 0);
                self.counters.count(|counters| &counters.echoes_out);
            }
            Err(error) => {
                self.counters.count(|counters| &counters.unsent_echoes);
                if is_unreachable(&error) {
                    self.refuse(message, NO_ROUTE);
                }
                if is_too_long(&error) {
                    self.tell_of_length(at, message);
                }
            }
        }
    }

    /// Tells the sender of a message how long it may be, which the host has just said. That record
    /// is the last one which quotes nothing: others are of the same call made twice, and of
    /// messages that were then cut.
    fn tell_of_length(&mut self, at: usize, message: &IcmpMessage) {
        let mut last = None;
        while let Some(undelivered) = self.pingers[at].far.undelivered(&mut self.buffer) {
            match quoted(&self.pingers[at], &undelivered) {
                Some(earlier) => self.tell(&earlier, &undelivered),
                None => last = Some(undelivered),
            }
        }
        if let Some(undelivered) = last {
            self.tell(message, &undelivered);
        }
    }

    /// Tells a guest of an error about its request.
    fn tell(&self, request: &IcmpMessage, undelivered: &Undelivered) {
        let (packet, seen) = (request.to_packet(), request.destination);
        if host_errors::pass_on(&self.socket, &packet, seen, undelivered) {
            self.counters.count(|counters| &counters.undelivered_echoes);
        }
    }

    /// Counts a request for which there is no socket, and tells its sender if there is no way.
    fn refuse_for(&self, error: &io::Error, message: &IcmpMessage) {
        let (which, is_told): (fn(&Counters) -> &AtomicU64, _) = match Refused::of(error) {
            Refused::NoAddress => (|counters| &counters.no_address, true),
            Refused::Network | Refused::Host => (|counters| &counters.unsent_echoes, true),
            Refused::Full | Refused::NoPort | Refused::Draining => {
                (refused_as_new(self.is_draining, |counters| &counters.full_echoes), false)
            }
            // As where the host allowed no ping sockets from the start.
            Refused::Prohibited | Refused::Reset | Refused::TimedOut => {
                (|counters| &counters.unanswered_echoes, false)
            }
        };
        self.counters.count(which);
        if is_told {
            self.refuse(message, NO_ROUTE);
        }
    }

    /// Tells the sender of a message that it does not go on.
    fn refuse(&self, message: &IcmpMessage, code: u8) {
        let packet = message.to_packet();
        // It may be beyond the limit of ICMP errors.
        let error = IcmpErrorKind::Unreachable { code };
        let _ = self.socket.send_error(message.destination, &packet, error);
    }

    /// The socket of a guest's address and identifier, which is opened for this destination if
    /// there is none.
    fn pinger_of(&mut self, key: Key, to: IpAddr, ways: EchoWays<'_>) -> io::Result<usize> {
        if let Some(&at) = self.of_guest.get(&key) {
            return Ok(at);
        }
        if self.is_draining || self.pingers.len() >= MOST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let far = open(key.2, ways.upstream, &ways.config.outbound)?;
        let slot = Slot { key: self.pingers.vacant_key(), generation: self.generation.advance() };
        far.enter(ways.poller, Token::Echo(slot).to_bits())?;
        let (last_used, translated) = (Instant::now(), Translated::default());
        let generation = slot.generation;
        let (turn, account) = (None, self.guests.mapping(key.0));
        let pinger = Pinger { generation, key, far, last_used, to, translated, turn, account };
        let at = self.pingers.insert(pinger);
        self.of_guest.insert(key, at);
        self.ages.set(last_used + TIMEOUT, slot);
        Ok(at)
    }

    /// Takes what has come for a socket. Whether there may be more.
    pub(crate) fn on_host(&mut self, slot: Slot) -> bool {
        let Slot { key, generation } = slot;
        let Some(pinger) = self.pingers.get(key) else { return false };
        // The place may have become that of another one.
        if pinger.generation != generation {
            return false;
        }
        let mut has_more = true;
        for _ in 0..BATCH {
            match pinger.far.receive(&mut self.buffer) {
                Ok(reply) => {
                    let Some(reply) = told(pinger, &self.buffer[..reply.bytes], reply) else {
                        continue;
                    };
                    let is_sent = self.socket.send(&reply).is_ok();
                    pinger.account.add(0, if is_sent { length(&reply) } else { 0 });
                    self.counters.count(|counters| {
                        if is_sent { &counters.echoes_in } else { &counters.lost_echoes }
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    has_more = false;
                    break;
                }
                // It is of a request, and in the error queue as well.
                Err(_) => {}
            }
        }
        while let Some(undelivered) = pinger.far.undelivered(&mut self.buffer) {
            if let Some(request) = quoted(pinger, &undelivered) {
                self.tell(&request, &undelivered);
            }
        }
        has_more
    }

    /// The sockets, for somebody who looks at this time. It costs a system call for each.
    pub(crate) fn list(&self, now: Instant) -> impl Iterator<Item = SocketReport> {
        self.pingers.iter().map(move |(_, pinger)| {
            let (guest, identifier, _) = pinger.key;
            let netid = if guest.is_ipv4() { "icmp" } else { "icmp6" };
            let (guest, outside) = (SocketAddr::new(guest, identifier), pinger.far.local_addr());
            holdings::mapping(netid, guest, outside, (pinger.last_used, now), vec![pinger.to])
        })
    }

    /// Opens no more sockets.
    pub(crate) fn refuse_new(&mut self) {
        self.is_draining = true;
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.ages.next()
    }

    /// Closes sockets that were not used for long.
    pub(crate) fn expire(&mut self, now: Instant, mut sending: Option<&mut Sending>) {
        while let Some(slot) = self.ages.take(now) {
            let Some(pinger) = self.pingers.get(slot.key) else { continue };
            debug_assert!(pinger.generation == slot.generation, "it has one entry");
            let due = pinger.last_used + TIMEOUT;
            if due <= now {
                self.of_guest.remove(&pinger.key);
                let pinger = self.pingers.remove(slot.key);
                if let (Some((id, queue)), Some(sending)) = (pinger.turn, &mut sending) {
                    sending.remove(id);
                    let dropped = self.waiting.as_mut().map_or(0, |all| all.clear(queue));
                    self.counters.add(|counters| &counters.late_echoes, dropped as u64);
                }
            } else {
                self.ages.set(due, slot);
            }
        }
    }

    /// What brings messages of guests.
    pub(crate) fn socket(&self) -> &IcmpSocket {
        &self.socket
    }
}

/// A socket for an identifier: of the host, or of an upstream that is none of the host.
fn open(
    reach: Reach,
    upstream: &dyn Upstream,
    outbound: &Outbound,
) -> io::Result<Box<dyn FarEcho>> {
    if !upstream.leaves_by_host() {
        return upstream.echo(reach.is_v6);
    }
    Ok(Box::new(HostEcho::open(reach.is_v6, &outbound.reaching(reach))?))
}

fn is_unreachable(error: &io::Error) -> bool {
    // The host may have no address of the family (`disable_ipv6`).
    matches!(Refused::of(error), Refused::Network | Refused::Host | Refused::NoPort)
}

/// Whether the host did not take a message as it may not be cut.
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error())
}

/// Types of echo messages: RFC 792, RFC 4443.
fn kinds(is_v6: bool) -> (u8, u8) {
    if is_v6 { (128, 129) } else { (8, 0) }
}

/// A request in the words of the other family, if the destination is of that.
fn in_words_of(message: &IcmpMessage, to_v6: bool) -> Option<Bytes> {
    if message.destination.is_ipv6() == to_v6 {
        return None;
    }
    Some([&[kinds(to_v6).0][..], &message.data[1..]].concat().into())
}

/// What the guest gets of a reply.
fn told(pinger: &Pinger, data: &[u8], reply: EchoReply) -> Option<IcmpMessage> {
    let (guest, identifier, reach) = pinger.key;
    if data.first() != Some(&kinds(reach.is_v6).1) {
        return None;
    }
    let data = with_identifier(kinds(guest.is_ipv6()).1, identifier, data)?;
    let mut message = IcmpMessage::new(pinger.translated.seen(reply.from), guest, data);
    message.tos = reply.tos;
    Some(message)
}

/// The guest's request that an error is about.
fn quoted(pinger: &Pinger, undelivered: &Undelivered) -> Option<IcmpMessage> {
    let (guest, identifier, _) = pinger.key;
    let data = with_identifier(kinds(guest.is_ipv6()).0, identifier, &undelivered.data)?;
    let seen = pinger.translated.seen(undelivered.to.ip());
    Some(IcmpMessage::new(guest, seen, data))
}

/// An echo message with another type and identifier, without its checksum.
fn with_identifier(kind: u8, identifier: u16, data: &[u8]) -> Option<Bytes> {
    let rest = data.get(SEQUENCE_AT..).filter(|rest| rest.len() >= 2)?;
    let mut message = BytesMut::with_capacity(data.len());
    message.put_slice(&[kind, 0, 0, 0]);
    message.put_u16(identifier);
    message.put_slice(rest);
    Some(message.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_keeps_its_sequence_number_and_its_data() {
        let message = [0, 0, 9, 9, 1, 1, 0, 7, b'd', b'a'];
        let changed = with_identifier(8, 0x0203, &message).expect("a message");
        assert_eq!(changed[..], [8, 0, 0, 0, 2, 3, 0, 7, b'd', b'a']);
        assert_eq!(with_identifier(8, 1, &message[..7]), None);
    }

    #[test]
    fn a_request_is_told_in_the_words_of_the_destinations_family() {
        let [from, to] = ["10.0.0.1", "192.0.2.1"].map(|ip| ip.parse().expect("an address"));
        let asked = IcmpMessage::new(from, to, vec![8, 0, 0, 0, 0, 1, 0, 2]);
        assert_eq!(in_words_of(&asked, false), None);
        assert_eq!(in_words_of(&asked, true).expect("another")[..], [128, 0, 0, 0, 0, 1, 0, 2]);
    }
}
