//! `--rate` and `--rate-in`: what leaves fits a slower link behind the gateway, and everything
//! still arrives.

use super::folder::Folder;
use super::namespace::{in_namespace, run};
use super::{SERVER, finish, gateway, in_network, in_sandbox, serve, tell};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

/// Connections that upload at the same time, and bytes of each.
const FLOWS: usize = 4;
const BYTES: usize = 192 << 10;

/// Sends on several connections at once, and waits until the server has read all.
pub(super) fn upload(server: SocketAddr) {
    let send = move || {
        let mut stream = TcpStream::connect(server).expect("the server accepts");
        stream.write_all(&vec![1; BYTES]).expect("sent");
        stream.shutdown(Shutdown::Write).expect("half-closed");
        assert_eq!(stream.read(&mut [0; 1]).expect("the server ends, too"), 0);
    };
    let threads: Vec<_> = (0..FLOWS).map(|_| thread::spawn(send)).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("uploaded"));
}

/// Reads all of several connections.
fn take_uploads() -> SocketAddr {
    let listener = TcpListener::bind((SERVER, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().take(FLOWS) {
            thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.and_then(|mut stream| stream.read_to_end(&mut bytes)).expect("received");
                assert_eq!(bytes.len(), BYTES);
            });
        }
    });
    server
}

/// Packets that the link has dropped.
fn drops() -> u64 {
    let shown = Command::new("tc").args(["-s", "qdisc", "show", "dev", "lo"]).output();
    let text = String::from_utf8(shown.expect("tc runs").stdout).expect("text");
    let (_, behind) = text.split_once("dropped ").expect("a figure");
    behind.split(',').next().and_then(|count| count.parse().ok()).expect("a number")
}

/// The host's own path to its addresses becomes a link of 20 Mbit/s with a queue of 12 ms. Without
/// a rate connections fill it until it drops; with one it never holds as much.
#[test]
fn uploads_under_a_rate_leave_the_queue_of_the_uplink_empty() {
    in_namespace(|| {
        in_network(|| {
            run("ip link set lo mtu 1500");
            for (options, is_dropping) in [(&["--rate", "18mbit"] as &[&str], false), (&[], true)] {
                run("tc qdisc replace dev lo root tbf rate 20mbit burst 8kb limit 30kb");
                in_sandbox("upload", &take_uploads().to_string(), options);
                assert_eq!(drops() > 0, is_dropping, "{} dropped with {options:?}", drops());
                run("tc qdisc delete dev lo root");
            }
        });
    });
}

#[test]
fn everything_arrives_in_both_directions_under_rates() {
    in_namespace(|| {
        in_network(|| {
            let (server, thread) = serve(SERVER, |mut stream| {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes)?;
                stream.write_all(&bytes)
            });
            let rates = ["--rate", "300mbit", "--rate-in", "200mbit"];
            in_sandbox("echo", &server.to_string(), &rates);
            thread.join().expect("the server got everything");
            let any = SocketAddr::new(SERVER.parse().expect("an address"), 0);
            let servers = format!("{} {}", tell(any), tell(any));
            in_sandbox("datagrams", &servers, &["--rate", "64kbit", "--rate-in", "64kbit"]);
        });
    });
}

/// Echo requests share the rate: one passes, and of more than may wait the rest is dropped.
#[test]
fn pings_have_their_turn_under_a_rate_and_a_flood_of_them_is_dropped() {
    in_namespace(|| {
        in_network(|| {
            fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").expect("a setting");
            let folder = Folder::new("pings");
            let neap = env!("CARGO_BIN_EXE_neap");
            // 700 KB are sent at once, and the rate takes a minute for them. The TAP drops what
            // comes faster than the gateway has a processor, so more are sent until enough have
            // arrived.
            let script = format!(
                "ping -n -c 1 -W 30 {SERVER}
                for round in $(seq 20); do
                    ping -n -q -c 500 -l 500 -s 1400 -w 1 {SERVER}
                    late=$({neap} nstat -a | awk '$1 == \"GatewayLateEchoes\" {{ print $2 }}')
                    [ \"${{late:-0}}\" -gt 100 ] && break
                done
                {neap} nstat -a"
            );
            let mut command = gateway(&["--rate", "80kbit", "--", "sh", "-c", &script]);
            command.env("XDG_RUNTIME_DIR", folder.path());
            let (_, text, said) = finish(command);
            assert!(text.contains("1 received"), "{text}{said}");
            let late = text.lines().find(|line| line.starts_with("GatewayLateEchoes "));
            let late = late.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            assert!(late.is_some_and(|late| late > 100), "{late:?} {text}{said}");
        });
    });
}
