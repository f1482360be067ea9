//! What other threads ask of doors while they run.

use super::config::{Door, TunnelResolver};
use crate::holdings::FlowView;
use neap::Poller;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Requests that wait. Whoever has one more waits until there is room.
const MOST_WAITING: usize = 64;

/// Number of a door. [`Doors`](super::Doors) give each number once, from 0 on: the doors of their
/// settings come first, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DoorId(pub(super) u64);

/// Opens and closes doors while they run, and ends the run. Any thread may use it, except for that
/// of the doors. A request waits for the run to begin.
#[derive(Clone, Debug)]
pub struct DoorsHandle {
    poller: Arc<Poller>,
    is_stopped: Arc<AtomicBool>,
    requests: SyncSender<Request>,
}

/// A request, with the way of its answer.
pub(super) enum Request {
    Open(Door, SyncSender<io::Result<DoorId>>),
    Close(DoorId, SyncSender<io::Result<()>>),
    SetResolver(TunnelResolver),
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

    /// Ends the service. Requests that wait, and those to come, are told so.
    pub(super) fn close(&self) {
        self.handle.is_stopped.store(true, Ordering::SeqCst);
        while self.next().is_some() {}
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
        self.tell(Request::Drain(time))
    }

    /// Opens one more door.
    ///
    /// # Errors
    /// Why its port cannot be had; `BrokenPipe` if the run has ended.
    pub fn open(&self, door: Door) -> io::Result<DoorId> {
        self.ask(|answer| Request::Open(door, answer))?
    }

    /// Closes a door: its port, and its connections, which are reset. Cost: O(connections of all
    /// doors).
    ///
    /// # Errors
    /// `NotFound` if there is no such door; `BrokenPipe` if the run has ended.
    pub fn close(&self, id: DoorId) -> io::Result<()> {
        self.ask(|answer| Request::Close(id, answer))?
    }

    /// Changes who is asked for names from now on. What is known of names is forgotten.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn set_resolver(&self, resolver: TunnelResolver) -> io::Result<()> {
        self.tell(Request::SetResolver(resolver))
    }

    fn tell(&self, request: Request) -> io::Result<()> {
        self.requests.send(request).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.poller.notify();
        Ok(())
    }

    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> io::Result<T> {
        let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (answer, answered) = sync_channel(1);
        self.requests.send(request(answer)).map_err(|_| ended())?;
        // Doors that have ended before this have forgotten their requests already.
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(ended());
        }
        self.poller.notify();
        answered.recv().map_err(|_| ended())
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
