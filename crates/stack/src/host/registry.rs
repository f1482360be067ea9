//! Registry: the table that names sockets for timers and the run list.

use super::listener::Listener;
use super::run_list::RunCell;
use super::socket_id::SocketId;
use super::tcp::TcpSocket;
use crate::sync::{Mutex, lock};
use slab::Slab;
use std::sync::Arc;

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
