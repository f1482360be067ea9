//! Frames that wait for a handshake with their peer, or for its endpoint. The oldest ones go where
//! they are too many: the newest are the likeliest to be of use yet (`wg_xmit`).
//!
//! Cost: two steps in an ordered set for each frame that waits, O(log peers). Frames that need not
//! wait cost a look at whether any do.

use crate::protocol::PeerId;
use neap_stack::frame::Frame;
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Frames of one peer (`MAX_STAGED_PACKETS`). Small queues keep a flow's share small.
pub(super) const FRAMES_MAX: usize = 128;
/// Bytes of the frames of one peer. A super-frame has as many as 40 packets.
const BYTES_MAX: usize = 4 << 20;
/// Bytes of the frames of all peers. Beyond it the peer with the most loses its oldest, so that no
/// peer takes room from another one that has less.
const ALL_BYTES_MAX: usize = 32 << 20;

/// All frames that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: HashMap<PeerId, Queue>,
    /// The peers of the queues by their bytes.
    by_bytes: BTreeSet<(usize, PeerId)>,
    /// Bytes of all queues.
    bytes: usize,
}

/// Frames of one peer, oldest first.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Frame>,
    bytes: usize,
}

/// Bytes of memory that a frame counts for.
fn room(frame: &Frame) -> usize {
    size_of::<Frame>() + frame.len()
}

impl Waiting {
    /// Whether no frame waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether frames of a peer wait.
    pub(super) fn contains(&self, peer: PeerId) -> bool {
        self.queues.contains_key(&peer)
    }

    /// The peers whose frames wait.
    pub(super) fn peers(&self) -> Vec<PeerId> {
        self.queues.keys().copied().collect()
    }

    /// Lets a frame wait behind the others of its peer. Returns how many frames were dropped for
    /// it.
    #[must_use = "each drop is counted"]
    pub(super) fn push(&mut self, peer: PeerId, frame: Frame) -> u64 {
        self.change(peer, |queue| {
            queue.bytes += room(&frame);
            queue.frames.push_back(frame);
        });
        let mut dropped = 0;
        while self.queues.get(&peer).is_some_and(Queue::is_too_long) {
            self.drop_oldest(peer);
            dropped += 1;
        }
        while self.bytes > ALL_BYTES_MAX
            && let Some(&(_, peer)) = self.by_bytes.last()
        {
            self.drop_oldest(peer);
            dropped += 1;
        }
        dropped
    }

    /// Takes all frames of a peer, oldest first.
    pub(super) fn take(&mut self, peer: PeerId) -> VecDeque<Frame> {
        self.change(peer, |queue| {
            queue.bytes = 0;
            std::mem::take(&mut queue.frames)
        })
    }

    fn drop_oldest(&mut self, peer: PeerId) {
        self.change(peer, |queue| {
            let oldest = queue.frames.pop_front();
            queue.bytes -= oldest.as_ref().map_or(0, room);
        });
    }

    /// Changes the queue of a peer, and what follows from its bytes.
    fn change<R>(&mut self, peer: PeerId, change: impl FnOnce(&mut Queue) -> R) -> R {
        let queue = self.queues.entry(peer).or_default();
        let before = queue.bytes;
        let result = change(queue);
        let (after, is_empty) = (queue.bytes, queue.frames.is_empty());
        self.bytes = self.bytes - before + after;
        self.by_bytes.remove(&(before, peer));
        if is_empty {
            self.queues.remove(&peer);
        } else {
            self.by_bytes.insert((after, peer));
        }
        result
    }

    /// The frames of a peer, oldest first.
    #[cfg(test)]
    pub(super) fn frames(&self, peer: PeerId) -> Vec<&Frame> {
        self.queues.get(&peer).into_iter().flat_map(|queue| &queue.frames).collect()
    }
}

impl Queue {
    fn is_too_long(&self) -> bool {
        self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use neap_stack::frame::Headers;
    use neap_tcp::segment::Payload;

    fn frame(len: usize) -> Frame {
        Frame::new(Headers::default(), Payload::from(Bytes::from(vec![0; len])))
    }

    /// Lets so many frames of a length wait. Returns how many were dropped.
    fn push(waiting: &mut Waiting, peer: PeerId, count: usize, len: usize) -> u64 {
        (0..count).map(|_| waiting.push(peer, frame(len))).sum()
    }

    /// The bytes of the frames of so many peers, and what was counted.
    fn sums(waiting: &Waiting, peers: PeerId) -> [usize; 3] {
        let frames = (0..peers).flat_map(|peer| waiting.frames(peer)).map(room).sum();
        [frames, waiting.bytes, waiting.by_bytes.iter().map(|(bytes, _)| bytes).sum()]
    }

    #[test]
    fn the_frames_of_a_peer_have_a_bound_in_bytes() {
        let mut waiting = Waiting::default();
        let fit = BYTES_MAX / room(&frame(60_000));
        assert_eq!(push(&mut waiting, 0, 1, 59_999), 0);
        assert_eq!(push(&mut waiting, 0, fit - 1, 60_000), 0);
        assert_eq!(push(&mut waiting, 0, 3, 60_000), 3, "one for each, the first of them smaller");
        let frames = waiting.frames(0);
        assert_eq!(frames.len(), fit);
        assert!(frames.iter().all(|frame| frame.len() == 60_000), "the oldest have gone");
        let sum = fit * room(&frame(60_000));
        assert_eq!(sums(&waiting, 1), [sum; 3]);
    }

    #[test]
    fn the_frames_of_all_peers_have_a_bound_and_who_has_most_loses() {
        let mut waiting = Waiting::default();
        assert_eq!(push(&mut waiting, 0, 2, 1000), 0);
        let each = BYTES_MAX / room(&frame(60_000));
        let peers = ALL_BYTES_MAX / (each * room(&frame(60_000))) + 4;
        let dropped: u64 = (1..peers).map(|peer| push(&mut waiting, peer, each, 60_000)).sum();
        assert!(dropped > 0);
        let kept: usize = (1..peers).map(|peer| waiting.frames(peer).len()).sum();
        assert_eq!(kept as u64 + dropped, (each * (peers - 1)) as u64);
        let [sum, ..] = sums(&waiting, peers);
        assert_eq!(sums(&waiting, peers), [sum; 3]);
        assert!(sum <= ALL_BYTES_MAX && sum > ALL_BYTES_MAX - 2 * 60_000, "{sum}");
        assert_eq!(waiting.frames(0).len(), 2, "it has less than its share");
        let counts = (1..peers).map(|peer| waiting.frames(peer).len());
        let (least, most) = (counts.clone().min(), counts.max());
        assert!(most <= least.map(|least| least + 1), "{least:?} {most:?}");
    }

    #[test]
    fn what_was_taken_leaves_nothing() {
        let mut waiting = Waiting::default();
        push(&mut waiting, 3, 2, 100);
        push(&mut waiting, 5, 1, 200);
        assert!(waiting.contains(3) && !waiting.contains(4));
        assert_eq!(waiting.take(3).len(), 2);
        assert_eq!(waiting.take(3).len(), 0);
        assert_eq!(waiting.peers(), [5]);
        assert_eq!(waiting.take(5).len(), 1);
        assert!(waiting.is_empty() && waiting.by_bytes.is_empty());
        assert_eq!(waiting.bytes, 0);
    }
}
