//! The barrier at which the clients of a group wait for each other between two queries.

use super::{Group, GroupLog};
use neap_tcp::time::Instant;

/// Place at which clients wait until all of them have come. Cost of a query: one look at each
/// connection of the group.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    /// Number of clients that wait.
    waiting: usize,
    /// Number of clients that will never come again.
    gone: usize,
    /// Number of times that the barrier has opened.
    opened: u64,
    /// Time at which it opened last.
    opened_at: Instant,
    /// Time of the first request since then.
    asked_at: Option<Instant>,
    /// Retransmission timeouts of all connections until then.
    timeouts: u64,
}

impl Group {
    /// Returns when the barrier opened for those who have come `arrivals` times, or `None` before
    /// that.
    pub(super) fn passed(&self, arrivals: u64) -> Option<Instant> {
        let barrier = self.barrier.borrow();
        (barrier.opened >= arrivals).then_some(barrier.opened_at)
    }

    /// Notes that a client sends its request.
    pub(super) fn ask(&self, now: Instant) {
        self.barrier.borrow_mut().asked_at.get_or_insert(now);
    }

    /// Lets a client wait.
    pub(super) fn arrive(&self, now: Instant) {
        self.barrier.borrow_mut().waiting += 1;
        self.open_barrier(now);
    }

    /// Lets the others go on without a client, which waits or not.
    pub(super) fn leave(&self, now: Instant, is_waiting: bool) {
        let mut barrier = self.barrier.borrow_mut();
        barrier.gone += 1;
        barrier.waiting -= usize::from(is_waiting);
        drop(barrier);
        self.open_barrier(now);
    }

    /// Opens the barrier if all clients are there, which ends a query.
    fn open_barrier(&self, now: Instant) {
        let mut barrier = self.barrier.borrow_mut();
        let mut log = self.log.borrow_mut();
        if barrier.waiting == 0 || barrier.waiting + barrier.gone < log.clients.len() {
            return;
        }
        let timeouts = log.timeouts(now);
        // The first opening ends no query.
        if let Some(asked_at) = barrier.asked_at.take() {
            let time = now.since(asked_at);
            log.latency.record(time);
            log.queries.count += 1;
            log.queries.time = log.queries.time + time;
            log.queries.with_timeout += u64::from(timeouts > barrier.timeouts);
        }
        (barrier.waiting, barrier.opened, barrier.opened_at) = (0, barrier.opened + 1, now);
        barrier.timeouts = timeouts;
    }
}

impl GroupLog {
    /// Retransmission timeouts of all connections, open and closed.
    fn timeouts(&self, now: Instant) -> u64 {
        self.clients.iter().chain(&self.servers).map(|end| end.timeouts(now)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::group::{GroupConfig, QueryLog, Traffic};
    use crate::link::{LinkConfig, NicConfig, PathConfig};
    use crate::rng::Rng;
    use crate::world::{World, WorldConfig};
    use core::net::SocketAddr;
    use neap_stack::interface::Address;
    use neap_stack::stack::{ConnectOptions, ListenOptions, StackConfig};
    use neap_tcp::config::Config;
    use neap_tcp::time::{Nanos, Rate};

    #[test]
    fn a_connection_that_dies_of_its_timeouts_has_had_them() {
        let mut world = World::new(WorldConfig::default());
        let config = Config { tcp_retries2: 3, ..Config::default() };
        let hosts = [0, 1].map(|_| {
            let config = StackConfig { config: config.clone(), ..StackConfig::default() };
            world.add_host(config).expect("a host")
        });
        let traffic = Traffic::RequestResponse {
            request: 100,
            response: 100,
            think: Nanos::from_secs(1),
            barrier: true,
        };
        let group = Group::new(GroupConfig {
            traffic,
            read_rate: None,
            polls: true,
            client: ConnectOptions::default(),
            server: ListenOptions::default(),
        });
        let start = world.now();
        let listens = "0.0.0.0:80".parse().expect("an address");
        let server = group.server(world.stack(hosts[1]), listens).expect("nobody listens");
        world.add_app(hosts[1], server);
        // Each client has a link of its own.
        let path = PathConfig::clean(Rate(1_000_000), Nanos::from_millis(1));
        let nics = [NicConfig::default(), NicConfig::default()];
        let config = LinkConfig { nics, paths: [path.clone(), path] };
        let links = [0, 1].map(|i| {
            let address = |end| format!("10.0.{i}.{end}/24").parse::<Address>();
            let [own, other] = [1, 2].map(|end| address(end).expect("an address"));
            let ends = [(hosts[0], &[own][..]), (hosts[1], &[other][..])];
            let link = world.add_link(&config, ends).expect("a link");
            let (remote, stop) = (SocketAddr::new(other.ip, 80), start + Nanos::from_secs(60));
            world.add_app(hosts[0], group.client(remote, start, stop, Rng::new(i)));
            link
        });
        // Both think after the first query. The request of one client is lost then, each time that
        // it is sent, and the other waits at the barrier until that client gives up.
        let mut until = |millis| world.run_until(start + Nanos::from_millis(millis));
        until(1500).expect("no host spins");
        let queries = || group.log().borrow().queries;
        assert_eq!(queries(), QueryLog { count: 1, time: queries().time, with_timeout: 0 });
        (0..2).for_each(|end| links[1].set_down(end, true));
        until(2500).expect("no host spins");
        assert_eq!(queries().count, 1, "one waits for the other");
        until(30_000).expect("no host spins");
        assert!(group.log().borrow().clients[1].has_failed);
        assert!(queries().count > 2, "the other goes on alone");
        assert_eq!(queries().with_timeout, 1);
    }
}
