//! The thread of a gateway: it takes the connections of guests, opens their other halves, and
//! relays.
//!
//! Cost: one thread for all flows, and O(1) per event, whatever the number of flows. A flow has a
//! socket of the stack, what the [`Upstream`] needs, and two entries of a poller.

use crate::config::GatewayConfig;
use crate::counters::{Counters, Figures};
use crate::datagrams::Datagrams;
use crate::guest::GuestStream;
use crate::guest_rate;
use crate::host::HostStream;
use crate::published::{Published, Transport};
use crate::relay::{End, Progress, Relay, Side, VISIT};
use crate::sending::{Scheduled, Sender, Sending, Service};
use crate::token::{Generation, MOST_PUBLISHED, Slot, Token};
use crate::upstream::{Far, Upstream};
use neap::{
    Event, Events, PendingConnection, Poller, Refusal, Stack, TcpForwarder, UdpForwarder,
    UdpForwarderOptions,
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
/// Turns under a rate that are taken before others have theirs.
const SERVED_AT_ONCE: usize = 64;
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
    /// What used up its turn.
    waiting: VecDeque<Turn>,
    /// Who sends when under a rate; `None` without one.
    sending: Option<Sending>,
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
    /// The side of the host.
    host: Side,
    /// Its place in the schedule, once it is open under a rate.
    scheduled: Option<Scheduled>,
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
    /// A gateway for all connections that come to the stack and are for none of its listeners. With
    /// a [rate](GatewayConfig::rate_in) it replaces the queueing disciplines of the interfaces.
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
        let mut datagrams = Datagrams::new(datagrams, counters.clone())?;
        if let Some(rate) = config.rate_in {
            guest_rate::limit(&stack, rate).map_err(io::Error::other)?;
        }
        let sending = config.rate.map(Sending::new);
        if let Some(sending) = &sending {
            datagrams.limit(sending.rate());
        }
        poller.add(datagrams.forwarder(), Token::Guests.to_bits(), Events::IN | Events::ET)?;
        Ok(Self {
            poller,
            stack,
            forwarder,
            published: Vec::new(),
            datagrams,
            upstream,
            config,
            flows: Slab::new(),
            waiting: VecDeque::new(),
            sending,
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
            self.serve();
            if self.datagrams.next_expiry().is_some() {
                self.datagrams.expire(Instant::now(), self.sending.as_mut());
            }
        }
        Ok(())
    }

    /// How long nothing is to be done without an event; `None` is for ever.
    fn sleeps_for(&self) -> Option<Duration> {
        if !self.waiting.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.datagrams.next_expiry();
        let expiry = due.map(|due| due.saturating_duration_since(Instant::now()));
        let turn = self.sending.as_ref().and_then(Sending::sleeps_for);
        [expiry, turn].into_iter().flatten().min()
    }

    /// Takes the turns under the rate that are due.
    fn serve(&mut self) {
        for _ in 0..SERVED_AT_ONCE {
            let Some(sending) = &mut self.sending else { return };
            let Some(service) = sending.next() else { return };
            match service.who {
                Sender::Flow(key) => self.serve_flow(key, service),
                Sender::Mapping(key) => self.datagrams.serve(key, service, sending),
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
        let before = flow.relay.bytes_to(flow.host);
        let most = scheduled.segments.data_in(service.bytes);
        let progress = flow.relay.pump_to(flow.host, &mut **near, &mut *flow.far, most);
        let sent = (flow.relay.bytes_to(flow.host) - before) as usize;
        let has_more = matches!(progress, Progress::HasMore);
        sending.on_sent(service, scheduled.segments.on_wire(sent), has_more);
        self.counters.add(|counters| &counters.bytes_out, sent as u64);
        if !has_more {
            self.on_progress(key, &progress);
        }
    }

    fn on_event(&mut self, event: Event) {
        match Token::from_bits(event.token) {
            Token::New => self.take_new(),
            Token::Guests => self.take_turn(Turn::Guests),
            Token::Published(index) => self.take_turn(Turn::Published(index)),
            Token::Mapping(slot) => self.take_turn(Turn::Mapping(slot)),
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
                self.datagrams.on_guests(&self.poller, &self.config, self.sending.as_mut())
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
        self.begin(Near::Waits(Some(pending)), far, Side::Server);
    }

    /// Begins a flow; its far side is not open yet.
    fn begin(&mut self, near: Near, far: Box<dyn Far>, host: Side) {
        let (generation, relay) = (self.generation.advance(), Relay::default());
        let (is_waiting, is_open, scheduled) = (false, false, None);
        let flow = Flow { generation, is_waiting, is_open, near, far, relay, host, scheduled };
        let key = self.flows.insert(flow);
        let entered = self.flows[key].far.enter(&self.poller, token(key, generation), CHANGES);
        if let Err(error) = entered {
            self.fail(key, &error);
        }
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
            let (guest, options) =
                (self.published[index].guest(), guest_rate::options(self.config.rate_in));
            match GuestStream::connect(&self.stack, guest, client, options) {
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
            self.begin(Near::Open(Box::new(near)), Box::new(far), Side::Client);
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
        let (near, far) = (&mut **near, &mut *flow.far);
        let guest = flow.host.other();
        let before = [flow.host, guest].map(|side| flow.relay.bytes_to(side));
        let progress = match (&mut self.sending, flow.scheduled) {
            // The other direction has its turn in the schedule.
            (Some(sending), Some(scheduled)) => {
                sending.wake(scheduled.id);
                flow.relay.pump_to(guest, near, far, VISIT)
            }
            _ => flow.relay.pump(near, far),
        };
        let [out, back] = [flow.host, guest].map(|side| flow.relay.bytes_to(side));
        self.counters.add(|counters| &counters.bytes_out, out - before[0]);
        self.counters.add(|counters| &counters.bytes_in, back - before[1]);
        self.on_progress(key, &progress);
    }

    fn on_progress(&mut self, key: usize, progress: &Progress) {
        match progress {
            Progress::Waits => {}
            Progress::HasMore => {
                let flow = &mut self.flows[key];
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
            let stream = pending.accept_nonblocking(guest_rate::options(self.config.rate_in))?;
            let stream = GuestStream::new(stream)?;
            self.poller.add(stream.stream(), token(key, flow.generation), CHANGES)?;
            flow.near = Near::Open(Box::new(stream));
        }
        flow.is_open = true;
        if let (Some(sending), Near::Open(near)) = (&mut self.sending, &mut flow.near) {
            let host: &mut dyn End = match flow.host {
                Side::Client => &mut **near,
                Side::Server => &mut *flow.far,
            };
            flow.scheduled = Some(sending.insert_flow(key, host));
        }
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
        if let (Some(sending), Some(scheduled)) = (&mut self.sending, flow.scheduled) {
            sending.remove(scheduled.id);
        }
        self.counters.count(reason);
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
