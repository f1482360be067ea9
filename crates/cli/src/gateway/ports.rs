//! Ports of this machine that are those of a sandbox: `-p [ADDR:]HOST:GUEST[/udp]`.

use super::{Failure, refused, sandbox};
use neap_gateway::{Outbound, Publication, Transport};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// A bound socket, and what is to be published with it.
type Bound = (OwnedFd, Publication);

/// Ports to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// Of this machine; `None` for all.
    address: Option<IpAddr>,
    host: RangeInclusive<u16>,
    guest: RangeInclusive<u16>,
    transport: Transport,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or_else(|| {
            "expected [ADDRESS:]HOST:GUEST[/udp], such as 8080:80, 127.0.0.1:5353:53/udp, \
             [::1]:8080:80 or 8000-8010:9000-9010"
                .to_owned()
        })
    }
}

impl Ports {
    fn parse(text: &str) -> Option<Self> {
        let (text, transport) = match text.rsplit_once('/') {
            None => (text, Transport::Tcp),
            Some((text, "tcp")) => (text, Transport::Tcp),
            Some((text, "udp")) => (text, Transport::Udp),
            Some(_) => return None,
        };
        let (rest, guest) = text.rsplit_once(':')?;
        let (address, host) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((address, host)) => {
                let v6 = address.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
                let address = match v6 {
                    Some(v6) => v6.parse::<Ipv6Addr>().ok()?.into(),
                    None => address.parse::<Ipv4Addr>().ok()?.into(),
                };
                (Some(address), host)
            }
        };
        let (host, guest) = (ports(host)?, ports(guest)?);
        (host.len() == guest.len()).then_some(Self { address, host, guest, transport })
    }

    /// Binds the ports, before the gateway gives up its rights.
    pub(super) fn bind(&self, outbound: &Outbound) -> Result<Vec<Bound>, Failure> {
        let mut bound = Vec::new();
        let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = self.address.map_or(all.to_vec(), |address| vec![address]);
        for address in addresses {
            let (guest, stand_in) = match address {
                IpAddr::V4(_) => (sandbox::GUEST_V4.into(), sandbox::GATEWAY_V4.into()),
                IpAddr::V6(_) => (sandbox::GUEST_V6.into(), IpAddr::V6(sandbox::GATEWAY_V6)),
            };
            for (host_port, guest_port) in self.host.clone().zip(self.guest.clone()) {
                let port = SocketAddr::new(address, host_port);
                let guest = SocketAddr::new(guest, guest_port);
                let transport = self.transport;
                match (Publication { transport, port, guest, stand_in }).bind(outbound) {
                    Ok(socket) => bound.push(socket),
                    // Without IPv6 here, IPv4 is all.
                    Err(error) if self.address.is_none() && lacks_family(&error) => {}
                    Err(error) => {
                        let why = refused::port(transport, port, &error);
                        return Err(Failure::System(format!("-p {self}: {why}")));
                    }
                }
            }
        }
        Ok(bound)
    }
}

fn lacks_family(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    let lacking = [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::ADDRNOTAVAIL];
    errno.is_some_and(|errno| lacking.contains(&errno))
}

/// A port or a range of ports, without port 0.
fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first > 0 && first <= last).then_some(first..=last)
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V4(v4)) => write!(f, "{v4}:")?,
            Some(IpAddr::V6(v6)) => write!(f, "[{v6}]:")?,
            None => {}
        }
        let range = |ports: &RangeInclusive<u16>| {
            let (first, last) = (ports.start(), ports.end());
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        let transport = if self.transport == Transport::Udp { "/udp" } else { "" };
        write!(f, "{}:{}{transport}", range(&self.host), range(&self.guest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_printed() {
        for text in [
            "8080:80",
            "127.0.0.1:5353:53/udp",
            "[::1]:8080:80",
            "8000-8010:9000-9010",
            "0.0.0.0:1-65535:1-65535/udp",
        ] {
            assert_eq!(text.parse::<Ports>().expect(text).to_string(), text);
        }
        let tcp = "8080:80/tcp".parse::<Ports>().expect("ports");
        assert_eq!(tcp.to_string(), "8080:80");
        for text in [
            "",
            "80",
            "0:80",
            "80:0",
            "80:65536",
            "8000-8001:9000",
            "8001-8000:9001-9000",
            "::1:8080:80",
            "localhost:8080:80",
            "8080:80/sctp",
        ] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }
}
