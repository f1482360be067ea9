//! A far host with servers inside of a tunnel, and the network to it.

use super::folder::Folder;
use super::host::{Host, await_links};
use super::namespace::run;
use super::peers::{Keys, Peer, Program};
use super::running::Running;
use neap_lab::pattern::Pattern;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;

/// Addresses outside of the tunnel.
pub(super) const NEAR: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
pub(super) const FAR: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// Addresses inside of it.
pub(super) const NEAR_INSIDE: [&str; 2] = ["10.90.0.2", "fd00:90::2"];
pub(super) const FAR_INSIDE: [&str; 2] = ["10.90.0.1", "fd00:90::1"];
/// Port of the far WireGuard.
pub(super) const PORT: u16 = 51820;
/// A name that the far resolver alone knows, with an address of IPv4.
pub(super) const NAME: &str = "www.example.test";
/// Another one, with addresses of both families.
pub(super) const BOTH: &str = "both.example.test";
/// Ports of the far servers.
pub(super) const ECHO: u16 = 7;
pub(super) const TELL: u16 = 9;
pub(super) const WEB: u16 = 80;
/// Port of TLS, where the far host sends back what comes.
const TLS: u16 = 443;
pub(super) const IPERF3: u16 = 5201;
/// The far host's interface of the network.
pub(super) const FAR_INTERFACE: &str = "far";

/// Bytes that a server sends and expects.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Pattern::new(16).fill(0, &mut bytes);
    bytes
}

/// The far host, and the keys of both sides. The near host is the namespace of the test.
pub(super) struct World {
    pub(super) folder: Folder,
    pub(super) host: Host,
    pub(super) near: Keys,
    pub(super) far: Keys,
    /// What both sides know besides their keys.
    shared: String,
    pub(super) peer: Peer,
    program: Program,
    servers: Vec<Running>,
}

impl World {
    pub(super) fn new(name: &str, program: &Program) -> Self {
        let folder = Folder::new(name);
        let host = Host::new(true);
        run("ip link set lo up");
        run(&format!(
            "ip link add outside type veth peer name {FAR_INTERFACE} netns {}",
            host.pid()
        ));
        run(&format!("ip address add {}/24 dev outside", NEAR[0]));
        run(&format!("ip address add {}/64 dev outside nodad", NEAR[1]));
        run("ip link set outside up");
        // What goes beside the tunnel is seen on the same interface.
        run(&format!("ip route add default via {}", FAR[0]));
        host.inside(|| {
            run("ip link set lo up");
            run(&format!("ip address add {}/24 dev {FAR_INTERFACE}", FAR[0]));
            run(&format!("ip address add {}/64 dev {FAR_INTERFACE} nodad", FAR[1]));
            run(&format!("ip link set {FAR_INTERFACE} up"));
            await_links(&[FAR_INTERFACE]);
        });
        await_links(&["outside"]);
        let (near, far) = (Keys::new(), Keys::new());
        let shared = run("wg genpsk").trim().to_owned();
        let peer = Peer::start(program, &host, &folder, &far, &near.public, &shared);
        serve(&host);
        let program = program.clone();
        Self { folder, host, near, far, shared, peer, program, servers: Vec::new() }
    }

    /// The file of the near side, with more sections behind it.
    pub(super) fn file(&self, sections: &str) -> String {
        self.file_to(FAR[0], sections)
    }

    /// The same with the endpoint at an address of the far host.
    pub(super) fn file_to(&self, address: &str, sections: &str) -> String {
        let address = if address.contains(':') { format!("[{address}]") } else { address.into() };
        let text = format!(
            "[Interface]\nPrivateKey = {}\nAddress = {}/32, {}/128\nDNS = {}\n\
             [Peer]\nPublicKey = {}\nPresharedKey = {}\nEndpoint = {address}:{PORT}\n\
             AllowedIPs = 0.0.0.0/0, ::/0\n{sections}",
            self.near.private,
            NEAR_INSIDE[0],
            NEAR_INSIDE[1],
            FAR_INSIDE[0],
            self.far.public,
            self.shared
        );
        self.folder.write("near.conf", &text)
    }

    /// Kills the far WireGuard, and starts it again with the same keys. It does not know where its
    /// peer is.
    pub(super) fn restart_peer(&mut self) {
        // The TUN is gone with the first before the second makes one of the same name.
        let (host, folder) = (&self.host, &self.folder);
        self.peer.kill();
        let (far, near) = (&self.far, &self.near.public);
        self.peer = Peer::start(&self.program, host, folder, far, near, &self.shared);
    }

    /// Starts a program on the far host, which ends with this value.
    pub(super) fn server(&mut self, words: &[&str]) {
        self.servers.push(Running::start_on(&self.host, &self.folder, words));
    }
}

/// Servers that are threads of the test, with sockets of the far host.
fn serve(host: &Host) {
    let listen = |port| host.inside(|| TcpListener::bind(("::", port)).expect("a port"));
    for port in [ECHO, TLS] {
        accept(listen(port), |stream| {
            io::copy(&mut &stream, &mut &stream)?;
            stream.shutdown(Shutdown::Write)
        });
    }
    accept(listen(WEB), web);
    let datagrams = |port| host.inside(|| UdpSocket::bind(("::", port)).expect("a port"));
    let (tell, resolver) = (datagrams(TELL), datagrams(53));
    thread::spawn(move || {
        let mut question = [0; 2000];
        while let Ok((length, from)) = tell.recv_from(&mut question) {
            let _ = tell.send_to(&question[..length], from);
        }
    });
    thread::spawn(move || resolve(&resolver));
}

/// Serves each connection by a thread.
fn accept(listener: TcpListener, serve: fn(TcpStream) -> io::Result<()>) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            // Clients may give up.
            thread::spawn(move || drop(serve(stream)));
        }
    });
}

/// Answers a GET of `/N` by N bytes of the pattern, and a PUT by whether it was the pattern.
fn web(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        } else if line.to_ascii_lowercase().starts_with("expect: 100-continue") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        line.clear();
    }
    let body = if first.starts_with("PUT") {
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if body == pattern(length) { b"the pattern".to_vec() } else { b"other bytes".to_vec() }
    } else {
        let path = first.split_whitespace().nth(1).unwrap_or_default();
        pattern(path.trim_start_matches('/').parse().unwrap_or(0))
    };
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// A resolver, over UDP alone, by which the two names have the far host's addresses, and no other
/// name has one.
fn resolve(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        // A header of twelve bytes, the name with a length before each part, type and class.
        let name = &query[12.min(length)..length];
        let Some(end) = name.iter().position(|&byte| byte == 0) else { continue };
        let Some(question) = query[..length].get(12..12 + end + 5) else { continue };
        let is_it = |name: &str| {
            let parts = name.split('.');
            let parts = parts.flat_map(|part| [&[part.len() as u8], part.as_bytes()].concat());
            question[..end].eq_ignore_ascii_case(&parts.collect::<Vec<_>>())
        };
        let is_known = is_it(NAME) || is_it(BOTH);
        let [v4, v6] = FAR_INSIDE.map(|text| text.parse().expect("an address"));
        let address = match (&question[end + 1..end + 3], v4, v6) {
            ([0, 1], IpAddr::V4(v4), _) if is_known => v4.octets().to_vec(),
            ([0, 28], _, IpAddr::V6(v6)) if is_it(BOTH) => v6.octets().to_vec(),
            _ => Vec::new(),
        };
        let status = if is_known { 0x80 } else { 0x83 };
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, status, 0, 1, 0, u8::from(!address.is_empty()), 0, 0, 0, 0]);
        answer.extend(question);
        if !address.is_empty() {
            // The name of the question, its type and class, for a minute.
            answer.extend([0xc0, 12]);
            answer.extend(&question[end + 1..]);
            answer.extend([0, 0, 0, 60, 0, address.len() as u8]);
            answer.extend(address);
        }
        let _ = socket.send_to(&answer, from);
    }
}
