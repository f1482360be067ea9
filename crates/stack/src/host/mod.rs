//! Sockets of one host, the way up to them, and the drivers that visit them.
//!
//! [`Host`] is above [`Net`]. Its tables ([`demux`], [`udp`], [`registry`]) hold sockets; a socket
//! gets the host as an argument of each call, so sockets and tables do not own each other.

pub(crate) mod bound;
mod bulk;
pub(crate) mod demux;
pub(crate) mod error;
pub mod error_queue;
pub(crate) mod forwarder;
pub mod gro;
pub(crate) mod icmp;
mod icmp_error;
pub(crate) mod input;
mod links;
pub(crate) mod listed;
pub(crate) mod listener;
pub(crate) mod opening;
mod pages;
mod ports;
pub mod readiness;
mod receivers;
pub(crate) mod registry;
mod remains;
pub(crate) mod run_list;
pub(crate) mod segments;
pub(crate) mod shard;
pub(crate) mod socket_id;
pub(crate) mod tcp;
mod tcp_egress;
mod turns;
pub(crate) mod udp;
pub(crate) mod udp_egress;
pub(crate) mod udp_memory;
pub(crate) mod udp_queue;
pub(crate) mod udp_table;

use crate::drop_reason::DropReason;
use crate::event::Subscribers;
use crate::flow::FlowKey;
use crate::net::rate_limit::Rates;
use crate::net::reassembly;
use crate::net::{Net, Seeds, Visit};
use crate::sync::{Mutex, lock};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use demux::{Demux, Everything};
use error::SocketError;
use forwarder::Forwarders;
use icmp::IcmpTable;
use neap_tcp::config::Config;
use neap_tcp::handshake::SynCookies;
use neap_tcp::isn::Secrets;
use neap_tcp::memory::HostMemory;
use neap_tcp::options::SocketOptions;
use neap_tcp::state::State;
use neap_tcp::sysctl::SysctlError;
use neap_tcp::time::{Instant, Nanos};
use readiness::{Readiness, Ready};
use registry::Registry;
use remains::Reuse;
use shard::Shard;
use std::sync::Arc;
use std::task::Waker;
use udp_table::UdpTable;

/// Settings with which a [`Stack`](crate::stack::Stack) is made.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Random number from which every secret of the host is derived. Equal seeds make equal hosts.
    pub seed: u64,
    /// Settings of TCP. `tcp_congestion_control` must name a controller that exists.
    pub config: Config,
    /// Number of drivers that may poll at the same time; at least one.
    pub shards: usize,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self { seed: 0, config: Config::default(), shards: 1 }
    }
}

/// What all parts of one host share (Linux's `struct net`).
pub(crate) struct Host {
    pub(crate) net: Net,
    config: Mutex<Arc<Config>>,
    secrets: Secrets,
    cookies: SynCookies,
    pub(crate) flow_key: FlowKey,
    pub(crate) demux: Demux,
    pub(crate) udp: UdpTable,
    pub(crate) icmp: IcmpTable,
    pub(crate) forwarders: Forwarders,
    pub(crate) registry: Registry,
    pub(crate) events: Subscribers,
    pub(crate) shards: Box<[Shard]>,
    /// What devices of removed interfaces had lost; see [`Host::receive_drops`].
    lost_by_removed: Mutex<u64>,
    /// Seeds the secrets of parts that are made later: neighbours, qdiscs.
    part_seed: AtomicU64,
    next_shard: AtomicUsize,
    /// The options of sockets on which nothing was set.
    default_options: Arc<SocketOptions>,
    /// The latest time that anybody told, for what happens without one.
    last_seen: AtomicU64,
    is_shut_down: AtomicBool,
    /// New sockets are refused, and whoever waits for the last connection is told of its end.
    is_closing: AtomicBool,
    /// Readable when a host that closes has lost its last connection.
    drained: Readiness,
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Not the secrets.
        f.debug_struct("Host").field("net", &self.net).finish_non_exhaustive()
    }
}

/// Independent values from one seed (SplitMix64).
fn fork(seed: u64, purpose: u64) -> u64 {
    let mut z = seed.wrapping_add(purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the secrets of a host with this seed ([`StackConfig::seed`]), as the host makes them.
///
/// A test finds a seed with them whose sequence numbers or timestamps begin where it wants them.
pub fn secrets(seed: u64) -> Secrets {
    Secrets::from_seed(fork(seed, 3))
}

impl Host {
    /// A host without interfaces. `config.shards` is at least one.
    pub(crate) fn new(config: StackConfig) -> Self {
        let seed = |purpose| fork(config.seed, purpose);
        let flow_key = FlowKey::new(seed(1), seed(2));
        let shards: Box<[Shard]> = {
            let memory = Arc::<HostMemory>::default();
            (0..config.shards).map(|index| Shard::new(index, memory.clone())).collect()
        };
        let seeds = Seeds { topology: seed(7), reassembly: seed(8), icmp_limit: seed(12) };
        let net = Net::new(seeds, flow_key, shards[0].list.bell().clone());
        let host = Self {
            net,
            config: Mutex::default(),
            secrets: secrets(config.seed),
            cookies: SynCookies::from_seed(seed(4)),
            flow_key,
            demux: Demux::new(flow_key, shards[0].counters().clone()),
            udp: UdpTable::new(),
            icmp: IcmpTable::default(),
            forwarders: Forwarders::default(),
            registry: Registry::default(),
            events: Subscribers::default(),
            shards,
            lost_by_removed: Mutex::default(),
            part_seed: AtomicU64::new(seed(11)),
            next_shard: AtomicUsize::new(0),
            default_options: Arc::default(),
            last_seen: AtomicU64::new(0),
            is_shut_down: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            drained: Readiness::new(),
        };
        host.set_config(config.config);
        host
    }

    /// The memory of all connections.
    pub(crate) fn memory(&self) -> &HostMemory {
        self.shards[0].counters().memory.host()
    }

    /// Pages of memory that connections have taken, those included that the host was not told of.
    pub(crate) fn memory_pages(&self) -> u64 {
        let untold = self.shards.iter().map(|shard| shard.counters().memory.untold());
        self.memory().pages().saturating_add_signed(untold.sum())
    }

    /// The settings now. One mutex.
    pub(crate) fn config(&self) -> Arc<Config> {
        lock(&self.config).clone()
    }

    /// Replaces the settings. The tables of the host go by them at once; an open socket takes them
    /// up when it is next visited, since its route counts as changed then. Cost: one visit's look
    /// for a route, for each socket that is used again.
    pub(crate) fn set_config(&self, config: Config) {
        self.apply(&mut lock(&self.config), config);
    }

    /// As [`Stack::set_sysctl`](crate::stack::Stack::set_sysctl).
    pub(crate) fn set_sysctl(&self, name: &str, value: &str) -> Result<(), SysctlError> {
        let mut current = lock(&self.config);
        let mut config = Config::clone(&current);
        config.set(name, value)?;
        self.apply(&mut current, config);
        Ok(())
    }

    /// Under the lock of the settings: the tables never go by those of another caller.
    fn apply(&self, current: &mut Arc<Config>, config: Config) {
        let Config { ip_local_port_range: ports, tcp_max_tw_buckets, .. } = config;
        let Config { ipfrag_high_thresh, ipfrag_time, timer_slack_ns, .. } = config;
        self.net.set_default_ttl(config.ip_default_ttl);
        self.net.set_ignores_echo(config.icmp_echo_ignore_all, config.icmp6_echo_ignore_all);
        self.memory().set_limits(&config, self.shards.len());
        let reuse = Reuse {
            mode: config.tcp_tw_reuse,
            delay: Nanos::from_millis(config.tcp_tw_reuse_delay.into()),
        };
        self.demux.set_limits(ports.low..=ports.high, tcp_max_tw_buckets as usize, reuse);
        self.udp.set_ports(ports.low..=ports.high);
        self.udp.memory().set_limits(&config);
        self.net.set_reassembly(reassembly::Config {
            high_thresh: ipfrag_high_thresh as usize,
            time: Nanos::from_secs(ipfrag_time.into()),
        });
        self.net.icmp_limit.set_rates(Rates {
            v4_pause: Nanos::from_millis(config.icmp_ratelimit.into()),
            v6_pause: Nanos::from_millis(config.icmp6_ratelimit.into()),
            per_second: config.icmp_msgs_per_sec,
            burst: config.icmp_msgs_burst,
        });
        for shard in &self.shards {
            shard.list.set_slack(Nanos(timer_slack_ns.into()));
        }
        *current = Arc::new(config);
        self.net.topology.note_change();
    }

    /// A secret for something that is made while the host runs.
    pub(crate) fn fork_seed(&self) -> u64 {
        fork(self.part_seed.fetch_add(1, Ordering::Relaxed), 1)
    }

    /// Notes the time for what happens without one.
    pub(crate) fn note_time(&self, now: Instant) {
        self.last_seen.fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// The latest time that was noted.
    pub(crate) fn last_noted_time(&self) -> Instant {
        Instant::from_nanos(self.last_seen.load(Ordering::Relaxed))
    }

    /// Forgets old connections and fragments, and asks neighbours again. A load when nothing is
    /// due.
    pub(crate) fn expire(&self, visit: Visit) {
        if !self.net.housekeeping.take_due(visit.now) {
            return;
        }
        let next = self.expire_remains(visit);
        let (due, undeliverable) = self.net.expire(visit);
        self.on_undeliverable(visit, undeliverable);
        let (expired, expiry) = self.forwarders.expire(visit.now, self.flow_key);
        self.net.counters.drops.add(DropReason::PendingExpired, expired);
        self.net.housekeeping.schedule(next.min(due).min(expiry));
    }

    /// Whether a socket may be bound to this address: the unspecified one, or an own one.
    pub(crate) fn check_local(&self, local: IpAddr) -> Result<(), SocketError> {
        if local.is_unspecified() || self.net.topology.locals().contains(local) {
            return Ok(());
        }
        Err(SocketError::AddressNotAvailable)
    }

    /// As [`check_local`](Self::check_local); a socket that is transparent may also be bound to an
    /// address of others (`IP_TRANSPARENT`).
    pub(crate) fn check_source(
        &self,
        local: IpAddr,
        is_transparent: bool,
    ) -> Result<(), SocketError> {
        if is_transparent && self.net.topology.locals().may_be_foreign(local) {
            return Ok(());
        }
        self.check_local(local)
    }

    /// Refuses a loopback address as the source of packets to another host, as Linux does over IPv4
    /// (`__mkroute_output`). A comparison for any other source.
    pub(crate) fn check_ends(&self, local: IpAddr, remote: IpAddr) -> Result<(), SocketError> {
        if local.is_loopback() && !self.net.topology.locals().keeps(remote) {
            return Err(SocketError::InvalidArgument);
        }
        Ok(())
    }

    /// Whether packets to this address are taken: it is an own one, or an interface takes any
    /// destination.
    pub(crate) fn may_be_reached(&self, local: IpAddr) -> bool {
        self.check_local(local).is_ok() || self.net.topology.is_foreign(local)
    }

    /// Whether `address` is a broadcast address.
    pub(crate) fn is_broadcast(&self, address: IpAddr) -> bool {
        self.net.topology.locals().is_broadcast(address)
    }

    /// As [`Stack::begin_close`](crate::stack::Stack::begin_close).
    pub(crate) fn begin_close(&self, now: Instant) -> usize {
        self.is_closing.store(true, Ordering::SeqCst);
        let (connections, listeners) = self.demux.begin_close();
        let reset: usize =
            listeners.iter().map(|listener| self.close_listener(listener, now)).sum();
        self.reset_pending(now, self.forwarders.shut_down());
        for socket in connections {
            socket.with(self, now, |connection, _| match connection.state() {
                State::SynSent => connection.abort(),
                _ => connection.shutdown_write(),
            });
        }
        reset
    }

    /// A connection has left the tables. A load, unless the host closes.
    pub(crate) fn on_connection_end(&self) {
        if self.is_closing.load(Ordering::SeqCst) && self.demux.open_connections() == 0 {
            self.drained.signal(Ready::READABLE);
        }
    }

    /// As [`Stack::register_drained`](crate::stack::Stack::register_drained).
    pub(crate) fn register_drained(&self, waker: &Waker) -> bool {
        let seen = self.drained.state();
        self.demux.open_connections() > 0 && self.drained.register(seen, Ready::READABLE, waker)
    }

    /// As [`Stack::unregister_drained`](crate::stack::Stack::unregister_drained).
    pub(crate) fn unregister_drained(&self, waker: &Waker) {
        self.drained.unregister(waker);
    }

    /// Resets all connections, closes all sockets and refuses new ones.
    pub(crate) fn shut_down(&self, now: Instant) {
        if self.is_shut_down.swap(true, Ordering::AcqRel) {
            return;
        }
        let Everything { connections, listeners, remains } = self.demux.shut_down();
        // Connections come before listeners. A listener's threads wake up and may drop what they
        // accepted, and a connection that is dropped before its reset sends a FIN.
        for socket in connections {
            socket.abandon(self, now);
        }
        for listener in listeners {
            self.close_listener(&listener, now);
        }
        self.reset_pending(now, self.forwarders.shut_down());
        let visit = Visit::new(now, 0);
        for (tuple, options, remains) in remains {
            self.send_orphan(visit, &tuple, options, remains.reset(now));
        }
        self.udp.shut_down();
        self.icmp.shut_down();
        self.events.end();
    }
}
