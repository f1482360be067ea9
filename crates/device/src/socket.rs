//! Options and requests of the kernel's own sockets, as bytes: for whoever compares a stack with it.

use crate::sys;
use rustix::fd::OwnedFd;
use rustix::io::Result;
use std::io::{IoSlice, IoSliceMut};

/// `getsockopt`: fills `value` and returns the length that the kernel gave.
///
/// # Errors
/// The kernel's.
pub fn option(socket: &OwnedFd, level: i32, name: i32, value: &mut [u8]) -> Result<usize> {
    sys::option_bytes(socket, level, name, value)
}

/// `setsockopt`.
///
/// # Errors
/// The kernel's.
pub fn set_option(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<()> {
    sys::set_option_bytes(socket, level, name, value)
}

/// What [`receive_message`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Bytes of data.
    pub len: usize,
    /// Bytes of control messages.
    pub control: usize,
    /// `msg_flags`.
    pub flags: i32,
}

/// `recvmsg` with room for control messages of any kind, as the kernel lays them out.
///
/// # Errors
/// The kernel's.
pub fn receive_message(
    socket: &OwnedFd,
    buffers: &mut [IoSliceMut<'_>],
    control: &mut [u8],
    flags: i32,
) -> Result<ReceivedMessage> {
    let (len, control, flags) = sys::receive_message(socket, buffers, control, flags)?;
    Ok(ReceivedMessage { len, control, flags })
}

/// `sendmsg` to an address of any family and length; an empty one is none.
///
/// # Errors
/// The kernel's.
pub fn send_message(
    socket: &OwnedFd,
    buffers: &[IoSlice<'_>],
    address: &[u8],
    flags: i32,
) -> Result<usize> {
    sys::send_message(socket, buffers, address, flags)
}

/// `bind` to an address of any family and length.
///
/// # Errors
/// The kernel's.
pub fn bind(socket: &OwnedFd, address: &[u8]) -> Result<()> {
    sys::bind_bytes(socket, address)
}

/// `connect` to an address of any family and length.
///
/// # Errors
/// The kernel's.
pub fn connect(socket: &OwnedFd, address: &[u8]) -> Result<()> {
    sys::connect_bytes(socket, address)
}

/// `shutdown`, whatever `how` is.
///
/// # Errors
/// The kernel's.
pub fn shutdown(socket: &OwnedFd, how: i32) -> Result<()> {
    sys::shutdown(socket, how)
}

/// `ioctl` of `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK` and `FIONBIO`: takes an int and gives one.
/// Any other request gets a null pointer.
///
/// # Errors
/// The kernel's.
pub fn request(socket: &OwnedFd, request: u32, value: i32) -> Result<i32> {
    let mut value = value;
    sys::request(socket, request, &mut value)?;
    Ok(value)
}

/// `fcntl` of `F_GETFD`, `F_SETFD`, `F_GETFL` and `F_SETFL`. Any other command gets zero, and those that
/// duplicate are refused with `EINVAL`.
///
/// # Errors
/// The kernel's.
pub fn descriptor_control(fd: &OwnedFd, command: i32, argument: i32) -> Result<i32> {
    sys::descriptor_control(fd, command, argument)
}

/// `fcntl` of `F_DUPFD`, or of `F_DUPFD_CLOEXEC`: the lowest free descriptor from `least` on.
///
/// # Errors
/// The kernel's.
pub fn duplicate(fd: &OwnedFd, least: i32, close_on_exec: bool) -> Result<OwnedFd> {
    sys::duplicate(fd, least, close_on_exec)
}

/// `epoll_create`, whatever the size is.
///
/// # Errors
/// The kernel's.
pub fn epoll_create(size: i32) -> Result<OwnedFd> {
    sys::epoll_create(size)
}

/// `epoll_ctl`, whatever the operation is.
///
/// # Errors
/// The kernel's.
pub fn epoll_control(
    epoll: &OwnedFd,
    operation: i32,
    fd: &OwnedFd,
    event: (u32, u64),
) -> Result<()> {
    sys::epoll_control(epoll, operation, fd, event)
}
