//! The client of one connection.

use super::page;
use super::traffic::{Ends, Traffic, message};
use super::wire::{Failed, Wire};
use super::{App, Step};
use crate::rng::Rng;
use core::net::SocketAddr;
use neap_stack::stack::Stack;
use neap_tcp::time::{Instant, Nanos};
use std::task::Waker;

/// Connects, writes as its group's traffic says, and leaves.
pub struct Source {
    ends: Ends,
    index: usize,
    remote: SocketAddr,
    start: Instant,
    end: Instant,
    rng: Rng,
    waker: Waker,
    wire: Option<Wire>,
    is_over: bool,
    work: Work,
}

/// Where the traffic is.
#[derive(Debug)]
struct Work {
    /// Something is due then.
    next: Instant,
    /// The stream may be written up to here.
    allowed: u64,
    /// It has been read up to here when the response is whole.
    expected: u64,
    asked_at: Instant,
    /// Urgent messages that are due and not begun.
    urgent: u64,
    has_shut: bool,
}

/// A time around a mean: half as much to half as much again.
fn around(rng: &mut Rng, mean: u64) -> u64 {
    rng.range(mean / 2, mean.saturating_add(mean / 2))
}

impl Source {
    pub(super) fn new(
        ends: Ends,
        index: usize,
        remote: SocketAddr,
        (start, end): (Instant, Instant),
        rng: Rng,
    ) -> Self {
        let work = Work {
            next: start,
            allowed: 0,
            expected: 0,
            asked_at: start,
            urgent: 0,
            has_shut: false,
        };
        let (waker, wire) = (Waker::noop().clone(), None);
        Self { ends, index, remote, start, end, rng, waker, wire, is_over: false, work }
    }

    fn open(&mut self, stack: &Stack, now: Instant) {
        let mut log = self.ends.log.borrow_mut();
        let own = &mut log.clients[self.index];
        own.begun = Some(now);
        match stack.connect(now, self.remote, self.ends.group.client.clone()) {
            Ok(handle) => {
                own.handle = Some(handle.clone());
                self.wire = Some(Wire::new(handle));
            }
            Err(_) => {
                own.has_failed = true;
                self.is_over = true;
            }
        }
    }

    fn leave(&mut self, now: Instant, has_failed: bool) {
        let Some(wire) = self.wire.take() else { return };
        wire.handle.close(now);
        self.is_over = true;
        let mut log = self.ends.log.borrow_mut();
        let own = &mut log.clients[self.index];
        own.handle = None;
        own.has_failed = has_failed;
        own.finished = (!has_failed).then_some(now);
    }

    /// Whether the connection is over.
    fn run(&mut self, now: Instant, wire: &mut Wire) -> Result<bool, Failed> {
        let Self { ends, end, rng, work, waker, .. } = self;
        let mut is_over = false;
        wire.settle(waker, |wire| {
            if work.has_shut {
                is_over = wire.read_to(now, u64::MAX, |_, _| {})?;
                return Ok(());
            }
            // Before the handshake is over, too, a socket may not be written.
            if wire.written == 0 && !wire.may_write() {
                return Ok(());
            }
            let has_all = work.write(now.min(*end), now, wire, ends, rng)?;
            if (has_all || now >= *end) && wire.pending.is_empty() {
                work.has_shut = true;
                wire.handle.shutdown_write(now);
                is_over = wire.read_to(now, u64::MAX, |_, _| {})?;
            }
            Ok(())
        })?;
        Ok(is_over)
    }
}

impl Work {
    /// Writes what is due by `due`; whether there will be no more.
    fn write(
        &mut self,
        due: Instant,
        now: Instant,
        wire: &mut Wire,
        ends: &Ends,
        rng: &mut Rng,
    ) -> Result<bool, Failed> {
        match ends.group.traffic {
            Traffic::Bulk { bytes, write } => {
                self.next = Instant::FAR_FUTURE;
                let end = bytes.unwrap_or(u64::MAX);
                return wire.write_to(now, end, write);
            }
            Traffic::RequestResponse { request, response, think } => {
                self.exchange(due, now, wire, ends, (request, response, think))?;
            }
            Traffic::OnOff { burst, off } => loop {
                if wire.written < self.allowed {
                    if !wire.write_to(now, self.allowed, burst)? {
                        break;
                    }
                    self.next = now + Nanos(around(rng, off.0));
                }
                if due < self.next {
                    break;
                }
                self.next = Instant::FAR_FUTURE;
                self.allowed += around(rng, burst).max(1);
            },
            Traffic::Paced { message, interval } => {
                let count = self.births(due, interval, wire, ends);
                self.allowed += count * message;
                wire.write_to(now, self.allowed, message)?;
            }
            Traffic::Mixed { urgent, interval, frame } => {
                self.urgent += self.births(due, interval, wire, ends);
                while wire.flush(now)? && wire.may_write() {
                    let is_urgent = self.urgent > 0;
                    self.urgent -= u64::from(is_urgent);
                    wire.pending = message(is_urgent, if is_urgent { urgent } else { frame });
                }
            }
        }
        Ok(false)
    }

    /// Notes the messages that are due by `due`; how many.
    fn births(&mut self, due: Instant, interval: Nanos, wire: &Wire, ends: &Ends) -> u64 {
        let mut count = 0;
        let mut births = ends.births.borrow_mut();
        while self.next <= due {
            births.entry(wire.handle.local_addr()).or_default().push_back(self.next);
            self.next += interval.max(Nanos(1));
            count += 1;
        }
        count
    }

    fn exchange(
        &mut self,
        due: Instant,
        now: Instant,
        wire: &mut Wire,
        ends: &Ends,
        (request, response, think): (u64, u64, Nanos),
    ) -> Result<(), Failed> {
        loop {
            if wire.read < self.expected {
                wire.read_to(now, self.expected, |at, data| {
                    if !page::matches(at, data) {
                        ends.log.borrow_mut().wrong_at.get_or_insert(at);
                    }
                })?;
                if wire.read < self.expected {
                    break;
                }
                ends.log.borrow_mut().latency.record(now.since(self.asked_at));
                self.next = now + think;
            }
            if due < self.next {
                break;
            }
            (self.asked_at, self.next) = (now, Instant::FAR_FUTURE);
            self.allowed += request.max(1);
            self.expected += response.max(1);
            wire.write_to(now, self.allowed, request)?;
        }
        wire.write_to(now, self.allowed, request)?;
        Ok(())
    }
}

impl App for Source {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        if self.is_over {
            return Step::IDLE;
        }
        if now < self.start {
            return Step { next: self.start, did: false };
        }
        let is_new = self.wire.is_none();
        if is_new {
            self.open(stack, now);
        }
        let Some(mut wire) = self.wire.take() else { return Step::IDLE };
        let before = (wire.written, wire.read, self.work.has_shut);
        let over = self.run(now, &mut wire);
        let did = is_new || before != (wire.written, wire.read, self.work.has_shut);
        let mut log = self.ends.log.borrow_mut();
        (log.clients[self.index].written, log.clients[self.index].read) = (wire.written, wire.read);
        drop(log);
        self.wire = Some(wire);
        if !matches!(over, Ok(false)) {
            self.leave(now, over.is_err());
            return Step { did: true, ..Step::IDLE };
        }
        let later = |at: Instant| if at > now { at } else { Instant::FAR_FUTURE };
        let end = if self.work.has_shut { Instant::FAR_FUTURE } else { later(self.end) };
        Step { next: later(self.work.next).min(end), did }
    }

    fn sleeps(&mut self, waker: &Waker) -> bool {
        self.waker = waker.clone();
        true
    }
}
