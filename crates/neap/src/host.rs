//! Figures of a running stack, to be read only.

use crate::clock;
use crate::engine::Engine;
use neap_stack::drop_reason::DropReason;
use neap_stack::interface::{InterfaceId, InterfaceInfo};
use neap_stack::neighbor::Neighbor;
use neap_stack::qdisc::report::Report;
use neap_stack::route::RouteEntry;
use neap_stack::socket::tcp::FlowInfo;
use neap_stack::stack::{Sockets, Usage};
use neap_stack::stats::IpCounter;
use neap_tcp::config::Config;
use neap_tcp::counters::Counter;
use neap_tcp::lateness::Departures;
use std::fmt;
use std::sync::Arc;

/// The figures of a running stack: flows, interfaces, routes, counters, drops.
///
/// [`Stack::host`](crate::Stack::host) gives one. It only reads: nothing of the stack can be
/// changed through it. Each call answers for the moment of the call.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    engine: &'a Engine,
}

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("Host", f)
    }
}

impl<'a> Host<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Self { engine }
    }

    /// Prints the interfaces with their addresses, under this name.
    pub(crate) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        for interface in self.interfaces() {
            let addresses = interface.addresses.iter().map(ToString::to_string);
            shown.field(&interface.name, &addresses.collect::<Vec<_>>());
        }
        shown.finish_non_exhaustive()
    }

    /// Returns every TCP connection with its state, its figures and the places of its bytes (`ss
    /// -tin`). It waits for threads that are in a call on one of them.
    pub fn flows(&self) -> Vec<FlowInfo> {
        self.engine.stack.flows(clock::now())
    }

    /// Returns all TCP and UDP sockets, and the connections without a socket: half-open ones, and
    /// those in TIME-WAIT (`ss -a`). It waits for threads that are in a call on one of them.
    pub fn sockets(&self) -> Sockets {
        self.engine.stack.sockets(clock::now())
    }

    /// The interface of a socket with these ends, for reports of it.
    #[cfg(feature = "control")]
    pub(crate) fn interface_of(
        &self,
        local: core::net::SocketAddr,
        remote: Option<core::net::SocketAddr>,
    ) -> Option<InterfaceId> {
        self.engine.stack.interface_of(clock::now(), local, remote)
    }

    /// Returns all interfaces with their addresses, queues and neighbours.
    pub fn interfaces(&self) -> Vec<InterfaceInfo> {
        self.engine.stack.interfaces(clock::now())
    }

    /// Returns the neighbours of all interfaces (`ip neighbor`).
    pub fn neighbors(&self) -> Vec<(InterfaceId, Neighbor)> {
        self.engine.stack.neighbors(clock::now())
    }

    /// Returns all routes (`ip route`).
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.engine.stack.routes()
    }

    /// Returns the queueing discipline of each queue of an interface with its figures, which print
    /// as those of `tc -s qdisc`. The list is empty if there is no such interface. The call waits
    /// for threads that send.
    pub fn qdiscs(&self, interface: InterfaceId) -> Vec<Report> {
        self.engine.stack.qdiscs(clock::now(), interface)
    }

    /// Returns all counters of TCP, by the names of `nstat`.
    pub fn tcp_counters(&self) -> Vec<(Counter, u64)> {
        self.engine.stack.tcp_counters()
    }

    /// Returns one counter of TCP.
    pub fn tcp_counter(&self, counter: Counter) -> u64 {
        self.engine.stack.tcp_counter(counter)
    }

    /// Returns all counters of IP, ICMP and UDP, by the names of `nstat`.
    pub fn ip_counters(&self) -> Vec<(IpCounter, u64)> {
        self.engine.stack.ip_counters().iter().collect()
    }

    /// Returns one counter of IP, ICMP or UDP.
    pub fn ip_counter(&self, counter: IpCounter) -> u64 {
        self.engine.stack.ip_counters().get(counter)
    }

    /// Returns how many packets were dropped, for every reason that there is.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        self.engine.stack.drops().iter().collect()
    }

    /// Returns how many packets were dropped for one reason.
    pub fn drops_for(&self, reason: DropReason) -> u64 {
        self.engine.stack.drops().get(reason)
    }

    /// Returns how many packets the devices lost before the stack could receive them.
    pub fn receive_drops(&self) -> u64 {
        self.engine.stack.receive_drops()
    }

    /// Returns how late the frames left that were held until their departure.
    pub fn departures(&self) -> Departures {
        self.engine.stack.departures()
    }

    /// Returns how many sockets there are, by kind.
    pub fn usage(&self) -> Usage {
        self.engine.stack.usage()
    }

    /// Returns the settings of TCP that new sockets get.
    pub fn config(&self) -> Arc<Config> {
        self.engine.stack.config()
    }
}
