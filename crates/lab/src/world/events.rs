//! What happens next. O(log n) per event, n being hosts and hops.

use neap_tcp::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A part of a world that has turns of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Agent {
    /// A host.
    Host(usize),
    /// The hop of a link from one of its ends on, or the router that it leads to.
    Direction(usize, usize),
    /// An actor.
    Actor(usize),
}

/// The next turn of each agent. A turn that became earlier is filed anew; what was filed before is
/// skipped when its time comes. At one instant hosts come before links and those before actors,
/// each in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct Events {
    heap: BinaryHeap<Reverse<(Instant, Agent)>>,
    hosts: Vec<Instant>,
    directions: Vec<[Instant; 2]>,
    actors: Vec<Instant>,
}

impl Events {
    pub(super) fn add_host(&mut self) {
        self.hosts.push(Instant::FAR_FUTURE);
    }

    pub(super) fn add_link(&mut self) {
        self.directions.push([Instant::FAR_FUTURE; 2]);
    }

    pub(super) fn add_actor(&mut self) {
        self.actors.push(Instant::FAR_FUTURE);
    }

    fn turn(&mut self, agent: Agent) -> &mut Instant {
        match agent {
            Agent::Host(host) => &mut self.hosts[host],
            Agent::Direction(link, end) => &mut self.directions[link][end],
            Agent::Actor(actor) => &mut self.actors[actor],
        }
    }

    /// The agent wants a turn at `at`, or earlier if it said so before.
    pub(super) fn file(&mut self, agent: Agent, at: Instant) {
        let turn = self.turn(agent);
        if at < *turn {
            *turn = at;
            self.heap.push(Reverse((at, agent)));
        }
    }

    /// Takes out the agent whose turn is next, if it is no later than `until`.
    pub(super) fn pop(&mut self, until: Instant) -> Option<(Instant, Agent)> {
        while let Some(&Reverse((at, agent))) = self.heap.peek() {
            if at > until {
                return None;
            }
            self.heap.pop();
            let turn = self.turn(agent);
            if *turn == at {
                *turn = Instant::FAR_FUTURE;
                return Some((at, agent));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_and_only_once() {
        let at = Instant::from_nanos;
        let mut events = Events::default();
        events.add_host();
        events.add_host();
        events.add_link();
        let (a, b, way) = (Agent::Host(0), Agent::Host(1), Agent::Direction(0, 1));
        events.file(b, at(5));
        events.file(a, at(5));
        events.file(way, at(9));
        events.file(way, at(3));
        events.file(way, at(7));
        let order: Vec<_> = core::iter::from_fn(|| events.pop(at(20))).collect();
        assert_eq!(order, [(at(3), way), (at(5), a), (at(5), b)]);
        events.file(a, at(30));
        assert_eq!(events.pop(at(29)), None);
        assert_eq!(events.pop(at(30)), Some((at(30), a)));
    }
}
