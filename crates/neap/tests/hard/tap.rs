//! A stack whose TUN has a tap: each TCP segment that passes can be seen, changed, held and lost.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use neap::device::{
    Completed, Device, Frame, LinkConfig, QueuePair, Received, RxChecksum, RxQueue, Tun, TunConfig,
    TxQueue, configure_link,
};
use neap::time::Instant;
use neap::{Builder, Stack};
use neap_lab::hostile::packet;
use neap_tcp::segment::Segment;

use crate::common::Family;

/// A segment and its two ends.
#[derive(Clone, Debug)]
pub(crate) struct Passing {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) segment: Segment,
}

/// What happens to segments at the tap. What is pushed to `out` goes on, in this order.
pub(crate) trait Gate: Send + 'static {
    /// A segment to the stack.
    fn arrives(&mut self, segment: Passing, out: &mut Vec<Passing>);
    /// A segment of the stack.
    fn leaves(&mut self, segment: Passing, out: &mut Vec<Passing>);
}

/// A gate that a test looks into while segments pass it.
pub(crate) struct Shared<G>(Arc<Mutex<G>>);

impl<G> Clone for Shared<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G> Shared<G> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, G> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TappedTx<G> {
    inner: Box<dyn TxQueue>,
    gate: Shared<G>,
}

impl<G: Gate> TxQueue for TappedTx<G> {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        let Some((from, to, segment)) = packet::parse(&frame.to_bytes()) else {
            return self.inner.submit(frame, now);
        };
        let mut out = Vec::new();
        self.gate.lock().leaves(Passing { from, to, segment }, &mut out);
        for frame in out.into_iter().filter_map(emit) {
            // What finds the device full is lost, as on any wire.
            let _ = self.inner.submit(frame, now);
        }
        Ok(())
    }

    fn flush(&mut self, now: Instant) {
        self.inner.flush(now);
    }

    fn reap(&mut self, now: Instant) -> Completed {
        self.inner.reap(now)
    }

    fn next_event(&self) -> Instant {
        self.inner.next_event()
    }

    fn errors(&self) -> u64 {
        self.inner.errors()
    }
}

struct TappedRx<G> {
    inner: Box<dyn RxQueue>,
    gate: Shared<G>,
    ready: VecDeque<Passing>,
}

impl<G: Gate> RxQueue for TappedRx<G> {
    fn receive(&mut self, now: Instant) -> Option<Received> {
        loop {
            if let Some(frame) = self.ready.pop_front().and_then(emit) {
                let data = frame.to_bytes();
                return Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown });
            }
            let received = self.inner.receive(now)?;
            let Some((from, to, segment)) = packet::parse(&received.data) else {
                return Some(received);
            };
            let mut out = Vec::new();
            self.gate.lock().arrives(Passing { from, to, segment }, &mut out);
            self.ready.extend(out);
        }
    }

    fn next_event(&self) -> Instant {
        self.inner.next_event()
    }

    fn arrival(&self, now: Instant) -> Instant {
        self.inner.arrival(now)
    }

    fn drops(&self) -> u64 {
        self.inner.drops()
    }
}

fn emit(Passing { from, to, segment }: Passing) -> Option<Frame> {
    packet::emit(from, to, segment)
}

/// Where a stack with a tap is: its interface, its address, and that of the kernel beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) family: Family,
    pub(crate) name: &'static str,
    pub(crate) ours: IpAddr,
    pub(crate) kernel: IpAddr,
}

impl Place {
    pub(crate) fn first(family: Family) -> Self {
        Self { family, name: "t0", ours: family.ours(), kernel: family.kernel() }
    }

    /// In another network, which the kernel reaches too.
    pub(crate) fn second(family: Family) -> Self {
        let ours = family.text("10.8.0.2", "fd00:8::2");
        Self { family, name: "t1", ours, kernel: family.text("10.8.0.1", "fd00:8::1") }
    }

    /// A stack here. Its segments pass the gate one by one: super-frames do not leave it.
    pub(crate) fn stack<G: Gate>(
        self,
        gate: G,
        build: impl FnOnce(Builder) -> Builder,
    ) -> (Stack, Shared<G>) {
        let gate = Shared(Arc::new(Mutex::new(gate)));
        let config = TunConfig {
            name: Some(self.name.into()),
            offload: false,
            bulk_queue: false,
            ..TunConfig::default()
        };
        let tun = Tun::open(&config).expect("a TUN");
        let prefix_len = if self.family == Family::V4 { 24 } else { 64 };
        let link =
            LinkConfig { addresses: vec![(self.kernel, prefix_len)], ..LinkConfig::default() };
        configure_link(self.name, &link).expect("the kernel's end");
        let builder = Stack::builder()
            .device(tapped(tun.into_device(), &gate))
            .address(self.family.cidr(self.ours))
            .gateway(self.kernel);
        (build(builder).build().expect("a stack"), gate)
    }
}

/// The device with a tap at each queue.
fn tapped<G: Gate>(device: Device, gate: &Shared<G>) -> Device {
    let queues = device.queues.into_iter().map(|queue| QueuePair {
        tx: Box::new(TappedTx { inner: queue.tx, gate: gate.clone() }),
        rx: Box::new(TappedRx { inner: queue.rx, gate: gate.clone(), ready: VecDeque::new() }),
        ..queue
    });
    Device { queues: queues.collect(), ..device }
}
