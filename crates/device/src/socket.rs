//! Options and requests of the kernel's own sockets, as bytes: for whoever compares a stack with it.

use crate::sys;
use rustix::fd::OwnedFd;
use rustix::io::Result;

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
