//! A network namespace beyond the one that gateways run in, with proxies and servers.

use super::namespace::run;
use super::{env, thread};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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

/// A folder that is removed in the end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("neap-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder");
        // Proxies read their configuration as other users.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file that only its owner may read, and returns its name.
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        path.to_str().expect("a name").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

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
            until ss -Hltn sport = :{port} | grep -q . && ss -Hltn sport = :{WEB} | grep -q .
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
    let (echo, web, dns) = (listen(ECHO), listen(WEB), listen(53));
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
    for stream in web.incoming() {
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

/// The packets of the gateway's machine towards the world.
pub(super) struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    pub(super) fn start(folder: &Folder) -> Self {
        let file = folder.path().join("packets");
        let mut child = Command::new("tcpdump")
            .args(["-i", "outside", "-n", "-U", "-Z", "root", "-w"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is there");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let listens = |line: std::io::Result<String>| line.expect("text").contains("listening on");
        assert!(said.any(listens), "tcpdump has ended");
        thread::spawn(move || said.for_each(drop));
        Self { child, file }
    }

    /// Ends the capture. Returns how many packets there were, and those that `beside` is true for.
    pub(super) fn finish(mut self, beside: &str) -> (usize, String) {
        run(&format!("kill -INT {}", self.child.id()));
        self.child.wait().expect("it ends");
        let read = |filter: &str| {
            let output = Command::new("tcpdump")
                .args(["-n", "-r"])
                .arg(&self.file)
                .arg(filter)
                .stderr(Stdio::null())
                .output()
                .expect("tcpdump is there");
            assert!(output.status.success(), "{filter}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        // Neighbours of the link find each other without any gateway.
        let is_traffic = "(ip or ip6) and not icmp6 and not ip6 multicast";
        let all = read(is_traffic).lines().count();
        (all, read(&format!("{is_traffic} and not ({beside})")))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
