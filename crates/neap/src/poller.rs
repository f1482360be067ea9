//! Waits for any of several sockets and descriptors, with epoll's rules.
//!
//! Level-triggered, edge-triggered ([`Events::ET`]) and one-shot ([`Events::ONESHOT`]); the sockets
//! may be of several stacks and shards. A socket that changes puts its entry on a queue, by the
//! waker that the entry left with it; [`Poller::wait`] looks at the queue only. Ordinary
//! descriptors are in an epoll set of the kernel. The thread that waits drives all shards of its
//! sockets that nobody else drives, and sleeps on their devices and its descriptors at once.
//!
//! Cost: O(1) per change of a socket and per event reported, whatever the number of sockets; about
//! 200 bytes for each. One system call more per wait while there are descriptors.

use crate::alarm::{Alarm, timespec};
use crate::bell::Bell;
use crate::clock;
use crate::driver::{Driver, Follower, Lead};
use crate::engine::Engine;
use crate::foresight::{After, Foresight};
use crate::sleeper::{NO_EVENT, Seen, TOKENS, Vigil};
use crate::sync::lock;
use crate::watch::{Pollable, Target, WeakSocket};
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::Why;
use neap_stack::wait::Source;
use neap_tcp::time::Instant;
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

bitflags::bitflags! {
    /// Events to wait for, how to report them, and events that came: flags of `epoll_ctl(2)`, with
    /// their values.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Events: u32 {
        /// Data, a connection to accept, or the end of the stream (`EPOLLIN`).
        const IN = 0x001;
        /// Room to write, also below the low-water mark; or writing is over (`EPOLLOUT`).
        const OUT = 0x004;
        /// The socket failed, or a record of its error queue waits (`EPOLLERR`). It is reported
        /// without being asked for.
        const ERR = 0x008;
        /// Both directions are closed (`EPOLLHUP`). It is reported without being asked for.
        const HUP = 0x010;
        /// The peer will send no more (`EPOLLRDHUP`).
        const RDHUP = 0x2000;
        /// Asks for one report, until [`Poller::modify`] asks again (`EPOLLONESHOT`).
        const ONESHOT = 1 << 30;
        /// Asks for a report when something comes, not as long as it is there (`EPOLLET`).
        const ET = 1 << 31;
    }
}

impl Events {
    const UNASKED: Self = Self::ERR.union(Self::HUP);

    /// What `tcp_poll` makes of the state of a socket.
    fn of(ready: Ready) -> Self {
        let mut events = Self::empty();
        let closed = Ready::READ_CLOSED | Ready::WRITE_CLOSED;
        events.set(Self::IN, ready.intersects(Ready::READABLE | Ready::READ_CLOSED));
        events.set(Self::OUT, ready.intersects(Ready::WRITABLE | Ready::WRITE_CLOSED));
        events.set(Self::ERR, ready.intersects(Ready::ERROR | Ready::ERROR_QUEUE));
        events.set(Self::RDHUP, ready.contains(Ready::READ_CLOSED));
        events.set(Self::HUP, ready.contains(closed));
        events
    }

    /// Changes of a socket that can bring one of these.
    fn wanted(self) -> Ready {
        let closed = Ready::READ_CLOSED | Ready::WRITE_CLOSED;
        let mut ready = Ready::ERROR | Ready::ERROR_QUEUE | closed;
        ready.set(Ready::READABLE, self.contains(Self::IN));
        ready.set(Ready::WRITABLE, self.contains(Self::OUT));
        ready
    }
}

/// Something that is ready (`struct epoll_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Token that was given to [`Poller::add`].
    pub token: u64,
    /// Events that came, of those asked for and of [`Events::ERR`] and [`Events::HUP`].
    pub events: Events,
}

/// What is asked of one socket.
#[derive(Clone, Copy, Debug)]
struct Request {
    token: u64,
    events: Events,
    /// Counts changes, so that a one-shot report does not end a newer request.
    serial: u32,
    /// Removed, or a one-shot that was reported.
    is_over: bool,
}

#[derive(Debug)]
struct Entry {
    source: WeakSocket,
    engine: Weak<Engine>,
    shard: usize,
    request: Mutex<Request>,
    is_queued: AtomicBool,
    shared: Weak<Shared>,
}

impl Entry {
    fn forget(self: &Arc<Self>) {
        lock(&self.request).is_over = true;
        if let Some(source) = self.source.upgrade() {
            source.unregister(&self.clone().into());
        }
    }
}

impl Wake for Entry {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.push(self);
        shared.ring();
    }
}

/// What sockets and the waiting thread share.
#[derive(Debug)]
struct Shared {
    /// Entries whose sockets may be ready.
    queue: Mutex<VecDeque<Arc<Entry>>>,
    /// The waiting thread sleeps, or is about to.
    is_asleep: AtomicBool,
    /// A shard that somebody else led is free.
    is_called: AtomicBool,
    /// [`Poller::notify`] was called.
    is_notified: AtomicBool,
    /// Another event loop sleeps on [`Poller::as_fd`]: the bell rings for it, too.
    is_exposed: AtomicBool,
    /// Ends its sleep.
    bell: Bell,
}

impl Shared {
    fn push(&self, entry: &Arc<Entry>) {
        if !entry.is_queued.swap(true, Ordering::SeqCst) {
            lock(&self.queue).push_back(entry.clone());
        }
    }

    fn pop(&self) -> Option<Arc<Entry>> {
        let entry = lock(&self.queue).pop_front()?;
        entry.is_queued.store(false, Ordering::SeqCst);
        Some(entry)
    }

    /// Costs two loads while nobody sleeps. The queue's lock orders it: either the sleeper's last
    /// look at the queue sees what was pushed, or this sees the sleeper.
    fn ring(&self) {
        if self.is_asleep.load(Ordering::SeqCst) || self.is_exposed.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// Takes out the entries that have nothing to report any more when the queue is twice as long
    /// as the list of the `members`, so that at least half of it must be such. The lock of the
    /// members is held, so that no request begins meanwhile.
    fn sweep(&self, members: usize) {
        // Dropped behind the lock: a socket whose last holder this is closes, and pushes its
        // entries.
        let mut sockets = Vec::new();
        let mut queue = lock(&self.queue);
        if queue.len() < MIN_SWEEP.max(2 * members) {
            return;
        }
        queue.retain(|entry| {
            let is_over = lock(&entry.request).is_over;
            let socket = if is_over { None } else { entry.source.upgrade() };
            let is_alive = socket.is_some();
            if !is_alive {
                entry.is_queued.store(false, Ordering::SeqCst);
            }
            sockets.extend(socket);
            is_alive
        });
        drop(queue);
    }

    fn has_news(&self) -> bool {
        !lock(&self.queue).is_empty()
            || self.is_notified.load(Ordering::SeqCst)
            || self.is_called.load(Ordering::SeqCst)
    }
}

/// Called when the leader of a shard left: the waiting thread may lead it now.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.is_called.store(true, Ordering::SeqCst);
        self.ring();
    }
}

/// A shard whose sockets are waited for.
#[derive(Debug)]
struct Shard {
    engine: Arc<Engine>,
    index: usize,
    sockets: usize,
    /// First of its tokens in the set that is slept on.
    base: u64,
}

#[derive(Debug, Default)]
struct Members {
    /// By identity of the socket.
    entries: HashMap<usize, Arc<Entry>>,
    shards: Vec<Shard>,
    /// Where the tokens of the next shard begin.
    tokens: u64,
    /// Entries at which those of closed sockets are looked for.
    sweep_at: usize,
}

/// What the waiting thread has to itself.
#[derive(Debug, Default)]
struct Waiting {
    /// Reported last time and level-triggered: looked at again.
    again: Vec<Arc<Entry>>,
    /// The shards that were driven last, by their tokens.
    known: Vec<u64>,
}

impl Waiting {
    /// Looks at the links of the shards that are new: an event of theirs may have ended a sleep
    /// before it was known whose it was.
    fn know(&mut self, shards: &[Sleep]) {
        for shard in shards.iter().filter(|shard| !self.known.contains(&shard.base)) {
            shard.driver().note_links();
        }
        self.known.clear();
        self.known.extend(shards.iter().map(|shard| shard.base));
    }
}

/// Token of the bell in the set that is slept on; those of the shards count up from 0.
const BELL: u64 = u64::MAX;
/// Token of the descriptors.
const FILES: u64 = u64::MAX - 1;
/// Token of the alarm.
const ALARM: u64 = u64::MAX - 2;
/// Entries below which none are looked for that are over.
const MIN_SWEEP: usize = 64;
/// Descriptors reported by one wait at the most.
const MAX_FILES: usize = 64;

/// Set of sockets and descriptors that one thread waits for, by the rules of epoll.
///
/// Use it where a thread serves many sockets: [`TcpStream`](crate::TcpStream),
/// [`TcpListener`](crate::TcpListener), [`UdpSocket`](crate::UdpSocket), and descriptors of the
/// kernel. The waiting thread drives the stacks of its sockets meanwhile.
///
/// # In another event loop
///
/// A poller has a descriptor ([`AsFd`]), for an epoll set of the program or the loop of a library.
/// It is readable when [`wait`](Self::wait) may have something to report; the loop then calls
/// `wait` with a timeout of zero. The call may find nothing, but no event is missed.
/// Level-triggered sockets keep the descriptor readable as long as they are ready. While the thread
/// sleeps in its own loop, the worker threads of the stacks drive them, so a packet costs one hop
/// between threads. A thread that sleeps in `wait` drives them itself.
///
/// ```no_run
/// use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
/// use std::time::Duration;
///
/// # let stack = neap::Stack::builder().build()?;
/// let listener = neap::TcpListener::bind(&stack, "0.0.0.0:80")?;
/// listener.set_nonblocking(true)?;
/// let poller = neap::Poller::new()?;
/// poller.add(&listener, 1, neap::Events::IN)?;
///
/// let outer = epoll::create(CreateFlags::CLOEXEC)?;
/// epoll::add(&outer, &poller, EventData::new_u64(7), EventFlags::IN)?;
/// let mut ready = Vec::with_capacity(16);
/// let mut events = Vec::new();
/// loop {
///     epoll::wait(&outer, rustix::buffer::spare_capacity(&mut ready), None)?;
///     for event in ready.drain(..) {
///         if event.data.u64() == 7 {
///             poller.wait(&mut events, Some(Duration::ZERO))?;
///             println!("{events:?}");
///         }
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Sockets and threads
///
/// A poller does not keep sockets open: a socket that is closed leaves it. Any thread may add,
/// change and remove sockets. One thread waits at a time; others that call [`wait`](Self::wait)
/// wait until it returns.
#[derive(Debug)]
pub struct Poller {
    shared: Arc<Shared>,
    members: Mutex<Members>,
    waiting: Mutex<Waiting>,
    /// Shards came or went.
    epoch: AtomicUsize,
    /// The kernel's descriptors.
    files: OwnedFd,
    has_files: AtomicBool,
    alarm: Alarm,
    foresight: Foresight,
    /// What is slept on: the bell, `files`, the alarm, and the sources of the shards.
    set: Arc<OwnedFd>,
    /// What other event loops sleep on: the bell and `files`.
    outside: OwnedFd,
}

impl Poller {
    /// A poller without sockets.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let files = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Bell::new()?;
        epoll::add(&set, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        epoll::add(&set, &files, epoll::EventData::new_u64(FILES), epoll::EventFlags::IN)?;
        let outside = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&outside, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        epoll::add(&outside, &files, epoll::EventData::new_u64(FILES), epoll::EventFlags::IN)?;
        let shared = Shared {
            queue: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            is_called: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            is_exposed: AtomicBool::new(false),
            bell,
        };
        Ok(Self {
            shared: Arc::new(shared),
            members: Mutex::default(),
            waiting: Mutex::default(),
            epoch: AtomicUsize::new(0),
            files,
            has_files: AtomicBool::new(false),
            alarm: Alarm::new(&set, ALARM)?,
            foresight: Foresight::default(),
            set: Arc::new(set),
            outside,
        })
    }

    /// Adds a socket or a descriptor (`EPOLL_CTL_ADD`). `token` is in each [`Event`] of it.
    ///
    /// # Errors
    /// `AlreadyExists` if it is in the poller; the error of `epoll_ctl(2)` for a descriptor.
    pub fn add(&self, source: &impl Pollable, token: u64, events: Events) -> io::Result<()> {
        match source.target() {
            Target::File(file) => {
                let data = epoll::EventData::new_u64(token);
                epoll::add(&self.files, file, data, kernel_flags(events))?;
                self.has_files.store(true, Ordering::SeqCst);
                Ok(())
            }
            Target::Socket(source, engine) => {
                let key = source.identity();
                let shard = source.upgrade().ok_or(io::ErrorKind::NotFound)?.shard();
                let mut members = lock(&self.members);
                members.sweep(self);
                if members.entries.contains_key(&key) {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                members.join(self, &engine, shard)?;
                let request = Request { token, events, serial: 0, is_over: false };
                let entry = Arc::new(Entry {
                    source,
                    engine: Arc::downgrade(&engine),
                    shard,
                    request: Mutex::new(request),
                    is_queued: AtomicBool::new(false),
                    shared: Arc::downgrade(&self.shared),
                });
                members.entries.insert(key, entry.clone());
                self.shared.sweep(members.entries.len());
                drop(members);
                entry.wake();
                Ok(())
            }
        }
    }

    /// Changes the events that are waited for (`EPOLL_CTL_MOD`). A one-shot is waited for again.
    ///
    /// # Errors
    /// `NotFound` if it is not in the poller; the error of `epoll_ctl(2)` for a descriptor.
    pub fn modify(&self, source: &impl Pollable, token: u64, events: Events) -> io::Result<()> {
        match source.target() {
            Target::File(file) => {
                let data = epoll::EventData::new_u64(token);
                Ok(epoll::modify(&self.files, file, data, kernel_flags(events))?)
            }
            Target::Socket(source, _) => {
                let members = lock(&self.members);
                let entry = members.entries.get(&source.identity());
                let entry = entry.ok_or(io::ErrorKind::NotFound)?;
                let mut request = lock(&entry.request);
                let serial = request.serial.wrapping_add(1);
                *request = Request { token, events, serial, is_over: false };
                drop(request);
                entry.wake_by_ref();
                Ok(())
            }
        }
    }

    /// Removes a socket or a descriptor (`EPOLL_CTL_DEL`).
    ///
    /// # Errors
    /// `NotFound` if it is not in the poller; the error of `epoll_ctl(2)` for a descriptor.
    pub fn remove(&self, source: &impl Pollable) -> io::Result<()> {
        match source.target() {
            Target::File(file) => Ok(epoll::delete(&self.files, file)?),
            Target::Socket(source, _) => {
                let entry = lock(&self.members).leave(self, source.identity());
                let entry = entry.ok_or(io::ErrorKind::NotFound)?;
                entry.forget();
                Ok(())
            }
        }
    }

    /// Ends the wait that is going on, or the next one, without an event.
    pub fn notify(&self) {
        self.shared.is_notified.store(true, Ordering::SeqCst);
        self.shared.ring();
    }

    /// Waits until something is ready, and puts it into `events`, which is emptied first.
    ///
    /// It waits for `timeout` at the most, and for ever if that is `None`. `events` is empty if the
    /// time was over first, or after [`notify`](Self::notify).
    ///
    /// # Errors
    /// The error of `epoll_wait(2)` for the descriptors.
    pub fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let mut waiting = lock(&self.waiting);
        let deadline = timeout.map_or(Instant::FAR_FUTURE, |timeout| clock::now() + timeout.into());
        for entry in waiting.again.drain(..) {
            self.shared.push(&entry);
        }
        if self.shared.is_exposed.load(Ordering::SeqCst) {
            // Silenced before the queue is looked at, so that a later change rings again.
            self.shared.bell.silence();
        }
        // A call from before: whether a shard is free is tried in any case.
        self.shared.is_called.store(false, Ordering::SeqCst);
        let mut outcome = Ok(false);
        while matches!(outcome, Ok(false)) {
            outcome = self.drive(&mut waiting, events, deadline);
        }
        let may_have_more = !waiting.again.is_empty() || self.shared.has_news();
        if may_have_more && self.shared.is_exposed.load(Ordering::SeqCst) {
            self.shared.ring();
        }
        outcome.map(|_| ())
    }

    /// Drives the shards as they are now, as far as nobody else does. Whether the wait is over; if
    /// not, shards came or went, or may be led.
    fn drive(
        &self,
        waiting: &mut Waiting,
        events: &mut Vec<Event>,
        deadline: Instant,
    ) -> io::Result<bool> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let is_stale = || {
            let was_called = self.shared.is_called.swap(false, Ordering::SeqCst);
            was_called || self.epoch.load(Ordering::SeqCst) != epoch
        };
        let shards = lock(&self.members).snapshot();
        waiting.know(&shards);
        let mut leads: Vec<_> = shards.iter().map(Sleep::lead).collect();
        let mut arrangement = None;
        let (mut only_alarm, mut after) = (false, After::Call);
        loop {
            let now = clock::now();
            let (mut next, mut has_more) = (deadline, false);
            for lead in leads.iter_mut().flatten() {
                let (due, why) = lead.poll(now, only_alarm);
                next = next.min(due);
                has_more |= why == Why::MoreWork;
            }
            only_alarm = false;
            self.collect(waiting, events);
            self.collect_files(events)?;
            let is_notified = self.shared.is_notified.swap(false, Ordering::SeqCst);
            if !events.is_empty() || is_notified || now >= deadline {
                return Ok(true);
            }
            if is_stale() {
                arrangement.into_iter().for_each(Arrangement::take_up);
                return Ok(false);
            }
            if has_more {
                continue;
            }
            if arrangement.is_none() {
                arrangement = Some(Arrangement::new(self, &shards, &leads));
                // Who leads a shard may have left before this thread followed.
                let is_free = |(shard, lead): (&Sleep, &Option<Lead<'_>>)| {
                    lead.is_none() && !shard.driver().is_led()
                };
                if shards.iter().zip(&leads).any(is_free) {
                    arrangement.into_iter().for_each(Arrangement::take_up);
                    return Ok(false);
                }
            }
            self.shared.is_asleep.store(true, Ordering::SeqCst);
            if !self.shared.has_news() && self.epoch.load(Ordering::SeqCst) == epoch {
                leads.iter_mut().flatten().for_each(|lead| lead.falls_asleep(now));
                let led = shards.iter().zip(&leads).filter(|(_, lead)| lead.is_some());
                let vigils = led.map(|(shard, _)| shard.driver().vigil());
                let vigil = vigils.fold(Vigil::NONE, Vigil::longer);
                only_alarm = self.sleep(&shards, (vigil, after), next, now);
                after = After::sleep(only_alarm);
            }
            self.shared.is_asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Sleeps until an event or `until`, parts of it awake if the shards that this thread leads
    /// have such a vigil ([`Builder::spin`](crate::Builder::spin) and
    /// [`busy_poll`](crate::Builder::busy_poll)). Whether only its alarm or the time has ended it.
    fn sleep(
        &self,
        shards: &[Sleep],
        (vigil, after): (Vigil, After),
        until: Instant,
        now: Instant,
    ) -> bool {
        // Without a look there may be anything.
        let only_alarm = Cell::new(false);
        vigil.sleep(
            (&self.foresight, after),
            until,
            now,
            || {
                only_alarm.set(self.look(shards, Some(&timespec(0))).others == 0);
                !only_alarm.get()
            },
            |asleep_until, now| {
                self.alarm.set(asleep_until, now);
                let seen = self.look(shards, None);
                only_alarm.set(seen.alarms > 0 && seen.others == 0);
                !only_alarm.get()
            },
        );
        only_alarm.get()
    }

    /// Takes the events of the set, and waits for one for at most `timeout`.
    fn look(&self, shards: &[Sleep], timeout: Option<&Timespec>) -> Woken {
        let mut buffer = [NO_EVENT; 8];
        let count = epoll::wait(&self.set, &mut buffer, timeout).unwrap_or(0);
        for event in &buffer[..count] {
            match event.data.u64() {
                BELL => self.shared.bell.silence(),
                FILES | ALARM => {}
                token => {
                    let is_its =
                        |shard: &&Sleep| (shard.base..shard.base + TOKENS).contains(&token);
                    if let Some(shard) = shards.iter().find(is_its) {
                        let mut seen = Seen::default();
                        seen.add(event, shard.base);
                        shard.driver().note(seen);
                    }
                }
            }
        }
        let alarms = buffer[..count].iter().filter(|event| event.data.u64() == ALARM).count();
        Woken { alarms, others: count - alarms }
    }

    /// Reports the sockets on the queue that are ready, and waits for the others.
    fn collect(&self, waiting: &mut Waiting, events: &mut Vec<Event>) {
        while let Some(entry) = self.shared.pop() {
            let request = *lock(&entry.request);
            if request.is_over {
                continue;
            }
            let Some(source) = entry.source.upgrade() else {
                lock(&self.members).leave(self, entry.source.identity());
                continue;
            };
            let waker: Waker = entry.clone().into();
            let asked = request.events | Events::UNASKED;
            let came = loop {
                let seen = source.readiness();
                let came = Events::of(source.told(seen.bits())) & asked;
                let reports_edges = request.events.contains(Events::ET);
                let must_wait = came.is_empty() || reports_edges;
                if !must_wait || source.register(seen, asked.wanted(), &waker) {
                    break came;
                }
            };
            if came.is_empty() {
                continue;
            }
            events.push(Event { token: request.token, events: came });
            if request.events.contains(Events::ONESHOT) {
                let mut current = lock(&entry.request);
                if current.serial == request.serial {
                    current.is_over = true;
                }
            } else if !request.events.contains(Events::ET) {
                waiting.again.push(entry);
            }
        }
    }

    fn collect_files(&self, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.has_files.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut buffer = [NO_EVENT; MAX_FILES];
        let at_once = Some(timespec(0));
        let count = match epoll::wait(&self.files, &mut buffer, at_once.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            result => result?,
        };
        events.extend(buffer[..count].iter().map(|event| {
            let flags = event.flags;
            Event { token: event.data.u64(), events: Events::from_bits_truncate(flags.bits()) }
        }));
        Ok(())
    }
}

/// The descriptor for other event loops: readable when [`Poller::wait`] may have something to
/// report. From the first call on, each change of a socket may cost a system call.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shared.is_exposed.swap(true, Ordering::SeqCst) {
            // The first wait has to report what came before.
            self.shared.ring();
        }
        self.outside.as_fd()
    }
}

/// The descriptor of [`AsFd`], by its number.
impl AsRawFd for Poller {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn kernel_flags(events: Events) -> epoll::EventFlags {
    epoll::EventFlags::from_bits_retain(events.bits())
}

/// How many events a look at the set has brought.
struct Woken {
    alarms: usize,
    others: usize,
}

/// A shard as the waiting thread sees it.
struct Sleep {
    engine: Arc<Engine>,
    index: usize,
    base: u64,
}

impl Sleep {
    fn driver(&self) -> &Driver {
        self.engine.driver(self.index)
    }

    fn lead(&self) -> Option<Lead<'_>> {
        self.driver().try_lead(&self.engine.stack)
    }
}

/// What a thread has arranged before it sleeps: the sources of the shards that it leads end its
/// sleep, and it follows the leaders of the others.
struct Arrangement<'a> {
    followed: Vec<Follower<'a>>,
}

impl<'a> Arrangement<'a> {
    fn new(poller: &Poller, shards: &'a [Sleep], leads: &[Option<Lead<'_>>]) -> Self {
        let mut followed = Vec::new();
        for (shard, lead) in shards.iter().zip(leads) {
            shard.driver().sources().mute(&poller.set, lead.is_none());
            if lead.is_none() {
                followed.push(shard.driver().follow(poller.shared.clone().into()));
            }
        }
        Self { followed }
    }

    /// Ends it, by a thread that tries to lead all shards next.
    fn take_up(self) {
        self.followed.into_iter().for_each(Follower::take_up);
    }
}

impl Members {
    fn snapshot(&self) -> Vec<Sleep> {
        let sleep = |shard: &Shard| Sleep {
            engine: shard.engine.clone(),
            index: shard.index,
            base: shard.base,
        };
        self.shards.iter().map(sleep).collect()
    }

    fn find(&self, engine: &Arc<Engine>, index: usize) -> Option<usize> {
        self.shards.iter().position(|one| one.index == index && Arc::ptr_eq(&one.engine, engine))
    }

    /// One socket more of a shard.
    fn join(&mut self, poller: &Poller, engine: &Arc<Engine>, index: usize) -> io::Result<()> {
        if let Some(at) = self.find(engine, index) {
            self.shards[at].sockets += 1;
            return Ok(());
        }
        let base = self.tokens;
        self.tokens += TOKENS;
        engine.driver(index).sources().enter(&poller.set, base)?;
        self.shards.push(Shard { engine: engine.clone(), index, sockets: 1, base });
        poller.epoch.fetch_add(1, Ordering::SeqCst);
        poller.shared.ring();
        Ok(())
    }

    /// Takes an entry out; its shard leaves with the last one.
    fn leave(&mut self, poller: &Poller, key: usize) -> Option<Arc<Entry>> {
        let entry = self.entries.remove(&key)?;
        let engine = entry.engine.upgrade();
        if let Some(at) = engine.and_then(|engine| self.find(&engine, entry.shard)) {
            self.shards[at].sockets -= 1;
            if self.shards[at].sockets == 0 {
                let shard = self.shards.swap_remove(at);
                shard.engine.driver(shard.index).sources().leave(&poller.set);
                poller.epoch.fetch_add(1, Ordering::SeqCst);
                poller.shared.ring();
            }
        }
        Some(entry)
    }

    /// Takes out what was closed without an event, each time that the number has doubled.
    fn sweep(&mut self, poller: &Poller) {
        if self.entries.len() < self.sweep_at.max(MIN_SWEEP) {
            return;
        }
        let is_gone = |entry: &Arc<Entry>| entry.source.upgrade().is_none();
        let gone = self.entries.iter().filter(|(_, entry)| is_gone(entry)).map(|(key, _)| *key);
        let gone: Vec<_> = gone.collect();
        for key in gone {
            self.leave(poller, key);
        }
        self.sweep_at = self.entries.len() * 2;
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let members = self.members.get_mut().unwrap_or_else(PoisonError::into_inner);
        members.entries.values().for_each(Entry::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::Descriptors;
    use crate::holding::{Packets, holding};
    use neap_stack::device::{Device, LinkMonitor, LinkState, LinkStatus};
    use neap_stack::stack::{Stack, StackConfig};

    #[test]
    fn a_call_that_was_answered_does_not_keep_the_descriptor_readable() {
        use rustix::event::{PollFd, PollFlags, poll};
        let poller = Poller::new().expect("descriptors");
        let is_readable = || {
            let mut seen = [PollFd::new(&poller, PollFlags::IN)];
            poll(&mut seen, Some(&timespec(0))).expect("a look") > 0
        };
        assert!(is_readable(), "the first wait reports what came before");
        let mut events = Vec::new();
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        assert!(!is_readable());
        // The leader of a shard left, and the wait that followed it had an event.
        Waker::from(poller.shared.clone()).wake();
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        assert!(events.is_empty() && !is_readable());
    }

    fn stack() -> crate::Stack {
        let builder = crate::Stack::builder().device(holding(&Packets::default()));
        builder.address("10.1.0.1/24").build().expect("a stack")
    }

    /// The entries of sockets that nobody waits for any more.
    #[test]
    fn sockets_that_come_and_go_between_two_waits_leave_nothing_behind() {
        let stack = stack();
        let bound = || crate::UdpSocket::bind(&stack, "127.0.0.1:0").expect("a port");
        let poller = Poller::new().expect("descriptors");
        let queued = || lock(&poller.shared.queue).len();
        let kept = bound();
        for _ in 0..1000 {
            poller.add(&kept, 1, Events::OUT).expect("new");
            poller.remove(&kept).expect("there");
        }
        assert!(queued() <= MIN_SWEEP, "{} entries of a socket that was removed", queued());
        poller.add(&kept, 2, Events::OUT).expect("new");
        for _ in 0..1000 {
            poller.add(&bound(), 3, Events::OUT).expect("new");
        }
        assert!(queued() <= MIN_SWEEP, "{} entries of sockets that were closed", queued());
        let mut events = Vec::new();
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        assert_eq!(events, [Event { token: 2, events: Events::OUT }]);
    }

    #[test]
    fn a_socket_that_is_ready_is_reported_while_another_thread_sweeps() {
        let stack = stack();
        let bound = || crate::UdpSocket::bind(&stack, "127.0.0.1:0").expect("a port");
        let poller = Poller::new().expect("descriptors");
        let kept = bound();
        poller.add(&kept, 1, Events::OUT).expect("new");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = bound();
                while !is_over.load(Ordering::SeqCst) {
                    poller.add(&other, 2, Events::IN).expect("new");
                    poller.remove(&other).expect("there");
                }
            });
            let mut events = Vec::new();
            let mut reports = |_: &u32| {
                poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
                events.iter().any(|event| event.token == 1)
            };
            let reported = (0..50_000).filter(&mut reports).count();
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(reported, 50_000);
        });
    }

    #[test]
    fn a_one_shot_that_was_swept_is_reported_again() {
        let stack = stack();
        let bound = || crate::UdpSocket::bind(&stack, "127.0.0.1:0").expect("a port");
        let poller = Poller::new().expect("descriptors");
        let mut events = Vec::new();
        let kept = bound();
        poller.add(&kept, 1, Events::OUT | Events::ONESHOT).expect("new");
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        assert_eq!(events.len(), 1);
        let entry = lock(&poller.members).entries.values().next().cloned();
        entry.expect("it is there").wake();
        for _ in 0..1000 {
            poller.add(&bound(), 2, Events::OUT).expect("new");
        }
        poller.modify(&kept, 3, Events::OUT).expect("there");
        poller.wait(&mut events, Some(Duration::ZERO)).expect("a wait");
        assert_eq!(events, [Event { token: 3, events: Events::OUT }]);
    }

    #[test]
    fn a_sleep_without_a_look_says_nothing_of_the_devices() {
        let poller = Poller::new().expect("descriptors");
        let now = clock::now();
        assert!(!poller.sleep(&[], (Vigil::NONE, After::Call), now, now));
    }

    /// Its link is down as soon as the descriptor is readable.
    struct Falling(Arc<OwnedFd>);

    impl LinkMonitor for Falling {
        fn look(&mut self) -> LinkStatus {
            let has_fallen = rustix::io::read(&self.0, &mut [0; 8]).is_ok();
            LinkStatus::new(if has_fallen { LinkState::Down } else { LinkState::Up })
        }
        fn descriptor(&self) -> Option<Arc<OwnedFd>> {
            Some(self.0.clone())
        }
    }

    #[test]
    fn a_link_that_falls_while_its_shard_joins_is_looked_at() {
        use rustix::event::{EventfdFlags, eventfd};
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let bell = Arc::new(bell);
        let monitor = Some(Box::new(Falling(bell.clone())) as Box<dyn LinkMonitor>);
        let device = Device { monitor, ..holding(&Packets::default()) };
        // There is no worker, which would look too.
        let stack = Stack::new(StackConfig::default()).expect("a stack");
        let descriptors = Arc::<Descriptors>::default();
        let driver = Driver::new(0, Vigil::NONE, &descriptors).expect("descriptors");
        let id = stack.add_interface(clock::now(), device, &[]).expect("an interface");
        driver.attach_monitor(id, bell.clone()).expect("a descriptor");
        let kinds = Default::default();
        let engine = Engine::new(stack, vec![driver], descriptors, kinds, Default::default());
        let engine = Arc::new(engine);
        rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("it falls");
        let poller = Poller::new().expect("descriptors");
        lock(&poller.members).join(&poller, &engine, 0).expect("a descriptor");
        // The thread that sleeps meanwhile has the event before it knows the shard.
        assert!(poller.look(&[], Some(&timespec(0))).others > 0);
        poller.wait(&mut Vec::new(), Some(Duration::ZERO)).expect("a wait");
        assert_eq!(engine.stack.interfaces(clock::now())[0].link, LinkState::Down);
    }

    #[test]
    fn a_wait_does_not_last_for_whole_milliseconds() {
        let poller = Poller::new().expect("descriptors");
        let mut events = Vec::new();
        // On a busy machine any of them may be late, but hardly all.
        let shortest = (0..100).map(|_| {
            let start = clock::now();
            poller.wait(&mut events, Some(Duration::from_micros(100))).expect("a wait");
            clock::now().since(start)
        });
        let shortest = shortest.min().expect("waits");
        assert!(shortest.0 >= 100_000, "it ended early: {shortest:?}");
        assert!(shortest.0 < 1_000_000, "rounded: {shortest:?}");
    }
}
