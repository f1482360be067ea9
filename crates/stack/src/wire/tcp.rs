//! TCP headers: bytes to and from [`Segment`] (RFC 9293 section 3.1).
//!
//! Cost: no allocation and no copy of payload in either direction. A header whose only option is
//! the timestamp, padded as everybody pads it, takes a path without the option loop.

use super::{ChecksumBy, Ports, be};
use crate::wire::checksum::Pseudo;
use crate::wire::headers::Headers;
use bytes::{Buf, Bytes};
use neap_tcp::segment::{Flags, Options, SackBlock, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;

/// Size of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// Offset of the checksum in the header.
pub const CHECKSUM_AT: usize = 16;

/// Bytes of options that fit a header.
const MAX_OPTIONS_LEN: usize = 40;

/// Largest shift count (RFC 7323 section 2.3).
const MAX_WINDOW_SCALE: u8 = 14;

/// SACK blocks that fit the option space.
const MAX_SACK_BLOCKS: usize = 4;

const EOL: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// How an option field of just timestamps begins.
const TIMESTAMPS_ONLY: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];

/// Reason why bytes are not a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The segment is shorter than its header says.
    #[error("TCP header truncated")]
    Truncated,
    /// The data offset is below five words.
    #[error("bad TCP data offset")]
    DataOffset,
    /// The checksum is wrong.
    #[error("bad TCP checksum")]
    Checksum,
}

/// Parses header and payload. The checksum is verified if a pseudo-header is given.
///
/// The caller fills in `ecn` and `gso_size`, which are not in these bytes.
pub fn parse(mut data: Bytes, verify: Option<Pseudo>) -> Result<(Ports, Segment), Error> {
    let bytes = data.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
    let header_len = usize::from(bytes[12] >> 4) * 4;
    if header_len < HEADER_LEN {
        return Err(Error::DataOffset);
    }
    let options = data.get(HEADER_LEN..header_len).ok_or(Error::Truncated)?;
    if verify.is_some_and(|pseudo| !pseudo.verifies(&data)) {
        return Err(Error::Checksum);
    }
    let flags = Flags::from_bits_retain(bytes[13]);
    let ports = Ports { source: be!(u16, bytes, 0), destination: be!(u16, bytes, 2) };
    let mut segment = Segment {
        seq: SeqNumber(be!(u32, bytes, 4)),
        ack: SeqNumber(be!(u32, bytes, 8)),
        flags,
        window: be!(u16, bytes, 14),
        urgent: be!(u16, bytes, 18),
        options: parse_options(options, flags.contains(Flags::SYN)),
        ..Segment::default()
    };
    data.advance(header_len);
    segment.payload.push(data);
    Ok((ports, segment))
}

/// Parses an option field as Linux's `tcp_parse_options` does.
///
/// An impossible length ends the parsing, and the options before it stay. Unknown kinds, known
/// kinds of another length, and SYN options without SYN are skipped. Of an option that is there
/// several times, the last one counts.
pub fn parse_options(mut field: &[u8], syn: bool) -> Options {
    let mut options = Options::default();
    if let Some((head, value)) = field.split_first_chunk::<4>()
        && *head == TIMESTAMPS_ONLY
        && value.len() == 8
    {
        options.timestamps = timestamps(value);
        return options;
    }
    while let [kind, rest @ ..] = field {
        match *kind {
            EOL => break,
            NOP => field = rest,
            kind => {
                let Some(value) = rest
                    .first()
                    .and_then(|&len| usize::from(len).checked_sub(2))
                    .and_then(|len| rest.get(1..1 + len))
                else {
                    break;
                };
                apply(&mut options, kind, value, syn);
                field = &rest[1 + value.len()..];
            }
        }
    }
    options
}

/// Takes over one option.
fn apply(options: &mut Options, kind: u8, value: &[u8], syn: bool) {
    match (kind, value) {
        (MSS, &[high, low]) if syn => {
            let mss = u16::from_be_bytes([high, low]);
            if mss != 0 {
                options.mss = Some(mss);
            }
        }
        (WINDOW_SCALE, &[shift]) if syn => {
            options.window_scale = Some(shift.min(MAX_WINDOW_SCALE));
        }
        (SACK_PERMITTED, &[]) if syn => options.sack_permitted = true,
        (TIMESTAMPS, value) if value.len() == 8 => options.timestamps = timestamps(value),
        (SACK, value) if !value.is_empty() => {
            let (blocks, &[]) = value.as_chunks::<8>() else {
                return;
            };
            options.sack.clear();
            options.sack.extend(blocks.iter().take(MAX_SACK_BLOCKS).map(|block| SackBlock {
                left: SeqNumber(be!(u32, block, 0)),
                right: SeqNumber(be!(u32, block, 4)),
            }));
        }
        _ => {}
    }
}

fn timestamps(value: &[u8]) -> Option<Timestamps> {
    let value = value.first_chunk::<8>()?;
    Some(Timestamps { value: be!(u32, value, 0), echo: be!(u32, value, 4) })
}

/// Returns the size of the header that [`emit`] writes for these options.
///
/// It is 20 plus [`Options::wire_len`] as long as that is at most 40. SACK blocks that do not fit
/// are left out.
pub fn header_len(options: &Options) -> usize {
    let sack = match fitting_sack(options) {
        [] => 0,
        blocks => 4 + 8 * blocks.len(),
    };
    HEADER_LEN + other_options_len(options) + sack
}

/// Bytes of all options but SACK; at most 24.
fn other_options_len(options: &Options) -> usize {
    let timestamps_or_permitted = match (options.timestamps, options.sack_permitted) {
        (Some(_), _) => 12,
        (None, true) => 4,
        (None, false) => 0,
    };
    let mss = if options.mss.is_some() { 4 } else { 0 };
    let scale = if options.window_scale.is_some() { 4 } else { 0 };
    mss + scale + timestamps_or_permitted
}

fn fitting_sack(options: &Options) -> &[SackBlock] {
    if options.sack.is_empty() {
        return &[];
    }
    let room = MAX_OPTIONS_LEN.saturating_sub(other_options_len(options) + 4) / 8;
    &options.sack[..options.sack.len().min(room).min(MAX_SACK_BLOCKS)]
}

/// Writes the header of `segment` in front of `headers` and returns its size.
///
/// The segment's payload follows the header; with [`ChecksumBy::Stack`] it is summed here.
pub fn emit(
    headers: &mut Headers,
    ports: Ports,
    segment: &Segment,
    pseudo: Pseudo,
    checksum: ChecksumBy,
) -> usize {
    let header_len = header_len(&segment.options);
    let bytes = headers.prepend(header_len);
    bytes[..2].copy_from_slice(&ports.source.to_be_bytes());
    bytes[2..4].copy_from_slice(&ports.destination.to_be_bytes());
    bytes[4..8].copy_from_slice(&segment.seq.0.to_be_bytes());
    bytes[8..12].copy_from_slice(&segment.ack.0.to_be_bytes());
    bytes[12] = (header_len as u8 / 4) << 4;
    bytes[13] = segment.flags.bits();
    bytes[14..16].copy_from_slice(&segment.window.to_be_bytes());
    bytes[18..20].copy_from_slice(&segment.urgent.to_be_bytes());
    emit_options(&segment.options, &mut bytes[HEADER_LEN..]);
    let mut sum = pseudo.with_len(header_len as u32 + segment.payload.len());
    let field = match checksum {
        ChecksumBy::Device => sum.fold(),
        ChecksumBy::Stack => {
            sum.add(bytes);
            for chunk in segment.payload.chunks() {
                sum.add(chunk);
            }
            sum.finish()
        }
    };
    bytes[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&field.to_be_bytes());
    header_len
}

/// Writes the options in Linux's order (`tcp_options_write`), each on a four-byte boundary.
fn emit_options(options: &Options, mut room: &mut [u8]) {
    if let Some(mss) = options.mss {
        let [high, low] = mss.to_be_bytes();
        put(&mut room, &[MSS, 4, high, low]);
    }
    if let Some(timestamps) = options.timestamps {
        let lead = if options.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
        put(&mut room, &lead);
        put(&mut room, &[TIMESTAMPS, 10]);
        put(&mut room, &timestamps.value.to_be_bytes());
        put(&mut room, &timestamps.echo.to_be_bytes());
    } else if options.sack_permitted {
        put(&mut room, &[NOP, NOP, SACK_PERMITTED, 2]);
    }
    if let Some(shift) = options.window_scale {
        put(&mut room, &[NOP, WINDOW_SCALE, 3, shift.min(MAX_WINDOW_SCALE)]);
    }
    let sack = fitting_sack(options);
    if !sack.is_empty() {
        put(&mut room, &[NOP, NOP, SACK, 2 + 8 * sack.len() as u8]);
        for block in sack {
            put(&mut room, &block.left.0.to_be_bytes());
            put(&mut room, &block.right.0.to_be_bytes());
        }
    }
}

fn put(room: &mut &mut [u8], bytes: &[u8]) {
    if let Some(place) = room.split_off_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::Protocol;
    use neap_tcp::segment::Payload;
    use proptest::prelude::*;

    pub(crate) const PORTS: Ports = Ports { source: 40_000, destination: 5201 };

    pub(crate) fn pseudo() -> Pseudo {
        let ip = crate::wire::ipv4::tests::header();
        Pseudo::v4(ip.source, ip.destination, Protocol::TCP)
    }

    pub(crate) fn bytes_of(segment: &Segment) -> Bytes {
        let mut headers = Headers::default();
        let len = emit(&mut headers, PORTS, segment, pseudo(), ChecksumBy::Stack);
        assert_eq!(len, headers.len());
        [headers.as_slice(), &segment.payload.chunks().concat()].concat().into()
    }

    pub(crate) fn any_options() -> impl Strategy<Value = Options> {
        (
            proptest::option::of(1u16..),
            proptest::option::of(0u8..=14),
            any::<bool>(),
            proptest::option::of(any::<(u32, u32)>()),
            proptest::collection::vec(any::<(u32, u32)>(), 0..=4),
        )
            .prop_map(|(mss, window_scale, sack_permitted, timestamps, sack)| Options {
                mss,
                window_scale,
                sack_permitted,
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                sack: sack
                    .into_iter()
                    .map(|(l, r)| SackBlock { left: SeqNumber(l), right: SeqNumber(r) })
                    .collect(),
            })
    }

    pub(crate) fn any_segment() -> impl Strategy<Value = Segment> {
        let payload = proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from),
            0..4,
        );
        (any::<(u32, u32, u8, u16, u16)>(), any_options(), payload).prop_map(
            |((seq, ack, flags, window, urgent), options, chunks)| {
                let mut payload = Payload::new();
                for chunk in chunks {
                    payload.push(chunk);
                }
                Segment {
                    seq: SeqNumber(seq),
                    ack: SeqNumber(ack),
                    flags: Flags::from_bits_retain(flags),
                    window,
                    urgent,
                    options,
                    payload,
                    ..Segment::default()
                }
            },
        )
    }

    /// What of these options survives a header with or without SYN.
    fn surviving(options: &Options, syn: bool) -> Options {
        let mut left = options.clone();
        left.sack.truncate(fitting_sack(options).len());
        if !syn {
            left = Options { mss: None, window_scale: None, sack_permitted: false, ..left };
        }
        left
    }

    proptest! {
        #[test]
        fn segments_round_trip(segment in any_segment()) {
            let bytes = bytes_of(&segment);
            let (ports, parsed) = parse(bytes.clone(), Some(pseudo())).unwrap();
            prop_assert_eq!(ports, PORTS);
            prop_assert_eq!((parsed.seq, parsed.ack), (segment.seq, segment.ack));
            prop_assert_eq!(parsed.flags, segment.flags);
            prop_assert_eq!((parsed.window, parsed.urgent), (segment.window, segment.urgent));
            let syn = segment.flags.contains(Flags::SYN);
            prop_assert_eq!(&parsed.options, &surviving(&segment.options, syn));
            prop_assert_eq!(parsed.payload.chunks().concat(), segment.payload.chunks().concat());
            if segment.options.wire_len() <= MAX_OPTIONS_LEN {
                prop_assert_eq!(header_len(&segment.options), 20 + segment.options.wire_len());
            }
            for len in 0..bytes.len() {
                let expected = if len < header_len(&segment.options) {
                    Error::Truncated
                } else {
                    Error::Checksum
                };
                let cut = parse(bytes.slice(..len), Some(pseudo()));
                // Trailing zeros and a length of one's complement can hide a cut, as on any wire.
                prop_assert!(cut.is_ok() || cut.unwrap_err() == expected);
            }
        }

        #[test]
        fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(bytes.into(), None);
        }

        #[test]
        fn partial_checksums_are_finished_by_summing(segment in any_segment()) {
            let mut headers = Headers::default();
            emit(&mut headers, PORTS, &segment, pseudo(), ChecksumBy::Device);
            let mut bytes = [headers.as_slice(), &segment.payload.chunks().concat()].concat();
            let sum = crate::wire::checksum::of(&bytes);
            bytes[CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(pseudo().verifies(&bytes));
        }
    }

    #[test]
    fn every_kind_with_every_length() {
        for syn in [false, true] {
            for kind in 0..=u8::MAX {
                for len in 0..=u8::MAX {
                    let mut field = [0xab; 40];
                    field[..5].copy_from_slice(&[NOP, MSS, 4, 5, 180]);
                    field[5] = kind;
                    field[6] = len;
                    let options = parse_options(&field, syn);
                    if syn && (kind, len) != (MSS, 4) {
                        assert_eq!(options.mss, Some(1460), "kept: {kind} {len}");
                    }
                    assert!(options.sack.len() <= 4);
                    assert!(options.window_scale.is_none_or(|shift| shift <= 14));
                    let room = field.len() - 5;
                    let sack =
                        kind == SACK && len > 2 && usize::from(len) <= room && (len - 2) % 8 == 0;
                    assert_eq!(!options.sack.is_empty(), sack, "{kind} {len}");
                    assert_eq!(options.timestamps.is_some(), (kind, len) == (TIMESTAMPS, 10));
                }
            }
        }
    }

    #[test]
    fn odd_options_are_handled_as_linux_does() {
        let syn = |field: &[u8]| parse_options(field, true);
        assert_eq!(syn(&[MSS, 4, 0, 0]).mss, None, "an MSS of 0 is ignored");
        assert_eq!(syn(&[WINDOW_SCALE, 3, 200]).window_scale, Some(14));
        assert_eq!(syn(&[MSS, 3, 9, WINDOW_SCALE, 3, 7]).window_scale, Some(7));
        assert_eq!(syn(&[EOL, MSS, 4, 5, 180]), Options::default());
        assert_eq!(syn(&[254, 1, MSS, 4, 5, 180]), Options::default(), "length 1 ends it");
        assert_eq!(syn(&[MSS, 4, 5, 180, MSS, 4, 2, 24]).mss, Some(536), "the last counts");
        assert!(syn(&[34, 6, 1, 2, 3, 4, SACK_PERMITTED, 2]).sack_permitted);
        assert_eq!(syn(&[MSS]), Options::default());
        let quiet = parse_options(&[MSS, 4, 5, 180, NOP, WINDOW_SCALE, 3, 7], false);
        assert_eq!(quiet, Options::default(), "SYN options without SYN");
        let fast = parse_options(&[NOP, NOP, TIMESTAMPS, 10, 0, 0, 0, 1, 0, 0, 0, 2], false);
        assert_eq!(fast.timestamps, Some(Timestamps { value: 1, echo: 2 }));
    }

    #[test]
    fn data_offsets_are_checked() {
        let mut bytes = bytes_of(&Segment::default()).to_vec();
        for words in 0..16u8 {
            bytes[12] = words << 4;
            let result = parse(bytes.clone().into(), None);
            match words {
                0..5 => assert_eq!(result.unwrap_err(), Error::DataOffset),
                5 => assert!(result.is_ok()),
                _ => assert_eq!(result.unwrap_err(), Error::Truncated),
            }
        }
    }

    #[test]
    fn payload_is_shared_not_copied() {
        let segment = Segment { payload: Bytes::from(vec![7; 1000]).into(), ..Segment::default() };
        let bytes = bytes_of(&segment);
        let (_, parsed) = parse(bytes.clone(), None).unwrap();
        assert_eq!(parsed.payload.chunks()[0].as_ptr(), bytes[20..].as_ptr());
    }
}
