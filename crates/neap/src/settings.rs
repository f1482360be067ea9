//! The settings of a running stack, by the names of Linux's sysctls.

use crate::Stack;
use crate::config::{Config, SysctlError};
use neap_tcp::time::Nanos;
use std::sync::Arc;
use std::time::Duration;

impl Stack {
    /// Returns the value of a sysctl, as text that [`set_sysctl`](Self::set_sysctl) takes.
    ///
    /// # Errors
    /// [`SysctlError::Unknown`] if there is no such name.
    pub fn sysctl(&self, name: &str) -> Result<String, SysctlError> {
        self.config().get(name).ok_or_else(|| SysctlError::Unknown(name.to_owned()))
    }

    /// Sets a sysctl by Linux's name, in Linux's unit, while the stack runs.
    ///
    /// Many settings act on connections that are open: a connection takes the new value up when it
    /// next sends, receives or times out, or when its application next calls. Others are for new
    /// connections only. [`Sysctl::acts_on`](crate::config::Sysctl::acts_on) and `docs/sysctls.md`
    /// tell which.
    ///
    /// # Errors
    /// [`SysctlError`] for an unknown name, or a value that does not fit; nothing has changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        self.engine().stack.set_sysctl(name, value)
    }

    /// Sets how long the threads that drive the stack from blocking calls or
    /// [`Poller::wait`](crate::Poller::wait) may be away before a worker thread drives it in their
    /// place: 250 us unless it is set. While they come back in time it becomes four times as long.
    ///
    /// A program whose thread always comes back soon sets several milliseconds. Otherwise a worker
    /// takes the stack over whenever the thread has lost the processor for a moment, and both hand
    /// it to each other.
    pub fn set_lease(&self, lease: Duration) {
        let lease = Nanos::from(lease);
        self.engine().drivers().iter().for_each(|driver| driver.set_lease(lease));
    }

    /// Returns all settings as they are.
    pub fn config(&self) -> Arc<Config> {
        self.engine().stack.config()
    }
}
