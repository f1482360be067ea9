//! Traffic of scenarios: groups of equal connections, what their clients write and when, and what
//! is measured.

use super::sink::Sink;
use super::source::Source;
use crate::histogram::Times;
use crate::rng::Rng;
use bytes::Bytes;
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::tcp::TcpHandle;
use neap_stack::stack::{ConnectOptions, ListenOptions, Stack};
use neap_tcp::time::{Instant, Nanos, Rate};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// What the client of a connection writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// As much as is taken, for ever or so many bytes, then the end.
    Bulk {
        /// How much.
        bytes: Option<u64>,
        /// Of one write.
        write: u64,
    },
    /// A request, the whole response, a pause, and again.
    RequestResponse {
        /// Bytes of a request.
        request: u64,
        /// Bytes of a response.
        response: u64,
        /// From the response to the next request.
        think: Nanos,
    },
    /// Bursts of bytes with pauses, both uniform around their mean.
    OnOff {
        /// Mean bytes of a burst.
        burst: u64,
        /// Mean pause after it was written.
        off: Nanos,
    },
    /// A message of so many bytes in every interval, whether the last one has left or not.
    Paced {
        /// Bytes of a message.
        message: u64,
        /// From one to the next.
        interval: Nanos,
    },
    /// One connection that carries a bulk stream in frames, and small urgent messages which go
    /// before all frames that are not yet written (as the streams of HTTP/2 do).
    Mixed {
        /// Bytes of an urgent message.
        urgent: u64,
        /// From one to the next.
        interval: Nanos,
        /// Bytes of a frame of the bulk stream.
        frame: u64,
    },
}

/// A group of equal connections.
#[derive(Clone, Debug)]
pub struct Group {
    /// What each client does.
    pub traffic: Traffic,
    /// The servers read no faster than this; `None` at once.
    pub read_rate: Option<Rate>,
    /// How the clients connect.
    pub client: ConnectOptions,
    /// How the server listens.
    pub server: ListenOptions,
}

/// What one end of a connection has come to.
#[derive(Debug, Default)]
pub struct EndLog {
    /// The connection, while it is open.
    pub handle: Option<TcpHandle>,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// When it began.
    pub begun: Option<Instant>,
    /// When the end of the stream was read.
    pub finished: Option<Instant>,
    /// Datagrams that found no room below.
    pub refused: u64,
    /// It was refused, reset or given up.
    pub has_failed: bool,
}

/// What a group has come to.
#[derive(Debug, Default)]
pub struct GroupLog {
    /// The clients, in the order of their making.
    pub clients: Vec<EndLog>,
    /// The servers, in the order of their acceptance.
    pub servers: Vec<EndLog>,
    /// A stream was not what was written, from this byte on.
    pub wrong_at: Option<u64>,
    /// From the writing of a message to its whole arrival; of a request to that of the response.
    pub latency: Times,
}

impl GroupLog {
    /// Bytes that the servers have read.
    pub fn delivered(&self) -> u64 {
        self.servers.iter().map(|server| server.read).sum()
    }
}

/// A log that both ends and the experiment share.
pub type SharedGroupLog = Rc<RefCell<GroupLog>>;

/// When the messages on their way were due, by the client's address; for their receiver in the same
/// world.
pub(super) type Births = Rc<RefCell<BTreeMap<SocketAddr, VecDeque<Instant>>>>;

/// What both ends of a group share.
#[derive(Clone)]
pub struct Ends {
    pub(super) group: Group,
    pub(super) log: SharedGroupLog,
    pub(super) births: Births,
}

impl Ends {
    /// A group of which nothing runs yet.
    pub fn new(group: Group) -> Self {
        Self { group, log: SharedGroupLog::default(), births: Births::default() }
    }

    /// What it comes to.
    pub fn log(&self) -> SharedGroupLog {
        self.log.clone()
    }

    /// The server, which listens on `local`.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn sink(&self, stack: &Stack, local: SocketAddr) -> Result<Sink, SocketError> {
        Ok(Sink::new(stack.listen(local, self.group.server.clone())?, self.clone()))
    }

    /// One more client, which connects to `remote` at `start` and writes until `end`.
    pub fn source(&self, remote: SocketAddr, start: Instant, end: Instant, rng: Rng) -> Source {
        let index = self.log.borrow().clients.len();
        self.log.borrow_mut().clients.push(EndLog::default());
        Source::new(self.clone(), index, remote, (start, end), rng)
    }
}

/// Bytes of a message's header in a mixed stream: one bit says urgent, the rest is the length.
const HEADER: usize = 8;

/// A message of a mixed stream.
pub(super) fn message(is_urgent: bool, bytes: u64) -> Bytes {
    let bytes = bytes.max(1);
    let mut all = (u64::from(is_urgent) << 63 | bytes).to_be_bytes().to_vec();
    all.resize(HEADER + bytes as usize, 0);
    all.into()
}

/// Finds the messages of a mixed stream.
#[derive(Debug, Default)]
pub(super) struct Parser {
    header: Vec<u8>,
    left: u64,
    is_urgent: bool,
}

impl Parser {
    /// Takes what came; how many urgent messages that completed.
    pub(super) fn take(&mut self, mut data: &[u8]) -> usize {
        let mut urgent = 0;
        while !data.is_empty() {
            if self.left == 0 {
                let need = (HEADER - self.header.len()).min(data.len());
                self.header.extend_from_slice(&data[..need]);
                data = &data[need..];
                if let Some(header) = self.header.first_chunk::<HEADER>() {
                    let word = u64::from_be_bytes(*header);
                    (self.is_urgent, self.left) = (word >> 63 == 1, word << 1 >> 1);
                    self.header.clear();
                }
                continue;
            }
            let part = self.left.min(data.len() as u64);
            self.left -= part;
            data = &data[part as usize..];
            urgent += usize::from(self.left == 0 && self.is_urgent);
        }
        urgent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let stream: Vec<u8> = [(true, 3), (false, 100), (true, 1), (true, 20)]
            .into_iter()
            .flat_map(|(is_urgent, bytes)| message(is_urgent, bytes))
            .collect();
        for cut in 1..stream.len() {
            let mut parser = Parser::default();
            let found: usize = stream.chunks(cut).map(|part| parser.take(part)).sum();
            assert_eq!(found, 3, "cut at {cut}");
        }
    }
}
