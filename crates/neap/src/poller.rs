//! Waits for any of several sockets, level-triggered.
//!
//! Cost: O(1) per change of a socket and per event reported, whatever the number of sockets.

use crate::blocking::{Source, TcpListener, TcpStream};
use crate::clock;
use crate::running::Running;

use neap_stack::listener::ListenerHandle;
use neap_stack::socket::readiness::{Ready, ReadyState};
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::time::Instant;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

/// A socket that a [`Poller`] can wait for: [`TcpStream`], [`TcpListener`].
pub trait Pollable: sealed::Watch {}

impl Pollable for TcpStream {}
impl Pollable for TcpListener {}

mod sealed {
    use super::{Arc, Running, Watched};

    pub trait Watch {
        fn watched(&self) -> (Watched, Arc<Running>);
    }
}

/// A socket in a [`Poller`].
#[derive(Clone, Debug)]
pub enum Watched {
    /// A connection.
    Tcp(TcpHandle),
    /// A listener.
    Listener(ListenerHandle),
}

impl sealed::Watch for TcpStream {
    fn watched(&self) -> (Watched, Arc<Running>) {
        (Watched::Tcp(self.handle().clone()), self.running().clone())
    }
}

impl sealed::Watch for TcpListener {
    fn watched(&self) -> (Watched, Arc<Running>) {
        (Watched::Listener(self.handle().clone()), self.running().clone())
    }
}

impl Watched {
    fn readiness(&self) -> ReadyState {
        match self {
            Self::Tcp(handle) => handle.readiness(),
            Self::Listener(handle) => handle.readiness(),
        }
    }

    fn register(&self, seen: ReadyState, interest: Ready, waker: &Waker) -> bool {
        match self {
            Self::Tcp(handle) => handle.register(seen, interest, waker),
            Self::Listener(handle) => handle.register(seen, interest, waker),
        }
    }

    fn shard(&self) -> usize {
        match self {
            Self::Tcp(handle) => Source::shard(handle),
            Self::Listener(handle) => Source::shard(handle),
        }
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, a connection to accept, or the end of the stream.
    Readable,
    /// Room to write.
    Writable,
    /// Either.
    Both,
}

/// A socket that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was given to [`Poller::add`].
    pub token: u64,
    /// A read (or accept) would not wait.
    pub readable: bool,
    /// A write would not wait.
    pub writable: bool,
    /// The connection failed.
    pub error: bool,
}

#[derive(Debug)]
struct Entry {
    token: u64,
    /// `None` once it was removed: the socket's list of waiters may keep the entry, and the entry may
    /// not keep the socket.
    socket: Mutex<Option<Watched>>,
    interest: Ready,
    queued: AtomicBool,
    shared: Weak<Shared>,
}

impl Entry {
    fn remove(&self) {
        let socket = lock(&self.socket).take();
        // Perhaps the last handle: its close is not for under the lock.
        drop(socket);
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Sockets whose readiness may have changed, and those that were ready last time.
    queue: Mutex<VecDeque<Arc<Entry>>>,
    /// Wakes the thread that waits.
    waiter: Mutex<Option<Waker>>,
}

impl Shared {
    fn push(&self, entry: &Arc<Entry>) {
        if !entry.queued.swap(true, Ordering::SeqCst) {
            lock(&self.queue).push_back(entry.clone());
        }
    }

    fn pop(&self) -> Option<Arc<Entry>> {
        let entry = lock(&self.queue).pop_front()?;
        entry.queued.store(false, Ordering::SeqCst);
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }
}

impl Wake for Entry {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.push(&self);
        let waiter = lock(&shared.waiter).take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// Waits for any of several sockets of one stack; the waiting thread drives the stack meanwhile.
///
/// It holds the sockets: one that was added is closed when it was removed and dropped.
#[derive(Debug, Default)]
pub struct Poller {
    running: Option<Arc<Running>>,
    entries: Vec<Arc<Entry>>,
    shared: Arc<Shared>,
    /// Reported last time: looked at again, because the poller is level-triggered.
    again: Vec<Arc<Entry>>,
}

impl Poller {
    /// A poller without sockets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for this socket too, from now on.
    pub fn add(&mut self, socket: &impl Pollable, token: u64, interest: Interest) {
        let interest = match interest {
            Interest::Readable => Ready::READABLE | Ready::READ_CLOSED | Ready::ERROR,
            Interest::Writable => Ready::WRITABLE | Ready::WRITE_CLOSED | Ready::ERROR,
            Interest::Both => Ready::all(),
        };
        let (socket, running) = socket.watched();
        debug_assert!(
            self.running.as_ref().is_none_or(|mine| Arc::ptr_eq(mine, &running)),
            "all sockets of a poller are of one stack"
        );
        self.running.get_or_insert(running);
        let entry = Arc::new(Entry {
            token,
            socket: Mutex::new(Some(socket)),
            interest,
            queued: AtomicBool::new(false),
            shared: Arc::downgrade(&self.shared),
        });
        self.shared.push(&entry);
        self.entries.push(entry);
    }

    /// Waits no longer for the sockets with this token. O(sockets).
    pub fn remove(&mut self, token: u64) {
        self.entries.retain(|entry| {
            let stays = entry.token != token;
            if !stays {
                entry.remove();
            }
            stays
        });
    }

    /// Puts the sockets that are ready into `events`, waiting for one up to `timeout` (`None`: as
    /// long as it takes). No events when the time is over first.
    ///
    /// # Errors
    /// None today; as system pollers.
    pub fn wait(&mut self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let deadline = timeout.map_or(Instant::FAR_FUTURE, |timeout| clock::now() + timeout.into());
        for entry in std::mem::take(&mut self.again) {
            self.shared.push(&entry);
        }
        let Some(running) = self.running.clone() else { return Ok(()) };
        let shard = self
            .entries
            .first()
            .map_or(0, |entry| lock(&entry.socket).as_ref().map_or(0, Watched::shard));
        loop {
            self.collect(events);
            if !events.is_empty() {
                running.look_in(shard);
                break;
            }
            let shared = &self.shared;
            let is_ready = || !shared.is_empty();
            let asleep = |waker: &Waker| {
                *lock(&shared.waiter) = Some(waker.clone());
                shared.is_empty()
            };
            if !running.driver(shard).wait(&running.stack, deadline, is_ready, asleep) {
                break;
            }
        }
        *lock(&self.shared.waiter) = None;
        Ok(())
    }

    fn collect(&mut self, events: &mut Vec<Event>) {
        while let Some(entry) = self.shared.pop() {
            let socket = lock(&entry.socket);
            let Some(socket) = &*socket else { continue };
            let seen = socket.readiness();
            let bits = seen.bits() & entry.interest;
            if bits.is_empty() {
                let waker: Waker = entry.clone().into();
                if !socket.register(seen, entry.interest, &waker) {
                    self.shared.push(&entry);
                }
                continue;
            }
            events.push(Event {
                token: entry.token,
                readable: bits.intersects(Ready::READABLE | Ready::READ_CLOSED),
                writable: bits.intersects(Ready::WRITABLE | Ready::WRITE_CLOSED),
                error: bits.intersects(Ready::ERROR),
            });
            self.again.push(entry.clone());
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.entries.iter().for_each(|entry| entry.remove());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
