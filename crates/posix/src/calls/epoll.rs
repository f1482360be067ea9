//! `epoll_create`, `epoll_ctl`, `epoll_wait`.

use super::poll::timeout;
use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::epoll::{self, EpollEvent, Set, Watched};
use crate::errno::Errno;
use crate::file::Object;
use crate::sync::lock;
use crate::{Fd, Posix};
use neap_tcp::time::Instant;
use std::sync::Arc;

/// Events that one call may ask for (`EP_MAX_EVENTS`: `INT_MAX` over the 12 bytes of each).
const MAX_EVENTS: i32 = i32::MAX / 12;

impl Posix {
    /// `epoll_create(2)`: makes an epoll set.
    ///
    /// # Errors
    /// `EINVAL` for a size below 1, `EMFILE`.
    pub fn epoll_create(&self, size: i32) -> Result<Fd, Errno> {
        if size < 1 {
            return Err(Errno::EINVAL);
        }
        self.epoll_create1(0)
    }

    /// `epoll_create1(2)`: makes an epoll set with flags.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EMFILE`.
    pub fn epoll_create1(&self, flags: i32) -> Result<Fd, Errno> {
        if flags & !EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        self.table.open(Object::Epoll(Set::default()), false, flags & EPOLL_CLOEXEC != 0)
    }

    /// `epoll_ctl(2)`: adds a descriptor to an epoll set, changes or removes it.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` if `epfd` is no set or `fd` is the set itself, for an unknown operation,
    /// and for flags that do not go with `EPOLLEXCLUSIVE`; `EEXIST`, `ENOENT`; `ELOOP` for sets
    /// within sets.
    pub fn epoll_ctl(
        &self,
        epfd: Fd,
        operation: i32,
        fd: Fd,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        let set: Arc<dyn Watched> = self.table.file(epfd)?;
        let file: Arc<dyn Watched> = self.table.file(fd)?;
        // Two threads that add sets to each other would make a circle (`epnested_mutex`).
        let _nesting = file.as_set().map(|_| lock(&self.nesting));
        epoll::control(&set, operation, fd, &file, event)
    }

    /// `epoll_wait(2)`: returns at most `most` events. It waits up to `timeout_ms` milliseconds,
    /// and without limit if that is negative.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` if `epfd` is no set, or `most` is below 1 or above 178956970.
    pub fn epoll_wait(
        &self,
        now: Instant,
        call: &mut Call,
        epfd: Fd,
        most: i32,
        timeout_ms: i32,
    ) -> Result<Outcome<Vec<EpollEvent>>, Errno> {
        let file = call.file(&self.table, epfd)?;
        if !(1..=MAX_EVENTS).contains(&most) {
            return Err(Errno::EINVAL);
        }
        let found = file.as_set().ok_or(Errno::EINVAL)?.collect(most as usize);
        let until = call.deadline(now, timeout(timeout_ms));
        if !found.is_empty() || now >= until {
            return Ok(Outcome::Done(found));
        }
        call.wait_for(0, POLLIN);
        Ok(Outcome::Wait(until))
    }
}
