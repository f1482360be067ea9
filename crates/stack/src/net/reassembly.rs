//! Reassembly of IPv4 and IPv6 fragments (RFC 791, RFC 815, RFC 5722, RFC 8200 section 4.5).
//!
//! Cost: one keyed hash per fragment, a copy of its data into memory of its own (so that a small
//! fragment never pins a large receive buffer), a binary search among the fragments of its
//! datagram, and one copy of the whole at the end. Over IPv4 two more hashes, to count what its
//! source sends. Everything is bounded: memory by [`Config::high_thresh`], fragments and bytes of a
//! datagram by constants, its life by [`Config::time`], and the counters of sources have 4 KiB.

use crate::keyed::Keyed;
use crate::wire::{Fragment, Protocol, ipv4, ipv6};
use bytes::{Bytes, BytesMut};
use core::hash::{BuildHasher, Hash};
use core::net::IpAddr;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use neap_tcp::segment::Ecn;
use neap_tcp::time::{Instant, Nanos};
use std::collections::VecDeque;

/// Most fragments of one datagram: the largest of IPv4 has 119 where the MTU is 576 bytes, and the
/// largest of IPv6 has 54 at the least MTU.
const MAX_PARTS: usize = 128;

/// Most fragments of one source between two of a datagram of IPv4 (`net.ipv4.ipfrag_max_dist`):
/// its identifications have 16 bits, so one that comes after more may be of a later datagram.
const MAX_DISTANCE: u32 = 64;

/// Counters of what sources have sent; which sources share one depends on the key.
const SOURCES: usize = 1024;

/// Largest datagram.
const MAX_LEN: usize = 65_535;

/// Bytes of bookkeeping that a datagram counts for, and a fragment.
const DATAGRAM_COST: usize = 256;
const PART_COST: usize = 64;

/// Limits of reassembly. The defaults are those of Linux for IPv4.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of memory for all datagrams together (`net.ipv4.ipfrag_high_thresh`).
    pub high_thresh: usize,
    /// Time that an incomplete datagram is kept (`net.ipv4.ipfrag_time`).
    pub time: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Self { high_thresh: 4 << 20, time: Nanos::from_secs(30) }
    }
}

/// Fragment as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    key: Key,
    protocol: Protocol,
    ecn: Ecn,
    fragment: Fragment,
    /// What comes before the data: the IP header, with its extensions.
    header: &'a [u8],
    data: &'a [u8],
}

impl<'a> Part<'a> {
    /// Whether it is of a packet of IPv4.
    pub(super) fn is_v4(&self) -> bool {
        self.key.source.is_ipv4()
    }

    /// Returns the fragment in a packet that was parsed from `bytes`; `None` if it is not
    /// fragmented.
    pub fn v4(packet: &ipv4::Packet, bytes: &'a [u8]) -> Option<Self> {
        let header = &packet.header;
        let fragment = packet.fragment?;
        let key = Key {
            source: header.source.into(),
            destination: header.destination.into(),
            identification: fragment.identification,
            protocol: header.protocol.0,
        };
        let (protocol, ecn) = (header.protocol, header.ecn);
        let (header, data) =
            (bytes.get(..packet.payload.start)?, bytes.get(packet.payload.clone())?);
        Some(Self { key, protocol, ecn, fragment, header, data })
    }

    /// Returns the fragment in a packet that was parsed from `bytes`; `None` if it is not
    /// fragmented.
    pub fn v6(packet: &ipv6::Packet, bytes: &'a [u8]) -> Option<Self> {
        let header = &packet.header;
        let fragment = packet.fragment?;
        let key = Key {
            source: header.source.into(),
            destination: header.destination.into(),
            identification: fragment.identification,
            protocol: 0,
        };
        let (protocol, ecn) = (header.protocol, header.ecn);
        let (header, data) =
            (bytes.get(..packet.payload.start)?, bytes.get(packet.payload.clone())?);
        Some(Self { key, protocol, ecn, fragment, header, data })
    }
}

/// What fragments of one datagram share. IPv6 does not compare the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    protocol: u8,
}

/// Datagram that is complete: the payload of its IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Protocol of the payload. Over IPv6 it may be an extension header
    /// (`wire::ipv6::upper_layer`).
    pub protocol: Protocol,
    /// ECN codepoint of the datagram (RFC 3168 section 5.3).
    pub ecn: Ecn,
    /// Payload of the datagram.
    pub data: Bytes,
    /// What came before the data of the first fragment, and how much data that had.
    first: (Box<[u8]>, usize),
}

impl Whole {
    /// Returns the first fragment as it came, for an ICMP error to quote: the later ones do not say
    /// whose the datagram is (RFC 1122 section 3.2.2).
    pub fn first_fragment(&self) -> Bytes {
        let (header, len) = &self.first;
        [header, &self.data[..*len]].concat().into()
    }
}

/// Reason why a fragment was refused. Except for the first two, its datagram is lost as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The same fragment had arrived before; or over IPv4 all of its bytes had.
    #[error("duplicate fragment")]
    Duplicate,
    /// The fragment is empty, not a multiple of eight bytes, or beyond the largest datagram.
    #[error("bad fragment length")]
    Length,
    /// The fragment overlaps another one (RFC 5722).
    #[error("overlapping fragments")]
    Overlap,
    /// The fragment contradicts the end of the datagram.
    #[error("fragments disagree on the length of the datagram")]
    End,
    /// The datagram has too many fragments.
    #[error("too many fragments")]
    TooMany,
    /// The memory for fragments is used up.
    #[error("out of memory for fragments")]
    Memory,
    /// Some fragments were ECN-capable and some not.
    #[error("fragments disagree on ECN")]
    Ecn,
    /// The datagram of the fragment was given up before.
    #[error("fragment of a lost datagram")]
    Lost,
}

/// Reassembler: the datagrams that are not complete yet.
#[derive(Debug)]
pub struct Reassembler {
    config: Config,
    table: HashMap<Key, PartialDatagram, Keyed>,
    /// Oldest first; entries of datagrams that are gone are skipped by their serial number.
    expiry: VecDeque<(Instant, Key, u64)>,
    serial: u64,
    memory: usize,
    /// Fragments of IPv4 that have come of some sources.
    seen: Box<[u32]>,
    /// Datagrams that gave way to a later one since they were last asked for.
    superseded: u64,
}

#[derive(Debug)]
struct PartialDatagram {
    serial: u64,
    /// The counter of its source when the latest fragment came.
    seen: u32,
    /// What came before the data of the first fragment; empty until that has come.
    header: Box<[u8]>,
    /// Sorted by offset, disjoint.
    parts: Vec<(u16, Box<[u8]>)>,
    /// Bytes in `parts`.
    len: usize,
    /// Known when the last fragment has come.
    total: Option<usize>,
    /// From the first fragment.
    protocol: Protocol,
    ecn: Ecn,
    /// A bit for each codepoint seen.
    ecn_seen: u8,
    /// Given up: fragments that still come are refused until its time is over.
    is_lost: bool,
}

impl PartialDatagram {
    fn new(serial: u64, part: &Part<'_>) -> Self {
        Self {
            serial,
            seen: 0,
            header: Box::default(),
            parts: Vec::new(),
            len: 0,
            total: None,
            protocol: part.protocol,
            ecn: part.ecn,
            ecn_seen: 0,
            is_lost: false,
        }
    }

    fn memory(&self) -> usize {
        DATAGRAM_COST + self.header.len() + self.len + self.parts.len() * PART_COST
    }

    /// Takes a fragment of good length, or says what is wrong with it.
    fn insert(&mut self, part: &Part<'_>) -> Result<(), Refusal> {
        let start = usize::from(part.fragment.offset);
        let end = start + part.data.len();
        let index = self.parts.partition_point(|&(offset, _)| usize::from(offset) < start);
        if let Some((offset, data)) = self.parts.get(index)
            && usize::from(*offset) == start
            && data.len() == part.data.len()
        {
            return Err(Refusal::Duplicate);
        }
        // RFC 5722 is stricter for IPv6.
        let may_end = part.fragment.more || self.total == Some(end);
        if part.key.source.is_ipv4() && may_end && self.covers(start, end) {
            return Err(Refusal::Duplicate);
        }
        if self.parts.get(index).is_some_and(|&(next, _)| usize::from(next) < end) {
            return Err(Refusal::Overlap);
        }
        let before = index.checked_sub(1).and_then(|index| self.parts.get(index));
        if before.is_some_and(|(offset, data)| usize::from(*offset) + data.len() > start) {
            return Err(Refusal::Overlap);
        }
        let beyond = self.total.is_some_and(|total| end > total);
        let ends_early = !part.fragment.more && (self.total.is_some() || index < self.parts.len());
        if beyond || ends_early {
            return Err(Refusal::End);
        }
        if self.parts.len() == MAX_PARTS {
            return Err(Refusal::TooMany);
        }
        self.ecn_seen |= 1 << part.ecn as u8;
        if self.ecn_seen & 1 != 0 && self.ecn_seen != 1 {
            return Err(Refusal::Ecn);
        }
        if start == 0 {
            (self.protocol, self.ecn, self.header) = (part.protocol, part.ecn, part.header.into());
        }
        if !part.fragment.more {
            self.total = Some(end);
        }
        self.len += part.data.len();
        self.parts.insert(index, (part.fragment.offset, part.data.into()));
        Ok(())
    }

    /// Whether all bytes from `start` to `end` have come.
    fn covers(&self, start: usize, end: usize) -> bool {
        let behind = self.parts.partition_point(|&(offset, _)| usize::from(offset) <= start);
        let mut known = start;
        for (offset, data) in &self.parts[behind.saturating_sub(1)..] {
            if usize::from(*offset) > known {
                break;
            }
            known = known.max(usize::from(*offset) + data.len());
        }
        known >= end
    }

    fn is_whole(&self) -> bool {
        self.total == Some(self.len)
    }

    /// The data of the first fragment; `None` if it has not come.
    fn first(&self) -> Option<&[u8]> {
        self.parts.first().filter(|(offset, _)| *offset == 0).map(|(_, data)| &data[..])
    }

    /// The first fragment as it came; `None` if it has not.
    fn first_fragment(&self) -> Option<Bytes> {
        Some([&self.header, self.first()?].concat().into())
    }

    fn assemble(self) -> Whole {
        let mut data = BytesMut::with_capacity(self.len);
        for (_, part) in &self.parts {
            data.extend_from_slice(part);
        }
        let is_marked = self.ecn_seen & (1 << Ecn::Ce as u8) != 0;
        let ecn = if is_marked { Ecn::Ce } else { self.ecn };
        let len = self.first().map_or(0, <[u8]>::len);
        let first = (self.header, len);
        Whole { protocol: self.protocol, ecn, data: data.freeze(), first }
    }

    /// Forgets the data; the datagram stays as a mark.
    fn give_up(&mut self) {
        (self.header, self.parts, self.len, self.is_lost) = (Box::default(), Vec::new(), 0, true);
    }
}

impl Reassembler {
    /// Returns a reassembler without fragments. `seed` is random and secret, since peers choose the
    /// values that are hashed.
    pub fn new(config: Config, seed: u64) -> Self {
        let table = HashMap::with_hasher(Keyed::new(seed));
        let seen = vec![0; SOURCES].into();
        let expiry = VecDeque::new();
        Self { config, table, expiry, serial: 0, memory: 0, seen, superseded: 0 }
    }

    /// Sets the limits, for incomplete datagrams too.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Takes a fragment; returns the datagram if it is now whole. The caller has called
    /// [`expire`](Self::expire) before.
    pub fn push(&mut self, now: Instant, part: &Part<'_>) -> Result<Option<Whole>, Refusal> {
        let len = part.data.len();
        let fits = usize::from(part.fragment.offset) + len <= MAX_LEN;
        if len == 0 || !fits || (part.fragment.more && !len.is_multiple_of(8)) {
            return Err(Refusal::Length);
        }
        let seen = self.count(&part.key);
        let has_room = self.memory + DATAGRAM_COST + PART_COST + len <= self.config.high_thresh;
        let mut entry = match self.table.entry(part.key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(_) if !has_room => return Err(Refusal::Memory),
            Entry::Vacant(entry) => {
                self.serial += 1;
                self.memory += DATAGRAM_COST;
                self.expiry.push_back((now, part.key, self.serial));
                entry.insert_entry(PartialDatagram::new(self.serial, part))
            }
        };
        let datagram = entry.get_mut();
        datagram.seen = seen;
        if datagram.is_lost {
            return Err(Refusal::Lost);
        }
        let before = datagram.memory();
        let taken = if has_room { datagram.insert(part) } else { Err(Refusal::Memory) };
        if taken.is_err_and(|refusal| refusal != Refusal::Duplicate) {
            datagram.give_up();
        }
        self.memory = self.memory + datagram.memory() - before;
        taken?;
        if !datagram.is_whole() {
            return Ok(None);
        }
        let datagram = entry.remove();
        self.memory -= datagram.memory();
        self.forget_finished();
        Ok(Some(datagram.assemble()))
    }

    /// Counts a fragment of a source; how many there were. A datagram of IPv4 of which nothing has
    /// come for too many of them gives way to the one that this fragment begins (Linux's
    /// `ip_frag_too_far`, `ip_frag_reinit`).
    fn count(&mut self, key: &Key) -> u32 {
        if key.source.is_ipv6() {
            return 0;
        }
        let place = self.table.hasher().hash_one(key.source) as usize % SOURCES;
        let seen = self.seen[place].wrapping_add(1);
        self.seen[place] = seen;
        if let Entry::Occupied(entry) = self.table.entry(*key)
            && seen.wrapping_sub(entry.get().seen) > MAX_DISTANCE
        {
            let datagram = entry.remove();
            self.memory -= datagram.memory();
            self.superseded += u64::from(!datagram.is_lost);
            self.forget_finished();
        }
        seen
    }

    /// Returns how many incomplete datagrams gave way to a later one with the same identification
    /// since the last call.
    pub fn take_superseded(&mut self) -> u64 {
        core::mem::take(&mut self.superseded)
    }

    /// Gives up the datagrams whose time is over. `timed_out` gets the source of each that was
    /// incomplete until then, and its first fragment as it came, or `None` if it has not come.
    pub fn expire(&mut self, now: Instant, mut timed_out: impl FnMut(IpAddr, Option<Bytes>)) {
        while let Some(&(began, key, serial)) = self.expiry.front()
            && began + self.config.time <= now
        {
            self.expiry.pop_front();
            let Entry::Occupied(entry) = self.table.entry(key) else {
                continue;
            };
            if entry.get().serial == serial {
                let datagram = entry.remove();
                self.memory -= datagram.memory();
                if !datagram.is_lost {
                    timed_out(key.source, datagram.first_fragment());
                }
            }
        }
    }

    /// Returns the earliest time at which [`expire`](Self::expire) has something to do.
    pub fn deadline(&self) -> Instant {
        let oldest = self.expiry.front();
        oldest.map_or(Instant::FAR_FUTURE, |&(began, ..)| began + self.config.time)
    }

    /// Returns the bytes of memory that count against the limit (`FRAG: memory` of sockstat).
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the number of incomplete datagrams (`FRAG: inuse` of sockstat).
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether no datagram waits.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Keeps the expiry queue within twice the table: O(1) per datagram over time.
    fn forget_finished(&mut self) {
        if self.expiry.len() > 2 * self.table.len() + 16 {
            let table = &self.table;
            self.expiry
                .retain(|(_, key, serial)| table.get(key).is_some_and(|d| d.serial == *serial));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    fn part(identification: u32, offset: u16, data: &[u8], more: bool) -> Part<'_> {
        let source = Ipv4Addr::LOCALHOST.into();
        let key = Key { source, destination: source, identification, protocol: 17 };
        let fragment = Fragment { identification, offset, more };
        Part { key, protocol: Protocol::UDP, ecn: Ecn::Ect0, fragment, header: &[], data }
    }

    fn part_v6(identification: u32, offset: u16, data: &[u8], more: bool) -> Part<'_> {
        let mut part = part(identification, offset, data, more);
        part.key.source = core::net::Ipv6Addr::LOCALHOST.into();
        part
    }

    fn reassembler() -> Reassembler {
        Reassembler::new(Config::default(), 3)
    }

    const NOW: Instant = Instant::ZERO;

    /// How many time out.
    fn expire(r: &mut Reassembler, now: Instant) -> usize {
        let mut count = 0;
        r.expire(now, |_, _| count += 1);
        count
    }

    #[test]
    fn lengths_are_checked() {
        let mut r = reassembler();
        let refused = Err(Refusal::Length);
        assert_eq!(r.push(NOW, &part(1, 0, &[0; 9], true)), refused);
        assert_eq!(r.push(NOW, &part(1, 8, &[], false)), refused);
        assert_eq!(r.push(NOW, &part(1, 65_528, &[0; 8], false)), refused);
        assert_eq!(r.push(NOW, &part(1, 65_528, &[0; 7], false)), Ok(None));
        assert_eq!(r.len(), 1);
    }

    #[test]
    fn an_overlap_loses_the_datagram_for_good() {
        // A fragment, and whether it is a mere duplicate over IPv4 and over IPv6.
        for (offset, len, more, duplicate) in [
            (0, 24, true, [false; 2]),
            (8, 8, true, [true, false]),
            (16, 8, true, [true, false]),
            (16, 8, false, [false; 2]),
            (16, 16, true, [false; 2]),
            (8, 16, false, [true; 2]),
        ] {
            for (of_family, duplicate) in [part, part_v6].into_iter().zip(duplicate) {
                let mut r = reassembler();
                assert_eq!(r.push(NOW, &of_family(1, 8, &[1; 16], true)), Ok(None));
                let data = vec![2; len];
                let result = r.push(NOW, &of_family(1, offset, &data, more));
                let expected = if duplicate { Refusal::Duplicate } else { Refusal::Overlap };
                assert_eq!(result, Err(expected), "{offset} {len} {more}");
                let later = r.push(NOW, &of_family(1, 24, &[3; 8], false));
                assert_eq!(later, if duplicate { Ok(None) } else { Err(Refusal::Lost) });
            }
        }
    }

    #[test]
    fn what_lies_within_several_fragments_is_a_duplicate() {
        let mut r = reassembler();
        for offset in [8, 24, 16] {
            assert_eq!(r.push(NOW, &part(1, offset, &[1; 8], true)), Ok(None));
        }
        assert_eq!(r.push(NOW, &part(1, 8, &[2; 24], true)), Err(Refusal::Duplicate));
        assert_eq!(r.push(NOW, &part(1, 40, &[1; 8], false)), Ok(None));
        assert_eq!(r.push(NOW, &part(1, 24, &[2; 24], false)), Err(Refusal::Overlap), "a gap");
    }

    #[test]
    fn a_later_datagram_of_the_same_identification_begins_anew() {
        for (between, is_late) in [(31, false), (32, true)] {
            for is_lost in [false, true] {
                let mut r = reassembler();
                assert_eq!(r.push(NOW, &part(1, 0, &[b'a'; 8], true)), Ok(None));
                if is_lost {
                    assert_eq!(r.push(NOW, &part(1, 0, &[0; 16], true)), Err(Refusal::Overlap));
                }
                for id in 2..2 + between {
                    assert_eq!(r.push(NOW, &part(id, 8, &[0; 8], false)), Ok(None));
                    assert!(r.push(NOW, &part(id, 0, &[0; 8], true)).unwrap().is_some());
                }
                let second = r.push(NOW, &part(1, 8, &[b'b'; 8], false));
                assert_eq!(r.take_superseded(), u64::from(is_late && !is_lost));
                let Ok(second) = second else {
                    assert!(is_lost && !is_late);
                    continue;
                };
                let whole = second.or_else(|| {
                    let first = part(1, 0, &[b'b'; 8], true);
                    r.push(NOW, &first).expect("it begins anew")
                });
                let first = if is_late { b'b' } else { b'a' };
                assert_eq!(whole.unwrap().data[..], [[first; 8], [b'b'; 8]].concat());
                assert_eq!((r.memory(), r.len()), (0, 0));
            }
        }
    }

    #[test]
    fn identifications_of_ipv6_and_of_other_sources_come_again_late_enough() {
        let mut r = reassembler();
        let other = |offset, more| {
            let mut part = part(1, offset, &[0; 8], more);
            part.key.source = Ipv4Addr::new(10, 0, 0, 1).into();
            part
        };
        assert_eq!(r.push(NOW, &other(0, true)), Ok(None));
        assert_eq!(r.push(NOW, &part_v6(1, 0, &[0; 8], true)), Ok(None));
        for id in 2..200 {
            assert_eq!(r.push(NOW, &part(id, 0, &[0; 8], true)), Ok(None));
            assert_eq!(r.push(NOW, &part_v6(id, 0, &[0; 8], true)), Ok(None));
        }
        assert!(r.push(NOW, &other(8, false)).unwrap().is_some());
        assert!(r.push(NOW, &part_v6(1, 8, &[0; 8], false)).unwrap().is_some());
    }

    #[test]
    fn ends_must_agree() {
        for second in [part(1, 16, &[0; 8], false), part(1, 24, &[0; 8], true)] {
            let mut r = reassembler();
            assert_eq!(r.push(NOW, &part(1, 8, &[0; 8], false)), Ok(None));
            assert_eq!(r.push(NOW, &second), Err(Refusal::End));
        }
        let mut r = reassembler();
        assert_eq!(r.push(NOW, &part(1, 16, &[0; 8], true)), Ok(None));
        assert_eq!(r.push(NOW, &part(1, 8, &[0; 4], false)), Err(Refusal::End));
    }

    #[test]
    fn time_and_memory_and_count_are_bounded() {
        let mut r = reassembler();
        let data = [0; 1024];
        let has_room = |id: &u32| r.push(NOW, &part(*id, 0, &data, true)).is_ok();
        let ids = (0..10_000).take_while(has_room).count() as u32;
        assert!(ids < 10_000 && r.memory() <= 4 << 20);
        let in_use = r.len();
        // A datagram that cannot grow is given up, which makes room.
        assert_eq!(r.push(NOW, &part(ids - 1, 1024, &data, false)), Err(Refusal::Memory));
        assert!(r.push(NOW, &part(90_000, 0, &data[..512], true)).is_ok());
        let late = NOW + Nanos::from_secs(30);
        assert_eq!(r.deadline(), late);
        assert_eq!(expire(&mut r, late - Nanos(1)), 0);
        assert_eq!(expire(&mut r, late), in_use, "the one given up is not counted");
        assert_eq!((r.memory(), r.len(), r.deadline()), (0, 0, Instant::FAR_FUTURE));

        for offset in 0..128 {
            assert_eq!(r.push(NOW, &part(1, offset * 16, &[0; 8], true)), Ok(None));
        }
        assert_eq!(r.push(NOW, &part(1, 4000, &[0; 8], true)), Err(Refusal::TooMany));
        assert_eq!(r.memory(), DATAGRAM_COST);
    }

    #[test]
    fn ecn_of_the_whole() {
        let whole = |first: Ecn, second: Ecn| {
            let mut r = reassembler();
            let one = Part { ecn: first, ..part(1, 0, &[0; 8], true) };
            let two = Part { ecn: second, ..part(1, 8, &[0; 8], false) };
            assert_eq!(r.push(NOW, &two), Ok(None));
            r.push(NOW, &one).map(|whole| whole.expect("whole").ecn)
        };
        assert_eq!(whole(Ecn::Ect0, Ecn::Ce), Ok(Ecn::Ce));
        assert_eq!(whole(Ecn::Ect0, Ecn::Ect1), Ok(Ecn::Ect0));
        assert_eq!(whole(Ecn::NotEct, Ecn::NotEct), Ok(Ecn::NotEct));
        assert_eq!(whole(Ecn::NotEct, Ecn::Ce), Err(Refusal::Ecn));
        assert_eq!(whole(Ecn::Ect1, Ecn::NotEct), Err(Refusal::Ecn));
    }

    #[test]
    fn finished_datagrams_leave_nothing_behind() {
        let mut r = reassembler();
        for id in 0..100_000 {
            assert_eq!(r.push(NOW, &part(id, 8, &[0; 8], false)), Ok(None));
            assert!(r.push(NOW, &part(id, 0, &[0; 8], true)).unwrap().is_some());
        }
        assert_eq!((r.memory(), r.len()), (0, 0));
        assert!(r.expiry.len() <= 16);
    }

    proptest! {
        #[test]
        fn any_order_gives_the_same_bytes(
            cuts in proptest::collection::vec(1usize..40, 1..40),
            tail in 1usize..30,
            order in any::<u64>(),
            again in any::<bool>(),
        ) {
            let total = cuts.iter().sum::<usize>() * 8 + tail;
            let bytes: Vec<u8> = (0..total).map(|i| (i * 13 / 5) as u8).collect();
            let mut parts = Vec::new();
            let mut at = 0;
            for cut in &cuts {
                parts.push(part(5, at as u16, &bytes[at..at + cut * 8], true));
                at += cut * 8;
            }
            parts.push(part(5, at as u16, &bytes[at..], false));
            let mut state = order | 1;
            for i in (1..parts.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                parts.swap(i, (state >> 33) as usize % (i + 1));
            }
            let mut r = reassembler();
            let (last, others) = parts.split_last().unwrap();
            for part in others {
                prop_assert_eq!(r.push(NOW, part), Ok(None));
                if again {
                    prop_assert_eq!(r.push(NOW, part), Err(Refusal::Duplicate));
                }
            }
            let whole = r.push(NOW, last).unwrap().expect("whole");
            prop_assert_eq!(&whole.data[..], &bytes[..]);
            prop_assert_eq!(r.memory(), 0);
        }

        #[test]
        fn any_fragments_stay_bounded(
            parts in proptest::collection::vec(
                (0u32..4, 0u16..200, 0usize..200, any::<bool>(), 0u64..40), 0..300,
            ),
        ) {
            let config = Config { high_thresh: 4096, ..Config::default() };
            let mut r = Reassembler::new(config, 0);
            let data = [0; 200];
            let mut now = NOW;
            for (id, offset, len, more, seconds) in parts {
                now += Nanos::from_secs(seconds / 30);
                let _ = r.push(now, &part(id, offset * 8, &data[..len], more));
                prop_assert!(r.memory() <= 4096);
                let counted: usize = r.table.values().map(PartialDatagram::memory).sum();
                prop_assert_eq!(r.memory(), counted);
            }
            r.expire(now + Nanos::from_secs(30), |_, _| {});
            prop_assert_eq!((r.memory(), r.len()), (0, 0));
        }
    }
}
