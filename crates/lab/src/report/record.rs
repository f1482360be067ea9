//! Recordings of a run: series and distributions.

use super::flows::{AppFlows, Side, arrived, logs};
use crate::app::group::{GroupLog, SharedGroupLog};
use crate::histogram::Times;
use crate::link::ENDS;
use crate::world::{CpuStats, HostId, LinkId, PAGE, World};
use neap_tcp::time::{Instant, Nanos};

/// Steps of a distribution.
const QUANTILES: u32 = 200;

/// Quantity that a track shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Payload that an application has written and not sent, bytes.
    Unsent,
    /// Memory of an application's frames in qdiscs, bytes.
    Qdisc,
    /// Memory of an application's frames in devices, bytes.
    Device,
    /// Bytes of an application that are not acknowledged, less those below TCP.
    InFlight,
    /// The mean of an application's smoothed round-trip times, milliseconds.
    Srtt,
    /// The sum of an application's congestion windows, segments.
    Cwnd,
    /// Payload that arrived from an application's senders, each byte once, Mbit/s.
    Goodput,
    /// The longest time of a frame from TCP to the wire of a link, milliseconds.
    Below,
    /// Frames with data per second in one direction of a link, super-frames counted once.
    Frames,
    /// Bytes that have not yet left the NIC of a link.
    Ring,
    /// Bytes in the queue of a link's hop.
    Backlog,
    /// Wake-ups of a host's applications per second.
    Wakeups,
    /// Expirations of a host's timers per second.
    Timers,
    /// Memory of a host's sockets, bytes.
    Memory,
    /// Bytes in a host's qdiscs.
    QdiscBacklog,
}

impl Quantity {
    /// Returns the name of the quantity for the page's script.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unsent => "unsent",
            Self::Qdisc => "qdisc",
            Self::Device => "device",
            Self::InFlight => "in_flight",
            Self::Srtt => "srtt",
            Self::Cwnd => "cwnd",
            Self::Goodput => "goodput",
            Self::Below => "below",
            Self::Frames => "frames",
            Self::Ring => "ring",
            Self::Backlog => "backlog",
            Self::Wakeups => "wakeups",
            Self::Timers => "timers",
            Self::Memory => "memory",
            Self::QdiscBacklog => "qdisc_backlog",
        }
    }
}

/// Series of one quantity, with one value per sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// Application, host, or direction of a link that the track is about.
    pub subject: String,
    /// Quantity of the values.
    pub quantity: Quantity,
    /// Values at the times of the recording.
    pub values: Vec<f64>,
}

/// Distribution of times.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Application, host or link that the times belong to.
    pub subject: String,
    /// Points of milliseconds and share, both ascending.
    pub points: Vec<(f64, f64)>,
}

/// Recording of one run, from which plots are drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Times of the samples, in milliseconds from the end of the warm-up.
    pub ms: Vec<f64>,
    /// Tracks, with one value for each of these times. Those of an application are of the end that
    /// sent more bytes, as [`flows`](Self::flows) are.
    pub tracks: Vec<Track>,
    /// Distributions over the whole run: first those of applications.
    pub distributions: Vec<Distribution>,
    /// What held the flows of each application, in the order of the applications' names.
    pub flows: Vec<AppFlows>,
}

impl Recording {
    /// Returns all tracks of a quantity that have a value other than zero.
    pub fn of(&self, quantity: Quantity) -> impl Iterator<Item = &Track> {
        self.tracks.iter().filter(move |track| {
            track.quantity == quantity && track.values.iter().any(|&value| value != 0.0)
        })
    }

    /// The end of an application that its tracks are about.
    pub(crate) fn side_of(&self, app: &str) -> Side {
        let own = self.flows.iter().find(|flows| flows.app == app);
        own.map_or(Side::Client, |flows| flows.side)
    }
}

/// Quantities of an application, in the order of its tracks.
const OF_APPS: [Quantity; 7] = [
    Quantity::Unsent,
    Quantity::Qdisc,
    Quantity::Device,
    Quantity::InFlight,
    Quantity::Srtt,
    Quantity::Cwnd,
    Quantity::Goodput,
];

/// Samples of one end of an application and of what arrives from it. Which end sends more is known
/// when the recording ends.
#[derive(Default)]
struct SideSamples {
    /// Bytes that had arrived at the last sample.
    arrived: u64,
    /// Values by quantity, in the order of [`OF_APPS`].
    values: [Vec<f64>; OF_APPS.len()],
}

impl SideSamples {
    /// Looks at the connections of this end, after a sample of so many seconds.
    fn sample(&mut self, log: &GroupLog, side: usize, now: Instant, seconds: f64) {
        let (mut unsent, mut qdisc, mut device, mut in_flight) = (0, 0, 0, 0);
        let (mut srtt, mut cwnd) = (0, 0);
        let mut count: u32 = 0;
        for handle in logs(log, side).iter().filter_map(|end| end.handle.as_ref()) {
            let info = handle.info(now);
            unsent += u64::from(info.notsent_bytes);
            qdisc += info.below_bytes.saturating_sub(info.device_bytes);
            device += info.device_bytes;
            in_flight += u64::from(info.unacked_bytes).saturating_sub(info.below_bytes);
            srtt += info.rtt.0;
            cwnd += u64::from(info.snd_cwnd);
            count += u32::from(info.rtt > Nanos::ZERO);
        }
        let arrived = arrived(log, side, now);
        let before = core::mem::replace(&mut self.arrived, arrived);
        let values = [
            unsent as f64,
            qdisc as f64,
            device as f64,
            in_flight as f64,
            srtt as f64 / 1e6 / f64::from(count.max(1)),
            cwnd as f64,
            arrived.saturating_sub(before) as f64 * 8e-6 / seconds,
        ];
        self.values.iter_mut().zip(values).for_each(|(track, value)| track.push(value));
    }

    fn tracks(self, app: &str) -> impl Iterator<Item = Track> {
        let quantities = OF_APPS.into_iter().zip(self.values);
        quantities.map(|(quantity, values)| Track { subject: app.to_owned(), quantity, values })
    }
}

/// Takes a [`Recording`] while a world runs.
pub(crate) struct Recorder<'a> {
    hosts: &'a [(String, HostId)],
    links: &'a [(String, LinkId)],
    groups: &'a [(String, SharedGroupLog)],
    begun: Instant,
    last: Instant,
    /// Wake-ups and timer interrupts of each host at the last sample.
    wakeups: Vec<u64>,
    timers: Vec<u64>,
    /// Both ends of each application.
    apps: Vec<[SideSamples; ENDS]>,
    /// For both directions of each link: times from TCP to the wire.
    below: Vec<[Times; ENDS]>,
    recording: Recording,
    /// The next track of this sample.
    next: usize,
}

impl<'a> Recorder<'a> {
    pub(crate) fn begin(
        world: &World,
        hosts: &'a [(String, HostId)],
        links: &'a [(String, LinkId)],
        groups: &'a [(String, SharedGroupLog)],
    ) -> Self {
        for (_, link) in links {
            (0..ENDS).for_each(|end| drop(world.link(*link).trace(end)));
        }
        let begin = |log: &GroupLog| {
            [0, 1].map(|side| SideSamples {
                arrived: arrived(log, side, world.now()),
                ..SideSamples::default()
            })
        };
        Self {
            begun: world.now(),
            last: world.now(),
            wakeups: hosts.iter().map(|(_, id)| world.cpu_stats(*id).wakeups).collect(),
            timers: hosts.iter().map(|(_, id)| world.cpu_stats(*id).timer_interrupts).collect(),
            apps: groups.iter().map(|(_, log)| begin(&log.borrow())).collect(),
            below: links.iter().map(|_| <[Times; ENDS]>::default()).collect(),
            recording: Recording::default(),
            next: 0,
            hosts,
            links,
            groups,
        }
    }

    /// The value of the next track; every sample names them in the same order.
    fn note(&mut self, subject: impl FnOnce() -> String, quantity: Quantity, value: f64) {
        if self.next == self.recording.tracks.len() {
            let track = Track { subject: subject(), quantity, values: Vec::new() };
            self.recording.tracks.push(track);
        }
        self.recording.tracks[self.next].values.push(value);
        self.next += 1;
    }

    /// One look.
    pub(crate) fn sample(&mut self, world: &World) {
        let now = world.now();
        let seconds = now.since(self.last).as_secs_f64().max(1e-9);
        self.last = now;
        self.next = 0;
        self.recording.ms.push(now.since(self.begun).0 as f64 / 1e6);
        for ((_, log), sides) in self.groups.iter().zip(&mut self.apps) {
            for (side, samples) in sides.iter_mut().enumerate() {
                samples.sample(&log.borrow(), side, now, seconds);
            }
        }
        for index in 0..self.links.len() {
            self.sample_link(index, world, seconds);
        }
        for (index, (name, id)) in self.hosts.iter().enumerate() {
            let CpuStats { wakeups, timer_interrupts, .. } = world.cpu_stats(*id);
            let before = core::mem::replace(&mut self.wakeups[index], wakeups);
            self.note(|| name.clone(), Quantity::Wakeups, (wakeups - before) as f64 / seconds);
            let before = core::mem::replace(&mut self.timers[index], timer_interrupts);
            let timers = (timer_interrupts - before) as f64 / seconds;
            self.note(|| name.clone(), Quantity::Timers, timers);
            let memory = (world.socket_pages(*id) * PAGE) as f64;
            self.note(|| name.clone(), Quantity::Memory, memory);
            let interfaces = world.stack(*id).interfaces(now);
            let ports = interfaces.iter().flat_map(|interface| &interface.ports);
            let backlog: u64 = ports.map(|port| port.qdisc.backlog_bytes).sum();
            self.note(|| name.clone(), Quantity::QdiscBacklog, backlog as f64);
        }
    }

    fn sample_link(&mut self, index: usize, world: &World, seconds: f64) {
        let (name, id) = &self.links[index];
        for (end, way) in ["there", "back"].iter().enumerate() {
            let departed = world.link(*id).trace(end);
            let longest = departed.iter().map(|frame| frame.below).max().unwrap_or(Nanos::ZERO);
            departed.iter().for_each(|frame| self.below[index][end].record(frame.below));
            let (_, backlog) = world.link(*id).backlog(end, world.now());
            let values = [
                (Quantity::Below, longest.0 as f64 / 1e6),
                (Quantity::Frames, departed.len() as f64 / seconds),
                (Quantity::Ring, world.link(*id).in_ring(end, world.now()) as f64),
                (Quantity::Backlog, backlog as f64),
            ];
            for (quantity, value) in values {
                self.note(|| format!("{name} {way}"), quantity, value);
            }
        }
    }

    /// The recording, where `flows` are of the same applications and tell which end of each sent
    /// more.
    pub(crate) fn finish(mut self, world: &World, flows: Vec<AppFlows>) -> Recording {
        let mut distributions = Vec::new();
        let mut add = |subject: String, times: &Times| {
            if times.count() > 1 {
                distributions.push(Distribution { subject, points: points(times) });
            }
        };
        for (name, log) in self.groups {
            add(format!("{name}: latency of messages"), &log.borrow().latency);
        }
        for ((name, id), below) in self.links.iter().zip(&self.below) {
            for (end, way) in ["there", "back"].iter().enumerate() {
                add(format!("{name} {way}: TCP to wire"), &below[end]);
                let queued = &world.link(*id).stats(end, world.now()).queued;
                add(format!("{name} {way}: in the hop"), queued);
            }
        }
        self.recording.distributions = distributions;
        self.recording.flows = flows;
        let mut tracks = Vec::new();
        for ((name, _), [client, server]) in self.groups.iter().zip(self.apps) {
            let sender = match self.recording.side_of(name) {
                Side::Client => client,
                Side::Server => server,
            };
            tracks.extend(sender.tracks(name));
        }
        tracks.append(&mut self.recording.tracks);
        self.recording.tracks = tracks;
        self.recording
    }
}

fn points(times: &Times) -> Vec<(f64, f64)> {
    let point = |step: u32| {
        let share = f64::from(step) / f64::from(QUANTILES);
        (times.percentile(share * 100.0).0 as f64 / 1e6, share)
    };
    (0..=QUANTILES).map(point).collect()
}
