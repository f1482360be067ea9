//! Which ports a face forwards: the words of `-t`, `-u`, `-T` and `-U`.
//!
//! Cost: a bit for each port of a set, and an entry for each forwarded port.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// One value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Spec {
    /// No port.
    None,
    /// The ports that somebody listens at on the other side.
    Auto,
    /// All ports that are not ephemeral, except some.
    All(Place, Vec<RangeInclusive<u16>>),
    /// These ports, and their targets.
    Listed(Place, Vec<(u16, u16)>),
}

/// Where a port is bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// `None` stands for all addresses.
    pub(super) address: Option<IpAddr>,
    /// `None` stands for all interfaces.
    pub(super) interface: Option<String>,
}

/// All values of an option together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ports {
    /// No port.
    None,
    /// The ports that somebody listens at on the other side.
    #[default]
    Auto,
    Listed {
        /// Targets by place and port.
        ports: BTreeMap<(Place, u16), u16>,
        /// Ports of "all" that cannot be bound are no failure.
        may_fail: bool,
    },
}

/// Why the values of an option make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PortsError {
    #[error("`{0}` is no address: expected one such as 192.0.2.1 or 2001:db8::1 before the `/`")]
    Address(String),
    #[error("`{0}` is no name of an interface: expected at most 15 bytes after the `%`")]
    Interface(String),
    #[error("`{0}` is no port: expected 1 to 65535, or a range such as 8000-8080")]
    Port(String),
    #[error("`{0}`: the range before the `:` and that behind it have different lengths")]
    Lengths(String),
    #[error(
        "`{0}` excludes target ports, which have no meaning: expected `~PORT` or `~FIRST-LAST`"
    )]
    Excluded(String),
    #[error("no ports: expected none, auto, all, or a list such as 22,80:8080,9000-9010,~9005")]
    Empty,
    #[error("`{0}` cannot stand beside other ports")]
    Alone(&'static str),
}

impl std::str::FromStr for Spec {
    type Err = PortsError;

    fn from_str(text: &str) -> Result<Self, PortsError> {
        match text {
            "none" => return Ok(Self::None),
            "auto" => return Ok(Self::Auto),
            "all" => return Ok(Self::All(Place::default(), Vec::new())),
            _ => {}
        }
        let (place, list) = match text.split_once('/') {
            Some((place, list)) => (place_of(place)?, list),
            None => (Place::default(), text),
        };
        if list == "all" {
            return Ok(Self::All(place, Vec::new()));
        }
        let (mut excluded, mut listed) = (Vec::new(), Vec::new());
        for part in list.split(',') {
            match part.strip_prefix('~') {
                Some(part) if part.contains(':') => {
                    return Err(PortsError::Excluded(part.to_owned()));
                }
                Some(part) => excluded.push(range(part)?),
                None => listed.push(mapped(part)?),
            }
        }
        if listed.is_empty() {
            return Ok(Self::All(place, excluded));
        }
        let ports = listed.into_iter().flat_map(|(from, to)| from.zip(to));
        let ports = ports.filter(|(port, _)| !excluded.iter().any(|range| range.contains(port)));
        let ports: Vec<_> = ports.collect();
        if ports.is_empty() { Err(PortsError::Empty) } else { Ok(Self::Listed(place, ports)) }
    }
}

fn place_of(text: &str) -> Result<Place, PortsError> {
    let (address, interface) = match text.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (text, None),
    };
    if let Some(name) = interface
        && (name.is_empty() || name.len() > 15)
    {
        return Err(PortsError::Interface(name.to_owned()));
    }
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match bare.unwrap_or(address) {
        "" if interface.is_some() => None,
        bare => {
            let parsed: Result<IpAddr, _> = bare.parse();
            Some(parsed.map_err(|_| PortsError::Address(address.to_owned()))?)
        }
    };
    Ok(Place { address, interface: interface.map(str::to_owned) })
}

fn port(text: &str) -> Result<u16, PortsError> {
    // `parse` would take a sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse::<u16>().ok().filter(|&port| is_number && port != 0);
    parsed.ok_or_else(|| PortsError::Port(text.to_owned()))
}

fn range(text: &str) -> Result<RangeInclusive<u16>, PortsError> {
    if text.is_empty() {
        return Err(PortsError::Empty);
    }
    let Some((first, last)) = text.split_once('-') else {
        let only = port(text)?;
        return Ok(only..=only);
    };
    let range = port(first)?..=port(last)?;
    if range.is_empty() { Err(PortsError::Port(text.to_owned())) } else { Ok(range) }
}

/// A range of ports and that of their targets.
fn mapped(text: &str) -> Result<(RangeInclusive<u16>, RangeInclusive<u16>), PortsError> {
    let Some((from, to)) = text.split_once(':') else {
        let both = range(text)?;
        return Ok((both.clone(), both));
    };
    let (from, to) = (range(from)?, range(to)?);
    if from.len() == to.len() { Ok((from, to)) } else { Err(PortsError::Lengths(text.to_owned())) }
}

impl Ports {
    /// What the values of an option say together; the default where there is none is `absent`. A
    /// later target of the same port replaces an earlier one. All ports are those that the host
    /// does not give to `clients`.
    ///
    /// # Errors
    /// `none`, `auto` and `all` stand beside others.
    pub(super) fn of(
        specs: &[Spec],
        absent: Self,
        clients: &RangeInclusive<u16>,
    ) -> Result<Self, PortsError> {
        let alone = |word| if specs.len() > 1 { Err(PortsError::Alone(word)) } else { Ok(()) };
        let mut ports = BTreeMap::new();
        let mut may_fail = false;
        for spec in specs {
            match spec {
                Spec::None => return alone("none").map(|()| Self::None),
                Spec::Auto => return alone("auto").map(|()| Self::Auto),
                Spec::All(place, excluded) => {
                    may_fail = true;
                    let is_left_out = |port: &u16| {
                        clients.contains(port) || excluded.iter().any(|range| range.contains(port))
                    };
                    let all = (1..=u16::MAX).filter(|port| !is_left_out(port));
                    ports.extend(all.map(|port| ((place.clone(), port), port)));
                }
                Spec::Listed(place, listed) => {
                    let listed = listed.iter();
                    ports.extend(listed.map(|&(port, target)| ((place.clone(), port), target)));
                }
            }
        }
        Ok(if specs.is_empty() { absent } else { Self::Listed { ports, may_fail } })
    }
}

/// A set of ports.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PortSet(Box<[u64; 1024]>);

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([0; 1024]))
    }
}

impl PortSet {
    pub(super) fn of(ports: &[u16]) -> Self {
        let mut set = Self::default();
        ports.iter().for_each(|&port| set.insert(port));
        set
    }

    pub(super) fn insert(&mut self, port: u16) {
        self.0[usize::from(port) / 64] |= 1 << (port % 64);
    }

    pub(super) fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port) / 64] & 1 << (port % 64) != 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        (0..=u16::MAX).filter(|&port| self.contains(port))
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> Vec<(u16, u16)> {
        match text.parse() {
            Ok(Spec::Listed(_, ports)) => ports,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn place(text: &str) -> Place {
        match text.parse() {
            Ok(Spec::Listed(place, _)) => place,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_examples_of_the_manual_mean_what_it_says() {
        assert_eq!(listed("22"), [(22, 22)]);
        assert_eq!(listed("22:23"), [(22, 23)]);
        assert_eq!(listed("22,25"), [(22, 22), (25, 25)]);
        assert_eq!(listed("22-80").len(), 59);
        assert_eq!(listed("22-80:32-90")[58], (80, 90));
        let except = listed("2000-5000,~3000-3010");
        assert_eq!(except.len(), 3001 - 11);
        assert!(!except.contains(&(3005, 3005)));
        assert_eq!(listed("192.0.2.1/20-30,~25").len(), 10);
        let all = "~20000-20010".parse::<Spec>();
        assert_eq!(all, Ok(Spec::All(Place::default(), vec![20000..=20010])));
        assert_eq!(listed("18090-18090:80-80"), [(18090, 80)]);
    }

    #[test]
    fn an_address_and_an_interface_may_stand_in_front() {
        let address = "192.0.2.1".parse().ok();
        assert_eq!(place("192.0.2.1/22"), Place { address, interface: None });
        let interface = Some("eth0".to_owned());
        assert_eq!(place("192.0.2.1%eth0/22"), Place { address, interface: interface.clone() });
        assert_eq!(place("%eth0/22"), Place { address: None, interface });
        let address = "2001:db8::1".parse().ok();
        assert_eq!(place("[2001:db8::1]/22"), Place { address, interface: None });
        assert_eq!(place("2001:db8::1/22"), Place { address, interface: None });
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (text, error) in [
            ("", PortsError::Empty),
            ("22,", PortsError::Empty),
            ("22-24,~20-30", PortsError::Empty),
            ("http", PortsError::Port("http".to_owned())),
            ("0", PortsError::Port("0".to_owned())),
            ("+22", PortsError::Port("+22".to_owned())),
            ("65536", PortsError::Port("65536".to_owned())),
            ("30-20", PortsError::Port("30-20".to_owned())),
            ("1-2-3", PortsError::Port("2-3".to_owned())),
            ("20-30:40-41", PortsError::Lengths("20-30:40-41".to_owned())),
            ("20-30,~25:26", PortsError::Excluded("25:26".to_owned())),
            ("localhost/22", PortsError::Address("localhost".to_owned())),
            ("/22", PortsError::Address(String::new())),
            ("192.0.2.1%/22", PortsError::Interface(String::new())),
            ("%sixteen-bytes-nm/22", PortsError::Interface("sixteen-bytes-nm".to_owned())),
        ] {
            assert_eq!(text.parse::<Spec>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn words_stand_alone_and_lists_add_up() {
        let specs = |texts: &[&str]| -> Vec<Spec> {
            texts.iter().map(|text| text.parse().expect("a list")).collect()
        };
        let of = |texts: &[&str]| Ports::of(&specs(texts), Ports::Auto, &(9000..=9009));
        assert_eq!(of(&[]), Ok(Ports::Auto));
        assert_eq!(of(&["none"]), Ok(Ports::None));
        assert_eq!(of(&["80", "none"]), Err(PortsError::Alone("none")));
        let Ok(Ports::Listed { ports, may_fail: false }) = of(&["80", "81:8081", "80:8080"]) else {
            panic!("a list");
        };
        let targets: Vec<_> = ports.into_iter().map(|((_, port), to)| (port, to)).collect();
        assert_eq!(targets, [(80, 8080), (81, 8081)]);
        let Ok(Ports::Listed { ports, may_fail: true }) = of(&["~80-90"]) else { panic!("all") };
        let has = |port| ports.contains_key(&(Place::default(), port));
        assert!(has(1) && has(79) && !has(85) && has(8999) && !has(9000) && !has(9009));
        assert!(has(9010) && has(40_000) && has(65_535));
    }

    #[test]
    fn a_set_has_what_was_put_in() {
        let mut set = PortSet::default();
        for port in [1, 63, 64, 65535] {
            set.insert(port);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 63, 64, 65535]);
    }
}
