//! Opening of sockets: `connect`, `listen`, `bind`, and connections that a handshake led to.

use super::Host;
use super::bound::Bound;
use super::demux::PortOwner;
use super::error::SocketError;
use super::forwarder::{Decided, Forwarder, Pending, TcpForwarderOptions};
use super::listener::{Inherited, ListenContext, Listener};
use super::ports::Claim;
use super::registry::Target;
use super::tcp::TcpSocket;
use super::udp::{Binding, UdpForwarderOptions, UdpOptions, UdpSocket, is_dual};
use crate::flow::{FourTuple, destination};
use crate::net::Visit;
use crate::net::address::scope_of;
use crate::net::egress::CachedRoute;
use crate::net::topology::NextHop;
use core::iter;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use neap_tcp::connection::{Connection, Setup};
use neap_tcp::counters::Counter;
use neap_tcp::handshake::Accepted;
use neap_tcp::options::SocketOptions;
use neap_tcp::time::Instant;
use neap_tcp::time_wait::Heritage;
use neap_tcp::transmit::small_queue::TxAccount;
use std::sync::Arc;
use std::task::Waker;

/// Ports that `connect` tries when other threads take them in between.
const CONNECT_TRIES: u32 = 16;

/// Options of [`Stack::connect`](crate::stack::Stack::connect).
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Address and port of this end. The stack chooses an unspecified address and port 0. No other
    /// socket may have a port that is given at an own address, as with `bind`; see
    /// `reuse_address`.
    pub local: Option<SocketAddr>,
    /// Socket options, which act from the SYN on.
    pub options: SocketOptions,
    /// `SO_REUSEADDR`: sockets that have it too and do not listen may have the address and port of
    /// the connection, while it is open and in TIME-WAIT, and the connection may have theirs.
    pub reuse_address: bool,
    /// `IP_TRANSPARENT`: `local` may be an address of others. Answers come back only through an
    /// interface that takes any destination.
    pub transparent: bool,
}

/// Options of [`Stack::bind_tcp`](crate::stack::Stack::bind_tcp).
#[derive(Clone, Copy, Debug, Default)]
pub struct BindOptions {
    /// The address is `[::]` and stands for `0.0.0.0` too, as without `IPV6_V6ONLY`.
    pub is_dual: bool,
    /// `SO_REUSEADDR`: sockets and connections that have it too do not prevent binding, nor does
    /// this socket prevent theirs.
    pub reuse_address: bool,
    /// `IP_TRANSPARENT`, `IP_FREEBIND`: the address may be one of others.
    pub transparent: bool,
}

/// Options of [`Stack::listen`](crate::stack::Stack::listen).
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Most connections that wait to be accepted. `somaxconn` is the upper bound.
    pub backlog: u32,
    /// `SO_REUSEADDR`: connections at the address that have it too do not prevent listening.
    /// Accepted connections inherit it, so a server that has it can start again beside them.
    pub reuse_address: bool,
    /// `IPV6_V6ONLY`: a listener on `[::]` does not take connections of IPv4.
    pub only_v6: bool,
    /// `IP_TRANSPARENT`: the address may be one of others. Connections to it come through an
    /// interface that takes any destination.
    pub transparent: bool,
    /// Options that accepted sockets inherit.
    pub options: SocketOptions,
    /// Options that accepted sockets of IPv4 inherit; with `None` they inherit `options`. A
    /// listener for both families needs them if its `IP_TTL` and its `IPV6_UNICAST_HOPS` differ.
    pub options_v4: Option<SocketOptions>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        let options = SocketOptions::default();
        Self {
            backlog: 4096,
            reuse_address: true,
            only_v6: false,
            transparent: false,
            options,
            options_v4: None,
        }
    }
}

/// What the tables are to know of a connection.
#[derive(Clone, Copy)]
struct Wanted {
    tuple: FourTuple,
    /// `SO_REUSEADDR`
    reuse_address: bool,
    owner: PortOwner,
    /// What it begins with if it takes the place of one in TIME-WAIT.
    heritage: Option<Heritage>,
}

/// Whether each option is in its range.
fn check(options: &SocketOptions) -> Result<(), SocketError> {
    options.check().map_err(|_| SocketError::InvalidArgument)
}

/// Whose the own port is of a connection that this host opens: one that was chosen, that of a bound
/// socket, or one of others.
fn port_owner(is_ephemeral: bool, is_bound: bool, is_foreign: bool) -> PortOwner {
    match (is_ephemeral, is_bound, is_foreign) {
        (true, ..) => PortOwner::Chosen,
        (false, true, _) => PortOwner::Bound,
        // The ports of others are theirs to share.
        (false, false, true) => PortOwner::Others,
        (false, false, false) => PortOwner::Itself,
    }
}

impl Host {
    /// As [`Stack::connect`](crate::stack::Stack::connect). `is_bound` says that the socket has its
    /// own port already.
    pub(crate) fn connect(
        &self,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
        is_bound: bool,
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let ConnectOptions { local, options, reuse_address, transparent } = options;
        let options = self.share(options)?;
        let own = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let remote_ip = destination(remote.ip(), own);
        if remote.port() == 0 || remote_ip.is_multicast() {
            return Err(SocketError::InvalidArgument);
        }
        if local.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
            return Err(SocketError::AddressFamily);
        }
        if self.is_broadcast(remote_ip) {
            return Err(SocketError::NetworkUnreachable);
        }
        let topology = &self.net.topology;
        let mut peer = remote;
        peer.set_ip(remote_ip);
        let link = topology.link_to(peer)?;
        let source = match own {
            Some(bound) => {
                self.check_source(bound, transparent)?;
                bound
            }
            None => topology.source_for(remote_ip, link)?,
        };
        self.check_ends(source, remote_ip)?;
        let is_foreign = transparent && !topology.locals().contains(source);
        let mut tuple = FourTuple {
            local: source,
            remote: remote_ip,
            local_port: local.map_or(0, |local| local.port()),
            remote_port: remote.port(),
            scope: scope_of(remote_ip, link),
        };
        let is_ephemeral = tuple.local_port == 0;
        let owner = port_owner(is_ephemeral, is_bound, is_foreign);
        let mut route = CachedRoute::new(is_foreign);
        if route.refresh(&self.net, now, &tuple).is_none() {
            return Err(SocketError::NetworkUnreachable);
        }
        for _ in 0..CONNECT_TRIES {
            if is_ephemeral {
                tuple.local_port = self.demux.choose_port(now, &tuple)?;
            }
            // Who has a port of its own gets it from TIME-WAIT at once, as in Linux.
            let heritage = self.demux.heritage(&tuple);
            let visit = Visit::new(now, self.shard_for(&route, &tuple));
            let open = |setup| match heritage {
                None => Connection::connect(now, setup),
                Some(heritage) => Connection::succeed(now, setup, heritage),
            };
            let wanted = Wanted { tuple, reuse_address, owner, heritage };
            match self.open(visit, wanted, options.clone(), route.clone(), open) {
                // Another thread took the port or the ends in between.
                Err(SocketError::AddressInUse) if is_ephemeral => {}
                Err(error) => return Err(error),
                Ok(socket) => {
                    socket.with(self, now, |_, _| {});
                    return Ok(socket);
                }
            }
        }
        Err(SocketError::AddressNotAvailable)
    }

    /// The shard for a connection that this host opens: the one whose driver will receive its
    /// packets, if the device tells, or the next in turn.
    fn shard_for(&self, route: &CachedRoute, tuple: &FourTuple) -> usize {
        let queue = match route.get().map(|route| &route.next_hop) {
            Some(NextHop::Neighbor(interface, _)) => interface.queue_of(tuple),
            Some(NextHop::Loopback) | None => None,
        };
        let next = || self.next_shard.fetch_add(1, Ordering::Relaxed);
        queue.unwrap_or_else(next) % self.shards.len()
    }

    /// The connection that a listener's handshake led to. It belongs to the shard of the visit,
    /// whose driver has received the packets of the handshake.
    pub(crate) fn accept_connection(
        &self,
        visit: Visit,
        tuple: FourTuple,
        accepted: Accepted,
        listener: &Listener,
        route: CachedRoute,
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let accept = |setup| Connection::accept(visit.now, setup, accepted);
        let reuse_address = listener.reuse_address();
        let owner = PortOwner::Bound;
        let wanted = Wanted { tuple, reuse_address, owner, heritage: None };
        self.open(visit, wanted, listener.options(tuple.local), route, accept)
    }

    /// As [`Stack::forward_tcp`](crate::stack::Stack::forward_tcp).
    pub(crate) fn forward_tcp(
        &self,
        options: TcpForwarderOptions,
    ) -> Result<Arc<Forwarder>, SocketError> {
        if self.is_closing.load(Ordering::SeqCst) || self.is_shut_down.load(Ordering::SeqCst) {
            return Err(SocketError::ShutDown);
        }
        Ok(self.forwarders.add(options, self.fork_seed()))
    }

    /// Ends a forwarder, and resets the connections that nobody has decided about.
    pub(crate) fn close_forwarder(&self, forwarder: &Arc<Forwarder>, now: Instant) {
        self.reset_pending(now, self.forwarders.remove(forwarder));
    }

    /// Refuses connections that nobody has decided about.
    pub(crate) fn reset_pending(&self, now: Instant, pending: Vec<Arc<Pending>>) {
        for pending in pending {
            let visit = Visit::new(now, pending.shard);
            self.send_reset(visit, &pending.tuple, &pending.syn().0.segment());
        }
    }

    /// Answers the SYN of a pending connection with a SYN-ACK.
    ///
    /// # Errors
    /// Why the connection is over; `NetworkUnreachable` without a route to the peer, `AddressInUse`
    /// if a socket has the same ends, `InvalidArgument` for an unknown controller or an option out
    /// of range, `ShutDown`.
    pub(crate) fn accept_pending(
        &self,
        now: Instant,
        pending: &Pending,
        options: SocketOptions,
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let tuple = pending.tuple;
        let mut route = CachedRoute::new(self.net.topology.is_foreign(tuple.local));
        if route.refresh(&self.net, now, &tuple).is_none() {
            return Err(SocketError::NetworkUnreachable);
        }
        let visit = Visit::new(now, pending.shard);
        let options = self.share(options)?;
        let Decided { syn, iss, place } = pending.decide()?;
        let answer = |setup: Setup| {
            let isn = iss.unwrap_or(setup.isn);
            Connection::answer(now, Setup { isn, ..setup }, &syn.segment())
        };
        // The address is not the application's choice: no server of it is to be in the way.
        let owner = PortOwner::Others;
        let wanted = Wanted { tuple, reuse_address: true, owner, heritage: None };
        let socket = self.open(visit, wanted, options, route, answer);
        // The socket is in the tables before the pending connection leaves its own, so a SYN that
        // comes meanwhile finds one of them.
        pending.forget(self.flow_key);
        let socket = socket.inspect_err(|_| {
            self.send_reset(visit, &tuple, &syn.segment());
        })?;
        socket.begin_in(self, now, place);
        Ok(socket)
    }

    /// Makes a socket around the connection that `make` makes, and enters it into the tables.
    fn open(
        &self,
        visit: Visit,
        wanted: Wanted,
        options: Arc<SocketOptions>,
        mut route: CachedRoute,
        make: impl FnOnce(Setup) -> Connection,
    ) -> Result<Arc<TcpSocket>, SocketError> {
        let Wanted { tuple, reuse_address, owner, heritage } = wanted;
        let Visit { now, shard, .. } = visit;
        let shard = &self.shards[shard % self.shards.len()];
        let cell = shard.cell(self.registry.reserve());
        let id = cell.id();
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        // The route before the settings: settings that change in between are taken up later,
        // since the route is old then.
        let way = route.refresh(&self.net, now, &tuple);
        let mtu = way.map_or(0, |way| way.mtu);
        let config = self.config();
        let controller = options.congestion.unwrap_or(&config.tcp_congestion_control);
        let Ok(controller) = config.controllers.make(controller) else {
            self.registry.release(id);
            return Err(SocketError::InvalidArgument);
        };
        let setup = Setup {
            config,
            counters: shard.counters().clone(),
            pages: shard.pages().clone(),
            account: TxAccount::new(Waker::from(cell.clone())),
            controller,
            isn: self.secrets.isn(now, local, remote),
            ts_offset: self.secrets.ts_offset(local, remote),
            path: TcpSocket::path(&tuple, mtu),
            options,
        };
        let claim = Claim { reuse: reuse_address, is_given: owner.is_given() };
        let ends = (tuple, claim);
        let socket = Arc::new(TcpSocket::new(ends, make(setup), route, mtu, cell));
        let target = Target::Tcp(socket.clone());
        let insert = || self.demux.insert(&socket, owner, heritage);
        let is_recycled = self.registry.enter(id, target, insert)?;
        shard.counters().add(Counter::TimeWaitRecycled, u64::from(is_recycled));
        Ok(socket)
    }

    /// Options in memory that sockets share where they are the default ones; an error if one is
    /// out of range.
    fn share(&self, options: SocketOptions) -> Result<Arc<SocketOptions>, SocketError> {
        if options == *self.default_options {
            return Ok(self.default_options.clone());
        }
        check(&options)?;
        Ok(options.into())
    }

    /// As [`Stack::bind_tcp`](crate::stack::Stack::bind_tcp).
    pub(crate) fn bind_tcp(
        &self,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<Arc<Bound>, SocketError> {
        let BindOptions { is_dual, reuse_address, transparent } = options;
        self.check_source(local.ip(), transparent)?;
        let salt = if local.port() == 0 { self.fork_seed() } else { 0 };
        self.demux.bind(local, is_dual, reuse_address, salt)
    }

    /// As [`Stack::listen`](crate::stack::Stack::listen). `own` is the reservation of the socket
    /// that listens.
    pub(crate) fn listen(
        &self,
        mut local: SocketAddr,
        options: ListenOptions,
        own: Option<&Bound>,
    ) -> Result<Arc<Listener>, SocketError> {
        self.check_source(local.ip(), options.transparent)?;
        for options in iter::once(&options.options).chain(&options.options_v4) {
            check(options)?;
            let named = options.congestion.map(|name| self.config().controllers.find(name));
            named.transpose().map_err(|_| SocketError::InvalidArgument)?;
        }
        let is_dual = is_dual(local, options.only_v6);
        if local.port() == 0 {
            // The port is this socket's from its choice on, so that no other thread gets it.
            let chosen = self.demux.bind(local, is_dual, false, self.fork_seed())?;
            local.set_port(chosen.local().port());
            let listener = self.listen_at(local, is_dual, options, Some(&chosen));
            self.demux.unbind(&chosen);
            return listener;
        }
        self.listen_at(local, is_dual, options, own)
    }

    fn listen_at(
        &self,
        local: SocketAddr,
        is_dual: bool,
        options: ListenOptions,
        own: Option<&Bound>,
    ) -> Result<Arc<Listener>, SocketError> {
        let cell = self.shards[0].cell(self.registry.reserve());
        let id = cell.id();
        let max_accept = options.backlog.min(self.config().somaxconn) as usize;
        let listener = Arc::new(Listener::new(
            local,
            is_dual,
            max_accept,
            options.reuse_address,
            Inherited::new(options.options, options.options_v4),
            cell,
        ));
        self.registry.enter(id, Target::Listener(listener.clone()), || {
            self.demux.listen(listener.clone(), options.reuse_address, own)
        })?;
        Ok(listener)
    }

    /// Ends a listener, and resets the connections that nobody accepted; how many there were.
    pub(crate) fn close_listener(&self, listener: &Listener, now: Instant) -> usize {
        self.demux.unlisten(listener);
        self.registry.release(listener.cell.id());
        listener.cell.retire();
        let children = listener.close();
        for child in &children {
            child.abandon(self, now);
        }
        children.len()
    }

    /// What a listener needs to judge a segment. `mtu` is that of the way to the peer, in bytes.
    pub(crate) fn listen_context(&self, visit: Visit, mtu: u32) -> ListenContext<'_> {
        ListenContext {
            now: visit.now,
            key: self.flow_key,
            config: self.config(),
            counters: self.shards[visit.shard].counters(),
            secrets: &self.secrets,
            cookies: &self.cookies,
            mtu,
            is_exhausted: self.memory().is_exhausted(),
        }
    }

    /// As [`Stack::bind_udp`](crate::stack::Stack::bind_udp).
    pub(crate) fn bind_udp(
        &self,
        local: SocketAddr,
        options: UdpOptions,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        let UdpOptions { reuse_address, only_v6, transparent } = options;
        let is_broadcast = self.is_broadcast(local.ip());
        if !is_broadcast {
            self.check_source(local.ip(), transparent)?;
        }
        let binding = Binding {
            local,
            is_dual: is_dual(local, only_v6),
            is_broadcast,
            reuse: reuse_address,
            is_transparent: transparent,
        };
        self.udp.bind(self.flow_key, binding)
    }

    /// As [`Stack::forward_udp`](crate::stack::Stack::forward_udp).
    pub(crate) fn forward_udp(
        &self,
        options: UdpForwarderOptions,
    ) -> Result<Arc<UdpSocket>, SocketError> {
        self.udp.forward(options, self.fork_seed())
    }
}
