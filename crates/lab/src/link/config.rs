//! The configuration of a link: the cards at its ends, the paths between them, their queues and
//! impairments.

use super::service::Trace;
use crate::rng::Ppm;
use neap_tcp::time::{Nanos, Rate};

/// The two ends of a link.
pub const ENDS: usize = 2;

/// A whole link: the NIC of each end, and the path that leaves from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The card of each end.
    pub nics: [NicConfig; ENDS],
    /// The path that begins at each end.
    pub paths: [PathConfig; ENDS],
}

/// Interrupt moderation (`ethtool -C`): the interrupt comes this long after the first event, or
/// with so many events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// `rx-usecs`, `tx-usecs`.
    pub delay: Nanos,
    /// `rx-frames`, `tx-frames`; at least one.
    pub frames: u32,
}

impl Coalescing {
    /// An interrupt for each event.
    pub const NONE: Self = Self { delay: Nanos::ZERO, frames: 1 };
}

/// The NIC of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Frames in the transmit ring; a super-frame takes one.
    pub descriptors: usize,
    /// Largest super-frame in bytes; the MTU or less turns TSO off.
    pub gso_max_size: u32,
    /// Most segments of a super-frame.
    pub gso_max_segs: u32,
    /// Checksums are finished on the way out and verified on the way in.
    pub checksums: bool,
    /// Received segments that follow each other become one packet; needs `checksums`.
    pub gro: bool,
    /// Packets that may wait for the host in the receive ring.
    pub rx_descriptors: usize,
    /// `sk_pacing_shift` that the device asks for: 10, or less where it must aggregate.
    pub pacing_shift: u8,
    /// From a frame's last bit on the wire to its completion.
    pub completion_delay: Nanos,
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
            tx_coalescing: Coalescing::NONE,
            rx_coalescing: Coalescing::NONE,
        }
    }
}

/// The path from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Rate of the NIC's wire, in bytes per second.
    pub rate: Rate,
    /// Propagation delay, in one direction.
    pub delay: Nanos,
    /// A slower hop.
    pub bottleneck: Option<Bottleneck>,
    /// How its queue is managed.
    pub discipline: Discipline,
    /// A recorded rate in place of the hop's.
    pub trace: Option<Trace>,
    /// The hop is a wifi station.
    pub wifi: Option<Wifi>,
    /// A token bucket in front of the hop.
    pub policer: Option<Policer>,
    /// Largest packet of a hop on the way, where a router says so by ICMP.
    pub mtu: Option<u16>,
    /// Share of the segments that are lost at random.
    pub loss: Ppm,
    /// Loss in bursts.
    pub bursts: Option<GilbertElliott>,
    /// Loss of chosen segments, and at chosen times.
    pub scripted: ScriptedLoss,
    /// Share of the segments of which one bit is flipped.
    pub corruption: Ppm,
    /// Segments that arrive twice, the second time up to `reorder_delay` later.
    pub duplication: Ppm,
    /// Segments that are delayed by up to `reorder_delay` while others pass.
    pub reordering: Ppm,
    /// The longest delay of a packet that is duplicated or that others overtake.
    pub reorder_delay: Nanos,
    /// Up to so much more delay for each segment, order kept.
    pub jitter: Nanos,
    /// Segments that are marked as by a congested router, if they may be (RFC 3168).
    pub congestion_marks: Ppm,
}

impl PathConfig {
    /// A clean path.
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

/// A slower hop behind the NIC, with a queue that drops at its tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Bytes per second on the wire.
    pub rate: Rate,
    /// Packets that may wait in the queue.
    pub packets: usize,
    /// Bytes that may wait in the queue.
    pub bytes: u64,
}

/// Active queue management of a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// Drops what does not fit.
    #[default]
    DropTail,
    /// Marks what finds more than so many bytes waiting, as switches do for DCTCP (RFC 8257).
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
    /// Marks instead of drops where the sender allows it (`ecn`).
    pub ecn: bool,
}

/// Controlled delay (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Acceptable standing delay (`target`).
    pub target: Nanos,
    /// Time for which it must be exceeded (`interval`).
    pub interval: Nanos,
    /// Marks instead of drops where the sender allows it (`ecn`).
    pub ecn: bool,
}

impl Default for CoDel {
    fn default() -> Self {
        let (target, interval) = (Nanos::from_millis(5), Nanos::from_millis(100));
        Self { target, interval, ecn: true }
    }
}

/// A medium that is won for one aggregate at a time (802.11n and later), whose frames all arrive at
/// its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wifi {
    /// Contention, preamble and block ACK of one aggregate.
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
    /// From the good to the bad state, per packet (`p`).
    pub to_bad: Ppm,
    /// From the bad to the good state, per packet (`r`).
    pub to_good: Ppm,
    /// Loss in the bad state (`1-h`).
    pub loss_in_bad: Ppm,
    /// Loss in the good state (`1-k`).
    pub loss_in_good: Ppm,
}

/// Loss of chosen packets, and at chosen times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptedLoss {
    /// Packets that vanish, counted from 0 in the order of their departure; ascending.
    pub packets: Vec<u64>,
    /// Times in which everything vanishes, from the start of the world, end excluded; ascending.
    pub outages: Vec<(Nanos, Nanos)>,
}
