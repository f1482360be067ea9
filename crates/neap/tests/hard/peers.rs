//! Peers that complete their handshakes and then misbehave: those of the lab, over a real device,
//! and peers that leave orphans behind.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use neap_lab::hostile::{Attack, AttackPlan, Attacker, packet};
use neap_lab::rng::Rng;
use neap_lab::world::{Actor, Outbox};
use neap_tcp::segment::{Flags, Options, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};

use crate::common::Family;
use crate::ground::{Foe, Ground, at, foe_address, for_each_family};
use crate::victim::{DAYTIME, DISCARD, ECHO, SOURCE};

/// Bytes of buffers and threads of the victim for each connection of a peer that lets it send:
/// `tcp_wmem` and the overhead of its pages.
pub(crate) const SENDER: u64 = 6 << 20;
/// The same for a peer that only sends.
pub(crate) const RECEIVER: u64 = 1 << 20;
/// What an attack may cost in any case.
pub(crate) const BASE: u64 = 16 << 20;

/// An attack by so many connections to `port`, each of which sends `bytes`.
fn endure(family: Family, attack: Attack, port: u16, count: u32, bytes: u32, each: u64) {
    endure_on(Ground::new(family), family, attack, port, count, bytes, each);
}

/// As [`endure`], on a ground that is there.
pub(crate) fn endure_on(
    ground: Ground,
    family: Family,
    attack: Attack,
    port: u16,
    count: u32,
    bytes: u32,
    each: u64,
) {
    let (mut foe, plan) = Attacker::new(Rng::new(2));
    *plan.borrow_mut() = Some(AttackPlan {
        attack,
        own: foe_address(family),
        victim: at(family, port),
        start: Instant::ZERO,
        stop: Instant::FAR_FUTURE,
        interval: Nanos::from_millis(10),
        // No more than 20,000 segments per second of all connections.
        burst: (200 / count).min(20),
        count,
        bytes,
        target: None,
    });
    ground.endure(BASE + u64::from(count) * each, &mut foe);
}

for_each_family! {
    windows_of_zero, windows_that_shrink, storms_of_sack, reneging, a_tiny_mss, optimistic_acks,
    acks_in_many_parts, tiny_segments, segments_of_any_kind, data_that_overlaps,
    timestamps_of_the_future, orphans,
}

fn windows_of_zero(family: Family) {
    endure(family, Attack::NeverReads, SOURCE, 50, 0, SENDER);
}

fn windows_that_shrink(family: Family) {
    endure(family, Attack::WindowShrink, SOURCE, 4, 0, SENDER);
}

fn storms_of_sack(family: Family) {
    endure(family, Attack::SackLies, SOURCE, 4, 0, SENDER);
}

fn reneging(family: Family) {
    endure(family, Attack::Reneging, SOURCE, 4, 0, SENDER);
}

fn a_tiny_mss(family: Family) {
    endure(family, Attack::TinyMss, SOURCE, 4, 0, SENDER);
}

fn optimistic_acks(family: Family) {
    endure(family, Attack::OptimisticAck, SOURCE, 4, 0, SENDER);
}

fn acks_in_many_parts(family: Family) {
    endure(family, Attack::AckDivision, SOURCE, 4, 0, SENDER);
}

fn tiny_segments(family: Family) {
    endure(family, Attack::TinySegments, DISCARD, 50, 200_000, RECEIVER);
}

fn segments_of_any_kind(family: Family) {
    endure(family, Attack::SegmentFlood, ECHO, 20, 200_000, SENDER);
}

fn data_that_overlaps(family: Family) {
    endure(family, Attack::Overlap, DISCARD, 20, 200_000, RECEIVER);
}

fn timestamps_of_the_future(family: Family) {
    endure(family, Attack::FutureTimestamps, DISCARD, 20, 200_000, RECEIVER);
}

/// Connections per second of a peer that leaves orphans.
const ORPHANS: u64 = 1000;
/// Memory of an orphan, in bytes.
const ORPHAN: u64 = 8 << 10;

/// A peer that opens connections, has the victim close them, and says nothing more.
struct Vanishing {
    rng: Rng,
    next: Instant,
    own: IpAddr,
    victim: SocketAddr,
    port: u16,
    /// Own numbers of the connections.
    numbers: BTreeMap<SocketAddr, SeqNumber>,
}

impl Actor for Vanishing {
    fn receive(&mut self, _: Instant, data: &Bytes, out: &mut Outbox) {
        let Some((from, to, segment)) = packet::parse(data) else { return };
        let Some(&iss) = self.numbers.get(&to) else { return };
        if segment.flags.contains(Flags::SYN | Flags::ACK) {
            let ack = Segment {
                seq: iss + 1,
                ack: segment.seq + 1,
                flags: Flags::ACK,
                window: 1000,
                ..Segment::default()
            };
            out.extend(packet::emit(to, from, ack));
        }
    }

    fn next(&self) -> Instant {
        self.next
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        self.next = (self.next + Nanos(1_000_000_000 / ORPHANS)).max(now);
        self.port = self.port.checked_add(1).unwrap_or(1024);
        let own = SocketAddr::new(self.own, self.port);
        let iss = SeqNumber(self.rng.next_u64() as u32);
        self.numbers.insert(own, iss);
        let options = Options { mss: Some(1460), ..Options::default() };
        let syn =
            Segment { seq: iss, flags: Flags::SYN, window: 1000, options, ..Segment::default() };
        out.extend(packet::emit(own, self.victim, syn));
    }
}

impl Foe for Vanishing {
    fn part(&mut self, _: Instant, out: &mut Outbox) {
        for (own, iss) in &self.numbers {
            let reset = Segment { seq: *iss + 1, flags: Flags::RST, ..Segment::default() };
            out.extend(packet::emit(*own, self.victim, reset));
        }
    }
}

fn orphans(family: Family) {
    let ground = Ground::new(family);
    let mut foe = Vanishing {
        rng: Rng::new(3),
        next: Instant::ZERO,
        own: foe_address(family),
        victim: at(family, DAYTIME),
        port: 1023,
        numbers: BTreeMap::new(),
    };
    let most = (crate::ground::length().as_secs_f64() * ORPHANS as f64).min(64_512.0) as u64;
    ground.endure(BASE + most * ORPHAN, &mut foe);
}
