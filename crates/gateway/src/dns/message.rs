//! DNS messages: what is looked at in those that are passed on, and answers of the gateway's own.

use super::names::{Names, TTL};
use domain::base::iana::{Class, Opcode, OptRcode, Rcode};
use domain::base::message_builder::AdditionalBuilder;
use domain::base::name::{Name, ParsedName, ToLabelIter};
use domain::base::{Message, MessageBuilder, Question, Rtype, Ttl};
use domain::rdata::{A, Aaaa, Ptr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// Longest name in text, without the final dot.
const MOST_NAME: usize = 253;
/// Longest message that a program takes over UDP if it does not say more (RFC 1035 section 4.2.1).
const LEAST_DATAGRAM: u16 = 512;
/// Longest message that the gateway takes over UDP: what comes without fragments (RFC 9715).
const MOST_DATAGRAM: u16 = 1232;
/// Length of the header.
pub(super) const HEADER: usize = 12;

/// Whether a message is a question that a resolver can be asked.
pub(super) fn is_question(message: &[u8]) -> bool {
    let Ok(message) = Message::from_slice(message) else { return false };
    !message.header().qr()
}

/// The answer to a question that no resolver is asked, as it would not know the guest from the
/// host: what is no query, such as an update of a zone (RFC 2136) and a notice of one (RFC 1996),
/// and the transfer of a zone (RFC 5936, RFC 1995). `None` for all others.
pub(super) fn refusal(message: &[u8]) -> Option<Vec<u8>> {
    let message = Message::from_slice(message).ok().filter(|message| !message.header().qr())?;
    let transfers = |question: Question<ParsedName<&[u8]>>| {
        [Rtype::AXFR, Rtype::IXFR].contains(&question.qtype())
    };
    let rcode = if message.header().opcode() != Opcode::QUERY {
        Rcode::NOTIMP
    } else if message.question().filter_map(Result::ok).any(transfers) {
        Rcode::REFUSED
    } else {
        return None;
    };
    let mut answer = MessageBuilder::new_vec().start_error(message, rcode);
    answer.header_mut().set_ra(true);
    Some(answer.finish())
}

/// Writes the ID of a message.
pub(super) fn set_id(message: &mut [u8], id: u16) {
    message[..2].copy_from_slice(&id.to_be_bytes());
}

/// The ID of a message with a header.
pub(super) fn id(message: &[u8]) -> u16 {
    u16::from_be_bytes([message[0], message[1]])
}

/// Whether `answer` is one to `question`: its ID, and the name, type and class that it is about.
/// Servers that understand nothing of a question, or fail, may not repeat it.
pub(crate) fn is_answer(question: &[u8], answer: &[u8]) -> bool {
    let (Ok(question), Ok(answer)) = (Message::from_slice(question), Message::from_slice(answer))
    else {
        return false;
    };
    let header = answer.header();
    if header.opcode() != question.header().opcode() {
        return false;
    }
    let errors = [Rcode::FORMERR, Rcode::SERVFAIL, Rcode::NOTIMP, Rcode::REFUSED];
    let is_error = errors.contains(&header.rcode());
    let is_bare = answer.as_slice().len() == HEADER && is_error && header.qr();
    answer.is_answer(question) || (is_bare && header.id() == question.header().id())
}

/// Whether another server may know more than an answer.
pub(super) fn is_helpless(answer: &[u8]) -> bool {
    Message::from_slice(answer).is_ok_and(|answer| {
        [Rcode::SERVFAIL, Rcode::NOTIMP, Rcode::REFUSED].contains(&answer.header().rcode())
    })
}

/// The answer that nobody could answer a question.
pub(super) fn failure(question: &[u8]) -> Option<Vec<u8>> {
    let question = Message::from_slice(question).ok()?;
    let mut answer = MessageBuilder::new_vec().start_error(question, Rcode::SERVFAIL);
    answer.header_mut().set_ra(true);
    Some(answer.finish())
}

/// An answer that came over TCP, as it goes over UDP to who asked `question`: cut behind the
/// question if it is too long (RFC 2181 section 9).
pub(super) fn over_udp(question: &[u8], answer: Vec<u8>) -> Vec<u8> {
    let asked = Message::from_slice(question).ok();
    let said = asked.and_then(Message::opt).map(|opt| opt.udp_payload_size());
    let most = said.unwrap_or(0).max(LEAST_DATAGRAM);
    if answer.len() <= usize::from(most) {
        return answer;
    }
    let Ok(long) = Message::from_slice(&answer) else { return answer };
    let mut short = MessageBuilder::new_vec().start_error(long, long.header().rcode());
    short.header_mut().set_tc(true);
    short.header_mut().set_ra(long.header().ra());
    short.finish()
}

/// Answers a question with addresses that stand for names.
///
/// A name has one IPv4 address, and nothing else that is known. `None` for what is no question,
/// and is not to be answered.
pub fn answer_by_name(names: &mut Names, message: &[u8], now: Instant) -> Option<Vec<u8>> {
    let message = Message::from_slice(message).ok().filter(|message| !message.header().qr())?;
    let opt = message.opt();
    let is_newer = opt.as_ref().is_some_and(|opt| opt.version() > 0);
    let data = match message.sole_question() {
        _ if message.header().opcode() != Opcode::QUERY => Known::Nothing(Rcode::NOTIMP),
        _ if is_newer => Known::Nothing(Rcode::NOERROR),
        Ok(question) => known(names, &question, now),
        Err(_) => Known::Nothing(Rcode::FORMERR),
    };
    let mut answer = MessageBuilder::new_vec().start_error(message, data.rcode());
    answer.header_mut().set_ra(true);
    if let Ok(question) = message.sole_question() {
        let (owner, ttl) = (question.qname(), Ttl::from_duration_lossy(TTL));
        // There is room: a message is as long as memory is.
        match data {
            Known::V4(v4) => answer.push((owner, ttl, A::new(v4))).ok()?,
            Known::V6(v6) => answer.push((owner, ttl, Aaaa::new(v6))).ok()?,
            Known::Name(name) => answer.push((owner, ttl, Ptr::new(name))).ok()?,
            Known::Nothing(_) => {}
        }
    }
    let mut answer = answer.additional();
    if opt.is_some() {
        push_opt(&mut answer, is_newer)?;
    }
    Some(answer.finish())
}

/// An answer to a question with EDNS has it, too (RFC 6891 section 6.1.1).
fn push_opt(answer: &mut AdditionalBuilder<Vec<u8>>, is_newer: bool) -> Option<()> {
    let write = answer.opt(|opt| {
        opt.set_udp_payload_size(MOST_DATAGRAM);
        if is_newer {
            opt.set_rcode(OptRcode::BADVERS);
        }
        Ok(())
    });
    write.ok()
}

/// What there is to say about a question.
enum Known {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Name(Name<Vec<u8>>),
    Nothing(Rcode),
}

impl Known {
    fn rcode(&self) -> Rcode {
        if let Self::Nothing(rcode) = self { *rcode } else { Rcode::NOERROR }
    }
}

fn known(names: &mut Names, question: &Question<ParsedName<&[u8]>>, now: Instant) -> Known {
    if question.qclass() != Class::IN {
        return Known::Nothing(Rcode::REFUSED);
    }
    if question.qtype() == Rtype::PTR {
        return name_of(names, question.qname(), now);
    }
    if [Rtype::AXFR, Rtype::IXFR].contains(&question.qtype()) {
        return Known::Nothing(Rcode::REFUSED);
    }
    let Some(name) = text(question.qname()) else { return Known::Nothing(Rcode::NXDOMAIN) };
    let is_local = name == "localhost" || name.ends_with(".localhost");
    match question.qtype() {
        // RFC 6761 section 6.3: the guest itself.
        Rtype::A if is_local => Known::V4(Ipv4Addr::LOCALHOST),
        Rtype::AAAA if is_local => Known::V6(Ipv6Addr::LOCALHOST),
        Rtype::A | Rtype::ANY => {
            let address = names.address(&name, now);
            address.map_or(Known::Nothing(Rcode::SERVFAIL), Known::V4)
        }
        // The name may exist, and has nothing of this type that is known.
        _ => Known::Nothing(Rcode::NOERROR),
    }
}

/// A name in the form in which a proxy gets it; `None` for one that cannot be a host's. A name that
/// ends in a number is refused: resolvers take it for an address, which no policy would have seen.
fn text(name: &ParsedName<&[u8]>) -> Option<String> {
    let mut text = String::new();
    for label in name.iter_labels().filter(|label| !label.is_root()) {
        let is_usable = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if !label.as_slice().iter().all(is_usable) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        let lower = label.as_slice().iter().map(|byte| char::from(byte.to_ascii_lowercase()));
        text.extend(lower);
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(is_hex);
    (!is_number && text.len() <= MOST_NAME).then_some(text)
}

/// The name that an address stands for, by the name in `in-addr.arpa`.
fn name_of(names: &mut Names, owner: &ParsedName<&[u8]>, now: Instant) -> Known {
    let is_unknown = Known::Nothing(Rcode::NXDOMAIN);
    let Some(text) = text(owner) else { return is_unknown };
    let Some(reversed) = text.strip_suffix(".in-addr.arpa") else { return is_unknown };
    let mut parts = reversed.split('.').map(str::parse::<u8>);
    let mut next = || parts.next().and_then(Result::ok);
    let (Some(d), Some(c), Some(b), Some(a)) = (next(), next(), next(), next()) else {
        return is_unknown;
    };
    let address = IpAddr::from([a, b, c, d]);
    let name = (reversed.split('.').count() == 4).then(|| names.name(address, now)).flatten();
    let name = name.and_then(|name| Name::vec_from_str(&name).ok());
    name.map_or(is_unknown, Known::Name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::message_builder::QuestionBuilder;
    use domain::rdata::AllRecordData;

    fn question(name: &str, kind: Rtype) -> Vec<u8> {
        asking(name, kind).finish()
    }

    fn asking(name: &str, kind: Rtype) -> QuestionBuilder<Vec<u8>> {
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(0x1234);
        message.header_mut().set_rd(true);
        let mut message = message.question();
        let name = Name::<Vec<u8>>::vec_from_str(name).expect("a name");
        message.push((name, kind)).expect("room");
        message
    }

    /// The code of the answer, and its records in text.
    fn ask(names: &mut Names, question: &[u8]) -> (Rcode, Vec<String>) {
        let answer = answer_by_name(names, question, Instant::now()).expect("an answer");
        assert!(is_answer(question, &answer));
        let answer = Message::from_octets(&answer[..]).expect("a message");
        assert!(answer.header().ra() && answer.header().rd());
        let records = answer.answer().expect("a section").map(|record| {
            let record = record.expect("a record");
            let data = record.to_record::<AllRecordData<_, _>>().expect("data").expect("known");
            data.data().to_string()
        });
        (answer.header().rcode(), records.collect())
    }

    #[test]
    fn a_name_has_one_address_and_nothing_else() {
        let names = &mut Names::default();
        let first = (Rcode::NOERROR, vec!["198.18.0.1".to_owned()]);
        assert_eq!(ask(names, &question("www.Example.org", Rtype::A)), first);
        assert_eq!(ask(names, &question("WWW.example.ORG", Rtype::ANY)), first);
        let nothing = (Rcode::NOERROR, vec![]);
        for kind in [Rtype::AAAA, Rtype::MX, Rtype::HTTPS, Rtype::SRV] {
            assert_eq!(ask(names, &question("www.example.org", kind)), nothing);
        }
        let name = (Rcode::NOERROR, vec!["www.example.org.".to_owned()]);
        assert_eq!(ask(names, &question("1.0.18.198.in-addr.arpa", Rtype::PTR)), name);
        let unknown = (Rcode::NXDOMAIN, vec![]);
        for owner in ["2.0.18.198.in-addr.arpa", "7.1.0.18.198.in-addr.arpa", "1.ip6.arpa"] {
            assert_eq!(ask(names, &question(owner, Rtype::PTR)), unknown, "{owner}");
        }
    }

    #[test]
    fn the_guest_itself_and_addresses_are_no_names_for_a_proxy() {
        let names = &mut Names::default();
        let local = (Rcode::NOERROR, vec!["127.0.0.1".to_owned()]);
        assert_eq!(ask(names, &question("localhost", Rtype::A)), local);
        assert_eq!(ask(names, &question("a.localhost", Rtype::AAAA)).1, ["::1"]);
        let unknown = (Rcode::NXDOMAIN, vec![]);
        for name in ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "a.0X7F", "x.0x", "."] {
            assert_eq!(ask(names, &question(name, Rtype::A)), unknown, "{name}");
        }
        for name in ["a\\032b.example", "a\\013\\010Host:.example", "a\\.b.example", "a:80"] {
            assert_eq!(ask(names, &question(name, Rtype::A)), unknown, "{name}");
        }
    }

    #[test]
    fn bad_questions_are_answered_with_their_errors() {
        let names = &mut Names::default();
        let good = question("example.org", Rtype::A);
        assert!(answer_by_name(names, &good[..HEADER - 1], Instant::now()).is_none());
        let mut answer = good.clone();
        answer[2] |= 0x80;
        assert!(answer_by_name(names, &answer, Instant::now()).is_none(), "no question");
        let code = |message: &[u8], names: &mut Names| {
            let answer = answer_by_name(names, message, Instant::now()).expect("an answer");
            Message::from_slice(&answer).expect("a message").opt_rcode()
        };
        assert_eq!(code(&good[..good.len() - 1], names), OptRcode::FORMERR);
        let mut update = good.clone();
        update[2] |= 5 << 3;
        assert_eq!(code(&update, names), OptRcode::NOTIMP);
        let mut chaos = good.clone();
        *chaos.last_mut().expect("a class") = 3;
        assert_eq!(code(&chaos, names), OptRcode::REFUSED);
        let mut newer = asking("example.org", Rtype::A).additional();
        let version = |opt: &mut domain::base::message_builder::OptBuilder<'_, Vec<u8>>| {
            opt.set_version(1);
            Ok(())
        };
        newer.opt(version).expect("room");
        assert_eq!(code(&newer.finish(), names), OptRcode::BADVERS);
    }

    #[test]
    fn what_no_resolver_is_asked_is_refused() {
        let rcode = |message: &[u8]| {
            let answer = refusal(message)?;
            let answer = Message::from_slice(&answer).expect("a message");
            assert!(answer.header().qr() && answer.header().id() == id(message));
            Some(answer.header().rcode())
        };
        let asked = question("example.org", Rtype::A);
        assert_eq!(rcode(&asked), None);
        for opcode in [2, 4, 5, 6] {
            let mut other = asked.clone();
            other[2] |= opcode << 3;
            assert_eq!(rcode(&other), Some(Rcode::NOTIMP), "{opcode}");
        }
        for kind in [Rtype::AXFR, Rtype::IXFR] {
            assert_eq!(rcode(&question("example.org", kind)), Some(Rcode::REFUSED));
        }
        assert_eq!(rcode(&question("example.org", Rtype::ANY)), None);
        assert_eq!(
            rcode(&answer_by_name(&mut Names::default(), &asked, Instant::now()).expect("one")),
            None
        );
        for len in 0..asked.len() {
            assert_eq!(rcode(&asked[..len]), None);
        }
    }

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let asked = question("example.org", Rtype::A);
        let answered = |question: &[u8]| {
            answer_by_name(&mut Names::default(), question, Instant::now()).expect("an answer")
        };
        assert!(is_question(&asked) && !is_question(&answered(&asked)));
        assert!(is_answer(&asked, &answered(&question("EXAMPLE.org", Rtype::A))));
        assert!(!is_answer(&asked, &asked));
        assert!(!is_answer(&asked, &answered(&question("example.com", Rtype::A))));
        assert!(!is_answer(&asked, &answered(&question("example.org", Rtype::AAAA))));
        let mut other_id = answered(&asked);
        set_id(&mut other_id, 0x4321);
        assert!(!is_answer(&asked, &other_id));
        let mut refused = asked[..HEADER].to_vec();
        (refused[2], refused[3], refused[5]) = (0x80, 5, 0);
        assert!(is_answer(&asked, &refused) && is_helpless(&refused));
        refused[3] = 2;
        assert!(is_answer(&asked, &refused) && is_helpless(&refused), "a failure");
        refused[3] = 0;
        assert!(!is_answer(&asked, &refused), "an empty answer without an error");
    }

    #[test]
    fn a_long_answer_is_cut_behind_the_question() {
        let asked = question("example.org", Rtype::A);
        let mut long = answer_by_name(&mut Names::default(), &asked, Instant::now()).expect("one");
        assert_eq!(over_udp(&asked, long.clone()), long);
        long.resize(600, 0);
        let short = over_udp(&asked, long.clone());
        assert!(is_answer(&asked, &short));
        assert!(Message::from_slice(&short).expect("a message").header().tc());
        let mut larger = asking("example.org", Rtype::A).additional();
        let size = |opt: &mut domain::base::message_builder::OptBuilder<'_, Vec<u8>>| {
            opt.set_udp_payload_size(1232);
            Ok(())
        };
        larger.opt(size).expect("room");
        assert_eq!(over_udp(&larger.finish(), long.clone()), long, "who asked has room");
    }
}
