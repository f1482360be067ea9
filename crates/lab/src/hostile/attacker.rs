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

/// Port of the first connection, and of the first one that comes later.
const FIRST_PORT: u16 = 20_000;
const FIRST_NEW_PORT: u16 = 22_000;

/// Ports of later connections; then the first of them comes again.
const NEWCOMERS: u16 = 40_000;

impl Attack {
    /// Returns the most connections that one attacker has at the beginning: each has a port.
    pub const fn most_connections(self) -> u32 {
        let last = if matches!(self, Self::OrphanChurn) { FIRST_NEW_PORT - 1 } else { u16::MAX };
        (last - FIRST_PORT) as u32 + 1
    }
}

/// The parts into which an ACK is divided.
const PARTS: u32 = 32;

/// Function that tells the addresses of the session that is attacked, client first, while it is
/// open.
pub type SessionAddresses = Rc<dyn Fn() -> Option<(SocketAddr, SocketAddr)>>;

/// Plan of an attacker.
#[derive(Clone)]
pub struct AttackPlan {
    /// Kind of the attack.
    pub attack: Attack,
    /// Address of the attacker.
    pub own: IpAddr,
    /// Address and port that are attacked.
    pub victim: SocketAddr,
    /// Begin of the attack.
    pub start: Instant,
    /// End of the attack.
    pub stop: Instant,
    /// Time between two turns, which is not zero.
    pub interval: Nanos,
    /// Segments that are sent in one turn of a flood.
    pub burst: u32,
    /// Number of connections, at most [`Attack::most_connections`].
    pub count: u32,
    /// Bytes that each connection sends.
    pub bytes: u32,
    /// Connection of somebody else that is attacked.
    pub target: Option<SessionAddresses>,
}

impl core::fmt::Debug for AttackPlan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AttackPlan").field("attack", &self.attack).finish_non_exhaustive()
    }
}

/// Actor that attacks a host, once it has a plan.
pub struct Attacker {
    plan: Rc<RefCell<Option<AttackPlan>>>,
    rng: Rng,
    /// By their own address and the victim's.
    connections: BTreeMap<(SocketAddr, SocketAddr), AttackConnection>,
    is_begun: bool,
    /// Connections that came after the first ones.
    newcomers: u16,
    /// The MSS of its SYN where the attack is a tiny MSS.
    mss: u16,
    next: Instant,
    again: Instant,
}

impl core::fmt::Debug for Attacker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Attacker").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Attacker {
    /// Makes an attacker without a plan. The plan must come before the world begins.
    pub fn new(mut rng: Rng) -> (Self, Rc<RefCell<Option<AttackPlan>>>) {
        let plan = Rc::default();
        let attacker = Self {
            plan: Rc::clone(&plan),
            mss: rng.pick(&[1, 8, 48, 64, 88]),
            rng,
            connections: BTreeMap::new(),
            is_begun: false,
            newcomers: 0,
            next: Instant::ZERO,
            again: Instant::ZERO,
        };
        (attacker, plan)
    }

    /// Resets all connections, as a peer does that ends in an orderly way. A byte that was sent
    /// before follows: the answer shows where the victim is if the number of the reset was wrong.
    pub fn reset(&self, now: Instant, out: &mut Outbox) {
        for connection in self.connections.values() {
            send(connection, connection.segment(now, connection.nxt, Flags::RST), out);
            let before = connection.nxt + u32::MAX;
            send(connection, connection.data(now, before, 1), out);
        }
    }

    /// Calls the victim with all connections.
    fn begin(&mut self, now: Instant, plan: &AttackPlan, out: &mut Outbox) {
        let opens =
            !plan.attack.is_called() && !matches!(plan.attack, Attack::Blind | Attack::SynFlood);
        for index in 0..if opens { plan.count } else { 0 } {
            self.open(now, plan, FIRST_PORT + index as u16, out);
        }
    }

    /// Calls the victim from a port.
    fn open(&mut self, now: Instant, plan: &AttackPlan, port: u16, out: &mut Outbox) {
        let own = SocketAddr::new(plan.own, port);
        let connection = AttackConnection::new(own, plan.victim, &mut self.rng);
        send(&connection, connection.syn(now, self.mss(plan), false), out);
        self.connections.insert((own, plan.victim), connection);
    }

    fn mss(&self, plan: &AttackPlan) -> u16 {
        if plan.attack == Attack::TinyMss { self.mss } else { MSS }
    }

    /// A segment of the victim.
    fn answer(
        &mut self,
        now: Instant,
        plan: &AttackPlan,
        from: SocketAddr,
        to: SocketAddr,
        segment: &Segment,
        out: &mut Outbox,
    ) {
        let key = (to, from);
        let is_syn = segment.flags & (Flags::SYN | Flags::ACK) == Flags::SYN;
        let is_new = is_syn && !self.connections.contains_key(&key);
        if is_new && plan.attack.is_called() && plan.attack != Attack::DiesInSynSent {
            let connection = AttackConnection::new(to, from, &mut self.rng);
            self.connections.insert(key, connection);
        }
        let mss = self.mss(plan);
        let Some(connection) = self.connections.get_mut(&key) else { return };
        // Some of what arrives in order is as if it were lost, so that there are holes to lie
        // about.
        let drops = matches!(plan.attack, Attack::Reneging | Attack::SackLies)
            && self.rng.chance(Ppm::percent(8));
        if connection.phase == Phase::Silent || drops && !segment.payload.is_empty() {
            return;
        }
        let wants_ack = connection.hear(segment);
        match (connection.phase, plan.attack) {
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
        if dies(plan.attack, now, connection, segment, out) {
            connection.phase = Phase::Silent;
            return;
        }
        if wants_ack {
            acknowledge(&mut self.rng, plan.attack, now, connection, segment, out);
        }
        while let Some(segment) = connection.next(now, plan.bytes) {
            push(&mut self.rng, plan.attack, now, connection, segment, out);
        }
    }

    /// A turn of its own.
    fn attack(&mut self, now: Instant, plan: &AttackPlan, out: &mut Outbox) {
        match plan.attack {
            Attack::SynFlood => {
                for _ in 0..plan.burst {
                    let own = forged(plan.own, &mut self.rng);
                    let connection = AttackConnection::new(own, plan.victim, &mut self.rng);
                    send(&connection, connection.syn(now, MSS, false), out);
                }
            }
            Attack::Blind => {
                let target = plan.target.as_ref().and_then(|target| target());
                for _ in 0..plan.burst {
                    if let Some((from, to)) = target {
                        forge(now, from, to, &mut self.rng, out);
                    }
                }
            }
            Attack::OrphanChurn => {
                self.connections.retain(|_, connection| connection.phase != Phase::Silent);
                for _ in 0..plan.burst {
                    self.newcomers = (self.newcomers + 1) % NEWCOMERS;
                    self.open(now, plan, FIRST_NEW_PORT + self.newcomers, out);
                }
            }
            _ => {
                for connection in self.connections.values_mut() {
                    harass(&mut self.rng, plan, now, connection, out);
                }
            }
        }
        if now < self.again {
            return;
        }
        self.again = now + PATIENCE;
        let mss = self.mss(plan);
        for connection in self.connections.values() {
            match connection.phase {
                Phase::Opening if !plan.attack.is_called() => {
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
        let Some(plan) = self.plan.borrow().clone() else { return };
        let heard = packet::parse(packet).filter(|_| now < plan.stop);
        if let Some((from, to, segment)) = heard {
            self.answer(now, &plan, from, to, &segment, out);
        }
    }

    fn next(&self) -> Instant {
        match &*self.plan.borrow() {
            Some(plan) if self.next < plan.stop => self.next.max(plan.start),
            _ => Instant::FAR_FUTURE,
        }
    }

    fn wake(&mut self, now: Instant, out: &mut Outbox) {
        let Some(plan) = self.plan.borrow().clone() else { return };
        self.next = now + plan.interval;
        if !self.is_begun {
            self.is_begun = true;
            self.again = now + PATIENCE;
            self.begin(now, &plan, out);
        }
        self.attack(now, &plan, out);
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

/// Sends a guess at what one end of the attacked connection might send.
fn forge(now: Instant, from: SocketAddr, to: SocketAddr, rng: &mut Rng, out: &mut Outbox) {
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
        Attack::DiesInLastAck | Attack::OrphanChurn if connection.has_fin => true,
        Attack::DiesInLastAck | Attack::OrphanChurn
            if !connection.fin_sent && connection.sent() == 0 =>
        {
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
    plan: &AttackPlan,
    now: Instant,
    connection: &mut AttackConnection,
    out: &mut Outbox,
) {
    if connection.phase != Phase::Open {
        return;
    }
    match plan.attack {
        Attack::Reneging => connection.held.clear(),
        Attack::Holes => {
            for _ in 0..plan.burst {
                let segment = connection.next_hole(now);
                send(connection, segment, out);
            }
        }
        Attack::OptimisticAck if connection.has_heard => {
            connection.got += rng.below(3000) as u32;
            connection.high = connection.high.later(connection.got);
            send(connection, connection.segment(now, connection.nxt, Flags::ACK), out);
        }
        Attack::TinySegments => {
            for _ in 0..plan.burst {
                let seq = connection.nxt + 1 + 2 * rng.below(30_000) as u32;
                send(connection, connection.data(now, seq, 1), out);
            }
        }
        Attack::SegmentFlood => {
            for _ in 0..plan.burst {
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
