//! Queue of data that arrived before the bytes in front of it.

use super::queue::{ByteQueue, COPY_BREAK, OVERHEAD};
use crate::segment::Payload;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What one ACK can report.
const RECENT: usize = 4;
/// Ranges whose order of arrival is remembered. One visit may bring more ranges than one ACK
/// reports; those that no ACK ever reported would look lost to the sender.
pub(crate) const REMEMBERED: usize = 64;

/// Memory that out-of-order data may cost beside its bytes, whatever they are worth. A peer that
/// leaves more holes has to send as many bytes as they cost: a lossy path does, and single bytes do
/// not.
const LEAST_OVERHEAD: u32 = 64 << 10;

/// A range of stream positions, `start..end`.
pub(super) type Extent = core::ops::Range<u64>;

/// Ranges of bytes beyond the next expected one, disjoint and not touching.
///
/// Stream positions are 64-bit offsets, so they never wrap. Insertion costs O(log n) for n ranges,
/// amortised over the ranges that it joins. Bytes that are here are never replaced: of two
/// segments that disagree, the first to arrive wins.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    ranges: BTreeMap<u64, ByteQueue>,
    /// Starts of the ranges that grew last, newest first; some may be gone.
    recent: SmallVec<[u64; RECENT]>,
    /// The first so many of `recent` grew since they were last reported.
    unreported: u16,
    charge: u32,
    bytes: u32,
}

/// What became of a payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inserted {
    /// Bytes that were not here yet.
    pub(super) new: u32,
    /// The first part that was here already (for DSACK).
    pub(super) duplicate: Option<Extent>,
}

impl Reassembly {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes of payload here.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Memory held, as [`ByteQueue::charge`].
    pub(super) fn charge(&self) -> u32 {
        self.charge
    }

    /// The position of the first byte here.
    pub(super) fn first(&self) -> Option<u64> {
        self.ranges.first_key_value().map(|(&start, _)| start)
    }

    /// The position behind the last byte here.
    pub(super) fn end(&self) -> Option<u64> {
        self.ranges.last_key_value().map(|(&start, range)| start + u64::from(range.len()))
    }

    /// Adds the bytes of `payload`, which start at `start`, where no byte is yet.
    pub(super) fn insert(&mut self, start: u64, mut payload: Payload) -> Inserted {
        let mut inserted = Inserted::default();
        let end = start + u64::from(payload.len());
        let mut at = start;
        let mut last = None;
        while at < end {
            let before = self.ranges.range(..=at).next_back();
            let before = before.map(|(&key, range)| (key, key + u64::from(range.len())));
            match before {
                Some((key, covered)) if covered > at => {
                    let stop = covered.min(end);
                    inserted.duplicate.get_or_insert(at..stop);
                    payload.advance((stop - at) as u32);
                    last = Some(key);
                    at = stop;
                }
                _ => {
                    let next = self.ranges.range(at..).next().map(|(&key, _)| key);
                    let stop = next.map_or(end, |next| next.min(end));
                    let mut part = split_to(&mut payload, (stop - at) as u32);
                    inserted.new += part.len();
                    let touching = before.filter(|&(_, covered)| covered == at);
                    let mut key = touching.map_or(at, |(key, _)| key);
                    self.extend(key, &mut part);
                    if next == Some(stop) {
                        key = self.join(key, stop);
                    }
                    last = Some(key);
                    at = stop;
                }
            }
        }
        if let Some(key) = last {
            self.touch(key);
        }
        inserted
    }

    /// Whether the data here, and `more` bytes in a slice of their own, are worth the memory that
    /// they take: they are half of it but for a constant.
    pub(super) fn is_worth(&self, more: u32) -> bool {
        let cost = self.charge.saturating_add(more).saturating_add(OVERHEAD);
        let bytes = self.bytes.saturating_add(more);
        cost <= bytes.saturating_mul(2).saturating_add(LEAST_OVERHEAD)
    }

    /// Drops slices from the end, but none before `keep`, until what is left is worth its memory
    /// with an eighth to spare. Returns the bytes dropped.
    pub(super) fn prune_to_worth(&mut self, keep: u64) -> u32 {
        let most = LEAST_OVERHEAD - LEAST_OVERHEAD / 8;
        self.prune(keep, |charge, bytes| charge > bytes.saturating_mul(2).saturating_add(most))
    }

    fn extend(&mut self, key: u64, part: &mut Payload) {
        self.bytes += part.len();
        let range = self.ranges.entry(key).or_default();
        self.charge -= range.charge();
        // It may stay for long, so it keeps no buffer of the device.
        range.push(part, usize::MAX);
        self.charge += range.charge();
    }

    /// Joins the ranges that start at `left` and `right` and touch; the smaller moves.
    fn join(&mut self, left: u64, right: u64) -> u64 {
        let (Some(mut first), Some(mut second)) =
            (self.ranges.remove(&left), self.ranges.remove(&right))
        else {
            unreachable!("both ranges are here");
        };
        self.charge -= first.charge() + second.charge();
        let joined = if first.slices() >= second.slices() {
            first.append(second, COPY_BREAK);
            first
        } else {
            second.prepend(first);
            second
        };
        self.charge += joined.charge();
        self.ranges.insert(left, joined);
        left
    }

    fn touch(&mut self, key: u64) {
        let extent = self.extent(key).unwrap_or(key..key);
        self.forget(|start| extent.contains(&start));
        self.recent.truncate(REMEMBERED - 1);
        self.recent.insert(0, key);
        self.unreported = (self.unreported + 1).min(self.recent.len() as u16);
    }

    fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        let (mut index, new) = (0, usize::from(self.unreported));
        self.recent.retain(|start| {
            let gone = is_gone(*start);
            self.unreported -= u16::from(gone && index < new);
            index += 1;
            !gone
        });
    }

    /// Ranges that grew since they were last reported.
    pub(super) fn unreported(&self) -> usize {
        usize::from(self.unreported)
    }

    /// An ACK left with what [`report`](Self::report) says for `max`.
    pub(super) fn on_reported(&mut self, max: usize) {
        self.unreported = self.unreported.saturating_sub(max as u16);
        if self.unreported == 0 && self.recent.len() > RECENT {
            self.recent.truncate(RECENT);
            self.recent.shrink_to_fit();
        }
    }

    fn extent(&self, key: u64) -> Option<Extent> {
        self.ranges.get(&key).map(|range| key..key + u64::from(range.len()))
    }

    /// Takes the range that has the byte at `next`, if it is here; bytes before `next` are dropped.
    /// Ranges that end at or before `next` are dropped.
    pub(super) fn take(&mut self, next: u64) -> Option<ByteQueue> {
        while let Some(entry) = self.ranges.first_entry() {
            let start = *entry.key();
            if start > next {
                break;
            }
            let mut range = entry.remove();
            self.charge -= range.charge();
            self.bytes -= range.len();
            self.forget(|recent| recent == start);
            if self.ranges.is_empty() {
                // An emptied map keeps a node.
                self.ranges = BTreeMap::new();
            }
            let stale = next - start;
            if stale < u64::from(range.len()) {
                range.advance(stale as u32);
                return Some(range);
            }
        }
        None
    }

    /// Drops slices from the highest position down while `excess` says that more must go and they
    /// lie wholly behind `keep` (Linux's `tcp_prune_ofo_queue`). `excess` gets the memory still
    /// held here, and the bytes. Returns the bytes dropped.
    pub(super) fn prune(&mut self, keep: u64, mut excess: impl FnMut(u32, u32) -> bool) -> u32 {
        let mut pruned = 0;
        while excess(self.charge, self.bytes) {
            let Some(mut entry) = self.ranges.last_entry() else {
                break;
            };
            let start = *entry.key();
            let range = entry.get_mut();
            let slice = range.last_slice_len();
            if start + u64::from(range.len() - slice) <= keep {
                break;
            }
            self.charge -= range.charge();
            range.pop_slice();
            self.bytes -= slice;
            pruned += slice;
            if range.is_empty() {
                entry.remove();
                self.forget(|recent| recent == start);
            } else {
                self.charge += range.charge();
            }
        }
        if self.ranges.is_empty() {
            self.ranges = BTreeMap::new();
        }
        pruned
    }

    /// The ranges to report, most recent first (RFC 2018 section 4), then the lowest others. Of
    /// more than `max` that were not reported yet the oldest, so that the last of several ACKs has
    /// the newest.
    pub(super) fn report(&self, max: usize) -> SmallVec<[Extent; RECENT]> {
        let older = self.recent.iter().skip(self.unreported().saturating_sub(max));
        let mut blocks: SmallVec<[Extent; RECENT]> =
            older.filter_map(|&key| self.extent(key)).take(max).collect();
        for (&key, range) in self.ranges.iter().take(RECENT) {
            if blocks.len() >= max.min(RECENT) {
                break;
            }
            if !blocks.iter().any(|block| block.start == key) {
                blocks.push(key..key + u64::from(range.len()));
            }
        }
        blocks
    }
}

fn split_to(payload: &mut Payload, bytes: u32) -> Payload {
    if bytes >= payload.len() {
        return core::mem::take(payload);
    }
    let mut head = payload.clone();
    head.truncate(bytes);
    payload.advance(bytes);
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn bytes(len: usize, byte: u8) -> Payload {
        Payload::from(Bytes::from(vec![byte; len]))
    }

    fn content(mut queue: ByteQueue) -> Vec<u8> {
        let mut out = vec![0; queue.len() as usize];
        queue.read(&mut out);
        out
    }

    #[test]
    fn touching_ranges_join() {
        let mut ofo = Reassembly::default();
        ofo.insert(10, bytes(5, 1));
        ofo.insert(20, bytes(5, 2));
        assert_eq!(ofo.ranges.len(), 2);
        assert_eq!(ofo.insert(15, bytes(5, 3)), Inserted { new: 5, duplicate: None });
        assert_eq!(ofo.ranges.len(), 1);
        assert_eq!(ofo.report(4).as_slice(), &[Extent { start: 10, end: 25 }]);
        assert!(ofo.take(9).is_none());
        let expected = [[1; 5], [3; 5], [2; 5]].concat();
        assert_eq!(content(ofo.take(10).unwrap()), expected);
        assert_eq!((ofo.charge(), ofo.is_empty()), (0, true));
    }

    #[test]
    fn every_range_is_reported_however_many_come_at_once() {
        let mut ofo = Reassembly::default();
        for n in 1..=10 {
            ofo.insert(n * 100, bytes(10, 1));
        }
        ofo.insert(310, bytes(10, 1));
        assert_eq!(ofo.unreported(), 10, "a range that grew twice counts once");
        let mut starts = Vec::new();
        while ofo.unreported() > 0 {
            starts.push(ofo.report(3).iter().map(|block| block.start / 100).collect::<Vec<_>>());
            ofo.on_reported(3);
        }
        assert_eq!(starts, [vec![4, 2, 1], vec![7, 6, 5], vec![10, 9, 8], vec![3, 10, 9]]);
        assert!(ofo.recent.len() <= RECENT && !ofo.recent.spilled());
        ofo.insert(1100, bytes(10, 1));
        ofo.insert(1200, bytes(10, 1));
        ofo.take(1100);
        assert_eq!(ofo.unreported(), 1, "what is in order needs no report");
    }

    #[test]
    fn first_bytes_win_in_every_overlap() {
        let mut ofo = Reassembly::default();
        ofo.insert(10, bytes(5, 1));
        ofo.insert(20, bytes(5, 1));
        let inserted = ofo.insert(8, bytes(20, 2));
        assert_eq!(inserted, Inserted { new: 10, duplicate: Some(10..15) });
        let got = content(ofo.take(8).unwrap());
        let expected = [vec![2; 2], vec![1; 5], vec![2; 5], vec![1; 5], vec![2; 3]].concat();
        assert_eq!(got, expected);
    }

    #[test]
    fn the_newest_range_is_reported_first() {
        let mut ofo = Reassembly::default();
        for start in [100, 300, 200, 500, 400] {
            ofo.insert(start, bytes(10, 0));
        }
        (0..2).for_each(|_| ofo.on_reported(4));
        let starts =
            |ofo: &Reassembly, n| ofo.report(n).iter().map(|e| e.start).collect::<Vec<_>>();
        assert_eq!(starts(&ofo, 4), [400, 500, 200, 300]);
        assert_eq!(starts(&ofo, 3), [400, 500, 200]);
        ofo.insert(110, bytes(1, 0));
        assert_eq!(starts(&ofo, 4), [100, 400, 500, 200]);
        assert!(ofo.take(450).is_none());
        assert_eq!(ofo.report(4).as_slice(), &[Extent { start: 500, end: 510 }]);
    }

    #[test]
    fn pruning_starts_at_the_far_end() {
        let mut ofo = Reassembly::default();
        for i in 0..100 {
            ofo.insert(10 + 2 * i, bytes(1, 0));
        }
        assert_eq!(ofo.charge(), 100 * (1 + OVERHEAD));
        let pruned = ofo.prune(0, |held, _| held > 50 * (1 + OVERHEAD));
        assert_eq!((pruned, ofo.ranges.len(), ofo.end()), (50, 50, Some(109)));
        assert_eq!(ofo.prune(107, |_, _| true), 1);
        assert_eq!(ofo.prune(0, |_, _| true), 49);
        assert!(ofo.is_empty() && (ofo.charge(), ofo.bytes()) == (0, 0));
    }

    #[test]
    fn holes_are_paid_for_by_bytes() {
        let mut ofo = Reassembly::default();
        let mut at = 10;
        while ofo.is_worth(1) {
            ofo.insert(at, bytes(1, 0));
            at += 2;
        }
        assert!(ofo.charge() <= LEAST_OVERHEAD + 2 * ofo.bytes() && ofo.bytes() > 200);
        assert!(ofo.is_worth(300), "what is worth more than its overhead may come");
        let before = ofo.bytes();
        assert!(ofo.prune_to_worth(0) > before / 9);
        assert!(ofo.is_worth(1) && ofo.first() == Some(10));
        for n in 0..2000 {
            assert!(ofo.is_worth(600));
            ofo.insert(100_000 + n * 1000, bytes(600, 0));
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_byte_map(
            inserts in prop::collection::vec((0_u64..2_000, 1_usize..300, any::<bool>()), 1..60)
        ) {
            let mut ofo = Reassembly::default();
            let mut model = vec![None; 12_000];
            for (i, &(start, len, large)) in inserts.iter().enumerate() {
                let len = if large { len * 30 } else { len };
                let byte = i as u8;
                let inserted = ofo.insert(start, bytes(len, byte));
                let mut new = 0;
                for slot in &mut model[start as usize..start as usize + len] {
                    if slot.is_none() {
                        *slot = Some(byte);
                        new += 1;
                    }
                }
                prop_assert_eq!(inserted.new, new);
                prop_assert_eq!(inserted.duplicate.is_some(), (new as usize) < len);
                let sum: u32 = ofo.ranges.values().map(ByteQueue::charge).sum();
                prop_assert_eq!(ofo.charge(), sum);
                let held: u32 = ofo.ranges.values().map(ByteQueue::len).sum();
                prop_assert_eq!(ofo.bytes(), held);
            }
            let mut next = 0;
            while let Some(first) = ofo.first() {
                prop_assert!(model[next..first as usize].iter().all(Option::is_none));
                let got = content(ofo.take(first).unwrap());
                next = first as usize + got.len();
                for (slot, byte) in model[first as usize..next].iter().zip(got) {
                    prop_assert_eq!(*slot, Some(byte));
                }
            }
            prop_assert!(model[next..].iter().all(Option::is_none));
            prop_assert_eq!(ofo.charge(), 0);
        }
    }
}
