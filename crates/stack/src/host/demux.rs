//! Demultiplexer: finds the socket of a packet by addresses and ports.
//!
//! Everything a peer can choose is hashed with SipHash-1-3 under the host's key, so no peer can
//! make a chain long. Cost of a lookup: one hash (about 15 ns for IPv4), one mutex, one probe; a
//! second probe for TIME_WAIT, a third by port for listeners. No allocation. An established
//! connection takes 8 bytes and a control byte here, and those of [`PortUses`] where no other has
//! its address and port; what is left of one is in [`RemainsTable`].

use super::bound::Bound;
use super::error::SocketError;
use super::listed::BucketInfo;
use super::listener::Listener;
use super::ports::{Claim, PortUses, Ports};
use super::remains::{Looked, RemainsTable, Reuse};
use super::tcp::TcpSocket;
use crate::flow::{FlowKey, FourTuple};
use crate::net::egress::IpOptions;
use crate::sync::{Mutex, MutexGuard, lock};
use core::cell::Cell;
use core::ops::RangeInclusive;
use hashbrown::HashTable;
use neap_tcp::counters::Counters;
use neap_tcp::orphan::Remains;
use neap_tcp::time::Instant;
use neap_tcp::time_wait::Heritage;
use std::net::SocketAddr;
use std::sync::Arc;

/// Receiver of a segment.
#[derive(Debug)]
pub(crate) enum Recipient {
    /// The connection with exactly these addresses.
    Connection(Arc<TcpSocket>),
    /// What is left of a connection; ask [`Demux::with_remains`].
    Remains,
    /// A listener on the local address or on all addresses.
    Listener(Arc<Listener>),
    /// No socket.
    Nobody,
}

/// All TCP sockets of a host by address.
pub(crate) struct Demux {
    key: FlowKey,
    tables: Mutex<Tables>,
}

impl core::fmt::Debug for Demux {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Demux").finish_non_exhaustive()
    }
}

struct Tables {
    connections: HashTable<Arc<TcpSocket>>,
    listeners: HashTable<Arc<Listener>>,
    bound: HashTable<Arc<Bound>>,
    remains: RemainsTable,
    ports: Ports,
    /// No further sockets are taken, and what there is comes to its end.
    is_closing: bool,
    is_shut_down: bool,
}

/// Whose the own port of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortOwner {
    /// `connect` [chose](Demux::choose_port) it, and may choose it for connections to other ends.
    /// No socket may have got it since.
    Chosen,
    /// It is one of others, who share it as they like. It may be chosen.
    Others,
    /// A socket that is bound to it, or the listener that accepted the connection. It is not chosen
    /// as long as anything is left of the connection.
    Bound,
    /// The connection itself. As with `Bound`, and its own end has to be free as for
    /// [`bind`](Demux::bind).
    Itself,
}

impl PortOwner {
    /// Whether the port was not chosen for the connection.
    pub(crate) fn is_given(self) -> bool {
        matches!(self, Self::Bound | Self::Itself)
    }
}

/// All that a host has to end when it is shut down.
pub(crate) struct Everything {
    pub(crate) connections: Vec<Arc<TcpSocket>>,
    pub(crate) listeners: Vec<Arc<Listener>>,
    /// Flow, options of answers, and what is left of the connection, those in TIME_WAIT left out.
    pub(crate) remains: Vec<(FourTuple, IpOptions, Remains)>,
}

/// Numbers of TCP sockets of a host, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketCounts {
    /// Open connections.
    pub connections: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections in TIME_WAIT, and those in FIN-WAIT-2 without an application.
    pub time_wait: usize,
    /// Connections that no application has any more and whose FIN the peer has not acknowledged.
    /// Those of which little is left are no longer among the open ones.
    pub orphans: usize,
    /// Half-open connections of all listeners together.
    pub requests: usize,
    /// Connections of all listeners together that wait to be accepted.
    pub waiting: usize,
}

impl Demux {
    /// Empty tables, without a port to choose and without room in TIME-WAIT; see
    /// [`set_limits`](Self::set_limits).
    pub(crate) fn new(key: FlowKey, counters: Arc<Counters>) -> Self {
        Self {
            key,
            tables: Mutex::new(Tables {
                connections: HashTable::new(),
                listeners: HashTable::new(),
                bound: HashTable::new(),
                remains: RemainsTable::new(key, counters),
                ports: Ports::new(key),
                is_closing: false,
                is_shut_down: false,
            }),
        }
    }

    /// Chooses ports from `ports` (`net.ipv4.ip_local_port_range`) from now on, and keeps at most
    /// `max_time_wait` connections in TIME-WAIT (`net.ipv4.tcp_max_tw_buckets`) when the next one
    /// comes. `reuse` says when their ports are chosen.
    pub(crate) fn set_limits(
        &self,
        ports: RangeInclusive<u16>,
        max_time_wait: usize,
        reuse: Reuse,
    ) {
        let mut tables = self.lock();
        tables.remains.set_reuse(reuse);
        tables.ports.ephemeral.set_range(ports);
        tables.ports.exhausted.clear();
        tables.remains.set_most_waiting(max_time_wait);
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Returns the receiver of a segment of this flow.
    pub(crate) fn lookup(&self, tuple: &FourTuple) -> Recipient {
        let hash = self.key.hash(tuple);
        let tables = self.lock();
        if let Some(socket) = tables.connections.find(hash, |socket| socket.tuple() == tuple) {
            return Recipient::Connection(socket.clone());
        }
        if tables.remains.find(hash, tuple).is_some() {
            return Recipient::Remains;
        }
        match tables.find_listener(tuple.local_addr()) {
            Some(listener) => Recipient::Listener(listener.clone()),
            None => Recipient::Nobody,
        }
    }

    /// The connection of these addresses.
    pub(crate) fn connection(&self, tuple: &FourTuple) -> Option<Arc<TcpSocket>> {
        let hash = self.key.hash(tuple);
        self.lock().connections.find(hash, |socket| socket.tuple() == tuple).cloned()
    }

    /// The listener that would get a SYN to this address.
    pub(crate) fn listener(&self, local: SocketAddr) -> Option<Arc<Listener>> {
        self.lock().find_listener(local).cloned()
    }

    /// Adds a connection under its addresses, in the place of one in TIME-WAIT if it began with the
    /// `heritage` of that one. Whether it did.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`] if there is one, or another socket is in the way;
    /// [`SocketError::ShutDown`].
    pub(crate) fn insert(
        &self,
        socket: &Arc<TcpSocket>,
        owner: PortOwner,
        heritage: Option<Heritage>,
    ) -> Result<bool, SocketError> {
        let mut tables = self.lock();
        let local = socket.tuple().local_addr();
        match owner {
            PortOwner::Chosen if !tables.may_choose(local.port()) => {
                return Err(SocketError::AddressInUse);
            }
            PortOwner::Itself => {
                let reuse = socket.cell.claim().reuse;
                tables.check(&Bound::new(local, false, reuse), None)?;
            }
            PortOwner::Chosen | PortOwner::Others | PortOwner::Bound => {}
        }
        tables.insert(self.key, socket, heritage)
    }

    /// What a connection of this flow begins with if it is to take the place of one in TIME-WAIT.
    pub(crate) fn heritage(&self, tuple: &FourTuple) -> Option<Heritage> {
        let hash = self.key.hash(tuple);
        let tables = self.lock();
        tables.remains.find(hash, tuple).and_then(|slot| tables.remains.heritage(slot))
    }

    /// An ephemeral port for a connection; `tuple.local_port` is ignored. It is not reserved: a
    /// later [`insert`](Self::insert) tells whether another thread was faster. As in Linux, a port
    /// that can be had from TIME-WAIT is as good as a free one. One that an application chose for a
    /// socket is not free whatever the addresses are, as long as anything is left of the socket or
    /// of what it accepted (`__inet_hash_connect`).
    ///
    /// # Errors
    /// [`SocketError::AddressNotAvailable`] if every port is in use towards this remote end.
    pub(crate) fn choose_port(&self, now: Instant, tuple: &FourTuple) -> Result<u16, SocketError> {
        let offset = self.key.hash(&FourTuple { local_port: 0, ..*tuple });
        let mut tables = self.lock();
        let Tables { ports, connections, listeners, bound, remains, .. } = &mut *tables;
        let Ports { uses, ephemeral, exhausted } = ports;
        let first_reusable = Cell::new(Instant::FAR_FUTURE);
        let is_free = |port| {
            let candidate = FourTuple { local_port: port, ..*tuple };
            let hash = self.key.hash(&candidate);
            let is_left = |slot| {
                let after = remains.reusable_after(slot);
                if now <= after {
                    first_reusable.set(first_reusable.get().min(after));
                }
                now > after
            };
            is_shareable(listeners, bound, uses, port)
                && connections.find(hash, |socket| *socket.tuple() == candidate).is_none()
                && remains.find(hash, &candidate).is_none_or(is_left)
        };
        let known = exhausted.choose(now, tuple, |port| ephemeral.contains(port) && is_free(port));
        if known.is_some() {
            // Ports whose listener or bound socket went may be in TIME-WAIT still.
            exhausted.on_waiting(tuple, first_reusable.get());
        }
        let found = known.unwrap_or_else(|| {
            let found = ephemeral.choose(offset, is_free);
            if found.is_none() {
                exhausted.add(now, tuple, first_reusable.get());
            }
            found
        });
        found.ok_or(SocketError::AddressNotAvailable)
    }

    /// Sets `SO_REUSEADDR` of a connection. What is left of one keeps what it had.
    pub(crate) fn set_reuse(&self, socket: &Arc<TcpSocket>, on: bool) {
        let hash = self.key.hash(socket.tuple());
        let mut tables = self.lock();
        let Tables { connections, ports, .. } = &mut *tables;
        let is_it = |one: &Arc<TcpSocket>| Arc::ptr_eq(one, socket);
        let claim = socket.cell.claim();
        if claim.reuse != on && connections.find(hash, is_it).is_some() {
            let local = socket.tuple().local_addr();
            ports.uses.add(local, Claim { reuse: on, ..claim });
            ports.uses.remove(local, claim);
        }
        socket.cell.store_claim(Claim { reuse: on, ..claim });
    }

    /// Takes a connection out. Whether it was there.
    pub(crate) fn remove(&self, socket: &TcpSocket) -> bool {
        self.lock().remove(self.key, socket)
    }

    /// Replaces a connection by what is left of it. Beyond the bound the oldest in TIME_WAIT goes.
    pub(crate) fn enter_remains(&self, socket: &TcpSocket, remains: Remains, options: IpOptions) {
        let tuple = *socket.tuple();
        let mut tables = self.lock();
        if !tables.remove(self.key, socket) || tables.is_shut_down {
            return;
        }
        let Tables { remains: table, ports, .. } = &mut *tables;
        let claim = socket.cell.claim();
        let gone = &mut |gone: &FourTuple, claim| ports.free(gone, claim);
        if table.insert((tuple, claim), remains, options, gone) {
            ports.uses.add(tuple.local_addr(), claim);
            tables.note_reusable(self.key, &tuple);
        }
    }

    /// Lets `f` look at what is left of this flow; `f` must not call back. With `(.., true)` it is
    /// removed.
    pub(crate) fn with_remains<R>(
        &self,
        tuple: &FourTuple,
        f: impl FnOnce(&mut Remains) -> (R, bool),
    ) -> Option<Looked<R>> {
        let hash = self.key.hash(tuple);
        let mut tables = self.lock();
        let slot = tables.remains.find(hash, tuple)?;
        let Tables { remains, ports, .. } = &mut *tables;
        let looked = remains.look(slot, f, &mut |gone, claim| ports.free(gone, claim));
        tables.note_reusable(self.key, tuple);
        Some(looked)
    }

    /// Lets `f` do what is due for what is left of connections; `f` must not call back. With `true`
    /// the entry is removed. When to come back.
    pub(crate) fn expire_remains(
        &self,
        now: Instant,
        f: impl FnMut(&FourTuple, IpOptions, &mut Remains) -> bool,
    ) -> Instant {
        let mut tables = self.lock();
        let Tables { remains, ports, .. } = &mut *tables;
        remains.expire(now, f, &mut |gone, claim| ports.free(gone, claim))
    }

    /// Adds a listener. `reuse` is `SO_REUSEADDR`: connections at its address that have it too do
    /// not matter. `own` is the reservation of the socket that listens.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`], [`SocketError::ShutDown`].
    pub(crate) fn listen(
        &self,
        listener: Arc<Listener>,
        reuse: bool,
        own: Option<&Bound>,
    ) -> Result<(), SocketError> {
        let local = listener.local();
        let mut tables = self.lock();
        if tables.is_closing {
            return Err(SocketError::ShutDown);
        }
        tables.check(&Bound::new(local, listener.is_dual(), reuse), own)?;
        let hash = port_hash(local.port());
        tables.listeners.insert_unique(hash, listener, |one| port_hash(one.local().port()));
        Ok(())
    }

    /// Reserves an address until [`unbind`](Self::unbind); port 0 is one that no other socket has
    /// whose address meets this one, chosen by `salt` (`inet_csk_find_open_port`). `is_dual`
    /// says that `[::]` stands for `0.0.0.0` too, `reuse` is `SO_REUSEADDR`.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`], also if there is no such port; [`SocketError::ShutDown`].
    pub(crate) fn bind(
        &self,
        mut local: SocketAddr,
        is_dual: bool,
        reuse: bool,
        salt: u64,
    ) -> Result<Arc<Bound>, SocketError> {
        let mut tables = self.lock();
        if tables.is_closing {
            return Err(SocketError::ShutDown);
        }
        let is_chosen = local.port() == 0;
        if is_chosen {
            local.set_port(tables.free_port(local, is_dual, salt)?);
        }
        let bound = Arc::new(Bound::new(local, is_dual, reuse));
        if !is_chosen {
            tables.check(&bound, None)?;
        }
        let hash = port_hash(local.port());
        tables.bound.insert_unique(hash, bound.clone(), |one| port_hash(one.local().port()));
        Ok(bound)
    }

    /// Gives an address back.
    pub(crate) fn unbind(&self, bound: &Bound) {
        let hash = port_hash(bound.local().port());
        let is_it = |one: &Arc<Bound>| core::ptr::eq(&raw const **one, bound);
        let mut tables = self.lock();
        if let Ok(entry) = tables.bound.find_entry(hash, is_it) {
            entry.remove();
            tables.ports.on_unbound(bound.local().port());
        }
    }

    /// Takes a listener out.
    pub(crate) fn unlisten(&self, listener: &Listener) {
        let hash = port_hash(listener.local().port());
        let mut tables = self.lock();
        let is_it = |one: &Arc<Listener>| core::ptr::eq(&raw const **one, listener);
        if let Ok(entry) = tables.listeners.find_entry(hash, is_it) {
            entry.remove();
            tables.ports.on_unbound(listener.local().port());
        }
    }

    /// All connections now.
    pub(crate) fn connections(&self) -> Vec<Arc<TcpSocket>> {
        self.lock().connections.iter().cloned().collect()
    }

    /// All listeners.
    pub(crate) fn listeners(&self) -> Vec<Arc<Listener>> {
        self.lock().listeners.iter().cloned().collect()
    }

    /// What a listing says of what is left of connections. The tables are locked meanwhile.
    pub(crate) fn remains(&self, now: Instant) -> Vec<BucketInfo> {
        self.lock().remains.listed(now)
    }

    /// Refuses all further sockets, and hands out what is there.
    pub(crate) fn begin_close(&self) -> (Vec<Arc<TcpSocket>>, Vec<Arc<Listener>>) {
        let mut tables = self.lock();
        tables.is_closing = true;
        let listeners = tables.listeners.drain().collect();
        (tables.connections.iter().cloned().collect(), listeners)
    }

    /// Connections now whose FIN was not acknowledged by both ends.
    pub(crate) fn open_connections(&self) -> usize {
        let tables = self.lock();
        tables.connections.len() + tables.remains.orphans()
    }

    /// Refuses all further sockets, forgets TIME_WAIT, and hands out what is there.
    pub(crate) fn shut_down(&self) -> Everything {
        let mut tables = self.lock();
        (tables.is_closing, tables.is_shut_down) = (true, true);
        Everything {
            connections: tables.connections.iter().cloned().collect(),
            listeners: tables.listeners.drain().collect(),
            remains: tables.remains.drain(),
        }
    }

    /// Sockets by kind.
    pub(crate) fn counts(&self) -> SocketCounts {
        let tables = self.lock();
        let listeners: Vec<_> = tables.listeners.iter().cloned().collect();
        let counts = SocketCounts {
            connections: tables.connections.len(),
            listeners: listeners.len(),
            time_wait: tables.remains.waiting(),
            orphans: tables.remains.memory().orphans() as usize,
            ..SocketCounts::default()
        };
        drop(tables);
        listeners.iter().fold(counts, |counts, listener| {
            let (requests, waiting) = listener.queued();
            SocketCounts {
                requests: counts.requests + requests,
                waiting: counts.waiting + waiting,
                ..counts
            }
        })
    }
}

impl Tables {
    /// Whether a socket may have this address: nobody listens there, and what connections and other
    /// bound sockets have may be shared. `own` is the reservation of the socket itself.
    fn check(&self, wanted: &Bound, own: Option<&Bound>) -> Result<(), SocketError> {
        let Self { listeners, bound, ports, .. } = self;
        if is_in_conflict(listeners, bound, &ports.uses, wanted, own) {
            return Err(SocketError::AddressInUse);
        }
        Ok(())
    }

    /// Whether connections may have this port without being given it.
    fn may_choose(&self, port: u16) -> bool {
        is_shareable(&self.listeners, &self.bound, &self.ports.uses, port)
    }

    /// A port that a socket with this address may have without `SO_REUSEADDR`.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`] if there is none.
    fn free_port(
        &mut self,
        local: SocketAddr,
        is_dual: bool,
        salt: u64,
    ) -> Result<u16, SocketError> {
        let Self { ports, listeners, bound, .. } = self;
        let Ports { uses, ephemeral, exhausted } = ports;
        let is_free = |port| {
            let mut candidate = local;
            candidate.set_port(port);
            let wanted = Bound::new(candidate, is_dual, false);
            !is_in_conflict(listeners, bound, uses, &wanted, None)
        };
        let search = || ephemeral.choose(salt, is_free);
        exhausted.addresses.choose(local, is_dual, search).ok_or(SocketError::AddressInUse)
    }

    /// The exact address is preferred to the wildcard.
    fn find_listener(&self, local: SocketAddr) -> Option<&Arc<Listener>> {
        let mut wildcard = None;
        for listener in self.listeners.iter_hash(port_hash(local.port())) {
            let bound = listener.local();
            if bound == local {
                return Some(listener);
            }
            if listener.meets(local) {
                wildcard = Some(listener);
            }
        }
        wildcard
    }

    fn insert(
        &mut self,
        key: FlowKey,
        socket: &Arc<TcpSocket>,
        heritage: Option<Heritage>,
    ) -> Result<bool, SocketError> {
        if self.is_closing {
            return Err(SocketError::ShutDown);
        }
        let tuple = socket.tuple();
        let hash = key.hash(tuple);
        let Self { remains, ports, connections, .. } = self;
        if connections.find(hash, |other| other.tuple() == tuple).is_some() {
            return Err(SocketError::AddressInUse);
        }
        let old = remains.find(hash, tuple);
        if let Some(slot) = old {
            // Another connection may have come and gone between these ends meanwhile.
            if heritage.is_none() || remains.heritage(slot) != heritage {
                return Err(SocketError::AddressInUse);
            }
            remains.remove(slot, &mut |gone, claim| ports.free(gone, claim));
        }
        ports.uses.add(tuple.local_addr(), socket.cell.claim());
        connections.insert_unique(hash, socket.clone(), |one| key.hash(one.tuple()));
        Ok(old.is_some())
    }

    /// The remains of this flow may have entered TIME-WAIT. A comparison, unless ports have run
    /// out. A given port is not chosen before TIME-WAIT is over.
    fn note_reusable(&mut self, key: FlowKey, tuple: &FourTuple) {
        let Ports { uses, exhausted, .. } = &mut self.ports;
        if exhausted.is_empty() || uses.is_given(tuple.local_port) {
            return;
        }
        if let Some(slot) = self.remains.find(key.hash(tuple), tuple) {
            exhausted.on_waiting(tuple, self.remains.reusable_after(slot));
        }
    }

    fn remove(&mut self, key: FlowKey, socket: &TcpSocket) -> bool {
        let hash = key.hash(socket.tuple());
        let is_it = |one: &Arc<TcpSocket>| core::ptr::eq(&raw const **one, socket);
        let Ok(entry) = self.connections.find_entry(hash, is_it) else {
            return false;
        };
        entry.remove();
        self.ports.free(socket.tuple(), socket.cell.claim());
        let connections = &mut self.connections;
        // Memory of a burst is given back; each shrink is paid for by the removals before it.
        if connections.capacity() > 1024 && connections.len() * 8 < connections.capacity() {
            connections.shrink_to(connections.len() * 2, |one| key.hash(one.tuple()));
        }
        true
    }
}

/// Whether nobody has this port but connections that it was chosen for (`__inet_hash_connect`).
fn is_shareable(
    listeners: &HashTable<Arc<Listener>>,
    bound: &HashTable<Arc<Bound>>,
    uses: &PortUses,
    port: u16,
) -> bool {
    let hash = port_hash(port);
    listeners.find(hash, |one| one.local().port() == port).is_none()
        && bound.find(hash, |one| one.local().port() == port).is_none()
        && !uses.is_given(port)
}

/// Whether another socket is in the way of one with this address (`inet_csk_bind_conflict`).
fn is_in_conflict(
    listeners: &HashTable<Arc<Listener>>,
    bound: &HashTable<Arc<Bound>>,
    uses: &PortUses,
    wanted: &Bound,
    own: Option<&Bound>,
) -> bool {
    let (hash, reuse) = (port_hash(wanted.local().port()), wanted.reuse());
    let is_bound = |other: &Arc<Bound>| {
        let is_own = own.is_some_and(|own| core::ptr::eq(&raw const **other, own));
        let is_shared = reuse && other.reuse();
        !is_own && !is_shared && wanted.meets_bound(other)
    };
    let is_listened =
        |other: &Arc<Listener>| wanted.meets(other.local()) || other.meets(wanted.local());
    uses.obstruct(wanted.local(), wanted.is_dual(), reuse)
        || listeners.iter_hash(hash).any(is_listened)
        || bound.iter_hash(hash).any(is_bound)
}

fn port_hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
