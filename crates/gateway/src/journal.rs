//! What a gateway tells its operator (`tracing`, target `neap_gateway`).
//!
//! | level | event |
//! |---|---|
//! | info | the start, the end with its totals; flows that the policy or a drain is against |
//! | warn | flows, datagrams and pings refused for their number, flows refused for lack of ports, |
//! | | both for an address to leave from that the host does not have; a proxy that lets no flows |
//! | | through, or is none |
//! | debug | each flow: opened, not opened, ended; datagrams that have no way any more |
//!
//! What guests can bring about at any rate is told at most once per second, with how often it
//! happened. Nothing is told of a packet. An event that nobody listens to costs a load.

use crate::config::GatewayConfig;
use crate::counters::{Counters, Figures};
use crate::holdings::FlowView;
use crate::proxy;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

/// The shortest time between two events of one kind that guests bring about.
const PAUSE: Duration = Duration::from_secs(1);

/// The shortest time between two events about the upstream.
const UPSTREAM_PAUSE: Duration = Duration::from_secs(10);

/// Events that were told, and those that were not.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    denied: Limit,
    upstream: Fault,
    /// Flows, datagrams and echo requests that were refused for lack of room, flows for lack of
    /// ports, and all that was refused for lack of an address and for a drain, as it was told last.
    refused: [u64; 6],
    told_full: Option<Instant>,
}

/// At most one event for each [`PAUSE`].
#[derive(Debug, Default)]
struct Limit {
    last: Option<Instant>,
    /// Since the last one that was told, this one included.
    count: u64,
}

impl Limit {
    /// How often it happened since it was told, if it is to be told.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        if self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.count))
    }
}

/// What is wrong with the upstream. It is told once while it lasts, and not more often than every
/// [`UPSTREAM_PAUSE`].
#[derive(Debug, Default)]
struct Fault {
    lasts: Option<&'static str>,
    told: Option<Instant>,
    /// A proxy has opened a connection.
    has_let_through: bool,
}

impl Fault {
    /// A flow has met it. Whether it is to be told.
    fn is_news(&mut self, what: &'static str, now: Instant) -> bool {
        let is_early = self.told.is_some_and(|told| now.duration_since(told) < UPSTREAM_PAUSE);
        if is_early || self.lasts == Some(what) {
            return false;
        }
        (self.lasts, self.told) = (Some(what), Some(now));
        true
    }
}

impl Journal {
    pub(crate) fn started(config: &GatewayConfig) {
        let GatewayConfig { most_flows, most_mappings, .. } = config;
        info!(most_flows, most_mappings, "gateway started");
    }

    pub(crate) fn ended(figures: &Figures) {
        let Figures { opened, denied, full, draining, no_port, no_address, .. } = *figures;
        let Figures { unreached, finished, lost, .. } = *figures;
        let Figures { bytes_out, bytes_in, datagrams_out, datagrams_in, .. } = *figures;
        info!(
            opened,
            denied,
            full,
            no_port,
            no_address,
            draining,
            unreached,
            finished,
            lost,
            bytes_out,
            bytes_in,
            datagrams_out,
            datagrams_in,
            "gateway ended"
        );
    }

    /// The policy is against a flow.
    pub(crate) fn denied(&mut self, guest: SocketAddr, wanted: SocketAddr) {
        if tracing::enabled!(tracing::Level::INFO)
            && let Some(count) = self.denied.count(Instant::now())
        {
            info!(%guest, %wanted, count, "refused by the policy");
        }
    }

    /// Both halves of a flow are open. `by_proxy`: a proxy has opened one of them.
    pub(crate) fn opened(&mut self, flow: &FlowView, by_proxy: bool) {
        if by_proxy {
            self.upstream.lasts = None;
            self.upstream.has_let_through = true;
        }
        debug!(guest = %flow.guest, wanted = %flow.local, far = %flow.far, "flow opened");
    }

    /// A flow could not be opened.
    pub(crate) fn unreached(&mut self, guest: SocketAddr, wanted: SocketAddr, error: &io::Error) {
        debug!(%guest, %wanted, %error, "flow not opened");
        if let Some(what) = proxy::fault(error, self.upstream.has_let_through)
            && self.is_news_of_upstream(what)
        {
            warn!(%wanted, %error, "the upstream {what}");
        }
    }

    /// A way for the datagrams of a guest has failed. One that the proxy ends may be of a proxy
    /// that carries no datagrams, and says nothing of the proxy.
    pub(crate) fn lost_datagrams_way(&mut self, guest: SocketAddr, error: &io::Error) {
        debug!(%guest, %error, "no way for datagrams any more");
        if let Some(what) = proxy::fault(error, true)
            && self.is_news_of_upstream(what)
        {
            warn!(%guest, %error, "the upstream {what}");
        }
    }

    fn is_news_of_upstream(&mut self, what: &'static str) -> bool {
        tracing::enabled!(tracing::Level::WARN) && self.upstream.is_news(what, Instant::now())
    }

    /// Tells what was refused for lack of room, and for a drain, since it was told, as the counters
    /// have it.
    pub(crate) fn look(&mut self, counters: &Counters) {
        if !tracing::enabled!(tracing::Level::WARN) {
            return;
        }
        let Counters { full, full_mappings, full_echoes, .. } = counters;
        let Counters { no_port, no_address, draining, .. } = counters;
        let kinds = [full, full_mappings, full_echoes, no_port, no_address, draining];
        let refused = kinds.map(|counter| counter.load(Ordering::Relaxed));
        if refused == self.refused {
            return;
        }
        let now = Instant::now();
        if self.told_full.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return;
        }
        let risen = |kind: usize| refused[kind] - self.refused[kind];
        let [flows, datagrams, echoes, no_port, no_address, draining] =
            [0, 1, 2, 3, 4, 5].map(risen);
        (self.refused, self.told_full) = (refused, Some(now));
        if no_port > 0 {
            warn!(flows = no_port, "refused: the host has no port left for their destination");
        }
        if no_address > 0 {
            warn!(count = no_address, "refused: the host does not have the address to leave from");
        }
        if flows + datagrams + echoes > 0 {
            warn!(flows, datagrams, echoes, "refused: too many at the same time");
        }
        if draining > 0 {
            info!(count = draining, "refused: the gateway drains");
        }
    }
}

/// A flow is over.
pub(crate) fn ended(flow: &FlowView, how: &'static str, (bytes_out, bytes_in): (u64, u64)) {
    debug!(guest = %flow.guest, wanted = %flow.local, how, bytes_out, bytes_in, "flow ended");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_upstream_is_told_once_while_it_lasts() {
        let (mut fault, start) = (Fault::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(fault.is_news("is none", start));
        assert!(!fault.is_news("is none", after(100)));
        assert!(fault.is_news("does not let us in", after(101)));
        // A flow was opened meanwhile.
        fault.lasts = None;
        assert!(!fault.is_news("does not let us in", after(110)));
        assert!(fault.is_news("does not let us in", after(111)));
    }

    #[test]
    fn a_flood_is_told_once_per_second() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        assert_eq!(limit.count(start), Some(1));
        for ms in 1..1000 {
            assert_eq!(limit.count(start + Duration::from_millis(ms)), None);
        }
        assert_eq!(limit.count(start + Duration::from_secs(1)), Some(1000));
    }
}
