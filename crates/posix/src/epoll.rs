//! Epoll sets: level, edge, one-shot, as `fs/eventpoll.c` has it.
//!
//! A file that changes puts its mark on the set's queue, by the waker that the mark left with it;
//! a look at the set looks at the queue only. Several threads may wait for one set: an edge and a
//! one-shot go to one of them. `EPOLLEXCLUSIVE` is accepted, and wakes all sets that watch a
//! socket: epoll(7) promises that at least one is.
//!
//! Cost: O(1) per change of a socket, O(log sockets) per event reported; about 250 bytes for each
//! socket of a set.

use crate::Fd;
use crate::abi::*;
use crate::errno::Errno;
use crate::sync::lock;
use crate::watch::{CHANGED, READ, Seen, Watch, wanted};
use core::sync::atomic::{AtomicBool, Ordering};
use neap_stack::socket::readiness::{Readiness, Ready, ReadyState};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};

/// Events that are reported whether asked for or not.
const UNASKED: u32 = POLLERR | POLLHUP;
/// Flags of a request that say how to report, not what.
const FLAGS: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;
/// What may go with `EPOLLEXCLUSIVE` (`EPOLLEXCLUSIVE_OK_BITS`).
const WITH_EXCLUSIVE: u32 =
    POLLIN | POLLOUT | POLLERR | POLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
/// Steps from a set to the last of those that it watches (`EP_MAX_NESTS`).
const MAX_NESTS: u32 = 4;

/// Event of an epoll set (`struct epoll_event`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// Events as `POLL*`. A request may also have `EPOLLET` and `EPOLLONESHOT`.
    pub events: u32,
    /// Data of the caller, returned with the event.
    pub data: u64,
}

/// Names a file in a set: the descriptor it was added by, and the address of the file.
type Key = (Fd, usize);

/// A file that sets can watch.
pub(crate) trait Watched: Watch {
    /// The sets that watch it.
    fn watchers(&self) -> &Watchers;

    /// The set that it is, if it is one.
    fn as_set(&self) -> Option<&Set>;
}

/// The marks of the sets that watch a file.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Mutex<Vec<Arc<Mark>>>);

impl Watchers {
    fn remove(&self, mark: &Arc<Mark>) {
        lock(&self.0).retain(|one| !Arc::ptr_eq(one, mark));
    }

    /// The file is gone: the sets forget it.
    pub(crate) fn leave(&self) {
        for mark in core::mem::take(&mut *lock(&self.0)) {
            if let Some(epoll) = mark.epoll.upgrade()
                && let Some(set) = epoll.as_set()
            {
                lock(&set.entries).remove(&mark.key);
            }
        }
    }
}

/// What a file knows of a set that watches it.
#[derive(Debug)]
pub(crate) struct Mark {
    key: Key,
    file: Weak<dyn Watched>,
    epoll: Weak<dyn Watched>,
    queue: Arc<Queue>,
    is_queued: AtomicBool,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let is_new = self.queue.push(self);
        // As in `ep_poll_callback`, who watches the set hears of each edge below it.
        if is_new || self.queue.is_watched.load(Ordering::SeqCst) {
            self.queue.news.signal(CHANGED);
        }
    }
}

/// Marks whose files may be ready, in the order in which they became so.
#[derive(Debug, Default)]
struct Queue {
    marks: Mutex<Marks>,
    /// Changes when a file puts its mark here; if the set is watched, also when the mark is here.
    news: Readiness,
    /// Another set watches this one, or has.
    is_watched: AtomicBool,
}

#[derive(Debug, Default)]
struct Marks {
    waiting: VecDeque<Arc<Mark>>,
    /// The set is gone, and nobody takes marks any more. One that came now would hold the queue
    /// that holds it: a connection may outlive its file, and put a mark here when it ends.
    is_over: bool,
}

impl Queue {
    /// Whether the mark was not there yet.
    fn push(&self, mark: &Arc<Mark>) -> bool {
        let is_new = !mark.is_queued.swap(true, Ordering::SeqCst);
        if is_new {
            let mut marks = lock(&self.marks);
            if !marks.is_over {
                marks.waiting.push_back(mark.clone());
            }
        }
        is_new
    }

    /// The first mark. Its file may put it here again from now on.
    fn pop(&self) -> Option<Arc<Mark>> {
        let mark = lock(&self.marks).waiting.pop_front()?;
        mark.is_queued.store(false, Ordering::SeqCst);
        Some(mark)
    }

    /// Puts a mark back in front without telling anybody. Only the set does, while it is there.
    fn push_front(&self, mark: Arc<Mark>) {
        if !mark.is_queued.swap(true, Ordering::SeqCst) {
            lock(&self.marks).waiting.push_front(mark);
        }
    }

    fn len(&self) -> usize {
        lock(&self.marks).waiting.len()
    }

    /// The set is gone.
    fn end(&self) {
        let mut marks = lock(&self.marks);
        marks.is_over = true;
        let waiting = core::mem::take(&mut marks.waiting);
        drop(marks);
        drop(waiting);
    }
}

/// What is asked of one file.
#[derive(Clone, Copy, Debug)]
struct Request {
    event: EpollEvent,
    /// Counts changes, so that a report does not spend a newer one-shot.
    serial: u32,
    /// A one-shot that was told: nothing until it is asked for again.
    is_spent: bool,
}

#[derive(Debug)]
struct Entry {
    request: Request,
    mark: Arc<Mark>,
}

/// One epoll set.
#[derive(Debug, Default)]
pub(crate) struct Set {
    entries: Mutex<BTreeMap<Key, Entry>>,
    queue: Arc<Queue>,
    /// Held by the thread that goes through the queue (`ep->mtx`): others see it before or after.
    scan: Mutex<()>,
}

/// `epoll_ctl(2)` on the set `epoll`. Two threads that add sets to sets must not do so at once.
///
/// # Errors
/// As [`Posix::epoll_ctl`](crate::Posix::epoll_ctl), except `EBADF`.
pub(crate) fn control(
    epoll: &Arc<dyn Watched>,
    operation: i32,
    fd: Fd,
    file: &Arc<dyn Watched>,
    event: EpollEvent,
) -> Result<(), Errno> {
    if Arc::ptr_eq(epoll, file) {
        return Err(Errno::EINVAL);
    }
    let set = epoll.as_set().ok_or(Errno::EINVAL)?;
    let key = (fd, Arc::as_ptr(file).cast::<()>().addr());
    let known = lock(&set.entries).get(&key).map(|entry| entry.request.event.events);
    let is_there = known.is_some();
    if (event.events | known.unwrap_or(0)) & EPOLLEXCLUSIVE != 0 {
        check_exclusive(file.as_set().is_some(), operation, event.events, is_there)?;
    }
    match operation {
        EPOLL_CTL_ADD if is_there => Err(Errno::EEXIST),
        EPOLL_CTL_ADD => {
            if let Some(below) = file.as_set() {
                check_nests(epoll, file)?;
                below.queue.is_watched.store(true, Ordering::SeqCst);
            }
            let mark = Arc::new(Mark {
                key,
                file: Arc::downgrade(file),
                epoll: Arc::downgrade(epoll),
                queue: set.queue.clone(),
                is_queued: AtomicBool::new(false),
            });
            let request = Request { event, serial: 0, is_spent: false };
            let mut entries = lock(&set.entries);
            if entries.contains_key(&key) {
                // Another thread was faster.
                return Err(Errno::EEXIST);
            }
            entries.insert(key, Entry { request, mark: mark.clone() });
            drop(entries);
            lock(&file.watchers().0).push(mark.clone());
            mark.wake();
            Ok(())
        }
        EPOLL_CTL_DEL => {
            let entry = lock(&set.entries).remove(&key).ok_or(Errno::ENOENT)?;
            unwatch(&**file, &entry.mark);
            Ok(())
        }
        EPOLL_CTL_MOD => {
            let mut entries = lock(&set.entries);
            let entry = entries.get_mut(&key).ok_or(Errno::ENOENT)?;
            let serial = entry.request.serial.wrapping_add(1);
            entry.request = Request { event, serial, is_spent: false };
            let mark = entry.mark.clone();
            drop(entries);
            mark.wake();
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

fn unwatch(file: &dyn Watched, mark: &Arc<Mark>) {
    file.watchers().remove(mark);
    file.unregister(&Waker::from(mark.clone()));
}

/// `EPOLLEXCLUSIVE` is for sockets and few events, and stays as it was set.
fn check_exclusive(is_set: bool, operation: i32, events: u32, is_there: bool) -> Result<(), Errno> {
    let is_bad = match operation {
        EPOLL_CTL_ADD => events & EPOLLEXCLUSIVE != 0 && (is_set || events & !WITH_EXCLUSIVE != 0),
        EPOLL_CTL_MOD => is_there || events & EPOLLEXCLUSIVE != 0,
        _ => false,
    };
    if is_bad { Err(Errno::EINVAL) } else { Ok(()) }
}

/// What is known of the sets that were looked at, by the address of their files: sets can be
/// reached on many ways.
type Depths = BTreeMap<usize, u32>;

fn address(file: &Arc<dyn Watched>) -> usize {
    Arc::as_ptr(file).cast::<()>().addr()
}

/// Whether the set `epoll` may watch the set `file`: the chain through both, from the topmost to
/// the last below, stays short, whichever of them was there first (`ep_loop_check`). O(sets above
/// and below).
fn check_nests(epoll: &Arc<dyn Watched>, file: &Arc<dyn Watched>) -> Result<(), Errno> {
    let below = nests_below(file, epoll, &mut Depths::new())?;
    let above = nests_above(epoll, &mut Depths::new());
    if below + 1 + above > MAX_NESTS { Err(Errno::ELOOP) } else { Ok(()) }
}

/// Steps from a set down to the last one; `ELOOP` if `top` is among them.
fn nests_below(
    file: &Arc<dyn Watched>,
    top: &Arc<dyn Watched>,
    seen: &mut Depths,
) -> Result<u32, Errno> {
    if Arc::ptr_eq(file, top) {
        return Err(Errno::ELOOP);
    }
    let Some(set) = file.as_set() else { return Ok(0) };
    if let Some(depth) = seen.get(&address(file)) {
        return Ok(*depth);
    }
    let mut depth = 0;
    for watched in set.files() {
        if watched.as_set().is_some() {
            depth = depth.max(1 + nests_below(&watched, top, seen)?);
        }
    }
    seen.insert(address(file), depth);
    Ok(depth)
}

/// Steps from a set up to the topmost that watches it.
fn nests_above(file: &Arc<dyn Watched>, seen: &mut Depths) -> u32 {
    if let Some(height) = seen.get(&address(file)) {
        return *height;
    }
    let watchers: Vec<_> = lock(&file.watchers().0).clone();
    let above = watchers.iter().filter_map(|mark| mark.epoll.upgrade());
    let height = above.map(|epoll| 1 + nests_above(&epoll, seen)).max().unwrap_or(0);
    seen.insert(address(file), height);
    height
}

/// What a watched file is ready for, of what was asked; its next change puts the mark back on the
/// queue, unless it is level-triggered and looked at again anyway. A set that is watched passes
/// each change on, so its marks wait in any case.
fn look(mark: &Arc<Mark>, file: &dyn Watched, asked: u32) -> u32 {
    let wants = (asked & !FLAGS) | UNASKED;
    let waker = Waker::from(mark.clone());
    loop {
        let seen = file.words();
        let came = file.events() & wants;
        let must_wait = asked & EPOLLET != 0 || mark.queue.is_watched.load(Ordering::SeqCst);
        let is_done = came != 0 && !must_wait;
        if is_done || file.register(&seen, wanted(wants), &waker) {
            return came;
        }
    }
}

impl Set {
    /// The files that are watched.
    fn files(&self) -> Vec<Arc<dyn Watched>> {
        lock(&self.entries).values().filter_map(|entry| entry.mark.file.upgrade()).collect()
    }

    /// What is asked of a file; nothing if it was removed, or is a one-shot that was told.
    fn request(&self, mark: &Arc<Mark>) -> Option<Request> {
        let entries = lock(&self.entries);
        let entry = entries.get(&mark.key).filter(|entry| Arc::ptr_eq(&entry.mark, mark))?;
        (!entry.request.is_spent).then_some(entry.request)
    }

    /// Whether a report of this request still counts; a one-shot is spent by it.
    fn spend(&self, mark: &Arc<Mark>, request: Request) -> bool {
        let mut entries = lock(&self.entries);
        let entry = entries.get_mut(&mark.key).filter(|entry| Arc::ptr_eq(&entry.mark, mark));
        let Some(entry) = entry.filter(|entry| entry.request.serial == request.serial) else {
            return false;
        };
        entry.request.is_spent = request.event.events & EPOLLONESHOT != 0;
        true
    }

    /// What is ready, at most `most` events.
    pub(crate) fn collect(&self, most: usize) -> Vec<EpollEvent> {
        let _scan = lock(&self.scan);
        let (mut found, mut again) = (Vec::new(), Vec::new());
        // What comes back to the queue meanwhile is for the next call.
        let mut left = self.queue.len();
        while left > 0 && found.len() < most {
            left -= 1;
            let Some(mark) = self.queue.pop() else { break };
            let Some(request) = self.request(&mark) else { continue };
            let Some(file) = mark.file.upgrade() else { continue };
            let EpollEvent { events: asked, data } = request.event;
            let came = look(&mark, &*file, asked);
            if came != 0 && self.spend(&mark, request) {
                found.push(EpollEvent { events: came, data });
                if asked & (EPOLLONESHOT | EPOLLET) == 0 {
                    again.push(mark);
                }
            }
        }
        for mark in again {
            self.queue.push(&mark);
        }
        found
    }

    /// Whether [`collect`](Self::collect) would find something.
    fn has_news(&self) -> bool {
        let _scan = lock(&self.scan);
        while let Some(mark) = self.queue.pop() {
            let Some(request) = self.request(&mark) else { continue };
            let Some(file) = mark.file.upgrade() else { continue };
            let came = look(&mark, &*file, request.event.events);
            if came != 0 {
                self.queue.push_front(mark);
                return true;
            }
        }
        false
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let entries = core::mem::take(&mut *lock(&self.entries));
        for entry in entries.into_values() {
            if let Some(file) = entry.mark.file.upgrade() {
                unwatch(&*file, &entry.mark);
            }
        }
        // Marks hold the queue.
        self.queue.end();
    }
}

impl Watch for Set {
    fn events(&self) -> u32 {
        if self.has_news() { READ } else { 0 }
    }

    fn words(&self) -> Seen {
        [self.queue.news.state()].into_iter().collect()
    }

    fn register(&self, seen: &[ReadyState], _interest: Ready, waker: &Waker) -> bool {
        seen.iter().all(|seen| self.queue.news.register(*seen, CHANGED, waker))
    }

    fn unregister(&self, waker: &Waker) {
        self.queue.news.unregister(waker);
    }

    fn shard(&self) -> usize {
        let entries = lock(&self.entries);
        let first = entries.values().find_map(|entry| entry.mark.file.upgrade());
        // The file may end here, and take its entry out.
        drop(entries);
        first.map_or(0, |file| file.shard())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::file::{File, Object};

    /// A file whose word outlives it, as a connection outlives its socket.
    #[derive(Debug)]
    struct Lasting {
        connection: Arc<Readiness>,
        watchers: Watchers,
    }

    impl Drop for Lasting {
        fn drop(&mut self) {
            self.watchers.leave();
        }
    }

    impl Watch for Lasting {
        fn events(&self) -> u32 {
            0
        }
        fn words(&self) -> Seen {
            [self.connection.state()].into_iter().collect()
        }
        fn register(&self, seen: &[ReadyState], interest: Ready, waker: &Waker) -> bool {
            self.connection.register(seen[0], interest, waker)
        }
        fn unregister(&self, waker: &Waker) {
            self.connection.unregister(waker);
        }
        fn shard(&self) -> usize {
            0
        }
    }

    impl Watched for Lasting {
        fn watchers(&self) -> &Watchers {
            &self.watchers
        }
        fn as_set(&self) -> Option<&Set> {
            None
        }
    }

    #[test]
    fn a_connection_that_outlives_its_file_and_the_set_leaves_no_mark() {
        let connection = Arc::new(Readiness::new());
        let lasting = Lasting { connection: connection.clone(), watchers: Watchers::default() };
        let file: Arc<dyn Watched> = Arc::new(lasting);
        let set: Arc<dyn Watched> = Arc::new(File::new(Object::Epoll(Set::default()), false));
        let event = EpollEvent { events: POLLIN | EPOLLET, data: 1 };
        assert_eq!(control(&set, EPOLL_CTL_ADD, 5, &file, event), Ok(()));
        assert_eq!(set.as_set().expect("a set").collect(8), [], "and it waits for more");
        let mark = Arc::downgrade(&lock(&file.watchers().0)[0]);
        drop(file);
        drop(set);
        assert!(mark.upgrade().is_some(), "the connection has it");
        connection.signal(Ready::READABLE);
        assert!(mark.upgrade().is_none(), "nobody has it any more");
    }
}
