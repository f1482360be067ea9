//! Tests of the protocol between worker, leaders, followers and tasks, with its clock and sleeps.

use super::*;
use crate::condition::{Gained, IsReady};
use crate::holding::{Packets, holding};
use neap_stack::device::{Received, RxChecksum};
use neap_stack::socket::readiness::{Readiness, Ready, ReadyState};
use neap_stack::socket::udp::SendDatagram;
use neap_stack::stack::{StackConfig, UdpOptions};
use neap_stack::wait::Source;

#[test]
fn a_lease_grows_from_what_was_set_to_four_times_as_much() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let length = || Nanos(driver.lease_length.load(Ordering::Relaxed));
    assert_eq!(length(), LEASE);
    driver.set_lease(Nanos::from_millis(10));
    assert_eq!(length(), Nanos::from_millis(10));
    // A leader that comes back in time.
    for millis in [20, 40, 40] {
        assert!(driver.roles.try_lead());
        assert_eq!(driver.after_lease(false, &mut Work::default()), Next::AwaitLease);
        assert_eq!(length(), Nanos::from_millis(millis));
        let _ = driver.roles.leave();
    }
}

#[test]
fn a_leader_that_sleeps_for_long_each_time_leaves_no_lease_to_end_in_vain() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    // The times at which a stay's first sleep begins and its last poll is, microseconds.
    let stay = |from: u64, to: u64| {
        let at = |micros| Instant::from_nanos(micros * 1000);
        let mut lead = driver.try_lead(&stack).expect("nobody leads");
        lead.falls_asleep(at(from));
        let had_lease = driver.roles.has_lease();
        lead.poll(at(to), false);
        had_lease
    };
    // Answers that come at once: the lease of the first leaving runs on.
    assert!(!stay(0, 20));
    assert!(stay(30, 50) && stay(60, 80));
    // Departures: from the second on.
    assert!(stay(100, 10_100));
    assert!(!stay(10_120, 20_100) && !stay(20_120, 30_100));
    // Nobody leads: the lease runs.
    assert!(driver.roles.has_lease());
}

/// A socket that never becomes ready, and who waits for it.
#[derive(Default)]
struct Idle(Mutex<Vec<Waker>>);

impl Source for Idle {
    fn readiness(&self) -> ReadyState {
        Readiness::new().state()
    }
    fn register(&self, _seen: ReadyState, _interest: Ready, waker: &Waker) -> bool {
        let mut waiters = lock(&self.0);
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
        true
    }
    fn unregister(&self, waker: &Waker) {
        lock(&self.0).retain(|known| !known.will_wake(waker));
    }
    fn shard(&self) -> usize {
        0
    }
}

#[test]
fn a_follower_whose_time_is_over_leaves_no_waker_behind() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let idle = Idle::default();
    let lead = driver.try_lead(&stack).expect("nobody leads");
    for _ in 0..3 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let interest = Ready::READABLE;
                let deadline = clock::now() + Nanos::from_millis(1);
                let is_ready = &mut IsReady { source: &idle, interest };
                assert!(!driver.wait(&stack, deadline, is_ready));
                let seen = idle.readiness();
                let gained = &mut Gained { source: &idle, interest, seen };
                assert!(!driver.wait(&stack, deadline, gained));
            });
        });
        assert_eq!(lock(&idle.0).len(), 0);
    }
    drop(lead);
}

/// Counts how often a thread goes to sleep.
struct Counted<'a> {
    gained: Gained<'a>,
    arms: &'a AtomicU64,
}

impl Condition for Counted<'_> {
    fn is_met(&mut self) -> bool {
        self.gained.is_met()
    }
    fn arm(&mut self, waker: &Waker, drives: bool) -> bool {
        let is_armed = self.gained.arm(waker, drives);
        self.arms.fetch_add(u64::from(is_armed), Ordering::SeqCst);
        is_armed
    }
    fn disarm(&mut self, waker: &Waker) {
        self.gained.disarm(waker);
    }
}

#[test]
fn of_followers_that_wait_for_datagrams_each_sleeps_until_there_is_one_for_it() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let to = "127.0.0.1:53".parse().expect("an address");
    let socket = stack.bind_udp(to, UdpOptions::default()).expect("a free port");
    let mut lead = driver.try_lead(&stack).expect("nobody leads");
    let arms = AtomicU64::new(0);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (driver, stack, source, arms, tell) =
                (&driver, &stack, &socket, &arms, tell.clone());
            scope.spawn(move || {
                let (interest, seen) = (Ready::READABLE, source.readiness());
                let gained = Gained { source, interest, seen };
                let is_met = driver.wait(stack, Instant::FAR_FUTURE, &mut Counted { gained, arms });
                tell.send((is_met, source.recv_from().is_ok()))
            });
        }
        while arms.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
        for _ in 0..3 {
            let datagram = SendDatagram::new(bytes::Bytes::new(), Some(to));
            assert_eq!(socket.send_batch(clock::now(), [datagram]), (1, Ok(())));
            lead.poll(clock::now(), false);
            assert_eq!(told.recv(), Ok((true, true)));
        }
    });
    assert_eq!(arms.load(Ordering::SeqCst), 3, "nobody woke in vain");
}

/// A condition that is met at the third look. The leader leaves while it is armed.
struct MetLate<'a> {
    lead: Option<Lead<'a>>,
    looks: u32,
}

impl Condition for MetLate<'_> {
    fn is_met(&mut self) -> bool {
        self.looks += 1;
        self.looks == 3
    }
    fn arm(&mut self, _: &Waker, _: bool) -> bool {
        self.lead = None;
        false
    }
    fn disarm(&mut self, _: &Waker) {}
}

#[derive(Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_follower_that_was_called_and_need_not_lead_passes_the_call_on() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let condition = &mut MetLate { lead: driver.try_lead(&stack), looks: 0 };
    let other = Arc::<Called>::default();
    let _other = driver.follow(other.clone().into());
    assert!(driver.wait(&stack, Instant::FAR_FUTURE, condition));
    // The look before the lead, the one behind the sleep, and the one that ends the wait.
    assert_eq!(condition.looks, 3);
    assert!(other.0.load(Ordering::SeqCst));
}

#[test]
fn the_worker_receives_what_was_left_since_its_alarm_went_off() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let packets = Packets::default();
    let device = holding(&packets);
    stack.add_interface(clock::now(), device, &[]).expect("an interface");
    let mut work = Work::default();
    let rest = |work: &mut Work| {
        while work.next != Next::Sleep {
            driver.step(&stack, work);
        }
    };
    rest(&mut work);
    // The alarm goes off while another thread leads.
    work.due = clock::now() + Nanos::from_millis(1);
    let mut lead = driver.try_lead(&stack).expect("nobody leads");
    driver.step(&stack, &mut work);
    assert_eq!(work.next, Next::AwaitLease);
    // That thread leaves for good with the rest in the device.
    let data = bytes::Bytes::from_static(&[0; 65_535]);
    let packet = Received { data, gso_size: 0, checksum: RxChecksum::Unknown };
    lock(&packets).extend(std::iter::repeat_n(packet, 5));
    assert_eq!(lead.poll(clock::now(), false).1, Why::MoreWork);
    assert!(!lock(&packets).is_empty());
    drop(lead);
    rest(&mut work);
    assert_eq!(lock(&packets).len(), 0);
}

/// Has the worker of `driver` do all it does for an event. Returns how often it waited for a
/// lease.
fn leases_of_event(driver: &Driver, stack: &Stack, work: &mut Work) -> u32 {
    driver.bell.ring();
    let mut leases = 0;
    loop {
        driver.step(stack, work);
        match work.next {
            Next::Sleep => return leases,
            Next::AwaitLease => leases += 1,
            Next::BeginLease | Next::Drive => {}
        }
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_that_does_not_come_is_waited_for_once() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let mut work = Work::default();
    let leases = |work: &mut Work| leases_of_event(&driver, &stack, work);
    let task = driver.begin_task().expect("the first");
    assert_eq!((0..100).map(|_| leases(&mut work)).sum::<u32>(), 1);
    assert!(!driver.expects_task());
    // It comes, and then no more.
    driver.come(task);
    assert!(driver.expects_task());
    let mut lead = driver.try_lead(&stack).expect("nobody leads");
    lead.poll(clock::now(), false);
    lead.rests(task);
    assert_eq!((0..100).map(|_| leases(&mut work)).sum::<u32>(), 1);
}

/// Has the worker do what it does until it sleeps on the devices.
#[cfg(feature = "tokio")]
fn settle(driver: &Driver, stack: &Stack, work: &mut Work) {
    while work.next != Next::Sleep {
        driver.step(stack, work);
    }
}

/// A driver whose worker sleeps on the devices beside a task.
#[cfg(feature = "tokio")]
fn beside_a_task(stack: &Stack) -> (Driver, Work, TaskId) {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let mut work = Work::default();
    settle(&driver, stack, &mut work);
    let task = driver.begin_task().expect("the first");
    driver.step(stack, &mut work);
    settle(&driver, stack, &mut work);
    (driver, work, task)
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_that_comes_before_the_worker_looks_is_not_absent() {
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let (driver, mut work, task) = beside_a_task(&stack);
    // It has left when the worker looks, or it still leads.
    for still_leads in [false, true] {
        driver.bell.ring();
        driver.come(task);
        let mut lead = driver.try_lead(&stack).expect("nobody leads");
        lead.poll(clock::now(), false);
        if still_leads {
            driver.step(&stack, &mut work);
            assert_eq!(work.next, Next::AwaitLease);
        }
        lead.rests(task);
        if !still_leads {
            driver.step(&stack, &mut work);
        }
        settle(&driver, &stack, &mut work);
        assert!(driver.expects_task(), "still leads: {still_leads}");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_is_not_absent_before_a_whole_lease_is_over() {
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let (driver, mut work, _) = beside_a_task(&stack);
    driver.bell.ring();
    while work.next != Next::AwaitLease {
        driver.step(&stack, &mut work);
    }
    driver.lease.end();
    driver.step(&stack, &mut work);
    assert!(driver.expects_task());
}

#[cfg(feature = "tokio")]
#[test]
fn a_task_takes_the_place_of_one_that_does_not_come() {
    let driver = Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors");
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    let mut work = Work::default();
    let first = driver.begin_task().expect("the first");
    assert_eq!(driver.begin_task(), None);
    // At first the worker drives.
    assert_eq!((0..3).map(|_| leases_of_event(&driver, &stack, &mut work)).sum::<u32>(), 1);
    let second = driver.begin_task().expect("the first does not come");
    assert!(driver.expects_task() && !driver.is_task(first) && driver.is_task(second));
    // The end of the first says nothing about the second.
    driver.end_task(first);
    assert!(driver.expects_task());
    driver.end_task(second);
    assert!(!driver.expects_task());
}

#[test]
fn a_leader_that_stops_the_lease_leaves_the_end_of_the_stack_to_the_worker() {
    let driver = Arc::new(Driver::new(0, Vigil::NONE, &Arc::default()).expect("descriptors"));
    let stack = Stack::new(StackConfig::default()).expect("a stack");
    driver.stays.note(true);
    drop(driver.try_lead(&stack));
    assert!(driver.roles.has_lease());
    let mut lead = driver.try_lead(&stack).expect("nobody leads");
    driver.end();
    lead.falls_asleep(Instant::ZERO);
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = driver.clone();
    std::thread::spawn(move || {
        waiting.lease.wait();
        tell.send(())
    });
    assert_eq!(told.recv_timeout(std::time::Duration::from_secs(10)), Ok(()));
}

#[test]
fn what_is_written_to_many_streams_counts_together() {
    use std::io::Write;
    let builder = crate::Stack::builder().device(holding(&Packets::default()));
    let stack = builder.address("10.1.0.1/24").build().expect("a stack");
    let listener = crate::TcpListener::bind(&stack, "127.0.0.1:80").expect("a port");
    let next_look = || stack.engine().driver(0).next_look.load(Ordering::Relaxed);
    let (mut streams, mut written) = (Vec::new(), 0);
    while written < 64 << 10 {
        assert_eq!(next_look(), 0, "after {written} bytes");
        let stream = crate::TcpStream::connect(&stack, "127.0.0.1:80").expect("a connection");
        let accepted = listener.accept().expect("a connection");
        written += (&stream).write(&[0; 10_000]).expect("room");
        streams.push((stream, accepted));
    }
    assert!(next_look() > 0, "nobody has looked at what has arrived");
}
