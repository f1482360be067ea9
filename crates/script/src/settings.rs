//! Settings from the lines in front of a script's events.

use crate::ast::{Script, Setting};
use crate::cursor::SyntaxError;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use neap_stack::qdisc::config::{QdiscConfig, QdiscError};
use neap_tcp::time::Nanos;

/// The sysctl that names the qdisc of the script's interface. It belongs to the machine, not to a
/// namespace, so hosts set the qdisc instead.
pub const QDISC_SYSCTL: &str = "net.core.default_qdisc";

/// Settings of a script: addresses, sizes and tolerances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `--ip_version=ipv6`: packets are IPv6.
    pub is_v6: bool,
    /// `--ip_version=ipv4-mapped-ipv6`: packets are IPv4, sockets IPv6.
    pub is_mapped: bool,
    /// Longest time by which an event may be off (`--tolerance_usecs`).
    pub tolerance: Nanos,
    /// Length of a tick of timestamps, whose values are then checked (`--tcp_ts_tick_usecs`).
    pub timestamp_tick: Option<Nanos>,
    /// `--mtu` of the interface.
    pub mtu: u16,
    /// `--local_ip`.
    pub local_ip: IpAddr,
    /// `--remote_ip`: the peer.
    pub remote_ip: IpAddr,
    /// Port that `...` binds to (`--bind_port`).
    pub bind_port: u16,
    /// Port that `...` connects to (`--connect_port`).
    pub connect_port: u16,
    /// Sysctls in order, except [`QDISC_SYSCTL`].
    pub sysctls: Vec<Setting>,
    /// Qdisc of the interface, if the script names one.
    pub qdisc: Option<QdiscConfig>,
    /// Qdisc in the words of the script, which are those of tc.
    pub qdisc_words: Option<String>,
}

/// Longest tolerance, in microseconds.
const MAX_TOLERANCE: u64 = 60_000_000;

impl Settings {
    /// Returns the settings of a script, with the defaults of packetdrill.
    ///
    /// # Errors
    /// An option that does not exist, or a bad value.
    pub fn new(script: &Script) -> Result<Self, SyntaxError> {
        let Script { options, sysctls, .. } = script;
        let is_v6 = options.iter().any(Setting::is_v6);
        let (local_ip, remote_ip): (IpAddr, IpAddr) = if is_v6 {
            let local = Ipv6Addr::new(0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1);
            (local.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        } else {
            (Ipv4Addr::new(192, 168, 0, 1).into(), Ipv4Addr::new(192, 0, 2, 1).into())
        };
        let mut settings = Self {
            is_v6,
            is_mapped: false,
            tolerance: Nanos::from_millis(4),
            timestamp_tick: None,
            mtu: 1500,
            local_ip,
            remote_ip,
            bind_port: 8080,
            connect_port: 8080,
            sysctls: sysctls.iter().filter(|one| one.name != QDISC_SYSCTL).cloned().collect(),
            qdisc: None,
            qdisc_words: None,
        };
        if let Some(named) = sysctls.iter().rfind(|one| one.name == QDISC_SYSCTL) {
            let bad = |error: QdiscError| SyntaxError { at: named.at, what: error.to_string() };
            settings.qdisc = Some(named.value.parse().map_err(bad)?);
            settings.qdisc_words = Some(named.value.clone());
        }
        for option in options {
            settings.apply(option).map_err(|what| SyntaxError { at: option.at, what })?;
        }
        Ok(settings)
    }

    fn apply(&mut self, option: &Setting) -> Result<(), String> {
        let value = &option.value;
        let bad = || format!("--{}={value}: not such a value", option.name);
        match option.name.as_str() {
            "ip_version" => match value.as_str() {
                "ipv4" | "ipv6" => {}
                "ipv4-mapped-ipv6" => self.is_mapped = true,
                _ => return Err(bad()),
            },
            "tolerance_usecs" => {
                let micros = value.parse().ok().filter(|&micros| micros <= MAX_TOLERANCE);
                self.tolerance = Nanos::from_micros(micros.ok_or_else(bad)?);
            }
            "tcp_ts_tick_usecs" => {
                let micros =
                    value.parse().ok().filter(|micros| (1..=MAX_TOLERANCE).contains(micros));
                self.timestamp_tick = Some(Nanos::from_micros(micros.ok_or_else(bad)?));
            }
            "mtu" => self.mtu = value.parse().ok().filter(|&mtu| mtu >= 576).ok_or_else(bad)?,
            "so_flags" => {
                for word in value.split(',') {
                    self.flag(word).map_err(|()| bad())?;
                }
            }
            "local_ip" => self.local_ip = self.address(value).ok_or_else(bad)?,
            "remote_ip" => self.remote_ip = self.address(value).ok_or_else(bad)?,
            "bind_port" => self.bind_port = value.parse().map_err(|_| bad())?,
            "connect_port" => self.connect_port = value.parse().map_err(|_| bad())?,
            name => return Err(format!("unknown option --{name}")),
        }
        Ok(())
    }

    /// What a script asks of a device that packetdrill does not make: `mtu=BYTES`, `qdisc=NAME`.
    fn flag(&mut self, word: &str) -> Result<(), ()> {
        match word.split_once('=').ok_or(())? {
            ("mtu", mtu) => self.mtu = mtu.parse().ok().filter(|&mtu| mtu >= 576).ok_or(())?,
            ("qdisc", qdisc) => {
                self.qdisc = Some(qdisc.parse().map_err(|_| ())?);
                self.qdisc_words = Some(qdisc.to_owned());
            }
            _ => return Err(()),
        }
        Ok(())
    }

    fn address(&self, text: &str) -> Option<IpAddr> {
        text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv6() == self.is_v6)
    }

    /// Returns the address that `...` binds to.
    pub fn bind_address(&self) -> SocketAddr {
        (self.local_ip, self.bind_port).into()
    }

    /// Returns the address that `...` connects to.
    pub fn connect_address(&self) -> SocketAddr {
        (self.remote_ip, self.connect_port).into()
    }
}
