//! Bounds that the links of a scenario set for the figures of its runs: what they carry in a time,
//! and how long it takes. A figure beyond them was measured wrongly, so such a run has none.
//!
//! Cost: a few look-ups for each figure at the end of a run.

use super::figures::Figures;
use super::model::{AppKind, AppSpec, EventSpec, HostSpec, LatenessSpec, LinkSpec, Name, Scenario};
use super::units::{Size, Speed, Time};
use crate::link::{ENDS, NicConfig};
use crate::report::{AppFlows, Quantity, Recording, Side, Slowest};
use crate::world::{LinkId, World, WorldConfig};
use neap_tcp::time::{Instant, Nanos, Rate};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The two directions of a link, as figures name them.
const WAYS: [&str; ENDS] = ["there", "back"];

/// Bytes that Ethernet adds to a packet on the wire.
const ETHERNET: u64 = 38;

/// Bytes of the headers in front of a datagram, of IPv6 and UDP.
const UDP_HEADERS: u64 = 48;

/// Part of a time by which a histogram may say less.
const ROUNDING: f64 = 0.999;

/// One direction of a link.
#[derive(Clone, Debug)]
struct Way {
    link: LinkId,
    end: usize,
    /// Highest rate of the card or of the router's port at any time; none with a trace.
    wire: Option<Rate>,
    /// Highest rate of card, hop and policer together, and what they pass at once beside it.
    carries: Rate,
    burst: u64,
    /// Rate of the three from each of these times of the world on; ascending, the first is zero.
    rates: Vec<(Nanos, Rate)>,
    /// A recorded rate, which the link knows.
    has_trace: bool,
    /// Shortest propagation delay at any time.
    delay: Nanos,
    /// How much later than others a packet may arrive.
    spread: Nanos,
    /// Bytes of the longest packet on the wire that arrives.
    packet: u64,
}

impl Way {
    /// Most bytes of the packets that it delivers between two times. A packet that was partly sent
    /// before the first time counts as a whole.
    fn capacity(&self, world: &World, from: Instant, to: Instant) -> u64 {
        let carried = self.carries.bytes_in(to.since(from)).saturating_add(self.burst);
        let traced = world.link(self.link).trace_bytes(self.end, from, to).unwrap_or(u64::MAX);
        carried.min(traced).saturating_add(self.packet)
    }

    /// Bytes that it can carry between two times of a world that began at `start`, at the rates
    /// that it has in them, and those that it has carried since its figures began. Both are counted
    /// as what limits it does: on the wire, or as parts of the opportunities of a trace.
    fn room_and_use(&self, world: &World, start: Instant, [from, to]: [Instant; 2]) -> [u64; 2] {
        let ends = self.rates.iter().skip(1).map(|(at, _)| (start + *at).min(to)).chain([to]);
        let parts = self.rates.iter().zip(ends).map(|((at, rate), end)| {
            let begin = (start + *at).max(from);
            rate.bytes_in(end.since(begin))
        });
        let at_rates = parts.fold(self.burst, u64::saturating_add);
        let link = world.link(self.link);
        let traced = link.trace_bytes(self.end, from, to).zip(link.trace_used(self.end, to));
        match traced {
            Some((room, used)) if room <= at_rates => [room, used],
            _ => [at_rates, link.stats(self.end, to).carried_bytes],
        }
    }
}

/// The way of an application's data, and back.
#[derive(Clone, Debug)]
struct Trip {
    kind: AppKind,
    /// Names of the directions that its data pass, and of those that answers pass.
    passes: [Vec<String>; ENDS],
    /// Propagation delay of the data, and of the answers.
    delays: [Nanos; ENDS],
    /// How late data and answers may be handed over behind their arrival.
    spreads: [Nanos; ENDS],
    /// Bytes that may wait at the receiver for the last fragments of their datagrams.
    fragments: u64,
}

/// Bounds of one scenario.
pub(super) struct Bounds {
    /// Directions by `LINK.there` and `LINK.back`.
    ways: BTreeMap<String, Way>,
    /// By application. None in a scenario where two ways lead to one host.
    trips: BTreeMap<String, Trip>,
    /// From the start of the world to what is measured.
    warm_up: Nanos,
}

impl Bounds {
    pub(super) fn new(scenario: &Scenario, links: &[(String, LinkId)]) -> Self {
        let mut ways = BTreeMap::new();
        for (name, link) in links {
            let Some(spec) = scenario.link.get(name).map(toml::Spanned::get_ref) else { continue };
            for (end, way) in WAYS.iter().enumerate() {
                let bounds = way_of(scenario, name, spec, (*link, end));
                ways.insert(format!("{name}.{way}"), bounds);
            }
        }
        let warm_up = scenario.warm_up.map_or(Nanos::ZERO, |Time(time)| time);
        let mut bounds = Self { ways, trips: BTreeMap::new(), warm_up };
        let nodes: BTreeSet<&String> =
            scenario.link.values().flat_map(|link| link.get_ref().ends.iter()).map(inner).collect();
        if scenario.link.len() + 1 == nodes.len() {
            for (name, app) in &scenario.app {
                let trip = bounds.trip(scenario, app.get_ref());
                bounds.trips.extend(trip.map(|trip| (name.clone(), trip)));
            }
        }
        bounds
    }

    fn trip(&self, scenario: &Scenario, app: &AppSpec) -> Option<Trip> {
        let [from, to] = [app.from.get_ref(), app.to.get_ref()];
        let passes = [passes(scenario, from, to)?, passes(scenario, to, from)?];
        let delays = passes.each_ref().map(|names| {
            let ways = names.iter().filter_map(|name| self.ways.get(name));
            ways.fold(Nanos::ZERO, |sum, way| sum + way.delay)
        });
        let [from, to] = [scenario.host.get(from)?, scenario.host.get(to)?];
        let spreads = [to, from].map(spread_of);
        let fragments = self.fragments(app, &passes[0], mtu_of(from));
        Some(Trip { kind: app.kind, passes, delays, spreads, fragments })
    }

    /// One datagram of each client of an application, if datagrams are cut on this way or by their
    /// sender, whose `card` takes packets of so many bytes.
    fn fragments(&self, app: &AppSpec, there: &[String], card: u16) -> u64 {
        let ways = there.iter().filter_map(|name| Some(self.ways.get(name)?.packet));
        let shortest = ways.fold(u64::from(card) + ETHERNET, u64::min);
        let datagram =
            app.message.filter(|_| app.kind == AppKind::Udp).map_or(0, |Size(size)| size);
        let is_cut = datagram + UDP_HEADERS + ETHERNET > shortest;
        if is_cut { datagram.saturating_mul(app.count.into()) } else { 0 }
    }

    /// Checks the figures of the time from `from` to `to`.
    ///
    /// # Errors
    /// The first figure that cannot be, with its bound.
    pub(super) fn check(
        &self,
        world: &World,
        figures: &Figures,
        [from, to]: [Instant; 2],
    ) -> Result<(), String> {
        let seconds = to.since(from).as_secs_f64();
        let get = |name: String| figures.get(&name).map(|&value| (name, value));
        for (name, way) in &self.ways {
            if let Some((name, busy)) = get(format!("link.{name}.busy")) {
                most(&name, busy, 1.0 + 1e-9)?;
            }
            let wire = get(format!("link.{name}.wire_mbit")).zip(way.wire);
            if let Some(((name, wire), Rate(rate))) = wire {
                most(&name, wire, (rate as f64 + 2.0 / seconds) * 8e-6)?;
            }
            let carried = self.trips.iter().filter(|(_, trip)| trip.passes[0].contains(name));
            let (mut sum, mut fragments, mut apps) = (0.0, 0, Vec::new());
            let (mut first, mut last) = (to, from);
            for (app, trip) in carried {
                sum += get(format!("app.{app}.goodput_mbit")).map_or(0.0, |(_, value)| value);
                let [earliest, latest] = self.passed(trip, Side::Client, name, [from, to]);
                (first, last) = (first.min(earliest), last.max(latest));
                fragments = trip.fragments.saturating_add(fragments);
                apps.push(app.as_str());
            }
            if apps.is_empty() {
                continue;
            }
            let bytes = way.capacity(world, first, last).saturating_add(fragments);
            let bound = bytes as f64 * 8e-6 / seconds;
            most(&format!("goodput of {} through {name}", apps.join(" and ")), sum, bound)?;
        }
        for (app, trip) in &self.trips {
            let [there, back] = trip.delays;
            let answered = trip.kind == AppKind::RequestResponse;
            let message = if answered { there + back } else { there };
            let times = [
                ("srtt_p50_ms", there + back),
                ("latency_p50_ms", message),
                ("transfer_ms", there + back + there),
                ("completion_p50_ms", there + back),
            ];
            for (figure, bound) in times {
                if let Some((name, value)) = get(format!("app.{app}.{figure}")) {
                    least(&name, value, bound.0 as f64 / 1e6 * ROUNDING)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the goodput between every two samples, and the round-trip time of each.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(super) fn check_recording(
        &self,
        world: &World,
        recording: &Recording,
        begun: Instant,
    ) -> Result<(), String> {
        for track in recording.of(Quantity::Goodput) {
            let Some(trip) = self.trips.get(&track.subject) else { continue };
            let side = recording.side_of(&track.subject);
            let mut last = 0.0;
            for (&ms, &mbit) in recording.ms.iter().zip(&track.values) {
                let at = |ms: f64| begun + Nanos((ms * 1e6) as u64);
                let (interval, seconds) = ([at(last), at(ms)], (ms - last) / 1e3);
                last = ms;
                let bytes = trip.passes[side as usize].iter().filter_map(|name| {
                    let [from, to] = self.passed(trip, side, name, interval);
                    Some(self.ways.get(name)?.capacity(world, from, to))
                });
                let bytes = bytes.min().unwrap_or(u64::MAX).saturating_add(trip.fragments);
                let bound = bytes as f64 * 8e-6 / seconds;
                most(&format!("goodput of {} until {ms} ms", track.subject), mbit, bound)?;
            }
        }
        for track in recording.of(Quantity::Srtt) {
            let Some(trip) = self.trips.get(&track.subject) else { continue };
            let [there, back] = trip.delays;
            let bound = (there + back).0 as f64 / 1e6 * ROUNDING;
            // Zero is said before the first round trip is over.
            let times = recording.ms.iter().zip(&track.values).filter(|&(_, &srtt)| srtt > 0.0);
            for (ms, &srtt) in times {
                least(&format!("srtt of {} at {ms} ms", track.subject), srtt, bound)?;
            }
        }
        Ok(())
    }

    /// Adds to the records of flows what their links carry, and the goodput of all connections.
    pub(super) fn complete(
        &self,
        world: &World,
        figures: &Figures,
        apps: &mut [AppFlows],
        [from, to]: [Instant; 2],
    ) {
        let (start, seconds) = (from - self.warm_up, to.since(from).as_secs_f64());
        for app in apps {
            // The figure is of what arrives at servers.
            let goodput = figures.get(&format!("app.{}.goodput_mbit", app.app));
            if let (Side::Client, Some(goodput)) = (app.side, goodput) {
                app.goodput_mbit = *goodput;
            }
            let Some(trip) = self.trips.get(&app.app) else { continue };
            let link = |name: &String| {
                let way = self.ways.get(name)?;
                let is_limited = way.carries != Rate::UNLIMITED || way.has_trace;
                let [most, carried] =
                    is_limited.then(|| way.room_and_use(world, start, [from, to]))?;
                let (link, direction) = name.rsplit_once('.')?;
                Some(Slowest {
                    link: format!("{link} {direction}"),
                    mbit: most as f64 * 8e-6 / seconds,
                    carried_mbit: carried as f64 * 8e-6 / seconds,
                })
            };
            let links = trip.passes[app.side as usize].iter().filter_map(link);
            app.slowest = links.min_by(|a, b| a.mbit.total_cmp(&b.mbit));
        }
    }

    /// When the data of one side that are handed over in an interval have left the direction of
    /// this name, at the earliest and at the latest.
    fn passed(
        &self,
        trip: &Trip,
        side: Side,
        name: &str,
        [from, to]: [Instant; 2],
    ) -> [Instant; 2] {
        let behind = trip.passes[side as usize].iter().skip_while(|other| *other != name);
        let behind = behind.filter_map(|name| self.ways.get(name));
        let (mut delay, mut spread) = (Nanos::ZERO, trip.spreads[side as usize]);
        for way in behind {
            (delay, spread) = (delay + way.delay, spread + way.spread);
        }
        [from - (delay + spread), to - delay]
    }
}

fn inner(name: &Name) -> &String {
    name.get_ref()
}

fn most(name: &str, value: f64, bound: f64) -> Result<(), String> {
    if value <= bound { Ok(()) } else { Err(format!("{name} is {value}, at most {bound} can be")) }
}

fn least(name: &str, value: f64, bound: f64) -> Result<(), String> {
    if value >= bound {
        Ok(())
    } else {
        Err(format!("{name} is {value}, at least {bound} must be"))
    }
}

/// How late a host may hand over what has arrived.
fn spread_of(host: &HostSpec) -> Nanos {
    let time = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
    let late = match &host.lateness {
        None => WorldConfig::default().wake_jitter,
        Some(LatenessSpec::UpTo(Time(most))) => *most,
        Some(LatenessSpec::Quantiles(all)) => {
            all.iter().map(|(_, Time(late))| *late).max().unwrap_or(Nanos::ZERO)
        }
    };
    let moderated = Nanos::from_micros(host.nic.rx_usecs.unwrap_or(0).into());
    late + moderated + time(host.per_wakeup) + time(host.per_poll) + time(host.per_switch)
}

/// Bytes of the longest packet that the card of a host sends.
fn mtu_of(host: &HostSpec) -> u16 {
    host.nic.mtu.unwrap_or(NicConfig::default().mtu)
}

/// The bounds of one direction, changes while the world runs included.
fn way_of(scenario: &Scenario, name: &str, spec: &LinkSpec, (link, end): (LinkId, usize)) -> Way {
    let direction = spec.direction(end);
    let begins = spec.ends[end].get_ref();
    let is_of = |event: &&EventSpec| {
        let is_here = event.link.as_ref().is_some_and(|link| link.get_ref() == name);
        is_here && event.from.as_ref().is_none_or(|from| from.get_ref() == begins)
    };
    let events: Vec<&EventSpec> =
        scenario.event.iter().map(toml::Spanned::get_ref).filter(is_of).collect();
    let raised = |rate: Rate| {
        let rates = events.iter().filter_map(|event| event.rate).map(|Speed(rate)| rate);
        rates.fold(rate, Rate::max)
    };
    let is_host = scenario.host.contains_key(begins);
    let rate = direction.rate.map_or(Rate::UNLIMITED, |Speed(rate)| rate);
    let is_managed = direction.codel.is_some() || direction.red.is_some();
    let is_special = is_managed || direction.wifi.is_some() || direction.trace.is_some();
    let has_hop = direction.bottleneck.is_some() || is_special || direction.mark_above.is_some();
    // A change is one of the hop if there is one.
    let card = if has_hop { rate } else { raised(rate) };
    let first = direction.bottleneck.map_or(rate, |hop| hop.rate.0);
    let has_trace = direction.trace.is_some();
    let hop = if has_trace { Rate::UNLIMITED } else { raised(first) };
    let wire = if is_host { card } else { hop };
    let policer = direction.policer.map_or(Rate::UNLIMITED, |policer| policer.rate.0);
    let carries = |hop: Rate| {
        let (card, hop) = match () {
            () if has_trace => (rate, Rate::UNLIMITED),
            () if has_hop => (rate, hop),
            () => (hop, hop),
        };
        if is_host { card.min(hop).min(policer) } else { hop.min(policer) }
    };
    let changes = events.iter().filter_map(|event| Some((event.at.0, event.rate?.0)));
    let mut rates: Vec<_> = changes.map(|(at, hop)| (at, carries(hop))).collect();
    rates.sort_by_key(|&(at, _)| at);
    rates.insert(0, (Nanos::ZERO, carries(first)));
    let time = |time: Option<Time>| time.map_or(Nanos::ZERO, |Time(time)| time);
    let delays = events.iter().filter_map(|event| event.delay).map(|Time(delay)| delay);
    let delays = delays.chain([time(direction.delay)]);
    let least = delays.clone().min().unwrap_or(Nanos::ZERO);
    // An aggregate arrives at once.
    let wifi = direction.wifi.map_or(Nanos::ZERO, |wifi| wifi.overhead.0 + wifi.airtime.0);
    // A shorter way lets packets arrive together with those before them.
    let shortened = delays.fold(least, Nanos::max).saturating_sub(least);
    let most = scenario.host.values().map(mtu_of).max().unwrap_or(u16::MAX);
    let packet = direction.mtu.map_or(most, |mtu| mtu.min(most));
    Way {
        link,
        end,
        wire: (wire != Rate::UNLIMITED).then_some(wire),
        carries: wire.min(hop).min(policer),
        rates,
        burst: direction.policer.map_or(0, |policer| policer.burst.0),
        has_trace,
        delay: least,
        spread: time(direction.jitter) + time(direction.reorder_delay) + wifi + shortened,
        packet: u64::from(packet) + ETHERNET,
    }
}

/// The directions that packets from one host to another pass, on the only way that there is.
fn passes(scenario: &Scenario, from: &str, to: &str) -> Option<Vec<String>> {
    let mut queue = VecDeque::from([(from, Vec::new())]);
    let mut seen = BTreeSet::from([from]);
    while let Some((node, passed)) = queue.pop_front() {
        if node == to {
            return Some(passed);
        }
        if node != from && !scenario.router.contains_key(node) {
            continue;
        }
        for (name, link) in &scenario.link {
            let ends = link.get_ref().ends.each_ref().map(|end| end.get_ref().as_str());
            let Some(end) = ends.iter().position(|&end| end == node) else { continue };
            if seen.insert(ends[1 - end]) {
                let mut passed: Vec<String> = passed.clone();
                passed.push(format!("{name}.{}", WAYS[end]));
                queue.push_back((ends[1 - end], passed));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
