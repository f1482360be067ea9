//! Options and requests of the kernel's own sockets, as bytes: for whoever compares a stack with it.

use crate::sys;
use rustix::fd::OwnedFd;
use rustix::io::Result;
use std::io::IoSliceMut;

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

/// A request about queued bytes. The names are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// `SIOCINQ`: can be read.
    Siocinq,
    /// `SIOCOUTQ`: not acknowledged.
    Siocoutq,
    /// `SIOCOUTQNSD`: not sent.
    Siocoutqnsd,
}

/// How many bytes are queued.
///
/// # Errors
/// The kernel's.
pub fn queued(socket: &OwnedFd, what: Queued) -> Result<i32> {
    sys::queued(
        socket,
        match what {
            Queued::Siocinq => 0x541b,
            Queued::Siocoutq => 0x5411,
            Queued::Siocoutqnsd => 0x894b,
        },
    )
}
