//! Generic receive offload: the segments of one receive batch that follow each other become one
//! super-segment, so that everything above works once per batch and flow, not per packet.
//!
//! The rules are those of Linux's `tcp_gro_receive`, on parsed values. Cost per segment: a look at
//! up to eight held ones; a merge moves the payload slices and copies nothing. Memory: at most 64
//! held segments, and only until the end of the batch.

use neap_tcp::segment::{Flags, Segment};

const BUCKETS: usize = 8;
const HELD_PER_BUCKET: usize = 8;

/// Payload of a super-segment stays below what one IP packet could hold.
const MAX_PAYLOAD: u32 = 65_535;

/// Flags after which nothing is waited for.
const FLUSHING: Flags =
    Flags::PSH.union(Flags::FIN).union(Flags::SYN).union(Flags::RST).union(Flags::URG);

/// Flags in which merged segments may differ.
const MAY_DIFFER: Flags = Flags::PSH.union(Flags::FIN).union(Flags::CWR);

/// Segments of the current receive batch that may be joined (generic receive offload). `K` names a
/// flow: the 4-tuple, and whatever else must agree.
#[derive(Debug)]
pub struct Gro<K> {
    /// Oldest first in each bucket.
    buckets: [Vec<Held<K>>; BUCKETS],
}

#[derive(Debug)]
struct Held<K> {
    key: K,
    segment: Segment,
    /// Payload of the first segment: all must have this much but the last.
    size: u32,
}

impl<K> Default for Gro<K> {
    fn default() -> Self {
        Self { buckets: core::array::from_fn(|_| Vec::with_capacity(HELD_PER_BUCKET)) }
    }
}

impl<K: PartialEq> Gro<K> {
    /// Takes one segment of flow `key`, whose `hash` picks the bucket. Segments that can wait no
    /// longer go to `deliver`, in order within each flow.
    pub fn receive(
        &mut self,
        key: K,
        hash: u64,
        segment: Segment,
        deliver: &mut impl FnMut(K, Segment),
    ) {
        let bucket = &mut self.buckets[hash as usize % BUCKETS];
        if let Some(index) = bucket.iter().position(|held| held.key == key) {
            let held = &mut bucket[index];
            if held.takes(&segment) {
                let is_over =
                    segment.payload.len() < held.size || segment.flags.intersects(FLUSHING);
                held.merge(segment);
                if is_over {
                    let held = bucket.remove(index);
                    deliver(held.key, held.segment);
                }
                return;
            }
            let held = bucket.remove(index);
            deliver(held.key, held.segment);
        }
        let may_wait = segment.gso_size == 0
            && !segment.payload.is_empty()
            && !segment.flags.intersects(FLUSHING);
        if !may_wait {
            deliver(key, segment);
            return;
        }
        if bucket.len() == HELD_PER_BUCKET {
            let oldest = bucket.remove(0);
            deliver(oldest.key, oldest.segment);
        }
        let size = segment.payload.len();
        bucket.push(Held { key, segment, size });
    }

    /// Delivers all segments that are held, at the end of the batch.
    pub fn flush(&mut self, deliver: &mut impl FnMut(K, Segment)) {
        for held in self.buckets.iter_mut().flat_map(|bucket| bucket.drain(..)) {
            deliver(held.key, held.segment);
        }
    }

    /// Returns whether no segment is held.
    pub fn is_empty(&self) -> bool {
        self.buckets.iter().all(Vec::is_empty)
    }
}

impl<K> Held<K> {
    /// Whether `next` continues what is held.
    fn takes(&self, next: &Segment) -> bool {
        let held = &self.segment;
        let len = next.payload.len();
        next.gso_size == 0
            && len > 0
            && len <= self.size
            && next.seq == held.seq + held.payload.len()
            && held.payload.len() + len <= MAX_PAYLOAD
            && !next.flags.contains(Flags::CWR)
            && MAY_DIFFER.contains(held.flags ^ next.flags)
            && next.ack == held.ack
            && next.window == held.window
            && next.ecn == held.ecn
            && next.options == held.options
    }

    fn merge(&mut self, mut next: Segment) {
        for chunk in next.payload.take_chunks() {
            self.segment.payload.push(chunk);
        }
        self.segment.flags |= next.flags & (Flags::PSH | Flags::FIN);
        self.segment.gso_size = self.size as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use neap_tcp::segment::{Ecn, Options, Timestamps};
    use neap_tcp::seq::SeqNumber;
    use proptest::prelude::*;

    const SIZE: u32 = 100;

    fn data(seq: u32, len: u32) -> Segment {
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        Segment {
            seq: SeqNumber(seq),
            flags: Flags::ACK,
            window: 10,
            options: Options { timestamps, ..Options::default() },
            payload: Bytes::from(vec![seq as u8; len as usize]).into(),
            ..Segment::default()
        }
    }

    /// What comes out of one batch: payload length, `gso_size` and flags of each.
    fn batch(segments: impl IntoIterator<Item = Segment>) -> Vec<(u32, u16, Flags)> {
        let mut gro = Gro::default();
        let mut out = Vec::new();
        let mut deliver = |_: (), s: Segment| out.push((s.payload.len(), s.gso_size, s.flags));
        for segment in segments {
            gro.receive((), 0, segment, &mut deliver);
        }
        gro.flush(&mut deliver);
        assert!(gro.is_empty());
        out
    }

    #[test]
    fn segments_in_order_become_one() {
        let stream = (0..5).map(|i| data(i * SIZE, SIZE));
        assert_eq!(batch(stream), [(500, 100, Flags::ACK)]);
        assert_eq!(batch([data(0, SIZE)]), [(100, 0, Flags::ACK)]);
        let wrapping = [data(u32::MAX - 49, SIZE), data(50, SIZE)];
        assert_eq!(batch(wrapping), [(200, 100, Flags::ACK)]);
    }

    #[test]
    fn a_shorter_one_or_a_push_ends_it() {
        let short = batch([data(0, SIZE), data(100, 40), data(140, SIZE)]);
        assert_eq!(short, [(140, 100, Flags::ACK), (100, 0, Flags::ACK)]);
        let mut push = data(100, SIZE);
        push.flags |= Flags::PSH | Flags::FIN;
        let pushed = batch([data(0, SIZE), push, data(200, SIZE)]);
        let all = Flags::ACK | Flags::PSH | Flags::FIN;
        assert_eq!(pushed, [(200, 100, all), (100, 0, Flags::ACK)]);
        let longer = batch([data(0, SIZE), data(100, 101)]);
        assert_eq!(longer, [(100, 0, Flags::ACK), (101, 0, Flags::ACK)]);
    }

    #[test]
    fn whatever_differs_keeps_segments_apart() {
        let changes: [fn(&mut Segment); 13] = [
            |s| s.seq += 1,
            |s| s.seq = s.seq - 1,
            |s| s.ack = SeqNumber(1),
            |s| s.window = 11,
            |s| s.ecn = Ecn::Ce,
            |s| s.options.timestamps = None,
            |s| s.options.timestamps = Some(Timestamps { value: 2, echo: 2 }),
            |s| s.flags |= Flags::CWR,
            |s| s.flags |= Flags::ECE,
            |s| s.flags |= Flags::URG,
            |s| s.flags |= Flags::RST,
            |s| s.flags |= Flags::SYN,
            |s| s.gso_size = 50,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut second = data(100, SIZE);
            change(&mut second);
            assert_eq!(batch([data(0, SIZE), second]).len(), 2, "change {index}");
        }
        let ack = Segment { payload: Default::default(), ..data(100, SIZE) };
        assert_eq!(batch([data(0, SIZE), ack, data(100, SIZE)]).len(), 3);
    }

    #[test]
    fn cwr_may_stand_on_the_first() {
        let mut first = data(0, SIZE);
        first.flags |= Flags::CWR;
        let out = batch([first, data(100, SIZE)]);
        assert_eq!(out, [(200, 100, Flags::ACK | Flags::CWR)]);
    }

    #[test]
    fn a_super_segment_stays_below_64k() {
        let out = batch((0..70).map(|i| data(i * 1000, 1000)));
        assert_eq!(out.iter().map(|o| o.0).collect::<Vec<_>>(), [65_000, 5000]);
    }

    #[test]
    fn flows_are_kept_apart_and_bounded() {
        let mut gro = Gro::default();
        let mut out = Vec::new();
        let mut deliver = |key: u32, s: Segment| out.push((key, s.payload.len()));
        for seq in [0, SIZE] {
            for key in 0..8 {
                gro.receive(key, u64::from(key % 2), data(seq, SIZE), &mut deliver);
            }
        }
        for key in 8..13 {
            gro.receive(key, 0, data(0, SIZE), &mut deliver);
        }
        gro.flush(&mut deliver);
        assert_eq!(out[0], (0, 200), "the oldest of a full bucket goes first");
        assert_eq!(out.iter().map(|o| o.1).sum::<u32>(), 21 * SIZE);
        assert_eq!(out.len(), 13);
    }

    proptest! {
        #[test]
        fn order_and_bytes_of_each_flow_are_kept(
            arrivals in proptest::collection::vec(
                (0u8..12, 0u32..4, prop::sample::select(vec![0, 1, 60, 100]), 0u8..=0xff),
                0..200,
            ),
        ) {
            let mut gro = Gro::default();
            let (mut out, mut sent) = (Vec::new(), Vec::new());
            let mut next = [0u32; 12];
            let mut deliver = |key: u8, s: Segment| {
                let bytes = s.payload.chunks().concat();
                assert!(s.gso_size == 0 || s.segments() > 1);
                assert!(s.payload.len() <= MAX_PAYLOAD);
                out.push((key, s.seq, bytes));
            };
            for (key, gap, len, flags) in arrivals {
                let mut segment = data(next[usize::from(key)] + gap / 3, len);
                next[usize::from(key)] = segment.seq.0 + len;
                // Mostly plain data; sometimes any flags.
                if flags < 40 {
                    segment.flags = Flags::from_bits_retain(flags);
                }
                sent.push((key, segment.seq, segment.payload.chunks().concat()));
                gro.receive(key, u64::from(key), segment, &mut deliver);
            }
            gro.flush(&mut deliver);
            for flow in 0..12 {
                // Both as (sequence number, byte) in order of arrival.
                let flat = |list: &[(u8, SeqNumber, Vec<u8>)]| -> Vec<(u32, u8)> {
                    let mine = list.iter().filter(|(key, ..)| *key == flow);
                    mine.flat_map(|(_, seq, bytes)| {
                        bytes.iter().enumerate().map(|(i, b)| (seq.0 + i as u32, *b))
                    })
                    .collect()
                };
                prop_assert_eq!(flat(&out), flat(&sent));
            }
        }
    }
}
