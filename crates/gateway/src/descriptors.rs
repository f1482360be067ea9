//! Descriptors of the process that its guests cannot use up.
//!
//! Whoever looks at the gateway and whoever changes its ports needs some, too. The kernel gives the
//! lowest number that is free (`open(2)`), so the number of a new descriptor says how many are in
//! use: those of guests stay below the limit (`RLIMIT_NOFILE`) by [`KEPT`].

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that guests cannot have, at the end of the numbers.
const KEPT: u64 = 32;

/// The first number that guests cannot have, of the whole process.
static FIRST_KEPT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Learns the limit of the process.
pub(crate) fn learn() {
    let most =
        getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit.saturating_sub(KEPT));
    FIRST_KEPT.store(most, Ordering::Relaxed);
}

/// Judges whether a guest may bring about a new descriptor, as each connection and each followed
/// port is one: the last 32 that `RLIMIT_NOFILE` allows the process are for others. The limit is
/// that of the time when the [`Gateway`](crate::Gateway) was made. It costs no system call.
///
/// # Errors
/// `EMFILE`, as if the process had no more.
pub fn admit(new: &impl AsFd) -> io::Result<()> {
    let number = u64::try_from(new.as_fd().as_raw_fd()).unwrap_or(u64::MAX);
    let is_free = number < FIRST_KEPT.load(Ordering::Relaxed);
    is_free.then_some(()).ok_or_else(|| Errno::MFILE.into())
}
