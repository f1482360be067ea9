//! AF_PACKET with memory-mapped rings: a real NIC or veth, through the kernel's qdisc.
//!
//! **Sending.** A frame is copied into a ring slot with its virtio-net header, one system call per
//! batch hands the slots over, and the slot's status is the completion ([`Completion::OnWire`]):
//! the kernel resets it when its qdisc and the driver have let go of the skb. The payload is given
//! back after the copy, the credit when the slot is free again. A frame that the qdisc drops at its
//! limit stays in its slot and is offered again: here the kernel's queue pushes back instead of
//! losing.
//!
//! The completion is true only for frames that the qdisc takes whole. `tbf` with a `burst` below
//! the super-frame cuts it up on entry, and the slot is free at once, with everything still queued.
//! So keep [`PacketConfig::gso_max_size`] below the burst; the same holds for any qdisc that
//! segments (`cake`, `netem` with corruption). Software GSO in front of a driver without TSO is
//! harmless: it happens when the frame leaves the qdisc.
//!
//! A virtual interface such as a veth is done with a frame before the call returns. Where the
//! kernel completes everything within the call, frames of 16 KB and more pass the ring by: a socket
//! of their own takes them with one copy instead of two (`direct`). The first frame that waits in
//! the kernel ends that, and the ring takes the frames behind it. A device over a socket that
//! somebody else has opened has the ring alone.
//!
//! **Waking the driver.** `EPOLLOUT` is level-triggered always on, and useless. Registered with
//! `EPOLLIN | EPOLLOUT | EPOLLET`, the descriptor gives an edge for every completion, as long as
//! less than half of `SO_SNDBUF` is in the kernel (`sock_def_write_space`). Seen on 6.18: 64 KB
//! frames in `tbf` at 100 Mbit/s, one edge each 5.3 ms; with the default `SO_SNDBUF`, edges only
//! below 104 KB. So the buffer is made four times the ring (`SO_SNDBUFFORCE`), and `next_event` is
//! only a watchdog. Where the system refuses that (it wants `CAP_NET_ADMIN` in the initial user
//! namespace, so also under `unshare -rn`), `next_event` asks for a poll every 200 us while frames
//! are out.
//!
//! **Receiving.** TPACKET_V2 slots, one per packet; V3 would hold small packets back until a block
//! is full or a millisecond has passed. A packet is copied to pooled memory, and its slot goes back
//! at once. A packet that is larger than a slot (one that the kernel coalesced) is cut off in the
//! slot, and the whole of it waits in the receive queue of the socket (`PACKET_COPY_THRESH`,
//! `tpacket_rcv`), where one system call copies it once instead of twice. So slots are small, and
//! a burst of small packets finds many. The queue needs room ([`PacketConfig::rx_queue_bytes`],
//! `SO_RCVBUFFORCE`); where the system refuses the room, slots hold 64 KB and are fewer. What this
//! host sends itself is not seen.
//!
//! **Several queues** are a fan-out group. A program of ours says which one a packet comes to
//! (`fanout`), so that the stack knows the queue of a connection that it opens.
//!
//! **The kernel is still there.** It sees every received packet too. The stack's address must not
//! be configured on any interface of the kernel here: the kernel would answer the same segments,
//! with RST as it knows no such connection, and ARP twice. Without the address it drops them,
//! unless it forwards (`net.ipv4.ip_forward=1`), when it may send them on, or redirects.

mod direct;
mod fanout;
mod receive;
mod transmit;

use crate::error::Error;
use crate::link::Interface;
use crate::monitor::Monitor;
use crate::ring::{Geometry, RX_DATA_MAX, SlotRing, TX_DATA};
use crate::sys::{self, Mapping};
use crate::{arena, virtio};
use core::ops::RangeInclusive;
use direct::Direct;
use fanout::FlowHash;
use neap_stack::device::{
    Capabilities, Completion, Device, LinkMonitor, Medium, QueuePair, Steering,
};
use receive::PacketRx;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::sync::Arc;
use transmit::{PacketTx, TxSlots};

const ETHERNET_HEADER: usize = 14;
const SLOTS_MAX: usize = 65_536;
/// Slots of this size hold the largest packet: 17 pages of 4 KB.
const RX_SLOT_FULL: usize = RX_DATA_MAX + arena::PACKET_ROOM;
/// Slots that are smaller could not hold the headers that the kernel writes into each.
const RX_SLOT_MIN: usize = 256;
/// [`RX_SLOT_FULL`] in whole pages.
const RX_SLOT_MAX: usize = 17 * 4096;
const _: () = assert!(RX_SLOT_MAX >= RX_SLOT_FULL, "the largest slot holds every packet");
/// The kernel keeps sizes of buffers in an `int`, and doubles what it is asked for.
const RX_QUEUE_MAX: usize = 1 << 30;
/// A packet of an Ethernet with an MTU of 1500 bytes, with the headers of its slot.
const RX_SLOT_DEFAULT: usize = 2048;
const QUEUES_MAX: usize = 256;
const IGNORE_OUTGOING: i32 = 23;
/// `struct packet_mreq` with `PACKET_MR_ALLMULTI` and `PACKET_MR_PROMISC`.
const ALL_MULTICAST: u16 = 2;
const PROMISCUOUS: u16 = 1;

/// Settings of an interface that is attached through AF_PACKET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of an Ethernet interface that is up.
    pub interface: String,
    /// Frames that the TX ring holds, 1 to 65,536. Each takes `gso_max_size` bytes of locked
    /// memory.
    pub tx_slots: usize,
    /// Packets that the RX ring holds, 1 to 65,536. Each takes a slot, however small it is.
    pub rx_slots: usize,
    /// Bytes of a slot of the RX ring, 256 to 69,632, with up to 128 bytes of headers in front of
    /// the packet. The kernel gets a power of two below a page (4096 bytes), and whole pages above.
    ///
    /// A larger packet waits in the receive queue of the socket and costs a system call. `None` is
    /// 2048, which a packet of an MTU of 1500 fits. If the system refuses the receive queue its
    /// `rx_queue_bytes`, `None` is 69,632, which every packet fits, and there are only as many
    /// slots as take the memory of `rx_slots` small ones and the queue.
    pub rx_slot_bytes: Option<usize>,
    /// Memory in bytes for packets that wait in the receive queue of the socket because they are
    /// larger than a slot, 0 to 1 GiB (`SO_RCVBUF`). It counts what the kernel allocated, which may
    /// be several times what arrived. With 0 such packets are lost and counted, unless slots hold
    /// them.
    ///
    /// More than twice `net.core.rmem_max` needs `CAP_NET_ADMIN` in the first user namespace.
    pub rx_queue_bytes: usize,
    /// Largest super-frame with its IP header, in bytes, at most 65,535.
    ///
    /// It should not exceed what the qdisc takes whole (`burst` of `tbf`). At or below the MTU
    /// there are no super-frames.
    pub gso_max_size: u32,
    /// Number of queues, 1 to 256. Each has a socket and a pair of rings. A hash of addresses and
    /// ports spreads the flows (`PACKET_FANOUT_CBPF`), and the stack serves a connection where its
    /// packets arrive.
    pub queues: usize,
    /// Whether packets for other Ethernet addresses are received too, as a bridge needs it
    /// (`PACKET_MR_PROMISC`). Packets of a VLAN are dropped and counted either way. A tag of VLAN 0
    /// has a priority alone, and is taken off.
    pub promiscuous: bool,
}

impl PacketConfig {
    /// Returns the default settings for an interface: 128 slots for super-frames of 65,535 bytes to
    /// send, 2048 slots and 8 MiB to receive, one queue.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            tx_slots: 128,
            rx_slots: 2048,
            rx_slot_bytes: None,
            rx_queue_bytes: 8 << 20,
            gso_max_size: u32::from(u16::MAX),
            queues: 1,
            promiscuous: false,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let within = |option, value: usize, allowed: RangeInclusive<usize>, range| {
            if allowed.contains(&value) {
                return Ok(());
            }
            Err(Error::OutOfRange { option, value: value as u64, range })
        };
        within("tx_slots", self.tx_slots, 1..=SLOTS_MAX, "1 to 65536")?;
        within("rx_slots", self.rx_slots, 1..=SLOTS_MAX, "1 to 65536")?;
        let slot = self.rx_slot_bytes.unwrap_or(RX_SLOT_DEFAULT);
        within("rx_slot_bytes", slot, RX_SLOT_MIN..=RX_SLOT_MAX, "256 to 69632")?;
        within("rx_queue_bytes", self.rx_queue_bytes, 0..=RX_QUEUE_MAX, "0 to 1073741824")?;
        within("queues", self.queues, 1..=QUEUES_MAX, "1 to 256")
    }

    /// How the RX ring lies in memory, where the receive queue of the socket may take
    /// `queue_bytes`.
    fn rx_geometry(&self, queue_bytes: usize, page: usize) -> Geometry {
        let small = RX_SLOT_DEFAULT;
        match self.rx_slot_bytes {
            Some(bytes) => Geometry::new(self.rx_slots, bytes, page),
            None if queue_bytes >= self.rx_queue_bytes => Geometry::new(self.rx_slots, small, page),
            None => {
                let memory = self.rx_slots * small + self.rx_queue_bytes;
                Geometry::new((memory / RX_SLOT_FULL).max(1), RX_SLOT_FULL, page)
            }
        }
    }
}

/// Interface of the kernel that is attached through AF_PACKET.
#[derive(Debug)]
pub struct Packet {
    name: String,
    capabilities: Capabilities,
    queues: Vec<Rings>,
    /// Of several queues.
    steering: Option<FlowHash>,
    monitor: Monitor,
}

/// One socket and its rings, set up in the order that the kernel wants.
#[derive(Debug)]
struct Rings {
    socket: Arc<OwnedFd>,
    tx: SlotRing,
    rx: SlotRing,
    /// Sends past the ring.
    direct: Option<Direct>,
    /// Every completion gives an edge of `EPOLLOUT`.
    wakes: bool,
    promiscuous: bool,
}

impl Packet {
    /// Attaches to the interface.
    ///
    /// # Errors
    /// [`Error::NoInterface`], [`Error::Down`], [`Error::NotEthernet`], [`Error::Permission`]
    /// without `CAP_NET_RAW`, [`Error::OutOfRange`]. Each says what to do.
    pub fn open(config: &PacketConfig) -> Result<Self, Error> {
        config.check()?;
        let interface = Interface::named(&config.interface)?;
        let sockets = (0..config.queues).map(|_| open_socket(&config.interface));
        let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        let mut packet = Self::over(sockets, config, &interface, true)?;
        let index = interface.index()?;
        for rings in &mut packet.queues {
            let socket = open_socket(&config.interface)?;
            let set_up = set_up_direct(&socket, index);
            set_up.map_err(|(call, errno)| Error::of(call, &config.interface, errno))?;
            rings.direct = Some(Direct::new(socket));
        }
        Ok(packet)
    }

    /// Takes over an AF_PACKET socket that somebody else has opened: a helper with the rights for
    /// it, or another process that hands its descriptor on.
    ///
    /// The socket must be of type `SOCK_RAW`; it becomes non-blocking, gets rings of the sizes that
    /// `config` says, and sees all protocols. If it is bound to an interface, that is the one, and
    /// `config.interface` is its name or empty; otherwise the socket is bound to
    /// `config.interface`. The interface may be in another network namespace: then its MTU is
    /// followed only when the socket has an error, and a link that is down is not told.
    ///
    /// # Errors
    /// [`Error::Descriptor`] if it is not an AF_PACKET socket of type `SOCK_RAW`;
    /// [`Error::BoundElsewhere`]; [`Error::OutOfRange`] for more than one queue; those of
    /// [`open`](Self::open).
    pub fn from_fd(fd: OwnedFd, config: &PacketConfig) -> Result<Self, Error> {
        config.check()?;
        if config.queues != 1 {
            let value = config.queues as u64;
            return Err(Error::OutOfRange { option: "queues", value, range: "1 for one socket" });
        }
        let wanted = "an AF_PACKET socket of type SOCK_RAW";
        let refused = |found| Error::Descriptor { found, wanted };
        let option = |name| sys::int_option(&fd, libc::SOL_SOCKET, name);
        match (option(libc::SO_DOMAIN), option(libc::SO_TYPE)) {
            (Ok(libc::AF_PACKET), Ok(libc::SOCK_RAW)) => {}
            (Ok(libc::AF_PACKET), _) => {
                return Err(refused("an AF_PACKET socket of another type"));
            }
            (Ok(_), _) => return Err(refused("a socket of another family")),
            (Err(_), _) => return Err(refused("not a socket")),
        }
        let failed = |call| move |errno: Errno| Error::of(call, "the descriptor", errno);
        let index = sys::bound_packet(&fd).map_err(failed("getsockname"))?;
        let index = match index {
            0 => Interface::named(&config.interface)?.index_by(&fd)?,
            index => index,
        };
        let interface = Interface::at(index, &fd)?;
        if !config.interface.is_empty() && config.interface != interface.name() {
            let (bound, name) = (interface.name().to_owned(), config.interface.clone());
            return Err(Error::BoundElsewhere { bound, name });
        }
        let status = rustix::fs::fcntl_getfl(&fd).map_err(failed("F_GETFL"))?;
        rustix::fs::fcntl_setfl(&fd, status | OFlags::NONBLOCK).map_err(failed("F_SETFL"))?;
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(failed("F_SETFD"))?;
        let is_here = is_in_this_namespace(&fd).unwrap_or(false);
        Self::over(vec![fd], config, &interface, is_here)
    }

    /// The device over sockets that have no rings yet.
    fn over(
        sockets: Vec<OwnedFd>,
        config: &PacketConfig,
        interface: &Interface,
        is_here: bool,
    ) -> Result<Self, Error> {
        let index = interface.index()?;
        let address = interface.ethernet_address()?;
        let name = interface.name().to_owned();
        if !interface.is_up()? {
            return Err(Error::Down { name });
        }
        let mtu = interface.mtu()?;
        let gso_max_size = config.gso_max_size.min(u16::MAX.into());
        let ip_max = gso_max_size.max(mtu.into()) as usize;
        let steering = (sockets.len() > 1).then(|| FlowHash::new(sockets.len()));
        let failed = |call| {
            let name = &name;
            move |errno: Errno| Error::of(call, name, errno)
        };
        let mut queues: Vec<Rings> = Vec::with_capacity(sockets.len());
        for socket in sockets {
            if steering.is_some() {
                sys::attach_filter(&socket, &FlowHash::nothing())
                    .map_err(failed("SO_ATTACH_FILTER"))?;
            }
            queues.push(Rings::over(socket, config, &name, index, ip_max)?);
        }
        if let Some(steering) = &steering {
            let sockets = || queues.iter().map(|rings| &*rings.socket);
            steering.join(sockets()).map_err(failed("PACKET_FANOUT"))?;
            for socket in sockets() {
                sys::detach_filter(socket).map_err(failed("SO_DETACH_FILTER"))?;
            }
        }
        let capabilities = Capabilities {
            medium: Medium::Ethernet(address),
            mtu,
            gso_max_size,
            gso_max_segs: u16::MAX.into(),
            gso_udp: false,
            checksum_tx: true,
            checksum_rx: true,
            completion: Completion::OnWire,
            pacing_shift: 10,
        };
        let monitor = Monitor::packet(
            queues.iter().map(|queue| queue.socket.clone()).collect(),
            index,
            is_here,
            u16::try_from(ip_max).unwrap_or(u16::MAX),
        );
        Ok(Self { name, capabilities, queues, steering, monitor })
    }

    /// Returns the abilities of the device.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Makes a device of it, for a stack.
    pub fn into_device(self) -> Device {
        let queues = self.queues.into_iter().map(Rings::into_queue_pair).collect();
        let monitor = Some(Box::new(self.monitor) as Box<dyn LinkMonitor>);
        let steering = self.steering.map(|steering| Arc::new(steering) as Arc<dyn Steering>);
        Device { name: self.name, capabilities: self.capabilities, queues, steering, monitor }
    }
}

impl Rings {
    fn over(
        socket: OwnedFd,
        config: &PacketConfig,
        name: &str,
        index: i32,
        ip_max: usize,
    ) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let tx_need = TX_DATA + virtio::HEADER_LEN + ETHERNET_HEADER + ip_max;
        let tx = Geometry::new(config.tx_slots, tx_need, page);
        let queue_bytes = enlarge_receive_queue(&socket, config.rx_queue_bytes);
        let rx = config.rx_geometry(queue_bytes, page);
        let keeps_large = config.rx_queue_bytes > 0;
        set_up(&socket, index, &tx, &rx, keeps_large, config.promiscuous)
            .map_err(|(call, errno)| Error::of(call, name, errno))?;
        let mapping = Mapping::new(&socket, rx.len() + tx.len())
            .map_err(|e| Error::of("mapping the rings", name, e))?;
        let mapping = Arc::new(mapping);
        let wakes = enlarge_send_buffer(&socket, tx.len());
        Ok(Self {
            socket: Arc::new(socket),
            tx: SlotRing::new(mapping.clone(), rx.len(), tx),
            rx: SlotRing::new(mapping, 0, rx),
            direct: None,
            wakes,
            promiscuous: config.promiscuous,
        })
    }

    fn into_queue_pair(self) -> QueuePair {
        let tx = PacketTx::new(self.socket.clone(), TxSlots::new(self.tx), self.direct, self.wakes);
        let rx = PacketRx::new(self.socket.clone(), self.rx, self.promiscuous);
        QueuePair { tx: Box::new(tx), rx: Box::new(rx), bulk: None, descriptor: Some(self.socket) }
    }
}

/// An AF_PACKET socket that receives nothing before it is bound.
fn open_socket(name: &str) -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS => {
            Error::Permission { action: "an AF_PACKET socket", capability: "CAP_NET_RAW" }
        }
        _ => Error::of("socket", name, errno),
    })
}

/// Whether a socket is in the network namespace of this thread; the system may not tell.
fn is_in_this_namespace(socket: &OwnedFd) -> rustix::io::Result<bool> {
    let flags = SocketFlags::CLOEXEC;
    let ours = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    Ok(sys::namespace_of_socket(socket)? == sys::namespace_of_socket(&ours)?)
}

/// Version and header before the rings, the rings before the bind. `keeps_large`: packets that are
/// larger than a slot wait in the receive queue.
///
/// The socket of somebody else may receive from all interfaces. It is bound to no protocol first,
/// and then the kernel empties its queue when the ring is made.
fn set_up(
    socket: &OwnedFd,
    index: i32,
    tx: &Geometry,
    rx: &Geometry,
    keeps_large: bool,
    promiscuous: bool,
) -> Result<(), (&'static str, Errno)> {
    let int = |call, name, value: i32| {
        sys::set_option(socket, libc::SOL_PACKET, name, &value).map_err(|errno| (call, errno))
    };
    sys::bind_packet(socket, index, 0).map_err(|errno| ("bind", errno))?;
    int("PACKET_VERSION", libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
    int("PACKET_VNET_HDR", libc::PACKET_VNET_HDR, 1)?;
    int("PACKET_IGNORE_OUTGOING", IGNORE_OUTGOING, 1)?;
    // With any value but 0 the kernel keeps the whole of each packet that is larger than a slot.
    int("PACKET_COPY_THRESH", libc::PACKET_COPY_THRESH, i32::from(keeps_large))?;
    let ring = |call, name, geometry: &Geometry| {
        sys::set_option(socket, libc::SOL_PACKET, name, &geometry.request()).map_err(|e| (call, e))
    };
    ring("PACKET_RX_RING", libc::PACKET_RX_RING, rx)?;
    ring("PACKET_TX_RING", libc::PACKET_TX_RING, tx)?;
    sys::bind_packet(socket, index, libc::ETH_P_ALL as u16).map_err(|errno| ("bind", errno))?;
    // Neighbour discovery asks by multicast groups that the kernel has not joined for our address.
    let mr_type = if promiscuous { PROMISCUOUS } else { ALL_MULTICAST };
    let groups = libc::packet_mreq { mr_ifindex: index, mr_type, mr_alen: 0, mr_address: [0; 8] };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &groups)
        .map_err(|errno| ("PACKET_ADD_MEMBERSHIP", errno))
}

/// Binds a socket without rings to the interface, so that it sends there. It is bound to no
/// protocol, and so it receives nothing.
fn set_up_direct(socket: &OwnedFd, index: i32) -> Result<(), (&'static str, Errno)> {
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1_i32)
        .map_err(|errno| ("PACKET_VNET_HDR", errno))?;
    sys::bind_packet(socket, index, 0).map_err(|errno| ("bind", errno))
}

/// Makes room for the whole ring several times over, truesize included. Returns whether the ring
/// then always stays below half of it, so that every completion wakes.
fn enlarge_send_buffer(socket: &OwnedFd, ring: usize) -> bool {
    let wanted = i32::try_from(ring.saturating_mul(2)).unwrap_or(i32::MAX / 2);
    let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &wanted)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &wanted));
    let got = sys::int_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    got as usize >= ring.saturating_mul(4)
}

/// Makes room for packets that are larger than a slot. Returns how many bytes of room there are.
fn enlarge_receive_queue(socket: &OwnedFd, wanted: usize) -> usize {
    let half = i32::try_from(wanted / 2).unwrap_or(i32::MAX / 2);
    let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &half)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &half));
    sys::int_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0).max(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_small_where_large_packets_have_room_elsewhere() {
        let config = PacketConfig::new("eth0");
        let small = config.rx_geometry(config.rx_queue_bytes, 4096);
        assert_eq!((small.slot_size, small.slots()), (2048, 2048));
        let full = config.rx_geometry(425_984, 4096);
        assert_eq!(full.slot_size, 17 * 4096);
        let memory = small.len() + config.rx_queue_bytes;
        assert!(full.slots() > 128 && full.len() <= memory + (1 << 20), "{full:?}");
        let chosen = PacketConfig { rx_slot_bytes: Some(9000), ..config };
        assert_eq!(chosen.rx_geometry(0, 4096).slot_size, 12_288);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |change: fn(&mut PacketConfig)| {
            let mut config = PacketConfig::new("eth0");
            change(&mut config);
            match config.check() {
                Err(Error::OutOfRange { option, .. }) => option,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(|config| config.rx_slots = 0), "rx_slots");
        assert_eq!(refused(|config| config.rx_slots = SLOTS_MAX + 1), "rx_slots");
        assert_eq!(refused(|config| config.rx_slot_bytes = Some(255)), "rx_slot_bytes");
        assert_eq!(refused(|config| config.rx_slot_bytes = Some(RX_SLOT_MAX + 1)), "rx_slot_bytes");
        assert_eq!(refused(|config| config.rx_queue_bytes = RX_QUEUE_MAX + 1), "rx_queue_bytes");
        assert_eq!(refused(|config| config.queues = 0), "queues");
    }
}
