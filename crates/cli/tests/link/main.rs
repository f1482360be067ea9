//! `neap link` between kernels, and between neap and a kernel, in network namespaces.

mod hosts;
#[path = "../common/udp_counter.rs"]
mod udp_counter;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hosts::{A, B, Network, eventually, in_namespace, run};
use neap::device::{Frame, Packet, PacketConfig, Received, RxChecksum};
use neap::time::{Instant, Nanos};
use neap_lab::link::Relay;
use neap_lab::pattern::Pattern;
use neap_lab::rng::Rng;
use neap_lab::scenario::netem;
use udp_counter::udp_counter;

fn neap(arguments: &str) -> (Option<i32>, String) {
    let words = arguments.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_neap")).arg("link").args(words).output();
    let output = output.expect("neap runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn bad_arguments_end_with_status_2_and_say_what_is_expected() {
    for (arguments, hint) in [
        ("", "required"),
        ("tun0", "required"),
        ("tun0 @b", "expected an interface"),
        ("tun0 tun1 delay 40", "expected a time with its unit"),
        ("tun0 tun1 loss 1", "a share from"),
        ("tun0 tun1 speed 5mbit", "there are delay, loss"),
        ("tun0 tun1 delay 1ms --scenario x", "cannot be used with"),
        ("tun0 tun1 --scenario nowhere", "neap lab list"),
        ("tun0 tun1 --link wire", "--scenario"),
        ("tun0 tun1 --seconds 0", "a number above 0"),
        ("tun0 tun1 --batch 50", "a time with its unit"),
        ("tun0 tun1 --packets 0", "a number above 0"),
        ("tun0 tun1 limit 0", "packets above zero"),
        ("tun0 tun1 --address-a 10.1.0.1", "10.1.0.1/24"),
    ] {
        let (status, text) = neap(arguments);
        assert!(status == Some(2) && text.contains(hint), "{arguments}: {status:?} {text}");
    }
}

#[test]
fn ends_that_cannot_be_opened_say_what_to_do() {
    in_namespace(|| {
        run("ip link add v0 type veth peer name v1");
        for (arguments, status, hint) in [
            ("tun0@nowhere tun1", 1, "cannot enter the network namespace /run/netns/nowhere"),
            ("packet:v9 v1", 1, "there is no interface v9"),
            ("v0 v1", 1, "v0 is down: bring it up"),
            ("tun:v0 tun1", 1, "is not a TUN device"),
        ] {
            let (found, text) = neap(arguments);
            assert!(found == Some(status) && text.contains(hint), "{arguments}: {found:?} {text}");
        }
        run("ip link set v0 up");
        run("ip link set v1 up");
        let (status, text) = neap("v0 v1 --address-a 10.1.0.1/24");
        assert!(status == Some(2) && text.contains("belongs to a TUN"), "{text}");
        let (status, text) = neap("v0 v1 --mtu 1400");
        assert!(status == Some(2) && text.contains("--mtu is for a TUN or TAP"), "{text}");
        let (status, text) = neap("tun0 v0");
        assert!(status == Some(2) && text.contains("join two TUNs"), "{text}");
    });
}

#[test]
fn a_link_ends_when_its_time_is_over_or_an_end_goes_away() {
    in_namespace(|| {
        let mut network = Network::tuns("--seconds 0.2 --strict --late 100s");
        assert_eq!(network.link.take().expect("a link").wait(), (Some(0), String::new()));
        for (mut network, end) in [(Network::tuns(""), "tun0"), (Network::veths("", true), "a0")] {
            network.a.inside(|| run(&format!("ip link delete {end}")));
            let (status, text) = network.link.take().expect("a link").wait();
            assert!(status == Some(1) && text.contains("has gone away"), "{status:?} {text}");
        }
    });
}

#[test]
fn a_link_that_spins_ends_with_its_interface() {
    in_namespace(|| {
        let mut network = Network::tuns("--spin --seconds 60");
        network.a.inside(|| run("ip link delete tun0"));
        let (status, text) = network.link.take().expect("a link").wait();
        assert!(status == Some(1) && text.contains("has gone away"), "{status:?} {text}");
    });
}

#[test]
fn a_link_ends_with_an_interface_that_is_down() {
    in_namespace(|| {
        // AF_PACKET tells nothing of its end.
        let mut network = Network::veths("--seconds 60", true);
        let link = network.link.take().expect("a link");
        network.in_the_middle(|| run("ip link set la down"));
        link.goes_around();
        network.in_the_middle(|| run("ip link delete la"));
        let (status, text) = link.wait();
        assert!(status == Some(1) && text.contains("has gone away"), "{status:?} {text}");
    });
}

/// Round trips in milliseconds of pings from the first host to the second.
fn pings(network: &Network, to: &str, count: usize) -> Vec<f64> {
    let text = network.a.inside(|| run(&format!("ping -n -c {count} -i 0.02 -W 30 {to}")));
    let times = text.lines().filter_map(|line| line.split_once("time="));
    let millis = times.map(|(_, rest)| rest.split_whitespace().next().expect("a number"));
    millis.map(|millis| millis.parse().expect("a number")).collect()
}

#[test]
fn pings_take_the_delay_of_both_directions() {
    in_namespace(|| {
        let words = "there delay 20ms back delay 10ms";
        for mut network in [Network::tuns(words), Network::veths(words, true)] {
            for to in B {
                // Load makes some of them longer, and none of them shorter.
                eventually(|| {
                    let times = pings(&network, to, 10);
                    let shortest = times.iter().copied().fold(f64::MAX, f64::min);
                    assert!(shortest >= 30.0, "{times:?}");
                    // After its last request ping waits for no more than twice the longest time.
                    (times.len() == 10 && shortest < 60.0).then_some(())
                });
            }
            let counts = network.end();
            assert!(counts.of(0, "packets_out") >= 20 && counts.of(1, "packets_out") >= 20);
        }
    });
}

/// A datagram of IPv4 with this payload, as a TUN hands it over.
fn datagram(payload: &[u8]) -> Received {
    let mut data = vec![0; 28];
    data[0] = 0x45;
    data[2..4].copy_from_slice(&(28 + payload.len() as u16).to_be_bytes());
    data[9] = 17;
    data[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    data.extend_from_slice(payload);
    Received { data: data.into(), gso_size: 0, checksum: RxChecksum::Unknown }
}

/// The numbers of the datagrams that come through a link in virtual time undamaged, with its
/// counts of lost, duplicated and corrupted ones.
fn predicted(words: &str, seed: u64, count: u32) -> (Vec<u32>, [u64; 3]) {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let config = netem::parse(&words, &|_| Err("no files".to_owned())).expect("a link");
    let start = Instant::from_nanos(1_000_000_000);
    let mut relay = Relay::new(config, &Rng::new(seed), start, false);
    let (mut come, mut dues) = (Vec::new(), Vec::new());
    let original = |number: u32| number.to_be_bytes().repeat(25);
    for number in 0..count {
        let now = start + Nanos::from_micros(number.into());
        relay.enter(0, now, datagram(&original(number)));
    }
    let whole = |frame: &Frame| frame.to_bytes();
    while relay.contents() > 0 {
        let now = relay.next_event();
        relay.advance(now);
        while let Some(frame) = relay.leave(0, now, &mut dues) {
            let bytes = whole(&frame);
            let number = u32::from_be_bytes(*bytes[28..].first_chunk().expect("a number"));
            if bytes == datagram(&original(number)).data {
                come.push(number);
            }
        }
    }
    come.sort_unstable();
    let link = relay.stats(0, start).link;
    (come, [link.lost, link.duplicated, link.corrupted])
}

#[test]
fn a_seed_takes_the_same_packets_as_in_virtual_time() {
    const COUNT: u32 = 200;
    in_namespace(|| {
        let words = "there delay 5ms 2ms loss 5% reorder 10% duplicate 4% corrupt 3%";
        let (expected, [lost, duplicated, corrupted]) = predicted(words, 7, COUNT);
        assert!(lost > 0 && duplicated > 0 && corrupted > 0);
        let mut network = Network::quiet_tuns(&format!("{words} --seed 7"));
        let bind = |address: &str| UdpSocket::bind((address, 5000)).expect("bind");
        let from = network.a.inside(|| bind(A[0]));
        let to = network.b.inside(|| bind(B[0]));
        for number in 0..COUNT {
            let payload = number.to_be_bytes().repeat(25);
            let sent = from.send_to(&payload, (B[0], 5000)).expect("sent");
            assert_eq!(sent, payload.len());
        }
        to.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut come = Vec::new();
        let mut buffer = [0; 200];
        // None of them is lost in the socket, whose buffer holds all.
        while come.len() < expected.len() {
            let len = to.recv(&mut buffer).unwrap_or_else(|error| panic!("{error}: {come:?}"));
            let number = u32::from_be_bytes(*buffer.first_chunk().expect("a number"));
            assert_eq!(buffer[..len], number.to_be_bytes().repeat(25));
            come.push(number);
        }
        come.sort_unstable();
        assert_eq!(come, expected);
        let counts = network.end();
        assert_eq!(counts.of(0, "packets_in"), u64::from(COUNT));
        let found = ["lost", "duplicated", "corrupted"].map(|name| counts.of(0, name));
        assert_eq!(found, [lost, duplicated, corrupted]);
        let all = expected.iter().copied().collect::<BTreeSet<_>>().len() as u64;
        assert!(all <= u64::from(COUNT) - lost, "those that come are not lost");
    });
}

/// What all streams carry.
const STREAM: Pattern = Pattern::new(3);

/// Sends the first `len` bytes of it.
fn send(mut to: impl Write, len: u64) {
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    while offset < len {
        let chunk = &mut buffer[..(len - offset).min(64 << 10) as usize];
        STREAM.fill(offset, chunk);
        to.write_all(chunk).unwrap_or_else(|error| panic!("write at {offset}: {error}"));
        offset += chunk.len() as u64;
    }
}

/// Reads until the end; each byte must be right. Returns how many came.
fn receive(mut from: impl Read) -> u64 {
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    loop {
        let len =
            from.read(&mut buffer).unwrap_or_else(|error| panic!("read at {offset}: {error}"));
        if len == 0 {
            return offset;
        }
        assert_eq!(STREAM.mismatch(offset, &buffer[..len]), None, "behind byte {offset}");
        offset += len as u64;
    }
}

/// A stream from one kernel to the other.
fn transfer(network: &Network, to: &str, len: u64) {
    let to: IpAddr = to.parse().expect("an address");
    let listener = network.b.inside(|| TcpListener::bind((to, 0)).expect("bind"));
    let address = listener.local_addr().expect("an address");
    let stream = network.a.inside(|| TcpStream::connect(address).expect("connect"));
    thread::scope(|scope| {
        scope.spawn(|| {
            send(&stream, len);
            stream.shutdown(Shutdown::Write).expect("shutdown");
        });
        let (accepted, _) = listener.accept().expect("accept");
        assert_eq!(receive(&accepted), len);
    });
}

#[test]
fn streams_of_kernels_survive_what_a_link_does_to_packets() {
    const LEN: u64 = 8 << 20;
    in_namespace(|| {
        let words = "delay 2ms 500us loss 0.5% reorder 2% 1ms duplicate 1% corrupt 0.5%";
        for mut network in [Network::tuns(words), Network::veths(words, true)] {
            B.iter().for_each(|to| transfer(&network, to, LEN));
            let counts = network.end();
            for name in ["lost", "reordered", "duplicated", "corrupted"] {
                assert!(counts.of(0, name) > 0, "{name}: {counts:?}");
            }
            assert!(counts.of(0, "bytes_in") > 2 * LEN, "{counts:?}");
        }
    });
}

#[test]
fn super_frames_are_cut_for_the_wire_and_joined_behind_it() {
    const LEN: u64 = 48 << 20;
    in_namespace(|| {
        for mut network in [Network::tuns("delay 1ms"), Network::veths("delay 1ms", true)] {
            B.iter().for_each(|to| transfer(&network, to, LEN));
            let counts = network.end();
            let [frames, packets] = ["frames_in", "packets_in"].map(|name| counts.of(0, name));
            assert!(packets > 2 * LEN / 1448 && frames < packets / 4, "{counts:?}");
            let [frames, packets] = ["frames_out", "packets_out"].map(|name| counts.of(0, name));
            assert!(frames < packets / 2, "{counts:?}");
            assert_eq!(counts.of(0, "tx_errors"), 0);
        }
    });
}

#[test]
fn a_rate_is_kept_and_a_queue_drops_what_exceeds_its_room() {
    const COUNT: u64 = 1000;
    const LEN: u64 = 1000;
    in_namespace(|| {
        let words = "there rate 20mbit limit 50 codel target 1ms interval 10ms noecn";
        let mut network = Network::quiet_tuns(words);
        let from = network.a.inside(|| UdpSocket::bind((A[0], 0)).expect("bind"));
        for _ in 0..COUNT {
            from.send_to(&[1; LEN as usize], (B[0], 9)).expect("sent");
        }
        // The link has read all of them. What the receiver answers tells that something has come.
        network.a.inside(|| {
            eventually(|| (counter("tun0", SENT_PACKETS) >= COUNT).then_some(()));
        });
        let counted = network
            .b
            .inside(|| eventually(|| Some(udp_counter("NoPorts")).filter(|count| *count >= 50)));
        let counts = network.end();
        assert_eq!(counts.of(0, "packets_in"), COUNT);
        let [out, queue, aqm] =
            ["packets_out", "dropped_by_queue", "dropped_by_aqm"].map(|name| counts.of(0, name));
        assert!(out >= counted && queue > 0, "{counted} {counts:?} {aqm}");
        let bits = (out - 1) * (LEN + 28 + 38) * 8;
        assert!(bits as f64 <= 20e6 * counts.seconds(), "{counts:?}");
        assert!(counts.of(0, "most_queued_bytes") <= 50 * (LEN + 28 + 38), "{counts:?}");
    });
}

/// The place of the packets that an interface has sent, or handed to the reader of a TUN.
const SENT_PACKETS: usize = 9;

/// A counter of an interface in the namespace of this thread, by its place in `/proc/net/dev`.
fn counter(interface: &str, place: usize) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("counters");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(interface));
    let word = line.and_then(|line| line[1..].split_whitespace().nth(place)).expect("a counter");
    word.parse().expect("a number")
}

/// Places of packets that were received, and of packets that were dropped on their way out.
const RX_PACKETS: usize = 1;
const TX_DROPPED: usize = 11;

#[test]
fn packets_that_the_link_had_no_time_to_read_are_counted() {
    const COUNT: u64 = 6000;
    in_namespace(|| {
        let mut network = Network::quiet_tuns("");
        let link = network.link.take().expect("a link");
        let from = network.a.inside(|| UdpSocket::bind((A[0], 0)).expect("bind"));
        run(&format!("kill -STOP {}", link.pid()));
        for _ in 0..COUNT {
            from.send_to(&[1; 10], (B[0], 9)).expect("sent");
        }
        run(&format!("kill -CONT {}", link.pid()));
        let dropped = eventually(|| {
            let dropped = network.a.inside(|| counter("tun0", TX_DROPPED));
            let come = network.b.inside(|| counter("tun0", RX_PACKETS));
            (come + dropped == COUNT).then_some(dropped)
        });
        let counts = link.end();
        assert!(dropped > 0, "the queue of a TUN holds no {COUNT} packets");
        assert_eq!(counts.of(0, "rx_dropped"), dropped, "{counts:?}");
    });
}

#[test]
fn packets_that_are_too_big_are_answered() {
    in_namespace(|| {
        for mut network in [Network::tuns("there mtu 1300"), Network::veths("there mtu 1300", true)]
        {
            B.iter().for_each(|to| transfer(&network, to, 1 << 20));
            let counts = network.end();
            assert!(counts.of(0, "too_big") > 0 && counts.of(1, "answered") > 0, "{counts:?}");
        }
    });
}

#[test]
fn a_link_of_a_scenario_is_joined_and_changes_when_it_says() {
    in_namespace(|| {
        let file = std::env::temp_dir().join(format!("neap-link-{}.toml", std::process::id()));
        let text = r#"
            about = "a link that breaks"
            duration = "1000s"
            [host.a]
            [host.b]
            [link.wire]
            ends = ["a", "b"]
            rate = "1gbit"
            bottleneck = { rate = "100mbit", buffer = "100k" }
            there = { delay = "15ms" }
            back = { delay = "5ms" }
            [[event]]
            at = "100ms"
            link = "wire"
            from = "b"
            delay = "25ms"
        "#;
        std::fs::write(&file, text).expect("a file");
        let mut network = Network::quiet_tuns(&format!("--scenario {}", file.display()));
        std::fs::remove_file(&file).expect("the file");
        eventually(|| {
            let times = pings(&network, B[0], 3);
            let shortest = times.iter().copied().fold(f64::MAX, f64::min);
            (40.0..100.0).contains(&shortest).then_some(())
        });
        network.end();
    });
}

/// Streams of `len` bytes between neap on the first host and the kernel of the second: both ways
/// and over both versions of IP at once.
fn neap_and_kernel(network: &Network, controller: &str, len: u64) {
    let stack = network.a.inside(|| {
        let device = Packet::open(&PacketConfig::new("a0")).expect("an interface").into_device();
        neap::Stack::builder()
            .device(device)
            .address(format!("{}/24", A[0]))
            .address(format!("{}/64", A[1]))
            .sysctl("net.ipv4.tcp_congestion_control", controller)
            .build()
            .expect("a stack")
    });
    let pairs = B.map(|to| {
        let to: IpAddr = to.parse().expect("an address");
        let listener = network.b.inside(|| TcpListener::bind((to, 0)).expect("bind"));
        let address: SocketAddr = listener.local_addr().expect("an address");
        let ours = neap::TcpStream::connect(&stack, address).expect("connect");
        (ours, listener.accept().expect("accept").0)
    });
    thread::scope(|scope| {
        for (ours, theirs) in &pairs {
            scope.spawn(move || {
                send(ours, len);
                ours.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(move || {
                send(theirs, len);
                theirs.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(move || assert_eq!(receive(theirs), len, "{controller}"));
            scope.spawn(move || assert_eq!(receive(ours), len, "{controller}"));
        }
    });
}

#[test]
fn neap_and_a_kernel_talk_through_a_link_with_each_controller() {
    in_namespace(|| {
        let words = "delay 3ms rate 80mbit limit 200 loss 0.2% reorder 1% 1ms duplicate 0.5% \
                     corrupt 0.1%";
        let mut network = Network::veths(words, false);
        for controller in ["cubic", "reno", "bbr", "bbr3"] {
            neap_and_kernel(&network, controller, 2 << 20);
        }
        let counts = network.end();
        assert!(counts.of(0, "lost") > 0 && counts.of(1, "lost") > 0, "{counts:?}");
    });
}

/// 100 MB each way over each version of IP. Round trips are short and losses rare enough for a
/// rate that the processors bound.
fn a_hundred_megabytes(controller: &str) {
    const LEN: u64 = 100_000_000;
    let words = "delay 200us loss 0.2% reorder 1% 300us duplicate 0.5% corrupt 0.1%";
    let mut network = Network::veths(words, false);
    neap_and_kernel(&network, controller, LEN);
    // What the link has no time to read is lost like the rest.
    let counts = network.link.take().expect("a link").end();
    for end in [0, 1] {
        for name in ["lost", "reordered", "duplicated", "corrupted"] {
            assert!(counts.of(end, name) > 100, "{name}: {counts:?}");
        }
        assert!(counts.of(end, "bytes_in") > 2 * LEN, "{counts:?}");
    }
    let names = ["packets_in", "lost", "reordered", "duplicated", "corrupted", "rx_dropped"];
    let [there, back] = [0, 1].map(|end| names.map(|name| counts.of(end, name)));
    println!("{controller}: {:.1} s, {names:?} {there:?} {back:?}", counts.seconds());
}

/// Has one of the long transfers at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_hundred_megabytes_by_cubic() {
    let _turn = turn();
    in_namespace(|| a_hundred_megabytes("cubic"));
}

#[test]
fn a_hundred_megabytes_by_reno() {
    let _turn = turn();
    in_namespace(|| a_hundred_megabytes("reno"));
}

#[test]
fn a_hundred_megabytes_by_bbr() {
    let _turn = turn();
    in_namespace(|| a_hundred_megabytes("bbr"));
}

#[test]
fn a_hundred_megabytes_by_bbr3() {
    let _turn = turn();
    in_namespace(|| a_hundred_megabytes("bbr3"));
}
