//! The filter language of `ss`: states, then an expression about addresses and ports.
//!
//! ```text
//! FILTER     = { (state | exclude) STATE } [ EXPRESSION ]
//! EXPRESSION = TERM { (or | '|' | '||') TERM }
//! TERM       = FACTOR { [and | '&' | '&&'] FACTOR }
//! FACTOR     = (not | '!') FACTOR | '(' EXPRESSION ')' | CONDITION
//! CONDITION  = (src | dst) [=] HOST | (sport | dport) COMPARISON PORT
//! HOST       = [ADDRESS[/LENGTH]][:PORT]
//! ```

use super::services::Services;
use super::states::States;
use ipnet::IpNet;
use neap::control::SocketReport;
use std::net::{IpAddr, SocketAddr};

/// Deepest nesting: nobody writes more, and the parser calls itself.
const DEEPEST: usize = 64;

/// What a socket has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Everything,
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Host { end: End, prefix: Option<IpNet>, port: Option<u16> },
    Port { end: End, comparison: Comparison, port: u16 },
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
            Self::All(parts) => parts.iter().all(|part| part.matches(socket)),
            Self::Any(parts) => parts.iter().any(|part| part.matches(socket)),
            Self::Not(part) => !part.matches(socket),
            Self::Host { end, prefix, port } => {
                let (ip, own) = split(address(end));
                prefix.is_none_or(|prefix| ip.is_some_and(|ip| prefix.contains(&ip)))
                    && port.is_none_or(|port| port == own)
            }
            Self::Port { end, comparison, port } => comparison.holds(split(address(end)).1, *port),
        }
    }
}

/// Who has no peer has the port 0, as in `ss`.
fn split(address: Option<SocketAddr>) -> (Option<IpAddr>, u16) {
    (address.map(|address| address.ip().to_canonical()), address.map_or(0, |one| one.port()))
}

/// Reads a filter: the states that it asks for, if any, and the expression.
///
/// # Errors
/// A line that says which word is wrong and what is expected.
pub(super) fn parse(text: &str, services: &Services) -> Result<(Option<States>, Filter), String> {
    let mut parser = Parser { words: words(text), next: 0, services };
    let states = parser.states()?;
    let filter = match parser.peek() {
        None => Filter::Everything,
        Some(_) => parser.expression(0)?,
    };
    match parser.peek() {
        None => Ok((states, filter)),
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

struct Parser<'a> {
    words: Vec<String>,
    next: usize,
    services: &'a Services,
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
        let mut parts = vec![self.term(depth)?];
        while self.take(&["or", "|", "||"]) {
            parts.push(self.term(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::Any(parts) })
    }

    fn term(&mut self, depth: usize) -> Result<Filter, String> {
        let mut parts = vec![self.factor(depth)?];
        loop {
            let is_and = self.take(&["and", "&", "&&"]);
            let ends = self.peek().is_none_or(|word| [")", "or", "|", "||"].contains(&word));
            if ends && !is_and {
                break;
            }
            parts.push(self.factor(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Filter::All(parts) })
    }

    fn factor(&mut self, depth: usize) -> Result<Filter, String> {
        if self.take(&["not", "!"]) {
            if depth > DEEPEST {
                return Err(format!("filter: more than {DEEPEST} negations in each other"));
            }
            return Ok(Filter::Not(Box::new(self.factor(depth + 1)?)));
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
        let word = self.word("src, dst, sport or dport")?;
        let end = match word.as_str() {
            "src" | "sport" => End::Source,
            "dst" | "dport" => End::Destination,
            _ => {
                return Err(format!(
                    "filter: {word:?} where src, dst, sport, dport, not or '(' is expected"
                ));
            }
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

    fn port(&self, text: &str) -> Result<u16, String> {
        let number = text.strip_prefix(':').unwrap_or(text);
        let port = self.services.port(number);
        port.ok_or_else(|| format!("filter: {text:?} is no port, such as :80 or :http"))
    }

    fn host(&self, end: End, text: &str) -> Result<Filter, String> {
        let wrong = || {
            format!("filter: {text:?} is no address, such as 10.0.0.0/8, 192.0.2.1:80 or [::1]:80")
        };
        let of = |text: &str| -> Option<Option<IpNet>> {
            let text = text.strip_prefix('[').unwrap_or(text);
            if text.is_empty() || text == "*" {
                return Some(None);
            }
            // `[2001:db8::]/32` keeps its bracket before the length.
            let text = text.replace(']', "");
            let one = || text.parse::<IpAddr>().ok().map(IpNet::from);
            text.parse().ok().or_else(one).map(Some)
        };
        // An IPv6 address without brackets has no port.
        let is_bare_v6 = !text.starts_with('[') && text.matches(':').count() > 1;
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_bare_v6 && !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            None | Some("" | "*") => None,
            Some(port) => Some(self.port(port)?),
        };
        Ok(Filter::Host { end, prefix: of(host).ok_or_else(wrong)?, port })
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

    fn takes(filter: &str, local: &str, remote: &str) -> bool {
        let (_, filter) = parse(filter, &Services::default()).expect(filter);
        filter.matches(&socket(local, remote))
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
        let (states, _) = parse("state established");
        assert!(states.is_some_and(|states| states.is_single() && states.contains("ESTAB")));
        let (states, _) = parse("state established state listening sport = :1");
        let states = states.expect("two states");
        assert!(states.contains("LISTEN") && !states.is_single());
        let (states, _) = parse("exclude listening");
        assert!(states.is_some_and(|s| s.contains("UNCONN") && !s.contains("LISTEN")));
        assert_eq!(parse("sport = :1").0, None);
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
            ("sport = :1 and", "src, dst, sport or dport"),
            (&nested, "parentheses"),
            (&denied, "negations"),
        ] {
            let error = parse(text, &Services::default()).expect_err(text);
            assert!(error.contains(why), "{error} does not say {why}");
        }
    }
}
