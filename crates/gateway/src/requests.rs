//! What other threads ask of the thread of an engine, and how it answers.

use neap::Poller;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Requests that wait. Whoever has one more waits until there is room.
const MOST_WAITING: usize = 64;

/// The end of those who ask. A request waits for the run of the engine to begin.
pub(crate) struct Caller<R> {
    poller: Arc<Poller>,
    is_stopped: Arc<AtomicBool>,
    requests: SyncSender<R>,
}

impl<R> Clone for Caller<R> {
    fn clone(&self) -> Self {
        let Self { poller, is_stopped, requests } = self;
        Self { poller: poller.clone(), is_stopped: is_stopped.clone(), requests: requests.clone() }
    }
}

impl<R> fmt::Debug for Caller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("is_stopped", &self.is_stopped).finish_non_exhaustive()
    }
}

/// The engine's end.
pub(crate) struct Requests<R> {
    /// The first caller, of which all others are clones.
    caller: Caller<R>,
    /// `None` once it is closed: who waits for room there is told so.
    receiver: Option<Receiver<R>>,
}

impl<R> Requests<R> {
    /// Requests that end the waits of a poller.
    pub(crate) fn new(poller: Arc<Poller>) -> Self {
        let (requests, receiver) = sync_channel(MOST_WAITING);
        let caller = Caller { poller, is_stopped: Arc::default(), requests };
        Self { caller, receiver: Some(receiver) }
    }

    pub(crate) fn caller(&self) -> Caller<R> {
        self.caller.clone()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.caller.is_stopped.load(Ordering::SeqCst)
    }

    /// The next request.
    pub(crate) fn next(&self) -> Option<R> {
        self.receiver.as_ref()?.try_recv().ok()
    }

    /// Ends the service. Requests that wait, and those to come, are told so.
    pub(crate) fn close(&mut self) {
        self.caller.is_stopped.store(true, Ordering::SeqCst);
        self.receiver = None;
    }
}

impl<R> Caller<R> {
    /// Ends the run.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.poller.notify();
    }

    /// Leaves a request that has no answer.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub(crate) fn tell(&self, request: R) -> io::Result<()> {
        // A run that was stopped takes no more requests, though it may still be there.
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(ended());
        }
        self.requests.send(request).map_err(|_| ended())?;
        self.poller.notify();
        Ok(())
    }

    /// Waits for the answer to a request.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub(crate) fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> R) -> io::Result<T> {
        let (answer, answered) = sync_channel(1);
        self.tell(request(answer))?;
        answered.recv().map_err(|_| ended())
    }

    /// The answer to a request; `None` if there is none within `patience`, or too many ask.
    pub(crate) fn look<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> R,
        patience: Duration,
    ) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        self.requests.try_send(request(answer)).ok()?;
        self.poller.notify();
        answered.recv_timeout(patience).ok()
    }
}

fn ended() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}
