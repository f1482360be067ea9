//! Whom a guest's socket has sent to lately.

use std::net::IpAddr;

/// So many are remembered. A guest that speaks with more of them sends often enough by itself.
const MOST: usize = 8;

/// Those whom one socket has sent to last. The oldest is forgotten for a ninth.
///
/// Cost: a look at each of them, which are few.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: [Option<IpAddr>; MOST],
    /// The place of the next one.
    next: usize,
}

impl Peers {
    /// Notes whom a datagram goes to.
    pub(crate) fn note(&mut self, peer: IpAddr) {
        if !self.has(peer) {
            self.known[self.next] = Some(peer);
            self.next = (self.next + 1) % MOST;
        }
    }

    /// Whether it was sent to.
    pub(crate) fn has(&self, peer: IpAddr) -> bool {
        self.known.contains(&Some(peer))
    }

    /// Those that are remembered, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.known.iter().copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let peer = |last| IpAddr::from([192, 0, 2, last]);
        let mut peers = Peers::default();
        assert!(!peers.has(peer(0)));
        for last in 0..=MOST as u8 {
            peers.note(peer(last));
            peers.note(peer(last));
        }
        assert!(!peers.has(peer(0)) && (1..=MOST as u8).all(|last| peers.has(peer(last))));
    }
}
