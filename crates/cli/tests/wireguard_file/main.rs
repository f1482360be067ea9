//! `neap wireguard` and `neap wg show`: two of them as peers of each other over a veth, files that
//! change while they run, and wg(8) as the oracle of what is shown.

#[allow(dead_code, reason = "shared with tests of other faces")]
#[path = "../common/confined.rs"]
mod confined;
#[path = "../common/host.rs"]
mod host;
#[path = "../common/namespace.rs"]
mod namespace;

mod gateways;
mod machine;
mod shown;
mod world;

use host::Host;
use namespace::{in_namespace, run, skip};
use neap_wireguard::PrivateKey;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use world::{FAR, Folder, Keys, Tunnel, get, veth};

/// A `[Interface]` that says on `/readyz` whether the far end answers.
const ALIVE: &str = "CheckAlive = 10.9.0.2\nCheckAliveInterval = 1\n";
/// What leads from the tunnel to the echo server.
const SERVER: &str = "[TCPServerTunnel]\nListenPort = 80\nTarget = localhost:8080\n";
/// Where the pages of the tunnel are.
const INFO: &str = "127.0.0.1:9080";

#[test]
fn a_file_is_checked_without_a_tunnel() {
    let folder = Folder::new("check");
    let keys = Keys::new();
    let good = folder.write("good.conf", &keys.near("", ""));
    let (status, out, err) = folder.finish(&["wireguard", "-n", "-c", &good]);
    assert_eq!((status, out.as_str(), err.as_str()), (Some(0), "Config OK\n", ""));
    let bad = folder.write("bad.conf", &keys.near("MTU = 1\n", ""));
    let (status, out, err) = folder.finish(&["wireguard", "--configtest", "--config", &bad]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    let place = format!("neap wireguard: {bad}:4: [Interface] MTU: expected a number of bytes");
    assert!(err.starts_with(&place), "{err}");
    let secret = keys.near("PostUp = touch /nowhere\nPrivateKey = oops\n", "");
    let (status, _, err) =
        folder.finish(&["wireguard", "-nc", &folder.write("twice.conf", &secret)]);
    let twice = ":5: [Interface] PrivateKey: this does not count: the value in line 2 does";
    assert!(status == Some(0) && err.contains(twice) && !err.contains("oops"), "{err}");
    let open = folder.write("open.conf", &keys.near("", "[Socks5]\nBindAddress = :1080\n"));
    run(&format!("chmod 644 {open}"));
    let (status, _, err) = folder.finish(&["wireguard", "-n", "-c", &open]);
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("others may read this file: chmod 600"), "{err}");
    assert!(err.contains("a proxy without a password at :1080"), "{err}");
    let (_, _, err) = folder.finish(&["wireguard", "-s", "-n", "-c", &open]);
    assert_eq!(err, "");
    let door = "[http]\nBindAddress = :1\nUsername = a\nPassword = b\nCertFile = no.pem\n\
                KeyFile = no.key\n";
    let absent = folder.write("absent.conf", &keys.near("", door));
    let (status, out, err) = folder.finish(&["wireguard", "-n", "-c", &absent]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(
        err.contains("absent.conf:11: [http] CertFile: ") && err.contains("no.pem: No such"),
        "{err}"
    );
    // A start says the same.
    let (status, _, started) = folder.finish(&["wireguard", "-c", &absent]);
    assert_eq!((status, started.lines().last()), (Some(2), err.lines().last()));
    // The path that a file has by default.
    fs::create_dir(folder.path(".config")).expect("a folder");
    folder.write(".config/wireproxy.conf", &keys.near("", ""));
    let mut command = folder.neap(&["wireguard", "-n"]);
    let output = command.env("HOME", folder.path("")).output().expect("neap runs");
    assert!(output.status.success() && output.stdout == b"Config OK\n", "{output:?}");
    for option in ["-v", "--version"] {
        let version = folder.print(&["wireguard", option]);
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
}

#[test]
fn a_target_by_name_is_told_of_where_nobody_resolves_names() {
    let folder = Folder::new("names-without-dns");
    let server = |port: u16, target: &str| {
        format!("[TCPServerTunnel]\nListenPort = {port}\nTarget = {target}:80\n")
    };
    let client = |port: u16, target: &str| {
        format!("[TCPClientTunnel]\nBindAddress = 127.0.0.1:{port}\nTarget = {target}:80\n")
    };
    let targets = ["db.test", "localhost", "127.0.0.1"];
    let mut doors: String = (1..).zip(targets).map(|(port, target)| client(port, target)).collect();
    // The network of the machine is the machine's to resolve.
    doors += &server(1, "db.test");
    let check = |dns: &str, doors: &str| {
        let file = folder.write("near.conf", &Keys::new().near(dns, doors));
        let (status, _, err) = folder.finish(&["wireguard", "-n", "-c", &file]);
        assert_eq!(status, Some(0), "{err}");
        err
    };
    let told = check("", &doors);
    let expected = "near.conf:11: [TCPClientTunnel] Target: db.test:80 has no address without DNS \
                    in [Interface]";
    assert!(told.contains(expected) && told.lines().count() == 1, "{told}");
    assert_eq!(check("DNS = 10.9.0.2\n", &doors), "");
    let told = check("", "[SNI]\nBindAddress = 127.0.0.1:443\n");
    assert!(
        told.contains("near.conf: [Interface] DNS: without it no name has an address"),
        "{told}"
    );
}

#[test]
fn helpers_have_no_more_rights_than_others() {
    in_namespace(|| {
        let folder = Folder::new("helpers");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let tunnel = Tunnel::start(&folder, &["-c", &near, "--sealers", "1"]);
        confined::check(tunnel.pid(), 0);
        // They start with the first frame that is large enough.
        let stream = TcpStream::connect("127.0.0.1:9001").expect("a door");
        let (bytes, sending) = (vec![7; 16 << 20], stream.try_clone().expect("a descriptor"));
        let sender = thread::spawn(move || (&sending).write_all(&bytes).expect("sent"));
        std::io::copy(&mut stream.take(16 << 20), &mut std::io::sink()).expect("echoed");
        sender.join().expect("no panic");
        let threads = fs::read_dir(format!("/proc/{}/task", tunnel.pid())).expect("it runs");
        let name = |thread: &fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
        let mut names = threads.map(|thread| name(&thread.expect("a thread")).expect("a name"));
        assert!(names.any(|name| name.trim_end() == "wg-seal-0"));
        confined::check(tunnel.pid(), 0);
    });
}

/// The status of the page, and the second in which the far end has answered last.
fn readiness(path: &str) -> (u16, u64) {
    let (status, body) = get(INFO, path);
    let answers: Value = serde_json::from_str(&body).expect("JSON");
    (status, answers["10.9.0.2"].as_u64().expect("a second"))
}

/// Asks until the far end has answered: the first ping waits for the handshake.
fn wait_until_ready() {
    loop {
        let (status, second) = readiness("/readyz");
        assert_eq!(second > 0, status == 200, "{status} {second}");
        if status == 200 {
            return;
        }
        assert_eq!(status, 503, "{second}");
    }
}

#[test]
fn pings_follow_the_interval_of_a_file_that_is_read_again() {
    in_namespace(|| {
        let folder = Folder::new("interval");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let near = |interval: &str| {
            let text = keys.near(&ALIVE.replace("= 1\n", interval), "");
            folder.write("near.conf", &text)
        };
        let far = folder.write("far.conf", &keys.far("", ""));
        let _far = far_host.inside(|| Tunnel::start(&folder, &["-c", &far]));
        let tunnel = Tunnel::start(&folder, &["-c", &near("= 86400\n"), "-i", INFO]);
        wait_until_ready();
        let (_, first) = readiness("/readyz");
        near("= 1\n");
        tunnel.reload();
        while readiness("/readyz").1 == first {}
    });
}

/// Joins the far end by a name that `/etc/hosts` has rightly only once the tunnel is there. Returns
/// the log.
fn join_by_name(first: &str) -> String {
    let folder = Folder::new("names");
    let far_host = Host::new(false);
    veth(&far_host);
    let keys = Keys::new();
    let far = folder.write("far.conf", &keys.far("", SERVER));
    let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
    let near = keys.near("", &client(9001)).replace(FAR, "far.test");
    let near = folder.write("near.conf", &near);
    let hosts = folder.path("hosts");
    fs::write(&hosts, first).expect("written");
    let arguments = ["-c", &near, "--log", "info"];
    let tunnel = Tunnel::start_with_hosts(&folder, &arguments, &hosts);
    fs::write(&hosts, format!("{FAR} far.test\n")).expect("written");
    say(&TcpStream::connect("127.0.0.1:9001").expect("a door"), "by name");
    let endpoint = folder.print(&["wg", "show", "near", "endpoints"]);
    assert!(endpoint.ends_with(&format!("\t{FAR}:51820\n")), "{endpoint}");
    tunnel.end()
}

#[test]
fn an_endpoint_gets_its_address_when_its_name_has_one() {
    in_namespace(|| {
        let log = join_by_name("");
        assert!(log.contains("the endpoint has no address yet"), "{log}");
    });
}

#[test]
fn a_name_is_resolved_again_when_handshakes_fail() {
    in_namespace(|| {
        let log = join_by_name("192.0.2.99 far.test\n");
        assert!(log.contains("the endpoint has this address"), "{log}");
    });
}

/// An echo server behind the far end.
fn echo() -> TcpListener {
    echo_at("127.0.0.1:8080")
}

/// The same at an address.
fn echo_at(address: &str) -> TcpListener {
    let listener = TcpListener::bind(address).expect("a port");
    let served = listener.try_clone().expect("a descriptor");
    thread::spawn(move || {
        for stream in served.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    listener
}

/// What leads from a port to the far end.
fn client(port: u16) -> String {
    format!("[TCPClientTunnel]\nBindAddress = 127.0.0.1:{port}\nTarget = 10.9.0.2:80\n")
}

/// Sends text and waits for the same.
fn say(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("sent");
    let mut echoed = vec![0; text.len()];
    stream.read_exact(&mut echoed).expect("echoed");
    assert_eq!(echoed, text.as_bytes());
}

/// A web server with one page behind the far end.
fn page() {
    let listener = TcpListener::bind("127.0.0.1:8080").expect("a port");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let page = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
            stream.write_all(page.as_bytes()).expect("sent");
        }
    });
}

#[test]
fn a_proxy_speaks_tls_with_the_certificate_of_the_file() {
    let has = |program: &str| Command::new(program).arg("version").output().is_ok();
    if !has("openssl") || !has("curl") {
        return skip("there is no openssl or no curl");
    }
    in_namespace(|| {
        let folder = Folder::new("tls");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let _far = far_host.inside(|| {
            page();
            Tunnel::start(&folder, &["-c", &far])
        });
        let [chain, key] = ["cert.pem", "key.pem"].map(|name| folder.path(name));
        let renew = || {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
                .args(["-nodes", "-subj", "/CN=localhost"])
                .args(["-addext", "subjectAltName=DNS:localhost", "-days", "2", "-keyout"])
                .arg(&key)
                .arg("-out")
                .arg(&chain)
                .output()
                .expect("openssl runs");
            assert!(made.status.success(), "{made:?}");
        };
        renew();
        let door = "[http]\nBindAddress = localhost:8443\nUsername = me\nPassword = secret\n\
                    CertFile = cert.pem\nKeyFile = key.pem\n";
        let near = folder.write("near.conf", &keys.near("", door));
        let tunnel = Tunnel::start(&folder, &["-c", &near]);
        let fetch = |login: &str, way: &str| {
            let output = Command::new("curl")
                .args(["-sS", "--max-time", "60", way, "--proxy", "https://localhost:8443"])
                .args(["--proxy-user", login, "http://10.9.0.2/", "--proxy-cacert"])
                .arg(&chain)
                .output()
                .expect("curl runs");
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        for way in ["--proxytunnel", "--no-keepalive"] {
            assert_eq!(fetch("me:secret", way), ["hello", ""]);
        }
        let [_, refused] = fetch("me:wrong", "--proxytunnel");
        assert!(refused.contains("407"), "{refused}");

        // Renewed in its place, and then by something of no use. Clients know the new one alone.
        renew();
        let [_, unknown] = fetch("me:secret", "--proxytunnel");
        assert!(unknown.contains("SSL"), "{unknown}");
        tunnel.reload();
        assert_eq!(fetch("me:secret", "--proxytunnel"), ["hello", ""]);
        let renewed = fs::read(&chain).expect("it is there");
        fs::write(&chain, "nothing").expect("written");
        tunnel.reload();
        fs::write(&chain, renewed).expect("written");
        assert_eq!(fetch("me:secret", "--proxytunnel"), ["hello", ""]);
        let log = tunnel.end();
        assert!(log.contains("cert.pem") && log.contains("as it was"), "{log}");
    });
}

#[test]
fn flows_go_on_while_files_change() {
    in_namespace(|| {
        let folder = Folder::new("reload");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let near = folder.write("near.conf", &keys.near("", &(client(9001) + &client(9002))));
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let tunnel = Tunnel::start(&folder, &["-c", &near]);
        let connect = |port: u16| TcpStream::connect(("127.0.0.1", port));
        let [kept, closed] = [9001, 9002].map(|port| connect(port).expect("a door"));
        say(&kept, "before");
        say(&closed, "before");
        let before = folder.print(&["wg", "show", "near", "latest-handshakes"]);

        // One more peer, a door less and a door more.
        let other = PrivateKey::generate().expect("random").public_key();
        let doors = client(9001) + &client(9003);
        let more = format!("[Peer]\nPublicKey = {other}\nAllowedIPs = 10.9.0.3\n{doors}");
        let new = keys.near("", &more);
        folder.write("near.conf", &new);
        tunnel.reload();
        say(&kept, "after");
        assert_eq!((&closed).read(&mut [0]).unwrap_or(0), 0, "its door is closed");
        assert!(connect(9002).is_err(), "its door is closed");
        say(&connect(9003).expect("a door"), "new");
        let after = folder.print(&["wg", "show", "near", "latest-handshakes"]);
        assert_eq!(after.lines().next(), before.lines().next(), "the session goes on");

        // Another keepalive makes another session, and flows go on.
        let new = new.replace("Keepalive = 25", "Keepalive = 20");
        folder.write("near.conf", &new);
        tunnel.reload();
        say(&kept, "again");
        let shown = folder.print(&["wg", "show", "near", "persistent-keepalive"]);
        assert_eq!(shown, format!("{}\t20\n{other}\toff\n", keys.far_public()));

        // A file with a mistake changes nothing.
        folder.write("near.conf", &new.replace("[TCPClientTunnel]", "[TCPClientTunel]"));
        tunnel.reload();
        say(&kept, "still");
        say(&connect(9003).expect("a door"), "still");

        // Other resolvers are for what comes; connections stay.
        folder.write("near.conf", &new.replace("ListenPort", "DNS = 10.9.0.2\nListenPort"));
        tunnel.reload();
        say(&kept, "resolvers");
        say(&connect(9003).expect("a door"), "resolvers");

        // Without the peer there is no way.
        let lonely = new.replace(
            &keys.far_public(),
            &PrivateKey::generate().expect("random").public_key().to_string(),
        );
        folder.write("near.conf", &lonely);
        tunnel.reload();
        assert!(!folder.print(&["wg", "show", "near", "peers"]).contains(&keys.far_public()));
        let log = tunnel.end();
        let mistake = "near.conf:14: [TCPClientTunel]: unknown section: expected one of";
        assert!(log.contains("nothing has changed: ") && log.contains(mistake), "{log}");
    });
}

#[test]
fn a_door_that_cannot_be_changed_stays_as_it_was() {
    in_namespace(|| {
        let folder = Folder::new("stays");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let http = "[http]\nBindAddress = 127.0.0.1:9004\n";
        let near = folder.write("near.conf", &keys.near("", &(client(9001) + http)));
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let tunnel = Tunnel::start(&folder, &["-c", &near]);
        let connect = |port: u16| TcpStream::connect(("127.0.0.1", port));
        let through_http = || {
            let mut stream = connect(9004).expect("the door is there");
            stream.write_all(b"CONNECT 10.9.0.2:80 HTTP/1.1\r\n\r\n").expect("sent");
            let mut answer = [0; 39];
            stream.read_exact(&mut answer).expect("an answer");
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
            stream
        };
        let kept = [connect(9001).expect("a door"), through_http()];
        kept.iter().for_each(|stream| say(stream, "before"));

        // A port that is taken, and a certificate that is not there.
        let taken = TcpListener::bind("127.0.0.1:9005").expect("a port");
        let no_file = format!("{http}CertFile = no.pem\nKeyFile = no.pem\n");
        folder.write("near.conf", &keys.near("", &(client(9005) + &no_file)));
        tunnel.reload();
        kept.iter().for_each(|stream| say(stream, "still"));
        say(&connect(9001).expect("the door is there"), "still");
        say(&through_http(), "still");

        // Once the port is free it moves. Two doors may take each other's ports.
        drop(taken);
        folder.write("near.conf", &keys.near("", &(client(9005) + http)));
        tunnel.reload();
        assert!(connect(9001).is_err(), "its door is closed");
        say(&connect(9005).expect("a door"), "moved");
        say(&kept[1], "nothing has changed for it");
        let http = http.replace("9004", "9005");
        folder.write("near.conf", &keys.near("", &(client(9004) + &http)));
        tunnel.reload();
        say(&connect(9004).expect("a door"), "changed places");
        let log = tunnel.end();
        let lines = [
            "near.conf:11: [TCPClientTunnel] BindAddress 127.0.0.1:9005: ",
            "no.pem: No such file",
        ];
        assert!(lines.iter().all(|line| log.contains(line)), "{log}");
    });
}

#[test]
fn a_file_behind_a_link_is_read_again() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("link");
        for name in ["links", "files"] {
            fs::create_dir(folder.path(name)).expect("a folder");
        }
        let keys = Keys::new();
        let real = folder.write("files/real.conf", &keys.near("", ""));
        let link = folder.path("links/near.conf");
        std::os::unix::fs::symlink("../files/real.conf", &link).expect("a link");
        let tunnel = Tunnel::start(&folder, &["-c", link.to_str().expect("text")]);
        fs::write(&real, keys.near("", &client(9001))).expect("written");
        tunnel.reload();
        TcpStream::connect("127.0.0.1:9001").expect("the new door");
        tunnel.end_in_silence();
    });
}

#[test]
fn a_standard_error_that_is_full_does_not_end_a_tunnel() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("mute");
        let keys = Keys::new();
        let file = folder.write("near.conf", &keys.near("", &client(9001)));
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" wireguard \"$@\" 2>/dev/full"]);
        command.arg(env!("CARGO_BIN_EXE_neap")).env("XDG_RUNTIME_DIR", folder.path(""));
        let tunnel = Tunnel::spawn(&folder, command, &["-c", &file, "--log", "info"]);
        folder.write("near.conf", "[Interface]\nPrivateKey = short\n");
        // What is wrong with the file is said to nobody.
        tunnel.reload();
        folder.write("near.conf", &keys.near("", &client(9002)));
        tunnel.reload();
        TcpStream::connect("127.0.0.1:9002").expect("the new door");
        assert_eq!(tunnel.end(), "");
    });
}

#[test]
fn connections_go_on_for_a_while_after_a_signal() {
    in_namespace(|| {
        let folder = Folder::new("drain");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let mut tunnel = Tunnel::start(&folder, &["-c", &near, "--drain", "60"]);
        let open = TcpStream::connect("127.0.0.1:9001").expect("a door");
        say(&open, "before");
        run(&format!("kill {}", tunnel.pid()));
        tunnel.hears_of_its_end();
        say(&open, "after");
        drop(open);
        assert!(tunnel.wait().success());
    });
}

#[test]
fn what_was_sent_before_a_signal_arrives_over_a_slow_path() {
    const SENT: usize = 1 << 20;
    in_namespace(|| {
        let folder = Folder::new("upload");
        let far_host = Host::new(false);
        veth(&far_host);
        run("tc qdisc add dev near root tbf rate 20mbit burst 16kb limit 1mb");
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, listener) = far_host.inside(|| {
            let listener = TcpListener::bind("127.0.0.1:8080").expect("a port");
            (Tunnel::start(&folder, &["-c", &far]), listener)
        });
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.shutdown(Shutdown::Write)?;
            stream.read_to_end(&mut Vec::new())
        });
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let mut tunnel = Tunnel::start(&folder, &["-c", &near, "--drain", "60"]);
        let mut stream = TcpStream::connect("127.0.0.1:9001").expect("a door");
        assert_eq!(stream.read(&mut [0]).expect("the server has ended its stream"), 0);
        stream.write_all(&[7; SENT]).expect("sent");
        drop(stream);
        run(&format!("kill {}", tunnel.pid()));
        assert_eq!(server.join().expect("no panic").expect("no reset"), SENT);
        assert!(tunnel.wait().success());
    });
}

#[test]
fn a_sandbox_and_standard_streams_go_through_a_tunnel() {
    in_namespace(|| {
        let folder = Folder::new("upstream");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));

        // A sandbox, and what is seen of its tunnel meanwhile.
        let near = folder.write("near.conf", &keys.near("DNS = 10.9.0.2\n", ""));
        let upstream = format!("wireguard:{near}");
        let script = "exec 3<>/dev/tcp/10.9.0.2/80; echo hello >&3; head -n 1 <&3; cat";
        let inside = ["gateway", "run", "--upstream", &upstream, "--", "bash", "-c", script];
        let mut command = folder.neap(&inside);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("neap runs");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "hello\n");
        let shown = folder.print(&["wg", "show", "near"]);
        assert!(shown.contains("latest handshake: "), "{shown}");
        // The gateway has a stack, and the tunnel has one.
        for (name, counter) in [("gateway", "GatewayOpened"), ("near", "TcpActiveOpens")] {
            let flows = folder.print(&["ss", "-tn", "--name", name]);
            assert!(flows.contains("10.9.0.2:80"), "{name}: {flows}");
            let counters = folder.print(&["nstat", "-s", "--name", name]);
            assert!(counters.contains(counter), "{name}: {counters}");
        }
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());

        // The tunnel takes less than the interface of the sandbox.
        let ping = ["--", "ping", "-n", "-c", "1", "-s", "4000", "-W", "30", "10.9.0.2"];
        let said =
            folder.print(&[&["gateway", "run", "--upstream", &upstream], &ping[..]].concat());
        assert!(said.contains(" 1 received"), "{said}");

        // The standard streams. The process ends with them.
        let stdio = keys.near("", "[STDIOTunnel]\nTarget = 10.9.0.2:80\n");
        let stdio = folder.write("stdio.conf", &stdio);
        let mut command = folder.neap(&["wireguard", "-c", &stdio]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("neap runs");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"by hand\n").expect("sent");
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success() && output.stdout == b"by hand\n", "{output:?}");

        let nameless = folder.write("nameless.conf", &keys.near("", ""));
        let upstream = format!("wireguard:{nameless}");
        for (face, option) in
            [(&["gateway", "run"][..], "--dns"), (&["pasta", "--runas", "0"], "--upstream-dns")]
        {
            let refused = [face, &["--upstream", &upstream, "--", "true"][..]].concat();
            let (status, _, err) = folder.finish(&refused);
            let told = format!("[Interface] has no DNS: name a resolver there, or with {option} ");
            assert!(status == Some(2) && err.contains(&told), "{err}");
            let named = [face, &["--upstream", &upstream, option, "10.9.0.2", "--", "true"][..]];
            assert_eq!(folder.finish(&named.concat()).0, Some(0), "{option}");
        }
        let direct = ["pasta", "--upstream-dns", "10.9.0.2", "--", "true"];
        let (status, _, err) = folder.finish(&direct);
        assert!(status == Some(2) && err.contains("name one with --upstream"), "{err}");
    });
}

#[test]
fn a_command_in_a_sandbox_gets_no_secrets_of_the_file() {
    in_namespace(|| {
        let folder = Folder::new("secrets");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let door = "[Socks5]\nBindAddress = :1080\nUsername = me\nPassword = $SOCKS_PASSWORD\n";
        let text = keys.near("DNS = 10.9.0.2\n", door);
        let text = text.replace(&keys.near_private, "$WIREGUARD_KEY");
        let upstream = format!("wireguard:{}", folder.write("near.conf", &text));
        for face in [&["gateway", "run"][..], &["pasta", "--config-net", "--runas", "0"]] {
            let mut command =
                folder.neap(&[face, &["--upstream", &upstream, "--", "env"][..]].concat());
            command.env("WIREGUARD_KEY", &keys.near_private).env("SOCKS_PASSWORD", "a password");
            let output = command.env("ANOTHER", "stays").output().expect("neap runs");
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && told.contains("ANOTHER=stays"), "{output:?}");
            assert!(!told.contains("WIREGUARD_KEY") && !told.contains("SOCKS_PASSWORD"), "{told}");
        }
    });
}

#[test]
fn a_sandbox_looks_names_up_in_the_domains_of_the_file() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("domains");
        let keys = Keys::new();
        let dns = "DNS = 10.9.0.2, corp.test\nDNS = lab.test\nCheckAlive = 10.9.0.2\n";
        let upstream = format!("wireguard:{}", folder.write("near.conf", &keys.near(dns, "")));
        let search = |options: &[&str]| {
            let way = ["gateway", "run", "--upstream", &upstream];
            let command = ["--", "grep", "-e", "^search", "-e", "^domain", "/etc/resolv.conf"];
            folder.finish(&[&way[..], options, &command].concat())
        };
        let (status, out, err) = search(&[]);
        assert_eq!((status, out.as_str()), (Some(0), "search corp.test lab.test\n"), "{err}");
        assert!(err.contains("near.conf: CheckAlive is for `neap wireguard`"), "{err}");
        // The host is asked for what it asks for itself.
        let (_, out, _) = search(&["--dns", "direct"]);
        assert!(!out.contains(".test"), "{out}");
    });
}

#[test]
fn a_tunnel_goes_into_the_background_and_ends_by_a_signal() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("background");
        let keys = Keys::new();
        // The host knows the name.
        let text = keys.near("", &stdio(80)).replace(&format!("{FAR}:51820"), "localhost:51820");
        let file = folder.write("wg.conf", &text);
        // What the caller has open is closed, or the output would not end.
        let output = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3>&1", env!("CARGO_BIN_EXE_neap")])
            .args(["wireguard", "-d", "-c", &file])
            .env("XDG_RUNTIME_DIR", folder.path(""))
            .output()
            .expect("sh runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{err}");
        assert!(err.contains("wg.conf:11: [STDIOTunnel]: this is left out"), "{err}");
        let endpoints = folder.print(&["wg", "show", "wg", "endpoints"]);
        assert!(endpoints.ends_with(":51820\n"), "{endpoints}");
        let sockets = fs::read_dir(folder.path("neap")).expect("the folder of control sockets");
        let names = sockets.map(|entry| entry.expect("an entry").file_name());
        let names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let [name] = names.as_slice() else { panic!("{names:?}") };
        let (pid, _) = name.split_once('-').expect("a number");
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        assert_eq!(comm, "neap\n");
        run(&format!("kill {pid}"));
        // Its end closes the socket that `wg show` asks.
        while folder.finish(&["wg", "show"]).0 == Some(0) {}
    });
}

/// A section that leads the standard streams to this port of the far end.
fn stdio(port: u16) -> String {
    format!("[STDIOTunnel]\nTarget = 10.9.0.2:{port}\n")
}

#[test]
fn standard_streams_beside_other_doors_end_alone() {
    in_namespace(|| {
        let folder = Folder::new("streams");
        let far_host = Host::new(false);
        veth(&far_host);
        let keys = Keys::new();
        let far = folder.write("far.conf", &keys.far("", SERVER));
        let (_far, _echo) = far_host.inside(|| (Tunnel::start(&folder, &["-c", &far]), echo()));

        // The end of the standard input, and a target that refuses.
        for (port, counter) in [(80, "DoorsFinished"), (81, "DoorsUnreached")] {
            let doors = stdio(port) + &client(9001);
            let near = folder.write(&format!("{counter}.conf"), &keys.near("", &doors));
            let mut command = folder.neap(&["wireguard"]);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let _tunnel = Tunnel::spawn(&folder, command, &["-c", &near]);
            let is_over = |figures: &str| figures.contains(&format!("{counter} "));
            while !is_over(&folder.print(&["nstat", "-a", "--name", counter])) {}
            say(&TcpStream::connect("127.0.0.1:9001").expect("a door"), "after the streams");
        }

        // One that comes with a signal is left out.
        let near = folder.write("near.conf", &keys.near("", &client(9001)));
        let tunnel = Tunnel::start(&folder, &["-c", &near]);
        let kept = TcpStream::connect("127.0.0.1:9001").expect("a door");
        say(&kept, "before");
        folder.write("near.conf", &keys.near("", &(stdio(80) + &client(9001))));
        tunnel.reload();
        say(&kept, "after");
        let log = tunnel.end();
        assert!(log.contains("near.conf:11: [STDIOTunnel]: this is left out"), "{log}");
    });
}

#[test]
fn what_cannot_be_had_is_told_in_a_line() {
    in_namespace(|| {
        run("ip link set lo up");
        let folder = Folder::new("refused");
        let keys = Keys::new();
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address").to_string();
        let door = format!("[Socks5]\nBindAddress = {address}\n");
        let file = folder.write("taken.conf", &keys.near("", &door));
        let (status, _, err) = folder.finish(&["wireguard", "-c", &file]);
        assert_eq!(status, Some(1), "{err}");
        assert!(err.contains("taken.conf:") && err.contains("is taken: choose"), "{err}");
        let (status, _, err) = folder.finish(&["wireguard", "-c", &file, "-i", &address]);
        assert!(status == Some(1) && err.contains(&format!("--info {address}: ")), "{err}");
        let (status, _, err) = folder.finish(&["wg", "show"]);
        assert!(status == Some(1) && err.contains("no WireGuard interface"), "{err}");
    });
}
