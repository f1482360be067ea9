//! Questions of guests on their way to resolvers.
//!
//! Each question has a socket and an ID of its own, which are as hard to guess as ports and random
//! numbers are (RFC 5452). A resolver that does not answer in time, or cannot, is followed by the
//! next one, and a late answer counts until that one is followed as well. What it says after the
//! question was answered only shows that it is there. An answer that is cut goes to the guest,
//! which then asks over TCP.
//!
//! Cost: at most two sockets and the question's bytes twice for each, at most [`MOST_QUERIES`];
//! O(1) per event.

use super::message;
use super::sockets::{Look, Outcome, QuestionSocket};
use crate::counters::Counters;
use crate::deadlines::Deadlines;
use crate::outbound::Outbound;
use crate::receive_room::ReceiveRoom;
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
/// While there are at most so many, one that was answered stays for those who were late.
const MOST_LATE: usize = MOST_QUERIES / 8;
/// Longest question.
pub(super) const MOST_QUESTION: usize = 4096;

/// A resolver has so long to answer over UDP, until the next one is asked.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The same of the last one that is asked. One that is alone, and is asked twice, so has the five
/// seconds that resolvers of C libraries give to it.
const TIMEOUT_OF_LAST: Duration = Duration::from_secs(3);
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
    /// By what guests have sent: a question that is repeated is the same one.
    of_guest: HashMap<Asked, usize>,
    /// When to go on: of those over UDP that are sent once more, of others over UDP, and of those
    /// over TCP.
    due: [Deadlines; 3],
    generation: Generation,
    room: ReceiveRoom,
    outbound: Outbound,
    counters: Arc<Counters>,
}

/// A question as a guest has sent it. Several of one port may have the same ID.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Asked {
    guest: SocketAddr,
    /// What the guest takes for the resolver.
    resolver: SocketAddr,
    question: Bytes,
}

struct Query {
    asked: Asked,
    /// The question with the ID of one of its attempts.
    question: Vec<u8>,
    servers: ServerList,
    /// How often it was sent.
    attempts: usize,
    by: AskedBy,
    /// The last attempt, once it was sent.
    now: Option<Attempt>,
    /// The one before, if that was not answered in time.
    late: Option<Attempt>,
    /// The guest has its answer. The last attempt is one that was late.
    is_answered: bool,
}

/// A question at one resolver.
struct Attempt {
    generation: Generation,
    sent: Instant,
    id: u16,
    server: SocketAddr,
    way: Way,
}

impl Query {
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
                let far = upstream.connect(&server.into(), self.asked.guest.into())?;
                let (outgoing, answer) = (framed(&self.question), BytesMut::new());
                Ok(Way::Stream { far, outgoing, answer, is_open: false })
            }
        }
    }

    /// How long the last attempt has, and the place of that in [`Queries::due`].
    fn timeout(&self) -> (Duration, usize) {
        match self.by {
            AskedBy::Streams => (TIMEOUT_OF_STREAM, 2),
            _ if self.is_at_end() => (TIMEOUT_OF_LAST, 1),
            _ => (TIMEOUT, 0),
        }
    }
}

impl Attempt {
    /// Sends a question.
    fn send(&mut self, question: &[u8], slot: Slot, poller: &Poller) -> io::Result<()> {
        match &mut self.way {
            Way::Datagrams(socket) => socket.send(question, self.server, slot, poller),
            // It leaves when the connection is open.
            Way::Stream { far, .. } => far.enter(poller, Token::Query(slot).to_bits(), CHANGES),
        }
    }

    /// Looks for the answer. If another resolver can be asked, an answer without knowledge does not
    /// count.
    fn receive(&mut self, room: &mut ReceiveRoom, question: &[u8], is_last: bool) -> Look {
        match &mut self.way {
            Way::Datagrams(socket) => socket.receive(room, question, self.server, is_last),
            Way::Stream { far, outgoing, answer, is_open } => {
                let outcome = exchange(&mut **far, is_open, outgoing, answer, question);
                let is_heard = matches!(outcome, Outcome::Answered(_));
                let outcome = match outcome {
                    Outcome::Answered(answer) if message::is_helpless(&answer) && !is_last => {
                        Outcome::Failed
                    }
                    outcome => outcome,
                };
                Look { outcome, strangers: 0, is_heard }
            }
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
    Datagrams(QuestionSocket),
    Stream { far: Box<dyn Far>, outgoing: Bytes, answer: BytesMut, is_open: bool },
}

impl Queries {
    pub(super) fn new(outbound: Outbound, counters: Arc<Counters>) -> Self {
        Self {
            table: Slab::new(),
            of_guest: HashMap::new(),
            due: Default::default(),
            generation: Generation::default(),
            room: ReceiveRoom::new(),
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

    /// A question that is to be asked: it is one, is not asked yet, and there is room.
    fn new_one(&self, question: &Datagram) -> Option<Asked> {
        let (data, resolver) = (&question.data, question.local?);
        if data.len() > MOST_QUESTION || !message::is_question(data) {
            self.counters.count(|counters| &counters.bad_dns);
            return None;
        }
        // The bytes may be part of a larger piece of memory.
        let copy = Bytes::copy_from_slice(data);
        let asked = Asked { guest: question.peer, resolver, question: copy };
        if self.of_guest.contains_key(&asked) {
            return None;
        }
        let has_room = self.table.len() < MOST_QUERIES;
        if !has_room {
            self.counters.count(|counters| &counters.full_dns);
        }
        has_room.then_some(asked)
    }

    /// Asks resolvers in turn.
    pub(super) fn ask(
        &mut self,
        question: &Datagram,
        servers: ServerList,
        by: AskedBy,
        ways: QuestionWays<'_>,
    ) {
        let Some(asked) = self.new_one(question) else { return };
        let key = self.insert(asked, servers, by);
        self.send_on(key, ways);
    }

    fn insert(&mut self, asked: Asked, servers: ServerList, by: AskedBy) -> usize {
        let key = self.table.insert(Query {
            asked: asked.clone(),
            question: asked.question.to_vec(),
            servers,
            attempts: 0,
            by,
            now: None,
            late: None,
            is_answered: false,
        });
        self.of_guest.insert(asked, key);
        key
    }

    /// Sends a question to the next resolver that takes it.
    fn send_on(&mut self, key: usize, ways: QuestionWays<'_>) {
        let QuestionWays { poller, upstream, guests } = ways;
        let mut in_the_end: fn(&Counters) -> &AtomicU64 = |counters| &counters.unanswered_dns;
        loop {
            let query = &mut self.table[key];
            if query.is_at_end() {
                return self.fail(key, guests, in_the_end);
            }
            let server = query.servers[query.attempts % query.servers.len()];
            query.attempts += 1;
            // Each has a port and an ID of its own.
            let id = random_id();
            message::set_id(&mut query.question, id);
            let way = match query.open(upstream, &self.outbound, server) {
                Ok(way) => way,
                Err(error) if query.by.is_final(&error) => {
                    return self.fail(key, guests, |counters| &counters.full_dns);
                }
                Err(error) => {
                    // The host may have the address for the family of another resolver.
                    if Refused::of(&error) == Refused::NoAddress {
                        in_the_end = |counters| &counters.no_address;
                    }
                    // A host without IPv6 has none for a resolver of IPv6.
                    continue;
                }
            };
            let (generation, sent) = (self.generation.advance(), Instant::now());
            let slot = Slot { key, generation };
            let attempt = query.now.insert(Attempt { generation, sent, id, server, way });
            if attempt.send(&query.question, slot, poller).is_ok() {
                let (timeout, place) = query.timeout();
                self.due[place].set(sent + timeout, slot);
                return;
            }
        }
    }

    /// Looks at a question whose socket has changed. Returns its resolver if that has said
    /// something.
    pub(super) fn on_server(&mut self, slot: Slot, ways: QuestionWays<'_>) -> Option<SocketAddr> {
        let query = self.table.get_mut(slot.key)?;
        let is_last = query.is_at_end();
        let is_late = query.late.as_ref().is_some_and(|late| late.generation == slot.generation);
        let attempt = if is_late { &mut query.late } else { &mut query.now };
        let attempt = attempt.as_mut().filter(|one| one.generation == slot.generation)?;
        message::set_id(&mut query.question, attempt.id);
        let Look { outcome, strangers, is_heard } =
            attempt.receive(&mut self.room, &query.question, is_last && !is_late);
        let server = attempt.server;
        self.counters.add(|counters| &counters.bad_dns, strangers);
        match outcome {
            Outcome::Waits => return None,
            _ if query.is_answered => drop(self.table.remove(slot.key)),
            Outcome::Failed if is_late => query.late = None,
            Outcome::Failed => self.send_on(slot.key, ways),
            Outcome::Answered(answer) => {
                self.pass_on(&self.table[slot.key], answer, ways.guests);
                self.end(slot.key, is_late);
            }
        }
        for due in &mut self.due {
            due.drop_first(|slot| !is_asked(&self.table, slot));
        }
        is_heard.then_some(server)
    }

    /// A question was answered, by an attempt that was late or by the last one. Of the other one it
    /// is told whether its resolver says something after all, if it was late.
    fn end(&mut self, key: usize, by_late: bool) {
        let has_room = self.table.len() <= MOST_LATE;
        let query = &mut self.table[key];
        let Some(late) = query.late.take().filter(|_| has_room && !by_late) else {
            self.remove(key);
            return;
        };
        let slot = Slot { key, generation: late.generation };
        self.due[0].set(Instant::now() + TIMEOUT, slot);
        (query.now, query.is_answered) = (Some(late), true);
        self.of_guest.remove(&query.asked);
    }

    fn remove(&mut self, key: usize) -> Query {
        let query = self.table.remove(key);
        self.of_guest.remove(&query.asked);
        query
    }

    fn pass_on(&self, query: &Query, mut answer: Vec<u8>, guests: &UdpForwarder) {
        if query.by == AskedBy::Streams {
            answer = message::over_udp(&query.question, answer);
        }
        let Asked { guest, resolver, question } = &query.asked;
        message::set_id(&mut answer, message::id(question));
        let mut datagram = Datagram::new(answer, *guest);
        datagram.local = Some(*resolver);
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

    /// Goes on with questions that were not answered in time. `in_vain` gets the resolver of each
    /// that was asked for the first time, and when that was.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        ways: QuestionWays<'_>,
        mut in_vain: impl FnMut(SocketAddr, Instant),
    ) {
        for kind in 0..self.due.len() {
            while let Some(slot) = self.due[kind].take(now) {
                if is_asked(&self.table, slot) {
                    let query = &mut self.table[slot.key];
                    if query.is_answered {
                        self.table.remove(slot.key);
                        continue;
                    }
                    let is_first = query.attempts <= query.servers.len();
                    query.late = query.now.take();
                    query.late.iter().filter(|_| is_first).for_each(|late| {
                        in_vain(late.server, late.sent);
                    });
                    self.send_on(slot.key, ways);
                }
            }
        }
    }
}

/// Whether a question is there, and waits for the resolver that it waited for.
fn is_asked(table: &Slab<Query>, slot: Slot) -> bool {
    let attempt = table.get(slot.key).and_then(|query| query.now.as_ref());
    attempt.is_some_and(|attempt| attempt.generation == slot.generation)
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
    use crate::config::GatewayConfig;
    use crate::destination::Destination;
    use crate::device;
    use crate::dns::Dns;
    use crate::resolver::Resolver;
    use crate::upstream::{Client, Direct, FarDatagrams};
    use neap::{Stack, UdpForwarderOptions};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixDatagram;

    /// A guest whose questions go to resolvers at these sockets.
    struct World {
        guests: UdpForwarder,
        cable: UnixDatagram,
        poller: Poller,
        counters: Arc<Counters>,
        _stack: Stack,
    }

    /// A question of type A for `example.org`.
    const QUESTION: &[u8] =
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03org\x00\x00\x01\x00\x01";

    impl World {
        fn new() -> Self {
            let (own, cable) = UnixDatagram::pair().expect("a pair");
            let device = device::device("cable", own).expect("a device");
            let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
            let stack = stack.expect("a stack");
            let guests = UdpForwarder::new(&stack, UdpForwarderOptions::default()).expect("one");
            let poller = Poller::new().expect("descriptors");
            Self { guests, cable, poller, counters: Arc::default(), _stack: stack }
        }

        fn ways(&self) -> QuestionWays<'_> {
            QuestionWays { poller: &self.poller, upstream: &Direct, guests: &self.guests }
        }

        fn queries(&self, outbound: Outbound) -> Queries {
            Queries::new(outbound, self.counters.clone())
        }

        /// Waits for something to come for a question, and looks at it. Returns who was heard.
        fn look(&self, queries: &mut Queries) -> Option<SocketAddr> {
            let mut events = Vec::new();
            self.poller.wait(&mut events, Some(PATIENCE)).expect("it works");
            let mut heard = None;
            for event in &events {
                let Token::Query(slot) = Token::from_bits(event.token) else { panic!("a query") };
                heard = queries.on_server(slot, self.ways()).or(heard);
            }
            heard
        }
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    fn question() -> Datagram {
        let mut question = Datagram::new(QUESTION, "10.0.2.100:1000".parse().expect("an address"));
        question.local = Some("10.0.2.3:53".parse().expect("an address"));
        question
    }

    fn server() -> (UdpSocket, SocketAddr) {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let address = server.local_addr().expect("an address");
        (server, address)
    }

    /// The question that has come to a server: its answer, and who has sent it.
    fn asked(server: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut question = vec![0; 500];
        let (count, from) = server.recv_from(&mut question).expect("the question");
        question.truncate(count);
        assert_eq!(question[2..], QUESTION[2..]);
        question[2] |= 0x80;
        (question, from)
    }

    #[test]
    fn a_resolver_that_no_socket_can_be_had_for_is_followed_by_the_next() {
        let world = World::new();
        // As on a host without IPv6: no socket can have this address.
        let v6 = Some("2001:db8::1".parse().expect("an address"));
        let mut queries = world.queries(Outbound { v6, ..Outbound::default() });
        let (server, server_address) = server();
        let unreachable = "[2001:db8::53]:53".parse().expect("an address");
        let servers = ServerList::from_slice(&[unreachable, server_address]);
        queries.ask(&question(), servers, AskedBy::Host, world.ways());
        asked(&server);
    }

    #[test]
    fn a_late_answer_counts() {
        let world = World::new();
        let mut queries = world.queries(Outbound::default());
        let (server, address) = server();
        let servers = ServerList::from_slice(&[address]);
        queries.ask(&question(), servers, AskedBy::Host, world.ways());
        let (late, asker) = asked(&server);
        let mut silent = Vec::new();
        let due = queries.next_expiry().expect("it waits");
        queries.expire(due, world.ways(), |server, _| silent.push(server));
        assert_eq!(silent, [address]);
        let (_, again) = asked(&server);
        assert_ne!(again, asker, "each has a port of its own");
        server.send_to(&late, asker).expect("sent");
        assert_eq!(world.look(&mut queries), Some(address));
        let count = world.cable.recv(&mut [0; 500]).expect("the answer");
        assert!(count > QUESTION.len());
        assert_eq!((queries.table.len(), queries.next_expiry()), (0, None));
    }

    #[test]
    fn questions_of_one_port_with_one_id_are_asked_once_each() {
        let world = World::new();
        let mut queries = world.queries(Outbound::default());
        let (server, address) = server();
        let servers = ServerList::from_slice(&[address]);
        let mut other = question();
        other.data = [&QUESTION[..13], b"EXAMPLE", &QUESTION[20..]].concat().into();
        for one in [question(), other.clone(), question(), other.clone()] {
            queries.ask(&one, servers.clone(), AskedBy::Host, world.ways());
        }
        let mut bytes = [0; 500];
        for expected in [QUESTION, &other.data] {
            let (count, asker) = server.recv_from(&mut bytes).expect("the question");
            assert_eq!(bytes[2..count], expected[2..]);
            bytes[2] |= 0x80;
            server.send_to(&bytes[..count], asker).expect("sent");
            world.look(&mut queries);
            let mut frame = [0; 500];
            let count = world.cable.recv(&mut frame).expect("the answer");
            // It has the ID of the guest.
            let answer = [&expected[..2], &[expected[2] | 0x80], &expected[3..]].concat();
            assert!(frame[..count].ends_with(&answer), "{:?}", &frame[..count]);
        }
        server.set_nonblocking(true).expect("set");
        let error = server.recv_from(&mut bytes).expect_err("each has come once");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!((queries.table.len(), queries.of_guest.len()), (0, 0));
    }

    #[test]
    fn a_single_resolver_has_five_seconds() {
        let world = World::new();
        let mut queries = world.queries(Outbound::default());
        let (server, address) = server();
        let start = Instant::now();
        let servers = ServerList::from_slice(&[address]);
        queries.ask(&question(), servers, AskedBy::Host, world.ways());
        let first = queries.next_expiry().expect("it waits");
        assert!(first >= start + TIMEOUT);
        queries.expire(first, world.ways(), |_, _| {});
        let last = queries.next_expiry().expect("it waits");
        assert!(last - TIMEOUT_OF_LAST >= start);
        assert_eq!(TIMEOUT + TIMEOUT_OF_LAST, Duration::from_secs(5));
        queries.expire(last, world.ways(), |_, _| {});
        assert_eq!(world.counters.figures().unanswered_dns, 1);
        assert_eq!(queries.next_expiry(), None);
        drop(server);
    }

    /// A resolver that has a question.
    struct Asked {
        server: UdpSocket,
        address: SocketAddr,
        answer: Vec<u8>,
        asker: SocketAddr,
    }

    impl Asked {
        fn answers(&self) {
            self.server.send_to(&self.answer, self.asker).expect("sent");
        }
    }

    /// Two resolvers that have the same question. The first one is late.
    fn late_and_next(world: &World) -> (Queries, Asked, Asked) {
        let mut queries = world.queries(Outbound::default());
        let ((first, first_address), (second, second_address)) = (server(), server());
        let servers = ServerList::from_slice(&[first_address, second_address]);
        queries.ask(&question(), servers, AskedBy::Host, world.ways());
        let of = |server, address| {
            let (answer, asker) = asked(&server);
            Asked { server, address, answer, asker }
        };
        let late = of(first, first_address);
        queries.expire(queries.next_expiry().expect("it waits"), world.ways(), |_, _| {});
        (queries, late, of(second, second_address))
    }

    #[test]
    fn a_late_answer_without_knowledge_leaves_the_question_to_the_next_resolver() {
        let world = World::new();
        let (mut queries, mut late, next) = late_and_next(&world);
        late.answer[3] |= 2;
        late.answers();
        assert_eq!(world.look(&mut queries), Some(late.address));
        assert!(queries.next_expiry().is_some(), "it still waits");
        next.answers();
        assert_eq!(world.look(&mut queries), Some(next.address));
    }

    #[test]
    fn a_resolver_is_heard_after_another_one_has_answered() {
        let world = World::new();
        let (mut queries, late, next) = late_and_next(&world);
        next.answers();
        assert_eq!(world.look(&mut queries), Some(next.address));
        late.answers();
        assert_eq!(world.look(&mut queries), Some(late.address));
        assert_eq!((queries.table.len(), queries.next_expiry()), (0, None));
        assert_eq!(world.counters.figures().dns_answers, 1);
    }

    #[test]
    fn one_that_says_nothing_after_another_one_has_answered_is_forgotten() {
        let world = World::new();
        let (mut queries, late, next) = late_and_next(&world);
        next.answers();
        assert_eq!(world.look(&mut queries), Some(next.address));
        // The same question is a new one.
        let servers = ServerList::from_slice(&[late.address, next.address]);
        queries.ask(&question(), servers, AskedBy::Host, world.ways());
        asked(&late.server);
        let due = queries.next_expiry().expect("it waits");
        queries.expire(due, world.ways(), |_, _| panic!("it was told"));
        assert_eq!(queries.table.len(), 1);
    }

    #[test]
    fn a_question_that_has_no_address_to_leave_from_is_counted_as_that() {
        let world = World::new();
        // An address of documents, which no host has.
        let outbound = Outbound { v4: "192.0.2.99".parse().ok(), ..Outbound::default() };
        let mut queries = world.queries(outbound);
        let server = "198.51.100.53:53".parse().expect("an address");
        queries.ask(&question(), ServerList::from_slice(&[server]), AskedBy::Host, world.ways());
        let figures = world.counters.figures();
        assert_eq!((figures.no_address, figures.unanswered_dns), (1, 0));
        let mut answer = [0; 500];
        world.cable.recv(&mut answer).expect("the guest is told");
    }

    /// The host's kernel, by which questions leave as datagrams.
    struct ByDatagrams;

    impl Upstream for ByDatagrams {
        fn connect(&self, to: &Destination, client: Client) -> io::Result<Box<dyn Far>> {
            Direct.connect(to, client)
        }
        fn datagrams(&self, to: &Destination) -> io::Result<Box<dyn FarDatagrams>> {
            Direct.datagrams(to)
        }
        fn asks_by_datagrams(&self) -> bool {
            true
        }
    }

    /// Resolvers of a [`Dns`], and a guest that asks them.
    struct Pair {
        world: World,
        dns: Dns,
        first: UdpSocket,
        second: UdpSocket,
    }

    impl Pair {
        fn new() -> Self {
            let ((first, first_address), (second, second_address)) = (server(), server());
            let resolver = Resolver::Through(vec![first_address, second_address]);
            let config = GatewayConfig { resolver, ..GatewayConfig::default() };
            Self { world: World::new(), dns: Dns::new(&config, Arc::default()), first, second }
        }

        /// Asks, which the first resolver gets.
        fn ask(&mut self) -> (Vec<u8>, SocketAddr) {
            let ways = QuestionWays { upstream: &ByDatagrams, ..self.world.ways() };
            self.dns.ask(&question(), ways);
            asked(&self.first)
        }

        fn expire(&mut self) {
            let ways = QuestionWays { upstream: &ByDatagrams, ..self.world.ways() };
            self.dns.expire(self.dns.next_expiry().expect("it waits"), ways);
        }

        fn look(&mut self) {
            let ways = QuestionWays { upstream: &ByDatagrams, ..self.world.ways() };
            let mut events = Vec::new();
            self.world.poller.wait(&mut events, Some(PATIENCE)).expect("it works");
            for event in &events {
                let Token::Query(slot) = Token::from_bits(event.token) else { panic!("a query") };
                self.dns.on_server(slot, ways);
            }
        }

        /// The second resolver answers.
        fn answer(&mut self) {
            let (answer, asker) = asked(&self.second);
            self.second.send_to(&answer, asker).expect("sent");
            self.look();
            self.world.cable.recv(&mut [0; 500]).expect("the answer of the second");
        }
    }

    #[test]
    fn the_first_resolver_is_asked_first_again_although_it_could_not_answer() {
        let mut pair = Pair::new();
        let (mut failure, asker) = pair.ask();
        failure[3] |= 2;
        pair.first.send_to(&failure, asker).expect("sent");
        pair.look();
        pair.answer();
        pair.ask();
    }

    #[test]
    fn the_first_resolver_is_asked_first_again_although_a_name_took_it_too_long() {
        let mut pair = Pair::new();
        pair.ask();
        pair.expire();
        pair.answer();
        pair.ask();
    }
}
