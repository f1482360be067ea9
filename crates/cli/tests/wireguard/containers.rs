//! Namespaces as those of containers, which the faces of other programs send through a tunnel.

use super::capture::Capture;
use super::confined;
use super::eventually;
use super::host::Host;
use super::namespace::{in_namespace, run};
use super::next_debian;
use super::peers::{Program, can_run};
use super::running::Running;
use super::scripts::client;
use super::world::{ECHO, FAR, FAR_INSIDE, NAME, NEAR, PORT, TELL, World, pattern};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LEN: usize = 64 << 10;
/// A resolver that nobody is.
const NOBODY: &str = "198.51.100.53";
/// A port of the near host, and that of the namespace behind it.
const PUBLISHED: u16 = 8080;
const BEHIND: u16 = 80;
/// The user of scripts.
const USER: u32 = 64_999;
/// An address of IPv6 for a namespace whose host has none with a default route.
const OWN: &str = "fd00:77::2";

/// The namespace reaches what is behind the tunnel in each way, and nothing of this host.
fn reaches(world: &World, guest: &Host, gateway: &str) {
    let [v4, v6] = FAR_INSIDE;
    // The far host has its outer address inside, too.
    for server in [v4, v6, FAR[1]] {
        guest.inside(|| echo(server));
    }
    for server in [v4, v6] {
        guest.inside(|| ask(server));
        // The tunnel takes less than the interface of the namespace.
        run(&format!("nsenter -t {} -n ping -n -c 1 -s 4000 -W 30 {server}", guest.pid()));
    }
    let resolv = world.folder.write("resolv.conf", &format!("nameserver {NOBODY}\n"));
    let script = format!(
        "mount --bind {resolv} /etc/resolv.conf; exec curl -sS --fail --max-time 60 -o {page} {url}",
        page = world.folder.path().join("page").display(),
        url = format_args!("http://{NAME}/{LEN}"),
    );
    let pid = guest.pid().to_string();
    let output = Command::new("nsenter")
        .args(["-t", &pid, "-n", "unshare", "-m", "sh", "-c", &script])
        .output()
        .expect("nsenter runs");
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(world.folder.path().join("page")).expect("a page") == pattern(LEN));
    // What stands for the loopback address of the host leads nowhere.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let refused = guest.inside(|| TcpStream::connect((gateway, port)));
    refused.expect_err("a service of the host");
}

fn echo(server: &str) {
    let stream = TcpStream::connect((server, ECHO)).expect(server);
    (&stream).write_all(&pattern(LEN)).expect("sent");
    stream.shutdown(Shutdown::Write).expect("half-closed");
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).expect("received");
    assert!(back == pattern(LEN), "{server}: {} bytes of {LEN}, or others", back.len());
}

fn ask(server: &str) {
    let server = SocketAddr::new(server.parse().expect("an address"), TELL);
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a port");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.connect(server).expect("a route");
    socket.send(b"question").expect("sent");
    assert_eq!(socket.recv(&mut [0; 100]).expect("an answer"), 8);
}

/// A client of the far host reaches a server of the namespace by the network of the near one.
fn is_published(world: &World, guest: &Host) {
    let listener = guest.inside(|| TcpListener::bind(("0.0.0.0", BEHIND)).expect("a port"));
    let mut client = world
        .host
        .inside(|| TcpStream::connect((NEAR[0], PUBLISHED)).expect("a port of the near host"));
    let (mut server, from) = listener.accept().expect("a connection");
    assert_eq!(from.ip().to_string(), FAR[0]);
    server.write_all(b"x").expect("sent");
    client.read_exact(&mut [0]).expect("received");
}

/// Nothing was outside but datagrams of the tunnel, and the connection of the published port.
fn has_only_the_tunnel(capture: Capture) {
    let expected = format!("udp port {PORT} or tcp port {PUBLISHED}");
    let (all, beside) = capture.finish(&expected);
    assert!(all > 100 && beside.is_empty(), "{all} packets, beside the tunnel:\n{beside}");
}

#[test]
fn nothing_of_a_container_of_pasta_leaves_beside_the_tunnel() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["curl", "ping"]) {
        return;
    }
    in_namespace(|| {
        let world = World::new("pasta-tunnel", &program);
        let (guest, file) = (Host::new(true), world.file(""));
        let capture = Capture::start(&world.folder, "outside");
        let pid_file = world.folder.path().join("pid");
        // The machine's root becomes nobody, who could not read the file.
        run(&format!(
            "{neap} pasta --config-net -a {OWN} -g fe80::1 --upstream wireguard:{file} -t {PUBLISHED}:{BEHIND} \
             -P {pid_file} {guest}",
            neap = env!("CARGO_BIN_EXE_neap"),
            pid_file = pid_file.display(),
            guest = guest.pid(),
        ));
        let pid = fs::read_to_string(pid_file).expect("the file of the process ID");
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).expect("it runs");
        for line in ["CapPrm:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
            assert!(status.contains(line), "{line}: {status}");
        }
        reaches(&world, &guest, FAR[0]);
        is_published(&world, &guest);
        has_only_the_tunnel(capture);
    });
}

#[test]
fn nothing_of_a_container_of_slirp4netns_leaves_beside_the_tunnel() {
    let Some(program) = Program::wireguard_go() else { return };
    if !can_run(&["curl", "ping"]) {
        return;
    }
    in_namespace(|| {
        let world = World::new("slirp-tunnel", &program);
        let (guest, file) = (Host::new(true), world.file(""));
        let capture = Capture::start(&world.folder, "outside");
        let (ready, api) = (world.folder.path().join("ready"), world.folder.path().join("api"));
        let script = format!(
            "exec {neap} slirp4netns -c -6 --mtu=65520 -r 3 -a {api} --upstream wireguard:{file} \
             {guest} tap0 3>{ready}",
            neap = env!("CARGO_BIN_EXE_neap"),
            api = api.display(),
            ready = ready.display(),
            guest = guest.pid(),
        );
        let slirp = Running::start(&world.folder, &["sh", "-c", &script]);
        eventually("a network that is ready", || {
            assert!(slirp.is_running(), "{}", slirp.log());
            fs::read(&ready).ok().filter(|told| told == b"1")
        });
        confined::check(slirp.pid(), confined::BIND);
        // The namespace makes its address of what is advertised.
        eventually("an address of IPv6", || {
            guest.inside(|| UdpSocket::bind("[::]:0").expect("a port").connect((FAR[1], 1)).ok())
        });
        reaches(&world, &guest, "10.0.2.2");
        publish(&api);
        is_published(&world, &guest);
        has_only_the_tunnel(capture);
    });
}

#[test]
fn containers_of_podman_go_through_a_tunnel() {
    let Some(program) = Program::wireguard_go() else { return };
    if !next_debian::is_there() {
        return;
    }
    in_namespace(|| {
        let world = World::new("podman-tunnel", &program);
        let folder = world.folder.path();
        chown(world.file(""), Some(USER), Some(USER)).expect("the file is ours");
        fs::write(folder.join("page"), pattern(1_000_000)).expect("room");
        let capture = Capture::start(&world.folder, "outside");
        client("podman-tunnel", next_debian::folder().as_deref(), folder);
        has_only_the_tunnel(capture);
    });
}

/// Publishes the port by the API socket of slirp4netns.
fn publish(api: &Path) {
    let mut socket = UnixStream::connect(api).expect("it listens");
    let forward = format!("\"host_port\": {PUBLISHED}, \"guest_port\": {BEHIND}");
    let request = format!(
        "{{\"execute\": \"add_hostfwd\", \"arguments\": {{\"proto\": \"tcp\", {forward}}}}}"
    );
    socket.write_all(request.as_bytes()).expect("sent");
    socket.shutdown(Shutdown::Write).expect("open");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("text");
    assert!(answer.contains("return"), "{answer}");
}
