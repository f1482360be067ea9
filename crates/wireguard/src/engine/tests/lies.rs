//! Datagrams that are not genuine, or not new: each is dropped and counted, and changes nothing.

use super::*;
use crate::protocol::is_handshake;
use core::net::Ipv4Addr;

/// Where lies come from.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), 9);
/// Bytes of the second code of a handshake, which nobody reads unless there are many of them.
const SECOND_CODE: usize = 16;

/// Everything that a datagram may change: the peer, its session, what is planned and to be sent,
/// and all counters but those of drops.
fn state(two: &Two, end: usize) -> String {
    let engine = &two.engines[end];
    let mut counters = engine.counters.figures();
    counters.retain(|(name, _)| !name.starts_with("dropped"));
    let session = engine.protocol.established(0, two.now);
    let plans = (engine.deadline(), engine.outgoing(), engine.awaits_answer(0));
    format!("{:?} {:?} {session:?} {plans:?} {counters:?}", engine.status(), engine.ends(0))
}

fn dropped(two: &Two, end: usize) -> u64 {
    let figures = two.engines[end].counters.figures();
    figures.iter().filter(|(name, _)| name.starts_with("dropped")).map(|(_, count)| count).sum()
}

/// Shows an end what it has to drop.
fn show(two: &mut Two, to: usize, lies: &[Vec<u8>]) {
    let (before, count) = (state(two, to), dropped(two, to));
    for lie in lies {
        two.receive(Flying { to, from: ELSEWHERE, bytes: lie.clone(), ecn: NOT_ECT });
        assert_eq!(state(two, to), before, "{lie:?}");
    }
    assert_eq!(dropped(two, to), count + lies.len() as u64);
}

/// What anybody can make of a datagram: it is cut, longer, or has one bit changed, each in turn
/// that is read.
fn spoiled(good: &[u8]) -> Vec<Vec<u8>> {
    let read = good.len() - if is_handshake(good) { SECOND_CODE } else { 0 };
    let mut all: Vec<_> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    all.push([good, &[0]].concat());
    all.extend((0..read * 8).map(|bit| {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    }));
    all
}

/// The only datagram that is on its way.
fn caught(two: &mut Two) -> Flying {
    let (_, flying) = two.path.pop_first().expect("a datagram");
    assert!(two.path.is_empty());
    flying
}

/// Lets the latest initiation of an end wait for so long that it is repeated. Returns that.
fn repeated(two: &mut Two, end: usize) -> Flying {
    while two.path.is_empty() {
        two.now += Nanos::from_millis(100);
        two.engines[end].advance(two.now);
        two.flush(end);
    }
    caught(two)
}

/// Both ends hear each other.
fn assert_joined(two: &mut Two) {
    two.run(second(1));
    two.arrived = Default::default();
    assert!(two.say(HERE) && two.say(THERE));
    two.run(second(1));
    assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1));
}

#[test]
fn data_that_is_spoiled_or_replayed_changes_nothing() {
    let mut two = Two::joined();
    assert!(two.say(HERE));
    let good = caught(&mut two);
    show(&mut two, THERE, &spoiled(&good.bytes));
    two.receive(good.clone());
    assert_eq!(two.arrived[THERE].len(), 1);
    let replayed = two.count(THERE, "dropped_replayed");
    show(&mut two, THERE, &[good.bytes]);
    assert_eq!(two.count(THERE, "dropped_replayed"), replayed + 1);
    assert_joined(&mut two);
}

#[test]
fn steps_of_handshakes_that_are_forged_spoiled_or_replayed_change_nothing() {
    let mut two = Two::with(|_, peer| peer.preshared_key = Some(PresharedKey::from([9; 32])));
    two.join();
    let now = two.now;
    two.engines[HERE].initiate(0, now);
    two.flush(HERE);
    let old = caught(&mut two);
    let initiation = repeated(&mut two, HERE);
    assert_eq!((old.bytes[0], initiation.bytes[0], initiation.to), (1, 1, THERE));
    show(&mut two, THERE, &spoiled(&initiation.bytes));
    // A stranger's, whose first code is right, and one that is sent back to where it came from.
    let of_stranger = forged(&two);
    show(&mut two, THERE, &[of_stranger]);
    assert_eq!(two.count(THERE, "dropped_unknown_peer"), 1);
    show(&mut two, HERE, std::slice::from_ref(&initiation.bytes));

    two.receive(initiation.clone());
    let response = caught(&mut two);
    assert_eq!((response.bytes[0], response.to), (2, HERE));
    let replayed = two.count(THERE, "dropped_replayed");
    show(&mut two, THERE, &[initiation.bytes.clone(), old.bytes]);
    assert_eq!(two.count(THERE, "dropped_replayed"), replayed + 2);

    // One who has everything of the other end but the key that both share.
    let mut config = WireguardConfig::new(two.keys[THERE].clone());
    config.peers = vec![Peer::new(two.keys[HERE].public_key())];
    let mut impostor = Two::engine(&config, 77, two.now);
    impostor.receive(address(HERE).into(), &initiation.bytes, two.now);
    let of_impostor = impostor.take_outgoing().remove(0).message.bytes().to_vec();
    assert_eq!(of_impostor[0], 2);
    let wrong = two.count(HERE, "dropped_not_authentic");
    show(&mut two, HERE, std::slice::from_ref(&of_impostor));
    assert_eq!(two.count(HERE, "dropped_not_authentic"), wrong + 1);
    show(&mut two, HERE, &spoiled(&response.bytes));
    let completed = two.count(HERE, "handshakes_completed");
    two.receive(response.clone());
    assert_eq!(two.count(HERE, "handshakes_completed"), completed + 1);
    show(&mut two, HERE, &[response.bytes, of_impostor]);
    assert_joined(&mut two);
}

#[test]
fn cookies_that_are_forged_spoiled_or_replayed_change_nothing() {
    let mut two = Two::joined();
    // So many that those behind them have to show a cookie.
    let (now, flood) = (two.now, forged(&two));
    let stranger = |last| SocketAddr::from(([11, 0, 0, last], 7));
    for last in 0..100 {
        two.engines[THERE].receive(stranger(last).into(), &flood, now);
    }
    two.engines[THERE].receive(stranger(100).into(), &flood, now);
    let of_stranger = two.engines[THERE].take_outgoing().remove(0).message;
    assert!(matches!(of_stranger, Message::Cookie(_)), "{of_stranger:?}");
    two.engines[HERE].initiate(0, now);
    two.flush(HERE);
    let initiation = caught(&mut two);
    two.receive(initiation);
    let cookie = caught(&mut two);
    assert_eq!((cookie.bytes[0], cookie.to), (3, HERE));
    show(&mut two, HERE, &spoiled(&cookie.bytes));
    // The stranger's own, which he passes off as that of the other one's initiation.
    let mut redirected = of_stranger.bytes().to_vec();
    redirected[4..8].copy_from_slice(&cookie.bytes[4..8]);
    show(&mut two, HERE, &[of_stranger.bytes().to_vec(), redirected]);
    assert_eq!(two.count(HERE, "cookies_received"), 0);
    two.receive(cookie.clone());
    assert_eq!(two.count(HERE, "cookies_received"), 1);
    show(&mut two, HERE, &[cookie.bytes]);
    assert_joined(&mut two);
}
