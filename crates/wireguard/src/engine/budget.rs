//! How much processor time handshakes may take.
//!
//! Whoever knows the public key can send initiations whose first MAC is right, from any address.
//! Each costs an answer with a cookie, and from an address with a cookie a Diffie-Hellman exchange.
//! The thread that works for them also moves the data of the sessions. So handshakes have a share
//! of its time, and one that comes when the share is used up is dropped. Its sender tries again
//! after five seconds.
//!
//! What a handshake takes depends on the machine. A device that measures it tells the [`Toll`], and
//! estimates follow. Without a device, in virtual time, they are those of [`Work::cost`].
//!
//! A thread that waits for a processor among many others has less time than the clock says. It is
//! behind then: datagrams wait for it, those of sessions among them. So the share of strangers is
//! small until the thread has caught up.
//!
//! Cost: a handshake is O(1). Data passes by.

use crate::engine::Toll;
use crate::protocol::{Incoming, Refused};
use neap_tcp::time::{Instant, Nanos};

/// Thousandths of a processor's time that handshakes from anywhere may take. 12,500 cookies a
/// second, or 500 exchanges, at [`Work::cost`]. A flow that needs the whole thread keeps 80 % of
/// its rate beside a flood: what is dropped and the waking of the thread take some time too.
const STRANGERS: u64 = 150;
/// The same, while the thread is behind.
const STRANGERS_BEHIND: u64 = 30;
/// The same, for handshakes from where a peer was last heard, so that a flood from elsewhere does
/// not keep peers from renewing their sessions. Whoever knows such an address can forge it.
const PEERS: u64 = 50;
/// A share that was not used is kept for this long.
const KEPT: Nanos = Nanos::from_millis(250);
/// Least and largest of what handshakes take, in thousandths of [`Work::cost`].
const SCALE: core::ops::RangeInclusive<u64> = 250..=8000;
/// A measurement counts for so much of what is believed.
const WEIGHT: u64 = 8;

/// What a handshake has cost, of a processor's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Hashes alone: nothing is counted.
    Hashes,
    /// An answer with a cookie.
    Cookie,
    /// A Diffie-Hellman exchange, or several.
    Exchange,
}

impl Work {
    /// What the protocol had to do for a handshake.
    pub(super) fn of<O>(outcome: &Result<Incoming<O>, Refused>) -> Self {
        match outcome {
            Ok(Incoming::Demand(_)) => Self::Cookie,
            Ok(Incoming::Handshake(..)) => Self::Exchange,
            Err(Refused::NotAuthentic | Refused::UnknownPeer | Refused::Replayed) => Self::Exchange,
            Err(
                Refused::WrongMac | Refused::Malformed | Refused::NoSession | Refused::RateLimited,
            )
            | Ok(Incoming::Data(..) | Incoming::Cookie) => Self::Hashes,
        }
    }

    /// Measured on one core of an AMD EPYC, with the call that receives and the one that sends.
    fn cost(self) -> Nanos {
        match self {
            Self::Hashes => Nanos::ZERO,
            Self::Cookie => Nanos::from_micros(12),
            Self::Exchange => Nanos::from_micros(300),
        }
    }
}

/// The shares of one interface.
#[derive(Debug)]
pub(super) struct Budget {
    strangers: Share,
    peers: Share,
    is_behind: bool,
    /// What handshakes take here, in thousandths of [`Work::cost`].
    scale: u64,
    /// [`Work::cost`] of the handshakes of this visit.
    estimated: Nanos,
}

impl Budget {
    /// Full shares.
    pub(super) fn new(now: Instant) -> Self {
        let (strangers, peers) = (Share::new(STRANGERS, now), Share::new(PEERS, now));
        Self { strangers, peers, is_behind: false, scale: 1000, estimated: Nanos::ZERO }
    }

    /// Begins a turn of handshakes. `is_behind` says whether they have been waiting for the thread,
    /// `toll` what those of earlier turns have taken.
    pub(super) fn begin_visit(&mut self, is_behind: bool, toll: Toll) {
        self.is_behind = is_behind;
        self.estimated = Nanos::ZERO;
        if toll.estimated > Nanos::ZERO {
            let measured = toll.taken.0.saturating_mul(1000) / toll.estimated.0;
            // A measurement in which others had a turn is of no more weight than this.
            let measured = measured.min(2 * self.scale).clamp(*SCALE.start(), *SCALE.end());
            self.scale = (self.scale * (WEIGHT - 1) + measured) / WEIGHT;
        }
    }

    #[cfg(test)]
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// The handshakes of this visit by [`Work::cost`].
    pub(super) fn estimated(&self) -> Nanos {
        self.estimated
    }

    /// Whose share a handshake may be looked at from; `None` if there is none left. `is_peer` says
    /// whether it comes from where a peer was last heard; it is asked where that matters.
    pub(super) fn payer(&mut self, now: Instant, is_peer: impl FnOnce() -> bool) -> Option<Payer> {
        let strangers = if self.is_behind { STRANGERS_BEHIND } else { STRANGERS };
        if self.strangers.has_some(strangers, now) {
            return Some(Payer::Strangers);
        }
        (self.peers.has_some(PEERS, now) && is_peer()).then_some(Payer::Peers)
    }

    /// Takes what a handshake has cost.
    pub(super) fn spend(&mut self, payer: Payer, work: Work) {
        let share = match payer {
            Payer::Strangers => &mut self.strangers,
            Payer::Peers => &mut self.peers,
        };
        self.estimated = self.estimated + work.cost();
        share.credit -= (work.cost().0 * self.scale) as i64;
    }
}

/// Whose share a handshake is looked at from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payer {
    /// That of everybody.
    Strangers,
    /// That of those from where peers were heard.
    Peers,
}

/// A share of a processor's time: a token bucket whose tokens are nanoseconds. It can be overdrawn
/// once, since what a handshake costs is known afterwards.
#[derive(Debug)]
struct Share {
    /// Thousandths of a nanosecond. Below zero is a debt.
    credit: i64,
    /// When the credit was right.
    at: Instant,
}

impl Share {
    /// What is kept of so many thousandths of the time.
    fn new(thousandths: u64, now: Instant) -> Self {
        Self { credit: (KEPT.0 * thousandths) as i64, at: now }
    }

    /// Adds what was earned since the last call, at so many thousandths of the time.
    fn has_some(&mut self, thousandths: u64, now: Instant) -> bool {
        // A pause of an hour earns no more than `KEPT`, and the product has room.
        let earned = now.since(self.at).min(Nanos::from_secs(3600)).0 * thousandths;
        let most = self.credit.max((KEPT.0 * thousandths) as i64);
        self.credit = (self.credit + earned as i64).min(most);
        self.at = self.at.max(now);
        self.credit > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    /// Handshakes that are looked at in a second, of `offered` that come in equal steps.
    fn looked_at(offered: u64, work: Work, is_peer: bool) -> u64 {
        let start = Instant::from_nanos(1_000_000_000);
        look(&mut Budget::new(start), start, offered, work, is_peer)
    }

    fn look(budget: &mut Budget, start: Instant, offered: u64, work: Work, is_peer: bool) -> u64 {
        let times = (0..offered).map(|index| start + Nanos(SECOND.0 / offered * index));
        let mut looked_at = 0;
        for now in times {
            if let Some(payer) = budget.payer(now, || is_peer) {
                budget.spend(payer, work);
                looked_at += 1;
            }
        }
        looked_at
    }

    #[test]
    fn a_flood_has_its_share_and_no_more() {
        for (work, expected) in [(Work::Cookie, 15_625), (Work::Exchange, 625)] {
            let looked_at = looked_at(200_000, work, false);
            assert!(looked_at.abs_diff(expected) <= expected / 50, "{work:?}: {looked_at}");
        }
    }

    #[test]
    fn what_the_share_has_room_for_is_looked_at() {
        assert_eq!(looked_at(12_000, Work::Cookie, false), 12_000);
        assert_eq!(looked_at(500, Work::Exchange, false), 500);
        assert_eq!(looked_at(500_000, Work::Hashes, false), 500_000);
    }

    #[test]
    fn those_from_where_peers_were_heard_have_a_share_of_their_own() {
        let (strangers, peers) =
            (looked_at(200_000, Work::Exchange, false), looked_at(200_000, Work::Exchange, true));
        assert!((160..=220).contains(&(peers - strangers)), "{peers} and {strangers}");
    }

    #[test]
    fn a_slow_machine_looks_at_fewer() {
        let start = Instant::from_nanos(1_000_000_000);
        for (micros, expected) in [(12, 15_625), (24, 7_812), (3, 62_500), (1, 62_500)] {
            let mut budget = Budget::new(start);
            let (taken, estimated) = (Nanos::from_micros(micros), Work::Cookie.cost());
            (0..100).for_each(|_| budget.begin_visit(false, Toll { taken, estimated }));
            let looked_at = look(&mut budget, start, 200_000, Work::Cookie, false);
            assert!(looked_at.abs_diff(expected) <= expected / 50, "{micros} us: {looked_at}");
        }
    }

    #[test]
    fn a_thread_that_is_behind_leaves_a_fifth() {
        let start = Instant::from_nanos(1_000_000_000);
        let mut budget = Budget::new(start);
        budget.begin_visit(true, Toll::default());
        let kept = look(&mut budget, start, 200_000, Work::Cookie, false);
        assert!((5_500..=5_750).contains(&kept), "2,500 a second and 3,125 at once: {kept}");
        let behind = look(&mut budget, start + SECOND, 200_000, Work::Cookie, false);
        assert!((2_450..=2_550).contains(&behind), "{behind}");
        budget.begin_visit(false, Toll::default());
        let in_time = look(&mut budget, start + SECOND + SECOND, 200_000, Work::Cookie, false);
        assert!((12_400..=12_600).contains(&in_time), "{in_time}");
    }

    #[test]
    fn a_clock_that_stands_or_jumps_changes_nothing() {
        let start = Instant::from_nanos(5_000_000_000);
        let mut share = Share::new(STRANGERS, start);
        share.credit -= 7;
        let before = share.credit;
        assert!(share.has_some(STRANGERS, start - SECOND) && share.credit == before);
        assert!(share.has_some(STRANGERS, Instant::from_nanos(u64::MAX / 2)));
        assert_eq!(share.credit, (KEPT.0 * STRANGERS) as i64);
    }
}
