//! What the events of the poller are about.

/// Most published ports: all of both families and protocols, in both directions.
pub(crate) const MOST_PUBLISHED: usize = 1 << 19;

const NEW: u64 = u64::MAX;
const GUESTS: u64 = u64::MAX - 1;
const PINGS: u64 = u64::MAX - 2;
const DHCP: u64 = u64::MAX - 3;
const DHCP6: u64 = u64::MAX - 4;
/// Tokens of published ports begin here.
const PUBLISHED: u64 = DHCP6 - MOST_PUBLISHED as u64;
/// The kind of what has a slot is in the bits from this on.
const KIND: u32 = 60;
const FLOW: u64 = 0;
const MAPPING: u64 = 1;
const ECHO: u64 = 2;
const CROSSING: u64 = 3;
const QUERY: u64 = 4;
const FAR: u64 = 5;

/// What an event is about. A poller holds it as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Connections that guests want.
    New,
    /// Datagrams of guests.
    Guests,
    /// ICMP messages of guests.
    Pings,
    /// DHCP messages of guests.
    Dhcp,
    /// DHCPv6 messages of guests.
    Dhcp6,
    /// Connections to a published port.
    Published(usize),
    Mapping(Slot),
    /// A ping socket.
    Echo(Slot),
    /// Datagrams between namespaces.
    Crossing(Slot),
    /// A question on its way to a resolver.
    Query(Slot),
    /// The side of a flow that opened it.
    Flow(Slot),
    /// The side that it goes to.
    Far(Slot),
}

/// A place in a table, and a number that tells apart those who have had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) key: usize,
    pub(crate) generation: Generation,
}

/// A number of 28 bits that few others have had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(u32);

impl Generation {
    /// Goes on to the next one, and returns it.
    pub(crate) fn advance(&mut self) -> Self {
        // The bits above tell kinds apart.
        self.0 = (self.0 + 1) & (u32::MAX >> 4);
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
            Self::Pings => PINGS,
            Self::Dhcp => DHCP,
            Self::Dhcp6 => DHCP6,
            Self::Published(index) => PUBLISHED + index as u64,
            Self::Mapping(slot) => MAPPING << KIND | slot.to_bits(),
            Self::Echo(slot) => ECHO << KIND | slot.to_bits(),
            Self::Crossing(slot) => CROSSING << KIND | slot.to_bits(),
            Self::Query(slot) => QUERY << KIND | slot.to_bits(),
            Self::Flow(slot) => FLOW << KIND | slot.to_bits(),
            Self::Far(slot) => FAR << KIND | slot.to_bits(),
        }
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        match bits {
            NEW => Self::New,
            GUESTS => Self::Guests,
            PINGS => Self::Pings,
            DHCP => Self::Dhcp,
            DHCP6 => Self::Dhcp6,
            PUBLISHED.. => Self::Published((bits - PUBLISHED) as usize),
            _ => {
                let slot = Slot::from_bits(bits & ((1 << KIND) - 1));
                match bits >> KIND {
                    MAPPING => Self::Mapping(slot),
                    ECHO => Self::Echo(slot),
                    CROSSING => Self::Crossing(slot),
                    QUERY => Self::Query(slot),
                    FAR => Self::Far(slot),
                    _ => Self::Flow(slot),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let flows = [Token::Flow, Token::Far];
        let others = [Token::Mapping, Token::Echo, Token::Crossing, Token::Query];
        let mut last = Generation(u32::MAX >> 4);
        for generation in [last, last.advance(), last.advance()] {
            for key in [0, 7, u32::MAX as usize] {
                let slot = Slot { key, generation };
                for token in flows.into_iter().chain(others) {
                    let token = token(slot);
                    assert_eq!(Token::from_bits(token.to_bits()), token);
                }
            }
        }
        let ports = [0, MOST_PUBLISHED - 1].map(Token::Published);
        let single = [Token::New, Token::Guests, Token::Pings, Token::Dhcp, Token::Dhcp6];
        for token in single.into_iter().chain(ports) {
            assert_eq!(Token::from_bits(token.to_bits()), token);
        }
    }
}
