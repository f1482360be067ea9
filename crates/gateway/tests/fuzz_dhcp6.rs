//! The DHCPv6 server on arbitrary messages: no panic, one answer to each request, with its number,
//! and no address but the one of the guest.
//!
//! `cargo test` runs it for a second; docs/fuzzing.md tells of more.

use dhcproto::v6::{DhcpOption, Message, MessageType};
use dhcproto::{Decodable, Decoder};
use neap_gateway::{Dhcp6Config, Dhcp6Server};
use std::net::Ipv6Addr;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);
const SERVER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const GUEST: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);

#[test]
fn dhcp6() {
    let server = Dhcp6Server::new(&Dhcp6Config::new(SERVER, Some(GUEST)));
    bolero::check!().with_test_time(TIME).with_max_len(2000).for_each(|bytes: &[u8]| {
        let Some(answer) = server.answer(bytes) else { return };
        let answer = Message::decode(&mut Decoder::new(&answer)).expect("an answer");
        assert!([MessageType::Advertise, MessageType::Reply].contains(&answer.msg_type()));
        assert_eq!(answer.xid()[..], bytes[1..4]);
        for option in answer.opts().iter() {
            if let DhcpOption::IANA(association) = option {
                for inside in association.opts.iter() {
                    let DhcpOption::IAAddr(given) = inside else { continue };
                    assert_eq!(given.addr, GUEST);
                }
            }
        }
    });
}
