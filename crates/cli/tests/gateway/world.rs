//! A network namespace beyond the one that gateways run in, with proxies and servers.

use super::folder::Folder;
use super::host::await_links;
use super::namespace::run;
use super::{env, thread};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Address of the world at the gateway's link, where its proxies are.
pub(super) const PROXY: &str = "192.0.2.1";
/// The machine that the gateway runs on.
const HOST: &str = "192.0.2.2";
/// Address of the servers, behind the proxies.
pub(super) const SERVER: &str = "198.51.100.1";
/// Their name, which the world alone knows.
pub(super) const NAME: &str = "www.example.test";
/// Ports of the servers.
pub(super) const ECHO: u16 = 7;
pub(super) const WEB: u16 = 80;
pub(super) const TELL: u16 = 9;

/// What the web server says.
pub(super) const PAGE: &str = "a page of the world\n";

/// A namespace with servers and a proxy. It ends with its value, and with the process.
pub(super) struct World {
    child: Child,
    /// What is in the world ends when this is closed.
    _stdin: ChildStdin,
}

impl World {
    /// A world that runs `proxy`, a command line, of which `ready` says on which TCP port it
    /// listens.
    pub(super) fn new(folder: &Folder, proxy: &str, port: u16) -> Self {
        run("ip link set lo up");
        run("ip link add outside type veth peer name far");
        run(&format!("ip address add {HOST}/24 dev outside"));
        run("ip link set outside up");
        let hosts = folder.write("hosts", &format!("127.0.0.1 localhost\n{SERVER} {NAME}\n"));
        fs::set_permissions(&hosts, fs::Permissions::from_mode(0o644)).expect("the file is ours");
        let own = env::current_exe().expect("the test knows its binary");
        let script = format!(
            "read moved; mount --bind {hosts} /etc/hosts; ip link set lo up
            ip address add {PROXY}/24 dev far; ip link set far up
            ip address add {SERVER}/24 dev lo
            {proxy} >&2 &
            {} --exact inside --nocapture &
            until ss -Hltn sport = :{port} | grep -q . && ss -Hltn sport = :{WEB} | grep -q . &&
                ip -o link show far | grep -q ' state UP '
            do sleep 0.05; done
            echo ready; read end",
            own.display()
        );
        let mut command = Command::new("unshare");
        command.args(["-n", "-m", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
        command.env(super::PROGRAM, "world").env(super::TARGET, "");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare is there");
        let mut stdin = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        let own_net = fs::read_link("/proc/self/ns/net").expect("a namespace");
        let of_child = format!("/proc/{}/ns/net", child.id());
        while fs::read_link(&of_child).expect("a namespace") == own_net {
            thread::yield_now();
        }
        run(&format!("ip link set far netns {}", child.id()));
        run(&format!("ip route add default via {PROXY}"));
        stdin.write_all(b"moved\n").expect("it listens");
        let mut lines = BufReader::new(stdout).lines();
        assert!(lines.any(|line| line.expect("text") == "ready"), "the world has ended");
        await_links(&["outside"]);
        // Nobody looks at what its programs say later.
        thread::spawn(move || lines.for_each(drop));
        Self { child, _stdin: stdin }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The servers of the world.
pub(super) fn serve() {
    let listen = |port| TcpListener::bind((SERVER, port)).expect("a port");
    let (echo, dns) = (listen(ECHO), listen(53));
    thread::spawn(move || super::names::answer_over_tcp(&dns, 5));
    let tell = UdpSocket::bind((SERVER, TELL)).expect("a port");
    thread::spawn(move || {
        let mut question = [0; 2000];
        while let Ok((_, from)) = tell.recv_from(&mut question) {
            tell.send_to(from.to_string().as_bytes(), from).expect("sent");
        }
    });
    thread::spawn(move || {
        for stream in echo.incoming() {
            let stream = stream.expect("a connection");
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    // The last one: whoever can reach it can reach all.
    for stream in listen(WEB).incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    return;
                }
                request.push(byte[0]);
            }
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{PAGE}");
        });
    }
}
