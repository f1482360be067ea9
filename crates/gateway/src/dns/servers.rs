//! Resolvers, and which of them is asked first.

use crate::resolver::Resolver;
use resolv_conf::{Config, ScopedIp};
use rustix::net::netdevice::name_to_index;
use std::fs::{self, Metadata};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::MetadataExt;

/// What names the resolvers of the host.
const FILE: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// Most resolvers that are asked, as in resolvers of C libraries (`MAXNS`).
const MOST_SERVERS: usize = 3;

/// Resolvers, in the order in which they are to be asked.
///
/// Cost: for those of the host a look at the file's state per question, so that a file that was
/// replaced acts at once.
#[derive(Debug, Default)]
pub(super) struct Servers {
    list: Vec<SocketAddr>,
    /// They are those of the host's file.
    are_of_host: bool,
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
    pub(super) fn of(resolver: &Resolver) -> Self {
        let list = match resolver {
            Resolver::Host | Resolver::Names => Vec::new(),
            Resolver::Server(server) => vec![*server],
            Resolver::Through(servers) => servers.clone(),
        };
        Self { list, are_of_host: *resolver == Resolver::Host, version: None }
    }

    /// The resolvers; none if those of the host cannot be read.
    pub(super) fn list(&mut self) -> &[SocketAddr] {
        if self.are_of_host && self.refresh().is_err() {
            (self.list, self.version) = (Vec::new(), None);
        }
        &self.list
    }

    fn refresh(&mut self) -> io::Result<()> {
        let version = Version::of(&fs::metadata(FILE)?);
        if self.version != Some(version) {
            self.list = servers_in(&fs::read(FILE)?);
            self.version = Some(version);
        }
        Ok(())
    }

    /// Notes a resolver that has answered, to be asked first until the host's file changes.
    pub(super) fn prefer(&mut self, server: SocketAddr) {
        if let Some(index) = self.list.iter().position(|known| *known == server) {
            self.list[..=index].rotate_right(1);
        }
    }
}

fn servers_in(text: &[u8]) -> Vec<SocketAddr> {
    // A line that cannot be read does not take the others with it.
    let lines = text.split(|&byte| byte == b'\n');
    let configs = lines.filter_map(|line| Config::parse(line).ok());
    let servers = configs.flat_map(|config| config.nameservers);
    servers.filter_map(|server| address(&server)).take(MOST_SERVERS).collect()
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
        assert_eq!(servers_in(b"search example.org\n"), []);
    }

    #[test]
    fn the_one_that_answered_is_asked_first() {
        let ip = |last| SocketAddr::from(([192, 0, 2, last], PORT));
        let list = vec![ip(1), ip(2), ip(3)];
        let mut servers = Servers::of(&Resolver::Through(list));
        servers.prefer(ip(3));
        assert_eq!(servers.list(), [ip(3), ip(1), ip(2)]);
        servers.prefer(ip(9));
        assert_eq!(servers.list(), [ip(3), ip(1), ip(2)]);
    }
}
