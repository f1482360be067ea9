//! `--so_flags`, and the sysctls of the namespace.

use core::net::IpAddr;
use neap_script::settings::QDISC_SYSCTL;
use neap_stack::qdisc::config::QdiscConfig;
use neap_tcp::config::Config;
use neap_tcp::sysctl::SysctlError;
use std::collections::BTreeMap;
use thiserror::Error;

/// Own IPv4 address unless the flags say another.
pub(crate) const LOCAL_V4: &str = "192.168.0.2";
/// Own IPv6 address unless the flags say another.
pub(crate) const LOCAL_V6: &str = "fd3d:fa7b:d17d::2";

/// The environment's flags, in front of the others.
pub(crate) const FLAGS_VARIABLE: &str = "NEAP_SO_FLAGS";

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
    /// The qdisc of every interface, whatever the namespace names.
    pub(crate) qdisc: Option<QdiscConfig>,
    /// `defaults`: what the namespace sets counts only once a script has changed it.
    pub(crate) is_from_defaults: bool,
}

/// Sysctls of the namespace that do not count, as they were when the script began.
pub(crate) type Baseline = BTreeMap<String, String>;

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
        let mut flags = Self {
            local: Vec::new(),
            mtu: 1500,
            sysctls: Vec::new(),
            qdisc: None,
            is_from_defaults: false,
        };
        let is_space = |char: char| char == ',' || char.is_whitespace();
        let mut words = text.split(is_space).filter(|word| !word.is_empty()).peekable();
        while let Some(word) = words.next() {
            if word == "defaults" {
                flags.is_from_defaults = true;
                continue;
            }
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
                "qdisc" => {
                    let mut value = value.to_owned();
                    while let Some(word) = words.next_if(|word| is_of_qdisc(word)) {
                        value = value + " " + word;
                    }
                    let bad = |_| FlagError::Value(value.clone(), "qdisc");
                    flags.qdisc = Some(value.parse().map_err(bad)?);
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

    /// The sysctls of the namespace that do not count.
    pub(crate) fn baseline(&self, read: impl Fn(&str) -> Option<String>) -> Baseline {
        let all = Config::sysctls()
            .iter()
            .map(|sysctl| sysctl.name)
            .chain([QDISC_SYSCTL])
            .filter(|_| self.is_from_defaults);
        all.filter_map(|name| Some((name.to_owned(), read(name)?))).collect()
    }

    /// The settings of a socket that is made now: those of the namespace, then those of the flags.
    pub(crate) fn config(
        &self,
        baseline: &Baseline,
        read: impl Fn(&str) -> Option<String>,
    ) -> Config {
        let mut config = Config::default();
        for name in Config::sysctls()
            .iter()
            .map(|sysctl| sysctl.name)
            .filter(|name| name.starts_with("net."))
        {
            if let Some(value) = read(name).filter(|value| baseline.get(name) != Some(value)) {
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

/// Whether a word goes on with the parameters of a qdisc.
fn is_of_qdisc(word: &str) -> bool {
    word != "defaults" && !word.contains('=')
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
        let config = flags.config(&flags.baseline(read), read);
        assert!(!config.tcp_sack);
        assert_eq!(config.tcp_ecn, 1);
        assert_eq!(config.tcp_congestion_control, "cubic");
    }

    #[test]
    fn from_the_defaults_on_only_what_a_script_changes_counts() {
        let flags = Flags::parse("defaults,qdisc=fq").expect("good");
        let before = |name: &str| match name {
            "net.ipv4.tcp_congestion_control" => Some("bbr\n".to_owned()),
            "net.ipv4.tcp_ecn" => Some("1\n".to_owned()),
            _ => None,
        };
        let baseline = flags.baseline(before);
        let after = |name: &str| match name {
            "net.ipv4.tcp_ecn" => Some("0\n".to_owned()),
            name => before(name),
        };
        let config = flags.config(&baseline, after);
        assert_eq!((config.tcp_congestion_control.as_str(), config.tcp_ecn), ("cubic", 0));
        assert_eq!(flags.qdisc.as_ref().map(QdiscConfig::kind), Some("fq"));
        assert!(Flags::parse("qdisc=nothing").is_err());
    }
}
