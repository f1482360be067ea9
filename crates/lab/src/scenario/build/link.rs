//! Links of a scenario: from what is said to what the link is made of.

use crate::link::{
    Bottleneck, CoDel, Coalescing, Discipline, GilbertElliott, NicConfig, PathConfig, Policer, Red,
    ScriptedLoss, Trace, Wifi,
};
use crate::rng::Ppm;
use crate::scenario::model::{DirectionSpec, HostSpec, LinkSpec};
use crate::scenario::source::{Files, ScenarioError, SourceFile};
use crate::scenario::units::{Buffer, Room, Share, Size, Speed, Time};
use neap_tcp::time::Nanos;
use toml::Spanned;

/// The queue of a port or hop of which nothing is said.
const DEFAULT_BUFFER: Buffer = Buffer { packets: 1000, bytes: u64::MAX };

/// What is said of the management of a queue that is not there.
pub(super) const UNMANAGED: &str =
    "a host's card has no queue that fills: use a bottleneck, or the qdisc of the host";

/// The mean of RED moves by 1/512 of the difference, as is usual.
const RED_WEIGHT_LOG: u32 = 9;

/// The least that a link carries in one packet of IPv6 (RFC 8200 section 5).
pub(super) const IPV6_MTU: u16 = 1280;

/// Reads one direction.
pub(super) struct LinkReader<'a> {
    pub(super) source: &'a SourceFile,
    pub(super) link: &'a Spanned<LinkSpec>,
    pub(super) from: usize,
    pub(super) is_router: bool,
    pub(super) ipv6: bool,
    pub(super) files: &'a Files<'a>,
}

impl LinkReader<'_> {
    fn error(&self, key: &str, what: &str) -> ScenarioError {
        self.source.error_in(self.link.span(), key, what)
    }

    /// The path, and the largest packet that the other end says it takes.
    pub(super) fn path(&self) -> Result<PathConfig, ScenarioError> {
        let direction = self.link.get_ref().direction(self.from);
        let Some(Speed(rate)) = direction.rate else {
            return Err(self.error("rate", "a link needs a rate"));
        };
        let delay = time(direction.delay);
        let mut path = PathConfig::clean(rate, delay);
        self.queue(&direction, &mut path)?;
        self.impairments(&direction, &mut path)?;
        if direction.mtu.is_some_and(|mtu| mtu < 68) {
            return Err(self.error("mtu", "no link carries less than 68 bytes"));
        }
        if self.ipv6 && direction.mtu.is_some_and(|mtu| mtu < IPV6_MTU) {
            return Err(self.error("mtu", "a link of IPv6 carries at least 1280 bytes"));
        }
        path.mtu = direction.mtu;
        Ok(path)
    }

    fn queue(&self, direction: &DirectionSpec, path: &mut PathConfig) -> Result<(), ScenarioError> {
        let limits = |Buffer { packets, bytes }, rate| Bottleneck { rate, packets, bytes };
        let room = direction.buffer.map(|Room(buffer)| buffer);
        let is_special = direction.codel.is_some()
            || direction.red.is_some()
            || direction.mark_above.is_some()
            || direction.wifi.is_some()
            || direction.trace.is_some();
        if let Some(hop) = direction.bottleneck {
            if self.is_router {
                let what = "a router's port is the bottleneck itself: use rate and buffer";
                return Err(self.error("bottleneck", what));
            }
            if direction.trace.is_some() {
                let what =
                    "excludes trace, which says the rate of the hop: use buffer for its room";
                return Err(self.error("bottleneck", what));
            }
            let buffer = hop.buffer.map_or(DEFAULT_BUFFER, |Room(buffer)| buffer);
            path.bottleneck = Some(limits(buffer, hop.rate.0));
        } else if self.is_router || is_special {
            path.bottleneck = Some(limits(room.unwrap_or(DEFAULT_BUFFER), path.rate));
        }
        self.check_card(direction)?;
        path.discipline = self.discipline(direction)?;
        if direction.wifi.is_some() && direction.trace.is_some() {
            return Err(self.error("wifi", "excludes trace: both say when packets leave"));
        }
        path.wifi = direction.wifi.map(|wifi| Wifi {
            overhead: wifi.overhead.0,
            frames: wifi.frames,
            airtime: wifi.airtime.0,
        });
        if path.wifi.is_some_and(|wifi| wifi.frames == 0) {
            return Err(self.error("wifi", "an aggregate has at least one frame"));
        }
        path.policer = direction.policer.map(|p| Policer { rate: p.rate.0, burst: p.burst.0 });
        if path.policer.is_some_and(|policer| policer.burst < 1538) {
            return Err(self.error("policer", "a burst below 1538 bytes passes no full packet"));
        }
        if let Some(name) = &direction.trace {
            let text = (self.files)(name.get_ref()).map_err(|e| self.source.error(name, e))?;
            let trace = Trace::parse(&text)
                .map_err(|e| self.source.error(name, format_args!("{}: {e}", name.get_ref())))?;
            path.trace = Some(trace);
        }
        Ok(())
    }

    /// Refuses what a host's card would not heed. What is said of both directions may be about the
    /// other one.
    fn check_card(&self, direction: &DirectionSpec) -> Result<(), ScenarioError> {
        let own = self.own_direction();
        if self.is_router {
            return Ok(());
        }
        if own.buffer.is_some() && direction.bottleneck.is_some() {
            return Err(self.error("buffer", "excludes bottleneck, which has a buffer of its own"));
        }
        if own.buffer.is_some() && !direction.has_hop() {
            let what = "a host's card has a ring, not a buffer: use a bottleneck, or nic.ring";
            return Err(self.error("buffer", what));
        }
        match own.managed() {
            Some(key) if !direction.has_hop() => Err(self.error(key, UNMANAGED)),
            _ => Ok(()),
        }
    }

    fn own_direction(&self) -> &DirectionSpec {
        let link = self.link.get_ref();
        if self.from == 0 { &link.there } else { &link.back }
    }

    fn discipline(&self, direction: &DirectionSpec) -> Result<Discipline, ScenarioError> {
        let codel = direction.codel.map(|codel| {
            let default = CoDel::default();
            Discipline::CoDel(CoDel {
                target: codel.target.map_or(default.target, |Time(target)| target),
                interval: codel.interval.map_or(default.interval, |Time(interval)| interval),
                ecn: codel.ecn.unwrap_or(default.ecn),
            })
        });
        let red = direction.red.map(|red| {
            Discipline::Red(Red {
                min: red.min.0,
                max: red.max.0,
                probability: red.probability.0,
                weight_log: RED_WEIGHT_LOG,
                ecn: red.ecn,
            })
        });
        if direction.red.is_some_and(|red| red.min.0 >= red.max.0) {
            return Err(self.error("red", "min must be below max"));
        }
        let mark = direction.mark_above.map(|Size(bytes)| Discipline::MarkAbove(bytes));
        let mut said = [("codel", codel), ("red", red), ("mark_above", mark)]
            .into_iter()
            .filter_map(|(name, discipline)| discipline.map(|discipline| (name, discipline)));
        let Some((first, discipline)) = said.next() else { return Ok(Discipline::DropTail) };
        match said.next() {
            Some((second, _)) => {
                Err(self.error(second, &format!("excludes {first}: a queue is managed once")))
            }
            None if direction.wifi.is_some() && direction.codel.is_none() => {
                let what = "excludes wifi, where nobody knows how long a packet will wait";
                Err(self.error(first, what))
            }
            None => Ok(discipline),
        }
    }

    fn impairments(
        &self,
        direction: &DirectionSpec,
        path: &mut PathConfig,
    ) -> Result<(), ScenarioError> {
        let share = |share: Option<Share>| share.map_or(Ppm::NEVER, |share| share.0);
        path.loss = share(direction.loss);
        path.corruption = share(direction.corrupt);
        path.duplication = share(direction.duplicate);
        path.reordering = share(direction.reorder);
        path.congestion_marks = share(direction.mark);
        path.reorder_delay = time(direction.reorder_delay);
        path.jitter = time(direction.jitter);
        if path.reordering > Ppm::NEVER && path.reorder_delay == Nanos::ZERO {
            return Err(self.error("reorder", "needs reorder_delay: how late they are"));
        }
        path.bursts = direction.bursts.map(|bursts| GilbertElliott {
            to_bad: bursts.to_bad.0,
            to_good: bursts.to_good.0,
            loss_in_bad: bursts.loss_in_bad.0,
            loss_in_good: share(bursts.loss_in_good),
        });
        let packets = direction.drop.clone().unwrap_or_default();
        if !packets.is_sorted_by(|a, b| a < b) {
            return Err(self.error("drop", "the packets must be in ascending order"));
        }
        let outages = direction.outages.iter().flatten().map(|&(Time(from), Time(to))| (from, to));
        let outages: Vec<(Nanos, Nanos)> = outages.collect();
        let in_order = outages.iter().all(|(from, to)| from < to)
            && outages.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        if !in_order {
            return Err(self.error("outages", "each must end after it begins, before the next"));
        }
        path.scripted = ScriptedLoss { packets, outages };
        Ok(())
    }
}

fn time(time: Option<Time>) -> Nanos {
    time.map_or(Nanos::ZERO, |Time(time)| time)
}

/// Moderation of the interrupts of a card; `key` is that of the frames. No frames are no limit
/// (`ethtool -C`).
fn coalescing(
    usecs: Option<u32>,
    frames: Option<u32>,
    key: &'static str,
) -> Result<Coalescing, (&'static str, &'static str)> {
    match (usecs.unwrap_or(0), frames) {
        (0, None | Some(1)) => Ok(Coalescing::NONE),
        (0, Some(_)) => Err((key, "needs a time: the last frames would never interrupt")),
        (usecs, frames) => Ok(Coalescing {
            delay: Nanos::from_micros(usecs.into()),
            frames: frames.filter(|&frames| frames > 0).unwrap_or(u32::MAX),
        }),
    }
}

/// The card of a host.
pub(super) fn nic(
    host: &HostSpec,
    least_mtu: u16,
) -> Result<NicConfig, (&'static str, &'static str)> {
    let (said, default) = (&host.nic, NicConfig::default());
    let mtu = said.mtu.unwrap_or(default.mtu);
    if mtu < least_mtu {
        return Err(("mtu", "a card takes at least 576 bytes, and 1280 with ipv6"));
    }
    let checksums = said.checksums.unwrap_or(true);
    let gro = said.gro.unwrap_or(checksums);
    if gro && !checksums {
        return Err(("gro", "needs checksums: a card joins what it has verified"));
    }
    let has_super_frames = said.gso.unwrap_or(true);
    if !has_super_frames && said.tso == Some(true) {
        return Err(("tso", "needs gso: a card cuts super-frames"));
    }
    let tso = said.tso.unwrap_or(has_super_frames);
    if !tso && said.gso_max_size.is_some() {
        return Err(("gso_max_size", "means nothing without tso"));
    }
    let gso_max_size = said.gso_max_size.map_or(u64::from(default.gso_max_size), |Size(size)| size);
    if !(2048..=65_536).contains(&gso_max_size) {
        return Err(("gso_max_size", "must be from 2048 to 65536"));
    }
    if !has_super_frames && said.gso_max_segs.is_some() {
        return Err(("gso_max_segs", "means nothing without gso"));
    }
    let gso_max_segs = said.gso_max_segs.unwrap_or(default.gso_max_segs);
    if gso_max_segs == 0 {
        return Err(("gso_max_segs", "must be at least 1"));
    }
    if said.ring == Some(0) || said.rx_ring == Some(0) {
        let key = if said.ring == Some(0) { "ring" } else { "rx_ring" };
        return Err((key, "a ring has at least one descriptor"));
    }
    Ok(NicConfig {
        mtu,
        descriptors: said.ring.unwrap_or(default.descriptors),
        gso_max_size: if tso { gso_max_size as u32 } else { mtu.into() },
        gso_max_segs: if has_super_frames { gso_max_segs } else { 0 },
        checksums,
        gro,
        rx_descriptors: said.rx_ring.unwrap_or(default.rx_descriptors),
        pacing_shift: said.pacing_shift.unwrap_or(default.pacing_shift),
        completion_delay: time(said.completion_delay),
        completes_early: said.completes_early,
        tx_coalescing: coalescing(said.tx_usecs, said.tx_frames, "tx_frames")?,
        rx_coalescing: coalescing(said.rx_usecs, said.rx_frames, "rx_frames")?,
    })
}
