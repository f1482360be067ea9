//! Worlds of the swarm, and what a host holds under each hostile peer. `NEAP_SEED=n` runs only the
//! world of that seed; `NEAP_WORLDS=n` so many worlds, `NEAP_FROM=n` from that seed on.

use neap_lab::hostile::Attack;
use neap_lab::swarm::{self, AttackMemory};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const WORLDS: u64 = 2000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn nothing_breaks_in_random_worlds() {
    let seed = number("NEAP_SEED");
    let first = seed.or_else(|| number("NEAP_FROM")).unwrap_or(0);
    let last = first + seed.map_or_else(|| number("NEAP_WORLDS").unwrap_or(WORLDS), |_| 1);
    let (next, faults) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    if let Err(broken) = swarm::run_seed(seed) {
                        faults.lock().expect("no panic").push((seed, broken.fault));
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no panic");
    for (seed, fault) in &faults {
        println!("seed {seed}: {fault}\n    neap lab swarm --seed {seed}");
    }
    assert!(faults.is_empty(), "{} worlds are broken", faults.len());
}

/// RACK waits for as long as the round trip of a frame that was thought lost and then is SACKed,
/// which is longer than the timeout.
const LATE_SACKS: &str = r#"
duration = "17s"
seed = 1005575
oracles = "survival"
[host.b]
qdisc = "fq_codel"
[host.b.nic]
ring = 2
[host.b.sysctl]
"neap.tcp_tso_autosizing" = 0
"net.ipv4.tcp_limit_output_bytes" = 20000
"net.ipv4.tcp_notsent_lowat" = 1
"net.ipv4.tcp_syncookies" = 2
[hostile.enemy0]
attack = "sack-lies"
count = 3
stop = "8s"
target = "b"
[link.to-enemy0]
ends = ["enemy0", "b"]
rate = "154437bps"
"#;

/// A rate that is low for a moment plans a departure far off.
const SLOW_DEPARTURE: &str = r#"
duration = "29s"
oracles = "survival"
[host.a]
[host.b.sysctl]
"neap.tcp_small_queues" = 0
"net.ipv4.tcp_congestion_control" = "bbr3"
"net.ipv4.tcp_sack" = 0
"net.ipv4.tcp_syncookies" = 2
[hostile.enemy0]
attack = "syn-flood"
stop = "4s"
target = "a"
[hostile.enemy1]
attack = "sack-lies"
count = 4
stop = "17s"
target = "b"
[link.to-enemy0]
ends = ["enemy0", "a"]
rate = "111965bps"
[link.to-enemy1]
ends = ["enemy1", "b"]
rate = "111965bps"
[link.to-enemy1.back.bottleneck]
buffer = "7 packets"
rate = "37321bps"
"#;

/// A send buffer that grew with the window, and is cut into segments of 36 bytes.
const TINY_MSS: &str = r#"
duration = "37s"
seed = 5010663
oracles = "survival"
[host.a.sysctl]
"neap.tcp_small_queues" = 0
[host.b]
[hostile.enemy0]
attack = "tiny-mss"
count = 5
stop = "27s"
target = "a"
[link.l0]
ends = ["a", "r0"]
rate = "2198584bps"
[link.l1]
ends = ["b", "r0"]
rate = "2638301bps"
[link.to-enemy0]
ends = ["enemy0", "a"]
rate = "1465723bps"
[link.to-enemy0.back.bottleneck]
rate = "488574bps"
[link.to-enemy0.back.red]
max = 27291
min = 9097
probability = "10%"
[router.r0]
"#;

/// The first SYN of a connection is forged, and so is what the answer acknowledges.
const FORGED_SYN: &str = r#"
duration = "7s"
ipv6 = true
oracles = "survival"
[host.a]
[host.b]
[host.c]
[host.d]
[hostile.enemy1]
attack = "blind"
session = "s0"
stop = "29s"
target = "c"
[link.l0]
ends = ["a", "r0"]
rate = "171880bps"
[link.l1]
ends = ["b", "r0"]
rate = "217715bps"
[link.l2]
ends = ["c", "r0"]
rate = "34376bps"
[link.l3]
ends = ["d", "r0"]
rate = "114587bps"
[link.to-enemy1]
ends = ["enemy1", "c"]
rate = "114587bps"
[router.r0]
[session.s0]
from = "b"
start = "197080348ns"
to = "c"
[session.s2]
bytes = 16158
from = "d"
to = "c"
"#;

/// A closed window is probed when the timeout is over that begins where the paced schedule ends.
const PACED_PROBE: &str = r#"
duration = "56s"
oracles = "survival"
[host.b.sysctl]
"net.ipv4.tcp_congestion_control" = "bbr"
"net.ipv4.tcp_early_retrans" = 0
"net.ipv4.tcp_syncookies" = 2
[hostile.enemy0]
attack = "window-shrink"
count = 4
stop = "22s"
target = "b"
[link.to-enemy0]
ends = ["enemy0", "b"]
rate = "114467bps"
[link.to-enemy0.back.bottleneck]
rate = "19077bps"
"#;

/// A path is found narrow between two answers to a SYN, which say an MSS each.
const TWO_ANSWERS: &str = r#"
duration = "6s"
oracles = "survival"
[host.a.sysctl]
"net.ipv4.tcp_syncookies" = 2
[host.b.sysctl]
"net.ipv4.tcp_ecn" = 1
[link.l0]
ends = ["a", "b"]
mtu = 1068
rate = "5198bps"
[session.s2]
bytes = 1763
from = "b"
start = "287222472ns"
to = "a"
[session.s3]
bytes = 6886
from = "a"
start = "227377996ns"
to = "b"
"#;

/// What was answered is forged, and the connection begins with another SYN.
const FORGED_BEFORE: &str = r#"
duration = "10s"
oracles = "survival"
[host.a]
[host.b.sysctl]
"neap.tcp_tso_autosizing" = 0
[hostile.enemy1]
attack = "blind"
session = "s0"
stop = "9s"
target = "a"
[link.l0]
ends = ["a", "r0"]
rate = "74616bps"
[link.l1]
ends = ["b", "r0"]
rate = "18654bps"
[link.to-enemy1]
ends = ["enemy1", "a"]
rate = "186542bps"
[router.r0]
[session.s0]
from = "b"
start = "452281560ns"
to = "a"
[session.s2]
bytes = 15667
from = "b"
to = "a"
"#;

/// Datagrams fill a queue of minutes in front of a retransmission.
const SLOW_QUEUE: &str = r#"
duration = "400s"
oracles = "survival"
[app.app0]
count = 4
from = "a"
interval = "235294117ns"
kind = "udp"
message = 594
stop = "400s"
to = "c"
[app.app1]
from = "a"
kind = "request-response"
request = 1
response = 1
think = "14s"
stop = "400s"
to = "c"
[host.a]
[host.c]
[link.l0]
ends = ["a", "r0"]
rate = "1250bps"
[link.l2]
ends = ["c", "r0"]
rate = "13334bps"
[router.r0]
"#;

/// The SYN of a blind attacker, with timestamps, holds the half-open connection of a client that
/// has none.
const HELD_BY_AN_ATTACKER: &str = r#"
duration = "25s"
oracles = "survival"
seed = 9009635
[host.a]
[host.b.sysctl]
"net.ipv4.tcp_timestamps" = 0
[hostile.enemy0]
attack = "tiny-segments"
stop = "15s"
target = "b"
[hostile.enemy1]
attack = "blind"
interval = "27778650ns"
session = "s0"
stop = "11s"
target = "a"
[link.l0]
delay = "13564441ns"
ends = ["a", "r0"]
rate = "6111931bps"
[link.l1]
ends = ["r0", "r1"]
rate = "3667158bps"
[link.l2]
ends = ["r1", "b"]
rate = "8149242bps"
[link.to-enemy0]
ends = ["enemy0", "b"]
rate = "4074621bps"
[link.to-enemy1]
ends = ["enemy1", "a"]
rate = "4074621bps"
[router.r0]
[router.r1]
[session.s0]
from = "b"
start = "440799861ns"
to = "a"
"#;

/// A host has given up connections whose data waits in the band of their priority. Its resets for
/// what still arrives pass them.
const RESETS_THAT_PASS: &str = r#"
duration = "60s"
oracles = "survival"
[app.app1]
bytes = 5379
count = 4
from = "b"
kind = "transfer"
priority = 3
to = "a"
[host.a]
[host.b.sysctl]
"net.ipv4.tcp_limit_output_bytes" = 1
"net.ipv4.tcp_retries2" = 3
[link.l0]
ends = ["a", "r0"]
rate = "1250bps"
[link.l1]
ends = ["r0", "r1"]
rate = "2595bps"
[link.l2]
ends = ["r1", "b"]
rate = "1250bps"
[router.r0]
[router.r1]
"#;

/// A forged SYN crosses that of a client, which opens the connection with the attacker until the
/// answer of its peer comes.
const FORGED_CROSSING: &str = r#"
duration = "33000000000ns"
oracles = "survival"
seed = 500031611
[host.a.sysctl]
"net.ipv4.tcp_syncookies" = 2
[host.b]
[hostile.enemy0]
attack = "tiny-segments"
stop = "30000000000ns"
target = "a"
[hostile.enemy1]
attack = "dies-in-fin-wait-1"
stop = "21000000000ns"
target = "a"
[hostile.enemy2]
attack = "blind"
session = "s0"
stop = "19000000000ns"
target = "b"
[link.l0]
ends = ["a", "b"]
rate = "2060128bps"
[link.l0.there]
loss = "98724ppm"
[link.to-enemy0]
ends = ["enemy0", "a"]
rate = "2060128bps"
[link.to-enemy1]
ends = ["enemy1", "a"]
rate = "2060128bps"
[link.to-enemy2]
ends = ["enemy2", "b"]
rate = "2060128bps"
[session.s0]
from = "b"
to = "a"
"#;

/// The same, and the forged SYN knows SACK where the peer does not.
const FORGED_CROSSING_WITH_SACK: &str = r#"
duration = "56000000000ns"
oracles = "survival"
seed = 500104036
[host.a]
[host.b.sysctl]
"net.ipv4.tcp_sack" = 0
[hostile.enemy0]
attack = "blind"
interval = "28373427ns"
session = "s0"
stop = "27000000000ns"
target = "a"
[link.l0]
delay = "5548659ns"
ends = ["a", "r0"]
rate = "1494162bps"
[link.l1]
delay = "5548659ns"
ends = ["r0", "r1"]
rate = "1494162bps"
[link.l2]
ends = ["r1", "b"]
rate = "1419453bps"
[link.to-enemy0]
ends = ["enemy0", "a"]
rate = "747081bps"
[router.r0]
[router.r1]
[session.s0]
from = "a"
start = "435210741ns"
to = "b"
"#;

/// Cookies have answered forged SYNs, with windows that were not for the peer.
const FORGED_BEFORE_COOKIES: &str = r#"
duration = "39000000000ns"
oracles = "survival"
[app.app1]
bytes = 2022
count = 4
from = "a"
kind = "transfer"
to = "b"
[host.a.sysctl]
"net.ipv4.tcp_syncookies" = 2
[host.b]
[hostile.enemy0]
attack = "dies-in-fin-wait-2"
stop = "11000000000ns"
target = "b"
[hostile.enemy1]
attack = "dies-in-syn-received"
stop = "10000000000ns"
target = "b"
[hostile.enemy2]
attack = "blind"
session = "s0"
stop = "22000000000ns"
target = "a"
[link.l0]
ends = ["a", "r0"]
rate = "20813bps"
[link.l1]
ends = ["b", "r0"]
rate = "156097bps"
[link.to-enemy0]
ends = ["enemy0", "b"]
rate = "104065bps"
[link.to-enemy1]
ends = ["enemy1", "b"]
rate = "104065bps"
[link.to-enemy2]
ends = ["enemy2", "a"]
rate = "104065bps"
[router.r0]
[session.s0]
bytes = 1
from = "b"
start = "368804181ns"
to = "a"
"#;

/// A peer gives up what it had SACKed, the first segment of a frame, and closes its window.
const FIRST_OF_A_FRAME_GIVEN_UP: &str = r#"
duration = "18000000000ns"
oracles = "survival"
[host.a]
[host.b.sysctl]
"neap.tcp_tso_autosizing" = 0
"net.ipv4.tcp_congestion_control" = "bbr"
"net.ipv4.tcp_notsent_lowat" = 1
"net.ipv4.tcp_rto_min_us" = 5000
[hostile.enemy0]
attack = "never-reads"
count = 6
stop = "19000000000ns"
target = "b"
[link.l0]
ends = ["a", "r0"]
rate = "1353751bps"
[link.to-enemy0]
ends = ["enemy0", "b"]
rate = "3384378bps"
[link.to-enemy0.back.bottleneck]
buffer = "46 packets"
rate = "338437bps"
[router.r0]
"#;

#[test]
fn worlds_that_were_broken_are_sound() {
    let worlds = [
        LATE_SACKS,
        SLOW_DEPARTURE,
        TINY_MSS,
        FORGED_SYN,
        FORGED_BEFORE,
        PACED_PROBE,
        SLOW_QUEUE,
        TWO_ANSWERS,
        HELD_BY_AN_ATTACKER,
        RESETS_THAT_PASS,
        FORGED_CROSSING,
        FORGED_CROSSING_WITH_SACK,
        FORGED_BEFORE_COOKIES,
        FIRST_OF_A_FRAME_GIVEN_UP,
    ];
    for text in worlds {
        let text = format!("about = \"once broken\"\n{text}");
        if let Err(broken) = swarm::run(&text, u64::MAX) {
            panic!("{}:{text}", broken.fault);
        }
    }
}

#[test]
fn copies_do_not_fill_slow_links_where_everything_must_arrive() {
    // The slowest link takes 1.2 s per frame, and 16 connections may send copies.
    let text = swarm::draw(1_004_884);
    assert!(
        text.contains("oracles = \"delivery\"") && text.contains("rate = \"1250bps\""),
        "{text}"
    );
    let least = text.lines().filter_map(|line| line.strip_prefix("\"net.ipv4.tcp_rto_max_ms\" = "));
    let least: Vec<u64> = least.map(|number| number.parse().expect("a number")).collect();
    assert!(least.len() == 2 && least.iter().all(|&ms| ms > 16 * 1200), "{least:?}");
}

#[test]
fn bursts_of_losses_end_no_connection_where_everything_must_arrive() {
    // One takes every answer to the keepalive probes of a peer that waits for a retransmission.
    if let Err(broken) = swarm::run_seed(500_017_099) {
        panic!("{}", broken.fault);
    }
}

#[test]
fn a_world_that_breaks_is_made_smaller_until_nothing_can_go() {
    // The victim reads nothing but what must come: other bytes are a fault that never heals.
    let text = r#"
about = "a link that loses everything, and more than that"
duration = "5s"
oracles = "delivery"
[host.a]
qdisc = "fq"
[host.b.sysctl]
"net.ipv4.tcp_sack" = 0
[link.wire]
ends = ["a", "b"]
rate = "1mbit"
delay = "5ms"
loss = "100%"
jitter = "1ms"
[session.one]
from = "a"
to = "b"
bytes = 100000
write = 1000
[session.two]
from = "b"
to = "a"
bytes = 1000
"#;
    let broken = swarm::run(text, u64::MAX).expect_err("nothing arrives");
    assert_eq!(broken.oracle(), "stream");
    let (small, still) = swarm::shrink(text, &broken, &|_| {});
    assert_eq!(still.oracle(), "stream");
    for word in ["qdisc", "sysctl", "jitter", "delay"] {
        assert!(!small.contains(word), "{word} can go:\n{small}");
    }
    assert_eq!(small.matches("[session.").count(), 1, "one is enough:\n{small}");
    assert!(small.contains("loss = \"100%\""), "{small}");
    assert!(small.contains("oracles = \"delivery\""), "neap lab run has none without it:\n{small}");
    swarm::run(&small, u64::MAX).expect_err("it still breaks");
}

#[test]
fn a_host_that_notices_its_timers_too_late_is_silent() {
    let world = |lateness: &str| {
        format!(
            r#"
about = "a host that sleeps"
duration = "60s"
oracles = "survival"
[host.a]
lateness = "{lateness}"
[host.b]
[link.wire]
ends = ["a", "b"]
rate = "1mbit"
delay = "5ms"
[session.one]
from = "a"
to = "b"
bytes = 100000
"#
        )
    };
    swarm::run(&world("100ms"), u64::MAX).expect("that is no fault");
    let broken = swarm::run(&world("30s"), u64::MAX).expect_err("timers are late by seconds");
    assert!(broken.oracle() == "flow" && broken.fault.contains("silent"), "{}", broken.fault);
}

#[test]
fn memory_is_bounded_under_each_hostile_peer() {
    for &attack in Attack::ALL {
        let memory =
            AttackMemory::run(attack).unwrap_or_else(|broken| panic!("{attack:?}: {broken:?}"));
        println!("{memory}");
        assert!(memory.holds(), "{memory}");
    }
}
