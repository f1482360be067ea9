//! [`Stack`]: one host, driven only by [`poll`](Stack::poll).

use crate::device::Device;
use crate::drop_reason::{DropReason, Drops};
use crate::host::Host;
use crate::host::shard::Why;
use crate::net::interface::{Address, Interface, InterfaceId, InterfaceInfo};
use crate::net::port::Port;
use crate::net::qdisc::config::QdiscConfig;
use crate::net::qdisc::report::Report;
use crate::net::route::{Prefix, RouteEntry};
use crate::socket::SocketError;
use crate::socket::bound::BoundPort;
use crate::socket::listener::ListenerHandle;
use crate::socket::tcp::{FlowInfo, TcpHandle};
use crate::socket::udp::UdpHandle;
use crate::stats::IpCounters;
use core::net::{IpAddr, SocketAddr};
use neap_tcp::config::Config;
use neap_tcp::congestion;
use neap_tcp::counters::Counter;
use neap_tcp::lateness::Departures;
use neap_tcp::time::Instant;
use std::sync::Arc;
use std::task::Waker;

pub use crate::host::StackConfig;
pub use crate::host::demux::SocketCounts;
pub use crate::host::opening::{ConnectOptions, ListenOptions, UdpOptions};

/// Why a stack could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackError {
    /// `tcp_congestion_control` names nothing that exists.
    #[error("unknown congestion control {0:?}; there are reno, cubic, bbr and bbr3")]
    UnknownCongestion(String),
    /// No shards.
    #[error("a stack needs at least one shard")]
    NoShards,
    /// A device without queues.
    #[error("device {0} has no queues")]
    NoQueues(String),
}

/// One host. Dropping it resets its connections and closes its sockets.
#[derive(Debug)]
pub struct Stack {
    host: Arc<Host>,
}

/// Figures of the sockets of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// TCP sockets by kind.
    pub tcp: SocketCounts,
    /// UDP sockets.
    pub udp: usize,
    /// Names in use for timers and the run list: connections and listeners.
    pub names: usize,
    /// Bytes on the loopback.
    pub loopback_bytes: u64,
}

impl Stack {
    /// A host without interfaces.
    ///
    /// # Errors
    /// [`StackError`] for settings that make no sense.
    pub fn new(config: StackConfig) -> Result<Self, StackError> {
        let congestion = &config.config.tcp_congestion_control;
        if congestion::by_name(congestion).is_none() {
            return Err(StackError::UnknownCongestion(congestion.clone()));
        }
        if config.shards == 0 {
            return Err(StackError::NoShards);
        }
        Ok(Self { host: Arc::new(Host::new(config)) })
    }

    /// Attaches a device with these addresses; routes to their networks are added. Each queue pair
    /// is served by one shard, in turn, behind a `pfifo_fast`.
    ///
    /// # Errors
    /// [`StackError::NoQueues`] if the device has none.
    pub fn add_interface(
        &self,
        now: Instant,
        device: Device,
        addresses: &[Address],
    ) -> Result<InterfaceId, StackError> {
        let Device { name, capabilities, queues } = device;
        if queues.is_empty() {
            return Err(StackError::NoQueues(name));
        }
        let host = &self.host;
        let mut ports = Vec::new();
        let mut receivers = Vec::new();
        for (index, pair) in queues.into_iter().enumerate() {
            let bell = host.shards[index % host.shards.len()].list.bell().clone();
            let qdisc = QdiscConfig::default().build(&capabilities, host.fork_seed());
            ports.push(Arc::new(Port::new(pair.tx, capabilities, qdisc, bell.into(), now)));
            receivers.push(pair.rx);
        }
        let interface = Arc::new(Interface::new(
            name,
            capabilities,
            addresses.to_vec(),
            ports,
            host.fork_seed(),
            host.net.counters.clone(),
            host.net.housekeeping.clone(),
        ));
        let id = host.net.topology.add(interface.clone());
        for (index, rx) in receivers.into_iter().enumerate() {
            let port = interface.port(index).clone();
            host.shards[index % host.shards.len()].add_queue(interface.clone(), port, rx);
        }
        Ok(id)
    }

    /// Adds a route (`ip route add`); false if it names no interface.
    #[must_use = "false means that there is no such interface"]
    pub fn add_route(&self, entry: RouteEntry) -> bool {
        self.host.net.topology.add_route(entry)
    }

    /// Removes the routes of a prefix through an interface; whether there were any.
    pub fn remove_route(&self, prefix: Prefix, interface: InterfaceId) -> bool {
        self.host.net.topology.remove_route(prefix, interface)
    }

    /// All routes.
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.host.net.topology.routes()
    }

    /// Replaces the qdisc at each queue of an interface (`tc qdisc replace dev DEV root`, for
    /// several queues under `mq`). What waits moves into the new ones, or leaves at its time where
    /// they would not hold it; see [`Port::set_qdisc`]. False if there is no such interface.
    #[must_use = "false means that there is no such interface"]
    pub fn set_qdisc(&self, now: Instant, interface: InterfaceId, config: &QdiscConfig) -> bool {
        let host = &self.host;
        let Some(interface) = host.net.topology.interface(interface) else { return false };
        for port in interface.ports() {
            let qdisc = config.build(interface.capabilities(), host.fork_seed());
            let lost = port.set_qdisc(qdisc, now);
            host.net.counters.drops.add(DropReason::QdiscDrop, lost as u64);
        }
        true
    }

    /// What `tc -s qdisc` prints, one for each queue of an interface. Waits for threads that drain.
    pub fn qdiscs(&self, now: Instant, interface: InterfaceId) -> Vec<Report> {
        let Some(interface) = self.host.net.topology.interface(interface) else {
            return Vec::new();
        };
        interface.ports().iter().map(|port| port.qdisc(now)).collect()
    }

    /// Keeps the byte queue limits of an interface within `min..=max` (`limit_min`, `limit_max`);
    /// equal to each other they are fixed.
    pub fn set_byte_queue_limits(&self, now: Instant, interface: InterfaceId, min: u64, max: u64) {
        let Some(interface) = self.host.net.topology.interface(interface) else { return };
        for port in interface.ports() {
            port.set_byte_queue_limits(min, max, now);
        }
    }

    /// Does what is due at `now` on one shard, in one order: reap, receive (at most 256 packets or
    /// 128 KiB), expired deadlines, run list, drain. The answer is when to come back, and why; an
    /// event of a device's descriptor or a wake-up of [`set_kick`](Self::set_kick)'s waker comes
    /// first. Returns at once with [`Why::Busy`] if another thread polls this shard.
    pub fn poll(&self, shard: usize, now: Instant) -> (Instant, Why) {
        self.host.note_time(now);
        match self.host.shards.get(shard) {
            Some(shard) => shard.poll(&self.host, now),
            None => (Instant::FAR_FUTURE, Why::Idle),
        }
    }

    /// Whether other threads left work for the driver of this shard. One mutex.
    pub fn has_work(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(|shard| shard.has_work(&self.host))
    }

    /// Whether a device of this shard has frames that it will complete or take back: then its
    /// descriptor's writability is an event too.
    pub fn waits_for_device(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(super::host::shard::Shard::waits_for_device)
    }

    /// The waker that is called, from any thread, when a shard has work before the time that its
    /// last poll answered, while no thread polls it. Called at most once between two polls.
    pub fn set_kick(&self, shard: usize, waker: Option<Waker>) {
        if let Some(shard) = self.host.shards.get(shard) {
            shard.list.bell().set_waker(waker);
        }
    }

    /// Drivers that may poll at the same time.
    pub fn shards(&self) -> usize {
        self.host.shards.len()
    }

    /// Begins to open a connection; the handle becomes writable when it is open, and has an error
    /// when that failed.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route and for all hosts of a network, `AddressNotAvailable`
    /// when no port is left or the local address is not ours, `AddressInUse` when the given ports
    /// are in use, `AddressFamily`, `InvalidArgument` for port 0 or a group, `ShutDown`.
    pub fn connect(
        &self,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> Result<TcpHandle, SocketError> {
        let socket = self.host.connect(now, remote, options)?;
        Ok(TcpHandle::new(socket, self.host.clone()))
    }

    /// Binds a TCP socket that neither listens nor connects yet: no other socket gets the address
    /// while the answer is held. Port 0 is an ephemeral one. `is_dual` says that `local` is `[::]`
    /// and stands for `0.0.0.0` too, as without `IPV6_V6ONLY`; `reuse` is `SO_REUSEADDR`.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn bind_tcp(
        &self,
        local: SocketAddr,
        is_dual: bool,
        reuse: bool,
    ) -> Result<BoundPort, SocketError> {
        let bound = self.host.bind_tcp(local, is_dual, reuse)?;
        Ok(BoundPort::new(bound, self.host.clone()))
    }

    /// Listens on an address; port 0 is an ephemeral one. `0.0.0.0` is all addresses of IPv4, and
    /// `[::]` all addresses of both families unless [`ListenOptions::only_v6`] is set.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn listen(
        &self,
        local: SocketAddr,
        options: ListenOptions,
    ) -> Result<ListenerHandle, SocketError> {
        let listener = self.host.listen(local, options, None)?;
        Ok(ListenerHandle::new(listener, self.host.clone()))
    }

    /// Binds a UDP socket; port 0 is an ephemeral one. `[::]` is `0.0.0.0` too unless
    /// [`UdpOptions::only_v6`] is set; peers of IPv4 show as what they are.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn bind_udp(
        &self,
        local: SocketAddr,
        options: UdpOptions,
    ) -> Result<UdpHandle, SocketError> {
        let socket = self.host.bind_udp(local, options)?;
        Ok(UdpHandle::new(socket, self.host.clone()))
    }

    /// Resets all connections, closes all sockets and refuses new ones; whoever waits is woken.
    pub fn shut_down(&self, now: Instant) {
        self.host.shut_down(now);
    }

    /// Removes all interfaces with their routes, and closes their devices.
    pub fn remove_interfaces(&self) {
        self.host.remove_interfaces();
    }

    /// Every TCP connection with its state, figures, and where its bytes are (`ss -tin`). Waits
    /// for threads that own one.
    pub fn flows(&self, now: Instant) -> Vec<FlowInfo> {
        let sockets = self.host.demux.connections();
        sockets.iter().map(|socket| socket.flow(&self.host, now)).collect()
    }

    /// Counters of TCP by `nstat`'s names, summed over the shards.
    pub fn tcp_counters(&self) -> Vec<(Counter, u64)> {
        let sum = |counter| self.host.shards.iter().map(|s| s.counters().get(counter)).sum();
        Counter::ALL.iter().map(|&counter| (counter, sum(counter))).collect()
    }

    /// One counter of TCP, summed over the shards.
    pub fn tcp_counter(&self, counter: Counter) -> u64 {
        self.host.shards.iter().map(|shard| shard.counters().get(counter)).sum()
    }

    /// How late frames left that a connection or a qdisc in place held until they were due.
    pub fn departures(&self) -> Departures {
        let mut departures = Departures::default();
        for shard in &self.host.shards {
            departures.add(&shard.counters().lateness);
        }
        self.host.net.topology.add_departures(&mut departures);
        departures
    }

    /// Counters of IP, ICMP and UDP.
    pub fn ip_counters(&self) -> &IpCounters {
        &self.host.net.counters.ip
    }

    /// Packets dropped, by reason.
    pub fn drops(&self) -> &Drops {
        &self.host.net.counters.drops
    }

    /// Figures of all interfaces.
    pub fn interfaces(&self, now: Instant) -> Vec<InterfaceInfo> {
        self.host.net.topology.info(now)
    }

    /// Packets that the devices lost before they could be received.
    pub fn receive_drops(&self) -> u64 {
        self.host.shards.iter().map(super::host::shard::Shard::receive_drops).sum()
    }

    /// Sockets in use.
    pub fn usage(&self) -> Usage {
        Usage {
            tcp: self.host.demux.counts(),
            udp: self.host.udp.len(),
            names: self.host.registry.len(),
            loopback_bytes: self.host.net.loopback_bytes(),
        }
    }

    /// The settings of TCP.
    pub fn config(&self) -> Arc<Config> {
        self.host.config()
    }

    /// Replaces the settings of TCP. Connections that exist keep theirs; listeners go by the new
    /// ones.
    ///
    /// # Errors
    /// [`StackError::UnknownCongestion`]; nothing has changed then.
    pub fn set_config(&self, config: Config) -> Result<(), StackError> {
        if congestion::by_name(&config.tcp_congestion_control).is_none() {
            return Err(StackError::UnknownCongestion(config.tcp_congestion_control));
        }
        self.host.set_config(config);
        Ok(())
    }

    /// Whether a socket may be bound to this address: the unspecified one, or an own one.
    ///
    /// # Errors
    /// `AddressNotAvailable`.
    pub fn check_local(&self, local: IpAddr) -> Result<(), SocketError> {
        self.host.check_local(local)
    }

    /// The own address that packets to `remote` are sent from where a socket is bound to none.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route, `AddressNotAvailable` without an address of its
    /// family.
    pub fn source_for(&self, remote: IpAddr) -> Result<IpAddr, SocketError> {
        Ok(self.host.net.topology.source_for(remote)?)
    }

    /// Whether this is the address of all hosts of a network.
    pub fn is_broadcast(&self, remote: IpAddr) -> bool {
        self.host.is_broadcast(remote)
    }

    /// The largest IP packet that the way to `remote` takes, in bytes; `None` without a route.
    pub fn path_mtu(&self, now: Instant, remote: IpAddr) -> Option<u32> {
        Some(self.host.net.topology.resolve(now, remote)?.mtu)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let now = self.host.last_noted_time();
        self.host.shut_down(now);
        // Handles may outlive the stack; devices do not.
        self.remove_interfaces();
    }
}
