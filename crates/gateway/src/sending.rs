//! The rate of what guests send: the schedule of flows and mappings, and its clock.

use crate::relay::{End, Segments};
use crate::schedule::{Next, Schedule};
use neap::time::{Instant, Nanos, Rate};
use std::time::Duration;

/// Time of the rate that a host's socket may hold without having sent it. Bytes that wait there
/// would leave at once when the destination's window opens, beside the rate.
const UNSENT: Nanos = Nanos::from_millis(2);
/// It holds at least so many bytes: two full segments.
const LEAST_UNSENT: u64 = 4 << 10;

/// A sleep is longer than it needs to be by so much, so that at a high rate several turns are taken
/// after one sleep.
const SLACK: Nanos = Nanos::from_micros(200);

/// Who sends into sockets of the host, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A TCP connection.
    Flow(usize),
    /// The datagrams of a guest's address and port.
    Mapping(usize),
    /// The echo requests of a guest's address and identifier.
    Echo(usize),
}

/// Who may send, and when.
#[derive(Debug)]
pub(crate) struct Sending {
    rate: Rate,
    schedule: Schedule<Sender>,
    /// Time counts from here.
    began: std::time::Instant,
}

/// A turn of somebody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    pub(crate) who: Sender,
    /// Bytes that it may send, headers included, and up to one packet more.
    pub(crate) bytes: usize,
    id: usize,
}

/// A TCP connection in the schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled {
    pub(crate) id: usize,
    pub(crate) segments: Segments,
}

impl Sending {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, schedule: Schedule::new(rate), began: std::time::Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed().into()
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// A connection whose bytes go to `host`.
    pub(crate) fn insert_flow(&mut self, key: usize, host: &mut dyn End) -> Scheduled {
        let unsent = self.rate.bytes_in(UNSENT).max(LEAST_UNSENT);
        host.limit_unsent(usize::try_from(unsent).unwrap_or(usize::MAX));
        Scheduled { id: self.schedule.insert(Sender::Flow(key)), segments: host.segments() }
    }

    /// A sender of single packets.
    pub(crate) fn insert(&mut self, who: Sender) -> usize {
        self.schedule.insert(who)
    }

    pub(crate) fn remove(&mut self, id: usize) {
        self.schedule.remove(id);
    }

    /// Somebody may have something to send.
    pub(crate) fn wake(&mut self, id: usize) {
        self.schedule.wake(id);
    }

    /// Whose turn it is; `None` if it is too early, or if nobody has anything to send.
    pub(crate) fn next(&mut self) -> Option<Service> {
        match self.schedule.next(self.now()) {
            Next::Serve { id, key, bytes } => {
                let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                Some(Service { who: key, bytes, id })
            }
            Next::NotBefore(_) | Next::Empty => None,
        }
    }

    /// A turn is over. `bytes` were sent, headers included.
    pub(crate) fn on_sent(&mut self, service: Service, bytes: usize, has_more: bool) {
        let now = self.now();
        self.schedule.on_sent(service.id, bytes as u64, has_more, now);
    }

    /// Whether somebody may have something to send, whose turn comes by itself.
    pub(crate) fn has_more(&self, id: usize) -> bool {
        self.schedule.has_more(id)
    }

    /// Whether it is too early for anybody to send.
    pub(crate) fn is_early(&self) -> bool {
        self.schedule.due().is_some_and(|due| due > self.now())
    }

    /// How long nobody may send; `None` if nobody has anything to send.
    pub(crate) fn sleeps_for(&self) -> Option<Duration> {
        let early = self.schedule.due()?.since(self.now());
        Some(if early > Nanos::ZERO { (early + SLACK).into() } else { Duration::ZERO })
    }
}
