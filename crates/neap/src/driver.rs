//! Sleeps and wake-ups of the threads that drive a shard.
//!
//! A thread in a blocking call leads and polls until its call can go on, so that in the bulk case
//! one thread does the application's copy, the protocol and the device: waking another thread costs
//! 50 microseconds, more than sending a super-frame. Who leads, who follows and when the worker
//! takes over is decided by [`Roles`]. This module adds the clock, the timers and the sleeps.
//!
//! Cost: a shard that nothing happens to wakes no thread. A leader that leaves sets a timer unless
//! one runs, so at most once per lease. Where leaders stay for longer than a lease, each stops the
//! timer before it sleeps, and sets it again when it leaves.

use crate::bell::Bell;
use crate::clock;
use crate::condition::Armed;
use crate::descriptors::Descriptors;
use crate::foresight::After;
use crate::lease::{Lease, Stays};
use crate::sleeper::{self, Seen, Sleeper, Sources, Vigil};
use crate::sync::lock;
use neap_stack::driving::roles::{Next, Rest, Roles, TaskId, Ticket};
use neap_stack::interface::InterfaceId;
use neap_stack::stack::{Stack, Why};
use neap_stack::wait::{Condition, WriteTally};
use neap_tcp::time::{Instant, Nanos};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::thread::Thread;

/// How long applications may be away before the worker comes to look, unless it is
/// [set](Driver::set_lease).
const LEASE: Nanos = Nanos::from_micros(250);
/// So many times as long may they be away while they come back each time.
const LEASE_GROWTH: u64 = 4;

/// The longest pause of an application's looks at what has arrived. A look lasts longer than its
/// work where the thread lost the processor meanwhile.
const LOOK_PAUSE: Nanos = Nanos::from_millis(2);
/// The same for the task of a runtime, which does not come as long as another task computes.
const TASK_LEASE: Nanos = Nanos::from_millis(5);
/// Events that follow each other within this time are served by a task that the worker trusts.
/// Such a task rests for this time at least before the worker looks, and for [`TRUSTED_LEASE`] at
/// most.
const TRUST: Nanos = Nanos::from_millis(20);
/// The lease of a task that the worker trusts. Its timer is set again at most once in `TASK_LEASE`.
const TRUSTED_LEASE: Nanos = Nanos(TRUST.0 + TASK_LEASE.0);

/// What a shard needs to sleep and to be woken.
#[derive(Debug)]
pub(crate) struct Driver {
    shard: usize,
    roles: Roles,
    /// Used by the leader alone, if it is a thread in a blocking call.
    leader: Sleeper,
    worker: Sleeper,
    lease: Lease,
    /// Length of the next lease, nanoseconds.
    lease_length: AtomicU64,
    /// The shortest, nanoseconds.
    least_lease: AtomicU64,
    /// How long leaders stay.
    stays: Stays,
    /// What applications have written to sockets of the shard.
    written: WriteTally,
    /// When an application may look in again, nanoseconds.
    next_look: AtomicU64,
    /// When the shard is to be polled next, nanoseconds; known while it has a task.
    due: AtomicU64,
    /// Held while the alarm of a worker beside a task is set: the time that is set last is to be
    /// that which was stored last.
    alarm_order: Mutex<()>,
    descriptors: Arc<Descriptors>,
    /// Those of this shard.
    sources: Arc<Mutex<Sources>>,
    /// It is held while a task begins.
    #[cfg(feature = "tokio")]
    runtimes: Mutex<Runtimes>,
    /// A device of this shard may have changed: its link is to be looked at.
    has_link_news: AtomicBool,
    /// The stack is being dropped.
    is_over: AtomicBool,
    /// Ends the sleep of whoever sleeps on the descriptors.
    bell: Arc<Bell>,
    call_leader: Arc<CallLeader>,
}

/// Wakes the leader of a shard: its socket may change while another thread owns it, or on another
/// shard. While the leader polls it looks anyway, and this costs one load.
#[derive(Debug)]
struct CallLeader {
    is_asleep: AtomicBool,
    bell: Arc<Bell>,
}

impl Wake for CallLeader {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

impl Driver {
    /// The driver of a shard, which becomes one of those of `descriptors`.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn new(
        shard: usize,
        vigil: Vigil,
        descriptors: &Arc<Descriptors>,
    ) -> io::Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let is_asleep = AtomicBool::new(false);
        let call_leader = Arc::new(CallLeader { is_asleep, bell: bell.clone() });
        let mut sources = Sources::new(bell.clone());
        let leader = Sleeper::new(&mut sources, vigil)?;
        let worker = Sleeper::new(&mut sources, vigil)?;
        let sources = Arc::new(Mutex::new(sources));
        descriptors.add_shard(sources.clone());
        Ok(Self {
            shard,
            roles: Roles::default(),
            leader,
            lease: Lease::new(worker.descriptor(), sleeper::LEASE_END)?,
            worker,
            lease_length: AtomicU64::new(LEASE.0),
            least_lease: AtomicU64::new(LEASE.0),
            stays: Stays::default(),
            written: WriteTally::default(),
            next_look: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            alarm_order: Mutex::new(()),
            descriptors: descriptors.clone(),
            sources,
            #[cfg(feature = "tokio")]
            runtimes: Mutex::default(),
            has_link_news: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            bell,
            call_leader,
        })
    }

    /// Sets how long applications may be away before the worker comes to look.
    pub(crate) fn set_lease(&self, lease: Nanos) {
        self.least_lease.store(lease.0, Ordering::Relaxed);
        self.lease_length.store(lease.0, Ordering::Relaxed);
    }

    /// What the stack wakes when work was left for this shard.
    pub(crate) fn waker(&self) -> Waker {
        self.bell.clone().into()
    }

    /// Ends the worker, a task, and the sleep of a leader: the stack is being dropped.
    pub(crate) fn end(&self) {
        // Before the lease ends: a leader that stops its timer meanwhile sees this, and ends the
        // lease again.
        self.is_over.store(true, Ordering::SeqCst);
        self.bell.ring();
        self.lease.end();
    }

    /// Whether the stack is being dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Whoever sleeps here is woken by this descriptor of a queue, too: when there is a packet, and
    /// if it `tells_room`, when frames are complete.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn attach_queue(
        &self,
        of: InterfaceId,
        queue: Arc<OwnedFd>,
        tells_room: bool,
    ) -> io::Result<()> {
        lock(&self.sources).add_queue(of, queue, tells_room)
    }

    /// Whoever sleeps here looks at the links when this descriptor is readable.
    ///
    /// # Errors
    /// The system refuses to wait for it.
    pub(crate) fn attach_monitor(&self, of: InterfaceId, bell: Arc<OwnedFd>) -> io::Result<()> {
        lock(&self.sources).add_monitor(of, bell)
    }

    /// What this shard sleeps on, for a thread that sleeps on a set of its own.
    pub(crate) fn sources(&self) -> MutexGuard<'_, Sources> {
        lock(&self.sources)
    }

    /// Which parts of a sleep whoever drives shall spend awake.
    pub(crate) fn vigil(&self) -> Vigil {
        self.leader.vigil()
    }

    /// Takes up what a sleep on the sources has seen.
    pub(crate) fn note(&self, seen: Seen) {
        if seen.links {
            self.note_links();
        }
    }

    /// The next poll looks at the links: a device may have changed.
    pub(crate) fn note_links(&self) {
        self.has_link_news.store(true, Ordering::SeqCst);
    }

    /// Polls the shard once; before that, looks at the links if there is reason to. `only_alarm`
    /// says that nothing but its alarm has ended the sleep of the thread since its last poll.
    fn poll(&self, stack: &Stack, now: Instant, only_alarm: bool) -> (Instant, Why) {
        if self.has_link_news.load(Ordering::Relaxed) {
            self.look_at_links(stack, now);
        }
        let (due, why) = match only_alarm {
            true => stack.poll_timers(self.shard, now),
            false => stack.poll(self.shard, now),
        };
        if self.roles.has_task() {
            self.due.store(due.as_nanos(), Ordering::SeqCst);
        }
        (due, why)
    }

    #[cold]
    fn look_at_links(&self, stack: &Stack, now: Instant) {
        self.has_link_news.store(false, Ordering::SeqCst);
        for interface in stack.interface_ids() {
            // Another thread may have removed it meanwhile.
            let _ = stack.look_at_link(now, interface);
        }
        // One shard hears of the device for all of its queues.
        self.descriptors.detach_gone(stack);
    }

    /// Leads, until what it returns is dropped; `None` if another thread leads.
    pub(crate) fn try_lead<'a>(&'a self, stack: &'a Stack) -> Option<Lead<'a>> {
        self.roles.try_lead().then(|| Lead {
            driver: self,
            stack,
            asleep_since: None,
            looked_at: Instant::ZERO,
            resting: None,
        })
    }

    /// Whether some thread leads.
    pub(crate) fn is_led(&self) -> bool {
        self.roles.is_led()
    }

    /// What applications have written to sockets of the shard.
    pub(crate) fn written(&self) -> &WriteTally {
        &self.written
    }

    /// Polls once if nobody else does: an application between two writes takes what has arrived.
    ///
    /// At most half of the application's time goes there, since a poll serves all sockets, and an
    /// application of many would have no time left to write.
    pub(crate) fn look_in(&self, stack: &Stack) {
        let now = clock::now();
        if now.as_nanos() < self.next_look.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut lead) = self.try_lead(stack) {
            lead.poll(now, false);
            let end = clock::now();
            let pause = end.since(now).min(LOOK_PAUSE);
            self.next_look.store((end + pause).as_nanos(), Ordering::Relaxed);
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
        let mut armed = Armed::new(condition);
        let is_met = self.lead_or_follow(stack, deadline, &mut armed);
        armed.disarm();
        // A wake-up that came at the last moment was perhaps for this thread alone.
        is_met || armed.is_met()
    }

    /// As [`wait`](Self::wait); the condition may stay armed.
    fn lead_or_follow(&self, stack: &Stack, deadline: Instant, armed: &mut Armed<'_>) -> bool {
        let mut was_called = false;
        loop {
            if armed.is_met() {
                if was_called {
                    self.roles.pass_on();
                }
                return true;
            }
            if let Some(lead) = self.try_lead(stack) {
                // One place for each thread: of two wake-ups it would heed one.
                armed.disarm();
                return lead.until(deadline, armed);
            }
            let waker = THIS_THREAD.with(Waker::clone);
            let follower = self.follow(waker.clone());
            // The leader may have left before it could see this thread.
            if self.is_led() && armed.arm(waker, false) {
                match deadline {
                    Instant::FAR_FUTURE => std::thread::park(),
                    _ => std::thread::park_timeout(deadline.since(clock::now()).into()),
                }
            }
            let is_met = armed.is_met();
            if is_met || (deadline != Instant::FAR_FUTURE && clock::now() >= deadline) {
                return is_met;
            }
            was_called = follower.end();
        }
    }

    /// Makes `waker` that of a follower: it may be called when the leader leaves. The caller then
    /// looks whether somebody still leads.
    pub(crate) fn follow(&self, waker: Waker) -> Follower<'_> {
        Follower { driver: self, ticket: Some(self.roles.follow(waker)) }
    }

    /// The worker thread of this shard, until the stack is dropped.
    pub(crate) fn work(&self, stack: &Stack) {
        let mut work = Work::default();
        while !self.is_over() {
            self.step(stack, &mut work);
        }
    }

    fn step(&self, stack: &Stack, work: &mut Work) {
        // It says nothing of the time between a wait for a lease and a poll.
        let only_alarm = core::mem::take(&mut work.only_alarm);
        work.next = match work.next {
            Next::Drive => self.drive(stack, only_alarm, &mut work.due),
            Next::Sleep => {
                let seen = self.sleep_on_devices(work.after, work.due);
                work.after = After::sleep(seen.only_alarm);
                // Beside a task others have polled since this thread has.
                work.only_alarm = seen.only_alarm && !self.roles.expects_task();
                match seen {
                    Seen { lease: true, .. } => self.after_lease(seen.source, work),
                    Seen { source: true, .. } => self.after_event(work),
                    _ => self.roles.after_alarm(|| clock::now() >= self.patience_ends()),
                }
            }
            Next::BeginLease => {
                self.begin_lease();
                Next::AwaitLease
            }
            Next::AwaitLease => {
                self.lease.wait();
                self.after_lease(false, work)
            }
        };
    }

    /// One poll by the worker; `due` becomes the time of the next.
    fn drive(&self, stack: &Stack, only_alarm: bool, due: &mut Instant) -> Next {
        if !self.roles.try_lead() {
            return Next::AwaitLease;
        }
        let guard = StepBack(&self.roles);
        let (next, why) = self.poll(stack, clock::now(), only_alarm);
        *due = next;
        core::mem::forget(guard);
        self.roles.step_back(why == Why::MoreWork)
    }

    fn sleep_on_devices(&self, after: After, due: Instant) -> Seen {
        let seen = if self.roles.expects_task() {
            self.move_alarm();
            let seen = self.worker.sleep_until_event();
            self.roles.count_comings();
            seen.and(self.worker.take_events())
        } else {
            self.worker.sleep(after, due, clock::now())
        };
        self.note(seen);
        seen
    }

    /// Sets the alarm of a worker beside a task. Its own timer wakes the task. This one looks
    /// whether it came: its runtime may stand still, or another thread may have polled.
    fn move_alarm(&self) {
        let _order = lock(&self.alarm_order);
        self.worker.wake_exactly_at(self.patience_ends());
    }

    /// When the task must have polled.
    fn patience_ends(&self) -> Instant {
        Instant::from_nanos(self.due.load(Ordering::SeqCst)) + TASK_LEASE
    }

    /// Decides what the worker does when a device or the bell has woken it.
    fn after_event(&self, work: &mut Work) -> Next {
        if self.roles.expects_task() {
            let now = clock::now();
            work.comes_often = now.since(work.event_at) < TRUST;
            work.event_at = now;
        }
        self.roles.after_event()
    }

    /// Decides what the worker does at the end of a lease, and how long the next one is.
    fn after_lease(&self, has_event: bool, work: &mut Work) -> Next {
        let comes_often = core::mem::take(&mut work.comes_often);
        let had_time = || clock::now().since(work.event_at) >= TASK_LEASE;
        let next = self.roles.after_lease(has_event, comes_often, had_time);
        let least = self.least_lease.load(Ordering::Relaxed);
        let length = match next {
            _ if self.roles.trusts_task() => TRUSTED_LEASE,
            _ if self.roles.expects_task() => TASK_LEASE,
            Next::Drive | Next::Sleep => Nanos(least),
            Next::AwaitLease | Next::BeginLease => {
                let doubled = self.lease_length.load(Ordering::Relaxed).saturating_mul(2);
                Nanos(doubled.clamp(least, least.saturating_mul(LEASE_GROWTH)))
            }
        };
        self.lease_length.store(length.0, Ordering::Relaxed);
        next
    }

    fn begin_lease(&self) {
        self.lease.begin(Nanos(self.lease_length.load(Ordering::Relaxed)));
    }

    /// A task that is trusted has rested, not before `since`: the lease ends some time after that.
    fn extend_lease(&self, since: Instant) {
        self.lease.extend(since, TRUST, TRUSTED_LEASE);
        // The end of the stack may have set the timer meanwhile.
        if self.is_over() {
            self.lease.end();
        }
    }

    /// The leader ends the lease that runs.
    fn end_lease(&self) {
        if self.roles.has_lease() {
            self.lease.stop();
            self.roles.end_lease();
            if self.is_over() {
                self.lease.end();
            }
        }
    }
}

#[cfg(test)]
mod tests;

/// What the worker does.
struct Work {
    next: Next,
    /// When the shard is to be polled next.
    due: Instant,
    /// Nothing but its alarm has ended its sleep since its last poll, nor has anybody else led.
    only_alarm: bool,
    /// What ended its last sleep.
    after: After,
    /// When there was an event beside a task last.
    event_at: Instant,
    /// There was another not long before that, and no lease has ended since.
    comes_often: bool,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            next: Next::Drive,
            due: Instant::FAR_FUTURE,
            only_alarm: false,
            after: After::Call,
            event_at: Instant::ZERO,
            comes_often: false,
        }
    }
}

/// Gives up the lead of a worker that panics: an application could never lead again.
struct StepBack<'a>(&'a Roles);

impl Drop for StepBack<'_> {
    fn drop(&mut self) {
        let _ = self.0.step_back(false);
    }
}

/// What the driver of a shard knows of tokio's runtimes.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    /// That of the task that began last.
    pub(crate) of_task: Option<tokio::runtime::Id>,
    /// The one that was found to have no I/O last.
    pub(crate) without_io: Option<tokio::runtime::Id>,
}

/// What the task of a runtime needs to drive.
#[cfg(feature = "tokio")]
impl Driver {
    /// Whether there is a task. It may be absent.
    pub(crate) fn has_task(&self) -> bool {
        self.roles.has_task()
    }

    /// What is known of runtimes. It is to be held while a task begins.
    pub(crate) fn runtimes(&self) -> MutexGuard<'_, Runtimes> {
        lock(&self.runtimes)
    }

    /// Whether a task drives, and comes when something happens.
    pub(crate) fn expects_task(&self) -> bool {
        self.roles.expects_task()
    }

    /// Whether this task drives. Otherwise another has taken its place.
    pub(crate) fn is_task(&self, task: TaskId) -> bool {
        self.roles.is_task(task)
    }

    /// A task drives from here on; `None` if one does already.
    pub(crate) fn begin_task(&self) -> Option<TaskId> {
        let task = self.roles.begin_task()?;
        self.expect_task();
        Some(task)
    }

    /// The task comes, before it tries to lead.
    pub(crate) fn come(&self, task: TaskId) {
        if self.roles.come(task) {
            self.expect_task();
        }
    }

    /// A task drives from here on. The worker may sleep with the alarm that it has without one.
    fn expect_task(&self) {
        self.lease_length.store(TASK_LEASE.0, Ordering::Relaxed);
        self.lease.end();
    }

    /// The task is over: the worker drives, unless another task does.
    pub(crate) fn end_task(&self, task: TaskId) {
        if self.roles.end_task(task) {
            self.lease.end();
        }
    }

    /// A set over the sources, for a runtime to sleep on.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub(crate) fn sleeper(&self) -> io::Result<Sleeper> {
        Sleeper::new(&mut lock(&self.sources), Vigil::NONE)
    }
}

/// The lead of a shard. It is left when this is dropped.
#[derive(Debug)]
pub(crate) struct Lead<'a> {
    driver: &'a Driver,
    stack: &'a Stack,
    /// When the leader first went to sleep.
    asleep_since: Option<Instant>,
    /// Time of the latest poll.
    looked_at: Instant,
    /// The leader is a task that comes back when something happens.
    resting: Option<TaskId>,
}

impl Lead<'_> {
    /// Polls the shard once. `only_alarm` says that nothing but its alarm has ended the sleep of
    /// the thread since its last poll.
    pub(crate) fn poll(&mut self, now: Instant, only_alarm: bool) -> (Instant, Why) {
        self.looked_at = now;
        self.driver.poll(self.stack, now, only_alarm)
    }

    /// The leader is about to sleep, since `now`. If leaders tend to stay for longer than a lease,
    /// the one that runs ends here, so that it does not wake the worker.
    pub(crate) fn falls_asleep(&mut self, now: Instant) {
        if self.asleep_since.is_none() {
            self.asleep_since = Some(now);
            if self.driver.stays.may_be_long() {
                self.driver.end_lease();
            }
        }
    }

    /// The task of a runtime is about to sleep until something happens: no work is left.
    #[cfg(feature = "tokio")]
    pub(crate) fn rests(mut self, task: TaskId) {
        self.resting = Some(task);
    }

    /// Polls and sleeps until the condition is met or the time is over. Returns whether it is met.
    fn until(mut self, deadline: Instant, armed: &mut Armed<'_>) -> bool {
        let is_met = self.poll_until(deadline, armed);
        // Before another thread leads: it would have the same waker.
        armed.disarm();
        is_met
    }

    fn poll_until(&mut self, deadline: Instant, armed: &mut Armed<'_>) -> bool {
        let driver = self.driver;
        let is_asleep = &driver.call_leader.is_asleep;
        let (mut only_alarm, mut after) = (false, After::Call);
        loop {
            let now = clock::now();
            let (next, why) = self.poll(now, core::mem::take(&mut only_alarm));
            if armed.is_met() {
                return true;
            }
            if now >= deadline {
                return false;
            }
            if why == Why::MoreWork {
                continue;
            }
            is_asleep.store(true, Ordering::SeqCst);
            if armed.arm(driver.call_leader.clone().into(), true) {
                self.falls_asleep(now);
                let seen = driver.leader.sleep(after, next.min(deadline), now);
                driver.note(seen);
                only_alarm = seen.only_alarm;
                after = After::sleep(only_alarm);
            }
            is_asleep.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let driver = self.driver;
        if let Some(since) = self.asleep_since {
            let lease = Nanos(driver.least_lease.load(Ordering::Relaxed));
            driver.stays.note(self.looked_at.since(since) >= lease);
        }
        let Some(task) = self.resting else {
            if driver.roles.leave() {
                driver.begin_lease();
            }
            return;
        };
        match driver.roles.rest(task) {
            Rest::Leased => {}
            Rest::MoveLease => driver.extend_lease(self.looked_at),
            Rest::BeginLease => driver.begin_lease(),
            Rest::MoveAlarm => driver.move_alarm(),
            Rest::WakeWorker => driver.lease.end(),
        }
    }
}

/// A place among the followers of a shard, until it is dropped.
#[derive(Debug)]
pub(crate) struct Follower<'a> {
    driver: &'a Driver,
    ticket: Option<Ticket>,
}

impl Follower<'_> {
    /// Ends it, by a thread that tries to lead next. Otherwise a call of the leader that left is
    /// passed on.
    pub(crate) fn take_up(self) {
        // Whether it was called makes no difference to a thread that tries to lead.
        let _ = self.end();
    }

    /// Ends it; whether it was called. Who was called leads next or passes the call on.
    #[must_use = "a call that is not passed on delays the other followers"]
    fn end(mut self) -> bool {
        self.ticket.take().is_some_and(|ticket| self.driver.roles.unfollow(ticket))
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.driver.roles.unfollow(ticket)
        {
            self.driver.roles.pass_on();
        }
    }
}

thread_local! {
    /// One per thread, so that a socket keeps one registration of it while the thread waits.
    static THIS_THREAD: Waker = Arc::new(Unpark(std::thread::current())).into();
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
