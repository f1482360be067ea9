//! The face of slirp4netns, beside the real slirp4netns where it is a matter of what it says and of
//! what it makes in the namespace.
//!
//! The programs in the namespace are functions of this test binary, which runs itself there.

#[path = "../common/namespace.rs"]
mod namespace;

#[allow(dead_code, reason = "shared with tests of other faces")]
#[path = "../common/confined.rs"]
mod confined;
mod families;
mod guest;
#[path = "../common/resolver.rs"]
mod resolver;

use guest::{Guest, PROGRAM, TARGET, outside, skip};
use namespace::{in_namespace, run};
use resolver::resolver;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use serde_json::{Value, json};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

/// Other addresses of the outside.
const OUTBOUND: &str = "192.0.2.7";
const OUTBOUND_V6: &str = "2001:db8::7";

/// An Ethernet address, from which addresses of IPv6 are made.
const MAC: &str = "02:00:5e:00:00:01";

/// The real one, if it is there.
fn real() -> Option<&'static str> {
    let found = Command::new("slirp4netns").arg("--version").output().is_ok();
    if !found {
        skip("slirp4netns is not installed");
    }
    found.then_some("slirp4netns")
}

/// What the kernel says of the guest's interface, without what differs from run to run.
fn settings_of(guest: &Guest) -> Value {
    let lasting = |mut value: Value| {
        let passing = ["valid_life_time", "preferred_life_time", "expires", "tentative", "ifindex"];
        let forget = |value: &mut Value| {
            for key in passing {
                value.as_object_mut().map(|object| object.remove(key));
            }
        };
        for entry in value.as_array_mut().expect("a list") {
            forget(entry);
            let addresses = entry.get_mut("addr_info").and_then(Value::as_array_mut);
            if let Some(addresses) = addresses {
                // Ours has the Ethernet address before it is up, the real one afterwards.
                addresses.retain(|address| address["scope"] == "global");
                addresses.iter_mut().for_each(forget);
            }
        }
        value
    };
    let ask = |words: &str| lasting(guest.ip_json(words));
    // The addresses of IPv6 come by an advertisement.
    guest.address_until("fd00::");
    guest.ip_until("-6 route", "via fe80::2");
    let link = &guest.ip_json("link show dev tap0")[0];
    let addresses = &ask("addr show dev tap0")[0]["addr_info"];
    json!({
        "mtu": link["mtu"], "address": link["address"], "addresses": addresses,
        "routes": ask("route"), "routes_v6": ask("-6 route"),
    })
}

#[test]
fn root_of_the_guest_does_not_reach_the_files_of_the_process_that_joins_it() {
    in_namespace(|| {
        let mut guest = Command::new("unshare")
            .args(["-rn", "sh", "-c", "echo there; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare runs");
        let mut line = String::new();
        BufReader::new(guest.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let pid = guest.id().to_string();
        let inside = |words: &[&str]| {
            let mut command = Command::new("nsenter");
            command.args(["-t", &pid, "-U", "-n", "--preserve-credentials"]).args(words);
            command.output().expect("nsenter runs").status.success()
        };
        // What the process hands over has no room, so it stays as it is then.
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("sockets");
        while send(&theirs, &[0], SendFlags::DONTWAIT).is_ok() {}
        let [user, network] = ["user", "net"].map(|kind| format!("/proc/{pid}/ns/{kind}"));
        let namespaces = json!({ "user": user, "user_is_optional": false, "network": network });
        let plan = json!({ "namespaces": namespaces, "interface": "tap9", "link": null });
        let mut joining = Command::new(env!("CARGO_BIN_EXE_neap"))
            .args(["gateway", "join", &plan.to_string()])
            .stdin(Stdio::from(theirs))
            .spawn()
            .expect("neap runs");
        while !inside(&["ip", "link", "show", "tap9"]) {
            assert_eq!(joining.try_wait().expect("a child"), None);
            thread::yield_now();
        }
        let reaches = |pid: &str| inside(&["readlink", &format!("/proc/{pid}/root")]);
        assert!(reaches(&pid), "root of a guest reaches its own files");
        assert!(!reaches(&joining.id().to_string()));
        drop(ours);
        joining.wait().expect("a child");
        drop(guest.stdin.take());
        guest.wait().expect("a child");
    });
}

#[test]
fn the_namespace_looks_as_it_does_with_the_real_one() {
    in_namespace(|| {
        let Some(real) = real() else { return };
        outside();
        let options = ["-c", "-6", "--mtu=9000", "--cidr=10.7.0.0/16", "--macaddress", MAC];
        let settings = |program: &str| {
            let guest = Guest::start(program, &options);
            settings_of(&guest)
        };
        let (ours, theirs) = (settings(env!("CARGO_BIN_EXE_neap")), settings(real));
        assert_eq!(ours, theirs);
        assert_eq!(ours["mtu"], 9000);
    });
}

#[test]
fn the_help_has_all_options_of_the_real_one() {
    let Some(real) = real() else { return };
    let help = |program: &str, face: &[&str]| {
        let output = Command::new(program).args(face).arg("--help").output().expect("it runs");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let ours = help(env!("CARGO_BIN_EXE_neap"), &["slirp4netns"]);
    for word in help(real, &[]).split([' ', ',', '=', '\n', '\t']) {
        assert!(!word.starts_with('-') || ours.contains(word), "{word} is missing");
    }
    let version = Command::new(env!("CARGO_BIN_EXE_neap")).args(["slirp4netns", "-v"]).output();
    let version = String::from_utf8(version.expect("it runs").stdout).expect("text");
    assert!(version.starts_with("slirp4netns version 1.3"), "{version}");
}

/// One request over the API socket.
fn ask(guest: &Guest, request: &str) -> String {
    let mut stream = UnixStream::connect(guest.socket()).expect("the socket is there");
    stream.write_all(request.as_bytes()).expect("sent");
    stream.shutdown(Shutdown::Write).expect("open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn the_api_answers_as_the_real_one() {
    in_namespace(|| {
        let Some(real) = real() else { return };
        outside();
        let add = |rest: &str| {
            format!(r#"{{"execute": "add_hostfwd", "arguments": {{"proto": {rest}}}}}"#)
        };
        let remove =
            |id: u32| format!(r#"{{"execute": "remove_hostfwd", "arguments": {{"id": {id}}}}}"#);
        let requests = [
            r#"{"execute": "list_hostfwd"}"#.to_owned(),
            add(r#""tcp", "host_port": 8080, "guest_port": 80"#),
            add(r#""udp", "host_addr": "127.0.0.1", "host_port": 8080, "guest_port": 80"#),
            r#"{"execute": "list_hostfwd"}"#.to_owned(),
            add(r#""tcp", "host_port": 8080, "guest_port": 81"#),
            add(r#""tcp", "host_port": 8081"#),
            add(r#""tcp", "guest_port": 8081"#),
            add(r#""icmp", "host_port": 8081, "guest_port": 80"#),
            add(r#""tcp", "host_addr": "here", "host_port": 8081, "guest_port": 80"#),
            add(r#""tcp", "guest_addr": "there", "host_port": 8081, "guest_port": 80"#),
            remove(1),
            remove(1),
            add(r#""tcp", "host_port": 8080, "guest_port": 82"#),
            r#"{"execute": "remove_hostfwd", "arguments": {"id": 2.0}}"#.to_owned(),
            "{\"execute\": \"list_hostfwd\"}\0".to_owned(),
            r#"{"execute": "dance"}"#.to_owned(),
            r#"{"arguments": {}}"#.to_owned(),
            "[]".to_owned(),
            "nonsense".to_owned(),
            " ".repeat(4096),
        ];
        let answers = |program: &str| {
            let guest = Guest::start(program, &["-c", "--api-socket", "SOCKET"]);
            requests.each_ref().map(|request| ask(&guest, request))
        };
        let (ours, theirs) = (answers(env!("CARGO_BIN_EXE_neap")), answers(real));
        for ((ours, theirs), request) in ours.iter().zip(&theirs).zip(&requests) {
            let [ours, theirs]: [Value; 2] =
                [ours, theirs].map(|answer| serde_json::from_str(answer).expect("JSON"));
            // The manual has the list inside of "return", the real one has it outside.
            if let Some(entries) = theirs.get("entries") {
                assert_eq!(&ours["entries"], entries);
                assert_eq!(&ours["return"]["entries"], entries);
                continue;
            }
            match theirs["error"]["desc"].as_str() {
                // The reason may come after it.
                Some(desc) => {
                    let found = ours["error"]["desc"].as_str().expect("an error");
                    assert!(found.starts_with(desc), "{request}: {found}, {desc}");
                }
                None => assert_eq!(ours, theirs, "{request}"),
            }
        }
    });
}

#[test]
fn clients_of_the_api_that_say_nothing_do_not_keep_others_out() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "--api-socket", "SOCKET"]);
        let connect = || UnixStream::connect(guest.socket()).expect("the socket is there");
        let idle: Vec<_> = (0..16).map(|_| connect()).collect();
        // One more is closed at once.
        let closed = connect().read(&mut [0; 10]);
        assert!(matches!(closed, Ok(0)) || closed.is_err(), "{closed:?}");
        drop(idle);
        // Those that have gone make room, as soon as that is noticed.
        let list = r#"{"execute": "list_hostfwd"}"#;
        let answer = || {
            let mut stream = connect();
            let mut answer = String::new();
            let sent = stream.write_all(list.as_bytes());
            sent.and_then(|()| stream.read_to_string(&mut answer)).is_ok_and(|count| count > 0)
        };
        while !answer() {
            thread::yield_now();
        }
    });
}

#[test]
fn the_ready_byte_is_written_and_the_exit_descriptor_ends_it() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["--api-socket", "SOCKET"]);
        let socket = guest.socket().to_owned();
        assert!(socket.exists());
        // Guest::start has read the byte. Nothing comes after it, and the descriptor is closed.
        let (status, rest) = guest.end();
        assert_eq!((status, rest.as_str()), (Some(0), ""));
        assert!(!socket.exists(), "the socket is removed");
    });
}

#[test]
fn the_end_of_the_interface_ends_it() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c"]);
        guest.ip("link del tap0");
        assert_eq!(guest.wait(), Some(0));
    });
}

#[test]
fn signals_that_are_ignored_from_the_start_do_not_end_it() {
    in_namespace(|| {
        outside();
        // Guest::start has read the byte that tells that the network is there.
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "IGNORE"]);
        let pid = guest.server_pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let mask = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
            u64::from_str_radix(line.trim(), 16).expect("a mask")
        };
        let (hangup, interrupt, end) = (1, 1 << 1, 1 << 14);
        assert_eq!(mask("SigIgn:") & (hangup | interrupt), hangup | interrupt, "{status}");
        assert_eq!(mask("SigCgt:") & (hangup | interrupt | end), end, "{status}");
        for signal in ["HUP", "INT"] {
            run(&format!("kill -{signal} {pid}"));
        }
        guest.inside("ping -c1 -W 60 10.0.2.2");
        run(&format!("kill {pid}"));
        assert_eq!(guest.wait(), Some(0));
    });
}

#[test]
fn a_standard_error_that_is_full_does_not_keep_it_from_starting() {
    in_namespace(|| {
        outside();
        // It has something to say.
        fs::write("/proc/sys/net/ipv4/ping_group_range", "1 0").expect("a setting");
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "FULL"]);
        assert_eq!(guest.end().0, Some(0));
    });
}

#[test]
fn a_stale_socket_is_replaced_and_another_file_is_not() {
    in_namespace(|| {
        outside();
        let mut guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["--api-socket", "SOCKET"]);
        guest.kill();
        assert!(guest.socket().exists(), "it could not be removed");
        let again = guest.start_again(&["--api-socket", "SOCKET"]);
        assert!(ask(&again, r#"{"execute": "list_hostfwd"}"#).contains("entries"));
        let file = again.socket().with_extension("file");
        fs::write(&file, "mine").expect("room");
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["slirp4netns", "-a"]).arg(&file).args([&again.pid(), "tap1"]);
        let output = command.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && stderr.contains("no socket"), "{stderr}");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "mine");
    });
}

#[test]
fn the_host_is_behind_the_gateways_address_unless_that_is_disabled() {
    in_namespace(|| {
        outside();
        for (loopback, gateway) in [("127.0.0.1", "10.0.2.2"), ("::1", "fd00::2")] {
            let listener = TcpListener::bind((loopback, 0)).expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let ip: IpAddr = gateway.parse().expect("an address");
            let target = SocketAddr::new(ip, port).to_string();
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "-6"]);
            guest.address_until("fd00::");
            let accepts = thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.write_all(b"hello").expect("sent");
                listener
            });
            guest.run("greeting", &target);
            let _listener = accepts.join().expect("no panic");
            let guest =
                Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "-6", "--disable-host-loopback"]);
            guest.address_until("fd00::");
            guest.run(if ip.is_ipv4() { "denied" } else { "denied v6" }, &target);
        }
    });
}

#[test]
fn who_has_an_address_of_the_resolver_outside_is_out_of_reach() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "-6"]);
        guest.address_until("fd00::");
        for (address, length) in [("10.0.2.3", 24), ("fd00::3", 64)] {
            run(&format!("ip address add {address}/{length} dev outside nodad"));
            let ip: IpAddr = address.parse().expect("an address");
            let listener = TcpListener::bind((ip, 0)).expect("a port");
            let target = listener.local_addr().expect("an address").to_string();
            guest.run("refused", &target);
        }
    });
}

#[test]
fn a_host_that_lets_nobody_ping_is_told_of() {
    in_namespace(|| {
        outside();
        for (range, count) in [("1 0", 1), ("0 2147483647", 0)] {
            fs::write("/proc/sys/net/ipv4/ping_group_range", range).expect("a setting");
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "SAID"]);
            let said = guest.said();
            assert_eq!(said.matches("ping_group_range").count(), count, "{said}");
        }
    });
}

/// Podman asks for it, RootlessKit does not.
const CONFINING: [&[&str]; 2] = [&["--enable-sandbox", "--enable-seccomp"], &[]];

#[test]
fn a_confined_gateway_serves_and_has_no_rights() {
    in_namespace(|| {
        outside();
        for options in CONFINING {
            let listener = TcpListener::bind("192.0.2.1:0").expect("a port");
            let target = listener.local_addr().expect("an address").to_string();
            let options = [&["-c", "--api-socket", "SOCKET"], options].concat();
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
            confined::check(guest.server_pid(), confined::BIND);
            let accepts = thread::spawn(move || {
                listener.accept().expect("a connection").0.write_all(b"hello").expect("sent");
            });
            guest.run("greeting", &target);
            accepts.join().expect("no panic");
            let add = r#"{"execute": "add_hostfwd",
                "arguments": {"proto": "tcp", "host_port": 80, "guest_port": 80}}"#;
            assert_eq!(ask(&guest, add), r#"{"return":{"id":1}}"#);
        }
    });
}

#[test]
fn a_confined_gateway_reads_the_resolvers_again() {
    in_namespace(|| {
        outside();
        resolver("192.0.2.1", &[1]);
        resolver("127.0.0.1", &[2]);
        for options in CONFINING {
            let options = [&["-c", "ETC"], options].concat();
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
            for (address, program) in
                [("192.0.2.1", "first resolver"), ("127.0.0.1", "second resolver")]
            {
                guest.name_resolver(address);
                guest.run(program, "10.0.2.3:53");
            }
        }
    });
}

#[test]
fn options_of_the_gateways_own_keep_flows_away_and_show_it() {
    in_namespace(|| {
        outside();
        let listener = TcpListener::bind("192.0.2.1:0").expect("a port");
        let target = listener.local_addr().expect("an address").to_string();
        let options = ["-c", "--deny", "192.0.2.0/24", "--metrics", "127.0.0.1:9100"];
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
        guest.run("denied", &target);
        let mut stream = TcpStream::connect("127.0.0.1:9100").expect("it is served");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        assert!(text.contains("GatewayDenied_total 1\n"), "{text}");
        drop(guest);
        let options = ["-c", "--flows", "1", "SAID"];
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
        guest.run("refused as a second", &target);
        let told = "slirp4netns: refused: too many at the same time flows=1";
        while !guest.said().contains(told) {
            thread::yield_now();
        }
    });
}

#[test]
fn after_a_signal_a_flow_goes_on_that_was_open() {
    in_namespace(|| {
        outside();
        let listener = TcpListener::bind("192.0.2.1:0").expect("a port");
        let target = listener.local_addr().expect("an address").to_string();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "--drain", "3600"]);
        let opened = guest.spawn("outlast", &target);
        let (mut stream, _) = listener.accept().expect("a connection");
        thread::spawn(move || listener.incoming().for_each(drop));
        run(&format!("kill {}", guest.server_pid()));
        // The guest speaks as soon as another connection is refused.
        stream.read_exact(&mut [0]).expect("the flow goes on");
        drop(stream);
        assert_eq!(guest.wait(), Some(0));
        drop(opened);
    });
}

#[test]
fn a_confined_gateway_is_shown_to_its_user() {
    in_namespace(|| {
        outside();
        let listener = TcpListener::bind("192.0.2.1:0").expect("a port");
        let target = listener.local_addr().expect("an address").to_string();
        let options = ["-c", "--enable-sandbox", "--enable-seccomp"];
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
        let accepts = thread::spawn(move || {
            listener.accept().expect("a connection").0.write_all(b"hello").expect("sent");
            listener
        });
        guest.run("greeting", &target);
        let _listener = accepts.join().expect("no panic");
        let counters = guest.look(&["nstat", "-aj", "--name", "slirp4netns"]);
        let counters: Value = serde_json::from_str(&counters).expect("JSON");
        let counters = &counters[format!("{}/slirp4netns", guest.server_pid())];
        assert_eq!(counters["GatewayOpened"], 1);
        assert_eq!(counters["GatewayGuestBytesIn.10.0.2.100"], 5);
        guest.look(&["ss", "-ta", "--name", "slirp4netns"]);
    });
}

#[test]
fn a_published_port_shows_the_guest_its_client() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "--api-socket", "SOCKET"]);
        for (proto, port) in [("tcp", 8080), ("udp", 8080), ("udp", 8081), ("tcp6", 8082)] {
            let request = json!({
                "execute": "add_hostfwd",
                "arguments": { "proto": proto, "host_port": port, "guest_port": 80 },
            });
            let answer = ask(&guest, &request.to_string());
            assert!(answer.contains("return"), "{answer}");
        }
        let server = guest.spawn("tell peers", "0.0.0.0:80");
        // The second port, with another client, is asked between two questions of the first.
        let [first, second] = ["192.0.2.1:0", "127.0.0.1:0"].map(|address| {
            let socket = UdpSocket::bind(address).expect("a port");
            let own = socket.local_addr().expect("an address");
            (socket, own)
        });
        let ask_udp = |(socket, own): &(UdpSocket, SocketAddr), port: u16, seen: &str| {
            let to = SocketAddr::new(own.ip(), port);
            socket.send_to(b"who am I?", to).expect("sent");
            let mut answer = [0; 100];
            let (count, from) = socket.recv_from(&mut answer).expect("an answer");
            assert_eq!(from, to);
            let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
            assert_eq!(answer, format!("{seen}:{}", own.port()));
        };
        ask_udp(&first, 8080, "192.0.2.1");
        ask_udp(&second, 8081, "10.0.2.2");
        ask_udp(&first, 8080, "192.0.2.1");
        for (target, seen) in [
            ("192.0.2.1:8080", "192.0.2.1"),
            ("127.0.0.1:8080", "10.0.2.2"),
            ("[::1]:8082", "10.0.2.2"),
        ] {
            let mut stream = TcpStream::connect(target).expect("it is published");
            let own = stream.local_addr().expect("an address");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("text");
            assert_eq!(answer, format!("{seen}:{}", own.port()));
        }
        let remove = r#"{"execute": "remove_hostfwd", "arguments": {"id": 1}}"#;
        assert_eq!(ask(&guest, remove), r#"{"return":{}}"#);
        let error = TcpStream::connect("192.0.2.1:8080").expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        drop(server);
    });
}

#[test]
fn flows_leave_from_the_address_that_was_asked_for() {
    in_namespace(|| {
        outside();
        run(&format!("ip address add {OUTBOUND}/24 dev far"));
        run(&format!("ip address add {OUTBOUND_V6}/64 dev far nodad"));
        run("ip address add 2001:db8::1/64 dev outside nodad");
        let [v4, v6] = ["192.0.2.1:8080", "[2001:db8::1]:8080"];
        for server in [v4, v6] {
            let servers = servers(server.parse().expect("an address"));
            thread::spawn(move || tell_peers(servers));
        }
        for (option, outbound, server) in [
            ("--outbound-addr", OUTBOUND, v4),
            ("--outbound-addr", "far", v4),
            ("--outbound-addr6", OUTBOUND_V6, v6),
            ("--outbound-addr6", "far", v6),
        ] {
            let option = format!("{option}={outbound}");
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c", "-6", &option]);
            guest.address_until("fd00::");
            guest.run("seen as", server);
        }
    });
}

#[test]
fn a_guest_gets_its_address_by_dhcp() {
    in_namespace(|| {
        if Command::new("busybox").arg("udhcpc").arg("--help").output().is_err() {
            return skip("busybox is not installed");
        }
        outside();
        for (options, resolver) in
            [(&["--mtu=9000"][..], "10.0.2.3"), (&["--mtu=9000", "--disable-dns"], "")]
        {
            let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), options);
            guest.ip("link set tap0 up");
            let script = guest.socket().with_extension("sh");
            let text = "#!/bin/sh\n[ $1 != bound ] || \
                        echo \"$ip/$mask $router $dns $mtu $serverid $lease\"\n";
            fs::write(&script, text).expect("room");
            run(&format!("chmod 755 {}", script.display()));
            let client = format!("busybox udhcpc -i tap0 -nqf -s {}", script.display());
            let line = guest.inside(&client);
            let bound = format!("10.0.2.15/24 10.0.2.2 {resolver} 9000 10.0.2.2 86400");
            assert!(line.contains(&bound), "{options:?}: {line}");
        }
    });
}

#[test]
fn a_tunnel_without_a_resolver_is_one_for_guests_that_ask_whom_they_want() {
    in_namespace(|| {
        outside();
        let file = std::env::temp_dir().join(format!("neap-slirp-{}.conf", std::process::id()));
        let text = "[Interface]\nPrivateKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
                    Address = 10.9.0.1/32\n\
                    [Peer]\nPublicKey = AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n";
        fs::write(&file, text).expect("room");
        let upstream = format!("wireguard:{}", file.display());
        let options = ["-c", "--disable-dns", "--upstream", &upstream];
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &options);
        fs::remove_file(&file).expect("it was there");
        guest.inside("ping -c1 -W 60 10.0.2.2");
    });
}

/// Memory that a flood of requests for addresses may cost, bytes: 256 leases of 300 bytes, and what
/// waits for the gateway.
const MOST_LEASES: u64 = 12 << 20;

#[test]
fn a_flood_of_requests_for_addresses_costs_little_and_leaves_flows_alone() {
    in_namespace(|| {
        outside();
        let guest = Guest::start(env!("CARGO_BIN_EXE_neap"), &["-c"]);
        let memory = || {
            let status = fs::read_to_string(format!("/proc/{}/status", guest.server_pid()));
            let status = status.expect("it runs");
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = peak.expect("a line").trim().trim_end_matches(" kB");
            kib.parse::<u64>().expect("a number") << 10
        };
        let before = memory();
        guest.run("flood of clients", "255.255.255.255:67");
        let listener = TcpListener::bind("192.0.2.1:0").expect("a port");
        let target = listener.local_addr().expect("an address").to_string();
        let accepts = thread::spawn(move || {
            listener.accept().expect("a connection").0.write_all(b"hello").expect("sent");
        });
        guest.run("greeting", &target);
        accepts.join().expect("no panic");
        let after = memory();
        assert!(after <= before + MOST_LEASES, "memory went from {before} to {after}");
    });
}

/// Asks for addresses as thousands of clients, and takes the first offer (RFC 2131 section 2).
fn flood_of_clients(server: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:68").expect("a port");
    socket.set_broadcast(true).expect("an option");
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("an option");
    let mut discover = [0; 244];
    discover[..4].copy_from_slice(&[1, 1, 6, 0]);
    discover[236..].copy_from_slice(&[99, 130, 83, 99, 53, 1, 1, 255]);
    for client in 0..20_000_u32 {
        discover[4..8].copy_from_slice(&client.to_be_bytes());
        discover[28..34].copy_from_slice(&[&[2, 0][..], &client.to_be_bytes()].concat());
        // What the kernel has no room for is lost.
        let _ = socket.send_to(&discover, server);
    }
    let mut offer = [0; 1500];
    let (count, _) = socket.recv_from(&mut offer).expect("an offer");
    assert!(count > 240 && offer[0] == 2 && offer[16..19] == [10, 0, 2]);
}

#[test]
fn a_device_may_be_handed_over() {
    in_namespace(|| {
        outside();
        // The device is in the namespace of this test.
        let config = neap::device::TunConfig {
            name: Some("tap0".to_owned()),
            tap: true,
            bulk_queue: false,
            ..neap::device::TunConfig::default()
        };
        let tap = neap::device::Tun::open(&config).expect("a TAP").into_queues().remove(0);
        let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
        command.args(["slirp4netns", "--netns-type=tapfd", "-r", "1", "0"]);
        command.stdin(Stdio::from(tap.main)).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut ready = [0];
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut ready).expect("it is ready");
        run("ip address add 10.0.2.100/24 dev tap0");
        run("ip link set tap0 up");
        run("ping -c 1 -W 60 10.0.2.2");
        run(&format!("kill -TERM {}", child.id()));
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    });
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    in_namespace(|| {
        // A host without any address lets sockets have every one.
        run("ip link set lo up");
        for (arguments, code, hint) in [
            ("0 tap0", 2, "positive integer"),
            ("-e 77 1 tap0", 2, "--exit-fd 77"),
            ("--outbound-addr=nope0 1 tap0", 2, "nope0"),
            ("--outbound-addr=203.0.113.9 1 tap0", 2, "does not have the address"),
            ("--outbound-addr6=2001:db8::9 1 tap0", 2, "does not have the address"),
            ("--log=loud 1 tap0", 2, "--log"),
            ("4194304 tap0", 1, "/proc/4194304/ns/"),
            ("--netns-type=path /no/such/namespace tap0", 1, "/no/such/namespace"),
            ("--netns-type=path /proc/self/ns/uts tap0", 1, "/proc/self/ns/uts"),
            ("--netns-type=tapfd 0", 1, "not a TUN or TAP device"),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
            command.arg("slirp4netns").args(arguments.split(' ')).stdin(Stdio::null());
            let output = command.output().expect("it runs");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{arguments}: {stderr}");
            assert!(stderr.contains(hint) && stderr.lines().count() == 1, "{arguments}: {stderr}");
        }
    });
}

/// What this binary does in the guest's namespace.
#[test]
fn inside() {
    let Ok(program) = env::var(PROGRAM) else { return };
    let target: SocketAddr = env::var(TARGET).expect("a target").parse().expect("an address");
    match program.as_str() {
        "greeting" => {
            let stream = TcpStream::connect(target).expect("the server accepts");
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).expect("text");
            assert_eq!(line, "hello");
        }
        "refused" => denied(target, ErrorKind::ConnectionRefused),
        "denied" => denied(target, ErrorKind::HostUnreachable),
        "refused as a second" => {
            let _first = TcpStream::connect(target).expect("the server accepts");
            denied(target, ErrorKind::ConnectionRefused);
        }
        "outlast" => {
            let mut stream = TcpStream::connect(target).expect("the server accepts");
            println!("ready");
            while TcpStream::connect(target).is_ok() {}
            stream.write_all(b"x").expect("sent");
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        }
        "denied v6" => denied(target, ErrorKind::PermissionDenied),
        "send a datagram" => families::send_a_datagram(target),
        "seen as" => seen_as(target),
        "first resolver" => ask_name(target, 1),
        "second resolver" => ask_name(target, 2),
        "flood of clients" => flood_of_clients(target),
        "tell peers" => {
            let servers = servers(target);
            println!("ready");
            tell_peers(servers);
        }
        other => panic!("there is no program {other}"),
    }
}

/// The gateway says that the way is prohibited.
fn denied(target: SocketAddr, kind: ErrorKind) {
    let error = TcpStream::connect(target).expect_err("it is denied");
    assert_eq!(error.kind(), kind, "{error}");
}

/// The server sees the address that was asked for.
fn seen_as(server: SocketAddr) {
    let (seen, any) = match server {
        SocketAddr::V4(_) => (format!("{OUTBOUND}:"), "0.0.0.0:0"),
        SocketAddr::V6(_) => (format!("[{OUTBOUND_V6}]:"), "[::]:0"),
    };
    let mut answer = String::new();
    let mut stream = TcpStream::connect(server).expect("the server accepts");
    stream.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with(&seen), "{answer}");
    let socket = UdpSocket::bind(any).expect("a port");
    socket.send_to(b"who am I?", server).expect("sent");
    let mut answer = [0; 100];
    let (count, _) = socket.recv_from(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.starts_with(&seen), "{answer}");
}

/// A question for the address of `a`.
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

/// The resolver with this mark answers.
fn ask_name(resolver: SocketAddr, mark: u8) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    socket.send_to(QUESTION, resolver).expect("sent");
    let mut answer = [0; 100];
    let (count, _) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!(answer[QUESTION.len()..count], [mark]);
}

fn servers(address: SocketAddr) -> (TcpListener, UdpSocket) {
    let listener = TcpListener::bind(address).expect("a port");
    (listener, UdpSocket::bind(address).expect("a port"))
}

/// Tells the clients of a port how they are seen, over TCP and UDP.
fn tell_peers((listener, socket): (TcpListener, UdpSocket)) {
    thread::spawn(move || {
        let mut question = [0; 100];
        while let Ok((_, from)) = socket.recv_from(&mut question) {
            socket.send_to(from.to_string().as_bytes(), from).expect("sent");
        }
    });
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let peer = stream.peer_addr().expect("connected");
        stream.write_all(peer.to_string().as_bytes()).expect("sent");
    }
}
