//! One direction of a link: the ring of the sending NIC, the wire, the path, the receiving NIC.

use super::config::{Coalescing, LinkChange, NicConfig, PathConfig};
use super::offload;
use super::packet::{Packet, on_wire};
use super::path::Path;
use super::service::{Serializer, Trace, Unsent};
use super::stats::{Departed, LinkStats};
use crate::rng::{Rng, mix};
use neap_stack::device::Received;
use neap_stack::frame::Frame;
use neap_stack::gso;
use neap_stack::wire::ChecksumBy;
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::small_queue::TxCredit;
use std::collections::VecDeque;

/// A frame in the ring.
#[derive(Debug)]
struct InRing {
    done: Instant,
    bytes: u64,
    credit: Option<TxCredit>,
}

#[derive(Debug)]
pub(super) struct Direction {
    descriptors: usize,
    rx_descriptors: usize,
    completion_delay: Nanos,
    completes_early: bool,
    /// Credits of frames that were given up early. Whoever rang the doorbell drops them.
    orphaned: Vec<TxCredit>,
    tx_coalescing: Coalescing,
    rx_coalescing: Coalescing,
    receive_offload: offload::ReceiveOffload,
    /// Frames that the NIC took and that wait for the doorbell.
    posted: Vec<(Instant, Frame)>,
    /// Frames that the NIC sends, in the order of their completion.
    ring: VecDeque<InRing>,
    wire: Serializer,
    pub(super) path: Path,
    /// Handed over by the interrupt and not yet taken by the host.
    received: VecDeque<Received>,
    pub(super) stats: LinkStats,
    /// Frames that left since [`Link::trace`](super::Link::trace) was first called.
    pub(super) trace: Option<Vec<Departed>>,
}

impl Direction {
    pub(super) fn new(
        nic: &NicConfig,
        peer: &NicConfig,
        path: &PathConfig,
        rng: &Rng,
        start: Instant,
        is_router: bool,
    ) -> Self {
        Self {
            descriptors: nic.descriptors.max(1),
            rx_descriptors: peer.rx_descriptors.max(1),
            completion_delay: nic.completion_delay,
            completes_early: nic.completes_early,
            orphaned: Vec::new(),
            tx_coalescing: nic.tx_coalescing,
            rx_coalescing: peer.rx_coalescing,
            receive_offload: offload::ReceiveOffload { verifies: peer.checksums, joins: peer.gro },
            posted: Vec::new(),
            ring: VecDeque::new(),
            wire: Serializer::new(path.rate),
            path: Path::new(path, start, rng, is_router),
            received: VecDeque::new(),
            stats: LinkStats::default(),
            trace: None,
        }
    }

    #[expect(clippy::result_large_err, reason = "the frame itself comes back")]
    pub(super) fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        if self.ring.len() + self.posted.len() >= self.descriptors {
            return Err(frame);
        }
        self.posted.push((now, frame));
        Ok(())
    }

    /// Sends what was posted. Answers of routers go to `back`, the opposite direction. The credits
    /// of frames that the card gives up early, which the caller drops.
    #[must_use]
    pub(super) fn ring_doorbell(&mut self, now: Instant, back: &mut Self) -> Vec<TxCredit> {
        let mut posted = core::mem::take(&mut self.posted);
        for (posted, frame) in posted.drain(..) {
            self.transmit(posted, now, frame, back);
        }
        self.posted = posted;
        core::mem::take(&mut self.orphaned)
    }

    fn transmit(&mut self, posted: Instant, now: Instant, mut frame: Frame, back: &mut Self) {
        let mut credit = frame.credit.take();
        let (bytes, departure) = (frame.len() as u64, frame.departure);
        let is_super = frame.gso.is_some();
        let (flow, payload) = (frame.flow, frame.payload.len());
        let mut segments = 0;
        let mut done = now;
        for piece in gso::segment(frame, ChecksumBy::Device) {
            let on_wire = on_wire(&piece);
            let (left, took) = self.wire.push(now, on_wire);
            self.stats.on_wire(on_wire, took);
            segments += 1;
            done = left;
            let packet = Box::new(Packet { frame: piece, flipped: None });
            self.carry([now, left], packet, on_wire, back);
        }
        self.stats.packets += segments;
        self.stats.digest = mix(self.stats.digest ^ done.as_nanos() ^ bytes.rotate_left(40));
        if credit.is_some() {
            self.stats.frames += 1;
            self.stats.super_frames += u64::from(is_super);
            self.stats.segments += segments;
            // Datagrams have no stamp: the NIC is the first place that knows them.
            let departure = if departure == Instant::ZERO { posted } else { departure };
            let below = done.since(departure);
            self.stats.below.record(below);
            self.stats.in_ring.record(done.since(posted));
            if let Some(trace) = &mut self.trace {
                trace.push(Departed { at: posted, flow, bytes: payload, below });
            }
        }
        if self.completes_early {
            self.orphaned.extend(credit.take());
        }
        self.ring.push_back(InRing { done: done + self.completion_delay, bytes, credit });
    }

    /// A packet leaves the card or comes to a router at the second time; the first is now.
    fn carry(&mut self, at: [Instant; 2], packet: Box<Packet>, on_wire: u64, back: &mut Self) {
        let way_back = back.path.config.delay;
        if let Some((at, answer)) = self.path.enter(at, packet, on_wire, way_back, &mut self.stats)
        {
            back.stats.answered += 1;
            back.path.arrive(at, answer);
        }
    }

    /// A router at this end sends a packet on.
    pub(super) fn forward(&mut self, now: Instant, packet: Box<Packet>, back: &mut Self) {
        let on_wire = on_wire(&packet.frame);
        self.stats.packets += 1;
        let bytes = packet.frame.len() as u64;
        self.stats.digest = mix(self.stats.digest ^ now.as_nanos() ^ bytes.rotate_left(40));
        self.carry([now, now], packet, on_wire, back);
    }

    /// A packet of a device of the real world. The card that it has left is that of the path, if
    /// there is a slower hop behind it.
    pub(super) fn enter_from_outside(
        &mut self,
        now: Instant,
        packet: Box<Packet>,
        back: &mut Self,
    ) {
        let on_wire = on_wire(&packet.frame);
        self.stats.packets += 1;
        let hop = self.path.config.bottleneck.as_ref();
        let has_card = hop.is_some_and(|hop| hop.rate < self.path.config.rate);
        let at = if has_card { self.wire.push(now, on_wire).0 } else { now };
        self.carry([now, at], packet, on_wire, back);
    }

    /// Changes the direction while it runs.
    pub(super) fn apply(&mut self, change: &LinkChange) {
        if let Some(rate) = change.rate {
            self.set_rate(rate);
        }
        if let Some(delay) = change.delay {
            self.path.config.delay = delay;
        }
        if let Some(loss) = change.loss {
            self.path.config.loss = loss;
        }
        if let Some(is_down) = change.is_down {
            self.path.is_down = is_down;
        }
    }

    /// What was counted as sent and has not left at `now`.
    fn unsent(&self, now: Instant) -> Unsent {
        let of_card = self.wire.unsent(now);
        let of_port = self.path.unsent(now).filter(|_| self.path.is_wire()).unwrap_or_default();
        Unsent {
            time: of_card.time + of_port.time,
            bytes: of_card.bytes + of_port.bytes,
            traced: of_port.traced,
        }
    }

    /// What was counted as carried and has not left hop or card at `now`.
    fn uncarried(&self, now: Instant) -> Unsent {
        self.path.unsent(now).unwrap_or_else(|| self.wire.unsent(now))
    }

    /// The figures at `now`.
    pub(super) fn stats_at(&self, now: Instant) -> LinkStats {
        let (mut stats, unsent) = (self.stats.clone(), self.unsent(now));
        stats.busy = Nanos(stats.busy.0.saturating_sub(unsent.time.0));
        stats.wire_bytes = stats.wire_bytes.saturating_sub(unsent.bytes);
        let uncarried = self.uncarried(now);
        stats.carried_bytes = stats.carried_bytes.saturating_sub(uncarried.bytes);
        stats
    }

    /// Bytes that packets have taken of the trace by `now`; `None` without a trace.
    pub(super) fn trace_used(&self, now: Instant) -> Option<u64> {
        self.path.config.trace.as_ref()?;
        let left = self.stats.traced.saturating_sub(self.uncarried(now).traced);
        Some(Trace::on_wire(left))
    }

    /// Begins anew at `now`: what is still to be sent counts from here on.
    pub(super) fn clear_stats(&mut self, now: Instant) {
        let Unsent { time, bytes, .. } = self.unsent(now);
        let uncarried = self.uncarried(now);
        self.stats.clear();
        self.stats.on_wire(bytes, time);
        self.stats.carried(uncarried.bytes, uncarried.traced);
    }

    pub(super) fn completes_at_once(&self) -> bool {
        self.completion_delay == Nanos::ZERO && self.tx_coalescing == Coalescing::NONE
    }

    /// When the NIC tells its host of completions. O(1).
    pub(super) fn completion_interrupt(&self) -> Instant {
        let at = |index: usize| self.ring.get(index).map(|frame| frame.done);
        interrupt(self.tx_coalescing, at)
    }

    /// Takes out what is complete, if the interrupt has come: bytes and credits.
    pub(super) fn take_completed(&mut self, now: Instant) -> Vec<(u64, Option<TxCredit>)> {
        if self.completion_interrupt() > now {
            return Vec::new();
        }
        self.stats.tx_interrupts += 1;
        let count = self.ring.iter().take_while(|frame| frame.done <= now).count();
        self.ring.drain(..count).map(|frame| (frame.bytes, frame.credit)).collect()
    }

    /// When the receiving NIC tells its host of packets. O(1).
    pub(super) fn receive_interrupt(&self) -> Instant {
        if !self.received.is_empty() {
            return Instant::ZERO;
        }
        let at = |index: usize| self.path.arrivals.get(index).map(|&(at, _)| at);
        interrupt(self.rx_coalescing, at)
    }

    pub(super) fn receive(&mut self, now: Instant) -> Option<Received> {
        if self.received.is_empty() && self.receive_interrupt() <= now {
            self.stats.rx_interrupts += 1;
            let arrivals = &mut self.path.arrivals;
            let count = arrivals.iter().take_while(|&&(at, _)| at <= now).count();
            let kept = count.min(self.rx_descriptors);
            let arrived = arrivals.range(..kept).map(|(_, packet)| &**packet);
            self.receive_offload.hand_over(arrived, &mut self.received);
            arrivals.drain(..count);
            self.stats.ring_drops += (count - kept) as u64;
            self.stats.delivered += kept as u64;
        }
        self.received.pop_front()
    }

    /// The packets that have arrived at a router by `now`, one by one.
    pub(super) fn take_arrived(&mut self, now: Instant) -> Option<(Instant, Box<Packet>)> {
        let is_there = self.path.next_arrival() <= now;
        let packet = is_there.then(|| self.path.arrivals.pop_front()).flatten();
        self.stats.delivered += u64::from(packet.is_some());
        packet
    }

    /// As [`take_arrived`](Self::take_arrived), if the next packet is one that the caller wants.
    pub(super) fn take_arrived_if(
        &mut self,
        now: Instant,
        is_wanted: impl FnOnce(&Packet) -> bool,
    ) -> Option<(Instant, Box<Packet>)> {
        let (at, packet) = self.path.arrivals.front()?;
        if *at > now || !is_wanted(packet) {
            return None;
        }
        self.take_arrived(now)
    }

    pub(super) fn in_ring(&self, now: Instant) -> u64 {
        let is_there = |frame: &&InRing| frame.done > now + self.completion_delay;
        let posted = self.posted.iter().map(|(_, frame)| frame.len() as u64);
        posted.chain(self.ring.iter().filter(is_there).map(|frame| frame.bytes)).sum()
    }

    pub(super) fn is_sending(&self, now: Instant) -> bool {
        self.wire.free > now || !self.posted.is_empty()
    }

    pub(super) fn contents(&self) -> usize {
        self.posted.len() + self.ring.len() + self.path.contents() + self.received.len()
    }

    /// Changes the rate of the hop behind the NIC, or of the NIC's wire where there is none.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        if !self.path.set_rate(rate) {
            self.wire.set_rate(rate);
        }
    }
}

/// When the interrupt for the events at these times comes, in order of time.
fn interrupt(coalescing: Coalescing, at: impl Fn(usize) -> Option<Instant>) -> Instant {
    let Some(first) = at(0) else { return Instant::FAR_FUTURE };
    if coalescing.delay == Nanos::ZERO || coalescing.frames <= 1 {
        return first;
    }
    let by_count = at(coalescing.frames as usize - 1).unwrap_or(Instant::FAR_FUTURE);
    (first + coalescing.delay).min(by_count)
}
