//! The MTU inside the tunnel, from what the paths to the peers take.
//!
//! Datagrams leave with DF. The host keeps what ICMP says of a path (`ip_rt_update_pmtu`), and the
//! error queue of the socket wakes the driver, which looks at the paths again. The MTU inside is
//! the least of all paths, less the outer headers, and a multiple of the padding: the protocol's
//! crate pads every packet to 16 bytes, so 1420 bytes inside are 1504 outside over IPv6.
//!
//! Whoever forges ICMP rings as often as he likes. So what the host tells of the path has it looked
//! at ten times a second at the most.
//!
//! The MTU inside is not made smaller than 1280, or down to 576 where that is allowed, as there is
//! no IPv6 inside. Over a path that takes less than such a packet with its outer headers, datagrams
//! leave without DF, and the host or a router cuts them.
//!
//! Nothing tells when a path takes more: the host forgets what ICMP has said, or a route gets a
//! larger MTU. So the paths are looked at every ten minutes while the MTU inside is below the one
//! that is configured (RFC 1191 section 6.3, RFC 8201 section 4), and once a peer is heard from
//! elsewhere. The first time that a peer is heard, its path is looked at as if the host had told
//! of it: the next frames for it are cut by what it takes.
//!
//! Where a path seems to lose large packets and no ICMP comes ([`black_hole`]), the MTU inside is
//! at most 1280 for ten minutes, and then as before.
//!
//! [`black_hole`]: crate::device::black_hole

use crate::device::socket::path_mtu;
use crate::protocol::{OVERHEAD, PADDING};
use core::net::SocketAddr;
use neap_tcp::time::{Instant, Nanos};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// Headers of IP and UDP outside, in bytes.
const OUTER_V4: u32 = 20 + 8;
const OUTER_V6: u32 = 40 + 8;
/// The MTU inside is not made smaller, unless that is allowed: IPv6 needs it (RFC 8200 section 5).
pub(crate) const LEAST: u16 = 1280;
/// Paths that one look asks the host about. With more peers the first ones speak for all.
const PATHS_MAX: usize = 64;

/// Bytes of the largest super-frame, unless the MTU is above. They leave room in a call for the
/// overhead of the 43 datagrams that it becomes at the default MTU.
const SUPER_FRAME: u16 = 59_000;

/// How long a path is taken to lose large packets, as the kernel keeps what ICMP says
/// (`net.ipv4.route.mtu_expires`).
const CAUTION: Nanos = Nanos::from_secs(600);
/// Least time between looks because of peers that move: one may move with each packet.
const MOVE_PAUSE: Nanos = Nanos::from_secs(1);
/// Least time before a look because the host has told something of the paths.
pub(crate) const PAUSE: Nanos = Nanos::from_millis(100);

/// The MTU inside, and its bound.
#[derive(Debug)]
pub(crate) struct Path {
    /// No MTU is ever above this, which also bounds super-frames.
    largest: u16,
    /// As configured.
    most: AtomicU16,
    /// Paths make the MTU no smaller.
    least: AtomicU16,
    mtu: AtomicU16,
    /// Until when large packets seem to be lost, in nanoseconds; 0 is never.
    cautious_until: AtomicU64,
    /// When the paths were looked at, in nanoseconds.
    looked: AtomicU64,
    /// A peer is elsewhere since then.
    has_moved: AtomicBool,
    /// The host has told something of the paths since then.
    is_told: AtomicBool,
    /// When they were last looked at because of that, in nanoseconds.
    looked_as_told: AtomicU64,
    /// They are to be looked at without a pause.
    is_asked: AtomicBool,
    /// A full packet does not fit one of the paths.
    is_narrow: AtomicBool,
}

impl Path {
    pub(crate) fn new(most: u16, least: Option<u16>) -> Self {
        Self {
            largest: SUPER_FRAME.max(most),
            most: AtomicU16::new(most),
            least: AtomicU16::new(least.unwrap_or(LEAST)),
            mtu: AtomicU16::new(most),
            cautious_until: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            has_moved: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            looked_as_told: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            is_narrow: AtomicBool::new(false),
        }
    }

    /// Looks at the paths to these addresses at `now`. Whether the MTU inside has changed.
    pub(crate) fn look(
        &self,
        endpoints: impl Iterator<Item = SocketAddr>,
        fwmark: Option<u32>,
        now: Instant,
    ) -> bool {
        self.looked.store(now.as_nanos(), Ordering::Relaxed);
        let paths = endpoints.take(PATHS_MAX);
        self.follow(paths.filter_map(|to| Some(inside(to, path_mtu(to, fwmark)?))).min())
    }

    /// Takes what the paths leave inside. Whether the MTU inside has changed.
    fn follow(&self, inside: Option<u16>) -> bool {
        let caution = self.is_cautious().then_some(LEAST);
        let most = self.most.load(Ordering::Relaxed);
        let known = [inside, caution].into_iter().flatten().min().unwrap_or(most);
        let mtu = known.max(self.least.load(Ordering::Relaxed)).min(most);
        self.is_narrow.store(inside.is_some_and(|inside| inside < mtu), Ordering::Relaxed);
        self.mtu.swap(mtu, Ordering::Relaxed) != mtu
    }

    /// Whether a full packet does not fit one of the paths, since the MTU inside is not made
    /// smaller.
    pub(crate) fn is_narrow(&self) -> bool {
        self.is_narrow.load(Ordering::Relaxed)
    }

    /// The host has told something of the paths. Whether that is news.
    pub(crate) fn tell(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Has the paths looked at without a pause.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Whether the paths are to be looked at now.
    pub(crate) fn begin_look(&self, now: Instant) -> bool {
        let is_asked = self.is_asked.swap(false, Ordering::Relaxed);
        (is_asked || self.next_look() <= now) && {
            if self.is_told.swap(false, Ordering::Relaxed) {
                self.looked_as_told.store(now.as_nanos(), Ordering::Relaxed);
            }
            true
        }
    }

    /// When the paths are to be looked at because of what the host has told.
    pub(crate) fn next_look(&self) -> Instant {
        if self.is_told.load(Ordering::Relaxed) {
            Instant::from_nanos(self.looked_as_told.load(Ordering::Relaxed)) + PAUSE
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Large packets seem to be lost. Whether that is news.
    pub(crate) fn suspect(&self, now: Instant) -> bool {
        let until = (now + CAUTION).as_nanos();
        self.mtu() > LEAST && self.cautious_until.swap(until, Ordering::Relaxed) == 0
    }

    /// Whether large packets seem to be lost. Those that were cut before may leave without DF.
    pub(crate) fn is_cautious(&self) -> bool {
        self.cautious_until.load(Ordering::Relaxed) > 0
    }

    /// A peer is elsewhere, and so its path is another one.
    pub(crate) fn has_moved(&self) {
        self.has_moved.store(true, Ordering::Relaxed);
    }

    /// Whether the driver is to look at the paths although nobody has rung, once.
    pub(crate) fn wants_look(&self, now: Instant) -> bool {
        let age = now.as_nanos().saturating_sub(self.looked.load(Ordering::Relaxed));
        let is_less = self.mtu() < self.most.load(Ordering::Relaxed) || self.is_narrow();
        let may_grow = is_less && age >= CAUTION.0;
        let has_moved = self.has_moved.load(Ordering::Relaxed) && age >= MOVE_PAUSE.0;
        let is_told = self.next_look() <= now;
        // The look is on its way, and the driver is not to be rung for it again.
        if is_told {
            self.looked_as_told.store(now.as_nanos(), Ordering::Relaxed);
        }
        if may_grow || has_moved || is_told {
            self.has_moved.store(false, Ordering::Relaxed);
            self.looked.store(now.as_nanos(), Ordering::Relaxed);
        }
        self.recovers(now) || may_grow || has_moved || is_told
    }

    /// Whether large packets are no longer taken to be lost.
    fn recovers(&self, now: Instant) -> bool {
        let until = self.cautious_until.load(Ordering::Relaxed);
        until > 0 && until <= now.as_nanos() && self.cautious_until.swap(0, Ordering::Relaxed) > 0
    }

    /// The largest packet or super-frame that there can be, in bytes.
    pub(crate) fn largest(&self) -> u16 {
        self.largest
    }

    /// Sets the MTU that is configured. The next look follows it.
    pub(crate) fn set_most(&self, most: u16) {
        self.most.store(most.min(self.largest), Ordering::Relaxed);
    }

    /// Sets the least that paths make of it. The next look follows it.
    pub(crate) fn set_least(&self, least: Option<u16>) {
        self.least.store(least.unwrap_or(LEAST), Ordering::Relaxed);
    }

    /// Makes the MTU inside smaller, as a path does.
    #[cfg(test)]
    pub(crate) fn lower(&self, mtu: u16) {
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// The MTU inside, in bytes.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu.load(Ordering::Relaxed)
    }
}

/// What is left inside of a path, in bytes.
fn inside(to: SocketAddr, path: u32) -> u16 {
    let outer = if to.is_ipv4() { OUTER_V4 } else { OUTER_V6 };
    let room = path.saturating_sub(outer + OVERHEAD as u32);
    u16::try_from(room - room % PADDING as u32).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::namespace::{in_namespace, run};
    use crate::protocol::sealed_len;

    #[test]
    fn a_full_packet_fits_the_path() {
        for (to, outer) in [("192.0.2.1:1", OUTER_V4), ("[2001:db8::1]:1", OUTER_V6)] {
            let to = to.parse().expect("an address");
            for path in 1280..1600 {
                let inside = inside(to, path);
                let fits = |len| sealed_len(usize::from(len)) as u32 + outer <= path;
                assert!(fits(inside) && !fits(inside + 1), "{inside} of {path}");
            }
        }
    }

    #[test]
    fn the_default_is_kept_over_ipv4_and_follows_ipv6() {
        let v4 = "192.0.2.1:1".parse().expect("an address");
        let v6 = "[2001:db8::1]:1".parse().expect("an address");
        assert_eq!((inside(v4, 1500), inside(v6, 1500)), (1440, 1408));
        assert_eq!(inside(v4, 10), 0);
    }

    #[test]
    fn it_is_never_below_1280_unless_configured_so() {
        let path = Path::new(576, None);
        path.look(core::iter::empty(), None, Instant::ZERO);
        assert_eq!(path.mtu(), 576);
        let loopback = "127.0.0.1:9".parse().expect("an address");
        let path = Path::new(9000, None);
        assert!(!path.look(core::iter::once(loopback), None, Instant::ZERO));
        assert_eq!(path.mtu(), 9000);
    }

    #[test]
    fn it_follows_a_path_down_to_what_is_allowed() {
        let path = Path::new(1420, None);
        assert!(path.follow(Some(1100)));
        assert_eq!((path.mtu(), path.is_narrow()), (1280, true));
        path.set_least(Some(576));
        assert!(path.follow(Some(1100)));
        assert_eq!((path.mtu(), path.is_narrow()), (1100, false));
        assert!(path.follow(Some(400)));
        assert_eq!((path.mtu(), path.is_narrow()), (576, true));
        path.set_most(600);
        assert!(path.follow(Some(1100)));
        assert_eq!((path.mtu(), path.is_narrow()), (600, false));
        path.set_most(1420);
        path.follow(Some(1100));
        assert!(!path.suspect(Instant::ZERO + Nanos::from_secs(1)), "the path is known");
        path.follow(Some(1400));
        assert!(path.suspect(Instant::ZERO + Nanos::from_secs(1)));
        assert!(path.follow(Some(1400)) && path.mtu() == 1280);
        assert!(path.follow(Some(1100)) && path.mtu() == 1100);
    }

    #[test]
    fn a_path_that_does_not_take_a_full_packet_is_narrow_and_looked_at_again() {
        in_namespace(|| {
            let loopback = || core::iter::once("127.0.0.1:9".parse().expect("an address"));
            let (path, start) = (Path::new(LEAST, None), Instant::ZERO + Nanos::from_secs(1000));
            for (mtu, is_narrow) in [(1500, false), (1280, true), (1500, false)] {
                run(&format!("ip link set lo up mtu {mtu}"));
                path.look(loopback(), None, start);
                assert_eq!((path.is_narrow(), path.mtu()), (is_narrow, LEAST));
                assert!(!path.wants_look(start + PAUSE));
                assert_eq!(path.wants_look(start + CAUTION), is_narrow);
            }
        });
    }

    #[test]
    fn it_follows_the_one_that_is_configured() {
        let path = Path::new(1300, None);
        for most in [1420, 576, 1300] {
            path.set_most(most);
            assert!(path.look(core::iter::empty(), None, Instant::ZERO));
            assert_eq!(path.mtu(), most);
        }
    }

    #[test]
    fn a_peer_that_is_elsewhere_has_its_path_looked_at_once_a_second_at_most() {
        let (path, start) = (Path::new(1420, None), Instant::ZERO + Nanos::from_secs(1000));
        path.look(core::iter::empty(), None, start);
        assert!(!path.wants_look(start + CAUTION), "nothing has changed");
        path.has_moved();
        assert!(!path.wants_look(start) && path.wants_look(start + MOVE_PAUSE));
        path.has_moved();
        assert!(!path.wants_look(start + MOVE_PAUSE));
        assert!(path.wants_look(start + MOVE_PAUSE + MOVE_PAUSE));
        assert!(!path.wants_look(start + CAUTION));
    }

    #[test]
    fn caution_ends_after_ten_minutes() {
        let path = Path::new(1420, None);
        let start = Instant::ZERO + Nanos::from_secs(1);
        assert!(path.suspect(start) && !path.suspect(start));
        assert!(path.look(core::iter::empty(), None, Instant::ZERO));
        assert_eq!(path.mtu(), 1280);
        assert!(!path.suspect(start), "there is nothing less");
        assert!(!path.recovers(start));
        assert!(path.recovers(start + CAUTION) && !path.recovers(start + CAUTION));
        assert!(path.look(core::iter::empty(), None, Instant::ZERO));
        assert_eq!(path.mtu(), 1420);
    }
}
