//! What clients find outside: a network of the test's own, and servers on it.

use super::namespace::run;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Addresses of the servers. They are not those of the host, which namespaces of pasta have, too.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const SERVER_V6: &str = "2001:db8:3::1";

/// Bytes of a large transfer, and of the largest.
const LARGE: usize = 64 << 20;
const HUGE: u64 = 1 << 30;
/// A server that takes longer to begin does not work.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// The largest file has a page of data in each stretch of so many bytes, so that it takes 64 MiB.
const STRETCH: u64 = 64 << 10;
const PAGE: u64 = 4 << 10;

/// Where the server listens that hashes what nginx passes on.
const HASHER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9001);

/// What servers have, and the servers; all is gone with it.
pub(super) struct Outside {
    folder: PathBuf,
    servers: Vec<Child>,
}

impl Drop for Outside {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Outside {
    /// A host with a default route of both families, and the servers that all clients ask.
    pub(super) fn start() -> Self {
        let mut outside = Self::host();
        run(&format!("ip address add {SERVER}/32 dev far"));
        run(&format!("ip address add {SERVER_V6}/128 dev far nodad"));
        run("ip link set far up");
        Self::connect();
        outside.serve_files(&[]);
        let folder = outside.folder.display().to_string();
        outside.server("busybox", &["httpd", "-f", "-p", "127.0.0.1:8001", "-h", &folder]);
        let program = format!("{folder}/datagrams.pl");
        for address in [&SERVER.to_string(), SERVER_V6] {
            outside.server("perl", &[&program, "serve", address, "7000"]);
        }
        let resolver = UdpSocket::bind((SERVER, 53)).expect("a port");
        thread::spawn(move || resolve(&resolver));
        outside
    }

    /// The files, and the host without its routes.
    pub(super) fn host() -> Self {
        run("ip link set lo up");
        run("ip link add outside type veth peer name far");
        run("ip address add 192.0.2.1/24 dev outside");
        run("ip address add 2001:db8::1/64 dev outside nodad");
        // Every user may send pings.
        fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").expect("a setting");
        let folder = env::temp_dir().join(format!("neap-clients-{}", std::process::id()));
        fs::create_dir(&folder).expect("room");
        let bytes: Vec<u8> = (0..LARGE).map(|at| (at * 7 + at / 251) as u8).collect();
        fs::write(folder.join("large"), bytes).expect("room");
        fs::write(folder.join("small"), "small\n").expect("room");
        fs::write(folder.join("datagrams.pl"), include_str!("datagrams.pl")).expect("room");
        Self { folder, servers: Vec::new() }
    }

    /// The link of the host comes, and with it its routes.
    pub(super) fn connect() {
        run("ip link set outside up");
        run("ip route replace default via 192.0.2.254 dev outside");
        run("ip -6 route replace default via fe80::1 dev outside");
    }

    /// Serves files and hashes: here, or where this program starts others.
    pub(super) fn serve_files(&mut self, there: &[&str]) {
        let folder = self.folder.display().to_string();
        let ports = [format!("{SERVER}:8000"), format!("[{SERVER_V6}]:8000")];
        let pages = ports.iter().map(|port| vec!["httpd", "-f", "-p", port, "-h", &folder]);
        let hashes = vec!["nc", "-ll", "-p", "9000", "-e", "sha256sum"];
        for words in pages.chain([hashes]) {
            let line = [there, &["busybox"], &words].concat();
            self.server(line[0], &line[1..]);
        }
        for at in ports.iter().chain([&format!("{SERVER}:9000")]) {
            until_served(at);
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn server(&mut self, program: &str, words: &[&str]) {
        let server = Command::new(program).args(words).stdin(Stdio::null()).spawn();
        self.own(server.expect("a server runs"));
    }

    pub(super) fn own(&mut self, server: Child) {
        self.servers.push(server);
    }

    /// The servers of programs: nginx with a file of 1 GiB, a repository of git, iperf3.
    pub(super) fn serve_programs(&mut self) {
        let file = File::create(self.folder.join("huge")).expect("room");
        file.set_len(HUGE).expect("room");
        for stretch in 0..HUGE / STRETCH {
            let page: Vec<u8> =
                (0..PAGE).map(|at| (stretch * 31 + at * 7 + at / 251) as u8).collect();
            let at = stretch * STRETCH + stretch % (STRETCH / PAGE) * PAGE;
            file.write_all_at(&page, at).expect("room");
        }
        let hasher = TcpListener::bind(HASHER).expect("a port");
        thread::spawn(move || {
            for stream in hasher.incoming() {
                thread::spawn(move || hash(stream.expect("a connection")));
            }
        });
        let folder = self.folder.display().to_string();
        let configuration = self.folder.join("nginx.conf");
        let text = include_str!("nginx.conf").replace("FOLDER", &folder);
        fs::write(&configuration, text).expect("room");
        let configuration = configuration.display().to_string();
        self.server("nginx", &["-p", &folder, "-c", &configuration, "-e", "stderr"]);
        self.make_repository();
        let (listen, base) = (format!("--listen={SERVER}"), format!("--base-path={folder}"));
        // The program itself, as `git daemon` would leave it behind when it is killed.
        let programs = run("git --exec-path");
        let daemon = Path::new(programs.trim()).join("git-daemon");
        let daemon = daemon.to_str().expect("a name");
        self.server(daemon, &[&listen, &base, "--export-all", "--reuseaddr"]);
        self.server("iperf3", &["-s", "-B", &SERVER.to_string()]);
        // iperf3 takes a connection for a client.
        for port in [8080, 8081, 9418] {
            until_served(&format!("{SERVER}:{port}"));
        }
        until_served(&format!("[{SERVER_V6}]:8080"));
    }

    /// A bare repository with a file of 8 MiB, and the name of its commit.
    fn make_repository(&self) {
        let bytes = fs::read(self.folder.join("large")).expect("it is there");
        fs::create_dir(self.folder.join("work")).expect("room");
        fs::write(self.folder.join("work/file"), &bytes[..8 << 20]).expect("room");
        let script = "export HOME=$PWD
            git config --global user.email me@server.test; git config --global user.name me
            git -C work init -q; git -C work add file; git -C work commit -q -m first
            git clone -q --bare work repository.git
            git -C repository.git update-server-info; git -C work rev-parse HEAD >head";
        let made = Command::new("sh").args(["-euc", script]).current_dir(&self.folder).status();
        assert!(made.expect("sh runs").success(), "no repository");
    }
}

/// Waits until somebody listens: a server takes its time on a busy machine.
fn until_served(at: &str) {
    let start = Instant::now();
    while TcpStream::connect(at).is_err() {
        assert!(start.elapsed() < PATIENCE, "nobody serves {at}");
        thread::yield_now();
    }
}

/// Answers an HTTP request by the hash of its body.
fn hash(mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        }
        line.clear();
    }
    let mut command = Command::new("b2sum");
    let mut sum = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("b2sum runs");
    let mut input = sum.stdin.take().expect("a pipe");
    std::io::copy(&mut reader.take(length), &mut input).expect("a body");
    drop(input);
    let text = sum.wait_with_output().expect("b2sum ends").stdout;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
    stream.write_all(&[head.as_bytes(), &text].concat()).expect("nginx takes it");
}

/// A resolver by which every name has the address of the servers.
fn resolve(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        // A header of twelve bytes, the name with a length before each part, type and class.
        let name = &query[12.min(length)..length];
        let Some(end) = name.iter().position(|&byte| byte == 0) else { continue };
        let Some(question) = query[..length].get(12..12 + end + 5) else { continue };
        let is_v4 = question[end + 1..end + 3] == [0, 1];
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
        answer.extend(question);
        if is_v4 {
            // The name of the question, an address of the Internet, for a minute.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(SERVER.octets());
        }
        let _ = socket.send_to(&answer, from);
    }
}
