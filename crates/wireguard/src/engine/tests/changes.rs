//! What changes while an interface is in use: its key, its port, its peers and their settings.

use super::*;
use core::net::Ipv4Addr;

#[test]
fn a_packet_that_waits_gets_its_handshake_after_other_keys_too() {
    let mut two = Two::new();
    let mut peer = Peer::new(two.keys[THERE].public_key());
    peer.allowed_ips = vec![inside(THERE).into()];
    peer.endpoint = Some(address(THERE));
    let now = two.now;
    let engine = &mut two.engines[HERE];
    engine.set_private_key(PrivateKey::from([3; 32]), Zeroizing::new([3; 32]), now).expect("a key");
    engine.set_peers(vec![peer.clone()], now).expect("a peer");
    assert!(engine.take_outgoing().is_empty(), "nobody waits");
    let way = engine.begin_send(inside(THERE), (1, 64), &mut Vec::new(), now);
    assert_eq!(way, Way::Waits(0));
    let is_asked_again = |engine: &mut Tested| {
        let last = engine.take_outgoing().pop();
        assert!(matches!(last, Some(Outgoing { message: Message::Initiation(_), .. })), "{last:?}");
        assert!(engine.awaits_answer(0), "those that wait are kept");
    };
    is_asked_again(engine);
    peer.preshared_key = Some(PresharedKey::from([7; 32]));
    engine.set_peers(vec![peer], now).expect("a peer");
    is_asked_again(engine);
    engine.set_private_key(PrivateKey::from([4; 32]), Zeroizing::new([4; 32]), now).expect("a key");
    is_asked_again(engine);
}

#[test]
fn a_session_begins_anew_with_another_key_of_the_interface() {
    let mut two = Two::joined();
    let (now, key) = (two.now, two.keys[HERE].clone());
    two.engines[HERE].set_private_key(key, Zeroizing::new([3; 32]), now).expect("a key");
    two.flush(HERE);
    two.run(second(1));
    assert!(two.say(HERE) && two.say(THERE));
}

#[test]
fn an_interface_that_moves_tells_its_peers_before_it_has_anything_to_send() {
    let mut two = Two::new();
    two.engines[HERE].announce(two.now);
    assert_eq!(two.engines[HERE].outgoing(), 0, "nobody knows it yet");
    let mut two = Two::joined();
    assert!(two.say(THERE));
    two.run(second(1));
    let elsewhere = SocketAddr::from(([192, 0, 2, 99], 1234));
    two.addresses[HERE] = elsewhere;
    two.engines[HERE].announce(two.now);
    two.flush(HERE);
    two.run(second(1));
    assert_eq!(two.peer(THERE).endpoint, Some(elsewhere));
    let before = two.arrived[HERE].len();
    assert!(two.say(THERE));
    two.run(second(1));
    assert_eq!(two.arrived[HERE].len(), before + 1);
}

/// Where an interface is that has moved.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 99)), 1234);

#[test]
fn a_handshake_that_is_under_way_while_the_interface_moves_costs_no_timeout() {
    // An initiation that is to be answered, and one that this end has answered.
    for (asks, forth) in [(HERE, 0), (HERE, 1), (THERE, 1), (THERE, 2)] {
        let mut two = Two::new();
        assert!(!two.say(asks));
        two.run(Nanos::from_millis(forth * 10 + 5));
        two.addresses[HERE] = ELSEWHERE;
        two.path.retain(|_, flying| flying.to != HERE);
        two.engines[HERE].announce(two.now);
        two.flush(HERE);
        two.run(second(1));
        let who = format!("{asks} asks, {forth}");
        assert_eq!(two.peer(THERE).endpoint, Some(ELSEWHERE), "{who}");
        assert_eq!(two.peer(HERE).failed_handshakes, 0, "{who}");
        assert!(two.say(THERE) && two.say(HERE), "{who}");
        two.run(second(1));
        assert_eq!((two.arrived[HERE].len(), two.arrived[THERE].len()), (1, 1), "{who}");
    }
}

#[test]
fn a_peer_that_gets_its_endpoint_after_the_interface_has_moved_is_greeted_at_once() {
    let mut two = Two::with(|end, peer| {
        if end == HERE {
            peer.endpoint = None;
        }
    });
    assert!(!two.say(HERE), "it waits for the endpoint");
    two.addresses[HERE] = ELSEWHERE;
    let (here, key, now) = (&mut two.engines[HERE], two.keys[THERE].public_key(), two.now);
    here.announce(now);
    assert_eq!(here.outgoing(), 0, "nobody knows where to");
    here.set_endpoint(&key, address(THERE), now).expect("a peer");
    assert_eq!(here.outgoing(), 1);
    assert!(here.awaits_answer(0), "frames that wait are kept");
    two.flush(HERE);
    two.run(second(1));
    assert!(two.say(HERE) && two.say(THERE));
}

#[test]
fn changes_that_belong_together_are_one_initiation() {
    let mut two = Two::joined();
    let (now, key) = (two.now, two.keys[HERE].clone());
    let mut peer = Peer::new(two.keys[THERE].public_key());
    peer.allowed_ips = vec![inside(THERE).into()];
    peer.persistent_keepalive = Some(Duration::from_secs(30));
    let here = &mut two.engines[HERE];
    here.hold();
    two.addresses[HERE] = ELSEWHERE;
    here.announce(now);
    here.set_private_key(key, Zeroizing::new([3; 32]), now).expect("a key");
    here.set_peers(vec![peer.clone()], now).expect("a peer");
    here.advance(now + second(1));
    let way = here.begin_send(inside(THERE), (1, 64), &mut Vec::new(), now);
    assert_eq!((way, here.outgoing()), (Way::Waits(0), 0), "peers are told at the end");
    assert!(here.awaits_answer(0), "frames that wait are kept");
    here.release(now);
    assert_eq!(here.outgoing(), 1);
    two.flush(HERE);
    two.run(second(1));
    assert!(two.say(HERE) && two.say(THERE));
    assert_eq!(two.peer(THERE).endpoint, Some(ELSEWHERE));
    // One that is gone is told nothing.
    let here = &mut two.engines[HERE];
    here.hold();
    here.announce(two.now);
    here.set_peers(Vec::new(), two.now).expect("no peers");
    here.release(two.now);
    assert_eq!(here.outgoing(), 0);
}

#[test]
fn peers_that_stay_keep_sessions_and_counters() {
    let mut two = Two::joined();
    let known = two.peer(HERE);
    let mut same = Peer::new(known.public_key);
    same.allowed_ips = known.allowed_ips.clone();
    same.endpoint = Some(address(THERE));
    let mut other = Peer::new(PrivateKey::from([5; 32]).public_key());
    other.allowed_ips = vec!["0.0.0.0/0".parse().expect("a prefix")];
    let engine = &mut two.engines[HERE];
    engine.set_peers(vec![other.clone(), same.clone()], two.now).expect("peers");
    let status = engine.status();
    assert_eq!((status[1].sent, status[1].latest_handshake), (known.sent, known.latest_handshake));
    let way = engine.begin_send(IpAddr::from([8, 8, 8, 8]), (1, 64), &mut Vec::new(), two.now);
    assert!(matches!(way, Way::Waits(_)), "for an endpoint: {way:?}");
    assert!(two.say(HERE), "the session goes on");
    // A prefix that a later peer has too is the later peer's.
    other.allowed_ips = same.allowed_ips.clone();
    let engine = &mut two.engines[HERE];
    engine.set_peers(vec![same.clone(), other.clone()], two.now).expect("peers");
    assert_eq!(engine.status()[0].allowed_ips, []);
    // What cannot be taken changes nothing.
    let low = Peer::new(PublicKey::from([0; 32]));
    for (peers, expected) in [
        (vec![same.clone(), same.clone()], "there twice"),
        (vec![Peer::new(two.keys[HERE].public_key())], "there twice"),
        (vec![low], "no private key"),
    ] {
        let error = two.engines[HERE].set_peers(peers, two.now).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(two.engines[HERE].order.len(), 2);
    }
    two.engines[HERE].set_peers(vec![same], two.now).expect("peers");
    assert_eq!(two.engines[HERE].order.len(), 1);
    assert!(two.say(HERE));
}

#[test]
fn a_changed_keepalive_costs_a_round_trip_and_no_more() {
    for keepalive in [None, Some(25), Some(30)] {
        let mut two = Two::with(|end, peer| {
            peer.persistent_keepalive = (end == HERE).then_some(Duration::from_secs(25));
        });
        two.join();
        let mut peer = Peer::new(two.keys[THERE].public_key());
        peer.allowed_ips = vec![inside(THERE).into()];
        peer.persistent_keepalive = keepalive.map(Duration::from_secs);
        two.arrived = Default::default();
        two.engines[HERE].set_peers(vec![peer], two.now).expect("peers");
        two.flush(HERE);
        two.run(Nanos::from_millis(30));
        assert!(two.say(THERE));
        two.run(DELAY);
        assert_eq!(two.arrived[HERE].len(), 1, "{keepalive:?}");
        // Nothing else is lost later.
        let handshakes = two.count(HERE, "handshakes_completed");
        assert_eq!(handshakes, 1 + u64::from(keepalive != Some(25)), "{keepalive:?}");
    }
}

#[test]
fn another_address_of_a_peer_that_was_given_up_is_tried_after_its_interval() {
    let mut two = Two::with(|end, peer| {
        if end == HERE {
            peer.persistent_keepalive = Some(Duration::from_secs(3600));
            peer.endpoint = Some(ELSEWHERE);
        }
    });
    two.run(second(95));
    let (key, now) = (two.keys[THERE].public_key(), two.now);
    two.engines[HERE].set_next_endpoint(&key, address(THERE), now).expect("a peer");
    two.run(second(3400));
    assert_eq!(two.count(HERE, "handshakes_completed"), 0);
    two.run(second(200));
    assert_eq!(two.count(HERE, "handshakes_completed"), 1);
}

#[test]
fn a_change_tries_a_peer_that_was_given_up_at_once() {
    type Change = fn(&mut Tested, Peer, Instant);
    let changes: [(&str, Change); 6] = [
        ("a keepalive", |here, mut peer, now| {
            peer.persistent_keepalive = Some(Duration::from_secs(25));
            here.set_peers(vec![peer], now).expect("a peer");
        }),
        ("a shared key", |here, mut peer, now| {
            // The other end has none as well.
            peer.preshared_key = Some(PresharedKey::from([0; 32]));
            here.set_peers(vec![peer], now).expect("a peer");
        }),
        ("an endpoint of a file", |here, mut peer, now| {
            peer.endpoint = Some(address(THERE));
            here.set_peers(vec![peer], now).expect("a peer");
        }),
        ("an endpoint", |here, peer, now| {
            here.set_endpoint(&peer.public_key, address(THERE), now).expect("a peer");
        }),
        ("a key", |here, _, now| {
            let seed = Zeroizing::new([3; 32]);
            here.set_private_key(PrivateKey::from([1; 32]), seed, now).expect("a key");
        }),
        ("a sleep", |here, _, now| here.begin_all_anew(now)),
    ];
    for (name, change) in changes {
        let is_elsewhere = name.contains("endpoint");
        let mut two = Two::with(|end, peer| {
            if end == HERE {
                peer.persistent_keepalive = Some(Duration::from_secs(3600));
                if is_elsewhere {
                    peer.endpoint = Some(ELSEWHERE);
                }
            }
        });
        two.spoil = |_| true;
        two.run(second(95));
        assert!(!two.engines[HERE].awaits_answer(0), "{name}: it is given up");
        let peer = two.engines[HERE].peers[0].as_ref().expect("a peer").peer.clone();
        change(&mut two.engines[HERE], peer, two.now);
        two.spoil = |_| false;
        two.run(second(1));
        assert_eq!(two.count(HERE, "handshakes_completed"), 1, "{name}");
    }
}
