//! Interleavings of the threads that drive a shard: leaders, followers, the worker, pollers, a task
//! of a runtime, and who calls them, leaves work, or looks at figures. Each thread may be stopped
//! two or three times where it could go on. A packet that nobody would take, or a thread that
//! nobody would wake, is a deadlock here.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p neap-stack --release --test loom_driving`
#![cfg(loom)]

mod seat;
mod world;

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use neap_stack::driving::doorbell::Doorbell;
use neap_stack::driving::roles::{Next, TaskId};
use neap_tcp::time::Instant;
use world::Part::{Poller, Task, Threads, Timer, Work, Worker};
use world::{POLLED, Part, Signal, Trust, World};

pub(crate) fn bounded(model: impl Fn() + Sync + Send + 'static) {
    with_preemptions(3, model);
}

/// All interleavings in which threads are stopped at most so often where they could go on.
pub(crate) fn with_preemptions(most: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(most);
    builder.check(model);
}

pub(crate) fn spawn(
    world: &Arc<World>,
    run: impl FnOnce(&World) + 'static,
) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

/// A leader that leaves for good, at any time beside a packet: the worker takes it.
#[test]
fn the_worker_follows_a_leader_that_leaves() {
    bounded(|| {
        let world = World::new(&[Worker]);
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
        let world = World::new(&[Worker]);
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
        let world = World::new(&[Worker]);
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
        let world = World::new(&[Worker, Threads]);
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
        let world = World::new(&[Threads]);
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
        let world = World::new(&[Threads]);
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
        let world = World::new(&[Worker, Poller]);
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
        let world = World::new(&[Threads, Poller]);
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
        let world = World::new(&[Poller, Poller]);
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
        let world = World::new(&[Threads, Poller]);
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

/// A poller that ends the lease before it sleeps, beside a worker.
#[test]
fn a_poller_that_ends_leases_takes_turns_with_the_worker() {
    bounded(|| {
        let world = World::new(&[Worker, Poller]);
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| {
            world.packet(POLLED);
            world.packet(0);
        });
        if world.roles.try_lead() {
            world.leave();
        }
        world.poll_until_after(0, World::end_lease);
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// The worker and a thread that comes to wait: one of them takes the packet.
#[test]
fn the_worker_gives_way_to_a_thread_that_waits() {
    bounded(|| {
        let world = World::new(&[Worker, Threads]);
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
            let world = World::new(&[Worker]);
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
            let world = World::new(&[Worker]);
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
        let world = World::new(&[Worker]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        world.take_turn(task, false);
        world.end_wait_if_served(0);
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
            let world = World::new(&[Worker, Timer]);
            let task = world.roles.begin_task().unwrap();
            let worker = spawn(&world, |world| world.work_until(0));
            for turn in 1..=turns {
                world.take_turn(task, turn == turns);
            }
            if !world.has_timer() {
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
            let world = World::new(&[Worker]);
            let task = world.roles.begin_task().unwrap();
            let worker = spawn(&world, World::work);
            for _ in 0..packets {
                world.packet(0);
                world.take_turn(task, false);
            }
            world.worker().end();
            worker.join().unwrap();
            assert!(world.roles.expects_task());
        });
    }
}

/// The same, of one that comes for its timer, which the worker may find late.
#[test]
fn a_task_that_comes_for_its_timer_is_not_absent() {
    bounded(|| {
        let world = World::new(&[Worker, Timer]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, World::work);
        world.take_turn_at_last(task, true);
        world.take_turn_at_last(task, false);
        world.worker().end();
        worker.join().unwrap();
        assert!(world.roles.expects_task());
    });
}

/// A world whose task has not come for a packet of socket 1.
fn with_absent_task() -> (Arc<World>, TaskId) {
    let world = World::new(&[Worker, Timer]);
    let task = world.roles.begin_task().unwrap();
    assert_eq!(world.roles.after_event(), Next::BeginLease);
    assert_eq!(world.roles.after_lease(false, false, || true), Next::Drive);
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
        if !world.has_timer() {
            world.packet(0);
        }
        worker.join().unwrap();
    });
}

/// The same, of a task that the worker may take for absent while it comes.
#[test]
fn the_worker_serves_a_timer_of_a_task_that_is_late() {
    bounded(|| {
        let world = World::new(&[Worker, Timer]);
        let task = world.roles.begin_task().unwrap();
        world.packet(1);
        let worker = spawn(&world, |world| world.work_until(0));
        world.take_turn(task, true);
        if !world.has_timer() {
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
            world.begin_lease();
            world.take_turn(task, true);
        }
        if !world.has_timer() {
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
        let world = World::new(&[Worker, Timer]);
        let task = world.roles.begin_task().unwrap();
        assert!(world.roles.try_lead());
        assert_eq!(world.roles.step_back(false), Next::Sleep);
        world.take_turn(task, true);
        assert!(world.worker().state.lock().unwrap().has_alarm);
        world.take_turn(task, false);
        let state = world.worker().state.lock().unwrap();
        assert!(!state.has_alarm && !state.has_lease_event && !world.roles.has_lease());
    });
}

/// A world whose worker trusts the task, which has come once, and is about to wait for the lease.
/// The lease has not ended.
fn with_trusted_task(trust: Trust, parts: &[Part]) -> (Arc<World>, TaskId) {
    let world = World::with_trust(trust, parts);
    let task = world.roles.begin_task().unwrap();
    assert_eq!(world.roles.after_event(), Next::BeginLease);
    world.take_turn(task, false);
    assert_eq!(world.roles.after_lease(false, true, || true), Next::BeginLease);
    assert!(world.roles.trusts_task());
    world.begin_lease();
    (world, task)
}

/// The two ways of a task that is trusted and rests.
fn for_each_trust(model: impl Fn(Trust) + Sync + Send + Copy + 'static) {
    for trust in [Trust::Far, Trust::Near] {
        bounded(move || model(trust));
    }
}

/// A trusted task that comes once more and then comes no more: the worker takes the packet at the
/// end of the lease, which the task may move just when it ends.
#[test]
fn the_worker_drives_for_a_trusted_task_that_does_not_come() {
    for_each_trust(|trust| {
        let (world, task) = with_trusted_task(trust, &[Worker]);
        let worker = spawn(&world, |world| world.work_until_from(0, Next::AwaitLease));
        let device = spawn(&world, |world| world.packet(0));
        world.take_turn(task, false);
        world.end_wait_if_served(0);
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// The same, of a timer that the task begins in its last turn.
#[test]
fn the_worker_serves_a_timer_of_a_trusted_task_that_does_not_come() {
    for_each_trust(|trust| {
        let (world, task) = with_trusted_task(trust, &[Worker, Timer]);
        let worker = spawn(&world, |world| world.work_until_from(0, Next::AwaitLease));
        world.take_turn(task, true);
        if !world.has_timer() {
            world.packet(0);
        }
        worker.join().unwrap();
    });
}

/// A worker that comes to trust a task, or does not, at any time beside the packets and turns.
#[test]
fn the_worker_drives_for_a_task_that_it_may_trust() {
    for_each_trust(|trust| {
        let world = World::with_trust(trust, &[Worker]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        world.packet(1);
        world.take_turn(task, false);
        world.packet(0);
        worker.join().unwrap();
    });
}

/// A trusted task that ends.
#[test]
fn the_worker_drives_after_a_trusted_task() {
    for_each_trust(|trust| {
        let (world, task) = with_trusted_task(trust, &[Worker]);
        let worker = spawn(&world, |world| world.work_until_from(0, Next::AwaitLease));
        let device = spawn(&world, |world| world.packet(0));
        world.take_turn(task, false);
        assert!(world.roles.end_task(task));
        world.begin_lease();
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A thread that leads beside a task, ends the lease, and leaves for good. The task comes once,
/// before that thread or after.
#[test]
fn the_worker_drives_after_a_thread_that_led_beside_a_task() {
    bounded(|| {
        let world = World::new(&[Worker]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let leading = spawn(&world, |world| {
            if world.roles.try_lead() {
                world.end_lease();
                world.leave();
            }
            world.packet(0);
        });
        world.take_turn(task, false);
        leading.join().unwrap();
        world.end_wait_if_served(0);
        worker.join().unwrap();
    });
}

/// A thread that ends the lease and sleeps until its packet comes, beside the last turn of a task:
/// the worker is there for the next packet.
#[test]
fn the_worker_drives_after_a_thread_that_slept_beside_a_task() {
    with_preemptions(2, || {
        let world = World::new(&[Worker, Threads]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let sleeping = spawn(&world, |world| world.receive_after(1, World::end_lease));
        world.packet(1);
        world.take_turn(task, false);
        sleeping.join().unwrap();
        world.packet(0);
        worker.join().unwrap();
    });
}

/// A thread that leads beside a trusted task, ends the lease, and leaves for good.
#[test]
fn the_worker_drives_after_a_thread_that_led_beside_a_trusted_task() {
    for_each_trust(|trust| {
        let (world, task) = with_trusted_task(trust, &[Worker]);
        let worker = spawn(&world, |world| world.work_until_from(0, Next::AwaitLease));
        let leading = spawn(&world, |world| {
            if world.roles.try_lead() {
                world.end_lease();
                world.leave();
            }
            world.packet(0);
        });
        world.take_turn(task, false);
        leading.join().unwrap();
        world.end_wait_if_served(0);
        worker.join().unwrap();
    });
}

/// A trusted task that rests moves the lease, and is at rest when the lease ends without another
/// turn: the worker looks, and then sleeps on the devices.
#[test]
fn a_trusted_task_that_rests_is_watched_at_the_end_of_the_lease() {
    loom::model(|| {
        let (world, task) = with_trusted_task(Trust::Near, &[Worker]);
        world.worker().stop_lease();
        world.take_turn(task, false);
        assert!(world.worker().state.lock().unwrap().has_lease_event);
        assert_eq!(world.roles.after_lease(false, false, || true), Next::Drive);
        assert!(world.roles.try_lead() && world.roles.expects_task());
        assert_eq!(world.roles.step_back(false), Next::Sleep);
        assert!(!world.roles.trusts_task() && !world.roles.has_lease());
    });
}

/// A task that ends.
#[test]
fn the_worker_drives_after_a_task() {
    bounded(|| {
        let world = World::new(&[Worker]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        assert!(world.roles.end_task(task));
        world.begin_lease();
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A task and a thread in a blocking call on the same shard: whoever leads takes the packets of
/// both, and calls the other when it leaves.
#[test]
fn a_task_and_a_thread_take_turns() {
    with_preemptions(2, || {
        let world = World::new(&[Threads, Task]);
        let task = world.roles.begin_task().unwrap();
        let waiting = spawn(&world, |world| world.receive(0));
        let device = spawn(&world, |world| {
            world.packet(1);
            world.packet(0);
        });
        world.run_task(task, 1);
        waiting.join().unwrap();
        device.join().unwrap();
    });
}

/// The same, of a task and a poller.
#[test]
fn a_task_and_a_poller_take_turns() {
    with_preemptions(2, || {
        let world = World::new(&[Task, Poller]);
        let task = world.roles.begin_task().unwrap();
        let polling = spawn(&world, |world| world.poll_until(0));
        let device = spawn(&world, |world| {
            world.packet(1);
            world.packet(POLLED);
        });
        world.run_task(task, 1);
        polling.join().unwrap();
        device.join().unwrap();
    });
}

/// A task that takes one turn and does not come again, beside a poller: the poller needs no worker.
#[test]
fn a_poller_drives_for_a_task_that_does_not_come() {
    bounded(|| {
        let world = World::new(&[Poller, Timer]);
        let task = world.roles.begin_task().unwrap();
        let polling = spawn(&world, |world| world.poll_until(0));
        let device = spawn(&world, |world| world.packet(POLLED));
        world.take_turn_at_last(task, true);
        polling.join().unwrap();
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

/// Work that is left beside an application that leaves: the worker is called, or comes at the end
/// of the lease.
#[test]
fn the_worker_finds_work_that_is_left() {
    bounded(|| {
        let world = World::new(&[Worker, Work]);
        let worker = spawn(&world, |world| world.work_until(0));
        let ringer = spawn(&world, |world| {
            world.leave_work(1);
            world.leave_work(0);
        });
        if world.roles.try_lead() {
            world.poll();
            world.leave();
        }
        ringer.join().unwrap();
        worker.join().unwrap();
    });
}

/// Work that is left for a poller and for a thread in a blocking call: who leads does it.
#[test]
fn a_poller_finds_work_that_is_left() {
    bounded(|| {
        let world = World::new(&[Threads, Poller, Work]);
        let waiting = spawn(&world, |world| world.receive(0));
        let ringer = spawn(&world, |world| {
            world.leave_work(0);
            world.leave_work(POLLED);
        });
        world.poll_until(0);
        waiting.join().unwrap();
        ringer.join().unwrap();
    });
}

/// Work that is left for a poller beside a worker.
#[test]
fn a_poller_or_the_worker_finds_work_that_is_left() {
    bounded(|| {
        let world = World::new(&[Worker, Poller, Work]);
        let worker = spawn(&world, |world| world.work_until(POLLED));
        let ringer = spawn(&world, |world| world.leave_work(POLLED));
        world.poll_until_after(0, World::end_lease);
        worker.join().unwrap();
        ringer.join().unwrap();
    });
}

/// Work that is left for a task that goes on: it does it, or the worker.
#[test]
fn a_task_or_the_worker_finds_work_that_is_left() {
    with_preemptions(2, || {
        let world = World::new(&[Worker, Task, Work]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let ringer = spawn(&world, |world| world.leave_work(0));
        world.run_task(task, 0);
        worker.join().unwrap();
        ringer.join().unwrap();
    });
}

/// Work that is left beside the last turn of a task: the task does it, or the worker.
#[test]
fn work_that_is_left_beside_the_last_turn_of_a_task_is_found() {
    bounded(|| {
        let world = World::new(&[Worker, Work]);
        let task = world.roles.begin_task().unwrap();
        let worker = spawn(&world, |world| world.work_until(0));
        let ringer = spawn(&world, |world| world.leave_work(0));
        world.take_turn_at_last(task, false);
        world.end_wait_if_served(0);
        worker.join().unwrap();
        ringer.join().unwrap();
    });
}
