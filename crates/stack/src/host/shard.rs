//! Shard: the part of a host that one driver has to itself, the receive side and the timing wheel.
//!
//! Both are behind a try-lock, the *driver* role: the thread that holds it polls. All others ask
//! through the run list.

use super::Host;
use super::forwarder::Arrival;
use super::input::Input;
use super::pages::PagePool;
use super::receivers::Receivers;
use super::registry::Target;
use super::run_list::{RunCell, RunList, Work};
use super::segments::Batch;
use super::socket_id::SocketId;
use crate::device::{Received, RxQueue};
use crate::driving::seat::{Seat, Taken};
use crate::drop_reason::DropReason;
use crate::flow::FourTuple;
use crate::host::gro::Gro;
use crate::net::Visit;
use crate::net::interface::{Interface, InterfaceId};
use crate::net::port::Port;
use crate::net::topology::Locals;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::wheel::Wheel;
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::memory::HostMemory;
use neap_tcp::sender::pages::Pages;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::crowd::CrowdMeter;
use std::sync::Arc;

/// Packets that one poll takes from the devices before it answers any: all of a burst of ACKs.
const RECEIVE_BUDGET: usize = 256;
/// Bytes after which a poll hands on what it took: the application finds them in the cache, and
/// their ACK is not late. More would make both copies of a bulk flow go to memory.
const RECEIVE_BYTES: usize = 128 << 10;
/// Bytes received without a pause after which the driver may be behind: those of a round. With more
/// of them windows grow larger, and pings beside received flows wait longer
/// (`benches/cost/run receive-10`).
const BEHIND_BYTES: usize = 128 << 10;
/// Time that this has to take at the least: what comes at one instant, as by a card that moderates
/// its interrupts, is no sign of a slow driver.
const BEHIND_SPAN: Nanos = Nanos::from_micros(150);
/// How long the driver counts as behind afterwards. Senders pause now and then, for lack of a
/// processor of their own, and the device is empty for a moment.
const BEHIND_TIME: Nanos = Nanos::from_millis(100);

/// Rounds for which the main queue of a device may keep its bulk queue waiting, some 40 ms. A
/// hundred flows have 25 MB in it before they come to the bulk queue, which are 200 rounds. Then
/// both have their turns alternately.
const BULK_PATIENCE: u32 = 1024;

/// Times that one poll reads the run list before it leaves the rest to the next.
const RUN_ROUNDS: u32 = 4;

/// Granularity of timers. The wheel costs the same for any; pacing needs microseconds.
const TICK: Nanos = Nanos::from_micros(1);

/// Reason why the driver should come back at the time that [`poll`](crate::stack::Stack::poll)
/// returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Another thread drives this shard, or looks at its figures. The call did nothing. What it
    /// came for is not lost: the other thread polls again, or the waker of the shard is called.
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

/// What a driver polls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Anything may have happened.
    Any,
    /// A time has come. Since the last poll no descriptor of a device has told of packets.
    Time,
}

/// What a device had to receive without a pause: what was taken since it had nothing left.
#[derive(Clone, Copy, Debug)]
struct Row {
    bytes: usize,
    began: Instant,
}

impl Row {
    const fn begin(now: Instant) -> Self {
        Self { bytes: 0, began: now }
    }

    /// Whether the device had more each time that the driver came back, for long.
    fn is_behind(&self, now: Instant) -> bool {
        self.bytes >= BEHIND_BYTES && now.since(self.began) >= BEHIND_SPAN
    }
}

/// One queue pair: the receiving halves, and the port over the sending half.
struct Receiving {
    interface: Arc<Interface>,
    port: Arc<Port>,
    rx: Box<dyn RxQueue>,
    /// For flows that receive in bulk.
    bulk: Option<Box<dyn RxQueue>>,
    /// Nothing was left in `rx` in this round.
    is_main_empty: bool,
    /// In this round the bulk queue has its turn although more is in `rx`.
    skips_main: bool,
    /// Rounds in a row after which more was in `rx`.
    main_rounds: u32,
    /// Whether the interface is enabled, as of the driver's generation; otherwise what comes is
    /// dropped. What a device without a link still has arrived before the link was lost.
    is_enabled: bool,
    /// What comes waits in the device, as of the driver's generation.
    is_unread: bool,
    row: Row,
}

impl Receiving {
    fn begin_round(&mut self) {
        self.main_rounds = if self.is_main_empty { 0 } else { self.main_rounds.saturating_add(1) };
        self.is_main_empty = false;
        let is_over = self.main_rounds > BULK_PATIENCE;
        self.skips_main = is_over && self.main_rounds.is_multiple_of(2) && self.bulk.is_some();
    }

    /// Takes a packet from the device.
    ///
    /// What a flow had in the main queue before it came to the bulk queue is taken first. So the
    /// flow keeps its order, unless the main queue has more for [`BULK_PATIENCE`] rounds.
    fn take(&mut self, now: Instant) -> Option<Received> {
        if self.is_unread {
            return None;
        }
        let packet = self.next(now);
        match &packet {
            Some(packet) => self.row.bytes = self.row.bytes.saturating_add(packet.data.len()),
            None => self.row = Row::begin(now),
        }
        packet
    }

    /// `None` only if both queues have told that they are empty: then the driver may sleep.
    fn next(&mut self, now: Instant) -> Option<Received> {
        if self.skips_main {
            let packet = self.next_bulk(now);
            self.skips_main = packet.is_some();
            if packet.is_some() {
                return packet;
            }
        }
        if !self.is_main_empty {
            let packet = self.rx.receive(now);
            self.is_main_empty = packet.is_none();
            if packet.is_some() {
                return packet;
            }
        }
        self.next_bulk(now)
    }

    fn next_bulk(&mut self, now: Instant) -> Option<Received> {
        self.bulk.as_mut().and_then(|bulk| bulk.receive(now))
    }

    fn queues(&self) -> impl Iterator<Item = &dyn RxQueue> {
        core::iter::once(&*self.rx).chain(self.bulk.as_deref())
    }

    /// When a device that knows it has packets.
    fn next_event(&self) -> Instant {
        if self.is_unread {
            return Instant::FAR_FUTURE;
        }
        self.queues().map(RxQueue::next_event).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// When all packets that were taken were there.
    fn arrival(&self, now: Instant) -> Instant {
        self.queues().map(|queue| queue.arrival(now)).max().unwrap_or(now)
    }
}

/// What one round, or a part of it, found.
struct Round {
    /// Work is left.
    more: bool,
    /// A packet had come, or a frame was completed.
    had_event: bool,
    /// All packets of the round were there at this time.
    arrival: Instant,
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
    /// When the timer of the wheel expires, its slack included.
    timer: Instant,
    /// When [`Shard::is_behind`] ends.
    behind_until: Instant,
    /// Counts timers, but for those that expire after another one of the same socket: one flow
    /// alone has nobody to share a wake-up with.
    crowd: CrowdMeter,
    /// Socket of the timer that has expired last.
    last_due: u64,
}

/// One driver's part of a host.
pub(crate) struct Shard {
    pub(crate) list: Arc<RunList>,
    pages: Arc<dyn Pages>,
    driver: Seat<Driver>,
    /// See [`is_behind`](Self::is_behind). Only the driver writes it.
    is_behind: AtomicBool,
    receivers: Receivers,
}

impl core::fmt::Debug for Shard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shard").field("list", &self.list).finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn new(index: usize, memory: Arc<HostMemory>) -> Self {
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
            timer: Instant::FAR_FUTURE,
            behind_until: Instant::ZERO,
            crowd: CrowdMeter::default(),
            last_due: u64::MAX,
        };
        let list = Arc::new(RunList::new(index, memory));
        let pages = Arc::new(PagePool::default());
        let (is_behind, receivers) = (AtomicBool::new(false), Receivers::default());
        Self { list, pages, driver: Seat::new(driver), is_behind, receivers }
    }

    pub(crate) fn cell(&self, id: SocketId) -> Arc<RunCell> {
        RunCell::new(id, self.list.clone())
    }

    /// The counters of the shard's sockets.
    pub(crate) fn counters(&self) -> &Arc<Counters> {
        self.list.counters()
    }

    /// Whether in the last [`BEHIND_TIME`] a device had more to receive each time that the driver
    /// came back, for [`BEHIND_BYTES`] and [`BEHIND_SPAN`]. Then the driver is slower than the
    /// senders, and whatever else they are allowed to send waits in the device.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// The flows that receive in bulk.
    pub(crate) fn receivers(&self) -> &Receivers {
        &self.receivers
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
        bulk: Option<Box<dyn RxQueue>>,
    ) {
        let (is_enabled, is_unread) = (interface.is_enabled(), interface.is_unread());
        let mut driver = self.driver.take();
        driver.queues.push(Receiving {
            interface,
            port,
            rx,
            bulk,
            is_main_empty: true,
            skips_main: false,
            main_rounds: 0,
            is_enabled,
            is_unread,
            row: Row::begin(Instant::ZERO),
        });
        self.give_back(driver);
        self.list.bell().ring(Instant::ZERO);
    }

    pub(crate) fn waits_for_device(&self) -> bool {
        let driver = self.driver.take();
        let waits = driver.ports().any(Port::waits_for_device);
        self.give_back(driver);
        waits
    }

    /// Ends a look at the driver's state by a thread that does not drive. A driver that came in
    /// vain meanwhile is called again.
    fn give_back(&self, driver: Taken<'_, Driver>) {
        if driver.leave() {
            self.list.bell().ring(Instant::ZERO);
        }
    }

    /// Drops the receive queues of an interface, which is no longer part of the host.
    pub(crate) fn remove_queues(&self, interface: InterfaceId) {
        let mut driver = self.driver.take();
        let is_of = |queue: &mut Receiving| queue.interface.id() == interface;
        let gone: Vec<_> = driver.queues.extract_if(.., is_of).collect();
        self.give_back(driver);
        drop(gone);
    }

    /// Packets that the queues of an interface lost before they could be received. It waits for a
    /// poll to end.
    pub(crate) fn rx_dropped(&self, interface: InterfaceId) -> u64 {
        let driver = self.driver.take();
        let queues = driver.queues.iter().filter(|queue| queue.interface.id() == interface);
        let dropped = queues.flat_map(Receiving::queues).map(RxQueue::drops).sum();
        self.give_back(driver);
        dropped
    }

    /// Whether sockets, or frames that the host has sent to itself, wait for the driver.
    pub(crate) fn has_work(&self, host: &Host) -> bool {
        !self.list.is_empty() || (self.list.shard() == 0 && host.net.has_looped_back())
    }

    pub(crate) fn poll(&self, host: &Host, now: Instant, call: Call) -> (Instant, Why) {
        let bell = self.list.bell();
        let was_called = bell.answer();
        let Some(mut driver) = self.driver.try_take() else {
            return (Instant::FAR_FUTURE, Why::Busy);
        };
        bell.attend();
        if driver.timer <= now {
            self.counters().add(Counter::WheelTimers, 1);
        }
        let Round { mut more, had_event, .. } = self.work(&mut driver, host, now, call);
        if driver.planned <= now && !was_called && !had_event {
            self.counters().add(Counter::TimerWakeups, 1);
        }
        // News up to here are seen below.
        bell.clear_news();
        more |= self.has_work(host);
        driver.timer = driver.wheel.next() + self.list.slack();
        let (due, why) = self.next(&driver, host);
        more |= bell.leave(due);
        driver.planned = if more { Instant::FAR_FUTURE } else { due };
        more |= driver.leave();
        if more { (now, Why::MoreWork) } else { (due, why) }
    }

    /// One round. If only time has called, the devices are looked at after something was sent, and
    /// not before: its answer may be there already, as on a TUN, whose kernel takes a frame while
    /// it is written.
    fn work(&self, driver: &mut Driver, host: &Host, now: Instant, call: Call) -> Round {
        if call == Call::Time && !driver.expects_packets(now) {
            let round = self.round(driver, host, now, false);
            if !self.list.has_sent() {
                return round;
            }
        }
        self.round(driver, host, now, true)
    }

    fn round(&self, driver: &mut Driver, host: &Host, now: Instant, receives: bool) -> Round {
        let visit = Visit::new(now, self.list.shard());
        self.list.passed().tell(now);
        let mut had_event = false;
        for port in driver.ports() {
            had_event |= port.run(now);
        }
        let topology = &host.net.topology;
        if driver.generation != topology.generation() {
            driver.generation = topology.generation();
            driver.locals = topology.locals();
            for queue in &mut driver.queues {
                queue.is_enabled = queue.interface.is_enabled();
                queue.is_unread = queue.interface.is_unread();
            }
        }
        let mut round = Round { more: false, had_event: false, arrival: now };
        if receives {
            round = driver.receive(host, visit);
        }
        if driver.queues.iter().any(|queue| queue.row.is_behind(now)) {
            driver.behind_until = now + BEHIND_TIME;
        }
        let is_behind = now < driver.behind_until;
        if is_behind != self.is_behind() {
            self.is_behind.store(is_behind, Ordering::Relaxed);
        }
        self.list.restart_budget();
        if round.had_event {
            self.list.passed().tell(round.arrival);
            driver.flush(host, Visit { now: round.arrival, ..visit });
        }
        round.had_event |= had_event;
        if visit.shard == 0 {
            round.more |= driver.receive_looped_back(host, visit);
            host.expire(visit);
        }
        driver.expire(&self.list, host, now);
        driver.run(&self.list, host, now);
        // Whoever enqueued has drained; what is left is what exceeded a quota.
        for port in driver.ports().filter(|port| port.next_event() <= now) {
            port.run(now);
        }
        round
    }

    /// The earliest of what is planned.
    fn next(&self, driver: &Driver, host: &Host) -> (Instant, Why) {
        let mut timer = driver.timer;
        if self.list.shard() == 0 {
            timer = timer.min(host.net.housekeeping.deadline());
        }
        let queues = driver.queues.iter().map(Receiving::next_event);
        let ports = driver.ports().map(Port::next_event);
        let device = queues.chain(ports).min().unwrap_or(Instant::FAR_FUTURE);
        match timer.min(device) {
            Instant::FAR_FUTURE => (Instant::FAR_FUTURE, Why::Idle),
            _ if timer <= device => (timer, Why::Timer),
            _ => (device, Why::Device),
        }
    }
}

impl Driver {
    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.queues.iter().map(|queue| &*queue.port)
    }

    /// Whether a device knows that it has packets by now.
    fn expects_packets(&self, now: Instant) -> bool {
        self.queues.iter().any(|queue| queue.next_event() <= now)
    }

    /// Takes at most a budget of packets from the devices.
    fn receive(&mut self, host: &Host, visit: Visit) -> Round {
        let count = self.queues.len();
        let (mut budget, mut bytes) = (RECEIVE_BUDGET, RECEIVE_BYTES);
        let mut arrival = visit.now;
        for step in 0..count {
            let queue = &mut self.queues[(self.turn + step) % count];
            let before = budget;
            if budget > 0 && bytes > 0 {
                queue.begin_round();
            }
            while budget > 0 && bytes > 0 {
                let Some(packet) = queue.take(visit.now) else { break };
                budget -= 1;
                bytes = bytes.saturating_sub(packet.data.len());
                if !queue.is_enabled {
                    host.net.counters.drops.count(DropReason::LinkDown);
                    continue;
                }
                let mut input = Input {
                    host,
                    visit,
                    interface: Some(&queue.interface),
                    is_link_group: false,
                    rx: Some(&*queue.rx),
                    locals: &self.locals,
                    gro: &mut self.gro,
                    batch: &mut self.batch,
                };
                input.receive(packet);
            }
            if budget < before {
                arrival = arrival.max(queue.arrival(visit.now));
            }
        }
        self.turn = self.turn.wrapping_add(1);
        let more = budget == 0 || bytes == 0;
        Round { more, had_event: budget < RECEIVE_BUDGET, arrival }
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
                is_link_group: false,
                rx: None,
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
        gro.flush(&mut |tuple, segment| {
            host.on_segment(visit, None, batch, &tuple, segment, Arrival::default());
        });
        batch.deliver(host, visit);
    }

    fn expire(&mut self, list: &RunList, host: &Host, now: Instant) {
        let due = &mut self.due;
        self.wheel.expire(now, &mut |id| due.push(id));
        for &id in &self.due {
            if id != self.last_due {
                self.crowd.count();
            }
            self.last_due = id;
        }
        list.set_crowd(self.crowd.at(now));
        for id in self.due.drain(..) {
            let Some(target) = host.registry.get(SocketId(id)) else { continue };
            target.cell().on_expired();
            target.visit(host, now, Work::DEADLINE);
        }
    }

    /// Files what was published and does what was asked, in the order of asking; then those send
    /// that wait for their turn, until enough was sent.
    fn run(&mut self, list: &RunList, host: &Host, now: Instant) {
        // What a visit publishes is filed in the second round, which rarely asks for a third.
        for _ in 0..RUN_ROUNDS {
            list.take(&mut self.running);
            let is_over = self.running.is_empty();
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
            let had_turns = Self::serve(list, host, now);
            if is_over && !had_turns {
                return;
            }
        }
    }

    /// Lets those send who wait for it, in turn, until enough was sent. Whether anybody did.
    fn serve(list: &RunList, host: &Host, now: Instant) -> bool {
        let mut had_turns = false;
        while let Some(id) = list.next_turn() {
            let Some(target) = host.registry.get(id) else { continue };
            if target.cell().begin_turn() {
                had_turns = true;
                target.visit(host, now, Work::TRANSMIT);
            }
        }
        had_turns
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
                host.expire_requests(visit, listener);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_behind_after_128_kib_and_150_us_without_a_pause() {
        let began = Instant::from_nanos(1_000_000_000);
        let is_behind = |bytes, us| Row { bytes, began }.is_behind(began + Nanos::from_micros(us));
        assert!(!is_behind(128 << 10, 149));
        assert!(is_behind(128 << 10, 150));
        assert!(!is_behind((128 << 10) - 1, 1000));
        assert!(!Row::begin(began).is_behind(began + BEHIND_TIME));
    }
}
