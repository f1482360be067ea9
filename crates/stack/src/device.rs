//! What a device is to the stack: queues that own frames until the wire has them.

use crate::frame::{Frame, PartialChecksum};
use bytes::Bytes;
use neap_tcp::time::Instant;

/// The link layer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Bare IP packets (TUN, the lab link): no neighbours.
    Ip,
    /// Ethernet with this address.
    Ethernet([u8; 6]),
}

/// When the frames of a device count as completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At the return of `submit`: the device keeps no queue that it could tell us of (TUN).
    OnSubmit,
    /// When the layer below has let go of the frame (ring slot status, completion queue, lab link).
    OnWire,
}

/// What a device can do; the stack does the rest in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Link layer.
    pub medium: Medium,
    /// Largest IP packet on the wire, bytes.
    pub mtu: u16,
    /// Largest super-frame, IP header included, in bytes; the MTU or less means no TSO.
    pub gso_max_size: u32,
    /// Most wire segments in one super-frame; 0 means none at all, not even for the stack to cut
    /// (`ethtool -K gso off`).
    pub gso_max_segs: u32,
    /// The device finishes partial checksums.
    pub checksum_tx: bool,
    /// Received frames may carry checksums that are known to be good.
    pub checksum_rx: bool,
    /// When a frame's drop happens.
    pub completion: Completion,
    /// `sk_pacing_shift` that the device asks for: 10 unless it must aggregate.
    pub pacing_shift: u8,
}

/// The sending half of one queue.
pub trait TxQueue: Send {
    /// Takes the frame and keeps it until the wire has it, or gives it back when the ring is full.
    /// The frame never exceeds the announced capabilities. A frame that the device must refuse for
    /// good (link down, I/O error) is dropped and counted by the device.
    #[expect(clippy::result_large_err, reason = "the frame itself comes back, not a description")]
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame>;

    /// Tells the device that all frames submitted since the last call may go (doorbell).
    fn flush(&mut self, now: Instant);

    /// Drops the frames that the wire has by `now`, once per poll round.
    /// Returns bytes and frames completed, for BQL.
    fn reap(&mut self, now: Instant) -> Completed;

    /// When to call `reap` next if no event of the device comes first.
    fn next_event(&self) -> Instant;

    /// Frames that were lost in the device or refused by it for good.
    fn errors(&self) -> u64 {
        0
    }
}

/// What one [`TxQueue::reap`] completed. Bytes are counted by [`Frame::len`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Frames.
    pub frames: u32,
    /// Bytes.
    pub bytes: u64,
}

/// What is known about the checksum of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: verify it.
    Unknown,
    /// The device verified it (`VIRTIO_NET_HDR_F_DATA_VALID`), or a local sender left it partial
    /// (`F_NEEDS_CSUM`): the bytes never crossed a wire.
    Good,
    /// As `Good`, and the field in the packet is not the final one.
    Partial(PartialChecksum),
}

/// A received packet, or a super-packet that the device coalesced.
#[derive(Clone, Debug)]
pub struct Received {
    /// The whole packet: the link header first on Ethernet, the IP header first otherwise.
    pub data: Bytes,
    /// Payload bytes of each coalesced segment; 0 for a single packet.
    pub gso_size: u16,
    /// State of the transport checksum.
    pub checksum: RxChecksum,
}

/// The receiving half of one queue.
pub trait RxQueue: Send {
    /// The next packet, if there is one; never waits.
    fn receive(&mut self, now: Instant) -> Option<Received>;

    /// When a packet will be there, where the device knows (the lab link); otherwise
    /// [`Instant::FAR_FUTURE`] and the driver waits for the device's descriptor.
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }

    /// Packets that the device lost before they could be received.
    fn drops(&self) -> u64 {
        0
    }
}

/// One queue pair of a device.
pub struct QueuePair {
    /// Sending half.
    pub tx: Box<dyn TxQueue>,
    /// Receiving half.
    pub rx: Box<dyn RxQueue>,
    /// Becomes readable when `receive` has something, writable when `reap` has; `None` where only
    /// `next_event` tells. The driver of the stack waits on it; the stack never looks at it.
    #[cfg(unix)]
    pub descriptor: Option<std::sync::Arc<std::os::fd::OwnedFd>>,
}

impl core::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QueuePair").finish_non_exhaustive()
    }
}

/// What becomes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Packets pass.
    Up,
    /// Packets are lost; the device is there, and its link may come back.
    Down,
    /// The device was removed and does not come back.
    Gone,
}

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatus {
    /// Whether packets pass.
    pub state: LinkState,
    /// Largest IP packet in bytes, where the device knows; otherwise that of
    /// [`Capabilities`] holds.
    pub mtu: Option<u16>,
    /// The Ethernet address, where the device knows; otherwise that of [`Capabilities`] holds.
    pub address: Option<[u8; 6]>,
}

impl LinkStatus {
    /// Nothing is known but the state.
    pub fn new(state: LinkState) -> Self {
        Self { state, mtu: None, address: None }
    }
}

/// Finds out what has become of a device. It may take system calls: the stack asks when it is told
/// to ([`Stack::look_at_link`](crate::stack::Stack::look_at_link)), never for a packet.
pub trait LinkMonitor: Send {
    /// The state of the device now. What made the monitor's descriptor readable is taken.
    fn look(&mut self) -> LinkStatus;

    /// Becomes readable when there is something new to see; `None` where only errors of the queues'
    /// descriptors tell.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<std::sync::Arc<std::os::fd::OwnedFd>> {
        None
    }
}

/// A device, opened and ready: attached to a stack as one interface.
pub struct Device {
    /// Its name, as the system knows it.
    pub name: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its queues; one shard of the stack serves each.
    pub queues: Vec<QueuePair>,
    /// Tells what becomes of the device; `None` where it stays as it is.
    pub monitor: Option<Box<dyn LinkMonitor>>,
}

impl core::fmt::Debug for Device {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { name, capabilities, queues, .. } = self;
        let mut shown = f.debug_struct("Device");
        shown.field("name", name).field("capabilities", capabilities);
        shown.field("queues", &queues.len()).finish_non_exhaustive()
    }
}
