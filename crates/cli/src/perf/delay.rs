//! A longer path: what a device has received is handed over later.

use neap::device::{Device, Received, RxQueue};
use neap::time::{Instant, Nanos};
use std::collections::VecDeque;

/// Most packets that wait; more are lost, as in a queue on the way.
const ROOM: usize = 100_000;

/// Receiving half of a device whose packets come `delay` later. Each waits once, in order: O(1).
struct Delayed {
    inner: Box<dyn RxQueue>,
    delay: Nanos,
    waiting: VecDeque<(Instant, Received)>,
    lost: u64,
}

impl RxQueue for Delayed {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        while let Some(packet) = self.inner.receive(now) {
            if self.waiting.len() < ROOM {
                self.waiting.push_back((now + self.delay, packet));
            } else {
                self.lost += 1;
            }
        }
        let is_due = self.waiting.front().is_some_and(|&(at, _)| at <= now);
        is_due.then(|| self.waiting.pop_front()).flatten().map(|(_, packet)| packet)
    }

    fn next_event(&self) -> Instant {
        let next = self.waiting.front().map_or(Instant::FAR_FUTURE, |&(at, _)| at);
        next.min(self.inner.next_event())
    }

    fn drops(&self) -> u64 {
        self.inner.drops() + self.lost
    }
}

/// Adds this to the round trip of everything that passes the device.
pub(crate) fn delayed(mut device: Device, delay: Nanos) -> Device {
    for queue in &mut device.queues {
        for rx in std::iter::once(&mut queue.rx).chain(queue.bulk.as_mut().map(|bulk| &mut bulk.rx))
        {
            let nothing: Box<dyn RxQueue> = Box::new(Nothing);
            let inner = std::mem::replace(rx, nothing);
            *rx = Box::new(Delayed { inner, delay, waiting: VecDeque::new(), lost: 0 });
        }
    }
    device
}

/// What is in the place of a queue while it is moved.
struct Nothing;

impl RxQueue for Nothing {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap::device::RxChecksum;

    /// Has one packet.
    struct One(Option<Received>);

    impl RxQueue for One {
        fn receive(&mut self, _: Instant) -> Option<Received> {
            self.0.take()
        }
    }

    #[test]
    fn a_packet_comes_when_its_delay_has_passed_and_not_before() {
        let packet =
            Received { data: b"x".as_slice().into(), gso_size: 0, checksum: RxChecksum::Unknown };
        let inner = Box::new(One(Some(packet)));
        let delay = Nanos::from_millis(5);
        let mut queue = Delayed { inner, delay, waiting: VecDeque::new(), lost: 0 };
        let now = Instant::from_nanos(1_000_000_000);
        assert_eq!(queue.next_event(), Instant::FAR_FUTURE);
        assert!(queue.receive(now).is_none());
        assert_eq!(queue.next_event(), now + delay);
        assert!(queue.receive(now + delay - Nanos(1)).is_none());
        assert!(queue.receive(now + delay).is_some());
        assert_eq!(queue.next_event(), Instant::FAR_FUTURE);
    }
}
