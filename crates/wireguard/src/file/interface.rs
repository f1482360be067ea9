//! `[Interface]` and `[Peer]`.

use super::error::{FileError, Place};
use super::keys::{Keys, Value};
use super::value::{HostPort, is_name};
use crate::config::{MTU_MAX, MTU_MIN};
use crate::{PresharedKey, PrivateKey, PublicKey};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// What a key is expected to be.
const KEY: &str = "a key of 32 bytes in base64, as `wg genkey` prints it";
/// Keys of wg-quick that change the machine.
const NEVER_RUN: [&str; 4] = ["PreUp", "PostUp", "PreDown", "PostDown"];
/// Time between two pings, unless the file says otherwise.
const CHECK_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Smallest MTU that IPv4 hosts have to take (RFC 791), largest that a tunnel has.
const MTUS: [u32; 2] = [MTU_MIN as u32, MTU_MAX as u32];
/// Smallest MTU of a link for IPv4 (RFC 791). Over a smaller one nothing passes.
const MTU_LEAST_LINK: u32 = 68;

/// `[Interface]`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InterfaceSection {
    /// The private key.
    pub private_key: PrivateKey,
    /// Addresses inside the tunnel. Without a prefix length it is the longest.
    pub addresses: Vec<IpNet>,
    /// Resolvers inside the tunnel.
    pub dns: Vec<IpAddr>,
    /// Domains in which names are looked up, from the key DNS.
    pub search: Vec<String>,
    /// MTU inside the tunnel.
    pub mtu: Option<u16>,
    /// UDP port of the host; 0 for one that the host chooses.
    pub listen_port: u16,
    /// Mark of the packets outside.
    pub fwmark: Option<u32>,
    /// Addresses that are pinged through the tunnel.
    pub check_alive: Vec<IpAddr>,
    /// Time between two pings.
    pub check_alive_interval: Duration,
    /// Where the keys are that the machine or a running interface may refuse.
    places: Vec<Place>,
}

/// `[Peer]`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerSection {
    /// Its line in the file.
    pub line: usize,
    /// The public key.
    pub public_key: PublicKey,
    /// The key that both sides share.
    pub preshared_key: Option<PresharedKey>,
    /// What may come from the peer, and is sent to it. Without the key AllowedIPs it is everything,
    /// as wireproxy has it.
    pub allowed_ips: Vec<IpNet>,
    /// Where the peer is, until it is heard from elsewhere.
    pub endpoint: Option<HostPort>,
    /// Time between two keepalives.
    pub persistent_keepalive: Option<Duration>,
}

/// An address with or without its prefix length.
fn prefix(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// The parts of all values of a key.
fn list<T>(
    values: &[Value],
    read: impl Fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Vec<T>, FileError> {
    let parts = values.iter().flat_map(|value| value.parts().map(move |part| (value, part)));
    let wrong = |value: &Value| value.wrong(format!("expected {expected}"));
    parts.map(|(value, part)| read(part).ok_or_else(|| wrong(value))).collect()
}

/// Refuses addresses that no interface can have.
fn check_addresses(value: &Value) -> Result<(), FileError> {
    let addresses = value.parts().filter_map(prefix).map(|prefix| prefix.addr());
    for ip in addresses {
        let kind = match ip {
            ip if ip.is_unspecified() => "the unspecified address",
            ip if ip.is_loopback() => "a loopback address",
            ip if ip.is_multicast() => "a multicast address",
            IpAddr::V4(Ipv4Addr::BROADCAST) => "the broadcast address",
            _ => continue,
        };
        let problem = format!("expected an address of one host, not {kind}, as {ip} is");
        return Err(value.wrong(problem));
    }
    Ok(())
}

impl InterfaceSection {
    /// Returns where a key is in the file: `MTU`, `ListenPort` or `FwMark`; `None` if the file does
    /// not have it, and for other keys.
    pub fn place(&self, key: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.key.as_deref() == Some(key))
    }

    pub(super) fn read(mut keys: Keys<'_, '_>) -> Result<Self, FileError> {
        let missing = keys.missing("PrivateKey", format!("missing: expected {KEY}"));
        let private_key = keys.secret("PrivateKey")?.ok_or(missing)?.parse(KEY)?;
        let expected = "addresses with a prefix length, such as 10.0.0.2/32, fd00::2/128";
        let values = keys.all("Address")?;
        let addresses = list(&values, prefix, expected)?;
        if addresses.is_empty() {
            return Err(keys.missing("Address", format!("missing: expected {expected}")));
        }
        values.iter().try_for_each(check_addresses)?;
        let (dns, search) = dns(&keys.all("DNS")?)?;
        let mtu = keys.one("MTU")?;
        let port = keys.one("ListenPort")?;
        let fwmark = keys.one("FwMark")?;
        let values = [&mtu, &port, &fwmark].into_iter().flatten();
        let places = values.map(|value| value.place.clone()).collect();
        let mtu = mtu.map(|value| mtu_of(&value, &mut keys)).transpose()?;
        let port = port.map(|port| port.number(0, u16::MAX.into(), "a port from 0 to 65535"));
        let listen_port = port.transpose()?.and_then(|port| u16::try_from(port).ok());
        let fwmark = fwmark.map(|mark| off_or(&mark, u32::MAX, "0xca6c"));
        let check_alive = keys.all("CheckAlive")?;
        let expected = "addresses, such as 10.0.0.1, fd00::1";
        let check_alive = list(&check_alive, |part| part.parse().ok(), expected)?;
        let interval = keys.one("CheckAliveInterval")?;
        if let Some(interval) = &interval
            && check_alive.is_empty()
        {
            return Err(interval.wrong("expected together with CheckAlive"));
        }
        let interval = interval.map(|value| interval_of(&value, &mut keys)).transpose()?;
        for key in NEVER_RUN {
            keys.ignored(key, "this is never run: no command is");
        }
        keys.ignored("Table", "no route of the machine is changed, so that this does nothing");
        keys.ignored("SaveConfig", "the file is never written, so that this does nothing");
        keys.end()?;
        Ok(Self {
            private_key,
            addresses,
            dns,
            search,
            mtu,
            listen_port: listen_port.unwrap_or(0),
            fwmark: fwmark.transpose()?.flatten(),
            check_alive,
            check_alive_interval: interval.unwrap_or(CHECK_ALIVE_INTERVAL),
            places,
        })
    }
}

/// The MTU. wireproxy takes any number, so that one that a tunnel cannot have is the nearest one.
fn mtu_of(value: &Value, keys: &mut Keys<'_, '_>) -> Result<u16, FileError> {
    let [least, most] = MTUS;
    let expected = format!("a number of bytes from {least} to {most}");
    let number = value.number(MTU_LEAST_LINK, u32::MAX, &expected)?;
    let nearest = number.clamp(least, most);
    if nearest != number {
        let problem = format!("{nearest} is taken instead: expected {expected}");
        keys.context.warn(value.place.clone(), problem);
    }
    Ok(u16::try_from(nearest).unwrap_or(MTU_MAX))
}

/// Time between two pings. wireproxy pings all the time if it is 0.
fn interval_of(value: &Value, keys: &mut Keys<'_, '_>) -> Result<Duration, FileError> {
    let number = value.number(0, u32::MAX, "a number of seconds, such as 5")?;
    if number == 0 {
        keys.context.warn(value.place.clone(), "1 second is taken instead");
    }
    Ok(Duration::from_secs(number.max(1).into()))
}

/// Resolvers, and domains in which names are looked up.
fn dns(values: &[Value]) -> Result<(Vec<IpAddr>, Vec<String>), FileError> {
    let (mut servers, mut search) = (Vec::new(), Vec::new());
    for value in values {
        for part in value.parts() {
            match part.parse() {
                Ok(server) => servers.push(server),
                Err(_) if is_name(part) => search.push(part.to_owned()),
                Err(_) => {
                    let expected = "expected addresses of resolvers and names of search domains, \
                                    such as 10.0.0.1, example.org";
                    return Err(value.wrong(expected));
                }
            }
        }
    }
    Ok((servers, search))
}

/// A number, or `off`, which is 0 too.
fn off_or(value: &Value, most: u32, example: &str) -> Result<Option<u32>, FileError> {
    if value.text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    let expected = format!("off, or a number up to {most}, such as {example}");
    value.number(0, most, &expected).map(|number| Some(number).filter(|&number| number != 0))
}

impl PeerSection {
    /// A section, and whether it has the key AllowedIPs.
    pub(super) fn read(mut keys: Keys<'_, '_>) -> Result<(Self, bool), FileError> {
        let line = keys.place().line.unwrap_or_default();
        let value = keys.needed("PublicKey", KEY)?;
        let public_key: PublicKey = value.parse(KEY)?;
        if !public_key.is_usable() {
            return Err(value.wrong("this public key belongs to no private key"));
        }
        let preshared_key = keys.secret("PresharedKey")?;
        let preshared_key = preshared_key.map(|key| key.parse(KEY)).transpose()?;
        let allowed = keys.all("AllowedIPs")?;
        let expected = "prefixes, such as 0.0.0.0/0, fd00::/8";
        let allowed_ips = if allowed.is_empty() {
            let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            all.iter().filter_map(|&address| IpNet::new(address, 0).ok()).collect()
        } else {
            list(&allowed, |part| prefix(part).map(|prefix| prefix.trunc()), expected)?
        };
        let endpoint = keys.one("Endpoint")?.map(|endpoint| {
            HostPort::parse(&endpoint.text)
                .filter(|found| found.port != 0 && found.host != super::Host::Any)
                .ok_or_else(|| {
                    endpoint.wrong(
                        "expected ADDRESS:PORT, [IPV6]:PORT or NAME:PORT, such as \
                         vpn.example.org:51820",
                    )
                })
        });
        let endpoint = endpoint.transpose()?;
        let keepalive = keys.one("PersistentKeepalive")?;
        let keepalive = keepalive.map(|seconds| off_or(&seconds, u16::MAX.into(), "25"));
        let keepalive = keepalive.transpose()?.flatten();
        keys.end()?;
        let persistent_keepalive = keepalive.map(|seconds| Duration::from_secs(seconds.into()));
        let peer =
            Self { line, public_key, preshared_key, allowed_ips, endpoint, persistent_keepalive };
        Ok((peer, !allowed.is_empty()))
    }

    /// Adds what another section says of the same peer: prefixes add up, as for wireproxy, and
    /// other values take the place of those before.
    pub(super) fn merge(&mut self, other: Self) {
        for prefix in other.allowed_ips {
            if !self.allowed_ips.contains(&prefix) {
                self.allowed_ips.push(prefix);
            }
        }
        self.preshared_key = other.preshared_key.or(self.preshared_key.take());
        self.endpoint = other.endpoint.or(self.endpoint.take());
        self.persistent_keepalive = other.persistent_keepalive.or(self.persistent_keepalive);
    }
}
