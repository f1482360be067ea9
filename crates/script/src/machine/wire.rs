//! The device whose other end is the script.

use crate::host::SentPacket;
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
const MAX_PACKETS: usize = 100_000;

/// Largest IP packet: the length field of its header.
const MAX_PACKET_LEN: u32 = 65_535;

#[derive(Debug, Default)]
struct Queues {
    /// Packets of the script that the stack has not received yet.
    inbound: VecDeque<Bytes>,
    /// Packets of the stack that the script has not taken yet.
    outbound: VecDeque<SentPacket>,
}

/// The wire between the stack and the script. Clones are the same wire. Cost: a mutex for each
/// packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire(Arc<Mutex<Queues>>);

impl Wire {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the stack a packet. False if too many wait.
    pub(super) fn inject(&self, packet: Bytes) -> bool {
        let mut queues = self.queues();
        let has_room = queues.inbound.len() < MAX_PACKETS;
        if has_room {
            queues.inbound.push_back(packet);
        }
        has_room
    }

    /// The next packet that the stack sent.
    pub(super) fn take_sent(&self) -> Option<SentPacket> {
        self.queues().outbound.pop_front()
    }

    /// How many packets the stack sent that nobody has taken.
    pub(super) fn sent(&self) -> usize {
        self.queues().outbound.len()
    }

    /// A device at this wire, which takes super-frames or only single segments.
    pub(super) fn device(&self, mtu: u16, cuts_super_frames: bool) -> Device {
        let capabilities = Capabilities {
            medium: Medium::Ip,
            mtu,
            gso_max_size: if cuts_super_frames { mtu.into() } else { MAX_PACKET_LEN },
            gso_max_segs: MAX_PACKET_LEN,
            gso_udp: false,
            checksum_tx: true,
            checksum_rx: false,
            completion: Completion::OnSubmit,
            pacing_shift: 10,
        };
        let pair = QueuePair {
            tx: Box::new(Sender { wire: self.clone(), completed: Completed::default() }),
            rx: Box::new(Receiver(self.clone())),
            bulk: None,
            #[cfg(unix)]
            descriptor: None,
        };
        Device {
            name: "script".into(),
            capabilities,
            queues: vec![pair],
            steering: None,
            monitor: None,
        }
    }
}

/// The sending half of a device.
struct Sender {
    wire: Wire,
    completed: Completed,
}

impl TxQueue for Sender {
    fn submit(&mut self, mut frame: Frame, now: Instant) -> Result<(), Frame> {
        if frame.checksum.is_some() {
            finish_checksum(&mut frame);
        }
        let mut queues = self.wire.queues();
        if queues.outbound.len() < MAX_PACKETS {
            let at = now.since(super::START);
            queues.outbound.push_back(SentPacket { at, packet: frame.to_bytes() });
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

/// The receiving half of a device.
struct Receiver(Wire);

impl RxQueue for Receiver {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let data = self.0.queues().inbound.pop_front()?;
        Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown })
    }

    fn next_event(&self) -> Instant {
        if self.0.queues().inbound.is_empty() { Instant::FAR_FUTURE } else { Instant::ZERO }
    }
}
