//! Programs through the doors of a tunnel: curl, git and iperf3, by a proxy, by proxychains and by
//! ports that lead to one server.

use super::eventually;
use super::namespace::{in_namespace, run};
use super::near::{
    DOORS, FROM_TUNNEL, HTTP, Neap, SOCKS, TO_ECHO, TO_GIT, TO_IPERF3, TO_NEAR, TO_TELL, TO_WEB,
    output,
};
use super::peers::{Program, can_run};
use super::udp_counter::udp_counter;
use super::world::{FAR_INSIDE, IPERF3, NAME, NEAR_INSIDE, World, pattern};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Bytes of a large transfer, and of a small one.
const LARGE: usize = 16 << 20;
const SMALL: usize = 256 << 10;
/// Seconds after which a program gives up.
const LIMIT: &str = "60";

fn curl(options: &str) -> Vec<u8> {
    output(&format!("curl -sS --fail --max-time {LIMIT} {options}"))
}

/// A download and an upload of curl, both compared byte by byte.
fn both_ways(world: &World, options: &str, server: &str, len: usize) {
    let down = curl(&format!("{options} -g http://{server}/{len}"));
    assert!(down == pattern(len), "{options}: {} bytes of {len}, or others", down.len());
    let file = world.folder.path().join("upload");
    std::fs::write(&file, pattern(len)).expect("room");
    let answer = curl(&format!("{options} -g -T {} http://{server}/", file.display()));
    assert_eq!(String::from_utf8_lossy(&answer), "the pattern", "{options}");
}

/// curl by all doors, in both families.
fn doors(world: &World) {
    let socks = format!("--socks5-hostname 127.0.0.1:{SOCKS}");
    both_ways(world, &socks, NAME, LARGE);
    both_ways(world, &socks, &format!("[{}]", FAR_INSIDE[1]), SMALL);
    both_ways(world, &format!("-x http://127.0.0.1:{HTTP}"), NAME, SMALL);
    both_ways(world, &format!("-p -x http://127.0.0.1:{HTTP}"), FAR_INSIDE[0], SMALL);
    both_ways(world, "", &format!("127.0.0.1:{TO_WEB}"), LARGE);
    let many = format!("{socks} --parallel --parallel-immediate --parallel-max 50 -o /dev/null");
    let codes = curl(&format!("{many} -w %{{http_code}} http://{NAME}/1000?[1-50]"));
    assert_eq!(String::from_utf8_lossy(&codes), "200".repeat(50));
}

/// A half-close passes in both directions.
fn echo() {
    let stream = TcpStream::connect(("127.0.0.1", TO_ECHO)).expect("a port that leads to it");
    (&stream).write_all(&pattern(SMALL)).expect("sent");
    stream.shutdown(Shutdown::Write).expect("half-closed");
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).expect("received");
    assert!(back == pattern(SMALL), "{} bytes of {SMALL}, or others", back.len());
}

/// Datagrams reach their server and come back.
fn datagrams() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    for port in TO_TELL {
        socket.connect(("127.0.0.1", port)).expect("connected");
        for question in [&b"who?"[..], &[7; 1200]] {
            socket.send(question).expect("sent");
            let mut answer = [0; 2000];
            let length = socket.recv(&mut answer).expect("an answer");
            assert_eq!(&answer[..length], question);
        }
    }
}

/// A client of the far host reaches a server of the near host.
fn from_far(world: &World) {
    let listener = TcpListener::bind(("127.0.0.1", TO_NEAR)).expect("a port");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&pattern(SMALL)).expect("sent");
    });
    let mut bytes = Vec::new();
    world.host.inside(|| {
        let mut stream = TcpStream::connect((NEAR_INSIDE[0], FROM_TUNNEL)).expect("a port");
        stream.read_to_end(&mut bytes).expect("received");
    });
    assert!(bytes == pattern(SMALL), "{} bytes of {SMALL}, or others", bytes.len());
    server.join().expect("sent");
}

/// Bytes of each iperf3 stream in both directions, through a port or a proxy.
fn iperf3(command: &str) {
    for way in ["", "-R"] {
        // The server may still be at the test before. When it ends, it closes its port for a moment
        // and resets who has connected.
        let report = eventually("a server that is ready", || {
            let text = run(&format!("{command} -t 1 -P 4 -J {way}"));
            let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let error = report["error"].as_str().unwrap_or_default();
            let early = ["is busy", "reset by peer", "unable to connect", "closed unexpectedly"];
            let is_early = early.into_iter().any(|early| error.contains(early));
            (!is_early).then_some(report)
        });
        let streams = report["end"]["streams"].as_array();
        let streams = streams.unwrap_or_else(|| panic!("{command} {way}: {}", report["error"]));
        assert_eq!(streams.len(), 4, "{report}");
        for stream in streams {
            assert!(stream["receiver"]["bytes"].as_u64() > Some(0), "{command} {way}: {report}");
        }
    }
}

/// Datagrams that found no room in a socket of the network namespace of this thread.
fn lost_here() -> u64 {
    udp_counter("RcvbufErrors")
}

/// Bytes from the near side to the far one and back, as each side counts them.
fn counts(world: &World, neap: &Neap) -> [[u64; 2]; 2] {
    let line = format!("{} wg show near transfer --pid {}", env!("CARGO_BIN_EXE_neap"), neap.pid());
    let text = run(&line);
    let mut words = text.split_whitespace().skip(1).map(|word| word.parse().expect("a count"));
    let (received, sent) = (words.next().expect("received"), words.next().expect("sent"));
    [[sent, received], world.peer.transfer().into()]
}

/// The [`counts`] at the end of the traffic: they are the same in twenty looks.
fn quiet_counts(world: &World, neap: &Neap) -> [[u64; 2]; 2] {
    let seen = Cell::new((counts(world, neap), 0));
    eventually("an end of the traffic", || {
        let (last, looks) = seen.get();
        let now = counts(world, neap);
        seen.set((now, if now == last { looks + 1 } else { 0 }));
        (looks == 20).then_some(now)
    })
}

/// A transfer of which nothing is lost on its way is counted by both sides alike. The far side's
/// socket has room for some hundred datagrams, and loses others where its program waits for a
/// processor; then one more transfer is counted.
fn counted(program: &Program) {
    let world = World::new("counted", program);
    let neap = Neap::start(&world.folder, &world.file(DOORS));
    let lost = || lost_here() + world.host.inside(lost_here);
    let mut before = [[0; 2]; 2];
    for _ in 0..20 {
        let lost_before = lost();
        both_ways(&world, "", &format!("127.0.0.1:{TO_WEB}"), SMALL);
        let is_same = eventually("a time when both sides have counted the same", || {
            let now = counts(&world, &neap);
            let moved = [0, 1].map(|side| [0, 1].map(|way| now[side][way] - before[side][way]));
            assert!(moved[0].iter().all(|bytes| *bytes > SMALL as u64), "{moved:?}");
            let is_same = moved[0] == moved[1];
            (is_same || lost() > lost_before).then_some(is_same)
        });
        if is_same {
            return;
        }
        before = quiet_counts(&world, &neap);
    }
    panic!("datagrams were lost in all of twenty transfers");
}

fn passed(program: &Program) {
    let mut world = World::new("programs", program);
    let neap = Neap::start(&world.folder, &world.file(DOORS));
    doors(&world);
    echo();
    datagrams();
    from_far(&world);
    world.server(&["iperf3", "-s"]);
    eventually("iperf3", || world.host.inside(|| TcpStream::connect(("127.0.0.1", IPERF3)).ok()));
    iperf3(&format!("iperf3 -c 127.0.0.1 -p {TO_IPERF3}"));
    neap.check();
}

#[test]
fn programs_reach_servers_behind_wireguard_go() {
    if let Some(program) = Program::wireguard_go()
        && can_run(&["curl", "iperf3"])
    {
        in_namespace(|| passed(&program));
    }
}

#[test]
fn programs_reach_servers_behind_boringtun() {
    if let Some(program) = Program::boringtun()
        && can_run(&["curl", "iperf3"])
    {
        in_namespace(|| passed(&program));
    }
}

#[test]
fn wg_and_neap_count_the_same_bytes_with_wireguard_go() {
    if let Some(program) = Program::wireguard_go()
        && can_run(&["curl"])
    {
        in_namespace(|| counted(&program));
    }
}

/// A bare repository with a file of some size, and the name of its commit.
fn repository(folder: &Path) -> String {
    std::fs::create_dir(folder.join("work")).expect("room");
    std::fs::write(folder.join("work/file"), pattern(4 << 20)).expect("room");
    let script = "export HOME=$PWD
        git config --global user.email me@server.test; git config --global user.name me
        git -C work init -q; git -C work add file; git -C work commit -q -m first
        git clone -q --bare work repository.git; git -C work rev-parse HEAD";
    let made = Command::new("sh").args(["-euc", script]).current_dir(folder).output();
    let made = made.expect("sh runs");
    assert!(made.status.success(), "no repository");
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}

#[test]
fn git_goes_by_a_port_and_proxychains_leads_curl_git_and_iperf3_through_the_tunnel() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["proxychains4", "curl", "git", "iperf3"]) {
        return;
    }
    in_namespace(|| {
        let mut world = World::new("proxychains", &program);
        let _neap = Neap::start(&world.folder, &world.file(DOORS));
        let chain = format!("strict_chain\nproxy_dns\n[ProxyList]\nsocks5 127.0.0.1 {SOCKS}\n");
        let chain = world.folder.write("proxychains.conf", &chain);
        let through = format!("proxychains4 -q -f {chain}");
        let page = output(&format!("{through} curl -sS --max-time {LIMIT} http://{NAME}/{SMALL}"));
        assert!(page == pattern(SMALL), "{} bytes of {SMALL}, or others", page.len());

        let folder = world.folder.path().to_owned();
        let head = repository(&folder);
        let exec_path = run("git --exec-path");
        let daemon = format!("{}/git-daemon", exec_path.trim());
        let base = format!("--base-path={}", folder.display());
        // Everybody may read the repository, whoever has made it.
        world.server(&[
            "env",
            "GIT_CONFIG_COUNT=1",
            "GIT_CONFIG_KEY_0=safe.directory",
            "GIT_CONFIG_VALUE_0=*",
            &daemon,
            "--export-all",
            "--reuseaddr",
            &base,
        ]);
        world.server(&["iperf3", "-s"]);
        for port in [9418, IPERF3] {
            eventually("a server", || {
                world.host.inside(|| TcpStream::connect(("127.0.0.1", port)).ok())
            });
        }
        let through_port = format!("127.0.0.1:{TO_GIT}");
        for (index, (prefix, server)) in
            [(through.as_str(), NAME), ("env", &through_port)].into_iter().enumerate()
        {
            let copy = folder.join(format!("copy{index}"));
            let (url, copy) = (format!("git://{server}/repository.git"), copy.display());
            run(&format!("{prefix} git clone -q {url} {copy}"));
            assert_eq!(run(&format!("git -C {copy} rev-parse HEAD")).trim(), head, "{url}");
            run(&format!("git -C {copy} fsck --no-progress"));
        }
        iperf3(&format!("{through} iperf3 -c {}", FAR_INSIDE[0]));
    });
}
