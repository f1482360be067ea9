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

use crate::clock;
use neap_stack::shard::Why;
use neap_stack::stack::Stack;
use neap_tcp::time::{Instant, Nanos};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Wake, Waker};
use std::thread::Thread;

/// How often the worker looks in while applications drive.
const STANDBY: Nanos = Nanos::from_micros(250);
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
    /// The worker sleeps on the descriptors, so a new leader must send it to standby.
    worker_sleeps: AtomicBool,
    worker: Sleeper,
    followers: Mutex<Vec<Thread>>,
    waiting: AtomicUsize,
    kick: Arc<Kick>,
    call_leader: Arc<CallLeader>,
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
        // A full counter is a set counter.
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

/// An epoll set over the devices' descriptors, the kick and a timer. A timeout of `epoll_wait` may be
/// late by the thread's timer slack (50 us); a timerfd is not.
#[derive(Debug)]
struct Sleeper {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// When the timer fires, nanoseconds. A time that moved later is left: setting costs more than a
    /// look that was too early.
    armed: AtomicU64,
    /// The last part of a sleep that is spent awake.
    spin: Nanos,
}

/// Token of the kick in a sleeper.
const KICK: u64 = u64::MAX;
/// Token of its timer.
const TIMER: u64 = u64::MAX - 1;

fn timespec(nanos: u64) -> Timespec {
    Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}

impl Sleeper {
    fn new(devices: &[Arc<OwnedFd>], kick: &Kick, spin: Nanos) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // An edge for each expiry: it need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, &timer, epoll::EventData::new_u64(TIMER), flags)?;
        let data = epoll::EventData::new_u64(KICK);
        epoll::add(&set, &kick.0, data, epoll::EventFlags::IN)?;
        for (index, device) in devices.iter().enumerate() {
            let data = epoll::EventData::new_u64(index as u64);
            // Completions are edges: a ring that is always writable must not keep us awake.
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            epoll::add(&set, device.as_fd(), data, flags)?;
        }
        Ok(Self { epoll: set, timer, armed: AtomicU64::new(u64::MAX), spin })
    }

    /// Sleeps until an event or `until`. Returns whether the kick was set.
    fn sleep(&self, until: Instant, now: Instant) -> bool {
        let mut seen = Seen::default();
        if until == Instant::FAR_FUTURE {
            seen = self.wait(None);
        } else if until.since(now) > self.spin {
            let at = until - self.spin;
            let timeout = self.arm(at, now).err().map(|_| timespec(at.since(now).0));
            seen = self.wait(timeout.as_ref());
        }
        if self.spin > Nanos::ZERO {
            // Only the timer ends a sleep early.
            while !seen.event && until.since(clock::now()) <= self.spin && clock::now() < until {
                seen = self.wait(Some(&timespec(0)));
                core::hint::spin_loop();
            }
        }
        seen.kick
    }

    /// Has the timer fire at `at` or earlier.
    fn arm(&self, at: Instant, now: Instant) -> rustix::io::Result<()> {
        let armed = Instant::from_nanos(self.armed.load(Ordering::Relaxed));
        if armed > now && armed <= at {
            return Ok(());
        }
        let it_value = timespec(at.as_nanos().max(1));
        let time = Itimerspec { it_interval: timespec(0), it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)?;
        self.armed.store(at.as_nanos(), Ordering::Relaxed);
        Ok(())
    }

    fn wait(&self, timeout: Option<&Timespec>) -> Seen {
        let mut events: [epoll::Event; 8] = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 8];
        let count = epoll::wait(&self.epoll, &mut events, timeout).unwrap_or(0);
        let tokens = || events[..count].iter().map(|event| event.data.u64());
        Seen {
            event: tokens().any(|token| token != TIMER),
            kick: tokens().any(|token| token == KICK),
        }
    }
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Something else than the timer.
    event: bool,
    kick: bool,
}

impl Driver {
    pub(crate) fn new(shard: usize, devices: &[Arc<OwnedFd>], spin: Nanos) -> io::Result<Self> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let kick = Arc::new(Kick(kick));
        let is_asleep = AtomicBool::new(false);
        let call_leader = Arc::new(CallLeader { is_asleep, kick: kick.clone() });
        Ok(Self {
            shard,
            role: Mutex::new(Role { sleeper: Sleeper::new(devices, &kick, spin)? }),
            is_led: AtomicBool::new(false),
            last_led: AtomicU64::new(0),
            worker_sleeps: AtomicBool::new(false),
            worker: Sleeper::new(devices, &kick, spin)?,
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

    fn try_lead(&self) -> Option<MutexGuard<'_, Role>> {
        match self.role.try_lock() {
            Ok(role) => Some(role),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Polls once if nobody else does: an application between two writes takes what has arrived.
    pub(crate) fn look_in(&self, stack: &Stack) {
        if let Some(_role) = self.try_lead() {
            let now = clock::now();
            self.last_led.store(now.as_nanos(), Ordering::Relaxed);
            stack.poll(self.shard, now);
        }
    }

    /// Waits until `is_ready` says so or `deadline` passes; drives meanwhile if nobody else does.
    /// `register` asks for a waker of this thread to be woken at the next change, or says that the
    /// change came already. Returns whether it is ready.
    pub(crate) fn wait(
        &self,
        stack: &Stack,
        deadline: Instant,
        mut is_ready: impl FnMut() -> bool,
        mut register: impl FnMut(&Waker) -> bool,
    ) -> bool {
        loop {
            if is_ready() {
                return true;
            }
            let outcome = match self.try_lead() {
                Some(role) => {
                    let outcome = self.lead(&role, stack, deadline, &mut is_ready, &mut register);
                    drop(role);
                    self.call_follower();
                    outcome
                }
                None => self.follow(deadline, &mut register),
            };
            if let Some(ready) = outcome {
                return ready;
            }
        }
    }

    /// Polls and sleeps until ready or late.
    fn lead(
        &self,
        role: &Role,
        stack: &Stack,
        deadline: Instant,
        is_ready: &mut impl FnMut() -> bool,
        register: &mut impl FnMut(&Waker) -> bool,
    ) -> Option<bool> {
        let waker: Waker = self.call_leader.clone().into();
        let is_asleep = &self.call_leader.is_asleep;
        self.is_led.store(true, Ordering::SeqCst);
        self.send_worker_to_standby();
        let outcome = loop {
            let now = clock::now();
            let (next, why) = stack.poll(self.shard, now);
            if is_ready() {
                break Some(true);
            }
            if now >= deadline {
                break Some(false);
            }
            if why == Why::MoreWork {
                continue;
            }
            is_asleep.store(true, Ordering::SeqCst);
            if register(&waker) && role.sleeper.sleep(next.min(deadline), now) {
                self.kick.clear();
            }
            is_asleep.store(false, Ordering::SeqCst);
        };
        self.last_led.store(clock::now().as_nanos(), Ordering::SeqCst);
        self.is_led.store(false, Ordering::SeqCst);
        outcome
    }

    /// Waits for the leader to bring what this thread waits for, or to leave. `None`: look again.
    fn follow(&self, deadline: Instant, register: &mut impl FnMut(&Waker) -> bool) -> Option<bool> {
        let me = std::thread::current();
        lock(&self.followers).push(me.clone());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waker: Waker = Arc::new(Unpark(me.clone())).into();
        // The leader may have left before it could see this thread; then nobody would call it.
        let leader_left = !self.is_held();
        if !leader_left && register(&waker) {
            let now = clock::now();
            match deadline {
                Instant::FAR_FUTURE => std::thread::park(),
                _ => std::thread::park_timeout(deadline.since(now).into()),
            }
        }
        let mut followers = lock(&self.followers);
        if let Some(at) = followers.iter().position(|other| other.id() == me.id()) {
            followers.swap_remove(at);
        }
        drop(followers);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        (deadline != Instant::FAR_FUTURE && clock::now() >= deadline).then_some(false)
    }

    fn is_held(&self) -> bool {
        matches!(self.role.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Somebody must drive on: calls one follower, or else leaves it to the worker.
    fn call_follower(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Some(follower) = lock(&self.followers).pop()
        {
            follower.unpark();
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
            if self.applications_drive(now) {
                std::thread::park_timeout(STANDBY.into());
                continue;
            }
            let Some(role) = self.try_lead() else {
                std::thread::park_timeout(STANDBY.into());
                continue;
            };
            self.kick.clear();
            let (next, why) = stack.poll(self.shard, now);
            drop(role);
            self.call_follower();
            if why == Why::MoreWork || is_over.load(Ordering::SeqCst) {
                continue;
            }
            self.worker_sleeps.store(true, Ordering::SeqCst);
            // A leader that came in between has not seen the flag.
            if !self.is_led.load(Ordering::SeqCst) {
                self.worker.sleep(next, now);
            }
            self.worker_sleeps.store(false, Ordering::SeqCst);
        }
    }

    fn applications_drive(&self, now: Instant) -> bool {
        let last = Instant::from_nanos(self.last_led.load(Ordering::SeqCst));
        self.is_led.load(Ordering::SeqCst) || now.since(last) < GRACE
    }
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
