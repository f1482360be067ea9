//! Datagrams and echo requests of guests that wait for the rate: one queue per mapping under CoDel
//! (RFC 8289), which with the schedule of the mappings is fq_codel (RFC 8290).
//!
//! The queue is the stack's qdisc `codel`. Its frames stand for the datagrams, and have their
//! lengths.
//!
//! Cost: O(1) per datagram, and a copy of a short one, so that it does not hold the memory of the
//! packets that it came with. At most a number of them wait, and of their bytes. Beyond these the
//! longest queues lose an eighth of all at once: that costs a look at each queue, which the
//! datagrams that come until then have paid for.

use crate::destination::Destination;
use crate::ip_header;
use bytes::Bytes;
use neap::Datagram;
use neap::device::{Capabilities, Completion, Frame, Headers, Medium, Payload};
use neap::qdisc::{CodelConfig, Dequeued, Dropped, Law, Qdisc, QdiscConfig};
use neap::time::{Instant, Nanos, Rate};
use slab::Slab;
use std::collections::BinaryHeap;

/// How many wait at most, of all mappings, and how many bytes they have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    pub(crate) number: usize,
    pub(crate) bytes: usize,
}

/// Most datagrams that wait of one mapping.
const MOST_OF_MAPPING: u32 = 1000;
/// Datagrams of up to so many bytes are copied.
const COPY_BREAK: usize = 8 << 10;
/// Datagrams that the longest queue loses at once.
const BATCH: usize = 64;

/// Bytes of a packet of Ethernet.
const MTU: u16 = 1500;
/// The header of UDP.
const UDP_HEADER: usize = 8;

/// What can wait.
pub(crate) trait Held {
    fn data(&self) -> &Bytes;
    fn data_mut(&mut self) -> &mut Bytes;

    /// Bytes of the headers of its packet outside.
    fn headers(&self) -> usize;

    /// Its bytes with their headers, those of fragments too.
    fn on_wire(&self) -> usize {
        let (data, headers) = (self.data().len(), self.headers());
        data + data.div_ceil(usize::from(MTU) - headers).max(1) * headers
    }
}

/// A datagram, and where it goes.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) datagram: Datagram,
    pub(crate) to: Destination,
}

impl Held for Waiting {
    fn data(&self) -> &Bytes {
        &self.datagram.data
    }
    fn data_mut(&mut self) -> &mut Bytes {
        &mut self.datagram.data
    }
    fn headers(&self) -> usize {
        ip_header::len(self.to.address.is_ipv6()) + UDP_HEADER
    }
}

/// All datagrams that wait.
#[derive(Debug)]
pub(crate) struct WaitingDatagrams<T> {
    /// By the flow of the frame that stands for each.
    waiting: Slab<T>,
    bytes: usize,
    most: Most,
    config: QdiscConfig,
}

/// The queue of one mapping.
pub(crate) struct Queue(Box<dyn Qdisc>);

impl Queue {
    /// Bytes that wait.
    pub(crate) fn backlog(&self) -> u64 {
        self.0.stats().backlog_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Held> WaitingDatagrams<T> {
    /// No datagrams, which will leave at a rate.
    pub(crate) fn new(rate: Rate, most: Most) -> Self {
        let mut law = Law::default();
        // At a low rate one packet takes longer than the target (RFC 8290 section 5.2.2).
        law.target = law.target.max(Nanos(rate.time_for(MTU.into()).0.saturating_mul(3) / 2));
        law.interval = law.interval.max(law.target);
        let config = QdiscConfig::Codel(CodelConfig { limit: MOST_OF_MAPPING, law });
        Self { waiting: Slab::new(), bytes: 0, most, config }
    }

    /// Whether none wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn new_queue(&self) -> Queue {
        let capabilities = Capabilities::new(Medium::Ip, MTU, Completion::OnSubmit);
        Queue(self.config.build(&capabilities, 0))
    }

    /// Adds a datagram to a queue. Returns how many were dropped.
    pub(crate) fn push(&mut self, queue: &mut Queue, mut datagram: T, now: Instant) -> usize {
        if datagram.data().len() <= COPY_BREAK {
            *datagram.data_mut() = Bytes::copy_from_slice(datagram.data());
        }
        let mut head = Headers::default();
        head.prepend(datagram.headers());
        let mut frame = Frame::new(head, Payload::from(datagram.data().clone()));
        self.bytes += datagram.data().len();
        frame.flow = self.waiting.insert(datagram) as u64;
        let mut dropped = Dropped::new();
        queue.0.enqueue(frame, now, &mut dropped);
        self.forget(dropped)
    }

    /// The next datagram of a queue, and how many were dropped before it.
    pub(crate) fn pop(&mut self, queue: &mut Queue, now: Instant) -> (Option<T>, usize) {
        let mut dropped = Dropped::new();
        let next = match queue.0.dequeue(now, &mut dropped) {
            Dequeued::Frame(frame) => self.take(&frame),
            Dequeued::NotBefore(_) | Dequeued::Empty => None,
        };
        (next, self.forget(dropped))
    }

    /// If too many wait, drops datagrams from the front of the longest of all queues, until an
    /// eighth of the places is free. Returns how many.
    pub(crate) fn bound<'a>(
        &mut self,
        queues: impl Iterator<Item = &'a mut Queue>,
        now: Instant,
    ) -> usize {
        if self.waiting.len() <= self.most.number && self.bytes <= self.most.bytes {
            return 0;
        }
        let Most { number, bytes } = self.most;
        let (number, bytes) = (number - number / 8, bytes - bytes / 8);
        let mut queues: Vec<_> = queues.filter(|queue| !queue.is_empty()).collect();
        let lengths = queues.iter().enumerate();
        let mut lengths: BinaryHeap<_> =
            lengths.map(|(index, queue)| (queue.backlog(), index)).collect();
        let mut dropped = 0;
        while (self.waiting.len() > number || self.bytes > bytes)
            && let Some((_, index)) = lengths.pop()
        {
            let queue = &mut *queues[index];
            dropped += self.shorten(queue, now);
            if !queue.is_empty() {
                lengths.push((queue.backlog(), index));
            }
        }
        dropped
    }

    /// Drops datagrams from the front of the longest queue, up to half of it. Returns how many.
    fn shorten(&mut self, longest: &mut Queue, now: Instant) -> usize {
        let half = longest.backlog() / 2;
        let mut count = 0;
        while count < BATCH && longest.backlog() > half {
            let (next, dropped) = self.pop(longest, now);
            count += dropped + usize::from(next.is_some());
            if next.is_none() {
                break;
            }
        }
        count
    }

    /// The mapping is over. Returns how many were dropped.
    pub(crate) fn clear(&mut self, queue: Queue) -> usize {
        self.forget(queue.0.into_frames())
    }

    fn take(&mut self, frame: &Frame) -> Option<T> {
        let waiting = self.waiting.try_remove(usize::try_from(frame.flow).ok()?)?;
        self.bytes -= waiting.data().len();
        Some(waiting)
    }

    fn forget(&mut self, frames: impl IntoIterator<Item = Frame>) -> usize {
        frames.into_iter().filter_map(|frame| self.take(&frame)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const RATE: Rate = Rate::from_mbit(19);

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(1_000_000_000) + Nanos::from_millis(n)
    }

    fn peer() -> SocketAddr {
        "10.0.2.100:1000".parse().expect("an address")
    }

    fn datagram(length: usize, number: u8) -> Waiting {
        let datagram = Datagram::new(vec![number; length], peer());
        Waiting { datagram, to: peer().into() }
    }

    fn all(rate: Rate) -> WaitingDatagrams<Waiting> {
        WaitingDatagrams::new(rate, Most { number: 10_240, bytes: 8 << 20 })
    }

    #[test]
    fn datagrams_leave_in_their_order_and_whole() {
        let mut all = all(RATE);
        let (mut a, mut b) = (all.new_queue(), all.new_queue());
        for number in 0..3 {
            assert_eq!(all.push(&mut a, datagram(100, number), ms(0)), 0);
            assert_eq!(all.push(&mut b, datagram(0, number), ms(0)), 0);
        }
        for number in 0..3 {
            let (Some(next), 0) = all.pop(&mut a, ms(1)) else { panic!("a datagram") };
            assert_eq!(next.datagram.data, vec![number; 100]);
            let (Some(next), 0) = all.pop(&mut b, ms(1)) else { panic!("an empty datagram") };
            assert!(next.datagram.data.is_empty() && next.to == peer().into());
        }
        assert!(all.pop(&mut a, ms(1)).0.is_none() && a.is_empty());
        assert_eq!((all.waiting.len(), all.bytes), (0, 0));
    }

    #[test]
    fn a_standing_queue_loses_datagrams() {
        let mut all = all(RATE);
        let mut queue = all.new_queue();
        let mut dropped = 0;
        for now in 0..2000 {
            while queue.backlog() < 100_000 {
                dropped += all.push(&mut queue, datagram(1400, 0), ms(now));
            }
            dropped += all.pop(&mut queue, ms(now)).1;
        }
        assert!(dropped > 50, "{dropped}");
        let left = all.clear(queue);
        assert_eq!((left, all.waiting.len(), all.bytes), (left, 0, 0));
    }

    #[test]
    fn the_longest_queue_is_made_shorter() {
        let mut all = all(RATE);
        let mut queues: Vec<_> = (0..11).map(|_| all.new_queue()).collect();
        let mut dropped = 0;
        for queue in &mut queues {
            for _ in 0..1000 {
                dropped += all.push(queue, datagram(10, 0), ms(0));
            }
        }
        assert_eq!(dropped, 0);
        let mut short = all.new_queue();
        assert_eq!(all.push(&mut short, datagram(10, 0), ms(0)), 0);
        let dropped = all.bound(queues.iter_mut().chain([&mut short]), ms(0));
        assert_eq!(all.waiting.len() + dropped, 11_001);
        assert!((8960 - BATCH..=8960).contains(&all.waiting.len()), "{}", all.waiting.len());
        assert!(!short.is_empty(), "the short one loses nothing");
        let lengths = queues.iter().map(Queue::backlog);
        let least = lengths.clone().min().expect("queues");
        assert!(lengths.max().expect("queues") - least <= 2 * BATCH as u64 * 38, "all lose alike");
        assert_eq!(all.bound(queues.iter_mut().chain([&mut short]), ms(0)), 0);
    }

    #[test]
    fn datagrams_of_very_many_queues_pay_for_the_looks_at_them() {
        const QUEUES: usize = 16_000;
        let mut all = all(RATE);
        let mut queues: Vec<_> = (0..QUEUES).map(|_| all.new_queue()).collect();
        let (mut looks, mut dropped, pushes) = (0, 0, QUEUES + 10_000);
        for push in 0..pushes {
            dropped += all.push(&mut queues[push % QUEUES], datagram(10, 0), ms(0));
            dropped += all.bound(queues.iter_mut().inspect(|_| looks += 1), ms(0));
            assert!(all.waiting.len() <= all.most.number);
        }
        assert_eq!(all.waiting.len() + dropped, pushes);
        assert!(looks <= 13 * pushes, "{looks} looks for {pushes} datagrams");
    }

    #[test]
    fn the_target_is_longer_where_a_packet_takes_long() {
        let target = |rate| match all(rate).config {
            QdiscConfig::Codel(config) => config.law.target,
            other => panic!("{other}"),
        };
        assert_eq!(target(RATE), Nanos::from_millis(5));
        assert_eq!(target(Rate::from_kbit(120)), Nanos::from_millis(150));
    }

    #[test]
    fn fragments_have_headers_of_their_own() {
        let on_wire = |length| datagram(length, 0).on_wire();
        assert_eq!([0, 1400, 1472, 1473].map(on_wire), [28, 1428, 1500, 1529]);
        let v6: SocketAddr = "[2001:db8::1]:1".parse().expect("an address");
        assert_eq!(Waiting { to: v6.into(), ..datagram(100, 0) }.on_wire(), 148);
    }
}
