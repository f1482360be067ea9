//! Names for guests: their questions go to resolvers of the host, to a resolver by way of the
//! upstream, or are answered with addresses that stand for names.

pub(crate) mod addresses;
mod asked;
mod message;
mod names;
mod queries;
mod servers;
mod sockets;
mod stream;

pub use message::answer_by_name;
pub(crate) use message::is_answer;
pub use names::Names;
use queries::AskedBy;
pub(crate) use queries::{QuestionWays, ServerList, exchange, framed, random_id};
pub(crate) use sockets::Outcome;

use crate::config::{GatewayConfig, SECURE_RESOLVER_PORT, Way};
use crate::counters::Counters;
use crate::destination::Destination;
use crate::outbound::Outbound;
use crate::resolver::Resolver;
use crate::token::Slot;
use crate::upstream::{Far, Upstream, connect};
use asked::AskedStream;
use neap::Datagram;
use queries::Queries;
use servers::Servers;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use stream::NameStream;

/// Where a flow goes on, or who answers it.
pub(crate) enum Target {
    To(Destination),
    Resolver,
    /// An address of the gateway itself, at which nobody listens.
    Nobody,
    Denied,
}

/// The resolver of a gateway.
pub(crate) struct Dns {
    resolver: Resolver,
    /// Of [`Resolver::Names`]. The connections on which guests ask share it.
    names: Arc<Mutex<Names>>,
    servers: Servers,
    outbound: Outbound,
    queries: Queries,
    counters: Arc<Counters>,
}

fn lock(names: &Mutex<Names>) -> MutexGuard<'_, Names> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dns {
    pub(crate) fn new(config: &GatewayConfig, counters: Arc<Counters>) -> Self {
        Self {
            servers: Servers::of(&config.resolver, config.resolvers_file.clone()),
            resolver: config.resolver.clone(),
            names: Arc::default(),
            outbound: config.outbound.clone(),
            queries: Queries::new(config.outbound.clone(), counters.clone()),
            counters,
        }
    }

    /// Where a flow goes that a guest wants to go to `wanted`.
    pub(crate) fn target(&self, config: &GatewayConfig, wanted: SocketAddr) -> Target {
        match config.way(wanted) {
            Way::Resolver => Target::Resolver,
            Way::Nobody => Target::Nobody,
            Way::Denied => Target::Denied,
            Way::To(address) => {
                if self.resolver != Resolver::Names || !Names::is_stand_in(address.ip()) {
                    return Target::To(address.into());
                }
                // A stand-in without a name leads nowhere.
                let name = lock(&self.names).name(address.ip(), Instant::now());
                name.map_or(Target::Denied, |name| {
                    Target::To(Destination { name: Some(name), ..address.into() })
                })
            }
        }
    }

    /// A connection to the resolver for a guest, over TLS if that is what the guest wants to speak.
    /// `others` get the nameservers that follow if it cannot be opened.
    pub(crate) fn connect(
        &mut self,
        upstream: &dyn Upstream,
        guest: SocketAddr,
        is_secure: bool,
        others: &mut ServerList,
    ) -> io::Result<Box<dyn Far>> {
        if self.resolver == Resolver::Names {
            if is_secure {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            return Ok(Box::new(NameStream::new(self.names.clone())));
        }
        others.extend(self.servers.list(Instant::now()));
        if is_secure {
            others.iter_mut().for_each(|server| server.set_port(SECURE_RESOLVER_PORT));
        }
        self.connect_to_next(upstream, guest, others)
    }

    /// A connection to the first of these nameservers that does not refuse it at once. It is taken
    /// out of the list, with those before it.
    pub(crate) fn connect_to_next(
        &self,
        upstream: &dyn Upstream,
        guest: SocketAddr,
        servers: &mut ServerList,
    ) -> io::Result<Box<dyn Far>> {
        let is_through = matches!(self.resolver, Resolver::Through(_));
        let mut refused = io::ErrorKind::HostUnreachable.into();
        while !servers.is_empty() {
            let server = servers.remove(0);
            let begun = if is_through {
                // It has the hops of the gateway, as a nameserver that follows is nobody whom the
                // guest has named.
                upstream.connect(&server.into(), guest.into())
            } else {
                connect(&server.into(), &self.outbound.towards(server.ip()), None)
            };
            match begun {
                Ok(far) if server.port() == SECURE_RESOLVER_PORT => return Ok(far),
                Ok(far) => return Ok(Box::new(AskedStream::new(far, self.counters.clone()))),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Takes a question of a guest, which is answered at once or later.
    pub(crate) fn ask(&mut self, question: &Datagram, ways: QuestionWays<'_>) {
        self.counters.count(|counters| &counters.dns_questions);
        if let Some(answer) = message::refusal(&question.data) {
            return self.queries.answer(question, Some(answer), ways.guests);
        }
        let by = match self.resolver {
            Resolver::Names => {
                let mut names = lock(&self.names);
                let answer = answer_by_name(&mut names, &question.data, Instant::now());
                return self.queries.answer(question, answer, ways.guests);
            }
            Resolver::Through(_) if ways.upstream.asks_by_datagrams() => AskedBy::Datagrams,
            Resolver::Through(_) => AskedBy::Streams,
            Resolver::Server(_) | Resolver::Host => AskedBy::Host,
        };
        let servers = self.servers.list(Instant::now());
        self.queries.ask(question, servers, by, ways);
    }

    /// Looks at a question whose socket has changed.
    pub(crate) fn on_server(&mut self, slot: Slot, ways: QuestionWays<'_>) {
        if let Some(server) = self.queries.on_server(slot, ways) {
            self.servers.note_heard(server, Instant::now());
        }
    }

    /// When [`expire`](Self::expire) is to be called.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.queries.next_expiry()
    }

    /// Goes on with questions that were not answered in time.
    pub(crate) fn expire(&mut self, now: Instant, ways: QuestionWays<'_>) {
        self.queries.expire(now, ways, |server, sent| self.servers.note_in_vain(server, sent, now));
    }
}
