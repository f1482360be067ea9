//! What the kernel holds of a UDP socket, for devices that send through one.

use crate::sys;
use rustix::fd::OwnedFd;

/// Returns the memory of datagrams that the kernel is not done with, in bytes: those that wait in a
/// qdisc or in a driver, with what the kernel allocated for them (`SIOCOUTQ`, `sk_wmem_alloc`).
///
/// The kernel wakes who waits for the socket each time that some of it is given back, as long as
/// less than half of `SO_SNDBUF` is taken (`sock_def_write_space`).
///
/// # Errors
/// Those of `ioctl(2)`: it is no socket.
pub fn bytes_in_kernel(socket: &OwnedFd) -> rustix::io::Result<u64> {
    Ok(sys::bytes_in_kernel(socket)?.unsigned_abs().into())
}
