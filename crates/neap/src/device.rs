//! Devices: TUN and AF_PACKET, and the traits for a device of your own.
//!
//! [`Tun`] and [`Packet`] open a device of the kernel; `into_device()` makes the [`Device`] that
//! [`Builder::device`](crate::Builder::device) takes. A device of your own is a [`Device`] whose
//! queues implement [`TxQueue`] and [`RxQueue`]. It sends [`Frame`]s and hands over [`Received`]
//! packets.

pub use neap_device::{
    Error, LinkConfig, Packet, PacketConfig, SendQueue, Tun, TunConfig, TunQueue, configure_link,
    look_through_all_local_ports, send_queue,
};
pub use neap_stack::device::{
    BulkQueue, Capabilities, Completed, Completion, Device, LinkMonitor, LinkState, LinkStatus,
    Medium, QueuePair, Received, RxChecksum, RxQueue, Steering, TxQueue,
};
pub use neap_stack::frame::{DATAGRAM, Frame, Gso, GsoKind, Headers, ORPHAN, PartialChecksum};
pub use neap_tcp::segment::{Ecn, Payload};
pub use neap_tcp::transmit::small_queue::TxCredit;
