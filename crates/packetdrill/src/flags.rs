//! `--so_flags`, and the settings that come from elsewhere: the sysctls of the namespace and the
//! MTU on packetdrill's command line.

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

/// MTU unless the flags or packetdrill say another, bytes: packetdrill's own default.
const MTU: u16 = 1500;

/// The least MTU that a device may have, bytes (RFC 791).
const LEAST_MTU: u16 = 68;

/// What the flags say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flags {
    /// Own addresses.
    pub(crate) local: Vec<IpAddr>,
    /// MTU of the device, bytes, if the flags say one.
    pub(crate) mtu: Option<u16>,
    /// Sysctls by name.
    pub(crate) sysctls: Vec<(String, String)>,
    /// The qdisc of every interface, whatever the namespace names.
    pub(crate) qdisc: Option<QdiscConfig>,
    /// `defaults`: the script has a namespace of its own, which begins with neap's defaults.
    pub(crate) is_from_defaults: bool,
}

/// Sysctls of the namespace that do not count until they change, as they were when the script
/// began: those that do not take neap's default.
pub(crate) type Baseline = BTreeMap<String, String>;

/// Sysctls of a network namespace.
pub(crate) trait Sysctls {
    /// The text of a sysctl, `None` if the namespace has none of this name.
    fn read(&self, name: &str) -> Option<String>;

    /// Sets a sysctl. What the namespace refuses stays as it is.
    fn write(&self, name: &str, value: &str);
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
        let mut flags = Self {
            local: Vec::new(),
            mtu: None,
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
                    let bad = || FlagError::Value(value.into(), "MTU");
                    flags.mtu = Some(parse_mtu(value).ok_or_else(bad)?);
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

    /// MTU of the device, bytes: that of the flags, else that of packetdrill's arguments.
    pub(crate) fn mtu(&self, arguments: impl IntoIterator<Item = String>) -> u16 {
        self.mtu.or_else(|| mtu_of(arguments)).unwrap_or(MTU)
    }

    /// With `defaults`, gives the namespace neap's defaults. Returns the sysctls that it did not
    /// take.
    pub(crate) fn prepare(&self, namespace: &impl Sysctls) -> Baseline {
        let defaults = Config::default();
        let mut untaken = Baseline::new();
        for name in sysctls_of_linux().chain([QDISC_SYSCTL]).filter(|_| self.is_from_defaults) {
            let default = defaults.get(name);
            if let Some(default) = &default {
                namespace.write(name, default);
            }
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            if let Some(value) = namespace.read(name)
                && default.is_none_or(|default| words(&default) != words(&value))
            {
                untaken.insert(name.to_owned(), value);
            }
        }
        untaken
    }

    /// The settings that hold from now on: those of the namespace, then those of the flags.
    pub(crate) fn config(&self, baseline: &Baseline, namespace: &impl Sysctls) -> Config {
        let mut config = Config::default();
        for name in sysctls_of_linux() {
            let value = namespace.read(name);
            if let Some(value) = value.filter(|value| baseline.get(name) != Some(value)) {
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

/// Names of the sysctls that both a namespace and neap may have.
fn sysctls_of_linux() -> impl Iterator<Item = &'static str> {
    Config::sysctls().iter().map(|sysctl| sysctl.name).filter(|name| name.starts_with("net."))
}

fn parse_mtu(text: &str) -> Option<u16> {
    text.parse().ok().filter(|mtu| *mtu >= LEAST_MTU)
}

/// What `--mtu=BYTES` or `--mtu BYTES` among the arguments of packetdrill says; the last one holds.
fn mtu_of(arguments: impl IntoIterator<Item = String>) -> Option<u16> {
    let (mut mtu, mut is_next) = (None, false);
    for argument in arguments {
        let value = if is_next { Some(argument.as_str()) } else { argument.strip_prefix("--mtu=") };
        mtu = value.and_then(parse_mtu).or(mtu);
        is_next = !is_next && argument == "--mtu";
    }
    mtu
}

/// Whether a word goes on with the parameters of a qdisc.
fn is_of_qdisc(word: &str) -> bool {
    word != "defaults" && !word.contains('=')
}

/// The sysctls of this thread's network namespace.
#[derive(Debug)]
pub(crate) struct Proc;

impl Sysctls for Proc {
    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(format!("{PROC}{}", name.replace('.', "/"))).ok()
    }

    fn write(&self, name: &str, value: &str) {
        let _ = std::fs::write(format!("{PROC}{}", name.replace('.', "/")), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;

    #[test]
    fn flags_are_read_and_bad_ones_named() {
        let flags = Flags::parse("local=10.0.0.1, mtu=9000 net.ipv4.tcp_sack=0").expect("good");
        let local: Vec<_> = flags.local.iter().map(ToString::to_string).collect();
        assert_eq!(local, ["10.0.0.1", LOCAL_V6]);
        assert_eq!(flags.mtu, Some(9000));
        assert!(Flags::parse("fast").is_err());
        assert!(Flags::parse("mtu=10").is_err());
        assert!(Flags::parse("local=here").is_err());
        assert!(Flags::parse("net.ipv4.tcp_sack=2").is_err());
    }

    #[test]
    fn the_mtu_is_that_of_the_flags_or_of_packetdrill() {
        let arguments = |words: &str| -> Vec<_> { words.split(' ').map(str::to_owned).collect() };
        let mtu =
            |flags: &str, words: &str| Flags::parse(flags).expect("good").mtu(arguments(words));
        assert_eq!(mtu("", "packetdrill script.pkt"), 1500);
        assert_eq!(mtu("", "packetdrill --mtu=1520 script.pkt"), 1520);
        assert_eq!(mtu("", "packetdrill --mtu 1400 --mtu 1520 script.pkt"), 1520);
        assert_eq!(mtu("mtu=9000", "packetdrill --mtu=1520 script.pkt"), 9000);
        assert_eq!(mtu("", "packetdrill --mtu=10 --mtu"), 1500);
    }

    /// Sysctls in memory: a name that is not there cannot be made, a value in `fixed` not changed.
    #[derive(Default)]
    struct Fake {
        values: RefCell<BTreeMap<String, String>>,
        fixed: Vec<&'static str>,
    }

    impl Fake {
        fn new(values: &[(&str, &str)]) -> Self {
            let values =
                values.iter().map(|(name, value)| (name.to_string(), format!("{value}\n")));
            Self { values: RefCell::new(values.collect()), fixed: Vec::new() }
        }
    }

    impl Sysctls for Fake {
        fn read(&self, name: &str) -> Option<String> {
            self.values.borrow().get(name).cloned()
        }

        fn write(&self, name: &str, value: &str) {
            if !self.fixed.contains(&name)
                && let Some(text) = self.values.borrow_mut().get_mut(name)
            {
                *text = format!("{}\n", value.replace(' ', "\t"));
            }
        }
    }

    #[test]
    fn the_namespace_is_read_before_the_flags() {
        let flags = Flags::parse("net.ipv4.tcp_sack=0").expect("good");
        let namespace = Fake::new(&[
            ("net.ipv4.tcp_sack", "1"),
            ("net.ipv4.tcp_ecn", "1"),
            ("net.ipv4.tcp_congestion_control", "vegas"),
        ]);
        let config = flags.config(&flags.prepare(&namespace), &namespace);
        assert!(!config.tcp_sack);
        assert_eq!(config.tcp_ecn, 1);
        assert_eq!(config.tcp_congestion_control, "cubic");
    }

    #[test]
    fn from_the_defaults_on_a_script_may_set_what_the_namespace_had() {
        let flags = Flags::parse("defaults,qdisc=fq").expect("good");
        let namespace = Fake::new(&[
            ("net.ipv4.tcp_congestion_control", "bbr"),
            ("net.ipv4.tcp_ecn", "1"),
            ("net.ipv4.tcp_wmem", "1\t2\t3"),
        ]);
        let baseline = flags.prepare(&namespace);
        assert_eq!(baseline, Baseline::new());
        let config = flags.config(&baseline, &namespace);
        assert_eq!(config.tcp_wmem, Config::default().tcp_wmem);
        assert_eq!((config.tcp_congestion_control.as_str(), config.tcp_ecn), ("cubic", 2));
        namespace.write("net.ipv4.tcp_congestion_control", "bbr");
        namespace.write("net.ipv4.tcp_ecn", "1");
        let config = flags.config(&baseline, &namespace);
        assert_eq!((config.tcp_congestion_control.as_str(), config.tcp_ecn), ("bbr", 1));
        assert_eq!(flags.qdisc.as_ref().map(QdiscConfig::kind), Some("fq"));
        assert!(Flags::parse("qdisc=nothing").is_err());
    }

    #[test]
    fn what_the_namespace_refuses_counts_once_it_changes() {
        let flags = Flags::parse("defaults").expect("good");
        let mut namespace = Fake::new(&[("net.ipv4.tcp_ecn", "1"), (QDISC_SYSCTL, "fq")]);
        namespace.fixed = vec!["net.ipv4.tcp_ecn"];
        let baseline = flags.prepare(&namespace);
        let names: Vec<_> = baseline.keys().map(String::as_str).collect();
        assert_eq!(names, [QDISC_SYSCTL, "net.ipv4.tcp_ecn"]);
        assert_eq!(flags.config(&baseline, &namespace).tcp_ecn, 2);
        namespace.fixed.clear();
        namespace.write("net.ipv4.tcp_ecn", "0");
        assert_eq!(flags.config(&baseline, &namespace).tcp_ecn, 0);
    }
}
