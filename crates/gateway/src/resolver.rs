//! The resolver that the host uses.

use resolv_conf::{Config, ScopedIp};
use std::fs;
use std::net::IpAddr;

/// What names the resolvers of the host.
const FILE: &str = "/etc/resolv.conf";

/// The first resolver of the host. Cost: the file is read, so that a file that was replaced acts at
/// once.
pub(crate) fn first() -> Option<IpAddr> {
    first_of(&fs::read(FILE).ok()?)
}

fn first_of(text: &[u8]) -> Option<IpAddr> {
    let config = Config::parse(text).ok()?;
    config.nameservers.first().map(|server| match server {
        ScopedIp::V4(v4) => IpAddr::V4(*v4),
        ScopedIp::V6(v6, _) => IpAddr::V6(*v6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_nameserver_counts() {
        let text = b"# mine\nsearch example.org\nnameserver 127.0.0.53\nnameserver 192.0.2.1\n";
        assert_eq!(first_of(text), Some("127.0.0.53".parse().expect("an address")));
        assert_eq!(first_of(b"nameserver ::1\n"), Some("::1".parse().expect("an address")));
        assert_eq!(first_of(b"search example.org\n"), None);
        assert_eq!(first_of(b"nameserver nowhere\n"), None);
    }
}
