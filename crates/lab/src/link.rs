//! An emulated full-duplex link: two NICs, the wires between them, and what happens on the way.
//!
//! The physical model: a frame waits in the NIC's ring until the doorbell, is cut into wire segments
//! and serialised one after the other at the rate of the wire, with what Ethernet adds to each.
//! Its credit is dropped, so the frame is completed, when the last bit of its last segment has left
//! and the completion interrupt has come. Segments arrive a propagation delay later and are handed
//! over at the receive interrupt, joined by the NIC where they follow each other.
//!
//! All this is computed when the doorbell rings: nothing that happens later changes when a frame in
//! the ring leaves. Cost: per wire segment one copy of its headers and one entry of a B-tree.

mod direction;
mod offload;
mod router;

use direction::Direction;
pub use direction::{Departed, LinkStats};
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxQueue, TxQueue,
};
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rng::{Ppm, Rng};

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
    /// Of transmit completions.
    pub tx_coalescing: Coalescing,
    /// Of receptions.
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
            tx_coalescing: Coalescing::NONE,
            rx_coalescing: Coalescing::NONE,
        }
    }
}

/// A slower hop behind the NIC, with a queue that drops at its tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Bytes per second on the wire.
    pub rate: Rate,
    /// Packets that may wait.
    pub packets: usize,
    /// Bytes that may wait.
    pub bytes: u64,
}

/// The way from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Of the NIC's wire, in bytes per second.
    pub rate: Rate,
    /// Propagation delay.
    pub delay: Nanos,
    /// A slower hop.
    pub bottleneck: Option<Bottleneck>,
    /// Largest packet of a hop on the way, where a router says so by ICMP.
    pub mtu: Option<u16>,
    /// Segments that vanish.
    pub loss: Ppm,
    /// Segments of which one bit is flipped.
    pub corruption: Ppm,
    /// Segments that arrive twice, the second time up to `reorder_delay` later.
    pub duplication: Ppm,
    /// Segments that are delayed by up to `reorder_delay` while others pass.
    pub reordering: Ppm,
    /// See `reordering`.
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
            mtu: None,
            loss: Ppm::NEVER,
            corruption: Ppm::NEVER,
            duplication: Ppm::NEVER,
            reordering: Ppm::NEVER,
            reorder_delay: Nanos::ZERO,
            jitter: Nanos::ZERO,
            congestion_marks: Ppm::NEVER,
        }
    }
}

/// The two ends of a link.
pub const ENDS: usize = 2;

/// A whole link: the NIC of each end, and the path that leaves from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// By end.
    pub nics: [NicConfig; ENDS],
    /// By the end where they begin.
    pub paths: [PathConfig; ENDS],
}

/// Both directions of a link, by the end where they begin.
#[derive(Debug)]
struct Wires([Direction; ENDS]);

/// A link, as whoever runs the experiment sees it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Mutex<Wires>>);

impl Link {
    /// A link and the devices at its two ends.
    pub fn new(config: &LinkConfig, rng: &Rng) -> (Self, [Device; ENDS]) {
        let direction = |from: usize| {
            let (nic, peer) = (&config.nics[from], &config.nics[1 - from]);
            Direction::new(nic, peer, &config.paths[from], &rng.fork(from as u64))
        };
        let link = Self(Arc::new(Mutex::new(Wires([direction(0), direction(1)]))));
        let devices = [0, 1].map(|end| link.device(end, &config.nics[end]));
        (link, devices)
    }

    fn device(&self, end: usize, nic: &NicConfig) -> Device {
        let capabilities = Capabilities {
            medium: Medium::Ip,
            mtu: nic.mtu,
            gso_max_size: nic.gso_max_size,
            gso_max_segs: nic.gso_max_segs,
            checksum_tx: nic.checksums,
            checksum_rx: nic.checksums,
            completion: Completion::OnWire,
            pacing_shift: 10,
        };
        let pair = QueuePair {
            tx: Box::new(Transmit { link: self.clone(), end }),
            rx: Box::new(Receive { link: self.clone(), end }),
            #[cfg(unix)]
            descriptor: None,
        };
        Device { name: format!("lab{end}"), capabilities, queues: vec![pair] }
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the NIC of `end` next interrupts its host.
    pub fn next_interrupt(&self, end: usize) -> Instant {
        let wires = self.wires();
        wires.0[end].completion_interrupt().min(wires.0[1 - end].receive_interrupt())
    }

    /// What has left from `end` since the start or [`clear_stats`](Self::clear_stats).
    pub fn stats(&self, end: usize) -> LinkStats {
        self.wires().0[end].stats.clone()
    }

    /// Forgets all figures but the digests.
    pub fn clear_stats(&self) {
        for direction in &mut self.wires().0 {
            direction.stats.clear();
        }
    }

    /// What sockets at `end` gave to the NIC since the last call; notes are taken from the first call
    /// on.
    pub fn trace(&self, end: usize) -> Vec<Departed> {
        self.wires().0[end].trace.replace(Vec::new()).unwrap_or_default()
    }

    /// Whether the wire from `end` carries or will carry something.
    pub fn is_sending(&self, end: usize, now: Instant) -> bool {
        self.wires().0[end].is_sending(now)
    }

    /// Frames in both rings and packets on their way.
    pub fn contents(&self) -> usize {
        self.wires().0.iter().map(Direction::contents).sum()
    }

    /// Loses everything from now on, or no longer.
    pub fn set_down(&self, is_down: bool) {
        for direction in &mut self.wires().0 {
            direction.is_down = is_down;
        }
    }
}

/// The sending half of one end's NIC.
struct Transmit {
    link: Link,
    end: usize,
}

impl TxQueue for Transmit {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        self.link.wires().0[self.end].submit(frame, now)
    }

    fn flush(&mut self, now: Instant) {
        let mut wires = self.link.wires();
        let [first, second] = &mut wires.0;
        let (there, back) = if self.end == 0 { (first, second) } else { (second, first) };
        there.ring_doorbell(now, back);
    }

    fn reap(&mut self, now: Instant) -> Completed {
        let done = self.link.wires().0[self.end].take_completed(now);
        // The credits wake sockets: not under the lock of the link.
        let bytes = done.iter().map(|(bytes, _)| bytes).sum();
        Completed { frames: done.len() as u32, bytes }
    }

    fn next_event(&self) -> Instant {
        self.link.wires().0[self.end].completion_interrupt()
    }
}

/// The receiving half of one end's NIC.
struct Receive {
    link: Link,
    end: usize,
}

impl RxQueue for Receive {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        self.link.wires().0[1 - self.end].receive(now)
    }

    fn next_event(&self) -> Instant {
        self.link.wires().0[1 - self.end].receive_interrupt()
    }
}

#[cfg(test)]
mod tests;
