//! Figures of a run, by name: `app.NAME.…`, `host.NAME.…`, `link.NAME.there.…` and `….back.…`.
//!
//! Counters have the names that `nstat` prints; times are milliseconds, rates Mbit/s or per second.

use super::model::AppKind;
use crate::app::group::{GroupLog, QueryLog, SharedGroupLog};
use crate::histogram::Times;
use crate::link::{ENDS, LinkStats};
use crate::world::{CpuStats, HostId, LinkId, World};
use neap_stack::qdisc::QdiscStats;
use neap_stack::stats::IpCounter;
use neap_tcp::counters::Counter;
use neap_tcp::time::{Instant, Nanos};
use std::collections::BTreeMap;

/// Figures of a run by name.
pub type Figures = BTreeMap<String, f64>;

/// Figures over time.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Names of the columns. The first is the time since the start, in milliseconds.
    pub names: Vec<String>,
    /// Rows, one per sample.
    pub rows: Vec<Vec<f64>>,
}

fn millis(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// The counters of a host by name, and what its processor did.
fn counters(world: &World, host: HostId) -> (Vec<(&'static str, u64)>, CpuStats) {
    let stack = world.stack(host);
    let tcp = stack.tcp_counters().into_iter().map(|(counter, n)| (Counter::name(counter), n));
    let ip = stack.ip_counters().iter().map(|(counter, n)| (IpCounter::name(counter), n));
    (tcp.chain(ip).collect(), world.cpu_stats(host))
}

/// Sums over the qdiscs of all interfaces of a host.
fn qdiscs(world: &World, host: HostId) -> QdiscStats {
    let mut sum = QdiscStats::default();
    for interface in world.stack(host).interfaces(world.now()) {
        for QdiscStats { drops, requeues, overlimits, backlog_bytes, .. } in
            interface.ports.iter().map(|port| port.qdisc)
        {
            sum.drops += drops;
            sum.requeues += requeues;
            sum.overlimits += overlimits;
            sum.backlog_bytes += backlog_bytes;
        }
    }
    sum
}

#[derive(Default)]
struct HostProbe {
    before: Vec<(&'static str, u64)>,
    cpu: CpuStats,
    qdisc: QdiscStats,
    pages_sum: u64,
    pages_max: u64,
}

#[derive(Default)]
struct AppProbe {
    delivered: u64,
    /// Bytes that had arrived at each server.
    received: Vec<u64>,
    srtt: Times,
    /// Segments that had been sent again.
    retransmitted: u64,
    /// Connections that had failed.
    failed: usize,
    /// Datagrams that had found no room.
    refused: u64,
    below_max: u64,
    sndbuf_max: u64,
    rcvbuf_max: u64,
}

/// Looks at a world while it runs.
pub(super) struct Probes<'a> {
    hosts: &'a [(String, HostId)],
    links: &'a [(String, LinkId)],
    groups: &'a [(String, AppKind, SharedGroupLog)],
    host: Vec<HostProbe>,
    app: Vec<AppProbe>,
    begun: Instant,
    samples: u64,
    series: Series,
}

impl<'a> Probes<'a> {
    /// Begins: from here on everything counts.
    pub(super) fn begin(
        world: &World,
        hosts: &'a [(String, HostId)],
        links: &'a [(String, LinkId)],
        groups: &'a [(String, AppKind, SharedGroupLog)],
    ) -> Self {
        let host = |(_, id): &(String, HostId)| {
            let (before, cpu) = counters(world, *id);
            HostProbe { before, cpu, qdisc: qdiscs(world, *id), ..HostProbe::default() }
        };
        let app = |(_, _, log): &(String, AppKind, SharedGroupLog)| {
            let mut log = log.borrow_mut();
            log.latency.clear();
            log.queries = QueryLog::default();
            let now = world.now();
            let received = log.servers.iter().map(|server| server.received(now)).collect();
            AppProbe {
                delivered: log.delivered(),
                received,
                retransmitted: log.retransmitted(now),
                failed: log.failed(),
                refused: log.refused(),
                ..AppProbe::default()
            }
        };
        world.links().iter().for_each(|link| link.clear_stats(world.now()));
        Self {
            host: hosts.iter().map(host).collect(),
            app: groups.iter().map(app).collect(),
            hosts,
            links,
            groups,
            begun: world.now(),
            samples: 0,
            series: Series::default(),
        }
    }

    /// Takes one sample.
    pub(super) fn sample(&mut self, world: &World) {
        let now = world.now();
        let mut row = vec![("ms".to_owned(), millis(now.since(self.begun)))];
        self.samples += 1;
        for ((name, id), probe) in self.hosts.iter().zip(&mut self.host) {
            let pages = world.socket_pages(*id);
            probe.pages_sum += pages;
            probe.pages_max = probe.pages_max.max(pages);
            row.push((format!("host.{name}.memory_pages"), pages as f64));
        }
        for ((name, _, log), probe) in self.groups.iter().zip(&mut self.app) {
            let (mut below, mut unsent, mut in_flight, mut srtt, mut count) = (0, 0, 0, 0, 0);
            let mut cwnd = 0;
            for client in &log.borrow().clients {
                let Some(handle) = &client.handle else { continue };
                let info = handle.info(now);
                if info.rtt > Nanos::ZERO {
                    probe.srtt.record(info.rtt);
                }
                below += info.below_bytes;
                probe.sndbuf_max = probe.sndbuf_max.max(info.sndbuf.into());
                unsent += u64::from(info.notsent_bytes);
                in_flight += u64::from(info.unacked_bytes);
                cwnd += u64::from(info.snd_cwnd) * u64::from(info.snd_mss);
                srtt += info.rtt.0;
                // One that opens has no round-trip time yet.
                count += u32::from(info.rtt > Nanos::ZERO);
            }
            for server in log.borrow().servers.iter().filter_map(|end| end.handle.as_ref()) {
                probe.rcvbuf_max = probe.rcvbuf_max.max(server.info(now).rcvbuf.into());
            }
            probe.below_max = probe.below_max.max(below);
            let mean = srtt as f64 / f64::from(count.max(1)) / 1e6;
            let delivered = log.borrow().delivered() - probe.delivered;
            let columns = [
                ("below_bytes", below as f64),
                ("unsent_bytes", unsent as f64),
                ("in_flight_bytes", in_flight as f64),
                ("cwnd_bytes", cwnd as f64),
                ("srtt_ms", mean),
                ("delivered_bytes", delivered as f64),
            ];
            row.extend(columns.map(|(column, value)| (format!("app.{name}.{column}"), value)));
        }
        for (name, id) in self.links {
            for (end, way) in WAYS.iter().enumerate() {
                let (_, bytes) = world.link(*id).backlog(end, now);
                row.push((format!("link.{name}.{way}.backlog_bytes"), bytes as f64));
            }
        }
        let (names, values) = row.into_iter().unzip();
        self.series.names = names;
        self.series.rows.push(values);
    }

    /// The figures of the whole time, and the series.
    pub(super) fn finish(self, world: &World) -> (Figures, Series) {
        let seconds = world.now().since(self.begun).as_secs_f64();
        let mut figures = Figures::new();
        for ((name, id), probe) in self.hosts.iter().zip(&self.host) {
            let mut out =
                |figure: &str, value| figures.insert(format!("host.{name}.{figure}"), value);
            probe.finish(world, *id, seconds, self.samples, &mut out);
        }
        for (name, id) in self.links {
            for (end, way) in WAYS.iter().enumerate() {
                let mut out = |figure: &str, value| {
                    figures.insert(format!("link.{name}.{way}.{figure}"), value);
                };
                let link = world.link(*id);
                let stats = link.stats(end, world.now());
                if link.knows_busy(end) {
                    out("busy", stats.busy.as_secs_f64() / seconds);
                }
                link_figures(&stats, seconds, &mut out);
            }
        }
        for ((name, kind, log), probe) in self.groups.iter().zip(&self.app) {
            let mut out = |figure: &str, value| {
                figures.insert(format!("app.{name}.{figure}"), value);
            };
            let interval = Interval { now: world.now(), seconds };
            probe.finish(*kind, &log.borrow(), interval, &mut out);
        }
        (figures, self.series)
    }
}

const WAYS: [&str; ENDS] = ["there", "back"];

impl HostProbe {
    fn finish<R>(
        &self,
        world: &World,
        id: HostId,
        seconds: f64,
        samples: u64,
        out: &mut impl FnMut(&str, f64) -> R,
    ) {
        let (after, cpu) = counters(world, id);
        let mut figure = |name: &str, value| drop(out(name, value));
        for ((name, after), (_, before)) in after.iter().zip(&self.before) {
            figure(name, (after - before) as f64);
        }
        let (mut tx, mut rx) = (0, 0);
        for (_, LinkId(link), end) in world.interfaces(id) {
            tx += world.links()[link].stats(end, world.now()).tx_interrupts;
            rx += world.links()[link].stats(1 - end, world.now()).rx_interrupts;
        }
        let timers = cpu.timer_interrupts - self.cpu.timer_interrupts;
        let rates = [
            ("tx_interrupts_per_s", tx),
            ("rx_interrupts_per_s", rx),
            ("timer_interrupts_per_s", timers),
            ("departures_timed_per_s", cpu.departures_timed - self.cpu.departures_timed),
            ("interrupts_per_s", tx + rx + timers),
            ("turns_per_s", cpu.turns - self.cpu.turns),
            ("wakeups_per_s", cpu.wakeups - self.cpu.wakeups),
            ("context_switches_per_s", cpu.context_switches - self.cpu.context_switches),
        ];
        for (name, count) in rates {
            figure(name, count as f64 / seconds);
        }
        figure("memory_pages_mean", self.pages_sum as f64 / samples.max(1) as f64);
        figure("memory_pages_max", self.pages_max as f64);
        let qdisc = qdiscs(world, id);
        figure("qdisc_drops", (qdisc.drops - self.qdisc.drops) as f64);
        figure("qdisc_requeues", (qdisc.requeues - self.qdisc.requeues) as f64);
        figure("qdisc_overlimits", (qdisc.overlimits - self.qdisc.overlimits) as f64);
        figure("qdisc_backlog_bytes", qdisc.backlog_bytes as f64);
    }
}

fn quantiles(name: &str, times: &Times, out: &mut impl FnMut(&str, f64)) {
    if times.count() == 0 {
        return;
    }
    out(&format!("{name}_p50_ms"), millis(times.percentile(50.0)));
    out(&format!("{name}_p99_ms"), millis(times.percentile(99.0)));
    out(&format!("{name}_max_ms"), millis(times.max()));
}

fn link_figures(stats: &LinkStats, seconds: f64, out: &mut impl FnMut(&str, f64)) {
    let counts = [
        ("frames", stats.frames),
        ("super_frames", stats.super_frames),
        ("segments", stats.segments),
        ("packets", stats.packets),
        ("lost", stats.lost),
        ("dropped", stats.dropped),
        ("early_drops", stats.early_drops),
        ("policed", stats.policed),
        ("too_big", stats.too_big),
        ("corrupted", stats.corrupted),
        ("duplicated", stats.duplicated),
        ("reordered", stats.reordered),
        ("marked", stats.marked),
        ("ring_drops", stats.ring_drops),
        ("most_queued_bytes", stats.most_queued),
    ];
    for (name, count) in counts {
        out(name, count as f64);
    }
    out("segments_per_frame", stats.segments as f64 / stats.frames.max(1) as f64);
    out("wire_mbit", stats.wire_bytes as f64 * 8e-6 / seconds);
    quantiles("below", &stats.below, out);
    quantiles("in_ring", &stats.in_ring, out);
    quantiles("queued", &stats.queued, out);
}

/// The measured time, in seconds, and its end.
#[derive(Clone, Copy)]
struct Interval {
    now: Instant,
    seconds: f64,
}

impl AppProbe {
    fn finish(
        &self,
        kind: AppKind,
        log: &GroupLog,
        Interval { now, seconds }: Interval,
        out: &mut impl FnMut(&str, f64),
    ) {
        let delivered = log.delivered() - self.delivered;
        out("delivered_bytes", delivered as f64);
        // Memory pressure takes back what waits out of order.
        let shares = log.servers.iter().enumerate().map(|(index, server)| {
            let before = self.received.get(index).copied().unwrap_or(0);
            server.received(now).saturating_sub(before) as f64
        });
        let mut shares: Vec<f64> = shares.collect();
        // A client whose connection was never accepted, or of which no datagram came, has no share.
        let begun = log.clients.iter().filter(|client| client.has_begun()).count();
        shares.resize(shares.len().max(begun), 0.0);
        out("goodput_mbit", shares.iter().sum::<f64>() * 8e-6 / seconds);
        let (sum, squares) =
            shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        if squares > 0.0 {
            // Jain, Chiu and Hawe 1984.
            out("jain_index", sum * sum / (shares.len() as f64 * squares));
        }
        let rates = shares.iter().map(|share| share * 8e-6 / seconds);
        let (least, most) = rates.fold((f64::INFINITY, 0.0_f64), |(least, most), rate| {
            (least.min(rate), most.max(rate))
        });
        out("slowest_mbit", least.min(most));
        out("fastest_mbit", most);
        out("retransmitted", (log.retransmitted(now) - self.retransmitted) as f64);
        out("below_bytes_max", self.below_max as f64);
        out("sndbuf_max", self.sndbuf_max as f64);
        out("rcvbuf_max", self.rcvbuf_max as f64);
        out("failed", (log.failed() - self.failed) as f64);
        out("refused", (log.refused() - self.refused) as f64);
        out("messages", log.latency.count() as f64);
        quantiles("latency", &log.latency, out);
        quantiles("srtt", &self.srtt, out);
        let QueryLog { count: queries, time, with_timeout } = log.queries;
        if queries > 0 {
            out("query_mean_ms", millis(time) / queries as f64);
            out("queries_with_timeout", with_timeout as f64 / queries as f64);
        }
        if kind == AppKind::Transfer {
            finish_transfers(log, out);
        }
    }
}

/// Figures of transfers: how many have arrived as a whole, and how long they took.
fn finish_transfers(log: &GroupLog, out: &mut impl FnMut(&str, f64)) {
    let begun: Vec<Instant> = log.clients.iter().filter_map(|client| client.begun).collect();
    let done: Vec<Instant> = log.servers.iter().filter_map(|end| end.finished).collect();
    out("finished", done.len() as f64);
    // The time of those that have arrived says nothing of those that never will.
    let have_all = done.len() >= begun.len();
    if let (Some(first), Some(last), true) = (begun.iter().min(), done.iter().max(), have_all) {
        out("transfer_ms", millis(last.since(*first)));
    }
    let mut completion = Times::default();
    for client in &log.clients {
        if let (Some(begun), Some(finished)) = (client.begun, client.finished) {
            completion.record(finished.since(begun));
        }
    }
    quantiles("completion", &completion, out);
}
