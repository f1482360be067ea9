//! Links and processes that go away while something is under way.

use super::host::{Host, await_links};
use super::namespace::{in_namespace, run};
use super::{PROGRAM, SERVER, TARGET, finish, gateway, in_network, in_sandbox, serve};
use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

/// Bytes that pass before the link goes down.
const PART: usize = 1 << 20;

/// A host at the other end of the link `outside`.
fn linked_host() -> Host {
    let far = Host::new(false);
    super::up();
    run("ip link add outside type veth peer name far");
    run(&format!("ip link set far netns {}", far.pid()));
    run("ip address add 192.0.2.2/24 dev outside");
    run("ip link set outside up");
    far.inside(|| {
        run(&format!("ip address add {SERVER}/24 dev far"));
        run("ip link set far up");
        await_links(&["far"]);
    });
    await_links(&["outside"]);
    far
}

/// The same, and a listener there with its address.
fn linked() -> (Host, TcpListener, SocketAddr) {
    let far = linked_host();
    let listener = far.inside(|| TcpListener::bind((SERVER, 0)).expect("a port"));
    let server = listener.local_addr().expect("an address");
    (far, listener, server)
}

#[test]
fn a_transfer_outlives_a_link_of_the_host_that_goes_down_and_comes_back() {
    in_namespace(|| {
        let (far, listener, server) = linked();
        let ((reached, is_reached), (went_down, is_down)) = (channel(), channel());
        let echo = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let mut part = vec![0; PART];
            (&stream).read_exact(&mut part).expect("bytes");
            reached.send(()).expect("the test waits");
            is_down.recv().expect("the test goes on");
            (&stream).write_all(&part).expect("sent");
            io::copy(&mut &stream, &mut &stream).expect("echoed");
        });
        let guest = thread::spawn(move || in_sandbox("echo", &server.to_string(), &[]));
        is_reached.recv().expect("bytes pass");
        run("ip link set outside down");
        went_down.send(()).expect("the server waits");
        // The server has tried twice.
        while !far.inside(|| run("ss -Htin")).contains("backoff:") {
            thread::yield_now();
        }
        run("ip link set outside up");
        echo.join().expect("the server got everything");
        guest.join().expect("the guest got everything");
    });
}

#[test]
fn a_server_that_is_gone_without_a_word_is_noticed() {
    in_namespace(|| {
        let (far, listener, server) = linked();
        // The clock of the gateway's own sockets.
        for (name, value) in [("time", 1), ("intvl", 1), ("probes", 2)] {
            run(&format!("sysctl -qw net.ipv4.tcp_keepalive_{name}={value}"));
        }
        // It sends something, and waits for an answer until there is a reset.
        let guest = thread::spawn(move || in_sandbox("reset", &server.to_string(), &[]));
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_exact(&mut [0; 6]).expect("it waits for an answer from now on");
        far.inside(|| run("ip link set far down"));
        guest.join().expect("the guest is told");
    });
}

/// What a sandbox prints, and the network namespace that it says it is in.
fn namespace_of(child: &mut Child) -> (impl Iterator<Item = String> + use<>, String) {
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("text"));
    let namespace = lines.find(|line| line.starts_with("net:["));
    (lines, namespace.expect("the sandbox says where it is"))
}

/// Waits until no process is in a network namespace.
fn wait_until_empty(namespace: &str) {
    let is_there = |entry: io::Result<fs::DirEntry>| {
        let path = entry.expect("a process").path().join("ns/net");
        fs::read_link(path).is_ok_and(|link| link.as_os_str() == namespace)
    };
    while fs::read_dir("/proc").expect("processes").any(is_there) {
        thread::yield_now();
    }
}

/// In the sandbox: holds a connection for ever.
pub(super) fn hold(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.write_all(&[1]).expect("sent");
    let _ = stream.read(&mut [0]);
    panic!("the server says nothing");
}

#[test]
fn a_gateway_that_is_killed_leaves_no_process_and_no_connection() {
    in_namespace(|| {
        in_network(|| {
            let (told, is_there) = channel();
            let (server, thread) = serve(SERVER, move |mut stream| {
                stream.read_exact(&mut [0])?;
                told.send(()).expect("the test waits");
                // The end of the connection, or a reset.
                let _ = stream.read(&mut [0]);
                Ok(())
            });
            // One process that the gateway has started, and one that it has not.
            let script = "readlink /proc/self/ns/net; sleep 1000 & exec \"$0\" \"$@\"";
            let own = env::current_exe().expect("the test knows its binary");
            let mut command = gateway(&["--", "sh", "-c", script]);
            command.arg(own).args(["--exact", "inside", "--nocapture"]);
            command.env(PROGRAM, "hold").env(TARGET, server.to_string());
            let mut child = command.stdout(Stdio::piped()).spawn().expect("neap runs");
            let (_stdout, namespace) = namespace_of(&mut child);
            is_there.recv().expect("the connection is there");
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            thread.join().expect("the server learns of it");
            wait_until_empty(&namespace);
        });
    });
}

#[test]
fn what_the_command_has_started_ends_with_it() {
    in_namespace(|| {
        in_network(|| {
            for (end, status) in [("exit 3", 3), ("kill -KILL $$", 137)] {
                let script = format!("readlink /proc/self/ns/net; sleep 1000 >&2 & {end}");
                let mut command = gateway(&["--", "sh", "-c", &script]);
                let mut child = command.stdout(Stdio::piped()).spawn().expect("neap runs");
                let (_stdout, namespace) = namespace_of(&mut child);
                assert_eq!(child.wait().expect("it ends").code(), Some(status));
                wait_until_empty(&namespace);
            }
        });
    });
}

/// Bytes that the kernels and the gateway take while the server takes none.
const TAIL: usize = 256 << 10;

/// In the sandbox: sends something, and ends at once.
pub(super) fn write_and_end(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.write_all(&vec![b'x'; TAIL]).expect("there is room");
}

/// A sandbox whose command has ended, while a server has read nothing of what it sent; and the
/// server's side of that.
fn ended_with_a_tail(options: &[&str]) -> (Child, TcpStream) {
    let listener = TcpListener::bind((SERVER, 0)).expect("a port");
    let server = listener.local_addr().expect("an address");
    let script = "readlink /proc/self/ns/net; exec \"$0\" \"$@\"";
    let own = env::current_exe().expect("the test knows its binary");
    let mut command = gateway(&[options, &["--", "sh", "-c", script]].concat());
    command.arg(own).args(["--exact", "inside", "--nocapture"]);
    command.env(PROGRAM, "write and end").env(TARGET, server.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("neap runs");
    let (mut lines, namespace) = namespace_of(&mut child);
    let (stream, _) = listener.accept().expect("a connection");
    assert!(lines.any(|line| line.contains("1 passed")), "the command has failed");
    wait_until_empty(&namespace);
    (child, stream)
}

#[test]
fn the_tail_of_what_a_command_has_sent_arrives() {
    in_namespace(|| {
        in_network(|| {
            let (mut child, mut stream) = ended_with_a_tail(&[]);
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("no reset");
            assert_eq!(received.len(), TAIL);
            drop(stream);
            // It waits for nothing but the connection.
            assert_eq!(child.wait().expect("it ends").code(), Some(0));
        });
    });
}

#[test]
fn a_signal_ends_a_drain_at_once() {
    in_namespace(|| {
        in_network(|| {
            let (mut child, stream) = ended_with_a_tail(&["--drain", "3600"]);
            // The first ones may come before it knows that the command has ended.
            let status = loop {
                run(&format!("kill -TERM {}", child.id()));
                if let Some(status) = child.try_wait().expect("it is there") {
                    break status;
                }
            };
            assert_eq!(status.code(), Some(0), "that of the command");
            drop(stream);
        });
    });
}

/// Outside: takes a connection, and leaves unread what comes.
pub(super) fn accept(at: SocketAddr) {
    let listener = TcpListener::bind(at).expect("a port");
    println!("port {}", listener.local_addr().expect("an address").port());
    let (stream, _) = listener.accept().expect("a connection");
    stream.peek(&mut [0]).expect("a byte");
    println!("unread");
    thread::park();
}

#[test]
fn a_server_that_is_killed_resets_the_connection_of_the_guest() {
    in_namespace(|| {
        in_network(|| {
            let mut command = Command::new(env::current_exe().expect("the test knows its binary"));
            command.args(["--exact", "inside", "--nocapture"]);
            command.env(PROGRAM, "accept").env(TARGET, format!("{SERVER}:0"));
            let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            let mut lines = lines.map(|line| line.expect("text"));
            let port = lines.find_map(|line| Some(line.strip_prefix("port ")?.to_owned()));
            let server = format!("{SERVER}:{}", port.expect("it listens"));
            let guest = thread::spawn(move || in_sandbox("reset", &server, &[]));
            let is_unread = lines.any(|line| line == "unread");
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            guest.join().expect("the guest is told");
            assert!(is_unread, "the server has ended before");
        });
    });
}

#[test]
fn a_gateway_of_a_tun_ends_with_an_error_when_its_interface_goes() {
    in_namespace(|| {
        super::up();
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["gateway", "tun", "--tun", "gate0", "--log", "info"]).stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("neap runs");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains("gateway started")));
        run("ip link delete gate0");
        let told = lines.any(|line| line.contains("the interface gate0 is gone"));
        let status = child.wait().expect("it ends");
        assert!(told && status.code() == Some(1), "{status}");
    });
}

#[test]
fn a_command_ends_with_the_interface_of_its_sandbox() {
    in_namespace(|| {
        super::up();
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        let script = "ip link delete tap0; sleep 1000";
        command.args(["gateway", "run", "--", "sh", "-c", script]).stdin(Stdio::null());
        let output = command.output().expect("neap runs");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("the interface tap0 is gone"), "{told}");
        assert_eq!(output.status.code(), Some(1));
    });
}

/// In the sandbox: takes the interface away while a connection is open.
pub(super) fn lose_the_interface(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.write_all(b"half").expect("sent");
    stream.read_exact(&mut [0]).expect("the server has it");
    run("ip link delete tap0");
    thread::park();
}

#[test]
fn the_end_of_the_interface_resets_what_is_unfinished() {
    in_namespace(|| {
        in_network(|| {
            let (server, thread) = serve(SERVER, |mut stream| {
                stream.read_exact(&mut [0; 4])?;
                stream.write_all(b"!")?;
                let error = stream.read(&mut [0]).expect_err("that was not the end");
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                Ok(())
            });
            let own = env::current_exe().expect("the test knows its binary");
            let mut command = gateway(&["--"]);
            command.arg(own).args(["--exact", "inside", "--nocapture"]);
            command.env(PROGRAM, "lose the interface").env(TARGET, server.to_string());
            let (status, _, told) = finish(command);
            assert!(status == Some(1) && told.contains("the interface tap0 is gone"), "{told}");
            thread.join().expect("the server sees a reset");
        });
    });
}

#[test]
fn a_gateway_of_a_tun_that_drains_lets_flows_go_on_until_the_second_signal() {
    in_namespace(|| {
        let far = linked_host();
        // What the gateway opens does not go into the TUN again.
        run("ip rule add fwmark 7 table 7");
        run(&format!("ip route add 198.51.100.0/24 via {SERVER} dev outside table 7"));
        let listener = far.inside(|| {
            run("ip address add 198.51.100.1/32 dev far");
            TcpListener::bind(("198.51.100.1", 0)).expect("a port")
        });
        let server = listener.local_addr().expect("an address");
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["gateway", "tun", "--tun", "gate0", "--host-address", "10.0.2.100/24"]);
        command.args(["--mark", "7", "--drain", "3600", "--log", "info"]).stdin(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("neap runs");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains("gateway started")));
        run("ip route add 198.51.100.0/24 dev gate0");
        let mut client = TcpStream::connect(server).expect("the server accepts");
        let (mut accepted, _) = listener.accept().expect("a connection");
        run(&format!("kill -TERM {}", child.id()));
        // The signal takes its time, until which others are taken.
        let refused = loop {
            match TcpStream::connect(server) {
                Ok(_) => drop(listener.accept().expect("a connection")),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{refused}");
        client.write_all(b"hello").expect("sent");
        accepted.read_exact(&mut [0; 5]).expect("it goes on");
        accepted.write_all(b"you").expect("sent");
        client.read_exact(&mut [0; 3]).expect("it goes on");
        run(&format!("kill -TERM {}", child.id()));
        assert!(child.wait().expect("it ends").success());
        let error = accepted.read(&mut [0]).expect_err("that was not the end");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    });
}
