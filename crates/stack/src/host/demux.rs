//! Demultiplexer: finds the socket of a packet by addresses and ports.
//!
//! Everything a peer can choose is hashed with SipHash-1-3 under the host's key, so no peer can
//! make a chain long. Cost of a lookup: one hash (about 15 ns for IPv4), one mutex, one probe; a
//! second probe for TIME_WAIT, a third by port for listeners. No allocation. An established
//! connection takes 8 bytes and a control byte here, an entry in TIME_WAIT about 100 bytes.

use super::bound::Bound;
use super::error::SocketError;
use super::listener::Listener;
use super::ports::{Ephemeral, Exhausted, PortUses};
use super::tcp::TcpSocket;
use crate::flow::{FlowKey, FourTuple};
use crate::sync::{Mutex, MutexGuard, lock};
use core::ops::RangeInclusive;
use hashbrown::HashTable;
use neap_tcp::time::Instant;
use neap_tcp::time_wait::TimeWait;
use slab::Slab;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// Receiver of a segment.
#[derive(Debug)]
pub(crate) enum Recipient {
    /// The connection with exactly these addresses.
    Connection(Arc<TcpSocket>),
    /// A connection in TIME_WAIT; ask [`Demux::with_time_wait`].
    TimeWait,
    /// A listener on the local address or on all addresses.
    Listener(Arc<Listener>),
    /// No socket.
    Nobody,
}

struct TimeWaitEntry {
    tuple: FourTuple,
    time_wait: TimeWait,
    serial: u32,
    /// Priority of the socket: answers stay in its band (`tw_priority`).
    priority: u8,
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
    time_wait: HashTable<u32>,
    time_wait_entries: Slab<TimeWaitEntry>,
    /// Entries in the order of their deadlines, since all last equally long; one that was restarted
    /// moves to the end when its turn comes. O(1) per entry, and the wheel stays out of it. A
    /// serial number tells an entry from a later one in the same place.
    expiry: VecDeque<(Instant, u32, u32)>,
    next_serial: u32,
    /// `net.ipv4.tcp_max_tw_buckets`.
    max_time_wait: usize,
    uses: PortUses,
    ephemeral: Ephemeral,
    exhausted: Exhausted,
    /// No further sockets are taken, and what there is comes to its end.
    is_closing: bool,
    is_shut_down: bool,
}

/// Numbers of TCP sockets of a host, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketCounts {
    /// Open connections.
    pub connections: usize,
    /// Listeners.
    pub listeners: usize,
    /// Connections in TIME_WAIT.
    pub time_wait: usize,
    /// Half-open connections of all listeners together.
    pub requests: usize,
    /// Connections of all listeners together that wait to be accepted.
    pub waiting: usize,
}

impl Demux {
    /// Empty tables, without a port to choose and without room in TIME-WAIT; see
    /// [`set_limits`](Self::set_limits).
    pub(crate) fn new(key: FlowKey, seed: u64) -> Self {
        Self {
            key,
            tables: Mutex::new(Tables {
                connections: HashTable::new(),
                listeners: HashTable::new(),
                bound: HashTable::new(),
                time_wait: HashTable::new(),
                time_wait_entries: Slab::new(),
                expiry: VecDeque::new(),
                next_serial: 0,
                max_time_wait: 0,
                uses: PortUses::default(),
                ephemeral: Ephemeral::new(seed),
                exhausted: Exhausted::default(),
                is_closing: false,
                is_shut_down: false,
            }),
        }
    }

    /// Chooses ports from `ports` (`net.ipv4.ip_local_port_range`) from now on, and keeps at most
    /// `max_time_wait` connections in TIME-WAIT (`net.ipv4.tcp_max_tw_buckets`) when the next one
    /// comes.
    pub(crate) fn set_limits(&self, ports: RangeInclusive<u16>, max_time_wait: usize) {
        let mut tables = self.lock();
        tables.ephemeral.set_range(ports);
        tables.exhausted.clear();
        tables.max_time_wait = max_time_wait;
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
        if tables.find_time_wait(hash, tuple).is_some() {
            return Recipient::TimeWait;
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

    /// Adds a connection under its addresses.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`] if there is one; [`SocketError::ShutDown`].
    pub(crate) fn insert(&self, socket: &Arc<TcpSocket>) -> Result<(), SocketError> {
        self.lock().insert(self.key, socket)
    }

    /// An ephemeral port for a connection; `tuple.local_port` is ignored. It is not reserved: a
    /// later [`insert`](Self::insert) tells whether another thread was faster.
    ///
    /// # Errors
    /// [`SocketError::AddressNotAvailable`] if every port is in use towards this remote end.
    pub(crate) fn choose_port(&self, tuple: &FourTuple) -> Result<u16, SocketError> {
        let offset = self.key.hash(&FourTuple { local_port: 0, ..*tuple });
        let mut tables = self.lock();
        let Tables {
            ephemeral,
            exhausted,
            connections,
            listeners,
            bound,
            time_wait,
            time_wait_entries,
            ..
        } = &mut *tables;
        let is_free = |port| {
            let candidate = FourTuple { local_port: port, ..*tuple };
            let hash = self.key.hash(&candidate);
            listeners.find(port_hash(port), |one| one.local().port() == port).is_none()
                && bound.find(port_hash(port), |one| one.local().port() == port).is_none()
                && connections.find(hash, |socket| *socket.tuple() == candidate).is_none()
                && time_wait
                    .find(hash, |&slot| time_wait_entries[slot as usize].tuple == candidate)
                    .is_none()
        };
        let known = exhausted.choose(tuple, |port| ephemeral.contains(port) && is_free(port));
        let found = known.unwrap_or_else(|| {
            let found = ephemeral.choose(offset, is_free);
            if found.is_none() {
                exhausted.add(tuple);
            }
            found
        });
        found.ok_or(SocketError::AddressNotAvailable)
    }

    /// Takes a connection out. Whether it was there.
    pub(crate) fn remove(&self, socket: &TcpSocket) -> bool {
        self.lock().remove(self.key, socket)
    }

    /// Replaces a connection by what is left of it. Beyond the bound the oldest entry goes.
    pub(crate) fn enter_time_wait(&self, socket: &TcpSocket, time_wait: TimeWait, priority: u8) {
        let key = self.key;
        let tuple = *socket.tuple();
        let hash = key.hash(&tuple);
        let mut tables = self.lock();
        if !tables.remove(key, socket) || tables.is_shut_down || tables.max_time_wait == 0 {
            return;
        }
        while tables.time_wait_entries.len() >= tables.max_time_wait {
            let Some((_, slot, serial)) = tables.expiry.pop_front() else { break };
            tables.remove_time_wait(key, slot, serial);
        }
        tables.next_serial = tables.next_serial.wrapping_add(1);
        let serial = tables.next_serial;
        let due = time_wait.deadline();
        let entry = TimeWaitEntry { tuple, time_wait, serial, priority };
        let slot = tables.time_wait_entries.insert(entry) as u32;
        tables.expiry.push_back((due, slot, serial));
        tables.uses.add(tuple.local_port);
        let Tables { time_wait, time_wait_entries, .. } = &mut *tables;
        time_wait
            .insert_unique(hash, slot, |&slot| key.hash(&time_wait_entries[slot as usize].tuple));
    }

    /// Lets `f` look at the entry in TIME_WAIT of this flow; `f` must not call back. With
    /// `(.., true)` the entry is removed. With what `f` found, the priority of the socket.
    pub(crate) fn with_time_wait<R>(
        &self,
        tuple: &FourTuple,
        f: impl FnOnce(&mut TimeWait) -> (R, bool),
    ) -> Option<(R, u8)> {
        let hash = self.key.hash(tuple);
        let mut tables = self.lock();
        let slot = tables.find_time_wait(hash, tuple)?;
        let entry = &mut tables.time_wait_entries[slot as usize];
        let (serial, priority) = (entry.serial, entry.priority);
        let (answer, remove) = f(&mut entry.time_wait);
        if remove {
            tables.remove_time_wait(self.key, slot, serial);
        }
        Some((answer, priority))
    }

    /// Removes the entries whose time is over; when to come back. O(1) per entry.
    pub(crate) fn expire_time_wait(&self, now: Instant) -> Instant {
        let mut tables = self.lock();
        while let Some(&(queued_for, slot, serial)) = tables.expiry.front() {
            if queued_for > now {
                return queued_for;
            }
            tables.expiry.pop_front();
            let entry = tables.time_wait_entries.get(slot as usize);
            match entry.filter(|entry| entry.serial == serial).map(|e| e.time_wait.deadline()) {
                Some(due) if due > now => tables.expiry.push_back((due, slot, serial)),
                _ => tables.remove_time_wait(self.key, slot, serial),
            }
        }
        Instant::FAR_FUTURE
    }

    /// Adds a listener. `reuse` is `SO_REUSEADDR`: connections on the port do not matter. `own` is
    /// the reservation of the socket that listens.
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

    /// Reserves an address until [`unbind`](Self::unbind); port 0 is one that nobody listens on,
    /// uses or is bound to, chosen by `salt`. `is_dual` says that `[::]` stands for `0.0.0.0` too,
    /// `reuse` is `SO_REUSEADDR`.
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
            local.set_port(tables.free_port(salt)?);
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
            tables.exhausted.clear();
        }
    }

    /// A port that nobody listens on, uses or is bound to. It is not reserved.
    ///
    /// # Errors
    /// [`SocketError::AddressInUse`] if there is none.
    pub(crate) fn free_port(&self, salt: u64) -> Result<u16, SocketError> {
        self.lock().free_port(salt)
    }

    /// Takes a listener out.
    pub(crate) fn unlisten(&self, listener: &Listener) {
        let hash = port_hash(listener.local().port());
        let mut tables = self.lock();
        let is_it = |one: &Arc<Listener>| core::ptr::eq(&raw const **one, listener);
        if let Ok(entry) = tables.listeners.find_entry(hash, is_it) {
            entry.remove();
            tables.exhausted.clear();
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

    /// Refuses all further sockets, and hands out what is there.
    pub(crate) fn begin_close(&self) -> (Vec<Arc<TcpSocket>>, Vec<Arc<Listener>>) {
        let mut tables = self.lock();
        tables.is_closing = true;
        let listeners = tables.listeners.drain().collect();
        (tables.connections.iter().cloned().collect(), listeners)
    }

    /// Connections now, those in TIME_WAIT not counted.
    pub(crate) fn open_connections(&self) -> usize {
        self.lock().connections.len()
    }

    /// Refuses all further sockets, forgets TIME_WAIT, and hands out what is there.
    pub(crate) fn shut_down(&self) -> (Vec<Arc<TcpSocket>>, Vec<Arc<Listener>>) {
        let mut tables = self.lock();
        (tables.is_closing, tables.is_shut_down) = (true, true);
        tables.time_wait.clear();
        tables.time_wait_entries.clear();
        tables.expiry.clear();
        let listeners = tables.listeners.drain().collect();
        (tables.connections.iter().cloned().collect(), listeners)
    }

    /// Sockets by kind.
    pub(crate) fn counts(&self) -> SocketCounts {
        let tables = self.lock();
        let listeners: Vec<_> = tables.listeners.iter().cloned().collect();
        let counts = SocketCounts {
            connections: tables.connections.len(),
            listeners: listeners.len(),
            time_wait: tables.time_wait_entries.len(),
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
        let (port, reuse) = (wanted.local().port(), wanted.reuse());
        let mut listeners = self.listeners.iter_hash(port_hash(port));
        let mut bound = self.bound.iter_hash(port_hash(port));
        let is_listened =
            listeners.any(|other| wanted.meets(other.local()) || other.meets(wanted.local()));
        let is_used = !reuse && self.uses.is_used(port);
        let is_bound = bound.any(|other| {
            let is_own = own.is_some_and(|own| core::ptr::eq(&raw const **other, own));
            let is_shared = reuse && other.reuse();
            !is_own && !is_shared && wanted.meets_bound(other)
        });
        if is_listened || is_used || is_bound {
            return Err(SocketError::AddressInUse);
        }
        Ok(())
    }

    fn free_port(&mut self, salt: u64) -> Result<u16, SocketError> {
        let Self { ephemeral, listeners, bound, uses, .. } = self;
        let is_free = |port| {
            let hash = port_hash(port);
            listeners.find(hash, |one| one.local().port() == port).is_none()
                && bound.find(hash, |one| one.local().port() == port).is_none()
                && !uses.is_used(port)
        };
        ephemeral.choose(salt, is_free).ok_or(SocketError::AddressInUse)
    }

    fn find_time_wait(&self, hash: u64, tuple: &FourTuple) -> Option<u32> {
        let is_it = |&slot: &u32| self.time_wait_entries[slot as usize].tuple == *tuple;
        self.time_wait.find(hash, is_it).copied()
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

    fn insert(&mut self, key: FlowKey, socket: &Arc<TcpSocket>) -> Result<(), SocketError> {
        if self.is_closing {
            return Err(SocketError::ShutDown);
        }
        let tuple = socket.tuple();
        let hash = key.hash(tuple);
        let is_taken = self.find_time_wait(hash, tuple).is_some()
            || self.connections.find(hash, |other| other.tuple() == tuple).is_some();
        if is_taken {
            return Err(SocketError::AddressInUse);
        }
        self.uses.add(tuple.local_port);
        self.connections.insert_unique(hash, socket.clone(), |one| key.hash(one.tuple()));
        Ok(())
    }

    fn remove(&mut self, key: FlowKey, socket: &TcpSocket) -> bool {
        let hash = key.hash(socket.tuple());
        let is_it = |one: &Arc<TcpSocket>| core::ptr::eq(&raw const **one, socket);
        let Ok(entry) = self.connections.find_entry(hash, is_it) else {
            return false;
        };
        entry.remove();
        self.uses.remove(socket.tuple().local_port);
        self.exhausted.on_freed(socket.tuple());
        let connections = &mut self.connections;
        // Memory of a burst is given back; each shrink is paid for by the removals before it.
        if connections.capacity() > 1024 && connections.len() * 8 < connections.capacity() {
            connections.shrink_to(connections.len() * 2, |one| key.hash(one.tuple()));
        }
        true
    }

    fn remove_time_wait(&mut self, key: FlowKey, slot: u32, serial: u32) {
        let Some(entry) = self.time_wait_entries.get(slot as usize) else {
            return;
        };
        if entry.serial != serial {
            return;
        }
        let tuple = entry.tuple;
        if let Ok(entry) = self.time_wait.find_entry(key.hash(&tuple), |&other| other == slot) {
            entry.remove();
        }
        self.time_wait_entries.remove(slot as usize);
        self.uses.remove(tuple.local_port);
        self.exhausted.on_freed(&tuple);
    }
}

fn port_hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
