//! Which counters `neap nstat` prints: patterns of their names, as iproute2's `nstat` takes them.

use glob::MatchOptions;
use std::str::FromStr;

/// Letters have no case, and no byte is special in a name.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: false,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// A pattern of a shell: `*`, `?`, `[abc]`, `[!abc]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(glob::Pattern);

impl Pattern {
    /// Whether a name is one of those that are meant.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.matches_with(name, OPTIONS)
    }
}

/// What may stand behind the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Seconds between two reports.
    Interval(u32),
    /// Names of counters.
    Pattern(Pattern),
}

impl FromStr for Word {
    type Err = String;

    /// No name of a counter begins with a digit.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            let pattern = glob::Pattern::new(text).map_err(|error| error.to_string())?;
            return Ok(Self::Pattern(Pattern(pattern)));
        }
        let seconds = text.parse().ok().filter(|&seconds| seconds > 0);
        let expected =
            "expected whole seconds, at least 1, or the name of a counter such as 'Tcp*'";
        seconds.map(Self::Interval).ok_or_else(|| expected.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell_without_case() {
        for (pattern, name, matches) in [
            ("TcpInSegs", "TcpInSegs", true),
            ("tcpinsegs", "TcpInSegs", true),
            ("TcpInSeg", "TcpInSegs", false),
            ("Tcp*", "TcpInSegs", true),
            ("Tcp*", "IcmpInMsgs", false),
            ("*", ".", true),
            ("*Segs", "TcpRetransSegs", true),
            ("Tcp??Segs", "TcpInSegs", true),
            ("Tcp??Segs", "TcpOutSegs", false),
            ("drop.[a-l]*", "drop.device", true),
            ("drop.[a-l]*", "drop.otherhost", false),
            ("drop.[!a-l]*", "drop.otherhost", true),
        ] {
            let Ok(Word::Pattern(word)) = pattern.parse() else { panic!("{pattern}") };
            assert_eq!(word.matches(name), matches, "{pattern} of {name}");
        }
    }

    #[test]
    fn a_word_that_begins_with_a_digit_is_the_interval() {
        assert_eq!("5".parse(), Ok(Word::Interval(5)));
        for wrong in ["0", "1.5", "5s", "4294967296", "Tcp[a"] {
            assert!(wrong.parse::<Word>().is_err(), "{wrong}");
        }
    }
}
