//! Roles of the threads around one shard.
//!
//! *Leader*: the thread that polls. An application's thread leads while it waits in a blocking
//! call or in a poller, also while it sleeps on the devices, and a task of a runtime while it is
//! being run. *Follower*: a thread that waits while another leads. *Worker*: the shard's own
//! thread, which leads when no application does.
//!
//! A leader that leaves begins a *lease*: the time for which applications may be away before the
//! worker comes to look. So an application that comes back at once, as one does between two writes,
//! wakes no thread. The worker sleeps until the lease ends, and then
//!
//! - waits on without a lease if somebody leads again: that thread begins the next lease;
//! - waits for another lease if somebody has led meanwhile;
//! - leads itself otherwise, and then sleeps on the devices and on the end of a lease.
//!
//! What holds at any time: if nobody leads, then a lease runs, or the worker is awake or sleeps on
//! the devices. A leader asleep on its devices needs no lease and nobody beside it, so an idle
//! shard wakes no thread at all. A leader that is about to sleep for longer than the lease may end
//! it, so that the worker is not woken in vain.
//!
//! The task of a runtime *rests* where a thread would sleep: it leaves, and comes back when
//! something happens or when its timer ends. A worker that sleeps on the devices *watches* over it
//! by an alarm some time after that timer. A task that rests then moves that alarm, and begins no
//! lease. So a timer that the task serves in time does not wake the worker. A packet does: it ends
//! the sleep of the worker too, which then has a lease to see that the task has come.
//!
//! A task that comes often is *trusted* at the end of a lease in which it has come. The worker then
//! waits for a longer lease, and does not watch. The task that rests moves the end of that lease
//! away, so neither a packet nor a timer wakes the worker. The lease ends when the task has not
//! rested for long: the worker then looks as at the end of any lease.
//!
//! A task that did not come within a lease is *absent*: its runtime computes, or nobody runs it.
//! The worker then drives as if there were no task, so that a lease is waited for once, and not for
//! each packet. The task ends its absence when it comes again. A task of another runtime may take
//! the place of one that is absent, which then ends.
//!
//! An event wakes the task and the worker, and the task often comes first. So the worker looks
//! whether the task has come since the events before, and not since the worker woke. A task that
//! came for the events before only after the worker woke for them passes for one that has come,
//! once. The worker polls at the end of the lease in any case, so no packet waits for longer.
//!
//! A leader that leaves also calls one follower, so that it takes over at once. A follower that was
//! called and does not lead passes the call on. The lease covers both.
//!
//! Cost: leading and leaving take four atomic operations; a follower takes a lock and a place in a
//! list.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use crate::sync::{Mutex, lock};
use std::task::Waker;

/// No lease runs, or there is no task.
const NONE: u64 = u64::MAX;

/// Turns, or comings of the task, within one lease from which on a task counts as busy: it needs no
/// look at each event.
const BUSY: u64 = 8;

/// What the worker does next.
#[must_use = "a shard may be left without a driver"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Sleep until the lease ends, and then ask [`Roles::after_lease`]. There may be no lease yet:
    /// then it begins when the leader leaves.
    AwaitLease,
    /// Begin the lease, and then as [`Next::AwaitLease`].
    BeginLease,
    /// Sleep on the devices, the bell, an alarm and the end of a lease; beside a task,
    /// [count](Roles::count_comings) and then take the events that have come since. Then ask
    /// [`Roles::after_lease`] if a lease ended, [`Roles::after_event`] if a device or the bell woke
    /// the worker, and [`Roles::after_alarm`] otherwise.
    Sleep,
    /// Lead if nobody else does: [`Roles::try_lead`], poll, [`Roles::step_back`].
    Drive,
}

/// What the task does after it has come to [rest](Roles::rest).
#[must_use = "a shard may be left without a driver"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: a lease runs.
    Leased,
    /// Move the end of the lease that runs away, unless it is far enough.
    MoveLease,
    /// Begin the lease, by a timer that wakes the worker.
    BeginLease,
    /// Move the alarm of the worker, which sleeps on the devices, to some time after its own.
    MoveAlarm,
    /// Wake the worker, which sleeps on the devices, as if a lease had ended.
    WakeWorker,
}

/// Place of a follower in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// A task that drives, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u64);

#[derive(Debug, Default)]
struct Followers {
    issued: u64,
    waiting: Vec<(Ticket, Waker)>,
}

/// The roles of one shard.
#[derive(Debug)]
pub struct Roles {
    is_led: AtomicBool,
    /// The task of a runtime that leads whenever something happens.
    task: AtomicU64,
    /// The task that did not come when something happened. It says nothing about other tasks.
    absent: AtomicU64,
    /// Tasks so far.
    tasks: AtomicU64,
    /// Times that a task has come.
    comings: AtomicU64,
    /// `comings` as the worker has counted them last, and the time before that. Only the worker
    /// stores these and the four that follow.
    counted: AtomicU64,
    counted_before: AtomicU64,
    /// The task that was expected when something happened.
    awaited: AtomicU64,
    /// It has come for that if `comings` is more than this.
    awaited_beyond: AtomicU64,
    /// `comings` at the latest event or end of a lease.
    looked_at: AtomicU64,
    /// The task moves the end of the lease.
    is_trusting: AtomicBool,
    /// The worker sleeps on the devices, or is about to.
    is_watching: AtomicBool,
    /// Times that an application or a task has left.
    turns: AtomicU64,
    /// `turns` when the lease began.
    lease: AtomicU64,
    followers: Mutex<Followers>,
    /// Length of the list, to be read without its lock.
    waiting: AtomicUsize,
}

impl Default for Roles {
    fn default() -> Self {
        Self {
            is_led: AtomicBool::new(false),
            task: AtomicU64::new(NONE),
            absent: AtomicU64::new(NONE),
            tasks: AtomicU64::new(0),
            comings: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            counted_before: AtomicU64::new(0),
            awaited: AtomicU64::new(NONE),
            awaited_beyond: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            is_trusting: AtomicBool::new(false),
            is_watching: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            lease: AtomicU64::new(NONE),
            followers: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }
}

/// For applications.
impl Roles {
    /// Makes the calling thread the leader unless there is one. It ends with
    /// [`leave`](Self::leave), or with [`step_back`](Self::step_back) for the worker.
    #[must_use = "false means that another thread leads"]
    pub fn try_lead(&self) -> bool {
        self.is_led.compare_exchange(false, true, SeqCst, SeqCst).is_ok()
    }

    /// The leader leaves, and one follower is called. Returns whether the caller has to begin the
    /// lease, by a timer that wakes the worker.
    #[must_use = "the worker would not come"]
    pub fn leave(&self) -> bool {
        let turn = self.hand_over();
        self.begins_lease(turn)
    }

    /// Gives up the lead. Returns the number of this turn.
    fn hand_over(&self) -> u64 {
        let turn = self.turns.fetch_add(1, SeqCst) + 1;
        // Before the look at the lease and at the worker: a worker that ends its lease or its sleep
        // looks for a leader afterwards.
        self.is_led.swap(false, SeqCst);
        self.call_follower();
        turn
    }

    /// Returns whether a lease runs.
    pub fn has_lease(&self) -> bool {
        self.lease.load(SeqCst) != NONE
    }

    /// Ends the lease, so that the worker does not look. The leader calls this, and stops the timer
    /// *before*: the worker may begin a lease at the same time. In this order the worst is a timer
    /// without a lease, which costs a look. In the other order there could be a lease without a
    /// timer, which would never end. The next lease begins when the leader leaves.
    pub fn end_lease(&self) {
        self.lease.swap(NONE, SeqCst);
    }

    /// Returns whether some thread leads.
    pub fn is_led(&self) -> bool {
        self.is_led.load(SeqCst)
    }

    /// Makes `waker` that of a follower: it may be called when the leader leaves. The caller then
    /// looks whether a leader is still there, and leads if not.
    pub fn follow(&self, waker: Waker) -> Ticket {
        let mut followers = lock(&self.followers);
        followers.issued += 1;
        let ticket = Ticket(followers.issued);
        followers.waiting.push((ticket, waker));
        self.waiting.fetch_add(1, SeqCst);
        ticket
    }

    /// Ends what [`follow`](Self::follow) began. Returns whether the follower was called: then it
    /// leads, or else it [passes the call on](Self::pass_on).
    #[must_use = "a call that is not passed on delays the other followers"]
    pub fn unfollow(&self, ticket: Ticket) -> bool {
        let mut followers = lock(&self.followers);
        let at = followers.waiting.iter().position(|(other, _)| *other == ticket);
        if let Some(at) = at {
            followers.waiting.swap_remove(at);
            self.waiting.fetch_sub(1, SeqCst);
        }
        at.is_none()
    }

    /// Passes a call on, by a follower that was called and does not lead.
    pub fn pass_on(&self) {
        if !self.is_led() {
            self.call_follower();
        }
    }

    fn call_follower(&self) {
        if !self.has_followers() {
            return;
        }
        let mut followers = lock(&self.followers);
        let called = followers.waiting.pop();
        if called.is_some() {
            self.waiting.fetch_sub(1, SeqCst);
        }
        drop(followers);
        if let Some((_, waker)) = called {
            waker.wake();
        }
    }

    /// An exchange, so that either this sees a follower, or the follower sees what was done before.
    fn has_followers(&self) -> bool {
        self.waiting.fetch_add(0, SeqCst) > 0
    }

    /// Begins the lease unless one runs. An exchange in any case, so that the worker that ends the
    /// lease sees what was done before.
    fn begins_lease(&self, turn: u64) -> bool {
        self.lease.fetch_min(turn, SeqCst) == NONE
    }
}

/// For the task of a runtime, which leads and leaves as a thread does.
impl Roles {
    /// Returns whether there is a task, which may be absent.
    pub fn has_task(&self) -> bool {
        self.task.load(SeqCst) != NONE
    }

    /// Returns whether a task drives: there is one, and it is not absent.
    pub fn expects_task(&self) -> bool {
        self.expected_task().is_some()
    }

    fn expected_task(&self) -> Option<u64> {
        let task = self.task.load(SeqCst);
        (task != NONE && self.absent.load(SeqCst) != task).then_some(task)
    }

    /// Returns whether this is the task that drives. Otherwise another has taken its place.
    pub fn is_task(&self, task: TaskId) -> bool {
        self.task.load(SeqCst) == task.0
    }

    /// A task drives from here on, in place of one that is absent. The caller then wakes the worker
    /// as if a lease had ended. Returns `None` if a task drives already.
    #[must_use = "there is one task at most"]
    pub fn begin_task(&self) -> Option<TaskId> {
        let before = self.task.load(SeqCst);
        if before != NONE && self.absent.load(SeqCst) != before {
            return None;
        }
        let task = self.tasks.fetch_add(1, SeqCst);
        let begun = self.task.compare_exchange(before, task, SeqCst, SeqCst);
        begun.is_ok().then_some(TaskId(task))
    }

    /// The task comes, before it tries to lead. Returns whether it was absent: the caller then
    /// wakes the worker as if a lease had ended.
    #[must_use = "the worker would not watch over the task"]
    pub fn come(&self, task: TaskId) -> bool {
        self.comings.fetch_add(1, SeqCst);
        self.ends_absence(task)
    }

    /// An exchange in any case: either this sees that the worker takes the task for absent, or the
    /// worker sees what the task did before.
    fn ends_absence(&self, task: TaskId) -> bool {
        self.absent.compare_exchange(task.0, NONE, SeqCst, SeqCst).is_ok()
    }

    /// The task, which leads, leaves, and comes back when something happens or when its timer ends.
    /// It has stored the time of that timer where the worker finds it. With work left that nothing
    /// will announce it [leaves](Self::leave) as others do.
    pub fn rest(&self, task: TaskId) -> Rest {
        let turn = self.hand_over();
        // An exchange: either this sees that the worker watches, or the worker sees what was done
        // before when it ends its sleep or begins the next.
        let is_watched = self.is_watching.fetch_or(false, SeqCst);
        // The worker may have taken the task for absent since it came.
        let was_absent = self.ends_absence(task);
        if is_watched {
            // Then the worker sets an alarm of its own.
            let sets_own = was_absent || !self.expects_task();
            return if sets_own { Rest::WakeWorker } else { Rest::MoveAlarm };
        }
        if !self.trusts_task() {
            return if self.begins_lease(turn) { Rest::BeginLease } else { Rest::Leased };
        }
        // An exchange, as one that begins a lease. A worker that ends the lease just now either
        // sees this turn, or leaves the next lease to be begun here.
        match self.lease.swap(turn, SeqCst) {
            NONE => Rest::BeginLease,
            _ => Rest::MoveLease,
        }
    }

    /// Returns whether the lease that the worker waits for is one whose end the task moves.
    pub fn trusts_task(&self) -> bool {
        self.is_trusting.load(SeqCst)
    }

    /// The task has ended. Returns whether it drove until now: the caller then wakes the worker as
    /// if a lease had ended.
    #[must_use = "the worker would not drive"]
    pub fn end_task(&self, task: TaskId) -> bool {
        self.task.compare_exchange(task.0, NONE, SeqCst, SeqCst).is_ok()
    }
}

/// For the worker.
impl Roles {
    /// The worker was woken from a sleep beside a task, and is about to take the events that came
    /// since. What happens after that is seen in a later sleep, and a coming of the task for it is
    /// not counted here.
    pub fn count_comings(&self) {
        let before = self.counted.swap(self.comings.load(SeqCst), SeqCst);
        self.counted_before.swap(before, SeqCst);
    }

    /// The lease has ended, or the worker was woken as if it had. `has_event` says that something
    /// else has woken the worker, too. `had_time` says whether a whole lease is over since the last
    /// [event](Self::after_event): a lease may end early. `comes_often` says that there was an
    /// event not long before that one, and that this is the first question since: if the task has
    /// come, the worker [trusts](Self::trusts_task) it.
    pub fn after_lease(
        &self,
        has_event: bool,
        comes_often: bool,
        had_time: impl FnOnce() -> bool,
    ) -> Next {
        self.end_watch();
        let has_trusted = self.is_trusting.swap(false, SeqCst);
        let comings = self.comings.fetch_add(0, SeqCst);
        let looked_at = self.looked_at.swap(comings, SeqCst);
        let began = self.lease.swap(NONE, SeqCst);
        if self.is_led() {
            return Next::AwaitLease;
        }
        let awaited = self.awaited.load(SeqCst);
        let beyond = self.awaited_beyond.load(SeqCst);
        let is_missing = || self.comings.fetch_add(0, SeqCst) <= beyond;
        let mut has_come = self.expected_task() == Some(awaited);
        if has_come && is_missing() {
            has_come = false;
            if had_time() {
                self.miss_task(awaited, is_missing);
            }
        }
        let turn = self.turns.load(SeqCst);
        let has_rested = began == NONE || turn <= began;
        let is_busy = self.expects_task() && comings - looked_at >= BUSY;
        let earns_trust = is_busy || (comes_often && has_come);
        if earns_trust && began != NONE && !(has_trusted && has_rested) {
            return self.trust(turn);
        }
        if has_rested {
            return Next::Drive;
        }
        if self.expects_task() && turn - began < BUSY && !has_event {
            // It comes when something happens; so would the worker, to see that it does.
            return self.watch();
        }
        self.renew(turn)
    }

    /// The worker slept on the devices, and one of them or the bell woke it.
    pub fn after_event(&self) -> Next {
        self.end_watch();
        let lease = self.lease.load(SeqCst);
        let is_led = self.is_led();
        let expected = self.expected_task();
        let expects_task = expected.is_some();
        self.looked_at.swap(self.comings.load(SeqCst), SeqCst);
        if let Some(task) = expected {
            self.awaited.swap(task, SeqCst);
            self.awaited_beyond.swap(self.counted_before.load(SeqCst), SeqCst);
        }
        if is_led || lease != NONE {
            if lease != NONE && expects_task {
                // What the task did earlier in this lease says nothing about the event, nor does
                // the end of the turn that it has now. A lease that a leader has ended meanwhile
                // stays ended.
                let turn = self.turns.load(SeqCst) + u64::from(is_led);
                let _ = self.lease.compare_exchange(lease, turn, SeqCst, SeqCst);
            }
            return Next::AwaitLease;
        }
        if expects_task {
            // The task is woken too. Whether it comes is seen when the lease ends.
            return self.renew(self.turns.load(SeqCst));
        }
        Next::Drive
    }

    /// The worker slept on the devices, and nothing but its alarm woke it, or nothing at all.
    /// `is_late` says whether the shard is still to be polled for the time of that alarm: the task
    /// has not come in time. It is asked beside a task alone.
    pub fn after_alarm(&self, is_late: impl Fn() -> bool) -> Next {
        self.end_watch();
        if self.is_led() || self.has_lease() {
            return Next::AwaitLease;
        }
        if let Some(task) = self.expected_task() {
            if !is_late() {
                return self.watch();
            }
            self.miss_task(task, is_late);
        }
        Next::Drive
    }

    /// A task did not come for what happened, unless it turns out to have come meanwhile.
    fn miss_task(&self, task: u64, is_missing: impl Fn() -> bool) {
        self.absent.swap(task, SeqCst);
        if !is_missing() {
            self.ends_absence(TaskId(task));
        }
    }

    /// The worker leaves the lead: to a follower if there is one. `has_more` says that work is left
    /// which nothing will announce.
    pub fn step_back(&self, has_more: bool) -> Next {
        self.is_led.swap(false, SeqCst);
        if self.has_followers() {
            self.call_follower();
            return self.renew(self.turns.load(SeqCst));
        }
        if has_more { Next::Drive } else { self.watch() }
    }

    /// From here on a task that rests moves the alarm. The worker looks at the time of its alarm
    /// afterwards.
    fn watch(&self) -> Next {
        self.is_watching.swap(true, SeqCst);
        Next::Sleep
    }

    /// Before a look at who leads: a task that rests later begins a lease.
    fn end_watch(&self) {
        self.is_watching.swap(false, SeqCst);
    }

    /// The worker waits for a lease whose end the task moves when it rests.
    fn trust(&self, turn: u64) -> Next {
        self.is_trusting.swap(true, SeqCst);
        self.renew(turn)
    }

    fn renew(&self, turn: u64) -> Next {
        if self.begins_lease(turn) { Next::BeginLease } else { Next::AwaitLease }
    }
}
