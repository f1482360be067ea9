//! What one driver has to itself: the receive side, the timing wheel, and the run list through
//! which every other thread asks for work.
//!
//! The receive side and the wheel are behind a try-lock, the *driver* role: whoever holds it polls.
//! All others only push names on the run list. Each socket is on it at most once, so it is bounded
//! by the number of sockets and a push allocates only while the list grows for the first time.

use crate::demux::FourTuple;
use crate::device::RxQueue;
use crate::gro::Gro;
use crate::interface::{Interface, Locals};
use crate::ip;
use crate::port::Port;
use crate::socket::tcp::TcpSocket;
use crate::socket::{SocketId, Target};
use crate::stack::Host;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::wheel::Wheel;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::segment::Segment;
use neap_tcp::sender::pages::PagePool;
use neap_tcp::time::{Instant, Nanos};
use std::sync::{Arc, TryLockError};
use std::task::{Wake, Waker};

/// Packets that one poll takes from the devices before it answers any: all of a burst of ACKs.
const RECEIVE_BUDGET: usize = 256;
/// Frames that all sockets of a shard send between two looks at what has arrived. Each may be
/// answered by an ACK at once, and the queue from the kernel to a TUN holds 500 packets.
const SEND_BUDGET: u32 = 128;
/// Bytes after which a poll hands on what it took: the application finds them in the cache, and
/// their ACK is not late. More would make both copies of a bulk flow go to memory.
const RECEIVE_BYTES: usize = 128 << 10;

/// Times that one poll reads the run list before it leaves the rest to the next.
const RUN_ROUNDS: u32 = 4;

/// Granularity of timers. The wheel costs the same for any; pacing needs microseconds.
const TICK: Nanos = Nanos::from_micros(1);

bitflags::bitflags! {
    /// What a socket is asked to do (Linux's `sk_tsq_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Work: u8 {
        /// Completions made room below, or work was left: transmit.
        const TRANSMIT = 1;
        /// A deadline may have passed.
        const DEADLINE = 2;
        /// The application has dropped its last handle.
        const CLOSE = 4;
        /// The stack shuts down, or nobody will accept the connection.
        const ABORT = 8;
    }
}

/// Why the driver should come back at the time that [`poll`](crate::stack::Stack::poll) answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another thread drives this shard; nothing was done.
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

/// The mailbox of one shard.
#[derive(Debug)]
pub(crate) struct RunList {
    index: usize,
    counters: Arc<Counters>,
    queue: Mutex<Vec<SocketId>>,
    /// Frames sent since the receive side was looked at.
    sent: AtomicU32,
    /// A thread is in `poll` and will look at the mark before it leaves.
    is_driven: AtomicBool,
    /// Something changed since the driver last looked around.
    is_marked: AtomicBool,
    is_kicked: AtomicBool,
    /// When the driver comes by itself.
    wakes_at: AtomicU64,
    /// A timer may wait so long for others, so that one wake-up serves all that are due together.
    slack: Nanos,
    kick: Mutex<Option<Waker>>,
}

impl RunList {
    pub(crate) fn new(index: usize, slack: Nanos) -> Self {
        Self {
            index,
            slack,
            counters: Arc::new(Counters::default()),
            queue: Mutex::new(Vec::new()),
            sent: AtomicU32::new(0),
            is_driven: AtomicBool::new(false),
            is_marked: AtomicBool::new(false),
            is_kicked: AtomicBool::new(false),
            wakes_at: AtomicU64::new(u64::MAX),
            kick: Mutex::new(None),
        }
    }

    pub(crate) fn count_sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_sent_enough(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= SEND_BUDGET
    }

    fn push(&self, id: SocketId) {
        lock(&self.queue).push(id);
    }

    /// Wakes the driver unless it is at work or comes by `due` anyway. To be called after what it
    /// will find was made visible.
    ///
    /// No call is lost: it leaves the mark before it asks whether somebody drives, and a poll ends
    /// its driving before it looks for the mark.
    pub(crate) fn kick(&self, due: Instant) {
        self.is_marked.store(true, Ordering::SeqCst);
        let is_coming = self.is_driven.load(Ordering::SeqCst)
            || due.as_nanos() >= self.wakes_at.load(Ordering::SeqCst);
        if !is_coming && !self.is_kicked.swap(true, Ordering::SeqCst) {
            let waker = lock(&self.kick).clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// A socket as its shard knows it: what is asked of it, and what the wheel knows. 32 bytes, shared
/// by the socket and the waker in its account.
#[derive(Debug)]
pub(crate) struct RunCell {
    id: SocketId,
    list: Arc<RunList>,
    /// The earliest deadline that the wheel knows or will know once the run list was read.
    filed: AtomicU64,
    is_queued: AtomicBool,
    work: AtomicU8,
}

impl RunCell {
    fn new(id: SocketId, list: Arc<RunList>) -> Arc<Self> {
        Arc::new(Self {
            id,
            list,
            filed: AtomicU64::new(u64::MAX),
            is_queued: AtomicBool::new(false),
            work: AtomicU8::new(0),
        })
    }

    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    pub(crate) fn shard(&self) -> usize {
        self.list.index
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.list.counters
    }

    /// The mailbox of the socket's shard.
    pub(crate) fn list(&self) -> &RunList {
        &self.list
    }

    /// Asks the driver for `work`. Never works itself, so it may be called from anywhere.
    pub(crate) fn request(&self, work: Work) {
        self.work.fetch_or(work.bits(), Ordering::AcqRel);
        self.enqueue();
        self.list.kick(Instant::ZERO);
    }

    /// Makes known when the socket next has something to do. Only a deadline that is earlier than
    /// what the wheel knows costs more than a load.
    pub(crate) fn publish(&self, deadline: Instant) {
        let due = deadline.as_nanos();
        if due < self.filed.load(Ordering::Acquire)
            && due < self.filed.fetch_min(due, Ordering::AcqRel)
        {
            self.enqueue();
            self.list.kick(deadline + self.list.slack);
        }
    }

    /// Lets the driver forget a socket whose name was released.
    pub(crate) fn retire(&self) {
        self.enqueue();
    }

    fn enqueue(&self) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.list.push(self.id);
        }
    }
}

impl Wake for RunList {
    fn wake(self: Arc<Self>) {
        self.kick(Instant::ZERO);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.kick(Instant::ZERO);
    }
}

impl Wake for RunCell {
    fn wake(self: Arc<Self>) {
        self.request(Work::TRANSMIT);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.request(Work::TRANSMIT);
    }
}

/// One queue pair: the receiving half, and the port over the sending half.
struct Receiving {
    interface: Arc<Interface>,
    port: Arc<Port>,
    rx: Box<dyn RxQueue>,
}

/// The connections that got segments in one receive batch; each transmits once, after the batch.
/// Looking for one costs a comparison for each connection before it, at most the budget; nothing is
/// allocated once the batch has seen its largest.
#[derive(Default)]
pub(crate) struct Batch {
    touched: Vec<Arc<TcpSocket>>,
    /// Those of each touched connection; kept, empty, from batch to batch.
    segments: Vec<Vec<Segment>>,
}

impl Batch {
    pub(crate) fn push(&mut self, socket: Arc<TcpSocket>, segment: Segment) {
        let known = self.touched.iter().rposition(|one| Arc::ptr_eq(one, &socket));
        let at = known.unwrap_or_else(|| {
            self.touched.push(socket);
            self.touched.len() - 1
        });
        if self.segments.len() <= at {
            self.segments.push(Vec::new());
        }
        self.segments[at].push(segment);
    }

    fn deliver(&mut self, host: &Host, now: Instant) {
        for (socket, segments) in self.touched.drain(..).zip(&mut self.segments) {
            socket.receive(host, now, segments);
        }
    }
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
    pages: Arc<PagePool>,
    driver: Mutex<Driver>,
}

impl Shard {
    pub(crate) fn new(index: usize, slack: Nanos) -> Self {
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
        let (list, pages) = (Arc::new(RunList::new(index, slack)), Arc::default());
        Self { list, pages, driver: Mutex::new(driver) }
    }

    pub(crate) fn cell(&self, id: SocketId) -> Arc<RunCell> {
        RunCell::new(id, self.list.clone())
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.list.counters
    }

    /// What the shard's connections write into.
    pub(crate) fn pages(&self) -> &Arc<PagePool> {
        &self.pages
    }

    pub(crate) fn set_kick(&self, waker: Option<Waker>) {
        *lock(&self.list.kick) = waker;
    }

    pub(crate) fn add_queue(
        &self,
        interface: Arc<Interface>,
        port: Arc<Port>,
        rx: Box<dyn RxQueue>,
    ) {
        lock(&self.driver).queues.push(Receiving { interface, port, rx });
        self.list.kick(Instant::ZERO);
    }

    pub(crate) fn waits_for_device(&self) -> bool {
        lock(&self.driver).queues.iter().any(|queue| queue.port.waits_for_device())
    }

    /// Drops the receive queues, when the host shuts down.
    pub(crate) fn remove_queues(&self) {
        let queues = core::mem::take(&mut lock(&self.driver).queues);
        drop(queues);
    }

    /// Packets that the devices lost before they could be received.
    pub(crate) fn receive_drops(&self) -> u64 {
        lock(&self.driver).queues.iter().map(|queue| queue.rx.drops()).sum()
    }

    pub(crate) fn has_work(&self) -> bool {
        !lock(&self.list.queue).is_empty()
    }

    pub(crate) fn poll(&self, host: &Host, now: Instant) -> (Instant, Why) {
        let mut driver = match self.driver.try_lock() {
            Ok(driver) => driver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (Instant::FAR_FUTURE, Why::Busy),
        };
        let list = &self.list;
        list.is_driven.store(true, Ordering::SeqCst);
        let was_kicked = list.is_kicked.swap(false, Ordering::SeqCst);
        let Round { mut more, had_event } = self.work(&mut driver, host, now);
        if driver.planned <= now && !was_kicked && !had_event {
            list.counters.add(Counter::TimerWakeups, 1);
        }
        // What was marked up to here is seen below; what comes later marks again.
        list.is_marked.swap(false, Ordering::SeqCst);
        more |= self.has_work() || (list.index == 0 && !host.loopback.is_empty());
        let (due, why) = self.next(&driver, host);
        list.wakes_at.store(due.as_nanos(), Ordering::SeqCst);
        list.is_driven.store(false, Ordering::SeqCst);
        more |= list.is_marked.load(Ordering::SeqCst);
        driver.planned = if more { Instant::FAR_FUTURE } else { due };
        if more { (now, Why::MoreWork) } else { (due, why) }
    }

    /// One round.
    fn work(&self, driver: &mut MutexGuard<'_, Driver>, host: &Host, now: Instant) -> Round {
        let driver = &mut **driver;
        let mut had_event = false;
        for queue in &driver.queues {
            had_event |= queue.port.run(now);
        }
        if driver.generation != host.topology.generation() {
            driver.generation = host.topology.generation();
            driver.locals = host.topology.locals();
        }
        let mut round = driver.receive(host, now, &self.list);
        round.had_event |= had_event;
        if self.list.index == 0 {
            round.more |= driver.receive_loopback(host, now);
            host.expire(now);
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
        let mut timer = driver.wheel.next() + self.list.slack;
        if self.list.index == 0 {
            timer = timer.min(host.next_deadline());
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
    /// Takes at most a budget of packets from the devices and gives each touched connection its
    /// segments.
    fn receive(&mut self, host: &Host, now: Instant, list: &RunList) -> Round {
        let shard = list.index;
        let count = self.queues.len();
        let (mut budget, mut bytes) = (RECEIVE_BUDGET, RECEIVE_BYTES);
        for step in 0..count {
            let queue = &mut self.queues[(self.turn + step) % count];
            while budget > 0 && bytes > 0 {
                let Some(packet) = queue.rx.receive(now) else { break };
                budget -= 1;
                bytes = bytes.saturating_sub(packet.data.len());
                let mut input = ip::Input {
                    host,
                    now,
                    shard,
                    interface: Some(&queue.interface),
                    locals: &self.locals,
                    gro: &mut self.gro,
                    batch: &mut self.batch,
                };
                input.receive(packet);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        list.sent.store(0, Ordering::Relaxed);
        if budget < RECEIVE_BUDGET {
            self.flush(host, now, shard);
        }
        Round { more: budget == 0 || bytes == 0, had_event: budget < RECEIVE_BUDGET }
    }

    /// The same for what this host sent to itself.
    fn receive_loopback(&mut self, host: &Host, now: Instant) -> bool {
        for taken in 0..RECEIVE_BUDGET {
            let Some(frame) = host.loopback.pop() else {
                if taken > 0 {
                    self.flush(host, now, 0);
                }
                return !host.loopback.is_empty();
            };
            let mut input = ip::Input {
                host,
                now,
                shard: 0,
                interface: None,
                locals: &self.locals,
                gro: &mut self.gro,
                batch: &mut self.batch,
            };
            input.receive_frame(&frame);
        }
        self.flush(host, now, 0);
        true
    }

    fn flush(&mut self, host: &Host, now: Instant, shard: usize) {
        let (gro, batch) = (&mut self.gro, &mut self.batch);
        ip::flush(host, now, shard, gro, batch);
        batch.deliver(host, now);
    }

    fn expire(&mut self, host: &Host, now: Instant) {
        let due = &mut self.due;
        self.wheel.expire(now, &mut |id| due.push(id));
        for id in self.due.drain(..) {
            let Some(target) = host.registry.get(SocketId(id)) else { continue };
            target.cell().filed.store(u64::MAX, Ordering::Release);
            target.visit(host, now, Work::DEADLINE);
        }
    }

    /// Files what was published and does what was asked, in the order of asking.
    fn run(&mut self, list: &RunList, host: &Host, now: Instant) {
        // What a visit publishes is filed in the second round, which rarely asks for a third.
        for _ in 0..RUN_ROUNDS {
            core::mem::swap(&mut *lock(&list.queue), &mut self.running);
            if self.running.is_empty() {
                return;
            }
            for id in self.running.drain(..) {
                let Some(target) = host.registry.get(id) else {
                    self.wheel.remove(id.0);
                    continue;
                };
                let cell = target.cell();
                // Before the look at what is asked: whatever comes later queues the socket again.
                // An exchange, so that it sees what was asked before the last queueing.
                cell.is_queued.swap(false, Ordering::AcqRel);
                let filed = Instant::from_nanos(cell.filed.load(Ordering::Acquire));
                self.wheel.insert(filed, id.0);
                let work = Work::from_bits_truncate(cell.work.swap(0, Ordering::AcqRel));
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
                let mut send = |tuple: &FourTuple, segment| {
                    ip::send_segment(host, now, listener.cell.shard(), (tuple, 0), segment);
                };
                listener.on_deadline(now, host.hash_key, &mut send);
            }
        }
    }
}
