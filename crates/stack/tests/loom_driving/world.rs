//! A shard, and the threads around it: what they sleep on, and the loops of `neap` (`driver.rs`,
//! `poller.rs`, `tokio/drive.rs`) without descriptors.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, fence};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use neap_stack::driving::doorbell::Doorbell;
use neap_stack::driving::roles::{Next, Rest, Roles, TaskId, Ticket};
use neap_stack::driving::seat::Seat;
use neap_tcp::time::Instant;
use std::task::{Wake, Waker};

/// A flag that a thread sleeps for: an epoll set with edges, a timer, a parked thread.
#[derive(Default)]
pub(crate) struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
        *is_set = false;
    }
}

impl Wake for Signal {
    fn wake(self: std::sync::Arc<Self>) {
        self.set();
    }
}

/// What the worker sleeps on.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) state: Mutex<WorkerState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct WorkerState {
    /// A packet came, as the worker's set reports it.
    has_event: bool,
    /// The lease ended, as the worker's set reports it.
    pub(crate) has_lease_event: bool,
    /// The lease ended, as a read of the timer reports it.
    is_over: bool,
    /// The alarm is set, as the worker's set reports it: time does not matter, so it goes off.
    pub(crate) has_alarm: bool,
    /// Nothing else will happen.
    is_done: bool,
}

impl Worker {
    pub(crate) fn on_packet(&self) {
        self.state.lock().unwrap().has_event = true;
        self.changed.notify_all();
    }

    /// Time does not matter here: a lease may end at once.
    pub(crate) fn begin_lease(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_over = true;
        state.has_lease_event = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn stop_lease(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_over = false;
        state.has_lease_event = false;
    }

    pub(crate) fn wait(
        &self,
        is_woken: impl Fn(&WorkerState) -> bool,
    ) -> MutexGuard<'_, WorkerState> {
        let mut state = self.state.lock().unwrap();
        while !is_woken(&state) {
            state = self.changed.wait(state).unwrap();
        }
        state
    }

    pub(crate) fn await_lease(&self) {
        self.wait(|state| state.is_over).is_over = false;
    }

    /// Sets the alarm if the shard is to be polled at some time, which is read under the lock.
    pub(crate) fn move_alarm(&self, is_timed: impl FnOnce() -> bool) {
        let mut state = self.state.lock().unwrap();
        state.has_alarm = is_timed();
        drop(state);
        self.changed.notify_all();
    }

    /// Sets the alarm of a worker that expects no task, or stops it.
    pub(crate) fn set_alarm(&self, is_set: bool) {
        let mut state = self.state.lock().unwrap();
        state.has_alarm = is_set;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn end(&self) {
        self.state.lock().unwrap().is_done = true;
        self.changed.notify_all();
    }

    /// Whether a lease ended, and whether a packet came. If neither, the alarm went off. `None` if
    /// nothing happens any more.
    pub(crate) fn sleep(&self) -> Option<(bool, bool)> {
        let is_woken =
            |state: &WorkerState| state.has_event || state.has_lease_event || state.has_alarm;
        let mut state = self.wait(|state| is_woken(state) || state.is_done);
        is_woken(&state).then(|| Self::take(&mut state))
    }

    /// The same, of what has come since.
    pub(crate) fn take_events(&self) -> (bool, bool) {
        Self::take(&mut self.state.lock().unwrap())
    }

    pub(crate) fn take(state: &mut WorkerState) -> (bool, bool) {
        state.has_alarm = false;
        (std::mem::take(&mut state.has_lease_event), std::mem::take(&mut state.has_event))
    }
}

/// What a poller sleeps on. It is called when a leader left.
#[derive(Default)]
pub(crate) struct PollerSet {
    /// A packet came to the device, or the bell rang.
    event: Signal,
    is_asleep: AtomicBool,
    is_called: AtomicBool,
}

impl PollerSet {
    /// What was stored before is seen by a sleeper, or the sleeper is seen here. loom orders
    /// sequentially consistent accesses less than the language does, so there are fences.
    pub(crate) fn ring(&self) {
        fence(SeqCst);
        if self.is_asleep.load(SeqCst) {
            self.event.set();
        }
    }
}

impl Wake for PollerSet {
    fn wake(self: std::sync::Arc<Self>) {
        // An exchange: loom lets a later exchange miss a plain store.
        self.is_called.swap(true, SeqCst);
        self.ring();
    }
}

/// Who sleeps in a case, and what there is: what nobody sleeps on is left out, and with it the
/// interleavings of those who would set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Threads in blocking calls.
    Threads,
    /// The worker.
    Worker,
    /// A task that goes on.
    Task,
    /// One poller. There may be several.
    Poller,
    /// A timer of a socket.
    Timer,
    /// Threads that leave work.
    Work,
    /// Somebody who looks at figures, and has the seat meanwhile.
    Looker,
}

/// Pollers wait for the packets of the sockets from this number on.
pub(crate) const POLLED: usize = 3;

/// What the threads of a shard sleep on. As a waker it is the bell, which is in all of their sets.
#[derive(Default)]
pub(crate) struct Sleepers {
    leader: Option<Signal>,
    worker: Option<Worker>,
    /// What the runtime of the task sleeps on.
    task: Option<Signal>,
    pollers: Vec<std::sync::Arc<PollerSet>>,
}

impl Sleepers {
    /// A device or the bell ends the sleep of each.
    pub(crate) fn announce(&self) {
        self.leader.iter().for_each(Signal::set);
        self.worker.iter().for_each(Worker::on_packet);
        self.task.iter().for_each(Signal::set);
        self.pollers.iter().for_each(|poller| poller.event.set());
    }
}

impl Wake for Sleepers {
    fn wake(self: std::sync::Arc<Self>) {
        self.announce();
    }
}

/// Work that threads leave for the driver, and the bell by which they call it.
#[derive(Default)]
pub(crate) struct Errands {
    /// A bit for each socket that has work.
    left: AtomicUsize,
    bell: Doorbell,
    /// `None` where nobody looks at the state of the shard while another polls.
    seat: Option<Seat<()>>,
}

/// Whether events come often enough for the worker to trust the task, and how far the lease is from
/// its end when the task rests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// They come seldom.
    Never,
    /// The end is far enough: the task leaves the timer.
    Far,
    /// The end is near: the task sets the timer again.
    Near,
}

/// A shard with a device, and sockets that wait for packets by number.
pub(crate) struct World {
    pub(crate) roles: Roles,
    /// Packets in the device, each for the socket of that number.
    device: Mutex<Vec<usize>>,
    /// `None` where nobody leaves work.
    errands: Option<Errands>,
    /// Whether sockets have timers.
    is_timing: bool,
    /// A socket has a timer: the next poll takes it for a packet of socket 0.
    pub(crate) has_timer: AtomicBool,
    /// The last poll has left a timer.
    is_timed: AtomicBool,
    /// What the worker takes for often, and what a trusted task does with the lease.
    trust: Trust,
    sleepers: std::sync::Arc<Sleepers>,
    arrived: [AtomicUsize; POLLED + 2],
    parked: [std::sync::Arc<Signal>; POLLED],
}

impl World {
    pub(crate) fn new(parts: &[Part]) -> Arc<Self> {
        Self::with_trust(Trust::Never, parts)
    }

    /// A world in which a task that comes is trusted, or is not.
    pub(crate) fn with_trust(trust: Trust, parts: &[Part]) -> Arc<Self> {
        let has = |part| parts.contains(&part);
        let pollers = parts.iter().filter(|part| **part == Part::Poller);
        let sleepers = std::sync::Arc::new(Sleepers {
            leader: has(Part::Threads).then(Signal::default),
            worker: has(Part::Worker).then(Worker::default),
            task: has(Part::Task).then(Signal::default),
            pollers: pollers.map(|_| Default::default()).collect(),
        });
        let errands = (has(Part::Work) || has(Part::Looker)).then(|| {
            let seat = has(Part::Looker).then(|| Seat::new(()));
            let errands = Errands { seat, ..Errands::default() };
            errands.bell.set_waker(Some(sleepers.clone().into()));
            errands
        });
        Arc::new(Self {
            roles: Roles::default(),
            device: Mutex::default(),
            errands,
            is_timing: has(Part::Timer),
            has_timer: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            trust,
            sleepers,
            arrived: Default::default(),
            parked: Default::default(),
        })
    }

    /// The worker, of a world that has it.
    pub(crate) fn worker(&self) -> &Worker {
        self.sleepers.worker.as_ref().expect("a world with a worker")
    }

    /// Wakes the worker at the end of a lease that begins here.
    pub(crate) fn begin_lease(&self) {
        self.sleepers.worker.iter().for_each(Worker::begin_lease);
    }

    /// Whether a socket has a timer.
    pub(crate) fn has_timer(&self) -> bool {
        self.is_timing && self.has_timer.load(SeqCst)
    }

    fn is_timed(&self) -> bool {
        self.is_timing && self.is_timed.load(SeqCst)
    }

    pub(crate) fn errands(&self) -> &Errands {
        self.errands.as_ref().expect("a world with errands")
    }

    /// A thread leaves work for the driver: the socket is to have what it waits for.
    pub(crate) fn leave_work(&self, socket: usize) {
        self.errands().left.fetch_or(1 << socket, SeqCst);
        self.errands().bell.ring(Instant::ZERO);
    }

    pub(crate) fn packet(&self, socket: usize) {
        self.device.lock().unwrap().push(socket);
        self.sleepers.announce();
    }

    pub(crate) fn has(&self, socket: usize) -> bool {
        self.arrived[socket].load(SeqCst) > 0
    }

    /// A thread that does not drive looks at the driver's state, as one does that reads figures.
    pub(crate) fn look(&self) {
        let Errands { left, seat, bell } = self.errands();
        let taken = seat.as_ref().expect("a world with a seat").take();
        // What it reads. loom changes threads at operations only, so that nobody would find the
        // seat taken without one.
        left.load(SeqCst);
        if taken.leave() {
            bell.ring(Instant::ZERO);
        }
    }

    /// Polls the shard, as `Shard::poll` does. Whether work is left that nothing will announce.
    pub(crate) fn poll(&self) -> bool {
        let Some(errands) = &self.errands else {
            self.visit(0);
            return false;
        };
        errands.bell.answer();
        let Some(seat) = &errands.seat else { return self.poll_with(errands) };
        let Some(taken) = seat.try_take() else {
            // As `Why::Busy`, which knows of no timer.
            if self.is_timing {
                self.is_timed.swap(false, SeqCst);
            }
            return false;
        };
        let has_more = self.poll_with(errands);
        taken.leave() || has_more
    }

    /// The same, by the one thread that may.
    fn poll_with(&self, errands: &Errands) -> bool {
        errands.bell.attend();
        self.visit(errands.left.swap(0, SeqCst));
        errands.bell.clear_news();
        // An exchange: what a thread leaves later is then ordered after the news were cleared. loom
        // orders plain accesses less than the language does.
        let has_work = errands.left.fetch_or(0, SeqCst) != 0;
        errands.bell.leave(Instant::FAR_FUTURE) || has_work
    }

    /// Serves the sockets of these bits, those of the packets in the device, and the timer.
    pub(crate) fn visit(&self, work: usize) {
        let mut packets = std::mem::take(&mut *self.device.lock().unwrap());
        packets.extend((0..self.arrived.len()).filter(|socket| work & (1 << socket) != 0));
        if self.has_timer() {
            self.has_timer.swap(false, SeqCst);
            self.is_timed.swap(false, SeqCst);
            packets.push(0);
        }
        for socket in packets {
            self.arrived[socket].fetch_add(1, SeqCst);
            match socket.checked_sub(POLLED) {
                Some(poller) => self.sleepers.pollers[poller].ring(),
                None if self.sleepers.leader.is_some() => self.parked[socket].set(),
                None => {}
            }
            // The leader may wait for it on its own descriptors, and the runtime by a task's waker.
            self.sleepers.leader.iter().for_each(Signal::set);
            self.sleepers.task.iter().for_each(Signal::set);
        }
    }

    pub(crate) fn leave(&self) {
        if self.roles.leave() {
            self.begin_lease();
        }
    }

    /// A turn of the task, unless another thread leads. With `has_timer` a socket begins a timer in
    /// it. Whether the task led.
    pub(crate) fn take_turn(&self, task: TaskId, has_timer: bool) -> bool {
        if self.roles.come(task) {
            self.begin_lease();
        }
        if !self.roles.try_lead() {
            return false;
        }
        let has_more = self.poll();
        if has_timer {
            assert!(self.is_timing);
            self.has_timer.swap(true, SeqCst);
            self.is_timed.swap(true, SeqCst);
        }
        match has_more {
            true => self.leave(),
            false => self.rest(task),
        }
        true
    }

    /// The same; while another thread leads, the task follows and tries again.
    pub(crate) fn take_turn_at_last(&self, task: TaskId, has_timer: bool) {
        let called = std::sync::Arc::<Signal>::default();
        while !self.take_turn(task, has_timer) {
            let ticket = self.roles.follow(Waker::from(called.clone()));
            if self.roles.is_led() {
                called.wait();
            }
            self.unfollow(ticket, true);
        }
    }

    pub(crate) fn rest(&self, task: TaskId) {
        match self.roles.rest(task) {
            Rest::Leased => {}
            Rest::MoveLease if self.trust == Trust::Far => {}
            Rest::MoveLease | Rest::BeginLease | Rest::WakeWorker => self.begin_lease(),
            Rest::MoveAlarm => self.worker().move_alarm(|| self.is_timed()),
        }
    }

    /// The task of a runtime, which ends when the packet of another task of it has come.
    pub(crate) fn run_task(&self, task: TaskId, socket: usize) {
        let sleep = self.sleepers.task.as_ref().expect("a world with a task that goes on");
        while !self.has(socket) {
            if self.roles.come(task) {
                self.begin_lease();
            }
            let ticket = if self.roles.try_lead() {
                if self.poll() {
                    self.leave();
                    continue;
                }
                self.rest(task);
                None
            } else {
                // Who leaves rings the bell, which is in the set of the task.
                let ticket = self.roles.follow(Waker::from(self.sleepers.clone()));
                if !self.roles.is_led() {
                    self.unfollow(ticket, true);
                    continue;
                }
                Some(ticket)
            };
            if !self.has(socket) {
                sleep.wait();
            }
            if let Some(ticket) = ticket {
                self.unfollow(ticket, !self.has(socket));
            }
        }
        if self.roles.end_task(task) {
            self.begin_lease();
        }
    }

    /// A leader that is about to sleep for long ends the lease.
    pub(crate) fn end_lease(&self) {
        if self.roles.has_lease() {
            self.sleepers.worker.iter().for_each(Worker::stop_lease);
            self.roles.end_lease();
        }
    }

    pub(crate) fn unfollow(&self, ticket: Ticket, takes_up: bool) {
        if self.roles.unfollow(ticket) && !takes_up {
            self.roles.pass_on();
        }
    }

    /// A blocking call that waits for a packet.
    pub(crate) fn receive(&self, socket: usize) {
        self.receive_after(socket, |_| {});
    }

    /// The same; before each of its sleeps a leader does something.
    pub(crate) fn receive_after(&self, socket: usize, before_sleep: impl Fn(&Self)) {
        let leader = self.sleepers.leader.as_ref().expect("a world with threads");
        while !self.has(socket) {
            if self.roles.try_lead() {
                loop {
                    let has_more = self.poll();
                    if self.has(socket) {
                        break;
                    }
                    if !has_more {
                        before_sleep(self);
                        leader.wait();
                    }
                }
                self.leave();
                return;
            }
            let ticket = self.roles.follow(Waker::from(self.parked[socket].clone()));
            if self.roles.is_led() && !self.has(socket) {
                self.parked[socket].wait();
            }
            self.unfollow(ticket, !self.has(socket));
        }
    }

    /// A poller, until its socket has got its packet.
    pub(crate) fn poll_until(&self, number: usize) {
        self.poll_until_after(number, |_| {});
    }

    /// The same; before each of its sleeps a leader does something.
    pub(crate) fn poll_until_after(&self, number: usize, before_sleep: impl Fn(&Self)) {
        while !self.drive(number, &before_sleep) {}
    }

    /// A poller that leads if nobody else does, and follows the leader otherwise. Whether the
    /// packet has come; if not, it was called.
    pub(crate) fn drive(&self, number: usize, before_sleep: impl Fn(&Self)) -> bool {
        let poller = &self.sleepers.pollers[number];
        let leads = self.roles.try_lead();
        let mut ticket = None;
        let has_come = loop {
            let has_more = leads && self.poll();
            if self.has(POLLED + number) {
                break true;
            }
            if poller.is_called.swap(false, SeqCst) {
                break false;
            }
            if has_more {
                continue;
            }
            if !leads && ticket.is_none() {
                ticket = Some(self.roles.follow(Waker::from(poller.clone())));
                // Who led may have left before this thread followed.
                if !self.roles.is_led() {
                    break false;
                }
            }
            poller.is_asleep.store(true, SeqCst);
            fence(SeqCst);
            if !self.has(POLLED + number) && !poller.is_called.load(SeqCst) {
                if leads {
                    before_sleep(self);
                }
                poller.event.wait();
            }
            poller.is_asleep.store(false, SeqCst);
        };
        if let Some(ticket) = ticket {
            self.unfollow(ticket, !has_come);
        }
        if leads {
            self.leave();
        }
        has_come
    }

    /// Has the worker look once more if the socket has got its packet, which is all that the worker
    /// waits for.
    pub(crate) fn end_wait_if_served(&self, socket: usize) {
        if self.has(socket) {
            self.begin_lease();
        }
    }

    /// The worker, until the socket has got its packet.
    pub(crate) fn work_until(&self, socket: usize) {
        self.work_until_from(socket, Next::Drive);
    }

    /// The same, of a worker that does this next.
    pub(crate) fn work_until_from(&self, socket: usize, next: Next) {
        self.work_while(next, || !self.has(socket));
    }

    /// The worker, until it sleeps and nothing happens any more.
    pub(crate) fn work(&self) {
        self.work_while(Next::Drive, || true);
    }

    pub(crate) fn work_while(&self, mut next: Next, goes_on: impl Fn() -> bool) {
        // Its last poll has left a timer.
        let mut is_timed = false;
        // There was an event, and no lease has ended since.
        let mut comes_often = false;
        while goes_on() {
            next = match next {
                Next::Drive if self.roles.try_lead() => {
                    let has_more = self.poll();
                    is_timed = self.is_timed();
                    self.roles.step_back(has_more)
                }
                Next::Drive => Next::AwaitLease,
                Next::BeginLease => {
                    self.begin_lease();
                    Next::AwaitLease
                }
                Next::AwaitLease => {
                    self.worker().await_lease();
                    self.roles.after_lease(false, std::mem::take(&mut comes_often), || true)
                }
                Next::Sleep => {
                    let Some((has_lease_event, has_event)) = self.sleep(is_timed) else { return };
                    match (has_lease_event, has_event) {
                        (true, has_event) => {
                            let comes_often = std::mem::take(&mut comes_often);
                            self.roles.after_lease(has_event, comes_often, || true)
                        }
                        (false, true) => {
                            comes_often = self.trust != Trust::Never;
                            self.roles.after_event()
                        }
                        (false, false) => self.roles.after_alarm(|| {
                            self.is_timing && self.is_timed.fetch_or(false, SeqCst)
                        }),
                    }
                }
            };
        }
    }

    /// A sleep of the worker on its set, whose answer is that of [`Worker::sleep`].
    pub(crate) fn sleep(&self, is_timed: bool) -> Option<(bool, bool)> {
        if !self.roles.expects_task() {
            self.worker().set_alarm(is_timed);
            return self.worker().sleep();
        }
        self.worker().move_alarm(|| self.is_timed());
        let (has_lease_event, has_event) = self.worker().sleep()?;
        self.roles.count_comings();
        let later = self.worker().take_events();
        Some((has_lease_event || later.0, has_event || later.1))
    }
}
