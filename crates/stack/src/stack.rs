//! [`Stack`]: one host, driven only by [`poll`](Stack::poll).

use crate::demux::{Demux, FourTuple, HashKey, SocketCounts};
use crate::device::Device;
use crate::drop_reason::{DropReason, Drops};
use crate::egress::SocketPath;
use crate::frame::Frame;
use crate::icmp::RateLimit;
use crate::interface::{Address, Interface, InterfaceId, InterfaceInfo, Topology};
use crate::listener::{ListenContext, Listener, ListenerHandle};
use crate::port::Port;
use crate::qdisc::Verdict;
use crate::qdisc::config::QdiscConfig;
use crate::qdisc::report::Report;
use crate::reassembly::{self, Reassembler};
use crate::route::{Entry, Prefix};
use crate::shard::{Shard, Why};
use crate::socket::tcp::{FlowInfo, TcpHandle, TcpSocket};
use crate::socket::udp::{UdpHandle, UdpTable};
use crate::socket::{Registry, SocketError, Target};
use crate::stats::{IpCounter, IpCounters};
use crate::sync::{Mutex, lock};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use neap_tcp::config::Config;
use neap_tcp::congestion;
use neap_tcp::connection::{Connection, Setup};
use neap_tcp::counters::Counter;
use neap_tcp::handshake::{Accepted, SynCookies};
use neap_tcp::isn::Secrets;
use neap_tcp::lateness::Departures;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::{Instant, Nanos};
use neap_tcp::transmit::small_queue::TxAccount;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Ports that `connect` tries when other threads take them in between.
const CONNECT_TRIES: u32 = 16;

/// Frames on their way from this host to itself.
const LOOPBACK_FRAMES: usize = 1000;

/// What a host is made with.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Randomness of the host: every secret is derived from it. Equal seeds make equal hosts.
    pub seed: u64,
    /// Settings of TCP; `tcp_congestion_control` must name one that exists.
    pub config: Config,
    /// Drivers that may poll at the same time; at least one.
    pub shards: usize,
    /// `net.ipv4.ip_local_port_range`.
    pub ip_local_port_range: RangeInclusive<u16>,
    /// `net.ipv4.tcp_max_tw_buckets`.
    pub tcp_max_tw_buckets: usize,
    /// Limits of reassembly.
    pub reassembly: reassembly::Config,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            config: Config::default(),
            shards: 1,
            ip_local_port_range: 32_768..=60_999,
            tcp_max_tw_buckets: 262_144,
            reassembly: reassembly::Config::default(),
        }
    }
}

/// What was asked of [`Stack::connect`].
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Own address and port; unspecified and 0 are chosen by the stack.
    pub local: Option<SocketAddr>,
    /// Socket options from the start.
    pub options: SocketOptions,
}

/// What was asked of [`Stack::listen`].
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections that may wait to be accepted; `somaxconn` is the upper bound.
    pub backlog: u32,
    /// `SO_REUSEADDR`: old connections on the port do not matter.
    pub reuse_address: bool,
    /// What accepted sockets inherit.
    pub options: SocketOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 4096, reuse_address: true, options: SocketOptions::default() }
    }
}

/// A bounded queue of what this host sends to itself.
#[derive(Default)]
pub(crate) struct Loopback(Mutex<VecDeque<Frame>>);

impl Loopback {
    pub(crate) fn pop(&self) -> Option<Frame> {
        lock(&self.0).pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn bytes(&self) -> u64 {
        lock(&self.0).iter().map(|frame| frame.len() as u64).sum()
    }
}

/// What all parts of one host share (Linux's `struct net`).
pub(crate) struct Host {
    config: Mutex<Arc<Config>>,
    pub(crate) secrets: Secrets,
    cookies: SynCookies,
    pub(crate) hash_key: HashKey,
    pub(crate) demux: Demux,
    pub(crate) udp: UdpTable,
    pub(crate) registry: Registry,
    pub(crate) topology: Topology,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) reassembler: Mutex<Reassembler>,
    pub(crate) loopback: Loopback,
    pub(crate) ip: IpCounters,
    pub(crate) drops: Drops,
    pub(crate) icmp_limit: RateLimit,
    pub(crate) reset_limit: RateLimit,
    identification: AtomicU32,
    /// Of the parts that are made later: neighbours, qdiscs.
    part_seed: AtomicU64,
    next_shard: AtomicUsize,
    /// Of sockets on which nothing was set.
    default_options: Arc<SocketOptions>,
    /// When the next of TIME_WAIT, reassembly and neighbours is due.
    housekeeping: AtomicU64,
    /// The latest time that anybody told, for what happens without one.
    last_seen: AtomicU64,
    is_shut_down: AtomicBool,
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// Independent values from one seed (SplitMix64).
fn fork(seed: u64, purpose: u64) -> u64 {
    let mut z = seed.wrapping_add(purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

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

impl Host {
    fn new(config: StackConfig) -> Self {
        let seed = |purpose| fork(config.seed, purpose);
        let hash_key = HashKey::new(seed(1), seed(2));
        let ports = config.ip_local_port_range;
        let slack = Nanos(config.config.timer_slack_ns.into());
        Self {
            config: Mutex::new(Arc::new(config.config)),
            secrets: Secrets::from_seed(seed(3)),
            cookies: SynCookies::from_seed(seed(4)),
            hash_key,
            demux: Demux::new(hash_key, ports.clone(), seed(5), config.tcp_max_tw_buckets),
            udp: UdpTable::new(ports, seed(6)),
            registry: Registry::default(),
            topology: Topology::new(seed(7)),
            shards: (0..config.shards).map(|index| Shard::new(index, slack)).collect(),
            reassembler: Mutex::new(Reassembler::new(config.reassembly, (seed(8), seed(9)))),
            loopback: Loopback::default(),
            ip: IpCounters::default(),
            drops: Drops::default(),
            icmp_limit: RateLimit::default(),
            reset_limit: RateLimit::default(),
            identification: AtomicU32::new(seed(10) as u32),
            part_seed: AtomicU64::new(seed(11)),
            next_shard: AtomicUsize::new(0),
            default_options: Arc::default(),
            housekeeping: AtomicU64::new(u64::MAX),
            last_seen: AtomicU64::new(0),
            is_shut_down: AtomicBool::new(false),
        }
    }

    /// The settings of TCP now. One mutex.
    pub(crate) fn config(&self) -> Arc<Config> {
        lock(&self.config).clone()
    }

    /// The next identification of a datagram that may be fragmented.
    pub(crate) fn next_identification(&self) -> u32 {
        self.identification.fetch_add(1, Ordering::Relaxed)
    }

    /// Queues what this host sends to itself.
    pub(crate) fn loop_back(&self, frame: Frame) -> Verdict {
        let mut queue = lock(&self.loopback.0);
        if queue.len() >= LOOPBACK_FRAMES {
            drop(queue);
            self.drops.count(DropReason::LoopbackFull);
            return Verdict::Dropped;
        }
        queue.push_back(frame);
        drop(queue);
        self.shards[0].list.kick(Instant::ZERO);
        Verdict::Queued
    }

    /// Whether `remote` is all hosts of a network, which nobody here may speak to.
    pub(crate) fn is_broadcast(&self, remote: IpAddr) -> bool {
        remote.is_ipv4() && self.topology.locals().is_broadcast(remote)
    }

    /// Own address towards `remote`, for sockets that are bound to none.
    pub(crate) fn source_for(&self, now: Instant, remote: IpAddr) -> Result<IpAddr, SocketError> {
        let found = self.topology.lookup(now, remote).ok_or(SocketError::NetworkUnreachable)?;
        found.source.ok_or(SocketError::AddressNotAvailable)
    }

    pub(crate) fn listen_context(&self, now: Instant, shard: usize, mtu: u32) -> ListenContext<'_> {
        ListenContext {
            now,
            key: self.hash_key,
            config: self.config(),
            counters: self.shards[shard].counters(),
            secrets: &self.secrets,
            cookies: &self.cookies,
            mtu,
        }
    }

    /// Makes sure that [`expire`](Self::expire) runs at `due`.
    pub(crate) fn schedule(&self, due: Instant) {
        if due.as_nanos() < self.housekeeping.fetch_min(due.as_nanos(), Ordering::AcqRel) {
            self.shards[0].list.kick(due);
        }
    }

    /// When [`expire`](Self::expire) is due.
    pub(crate) fn next_deadline(&self) -> Instant {
        Instant::from_nanos(self.housekeeping.load(Ordering::Acquire))
    }

    /// Forgets old connections and fragments, and asks neighbours again. A load when nothing is due.
    pub(crate) fn expire(&self, now: Instant) {
        if self.next_deadline() > now {
            return;
        }
        self.housekeeping.store(u64::MAX, Ordering::Release);
        let mut next = self.demux.expire_time_wait(now);
        let mut reassembler = lock(&self.reassembler);
        let lost = u64::from(reassembler.expire(now));
        next = next.min(reassembler.deadline());
        drop(reassembler);
        self.ip.add(IpCounter::IpReasmFails, lost);
        self.drops.add(DropReason::FragmentTimeout, lost);
        next = next.min(self.topology.expire_neighbors(self, now));
        self.schedule(next);
    }

    /// Options in memory that sockets share where they are the default ones.
    fn share(&self, options: SocketOptions) -> Arc<SocketOptions> {
        if options == *self.default_options { self.default_options.clone() } else { options.into() }
    }

    fn socket(
        &self,
        shard: usize,
        tuple: FourTuple,
        mut path: SocketPath,
        connection: impl FnOnce(Setup) -> Connection,
        (now, options): (Instant, Arc<SocketOptions>),
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let config = self.config();
        let controller = options.congestion.unwrap_or(&config.tcp_congestion_control);
        let controller = congestion::by_name(controller).ok_or(SocketError::InvalidArgument)?;
        let shard = &self.shards[shard % self.shards.len()];
        let cell = shard.cell(self.registry.reserve());
        let id = cell.id();
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        path.refresh(self, now, tuple.local, tuple.remote);
        let account = TxAccount::new(Waker::from(cell.clone()));
        let setup = Setup {
            config,
            counters: shard.counters().clone(),
            pages: shard.pages().clone(),
            account,
            controller,
            isn: self.secrets.isn(now, local, remote),
            ts_offset: self.secrets.ts_offset(local, remote),
            path: path.tell(tuple.remote),
            options,
        };
        let socket = Arc::new(TcpSocket::new(tuple, connection(setup), path, cell));
        if let Err(error) = self.demux.insert(&socket) {
            self.registry.release(id);
            return Err(error);
        }
        self.registry.fill(id, Target::Tcp(socket.clone()));
        Ok(socket)
    }

    /// The connection that a listener's handshake led to.
    pub(crate) fn accept_connection(
        &self,
        now: Instant,
        shard: usize,
        tuple: FourTuple,
        accepted: Accepted,
        options: Arc<SocketOptions>,
        path: SocketPath,
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let accept = |setup| Connection::accept(now, setup, accepted);
        self.socket(shard, tuple, path, accept, (now, options))
    }

    /// Ends a listener and what nobody accepted.
    pub(crate) fn close_listener(&self, listener: &Listener, now: Instant) {
        self.demux.unlisten(listener);
        self.registry.release(listener.cell.id());
        listener.cell.retire();
        for child in listener.close() {
            child.abandon(self, now);
        }
    }

    fn shut_down(&self, now: Instant) {
        if self.is_shut_down.swap(true, Ordering::AcqRel) {
            return;
        }
        let (connections, listeners) = self.demux.shut_down();
        for listener in listeners {
            self.close_listener(&listener, now);
        }
        for socket in connections {
            socket.abandon(self, now);
        }
        self.udp.shut_down();
    }

    /// A secret for something that is made while the host runs.
    fn fork_seed(&self) -> u64 {
        fork(self.part_seed.fetch_add(1, Ordering::Relaxed), 1)
    }

    /// An own address for a socket that asks for `wanted`.
    pub(crate) fn check_local(&self, wanted: IpAddr) -> Result<(), SocketError> {
        if wanted.is_unspecified() || self.topology.locals().contains(wanted) {
            return Ok(());
        }
        Err(SocketError::AddressNotAvailable)
    }
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
            let list = host.shards[index % host.shards.len()].list.clone();
            let qdisc = QdiscConfig::default().build(&capabilities, host.fork_seed());
            ports.push(Arc::new(Port::new(pair.tx, capabilities, qdisc, list.into(), now)));
            receivers.push(pair.rx);
        }
        let seed = host.fork_seed();
        let addresses = addresses.to_vec();
        let interface = Interface::new(name, capabilities, addresses, ports, seed);
        let interface = Arc::new(interface);
        let id = host.topology.add(interface.clone());
        for (index, rx) in receivers.into_iter().enumerate() {
            let port = interface.port(index).clone();
            host.shards[index % host.shards.len()].add_queue(interface.clone(), port, rx);
        }
        Ok(id)
    }

    /// Adds a route (`ip route add`); false if it names no interface.
    #[must_use = "false means that there is no such interface"]
    pub fn add_route(&self, entry: Entry) -> bool {
        self.host.topology.add_route(entry)
    }

    /// Removes the routes of a prefix through an interface; whether there were any.
    pub fn remove_route(&self, prefix: Prefix, interface: InterfaceId) -> bool {
        self.host.topology.remove_route(prefix, interface)
    }

    /// All routes.
    pub fn routes(&self) -> Vec<Entry> {
        self.host.topology.routes()
    }

    /// Replaces the qdisc at each queue of an interface (`tc qdisc replace dev DEV root`, for
    /// several queues under `mq`). What waits moves into the new ones, or leaves at its time where
    /// they would not hold it; see [`Port::set_qdisc`]. False if there is no such interface.
    #[must_use = "false means that there is no such interface"]
    pub fn set_qdisc(&self, now: Instant, interface: InterfaceId, config: &QdiscConfig) -> bool {
        let host = &self.host;
        let Some(interface) = host.topology.interface(interface) else { return false };
        for port in interface.ports() {
            let qdisc = config.build(interface.capabilities(), host.fork_seed());
            let lost = port.set_qdisc(qdisc, now);
            host.drops.add(DropReason::QdiscDrop, lost as u64);
        }
        true
    }

    /// What `tc -s qdisc` prints, one for each queue of an interface. Waits for threads that drain.
    pub fn qdiscs(&self, now: Instant, interface: InterfaceId) -> Vec<Report> {
        let Some(interface) = self.host.topology.interface(interface) else { return Vec::new() };
        interface.ports().iter().map(|port| port.qdisc(now)).collect()
    }

    /// Keeps the byte queue limits of an interface within `min..=max` (`limit_min`, `limit_max`); equal
    /// to each other they are fixed.
    pub fn set_byte_queue_limits(&self, now: Instant, interface: InterfaceId, min: u64, max: u64) {
        let Some(interface) = self.host.topology.interface(interface) else { return };
        for port in interface.ports() {
            port.set_byte_queue_limits(min, max, now);
        }
    }

    /// Does what is due at `now` on one shard, in one order: reap, receive (at most 256 packets or 128 KiB),
    /// expired deadlines, run list, drain. The answer is when to come back, and why; an event of a
    /// device's descriptor or a wake-up of [`set_kick`](Self::set_kick)'s waker comes first. Returns
    /// at once with [`Why::Busy`] if another thread polls this shard.
    pub fn poll(&self, shard: usize, now: Instant) -> (Instant, Why) {
        self.host.last_seen.fetch_max(now.as_nanos(), Ordering::Relaxed);
        match self.host.shards.get(shard) {
            Some(shard) => shard.poll(&self.host, now),
            None => (Instant::FAR_FUTURE, Why::Idle),
        }
    }

    /// Whether other threads left work for the driver of this shard. One mutex.
    pub fn has_work(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(Shard::has_work)
            || (shard == 0 && !self.host.loopback.is_empty())
    }

    /// Whether a device of this shard has frames that it will complete or take back: then its
    /// descriptor's writability is an event too.
    pub fn waits_for_device(&self, shard: usize) -> bool {
        self.host.shards.get(shard).is_some_and(Shard::waits_for_device)
    }

    /// The waker that is called, from any thread, when a shard has work before the time that its last
    /// poll answered, while no thread polls it. Called at most once between two polls.
    pub fn set_kick(&self, shard: usize, waker: Option<Waker>) {
        if let Some(shard) = self.host.shards.get(shard) {
            shard.set_kick(waker);
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
    /// `NetworkUnreachable` without a route and for all hosts of a network, `AddressNotAvailable` when no
    /// port is left or the local address is not ours, `AddressInUse` when the given ports are in use,
    /// `AddressFamily`, `InvalidArgument` for port 0 or a group, `ShutDown`.
    pub fn connect(
        &self,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> Result<TcpHandle, SocketError> {
        let host = &self.host;
        let ConnectOptions { local, options } = options;
        let options = host.share(options);
        // As in Linux, the unspecified address means this host.
        let remote_ip = match remote.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        if remote.port() == 0 || remote_ip.is_multicast() {
            return Err(SocketError::InvalidArgument);
        }
        if host.topology.is_broadcast(remote_ip) {
            return Err(SocketError::NetworkUnreachable);
        }
        let source = host.source_for(now, remote_ip)?;
        if host.is_broadcast(remote_ip) {
            return Err(SocketError::NetworkUnreachable);
        }
        let bound = local.unwrap_or(SocketAddr::new(source, 0));
        host.check_local(bound.ip())?;
        if bound.is_ipv4() != remote.is_ipv4() {
            return Err(SocketError::AddressFamily);
        }
        let local = if bound.ip().is_unspecified() { source } else { bound.ip() };
        let mut tuple = FourTuple {
            local,
            remote: remote_ip,
            local_port: bound.port(),
            remote_port: remote.port(),
        };
        let is_ephemeral = tuple.local_port == 0;
        for _ in 0..CONNECT_TRIES {
            if is_ephemeral {
                tuple.local_port = host.demux.choose_port(&tuple)?;
            }
            let shard = host.next_shard.fetch_add(1, Ordering::Relaxed) % host.shards.len();
            let open = |setup| Connection::connect(now, setup);
            let settings = (now, options.clone());
            match host.socket(shard, tuple, SocketPath::default(), open, settings) {
                // Another thread took the port in between.
                Err(SocketError::AddressInUse) if is_ephemeral => {}
                Err(error) => return Err(error),
                Ok(socket) => {
                    socket.with(host, now, |_| {});
                    return Ok(TcpHandle::new(socket, host.clone()));
                }
            }
        }
        Err(SocketError::AddressNotAvailable)
    }

    /// Listens on an address; port 0 is an ephemeral one, `0.0.0.0` and `[::]` are all addresses of
    /// their family (as with `IPV6_V6ONLY`).
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn listen(
        &self,
        mut local: SocketAddr,
        options: ListenOptions,
    ) -> Result<ListenerHandle, SocketError> {
        let host = &self.host;
        host.check_local(local.ip())?;
        if local.port() == 0 {
            local.set_port(host.demux.free_port(u64::from(host.next_identification()))?);
        }
        let shard = &host.shards[0];
        let cell = shard.cell(host.registry.reserve());
        let id = cell.id();
        let max_accept = options.backlog.min(host.config().somaxconn) as usize;
        let listener = Arc::new(Listener::new(local, max_accept, Arc::new(options.options), cell));
        if let Err(error) = host.demux.listen(listener.clone(), options.reuse_address) {
            host.registry.release(id);
            return Err(error);
        }
        host.registry.fill(id, Target::Listener(listener.clone()));
        Ok(ListenerHandle::new(listener, host.clone()))
    }

    /// Binds a UDP socket; port 0 is an ephemeral one. `reuse` is `SO_REUSEADDR`.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable`, `ShutDown`.
    pub fn bind_udp(&self, local: SocketAddr, reuse: bool) -> Result<UdpHandle, SocketError> {
        self.host.check_local(local.ip())?;
        let socket = self.host.udp.bind(self.host.hash_key, local, reuse, false)?;
        Ok(UdpHandle::new(socket, self.host.clone()))
    }

    /// As [`bind_udp`](Self::bind_udp) to `[::]` and `0.0.0.0` alike, which is `[::]` without
    /// `IPV6_V6ONLY`. The own address shows as `[::]`, peers as what they are.
    ///
    /// # Errors
    /// As [`bind_udp`](Self::bind_udp).
    pub fn bind_udp_dual(&self, port: u16, reuse: bool) -> Result<UdpHandle, SocketError> {
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let socket = self.host.udp.bind(self.host.hash_key, local, reuse, true)?;
        Ok(UdpHandle::new(socket, self.host.clone()))
    }

    /// Resets all connections, closes all sockets and refuses new ones; whoever waits is woken.
    pub fn shut_down(&self, now: Instant) {
        self.host.shut_down(now);
    }

    /// Removes all interfaces with their routes, and closes their devices.
    pub fn remove_interfaces(&self) {
        for shard in &self.host.shards {
            shard.remove_queues();
        }
        self.host.topology.clear();
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
        self.host.topology.add_departures(&mut departures);
        departures
    }

    /// Counters of IP, ICMP and UDP.
    pub fn ip_counters(&self) -> &IpCounters {
        &self.host.ip
    }

    /// Packets dropped, by reason.
    pub fn drops(&self) -> &Drops {
        &self.host.drops
    }

    /// Figures of all interfaces.
    pub fn interfaces(&self, now: Instant) -> Vec<InterfaceInfo> {
        self.host.topology.info(now)
    }

    /// Packets that the devices lost before they could be received.
    pub fn receive_drops(&self) -> u64 {
        self.host.shards.iter().map(Shard::receive_drops).sum()
    }

    /// Sockets in use.
    pub fn usage(&self) -> Usage {
        Usage {
            tcp: self.host.demux.counts(),
            udp: self.host.udp.len(),
            names: self.host.registry.len(),
            loopback_bytes: self.host.loopback.bytes(),
        }
    }

    /// The settings of TCP.
    pub fn config(&self) -> Arc<Config> {
        self.host.config()
    }

    /// Replaces the settings of TCP. Connections that exist keep theirs; listeners go by the new ones.
    ///
    /// # Errors
    /// [`StackError::UnknownCongestion`]; nothing has changed then.
    pub fn set_config(&self, config: Config) -> Result<(), StackError> {
        if congestion::by_name(&config.tcp_congestion_control).is_none() {
            return Err(StackError::UnknownCongestion(config.tcp_congestion_control));
        }
        *lock(&self.host.config) = Arc::new(config);
        Ok(())
    }

    /// What all parts share.
    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.host
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let now = Instant::from_nanos(self.host.last_seen.load(Ordering::Relaxed));
        self.host.shut_down(now);
        // Handles may outlive the stack; devices do not.
        self.remove_interfaces();
    }
}
