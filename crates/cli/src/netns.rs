//! Network namespaces of threads.

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::path::Path;

/// Moves the calling thread into the network namespace at a path.
///
/// # Errors
/// The namespace cannot be opened or entered.
pub(crate) fn enter(path: &Path) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
}
