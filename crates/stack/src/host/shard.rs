//! Shard: the part of a host that one driver has to itself, the receive side and the timing wheel.
//!
//! Both are behind a try-lock, the *driver* role: the thread that holds it polls. All others ask
//! through the run list.

use super::Host;
use super::input::{Batch, Input};
use super::pages::PagePool;
use super::registry::Target;
use super::run_list::{RunCell, RunList, SocketId, Work};
use crate::device::RxQueue;
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::host::gro::Gro;
use crate::net::Visit;
use crate::net::interface::{Interface, InterfaceId};
use crate::net::port::Port;
use crate::net::topology::Locals;
use crate::sync::{Mutex, lock};
use crate::wheel::Wheel;
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::sender::pages::Pages;
use neap_tcp::time::{Instant, Nanos};
use std::sync::{Arc, TryLockError};

/// Packets that one poll takes from the devices before it answers any: all of a burst of ACKs.
const RECEIVE_BUDGET: usize = 256;
/// Bytes after which a poll hands on what it took: the application finds them in the cache, and
/// their ACK is not late. More would make both copies of a bulk flow go to memory.
const RECEIVE_BYTES: usize = 128 << 10;

/// Times that one poll reads the run list before it leaves the rest to the next.
const RUN_ROUNDS: u32 = 4;

/// Granularity of timers. The wheel costs the same for any; pacing needs microseconds.
const TICK: Nanos = Nanos::from_micros(1);

/// Reason why the driver should come back at the time that [`poll`](crate::stack::Stack::poll)
/// returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Another thread drives this shard. The call did nothing.
    Busy,
    /// More work is there already: poll again at once.
    MoreWork,
    /// A timer of a socket, of TIME_WAIT, of a neighbour or of reassembly is due.
    Timer,
    /// The device or its qdisc has something to do.
    Device,
    /// Nothing is planned; only a packet or an application brings work.
    Idle,
}

/// One queue pair: the receiving half, and the port over the sending half.
struct Receiving {
    interface: Arc<Interface>,
    port: Arc<Port>,
    rx: Box<dyn RxQueue>,
    /// Whether the link is up, as of the driver's generation; otherwise what comes is dropped.
    is_up: bool,
}

/// What one round, or a part of it, found.
struct Round {
    /// Work is left.
    more: bool,
    /// A packet had come, or a frame was completed.
    had_event: bool,
}

/// What belongs to the driver.
struct Driver {
    wheel: Wheel,
    queues: Vec<Receiving>,
    /// The queue that is served first, so that no queue starves another.
    turn: usize,
    gro: Gro<FourTuple>,
    batch: Batch,
    /// Addresses of the host as of `generation`.
    locals: Arc<Locals>,
    generation: u64,
    running: Vec<SocketId>,
    due: Vec<u64>,
    /// What the last poll answered, if only time brings the next.
    planned: Instant,
}

/// One driver's part of a host.
pub(crate) struct Shard {
    pub(crate) list: Arc<RunList>,
    pages: Arc<dyn Pages>,
    driver: Mutex<Driver>,
}

impl core::fmt::Debug for Shard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shard").field("list", &self.list).finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn new(index: usize) -> Self {
        let driver = Driver {
            wheel: Wheel::new(TICK),
            queues: Vec::new(),
            turn: 0,
            gro: Gro::default(),
            batch: Batch::default(),
            locals: Arc::default(),
            generation: 0,
            running: Vec::new(),
            due: Vec::new(),
            planned: Instant::FAR_FUTURE,
        };
        let list = Arc::new(RunList::new(index));
        let pages = Arc::new(PagePool::default());
        Self { list, pages, driver: Mutex::new(driver) }
    }

    pub(crate) fn cell(&self, id: SocketId) -> Arc<RunCell> {
        RunCell::new(id, self.list.clone())
    }

    /// The counters of the shard's sockets.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        self.list.counters()
    }

    /// What the shard's connections write into.
    pub(crate) fn pages(&self) -> &Arc<dyn Pages> {
        &self.pages
    }

    pub(crate) fn add_queue(
        &self,
        interface: Arc<Interface>,
        port: Arc<Port>,
        rx: Box<dyn RxQueue>,
    ) {
        let is_up = interface.is_up();
        lock(&self.driver).queues.push(Receiving { interface, port, rx, is_up });
        self.list.bell().ring(Instant::ZERO);
    }

    pub(crate) fn waits_for_device(&self) -> bool {
        lock(&self.driver).queues.iter().any(|queue| queue.port.waits_for_device())
    }

    /// Drops the receive queues of an interface, which is no longer part of the host.
    pub(crate) fn remove_queues(&self, interface: InterfaceId) {
        let mut driver = lock(&self.driver);
        let is_of = |queue: &mut Receiving| queue.interface.id() == interface;
        let gone: Vec<_> = driver.queues.extract_if(.., is_of).collect();
        drop(driver);
        drop(gone);
    }

    /// Packets that the devices lost before they could be received.
    pub(crate) fn receive_drops(&self) -> u64 {
        lock(&self.driver).queues.iter().map(|queue| queue.rx.drops()).sum()
    }

    /// Whether sockets, or frames that the host has sent to itself, wait for the driver.
    pub(crate) fn has_work(&self, host: &Host) -> bool {
        !self.list.is_empty() || (self.list.shard() == 0 && host.net.has_looped_back())
    }

    pub(crate) fn poll(&self, host: &Host, now: Instant) -> (Instant, Why) {
        let mut driver = match self.driver.try_lock() {
            Ok(driver) => driver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (Instant::FAR_FUTURE, Why::Busy),
        };
        let bell = self.list.bell();
        let was_called = bell.attend();
        let Round { mut more, had_event } = self.work(&mut driver, host, now);
        if driver.planned <= now && !was_called && !had_event {
            self.counters().add(Counter::TimerWakeups, 1);
        }
        // News up to here are seen below.
        bell.clear_news();
        more |= self.has_work(host);
        let (due, why) = self.next(&driver, host);
        more |= bell.leave(due);
        driver.planned = if more { Instant::FAR_FUTURE } else { due };
        if more { (now, Why::MoreWork) } else { (due, why) }
    }

    /// One round.
    fn work(&self, driver: &mut Driver, host: &Host, now: Instant) -> Round {
        let visit = Visit::new(now, self.list.shard());
        let mut had_event = false;
        for queue in &driver.queues {
            had_event |= queue.port.run(now);
        }
        let topology = &host.net.topology;
        if driver.generation != topology.generation() {
            driver.generation = topology.generation();
            driver.locals = topology.locals();
            for queue in &mut driver.queues {
                queue.is_up = queue.interface.is_up();
            }
        }
        let mut round = driver.receive(host, visit);
        self.list.restart_budget();
        if round.had_event {
            driver.flush(host, visit);
        }
        round.had_event |= had_event;
        if visit.shard == 0 {
            round.more |= driver.receive_looped_back(host, visit);
            host.expire(visit);
        }
        driver.expire(host, now);
        driver.run(&self.list, host, now);
        // Whoever enqueued has drained; what is left is what exceeded a quota.
        for queue in driver.queues.iter().filter(|queue| queue.port.next_event() <= now) {
            queue.port.run(now);
        }
        round
    }

    /// The earliest of what is planned.
    fn next(&self, driver: &Driver, host: &Host) -> (Instant, Why) {
        let mut timer = driver.wheel.next() + self.list.slack();
        if self.list.shard() == 0 {
            timer = timer.min(host.net.housekeeping.deadline());
        }
        let device = driver
            .queues
            .iter()
            .map(|queue| queue.port.next_event().min(queue.rx.next_event()))
            .min()
            .unwrap_or(Instant::FAR_FUTURE);
        match timer.min(device) {
            Instant::FAR_FUTURE => (Instant::FAR_FUTURE, Why::Idle),
            _ if timer <= device => (timer, Why::Timer),
            _ => (device, Why::Device),
        }
    }
}

impl Driver {
    /// Takes at most a budget of packets from the devices.
    fn receive(&mut self, host: &Host, visit: Visit) -> Round {
        let count = self.queues.len();
        let (mut budget, mut bytes) = (RECEIVE_BUDGET, RECEIVE_BYTES);
        for step in 0..count {
            let queue = &mut self.queues[(self.turn + step) % count];
            while budget > 0 && bytes > 0 {
                let Some(packet) = queue.rx.receive(visit.now) else { break };
                budget -= 1;
                bytes = bytes.saturating_sub(packet.data.len());
                if !queue.is_up {
                    host.net.counters.drops.count(DropReason::LinkDown);
                    continue;
                }
                let mut input = Input {
                    host,
                    visit,
                    interface: Some(&queue.interface),
                    locals: &self.locals,
                    gro: &mut self.gro,
                    batch: &mut self.batch,
                };
                input.receive(packet);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Round { more: budget == 0 || bytes == 0, had_event: budget < RECEIVE_BUDGET }
    }

    /// Takes at most a budget of packets that this host has sent to itself. Whether more wait.
    fn receive_looped_back(&mut self, host: &Host, visit: Visit) -> bool {
        let mut taken = 0;
        while taken < RECEIVE_BUDGET
            && let Some(frame) = host.net.take_looped_back()
        {
            taken += 1;
            let mut input = Input {
                host,
                visit,
                interface: None,
                locals: &self.locals,
                gro: &mut self.gro,
                batch: &mut self.batch,
            };
            input.receive_frame(&frame);
        }
        if taken > 0 {
            self.flush(host, visit);
        }
        host.net.has_looped_back()
    }

    /// Gives each touched connection its segments.
    fn flush(&mut self, host: &Host, visit: Visit) {
        let Self { gro, batch, .. } = self;
        gro.flush(&mut |tuple, segment| host.on_segment(visit, batch, &tuple, segment));
        batch.deliver(host, visit.now);
    }

    fn expire(&mut self, host: &Host, now: Instant) {
        let due = &mut self.due;
        self.wheel.expire(now, &mut |id| due.push(id));
        for id in self.due.drain(..) {
            let Some(target) = host.registry.get(SocketId(id)) else { continue };
            target.cell().on_expired();
            target.visit(host, now, Work::DEADLINE);
        }
    }

    /// Files what was published and does what was asked, in the order of asking.
    fn run(&mut self, list: &RunList, host: &Host, now: Instant) {
        // What a visit publishes is filed in the second round, which rarely asks for a third.
        for _ in 0..RUN_ROUNDS {
            list.take(&mut self.running);
            if self.running.is_empty() {
                return;
            }
            for id in self.running.drain(..) {
                let Some(target) = host.registry.get(id) else {
                    self.wheel.remove(id.0);
                    continue;
                };
                let (filed, work) = target.cell().take();
                self.wheel.insert(filed, id.0);
                if !work.is_empty() {
                    target.visit(host, now, work);
                }
            }
        }
    }
}

impl Target {
    fn visit(&self, host: &Host, now: Instant, work: Work) {
        match self {
            Self::Tcp(socket) => socket.visit(host, now, work),
            Self::Listener(listener) => {
                if work.contains(Work::CLOSE) {
                    host.close_listener(listener, now);
                }
                let visit = Visit::new(now, listener.cell.list().shard());
                listener.on_deadline(now, host.flow_key, &host.config(), |tuple, segment| {
                    host.send_orphan(visit, tuple, listener.ip_options(tuple.local), segment);
                });
            }
        }
    }
}
