//! Everything through a proxy: `--upstream` with SOCKS5 and HTTP servers of Debian.

use super::capture::Capture;
use super::folder::Folder;
use super::namespace::in_namespace;
use super::world::{ECHO, NAME, PAGE, PROXY, SERVER, TELL, WEB, World};
use super::{datagrams, echo, finish, gateway, in_sandbox, pattern, refused, run, to, up};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

const SOCKS: u16 = 1080;
const HTTP: u16 = 8888;
/// Bytes that wait in a proxy and behind it at the most.
const PIECE: usize = 64 << 10;

/// Programs in the sandbox.
pub(super) fn inside(program: &str, target: &str) -> bool {
    match program {
        "exchange by name" => exchange(named(target)),
        "exchange" => exchange(to(target)),
        "echo by name" => echo(named(target)),
        "refused by name" => refused(named(target), ErrorKind::ConnectionRefused),
        "unreachable by name" => refused(named(target), ErrorKind::HostUnreachable),
        "datagrams by name" => {
            let address = named(target);
            datagrams(&format!("{address} {address}"));
        }
        "no datagrams" => no_datagrams(to(target)),
        _ => return false,
    }
    true
}

/// The address that stands for a name.
fn named(target: &str) -> SocketAddr {
    let addresses: Vec<_> = target.to_socket_addrs().expect("the name resolves").collect();
    let [address] = addresses[..] else { panic!("one stands for the name: {addresses:?}") };
    assert!(matches!(address.ip(), IpAddr::V4(v4) if v4.octets()[..2] == [198, 18]), "{address}");
    address
}

fn no_datagrams(server: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(server).expect("a route");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.send(b"anybody?").expect("sent");
    let error = socket.recv(&mut [0; 10]).expect_err("datagrams are refused");
    assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{error}");
}

/// Sends a large pattern and gets it back; unlike `echo` it does not half-close, which some proxies
/// take for the end of both directions. Nor does it send more than buffers hold before it has the
/// echo: microsocks has one thread for both directions, which stands still when both are full.
fn exchange(server: SocketAddr) {
    let stream = TcpStream::connect(server).expect("the server accepts");
    let mut back = vec![0; PIECE];
    for piece in pattern().chunks(PIECE) {
        (&stream).write_all(piece).expect("sent");
        (&stream).read_exact(&mut back[..piece.len()]).expect("received");
        assert!(back[..piece.len()] == *piece, "other bytes");
    }
}

/// Says that a test cannot run, if a program is missing.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        super::namespace::skip(&format!("no {program} here"));
    }
    found
}

/// A page by curl in a sandbox, by name.
fn curl(upstream: &str, auth_file: &str) {
    let url = format!("http://{NAME}:{WEB}/");
    let mut options = vec!["--upstream", upstream];
    if !auth_file.is_empty() {
        options.extend(["--auth-file", auth_file]);
    }
    let command = ["--", "curl", "-sS", "--max-time", "20", &url];
    let (status, stdout, stderr) = finish(gateway(&[&options, &command[..]].concat()));
    assert!(status == Some(0) && stdout == PAGE, "{status:?}\n{stdout}{stderr}");
}

#[test]
fn connections_go_through_a_socks_server_with_a_password_and_nothing_beside_it() {
    if !has("microsocks") || !has("tcpdump") {
        return;
    }
    in_namespace(|| {
        let folder = Folder::new("socks");
        let server = format!("microsocks -i {PROXY} -p {SOCKS} -u me -P secret");
        let _world = World::new(&folder, &server, SOCKS);
        let auth = folder.write("auth", "me:secret\n");
        let upstream = format!("socks5://{PROXY}:{SOCKS}");
        let capture = Capture::start(&folder, "outside");
        curl(&upstream, &auth);
        let options = ["--upstream", &upstream, "--auth-file", &auth];
        in_sandbox("exchange by name", &format!("{NAME}:{ECHO}"), &options);
        in_sandbox("exchange", &format!("{SERVER}:{ECHO}"), &options);
        in_sandbox("refused by name", &format!("{NAME}:81"), &options);
        // A resolver behind the proxy is asked through it.
        in_sandbox("ask once", "", &[&options[..], &["--dns", SERVER]].concat());
        // A proxy carries no pings, and nobody else does.
        let ping = ["--", "ping", "-c", "1", "-W", "1", SERVER];
        let (status, stdout, stderr) = finish(gateway(&[&options, &ping[..]].concat()));
        assert!(status == Some(1), "{stdout}{stderr}");
        let (all, beside) = capture.finish(&format!("host {PROXY} and tcp port {SOCKS}"));
        assert!(all > 50 && beside.is_empty(), "{all} packets, beside the proxy:\n{beside}");

        let bad = folder.write("bad", "me:wrong\n");
        let (status, _, stderr) =
            finish(gateway(&["--upstream", &upstream, "--auth-file", &bad, "--", "true"]));
        assert!(status == Some(1) && stderr.contains("check --auth-file"), "{stderr}");
        let (status, _, stderr) = finish(gateway(&["--upstream", &upstream, "--", "true"]));
        assert!(status == Some(1) && stderr.contains("check --auth-file"), "{stderr}");
        // A SOCKS server is no HTTP server: nothing but the flow can tell.
        let http = format!("http://{PROXY}:{SOCKS}");
        in_sandbox("unreachable by name", &format!("{NAME}:{ECHO}"), &["--upstream", &http]);
    });
}

#[test]
fn datagrams_go_through_a_socks_server() {
    if !has("danted") || !has("tcpdump") {
        return;
    }
    in_namespace(|| {
        let folder = Folder::new("dante");
        let settings = format!(
            "logoutput: stderr\ninternal: {PROXY} port = {SOCKS}\nexternal: far\n\
             socksmethod: none\nclientmethod: none\nuser.privileged: root\nuser.unprivileged: root\n\
             client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n\
             socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n"
        );
        let settings = folder.write("danted.conf", &settings);
        let server = format!("danted -f {settings} -p {}/pid", folder.path().display());
        let _world = World::new(&folder, &server, SOCKS);
        let upstream = format!("socks5://{PROXY}:{SOCKS}");
        let capture = Capture::start(&folder, "outside");
        curl(&upstream, "");
        let options = ["--upstream", &upstream];
        let target = format!("{SERVER}:{TELL} {SERVER}:{TELL}");
        in_sandbox("datagrams", &target, &options);
        in_sandbox("datagrams by name", &format!("{NAME}:{TELL}"), &options);
        in_sandbox("echo by name", &format!("{NAME}:{ECHO}"), &options);
        let (all, beside) = capture.finish(&format!("host {PROXY} and (tcp port {SOCKS} or udp)"));
        assert!(all > 50 && beside.is_empty(), "{all} packets, beside the proxy:\n{beside}");
    });
}

#[test]
fn connections_go_through_an_http_proxy_and_datagrams_are_refused() {
    if !has("tinyproxy") || !has("tcpdump") {
        return;
    }
    in_namespace(|| {
        let folder = Folder::new("http");
        let settings = format!(
            "Port {HTTP}\nListen {PROXY}\nTimeout 60\nMaxClients 50\nAllow 0.0.0.0/0\n\
             BasicAuth me secret\nLogLevel Error\n"
        );
        let settings = folder.write("tinyproxy.conf", &settings);
        let _world = World::new(&folder, &format!("tinyproxy -d -c {settings}"), HTTP);
        let auth = folder.write("auth", "me:secret");
        let upstream = format!("http://{PROXY}:{HTTP}");
        let capture = Capture::start(&folder, "outside");
        curl(&upstream, &auth);
        let options = ["--upstream", &upstream, "--auth-file", &auth];
        in_sandbox("exchange by name", &format!("{NAME}:{ECHO}"), &options);
        in_sandbox("no datagrams", &format!("{SERVER}:{TELL}"), &options);
        in_sandbox("unreachable by name", "no.such.test:80", &options);
        // Without a password the proxy forbids each flow.
        in_sandbox("unreachable by name", &format!("{NAME}:{ECHO}"), &["--upstream", &upstream]);
        let (all, beside) = capture.finish(&format!("host {PROXY} and tcp port {HTTP}"));
        assert!(all > 50 && beside.is_empty(), "{all} packets, beside the proxy:\n{beside}");
    });
}

#[test]
fn an_upstream_that_does_not_answer_is_told_in_one_line() {
    in_namespace(|| {
        up();
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let stranger = TcpListener::bind("127.0.0.1:0").expect("a port");
        let strange = stranger.local_addr().expect("an address").port();
        thread::spawn(move || {
            for stream in stranger.incoming() {
                let mut stream = stream.expect("a connection");
                std::io::Write::write_all(&mut stream, b"220 mail\r\n").expect("sent");
            }
        });
        for (upstream, hint) in [
            ("socks5://127.0.0.1:9".to_owned(), "refused"),
            ("http://127.0.0.1:9".to_owned(), "refused"),
            (format!("socks5://127.0.0.1:{port}"), "does not answer"),
            (format!("socks5://127.0.0.1:{strange}"), "check the URL"),
            ("socks5://no.such.host.invalid:1080".to_owned(), "no address"),
        ] {
            let (status, _, stderr) = finish(gateway(&["--upstream", &upstream, "--", "true"]));
            let is_one_line = stderr.trim_end().lines().count() == 1;
            assert!(status == Some(1) && is_one_line, "{upstream}: {status:?} {stderr}");
            assert!(stderr.contains(&upstream) && stderr.contains(hint), "{upstream}: {stderr}");
        }
    });
}

#[test]
fn an_http_server_that_lets_nothing_through_is_told_once() {
    for (answer, hint) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "does not let us in"),
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "has let nothing through yet"),
        ("HTTP/1.1 405 Not Allowed\r\n\r\n", "is no such proxy"),
        ("SSH-2.0-OpenSSH_10.0\r\n\r\n", "is no such proxy"),
        ("", "is no such proxy"),
    ] {
        in_namespace(|| {
            run("ip link set lo up");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let upstream = format!("http://{}", listener.local_addr().expect("an address"));
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.expect("a connection");
                    let _ = stream.read(&mut [0; 1000]);
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
            let script = "for flow in 1 2 3; do : < /dev/tcp/192.0.2.9/80; done";
            let arguments = ["--upstream", &upstream, "--", "bash", "-c", script];
            let (_, _, stderr) = finish(gateway(&arguments));
            assert_eq!(stderr.matches(hint).count(), 1, "{answer}: {stderr}");
        });
    }
}

#[test]
fn an_http_proxy_that_refuses_some_ports_is_no_fault() {
    in_namespace(|| {
        run("ip link set lo up");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let upstream = format!("http://{}", listener.local_addr().expect("an address"));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let mut request = [0; 1000];
                let count = stream.read(&mut request).expect("a request");
                let is_https = String::from_utf8_lossy(&request[..count]).contains(":443 ");
                let answer = if is_https { "200 OK" } else { "403 Forbidden" };
                let _ = write!(stream, "HTTP/1.1 {answer}\r\n\r\n");
            }
        });
        let script = "for port in 443 22 22; do : < /dev/tcp/192.0.2.9/$port; done";
        let arguments = ["--upstream", &upstream, "--", "bash", "-c", script];
        let (_, _, stderr) = finish(gateway(&arguments));
        assert!(stderr.contains("192.0.2.9"), "bash tells of what is refused: {stderr}");
        assert!(!stderr.contains("the upstream"), "{stderr}");
    });
}

#[test]
fn bad_upstreams_and_passwords_in_arguments_end_with_status_2() {
    let folder = Folder::new("auth");
    let open = folder.write("open", "me:secret\n");
    run(&format!("chmod 644 {open}"));
    let empty = folder.write("empty", "secret\n");
    let socks = "socks5://127.0.0.1:1";
    for (arguments, hint) in [
        (&["--upstream", "socks5://me:secret@127.0.0.1:1080"][..], "--auth-file"),
        (&["--upstream", "ftp://127.0.0.1:21"], "socks5://HOST:PORT"),
        (&["--upstream", "socks5://127.0.0.1"], "socks5://HOST:PORT"),
        (&["--upstream", "http://[::1:80"], "http://HOST:PORT"),
        (&["--dns", "proxy"], "--upstream"),
        (&["--dns", "dns.example"], "expected proxy, direct or an address"),
        (&["--mark", "x"], "expected a number"),
        (&["--auth-file", &open], "name one with --upstream"),
        (&["--upstream", socks, "--auth-file", &open], "chmod 600"),
        (&["--upstream", socks, "--auth-file", &empty], "USER:PASSWORD"),
        (&["--upstream", socks, "--auth-file", "/no/such/file"], "No such file"),
        (&["-p", "80"], "HOST:GUEST"),
    ] {
        let (status, _, stderr) = finish(gateway(&[arguments, &["--", "true"]].concat()));
        assert!(status == Some(2) && stderr.contains(hint), "{arguments:?}: {status:?} {stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
}

/// Asks for the address of the world's name, of a resolver that nobody runs.
fn ask(resolver: &str) -> IpAddr {
    let mut question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00".to_vec();
    for label in NAME.split('.') {
        question.push(u8::try_from(label.len()).expect("a label"));
        question.extend_from_slice(label.as_bytes());
    }
    question.extend_from_slice(b"\x00\x00\x01\x00\x01");
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.connect((resolver, 53)).expect("a route");
    socket.send(&question).expect("sent");
    let mut answer = [0; 512];
    let count = socket.recv(&mut answer).expect("the gateway answers");
    let address: [u8; 4] = answer[count - 4..count].try_into().expect("an address is the last");
    address.into()
}

#[test]
fn what_is_routed_into_a_tun_goes_through_the_proxy_by_one_interface() {
    if !has("microsocks") || !has("tcpdump") {
        return;
    }
    in_namespace(|| {
        let folder = Folder::new("tun");
        let _world = World::new(&folder, &format!("microsocks -i {PROXY} -p {SOCKS}"), SOCKS);
        // Nothing but the interface leads to the proxy.
        run("ip route del 192.0.2.0/24 dev outside");
        run("ip rule add fwmark 7 table 7");
        run("ip route add 192.0.2.0/24 dev outside table 7");
        let capture = Capture::start(&folder, "outside");
        let upstream = format!("socks5://{PROXY}:{SOCKS}");
        let options = ["--bind", "outside", "--mark", "0x7", "--host-address", "10.0.2.100/24"];
        let mut child = Command::new(env!("CARGO_BIN_EXE_neap"))
            .args(["gateway", "tun", "--tun", "gate0", "--upstream", &upstream])
            .args(options)
            .spawn()
            .expect("neap runs");
        let is_up = || {
            let output = Command::new("ip").args(["link", "show", "up", "dev", "gate0"]).output();
            output.is_ok_and(|output| !output.stdout.is_empty())
        };
        while !is_up() {
            assert!(child.try_wait().expect("a child").is_none(), "the gateway has ended");
            thread::yield_now();
        }
        run("ip route add 198.51.100.0/24 dev gate0");
        run("ip route add 198.18.0.0/15 dev gate0");
        exchange(to(&format!("{SERVER}:{ECHO}")));
        let named = ask("198.51.100.53");
        exchange(SocketAddr::new(named, ECHO));
        run(&format!("kill -TERM {}", child.id()));
        assert!(child.wait().expect("it ends").success());
        let (all, beside) = capture.finish(&format!("host {PROXY} and tcp port {SOCKS}"));
        assert!(all > 50 && beside.is_empty(), "{all} packets, beside the proxy:\n{beside}");
    });
}

#[test]
fn interfaces_and_marks_that_cannot_be_had_are_told_in_one_line() {
    in_namespace(|| {
        up();
        let (status, _, stderr) = finish(gateway(&["--bind", "nope0", "--", "true"]));
        assert!(status == Some(1) && stderr.contains("no such interface"), "{stderr}");
        let script = format!(
            "exec setpriv --bounding-set -all --inh-caps -all {} gateway run --mark 1 -- true",
            env!("CARGO_BIN_EXE_neap")
        );
        let (status, _, stderr) = finish({
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            command
        });
        assert!(status == Some(1) && stderr.contains("CAP_NET_ADMIN"), "{status:?} {stderr}");
    });
}
