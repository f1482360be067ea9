//! Groups of equal connections: the traffic of their clients, and its measurement.

mod barrier;
mod client;
mod datagrams;
mod messages;
mod server;

use super::App;
use super::page;
use crate::app::client::Client;
use crate::app::server::Server;
use crate::histogram::Times;
use crate::rng::Rng;
use barrier::Barrier;
use client::GroupClient;
use core::net::SocketAddr;
pub(crate) use datagrams::STAMP;
use neap_stack::socket::SocketError;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack};
use neap_tcp::time::{Instant, Nanos, Rate};
use server::GroupAcceptor;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Bytes of one write at most, except of [`Traffic::Produced`]: about 64 KiB.
const LONGEST_WRITE: u64 = page::PERIOD as u64;

/// Traffic of one connection, written by its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// As much as the socket takes, without end or up to a number of bytes.
    Bulk {
        /// Bytes of the stream; `None` is without end.
        bytes: Option<u64>,
        /// Most bytes of one write.
        write: u64,
    },
    /// Bytes that are produced while time passes, in parts every 10 ms, and none in a pause.
    Produced {
        /// Most bytes of one write.
        write: u64,
        /// Bytes per second; `None` produces more than the socket takes.
        rate: Option<Rate>,
        /// Begin and end of the pause, from the start of the client.
        pause: Option<(Nanos, Nanos)>,
    },
    /// A request, the whole response, a pause, and again.
    RequestResponse {
        /// Bytes of a request.
        request: u64,
        /// Bytes of a response.
        response: u64,
        /// Time from the response to the next request.
        think: Nanos,
        /// Whether the next requests of all clients wait for the last response to any of them, as
        /// those of a client that reads stripes from many servers (barrier-synchronized requests).
        barrier: bool,
    },
    /// Bursts of bytes with pauses between them. Sizes and pauses are uniform around their mean.
    OnOff {
        /// Mean bytes of a burst.
        burst: u64,
        /// Mean time from the writing of one burst to the next.
        off: Nanos,
    },
    /// A message in every interval, whether the last one has left or not.
    Paced {
        /// Bytes of a message.
        message: u64,
        /// Time from one message to the next.
        interval: Nanos,
    },
    /// A bulk stream in frames and small urgent messages on one connection, as the streams of
    /// HTTP/2.
    ///
    /// Urgent messages go before all frames that are not yet written.
    Mixed {
        /// Bytes of an urgent message.
        urgent: u64,
        /// Time from one urgent message to the next.
        interval: Nanos,
        /// Bytes of a frame of the bulk stream.
        frame: u64,
    },
}

/// Settings that the connections of a group share.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Traffic of each client.
    pub traffic: Traffic,
    /// Rate at which the servers read, in bytes per second; `None` reads at once.
    pub read_rate: Option<Rate>,
    /// Whether both ends look at their sockets after everything that happens on their hosts,
    /// instead of sleeping until they are woken.
    pub polls: bool,
    /// Options of the clients' connections.
    pub client: ConnectOptions,
    /// Options of the server's listener.
    pub server: ListenOptions,
}

/// Record of one end of a connection.
#[derive(Debug, Default)]
pub struct EndLog {
    /// The connection, while it is open.
    pub handle: Option<TcpHandle>,
    /// Address of the client's end of the connection, once there is one.
    pub client: Option<SocketAddr>,
    /// Bytes that this end has written.
    pub written: u64,
    /// Bytes that this end has read.
    pub read: u64,
    /// Time at which this end began: the call of `connect`, or the acceptance.
    pub begun: Option<Instant>,
    /// Time at which the end of the stream was read.
    pub finished: Option<Instant>,
    /// Segments that its connection had sent again when it was closed.
    pub retransmitted: u64,
    /// Retransmission timeouts that its connection had had when it was closed.
    pub timeouts: u64,
    /// Datagrams that were not sent, since there was no room for them.
    pub refused: u64,
    /// Whether the connection was refused, reset or given up.
    pub has_failed: bool,
}

/// Record of a group.
#[derive(Debug, Default)]
pub struct GroupLog {
    /// The logs of the clients, in the order in which they were made.
    pub clients: Vec<EndLog>,
    /// Logs of the servers, in the order of their acceptance. Of datagrams there is one for each
    /// sender, in the order in which their first ones came.
    pub servers: Vec<EndLog>,
    /// First byte at which a stream was not what was written.
    pub wrong_at: Option<u64>,
    /// Times from the writing of a message to its whole arrival, or from the writing of a request
    /// to the whole arrival of its response. With a barrier, times of whole queries.
    pub latency: Times,
    /// Queries of a group with a barrier.
    pub queries: QueryLog,
}

/// Record of the queries of a group with a barrier. A query is one request of each client, and it
/// lasts until the last response is whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryLog {
    /// Number of queries.
    pub count: u64,
    /// Sum of the times that they took.
    pub time: Nanos,
    /// Number of queries during which a retransmission timeout expired at either end of any
    /// connection of the group.
    pub with_timeout: u64,
}

impl EndLog {
    /// Returns whether a client has begun: it has called `connect`, or tried to send a datagram.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.is_some() || self.written + self.refused > 0
    }

    /// Returns the bytes that have arrived at this end, each once: those that it has read, those
    /// that wait to be read, and those that wait for others in front of them.
    ///
    /// A loss holds back what comes behind it, so what is read in an interval may have arrived
    /// long before.
    pub fn received(&self, now: Instant) -> u64 {
        let waits = self.handle.as_ref().map_or(0, |handle| {
            let info = handle.info(now);
            u64::from(info.unread_bytes) + u64::from(info.ofo_bytes)
        });
        self.read + waits
    }

    /// Returns the segments that this end has sent again.
    pub fn retransmitted(&self, now: Instant) -> u64 {
        let open = self.handle.as_ref().map(|handle| handle.info(now).total_retrans.into());
        open.unwrap_or(self.retransmitted)
    }

    /// Returns the retransmission timeouts of this end.
    fn timeouts(&self, now: Instant) -> u64 {
        let open = self.handle.as_ref().map(|handle| handle.info(now).timeouts.total.into());
        open.unwrap_or(self.timeouts)
    }

    /// Forgets the connection, which is closed, but not what it has sent again and why.
    fn close(&mut self, now: Instant) {
        (self.retransmitted, self.timeouts) = (self.retransmitted(now), self.timeouts(now));
        self.handle = None;
    }
}

impl GroupLog {
    /// Returns the bytes that the servers have read.
    pub fn delivered(&self) -> u64 {
        self.servers.iter().map(|server| server.read).sum()
    }

    /// Returns the segments that both ends have sent again.
    pub fn retransmitted(&self, now: Instant) -> u64 {
        let ends = self.clients.iter().chain(&self.servers);
        ends.map(|end| end.retransmitted(now)).sum()
    }

    /// Returns the datagrams that the clients could not send, since there was no room for them.
    pub fn refused(&self) -> u64 {
        self.clients.iter().map(|client| client.refused).sum()
    }

    /// Returns the connections of which an end has failed.
    pub fn failed(&self) -> usize {
        let ends = self.clients.iter().chain(&self.servers);
        let failed: Vec<_> = ends.filter(|end| end.has_failed).map(|end| end.client).collect();
        // Both ends may have failed. One that was refused has no address and no other end.
        let refused = failed.iter().filter(|client| client.is_none()).count();
        failed.iter().flatten().collect::<BTreeSet<_>>().len() + refused
    }
}

/// Log that both ends and the experiment share.
pub type SharedGroupLog = Rc<RefCell<GroupLog>>;

/// When the messages on their way were due, by the address of their client. Both ends share it, so
/// that a message need not carry the time.
type Births = Rc<RefCell<BTreeMap<SocketAddr, VecDeque<Instant>>>>;

/// Group of equal connections, which both of their ends share.
#[derive(Clone)]
pub struct Group {
    config: Rc<GroupConfig>,
    log: SharedGroupLog,
    births: Births,
    barrier: Rc<RefCell<Barrier>>,
}

impl Group {
    /// Returns a group of which nothing runs yet.
    pub fn new(config: GroupConfig) -> Self {
        let config = Rc::new(config);
        Self { config, log: Rc::default(), births: Rc::default(), barrier: Rc::default() }
    }

    /// Returns the log of the group.
    pub fn log(&self) -> SharedGroupLog {
        self.log.clone()
    }

    /// Returns the server, which listens on `local`.
    ///
    /// # Errors
    /// Those of [`Stack::listen`].
    pub fn server(
        &self,
        stack: &Stack,
        local: SocketAddr,
    ) -> Result<impl App + use<>, SocketError> {
        let listener = stack.listen(local, self.config.server.clone())?;
        Ok(Server::new(listener, GroupAcceptor { group: self.clone() }))
    }

    /// Returns one more client, which connects to `remote` at `start` and writes until `end`.
    pub fn client(
        &self,
        remote: SocketAddr,
        start: Instant,
        end: Instant,
        rng: Rng,
    ) -> impl App + use<> {
        let task = GroupClient::new(self.clone(), start, end, rng);
        Client::new(remote, self.config.client.clone(), start, task)
    }

    /// The place in the log of one more client.
    fn add_client(&self) -> usize {
        let clients = &mut self.log.borrow_mut().clients;
        clients.push(EndLog::default());
        clients.len() - 1
    }
}
