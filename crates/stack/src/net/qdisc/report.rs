//! Figures of a qdisc, which print as `tc -s qdisc show` does.

use super::QdiscStats;
use super::codel::{CodelStats, LawStats};
use super::config::QdiscConfig;
use super::fq::FqStats;
use super::fq_codel::FqCodelStats;
use super::param::Time;
use core::fmt;

/// Figures that only one kind of qdisc has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Xstats {
    /// The qdisc has no figures of its own.
    #[default]
    None,
    /// Figures of `fq`.
    Fq(FqStats),
    /// Figures of `fq_codel`.
    FqCodel(FqCodelStats),
    /// Figures of `codel`.
    Codel(CodelStats),
}

/// Qdisc with its parameters and figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Kind and parameters of the qdisc.
    pub config: QdiscConfig,
    /// Figures that all qdiscs have.
    pub stats: QdiscStats,
    /// Figures that only this kind has.
    pub xstats: Xstats,
}

impl fmt::Display for Report {
    /// Prints several lines, as `tc -s qdisc show` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QdiscStats {
            bytes,
            packets,
            drops,
            overlimits,
            requeues,
            backlog_bytes,
            backlog_packets,
        } = self.stats;
        writeln!(f, "qdisc {}", self.config)?;
        writeln!(
            f,
            " Sent {bytes} bytes {packets} pkt (dropped {drops}, overlimits {overlimits} requeues \
             {requeues})"
        )?;
        write!(f, " backlog {backlog_bytes}b {backlog_packets}p requeues {requeues}")?;
        match &self.xstats {
            Xstats::None => Ok(()),
            Xstats::Fq(figures) => print_fq(f, figures),
            Xstats::FqCodel(figures) => print_fq_codel(f, figures),
            Xstats::Codel(figures) => print_codel(f, figures),
        }
    }
}

fn print_fq(f: &mut fmt::Formatter<'_>, figures: &FqStats) -> fmt::Result {
    let FqStats { flows, inactive_flows, throttled_flows, throttled, .. } = figures;
    write!(f, "\n  flows {flows} (inactive {inactive_flows} throttled {throttled_flows})")?;
    for (band, packets) in figures.band_pkt_count.iter().enumerate() {
        write!(f, " band{band}_pkts {packets}")?;
    }
    if let Some(next) = figures.time_next_delayed_flow {
        write!(f, " next packet delay {}", Time(next))?;
    }
    let FqStats { gc_flows, fastpath_packets, unthrottle_latency, .. } = figures;
    write!(f, "\n  gc {gc_flows} fastpath {fastpath_packets} throttled {throttled}")?;
    write!(f, " latency {}", Time(*unthrottle_latency))?;
    for (band, drops) in figures.band_drops.iter().enumerate() {
        write_if(f, &format_args!("band{band}_drops"), *drops)?;
    }
    write_if(f, &"ce_mark", figures.ce_mark)?;
    write_if(f, &"flows_plimit", figures.flows_plimit)?;
    write_if(f, &"too_long_pkts", figures.pkts_too_long)?;
    write_if(f, &"alloc_errors", figures.allocation_errors)?;
    write_if(f, &"horizon_drops", figures.horizon_drops)?;
    write_if(f, &"horizon_caps", figures.horizon_caps)
}

fn write_if(f: &mut fmt::Formatter<'_>, name: &dyn fmt::Display, value: u64) -> fmt::Result {
    if value == 0 { Ok(()) } else { write!(f, " {name} {value}") }
}

fn print_fq_codel(f: &mut fmt::Formatter<'_>, figures: &FqCodelStats) -> fmt::Result {
    let FqCodelStats { drop_overlimit, drop_overmemory, new_flow_count, .. } = figures;
    let FqCodelStats { new_flows_len, old_flows_len, memory_usage, .. } = figures;
    let LawStats { maxpacket, drops, ecn_mark, ce_mark, .. } = figures.law;
    write!(f, "\n  maxpacket {maxpacket} drop_overlimit {drop_overlimit}")?;
    write!(f, " new_flow_count {new_flow_count} ecn_mark {ecn_mark} codel_drops {drops}")?;
    write_if(f, &"ce_mark", ce_mark)?;
    write_if(f, &"drop_overmemory", *drop_overmemory)?;
    write!(f, "\n  memory_used {memory_usage}")?;
    write!(f, " new_flows_len {new_flows_len} old_flows_len {old_flows_len}")
}

fn print_codel(f: &mut fmt::Formatter<'_>, figures: &CodelStats) -> fmt::Result {
    let CodelStats { law, count, dropping, drop_next, drop_overlimit } = figures;
    write!(f, "\n  count {count} ldelay {}", Time(law.last_delay))?;
    if *dropping {
        f.write_str(" dropping")?;
    }
    if let Some(next) = drop_next {
        write!(f, " drop_next {}", Time(*next))?;
    }
    let LawStats { maxpacket, drops, ecn_mark, ce_mark, .. } = law;
    write!(f, "\n  maxpacket {maxpacket} ecn_mark {ecn_mark} codel_drops {drops}")?;
    write!(f, " drop_overlimit {drop_overlimit}")?;
    write_if(f, &"ce_mark", *ce_mark)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::net::qdisc::fq;

    #[test]
    fn the_text_is_like_that_of_tc() {
        let report = Report {
            config: QdiscConfig::Fq(fq::Config { quantum: Some(3028), ..fq::Config::default() }),
            stats: QdiscStats { bytes: 4000, packets: 3, drops: 1, ..QdiscStats::default() },
            xstats: Xstats::Fq(FqStats {
                flows: 2,
                flows_plimit: 1,
                band_pkt_count: [0, 7, 0],
                ..FqStats::default()
            }),
        };
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("qdisc fq limit 10000p flow_limit 100p buckets 1024"));
        assert_eq!(lines[1], " Sent 4000 bytes 3 pkt (dropped 1, overlimits 0 requeues 0)");
        assert_eq!(lines[2], " backlog 0b 0p requeues 0");
        assert_eq!(
            lines[3],
            "  flows 2 (inactive 0 throttled 0) band0_pkts 0 band1_pkts 7 band2_pkts 0"
        );
        assert_eq!(lines[4], "  gc 0 fastpath 0 throttled 0 latency 0ns flows_plimit 1");
    }
}
