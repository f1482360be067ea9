//! A device for tests, with packets that no descriptor announces.

use crate::sync::lock;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxQueue, TxQueue,
};
use neap_stack::frame::Frame;
use neap_tcp::time::Instant;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What the device has received.
pub(crate) type Packets = Arc<Mutex<VecDeque<Received>>>;

struct Queue(Packets);

impl RxQueue for Queue {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        lock(&self.0).pop_front()
    }
}

impl TxQueue for Queue {
    fn submit(&mut self, _: Frame, _: Instant) -> Result<(), Frame> {
        Ok(())
    }
    fn flush(&mut self, _: Instant) {}
    fn reap(&mut self, _: Instant) -> Completed {
        Completed::default()
    }
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

/// The device.
pub(crate) fn holding(packets: &Packets) -> Device {
    let (tx, rx) = (Box::new(Queue(packets.clone())), Box::new(Queue(packets.clone())));
    Device {
        name: "holding".into(),
        capabilities: Capabilities::new(Medium::Ip, u16::MAX, Completion::OnSubmit),
        queues: vec![QueuePair { tx, rx, bulk: None, descriptor: None }],
        steering: None,
        monitor: None,
    }
}
