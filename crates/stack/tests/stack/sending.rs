//! By which queue of a device a flow sends, and when a full send buffer has room again.

use super::{address, connect};
use crate::common::{WireConfig, World};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Waker;
use neap_stack::socket::SocketError;
use neap_stack::socket::icmp::{IcmpHandle, IcmpMessage, IcmpOptions};
use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::socket::udp::UdpHandle;
use neap_stack::stack::UdpOptions;
use neap_tcp::options::SocketOption;
use neap_tcp::time::Nanos;
use std::sync::Arc;
use std::task::Wake;

#[test]
fn a_flow_that_sent_in_bulk_keeps_its_queue_while_something_is_in_flight() {
    let delay = Nanos::from_micros(5);
    let wire = WireConfig { delay, ring: 4096, bulk: true, ..WireConfig::default() };
    let mut world = World::new(&wire);
    let (from, to) = connect(&mut world, "10.0.0.2:1000");
    from.set_option(world.now, SocketOption::NoDelay(true)).expect("valid");
    let mut data = vec![0; 65_536];
    let last = |world: &World| *world.ab.lock().unwrap().bulk_sent.last().expect("a frame");

    assert!(from.write(world.now, &data[..1000]).is_ok());
    assert!(!last(&world), "a thousand bytes are no bulk");
    let (mut sent, mut is_over) = (0, false);
    while !is_over {
        if sent < 16 << 20 {
            sent += from.write(world.now, &data).unwrap_or(0);
        }
        world.now += delay;
        world.a.poll(0, world.now);
        world.b.poll(0, world.now);
        while to.read(world.now, &mut data).is_ok() {}
        let info = from.info(world.now);
        is_over = sent >= 16 << 20 && info.unacked_bytes + info.notsent_bytes == 0;
    }
    assert!(last(&world), "16 MB in a few milliseconds are bulk");

    // Each write finds the one before in flight: its ACK waits in the device.
    for _ in 0..50 {
        world.now += Nanos::from_millis(20);
        assert!(from.write(world.now, &data[..1000]).is_ok());
        assert!(last(&world), "it would overtake what waits in the bulk queue");
        for _ in 0..2 {
            world.a.poll(0, world.now);
            world.now += delay;
            world.b.poll(0, world.now);
            while to.read(world.now, &mut data).is_ok() {}
        }
    }
    world.run(Nanos::from_secs(1));
    assert_eq!(from.info(world.now).unacked_bytes, 0);
    assert!(from.write(world.now, &data[..1000]).is_ok());
    assert!(!last(&world), "nothing is in flight, and little was sent");
}

/// Sends 16 KiB, and waits until the peer has read them.
fn send_turn(world: &mut World, from: &TcpHandle, to: &TcpHandle) {
    let mut data = [0; 16 << 10];
    let mut left = from.write(world.now, &data).expect("room");
    assert_eq!(left, data.len());
    assert!(world.run_until(Nanos::from_secs(1), |world| {
        left -= to.read(world.now, &mut data).unwrap_or(0);
        left == 0
    }));
}

#[test]
fn turns_of_the_only_flow_leave_by_the_other_queue() {
    let delay = Nanos::from_micros(100);
    let wire = WireConfig { delay, ring: 4096, bulk: true, ..WireConfig::default() };
    let mut world = World::new(&wire);
    let first = connect(&mut world, "10.0.0.2:1000");
    let second = connect(&mut world, "10.0.0.2:1001");
    let take_turns = |world: &mut World, flows: &[&(TcpHandle, TcpHandle)]| {
        for _ in 0..200 {
            flows.iter().for_each(|(a, b)| send_turn(world, a, b));
            flows.iter().for_each(|(a, b)| send_turn(world, b, a));
        }
        core::mem::take(&mut world.ab.lock().unwrap().bulk_sent)
    };

    let sent = take_turns(&mut world, &[&first]);
    assert!(
        sent.iter().all(|is_bulk| !is_bulk),
        "its answers come later by a thread of the device"
    );
    let sent = take_turns(&mut world, &[&first, &second]);
    assert!(*sent.last().expect("a frame"), "two flows receive in bulk");
    world.run(Nanos::from_millis(200));

    // The first frame of a long request is followed by others.
    let mut data = vec![0; 256 << 10];
    for _ in 0..100 {
        send_turn(&mut world, &first.0, &first.1);
        send_turn(&mut world, &first.1, &first.0);
    }
    world.ab.lock().unwrap().bulk_sent.clear();
    let written = first.0.write(world.now, &data).expect("room");
    let mut read = 0;
    assert!(world.run_until(Nanos::from_secs(1), |world| {
        read += first.1.read(world.now, &mut data).unwrap_or(0);
        read == written
    }));
    assert!(*world.ab.lock().unwrap().bulk_sent.last().expect("a frame"));
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

enum Sender {
    Udp(UdpHandle),
    Icmp(IcmpHandle),
}

impl Sender {
    fn new(world: &World, is_udp: bool) -> Self {
        if is_udp {
            Self::Udp(world.a.bind_udp(address("10.0.0.1:0"), UdpOptions::default()).unwrap())
        } else {
            Self::Icmp(world.a.open_icmp(IcmpOptions::default()).unwrap())
        }
    }

    fn send(&self, world: &World) -> Result<(), SocketError> {
        let data = vec![0; 1000];
        match self {
            Self::Udp(udp) => udp.send_to(world.now, data.into(), Some(address("10.0.0.2:9"))),
            Self::Icmp(icmp) => {
                let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|one| one.parse().unwrap());
                icmp.send(world.now, &IcmpMessage::new(from, to, data))
            }
        }
    }

    fn set_send_buffer(&self, bytes: u32) {
        match self {
            Self::Udp(udp) => udp.set_buffers(None, Some(bytes)),
            Self::Icmp(icmp) => icmp.set_buffers(None, Some(bytes)),
        }
    }

    fn bytes_below(&self) -> u64 {
        match self {
            Self::Udp(udp) => udp.bytes_below(),
            Self::Icmp(icmp) => icmp.bytes_below(),
        }
    }

    fn state(&self) -> ReadyState {
        match self {
            Self::Udp(udp) => udp.readiness(),
            Self::Icmp(icmp) => icmp.readiness(),
        }
    }

    fn is_writable(&self) -> bool {
        self.state().bits().contains(Ready::WRITABLE)
    }

    fn register(&self, waker: &Waker) -> bool {
        match self {
            Self::Udp(udp) => udp.register(udp.readiness(), Ready::WRITABLE, waker),
            Self::Icmp(icmp) => icmp.register(icmp.readiness(), Ready::WRITABLE, waker),
        }
    }
}

/// `sock_def_write_space`
#[test]
fn a_full_socket_of_datagrams_is_woken_once_when_half_of_it_has_left() {
    let delay = Nanos::from_millis(5);
    for is_udp in [true, false] {
        let mut world = World::new(&WireConfig { delay, ring: 4096, ..WireConfig::default() });
        let sender = Sender::new(&world, is_udp);
        sender.send(&world).unwrap();
        let frame = sender.bytes_below();
        world.run(delay + delay);
        sender.set_send_buffer(100 * frame as u32);
        let step = Nanos::from_micros(10);
        let mut sent = 0;
        while sender.is_writable() && sender.send(&world).is_ok() {
            world.now += step;
            sent += 1;
        }
        assert_eq!(sent, 101, "the last one exceeds the buffer");
        assert_eq!(sender.send(&world), Err(SocketError::WouldBlock));
        let wakes = Arc::new(Wakes::default());
        assert!(sender.register(&wakes.clone().into()));
        let (mut steps, mut was_full) = (0, true);
        while sender.bytes_below() > 0 {
            let before = sender.bytes_below();
            world.now += step;
            world.a.poll(0, world.now);
            steps += usize::from(sender.bytes_below() < before);
            let has_room = sender.bytes_below() <= 50 * frame;
            assert_eq!(sender.is_writable(), has_room);
            assert_eq!(wakes.0.load(Ordering::SeqCst), usize::from(has_room));
            if has_room && core::mem::take(&mut was_full) {
                assert!(sender.register(&wakes.clone().into()));
            }
        }
        assert!(steps > 10, "frames leave by and by: {steps}");
    }
}

#[test]
fn a_larger_send_buffer_has_room_at_once() {
    let (delay, step) = (Nanos::from_millis(5), Nanos::from_micros(10));
    for is_udp in [true, false] {
        let mut world = World::new(&WireConfig { delay, ring: 4096, ..WireConfig::default() });
        let sender = Sender::new(&world, is_udp);
        let fill = |world: &mut World| {
            while sender.send(world).is_ok() {
                world.now += step;
            }
        };
        sender.send(&world).unwrap();
        sender.set_send_buffer(10 * sender.bytes_below() as u32);
        fill(&mut world);
        let full = sender.bytes_below();
        let wakes = Arc::new(Wakes::default());
        assert!(sender.register(&wakes.clone().into()));
        let woken = || (sender.is_writable(), wakes.0.load(Ordering::SeqCst));
        sender.set_send_buffer((full + full / 2) as u32);
        assert_eq!(woken(), (false, 0), "more than half of the buffer is taken");
        sender.set_send_buffer(2 * full as u32);
        assert_eq!(woken(), (true, 1));
        // A socket that stays full becomes writable with half of the new buffer.
        fill(&mut world);
        assert!(sender.register(&wakes.clone().into()));
        sender.set_send_buffer(3 * full as u32);
        assert_eq!(woken(), (false, 1));
        while sender.bytes_below() > full + full / 2 {
            assert_eq!(woken(), (false, 1));
            world.now += step;
            world.a.poll(0, world.now);
        }
        assert_eq!(woken(), (true, 2));
        assert!(sender.bytes_below() > full);
    }
}
