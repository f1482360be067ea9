//! Writers that wait for room as programs do, and how often they were woken, and when.
//!
//! One application plays many threads, the users of an edge-triggered poller, or tasks: each
//! connection leaves a waker with its socket and gets a turn only when that is called. Cost: O(1)
//! per wake-up.

use neap_lab::app::{App, Step};
use neap_lab::pattern::Pattern;
use neap_stack::socket::SocketError;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack};
use neap_tcp::connection::{ReadError, WriteError};
use neap_tcp::info::TcpInfo;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Instant;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// How a writer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// A thread in `write_all`: it is woken and tries, until it is refused.
    Blocking,
    /// A user of `EPOLLET`: registered for good; after an event it writes until a write is short.
    Edges,
    /// A task with `AsyncWrite`: as a thread, but it may be polled for other reasons too, and then
    /// tries.
    Async,
}

const ROOM: Ready = Ready::WRITABLE.union(Ready::WRITE_CLOSED).union(Ready::ERROR);

/// What one writer does.
#[derive(Clone, Debug)]
pub(crate) struct WriterPlan {
    /// How it waits.
    pub(crate) waits: Waits,
    /// Options of its socket: low-water mark, send buffer.
    pub(crate) options: SocketOptions,
    /// Bytes that it writes at a time.
    pub(crate) chunk: usize,
    /// Bytes that it writes in all.
    pub(crate) bytes: u64,
}

/// What has become of one writer.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterLog {
    /// Bytes that the stack took.
    pub(crate) written: u64,
    /// Times that it slept and was woken, the handshake not counted.
    pub(crate) wakeups: u64,
    /// The unsent bytes at a wake-up that was too early for the mark or for the send buffer.
    pub(crate) woken_above: Option<u32>,
    /// It slept although it could have been woken: a wake-up was lost.
    pub(crate) overslept: Option<Instant>,
    /// It failed.
    pub(crate) error: Option<WriteError>,
    /// It has written all.
    pub(crate) is_done: bool,
    /// The connection at its last look.
    pub(crate) info: Option<TcpInfo>,
}

/// Logs that the application and the test share, in the order of the plans.
pub(crate) type WriterLogs = Rc<RefCell<Vec<WriterLog>>>;

/// Writers whose wakers were called.
type Woken = Arc<Mutex<Vec<usize>>>;

struct Alarm {
    woken: Woken,
    index: usize,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

fn take(woken: &Woken) -> Vec<usize> {
    core::mem::take(&mut *woken.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Writer {
    handle: TcpHandle,
    plan: WriterPlan,
    waker: Waker,
    is_asleep: bool,
    is_open: bool,
}

impl Writer {
    /// Whether it is to be woken, by Linux's rule and from the figures alone. A mark in time is not
    /// among the figures: there only the socket knows.
    fn may_be_woken(&self, info: &TcpInfo) -> bool {
        let options = &self.plan.options;
        if options.notsent_lowat_us > 0 {
            return self.handle.readiness().bits().intersects(ROOM);
        }
        let (mark, used) = (u64::from(options.notsent_lowat), info.wmem_queued);
        let is_below = mark == 0 || 2 * u64::from(info.notsent_bytes) < mark;
        is_below && used < info.sndbuf && info.sndbuf - used >= used / 2
    }

    /// Whether there is no room, and its waker will be called when there is.
    fn waits_for_room(&self) -> bool {
        loop {
            let seen = self.handle.readiness();
            if seen.bits().intersects(ROOM) {
                return false;
            }
            if self.handle.register(seen, ROOM, &self.waker) {
                return true;
            }
        }
    }

    /// Writes one chunk; whether all of it was taken.
    fn write(&self, now: Instant, log: &mut WriterLog, data: &[u8]) -> Result<bool, WriteError> {
        let left = self.plan.bytes - log.written;
        let want = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let wrote = self.handle.write(now, &data[..want])?;
        log.written += wrote as u64;
        log.is_done = log.written == self.plan.bytes;
        Ok(wrote == want)
    }

    /// Goes on until it must wait.
    fn go_on(&mut self, now: Instant, log: &mut WriterLog) {
        let mut data = vec![0; self.plan.chunk];
        while !log.is_done && log.error.is_none() {
            let seen = self.handle.readiness();
            let is_ready = seen.bits().intersects(ROOM);
            // Whoever goes by edges waits for the next one before it looks at this one.
            let waits_first = self.plan.waits == Waits::Edges;
            if waits_first && !self.handle.register(seen, ROOM, &self.waker) {
                continue;
            }
            let mut result = Err(WriteError::WouldBlock);
            if !waits_first || is_ready {
                Pattern::new(0).fill(log.written, &mut data);
                result = self.write(now, log, &data);
                while waits_first && result == Ok(true) && !log.is_done {
                    Pattern::new(0).fill(log.written, &mut data);
                    result = self.write(now, log, &data);
                }
            }
            match result {
                Ok(_) if waits_first => break,
                Ok(_) => {}
                Err(WriteError::WouldBlock) => {
                    if waits_first || self.handle.register(seen, ROOM, &self.waker) {
                        break;
                    }
                }
                Err(error) => log.error = Some(error),
            }
        }
        self.is_asleep = !log.is_done && log.error.is_none();
        if log.is_done {
            self.handle.shutdown_write(now);
        }
    }

    /// A turn after its waker was called.
    fn wake(&mut self, now: Instant, log: &mut WriterLog) {
        if log.is_done || log.error.is_some() {
            return;
        }
        // A poller reports only what is there when it is asked: the edge may be older than the
        // bytes that filled the room. It waits on.
        if self.plan.waits == Waits::Edges && self.waits_for_room() {
            return;
        }
        if self.is_open && self.is_asleep {
            log.wakeups += 1;
            let info = self.handle.info(now);
            if !self.may_be_woken(&info) {
                log.woken_above.get_or_insert(info.notsent_bytes);
            }
        }
        self.is_open |= self.handle.readiness().bits().intersects(ROOM);
        self.go_on(now, log);
    }
}

/// Many writers of one host.
pub(crate) struct Writers {
    remote: SocketAddr,
    plans: Vec<WriterPlan>,
    writers: Vec<Writer>,
    logs: WriterLogs,
    woken: Woken,
    /// The writer that is looked at closely next.
    next_look: usize,
    turns: u64,
}

/// Turns of the application after which a task is polled for no reason.
const SPURIOUS: u64 = 67;

impl Writers {
    /// Each connects to `remote` and follows its plan.
    pub(crate) fn new(remote: SocketAddr, plans: Vec<WriterPlan>) -> (Self, WriterLogs) {
        let logs = WriterLogs::new(RefCell::new(vec![WriterLog::default(); plans.len()]));
        let (writers, woken) = (Vec::new(), Woken::default());
        (Self { remote, plans, writers, logs: logs.clone(), woken, next_look: 0, turns: 0 }, logs)
    }

    fn start(&mut self, stack: &Stack, now: Instant) {
        for plan in self.plans.drain(..) {
            let index = self.writers.len();
            let options = ConnectOptions { options: plan.options.clone(), ..Default::default() };
            let handle = stack.connect(now, self.remote, options).expect("a route and a port");
            let waker = Arc::new(Alarm { woken: self.woken.clone(), index }).into();
            let mut writer = Writer { handle, plan, waker, is_asleep: false, is_open: false };
            writer.go_on(now, &mut self.logs.borrow_mut()[index]);
            self.writers.push(writer);
        }
    }

    /// Whoever sleeps now has nothing to wait for but the future.
    fn look_for_sleepers(&mut self, now: Instant) {
        let mut logs = self.logs.borrow_mut();
        for (writer, log) in self.writers.iter().zip(logs.iter_mut()) {
            if writer.is_asleep && writer.handle.readiness().bits().intersects(ROOM) {
                log.overslept.get_or_insert(now);
            }
        }
        let Some(writer) = self.writers.get(self.next_look) else { return };
        let log = &mut logs[self.next_look];
        let info = writer.handle.info(now);
        if writer.is_open && writer.is_asleep && writer.may_be_woken(&info) {
            log.overslept.get_or_insert(now);
        }
        log.info = Some(info);
        self.next_look = (self.next_look + 1) % self.writers.len();
    }
}

impl App for Writers {
    fn step(&mut self, stack: &Stack, now: Instant) -> Step {
        let mut did = !self.plans.is_empty();
        self.start(stack, now);
        loop {
            let woken = take(&self.woken);
            if woken.is_empty() {
                break;
            }
            did = true;
            for index in woken {
                self.writers[index].wake(now, &mut self.logs.borrow_mut()[index]);
            }
        }
        // Another branch of its `select!`, perhaps.
        self.turns += 1;
        if self.turns.is_multiple_of(SPURIOUS)
            && let Some(writer) = self.writers.get_mut(self.next_look)
            && writer.plan.waits == Waits::Async
            && writer.is_asleep
        {
            let log = &mut self.logs.borrow_mut()[self.next_look];
            let before = log.written;
            writer.go_on(now, log);
            did |= log.written > before;
        }
        self.look_for_sleepers(now);
        Step { did, ..Step::IDLE }
    }
}

/// Accepts any number of connections and reads what comes.
pub(crate) struct Readers {
    listener: ListenerHandle,
    open: Vec<Option<(TcpHandle, u64)>>,
    received: Rc<RefCell<u64>>,
    woken: Woken,
}

/// The index that stands for the listener.
const LISTENER: usize = usize::MAX;

impl Readers {
    /// Listens on `local` of this host. With it comes the count of bytes read.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub(crate) fn new(
        stack: &Stack,
        local: SocketAddr,
    ) -> Result<(Self, Rc<RefCell<u64>>), SocketError> {
        let listener = stack.listen(local, ListenOptions::default())?;
        let woken: Woken = Arc::new(Mutex::new(vec![LISTENER]));
        let received = Rc::new(RefCell::new(0));
        Ok((Self { listener, open: Vec::new(), received: received.clone(), woken }, received))
    }

    fn alarm(&self, index: usize) -> Waker {
        Arc::new(Alarm { woken: self.woken.clone(), index }).into()
    }

    fn accept(&mut self) {
        loop {
            let seen = self.listener.readiness();
            while let Ok((handle, _)) = self.listener.accept() {
                let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
                woken.push(self.open.len());
                drop(woken);
                self.open.push(Some((handle, 0)));
            }
            if self.listener.register(seen, Ready::all(), &self.alarm(LISTENER)) {
                return;
            }
        }
    }

    fn read(&mut self, now: Instant, index: usize) {
        let alarm = self.alarm(index);
        let Some(reader) = &mut self.open[index] else { return };
        let (handle, at) = reader;
        loop {
            let seen = handle.readiness();
            match handle.read_bytes(now) {
                Ok(Some(data)) => {
                    let wrong = Pattern::new(0).mismatch(*at, &data);
                    assert_eq!(wrong, None, "connection {index} from byte {at} on");
                    *at += data.len() as u64;
                    *self.received.borrow_mut() += data.len() as u64;
                }
                Err(ReadError::WouldBlock) => {
                    if handle.register(seen, Ready::all() - Ready::WRITABLE, &alarm) {
                        return;
                    }
                }
                Ok(None) | Err(ReadError::Failed(_)) => {
                    handle.close(now);
                    self.open[index] = None;
                    return;
                }
            }
        }
    }
}

impl App for Readers {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let mut did = false;
        loop {
            let woken = take(&self.woken);
            if woken.is_empty() {
                return Step { did, ..Step::IDLE };
            }
            did = true;
            for index in woken {
                match index {
                    LISTENER => self.accept(),
                    index => self.read(now, index),
                }
            }
        }
    }
}
