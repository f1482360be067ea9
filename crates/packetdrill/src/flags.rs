//! `--so_flags`, and the sysctls of the namespace.

use core::net::IpAddr;
use neap_tcp::config::{Config, SysctlError};
use thiserror::Error;

/// Own IPv4 address unless the flags say another.
pub(crate) const LOCAL_V4: &str = "192.168.0.2";
/// Own IPv6 address unless the flags say another.
pub(crate) const LOCAL_V6: &str = "fd3d:fa7b:d17d::2";

/// Where a namespace shows its sysctls.
const PROC: &str = "/proc/sys/";

/// What the flags say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flags {
    /// Own addresses.
    pub(crate) local: Vec<IpAddr>,
    /// MTU of the device, bytes.
    pub(crate) mtu: u16,
    /// Sysctls by name.
    pub(crate) sysctls: Vec<(String, String)>,
}

/// A flag that cannot be used.
#[derive(Clone, Debug, Error, PartialEq)]
pub(crate) enum FlagError {
    /// Not of the form NAME=VALUE.
    #[error("{0:?} is not NAME=VALUE")]
    Form(String),
    /// The value does not parse.
    #[error("{0} is no {1}")]
    Value(String, &'static str),
    /// A sysctl that does not exist or cannot have this value.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

impl Flags {
    /// Reads the flags; none is the default of all.
    pub(crate) fn parse(text: &str) -> Result<Self, FlagError> {
        let mut flags = Self { local: Vec::new(), mtu: 1500, sysctls: Vec::new() };
        let is_space = |char: char| char == ',' || char.is_whitespace();
        for word in text.split(is_space).filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').ok_or_else(|| FlagError::Form(word.into()))?;
            match name {
                "local" => {
                    let bad = |_| FlagError::Value(value.into(), "address");
                    flags.local.push(value.parse().map_err(bad)?);
                }
                "mtu" => {
                    let mtu = value.parse().ok().filter(|mtu| *mtu >= 68);
                    flags.mtu = mtu.ok_or_else(|| FlagError::Value(value.into(), "MTU"))?;
                }
                _ => {
                    Config::default().set(name, value)?;
                    flags.sysctls.push((name.into(), value.into()));
                }
            }
        }
        for default in [LOCAL_V4, LOCAL_V6] {
            let address: IpAddr = default.parse().expect("a literal");
            if !flags.local.iter().any(|one| one.is_ipv4() == address.is_ipv4()) {
                flags.local.push(address);
            }
        }
        Ok(flags)
    }

    /// The settings of a socket that is made now: those of the namespace, then those of the flags.
    pub(crate) fn config(&self, read: impl Fn(&str) -> Option<String>) -> Config {
        let mut config = Config::default();
        for name in Config::names().filter(|name| name.starts_with("net.")) {
            if let Some(value) = read(name) {
                // What the kernel knows and neap does not keeps neap's default.
                let _ = config.set(name, &value);
            }
        }
        for (name, value) in &self.sysctls {
            // Checked when it was parsed.
            let _ = config.set(name, value);
        }
        config
    }
}

/// A sysctl of the namespace that this process is in.
pub(crate) fn read_sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("{PROC}{}", name.replace('.', "/"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_bad_ones_named() {
        let flags = Flags::parse("local=10.0.0.1, mtu=9000 net.ipv4.tcp_sack=0").expect("good");
        let local: Vec<_> = flags.local.iter().map(ToString::to_string).collect();
        assert_eq!(local, ["10.0.0.1", LOCAL_V6]);
        assert_eq!(flags.mtu, 9000);
        assert!(Flags::parse("fast").is_err());
        assert!(Flags::parse("mtu=10").is_err());
        assert!(Flags::parse("local=here").is_err());
        assert!(Flags::parse("net.ipv4.tcp_sack=2").is_err());
        assert_eq!(Flags::parse("").map(|flags| flags.mtu), Ok(1500));
    }

    #[test]
    fn the_namespace_is_read_before_the_flags() {
        let flags = Flags::parse("net.ipv4.tcp_sack=0").expect("good");
        let read = |name: &str| match name {
            "net.ipv4.tcp_sack" | "net.ipv4.tcp_ecn" => Some("1\n".to_owned()),
            "net.ipv4.tcp_congestion_control" => Some("vegas\n".to_owned()),
            _ => None,
        };
        let config = flags.config(read);
        assert!(!config.tcp_sack);
        assert_eq!(config.tcp_ecn, 1);
        assert_eq!(config.tcp_congestion_control, "cubic");
    }
}
