//! A DHCPv6 server for guests (RFC 8415), as values: a message goes in, and perhaps an answer comes
//! out. It has one address, which every client gets: a guest has one interface, and whoever else is
//! in its namespace shares its address.
//!
//! Cost: O(length of the message); nothing is kept of a client.

use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, OptionCode, Status, StatusCode,
    UnknownOption,
};
use dhcproto::{Decodable, Decoder, Encodable, Name};
use std::net::Ipv6Addr;

/// Port of servers.
pub const SERVER_PORT_V6: u16 = 547;
/// Longest message, in bytes: what a client sends in one packet. It bounds how deep options may be
/// inside of others as well.
const MOST_BYTES: usize = 1500;
/// Bytes before the options: of a message, of an association, and of an address in it (RFC 8415
/// sections 8, 21.4 and 21.6).
const HEADER: usize = 4;
const ASSOCIATION: usize = 12;
const ADDRESS: usize = 24;
/// Most associations of a client that are answered.
const MOST_ASSOCIATIONS: usize = 16;
/// Longest DUID (RFC 8415 section 11.1).
const MOST_DUID: usize = 130;
/// For ever, in seconds (RFC 8415 section 7.7).
const FOREVER: u32 = u32::MAX;
/// Kind of a DUID with a link-layer address, and of an Ethernet (RFC 8415 section 11.4).
const DUID_LL: [u8; 4] = [0, 3, 0, 1];
/// Flags of a qualified name (RFC 4704 section 4.1): the client wants the server to change DNS, and
/// the server does not do what it wants.
const CHANGES_DNS: u8 = 1;
const IS_OVERRIDDEN: u8 = 2;

/// Settings of a [`Dhcp6Server`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dhcp6Config {
    /// What the server answers from, a link-local address.
    pub server: Ipv6Addr,
    /// The address that clients get; `None` gives them other settings only.
    pub address: Option<Ipv6Addr>,
    /// DNS servers (RFC 3646).
    pub dns: Vec<Ipv6Addr>,
    /// Domains in which short names are looked up (RFC 3646). What is no name is left out.
    pub domains: Vec<String>,
    /// Qualified name of the guest (RFC 4704). What is no name is left out. All clients are told,
    /// not only those that name themselves so: it is the host that names the guest.
    pub fqdn: Option<String>,
}

impl Dhcp6Config {
    /// Settings without DNS.
    pub fn new(server: Ipv6Addr, address: Option<Ipv6Addr>) -> Self {
        Self { server, address, dns: Vec::new(), domains: Vec::new(), fqdn: None }
    }
}

/// A DHCPv6 server with one address.
#[derive(Debug)]
pub struct Dhcp6Server {
    address: Option<Ipv6Addr>,
    dns: Vec<Ipv6Addr>,
    domains: Vec<Name>,
    /// The qualified name of the guest, as it is sent.
    fqdn: Option<Vec<u8>>,
    duid: Vec<u8>,
}

impl Dhcp6Server {
    /// A server, whose identifier follows from its address.
    pub fn new(config: &Dhcp6Config) -> Self {
        let domains = config.domains.iter().filter_map(|name| name.parse().ok()).collect();
        let mut duid = DUID_LL.to_vec();
        // The lower half of a link-local address is as good as a link-layer address.
        duid.extend_from_slice(&config.server.octets()[10..]);
        let fqdn = config.fqdn.as_ref().and_then(|name| name.parse().ok());
        let fqdn = fqdn.map(|name| wire(&name));
        Self { address: config.address, dns: config.dns.clone(), domains, fqdn, duid }
    }

    /// The answer to a message; `None` to what is to be passed over in silence: what is malformed,
    /// what is for other servers, and messages of servers and relays.
    pub fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        if message.len() > MOST_BYTES {
            return None;
        }
        let question = Message::decode(&mut Decoder::new(&known(message)?)).ok()?;
        let wants_dns = wants_dns(message);
        let options = question.opts();
        let client = match options.get(OptionCode::ClientId) {
            Some(DhcpOption::ClientId(duid)) if (1..=MOST_DUID).contains(&duid.len()) => Some(duid),
            Some(_) => return None,
            None => None,
        };
        let server = match options.get(OptionCode::ServerId) {
            Some(DhcpOption::ServerId(duid)) => Some(duid),
            _ => None,
        };
        let is_for_us = server.is_none_or(|duid| *duid == self.duid);
        let kind = question.msg_type();
        // RFC 8415 section 16: who has to name the server, and who must not.
        let is_valid = match kind {
            MessageType::Solicit | MessageType::Confirm | MessageType::Rebind => {
                client.is_some() && server.is_none()
            }
            MessageType::Request
            | MessageType::Renew
            | MessageType::Release
            | MessageType::Decline => client.is_some() && server.is_some() && is_for_us,
            MessageType::InformationRequest => is_for_us,
            _ => false,
        };
        if !is_valid {
            return None;
        }
        let mut answer = DhcpOptions::new();
        answer.insert(DhcpOption::ServerId(self.duid.clone()));
        if let Some(client) = client {
            answer.insert(DhcpOption::ClientId(client.clone()));
        }
        let is_rapid =
            kind == MessageType::Solicit && options.get(OptionCode::RapidCommit).is_some();
        if is_rapid {
            answer.insert(DhcpOption::RapidCommit);
        }
        match kind {
            MessageType::Confirm => answer.insert(self.confirm(options)?),
            MessageType::Release | MessageType::Decline => {
                answer.insert(status(Status::Success, ""));
            }
            MessageType::InformationRequest => self.add_settings(&mut answer, wants_dns),
            _ => {
                self.associations(options).for_each(|option| answer.insert(option));
                self.add_settings(&mut answer, wants_dns);
            }
        }
        let is_offer = kind == MessageType::Solicit && !is_rapid;
        let kind = if is_offer { MessageType::Advertise } else { MessageType::Reply };
        let mut reply = Message::new_with_id(kind, question.xid());
        reply.set_opts(answer);
        reply.to_vec().ok()
    }

    /// Whether the addresses of a client are those of this link; `None` without an address, which
    /// is not answered (RFC 8415 section 18.3.3).
    fn confirm(&self, options: &DhcpOptions) -> Option<DhcpOption> {
        let mut addresses = asked(options).flat_map(addresses).peekable();
        addresses.peek()?;
        Some(if addresses.all(|address| Some(address) == self.address) {
            status(Status::Success, "")
        } else {
            status(Status::NotOnLink, "another address")
        })
    }

    /// The address for each association that the client has asked for, and the end of others.
    fn associations(&self, options: &DhcpOptions) -> impl Iterator<Item = DhcpOption> {
        asked(options).map(|association| {
            let mut inside = DhcpOptions::new();
            match self.address {
                Some(address) => inside.insert(lease(address, FOREVER)),
                None => inside.insert(status(Status::NoAddrsAvail, "no address")),
            }
            let others = addresses(association).filter(|other| Some(*other) != self.address);
            for other in others.take(MOST_ASSOCIATIONS) {
                inside.insert(lease(other, 0));
            }
            DhcpOption::IANA(IANA { id: association.id, t1: FOREVER, t2: FOREVER, opts: inside })
        })
    }

    fn add_settings(&self, answer: &mut DhcpOptions, wants_dns: bool) {
        if !self.dns.is_empty() {
            answer.insert(DhcpOption::DomainNameServers(self.dns.clone()));
        }
        if !self.domains.is_empty() {
            answer.insert(DhcpOption::DomainSearchList(self.domains.clone()));
        }
        if let Some(fqdn) = &self.fqdn {
            // RFC 4704 section 6: nothing is changed in DNS, also for a client that wants it.
            let flags = if wants_dns { IS_OVERRIDDEN } else { 0 };
            let data = [&[flags], &fqdn[..]].concat();
            answer.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::ClientFqdn, data)));
        }
    }
}

/// A message with those of its options that the server reads. The decoder of others takes their
/// lengths for granted, which guests may have chosen.
fn known(message: &[u8]) -> Option<Vec<u8>> {
    let (header, rest) = message.split_at_checked(HEADER)?;
    let mut known = header.to_vec();
    for (code, value) in options(rest) {
        match OptionCode::from(code) {
            OptionCode::ClientId | OptionCode::ServerId | OptionCode::RapidCommit => {
                add(&mut known, code, value);
            }
            OptionCode::IANA => {
                let (header, inside) = value.split_at_checked(ASSOCIATION)?;
                let mut association = header.to_vec();
                for (code, value) in options(inside) {
                    if OptionCode::from(code) == OptionCode::IAAddr {
                        add(&mut association, code, value.get(..ADDRESS)?);
                    }
                }
                add(&mut known, code, &association);
            }
            _ => {}
        }
    }
    Some(known)
}

/// Codes and values of options, up to the first that is cut off.
fn options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [code @ .., high, low] = rest.get(..4)? else { return None };
        let code = u16::from_be_bytes(code.try_into().ok()?);
        let (value, others) =
            rest[4..].split_at_checked(u16::from_be_bytes([*high, *low]).into())?;
        rest = others;
        Some((code, value))
    })
}

/// Whether a client names itself and wants the server to change DNS for that.
fn wants_dns(message: &[u8]) -> bool {
    let mut all = options(message.get(HEADER..).unwrap_or_default());
    let own = all.find(|(code, _)| OptionCode::from(*code) == OptionCode::ClientFqdn);
    own.and_then(|(_, value)| value.first()).is_some_and(|flags| flags & CHANGES_DNS != 0)
}

/// A name as labels behind their lengths (RFC 1035 section 3.1).
fn wire(name: &Name) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.iter() {
        // A name has none that is longer than 63 bytes.
        wire.push(label.len() as u8);
        wire.extend(label);
    }
    wire.push(0);
    wire
}

/// Adds an option, which is no longer than one of a message.
fn add(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_be_bytes());
    to.extend((value.len() as u16).to_be_bytes());
    to.extend(value);
}

/// The associations of a message.
fn asked(options: &DhcpOptions) -> impl Iterator<Item = &IANA> {
    let all = options.iter().filter_map(|option| match option {
        DhcpOption::IANA(association) => Some(association),
        _ => None,
    });
    all.take(MOST_ASSOCIATIONS)
}

/// The addresses of an association.
fn addresses(association: &IANA) -> impl Iterator<Item = Ipv6Addr> {
    association.opts.iter().filter_map(|option| match option {
        DhcpOption::IAAddr(address) => Some(address.addr),
        _ => None,
    })
}

fn lease(addr: Ipv6Addr, seconds: u32) -> DhcpOption {
    let opts = DhcpOptions::new();
    DhcpOption::IAAddr(IAAddr { addr, preferred_life: seconds, valid_life: seconds, opts })
}

fn status(status: Status, why: &str) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: why.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
    const OTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x99);
    const CLIENT: [u8; 10] = [0, 3, 0, 1, 2, 3, 4, 5, 6, 7];

    fn server() -> Dhcp6Server {
        let mut config = Dhcp6Config::new("fe80::1".parse().expect("one"), Some(OWN));
        config.dns = vec!["2001:db8::53".parse().expect("one")];
        config.domains = vec!["example.org".to_owned(), "no..name".to_owned()];
        Dhcp6Server::new(&config)
    }

    fn message(kind: MessageType, options: Vec<DhcpOption>) -> Vec<u8> {
        let mut message = Message::new_with_id(kind, [1, 2, 3]);
        message.set_opts(options.into_iter().collect());
        message.to_vec().expect("it is short")
    }

    fn client() -> DhcpOption {
        DhcpOption::ClientId(CLIENT.to_vec())
    }

    fn association(addresses: &[Ipv6Addr]) -> DhcpOption {
        let opts = addresses.iter().map(|&address| lease(address, 100)).collect();
        DhcpOption::IANA(IANA { id: 7, t1: 0, t2: 0, opts })
    }

    fn answered(message: &[u8]) -> Message {
        let answer = server().answer(message).expect("an answer");
        Message::decode(&mut Decoder::new(&answer)).expect("a message")
    }

    fn leases(message: &Message) -> Vec<(Ipv6Addr, u32)> {
        let all = asked(message.opts()).flat_map(|one| one.opts.iter());
        let leases = all.filter_map(|option| match option {
            DhcpOption::IAAddr(address) => Some((address.addr, address.valid_life)),
            _ => None,
        });
        leases.collect()
    }

    fn own_id() -> DhcpOption {
        DhcpOption::ServerId(server().duid)
    }

    #[test]
    fn options_of_any_length_are_passed_over() {
        let solicit = message(MessageType::Solicit, vec![client(), association(&[OTHER])]);
        for code in 0_u16..150 {
            for length in 0_u16..5 {
                let option = [code.to_be_bytes(), length.to_be_bytes()].concat();
                let value = vec![1; length.into()];
                let (header, rest) = solicit.split_at(HEADER);
                // An answer or none, and no panic.
                let _ = server().answer(&[header, &option, &value, rest].concat());
            }
        }
    }

    #[test]
    fn a_client_is_offered_its_address_and_gets_it() {
        let solicit = message(MessageType::Solicit, vec![client(), association(&[])]);
        let offer = answered(&solicit);
        assert_eq!((offer.msg_type(), offer.xid()), (MessageType::Advertise, [1, 2, 3]));
        assert_eq!(leases(&offer), [(OWN, FOREVER)]);
        assert_eq!(offer.opts().get(OptionCode::ClientId), Some(&client()));
        let request = message(MessageType::Request, vec![client(), own_id(), association(&[OWN])]);
        let reply = answered(&request);
        assert_eq!(reply.msg_type(), MessageType::Reply);
        assert_eq!(leases(&reply), [(OWN, FOREVER)]);
        let Some(DhcpOption::DomainSearchList(domains)) =
            reply.opts().get(OptionCode::DomainSearchList)
        else {
            panic!("domains");
        };
        assert_eq!(domains.len(), 1, "what is no name is left out");
    }

    #[test]
    fn a_client_in_a_hurry_gets_its_address_at_once() {
        let rapid = vec![client(), association(&[]), DhcpOption::RapidCommit];
        let reply = answered(&message(MessageType::Solicit, rapid));
        assert_eq!(reply.msg_type(), MessageType::Reply);
        assert!(reply.opts().get(OptionCode::RapidCommit).is_some());
        assert_eq!(leases(&reply), [(OWN, FOREVER)]);
    }

    #[test]
    fn addresses_of_others_end() {
        for kind in [MessageType::Renew, MessageType::Rebind] {
            let mut options = vec![client(), association(&[OTHER, OWN])];
            if kind == MessageType::Renew {
                options.push(own_id());
            }
            let mut leases = leases(&answered(&message(kind, options)));
            leases.sort_unstable();
            assert_eq!(leases, [(OWN, FOREVER), (OTHER, 0)]);
        }
    }

    #[test]
    fn an_address_of_this_link_is_confirmed_and_another_is_not() {
        for (address, expected) in [(OWN, Status::Success), (OTHER, Status::NotOnLink)] {
            let confirm = message(MessageType::Confirm, vec![client(), association(&[address])]);
            let reply = answered(&confirm);
            let Some(DhcpOption::StatusCode(status)) = reply.opts().get(OptionCode::StatusCode)
            else {
                panic!("a status");
            };
            assert_eq!(status.status, expected);
        }
        let nothing = message(MessageType::Confirm, vec![client(), association(&[])]);
        assert_eq!(server().answer(&nothing), None);
    }

    #[test]
    fn settings_need_no_address_and_what_is_given_back_is_taken() {
        let reply = answered(&message(MessageType::InformationRequest, Vec::new()));
        assert_eq!(reply.msg_type(), MessageType::Reply);
        assert!(reply.opts().get(OptionCode::DomainNameServers).is_some());
        for kind in [MessageType::Release, MessageType::Decline] {
            let given = vec![client(), own_id(), association(&[OWN])];
            assert_eq!(answered(&message(kind, given)).msg_type(), MessageType::Reply);
        }
    }

    #[test]
    fn a_guest_is_told_its_name_whether_it_has_named_itself_or_not() {
        let mut config = Dhcp6Config::new("fe80::1".parse().expect("one"), Some(OWN));
        config.fqdn = Some("web.example.org".to_owned());
        let server = Dhcp6Server::new(&config);
        let name = b"\x03web\x07example\x03org\0";
        let told = |question: &[u8]| {
            let answer = server.answer(question).expect("an answer");
            let mut all = options(&answer[HEADER..]);
            all.find(|(code, _)| *code == 39).map(|(_, value)| value.to_vec())
        };
        for (flags, expected) in [(None, 0), (Some(1), 2), (Some(0), 0)] {
            let own = flags.map(|flags: u8| vec![0, 39, 0, 6, flags, 3, b'b', b'o', b'x', 0]);
            for kind in [MessageType::Solicit, MessageType::InformationRequest] {
                let question = message(kind, vec![client(), association(&[])]);
                let question = [&question[..], own.as_deref().unwrap_or_default()].concat();
                assert_eq!(told(&question), Some([&[expected], &name[..]].concat()));
            }
        }
        let confirm = message(MessageType::Confirm, vec![client(), association(&[OWN])]);
        assert_eq!(told(&confirm), None);
    }

    #[test]
    fn what_is_not_for_this_server_is_passed_over() {
        let other = DhcpOption::ServerId(vec![1, 2, 3]);
        for silent in [
            message(MessageType::Request, vec![client(), other.clone(), association(&[])]),
            message(MessageType::Request, vec![client(), association(&[])]),
            message(MessageType::Solicit, vec![client(), own_id()]),
            message(MessageType::Solicit, vec![association(&[])]),
            message(MessageType::Solicit, vec![DhcpOption::ClientId(vec![0; 131])]),
            message(MessageType::InformationRequest, vec![other]),
            message(MessageType::Advertise, vec![client(), own_id()]),
            message(MessageType::Reply, vec![client(), own_id()]),
            vec![12; 100],
            vec![1; 1501],
            vec![1, 2],
            Vec::new(),
        ] {
            assert_eq!(server().answer(&silent), None, "{silent:?}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let good = message(MessageType::Request, vec![client(), own_id(), association(&[OTHER])]);
        for cut in 0..good.len() {
            let _ = server().answer(&good[..cut]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut spoiled = good.clone();
                spoiled[cut] = value;
                let _ = server().answer(&spoiled);
            }
        }
    }
}
