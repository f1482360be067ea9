//! The system calls that `rustix` does not have, each behind a safe function.

use bytes::{BufMut, BytesMut};
use core::ffi::{c_int, c_ulong, c_void};
use core::mem::{MaybeUninit, size_of};
use core::ptr::NonNull;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::process::Pid;

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: c_int = 71;
/// `IP_LOCAL_PORT_RANGE` of `linux/in.h`.
const IP_LOCAL_PORT_RANGE: c_int = 51;
/// `SIOCOUTQNSD` of `linux/sockios.h`.
const SIOCOUTQNSD: c_ulong = 0x894b;
/// `_IO('T', 227)` of `linux/if_tun.h`.
const TUNGETDEVNETNS: c_ulong = 0x54e3;

/// A name that fits `ifr_name` with its terminator.
#[derive(Clone, Copy)]
pub(crate) struct InterfaceName([u8; libc::IFNAMSIZ]);

impl InterfaceName {
    /// `None` if no interface can have this name (`dev_valid_name`).
    pub(crate) fn new(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        let bad = |b: &u8| matches!(b, 0 | b'/' | b':') || b.is_ascii_whitespace();
        if bytes.is_empty() || bytes.len() >= libc::IFNAMSIZ || bytes.iter().any(bad) {
            return None;
        }
        let mut padded = [0; libc::IFNAMSIZ];
        padded[..bytes.len()].copy_from_slice(bytes);
        (name != "." && name != "..").then_some(Self(padded))
    }

    /// The name as text.
    pub(crate) fn to_text(self) -> String {
        let name = self.0.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    fn request(self) -> libc::ifreq {
        libc::ifreq {
            ifr_name: self.0.map(|byte| byte as libc::c_char),
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 },
        }
    }
}

fn check(result: c_int) -> Result<()> {
    if result == -1 {
        let code = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)));
    }
    Ok(())
}

/// An ioctl that takes an `ifreq` and may change it.
fn interface_ioctl(fd: impl AsFd, request: c_ulong, argument: &mut libc::ifreq) -> Result<()> {
    // SAFETY: every request of this file that comes here reads and writes one `ifreq`.
    check(unsafe {
        libc::ioctl(fd.as_fd().as_raw_fd(), request as _, core::ptr::from_mut(argument))
    })
}

/// `TUNSETIFF`: makes or joins a TUN device; returns the name it has got.
pub(crate) fn tun_set_interface(fd: &OwnedFd, name: InterfaceName, flags: c_int) -> Result<String> {
    let mut request = name.request();
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    interface_ioctl(fd, libc::TUNSETIFF as c_ulong, &mut request)?;
    Ok(InterfaceName(request.ifr_name.map(|byte| byte as u8)).to_text())
}

/// `TUNSETOFFLOAD`: which unfinished packets (`TUN_F_*`) the kernel may give us.
pub(crate) fn tun_set_offload(fd: &OwnedFd, features: u32) -> Result<()> {
    // SAFETY: the argument of this request is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, c_ulong::from(features)) })
}

/// `TUNSETPERSIST`: the device outlives its descriptors.
pub(crate) fn tun_set_persistent(fd: &OwnedFd) -> Result<()> {
    // SAFETY: the argument of this request is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST as _, 1 as c_ulong) })
}

/// `TUNSETSNDBUF`: bytes of frames, with the kernel's bookkeeping, that each queue which the device
/// has now may hold in the kernel.
pub(crate) fn tun_set_send_buffer(fd: &OwnedFd, bytes: c_int) -> Result<()> {
    // SAFETY: the request reads one int, which outlives the call.
    check(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETSNDBUF as _, core::ptr::from_ref(&bytes))
    })
}

/// Gives the calling thread a copy of the mount namespace, and a root and a working directory of
/// its own (`CLONE_NEWNS`).
pub(crate) fn leave_mount_namespace() -> Result<()> {
    // SAFETY: the flag separates no memory and no descriptors of the thread from those of others.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })
}

/// Gives the calling thread a new network namespace (`CLONE_NEWNET`).
#[cfg(test)]
pub(crate) fn leave_network_namespace() -> Result<()> {
    // SAFETY: the flag separates no memory and no descriptors of the thread from those of others.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// How often a thread was interrupted by [`interrupt`].
#[cfg(test)]
pub(crate) static INTERRUPTIONS: core::sync::atomic::AtomicU32 =
    core::sync::atomic::AtomicU32::new(0);

/// From now on `SIGUSR1` ends calls of the system that wait, and is counted.
#[cfg(test)]
pub(crate) fn let_signals_interrupt() -> Result<()> {
    extern "C" fn count(_: c_int) {
        INTERRUPTIONS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    }
    // SAFETY: plain numbers and pointers, for which zeros are good.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = count as *const () as libc::sighandler_t;
    // SAFETY: the structure is read, and the handler does what may be done in one.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()) })
}

/// Sends `SIGUSR1` to a thread of this process.
#[cfg(test)]
pub(crate) fn interrupt(thread: rustix::thread::Pid) -> Result<()> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: no pointers; the process has a handler for the signal.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
    check(sent as c_int)
}

/// Whether `TUNGETVNETHDRSZ` answers with this number of bytes.
pub(crate) fn tun_has_header_len(fd: &OwnedFd, len: c_int) -> Result<bool> {
    let mut has: c_int = 0;
    // SAFETY: the request writes one int, which outlives the call.
    check(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ as _, core::ptr::from_mut(&mut has))
    })?;
    Ok(has == len)
}

/// `TUNSETVNETHDRSZ`: bytes of the virtio-net header.
pub(crate) fn tun_set_header_len(fd: &OwnedFd, len: c_int) -> Result<()> {
    // SAFETY: the request reads one int, which outlives the call.
    check(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, core::ptr::from_ref(&len))
    })
}

/// `SIOCOUTQ`, which has the number of `TIOCOUTQ`: bytes of a TCP socket that are not acknowledged.
pub(crate) fn bytes_queued(socket: impl AsFd) -> Result<u64> {
    count_ioctl(socket, libc::TIOCOUTQ as c_ulong)
}

/// `SIOCOUTQNSD`: bytes of a TCP socket that were never sent.
pub(crate) fn bytes_not_sent(socket: impl AsFd) -> Result<u64> {
    count_ioctl(socket, SIOCOUTQNSD)
}

/// An ioctl that answers with a number.
fn count_ioctl(socket: impl AsFd, request: c_ulong) -> Result<u64> {
    let mut count: c_int = 0;
    // SAFETY: every request of this file that comes here writes one int, which outlives the call.
    check(unsafe {
        libc::ioctl(socket.as_fd().as_raw_fd(), request as _, core::ptr::from_mut(&mut count))
    })?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Index of the interface.
pub(crate) fn index(socket: &OwnedFd, name: InterfaceName) -> Result<c_int> {
    let mut request = name.request();
    interface_ioctl(socket, libc::SIOCGIFINDEX as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote this one.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// `SIOCGIFNAME`: the name that the interface of this index has now.
pub(crate) fn name(socket: &OwnedFd, index: c_int) -> Result<InterfaceName> {
    let mut request = InterfaceName([0; libc::IFNAMSIZ]).request();
    request.ifr_ifru.ifru_ifindex = index;
    interface_ioctl(socket, libc::SIOCGIFNAME as c_ulong, &mut request)?;
    Ok(InterfaceName(request.ifr_name.map(|byte| byte as u8)))
}

/// `TUNGETIFF`: name and `IFF_*` flags of the TUN device that the descriptor is attached to; fails
/// with `EBADFD` when it is attached to none.
pub(crate) fn tun_interface(fd: &OwnedFd) -> Result<(InterfaceName, c_int)> {
    let mut request = InterfaceName([0; libc::IFNAMSIZ]).request();
    interface_ioctl(fd, libc::TUNGETIFF as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote this one.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    // The kernel returns the flags as a short, whose sign means nothing.
    let flags = c_int::from(flags.cast_unsigned());
    Ok((InterfaceName(request.ifr_name.map(|byte| byte as u8)), flags))
}

/// MTU in bytes.
pub(crate) fn mtu(socket: &OwnedFd, name: InterfaceName) -> Result<c_int> {
    let mut request = name.request();
    interface_ioctl(socket, libc::SIOCGIFMTU as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote this one.
    Ok(unsafe { request.ifr_ifru.ifru_mtu })
}

/// Sets the MTU in bytes.
pub(crate) fn set_mtu(socket: &OwnedFd, name: InterfaceName, mtu: c_int) -> Result<()> {
    let mut request = name.request();
    request.ifr_ifru.ifru_mtu = mtu;
    interface_ioctl(socket, libc::SIOCSIFMTU as c_ulong, &mut request)
}

/// `SIOCGIFTXQLEN`: the length of the queue towards the device, in packets.
pub(crate) fn queue_len(socket: &OwnedFd, name: InterfaceName) -> Result<c_int> {
    let mut request = name.request();
    interface_ioctl(socket, libc::SIOCGIFTXQLEN as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote an int, as this
    // member is.
    Ok(unsafe { request.ifr_ifru.ifru_metric })
}

/// `SIOCSIFTXQLEN`: sets the length of the queue towards the device, in packets.
pub(crate) fn set_queue_len(socket: &OwnedFd, name: InterfaceName, packets: c_int) -> Result<()> {
    let mut request = name.request();
    request.ifr_ifru.ifru_metric = packets;
    interface_ioctl(socket, libc::SIOCSIFTXQLEN as c_ulong, &mut request)
}

/// `IFF_*` flags.
pub(crate) fn flags(socket: &OwnedFd, name: InterfaceName) -> Result<c_int> {
    let mut request = name.request();
    interface_ioctl(socket, libc::SIOCGIFFLAGS as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote this one.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Sets the `IFF_*` flags.
pub(crate) fn set_flags(socket: &OwnedFd, name: InterfaceName, flags: c_int) -> Result<()> {
    let mut request = name.request();
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    interface_ioctl(socket, libc::SIOCSIFFLAGS as c_ulong, &mut request)
}

/// Link type (`ARPHRD_*`) and link address of a TAP device, asked of the device itself.
pub(crate) fn tun_hardware(fd: &OwnedFd) -> Result<(u16, [u8; 6])> {
    hardware(fd, InterfaceName([0; libc::IFNAMSIZ]))
}

/// Link type (`ARPHRD_*`) and link address.
pub(crate) fn hardware(socket: &OwnedFd, name: InterfaceName) -> Result<(u16, [u8; 6])> {
    let mut request = name.request();
    interface_ioctl(socket, libc::SIOCGIFHWADDR as c_ulong, &mut request)?;
    // SAFETY: all members of the union are plain numbers, and the kernel wrote this one.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let bytes: [libc::c_char; 6] = core::array::from_fn(|i| address.sa_data[i]);
    Ok((address.sa_family, bytes.map(|c| c as u8)))
}

/// `setsockopt` of an option whose value is the plain structure or number `T`.
pub(crate) fn set_option<T: Copy>(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, which lives that long.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, core::ptr::from_ref(value).cast(), len)
    })
}

/// `PACKET_FANOUT_DATA`: the program that says which socket of a fan-out group gets a packet.
pub(crate) fn set_fanout_program(socket: &OwnedFd, program: &[libc::sock_filter]) -> Result<()> {
    set_program(socket, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)
}

/// `SO_ATTACH_FILTER`: the program that says how much of a packet the socket receives.
pub(crate) fn attach_filter(socket: &OwnedFd, program: &[libc::sock_filter]) -> Result<()> {
    set_program(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// `SO_DETACH_FILTER`: the socket receives everything.
pub(crate) fn detach_filter(socket: &OwnedFd) -> Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)
}

fn set_program(
    socket: &OwnedFd,
    level: c_int,
    name: c_int,
    program: &[libc::sock_filter],
) -> Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let filter = program.as_ptr().cast_mut();
    // The kernel copies the instructions and does not write them.
    set_option(socket, level, name, &libc::sock_fprog { len, filter })
}

/// `getsockopt` of an int.
pub(crate) fn int_option(socket: &OwnedFd, level: c_int, name: c_int) -> Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, an int's size, into `value`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            core::ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// `SO_NETNS_COOKIE`: a number that no other network namespace has.
pub(crate) fn namespace_of_socket(socket: &OwnedFd) -> Result<u64> {
    let mut value: u64 = 0;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the number, into `value`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            core::ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// `IP_LOCAL_PORT_RANGE`: the local ports that a connection of the socket may have, of those of the
/// sysctl.
pub(crate) fn set_local_port_range(socket: impl AsFd, low: u16, high: u16) -> Result<()> {
    let range = u32::from(low) | u32::from(high) << 16;
    // SAFETY: the kernel reads the bytes of the number.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_IP,
            IP_LOCAL_PORT_RANGE,
            core::ptr::from_ref(&range).cast(),
            size_of_val(&range) as libc::socklen_t,
        )
    })
}

/// `TUNGETDEVNETNS`: the network namespace of a TUN device, as a descriptor.
pub(crate) fn tun_namespace(fd: &OwnedFd) -> Result<OwnedFd> {
    // SAFETY: the request takes no argument and returns a new descriptor, or -1.
    let namespace = unsafe { libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS as _) };
    check(namespace.min(0))?;
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
}

/// The scheduling attributes of a thread, by default of the calling one (`sched_getattr`).
pub(crate) fn scheduling(thread: Option<Pid>) -> Result<libc::sched_attr> {
    let pid = Pid::as_raw(thread);
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes, the size of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            pid,
            attributes.as_mut_ptr(),
            size as libc::c_uint,
            0,
        )
    };
    check(done as c_int)?;
    // SAFETY: every bit pattern of these integers is valid, and all of them were set to zero.
    Ok(unsafe { attributes.assume_init() })
}

/// Sets the scheduling attributes of a thread, by default of the calling one (`sched_setattr`).
/// `size` is set here.
pub(crate) fn set_scheduling(thread: Option<Pid>, attributes: &libc::sched_attr) -> Result<()> {
    let pid = Pid::as_raw(thread);
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr { size, ..*attributes };
    // SAFETY: the kernel reads `size` bytes of the structure, and writes to its `size` at the most.
    check(unsafe {
        libc::syscall(libc::SYS_sched_setattr, pid, core::ptr::from_mut(&mut attributes), 0)
    } as c_int)
}

/// Index of the interface that an AF_PACKET socket is bound to; 0 if it is bound to none.
pub(crate) fn bound_packet(socket: &OwnedFd) -> Result<c_int> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the structure.
    check(unsafe {
        libc::getsockname(socket.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len)
    })?;
    // SAFETY: plain numbers, zeroed before the kernel wrote them.
    Ok(unsafe { address.assume_init() }.sll_ifindex)
}

/// `PACKET_STATISTICS`: packets dropped since the last call.
pub(crate) fn packet_drops(socket: &OwnedFd) -> Result<u32> {
    let mut stats = MaybeUninit::<libc::tpacket_stats>::zeroed();
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of the structure.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &raw mut len,
        )
    })?;
    // SAFETY: two integers, zeroed before the kernel wrote them.
    Ok(unsafe { stats.assume_init() }.tp_drops)
}

/// `SIOCOUTQ` of an AF_PACKET or UDP socket: bytes of its frames that the kernel is not done with,
/// what the kernel allocated for them included.
pub(crate) fn bytes_in_kernel(socket: &OwnedFd) -> Result<c_int> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one int, which outlives the call.
    check(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, core::ptr::from_mut(&mut bytes))
    })?;
    Ok(bytes)
}

/// Binds an AF_PACKET socket to a protocol (`ETH_P_*`) of one interface. Protocol 0 receives
/// nothing.
pub(crate) fn bind_packet(socket: &OwnedFd, index: c_int, protocol: u16) -> Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a `sockaddr_ll` of `len` bytes.
    check(unsafe { libc::bind(socket.as_raw_fd(), core::ptr::from_ref(&address).cast(), len) })
}

/// Reads once into the spare capacity of `buffer` and extends it by what came.
pub(crate) fn read_into(fd: &OwnedFd, buffer: &mut BytesMut) -> Result<usize> {
    let count = {
        let (read, _) = rustix::io::read(fd, buffer.spare_capacity_mut())?;
        read.len()
    };
    // SAFETY: the kernel has written the first `count` bytes of the spare capacity.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}

/// Memory shared with the kernel; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory with no tie to a thread; `ring` governs who touches which
// byte.
unsafe impl Send for Mapping {}
// SAFETY: as above; all access goes through raw pointers and atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of what `fd` offers.
    pub(crate) fn new(fd: &OwnedFd, len: usize) -> Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(core::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)?
        };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Memory of no device, to play the kernel in tests.
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: as in `new`.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::PRIVATE).expect("memory")
        };
        Self { start: NonNull::new(start.cast()).expect("memory is not at zero"), len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The byte at `offset`, page-aligned for `offset` zero.
    ///
    /// # Panics
    /// If fewer than `len` bytes follow it.
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "outside the mapping");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nobody else unmaps it. A failure would
        // leave it mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}
