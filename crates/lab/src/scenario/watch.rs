//! Run of a scenario's world with every oracle on.

use super::build::{Change, ScenarioWorld};
use super::model::{AppKind, Oracles};
use crate::app::group::EndLog;
use crate::hostile::Attack;
use crate::link::{ENDS, LinkStats};
use crate::oracle::{self, FlowOracle, SegmentOracle, Sender};
use crate::rng::mix;
use crate::world::{HostId, LinkId, PacketSource, World};
use neap_stack::drop_reason::DropReason;
use neap_stack::qdisc::config::QdiscConfig;
use neap_stack::qdisc::report::Report;
use neap_tcp::counters::Counter;
use neap_tcp::time::{Instant, Nanos};

/// After the end of a scenario all connections must be gone by then: keepalive of two hours, and
/// probes.
const DRAIN: Nanos = Nanos::from_secs(6 * 3600);

/// Turns of hosts between two looks at whether all is over.
const PATIENCE: u64 = 64;

/// Most memory and sockets that a host had at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Bytes received and not read, of all sockets together (`r` of `skmem`).
    pub received: u64,
    /// Bytes received and not read, of the socket that had most.
    pub received_by_one: u64,
    /// Bytes to be sent, of all sockets together (`w` of `skmem`).
    pub sending: u64,
    /// Bytes to be sent, of the socket that had most.
    pub sending_by_one: u64,
    /// Open connections.
    pub connections: u64,
    /// Half-open connections and those that wait to be accepted, of all listeners together.
    pub half_open: u64,
    /// Connections in TIME_WAIT.
    pub time_wait: u64,
    /// Connections without an application whose FIN nobody has acknowledged.
    pub orphans: u64,
    /// Memory that the host accounts for, in pages of 4 KiB.
    pub memory_pages: u64,
}

impl Peaks {
    fn look(&mut self, world: &World, host: HostId) {
        let stack = world.stack(host);
        let (mut received, mut sending) = (0, 0);
        for flow in stack.flows(world.now()) {
            let (r, w) = (u64::from(flow.info.rmem_alloc), u64::from(flow.info.wmem_queued));
            self.received_by_one = self.received_by_one.max(r);
            self.sending_by_one = self.sending_by_one.max(w);
            received += r;
            sending += w;
        }
        let usage = stack.usage();
        let tcp = usage.tcp;
        self.received = self.received.max(received);
        self.sending = self.sending.max(sending);
        self.connections = self.connections.max(tcp.connections as u64);
        self.half_open = self.half_open.max((tcp.requests + tcp.waiting) as u64);
        self.time_wait = self.time_wait.max(tcp.time_wait as u64);
        self.orphans = self.orphans.max(tcp.orphans as u64);
        self.memory_pages = self.memory_pages.max(usage.memory_pages);
    }
}

/// Result of a world in which every rule held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Simulated time until nothing was left to happen.
    pub simulated: Nanos,
    /// Number of turns of hosts.
    pub steps: u64,
    /// Number of segments that were judged.
    pub segments: u64,
    /// Hash of when each frame left and how long it was.
    pub hash: u64,
    /// Peaks of each host, by its name.
    pub peaks: Vec<(String, Peaks)>,
    /// Counts of events on all links and hosts, by which a test can tell whether its worlds are
    /// interesting.
    pub events: EventCounts,
}

/// Counts of events on all links and hosts of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Bytes that sessions and applications have read.
    pub bytes: u64,
    /// Packets lost on the way, at the tail of a queue or of a ring.
    pub lost: u64,
    /// Packets dropped by the management of a queue.
    pub early_drops: u64,
    /// Segments whose checksum a host found wrong.
    pub bad_checksums: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// Packets too big for a hop.
    pub too_big: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Recoveries that were undone, since nothing was lost.
    pub spurious: u64,
    /// Transmissions that stopped at the pacing gate.
    pub paced: u64,
    /// Transmissions that stopped at the small-queue limit.
    pub throttled: u64,
    /// Resets sent.
    pub resets: u64,
}

impl EventCounts {
    fn of(built: &ScenarioWorld) -> Self {
        let mut events = Self::default();
        for session in &built.sessions {
            events.bytes += session.client.borrow().read + session.server.borrow().read;
        }
        for (_, _, log) in &built.groups {
            events.bytes += log.borrow().delivered();
        }
        for link in built.world.links() {
            for stats in [0, 1].map(|end| link.stats(end, built.world.now())) {
                events.lost += stats.lost + stats.dropped + stats.ring_drops;
                events.early_drops += stats.early_drops;
                events.duplicated += stats.duplicated;
                events.reordered += stats.reordered;
                events.too_big += stats.too_big;
                events.marked += stats.marked;
            }
        }
        for (_, host) in &built.hosts {
            let stack = built.world.stack(*host);
            let count = |counter| stack.tcp_counter(counter);
            events.bad_checksums += stack.drops().get(DropReason::TcpChecksum);
            events.retransmitted += count(Counter::RetransSegs);
            events.timeouts += count(Counter::Timeouts);
            events.spurious += count(Counter::DSACKUndo) + count(Counter::LossUndo);
            events.paced += count(Counter::PacingBlocked);
            events.throttled += count(Counter::SmallQueueThrottled);
            events.resets += count(Counter::OutRsts);
        }
        events
    }

    /// Returns every count with its name.
    pub fn named(&self) -> [(&'static str, u64); 14] {
        [
            ("bytes", self.bytes),
            ("lost", self.lost),
            ("early drops", self.early_drops),
            ("bad checksums", self.bad_checksums),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("too big", self.too_big),
            ("marked", self.marked),
            ("retransmitted", self.retransmitted),
            ("timeouts", self.timeouts),
            ("spurious", self.spurious),
            ("paced", self.paced),
            ("throttled", self.throttled),
            ("resets", self.resets),
        ]
    }
}

/// One run under watch.
pub(crate) struct WatchedRun {
    built: ScenarioWorld,
    oracles: Oracles,
    end: Instant,
    oracle: FlowOracle,
    segment_oracle: SegmentOracle,
    /// Hosts with one interface, its link and end, where nothing may wait below a socket while the
    /// wire is idle.
    prompt: Vec<(HostId, usize, usize)>,
    /// The ends of links at which hosts and actors send. Actors come first, since hosts answer
    /// them.
    listened: Vec<(usize, usize, Sender)>,
    peaks: Vec<Peaks>,
    steps: u64,
    /// When a host last had a turn.
    last: Instant,
}

impl WatchedRun {
    pub(crate) fn new(built: ScenarioWorld, oracles: Oracles, end: Instant) -> Self {
        let blind = built.hostiles.iter().filter(|one| one.attack == Attack::Blind);
        let blind: Vec<_> = blind.map(|one| one.actor).collect();
        let mut listened = Vec::new();
        for link in 0..built.world.links().len() {
            for end in 0..ENDS {
                let sender = match built.world.packet_source(LinkId(link), end) {
                    Some(PacketSource::Actor(actor)) if !blind.contains(&actor) => Sender::Actor,
                    Some(PacketSource::Host(host)) => sender(&built.world, host, link),
                    _ => continue,
                };
                listened.push((link, end, sender));
            }
        }
        listened.sort_by_key(|(_, _, sender)| *sender != Sender::Actor);
        for &(link, end, _) in &listened {
            drop(built.world.links()[link].capture(end));
        }
        let peaks = vec![Peaks::default(); built.hosts.len()];
        let prompt = built.hosts.iter().filter_map(|(_, host)| prompt_wire(&built.world, *host));
        let prompt = prompt.collect();
        let (oracle, segment_oracle) =
            (FlowOracle::default(), SegmentOracle::new(blind.is_empty()));
        let last = built.start;
        Self {
            built,
            oracles,
            end,
            oracle,
            segment_oracle,
            prompt,
            listened,
            peaks,
            steps: 0,
            last,
        }
    }

    /// Runs it until everything is over; not if that takes more than so many turns of hosts.
    pub(crate) fn run(
        mut self,
        most: u64,
        apply: impl Fn(&World, &Change),
    ) -> Result<Outcome, String> {
        let start = self.built.start;
        let mut events = core::mem::take(&mut self.built.events).into_iter().peekable();
        let limit = self.end + DRAIN;
        loop {
            let next = events.peek().map_or(limit, |change| change.at);
            let step = self.built.world.step(next).map_err(|fault| format!("spins: {fault}"))?;
            if let Some(host) = step {
                self.steps += 1;
                if self.steps > most {
                    return Err(format!("long: not over after {most} turns, {:?}", self.last));
                }
                self.look(host)?;
                if self.steps.is_multiple_of(PATIENCE) && events.peek().is_none() && self.is_over()
                {
                    break;
                }
                continue;
            }
            match events.next() {
                Some(change) => apply(&self.built.world, &change),
                None => break,
            }
        }
        self.finish()?;
        let links = self.built.world.links();
        let digests =
            links.iter().flat_map(|link| [0, 1].map(|end| link.stats(end, self.last).digest));
        let hash = digests.fold(self.steps, |hash, digest| mix(hash ^ digest));
        let simulated = self.last.since(start);
        let names = self.built.hosts.iter().map(|(name, _)| name.clone());
        let peaks = names.zip(self.peaks).collect();
        let events = EventCounts::of(&self.built);
        Ok(Outcome {
            simulated,
            steps: self.steps,
            segments: self.segment_oracle.segments,
            hash,
            peaks,
            events,
        })
    }

    /// After the turn of a host.
    fn look(&mut self, host: HostId) -> Result<(), String> {
        let world = &self.built.world;
        self.last = world.now();
        let links = world.links();
        let is_idle = self
            .prompt
            .iter()
            .any(|&(of, link, end)| of == host && !links[link].is_sending(end, self.last));
        self.oracle.check(world, host, is_idle).map_err(|fault| format!("flow: {fault}"))?;
        for &(link, end, sender) in &self.listened {
            for packet in links[link].capture(end) {
                self.segment_oracle.look(&packet, sender, &|| has_dropped(world, host))?;
            }
        }
        if let Some(peaks) = self.peaks.get_mut(host.0) {
            peaks.look(world, host);
        }
        Ok(())
    }

    /// Whether nothing is left to happen: all applications have left, and no host remembers a
    /// connection.
    fn is_over(&self) -> bool {
        let ScenarioWorld { world, hosts, groups, sessions, .. } = &self.built;
        let over = sessions.iter().all(|one| oracle::is_over(&one.client));
        over && world.now() >= self.end
            && groups.iter().all(|(_, _, log)| log.borrow().clients.iter().all(EndLog::has_begun))
            && hosts.iter().all(|(_, host)| oracle::check_empty(world, *host).is_ok())
            && world.links().iter().all(|link| link.contents() == 0)
    }

    /// What must hold in the end.
    fn finish(&self) -> Result<(), String> {
        let ScenarioWorld { world, hosts, links, .. } = &self.built;
        self.check_streams()?;
        for (_, host) in hosts {
            oracle::check_empty(world, *host).map_err(|fault| format!("left: {fault}"))?;
        }
        for ((name, _), link) in links.iter().zip(world.links()) {
            if link.contents() != 0 {
                return Err(format!("left: {} packets on link {name}", link.contents()));
            }
            for end in 0..ENDS {
                conserved(&link.stats(end, world.now()))
                    .map_err(|fault| format!("lost: {name} {end}: {fault}"))?;
            }
        }
        Ok(())
    }

    fn check_streams(&self) -> Result<(), String> {
        let world = &self.built.world;
        let must_arrive = self.oracles == Oracles::Delivery;
        for session in &self.built.sessions {
            let (client, server) = (&*session.client.borrow(), &*session.server.borrow());
            let fault = |fault: String| format!("stream: session {}: {fault}", session.name);
            if must_arrive && !session.is_cut {
                let [there, back] = session.bytes;
                oracle::check_delivery([(client, there), (server, back)]).map_err(fault)?;
            } else {
                oracle::check_prefix(client, server).map_err(fault)?;
                oracle::check_prefix(server, client).map_err(fault)?;
                let is_over = client.is_over && (server.is_over || server.handle.is_none());
                if !is_over {
                    return Err(fault(format!("never ends: {client:?} {server:?}")));
                }
            }
        }
        for (name, kind, log) in &self.built.groups {
            // Datagrams may get lost.
            let must_arrive = must_arrive && *kind != AppKind::Udp;
            oracle::check_group(&log.borrow(), must_arrive)
                .map_err(|fault| format!("stream: app {name}: {fault}"))?;
        }
        for hostile in &self.built.hostiles {
            // Segments that are late may be taken for the end of a new handshake.
            if world.stack(hostile.target).config().tcp_syncookies == 2 {
                continue;
            }
            let wrong = hostile.log.as_ref().and_then(|log| log.borrow().wrong_at);
            if let Some(at) = wrong {
                return Err(format!("stream: victim of {}: byte {at} is wrong", hostile.name));
            }
        }
        Ok(())
    }
}

/// The wire of a host that has one, if a frame may wait below a socket only while that is busy: no
/// queue holds frames until their time, and completions are told at once.
fn prompt_wire(world: &World, host: HostId) -> Option<(HostId, usize, usize)> {
    let mut interfaces = world.interfaces(host);
    let (interface, LinkId(link), end) = interfaces.next()?;
    let holds = |report: &Report| {
        use QdiscConfig::{Fq, Mq, Shaped, Tbf};
        matches!(report.config, Fq(_) | Tbf(_) | Shaped(..) | Mq(_))
    };
    let is_prompt = interfaces.next().is_none()
        && world.links()[link].completes_at_once(end)
        && !world.stack(host).qdiscs(world.now(), interface).iter().any(holds);
    is_prompt.then_some((host, link, end))
}

/// Whether a queue of the host has dropped anything.
fn has_dropped(world: &World, host: HostId) -> bool {
    let interfaces = world.stack(host).interfaces(world.now());
    interfaces.iter().flat_map(|one| &one.ports).any(|port| port.qdisc.drops > 0)
}

/// What is known of a host at a link.
fn sender(world: &World, host: HostId, link: usize) -> Sender {
    let (stack, now) = (world.stack(host), world.now());
    let interface = world.interfaces(host).enumerate().find(|(_, (_, LinkId(id), _))| *id == link);
    let Some((index, (id, ..))) = interface else { return Sender::Actor };
    let mtu = stack.interfaces(now).get(index).map_or(u16::MAX, |info| info.capabilities.mtu);
    let is_fair =
        |report: &Report| matches!(report.config, QdiscConfig::Fq(_) | QdiscConfig::FqCodel(_));
    let bakes = stack.config().tcp_syncookies == 2;
    Sender::Host { mtu, is_strict: !bakes && !stack.qdiscs(now, id).iter().any(is_fair) }
}

/// Whatever went in has come out, or is counted by what became of it.
fn conserved(stats: &LinkStats) -> Result<(), String> {
    let went = stats.packets + stats.duplicated + stats.answered;
    let dropped = stats.lost
        + stats.dropped
        + stats.early_drops
        + stats.policed
        + stats.too_big
        + stats.ring_drops;
    let came = stats.delivered + dropped;
    if went == came { Ok(()) } else { Err(format!("{went} went in, {came} came out: {stats:?}")) }
}
