//! The thread of a gateway: it takes the connections of guests, opens their other halves, and
//! relays.
//!
//! Cost: one thread for all flows, and O(1) per event, whatever the number of flows. A flow has a
//! socket of the stack, what the [`Upstream`] needs, and two entries of a poller.

use crate::bounds;
use crate::config::{GatewayConfig, SECURE_RESOLVER_PORT};
use crate::counters::{Counters, Figures};
use crate::crossings::Crossings;
use crate::datagrams::{Datagrams, Ways};
use crate::deadlines::Deadlines;
use crate::descriptors;
use crate::destination::Destination;
use crate::dhcp_service::DhcpService;
use crate::dhcp6_service::Dhcp6Service;
use crate::dns::{Dns, QuestionWays, ServerList, Target};
use crate::echo::{EchoWays, Echoes};
use crate::exhausted::Exhausted;
use crate::guest::GuestStream;
use crate::guest_rate;
use crate::guests::{Account, Guests};
use crate::handle::{GatewayHandle, Request};
use crate::holdings::FlowView;
use crate::inspect::Inspector;
use crate::journal::{self, Journal};
use crate::news::News;
use crate::pauses::Pauses;
use crate::published::PublishedPorts;
use crate::refused::{Refused, pass_on};
use crate::relay::{End, Progress, Relay, Share, Side, VISIT};
use crate::requests::Requests;
use crate::sending::{Scheduled, Sender, Sending, Service};
use crate::stack_upstream;
use crate::token::{Generation, Slot, Token};
use crate::turns::{BULK, LOOKS, Turn, Turns};
use crate::upstream::{Client, Far, Upstream};
use neap::{
    Event, Events, IcmpOptions, IcmpSocket, InterfaceError, PendingConnection, Poller, Stack,
    TcpForwarder, UdpForwarder, UdpForwarderOptions,
};
use slab::Slab;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

mod looking;
mod nameservers;
mod publishing;

/// New connections that are taken before others have their turn.
const NEW_AT_ONCE: usize = 64;
/// Turns under a rate that are taken before others have theirs.
const SERVED_AT_ONCE: usize = 64;
/// What is reported of an end, once for each change.
const CHANGES: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// What is reported of a guest that waits: that it has given up.
const GIVEN_UP: Events = Events::ERR.union(Events::ET);

/// A gateway on an interface that takes any destination
/// ([`InterfaceConfig::any_destination`](neap::InterfaceConfig::any_destination)).
///
/// Each TCP connection that a guest opens becomes one of the [`Upstream`]. The guest's SYN is
/// answered when the other one is open. If it cannot be opened, the guest is refused in the same
/// way: a reset where the destination refused, an ICMP error where there is no way to it or the
/// [`Policy`](crate::Policy) is against it, and nothing where it does not answer.
pub struct Gateway {
    poller: Arc<Poller>,
    stack: Arc<Stack>,
    forwarder: TcpForwarder,
    published: PublishedPorts,
    upstream: Box<dyn Upstream>,
    config: GatewayConfig,
    flows: Slab<Flow>,
    datagrams: Datagrams,
    echoes: Echoes,
    dhcp: Option<DhcpService>,
    dhcp6: Option<Dhcp6Service>,
    crossings: Crossings,
    dns: Dns,
    /// Flows that are not open, by the time when they are given up.
    openings: Deadlines,
    /// Flows to nameservers that are not open, by the time when they go on to the next one.
    moves: Deadlines,
    /// Published ports whose connections could not be taken.
    pauses: Pauses,
    /// What used up its turn.
    waiting: Turns,
    /// What the relays of all flows hold.
    held: bounds::Held,
    /// Who sends when under a rate; `None` without one.
    sending: Option<Sending>,
    generation: Generation,
    counters: Arc<Counters>,
    journal: Journal,
    exhausted: Exhausted,
    guests: Guests,
    requests: Requests<Request>,
    /// When the run ends, though flows are left.
    ends: Option<Instant>,
    /// Mappings are no reason to go on.
    are_guests_gone: bool,
}

struct Flow {
    generation: Generation,
    /// Bytes to the client, and to the server, may move.
    is_due: [bool; 2],
    /// Its last visit moved much. It waits for its turn, and others do not wait for it.
    is_bulk: bool,
    is_open: bool,
    view: FlowView,
    /// A side has reported an error.
    has_error: bool,
    /// The side of whoever opened the connection.
    near: Near,
    /// The side that the connection goes to.
    far: Box<dyn Far>,
    /// Nameservers that it goes to if that cannot be opened, and when the next one has its turn.
    others: ServerList,
    moves_on: Option<Instant>,
    relay: Relay,
    /// The side of the host.
    host: Side,
    /// Its place in the schedule, once it is open under a rate.
    scheduled: Option<Scheduled>,
    account: Account,
}

enum Near {
    /// A guest that waits for the far side to be open; `None` while it is answered.
    Waits(Option<PendingConnection>),
    Open(Box<dyn End + Send>),
}

impl Near {
    /// Whether whoever opened the connection has given up before the far side is open: a guest that
    /// waits, or a client of a published port by a reset. `has_error` says whether a side has
    /// reported an error.
    fn has_given_up(&mut self, has_error: bool) -> bool {
        match self {
            Self::Waits(Some(pending)) => !matches!(pending.take_error(), Ok(None)),
            Self::Waits(None) => false,
            Self::Open(near) => has_error && near.take_error().is_err(),
        }
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("flows", &self.flows.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway for all connections that come to the stack and are for none of its listeners. The
    /// largest buffers of the stack's connections become 1 MiB (`net.ipv4.tcp_rmem`) and 2 MiB
    /// (`net.ipv4.tcp_wmem`), if they are larger: guests are near, and what a flow holds is bounded
    /// so. With a [rate](GatewayConfig::rate_in) it replaces the queueing disciplines of the
    /// interfaces.
    ///
    /// Interfaces that [began unread](neap::InterfaceConfig::begin_unread) are read from here on.
    /// So the stack does not answer the first packets of a guest before there is a gateway.
    ///
    /// # Errors
    /// The process has no descriptors left, or the stack is closed.
    pub fn new(
        stack: Arc<Stack>,
        upstream: Box<dyn Upstream>,
        config: GatewayConfig,
    ) -> io::Result<Self> {
        bounds::apply(&stack)?;
        descriptors::learn();
        let forwarder = TcpForwarder::new(&stack, config.forwarder_options())?;
        forwarder.set_nonblocking(true)?;
        let poller = Arc::new(Poller::new()?);
        poller.add(&forwarder, Token::New.to_bits(), Events::IN)?;
        let counters = Arc::<Counters>::default();
        let datagrams = UdpForwarder::new(&stack, UdpForwarderOptions::default())?;
        let icmp = IcmpSocket::open(&stack, IcmpOptions::default())?;
        icmp.set_nonblocking(true)?;
        let guests = Guests::default();
        let mut datagrams =
            Datagrams::new(datagrams, icmp.clone(), counters.clone(), guests.clone())?;
        if let Some(rate) = config.rate_in {
            guest_rate::limit(&stack, rate).map_err(io::Error::other)?;
        }
        let sending = config.rate.map(Sending::new);
        if let Some(sending) = &sending {
            datagrams.limit(sending.rate());
        }
        poller.add(datagrams.forwarder(), Token::Guests.to_bits(), Events::IN | Events::ET)?;
        let mut echoes = Echoes::new(icmp, &*upstream, counters.clone(), guests.clone());
        if let Some(sending) = &sending {
            echoes.limit(sending.rate());
        }
        poller.add(echoes.socket(), Token::Pings.to_bits(), Events::IN | Events::ET)?;
        let (dhcp, dhcp6) = dhcp_services(&stack, &config, &counters, &poller)?;
        begin_reading(&stack)?;
        Ok(Self {
            requests: Requests::new(poller.clone()),
            poller,
            held: bounds::Held::new(&stack),
            stack,
            forwarder,
            published: PublishedPorts::default(),
            datagrams,
            echoes,
            dhcp,
            dhcp6,
            crossings: Crossings::new(),
            dns: Dns::new(&config, counters.clone()),
            openings: Deadlines::default(),
            moves: Deadlines::default(),
            pauses: Pauses::default(),
            upstream,
            config,
            flows: Slab::new(),
            waiting: Turns::default(),
            sending,
            generation: Generation::default(),
            counters,
            journal: Journal::default(),
            exhausted: Exhausted::default(),
            guests,
            ends: None,
            are_guests_gone: false,
        })
    }

    /// What other threads use while it [runs](Self::run).
    pub fn handle(&self) -> GatewayHandle {
        GatewayHandle(self.requests.caller())
    }

    /// What happened so far.
    pub fn figures(&self) -> Figures {
        self.counters.figures()
    }

    /// Whether echo requests (ping) of IPv4, and of IPv6, are passed on:
    /// [`GatewayConfig::passes_echo`] asks for it, and the host lets the gateway, as its
    /// `net.ipv4.ping_group_range` has the user's group. Where not, they are not answered.
    pub fn passes_echo(&self) -> [bool; 2] {
        self.echoes.is_allowed().map(|is_allowed| is_allowed && self.config.passes_echo)
    }

    /// What looks at the gateway from other threads while it runs.
    pub fn inspector(&self) -> Inspector {
        Inspector::new(self.handle(), self.counters.clone(), self.guests.clone())
    }

    /// Serves until it is [stopped](GatewayHandle::stop), and sleeps while nothing happens.
    ///
    /// # Errors
    /// The process cannot wait for its descriptors.
    pub fn run(&mut self) -> io::Result<()> {
        Journal::started(&self.config);
        let ended = self.serve();
        self.reset_unfinished();
        self.requests.close();
        Journal::ended(&self.figures());
        ended
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.requests.is_stopped() && !self.is_drained() {
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
            self.serve_turns();
            self.journal.look(&self.counters);
            if let Some((guest, error)) = self.datagrams.failure() {
                self.journal.lost_datagrams_way(guest, &error);
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

    /// The run ends, and with it what one side has sent and the gateway has not passed on: no
    /// other side takes that for the end of its stream, and datagrams are counted.
    fn reset_unfinished(&mut self) {
        for (_, flow) in &mut self.flows {
            if !flow.relay.is_complete(Side::Server) {
                flow.far.reset();
            }
            if let Near::Open(near) = &mut flow.near
                && !flow.relay.is_complete(Side::Client)
            {
                near.reset();
            }
        }
        self.flows.clear();
        self.datagrams.give_up(self.sending.as_mut());
    }

    /// How long nothing is to be done without an event; `None` is for ever.
    fn sleeps_for(&mut self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        self.openings.drop_first(|slot| !is_opening(&self.flows, slot));
        self.moves.drop_first(|slot| !is_opening(&self.flows, slot));
        let due = self.next_expiry();
        let expiry = due.map(|due| due.saturating_duration_since(Instant::now()));
        let turn = self.sending.as_ref().and_then(Sending::sleeps_for);
        // What is left is in stacks.
        let is_at_rest = self.ends.is_some() && self.is_empty();
        let look = is_at_rest.then_some(stack_upstream::LOOK_AT_REST);
        [expiry, turn, look].into_iter().flatten().min()
    }

    /// Takes the turns under the rate that are due.
    fn serve_turns(&mut self) {
        for _ in 0..SERVED_AT_ONCE {
            let Some(sending) = &mut self.sending else { return };
            let Some(service) = sending.next() else { return };
            match service.who {
                Sender::Flow(key) => self.serve_flow(key, service),
                Sender::Mapping(key) => self.datagrams.serve(key, service, sending),
                Sender::Echo(key) => self.echoes.serve(key, service, sending),
            }
        }
    }

    /// Passes on to the host what a flow may send in its turn.
    fn serve_flow(&mut self, key: usize, service: Service) {
        let Some(sending) = &mut self.sending else { return };
        let Some(flow) = self.flows.get_mut(key) else {
            return sending.on_sent(service, 0, false);
        };
        let (Near::Open(near), Some(scheduled)) = (&mut flow.near, flow.scheduled) else {
            return sending.on_sent(service, 0, false);
        };
        let sides = [flow.host, flow.host.other()];
        let before = sides.map(|side| flow.relay.bytes_to(side));
        let held = flow.relay.held();
        flow.relay.save_memory(self.held.is_too_much());
        let most = scheduled.segments.data_in(service.bytes);
        let (near, far) = (&mut **near, &mut *flow.far);
        let mut progress = flow.relay.pump_to(flow.host, near, far, Share::Bytes(most));
        if flow.has_error && matches!(progress, Progress::Waits) {
            // The loss is behind bytes that were taken just now: no event will tell of it.
            progress = flow.relay.check(near, far);
        }
        let [sent, back] = sides.map(|side| flow.relay.bytes_to(side));
        // What comes back is what a host that is lost has sent before.
        let (sent, back) = ((sent - before[0]) as usize, back - before[1]);
        note_held(&mut self.held, &self.counters, held, flow.relay.held());
        let has_more = matches!(progress, Progress::HasMore);
        sending.on_sent(service, scheduled.segments.on_wire(sent), has_more);
        self.counters.add(|counters| &counters.bytes_out, sent as u64);
        self.counters.add(|counters| &counters.bytes_in, back);
        flow.account.add(sent as u64, back);
        if !has_more {
            self.on_progress(key, &progress);
        }
    }

    /// When something may have to be forgotten, or the run to end.
    fn next_expiry(&self) -> Option<Instant> {
        let kinds = [
            self.datagrams.next_expiry(),
            self.crossings.next_expiry(),
            self.echoes.next_expiry(),
            self.dns.next_expiry(),
            self.openings.next(),
            self.moves.next(),
            self.pauses.next(),
            self.ends,
        ];
        kinds.into_iter().flatten().min()
    }

    /// Forgets and gives up what was to last until now.
    fn expire(&mut self, now: Instant) {
        self.datagrams.expire(now, &self.config, self.sending.as_mut());
        self.crossings.expire(now);
        self.echoes.expire(now, self.sending.as_mut());
        let (poller, upstream) = (&*self.poller, &*self.upstream);
        let guests = self.datagrams.forwarder();
        self.dns.expire(now, QuestionWays { poller, upstream, guests });
        for index in self.pauses.take(now) {
            self.waiting.push(Turn::Published(index));
        }
        self.leave_silent_nameservers(now);
        while let Some(slot) = self.openings.take(now) {
            if is_opening(&self.flows, slot) {
                self.fail(slot.key, &too_late());
            }
        }
    }

    /// Whether the run ends, as it [was told](GatewayHandle::drain): nothing is left, or the time
    /// is over.
    fn is_drained(&self) -> bool {
        // Guests that are gone read nothing any more.
        let has_delivered = || {
            let has_to_guests = self.are_guests_gone || stack_upstream::has_delivered(&self.stack);
            has_to_guests && self.upstream.has_delivered()
        };
        let is_over = |ends| ends <= Instant::now() || (self.is_empty() && has_delivered());
        self.ends.is_some_and(is_over)
    }

    /// Whether there are no flows, and nothing of datagrams that a drain waits for.
    fn is_empty(&self) -> bool {
        let are_idle = || match self.are_guests_gone {
            true => !self.datagrams.wait(),
            false => self.datagrams.is_idle(),
        };
        self.flows.is_empty() && are_idle()
    }

    fn on_events(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            self.on_event(event);
        }
    }

    fn on_event(&mut self, event: Event) {
        match Token::from_bits(event.token) {
            Token::New => self.take_new(),
            Token::Guests => self.take_turn(Turn::Guests),
            Token::Dhcp => self.take_turn(Turn::Dhcp),
            Token::Dhcp6 => self.take_turn(Turn::Dhcp6),
            Token::Published(index) => self.take_turn(Turn::Published(index)),
            Token::Mapping(slot) => self.take_turn(Turn::Mapping(slot)),
            Token::Pings => self.take_turn(Turn::Pings),
            Token::Echo(slot) => self.take_turn(Turn::Echo(slot)),
            Token::Crossing(slot) => self.take_turn(Turn::Crossing(slot)),
            Token::Query(slot) => {
                let (poller, upstream) = (&*self.poller, &*self.upstream);
                let guests = self.datagrams.forwarder();
                self.dns.on_server(slot, QuestionWays { poller, upstream, guests });
            }
            Token::Flow(slot) => self.on_side(slot, News::of(Side::Client, event.events)),
            Token::Far(slot) => self.on_side(slot, News::of(Side::Server, event.events)),
        }
    }

    fn on_side(&mut self, slot: Slot, news: News) {
        // The flow may be over, and its place that of another one.
        let flow = self.flows.get_mut(slot.key);
        if let Some(flow) = flow.filter(|flow| flow.generation == slot.generation) {
            flow.has_error |= news.has_error;
            for to in [Side::Client, Side::Server] {
                flow.is_due[to as usize] |= news.moves(to, &flow.relay);
            }
            if flow.is_open && flow.is_due == [false; 2] && !flow.has_error {
                return;
            }
            if flow.is_bulk {
                self.waiting.push(Turn::Flow(slot.key));
            } else {
                self.visit(slot.key);
            }
        }
    }

    /// Does what another thread asks for. It may have given up waiting.
    fn answer(&mut self, request: Request) {
        match request {
            Request::Publish(publication, answer) => {
                let _ = answer.send(self.publish(publication));
            }
            Request::PublishSocket(socket, publication, answer) => {
                let _ = answer.send(self.publish_socket(socket, publication));
            }
            Request::Cross(transport, socket, to, answer) => {
                let _ = answer.send(self.cross(transport, socket, to));
            }
            Request::Unpublish(id, answer) => {
                let _ = answer.send(self.unpublish(id));
            }
            Request::Drain(time) => self.refuse_new(time),
            Request::Finish(time) => {
                self.are_guests_gone = true;
                self.refuse_new(time);
            }
            Request::Look(answer) => {
                let _ = answer.send(self.holdings());
            }
            Request::Relays(answer) => {
                let _ = answer.send(self.relays());
            }
            Request::Mappings(answer) => {
                let _ = answer.send(self.mappings());
            }
            Request::List(answer) => {
                let _ = answer.send(self.published());
            }
        }
    }

    /// Takes nothing new, and ends after this time at the latest.
    fn refuse_new(&mut self, time: Duration) {
        self.datagrams.refuse_new();
        self.echoes.refuse_new();
        self.ends = Some(Instant::now() + time);
    }

    fn take_turn(&mut self, turn: Turn) {
        let has_more = match turn {
            Turn::Flow(key) => return self.visit(key),
            Turn::Guests => {
                let (poller, config, upstream) = (&*self.poller, &self.config, &*self.upstream);
                let mut ways = Ways { poller, config, upstream, dns: &mut self.dns };
                self.datagrams.on_guests(&mut ways, self.sending.as_mut())
            }
            Turn::Dhcp => self.dhcp.as_mut().is_some_and(DhcpService::on_messages),
            Turn::Dhcp6 => self.dhcp6.as_mut().is_some_and(Dhcp6Service::on_messages),
            Turn::Published(index) => self.take_published(index),
            Turn::Mapping(slot) => self.take_datagrams(slot),
            Turn::Pings => {
                let (poller, config, upstream) = (&*self.poller, &self.config, &*self.upstream);
                let ways = EchoWays { poller, config, upstream };
                self.echoes.on_guests(ways, self.sending.as_mut())
            }
            Turn::Echo(slot) => self.echoes.on_host(slot),
            Turn::Crossing(slot) => self.cross_datagrams(slot),
        };
        if has_more {
            self.waiting.push(turn);
        }
    }

    fn take_new(&mut self) {
        for _ in 0..NEW_AT_ONCE {
            match self.forwarder.recv() {
                Ok(pending) => self.open(pending),
                Err(_) => return,
            }
        }
    }

    /// Opens the other half of a connection that a guest wants.
    fn open(&mut self, pending: PendingConnection) {
        if !self.config.passes_tcp {
            self.counters.count(|counters| &counters.denied);
            return pending.ignore();
        }
        let (client, wanted) = (pending.peer_addr(), pending.local_addr());
        let who = Client { address: client, hop_limit: Some(pending.arrival().hop_limit) };
        let target = self.dns.target(&self.config, wanted);
        if matches!(target, Target::Denied) {
            self.counters.count(|counters| &counters.denied);
            self.journal.denied(client, wanted);
            return Refused::Prohibited.tell(pending);
        }
        if let Some(why) = self.refuses_new() {
            return self.refuse(pending, why);
        }
        let mut others = ServerList::new();
        let (far, to) = match target {
            Target::To(to) => (self.connect(&to, who), to.address),
            Target::Resolver => {
                let is_secure = wanted.port() == SECURE_RESOLVER_PORT;
                (self.dns.connect(&*self.upstream, client, is_secure, &mut others), wanted)
            }
            Target::Nobody => (Err(io::ErrorKind::ConnectionRefused.into()), wanted),
            Target::Denied => (Err(io::ErrorKind::PermissionDenied.into()), wanted),
        };
        let far = match far {
            Ok(far) => far,
            Err(error) => {
                self.journal.unreached(client, wanted, &error);
                return self.refuse(pending, Refused::of(&error));
            }
        };
        let slot = self.next_flow();
        // Its end is told: a guest that gives up ends the other half, too.
        if self.poller.add(&pending, Token::Flow(slot).to_bits(), GIVEN_UP).is_err() {
            return self.refuse(pending, Refused::Full);
        }
        let view = FlowView { local: wanted, guest: client, far: to, held: 0 };
        self.begin(Near::Waits(Some(pending)), (far, others), Side::Server, view);
    }

    /// Begins the other half, unless there was no port left for it just now.
    fn connect(&mut self, to: &Destination, client: Client) -> io::Result<Box<dyn Far>> {
        let there = self.upstream.ends_at(to);
        if self.exhausted.has(there, Instant::now) {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let far = self.upstream.connect(to, client);
        if far.as_ref().is_err_and(|error| Refused::of(error) == Refused::NoPort) {
            self.exhausted.note(there, Instant::now());
        }
        far
    }

    /// Why there can be no connection more, if so.
    fn refuses_new(&self) -> Option<Refused> {
        if self.ends.is_some() {
            return Some(Refused::Draining);
        }
        (self.flows.len() >= self.config.most_flows).then_some(Refused::Full)
    }

    /// A connection could not be opened.
    fn refuse(&self, pending: PendingConnection, why: Refused) {
        self.counters.count(why.counter());
        why.tell(pending);
    }

    /// The place of the flow that [`begin`](Self::begin) makes next.
    fn next_flow(&self) -> Slot {
        let mut generation = self.generation;
        Slot { key: self.flows.vacant_key(), generation: generation.advance() }
    }

    /// Begins a flow; its far side is not open yet. If it is a nameserver, others may follow it.
    fn begin(
        &mut self,
        near: Near,
        (far, others): (Box<dyn Far>, ServerList),
        host: Side,
        view: FlowView,
    ) {
        let (generation, relay) = (self.generation.advance(), Relay::default());
        let (is_bulk, is_open) = (false, false);
        let (is_due, has_error, scheduled) = ([true; 2], false, None);
        let account = self.guests.flow(view.guest.ip());
        let flow = Flow {
            generation,
            is_due,
            is_bulk,
            is_open,
            has_error,
            view,
            near,
            far,
            others,
            moves_on: None,
            relay,
            host,
            scheduled,
            account,
        };
        let key = self.flows.insert(flow);
        self.enter_far(key);
    }

    /// Does what is due for a flow.
    fn visit(&mut self, key: usize) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if !flow.is_open {
            if flow.near.has_given_up(flow.has_error) {
                return self.give_up(key);
            }
            match flow.far.is_open() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(key, &error),
            }
            // A side may have had news before that, and what a proxy has sent is read already.
            flow.is_due = [true; 2];
            if let Err(error) = self.on_open(key) {
                return self.fail(key, &error);
            }
        }
        let Some(flow) = self.flows.get_mut(key) else { return };
        let Near::Open(near) = &mut flow.near else { return };
        let (near, far) = (&mut **near, &mut *flow.far);
        let guest = flow.host.other();
        let before = [flow.host, guest].map(|side| flow.relay.bytes_to(side));
        let held = flow.relay.held();
        flow.relay.save_memory(self.held.is_too_much());
        let mut progress = Progress::Waits;
        for to in [flow.host, guest] {
            if !std::mem::take(&mut flow.is_due[to as usize]) {
                continue;
            }
            if let (Some(sending), Some(scheduled)) = (&mut self.sending, flow.scheduled)
                && to == flow.host
            {
                // It has its turn in the schedule.
                sending.wake(scheduled.id);
                continue;
            }
            let given = flow.relay.given_to(to);
            match flow.relay.pump_to(to, near, far, Share::Pieces(VISIT)) {
                Progress::Waits => {}
                moved => {
                    flow.is_due[to as usize] = matches!(moved, Progress::HasMore);
                    progress = moved;
                }
            }
            if progress.is_over() {
                break;
            }
            if far.changes_within_calls() {
                // It has no event that says so. Each call of `send` may have brought an answer,
                // and an answer that was taken has left room.
                let other = to.other();
                let has_room = flow.relay.given_to(to) > given && flow.relay.waits_for(other);
                flow.is_due[other as usize] |= to == Side::Server || has_room;
            }
        }
        if matches!(progress, Progress::Waits) && flow.is_due.contains(&true) {
            progress = Progress::HasMore;
        }
        if flow.has_error && matches!(progress, Progress::Waits) {
            progress = flow.relay.check(near, far);
        }
        let [out, back] = [flow.host, guest].map(|side| flow.relay.bytes_to(side));
        let (out, back) = (out - before[0], back - before[1]);
        note_held(&mut self.held, &self.counters, held, flow.relay.held());
        self.waiting.add_moved(out + back);
        flow.is_bulk = out + back >= BULK;
        flow.account.add(out, back);
        self.counters.add(|counters| &counters.bytes_out, out);
        self.counters.add(|counters| &counters.bytes_in, back);
        self.on_progress(key, &progress);
    }

    fn on_progress(&mut self, key: usize, progress: &Progress) {
        match progress {
            Progress::Waits => {}
            Progress::HasMore => self.waiting.push(Turn::Flow(key)),
            Progress::Finished => self.end(key, "finished", |counters| &counters.finished),
            Progress::Lost { .. } => self.end(key, "lost", |counters| &counters.lost),
        }
    }

    /// The far side is open: answers the SYN of a guest that waits for it.
    fn on_open(&mut self, key: usize) -> io::Result<()> {
        let flow = &mut self.flows[key];
        if let Near::Waits(pending) = &mut flow.near
            && let Some(pending) = pending.take()
        {
            // What is pending leaves the poller, as its place becomes that of the stream.
            self.poller.remove(&pending)?;
            let stream = pending.accept_nonblocking(bounds::options(self.config.rate_in))?;
            let mut stream = GuestStream::new(stream)?;
            let token = Token::Flow(Slot { key, generation: flow.generation }).to_bits();
            if let Err(error) = self.poller.add(stream.stream(), token, CHANGES) {
                stream.reset();
                return Err(error);
            }
            flow.near = Near::Open(Box::new(stream));
        }
        let flow = &mut self.flows[key];
        if let Near::Open(near) = &mut flow.near {
            near.frame().into_iter().for_each(|frame| flow.far.set_piece(frame));
            flow.far.frame().into_iter().for_each(|frame| near.set_piece(frame));
        }
        flow.is_open = true;
        if let (Some(sending), Near::Open(near)) = (&mut self.sending, &mut flow.near)
            && !flow.far.changes_within_calls()
        {
            let host: &mut dyn End = match flow.host {
                Side::Client => &mut **near,
                Side::Server => &mut *flow.far,
            };
            flow.scheduled = Some(sending.insert_flow(key, host));
            flow.relay.schedule(flow.host);
        }
        self.journal.opened(&flow.view, flow.far.is_by_proxy());
        self.counters.count(|counters| &counters.opened);
        Ok(())
    }

    /// A flow could not be opened.
    fn fail(&mut self, key: usize, error: &io::Error) {
        if self.moves_on(key) {
            return;
        }
        let mut flow = self.flows.remove(key);
        self.journal.unreached(flow.view.guest, flow.view.local, error);
        flow.far.reset();
        let why = match Refused::of(error) {
            // A proxy tries for less time than a guest, and has said what came of it.
            Refused::TimedOut if flow.far.is_by_proxy() => Refused::Host,
            why => why,
        };
        match flow.near {
            Near::Waits(Some(pending)) => {
                let said = flow.far.undelivered();
                if said.is_some_and(|said| pass_on(&pending, self.echoes.socket(), &said)) {
                    self.counters.count(why.counter());
                    return pending.ignore();
                }
                return self.refuse(pending, why);
            }
            // What could not be accepted was reset.
            Near::Waits(None) => {}
            Near::Open(mut near) => near.reset(),
        }
        self.counters.count(why.counter());
    }

    /// Whoever opened the connection does not want it any more: the other half ends at once.
    fn give_up(&mut self, key: usize) {
        let mut flow = self.flows.remove(key);
        flow.far.reset();
        self.counters.count(|counters| &counters.given_up);
    }

    fn end(&mut self, key: usize, how: &'static str, reason: fn(&Counters) -> &AtomicU64) {
        let flow = self.flows.remove(key);
        journal::ended(&flow.view, how, flow.relay.bytes());
        note_held(&mut self.held, &self.counters, flow.relay.held(), 0);
        if let (Some(sending), Some(scheduled)) = (&mut self.sending, flow.scheduled) {
            sending.remove(scheduled.id);
        }
        self.counters.count(reason);
    }
}

/// A relay has held so many bytes and holds so many now.
fn note_held(held: &mut bounds::Held, counters: &Counters, from: usize, to: usize) {
    if held.change(from, to) {
        counters.count(|counters| &counters.memory_pressures);
    }
}

/// A far side was not open within the time that the gateway gives it.
fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::HostUnreachable, "no answer within the time for it")
}

/// Lets packets in by the interfaces that began unread.
fn begin_reading(stack: &Stack) -> io::Result<()> {
    for interface in stack.host().interfaces() {
        // It may be gone meanwhile, which is no error here.
        if let Err(InterfaceError::System(error)) = stack.begin_reading(interface.id) {
            return Err(error);
        }
    }
    Ok(())
}

/// Opens the services of addresses that are asked for.
fn dhcp_services(
    stack: &Stack,
    config: &GatewayConfig,
    counters: &Arc<Counters>,
    poller: &Poller,
) -> io::Result<(Option<DhcpService>, Option<Dhcp6Service>)> {
    let dhcp = config.dhcp.clone();
    let dhcp = dhcp.map(|dhcp| DhcpService::open(stack, dhcp, counters.clone())).transpose()?;
    if let Some(dhcp) = &dhcp {
        poller.add(dhcp.socket(), Token::Dhcp.to_bits(), Events::IN | Events::ET)?;
    }
    let dhcp6 = config.dhcp6.as_ref();
    let dhcp6 =
        dhcp6.map(|dhcp6| Dhcp6Service::open(stack, dhcp6, counters.clone())).transpose()?;
    if let Some(dhcp6) = &dhcp6 {
        poller.add(dhcp6.socket(), Token::Dhcp6.to_bits(), Events::IN | Events::ET)?;
    }
    Ok((dhcp, dhcp6))
}

/// Whether a flow is there, and is not open.
fn is_opening(flows: &Slab<Flow>, slot: Slot) -> bool {
    let flow = flows.get(slot.key);
    flow.is_some_and(|flow| flow.generation == slot.generation && !flow.is_open)
}
