//! Parsers, reassembly and GRO fed with arbitrary bytes.
//!
//! `cargo test` runs each for a second. `BOLERO_RANDOM_TEST_TIME_MS=600000 cargo test --test
//! fuzz_wire` runs each for ten minutes, `BOLERO_RANDOM_SEED=...` repeats a failure, and `cargo
//! bolero test` runs one under libFuzzer.

mod fuzz_source;

use bytes::Bytes;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use fuzz_source::Source;
use neap_stack::frame::Headers;
use neap_stack::gro::Gro;
use neap_stack::reassembly::{Config, Part, Reassembler, Refusal};
use neap_stack::wire::checksum::Pseudo;
use neap_stack::wire::icmp::Quoted;
use neap_stack::wire::nd_option::{self, NdOption};
use neap_stack::wire::{
    ChecksumBy, Fragment, Protocol, arp, checksum, ethernet, icmp, icmpv6, ipv4, ipv6, tcp, udp,
};
use neap_tcp::segment::{Ecn, Flags, Payload, Segment};
use neap_tcp::seq::SeqNumber;
use neap_tcp::time::{Instant, Nanos};
use std::collections::BTreeMap;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];

fn parse_tcp(bytes: &[u8]) {
    let data = Bytes::copy_from_slice(bytes);
    let pseudo = Pseudo::v4(V4[0], V4[1], Protocol::TCP);
    let verified = tcp::parse(data.clone(), Some(pseudo));
    let Ok((ports, segment)) = tcp::parse(data, None) else {
        assert!(verified.is_err());
        return;
    };
    assert!(segment.payload.len() as usize + 20 <= bytes.len());
    assert!(segment.options.sack.len() <= 4);
    // What was understood can be said again, and means the same.
    let mut headers = Headers::default();
    tcp::emit(&mut headers, ports, &segment, pseudo, ChecksumBy::Stack);
    let again = [headers.as_slice(), &segment.payload.chunks().concat()].concat();
    let (ports_again, parsed) = tcp::parse(again.into(), Some(pseudo)).expect("our own segment");
    assert_eq!(ports_again, ports);
    assert_eq!((parsed.seq, parsed.ack, parsed.flags), (segment.seq, segment.ack, segment.flags));
    if tcp::header_len(&segment.options) <= 60 && segment.options.sack.len() <= 3 {
        assert_eq!(parsed.options, segment.options);
    }
}

fn parse_ip(bytes: &[u8]) {
    if let Ok(packet) = ipv4::parse(bytes) {
        assert!(packet.payload.start >= 20 && packet.payload.end <= bytes.len());
        assert!(packet.payload.start <= packet.payload.end);
    }
    if let Ok(packet) = ipv6::parse(bytes) {
        assert!(packet.payload.start >= 40 && packet.payload.end <= bytes.len());
        assert!(packet.payload.start <= packet.payload.end);
    }
    for protocol in [0, 43, 44, 60, 6] {
        if let Ok((_, start)) = ipv6::upper_layer(Protocol(protocol), bytes) {
            assert!(start <= bytes.len());
        }
    }
}

/// The same bytes with a checksum that is right, in the field at `at`.
fn with_checksum(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= at + 2 {
        bytes[at..at + 2].fill(0);
        let sum = checksum::of(&bytes);
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Options are read to their end, and what is emitted of them is read as the same.
fn parse_options(bytes: &[u8]) {
    for option in nd_option::options(bytes).flatten() {
        if let NdOption::Dnssl { names, .. } = option {
            for name in nd_option::decode_names(names) {
                assert!(nd_option::encode_name(&name).is_some(), "{name:?}");
            }
        }
        let mut again = Vec::new();
        option.emit(&mut again);
        assert!(option == NdOption::Other || nd_option::options(&again).eq([Ok(option)]));
    }
}

fn parse_control(bytes: &[u8]) {
    parse_options(bytes);
    let _ = ethernet::parse(bytes);
    let _ = arp::parse(bytes);
    let _ = icmp::parse(bytes);
    if let Ok((_, body)) = icmp::parse(&with_checksum(bytes, 2)) {
        let _ = Quoted::v4(body);
    }
    let _ = Quoted::v4(bytes);
    let _ = Quoted::v6(bytes);
    for hop_limit in [64, 255] {
        for source in [V6[0], Ipv6Addr::UNSPECIFIED, LINK_LOCAL] {
            let header = ipv6::Header {
                source,
                destination: V6[1],
                protocol: Protocol::ICMPV6,
                hop_limit,
                dscp: 0,
                ecn: Ecn::NotEct,
                flow_label: 0,
            };
            let _ = icmpv6::parse(&header, bytes);
            let Some(room) = bytes.len().checked_sub(4) else { continue };
            let mut bytes = bytes.to_vec();
            bytes[2..4].fill(0);
            let pseudo = Pseudo::v6(header.source, header.destination, Protocol::ICMPV6);
            let mut sum = pseudo.with_len(room as u32 + 4);
            sum.add(&bytes);
            bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            if let Ok((_, body)) = icmpv6::parse(&header, &bytes) {
                let _ = Quoted::v6(body);
                parse_options(body);
            }
        }
    }
}

fn parse_udp(bytes: &[u8]) {
    let data = Bytes::copy_from_slice(bytes);
    for verify in [
        udp::Verify::Not,
        udp::Verify::IfPresent(Pseudo::v4(V4[0], V4[1], Protocol::UDP)),
        udp::Verify::Always(Pseudo::v6(V6[0], V6[1], Protocol::UDP)),
    ] {
        if let Ok(datagram) = udp::parse(data.clone(), verify) {
            assert!(datagram.payload.len() + 8 <= bytes.len());
        }
    }
}

#[test]
fn parsers_on_arbitrary_bytes() {
    bolero::check!().with_test_time(SECOND).with_max_len(300).for_each(|bytes: &[u8]| {
        parse_tcp(bytes);
        parse_ip(bytes);
        parse_control(bytes);
        parse_udp(bytes);
    });
}

/// Headers that are right but for a few bytes, with checksums that are right.
#[test]
fn parsers_on_spoiled_headers() {
    bolero::check!().with_test_time(SECOND).with_max_len(200).for_each(|bytes: &[u8]| {
        let mut source = Source(bytes);
        let spoils: Vec<_> =
            (0..source.byte() % 4).map(|_| (source.byte(), source.byte())).collect();
        let start = source.byte();
        let spoil = |mut bytes: Vec<u8>| {
            for &(at, value) in &spoils {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            bytes
        };
        let rest = source.0;
        let v4 = [
            &[0x45 | start & 0x0f, 0, 0, 20 + rest.len() as u8, 0, 0, 0, 0, 64, 6, 0, 0][..],
            &[10, 0, 0, 1, 10, 0, 0, 2],
            rest,
        ];
        let mut v4 = spoil(v4.concat());
        let header = (usize::from(v4[0] & 15) * 4).min(v4.len());
        v4[10..12].fill(0);
        let sum = checksum::of(&v4[..header]);
        v4[10..12].copy_from_slice(&sum.to_be_bytes());
        parse_ip(&v4);
        let next = [0, 43, 44, 60, 6, 58, 59, 51][usize::from(start % 8)];
        let v6 = [
            &[0x60, 0, 0, 0, 0, rest.len() as u8, next, 255][..],
            &V6[0].octets(),
            &V6[1].octets(),
            rest,
        ];
        parse_ip(&spoil(v6.concat()));
        let tcp = [
            &[0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[start << 4, 0x12, 255, 255, 0, 0, 0, 0],
            rest,
        ];
        parse_tcp(&spoil(tcp.concat()));
        let udp = [&[0, 53, 1, 0, 0, 8u8.wrapping_add(rest.len() as u8), 0, 0][..], rest];
        parse_udp(&spoil(udp.concat()));
        let kinds = [0, 3, 4, 5, 8, 11, 12, 128, 129, 1, 2, 133, 134, 135, 136, 137];
        let control = [&[kinds[usize::from(start % 16)], 0, 0, 0, 0, 0, 0, 0][..], rest];
        parse_control(&spoil(control.concat()));
    });
}

/// What a datagram has at each place, whatever fragment brings it.
fn content(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn reassembly_of_arbitrary_fragments() {
    bolero::check!().with_test_time(SECOND).with_max_len(2000).for_each(|bytes: &[u8]| {
        let mut source = Source(bytes);
        let config = Config { high_thresh: 40_000, time: Nanos::from_secs(30) };
        let mut reassembler = Reassembler::new(config, 1);
        let mut now = Instant::from_nanos(1);
        while !source.0.is_empty() {
            now += Nanos::from_millis(u64::from(source.byte()) * 20);
            let offset = u16::from(source.byte()) << (source.byte() % 6 + 3);
            let fragment = Fragment {
                identification: u32::from(source.byte() % 8),
                offset: offset & !7,
                more: source.byte() % 4 != 0,
            };
            let units = usize::from(source.byte() % 64);
            let len = units * 8 + usize::from(!fragment.more) * usize::from(source.byte() % 8);
            let data = content(usize::from(fragment.offset), len);
            let result = if source.byte() % 2 == 0 {
                push_v4(&mut reassembler, now, fragment, &data)
            } else {
                push_v6(&mut reassembler, now, fragment, &data)
            };
            if let Some(Ok(Some(whole))) = result {
                assert_eq!(whole, content(0, whole.len()));
            }
            reassembler.expire(now, |_, _| {});
            assert!(reassembler.memory() <= config.high_thresh);
            assert!(reassembler.deadline() > now);
        }
        reassembler.expire(now + Nanos::from_secs(31), |_, _| {});
        assert!(reassembler.is_empty());
        assert_eq!(reassembler.memory(), 0);
    });
}

type Pushed = Option<Result<Option<Bytes>, Refusal>>;

fn push_v4(to: &mut Reassembler, now: Instant, fragment: Fragment, data: &[u8]) -> Pushed {
    let header = ipv4::Header {
        source: V4[0],
        destination: V4[1],
        protocol: Protocol::UDP,
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: false,
    };
    let mut headers = Headers::default();
    header.emit_fragment(&mut headers, data.len() as u16, fragment);
    let packet = [headers.as_slice(), data].concat();
    let parsed = ipv4::parse(&packet).ok()?;
    let part = Part::v4(&parsed, &packet)?;
    Some(to.push(now, &part).map(|whole| whole.map(|whole| whole.data)))
}

fn push_v6(to: &mut Reassembler, now: Instant, fragment: Fragment, data: &[u8]) -> Pushed {
    let header = ipv6::Header {
        source: V6[0],
        destination: V6[1],
        protocol: Protocol::UDP,
        hop_limit: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        flow_label: 0,
    };
    let mut headers = Headers::default();
    header.emit_fragment(&mut headers, data.len() as u16, fragment);
    let packet = [headers.as_slice(), data].concat();
    let parsed = ipv6::parse(&packet).ok()?;
    let part = Part::v6(&parsed, &packet)?;
    Some(to.push(now, &part).map(|whole| whole.map(|whole| whole.data)))
}

/// What one flow said: sequence numbers with the bytes there, and the flags of a control segment.
#[derive(Default)]
struct Said {
    bytes: Vec<(u32, u8)>,
    control: Vec<Flags>,
}

impl Said {
    fn add(&mut self, segment: &Segment) {
        let all: Vec<u8> = segment.payload.chunks().concat();
        let seqs = (0..).map(|i| segment.seq.0.wrapping_add(i));
        self.bytes.extend(seqs.zip(all));
        let control = segment.flags & (Flags::SYN | Flags::FIN | Flags::RST | Flags::URG);
        if !control.is_empty() {
            self.control.push(control);
        }
    }
}

#[test]
fn gro_changes_no_byte_and_no_order() {
    bolero::check!().with_test_time(SECOND).with_max_len(1000).for_each(|bytes: &[u8]| {
        let mut source = Source(bytes);
        let mut gro = Gro::default();
        let mut before: BTreeMap<u8, Said> = BTreeMap::new();
        let mut after: BTreeMap<u8, Said> = BTreeMap::new();
        let mut next = [0u32; 256];
        let mut deliver = |flow: u8, segment: Segment| {
            assert!(segment.payload.len() <= 65_535);
            assert!(segment.gso_size == 0 || segment.payload.len() > u32::from(segment.gso_size));
            after.entry(flow).or_default().add(&segment);
        };
        while !source.0.is_empty() {
            let flow = source.byte() % 40;
            let len = [0, 1, 100, 1448, 1448, 20_000][usize::from(source.byte() % 6)];
            let kind = source.byte();
            let mut segment = Segment {
                seq: SeqNumber(next[usize::from(flow)]),
                ack: SeqNumber(u32::from(kind & 1)),
                flags: Flags::ACK,
                window: u16::from(kind >> 1 & 1),
                payload: Payload::from(Bytes::from(vec![source.byte(); len])),
                ..Segment::default()
            };
            if kind & 12 == 12 {
                segment.flags = Flags::from_bits_retain(source.byte());
                segment.seq = SeqNumber(u32::from(source.short()));
            }
            if kind & 48 == 48 {
                segment.ecn = Ecn::Ce;
            }
            next[usize::from(flow)] = segment.seq.0.wrapping_add(segment.seq_len());
            before.entry(flow).or_default().add(&segment);
            gro.receive(flow, u64::from(flow / 3), segment, &mut deliver);
            if kind & 192 == 192 {
                gro.flush(&mut deliver);
            }
        }
        gro.flush(&mut deliver);
        assert!(gro.is_empty());
        for (flow, said) in before {
            let got = after.remove(&flow).unwrap_or_default();
            assert!(got.bytes == said.bytes, "flow {flow}");
            assert_eq!(got.control, said.control);
        }
    });
}

#[test]
fn addresses_of_two_families_make_no_pseudo_header() {
    assert!(Pseudo::of(IpAddr::V4(V4[0]), IpAddr::V6(V6[0]), Protocol::TCP).is_none());
}
