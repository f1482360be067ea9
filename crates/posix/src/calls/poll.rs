//! `poll`.

use crate::abi::*;
use crate::call::{Call, Outcome};
use crate::errno::Errno;
use crate::watch::Watch;
use crate::{PollFd, Posix};
use neap_tcp::time::{Instant, Nanos};

/// A timeout of `poll(2)` and `epoll_wait(2)`: milliseconds, negative is forever.
pub(super) fn timeout(millis: i32) -> Option<Nanos> {
    u64::try_from(millis).ok().map(Nanos::from_millis)
}

impl Posix {
    /// `poll(2)`: fills in the events of `fds` and returns how many have any.
    ///
    /// Descriptors that are not open here get `POLLNVAL`. The call waits up to `timeout_ms`
    /// milliseconds, and without limit if that is negative. It never fails.
    pub fn poll(
        &self,
        now: Instant,
        call: &mut Call,
        fds: &mut [PollFd],
        timeout_ms: i32,
    ) -> Result<Outcome<usize>, Errno> {
        let mut count = 0;
        call.forget_files();
        let mut place = 0;
        for one in fds.iter_mut() {
            one.revents = 0;
            if one.fd < 0 {
                continue;
            }
            let asked = u32::from(one.events as u16) | POLLERR | POLLHUP;
            let came = match call.nth_file(place, &self.table, one.fd) {
                Ok(file) => {
                    call.wait_for(place, asked);
                    place += 1;
                    file.events() & asked
                }
                Err(_) => POLLNVAL,
            };
            one.revents = came as u16 as i16;
            count += usize::from(came != 0);
        }
        let until = call.deadline(now, timeout(timeout_ms));
        if count > 0 || now >= until {
            return Ok(Outcome::Done(count));
        }
        Ok(Outcome::Wait(until))
    }
}
