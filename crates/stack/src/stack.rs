//! [`Stack`]: one host, driven only by [`poll`](Stack::poll).

mod network;
mod sockets;

use crate::drop_reason::Drops;
use crate::host::Host;
use crate::host::shard::Call;
use crate::net::error::NetError;
use crate::net::interface::InterfaceId;
use crate::net::qdisc::config::QdiscConfig;
use crate::net::qdisc::report::Report;
use crate::socket::SocketError;
use crate::socket::bound::BoundPort;
use crate::socket::forwarder::ForwarderHandle;
use crate::socket::icmp::{IcmpHandle, IcmpOptions};
use crate::socket::listener::ListenerHandle;
use crate::socket::tcp::{FlowInfo, TcpHandle};
use crate::socket::udp::UdpHandle;
use crate::stats::IpCounters;
use core::net::{IpAddr, SocketAddr};
use neap_tcp::config::Config;
use neap_tcp::congestion::UnknownController;
use neap_tcp::counters::Counter;
use neap_tcp::lateness::Departures;
use neap_tcp::sysctl::SysctlError;
use neap_tcp::time::Instant;
use std::sync::Arc;
use std::task::Waker;

pub use crate::host::demux::SocketCounts;
pub use crate::host::forwarder::TcpForwarderOptions;
pub use crate::host::opening::{BindOptions, ConnectOptions, ListenOptions};
pub use crate::host::shard::Why;
pub use crate::host::udp::{UdpForwarderOptions, UdpOptions};
pub use crate::host::{StackConfig, secrets};
pub use sockets::{BucketInfo, ListenerInfo, Sockets, UdpInfo};

/// Reason why a stack could not be made or changed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// `tcp_congestion_control` names nothing that exists.
    #[error(transparent)]
    UnknownCongestion(#[from] UnknownController),
    /// No shards.
    #[error("a stack needs at least one shard")]
    NoShards,
    /// A device has no queues.
    #[error("device {0} has no queues")]
    NoQueues(String),
    /// An interface, address or route is refused.
    #[error(transparent)]
    Net(#[from] NetError),
}

neap_tcp::debug_as_display!(StackError);

/// One host. Dropping it resets its connections and closes its sockets.
#[derive(Debug)]
pub struct Stack {
    host: Arc<Host>,
}

/// Numbers of the sockets of a host, and of what else they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// TCP sockets by kind.
    pub tcp: SocketCounts,
    /// UDP sockets.
    pub udp: usize,
    /// ICMP sockets.
    pub icmp: usize,
    /// Connections that forwarders hold and nobody has decided about.
    pub pending: usize,
    /// Memory of all UDP sockets for what they have received and not given to their readers, in
    /// pages of 4 KiB. `net.ipv4.udp_mem` bounds it.
    pub udp_memory_pages: u64,
    /// Names in use for timers and the run list, one for each connection and listener.
    pub names: usize,
    /// Bytes that the host has sent to itself and not received.
    pub loopback_bytes: u64,
    /// Most rounds of turns that began while one connection waited for its own. In each round every
    /// connection that waits may send.
    pub longest_wait: u32,
    /// Memory of all TCP connections for what they have received and not given to their readers,
    /// and for what they have to send, in pages of 4 KiB. `net.ipv4.tcp_mem` bounds it.
    pub memory_pages: u64,
    /// That memory has come above the second bound of `tcp_mem`, and has not been at the first one
    /// since.
    pub is_under_pressure: bool,
}

impl core::fmt::Display for Usage {
    /// Prints the lines of `/proc/net/sockstat` for TCP and UDP.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let SocketCounts { connections, listeners, time_wait, orphans, waiting, .. } = self.tcp;
        let (inuse, mem) = (connections + listeners, self.memory_pages);
        writeln!(f, "sockets: used {}", inuse.saturating_sub(waiting) + self.udp)?;
        // Connections are in the tables from their first segment on.
        writeln!(f, "TCP: inuse {inuse} orphan {orphans} tw {time_wait} alloc {inuse} mem {mem}")?;
        write!(f, "UDP: inuse {} mem {}", self.udp, self.udp_memory_pages)
    }
}

impl Stack {
    /// Makes a host without interfaces.
    ///
    /// # Errors
    /// [`StackError`] names the setting that makes no sense.
    pub fn new(config: StackConfig) -> Result<Self, StackError> {
        check(&config.config)?;
        if config.shards == 0 {
            return Err(StackError::NoShards);
        }
        Ok(Self { host: Arc::new(Host::new(config)) })
    }

    /// Replaces the qdisc at each queue of an interface (`tc qdisc replace dev DEV root`, for
    /// several queues under `mq`).
    ///
    /// Waiting frames move into the new qdisc, or leave at their time if it would not hold them;
    /// see [`Port::set_qdisc`](crate::port::Port::set_qdisc).
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_qdisc(
        &self,
        now: Instant,
        interface: InterfaceId,
        config: &QdiscConfig,
    ) -> Result<(), NetError> {
        let host = &self.host;
        let interface = host.net.topology.interface(interface)?;
        for port in interface.ports() {
            let qdisc = config.build(&interface.capabilities(), host.fork_seed());
            port.set_qdisc(qdisc, now);
        }
        Ok(())
    }

    /// Returns what `tc -s qdisc` prints, one report for each queue of an interface. It waits for
    /// threads that drain.
    pub fn qdiscs(&self, now: Instant, interface: InterfaceId) -> Vec<Report> {
        let Ok(interface) = self.host.net.topology.interface(interface) else {
            return Vec::new();
        };
        interface.ports().iter().map(|port| port.qdisc(now)).collect()
    }

    /// Keeps the byte queue limits of an interface within `min..=max` (`limit_min`, `limit_max`).
    /// Equal bounds fix the limit.
    ///
    /// # Errors
    /// [`NetError::NoInterface`].
    pub fn set_byte_queue_limits(
        &self,
        now: Instant,
        interface: InterfaceId,
        min: u64,
        max: u64,
    ) -> Result<(), NetError> {
        let interface = self.host.net.topology.interface(interface)?;
        for port in interface.ports() {
            port.set_byte_queue_limits(min, max, now);
        }
        Ok(())
    }

    /// Does what is due at `now` on one shard. Returns when to come back, and why.
    ///
    /// The order is: reap, receive (at most 256 packets or 128 KiB), expired deadlines, run list,
    /// drain. The driver comes back earlier for an event of a device's descriptor, or when the
    /// waker of [`set_kick`](Self::set_kick) is called. If another thread polls this shard, the
    /// call returns at once with [`Why::Busy`].
    pub fn poll(&self, shard: usize, now: Instant) -> (Instant, Why) {
        self.poll_for(shard, now, Call::Any)
    }

    /// Does what is due at `now` on one shard, like [`poll`](Self::poll), for a driver whose sleep
    /// only its timer has ended. It receives nothing unless something was sent.
    ///
    /// The driver may call this if it has slept since its last poll of the shard, and if neither a
    /// device's descriptor nor the waker of [`set_kick`](Self::set_kick) has called it. It saves a
    /// system call for each queue. An answer to what is sent may be there at once, so the devices
    /// are looked at then.
    pub fn poll_timers(&self, shard: usize, now: Instant) -> (Instant, Why) {
        self.poll_for(shard, now, Call::Time)
    }

    fn poll_for(&self, shard: usize, now: Instant, call: Call) -> (Instant, Why) {
        self.host.note_time(now);
        match self.host.shards.get(shard) {
            Some(shard) => shard.poll(&self.host, now, call),
            None => (Instant::FAR_FUTURE, Why::Idle),
        }
    }

    /// Returns whether other threads left work for the driver of this shard. It takes one mutex.
    pub fn has_work(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(|shard| shard.has_work(&self.host))
    }

    /// Returns whether a device of this shard has frames that it will complete or take back. Then
    /// the driver waits for its descriptor to become writable too.
    pub fn waits_for_device(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(super::host::shard::Shard::waits_for_device)
    }

    /// Sets the waker that is called, from any thread, when a shard has work before the time that
    /// its last poll returned, while no thread polls it. It is called at most once between two
    /// polls.
    pub fn set_kick(&self, shard: usize, waker: Option<Waker>) {
        if let Some(shard) = self.host.shards.get(shard) {
            shard.list.bell().set_waker(waker);
        }
    }

    /// Returns the number of shards: drivers that may poll at the same time.
    pub fn shards(&self) -> usize {
        self.host.shards.len()
    }

    /// Begins to open a connection. The handle becomes writable when it is open, and has an error
    /// when that failed.
    ///
    /// To a link-local address of IPv6 it uses the interface whose
    /// [number](crate::interface::InterfaceId::index) is the scope of the address; without a scope
    /// the first one that has a route. It keeps that interface to its end.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route and for broadcast addresses, `AddressNotAvailable` when
    /// no port is left or the local address is not one of this host, `AddressInUse` when the given
    /// ports are in use or a socket that does not share it has the given local one,
    /// `AddressFamily`, `InvalidArgument` for port 0, a group or an option out of
    /// range, `ShutDown`.
    pub fn connect(
        &self,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> Result<TcpHandle, SocketError> {
        let socket = self.host.connect(now, remote, options, false)?;
        Ok(TcpHandle::new(socket, self.host.clone()))
    }

    /// Binds a TCP socket that neither listens nor connects yet. No other socket gets the address
    /// while the returned value is held.
    ///
    /// Port 0 is an ephemeral one.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn bind_tcp(
        &self,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<BoundPort, SocketError> {
        let bound = self.host.bind_tcp(local, options)?;
        Ok(BoundPort::new(bound, self.host.clone()))
    }

    /// Listens on an address. Port 0 is an ephemeral one; `0.0.0.0` is all addresses of IPv4, and
    /// `[::]` all addresses of both families unless [`ListenOptions::only_v6`] is set.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `InvalidArgument` for an unknown controller or an
    /// option out of range, `ShutDown`.
    pub fn listen(
        &self,
        local: SocketAddr,
        options: ListenOptions,
    ) -> Result<ListenerHandle, SocketError> {
        let listener = self.host.listen(local, options, None)?;
        Ok(ListenerHandle::new(listener, self.host.clone()))
    }

    /// Takes SYNs that no socket takes, for an application to decide about each connection before
    /// it is answered. Of several forwarders the first one that takes a SYN gets it.
    ///
    /// # Errors
    /// `ShutDown`.
    pub fn forward_tcp(
        &self,
        options: TcpForwarderOptions,
    ) -> Result<ForwarderHandle, SocketError> {
        let forwarder = self.host.forward_tcp(options)?;
        Ok(ForwarderHandle::new(forwarder, self.host.clone()))
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

    /// Opens an ICMP socket. It receives whole messages to addresses of others, which come through
    /// an interface that takes any destination, or to this host; and it sends any message.
    ///
    /// # Errors
    /// `ShutDown`.
    pub fn open_icmp(&self, options: IcmpOptions) -> Result<IcmpHandle, SocketError> {
        let socket = self.host.icmp.open(options)?;
        Ok(IcmpHandle::new(socket, self.host.clone()))
    }

    /// Makes a forwarder: a UDP socket for every address and port. It receives the datagrams that
    /// came in by an interface and that no socket takes, also those for addresses of others where
    /// the interface [takes them](crate::interface::InterfaceOptions::any_destination), and sends
    /// from any address and port. Datagrams to groups and broadcast addresses are not for it.
    ///
    /// Of several forwarders the first one that takes a datagram gets it. The receive buffer of
    /// [`FORWARDER_BUFFER`](crate::socket::udp::FORWARDER_BUFFER) bytes is shared by sources: an
    /// IPv4 address, or a /64 of IPv6, has no more in it than is still free. What does not fit is
    /// dropped and counted. ICMP errors fail no call: they are in the error queue where that is
    /// [asked for](UdpHandle::set_receive_errors).
    ///
    /// # Errors
    /// `ShutDown`.
    pub fn forward_udp(&self, options: UdpForwarderOptions) -> Result<UdpHandle, SocketError> {
        let forwarder = self.host.forward_udp(options)?;
        Ok(UdpHandle::new(forwarder, self.host.clone()))
    }

    /// Begins to close the host: TCP takes no further sockets, listeners end, and every connection
    /// sends its FIN behind what was written. Connections that nobody has accepted are reset, and
    /// so are those that are being opened. Returns how many nobody has accepted. What was received
    /// can still be read. UDP goes on.
    pub fn begin_close(&self, now: Instant) -> usize {
        self.host.begin_close(now)
    }

    /// Counts the connections that are not over. Those in TIME_WAIT are.
    pub fn open_connections(&self) -> usize {
        self.host.demux.open_connections()
    }

    /// Wakes `waker` when a host that closes has lost its last connection. Returns false, and
    /// registers nothing, if there is none left.
    #[must_use = "false means: look again"]
    pub fn register_drained(&self, waker: &Waker) -> bool {
        self.host.register_drained(waker)
    }

    /// Removes a waker that [`register_drained`](Self::register_drained) has registered.
    #[doc(hidden)]
    pub fn unregister_drained(&self, waker: &Waker) {
        self.host.unregister_drained(waker);
    }

    /// Resets all connections, closes all sockets and refuses new ones. Threads and tasks that wait
    /// are woken.
    pub fn shut_down(&self, now: Instant) {
        self.host.shut_down(now);
    }

    /// Returns every TCP connection with its state, figures, and where its bytes are (`ss -tin`).
    /// It waits for threads that own one.
    pub fn flows(&self, now: Instant) -> Vec<FlowInfo> {
        let sockets = self.host.demux.connections();
        sockets.iter().map(|socket| socket.flow(&self.host, now)).collect()
    }

    /// Returns the counters of TCP by `nstat`'s names, summed over the shards.
    pub fn tcp_counters(&self) -> Vec<(Counter, u64)> {
        let sum = |counter| self.host.shards.iter().map(|s| s.counters().get(counter)).sum();
        Counter::ALL.iter().map(|&counter| (counter, sum(counter))).collect()
    }

    /// Returns one counter of TCP, summed over the shards.
    pub fn tcp_counter(&self, counter: Counter) -> u64 {
        self.host.shards.iter().map(|shard| shard.counters().get(counter)).sum()
    }

    /// Returns the lateness of frames that a connection or a qdisc held until they were due.
    pub fn departures(&self) -> Departures {
        let mut departures = Departures::default();
        for shard in &self.host.shards {
            departures.add(&shard.counters().lateness);
        }
        self.host.net.topology.add_departures(&mut departures);
        departures
    }

    /// Returns the counters of IP, ICMP and UDP.
    pub fn ip_counters(&self) -> &IpCounters {
        &self.host.net.counters.ip
    }

    /// Returns the counts of dropped packets by reason.
    pub fn drops(&self) -> &Drops {
        &self.host.net.counters.drops
    }

    /// Returns how many packets the devices lost before the stack could receive them: the sum of
    /// [`InterfaceInfo::rx_dropped`](crate::interface::InterfaceInfo::rx_dropped), with that of
    /// interfaces that were removed.
    pub fn receive_drops(&self) -> u64 {
        self.host.receive_drops()
    }

    /// Returns the numbers of sockets in use.
    pub fn usage(&self) -> Usage {
        let shards = self.host.shards.iter();
        Usage {
            tcp: self.host.demux.counts(),
            udp: self.host.udp.len(),
            icmp: self.host.icmp.len(),
            pending: self.host.forwarders.pending(),
            udp_memory_pages: self.host.udp.memory().pages(),
            names: self.host.registry.len(),
            loopback_bytes: self.host.net.loopback_bytes(),
            longest_wait: shards.map(|shard| shard.list.longest_wait()).max().unwrap_or(0),
            memory_pages: self.host.memory_pages(),
            is_under_pressure: self.host.memory().is_under_pressure(),
        }
    }

    /// Returns the settings of TCP.
    pub fn config(&self) -> Arc<Config> {
        self.host.config()
    }

    /// Replaces the settings of the host and its connections. What each of them acts on is in
    /// [`Sysctl::acts_on`](neap_tcp::sysctl::Sysctl::acts_on). An open connection takes them up
    /// when it is next visited: by a call of its application, a packet or a timer.
    ///
    /// # Errors
    /// [`StackError::UnknownCongestion`]; nothing has changed then.
    pub fn set_config(&self, config: Config) -> Result<(), StackError> {
        check(&config)?;
        self.host.set_config(config);
        Ok(())
    }

    /// Sets one sysctl, as [`Config::set`] does; see [`set_config`](Self::set_config) for when it
    /// acts. Two threads that set different ones at once do not undo each other.
    ///
    /// # Errors
    /// As [`Config::set`]; nothing has changed then.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        self.host.set_sysctl(name, value)
    }

    /// Whether a socket may be bound to this address: the unspecified one, or an own one, or with
    /// `transparent` also one of others.
    ///
    /// # Errors
    /// `AddressNotAvailable`.
    pub fn check_local(&self, local: IpAddr, transparent: bool) -> Result<(), SocketError> {
        self.host.check_source(local, transparent)
    }

    /// Returns the address of this host from which an unbound socket sends to `remote`.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route, `AddressNotAvailable` without an address of its
    /// family.
    pub fn source_for(&self, remote: IpAddr) -> Result<IpAddr, SocketError> {
        Ok(self.host.net.topology.source_for(remote, None)?)
    }

    /// Returns the hop limit of packets whose socket asks for `own`. The value 0 asks for the
    /// default: `net.ipv4.ip_default_ttl` for IPv4, 64 for IPv6.
    pub fn hop_limit(&self, own: u8, is_v4: bool) -> u8 {
        self.host.net.hop_limit(own, is_v4)
    }

    /// Returns whether `remote` is the broadcast address of a network.
    pub fn is_broadcast(&self, remote: IpAddr) -> bool {
        self.host.is_broadcast(remote)
    }

    /// Returns the largest IP packet that the way to `remote` takes, in bytes; `None` without a
    /// route.
    pub fn path_mtu(&self, now: Instant, remote: IpAddr) -> Option<u32> {
        Some(self.host.net.topology.resolve(now, remote)?.mtu)
    }

    /// Returns the largest IP packet that the link takes by which packets to `remote` leave, in
    /// bytes: the MTU of the interface, or that of the route if it is smaller. What was learnt of
    /// the path behind it does not count. `None` without a route.
    pub fn link_mtu(&self, remote: IpAddr) -> Option<u32> {
        self.host.net.topology.link_mtu(remote)
    }
}

/// Whether the settings name a congestion controller that exists.
fn check(config: &Config) -> Result<(), UnknownController> {
    config.controllers.find(&config.tcp_congestion_control).map(|_| ())
}

impl Drop for Stack {
    fn drop(&mut self) {
        let now = self.host.last_noted_time();
        self.host.shut_down(now);
        // Handles may outlive the stack; devices do not.
        self.remove_interfaces(now);
    }
}
