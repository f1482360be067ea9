//! Resolvers, and which of them is asked first.

use super::ServerList;
use crate::resolver::{Resolver, ResolversFile};
use resolv_conf::{Config, ScopedIp};
use rustix::net::netdevice::name_to_index;
use std::fs::{self, Metadata};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What names the resolvers of the host.
const FILE: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Most resolvers that are asked, as in resolvers of C libraries (`MAXNS`).
const MOST_SERVERS: usize = 3;
/// The resolver of a host whose file names none, as in resolvers of C libraries.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// A resolver that was silent is asked after the others for so long.
const SILENCE: Duration = Duration::from_secs(30);

/// Resolvers, in the order of the file that names them: resolvers of C libraries ask them so for
/// each question, and the first may know names that the others do not. One that was silent is
/// behind the others for a while.
///
/// Cost: for those of the host a look at the file's state per question, so that a file that was
/// replaced acts at once.
#[derive(Debug, Default)]
pub(super) struct Servers {
    list: Vec<SocketAddr>,
    /// Those that were silent, and until when they are behind the others.
    silent: Vec<(SocketAddr, Instant)>,
    /// They are those of the host's file.
    are_of_host: bool,
    /// What reads that file, if this process does not.
    file: Option<Arc<dyn ResolversFile>>,
    version: Option<Version>,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    bytes: u64,
    written: (i64, i64),
}

impl Version {
    fn of(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            written: (file.mtime(), file.mtime_nsec()),
        }
    }
}

impl Servers {
    pub(super) fn of(resolver: &Resolver, file: Option<Arc<dyn ResolversFile>>) -> Self {
        let list = match resolver {
            Resolver::Host | Resolver::Names => Vec::new(),
            Resolver::Server(server) => vec![*server],
            Resolver::Through(servers) => servers.clone(),
        };
        let are_of_host = *resolver == Resolver::Host;
        Self { list, silent: Vec::new(), are_of_host, file, version: None }
    }

    /// The resolvers, in the order in which a question goes to them.
    pub(super) fn list(&mut self, now: Instant) -> ServerList {
        if self.are_of_host && self.refresh().is_err() {
            (self.list, self.version) = (vec![LOCAL], None);
        }
        self.silent.retain(|(server, until)| *until > now && self.list.contains(server));
        let is_silent = |server: &SocketAddr| self.silent.iter().any(|(one, _)| one == server);
        let (silent, others): (ServerList, ServerList) =
            self.list.iter().copied().partition(|one| is_silent(one));
        others.into_iter().chain(silent).collect()
    }

    fn refresh(&mut self) -> io::Result<()> {
        let version = Version::of(&fs::metadata(FILE)?);
        if self.version != Some(version) {
            let text = self.file.as_ref().map_or_else(|| fs::read(FILE), |file| file.read())?;
            self.list = servers_in(&text);
            self.version = Some(version);
        }
        Ok(())
    }

    /// Notes a resolver that has not answered in time.
    pub(super) fn note_silent(&mut self, server: SocketAddr, now: Instant) {
        self.note_answer(server);
        self.silent.push((server, now + SILENCE));
    }

    /// Notes a resolver that has answered.
    pub(super) fn note_answer(&mut self, server: SocketAddr) {
        self.silent.retain(|(one, _)| *one != server);
    }
}

fn servers_in(text: &[u8]) -> Vec<SocketAddr> {
    // A line that cannot be read does not take the others with it.
    let lines = text.split(|&byte| byte == b'\n');
    let configs = lines.filter_map(|line| Config::parse(line).ok());
    let servers = configs.flat_map(|config| config.nameservers);
    let mut found: Vec<_> = servers.filter_map(|one| address(&one)).take(MOST_SERVERS).collect();
    if found.is_empty() {
        found.push(LOCAL);
    }
    found
}

fn address(server: &ScopedIp) -> Option<SocketAddr> {
    match server {
        ScopedIp::V4(v4) => Some((*v4, PORT).into()),
        ScopedIp::V6(v6, None) => Some((*v6, PORT).into()),
        ScopedIp::V6(v6, Some(scope)) => {
            let scope = scope.parse().ok().or_else(|| index_of(scope))?;
            Some(SocketAddrV6::new(*v6, PORT, 0, scope).into())
        }
    }
}

/// The index of an interface. `if_nametoindex(3)` asks by a Unix socket, which a gateway that has
/// given up its rights may not have.
fn index_of(name: &str) -> Option<u32> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    name_to_index(socket, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nameserver_counts_in_order() {
        let text = b"# mine\nsearch example.org\nnameserver 127.0.0.53\nnameserver nowhere\n\
                     nameserver fe80::1%lo\nnameserver fe80::2%no-such-interface\n\
                     nameserver ::1\nnameserver 192.0.2.1\n";
        let servers: Vec<_> = servers_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["127.0.0.53:53", "[fe80::1%1]:53", "[::1]:53"]);
    }

    #[test]
    fn a_host_that_names_no_nameserver_has_its_own() {
        assert_eq!(servers_in(b"search example.org\n"), [LOCAL]);
        assert_eq!(servers_in(b""), [LOCAL]);
    }

    #[test]
    fn a_silent_resolver_is_behind_the_others_for_a_while_and_the_order_stays() {
        let ip = |last| SocketAddr::from(([192, 0, 2, last], PORT));
        let mut servers = Servers::of(&Resolver::Through(vec![ip(1), ip(2), ip(3)]), None);
        let start = Instant::now();
        let at = |servers: &mut Servers, seconds| {
            servers.list(start + Duration::from_secs(seconds)).to_vec()
        };
        servers.note_silent(ip(1), start);
        assert_eq!(at(&mut servers, 0), [ip(2), ip(3), ip(1)]);
        servers.note_silent(ip(2), start + Duration::from_secs(10));
        assert_eq!(at(&mut servers, 10), [ip(3), ip(1), ip(2)]);
        assert_eq!(at(&mut servers, 31), [ip(1), ip(3), ip(2)]);
        servers.note_answer(ip(2));
        assert_eq!(at(&mut servers, 31), [ip(1), ip(2), ip(3)]);
        servers.note_silent(ip(9), start);
        assert_eq!(at(&mut servers, 1), [ip(1), ip(2), ip(3)]);
        assert!(servers.silent.is_empty(), "it is none of them");
    }
}
