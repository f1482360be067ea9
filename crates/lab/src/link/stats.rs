//! Observations of one direction of a link: counters, frames and packets that left.

use crate::histogram::Times;
use neap_tcp::time::{Instant, Nanos};

/// Counters of one direction of a link.
#[derive(Clone, Debug, Default)]
pub struct LinkStats {
    /// Frames that a socket accounts for, super-frames counted once.
    pub frames: u64,
    /// The frames that were super-frames.
    pub super_frames: u64,
    /// Wire segments that those frames became.
    pub segments: u64,
    /// All wire segments, pure ACKs included.
    pub packets: u64,
    /// Bytes that were sent, with the headers and gaps that Ethernet adds: by the card of a host,
    /// or by the port of a router. A packet on its way out counts with the part that has left.
    pub wire_bytes: u64,
    /// Time in which that card or port was sending. It is not known where a trace says when packets
    /// leave.
    pub busy: Nanos,
    /// Bytes that policer and hop have passed, or the card where there is neither; as
    /// [`wire_bytes`](Self::wire_bytes).
    pub carried_bytes: u64,
    /// Bytes of its trace's opportunities that those packets took, those included that have not
    /// left; zero without a trace.
    pub(super) traced: u64,
    /// Packets lost at random, by script, or on a link that is down.
    pub lost: u64,
    /// Packets dropped at the tail of the hop's queue.
    pub dropped: u64,
    /// Packets dropped by the management of that queue (RED, CoDel).
    pub early_drops: u64,
    /// Packets dropped by a policer.
    pub policed: u64,
    /// Packets dropped because they are larger than the MTU of a hop.
    pub too_big: u64,
    /// Packets of which one bit was flipped.
    pub corrupted: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets delayed while others passed.
    pub reordered: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets dropped because the receive ring was full.
    pub ring_drops: u64,
    /// Packets handed to the host, the router or the actor at the other end.
    pub delivered: u64,
    /// ICMP errors that hops of the opposite direction have sent, which arrive by this one.
    pub answered: u64,
    /// Interrupts of the sending NIC for completions.
    pub tx_interrupts: u64,
    /// Interrupts of the receiving NIC.
    pub rx_interrupts: u64,
    /// Times below the socket: from a frame's departure from TCP to its last bit on the wire.
    pub below: Times,
    /// Time of those frames in the NIC's ring.
    pub in_ring: Times,
    /// Time of packets in the hop, transmission included.
    pub queued: Times,
    /// The most bytes in the hop's queue, as [`Bottleneck`](super::Bottleneck) counts them.
    pub most_queued: u64,
    /// Hash of the times at which frames left and of their lengths.
    pub digest: u64,
}

impl LinkStats {
    pub(super) fn clear(&mut self) {
        *self = Self { digest: self.digest, ..Self::default() };
    }

    /// A packet goes on the wire, which takes so long. What has not left when the figures are read
    /// is subtracted then.
    pub(super) fn on_wire(&mut self, bytes: u64, took: Nanos) {
        self.wire_bytes += bytes;
        self.busy = self.busy + took;
    }

    /// Policer and hop have passed so many bytes, and a trace counts them as `traced`.
    pub(super) fn carried(&mut self, bytes: u64, traced: u64) {
        self.carried_bytes += bytes;
        self.traced += traced;
    }
}

/// Frame with data of a socket, as the NIC got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departed {
    /// Time at which the NIC got it.
    pub at: Instant,
    /// The flow of the socket, see [`neap_stack::frame::Frame`].
    pub flow: u64,
    /// Bytes of payload.
    pub bytes: u32,
    /// Time from its departure from TCP to its last bit on the wire.
    pub below: Nanos,
}

/// Packet as it left a NIC or the port of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Time at which its last bit left.
    pub at: Instant,
    /// Its headers, from that of IP on.
    pub headers: Box<[u8]>,
    /// Bytes of the whole IP packet.
    pub len: u32,
    /// Whether its TCP checksum is right. It is true for a packet without TCP.
    pub is_sound: bool,
}
