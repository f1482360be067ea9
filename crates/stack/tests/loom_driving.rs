//! Interleavings of the threads that drive a shard: leaders, followers, the worker, pollers, a task
//! of a runtime, and who calls them. Each thread may be stopped three times where it could go on.
//! The loops are those of `neap` (`driver.rs`, `poller.rs`, `tokio/drive.rs`) without descriptors.
//! A packet that nobody would take, or a thread that nobody would wake, is a deadlock here.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p neap-stack --release --test loom_driving`
#![cfg(loom)]

use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst, fence};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;
use neap_stack::driving::doorbell::Doorbell;
use neap_stack::driving::roles::{Next, Rest, Roles, TaskId, Ticket};
use neap_stack::driving::seat::Seat;
use neap_tcp::time::Instant;
use std::task::{Wake, Waker};

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    with_preemptions(3, model);
}

/// All interleavings in which threads are stopped at most so often where they could go on.
fn with_preemptions(most: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(most);
    builder.check(model);
}

/// A flag that a thread sleeps for: an epoll set with edges, a timer, a parked thread.
#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
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
struct Worker {
    state: Mutex<WorkerState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkerState {
    /// A packet came, as the worker's set reports it.
    has_event: bool,
    /// The lease ended, as the worker's set reports it.
    has_lease_event: bool,
    /// The lease ended, as a read of the timer reports it.
    is_over: bool,
    /// The alarm is set, as the worker's set reports it: time does not matter, so it goes off.
    has_alarm: bool,
    /// Nothing else will happen.
    is_done: bool,
}

impl Worker {
    fn on_packet(&self) {
        self.state.lock().unwrap().has_event = true;
        self.changed.notify_all();
    }

    /// Time does not matter here: a lease may end at once.
    fn begin_lease(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_over = true;
        state.has_lease_event = true;
        drop(state);
        self.changed.notify_all();
    }

    fn stop_lease(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_over = false;
        state.has_lease_event = false;
    }

    fn wait(&self, is_woken: impl Fn(&WorkerState) -> bool) -> MutexGuard<'_, WorkerState> {
        let mut state = self.state.lock().unwrap();
        while !is_woken(&state) {
            state = self.changed.wait(state).unwrap();
        }
        state
    }

    fn await_lease(&self) {
        self.wait(|state| state.is_over).is_over = false;
    }

    /// Sets the alarm if the shard is to be polled at some time, which is read under the lock.
    fn move_alarm(&self, is_timed: &AtomicBool) {
        let mut state = self.state.lock().unwrap();
        state.has_alarm = is_timed.load(SeqCst);
        drop(state);
        self.changed.notify_all();
    }

    /// Sets the alarm of a worker that expects no task, or stops it.
    fn set_alarm(&self, is_set: bool) {
        let mut state = self.state.lock().unwrap();
        state.has_alarm = is_set;
        drop(state);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state.lock().unwrap().is_done = true;
        self.changed.notify_all();
    }

    /// Whether a lease ended, and whether a packet came. If neither, the alarm went off. `None` if
    /// nothing happens any more.
    fn sleep(&self) -> Option<(bool, bool)> {
        let is_woken =
            |state: &WorkerState| state.has_event || state.has_lease_event || state.has_alarm;
        let mut state = self.wait(|state| is_woken(state) || state.is_done);
        is_woken(&state).then(|| Self::take(&mut state))
    }

    /// The same, of what has come since.
    fn take_events(&self) -> (bool, bool) {
        Self::take(&mut self.state.lock().unwrap())
    }

    fn take(state: &mut WorkerState) -> (bool, bool) {
        state.has_alarm = false;
        (std::mem::take(&mut state.has_lease_event), std::mem::take(&mut state.has_event))
    }
}

/// What a poller sleeps on. It is called when a leader left.
#[derive(Default)]
struct PollerSet {
    /// A packet came to the device, or the bell rang.
    event: Signal,
    is_asleep: AtomicBool,
    is_called: AtomicBool,
}

impl PollerSet {
    /// What was stored before is seen by a sleeper, or the sleeper is seen here. loom orders
    /// sequentially consistent accesses less than the language does, so there are fences.
    fn ring(&self) {
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

/// Pollers wait for the packets of the sockets from this number on.
const POLLED: usize = 3;

/// A shard with a device, and sockets that wait for packets by number.
struct World {
    roles: Roles,
    /// Packets in the device, each for the socket of that number.
    device: Mutex<Vec<usize>>,
    /// A socket has a timer: the next poll takes it for a packet of socket 0.
    has_timer: AtomicBool,
    /// The last poll has left a timer.
    is_timed: AtomicBool,
    leader: Signal,
    worker: Worker,
    arrived: [AtomicUsize; POLLED + 2],
    parked: [std::sync::Arc<Signal>; POLLED],
    pollers: Vec<std::sync::Arc<PollerSet>>,
}

impl World {
    fn new() -> Arc<Self> {
        Self::with_pollers(0)
    }

    fn with_pollers(count: usize) -> Arc<Self> {
        Arc::new(Self {
            roles: Roles::default(),
            device: Mutex::default(),
            has_timer: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            leader: Signal::default(),
            worker: Worker::default(),
            arrived: Default::default(),
            parked: Default::default(),
            pollers: (0..count).map(|_| Default::default()).collect(),
        })
    }

    fn packet(&self, socket: usize) {
        self.device.lock().unwrap().push(socket);
        self.leader.set();
        self.worker.on_packet();
        self.pollers.iter().for_each(|poller| poller.event.set());
    }

    fn has(&self, socket: usize) -> bool {
        self.arrived[socket].load(SeqCst) > 0
    }

    fn poll(&self) {
        let mut packets = std::mem::take(&mut *self.device.lock().unwrap());
        if self.has_timer.load(SeqCst) {
            self.has_timer.swap(false, SeqCst);
            self.is_timed.swap(false, SeqCst);
            packets.push(0);
        }
        for socket in packets {
            self.arrived[socket].fetch_add(1, SeqCst);
            match socket.checked_sub(POLLED) {
                Some(poller) => self.pollers[poller].ring(),
                None => self.parked[socket].set(),
            }
            // The leader may wait for it on its own descriptors.
            self.leader.set();
        }
    }

    fn leave(&self) {
        if self.roles.leave() {
            self.worker.begin_lease();
        }
    }

    /// A turn of the task, unless another thread leads. With `has_timer` a socket begins a timer in
    /// it. Whether the task led.
    fn take_turn(&self, task: TaskId, has_timer: bool) -> bool {
        if self.roles.come(task) {
            self.worker.begin_lease();
        }
        if !self.roles.try_lead() {
            return false;
        }
        self.poll();
        if has_timer {
            self.has_timer.swap(true, SeqCst);
            self.is_timed.swap(true, SeqCst);
        }
        match self.roles.rest(task) {
            Rest::Leased => {}
            Rest::BeginLease | Rest::WakeWorker => self.worker.begin_lease(),
            Rest::MoveAlarm => self.worker.move_alarm(&self.is_timed),
        }
        true
    }

    /// The same; while another thread leads, the task follows and tries again.
    fn take_turn_at_last(&self, task: TaskId, has_timer: bool) {
        let called = std::sync::Arc::<Signal>::default();
        while !self.take_turn(task, has_timer) {
            let ticket = self.roles.follow(Waker::from(called.clone()));
            if self.roles.is_led() {
                called.wait();
            }
            self.unfollow(ticket, true);
        }
    }

    /// A leader that is about to sleep for long ends the lease.
    fn end_lease(&self) {
        if self.roles.has_lease() {
            self.worker.stop_lease();
            self.roles.end_lease();
        }
    }

    fn unfollow(&self, ticket: Ticket, takes_up: bool) {
        if self.roles.unfollow(ticket) && !takes_up {
            self.roles.pass_on();
        }
    }

    /// A blocking call that waits for a packet.
    fn receive(&self, socket: usize) {
        self.receive_after(socket, |_| {});
    }

    /// The same; before each of its sleeps a leader does something.
    fn receive_after(&self, socket: usize, before_sleep: impl Fn(&Self)) {
        while !self.has(socket) {
            if self.roles.try_lead() {
                loop {
                    self.poll();
                    if self.has(socket) {
                        break;
                    }
                    before_sleep(self);
                    self.leader.wait();
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
    fn poll_until(&self, number: usize) {
        while !self.drive(number) {}
    }

    /// A poller that leads if nobody else does, and follows the leader otherwise. Whether the
    /// packet has come; if not, it was called.
    fn drive(&self, number: usize) -> bool {
        let poller = &self.pollers[number];
        let leads = self.roles.try_lead();
        let mut ticket = None;
        let has_come = loop {
            if leads {
                self.poll();
            }
            if self.has(POLLED + number) {
                break true;
            }
            if poller.is_called.swap(false, SeqCst) {
                break false;
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

    /// The worker, until the socket has got its packet.
    fn work_until(&self, socket: usize) {
        self.work_while(|| !self.has(socket));
    }

    /// The worker, until it sleeps and nothing happens any more.
    fn work(&self) {
        self.work_while(|| true);
    }

    fn work_while(&self, goes_on: impl Fn() -> bool) {
        let mut next = Next::Drive;
        // Its last poll has left a timer.
        let mut is_timed = false;
        while goes_on() {
            next = match next {
                Next::Drive if self.roles.try_lead() => {
                    self.poll();
                    is_timed = self.is_timed.load(SeqCst);
                    self.roles.step_back(false)
                }
                Next::Drive => Next::AwaitLease,
                Next::BeginLease => {
                    self.worker.begin_lease();
                    Next::AwaitLease
                }
                Next::AwaitLease => {
                    self.worker.await_lease();
                    self.roles.after_lease(false, || true)
                }
                Next::Sleep => {
                    let Some((has_lease_event, has_event)) = self.sleep(is_timed) else { return };
                    match (has_lease_event, has_event) {
                        (true, has_event) => self.roles.after_lease(has_event, || true),
                        (false, true) => self.roles.after_event(),
                        (false, false) => {
                            self.roles.after_alarm(|| self.is_timed.fetch_or(false, SeqCst))
                        }
                    }
                }
            };
        }
    }

    /// A sleep of the worker on its set, whose answer is that of [`Worker::sleep`].
    fn sleep(&self, is_timed: bool) -> Option<(bool, bool)> {
        if !self.roles.expects_task() {
            self.worker.set_alarm(is_timed);
            return self.worker.sleep();
        }
        self.worker.move_alarm(&self.is_timed);
        let (has_lease_event, has_event) = self.worker.sleep()?;
        self.roles.count_comings();
        let later = self.worker.take_events();
        Some((has_lease_event || later.0, has_event || later.1))
    }
}

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

/// A leader that leaves for good, at any time beside a packet: the worker takes it.
#[test]
fn the_worker_follows_a_leader_that_leaves() {
    bounded(|| {
        let world = World::new();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        if world.roles.try_lead() {
            world.poll();
            world.leave();
        }
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A leader that leaves and comes back, and then leaves for good.
#[test]
fn the_worker_follows_a_leader_that_comes_back_once() {
    bounded(|| {
        let world = World::new();
        let worker = spawn(&world, |world| world.work_until(0));
        for _ in 0..2 {
            if world.roles.try_lead() {
                world.leave();
            }
        }
        world.packet(0);
        worker.join().unwrap();
    });
}

/// A leader that comes back and ends the lease, as it means to sleep, and then leaves for good. The
/// worker may be about to begin the lease meanwhile, as somebody has led since the last one began.
/// Three preemptions do not find a leader that stops the timer last.
#[test]
fn the_worker_follows_a_leader_that_has_ended_the_lease() {
    with_preemptions(4, || {
        let world = World::new();
        let worker = spawn(&world, |world| world.work_until(0));
        for _ in 0..3 {
            if world.roles.try_lead() {
                world.end_lease();
                world.leave();
            }
        }
        world.packet(0);
        worker.join().unwrap();
    });
}

/// A thread that ends the lease and sleeps until its packet comes, beside a worker.
#[test]
fn a_leader_that_ends_leases_takes_turns_with_the_worker() {
    bounded(|| {
        let world = World::new();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| {
            world.packet(1);
            world.packet(0);
        });
        if world.roles.try_lead() {
            world.leave();
        }
        world.receive_after(1, World::end_lease);
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// Two leaders: they never lead at once, and each gets its packet, without a worker.
#[test]
fn one_of_two_threads_leads() {
    bounded(|| {
        let world = World::new();
        let other = spawn(&world, |world| world.receive(0));
        let device = spawn(&world, |world| {
            world.packet(0);
            world.packet(1);
        });
        world.receive(1);
        other.join().unwrap();
        device.join().unwrap();
    });
}

/// A called follower whose own packet has come does not lead: it passes the call on.
#[test]
fn a_call_is_passed_on() {
    bounded(|| {
        let world = World::new();
        assert!(world.roles.try_lead());
        let other = spawn(&world, |world| world.receive(0));
        let ready = spawn(&world, |world| world.receive(1));
        world.packet(1);
        world.poll();
        world.leave();
        world.packet(0);
        other.join().unwrap();
        ready.join().unwrap();
    });
}

/// A poller and the worker: one of them takes the packet, and the poller learns of it.
#[test]
fn a_poller_and_the_worker_take_turns() {
    bounded(|| {
        let world = World::with_pollers(1);
        let worker = spawn(&world, |world| world.work_until(POLLED));
        let device = spawn(&world, |world| world.packet(POLLED));
        world.poll_until(0);
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A poller and a thread in a blocking call: whoever leads takes the packets of both, and calls the
/// other when it leaves.
#[test]
fn a_poller_and_a_thread_take_turns() {
    bounded(|| {
        let world = World::with_pollers(1);
        let thread = spawn(&world, |world| world.receive(0));
        let device = spawn(&world, |world| {
            world.packet(0);
            world.packet(POLLED);
        });
        world.poll_until(0);
        thread.join().unwrap();
        device.join().unwrap();
    });
}

/// Two pollers with sockets of one shard.
#[test]
fn two_pollers_take_turns() {
    bounded(|| {
        let world = World::with_pollers(2);
        let other = spawn(&world, |world| world.poll_until(0));
        let device = spawn(&world, |world| {
            world.packet(POLLED);
            world.packet(POLLED + 1);
        });
        world.poll_until(1);
        other.join().unwrap();
        device.join().unwrap();
    });
}

/// A called poller whose own packet has come does not lead: it passes the call on.
#[test]
fn a_poller_passes_a_call_on() {
    bounded(|| {
        let world = World::with_pollers(1);
        assert!(world.roles.try_lead());
        let other = spawn(&world, |world| world.receive(0));
        let ready = spawn(&world, |world| world.poll_until(0));
        world.packet(POLLED);
        world.poll();
        world.leave();
        world.packet(0);
        other.join().unwrap();
        ready.join().unwrap();
    });
}

/// The worker and a thread that comes to wait: one of them takes the packet.
#[test]
fn the_worker_gives_way_to_a_thread_that_waits() {
    bounded(|| {
        let world = World::new();
        let worker = spawn(&world, |world| world.work_until(0));
        let waiting = spawn(&world, |world| world.receive(0));
        world.packet(0);
        waiting.join().unwrap();
        worker.join().unwrap();
    });
}

/// A task that came once or twice and then comes no more: its runtime stands still. The worker
/// takes the packet.
#[test]
fn the_worker_drives_for_a_task_that_does_not_come() {
    for turns in [1, 2] {
        bounded(move || {
            let world = World::new();
            assert!(world.roles.begin_task().is_some());
            let worker = spawn(&world, |world| world.work_until(0));
            for _ in 0..turns {
                if world.roles.try_lead() {
                    world.poll();
                    world.leave();
                }
            }
            world.packet(0);
            worker.join().unwrap();
        });
    }
}

/// The same, of a task that had nothing left to do: the worker may sleep without a lease.
#[test]
fn the_worker_drives_for_a_task_that_rests_and_does_not_come() {
    for turns in [1, 2] {
        bounded(move || {
            let world = World::new();
            let task = world.roles.begin_task().unwrap();
            let worker = spawn(&world, |world| world.work_until(0));
            for _ in 0..turns {
                world.take_turn(task, false);
            }
            world.packet(0);
            worker.join().unwrap();
        });
    }
}

/// A packet at any time beside the last turn of a task: the task takes it, or the worker.
#[test]
fn a_packet_beside_the_last_turn_of_a_task_is_taken() {
    bounded(|| {
        let world = World::new();
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        world.take_turn(task, false);
        if world.has(0) {
            // The worker waits for nothing else here.
            world.worker.begin_lease();
        }
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A timer of a task that does not come, begun in its first turn or in its second: the alarm of the
/// worker is that of the last turn.
#[test]
fn the_worker_serves_a_timer_of_a_task_that_does_not_come() {
    for turns in [1, 2] {
        bounded(move || {
            let world = World::new();
            let task = world.roles.begin_task().unwrap();
            let worker = spawn(&world, |world| world.work_until(0));
            for turn in 1..=turns {
                world.take_turn(task, turn == turns);
            }
            if !world.has_timer.load(SeqCst) {
                // The worker led in the task's place, or has served the timer.
                world.packet(0);
            }
            worker.join().unwrap();
        });
    }
}

/// A task that takes its turn for each packet, before the worker looks or after: in the end it is
/// not absent.
#[test]
fn a_task_that_comes_for_each_packet_is_not_absent() {
    for packets in [1, 2] {
        bounded(move || {
            let world = World::new();
            let task = world.roles.begin_task().unwrap();
            let worker = spawn(&world, World::work);
            for _ in 0..packets {
                world.packet(0);
                world.take_turn(task, false);
            }
            world.worker.end();
            worker.join().unwrap();
            assert!(world.roles.expects_task());
        });
    }
}

/// The same, of one that comes for its timer, which the worker may find late.
#[test]
fn a_task_that_comes_for_its_timer_is_not_absent() {
    bounded(|| {
        let world = World::new();
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, World::work);
        world.take_turn_at_last(task, true);
        world.take_turn_at_last(task, false);
        world.worker.end();
        worker.join().unwrap();
        assert!(world.roles.expects_task());
    });
}

/// A world whose task has not come for a packet of socket 1.
fn with_absent_task() -> (Arc<World>, TaskId) {
    let world = World::new();
    let task = world.roles.begin_task().unwrap();
    assert_eq!(world.roles.after_event(), Next::BeginLease);
    assert_eq!(world.roles.after_lease(false, || true), Next::Drive);
    assert!(world.roles.has_task() && !world.roles.expects_task());
    (world, task)
}

/// A task that was absent comes once more, and begins a timer.
#[test]
fn the_worker_serves_a_timer_of_a_task_that_was_absent() {
    bounded(|| {
        let (world, task) = with_absent_task();
        let worker = spawn(&world, |world| world.work_until(0));
        world.take_turn(task, true);
        if !world.has_timer.load(SeqCst) {
            world.packet(0);
        }
        worker.join().unwrap();
    });
}

/// The same, of a task that the worker may take for absent while it comes.
#[test]
fn the_worker_serves_a_timer_of_a_task_that_is_late() {
    bounded(|| {
        let world = World::new();
        let task = world.roles.begin_task().unwrap();
        world.packet(1);
        let worker = spawn(&world, |world| world.work_until(0));
        world.take_turn(task, true);
        if !world.has_timer.load(SeqCst) {
            world.packet(0);
        }
        worker.join().unwrap();
    });
}

/// A task takes the place of one that was absent, which comes at the same time, and begins a timer.
#[test]
fn the_worker_serves_a_timer_of_a_task_that_took_a_place() {
    bounded(|| {
        let (world, absent) = with_absent_task();
        let worker = spawn(&world, |world| world.work_until(0));
        let other = spawn(&world, move |world| {
            if world.roles.is_task(absent) {
                world.take_turn(absent, false);
            }
        });
        if let Some(task) = world.roles.begin_task() {
            world.worker.begin_lease();
            world.take_turn(task, true);
        }
        if !world.has_timer.load(SeqCst) {
            world.packet(0);
        }
        worker.join().unwrap();
        other.join().unwrap();
    });
}

/// A task that serves its own timer and rests leaves a worker that sleeps where it is: it begins no
/// lease, and the alarm is set no more.
#[test]
fn a_timer_that_a_task_serves_does_not_wake_the_worker() {
    loom::model(|| {
        let world = World::new();
        let task = world.roles.begin_task().unwrap();
        assert!(world.roles.try_lead());
        assert_eq!(world.roles.step_back(false), Next::Sleep);
        world.take_turn(task, true);
        assert!(world.worker.state.lock().unwrap().has_alarm);
        world.take_turn(task, false);
        let state = world.worker.state.lock().unwrap();
        assert!(!state.has_alarm && !state.has_lease_event && !world.roles.has_lease());
    });
}

/// A task that ends.
#[test]
fn the_worker_drives_after_a_task() {
    bounded(|| {
        let world = World::new();
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        assert!(world.roles.end_task(task));
        world.worker.begin_lease();
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A task and a thread in a blocking call on the same shard.
#[test]
fn a_task_and_a_thread_take_turns() {
    bounded(|| {
        let world = World::new();
        assert!(world.roles.begin_task().is_some());
        let waiting = spawn(&world, |world| world.receive(0));
        let device = spawn(&world, |world| world.packet(0));
        let task = std::sync::Arc::new(Signal::default());
        if world.roles.try_lead() {
            world.poll();
            world.leave();
        } else {
            let ticket = world.roles.follow(Waker::from(task));
            world.unfollow(ticket, false);
        }
        waiting.join().unwrap();
        device.join().unwrap();
    });
}

/// Work that is left while the driver is at work, leaves, or sleeps: it comes, or is called.
#[test]
fn work_that_is_left_is_found() {
    bounded(|| {
        let bell = Arc::new(Doorbell::default());
        let called = std::sync::Arc::new(Signal::default());
        bell.set_waker(Some(called.clone().into()));
        let work = Arc::new(AtomicUsize::new(0));
        let ringers: Vec<_> = (0..2)
            .map(|_| {
                let (bell, work) = (bell.clone(), work.clone());
                thread::spawn(move || {
                    work.fetch_add(1, SeqCst);
                    bell.ring(Instant::ZERO);
                })
            })
            .collect();
        let mut done = 0;
        while done < 2 {
            bell.answer();
            bell.attend();
            bell.clear_news();
            done += work.swap(0, SeqCst);
            let has_news = bell.leave(Instant::FAR_FUTURE);
            if done < 2 && !has_news {
                called.wait();
            }
        }
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

/// A driver that is called while another thread looks at the figures of the shard, and so comes in
/// vain, is called again.
#[test]
fn a_driver_that_came_in_vain_is_called_again() {
    bounded(|| {
        let bell = Arc::new(Doorbell::default());
        let called = std::sync::Arc::new(Signal::default());
        bell.set_waker(Some(called.clone().into()));
        let seat = Arc::new(Seat::new(0));
        let work = Arc::new(AtomicUsize::new(0));
        let looker = {
            let (bell, seat) = (bell.clone(), seat.clone());
            thread::spawn(move || {
                if seat.take().leave() {
                    bell.ring(Instant::ZERO);
                }
            })
        };
        let ringer = {
            let (bell, work) = (bell.clone(), work.clone());
            thread::spawn(move || {
                work.fetch_add(1, SeqCst);
                bell.ring(Instant::ZERO);
            })
        };
        loop {
            bell.answer();
            if let Some(taken) = seat.try_take() {
                bell.attend();
                bell.clear_news();
                let is_done = work.swap(0, SeqCst) > 0;
                let mut has_news = bell.leave(Instant::FAR_FUTURE);
                has_news |= taken.leave();
                if is_done {
                    break;
                }
                if has_news {
                    continue;
                }
            }
            called.wait();
        }
        looker.join().unwrap();
        ringer.join().unwrap();
    });
}

/// A packet that wakes a thread while another is just leaving the seat: the other looks again.
#[test]
fn a_packet_is_not_left_behind_by_a_driver_that_leaves() {
    bounded(|| {
        let seat = Arc::new(Seat::new(0));
        let device = Arc::new(AtomicUsize::new(0));
        let poll = |seat: &Seat<usize>, device: &AtomicUsize| loop {
            let Some(mut taken) = seat.try_take() else { return };
            *taken += device.swap(0, SeqCst);
            if !taken.leave() {
                return;
            }
        };
        let other = {
            let (seat, device) = (seat.clone(), device.clone());
            thread::spawn(move || {
                device.fetch_add(1, SeqCst);
                poll(&seat, &device);
            })
        };
        device.fetch_add(1, SeqCst);
        poll(&seat, &device);
        other.join().unwrap();
        assert_eq!(*seat.take(), 2);
    });
}
