//! The path of a packet from the wire of one end to the other end: hop, impairments, delay.
//!
//! Loss, damage and duplication come behind the hop, as on a bad wire behind a queue: what is lost
//! has used the rate, and a second packet uses none.

use super::config::PathConfig;
use super::forward;
use super::impairment::{ImpairmentRngs, LossModel};
use super::offload;
use super::packet::{self, Packet};
use super::queue::{Bucket, Hop};
use super::service::Unsent;
use super::stats::{Captured, LinkStats};
use crate::rng::Rng;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::collections::VecDeque;

/// A path at work. Cost: O(1) per packet; one that is overtaken costs a step for each that passes.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) config: PathConfig,
    start: Instant,
    policer: Option<Bucket>,
    hop: Option<Hop>,
    loss_model: LossModel,
    rngs: ImpairmentRngs,
    last_arrival: Instant,
    /// Packets that are on their way to the end, in the order of their arrival.
    pub(super) arrivals: VecDeque<(Instant, Box<Packet>)>,
    /// Packets that the hop has let out in this turn.
    leaving: Vec<(Instant, Box<Packet>)>,
    pub(super) is_down: bool,
    /// The hop is the port of a router, so that packets leave when it lets them out.
    is_port: bool,
    /// Packets that left since [`Link::capture`](super::Link::capture) was first called.
    pub(super) capture: Option<Vec<Captured>>,
}

impl Path {
    pub(super) fn new(config: &PathConfig, start: Instant, rng: &Rng, is_router: bool) -> Self {
        Self {
            start,
            policer: config.policer.map(Bucket::new),
            hop: Hop::of(config, start, is_router),
            loss_model: LossModel::default(),
            rngs: ImpairmentRngs::new(rng),
            last_arrival: Instant::ZERO,
            arrivals: VecDeque::new(),
            leaving: Vec::new(),
            is_down: false,
            is_port: is_router,
            capture: None,
            config: config.clone(),
        }
    }

    /// A packet comes from the wire or from a router `at` this time, which is `now` or later. What
    /// is too big is answered: the packet that a router sends back, and when it arrives, if `back`
    /// is the delay of the opposite direction.
    pub(super) fn enter(
        &mut self,
        [now, at]: [Instant; 2],
        packet: Box<Packet>,
        on_wire: u64,
        back: Nanos,
        stats: &mut LinkStats,
    ) -> Option<(Instant, Box<Packet>)> {
        if !self.is_port {
            self.record(at, &packet);
        }
        let len = packet::network_len(&packet.frame);
        if let Some(mtu) = self.config.mtu.filter(|&mtu| len > usize::from(mtu)) {
            stats.too_big += 1;
            let frame = forward::too_big(&packet.frame, mtu)?;
            let answer = Box::new(Packet { frame, flipped: None });
            return Some((at + self.config.delay / 2 + back / 2, answer));
        }
        if self.policer.as_mut().is_some_and(|bucket| !bucket.admits(at, on_wire)) {
            stats.policed += 1;
            return None;
        }
        let Some(hop) = &mut self.hop else {
            stats.carried(on_wire, 0);
            self.carry(at, packet, stats);
            return None;
        };
        let early = &mut self.rngs.early;
        if let Some((at, packet)) = hop.enter([now, at], packet, on_wire, early, stats) {
            self.carry(at, packet, stats);
        }
        None
    }

    /// Captures a packet whose last bit has left the card or the port at `at`.
    fn record(&mut self, at: Instant, Packet { frame, .. }: &Packet) {
        if let Some(capture) = &mut self.capture {
            let headers = frame.headers.as_slice().into();
            let is_sound = offload::is_sound(frame);
            capture.push(Captured { at, headers, len: frame.len() as u32, is_sound });
        }
    }

    /// What happens to a packet whose last bit left the last hop at `at`.
    fn carry(&mut self, at: Instant, mut packet: Box<Packet>, stats: &mut LinkStats) {
        if self.is_port {
            self.record(at, &packet);
        }
        let is_lost = self.loss_model.takes(&self.config, &mut self.rngs, at, self.start);
        if self.is_down || is_lost {
            stats.lost += 1;
            return;
        }
        let (path, rngs) = (&self.config, &mut self.rngs);
        if rngs.marks.chance(path.congestion_marks) && packet.frame.set_ce() {
            stats.marked += 1;
        }
        // Behind all before it, though the delay has become less.
        let arrival = at + path.delay + rngs.jitter.time(path.jitter);
        let mut arrival = arrival.max(self.last_arrival);
        if rngs.reordering.chance(path.reordering) {
            stats.reordered += 1;
            arrival += rngs.reordering.time(path.reorder_delay);
        } else {
            self.last_arrival = arrival;
        }
        if rngs.duplication.chance(path.duplication) {
            stats.duplicated += 1;
            let again = arrival + rngs.duplication.time(path.reorder_delay);
            let twin = Box::new(Packet { frame: packet::copy(&packet.frame), flipped: None });
            insert(&mut self.arrivals, again, twin);
        }
        if self.rngs.corruption.chance(self.config.corruption) {
            stats.corrupted += 1;
            let bits = packet::network_len(&packet.frame) as u64 * 8;
            packet.flipped = Some(self.rngs.corruption.below(bits));
        }
        insert(&mut self.arrivals, arrival, packet);
    }

    /// A packet that a router on the way sends.
    pub(super) fn arrive(&mut self, at: Instant, packet: Box<Packet>) {
        insert(&mut self.arrivals, at, packet);
    }

    /// When the hop wants a turn.
    pub(super) fn next_event(&self) -> Instant {
        self.hop.as_ref().map_or(Instant::FAR_FUTURE, Hop::next_event)
    }

    pub(super) fn next_arrival(&self) -> Instant {
        self.arrivals.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at)
    }

    /// The hop's turn.
    pub(super) fn advance(&mut self, now: Instant, stats: &mut LinkStats) {
        let Some(hop) = &mut self.hop else { return };
        let mut leaving = core::mem::take(&mut self.leaving);
        hop.advance(now, stats, &mut leaving);
        for (at, packet) in leaving.drain(..) {
            self.carry(at, packet, stats);
        }
        self.leaving = leaving;
    }

    /// What the hop has counted as carried and has not let out at `now`; `None` without a hop.
    pub(super) fn unsent(&self, now: Instant) -> Option<Unsent> {
        self.hop.as_ref().map(|hop| hop.unsent(now))
    }

    /// Whether the hop is the wire that figures are about: no card comes before it.
    pub(super) fn is_wire(&self) -> bool {
        self.is_port
    }

    /// Most bytes that the trace lets pass between two times; `None` without a trace.
    pub(super) fn trace_bytes(&self, from: Instant, to: Instant) -> Option<u64> {
        let trace = self.config.trace.as_ref()?;
        Some(trace.bytes_between(from.since(self.start), to.since(self.start)))
    }

    /// Packets and bytes in the hop's queue.
    pub(super) fn backlog(&self, now: Instant) -> (usize, u64) {
        self.hop.as_ref().map_or((0, 0), |hop| hop.backlog(now))
    }

    pub(super) fn contents(&self) -> usize {
        self.arrivals.len() + self.hop.as_ref().map_or(0, Hop::contents)
    }

    /// Changes the rate of the hop; false if there is none.
    pub(super) fn set_rate(&mut self, rate: Rate) -> bool {
        self.hop.as_mut().map(|hop| hop.set_rate(rate)).is_some()
    }
}

/// Inserts behind everything that arrives no later.
fn insert(arrivals: &mut VecDeque<(Instant, Box<Packet>)>, at: Instant, packet: Box<Packet>) {
    let passed = arrivals.iter().rev().take_while(|&&(other, _)| other > at).count();
    if passed == 0 {
        arrivals.push_back((at, packet));
    } else {
        arrivals.insert(arrivals.len() - passed, (at, packet));
    }
}
