//! Which counters `neap nstat` prints: patterns of their names, as iproute2's `nstat` takes them.

use std::str::FromStr;

/// A pattern of a shell (fnmatch(3)), in which letters have no case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `*`: any bytes, or none.
    Any,
    /// One byte of these.
    One(Set),
}

/// Ranges of bytes, without the case of letters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Set {
    ranges: Vec<(u8, u8)>,
    /// What is not in the ranges is meant.
    is_inverted: bool,
}

impl Set {
    fn has(&self, byte: u8) -> bool {
        let is_in = |byte: u8| self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte));
        (is_in(byte.to_ascii_lowercase()) || is_in(byte.to_ascii_uppercase())) != self.is_inverted
    }

    /// The set behind a `[`, and how many bytes it takes; nothing if no `]` ends it.
    fn read(text: &[u8]) -> Option<(Self, usize)> {
        let is_inverted = matches!(text.first(), Some(b'!' | b'^'));
        let begin = usize::from(is_inverted);
        // The first byte is one of the set even if it is `]`.
        let end = begin + 1 + text.get(begin + 1..)?.iter().position(|&byte| byte == b']')?;
        let mut inside = &text[begin..end];
        let mut ranges = Vec::new();
        while let Some((&low, rest)) = inside.split_first() {
            match rest {
                [b'-', high, rest @ ..] => {
                    ranges.push((low, *high));
                    inside = rest;
                }
                _ => {
                    ranges.push((low, low));
                    inside = rest;
                }
            }
        }
        Some((Self { ranges, is_inverted }, end + 1))
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let exactly = |byte| Part::One(Set { ranges: vec![(byte, byte)], is_inverted: false });
        let mut parts = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            parts.push(match (byte, Set::read(behind), behind.split_first()) {
                (b'*', ..) => Part::Any,
                (b'?', ..) => Part::One(Set { ranges: Vec::new(), is_inverted: true }),
                (b'[', Some((set, taken)), _) => {
                    rest = &behind[taken..];
                    Part::One(set)
                }
                (b'\\', _, Some((&escaped, behind))) => {
                    rest = behind;
                    exactly(escaped)
                }
                _ => exactly(byte),
            });
        }
        Self(parts)
    }

    /// Whether a name is one of those that are meant.
    ///
    /// Cost: at most the product of both lengths, as only the last `*` is tried again.
    pub(super) fn matches(&self, name: &str) -> bool {
        let (parts, name) = (&self.0, name.as_bytes());
        let (mut part, mut at) = (0, 0);
        // The part behind the last `*`, and where what that stands for ends.
        let mut again = None;
        loop {
            match (parts.get(part), name.get(at)) {
                (None, None) => return true,
                (Some(Part::Any), _) => {
                    part += 1;
                    again = Some((part, at));
                    continue;
                }
                (Some(Part::One(set)), Some(&byte)) if set.has(byte) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                _ => {}
            }
            match again {
                Some((behind, end)) if end < name.len() => {
                    (part, at) = (behind, end + 1);
                    again = Some((part, at));
                }
                _ => return false,
            }
        }
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
    type Err = &'static str;

    /// No name of a counter begins with a digit.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(Self::Pattern(Pattern::new(text)));
        }
        let seconds = text.parse().ok().filter(|&seconds| seconds > 0);
        let expected =
            "expected whole seconds, at least 1, or the name of a counter such as 'Tcp*'";
        seconds.map(Self::Interval).ok_or(expected)
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
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*Segs", "TcpRetransSegs", true),
            ("*s*Segs", "TcpRetransSegs", true),
            ("T*s", "TcpInSegments", true),
            ("T*x", "TcpInSegments", false),
            ("Tcp??Segs", "TcpInSegs", true),
            ("Tcp??Segs", "TcpOutSegs", false),
            ("drop.[a-l]*", "drop.device", true),
            ("drop.[a-l]*", "drop.otherhost", false),
            ("drop.[!a-l]*", "drop.otherhost", true),
            ("drop.[^A-L]*", "drop.device", false),
            ("a[]]b", "a]b", true),
            ("a[b", "a[b", true),
            ("a[-z]", "a-", true),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            ("*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), matches, "{pattern} of {name}");
        }
    }

    #[test]
    fn a_word_that_begins_with_a_digit_is_the_interval() {
        assert_eq!("5".parse(), Ok(Word::Interval(5)));
        assert_eq!("Tcp*".parse(), Ok(Word::Pattern(Pattern::new("Tcp*"))));
        for wrong in ["0", "1.5", "5s", "4294967296"] {
            assert!(wrong.parse::<Word>().is_err(), "{wrong}");
        }
    }
}
