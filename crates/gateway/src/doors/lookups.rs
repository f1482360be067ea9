//! Names that are looked up by DNS servers through the stack.
//!
//! Each question has a socket and an ID of its own (RFC 5452). A server that does not answer in
//! time, or cannot, is followed by the next one. An answer that is cut is asked for over TCP.
//!
//! Those who wait for a name are told its addresses when both families are known, or a short time
//! after the first one is. Addresses of the other family that come later are for those who ask
//! then.
//!
//! Cost: one socket of the stack and about 300 bytes for each question, at most two for each of
//! [`MOST_LOOKUPS`] names; O(1) per event, but O([`MOST_LOOKUPS`]) for a new name while there are
//! so many. Those who want the same name share its questions, and each of at most [`MOST_WAITERS`]
//! of them costs 24 bytes.

use super::cache::Cache;
use super::config::{ResolveStrategy, TunnelResolver};
use super::figures::Counters;
use super::step::{Failure, Found};
use crate::deadlines::Deadlines;
use crate::dns::addresses::{self, Addresses, Said};
use crate::dns::{Outcome, exchange, framed, is_answer, random_id};
use crate::guest::{GuestStream, has_address};
use crate::stack_upstream::options;
use crate::token::{Generation, Slot, Token};
use crate::upstream::Far;
use bytes::{Bytes, BytesMut};
use neap::{Events, Poller, Stack, UdpSocket};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names that are looked up at the same time.
pub(super) const MOST_LOOKUPS: usize = 512;
/// Those who wait for one name. Connections that were given up meanwhile are among them.
pub(super) const MOST_WAITERS: usize = 1 << 14;
/// Longest answer over UDP.
const MOST_ANSWER: usize = 4096;
/// Answers to others that one look at a socket passes over.
const MOST_STRANGERS: usize = 64;
/// A server has so long to answer over UDP, until the next one is asked.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The same over TCP.
const TIMEOUT_OF_STREAM: Duration = Duration::from_secs(5);
/// Where one family has addresses, those of the other one are waited for as long as this (RFC 8305
/// section 3, the Resolution Delay). A server that never answers the other question costs a name no
/// more.
const TIME_OF_THE_OTHER: Duration = Duration::from_millis(50);
/// Each server is asked so often.
const ROUNDS: usize = 2;

const CHANGES: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// Who waits for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    Session(Slot),
    Mapping(Slot),
}

/// A name that was looked up for somebody.
pub(super) struct Done {
    pub(super) waiter: Waiter,
    pub(super) name: Arc<str>,
    pub(super) found: Found,
}

/// All names that are looked up.
pub(super) struct Lookups {
    stack: Arc<Stack>,
    resolver: TunnelResolver,
    /// How often the resolver has changed.
    changes: u64,
    table: Slab<Lookup>,
    of_name: HashMap<Arc<str>, usize>,
    queries: Slab<Query>,
    generation: Generation,
    /// When to go on: of questions over UDP, and over TCP.
    due: [Deadlines; 2],
    /// When those who wait for a name are told what is known of it.
    telling: Deadlines,
    cache: Cache,
    done: Vec<Done>,
    counters: Arc<Counters>,
}

struct Lookup {
    generation: Generation,
    name: Arc<str>,
    /// How often the resolver had changed when it began.
    changes: u64,
    /// Names that are asked for in its place, in turn; the first one is asked for now.
    candidates: VecDeque<String>,
    /// Of IPv4, and of IPv6.
    parts: [Part; 2],
    is_v6_first: bool,
    /// A server that was asked for an earlier candidate had no answer.
    has_failed: bool,
    /// Those who waited were told addresses of one family; a question for the other one is left.
    is_told: bool,
    waiters: SmallVec<[Waiter; 1]>,
}

impl Lookup {
    /// The addresses that are known, in their order, and how long they hold.
    fn known(&self) -> (Addresses, Duration) {
        let (mut found, mut ttl) = (Addresses::new(), Duration::MAX);
        for index in self.order() {
            if let Part::Known(addresses, holds) = &self.parts[index] {
                found.extend_from_slice(addresses);
                ttl = ttl.min(*holds);
            }
        }
        (found, ttl)
    }

    /// The order of its parts.
    fn order(&self) -> [usize; 2] {
        if self.is_v6_first { [1, 0] } else { [0, 1] }
    }

    /// A question that is under way.
    fn asked(&self) -> Option<usize> {
        self.parts
            .iter()
            .find_map(|part| if let Part::Asked(key) = part { Some(*key) } else { None })
    }
}

/// The addresses of one family.
#[derive(Default)]
enum Part {
    #[default]
    Unasked,
    Asked(usize),
    Known(Addresses, Duration),
    Nothing,
    Failed,
}

struct Query {
    generation: Generation,
    lookup: usize,
    is_v6: bool,
    question: Vec<u8>,
    /// How often it was sent over UDP.
    attempts: usize,
    way: Way,
}

enum Way {
    None,
    Datagrams(UdpSocket),
    Stream { far: Box<dyn Far>, outgoing: Bytes, answer: BytesMut, is_open: bool },
}

impl Lookups {
    pub(super) fn new(
        stack: Arc<Stack>,
        resolver: TunnelResolver,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            stack,
            resolver,
            changes: 0,
            table: Slab::new(),
            of_name: HashMap::new(),
            queries: Slab::new(),
            generation: Generation::default(),
            due: Default::default(),
            telling: Deadlines::default(),
            cache: Cache::default(),
            done: Vec::new(),
            counters,
        }
    }

    /// Changes who is asked from now on. Questions that are under way go on where they can, and
    /// their answers are for those alone who wait for them already.
    pub(super) fn set_resolver(&mut self, resolver: TunnelResolver) {
        self.resolver = resolver;
        self.changes += 1;
        self.of_name.clear();
        self.cache = Cache::default();
    }

    /// What is known of a name without a question.
    pub(super) fn known(&mut self, name: &Arc<str>) -> Option<Found> {
        self.counters.count(|counters| &counters.lookups);
        if **name == *"localhost" || name.ends_with(".localhost") {
            let is_v6 = self.is_v6_first() && families(&self.stack)[1];
            return Some(Ok(loopback(is_v6)));
        }
        let known = self.cache.get(name, Instant::now())?;
        self.counters.count(|counters| &counters.cached_lookups);
        Some(if known.is_empty() { Err(Failure::NoName) } else { Ok(known) })
    }

    /// Whether there is nobody to be asked.
    pub(super) fn has_no_server(&self) -> bool {
        self.resolver.servers.is_empty()
    }

    fn is_v6_first(&self) -> bool {
        match self.resolver.strategy {
            ResolveStrategy::Auto | ResolveStrategy::Ipv6 => true,
            ResolveStrategy::Ipv4 => false,
        }
    }

    /// Looks a name up. `None` if it is done later, see [`done`](Self::done).
    pub(super) fn find(
        &mut self,
        name: &Arc<str>,
        waiter: Waiter,
        poller: &Poller,
    ) -> Option<Found> {
        if let Some(known) = self.known(name) {
            return Some(known);
        }
        if let Some(&key) = self.of_name.get(name) {
            let waiters = &mut self.table[key].waiters;
            if waiters.len() >= MOST_WAITERS {
                self.counters.count(|counters| &counters.full_lookups);
                return Some(Err(Failure::Full));
            }
            waiters.push(waiter);
            return None;
        }
        if self.has_no_server() || families(&self.stack) == [false; 2] {
            self.counters.count(|counters| &counters.failed_lookups);
            return Some(Err(Failure::NoAnswer));
        }
        if self.table.len() >= MOST_LOOKUPS && !self.make_room() {
            self.counters.count(|counters| &counters.full_lookups);
            return Some(Err(Failure::Full));
        }
        let candidates = candidates(name, &self.resolver.search);
        let lookup = Lookup {
            generation: self.generation.advance(),
            name: name.clone(),
            changes: self.changes,
            candidates,
            parts: Default::default(),
            is_v6_first: self.is_v6_first(),
            has_failed: false,
            is_told: false,
            waiters: SmallVec::from_slice(&[waiter]),
        };
        let key = self.table.insert(lookup);
        self.of_name.insert(name.clone(), key);
        self.ask(key, poller);
        None
    }

    /// Gives up a lookup that nobody waits for. Whether there was one.
    fn make_room(&mut self) -> bool {
        let told = self.table.iter().find(|(_, lookup)| lookup.is_told);
        let Some((key, _)) = told else { return false };
        if let Some(query) = self.table.remove(key).asked() {
            self.queries.remove(query);
        }
        true
    }

    /// How many wait for a name.
    #[cfg(test)]
    pub(super) fn waiters_of(&self, name: &str) -> usize {
        self.of_name.get(name).map_or(0, |&key| self.table[key].waiters.len())
    }

    /// The names that were looked up since the last call.
    pub(super) fn done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }

    /// Asks for the first candidate.
    fn ask(&mut self, key: usize, poller: &Poller) {
        let families = families(&self.stack);
        let lookup = &mut self.table[key];
        let mut asked = SmallVec::<[usize; 2]>::new();
        for is_v6 in [false, true] {
            let part = &mut lookup.parts[usize::from(is_v6)];
            let question = lookup.candidates.front();
            let question = question.and_then(|name| addresses::question(name, is_v6, random_id()));
            *part = match question {
                _ if !families[usize::from(is_v6)] => Part::Nothing,
                None => Part::Nothing,
                Some(question) => {
                    let generation = self.generation.advance();
                    let (attempts, way) = (0, Way::None);
                    let query = Query { generation, lookup: key, is_v6, question, attempts, way };
                    let query = self.queries.insert(query);
                    asked.push(query);
                    Part::Asked(query)
                }
            };
        }
        if asked.is_empty() {
            return self.conclude(key, poller);
        }
        for query in asked {
            // The lookup may be over with the first one.
            if self.queries.get(query).is_some_and(|query| query.lookup == key) {
                self.send_on(query, poller);
            }
        }
    }

    /// Sends a question to the next server that takes it.
    fn send_on(&mut self, key: usize, poller: &Poller) {
        loop {
            let servers = &self.resolver.servers;
            let query = &mut self.queries[key];
            // Nobody waits for the other family alone.
            let most = if self.table[query.lookup].is_told { 1 } else { servers.len() * ROUNDS };
            if query.attempts >= most {
                return self.answered(key, Part::Failed, poller);
            }
            let server = servers[query.attempts % servers.len()];
            // Each has a port and an ID of its own.
            query.question[..2].copy_from_slice(&random_id().to_be_bytes());
            query.attempts += 1;
            query.generation = self.generation.advance();
            let slot = Slot { key, generation: query.generation };
            let Ok(socket) = send(&self.stack, server, &query.question, slot, poller) else {
                continue;
            };
            query.way = Way::Datagrams(socket);
            self.counters.count(|counters| &counters.questions);
            self.due[0].set(Instant::now() + TIMEOUT, slot);
            return;
        }
    }

    /// Asks the server over TCP whose answer was cut.
    fn ask_over_stream(&mut self, key: usize, poller: &Poller) {
        let servers = &self.resolver.servers;
        let query = &mut self.queries[key];
        if servers.is_empty() {
            return self.answered(key, Part::Failed, poller);
        }
        let server = servers[(query.attempts.max(1) - 1) % servers.len()];
        query.generation = self.generation.advance();
        let slot = Slot { key, generation: query.generation };
        let begun = GuestStream::connect_from_stack(&self.stack, server, options());
        let begun = begun.and_then(|far| {
            far.enter(poller, Token::Query(slot).to_bits(), CHANGES)?;
            Ok(Box::new(far))
        });
        let Ok(far) = begun else { return self.send_on(key, poller) };
        let (outgoing, answer) = (framed(&query.question), BytesMut::new());
        query.way = Way::Stream { far, outgoing, answer, is_open: false };
        self.counters.count(|counters| &counters.questions);
        self.due[1].set(Instant::now() + TIMEOUT_OF_STREAM, slot);
    }

    /// Looks at a question whose socket has changed.
    pub(super) fn on_server(&mut self, slot: Slot, poller: &Poller) {
        let Some(query) = self.queries.get_mut(slot.key) else { return };
        if query.generation != slot.generation {
            return;
        }
        let (outcome, is_stream) = match &mut query.way {
            Way::None => return,
            Way::Datagrams(socket) => {
                let (outcome, strangers) = receive(socket, &query.question);
                self.counters.add(|counters| &counters.bad_answers, strangers);
                (outcome, false)
            }
            Way::Stream { far, outgoing, answer, is_open } => {
                (exchange(&mut **far, is_open, outgoing, answer, &query.question), true)
            }
        };
        let is_v6 = query.is_v6;
        match outcome {
            Outcome::Waits => {}
            Outcome::Failed => self.send_on(slot.key, poller),
            Outcome::Answered(answer) => match addresses::read(&answer, is_v6) {
                Said::Addresses(found, ttl) => {
                    self.answered(slot.key, Part::Known(found, ttl), poller);
                }
                Said::Nothing => self.answered(slot.key, Part::Nothing, poller),
                Said::IsCut if !is_stream => self.ask_over_stream(slot.key, poller),
                Said::IsCut | Said::Helpless => self.send_on(slot.key, poller),
            },
        }
    }

    /// A question is over.
    fn answered(&mut self, key: usize, part: Part, poller: &Poller) {
        let query = self.queries.remove(key);
        self.table[query.lookup].parts[usize::from(query.is_v6)] = part;
        self.conclude(query.lookup, poller);
    }

    /// Ends a lookup if all is known. If one family is, the other one has a short time.
    fn conclude(&mut self, key: usize, poller: &Poller) {
        let lookup = &mut self.table[key];
        if lookup.asked().is_some() {
            if lookup.parts.iter().any(|part| matches!(part, Part::Known(..))) {
                let slot = Slot { key, generation: lookup.generation };
                self.telling.set(Instant::now() + TIME_OF_THE_OTHER, slot);
            }
            return;
        }
        let (found, ttl) = lookup.known();
        if !found.is_empty() {
            self.tell(key, &Ok(Arc::from(&found[..])), ttl);
            self.table.remove(key);
            return;
        }
        lookup.has_failed |= lookup.parts.iter().any(|part| matches!(part, Part::Failed));
        lookup.candidates.pop_front();
        if !lookup.candidates.is_empty() {
            return self.ask(key, poller);
        }
        let why = if lookup.has_failed { Failure::NoAnswer } else { Failure::NoName };
        self.tell(key, &Err(why), Duration::ZERO);
        self.table.remove(key);
    }

    /// Tells those who wait for a name, and notes what is known of it for others.
    fn tell(&mut self, key: usize, found: &Found, ttl: Duration) {
        let lookup = &mut self.table[key];
        if self.of_name.get(&lookup.name) == Some(&key) {
            self.of_name.remove(&lookup.name);
        }
        let known = match found {
            Ok(found) => Some(found.clone()),
            Err(why) => {
                self.counters.count(|counters| &counters.failed_lookups);
                (*why == Failure::NoName).then(|| Arc::new([]) as Arc<[IpAddr]>)
            }
        };
        if let Some(known) = known.filter(|_| lookup.changes == self.changes) {
            self.cache.put(lookup.name.clone(), known, ttl, Instant::now());
        }
        for waiter in std::mem::take(&mut lookup.waiters) {
            let (name, found) = (lookup.name.clone(), found.clone());
            self.done.push(Done { waiter, name, found });
        }
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(super) fn next_expiry(&mut self) -> Option<Instant> {
        for due in &mut self.due {
            due.drop_first(|slot| !is_asked(&self.queries, slot));
        }
        self.telling.drop_first(|slot| !waits(&self.table, slot));
        let telling = self.telling.next();
        self.due.iter().filter_map(Deadlines::next).chain(telling).min()
    }

    /// Goes on with questions that were not answered in time, and without the other family.
    pub(super) fn expire(&mut self, now: Instant, poller: &Poller) {
        while let Some(slot) = self.telling.take(now) {
            if waits(&self.table, slot) {
                let (found, ttl) = self.table[slot.key].known();
                self.table[slot.key].is_told = true;
                self.tell(slot.key, &Ok(Arc::from(&found[..])), ttl);
            }
        }
        for kind in 0..self.due.len() {
            while let Some(slot) = self.due[kind].take(now) {
                if is_asked(&self.queries, slot) {
                    self.send_on(slot.key, poller);
                }
            }
        }
    }
}

/// Whether a question is there, and waits for the server that it waited for.
fn is_asked(queries: &Slab<Query>, slot: Slot) -> bool {
    queries.get(slot.key).is_some_and(|query| query.generation == slot.generation)
}

/// Whether a lookup is there, whose name is waited for.
fn waits(table: &Slab<Lookup>, slot: Slot) -> bool {
    let lookup = table.get(slot.key);
    lookup.is_some_and(|lookup| lookup.generation == slot.generation && !lookup.is_told)
}

/// Whether the stack has addresses of IPv4, and of IPv6, that reach beyond their links.
fn families(stack: &Stack) -> [bool; 2] {
    [false, true].map(|is_v6| has_address(stack, is_v6))
}

/// RFC 6761 section 6.3.
fn loopback(is_v6_first: bool) -> Arc<[IpAddr]> {
    let mut both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    if is_v6_first {
        both.reverse();
    }
    Arc::new(both)
}

/// Names to ask for: one without a dot in each of the domains, and as it is.
fn candidates(name: &str, search: &[String]) -> VecDeque<String> {
    let domains = search.iter().filter(|_| !name.contains('.'));
    let longer = domains.map(|domain| format!("{name}.{}", domain.trim_matches('.')));
    longer.chain([name.to_owned()]).collect()
}

/// Sends a question from a new socket.
fn send(
    stack: &Stack,
    server: SocketAddr,
    question: &[u8],
    slot: Slot,
    poller: &Poller,
) -> io::Result<UdpSocket> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(stack, SocketAddr::new(any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(server)?;
    poller.add(&socket, Token::Query(slot).to_bits(), Events::IN | Events::ET)?;
    socket.send(question)?;
    Ok(socket)
}

/// Looks for the answer, and how many messages were none.
fn receive(socket: &UdpSocket, question: &[u8]) -> (Outcome, u64) {
    let (mut strangers, mut buffer) = (0, [0; MOST_ANSWER]);
    for _ in 0..MOST_STRANGERS {
        let answer = match socket.recv(&mut buffer) {
            Ok(count) => &buffer[..count],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return (Outcome::Waits, strangers);
            }
            // Nobody has the port, or there is no way.
            Err(_) => return (Outcome::Failed, strangers),
        };
        if is_answer(question, answer) {
            return (Outcome::Answered(answer.to_vec()), strangers);
        }
        strangers += 1;
    }
    // Somebody guesses: another port and ID are next.
    (Outcome::Failed, strangers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use domain::base::iana::Rcode;
    use domain::base::{Message, MessageBuilder, Rtype, Ttl};
    use domain::rdata::{A, Aaaa};
    use neap::InterfaceConfig;
    use std::os::unix::net::UnixDatagram;

    const V4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
    const V6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2);

    /// Lookups of a stack with both families, and servers at the other end of its cable.
    struct World {
        lookups: Lookups,
        poller: Poller,
        servers: [UdpSocket; 2],
        _far: Stack,
    }

    impl World {
        fn new() -> Self {
            let (one, other) = UnixDatagram::pair().expect("a pair");
            let stack = |end, addresses: [&str; 2]| {
                let device = device::device("cable", end).expect("a device");
                let addresses = addresses.map(|text| text.parse().expect("an address"));
                let interface = InterfaceConfig::new(device);
                let interface = addresses.into_iter().fold(interface, InterfaceConfig::address);
                Stack::builder().interface(interface).build().expect("a stack")
            };
            let near = Arc::new(stack(one, ["10.1.0.1/24", "fd01::1/64"]));
            let far = stack(other, ["10.1.0.2/24", "fd01::2/64"]);
            let servers = [53, 54].map(|port| UdpSocket::bind(&far, (V4, port)).expect("a socket"));
            let lookups = Lookups::new(near, resolver(53), Arc::default());
            Self { lookups, poller: Poller::new().expect("a poller"), servers, _far: far }
        }

        /// Asks for a name that is not known.
        fn ask(&mut self) {
            let waiter = Waiter::Session(Slot { key: 0, generation: Generation::default() });
            assert!(self.lookups.find(&"a.test".into(), waiter, &self.poller).is_none());
        }

        /// The questions that a server has got: that for IPv4, and that for IPv6.
        fn questions(&self, server: usize) -> [(Vec<u8>, SocketAddr); 2] {
            let next = || {
                let mut bytes = [0; 1000];
                let (count, from) = self.servers[server].recv_from(&mut bytes).expect("a question");
                (bytes[..count].to_vec(), from)
            };
            let is_v6 = |(question, _): &(Vec<u8>, SocketAddr)| {
                let message = Message::from_slice(question).expect("a question");
                message.sole_question().expect("a question").qtype() == Rtype::AAAA
            };
            let mut both = [next(), next()];
            both.sort_by_key(is_v6);
            both
        }

        /// Answers a question, and lets the lookups take the answer.
        fn answer(&mut self, server: usize, (question, to): &(Vec<u8>, SocketAddr)) {
            let question = Message::from_slice(question).expect("a question");
            let sole = question.sole_question().expect("a question");
            let answer = MessageBuilder::new_vec().start_answer(question, Rcode::NOERROR);
            let (mut answer, ttl) = (answer.expect("room"), Ttl::from_secs(60));
            match sole.qtype() {
                Rtype::AAAA => answer.push((sole.qname(), ttl, Aaaa::new(V6))),
                _ => answer.push((sole.qname(), ttl, A::new(V4))),
            }
            .expect("room");
            let before = self.lookups.queries.len();
            self.servers[server].send_to(&answer.finish(), *to).expect("sent");
            let mut events = Vec::new();
            while self.lookups.queries.len() == before {
                self.poller.wait(&mut events, None).expect("it can wait");
                for event in events.drain(..) {
                    if let Token::Query(slot) = Token::from_bits(event.token) {
                        self.lookups.on_server(slot, &self.poller);
                    }
                }
            }
        }

        /// The addresses that those who wait were told.
        fn told(&mut self) -> Vec<Vec<IpAddr>> {
            let done = self.lookups.done().into_iter();
            done.map(|done| done.found.expect("addresses").to_vec()).collect()
        }

        fn known(&mut self) -> Option<Vec<IpAddr>> {
            let known = self.lookups.known(&"a.test".into());
            known.map(|found| found.expect("addresses").to_vec())
        }
    }

    /// Which server at the other end is asked.
    fn resolver(port: u16) -> TunnelResolver {
        let servers = vec![SocketAddr::new(V4.into(), port)];
        TunnelResolver { servers, search: Vec::new(), strategy: ResolveStrategy::Auto }
    }

    #[test]
    fn both_families_are_told_if_the_second_one_follows_at_once() {
        let mut world = World::new();
        world.ask();
        let [v4, v6] = world.questions(0);
        world.answer(0, &v6);
        assert!(world.told().is_empty(), "the other one may follow");
        world.answer(0, &v4);
        let both = vec![IpAddr::from(V6), V4.into()];
        assert_eq!((world.told(), world.known()), (vec![both.clone()], Some(both)));
        assert_eq!((world.lookups.table.len(), world.lookups.next_expiry()), (0, None));
    }

    #[test]
    fn those_who_wait_for_one_name_are_bounded() {
        let mut world = World::new();
        for _ in 0..MOST_WAITERS {
            world.ask();
        }
        let waiter = Waiter::Session(Slot { key: 0, generation: Generation::default() });
        let refused = world.lookups.find(&"a.test".into(), waiter, &world.poller);
        assert_eq!(refused, Some(Err(Failure::Full)));
        assert_eq!(world.lookups.waiters_of("a.test"), MOST_WAITERS);
        assert_eq!(world.lookups.counters.figures().full_lookups, 1);
        let questions = world.questions(0);
        questions.iter().for_each(|question| world.answer(0, question));
        assert_eq!(world.told().len(), MOST_WAITERS);
    }

    #[test]
    fn a_server_that_answers_for_ipv4_alone_delays_a_name_no_more_than_one_for_ipv6_alone() {
        for is_v6 in [false, true] {
            let mut world = World::new();
            world.ask();
            let questions = world.questions(0);
            world.answer(0, &questions[usize::from(is_v6)]);
            let due = world.lookups.next_expiry().expect("somebody waits");
            assert!(due <= Instant::now() + TIME_OF_THE_OTHER);
            world.lookups.expire(due, &world.poller);
            let own = if is_v6 { IpAddr::from(V6) } else { V4.into() };
            assert_eq!(world.told(), [vec![own]]);
        }
    }

    #[test]
    fn a_family_that_comes_late_is_known_from_then_on() {
        let mut world = World::new();
        world.ask();
        let [v4, v6] = world.questions(0);
        world.answer(0, &v6);
        world.lookups.expire(Instant::now() + TIME_OF_THE_OTHER, &world.poller);
        let first = vec![IpAddr::from(V6)];
        assert_eq!((world.told(), world.known()), (vec![first.clone()], Some(first)));
        world.answer(0, &v4);
        assert_eq!((world.told(), world.known()), (vec![], Some(vec![V6.into(), V4.into()])));
        assert!(world.lookups.table.is_empty());
    }

    #[test]
    fn a_family_that_nobody_waits_for_is_asked_for_no_more_and_makes_room() {
        let mut world = World::new();
        let later = Instant::now() + 2 * TIMEOUT;
        world.ask();
        let [_, v6] = world.questions(0);
        world.answer(0, &v6);
        world.lookups.expire(later, &world.poller);
        assert_eq!(world.told().len(), 1);
        assert!(world.lookups.table.is_empty() && world.lookups.queries.is_empty());
        world.lookups.cache = Cache::default();
        world.ask();
        let [_, v6] = world.questions(0);
        world.answer(0, &v6);
        assert!(!world.lookups.make_room(), "somebody waits");
        world.lookups.expire(Instant::now() + TIME_OF_THE_OTHER, &world.poller);
        assert!(world.lookups.make_room());
        assert!(world.lookups.table.is_empty() && world.lookups.queries.is_empty());
    }

    #[test]
    fn what_an_earlier_server_says_is_for_those_alone_who_have_asked_it() {
        let mut world = World::new();
        world.ask();
        let old = world.questions(0);
        world.lookups.set_resolver(resolver(54));
        world.ask();
        let [v4, v6] = world.questions(1);
        old.iter().for_each(|question| world.answer(0, question));
        assert_eq!((world.told().len(), world.known()), (1, None));
        world.answer(1, &v4);
        world.answer(1, &v6);
        assert_eq!(world.told().len(), 1);
        assert!(world.known().is_some());
    }

    #[test]
    fn a_name_without_a_dot_is_looked_for_in_the_domains_first() {
        let search = ["lan.".to_owned(), "example.org".to_owned()];
        assert_eq!(
            candidates("printer", &search),
            ["printer.lan", "printer.example.org", "printer"]
        );
        assert_eq!(candidates("a.b", &search), ["a.b"]);
    }
}
