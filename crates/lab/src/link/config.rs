//! The configuration of a link: the cards at its ends, the paths between them, their queues and
//! impairments.

use super::service::Trace;
use crate::rng::Ppm;
use neap_tcp::time::{Nanos, Rate};

/// Number of ends of a link.
pub const ENDS: usize = 2;

/// Configuration of a link: the NIC of each end, and the path that leaves from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Card of each end.
    pub nics: [NicConfig; ENDS],
    /// Path that begins at each end.
    pub paths: [PathConfig; ENDS],
}

/// Interrupt moderation (`ethtool -C`): the interrupt comes after a delay from the first event, or
/// with a number of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Longest delay (`rx-usecs`, `tx-usecs`).
    pub delay: Nanos,
    /// Number of events, at least one (`rx-frames`, `tx-frames`).
    pub frames: u32,
}

impl Coalescing {
    /// Moderation that makes an interrupt for each event.
    pub const NONE: Self = Self { delay: Nanos::ZERO, frames: 1 };
}

/// Network card of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Frames that the transmit ring holds. A super-frame takes one place.
    pub descriptors: usize,
    /// Largest super-frame in bytes. The MTU or less turns TSO off.
    pub gso_max_size: u32,
    /// Most segments of a super-frame.
    pub gso_max_segs: u32,
    /// Whether checksums are finished on the way out and verified on the way in.
    pub checksums: bool,
    /// Whether received segments that follow each other become one packet. It needs `checksums`.
    pub gro: bool,
    /// Packets that the receive ring holds for the host.
    pub rx_descriptors: usize,
    /// `sk_pacing_shift` that the device asks for: 10, or less where it must aggregate.
    pub pacing_shift: u8,
    /// Time from a frame's last bit on the wire to its completion.
    pub completion_delay: Nanos,
    /// Whether the driver gives a frame up before it has left, as those do that call `skb_orphan`
    /// when they take it. Sockets then count nothing as below them; byte queue limits still hear of
    /// the true completion.
    pub completes_early: bool,
    /// Moderation of the interrupts for transmit completions.
    pub tx_coalescing: Coalescing,
    /// Moderation of the interrupts for received packets.
    pub rx_coalescing: Coalescing,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            descriptors: 256,
            gso_max_size: 65_536,
            gso_max_segs: 65_535,
            checksums: true,
            gro: true,
            rx_descriptors: 4096,
            pacing_shift: 10,
            completion_delay: Nanos::ZERO,
            completes_early: false,
            tx_coalescing: Coalescing::NONE,
            rx_coalescing: Coalescing::NONE,
        }
    }
}

/// Path from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Rate of the NIC's wire, in bytes per second.
    pub rate: Rate,
    /// Propagation delay, in one direction.
    pub delay: Nanos,
    /// Slower hop on the path.
    pub bottleneck: Option<Bottleneck>,
    /// Management of the hop's queue.
    pub discipline: Discipline,
    /// Recorded rate in place of the hop's. It counts IP packets, as mahimahi does.
    pub trace: Option<Trace>,
    /// Aggregation of the hop, if it is a wifi station.
    pub wifi: Option<Wifi>,
    /// A token bucket in front of the hop.
    pub policer: Option<Policer>,
    /// Largest packet of a hop on the way, whose router sends "packet too big".
    pub mtu: Option<u16>,
    /// Share of the segments that are lost at random.
    pub loss: Ppm,
    /// Loss in bursts.
    pub bursts: Option<GilbertElliott>,
    /// Loss of chosen segments, and at chosen times.
    pub scripted: ScriptedLoss,
    /// Share of the segments of which one bit is flipped.
    pub corruption: Ppm,
    /// Share of the segments that arrive twice, the second time up to `reorder_delay` later.
    pub duplication: Ppm,
    /// Share of the segments that are delayed by up to `reorder_delay` while others pass.
    pub reordering: Ppm,
    /// Longest delay of a packet that is duplicated or overtaken.
    pub reorder_delay: Nanos,
    /// Longest additional delay of each segment. The order is kept.
    pub jitter: Nanos,
    /// Share of the segments that are marked as by a congested router, if they may be (RFC 3168).
    pub congestion_marks: Ppm,
}

impl PathConfig {
    /// Returns a path without impairments.
    pub const fn clean(rate: Rate, delay: Nanos) -> Self {
        Self {
            rate,
            delay,
            bottleneck: None,
            discipline: Discipline::DropTail,
            trace: None,
            wifi: None,
            policer: None,
            mtu: None,
            loss: Ppm::NEVER,
            bursts: None,
            scripted: ScriptedLoss { packets: Vec::new(), outages: Vec::new() },
            corruption: Ppm::NEVER,
            duplication: Ppm::NEVER,
            reordering: Ppm::NEVER,
            reorder_delay: Nanos::ZERO,
            jitter: Nanos::ZERO,
            congestion_marks: Ppm::NEVER,
        }
    }
}

/// Slower hop behind the NIC, with a queue that drops at its tail.
///
/// The packet that is being sent has its place in the queue until it has left. CoDel and wifi take
/// it out when they begin to send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Rate on the wire.
    pub rate: Rate,
    /// Packets that may be in the queue.
    pub packets: usize,
    /// Bytes that may be in the queue.
    pub bytes: u64,
}

/// Queue management of a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// Packets that do not fit are dropped.
    #[default]
    DropTail,
    /// Packets that find more bytes waiting are marked, as switches do for DCTCP (RFC 8257).
    MarkAbove(u64),
    /// Random early detection.
    Red(Red),
    /// Controlled delay.
    CoDel(CoDel),
}

/// Random early detection (Floyd and Jacobson 1993), over bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Mean backlog below which nothing happens (`min`).
    pub min: u64,
    /// Mean backlog above which every packet is dropped or marked (`max`).
    pub max: u64,
    /// Probability at `max` (`probability`).
    pub probability: Ppm,
    /// The mean moves by 2^-n of the difference with every packet.
    pub weight_log: u32,
    /// Whether packets are marked instead of dropped if the sender allows it (`ecn`).
    pub ecn: bool,
}

/// Controlled delay (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Acceptable standing delay (`target`).
    pub target: Nanos,
    /// Time for which the target must be exceeded (`interval`).
    pub interval: Nanos,
    /// Whether packets are marked instead of dropped if the sender allows it (`ecn`).
    pub ecn: bool,
}

impl Default for CoDel {
    fn default() -> Self {
        let (target, interval) = (Nanos::from_millis(5), Nanos::from_millis(100));
        Self { target, interval, ecn: true }
    }
}

/// Aggregation of a wifi station (802.11n and later): the medium is won for one aggregate at a
/// time, whose frames all arrive at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wifi {
    /// Time of contention, preamble and block ACK of one aggregate.
    pub overhead: Nanos,
    /// Most frames of one aggregate.
    pub frames: u32,
    /// Longest airtime of its payload.
    pub airtime: Nanos,
}

/// A token bucket that drops what exceeds it, without a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Tokens per second, in bytes.
    pub rate: Rate,
    /// Tokens that the bucket holds, in bytes.
    pub burst: u64,
}

/// Loss in bursts: a chain of two states with a loss probability each (Gilbert 1960, Elliott 1963;
/// the parameters of `netem loss gemodel`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GilbertElliott {
    /// Probability per packet of going from the good to the bad state (`p`).
    pub to_bad: Ppm,
    /// Probability per packet of going from the bad to the good state (`r`).
    pub to_good: Ppm,
    /// Probability of loss in the bad state (`1-h`).
    pub loss_in_bad: Ppm,
    /// Probability of loss in the good state (`1-k`).
    pub loss_in_good: Ppm,
}

/// Loss of chosen packets, and at chosen times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptedLoss {
    /// Packets that are lost, counted from 0 in the order in which they leave the hop; ascending.
    /// What policer, MTU and queue drop is not counted.
    pub packets: Vec<u64>,
    /// Times in which every packet is lost, from the start of the world, end excluded; ascending.
    pub outages: Vec<(Nanos, Nanos)>,
}

/// Change of a link while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// Time of the change, from the start of the link.
    pub at: Nanos,
    /// Ends from which on it changes.
    pub from: Vec<usize>,
    /// New rate.
    pub rate: Option<Rate>,
    /// New propagation delay.
    pub delay: Option<Nanos>,
    /// New share of packets that are lost at random.
    pub loss: Option<Ppm>,
    /// Whether the link loses everything.
    pub is_down: Option<bool>,
}
