//! The clients of a published UDP port, by the address that the guest sees.

use crate::own_address::OwnAddress;
use std::collections::HashMap;
use std::net::SocketAddr;

/// Clients after which the oldest are forgotten. There are at most twice as many.
const GENERATION: usize = 512;

/// Clients that have sent lately.
///
/// Cost: O(1) for each datagram. It has two generations: a client that is not seen while
/// [`GENERATION`] others are is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    recent: HashMap<SocketAddr, PortClient>,
    older: HashMap<SocketAddr, PortClient>,
}

/// A client of a published port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortClient {
    pub(crate) address: SocketAddr,
    /// The address of the host that it has asked last, which the answers come from.
    pub(crate) asked: Option<OwnAddress>,
}

impl Clients {
    /// Notes a client, and the address that the guest sees in its place.
    pub(crate) fn note(&mut self, client: PortClient, seen: SocketAddr) {
        if self.recent.insert(seen, client).is_none() && self.recent.len() > GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
    }

    /// The client that the guest sees as `seen`.
    pub(crate) fn real(&self, seen: SocketAddr) -> Option<PortClient> {
        self.recent.get(&seen).or_else(|| self.older.get(&seen)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_clients_are_known_and_their_number_is_bounded() {
        let client = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let seen = |port| SocketAddr::from(([10, 0, 2, 2], port));
        let mut clients = Clients::default();
        for port in 1..10_000 {
            clients.note(PortClient { address: client(port), asked: None }, seen(port));
            let recent = clients.recent.len() + clients.older.len();
            assert!(recent <= 2 * GENERATION + 1, "{recent}");
        }
        let real = |port| clients.real(seen(port)).map(|client| client.address);
        assert_eq!(real(9_999), Some(client(9_999)));
        assert_eq!(real(9_600), Some(client(9_600)));
        assert_eq!(real(1), None);
    }
}
