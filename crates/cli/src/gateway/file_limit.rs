//! The limit of descriptors: a gateway raises its own, and its command keeps what its user has.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use std::process::Child;

/// Descriptors that are not those of flows: devices, timers, standard streams.
const OTHER_FILES: u64 = 64;
/// With fewer for flows a network is of no use.
pub(crate) const LEAST_FOR_FLOWS: u64 = 16;

/// Raises the limit of descriptors as far as the process may, and returns how many flows it allows:
/// at least 16.
///
/// # Errors
/// One line for the user, if it allows fewer.
pub(crate) fn raise_file_limit() -> Result<usize, String> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let current = current.unwrap_or(1 << 20);
    let least = OTHER_FILES + LEAST_FOR_FLOWS;
    if current < least {
        return Err(format!(
            "the limit of descriptors is {current}, and a network needs {least} at least: \
             raise it (ulimit -n)"
        ));
    }
    Ok(usize::try_from(current - OTHER_FILES).unwrap_or(usize::MAX))
}

/// The limit of descriptors before it is [raised](raise_file_limit).
#[derive(Clone, Debug)]
pub(crate) struct FileLimit(Rlimit);

impl FileLimit {
    /// The limit that this process has now.
    pub(crate) fn own() -> Self {
        Self(getrlimit(Resource::Nofile))
    }

    /// Gives this limit to a child, and to those that the child starts later.
    pub(crate) fn give_to(self, child: &Child) {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // A child whose limit this process may not set does with the raised one.
        let _ = prlimit(pid, Resource::Nofile, self.0);
    }
}
