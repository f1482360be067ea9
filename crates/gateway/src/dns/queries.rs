//! Questions of guests on their way to resolvers.
//!
//! Each question has a socket and an ID of its own, which are as hard to guess as ports and random
//! numbers are (RFC 5452). A resolver that does not answer in time, or cannot, is followed by the
//! next one. An answer that is cut goes to the guest, which then asks over TCP.
//!
//! Cost: a socket and the question's bytes for each, at most [`MOST_QUERIES`]; O(1) per event.

use super::message;
use super::sockets::{Outcome, QuestionSocket};
use crate::counters::Counters;
use crate::deadlines::Deadlines;
use crate::host_datagrams::RECEIVE_ROOM;
use crate::outbound::Outbound;
use crate::refused::Refused;
use crate::relay::End;
use crate::token::{Generation, Slot, Token};
use crate::upstream::{Far, Upstream};
use bytes::{BufMut, Bytes, BytesMut};
use neap::{Datagram, Events, Poller, UdpForwarder};
use rustix::rand::{GetRandomFlags, getrandom};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Questions at the same time.
const MOST_QUERIES: usize = 1024;
/// Longest question.
const MOST_QUESTION: usize = 4096;

/// A resolver has so long to answer over UDP, until the next one is asked.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Each resolver is asked so often.
const ROUNDS: usize = 2;
/// The same over TCP, where it is asked once.
const TIMEOUT_OF_STREAM: Duration = Duration::from_secs(10);

const CHANGES: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// Resolvers that a question goes to, in turn.
pub(crate) type ServerList = SmallVec<[SocketAddr; 3]>;

/// Questions that are not answered yet.
pub(super) struct Queries {
    table: Slab<Query>,
    /// By the guest's address, where it sent the question, and its ID: a question that is repeated
    /// is the same one.
    of_guest: HashMap<(SocketAddr, SocketAddr, u16), usize>,
    /// When to go on: of those over UDP, and of those over TCP.
    due: [Deadlines; 2],
    generation: Generation,
    buffer: Box<[u8]>,
    outbound: Outbound,
    counters: Arc<Counters>,
}

struct Query {
    generation: Generation,
    guest: SocketAddr,
    /// What the guest takes for the resolver.
    asked: SocketAddr,
    guest_id: u16,
    /// The question with an ID of its own.
    question: Vec<u8>,
    servers: ServerList,
    /// How often it was sent.
    attempts: usize,
    by: AskedBy,
    way: Way,
}

impl Query {
    /// The resolver that it was sent to last.
    fn server(&self) -> SocketAddr {
        self.servers[self.attempts.saturating_sub(1) % self.servers.len()]
    }

    /// Whether it is not sent once more.
    fn is_at_end(&self) -> bool {
        self.attempts >= self.servers.len() * self.by.rounds()
    }

    /// Opens what it is sent by to a resolver.
    fn open(
        &self,
        upstream: &dyn Upstream,
        outbound: &Outbound,
        server: SocketAddr,
    ) -> io::Result<Way> {
        match self.by {
            AskedBy::Host => QuestionSocket::of_host(outbound, server).map(Way::Datagrams),
            AskedBy::Datagrams => QuestionSocket::through(upstream, server).map(Way::Datagrams),
            AskedBy::Streams => {
                let far = upstream.connect(&server.into(), self.guest.into())?;
                let (outgoing, answer) = (framed(&self.question), BytesMut::new());
                Ok(Way::Stream { far, outgoing, answer, is_open: false })
            }
        }
    }

    /// Sends it to a resolver.
    fn send(&mut self, server: SocketAddr, slot: Slot, poller: &Poller) -> io::Result<()> {
        match &mut self.way {
            Way::None => Ok(()),
            Way::Datagrams(socket) => socket.send(&self.question, server, slot, poller),
            // It leaves when the connection is open.
            Way::Stream { far, .. } => far.enter(poller, Token::Query(slot).to_bits(), CHANGES),
        }
    }
}

/// By what questions leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedBy {
    /// Datagrams of the host.
    Host,
    /// Datagrams of the upstream.
    Datagrams,
    /// Connections of the upstream.
    Streams,
}

impl AskedBy {
    /// How often each resolver is asked.
    fn rounds(self) -> usize {
        if self == Self::Streams { 1 } else { ROUNDS }
    }

    /// How long a resolver has to answer, and the place of that in [`Queries::due`].
    fn timeout(self) -> (Duration, usize) {
        if self == Self::Streams { (TIMEOUT_OF_STREAM, 1) } else { (TIMEOUT, 0) }
    }

    /// Whether another resolver does not change that nothing could be opened.
    fn is_final(self, error: &io::Error) -> bool {
        match Refused::of(error) {
            Refused::Full => true,
            // All connections end at one proxy. A host without IPv6 says the same of a resolver of
            // IPv6.
            Refused::NoPort => self == Self::Streams,
            _ => false,
        }
    }
}

/// What questions are asked and answered with.
#[derive(Clone, Copy)]
pub(crate) struct QuestionWays<'a> {
    pub(crate) poller: &'a Poller,
    pub(crate) upstream: &'a dyn Upstream,
    pub(crate) guests: &'a UdpForwarder,
}

enum Way {
    /// It is not sent yet.
    None,
    Datagrams(QuestionSocket),
    Stream {
        far: Box<dyn Far>,
        outgoing: Bytes,
        answer: BytesMut,
        is_open: bool,
    },
}

impl Queries {
    pub(super) fn new(outbound: Outbound, counters: Arc<Counters>) -> Self {
        Self {
            table: Slab::new(),
            of_guest: HashMap::new(),
            due: Default::default(),
            generation: Generation::default(),
            buffer: vec![0; RECEIVE_ROOM].into(),
            outbound,
            counters,
        }
    }

    /// Answers a question at once; `None` drops it.
    pub(super) fn answer(
        &self,
        question: &Datagram,
        answer: Option<Vec<u8>>,
        guests: &UdpForwarder,
    ) {
        let Some(answer) = answer else {
            return self.counters.count(|counters| &counters.bad_dns);
        };
        let mut datagram = Datagram::new(answer, question.peer);
        datagram.local = question.local;
        self.deliver(&datagram, guests);
    }

    fn deliver(&self, datagram: &Datagram, guests: &UdpForwarder) {
        match guests.send(datagram) {
            Ok(()) => self.counters.count(|counters| &counters.dns_answers),
            Err(_) => self.counters.count(|counters| &counters.lost_datagrams),
        }
    }

    /// Whether a question is to be asked: it is one, is not asked yet, and there is room.
    fn is_new(&self, question: &Datagram, asked: SocketAddr) -> bool {
        let data = &question.data;
        if data.len() > MOST_QUESTION || !message::is_question(data) {
            self.counters.count(|counters| &counters.bad_dns);
            return false;
        }
        if self.of_guest.contains_key(&(question.peer, asked, message::id(data))) {
            return false;
        }
        let has_room = self.table.len() < MOST_QUERIES;
        if !has_room {
            self.counters.count(|counters| &counters.full_dns);
        }
        has_room
    }

    /// Asks resolvers in turn.
    pub(super) fn ask(
        &mut self,
        question: &Datagram,
        servers: ServerList,
        by: AskedBy,
        ways: QuestionWays<'_>,
    ) {
        let Some(asked) = question.local else { return };
        if !self.is_new(question, asked) {
            return;
        }
        let key = self.insert(question, asked, servers, by);
        self.send_on(key, ways);
    }

    fn insert(
        &mut self,
        question: &Datagram,
        asked: SocketAddr,
        servers: ServerList,
        by: AskedBy,
    ) -> usize {
        let (guest, guest_id) = (question.peer, message::id(&question.data));
        let generation = self.generation.advance();
        let key = self.table.insert(Query {
            generation,
            guest,
            asked,
            guest_id,
            question: question.data.to_vec(),
            servers,
            attempts: 0,
            by,
            way: Way::None,
        });
        self.of_guest.insert((guest, asked, guest_id), key);
        key
    }

    /// Sends a question to the next resolver that takes it.
    fn send_on(&mut self, key: usize, ways: QuestionWays<'_>) {
        let QuestionWays { poller, upstream, guests } = ways;
        loop {
            let query = &mut self.table[key];
            if query.is_at_end() {
                return self.fail(key, guests, |counters| &counters.unanswered_dns);
            }
            query.attempts += 1;
            let server = query.server();
            // Each has a port and an ID of its own.
            message::set_id(&mut query.question, random_id());
            query.way = match query.open(upstream, &self.outbound, server) {
                Ok(way) => way,
                Err(error) if query.by.is_final(&error) => {
                    return self.fail(key, guests, |counters| &counters.full_dns);
                }
                // A host without IPv6 has none for a resolver of IPv6.
                Err(_) => continue,
            };
            let slot = Slot { key, generation: self.generation.advance() };
            query.generation = slot.generation;
            if query.send(server, slot, poller).is_ok() {
                let (timeout, place) = query.by.timeout();
                self.due[place].set(Instant::now() + timeout, slot);
                return;
            }
        }
    }

    /// Looks at a question whose socket has changed. Returns the resolver that has answered it.
    pub(super) fn on_server(&mut self, slot: Slot, ways: QuestionWays<'_>) -> Option<SocketAddr> {
        let query = self.table.get_mut(slot.key)?;
        if query.generation != slot.generation {
            return None;
        }
        let (server, is_last) = (query.server(), query.is_at_end());
        let outcome = match &mut query.way {
            Way::None => return None,
            Way::Datagrams(socket) => {
                let (outcome, strangers) =
                    socket.receive(&mut self.buffer, &query.question, server, is_last);
                self.counters.add(|counters| &counters.bad_dns, strangers);
                outcome
            }
            Way::Stream { far, outgoing, answer, is_open } => {
                match exchange(&mut **far, is_open, outgoing, answer, &query.question) {
                    Outcome::Answered(answer) if message::is_helpless(&answer) && !is_last => {
                        Outcome::Failed
                    }
                    outcome => outcome,
                }
            }
        };
        let mut answered = None;
        match outcome {
            Outcome::Waits => return None,
            Outcome::Failed => self.send_on(slot.key, ways),
            Outcome::Answered(answer) => {
                let query = self.remove(slot.key);
                answered = Some(server);
                self.pass_on(&query, answer, ways.guests);
            }
        }
        for due in &mut self.due {
            due.drop_first(|slot| !is_asked(&self.table, slot));
        }
        answered
    }

    fn remove(&mut self, key: usize) -> Query {
        let query = self.table.remove(key);
        self.of_guest.remove(&(query.guest, query.asked, query.guest_id));
        query
    }

    fn pass_on(&self, query: &Query, mut answer: Vec<u8>, guests: &UdpForwarder) {
        if matches!(query.way, Way::Stream { .. }) {
            answer = message::over_udp(&query.question, answer);
        }
        message::set_id(&mut answer, query.guest_id);
        let mut datagram = Datagram::new(answer, query.guest);
        datagram.local = Some(query.asked);
        self.deliver(&datagram, guests);
    }

    /// Nobody will answer; `why` counts it.
    fn fail(&mut self, key: usize, guests: &UdpForwarder, why: fn(&Counters) -> &AtomicU64) {
        self.counters.count(why);
        let query = self.remove(key);
        if let Some(answer) = message::failure(&query.question) {
            self.pass_on(&query, answer, guests);
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.due.iter().filter_map(Deadlines::next).min()
    }

    pub(super) fn expire(&mut self, now: Instant, ways: QuestionWays<'_>) {
        for kind in 0..self.due.len() {
            while let Some(slot) = self.due[kind].take(now) {
                if is_asked(&self.table, slot) {
                    self.send_on(slot.key, ways);
                }
            }
        }
    }
}

/// Whether a question is there, and waits for the resolver that it waited for.
fn is_asked(table: &Slab<Query>, slot: Slot) -> bool {
    table.get(slot.key).is_some_and(|query| query.generation == slot.generation)
}

/// An ID that is hard to guess.
pub(crate) fn random_id() -> u16 {
    let mut bytes = [0; 2];
    // It fails before the kernel has gathered randomness, and would wait then. The port is random.
    let _ = getrandom(&mut bytes, GetRandomFlags::NONBLOCK);
    u16::from_ne_bytes(bytes)
}

/// A question behind its length, as it goes over TCP (RFC 1035 section 4.2.2).
pub(crate) fn framed(question: &[u8]) -> Bytes {
    let length = u16::try_from(question.len()).expect("questions are short");
    let mut framed = BytesMut::with_capacity(2 + question.len());
    framed.put_u16(length);
    framed.put_slice(question);
    framed.freeze()
}

/// Sends a question over a connection, and looks for the answer.
pub(crate) fn exchange(
    far: &mut dyn Far,
    is_open: &mut bool,
    outgoing: &mut Bytes,
    answer: &mut BytesMut,
    question: &[u8],
) -> Outcome {
    let mut go_on = || -> io::Result<Option<Vec<u8>>> {
        *is_open = *is_open || far.is_open()?;
        if !*is_open {
            return Ok(None);
        }
        while !outgoing.is_empty() {
            far.send_piece(outgoing)?;
        }
        loop {
            if let Some((length, rest)) = answer.split_first_chunk::<2>()
                && let Some(whole) = rest.get(..usize::from(u16::from_be_bytes(*length)))
            {
                return Ok(Some(whole.to_vec()));
            }
            let data = End::receive(far)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            answer.extend_from_slice(&data);
        }
    };
    match go_on() {
        Ok(Some(whole)) if message::is_answer(question, &whole) => Outcome::Answered(whole),
        Ok(Some(_)) => Outcome::Failed,
        Ok(None) => Outcome::Waits,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::Waits,
        Err(_) => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::upstream::Direct;
    use neap::{Stack, UdpForwarderOptions};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_resolver_that_no_socket_can_be_had_for_is_followed_by_the_next() {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
        let stack = stack.expect("a stack");
        let guests = UdpForwarder::new(&stack, UdpForwarderOptions::default()).expect("one");
        let poller = Poller::new().expect("descriptors");
        // As on a host without IPv6: no socket can have this address.
        let v6 = Some("2001:db8::1".parse().expect("an address"));
        let outbound = Outbound { v6, ..Outbound::default() };
        let mut queries = Queries::new(outbound, Arc::default());
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        server.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let server_address = server.local_addr().expect("an address");
        let unreachable = "[2001:db8::53]:53".parse().expect("an address");
        let data = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\
                     \x00\x01\x00\x01";
        let mut question = Datagram::new(&data[..], "10.0.2.100:1000".parse().expect("an address"));
        question.local = Some("10.0.2.3:53".parse().expect("an address"));
        let servers = ServerList::from_slice(&[unreachable, server_address]);
        let ways = QuestionWays { poller: &poller, upstream: &Direct, guests: &guests };
        queries.ask(&question, servers, AskedBy::Host, ways);
        assert_eq!(server.recv(&mut [0; 500]).expect("the question"), data.len());
    }
}
