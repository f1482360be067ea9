//! The DHCP server on arbitrary messages: no panic, addresses of the pool only, answers that parse.
//!
//! `cargo test` runs it for a second; docs/fuzzing.md tells of more.

use dhcproto::v4::{Message, MessageType, Opcode};
use dhcproto::{Decodable, Decoder};
use neap_gateway::{DhcpConfig, DhcpServer};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const ADDRESSES: u32 = 4;

/// Several messages, each behind its length; some of the lengths are wrong.
#[test]
fn dhcp() {
    let network = "10.0.2.0/24".parse().expect("a network");
    bolero::check!().with_test_time(TIME).with_max_len(2000).for_each(|bytes: &[u8]| {
        let mut config = DhcpConfig::new(SERVER, network, FIRST);
        config.addresses = ADDRESSES;
        let mut server = DhcpServer::new(config);
        let (mut rest, mut now) = (bytes, Instant::now());
        while let [high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
            let (message, others) = after.split_at(length);
            rest = others;
            now += Duration::from_secs(20);
            let Ok(answer) = server.answer(message, now) else { continue };
            let answer = Message::decode(&mut Decoder::new(&answer.data)).expect("an answer");
            assert_eq!(answer.opcode(), Opcode::BootReply);
            let given = answer.yiaddr().to_bits();
            let pool = FIRST.to_bits()..FIRST.to_bits() + ADDRESSES;
            match answer.opts().msg_type() {
                Some(MessageType::Offer) => assert!(pool.contains(&given)),
                Some(MessageType::Ack) => assert!(given == 0 || pool.contains(&given)),
                Some(MessageType::Nak) => assert_eq!(given, 0),
                other => panic!("{other:?}"),
            }
        }
    });
}
