//! Somebody looks at figures of the shard, and has its seat meanwhile: whoever drives may come in
//! vain, and is called again.

use crate::world::Part::{Looker, Poller, Task, Threads, Timer, Work, Worker};
use crate::world::{POLLED, World};
use crate::{bounded, spawn, with_preemptions};

/// A leader, which may have been woken by its packet and sleep again.
#[test]
fn a_leader_that_came_in_vain_is_called_again() {
    bounded(|| {
        let world = World::new(&[Threads, Looker]);
        let looker = spawn(&world, World::look);
        let device = spawn(&world, |world| world.packet(0));
        world.receive(0);
        looker.join().unwrap();
        device.join().unwrap();
    });
}

/// A leader and a follower.
#[test]
fn a_follower_waits_for_a_leader_that_came_in_vain() {
    with_preemptions(2, || {
        let world = World::new(&[Threads, Looker]);
        let looker = spawn(&world, World::look);
        let other = spawn(&world, |world| world.receive(1));
        let device = spawn(&world, |world| {
            world.packet(0);
            world.packet(1);
        });
        world.receive(0);
        looker.join().unwrap();
        other.join().unwrap();
        device.join().unwrap();
    });
}

/// A poller.
#[test]
fn a_poller_that_came_in_vain_is_called_again() {
    bounded(|| {
        let world = World::new(&[Poller, Looker]);
        let looker = spawn(&world, World::look);
        let device = spawn(&world, |world| world.packet(POLLED));
        world.poll_until(0);
        looker.join().unwrap();
        device.join().unwrap();
    });
}

/// The worker.
#[test]
fn the_worker_that_came_in_vain_is_called_again() {
    bounded(|| {
        let world = World::new(&[Worker, Looker]);
        let worker = spawn(&world, |world| world.work_until(0));
        let device = spawn(&world, |world| world.packet(0));
        world.look();
        worker.join().unwrap();
        device.join().unwrap();
    });
}

/// A task that goes on, and rests after a turn in vain.
#[test]
fn a_task_that_came_in_vain_is_called_again() {
    bounded(|| {
        let world = World::new(&[Task, Looker]);
        let task = world.roles.begin_task().unwrap();
        let looker = spawn(&world, World::look);
        let device = spawn(&world, |world| world.packet(0));
        world.run_task(task, 0);
        looker.join().unwrap();
        device.join().unwrap();
    });
}

/// A task whose last turn may be in vain, while a timer runs. It tells the worker of none then, and
/// the worker serves it nevertheless.
#[test]
fn the_worker_serves_a_timer_after_a_turn_in_vain() {
    with_preemptions(2, || {
        let world = World::new(&[Worker, Timer, Looker]);
        let task = world.roles.begin_task().unwrap();
        world.take_turn(task, true);
        let worker = spawn(&world, |world| world.work_until(0));
        let looker = spawn(&world, World::look);
        world.take_turn(task, false);
        world.end_wait_if_served(0);
        looker.join().unwrap();
        worker.join().unwrap();
    });
}

/// A leader that ends the lease before it sleeps, perhaps after a poll in vain, beside a worker
/// that waits for the end of that lease.
#[test]
fn a_leader_that_came_in_vain_and_ended_the_lease_is_called_again() {
    with_preemptions(2, || {
        let world = World::new(&[Worker, Threads, Looker]);
        let worker = spawn(&world, |world| world.work_until(0));
        let looker = spawn(&world, World::look);
        if world.roles.try_lead() {
            world.leave();
        }
        world.packet(1);
        world.receive_after(1, World::end_lease);
        world.packet(0);
        looker.join().unwrap();
        worker.join().unwrap();
    });
}

/// Work that is left for a driver that comes in vain.
#[test]
fn work_that_is_left_for_a_leader_that_came_in_vain_is_found() {
    bounded(|| {
        let world = World::new(&[Threads, Work, Looker]);
        let looker = spawn(&world, World::look);
        let ringer = spawn(&world, |world| world.leave_work(0));
        world.receive(0);
        looker.join().unwrap();
        ringer.join().unwrap();
    });
}

/// Two threads that poll without asking who leads, as the owner of a stack may, each after a
/// packet: the one that is just leaving the seat looks again for the other.
#[test]
fn a_packet_is_not_left_behind_by_a_thread_that_leaves_the_seat() {
    bounded(|| {
        let world = World::new(&[Looker]);
        let other = spawn(&world, |world| {
            world.packet(0);
            while world.poll() {}
        });
        world.packet(1);
        while world.poll() {}
        other.join().unwrap();
        assert!(world.has(0) && world.has(1));
    });
}
