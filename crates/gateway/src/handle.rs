//! What other threads ask of a gateway while it runs.

use crate::inspect::Holdings;
use crate::published::{Publication, PublishedId, PublishedPort, Transport};
use neap::Poller;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Requests that wait for the gateway. Whoever has one more waits until there is room.
const MOST_WAITING: usize = 64;

/// Changes the published ports of a gateway while it [runs](crate::Gateway::run), and ends the run.
///
/// Any thread may use it, except for that of the gateway. A request waits for the gateway to begin
/// its run.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    poller: Arc<Poller>,
    is_stopped: Arc<AtomicBool>,
    requests: SyncSender<Request>,
}

/// A request, with the way of its answer.
pub(crate) enum Request {
    Publish(Publication, SyncSender<io::Result<PublishedId>>),
    PublishSocket(OwnedFd, Publication, SyncSender<io::Result<PublishedId>>),
    Cross(Transport, OwnedFd, SocketAddr, SyncSender<io::Result<PublishedId>>),
    Unpublish(PublishedId, SyncSender<io::Result<()>>),
    List(SyncSender<Vec<PublishedPort>>),
    Look(SyncSender<Holdings>),
    Drain(Duration),
}

/// The gateway's end of its handles.
pub(crate) struct Requests {
    /// The first handle, of which all others are clones.
    handle: GatewayHandle,
    receiver: Receiver<Request>,
}

impl Requests {
    pub(crate) fn new(poller: Arc<Poller>) -> Self {
        let (requests, receiver) = sync_channel(MOST_WAITING);
        let handle = GatewayHandle { poller, is_stopped: Arc::default(), requests };
        Self { handle, receiver }
    }

    pub(crate) fn handle(&self) -> GatewayHandle {
        self.handle.clone()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.handle.is_stopped.load(Ordering::SeqCst)
    }

    /// The next request.
    pub(crate) fn next(&self) -> Option<Request> {
        self.receiver.try_recv().ok()
    }

    /// Ends the service. Requests that wait, and those to come, are told so.
    pub(crate) fn close(&self) {
        self.handle.is_stopped.store(true, Ordering::SeqCst);
        while self.next().is_some() {}
    }
}

impl GatewayHandle {
    /// Ends the run. Connections are closed.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.poller.notify();
    }

    /// Ends the run when no flow is left, and after `time` at the latest. New connections, mappings
    /// and identifiers are refused until then, and counted as those beyond the bounds are.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn drain(&self, time: Duration) -> io::Result<()> {
        let sent = self.requests.send(Request::Drain(time));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.poller.notify();
        Ok(())
    }

    /// Publishes a port, see [`Gateway::publish`](crate::Gateway::publish).
    ///
    /// # Errors
    /// As [`Gateway::publish`](crate::Gateway::publish); `BrokenPipe` if the run has ended.
    pub fn publish(&self, publication: Publication) -> io::Result<PublishedId> {
        self.ask(|answer| Request::Publish(publication, answer))?
    }

    /// Publishes a port with a socket that is bound, see
    /// [`Gateway::publish_socket`](crate::Gateway::publish_socket).
    ///
    /// # Errors
    /// As [`Gateway::publish_socket`](crate::Gateway::publish_socket); `BrokenPipe` if the run has
    /// ended.
    pub fn publish_socket(
        &self,
        socket: OwnedFd,
        publication: Publication,
    ) -> io::Result<PublishedId> {
        self.ask(|answer| Request::PublishSocket(socket, publication, answer))?
    }

    /// Joins a socket of another namespace with a server of this one, see
    /// [`Gateway::cross`](crate::Gateway::cross).
    ///
    /// # Errors
    /// As [`Gateway::cross`](crate::Gateway::cross); `BrokenPipe` if the run has ended.
    pub fn cross(
        &self,
        transport: Transport,
        socket: OwnedFd,
        to: SocketAddr,
    ) -> io::Result<PublishedId> {
        self.ask(|answer| Request::Cross(transport, socket, to, answer))?
    }

    /// Closes a published port, see [`Gateway::unpublish`](crate::Gateway::unpublish).
    ///
    /// # Errors
    /// `NotFound` if there is no such port; `BrokenPipe` if the run has ended.
    pub fn unpublish(&self, id: PublishedId) -> io::Result<()> {
        self.ask(|answer| Request::Unpublish(id, answer))?
    }

    /// The published ports, in the order in which they were published.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn published(&self) -> io::Result<Vec<PublishedPort>> {
        self.ask(Request::List)
    }

    /// What the gateway holds; `None` if it does not answer within `patience`, or too many ask.
    pub(crate) fn look(&self, patience: Duration) -> Option<Holdings> {
        let (answer, answered) = sync_channel(1);
        self.requests.try_send(Request::Look(answer)).ok()?;
        self.poller.notify();
        answered.recv_timeout(patience).ok()
    }

    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> io::Result<T> {
        let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (answer, answered) = sync_channel(1);
        self.requests.send(request(answer)).map_err(|_| ended())?;
        // A gateway that has ended before this has forgotten its requests already.
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(ended());
        }
        self.poller.notify();
        answered.recv().map_err(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_nobody_will_answer_end_with_an_error() {
        let requests = Requests::new(Arc::new(Poller::new().expect("descriptors")));
        let handle = requests.handle();
        let asks = {
            let handle = handle.clone();
            std::thread::spawn(move || handle.published())
        };
        let Some(Request::List(answer)) = std::iter::repeat_with(|| {
            std::thread::yield_now();
            requests.next()
        })
        .flatten()
        .next() else {
            panic!("the request of the thread");
        };
        answer.send(Vec::new()).expect("somebody waits");
        assert_eq!(asks.join().expect("no panic").expect("answered"), []);

        requests.close();
        let error = handle.published().expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        drop(requests);
        let error = handle.unpublish(PublishedId::from(1)).expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
