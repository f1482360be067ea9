//! What the events of the poller are about.

/// Most published ports.
pub(crate) const MOST_PUBLISHED: usize = 1 << 16;

const NEW: u64 = u64::MAX;
const GUESTS: u64 = u64::MAX - 1;
const DHCP: u64 = u64::MAX - 2;
const DHCP6: u64 = u64::MAX - 3;
/// Tokens of published ports begin here.
const PUBLISHED: u64 = DHCP6 - MOST_PUBLISHED as u64;
/// Tokens of mappings have this bit, those of flows do not.
const MAPPING: u64 = 1 << 63;
/// Tokens of crossings have this bit and not that of mappings.
const CROSSING: u64 = 1 << 62;

/// What an event is about. A poller holds it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Connections that guests want.
    New,
    /// Datagrams of guests.
    Guests,
    /// DHCP messages of guests.
    Dhcp,
    /// DHCPv6 messages of guests.
    Dhcp6,
    /// Connections to a published port.
    Published(usize),
    Mapping(Slot),
    /// Datagrams between namespaces.
    Crossing(Slot),
    Flow(Slot),
}

/// A place in a table, and a number that tells apart those who have had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) key: usize,
    pub(crate) generation: Generation,
}

/// A number of 30 bits that few others have had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// Goes on to the next one, and returns it.
    pub(crate) fn advance(&mut self) -> Self {
        // One bit less than there are: no mapping has the token of a published port.
        self.0 = (self.0 + 1) & (u32::MAX >> 2);
        *self
    }
}

impl Slot {
    fn to_bits(self) -> u64 {
        u64::from(self.generation.0) << 32 | self.key as u64
    }

    fn from_bits(bits: u64) -> Self {
        let generation = Generation((bits >> 32) as u32);
        Self { key: (bits & u64::from(u32::MAX)) as usize, generation }
    }
}

impl Token {
    pub(crate) fn to_bits(self) -> u64 {
        match self {
            Self::New => NEW,
            Self::Guests => GUESTS,
            Self::Dhcp => DHCP,
            Self::Dhcp6 => DHCP6,
            Self::Published(index) => PUBLISHED + index as u64,
            Self::Mapping(slot) => MAPPING | slot.to_bits(),
            Self::Crossing(slot) => CROSSING | slot.to_bits(),
            Self::Flow(slot) => slot.to_bits(),
        }
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        match bits {
            NEW => Self::New,
            GUESTS => Self::Guests,
            DHCP => Self::Dhcp,
            DHCP6 => Self::Dhcp6,
            PUBLISHED.. => Self::Published((bits - PUBLISHED) as usize),
            MAPPING.. => Self::Mapping(Slot::from_bits(bits & !MAPPING)),
            CROSSING.. => Self::Crossing(Slot::from_bits(bits & !CROSSING)),
            _ => Self::Flow(Slot::from_bits(bits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let mut last = Generation(u32::MAX >> 2);
        for generation in [last, last.advance(), last.advance()] {
            for key in [0, 7, u32::MAX as usize] {
                let slot = Slot { key, generation };
                for token in [Token::Flow(slot), Token::Mapping(slot), Token::Crossing(slot)] {
                    assert_eq!(Token::from_bits(token.to_bits()), token);
                }
            }
        }
        let ports = [0, MOST_PUBLISHED - 1].map(Token::Published);
        let own = [Token::New, Token::Guests, Token::Dhcp, Token::Dhcp6];
        for token in own.into_iter().chain(ports) {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }
}
