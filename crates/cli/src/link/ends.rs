//! Ends of a link: TUNs and interfaces, in any network namespace.

use super::Failure;
use crate::netns::enter;
use neap::device::{
    Device, Error, LinkConfig, Medium, Packet, PacketConfig, Tun, TunConfig, configure_link,
};
use neap::net::Address;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;

/// Memory for super-frames that wait to be received from an interface, in bytes.
const RECEIVE_QUEUE: usize = 32 << 20;

/// Kind of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A TUN; if the interface exists and is something else, AF_PACKET.
    Any,
    Tun,
    Tap,
    Packet,
}

/// An end as the user names it: `[KIND:]NAME[@NETNS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndSpec {
    kind: Kind,
    name: String,
    namespace: Option<String>,
}

impl FromStr for EndSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "expected an interface, such as tun0, tun0@NETNS or packet:eth0";
        let (place, namespace) = match text.split_once('@') {
            Some((place, namespace)) => (place, Some(namespace.to_owned())),
            None => (text, None),
        };
        let (kind, name) = match place.split_once(':') {
            None => (Kind::Any, place),
            Some(("tun", name)) => (Kind::Tun, name),
            Some(("tap", name)) => (Kind::Tap, name),
            Some(("packet", name)) => (Kind::Packet, name),
            Some(_) => return Err(wrong.to_owned()),
        };
        if name.is_empty() || namespace.as_deref() == Some("") {
            return Err(wrong.to_owned());
        }
        Ok(Self { kind, name: name.to_owned(), namespace })
    }
}

impl fmt::Display for EndSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.namespace.as_ref().map_or(Ok(()), |namespace| write!(f, "@{namespace}"))
    }
}

/// What an end gets if it is a TUN.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) addresses: Vec<Address>,
    pub(super) mtu: Option<u16>,
}

/// An end that is open.
pub(super) struct End {
    pub(super) spec: EndSpec,
    pub(super) device: Device,
    /// It is a TUN or TAP. Another interface stays as it is.
    pub(super) is_tun: bool,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl End {
    pub(super) fn is_ethernet(&self) -> bool {
        matches!(self.device.capabilities.medium, Medium::Ethernet(_))
    }
}

impl EndSpec {
    /// Opens the end.
    ///
    /// # Errors
    /// The namespace or the interface cannot be opened; the text says what to do.
    pub(super) fn open(&self, settings: &Settings) -> Result<End, Failure> {
        let (device, is_tun) = self.inside(|| self.open_here(settings))??;
        Ok(End { spec: self.clone(), device, is_tun })
    }

    /// Does something in the network namespace of the end, by a thread of its own if that is not
    /// the one of this thread.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> Result<T, Failure> {
        let Some(path) = self.namespace_path() else { return Ok(what()) };
        let said = |what: String| Failure::System(format!("{self}: {what}"));
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&path).map_err(|error| {
                    let path = path.display();
                    said(format!("cannot enter the network namespace {path}: {error}"))
                })?;
                Ok(what())
            });
            inside.join().map_err(|_| said("a thread in its namespace failed".to_owned()))?
        })
    }

    fn namespace_path(&self) -> Option<PathBuf> {
        let name = self.namespace.as_ref()?;
        let is_process = name.bytes().all(|byte| byte.is_ascii_digit());
        Some(match () {
            () if name.contains('/') => PathBuf::from(name),
            () if is_process => PathBuf::from(format!("/proc/{name}/ns/net")),
            () => PathBuf::from("/run/netns").join(name),
        })
    }

    /// The device, and whether it is a TUN or TAP.
    fn open_here(&self, settings: &Settings) -> Result<(Device, bool), Failure> {
        let said = |error: Error| Failure::System(format!("{self}: {error}"));
        let tun = match self.kind {
            Kind::Packet => None,
            kind => {
                let config = TunConfig {
                    name: Some(self.name.clone()),
                    tap: kind == Kind::Tap,
                    bulk_queue: false,
                    ..TunConfig::default()
                };
                match Tun::open(&config) {
                    Err(Error::OtherKind { .. }) if kind == Kind::Any => None,
                    opened => Some(opened.map_err(said)?),
                }
            }
        };
        let Some(tun) = tun else {
            if !settings.addresses.is_empty() {
                let what = "an address belongs to a TUN; this interface stays as it is";
                return Err(Failure::Arguments(format!("{self}: {what}")));
            }
            let config = PacketConfig {
                promiscuous: true,
                rx_queue_bytes: RECEIVE_QUEUE,
                ..PacketConfig::new(&self.name)
            };
            return Ok((Packet::open(&config).map_err(said)?.into_device(), false));
        };
        let addresses = settings.addresses.iter().map(|one| (one.ip, one.prefix.len()));
        let config = LinkConfig {
            addresses: addresses.collect(),
            mtu: settings.mtu,
            ..LinkConfig::default()
        };
        configure_link(tun.name(), &config).map_err(said)?;
        Ok((tun.into_device(), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_with_kind_and_namespace() {
        let read = |text: &str| text.parse::<EndSpec>();
        let end = read("packet:eth0@a").expect("an end");
        assert_eq!((end.kind, end.to_string()), (Kind::Packet, "eth0@a".to_owned()));
        let path = |text: &str| read(text).expect("an end").namespace_path();
        assert_eq!(path("t0"), None);
        assert_eq!(path("t0@a"), Some("/run/netns/a".into()));
        assert_eq!(path("t0@1234"), Some("/proc/1234/ns/net".into()));
        assert_eq!(path("t0@/proc/1/ns/net"), Some("/proc/1/ns/net".into()));
        for wrong in ["", "@a", "t0@", "veth:x", "tun:"] {
            assert!(read(wrong).expect_err(wrong).contains("expected an interface"), "{wrong}");
        }
    }
}
