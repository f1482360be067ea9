//! The thread of a gateway: it takes the connections of guests, opens their other halves, and
//! relays.
//!
//! Cost: one thread for all flows, and O(1) per event, whatever the number of flows. A flow has a
//! socket of the stack, what the [`Upstream`] needs, and two entries of a poller.

use crate::config::GatewayConfig;
use crate::counters::{Counters, Figures};
use crate::crossings::Crossings;
use crate::datagrams::Datagrams;
use crate::dhcp_service::DhcpService;
use crate::dhcp6_service::Dhcp6Service;
use crate::guest::GuestStream;
use crate::handle::{GatewayHandle, Request, Requests};
use crate::published::PublishedPorts;
use crate::relay::{End, Progress, Relay};
use crate::token::{Generation, Slot, Token};
use crate::upstream::{Far, Upstream};
use neap::{
    Event, Events, PendingConnection, Poller, Refusal, SocketOptions, Stack, TcpForwarder,
    UdpForwarder, UdpForwarderOptions,
};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

mod publishing;

/// New connections that are taken before others have their turn.
const NEW_AT_ONCE: usize = 64;
/// What is reported of an end, once for each change.
const CHANGES: Events = Events::IN.union(Events::OUT).union(Events::RDHUP).union(Events::ET);

/// A gateway on an interface that takes any destination
/// ([`InterfaceConfig::any_destination`](neap::InterfaceConfig::any_destination)).
///
/// Each TCP connection that a guest opens becomes one of the [`Upstream`]. The guest's SYN is
/// answered when the other one is open. If it cannot be opened, the guest is refused in the same
/// way: a reset where the destination refused, an ICMP error where there is no way to it or the
/// [`Policy`](crate::Policy) is against it.
pub struct Gateway {
    poller: Arc<Poller>,
    stack: Arc<Stack>,
    forwarder: TcpForwarder,
    published: PublishedPorts,
    upstream: Box<dyn Upstream>,
    config: GatewayConfig,
    flows: Slab<Flow>,
    datagrams: Datagrams,
    crossings: Crossings,
    dhcp: Option<DhcpService>,
    dhcp6: Option<Dhcp6Service>,
    /// What used up its turn.
    waiting: VecDeque<Turn>,
    generation: Generation,
    counters: Arc<Counters>,
    requests: Requests,
}

/// What goes on when the others had their turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Flow(usize),
    Guests,
    Dhcp,
    Dhcp6,
    Published(usize),
    Mapping(Slot),
    Crossing(Slot),
}

struct Flow {
    generation: Generation,
    is_waiting: bool,
    is_open: bool,
    /// The side of whoever opened the connection.
    near: Near,
    /// The side that the connection goes to.
    far: Box<dyn Far>,
    relay: Relay,
}

enum Near {
    /// A guest that waits for the far side to be open; `None` while it is answered.
    Waits(Option<PendingConnection>),
    Open(Box<dyn End + Send>),
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("flows", &self.flows.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway for all connections that come to the stack and are for none of its listeners.
    ///
    /// # Errors
    /// The process has no descriptors left, or the stack is closed.
    pub fn new(
        stack: Arc<Stack>,
        upstream: Box<dyn Upstream>,
        config: GatewayConfig,
    ) -> io::Result<Self> {
        let forwarder = TcpForwarder::new(&stack, config.forwarder_options())?;
        forwarder.set_nonblocking(true)?;
        let poller = Arc::new(Poller::new()?);
        poller.add(&forwarder, Token::New.to_bits(), Events::IN)?;
        let counters = Arc::<Counters>::default();
        let datagrams = UdpForwarder::new(&stack, UdpForwarderOptions::default())?;
        let datagrams = Datagrams::new(datagrams, counters.clone())?;
        poller.add(datagrams.forwarder(), Token::Guests.to_bits(), Events::IN | Events::ET)?;
        let dhcp = config.dhcp.clone();
        let dhcp =
            dhcp.map(|dhcp| DhcpService::open(&stack, dhcp, counters.clone())).transpose()?;
        if let Some(dhcp) = &dhcp {
            poller.add(dhcp.socket(), Token::Dhcp.to_bits(), Events::IN | Events::ET)?;
        }
        let dhcp6 = config.dhcp6.as_ref();
        let dhcp6 =
            dhcp6.map(|dhcp6| Dhcp6Service::open(&stack, dhcp6, counters.clone())).transpose()?;
        if let Some(dhcp6) = &dhcp6 {
            poller.add(dhcp6.socket(), Token::Dhcp6.to_bits(), Events::IN | Events::ET)?;
        }
        Ok(Self {
            requests: Requests::new(poller.clone()),
            poller,
            stack,
            forwarder,
            published: PublishedPorts::default(),
            datagrams,
            crossings: Crossings::new(),
            dhcp,
            dhcp6,
            upstream,
            config,
            flows: Slab::new(),
            waiting: VecDeque::new(),
            generation: Generation::default(),
            counters,
        })
    }

    /// What other threads use while it [runs](Self::run).
    pub fn handle(&self) -> GatewayHandle {
        self.requests.handle()
    }

    /// What happened so far.
    pub fn figures(&self) -> Figures {
        self.counters.figures()
    }

    /// Serves until it is [stopped](GatewayHandle::stop), and sleeps while nothing happens.
    ///
    /// # Errors
    /// The process cannot wait for its descriptors.
    pub fn run(&mut self) -> io::Result<()> {
        let ended = self.serve();
        self.requests.close();
        ended
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.requests.is_stopped() {
            let timeout = self.sleeps_for();
            self.poller.wait(&mut events, timeout)?;
            for event in events.drain(..) {
                self.on_event(event);
            }
            for _ in 0..self.waiting.len() {
                let Some(turn) = self.waiting.pop_front() else { break };
                self.take_turn(turn);
            }
            while let Some(request) = self.requests.next() {
                self.answer(request);
            }
            if self.next_expiry().is_some() {
                let now = Instant::now();
                self.datagrams.expire(now);
                self.crossings.expire(now);
            }
        }
        Ok(())
    }

    fn next_expiry(&self) -> Option<Instant> {
        let expiries = [self.datagrams.next_expiry(), self.crossings.next_expiry()];
        expiries.into_iter().flatten().min()
    }

    /// How long nothing is to be done without an event; `None` is for ever.
    fn sleeps_for(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.next_expiry()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn on_event(&mut self, event: Event) {
        match Token::from_bits(event.token) {
            Token::New => self.take_new(),
            Token::Guests => self.take_turn(Turn::Guests),
            Token::Dhcp => self.take_turn(Turn::Dhcp),
            Token::Dhcp6 => self.take_turn(Turn::Dhcp6),
            Token::Published(index) => self.take_turn(Turn::Published(index)),
            Token::Mapping(slot) => self.take_turn(Turn::Mapping(slot)),
            Token::Crossing(slot) => self.take_turn(Turn::Crossing(slot)),
            Token::Flow(Slot { key, generation }) => {
                // The flow may be over, and its place that of another one.
                if self.flows.get(key).is_some_and(|flow| flow.generation == generation) {
                    self.visit(key);
                }
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
            Request::List(answer) => {
                let _ = answer.send(self.published());
            }
        }
    }

    fn take_turn(&mut self, turn: Turn) {
        let has_more = match turn {
            Turn::Flow(key) => {
                if let Some(flow) = self.flows.get_mut(key) {
                    flow.is_waiting = false;
                    self.visit(key);
                }
                return;
            }
            Turn::Guests => self.datagrams.on_guests(&self.poller, &self.config),
            Turn::Dhcp6 => self.dhcp6.as_mut().is_some_and(Dhcp6Service::on_messages),
            Turn::Dhcp => self.dhcp.as_mut().is_some_and(DhcpService::on_messages),
            Turn::Published(index) => self.take_published(index),
            Turn::Mapping(slot) => self.datagrams.on_host(slot, &self.config),
            Turn::Crossing(slot) => self.cross_datagrams(slot),
        };
        if has_more {
            self.waiting.push_back(turn);
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
        let Some(to) = self.config.destination(wanted) else {
            self.counters.count(|counters| &counters.denied);
            return refuse(pending, io::ErrorKind::PermissionDenied);
        };
        if self.flows.len() >= self.config.most_flows {
            self.counters.count(|counters| &counters.full);
            return pending.reset();
        }
        let far = match self.upstream.connect(to, client) {
            Ok(far) => far,
            Err(error) => {
                self.counters.count(|counters| &counters.unreached);
                return refuse(pending, error.kind());
            }
        };
        self.begin(Near::Waits(Some(pending)), far);
    }

    /// Begins a flow; its far side is not open yet.
    fn begin(&mut self, near: Near, far: Box<dyn Far>) {
        let (generation, relay) = (self.generation.advance(), Relay::default());
        let (is_waiting, is_open) = (false, false);
        let flow = Flow { generation, is_waiting, is_open, near, far, relay };
        let key = self.flows.insert(flow);
        let entered = self.flows[key].far.enter(&self.poller, token(key, generation), CHANGES);
        if let Err(error) = entered {
            self.fail(key, &error);
        }
    }

    /// Does what can be done for a flow.
    fn visit(&mut self, key: usize) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if !flow.is_open {
            match flow.far.is_open() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(key, &error),
            }
            if let Err(error) = self.on_open(key) {
                return self.fail(key, &error);
            }
        }
        let Some(flow) = self.flows.get_mut(key) else { return };
        let Near::Open(near) = &mut flow.near else { return };
        match flow.relay.pump(&mut **near, &mut *flow.far) {
            Progress::Waits => {}
            Progress::HasMore => {
                if !std::mem::replace(&mut flow.is_waiting, true) {
                    self.waiting.push_back(Turn::Flow(key));
                }
            }
            Progress::Finished => self.end(key, |counters| &counters.finished),
            Progress::Lost { .. } => self.end(key, |counters| &counters.lost),
        }
    }

    /// The far side is open: answers the SYN of a guest that waits for it.
    fn on_open(&mut self, key: usize) -> io::Result<()> {
        let flow = &mut self.flows[key];
        if let Near::Waits(pending) = &mut flow.near
            && let Some(pending) = pending.take()
        {
            let stream = pending.accept_nonblocking(SocketOptions::default())?;
            let stream = GuestStream::new(stream)?;
            self.poller.add(stream.stream(), token(key, flow.generation), CHANGES)?;
            flow.near = Near::Open(Box::new(stream));
        }
        flow.is_open = true;
        self.counters.count(|counters| &counters.opened);
        Ok(())
    }

    /// A flow could not be opened.
    fn fail(&mut self, key: usize, error: &io::Error) {
        let mut flow = self.flows.remove(key);
        self.counters.count(|counters| &counters.unreached);
        flow.far.reset();
        match flow.near {
            Near::Waits(Some(pending)) => refuse(pending, error.kind()),
            // What could not be accepted was reset.
            Near::Waits(None) => {}
            Near::Open(mut near) => near.reset(),
        }
    }

    fn end(&mut self, key: usize, reason: fn(&Counters) -> &AtomicU64) {
        let flow = self.flows.remove(key);
        self.counters.count(reason);
        self.counters.add_bytes(flow.relay.bytes());
    }
}

/// Refuses a connection in the way in which its other half was refused.
fn refuse(pending: PendingConnection, why: io::ErrorKind) {
    match why {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::AddrNotAvailable => {
            pending.reject(Refusal::Network);
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::TimedOut => pending.reject(Refusal::Host),
        io::ErrorKind::PermissionDenied => pending.reject(Refusal::Prohibited),
        _ => pending.reset(),
    }
}

fn token(key: usize, generation: Generation) -> u64 {
    Token::Flow(Slot { key, generation }).to_bits()
}
