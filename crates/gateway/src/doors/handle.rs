//! What other threads ask of doors while they run.

use crate::holdings::FlowView;
use neap::Poller;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Requests that wait. Whoever has one more waits until there is room.
const MOST_WAITING: usize = 64;

/// Ends the run of [`Doors`](super::Doors). Any thread may use it.
#[derive(Clone, Debug)]
pub struct DoorsHandle {
    poller: Arc<Poller>,
    is_stopped: Arc<AtomicBool>,
    requests: SyncSender<Request>,
}

/// A request, with the way of its answer.
pub(super) enum Request {
    Look(SyncSender<Vec<FlowView>>),
    Drain(Duration),
}

/// The doors' end of their handles.
pub(super) struct Requests {
    /// The first handle, of which all others are clones.
    handle: DoorsHandle,
    receiver: Receiver<Request>,
}

impl Requests {
    pub(super) fn new(poller: Arc<Poller>) -> Self {
        let (requests, receiver) = sync_channel(MOST_WAITING);
        Self { handle: DoorsHandle { poller, is_stopped: Arc::default(), requests }, receiver }
    }

    pub(super) fn handle(&self) -> DoorsHandle {
        self.handle.clone()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.handle.is_stopped.load(Ordering::SeqCst)
    }

    /// The next request.
    pub(super) fn next(&self) -> Option<Request> {
        self.receiver.try_recv().ok()
    }
}

impl DoorsHandle {
    /// Ends the run. Connections are reset.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.poller.notify();
    }

    /// Ends the run when no connection is left, and after `time` at the latest. The ports of the
    /// doors are closed at once.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn drain(&self, time: Duration) -> io::Result<()> {
        let sent = self.requests.send(Request::Drain(time));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.poller.notify();
        Ok(())
    }

    /// The connections that there are; `None` if the doors do not answer within `patience`, or too
    /// many ask.
    pub(super) fn look(&self, patience: Duration) -> Option<Vec<FlowView>> {
        let (answer, answered) = sync_channel(1);
        self.requests.try_send(Request::Look(answer)).ok()?;
        self.poller.notify();
        answered.recv_timeout(patience).ok()
    }
}
