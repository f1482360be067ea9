//! Local ports: which are taken, and which one a new connection gets (RFC 6056).

use crate::flow::{FlowKey, FourTuple};
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use hashbrown::HashTable;
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;

/// Counters of the double-hash algorithm, as many as Linux has (`INET_TABLE_PERTURB_SIZE`). Whoever
/// makes a host connect to many of his ports learns which of them share a counter, and so knows the
/// host again elsewhere (CVE-2022-32296), unless the counters are many more than such connections.
const PERTURBATIONS: usize = 65_536;
/// The next search of a counter begins up to so many ports behind the one that was found, less one.
/// So nobody can count the connections to others that share it.
const STEPS: u64 = 1 << 3;

/// Remote ends and own addresses without a free port that are remembered. Connections in
/// TIME-WAIT, 262,144 of them by default, use up the 28,232 ports towards nine remote ends.
const EXHAUSTED: usize = 16;
/// Ports that became free towards one of them before it is forgotten: a search finds one soon then.
const FREED: usize = 1024;
/// The least time between two searches towards a remote end without a free port.
const SEARCH_PAUSE: Nanos = Nanos::from_millis(10);

/// Local ports of a host: how many connections have each, which ones are chosen, and which searches
/// found none.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) uses: PortUses,
    pub(crate) ephemeral: Ephemeral,
    pub(crate) exhausted: Exhausted,
}

impl Ports {
    /// `key` is that of the hashes and of the choice of ports.
    pub(crate) fn new(key: FlowKey) -> Self {
        Self {
            uses: PortUses::new(key),
            ephemeral: Ephemeral::new(key),
            exhausted: Exhausted::default(),
        }
    }

    /// A connection no longer has its local port. `claim` is what it was counted with.
    pub(crate) fn free(&mut self, tuple: &FourTuple, claim: Claim) {
        let is_given_back = self.uses.remove(tuple.local_addr(), claim);
        self.exhausted.on_freed(tuple);
        if is_given_back && self.ephemeral.contains(tuple.local_port) {
            self.exhausted.on_port_freed(tuple.local_port);
        }
    }

    /// A listener or a bound socket no longer has this port.
    pub(crate) fn on_unbound(&mut self, port: u16) {
        if self.ephemeral.contains(port) {
            self.exhausted.on_port_freed(port);
            self.exhausted.addresses.clear();
        }
    }
}

/// How many connections use each local port, and each address with a port. What is left of a
/// connection counts as one. O(1) per open and close, with one hash; 24 bytes per port in use, and
/// 28 bytes per address and port.
#[derive(Debug)]
pub(crate) struct PortUses {
    key: FlowKey,
    ports: HashTable<PortUse>,
    /// Hashed under the key: where connections to foreign addresses are taken, peers choose them.
    addresses: HashTable<(IpAddr, u16, Uses)>,
}

/// How a connection has its local port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// `SO_REUSEADDR`
    pub(crate) reuse: bool,
    /// The port was not chosen for the connection, nor is it one of others (`sk_is_connect_bind`).
    pub(crate) is_given: bool,
}

/// Connections at one place.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    all: u32,
    /// Those that share with nobody: their sockets have no `SO_REUSEADDR`.
    unshared: u32,
}

impl Uses {
    fn add(&mut self, reuse: bool) {
        self.all += 1;
        self.unshared += u32::from(!reuse);
    }

    fn remove(&mut self, reuse: bool) {
        self.all -= 1;
        self.unshared -= u32::from(!reuse);
    }

    /// Whether a connection is in the way of a socket with or without `SO_REUSEADDR`.
    fn obstruct(self, reuse: bool) -> bool {
        if reuse { self.unshared > 0 } else { self.all > 0 }
    }
}

#[derive(Debug)]
struct PortUse {
    port: u16,
    /// Connections that it was given to. While there are some, it is not chosen for others
    /// (`fastreuse` of `inet_bind_bucket`).
    given: u32,
    v4: Uses,
    v6: Uses,
}

impl PortUse {
    fn of(&mut self, address: IpAddr) -> &mut Uses {
        if address.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }
}

impl PortUses {
    pub(crate) fn new(key: FlowKey) -> Self {
        Self { key, ports: HashTable::new(), addresses: HashTable::new() }
    }

    fn hash(port: u16) -> u64 {
        // Local ports are not chosen by peers: a multiplication spreads them well enough.
        u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn hash_address(key: FlowKey, ip: IpAddr, port: u16) -> u64 {
        key.hash(&FourTuple { local_port: port, ..FourTuple::without_ports(ip, ip) })
    }

    /// One more connection has this address and port.
    pub(crate) fn add(&mut self, local: SocketAddr, claim: Claim) {
        let Claim { reuse, is_given } = claim;
        let (ip, port) = (local.ip(), local.port());
        let (v4, v6) = (Uses::default(), Uses::default());
        let used = self
            .ports
            .entry(Self::hash(port), |used| used.port == port, |used| Self::hash(used.port))
            .or_insert(PortUse { port, given: 0, v4, v6 })
            .into_mut();
        used.given += u32::from(is_given);
        used.of(ip).add(reuse);
        let key = self.key;
        let hash = Self::hash_address(key, ip, port);
        let is_it = |used: &(IpAddr, u16, Uses)| (used.0, used.1) == (ip, port);
        self.addresses
            .entry(hash, is_it, |used| Self::hash_address(key, used.0, used.1))
            .or_insert((ip, port, Uses::default()))
            .into_mut()
            .2
            .add(reuse);
    }

    /// One connection less. `claim` is what it was counted with. Whether the port is no longer
    /// given: it was to this connection, and is to no other one (`inet_bind2_bucket_destroy`).
    pub(crate) fn remove(&mut self, local: SocketAddr, claim: Claim) -> bool {
        let Claim { reuse, is_given } = claim;
        let (ip, port) = (local.ip(), local.port());
        let key = self.key;
        let hash = Self::hash_address(key, ip, port);
        let is_it = |used: &(IpAddr, u16, Uses)| (used.0, used.1) == (ip, port);
        // What is not counted at its address is not counted at its port either.
        let Ok(mut at_address) = self.addresses.find_entry(hash, is_it) else { return false };
        at_address.get_mut().2.remove(reuse);
        if at_address.get().2.all == 0 {
            at_address.remove();
        }
        let addresses = &mut self.addresses;
        // Memory of a burst is given back; each shrink is paid for by the removals before it.
        if addresses.capacity() > 1024 && addresses.len() * 8 < addresses.capacity() {
            let hash_of = |used: &(IpAddr, u16, Uses)| Self::hash_address(key, used.0, used.1);
            addresses.shrink_to(addresses.len() * 2, hash_of);
        }
        let found = self.ports.find_entry(Self::hash(port), |used| used.port == port);
        let Ok(mut entry) = found else { return false };
        let used = entry.get_mut();
        used.of(ip).remove(reuse);
        used.given -= u32::from(is_given);
        let is_given_back = is_given && used.given == 0;
        if used.v4.all + used.v6.all == 0 {
            entry.remove();
        }
        is_given_back
    }

    /// Whether this port was given to one of the connections that have it.
    pub(crate) fn is_given(&self, port: u16) -> bool {
        self.get(port).is_some_and(|used| used.given > 0)
    }

    fn get(&self, port: u16) -> Option<&PortUse> {
        self.ports.find(Self::hash(port), |used| used.port == port)
    }

    /// Whether a connection has the address and port of a socket that is to be bound to `local`
    /// (`inet_rcv_saddr_equal`), and does not share them: one of both has no `SO_REUSEADDR`, which
    /// is `reuse` of the socket. The unspecified address is all of its family; with `is_dual` it
    /// is all of both.
    pub(crate) fn obstruct(&self, local: SocketAddr, is_dual: bool, reuse: bool) -> bool {
        let (ip, port) = (local.ip(), local.port());
        if ip.is_unspecified() {
            return self.get(port).is_some_and(|PortUse { v4, v6, .. }| {
                (is_dual || ip.is_ipv4()) && v4.obstruct(reuse)
                    || ip.is_ipv6() && v6.obstruct(reuse)
            });
        }
        let hash = Self::hash_address(self.key, ip, port);
        let used = self.addresses.find(hash, |used| (used.0, used.1) == (ip, port));
        used.is_some_and(|used| used.2.obstruct(reuse))
    }

    /// Ports in use, and addresses with a port.
    #[cfg(test)]
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.ports.len(), self.addresses.len())
    }
}

/// Chooses ephemeral ports by the double-hash algorithm (RFC 6056 section 3.3.4) with random steps,
/// as Linux does. It takes 256 KiB, of which the system gives pages as counters are used.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    range: RangeInclusive<u16>,
    key: FlowKey,
    /// How many steps were drawn.
    drawn: u64,
    perturbation: Box<[u32]>,
}

impl Ephemeral {
    /// Chooses nothing before it has a range; steps are drawn under `key`.
    pub(crate) fn new(key: FlowKey) -> Self {
        // All counters begin at 0, as the key makes each hash begin elsewhere.
        let perturbation = vec![0; PERTURBATIONS].into_boxed_slice();
        Self { range: NO_PORTS, key, drawn: 0, perturbation }
    }

    /// Chooses within `range` from now on (`net.ipv4.ip_local_port_range`).
    pub(crate) fn set_range(&mut self, range: RangeInclusive<u16>) {
        self.range = range;
    }

    /// The first port that `is_free` for a flow whose remote end and local address hash to `hash`.
    /// O(1) while ports are plenty; tries the whole range before it gives up.
    pub(crate) fn choose(&mut self, hash: u64, is_free: impl Fn(u16) -> bool) -> Option<u16> {
        let perturbation = &mut self.perturbation[(hash >> 32) as usize % PERTURBATIONS];
        let offset = (hash as u32).wrapping_add(*perturbation);
        let (port, tried) = search(&self.range, offset, is_free)?;
        self.drawn += 1;
        // The lower half of such a number chooses ports of datagrams, which are seen outside.
        let step = (self.key.hash_number(self.drawn) >> 32 & (STEPS - 1)) as u32;
        *perturbation = perturbation.wrapping_add(tried.max(step) + 1);
        Some(port)
    }

    /// Whether this port may be chosen.
    pub(crate) fn contains(&self, port: u16) -> bool {
        self.range.contains(&port)
    }
}

/// The range before limits are set, in which there is no port to choose.
pub(crate) const NO_PORTS: RangeInclusive<u16> = RangeInclusive::new(1, 0);

/// The first port of `range` from `offset` on that `is_free`, and how many were not.
pub(crate) fn search(
    range: &RangeInclusive<u16>,
    offset: u32,
    is_free: impl Fn(u16) -> bool,
) -> Option<(u16, u32)> {
    let (low, high) = (u32::from(*range.start()), u32::from(*range.end()));
    let count = (high + 1).checked_sub(low).filter(|&count| count > 0)?;
    let offset = offset % count;
    (0..count)
        .map(|tried| ((low + (offset + tried) % count) as u16, tried))
        .find(|&(port, _)| is_free(port))
}

/// Addresses of sockets for which a search has found no free port. Such a search tries the whole
/// range, under a lock which every packet takes; so it is made again only when a port was given
/// back that the address may have, and not for each socket that an application asks for. At most 16
/// addresses.
#[derive(Debug, Default)]
pub(crate) struct FullAddresses(Vec<(SocketAddr, bool)>);

impl FullAddresses {
    /// What `search` finds for a socket at this address, whose port is ignored; `is_dual` says that
    /// `[::]` stands for `0.0.0.0` too. `None`, without a search, if the last one found nothing and
    /// no such port was given back since.
    pub(crate) fn choose(
        &mut self,
        mut local: SocketAddr,
        is_dual: bool,
        search: impl FnOnce() -> Option<u16>,
    ) -> Option<u16> {
        local.set_port(0);
        let address = (local, is_dual);
        if self.0.contains(&address) {
            return None;
        }
        let found = search();
        if found.is_none() {
            if self.0.len() >= EXHAUSTED {
                self.0.remove(0);
            }
            self.0.push(address);
        }
        found
    }

    /// A connection at `local` is over, which was in the way of sockets at this address and at the
    /// unspecified one.
    fn on_freed(&mut self, local: IpAddr) {
        self.0.retain(|&(full, is_dual)| {
            let is_of_all =
                full.ip().is_unspecified() && (is_dual || full.is_ipv4() == local.is_ipv4());
            !is_of_all && full.ip() != local
        });
    }

    /// A port may be free again.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Remote ends towards which a search has found no free port, with the ports that became free
/// since. A search that fails tries the whole range, under the lock of the tables which every
/// packet takes; so it is made once, and not for each connection that an application asks for.
/// Where ports can be had from TIME-WAIT after a while (`tcp_tw_reuse`), it is made again then.
///
/// Cost: a comparison for each remote end that is remembered when a connection ends, and nothing
/// where none is. At most 16 * 2 KiB.
#[derive(Debug, Default)]
pub(crate) struct Exhausted {
    /// In the order in which they were found.
    ends: VecDeque<Searched>,
    /// Those of sockets that are to be bound.
    pub(crate) addresses: FullAddresses,
}

#[derive(Debug)]
struct Searched {
    /// With the local port 0.
    ends: FourTuple,
    freed: VecDeque<u16>,
    searched_at: Instant,
    /// The time after which the first port can be had from TIME-WAIT.
    reusable_after: Instant,
}

impl Searched {
    /// Notes a port that became free; `false` if there is no room for it.
    fn note(&mut self, port: u16) -> bool {
        let has_room = self.freed.len() < FREED;
        if has_room {
            self.freed.push_back(port);
        }
        has_room
    }
}

impl Exhausted {
    fn ends_of(tuple: &FourTuple) -> FourTuple {
        FourTuple { local_port: 0, ..*tuple }
    }

    fn find(&self, tuple: &FourTuple) -> Option<usize> {
        let ends = Self::ends_of(tuple);
        self.ends.iter().position(|searched| searched.ends == ends)
    }

    /// A search has found no port between these ends; the local port is ignored. The first of those
    /// in TIME-WAIT can be had after `reusable_after`.
    pub(crate) fn add(&mut self, now: Instant, tuple: &FourTuple, reusable_after: Instant) {
        if self.ends.len() >= EXHAUSTED {
            self.ends.pop_front();
        }
        let (ends, freed) = (Self::ends_of(tuple), VecDeque::new());
        self.ends.push_back(Searched { ends, freed, searched_at: now, reusable_after });
    }

    /// Whether no remote end is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A connection between these ends is in TIME-WAIT, and its port can be had after this time.
    pub(crate) fn on_waiting(&mut self, tuple: &FourTuple, reusable_after: Instant) {
        if let Some(at) = self.find(tuple) {
            let searched = &mut self.ends[at];
            searched.reusable_after = searched.reusable_after.min(reusable_after);
        }
    }

    /// A connection between these ends is over, or its TIME-WAIT.
    pub(crate) fn on_freed(&mut self, tuple: &FourTuple) {
        self.addresses.on_freed(tuple.local);
        let Some(at) = self.find(tuple) else { return };
        if !self.ends[at].note(tuple.local_port) {
            self.ends.remove(at);
        }
    }

    /// A port may be free towards all remote ends.
    fn on_port_freed(&mut self, port: u16) {
        self.ends.retain_mut(|searched| searched.note(port));
    }

    /// Chooses among the ports that became free. `None` if a search is to be made: nothing is known
    /// about these ends, or TIME-WAIT has left a port. `Some(None)` if no port is free. O(1)
    /// amortized over the ports that became free.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        tuple: &FourTuple,
        is_free: impl Fn(u16) -> bool,
    ) -> Option<Option<u16>> {
        let at = self.find(tuple)?;
        let Searched { freed, searched_at, reusable_after, .. } = &mut self.ends[at];
        if now > *reusable_after && now >= *searched_at + SEARCH_PAUSE {
            self.ends.remove(at);
            return None;
        }
        while let Some(port) = freed.pop_front() {
            if is_free(port) {
                // It stays: whoever asked may not take it. It goes when it is found in use.
                freed.push_back(port);
                return Some(Some(port));
            }
        }
        Some(None)
    }

    /// Forgets all: ports may be free for another reason than the end of a connection.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.addresses.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);
    const CHOSEN: Claim = Claim { reuse: false, is_given: false };
    const SHARED: Claim = Claim { reuse: true, is_given: false };
    const GIVEN: Claim = Claim { reuse: false, is_given: true };

    fn within(range: RangeInclusive<u16>, key: u64) -> Ephemeral {
        let mut ephemeral = Ephemeral::new(FlowKey::new(key, 2));
        assert_eq!(ephemeral.choose(3, |_| true), None, "no range yet");
        ephemeral.set_range(range);
        ephemeral
    }

    #[test]
    fn a_search_tries_every_port_from_wherever_it_begins() {
        assert_eq!(search(&(10..=12), u32::MAX, |port| port == 12), Some((12, 2)));
        for offset in [0, 1, u32::MAX - 1, u32::MAX] {
            for wanted in 10..=12 {
                let found = search(&(10..=12), offset, |port| port == wanted);
                assert_eq!(found.map(|(port, _)| port), Some(wanted), "from {offset}");
            }
        }
        assert_eq!(search(&(0..=u16::MAX), u32::MAX, |port| port == 0), Some((0, 1)));
        assert_eq!(search(&NO_PORTS, 7, |_| true), None);
    }

    #[test]
    fn uses_are_counted_down_to_nothing() {
        let mut uses = PortUses::new(FlowKey::new(1, 2));
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        uses.add(at("10.0.0.1:80"), CHOSEN);
        uses.add(at("10.0.0.1:80"), CHOSEN);
        uses.remove(at("10.0.0.1:80"), CHOSEN);
        assert!(uses.obstruct(at("10.0.0.1:80"), false, false));
        uses.add(at("[fd00::1]:80"), CHOSEN);
        assert_eq!(uses.len(), (1, 2));
        uses.remove(at("10.0.0.1:80"), CHOSEN);
        assert!(
            uses.obstruct(at("[::]:80"), false, false)
                && !uses.obstruct(at("0.0.0.0:80"), false, false)
        );
        uses.remove(at("10.0.0.1:80"), CHOSEN);
        uses.remove(at("[fd00::1]:80"), CHOSEN);
        uses.remove(at("[fd00::1]:80"), CHOSEN);
        assert!(!uses.obstruct(at("[::]:80"), true, false) && uses.len() == (0, 0));
    }

    #[test]
    fn uses_of_other_addresses_and_families_do_not_matter() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let all = ["10.0.0.1:80", "10.0.0.2:80", "0.0.0.0:80", "[fd00::1]:80", "[::]:80"];
        let met = |used: &str, is_dual| {
            let mut uses = PortUses::new(FlowKey::new(1, 2));
            uses.add(at(used), CHOSEN);
            assert!(
                !uses.obstruct(at("10.0.0.1:81"), false, false)
                    && !uses.obstruct(at("[::]:81"), true, false)
            );
            let met =
                |one: &&str| uses.obstruct(at(one), is_dual && one.starts_with("[::]"), false);
            all.into_iter().filter(met).collect::<Vec<_>>()
        };
        assert_eq!(met("10.0.0.1:80", false), ["10.0.0.1:80", "0.0.0.0:80"]);
        assert_eq!(met("10.0.0.1:80", true), ["10.0.0.1:80", "0.0.0.0:80", "[::]:80"]);
        for is_dual in [false, true] {
            assert_eq!(met("[fd00::1]:80", is_dual), ["[fd00::1]:80", "[::]:80"]);
        }
    }

    #[test]
    fn a_place_is_shared_where_all_have_the_switch() {
        let mut uses = PortUses::new(FlowKey::new(1, 2));
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (own, all) = (at("10.0.0.1:80"), at("0.0.0.0:80"));
        let obstruct = |uses: &PortUses, reuse| {
            let found = uses.obstruct(own, false, reuse);
            assert_eq!(uses.obstruct(all, false, reuse), found);
            assert_eq!(uses.obstruct(at("[::]:80"), true, reuse), found);
            found
        };
        uses.add(own, SHARED);
        assert_eq!([true, false].map(|reuse| obstruct(&uses, reuse)), [false, true]);
        uses.add(own, CHOSEN);
        assert_eq!([true, false].map(|reuse| obstruct(&uses, reuse)), [true, true]);
        uses.remove(own, CHOSEN);
        assert_eq!([true, false].map(|reuse| obstruct(&uses, reuse)), [false, true]);
        uses.remove(own, SHARED);
        assert_eq!([true, false].map(|reuse| obstruct(&uses, reuse)), [false, false]);
    }

    #[test]
    fn a_given_port_stays_so_until_the_last_connection_that_it_was_given_to_is_over() {
        let mut uses = PortUses::new(FlowKey::new(1, 2));
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (one, other) = (at("10.0.0.1:80"), at("[fd00::1]:80"));
        uses.add(one, CHOSEN);
        assert!(!uses.is_given(80));
        uses.add(one, GIVEN);
        uses.add(other, GIVEN);
        assert!(uses.is_given(80) && !uses.is_given(81));
        assert!(!uses.remove(one, GIVEN) && uses.is_given(80), "it is to the other one");
        assert!(uses.remove(other, GIVEN) && !uses.is_given(80));
        assert_eq!(uses.len(), (1, 1), "the first one stays");
        assert!(!uses.remove(one, CHOSEN), "it was given to nobody");
        assert_eq!(uses.len(), (0, 0));
    }

    #[test]
    fn the_whole_range_is_tried_and_no_more() {
        let mut ephemeral = within(40_000..=40_003, 1);
        let mut taken = Vec::new();
        while let Some(port) = ephemeral.choose(7, |port| !taken.contains(&port)) {
            taken.push(port);
        }
        taken.sort_unstable();
        assert_eq!(taken, [40_000, 40_001, 40_002, 40_003]);
        assert_eq!(within(u16::MAX..=u16::MAX, 1).choose(3, |_| true), Some(u16::MAX));
    }

    fn towards(remote_port: u16, local_port: u16) -> FourTuple {
        let [local, remote] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Into::into);
        FourTuple { local, remote, local_port, remote_port, scope: 0 }
    }

    #[test]
    fn a_remote_end_without_a_free_port_is_searched_once() {
        let mut exhausted = Exhausted::default();
        assert_eq!(exhausted.choose(NOW, &towards(80, 0), |_| true), None, "it was never searched");
        exhausted.add(NOW, &towards(80, 0), Instant::FAR_FUTURE);
        let nobody = |_: u16| unreachable!("no port is known to be free");
        assert_eq!(exhausted.choose(NOW, &towards(80, 0), nobody), Some(None));
        assert_eq!(exhausted.choose(NOW, &towards(81, 0), nobody), None);
        exhausted.on_freed(&towards(81, 40_000));
        assert_eq!(exhausted.choose(NOW, &towards(80, 0), nobody), Some(None));
        exhausted.on_freed(&towards(80, 40_001));
        exhausted.on_freed(&towards(80, 40_002));
        let is_free = |port| port != 40_001;
        assert_eq!(exhausted.choose(NOW, &towards(80, 0), is_free), Some(Some(40_002)));
        assert_eq!(
            exhausted.choose(NOW, &towards(80, 0), is_free),
            Some(Some(40_002)),
            "not taken"
        );
        assert_eq!(exhausted.choose(NOW, &towards(80, 0), |_| false), Some(None));
    }

    #[test]
    fn ports_that_applications_gave_and_get_back_lead_to_no_search() {
        let mut ports = Ports::new(FlowKey::new(1, 2));
        ports.ephemeral.set_range(40_000..=40_009);
        let mut searches = 0;
        let mut choose = |ports: &mut Ports, is_free: &dyn Fn(u16) -> bool| {
            for remote_port in [80, 81] {
                let ends = towards(remote_port, 0);
                let found = ports.exhausted.choose(NOW, &ends, is_free);
                searches += u32::from(found.is_none());
                if found.is_none() {
                    ports.exhausted.add(NOW, &ends, Instant::FAR_FUTURE);
                }
            }
            searches
        };
        let nobody = |_| unreachable!("no port is known to be free");
        assert_eq!(choose(&mut ports, &nobody), 2);
        let close = |ports: &mut Ports, port, is_given, others: bool| {
            let tuple = towards(7, port);
            if others {
                ports.uses.add(tuple.local_addr(), GIVEN);
            }
            let claim = if is_given { GIVEN } else { CHOSEN };
            ports.uses.add(tuple.local_addr(), claim);
            ports.free(&tuple, claim);
        };
        for _ in 0..2 * FREED {
            close(&mut ports, 5000, true, false);
            close(&mut ports, 40_001, false, false);
            ports.on_unbound(5001);
        }
        // It was given to others too, who have it still.
        close(&mut ports, 40_002, true, true);
        assert_eq!(choose(&mut ports, &nobody), 2, "none of these is free for others");
        close(&mut ports, 40_003, true, false);
        ports.on_unbound(40_004);
        for port in [40_003, 40_004] {
            let found = Cell::new(0);
            let is_it = |one| {
                found.set(found.get() + u32::from(one == port));
                one == port
            };
            assert_eq!(choose(&mut ports, &is_it), 2);
            assert_eq!(found.get(), 2, "{port} is tried towards both ends");
            ports.on_unbound(40_004);
        }
        assert_eq!(choose(&mut ports, &|_| false), 2);
    }

    #[test]
    fn an_address_without_a_free_port_is_searched_once() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut full = FullAddresses::default();
        let mut looks = 0;
        let mut ephemeral = within(40_000..=40_009, 1);
        let mut choose = |full: &mut FullAddresses, local: &str, is_dual| {
            let tried = Cell::new(0);
            let is_free = |_| {
                tried.set(tried.get() + 1);
                false
            };
            assert_eq!(full.choose(at(local), is_dual, || ephemeral.choose(7, is_free)), None);
            looks += tried.get();
            looks
        };
        assert_eq!(choose(&mut full, "127.0.0.1:0", false), 10);
        assert_eq!(choose(&mut full, "127.0.0.1:7", false), 10, "it is known");
        assert_eq!(choose(&mut full, "127.0.0.2:0", false), 20, "another address");
        assert_eq!(choose(&mut full, "[::]:0", false), 30);
        assert_eq!(choose(&mut full, "[::]:0", true), 40, "of both families");
        full.clear();
        assert_eq!(choose(&mut full, "127.0.0.1:0", false), 50, "a port was given back");
        for last in 0..100 {
            choose(&mut full, &format!("127.0.1.{last}:0"), false);
        }
        assert_eq!(full.0.len(), EXHAUSTED);
        full.clear();
        assert_eq!(full.choose(at("127.0.0.1:0"), false, || Some(5)), Some(5));
        assert_eq!(full.0.len(), 0);
    }

    #[test]
    fn a_connection_that_ends_leaves_a_port_to_the_addresses_that_it_was_in_the_way_of() {
        let noted = [
            ("10.0.0.1:0", false),
            ("10.0.0.2:0", false),
            ("0.0.0.0:0", false),
            ("[::]:0", false),
            ("[::]:0", true),
            ("[fd00::1]:0", false),
        ];
        let searched_after = |local: &str| {
            let mut exhausted = Exhausted::default();
            let searches = |exhausted: &mut Exhausted| {
                let is_searched = |(at, is_dual): &(&str, bool)| {
                    let mut is_searched = false;
                    exhausted.addresses.choose(at.parse().unwrap(), *is_dual, || {
                        is_searched = true;
                        None
                    });
                    is_searched
                };
                noted.into_iter().filter(is_searched).collect::<Vec<_>>()
            };
            assert_eq!(searches(&mut exhausted), noted);
            let (local, remote) = (local.parse().unwrap(), local.parse().unwrap());
            exhausted.on_freed(&FourTuple::new(local, remote));
            searches(&mut exhausted)
        };
        assert_eq!(searched_after("127.0.0.1:40000"), [noted[2], noted[4]]);
        assert_eq!(searched_after("10.0.0.1:40000"), [noted[0], noted[2], noted[4]]);
        assert_eq!(searched_after("[fd00::1]:40000"), noted[3..]);
    }

    #[test]
    fn a_search_is_made_again_when_time_wait_leaves_a_port_and_not_too_often() {
        let mut exhausted = Exhausted::default();
        let ms = |ms| NOW + Nanos::from_millis(ms);
        let choose =
            |exhausted: &mut Exhausted, at| exhausted.choose(at, &towards(80, 0), |_| true);
        exhausted.add(NOW, &towards(80, 0), ms(1000));
        assert_eq!(choose(&mut exhausted, ms(1000)), Some(None), "not before that time is over");
        assert_eq!(choose(&mut exhausted, ms(1001)), None);
        exhausted.add(ms(1001), &towards(80, 0), Instant::FAR_FUTURE);
        assert_eq!(choose(&mut exhausted, ms(100_000)), Some(None));
        exhausted.on_waiting(&towards(81, 7), ms(1005));
        assert_eq!(choose(&mut exhausted, ms(100_000)), Some(None), "that of another end");
        exhausted.on_waiting(&towards(80, 7), ms(1005));
        assert_eq!(choose(&mut exhausted, ms(1010)), Some(None), "just searched");
        assert_eq!(choose(&mut exhausted, ms(1011)), None);
    }

    #[test]
    fn exhausted_ends_and_their_free_ports_are_bounded() {
        let mut exhausted = Exhausted::default();
        (0..100).for_each(|port| exhausted.add(NOW, &towards(port, 0), Instant::FAR_FUTURE));
        assert_eq!(exhausted.ends.len(), EXHAUSTED);
        assert_eq!(
            exhausted.choose(NOW, &towards(83, 0), |_| true),
            None,
            "the oldest are forgotten"
        );
        for port in 0..=FREED as u16 {
            assert_eq!(exhausted.choose(NOW, &towards(99, 0), |_| false), Some(None));
            exhausted.on_freed(&towards(99, port));
        }
        for port in 0..FREED as u16 {
            exhausted.on_freed(&towards(99, port));
        }
        assert_eq!(exhausted.choose(NOW, &towards(99, 0), |_| true), None, "many are free again");
    }

    #[test]
    fn two_opens_to_one_peer_get_different_ports_even_if_the_first_is_free_again() {
        let mut ephemeral = within(32_768..=60_999, 9);
        assert_ne!(ephemeral.choose(7, |_| true), ephemeral.choose(7, |_| true));
    }

    #[test]
    fn ports_to_one_peer_do_not_tell_how_many_connections_others_had() {
        let mut ephemeral = within(32_768..=60_999, 9);
        // Linux draws one of eight.
        let mut steps = [0; 9];
        let mut last = ephemeral.choose(7, |_| true).unwrap();
        for _ in 0..800 {
            let port = ephemeral.choose(7, |_| true).unwrap();
            steps[(port - 32_768 + 28_232 - (last - 32_768)) as usize % 28_232] += 1;
            last = port;
        }
        assert!(steps[0] == 0 && steps[1..].iter().all(|&count| count > 50), "{steps:?}");
    }

    #[test]
    fn few_peers_share_a_counter() {
        let key = FlowKey::new(1, 2);
        let mut ephemeral = within(32_768..=60_999, 9);
        let of = |port| key.hash(&towards(port, 0));
        let first = |ephemeral: &mut Ephemeral, port| ephemeral.choose(of(port), |_| true).unwrap();
        // What the first port towards a peer would be if nobody had moved its counter.
        let alone = |port| first(&mut within(32_768..=60_999, 9), port);
        let moved = (1..=500).filter(|&port| first(&mut ephemeral, port) != alone(port)).count();
        assert!(moved < 10, "{moved}");
    }
}
