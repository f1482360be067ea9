//! States of sockets, by the words of `ss`.

/// Words of a filter and the names that are printed.
const NAMES: [(&str, &str); 11] = [
    ("established", "ESTAB"),
    ("syn-sent", "SYN-SENT"),
    ("syn-recv", "SYN-RECV"),
    ("fin-wait-1", "FIN-WAIT-1"),
    ("fin-wait-2", "FIN-WAIT-2"),
    ("time-wait", "TIME-WAIT"),
    ("closed", "UNCONN"),
    ("close-wait", "CLOSE-WAIT"),
    ("last-ack", "LAST-ACK"),
    ("listening", "LISTEN"),
    ("closing", "CLOSING"),
];

const ESTABLISHED: u16 = 1;
const SYN_SENT: u16 = 1 << 1;
const SYN_RECV: u16 = 1 << 2;
const TIME_WAIT: u16 = 1 << 5;
const CLOSED: u16 = 1 << 6;
const LISTEN: u16 = 1 << 9;
const EVERY: u16 = (1 << 11) - 1;

/// A set of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct States(u16);

impl States {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(EVERY);
    /// What `ss -l` shows.
    pub(super) const LISTENING: Self = Self(LISTEN | CLOSED);
    /// What `ss` shows by itself.
    pub(super) const CONNECTED: Self = Self(EVERY & !(LISTEN | CLOSED | TIME_WAIT | SYN_RECV));

    /// The states of a word.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        let set = match word {
            "all" => EVERY,
            "connected" => EVERY & !(LISTEN | CLOSED),
            "synchronized" => EVERY & !(LISTEN | CLOSED | SYN_SENT),
            "bucket" => SYN_RECV | TIME_WAIT,
            "big" => EVERY & !(SYN_RECV | TIME_WAIT),
            // As ss writes the name, or as it prints it.
            "estab" => ESTABLISHED,
            "unconnected" => CLOSED,
            "listen" => LISTEN,
            // Other names that ss knows.
            "close" => CLOSED,
            "syn-rcv" => SYN_RECV,
            _ => 1 << NAMES.iter().position(|(name, _)| *name == word)?,
        };
        Some(Self(set))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a printed name is one of them.
    pub(super) fn contains(self, printed: &str) -> bool {
        let index = NAMES.iter().position(|(_, name)| *name == printed);
        index.is_some_and(|index| self.0 & 1 << index != 0)
    }

    /// Whether it is one state, which every line would repeat.
    pub(super) fn is_single(self) -> bool {
        self.0.is_power_of_two()
    }

    /// All words, for a message.
    pub(super) fn words() -> String {
        let words: Vec<_> = NAMES.iter().map(|(word, _)| *word).collect();
        format!("{}, all, connected, synchronized, bucket, big", words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_all_the_names_that_ss_knows() {
        for (one, other) in
            [("close", "closed"), ("syn-rcv", "syn-recv"), ("unconnected", "closed")]
        {
            assert!(States::of_word(one).is_some(), "{one}");
            assert_eq!(States::of_word(one), States::of_word(other));
        }
        assert_eq!(States::of_word("open"), None);
    }
}
