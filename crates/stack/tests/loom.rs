//! Interleavings of owners, posters and drainers: every one of the hand-off, and those of a port
//! with up to three preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p neap-stack --release --test loom`
#![cfg(loom)]

use loom::model::Builder;
use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};
use loom::thread;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, LinkMonitor, LinkState, LinkStatus, Medium,
    QueuePair, Received, RxQueue, TxQueue,
};
use neap_stack::event::StackEvent;
use neap_stack::frame::{Frame, Headers};
use neap_stack::hand_off::{HandOff, Posted, Released, Settle};
use neap_stack::port::Port;
use neap_stack::qdisc::fifo::PfifoFast;
use neap_stack::qdisc::{QdiscStats, Verdict};
use neap_stack::stack::{Stack, StackConfig};
use neap_tcp::segment::Payload;
use neap_tcp::time::Instant;
use neap_tcp::transmit::small_queue::{TxAccount, TxCredit};
use std::task::{Wake, Waker};

#[derive(Default)]
struct Count(usize);

impl Settle for Count {
    type Debt = usize;
    type Cx<'a> = ();
    fn is_settled(debt: &usize) -> bool {
        *debt == 0
    }
    fn settle(&mut self, debt: usize, (): &mut ()) {
        self.0 += debt;
    }
}

fn own_and_add(lock: &HandOff<Count>) {
    let mut owner = lock.own();
    owner.0 += 10;
    assert_eq!(owner.release(&mut ()), Released::Settled);
}

/// Work posted while an application owns the state is never lost, and the state is never owned
/// twice.
#[test]
fn posted_work_is_done_by_someone() {
    loom::model(|| {
        let lock = Arc::new(HandOff::new(Count::default()));
        let worker = {
            let lock = lock.clone();
            thread::spawn(move || lock.post(|debt| *debt += 1, &mut ()))
        };
        let app = {
            let lock = lock.clone();
            thread::spawn(move || own_and_add(&lock))
        };
        assert_ne!(lock.post(|debt| *debt += 1, &mut ()), Posted::DebtLeft);
        assert_ne!(worker.join().unwrap(), Posted::DebtLeft);
        app.join().unwrap();
        assert_eq!(lock.own().0, 12);
    });
}

/// Two owners and a poster: the hand-over loses no wake-up.
#[test]
fn a_waiting_owner_gets_in() {
    loom::model(|| {
        let lock = Arc::new(HandOff::new(Count::default()));
        let apps: Vec<_> = (0..2)
            .map(|_| {
                let lock = lock.clone();
                thread::spawn(move || own_and_add(&lock))
            })
            .collect();
        let _ = lock.post(|debt| *debt += 1, &mut ());
        apps.into_iter().for_each(|app| app.join().unwrap());
        assert_eq!(lock.own().0, 21);
    });
}

/// `post_only` tells the truth: `true` is settled by the owner, `false` by whoever comes next.
#[test]
fn a_debt_without_visit_is_settled_by_the_owner_or_the_next_visitor() {
    loom::model(|| {
        let lock = Arc::new(HandOff::new(Count::default()));
        let app = {
            let lock = lock.clone();
            thread::spawn(move || own_and_add(&lock))
        };
        let left_to_owner = lock.post_only(|debt| *debt += 1);
        if !left_to_owner {
            let _ = lock.post(|_| {}, &mut ());
        }
        app.join().unwrap();
        assert_eq!(lock.own().0, 11);
    });
}

/// `try_own` beside a waiting `own`: nobody is left asleep.
#[test]
fn a_visitor_that_does_not_wait_leaves_nobody_asleep() {
    loom::model(|| {
        let lock = Arc::new(HandOff::new(Count::default()));
        let app = {
            let lock = lock.clone();
            thread::spawn(move || own_and_add(&lock))
        };
        if let Some(mut owner) = lock.try_own() {
            owner.0 += 1;
            drop(owner);
        }
        app.join().unwrap();
        assert!(lock.own().0 >= 10);
    });
}

struct Ring {
    slots: usize,
    held: Vec<Frame>,
    taken: Arc<loom::sync::Mutex<Vec<u64>>>,
}

impl TxQueue for Ring {
    fn submit(&mut self, frame: Frame, _: Instant) -> Result<(), Frame> {
        if self.held.len() == self.slots {
            return Err(frame);
        }
        self.taken.lock().unwrap().push(frame.flow);
        self.held.push(frame);
        Ok(())
    }
    fn flush(&mut self, _: Instant) {}
    fn reap(&mut self, _: Instant) -> Completed {
        let bytes = self.held.iter().map(|frame| frame.len() as u64).sum();
        Completed { frames: self.held.drain(..).count() as u32, bytes }
    }
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

#[derive(Default)]
struct Kicks(AtomicUsize);

impl Wake for Kicks {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct World {
    port: Port,
    taken: Arc<loom::sync::Mutex<Vec<u64>>>,
    kicks: std::sync::Arc<Kicks>,
    account: std::sync::Arc<TxAccount>,
}

fn capabilities(completion: Completion) -> Capabilities {
    Capabilities {
        medium: Medium::Ip,
        mtu: 1500,
        gso_max_size: 65536,
        gso_max_segs: 64,
        gso_udp: false,
        checksum_tx: true,
        checksum_rx: true,
        completion,
        pacing_shift: 10,
    }
}

fn world(slots: usize, completion: Completion) -> Arc<World> {
    let kicks = std::sync::Arc::new(Kicks::default());
    let taken = Arc::new(loom::sync::Mutex::new(Vec::new()));
    let ring = Ring { slots, held: Vec::new(), taken: taken.clone() };
    let qdisc = Box::<PfifoFast>::default();
    let waker = kicks.clone().into();
    let port = Port::new(Box::new(ring), capabilities(completion), qdisc, waker, Instant::ZERO);
    Arc::new(World { port, taken, kicks, account: TxAccount::new(Waker::noop().clone()) })
}

fn send(world: &World, flow: u64) {
    let frame = Frame {
        flow,
        credit: Some(TxCredit::charge(&world.account, 1)),
        ..Frame::new(Headers::default(), Payload::new())
    };
    assert_eq!(world.port.enqueue(frame, Instant::ZERO), Verdict::Queued);
}

fn bounded(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// No frame is stranded between a drainer that stops and an enqueuer that found it running, and
/// frames of one thread keep their order.
#[test]
fn port_strands_no_frame() {
    bounded(|| {
        let world = world(10, Completion::OnSubmit);
        let sender = {
            let world = world.clone();
            thread::spawn(move || {
                send(&world, 1);
                send(&world, 2);
            })
        };
        send(&world, 10);
        sender.join().unwrap();
        let taken = world.taken.lock().unwrap().clone();
        assert_eq!(taken.len(), 3);
        assert!(taken.iter().filter(|&&flow| flow < 10).eq(&[1, 2]), "{taken:?}");
        assert_eq!(world.port.stats(Instant::ZERO).qdisc.backlog_packets, 0);
    });
}

/// Enqueuers beside a driver that reaps a ring of one slot: once the driver has run for each frame,
/// all have left; and whenever frames are left behind a full ring, the driver was told.
#[test]
fn a_full_ring_beside_the_driver_strands_no_frame() {
    bounded(|| {
        let world = world(1, Completion::OnWire);
        let sender = {
            let world = world.clone();
            thread::spawn(move || send(&world, 1))
        };
        send(&world, 2);
        world.port.run(Instant::ZERO);
        sender.join().unwrap();
        let waits = world.port.waits_for_device();
        let QdiscStats { backlog_packets, .. } = world.port.stats(Instant::ZERO).qdisc;
        assert!(backlog_packets == 0 || waits, "the driver would sleep");
        for _ in 0..3 {
            world.port.run(Instant::ZERO);
        }
        assert_eq!(world.taken.lock().unwrap().len(), 2);
        assert_eq!((world.account.bytes(), world.account.device_bytes()), (0, 0));
        assert!(!world.port.waits_for_device());
    });
}

/// A driver that went to sleep on what the port said is kicked when that becomes untrue.
#[test]
fn a_sleeping_driver_is_kicked() {
    bounded(|| {
        let world = world(1, Completion::OnWire);
        let driver = {
            let world = world.clone();
            thread::spawn(move || {
                let kicks = world.kicks.0.load(SeqCst);
                world.port.run(Instant::ZERO);
                (kicks, world.port.waits_for_device())
            })
        };
        send(&world, 1);
        let (kicks, waits) = driver.join().unwrap();
        let told = waits || world.kicks.0.load(SeqCst) > kicks;
        assert!(told || !world.port.waits_for_device(), "the driver sleeps for ever");
    });
}

/// A device without packets.
struct Silent;

impl RxQueue for Silent {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        None
    }
}

/// Tells whether the flag is set.
struct Link(Arc<AtomicBool>);

impl LinkMonitor for Link {
    fn look(&mut self) -> LinkStatus {
        let state = if self.0.load(SeqCst) { LinkState::Up } else { LinkState::Down };
        LinkStatus::new(state)
    }
}

/// Two drivers look at a link that comes up again: what the later look has found holds.
#[test]
fn an_old_look_at_a_link_does_not_undo_a_later_one() {
    bounded(|| {
        let has_link = Arc::new(AtomicBool::new(true));
        let ring = Ring { slots: 1, held: Vec::new(), taken: Arc::default() };
        let queue =
            QueuePair { tx: Box::new(ring), rx: Box::new(Silent), bulk: None, descriptor: None };
        let device = Device {
            name: "link".to_owned(),
            capabilities: capabilities(Completion::OnSubmit),
            queues: vec![queue],
            steering: None,
            monitor: Some(Box::new(Link(has_link.clone()))),
        };
        let stack = Stack::new(StackConfig::default()).unwrap();
        let id = stack.add_interface(Instant::ZERO, device, &[]).unwrap();
        let stack = Arc::new(stack);
        let events = stack.subscribe();
        has_link.store(false, SeqCst);
        let other = {
            let stack = stack.clone();
            thread::spawn(move || stack.look_at_link(Instant::ZERO, id).unwrap())
        };
        has_link.store(true, SeqCst);
        stack.look_at_link(Instant::ZERO, id).unwrap();
        other.join().unwrap();
        assert_eq!(stack.interfaces(Instant::ZERO)[0].link, LinkState::Up);
        let last = std::iter::from_fn(|| events.take()).last();
        assert_ne!(last, Some(StackEvent::LinkDown { interface: id }));
    });
}
