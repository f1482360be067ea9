//! Queue of bytes written and not yet sent: buffers of up to 64 KiB, cut when they are sent.
//!
//! Small writes are copied into a page and stay one growing buffer; a frame takes a slice of the
//! page (`split().freeze()`), so the copy from the application is the only one. A page is not much
//! larger than what a connection has unsent and unacknowledged, so that one that waits for its peer
//! holds no more than it is charged for. Full pages come from a pool, and go back when the last
//! frame that refers to them is acknowledged and off the wire: a flow that has much in flight
//! allocates nothing in steady state. Cost: O(1) per write, per frame and per ACK, plus the copy.

use super::pages::{PAGE, Pages};
use crate::config::BUFFER_OVERHEAD;
use crate::segment::Payload;
use crate::seq::SeqNumber;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;

/// Page of a socket that writes little.
const SMALL_PAGE: usize = 512;
/// Smallest page of any other. The memory of a connection is counted in such pages.
const LEAST_PAGE: usize = 4096;

/// What the last write said of what follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum More {
    /// Nothing: it may have been the last.
    #[default]
    Unknown,
    /// More follows, but what is there goes by the ordinary rules by now.
    Follows,
    /// More follows: segments that are not full wait.
    Held,
}

/// Bytes at the front of the queue that one frame may carry: the first record, the first buffer if
/// buffers keep their size, or all that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of bytes.
    pub len: u32,
    /// Whether the application ended a record with them (`MSG_EOR`), so that they cannot grow.
    pub is_ended: bool,
}

/// Unsent part of a socket's write queue.
#[derive(Debug)]
pub struct SendQueue {
    /// Full buffers and buffers that the application gave away.
    ready: VecDeque<Bytes>,
    /// The bytes written last, still growing. Always behind `ready`.
    tail: BytesMut,
    /// `tail` is a page of the pool.
    is_page: bool,
    /// What an idle socket has not.
    aside: Option<Box<Aside>>,
    /// A record ends with the last byte, so that a new buffer must be granted.
    is_record_ended: bool,
    /// Whether the last write said that more follows.
    more: More,
    /// Bytes in `ready`.
    ready_len: u32,
    /// Bytes in the last buffer, as the accounting of buffers sees it.
    last_len: u32,
    /// Bytes taken and not acknowledged, when that was last told.
    in_flight: u32,
    pages: Arc<dyn Pages>,
}

/// Lists that only a socket with data has.
#[derive(Debug, Default)]
struct Aside {
    /// Pages whose bytes may still be referred to, oldest first.
    retired: VecDeque<BytesMut>,
    /// Sequence numbers at which records end, in order; the last one may be the end of the queue.
    records: VecDeque<SeqNumber>,
    /// What ends there are buffers that leave as they were written, and no records.
    are_buffers: bool,
}

impl SendQueue {
    /// Returns an empty queue that writes into `pages`.
    pub fn new(pages: Arc<dyn Pages>) -> Self {
        Self {
            ready: VecDeque::new(),
            tail: BytesMut::new(),
            is_page: false,
            aside: None,
            is_record_ended: false,
            more: More::Unknown,
            ready_len: 0,
            last_len: 0,
            in_flight: 0,
            pages,
        }
    }

    /// What the last write said of what follows it.
    pub(crate) fn more(&self) -> More {
        self.more
    }

    /// A write said what follows it.
    pub(crate) fn set_more(&mut self, more: More) {
        self.more = more;
    }

    /// Something else than a write asks for transmission: only the push of its own write is held.
    pub(crate) fn end_hold(&mut self) {
        if self.more == More::Held {
            self.more = More::Follows;
        }
    }

    /// Returns the bytes that wait (`SIOCOUTQNSD`).
    pub fn len(&self) -> u32 {
        self.ready_len + self.tail.len() as u32
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that the unsent bytes count for: payload, and one overhead per
    /// buffer of `goal` bytes.
    pub fn memory(&self, goal: u32) -> u32 {
        let len = self.len();
        let aside = self.aside.as_ref();
        let records = aside.map_or(0, |aside| aside.records.len() as u32);
        let filled = if aside.is_some_and(|aside| aside.are_buffers) {
            u32::from(len > 0)
        } else {
            len.div_ceil(goal.max(1))
        };
        let buffers = filled.saturating_add(records);
        len.saturating_add(buffers.saturating_mul(BUFFER_OVERHEAD))
    }

    /// Returns the bytes that still fit the last buffer. `goal` is the size at which a buffer is
    /// full.
    pub fn room_in_last(&self, goal: u32) -> u32 {
        if self.is_empty() || self.is_record_ended {
            return 0;
        }
        goal.saturating_sub(self.last_len)
    }

    /// Notes that a new buffer begins with the next byte.
    pub fn begin_buffer(&mut self) {
        self.last_len = 0;
        self.is_record_ended = false;
    }

    /// Ends a record with the last byte (`MSG_EOR`). `nxt` is the sequence number of the first
    /// byte.
    pub fn end_record(&mut self, nxt: SeqNumber) {
        let end = nxt + self.len();
        self.aside.get_or_insert_default().records.push_back(end);
        self.is_record_ended = true;
    }

    /// Ends a buffer with the last byte. No frame carries bytes on both sides of it: buffers keep
    /// the size that they were written with. `nxt` is the sequence number of the first byte.
    pub fn end_buffer(&mut self, nxt: SeqNumber) {
        if !self.is_empty() {
            self.end_record(nxt);
            self.aside.get_or_insert_default().are_buffers = true;
        }
    }

    /// Returns the most that one frame may carry. `nxt` is the sequence number of the first byte.
    #[inline]
    pub fn first_record(&self, nxt: SeqNumber) -> Record {
        let all = Record { len: self.len(), is_ended: false };
        let Some(aside) = self.aside.as_ref() else { return all };
        match aside.records.front() {
            Some(end) => Record { len: end.bytes_since(nxt), is_ended: !aside.are_buffers },
            None => all,
        }
    }

    /// Forgets the records that end at `nxt` or before, which were sent.
    #[inline]
    pub fn pass_records(&mut self, nxt: SeqNumber) {
        let Some(Aside { records, .. }) = self.aside.as_deref_mut() else { return };
        while records.front().is_some_and(|end| end.at_or_before(nxt)) {
            records.pop_front();
        }
    }

    /// Says how many bytes are taken and not acknowledged. The next page follows that.
    pub fn note_in_flight(&mut self, bytes: u32) {
        self.in_flight = bytes;
    }

    /// Copies `data` to the end of the queue.
    pub fn push(&mut self, mut data: &[u8]) {
        self.last_len = self.last_len.saturating_add(data.len() as u32);
        while !data.is_empty() {
            let room = self.tail.capacity() - self.tail.len();
            if room == 0 {
                self.new_page(data.len());
                continue;
            }
            let (now, later) = data.split_at(room.min(data.len()));
            self.tail.extend_from_slice(now);
            data = later;
        }
    }

    /// Appends bytes that the application gave away, without a copy.
    pub fn push_bytes(&mut self, data: Bytes) {
        self.last_len = self.last_len.saturating_add(data.len() as u32);
        self.seal_tail();
        self.ready_len += data.len() as u32;
        self.ready.push_back(data);
    }

    /// Takes the first `len` bytes (at most all) as the payload of a frame.
    pub fn take(&mut self, len: u32) -> Payload {
        let mut want = len.min(self.len()) as usize;
        let mut payload = Payload::new();
        while want > 0 {
            let Some(front) = self.ready.front_mut() else {
                payload.push(self.tail.split_to(want).freeze());
                break;
            };
            let take = want.min(front.len());
            want -= take;
            self.ready_len -= take as u32;
            if take == front.len() {
                payload.push(self.ready.pop_front().expect("just seen"));
            } else {
                payload.push(front.split_to(take));
            }
        }
        self.last_len = self.last_len.min(self.len());
        payload
    }

    /// Puts a payload back to the front that [`take`](Self::take) gave and the way down did not
    /// take.
    pub fn put_back(&mut self, mut payload: Payload) {
        for chunk in payload.take_chunks().into_iter().rev() {
            self.ready_len += chunk.len() as u32;
            self.ready.push_front(chunk);
        }
    }

    /// Drops all bytes.
    pub fn clear(&mut self) {
        self.reclaim();
        *self = Self::new(self.pages.clone());
    }

    /// Frees what an idle socket does not need.
    pub fn release_idle_memory(&mut self) {
        if self.is_empty() {
            self.reclaim();
            self.aside = None;
            self.ready = VecDeque::new();
            let tail = std::mem::take(&mut self.tail);
            if std::mem::take(&mut self.is_page) {
                give_back(&*self.pages, tail);
            }
        }
    }

    /// Moves the growing bytes behind `ready`, so that something else can follow them.
    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            let full = self.tail.split().freeze();
            self.ready_len += full.len() as u32;
            self.ready.push_back(full);
        }
    }

    /// Gives pages back to which nothing refers. O(1) per page.
    pub fn reclaim(&mut self) {
        if let Some(Aside { retired, .. }) = self.aside.as_deref_mut() {
            while let Some(page) = retired.pop_front() {
                if let Some(page) = give_back(&*self.pages, page) {
                    retired.push_front(page);
                    break;
                }
            }
        }
        if self.is_page && self.tail.capacity() == 0 {
            let page = give_back(&*self.pages, std::mem::take(&mut self.tail));
            self.is_page = page.is_some();
            self.tail = page.unwrap_or_default();
        }
    }

    fn new_page(&mut self, wanted: usize) {
        self.seal_tail();
        if !self.is_page && self.tail.try_reclaim(SMALL_PAGE) {
            return;
        }
        let size = self.page_size(wanted);
        let is_full = size >= PAGE;
        let page = if is_full { self.pages.take() } else { BytesMut::with_capacity(size) };
        let former = std::mem::replace(&mut self.tail, page);
        if self.is_page {
            self.aside.get_or_insert_default().retired.push_back(former);
        }
        self.is_page = is_full;
    }

    /// Bytes of a new page for `wanted` bytes: half as much again as waits with them, rounded up.
    fn page_size(&self, wanted: usize) -> usize {
        let waiting = (self.len() + self.in_flight) as usize;
        if waiting == 0 && wanted <= SMALL_PAGE / 2 {
            return SMALL_PAGE;
        }
        let most = waiting.saturating_add(wanted).min(PAGE);
        (most + most / 2).next_power_of_two().clamp(LEAST_PAGE, PAGE)
    }
}

/// Gives a page back if nothing refers to its bytes any more; returns it otherwise.
fn give_back(pages: &dyn Pages, mut page: BytesMut) -> Option<BytesMut> {
    if !page.is_empty() || !page.try_reclaim(PAGE) {
        return Some(page);
    }
    pages.give(page);
    None
}

#[cfg(test)]
mod tests {
    use super::super::pages::Unpooled;
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn bytes_come_out_in_order_across_pages_and_given_buffers() {
        let data = pattern(200_000);
        let mut queue = SendQueue::new(Arc::new(Unpooled));
        queue.push(&data[..70_000]);
        queue.push_bytes(Bytes::copy_from_slice(&data[70_000..90_000]));
        queue.push(&data[90_000..]);
        assert_eq!(queue.len(), 200_000);
        let mut out = Vec::new();
        let mut step = 1;
        while !queue.is_empty() {
            let payload = queue.take(step);
            payload.chunks().iter().for_each(|chunk| out.extend_from_slice(chunk));
            step = step * 3 % 65_161 + 1;
        }
        assert_eq!(out, data);
    }

    #[test]
    fn a_refused_payload_goes_back_in_front() {
        let data = pattern(100_000);
        let mut queue = SendQueue::new(Arc::new(Unpooled));
        queue.push(&data);
        let first = queue.take(66_000);
        queue.put_back(first);
        let all = queue.take(100_000);
        assert_eq!(all.chunks().concat(), data);
    }

    /// Counts the pages that are out.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);

    impl Pages for Counting {
        fn take(&self) -> BytesMut {
            self.0.fetch_add(1, Ordering::Relaxed);
            BytesMut::with_capacity(PAGE)
        }

        fn give(&self, page: BytesMut) {
            assert!(page.is_empty() && page.capacity() == PAGE);
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn pages_go_back_when_nothing_refers_to_them_and_not_before() {
        let pages = Arc::new(Counting::default());
        let mut queue = SendQueue::new(pages.clone());
        let data = pattern(PAGE);
        queue.push(b"a small page first");
        drop(queue.take(100));
        let mut in_flight = VecDeque::new();
        for _ in 0..50 {
            queue.push(&data);
            in_flight.push_back(queue.take(PAGE as u32));
            if in_flight.len() > 4 {
                in_flight.pop_front();
            }
            queue.reclaim();
            let out = pages.0.load(Ordering::Relaxed);
            assert!((in_flight.len()..=in_flight.len() + 2).contains(&out), "{out} pages");
        }
        in_flight.clear();
        queue.reclaim();
        queue.release_idle_memory();
        assert_eq!(pages.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_page_is_not_much_larger_than_what_waits() {
        for (written, in_flight, expected) in [
            (100, 0, SMALL_PAGE),
            (100, 1000, LEAST_PAGE),
            (1000, 0, LEAST_PAGE),
            (5000, 0, 8192),
            (1000, 10_000, 32_768),
            (30_000, 0, PAGE),
            (1000, 40_000, PAGE),
        ] {
            let pages = Arc::new(Counting::default());
            let mut queue = SendQueue::new(pages.clone());
            queue.note_in_flight(in_flight);
            queue.push(&pattern(written));
            assert_eq!(queue.tail.capacity(), expected, "{written} and {in_flight}");
            let pooled = usize::from(expected == PAGE);
            assert_eq!(pages.0.load(Ordering::Relaxed), pooled);
        }
    }

    #[test]
    fn an_idle_queue_keeps_next_to_nothing() {
        let mut queue = SendQueue::new(Arc::new(Unpooled));
        queue.push(&pattern(300_000));
        drop(queue.take(300_000));
        queue.release_idle_memory();
        assert_eq!(queue.tail.capacity(), 0);
        queue.push(b"x");
        drop(queue.take(1));
        queue.release_idle_memory();
        assert_eq!(queue.tail.capacity(), 0);
    }
}
