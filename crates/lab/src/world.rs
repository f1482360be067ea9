//! Worlds in virtual time: hosts, routers, links and applications, and the order of their turns.

mod actor;
mod cpu;
mod events;
mod host;
mod router;

use crate::app::App;
use crate::link::{ENDS, Link, LinkConfig, Packet};
use crate::rng::Rng;
use actor::ActorSlot;
pub use actor::{Actor, Outbox};
pub use cpu::{Cpu, CpuStats, Lateness};
use events::{Agent, Events};
use host::{Host, Port};
use neap_stack::device::Device;
use neap_stack::interface::{Address, InterfaceId};
use neap_stack::route::Prefix;
use neap_stack::stack::{Stack, StackConfig, StackError};
use neap_tcp::time::{Instant, Nanos};
use router::Router;
pub use router::RouterStats;

/// Configuration of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// Seed of all randomness.
    pub seed: u64,
    /// Longest time by which a host notices an event late, as real ones do (timer slack,
    /// scheduling), unless [`World::set_cpu`] says otherwise.
    pub wake_jitter: Nanos,
    /// Time at which the world begins.
    pub start: Instant,
}

impl Default for WorldConfig {
    fn default() -> Self {
        let (wake_jitter, start) = (Nanos::from_micros(50), Instant::from_nanos(1_000_000_000));
        Self { seed: 0, wake_jitter, start }
    }
}

/// Size of a page in bytes, in which Linux counts memory of sockets.
pub const PAGE: u64 = 4096;

/// Name of a host of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// Name of a router of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouterId(pub usize);

/// Name of an actor of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(pub usize);

/// Name of a link of one world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub usize);

/// Place where a link ends.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// An interface of a host, with these addresses.
    Host(HostId, &'a [Address]),
    /// A router. The queue of the router's port is the bottleneck of the path that begins here.
    Router(RouterId),
    /// An actor. It has no card: packets that it sends leave at once.
    Actor(ActorId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Host(usize),
    Router(usize),
    Actor(usize),
}

/// The end of a link that sends packets of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketSource {
    Host(HostId),
    Actor(ActorId),
}

/// Reason why a world cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host always has more to do, and time does not pass.
    Spinning(HostId),
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self::Spinning(HostId(host)) = self;
        write!(f, "host {host} has work for ever at one instant")
    }
}

impl core::error::Error for Fault {}

/// Hosts and routers in virtual time.
///
/// Equal configurations run equally, to the byte. An event costs O(log n) of all hosts and links,
/// and what its host has to do.
pub struct World {
    config: WorldConfig,
    now: Instant,
    hosts: Vec<Host>,
    routers: Vec<Router>,
    actors: Vec<ActorSlot>,
    links: Vec<Link>,
    /// Where each link ends.
    ends: Vec<[Node; ENDS]>,
    events: Events,
    /// How late hosts are: drawn by them in the order of their ids.
    lateness: Rng,
    /// Hosts that may want another turn than they said.
    touched: Vec<usize>,
    /// Something was changed from outside.
    is_stale: bool,
}

impl World {
    /// Returns an empty world.
    pub fn new(config: WorldConfig) -> Self {
        Self {
            now: config.start,
            hosts: Vec::new(),
            routers: Vec::new(),
            actors: Vec::new(),
            links: Vec::new(),
            ends: Vec::new(),
            events: Events::default(),
            lateness: Rng::new(config.seed).fork(1),
            touched: Vec::new(),
            is_stale: true,
            config,
        }
    }

    /// Adds a host. Its seed is derived from the world's.
    ///
    /// # Errors
    /// Those of [`Stack::new`].
    pub fn add_host(&mut self, mut config: StackConfig) -> Result<HostId, StackError> {
        let id = HostId(self.hosts.len());
        let seed = Rng::new(self.config.seed);
        config.seed = seed.fork(2).fork(id.0 as u64).next_u64();
        let cpu = Cpu::up_to(self.config.wake_jitter);
        self.hosts.push(Host::new(Stack::new(config)?, cpu));
        self.events.add_host();
        Ok(id)
    }

    /// Sets the processor of a host.
    pub fn set_cpu(&mut self, HostId(host): HostId, cpu: Cpu) {
        self.hosts[host].cpu = cpu;
    }

    /// Adds a router without routes.
    pub fn add_router(&mut self) -> RouterId {
        self.routers.push(Router::default());
        RouterId(self.routers.len() - 1)
    }

    /// Adds an actor. It sends and receives by the first link that ends at it.
    pub fn add_actor(&mut self, actor: impl Actor + 'static) -> ActorId {
        self.actors.push(ActorSlot::new(Box::new(actor)));
        self.events.add_actor();
        self.is_stale = true;
        ActorId(self.actors.len() - 1)
    }

    /// Connects two hosts. Each gets an interface with its addresses.
    ///
    /// # Errors
    /// Those of [`Stack::add_interface`].
    pub fn add_link(
        &mut self,
        config: &LinkConfig,
        [(a, at_a), (b, at_b)]: [(HostId, &[Address]); ENDS],
    ) -> Result<Link, StackError> {
        let LinkId(link) = self.connect(config, [End::Host(a, at_a), End::Host(b, at_b)])?;
        Ok(self.links[link].clone())
    }

    /// Connects hosts and routers. A host gets an interface with its addresses; a router only
    /// learns the networks of the host at the other end.
    ///
    /// # Errors
    /// Those of [`Stack::add_interface`].
    pub fn connect(
        &mut self,
        config: &LinkConfig,
        ends: [End<'_>; ENDS],
    ) -> Result<LinkId, StackError> {
        self.connect_through(config, ends, |_, device| device)
    }

    /// Connects hosts and routers as [`connect`](Self::connect), by devices over those of the link:
    /// a tunnel, for instance. `wrap` gets the number of the end with its device, and returns the
    /// one that the host has.
    ///
    /// # Errors
    /// Those of [`Stack::add_interface`].
    pub fn connect_through(
        &mut self,
        config: &LinkConfig,
        ends: [End<'_>; ENDS],
        mut wrap: impl FnMut(usize, Device) -> Device,
    ) -> Result<LinkId, StackError> {
        let id = self.links.len();
        let rng = Rng::new(self.config.seed).fork(3).fork(id as u64 + 1);
        let is_router = ends.map(|end| !matches!(end, End::Host(..)));
        let (link, devices) = Link::between(config, &rng, self.config.start, is_router);
        let nodes = ends.map(|end| match end {
            End::Host(HostId(host), _) => Node::Host(host),
            End::Router(RouterId(router)) => Node::Router(router),
            End::Actor(ActorId(actor)) => Node::Actor(actor),
        });
        for (end, node) in nodes.into_iter().enumerate() {
            if let Node::Actor(actor) = node {
                self.actors[actor].port.get_or_insert((id, end));
            }
        }
        for (end, device) in devices.into_iter().enumerate() {
            let End::Host(HostId(host), addresses) = ends[end] else { continue };
            let host = &mut self.hosts[host];
            let device = wrap(end, device);
            let interface = host.stack.add_interface(self.now, device, addresses)?;
            host.ports.push(Port { link: id, end, interface });
            host.call(self.now);
            if let Node::Router(router) = nodes[1 - end] {
                for address in addresses {
                    self.routers[router].add_route(Prefix::of_host(address.ip), (id, 1 - end));
                }
            }
        }
        self.links.push(link);
        self.ends.push(nodes);
        self.events.add_link();
        self.is_stale = true;
        Ok(LinkId(id))
    }

    /// Adds a route to a router: packets to `prefix` leave by the end of `link` that is at this
    /// router.
    pub fn add_route(&mut self, RouterId(router): RouterId, prefix: Prefix, LinkId(link): LinkId) {
        let end = usize::from(self.ends[link][0] != Node::Router(router));
        self.routers[router].add_route(prefix, (link, end));
    }

    /// Starts an application on a host, in a thread of its own.
    pub fn add_app(&mut self, host: HostId, app: impl App + 'static) {
        self.add(host, None, Box::new(app));
    }

    /// Starts an application on a thread that it shares with others of the same number, as the
    /// connections of an event loop do.
    pub fn add_app_on(&mut self, host: HostId, thread: u32, app: impl App + 'static) {
        self.add(host, Some(thread.into()), Box::new(app));
    }

    fn add(&mut self, HostId(host): HostId, thread: Option<u64>, app: Box<dyn App>) {
        self.hosts[host].add_app(self.now, thread, app);
        self.is_stale = true;
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns a host's stack. Data that is sent through it from outside is seen from the next
    /// [`run_until`](Self::run_until) on.
    pub fn stack(&self, HostId(host): HostId) -> &Stack {
        &self.hosts[host].stack
    }

    /// Returns a link.
    pub fn link(&self, LinkId(link): LinkId) -> &Link {
        &self.links[link]
    }

    /// Returns all links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The host at an end of a link, or the actor.
    pub(crate) fn packet_source(&self, LinkId(link): LinkId, end: usize) -> Option<PacketSource> {
        match self.ends[link][end] {
            Node::Host(host) => Some(PacketSource::Host(HostId(host))),
            Node::Actor(actor) => Some(PacketSource::Actor(ActorId(actor))),
            Node::Router(_) => None,
        }
    }

    /// Returns the interfaces of a host, with the link and its end.
    pub fn interfaces(
        &self,
        HostId(host): HostId,
    ) -> impl Iterator<Item = (InterfaceId, LinkId, usize)> {
        self.hosts[host].ports.iter().map(|port| (port.interface, LinkId(port.link), port.end))
    }

    /// Returns the figures of a host's processor.
    pub fn cpu_stats(&self, HostId(host): HostId) -> CpuStats {
        self.hosts[host].cpu_stats(self.now)
    }

    /// Returns the memory of a host's sockets in pages of [`PAGE`] bytes, each buffer rounded up
    /// (`sockstat`). Costs O(n) of its sockets.
    pub fn socket_pages(&self, host: HostId) -> u64 {
        let pages = |bytes: u32| u64::from(bytes).div_ceil(PAGE);
        let flows = self.stack(host).flows(self.now);
        flows.iter().map(|flow| pages(flow.info.wmem_queued) + pages(flow.info.rmem_alloc)).sum()
    }

    /// Returns the figures of a router.
    pub fn router_stats(&self, RouterId(router): RouterId) -> RouterStats {
        self.routers[router].stats
    }

    /// Lets the next host do what is due, and the routers and hops before it. Returns that host.
    ///
    /// `None` means that no host has a turn before `until`, which is the time then.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn step(&mut self, until: Instant) -> Result<Option<HostId>, Fault> {
        if core::mem::take(&mut self.is_stale) {
            (0..self.links.len()).for_each(|link| self.file_directions(link));
            (0..self.hosts.len()).for_each(|host| self.plan(host));
            (0..self.actors.len()).for_each(|actor| self.file_actor(actor));
        }
        while let Some((at, agent)) = self.events.pop(until) {
            self.now = self.now.max(at);
            match agent {
                Agent::Host(index) => {
                    self.run_host(index)?;
                    return Ok(Some(HostId(index)));
                }
                Agent::Direction(link, end) => self.run_direction(link, end),
                Agent::Actor(actor) => self.run_actor(actor, None),
            }
        }
        self.now = self.now.max(until);
        Ok(None)
    }

    fn run_host(&mut self, index: usize) -> Result<(), Fault> {
        self.hosts[index].run(HostId(index), self.now)?;
        self.touched.push(index);
        for port in 0..self.hosts[index].ports.len() {
            let Port { link, .. } = self.hosts[index].ports[port];
            self.touch(link);
        }
        self.plan_touched();
        Ok(())
    }

    fn run_direction(&mut self, link: usize, end: usize) {
        self.links[link].advance(end, self.now);
        if let Node::Router(router) = self.ends[link][1 - end] {
            while let Some((at, packet)) = self.links[link].take_arrived(end, self.now) {
                let next_hop = self.routers[router].forward(at, packet, &self.links);
                if let Some((link, _)) = next_hop {
                    self.touch(link);
                }
            }
        }
        if let Node::Actor(actor) = self.ends[link][1 - end] {
            while let Some((_, packet)) = self.links[link].take_arrived(end, self.now) {
                self.run_actor(actor, Some(packet));
            }
        }
        self.touch(link);
        self.plan_touched();
    }

    /// An actor gets a packet, or the time that it asked for, and sends.
    fn run_actor(&mut self, actor: usize, packet: Option<Box<Packet>>) {
        let Some((link, end)) = self.actors[actor].port else { return };
        for packet in self.actors[actor].turn(self.now, packet) {
            self.links[link].forward(end, self.now, packet);
        }
        self.file_actor(actor);
        self.touch(link);
        self.plan_touched();
    }

    fn file_actor(&mut self, actor: usize) {
        let next = self.actors[actor].next();
        if next < Instant::FAR_FUTURE {
            self.events.file(Agent::Actor(actor), next.max(self.now));
        }
    }

    /// Something may have been put on a link, in either direction: routers answer packets.
    fn touch(&mut self, link: usize) {
        self.file_directions(link);
        for end in 0..ENDS {
            if let Node::Host(host) = self.ends[link][end] {
                self.touched.push(host);
            }
        }
    }

    /// Files the turns of a link's hops, and of the routers and actors at its ends.
    fn file_directions(&mut self, link: usize) {
        for end in 0..ENDS {
            let is_router = !matches!(self.ends[link][1 - end], Node::Host(_));
            let turn = self.links[link].next_turn(end, is_router);
            if turn < Instant::FAR_FUTURE {
                self.events.file(Agent::Direction(link, end), turn.max(self.now));
            }
        }
    }

    fn plan_touched(&mut self) {
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        touched.drain(..).for_each(|host| self.plan(host));
        self.touched = touched;
    }

    fn plan(&mut self, host: usize) {
        let wake = self.hosts[host].plan(self.now, &self.links, &mut self.lateness);
        if wake < Instant::FAR_FUTURE {
            self.events.file(Agent::Host(host), wake);
        }
    }

    /// Runs until `until`. Looks at all links once, for what was sent from outside.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run_until(&mut self, until: Instant) -> Result<(), Fault> {
        self.run_watched(until, &mut |_, _| {})
    }

    /// Runs until `until`, and calls `watch` with each host that has had its turn.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run_watched(
        &mut self,
        until: Instant,
        watch: &mut dyn FnMut(&Self, HostId),
    ) -> Result<(), Fault> {
        self.is_stale = true;
        while let Some(host) = self.step(until)? {
            watch(self, host);
        }
        Ok(())
    }

    /// Returns whether nothing will ever happen again: there is no timer, and nothing on any link.
    pub fn is_over(&self) -> bool {
        let idle = |host: &Host| host.next_event(&self.links) == Instant::FAR_FUTURE;
        self.hosts.iter().all(idle) && self.links.iter().all(|link| link.contents() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{NicConfig, PathConfig};
    use core::net::SocketAddr;

    impl World {
        /// A world of two hosts at one link, and an address of the second one with a port.
        pub(crate) fn pair(paths: [PathConfig; ENDS]) -> (Self, [HostId; ENDS], SocketAddr) {
            let mut world = Self::new(WorldConfig::default());
            let hosts = [0, 1].map(|_| world.add_host(StackConfig::default()).expect("a host"));
            let addresses = ["10.0.0.1/24", "10.0.0.2/24"];
            let addresses = addresses.map(|text| text.parse::<Address>().expect("an address"));
            let nics = [NicConfig::default(), NicConfig::default()];
            let ends = [(hosts[0], &addresses[..1]), (hosts[1], &addresses[1..])];
            world.add_link(&LinkConfig { nics, paths }, ends).expect("a link");
            (world, hosts, SocketAddr::new(addresses[1].ip, 80))
        }
    }
}
