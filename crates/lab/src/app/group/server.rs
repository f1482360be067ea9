//! The server of a group, at each of the connections that it accepts.

use super::messages::Parser;
use super::{EndLog, Group, GroupLog, LONGEST_WRITE, Traffic};
use crate::app::page;
use crate::app::server::Acceptor;
use crate::app::stream::{Failed, Stream};
use crate::app::task::{Task, Turn};
use core::net::SocketAddr;
use neap_stack::socket::SocketError;
use neap_stack::socket::tcp::TcpHandle;
use neap_tcp::time::{Instant, Nanos};

/// How often a reader that has a rate looks for more.
const TICK: Nanos = Nanos::from_millis(5);

/// Gives each connection of a group its receiver.
pub(super) struct GroupAcceptor {
    pub(super) group: Group,
}

impl Acceptor for GroupAcceptor {
    type Task = GroupServer;

    fn sleeps(&self) -> bool {
        !self.group.config.polls
    }

    fn tick(&self) -> Option<Nanos> {
        self.group.config.read_rate.map(|_| TICK)
    }

    fn accept(&mut self, now: Instant, from: SocketAddr) -> GroupServer {
        let servers = &mut self.group.log.borrow_mut().servers;
        let index = servers.len();
        servers.push(EndLog::default());
        let group = self.group.clone();
        GroupServer { group, index, from, since: now, parser: Parser::default(), counted: 0 }
    }

    fn is_full(&self) -> bool {
        false
    }
}

/// Reads, checks and answers what one client writes.
pub(super) struct GroupServer {
    group: Group,
    /// Its place in the log.
    index: usize,
    from: SocketAddr,
    since: Instant,
    parser: Parser,
    /// Whole messages of paced traffic that were counted.
    counted: u64,
}

impl Task for GroupServer {
    fn sleeps(&self) -> bool {
        !self.group.config.polls
    }

    fn begin(&mut self, now: Instant, handle: &TcpHandle) {
        let own = &mut self.group.log.borrow_mut().servers[self.index];
        own.begun = Some(now);
        own.client = Some(self.from);
        own.handle = Some(handle.clone());
    }

    fn refuse(&mut self, _: Instant, _: SocketError) {}

    fn turn(&mut self, now: Instant, stream: &mut Stream) -> Result<Turn, Failed> {
        stream.check()?;
        let Self { group, from, since, parser, counted, .. } = self;
        let traffic = &group.config.traffic;
        let read_rate = group.config.read_rate;
        let end = read_rate.map_or(u64::MAX, |rate| rate.bytes_in(now.since(*since)));
        let mut log = group.log.borrow_mut();
        let is_over = stream.read_to(now, end, |at, data| {
            if let Traffic::Mixed { .. } = traffic {
                let count = parser.take(data);
                log.arrived(group, *from, now, count);
            } else if !page::matches(at, data) {
                log.wrong_at.get_or_insert(at);
            }
        })?;
        match *traffic {
            Traffic::Paced { message, .. } => {
                let count = stream.read / message.max(1) - *counted;
                *counted += count;
                log.arrived(group, *from, now, count as usize);
            }
            Traffic::RequestResponse { request, response, .. } => {
                let requests = stream.read / request.max(1);
                let end = requests.saturating_mul(response.max(1));
                stream.write_to(now, end, response.min(LONGEST_WRITE))?;
            }
            _ => {}
        }
        let is_over = is_over && stream.pending.is_empty();
        Ok(Turn { next: Instant::FAR_FUTURE, did: false, is_over })
    }

    fn note(&mut self, stream: &Stream) {
        let own = &mut self.group.log.borrow_mut().servers[self.index];
        (own.written, own.read) = (stream.written, stream.read);
    }

    fn end(&mut self, now: Instant, has_failed: bool) {
        let own = &mut self.group.log.borrow_mut().servers[self.index];
        own.has_failed = has_failed;
        own.finished = (!has_failed).then_some(now);
        own.close(now);
    }
}

impl GroupLog {
    /// Notes that `count` messages of the client at `from` have arrived as a whole.
    fn arrived(&mut self, group: &Group, from: SocketAddr, now: Instant, count: usize) {
        if count == 0 {
            return;
        }
        let mut births = group.births.borrow_mut();
        let Some(births) = births.get_mut(&from) else { return };
        let arrived = births.drain(..count.min(births.len()));
        arrived.for_each(|birth| self.latency.record(now.since(birth)));
    }
}
