//! The other halves of connections: names, addresses that are tried in turn, and what becomes of
//! them.
//!
//! An address that does not answer soon is followed by the next one and stays open beside it; the
//! first that is open is taken (RFC 8305 section 5). So a target costs at most a socket of the
//! stack, or a descriptor, for each of [`MOST_ADDRESSES`].

use super::{
    Arc, Attempt, CHANGES, Clock, Direct, Done, Door, Doors, Failure, Far, FlowView, Found,
    GuestStream, Host, IpAddr, Joined, Next, Opens, Slot, SocketAddr, Stage, Target, Token,
    Upstream, VecDeque, Waiter, Wanted, Wish, io, stack_upstream,
};
use bytes::BytesMut;
use std::net::SocketAddrV6;
use tracing::debug;

/// Addresses of a name that are tried.
const MOST_ADDRESSES: usize = 16;

impl Doors {
    /// A client wants a connection.
    pub(super) fn on_request(&mut self, key: usize, request: Wish) {
        let session = &mut self.sessions[key];
        let next = Stage::Leaves { has_ended: false };
        let Stage::Asks { dialogue, received } = std::mem::replace(&mut session.stage, next) else {
            return;
        };
        // A target of the host's network, to which the connection leaves beside the stack.
        let is_of_host = matches!(self.doors[session.door], Door::Server { .. });
        let Target { host, port } = request.target.clone();
        let wanted = Wanted { dialogue, request, received: BytesMut::freeze(received) };
        let waiter = Waiter::Session(Slot { key, generation: session.generation });
        match host {
            Host::Address(ip) => self.open_first(key, wanted, [SocketAddr::new(ip, port)].into()),
            Host::OfLink(ip, interface) if is_of_host => {
                let to = SocketAddrV6::new(ip, port, 0, interface);
                self.open_first(key, wanted, [to.into()].into());
            }
            // The stack does not have that link.
            Host::OfLink(..) => self.fail(key, &wanted, Failure::Network),
            Host::Name(name) => match self.find(&name, waiter, is_of_host) {
                Some(found) => self.on_found(key, wanted, &found),
                None => {
                    self.sessions[key].stage = Stage::LooksUp(Box::new(wanted));
                    self.set_clock(key, Clock::LookUp);
                }
            },
        }
    }

    /// Looks a name up, by the host if it is one of the host's network and there are no servers
    /// behind the stack. `None` if it is done later.
    fn find(&mut self, name: &Arc<str>, waiter: Waiter, is_of_host: bool) -> Option<Found> {
        let Waiter::Session(slot) = waiter else { return Some(Err(Failure::Other)) };
        if !is_of_host || !self.lookups.has_no_server() {
            return self.lookups.find(name, waiter, &self.poller);
        }
        if let Some(known) = self.lookups.known(name) {
            return Some(known);
        }
        if let Some(known) = self.host_names.known(name) {
            self.counters.count(|counters| &counters.cached_lookups);
            return Some(known);
        }
        match self.host_names.find(name, slot) {
            Ok(()) => None,
            Err(why) => {
                self.counters.count(|counters| &counters.full_lookups);
                Some(Err(why))
            }
        }
    }

    /// Goes on with those whose name the host has looked up.
    pub(super) fn on_host_name(&mut self, name: &Arc<str>, found: &Found) {
        if found.is_err() {
            self.counters.count(|counters| &counters.failed_lookups);
        }
        for slot in self.host_names.take(name, found) {
            self.on_name(slot, found);
        }
    }

    /// Goes on with those whose names were looked up.
    pub(super) fn take_names(&mut self) {
        loop {
            let done = self.lookups.done();
            if done.is_empty() {
                return;
            }
            for Done { waiter, name, found } in done {
                match waiter {
                    Waiter::Session(slot) => self.on_name(slot, &found),
                    Waiter::Mapping(slot) => {
                        self.mappings.on_name(slot, &name, &found, &self.poller);
                    }
                }
            }
        }
    }

    fn on_name(&mut self, slot: Slot, found: &Found) {
        let Some(session) = self.session(slot) else { return };
        if !matches!(session.stage, Stage::LooksUp(_)) {
            return;
        }
        let next = Stage::Leaves { has_ended: false };
        if let Stage::LooksUp(wanted) = std::mem::replace(&mut session.stage, next) {
            self.on_found(slot.key, *wanted, found);
            self.visit(slot.key);
        }
    }

    fn on_found(&mut self, key: usize, wanted: Wanted, found: &Found) {
        let port = wanted.request.target.port;
        match found {
            Ok(found) => {
                let addresses = in_turn(found).into_iter().take(MOST_ADDRESSES);
                let addresses = addresses.map(|ip| SocketAddr::new(ip, port));
                self.open_first(key, wanted, addresses.collect());
            }
            Err(why) => self.fail(key, &wanted, *why),
        }
    }

    /// Begins a connection to the first of some addresses that takes one.
    fn open_first(&mut self, key: usize, wanted: Wanted, addresses: VecDeque<SocketAddr>) {
        self.open_next(key, Box::new(Opens::new(wanted, addresses)));
    }

    /// Begins a connection to the next address that takes one, beside those that are begun. Fails
    /// if there is none, and nothing is begun.
    fn open_next(&mut self, key: usize, mut opens: Box<Opens>) {
        while let Some(to) = opens.others.pop_front() {
            // News of this attempt must not be taken for that of another one.
            let slot = Slot { key, generation: self.generation.advance() };
            let begun = self.connect(key, to).and_then(|(far, view)| {
                far.enter(&self.poller, Token::Far(slot).to_bits(), CHANGES)?;
                Ok(Attempt { far, view, generation: slot.generation })
            });
            opens.add(begun);
            if !opens.has_lost_last() {
                break;
            }
        }
        if !opens.has_some() {
            return self.fail(key, &opens.wanted, opens.why());
        }
        let clock = if !opens.others.is_empty() {
            Clock::Attempt
        } else if opens.has_lost_last() {
            Clock::Open
        } else {
            Clock::OpenLast
        };
        self.sessions[key].stage = Stage::Opens(opens);
        self.set_clock(key, clock);
    }

    /// Begins the far half: of the stack, or of the host for a port of the stack.
    fn connect(&self, key: usize, to: SocketAddr) -> io::Result<(Box<dyn Far>, FlowView)> {
        let session = &self.sessions[key];
        if matches!(self.doors[session.door], Door::Server { .. }) {
            let far = Direct.connect(&to.into(), session.client.into())?;
            let (local, guest) = (session.local, session.client);
            return Ok((far, FlowView { local, guest, far: to, held: 0 }));
        }
        let options = stack_upstream::options();
        let far = GuestStream::connect_from_stack(&self.stack, to, options)?;
        let local = far.stream().local_addr()?;
        let view = FlowView { local, guest: to, far: session.client, held: 0 };
        Ok((Box::new(far), view))
    }

    /// Looks whether a far half is open.
    pub(super) fn look_at_far(&mut self, key: usize) -> Next {
        let session = &mut self.sessions[key];
        let Stage::Opens(opens) = &mut session.stage else { return Next::Waits };
        let had_lost_last = opens.has_lost_last();
        let open = opens.take_open();
        // The next address is tried at once if the last one has failed.
        let goes_on = opens.has_lost_last() && !had_lost_last || !opens.has_some();
        if open.is_none() && !goes_on {
            return Next::Waits;
        }
        let next = Stage::Leaves { has_ended: false };
        let opens = std::mem::replace(&mut session.stage, next);
        let Stage::Opens(mut opens) = opens else { return Next::Waits };
        let Some(open) = open else {
            self.open_next(key, opens);
            return Next::GoesOn;
        };
        self.counters.count(|counters| &counters.opened);
        let is_own = !matches!(self.doors[session.door], Door::Server { .. });
        let wanted = &mut opens.wanted;
        let answer = wanted.dialogue.opened(is_own.then_some(open.view.local));
        session.out.extend((!answer.is_empty()).then_some(answer));
        let joined = Joined::new(wanted, &mut session.near, open);
        session.stage = Stage::Joins { joined: Box::new(joined) };
        session.due = None;
        debug!(client = %session.client, far = %wanted.request.target, "connection opened");
        Next::GoesOn
    }

    /// The time of a stage is over.
    pub(super) fn on_time_over(&mut self, key: usize) {
        let session = &mut self.sessions[key];
        let next = Stage::Leaves { has_ended: true };
        match std::mem::replace(&mut session.stage, next) {
            Stage::LooksUp(wanted) => self.fail(key, &wanted, Failure::NoAnswer),
            Stage::Opens(mut opens) if opens.others.is_empty() => {
                opens.reset();
                self.fail(key, &opens.wanted, opens.why());
            }
            Stage::Opens(opens) => self.open_next(key, opens),
            stage @ Stage::Asks { .. } => {
                session.stage = stage;
                return self.end(key, "slow", |counters| &counters.slow);
            }
            stage => {
                session.stage = stage;
                if !matches!(session.flush(), Ok(true)) {
                    if let Stage::Lingers { has_moved } = &mut session.stage
                        && std::mem::take(has_moved)
                    {
                        return self.set_clock(key, Clock::Linger);
                    }
                    // It is not to take a stream that is cut for a whole one.
                    session.reset();
                }
                return self.end(key, "left", |counters| &counters.finished);
            }
        }
        self.visit(key);
    }

    /// The connection could not be opened.
    fn fail(&mut self, key: usize, wanted: &Wanted, why: Failure) {
        self.counters.count(|counters| &counters.unreached);
        let session = &mut self.sessions[key];
        let target = &wanted.request.target;
        debug!(client = %session.client, %target, why = why.words(), "connection not opened");
        let door = session.door;
        self.end_stdio(door, || Err(io::Error::other(format!("{target}: {}", why.words()))));
        self.leave(key, wanted.dialogue.failed(why));
    }
}

/// The addresses of a name in the order in which they are tried: those of its first family and of
/// the other one take turns (RFC 8305 section 4), so that a family that is not reached delays a
/// connection once.
fn in_turn(found: &[IpAddr]) -> Vec<IpAddr> {
    let is_of_first = |ip: &&IpAddr| ip.is_ipv6() == found[0].is_ipv6();
    let mut other = found.iter().filter(|ip| !is_of_first(ip));
    let mut in_turn = Vec::with_capacity(found.len());
    for ip in found.iter().filter(is_of_first) {
        in_turn.push(*ip);
        in_turn.extend(other.next());
    }
    in_turn.extend(other);
    in_turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::doors::config::{DoorsConfig, ResolveStrategy, TunnelResolver};
    use crate::doors::dialogue::Dialogue;
    use crate::doors::engine::{TIME_TO_LINGER, TIME_TO_OPEN, TIME_TO_THE_NEXT};
    use crate::doors::near::Near;
    use crate::doors::session::Session;
    use crate::doors::session::tests::{Fake, joined};
    use crate::news::News;
    use crate::relay::Side;
    use bytes::Bytes;
    use neap::{Event, Events, InterfaceConfig, Stack, TcpListener};
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A stack at an end of a cable.
    fn stack(end: UnixDatagram, addresses: &[&str]) -> Arc<Stack> {
        let interface = InterfaceConfig::new(device::device("cable", end).expect("a device"));
        let addresses = addresses.iter().map(|text| text.parse().expect("an address"));
        let interface = addresses.fold(interface, InterfaceConfig::address);
        Arc::new(Stack::builder().interface(interface).build().expect("a stack"))
    }

    /// Doors of a stack, to which no client comes.
    fn doors(stack: Arc<Stack>) -> Doors {
        let strategy = ResolveStrategy::Auto;
        let resolver = TunnelResolver { servers: Vec::new(), search: Vec::new(), strategy };
        let listen = "127.0.0.1:0".parse().expect("an address");
        let target = "10.0.2.4:7".parse().expect("a target");
        let doors = vec![Door::Client { listen, target }];
        Doors::open(DoorsConfig::new(stack, resolver, doors)).expect("doors")
    }

    /// A connection that is finished, but for the bytes that the client has no room for.
    fn lingering() -> (Doors, Slot, Fake) {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let mut doors = doors(stack(own, &["10.0.2.3/24"]));
        let (near, far) = (Fake::default(), Fake::default());
        let slot = doors.next_slot();
        let session = joined(&near, &far);
        doors.sessions.insert(Session { generation: slot.generation, ..session });
        far.script().has_ended = true;
        near.script().has_ended = true;
        near.script().is_full = true;
        doors.visit(slot.key);
        assert_eq!(doors.figures().finished, 1);
        (doors, slot, near)
    }

    /// Both ends of a cable of which the far one knows IPv4 alone: it swallows what comes by IPv6.
    fn without_far_v6() -> (Doors, Arc<Stack>) {
        let (doors, far) = without_far();
        (doors, stack(far, &["10.0.2.4/24"]))
    }

    /// Doors of a stack, and the end of its cable, where nobody answers yet.
    fn without_far() -> (Doors, UnixDatagram) {
        let (one, other) = UnixDatagram::pair().expect("a pair");
        (doors(stack(one, &["10.0.2.3/24", "fd00::3/64"])), other)
    }

    fn wanted() -> Wanted {
        let request = Wish::plain("both.test:7".parse().expect("a target"));
        let dialogue = Dialogue::Fixed(request.target.clone());
        Wanted { dialogue, request, received: Bytes::new() }
    }

    /// A session of a client at this stage.
    fn begun(doors: &mut Doors, stage: Stage) -> Slot {
        let (slot, near) = (doors.next_slot(), Near::new(Box::new(Fake::default())));
        let session = joined(&Fake::default(), &Fake::default());
        doors.sessions.insert(Session { generation: slot.generation, near, stage, ..session });
        slot
    }

    /// A connection whose name has just got these addresses.
    fn named(doors: &mut Doors, found: &[&str]) -> Slot {
        let slot = begun(doors, Stage::LooksUp(Box::new(wanted())));
        let found = found.iter().map(|text| text.parse().expect("an address"));
        doors.on_name(slot, &Ok(found.collect()));
        slot
    }

    /// Where the stack has connections to, or tries to have them.
    fn tried(doors: &Doors) -> Vec<SocketAddr> {
        let mut tried: Vec<_> = doors.stack.host().flows().iter().map(|flow| flow.remote).collect();
        tried.sort();
        tried
    }

    /// Waits until the stack has ended what is given up.
    fn until_tried(doors: &Doors, expected: &[SocketAddr]) {
        while tried(doors) != expected {
            std::thread::yield_now();
        }
    }

    /// Lets events change a session until this holds of it.
    fn until(doors: &mut Doors, slot: Slot, holds: impl Fn(&Stage) -> bool) {
        let mut events = Vec::new();
        while !doors.session(slot).is_some_and(|session| holds(&session.stage)) {
            doors.poller.wait(&mut events, None).expect("it can wait");
            doors.on_events(&mut events);
        }
    }

    #[test]
    fn an_address_that_swallows_all_is_soon_followed_by_the_next_and_reset_once_that_is_open() {
        let (mut doors, far) = without_far();
        let slot = named(&mut doors, &["fd00::4", "10.0.2.4"]);
        let both = ["10.0.2.4:7", "[fd00::4]:7"].map(|text| text.parse().expect("an address"));
        assert_eq!(tried(&doors), both[1..]);
        let due = doors.next_expiry().expect("the next address follows");
        assert!(due <= Instant::now() + Duration::from_millis(250));
        doors.expire(due);
        assert_eq!(tried(&doors), both);
        let begun = doors.session(slot).map(|session| session.stage.begun());
        assert_eq!(begun, Some(2), "the first one is still tried");
        // It reads what has come once the listener is there.
        let device = device::device("cable", far).expect("a device");
        let address = "10.0.2.4/24".parse().expect("an address");
        let interface = InterfaceConfig::new(device).address(address).begin_unread();
        let far = Stack::builder().interface(interface).build().expect("a stack");
        let _listener = TcpListener::bind(&far, "0.0.0.0:7").expect("a listener");
        let id = far.host().interfaces()[0].id;
        assert!(far.begin_reading(id).expect("an interface"));
        until(&mut doors, slot, |stage| matches!(stage, Stage::Joined(_)));
        until_tried(&doors, &both[..1]);
        assert_eq!(doors.figures().opened, 1);
    }

    #[test]
    fn news_of_an_attempt_that_was_given_up_is_none_of_the_connection_that_is_taken() {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let mut doors = doors(stack(own, &["10.0.2.3/24"]));
        let fars = [Fake::default(), Fake::default()];
        fars[0].script().is_opening = true;
        let nobody = "0.0.0.0:0".parse().expect("an address");
        let view = FlowView { local: nobody, guest: nobody, far: nobody, held: 0 };
        let mut opens = Opens::new(wanted(), VecDeque::new());
        let generations = fars.each_ref().map(|far| {
            let generation = doors.generation.advance();
            opens.add(Ok(Attempt { far: Box::new(far.clone()), view, generation }));
            generation
        });
        let slot = begun(&mut doors, Stage::Opens(Box::new(opens)));
        let [given_up, taken] =
            generations.map(|generation| Token::Far(Slot { generation, ..slot }).to_bits());
        let mut events = vec![
            Event { token: taken, events: Events::OUT },
            Event { token: given_up, events: Events::ERR | Events::HUP },
        ];
        doors.on_events(&mut events);
        assert!(fars[0].script().was_reset);
        let session = doors.session(slot).expect("it goes on");
        assert!(matches!(session.stage, Stage::Joined(_)) && !session.has_error);
        let mut events = vec![Event { token: taken, events: Events::ERR }];
        doors.on_events(&mut events);
        assert!(doors.session(slot).is_some_and(|session| session.has_error));
    }

    #[test]
    fn the_last_address_says_why_nothing_is_open_once_the_others_have_had_their_time() {
        let (mut doors, _far) = without_far_v6();
        let slot = named(&mut doors, &["fd00::4", "10.0.2.4"]);
        doors.expire(Instant::now() + TIME_TO_THE_NEXT);
        until(
            &mut doors,
            slot,
            |stage| matches!(stage, Stage::Opens(opens) if opens.why() == Failure::Refused),
        );
        let due = doors.next_expiry().expect("the first one has its time");
        assert!(due <= Instant::now() + TIME_TO_OPEN);
        let counted = doors.figures().unreached;
        doors.expire(Instant::now() + TIME_TO_OPEN);
        assert_eq!((counted, doors.figures().unreached), (0, 1));
        until_tried(&doors, &[]);
    }

    #[test]
    fn an_address_that_is_refused_is_followed_at_once() {
        let (one, other) = UnixDatagram::pair().expect("a pair");
        let mut doors = doors(stack(one, &["10.0.2.3/24"]));
        let far = stack(other, &["10.0.2.4/24", "10.0.2.5/24"]);
        let _listener = TcpListener::bind(&far, "10.0.2.5:7").expect("a listener");
        let slot = named(&mut doors, &["10.0.2.4", "10.0.2.5"]);
        // No time passes for it.
        until(&mut doors, slot, |stage| matches!(stage, Stage::Joined(_)));
        until_tried(&doors, &["10.0.2.5:7".parse().expect("an address")]);
    }

    #[test]
    fn the_families_take_turns_and_the_first_one_begins() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().expect("an address")).collect()
        };
        let (found, expected) = (
            addresses(&["fd00::1", "fd00::2", "fd00::3", "10.0.0.1", "10.0.0.2"]),
            addresses(&["fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "fd00::3"]),
        );
        assert_eq!(in_turn(&found), expected);
        let (found, expected) = (
            addresses(&["10.0.0.1", "fd00::1", "fd00::2"]),
            addresses(&["10.0.0.1", "fd00::1", "fd00::2"]),
        );
        assert_eq!(in_turn(&found), expected);
    }

    #[test]
    fn a_client_that_takes_the_last_bytes_slowly_has_time_anew_and_is_reset_if_it_stops() {
        let (mut doors, slot, near) = lingering();
        doors.on_side(slot, News::of(Side::Client, Events::OUT));
        doors.expire(Instant::now() + TIME_TO_LINGER);
        assert!(doors.session(slot).is_some(), "it took something");
        assert!(!near.script().was_reset);
        doors.expire(Instant::now() + TIME_TO_LINGER);
        assert!(doors.session(slot).is_none(), "it took nothing for the whole time");
        assert!(near.script().was_reset, "it takes a cut stream for a whole one");
    }

    #[test]
    fn a_client_that_has_all_and_stays_is_not_reset() {
        let (mut doors, slot, near) = lingering();
        near.script().is_full = false;
        near.script().has_ended = false;
        // What it says now gives it no more time.
        doors.on_side(slot, News::of(Side::Client, Events::IN | Events::OUT));
        assert!(doors.session(slot).is_some());
        doors.expire(Instant::now() + TIME_TO_LINGER);
        assert!(doors.session(slot).is_none());
        assert!(!near.script().was_reset, "what the kernel has may be on its way");
    }
}
