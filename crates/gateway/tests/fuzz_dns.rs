//! The resolver on arbitrary messages: no panic, one answer to each question, and addresses that
//! lead back to the names that were asked for.
//!
//! `cargo test` runs it for a second; docs/fuzzing.md tells of more.

use domain::base::iana::Rcode;
use domain::base::{Message, Rtype, ToName};
use domain::rdata::AllRecordData;
use neap_gateway::dns::{Names, answer_by_name};
use std::net::IpAddr;
use std::time::{Duration, Instant};

const TIME: Duration = Duration::from_secs(1);

/// Several messages, each behind its length; some of the lengths are wrong.
#[test]
fn dns() {
    bolero::check!().with_test_time(TIME).with_max_len(2000).for_each(|bytes: &[u8]| {
        let mut names = Names::default();
        let (mut rest, mut now) = (bytes, Instant::now());
        while let [high, low, after @ ..] = rest {
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
            let (message, others) = after.split_at(length);
            rest = others;
            now += Duration::from_secs(20);
            if let Some(answer) = answer_by_name(&mut names, message, now) {
                check(&mut names, message, &answer, now);
            }
        }
    });
}

fn check(names: &mut Names, question: &[u8], answer: &[u8], now: Instant) {
    let question = Message::from_slice(question).expect("what is answered has a header");
    let answer = Message::from_slice(answer).expect("a message");
    let header = answer.header();
    assert!(header.qr() && header.ra() && !question.header().qr());
    assert_eq!(header.id(), question.header().id());
    let Ok(asked) = question.sole_question() else {
        assert_ne!(header.rcode(), Rcode::NOERROR);
        return;
    };
    assert!(answer.is_answer(question));
    for record in answer.answer().expect("a section") {
        let record = record.expect("a record");
        assert!(record.owner().name_eq(asked.qname()));
        let data = record.to_record::<AllRecordData<_, _>>().expect("data");
        let data = data.expect("a known type").into_data();
        if let AllRecordData::A(address) = data {
            follow(names, asked.qname(), address.addr().into(), now);
        } else {
            assert!([Rtype::AAAA, Rtype::PTR].contains(&asked.qtype()), "{data}");
        }
    }
}

/// What goes to the proxy for an address: the name that was asked for, in harmless characters.
fn follow(names: &mut Names, asked: impl ToName, address: IpAddr, now: Instant) {
    if address.is_loopback() {
        return;
    }
    assert!(Names::is_stand_in(address));
    let name = names.name(address, now).expect("the address stands for a name");
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    assert!(name.len() <= 253 && name.bytes().all(is_harmless), "{name:?}");
    assert!(name.parse::<IpAddr>().is_err(), "{name}");
    let asked = asked.to_vec().to_string().to_ascii_lowercase();
    assert_eq!(*name, *asked.trim_end_matches('.'));
}
