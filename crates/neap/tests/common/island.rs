//! A stack without a way out.

use neap::Stack;
use neap::device::{
    Capabilities, Completed, Completion, Device, Frame, Medium, QueuePair, Received, RxQueue,
    TxQueue,
};
use neap::time::Instant;

struct Nowhere;

impl TxQueue for Nowhere {
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

impl RxQueue for Nowhere {
    fn receive(&mut self, _: Instant) -> Option<Received> {
        None
    }
}

/// A stack that reaches only itself, with so many workers.
pub(crate) fn island(workers: usize) -> Stack {
    let capabilities = Capabilities {
        gso_max_size: 65_535,
        checksum_tx: true,
        checksum_rx: true,
        ..Capabilities::new(Medium::Ip, 1500, Completion::OnSubmit)
    };
    let queue =
        || QueuePair { tx: Box::new(Nowhere), rx: Box::new(Nowhere), bulk: None, descriptor: None };
    let device = Device {
        name: "nowhere".into(),
        capabilities,
        queues: std::iter::repeat_with(queue).take(workers).collect(),
        steering: None,
        monitor: None,
    };
    let builder = Stack::builder().device(device).address("10.9.0.2/24").address("fd00:9::2/64");
    builder.build().expect("a stack")
}
