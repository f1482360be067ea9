//! Two hosts and a wire between them, in virtual time.

use bytes::Bytes;
use neap_stack::device::{
    BulkQueue, Capabilities, Completed, Completion, Device, Medium, QueuePair, Received,
    RxChecksum, RxQueue, TxQueue,
};
use neap_stack::frame::{Frame, GsoKind};
use neap_stack::gso::write_packets;
use neap_stack::interface::{Address, InterfaceId, InterfaceOptions};
use neap_stack::route::{Prefix, Route, RouteEntry};
use neap_stack::stack::{Stack, StackConfig};
use neap_tcp::time::{Instant, Nanos};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// What every wire of a test does.
#[derive(Clone)]
pub(crate) struct WireConfig {
    pub(crate) mtu: u16,
    pub(crate) ethernet: bool,
    pub(crate) gso_max_size: u32,
    /// Whether super-frames may be of UDP.
    pub(crate) gso_udp: bool,
    pub(crate) checksum: bool,
    pub(crate) delay: Nanos,
    /// Frames that a direction holds before `submit` gives frames back.
    pub(crate) ring: usize,
    /// Whether flows that move bulk data have a queue of their own.
    pub(crate) bulk: bool,
}

impl Default for WireConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            ethernet: false,
            gso_max_size: 65_535,
            gso_udp: false,
            checksum: true,
            delay: Nanos::from_millis(1),
            ring: 256,
            bulk: false,
        }
    }
}

/// Decides about a packet: `false` loses it.
pub(crate) type Filter = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// One direction.
#[derive(Default)]
pub(crate) struct Direction {
    pub(crate) packets: VecDeque<(Instant, Received)>,
    /// Those at the bulk queue.
    pub(crate) bulk: VecDeque<(Instant, Received)>,
    /// Flows that the receiver wants there, by their ports in the order of this direction.
    bulk_flows: BTreeSet<[u8; 4]>,
    in_flight: VecDeque<(Instant, Frame)>,
    pub(crate) filter: Option<Filter>,
    /// Everything that was sent, from the link header on.
    pub(crate) sent: Vec<Bytes>,
    /// Priority of each of the frames.
    pub(crate) priorities: Vec<u8>,
    /// Whether each of the frames was for the bulk queue.
    pub(crate) bulk_sent: Vec<bool>,
    /// How often the device was told of frames.
    pub(crate) flushes: usize,
    /// How long a poll of the receiver takes from its time to its look at the packets.
    pub(crate) stall: Nanos,
}

pub(crate) type Shared = Arc<Mutex<Direction>>;

/// Sends by one direction, and says at the other one where a flow wants to arrive.
struct Tx(Shared, Shared, WireConfig);

/// Ports behind an IPv4 header without options.
fn ports(data: &[u8]) -> Option<[u8; 4]> {
    data.get(20..)?.first_chunk().copied()
}

impl TxQueue for Tx {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        if let (true, Some([a, b, c, d])) = (self.2.bulk, ports(frame.headers.as_slice())) {
            let flows = &mut self.1.lock().unwrap().bulk_flows;
            if frame.is_bulk {
                flows.insert([c, d, a, b]);
            } else {
                flows.remove(&[c, d, a, b]);
            }
        }
        let mut direction = self.0.lock().unwrap();
        if direction.in_flight.len() >= self.2.ring {
            return Err(frame);
        }
        let data = frame.to_bytes();
        let due = now + self.2.delay;
        direction.sent.push(data.clone());
        direction.priorities.push(frame.priority);
        direction.bulk_sent.push(frame.is_bulk);
        let passes = direction.filter.as_mut().is_none_or(|filter| filter(&data));
        if passes {
            let checksum = match frame.checksum {
                Some(partial) => RxChecksum::Partial(partial),
                None => RxChecksum::Unknown,
            };
            let gso_size = frame.gso.map_or(0, |gso| gso.size);
            let is_bulk = ports(&data).is_some_and(|ports| direction.bulk_flows.contains(&ports));
            let is_udp =
                frame.gso.is_some_and(|gso| matches!(gso.kind, GsoKind::Udp4 | GsoKind::Udp6));
            let queue = if is_bulk { &mut direction.bulk } else { &mut direction.packets };
            if is_udp {
                write_packets(&frame, &mut Vec::new(), |packet| {
                    let (data, checksum) = (Bytes::copy_from_slice(packet), RxChecksum::Unknown);
                    queue.push_back((due, Received { data, gso_size: 0, checksum }));
                });
            } else {
                queue.push_back((due, Received { data, gso_size, checksum }));
            }
        }
        direction.in_flight.push_back((due, frame));
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {
        self.0.lock().unwrap().flushes += 1;
    }

    fn reap(&mut self, now: Instant) -> Completed {
        let mut done = Vec::new();
        let mut direction = self.0.lock().unwrap();
        while direction.in_flight.front().is_some_and(|(due, _)| *due <= now) {
            done.extend(direction.in_flight.pop_front().map(|(_, frame)| frame));
        }
        drop(direction);
        let bytes = done.iter().map(|frame| frame.len() as u64).sum();
        Completed { frames: done.len() as u32, bytes }
    }

    fn next_event(&self) -> Instant {
        let direction = self.0.lock().unwrap();
        direction.in_flight.front().map_or(Instant::FAR_FUTURE, |(due, _)| *due)
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let held = core::mem::take(&mut self.0.lock().unwrap().in_flight);
        drop(held);
    }
}

/// Receives one direction, or what is at its bulk queue.
struct Rx {
    wire: Shared,
    is_bulk: bool,
}

impl Rx {
    fn queue<'a>(&self, direction: &'a mut Direction) -> &'a mut VecDeque<(Instant, Received)> {
        if self.is_bulk { &mut direction.bulk } else { &mut direction.packets }
    }
}

impl RxQueue for Rx {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        let mut direction = self.wire.lock().unwrap();
        let now = now + direction.stall;
        let queue = self.queue(&mut direction);
        queue.front().filter(|(due, _)| *due <= now)?;
        queue.pop_front().map(|(_, packet)| packet)
    }

    fn next_event(&self) -> Instant {
        let mut direction = self.wire.lock().unwrap();
        let stall = direction.stall;
        let due = self.queue(&mut direction).front();
        due.map_or(Instant::FAR_FUTURE, |(due, _)| *due) - stall
    }

    fn arrival(&self, now: Instant) -> Instant {
        now + self.wire.lock().unwrap().stall
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) a: Stack,
    pub(crate) b: Stack,
    pub(crate) a_interface: InterfaceId,
    pub(crate) b_interface: InterfaceId,
    /// From a to b.
    pub(crate) ab: Shared,
    /// From b to a.
    pub(crate) ba: Shared,
}

pub(crate) fn config(seed: u64) -> StackConfig {
    StackConfig { seed, ..StackConfig::default() }
}

/// One end of a wire.
pub(crate) fn device(wire: &WireConfig, last: u8, tx: &Shared, rx: &Shared) -> Device {
    let medium = if wire.ethernet { Medium::Ethernet([2, 0, 0, 0, 0, last]) } else { Medium::Ip };
    let capabilities = Capabilities {
        medium,
        mtu: wire.mtu,
        gso_max_size: wire.gso_max_size,
        gso_max_segs: 64,
        gso_udp: wire.gso_udp,
        checksum_tx: wire.checksum,
        checksum_rx: wire.checksum,
        completion: Completion::OnWire,
        pacing_shift: 10,
    };
    let receive = |is_bulk| Rx { wire: rx.clone(), is_bulk };
    let pair = QueuePair {
        tx: Box::new(Tx(tx.clone(), rx.clone(), wire.clone())),
        rx: Box::new(receive(false)),
        bulk: wire.bulk.then(|| BulkQueue {
            rx: Box::new(receive(true)),
            descriptor: None,
            is_bounded: false,
        }),
        descriptor: None,
    };
    Device {
        name: format!("wire{last}"),
        capabilities,
        queues: vec![pair],
        steering: None,
        monitor: None,
    }
}

impl World {
    pub(crate) fn new(wire: &WireConfig) -> Self {
        Self::with(wire, config(1), config(2))
    }

    pub(crate) fn with(wire: &WireConfig, a: StackConfig, b: StackConfig) -> Self {
        Self::build(wire, a, b, InterfaceOptions::default())
    }

    /// A world in which b takes any destination, and a sends everything to b.
    #[allow(dead_code, reason = "not all tests have such a world")]
    pub(crate) fn with_any_destination(wire: &WireConfig) -> Self {
        Self::with_gateway(wire, InterfaceOptions::default())
    }

    /// As [`with_any_destination`](Self::with_any_destination), with further options of b.
    pub(crate) fn with_gateway(wire: &WireConfig, options: InterfaceOptions) -> Self {
        let options = InterfaceOptions { any_destination: true, ..options };
        let world = Self::build(wire, config(1), config(2), options);
        for (prefix, gateway) in [("0.0.0.0/0", "10.0.0.2"), ("::/0", "fd00::2")] {
            let prefix: Prefix = prefix.parse().unwrap();
            let gateway = Some(gateway.parse().unwrap());
            let route = Route { interface: world.a_interface, gateway, mtu: None, pref_src: None };
            world.a.add_route(RouteEntry { prefix, metric: 0, route }).unwrap();
        }
        world
    }

    fn build(
        wire: &WireConfig,
        a: StackConfig,
        b: StackConfig,
        mut options: InterfaceOptions,
    ) -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let (ab, ba) = (Shared::default(), Shared::default());
        let a = Stack::new(a).unwrap();
        let b = Stack::new(b).unwrap();
        let addresses = |last: u8| {
            let text = [format!("10.0.0.{last}/24"), format!("fd00::{last}/64")];
            text.map(|address| address.parse::<Address>().unwrap())
        };
        let a_interface = a.add_interface(now, device(wire, 1, &ab, &ba), &addresses(1)).unwrap();
        options.addresses = addresses(2).to_vec();
        let b_interface = b.add_interface_with(now, device(wire, 2, &ba, &ab), options).unwrap();
        Self { now, a, b, a_interface, b_interface, ab, ba }
    }

    /// Polls both hosts until nothing is due at this instant; when the next thing is.
    pub(crate) fn settle(&mut self) -> Instant {
        for _ in 0..10_000 {
            let (a, _) = self.a.poll(0, self.now);
            let (b, _) = self.b.poll(0, self.now);
            // The second host may have given the first something to do.
            if a > self.now && b > self.now {
                let (a, _) = self.a.poll(0, self.now);
                if a > self.now {
                    return a.min(b);
                }
            }
        }
        panic!("the hosts never come to rest");
    }

    /// Lets `span` pass, event by event.
    pub(crate) fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let next = self.settle();
            if next > end {
                break;
            }
            self.now = next;
        }
        self.now = end;
    }

    /// Runs until `done` or until `span` has passed; whether it is done.
    pub(crate) fn run_until(
        &mut self,
        span: Nanos,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let end = self.now + span;
        loop {
            let next = self.settle();
            if done(self) {
                return true;
            }
            let next = next.min(self.settle());
            if next > end {
                self.now = end;
                return false;
            }
            self.now = next;
        }
    }
}

/// Puts a packet on the wire as if the other end had sent it.
pub(crate) fn inject(direction: &Shared, now: Instant, data: Bytes) {
    let packet = Received { data, gso_size: 0, checksum: RxChecksum::Unknown };
    direction.lock().unwrap().packets.push_front((now, packet));
}
