//! The thread of a gateway: it takes the connections of guests, opens their other halves, and
//! relays.
//!
//! Cost: one thread for all flows, and O(1) per event, whatever the number of flows. A flow has a
//! socket of the stack, what the [`Upstream`] needs, and two entries of a poller.

use crate::config::GatewayConfig;
use crate::counters::{Counters, Figures};
use crate::datagrams::{Datagrams, Ways};
use crate::dns::{Dns, Target};
use crate::guest::GuestStream;
use crate::host::HostStream;
use crate::published::{Published, Transport};
use crate::relay::{End, Progress, Relay};
use crate::token::{Generation, MOST_PUBLISHED, Slot, Token};
use crate::upstream::{Far, Upstream};
use neap::{
    Event, Events, PendingConnection, Poller, Refusal, SocketOptions, Stack, TcpForwarder,
    UdpForwarder, UdpForwarderOptions,
};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    published: Vec<Published>,
    upstream: Box<dyn Upstream>,
    config: GatewayConfig,
    flows: Slab<Flow>,
    datagrams: Datagrams,
    dns: Dns,
    /// Flows that are not open, by the time when they are given up.
    openings: VecDeque<(Instant, Slot)>,
    /// What used up its turn.
    waiting: VecDeque<Turn>,
    generation: Generation,
    counters: Arc<Counters>,
    is_stopped: Arc<AtomicBool>,
}

/// What goes on when the others had their turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Flow(usize),
    Guests,
    Published(usize),
    Mapping(Slot),
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

/// Ends the [run](Gateway::run) of a gateway, from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    poller: Arc<Poller>,
    is_stopped: Arc<AtomicBool>,
}

impl StopHandle {
    /// Ends the run. Connections are closed.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.poller.notify();
    }
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
        Ok(Self {
            poller,
            stack,
            forwarder,
            published: Vec::new(),
            datagrams,
            dns: Dns::new(&config, counters.clone()),
            openings: VecDeque::new(),
            upstream,
            config,
            flows: Slab::new(),
            waiting: VecDeque::new(),
            generation: Generation::default(),
            counters,
            is_stopped: Arc::default(),
        })
    }

    /// What ends the [run](Self::run).
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { poller: self.poller.clone(), is_stopped: self.is_stopped.clone() }
    }

    /// What happened so far.
    pub fn figures(&self) -> Figures {
        self.counters.figures()
    }

    /// Serves until it is [stopped](StopHandle::stop), and sleeps while nothing happens.
    ///
    /// # Errors
    /// The process cannot wait for its descriptors.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        while !self.is_stopped.load(Ordering::SeqCst) {
            let timeout = self.sleeps_for();
            self.poller.wait(&mut events, timeout)?;
            for event in events.drain(..) {
                self.on_event(event);
            }
            for _ in 0..self.waiting.len() {
                let Some(turn) = self.waiting.pop_front() else { break };
                self.take_turn(turn);
            }
            if self.next_expiry().is_some() {
                self.expire(Instant::now());
            }
        }
        Ok(())
    }

    /// How long nothing is to be done without an event; `None` is for ever.
    fn sleeps_for(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.next_expiry()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// When [`expire`](Self::expire) is to be called.
    fn next_expiry(&self) -> Option<Instant> {
        let opening = self.openings.front().map(|&(due, _)| due);
        let others = [self.datagrams.next_expiry(), self.dns.next_expiry(), opening];
        others.into_iter().flatten().min()
    }

    /// Gives up what was to happen until now.
    fn expire(&mut self, now: Instant) {
        self.datagrams.expire(now);
        self.dns.expire(now, &self.poller, self.datagrams.forwarder());
        while let Some((_, slot)) = self.openings.pop_front_if(|(due, _)| *due <= now) {
            let flow = self.flows.get(slot.key);
            if flow.is_some_and(|flow| flow.generation == slot.generation && !flow.is_open) {
                self.fail(slot.key, &io::ErrorKind::TimedOut.into());
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match Token::from_bits(event.token) {
            Token::New => self.take_new(),
            Token::Guests => self.take_turn(Turn::Guests),
            Token::Published(index) => self.take_turn(Turn::Published(index)),
            Token::Mapping(slot) => self.take_turn(Turn::Mapping(slot)),
            Token::Query(slot) => {
                self.dns.on_server(slot, &self.poller, self.datagrams.forwarder());
            }
            Token::Flow(Slot { key, generation }) => {
                // The flow may be over, and its place that of another one.
                if self.flows.get(key).is_some_and(|flow| flow.generation == generation) {
                    self.visit(key);
                }
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
            Turn::Guests => {
                let (poller, config, upstream) = (&*self.poller, &self.config, &*self.upstream);
                let mut ways = Ways { poller, config, upstream, dns: &mut self.dns };
                self.datagrams.on_guests(&mut ways)
            }
            Turn::Published(index) => self.take_published(index),
            Turn::Mapping(slot) => self.datagrams.on_host(slot),
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
        let (client, wanted) = (pending.peer_addr(), pending.local_addr());
        let target = self.dns.target(&self.config, wanted);
        if matches!(target, Target::Denied) {
            self.counters.count(|counters| &counters.denied);
            return refuse(pending, io::ErrorKind::PermissionDenied);
        }
        if self.flows.len() >= self.config.most_flows {
            self.counters.count(|counters| &counters.full);
            return pending.reset();
        }
        let far = match target {
            Target::To(to) => self.upstream.connect(&to, client),
            Target::Resolver => self.dns.connect(&*self.upstream, client),
            Target::Denied => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let far = match far {
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
            return self.fail(key, &error);
        }
        let slot = Slot { key, generation };
        self.openings.extend(self.flows[key].far.opens_until().map(|due| (due, slot)));
        // It may be open already, without an event that says so.
        self.visit(key);
    }

    /// Makes a port of the host one of a guest: what comes to the one goes to the other, from the
    /// address of whoever sent it. Loopback addresses, which a guest would not answer, become
    /// `stand_in`.
    ///
    /// # Errors
    /// Why the host does not give the port; `QuotaExceeded` for more than 65,536 of them.
    pub fn publish(
        &mut self,
        transport: Transport,
        port: SocketAddr,
        guest: SocketAddr,
        stand_in: IpAddr,
    ) -> io::Result<()> {
        if transport == Transport::Udp {
            return self.datagrams.publish(&self.poller, port, guest, stand_in);
        }
        let index = self.published.len();
        if index == MOST_PUBLISHED {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let published = Published::listen(port, guest, stand_in)?;
        let token = Token::Published(index).to_bits();
        self.poller.add(&published, token, Events::IN | Events::ET)?;
        self.published.push(published);
        Ok(())
    }

    /// Takes connections to a published port. Whether there may be more.
    fn take_published(&mut self, index: usize) -> bool {
        for _ in 0..NEW_AT_ONCE {
            let (mut near, client) = match self.published[index].accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The connection is over already, or there are no descriptors.
                Err(_) => {
                    self.counters.count(|counters| &counters.unreached);
                    return false;
                }
            };
            if self.flows.len() >= self.config.most_flows {
                self.counters.count(|counters| &counters.full);
                near.reset();
                continue;
            }
            match GuestStream::connect(&self.stack, self.published[index].guest(), client) {
                Ok(far) => self.enter_published(near, far),
                Err(_) => {
                    self.counters.count(|counters| &counters.unreached);
                    near.reset();
                }
            }
        }
        true
    }

    fn enter_published(&mut self, near: HostStream, far: GuestStream) {
        let mut generation = self.generation;
        let token = token(self.flows.vacant_key(), generation.advance());
        let entered = self.poller.add(&near, token, CHANGES);
        if entered.is_ok() {
            self.begin(Near::Open(Box::new(near)), Box::new(far));
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
