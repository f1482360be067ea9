//! Receive queue of a UDP socket: datagrams in the order of their arrival, bounded by bytes.
//!
//! A socket that many sources share may bound each of them, too: a source may have no more in the
//! queue than is still free. So one source fills half of the queue at most, and leaves room for
//! others.
//!
//! Cost of a datagram: O(1). With shares of sources it is two keyed hashes more when it comes and
//! one when it goes, and about 40 bytes for each source that has something in the queue.

use crate::flow::source_of;
use crate::keyed::Keyed;
use crate::net::interface::InterfaceId;
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::collections::VecDeque;

/// Memory that a datagram counts besides its payload (Linux's `SKB_TRUESIZE(0)`, rounded).
pub(super) const OVERHEAD: u32 = 640;

/// Received datagram.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// Address and port of the sender. The scope of a link-local address of IPv6 is the
    /// [number](InterfaceId::index) of the interface that the datagram came in by.
    pub from: SocketAddr,
    /// Address and port that the datagram was sent to (`IP_ORIGDSTADDR`). The address is one of
    /// this host, a broadcast address, or any address on an interface that takes them all. It has
    /// no scope: `interface` says the link.
    pub to: SocketAddr,
    /// Hops that the packet had left when it came, of a fragmented one those of the fragment that
    /// came last (`IP_RECVTTL`, `IPV6_RECVHOPLIMIT`).
    pub hop_limit: u8,
    /// TOS byte or traffic class, with the ECN codepoint in its low two bits (`IP_RECVTOS`,
    /// `IPV6_RECVTCLASS`).
    pub tos: u8,
    /// Interface that the datagram came in by; `None` for one of this host.
    pub interface: Option<InterfaceId>,
    /// Whether it was sent to all hosts of a network.
    pub is_broadcast: bool,
    /// Whether routers may not cut it: it came whole in a packet with the don't-fragment bit or of
    /// IPv6.
    pub dont_fragment: bool,
    /// Datagrams that the socket had dropped for lack of room or memory when this one was queued
    /// (`SO_RXQ_OVFL`). The count wraps.
    pub drops: u32,
    /// Data of the datagram.
    pub data: Bytes,
}

impl ReceivedDatagram {
    /// Makes a datagram from `from` to `to` as one of this host would be received.
    pub fn new(from: SocketAddr, to: SocketAddr, data: Bytes) -> Self {
        Self {
            from,
            to,
            hop_limit: 64,
            tos: 0,
            interface: None,
            is_broadcast: false,
            dont_fragment: false,
            drops: 0,
            data,
        }
    }

    /// Bytes of the receive buffer that it takes.
    pub(super) fn memory(&self) -> u32 {
        u32::try_from(self.data.len()).unwrap_or(u32::MAX).saturating_add(OVERHEAD)
    }
}

/// The data of the datagrams of a super-datagram: `segment` bytes each, and the last may be
/// shorter. With 0 all is one datagram. They share memory.
pub(super) fn pieces(data: &Bytes, segment: usize) -> impl Iterator<Item = Bytes> {
    let len = data.len();
    let segment = if segment == 0 { len.max(1) } else { segment };
    // An empty datagram is one, too.
    let starts = (0..len.max(1)).step_by(segment);
    starts.map(move |start| data.slice(start..len.min(start + segment)))
}

/// Datagrams that wait for the application.
#[derive(Debug, Default)]
pub(super) struct DatagramQueue {
    datagrams: VecDeque<ReceivedDatagram>,
    /// Bytes of memory that the datagrams take.
    bytes: u32,
    /// Bytes of each source that has some; `None` where sources have no shares.
    shares: Option<HashMap<IpAddr, u32, Keyed>>,
}

impl DatagramQueue {
    /// A queue in which each source has its share. `seed` is random: it keys the hash of sources.
    pub(super) fn with_shares(seed: u64) -> Self {
        let shares = Some(HashMap::with_hasher(Keyed::new(seed)));
        Self { shares, ..Self::default() }
    }

    /// Bytes of memory that the datagrams take.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// The datagram that came first.
    pub(super) fn front(&self) -> Option<&ReceivedDatagram> {
        self.datagrams.front()
    }

    /// Whether all datagrams and this one take at most `room` bytes, and its source does not exceed
    /// its share. An empty queue has room for any datagram.
    pub(super) fn has_room(&self, datagram: &ReceivedDatagram, room: u32) -> bool {
        if self.datagrams.is_empty() {
            return true;
        }
        let bytes = datagram.memory();
        let share = self.shares.as_ref().and_then(|shares| {
            let held = shares.get(&source_of(datagram.from.ip()))?;
            Some(held.saturating_add(bytes))
        });
        self.bytes.saturating_add(bytes) <= room
            && share.is_none_or(|share| share <= room.saturating_sub(self.bytes))
    }

    /// Appends a datagram that there [is room](Self::has_room) for.
    pub(super) fn push(&mut self, datagram: ReceivedDatagram) {
        let bytes = datagram.memory();
        if let Some(shares) = &mut self.shares {
            let share = shares.entry(source_of(datagram.from.ip())).or_default();
            *share = share.saturating_add(bytes);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.datagrams.push_back(datagram);
    }

    /// Takes the datagram that came first.
    pub(super) fn pop(&mut self) -> Option<ReceivedDatagram> {
        let datagram = self.datagrams.pop_front()?;
        let bytes = datagram.memory();
        self.bytes -= bytes;
        if let Some(shares) = &mut self.shares
            && let Entry::Occupied(mut share) = shares.entry(source_of(datagram.from.ip()))
        {
            let left = share.get().saturating_sub(bytes);
            if left == 0 {
                share.remove();
            } else {
                share.insert(left);
            }
        }
        Some(datagram)
    }

    /// Takes all datagrams.
    pub(super) fn take_all(&mut self) -> VecDeque<ReceivedDatagram> {
        self.bytes = 0;
        if let Some(shares) = &mut self.shares {
            shares.clear();
        }
        core::mem::take(&mut self.datagrams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 100 + OVERHEAD;

    fn datagram(from: &str) -> ReceivedDatagram {
        let from = SocketAddr::new(from.parse().expect("an address"), 9);
        let to = SocketAddr::from(([192, 0, 2, 1], 53));
        ReceivedDatagram::new(from, to, Bytes::from_static(&[0; 100]))
    }

    /// How many datagrams of one source are taken before one is refused.
    fn fill(queue: &mut DatagramQueue, from: &str, room: u32) -> usize {
        (0..1000).take_while(|_| push(queue, from, room)).count()
    }

    fn push(queue: &mut DatagramQueue, from: &str, room: u32) -> bool {
        let datagram = datagram(from);
        let has_room = queue.has_room(&datagram, room);
        if has_room {
            queue.push(datagram);
        }
        has_room
    }

    #[test]
    fn a_queue_without_shares_is_filled_by_one_source() {
        let mut queue = DatagramQueue::default();
        assert_eq!(fill(&mut queue, "10.0.0.1", 12 * SIZE), 12);
        assert_eq!(queue.bytes(), 12 * SIZE);
        assert!(!push(&mut queue, "10.0.0.2", 12 * SIZE));
        assert_eq!((queue.take_all().len(), queue.bytes()), (12, 0));
    }

    #[test]
    fn a_source_has_no_more_than_is_still_free() {
        let mut queue = DatagramQueue::with_shares(1);
        let room = 12 * SIZE;
        assert_eq!(fill(&mut queue, "10.0.0.1", room), 6);
        assert_eq!(fill(&mut queue, "10.0.0.2", room), 3);
        // Addresses of one network of IPv6 are one source.
        assert_eq!(fill(&mut queue, "2001:db8::1", room), 2);
        assert_eq!(fill(&mut queue, "2001:db8::2", room), 0);
        assert_eq!(fill(&mut queue, "10.0.0.4", room), 1);
        assert_eq!((queue.len(), queue.bytes()), (12, room));
        // What leaves makes room for its source again.
        assert_eq!(queue.pop().map(|one| one.from.ip().to_string()), Some("10.0.0.1".into()));
        assert!(push(&mut queue, "10.0.0.5", room));
        while queue.pop().is_some() {}
        assert_eq!(queue.bytes(), 0);
        assert!(queue.shares.as_ref().is_some_and(HashMap::is_empty));
        assert_eq!(fill(&mut queue, "10.0.0.1", room), 6);
    }

    #[test]
    fn an_empty_queue_takes_any_datagram() {
        for mut queue in [DatagramQueue::default(), DatagramQueue::with_shares(1)] {
            assert_eq!(fill(&mut queue, "10.0.0.1", 1), 1);
        }
    }
}
