//! What is emitted and parsed here, judged by another implementation.

use super::tcp::tests::{PORTS, any_segment};
use super::{ChecksumBy, Ports, Protocol, checksum::Pseudo, ipv4, ipv6, tcp, udp};
use crate::wire::headers::Headers;
use bytes::Bytes;
use core::net::{Ipv4Addr, Ipv6Addr};
use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use neap_tcp::segment::{Ecn, Flags, Payload, SackBlock, Segment, Timestamps};
use neap_tcp::seq::SeqNumber;
use proptest::prelude::*;

fn ecn(bits: u8) -> Ecn {
    super::ecn_of(bits)
}

fn any_v4() -> impl Strategy<Value = ipv4::Header> {
    any::<(u32, u32, u8, u8, u16, bool)>().prop_map(|(source, destination, ttl, class, id, df)| {
        ipv4::Header {
            source: Ipv4Addr::from_bits(source),
            destination: Ipv4Addr::from_bits(destination),
            protocol: Protocol::TCP,
            ttl,
            dscp: class >> 2,
            ecn: ecn(class),
            identification: id,
            dont_fragment: df,
        }
    })
}

fn any_v6() -> impl Strategy<Value = ipv6::Header> {
    any::<(u128, u128, u8, u8, u32)>().prop_map(|(source, destination, hops, class, label)| {
        ipv6::Header {
            source: Ipv6Addr::from_bits(source),
            destination: Ipv6Addr::from_bits(destination),
            protocol: Protocol::TCP,
            hop_limit: hops,
            dscp: class >> 2,
            ecn: ecn(class),
            flow_label: label & 0xf_ffff,
        }
    })
}

/// The TCP part of a packet of ours, as the oracle sees it, equals the segment.
fn same_segment(oracle: &etherparse::TcpSlice<'_>, segment: &Segment, flat: &[u8]) {
    assert_eq!(oracle.source_port(), PORTS.source);
    assert_eq!(oracle.destination_port(), PORTS.destination);
    assert_eq!(oracle.sequence_number(), segment.seq.0);
    assert_eq!(oracle.acknowledgment_number(), segment.ack.0);
    assert_eq!(oracle.window_size(), segment.window);
    assert_eq!(oracle.urgent_pointer(), segment.urgent);
    let flags = [
        (oracle.fin(), Flags::FIN),
        (oracle.syn(), Flags::SYN),
        (oracle.rst(), Flags::RST),
        (oracle.psh(), Flags::PSH),
        (oracle.ack(), Flags::ACK),
        (oracle.urg(), Flags::URG),
        (oracle.ece(), Flags::ECE),
        (oracle.cwr(), Flags::CWR),
    ];
    for (set, flag) in flags {
        assert_eq!(set, segment.flags.contains(flag));
    }
    assert_eq!(oracle.payload(), flat);
    let mut seen = neap_tcp::segment::Options::default();
    for option in oracle.options_iterator() {
        match option.expect("good options") {
            TcpOptionElement::Noop => {}
            TcpOptionElement::MaximumSegmentSize(mss) => seen.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) => seen.window_scale = Some(shift),
            TcpOptionElement::SelectiveAcknowledgementPermitted => seen.sack_permitted = true,
            TcpOptionElement::Timestamp(value, echo) => {
                seen.timestamps = Some(Timestamps { value, echo });
            }
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                let blocks = core::iter::once(first).chain(rest.into_iter().flatten());
                seen.sack = blocks
                    .map(|(l, r)| SackBlock { left: SeqNumber(l), right: SeqNumber(r) })
                    .collect();
            }
        }
    }
    let mut expected = segment.options.clone();
    expected.sack.truncate(seen.sack.len());
    assert_eq!(seen, expected);
    assert!(seen.sack.len() == segment.options.sack.len() || segment.options.wire_len() > 40);
}

proptest! {
    #[test]
    fn the_oracle_reads_our_ipv4_segments(ip in any_v4(), segment in any_segment()) {
        let mut headers = Headers::default();
        let flat = segment.payload.chunks().concat();
        let pseudo = Pseudo::v4(ip.source, ip.destination, Protocol::TCP);
        let len = tcp::emit(&mut headers, PORTS, &segment, pseudo, ChecksumBy::Stack);
        ip.emit(&mut headers, (len + flat.len()) as u16);
        let bytes = [headers.as_slice(), &flat].concat();
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let Some(etherparse::NetSlice::Ipv4(net)) = &sliced.net else { panic!("not IPv4") };
        let header = net.header();
        prop_assert_eq!(header.source_addr(), ip.source);
        prop_assert_eq!(header.destination_addr(), ip.destination);
        prop_assert_eq!((header.ttl(), header.dcp().value()), (ip.ttl, ip.dscp));
        prop_assert_eq!(header.ecn().value(), ip.ecn as u8);
        prop_assert_eq!(header.identification(), ip.identification);
        prop_assert_eq!(header.dont_fragment(), ip.dont_fragment);
        prop_assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        let Some(TransportSlice::Tcp(oracle)) = &sliced.transport else { panic!("not TCP") };
        same_segment(oracle, &segment, &flat);
        let (source, destination) = (ip.source.octets(), ip.destination.octets());
        let sum = oracle.calc_checksum_ipv4(source, destination);
        prop_assert_eq!(Ok(oracle.checksum()), sum);
    }

    #[test]
    fn the_oracle_reads_our_ipv6_segments(ip in any_v6(), segment in any_segment()) {
        let mut headers = Headers::default();
        let flat = segment.payload.chunks().concat();
        let pseudo = Pseudo::v6(ip.source, ip.destination, Protocol::TCP);
        let len = tcp::emit(&mut headers, PORTS, &segment, pseudo, ChecksumBy::Stack);
        ip.emit(&mut headers, (len + flat.len()) as u16);
        let bytes = [headers.as_slice(), &flat].concat();
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let Some(etherparse::NetSlice::Ipv6(net)) = &sliced.net else { panic!("not IPv6") };
        let header = net.header();
        prop_assert_eq!(header.source_addr(), ip.source);
        prop_assert_eq!(header.destination_addr(), ip.destination);
        prop_assert_eq!(header.traffic_class(), ip.dscp << 2 | ip.ecn as u8);
        prop_assert_eq!(header.flow_label().value(), ip.flow_label);
        prop_assert_eq!(header.hop_limit(), ip.hop_limit);
        let Some(TransportSlice::Tcp(oracle)) = &sliced.transport else { panic!("not TCP") };
        same_segment(oracle, &segment, &flat);
        let (source, destination) = (ip.source.octets(), ip.destination.octets());
        let sum = oracle.calc_checksum_ipv6(source, destination);
        prop_assert_eq!(Ok(oracle.checksum()), sum);
        let parsed = ipv6::parse(&bytes).unwrap();
        prop_assert_eq!((parsed.header, parsed.payload), (ip, 40..bytes.len()));
    }

    #[test]
    fn we_read_the_datagrams_of_the_oracle(
        source: [u8; 4], destination: [u8; 4], ttl: u8, ports: (u16, u16),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ipv4(source, destination, ttl).udp(ports.0, ports.1);
        builder.write(&mut bytes, &data).unwrap();
        let bytes = Bytes::from(bytes);
        let packet = ipv4::parse(&bytes).unwrap();
        prop_assert_eq!(packet.header.source.octets(), source);
        prop_assert_eq!(packet.header.protocol, Protocol::UDP);
        let pseudo = Pseudo::v4(source.into(), destination.into(), Protocol::UDP);
        let datagram = udp::parse(bytes.slice(packet.payload), udp::Verify::Always(pseudo));
        let ports = Ports { source: ports.0, destination: ports.1 };
        prop_assert_eq!(&datagram, &Ok(udp::Datagram { ports, payload: data.clone().into() }));
        let mut headers = Headers::default();
        let payload = Payload::from(Bytes::from(data));
        udp::emit(&mut headers, ports, &payload, pseudo, ChecksumBy::Stack);
        prop_assert_eq!(headers.as_slice(), &bytes[20..28]);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        first in prop::sample::select(vec![0x45u8, 0x46, 0x4f, 0x60]),
        fix in any::<bool>(),
    ) {
        if let (Some(byte), true) = (bytes.first_mut(), fix) {
            *byte = first;
        }
        let _ = ipv4::parse(&bytes);
        if let Ok(packet) = ipv6::parse(&bytes) {
            prop_assert!(packet.payload.end <= bytes.len());
            let _ = super::icmpv6::parse(&packet.header, &bytes[packet.payload]);
        }
        let _ = super::icmp::parse(&bytes);
        let _ = super::icmp::Quoted::v4(&bytes);
        let _ = super::icmp::Quoted::v6(&bytes);
        let _ = super::arp::parse(&bytes);
        let _ = super::ethernet::parse(&bytes);
        let _ = udp::parse(bytes.clone().into(), udp::Verify::Not);
        let _ = ipv6::upper_layer(Protocol(first), &bytes);
    }
}
