//! A DHCP server for the guests of one link (RFC 2131, options of RFC 2132).
//!
//! It has no socket and no clock: a message and the time go in, an answer comes out. It is the only
//! server of its link, so it refuses addresses that are not its own to give.
//!
//! A client is known by its identifier. If all addresses are taken, it gets one that was given to
//! its link address: the client programs of a guest have identifiers of their own. A pool of one
//! address is for a link with one guest: whoever asks gets it, also after a client has declined it.
//!
//! Cost: O(n) for a message, n being the addresses of the pool, of which there are at most
//! 256. A lease holds the identifier of its client, at most 255 bytes, and its link address.

use dhcproto::v4::fqdn::{ClientFQDN, FqdnFlags};
use dhcproto::v4::{DhcpOption, DhcpOptions, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable, Name};
use ipnet::Ipv4Net;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Port of servers.
pub(crate) const SERVER_PORT: u16 = 67;
/// Port of clients.
const CLIENT_PORT: u16 = 68;
/// Most addresses of a pool.
pub(crate) const MOST_ADDRESSES: u32 = 256;
/// Longest message that is read: no client has more to say.
const MOST_BYTES: usize = 1500;
/// An address that was offered is kept for its client for so long.
const OFFER: Duration = Duration::from_secs(30);
/// Bytes before the options (RFC 2131 section 2, with the magic cookie).
const HEADER: usize = 240;
/// Longest Ethernet or other link address in a message (`chaddr`).
const MOST_LINK_ADDRESS: u8 = 16;
/// Bytes of a qualified name's option before the name: flags, and two codes that are no longer used
/// (RFC 4702 section 2).
const BEFORE_FQDN: usize = 3;

/// Settings of a [`DhcpServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DhcpConfig {
    /// Address of the server.
    pub server: Ipv4Addr,
    /// Network of the link.
    pub network: Ipv4Net,
    /// First address that is given away.
    pub first: Ipv4Addr,
    /// Number of addresses that are given away, from 1 to 256.
    pub addresses: u32,
    /// Default router. One outside of the network is told with a route to it (RFC 3442).
    pub router: Option<Ipv4Addr>,
    /// Resolvers.
    pub dns: Vec<Ipv4Addr>,
    /// MTU of the link in bytes.
    pub mtu: Option<u16>,
    /// Host name of the guests (option 12).
    pub hostname: Option<String>,
    /// Qualified name of the guests (RFC 4702). What is no name is left out. All clients are told,
    /// not only those that name themselves so: it is the host that names the guest.
    pub fqdn: Option<String>,
    /// Domain of the guests.
    pub domain: Option<String>,
    /// Domains in which short names are looked up (RFC 3397); what is no name is left out.
    pub search: Vec<String>,
    /// Time for which a guest has its address.
    pub lease: Duration,
}

impl DhcpConfig {
    /// Gives one address away, for a day, and says nothing else.
    pub fn new(server: Ipv4Addr, network: Ipv4Net, address: Ipv4Addr) -> Self {
        Self {
            server,
            network,
            first: address,
            addresses: 1,
            router: None,
            dns: Vec::new(),
            mtu: None,
            hostname: None,
            fqdn: None,
            domain: None,
            search: Vec::new(),
            lease: Duration::from_secs(86_400),
        }
    }
}

/// Why a message got no answer.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum DhcpError {
    /// It is no DHCP message of a client.
    #[error("no DHCP message of a client")]
    Malformed,
    /// It came by a relay agent, which no guest needs.
    #[error("a message of a relay agent")]
    Relayed,
    /// It is for another server, or needs no answer.
    #[error("nothing to answer")]
    Silent,
    /// All addresses are taken.
    #[error("all addresses are taken")]
    Full,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpAnswer {
    /// Where it is sent: to all hosts of the link if the client has no address yet.
    pub to: SocketAddrV4,
    /// The message.
    pub data: Vec<u8>,
}

/// A DHCP server.
#[derive(Debug)]
pub struct DhcpServer {
    config: DhcpConfig,
    fqdn: Option<Name>,
    search: Vec<Name>,
    /// By the number of the address in the pool.
    leases: Vec<Option<Lease>>,
}

#[derive(Debug)]
struct Lease {
    /// `None` if a client has found somebody else at the address.
    client: Option<Vec<u8>>,
    /// The link address of the client.
    link: Vec<u8>,
    until: Instant,
}

impl DhcpServer {
    /// A server whose addresses are all free.
    pub fn new(config: DhcpConfig) -> Self {
        let count = config.addresses.clamp(1, MOST_ADDRESSES);
        let search = config.search.iter().filter_map(|name| name.parse().ok()).collect();
        let fqdn = config.fqdn.as_ref().and_then(|name| name.parse().ok());
        Self { leases: (0..count).map(|_| None).collect(), fqdn, search, config }
    }

    /// The answer to a message that has arrived now.
    ///
    /// # Errors
    /// There is no answer, and why.
    pub fn answer(&mut self, message: &[u8], now: Instant) -> Result<DhcpAnswer, DhcpError> {
        if message.len() > MOST_BYTES {
            return Err(DhcpError::Malformed);
        }
        let message = known(message).ok_or(DhcpError::Malformed)?;
        let message =
            Message::decode(&mut Decoder::new(&message)).map_err(|_| DhcpError::Malformed)?;
        if message.opcode() != Opcode::BootRequest || message.hlen() > MOST_LINK_ADDRESS {
            return Err(DhcpError::Malformed);
        }
        if !message.giaddr().is_unspecified() {
            return Err(DhcpError::Relayed);
        }
        let client = identifier(&message);
        match message.opts().msg_type().ok_or(DhcpError::Malformed)? {
            MessageType::Discover => self.offer(&message, client, now),
            MessageType::Request => self.grant(&message, client, now),
            MessageType::Inform => Ok(self.reply(&message, MessageType::Ack, None)),
            MessageType::Release => {
                self.leases.iter_mut().for_each(|lease| {
                    lease.take_if(|lease| lease.client.as_deref() == Some(&client[..]));
                });
                Err(DhcpError::Silent)
            }
            MessageType::Decline => {
                self.decline(&message, &client, now);
                Err(DhcpError::Silent)
            }
            _ => Err(DhcpError::Malformed),
        }
    }

    fn offer(
        &mut self,
        message: &Message,
        client: Vec<u8>,
        now: Instant,
    ) -> Result<DhcpAnswer, DhcpError> {
        let link = message.chaddr();
        let number = self.of_client(&client).or_else(|| {
            let wanted = requested(message).and_then(|address| self.number(address));
            wanted.filter(|&number| self.is_free(number, now)).or_else(|| self.first_free(now))
        });
        // Another client program of a guest that has one calls itself otherwise.
        let number = number.or_else(|| self.of_link(link)).ok_or(DhcpError::Full)?;
        let kept = self.leases[number].as_ref().map_or(now, |lease| lease.until);
        let until = kept.max(now + OFFER);
        self.leases[number] = Some(Lease { client: Some(client), link: link.to_vec(), until });
        Ok(self.reply(message, MessageType::Offer, Some(self.address(number))))
    }

    fn grant(
        &mut self,
        message: &Message,
        client: Vec<u8>,
        now: Instant,
    ) -> Result<DhcpAnswer, DhcpError> {
        let server = message.opts().get(OptionCode::ServerIdentifier);
        if let Some(DhcpOption::ServerIdentifier(server)) = server
            && *server != self.config.server
        {
            return Err(DhcpError::Silent);
        }
        // A client that renews has the address already.
        let wanted = requested(message).unwrap_or(message.ciaddr());
        let number = self.number(wanted).filter(|&number| {
            let is_of_client = self.of_client(&client).is_none_or(|own| own == number);
            is_of_client && (self.is_of(number, &client) || self.is_free(number, now))
        });
        let Some(number) = number else {
            return Ok(self.reply(message, MessageType::Nak, None));
        };
        let (link, until) = (message.chaddr().to_vec(), now + self.config.lease);
        self.leases[number] = Some(Lease { client: Some(client), link, until });
        Ok(self.reply(message, MessageType::Ack, Some(wanted)))
    }

    /// A client says that somebody has the address that it was given.
    fn decline(&mut self, message: &Message, client: &[u8], now: Instant) {
        let number = requested(message).and_then(|address| self.number(address));
        if let Some(number) = number.filter(|&number| self.is_of(number, client)) {
            let (link, until) = (Vec::new(), now + self.config.lease);
            self.leases[number] = Some(Lease { client: None, link, until });
        }
    }

    /// The place of an address in the pool.
    fn number(&self, address: Ipv4Addr) -> Option<usize> {
        let number = address.to_bits().checked_sub(self.config.first.to_bits())?;
        usize::try_from(number).ok().filter(|&number| number < self.leases.len())
    }

    fn address(&self, number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.config.first.to_bits().wrapping_add(number as u32))
    }

    fn of_client(&self, client: &[u8]) -> Option<usize> {
        (0..self.leases.len()).find(|&number| self.is_of(number, client))
    }

    fn is_of(&self, number: usize, client: &[u8]) -> bool {
        let lease = self.leases[number].as_ref();
        lease.is_some_and(|lease| lease.client.as_deref() == Some(client))
    }

    /// The first address that clients of a link address have.
    fn of_link(&self, link: &[u8]) -> Option<usize> {
        let is_of_link = |lease: &Lease| lease.client.is_some() && lease.link == link;
        let number = self.leases.iter().position(|lease| lease.as_ref().is_some_and(is_of_link));
        number.filter(|_| !link.is_empty())
    }

    /// Whether anybody may have an address. The only one of a pool is that of its guest, by
    /// whatever name and however often a client asks.
    fn is_free(&self, number: usize, now: Instant) -> bool {
        let lease = self.leases[number].as_ref();
        self.leases.len() == 1 || lease.is_none_or(|lease| lease.until <= now)
    }

    /// An address that nobody has had, or else the one whose lease has been over for longest.
    fn first_free(&self, now: Instant) -> Option<usize> {
        let free = (0..self.leases.len()).filter(|&number| self.is_free(number, now));
        free.min_by_key(|&number| self.leases[number].as_ref().map(|lease| lease.until))
    }

    fn reply(&self, message: &Message, kind: MessageType, address: Option<Ipv4Addr>) -> DhcpAnswer {
        let mut answer = Message::default();
        answer.set_opcode(Opcode::BootReply).set_htype(message.htype()).set_xid(message.xid());
        answer.set_flags(message.flags()).set_chaddr(message.chaddr());
        let is_refusal = kind == MessageType::Nak;
        let config = &self.config;
        let options = answer.opts_mut();
        options.insert(DhcpOption::MessageType(kind));
        options.insert(DhcpOption::ServerIdentifier(config.server));
        if let Some(identifier) = message.opts().get(OptionCode::ClientIdentifier) {
            // RFC 6842: it comes back as it was.
            options.insert(identifier.clone());
        }
        if !is_refusal {
            self.settings(options);
            self.name(message, options);
        }
        if let Some(address) = address {
            let lease = u32::try_from(config.lease.as_secs()).unwrap_or(u32::MAX);
            options.insert(DhcpOption::AddressLeaseTime(lease));
            answer.set_yiaddr(address).set_siaddr(config.server);
        }
        let has_address = !is_refusal && !message.ciaddr().is_unspecified();
        if has_address {
            answer.set_ciaddr(message.ciaddr());
        }
        let to = if has_address { message.ciaddr() } else { Ipv4Addr::BROADCAST };
        let data = answer.to_vec().expect("no option is longer than an answer may be");
        DhcpAnswer { to: SocketAddrV4::new(to, CLIENT_PORT), data }
    }

    fn settings(&self, options: &mut DhcpOptions) {
        let config = &self.config;
        options.insert(DhcpOption::SubnetMask(config.network.netmask()));
        options.insert(DhcpOption::BroadcastAddr(config.network.broadcast()));
        if let Some(router) = config.router {
            options.insert(DhcpOption::Router(vec![router]));
            if !config.network.contains(&router) {
                options.insert(DhcpOption::ClasslessStaticRoute(routes_by(router)));
            }
        }
        if !config.dns.is_empty() {
            options.insert(DhcpOption::DomainNameServer(config.dns.clone()));
        }
        if let Some(mtu) = config.mtu {
            options.insert(DhcpOption::InterfaceMtu(mtu));
        }
        if let Some(domain) = &config.domain {
            options.insert(DhcpOption::DomainName(domain.clone()));
        }
        if !self.search.is_empty() {
            options.insert(DhcpOption::DomainSearch(self.search.clone()));
        }
    }

    fn name(&self, message: &Message, options: &mut DhcpOptions) {
        if let Some(hostname) = &self.config.hostname {
            options.insert(DhcpOption::Hostname(hostname.clone()));
        }
        if let Some(fqdn) = &self.fqdn {
            // RFC 4702 section 4: nothing is changed in DNS, also for a client that wants it.
            let is_overridden = match message.opts().get(OptionCode::ClientFQDN) {
                Some(DhcpOption::ClientFQDN(theirs)) => theirs.flags().s(),
                _ => false,
            };
            let flags = FqdnFlags::default().set_e(true).set_o(is_overridden);
            options.insert(DhcpOption::ClientFQDN(ClientFQDN::new(flags, fqdn.clone())));
        }
    }
}

/// A default route by a router that is outside of the network, and first one to it on the link.
fn routes_by(router: Ipv4Addr) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let to_router = (Ipv4Net::from(router), Ipv4Addr::UNSPECIFIED);
    vec![to_router, (Ipv4Net::default(), router)]
}

/// What a client is known by: its identifier, or else its link address.
fn identifier(message: &Message) -> Vec<u8> {
    match message.opts().get(OptionCode::ClientIdentifier) {
        Some(DhcpOption::ClientIdentifier(identifier)) => {
            identifier[..identifier.len().min(255)].to_vec()
        }
        _ => message.chaddr().to_vec(),
    }
}

fn requested(message: &Message) -> Option<Ipv4Addr> {
    match message.opts().get(OptionCode::RequestedIpAddress) {
        Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
        _ => None,
    }
}

/// A message with those of its options that the server reads, if they have the length that they
/// must have. The decoder of others takes their lengths for granted, which guests may have chosen.
fn known(message: &[u8]) -> Option<Vec<u8>> {
    let (header, mut options) = message.split_at_checked(HEADER)?;
    let mut known = header.to_vec();
    while let [code, rest @ ..] = options {
        let code = OptionCode::from(*code);
        if code == OptionCode::Pad {
            options = rest;
            continue;
        }
        let [length, rest @ ..] = rest else { break };
        let Some((value, others)) = rest.split_at_checked(usize::from(*length)) else { break };
        let is_known = match code {
            OptionCode::MessageType => value.len() == 1,
            OptionCode::RequestedIpAddress | OptionCode::ServerIdentifier => value.len() == 4,
            OptionCode::ClientIdentifier => true,
            OptionCode::End => break,
            _ => false,
        };
        if is_known {
            known.extend([code.into(), *length]);
            known.extend(value);
        } else if code == OptionCode::ClientFQDN
            && let Some((flags, _)) = value.split_at_checked(BEFORE_FQDN)
        {
            // The root stands for the name, which is the host's to choose.
            known.extend([code.into(), BEFORE_FQDN as u8 + 1]);
            known.extend(flags);
            known.push(0);
        }
        options = others;
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
    const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

    fn server(addresses: u32) -> DhcpServer {
        let network = "10.0.2.0/24".parse().expect("a network");
        DhcpServer::new(DhcpConfig {
            addresses,
            router: Some(SERVER),
            dns: vec![Ipv4Addr::new(10, 0, 2, 3)],
            mtu: Some(65520),
            hostname: Some("web".to_owned()),
            domain: Some("example.org".to_owned()),
            search: ["example.org", "no..name", "example.net"].map(str::to_owned).to_vec(),
            ..DhcpConfig::new(SERVER, network, FIRST)
        })
    }

    /// A message of the client with this number.
    fn message(client: u8, kind: MessageType, options: &[DhcpOption]) -> Message {
        let mut message = Message::default();
        message.set_opcode(Opcode::BootRequest).set_chaddr(&[2, 0, 0, 0, 0, client]);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        message
    }

    fn ask(
        server: &mut DhcpServer,
        message: &Message,
        now: Instant,
    ) -> Result<(Message, Ipv4Addr), DhcpError> {
        let answer = server.answer(&message.to_vec().expect("a message"), now)?;
        assert_eq!(answer.to.port(), 68);
        let decoded = Message::decode(&mut Decoder::new(&answer.data)).expect("a message");
        assert_eq!(decoded.opcode(), Opcode::BootReply);
        assert_eq!(decoded.xid(), message.xid());
        Ok((decoded, *answer.to.ip()))
    }

    #[test]
    fn options_of_any_length_are_passed_over() {
        let discover = message(1, MessageType::Discover, &[]).to_vec().expect("a message");
        let (header, rest) = discover.split_at(HEADER);
        for code in 1..255 {
            for length in 0..4 {
                let option = [&[code, length][..], &vec![1; usize::from(length)]].concat();
                // An answer or a reason, and no panic.
                let _ = server(1).answer(&[header, &option, rest].concat(), Instant::now());
            }
        }
    }

    fn kind(message: &Message) -> MessageType {
        message.opts().msg_type().expect("a kind")
    }

    fn wanted(address: Ipv4Addr) -> [DhcpOption; 2] {
        [DhcpOption::RequestedIpAddress(address), DhcpOption::ServerIdentifier(SERVER)]
    }

    #[test]
    fn an_address_is_offered_and_granted_with_the_settings_of_the_link() {
        let (mut server, now) = (server(1), Instant::now());
        let discover = message(1, MessageType::Discover, &[]);
        let (offer, to) = ask(&mut server, &discover, now).expect("an offer");
        assert_eq!(
            (kind(&offer), offer.yiaddr(), to),
            (MessageType::Offer, FIRST, Ipv4Addr::BROADCAST)
        );
        let request = message(1, MessageType::Request, &wanted(FIRST));
        let (ack, _) = ask(&mut server, &request, now).expect("an answer");
        assert_eq!((kind(&ack), ack.yiaddr()), (MessageType::Ack, FIRST));
        let domains = ["example.org.", "example.net."].map(|name| name.parse().expect("a name"));
        for option in [
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::Router(vec![SERVER]),
            DhcpOption::DomainNameServer(vec![Ipv4Addr::new(10, 0, 2, 3)]),
            DhcpOption::InterfaceMtu(65520),
            DhcpOption::Hostname("web".to_owned()),
            DhcpOption::DomainName("example.org".to_owned()),
            DhcpOption::DomainSearch(domains.to_vec()),
            DhcpOption::ServerIdentifier(SERVER),
            DhcpOption::AddressLeaseTime(86_400),
        ] {
            assert_eq!(ack.opts().get(OptionCode::from(&option)), Some(&option));
        }
        // The router is in the network.
        assert_eq!(ack.opts().get(OptionCode::ClasslessStaticRoute), None);
    }

    #[test]
    fn a_router_outside_of_the_network_is_told_with_a_route_to_it() {
        let router = Ipv4Addr::new(10, 128, 0, 1);
        let network = "10.128.0.2/32".parse().expect("a network");
        let mut config = DhcpConfig::new(router, network, Ipv4Addr::new(10, 128, 0, 2));
        config.router = Some(router);
        let discover = message(1, MessageType::Discover, &[]);
        let (offer, _) =
            ask(&mut DhcpServer::new(config), &discover, Instant::now()).expect("an offer");
        let route = |net: &str, by| (net.parse().expect("a network"), by);
        let routes =
            vec![route("10.128.0.1/32", Ipv4Addr::UNSPECIFIED), route("0.0.0.0/0", router)];
        let expected = DhcpOption::ClasslessStaticRoute(routes);
        assert_eq!(offer.opts().get(OptionCode::ClasslessStaticRoute), Some(&expected));
    }

    /// The value of an option in an answer, byte by byte.
    fn value_of(answer: &[u8], wanted: u8) -> Option<&[u8]> {
        let mut rest = &answer[HEADER..];
        while let [code, length, after @ ..] = rest {
            let (value, others) = after.split_at(usize::from(*length));
            if *code == wanted {
                return Some(value);
            }
            rest = others;
        }
        None
    }

    #[test]
    fn a_guest_is_told_its_names_whether_it_has_named_itself_or_not() {
        let network = "10.0.2.0/24".parse().expect("a network");
        let mut config = DhcpConfig::new(SERVER, network, FIRST);
        config.hostname = Some("Web".to_owned());
        config.fqdn = Some("web.example.org".to_owned());
        let mut server = DhcpServer::new(config);
        let discover = message(1, MessageType::Discover, &[]).to_vec().expect("a message");
        let name = b"\x03web\x07example\x03org\0";
        // Flags: the server changes DNS (S), or the client does.
        for (flags, told) in [(None, 4), (Some(0b101), 0b110), (Some(0b100), 0b100)] {
            let own = flags.map(|flags| vec![81, 8, flags, 0, 0, 3, b'b', b'o', b'x', 0]);
            let (header, rest) = discover.split_at(HEADER);
            let asked = [header, &own.unwrap_or_default(), rest].concat();
            let offer = server.answer(&asked, Instant::now()).expect("an offer").data;
            assert_eq!(value_of(&offer, 12), Some(&b"Web"[..]));
            assert_eq!(value_of(&offer, 81), Some(&[&[told, 255, 255][..], name].concat()[..]));
        }
        let foreign = message(1, MessageType::Request, &wanted(Ipv4Addr::new(192, 0, 2, 1)));
        let foreign = foreign.to_vec().expect("a message");
        let refusal = server.answer(&foreign, Instant::now()).expect("an answer").data;
        assert_eq!([12, 81].map(|code| value_of(&refusal, code)), [None; 2]);
    }

    #[test]
    fn search_domains_of_any_number_make_an_answer() {
        let network = "10.0.2.0/24".parse().expect("a network");
        let mut config = DhcpConfig::new(SERVER, network, FIRST);
        config.search = (0..100).map(|number| format!("{number}.{}", "a".repeat(60))).collect();
        let discover = message(1, MessageType::Discover, &[]);
        let (offer, _) =
            ask(&mut DhcpServer::new(config), &discover, Instant::now()).expect("an offer");
        let Some(DhcpOption::DomainSearch(domains)) = offer.opts().get(OptionCode::DomainSearch)
        else {
            panic!("domains");
        };
        assert_eq!(domains.len(), 100);
    }

    #[test]
    fn a_client_renews_by_unicast() {
        let (mut server, now) = (server(1), Instant::now());
        let request = message(1, MessageType::Request, &wanted(FIRST));
        ask(&mut server, &request, now).expect("an answer");
        let mut renewal = message(1, MessageType::Request, &[]);
        renewal.set_ciaddr(FIRST);
        let later = now + Duration::from_secs(43_200);
        let (ack, to) = ask(&mut server, &renewal, later).expect("an answer");
        assert_eq!((kind(&ack), ack.yiaddr(), to), (MessageType::Ack, FIRST, FIRST));
    }

    #[test]
    fn what_is_not_the_servers_to_give_is_refused_to_all_that_hear() {
        let (mut server, now) = (server(1), Instant::now());
        let foreign = Ipv4Addr::new(192, 168, 1, 7);
        let mut request = message(1, MessageType::Request, &wanted(foreign));
        request.set_ciaddr(foreign);
        let (nak, to) = ask(&mut server, &request, now).expect("an answer");
        assert_eq!((kind(&nak), nak.yiaddr()), (MessageType::Nak, Ipv4Addr::UNSPECIFIED));
        assert_eq!(to, Ipv4Addr::BROADCAST);
        assert!(nak.opts().get(OptionCode::Router).is_none());
    }

    #[test]
    fn a_request_to_another_server_is_not_answered() {
        let (mut server, now) = (server(1), Instant::now());
        let other = [DhcpOption::ServerIdentifier(Ipv4Addr::new(10, 0, 2, 9))];
        let request = message(1, MessageType::Request, &other);
        assert_eq!(ask(&mut server, &request, now).expect_err("silent"), DhcpError::Silent);
    }

    #[test]
    fn the_pool_is_bounded_and_used_again_when_a_lease_is_over() {
        let (mut server, now) = (server(2), Instant::now());
        for client in 1..=2 {
            let discover = message(client, MessageType::Discover, &[]);
            ask(&mut server, &discover, now).expect("an offer");
        }
        let third = message(3, MessageType::Discover, &[]);
        assert_eq!(ask(&mut server, &third, now).expect_err("no room"), DhcpError::Full);
        let later = now + OFFER;
        let (offer, _) = ask(&mut server, &third, later).expect("an offer");
        assert_eq!(offer.yiaddr(), FIRST);
        // The first client comes too late.
        let request = message(1, MessageType::Request, &wanted(FIRST));
        let (nak, _) = ask(&mut server, &request, later).expect("an answer");
        assert_eq!(kind(&nak), MessageType::Nak);
    }

    #[test]
    fn a_released_address_is_free_and_a_declined_one_is_not() {
        let (mut server, now) = (server(2), Instant::now());
        let second = Ipv4Addr::new(10, 0, 2, 16);
        let request = message(1, MessageType::Request, &wanted(FIRST));
        ask(&mut server, &request, now).expect("an answer");
        let release = message(1, MessageType::Release, &[]);
        assert_eq!(ask(&mut server, &release, now).expect_err("silent"), DhcpError::Silent);
        let request = message(2, MessageType::Request, &wanted(FIRST));
        let (ack, _) = ask(&mut server, &request, now).expect("an answer");
        assert_eq!(kind(&ack), MessageType::Ack);
        let decline = message(2, MessageType::Decline, &wanted(FIRST));
        assert_eq!(ask(&mut server, &decline, now).expect_err("silent"), DhcpError::Silent);
        let (offer, _) =
            ask(&mut server, &message(2, MessageType::Discover, &[]), now).expect("an offer");
        assert_eq!(offer.yiaddr(), second);
    }

    #[test]
    fn another_client_program_of_a_guest_gets_an_address_of_that_guest() {
        for addresses in 1..=2 {
            let (mut server, now) = (server(addresses), Instant::now());
            for client in 1..=addresses as u8 {
                // It sends no identifier.
                let discover = message(client, MessageType::Discover, &[]);
                ask(&mut server, &discover, now).expect("an offer");
            }
            let identifier = DhcpOption::ClientIdentifier(vec![1, 2, 0, 0, 0, 0, 1]);
            let discover = message(1, MessageType::Discover, core::slice::from_ref(&identifier));
            let (offer, _) = ask(&mut server, &discover, now).expect("an offer");
            assert_eq!(offer.yiaddr(), FIRST);
            let [wanted, of] = wanted(FIRST);
            let request = message(1, MessageType::Request, &[wanted, of, identifier]);
            let (ack, _) = ask(&mut server, &request, now).expect("an answer");
            assert_eq!((kind(&ack), ack.yiaddr()), (MessageType::Ack, FIRST));
        }
    }

    #[test]
    fn the_only_address_is_for_whoever_asks() {
        let (mut server, now) = (server(1), Instant::now());
        for client in 1..=2 {
            let request = message(client, MessageType::Request, &wanted(FIRST));
            let (ack, _) = ask(&mut server, &request, now).expect("an answer");
            assert_eq!(kind(&ack), MessageType::Ack);
        }
        let decline = message(2, MessageType::Decline, &wanted(FIRST));
        assert_eq!(ask(&mut server, &decline, now).expect_err("silent"), DhcpError::Silent);
        let discover = message(2, MessageType::Discover, &[]);
        let (offer, _) = ask(&mut server, &discover, now).expect("an offer");
        assert_eq!(offer.yiaddr(), FIRST);
    }

    #[test]
    fn a_guest_with_an_address_is_told_the_settings_only() {
        let (mut server, now) = (server(1), Instant::now());
        let mut inform = message(1, MessageType::Inform, &[]);
        inform.set_ciaddr(Ipv4Addr::new(10, 0, 2, 100));
        let (ack, to) = ask(&mut server, &inform, now).expect("an answer");
        assert_eq!((kind(&ack), ack.yiaddr()), (MessageType::Ack, Ipv4Addr::UNSPECIFIED));
        assert_eq!(to, Ipv4Addr::new(10, 0, 2, 100));
        assert!(ack.opts().get(OptionCode::AddressLeaseTime).is_none());
        assert!(ack.opts().get(OptionCode::Router).is_some());
    }

    #[test]
    fn nonsense_gets_no_answer() {
        let (mut server, now) = (server(1), Instant::now());
        let mut relayed = message(1, MessageType::Discover, &[]);
        relayed.set_giaddr(SERVER);
        assert_eq!(ask(&mut server, &relayed, now).expect_err("silent"), DhcpError::Relayed);
        let discover = message(1, MessageType::Discover, &[]).to_vec().expect("a message");
        let mut long_link_address = discover.clone();
        long_link_address[2] = 17;
        let mut answer = discover.clone();
        answer[0] = 2;
        let too_long = [&discover[..], &[0; 1500]].concat();
        for bytes in [&[][..], &[1; 100], &long_link_address, &answer, &too_long] {
            assert_eq!(server.answer(bytes, now), Err(DhcpError::Malformed));
        }
    }
}
