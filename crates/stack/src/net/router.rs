//! Router discovery of one interface: what it advertises as a router of its link, and what it has
//! heard of others (RFC 4861 section 6, RFC 8106).
//!
//! Nothing is sent here: a `Router` says what is due, and its interface sends it.
//!
//! Cost: nothing per packet. A router has one advertisement and two due times. A host keeps the
//! latest advertisement of at most eight routers.

use super::address::Prefix;
use super::neighbor::LinkAddress;
use crate::keyed::Keyed;
use crate::wire::icmpv6::{Message, ROUTER_TIMERS_LEN};
use crate::wire::nd_option::{NdOption, decode_names, encode_name, options};
use core::hash::BuildHasher;
use core::net::{IpAddr, Ipv6Addr};
use neap_tcp::time::{Instant, Nanos};
use smallvec::SmallVec;
use std::sync::Arc;

/// `MaxRtrAdvInterval` (RFC 4861 section 6.2.1): most time between two unsolicited advertisements.
const MAX_INTERVAL: Nanos = Nanos::from_secs(600);
/// `MinRtrAdvInterval`: least time between two of them.
const MIN_INTERVAL: Nanos = Nanos::from_secs(198);
/// `MAX_INITIAL_RTR_ADVERTISEMENTS` (RFC 4861 section 10): the first ones come faster.
const INITIAL: u8 = 3;
/// `MAX_INITIAL_RTR_ADVERT_INTERVAL`
const INITIAL_INTERVAL: Nanos = Nanos::from_secs(16);
/// `MIN_DELAY_BETWEEN_RAS`: least time between two advertisements to all nodes.
const MIN_DELAY: Nanos = Nanos::from_secs(3);
/// Time in which the hosts of a link that has come up find out whether their addresses are unique
/// (RFC 4862 section 5.4: up to a second of delay and one of waiting). Linux takes a default route
/// in it all the same, and a connection made then keeps an address that nobody can answer.
const ADDRESSES_SETTLE: Nanos = Nanos::from_secs(3);
/// `MAX_RA_DELAY_TIME`: an answer waits for a random time up to this.
const MAX_ANSWER_DELAY: Nanos = Nanos::from_millis(500);
/// Most bytes of an advertisement: it has to fit the least MTU of IPv6.
const MAX_LEN: usize = 1280 - 40;
/// Routers of one link that are remembered.
const MAX_HEARD: usize = 8;
/// Most prefixes, DNS servers and search domains each that are taken of an advertisement.
const MAX_ENTRIES: usize = 16;

/// What a router tells the hosts of its link (RFC 4861 section 4.2).
///
/// Times are in seconds if nothing else is said; `u32::MAX` is for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// Hop limit that hosts should use for their packets; 0 says nothing.
    pub hop_limit: u8,
    /// Hosts get addresses by DHCPv6 (M flag).
    pub managed: bool,
    /// Hosts get other settings by DHCPv6 (O flag).
    pub other: bool,
    /// Time for which the router is a default router, in seconds; 0 if it is none. At most 9000.
    pub lifetime: u16,
    /// Time for which a neighbour counts as reachable, in milliseconds; 0 says nothing.
    pub reachable_time: u32,
    /// Time between two neighbour solicitations, in milliseconds; 0 says nothing.
    pub retrans_timer: u32,
    /// MTU of the link in bytes.
    pub mtu: Option<u32>,
    /// Prefixes of addresses.
    pub prefixes: Vec<AdvertisedPrefix>,
    /// DNS servers (RFC 8106, RDNSS).
    pub rdnss: Vec<AdvertisedDnsServer>,
    /// Domains in which short names are looked up (RFC 8106, DNSSL).
    pub dnssl: Vec<AdvertisedDomain>,
}

impl Default for RouterAdvertisement {
    /// A default router for 1800 seconds, with a hop limit of 64, that says nothing else.
    fn default() -> Self {
        Self {
            hop_limit: 64,
            managed: false,
            other: false,
            lifetime: 1800,
            reachable_time: 0,
            retrans_timer: 0,
            mtu: None,
            prefixes: Vec::new(),
            rdnss: Vec::new(),
            dnssl: Vec::new(),
        }
    }
}

/// Prefix of addresses in a [`RouterAdvertisement`] (RFC 4861 section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedPrefix {
    /// The prefix, one of IPv6.
    pub prefix: Prefix,
    /// Its addresses are on the link (L flag).
    pub on_link: bool,
    /// Hosts make addresses of it (A flag, SLAAC). They do so if it has 64 bits.
    pub autonomous: bool,
    /// Time for which it is valid, in seconds.
    pub valid: u32,
    /// Time for which addresses of it are preferred, in seconds; at most `valid`.
    pub preferred: u32,
}

impl AdvertisedPrefix {
    /// A prefix that is on the link and that hosts make addresses of, with the lifetimes of RFC
    /// 4861: valid for 30 days, preferred for 7.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix, on_link: true, autonomous: true, valid: 2_592_000, preferred: 604_800 }
    }
}

/// DNS server in a [`RouterAdvertisement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedDnsServer {
    /// Its address.
    pub address: Ipv6Addr,
    /// Time for which it may be used, in seconds; 0 ends its use.
    pub lifetime: u32,
}

/// Search domain in a [`RouterAdvertisement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedDomain {
    /// Its name, without a dot at the end.
    pub name: String,
    /// Time for which it may be used, in seconds; 0 ends its use.
    pub lifetime: u32,
}

/// Advertisement that an interface has received, the latest one of its router.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeardRouter {
    /// Link-local address of the router.
    pub address: Ipv6Addr,
    /// Its link address, if it has said it.
    pub link: Option<LinkAddress>,
    /// When it was received.
    pub received: Instant,
    /// What it said. Of prefixes, DNS servers and domains there are at most 16 each.
    pub advertisement: Arc<RouterAdvertisement>,
}

impl RouterAdvertisement {
    /// What is wrong with it, if it cannot be sent.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_bad = |one: &AdvertisedPrefix| one.preferred > one.valid;
        if self.lifetime > 9000 {
            return Some("its lifetime is above 9000 seconds (RFC 4861)");
        }
        if self.mtu.is_some_and(|mtu| mtu < 1280) {
            return Some("its mtu is below 1280, the least of IPv6");
        }
        if self.prefixes.iter().any(|one| one.prefix.network().is_ipv4()) {
            return Some("one of its prefixes is of IPv4; give those of IPv6");
        }
        if self.prefixes.iter().any(is_bad) {
            return Some("one of its prefixes is preferred for longer than it is valid");
        }
        if self.dnssl.iter().any(|domain| encode_name(&domain.name).is_none()) {
            return Some("one of its domains is no DNS name");
        }
        let has_room = self.body(Some([0; 6])).len() + 8 <= MAX_LEN;
        (!has_room).then_some("it is longer than 1240 bytes; leave some of its lists out")
    }

    /// The message without its body. `is_final` says that the sender is no router from now on.
    pub(crate) fn message(&self, is_final: bool) -> Message {
        Message::RouterAdvertisement {
            hop_limit: self.hop_limit,
            managed: self.managed,
            other: self.other,
            lifetime: if is_final { 0 } else { self.lifetime },
        }
    }

    /// The body of the message; `link` is that of the sender.
    pub(crate) fn body(&self, link: Option<LinkAddress>) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend(self.reachable_time.to_be_bytes());
        out.extend(self.retrans_timer.to_be_bytes());
        let mut emit = |option: NdOption<'_>| option.emit(&mut out);
        link.into_iter().for_each(|link| emit(NdOption::SourceLink(link)));
        self.mtu.into_iter().for_each(|mtu| emit(NdOption::Mtu(mtu)));
        for &AdvertisedPrefix { prefix, on_link, autonomous, valid, preferred } in &self.prefixes {
            let IpAddr::V6(network) = prefix.network() else { continue };
            let len = prefix.len();
            emit(NdOption::Prefix { network, len, on_link, autonomous, valid, preferred });
        }
        for &AdvertisedDnsServer { address, lifetime } in &self.rdnss {
            emit(NdOption::Rdnss { lifetime, servers: &[address.octets()] });
        }
        for AdvertisedDomain { name, lifetime } in &self.dnssl {
            if let Some(names) = encode_name(name) {
                emit(NdOption::Dnssl { lifetime: *lifetime, names: &names });
            }
        }
        out
    }

    /// Reads a body whose options were checked; of its lists at most [`MAX_ENTRIES`] each.
    fn read(message: Message, body: &[u8]) -> Option<(Self, Option<LinkAddress>)> {
        let Message::RouterAdvertisement { hop_limit, managed, other, lifetime } = message else {
            return None;
        };
        let (&timers, behind) = body.split_first_chunk::<ROUTER_TIMERS_LEN>()?;
        let timers = u64::from_be_bytes(timers);
        let mut read = Self {
            hop_limit,
            managed,
            other,
            lifetime,
            reachable_time: (timers >> 32) as u32,
            retrans_timer: timers as u32,
            ..Self::default()
        };
        let mut source = None;
        for option in options(behind).flatten() {
            match option {
                NdOption::SourceLink(link) => source = Some(link),
                NdOption::Mtu(mtu) => read.mtu = Some(mtu),
                NdOption::Prefix { network, len, on_link, autonomous, valid, preferred } => {
                    // RFC 4861 section 6.3.4, RFC 4862 section 5.5.3 (b, c).
                    let is_ignored = network.is_unicast_link_local()
                        || network.is_multicast()
                        || preferred > valid;
                    let prefix = Prefix::new(network.into(), len).ok().filter(|_| !is_ignored);
                    let one =
                        |prefix| AdvertisedPrefix { prefix, on_link, autonomous, valid, preferred };
                    read.prefixes.extend(prefix.map(one));
                }
                NdOption::Rdnss { lifetime, servers } => {
                    let room = MAX_ENTRIES.saturating_sub(read.rdnss.len());
                    let address = |&octets: &[u8; 16]| Ipv6Addr::from(octets);
                    let server = |address| AdvertisedDnsServer { address, lifetime };
                    read.rdnss.extend(servers.iter().map(address).map(server).take(room));
                }
                NdOption::Dnssl { lifetime, names } => {
                    let room = MAX_ENTRIES.saturating_sub(read.dnssl.len());
                    let domain = |name| AdvertisedDomain { name, lifetime };
                    read.dnssl.extend(decode_names(names).map(domain).take(room));
                }
                NdOption::Other => {}
            }
        }
        read.prefixes.truncate(MAX_ENTRIES);
        Some((read, source))
    }
}

/// An advertisement that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueTo {
    /// All nodes on the link.
    All,
    /// The host that has asked.
    One(Ipv6Addr),
}

/// The part of an interface that is a router of its link.
#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) advertisement: RouterAdvertisement,
    key: Keyed,
    drawn: u64,
    /// Nobody has been told since the link came up.
    is_unheard: bool,
    /// Initial advertisements that are still to come.
    initial: u8,
    /// When all nodes are told next.
    next: Instant,
    /// When all nodes were told last.
    last: Option<Instant>,
    /// A host that has asked, and when it is answered.
    answer: Option<(Instant, Ipv6Addr)>,
}

impl Router {
    /// A router that tells all nodes when their addresses have settled, and whoever asks before.
    /// `seed` spreads its times.
    pub(crate) fn new(now: Instant, advertisement: RouterAdvertisement, seed: u64) -> Self {
        Self {
            advertisement,
            key: Keyed::new(seed),
            drawn: 0,
            is_unheard: true,
            initial: INITIAL,
            next: now + ADDRESSES_SETTLE,
            last: None,
            answer: None,
        }
    }

    /// Advertises something else from now on, and tells all nodes soon.
    pub(crate) fn change(&mut self, now: Instant, advertisement: RouterAdvertisement) {
        self.advertisement = advertisement;
        // If the first of the initial ones is still to come, all hear of this then.
        if self.initial < INITIAL {
            self.initial = INITIAL;
            self.next = self.last.map_or(now, |last| now.max(last + MIN_DELAY));
        }
    }

    /// The link has come up: those on it may know nothing yet.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.is_unheard = true;
        self.initial = INITIAL;
        self.next = now + ADDRESSES_SETTLE;
    }

    fn random(&mut self, least: Nanos, most: Nanos) -> Nanos {
        self.drawn += 1;
        let span = most.0.saturating_sub(least.0).saturating_add(1);
        Nanos(least.0 + self.key.hash_one(self.drawn) % span)
    }

    /// A host asks. It is answered alone; if another one waits for that, or if it has no address
    /// yet, all are answered together, at most once in three seconds (RFC 4861 section 6.2.6).
    ///
    /// The first answer after the link has come up is sent at once, as a program that starts with
    /// its link, in a container for instance, needs its route. Later answers are spread over time,
    /// so that several routers do not answer together.
    pub(crate) fn on_solicitation(&mut self, now: Instant, from: Ipv6Addr) {
        let most = if self.is_unheard { Nanos::ZERO } else { MAX_ANSWER_DELAY };
        let due = now + self.random(Nanos::ZERO, most);
        match self.answer {
            Some((_, waiting)) if waiting == from => {}
            None if !from.is_unspecified() => self.answer = Some((due, from)),
            _ => {
                let earliest = self.last.map_or(due, |last| due.max(last + MIN_DELAY));
                self.next = self.next.min(earliest);
            }
        }
    }

    /// When something is due next.
    pub(crate) fn deadline(&self) -> Instant {
        self.answer.map_or(self.next, |(due, _)| due.min(self.next))
    }

    /// What is due at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> SmallVec<[DueTo; 2]> {
        let mut due = SmallVec::new();
        if self.next <= now {
            // Whoever waits for an answer hears this one.
            self.answer = None;
            self.last = Some(now);
            self.initial = self.initial.saturating_sub(1);
            let interval = self.random(MIN_INTERVAL, MAX_INTERVAL);
            let most = if self.initial > 0 { INITIAL_INTERVAL } else { MAX_INTERVAL };
            self.next = now + interval.min(most);
            due.push(DueTo::All);
        }
        if let Some((_, from)) = self.answer.take_if(|(at, _)| *at <= now) {
            due.push(DueTo::One(from));
        }
        self.is_unheard &= due.is_empty();
        due
    }
}

/// Why an advertisement is not remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// It is none.
    Malformed,
    /// As many routers are known as there is room for, and none of them is over.
    Full,
}

/// The routers that an interface has heard of.
#[derive(Debug, Default)]
pub(crate) struct Heard(Vec<HeardRouter>);

impl Heard {
    /// Takes an advertisement that was parsed and checked. In a full table it takes the place of a
    /// router that is none any more.
    pub(crate) fn on_advertisement(
        &mut self,
        now: Instant,
        address: Ipv6Addr,
        message: Message,
        body: &[u8],
    ) -> Result<&HeardRouter, Unheard> {
        let (advertisement, link) =
            RouterAdvertisement::read(message, body).ok_or(Unheard::Malformed)?;
        let advertisement = Arc::new(advertisement);
        let heard = HeardRouter { address, link, received: now, advertisement };
        let is_over = |one: &HeardRouter| {
            let lifetime = Nanos::from_secs(one.advertisement.lifetime.into());
            now.since(one.received) >= lifetime
        };
        let known = self.0.iter().position(|one| one.address == address);
        let at = match known {
            Some(at) => at,
            None if self.0.len() < MAX_HEARD => {
                self.0.push(heard.clone());
                self.0.len() - 1
            }
            None => self.0.iter().position(is_over).ok_or(Unheard::Full)?,
        };
        self.0[at] = heard;
        Ok(&self.0[at])
    }

    /// The routers, in the order in which they were first heard.
    pub(crate) fn list(&self) -> Vec<HeardRouter> {
        self.0.clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(7_000_000_000);
    const SECOND: Nanos = Nanos::from_secs(1);

    fn host(last: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
    }

    fn router() -> Router {
        Router::new(NOW, RouterAdvertisement::default(), 3)
    }

    /// All that is due until `end`, each with its time.
    fn run(router: &mut Router, end: Instant) -> Vec<(Instant, DueTo)> {
        let mut all = Vec::new();
        while router.deadline() <= end {
            let now = router.deadline();
            all.extend(router.take_due(now).into_iter().map(|to| (now, to)));
        }
        all
    }

    fn full() -> RouterAdvertisement {
        RouterAdvertisement {
            hop_limit: 63,
            managed: true,
            other: true,
            lifetime: 9000,
            reachable_time: 30_000,
            retrans_timer: 1000,
            mtu: Some(1400),
            prefixes: vec![AdvertisedPrefix::new("fd00:1::/64".parse().unwrap())],
            rdnss: vec![AdvertisedDnsServer { address: host(5), lifetime: 600 }],
            dnssl: vec![AdvertisedDomain { name: "example.org".into(), lifetime: u32::MAX }],
        }
    }

    #[test]
    fn what_is_advertised_is_heard() {
        let mut heard = Heard::default();
        let link = Some([2, 0, 0, 0, 0, 1]);
        let body = full().body(link);
        assert_eq!(options(&body[8..]).filter(Result::is_ok).count(), 5);
        let one = heard.on_advertisement(NOW, host(1), full().message(false), &body).unwrap();
        assert_eq!((one.address, one.link, &*one.advertisement), (host(1), link, &full()));
        heard.on_advertisement(NOW, host(1), full().message(true), &body).unwrap();
        let list = heard.list();
        assert_eq!((list.len(), list[0].advertisement.lifetime), (1, 0), "in the same place");
    }

    #[test]
    fn prefixes_that_no_host_may_use_are_not_heard() {
        let mut heard = Heard::default();
        let prefix = |text: &str| AdvertisedPrefix::new(text.parse().unwrap());
        let too_long = AdvertisedPrefix { valid: 10, preferred: 20, ..prefix("fd00:2::/64") };
        let prefixes = vec![too_long, prefix("fe80::/64"), prefix("ff02::/64")];
        let said = RouterAdvertisement { prefixes, ..full() };
        let (message, body) = (said.message(false), said.body(None));
        let one = heard.on_advertisement(NOW, host(1), message, &body).unwrap();
        assert_eq!(one.advertisement.prefixes, []);
    }

    #[test]
    fn a_full_table_keeps_routers_that_are_not_over() {
        let mut heard = Heard::default();
        let body = RouterAdvertisement::default().body(None);
        let say = |heard: &mut Heard, now, from, is_final| {
            let message = RouterAdvertisement::default().message(is_final);
            heard.on_advertisement(now, host(from), message, &body).map(drop)
        };
        for from in 0..8 {
            say(&mut heard, NOW, from, false).unwrap();
        }
        assert_eq!(say(&mut heard, NOW, 9, false), Err(Unheard::Full));
        say(&mut heard, NOW, 4, true).unwrap();
        say(&mut heard, NOW, 9, false).unwrap();
        assert_eq!(heard.list()[4].address, host(9));
        assert_eq!(say(&mut heard, NOW, 10, false), Err(Unheard::Full));
        say(&mut heard, NOW + Nanos::from_secs(1800), 10, false).unwrap();
        assert_eq!(heard.list().len(), 8);
    }

    #[test]
    fn lists_are_cut_to_their_bound() {
        let mut many = full();
        many.prefixes = vec![many.prefixes[0]; 20];
        many.rdnss = vec![many.rdnss[0]; 20];
        many.dnssl = vec![many.dnssl[0].clone(); 20];
        assert!(many.fault().is_some(), "too long to be sent");
        let (read, _) = RouterAdvertisement::read(many.message(false), &many.body(None)).unwrap();
        assert_eq!((read.prefixes.len(), read.rdnss.len(), read.dnssl.len()), (16, 16, 16));
    }

    #[test]
    fn what_cannot_be_sent_has_a_fault() {
        assert_eq!(full().fault(), None);
        let v4 = AdvertisedPrefix::new("10.0.0.0/8".parse().unwrap());
        let short = AdvertisedPrefix { valid: 5, ..full().prefixes[0] };
        let nameless = AdvertisedDomain { name: "a..b".into(), lifetime: 1 };
        for bad in [
            RouterAdvertisement { lifetime: 9001, ..full() },
            RouterAdvertisement { mtu: Some(1279), ..full() },
            RouterAdvertisement { prefixes: vec![v4], ..full() },
            RouterAdvertisement { prefixes: vec![short], ..full() },
            RouterAdvertisement { dnssl: vec![nameless], ..full() },
        ] {
            assert!(bad.fault().is_some(), "{bad:?}");
        }
    }

    #[test]
    fn unsolicited_advertisements_come_fast_at_first_and_then_rarely() {
        let mut router = router();
        let all = run(&mut router, NOW + Nanos::from_secs(6000));
        assert!(all.iter().all(|(_, to)| *to == DueTo::All));
        let gaps: Vec<_> = all.windows(2).map(|two| two[1].0.since(two[0].0)).collect();
        assert_eq!(all[0].0, NOW + ADDRESSES_SETTLE);
        assert_eq!(gaps[..2], [INITIAL_INTERVAL; 2]);
        assert!(gaps[2..].iter().all(|gap| (MIN_INTERVAL..=MAX_INTERVAL).contains(gap)));
        assert!((10..=30).contains(&gaps.len()), "{}", gaps.len());
    }

    #[test]
    fn one_host_is_answered_alone_and_many_together() {
        let mut router = router();
        run(&mut router, NOW + Nanos::from_secs(100));
        let asked = NOW + Nanos::from_secs(101);
        router.on_solicitation(asked, host(1));
        router.on_solicitation(asked, host(1));
        let answers = run(&mut router, asked + SECOND);
        let [(when, DueTo::One(to))] = answers[..] else { panic!("{answers:?}") };
        assert!(to == host(1) && when.since(asked) <= MAX_ANSWER_DELAY);

        let asked = asked + SECOND;
        for from in 1..100 {
            router.on_solicitation(asked, host(from));
        }
        router.on_solicitation(asked, Ipv6Addr::UNSPECIFIED);
        let answers = run(&mut router, asked + SECOND);
        let to_all = answers.iter().filter(|(_, to)| *to == DueTo::All).count();
        assert!(to_all == 1 && answers.len() <= 2, "{answers:?}");
        let told = router.last.unwrap();
        // A flood is answered at most once in three seconds, and one of it more often.
        let (mut to_all, mut alone) = (Vec::new(), 0);
        for step in 0..1000 {
            let now = asked + SECOND + Nanos::from_millis(step * 10);
            router.on_solicitation(now, host(step as u16));
            for to in router.take_due(now) {
                if to == DueTo::All { to_all.push(now) } else { alone += 1 }
            }
        }
        assert!((2..=4).contains(&to_all.len()), "{to_all:?}");
        assert!(to_all[0].since(told) >= MIN_DELAY);
        assert!(to_all.windows(2).all(|two| two[1].since(two[0]) >= MIN_DELAY));
        assert!(alone <= 100, "{alone}");
    }

    #[test]
    fn a_link_that_comes_up_is_told_again() {
        let mut router = router();
        run(&mut router, NOW + Nanos::from_secs(100));
        let up = NOW + Nanos::from_secs(110);
        router.restart(up);
        let told = run(&mut router, up + Nanos::from_secs(40));
        assert_eq!(told.len(), 3);
        assert_eq!(told[0].0, up + ADDRESSES_SETTLE);
    }

    #[test]
    fn a_change_is_told_soon_but_no_faster_than_allowed() {
        let mut router = router();
        router.change(NOW + SECOND, full());
        let told = run(&mut router, NOW + Nanos::from_secs(100));
        assert_eq!((told[0].0, told.len()), (NOW + ADDRESSES_SETTLE, 3), "nobody knew the first");
        let changes = [110, 111, 112].map(|second| NOW + Nanos::from_secs(second));
        router.change(changes[0], full());
        assert_eq!(run(&mut router, changes[0]), [(changes[0], DueTo::All)]);
        for change in &changes[1..] {
            router.change(*change, full());
            assert_eq!(run(&mut router, *change), []);
        }
        let next = changes[0] + MIN_DELAY;
        assert_eq!(run(&mut router, next), [(next, DueTo::All)]);
    }

    #[test]
    fn a_change_waits_for_addresses_too() {
        let mut router = router();
        run(&mut router, NOW + Nanos::from_secs(100));
        let up = NOW + Nanos::from_secs(110);
        router.restart(up);
        router.change(up + SECOND, full());
        assert_eq!(run(&mut router, up + Nanos::from_secs(40))[0].0, up + ADDRESSES_SETTLE);
    }

    #[test]
    fn a_host_that_asks_first_is_answered_before_all_are_told() {
        let mut router = router();
        router.on_solicitation(NOW, host(1));
        assert_eq!(run(&mut router, NOW + SECOND), [(NOW, DueTo::One(host(1)))]);
        // A flood has no more answers than later.
        let mut told = 0;
        for step in 0..100 {
            let now = NOW + SECOND + Nanos::from_millis(step * 10);
            router.on_solicitation(now, host(step as u16));
            told += router.take_due(now).len();
        }
        assert!((1..=10).contains(&told), "{told}");
        let up = NOW + Nanos::from_secs(100);
        run(&mut router, up);
        router.restart(up);
        router.on_solicitation(up, host(1));
        assert_eq!(run(&mut router, up), [(up, DueTo::One(host(1)))]);
    }
}
