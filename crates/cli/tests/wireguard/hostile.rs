//! What others see of a tunnel, and what they can do to it.

use super::capture::Capture;
use super::namespace::{in_namespace, run};
use super::near::{DOORS, HTTP, Neap, SOCKS, TO_WEB, output};
use super::peers::{Program, can_run};
use super::world::{ECHO, FAR, NAME, NEAR, PORT, World, pattern};
use super::{by_name, eventually, sandbox};
use blake2::digest::consts::U16;
use blake2::digest::{KeyInit, Mac};
use blake2::{Blake2s256, Blake2sMac, Digest};
use neap_lab::pattern::Pattern;
use neap_wireguard::PublicKey;
use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 256 << 10;
const FORGED_PER_SECOND: f64 = 20_000.0;

type Blake2sMac128 = Blake2sMac<U16>;

/// Sends a line through the standard streams of a tunnel to a name, by a command that becomes it.
fn by_standard_streams(world: &World, command: &[&str]) {
    let file = world.file(&format!("[STDIOTunnel]\nTarget = {NAME}:{ECHO}\n"));
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .args([env!("CARGO_BIN_EXE_neap"), "wireguard", "-c", &file])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("neap runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"by hand\n").expect("sent");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stdout == b"by hand\n", "{output:?}");
}

#[test]
fn nothing_leaves_beside_the_tunnel() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["curl"]) {
        return;
    }
    in_namespace(|| {
        let world = World::new("beside", &program);
        // The resolver of the machine is on the way that is watched, wherever that of this one is.
        let resolvers = world.folder.write("resolv.conf", &format!("nameserver {}\n", FAR[0]));
        let script = format!("mount --bind {resolvers} /etc/resolv.conf && exec \"$@\"\n");
        let script = world.folder.write("with-resolver", &script);
        let command = ["unshare", "-m", "sh", &script];
        let capture = Capture::start(&world.folder, "outside");
        let sections = format!("{DOORS}{}", by_name::SECTIONS);
        let neap = Neap::start_by(&world.folder, &command, &world.file(&sections));
        for door in [
            format!("--socks5-hostname 127.0.0.1:{SOCKS} http://{NAME}/{LEN}"),
            format!("-x http://127.0.0.1:{HTTP} http://{NAME}/{LEN}"),
            format!("-p -x http://127.0.0.1:{HTTP} http://{NAME}/{LEN}"),
            // The name of its target is in the file.
            format!("http://127.0.0.1:{TO_WEB}/{LEN}"),
        ] {
            let page = output(&format!("curl -sS --max-time 60 {door}"));
            assert!(page == pattern(LEN), "{door}: {} bytes of {LEN}, or others", page.len());
        }
        by_name::all(&world);
        // A name that the resolver of the tunnel does not know is asked nowhere else.
        for door in [
            format!("--socks5-hostname 127.0.0.1:{SOCKS} http://no.such.test/"),
            format!("-p -x http://127.0.0.1:{HTTP} http://no.such.test/"),
        ] {
            let words = format!("-sS --fail --max-time 60 {door}");
            let status = Command::new("curl").args(words.split(' ')).output().expect("curl runs");
            assert!(!status.status.success(), "{door}");
        }
        // The far side knows one place of a peer.
        drop(neap);
        by_standard_streams(&world, &command);
        let page =
            sandbox::curl(&command.join(" "), &world.file(""), &format!("http://{NAME}/{LEN}"));
        assert!(page == pattern(LEN), "a sandbox: {} bytes of {LEN}, or others", page.len());
        let (all, beside) = capture.finish(&format!("udp port {PORT}"));
        assert!(all > 100 && beside.is_empty(), "{all} packets, beside the tunnel:\n{beside}");
    });
}

/// An initiation that nobody can answer: its first code is right for the key of the receiver, which
/// everybody knows, and the rest is chance (WireGuard's paper, 5.4.2 and 5.4.4).
fn initiation(receiver: &[u8], number: u32) -> [u8; 148] {
    let mut bytes = [0; 148];
    bytes[0] = 1;
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    Pattern::new(number.into()).fill(0, &mut bytes[8..116]);
    let mut key = Blake2s256::new();
    key.update(b"mac1----");
    key.update(receiver);
    let mut code = <Blake2sMac128 as KeyInit>::new_from_slice(&key.finalize()).expect("a key");
    code.update(&bytes[..116]);
    bytes[116..132].copy_from_slice(&code.finalize().into_bytes());
    bytes
}

/// Sends forged initiations to the near side until `is_over`. Returns how many were answered by a
/// cookie.
fn flood(socket: &UdpSocket, receiver: &[u8], is_over: &AtomicBool) -> u64 {
    socket.set_nonblocking(true).expect("a socket");
    let forged: Vec<_> = (0..1000).map(|number| initiation(receiver, number)).collect();
    let (begin, mut sent, mut cookies) = (Instant::now(), 0, 0);
    while !is_over.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * FORGED_PER_SECOND) as usize;
        while sent < due {
            // What the socket does not take is not sent.
            let _ = socket.send(&forged[sent % forged.len()]);
            sent += 1;
        }
        let mut answer = [0; 200];
        while let Ok(length) = socket.recv(&mut answer) {
            cookies += u64::from(length == 64 && answer[0] == 3);
        }
        thread::sleep(Duration::from_millis(1));
    }
    cookies
}

/// Ends the flood when it is dropped, also where the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A counter of neap's tunnel.
fn counter(neap: &Neap, name: &str) -> u64 {
    let text = run(&format!("{} nstat --pid {}", env!("CARGO_BIN_EXE_neap"), neap.pid()));
    let mut words = text.lines().map(str::split_whitespace);
    let found =
        words.find_map(|mut words| words.next().filter(|word| *word == name).and(words.next()));
    found.map_or(0, |count| count.parse().expect("a count"))
}

#[test]
fn forged_handshakes_are_answered_by_cookies_and_flows_go_on() {
    let Some(program) = Program::wireguard_go() else { return };
    in_namespace(|| {
        let world = World::new("forged", &program);
        let neap = Neap::start(&world.folder, &world.file(DOORS));
        let own = env!("CARGO_BIN_EXE_neap");
        let line = format!("{own} wg show near listen-port --pid {}", neap.pid());
        let port: u16 = run(&line).trim().parse().expect("a port");
        let receiver: PublicKey = world.near.public.parse().expect("a key");
        let attacker = world.host.inside(|| UdpSocket::bind(("0.0.0.0", 0)).expect("a port"));
        attacker.connect((NEAR[0], port)).expect("a route");
        let url = format!("http://127.0.0.1:{TO_WEB}/{}", 64 * LEN);
        // There is a session before the flood: what is tried is that its flows go on.
        output(&format!("curl -sS --max-time 60 http://127.0.0.1:{TO_WEB}/{LEN}"));
        let is_over = AtomicBool::new(false);
        let cookies = thread::scope(|scope| {
            let attack = scope.spawn(|| flood(&attacker, receiver.as_bytes(), &is_over));
            let end = End(&is_over);
            eventually("a demand for a cookie", || {
                (counter(&neap, "cookies_demanded") > 0).then_some(())
            });
            let page = output(&format!("curl -sS --max-time 60 {url}"));
            assert!(page == pattern(64 * LEN), "{} bytes, or others", page.len());
            drop(end);
            attack.join().expect("the attack ends")
        });
        assert!(cookies > 0, "nobody has got a cookie");
        let answered = counter(&neap, "initiations_answered");
        assert_eq!(answered, 0, "forged initiations are answered");
        assert!(world.peer.endpoint().starts_with(NEAR[0]));
    });
}
