//! TUN and TAP devices with the virtio-net header: super-frames and unfinished checksums both ways.
//!
//! One `writev` sends a frame, headers and payload slices together, and its return is the
//! completion ([`Completion::OnSubmit`]): the kernel has copied the frame and takes it through its
//! receive path before the call returns. Nothing below tells when the bytes left the host, so small
//! queues and BQL see an empty device; the bound is what the application's thread can write.
//!
//! One `read` receives a packet, up to 64 KB of them coalesced, into a block that is used again
//! when all slices of it were dropped.
//!
//! The kernel keeps packets for `read` in a ring for each queue, and drops what finds it full: it
//! tells no sender to wait, and takes the packets off the account of their sockets. So the ring
//! has to hold the windows of all connections together ([`TunConfig::queue_packets`]).
//!
//! With several queues the kernel hands a packet to the queue by which its flow was last written to
//! (`tun_automq_select_queue`). A connection writes to the queue of its shard, whatever shard that
//! is, so its packets arrive there. A flow in which nothing was written for three seconds is
//! forgotten; its next packet comes to a queue by its hash.
//!
//! Each queue of the device has two of the kernel's by default, one of them for flows that move
//! bulk data. Such a flow writes to that one, and packets of other flows do not wait behind its
//! packets ([`TunConfig::bulk_queue`]).
//!
//! Where the process has the right, a thread of the kernel takes what leaves by the bulk queue
//! through the receive path ([`TunConfig::bulk_threads`]). The write then ends when the frame is
//! copied, and the work of the receiving side is done on another processor: an ACK makes its sender
//! send, and wakes it. The queue of the thread holds 512 KiB. A frame that finds it full stays in
//! the device with its credit, so small queues count it; the descriptor becomes writable when half
//! of the 512 KiB is free.
//!
//! For the driver: the descriptor is always writable in practice; wait for input only
//! (`EPOLLIN`), or edge-triggered for both.

use crate::arena::Arena;
use crate::clock;
use crate::error::Error;
use crate::link::Interface;
use crate::monitor::{Monitor, Station, other_end};
use crate::netlink;
use crate::sys::{self, InterfaceName};
use crate::threaded;
use crate::virtio;
use crate::write::write_frame;
use bytes::BytesMut;
use core::iter;
use neap_stack::device::{
    BulkQueue, Capabilities, Completed, Completion, Device, LinkMonitor, Medium, QueuePair,
    Received, RxChecksum, RxQueue, TxQueue,
};
use neap_stack::frame::Frame;
use neap_tcp::time::{Instant, Nanos};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use std::collections::VecDeque;
use std::sync::Arc;

#[cfg(test)]
mod tests;

const PATH: &str = "/dev/net/tun";
/// What [`Tun::from_fd`] takes.
const WANTED: &str = "one of /dev/net/tun after TUNSETIFF with IFF_NO_PI";
/// The name when none is given; the kernel puts the first free number in it.
const NAME_PATTERN: &str = "neap%d";
/// Packets that the ring of a queue holds by default: 64 KB, the first window of a connection, of
/// a thousand connections in frames of a quarter of it. The ring itself has 32 KiB.
const QUEUE_PACKETS: u32 = 4096;
const QUEUE_PACKETS_MAX: u32 = 65_536;
/// `MAX_TAP_QUEUES` of the kernel.
const QUEUES_MAX: usize = 256;
/// Bytes of frames that the kernel's thread of a bulk queue may hold, with the kernel's
/// bookkeeping.
const BULK_SEND_BUFFER: i32 = 512 << 10;
/// A queue with this bound of its send buffer is writable when it holds nothing: the kernel
/// compares half of it with one more than it holds.
const LEAST_SEND_BUFFER: i32 = 4;
/// How long a device that is closed waits for the kernel to take its frames.
const DRAIN_TIME: Nanos = Nanos::from_millis(500);
/// Frames of bulk flows that wait for room in the kernel; more wait in the qdisc, in front of all
/// others.
const HELD_MAX: usize = 16_384;
/// When a write that found no memory is tried again, if no other event comes first.
const RETRY: Nanos = Nanos::from_millis(1);
/// Packets that cannot be received that one call skips.
const SKIPPED_MAX: usize = 64;
/// `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN`.
const OFFLOAD: u32 = 0x1 | 0x2 | 0x4 | 0x8;
/// `TUN_F_USO4 | TUN_F_USO6`: super-frames of UDP. The kernel wants both or neither.
const OFFLOAD_UDP: u32 = 0x20 | 0x40;

/// Settings of a TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the interface to make or to join; `None` takes the first free of `neap0`, `neap1`,
    /// ...
    pub name: Option<String>,
    /// Number of queues, 1 to 256. Each has a descriptor, and the kernel spreads flows over them.
    pub queues: usize,
    /// Whether the interface stays when the device is closed.
    pub persistent: bool,
    /// Whether super-frames and partial checksums pass both ways (`IFF_VNET_HDR`), or plain
    /// packets.
    pub offload: bool,
    /// Whether the device carries Ethernet frames (TAP) instead of IP packets.
    pub tap: bool,
    /// Largest super-frame that is sent, with its IP header, in bytes; at most 65,535.
    pub gso_max_size: u32,
    /// Least number of packets that wait in the kernel for each queue to be read (`txqueuelen`), 1
    /// to 65,536; the kernel drops what comes beyond. A longer queue stays as it is. With `None`
    /// the length is not changed; the kernel's default is 500. It is not changed either where the
    /// process lacks `CAP_NET_ADMIN` over an interface that exists already.
    ///
    /// Packets that wait hold the memory of the kernel, up to 64 KB each.
    pub queue_packets: Option<u32>,
    /// Whether flows that move bulk data have a queue of their own, so that packets of other flows
    /// do not wait behind theirs. Each of the `queues` then takes two of the kernel's 256. An
    /// interface that somebody made without `IFF_MULTI_QUEUE` is joined without.
    pub bulk_queue: bool,
    /// Whether a thread of the kernel takes the frames of a bulk queue through the receive path
    /// (`IFF_NAPI` and threaded NAPI), and not the thread that writes them. A hundred flows are
    /// received twice as fast so. Frames of a flow that takes turns with its peer stay with the
    /// writing thread while no other flow receives in bulk.
    ///
    /// The thread has the share of the processors that kernel threads have. Where all processors
    /// are busy and the session or the control group of the process has a much larger share, frames
    /// wait for the thread. They have waited for seconds beside a session with 14 times its share.
    ///
    /// Where the process is the machine's superuser, the thread is one of `SCHED_BATCH`. It keeps
    /// its share then, and does not interrupt the program that reads what it has brought.
    ///
    /// It needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN` in the user namespace of the network namespace,
    /// a kernel of version 5.12 or newer, and no other mount over parts of `/sys`. Otherwise the
    /// writing thread does the work.
    pub bulk_threads: bool,
}

impl Default for TunConfig {
    fn default() -> Self {
        Self {
            name: None,
            queues: 1,
            persistent: false,
            offload: true,
            tap: false,
            gso_max_size: u32::from(u16::MAX),
            queue_packets: Some(QUEUE_PACKETS),
            bulk_queue: true,
            bulk_threads: true,
        }
    }
}

/// Descriptors of one queue of a device that are handed to another process ([`Tun::into_queues`]).
#[derive(Debug)]
pub struct TunQueue {
    /// That of the queue.
    pub main: OwnedFd,
    /// That of the queue for bulk, if there is one ([`TunConfig::bulk_queue`]).
    pub bulk: Option<OwnedFd>,
    /// Whether a thread of the kernel takes what leaves by `bulk` ([`TunConfig::bulk_threads`]).
    pub has_bulk_thread: bool,
}

impl From<OwnedFd> for TunQueue {
    fn from(main: OwnedFd) -> Self {
        Self { main, bulk: None, has_bulk_thread: false }
    }
}

impl From<TunQueue> for Descriptors {
    fn from(TunQueue { main, bulk, has_bulk_thread }: TunQueue) -> Self {
        let is_threaded = has_bulk_thread;
        let bulk = bulk.map(|fd| Bulk { fd: Arc::new(fd), is_threaded });
        Self { main: Arc::new(main), bulk }
    }
}

/// The kernel's queues that one queue of the device has.
#[derive(Debug)]
struct Descriptors {
    /// For flows that do not move bulk data.
    main: Arc<OwnedFd>,
    bulk: Option<Bulk>,
}

/// The kernel's queue for flows that move bulk data.
#[derive(Clone, Debug)]
struct Bulk {
    fd: Arc<OwnedFd>,
    /// A thread of the kernel takes the frames, and holds no more than [`BULK_SEND_BUFFER`].
    is_threaded: bool,
}

/// Open TUN or TAP device.
#[derive(Debug)]
pub struct Tun {
    name: String,
    queues: Vec<Descriptors>,
    offload: bool,
    capabilities: Capabilities,
    monitor: Monitor,
}

impl Tun {
    /// Makes the interface, or joins it if it exists. A new interface is down and has no address
    /// until [`configure_link`](crate::configure_link).
    ///
    /// # Errors
    /// [`Error::NoTunDriver`], [`Error::TunNode`], [`Error::Permission`], [`Error::Busy`],
    /// [`Error::OtherKind`], [`Error::BadName`], [`Error::OutOfRange`]. Each says what to do.
    pub fn open(config: &TunConfig) -> Result<Self, Error> {
        check_queues(config.queues)?;
        check_queue_packets(config.queue_packets)?;
        let name = config.name.as_deref().unwrap_or(NAME_PATTERN);
        refuse_device_in_use(name)?;
        let wants_bulk = config.bulk_queue && config.queues <= QUEUES_MAX / 2;
        let (name, queues) = match open_queues(name, config, wants_bulk) {
            Err(Error::OtherKind { .. }) if wants_bulk => open_queues(name, config, false)?,
            opened => opened?,
        };
        let interface = Interface::named(&name)?;
        if let Some(packets) = config.queue_packets {
            interface.lengthen_queue(packets)?;
        }
        let (index, mtu) = (interface.index()?, interface.mtu()?);
        let tun = Self::over(name, queues, config, Some(index), mtu)?;
        // Only now, so that nothing stays of an attempt that failed. It holds for all queues.
        if config.persistent {
            let made = sys::tun_set_persistent(&tun.queues[0].main);
            made.map_err(|errno| Error::of("TUNSETPERSIST", &tun.name, errno))?;
        }
        Ok(tun)
    }

    /// Takes over a TUN or TAP device that somebody else has opened: a helper with the rights for
    /// it, the manager of a container, another process that hands its descriptor on.
    ///
    /// Whether it is TUN or TAP, and whether it has the virtio-net header (`IFF_VNET_HDR`), is read
    /// from the descriptor, which becomes non-blocking. Super-frames and partial checksums are
    /// switched on if it has the header. The interface may be in another network namespace. Then
    /// its MTU is `mtu`, only its end is noticed of what becomes of it, and whoever opened it has
    /// to have set `IFF_NO_PI`, which cannot be seen. Otherwise MTU and link are those of the
    /// interface, and `mtu` does not count.
    ///
    /// # Errors
    /// [`Error::Descriptor`] if it is not a TUN or TAP device, belongs to no interface, or was
    /// opened without `IFF_NO_PI`. [`Error::UnknownMtu`] if the MTU is neither known nor given.
    pub fn from_fd(fd: OwnedFd, mtu: Option<u16>) -> Result<Self, Error> {
        Self::from_fds(vec![fd], mtu)
    }

    /// Takes over a TUN or TAP device as [`from_fd`](Self::from_fd), with several queues: each
    /// descriptor is one of them (`IFF_MULTI_QUEUE`).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for no descriptor or more than 256; [`Error::Descriptor`] also if they
    /// are not all of one device; those of [`from_fd`](Self::from_fd).
    pub fn from_fds(fds: Vec<OwnedFd>, mtu: Option<u16>) -> Result<Self, Error> {
        Self::from_queues(fds.into_iter().map(TunQueue::from).collect(), mtu)
    }

    /// Takes over what [`into_queues`](Self::into_queues) has given away, as
    /// [`from_fds`](Self::from_fds).
    ///
    /// # Errors
    /// Those of [`from_fds`](Self::from_fds).
    pub fn from_queues(queues: Vec<TunQueue>, mtu: Option<u16>) -> Result<Self, Error> {
        check_queues(queues.len())?;
        let first = &queues[0].main;
        let (name, flags) = Self::identity(first)?;
        let namespace = |fd| namespace_of(fd).ok();
        let fds = || queues.iter().flat_map(|queue| iter::once(&queue.main).chain(&queue.bulk));
        for fd in fds().skip(1) {
            if Self::identity(fd)?.0 != name || namespace(fd) != namespace(first) {
                let found = "a queue of another TUN device than the first";
                return Err(Error::Descriptor { found, wanted: "queues of one device" });
            }
        }
        let failed = |call| move |errno: Errno| Error::of(call, "the descriptor", errno);
        let has_header = flags & libc::IFF_VNET_HDR != 0;
        for fd in fds() {
            let status = rustix::fs::fcntl_getfl(fd).map_err(failed("F_GETFL"))?;
            rustix::fs::fcntl_setfl(fd, status | OFlags::NONBLOCK).map_err(failed("F_SETFL"))?;
            rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).map_err(failed("F_SETFD"))?;
            if has_header {
                set_header_len(fd, &name)?;
            }
        }
        // Whoever had the device before may have ended without setting it back.
        let threaded = queues.iter().find(|queue| queue.has_bulk_thread);
        if let Some(bulk) = threaded.and_then(|queue| queue.bulk.as_ref()) {
            let bound = sys::tun_set_send_buffer(bulk, BULK_SEND_BUFFER);
            bound.map_err(failed("TUNSETSNDBUF"))?;
        }
        let is_here = is_in_this_namespace(first).unwrap_or(false);
        let interface = if is_here { Some(Interface::named(&name)?) } else { None };
        let index = interface.as_ref().map(Interface::index).transpose()?;
        if index.is_some_and(|index| netlink::has_packet_information(index).unwrap_or(false)) {
            let found = "a TUN device with packet information in front of packets";
            return Err(Error::Descriptor { found, wanted: WANTED });
        }
        let known = interface.as_ref().map(Interface::mtu).transpose()?;
        let mtu = known.or(mtu).ok_or_else(|| Error::UnknownMtu { name: name.clone() })?;
        let config = TunConfig {
            offload: has_header,
            tap: flags & libc::IFF_TAP != 0,
            ..TunConfig::default()
        };
        let queues = queues.into_iter().map(Descriptors::from).collect();
        Self::over(name, queues, &config, index, mtu)
    }

    /// The name and the flags of the device that a descriptor belongs to.
    fn identity(fd: &OwnedFd) -> Result<(String, i32), Error> {
        let (name, flags) = sys::tun_interface(fd).map_err(|errno| {
            let found = match errno {
                Errno::BADFD => "a TUN device that belongs to no interface",
                _ => "not a TUN or TAP device",
            };
            Error::Descriptor { found, wanted: WANTED }
        })?;
        Ok((name.to_text(), flags))
    }

    /// The device over descriptors that are set up. `index` is that of the interface if it is in
    /// this namespace.
    fn over(
        name: String,
        queues: Vec<Descriptors>,
        config: &TunConfig,
        index: Option<i32>,
        mtu: u16,
    ) -> Result<Self, Error> {
        let (mut medium, mut station) = (Medium::Ip, Station::None);
        if config.tap {
            let (_, address) = sys::tun_hardware(&queues[0].main)
                .map_err(|errno| Error::of("SIOCGIFHWADDR", &name, errno))?;
            (medium, station) = (Medium::Ethernet(other_end(address)), Station::OtherEnd);
        }
        let gso = config.offload;
        let gso_udp = if gso {
            switch_offload_on(&queues[0].main, &name)?
        } else {
            // Whoever had a persistent device before may have left it on.
            sys::tun_set_offload(&queues[0].main, 0)
                .map_err(|errno| Error::of("TUNSETOFFLOAD", &name, errno))?;
            false
        };
        let capabilities = Capabilities {
            medium,
            mtu,
            gso_max_size: if gso { config.gso_max_size.min(u16::MAX.into()) } else { 0 },
            gso_max_segs: if gso { u16::MAX.into() } else { 1 },
            gso_udp,
            checksum_tx: config.offload,
            checksum_rx: config.offload,
            completion: Completion::OnSubmit,
            pacing_shift: 10,
        };
        let monitor = Monitor::tun(queues[0].main.clone(), index, station);
        Ok(Self { name, queues, offload: config.offload, capabilities, monitor })
    }

    /// Gives the stack's end of a TAP an Ethernet address of its own. Without it the address is
    /// that of the interface with the last bit turned over. A TUN has none.
    #[must_use]
    pub fn with_address(mut self, address: [u8; 6]) -> Self {
        if matches!(self.capabilities.medium, Medium::Ethernet(_)) {
            self.capabilities.medium = Medium::Ethernet(address);
            self.monitor.keep_address();
        }
        self
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the abilities of the device, with the MTU of the moment when it was opened.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Gives the queues away, for [`from_queues`](Self::from_queues) in another process: that which
    /// makes the interface is in a network namespace of its own, and that with the stack is not.
    /// The interface lives as long as a descriptor.
    pub fn into_queues(self) -> Vec<TunQueue> {
        let Self { queues, monitor, .. } = self;
        // It shares the first descriptor.
        drop(monitor);
        let own = |fd| Arc::into_inner(fd).expect("nobody else has it before there is a device");
        let give = |Descriptors { main, bulk }| TunQueue {
            main: own(main),
            has_bulk_thread: bulk.as_ref().is_some_and(|bulk: &Bulk| bulk.is_threaded),
            bulk: bulk.map(|bulk| own(bulk.fd)),
        };
        queues.into_iter().map(give).collect()
    }

    /// Makes a device of it, for a stack, with the MTU that the interface has now.
    pub fn into_device(mut self) -> Device {
        let mut capabilities = self.capabilities;
        capabilities.mtu = self.monitor.look().mtu.unwrap_or(capabilities.mtu);
        let offload = self.offload;
        let queues = self.queues.into_iter().map(|queue| queue_pair(queue, offload)).collect();
        let monitor = Some(Box::new(self.monitor) as Box<dyn LinkMonitor>);
        Device { name: self.name, capabilities, queues, steering: None, monitor }
    }
}

fn check_queues(queues: usize) -> Result<(), Error> {
    if (1..=QUEUES_MAX).contains(&queues) {
        return Ok(());
    }
    Err(Error::OutOfRange { option: "queues", value: queues as u64, range: "1 to 256" })
}

fn check_queue_packets(packets: Option<u32>) -> Result<(), Error> {
    match packets {
        Some(value) if !(1..=QUEUE_PACKETS_MAX).contains(&value) => Err(Error::OutOfRange {
            option: "queue_packets",
            value: value.into(),
            range: "1 to 65536",
        }),
        _ => Ok(()),
    }
}

/// Fails if somebody has queues of a device with several queues open. The kernel would add ours to
/// them, and the flows would be spread over both processes.
fn refuse_device_in_use(name: &str) -> Result<(), Error> {
    let Ok(index) = Interface::named(name).and_then(|interface| interface.index()) else {
        return Ok(());
    };
    // A process that may not ask is not kept from opening.
    match netlink::open_tun_queues(index) {
        Ok(Some(1..)) => Err(Error::Busy { name: name.to_owned() }),
        _ => Ok(()),
    }
}

/// Opens all queues; returns the name that the kernel gave with them.
fn open_queues(
    name: &str,
    config: &TunConfig,
    with_bulk: bool,
) -> Result<(String, Vec<Descriptors>), Error> {
    let mut name = name.to_owned();
    let mut bulk = Vec::new();
    if with_bulk {
        bulk = open_bulk_queues(&mut name, config)?;
    }
    let flags = if with_bulk || config.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let main = open_each(&mut name, config, flags)?;
    let bulk = bulk.into_iter().map(Some).chain(iter::repeat(None));
    let queues = main.into_iter().zip(bulk).map(|(main, bulk)| Descriptors { main, bulk });
    Ok((name, queues.collect()))
}

/// Opens the queues for bulk, before all others: the bound of their send buffers holds for those
/// that the device has by then. They are served by threads of the kernel where that can be had.
fn open_bulk_queues(name: &mut String, config: &TunConfig) -> Result<Vec<Bulk>, Error> {
    let bulk = |is_threaded| move |fd| Bulk { fd, is_threaded };
    if config.bulk_threads {
        let mut threaded = name.clone();
        let known = threaded::Known::look();
        let flags = libc::IFF_MULTI_QUEUE | libc::IFF_NAPI;
        let queues = open_each(&mut threaded, config, flags)?;
        let bound = || sys::tun_set_send_buffer(&queues[0], BULK_SEND_BUFFER);
        if threaded::enable(&threaded).and_then(|()| bound()).is_ok() {
            known.calm_new(&threaded);
            *name = threaded;
            return Ok(queues.into_iter().map(bulk(true)).collect());
        }
    }
    let queues = open_each(name, config, libc::IFF_MULTI_QUEUE)?;
    Ok(queues.into_iter().map(bulk(false)).collect())
}

/// Opens one queue of the kernel for each of the device; `name` becomes that of the interface.
fn open_each(
    name: &mut String,
    config: &TunConfig,
    flags: i32,
) -> Result<Vec<Arc<OwnedFd>>, Error> {
    let open = |_| {
        let (fd, got) = open_queue(name, config, flags)?;
        *name = got;
        Ok(Arc::new(fd))
    };
    (0..config.queues).map(open).collect()
}

/// Opens a queue with these flags beside those of the configuration.
fn open_queue(name: &str, config: &TunConfig, more_flags: i32) -> Result<(OwnedFd, String), Error> {
    let interface =
        InterfaceName::new(name).ok_or_else(|| Error::BadName { name: name.to_owned() })?;
    let mode = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(PATH, mode, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => Error::NoTunDriver,
        // What lacks a capability opens the node, and fails at TUNSETIFF.
        Errno::ACCESS => Error::TunNode,
        _ => Error::of("opening /dev/net/tun", PATH, errno),
    })?;
    let kind = if config.tap { libc::IFF_TAP } else { libc::IFF_TUN };
    let mut flags = libc::IFF_NO_PI | kind | more_flags;
    if config.offload {
        flags |= libc::IFF_VNET_HDR;
    }
    let name = sys::tun_set_interface(&fd, interface, flags).map_err(|errno| match errno {
        Errno::BUSY => Error::Busy { name: name.to_owned() },
        Errno::INVAL => Error::OtherKind { name: name.to_owned() },
        _ => Error::of("making a TUN device", name, errno),
    })?;
    if config.offload {
        set_header_len(&fd, &name)?;
    }
    Ok((fd, name))
}

fn set_header_len(fd: &OwnedFd, name: &str) -> Result<(), Error> {
    let len = virtio::HEADER_LEN as i32;
    let has_len = sys::tun_has_header_len(fd, len);
    if !has_len.map_err(|e| Error::of("TUNGETVNETHDRSZ", name, e))? {
        sys::tun_set_header_len(fd, len).map_err(|e| Error::of("TUNSETVNETHDRSZ", name, e))?;
    }
    Ok(())
}

/// Offers to take super-frames and partial checksums, which holds for all queues of the device.
/// Returns whether super-frames of UDP are among them. A kernel older than 6.2 refuses those, and
/// takes none either.
fn switch_offload_on(fd: &OwnedFd, name: &str) -> Result<bool, Error> {
    if sys::tun_set_offload(fd, OFFLOAD | OFFLOAD_UDP).is_ok() {
        return Ok(true);
    }
    sys::tun_set_offload(fd, OFFLOAD).map_err(|e| Error::of("TUNSETOFFLOAD", name, e))?;
    Ok(false)
}

/// Whether the interface of a TUN device is in the network namespace of this thread; the system may
/// refuse to tell.
fn is_in_this_namespace(fd: &OwnedFd) -> rustix::io::Result<bool> {
    let ours = rustix::fs::stat("/proc/thread-self/ns/net")?;
    Ok(namespace_of(fd)? == (ours.st_dev, ours.st_ino))
}

/// The network namespace of the interface of a TUN device, as device and inode of its file.
fn namespace_of(fd: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let theirs = rustix::fs::fstat(sys::tun_namespace(fd)?)?;
    Ok((theirs.st_dev, theirs.st_ino))
}

fn queue_pair(Descriptors { main, bulk }: Descriptors, offload: bool) -> QueuePair {
    let receive = |fd| TunRx { fd, reader: Reader::new(offload) };
    let tx = TunTx::new(main.clone(), bulk.clone(), offload);
    let bulk = bulk.map(|Bulk { fd, is_threaded }| BulkQueue {
        rx: Box::new(receive(fd.clone())),
        descriptor: Some(fd),
        is_bounded: is_threaded,
    });
    let rx = receive(main.clone());
    QueuePair { tx: Box::new(tx), rx: Box::new(rx), bulk, descriptor: Some(main) }
}

/// Cost: one system call per frame, no copy and no allocation of ours. While the kernel's bulk
/// queue is full, two system calls more per poll.
struct TunTx {
    fd: Arc<OwnedFd>,
    bulk: Option<Bulk>,
    /// Frames of bulk flows that the kernel had no room for, in their order. They keep their
    /// credits, so small queues bound them, and other frames do not wait for them.
    held: VecDeque<Frame>,
    writer: Writer,
    retry_at: Instant,
}

struct Writer {
    offload: bool,
    /// Since the last `reap`.
    completed: Completed,
    errors: u64,
}

impl Writer {
    /// Writes a frame, or counts it as an error. Returns why it is to be written again later.
    fn write(&mut self, fd: &OwnedFd, frame: &Frame) -> Result<(), Errno> {
        let result = if self.offload {
            virtio::Header::of(frame)
                .map_or(Err(Errno::INVAL), |header| write_frame(fd, Some(&header.encode()), frame))
        } else {
            write_frame(fd, None, frame)
        };
        match result {
            Ok(_) => {}
            Err(errno @ (Errno::AGAIN | Errno::NOBUFS)) => return Err(errno),
            Err(_) => self.errors += 1,
        }
        self.completed.frames += 1;
        self.completed.bytes += frame.len() as u64;
        Ok(())
    }

    /// Writes a frame to a bulk queue, as `write`. Returns when it is to be written again, if no
    /// event comes first.
    fn write_bulk(&mut self, fd: &OwnedFd, frame: &Frame, now: Instant) -> Result<(), Instant> {
        for _ in 0..2 {
            match self.write(fd, frame) {
                Ok(()) => return Ok(()),
                // The kernel tells of room only after somebody has asked for it in vain. Waiting
                // for edges does not ask.
                Err(Errno::AGAIN) if wait_until_writable(fd, Nanos::ZERO) => {}
                // An event comes when half of the bound is free.
                Err(Errno::AGAIN) => return Err(Instant::FAR_FUTURE),
                // Nothing tells when the kernel has memory again.
                Err(_) => break,
            }
        }
        Err(now + RETRY)
    }
}

impl TunTx {
    fn new(fd: Arc<OwnedFd>, bulk: Option<Bulk>, offload: bool) -> Self {
        let writer = Writer { offload, completed: Completed::default(), errors: 0 };
        Self { fd, bulk, held: VecDeque::new(), writer, retry_at: Instant::FAR_FUTURE }
    }

    /// Writes frames that the bulk queue has room for now.
    fn write_held(&mut self, now: Instant) {
        let Some(Bulk { fd, .. }) = &self.bulk else { return };
        while let Some(frame) = self.held.pop_front() {
            if let Err(retry_at) = self.writer.write_bulk(fd, &frame, now) {
                self.held.push_front(frame);
                self.retry_at = retry_at;
                return;
            }
        }
    }

    /// Whether the end of a bulk queue has to wait for the kernel's thread. While the interface is
    /// down, the thread can give its frames to nobody, and the descriptor does not become writable.
    fn has_to_drain(fd: &OwnedFd) -> bool {
        // Without a bound only an interface that is down takes no frames.
        sys::tun_set_send_buffer(fd, i32::MAX).is_ok() && wait_until_writable(fd, Nanos::ZERO)
    }

    /// Waits until the kernel's thread has taken all frames.
    fn drain(&mut self, fd: &OwnedFd) {
        let end = clock::now() + DRAIN_TIME;
        loop {
            self.write_held(clock::now());
            let is_last = self.held.is_empty();
            // Writable is now what holds nothing.
            let bound = if is_last { LEAST_SEND_BUFFER } else { BULK_SEND_BUFFER };
            if sys::tun_set_send_buffer(fd, bound).is_err() {
                return;
            }
            let rest = end.since(clock::now());
            if rest == Nanos::ZERO || !wait_until_writable(fd, rest) || is_last {
                return;
            }
        }
    }
}

impl Drop for TunTx {
    /// Frames that the kernel's thread has not taken yet would be lost with the descriptor, and
    /// with them the resets of the connections that end now.
    fn drop(&mut self) {
        let Some(Bulk { fd, is_threaded: true }) = self.bulk.clone() else { return };
        if Self::has_to_drain(&fd) {
            self.drain(&fd);
        }
        // Somebody else may hold the descriptors, and use the device further.
        let _ = sys::tun_set_send_buffer(&fd, BULK_SEND_BUFFER);
    }
}

impl TxQueue for TunTx {
    fn submit(&mut self, frame: Frame, now: Instant) -> Result<(), Frame> {
        let bulk = self.bulk.as_ref().filter(|_| frame.is_bulk);
        if let Some(Bulk { fd, is_threaded: true }) = bulk {
            if self.held.is_empty() {
                match self.writer.write_bulk(fd, &frame, now) {
                    Ok(()) => return Ok(()),
                    Err(retry_at) => self.retry_at = retry_at,
                }
            }
            if self.held.len() == HELD_MAX {
                return Err(frame);
            }
            self.held.push_back(frame);
            return Ok(());
        }
        let fd = bulk.map_or(&self.fd, |bulk| &bulk.fd);
        if self.writer.write(fd, &frame).is_err() {
            self.retry_at = now + RETRY;
            return Err(frame);
        }
        // A time for frames that are held stays.
        if self.held.is_empty() {
            self.retry_at = Instant::FAR_FUTURE;
        }
        Ok(())
    }

    fn departure(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    fn flush(&mut self, _now: Instant) {}

    fn reap(&mut self, now: Instant) -> Completed {
        // A frame that was refused is submitted again behind this call, or is gone with the link.
        if now >= self.retry_at || !self.held.is_empty() {
            self.retry_at = Instant::FAR_FUTURE;
        }
        self.write_held(now);
        core::mem::take(&mut self.writer.completed)
    }

    fn next_event(&self) -> Instant {
        self.retry_at
    }

    fn errors(&self) -> u64 {
        self.writer.errors
    }
}

/// Waits until a descriptor is writable, and returns whether it is. Signals do not shorten it.
fn wait_until_writable(fd: &OwnedFd, longest: Nanos) -> bool {
    let end = clock::now() + longest;
    let mut rest = longest;
    loop {
        let timeout = Timespec {
            tv_sec: (rest.0 / 1_000_000_000) as i64,
            tv_nsec: (rest.0 % 1_000_000_000) as i64,
        };
        let mut polled = [PollFd::new(fd, PollFlags::OUT)];
        match event::poll(&mut polled, Some(&timeout)) {
            Ok(_) => return polled[0].revents().contains(PollFlags::OUT),
            Err(Errno::INTR) if rest > Nanos::ZERO => rest = end.since(clock::now()),
            Err(_) => return false,
        }
    }
}

/// Cost: one system call per packet, no copy and no allocation of ours in steady state.
struct TunRx {
    fd: Arc<OwnedFd>,
    reader: Reader,
}

/// Makes packets of what the kernel gives.
struct Reader {
    offload: bool,
    arena: Arena,
    /// Packets that the kernel took from its ring and could not give, or that were too short for
    /// their own header.
    lost: u64,
}

impl Reader {
    fn new(offload: bool) -> Self {
        Self { offload, arena: Arena::default(), lost: 0 }
    }

    /// The next packet that `read` brings into the buffer it is given.
    fn next(
        &mut self,
        mut read: impl FnMut(&mut BytesMut) -> rustix::io::Result<usize>,
    ) -> Option<Received> {
        for _ in 0..SKIPPED_MAX {
            match read(self.arena.room()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                // The header cannot say how this packet is to be cut, and the kernel has freed it
                // (`tun_put_user`). Others may wait behind it, and the descriptor tells of them no
                // more.
                Err(Errno::INVAL) => {
                    self.lost += 1;
                    continue;
                }
                Err(_) => return None,
            }
            let mut data = self.arena.take();
            if !self.offload {
                return Some(Received { data, gso_size: 0, checksum: RxChecksum::Unknown });
            }
            let Some(&header) = data.first_chunk() else {
                self.lost += 1;
                continue;
            };
            let header = virtio::Header::decode(header);
            bytes::Buf::advance(&mut data, virtio::HEADER_LEN);
            let checksum = header.received_checksum(data.len());
            return Some(Received { data, gso_size: header.received_gso_size(), checksum });
        }
        None
    }
}

impl RxQueue for TunRx {
    fn receive(&mut self, _now: Instant) -> Option<Received> {
        let Self { fd, reader } = self;
        reader.next(|room| sys::read_into(fd, room))
    }

    fn arrival(&self, now: Instant) -> Instant {
        clock::present(now)
    }

    fn drops(&self) -> u64 {
        self.reader.lost
    }
}
