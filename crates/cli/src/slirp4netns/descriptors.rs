//! Descriptors that this program was started with, by their numbers.

use super::Failure;
use nix::unistd::close;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;

/// Takes over a descriptor that the program was started with. `name` is what the user calls it.
///
/// Its number is free afterwards, so that children do not get it. The way is by a descriptor of the
/// process itself (`pidfd_getfd(2)`, Linux 5.6), which checks that the number is one of a
/// descriptor.
pub(super) fn inherited(name: &str, number: i32) -> Result<OwnedFd, Failure> {
    let take = || -> io::Result<OwnedFd> {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        if std::os::fd::AsRawFd::as_raw_fd(&process) == number {
            return Err(rustix::io::Errno::BADF.into());
        }
        let descriptor = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        // The standard streams stay, as others write to them.
        if number > 2 {
            close(number)?;
        }
        Ok(descriptor)
    };
    take().map_err(|error| {
        Failure::Arguments(format!("{name} {number}: {error}; expected an open descriptor"))
    })
}
