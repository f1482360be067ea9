//! Sockets: what applications hold, and the table that names them for timers and the run list.

pub mod errors;
pub mod readiness;
pub mod tcp;
pub mod udp;

use crate::listener::Listener;
use crate::shard::RunCell;
use crate::sync::{Mutex, lock};
use neap_tcp::connection::ConnectionError;
use slab::Slab;
use std::sync::Arc;
use tcp::TcpSocket;
use thiserror::Error;

/// Why a socket call failed, besides what the connection itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SocketError {
    /// `EADDRINUSE`
    #[error("address already in use")]
    AddressInUse,
    /// `EADDRNOTAVAIL`: not an address of this host, or no port is left.
    #[error("cannot assign requested address")]
    AddressNotAvailable,
    /// `ENETUNREACH`
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// `EHOSTUNREACH`
    #[error("no route to host")]
    HostUnreachable,
    /// `ECONNREFUSED`: a port unreachable message came back.
    #[error("connection refused")]
    Refused,
    /// `EAFNOSUPPORT`: IPv4 mixed with IPv6.
    #[error("address family not supported by protocol")]
    AddressFamily,
    /// `EDESTADDRREQ`
    #[error("destination address required")]
    DestinationRequired,
    /// `EMSGSIZE`
    #[error("message too long")]
    MessageTooLong,
    /// `EAGAIN`
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// `ENOBUFS`: the qdisc refused the datagram.
    #[error("no buffer space available")]
    NoBuffers,
    /// `EINVAL`
    #[error("invalid argument")]
    InvalidArgument,
    /// What an ICMP message said that has no word of its own here.
    #[error(transparent)]
    Reported(ConnectionError),
    /// The stack is shut down.
    #[error("the stack is shut down")]
    ShutDown,
}

impl From<ConnectionError> for SocketError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Refused => Self::Refused,
            ConnectionError::HostUnreachable => Self::HostUnreachable,
            ConnectionError::NetworkUnreachable => Self::NetworkUnreachable,
            ConnectionError::MessageTooLong => Self::MessageTooLong,
            error => Self::Reported(error),
        }
    }
}

/// Names a socket for timers and the run list. Never used twice: the upper half counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId(pub u64);

/// A socket that has timers and a place on the run list.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A connection.
    Tcp(Arc<TcpSocket>),
    /// A listener.
    Listener(Arc<Listener>),
}

impl Target {
    pub(crate) fn cell(&self) -> &RunCell {
        match self {
            Self::Tcp(socket) => &socket.cell,
            Self::Listener(listener) => &listener.cell,
        }
    }
}

struct Slot {
    id: SocketId,
    target: Option<Target>,
}

/// Sockets by id. O(1); one mutex per lookup; 24 bytes per socket.
#[derive(Default)]
pub(crate) struct Registry(Mutex<Names>);

#[derive(Default)]
struct Names {
    slots: Slab<Slot>,
    issued: u32,
}

impl Registry {
    /// A name for a socket that is about to be made.
    pub(crate) fn reserve(&self) -> SocketId {
        let mut names = lock(&self.0);
        names.issued = names.issued.wrapping_add(1);
        let generation = u64::from(names.issued);
        let entry = names.slots.vacant_entry();
        let id = SocketId(generation << 32 | entry.key() as u64);
        entry.insert(Slot { id, target: None });
        id
    }

    /// The socket of a reserved name.
    pub(crate) fn fill(&self, id: SocketId, target: Target) {
        if let Some(slot) = lock(&self.0).slot(id) {
            slot.target = Some(target);
        }
    }

    /// The socket, if it is still there.
    pub(crate) fn get(&self, id: SocketId) -> Option<Target> {
        lock(&self.0).slot(id)?.target.clone()
    }

    /// Forgets a name.
    pub(crate) fn release(&self, id: SocketId) {
        let mut names = lock(&self.0);
        let target = match names.slot(id) {
            Some(slot) => slot.target.take(),
            None => return,
        };
        names.slots.remove(id.0 as u32 as usize);
        // The last reference may go with it: not under the lock.
        drop(names);
        drop(target);
    }

    /// Names in use.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).slots.len()
    }
}

impl Names {
    fn slot(&mut self, id: SocketId) -> Option<&mut Slot> {
        self.slots.get_mut(id.0 as u32 as usize).filter(|slot| slot.id == id)
    }
}
