//! Two engines in virtual time, joined by a path that may lose, delay and change datagrams.

mod changes;
mod lies;
mod routing;

use super::*;
use crate::keys::PresharedKey;
use crate::protocol::{Chosen, Seal, sealed_len};
use core::net::SocketAddrV6;
use neap_stack::wire::checksum;
use std::collections::BTreeMap;

type Tested = Engine<Chosen>;

const DELAY: Nanos = Nanos::from_millis(10);
const HERE: usize = 0;
const THERE: usize = 1;
const NOT_ECT: u8 = 0;

fn second(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + end as u8], 51820))
}

fn inside(end: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + end as u8])
}

/// The time of day.
fn unix(now: Instant) -> Duration {
    Duration::from_secs(1_000_000) + Duration::from_nanos(now.as_nanos())
}

/// A packet of IPv4 from one address to another.
fn packet(from: IpAddr, to: IpAddr, len: usize, ecn: u8) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4 alone") };
    let mut packet = vec![7; len];
    packet[..12].copy_from_slice(&[0x45, ecn, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    let sum = checksum::of(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A datagram on its way.
#[derive(Clone, Debug)]
struct Flying {
    to: usize,
    from: SocketAddr,
    bytes: Vec<u8>,
    ecn: u8,
}

/// Two engines and the path between them.
struct Two {
    now: Instant,
    engines: [Tested; 2],
    keys: [PrivateKey; 2],
    addresses: [SocketAddr; 2],
    path: BTreeMap<(Instant, u64), Flying>,
    sent: u64,
    /// Packets that arrived.
    arrived: [Vec<Vec<u8>>; 2],
    /// Takes datagrams away, or changes them.
    spoil: fn(&mut Flying) -> bool,
}

impl Two {
    fn new() -> Self {
        Self::with(|_, _| {})
    }

    /// Two ends whose peers are changed first.
    fn with(change: impl Fn(usize, &mut Peer)) -> Self {
        let keys = [PrivateKey::from([1; 32]), PrivateKey::from([2; 32])];
        let now = Instant::ZERO + second(1000);
        let engine = |end: usize| {
            let mut config = WireguardConfig::new(keys[end].clone());
            let mut peer = Peer::new(keys[1 - end].public_key());
            peer.allowed_ips = vec![inside(1 - end).into()];
            peer.endpoint = Some(address(1 - end));
            change(end, &mut peer);
            config.peers = vec![peer];
            Self::engine(&config, end as u8, now)
        };
        Self {
            now,
            engines: [engine(HERE), engine(THERE)],
            keys,
            addresses: [address(HERE), address(THERE)],
            path: BTreeMap::new(),
            sent: 0,
            arrived: Default::default(),
            spoil: |_| false,
        }
    }

    fn engine(config: &WireguardConfig, seed: u8, now: Instant) -> Tested {
        let seed = Zeroizing::new([seed; 32]);
        Engine::new(config, seed, Arc::default(), now, unix(now)).expect("an engine")
    }

    fn fly(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>, ecn: u8) {
        let from = self.addresses[from];
        // An address where nobody is.
        let Some(to) = self.addresses.iter().position(|address| *address == to) else { return };
        let mut flying = Flying { to, from, bytes, ecn };
        if !(self.spoil)(&mut flying) {
            self.sent += 1;
            self.path.insert((self.now + DELAY, self.sent), flying);
        }
    }

    fn flush(&mut self, end: usize) {
        for Outgoing { to, message } in self.engines[end].take_outgoing() {
            self.fly(end, to.peer, message.bytes().to_vec(), 0);
        }
    }

    /// Sends one packet. Whether there was a session for it.
    fn send(&mut self, from: usize, bytes: &[u8]) -> bool {
        let header = Header::parse(bytes).expect("a packet");
        let mut seals = Vec::new();
        let sizes = (1, sealed_len(bytes.len()));
        let way = self.engines[from].begin_send(header.destination, sizes, &mut seals, self.now);
        if let Way::To(to) = way {
            let mut datagram = vec![0; sizes.1];
            let len = seals.remove(0).seal(bytes, &mut datagram);
            assert_eq!(len, datagram.len());
            self.fly(from, to.peer, datagram, header.ecn);
        }
        self.flush(from);
        matches!(way, Way::To(_))
    }

    /// A packet of the usual kind.
    fn say(&mut self, from: usize) -> bool {
        self.send(from, &packet(inside(from), inside(1 - from), 100, NOT_ECT))
    }

    fn receive(&mut self, flying: Flying) {
        let Flying { to, from, bytes, ecn } = flying;
        let engine = &mut self.engines[to];
        if let Some((peer, open)) = engine.receive(from.into(), &bytes, self.now) {
            let mut packet = vec![0; bytes.len()];
            let opened = open.open(&bytes, &mut packet);
            let outer = Outer { ends: from.into(), ecn };
            let taken = engine.commit((peer, opened), outer, bytes.len(), &mut packet, self.now);
            engine.committed(peer, self.now);
            if let Some(len) = taken {
                packet.truncate(len);
                self.arrived[to].push(packet);
            }
        }
        // As the device does it.
        self.engines[to].date_handshakes(self.now, unix(self.now));
        self.flush(to);
    }

    /// Lets time pass.
    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        loop {
            let flying = self.path.first_key_value().map_or(Instant::FAR_FUTURE, |(at, _)| at.0);
            let timer = self.engines.iter().map(Engine::deadline).min().expect("two");
            let next = flying.min(timer);
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            for index in [HERE, THERE] {
                self.engines[index].advance(self.now);
                self.flush(index);
            }
            if flying <= self.now
                && let Some((_, flying)) = self.path.pop_first()
            {
                self.receive(flying);
            }
        }
        self.now = end;
    }

    /// Two ends that have a session which both may use.
    fn joined() -> Self {
        let mut two = Self::new();
        two.join();
        two
    }

    fn join(&mut self) {
        assert!(!self.say(HERE), "without a session");
        self.run(second(1));
        assert!(self.say(HERE) && self.say(THERE));
        self.run(second(1));
        assert_eq!((self.arrived[HERE].len(), self.arrived[THERE].len()), (1, 1));
        self.arrived = Default::default();
    }

    fn count(&self, end: usize, name: &str) -> u64 {
        let figures = self.engines[end].counters.figures();
        figures.iter().find(|(is, _)| *is == name).expect(name).1
    }

    fn peer(&mut self, end: usize) -> PeerStatus {
        self.engines[end].status().remove(0)
    }
}

#[test]
fn a_packet_begins_a_handshake_and_the_next_ones_arrive() {
    let mut two = Two::joined();
    for len in [20, 21, 36, 1420, 65_535] {
        for from in [HERE, THERE] {
            let sent = packet(inside(from), inside(1 - from), len, NOT_ECT);
            assert!(two.send(from, &sent));
            two.run(second(1));
            assert_eq!(two.arrived[1 - from].pop(), Some(sent), "without the padding");
        }
    }
    let (here, there) = (two.peer(HERE), two.peer(THERE));
    assert_eq!((here.sent, here.received), (there.received, there.sent));
    assert_eq!(
        here.latest_handshake,
        there.latest_handshake.map(|at| at + Duration::from_nanos(DELAY.0))
    );
}

#[test]
fn sessions_begin_anew_after_a_sleep_of_the_machine() {
    let mut two = Two::joined();
    // The session has ended for the peer, whose machine was awake.
    let mut config = WireguardConfig::new(two.keys[THERE].clone());
    let mut peer = Peer::new(two.keys[HERE].public_key());
    peer.allowed_ips = vec![inside(HERE).into()];
    config.peers = vec![peer];
    two.engines[THERE] = Two::engine(&config, 7, two.now);
    let initiations = two.count(HERE, "initiations_sent");
    two.engines[HERE].begin_all_anew(two.now);
    two.flush(HERE);
    assert!(!two.say(HERE), "the old key is used no more");
    two.run(second(1));
    assert_eq!(two.count(HERE, "initiations_sent"), initiations + 1);
    assert!(two.say(HERE) && two.say(THERE));
    two.run(second(1));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1));
}

#[test]
fn a_sleep_of_the_machine_renews_a_handshake_that_waits_and_wakes_no_peer_that_is_idle() {
    let mut two = Two::new();
    two.engines[HERE].begin_all_anew(two.now);
    two.flush(HERE);
    assert_eq!(two.count(HERE, "initiations_sent"), 0);
    assert!(!two.say(HERE));
    two.path.clear();
    two.run(second(1));
    two.engines[HERE].begin_all_anew(two.now);
    assert!(two.engines[HERE].awaits_answer(0), "frames wait for it");
    two.flush(HERE);
    two.run(second(2));
    assert!(two.say(HERE));
}

#[test]
fn keys_are_renewed_every_two_minutes_under_load_without_a_gap() {
    let mut two = Two::joined();
    let packets = 3600 * 10;
    for _ in 0..packets {
        assert!(two.say(HERE) && two.say(THERE), "a gap at {:?}", two.now);
        two.run(Nanos::from_millis(100));
    }
    two.run(second(1));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (packets, packets));
    let handshakes =
        two.count(HERE, "handshakes_completed") + two.count(THERE, "handshakes_completed");
    assert!((29..=32).contains(&handshakes), "{handshakes} in an hour");
    assert_eq!((two.peer(HERE).failed_handshakes, two.peer(THERE).failed_handshakes), (0, 0));
}

#[test]
fn lost_initiations_are_repeated_and_given_up_after_ninety_seconds() {
    let mut two = Two::new();
    two.spoil = |flying| flying.to == THERE;
    assert!(!two.say(HERE));
    assert!(two.engines[HERE].awaits_answer(0));
    two.run(second(60));
    let failed = two.peer(HERE).failed_handshakes;
    assert!((9..=12).contains(&failed), "{failed} in a minute");
    assert!(two.engines[HERE].take_failure() && !two.engines[HERE].take_failure());
    assert!(!two.engines[THERE].take_failure());
    two.run(second(29));
    assert!(two.engines[HERE].awaits_answer(0), "after 89 seconds");
    two.run(second(2));
    assert!(!two.engines[HERE].awaits_answer(0), "given up");
    let sent = two.count(HERE, "initiations_sent");
    two.run(second(1000));
    assert_eq!(two.count(HERE, "initiations_sent"), sent, "nobody asks");
    // The next packet begins anew, for as long.
    assert!(!two.say(HERE));
    two.run(second(89));
    assert!(two.engines[HERE].awaits_answer(0));
    two.run(second(2));
    assert!(!two.engines[HERE].awaits_answer(0), "given up again");
    assert_eq!(two.count(HERE, "initiations_sent"), 2 * sent);
    two.spoil = |_| false;
    assert!(!two.engines[HERE].take_recovery());
    two.join();
    assert_eq!(two.peer(HERE).failed_handshakes, 0);
    assert!(two.engines[HERE].take_recovery() && !two.engines[HERE].take_recovery());
    assert!(!two.engines[THERE].take_recovery(), "it has asked nothing");
}

#[test]
fn an_initiation_that_nobody_answers_ends_the_session_that_the_peer_has_made() {
    let mut two = Two::new();
    // Initiations from here are lost, and nothing else is.
    two.spoil = |flying| flying.to == THERE && flying.bytes[0] == 1;
    assert!(!two.say(HERE));
    assert!(!two.say(THERE));
    two.run(second(1));
    assert!(two.say(THERE) && two.say(HERE), "a session that the other end has made");
    two.run(second(88));
    assert!(two.say(HERE), "after 89 seconds");
    let sent = two.count(HERE, "initiations_sent");
    assert!((15..=18).contains(&sent), "{sent}: it is repeated all the same");
    two.run(second(2));
    assert!(!two.say(HERE), "the session has ended with it");
    // The other end notices when its next packet is not answered, and makes another one.
    assert!(two.say(THERE));
    two.run(second(30));
    assert!(two.say(THERE) && two.say(HERE));
}

#[test]
fn an_endpoint_roams_when_a_datagram_is_authentic_and_not_before() {
    let mut two = Two::with(|end, peer| {
        if end == THERE {
            peer.endpoint = None;
        }
    });
    two.join();
    let old = two.addresses[HERE];
    let moves = |two: &mut Two| {
        let engine = &mut two.engines[THERE];
        (engine.take_appearance(), engine.take_move())
    };
    assert_eq!(moves(&mut two), (true, false), "the other end heard it for the first time");
    let elsewhere = SocketAddr::from(([203, 0, 113, 9], 9));
    assert!(two.say(HERE));
    let (_, mut forged) = two.path.pop_first().expect("a datagram");
    let good = forged.clone();
    forged.from = elsewhere;
    *forged.bytes.last_mut().expect("a tag") ^= 1;
    two.receive(forged);
    assert_eq!(two.peer(THERE).endpoint, Some(old));
    assert_eq!(two.count(THERE, "dropped_not_authentic"), 1);
    two.receive(Flying { from: elsewhere, ..good });
    assert_eq!(two.peer(THERE).endpoint, Some(elsewhere));
    assert_eq!(moves(&mut two), (false, true));
    two.addresses[HERE] = elsewhere;
    assert!(two.say(THERE));
    two.run(second(1));
    assert_eq!((two.arrived[HERE].len(), two.count(THERE, "roamed")), (1, 1));
}

#[test]
fn reordered_datagrams_arrive_once_each() {
    let mut two = Two::joined();
    for index in 0..200 {
        assert!(two.send(HERE, &packet(inside(HERE), inside(THERE), 30 + index, NOT_ECT)));
    }
    let mut flying: Vec<Flying> = core::mem::take(&mut two.path).into_values().collect();
    flying.reverse();
    for datagram in flying.clone().into_iter().chain(flying) {
        two.receive(datagram);
    }
    assert_eq!((two.arrived[THERE].len(), two.count(THERE, "dropped_replayed")), (200, 200));
}

#[test]
fn packets_of_foreign_addresses_are_dropped_and_counted() {
    let mut two = Two::joined();
    let foreign = IpAddr::from([10, 0, 0, 77]);
    assert!(two.send(HERE, &packet(foreign, inside(THERE), 100, NOT_ECT)));
    two.run(second(1));
    assert_eq!((two.arrived[THERE].len(), two.count(THERE, "dropped_not_allowed")), (0, 1));
    assert!(!two.send(HERE, &packet(inside(HERE), foreign, 100, NOT_ECT)));
    assert_eq!(two.count(HERE, "dropped_no_peer"), 1);
}

#[test]
fn what_was_sealed_and_is_no_packet_is_dropped_and_counted() {
    let mut two = Two::joined();
    let mut nonsense = packet(inside(HERE), inside(THERE), 100, NOT_ECT);
    nonsense[3] = 200;
    let mut seals = Vec::new();
    let way = two.engines[HERE].begin_send(inside(THERE), (1, 144), &mut seals, two.now);
    let mut datagram = vec![0; 144];
    seals.remove(0).seal(&nonsense, &mut datagram);
    assert_eq!(way, Way::To(address(THERE).into()));
    two.fly(HERE, address(THERE), datagram, 0);
    two.run(second(1));
    assert_eq!((two.arrived[THERE].len(), two.count(THERE, "dropped_not_ip")), (0, 1));
}

#[test]
fn ecn_passes_through() {
    // Packet, mark on the way, what arrives.
    for (inner, mark, expected) in [(2, 3, Some(3)), (1, 3, Some(3)), (0, 3, None), (2, 2, Some(2))]
    {
        let mut two = Two::joined();
        assert!(two.send(HERE, &packet(inside(HERE), inside(THERE), 100, inner)));
        for flying in two.path.values_mut() {
            assert_eq!(flying.ecn, inner, "the outer header has that of the inner one");
            flying.ecn = mark;
        }
        two.run(second(1));
        let arrived = two.arrived[THERE].pop();
        assert_eq!(arrived.as_ref().map(|packet| packet[1] & 3), expected);
        assert!(arrived.is_none_or(|packet| checksum::of(&packet[..20]) == 0));
        assert_eq!(two.count(THERE, "dropped_ecn"), u64::from(expected.is_none()));
    }
}

#[test]
fn a_peer_that_was_restarted_is_joined_again() {
    let mut two = Two::joined();
    let mut config = WireguardConfig::new(two.keys[THERE].clone());
    let mut peer = Peer::new(two.keys[HERE].public_key());
    peer.allowed_ips = vec![inside(HERE).into()];
    peer.endpoint = Some(address(HERE));
    config.peers = vec![peer];
    two.run(second(5));
    two.engines[THERE] = Two::engine(&config, 9, two.now);
    two.say(THERE);
    two.run(second(1));
    assert!(two.say(THERE) && two.say(HERE));
    two.run(second(1));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1));
    // And if it has nothing to say: the other side notices that nothing comes back.
    two.engines[THERE] = Two::engine(&config, 10, two.now);
    two.say(HERE);
    two.run(second(17));
    assert!(two.say(HERE));
    two.run(second(1));
    assert_eq!(two.arrived[THERE].len(), 2);
}

#[test]
fn a_persistent_keepalive_greets_without_a_packet_and_again_after_everything() {
    let every = Duration::from_secs(25);
    let mut two = Two::with(|end, peer| {
        if end == HERE {
            peer.persistent_keepalive = Some(every);
        }
    });
    two.run(second(1));
    assert!(two.peer(THERE).latest_handshake.is_some());
    two.run(second(3600));
    let keepalives = two.count(THERE, "keepalives_received");
    assert!((3600 / 25..3600 / 25 + 40).contains(&keepalives), "{keepalives}");
    two.spoil = |_| true;
    two.run(second(3600));
    assert!(two.peer(HERE).failed_handshakes > 20);
    two.spoil = |_| false;
    two.run(second(26));
    assert_eq!(two.peer(HERE).failed_handshakes, 0, "it has tried again by itself");
}

#[test]
fn an_idle_session_is_renewed_every_three_minutes_and_wakes_nobody_in_between() {
    let mut two = Two::joined();
    two.run(second(600));
    let (sent, mut wakes) = (two.sent, 0);
    let end = two.now + second(3600);
    while let at = two.engines.iter().map(Engine::deadline).min().expect("two")
        && at < end
    {
        assert!(at > two.now, "it does not move on");
        two.run(at.since(two.now));
        wakes += 1;
    }
    // Each renewal is three datagrams and the deadlines around them.
    assert!(two.sent - sent <= 3 * 21 && wakes <= 10 * 20, "{wakes}, {}", two.sent - sent);
}

#[test]
fn a_peer_that_only_sends_and_never_pauses_keeps_its_session() {
    for from in [HERE, THERE] {
        let mut two = Two::joined();
        let before = [HERE, THERE].map(|end| two.count(end, "initiations_sent"));
        let keepalives = two.count(1 - from, "keepalives_sent");
        for _ in 0..60 * 20 {
            assert!(two.say(from));
            two.run(Nanos::from_millis(50));
        }
        let after = [HERE, THERE].map(|end| two.count(end, "initiations_sent"));
        assert_eq!(after, before);
        // Each counts from the first data after the one before, the first from the greeting.
        let sent = two.count(1 - from, "keepalives_sent") - keepalives;
        assert!((5..=6).contains(&sent), "{sent}");
    }
}

#[test]
fn other_preshared_keys_make_no_session() {
    let mut two = Two::with(|end, peer| {
        peer.preshared_key = Some(PresharedKey::from([end as u8; 32]));
    });
    two.say(HERE);
    two.run(second(20));
    assert!(!two.say(HERE));
    assert!(two.count(HERE, "dropped_not_authentic") > 1);
    assert!(two.peer(HERE).latest_handshake.is_none());
}

#[test]
fn unknown_keys_are_counted_and_answered_by_nothing() {
    let mut two = Two::new();
    two.engines[THERE].set_peers(Vec::new(), two.now).expect("nobody");
    two.say(HERE);
    two.run(second(4));
    assert_eq!(two.count(THERE, "dropped_unknown_peer"), 1);
    assert!(two.path.is_empty());
}

/// An initiation to `THERE` by somebody who knows its public key alone. Its first MAC is right.
fn forged(two: &Two) -> Vec<u8> {
    let mut config = WireguardConfig::new(PrivateKey::from([7; 32]));
    let mut victim = Peer::new(two.keys[THERE].public_key());
    victim.allowed_ips = vec![inside(THERE).into()];
    victim.endpoint = Some(address(THERE));
    config.peers = vec![victim];
    let mut attacker = Two::engine(&config, 66, two.now);
    attacker.begin_send(inside(THERE), (1, 64), &mut Vec::new(), two.now);
    attacker.take_outgoing().pop().expect("an initiation").message.bytes().to_vec()
}

#[test]
fn a_flood_of_handshakes_is_answered_by_cookies_and_a_peer_still_gets_in() {
    let mut two = Two::joined();
    let initiation = forged(&two);
    let flood = |two: &mut Two, from: u32| {
        for index in 0..500 {
            let from = SocketAddr::from((std::net::Ipv4Addr::from(from + index), 7));
            let bytes = initiation.clone();
            two.receive(Flying { to: THERE, from, bytes, ecn: 0 });
        }
    };
    flood(&mut two, 0x0b00_0000);
    assert!(two.count(THERE, "cookies_demanded") >= 390);
    assert!(two.say(HERE) && two.say(THERE));
    two.run(Nanos::from_millis(50));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1), "sessions go on");
    // The peer loses its session, and has to show a cookie under the flood.
    let mut peer = Peer::new(two.keys[THERE].public_key());
    peer.allowed_ips = vec![inside(THERE).into()];
    peer.endpoint = Some(address(THERE));
    two.engines[HERE]
        .set_private_key(two.keys[HERE].clone(), Zeroizing::new([3; 32]), two.now)
        .expect("a key");
    two.say(HERE);
    for round in 0..12 {
        flood(&mut two, 0x0c00_0000 + 500 * round);
        two.run(second(1));
    }
    assert!(two.count(HERE, "cookies_received") >= 1);
    assert!(two.say(HERE), "a session");
    let status = two.engines[THERE].status();
    assert_eq!(status.len(), 1, "no state of strangers");
}

#[test]
fn a_flood_has_a_share_of_the_time_and_data_passes_by() {
    let mut two = Two::joined();
    let initiation = forged(&two);
    let (offered, per_second) = (40_000, 100_000);
    for index in 0..offered {
        two.now += Nanos(1_000_000_000 / per_second);
        let from = SocketAddr::from(([11, 0, (index >> 8) as u8, index as u8], 7));
        two.engines[THERE].receive(from.into(), &initiation, two.now);
    }
    two.engines[THERE].take_outgoing();
    let (answered, dropped) =
        (two.count(THERE, "cookies_demanded"), two.count(THERE, "dropped_busy"));
    // The first hundred are looked at in full.
    assert!((5_500..=8_200).contains(&answered), "12,500 a second, 3,125 at once: {answered}");
    assert!(dropped + answered + 200 >= offered, "{dropped} and {answered}");
    assert!(two.say(HERE) && two.say(THERE));
    two.run(Nanos::from_millis(50));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1));
}

/// Uses up what handshakes from anywhere may take now.
fn exhaust(two: &mut Two, initiation: &[u8]) {
    let stranger = SocketAddr::from(([11, 0, 0, 1], 7));
    let before = two.count(THERE, "dropped_busy");
    while two.count(THERE, "dropped_busy") == before {
        two.engines[THERE].receive(stranger.into(), initiation, two.now);
    }
    two.engines[THERE].take_outgoing();
}

/// Whether a peer that comes from this address gets a new session, if a flood is in front of each
/// of its three attempts.
fn gets_in_under_a_flood(from: SocketAddr) -> bool {
    let mut two = Two::joined();
    let initiation = forged(&two);
    let (now, key) = (two.now, two.keys[HERE].clone());
    two.engines[HERE].set_private_key(key, Zeroizing::new([3; 32]), now).expect("a key");
    two.engines[HERE].begin_send(inside(THERE), (1, 64), &mut Vec::new(), now);
    for _ in 0..3 {
        for Outgoing { message, .. } in two.engines[HERE].take_outgoing() {
            exhaust(&mut two, &initiation);
            two.engines[THERE].receive(from.into(), message.bytes(), two.now);
        }
        for Outgoing { message, .. } in two.engines[THERE].take_outgoing() {
            two.engines[HERE].receive(address(THERE).into(), message.bytes(), two.now);
        }
        two.now += second(6);
        two.engines[HERE].advance(two.now);
    }
    two.engines[HERE].has_session(0, two.now)
}

#[test]
fn a_flood_keeps_no_peer_out_that_comes_from_where_it_was_heard() {
    assert!(gets_in_under_a_flood(address(HERE)));
    let elsewhere = SocketAddr::from(([192, 0, 2, 77], 51820));
    assert!(!gets_in_under_a_flood(elsewhere), "as anybody who is not known");
}

/// The own addresses that the next messages leave from.
fn own_addresses(engine: &mut Tested) -> Vec<Option<IpAddr>> {
    engine.take_outgoing().iter().map(|outgoing| outgoing.to.own).collect()
}

#[test]
fn a_peer_is_answered_from_the_address_that_it_speaks_to() {
    let mut two = Two::new();
    let own = |last| Some(IpAddr::from([192, 0, 2, last]));
    let ends = |last| Ends { peer: address(THERE), own: own(last) };
    two.engines[THERE].initiate(0, two.now);
    let initiation = two.engines[THERE].take_outgoing().remove(0).message;
    two.engines[HERE].receive(ends(77), initiation.bytes(), two.now);
    let response = two.engines[HERE].take_outgoing().remove(0);
    assert_eq!(response.to, ends(77));
    two.engines[THERE].receive(address(HERE).into(), response.message.bytes(), two.now);
    // Packets, too, and they follow the latest authentic datagram.
    let keepalive = two.engines[THERE].take_outgoing().remove(0).message;
    let here = &mut two.engines[HERE];
    for (last, bytes, expected) in [(78, vec![4; 60], 77), (78, keepalive.bytes().to_vec(), 78)] {
        if let Some((peer, open)) = here.receive(ends(last), &bytes, two.now) {
            let mut packet = vec![0; bytes.len()];
            let opened = open.open(&bytes, &mut packet);
            let outer = Outer { ends: ends(last), ecn: 0 };
            here.commit((peer, opened), outer, bytes.len(), &mut packet, two.now);
        }
        assert_eq!(here.ends(0), Some(ends(expected)));
    }
    let way = here.begin_send(inside(THERE), (1, 32), &mut Vec::new(), two.now);
    assert_eq!(way, Way::To(ends(78)));
    // An address that is gone, and another endpoint, have no own address.
    here.forget_own(ends(77));
    assert_eq!(here.ends(0), Some(ends(78)));
    here.forget_own(ends(78));
    assert_eq!(here.ends(0), Some(address(THERE).into()));
    here.hear(0, ends(79));
    here.set_endpoint(&two.keys[THERE].public_key(), address(THERE), two.now).expect("a peer");
    assert_eq!(here.ends(0), Some(address(THERE).into()));
    // Nor has any peer one where packets leave from another port.
    here.hear(0, ends(79));
    here.announce(two.now);
    assert_eq!(own_addresses(here), [None]);
    assert_eq!(here.ends(0), Some(address(THERE).into()));
}

#[test]
fn an_initiation_that_is_repeated_leaves_from_where_the_route_says() {
    let mut two = Two::new();
    two.engines[HERE].hear(0, Ends { peer: address(THERE), own: Some(inside(HERE)) });
    let here = &mut two.engines[HERE];
    here.begin_send(inside(THERE), (1, 32), &mut Vec::new(), two.now);
    assert_eq!(own_addresses(here), [Some(inside(HERE))]);
    let repeated = (1..10).flat_map(|after| {
        here.advance(two.now + second(after));
        own_addresses(here)
    });
    assert_eq!(repeated.collect::<Vec<_>>(), [None]);
    assert_eq!(here.ends(0), Some(address(THERE).into()));
}

#[test]
fn nothing_shows_a_secret() {
    let mut two = Two::with(|_, peer| peer.preshared_key = Some(PresharedKey::from([0xab; 32])));
    let mut config = WireguardConfig::new(PrivateKey::from([0xcd; 32]));
    config.peers = vec![Peer::new(two.keys[HERE].public_key())];
    config.peers[0].preshared_key = Some(PresharedKey::from([0xab; 32]));
    let peer = two.peer(HERE);
    let shown = format!("{:?} {config:?} {peer:?}", two.engines[HERE]);
    for secret in ["171", "205", "abab", "cdcd", "q6ur", "zc3N"] {
        assert!(!shown.to_lowercase().contains(secret), "{shown}");
    }
}

#[test]
fn a_responder_shows_its_latest_handshake_under_load() {
    let mut two = Two::joined();
    // HERE initiates, THERE answers. HERE sends all the time.
    for _ in 0..200 * 600 {
        two.say(HERE);
        two.run(Nanos::from_millis(5));
        if two.count(HERE, "handshakes_completed") >= 3 {
            two.run(second(1));
            break;
        }
    }
    let (here, there) = (two.peer(HERE), two.peer(THERE));
    let (here, there) = (here.latest_handshake.expect("one"), there.latest_handshake.expect("one"));
    let late = here.duration_since(there).unwrap_or_default();
    assert!(late < Duration::from_secs(1), "the responder is {late:?} behind");
}

/// A sleep of the machine is in the time of day alone, and somebody may set the clock.
#[test]
fn a_handshake_keeps_the_time_of_day_that_it_had() {
    let mut two = Two::new();
    two.say(HERE);
    two.run(DELAY + DELAY);
    let joined = SystemTime::UNIX_EPOCH + unix(two.now);
    two.run(second(1));
    assert_eq!(two.peer(HERE).latest_handshake, Some(joined));
    let slept = unix(two.now) + Duration::from_secs(8 * 3600);
    assert!(!two.engines[HERE].has_undated_handshakes());
    two.engines[HERE].date_handshakes(two.now + second(600), slept);
    assert_eq!(two.peer(HERE).latest_handshake, Some(joined));
}

#[test]
fn an_address_of_one_link_keeps_its_zone() {
    let zoned = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().expect("one"), 51820, 0, 7));
    let mut two = Two::with(|_, peer| peer.endpoint = Some(zoned));
    assert_eq!(two.peer(HERE).endpoint, Some(zoned));
    two.say(HERE);
    two.engines[HERE].set_endpoint(&two.keys[THERE].public_key(), zoned, two.now).expect("a peer");
    assert_eq!(two.peer(HERE).endpoint, Some(zoned));
    assert_eq!(
        canonical("[::ffff:192.0.2.1]:5".parse().expect("one")),
        "192.0.2.1:5".parse().expect("one")
    );
}

/// HERE starts again while THERE goes on; its clock is an hour behind.
fn restarted_with_an_old_clock() -> Two {
    let mut two = Two::joined();
    let mut config = WireguardConfig::new(two.keys[HERE].clone());
    config.peers = vec![two.engines[HERE].peers[0].as_ref().expect("a peer").peer.clone()];
    let (seed, unix) = (Zeroizing::new([9; 32]), unix(two.now) - Duration::from_secs(3600));
    let engine = Engine::new(&config, seed, Arc::default(), two.now, unix);
    two.engines[HERE] = engine.expect("an engine");
    two
}

#[test]
fn a_clock_that_was_put_forward_ends_the_replays_of_an_initiation() {
    let mut two = restarted_with_an_old_clock();
    two.say(HERE);
    two.run(second(4));
    assert!(two.count(THERE, "dropped_replayed") > 0, "the old time is that of a replay");
    // As the device does it where an initiation was not answered.
    let put_right = |two: &mut Two, unix: Duration| {
        for _ in 0..20 {
            two.run(second(1));
            if two.engines[HERE].take_failure() {
                let now = two.now;
                two.engines[HERE].put_forward(now, unix + Duration::from_nanos(now.as_nanos()));
                two.flush(HERE);
            }
        }
        two.say(HERE)
    };
    let [old, right] = [unix(Instant::ZERO) - Duration::from_secs(7200), unix(Instant::ZERO)];
    assert!(!put_right(&mut two, old), "a clock that was put back changes nothing");
    assert!(put_right(&mut two, right));
    two.run(second(1));
    assert_eq!(two.arrived[THERE].len(), 1);
    let handshake = two.peer(HERE).latest_handshake.expect("one");
    let age = (SystemTime::UNIX_EPOCH + unix(two.now)).duration_since(handshake).expect("past");
    assert!(age < Duration::from_secs(25), "{age:?}");
}

#[test]
fn a_session_that_works_is_kept_when_the_clock_is_put_forward() {
    let mut two = Two::joined();
    let later = unix(two.now) + Duration::from_secs(3600);
    let now = two.now;
    two.engines[HERE].put_forward(now, later);
    assert!(two.say(HERE));
    // The next keys are agreed on with the time of the old session, which rises as well.
    for _ in 0..400 {
        two.say(HERE);
        two.run(second(1));
    }
    assert!(two.say(HERE) && two.count(HERE, "handshakes_completed") >= 3);
    assert_eq!(two.peer(HERE).failed_handshakes, 0);
}
