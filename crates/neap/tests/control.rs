//! The control socket and the metrics of a stack without a way out, asked by friends and by others.
//!
//! Each test runs in a process of its own, since the folder of the sockets is that of the process.

#[path = "common/island.rs"]
mod island;

use island::island;
use neap::control::{
    self, Application, ControlError, ControlOptions, MappingReport, RelayReport, SocketReport,
};
use neap::metrics::{self, MetricsAddress, Page, Pages};
use neap::{TcpListener, TcpStream, UdpSocket};
use std::any::type_name;
use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Says that the process has a folder of its own.
const FOLDER: &str = "XDG_RUNTIME_DIR";
const INSIDE: &str = "NEAP_TEST_CONTROL";
/// The socket that another user is to try.
const VICTIM: &str = "NEAP_TEST_VICTIM";

/// Removes a folder, also if a test fails.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the calling test again, with a runtime folder that is gone afterwards.
fn in_folder<F: FnOnce(&Path)>(test: F) {
    if env::var_os(INSIDE).is_some() {
        let folder = env::var_os(FOLDER).map(PathBuf::from).expect("a folder");
        return test(&folder);
    }
    let path = type_name::<F>().split_once("::").map_or("", |(_, path)| path);
    let name = path.split("::{{closure}}").next().unwrap_or_default();
    let folder = env::temp_dir().join(format!("neap-control-{}-{name}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let scratch = Scratch(folder);
    let output = Command::new(env::current_exe().expect("the test knows its binary"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .env(FOLDER, &scratch.0)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}{why}");
    for line in why.lines().filter(|line| line.starts_with("SKIP: ")) {
        // Not by `eprintln!`, which the harness swallows.
        writeln!(io::stderr(), "{line}").expect("stderr");
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_listing_has_every_kind_of_socket() {
    in_folder(|_| {
        let stack = island(1);
        let _control = control::serve(&stack, ControlOptions::new("all")).expect("a socket");
        let listener = TcpListener::bind(&stack, "0.0.0.0:80").expect("a listener");
        let client = TcpStream::connect(&stack, "10.9.0.2:80").expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        (&client).write_all(b"unread").expect("written");
        server.read_exact(&mut [0; 2]).expect("read");
        let udp = UdpSocket::bind(&stack, "10.9.0.2:53").expect("a port");
        let endpoint = control::endpoints().expect("a folder").pop().expect("an endpoint");
        assert_eq!((endpoint.pid, endpoint.name.as_str()), (std::process::id(), "all"));
        let sockets = endpoint.sockets().expect("a listing");
        let find = |state: &str, local: &str| {
            let is_it =
                |one: &&control::SocketReport| one.state == state && one.local == address(local);
            sockets.iter().find(is_it).unwrap_or_else(|| panic!("{state} {local}: {sockets:?}"))
        };
        assert_eq!(find("LISTEN", "0.0.0.0:80").recv_q, 0);
        let server_side = find("ESTAB", "10.9.0.2:80");
        assert_eq!(server_side.recv_q, 4);
        assert_eq!(server_side.remote, Some(client.local_addr().expect("an address")));
        let tcp = server_side.tcp.as_ref().expect("figures");
        assert_eq!((tcp.bytes_received, tcp.blocked.as_str()), (6, "no_data"));
        let unbound = find("UNCONN", "10.9.0.2:53");
        assert_eq!((unbound.netid.as_str(), unbound.remote), ("udp", None));
        let remote = client.local_addr().expect("an address");
        udp.connect(remote).expect("connected");
        let sockets = endpoint.sockets().expect("a listing");
        let connected = sockets.iter().find(|one| one.netid == "udp").expect("it is there");
        assert_eq!((connected.state.as_str(), connected.remote), ("ESTAB", Some(remote)));
        // The client closes first, so what is left is at its side.
        let local = client.local_addr().expect("an address");
        drop(client);
        while server.read(&mut [0; 16]).expect("received") > 0 {}
        drop(server);
        let waiting = loop {
            let sockets = endpoint.sockets().expect("a listing");
            let is_it = |one: &&control::SocketReport| one.local == local;
            let left = sockets.iter().find(is_it).expect("it is left").clone();
            if left.state == "TIME-WAIT" {
                break left;
            }
        };
        let timer = waiting.timer.expect("a timer");
        assert_eq!(timer.kind, "timewait");
        assert!(timer.left <= 60_000_000_000, "{timer:?}");
        let counters = endpoint.counters().expect("counters");
        let value = |name: &str| counters.iter().find(|one| one.name == name).map(|one| one.value);
        assert_eq!(value("TcpActiveOpens"), Some(1));
        assert_eq!(value("TcpListeners"), Some(1));
        assert!(value("drop.otherhost").is_some());
        let report = endpoint.stack().expect("a stack");
        assert_eq!(report.addresses, ["10.9.0.2/24", "fd00:9::2/64"]);
    });
}

/// An application that relays one connection, and maps a port.
struct Relaying {
    ends: (SocketAddr, SocketAddr),
}

impl Application for Relaying {
    fn relays(&self) -> HashMap<(SocketAddr, SocketAddr), RelayReport> {
        let mut relay = RelayReport::new(address("192.0.2.7:80"));
        relay.held_for_far = 7;
        [(self.ends, relay)].into()
    }

    fn sockets(&self) -> Vec<SocketReport> {
        let mut socket = SocketReport::new("udp", "ESTAB", address("192.0.2.1:4000"));
        socket.remote = Some(address("10.9.0.7:53"));
        let mut mapping = MappingReport::default();
        mapping.last_used = 9;
        socket.mapping = Some(mapping);
        vec![socket]
    }
}

#[test]
fn a_listing_has_what_the_application_relays_and_maps() {
    in_folder(|_| {
        let stack = island(1);
        let listener = TcpListener::bind(&stack, "0.0.0.0:80").expect("a listener");
        let client = TcpStream::connect(&stack, "10.9.0.2:80").expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let mut options = ControlOptions::new("relay");
        let ends = (address("10.9.0.2:80"), client.local_addr().expect("an address"));
        options.application = Some(Arc::new(Relaying { ends }));
        let _control = control::serve(&stack, options).expect("a socket");
        let endpoint = control::endpoints().expect("a folder").pop().expect("an endpoint");
        let sockets = endpoint.sockets().expect("a listing");
        let relayed: Vec<_> = sockets.iter().filter(|one| one.relay.is_some()).collect();
        assert_eq!(relayed.len(), 1, "{sockets:?}");
        assert_eq!((relayed[0].local, relayed[0].remote), (ends.0, Some(ends.1)));
        assert_eq!(relayed[0].far, Some(address("192.0.2.7:80")));
        assert_eq!(relayed[0].relay.as_ref().map(|relay| relay.held_for_far), Some(7));
        let mapped = sockets.iter().find(|one| one.netid == "udp").expect("a mapping");
        assert_eq!(mapped.local, address("192.0.2.1:4000"));
        assert_eq!(mapped.mapping.as_ref().map(|mapping| mapping.last_used), Some(9));
        drop((client, server, listener));
    });
}

struct Proxy;

impl Pages for Proxy {
    fn page(&self, path: &str) -> Option<Page> {
        (path == "/alive").then(|| Page { status: 503, text: "no\n".to_owned() })
    }
}

impl Application for Proxy {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("ProxyRequests", 7)]
    }
    fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![("ProxyFlows", 3)]
    }
    fn lines(&self, subject: &str) -> Option<Vec<String>> {
        (subject == "caches")
            .then(|| vec!["{\"name\":\"a \\\"b\\\"\"}".to_owned(), "[1]".to_owned()])
    }
}

#[test]
fn names_are_shared_and_what_killed_processes_left_is_removed() {
    in_folder(|folder| {
        let folder = folder.join("neap");
        let stack = island(1);
        let first = control::serve(&stack, ControlOptions::new("proxy")).expect("a socket");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!((mode(&folder), mode(first.path())), (0o700, 0o600));
        // What a process leaves that is killed: a socket that nobody listens at, and a history.
        let stale = folder.join("1-gone.sock");
        drop(UnixListener::bind(&stale).expect("bound"));
        let history = folder.join("1-gone.nstat");
        fs::write(&history, "{}").expect("written");
        let names = || {
            let found = control::endpoints().expect("a folder");
            found.into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["proxy"]);
        let second = control::serve(&stack, ControlOptions::new("proxy")).expect("a socket");
        assert!(!stale.exists() && !history.exists());
        assert_eq!(names(), ["proxy", "proxy-2"]);
        drop(first);
        assert_eq!(names(), ["proxy-2"]);
        let third = control::serve(&stack, ControlOptions::new("proxy")).expect("a socket");
        assert_eq!(names(), ["proxy", "proxy-2"]);
        drop((second, third));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
        for name in ["", "a/b", "a b", "..", "0123456789012345678901234567890123"] {
            let served = control::serve(&stack, ControlOptions::new(name));
            match (name, served) {
                // It is a name like any other, behind the number of the process.
                ("..", served) => drop(served.expect("a socket")),
                (_, served) => assert!(matches!(served, Err(ControlError::Name(_))), "{name}"),
            }
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("its owner may");
        let error = control::serve(&stack, ControlOptions::new("open")).expect_err("it is open");
        assert!(error.to_string().contains("chmod 700"), "{error}");
        assert!(control::endpoints().is_err());
    });
}

/// Sends bytes and reads the answer to its end.
fn raw(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    // The other side may have read enough.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn hostile_peers_get_an_error_or_lose_their_connection() {
    in_folder(|_| {
        let stack = island(1);
        let mut options = ControlOptions::new("proxy");
        options.application = Some(Arc::new(Proxy));
        let control = control::serve(&stack, options).expect("a socket");
        let path = control.path();
        assert!(raw(path, b"GET / HTTP/1.1\r\n\r\n").contains("expected a line"));
        assert!(raw(path, b"{\"neap\":1,\"get\":\"passwords\"}\n").contains("expected a line"));
        let endpoint = control::endpoints().expect("a folder").pop().expect("an endpoint");
        let lines = endpoint.lines("caches").expect("the application knows it");
        assert_eq!(lines, ["{\"name\":\"a \\\"b\\\"\"}", "[1]"]);
        let error = endpoint.lines("\"").expect_err("nobody knows it");
        assert!(error.to_string().contains("what the application has"), "{error}");
        assert!(raw(path, b"{\"neap\":9,\"get\":\"stack\"}\n").contains("version 1"));
        assert!(raw(path, &[b'x'; 100_000]).contains("at most 4096 bytes"));
        let deep = [&[b'['; 4000][..], b"\n"].concat();
        assert!(raw(path, &deep).contains("expected a line"));
        let two = b"{\"neap\":1,\"get\":\"stack\"}\n{\"neap\":1,\"get\":\"stack\"}\n";
        assert_eq!(raw(path, two).matches("\"end\"").count(), 1);
        // In pieces.
        let mut slow = UnixStream::connect(path).expect("it listens");
        for byte in b"{\"neap\":1,\"get\":\"counters\"}\n" {
            slow.write_all(&[*byte]).expect("sent");
        }
        let mut answer = String::new();
        slow.read_to_string(&mut answer).expect("received");
        assert!(answer.contains(r#"{"name":"ProxyRequests","value":7,"gauge":false}"#), "{answer}");
        assert!(answer.contains(r#"{"name":"ProxyFlows","value":3,"gauge":true}"#), "{answer}");
        // The one who has said nothing for longest loses its place to who asks. The others keep
        // theirs, until their time is over.
        let mut silent: Vec<_> =
            (0..16).map(|_| UnixStream::connect(path).expect("it listens")).collect();
        assert_eq!(endpoint.stack().expect("an answer").name, "proxy");
        assert_eq!(silent[0].read(&mut [0; 1]).expect("it is closed"), 0);
        let mut last = silent.pop().expect("one of them");
        last.write_all(b"{\"neap\":1,\"get\":\"stack\"}\n").expect("sent");
        let mut answer = String::new();
        last.read_to_string(&mut answer).expect("received");
        assert!(answer.contains("proxy"), "{answer}");
        for mut stream in silent {
            assert_eq!(stream.read(&mut [0; 1]).expect("it is closed"), 0);
        }
        // Those who do not take their answers hold nobody up, and have them later.
        let ports = 2000..5000_u16;
        let bound: Vec<_> = ports
            .map(|port| UdpSocket::bind(&stack, SocketAddr::from(([10, 9, 0, 2], port))))
            .collect::<Result<_, _>>()
            .expect("ports");
        let lazy: Vec<_> = (0..3)
            .map(|_| {
                let mut stream = UnixStream::connect(path).expect("it listens");
                stream.write_all(b"{\"neap\":1,\"get\":\"sockets\"}\n").expect("sent");
                stream
            })
            .collect();
        assert_eq!(endpoint.sockets().expect("a listing").len(), bound.len());
        for mut stream in lazy {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("received");
            assert_eq!(answer.lines().count(), bound.len() + 2);
        }
        // The stack was not disturbed, and its end is told. Sockets keep it.
        drop((bound, stack));
        let error = endpoint.stack().expect_err("it is gone");
        assert!(error.to_string().contains("the stack is gone"), "{error}");
    });
}

/// What another user does: it tries the socket, and says what it got.
#[test]
fn another_user() {
    let Some(victim) = env::var_os(VICTIM) else { return };
    let answer = raw(Path::new(&victim), b"{\"neap\":1,\"get\":\"stack\"}\n");
    assert_eq!(answer, "", "another user was answered");
}

#[test]
fn another_user_is_refused() {
    in_folder(|folder| {
        let stack = island(1);
        let control = control::serve(&stack, ControlOptions::new("mine")).expect("a socket");
        let attack = |what: &str| {
            let own = env::current_exe().expect("the test knows its binary");
            let mut other = Command::new(own);
            other.args(["--exact", "another_user", "--nocapture"]).env(VICTIM, control.path());
            other.env_remove(INSIDE).uid(65534).gid(65534);
            match other.output() {
                Err(error) => {
                    let line = format!("SKIP: no right to be another user: {error}\n");
                    io::stderr().write_all(line.as_bytes()).expect("stderr");
                    None
                }
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    let why = String::from_utf8_lossy(&output.stderr).into_owned();
                    Some((output.status.success(), format!("{what}: {text}{why}")))
                }
            }
        };
        // The folder keeps it out.
        let Some((passed, text)) = attack("closed") else { return };
        assert!(!passed && text.contains("PermissionDenied"), "{text}");
        // Where the modes are wrong, the check of the peer does.
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its owner may");
        };
        open(folder, 0o755);
        open(&folder.join("neap"), 0o755);
        open(control.path(), 0o666);
        let (passed, text) = attack("open").expect("it ran before");
        assert!(passed, "{text}");
    });
}

#[test]
fn a_process_that_is_stopped_holds_nobody_up() {
    in_folder(|folder| {
        let path = folder.join("metrics.sock");
        let kind = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let stopped = rustix::net::socket(kind.0, kind.1, None).expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&path).expect("a short path");
        rustix::net::bind(&stopped, &address).expect("bound");
        rustix::net::listen(&stopped, 0).expect("it listens");
        // The only place in its queue.
        let _first = UnixStream::connect(&path).expect("a place");
        let wanted = MetricsAddress::Unix(path);
        let (tell, told) = std::sync::mpsc::channel();
        let elsewhere = wanted.clone();
        std::thread::spawn(move || tell.send(metrics::listen(&elsewhere).map(drop)));
        let outcome = told.recv_timeout(Duration::from_secs(60)).expect("it waits for nobody");
        assert_eq!(outcome.expect_err("it is taken").kind(), ErrorKind::AddrInUse);
        drop(stopped);
        metrics::listen(&wanted).expect("a place that is free");
    });
}

#[test]
fn metrics_are_read_by_prometheus() {
    in_folder(|folder| {
        let stack = island(1);
        let listener = TcpListener::bind(&stack, "0.0.0.0:80").expect("a listener");
        let client = TcpStream::connect(&stack, "10.9.0.2:80").expect("connected");
        // Both ends are connections from here on; until then the listener's may be a request.
        let (served, _) = listener.accept().expect("accepted");
        let path = folder.join("metrics.sock");
        // A killed process has left its file.
        drop(UnixListener::bind(&path).expect("bound"));
        let wanted: MetricsAddress = format!("unix:{}", path.display()).parse().expect("a path");
        let application = Arc::new(Proxy);
        let unix = metrics::serve(&stack, &wanted, Some(application)).expect("served");
        let taken = metrics::serve(&stack, &wanted, None).expect_err("it is served");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(unix.address(), &wanted);
        let answer = raw(&path, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        for line in [
            "# TYPE neap_netstat_TcpActiveOpens counter",
            "neap_netstat_TcpActiveOpens_total 1",
            "# TYPE neap_TcpConnections gauge",
            "neap_TcpConnections 2",
            "# TYPE neap_NeapTCPNoControlFlag counter",
            "neap_NeapTCPNoControlFlag_total 0",
            "neap_drops_total{reason=\"otherhost\"} 0",
            "neap_qdisc_backlog_bytes{interface=\"nowhere\",queue=\"0\"} 0",
            "neap_ProxyRequests_total 7",
            "neap_ProxyFlows 3",
            "# EOF",
        ] {
            assert!(body.lines().any(|own| own == line), "{line} is not in {body}");
        }
        drop((client, served, listener));
        let status = |request: &str| {
            let answer = raw(&path, request.as_bytes());
            answer.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status("HEAD /metrics HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("hello\r\n\r\n"), "400");
        assert_eq!(status(&"x".repeat(4096)), "431");
        // A file that is no socket is not removed.
        let file = folder.join("file");
        fs::write(&file, "kept").expect("written");
        let no_socket = MetricsAddress::Unix(file.clone());
        assert!(metrics::serve(&stack, &no_socket, None).is_err());
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "kept");
        drop(stack);
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "503");
        drop(unix);
        assert!(!path.exists());
        // Pages of the application in their place.
        let listener = metrics::listen(&wanted).expect("a socket");
        let pages = listener.serve_pages(Arc::new(Proxy)).expect("served");
        let answer = raw(&path, b"GET /alive?now HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nno\n"), "{answer}");
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "404");
        drop(pages);
        assert!(!path.exists());
    });
    for wrong in ["unix:", "9100", "host", "127.0.0.1"] {
        assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
    }
}

#[test]
fn a_head_comes_without_body_and_a_target_may_have_an_authority() {
    in_folder(|folder| {
        let stack = island(1);
        let path = folder.join("metrics.sock");
        let address: MetricsAddress = format!("unix:{}", path.display()).parse().expect("a path");
        let _metrics = metrics::serve(&stack, &address, None).expect("served");
        for (page, status) in
            [("/metrics", 200), ("/nope", 404), ("http://x/metrics", 200), ("http://x", 404)]
        {
            let ask = |method: &str| {
                let answer = raw(&path, format!("{method} {page} HTTP/1.1\r\n\r\n").as_bytes());
                let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
                assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{page}: {head}");
                body.len()
            };
            assert!(ask("GET") > 0 && ask("HEAD") == 0, "{page}");
        }
    });
}
