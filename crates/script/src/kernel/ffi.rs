//! System calls with the arguments of a script, whether they make sense or not: bytes for options
//! and addresses, any number for a flag. `rustix` has these calls for sensible arguments only.
//!
//! All unsafe code of the crate is in this module.

use core::ffi::{c_int, c_ulong};
use core::ptr;
use neap_posix::EpollEvent;
use neap_posix::abi::{FIONBIO, FIONREAD, SIOCATMARK, SIOCOUTQ, SIOCOUTQNSD};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{Errno, Result};
use std::io::{Error, IoSlice, IoSliceMut};

/// Requests of `ioctl` that read or write one int.
const INT_REQUESTS: [u64; 5] = [FIONREAD, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, FIONBIO];

/// The error of the call that has just returned -1.
fn last_error() -> Errno {
    Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The answer of a call that returns -1 when it fails.
fn check(result: c_int) -> Result<c_int> {
    if result == -1 { Err(last_error()) } else { Ok(result) }
}

/// The count of bytes that a call answered, unless it failed.
fn check_len(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| last_error())
}

/// The length of bytes as the calls of sockets take it.
fn socklen(bytes: &[u8]) -> libc::socklen_t {
    bytes.len().try_into().unwrap_or(libc::socklen_t::MAX)
}

/// `getsockopt`: fills `value` and returns the length that the kernel gave.
pub(super) fn getsockopt(fd: &OwnedFd, level: i32, name: i32, value: &mut [u8]) -> Result<usize> {
    let mut len = socklen(value);
    let to = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes, which is no more than `value` has.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, to, &raw mut len) })?;
    Ok(value.len().min(len as usize))
}

/// `setsockopt`.
pub(super) fn setsockopt(fd: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<()> {
    let (from, len) = (value.as_ptr().cast(), socklen(value));
    // SAFETY: the kernel reads at most `len` bytes, which is no more than `value` has.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, from, len) })?;
    Ok(())
}

/// What [`recvmsg`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedMessage {
    /// Bytes of data.
    pub(super) len: usize,
    /// Bytes of control messages.
    pub(super) control_len: usize,
    /// `msg_flags`.
    pub(super) flags: i32,
}

/// `recvmsg` with room for control messages of any kind, as the kernel lays them out.
pub(super) fn recvmsg(
    fd: &OwnedFd,
    buffers: &mut [IoSliceMut<'_>],
    control: &mut [u8],
    flags: i32,
) -> Result<ReceivedMessage> {
    // SAFETY: all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    // An `IoSliceMut` is laid out as a `struct iovec`.
    message.msg_iov = buffers.as_mut_ptr().cast();
    message.msg_iovlen = buffers.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: the kernel writes into the buffers, each with its length, and into `control` up to
    // its length; all live until it returns.
    let len = check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) })?;
    let control_len = control.len().min(message.msg_controllen as _);
    Ok(ReceivedMessage { len, control_len, flags: message.msg_flags })
}

/// `sendmsg` without control messages to an address of any family and length; an empty one is none.
pub(super) fn sendmsg(
    fd: &OwnedFd,
    buffers: &[IoSlice<'_>],
    address: &[u8],
    flags: i32,
) -> Result<usize> {
    // SAFETY: all zeros are a message without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    // An `IoSlice` is laid out as a `struct iovec`; the kernel writes to neither.
    message.msg_iov = buffers.as_ptr().cast_mut().cast();
    message.msg_iovlen = buffers.len() as _;
    message.msg_name = address.as_ptr().cast_mut().cast();
    message.msg_namelen = socklen(address);
    // SAFETY: the kernel reads the buffers and the address, each with its length; all live until it
    // returns.
    check_len(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) })
}

/// `bind` to an address of any family and length.
pub(super) fn bind(fd: &OwnedFd, address: &[u8]) -> Result<()> {
    let (from, len) = (address.as_ptr().cast(), socklen(address));
    // SAFETY: the kernel reads at most `len` bytes, which is no more than `address` has.
    check(unsafe { libc::bind(fd.as_raw_fd(), from, len) })?;
    Ok(())
}

/// `connect` to an address of any family and length.
pub(super) fn connect(fd: &OwnedFd, address: &[u8]) -> Result<()> {
    let (from, len) = (address.as_ptr().cast(), socklen(address));
    // SAFETY: the kernel reads at most `len` bytes, which is no more than `address` has.
    check(unsafe { libc::connect(fd.as_raw_fd(), from, len) })?;
    Ok(())
}

/// `shutdown`, whatever `how` is.
pub(super) fn shutdown(fd: &OwnedFd, how: i32) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), how) })?;
    Ok(())
}

/// `ioctl` of `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK` and `FIONBIO`: takes an int and
/// gives one. Any other request gets a null pointer.
pub(super) fn ioctl(fd: &OwnedFd, request: u32, value: i32) -> Result<i32> {
    let mut value = value;
    let argument = match INT_REQUESTS.contains(&request.into()) {
        true => &raw mut value,
        false => ptr::null_mut(),
    };
    // SAFETY: the kernel reads or writes one int, which outlives the call, or finds no memory at
    // all.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), c_ulong::from(request) as _, argument) })?;
    Ok(value)
}

/// `fcntl` that makes no descriptor. `F_SETFD` and `F_SETFL` get the argument, other commands zero;
/// those that duplicate are refused with `EINVAL`.
pub(super) fn fcntl(fd: &OwnedFd, command: i32, argument: i32) -> Result<i32> {
    let argument = match command {
        libc::F_SETFD | libc::F_SETFL => argument,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return Err(Errno::INVAL),
        _ => 0,
    };
    // SAFETY: the argument is no pointer but a null one, and no descriptor is made.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), command, argument as c_ulong) })
}

/// `fcntl` of `F_DUPFD`, or of `F_DUPFD_CLOEXEC`: the lowest free descriptor from `least` on.
pub(super) fn duplicate(fd: &OwnedFd, least: i32, close_on_exec: bool) -> Result<OwnedFd> {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: no memory is passed.
    let duplicate = check(unsafe { libc::fcntl(fd.as_raw_fd(), command, least) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

/// `epoll_create`, whatever the size is.
pub(super) fn epoll_create(size: i32) -> Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let epoll = check(unsafe { libc::epoll_create(size) })?;
    // SAFETY: the kernel has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(epoll) })
}

/// `epoll_ctl`, whatever the operation is.
pub(super) fn epoll_ctl(
    epoll: &OwnedFd,
    operation: i32,
    fd: &OwnedFd,
    event: EpollEvent,
) -> Result<()> {
    let mut event = libc::epoll_event { events: event.events, u64: event.data };
    let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: the kernel reads one event, which outlives the call.
    check(unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) })?;
    Ok(())
}
