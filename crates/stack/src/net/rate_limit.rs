//! Rate limits of the ICMP errors that strangers can provoke: one for each destination
//! (`net.ipv4.icmp_ratelimit`, `net.ipv6.icmp.ratelimit`) and one for the host
//! (`net.ipv4.icmp_msgs_per_sec`, `icmp_msgs_burst`).
//!
//! The limit of a destination comes first, so that one stranger does not use up the limit of the
//! host, by which all others are measured (`icmpv4_xrlim_allow` before `icmp_global_consume`).
//!
//! Cost: a message is O(1), a mutex and a keyed hash; 16 KiB per host once it has sent one.

use crate::keyed::Keyed;
use crate::sync::{Mutex, lock};
use core::hash::BuildHasher;
use core::net::IpAddr;
use neap_tcp::time::{Instant, Nanos};

/// Messages to one destination that may leave at once after a pause (`XRLIM_BURST_FACTOR`).
const BURST: i64 = 6;
/// Destinations that share a bucket share its rate.
const BUCKETS: usize = 1024;
/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

/// Settings of an [`IcmpLimit`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Time between two messages to one IPv4 address; zero is no limit (`icmp_ratelimit`).
    pub(crate) v4_pause: Nanos,
    /// Time between two messages to one IPv6 address; zero is no limit (`icmp.ratelimit`).
    pub(crate) v6_pause: Nanos,
    /// Messages of the host per second (`icmp_msgs_per_sec`).
    pub(crate) per_second: u32,
    /// Messages of the host that may leave at once after a pause (`icmp_msgs_burst`).
    pub(crate) burst: u32,
}

/// The limits of one host.
#[derive(Debug)]
pub(crate) struct IcmpLimit {
    key: Keyed,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rates: Rates,
    host: Bucket,
    /// By a keyed hash of the address; empty until the first message.
    destinations: Vec<Bucket>,
    /// Messages that were allowed.
    allowed: u64,
}

/// A token bucket. Its credit is counted in parts of a token, so that nothing is lost by rounding;
/// below zero is a debt.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    credit: i64,
    last: Instant,
}

impl Default for Bucket {
    /// A full bucket.
    fn default() -> Self {
        Self { credit: i64::MAX, last: Instant::ZERO }
    }
}

impl Bucket {
    /// Adds what was earned since the last call, at `rate` credits per nanosecond.
    fn fill(&mut self, now: Instant, rate: u32, most: i64) {
        let earned = now.since(self.last).0.saturating_mul(rate.into());
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(earned).min(most);
        self.last = self.last.max(now);
    }
}

impl IcmpLimit {
    /// A limit that lets nothing pass until it has its rates. `seed` is its secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self { key: Keyed::new(seed), state: Mutex::default() }
    }

    /// Goes by other rates from now on.
    pub(crate) fn set_rates(&self, rates: Rates) {
        lock(&self.state).rates = rates;
    }

    /// Whether one more message may be sent to `destination` at `now`; if so, it is counted.
    ///
    /// A message counts as none, one or two for the host, at random, so that nobody can count how
    /// many others were sent (`icmp_global_consume`).
    pub(crate) fn allows(&self, now: Instant, destination: IpAddr) -> bool {
        let mut state = lock(&self.state);
        let Rates { v4_pause, v6_pause, per_second, burst } = state.rates;
        state.host.fill(now, per_second, i64::from(burst) * SECOND);
        if state.host.credit < SECOND {
            return false;
        }
        let pause = if destination.is_ipv4() { v4_pause } else { v6_pause };
        let pause = i64::try_from(pause.0).unwrap_or(i64::MAX);
        if pause > 0 {
            if state.destinations.is_empty() {
                state.destinations = vec![Bucket::default(); BUCKETS];
            }
            let at = self.key.hash_one(destination) as usize % BUCKETS;
            let bucket = &mut state.destinations[at];
            bucket.fill(now, 1, pause.saturating_mul(BURST));
            if bucket.credit < pause {
                return false;
            }
            bucket.credit -= pause;
        }
        state.allowed += 1;
        let cost = (self.key.hash_one(state.allowed) % 3) as i64;
        state.host.credit -= cost * SECOND;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    fn limit(rates: Rates) -> IcmpLimit {
        let limit = IcmpLimit::new(7);
        limit.set_rates(rates);
        limit
    }

    fn stranger(number: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    const RATES: Rates = Rates {
        v4_pause: Nanos::from_millis(1000),
        v6_pause: Nanos::from_millis(100),
        per_second: 1000,
        burst: 50,
    };

    #[test]
    fn each_destination_has_a_burst_and_a_rate() {
        let limit = limit(RATES);
        let sent = |now, to| (0..100).filter(|_| limit.allows(now, to)).count();
        assert_eq!(sent(NOW, stranger(1)), 6);
        assert_eq!(sent(NOW, stranger(2)), 6, "the first has used up only its own");
        assert_eq!(sent(NOW + Nanos::from_millis(999), stranger(1)), 0);
        assert_eq!(sent(NOW + Nanos::from_millis(1000), stranger(1)), 1);
        assert_eq!(sent(NOW, stranger(1)), 0, "time that runs back earns nothing");
        let v6 = "fd00::1".parse().expect("an address");
        assert_eq!(sent(NOW, v6), 6);
        assert_eq!(sent(NOW + Nanos::from_millis(200), v6), 2);
    }

    #[test]
    fn the_host_has_a_burst_and_a_rate_of_which_a_message_takes_one_on_average() {
        let limit = limit(RATES);
        let sent =
            |now, first| (0..2000).filter(|&i| limit.allows(now, stranger(first + i))).count();
        let burst = sent(NOW, 0);
        assert!((35..=75).contains(&burst), "{burst}");
        let mut later = 0;
        for ms in 1..=1000 {
            later += sent(NOW + Nanos::from_millis(ms), 2000 * ms as u32);
        }
        assert!((900..=1100).contains(&later), "{later}");
    }

    #[test]
    fn a_pause_of_zero_is_no_limit_and_a_rate_of_zero_no_message() {
        let rates = Rates { v4_pause: Nanos::ZERO, ..RATES };
        let limit = limit(Rates { burst: 1000, ..rates });
        assert_eq!((0..100).filter(|_| limit.allows(NOW, stranger(1))).count(), 100);
        limit.set_rates(Rates { burst: 0, ..rates });
        assert!(!limit.allows(NOW, stranger(1)));
    }
}
