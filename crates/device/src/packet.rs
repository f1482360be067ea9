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
//! **Waking the driver.** `EPOLLOUT` is level-triggered always on, and useless. Registered with
//! `EPOLLIN | EPOLLOUT | EPOLLET`, the descriptor gives an edge for every completion, as long as
//! less than half of `SO_SNDBUF` is in the kernel (`sock_def_write_space`). Seen on 6.18: 64 KB
//! frames in `tbf` at 100 Mbit/s, one edge each 5.3 ms; with the default `SO_SNDBUF`, edges only
//! below 104 KB. So the buffer is made four times the ring (`SO_SNDBUFFORCE`), and `next_event` is
//! only a watchdog. Where the system refuses that (it wants `CAP_NET_ADMIN` in the initial user
//! namespace, so also under `unshare -rn`), `next_event` asks for a poll every 200 us while frames
//! are out.
//!
//! **Receiving.** TPACKET_V2 slots, each large enough for a coalesced packet of 64 KB; V3 would
//! hold small packets back until a block is full or a millisecond has passed. Packets are copied to
//! pooled memory and the slot goes back at once. What this host sends itself is not seen.
//!
//! **The kernel is still there.** It sees every received packet too. The stack's address must not
//! be configured on any interface of the kernel here: the kernel would answer the same segments,
//! with RST as it knows no such connection, and ARP twice. Without the address it drops them,
//! unless it forwards (`net.ipv4.ip_forward=1`), when it may send them on, or redirects.

mod receive;
mod transmit;

use crate::error::Error;
use crate::link::Interface;
use crate::monitor::Monitor;
use crate::ring::{Geometry, RX_DATA_MAX, SlotRing, TX_DATA};
use crate::sys::{self, Mapping};
use crate::{arena, virtio};
use neap_stack::device::{Capabilities, Completion, Device, LinkMonitor, Medium, QueuePair};
use receive::PacketRx;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::sync::Arc;
use transmit::{PacketTx, TxSlots};

const ETHERNET_HEADER: usize = 14;
const SLOTS_MAX: usize = 65_536;
const QUEUES_MAX: usize = 256;
/// `PACKET_FANOUT_HASH`: a flow stays with one queue.
const FANOUT_HASH: i32 = 0;
const FANOUT_UNIQUE_ID: i32 = 0x2000;
const IGNORE_OUTGOING: i32 = 23;
/// `struct packet_mreq` with `PACKET_MR_ALLMULTI`.
const ALL_MULTICAST: u16 = 2;

/// Settings of an interface that is attached through AF_PACKET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of an Ethernet interface that is up.
    pub interface: String,
    /// Frames that the TX ring holds, 1 to 65,536. Each takes `gso_max_size` bytes of locked
    /// memory.
    pub tx_slots: usize,
    /// Packets that the RX ring holds, 1 to 65,536. Each takes 68 KB of locked memory.
    pub rx_slots: usize,
    /// Largest super-frame with its IP header, in bytes, at most 65,535.
    ///
    /// It should not exceed what the qdisc takes whole (`burst` of `tbf`). At or below the MTU
    /// there are no super-frames.
    pub gso_max_size: u32,
    /// Number of queues, 1 to 256. Each has a socket and a pair of rings; flows are spread by hash
    /// (`PACKET_FANOUT`).
    pub queues: usize,
}

impl PacketConfig {
    /// Returns the default settings for an interface: 128 slots each way, super-frames of 65,535
    /// bytes, one queue.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            tx_slots: 128,
            rx_slots: 128,
            gso_max_size: u32::from(u16::MAX),
            queues: 1,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let within = |option, value: usize, max, range| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(Error::OutOfRange { option, value: value as u64, range })
        };
        within("tx_slots", self.tx_slots, SLOTS_MAX, "1 to 65536")?;
        within("rx_slots", self.rx_slots, SLOTS_MAX, "1 to 65536")?;
        within("queues", self.queues, QUEUES_MAX, "1 to 256")
    }
}

/// Interface of the kernel that is attached through AF_PACKET.
#[derive(Debug)]
pub struct Packet {
    name: String,
    capabilities: Capabilities,
    queues: Vec<Rings>,
    monitor: Monitor,
}

/// One socket and its rings, set up in the order that the kernel wants.
#[derive(Debug)]
struct Rings {
    socket: Arc<OwnedFd>,
    tx: SlotRing,
    rx: SlotRing,
    /// Every completion gives an edge of `EPOLLOUT`.
    wakes: bool,
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
        Self::over(sockets, config, &interface, true)
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
        let mut queues: Vec<Rings> = Vec::with_capacity(sockets.len());
        for socket in sockets {
            let rings = Rings::over(socket, config, &name, index, ip_max)?;
            if config.queues > 1 {
                join_fanout(&rings.socket, queues.first().map(|first| &*first.socket))
                    .map_err(|e| Error::of("PACKET_FANOUT", &name, e))?;
            }
            queues.push(rings);
        }
        let capabilities = Capabilities {
            medium: Medium::Ethernet(address),
            mtu,
            gso_max_size,
            gso_max_segs: u16::MAX.into(),
            checksum_tx: true,
            checksum_rx: true,
            completion: Completion::OnWire,
            pacing_shift: 10,
        };
        let monitor = Monitor::packet(queues[0].socket.clone(), index, is_here);
        Ok(Self { name, capabilities, queues, monitor })
    }

    /// Returns the abilities of the device.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Makes a device of it, for a stack.
    pub fn into_device(self) -> Device {
        let queues = self.queues.into_iter().map(Rings::into_queue_pair).collect();
        let monitor = Some(Box::new(self.monitor) as Box<dyn LinkMonitor>);
        Device { name: self.name, capabilities: self.capabilities, queues, monitor }
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
        let rx = Geometry::new(config.rx_slots, RX_DATA_MAX + arena::PACKET_ROOM, page);
        set_up(&socket, index, &tx, &rx).map_err(|(call, errno)| Error::of(call, name, errno))?;
        let mapping = Mapping::new(&socket, rx.len() + tx.len())
            .map_err(|e| Error::of("mapping the rings", name, e))?;
        let mapping = Arc::new(mapping);
        let wakes = enlarge_send_buffer(&socket, tx.len());
        Ok(Self {
            socket: Arc::new(socket),
            tx: SlotRing::new(mapping.clone(), rx.len(), tx),
            rx: SlotRing::new(mapping, 0, rx),
            wakes,
        })
    }

    fn into_queue_pair(self) -> QueuePair {
        let tx = PacketTx::new(self.socket.clone(), TxSlots::new(self.tx), self.wakes);
        let rx = PacketRx::new(self.socket.clone(), self.rx);
        QueuePair { tx: Box::new(tx), rx: Box::new(rx), descriptor: Some(self.socket) }
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

/// Version and header before the rings, the rings before the bind.
fn set_up(
    socket: &OwnedFd,
    index: i32,
    tx: &Geometry,
    rx: &Geometry,
) -> Result<(), (&'static str, Errno)> {
    let int = |call, name, value: i32| {
        sys::set_option(socket, libc::SOL_PACKET, name, &value).map_err(|errno| (call, errno))
    };
    int("PACKET_VERSION", libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as i32)?;
    int("PACKET_VNET_HDR", libc::PACKET_VNET_HDR, 1)?;
    int("PACKET_IGNORE_OUTGOING", IGNORE_OUTGOING, 1)?;
    let ring = |call, name, geometry: &Geometry| {
        sys::set_option(socket, libc::SOL_PACKET, name, &geometry.request()).map_err(|e| (call, e))
    };
    ring("PACKET_RX_RING", libc::PACKET_RX_RING, rx)?;
    ring("PACKET_TX_RING", libc::PACKET_TX_RING, tx)?;
    sys::bind_packet(socket, index).map_err(|errno| ("bind", errno))?;
    // Neighbour discovery asks by multicast groups that the kernel has not joined for our address.
    let groups = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: ALL_MULTICAST,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &groups)
        .map_err(|errno| ("PACKET_ADD_MEMBERSHIP", errno))
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

/// Joins the fan-out group of `first`, or opens one with an id that nobody else has.
fn join_fanout(socket: &OwnedFd, first: Option<&OwnedFd>) -> rustix::io::Result<()> {
    let value = match first {
        None => (FANOUT_HASH | FANOUT_UNIQUE_ID) << 16,
        Some(first) => {
            let group = sys::int_option(first, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
            FANOUT_HASH << 16 | group & 0xffff
        }
    };
    sys::set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
}
