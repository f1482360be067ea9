//! Tasks that wait for one direction of a socket.
//!
//! A direction is one waiter of the socket, however many tasks wait for it. Tasks that come through
//! `poll` methods share a place, as tokio's sockets have it: the last one is woken. Futures have a
//! place each, given back when they are dropped. Cost: a mutex and, at first, an allocation per
//! wait.

use crate::blocking::{READ_READY, WRITE_READY};
use crate::sync::lock;
use ::tokio::io::{Interest, Ready as Shown};
use neap_stack::socket::readiness::Ready;
use neap_stack::wait::Source;
use slab::Slab;
use smallvec::SmallVec;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker, ready};

/// One direction.
#[derive(Debug)]
pub(super) struct Direction {
    interest: Ready,
    tasks: Arc<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    polling: Option<Waker>,
    waiting: Slab<Waker>,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Places> {
        lock(&self.0)
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let mut places = self.lock();
        let mut woken: SmallVec<[Waker; 2]> = places.polling.take().into_iter().collect();
        woken.extend(places.waiting.iter().map(|(_, waker)| waker.clone()));
        drop(places);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The place of one future.
struct Place<'a> {
    tasks: &'a Tasks,
    key: Option<usize>,
}

impl Place<'_> {
    fn take(&mut self, waker: &Waker) {
        let mut places = self.tasks.lock();
        match self.key {
            Some(key) => places.waiting[key].clone_from(waker),
            None => self.key = Some(places.waiting.insert(waker.clone())),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.tasks.lock().waiting.remove(key);
        }
    }
}

/// What a call that would not wait says.
pub(super) trait Outcome {
    fn must_wait(&self) -> bool;
}

impl Direction {
    /// Waits for `interest`, and for errors.
    pub(super) fn new(interest: Ready) -> Self {
        Self { interest, tasks: Arc::default() }
    }

    fn attempt<T: Outcome>(
        &self,
        cx: &mut Context<'_>,
        source: &impl Source,
        attempt: &mut impl FnMut() -> T,
        mut take_place: impl FnMut(&Waker),
    ) -> Poll<T> {
        let budget = ready!(::tokio::task::coop::poll_proceed(cx));
        loop {
            let seen = source.readiness();
            let outcome = attempt();
            if !outcome.must_wait() {
                budget.made_progress();
                return Poll::Ready(outcome);
            }
            take_place(cx.waker());
            if source.register(seen, self.interest, &self.tasks.clone().into()) {
                return Poll::Pending;
            }
        }
    }

    /// Tries; where that would wait, the task is woken when it is worth another try.
    pub(super) fn poll<T: Outcome>(
        &self,
        cx: &mut Context<'_>,
        source: &impl Source,
        mut attempt: impl FnMut() -> T,
    ) -> Poll<T> {
        self.attempt(cx, source, &mut attempt, |waker| {
            self.tasks.lock().polling = Some(waker.clone());
        })
    }

    /// Tries until it need not wait. Cancel-safe if `attempt` is.
    pub(super) async fn wait<T: Outcome>(
        &self,
        source: &impl Source,
        mut attempt: impl FnMut() -> T,
    ) -> T {
        let mut place = Place { tasks: &self.tasks, key: None };
        poll_fn(|cx| self.attempt(cx, source, &mut attempt, |waker| place.take(waker))).await
    }

    /// Waits until the socket is ready.
    pub(super) async fn ready(&self, source: &impl Source) -> io::Result<()> {
        self.wait(source, || self.is_ready(source)).await
    }

    /// As [`ready`](Self::ready), for `poll` functions.
    pub(super) fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        source: &impl Source,
    ) -> Poll<io::Result<()>> {
        self.poll(cx, source, || self.is_ready(source))
    }

    /// Whether it is ready now; a readiness that is not there is refused as a call would be.
    fn is_ready(&self, source: &impl Source) -> io::Result<()> {
        match source.readiness().bits().intersects(self.interest) {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// A wait for any interest of a socket. It leaves no waiter behind when it is dropped.
struct Wait<'a, S: Source> {
    source: &'a S,
    direction: Direction,
}

impl<S: Source> Drop for Wait<'_, S> {
    fn drop(&mut self) {
        self.source.unregister(&self.direction.tasks.clone().into());
    }
}

/// What a socket has to be ready for.
fn wanted(interest: Interest) -> Ready {
    let read = if interest.is_readable() { READ_READY } else { Ready::ERROR };
    let write = if interest.is_writable() { WRITE_READY } else { Ready::ERROR };
    read | write
}

/// Readiness in the words of tokio.
fn shown(bits: Ready) -> Shown {
    let words = [
        (Ready::READABLE, Shown::READABLE),
        (Ready::WRITABLE, Shown::WRITABLE),
        (Ready::READ_CLOSED, Shown::READ_CLOSED),
        (Ready::WRITE_CLOSED, Shown::WRITE_CLOSED),
        (Ready::ERROR, Shown::ERROR),
    ];
    let is_set = |(bit, _): &(Ready, Shown)| bits.contains(*bit);
    words.into_iter().filter(is_set).fold(Shown::EMPTY, |all, (_, word)| all | word)
}

/// Waits until the socket is ready for any of `bits`.
pub(super) async fn ready_once(source: &impl Source, bits: Ready) -> io::Result<()> {
    let wait = Wait { source, direction: Direction::new(bits) };
    wait.direction.ready(source).await
}

/// Waits for any of what `interest` names, and says which.
pub(super) async fn ready_for(source: &impl Source, interest: Interest) -> io::Result<Shown> {
    let wanted = wanted(interest);
    async_io(source, interest, || Ok(shown(source.readiness().bits() & wanted))).await
}

/// Calls `f` if the socket is ready for what `interest` names.
pub(super) fn try_io<T>(
    source: &impl Source,
    interest: Interest,
    f: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    if source.readiness().bits().intersects(wanted(interest)) {
        return f();
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Calls `f` whenever the socket is ready for what `interest` names, until it need not wait.
pub(super) async fn async_io<T>(
    source: &impl Source,
    interest: Interest,
    mut f: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let wait = Wait { source, direction: Direction::new(wanted(interest)) };
    wait.direction.wait(source, || try_io(source, interest, &mut f)).await
}

impl<T> Outcome for io::Result<T> {
    fn must_wait(&self) -> bool {
        matches!(self, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
