//! Epoll: level, edge, one-shot, as `fs/eventpoll.c` has it.
//!
//! A socket that changes puts its mark on the set's queue, by the waker that the mark left with it;
//! `epoll_wait` looks at the queue only. Cost: O(1) per change of a socket, O(log sockets) per
//! event reported; about 200 bytes for each socket of a set.

use crate::abi::*;
use crate::errno::Errno;
use crate::poll::{timeout, wanted};
use crate::table::{Description, Object};
use crate::{Call, Fd, Outcome, Posix, Wait};
use core::sync::atomic::{AtomicBool, Ordering};
use neap_tcp::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Events that are told whether asked for or not.
const UNASKED: u32 = POLLERR | POLLHUP;
/// How, not what.
const MANNERS: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
/// Events that one call may ask for (`EP_MAX_EVENTS`: `INT_MAX` over the 12 bytes of each).
const MAX_EVENTS: i32 = i32::MAX / 12;
/// What may go with `EPOLLEXCLUSIVE` (`EPOLLEXCLUSIVE_OK_BITS`).
const WITH_EXCLUSIVE: u32 =
    POLLIN | POLLOUT | POLLERR | POLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// Steps from a set to the last of those that it watches (`EP_MAX_NESTS`).
const MAX_NESTS: u32 = 4;

/// `struct epoll_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// `POLL*`; when asking also `EPOLLET` and `EPOLLONESHOT`.
    pub events: u32,
    /// The caller's.
    pub data: u64,
}

/// Names a socket in a set: the descriptor it was added by, and what that referred to.
type Key = (Fd, usize);

/// Marks whose sockets may be ready, in the order in which they became so.
type Queue = Mutex<VecDeque<Arc<Mark>>>;

/// What a socket knows of a set that watches it.
#[derive(Debug)]
pub(super) struct Mark {
    key: Key,
    /// Description of the set.
    epoll: usize,
    queue: Arc<Queue>,
    is_queued: AtomicBool,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            lock(&self.queue).push_back(self.clone());
        }
    }
}

#[derive(Debug)]
struct Entry {
    request: EpollEvent,
    /// A one-shot that was told: nothing until it is asked for again.
    is_spent: bool,
    mark: Arc<Mark>,
}

/// One epoll set.
#[derive(Debug, Default)]
pub(super) struct Epoll {
    entries: BTreeMap<Key, Entry>,
    queue: Arc<Queue>,
    /// Told last time and level-triggered: looked at again.
    again: Vec<Arc<Mark>>,
}

impl Posix {
    /// `epoll_create(2)`.
    ///
    /// # Errors
    /// `EINVAL` for a size below 1, `EMFILE`.
    pub fn epoll_create(&mut self, size: i32) -> Result<Fd, Errno> {
        if size < 1 {
            return Err(Errno::EINVAL);
        }
        self.epoll_create1(0)
    }

    /// `epoll_create1(2)`.
    ///
    /// # Errors
    /// `EINVAL` for unknown flags, `EMFILE`.
    pub fn epoll_create1(&mut self, flags: i32) -> Result<Fd, Errno> {
        if flags & !EPOLL_CLOEXEC != 0 {
            return Err(Errno::EINVAL);
        }
        self.table.open(Object::Epoll(Epoll::default()), false, flags & EPOLL_CLOEXEC != 0)
    }

    /// `epoll_ctl(2)`.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` where `epfd` is no set or `fd` is the set itself, for an unknown
    /// operation, and for what does not go with `EPOLLEXCLUSIVE`; `EEXIST`, `ENOENT`; `ELOOP` for
    /// sets within sets.
    pub fn epoll_ctl(
        &mut self,
        epfd: Fd,
        operation: i32,
        fd: Fd,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        let (epoll, id) = (self.table.id(epfd)?, self.table.id(fd)?);
        if epoll == id {
            return Err(Errno::EINVAL);
        }
        let key = (fd, id);
        let set = self.table.epoll_mut(epoll).ok_or(Errno::EINVAL)?;
        let known = set.entries.get(&key).map(|entry| entry.request.events);
        let is_there = known.is_some();
        if (event.events | known.unwrap_or(0)) & EPOLLEXCLUSIVE != 0 {
            self.check_exclusive(id, operation, event.events, is_there)?;
        }
        let set = self.table.epoll_mut(epoll).ok_or(Errno::EINVAL)?;
        match operation {
            EPOLL_CTL_ADD if is_there => Err(Errno::EEXIST),
            EPOLL_CTL_ADD => {
                if matches!(self.table.get(id).object, Object::Epoll(_)) {
                    self.check_nests(epoll, id)?;
                }
                let set = self.table.epoll_mut(epoll).ok_or(Errno::EINVAL)?;
                let (queue, is_queued) = (set.queue.clone(), AtomicBool::new(false));
                let mark = Arc::new(Mark { key, epoll, queue, is_queued });
                let entry = Entry { request: event, is_spent: false, mark: mark.clone() };
                set.entries.insert(key, entry);
                self.table.get_mut(id).watchers.push(mark.clone());
                mark.wake();
                Ok(())
            }
            EPOLL_CTL_DEL | EPOLL_CTL_MOD if !is_there => Err(Errno::ENOENT),
            EPOLL_CTL_DEL => {
                let entry = set.entries.remove(&key);
                if let Some(Entry { mark, .. }) = entry {
                    self.unwatch(id, &mark);
                }
                Ok(())
            }
            EPOLL_CTL_MOD => {
                if let Some(entry) = set.entries.get_mut(&key) {
                    (entry.request, entry.is_spent) = (event, false);
                    entry.mark.wake_by_ref();
                }
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// `epoll_wait(2)`: what is ready, at most `most` events; waits up to `timeout_ms`
    /// milliseconds, forever if that is negative.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` where `epfd` is no set, or `most` is below 1 or above 178956970.
    pub fn epoll_wait(
        &mut self,
        now: Instant,
        call: &mut Call,
        epfd: Fd,
        most: i32,
        timeout_ms: i32,
    ) -> Result<Outcome<Vec<EpollEvent>>, Errno> {
        let id = self.table.id(epfd)?;
        if !(1..=MAX_EVENTS).contains(&most) {
            return Err(Errno::EINVAL);
        }
        let most = most as usize;
        let set = self.table.epoll_mut(id).ok_or(Errno::EINVAL)?;
        for mark in core::mem::take(&mut set.again) {
            mark.wake();
        }
        let found = self.collect(id, most);
        let until = call.deadline(now, timeout(timeout_ms));
        if !found.is_empty() || now >= until {
            return Ok(Outcome::Done(found));
        }
        Ok(Outcome::Wait(Wait { on: [(epfd, POLLIN)].into_iter().collect(), until }))
    }

    fn collect(&mut self, epoll: usize, most: usize) -> Vec<EpollEvent> {
        let mut found = Vec::new();
        let Some(set) = self.table.epoll_mut(epoll) else { return found };
        let queue = set.queue.clone();
        // What wakes itself again meanwhile is for the next call.
        let mut left = lock(&queue).len();
        while left > 0 && found.len() < most {
            left -= 1;
            let Some(mark) = lock(&queue).pop_front() else { break };
            mark.is_queued.store(false, Ordering::SeqCst);
            let Some(set) = self.table.epoll_mut(epoll) else { break };
            let request = match set.entries.get(&mark.key) {
                Some(entry) if Arc::ptr_eq(&entry.mark, &mark) && !entry.is_spent => entry.request,
                _ => continue,
            };
            let came = self.look(&mark, request.events);
            if came == 0 {
                continue;
            }
            found.push(EpollEvent { events: came, data: request.data });
            let Some(set) = self.table.epoll_mut(epoll) else { break };
            if request.events & EPOLLONESHOT != 0 {
                if let Some(entry) = set.entries.get_mut(&mark.key) {
                    entry.is_spent = true;
                }
            } else if request.events & EPOLLET == 0 {
                set.again.push(mark);
            }
        }
        found
    }

    /// What a watched object is ready for, of what was asked; its next change puts the mark back on
    /// the queue, unless it is level-triggered and looked at again anyway.
    fn look(&self, mark: &Arc<Mark>, asked: u32) -> u32 {
        let id = mark.key.1;
        let wants = (asked & !MANNERS) | UNASKED;
        let object = &self.table.get(id).object;
        if let Object::Pipe(_) = object {
            // Who writes or reads at the other end wakes the mark.
            return self.events_of(id) & wants;
        }
        let Object::Socket(socket) = object else {
            // A set has no word of its own: it is looked at every time.
            let came = self.events_of(id) & wants;
            if came == 0 || asked & EPOLLET != 0 {
                mark.wake_by_ref();
            }
            return came;
        };
        let waker = Waker::from(mark.clone());
        loop {
            let seen = socket.states();
            let came = socket.events() & wants;
            let is_done = came != 0 && asked & EPOLLET == 0;
            if is_done || socket.register(&seen, wanted(wants), &waker) {
                return came;
            }
        }
    }

    /// Whether `epoll_wait` would find something.
    pub(super) fn has_news(&self, epoll: &Epoll) -> bool {
        let queued: Vec<_> = lock(&epoll.queue).iter().cloned().collect();
        queued.iter().chain(&epoll.again).any(|mark| {
            let entry = epoll.entries.get(&mark.key);
            entry.is_some_and(|entry| {
                let wants = (entry.request.events & !MANNERS) | UNASKED;
                Arc::ptr_eq(&entry.mark, mark)
                    && !entry.is_spent
                    && self.events_of(mark.key.1) & wants != 0
            })
        })
    }

    /// `EPOLLEXCLUSIVE` is for sockets and few events, and stays as it was set.
    fn check_exclusive(
        &self,
        id: usize,
        operation: i32,
        events: u32,
        is_there: bool,
    ) -> Result<(), Errno> {
        let is_set = matches!(self.table.get(id).object, Object::Epoll(_));
        let is_bad = match operation {
            EPOLL_CTL_ADD => {
                events & EPOLLEXCLUSIVE != 0 && (is_set || events & !WITH_EXCLUSIVE != 0)
            }
            EPOLL_CTL_MOD => is_there || events & EPOLLEXCLUSIVE != 0,
            _ => false,
        };
        if is_bad { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Whether set `epoll` may watch set `id`: the chain through both, from the topmost to the last
    /// below, stays short, whichever of them was there first (`ep_loop_check`). O(sets above and
    /// below).
    fn check_nests(&self, epoll: usize, id: usize) -> Result<(), Errno> {
        let below = self.nests_below(id, epoll, &mut BTreeMap::new())?;
        let above = self.nests_above(epoll, &mut BTreeMap::new());
        if below + 1 + above > MAX_NESTS { Err(Errno::ELOOP) } else { Ok(()) }
    }

    /// Steps from a set down to the last one; `ELOOP` if `top` is among them. `seen` keeps what is
    /// known, since sets can be reached on many ways.
    fn nests_below(
        &self,
        id: usize,
        top: usize,
        seen: &mut BTreeMap<usize, u32>,
    ) -> Result<u32, Errno> {
        if id == top {
            return Err(Errno::ELOOP);
        }
        let Object::Epoll(set) = &self.table.get(id).object else { return Ok(0) };
        if let Some(depth) = seen.get(&id) {
            return Ok(*depth);
        }
        let mut depth = 0;
        for &(_, below) in set.entries.keys() {
            if matches!(self.table.get(below).object, Object::Epoll(_)) {
                depth = depth.max(1 + self.nests_below(below, top, seen)?);
            }
        }
        seen.insert(id, depth);
        Ok(depth)
    }

    /// Steps from a set up to the topmost that watches it.
    fn nests_above(&self, id: usize, seen: &mut BTreeMap<usize, u32>) -> u32 {
        if let Some(height) = seen.get(&id) {
            return *height;
        }
        let watchers = self.table.get(id).watchers.iter();
        let height = watchers.map(|mark| 1 + self.nests_above(mark.epoll, seen)).max().unwrap_or(0);
        seen.insert(id, height);
        height
    }

    fn unwatch(&mut self, id: usize, mark: &Arc<Mark>) {
        let description = self.table.get_mut(id);
        description.watchers.retain(|one| !Arc::ptr_eq(one, mark));
        if let Object::Socket(socket) = &description.object {
            socket.unregister(&Waker::from(mark.clone()));
        }
    }

    /// A socket became another: whoever watches it looks again.
    pub(super) fn changed(&self, fd: Fd) {
        if let Ok(id) = self.table.id(fd) {
            self.table.get(id).watchers.iter().for_each(Wake::wake_by_ref);
        }
    }

    /// A description is gone: sets forget it, and it forgets what it watched.
    pub(super) fn forget_watches(&mut self, id: usize, gone: &Description) {
        for mark in &gone.watchers {
            if let Object::Socket(socket) = &gone.object {
                socket.unregister(&Waker::from(mark.clone()));
            }
            if let Some(set) = self.table.epoll_mut(mark.epoll) {
                set.entries.remove(&mark.key);
            }
        }
        let Object::Epoll(epoll) = &gone.object else { return };
        for (&(_, watched), entry) in &epoll.entries {
            if watched != id {
                self.unwatch(watched, &entry.mark);
            }
        }
    }
}

/// Locks `mutex` even if a thread panicked under it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
