//! The thread of doors: it takes connections, learns what they want, opens their other halves, and
//! relays.

use super::config::{Door, DoorsConfig, DoorsError, Host, Target};
use super::dialogue::{Dialogue, MOST_HEAD};
use super::figures::{Counters, DoorsFigures, DoorsInspector};
use super::handle::{DoorId, DoorsHandle, Request};
use super::host_names::HostNames;
use super::lookups::{Done, Lookups, Waiter};
use super::mappings::{Mappings, Ways};
use super::near::Near;
use super::ports::{Arrived, CHANGES, Port};
use super::session::{Attempt, Joined, Next, Opens, PIECE_OF_HEAD, Session, Stage, Wanted};
use super::step::{Failure, Fault, Found, Request as Wish, Step};
use super::tls::TlsIdentity;
use super::users::Users;
use super::{http, socks};
use crate::bounds;
use crate::deadlines::Deadlines;
use crate::descriptors;
use crate::guest::GuestStream;
use crate::holdings::{FlowView, Relays};
use crate::news::News;
use crate::pauses::Pauses;
use crate::relay::{End, Share, Side, VISIT};
use crate::requests::Requests;
use crate::stack_upstream;
use crate::token::{Generation, Slot, Token};
use crate::turns::{BULK, LOOKS, Turn, Turns};
use crate::upstream::{Direct, Far, Upstream};
use bytes::{Bytes, BytesMut};
use neap::{Event, Poller, Stack};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

mod opening;

/// Connections that are taken before others have their turn.
const NEW_AT_ONCE: usize = 64;

/// A name has so long to be looked up: each of some servers is asked twice.
const TIME_TO_LOOK_UP: Duration = Duration::from_secs(30);
/// An address has so long to accept a connection before the next one is tried beside it (RFC 8305
/// section 5, the Connection Attempt Delay).
const TIME_TO_THE_NEXT: Duration = Duration::from_millis(250);
/// The last address has so long, in which the stack sends some SYNs.
const TIME_OF_THE_LAST: Duration = Duration::from_secs(60);
/// The others have so long once the last one has failed.
const TIME_TO_OPEN: Duration = Duration::from_secs(5);
/// A client may pause for so long before it has the last bytes.
const TIME_TO_LINGER: Duration = Duration::from_secs(60);
/// A client that is refused has so long to take its answer.
const TIME_TO_LEAVE: Duration = Duration::from_secs(5);
/// The target of standard input and output has so long to acknowledge the last bytes.
const TIME_TO_DELIVER: Duration = Duration::from_secs(10);

/// Stages that end in time.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Ask,
    LookUp,
    Attempt,
    Open,
    OpenLast,
    Linger,
    Leave,
}

impl Clock {
    const ALL: [Self; 7] = [
        Self::Ask,
        Self::LookUp,
        Self::Attempt,
        Self::Open,
        Self::OpenLast,
        Self::Linger,
        Self::Leave,
    ];

    /// How long the stage may last. Each of them is the same for all connections.
    fn time(self, patience: Duration) -> Duration {
        match self {
            Self::Ask => patience,
            Self::LookUp => TIME_TO_LOOK_UP,
            Self::Attempt => TIME_TO_THE_NEXT,
            Self::Open => TIME_TO_OPEN,
            Self::OpenLast => TIME_OF_THE_LAST,
            Self::Linger => TIME_TO_LINGER,
            Self::Leave => TIME_TO_LEAVE,
        }
    }
}

/// Doors of a stack, which one thread serves.
pub struct Doors {
    poller: Arc<Poller>,
    stack: Arc<Stack>,
    /// The doors, where they listen and their numbers. A place is used again once its door is
    /// closed and has no connections.
    doors: Vec<Door>,
    ports: Vec<Port>,
    ids: Vec<DoorId>,
    last: u64,
    sessions: Slab<Session>,
    /// Connections of each address.
    clients: HashMap<IpAddr, usize>,
    mappings: Mappings,
    lookups: Lookups,
    host_names: HostNames,
    /// When stages end, of each [`Clock`].
    due: [Deadlines; Clock::ALL.len()],
    /// Doors whose connections could not be taken.
    pauses: Pauses,
    /// What goes on when the others had their turn.
    waiting: Turns,
    /// What the relays of all sessions hold.
    held: bounds::Held,
    most_connections: usize,
    most_of_a_client: usize,
    /// Why connections were refused so far. The log tells of each reason once.
    refusals: Vec<&'static str>,
    patience: Duration,
    generation: Generation,
    counters: Arc<Counters>,
    requests: Requests<Request>,
    /// When the run ends, though connections are left, or bytes in the stack.
    ends: Option<Instant>,
    /// How the connection of standard input and output has ended, with which the run ends.
    stdio: Option<io::Result<()>>,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors").field("doors", &self.doors).finish_non_exhaustive()
    }
}

impl Doors {
    /// Opens the ports of all doors. From now on the stack is left to the thread that
    /// [runs](Self::run) the doors.
    ///
    /// # Errors
    /// The door whose port cannot be had, and why; or there are no descriptors left.
    pub fn open(mut config: DoorsConfig) -> Result<Self, DoorsError> {
        descriptors::learn();
        stack_upstream::leave(&config.stack);
        let poller = Arc::new(Poller::new()?);
        let ports = Port::open_all(&mut config);
        let ports = ports.map_err(|(door, error)| DoorsError { door: Some(door), error })?;
        for (index, port) in ports.iter().enumerate() {
            port.enter(&poller, Token::Published(index).to_bits())?;
        }
        let DoorsConfig { stack, resolver, doors, most_mappings, .. } = config;
        let (counters, held) = (Arc::<Counters>::default(), bounds::Held::new(&stack));
        let requests = Requests::new(poller.clone());
        Ok(Self {
            host_names: HostNames::new(requests.caller()),
            requests,
            poller,
            ids: (0..doors.len() as u64).map(DoorId).collect(),
            last: doors.len() as u64,
            doors,
            ports,
            sessions: Slab::new(),
            clients: HashMap::new(),
            mappings: Mappings::new(stack.clone(), most_mappings, counters.clone()),
            lookups: Lookups::new(stack.clone(), resolver, counters.clone()),
            stack,
            due: Default::default(),
            pauses: Pauses::default(),
            waiting: Turns::default(),
            held,
            most_connections: config.most_connections,
            most_of_a_client: config.most_of_a_client,
            refusals: Vec::new(),
            patience: config.patience,
            generation: Generation::default(),
            counters,
            ends: None,
            stdio: None,
        })
    }

    /// Where each door listens, in their order: an address and port of the host, or of the stack
    /// for a [`Door::Server`]; `None` for a [`Door::Stdio`].
    pub fn addresses(&self) -> Vec<Option<SocketAddr>> {
        self.ports.iter().map(Port::local_addr).collect()
    }

    /// What other threads use while it [runs](Self::run).
    pub fn handle(&self) -> DoorsHandle {
        DoorsHandle(self.requests.caller())
    }

    /// What looks at the doors from other threads while they run.
    pub fn inspector(&self) -> DoorsInspector {
        DoorsInspector::new(self.handle(), self.counters.clone())
    }

    /// What happened so far.
    pub fn figures(&self) -> DoorsFigures {
        self.counters.figures()
    }

    /// Serves until it is [stopped](DoorsHandle::stop), and sleeps while nothing happens. Where a
    /// [`Door::Stdio`] is the only one that is open, it ends with that connection: when the target
    /// has acknowledged what was sent to it, or 10 s later.
    ///
    /// # Errors
    /// The process cannot wait for its descriptors; the connection with which it ends could not be
    /// opened, or was lost.
    pub fn run(&mut self) -> io::Result<()> {
        self.begin_stdio();
        let ended = self.serve();
        self.sessions.iter_mut().for_each(|(_, session)| session.reset());
        self.sessions.clear();
        self.requests.close();
        ended.and(self.stdio.take().unwrap_or(Ok(())))
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.requests.is_stopped() && !self.is_drained() {
            // A question that cannot be sent is over without an event.
            self.take_names();
            let timeout = self.sleeps_for();
            self.poller.wait(&mut events, timeout)?;
            self.on_events(&mut events);
            for _ in 1..LOOKS {
                if self.waiting.is_empty() {
                    break;
                }
                self.poller.wait(&mut events, Some(Duration::ZERO))?;
                self.on_events(&mut events);
            }
            self.take_turns();
            while let Some(request) = self.requests.next() {
                self.answer(request);
            }
            if let Some(due) = self.next_expiry() {
                let now = Instant::now();
                if due <= now {
                    self.expire(now);
                }
            }
        }
        Ok(())
    }

    /// Lets go on what used up its turn, for a round.
    fn take_turns(&mut self) {
        self.waiting.begin_round();
        while let Some(turn) = self.waiting.next_in_round() {
            self.take_turn(turn);
        }
    }

    /// How long nothing is to be done without an event; `None` is for ever.
    fn sleeps_for(&mut self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        for due in &mut self.due {
            due.drop_first(|slot| {
                self.sessions.get(slot.key).is_none_or(|session| {
                    session.generation != slot.generation || session.due.is_none()
                })
            });
        }
        let expiry = self.next_expiry().map(|due| due.saturating_duration_since(Instant::now()));
        // What is left is in the stack.
        let is_at_rest = self.ends.is_some() && self.sessions.is_empty();
        let look = is_at_rest.then_some(stack_upstream::LOOK_AT_REST);
        [expiry, look].into_iter().flatten().min()
    }

    fn next_expiry(&mut self) -> Option<Instant> {
        let stages = self.due.iter().filter_map(Deadlines::next).min();
        let others = [self.lookups.next_expiry(), self.mappings.next_expiry(), self.pauses.next()];
        others.into_iter().chain([stages, self.ends]).flatten().min()
    }

    /// Ends what was to last until now.
    fn expire(&mut self, now: Instant) {
        self.lookups.expire(now, &self.poller);
        self.take_names();
        self.mappings.expire(now);
        for index in self.pauses.take(now) {
            self.waiting.push(Turn::Published(index));
        }
        for clock in Clock::ALL {
            while let Some(slot) = self.due[clock as usize].take(now) {
                let is_due = |session: &mut Session| session.due.is_some_and(|due| due <= now);
                if self.session(slot).is_some_and(is_due) {
                    self.on_time_over(slot.key);
                }
            }
        }
    }

    fn is_drained(&self) -> bool {
        let is_empty = || self.sessions.is_empty() && stack_upstream::has_delivered(&self.stack);
        self.ends.is_some_and(|ends| ends <= Instant::now() || is_empty())
    }

    fn answer(&mut self, request: Request) {
        match request {
            // Who asks may have given up waiting.
            Request::Open(door, answer) => drop(answer.send(self.open_door(door))),
            Request::Close(id, answer) => drop(answer.send(self.close_door(id))),
            Request::SetResolver(resolver) => self.lookups.set_resolver(resolver),
            Request::SetIdentity(id, identity, answer) => {
                drop(answer.send(self.set_identity(id, identity)));
            }
            Request::Look(answer) => {
                let flows = self.sessions.iter().filter_map(|(_, session)| session.view());
                let _ = answer.send(flows.collect());
            }
            Request::Relays(answer) => {
                let _ = answer.send(self.relays());
            }
            Request::Drain(time) => {
                self.ports.iter_mut().for_each(|port| *port = Port::Closed);
                self.ends = Some(Instant::now() + time);
            }
            Request::Named(name, found) => self.on_host_name(&name, &found),
        }
    }

    /// What each connection holds, and what it waits for. It costs some system calls for each.
    fn relays(&self) -> Relays {
        let of = |session: &Session| {
            // The stack has the other side.
            let is_of_stack = matches!(self.doors[session.door], Door::Server { .. });
            session.report(if is_of_stack { Side::Server } else { Side::Client })
        };
        self.sessions.iter().filter_map(|(_, session)| of(session)).collect()
    }

    fn open_door(&mut self, mut door: Door) -> io::Result<DoorId> {
        let port = Port::open(&mut door, &self.stack)?;
        let is_free = |place: &usize| {
            matches!(self.ports[*place], Port::Closed)
                && self.sessions.iter().all(|(_, session)| session.door != *place)
        };
        let place = (0..self.ports.len()).find(is_free).unwrap_or(self.ports.len());
        port.enter(&self.poller, Token::Published(place).to_bits())?;
        let id = DoorId(self.last);
        self.last += 1;
        if place == self.ports.len() {
            self.doors.push(door);
            self.ports.push(port);
            self.ids.push(id);
        } else {
            (self.doors[place], self.ports[place], self.ids[place]) = (door, port, id);
        }
        self.begin_stdio();
        Ok(id)
    }

    /// The place of a door that is open.
    fn place(&self, id: DoorId) -> io::Result<usize> {
        let place = self.ids.iter().position(|own| *own == id);
        let place = place.filter(|&place| !matches!(self.ports[place], Port::Closed));
        place.ok_or(io::ErrorKind::NotFound.into())
    }

    /// Changes who a door is to clients that come from now on.
    fn set_identity(&mut self, id: DoorId, identity: TlsIdentity) -> io::Result<()> {
        let place = self.place(id)?;
        let Door::Http { tls: Some(own), .. } = &mut self.doors[place] else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        *own = identity;
        Ok(())
    }

    fn close_door(&mut self, id: DoorId) -> io::Result<()> {
        let place = self.place(id)?;
        self.ports[place] = Port::Closed;
        self.mappings.close_door(place);
        let own = self.sessions.iter().filter(|(_, session)| session.door == place);
        for key in own.map(|(key, _)| key).collect::<Vec<_>>() {
            self.sessions[key].reset();
            self.end(key, "closed", |counters| &counters.closed);
        }
        Ok(())
    }

    fn on_events(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match Token::from_bits(event.token) {
                Token::Flow(slot) => self.on_side(slot, News::of(Side::Client, event.events)),
                Token::Far(far) => self.on_far(far, News::of(Side::Server, event.events)),
                Token::Query(slot) => self.lookups.on_server(slot, &self.poller),
                // What arrives is served at once, or a socket of the stack would overflow.
                Token::Published(index) => self.take_turn(Turn::Published(index)),
                Token::Mapping(slot) => self.take_turn(Turn::Mapping(slot)),
                _ => {}
            }
        }
        self.take_names();
    }

    fn on_far(&mut self, far: Slot, news: News) {
        let session = self.sessions.get(far.key);
        if let Some(session) = session.filter(|session| session.has_far(far.generation)) {
            let slot = Slot { generation: session.generation, ..far };
            self.on_side(slot, news);
        }
    }

    fn on_side(&mut self, slot: Slot, news: News) {
        let Some(session) = self.session(slot) else { return };
        session.note(news);
        if session.is_bulk {
            self.waiting.push(Turn::Flow(slot.key));
        } else {
            self.visit(slot.key);
        }
    }

    fn take_turn(&mut self, turn: Turn) {
        let has_more = match turn {
            Turn::Published(index) => self.on_port(index),
            Turn::Mapping(slot) => {
                let Self { poller, lookups, ports, .. } = self;
                self.mappings.on_event(slot, &mut Ways { poller, lookups, ports })
            }
            Turn::Flow(key) => {
                self.visit(key);
                false
            }
            // Doors have no others.
            _ => false,
        };
        if has_more {
            self.waiting.push(turn);
        }
    }

    /// A session, if it is the one that the slot was given for.
    fn session(&mut self, slot: Slot) -> Option<&mut Session> {
        let session = self.sessions.get_mut(slot.key);
        session.filter(|session| session.generation == slot.generation)
    }

    /// Takes what came to the port of a door. Whether there may be more.
    fn on_port(&mut self, index: usize) -> bool {
        if let Door::Udp { target, timeout, .. } = &self.doors[index] {
            let Self { poller, lookups, ports, .. } = self;
            let mut ways = Ways { poller, lookups, ports };
            return self.mappings.on_door(index, target, *timeout, &mut ways);
        }
        for _ in 0..NEW_AT_ONCE {
            match self.ports[index].accept() {
                Ok((arrived, local, client)) => self.take(index, arrived, local, client),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The connection is over already, or there are no descriptors: others may wait, of
                // which no event will tell.
                Err(_) => {
                    self.counters.count(|counters| &counters.full);
                    self.pauses.add(index, Instant::now());
                    return false;
                }
            }
        }
        true
    }

    /// Begins a session.
    fn take(&mut self, door: usize, arrived: Arrived, local: SocketAddr, client: SocketAddr) {
        self.counters.count(|counters| &counters.accepted);
        let slot = self.next_slot();
        if let Err(why) = self.admit(&arrived, client.ip(), slot) {
            self.counters.count(|counters| &counters.full);
            if !self.refusals.contains(&why) {
                self.refusals.push(why);
                warn!(%client, why, "a connection was refused; DoorsFull counts all of them");
            }
            return arrived.reset();
        }
        match arrived.into_end(&self.doors[door]) {
            Ok(stream) => self.begin(slot, door, Near::new(stream), local, client),
            Err(_) => self.counters.count(|counters| &counters.full),
        }
    }

    /// Whether there is room for a connection, and if not, why.
    fn admit(&self, arrived: &Arrived, client: IpAddr, slot: Slot) -> Result<(), &'static str> {
        let of_client = self.clients.get(&client).copied().unwrap_or(0);
        if self.sessions.len() >= self.most_connections {
            return Err("there are as many connections as there may be");
        }
        if of_client >= self.most_of_a_client && !client.is_loopback() {
            return Err("its address has as many connections as one may have");
        }
        let entered =
            arrived.admit().and_then(|()| arrived.enter(&self.poller, Token::Flow(slot).to_bits()));
        entered.map_err(|_| "no descriptors are left")
    }

    fn next_slot(&mut self) -> Slot {
        Slot { key: self.sessions.vacant_key(), generation: self.generation.advance() }
    }

    /// Begins a session whose near half is in the poller.
    fn begin(
        &mut self,
        slot: Slot,
        door: usize,
        mut near: Near,
        local: SocketAddr,
        client: SocketAddr,
    ) {
        near.set_piece(PIECE_OF_HEAD);
        let dialogue = match &self.doors[door] {
            Door::Socks5 { .. } => Dialogue::Socks(socks::Server::default()),
            Door::Http { .. } => Dialogue::Http(http::Server::default()),
            Door::Sni { .. } => Dialogue::Sni,
            Door::Client { target, .. }
            | Door::Server { target, .. }
            | Door::Stdio { target, .. }
            | Door::Udp { target, .. } => Dialogue::Fixed(target.clone()),
        };
        let stage = Stage::Asks { dialogue, received: BytesMut::new() };
        *self.clients.entry(client.ip()).or_default() += 1;
        let key = self.sessions.insert(Session {
            generation: slot.generation,
            door,
            near,
            client,
            local,
            stage,
            out: VecDeque::new(),
            due: None,
            has_error: false,
            is_bulk: false,
            noted: 0,
        });
        self.set_clock(key, Clock::Ask);
        self.visit(key);
    }

    fn begin_stdio(&mut self) {
        for door in 0..self.ports.len() {
            let Port::Stdio(stdio) = &mut self.ports[door] else { continue };
            let Some(stdio) = stdio.take() else { continue };
            let slot = self.next_slot();
            if let Err(error) = stdio.enter(&self.poller, Token::Flow(slot).to_bits()) {
                return self.end_stdio(door, || Err(error));
            }
            let mut near = Near::new(stdio);
            near.ends_with_far = true;
            let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            self.begin(slot, door, near, nowhere, nowhere);
        }
    }

    /// The connection of standard input and output is over, and with it the run, unless another
    /// door is open or the run waits for the last connection.
    fn end_stdio(&mut self, door: usize, how: impl FnOnce() -> io::Result<()>) {
        // It may be closed, or have failed before its session is removed.
        if !matches!(self.ports[door], Port::Stdio(_)) {
            return;
        }
        self.ports[door] = Port::Closed;
        let is_last = self.ports.iter().all(|port| matches!(port, Port::Closed));
        match how() {
            how if is_last => {
                self.stdio = Some(how);
                self.ends = Some(Instant::now() + TIME_TO_DELIVER);
            }
            Err(error) => warn!(%error, "the connection of the standard streams is over"),
            Ok(()) => {}
        }
    }

    /// The stage of a session ends after a time.
    fn set_clock(&mut self, key: usize, clock: Clock) {
        let session = &mut self.sessions[key];
        let due = Instant::now() + clock.time(self.patience);
        session.due = Some(due);
        let slot = Slot { key, generation: session.generation };
        self.due[clock as usize].set(due, slot);
    }

    /// Does what is due for a session.
    fn visit(&mut self, key: usize) {
        let share = self.share();
        loop {
            let Some(session) = self.sessions.get_mut(key) else { return };
            let mut moved = [0; 2];
            session.save_memory(self.held.is_too_much());
            let next = session.go_on(share, &mut moved);
            self.count(key, moved);
            let next = match next {
                Next::Waits => self.look_further(key),
                next => next,
            };
            match next {
                Next::Waits => return,
                Next::GoesOn => {}
                Next::HasMore => return self.waiting.push(Turn::Flow(key)),
                Next::Lingers => {
                    self.counters.count(|counters| &counters.finished);
                    self.sessions[key].stage = Stage::Lingers { has_moved: false };
                    self.set_clock(key, Clock::Linger);
                }
                Next::Says(step) => self.on_step(key, step),
                Next::Over(how, counter) => return self.end(key, how, counter),
            }
        }
    }

    /// What a visit moves in one direction: a part of [`VISIT`], and a piece at least.
    ///
    /// A tunnel is slow beside the visits. If each of a hundred flows got all that its socket has
    /// room for, the socket would be empty for most of the time until its next turn, and its window
    /// would grow with the bursts. Then those with the largest windows would have the most.
    fn share(&self) -> Share {
        Share::Pieces((VISIT / (1 + self.waiting.len())).max(1))
    }

    /// What a session does besides passing on data.
    fn look_further(&mut self, key: usize) -> Next {
        let Self { sessions, doors, .. } = self;
        let session = &mut sessions[key];
        if !session.out.is_empty() {
            return Next::Waits;
        }
        match &mut session.stage {
            Stage::Asks { dialogue, received } => {
                let users = match &doors[session.door] {
                    Door::Socks5 { users, .. } | Door::Http { users, .. } => users,
                    _ => &Users::default(),
                };
                match dialogue.take(received, users) {
                    Step::Receive if received.len() >= MOST_HEAD => {
                        Next::Says(Step::Refuse(dialogue.too_long(), Fault::Malformed))
                    }
                    Step::Receive => match session.receive() {
                        Ok(Some(())) => Next::GoesOn,
                        Ok(None) => Next::Over("given up", |counters| &counters.given_up),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Waits,
                        Err(_) => Next::Over("given up", |counters| &counters.given_up),
                    },
                    step => Next::Says(step),
                }
            }
            Stage::Opens(_) => self.look_at_far(key),
            _ => Next::Waits,
        }
    }

    fn on_step(&mut self, key: usize, step: Step) {
        let session = &mut self.sessions[key];
        match step {
            Step::Receive => {}
            Step::Send(bytes) => session.out.push_back(bytes),
            Step::Open(request) => self.on_request(key, request),
            Step::Associate(port) => self.associate(key, port),
            Step::Refuse(answer, fault) => {
                self.counters.count(match fault {
                    Fault::Unauthorised => |counters| &counters.unauthorised,
                    Fault::Malformed => |counters| &counters.malformed,
                });
                self.leave(key, answer);
            }
        }
    }

    /// Tells a client why it is refused, and ends the connection. One that understands no answer is
    /// reset.
    fn leave(&mut self, key: usize, answer: Bytes) {
        let session = &mut self.sessions[key];
        if answer.is_empty() {
            session.near.reset();
            session.stage = Stage::Over;
            return;
        }
        session.stage = Stage::Leaves { has_ended: false };
        session.out.push_back(answer);
        self.set_clock(key, Clock::Leave);
    }

    /// The association of a client: its datagrams have a way as long as its connection is open.
    fn associate(&mut self, key: usize, port: u16) {
        let session = &mut self.sessions[key];
        let (local, client) = (session.local, session.client);
        match self.mappings.associate(&self.poller, local, client, port) {
            Ok((slot, bound)) => {
                session.out.push_back(socks::granted(Some(bound)));
                session.stage = Stage::Associated(slot);
                session.due = None;
            }
            Err(error) => self.leave(key, socks::refused(Failure::of(&error))),
        }
    }

    fn count(&mut self, key: usize, [to_far, to_near]: [u64; 2]) {
        self.waiting.add_moved(to_far + to_near);
        let session = &mut self.sessions[key];
        session.is_bulk = to_far + to_near >= BULK;
        let now = session.held();
        let before = std::mem::replace(&mut session.noted, now);
        let is_server = matches!(self.doors[session.door], Door::Server { .. });
        self.note_held(before, now);
        let (out, back) = if is_server { (to_near, to_far) } else { (to_far, to_near) };
        self.counters.add(|counters| &counters.bytes_out, out);
        self.counters.add(|counters| &counters.bytes_in, back);
    }

    /// A relay has held so many bytes and holds so many now.
    fn note_held(&mut self, from: usize, to: usize) {
        if self.held.change(from, to) {
            self.counters.count(|counters| &counters.memory_pressures);
        }
    }

    fn end(&mut self, key: usize, how: &'static str, counter: fn(&Counters) -> &AtomicU64) {
        let mut session = self.sessions.remove(key);
        self.note_held(session.noted, 0);
        if let Some(number) = self.clients.get_mut(&session.client.ip()) {
            *number -= 1;
            if *number == 0 {
                self.clients.remove(&session.client.ip());
            }
        }
        match session.stage {
            Stage::Associated(slot) => self.mappings.remove(slot),
            // What has finished or was refused is counted already.
            Stage::Lingers { .. } | Stage::Leaves { .. } | Stage::Over => {}
            _ => self.counters.count(counter),
        }
        if matches!(session.stage, Stage::Opens(_) | Stage::Joins { .. } | Stage::Asks { .. }) {
            session.reset();
        }
        debug!(client = %session.client, door = session.door, how, "connection ended");
        let lost = match session.stage {
            Stage::Joined(joined) => joined.lost,
            _ => None,
        };
        let lost = || Err(lost.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()));
        self.end_stdio(session.door, || if how == "finished" { Ok(()) } else { lost() });
    }
}
