//! Queue of received bytes in stream order. Large slices stay in the pages they arrived in; small
//! ones are copied.

use crate::segment::Payload;
use crate::time::{Instant, Nanos};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// Memory that a held slice costs beside its bytes, in bytes.
pub const OVERHEAD: u32 = 256;
/// Slices of at most this many bytes are copied, so that none of them pins the page it arrived in.
pub const COPY_BREAK: usize = 4096;
const PAGE_MIN: usize = 64;
const PAGE_MAX: usize = 16 * 1024;

/// A queue of bytes. Large slices are kept as they are; small ones are copied behind each other
/// into a page of the queue's own, whose size follows what is queued.
///
/// Push, read and take are O(1) per slice; memory is allocated per page, not per slice, and a page
/// that was read to its end is used again. An empty queue that was
/// [`release`](Self::release)d holds no heap memory.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    slices: VecDeque<Bytes>,
    /// Bytes behind the last slice, in a page with room for more.
    tail: BytesMut,
    len: u32,
    /// Since when slices lie in the buffers that they arrived in.
    kept: Kept,
}

/// Time since which slices are kept, in milliseconds; 0 if there are none, 1 if nobody said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept(u32);

impl ByteQueue {
    /// Bytes queued.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slices held, the page with room for more included.
    pub(super) fn slices(&self) -> usize {
        self.slices.len() + usize::from(!self.tail.is_empty())
    }

    /// Memory held for the queued bytes: themselves and [`OVERHEAD`] for each slice.
    pub(super) fn charge(&self) -> u32 {
        let slices = u32::try_from(self.slices()).unwrap_or(u32::MAX);
        self.len.saturating_add(slices.saturating_mul(OVERHEAD))
    }

    /// Whether there is memory to [`release`](Self::release).
    pub(super) fn holds_heap(&self) -> bool {
        self.slices.capacity() > 0 || self.tail.capacity() > 0
    }

    /// Gives all memory back, queued bytes included.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }

    /// Appends `payload`, copying slices of at most `copy_break` bytes.
    pub(super) fn push(&mut self, payload: &mut Payload, copy_break: usize) {
        for chunk in payload.take_chunks() {
            if chunk.len() <= copy_break {
                self.copy(&chunk);
            } else {
                self.seal();
                self.len += chunk.len() as u32;
                self.slices.push_back(chunk);
                self.kept.0 = self.kept.0.max(1);
            }
        }
    }

    /// Says that slices which were kept since the last call came at `now`, and that nothing is kept
    /// if nothing is queued.
    pub(super) fn date_kept(&mut self, now: Instant) {
        match self.kept {
            _ if self.is_empty() => self.kept = Kept::default(),
            Kept(1) => self.kept = Kept((now.as_millis() as u32).max(2)),
            _ => {}
        }
    }

    /// How long slices were kept at `now`, which is within 49 days of their arrival; zero if there
    /// are none.
    pub(super) fn kept_for(&self, now: Instant) -> Nanos {
        let passed = self.millis_kept(now).unwrap_or(0);
        Nanos::from_millis(u64::try_from(passed).unwrap_or(0))
    }

    /// When slices are kept for `longest`, whole milliseconds, as it looks at `now`, which is
    /// within 49 days of their arrival; [`Instant::FAR_FUTURE`] if there are none.
    pub(super) fn kept_until(&self, now: Instant, longest: Nanos) -> Instant {
        let Some(passed) = self.millis_kept(now) else { return Instant::FAR_FUTURE };
        let rest = i64::try_from(longest.as_millis()).unwrap_or(i64::MAX) - passed;
        now + Nanos::from_millis(u64::try_from(rest).unwrap_or(0))
    }

    /// Milliseconds from the date of kept slices to `now`; `None` if there are none. It is less
    /// than 0 just after an arrival in the milliseconds 0 and 1, which are dated 2.
    fn millis_kept(&self, now: Instant) -> Option<i64> {
        let passed = (now.as_millis() as u32).wrapping_sub(self.kept.0);
        let is_dated_ahead = passed >= u32::MAX - 1;
        self.has_kept().then_some(if is_dated_ahead {
            i64::from(passed as i32)
        } else {
            passed.into()
        })
    }

    /// Whether slices are kept whose time of arrival was said.
    pub(super) fn has_kept(&self) -> bool {
        self.kept.0 > 1
    }

    /// Copies the slices that were kept behind each other, so that they hold no buffer but the
    /// queue's own (`tcp_collapse`). Returns the slices saved. A slice is copied so at most once.
    pub(super) fn collapse(&mut self) -> u32 {
        if self.kept == Kept::default() {
            return 0;
        }
        let before = self.slices();
        let former = core::mem::take(self);
        for chunk in former.chunks() {
            self.copy(chunk);
        }
        before.saturating_sub(self.slices()) as u32
    }

    fn copy(&mut self, mut bytes: &[u8]) {
        let room = self.tail.capacity() - self.tail.len();
        if room < bytes.len() && !self.tail.try_reclaim(bytes.len()) {
            let page = bytes.len().next_power_of_two();
            let page = page.max((self.len as usize).clamp(PAGE_MIN, PAGE_MAX));
            if !self.tail.is_empty() {
                let (head, rest) = bytes.split_at(room);
                self.tail.extend_from_slice(head);
                self.len += head.len() as u32;
                bytes = rest;
                self.seal();
            }
            self.tail = BytesMut::with_capacity(page);
        }
        self.len += bytes.len() as u32;
        self.tail.extend_from_slice(bytes);
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.slices.push_back(self.tail.split().freeze());
        }
    }

    /// Moves all of `other` behind the bytes of this queue; copied when at most `copy_break` bytes.
    pub(super) fn append(&mut self, mut other: Self, copy_break: usize) {
        if other.len as usize <= copy_break {
            for chunk in other.chunks() {
                self.copy(chunk);
            }
            return;
        }
        self.seal();
        self.len += other.len;
        self.kept.0 = self.kept.0.max(other.kept.0.min(1));
        self.slices.append(&mut other.slices);
        self.tail = other.tail;
    }

    /// Moves all of `other` before the bytes of this queue.
    pub(super) fn prepend(&mut self, mut other: Self) {
        other.seal();
        self.len += other.len;
        self.kept.0 = self.kept.0.max(other.kept.0.min(1));
        while let Some(slice) = other.slices.pop_back() {
            self.slices.push_front(slice);
        }
    }

    /// The queued bytes, slice by slice.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let tail = core::iter::once(&self.tail[..]).filter(|tail| !tail.is_empty());
        self.slices.iter().map(|slice| &slice[..]).chain(tail)
    }

    /// Copies bytes to `buf` without taking them. Returns how many.
    pub(super) fn peek(&self, buf: &mut [u8]) -> usize {
        let mut done = 0;
        for chunk in self.chunks() {
            let take = chunk.len().min(buf.len() - done);
            buf[done..done + take].copy_from_slice(&chunk[..take]);
            done += take;
            if done == buf.len() {
                break;
            }
        }
        done
    }

    /// Moves bytes to `buf`. Returns how many.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() && self.len > 0 {
            let front: &[u8] = self.slices.front().map_or(&self.tail, |front| front);
            let take = front.len().min(buf.len() - done);
            buf[done..done + take].copy_from_slice(&front[..take]);
            self.advance_front(take);
            done += take;
        }
        done
    }

    /// Drops the first `bytes` bytes (at most all).
    pub(super) fn advance(&mut self, bytes: u32) {
        let mut left = bytes.min(self.len) as usize;
        while left > 0 {
            let front = self.slices.front().map_or(self.tail.len(), Bytes::len);
            let take = front.min(left);
            self.advance_front(take);
            left -= take;
        }
    }

    /// Drops `bytes` bytes of the first slice, which has as many.
    fn advance_front(&mut self, bytes: usize) {
        self.len -= bytes as u32;
        match self.slices.front_mut() {
            Some(front) if front.len() == bytes => {
                self.slices.pop_front();
            }
            Some(front) => front.advance(bytes),
            None => self.tail.advance(bytes),
        }
    }

    /// Takes the first slice out, without copying.
    pub(super) fn take_slice(&mut self) -> Option<Bytes> {
        let slice = match self.slices.pop_front() {
            Some(slice) => slice,
            None if self.tail.is_empty() => return None,
            None => self.tail.split().freeze(),
        };
        self.len -= slice.len() as u32;
        Some(slice)
    }

    /// Bytes of the last slice; 0 when empty.
    pub(super) fn last_slice_len(&self) -> u32 {
        if self.tail.is_empty() {
            self.slices.back().map_or(0, |slice| slice.len() as u32)
        } else {
            self.tail.len() as u32
        }
    }

    /// Drops the last slice.
    pub(super) fn pop_slice(&mut self) {
        self.len -= self.last_slice_len();
        if self.tail.is_empty() {
            self.slices.pop_back();
        }
        self.tail = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(len: usize, byte: u8) -> Payload {
        Payload::from(Bytes::from(vec![byte; len]))
    }

    #[test]
    fn what_came_in_the_first_milliseconds_was_not_kept_for_weeks() {
        for wraps in [0, 1 << 32] {
            let at = |ms: u64| Instant::ZERO + Nanos::from_millis(wraps + ms);
            let mut queue = ByteQueue::default();
            queue.push(&mut payload(COPY_BREAK + 1, 1), COPY_BREAK);
            queue.date_kept(at(0));
            assert!(queue.has_kept());
            assert_eq!([0, 1, 2, 5].map(|ms| queue.kept_for(at(ms)).as_millis()), [0, 0, 0, 3]);
        }
    }

    #[test]
    fn large_slices_are_kept_and_small_ones_copied() {
        let mut queue = ByteQueue::default();
        let large = Bytes::from(vec![1; COPY_BREAK + 1]);
        let at = large.as_ptr();
        queue.push(&mut Payload::from(large), COPY_BREAK);
        let small = Bytes::from(vec![2; 10]);
        let small_at = small.as_ptr();
        queue.push(&mut Payload::from(small), COPY_BREAK);
        queue.push(&mut payload(10, 3), COPY_BREAK);
        assert_eq!(queue.slices(), 2);
        assert_eq!(queue.charge(), COPY_BREAK as u32 + 21 + 2 * OVERHEAD);
        assert_eq!(queue.take_slice().unwrap().as_ptr(), at);
        let copied = queue.take_slice().unwrap();
        assert_ne!(copied.as_ptr(), small_at);
        assert_eq!(copied.len(), 20);
        assert!(queue.take_slice().is_none() && queue.is_empty());
    }

    #[test]
    fn collapsing_leaves_the_buffers_of_others_and_keeps_the_bytes() {
        let mut queue = ByteQueue::default();
        let mut expected = Vec::new();
        for i in 0..10_u8 {
            let data = vec![i; COPY_BREAK + 1 + usize::from(i)];
            expected.extend_from_slice(&data);
            queue.push(&mut Payload::from(Bytes::from(data)), COPY_BREAK);
            queue.push(&mut payload(3, i), COPY_BREAK);
            expected.extend_from_slice(&[i; 3]);
        }
        let (before, charge) = (queue.slices() as u32, queue.charge());
        let saved = queue.collapse();
        assert!(saved > before / 2, "{saved} of {before}");
        assert_eq!(queue.charge(), charge - saved * OVERHEAD);
        assert_eq!(queue.collapse(), 0);
        let mut out = vec![0; expected.len() + 1];
        assert_eq!(queue.read(&mut out), expected.len());
        assert_eq!(out[..expected.len()], expected);
    }

    #[test]
    fn one_byte_segments_share_pages() {
        let mut queue = ByteQueue::default();
        for i in 0..100_000_u32 {
            queue.push(&mut payload(1, i as u8), COPY_BREAK);
        }
        assert!(queue.charge() < 110_000, "{}", queue.charge());
        let mut out = vec![0; 100_000];
        assert_eq!(queue.read(&mut out), 100_000);
        assert!(out.iter().enumerate().all(|(i, &b)| b == i as u8));
    }

    #[test]
    fn a_drained_page_is_used_again() {
        let mut queue = ByteQueue::default();
        let mut buf = [0; 64];
        queue.push(&mut payload(60, 1), COPY_BREAK);
        let page = queue.tail.as_ptr();
        for _ in 0..100 {
            assert_eq!(queue.read(&mut buf), 60);
            queue.push(&mut payload(60, 2), COPY_BREAK);
            assert_eq!(queue.tail.as_ptr(), page);
        }
        queue.release();
        assert!(!queue.holds_heap());
    }

    #[test]
    fn joined_queues_keep_the_order() {
        for size in [10, COPY_BREAK + 10] {
            let mut first = ByteQueue::default();
            first.push(&mut payload(5, 1), COPY_BREAK);
            let mut second = ByteQueue::default();
            second.push(&mut payload(size, 2), COPY_BREAK);
            second.push(&mut payload(5, 3), COPY_BREAK);
            let mut third = ByteQueue::default();
            third.push(&mut payload(5, 4), COPY_BREAK);
            second.append(third, COPY_BREAK);
            second.prepend(first);
            let expected = [vec![1; 5], vec![2; size], vec![3; 5], vec![4; 5]].concat();
            let mut out = vec![0; expected.len() + 1];
            assert_eq!(second.peek(&mut out), expected.len());
            assert_eq!(out[..expected.len()], expected);
            second.advance(7);
            second.pop_slice();
            assert_eq!(second.len() as usize, second.chunks().map(<[u8]>::len).sum::<usize>());
        }
    }
}
