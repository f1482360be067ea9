//! What is told of one direction of a link: counters, frames that left, packets that left.

use crate::histogram::Times;
use neap_tcp::time::{Instant, Nanos};

/// What has left in one direction.
#[derive(Clone, Debug, Default)]
pub struct LinkStats {
    /// Frames that a socket accounts for, super-frames counted once.
    pub frames: u64,
    /// Frames with data that were super-frames.
    pub super_frames: u64,
    /// Wire segments of these frames.
    pub segments: u64,
    /// All wire segments, pure ACKs included.
    pub packets: u64,
    /// Bytes on the wire, with what Ethernet adds.
    pub wire_bytes: u64,
    /// Time in which the wire carried something.
    pub busy: Nanos,
    /// Lost at random, by script, or on a link that is down.
    pub lost: u64,
    /// Dropped at the tail of the hop's queue.
    pub dropped: u64,
    /// Dropped by its management (RED, CoDel).
    pub early_drops: u64,
    /// Dropped by a policer.
    pub policed: u64,
    /// Too big for a hop.
    pub too_big: u64,
    /// With a flipped bit.
    pub corrupted: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delayed while others passed.
    pub reordered: u64,
    /// Marked CE.
    pub marked: u64,
    /// Dropped because the receive ring was full.
    pub ring_drops: u64,
    /// Handed over to the host, the router or the actor at the other end.
    pub delivered: u64,
    /// ICMP errors of hops on the other way, which arrive by this one.
    pub answered: u64,
    /// Interrupts of the sending NIC for completions.
    pub tx_interrupts: u64,
    /// Interrupts of the receiving NIC.
    pub rx_interrupts: u64,
    /// Delay below the socket: from a frame's departure from TCP to its last bit on the wire.
    pub below: Times,
    /// The part of it in the NIC's ring.
    pub in_ring: Times,
    /// Time in the hop, transmission included.
    pub queued: Times,
    /// The most bytes that waited there.
    pub most_queued: u64,
    /// Hash of when each frame left and how long it was.
    pub digest: u64,
}

impl LinkStats {
    pub(super) fn clear(&mut self) {
        *self = Self { digest: self.digest, ..Self::default() };
    }
}

/// A frame with data of a socket, as the NIC got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departed {
    /// When.
    pub at: Instant,
    /// The socket's flow.
    pub flow: u64,
    /// Bytes of payload.
    pub bytes: u32,
    /// From its departure from TCP to its last bit on the wire.
    pub below: Nanos,
}

/// A packet as it left a NIC or the port of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When its last bit left.
    pub at: Instant,
    /// Its headers, from that of IP on.
    pub headers: Box<[u8]>,
    /// Bytes of the whole IP packet.
    pub len: u32,
    /// Its TCP checksum is right, or it carries no TCP.
    pub is_sound: bool,
}
