//! One direction of a link: the ring of the sending NIC, the wire, the receiving NIC.

use super::{Bottleneck, Coalescing, NicConfig, PathConfig, offload, router};
use crate::histogram::Times;
use crate::rng::{Rng, mix};
use neap_stack::device::Received;
use neap_stack::frame::Frame;
use neap_stack::gso;
use neap_stack::wire::ChecksumBy;
use neap_tcp::time::{Instant, Nanos, Rate};
use neap_tcp::transmit::small_queue::TxCredit;
use std::collections::{BTreeMap, VecDeque};

/// Ethernet's header.
const ETHERNET_HEADER: u64 = 14;
/// Shortest Ethernet frame without its check sequence.
const ETHERNET_MIN: u64 = 60;
/// Preamble 8, frame check sequence 4, gap 12.
const ETHERNET_WIRE: u64 = 24;

/// What has left in one direction.
#[derive(Clone, Debug, Default)]
pub struct LinkStats {
    /// Frames that a socket accounts for, super-frames counted once.
    pub frames: u64,
    /// Of these, super-frames.
    pub super_frames: u64,
    /// Wire segments of these frames.
    pub segments: u64,
    /// All wire segments, pure ACKs included.
    pub packets: u64,
    /// Time in which the wire carried something.
    pub busy: Nanos,
    /// Lost at random.
    pub lost: u64,
    /// Dropped by the bottleneck's queue.
    pub dropped: u64,
    /// Too big for a hop.
    pub too_big: u64,
    /// With a flipped bit.
    pub corrupted: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed while others passed.
    pub reordered: u64,
    /// Marked CE.
    pub marked: u64,
    /// Delay below the socket: from a frame's departure from TCP to its last bit on the wire.
    pub below: Times,
    /// The part of it in the NIC's ring.
    pub in_ring: Times,
    /// Hash of when each frame left and how long it was.
    pub digest: u64,
}

impl LinkStats {
    pub(super) fn clear(&mut self) {
        *self = Self { digest: self.digest, ..Self::default() };
    }
}

/// A frame with data of a socket, as the NIC got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departed {
    /// When.
    pub at: Instant,
    /// The socket's flow.
    pub flow: u64,
    /// Bytes of payload.
    pub bytes: u32,
}

/// Puts one packet behind the other. Fractions of a nanosecond are carried on, so that the rate is
/// exact.
#[derive(Debug)]
struct Serializer {
    rate: Rate,
    free: Instant,
    fraction: u128,
}

impl Serializer {
    fn new(rate: Rate) -> Self {
        Self { rate: Rate(rate.0.max(1)), free: Instant::ZERO, fraction: 0 }
    }

    /// When the last bit of a packet that is ready at `ready` has left, and how long it took.
    fn push(&mut self, ready: Instant, bytes: u64) -> (Instant, Nanos) {
        if self.free < ready {
            (self.free, self.fraction) = (ready, 0);
        }
        let units = u128::from(bytes) * 1_000_000_000 + self.fraction;
        let rate = u128::from(self.rate.0);
        self.fraction = units % rate;
        let took = Nanos((units / rate) as u64);
        self.free += took;
        (self.free, took)
    }
}

/// A slower hop: what waits there, with the time at which each packet has left.
#[derive(Debug)]
struct Hop {
    limits: Bottleneck,
    out: Serializer,
    waiting: VecDeque<(Instant, u64)>,
    bytes: u64,
}

impl Hop {
    fn new(limits: Bottleneck) -> Self {
        let out = Serializer::new(limits.rate);
        Self { limits, out, waiting: VecDeque::new(), bytes: 0 }
    }

    /// When a packet that comes at `at` has left; `None` if there is no room for it.
    fn push(&mut self, at: Instant, bytes: u64) -> Option<Instant> {
        while self.waiting.front().is_some_and(|&(left, _)| left <= at) {
            self.bytes -= self.waiting.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        let has_room =
            self.waiting.len() < self.limits.packets && self.bytes + bytes <= self.limits.bytes;
        (has_room || self.waiting.is_empty()).then(|| {
            let (left, _) = self.out.push(at, bytes);
            self.waiting.push_back((left, bytes));
            self.bytes += bytes;
            left
        })
    }
}

/// A packet on its way.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) frame: Frame,
    /// The bit that the wire flipped.
    pub(super) flipped: Option<u64>,
}

/// A frame in the ring.
#[derive(Debug)]
struct InRing {
    done: Instant,
    bytes: u64,
    credit: Option<TxCredit>,
}

/// Dice, one for each kind of accident.
#[derive(Debug)]
struct Dice {
    loss: Rng,
    corruption: Rng,
    duplication: Rng,
    reordering: Rng,
    jitter: Rng,
    marks: Rng,
}

#[derive(Debug)]
pub(super) struct Direction {
    path: PathConfig,
    descriptors: usize,
    tx_coalescing: Coalescing,
    rx_coalescing: Coalescing,
    receiver: offload::Receiver,
    dice: Dice,
    /// Taken, and waiting for the doorbell.
    posted: Vec<(Instant, Frame)>,
    /// In the order of their completion.
    ring: VecDeque<InRing>,
    wire: Serializer,
    hop: Option<Hop>,
    last_arrival: Instant,
    /// By time and order.
    arrivals: BTreeMap<(Instant, u64), Packet>,
    arrived: u64,
    /// Handed over by the interrupt and not yet taken by the host.
    received: VecDeque<Received>,
    pub(super) is_down: bool,
    pub(super) stats: LinkStats,
    /// What left since somebody began to take notes.
    pub(super) trace: Option<Vec<Departed>>,
}

impl Direction {
    pub(super) fn new(nic: &NicConfig, peer: &NicConfig, path: &PathConfig, rng: &Rng) -> Self {
        Self {
            descriptors: nic.descriptors.max(1),
            tx_coalescing: nic.tx_coalescing,
            rx_coalescing: peer.rx_coalescing,
            receiver: offload::Receiver { verifies: peer.checksums, joins: peer.gro },
            dice: Dice {
                loss: rng.fork(1),
                corruption: rng.fork(2),
                duplication: rng.fork(3),
                reordering: rng.fork(4),
                jitter: rng.fork(5),
                marks: rng.fork(6),
            },
            posted: Vec::new(),
            ring: VecDeque::new(),
            wire: Serializer::new(path.rate),
            hop: path.bottleneck.clone().map(Hop::new),
            last_arrival: Instant::ZERO,
            arrivals: BTreeMap::new(),
            arrived: 0,
            received: VecDeque::new(),
            is_down: false,
            stats: LinkStats::default(),
            trace: None,
            path: path.clone(),
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

    /// Sends what was posted; routers answer on the way `back`.
    pub(super) fn ring_doorbell(&mut self, now: Instant, back: &mut Self) {
        for (posted, frame) in core::mem::take(&mut self.posted) {
            self.transmit(posted, now, frame, back);
        }
    }

    fn transmit(&mut self, posted: Instant, now: Instant, mut frame: Frame, back: &mut Self) {
        let credit = frame.credit.take();
        let (bytes, departure) = (frame.len() as u64, frame.departure);
        if let Some(trace) = &mut self.trace
            && credit.is_some()
        {
            trace.push(Departed { at: posted, flow: frame.flow, bytes: frame.payload.len() });
        }
        let is_super = frame.gso.is_some();
        let mut segments = 0;
        let mut done = now;
        for piece in gso::segment(frame, ChecksumBy::Device) {
            let on_wire = (piece.len() as u64 + ETHERNET_HEADER).max(ETHERNET_MIN) + ETHERNET_WIRE;
            let (left, took) = self.wire.push(now, on_wire);
            self.stats.busy = self.stats.busy + took;
            segments += 1;
            done = left;
            self.carry(piece, left, on_wire, back);
        }
        self.stats.packets += segments;
        self.stats.digest = mix(self.stats.digest ^ done.as_nanos() ^ bytes.rotate_left(40));
        if credit.is_some() {
            self.stats.frames += 1;
            self.stats.super_frames += u64::from(is_super);
            self.stats.segments += segments;
            self.stats.below.record(done.since(departure));
            self.stats.in_ring.record(done.since(posted));
        }
        self.ring.push_back(InRing { done, bytes, credit });
    }

    /// What happens to a segment whose last bit left at `at`.
    fn carry(&mut self, mut packet: Frame, at: Instant, on_wire: u64, back: &mut Self) {
        if let Some(mtu) = self.path.mtu.filter(|&mtu| packet.len() > usize::from(mtu)) {
            self.stats.too_big += 1;
            if let Some(answer) = router::too_big(&packet, mtu) {
                let arrival = at + self.path.delay / 2 + back.path.delay / 2;
                back.arrive(arrival, Packet { frame: answer, flipped: None });
            }
            return;
        }
        let at = match self.hop.as_mut().map_or(Some(at), |hop| hop.push(at, on_wire)) {
            Some(at) => at,
            None => {
                self.stats.dropped += 1;
                return;
            }
        };
        if self.is_down || self.dice.loss.chance(self.path.loss) {
            self.stats.lost += 1;
            return;
        }
        if self.dice.marks.chance(self.path.congestion_marks) && router::mark(&mut packet) {
            self.stats.marked += 1;
        }
        let mut arrival = at + self.path.delay + self.dice.jitter.time(self.path.jitter);
        if self.dice.reordering.chance(self.path.reordering) {
            self.stats.reordered += 1;
            arrival += self.dice.reordering.time(self.path.reorder_delay);
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        if self.dice.duplication.chance(self.path.duplication) {
            self.stats.duplicated += 1;
            let again = arrival + self.dice.duplication.time(self.path.reorder_delay);
            self.arrive(again, Packet { frame: copy(&packet), flipped: None });
        }
        let mut flipped = None;
        if self.dice.corruption.chance(self.path.corruption) {
            self.stats.corrupted += 1;
            flipped = Some(self.dice.corruption.below(packet.len() as u64 * 8));
        }
        self.arrive(arrival, Packet { frame: packet, flipped });
    }

    fn arrive(&mut self, at: Instant, packet: Packet) {
        self.arrived += 1;
        self.arrivals.insert((at, self.arrived), packet);
    }

    /// When the NIC tells its host of completions.
    pub(super) fn completion_interrupt(&self) -> Instant {
        let done = self.ring.iter().map(|frame| frame.done);
        interrupt(self.tx_coalescing, done)
    }

    /// Takes out what is complete, if the interrupt has come: bytes and credits.
    pub(super) fn take_completed(&mut self, now: Instant) -> Vec<(u64, Option<TxCredit>)> {
        if self.completion_interrupt() > now {
            return Vec::new();
        }
        let count = self.ring.iter().take_while(|frame| frame.done <= now).count();
        self.ring.drain(..count).map(|frame| (frame.bytes, frame.credit)).collect()
    }

    /// When the receiving NIC tells its host of packets.
    pub(super) fn receive_interrupt(&self) -> Instant {
        if !self.received.is_empty() {
            return Instant::ZERO;
        }
        interrupt(self.rx_coalescing, self.arrivals.keys().map(|&(at, _)| at))
    }

    pub(super) fn receive(&mut self, now: Instant) -> Option<Received> {
        if self.received.is_empty() && self.receive_interrupt() <= now {
            let later = self.arrivals.split_off(&(now + Nanos(1), 0));
            let arrived = core::mem::replace(&mut self.arrivals, later);
            self.receiver.hand_over(arrived.into_values(), &mut self.received);
        }
        self.received.pop_front()
    }

    pub(super) fn is_sending(&self, now: Instant) -> bool {
        self.wire.free > now || !self.posted.is_empty()
    }

    pub(super) fn contents(&self) -> usize {
        self.posted.len() + self.ring.len() + self.arrivals.len() + self.received.len()
    }
}

/// When the interrupt for events at these times comes, in order of time.
fn interrupt(coalescing: Coalescing, mut times: impl Iterator<Item = Instant>) -> Instant {
    let Some(first) = times.next() else { return Instant::FAR_FUTURE };
    if coalescing.delay == Nanos::ZERO || coalescing.frames <= 1 {
        return first;
    }
    let by_count = times.nth(coalescing.frames as usize - 2).unwrap_or(Instant::FAR_FUTURE);
    (first + coalescing.delay).min(by_count)
}

/// The same packet once more.
fn copy(packet: &Frame) -> Frame {
    Frame {
        headers: packet.headers.clone(),
        payload: packet.payload.clone(),
        credit: None,
        ..*packet
    }
}
