//! `neap gateway run` with programs in its sandbox, and servers on the kernel outside.
//!
//! The programs in the sandbox are functions of this test binary, which runs itself there.

mod bounds;
#[path = "../common/capture.rs"]
mod capture;
#[allow(dead_code, reason = "shared with tests of other faces")]
#[path = "../common/confined.rs"]
mod confined;
mod confinement;
mod ends;
#[path = "../common/folder.rs"]
mod folder;
#[path = "../common/host.rs"]
mod host;
mod keeps;
mod missing;
mod names;
#[path = "../common/namespace.rs"]
mod namespace;
mod path;
mod ports;
mod proxies;
mod rate;
mod scarce;
mod stops;
#[allow(dead_code, reason = "shared with tests of the lab")]
#[path = "../common/terminal.rs"]
mod terminal;
mod world;

use namespace::{in_namespace, run};
use neap_lab::pattern::Pattern;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use std::env;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Address of the servers.
const SERVER: &str = "192.0.2.1";
const SERVER_V6: &str = "2001:db8::1";

/// Names the program of this binary that runs in the sandbox, and where its server is.
const PROGRAM: &str = "NEAP_TEST_PROGRAM";
const TARGET: &str = "NEAP_TEST_TARGET";

/// Bytes of a large transfer.
const BULK: usize = 8 << 20;

/// Makes the loopback of a namespace usable.
fn up() {
    run("ip link set lo up");
}

/// A network with the servers' addresses, where `test` runs.
fn in_network(test: impl FnOnce()) {
    up();
    run("ip link add outside type veth peer name far");
    run(&format!("ip address add {SERVER}/24 dev outside"));
    run(&format!("ip address add {SERVER_V6}/64 dev outside nodad"));
    run("ip link set far up");
    run("ip link set outside up");
    test();
}

fn gateway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command.args(["gateway", "run"]).args(arguments).stdin(Stdio::null());
    command
}

fn finish(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("neap runs");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (status.code(), stdout, stderr)
}

/// Runs a program of this binary in a sandbox. It must succeed.
fn in_sandbox(program: &str, target: &str, options: &[&str]) {
    let own = env::current_exe().expect("the test knows its binary");
    let own = own.to_str().expect("a name");
    let inside = ["--", own, "--exact", "inside", "--nocapture"];
    let mut command = gateway(&[options, &inside].concat());
    command.env(PROGRAM, program).env(TARGET, target);
    let (status, stdout, stderr) = finish(command);
    assert!(status == Some(0) && stdout.contains("1 passed"), "{status:?}\n{stdout}{stderr}");
}

/// What this binary does in a sandbox.
#[test]
fn inside() {
    let Ok(program) = env::var(PROGRAM) else { return };
    let target = env::var(TARGET).expect("a target");
    // With one processor the harness has begun a line.
    println!();
    if proxies::inside(&program, &target)
        || ports::inside(&program, &target)
        || names::inside(&program, &target)
    {
        return;
    }
    match program.as_str() {
        "echo" => echo(to(&target)),
        "refused" => refused(to(&target), ErrorKind::ConnectionRefused),
        "no network" => refused(to(&target), ErrorKind::NetworkUnreachable),
        "denied" => refused(to(&target), ErrorKind::HostUnreachable),
        "denied datagram" => denied_datagram(to(&target)),
        "two flows" => two_flows(to(&target)),
        "reset" => server_resets(to(&target)),
        "give up" => give_up(to(&target)),
        "datagrams" => datagrams(&target),
        "super-datagrams" => super_datagrams(to(&target)),
        "world" => world::serve(),
        "upload" => rate::upload(to(&target)),
        "use up ports" => scarce::guest(&target),
        "connect" => drop(TcpStream::connect(to(&target)).expect("the server accepts")),
        "stalled writer" => bounds::guest(to(&target), true),
        "stalled reader" => bounds::guest(to(&target), false),
        "path mtu" => path::learn_mtu(to(&target)),
        "long datagrams" => path::send_long(to(&target)),
        "hold" => ends::hold(to(&target)),
        "accept" => ends::accept(to(&target)),
        "write and end" => ends::write_and_end(to(&target)),
        "lose the interface" => ends::lose_the_interface(to(&target)),
        other => panic!("there is no program {other}"),
    }
}

fn to(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Sends a large pattern, half-closes, and gets it back.
fn echo(server: SocketAddr) {
    let stream = TcpStream::connect(server).expect("the server accepts");
    assert_eq!(stream.peer_addr().expect("connected"), server);
    let mut sender = stream.try_clone().expect("a descriptor");
    let sender = thread::spawn(move || {
        sender.write_all(&pattern()).expect("sent");
        sender.shutdown(Shutdown::Write).expect("half-closed");
    });
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).expect("received");
    sender.join().expect("sent");
    assert!(back == pattern(), "{} bytes of {BULK}, or others", back.len());
}

fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; BULK];
    Pattern::new(7).fill(0, &mut bytes);
    bytes
}

fn refused(server: SocketAddr, kind: ErrorKind) {
    let error = TcpStream::connect(server).expect_err("nobody is there");
    assert_eq!(error.kind(), kind, "{error}");
}

/// Sends a datagram, and is told that it may not.
fn denied_datagram(server: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(server).expect("a route");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.send(b"anybody?").expect("sent");
    let error = socket.recv(&mut [0; 10]).expect_err("the gateway is against it");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
}

/// Opens two connections, is refused a third one, and gets an echo on both.
fn two_flows(server: SocketAddr) {
    let streams = [(); 2].map(|()| TcpStream::connect(server).expect("there is room"));
    refused(server, ErrorKind::ConnectionRefused);
    for mut stream in streams {
        stream.write_all(b"hello").expect("sent");
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("received");
        assert_eq!(&back, b"hello");
    }
}

fn server_resets(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.write_all(b"unread").expect("sent");
    let error = stream.read(&mut [0; 10]).expect_err("the server resets");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// Leaves received bytes unread, so that the close is a reset.
fn give_up(server: SocketAddr) {
    let stream = TcpStream::connect(server).expect("the server accepts");
    stream.peek(&mut [0; 1]).expect("the server speaks first");
}

/// Asks two servers from one socket; both see the same client, and answer from where they are.
fn datagrams(servers: &str) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut seen = Vec::new();
    for server in servers.split(' ').map(to) {
        socket.send_to(b"who am I?", server).expect("sent");
        let mut answer = [0; 100];
        let (count, from) = socket.recv_from(&mut answer).expect("an answer");
        assert_eq!(from, server);
        seen.push(String::from_utf8_lossy(&answer[..count]).into_owned());
    }
    assert_eq!(seen[0], seen[1], "one address and port outside for one inside");
}

/// Bytes of each datagram of a super-datagram but the last, which has this many less.
const PART: (usize, usize) = (1400, 7);
const PARTS: usize = 20;

/// Sends a super-datagram (`UDP_SEGMENT`).
fn send_super_datagram(socket: &UdpSocket, receiver: SocketAddr) {
    let (size, less) = PART;
    setsockopt(socket, UdpGsoSegment, &(size as i32)).expect("Linux 4.18");
    let sent = socket.send_to(&pattern()[..PARTS * size - less], receiver);
    assert_eq!(sent.expect("sent"), PARTS * size - less);
}

/// Receives one as its datagrams. Returns who has sent it.
fn receive_super_datagram(socket: &UdpSocket) -> SocketAddr {
    let (size, less) = PART;
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let (mut all, mut data) = (Vec::new(), [0; 2000]);
    let mut sender = None;
    for index in 1..=PARTS {
        let (count, from) = socket.recv_from(&mut data).expect("a datagram");
        assert_eq!(count, if index < PARTS { size } else { size - less });
        assert!(sender.is_none_or(|sender| sender == from));
        sender = Some(from);
        all.extend_from_slice(&data[..count]);
    }
    assert!(all == pattern()[..all.len()]);
    sender.expect("somebody")
}

/// Sends a super-datagram, and gets one back.
fn super_datagrams(server: SocketAddr) {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).expect("a socket");
    send_super_datagram(&socket, server);
    assert_eq!(receive_super_datagram(&socket), server);
}

/// Accepts one connection and does something with it.
fn serve(
    address: &str,
    what: impl FnOnce(TcpStream) -> io::Result<()> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let ip: IpAddr = address.parse().expect("an address");
    let listener = TcpListener::bind((ip, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        what(stream).expect("served");
    });
    (server, thread)
}

#[test]
fn bytes_and_half_closes_pass_in_both_families() {
    in_namespace(|| {
        in_network(|| {
            for address in [SERVER, SERVER_V6] {
                let (server, thread) = serve(address, |mut stream| {
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes)?;
                    stream.write_all(&bytes)
                });
                in_sandbox("echo", &server.to_string(), &[]);
                thread.join().expect("the server got everything");
            }
        });
    });
}

#[test]
fn a_guest_is_refused_as_the_destination_refuses() {
    in_namespace(|| {
        in_network(|| {
            in_sandbox("refused", &format!("{SERVER}:9"), &[]);
            in_sandbox("refused", &format!("[{SERVER_V6}]:9"), &[]);
            in_sandbox("no network", "203.0.113.1:80", &[]);
            in_sandbox("no network", "[2001:db8:1::1]:80", &[]);
            // The host's own, and what the user denies.
            in_sandbox("denied", "169.254.169.254:80", &[]);
            in_sandbox("denied", &format!("{SERVER}:9"), &["--deny", SERVER]);
            in_sandbox(
                "refused",
                &format!("{SERVER}:9"),
                &["--deny", "0.0.0.0/0", "--allow", SERVER],
            );
        });
    });
}

#[test]
fn datagrams_to_the_link_of_the_host_are_refused() {
    in_namespace(|| {
        in_network(|| {
            in_sandbox("denied datagram", "169.254.169.254:80", &[]);
            in_sandbox("denied datagram", &format!("{SERVER}:9"), &["--deny", SERVER]);
        });
    });
}

#[test]
fn an_address_of_the_hosts_link_is_reached_if_that_is_allowed() {
    in_namespace(|| {
        in_network(|| {
            run("ip address add 169.254.169.254/32 dev outside");
            let (server, thread) = serve("169.254.169.254", |mut stream| {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes)?;
                stream.write_all(&bytes)
            });
            in_sandbox("denied", &server.to_string(), &[]);
            in_sandbox("echo", &server.to_string(), &["--allow-host"]);
            thread.join().expect("the server got everything");
        });
    });
}

#[test]
fn a_flow_beyond_the_bound_is_refused_and_counted_and_the_others_go_on() {
    in_namespace(|| {
        in_network(|| {
            let listener = TcpListener::bind((SERVER, 0)).expect("a port");
            let server = listener.local_addr().expect("an address");
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let stream = stream.expect("a connection");
                    thread::spawn(move || io::copy(&mut &stream, &mut &stream));
                }
            });
            let own = env::current_exe().expect("the test knows its binary");
            let own = own.to_str().expect("a name");
            let inside = ["--flows", "2", "--log", "info", "--", own, "--exact", "inside"];
            let mut command = gateway(&inside);
            command.env(PROGRAM, "two flows").env(TARGET, server.to_string());
            let (status, stdout, stderr) = finish(command);
            assert!(status == Some(0) && stdout.contains("1 passed"), "{stdout}{stderr}");
            assert!(stderr.contains(" opened=2 ") && stderr.contains(" full=1 "), "{stderr}");
        });
    });
}

#[test]
fn a_guest_does_not_reach_who_has_an_address_of_the_gateway_outside() {
    in_namespace(|| {
        in_network(|| {
            for (address, length) in [("10.0.2.2", 24), ("10.0.2.3", 24), ("fd00::2", 64)] {
                run(&format!("ip address add {address}/{length} dev outside nodad"));
                let ip: IpAddr = address.parse().expect("an address");
                let listener = TcpListener::bind((ip, 0)).expect("a port");
                let server = listener.local_addr().expect("an address");
                in_sandbox("refused", &server.to_string(), &[]);
            }
        });
    });
}

#[test]
fn resets_pass_in_both_directions() {
    in_namespace(|| {
        in_network(|| {
            let (server, thread) = serve(SERVER, |stream| {
                // Unread bytes make the close a reset.
                stream.peek(&mut [0; 1]).map(drop)
            });
            in_sandbox("reset", &server.to_string(), &[]);
            thread.join().expect("served");
            let (server, thread) = serve(SERVER, |mut stream| {
                stream.write_all(b"unread")?;
                let error = stream.read(&mut [0; 10]).expect_err("the guest gives up");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                Ok(())
            });
            in_sandbox("give up", &server.to_string(), &[]);
            thread.join().expect("the server learns of it");
        });
    });
}

/// Tells clients how they are seen.
fn tell(address: SocketAddr) -> SocketAddr {
    let socket = UdpSocket::bind(address).expect("a port");
    let server = socket.local_addr().expect("an address");
    thread::spawn(move || {
        let mut question = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut question) {
            socket.send_to(from.to_string().as_bytes(), from).expect("sent");
        }
    });
    server
}

#[test]
fn datagrams_of_one_socket_come_from_one_socket_outside() {
    in_namespace(|| {
        in_network(|| {
            let any = SocketAddr::new(SERVER.parse().expect("an address"), 0);
            in_sandbox("datagrams", &format!("{} {}", tell(any), tell(any)), &[]);
        });
    });
}

#[test]
fn super_datagrams_keep_their_boundaries_in_both_directions() {
    in_namespace(|| {
        in_network(|| {
            for address in [SERVER, SERVER_V6] {
                let ip: IpAddr = address.parse().expect("an address");
                let socket = UdpSocket::bind((ip, 0)).expect("a port");
                let server = socket.local_addr().expect("an address");
                let thread = thread::spawn(move || {
                    let guest = receive_super_datagram(&socket);
                    send_super_datagram(&socket, guest);
                });
                in_sandbox("super-datagrams", &server.to_string(), &[]);
                thread.join().expect("the server got them");
            }
        });
    });
}

#[test]
fn the_status_of_the_command_is_passed_on() {
    in_namespace(|| {
        in_network(|| {
            let status = |arguments: &[&str]| finish(gateway(&[&["--"], arguments].concat()));
            assert_eq!(status(&["sh", "-c", "exit 7"]).0, Some(7));
            assert_eq!(status(&["sh", "-c", "kill -TERM $$"]).0, Some(143));
            let (code, _, stderr) = status(&["/no/such/command"]);
            assert!(code == Some(127) && stderr.contains("/no/such/command"), "{code:?} {stderr}");
            let (code, _, stderr) = status(&["/etc"]);
            assert!(code == Some(126) && stderr.contains("/etc"), "{code:?} {stderr}");
        });
    });
}

#[test]
fn signals_and_the_standard_input_reach_the_command() {
    in_namespace(|| {
        in_network(|| {
            let script = "trap 'echo got it; exit 3' TERM; echo ready; read line; echo $line; \
                          while :; do sleep 0.01; done";
            let mut command = gateway(&["--", "sh", "-c", script]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("neap runs");
            let mut stdout = io::BufReader::new(child.stdout.take().expect("a pipe"));
            let mut line = || {
                let mut text = String::new();
                io::BufRead::read_line(&mut stdout, &mut text).expect("a line");
                text
            };
            assert_eq!(line(), "ready\n");
            child.stdin.take().expect("a pipe").write_all(b"typed\n").expect("written");
            assert_eq!(line(), "typed\n");
            run(&format!("kill -TERM {}", child.id()));
            assert_eq!(line(), "got it\n");
            assert_eq!(child.wait().expect("it ends").code(), Some(3));
        });
    });
}

#[test]
fn a_signal_of_a_terminal_reaches_the_command_once_and_that_of_a_process_too() {
    in_namespace(|| {
        in_network(|| {
            let (mut keyboard, end) = terminal::terminal();
            let script = "trap 'echo interrupted' INT; trap 'exit 3' TERM; echo ready; \
                          while :; do sleep 0.01; done";
            let gateway = gateway(&["--", "sh", "-c", script]);
            // Makes the terminal that of a session, in which the command has the foreground.
            let mut command = Command::new("setsid");
            command.arg("--ctty").arg(gateway.get_program()).args(gateway.get_args());
            command.stdin(end).stdout(Stdio::piped());
            let mut child = command.spawn().expect("neap runs");
            let mut lines =
                io::BufRead::lines(io::BufReader::new(child.stdout.take().expect("a pipe")));
            let mut line = || lines.next().map(|line| line.expect("text"));
            assert_eq!(line().as_deref(), Some("ready"));
            run(&format!("kill -INT {}", child.id()));
            assert_eq!(line().as_deref(), Some("interrupted"));
            keyboard.write_all(b"\x03").expect("typed");
            assert_eq!(line().as_deref(), Some("interrupted"));
            run(&format!("kill -TERM {}", child.id()));
            assert_eq!(line(), None);
            assert_eq!(child.wait().expect("it ends").code(), Some(3));
        });
    });
}

#[test]
fn bad_arguments_end_with_status_2_and_say_what_is_expected() {
    for (arguments, hint) in [
        (&["--"] as &[&str], "required"),
        (&["--mtu", "100", "--", "true"], "1280"),
        (&["--deny", "everything", "--", "true"], "expected a prefix"),
        (&["--flows", "0", "--", "true"], "1.."),
        (&["--rate", "fast", "--", "true"], "such as 19mbit"),
        (&["--rate-in", "1kbit", "--", "true"], "at least 8kbit"),
        (&["--flows", "4000000000", "--", "true"], "ulimit -n"),
    ] {
        let (status, _, stderr) = finish(gateway(arguments));
        assert!(status == Some(2) && stderr.contains(hint), "{arguments:?}: {status:?} {stderr}");
    }
}
