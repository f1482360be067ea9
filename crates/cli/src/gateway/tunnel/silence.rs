//! Peers that do not answer: whoever runs a tunnel is told, as a wrong key shows in no other way.

use neap_wireguard::{PeerStatus, PublicKey};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Initiations in a row without an answer, one in 5 s, after which a peer is told of, and the name
/// of its endpoint is resolved again.
pub(super) const FAILURES: u32 = 3;
/// Least time between two times that one peer is told of.
const PAUSE: Duration = Duration::from_secs(300);

/// What the log has said of peers.
#[derive(Debug, Default)]
pub(super) struct Silence(HashMap<PublicKey, Told>);

/// The last words about a peer.
#[derive(Debug)]
struct Told {
    at: Instant,
    /// It was told to be silent, and not to have answered since.
    is_silent: bool,
    /// Its settings are others since, and so many failures were of those before.
    failed_before: Option<u32>,
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Silent,
    Answers,
}

impl Silence {
    /// Takes that settings of peers are others. One that still does not answer is told of again.
    pub(super) fn correct(&mut self, peers: &[PeerStatus], corrected: &HashSet<PublicKey>) {
        for peer in peers.iter().filter(|peer| corrected.contains(&peer.public_key)) {
            self.begin_anew(peer.public_key, peer.failed_handshakes);
        }
    }

    /// The settings of a peer with so many failures in a row are others.
    fn begin_anew(&mut self, key: PublicKey, failed: u32) {
        match self.0.get_mut(&key) {
            Some(told) if told.is_silent => told.failed_before = Some(failed),
            _ => drop(self.0.remove(&key)),
        }
    }

    /// Tells of peers that have fallen silent, and of those that answer again.
    pub(super) fn tell(&mut self, peers: &[PeerStatus]) {
        if !self.0.is_empty() {
            let there: HashSet<_> = peers.iter().map(|peer| peer.public_key).collect();
            self.0.retain(|key, _| there.contains(key));
        }
        for peer in peers {
            let (key, failed) = (peer.public_key, peer.failed_handshakes);
            match self.news(key, failed, Instant::now()) {
                Some(News::Silent) => {
                    let endpoint = peer.endpoint.map(tracing::field::display);
                    tracing::warn!(
                        peer = %key, endpoint, failed,
                        "the peer does not answer handshakes: is it there, and do both sides have \
                         the right keys?"
                    );
                }
                Some(News::Answers) => tracing::warn!(peer = %key, "the peer answers again"),
                None => {}
            }
        }
    }

    /// A peer has so many failures in a row.
    fn news(&mut self, key: PublicKey, failed: u32, now: Instant) -> Option<News> {
        let told = self.0.get_mut(&key);
        let is_due = match &told {
            Some(told) if told.is_silent => {
                told.failed_before.is_some_and(|before| failed >= before + FAILURES)
            }
            Some(told) => failed >= FAILURES && now >= told.at + PAUSE,
            None => failed >= FAILURES,
        };
        match told {
            Some(told) if told.is_silent && failed == 0 => {
                told.is_silent = false;
                Some(News::Answers)
            }
            _ if is_due => {
                self.0.insert(key, Told { at: now, is_silent: true, failed_before: None });
                Some(News::Silent)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_of_once_while_it_is_silent_and_not_too_often() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let [one, other] = [1, 2].map(|byte| PublicKey::from([byte; 32]));
        let mut silence = Silence::default();
        let mut news = |key, failed, after: u32| silence.news(key, failed, start + second * after);
        for (failed, expected) in
            [(0, None), (2, None), (3, Some(News::Silent)), (4, None), (90, None)]
        {
            assert_eq!(news(one, failed, failed * 5), expected, "{failed}");
        }
        assert_eq!(news(other, 4, 20), Some(News::Silent), "the other one has words of its own");
        assert_eq!(news(one, 0, 31), Some(News::Answers));
        assert_eq!(news(one, 0, 32), None);
        assert_eq!(news(one, 3, 100), None, "it was told of a while ago");
        assert_eq!(news(one, 50, 316), Some(News::Silent));
    }

    #[test]
    fn a_peer_that_is_still_silent_with_other_settings_is_told_of_again() {
        let (now, key) = (Instant::now(), PublicKey::from([1; 32]));
        let mut silence = Silence::default();
        assert_eq!(silence.news(key, 4, now), Some(News::Silent));
        silence.begin_anew(key, 7);
        for (failed, expected) in [(7, None), (9, None), (10, Some(News::Silent)), (13, None)] {
            assert_eq!(silence.news(key, failed, now), expected, "{failed}");
        }
        silence.begin_anew(key, 13);
        assert_eq!(silence.news(key, 0, now), Some(News::Answers));
        assert_eq!(silence.news(key, 3, now), None, "it was told of a moment ago");
        silence.begin_anew(key, 0);
        assert_eq!(silence.news(key, 3, now), Some(News::Silent));
    }
}
