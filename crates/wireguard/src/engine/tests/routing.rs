//! Cryptokey routing: what a peer may say, and what goes to it, where there are several.

use super::*;

const HUB: usize = 0;
/// Its peers.
const A: usize = 1;
const B: usize = 2;

/// An interface with two peers, each of which has addresses of its own. Datagrams arrive at once.
struct Star {
    now: Instant,
    engines: [Tested; 3],
    keys: [PrivateKey; 3],
    /// Packets that arrived.
    arrived: [Vec<Vec<u8>>; 3],
    /// Number of datagrams that arrived.
    datagrams: [usize; 3],
}

impl Star {
    /// An interface whose peers have these prefixes. The peers take everything from it.
    fn new(prefixes: [&[&str]; 2]) -> Self {
        let keys = [1, 2, 3].map(|byte| PrivateKey::from([byte; 32]));
        let now = Instant::ZERO + second(1000);
        let engine = |end: usize| {
            let mut config = WireguardConfig::new(keys[end].clone());
            config.peers = match end {
                HUB => Self::peers(&keys, prefixes),
                _ => vec![peer(&keys, HUB, &["0.0.0.0/0"])],
            };
            Two::engine(&config, end as u8, now)
        };
        let engines = [HUB, A, B].map(engine);
        Self { now, engines, keys, arrived: Default::default(), datagrams: [0; 3] }
    }

    fn peers(keys: &[PrivateKey; 3], prefixes: [&[&str]; 2]) -> Vec<Peer> {
        [A, B].into_iter().zip(prefixes).map(|(end, own)| peer(keys, end, own)).collect()
    }

    fn fly(&mut self, from: usize, to: SocketAddr, bytes: &[u8]) {
        let to = [HUB, A, B].into_iter().find(|end| address(*end) == to).expect("somebody");
        self.datagrams[to] += 1;
        let engine = &mut self.engines[to];
        if let Some((peer, open)) = engine.receive(address(from).into(), bytes, self.now) {
            let mut packet = vec![0; bytes.len()];
            let opened = open.open(bytes, &mut packet);
            let outer = Outer { ends: address(from).into(), ecn: NOT_ECT };
            let taken = engine.commit((peer, opened), outer, bytes.len(), &mut packet, self.now);
            if let Some(len) = taken {
                packet.truncate(len);
                self.arrived[to].push(packet);
            }
        }
        self.flush(to);
    }

    fn flush(&mut self, end: usize) {
        for Outgoing { to, message } in self.engines[end].take_outgoing() {
            self.fly(end, to.peer, message.bytes());
        }
    }

    /// Sends a packet between these addresses, after the handshake that it may need. Returns it.
    fn send(&mut self, from: usize, [source, to]: [&str; 2]) -> Vec<u8> {
        let [source, to] = [source, to].map(|text| text.parse().expect("an address"));
        let packet = packet(source, to, 100, NOT_ECT);
        let len = sealed_len(packet.len());
        for _ in 0..2 {
            let mut seals = Vec::new();
            let way = self.engines[from].begin_send(to, (1, len), &mut seals, self.now);
            if let Way::To(ends) = way {
                let mut datagram = vec![0; len];
                seals.remove(0).seal(&packet, &mut datagram);
                self.fly(from, ends.peer, &datagram);
                return packet;
            }
            self.flush(from);
        }
        panic!("no session for {to}");
    }

    /// What has arrived at each end since this was last asked.
    fn take_arrived(&mut self) -> [Vec<Vec<u8>>; 3] {
        core::mem::take(&mut self.arrived)
    }

    /// What the interface has dropped because of its source.
    fn refused(&self) -> u64 {
        self.engines[HUB].counters.dropped_not_allowed.get()
    }
}

fn peer(keys: &[PrivateKey; 3], end: usize, prefixes: &[&str]) -> Peer {
    let mut peer = Peer::new(keys[end].public_key());
    peer.allowed_ips = prefixes.iter().map(|text| text.parse().expect("a prefix")).collect();
    peer.endpoint = Some(address(end));
    peer
}

#[test]
fn packets_go_to_the_peer_that_has_their_address_and_to_nobody_else() {
    let mut star = Star::new([&["10.0.1.0/24"], &["10.0.2.0/24", "10.0.1.7/32"]]);
    for (to, address) in [(A, "10.0.1.1"), (B, "10.0.2.1"), (B, "10.0.1.7"), (A, "10.0.1.8")] {
        let (other, before) = (A + B - to, star.datagrams);
        let sent = star.send(HUB, ["10.0.0.1", address]);
        let mut expected: [Vec<Vec<u8>>; 3] = Default::default();
        expected[to] = vec![sent];
        assert_eq!(star.take_arrived(), expected, "{address}");
        assert_eq!(star.datagrams[other], before[other], "{address}");
    }
}

#[test]
fn a_peer_cannot_speak_with_the_address_of_another_one_that_works_too() {
    let mut star = Star::new([&["10.0.1.0/24"], &["10.0.2.0/24", "10.0.1.7/32"]]);
    let own = [(A, "10.0.1.1"), (B, "10.0.2.1"), (B, "10.0.1.7")];
    let foreign = [(A, "10.0.2.1"), (A, "10.0.1.7"), (B, "10.0.1.1")];
    for (count, ((peer, good), (liar, bad))) in (1..).zip(own.into_iter().zip(foreign)) {
        let sent = star.send(peer, [good, "10.0.0.1"]);
        assert_eq!(star.take_arrived(), [vec![sent], vec![], vec![]], "{peer} {good}");
        star.send(liar, [bad, "10.0.0.1"]);
        assert_eq!(star.take_arrived(), <[Vec<Vec<u8>>; 3]>::default(), "{liar} {bad}");
        assert_eq!(star.refused(), count, "{liar} {bad}");
    }
    // It is the source alone that was wrong: both sessions go on.
    for (peer, address) in own {
        star.send(peer, [address, "10.0.0.1"]);
        star.send(HUB, ["10.0.0.1", address]);
    }
    assert_eq!(star.take_arrived().map(|packets| packets.len()), [3, 1, 2]);
    assert_eq!(star.refused(), 3);
}

#[test]
fn an_address_that_moves_from_one_peer_to_another_is_its_alone_from_then_on() {
    let mut star = Star::new([&["10.0.1.0/24"], &["10.0.2.0/24"]]);
    let shared = "10.0.1.1";
    star.send(A, [shared, "10.0.0.1"]);
    star.send(B, ["10.0.2.1", "10.0.0.1"]);
    let moved = Star::peers(&star.keys, [&["10.0.3.0/24"], &["10.0.2.0/24", "10.0.1.0/24"]]);
    star.engines[HUB].set_peers(moved, star.now).expect("peers");
    star.flush(HUB);
    star.take_arrived();
    star.send(A, [shared, "10.0.0.1"]);
    assert_eq!((star.take_arrived()[HUB].len(), star.refused()), (0, 1));
    let sent = [star.send(B, [shared, "10.0.0.1"]), star.send(HUB, ["10.0.0.1", shared])];
    let [to_hub, to_b] = sent.map(|packet| vec![packet]);
    assert_eq!((star.take_arrived(), star.refused()), ([to_hub, vec![], to_b], 1));
}
