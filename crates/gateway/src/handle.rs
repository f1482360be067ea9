//! What other threads ask of a gateway while it runs.

use crate::holdings::{Holdings, Relays};
use crate::published::{Publication, PublishedId, PublishedPort, Transport};
use crate::requests::Caller;
use neap::control::SocketReport;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Changes the published ports of a gateway while it [runs](crate::Gateway::run), and ends the run.
///
/// Any thread may use it, except for that of the gateway. A request waits for the gateway to begin
/// its run.
#[derive(Clone, Debug)]
pub struct GatewayHandle(pub(crate) Caller<Request>);

/// A request, with the way of its answer.
pub(crate) enum Request {
    Publish(Publication, SyncSender<io::Result<PublishedId>>),
    PublishSocket(OwnedFd, Publication, SyncSender<io::Result<PublishedId>>),
    Cross(Transport, OwnedFd, SocketAddr, SyncSender<io::Result<PublishedId>>),
    Unpublish(PublishedId, SyncSender<io::Result<()>>),
    List(SyncSender<Vec<PublishedPort>>),
    Look(SyncSender<Holdings>),
    Relays(SyncSender<Relays>),
    Mappings(SyncSender<Vec<SocketReport>>),
    Drain(Duration),
    Finish(Duration),
}

impl GatewayHandle {
    /// Ends the run. Connections are closed.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// As [`drain`](Self::drain), but mappings are no flows and guests have nothing to acknowledge:
    /// nothing is to be passed on any more but what guests have sent already. It is for guests that
    /// are gone, of which only their kernel is left.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn finish(&self, time: Duration) -> io::Result<()> {
        self.0.tell(Request::Finish(time))
    }

    /// Ends the run when no flow is left and guests have acknowledged all that was sent to them, as
    /// has the [upstream](crate::Upstream::has_delivered), and after `time` at the latest. A guest
    /// that is gone without a word before it has acknowledged all is waited for until its
    /// connection times out. New connections, mappings and identifiers are refused until then, and
    /// [counted](crate::Figures::draining).
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn drain(&self, time: Duration) -> io::Result<()> {
        self.0.tell(Request::Drain(time))
    }

    /// Publishes a port, see [`Gateway::publish`](crate::Gateway::publish).
    ///
    /// # Errors
    /// As [`Gateway::publish`](crate::Gateway::publish); `BrokenPipe` if the run has ended.
    pub fn publish(&self, publication: Publication) -> io::Result<PublishedId> {
        self.0.ask(|answer| Request::Publish(publication, answer))?
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
        self.0.ask(|answer| Request::PublishSocket(socket, publication, answer))?
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
        self.0.ask(|answer| Request::Cross(transport, socket, to, answer))?
    }

    /// Closes a published port, see [`Gateway::unpublish`](crate::Gateway::unpublish).
    ///
    /// # Errors
    /// `NotFound` if there is no such port; `BrokenPipe` if the run has ended.
    pub fn unpublish(&self, id: PublishedId) -> io::Result<()> {
        self.0.ask(|answer| Request::Unpublish(id, answer))?
    }

    /// The published ports, in the order in which they were published.
    ///
    /// # Errors
    /// `BrokenPipe` if the run has ended.
    pub fn published(&self) -> io::Result<Vec<PublishedPort>> {
        self.0.ask(Request::List)
    }

    /// What the gateway holds; `None` if it does not answer within `patience`, or too many ask.
    pub(crate) fn look(&self, patience: Duration) -> Option<Holdings> {
        self.0.look(Request::Look, patience)
    }

    /// What each flow holds and waits for; `None` as of [`look`](Self::look).
    pub(crate) fn relays(&self, patience: Duration) -> Option<Relays> {
        self.0.look(Request::Relays, patience)
    }

    /// The mappings of datagrams and of pings; `None` as of [`look`](Self::look).
    pub(crate) fn mappings(&self, patience: Duration) -> Option<Vec<SocketReport>> {
        self.0.look(Request::Mappings, patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::Requests;
    use neap::Poller;
    use std::sync::Arc;

    #[test]
    fn requests_that_nobody_will_answer_end_with_an_error() {
        let mut requests = Requests::new(Arc::new(Poller::new().expect("descriptors")));
        let handle = GatewayHandle(requests.caller());
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

    #[test]
    fn a_request_behind_the_end_of_a_run_is_told_and_does_not_wait() {
        let mut requests = Requests::new(Arc::new(Poller::new().expect("descriptors")));
        let handle = GatewayHandle(requests.caller());
        requests.close();
        // More than may wait.
        for _ in 0..100 {
            let error = handle.drain(Duration::ZERO).expect_err("nobody drains");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn the_end_of_a_run_is_told_to_those_who_wait_for_room() {
        let mut requests = Requests::new(Arc::new(Poller::new().expect("descriptors")));
        let handle = GatewayHandle(requests.caller());
        let drains = std::thread::spawn(move || {
            std::iter::repeat_with(|| handle.drain(Duration::ZERO)).find_map(Result::err)
        });
        std::thread::sleep(Duration::from_millis(10));
        requests.close();
        let error = drains.join().expect("no panic").expect("it is told");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
