//! Who drives a shard: an application thread that waits, or else the worker.
//!
//! A thread in a blocking call takes the role and polls until its call can go on, so that in the
//! bulk case one thread does the application's copy, the protocol and the device: waking another
//! thread costs 50 microseconds, more than sending a super-frame. While applications drive, the
//! worker only looks in every [`STANDBY`]; when they stop, it sleeps on the device itself.
//!
//! Roles. *Leader*: holds [`Driver::role`], polls, sleeps on the descriptors. *Follower*: waits on
//! its socket while another leads; one is called when the leader leaves. *Worker*: leads only while
//! nobody else does, and gives the role up while it sleeps.

use crate::alarm::{Alarm, timespec};
use crate::clock;
use neap_stack::interface::InterfaceId;
use neap_stack::stack::{Stack, Why};
use neap_stack::wait::Condition;
use neap_tcp::time::{Instant, Nanos};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Wake, Waker};
use std::thread::Thread;

/// How often the worker looks in while applications drive.
const STANDBY: Nanos = Nanos::from_micros(250);
/// How often the worker looks whether a task that drives comes round, and how long it may not.
const TASK_STANDBY: Nanos = Nanos::from_millis(5);
/// How long after its last poll an application counts as driving.
const GRACE: Nanos = Nanos::from_micros(200);

/// What a shard needs to sleep and to be woken.
#[derive(Debug)]
pub(crate) struct Driver {
    shard: usize,
    role: Mutex<Role>,
    /// An application leads now.
    is_led: AtomicBool,
    /// When an application last polled, nanoseconds.
    last_led: AtomicU64,
    /// A task of a runtime drives, unless it does not come round.
    has_task: AtomicBool,
    /// When it wants to be woken, nanoseconds.
    task_due: AtomicU64,
    /// The worker sleeps on the descriptors, so a new leader must send it to standby.
    worker_sleeps: AtomicBool,
    worker: Sleeper,
    sets: Mutex<Sets>,
    /// A device of this shard may have changed: its link is to be looked at.
    has_link_news: AtomicBool,
    followers: Mutex<Vec<Waker>>,
    waiting: AtomicUsize,
    kick: Arc<Kick>,
    call_leader: Arc<CallLeader>,
}

/// What the sleepers of a shard sleep on. Devices come and go while they sleep.
#[derive(Debug, Default)]
struct Sets {
    devices: Vec<Attached>,
    sleepers: Vec<Weak<OwnedFd>>,
}

/// A descriptor of a device. It is held so that it can be taken out of the sets: another process
/// may have it open too, and then its end here is no end for them.
#[derive(Debug)]
struct Attached {
    interface: InterfaceId,
    descriptor: Arc<OwnedFd>,
    token: u64,
}

impl Attached {
    fn enter(&self, set: &OwnedFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        // Completions are edges: a ring that is always writable must not keep us awake.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        Ok(epoll::add(set, &self.descriptor, data, flags)?)
    }
}

impl Sets {
    /// The sets that are still slept on.
    fn live(&mut self) -> Vec<Arc<OwnedFd>> {
        self.sleepers.retain(|set| set.strong_count() > 0);
        self.sleepers.iter().filter_map(Weak::upgrade).collect()
    }

    fn attach(&mut self, one: Attached) -> io::Result<()> {
        for set in self.live() {
            one.enter(&set)?;
        }
        self.devices.push(one);
        Ok(())
    }

    /// Takes out what belongs to interfaces that `is_gone` names.
    fn detach(&mut self, is_gone: impl Fn(InterfaceId) -> bool) {
        let live = self.live();
        for one in self.devices.extract_if(.., |one| is_gone(one.interface)) {
            for set in &live {
                // A set that a failed call of `attach` did not reach does not have it.
                let _ = epoll::delete(set, &one.descriptor);
            }
        }
    }
}

/// The leader's own things.
#[derive(Debug)]
pub(crate) struct Role {
    sleeper: Sleeper,
}

/// Ends the sleep of whoever sleeps on a shard's descriptors.
#[derive(Debug)]
struct Kick(OwnedFd);

impl Kick {
    fn set(&self) {
        // A write fails only if the counter is full, and then the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Kick {
    fn wake(self: Arc<Self>) {
        self.set();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}

/// Wakes the leader of a shard: its socket may change while another thread owns it, or on another
/// shard. While the leader polls it looks anyway, and this costs one load.
#[derive(Debug)]
struct CallLeader {
    is_asleep: AtomicBool,
    kick: Arc<Kick>,
}

impl Wake for CallLeader {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.kick.set();
        }
    }
}

/// An epoll set over the devices' descriptors, the kick and an alarm.
#[derive(Debug)]
pub(crate) struct Sleeper {
    epoll: Arc<OwnedFd>,
    alarm: Alarm,
    /// The last part of a sleep that is spent awake.
    spin: Nanos,
}

/// Token of the kick in a sleeper.
const KICK: u64 = u64::MAX;
/// Token of its alarm.
const ALARM: u64 = u64::MAX - 1;
/// Token of all queues of devices.
const QUEUE: u64 = 0;
/// Token of what tells that a device has changed.
const MONITOR: u64 = 1;

impl Sleeper {
    /// A sleeper over the descriptors of `sets`, and of those that come later.
    fn new(sets: &mut Sets, kick: &Kick, spin: Nanos) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = Alarm::new(&set, ALARM)?;
        let data = epoll::EventData::new_u64(KICK);
        epoll::add(&set, &kick.0, data, epoll::EventFlags::IN)?;
        let set = Arc::new(set);
        sets.devices.iter().try_for_each(|device| device.enter(&set))?;
        sets.sleepers.push(Arc::downgrade(&set));
        Ok(Self { epoll: set, alarm, spin })
    }

    /// Its descriptor, to be slept on together with others: readable when there is an event.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Sleeps until an event or `until`.
    fn sleep(&self, until: Instant, now: Instant) -> Seen {
        let mut seen = Seen::default();
        if until == Instant::FAR_FUTURE {
            seen = self.wait(None);
        } else if until.since(now) > self.spin {
            self.alarm.set(until - self.spin, now);
            seen = self.wait(None);
        }
        if self.spin > Nanos::ZERO {
            // Only the alarm ends a sleep early.
            while !seen.event && until.since(clock::now()) <= self.spin && clock::now() < until {
                seen = self.wait(Some(&timespec(0)));
                core::hint::spin_loop();
            }
        }
        seen
    }

    /// Ends the sleep of whoever sleeps on the [`descriptor`](Self::descriptor), at `at` or
    /// earlier.
    #[cfg(feature = "tokio")]
    pub(crate) fn wake_at(&self, at: Instant, now: Instant) {
        self.alarm.set(at, now);
    }

    fn wait(&self, timeout: Option<&Timespec>) -> Seen {
        let mut events: [epoll::Event; 8] = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 8];
        let count = epoll::wait(&self.epoll, &mut events, timeout).unwrap_or(0);
        let tokens = || events[..count].iter().map(|event| event.data.u64());
        let has_failed = |event: &epoll::Event| {
            let errors = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
            let flags = event.flags;
            event.data.u64() == QUEUE && flags.intersects(errors)
        };
        Seen {
            links: tokens().any(|token| token == MONITOR) || events[..count].iter().any(has_failed),
            any: count > 0,
            event: tokens().any(|token| token != ALARM),
            kick: tokens().any(|token| token == KICK),
        }
    }
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    any: bool,
    /// Something else than the alarm.
    event: bool,
    kick: bool,
    /// A device may have changed.
    links: bool,
}

impl Driver {
    pub(crate) fn new(shard: usize, spin: Nanos) -> io::Result<Self> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kick = Arc::new(Kick(kick));
        let is_asleep = AtomicBool::new(false);
        let call_leader = Arc::new(CallLeader { is_asleep, kick: kick.clone() });
        let mut sets = Sets::default();
        Ok(Self {
            shard,
            role: Mutex::new(Role { sleeper: Sleeper::new(&mut sets, &kick, spin)? }),
            is_led: AtomicBool::new(false),
            last_led: AtomicU64::new(0),
            has_task: AtomicBool::new(false),
            task_due: AtomicU64::new(u64::MAX),
            worker_sleeps: AtomicBool::new(false),
            worker: Sleeper::new(&mut sets, &kick, spin)?,
            sets: Mutex::new(sets),
            has_link_news: AtomicBool::new(false),
            followers: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
            kick,
            call_leader,
        })
    }

    /// What the stack wakes when work was left for this shard.
    pub(crate) fn waker(&self) -> Waker {
        self.kick.clone().into()
    }

    /// Ends the sleep of worker and leader.
    pub(crate) fn kick(&self) {
        self.kick.set();
    }

    /// Whoever sleeps here is woken by this descriptor of a queue, too.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn attach_queue(&self, of: InterfaceId, queue: Arc<OwnedFd>) -> io::Result<()> {
        let one = Attached { interface: of, descriptor: queue, token: QUEUE };
        lock(&self.sets).attach(one)
    }

    /// Whoever sleeps here looks at the links when this descriptor is readable.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn attach_monitor(&self, of: InterfaceId, bell: Arc<OwnedFd>) -> io::Result<()> {
        let one = Attached { interface: of, descriptor: bell, token: MONITOR };
        lock(&self.sets).attach(one)
    }

    /// Forgets the descriptors of interfaces that the stack no longer has.
    pub(crate) fn detach_gone(&self, stack: &Stack) {
        let live = stack.interface_ids();
        lock(&self.sets).detach(|interface| !live.contains(&interface));
    }

    fn note(&self, seen: Seen) {
        if seen.links {
            self.has_link_news.store(true, Ordering::SeqCst);
        }
    }

    /// Polls the shard once; before that, looks at the links if there is reason to.
    fn poll(&self, stack: &Stack, now: Instant) -> (Instant, Why) {
        if self.has_link_news.load(Ordering::Relaxed) {
            self.look_at_links(stack, now);
        }
        stack.poll(self.shard, now)
    }

    #[cold]
    fn look_at_links(&self, stack: &Stack, now: Instant) {
        self.has_link_news.store(false, Ordering::SeqCst);
        for interface in stack.interface_ids() {
            // Another thread may have removed it meanwhile.
            let _ = stack.look_at_link(now, interface);
        }
        self.detach_gone(stack);
    }

    fn try_role(&self) -> Option<MutexGuard<'_, Role>> {
        match self.role.try_lock() {
            Ok(role) => Some(role),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Polls once if nobody else does: an application between two writes takes what has arrived.
    pub(crate) fn look_in(&self, stack: &Stack) {
        if let Some(_role) = self.try_role() {
            let now = clock::now();
            self.last_led.store(now.as_nanos(), Ordering::Relaxed);
            self.poll(stack, now);
        }
    }

    /// Waits until the condition is met or `deadline` passes; drives meanwhile if nobody else does.
    /// Returns whether it is met.
    pub(crate) fn wait(
        &self,
        stack: &Stack,
        deadline: Instant,
        condition: &mut dyn Condition,
    ) -> bool {
        loop {
            if condition.is_met() {
                return true;
            }
            let outcome = match self.try_role() {
                Some(role) => {
                    let is_met = self.lead(&role, stack, deadline, condition);
                    drop(role);
                    self.call_follower();
                    Some(is_met)
                }
                None => self.wait_for_leader(deadline, condition),
            };
            if let Some(is_met) = outcome {
                return is_met;
            }
        }
    }

    /// Polls and sleeps until the condition is met or the time is over. Returns whether it is met.
    fn lead(
        &self,
        role: &Role,
        stack: &Stack,
        deadline: Instant,
        condition: &mut dyn Condition,
    ) -> bool {
        let waker: Waker = self.call_leader.clone().into();
        let is_asleep = &self.call_leader.is_asleep;
        self.is_led.store(true, Ordering::SeqCst);
        self.send_worker_to_standby();
        let is_met = loop {
            let now = clock::now();
            let (next, why) = self.poll(stack, now);
            if condition.is_met() {
                break true;
            }
            if now >= deadline {
                break false;
            }
            if why == Why::MoreWork {
                continue;
            }
            is_asleep.store(true, Ordering::SeqCst);
            if condition.arm(&waker) {
                let seen = role.sleeper.sleep(next.min(deadline), now);
                self.note(seen);
                if seen.kick {
                    self.kick.clear();
                }
            }
            is_asleep.store(false, Ordering::SeqCst);
        };
        self.last_led.store(clock::now().as_nanos(), Ordering::SeqCst);
        self.is_led.store(false, Ordering::SeqCst);
        is_met
    }

    /// Waits for the leader to bring what this thread waits for, or to leave. `None`: look again.
    fn wait_for_leader(&self, deadline: Instant, condition: &mut dyn Condition) -> Option<bool> {
        let waker = THIS_THREAD.with(Waker::clone);
        self.follow(waker.clone());
        // The leader may have left before it could see this thread; then nobody would call it.
        let leader_left = !self.is_held();
        if !leader_left && condition.arm(&waker) {
            let now = clock::now();
            match deadline {
                Instant::FAR_FUTURE => std::thread::park(),
                _ => std::thread::park_timeout(deadline.since(now).into()),
            }
        }
        self.unfollow(&waker);
        (deadline != Instant::FAR_FUTURE && clock::now() >= deadline).then_some(false)
    }

    /// Makes `waker` that of a follower: it may be called when the leader leaves.
    pub(crate) fn follow(&self, waker: Waker) {
        lock(&self.followers).push(waker);
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends what [`follow`](Self::follow) began.
    pub(crate) fn unfollow(&self, waker: &Waker) {
        let mut followers = lock(&self.followers);
        if let Some(at) = followers.iter().position(|other| other.will_wake(waker)) {
            followers.swap_remove(at);
        }
        drop(followers);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Leads, for somebody who sleeps on a [`sleeper`](Self::sleeper) of his own; `None` if another
    /// leads.
    pub(crate) fn try_lead<'a>(&'a self, stack: &'a Stack) -> Option<LeaderGuard<'a>> {
        let role = self.try_role()?;
        self.is_led.store(true, Ordering::SeqCst);
        self.send_worker_to_standby();
        Some(LeaderGuard { driver: self, stack, role: Some(role) })
    }

    /// A set over the devices and the kick.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn sleeper(&self) -> io::Result<Sleeper> {
        Sleeper::new(&mut lock(&self.sets), &self.kick, Nanos::ZERO)
    }

    /// Takes the events of a [`sleeper`](Self::sleeper); whether there were any.
    pub(crate) fn drain(&self, sleeper: &Sleeper) -> bool {
        let seen = sleeper.wait(Some(&timespec(0)));
        self.note(seen);
        if seen.kick {
            self.kick.clear();
        }
        seen.any
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(self.role.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Somebody must drive on: calls one follower, or else leaves it to the worker.
    fn call_follower(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Some(follower) = lock(&self.followers).pop()
        {
            follower.wake();
        }
    }

    fn send_worker_to_standby(&self) {
        if self.worker_sleeps.swap(false, Ordering::SeqCst) {
            self.kick.set();
        }
    }

    /// The worker thread of this shard, until `is_over`.
    pub(crate) fn work(&self, stack: &Stack, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            let now = clock::now();
            if self.has_task.load(Ordering::SeqCst) && !self.is_task_late(now) {
                std::thread::park_timeout(TASK_STANDBY.into());
                continue;
            }
            if self.applications_drive(now) {
                std::thread::park_timeout(STANDBY.into());
                continue;
            }
            let Some(role) = self.try_role() else {
                std::thread::park_timeout(STANDBY.into());
                continue;
            };
            self.kick.clear();
            let (next, why) = self.poll(stack, now);
            drop(role);
            self.call_follower();
            if why == Why::MoreWork || is_over.load(Ordering::SeqCst) {
                continue;
            }
            if self.has_task.load(Ordering::SeqCst) {
                continue;
            }
            self.worker_sleeps.store(true, Ordering::SeqCst);
            // A leader that came in between has not seen the flag.
            if !self.is_led.load(Ordering::SeqCst) {
                self.note(self.worker.sleep(next, now));
            }
            self.worker_sleeps.store(false, Ordering::SeqCst);
        }
    }

    /// Whether something has waited for the task for too long: its runtime is busy, or stands
    /// still.
    fn is_task_late(&self, now: Instant) -> bool {
        let last = Instant::from_nanos(self.last_led.load(Ordering::SeqCst));
        let due = Instant::from_nanos(self.task_due.load(Ordering::SeqCst));
        let seen = self.worker.wait(Some(&timespec(0)));
        self.note(seen);
        let has_event = seen.event;
        now.since(last) >= TASK_STANDBY && (has_event || now.since(due) >= TASK_STANDBY)
    }

    fn applications_drive(&self, now: Instant) -> bool {
        let last = Instant::from_nanos(self.last_led.load(Ordering::SeqCst));
        self.is_led.load(Ordering::SeqCst) || now.since(last) < GRACE
    }
}

/// What the task of a runtime needs to drive.
#[cfg(feature = "tokio")]
impl Driver {
    pub(crate) fn has_task(&self) -> bool {
        self.has_task.load(Ordering::SeqCst)
    }

    /// A task drives from now on; false if one does already.
    pub(crate) fn begin_task(&self) -> bool {
        let is_first = !self.has_task.swap(true, Ordering::SeqCst);
        self.send_worker_to_standby();
        is_first
    }

    /// The task will come round by `due`, or when a descriptor is ready.
    pub(crate) fn expect_task(&self, due: Instant) {
        self.task_due.store(due.as_nanos(), Ordering::SeqCst);
    }

    /// The task is over: the worker drives.
    pub(crate) fn end_task(&self) {
        self.has_task.store(false, Ordering::SeqCst);
        self.kick.set();
    }
}

/// Makes a thread or task the leader of a shard until it is dropped; then a follower is called.
#[derive(Debug)]
pub(crate) struct LeaderGuard<'a> {
    driver: &'a Driver,
    stack: &'a Stack,
    role: Option<MutexGuard<'a, Role>>,
}

impl LeaderGuard<'_> {
    /// Polls the shard once.
    pub(crate) fn poll(&self, now: Instant) -> (Instant, Why) {
        self.driver.poll(self.stack, now)
    }
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        self.driver.last_led.store(clock::now().as_nanos(), Ordering::SeqCst);
        self.driver.is_led.store(false, Ordering::SeqCst);
        self.role = None;
        self.driver.call_follower();
    }
}

thread_local! {
    /// One per thread, so that a socket keeps one registration of it.
    static THIS_THREAD: Waker = Arc::new(Unpark(std::thread::current())).into();
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
