//! The filter language of `ss`: states, then an expression about addresses and ports.
//!
//! ```text
//! FILTER     = { (state | exclude) STATE } [ EXPRESSION ]
//! EXPRESSION = TERM { [and | '&' | '&&' | or | '|' | '||'] TERM }
//! TERM       = (not | '!') TERM | '(' EXPRESSION ')' | CONDITION
//! CONDITION  = (src | dst) [=] HOST | (sport | dport) COMPARISON PORT | dev [= | !=] NAME
//! HOST       = [inet: | inet6:][any | ADDRESS[/LENGTH] | NAME][:PORT]
//! ```
//!
//! `and` binds no tighter than `or`: as in `ss`, an expression goes from left to right.

use super::hosts::{self, Family, Parts};
use super::services::Services;
use super::states::States;
use ipnet::IpNet;
use neap::control::SocketReport;
use std::net::{IpAddr, SocketAddr};

/// Deepest nesting: nobody writes more, and the parser calls itself.
const DEEPEST: usize = 64;

/// What a filter asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Those of `state` and `exclude`, if there is one.
    pub(super) states: Option<States>,
    /// That of the last `inet:` or `inet6:`, which holds for the whole listing.
    pub(super) family: Option<Family>,
    pub(super) filter: Filter,
}

/// What a socket has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Everything,
    /// A first part, and others by which it is narrowed or widened, one after the other.
    Chain(Box<Self>, Vec<(Join, Self)>),
    Not(Box<Self>),
    /// An address in one of the prefixes, or any if there are none.
    Host {
        end: End,
        prefixes: Vec<IpNet>,
        port: Option<u16>,
    },
    Port {
        end: End,
        comparison: Comparison,
        port: u16,
    },
    /// The interface of this name.
    Interface(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    And,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    Greater,
    Less,
}

impl Comparison {
    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Equal,
            "!=" | "ne" | "neq" => Self::NotEqual,
            ">=" | "ge" | "geq" => Self::AtLeast,
            "<=" | "le" | "leq" => Self::AtMost,
            ">" | "gt" => Self::Greater,
            "<" | "lt" => Self::Less,
            _ => return None,
        })
    }

    fn holds(self, port: u16, wanted: u16) -> bool {
        match self {
            Self::Equal => port == wanted,
            Self::NotEqual => port != wanted,
            Self::AtLeast => port >= wanted,
            Self::AtMost => port <= wanted,
            Self::Greater => port > wanted,
            Self::Less => port < wanted,
        }
    }
}

impl Filter {
    pub(super) fn matches(&self, socket: &SocketReport) -> bool {
        let address = |end: &End| match end {
            End::Source => Some(socket.local),
            End::Destination => socket.remote,
        };
        match self {
            Self::Everything => true,
            Self::Chain(first, others) => {
                let first = first.matches(socket);
                others.iter().fold(first, |so_far, (join, part)| match join {
                    Join::And => so_far && part.matches(socket),
                    Join::Or => so_far || part.matches(socket),
                })
            }
            Self::Not(part) => !part.matches(socket),
            Self::Host { end, prefixes, port } => {
                let (ip, own) = split(address(end));
                let is_in = |prefix: &IpNet| ip.is_some_and(|ip| prefix.contains(&ip));
                (prefixes.is_empty() || prefixes.iter().any(is_in))
                    && port.is_none_or(|port| port == own)
            }
            Self::Port { end, comparison, port } => comparison.holds(split(address(end)).1, *port),
            Self::Interface(name) => socket.interface.as_ref() == Some(name),
        }
    }
}

/// Who has no peer has the port 0, as in `ss`.
fn split(address: Option<SocketAddr>) -> (Option<IpAddr>, u16) {
    (address.map(|address| address.ip().to_canonical()), address.map_or(0, |one| one.port()))
}

/// Reads a filter.
///
/// # Errors
/// A line that says which word is wrong and what is expected.
pub(super) fn parse(text: &str, services: &Services) -> Result<Asked, String> {
    let mut parser = Parser { words: words(text), next: 0, services, family: None };
    let states = parser.states()?;
    let filter = match parser.peek() {
        None => Filter::Everything,
        Some(_) => parser.expression(0)?,
    };
    match parser.peek() {
        None => Ok(Asked { states, family: parser.family, filter }),
        Some(word) => Err(format!("filter: {word:?} where the filter could end")),
    }
}

/// Words; parentheses and operators are words without spaces around them, too.
fn words(text: &str) -> Vec<String> {
    let kind = |c: char| match c {
        '(' | ')' => 1,
        '=' | '!' | '<' | '>' => 2,
        '&' => 3,
        '|' => 4,
        _ => 0,
    };
    let mut words: Vec<String> = Vec::new();
    for part in text.split_whitespace() {
        let mut last = None;
        for c in part.chars() {
            match words.last_mut() {
                Some(word) if last == Some(kind(c)) && kind(c) != 1 => word.push(c),
                _ => words.push(c.to_string()),
            }
            last = Some(kind(c));
        }
    }
    words
}

/// Why a word is no condition.
fn unknown(word: &str) -> String {
    let why = match word {
        "fwmark" => "sockets of a stack have no mark; its packets get theirs outside",
        "cgroup" => "a stack is in one process: choose it with --pid",
        "autobound" => "a stack does not keep who has chosen a port",
        _ => {
            return format!(
                "filter: {word:?} where src, dst, sport, dport, dev, not or '(' is expected"
            );
        }
    };
    format!("filter: {word}: {why}")
}

struct Parser<'a> {
    words: Vec<String>,
    next: usize,
    services: &'a Services,
    family: Option<Family>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.next).map(String::as_str)
    }

    /// Goes on if the next word is one of these.
    fn take(&mut self, wanted: &[&str]) -> bool {
        let is_there = self.peek().is_some_and(|word| wanted.contains(&word));
        self.next += usize::from(is_there);
        is_there
    }

    fn word(&mut self, expected: &str) -> Result<String, String> {
        let word = self.words.get(self.next).cloned();
        self.next += 1;
        word.ok_or_else(|| format!("filter: it ends where {expected} is expected"))
    }

    fn states(&mut self) -> Result<Option<States>, String> {
        let mut chosen = None;
        loop {
            let adds = if self.take(&["state"]) {
                true
            } else if self.take(&["exclude", "excl"]) {
                false
            } else {
                return Ok(chosen);
            };
            let word = self.word("a state")?;
            let states = States::of_word(&word.to_ascii_lowercase()).ok_or_else(|| {
                format!("filter: {word:?} is no state; there are {}", States::words())
            })?;
            chosen = Some(if adds {
                chosen.unwrap_or(States::NONE).and(states)
            } else {
                chosen.unwrap_or(States::ALL).without(states)
            });
        }
    }

    fn expression(&mut self, depth: usize) -> Result<Filter, String> {
        if depth > DEEPEST {
            return Err(format!("filter: more than {DEEPEST} parentheses in each other"));
        }
        let first = self.term(depth)?;
        let mut others = Vec::new();
        loop {
            let join = if self.take(&["or", "|", "||"]) {
                Join::Or
            } else if self.take(&["and", "&", "&&"]) || self.peek().is_some_and(|word| word != ")")
            {
                Join::And
            } else {
                break;
            };
            others.push((join, self.term(depth)?));
        }
        Ok(if others.is_empty() { first } else { Filter::Chain(Box::new(first), others) })
    }

    fn term(&mut self, depth: usize) -> Result<Filter, String> {
        if self.take(&["not", "!"]) {
            if depth > DEEPEST {
                return Err(format!("filter: more than {DEEPEST} negations in each other"));
            }
            return Ok(Filter::Not(Box::new(self.term(depth + 1)?)));
        }
        if self.take(&["("]) {
            let inner = self.expression(depth + 1)?;
            let word = self.word("')'")?;
            if word != ")" {
                return Err(format!("filter: {word:?} where ')' is expected"));
            }
            return Ok(inner);
        }
        self.condition()
    }

    fn condition(&mut self) -> Result<Filter, String> {
        let word = self.word("src, dst, sport, dport or dev")?;
        let end = match word.as_str() {
            "src" | "sport" => End::Source,
            "dst" | "dport" => End::Destination,
            "dev" => return self.interface(),
            _ => return Err(unknown(&word)),
        };
        if word.ends_with("port") {
            let comparison = self.peek().and_then(Comparison::of_word);
            self.next += usize::from(comparison.is_some());
            let port = self.word("a port such as :80")?;
            let comparison = comparison.unwrap_or(Comparison::Equal);
            return Ok(Filter::Port { end, comparison, port: self.port(&port)? });
        }
        let comparison = self.peek().and_then(Comparison::of_word);
        self.next += usize::from(comparison.is_some());
        let host = self.word("an address such as 10.0.0.0/8 or 192.0.2.1:80")?;
        let host = self.host(end, &host)?;
        match comparison {
            None | Some(Comparison::Equal) => Ok(host),
            Some(Comparison::NotEqual) => Ok(Filter::Not(Box::new(host))),
            Some(_) => Err("filter: addresses are compared with = and != only".to_owned()),
        }
    }

    /// The name of an interface, behind `dev`.
    fn interface(&mut self) -> Result<Filter, String> {
        let comparison = self.peek().and_then(Comparison::of_word);
        self.next += usize::from(comparison.is_some());
        let name = self.word("the name of an interface")?;
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "filter: dev {name}: expected the name of an interface, such as tap0"
            ));
        }
        match comparison {
            None | Some(Comparison::Equal) => Ok(Filter::Interface(name)),
            Some(Comparison::NotEqual) => Ok(Filter::Not(Box::new(Filter::Interface(name)))),
            Some(_) => Err("filter: interfaces are compared with = and != only".to_owned()),
        }
    }

    /// A word without its family, which is kept.
    fn without_family<'w>(&mut self, word: &'w str) -> &'w str {
        let (family, rest) = Family::strip(word);
        self.family = family.or(self.family);
        rest
    }

    fn port(&mut self, word: &str) -> Result<u16, String> {
        let text = self.without_family(word);
        let port = self.services.port(text.strip_prefix(':').unwrap_or(text));
        port.ok_or_else(|| format!("filter: {word:?} is no port, such as :80 or :http"))
    }

    fn host(&mut self, end: End, word: &str) -> Result<Filter, String> {
        let text = self.without_family(word);
        // One for this word only: that of the listing may be of another condition.
        let (family, _) = Family::strip(word);
        let is_any = |port: &str| port.is_empty() || port == "*";
        let is_port = |port: &str| is_any(port) || self.services.port(port).is_some();
        let wrong = || {
            format!(
                "filter: {word:?} is no address and no known name, such as 10.0.0.0/8, \
                 192.0.2.1:80, [::1]:80 or localhost"
            )
        };
        let parts = Parts::of(text, is_port).ok_or_else(wrong)?;
        let port = match parts.port {
            Some(port) if !is_any(port) => Some(self.port(port)?),
            _ => None,
        };
        let prefixes = parts.prefixes(family, hosts::look_up).ok_or_else(wrong)?;
        Ok(Filter::Host { end, prefixes, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(local: &str, remote: &str) -> SocketReport {
        let text = format!(
            r#"{{"netid":"tcp","state":"ESTAB","recv_q":0,"send_q":0,"local":"{local}",
            "remote":"{remote}"}}"#
        );
        serde_json::from_str(&text).expect("a report")
    }

    #[test]
    fn interfaces_are_compared_by_name() {
        let takes = |filter: &str, interface: Option<&str>| {
            let mut socket = socket("10.0.0.1:80", "192.0.2.7:40000");
            socket.interface = interface.map(str::to_owned);
            let asked = parse(filter, &Services::default()).expect(filter);
            asked.filter.matches(&socket)
        };
        for filter in ["dev tap0", "dev = tap0", "dev == tap0 and sport = :80", "not dev != tap0"] {
            assert!(takes(filter, Some("tap0")), "{filter}");
            assert!(!takes(filter, Some("tap1")) && !takes(filter, None), "{filter}");
        }
        assert!(takes("dev != tap0", None) && takes("dev ne tap0", Some("tap1")));
    }

    fn takes(filter: &str, local: &str, remote: &str) -> bool {
        let asked = parse(filter, &Services::default()).expect(filter);
        asked.filter.matches(&socket(local, remote))
    }

    #[test]
    fn addresses_and_ports_are_compared() {
        let (local, remote) = ("10.0.0.1:80", "192.0.2.7:40000");
        for fits in [
            "",
            "sport = :80",
            "sport :80",
            "sport eq 80",
            "sport=:80",
            "dport gt 1024 and dst 192.0.2.0/24",
            "dport > :1024 dst 192.0.2.0/24",
            "src 10.0.0.1:80",
            "src :80",
            "src = 10.0.0.1",
            "dst != 10.0.0.1",
            "not dst 10.0.0.0/8",
            "!dst 10.0.0.0/8",
            "( sport = :81 or dport = :40000 )",
            "(sport=:81|dport>=:40000)",
            "sport = :81 and sport = :82 or sport = :80",
            "dport le 40000 and dport ne 5 and dport lt 40001 and dport ge 40000",
            "dst *:40000",
            // From left to right, with equal weight.
            "sport = :80 or sport = :81 dport = :40000",
            "sport = :81 and sport = :82 or sport = :80 and dport = :40000",
            "src any dst all:40000",
            "dst 192.0/16 src 10/8",
        ] {
            assert!(takes(fits, local, remote), "{fits}");
        }
        for other in [
            "sport = :81",
            "dst 10.0.0.0/8",
            "not sport = :80",
            "sport = :80 and ( sport = :81 or dst 10.0.0.0/8 )",
            "src 10.0.0.1:81",
            "dst ::/0",
            "sport = :80 or dport = :40000 and dst 10.0.0.0/8",
            "sport = :80 or dport = :40000 dst 10.0.0.0/8",
            "sport = :80 | sport = :81 & sport = :82",
            "dst 192.0",
        ] {
            assert!(!takes(other, local, remote), "{other}");
        }
        let (local, remote) = ("[2001:db8::1]:80", "[2001:db8::2]:9");
        assert!(takes("src [2001:db8::1]:80 dst 2001:db8::/32", local, remote));
        assert!(takes("dst 2001:db8::2", local, remote));
        assert!(takes("dst [2001:db8::]/32", local, remote));
    }

    #[test]
    fn states_come_first() {
        let parse = |text| parse(text, &Services::default()).expect("a filter");
        let states = parse("state established").states;
        assert!(states.is_some_and(|states| states.is_single() && states.contains("ESTAB")));
        let states = parse("state established state listening sport = :1").states;
        let states = states.expect("two states");
        assert!(states.contains("LISTEN") && !states.is_single());
        let states = parse("exclude listening").states;
        assert!(states.is_some_and(|s| s.contains("UNCONN") && !s.contains("LISTEN")));
        assert_eq!(parse("sport = :1").states, None);
    }

    #[test]
    fn the_last_family_is_that_of_the_listing() {
        let family = |text| parse(text, &Services::default()).expect("a filter").family;
        assert_eq!(family("dst 10.0.0.1"), None);
        assert_eq!(family("dst inet:any"), Some(Family::V4));
        assert_eq!(family("dst inet:10/8 or dst inet6:[::1]"), Some(Family::V6));
        assert_eq!(family("sport = inet:80"), Some(Family::V4));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let nested = "( ".repeat(1000);
        let denied = "! ".repeat(1000);
        for (text, why) in [
            ("state", "a state"),
            ("state open", "\"open\" is no state"),
            ("sport", "a port such as"),
            ("sport = :70000", "\":70000\" is no port"),
            ("dst 10.0.0.300", "\"10.0.0.300\" is no address"),
            ("dst > 10.0.0.1", "= and !="),
            ("( sport = :1", "')'"),
            ("sport = :1 )", "where the filter could end"),
            ("color = red", "\"color\" where src"),
            ("sport = :1 and", "src, dst, sport, dport or dev"),
            ("dev", "the name of an interface"),
            ("dev > tap0", "= and !="),
            ("dev = 2", "such as tap0"),
            ("fwmark = 0x1/0x3", "have no mark"),
            ("sport = :1 cgroup /user.slice", "--pid"),
            ("autobound", "who has chosen a port"),
            ("dst inet6:10.0.0.1", "\"inet6:10.0.0.1\" is no address"),
            ("dst unix:x", "\"x\" is no port"),
            (&nested, "parentheses"),
            (&denied, "negations"),
        ] {
            let error = parse(text, &Services::default()).expect_err(text);
            assert!(error.contains(why), "{error} does not say {why}");
        }
    }
}
