//! The application that listens, and serves all connections that it has accepted.

use super::stream::Stream;
use super::task::{Task, run};
use super::{App, Step};
use core::net::SocketAddr;
use neap_stack::socket::listener::ListenerHandle;
use neap_stack::socket::readiness::Ready;
use neap_stack::stack::Stack;
use neap_tcp::time::{Instant, Nanos};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// What a server does with the connections that it accepts.
pub(super) trait Acceptor {
    /// What it does on one connection.
    type Task: Task;

    /// As [`Task::sleeps`], for the server and all its tasks.
    fn sleeps(&self) -> bool;

    /// How often all connections have a turn, whether they have changed or not; `None` if never. A
    /// server asks no task that sleeps for [`Turn::next`](super::task::Turn::next).
    fn tick(&self) -> Option<Nanos>;

    /// The task of a connection that was accepted; its client is at `from`.
    fn accept(&mut self, now: Instant, from: SocketAddr) -> Self::Task;

    /// Whether it has accepted all that it wants. Then the listener is closed.
    fn is_full(&self) -> bool;
}

/// Connections that were woken, in that order.
type WokenConnections = Arc<Mutex<Vec<usize>>>;

/// Wakes the server for one of its connections.
struct ConnectionWaker {
    index: usize,
    woken: WokenConnections,
    is_queued: AtomicBool,
    server: Waker,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
            self.server.wake_by_ref();
        }
    }
}

/// A connection that was accepted.
struct Accepted<T> {
    stream: Stream,
    task: T,
    connection_waker: Arc<ConnectionWaker>,
    waker: Waker,
}

/// Accepts connections and does on each what its task is. Cost of a turn: the connections that were
/// woken; all of them where tasks do not sleep, or at a tick.
pub(super) struct Server<S: Acceptor> {
    listener: Option<ListenerHandle>,
    acceptor: S,
    waker: Waker,
    woken: WokenConnections,
    open: Vec<Option<Box<Accepted<S::Task>>>>,
    /// Connections that have a turn in this one of the server.
    turn: Vec<usize>,
    next_tick: Instant,
}

impl<S: Acceptor> Server<S> {
    pub(super) fn new(listener: ListenerHandle, acceptor: S) -> Self {
        Self {
            listener: Some(listener),
            acceptor,
            waker: Waker::noop().clone(),
            woken: WokenConnections::default(),
            open: Vec::new(),
            turn: Vec::new(),
            next_tick: Instant::FAR_FUTURE,
        }
    }

    /// Whether a connection was accepted.
    fn accept(&mut self, now: Instant) -> bool {
        let before = self.open.len();
        while let Some(listener) = &self.listener {
            let seen = listener.readiness();
            while !self.acceptor.is_full()
                && let Ok((handle, from)) = listener.accept()
            {
                let index = self.open.len();
                let (woken, server) = (self.woken.clone(), self.waker.clone());
                let is_queued = AtomicBool::new(false);
                let connection_waker =
                    Arc::new(ConnectionWaker { index, woken, is_queued, server });
                let waker = Waker::from(connection_waker.clone());
                let mut task = self.acceptor.accept(now, from);
                task.begin(now, &handle);
                let stream = Stream::new(handle);
                let accepted = Accepted { stream, task, connection_waker, waker };
                self.open.push(Some(Box::new(accepted)));
                self.turn.push(index);
            }
            if self.acceptor.is_full() {
                self.listener.take().into_iter().for_each(|listener| listener.close(now));
            } else if !self.acceptor.sleeps()
                || listener.register(seen, Ready::READABLE, &self.waker)
            {
                break;
            }
        }
        self.open.len() > before
    }

    /// Finds the connections that have a turn now.
    fn collect(&mut self, now: Instant) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn.append(&mut woken);
        drop(woken);
        let is_tick = self.acceptor.tick().is_some() && now >= self.next_tick;
        if is_tick || !self.acceptor.sleeps() {
            self.turn = (0..self.open.len()).collect();
        }
    }

    fn serve(&mut self, now: Instant) -> Step {
        let mut step = Step::IDLE;
        for index in core::mem::take(&mut self.turn) {
            let Some(accepted) = &mut self.open[index] else { continue };
            accepted.connection_waker.is_queued.store(false, Ordering::Relaxed);
            let turn = run(&mut accepted.task, &mut accepted.stream, now, &accepted.waker);
            step.did |= turn.did;
            if !self.acceptor.sleeps() {
                step.next = step.next.min(turn.next);
            }
            if turn.is_over {
                self.open[index] = None;
            }
        }
        step
    }
}

impl<S: Acceptor> App for Server<S> {
    fn step(&mut self, _: &Stack, now: Instant) -> Step {
        let has_accepted = self.accept(now);
        self.collect(now);
        let mut step = self.serve(now);
        step.did |= has_accepted;
        if let Some(tick) = self.acceptor.tick() {
            if self.next_tick <= now || self.next_tick == Instant::FAR_FUTURE {
                self.next_tick = now + tick;
            }
            if self.open.iter().any(Option::is_some) {
                step.next = step.next.min(self.next_tick);
            }
        }
        step
    }

    fn sleeps(&mut self, waker: &Waker) -> bool {
        self.waker = waker.clone();
        self.acceptor.sleeps()
    }
}
