//! What both processes of the face give up once the network is there.

use super::folder::Folder;
use super::namespace::{in_namespace, run, skip};
use super::resolver::resolver;
use super::{NO_PORTS, Namespace, PATIENCE, confined, finish, host, join, pasta, succeed};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::thread;

/// The question of a client: the name `.`, type NS.
const QUESTION: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01";
/// Bytes that begin a connection of TLS.
const GREETING: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
/// Where the namespace asks.
const FORWARDED: &str = "192.0.2.53:53";

/// In the namespace: says how a question was answered (RFC 1035 section 4.1.1).
pub(super) fn ask(resolver: SocketAddr) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.connect(resolver).expect("a route");
    socket.send(QUESTION).expect("sent");
    let mut answer = [0; 100];
    match socket.recv(&mut answer) {
        Ok(_) => println!("code {}.", answer[3] & 15),
        Err(error) => println!("{:?}.", error.kind()),
    }
}

/// The process in the namespace, and the one that reads `resolv.conf`.
fn children_of(pid: u32) -> [u32; 2] {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).expect("it runs");
    let children = text.split_whitespace().map(|child| child.parse().expect("a number"));
    children.collect::<Vec<_>>().try_into().expect("two children")
}

/// A command that sees a folder as `/etc`.
fn with_etc(etc: &Folder, command: &Command) -> Command {
    let script = "mount --bind \"$1\" /etc && shift && exec \"$@\"";
    let mut with = Command::new("unshare");
    with.args(["-m", "sh", "-c", script, "sh"]).arg(etc.path());
    with.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    with
}

#[test]
fn both_processes_have_no_rights_and_the_gateway_no_files() {
    in_namespace(|| {
        host();
        resolver("192.0.2.10", &[]);
        let (etc, namespace) = (Folder::new("pasta-etc"), Namespace::new());
        let nameserver = "nameserver 192.0.2.10\n";
        let file = etc.write("resolv.conf", nameserver);
        let pid_file = etc.path().join("pid");
        let mut join = pasta(&["--config-net", "--quiet", "--dns-forward", "192.0.2.53"]);
        join.args(NO_PORTS).arg("-P").arg(&pid_file).arg(namespace.pid());
        succeed(with_etc(&etc, &join));
        let pid = fs::read_to_string(pid_file).expect("the file of the process ID");
        let pid = pid.trim().parse().expect("a number");
        confined::check(pid, 0);
        let [inside, reader] = children_of(pid);
        confined::check(inside, confined::BIND);
        confined::check(reader, 0);

        let ask = || succeed(namespace.program("ask a resolver", FORWARDED));
        assert!(ask().contains("code 0."));
        if !confined::has_landlock() {
            return skip("this kernel has no Landlock");
        }
        let elsewhere = Folder::new("pasta-elsewhere");
        let link = etc.path().join("link");
        symlink(elsewhere.write("resolv.conf", nameserver), &link).expect("a link");
        fs::rename(&link, &file).expect("moved");
        assert!(ask().contains("code 2."), "the gateway reads files of other folders");
        fs::rename(etc.write("new", nameserver), &file).expect("moved");
        assert!(ask().contains("code 0."));
    });
}

#[test]
fn a_command_keeps_its_rights_while_its_gateway_has_none() {
    in_namespace(|| {
        host();
        // The parent of the first process of the namespace is the half of the face there, which
        // its own /proc does not show.
        let script = "grep -q 'NoNewPrivs:.0' /proc/self/status && unshare -Ur true && echo done";
        let options = [&["-q"], &NO_PORTS[..], &["--", "sh", "-c", script]].concat();
        let (status, stdout, stderr) = finish(pasta(&options));
        assert!(status == Some(0) && stdout.contains("done"), "{status:?} {stdout}{stderr}");
    });
}

#[test]
fn a_resolver_at_a_loopback_address_is_asked_behind_the_gateway() {
    in_namespace(|| {
        host();
        resolver("127.0.0.53", &[]);
        let (etc, namespace) = (Folder::new("pasta-loopback-etc"), Namespace::new());
        etc.write("resolv.conf", "nameserver 127.0.0.53\n");
        let mut join = pasta(&["--config-net", "--quiet"]);
        join.args(NO_PORTS).arg(namespace.pid());
        succeed(with_etc(&etc, &join));
        let said = succeed(namespace.program("ask a resolver", "192.0.2.1:53"));
        assert!(said.contains("code 0."), "{said}");
    });
}

#[test]
fn a_resolver_that_an_option_names_is_asked_at_a_loopback_address() {
    in_namespace(|| {
        host();
        resolver("127.0.0.53", &[]);
        let namespace = Namespace::new();
        // Nothing else of the loopback is in reach.
        let options = ["--dns-forward", "192.0.2.53", "--dns-host", "127.0.0.53", "--no-map-gw"];
        join(&namespace, &[&options, &NO_PORTS[..]].concat());
        let said = succeed(namespace.program("ask a resolver", FORWARDED));
        assert!(said.contains("code 0."), "{said}");
    });
}

/// In the namespace: says what a resolver answered to what is no question.
pub(super) fn greet(resolver: SocketAddr) {
    let mut stream = TcpStream::connect(resolver).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(GREETING).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    println!("{answer}.");
}

#[test]
fn a_resolver_is_asked_over_tls_where_the_namespace_does_so() {
    in_namespace(|| {
        host();
        let listener = TcpListener::bind("192.0.2.10:853").expect("a port");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut greeting = [0; GREETING.len()];
            stream.read_exact(&mut greeting).expect("a greeting");
            assert_eq!(greeting, GREETING);
            stream.write_all(b"certified").expect("sent");
        });
        // Of two resolvers the second speaks TLS.
        let (etc, namespace) = (Folder::new("pasta-tls-etc"), Namespace::new());
        etc.write("resolv.conf", "nameserver 127.0.0.53\nnameserver 192.0.2.10\n");
        let mut join = pasta(&["--config-net", "--quiet", "--dns-forward", "192.0.2.53"]);
        join.args(NO_PORTS).arg(namespace.pid());
        succeed(with_etc(&etc, &join));
        let said = succeed(namespace.program("greet a resolver", "192.0.2.53:853"));
        assert!(said.contains("certified."), "{said}");
        let said = succeed(namespace.program("ask a resolver", "192.0.2.53:853"));
        assert!(said.contains("ConnectionRefused."), "{said}");
    });
}

/// The file of a tunnel whose packets have a mark. Its peer is nobody.
const MARKED: &str = "[Interface]\nPrivateKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
    Address = 10.9.0.1/32\nDNS = 10.9.0.2\nFwMark = 7\n\
    [Peer]\nPublicKey = AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n";

#[test]
fn a_user_that_is_not_root_keeps_the_capability_of_a_mark_alone() {
    in_namespace(|| {
        if fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !map.contains("4294967295")) {
            return skip("this user namespace has no other users");
        }
        host();
        let (folder, namespace) = (Folder::new("pasta-mark"), Namespace::new());
        let file = folder.write("marked.conf", MARKED);
        let pid_file = folder.path().join("pid");
        let mut join = Command::new(env!("CARGO_BIN_EXE_neap"));
        join.args(["pasta", "--config-net", "--quiet", "--runas", "12345", "-t", "auto"]);
        join.args(["-u", "none", "--upstream", &format!("wireguard:{file}"), "-P"]);
        join.arg(&pid_file).arg(namespace.pid()).stdin(Stdio::null());
        succeed(join);
        let pid = fs::read_to_string(pid_file).expect("the file of the process ID");
        // `CAP_NET_RAW`, or `CAP_NET_ADMIN` where that does not suffice.
        let of_marks = [1 << 13, 1 << 12];
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).expect("it runs");
        let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t"));
        let permitted = u64::from_str_radix(permitted.expect("a line"), 16).expect("a number");
        assert!(of_marks.contains(&permitted), "{permitted:#x}");
    });
}

/// The users that a process is, in the words of its status: real, effective, saved, of files.
fn users_of(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:\t"));
    users.expect("a line").to_owned()
}

#[test]
fn both_processes_become_the_user_that_an_option_names() {
    in_namespace(|| {
        if fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !map.contains("4294967295")) {
            return skip("this user namespace has no other users");
        }
        host();
        // In the user namespace of the second one, root and that user are nobody.
        let of_user = "setpriv --reuid 1000 --regid 1000 --clear-groups unshare -rn";
        for (namespace, user) in [("unshare -n", "12345"), (of_user, "12345:54321")] {
            let (folder, namespace) = (Folder::new("pasta-user"), Namespace::by(namespace));
            let pid_file = folder.path().join("pid");
            let mut join_as = Command::new(env!("CARGO_BIN_EXE_neap"));
            join_as.args(["pasta", "--config-net", "--quiet", "--runas", user]).args(NO_PORTS);
            join_as.arg("-P").arg(&pid_file).arg(namespace.pid()).stdin(Stdio::null());
            succeed(join_as);
            let pid = fs::read_to_string(pid_file).expect("the file of the process ID");
            let pid = pid.trim().parse().expect("a number");
            let inside = super::ends::child_of(pid);
            for pid in [pid, inside] {
                assert_eq!(users_of(pid), "12345\t12345\t12345\t12345", "{user}");
            }
            confined::check(inside, confined::BIND);
            // It dies with the gateway, which the kernel forgets of one that becomes another user.
            run(&format!("kill -KILL {pid}"));
            let status = format!("/proc/{inside}/status");
            // Nobody may be there to take the exit status.
            while fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ")) {
                std::thread::yield_now();
            }
        }
    });
}
