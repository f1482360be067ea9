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
/// A resolver that is taken for silent is asked after the others for so long.
const SILENCE: Duration = Duration::from_secs(30);

/// Resolvers, in the order of the file that names them: resolvers of C libraries ask them so for
/// each question, and the first may know names that the others do not. One that is silent is behind
/// the others for a while.
///
/// A name that a resolver is slow to find out does not make it silent. It is silent when a question
/// has waited in vain, another one that was asked after that has done so, too, and nothing was
/// heard of it meanwhile.
///
/// Cost: for those of the host a look at the file's state per question, so that a file that was
/// replaced acts at once.
#[derive(Debug, Default)]
pub(super) struct Servers {
    list: Vec<SocketAddr>,
    /// What is known of them.
    records: Vec<Record>,
    /// They are those of the host's file.
    are_of_host: bool,
    /// What reads that file, if this process does not.
    file: Option<Arc<dyn ResolversFile>>,
    version: Option<Version>,
}

/// What is known of a resolver.
#[derive(Debug)]
struct Record {
    server: SocketAddr,
    last_heard: Option<Instant>,
    /// When a question had waited in vain for the first time since it was heard.
    in_vain_since: Option<Instant>,
    /// Until when it is behind the others.
    behind_until: Option<Instant>,
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
        Self { list, records: Vec::new(), are_of_host, file, version: None }
    }

    /// The resolvers, in the order in which a question goes to them.
    pub(super) fn list(&mut self, now: Instant) -> ServerList {
        if self.are_of_host && self.refresh().is_err() {
            (self.list, self.version) = (vec![LOCAL], None);
        }
        let Self { list, records, .. } = self;
        records.retain(|one| list.contains(&one.server));
        let is_behind = |server: &SocketAddr| {
            let mut records = records.iter().filter(|one| one.server == *server);
            records.any(|one| one.behind_until.is_some_and(|until| until > now))
        };
        let (behind, others): (ServerList, ServerList) = list.iter().copied().partition(is_behind);
        others.into_iter().chain(behind).collect()
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

    /// Notes that a question of `sent` has waited for a resolver in vain until now.
    pub(super) fn note_in_vain(&mut self, server: SocketAddr, sent: Instant, now: Instant) {
        let one = self.record(server);
        if one.last_heard.is_some_and(|heard| heard >= sent) {
            return;
        }
        let since = *one.in_vain_since.get_or_insert(now);
        if sent >= since {
            one.behind_until = Some(now + SILENCE);
        }
    }

    /// Notes that something came from a resolver.
    pub(super) fn note_heard(&mut self, server: SocketAddr, now: Instant) {
        let one = self.record(server);
        (one.last_heard, one.in_vain_since, one.behind_until) = (Some(now), None, None);
    }

    fn record(&mut self, server: SocketAddr) -> &mut Record {
        let known = self.records.iter().position(|one| one.server == server);
        let index = known.unwrap_or_else(|| {
            let (last_heard, in_vain_since, behind_until) = (None, None, None);
            self.records.push(Record { server, last_heard, in_vain_since, behind_until });
            self.records.len() - 1
        });
        &mut self.records[index]
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
    fn the_first_three_nameservers_count_in_order() {
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

    /// An address of a resolver.
    fn ip(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], PORT))
    }

    fn three() -> Servers {
        Servers::of(&Resolver::Through(vec![ip(1), ip(2), ip(3)]), None)
    }

    #[test]
    fn a_silent_resolver_is_behind_the_others_for_a_while_and_the_order_stays() {
        let mut servers = three();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let list = |servers: &mut Servers, seconds| servers.list(at(seconds)).to_vec();
        servers.note_in_vain(ip(1), at(0), at(2));
        servers.note_in_vain(ip(1), at(2), at(4));
        assert_eq!(list(&mut servers, 4), [ip(2), ip(3), ip(1)]);
        servers.note_in_vain(ip(2), at(4), at(6));
        servers.note_in_vain(ip(2), at(6), at(8));
        assert_eq!(list(&mut servers, 8), [ip(3), ip(1), ip(2)]);
        assert_eq!(list(&mut servers, 35), [ip(1), ip(3), ip(2)]);
        // It was not heard since then, so one question tells.
        servers.note_in_vain(ip(1), at(35), at(37));
        servers.note_heard(ip(2), at(37));
        assert_eq!(list(&mut servers, 37), [ip(2), ip(3), ip(1)]);
        servers.note_in_vain(ip(9), at(0), at(2));
        servers.list(at(37));
        assert!(servers.records.iter().all(|one| one.server != ip(9)), "it is none of them");
    }

    #[test]
    fn a_name_that_is_slow_to_find_out_makes_no_resolver_silent() {
        let mut servers = three();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let is_first = |servers: &mut Servers, seconds| servers.list(at(seconds))[0] == ip(1);
        // Both addresses of the name are asked for at once.
        servers.note_in_vain(ip(1), at(0), at(2));
        servers.note_in_vain(ip(1), at(1), at(3));
        assert!(is_first(&mut servers, 3));
        // It has answered another question meanwhile.
        servers.note_heard(ip(1), at(5));
        servers.note_in_vain(ip(1), at(4), at(6));
        servers.note_in_vain(ip(1), at(6), at(8));
        assert!(is_first(&mut servers, 8));
        // What is late is heard.
        servers.note_heard(ip(1), at(9));
        servers.note_in_vain(ip(1), at(10), at(12));
        assert!(is_first(&mut servers, 12));
    }
}
