//! The clients of the published UDP ports of a guest's port, by the address that the guest sees.

use crate::own_address::OwnAddress;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Clients after which the oldest are forgotten. There are at most twice as many.
const GENERATION: usize = 512;
/// The first of the ports for clients whose own one is taken.
const FIRST_PORT: u16 = 1024;

/// Clients that have sent lately. No two of them are seen alike.
///
/// Cost: O(1) for each datagram. It has two generations: a client that is not seen while
/// [`GENERATION`] others are is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    recent: Known,
    older: Known,
    /// The last port that a client got, as its own one was taken.
    last: u16,
}

#[derive(Debug, Default)]
struct Known {
    /// By the address that the guest sees.
    clients: HashMap<SocketAddr, PortClient>,
    /// The other way round.
    seen: HashMap<Who, SocketAddr>,
}

/// The mapping of a published port, and the address of a client of it.
type Who = (usize, SocketAddr);

/// A client of a published port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortClient {
    /// The mapping of the port.
    pub(crate) mapping: usize,
    pub(crate) address: SocketAddr,
    /// The address of the host that it has asked last, which the answers come from.
    pub(crate) asked: Option<OwnAddress>,
}

impl Clients {
    /// Notes a client. The guest sees it as the returned address: it is `wanted`, with another port
    /// if another client is seen so.
    pub(crate) fn note(&mut self, client: PortClient, wanted: SocketAddr) -> SocketAddr {
        let who = (client.mapping, client.address);
        let seen = self.seen(who).unwrap_or_else(|| self.free(wanted));
        if self.recent.clients.insert(seen, client).is_none() {
            self.recent.seen.insert(who, seen);
            if self.recent.clients.len() > GENERATION {
                self.older = std::mem::take(&mut self.recent);
            }
        }
        seen
    }

    /// The client that the guest sees as `seen`.
    pub(crate) fn real(&self, seen: SocketAddr) -> Option<PortClient> {
        let generations = [&self.recent, &self.older];
        generations.into_iter().find_map(|clients| clients.clients.get(&seen)).copied()
    }

    /// What the guest sees in the place of a client.
    pub(crate) fn seen(&self, who: Who) -> Option<SocketAddr> {
        let generations = [&self.recent, &self.older];
        generations.into_iter().find_map(|clients| clients.seen.get(&who)).copied()
    }

    /// Forgets the clients of a port.
    pub(crate) fn forget(&mut self, mapping: usize) {
        for generation in [&mut self.recent, &mut self.older] {
            generation.clients.retain(|_, client| client.mapping != mapping);
            generation.seen.retain(|(of, _), _| *of != mapping);
        }
    }

    /// The address with a port that no client is seen by. There are far fewer clients than ports.
    fn free(&mut self, mut seen: SocketAddr) -> SocketAddr {
        while self.real(seen).is_some() {
            self.last = self.last.checked_add(1).unwrap_or(FIRST_PORT).max(FIRST_PORT);
            seen.set_port(self.last);
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(mapping: usize, address: ([u8; 4], u16)) -> PortClient {
        PortClient { mapping, address: address.into(), asked: None }
    }

    #[test]
    fn the_latest_clients_are_known_and_their_number_is_bounded() {
        let client = |port| client(0, ([127, 0, 0, 1], port));
        let seen = |port| SocketAddr::from(([10, 0, 2, 2], port));
        let mut clients = Clients::default();
        for port in 1..10_000 {
            assert_eq!(clients.note(client(port), seen(port)), seen(port));
            let Clients { recent, older, .. } = &clients;
            for count in
                [recent.clients.len() + older.clients.len(), recent.seen.len() + older.seen.len()]
            {
                assert!(count <= 2 * GENERATION + 1, "{count}");
            }
        }
        let real = |port| clients.real(seen(port)).map(|client| client.address);
        assert_eq!(real(9_999), Some(client(9_999).address));
        assert_eq!(real(9_600), Some(client(9_600).address));
        assert_eq!(real(1), None);
    }

    #[test]
    fn no_two_clients_are_seen_alike_and_each_keeps_its_port() {
        let stand_in = SocketAddr::from(([10, 0, 2, 2], 5000));
        let all = [
            client(0, ([127, 0, 0, 1], 5000)),
            client(0, ([127, 0, 0, 2], 5000)),
            client(1, ([127, 0, 0, 1], 5000)),
        ];
        let mut clients = Clients::default();
        let first = all.map(|client| clients.note(client, stand_in));
        assert_eq!(first[0], stand_in);
        assert!(first.iter().all(|seen| seen.ip() == stand_in.ip()));
        assert!(first[0] != first[1] && first[0] != first[2] && first[1] != first[2]);
        assert_eq!(all.map(|client| clients.note(client, stand_in)), first);
        for (client, seen) in all.iter().zip(first) {
            let real = clients.real(seen).expect("it has sent");
            assert_eq!((real.mapping, real.address), (client.mapping, client.address));
            assert_eq!(clients.seen((client.mapping, client.address)), Some(seen));
        }
        clients.forget(0);
        let is_known = first.map(|seen| clients.real(seen).is_some());
        assert_eq!(is_known, [false, false, true]);
        assert_eq!(clients.note(all[1], stand_in), stand_in);
    }
}
