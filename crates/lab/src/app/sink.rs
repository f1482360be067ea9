//! The server of a group: one listener, and all connections that it accepted.

use super::page;
use super::traffic::{EndLog, Ends, GroupLog, Parser, Traffic};
use super::wire::{Failed, Wire};
use super::{App, Step};
use core::net::SocketAddr;
use neap_stack::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::Stack;
use neap_tcp::time::{Instant, Nanos, Rate};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// How often a reader that has a rate looks for more.
const TICK: Nanos = Nanos::from_millis(5);

/// Says which connection was woken, and wakes the server.
struct Bell {
    index: usize,
    rung: Arc<Mutex<Vec<usize>>>,
    has_rung: AtomicBool,
    server: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_rung.swap(true, Ordering::Relaxed) {
            self.rung.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
            self.server.wake_by_ref();
        }
    }
}

/// A connection that was accepted.
struct Served {
    wire: Wire,
    bell: Arc<Bell>,
    waker: Waker,
    from: SocketAddr,
    since: Instant,
    parser: Parser,
    /// Bytes of whole requests or messages that were counted.
    counted: u64,
}

/// Accepts, reads, checks, answers. Cost of a turn: the connections that were woken.
pub struct Sink {
    listener: ListenerHandle,
    ends: Ends,
    waker: Waker,
    rung: Arc<Mutex<Vec<usize>>>,
    open: Vec<Option<Box<Served>>>,
    turn: Vec<usize>,
    next_tick: Instant,
}

impl Sink {
    pub(super) fn new(listener: ListenerHandle, ends: Ends) -> Self {
        Self {
            listener,
            ends,
            waker: Waker::noop().clone(),
            rung: Arc::default(),
            open: Vec::new(),
            turn: Vec::new(),
            next_tick: Instant::FAR_FUTURE,
        }
    }

    /// Whether anybody came.
    fn accept(&mut self, now: Instant) -> bool {
        let before = self.open.len();
        loop {
            let seen = self.listener.readiness();
            while let Ok((handle, from)) = self.listener.accept() {
                let index = self.open.len();
                let (rung, server) = (self.rung.clone(), self.waker.clone());
                let bell = Bell { index, rung, has_rung: AtomicBool::new(false), server };
                let bell = Arc::new(bell);
                let waker = Waker::from(bell.clone());
                let mut log = self.ends.log.borrow_mut();
                let handle_for_log = Some(handle.clone());
                log.servers.push(EndLog {
                    handle: handle_for_log,
                    begun: Some(now),
                    ..EndLog::default()
                });
                let (wire, parser) = (Wire::new(handle), Parser::default());
                let served = Served { wire, bell, waker, from, since: now, parser, counted: 0 };
                self.open.push(Some(Box::new(served)));
                self.turn.push(index);
            }
            if self.listener.register(seen, Ready::READABLE, &self.waker) {
                return self.open.len() > before;
            }
        }
    }

    /// Those that have something to do now.
    fn collect(&mut self, now: Instant) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn.append(&mut rung);
        drop(rung);
        if self.ends.group.read_rate.is_some() && now >= self.next_tick {
            self.turn = (0..self.open.len()).collect();
        }
    }

    fn serve(&mut self, now: Instant) -> bool {
        let mut did = false;
        for index in core::mem::take(&mut self.turn) {
            let Some(served) = &mut self.open[index] else { continue };
            served.bell.has_rung.store(false, Ordering::Relaxed);
            let before = served.wire.read + served.wire.written;
            let over = served.run(now, &self.ends);
            did |= served.wire.read + served.wire.written != before;
            let mut log = self.ends.log.borrow_mut();
            let own = &mut log.servers[index];
            (own.written, own.read) = (served.wire.written, served.wire.read);
            if !matches!(over, Ok(false)) {
                did = true;
                own.has_failed = over.is_err();
                own.finished = Some(now);
                own.handle = None;
                served.wire.handle.close(now);
                self.open[index] = None;
            }
        }
        did
    }
}

impl Served {
    /// Whether the connection is over.
    fn run(&mut self, now: Instant, ends: &Ends) -> Result<bool, Failed> {
        let Self { wire, waker, from, since, parser, counted, .. } = self;
        let allowed = |rate: Rate| rate.bytes_in(now.since(*since));
        let end = ends.group.read_rate.map_or(u64::MAX, allowed);
        let mut is_over = false;
        let traffic = &ends.group.traffic;
        wire.settle(waker, |wire| {
            let mut log = ends.log.borrow_mut();
            is_over = wire.read_to(now, end, |at, data| {
                if let Traffic::Mixed { .. } = traffic {
                    let count = parser.take(data);
                    log.arrived(ends, *from, now, count);
                } else if !page::matches(at, data) {
                    log.wrong_at.get_or_insert(at);
                }
            })?;
            match *traffic {
                Traffic::Paced { message, .. } => {
                    let count = wire.read / message.max(1) - *counted;
                    *counted += count;
                    log.arrived(ends, *from, now, count as usize);
                }
                Traffic::RequestResponse { request, response, .. } => {
                    let requests = wire.read / request.max(1);
                    wire.write_to(now, requests.saturating_mul(response.max(1)), response)?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(is_over && wire.pending.is_empty())
    }
}

impl GroupLog {
    /// Messages of the client at `from` are there as a whole.
    fn arrived(&mut self, ends: &Ends, from: SocketAddr, now: Instant, count: usize) {
        if count == 0 {
            return;
        }
        let mut births = ends.births.borrow_mut();
        let Some(births) = births.get_mut(&from) else { return };
        let arrived = births.drain(..count.min(births.len()));
        arrived.for_each(|birth| self.latency.record(now.since(birth)));
    }
}

impl App for Sink {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = self.accept(now);
        self.collect(now);
        did |= self.serve(now);
        if self.ends.group.read_rate.is_some() && self.next_tick <= now
            || self.next_tick == Instant::FAR_FUTURE
        {
            self.next_tick = now + TICK;
        }
        let ticks = self.ends.group.read_rate.is_some() && self.open.iter().any(Option::is_some);
        Step { next: if ticks { self.next_tick } else { Instant::FAR_FUTURE }, did }
    }

    fn sleeps(&mut self, waker: &Waker) -> bool {
        self.waker = waker.clone();
        true
    }
}
