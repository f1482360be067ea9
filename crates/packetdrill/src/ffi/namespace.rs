//! The network namespace of a thread, and its devices.

use crate::namespace::{
    DEVICE, Namespace, NoNamespace, REPLY, RootQdisc, get_root_qdisc, parse_qdisc,
};
use core::ffi::{CStr, c_char, c_int, c_short};
use libc::ifreq;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The namespace of the thread that asks, and the device that was made in it.
#[derive(Debug, Default)]
pub(crate) struct OwnNamespace {
    device: Option<File>,
}

impl Namespace for OwnNamespace {
    fn enter(&mut self) -> Result<(), NoNamespace> {
        let failed = |what| move |error| NoNamespace(what, error);
        enter_new().map_err(failed("no network namespace of its own"))?;
        bring_up(c"lo").map_err(failed("lo is down"))?;
        self.device = Some(make_tun(DEVICE).map_err(failed("no tun0"))?);
        bring_up(DEVICE).map_err(failed("tun0 is down"))
    }

    fn mtu(&self) -> Option<u16> {
        mtu_of(DEVICE)
    }

    fn qdisc(&self) -> Option<RootQdisc> {
        qdisc_of(DEVICE)
    }
}

/// Moves this thread into a new network namespace.
///
/// # Errors
/// `EPERM` without the right to make one.
fn enter_new() -> io::Result<()> {
    // SAFETY: no pointers.
    success(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Makes a TUN device in this thread's namespace. It is gone when the file is closed.
///
/// # Errors
/// Those of the system, where `/dev/net/tun` is missing for example.
fn make_tun(device: &CStr) -> io::Result<File> {
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
    // SAFETY: the request outlives the call.
    success(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(tun)
}

/// Brings a device of this thread's namespace up.
///
/// # Errors
/// Those of the system.
fn bring_up(device: &CStr) -> io::Result<()> {
    let socket = socket()?;
    let mut request = request(device)?;
    // SAFETY: the request outlives the calls, and the first one fills in its flags.
    unsafe {
        success(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as c_short;
        success(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request))
    }
}

/// The MTU of a device of this thread's namespace, bytes; `None` if there is no such device.
fn mtu_of(device: &CStr) -> Option<u16> {
    let (socket, mut request) = (socket().ok()?, request(device).ok()?);
    // SAFETY: the request outlives the call, which fills in its MTU.
    let mtu = unsafe {
        success(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request)).ok()?;
        request.ifr_ifru.ifru_mtu
    };
    u16::try_from(mtu).ok()
}

/// The qdisc of a device of this thread's namespace; `None` if it cannot be learnt.
fn qdisc_of(device: &CStr) -> Option<RootQdisc> {
    // SAFETY: a C string.
    let index = unsafe { libc::if_nametoindex(device.as_ptr()) };
    // SAFETY: no pointers.
    let socket = owned(unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    });
    let (request, mut reply) = (get_root_qdisc(index), [0u8; REPLY]);
    let socket = socket.ok()?;
    // SAFETY: buffers of this function's own with their sizes. Where the request did not leave,
    // the receive fails at once.
    let received = unsafe {
        let fd = socket.as_raw_fd();
        libc::send(fd, request.as_ptr().cast(), request.len(), 0);
        libc::recv(fd, reply.as_mut_ptr().cast(), reply.len(), libc::MSG_DONTWAIT)
    };
    parse_qdisc(reply.get(..usize::try_from(received).ok()?)?)
}

/// A socket to ask about devices with.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// The socket of an answer of `socket`.
fn owned(socket: c_int) -> io::Result<OwnedFd> {
    success(socket)?;
    // SAFETY: nobody else has this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// A request about a device.
fn request(device: &CStr) -> io::Result<ifreq> {
    // SAFETY: all zeros are a request.
    let mut request: ifreq = unsafe { core::mem::zeroed() };
    let name = device.to_bytes_with_nul();
    if name.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as c_char;
    }
    Ok(request)
}

fn success(answer: c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
