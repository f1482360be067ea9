//! Questions of the gateway's own for the addresses of a name, and what their answers say.

use domain::base::iana::Rcode;
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder, Rtype, ToName};
use domain::rdata::{A, Aaaa};
use smallvec::SmallVec;
use std::net::IpAddr;
use std::time::Duration;

/// Most addresses of a name that are looked at.
const MOST: usize = 16;

/// Addresses of a name.
pub(crate) type Addresses = SmallVec<[IpAddr; 4]>;

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The addresses, and how long they hold.
    Addresses(Addresses, Duration),
    /// There is no such name, or it has no address of this family.
    Nothing,
    /// The answer is longer than a datagram.
    IsCut,
    /// The server cannot say.
    Helpless,
}

/// A question for the addresses of a name; `None` for what is no name.
pub(crate) fn question(name: &str, is_v6: bool, id: u16) -> Option<Vec<u8>> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut message = message.question();
    let name = Name::<Vec<u8>>::vec_from_str(name).ok()?;
    message.push((name, if is_v6 { Rtype::AAAA } else { Rtype::A })).ok()?;
    Some(message.finish())
}

/// Reads an answer to a question of this family.
pub(crate) fn read(answer: &[u8], is_v6: bool) -> Said {
    let Ok(message) = Message::from_slice(answer) else { return Said::Helpless };
    if message.header().tc() {
        return Said::IsCut;
    }
    match message.header().rcode() {
        Rcode::NOERROR => {}
        Rcode::NXDOMAIN => return Said::Nothing,
        _ => return Said::Helpless,
    }
    records(message, is_v6).unwrap_or(Said::Helpless)
}

/// The addresses that the name has, by way of its aliases (CNAME). `None` if it is no answer.
fn records(message: &Message<[u8]>, is_v6: bool) -> Option<Said> {
    let owner = message.canonical_name()?;
    let (mut found, mut least) = (Addresses::new(), u32::MAX);
    for record in message.answer().ok()? {
        // Those of aliases count, too.
        least = least.min(record.ok()?.ttl().as_secs());
    }
    let mut note = |address: IpAddr| {
        if found.len() < MOST && !found.contains(&address) {
            found.push(address);
        }
    };
    if is_v6 {
        for record in message.answer().ok()?.limit_to_in::<Aaaa>() {
            let record = record.ok()?;
            if record.owner().name_eq(&owner) {
                note(record.data().addr().into());
            }
        }
    } else {
        for record in message.answer().ok()?.limit_to_in::<A>() {
            let record = record.ok()?;
            if record.owner().name_eq(&owner) {
                note(record.data().addr().into());
            }
        }
    }
    if found.is_empty() {
        return Some(Said::Nothing);
    }
    Some(Said::Addresses(found, Duration::from_secs(least.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::{Message, Ttl};
    use domain::rdata::Cname;

    fn answer(question: &[u8], rcode: Rcode, records: &[(&str, u32, &str)]) -> Vec<u8> {
        let question = Message::from_slice(question).expect("a question");
        let builder = MessageBuilder::new_vec();
        let mut answer = builder.start_answer(question, rcode).expect("room");
        for (owner, ttl, data) in records {
            let name = |text: &str| Name::<Vec<u8>>::vec_from_str(text).expect("a name");
            let (owner, ttl) = (name(owner), Ttl::from_secs(*ttl));
            match data.parse() {
                Ok(IpAddr::V4(v4)) => answer.push((owner, ttl, A::new(v4))),
                Ok(IpAddr::V6(v6)) => answer.push((owner, ttl, Aaaa::new(v6))),
                Err(_) => answer.push((owner, ttl, Cname::new(name(data)))),
            }
            .expect("room");
        }
        answer.finish()
    }

    #[test]
    fn addresses_are_those_of_the_name_and_of_its_aliases() {
        let asked = question("www.example.org", false, 7).expect("a name");
        let said = answer(
            &asked,
            Rcode::NOERROR,
            &[
                ("WWW.example.org", 30, "a.example.net"),
                ("a.example.net", 300, "192.0.2.1"),
                ("a.example.net", 300, "192.0.2.2"),
                ("evil.example.com", 300, "192.0.2.66"),
            ],
        );
        let expected = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address"));
        let expected = Said::Addresses(expected.into_iter().collect(), Duration::from_secs(30));
        assert_eq!(read(&said, false), expected);
        assert_eq!(read(&said, true), Said::Nothing);
    }

    #[test]
    fn nothing_and_helpless_are_told_apart() {
        let asked = question("www.example.org", true, 7).expect("a name");
        assert_eq!(read(&answer(&asked, Rcode::NOERROR, &[]), true), Said::Nothing);
        assert_eq!(read(&answer(&asked, Rcode::NXDOMAIN, &[]), true), Said::Nothing);
        assert_eq!(read(&answer(&asked, Rcode::SERVFAIL, &[]), true), Said::Helpless);
        assert_eq!(read(&answer(&asked, Rcode::REFUSED, &[]), true), Said::Helpless);
        assert_eq!(read(&[0; 5], true), Said::Helpless);
        let mut cut = answer(&asked, Rcode::NOERROR, &[]);
        cut[2] |= 2;
        assert_eq!(read(&cut, true), Said::IsCut);
        assert!(question("a..b", true, 7).is_none());
    }
}
