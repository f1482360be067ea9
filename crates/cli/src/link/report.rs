//! Counts of a link, as a table or as JSON.

use super::Pace;
use super::driver::{DirectionStats, Driver};
use super::lateness::LatenessReport;
use serde::Serialize;
use std::io::{self, Write};

/// Percent of late packets above which the machine was not fit for the link.
const LATE_PERCENT: f64 = 1.0;

/// All counts of a link.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    seconds: f64,
    seed: u64,
    late_bound_us: u64,
    directions: [Direction; 2],
}

/// Counts of one direction. Packets are those of the wire, frames those of the devices: one
/// super-frame is one frame. Bytes are those of IP packets.
#[derive(Clone, Debug, Serialize)]
struct Direction {
    from: String,
    to: String,
    frames_in: u64,
    packets_in: u64,
    bytes_in: u64,
    frames_out: u64,
    packets_out: u64,
    bytes_out: u64,
    /// By chance, by script, or while the link was down.
    lost: u64,
    dropped_by_queue: u64,
    dropped_by_aqm: u64,
    policed: u64,
    too_big: u64,
    /// Dropped as too many packets were on their way (`--packets`).
    overflow: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    marked: u64,
    /// ICMP errors that hops of the other direction sent.
    answered: u64,
    /// On their way at the end.
    in_flight: u64,
    unreadable: u64,
    rx_dropped: u64,
    tx_errors: u64,
    queued_p50_us: f64,
    queued_p99_us: f64,
    most_queued_bytes: u64,
    lateness: LatenessReport,
}

impl Direction {
    fn new([from, to]: [String; 2], stats: DirectionStats) -> Self {
        let DirectionStats { relay, rx_dropped, tx_errors, lateness } = stats;
        let (own, link) = (&relay, &relay.link);
        let micros = |percent| link.queued.percentile(percent).0 as f64 / 1e3;
        Self {
            from,
            to,
            frames_in: own.frames_in,
            packets_in: link.packets,
            bytes_in: own.bytes_in,
            frames_out: own.frames_out,
            packets_out: link.delivered,
            bytes_out: own.bytes_out,
            lost: link.lost,
            dropped_by_queue: link.dropped,
            dropped_by_aqm: link.early_drops,
            policed: link.policed,
            too_big: link.too_big,
            overflow: own.overflow,
            duplicated: link.duplicated,
            reordered: link.reordered,
            corrupted: link.corrupted,
            marked: link.marked,
            answered: link.answered,
            in_flight: own.contents,
            unreadable: own.unreadable,
            rx_dropped,
            tx_errors,
            queued_p50_us: micros(50.0),
            queued_p99_us: micros(99.0),
            most_queued_bytes: link.most_queued,
            lateness: lateness.report(),
        }
    }

    /// Rows of the table; those that are zero in both directions are left out, but for the first.
    fn rows(&self) -> [(&'static str, u64); 20] {
        [
            ("frames in", self.frames_in),
            ("packets in", self.packets_in),
            ("bytes in", self.bytes_in),
            ("frames out", self.frames_out),
            ("packets out", self.packets_out),
            ("bytes out", self.bytes_out),
            ("lost", self.lost),
            ("dropped by the queue", self.dropped_by_queue),
            ("dropped by its AQM", self.dropped_by_aqm),
            ("policed", self.policed),
            ("too big", self.too_big),
            ("overflow", self.overflow),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("corrupted", self.corrupted),
            ("marked", self.marked),
            ("answered", self.answered),
            ("unreadable", self.unreadable),
            ("lost before the link", self.rx_dropped),
            ("refused by the device", self.tx_errors),
        ]
    }
}

/// A row of the table that is no count: its name and its value.
type Figure = (&'static str, fn(&Direction) -> f64);

/// Rows that are always shown.
const ALWAYS: usize = 7;

impl Report {
    pub(super) fn new(driver: &mut Driver, names: [String; 2], seed: u64, pace: Pace) -> Self {
        let [a, b] = names;
        let ways = [[a.clone(), b.clone()], [b, a]];
        let mut stats = [0, 1].map(|end| driver.stats(end)).into_iter();
        let directions = ways.map(|way| Direction::new(way, stats.next().expect("two directions")));
        Self {
            seconds: driver.elapsed().as_secs_f64(),
            seed,
            late_bound_us: pace.late.0 / 1000,
            directions,
        }
    }

    /// Percent of the packets that left late.
    pub(super) fn late_percent(&self) -> f64 {
        let all = self.directions.iter().map(|one| one.lateness.packets).sum::<u64>();
        let late = self.directions.iter().map(|one| one.lateness.late).sum::<u64>();
        100.0 * late as f64 / all.max(1) as f64
    }

    /// Whether so few packets were late that the link was what it was to be.
    pub(super) fn is_punctual(&self) -> bool {
        self.late_percent() <= LATE_PERCENT
    }

    pub(super) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let [there, back] = &self.directions;
        writeln!(out, "{:.3} s, seed {}", self.seconds, self.seed)?;
        let way = |one: &Direction| format!("{} to {}", one.from, one.to);
        let (there_way, back_way) = (way(there), way(back));
        let wide = there_way.len().max(22) + 2;
        writeln!(out, "{:<24}{there_way:>wide$}{back_way:>wide$}", "")?;
        for (index, (there, back)) in there.rows().into_iter().zip(back.rows()).enumerate() {
            if index < ALWAYS || there.1 + back.1 > 0 {
                writeln!(out, "{:<24}{:>wide$}{:>wide$}", there.0, there.1, back.1)?;
            }
        }
        let figures: [Figure; 6] = [
            ("Mbit/s out", |one| one.bytes_out as f64),
            ("queued p99, us", |one| one.queued_p99_us),
            ("late p50, us", |one| one.lateness.p50_us),
            ("late p99, us", |one| one.lateness.p99_us),
            ("late p99.9, us", |one| one.lateness.p999_us),
            ("late max, us", |one| one.lateness.max_us),
        ];
        for (index, (name, of)) in figures.into_iter().enumerate() {
            let scale = if index == 0 { 8e-6 / self.seconds.max(1e-9) } else { 1.0 };
            let (there, back) = (of(there) * scale, of(back) * scale);
            writeln!(out, "{name:<24}{there:>wide$.1}{back:>wide$.1}")?;
        }
        let late = format!("later than {} us", self.late_bound_us);
        let (of_there, of_back) = (there.lateness.late, back.lateness.late);
        writeln!(out, "{late:<24}{of_there:>wide$}{of_back:>wide$}")?;
        let classes = there.lateness.histogram.iter().zip(&back.lateness.histogram);
        for ((end, there), (_, back)) in classes.filter(|(a, b)| a.1 + b.1 > 0) {
            let class = end.map_or("late beyond".to_owned(), |end| format!("late up to {end} us"));
            writeln!(out, "{class:<24}{there:>wide$}{back:>wide$}")?;
        }
        Ok(())
    }
}
