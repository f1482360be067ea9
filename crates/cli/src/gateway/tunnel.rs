//! A WireGuard tunnel from a file: its stack, and what follows the file and the host's resolver.

mod buffers;
mod kept;
pub(crate) mod names;
mod network;
mod silence;

use super::Failure;
use super::confine::{self, Needs};
use crate::wg::report::{InterfaceReport, SUBJECT};
use buffers::Buffers;
use names::Names;
use neap::control::{Application, Labelled};
use neap::{Builder, InterfaceConfig, Stack};
use neap_gateway::Outbound;
use neap_tcp::config::Config;
use neap_wireguard::file::{Certificate, DoorKind, File, InterfaceSection, PeerSection};
use neap_wireguard::{Peer, PrivateKey, PublicKey, Wireguard, WireguardHandle};
use network::Network;
use rustix::thread::CapabilitySet;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use kept::KeptTunnel;

/// Ports below need a right, unless the machine says otherwise.
const FIRST_FREE_PORT: u16 = 1024;
/// The setting of congestion control.
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";
/// The setting of send buffers, and its value: as much as the largest receive buffer, since a
/// tunnel leads over long paths. A flow that fills its buffer looks to BBR as one whose application
/// has no more, so BBR would stay in its first phase, and keep a queue on the path. What is not
/// sent yet has a bound of its own.
const SEND_BUFFERS: (&str, &str) = ("net.ipv4.tcp_wmem", "4096 16384 33554432");
/// What it means that a tunnel has no mark.
const NO_MARK: &str =
    "the tunnel goes on without it, and rules by fwmark take its packets for those of others";
/// Longest name of an interface, bytes: what a control socket takes.
const LONGEST_NAME: usize = 32;

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::System(error.to_string())
}

/// What the machine or the interface refuses, with its place in the file.
fn refused(section: &InterfaceSection, error: &neap_wireguard::Error) -> String {
    let key = match error {
        neap_wireguard::Error::Mark { .. } => "FwMark",
        neap_wireguard::Error::Port { .. } => "ListenPort",
        _ => "",
    };
    section.place(key).map_or_else(|| error.to_string(), |place| format!("{place}: {error}"))
}

/// Reads a file, and tells of what the user should know.
///
/// # Errors
/// [`Failure::Arguments`] with file, line, section and key.
pub(crate) fn read(path: &Path) -> Result<File, Failure> {
    let file = File::read(path).map_err(|error| Failure::Arguments(error.to_string()))?;
    for warning in &file.warnings {
        tracing::warn!("{warning}");
    }
    Ok(file)
}

/// The name of the interface: that of the file, as wg-quick has it.
pub(crate) fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is_fine = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = stem.chars().filter(is_fine).take(LONGEST_NAME).collect();
    if name.is_empty() { "wireguard".to_owned() } else { name }
}

/// The name of a congestion control that the stack has.
pub(crate) fn congestion(name: &str) -> Result<String, String> {
    let set = Config::default().set(CONGESTION, name);
    set.map(|()| name.to_owned()).map_err(|error| error.to_string())
}

/// Settings of a tunnel that its file does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Congestion control of its connections; `None` is that of the stack.
    pub(crate) congestion: Option<String>,
    /// Threads that help to encrypt.
    pub(crate) sealers: u16,
    /// Goes on without the mark of the file, with a warning, where the machine refuses it.
    pub(crate) may_lack_mark: bool,
    /// Warns of small buffers of the socket. Without, the log has a note.
    pub(crate) warns_of_buffers: bool,
}

/// A tunnel with its socket, and without a stack yet: rights can be given up now.
pub(crate) struct Prepared {
    file: File,
    handle: WireguardHandle,
    names: Names,
    network: Network,
    buffers: Buffers,
    builder: Builder,
    /// As in [`Tunnel`].
    unmarked: Option<u32>,
}

impl Prepared {
    /// Binds the socket, and resolves the names of endpoints once.
    ///
    /// # Errors
    /// The port or the mark cannot be had, or a peer is refused.
    pub(crate) fn open(mut file: File, settings: &Settings) -> Result<Self, Failure> {
        let names = Names::new(&file.peers);
        let mut config = file.wireguard(|endpoint| names.known(endpoint));
        config.sealers = settings.sealers.into();
        let mut opened = Wireguard::open(&config);
        let mut unmarked = None;
        if let Err(error @ neap_wireguard::Error::Mark { .. }) = &opened
            && settings.may_lack_mark
        {
            tracing::warn!("{}: {NO_MARK}", refused(&file.interface, error));
            unmarked = file.interface.fwmark.take();
            config.fwmark = None;
            opened = Wireguard::open(&config);
        }
        let wireguard =
            opened.map_err(|error| Failure::System(refused(&file.interface, &error)))?;
        let handle = wireguard.handle();
        let mut buffers = Buffers::new(settings.warns_of_buffers);
        buffers.tell(&file.path, &handle.status());
        let network = Network::of(&file);
        let interface = network.configure(InterfaceConfig::new(wireguard.into_device()));
        let (key, sizes) = SEND_BUFFERS;
        let mut builder = Stack::builder().interface(interface).sysctl(key, sizes);
        if let Some(name) = &settings.congestion {
            builder = builder.sysctl(CONGESTION, name);
        }
        Ok(Self { file, handle, names, network, buffers, builder, unmarked })
    }

    /// What the tunnel keeps: names of the host, and rights that ports and marks need.
    pub(crate) fn needs(&self) -> Needs {
        let outbound = Outbound { mark: self.file.interface.fwmark, ..Outbound::default() };
        let mut capabilities = confine::capabilities_of(&outbound);
        let is_low = |port: u16| (1..FIRST_FREE_PORT).contains(&port);
        let binds = self.file.doors.iter().filter_map(|door| door.kind.bind());
        let ports = binds.map(|(_, bind)| bind.port);
        if ports.chain([self.file.interface.listen_port]).any(is_low) {
            capabilities |= CapabilitySet::NET_BIND_SERVICE;
        }
        Needs { capabilities, names: true, ..Needs::default() }
    }

    /// The environment variables that the files name, which may be secrets.
    pub(crate) fn variables(&self) -> &[String] {
        &self.file.variables
    }

    /// Domains in which names are looked up.
    pub(crate) fn search(&self) -> &[String] {
        &self.file.interface.search
    }

    /// The folders of the files, where a new file may take the place of an old one, and those that
    /// links lead to.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let folder = |path: &Path| match path.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let folders_of = |path: &Path| {
            let real = path.canonicalize().ok();
            [Some(folder(path)), real.as_deref().map(folder)].into_iter().flatten()
        };
        let own = std::iter::once(self.file.path.as_path());
        let certificates = self.file.doors.iter().filter_map(|door| match &door.kind {
            DoorKind::Http { certificate: Some(Certificate { chain, key, .. }), .. } => {
                Some([chain.as_path(), key.as_path()])
            }
            _ => None,
        });
        let files = own.chain(self.file.tunnel_path.as_deref()).chain(certificates.flatten());
        files.flat_map(folders_of).collect()
    }

    /// Starts the stack, once rights are given up.
    ///
    /// # Errors
    /// The stack refuses a setting, or the system a thread.
    pub(crate) fn start(self) -> Result<Tunnel, Failure> {
        let Self { file, handle, names, network, buffers, builder, unmarked } = self;
        let stack = Arc::new(builder.build().map_err(|error| failed(&error))?);
        names.watch(handle.clone()).map_err(|error| failed(&error))?;
        Ok(Tunnel { file, stack, handle, names, network, buffers, unmarked })
    }
}

/// The peers of a new file that may answer although they did not: their keys, that of the interface
/// or their endpoints are others.
fn corrected(old: &File, new: &File) -> HashSet<PublicKey> {
    let is_other = old.interface.private_key != new.interface.private_key;
    let settings = |peer: &PeerSection| (peer.preshared_key.clone(), peer.endpoint.clone());
    let before: HashMap<_, _> =
        old.peers.iter().map(|peer| (peer.public_key, settings(peer))).collect();
    let is_same = |peer: &&PeerSection| before.get(&peer.public_key) == Some(&settings(peer));
    new.peers.iter().filter(|peer| is_other || !is_same(peer)).map(|peer| peer.public_key).collect()
}

/// A tunnel that runs. It ends with its stack.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// What it was made from.
    pub(crate) file: File,
    pub(crate) stack: Arc<Stack>,
    pub(crate) handle: WireguardHandle,
    names: Names,
    network: Network,
    buffers: Buffers,
    /// The mark that the machine refused at the start: the right to it does not come later.
    unmarked: Option<u32>,
}

impl Tunnel {
    /// What others see of it.
    pub(crate) fn shown(&self) -> Shown {
        Shown { name: name(&self.file.path), handle: self.handle.clone() }
    }

    /// Takes a file that was read again, if the interface that runs can be as it says.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub(crate) fn accept(&self, read: Result<File, Failure>) -> Result<File, String> {
        let unchanged = |why: String| format!("nothing has changed: {why}");
        let file = read.map_err(|failure| match failure {
            Failure::Arguments(why) | Failure::System(why) => unchanged(why),
        })?;
        self.check(&file).map_err(unchanged)?;
        Ok(file)
    }

    /// Checks whether the interface that runs can be as another file says.
    ///
    /// # Errors
    /// The place in the file, and what is expected there.
    fn check(&self, file: &File) -> Result<(), String> {
        let (section, most) = (&file.interface, self.handle.largest_mtu());
        match (section.mtu, section.place("MTU")) {
            (Some(mtu), Some(place)) if mtu > most => Err(format!(
                "{place}: expected at most {most} bytes while the tunnel runs: start it again for \
                 more"
            )),
            _ => Ok(()),
        }
    }

    /// Makes the tunnel as another file says. Peers that it has as well keep their sessions. What
    /// cannot be as the file says stays as it was, and is tried again with the next file.
    ///
    /// # Errors
    /// Lines about what cannot be as the file says. All else is.
    pub(crate) fn change(&mut self, mut file: File) -> Result<(), Vec<String>> {
        let errors = self.handle.batch(|| self.change_interface(&mut file));
        let refused = errors.iter().map(|error| refused(&file.interface, error));
        let mut failures: Vec<_> = refused.collect();
        failures.extend(self.network.change(&Network::of(&file), &self.stack));
        // Another port has another socket.
        self.buffers.tell(&file.path, &self.handle.status());
        self.file = file;
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// Changes the interface and its peers. What cannot be as the file says is made in the file as
    /// it was.
    fn change_interface(&self, file: &mut File) -> Vec<neap_wireguard::Error> {
        let _turn = self.names.take_turn();
        let mut errors = Vec::new();
        let mut is_done = |done: Result<(), neap_wireguard::Error>| {
            let is_done = done.is_ok();
            errors.extend(done.err());
            is_done
        };
        let least_mtu = file.least_mtu();
        let (old, new) = (&self.file.interface, &mut file.interface);
        if self.unmarked.is_some() && new.fwmark == self.unmarked {
            new.fwmark = None;
        }
        if old.fwmark != new.fwmark && !is_done(self.handle.set_fwmark(new.fwmark)) {
            new.fwmark = old.fwmark;
        }
        let port = new.listen_port;
        if old.listen_port != port && !is_done(self.handle.set_listen_port(port)) {
            new.listen_port = old.listen_port;
        }
        if old.private_key != new.private_key && !is_done(self.set_private_key(&new.private_key)) {
            new.private_key = old.private_key.clone();
        }
        if old.mtu != new.mtu && !is_done(self.handle.set_mtu(new.mtu)) {
            new.mtu = old.mtu;
        }
        if self.file.least_mtu() != least_mtu {
            is_done(self.handle.set_least_mtu(least_mtu));
        }
        if is_done(self.handle.set_peers(self.peers_of(file))) {
            self.names.set(&file.peers, corrected(&self.file, file));
        } else {
            file.peers = self.file.peers.clone();
        }
        errors
    }

    /// The peers of a file, at the addresses that are known.
    fn peers_of(&self, file: &File) -> Vec<Peer> {
        file.wireguard(|endpoint| self.names.known(endpoint)).peers
    }

    /// Sets the key. A peer that has it goes first: the new file cannot have that peer.
    fn set_private_key(&self, key: &PrivateKey) -> Result<(), neap_wireguard::Error> {
        let public = key.public_key();
        let mut peers = self.peers_of(&self.file);
        let before = peers.len();
        peers.retain(|peer| peer.public_key != public);
        if peers.len() < before {
            self.handle.set_peers(peers)?;
        }
        self.handle.set_private_key(key.clone())
    }
}

/// What a control socket and metrics show of a tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    name: String,
    handle: WireguardHandle,
}

impl Application for Shown {
    /// Counters of the interface.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.handle.status().counters
    }

    /// Counters of each peer.
    fn labelled(&self) -> Vec<Labelled> {
        let peers = self.handle.status().peers;
        let of_peer = peers.iter().flat_map(|peer| {
            [("WireguardPeerReceived", peer.received), ("WireguardPeerSent", peer.sent)].map(
                |(name, value)| {
                    let of = peer.public_key.to_string();
                    Labelled { name, label: "peer", of, value, gauge: false }
                },
            )
        });
        of_peer.collect()
    }

    /// What `neap wg show` asks for.
    fn lines(&self, subject: &str) -> Option<Vec<String>> {
        let report = || InterfaceReport::new(&self.name, &self.handle.status());
        (subject == SUBJECT).then(|| serde_json::to_string(&report()).into_iter().collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::thread::{CapabilitySets, set_capabilities};
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    const KEYS: [&str; 2] = [
        "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
    ];

    /// A file of an interface with the key `own`, and of the other one as its peer.
    fn file_of(own: usize, interface: &str, peer: &str) -> File {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("neap-{}-{number}", std::process::id()));
        let other: PrivateKey = KEYS[1 - own].parse().expect("a key");
        let text = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.0.0.1\n{interface}\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.2/32\n{peer}\n",
            KEYS[own],
            other.public_key()
        );
        std::fs::write(&path, text).expect("a file");
        let file = File::read(&path).expect("a file that is understood");
        std::fs::remove_file(&path).expect("it was there");
        file
    }

    pub(in crate::gateway) fn file(interface: &str, peer: &str) -> File {
        file_of(0, interface, peer)
    }

    fn tunnel() -> Tunnel {
        start(file("", ""))
    }

    #[test]
    fn a_tunnel_has_send_buffers_for_long_paths() {
        let tunnel = tunnel();
        let config = tunnel.stack.config();
        assert!(config.tcp_wmem.max > Config::default().tcp_wmem.max);
        assert_eq!(config.tcp_wmem.max, config.tcp_rmem.max);
    }

    #[test]
    fn a_mark_that_is_refused_is_left_out_only_where_it_may_be() {
        let without_rights = || {
            let empty = CapabilitySet::empty();
            let none = CapabilitySets { effective: empty, permitted: empty, inheritable: empty };
            set_capabilities(None, none).expect("fewer are possible");
            let marked = || file("FwMark = 7", "");
            let failed = Prepared::open(marked(), &Settings::default()).err();
            let Some(Failure::System(why)) = failed else { panic!("it has a mark") };
            assert!(why.contains(":4: [Interface] FwMark: fwmark 0x7 needs"), "{why}");
            let settings = Settings { may_lack_mark: true, ..Settings::default() };
            let tunnel = Prepared::open(marked(), &settings).and_then(Prepared::start);
            let mut tunnel = tunnel.unwrap_or_else(|_| panic!("it may lack the mark"));
            assert_eq!(tunnel.handle.status().fwmark, None);
            assert_eq!(tunnel.change(marked()), Ok(()), "the file is as it was");
            let failures = tunnel.change(file("FwMark = 8", "")).expect_err("it is another mark");
            assert!(failures[0].contains("FwMark: fwmark 0x8 needs"), "{failures:?}");
        };
        // Rights belong to threads.
        std::thread::scope(|scope| scope.spawn(without_rights).join()).expect("no panic");
    }

    #[test]
    fn what_a_file_could_not_change_is_tried_again_with_the_next() {
        let mut tunnel = tunnel();
        let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
        let port = taken.local_addr().expect("an address").port();
        let wanted = || file(&format!("ListenPort = {port}\nMTU = 1300"), "");
        let failures = tunnel.change(wanted()).expect_err("the port is taken");
        assert_eq!(failures.len(), 1, "{failures:?}");
        let told = format!(":4: [Interface] ListenPort: UDP port {port}: ");
        assert!(failures[0].contains(&told), "{failures:?}");
        assert_ne!(tunnel.handle.status().listen_port, port);
        drop(taken);
        tunnel.change(wanted()).expect("the port is free");
        assert_eq!(tunnel.handle.status().listen_port, port);
    }

    #[test]
    fn an_interface_and_its_peer_can_swap_their_keys() {
        let mut tunnel = tunnel();
        tunnel.change(file_of(1, "", "")).expect("both keys are taken");
        let status = tunnel.handle.status();
        let key = |text: &str| text.parse::<PrivateKey>().expect("a key").public_key();
        assert_eq!(status.public_key, key(KEYS[1]));
        assert_eq!(status.peers[0].public_key, key(KEYS[0]));
    }

    /// A socket that two tunnels take for one another, so that it sees what they say.
    struct Between {
        socket: UdpSocket,
        endpoint: String,
    }

    impl Between {
        fn new() -> Self {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
            let endpoint = format!("Endpoint = {}", socket.local_addr().expect("an address"));
            Self { socket, endpoint }
        }

        /// The next datagram, the kind of message that it is, and the port of who has sent it.
        fn next(&self) -> (Vec<u8>, u8, u16) {
            let mut bytes = vec![0; 2048];
            let (len, from) = self.socket.recv_from(&mut bytes).expect("a datagram");
            bytes.truncate(len);
            let kind = bytes[0];
            (bytes, kind, from.port())
        }

        fn pass(&self, bytes: &[u8], to: &Tunnel) {
            let to = (Ipv4Addr::LOCALHOST, port_of(to));
            self.socket.send_to(bytes, to).expect("it takes datagrams");
        }

        /// Passes a handshake of `asks` on from its beginning to its end. Nothing else is said
        /// meanwhile.
        fn join(&self, asks: &Tunnel, answers: &Tunnel) {
            for (from, to, expected) in
                [(asks, answers, 1), (answers, asks, 2), (asks, answers, KEEPALIVE)]
            {
                let (bytes, kind, port) = self.next();
                assert_eq!((kind, port), (expected, port_of(from)));
                self.pass(&bytes, to);
            }
        }
    }

    /// The kind of an empty packet, which ends a handshake.
    const KEEPALIVE: u8 = 4;

    fn port_of(tunnel: &Tunnel) -> u16 {
        tunnel.handle.status().listen_port
    }

    fn start(file: File) -> Tunnel {
        let tunnel = Prepared::open(file, &Settings::default()).and_then(Prepared::start);
        tunnel.unwrap_or_else(|_| panic!("a tunnel"))
    }

    /// A UDP port that nobody has.
    fn free_port() -> u16 {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
        socket.local_addr().expect("an address").port()
    }

    #[test]
    fn a_port_and_what_begins_a_session_anew_change_by_one_handshake() {
        let between = Between::new();
        let there = start(file_of(1, "", &between.endpoint));
        let peer = |seconds| format!("{}\nPersistentKeepalive = {seconds}", between.endpoint);
        let mut here = start(file("", &peer(60)));
        between.join(&here, &there);
        let port = free_port();
        here.change(file(&format!("ListenPort = {port}"), &peer(70))).expect("a free port");
        assert_eq!(port_of(&here), port);
        between.join(&here, &there);
    }

    #[test]
    fn a_peer_that_is_gone_does_not_learn_the_new_port() {
        let between = Between::new();
        let there = start(file_of(1, "", &between.endpoint));
        let keepalive = format!("{}\nPersistentKeepalive = 60", between.endpoint);
        let mut here = start(file("", &keepalive));
        between.join(&here, &there);
        let mut without = file(&format!("ListenPort = {}", free_port()), "");
        without.peers.clear();
        here.change(without).expect("a free port");
        // What was sent to it is there, as both are on this host.
        between.socket.set_nonblocking(true).expect("a socket");
        let error = between.socket.recv_from(&mut [0; 2048]).expect_err("nothing is said");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn peers_with_other_keys_or_endpoints_are_corrected() {
        let at = |port: u16| format!("Endpoint = 192.0.2.1:{port}");
        let secret = format!("PresharedKey = {}", KEYS[0]);
        let old = file("ListenPort = 1", &at(1));
        let key = old.peers[0].public_key;
        for (new, expected) in [
            (file("ListenPort = 2", &format!("{}\nPersistentKeepalive = 5", at(1))), false),
            (file("", &at(2)), true),
            (file("", ""), true),
            (file("", &format!("{}\n{secret}", at(1))), true),
        ] {
            assert_eq!(corrected(&old, &new).contains(&key), expected, "{:?}", new.peers);
        }
        let mut new = old.clone();
        new.interface.private_key = PrivateKey::from([7; 32]);
        assert!(corrected(&old, &new).contains(&key));
        let other = file_of(1, "", "");
        assert!(corrected(&old, &other).contains(&other.peers[0].public_key), "a new peer");
    }

    #[test]
    fn a_file_changes_no_endpoint_while_the_address_of_a_name_is_taken() {
        let mut tunnel = start(file("", "Endpoint = 127.0.0.1:1001"));
        let (names, handle) = (tunnel.names.clone(), tunnel.handle.clone());
        let port = || handle.status().peers[0].endpoint.map(|at| at.port());
        std::thread::scope(|scope| {
            let turn = names.take_turn();
            let change = scope.spawn(|| tunnel.change(file("", "Endpoint = 127.0.0.1:1002")));
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(port(), Some(1001));
            drop(turn);
            assert_eq!(change.join().expect("no panic"), Ok(()));
        });
        assert_eq!(port(), Some(1002));
    }

    #[test]
    fn an_mtu_that_takes_a_new_start_is_told_with_its_place() {
        let tunnel = tunnel();
        assert_eq!(tunnel.check(&file("MTU = 59000", "")), Ok(()));
        let why = tunnel.check(&file("MTU = 59001", "")).expect_err("the buffers are smaller");
        assert!(why.contains(":4: [Interface] MTU: expected at most 59000 bytes"), "{why}");
    }

    #[test]
    fn a_file_can_raise_the_mtu() {
        let mut tunnel = tunnel();
        let mtu = |tunnel: &Tunnel| tunnel.stack.host().interfaces()[0].capabilities.mtu;
        for wanted in [1300, 1420, 4000] {
            tunnel.change(file(&format!("MTU = {wanted}"), "")).expect("an MTU");
            let is_there = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                mtu(&tunnel) == wanted
            });
            assert!(is_there, "{} instead of {wanted}", mtu(&tunnel));
        }
    }
}
