//! The attacker: which segments it sends, and when.

use super::connection::{AttackConnection, Phase};
use super::{Attack, packet};
use crate::rng::{Ppm, Rng};
use crate::world::{Actor, Outbox};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_tcp::segment::{Flags, SackBlock, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What an honest peer asks for: Ethernet's.
const MSS: u16 = 1460;

/// How often what got lost is sent again.
const PATIENCE: Nanos = Nanos::from_millis(500);

/// The parts into which an ACK is divided.
const PARTS: u32 = 32;

/// The sessions whose packets are forged: from and to.
pub(crate) type Target = Rc<dyn Fn() -> Option<(SocketAddr, SocketAddr)>>;

/// What an attacker is to do.
#[derive(Clone)]
pub(crate) struct Orders {
    pub(crate) attack: Attack,
    /// Its own address, and the victim's.
    pub(crate) own: IpAddr,
    pub(crate) victim: SocketAddr,
    /// From when until when.
    pub(crate) span: (Instant, Instant),
    /// Between two turns, and what is sent in one.
    pub(crate) interval: Nanos,
    pub(crate) burst: u32,
    /// Connections.
    pub(crate) count: u32,
    /// Bytes that each of them sends.
    pub(crate) bytes: u32,
    /// A connection of somebody else.
    pub(crate) target: Option<Target>,
}

/// One who attacks a host, once it has orders.
pub(crate) struct Attacker {
    orders: Rc<RefCell<Option<Orders>>>,
    rng: Rng,
    /// By their own address and the victim's.
    connections: BTreeMap<(SocketAddr, SocketAddr), AttackConnection>,
    is_begun: bool,
    /// MSS that the attacker asks for if it asks for little.
    mss: u16,
    next: Instant,
    again: Instant,
}

impl Attacker {
    /// It waits for orders, which must come before the world begins.
    pub(crate) fn new(mut rng: Rng) -> (Self, Rc<RefCell<Option<Orders>>>) {
        let orders = Rc::default();
        let attacker = Self {
            orders: Rc::clone(&orders),
            mss: rng.pick(&[1, 8, 48, 64, 88]),
            rng,
            connections: BTreeMap::new(),
            is_begun: false,
            next: Instant::ZERO,
            again: Instant::ZERO,
        };
        (attacker, orders)
    }

    /// Calls the victim with all connections.
    fn begin(&mut self, now: Instant, orders: &Orders, out: &mut Outbox) {
        let opens = !orders.attack.is_called()
            && !matches!(orders.attack, Attack::Blind | Attack::SynFlood);
        for index in 0..if opens { orders.count } else { 0 } {
            let own = SocketAddr::new(orders.own, 20_000 + index as u16);
            let connection = AttackConnection::new(own, orders.victim, &mut self.rng);
            send(&connection, connection.syn(now, self.mss(orders), false), out);
            self.connections.insert((own, orders.victim), connection);
        }
    }

    fn mss(&self, orders: &Orders) -> u16 {
        if orders.attack == Attack::TinyMss { self.mss } else { MSS }
    }

    /// A segment of the victim.
    fn answer(
        &mut self,
        now: Instant,
        orders: &Orders,
        (from, to, segment): (SocketAddr, SocketAddr, Segment),
        out: &mut Outbox,
    ) {
        let key = (to, from);
        let is_syn = segment.flags & (Flags::SYN | Flags::ACK) == Flags::SYN;
        let is_new = is_syn && !self.connections.contains_key(&key);
        if is_new && orders.attack.is_called() && orders.attack != Attack::DiesInSynSent {
            let connection = AttackConnection::new(to, from, &mut self.rng);
            self.connections.insert(key, connection);
        }
        let mss = self.mss(orders);
        let Some(connection) = self.connections.get_mut(&key) else { return };
        // Some of what arrives in order is as if it were lost, so that there are holes to lie
        // about.
        let drops = matches!(orders.attack, Attack::Reneging | Attack::SackLies)
            && self.rng.chance(Ppm::percent(8));
        if connection.phase == Phase::Silent || drops && !segment.payload.is_empty() {
            return;
        }
        let wants_ack = connection.hear(&segment);
        match (connection.phase, orders.attack) {
            (Phase::Silent, _) => return,
            (Phase::Opening, _) if is_syn => {
                send(connection, connection.syn(now, mss, true), out);
                return;
            }
            (Phase::Opening, Attack::DiesInSynReceived) => {
                connection.phase = Phase::Silent;
                return;
            }
            (Phase::Opening, _) => connection.phase = Phase::Open,
            (Phase::Open, _) => {}
        }
        if dies(orders.attack, now, connection, &segment, out) {
            connection.phase = Phase::Silent;
            return;
        }
        if wants_ack {
            acknowledge(&mut self.rng, orders.attack, now, connection, &segment, out);
        }
        while let Some(segment) = connection.next(now, orders.bytes) {
            push(&mut self.rng, orders.attack, now, connection, segment, out);
        }
    }

    /// A turn of its own.
    fn attack(&mut self, now: Instant, orders: &Orders, out: &mut Outbox) {
        match orders.attack {
            Attack::SynFlood => {
                for _ in 0..orders.burst {
                    let own = forged(orders.own, &mut self.rng);
                    let connection = AttackConnection::new(own, orders.victim, &mut self.rng);
                    send(&connection, connection.syn(now, MSS, false), out);
                }
            }
            Attack::Blind => {
                let target = orders.target.as_ref().and_then(|target| target());
                for _ in 0..orders.burst {
                    if let Some(ends) = target {
                        forge(now, ends, &mut self.rng, out);
                    }
                }
            }
            _ => {
                for connection in self.connections.values_mut() {
                    harass(&mut self.rng, orders, now, connection, out);
                }
            }
        }
        if now < self.again {
            return;
        }
        self.again = now + PATIENCE;
        let mss = self.mss(orders);
        for connection in self.connections.values() {
            match connection.phase {
                Phase::Opening if !orders.attack.is_called() => {
                    send(connection, connection.syn(now, mss, false), out);
                }
                _ => {
                    if let Some(segment) = connection.again(now) {
                        send(connection, segment, out);
                    }
                }
            }
        }
    }
}

impl Actor for Attacker {
    fn receive(&mut self, now: Instant, packet: &Bytes, out: &mut Outbox) {
        let Some(orders) = self.orders.borrow().clone() else { return };
        if let Some(heard) = packet::parse(packet).filter(|_| now < orders.span.1) {
            self.answer(now, &orders, heard, out);
        }
    }

    fn next(&self) -> Instant {
        match &*self.orders.borrow() {
            Some(orders) if self.next < orders.span.1 => self.next.max(orders.span.0),
            _ => Instant::FAR_FUTURE,
        }
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        let Some(orders) = self.orders.borrow().clone() else { return };
        self.next = now + orders.interval;
        if !self.is_begun {
            self.is_begun = true;
            self.again = now + PATIENCE;
            self.begin(now, &orders, out);
        }
        self.attack(now, &orders, out);
    }
}

fn send(connection: &AttackConnection, segment: Segment, out: &mut Outbox) {
    out.extend(packet::emit(connection.own, connection.peer, segment));
}

/// An address in the attacker's network, and a port.
fn forged(own: IpAddr, rng: &mut Rng) -> SocketAddr {
    let host = rng.range(3, 254) as u8;
    let ip = match own {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            IpAddr::from([a, b, c, host])
        }
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
            octets[15] = host;
            IpAddr::from(octets)
        }
    };
    SocketAddr::new(ip, rng.range(1024, 65_535) as u16)
}

/// A guess at what one end of somebody's connection might say.
fn forge(now: Instant, (from, to): (SocketAddr, SocketAddr), rng: &mut Rng, out: &mut Outbox) {
    let (from, to) = if rng.chance(Ppm::percent(50)) { (from, to) } else { (to, from) };
    let mut connection = AttackConnection::new(from, to, rng);
    connection.got = SeqNumber(rng.next_u64() as u32);
    let seq = SeqNumber(rng.next_u64() as u32);
    let mut segment = match rng.below(5) {
        0 => connection.segment(now, seq, Flags::RST),
        1 => connection.segment(now, seq, Flags::RST | Flags::ACK),
        2 => connection.syn(now, MSS, rng.chance(Ppm::percent(50))),
        3 => connection.data(
            now,
            connection.nxt + rng.below(1 << 16) as u32,
            rng.range(1, 1200) as u32,
        ),
        _ => connection.segment(now, seq, Flags::FIN | Flags::ACK),
    };
    if rng.chance(Ppm::percent(50)) {
        let value = rng.next_u64() as u32;
        segment.options.timestamps = Some(Timestamps { value, echo: value });
    }
    send(&connection, segment, out);
}

/// The last words of one that dies; whether it is dead.
fn dies(
    attack: Attack,
    now: Instant,
    connection: &mut AttackConnection,
    segment: &Segment,
    out: &mut Outbox,
) -> bool {
    let finish = |connection: &mut AttackConnection, out: &mut Outbox| {
        connection.fin_sent = true;
        send(connection, connection.segment(now, connection.nxt, Flags::FIN | Flags::ACK), out);
        connection.nxt += 1;
    };
    match attack {
        Attack::DiesInEstablished => {
            connection.high.bytes_since(connection.got) > 0
                || connection.sent() > 0 && !segment.payload.is_empty()
        }
        Attack::DiesInFinWait1 => connection.has_fin,
        Attack::DiesInFinWait2 if connection.has_fin => {
            send(connection, connection.segment(now, connection.nxt, Flags::ACK), out);
            true
        }
        Attack::DiesInClosing if connection.has_fin => {
            // All but the FIN.
            connection.got += u32::MAX;
            finish(connection, out);
            true
        }
        Attack::DiesInCloseWait if !segment.payload.is_empty() => {
            finish(connection, out);
            true
        }
        // All its requests are answered, so that nothing is left to the victim but to close.
        Attack::DiesInLastAck if connection.has_fin => true,
        Attack::DiesInLastAck if !connection.fin_sent && connection.sent() == 0 => {
            finish(connection, out);
            false
        }
        _ => false,
    }
}

/// How data of the victim is acknowledged.
fn acknowledge(
    rng: &mut Rng,
    attack: Attack,
    now: Instant,
    connection: &mut AttackConnection,
    segment: &Segment,
    out: &mut Outbox,
) {
    let mut ack = connection.segment(now, connection.nxt, Flags::ACK);
    ack.options.sack = connection.held.iter().copied().take(3).collect();
    match attack {
        Attack::AckDivision => {
            let len = segment.payload.len();
            let first = connection.got + len.wrapping_neg();
            for part in 1..PARTS.min(len) {
                let mut ack = ack.clone();
                ack.ack = first + len * part / PARTS;
                send(connection, ack, out);
            }
        }
        Attack::OptimisticAck if connection.has_heard => {
            connection.got = connection.high + rng.below(20_000) as u32;
            ack.ack = connection.got;
            ack.options.sack.clear();
            connection.high = connection.got;
        }
        Attack::SackLies => {
            let near = |rng: &mut Rng| match rng.below(4) {
                0 => SeqNumber(rng.next_u64() as u32),
                1 => ack.ack + (rng.below(100_000) as u32).wrapping_neg(),
                _ => ack.ack + rng.below(100_000) as u32,
            };
            let lies = (0..3).map(|_| SackBlock { left: near(rng), right: near(rng) }).collect();
            ack.options.sack = lies;
        }
        Attack::WindowShrink => {
            connection.window = rng.pick(&[0, 0, 1 << 7, 1 << 10, 1 << 16, 1 << 20]);
            ack.window = (connection.window >> 7) as u16;
        }
        Attack::NeverReads => {
            connection.window =
                connection.window.saturating_sub(segment.payload.len()).min(1 << 16);
            ack.window = (connection.window >> 7) as u16;
        }
        _ => {}
    }
    send(connection, ack, out);
}

/// How its own data is sent.
fn push(
    rng: &mut Rng,
    attack: Attack,
    now: Instant,
    connection: &AttackConnection,
    mut segment: Segment,
    out: &mut Outbox,
) {
    let seq = segment.seq;
    match attack {
        Attack::OldTimestamps | Attack::FutureTimestamps => {
            let far = rng.log_range(1, 1 << 31) as u32;
            if let Some(timestamps) = &mut segment.options.timestamps
                && rng.chance(Ppm::percent(20))
            {
                let is_old = attack == Attack::OldTimestamps;
                timestamps.value =
                    timestamps.value.wrapping_add(if is_old { far.wrapping_neg() } else { far });
            }
        }
        Attack::Overlap => {
            // What is acknowledged comes again with other bytes, and behind it what is new.
            let old = connection
                .una
                .bytes_since(connection.nxt + connection.sent().wrapping_neg())
                .min(600);
            let mut wrong = connection.data(now, connection.una + old.wrapping_neg(), 0);
            wrong.payload = Bytes::from(vec![0x55; old as usize]).into();
            let new = seq.bytes_since(connection.una).min(1200 - old);
            for chunk in connection.data(now, connection.una, new).payload.take_chunks() {
                wrong.payload.push(chunk);
            }
            send(connection, wrong, out);
        }
        _ => {}
    }
    send(connection, segment, out);
}

/// What it sends without being asked.
fn harass(
    rng: &mut Rng,
    orders: &Orders,
    now: Instant,
    connection: &mut AttackConnection,
    out: &mut Outbox,
) {
    if connection.phase != Phase::Open {
        return;
    }
    match orders.attack {
        Attack::Reneging => connection.held.clear(),
        Attack::OptimisticAck if connection.has_heard => {
            connection.got += rng.below(3000) as u32;
            connection.high = connection.high.later(connection.got);
            send(connection, connection.segment(now, connection.nxt, Flags::ACK), out);
        }
        Attack::TinySegments => {
            for _ in 0..orders.burst {
                let seq = connection.nxt + 1 + 2 * rng.below(30_000) as u32;
                send(connection, connection.data(now, seq, 1), out);
            }
        }
        Attack::SegmentFlood => {
            for _ in 0..orders.burst {
                let seq = match rng.below(3) {
                    0 => connection.nxt + rng.below(60_000) as u32,
                    1 => connection.una + (rng.below(60_000) as u32).wrapping_neg(),
                    _ => SeqNumber(rng.next_u64() as u32),
                };
                let mut segment = connection.data(now, seq, rng.below(1200) as u32);
                let flags = Flags::from_bits_retain(rng.next_u64() as u8);
                segment.flags = (flags - (Flags::RST | Flags::SYN | Flags::FIN)) | Flags::ACK;
                segment.urgent = rng.next_u64() as u16;
                if rng.chance(Ppm::percent(10)) {
                    segment.ack = SeqNumber(rng.next_u64() as u32);
                }
                send(connection, segment, out);
            }
        }
        _ => {}
    }
}
