//! [`Stack`]: one host, driven only by [`poll`](Stack::poll).

use crate::demux::{Demux, FourTuple, HashKey, SocketCounts};
use crate::device::Device;
use crate::drop_reason::{DropReason, Drops};
use crate::egress::SocketPath;
use crate::frame::Frame;
use crate::icmp::RateLimit;
use crate::interface::{Address, Interface, InterfaceId, InterfaceInfo, Topology};
use crate::listener::{ListenContext, Listener};
use crate::qdisc::{Qdisc, Verdict};
use crate::reassembly::{self, Reassembler};
use crate::route::Entry;
use crate::shard::{Shard, Why, Work};
use crate::socket::listener::ListenerHandle;
use crate::socket::tcp::{FlowInfo, TcpHandle, TcpSocket};
use crate::socket::udp::{UdpHandle, UdpTable};
use crate::socket::{Registry, SocketError, Target};
use crate::stats::IpCounters;
use crate::sync::{Mutex, lock};
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use neap_tcp::config::Config;
use neap_tcp::congestion;
use neap_tcp::connection::{Connection, Setup};
use neap_tcp::counters::{Counter, Counters};
use neap_tcp::handshake::{Accepted, SynCookies};
use neap_tcp::isn::Secrets;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Instant;
use neap_tcp::transmit::small_queue::TxAccount;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

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
    pub(crate) config: Arc<Config>,
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
    next_shard: AtomicU32,
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
    #[error("unknown congestion control {0:?}; there are reno and cubic")]
    UnknownCongestion(String),
    /// No shards.
    #[error("a stack needs at least one shard")]
    NoShards,
}

/// One host. Dropping it resets its connections and closes its sockets.
#[derive(Debug)]
pub struct Stack {
    host: Arc<Host>,
}

impl Stack {
    /// A host without interfaces.
    ///
    /// # Errors
    /// [`StackError`] for settings that make no sense.
    pub fn new(config: StackConfig) -> Result<Self, StackError> {
        let StackConfig { seed, config, shards, .. } = &config;
        if congestion::by_name(&config.tcp_congestion_control).is_none() {
            return Err(StackError::UnknownCongestion(config.tcp_congestion_control.clone()));
        }
        if *shards == 0 {
            return Err(StackError::NoShards);
        }
        let seed = *seed;
        let hash_key = HashKey::new(fork(seed, 1), fork(seed, 2));
        let ports = config_ports(&config_range(&config_of(&config)));
        unreachable!("{ports:?} {hash_key:?}")
    }
}
