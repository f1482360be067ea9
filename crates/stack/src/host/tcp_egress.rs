//! Way down of a connection: the host as one call of `transmit` sees it.

use super::Host;
use super::run_list::RunCell;
use crate::flow::FourTuple;
use crate::frame::DATAGRAM;
use crate::net::Visit;
use crate::net::egress::{CachedRoute, IpOptions, PathTraits, Stamp};
use crate::net::interface::Undeliverable;
use crate::wire::Protocol;
use crate::wire::checksum::Pseudo;
use neap_tcp::segment::Segment;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::autosize::Load;
use neap_tcp::transmit::crowd::Crowd;
use neap_tcp::transmit::egress::{Egress, GsoLimits, Verdict};
use neap_tcp::transmit::small_queue::TxCredit;

/// The way down of one connection.
pub(crate) struct TcpEgress<'a> {
    host: &'a Host,
    visit: Visit,
    tuple: &'a FourTuple,
    cell: &'a RunCell,
    route: &'a mut CachedRoute,
    path: PathTraits,
    pseudo: Option<Pseudo>,
    flow: u64,
    priority: u8,
    hop_limit: u8,
    is_bulk: bool,
    /// Payload bytes of all frames.
    bytes: u32,
    /// No frame has found that there is no route.
    has_way: bool,
    undeliverable: Vec<Undeliverable>,
}

impl<'a> TcpEgress<'a> {
    /// Over `route`, which is current.
    pub(crate) fn new(
        host: &'a Host,
        now: Instant,
        tuple: &'a FourTuple,
        cell: &'a RunCell,
        route: &'a mut CachedRoute,
        IpOptions { priority, hop_limit, .. }: IpOptions,
        is_bulk: bool,
    ) -> Self {
        let shard = cell.list().shard();
        Self {
            host,
            visit: Visit::new(now, shard),
            tuple,
            cell,
            path: PathTraits::of(route.get(), shard),
            route,
            pseudo: Pseudo::of(tuple.local, tuple.remote, Protocol::TCP),
            flow: cell.id().0 & (DATAGRAM - 1),
            priority,
            hop_limit,
            is_bulk,
            bytes: 0,
            has_way: true,
            undeliverable: Vec::new(),
        }
    }

    /// The time of the last frame, the payload bytes of all, and the frames that no neighbour
    /// takes.
    pub(crate) fn finish(self) -> (Instant, u32, Vec<Undeliverable>) {
        (self.visit.now, self.bytes, self.undeliverable)
    }
}

impl Egress for TcpEgress<'_> {
    fn enqueue(
        &mut self,
        segment: Segment,
        departure: Instant,
        credit: Option<TxCredit>,
    ) -> Verdict {
        let answers = if self.path.is_cut_by_host { segment.segments().div_ceil(2) } else { 1 };
        self.cell.count_sent(segment.payload.len(), answers);
        self.bytes = self.bytes.saturating_add(segment.payload.len());
        let Self { priority, flow, hop_limit, is_bulk, .. } = *self;
        let stamp = Stamp { departure, credit, priority, flow, is_bulk, hop_limit };
        let net = &self.host.net;
        match net.send_tcp(self.visit, self.route, self.tuple, self.pseudo, segment, stamp) {
            Ok(output) => {
                self.undeliverable.extend(output.undeliverable);
                output.verdict
            }
            Err(_) => {
                self.has_way = false;
                Verdict::Dropped
            }
        }
    }

    fn has_way(&self) -> bool {
        self.has_way
    }

    fn time(&mut self, now: Instant) -> Instant {
        self.visit.now = self.cell.list().passed().latest(now.max(self.visit.now));
        self.visit.now
    }

    fn gso(&self) -> GsoLimits {
        self.path.gso
    }

    fn holds_until_departure(&self) -> bool {
        self.path.holds_until_departure
    }

    fn completes_on_enqueue(&self) -> bool {
        self.path.completes_on_enqueue
    }

    fn is_exhausted(&self) -> bool {
        !self.cell.may_send()
    }

    fn crowd(&self) -> Crowd {
        self.cell.list().crowd()
    }

    fn pacing_shift(&self) -> u32 {
        self.path.pacing_shift
    }

    fn completion_lateness(&self) -> Nanos {
        self.path.completion_lateness
    }

    fn count_load(&mut self, bytes: u64, boost: u16) {
        PathTraits::count_load(self.route.get(), self.visit, bytes, boost);
    }

    fn load(&self) -> Option<Load> {
        self.path.load
    }
}
