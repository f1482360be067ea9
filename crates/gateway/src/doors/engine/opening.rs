//! The other halves of connections: names, addresses that are tried in turn, and what becomes of
//! them.

use super::{
    Arc, CHANGES, Clock, Direct, Done, Door, Doors, Failure, Far, FlowView, Found, GuestStream,
    Host, Joined, Next, Slot, SocketAddr, Stage, Target, Token, Upstream, VecDeque, Waiter, Wanted,
    Wish, io, stack_upstream,
};
use bytes::BytesMut;
use std::net::SocketAddrV6;
use tracing::debug;

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
        let wanted = Box::new(Wanted { dialogue, request, received: BytesMut::freeze(received) });
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
                    self.sessions[key].stage = Stage::LooksUp(wanted);
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
        match self.host_names.find(name, slot) {
            Ok(()) => None,
            Err(why) => {
                self.counters.count(|counters| &counters.full_lookups);
                Some(Err(why))
            }
        }
    }

    /// Goes on with those whose name the host has looked up.
    pub(super) fn on_host_name(&mut self, name: &str, found: &Found) {
        if found.is_err() {
            self.counters.count(|counters| &counters.failed_lookups);
        }
        for slot in self.host_names.take(name) {
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
            self.on_found(slot.key, wanted, found);
            self.visit(slot.key);
        }
    }

    fn on_found(&mut self, key: usize, wanted: Box<Wanted>, found: &Found) {
        let port = wanted.request.target.port;
        match found {
            Ok(found) => {
                let addresses = found.iter().map(|&ip| SocketAddr::new(ip, port));
                self.open_first(key, wanted, addresses.collect());
            }
            Err(why) => self.fail(key, &wanted, *why),
        }
    }

    /// Begins a connection to the first of some addresses that takes one.
    fn open_first(&mut self, key: usize, wanted: Box<Wanted>, mut others: VecDeque<SocketAddr>) {
        let mut why = Failure::NoName;
        while let Some(to) = others.pop_front() {
            let session = &self.sessions[key];
            let slot = Slot { key, generation: session.generation };
            let begun = self.connect(key, to).and_then(|(far, view)| {
                far.enter(&self.poller, Token::Far(slot).to_bits(), CHANGES)?;
                Ok((far, view))
            });
            match begun {
                Ok((far, view)) => {
                    let clock = if others.is_empty() { Clock::OpenLast } else { Clock::Open };
                    self.sessions[key].stage = Stage::Opens { wanted, far, others, view };
                    return self.set_clock(key, clock);
                }
                Err(error) => why = Failure::of(&error),
            }
        }
        self.fail(key, &wanted, why);
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

    /// Looks whether the far half is open.
    pub(super) fn look_at_far(&mut self, key: usize) -> Next {
        let Stage::Opens { far, .. } = &mut self.sessions[key].stage else { return Next::Waits };
        let is_open = far.is_open();
        if matches!(is_open, Ok(false)) {
            return Next::Waits;
        }
        let session = &mut self.sessions[key];
        let next = Stage::Leaves { has_ended: false };
        let opens = std::mem::replace(&mut session.stage, next);
        let Stage::Opens { mut wanted, far, others, view } = opens else { return Next::Waits };
        match is_open {
            Ok(_) => {
                self.counters.count(|counters| &counters.opened);
                let is_own = !matches!(self.doors[session.door], Door::Server { .. });
                let answer = wanted.dialogue.opened(is_own.then_some(view.local));
                session.out.extend((!answer.is_empty()).then_some(answer));
                let joined = Joined::new(&mut wanted, &mut session.near, far, view);
                session.stage = Stage::Joins { joined: Box::new(joined) };
                session.due = None;
                debug!(client = %session.client, far = %wanted.request.target, "connection opened");
            }
            Err(error) if others.is_empty() => self.fail(key, &wanted, Failure::of(&error)),
            Err(_) => self.open_first(key, wanted, others),
        }
        Next::GoesOn
    }

    /// The time of a stage is over.
    pub(super) fn on_time_over(&mut self, key: usize) {
        let session = &mut self.sessions[key];
        let next = Stage::Leaves { has_ended: true };
        match std::mem::replace(&mut session.stage, next) {
            Stage::LooksUp(wanted) => self.fail(key, &wanted, Failure::NoAnswer),
            Stage::Opens { wanted, mut far, others, .. } => {
                far.reset();
                if others.is_empty() {
                    self.fail(key, &wanted, Failure::TimedOut);
                } else {
                    self.open_first(key, wanted, others);
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::doors::config::{DoorsConfig, ResolveStrategy, TunnelResolver};
    use crate::doors::engine::TIME_TO_LINGER;
    use crate::doors::session::Session;
    use crate::doors::session::tests::{Fake, joined};
    use crate::news::News;
    use crate::relay::Side;
    use neap::{Events, Stack};
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;
    use std::time::Instant;

    /// Doors without a door, and a connection of theirs that is finished, but for the bytes that
    /// the client has no room for.
    fn lingering() -> (Doors, Slot, Fake) {
        let (own, _cable) = UnixDatagram::pair().expect("a pair");
        let device = device::device("cable", own).expect("a device");
        let stack = Stack::builder().device(device).address("10.0.2.3/24").build();
        let strategy = ResolveStrategy::Auto;
        let resolver = TunnelResolver { servers: Vec::new(), search: Vec::new(), strategy };
        let listen = "127.0.0.1:0".parse().expect("an address");
        let target = "10.0.2.4:7".parse().expect("a target");
        let doors = vec![Door::Client { listen, target }];
        let config = DoorsConfig::new(Arc::new(stack.expect("a stack")), resolver, doors);
        let mut doors = Doors::open(config).expect("doors");
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
