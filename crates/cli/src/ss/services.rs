//! Names of ports: `/etc/services`.

use std::collections::HashMap;
use std::fs;

/// Where the names are.
const PATH: &str = "/etc/services";

/// Ports by name and names by port.
#[derive(Debug, Default)]
pub(super) struct Services {
    names: HashMap<(u16, String), String>,
    ports: HashMap<String, u16>,
}

impl Services {
    /// Those of this machine; none if it has no list.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string(PATH).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut services = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let (Some(name), Some(number)) = (words.next(), words.next()) else { continue };
            let Some((port, protocol)) = number.split_once('/') else { continue };
            let Ok(port) = port.parse() else { continue };
            let key = (port, protocol.to_owned());
            services.names.entry(key).or_insert_with(|| name.to_owned());
            for name in std::iter::once(name).chain(words) {
                services.ports.entry(name.to_owned()).or_insert(port);
            }
        }
        services
    }

    /// The name of a port, or else its number.
    pub(super) fn name(&self, port: u16, protocol: &str) -> String {
        let name = self.names.get(&(port, protocol.to_owned()));
        name.cloned().unwrap_or_else(|| port.to_string())
    }

    /// The port of a name or number.
    pub(super) fn port(&self, text: &str) -> Option<u16> {
        text.parse().ok().or_else(|| self.ports.get(text).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_protocols_are_read() {
        let text = "# ports\nhttp\t80/tcp\t www # web\nntp 123/udp\nbad\nworse x/tcp\n";
        let services = Services::parse(text);
        assert_eq!(services.name(80, "tcp"), "http");
        assert_eq!(services.name(80, "udp"), "80");
        assert_eq!(services.port("www"), Some(80));
        assert_eq!(services.port("123"), Some(123));
        assert_eq!(services.port("nope"), None);
    }
}
