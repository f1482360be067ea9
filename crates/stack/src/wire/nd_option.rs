//! Options of router solicitations and advertisements (RFC 4861 section 4.6, RFC 8106).

use super::{be, icmp::Error};
use core::net::Ipv6Addr;

/// Link address of the sender (RFC 4861 section 4.6.1).
const SOURCE_LINK: u8 = 1;
/// Prefix information (RFC 4861 section 4.6.2).
const PREFIX: u8 = 3;
/// MTU of the link (RFC 4861 section 4.6.4).
const MTU: u8 = 5;
/// Recursive DNS server (RFC 8106 section 5.1).
const RDNSS: u8 = 25;
/// DNS search list (RFC 8106 section 5.2).
const DNSSL: u8 = 31;

/// Bit of a prefix: its addresses are on the link.
const ON_LINK: u8 = 0x80;
/// Bit of a prefix: hosts make addresses of it.
const AUTONOMOUS: u8 = 0x40;

/// Most bytes of a DNS name in its wire format (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
/// Most bytes of a label of a DNS name.
const MAX_LABEL: usize = 63;

/// Option of a message of router discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NdOption<'a> {
    /// Ethernet address of the sender.
    SourceLink([u8; 6]),
    /// Prefix of addresses.
    Prefix {
        /// First address of the prefix. Bits behind `len` have no meaning.
        network: Ipv6Addr,
        /// Bits of the prefix, at most 128.
        len: u8,
        /// Whether its addresses are on the link.
        on_link: bool,
        /// Whether hosts make addresses of it.
        autonomous: bool,
        /// Seconds for which it is on the link; `u32::MAX` is for ever.
        valid: u32,
        /// Seconds for which addresses of it are preferred; `u32::MAX` is for ever.
        preferred: u32,
    },
    /// MTU of the link in bytes.
    Mtu(u32),
    /// Addresses of DNS servers.
    Rdnss {
        /// Seconds for which they may be used; `u32::MAX` is for ever.
        lifetime: u32,
        /// The addresses.
        servers: &'a [[u8; 16]],
    },
    /// Domains that short names are looked up in.
    Dnssl {
        /// Seconds for which they may be used; `u32::MAX` is for ever.
        lifetime: u32,
        /// Names in the wire format of DNS, one behind the other, padded with zeros.
        names: &'a [u8],
    },
    /// Anything else, which a receiver ignores.
    Other,
}

/// Returns the options of a message. One of length zero or beyond the end is an error, which ends
/// them (RFC 4861 section 4.6).
pub fn options(bytes: &[u8]) -> impl Iterator<Item = Result<NdOption<'_>, Error>> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = rest.get(1).map_or(0, |&words| usize::from(words) * 8);
        let option = rest.get(..len).filter(|option| !option.is_empty());
        rest = if option.is_some() { &rest[len..] } else { &[] };
        Some(option.map(parse).ok_or(Error::Neighbor))
    })
}

/// An option whose length is a multiple of eight and not zero. One that is too short for its kind
/// is ignored.
fn parse(bytes: &[u8]) -> NdOption<'_> {
    let lifetime = |bytes: &[u8; 8]| be!(u32, bytes, 4);
    match (bytes[0], bytes.first_chunk::<8>(), bytes.first_chunk::<32>()) {
        (SOURCE_LINK, Some(&[_, _, a, b, c, d, e, f]), _) => {
            NdOption::SourceLink([a, b, c, d, e, f])
        }
        (PREFIX, _, Some(option)) if option[2] <= 128 => NdOption::Prefix {
            network: Ipv6Addr::from_bits(
                u128::from(be!(u32, option, 16)) << 96
                    | u128::from(be!(u32, option, 20)) << 64
                    | u128::from(be!(u32, option, 24)) << 32
                    | u128::from(be!(u32, option, 28)),
            ),
            len: option[2],
            on_link: option[3] & ON_LINK != 0,
            autonomous: option[3] & AUTONOMOUS != 0,
            valid: be!(u32, option, 4),
            preferred: be!(u32, option, 8),
        },
        (MTU, Some(option), _) => NdOption::Mtu(be!(u32, option, 4)),
        (RDNSS, Some(option), _) => {
            let (servers, _) = bytes[8..].as_chunks::<16>();
            NdOption::Rdnss { lifetime: lifetime(option), servers }
        }
        (DNSSL, Some(option), _) => {
            NdOption::Dnssl { lifetime: lifetime(option), names: &bytes[8..] }
        }
        _ => NdOption::Other,
    }
}

impl NdOption<'_> {
    /// Appends the option to a message. [`NdOption::Other`] has no bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        match *self {
            Self::SourceLink(link) => {
                out.extend([SOURCE_LINK, 0]);
                out.extend(link);
            }
            Self::Prefix { network, len, on_link, autonomous, valid, preferred } => {
                let flag = |set, flag| if set { flag } else { 0 };
                out.extend([PREFIX, 0, len, flag(on_link, ON_LINK) | flag(autonomous, AUTONOMOUS)]);
                out.extend(valid.to_be_bytes());
                out.extend(preferred.to_be_bytes());
                out.extend([0; 4]);
                out.extend(network.octets());
            }
            Self::Mtu(mtu) => {
                out.extend([MTU, 0, 0, 0]);
                out.extend(mtu.to_be_bytes());
            }
            Self::Rdnss { lifetime, servers } => {
                out.extend([RDNSS, 0, 0, 0]);
                out.extend(lifetime.to_be_bytes());
                out.extend(servers.as_flattened());
            }
            Self::Dnssl { lifetime, names } => {
                out.extend([DNSSL, 0, 0, 0]);
                out.extend(lifetime.to_be_bytes());
                out.extend(names);
                out.resize(begin + (out.len() - begin).next_multiple_of(8), 0);
            }
            Self::Other => return,
        }
        let words = (out.len() - begin) / 8;
        debug_assert!(words <= 255, "an option has at most 2040 bytes");
        out[begin + 1] = words as u8;
    }
}

/// Returns a DNS name in its wire format; `None` if DNS has no such name. A dot at the end is
/// optional.
pub fn encode_name(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let is_label = (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_label {
            return None;
        }
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    (bytes.len() <= MAX_NAME).then_some(bytes)
}

/// Returns the names of a [`NdOption::Dnssl`], up to the padding or to the first that is none.
/// Names there are not compressed (RFC 8106 section 5.2).
pub fn decode_names(names: &[u8]) -> impl Iterator<Item = String> + '_ {
    let mut rest = names;
    core::iter::from_fn(move || {
        let mut name = String::new();
        loop {
            let (&len, behind) = rest.split_first()?;
            let len = usize::from(len);
            if len == 0 {
                rest = behind;
                return (!name.is_empty()).then_some(name);
            }
            let label = behind.get(..len).filter(|_| len <= MAX_LABEL)?;
            let is_label = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
            // In text a name has neither the length of its first label nor the root.
            if !label.iter().all(is_label) || name.len() + 1 + len > MAX_NAME - 2 {
                return None;
            }
            if !name.is_empty() {
                name.push('.');
            }
            name.extend(label.iter().map(|&byte| char::from(byte)));
            rest = &behind[len..];
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_round_trip_and_unknown_ones_are_passed_over() {
        let servers = [[1; 16], [2; 16]];
        let names = [encode_name("example.org"), encode_name("a.b.")].map(Option::unwrap).concat();
        let all = [
            NdOption::SourceLink([2, 0, 0, 0, 0, 1]),
            NdOption::Prefix {
                network: "fd00:1:2:3::".parse().unwrap(),
                len: 64,
                on_link: true,
                autonomous: false,
                valid: u32::MAX,
                preferred: 5,
            },
            NdOption::Mtu(1500),
            NdOption::Rdnss { lifetime: 9, servers: &servers },
            NdOption::Dnssl { lifetime: 7, names: &names },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|option| option.emit(&mut bytes));
        bytes.extend([200, 1, 0, 0, 0, 0, 0, 0]);
        let parsed: Vec<_> = options(&bytes).map(Result::unwrap).collect();
        assert_eq!(parsed[..4], all[..4]);
        assert_eq!(parsed[5], NdOption::Other);
        let NdOption::Dnssl { lifetime: 7, names } = parsed[4] else { panic!("{parsed:?}") };
        assert_eq!(decode_names(names).collect::<Vec<_>>(), ["example.org", "a.b"]);
    }

    #[test]
    fn what_is_cut_off_or_endless_is_an_error_that_ends_the_options() {
        let mut bytes = Vec::new();
        NdOption::Mtu(1280).emit(&mut bytes);
        for bad in [&[5, 0][..], &[5], &[5, 2, 0, 0, 0, 0, 0, 0]] {
            let bytes = [&bytes, bad].concat();
            let parsed: Vec<_> = options(&bytes).collect();
            assert_eq!(parsed, [Ok(NdOption::Mtu(1280)), Err(Error::Neighbor)]);
        }
        // Too short for a prefix, and longer than any address.
        assert_eq!(options(&[3, 1, 0, 0, 0, 0, 0, 0]).next(), Some(Ok(NdOption::Other)));
        let mut long = [0; 32];
        (long[0], long[1], long[2]) = (3, 4, 129);
        assert_eq!(options(&long).next(), Some(Ok(NdOption::Other)));
    }

    #[test]
    fn the_longest_name_is_read_as_it_was_written() {
        let name = |last: usize| {
            let labels = [63, 63, 63, last].map(|len| "x".repeat(len));
            labels.join(".")
        };
        let longest = encode_name(&name(61)).unwrap();
        assert_eq!(longest.len(), MAX_NAME);
        assert_eq!(decode_names(&longest).next(), Some(name(61)));
        let labels: Vec<_> =
            [63, 63, 63, 62].map(|len: u8| [&[len][..], &vec![b'x'; len.into()]].concat()).concat();
        assert_eq!(decode_names(&[&labels[..], &[0]].concat()).next(), None);
    }

    #[test]
    fn names_that_dns_does_not_have_are_refused() {
        let long = "x".repeat(64);
        let many = [&long[..63]; 4].join(".");
        for bad in ["", ".", "a..b", "a b", "ä", &long, &many] {
            assert_eq!(encode_name(bad), None, "{bad}");
        }
        assert_eq!(encode_name("a.bc").unwrap(), b"\x01a\x02bc\0");
        for bad in [&b"\x05ab"[..], b"\xc0\x01\0", b"\x01\0\0", b"\x01.\0", b"\0\0"] {
            assert_eq!(decode_names(bad).next(), None, "{bad:?}");
        }
    }
}
