//! `poll`, and what a descriptor is ready for (`tcp_poll`, `datagram_poll`).

use crate::abi::*;
use crate::errno::Errno;
use crate::socket::{Kind, Socket};
use crate::table::Object;
use crate::{Call, Fd, Outcome, Posix, Wait};
use neap_stack::listener::ListenerHandle;
use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_tcp::time::{Instant, Nanos};
use smallvec::SmallVec;
use std::task::Waker;

/// `struct pollfd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFd {
    /// Descriptor; a negative one is ignored.
    pub fd: Fd,
    /// `POLL*` that are asked for.
    pub events: i16,
    /// What came, of these and `POLLERR`, `POLLHUP`, `POLLNVAL`.
    pub revents: i16,
}

const READ: u32 = POLLIN | POLLRDNORM;
const WRITE: u32 = POLLOUT | POLLWRNORM;

/// Changes of a socket that can bring one of these events.
pub(super) fn wanted(events: u32) -> Ready {
    let mut ready = Ready::ERROR | Ready::ERROR_QUEUE | Ready::READ_CLOSED | Ready::WRITE_CLOSED;
    ready.set(Ready::READABLE, events & READ != 0);
    ready.set(Ready::WRITABLE, events & WRITE != 0);
    ready
}

impl Socket {
    /// What it is ready for.
    pub(super) fn events(&self) -> u32 {
        match &self.kind {
            Kind::Fresh => {
                let is_bad = self.pending.is_some() || self.has_errors();
                WRITE | POLLHUP | self.shut_events() | if is_bad { POLLERR } else { 0 }
            }
            Kind::Listening(handles) => {
                let has_one = handles
                    .iter()
                    .any(|handle| handle.readiness().bits().contains(Ready::READABLE));
                if has_one { READ } else { 0 }
            }
            Kind::Stream { handle, .. } => of(handle.readiness().bits()) | self.shut_events(),
            Kind::Datagram(handle) => {
                let bits = handle.as_ref().map_or(Ready::WRITABLE, |one| one.readiness().bits());
                // What is closed is said by `shut`.
                let mut events = of(bits - (Ready::READ_CLOSED | Ready::WRITE_CLOSED));
                events |= self.shut_events();
                if events & POLLOUT != 0 { events | POLLWRBAND } else { events }
            }
        }
    }

    /// What `shutdown` alone brings.
    fn shut_events(&self) -> u32 {
        match self.shut {
            (true, true) => READ | POLLRDHUP | POLLHUP,
            (true, false) => READ | POLLRDHUP,
            (false, _) => 0,
        }
    }

    /// The words whose changes end a wait.
    pub(super) fn states(&self) -> SmallVec<[ReadyState; 2]> {
        match &self.kind {
            Kind::Listening(handles) => handles.iter().map(ListenerHandle::readiness).collect(),
            Kind::Stream { handle, .. } => [handle.readiness()].into_iter().collect(),
            Kind::Datagram(Some(handle)) => [handle.readiness()].into_iter().collect(),
            Kind::Fresh | Kind::Datagram(None) => SmallVec::new(),
        }
    }

    /// Leaves `waker` with each word; false if one has changed since `seen`.
    pub(super) fn register(&self, seen: &[ReadyState], interest: Ready, waker: &Waker) -> bool {
        let mut seen = seen.iter().copied();
        let mut next = || seen.next();
        match &self.kind {
            Kind::Listening(handles) => handles
                .iter()
                .all(|handle| next().is_some_and(|seen| handle.register(seen, interest, waker))),
            Kind::Stream { handle, .. } => {
                next().is_some_and(|seen| handle.register(seen, interest, waker))
            }
            Kind::Datagram(Some(handle)) => {
                next().is_some_and(|seen| handle.register(seen, interest, waker))
            }
            Kind::Fresh | Kind::Datagram(None) => true,
        }
    }

    pub(super) fn unregister(&self, waker: &Waker) {
        match &self.kind {
            Kind::Listening(handles) => handles.iter().for_each(|one| one.unregister(waker)),
            Kind::Stream { handle, .. } => handle.unregister(waker),
            Kind::Datagram(Some(handle)) => handle.unregister(waker),
            Kind::Fresh | Kind::Datagram(None) => {}
        }
    }
}

/// What `tcp_poll` makes of the state of a connection.
fn of(ready: Ready) -> u32 {
    let mut events = 0;
    if ready.intersects(Ready::READABLE | Ready::READ_CLOSED) {
        events |= READ;
    }
    if ready.intersects(Ready::WRITABLE | Ready::WRITE_CLOSED) {
        events |= WRITE;
    }
    if ready.intersects(Ready::ERROR | Ready::ERROR_QUEUE) {
        events |= POLLERR;
    }
    if ready.contains(Ready::READ_CLOSED) {
        events |= POLLRDHUP;
    }
    if ready.contains(Ready::READ_CLOSED | Ready::WRITE_CLOSED) {
        events |= POLLHUP;
    }
    events
}

/// A timeout of `poll(2)` and `epoll_wait(2)`: milliseconds, negative is forever.
pub(super) fn timeout(millis: i32) -> Option<Nanos> {
    u64::try_from(millis).ok().map(Nanos::from_millis)
}

impl Posix {
    /// What a descriptor is ready for, as `POLL*`.
    pub(super) fn events_of(&self, id: usize) -> u32 {
        match &self.table.get(id).object {
            Object::Socket(socket) => socket.events(),
            Object::Pipe(end) => self.table.pipes[end.pipe].events(end.writes),
            Object::Epoll(epoll) => {
                if self.has_news(epoll) {
                    READ
                } else {
                    0
                }
            }
        }
    }

    /// `poll(2)`: how many of `fds` have something. Descriptors that are not open here get
    /// `POLLNVAL`; waits up to `timeout_ms` milliseconds, forever if that is negative.
    ///
    /// # Errors
    /// None so far.
    pub fn poll(
        &mut self,
        now: Instant,
        call: &mut Call,
        fds: &mut [PollFd],
        timeout_ms: i32,
    ) -> Result<Outcome<usize>, Errno> {
        let mut count = 0;
        for one in fds.iter_mut() {
            one.revents = 0;
            if one.fd < 0 {
                continue;
            }
            let asked = u32::from(one.events as u16) | POLLERR | POLLHUP;
            let came = match self.table.id(one.fd) {
                Ok(id) => self.events_of(id) & asked,
                Err(_) => POLLNVAL,
            };
            one.revents = came as u16 as i16;
            count += usize::from(came != 0);
        }
        let until = call.deadline(now, timeout(timeout_ms));
        if count > 0 || now >= until {
            return Ok(Outcome::Done(count));
        }
        let open = fds.iter().filter(|one| one.fd >= 0);
        let on = open.map(|one| (one.fd, u32::from(one.events as u16))).collect();
        Ok(Outcome::Wait(Wait { on, until }))
    }
}
