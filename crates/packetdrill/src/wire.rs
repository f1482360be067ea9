//! The device whose other end is the script.

use bytes::Bytes;
use neap_stack::device::{
    Capabilities, Completed, Completion, Device, Medium, QueuePair, Received, RxChecksum, RxQueue,
    TxQueue,
};
use neap_stack::frame::Frame;
use neap_stack::gso::finish_checksum;
use neap_tcp::time::Instant;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets that wait in one direction at the most.
const MOST: usize = 100_000;
/// Largest IP packet: the length field of its header.
const LARGEST: u32 = 65_535;

#[derive(Debug, Default)]
struct Queues {
    /// From the script.
    inbound: VecDeque<Bytes>,
    /// From the stack, with the time at which it left.
    outbound: VecDeque<(Instant, Bytes)>,
}

/// Both ends of the wire.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wire(Arc<Mutex<Queues>>);

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the stack a packet; false if too many wait.
    pub(crate) fn inject(&self, packet: &[u8]) -> bool {
        let mut queues = self.lock();
        let has_room = queues.inbound.len() < MOST;
        if has_room {
            queues.inbound.push_back(Bytes::copy_from_slice(packet));
        }
        has_room
    }

    /// The next packet that the stack sent, and when.
    pub(crate) fn sniff(&self) -> Option<(Instant, Bytes)> {
        self.lock().outbound.pop_front()
    }

    /// A device on this wire.
    pub(crate) fn device(&self, mtu: u16) -> Device {
        let capabilities = Capabilities {
            medium: Medium::Ip,
            mtu,
            gso_max_size: LARGEST,
            gso_max_segs: LARGEST,
            checksum_tx: true,
            checksum_rx: false,
            completion: Completion::OnSubmit,
            pacing_shift: 10,
        };
        let tx = End { wire: self.clone(), completed: Completed::default() };
        let rx = End { wire: self.clone(), completed: Completed::default() };
        let queues = vec![QueuePair { tx: Box::new(tx), rx: Box::new(rx), descriptor: None }];
        Device { name: "script".into(), capabilities, queues }
    }
}

struct End {
    wire: Wire,
    completed: Completed,
}

impl TxQueue for End {
    fn submit(&mut self, mut frame: Frame, now: Instant) -> Result<(), Frame> {
        if frame.checksum.is_some() {
            finish_checksum(&mut frame);
        }
        let mut queues = self.wire.lock();
        if queues.outbound.len() < MOST {
            queues.outbound.push_back((now, frame.to_bytes()));
        }
        self.completed.frames += 1;
        self.completed.bytes += frame.len() as u64;
        Ok(())
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, _now: Instant) -> Completed {
        core::mem::take(&mut self.completed)
    }

    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }
}

impl RxQueue for End {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let data = self.wire.lock().inbound.pop_front()?;
        Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown })
    }
}
