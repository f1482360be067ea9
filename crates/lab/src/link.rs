//! An emulated full-duplex link: two NICs, the wires between them, queues and impairments.
//!
//! The physical model: a frame waits in the NIC's ring until the doorbell, is cut into wire
//! segments and serialised one after the other at the rate of the wire, with what Ethernet adds to
//! each. Its credit is dropped, so the frame is completed, when the last bit of its last segment
//! has left and the completion interrupt has come. Segments arrive a propagation delay later and
//! are handed over at the receive interrupt, joined by the NIC where they follow each other.
//!
//! All this is computed when the doorbell rings: nothing that happens later changes when a frame in
//! the ring leaves. Only queues that decide at departure (`queue`) and routers want events of their
//! own. Cost: per wire segment one copy of its headers, one allocation and one entry of a queue.

mod config;
mod direction;
pub(crate) mod forward;
mod impairment;
mod intake;
mod offload;
mod packet;
mod path;
mod queue;
mod relay;
mod service;
mod stats;

pub use config::{
    Bottleneck, CoDel, Coalescing, Discipline, ENDS, GilbertElliott, LinkChange, LinkConfig,
    NicConfig, PathConfig, Policer, Red, ScriptedLoss, Wifi,
};
use direction::Direction;
pub(crate) use packet::{FourTuple, Packet, four_tuple};
pub use relay::{Relay, RelayConfig, RelayStats};
pub use service::{Trace, TraceError};
pub use stats::{Captured, Departed, LinkStats};

use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxQueue, TxQueue,
};
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rng::{Ppm, Rng};

/// Both directions of a link, by the end where they begin.
#[derive(Debug)]
struct Wires([Direction; ENDS]);

/// Link, as the world and tests see it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Mutex<Wires>>);

impl Link {
    /// Returns a link between hosts in a world that begins at `start`, and the devices at its two
    /// ends.
    pub fn new(config: &LinkConfig, rng: &Rng, start: Instant) -> (Self, [Device; ENDS]) {
        Self::between(config, rng, start, [false; ENDS])
    }

    /// As [`new`](Self::new), with routers at these ends, which want no device.
    pub(crate) fn between(
        config: &LinkConfig,
        rng: &Rng,
        start: Instant,
        is_router: [bool; ENDS],
    ) -> (Self, [Device; ENDS]) {
        let direction = |from: usize| {
            let (nic, peer) = (&config.nics[from], &config.nics[1 - from]);
            let (rng, path) = (rng.fork(from as u64), &config.paths[from]);
            Direction::new(nic, peer, path, &rng, start, is_router[from])
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
            gso_udp: false,
            checksum_tx: nic.checksums,
            checksum_rx: nic.checksums,
            completion: Completion::OnWire,
            pacing_shift: nic.pacing_shift,
        };
        let pair = QueuePair {
            tx: Box::new(TransmitQueue { link: self.clone(), end }),
            rx: Box::new(ReceiveQueue { link: self.clone(), end }),
            bulk: None,
            #[cfg(unix)]
            descriptor: None,
        };
        Device {
            name: format!("lab{end}"),
            capabilities,
            queues: vec![pair],
            steering: None,
            monitor: None,
        }
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the NIC of `end` next interrupts its host.
    pub fn next_interrupt(&self, end: usize) -> Instant {
        let wires = self.wires();
        wires.0[end].completion_interrupt().min(wires.0[1 - end].receive_interrupt())
    }

    /// Returns the figures at `now` of what has left from `end` since the start or
    /// [`clear_stats`](Self::clear_stats).
    pub fn stats(&self, end: usize, now: Instant) -> LinkStats {
        self.wires().0[end].stats_at(now)
    }

    /// Whether the time in which the card or the port at `end` was sending is known. It is not
    /// where a trace says when packets leave.
    pub(crate) fn knows_busy(&self, end: usize) -> bool {
        let path = &self.wires().0[end].path;
        !(path.is_wire() && path.config.trace.is_some())
    }

    /// Returns the frames that sockets at `end` gave to the NIC since the last call. They are
    /// recorded from the first call on.
    pub fn trace(&self, end: usize) -> Vec<Departed> {
        self.wires().0[end].trace.replace(Vec::new()).unwrap_or_default()
    }

    /// Returns the packets that left from `end` since the last call. They are kept from the first
    /// call on.
    pub fn capture(&self, end: usize) -> Vec<Captured> {
        self.wires().0[end].path.capture.replace(Vec::new()).unwrap_or_default()
    }

    /// Clears all figures but the digests; they begin anew at `now`.
    pub fn clear_stats(&self, now: Instant) {
        for direction in &mut self.wires().0 {
            direction.clear_stats(now);
        }
    }

    /// Returns whether the wire from `end` carries or will carry something.
    pub fn is_sending(&self, end: usize, now: Instant) -> bool {
        self.wires().0[end].is_sending(now)
    }

    /// Whether the NIC of `end` tells its host of each completion at once.
    pub(crate) fn completes_at_once(&self, end: usize) -> bool {
        self.wires().0[end].completes_at_once()
    }

    /// Returns how many frames are in both rings and packets on their way.
    pub fn contents(&self) -> usize {
        self.wires().0.iter().map(Direction::contents).sum()
    }

    /// Cuts the direction that begins at `end`, so that it loses everything, or repairs it.
    pub fn set_down(&self, end: usize, is_down: bool) {
        self.wires().0[end].path.is_down = is_down;
    }

    /// Sets the rate from `end` on, for packets that are not queued yet. It is that of the hop
    /// behind the NIC, or of the NIC's wire if there is no hop. A trace is not changed.
    pub fn set_rate(&self, end: usize, rate: Rate) {
        self.wires().0[end].set_rate(rate);
    }

    /// Sets the propagation delay from `end` on. The order of packets is kept.
    pub fn set_delay(&self, end: usize, delay: Nanos) {
        self.wires().0[end].path.config.delay = delay;
    }

    /// Sets the random loss of the path that begins at `end`.
    pub fn set_loss(&self, end: usize, loss: Ppm) {
        self.wires().0[end].path.config.loss = loss;
    }

    /// Returns the most bytes that the trace of the path from `end` on lets pass between two times;
    /// `None` if it has no trace.
    pub fn trace_bytes(&self, end: usize, from: Instant, to: Instant) -> Option<u64> {
        self.wires().0[end].path.trace_bytes(from, to)
    }

    /// Returns the bytes that packets have taken of the trace of the path from `end` on, as
    /// [`trace_bytes`](Self::trace_bytes) counts them: a small packet takes less than it has on the
    /// wire. `None` without a trace.
    pub fn trace_used(&self, end: usize, now: Instant) -> Option<u64> {
        self.wires().0[end].trace_used(now)
    }

    /// Returns packets and bytes in the queue of the hop from `end` on.
    pub fn backlog(&self, end: usize, now: Instant) -> (usize, u64) {
        self.wires().0[end].path.backlog(now)
    }

    /// Returns the bytes of the frames that have not yet left the NIC at `end`. Costs O(n) of them.
    pub fn in_ring(&self, end: usize, now: Instant) -> u64 {
        self.wires().0[end].in_ring(now)
    }

    /// When the hop from `end` on, or the router where it leads, wants a turn.
    pub(crate) fn next_turn(&self, end: usize, leads_to_router: bool) -> Instant {
        let path = &self.wires().0[end].path;
        let arrival = if leads_to_router { path.next_arrival() } else { Instant::FAR_FUTURE };
        path.next_event().min(arrival)
    }

    /// The turn of the hop from `end` on.
    pub(crate) fn advance(&self, end: usize, now: Instant) {
        let direction = &mut self.wires().0[end];
        direction.path.advance(now, &mut direction.stats);
    }

    /// The next packet from `end` that has reached the router by `now`.
    pub(crate) fn take_arrived(&self, end: usize, now: Instant) -> Option<(Instant, Box<Packet>)> {
        self.wires().0[end].take_arrived(now)
    }

    /// Sends a packet from the router at `end`.
    pub(crate) fn forward(&self, end: usize, now: Instant, packet: Box<Packet>) {
        let mut wires = self.wires();
        let [first, second] = &mut wires.0;
        let (there, back) = if end == 0 { (first, second) } else { (second, first) };
        there.forward(now, packet, back);
    }
}

/// The sending half of one end's NIC.
struct TransmitQueue {
    link: Link,
    end: usize,
}

impl TxQueue for TransmitQueue {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        self.link.wires().0[self.end].submit(frame, now)
    }

    fn flush(&mut self, now: Instant) {
        let mut wires = self.link.wires();
        let [first, second] = &mut wires.0;
        let (there, back) = if self.end == 0 { (first, second) } else { (second, first) };
        let orphaned = there.ring_doorbell(now, back);
        drop(wires);
        // Credits wake sockets: not under the lock of the link.
        drop(orphaned);
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
struct ReceiveQueue {
    link: Link,
    end: usize,
}

impl RxQueue for ReceiveQueue {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        self.link.wires().0[1 - self.end].receive(now)
    }

    fn next_event(&self) -> Instant {
        self.link.wires().0[1 - self.end].receive_interrupt()
    }
}

#[cfg(test)]
mod tests;
