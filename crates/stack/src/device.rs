//! Traits and types of a device: queues that own frames until the wire has them.

use crate::frame::{Frame, PartialChecksum};
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr};
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Link layer of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Bare IP packets, without neighbours, as on a TUN device or a link of the lab.
    Ip,
    /// Ethernet, with the address of this interface.
    Ethernet([u8; 6]),
}

/// Time at which the frames of a device count as completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At the return of [`TxQueue::submit`]: the device has no queue that it could report on (TUN).
    OnSubmit,
    /// When the layer below has released the frame: by ring slot status, completion queue, or the
    /// link of the lab.
    OnWire,
}

/// Abilities of a device. The stack does in software what the device cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Link layer.
    pub medium: Medium,
    /// Largest IP packet on the wire, in bytes.
    pub mtu: u16,
    /// Largest super-frame with its IP header, in bytes. The MTU or less means no TSO.
    pub gso_max_size: u32,
    /// Most wire segments in one super-frame. With 0 the stack makes no super-frames either, not
    /// even to cut them itself (`ethtool -K gso off`).
    pub gso_max_segs: u32,
    /// Whether super-frames may be of UDP ([`GsoKind::Udp4`](crate::frame::GsoKind::Udp4); Linux's
    /// `NETIF_F_GSO_UDP_L4`). They keep to [`gso_max_size`](Self::gso_max_size) and
    /// [`gso_max_segs`](Self::gso_max_segs), and have at most 64 datagrams.
    pub gso_udp: bool,
    /// Whether the device finishes partial checksums.
    pub checksum_tx: bool,
    /// Whether received frames may carry checksums that are known to be good.
    pub checksum_rx: bool,
    /// Time at which the device drops a frame.
    pub completion: Completion,
    /// `sk_pacing_shift` that the device asks for: 10, unless it has to aggregate frames.
    pub pacing_shift: u8,
}

impl Capabilities {
    /// A device that carries packets and leaves all other work to the stack: no checksums, no
    /// super-frames. Change the fields that it does better.
    pub const fn new(medium: Medium, mtu: u16, completion: Completion) -> Self {
        Self {
            medium,
            mtu,
            gso_max_size: mtu as u32,
            gso_max_segs: u16::MAX as u32,
            gso_udp: false,
            checksum_tx: false,
            checksum_rx: false,
            completion,
            pacing_shift: 10,
        }
    }
}

/// Sending half of one queue of a device.
pub trait TxQueue: Send {
    /// Takes a frame and keeps it until the wire has it. Returns the frame if the ring is full.
    ///
    /// The frame never exceeds the announced capabilities. The device drops and counts a frame that
    /// it refuses for good, because the link is down or for an I/O error.
    #[expect(clippy::result_large_err, reason = "the frame itself comes back, not a description")]
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame>;

    /// Returns a time at which every frame that [`submit`](Self::submit) has taken was handed over.
    ///
    /// The frames that follow in the same call are stamped with it, and round trips begin at it.
    /// `now` is the time of the call. A later time than the present makes a round trip that is
    /// shorter than any on the path. A device of the real world returns the present time on the
    /// driver's clock, which in `neap` is `CLOCK_MONOTONIC`. In virtual time a call takes no time,
    /// and `now` is right. The stack calls this once per 64 KiB.
    fn departure(&self, now: Instant) -> Instant {
        now
    }

    /// Returns whether the wire had the frame that [`submit`](Self::submit) took last when it
    /// returned.
    ///
    /// A device with [`Completion::OnWire`] may learn that from the layer below. Such a frame needs
    /// no [`flush`](Self::flush), and [`reap`](Self::reap) does not return it.
    fn is_latest_complete(&self) -> bool {
        false
    }

    /// Returns whether the wire has lately had all frames when [`submit`](Self::submit) or
    /// [`flush`](Self::flush) returned, so that frames do not wait for each other.
    fn completes_within_calls(&self) -> bool {
        false
    }

    /// Tells the device that all frames submitted since the last call may go (the doorbell).
    fn flush(&mut self, now: Instant);

    /// Drops the frames that the wire has at `now`, and returns how many bytes and frames that
    /// were, for byte queue limits. It is called once per poll.
    fn reap(&mut self, now: Instant) -> Completed;

    /// Returns when to call [`reap`](Self::reap) next if no event of the device comes first.
    fn next_event(&self) -> Instant;

    /// Returns how many frames the device lost or refused for good.
    fn errors(&self) -> u64 {
        0
    }
}

/// Frames that one [`TxQueue::reap`] completed. Bytes are counted by [`Frame::len`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Number of frames.
    pub frames: u32,
    /// Number of bytes.
    pub bytes: u64,
}

/// State of the transport checksum of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing is known. The stack verifies the checksum.
    Unknown,
    /// The checksum is right: the device verified it (`VIRTIO_NET_HDR_F_DATA_VALID`), or a local
    /// sender left it partial (`F_NEEDS_CSUM`) and the bytes never crossed a wire.
    Good,
    /// The checksum is right, but the field in the packet does not hold its final value.
    Partial(PartialChecksum),
}

/// Received packet, or a super-packet that the device coalesced.
#[derive(Clone, Debug)]
pub struct Received {
    /// The whole packet, which begins with the link header on Ethernet, and with the IP header
    /// otherwise.
    pub data: Bytes,
    /// Payload bytes of each coalesced segment, or of each datagram of a super-datagram
    /// (`UDP_SEGMENT`); 0 for a single packet.
    pub gso_size: u16,
    /// State of the transport checksum.
    pub checksum: RxChecksum,
}

/// Receiving half of one queue of a device.
pub trait RxQueue: Send {
    /// Returns the next packet if there is one. It never waits.
    fn receive(&mut self, now: Instant) -> Option<Received>;

    /// Returns when a packet will be there, if the device knows (as the link of the lab does).
    ///
    /// Otherwise it is [`Instant::FAR_FUTURE`], and the driver waits for the device's descriptor.
    fn next_event(&self) -> Instant {
        Instant::FAR_FUTURE
    }

    /// Returns a time at which every packet that [`receive`](Self::receive) has returned was there.
    ///
    /// Round trips end at this time. `now` is the time of the poll. Its thread may have been kept
    /// from running since, and other threads may have sent frames that were answered meanwhile. A
    /// time before a packet came makes a round trip that is shorter than any on the path. So a
    /// device of the real world returns the time on the driver's clock, which in `neap` is
    /// `CLOCK_MONOTONIC`. In virtual time a poll takes no time, and `now` is right. The stack calls
    /// this once per poll that found packets, and for each segment to a listener.
    fn arrival(&self, now: Instant) -> Instant {
        now
    }

    /// Returns how many packets the device lost before they could be received.
    fn drops(&self) -> u64 {
        0
    }
}

/// Queue pair of a device: one sending and one receiving half.
pub struct QueuePair {
    /// Sending half.
    pub tx: Box<dyn TxQueue>,
    /// Receiving half.
    pub rx: Box<dyn RxQueue>,
    /// Second receiving half, for flows that move bulk data; `None` where the device has one queue
    /// for all packets.
    pub bulk: Option<BulkQueue>,
    /// Descriptor that becomes readable when `receive` has a packet, and writable when `reap` has
    /// something to do; `None` if only `next_event` tells.
    ///
    /// The driver of the stack waits for it. The stack itself does not use it.
    #[cfg(unix)]
    pub descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

/// Receiving half beside that of a [`QueuePair`], for flows that move bulk data.
///
/// A flow arrives here after a frame of it was sent with [`Frame::is_bulk`], and at the other
/// half after one without. Where the device does not know a flow, its packets may arrive at either.
/// The stack takes packets from here when the other half has none, so a packet of another flow
/// waits for one round and not for all that the bulk flows have in the device. If the other half
/// has packets for 1024 rounds, both have their turns alternately.
pub struct BulkQueue {
    /// Receiving half.
    pub rx: Box<dyn RxQueue>,
    /// Descriptor that becomes readable when `receive` has a packet.
    #[cfg(unix)]
    pub descriptor: Option<Arc<std::os::fd::OwnedFd>>,
    /// Whether the device takes only so many frames of bulk flows at once, and makes the descriptor
    /// writable when it takes more.
    pub is_bounded: bool,
}

impl core::fmt::Debug for BulkQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BulkQueue").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("QueuePair").finish_non_exhaustive()
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Packets pass.
    Up,
    /// Packets are lost. The device is there, and its link may come back.
    Down,
    /// The device was removed and does not come back.
    Gone,
}

/// State of a device, as the device reports it.
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

/// Tells what has become of a device.
///
/// A look may take system calls. The stack asks when it is told to
/// ([`Stack::look_at_link`](crate::stack::Stack::look_at_link)), and never for a packet.
pub trait LinkMonitor: Send {
    /// Returns the state of the device now. Afterwards the monitor's descriptor is not readable
    /// until something changes again.
    fn look(&mut self) -> LinkStatus;

    /// Returns those of `addresses` that the kernel of the machine has, each with the name of the
    /// kernel's interface. It is empty where there is no kernel, or where it cannot be asked.
    ///
    /// A stack cannot share an address with a kernel that sees its packets: the kernel would answer
    /// too.
    fn taken(&mut self, addresses: &[IpAddr]) -> Vec<(IpAddr, String)> {
        let _ = addresses;
        Vec::new()
    }

    /// Returns how many packets were lost before they came to a queue of the device, since it was
    /// opened. [`RxQueue::drops`] counts those that a queue lost.
    fn lost_before_queues(&mut self) -> u64 {
        0
    }

    /// Returns a descriptor that becomes readable when the state has changed. With `None` the stack
    /// looks only when the descriptor of a queue has an error.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<Arc<std::os::fd::OwnedFd>> {
        None
    }
}

/// Choice of the queue at which a packet arrives, for a device whose choice can be computed.
///
/// The stack gives a connection that it opens to the shard of that queue. Otherwise each packet of
/// the connection would be handed from one thread to another.
pub trait Steering: Send + Sync {
    /// Returns the queue at which the packets of a flow arrive, counted from 0. `local` is the
    /// destination of the packets, and `remote` their source. It is called once per connection.
    fn queue_of(&self, local: SocketAddr, remote: SocketAddr) -> usize;
}

/// Opened device, ready to be attached to a stack as one interface.
pub struct Device {
    /// Name of the device, as the system knows it.
    pub name: String,
    /// Abilities of the device.
    pub capabilities: Capabilities,
    /// Queues of the device. One shard of the stack serves each.
    pub queues: Vec<QueuePair>,
    /// Tells at which queue the packets of a connection will arrive. `None` where that is not known
    /// before, or where they arrive at the queue that the connection sends by (TUN): then
    /// connections that the stack opens are spread over all queues in turn.
    pub steering: Option<Arc<dyn Steering>>,
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
