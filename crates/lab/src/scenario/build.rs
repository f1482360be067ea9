//! From a scenario to the world that it describes; what is contradictory is refused.

mod hostile;
mod link;
mod relay;
mod session;

use super::Extensions;
use super::model::{
    AppKind, AppSpec, COLUMN, DirectionSpec, EventSpec, HostSpec, LatenessSpec, LinkSpec, Name,
    Scenario, WriterKind,
};
use super::source::{Files, ScenarioError, SourceFile};
use super::units::{Share, Size, Speed, Time};
use crate::app::group::{Group, GroupConfig, STAMP, SharedGroupLog, Traffic};
use crate::link::{ENDS, LinkConfig, NicConfig};
use crate::rng::{Ppm, Rng};
use crate::world::{ActorId, Cpu, End, HostId, Lateness, LinkId, RouterId, World, WorldConfig};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use link::{IPV6_MTU, LinkReader, UNMANAGED, nic};
use neap_stack::interface::Address;
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
use neap_stack::wire::udp;
use neap_tcp::config::Config;
use neap_tcp::options::SocketOptions;
use neap_tcp::profile::Profile;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::collections::{BTreeMap, VecDeque};
use toml::Spanned;

/// The first port of applications; each group has its own.
const FIRST_PORT: u16 = 5001;

/// Bytes of one write where the scenario says nothing: iperf3's.
const WRITE: u64 = 131_072;

/// Bytes of a message. Whole messages are in memory.
const MESSAGE: RangeInclusive<u64> = 1..=1 << 30;

/// The thread of a host's event loop, and of its executor.
const EDGE_THREAD: u32 = 1;
const ASYNC_THREAD: u32 = 2;

/// What a link may end at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeId {
    Host(HostId),
    Router(RouterId),
    Actor(ActorId),
}

/// What changes while a world runs, and when.
pub(crate) struct Change {
    pub(crate) at: Instant,
    pub(crate) what: Changed,
}

/// What changes.
pub(crate) enum Changed {
    /// A link, from these of its ends on.
    Link { link: LinkId, from: Vec<usize>, event: EventSpec },
    /// Sysctls of a host, by name.
    Host { host: HostId, sysctls: Vec<(String, String)> },
}

/// A world as a scenario describes it, before its first event.
pub(crate) struct ScenarioWorld {
    pub(crate) world: World,
    pub(crate) start: Instant,
    pub(crate) hosts: Vec<(String, HostId)>,
    pub(crate) links: Vec<(String, LinkId)>,
    pub(crate) groups: Vec<(String, AppKind, SharedGroupLog)>,
    pub(crate) sessions: Vec<session::RunningSession>,
    pub(crate) hostiles: Vec<hostile::HostilePeer>,
    /// In the order of their times.
    pub(crate) events: Vec<Change>,
}

struct Builder<'a> {
    source: &'a SourceFile,
    scenario: &'a Scenario,
    files: &'a Files<'a>,
    extensions: &'a Extensions,
    world: World,
    nodes: BTreeMap<&'a str, NodeId>,
    /// The addresses of each host and actor, by link.
    addresses: BTreeMap<NodeId, Vec<(LinkId, IpAddr)>>,
    links: BTreeMap<&'a str, (LinkId, [NodeId; ENDS])>,
}

impl SourceFile {
    /// Builds the world of a scenario.
    pub(super) fn build(
        &self,
        scenario: &Scenario,
        files: &Files<'_>,
        extensions: &Extensions,
    ) -> Result<ScenarioWorld, ScenarioError> {
        let config = WorldConfig { seed: scenario.seed, ..WorldConfig::default() };
        let start = config.start;
        let mut builder = Builder {
            source: self,
            scenario,
            files,
            extensions,
            world: World::new(config),
            nodes: BTreeMap::new(),
            addresses: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        builder.times()?;
        let hosts = builder.hosts()?;
        let mut hostiles = builder.actors()?;
        builder.connect()?;
        builder.route();
        let groups = builder.apps(start)?;
        let sessions = builder.sessions(start)?;
        builder.unleash(start, &sessions, &mut hostiles)?;
        let events = builder.events(start)?;
        builder.expectations()?;
        builder.publications()?;
        let links = builder.links.iter().map(|(name, (id, _))| ((*name).to_owned(), *id)).collect();
        let world = builder.world;
        Ok(ScenarioWorld { world, start, hosts, links, groups, sessions, hostiles, events })
    }
}

impl<'a> Builder<'a> {
    fn times(&self) -> Result<(), ScenarioError> {
        let top = |key, what| Err(self.source.error_in(0..0, key, what));
        if self.scenario.duration.0 == Nanos::ZERO {
            return top("duration", "must be more than nothing");
        }
        if self.scenario.sample.is_some_and(|Time(sample)| sample == Nanos::ZERO) {
            return top("sample", "must be more than nothing");
        }
        Ok(())
    }

    fn hosts(&mut self) -> Result<Vec<(String, HostId)>, ScenarioError> {
        let mut hosts = Vec::new();
        for (name, host) in &self.scenario.host {
            let config = self.config(host)?;
            let config = StackConfig { config, ..StackConfig::default() };
            let id = self.world.add_host(config).map_err(|error| self.at_host(name, "", error))?;
            let cpu = self.cpu(name, host)?;
            self.world.set_cpu(id, cpu);
            self.nodes.insert(name, NodeId::Host(id));
            hosts.push((name.clone(), id));
        }
        for (name, router) in &self.scenario.router {
            let id = self.world.add_router();
            if self.nodes.insert(name, NodeId::Router(id)).is_some() {
                return Err(self.source.error(router, "is a host already"));
            }
        }
        Ok(hosts)
    }

    /// An error at a key of `[host.NAME]`, or of a table within it; without a key, one of the host
    /// itself.
    fn at_host(&self, name: &str, key: &str, what: impl core::fmt::Display) -> ScenarioError {
        let find = |end: &str| self.source.text.find(&format!("[host.{end}"));
        let outer = name.split('.').next().unwrap_or(name);
        // A host may be there by a table within it alone, such as `[host.a.sysctl]`.
        let ends = [format!("{name}]"), format!("{outer}]"), format!("{outer}.")];
        let table = ends.iter().find_map(|end| find(end)).unwrap_or(0);
        let own = format!("host.{name}");
        self.source.error_in(table..table, if key.is_empty() { &own } else { key }, what)
    }

    fn config(&self, host: &HostSpec) -> Result<Config, ScenarioError> {
        let mut config = Config::default();
        if let Some(name) = &host.profile {
            let unknown = || {
                let names = Profile::ALL.map(Profile::name).join(", ");
                self.source.error(name, format_args!("unknown profile; there are {names}"))
            };
            config = Config::profile(name.get_ref()).ok_or_else(unknown)?;
        }
        config.controllers = self.extensions.controllers.clone();
        self.set_sysctls(&mut config, &host.sysctl)?;
        Ok(config)
    }

    /// Sets sysctls; the answer is what was set, as text.
    fn set_sysctls(
        &self,
        config: &mut Config,
        sysctls: &BTreeMap<Name, toml::Value>,
    ) -> Result<Vec<(String, String)>, ScenarioError> {
        let mut all = Vec::new();
        for (name, value) in sysctls {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Boolean(on) => u8::from(*on).to_string(),
                other => other.to_string(),
            };
            let set = config.set(name.get_ref(), &text);
            set.map_err(|error| self.source.error(name, error))?;
            all.push((name.get_ref().clone(), text));
        }
        Ok(all)
    }

    fn cpu(&self, name: &str, host: &HostSpec) -> Result<Cpu, ScenarioError> {
        let lateness = match &host.lateness {
            None => Lateness::UpTo(WorldConfig::default().wake_jitter),
            Some(LatenessSpec::UpTo(Time(most))) => Lateness::UpTo(*most),
            Some(LatenessSpec::Quantiles(quantiles)) => {
                let quantiles: Vec<(Ppm, Nanos)> =
                    quantiles.iter().map(|&(Share(share), Time(time))| (share, time)).collect();
                let ascend =
                    |pair: &[(Ppm, Nanos)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
                let begins = quantiles.first().is_some_and(|first| first.0 > Ppm::NEVER);
                if !begins || !quantiles.windows(2).all(ascend) {
                    let what = "quantiles must ascend, from above 0 %";
                    return Err(self.at_host(name, "lateness", what));
                }
                Lateness::Quantiles(quantiles)
            }
        };
        let time = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
        Ok(Cpu {
            lateness,
            per_wakeup: time(host.per_wakeup),
            per_poll: time(host.per_poll),
            per_switch: time(host.per_switch),
            timer_per_flow: host.timer_per_flow,
        })
    }

    /// Gives an actor its name.
    pub(super) fn name_actor(&mut self, name: &'a str, actor: ActorId) -> bool {
        self.nodes.insert(name, NodeId::Actor(actor)).is_none()
    }

    /// The address of an actor on its first link.
    pub(super) fn address_of(&self, actor: ActorId) -> Option<IpAddr> {
        Some(self.addresses.get(&NodeId::Actor(actor))?.first()?.1)
    }

    fn node(&self, name: &Name) -> Result<NodeId, ScenarioError> {
        let unknown = || self.source.error(name, format_args!("there is no {:?}", name.get_ref()));
        self.nodes.get(name.get_ref().as_str()).copied().ok_or_else(unknown)
    }

    pub(super) fn host(&self, name: &Name) -> Result<HostId, ScenarioError> {
        match self.node(name)? {
            NodeId::Host(host) => Ok(host),
            NodeId::Router(_) | NodeId::Actor(_) => Err(self.source.error(name, "must be a host")),
        }
    }

    fn nic(&self, end: &Name) -> Result<NicConfig, ScenarioError> {
        let name = end.get_ref();
        match self.scenario.host.get(name) {
            Some(host) => nic(host, self.least_mtu())
                .map_err(|(key, what)| self.at_host(&format!("{name}.nic"), key, what)),
            None => Ok(NicConfig::default()),
        }
    }

    /// The smallest MTU of a card: what each host must take (RFC 791, RFC 8200 section 5).
    fn least_mtu(&self) -> u16 {
        if self.scenario.ipv6 { IPV6_MTU } else { 576 }
    }

    fn connect(&mut self) -> Result<(), ScenarioError> {
        for (index, (name, link)) in self.scenario.link.iter().enumerate() {
            let ends = &link.get_ref().ends;
            let nodes = [self.node(&ends[0])?, self.node(&ends[1])?];
            if nodes[0] == nodes[1] {
                return Err(self.source.error(&ends[1], "a link needs two different ends"));
            }
            let path = |from: usize| {
                let is_router = matches!(nodes[from], NodeId::Router(_));
                let (source, files) = (self.source, self.files);
                let ipv6 = self.scenario.ipv6;
                LinkReader { source, link, from, is_router, ipv6, files }.path()
            };
            self.check_queues(link, nodes.map(|node| matches!(node, NodeId::Router(_))))?;
            let config = LinkConfig {
                nics: [self.nic(&ends[0])?, self.nic(&ends[1])?],
                paths: [path(0)?, path(1)?],
            };
            let own = [0, 1].map(|end| [self.address(index, end)]);
            let end = |end: usize| match nodes[end] {
                NodeId::Host(host) => End::Host(host, &own[end]),
                NodeId::Router(router) => End::Router(router),
                NodeId::Actor(actor) => End::Actor(actor),
            };
            let id = self.world.connect(&config, [end(0), end(1)]);
            let id = id.map_err(|error| self.source.error(link, error))?;
            for end in 0..ENDS {
                if !matches!(nodes[end], NodeId::Router(_)) {
                    self.addresses.entry(nodes[end]).or_default().push((id, own[end][0].ip));
                }
            }
            self.links.insert(name, (id, nodes));
        }
        self.configure_interfaces()
    }

    /// Refuses what is said of the queues of both ways if neither has such a queue: only routers'
    /// ports and hops have. `are_ports` says which ends are routers.
    fn check_queues(
        &self,
        link: &Spanned<LinkSpec>,
        are_ports: [bool; ENDS],
    ) -> Result<(), ScenarioError> {
        let said = link.get_ref();
        let ways = [0, 1].map(|from| said.direction(from));
        let has_port = are_ports.contains(&true);
        let has_bottleneck = ways.iter().any(|way| way.bottleneck.is_some());
        let has_room = ways.iter().any(|way| way.has_hop() && way.bottleneck.is_none());
        let error = |key: &str, what: &str| Err(self.source.error_in(link.span(), key, what));
        match said.managed() {
            _ if said.buffer.is_some() && !has_port && !has_room => {
                let what = if has_bottleneck {
                    "no router begins here, and a bottleneck has a buffer of its own"
                } else {
                    "no router begins here: use a bottleneck, or nic.ring of the host"
                };
                error("buffer", what)
            }
            Some(key) if !has_port && !ways.iter().any(DirectionSpec::has_hop) => {
                error(key, UNMANAGED)
            }
            _ => Ok(()),
        }
    }

    fn configure_interfaces(&mut self) -> Result<(), ScenarioError> {
        let now = self.world.now();
        for (name, host) in &self.scenario.host {
            let Some(&NodeId::Host(id)) = self.nodes.get(name.as_str()) else { continue };
            let interfaces: Vec<_> = self.world.interfaces(id).map(|(one, ..)| one).collect();
            if interfaces.is_empty() {
                return Err(self.at_host(name, "", "no link ends at this host"));
            }
            let stack = self.world.stack(id);
            for interface in interfaces {
                if let Some(text) = &host.qdisc {
                    let qdisc = self.extensions.qdiscs.parse(text.get_ref());
                    let qdisc = qdisc.map_err(|error| self.source.error(text, error))?;
                    let is_set = stack.set_qdisc(now, interface, &qdisc);
                    debug_assert!(is_set.is_ok(), "the interface is there");
                }
                if host.nic.bql == Some(false) {
                    let is_set = stack.set_byte_queue_limits(now, interface, u64::MAX, u64::MAX);
                    debug_assert!(is_set.is_ok(), "the interface is there");
                }
            }
        }
        Ok(())
    }

    fn address(&self, link: usize, end: usize) -> Address {
        let host = end as u16 + 1;
        let (ip, len): (IpAddr, u8) = if self.scenario.ipv6 {
            (Ipv6Addr::new(0xfd00, 0, 0, link as u16, 0, 0, 0, host).into(), 64)
        } else {
            let [.., high, low] = (link as u32).to_be_bytes();
            (Ipv4Addr::new(10, high, low, host as u8).into(), 24)
        };
        Address::new(ip, len).expect("both lengths are of their family")
    }

    /// Every router learns the way to every host, by the fewest hops; every host the way to what is
    /// not on its links.
    fn route(&mut self) {
        let links: Vec<(LinkId, [NodeId; ENDS])> = self.links.values().copied().collect();
        let hosts: Vec<_> = self.addresses.iter().map(|(host, at)| (*host, at.clone())).collect();
        for (host, addresses) in &hosts {
            for &(own, address) in addresses {
                let mut seen = vec![*host];
                let mut queue: VecDeque<NodeId> = VecDeque::new();
                let first = links.iter().find(|(id, _)| *id == own).map(|(_, ends)| *ends);
                let Some(ends) = first else { continue };
                queue.extend(ends.into_iter().filter(|node| node != host));
                seen.extend(queue.iter().copied());
                while let Some(node) = queue.pop_front() {
                    let NodeId::Router(_) = node else { continue };
                    for (id, ends) in links.iter().filter(|(_, ends)| ends.contains(&node)) {
                        let other = if ends[0] == node { ends[1] } else { ends[0] };
                        if seen.contains(&other) {
                            continue;
                        }
                        seen.push(other);
                        queue.push_back(other);
                        self.learn(other, address, *id);
                    }
                }
            }
        }
    }

    fn learn(&mut self, node: NodeId, address: IpAddr, link: LinkId) {
        let prefix = Prefix::of_host(address);
        match node {
            NodeId::Router(router) => self.world.add_route(router, prefix, link),
            NodeId::Actor(_) => {}
            NodeId::Host(host) => {
                let interface = self.world.interfaces(host).find(|&(_, id, _)| id == link);
                let Some((interface, ..)) = interface else { return };
                let route = Route { interface, gateway: None, mtu: None, pref_src: None };
                let entry = RouteEntry { prefix, metric: 0, route };
                let replaced = self.world.stack(host).replace_route(entry);
                debug_assert!(replaced.is_ok(), "the interface is there");
            }
        }
    }

    /// An address of `to` that `from` reaches.
    pub(super) fn reach(
        &self,
        from: HostId,
        to: HostId,
        name: &Name,
    ) -> Result<IpAddr, ScenarioError> {
        let addresses = self.addresses.get(&NodeId::Host(to)).map_or(&[][..], Vec::as_slice);
        let routes = self.world.stack(from).routes();
        let reached = addresses
            .iter()
            .map(|&(_, ip)| ip)
            .find(|&ip| routes.iter().any(|entry| entry.prefix.contains(ip)));
        reached.ok_or_else(|| self.source.error(name, "there is no way to this host"))
    }

    fn apps(
        &mut self,
        start: Instant,
    ) -> Result<Vec<(String, AppKind, SharedGroupLog)>, ScenarioError> {
        let mut groups = Vec::new();
        let end = start + self.warm_up() + self.scenario.duration.0;
        for (index, (name, spanned)) in self.scenario.app.iter().enumerate() {
            let app = spanned.get_ref();
            let (from, to) = (self.host(&app.from)?, self.host(&app.to)?);
            if from == to {
                return Err(self.source.error(&app.to, "an application needs two hosts"));
            }
            let config = self.group(spanned)?;
            let (begin, stop) = self.span(spanned, start, end)?;
            let group = Group::new(config);
            groups.push((name.clone(), app.kind, group.log()));
            let remote = SocketAddr::new(self.reach(from, to, &app.to)?, FIRST_PORT + index as u16);
            let rng = Rng::new(self.scenario.seed).fork(4).fork(index as u64);
            let plan = GroupStart { from, to, remote, begin, stop, rng };
            plan.start(&mut self.world, app, &group).map_err(|e| self.source.error(spanned, e))?;
        }
        Ok(groups)
    }

    fn warm_up(&self) -> Nanos {
        self.scenario.warm_up.map_or(Nanos::ZERO, |Time(time)| time)
    }

    /// When an application begins and stops.
    fn span(
        &self,
        spanned: &Spanned<AppSpec>,
        start: Instant,
        end: Instant,
    ) -> Result<(Instant, Instant), ScenarioError> {
        let app = spanned.get_ref();
        let error = |key, what| Err(self.source.error_in(spanned.span(), key, what));
        let begin = start + app.start.map_or(Nanos::ZERO, |Time(time)| time);
        let stop = app.stop.map_or(Instant::FAR_FUTURE, |Time(time)| start + time);
        if begin >= end {
            return error("start", "lies behind the end of the run");
        }
        if stop <= begin {
            return error("stop", "must come after start");
        }
        if app.count == 0 {
            return error("count", "must be at least 1");
        }
        Ok((begin, stop))
    }

    /// How the clients and servers of an application work.
    fn group(&self, spanned: &Spanned<AppSpec>) -> Result<GroupConfig, ScenarioError> {
        let app = spanned.get_ref();
        let error = |key: &str, what: &str| self.source.error_in(spanned.span(), key, what);
        if let Some(key) = app.misplaced() {
            return Err(error(key, &format!("means nothing for {:?}", app.kind)));
        }
        let traffic = self.traffic(spanned)?;
        let twice = |size: Option<Size>| size.map(|Size(size)| (size * 2).min(1 << 30) as u32);
        let options = SocketOptions {
            nodelay: app.nodelay.unwrap_or(false),
            send_buffer: twice(app.sndbuf),
            notsent_lowat: app.notsent_lowat.map_or(0, |Size(size)| size.min(1 << 30) as u32),
            notsent_lowat_us: app.notsent_lowat_us.unwrap_or(0),
            max_pacing_rate: app.pacing_rate.map_or(Rate::UNLIMITED, |Speed(rate)| rate),
            priority: app.priority.unwrap_or(0),
            keepalive: app.keepalive.is_some(),
            keepalive_idle: app.keepalive.map(|Time(idle)| idle),
            ..SocketOptions::default()
        };
        if options.priority > 15 {
            return Err(error("priority", "is from 0 to 15"));
        }
        if options.check().is_err() {
            return Err(error("keepalive", "is from 1s to 32767s"));
        }
        let inherited = SocketOptions {
            receive_buffer: twice(app.rcvbuf),
            max_pacing_rate: app.response_rate.map_or(Rate::UNLIMITED, |Speed(rate)| rate),
            keepalive: options.keepalive,
            keepalive_idle: options.keepalive_idle,
            ..SocketOptions::default()
        };
        Ok(GroupConfig {
            traffic,
            read_rate: app.read_rate.map(|Speed(rate)| rate),
            // Who waits at a barrier is woken by no socket.
            polls: app.barrier == Some(true),
            client: ConnectOptions { options, ..ConnectOptions::default() },
            server: ListenOptions { options: inherited, ..ListenOptions::default() },
        })
    }

    /// What an application sends, from the keys that its kind has.
    fn traffic(&self, spanned: &Spanned<AppSpec>) -> Result<Traffic, ScenarioError> {
        let app = spanned.get_ref();
        let error = |key: &str, what: &str| self.source.error_in(spanned.span(), key, what);
        let need = |size: Option<Size>, key| match size {
            Some(Size(0)) => Err(error(key, "must be at least 1")),
            Some(Size(size)) => Ok(size),
            None => Err(error(key, &format!("{:?} needs {key}", app.kind))),
        };
        let within = |size: u64, key, limits: RangeInclusive<u64>| {
            let (least, most) = (limits.start(), limits.end());
            let is_within = limits.contains(&size);
            let what = || error(key, &format!("must be from {least} to {most} bytes"));
            is_within.then_some(size).ok_or_else(what)
        };
        let interval = || match app.interval {
            Some(Time(interval)) if interval > Nanos::ZERO => Ok(interval),
            Some(_) => Err(error("interval", "must be more than nothing")),
            None => Err(error("interval", &format!("{:?} needs interval", app.kind))),
        };
        let write = app.write.map_or(WRITE, |Size(size)| size);
        let time = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
        Ok(match app.kind {
            AppKind::Bulk => Traffic::Bulk { bytes: None, write },
            AppKind::Transfer => Traffic::Bulk { bytes: Some(need(app.bytes, "bytes")?), write },
            AppKind::RequestResponse => Traffic::RequestResponse {
                request: need(app.request, "request")?,
                response: {
                    let response = need(app.response, "response")?;
                    let is_shared = app.barrier == Some(true);
                    if is_shared { response.div_ceil(app.count.into()) } else { response }
                },
                think: time(app.think),
                barrier: app.barrier.unwrap_or(false),
            },
            AppKind::OnOff => {
                Traffic::OnOff { burst: need(app.burst, "burst")?, off: time(app.off) }
            }
            AppKind::Paced | AppKind::Udp => {
                let limits = if app.kind == AppKind::Udp { self.datagram() } else { MESSAGE };
                Traffic::Paced {
                    message: within(need(app.message, "message")?, "message", limits)?,
                    interval: interval()?,
                }
            }
            AppKind::Mixed => Traffic::Mixed {
                urgent: within(need(app.urgent, "urgent")?, "urgent", MESSAGE)?,
                interval: interval()?,
                frame: within(need(app.frame, "frame")?, "frame", MESSAGE)?,
            },
        })
    }

    /// The least bytes of a datagram, and the most.
    fn datagram(&self) -> RangeInclusive<u64> {
        let most = if self.scenario.ipv6 { udp::MAX_PAYLOAD_V6 } else { udp::MAX_PAYLOAD_V4 };
        STAMP as u64..=most as u64
    }

    fn events(&self, start: Instant) -> Result<Vec<Change>, ScenarioError> {
        let end = self.warm_up() + self.scenario.duration.0;
        let mut events = Vec::new();
        for spanned in &self.scenario.event {
            let event = spanned.get_ref();
            let (name, what) = match (&event.link, &event.host) {
                (Some(link), None) => (link, self.change_of_link(link, event)?),
                (None, Some(host)) => (host, self.change_of_host(host, event)?),
                _ => {
                    let what = "an event names either a link or a host";
                    return Err(self.source.error(spanned, what));
                }
            };
            if event.at.0 >= end {
                return Err(self.source.error(name, "this event lies behind the end of the run"));
            }
            events.push(Change { at: start + event.at.0, what });
        }
        events.sort_by_key(|change| change.at);
        Ok(events)
    }

    fn change_of_link(&self, name: &Name, event: &EventSpec) -> Result<Changed, ScenarioError> {
        let Some((id, nodes)) = self.links.get(name.get_ref().as_str()) else {
            let what = format!("there is no link {:?}", name.get_ref());
            return Err(self.source.error(name, what));
        };
        let EventSpec { rate, delay, loss, down, sysctl, .. } = event;
        if !sysctl.is_empty() {
            return Err(self.source.error(name, "a link has no sysctls: name a host"));
        }
        if rate.is_none() && delay.is_none() && loss.is_none() && down.is_none() {
            return Err(self.source.error(name, "this event changes nothing"));
        }
        let from = match &event.from {
            None => vec![0, 1],
            Some(from) => {
                let node = self.node(from)?;
                let at = nodes.iter().position(|end| *end == node);
                vec![at.ok_or_else(|| self.source.error(from, "is no end of this link"))?]
            }
        };
        let is_traced = |end: &usize| {
            let link = self.scenario.link.get(name.get_ref());
            link.is_some_and(|link| link.get_ref().direction(*end).trace.is_some())
        };
        if rate.is_some() && from.iter().any(is_traced) {
            let what = "a trace says the rate of this link: leave out rate, or name the other end";
            return Err(self.source.error(name, what));
        }
        Ok(Changed::Link { link: *id, from, event: event.clone() })
    }

    fn change_of_host(&self, name: &Name, event: &EventSpec) -> Result<Changed, ScenarioError> {
        let EventSpec { rate, delay, loss, down, from, sysctl, .. } = event;
        let is_of_link = rate.is_some() || delay.is_some() || loss.is_some() || down.is_some();
        if is_of_link || from.is_some() {
            return Err(self.source.error(name, "a host has sysctls alone: name a link"));
        }
        if sysctl.is_empty() {
            return Err(self.source.error(name, "this event changes nothing"));
        }
        let spec = self.scenario.host.get(name.get_ref());
        let (Some(spec), NodeId::Host(host)) = (spec, self.node(name)?) else {
            return Err(self.source.error(name, "is no host"));
        };
        let sysctls = self.set_sysctls(&mut self.config(spec)?, sysctl)?;
        Ok(Changed::Host { host, sysctls })
    }

    fn expectations(&self) -> Result<(), ScenarioError> {
        for spanned in &self.scenario.expect {
            let expect = spanned.get_ref();
            let what = match (expect.at_least, expect.at_most) {
                (None, None) if expect.says.is_none() => "expects nothing: say at_least or at_most",
                (Some(least), Some(most)) if least > most => "at_least is above at_most",
                _ => {
                    let others = expect.relative_to.keys().chain(expect.more_than.keys());
                    self.are_swept(expect.when.keys().chain(others))?;
                    continue;
                }
            };
            return Err(self.source.error(&expect.figure, what));
        }
        Ok(())
    }

    /// What others have measured belongs to columns that exist.
    fn publications(&self) -> Result<(), ScenarioError> {
        let columns = &self.scenario.column;
        for name in &self.scenario.published {
            if !columns.iter().any(|column| column.name.get_ref() == name.get_ref()) {
                return Err(self.source.error(name, "is no column"));
            }
        }
        for row in &self.scenario.row {
            for published in &row.published {
                self.are_swept(published.when.keys())?;
                if published.values.len() != self.scenario.published.len() {
                    let what = "needs one published value for each column that is published";
                    return Err(self.source.error(&row.figure, what));
                }
            }
        }
        Ok(())
    }

    fn are_swept<'n>(
        &self,
        mut names: impl Iterator<Item = &'n Name>,
    ) -> Result<(), ScenarioError> {
        let is_swept = |name: &&Name| {
            let is_column = name.get_ref() == COLUMN && !self.scenario.column.is_empty();
            is_column || self.scenario.sweep.contains_key(*name)
        };
        match names.find(|name| !is_swept(name)) {
            Some(name) => Err(self.source.error(name, "is not swept")),
            None => Ok(()),
        }
    }
}

/// A group that is about to start.
struct GroupStart {
    from: HostId,
    to: HostId,
    remote: SocketAddr,
    begin: Instant,
    stop: Instant,
    rng: Rng,
}

impl GroupStart {
    fn start(
        mut self,
        world: &mut World,
        app: &AppSpec,
        group: &Group,
    ) -> Result<(), neap_stack::socket::SocketError> {
        let any = match self.remote.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let local = SocketAddr::new(any, self.remote.port());
        let is_udp = app.kind == AppKind::Udp;
        if is_udp {
            let receiver = group.datagram_receiver(world.stack(self.to), local)?;
            world.add_app(self.to, receiver);
        } else {
            let server = group.server(world.stack(self.to), local)?;
            world.add_app(self.to, server);
        }
        for index in 0..app.count {
            let spread = app.stagger.map_or(Nanos::ZERO, |Time(spread)| spread);
            let late = if index == 0 { Nanos::ZERO } else { self.rng.time(spread) };
            let (begin, stop) = (self.begin + late, self.stop);
            if is_udp {
                let unbound = SocketAddr::new(any, 0);
                let stack = world.stack(self.from);
                let sender = group.datagram_sender(stack, unbound, self.remote, begin, stop)?;
                world.add_app(self.from, sender);
                continue;
            }
            let rng = self.rng.fork(index.into());
            let client = group.client(self.remote, begin, stop, rng);
            match app.writer.unwrap_or_default() {
                WriterKind::Blocking => world.add_app(self.from, client),
                WriterKind::Edge => world.add_app_on(self.from, EDGE_THREAD, client),
                WriterKind::Async => world.add_app_on(self.from, ASYNC_THREAD, client),
            }
        }
        Ok(())
    }
}
